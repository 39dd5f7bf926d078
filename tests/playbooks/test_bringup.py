"""Bring-up and preflight with the real ansible-playbook, on directories that stand for hosts, with made-up workers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hostcheck import bringup, receipts
from tests import plays, proving_worker, replay, settings_host
from tests.unit.test_probe_gates import LOAD
from tests.unit.test_probe_guards import HELD

ROOT = Path(__file__).parents[2]
TWO = ["0000:03:00.0", "0000:e3:00.0"]
FOUR = ["0000:23:00.0", "0000:27:00.0", "0000:43:00.0", "0000:47:00.0"]
ONE = ["0000:0c:00.0"]
CARDS = {"two-card-gen5": TWO, "four-card-gen4": FOUR, "one-card-b450-x8": ONE, "virtual-machine": []}
MARK = "run/hostcheck/ready.json"
FAULT = "[ 900.1] xe 0000:43:00.0: [drm] Tile0: GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=2\n"

pytestmark = pytest.mark.timeout(280)


class Fleet:
    """Hosts of one run. Each is a directory made from a recording, with a worker of its own."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.hosts: dict[str, dict[str, Any]] = {}

    def add(self, name: str, host: str = "two-card-gen5", change: Any = None, **settings: Any) -> Path:
        """settings: of the worker, see `proving_worker`."""
        root = self.tmp_path / f"root-{name}"
        replay.lay_out(replay.changed(replay.host(host), change or {}), root)
        cards = CARDS[host]
        self.hosts[name] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "hostcheck_root": str(root),
            "hostcheck_expect": {"gpus": {"count": len(cards), "ids": ["e223"]} if cards else {}},
            "latency_probe_command": proving_worker.program(self.tmp_path / f"{name}.py", cards, **settings),
            "latency_probe_seed": 7,
            "latency_probe_pin": False,
            "bringup_settle_s": 0,
            "bringup_wait_s": 0,
            "bringup_quiet_s": 1,
        }
        return root

    def stranger(self, name: str) -> None:
        """A host that refuses the connection."""
        self.add(name, "virtual-machine")
        nobody = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_user": "nobody"}
        self.hosts[name].update(nobody, ansible_ssh_common_args="-F none -o ConnectTimeout=5")

    def command(self, playbook: str, *arguments: str) -> tuple[list[str], dict[str, Any]]:
        inventory = plays.inventory(self.tmp_path, self.hosts)
        return plays.playbook(inventory, playbook, *arguments), plays.how(self.tmp_path)

    def play(self, playbook: str = "bringup.yml", *arguments: str) -> subprocess.CompletedProcess[str]:
        argv, how = self.command(playbook, *arguments)
        return subprocess.run(argv, capture_output=True, timeout=270, **how)

    def state(self) -> bringup.Run:
        """Of the newest run; ``latest`` is the last whole one."""
        folder = max(path.parent for path in (self.tmp_path / "reports").glob("2*/state.json"))
        found = bringup.load(folder)
        assert found is not None
        return found

    def mark(self, name: str) -> Path:
        return Path(self.hosts[name]["hostcheck_root"]) / MARK


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def steps(host: bringup.Host) -> dict[str, str]:
    return {step.step: step.result for step in host.steps}


def old_mark(root: Path) -> Path:
    """A mark from an earlier run on the same boot."""
    path = root / MARK
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    return path


def snapshot(root: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(root)): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in root.rglob("*")
        if not path.is_symlink()
    }


def test_a_canary_that_loses_a_card_stops_all_that_come_after_it(fleet: Fleet) -> None:
    lost = fleet.add("gpu-1", fail_op="smoke", fail_code=f'if request["index"] == 1: {proving_worker.LOST}')
    last = fleet.add("gpu-2")
    for root in (lost, last):
        old_mark(root)
    untouched = snapshot(last)
    played = fleet.play()
    assert played.returncode == 2, played.stdout + played.stderr
    state = fleet.state()
    assert [host.result for host in state.hosts.values()] == ["failed", "waiting"]
    assert "0000:e3:00.0: device_lost: UR_RESULT_ERROR_DEVICE_LOST" in state.hosts["gpu-1"].said
    assert not (lost / MARK).exists()
    assert list((lost / "var/lib/hostcheck/evidence").glob("*/evidence-*.json"))
    assert "Next, for a person" in played.stdout
    assert snapshot(last) == untouched


