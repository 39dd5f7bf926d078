"""Hooks on pass and fail, and that those of Slurm and Kubernetes clear only marks of their own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hostcheck.onhost.ready import hooks
from hostcheck.onhost.ready.hooks import parse
from tests.ready_host import BOOTS, FAULT, FIRST, ReadyHost

FILES = Path(__file__).parents[2] / "roles/host_agent/files"
TELL = '#!/bin/sh\n{ for word in "$@"; do printf "%s|" "$word"; done; echo; } >> "$HOSTCHECK_ROOT/told"\n'
MINE: list[dict[str, Any]] = [{"command": ["/opt/tell", "a b"], "timeout": 5}]


@pytest.fixture
def host(tmp_path: Path) -> ReadyHost:
    host = ReadyHost(tmp_path)
    host.put("/opt/tell", TELL, 0o755)
    return host


def told(host: ReadyHost) -> list[str]:
    file = host.path("/told")
    return file.read_text().splitlines() if file.exists() else []


def test_a_pass_is_told_after_the_mark_and_a_failure_after_its_removal(host: ReadyHost) -> None:
    look = '#!/bin/sh\n[ -e "$HOSTCHECK_ROOT/run/hostcheck/ready.json" ] && echo "$1 marked" >> "$HOSTCHECK_ROOT/told"'
    host.put("/opt/look", f'{look} || echo "$1 not marked" >> "$HOSTCHECK_ROOT/told"\n', 0o755)
    both = {"on_pass": [{"command": ["/opt/look"]}], "on_fail": [{"command": ["/opt/look"]}]}
    host.passes(**both)
    host.ask("absent", **both)
    host.passes(**both)
    host.ask("evidence", **both)
    host.passes(**both)
    host.ask("present", passed=False, **both)
    assert told(host) == ["pass marked", "fail not marked"] * 3


def test_the_reason_is_one_argument_on_one_line(host: ReadyHost) -> None:
    host.say(FAULT.format(FIRST) + '; $(reboot) "x" \x1b[1m')
    answer = host.passes(on_fail=MINE)
    line = told(host)[0]
    assert line.startswith("a b|fail|not ready: xe.engine_reset of 0000:23:00.0")
    assert '$(reboot) "x"' in line
    assert line.count("|") == 3
    assert "\x1b" not in line
    assert answer["hooks"] == [{"command": ["/opt/tell", "a b"], "problem": ""}]


def test_a_hook_that_fails_is_said_and_the_next_one_runs(host: ReadyHost) -> None:
    host.put("/opt/broken", "#!/bin/sh\necho no route >&2\nexit 4\n", 0o755)
    host.put("/opt/slow", "#!/bin/sh\nsleep 60\n", 0o755)
    broken = [{"command": ["/opt/broken"]}, {"command": ["/opt/slow"], "timeout": 0.2}, {"command": ["/none"]}, *MINE]
    failed = host.ask("absent", on_fail=broken)
    assert "msg" not in failed
    problems = [one["problem"] for one in failed["hooks"]]  # type: ignore[attr-defined]
    assert problems[0] == "exit 4: no route"
    assert problems[1].startswith("timeout")
    assert problems[2].startswith("tool_missing")
    assert problems[3] == ""
    passed = host.passes(on_pass=[broken[0]])
    assert passed["msg"] == "the host is marked ready, but a hook failed: /opt/broken: exit 4: no route"
    assert host.mark.exists()


def test_check_mode_runs_none(host: ReadyHost) -> None:
    host.ask("absent", True, on_fail=MINE)
    host.ask("present", True, passed=True, boot_id=BOOTS[0], on_pass=MINE)
    assert told(host) == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"command": "scontrol x"}, "command is a list"),
        ({"command": []}, "command is a list"),
        ({"command": ["x", 1]}, "command is a list"),
        ({"command": ["x"], "timeout": 0}, "timeout is a number"),
        ({"command": ["x"], "timeout": 9999}, "timeout is a number"),
        ({"cmd": ["x"]}, "command and timeout"),
        ("x", "command and timeout"),
    ],
)
def test_bad_input(given: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse([given], "on_pass")
    assert parse([{"command": ["x"]}])[0].timeout == hooks.TIMEOUT


# -- the scripts --------------------------------------------------------------------------------------------------


def script(tmp_path: Path, name: str, tool: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run a hook with a stand-in for its tool, which notes its arguments and answers what the test has put down."""
    stub = tmp_path / "bin" / tool
    stub.parent.mkdir(exist_ok=True)
    stub.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$*" >> {tmp_path}/calls\n'
        f'case "$*" in *"show node"*|*"get node"*) cat {tmp_path}/answer; exit "$(cat {tmp_path}/rc)";; esac\n'
    )
    stub.chmod(0o755)
    (tmp_path / "calls").write_text("")
    environment = {"PATH": f"{stub.parent}:/usr/bin:/bin", "LC_ALL": "C"}
    ran = subprocess.run(
        [str(FILES / name), *arguments], env=environment, capture_output=True, text=True, timeout=30, check=False
    )
    asked = ("show node", "get node")
    calls = (tmp_path / "calls").read_text().splitlines()
    return ran, [line for line in calls if not any(word in line for word in asked)]


