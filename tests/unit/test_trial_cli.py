"""hostcheck trial, and what hostcheck verify says of trials."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hostcheck import cli, noise, receipts
from hostcheck.onhost.probe import host as probing
from hostcheck.onhost.trials import journal, run
from tests import trial_host
from tests.settings_host import Tree, cpus
from tests.trial_host import GOVERNOR, governed

TOGGLE = ["--toggle", "cpu_governor", "{governor: performance}"]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.chdir(tmp_path)
    for module in (run, probing):
        monkeypatch.setattr(module, "FULL", trial_host.SMALL)
    return cpus(Tree(tmp_path / "root"), count=2)


def asked(tree: Tree, *more: str, command: list[str] | None = None) -> list[str]:
    where = ["trial", "--root", str(tree.root), "--device", "cpu", "--no-pin", *more]
    return [*where, "--command", *(command or governed(tree))]


def test_the_plan_says_what_would_be_done_and_does_nothing(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    command = governed(tree)
    before = tree.snapshot()
    assert cli.main(asked(tree, *TOGGLE, "--plan", command=command)) == 0
    said = capsys.readouterr().out
    assert tree.snapshot() == before
    assert said.splitlines()[:3] == [
        "measured: the CPU, launch_us by the median of a block",
        "toggle: cpu_governor: A scaling_governor schedutil; B scaling_governor performance",
        f"  writes {GOVERNOR}",
    ]
    assert "  counts only when clock_khz differs between the arms" in said
    assert "effect that it could see: not known, there is no receipt of this host with this metric" in said
    assert "stands against it" not in said


def test_the_plan_takes_the_noise_of_the_last_receipt(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(asked(tree, *TOGGLE)) == 0
    capsys.readouterr()
    assert cli.main(asked(tree, *TOGGLE, "--plan")) == 0
    (path,) = Path("reports/receipts").iterdir()
    found = noise.last(path.parent, "localhost", "cpu", "launch_us")
    assert found is not None
    assert 0.02 <= found.detectable(8, 0.03) < 0.10
    assert f"at the noise of {path}: {found.detectable(8, 0.03):.1%} with 8 pairs" in capsys.readouterr().out
    assert noise.last(path.parent, "localhost", "0000:23:00.0", "launch_us") is None
    assert noise.last(path.parent, "another", "cpu", "launch_us") is None
    assert noise.last(path.parent, "localhost", "cpu", "rms_fused_us") is None
    (path.parent / "localhost-cpu-20990101T000000Z.json").write_text("{")
    assert noise.last(path.parent, "localhost", "cpu", "launch_us") == found


def test_a_trial(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(asked(tree, *TOGGLE, "--seed", "5")) == 0
    said = capsys.readouterr()
    assert "launch_us (median of blocks): improved; latency of B (scaling_governor performance)" in " ".join(
        said.out.split()
    )
    assert "puts the old values back" in said.err
    assert " pair 1 A" not in said.err
    (path,) = Path("reports/receipts").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert cli.main(["verify", str(path)]) == 0
    assert tree.text(GOVERNOR) == "schedutil\n"
    assert not tree.path(journal.FOLDER).exists()


def test_two_toggles(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.put("/proc/sys/vm/swappiness", "60\n")
    second = ["--toggle", "value", "{path: /proc/sys/vm/swappiness, value: 10}", "{value: 50}"]
    assert cli.main(asked(tree, *TOGGLE, *second, "--plan")) == 0
    plan = capsys.readouterr().out
    assert "toggle B: value: A swappiness 50; B swappiness 10" in plan
    assert cli.main(asked(tree, *TOGGLE, *second)) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "latency of A+B (scaling_governor performance; swappiness 10) / base" in said
    assert "interaction (A+B x base) / (A x B) =" in said
    (path,) = Path("reports/receipts").iterdir()
    assert cli.main(["verify", str(path)]) == 0
    assert tree.text("/proc/sys/vm/swappiness") == "60\n"


@pytest.mark.parametrize(("faster", "kept"), [(1.0, False), (0.8, True)])
def test_keep(tree: Tree, faster: float, kept: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(asked(tree, *TOGGLE, "--keep", "improved", command=governed(tree, faster=faster))) == 0
    assert (tree.text(GOVERNOR).strip() == "performance") == kept
    assert ("stays in force until the next boot" in capsys.readouterr().out) == kept


def test_what_is_not_shown_is_3_and_what_is_invalid_1(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(asked(tree, *TOGGLE, command=trial_host.stand_in(tree.path("/worker.py")))) == 3
    assert "vacuous" in capsys.readouterr().out
    assert cli.main(asked(tree, *TOGGLE, command=["false"])) == 1
    assert "invalid" in capsys.readouterr().out


def test_a_restore_that_fails_is_loud(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.put("/state", "found\n")
    tree.program(
        "tool", '#!/bin/sh\n[ "$1" = read ] && exec cat $HOSTCHECK_ROOT/state\necho $1 > $HOSTCHECK_ROOT/state'
    )
    wish = "{a: [tool, first], b: [tool, second], read: [tool, read]}"
    assert cli.main(asked(tree, "--toggle", "command", wish)) == 1
    assert "hostcheck: RESTORE FAILED: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "0 toggles, wanted one, or two"),
        (["--toggle", "cpu_governor"], 2, "wanted NAME B [A]"),
        (["--toggle", "cpu_governor", "governor"], 2, "wanted NAME B [A]"),
        (["--toggle", "cpu_governor", "{"], 2, "not YAML"),
        ([*TOGGLE, "--card", "0000:23:00.0"], 2, "card 0000:23:00.0 is not among those to be measured: none"),
        ([*TOGGLE, "--statistic", "mode"], 2, "statistic is 'mode', wanted one of median"),
        (["--toggle", "cpu_governor", "{governor: turbo}"], 1, "not tried: cpu_governor.governor: 'turbo'"),
        (["--toggle", "kernel_arguments", "{present: [x=1]}"], 1, "playbooks/trial_boots.yml"),
    ],
)
def test_mistakes_and_refusals(
    tree: Tree, words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(asked(tree, *words)) == code
    assert said in capsys.readouterr().err
    assert tree.text(GOVERNOR) == "schedutil\n"
    assert not tree.path(journal.FOLDER).exists()


def test_the_plan_of_what_is_refused_is_1(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(asked(tree, "--toggle", "pcie_aspm", "{policy: performance}", "--plan")) == 1
    assert "stands against it: pcie_aspm: not written while the host runs" in capsys.readouterr().out


def test_a_killed_run_is_fetched_and_called_what_it_is(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    words = asked(tree, *TOGGLE, command=governed(tree, block_s=0.3))
    code = (
        "import sys; from tests import trial_host; from hostcheck.onhost.trials import run\n"
        "run.FULL = trial_host.SMALL\nfrom hostcheck.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert running.stderr is not None
    assert any("sham: pairs 1 to 8" in line for line in running.stderr)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert cli.main(asked(tree, *TOGGLE)) == 0
    said = capsys.readouterr().out
    (line,) = [line for line in said.splitlines() if line.endswith("(of an earlier run that was killed)")]
    path = line.split()[1]
    assert receipts.load(Path(path))["verdict"]["word"] == "invalid"
    assert cli.main(["verify", path]) == 0
    assert f"it was interrupted and nothing of it may be quoted: {journal.KILLED}" in capsys.readouterr().out