@pytest.mark.long
def test_a_canary_that_passes_a_card_that_is_lost_and_a_batch_that_does_not_begin(fleet: Fleet) -> None:
    canary = fleet.add("gpu-1", "one-card-b450-x8")
    lost = fleet.add("gpu-2", fail_op="smoke", fail_code=f'if request["index"] == 1: {proving_worker.LOST}')
    wrong = fleet.add("gpu-3", fail_op="smoke", fail_code=proving_worker.WRONG)
    fleet.add("cpu-1", "virtual-machine")
    last = fleet.add("gpu-4")
    for root in (canary, lost, wrong, last):
        old_mark(root)
    untouched = snapshot(last)
    played = fleet.play("bringup.yml", "-e", '{"bringup_serial": [1, 3, 1]}')
    assert played.returncode == 2, played.stdout + played.stderr
    state = fleet.state()
    assert {name: (host.batch, host.result) for name, host in state.hosts.items()} == {
        "gpu-1": (1, "passed"),
        "gpu-2": (2, "failed"),
        "gpu-3": (2, "failed"),
        "cpu-1": (2, "nothing_to_do"),
        "gpu-4": (3, "waiting"),
    }
    assert state.ended_at

    host = state.hosts["gpu-1"]
    assert list(steps(host)) == list(bringup.STEPS)
    assert steps(host)["collective"] == "not_needed"
    assert host.boots[0]["kernel"] == "7.0.0-27-generic"
    mark = json.loads((canary / MARK).read_text())
    (file,) = (fleet.tmp_path / "reports/receipts").iterdir()
    assert mark["receipts"] == [receipts.load(file)["sha256"]]
    assert (list(mark["cards"]), mark["boot_id"]) == (ONE, host.boot_id)

    assert not (lost / MARK).exists()
    assert not (wrong / MARK).exists()
    assert "smoke" not in steps(state.hosts["gpu-2"])
    assert "0000:e3:00.0: device_lost: UR_RESULT_ERROR_DEVICE_LOST" in state.hosts["gpu-2"].said
    assert "0000:03:00.0: wrong_result: the sum is 2097151.0, wanted 2097152.0" in state.hosts["gpu-3"].said
    for root in (lost, wrong):
        assert list((root / "var/lib/hostcheck/evidence").glob("*/evidence-*.json"))
    assert played.stdout.count("Next, for a person") >= 2

    assert snapshot(last) == untouched
    assert "gpu-4 is not begun: gpu-2 (failed at read_back), gpu-3 (failed at read_back)" in played.stdout
    assert "cpu-1 has no card and none is declared" in played.stdout


def test_a_host_that_cannot_be_reached_stops_the_batches_after_it(fleet: Fleet) -> None:
    fleet.add("cpu-1", "virtual-machine")
    fleet.stranger("gpu-2")
    fleet.add("cpu-3", "virtual-machine")
    last = fleet.add("gpu-4")
    untouched = snapshot(last)
    played = fleet.play("bringup.yml", "-e", '{"bringup_serial": [1, 2, 1]}')
    assert played.returncode != 0
    assert re.search(r"gpu-2 +: ok=\d+ +changed=0 +unreachable=1", played.stdout)
    hosts = fleet.state().hosts
    assert [host.result for host in hosts.values()] == ["nothing_to_do", "unreachable", "nothing_to_do", "waiting"]
    assert "gpu-4 is not begun: gpu-2 (unreachable)" in played.stdout
    assert snapshot(last) == untouched


GATE = """
- hosts: all
  gather_facts: false
  vars_files: [{root}/playbooks/vars/settings.yml, {root}/playbooks/vars/bringup.yml]
  tasks:
    - bringup_state: {{step: begin}}
    - host_facts: {{gather_subset: [identity, kernel_log, last_boot, next_boot], root: "{{{{ root }}}}"}}
      register: bringup_facts
    - bringup_state: {{step: record, facts: "{{{{ bringup_facts.ansible_facts.hostcheck }}}}"}}
      register: bringup_boot
    - bringup_state: {{step: "{{{{ item }}}}", result: "{{{{ 'failed' if item == failing else 'passed' }}}}"}}
      loop: [unmark, wait, audit, apply, read_back, smoke, collective, probe, compare]
    - include_tasks: {root}/playbooks/tasks/bringup_gate.yml
"""


@pytest.mark.parametrize(
    "at",
    [
        "See that every step was made on this boot",
        "Mark the host ready",
        "Write down that the gate is open",
        "PLAY RECAP",
    ],
)
def test_a_run_killed_around_the_gate_leaves_no_mark_on_a_host_that_has_not_passed(fleet: Fleet, at: str) -> None:
    """Two hosts, of which one has failed a step: whenever the run is killed, only the other one may be marked."""
    fleet.add("good", "one-card-b450-x8")
    fleet.add("bad", "one-card-b450-x8")
    fleet.hosts["good"]["failing"], fleet.hosts["bad"]["failing"] = "", "smoke"
    playbook = fleet.tmp_path / "gate.yml"
    playbook.write_text(GATE.format(root=ROOT))
    killed_at(fleet, at, str(playbook))
    assert not fleet.mark("bad").exists()
    state = fleet.state()
    assert not state.ended_at or at == "PLAY RECAP"
    good = state.hosts["good"]
    if fleet.mark("good").exists():
        assert set(bringup.STEPS[:-1]) <= set(steps(good))
        assert "failed" not in steps(good).values()
    if good.result == "passed":
        assert fleet.mark("good").exists()


