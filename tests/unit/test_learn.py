"""Expectations learned from hosts: what is wanted, what is commented out and why, and that the host then passes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.assess import Report, assess
from hostcheck.cli import main
from hostcheck.expectations import expectation
from hostcheck.findings import Status
from hostcheck.learn import RULES, Entry, comment, document, dumped, learn, text
from hostcheck.onhost.reader import Reading
from tests import replay

FOUR = "four-card-gen4"
CPU = "/sys/devices/system/cpu/cpufreq/policy{}/scaling_governor"
POLICY = "/sys/module/pcie_aspm/parameters/policy"


def of(name: str, change: dict[str, Any] | None = None, host: str = "") -> Report:
    return replay.report(replay.changed(replay.host(name), change or {}), host=host or name)


def fails(report: Report) -> set[tuple[str, str]]:
    return {(one.id, one.subject.name) for one in report.findings if one.status is Status.fail}


def learned(*reports: Report) -> tuple[dict[str, Any], str]:
    """The document that the file holds, and its text."""
    written = text(learn(reports), reports)
    found = yaml.safe_load(written)
    assert isinstance(found, dict)
    return found, written


def entry(reports: list[Report], *path: str) -> Entry:
    return next(one for one in learn(reports) if one.path == path)


@pytest.mark.parametrize("name", replay.host_names())
def test_the_host_then_audits_without_a_fail_that_it_has_not_anyway(name: str) -> None:
    before = of(name)
    found, _ = learned(before)
    after = assess(before.facts, expectation(found))
    assert fails(after) == fails(before)
    assert {one.id for one in after.findings if one.status is Status.warn} <= {
        one.id for one in before.findings if one.status is Status.warn
    }
    if name not in ("small-bar", "lab-vm-slow-uplink", "lab-vm-newer-kernel"):  # they fail whatever is expected
        assert not fails(after)


@pytest.mark.parametrize("name", [FOUR, "two-card-gen5"])
def test_the_lab_hosts_teach_what_decides(name: str) -> None:
    found, written = learned(of(name))
    assert found["gpus"]["count"] == {FOUR: 4, "two-card-gen5": 2}[name]
    assert found["gpus"]["ids"] == ["e223"]
    assert found["settings"]["gpu_runtime_pm"] == {"control": "on"}
    assert found["guc"]["wanted"]
    assert f"read from /sys/bus/pci/devices on {name}" in written


def test_a_drift_from_what_was_learned_fails() -> None:
    found, _ = learned(of(FOUR))
    changed = {"files": {CPU.format(number): "schedutil\n" for number in range(32)}}
    drifted = assess(of(FOUR, changed).facts, expectation(found))
    assert ("cpu.governor", "all") in fails(drifted)


def test_what_the_host_limits_is_commented_out_with_the_reason() -> None:
    found, written = learned(of(FOUR))
    assert "slot_link" not in found
    line = next(line for line in written.splitlines() if '"0000:21:00.0"' in line and "speed" in line)
    assert line.startswith("#   ")
    assert "limited by the host, pcie.link.speed info" in line


@pytest.mark.parametrize(
    ("change", "path", "check"),
    [
        (
            {"files": {CPU.format(0): "schedutil\n"}},
            ("settings", "cpu_governor", "governor"),
            "differs between policies",
        ),
        (
            {"files": {POLICY: "default performance [powersave] powersupersave\n", "/proc/cmdline": "pcie_aspm=force"}},
            ("settings", "pcie_aspm", "policy"),
            "aspm.policy warn",
        ),
        ({"files": {POLICY: {"error": "EACCES"}}}, ("settings", "pcie_aspm", "policy"), "not read: permission"),
        ({"files": {POLICY: "garbage\n"}}, ("settings", "pcie_aspm", "policy"), "expected one policy"),
    ],
)
def test_what_speaks_against_a_value(change: dict[str, Any], path: tuple[str, ...], check: str) -> None:
    found = entry([of(FOUR, change)], *path)
    assert check in found.reason
    assert path[-1] not in json.dumps(document([found]))


def test_auto_is_read_and_not_wanted() -> None:
    every = [path for path in replay.host(FOUR)["files"] if path.endswith("/power/control")]
    assert every
    found, written = learned(of(FOUR, {"files": dict.fromkeys(every, "auto\n")}))
    assert "gpu_runtime_pm" not in found.get("settings", {})
    assert "#   control: auto  # gpu.power_control warn" in written
    assert "gpu.power_control warn" in written


def test_a_file_that_is_missing_is_no_wish() -> None:
    found, written = learned(of(FOUR, {"files": {POLICY: None}}))
    assert "policy" not in found["settings"].get("pcie_aspm", {})
    assert "policy:" not in written


def test_only_what_hosts_share_is_wanted() -> None:
    one, other = of(FOUR, host="a"), of("two-card-gen5", host="b")
    found, written = learned(one, other)
    assert "count" not in found["gpus"]
    assert found["gpus"]["ids"] == ["e223"]
    assert "the hosts differ: a 4, b 2" in written
    for report in (one, other):
        assert not fails(assess(report.facts, expectation(found)))


def test_equal_hosts_teach_the_same_as_one() -> None:
    assert learned(of(FOUR, host="a"))[0] == learned(of(FOUR, host="a"), of(FOUR, host="b"))[0]


def test_a_host_that_is_not_well_is_named() -> None:
    bdf = "0000:47:00.0"
    line = f"[ 4000.000000] xe {bdf}: [drm] *ERROR* CRITICAL: Xe has declared device {bdf} as wedged."
    _, written = learned(of(FOUR, {"log": line}))
    assert f"# {FOUR} is not well: gpu.wedged {bdf}" in written


def test_text_of_a_host_cannot_leave_its_comment() -> None:
    odd = "x\nsettings: {cpu_governor: {governor: powersave}}\n"
    change = {"files": {"/proc/sys/kernel/osrelease": odd, POLICY: odd}}
    found, written = learned(of(FOUR, change, host="a\nevil: true"))
    assert "evil" not in found
    assert set(found) <= {"schema", *(rule.path[0] for rule in RULES), "slot_link"}
    assert expectation(found)
    assert all(line.lstrip()[:1] in ("#", "") or ":" in line for line in written.splitlines())


@given(
    st.one_of(
        st.text(), st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False), st.lists(st.text())
    )
)
def test_every_value_reads_back_as_it_was(value: Any) -> None:
    line = f"key: {dumped(value)}  # {comment(str(value))}"
    assert "\n" not in line
    assert yaml.safe_load(line) == {"key": value}


def test_every_rule_names_a_key_of_the_expectation() -> None:
    for rule in RULES:
        whole: dict[str, Any] = {}
        level = whole
        for key in rule.path[:-1]:
            level = level.setdefault(key, {})
        level[rule.path[-1]] = rule.read(of(FOUR).facts).value or None
        if level[rule.path[-1]] is not None:
            assert expectation(json.loads(json.dumps(whole, default=list)))


def test_a_rule_that_would_make_the_host_fail_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from hostcheck import learn as module

    wrong = module.Rule(("gpus", "count"), lambda _: Reading(9, "/x"), ("gpu.enumeration",))
    monkeypatch.setattr(module, "RULES", (wrong, *RULES[1:]))
    found = entry([of(FOUR)], "gpus", "count")
    assert "against it four-card-gen4 gives gpu.enumeration fail" in found.reason


# -- the command line -----------------------------------------------------------------------------------


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recording = str(replay.HOSTS / f"{FOUR}.json")
    assert main(["learn", "--recording", recording, "-o", "class.yml"]) == 0
    assert "wanted" in capsys.readouterr().err
    assert os.stat("class.yml").st_mode & 0o777 == 0o600
    assert main(["audit", "--recording", recording, "--expect", "class.yml"]) == 0
    capsys.readouterr()
    assert main(["learn", recording, "--group-vars"]) == 0
    nested = yaml.safe_load(capsys.readouterr().out)
    assert nested == {"hostcheck_expect": yaml.safe_load(Path("class.yml").read_text())}


def test_nothing_learned_is_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = {"schema": "hostcheck/recording/1", "taken_at": "2026-01-01T00:00:00Z", "origin": "recorded"}
    (tmp_path / "empty.json").write_text(json.dumps(empty))
    assert main(["learn", str(tmp_path / "empty.json")]) == 3


@pytest.mark.parametrize(("argv", "message"), [(["none.json"], "no such file"), (["-o"], "expected one argument")])
def test_bad_input_is_2(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", *argv]) == 2
    assert message in capsys.readouterr().err
