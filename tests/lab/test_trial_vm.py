"""Trials on a machine that has governors, systemd and ansible for real, and everything that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostcheck import receipts
from hostcheck.onhost.trials import journal, restorer
from tests import plays
from tests.lab.vm.host import Vm
from tests.trial_host import stand_in

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
GOVERNOR = "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor"
GOVERNORS = "cat /sys/devices/system/cpu/cpufreq/policy*/scaling_governor"
WORKER = "/root/torch-stand-in.py"
FASTER = {"performance": 0.8}
PLAY = [
    {
        "hosts": "all",
        "gather_facts": False,
        "tasks": [{"name": "Try", "setting_trial": "{{ trial }}", "register": "tried"}],
    }
]
UNITS = "systemctl list-units --all --plain --no-legend 'hostcheck-restore-*'"


class Trial:
    """A governor trial by ansible-playbook against the machine, with a stand-in for torch."""

    def __init__(self, vm: Vm, tmp_path: Path, block_s: float = 0.0) -> None:
        self.vm, self.tmp_path = vm, tmp_path
        stand_in(tmp_path / "worker.py", GOVERNOR, FASTER, block_s)
        vm.copy_to(tmp_path / "worker.py", WORKER)
        vm.sh(
            "modprobe cpufreq_powersave || true; for f in /sys/devices/system/cpu/cpufreq/policy*; do "
            "echo powersave > $f/scaling_governor; done"
        )
        self.arguments = {
            "command": ["/usr/bin/python3", "-S", "-I", WORKER],
            "device": "cpu",
            "pin": False,
            "quick": True,
            "seed": 5,
            "toggles": [{"name": "cpu_governor", "b": {"governor": "performance"}}],
        }

    def start(self, **more: Any) -> subprocess.Popen[str]:
        inventory = plays.inventory(self.tmp_path, self.vm.inventory("gpu-1")["all"]["hosts"])
        (self.tmp_path / "play.yml").write_text(json.dumps(PLAY))
        given = json.dumps({"trial": {**self.arguments, **more}})
        return subprocess.Popen(
            [str(plays.TOOLS / "ansible-playbook"), "-i", inventory, "play.yml", "-v", "-e", given],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **plays.how(self.tmp_path),
        )

    def run(self, **more: Any) -> tuple[int, str]:
        running = self.start(**more)
        said, _ = running.communicate(timeout=600)
        return running.returncode, said

    def receipts(self) -> list[dict[str, Any]]:
        """Those on the controller, oldest first."""
        found = sorted(self.tmp_path.glob("reports/receipts/*.json"), key=lambda path: path.stat().st_mtime)
        loaded = [receipts.load(path) for path in found]
        assert [problem for one in loaded for problem in receipts.verify(one)] == []
        return loaded

    def governors(self) -> set[str]:
        return set(self.vm.sh(GOVERNORS).stdout.split())

    def folders(self) -> list[str]:
        return self.vm.sh(f"ls {journal.FOLDER} 2>/dev/null || true").stdout.split()

    def until(self, condition: Callable[[], bool], seconds: float = 120.0) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.3)
        return False

    def in_a_block_of_arm_b(self) -> None:
        """Wait until the trial measures with the governor performance."""
        assert self.until(lambda: self.governors() == {"performance"}, 300), self.vm.sh(f"{UNITS}; ps aux").stdout

    def process(self) -> int:
        """The module's process on the machine."""
        text = self.vm.sh(f"cat {journal.FOLDER}/*/{restorer.PLAN}").stdout
        return int(json.loads(text)["pid"])

    def is_back(self, seconds: float = 30.0) -> bool:
        return self.until(lambda: self.governors() == {"powersave"}, seconds)


@pytest.fixture
def slow_trial(vm: Vm, tmp_path: Path) -> Trial:
    """Blocks of a second, so that what is killed is in the middle of one."""
    return Trial(vm, tmp_path, block_s=1.0)