def killed_at(fleet: Fleet, text: str, playbook: str = "bringup.yml", *arguments: str) -> str:
    """Kill a run, and everything of it, as soon as it has printed a text; return what it had printed."""
    argv, how = fleet.command(playbook, *arguments)
    said = ""
    run = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, **how)
    assert run.stdout is not None
    for line in run.stdout:
        said += line
        if text in line:
            break
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    run.stdout.close()
    assert text in said, said
    return said


def test_preflight_in_front_of_a_launch(fleet: Fleet) -> None:
    fleet.add("good")
    fleet.add("held", "four-card-gen4", HELD)
    fleet.add("faulted", "four-card-gen4", {"log": FAULT})
    fleet.add("unpinned")
    fleet.hosts["unpinned"]["hostcheck_expect"]["settings"] = {"collective_env": {"interface": {"name": "eth1"}}}
    marks = {name: old_mark(Path(host["hostcheck_root"])) for name, host in fleet.hosts.items()}
    played = fleet.play("preflight.yml")
    assert played.returncode == 2, played.stdout + played.stderr
    said = dict(re.findall(r"fatal: \[(\w+)\]: FAILED! => (.*?must not be used.*)", played.stdout))
    assert "good: 2 ranks, made-up, every value 3, no interface pinned" in played.stdout
    assert "0000:43:00.0 is in use" in said["held"]
    assert "faulted on this boot" in said["faulted"]
    assert "no interface has it" in said["unpinned"]
    assert set(said) == {"held", "faulted", "unpinned"}
    assert [name for name, mark in marks.items() if not mark.exists()] == ["faulted"]


@pytest.mark.long
def test_a_launcher_goes_by_the_exit_code_of_its_host(fleet: Fleet) -> None:
    fleet.add("good")
    fleet.add("lost", fail_op="allreduce", fail_code=proving_worker.LOST)
    fleet.stranger("gone")
    mark = old_mark(Path(fleet.hosts["lost"]["hostcheck_root"]))
    codes = {name: fleet.play("preflight.yml", "--limit", name).returncode for name in fleet.hosts}
    assert codes == {"good": 0, "lost": 2, "gone": 4}
    assert not mark.exists()


@pytest.mark.long
def test_a_check_changes_nothing_and_says_what_stands_against_a_host(fleet: Fleet) -> None:
    root = fleet.add("gpu-1")
    suspended = fleet.add("gpu-2", "four-card-gen4", HELD)
    old_mark(root)
    before = snapshot(root), snapshot(suspended)
    played = fleet.play("bringup.yml", "--check", "--diff", "-e", '{"bringup_serial": [2]}')
    assert played.returncode == 2
    assert (snapshot(root), snapshot(suspended)) == before
    assert not list((fleet.tmp_path / "reports").glob("*/state.json"))
    assert "0000:43:00.0 is in use" in played.stdout
    assert re.search(r"gpu-1 +: .*failed=0", played.stdout)


@pytest.mark.long
def test_the_known_fault_of_a_load_is_tried_once_more_and_no_figure_is_taken(fleet: Fleet, tmp_path: Path) -> None:
    """The kernel log gets the fault while the first smoke runs; the second one runs on a quiet host."""
    after = replay.lay_out(replay.changed(replay.host("four-card-gen4"), {"log": LOAD}), tmp_path / "after")
    flag = tmp_path / "faulted"
    spoil = f"""
import shutil
if not os.path.exists({str(flag)!r}):
    shutil.copytree({str(after / ".outputs")!r}, {str(tmp_path / "root-gpu-1/.outputs")!r}, dirs_exist_ok=True)
    open({str(flag)!r}, "w").close()
"""
    root = fleet.add("gpu-1", "four-card-gen4", fail_op="smoke", fail_code=spoil)
    played = fleet.play()
    assert played.returncode == 0, played.stdout
    host = fleet.state().hosts["gpu-1"]
    assert host.said == "ready after one retry of the known fault of a load"
    assert {name: steps(host)[name] for name in ("smoke", "probe", "compare")} == {
        "smoke": "passed",
        "probe": "not_needed",
        "compare": "not_needed",
    }
    assert list((root / "var/lib/hostcheck/evidence").glob("*/evidence-*.json"))
    assert (root / MARK).exists()
    assert played.stdout.count("TASK [Have every card compute]") == 2
    again = fleet.play("preflight.yml")
    assert again.returncode == 2
    assert "faulted on this boot" in again.stdout


