"""What real kernels said on the test machine (tests/lab): a recording gives the findings of the state it was made in.

``python -m tests.lab.record`` makes them anew: whole, private data replaced as usual, but for the journal's bookkeeping
(cursor, sequence, boot id) in each of its entries. A machine under emulation is what it is: a virtual one, with a small
disk and modules of the project's own, and that is said too.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from hostcheck.findings import Finding, Status
from tests import replay
from tests.lab import record

MACHINE = {
    ("gpu.display", "info", "0000:85:00.0"),
    ("kernel.taint", "info", "host"),
    ("p2p", "info", "host"),
    ("storage.root_free", "warn", "host"),
}
#: Recording -> what was done to the machine in it, as findings.
DONE: dict[str, set[tuple[str, str, str]]] = {
    "lab-vm-slow-uplink": {
        ("pcie.link.speed", "fail", "0000:21:00.0"),
        ("aer.rate", "warn", "0000:21:00.0"),
    },
    "lab-vm-newer-kernel": {
        ("aer.nonfatal", "fail", "0000:23:00.0"),
        ("aer.rate", "warn", "0000:83:00.0"),
        ("cpu.boost", "unknown", "all"),
    },
}
#: Recording -> the words of its kernel for a corrected error.
WORDS = {
    "lab-vm-slow-uplink": ("6.1.", "severity=Corrected,"),
    "lab-vm-newer-kernel": ("6.12.", "severity=Correctable,"),
}


def test_each_can_be_made_anew() -> None:
    assert set(DONE) == set(WORDS) <= set(record.STATES)
    for name in DONE:
        journal = replay.host(name)["commands"][replay.JOURNAL]["stdout"]
        assert record.without_bookkeeping(journal) == journal


def found(name: str, change: dict[str, Any] | None = None) -> dict[tuple[str, str, str], Finding]:
    report = replay.report(replay.changed(replay.host(name), change or {}))
    quiet = (Status.ok, Status.not_applicable)
    return {(one.id, one.status.value, one.subject.name): one for one in report.findings if one.status not in quiet}


@pytest.mark.parametrize("name", DONE)
def test_the_findings_are_those_of_its_state(name: str) -> None:
    assert set(found(name)) - MACHINE == DONE[name]


@pytest.mark.parametrize("name", DONE)
def test_it_was_recorded_under_the_kernel_whose_words_it_has(name: str) -> None:
    recording = replay.host(name)
    kernel, words = WORDS[name]
    assert recording["origin"] == "recorded"
    assert recording["files"]["/proc/sys/kernel/osrelease"].startswith(kernel)
    entries = [json.loads(line) for line in recording["commands"][replay.JOURNAL]["stdout"].splitlines()]
    assert sum(words in entry["MESSAGE"] for entry in entries) >= 2


def test_the_degraded_link_is_named_with_both_values_and_the_errors_with_both_ends() -> None:
    findings = found("lab-vm-slow-uplink")
    link = findings["pcie.link.speed", "fail", "0000:21:00.0"]
    assert (link.seen, link.wanted) == ("2.5 GT/s (Gen1)", "16 GT/s (Gen4)")
    errors = findings["aer.rate", "warn", "0000:21:00.0"]
    assert errors.seen.startswith("0000:20:01.0 - 0000:21:00.0: BadTLP, Timeout (Data Link Layer); 4 times")


def test_without_its_log_the_counters_still_tell_of_the_errors() -> None:
    refused = {"rc": 1, "stdout": "", "stderr": "dmesg: read kernel buffer failed: Operation not permitted\n"}
    empty = {"rc": 0, "stdout": "", "stderr": ""}
    findings = found("lab-vm-slow-uplink", {"commands": {replay.JOURNAL: empty, "dmesg": refused}})
    assert set(findings) - MACHINE == {*DONE["lab-vm-slow-uplink"], ("log.access", "unknown", "host")}
    assert "5 counted since the boot" in findings["aer.rate", "warn", "0000:21:00.0"].seen
