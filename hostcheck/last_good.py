"""New receipts of a host against the last good ones of the same cards, and against other hosts with such cards.

Two boots are compared unpaired, so this is a gate with a wide gap and never a claim: in the lab one host's launch time
moved by 20 % between sessions (5.15 to 6.2 us), and a gate below the noise is a defect (lab-host-facts 3.1, 4.3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import advice, receipts
from .onhost.recording import seconds
from .report import probe, store

Receipt = Mapping[str, Any]
# Own choice: a quarter, above the 20 % between two sessions of one host in the lab.
SLOWER = 0.25
METRICS = ("launch_us", "launch_sync_us", "rms_composite8_us")
ORDER = ("fast", "between", "slow")
LOOK_BACK = 5  # receipts of one card that are tried for a good one
SAME_RUN_S = 3600.0  # receipts of one host that were taken within an hour are of one run


@dataclass(frozen=True)
class Compared:
    """lines: for a person. worse: what must not pass without one."""

    lines: tuple[str, ...]
    worse: tuple[str, ...]


def _stamp(path: Path) -> str:
    return path.stem.rpartition("-")[2]


def _good(path: Path) -> Receipt | None:
    """A receipt that is valid and whose figures follow from its samples, or None."""
    try:
        found: Receipt = receipts.load(path)
    except (OSError, receipts.NotAReceipt):
        return None
    return found if found["kind"] == "profile" and found["validity"]["valid"] and not receipts.verify(found) else None


def _files(folder: Path, host: str) -> list[Path]:
    """A host's receipts, newest first."""
    found = folder.glob(f"{store.file_name(host)}-*.json")
    return sorted(found, key=lambda path: (_stamp(path), path.name), reverse=True)


def last_good(folder: Path, host: str, new: Sequence[Receipt]) -> dict[str, Receipt]:
    """The last good receipt from before the new ones, by what it is about (address of a card, or type of device)."""
    mine = {probe.file_name(host, receipt) for receipt in new}
    found: dict[str, Receipt] = {}
    tried: Counter[str] = Counter()
    for path in _files(folder, host):
        who = path.name.removesuffix(f"-{_stamp(path)}.json")
        tried[who] += path.name not in mine
        if path.name in mine or tried[who] > LOOK_BACK or any(who == _who(host, one) for one in found.values()):
            continue
        receipt = _good(path)
        if receipt is not None and _who(host, receipt) == who:  # another host's name may begin with this one
            found[probe.subject(receipt)] = receipt
    return found


def _who(host: str, receipt: Receipt) -> str:
    name = probe.file_name(host, receipt)
    return name.removesuffix(f"-{_stamp(Path(name))}.json")


def unlike(new: Receipt, old: Receipt) -> str:
    """Why two receipts are not compared, "" when they are."""
    for key in ("device", "torch", "runtime", "container", "container_digest"):
        was, now = (one["workers"][0]["identity"].get(key) for one in (old, new))
        if was != now:
            return f"{key.replace('_', ' ')} was {was or 'none'} and is {now or 'none'}"
    return ""


def slower(new: Receipt, old: Receipt) -> Iterator[str]:
    """Each figure that is slower by more than both noise floors and `SLOWER`."""
    for name in METRICS:
        a, b = (one["figures"]["metrics"].get(name) for one in (old, new))
        if a is None or b is None or not a["median"] > 0:
            continue
        gap, limit = b["median"] / a["median"] - 1.0, max(a.get("floor") or 0.0, b.get("floor") or 0.0, SLOWER)
        if gap > limit:
            yield f"{name} {b['median']:.4g} us, {a['median']:.4g} at {old['taken_at']} (limit {limit:.0%})"


def word_of(receipt: Receipt) -> str:
    """The class of a receipt's figures, "" where the lab's references do not apply."""
    word = advice.host_class(advice.lab_values(receipt)) if not advice.comparable(receipt) else ""
    return word if word in ORDER else ""


def fleet(folder: Path, host: str, receipt: Receipt, hosts: Sequence[str]) -> str:
    """How many of the other hosts are in which class, by the newest good receipt of a card with the same name."""
    card = receipt["workers"][0]["identity"]["card"].get("name")
    classes: Counter[str] = Counter()
    for other in hosts:
        if other == host:
            continue
        found = last_good(folder, other, ())
        words = {word_of(one) for one in found.values() if one["workers"][0]["identity"]["card"].get("name") == card}
        classes.update(word for word in words if word)
    return ", ".join(f"{classes[word]} {word}" for word in ORDER if classes[word])


def compare(folder: Path, host: str, new: Sequence[Receipt], hosts: Sequence[str] = ()) -> Compared:
    """Compare what a bring-up has just measured.

    folder: of all receipts. new: valid ones. hosts: all of the inventory, for the class of the fleet.
    """
    before = last_good(folder, host, new)
    lines: list[str] = []
    worse: list[str] = []
    for receipt in new:
        who, word = probe.subject(receipt), word_of(receipt)
        old = before.get(who)
        if old is None:
            lines.append(f"{who}: no good receipt from before to compare with")
        elif why := unlike(receipt, old):
            lines.append(f"{who}: not compared with {old['taken_at']}: {why}")
        else:
            was = word_of(old)
            found = list(slower(receipt, old))
            if word and was and ORDER.index(word) > ORDER.index(was):
                found.append(f"class {word}, was {was} at {old['taken_at']}")
            worse += [f"{who}: {one}" for one in found]
            if not found:
                lines.append(f"{who}: not slower than at {old['taken_at']}, beyond {SLOWER:.0%} and noise")
        others = fleet(folder, host, receipt, hosts) if word else ""
        if word:
            lines.append(f"{who}: class {word}; other hosts with such cards: {others or 'no receipts'}")
    return Compared(tuple(lines), (*worse, *missing(new, before)))


def missing(new: Sequence[Receipt], before: Mapping[str, Receipt]) -> list[str]:
    """Cards that the last run measured and this one did not: a host that declares nothing may lose one unnoticed."""
    cards = {who: one for who, one in before.items() if ":" in who}
    if not cards:
        return []
    newest = max(seconds(one["taken_at"]) for one in cards.values())
    seen = {probe.subject(receipt) for receipt in new}
    return [
        f"{who}: measured at {one['taken_at']}, not seen now"
        for who, one in sorted(cards.items())
        if who not in seen and newest - seconds(one["taken_at"]) <= SAME_RUN_S
    ]
