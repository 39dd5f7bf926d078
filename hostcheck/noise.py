"""How much a host's figures scatter, from its last receipt: what a trial could see, before it is run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import receipts
from .onhost.probe import receipt as raw
from .onhost.probe import statistics, verdict
from .report import probe, store

ENOUGH_PAIRS = 6


@dataclass(frozen=True)
class Noise:
    """Sham pairs of a metric. ratios: their log ratios. file: the receipt. taken_at: as it says."""

    ratios: tuple[float, ...]
    file: str
    taken_at: str

    def detectable(self, pairs: int, alpha: float) -> float:
        """The relative change that so many pairs find in four of five trials, never below what may be claimed.

        >>> round(Noise((0.01, -0.01, 0.02, -0.02, 0.01, -0.01), "", "").detectable(16, 0.03), 3)
        0.02
        """
        effect = statistics.detectable_effect(self.ratios, pairs, alpha)
        floor = statistics.noise_floor(self.ratios, pairs)
        return verdict.ratio_change(max(effect, floor, verdict.SMALLEST_CLAIM))


def last(folder: Path, host: str, subject: str, metric: str) -> Noise | None:
    """Noise of the newest valid receipt of a host and card (a type of device without one) that has sham pairs of a
    metric; None when there is none. A file that is no receipt is passed over.
    """
    stem = store.file_name(host)
    files = sorted(folder.glob(f"{stem}-*.json"), key=lambda path: path.name.rpartition("-")[2], reverse=True)
    for path in files:
        try:
            receipt = receipts.load(path)
        except (receipts.NotAReceipt, OSError, UnicodeDecodeError):
            continue
        if path.name != probe.file_name(host, receipt) or probe.subject(receipt) != subject:
            continue
        pairs = [pair for phase in raw.SHAM_PHASES for pair in raw.block_pairs(receipt, phase, metric, "median")]
        if receipt["validity"]["valid"] and len(pairs) >= ENOUGH_PAIRS:
            return Noise(tuple(statistics.log_ratios(pairs)), str(path), receipt["taken_at"])
    return None