@pytest.mark.long
def test_a_card_lost_while_it_is_measured(fleet: Fleet) -> None:
    root = fleet.add("gpu-1", "one-card-b450-x8", fail_op="block", fail_after=3, fail_code=proving_worker.LOST)
    played = fleet.play()
    assert played.returncode == 2
    host = fleet.state().hosts["gpu-1"]
    assert "worker: device_lost" in host.said
    assert (host.at, steps(host)["smoke"]) == ("collective", "passed")
    assert not (root / MARK).exists()
    assert list((root / "var/lib/hostcheck/evidence").glob("*/evidence-*.json"))
    assert "Next, for a person" in played.stdout


@pytest.mark.long
def test_a_collective_that_hangs_ends_in_time_and_is_no_pass(fleet: Fleet) -> None:
    root = fleet.add("gpu-1", fail_op="allreduce", fail_code=proving_worker.HUNG)
    played = fleet.play()
    assert played.returncode == 2
    host = fleet.state().hosts["gpu-1"]
    assert "hung: allreduce: 0 of 2 ranks answered in time" in host.said
    assert steps(host)["smoke"] == "passed"
    assert not (root / MARK).exists()
    assert list((root / "var/lib/hostcheck/evidence").glob("*/evidence-*.json"))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_run_killed_at_any_task_leaves_no_mark_on_a_host_that_has_not_passed(fleet: Fleet) -> None:
    root = fleet.add("gpu-1", "one-card-b450-x8")
    mark = old_mark(root)
    whole = fleet.play()
    assert whole.returncode == 0, whole.stdout
    tasks = re.findall(r"^TASK \[(.*)\] \*", whole.stdout, re.M)
    first = tasks.index("Take the ready mark away")
    last = tasks.index("Write down that the gate is open")
    for name in dict.fromkeys(tasks[first + 1 : last]):
        mark.unlink(missing_ok=True)
        old_mark(root)
        killed_at(fleet, f"TASK [{name}]")
        host = fleet.state().hosts["gpu-1"]
        # When it is killed a run may be some tasks further than what it has printed, at the last ones even at its end.
        if mark.exists() or host.result != "running":
            assert set(bringup.STEPS[:-1]) <= set(steps(host)), name
            assert host.result in ("running", "passed"), name


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("git"), reason="ansible-pull needs git")
def test_a_host_brings_itself_up_from_a_repository(fleet: Fleet) -> None:
    fleet.add("cpu-1", "virtual-machine")
    repository, checkout = fleet.tmp_path / "repository", fleet.tmp_path / "checkout"
    for name in ("hostcheck", "library", "playbooks", "roles"):
        shutil.copytree(ROOT / name, repository / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "ansible.cfg", repository)
    (repository / "inventory").mkdir()
    (repository / "inventory/hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": fleet.hosts}}))
    for argv in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *argv], cwd=repository, check=True)
    unit = (ROOT / "docs/systemd/hostcheck-pull@.service").read_text()
    line = next(line.partition("=")[2] for line in unit.splitlines() if line.startswith("ExecStart="))
    words = line.replace("%i", "bringup").replace("%H", "cpu-1").split()[1:]
    words[words.index("--url") + 1] = f"file://{repository}"
    words[words.index("--directory") + 1] = str(checkout)
    _, how = fleet.command("bringup.yml")
    how["env"].pop("ANSIBLE_CONFIG")
    pulled = subprocess.run([str(plays.TOOLS / "ansible-pull"), *words], capture_output=True, timeout=270, **how)
    assert pulled.returncode == 0, pulled.stdout + pulled.stderr
    assert "cpu-1  nothing to do: no card, and none is declared; not marked ready" in pulled.stdout
    assert list((checkout / "reports").glob("*/state.json"))


@pytest.mark.long
def test_a_reboot_that_is_due_is_left_to_a_person_where_none_is_allowed(fleet: Fleet) -> None:
    root = fleet.add("gpu-1", "one-card-b450-x8")
    settings_host.debian(root)
    old_mark(root)
    fleet.hosts["gpu-1"]["hostcheck_expect"]["settings"] = {"kernel_arguments": {"present": ["iommu=pt"]}}
    fleet.hosts["gpu-1"]["hostcheck_reboot_ok"] = True
    played = fleet.play()
    assert played.returncode == 2
    host = fleet.state().hosts["gpu-1"]
    assert (host.result, host.at) == ("reboot_required", "apply"), played.stdout
    assert host.said.endswith("needs a reboot for kernel_arguments, not rebooted: the connection is local")
    assert (root / "run/hostcheck/reboot_required").read_text() == "kernel_arguments\n"
    assert not (root / MARK).exists()
    assert "iommu=pt" in (root / "boot/grub/grub.cfg").read_text()
