"""trial.yml and confirm.yml with the real ansible-playbook, on directories and with a made-up worker.

The worker is as fast as the governor below the root lets it be, so that a switch has an effect that is known.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hostcheck import receipts
from tests import plays, scripted_worker
from tests.settings_host import Tree, cpus, debian

ROOT = Path(__file__).parents[2]
GOVERNOR = "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor"
WISH = {"settings": {"cpu_governor": {"governor": "performance"}}}


class Fleet:
    """Hosts that are directories, each with its worker, in the order in which they were added."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.trees: dict[str, Tree] = {}
        self.hosts: dict[str, dict[str, Any]] = {}

    def add(self, name: str, factor: float = 1.0, more: str = "", **variables: Any) -> Tree:
        """factor: of all samples while the governor is ``performance``. more: lines that run before each block."""
        tree = self.trees[name] = cpus(debian(self.tmp_path / name))
        folder = tree.path("/sys/devices/system/cpu/cpufreq")
        body = (
            f"{more}"
            f"    fast = open({str(folder / 'policy0/scaling_governor')!r}).read().strip() == 'performance'\n"
            f"    for policy in os.listdir({str(folder)!r}):\n"
            f"        with open({str(folder)!r} + '/' + policy + '/scaling_cur_freq', 'w') as clock:\n"
            f"            clock.write('3700000' if fast else '2000000')\n"
            f"    return {factor} if fast else 1.0\n"
        )
        self.hosts[name] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "hostcheck_root": str(tree.root),
            "hostcheck_expect": WISH,
            "latency_probe_command": scripted_worker.command(self.tmp_path / f"{name}.py", body),
            "latency_probe_device": "cpu",
            "latency_probe_pin": False,
            "latency_probe_quick": True,
            "trial_quick": True,
            **variables,
        }
        return tree

    def play(self, playbook: str, *arguments: str, project: Path = ROOT) -> subprocess.CompletedProcess[str]:
        argv = plays.playbook(plays.inventory(self.tmp_path, self.hosts), playbook, *arguments, project=project)
        return plays.run(self.tmp_path, argv, timeout=1000, project=project)

    def receipts(self) -> list[Path]:
        return sorted((self.tmp_path / "reports/receipts").glob("*.json"))


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def last(ran: subprocess.CompletedProcess[str]) -> str:
    return ran.stdout.rstrip("\n").splitlines()[-1]


NO_ROUTE = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_retries": 0}
TRY = ("-e", "trial_setting=cpu_governor")


def test_check_mode_says_what_it_would_do_and_counts_every_host(fleet: Fleet) -> None:
    mark = fleet.tmp_path / "started"
    would = fleet.add("would", latency_probe_command=["sh", "-c", f"touch {mark}"])
    bare = fleet.add("bare")
    for policy in sorted(bare.path("/sys/devices/system/cpu/cpufreq").iterdir()):
        for file in policy.iterdir():
            file.unlink()
        policy.rmdir()
    fleet.add("undeclared", hostcheck_expect={})
    fleet.add("away", **NO_ROUTE)
    before = {name: tree.snapshot() for name, tree in fleet.trees.items()}
    ran = fleet.play("trial.yml", *TRY, "--check")
    assert ran.returncode == 4, ran.stdout + ran.stderr
    assert "cpu_governor between scaling_governor schedutil (A) and scaling_governor performance (B)" in ran.stdout
    assert "launch_us on the CPU, 8 pairs, about " in ran.stdout
    assert "undeclared: hostcheck_expect.settings declares no cpu_governor" in ran.stdout
    assert last(ran) == "planned on 1, cannot be tried on 1 (bare), nothing to try on 1, unreachable 1 (away)"
    assert not mark.exists()
    assert {name: tree.snapshot() for name, tree in fleet.trees.items()} == before
    assert would.text(GOVERNOR) == "schedutil\n"
    assert fleet.receipts() == []


def test_a_host_that_fails_is_counted_and_the_next_one_is_tried(fleet: Fleet) -> None:
    fleet.add("first", latency_probe_command=["sh", "-c", "exit 9"])
    fleet.add("second", latency_probe_command=["sh", "-c", "exit 8"])
    ran = fleet.play("trial.yml", *TRY)
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert last(ran) == "invalid on 2 (first, second)"
    assert "died: exit status 8" in ran.stdout
    assert [receipts.load(path)["verdict"]["word"] for path in fleet.receipts()] == ["invalid"] * 2
    assert {tree.text(GOVERNOR) for tree in fleet.trees.values()} == {"schedutil\n"}


