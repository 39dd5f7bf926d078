"""What every host of an inventory has to be: no check fails, what is required was read, another tool reads the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hostcheck import checks
from hostcheck.assess import Report
from hostcheck.findings import Status, all_unknown, exit_code

IDS = sorted(id for declaration in checks.ALL for id in declaration.ids)


@pytest.mark.parametrize("id", IDS)
def test_no_check_fails(report: Report, id: str) -> None:
    """Of a check that could not be judged the reason is told; one that is required fails then."""
    findings = [finding for finding in report.findings if finding.id == id]
    failing = [finding for finding in findings if finding.status is Status.fail and finding.waived is None]
    told = [f"{one.subject}: {one.seen}; wanted {one.wanted}; {one.next_step}" for one in failing]
    assert not failing, "\n".join(told)
    unknown = [finding for finding in all_unknown(report.findings) if finding.id == id]
    if unknown:
        reasons = "; ".join(dict.fromkeys(finding.seen for finding in unknown))
        assert exit_code(unknown, report.required) == 0, f"required, and not judged: {reasons}"
        pytest.skip(f"not judged: {reasons}")
    if not findings or all(finding.status is Status.not_applicable for finding in findings):
        pytest.skip(f"not applicable: {findings[0].seen if findings else 'nothing here for it to judge'}")


def test_no_waiver_has_ended(report: Report) -> None:
    ended = [finding.subject.name for finding in report.findings if finding.id == "waiver.expired"]
    assert not ended


def test_the_kernel_is_the_one_that_another_tool_reads(report: Report, file: Callable[[str], Any]) -> None:
    assert report.facts.identity.kernel.value == file("/proc/sys/kernel/osrelease").content_string.strip()


def test_every_card_is_where_it_was_read(report: Report, file: Callable[[str], Any]) -> None:
    cards = report.facts.pcie.gpus.value
    if not cards:
        pytest.skip("no GPU")
    for gpu in cards:
        assert file(f"/sys/bus/pci/devices/{gpu.bdf}/device").content_string.strip() == f"0x{gpu.device}"


def test_settings_read_the_same(report: Report, file: Callable[[str], Any]) -> None:
    """Values that files of one line hold, read by both."""
    known = [report.facts.aspm.policy, *(policy.governor for policy in report.facts.cpufreq.policies.value or ())]
    known += [gpu.power_control for gpu in report.facts.pcie.gpus.value or ()]
    read = [reading for reading in known if reading.value is not None]
    if not read:
        pytest.skip("none of them could be read")
    for reading in read[:8]:
        assert reading.value in file(reading.source).content_string.replace("[", " ").replace("]", " ").split()