def kill_all(running: subprocess.Popen[str]) -> None:
    """Kill ansible-playbook with its workers and their ssh, which have sessions of their own."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(words[1]), []).append(int(status.parent.name))
    doomed = [running.pid]
    for pid in doomed:
        doomed += children.get(pid, [])
    for pid in doomed:
        os.kill(pid, signal.SIGKILL)
    running.communicate()


def ended(running: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = running.communicate(timeout=300)
    return running.returncode, said


def test_kill_9_of_the_module_and_then_a_whole_trial(vm: Vm, tmp_path: Path) -> None:
    trial = Trial(vm, tmp_path, block_s=0.2)
    running = trial.start()
    trial.in_a_block_of_arm_b()
    (unit,) = {line.split()[0].rpartition(".")[0] for line in vm.sh(UNITS).stdout.splitlines()}
    assert unit == f"hostcheck-restore-{trial.folders()[0]}"
    vm.run(["kill", "-9", str(trial.process())])
    assert trial.is_back()
    code, said = ended(running)
    assert code == 2, said

    code, said = trial.run()
    assert code == 0, said
    assert trial.governors() == {"powersave"}
    assert trial.folders() == []
    assert trial.until(lambda: vm.sh(UNITS).stdout == "")
    killed, whole = sorted(trial.receipts(), key=lambda one: str(one["taken_at"]))
    assert killed["verdict"]["reasons"][0].startswith(f"interrupted: {journal.KILLED}; values put back at ")
    assert len(killed["blocks"]) < 32
    assert whole["verdict"]["word"] == "improved", whole["verdict"]["reasons"]
    assert "latency of B (scaling_governor performance) / latency of A (scaling_governor powersave)" in said


@pytest.mark.long
def test_kill_9_of_the_worker(slow_trial: Trial) -> None:
    running = slow_trial.start()
    slow_trial.in_a_block_of_arm_b()
    slow_trial.vm.run(["pkill", "-9", "-f", WORKER])
    code, said = ended(running)
    assert code == 2
    assert "worker: died: killed by SIGKILL" in said
    assert slow_trial.governors() == {"powersave"}
    assert slow_trial.vm.sh(UNITS).stdout == ""


@pytest.mark.long
def test_kill_9_of_ansible_playbook(slow_trial: Trial) -> None:
    running = slow_trial.start()
    slow_trial.in_a_block_of_arm_b()
    kill_all(running)
    assert slow_trial.until(lambda: slow_trial.vm.sh(UNITS).stdout == "", 120)
    assert slow_trial.governors() == {"powersave"}
    assert len(slow_trial.folders()) == 1
    code, said = slow_trial.run(state="collect")
    assert code == 0, said
    (receipt,) = slow_trial.receipts()
    assert receipt["verdict"]["word"] == "invalid"
    assert receipt["interrupted"]
    assert slow_trial.folders() == []


@pytest.mark.long
def test_a_lost_connection(vm: Vm, tmp_path: Path) -> None:
    """The host hears nothing of it while the network is away: the trial ends when it comes back, or at its limit."""
    trial = Trial(vm, tmp_path, block_s=1.5)
    limit = 130
    running = trial.start(timeout=limit, quick=False)
    trial.in_a_block_of_arm_b()
    vm.log_out()
    vm.cut_network()
    kill_all(running)
    time.sleep(20)
    vm.mend_network()
    assert trial.until(lambda: vm.sh(UNITS).stdout == "", limit + 60)
    assert trial.governors() == {"powersave"}
    assert len(trial.folders()) == 1
    code, said = trial.run(state="collect")
    assert code == 0, said
    (receipt,) = trial.receipts()
    assert receipt["restore"] == ""
    assert receipt["interrupted"] in (
        "nobody listens any more: the controller or the connection is gone",
        f"the limit of {limit} s is over",
    )
    assert receipt["verdict"]["word"] == "invalid"


@pytest.mark.long
def test_a_watch_that_is_killed_too_leaves_the_timer(slow_trial: Trial) -> None:
    vm = slow_trial.vm
    running = slow_trial.start(timeout=45)
    slow_trial.in_a_block_of_arm_b()
    watch = int(json.loads(vm.sh(f"cat {journal.FOLDER}/*/{restorer.ARMED}").stdout)["pid"])
    vm.run(["kill", "-9", str(watch), str(slow_trial.process())])
    ended(running)
    assert slow_trial.governors() == {"performance"}  # until the timer comes
    assert slow_trial.is_back(150)


@pytest.mark.long
def test_a_reboot_in_the_middle(slow_trial: Trial) -> None:
    vm = slow_trial.vm
    running = slow_trial.start()
    slow_trial.in_a_block_of_arm_b()
    vm.kill()
    running.kill()
    running.communicate()
    vm.boot()
    assert slow_trial.governors() == {"schedutil"}
    code, said = slow_trial.run(state="collect")
    assert code == 0, said
    (receipt,) = slow_trial.receipts()
    assert "the host was rebooted: what is set at run time does not outlast that" in receipt["interrupted"]
    assert slow_trial.governors() == {"schedutil"}
