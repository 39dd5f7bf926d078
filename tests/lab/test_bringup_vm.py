"""The bring-up on a machine that really reboots. Its cards compute nothing: a made-up worker answers for them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostcheck import bringup
from tests import plays, proving_worker, replay
from tests.lab.vm.cards import GPUS
from tests.lab.vm.host import Vm
from tests.playbooks.test_bringup import snapshot

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
WORKER = "/root/worker.py"
MARK = "/run/hostcheck/ready.json"
EVIDENCE = "/var/lib/hostcheck/evidence"
LATE = ["/usr/local/sbin/lab-cards", "now"]
MAC = "52:54:00:00:01:01"


class Rig:
    """The machine as the host gpu-1 of an inventory, and hosts without cards around it."""

    def __init__(self, vm: Vm, tmp_path: Path, **variables: Any) -> None:
        self.vm, self.tmp_path = vm, tmp_path
        self.variables = {
            "hostcheck_expect": {"gpus": {"bdfs": list(GPUS)}},
            "latency_probe_command": ["python3", "-S", "-I", WORKER],
            "latency_probe_seed": 7,
            "bringup_settle_s": 1,
            "bringup_quiet_s": 1,
            **variables,
        }
        self.others: list[tuple[str, str]] = []
        self.worker()

    def worker(self, before: str = "", **settings: Any) -> None:
        """Put the worker on the machine. before: Python that runs before every answer."""
        cards = self.variables.get("latency_probe_cards") or list(GPUS)
        text = proving_worker.SKIP + proving_worker.text(cards, **settings)
        text = text.replace("    if op == FAIL_OP", f"    exec({before!r})\n    if op == FAIL_OP", 1)
        self.vm.write(WORKER, text)
        self.vm.run(["sync"])

    def command(self, playbook: str, *arguments: str) -> tuple[list[str], dict[str, Any]]:
        found = self.vm.inventory("gpu-1")["all"]["hosts"]["gpu-1"]
        root = self.tmp_path / "empty"
        (root / "proc").mkdir(parents=True, exist_ok=True)
        hosts: dict[str, Any] = {}
        for name, place in [*self.others, ("gpu-1", "")]:
            hosts[name] = {**found, **self.variables} if name == "gpu-1" else {**plays.HERE, "hostcheck_root": place}
        inventory = plays.inventory(self.tmp_path, dict(sorted(hosts.items())))
        return plays.playbook(inventory, playbook, *arguments), plays.how(self.tmp_path)

    def play(self, playbook: str = "bringup.yml", *arguments: str) -> subprocess.CompletedProcess[str]:
        argv, how = self.command(playbook, *arguments)
        return subprocess.run(argv, capture_output=True, timeout=900, **how)

    def watch(self, text: str, then: Callable[[], object], *arguments: str) -> tuple[str, int]:
        """Bring up, and do something as soon as a line begins so; what was printed, and the exit code."""
        argv, how = self.command("bringup.yml", *arguments)
        said = ""
        run = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **how)
        assert run.stdout is not None
        for line in run.stdout:
            said += line
            if line.startswith(text):
                then()
        return said, run.wait()

    def host(self, name: str = "gpu-1") -> bringup.Host:
        folder = max(path.parent for path in (self.tmp_path / "reports").glob("2*/state.json"))
        run = bringup.load(folder)
        assert run is not None
        return run.hosts[name]

    def is_marked(self) -> bool:
        return self.vm.run(["test", "-e", MARK], check=False).returncode == 0


def steps(host: bringup.Host) -> dict[str, str]:
    return {step.step: step.result for step in host.steps}


def test_a_card_that_comes_late_is_waited_for(vm: Vm, tmp_path: Path) -> None:
    """The cards come when the bring-up waits for them, however long the boot took."""
    rig = Rig(vm, tmp_path, latency_probe_cards=[GPUS[0]], bringup_wait_s=240)
    vm.boot("lab.cards_after=36000")
    said, code = rig.watch("TASK [Wait for the cards]", lambda: vm.run(LATE, timeout=600))
    assert code == 0, said
    host = rig.host()
    assert (host.result, list(steps(host))) == ("passed", list(bringup.STEPS))
    assert host.boot_id == vm.boot_id()
    assert "lab.cards_after=36000" in host.boots[0]["command_line"]
    mark = json.loads(vm.read(MARK))
    assert (mark["boot_id"], sorted(mark["cards"])) == (vm.boot_id(), sorted(GPUS))


def test_a_card_that_does_not_come_is_named_with_what_the_kernel_says(vm: Vm, tmp_path: Path) -> None:
    rig = Rig(vm, tmp_path, bringup_wait_s=5)
    gone = GPUS[2]
    vm.kernel_log(gone, "*ERROR* probe failed")
    vm.write(f"/sys/bus/pci/devices/{gone}/driver/unbind", gone)
    vm.sh(f"mkdir -p /run/hostcheck; echo '{{}}' > {MARK}")
    played = rig.play()
    assert played.returncode == 2
    assert f"{gone}: on the bus, not bound to a driver" in played.stdout
    assert "probe failed" in rig.host().said
    assert list(steps(rig.host())) == ["record", "unmark"]
    assert not rig.is_marked()


def test_an_aer_burst_and_a_coredump_in_the_middle(vm: Vm, tmp_path: Path) -> None:
    """The worker says that all is well, while the kernel says otherwise."""
    rig = Rig(vm, tmp_path)
    spoil = (
        'if op == "smoke" and request["index"] == 0:\n'
        f'    open("/sys/module/xe/parameters/coredump", "w").write({GPUS[0]!r})\n'
    )
    rig.worker(spoil)
    played = rig.play()
    assert played.returncode == 2, played.stdout
    host = rig.host()
    assert steps(host)["read_back"] == "passed"
    assert "smoke" not in steps(host)
    assert f"{GPUS[0]}: faulted: " in host.said
    assert not rig.is_marked()
    kept = vm.sh(f"find {EVIDENCE} -type f -printf '%m %f\\n'").stdout
    assert "600 devcd" in kept
    assert "Next, for a person (rung " in played.stdout
    assert vm.sh("ls /sys/class/devcoredump").stdout.strip()  # never deleted

    vm.boot()
    rig.worker()
    vm.inject_aer("0000:21:00.0", "correctable", "BadTLP", count=20, interval=0.02)
    burst = rig.play()
    assert burst.returncode == 2
    assert "aer.rate 0000:21:00.0" in burst.stdout
    assert "read_back" not in steps(rig.host())
    assert not rig.is_marked()


def test_an_interface_with_another_name_after_a_reboot(vm: Vm, tmp_path: Path) -> None:
    """Pinned by its MAC: after the reboot the preflight says that the pin is stale, and the bring-up resolves it."""
    rig = Rig(vm, tmp_path, latency_probe_cards=[GPUS[0]])
    rig.variables["hostcheck_expect"]["settings"] = {"collective_env": {"interface": {"mac": MAC}}}
    own = vm.sh(f"basename $(dirname $(grep -l {MAC} /sys/class/net/*/address))").stdout.strip()
    vm.sh(f"ip link set {own} down; ip link set {own} name eth1; ip link set eth1 up; sleep 2")
    assert rig.play().returncode == 0
    assert "FI_TCP_IFACE=eth1" in vm.read("/etc/hostcheck/collective.env")
    vm.write("/etc/systemd/network/10-lan1.link", f"[Match]\nMACAddress={MAC}\n[Link]\nName=eno1\n")
    vm.reboot()
    stale = rig.play("preflight.yml")
    assert stale.returncode == 2
    assert "the interface is eno1 now, and the file has" in stale.stdout
    played = rig.play()
    assert played.returncode == 0, played.stdout
    assert "FI_TCP_IFACE=eno1" in vm.read("/etc/hostcheck/collective.env")
    assert rig.play("preflight.yml").returncode == 0
    assert rig.is_marked()


def test_a_reboot_that_is_due_is_made_once_and_the_bring_up_begins_again(vm_grub: Vm, tmp_path: Path) -> None:
    rig = Rig(vm_grub, tmp_path, latency_probe_cards=[GPUS[0]])
    rig.variables["hostcheck_expect"]["settings"] = {"kernel_arguments": {"present": ["lab.word=1"]}}
    before = vm_grub.boot_id()
    refused = rig.play()
    assert refused.returncode == 2
    assert rig.host().result == "reboot_required"
    assert vm_grub.read("/run/hostcheck/reboot_required").split() == ["kernel_arguments"]
    assert vm_grub.boot_id() == before
    rig.variables["hostcheck_reboot_ok"] = True
    played = rig.play()
    assert played.returncode == 0, played.stdout
    host = rig.host()
    assert [boot["boot_id"] for boot in host.boots] == [before, vm_grub.boot_id()]
    assert "lab.word=1" in host.boots[1]["command_line"]
    assert json.loads(vm_grub.read(MARK))["boot_id"] == host.boot_id != before


def test_a_host_stopped_dead_after_its_reboot(vm_grub: Vm, tmp_path: Path) -> None:
    """Of three hosts the second is dead: the third is not touched, and the second is said to be unreachable."""
    rig = Rig(vm_grub, tmp_path, bringup_reboot_timeout=60, hostcheck_reboot_ok=True)
    rig.variables["hostcheck_expect"]["settings"] = {"kernel_arguments": {"present": ["lab.word=1"]}}
    third = tmp_path / "third"
    rig.others = [("cpu-1", empty_host(tmp_path / "first")), ("gpu-3", empty_host(third))]
    untouched = snapshot(third)
    said, code = rig.watch(
        "TASK [Reboot where it is due", lambda: stop_when_it_goes_down(vm_grub), "-e", '{"bringup_serial": [1, 1, 1]}'
    )
    assert code != 0, said
    assert rig.host("cpu-1").result == "nothing_to_do"
    assert rig.host("gpu-1").result == "unreachable", said
    assert rig.host("gpu-3").result == "waiting"
    assert snapshot(third) == untouched
    assert re.search(r"gpu-1 .*unreachable=1", said)


def empty_host(root: Path) -> str:
    """A directory that stands for a host without cards."""
    replay.lay_out(replay.host("virtual-machine"), root)
    return str(root)


def stop_when_it_goes_down(vm: Vm) -> None:
    """Wait until the machine has begun to shut down, and stop it dead."""
    stopping = "until systemctl is-system-running | grep -q stopping; do sleep 0.2; done"
    vm.run(["sh", "-c", stopping], check=False, timeout=300)
    vm.kill()