def test_where_the_old_value_is_not_back_the_run_ends_and_is_never_0(fleet: Fleet) -> None:
    governor = str(fleet.tmp_path / "first") + GOVERNOR
    fleet.add("first", more=f"    os.unlink({governor!r}); os.mkdir({governor!r})\n")
    fleet.add("second")
    ran = fleet.play("trial.yml", *TRY)
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert last(ran) == "NOT RESTORED on 1 (first), not tried 1 (second)"
    assert "first: restore failed: " in ran.stdout
    assert fleet.trees["second"].text(GOVERNOR) == "schedutil\n"


def test_mistakes_are_said_before_anything_is_touched(fleet: Fleet) -> None:
    fleet.add("metric", trial_setting="cpu_governor", trial_metric="tokens")
    fleet.add("toggle", trial_toggles=[{"name": "cpu_govenor"}])
    fleet.add("nothing")
    fleet.add("never")
    before = {name: tree.snapshot() for name, tree in fleet.trees.items()}
    ran = fleet.play("trial.yml")
    assert ran.returncode == 2, ran.stdout
    assert "metric is 'tokens', wanted one of launch_us" in ran.stdout
    assert "there is no toggle 'cpu_govenor'" in ran.stdout
    assert "Give trial_setting" in ran.stdout
    assert last(ran) == "cannot be tried on 1 (toggle), failed on 2 (metric, nothing), not tried 1 (never)"
    assert {name: tree.snapshot() for name, tree in fleet.trees.items()} == before


@pytest.mark.long
def test_the_words_of_a_fleet(fleet: Fleet) -> None:
    fleet.add("a-faster", factor=0.8)
    fleet.add("b-same", factor=1.0)
    fleet.add("c-slower", factor=1.3)
    fleet.add("d-dead", latency_probe_command=["sh", "-c", "exit 9"])
    steady = fleet.add("e-steady", factor=0.8)
    worker = fleet.tmp_path / "steady.py"  # the clock does not follow the governor: nothing shows that it acts
    fleet.hosts["e-steady"]["latency_probe_command"] = scripted_worker.command(worker, "    return 1.0\n")
    ran = fleet.play("trial.yml", *TRY)
    assert ran.returncode == 2
    assert last(ran) == "helped on 1, made worse on 1 (c-slower), no change on 1, not shown on 1, invalid on 1 (d-dead)"
    assert "latency of B (scaling_governor performance)" in " ".join(ran.stdout.split())
    assert {tree.text(GOVERNOR) for tree in fleet.trees.values()} == {"schedutil\n"}
    assert steady.text(GOVERNOR) == "schedutil\n"
    for path in fleet.receipts():
        assert receipts.verify(receipts.load(path)) == []


# -- confirm --------------------------------------------------------------------------------------------------------

CONFIRM = ("-e", "confirm_setting=cpu_governor")


@pytest.mark.long
def test_confirm_in_check_mode_says_how(fleet: Fleet) -> None:
    fleet.add("switched")
    fleet.add("by-boot", confirm_setting="kernel_arguments")
    fleet.hosts["by-boot"]["hostcheck_expect"] = {"settings": {"kernel_arguments": {"present": ["iommu=pt"]}}}
    fleet.hosts["switched"]["confirm_setting"] = "cpu_governor"
    before = {name: tree.snapshot() for name, tree in fleet.trees.items()}
    ran = fleet.play("confirm.yml", "--check")
    assert "switched: cpu_governor is tried for about " in ran.stdout, ran.stdout + ran.stderr
    assert "by-boot: kernel_arguments cannot be tried while the host runs" in ran.stdout
    assert "probed, applied and probed again, descriptive only" in ran.stdout
    assert {name: tree.snapshot() for name, tree in fleet.trees.items()} == before


def test_confirm_refuses_what_is_not_meant(fleet: Fleet) -> None:
    tree = fleet.add("one")
    before = tree.snapshot()
    ran = fleet.play("confirm.yml", "-e", "confirm_setting=governor", "-e", "confirm_keep=maybe")
    assert ran.returncode == 2
    assert "Give confirm_setting, one of host_packages, cpu_governor" in ran.stdout
    assert "found governor and maybe" in ran.stdout
    assert tree.snapshot() == before


