"""Clocks that are held down: reasons of a card now, counts of the processor between two reads and two runs."""

from __future__ import annotations

from typing import Any

import pytest

from hostcheck.findings import Finding
from hostcheck.onhost.gather import Facts, Options, gather
from hostcheck.onhost.recording import RecordedReader
from tests import replay

HOST, GPU, HYBRID = "four-card-gen4", "0000:43:00.0", "intel-hybrid"
WAY = "/sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:01.0/0000:43:00.0"
FLAGS = f"{WAY}/tile0/gt0/freq0/throttle"
COUNTS = "/sys/devices/system/cpu/cpu0/thermal_throttle"
REFUSED: Any = {"error": "EACCES"}


def judged(id: str, change: dict[str, Any], host: str = HOST, previous: Facts | None = None) -> list[Finding]:
    report = replay.report(replay.changed(replay.host(host), change), previous=previous)
    return [one for one in report.findings if one.id == id]


def card(**flags: Any) -> tuple[str, str]:
    change = {"files": {f"{FLAGS}/{name}": text for name, text in flags.items()}}
    (own,) = [one for one in judged("gpu.throttle", change) if one.subject.name == GPU]
    return own.status.value, own.seen


@pytest.mark.parametrize(
    ("flags", "status", "seen"),
    [
        ({}, "ok", "not held down"),
        ({"status": "1\n", "reason_thermal": "1\n", "reason_pl1": "1\n"}, "warn", "gt0 by pl1, thermal"),
        ({"status": "1\n", "reason_vr_thermalert": "1\n"}, "warn", "gt0 by vr_thermalert"),
        ({"status": "1\n", "reason_pl1": "1\n"}, "info", "gt0 by pl1"),
        ({"status": "1\n"}, "info", "held down: gt0"),
        ({"reason_pl1": REFUSED}, "unknown", "permission"),
        ({"status": "x\n"}, "unknown", "not_understood"),
    ],
)
def test_reasons_of_a_card(flags: dict[str, Any], status: str, seen: str) -> None:
    found = card(**flags)
    assert found[0] == status
    assert seen in found[1]


def test_cards_that_are_left_alone_and_hosts_without_one() -> None:
    fault = "[ 4500.0] xe 0000:43:00.0: [drm] Tile0: GT0: Fault response: Unsuccessful -EINVAL"
    assert GPU not in {one.subject.name for one in judged("gpu.throttle", {"log": fault})}
    (faulted,) = [one for one in judged("gpu.fault", {"log": fault}) if one.subject.name == GPU]
    assert "gpu.throttle" in {one.id for one in faulted.explains}
    for host in ("nvidia-host", HYBRID):
        assert [one.status.value for one in judged("gpu.throttle", {}, host)] == ["not_applicable"]


# -- the processor ------------------------------------------------------------------------------------


def counts(core: Any, package: Any, after: tuple[Any, Any] | None = None) -> dict[str, Any]:
    def files(pair: tuple[Any, Any]) -> dict[str, Any]:
        named = zip(("core_throttle_count", "package_throttle_count"), pair, strict=True)
        return {f"{COUNTS}/{name}": content for name, content in named if content is not None}

    recording = replay.host(HYBRID)
    gone = {path: None for path in recording["files"] if "/thermal_throttle/" in path}
    change: dict[str, Any] = {"files": {**gone, **files((core, package))}}
    if after is not None:
        change["samples"] = [{"after_s": 30, "files": files(after)}]
    return change


def processor(change: dict[str, Any], previous: Facts | None = None) -> tuple[str, str]:
    (own,) = judged("cpu.throttle", change, HYBRID, previous)
    return own.status.value, own.seen


@pytest.mark.parametrize(
    ("change", "status", "seen"),
    [
        (counts("0\n", "0\n"), "ok", "never since the boot"),
        (counts("7\n", "0\n"), "info", "core 7, package 0 since the boot; sample_seconds"),
        (counts("7\n", "0\n", ("7\n", "0\n")), "ok", "none within 30 s"),
        (counts("7\n", "3\n", ("9\n", "3\n")), "warn", "grew by core 2 within 30 s"),
        (counts("0\n", "0\n", ("0\n", "1\n")), "warn", "grew by package 1"),
        (counts("0\n", REFUSED), "unknown", "permission"),
        (counts("many\n", "0\n"), "unknown", "not_understood"),
        (counts("7\n", "0\n", (REFUSED, "0\n")), "unknown", "permission"),
        (counts("7\n", "0\n", (REFUSED, "4\n")), "warn", "grew by package 4"),
        (counts(None, None), "not_applicable", "does not count it"),
    ],
)
def test_counts_of_the_processor(change: dict[str, Any], status: str, seen: str) -> None:
    found = processor(change)
    assert found[0] == status
    assert seen in found[1]


def test_growth_since_the_run_before_on_the_same_boot_is_told() -> None:
    def facts(change: dict[str, Any]) -> Facts:
        return gather(RecordedReader(replay.changed(replay.host(HYBRID), change)), Options())

    before = facts(counts("7\n", "0\n"))
    later = {**counts("9\n", "0\n"), "taken_at": "2027-01-01T00:00:00Z"}
    assert processor(later, before)[0] == "info"
    assert "grew by core 2 in the" in processor(later, before)[1]
    assert "grew" not in processor({**counts("7\n", "0\n"), "taken_at": "2027-01-01T00:00:00Z"}, before)[1]
    other = {**counts("7\n", "0\n")}
    other["files"] = {**other["files"], "/proc/sys/kernel/random/boot_id": "00000000-0000-4000-8000-000000000099\n"}
    assert "grew" not in processor(later, facts(other))[1]