def slurm(tmp_path: Path, state: str, reason: str, *arguments: str, rc: int = 0) -> tuple[int, list[str]]:
    text = f"NodeName=n1 Arch=x86_64\n   State={state} ThreadsPerCore=2\n"
    (tmp_path / "answer").write_text(text + (f"   Reason={reason} [root@2026-10-01T10:00:00]\n" if reason else ""))
    (tmp_path / "rc").write_text(str(rc))
    ran, calls = script(tmp_path, "slurm-hook", "scontrol", "--node", "n1", *arguments)
    return ran.returncode, calls


OURS, THEIRS = "hostcheck: not ready: gpu.lost", "bad disk, see ticket"


@pytest.mark.parametrize(
    ("state", "reason", "arguments", "calls"),
    [
        ("IDLE", "", ("fail", "gpu.lost; x"), ["update nodename=n1 state=drain reason=hostcheck: gpu.lost; x"]),
        ("MIXED", "", ("fail", "x"), ["update nodename=n1 state=drain reason=hostcheck: x"]),
        ("IDLE+DRAIN", OURS, ("fail", "new"), ["update nodename=n1 state=drain reason=hostcheck: new"]),
        ("IDLE+DRAIN", THEIRS, ("fail", "x"), []),
        ("ALLOCATED+DRAIN", THEIRS, ("pass", ""), []),
        ("IDLE+DRAIN", OURS, ("pass", ""), ["update nodename=n1 state=undrain"]),
        ("IDLE+DRAIN", f"not {OURS}", ("pass", ""), []),
        ("IDLE", "", ("pass", ""), []),
        ("DOWN", OURS, ("pass", ""), []),
        ("DOWN+DRAIN", OURS, ("pass", ""), ["update nodename=n1 state=undrain"]),
        ("DOWN+DRAIN", "", ("pass", ""), []),
    ],
)
def test_slurm_ends_only_its_own_drain(
    tmp_path: Path, state: str, reason: str, arguments: tuple[str, ...], calls: list[str]
) -> None:
    assert slurm(tmp_path, state, reason, *arguments) == (0, calls)


def test_slurm_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    assert slurm(tmp_path, "IDLE", "", "pass", "", rc=1) == (1, [])
    assert slurm(tmp_path, "IDLE", "", "neither", "") == (2, [])
    assert slurm(tmp_path, "IDLE", "")[0] == 2


def kubernetes(tmp_path: Path, keys: str, *arguments: str, rc: int = 0) -> tuple[int, list[str]]:
    (tmp_path / "answer").write_text(keys)
    (tmp_path / "rc").write_text(str(rc))
    ran, calls = script(tmp_path, "kubernetes-hook", "kubectl", "--kubeconfig", "/k", "--node", "n1", *arguments)
    return ran.returncode, calls


KEY = "hostcheck.io/not-ready"


@pytest.mark.parametrize(
    ("keys", "arguments", "calls"),
    [
        ("", ("fail", "x"), [f"--kubeconfig /k taint node n1 {KEY}=true:NoSchedule --overwrite"]),
        ("node.kubernetes.io/unschedulable", ("pass", ""), []),
        (
            f"node.kubernetes.io/unschedulable {KEY}",
            ("pass", ""),
            [f"--kubeconfig /k taint node n1 {KEY}:NoSchedule-"],
        ),
        (f"mine/{KEY}", ("pass", ""), []),
        ("", ("pass", ""), []),
    ],
)
def test_kubernetes_clears_only_its_own_taint(
    tmp_path: Path, keys: str, arguments: tuple[str, ...], calls: list[str]
) -> None:
    assert kubernetes(tmp_path, keys, *arguments) == (0, calls)


def test_kubernetes_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    assert kubernetes(tmp_path, "", "pass", "", rc=1) == (1, [])
    assert kubernetes(tmp_path, "", "neither", "") == (2, [])


@pytest.mark.parametrize("name", ["slurm-hook", "kubernetes-hook"])
def test_the_scripts_are_plain_sh(name: str) -> None:
    file = FILES / name
    assert os.access(file, os.X_OK)
    subprocess.run(["sh", "-n", str(file)], check=True)
    assert file.read_text().startswith("#!/bin/sh\n")