def test_confirm_applies_nothing_when_the_trial_is_invalid(fleet: Fleet) -> None:
    tree = fleet.add("one", latency_probe_command=["sh", "-c", "exit 9"])
    ran = fleet.play("confirm.yml", *CONFIRM)
    assert ran.returncode == 2
    assert "one: invalid; cpu_governor is as it was before this run" in ran.stdout
    assert last(ran) == "invalid on 1 (one)"
    assert tree.text(GOVERNOR) == "schedutil\n"
    assert not tree.path("/etc/tmpfiles.d").exists()


@pytest.mark.long
def test_confirm_keeps_what_does_not_hurt_and_undoes_what_does(fleet: Fleet) -> None:
    slower, faster = fleet.add("slower", factor=1.3), fleet.add("faster", factor=0.8)
    before = slower.snapshot()
    ran = fleet.play("confirm.yml", *CONFIRM)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "slower: regressed; cpu_governor is not applied, the old value is back" in ran.stdout
    assert "faster: improved; cpu_governor stays applied" in ran.stdout
    assert last(ran) == "helped on 1, made worse on 1 (slower)"
    assert (slower.text(GOVERNOR), faster.text(GOVERNOR)) == ("schedutil\n", "performance\n")
    assert {path for path in slower.snapshot() if "cur_freq" not in path} == {p for p in before if "cur_freq" not in p}

    ran = fleet.play("confirm.yml", *CONFIRM, "--limit", "slower", "-e", "confirm_keep=always")
    assert "slower: regressed; cpu_governor stays applied (confirm_keep: always)" in ran.stdout
    assert slower.text(GOVERNOR) == "performance\n"

    ran = fleet.play("confirm.yml", *CONFIRM, "--limit", "slower")  # what was applied is undone
    assert "cpu_governor is taken back, tried for about " in ran.stdout
    assert "slower: regressed; cpu_governor is not applied: what an earlier run had applied is undone" in ran.stdout
    assert {path for path in slower.snapshot() if "cur_freq" not in path} == {p for p in before if "cur_freq" not in p}
    assert slower.text(GOVERNOR) == "schedutil\n"


def test_what_somebody_else_sets_is_refused_and_the_next_host_has_its_turn(fleet: Fleet) -> None:
    foreign = fleet.add("foreign")
    line = "w /sys/devices/system/cpu/cpufreq/policy*/scaling_governor - - - - performance\n"
    foreign.put("/etc/tmpfiles.d/mine.conf", line)
    fleet.add("undeclared", hostcheck_expect={})
    before = foreign.snapshot()
    ran = fleet.play("confirm.yml", *CONFIRM)
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert "/etc/tmpfiles.d/mine.conf:1: performance" in ran.stdout
    assert last(ran) == "nothing to try on 1, failed on 1 (foreign)"
    assert foreign.snapshot() == before


@pytest.mark.long
def test_confirm_improved_keeps_only_what_helped(fleet: Fleet) -> None:
    tree = fleet.add("same", factor=1.0)
    ran = fleet.play("confirm.yml", *CONFIRM, "-e", "confirm_keep=improved")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "same: no_change; cpu_governor is not applied, the old value is back (confirm_keep: improved)" in ran.stdout
    assert tree.text(GOVERNOR) == "schedutil\n"


@pytest.mark.long
def test_what_cannot_be_switched_is_probed_before_and_after_and_stays(fleet: Fleet) -> None:
    tree = fleet.add("one", factor=1.0)
    fleet.hosts["one"]["hostcheck_expect"] = {
        "settings": {"collective_env": {"variables": {"CCL_ATL_TRANSPORT": "ofi"}}}
    }
    ran = fleet.play("confirm.yml", "-e", "confirm_setting=collective_env")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = json.dumps(ran.stdout)
    assert "descriptive only: one measurement before and one after cannot tell the change" in said
    assert "after / before = " in said
    assert last(ran) == "descriptive only on 1"
    assert "CCL_ATL_TRANSPORT=ofi" in tree.text("/etc/hostcheck/collective.env")
