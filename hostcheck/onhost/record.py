"""Make a recording of a host: exactly what `gather` reads, and the whole of lspci where that harms nothing."""

from __future__ import annotations

from typing import Any

from .gather import Facts, Options, gather
from .reader import Reader
from .recording import Recorder, seconds
from .redact import Redactor, names_of

LSPCI = ("lspci", "-D", "-nn", "-vv")


def touchable(facts: Facts) -> bool:
    """May lspci read every device? Not where a card sleeps (it would wake) or has faulted on this boot."""
    log, pcie = getattr(facts, "kernel_log", None), getattr(facts, "pcie", None)
    if log is None or pcie is None or log.faulted.value is None or pcie.gpus.value is None:
        return False
    asleep = any(gpu.runtime_status.value in (None, "suspended", "suspending") for gpu in pcie.gpus.value)
    return not log.faulted.value and not asleep


def record(reader: Reader, options: Options | None = None, redact: bool = True) -> tuple[Facts, dict[str, Any]]:
    """Read a host and keep what was read. Returns (facts, recording)."""
    recorder = Recorder(reader)
    facts = gather(recorder, options)
    if touchable(facts):
        recorder.run(LSPCI)
    recording = recorder.recording(seconds(facts.taken_at))
    if redact:
        recording = Redactor(*names_of(reader)).recording(recording)
    return facts, recording
