"""The fixes on a machine with a kernel, systemd, udev and GRUB of its own: what only they can answer."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import plays
from tests.lab.vm.cards import GPUS, PARENT
from tests.lab.vm.host import LabError, Vm

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
GOVERNORS = "cat /sys/devices/system/cpu/cpufreq/policy*/scaling_governor"
OURS = (
    "find /etc /usr/local /boot /var/lib/hostcheck /run/hostcheck -xdev "
    "\\( -iname '*hostcheck*' -o -path '*hostcheck*' \\) 2>/dev/null || true"
)


def play(
    vm: Vm, tmp_path: Path, variables: dict[str, Any], playbook: str, *arguments: str, timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    """A playbook against the machine, which has these variables."""
    hosts = vm.inventory("gpu-1")["all"]["hosts"]
    hosts["gpu-1"].update(variables)
    argv = plays.playbook(plays.inventory(tmp_path, hosts), playbook, *arguments)
    return plays.run(tmp_path, argv, timeout)


class Play:
    """Playbooks against the machine."""

    def __init__(self, vm: Vm, tmp_path: Path, settings: dict[str, Any], **variables: Any) -> None:
        self.vm, self.tmp_path = vm, tmp_path
        self.variables = {"hostcheck_expect": {"settings": settings}, **variables}

    def __call__(self, playbook: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        if playbook != "drift.yml":  # the other roles have nothing to do, and tasks are slow on an emulated machine
            arguments = (*arguments, "--tags", ",".join(self.variables["hostcheck_expect"]["settings"]))
        return play(self.vm, self.tmp_path, self.variables, playbook, *arguments)

    def ok(self, playbook: str, *arguments: str) -> str:
        ran = self(playbook, *arguments)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout


def changed(text: str) -> int:
    line = next(line for line in text.splitlines() if line.startswith("gpu-1 ") and "ok=" in line)
    return int(next(word.partition("=")[2] for word in line.split() if word.startswith("changed=")))


def governors(vm: Vm) -> set[str]:
    return set(vm.sh(GOVERNORS).stdout.split())


def settled(vm: Vm) -> None:
    """Wait until the units of this boot have done their work."""
    vm.run(["systemctl", "is-system-running", "--wait"], check=False, timeout=300)


def test_governor_over_a_reboot_and_back(vm: Vm, tmp_path: Path) -> None:
    play = Play(vm, tmp_path, {"cpu_governor": {"governor": "performance"}})
    before = vm.sh(OURS).stdout
    assert governors(vm) == {"schedutil"}

    drift = play("drift.yml")
    assert drift.returncode == 2
    assert "-/sys/devices/system/cpu/cpufreq/policy0/scaling_governor = schedutil" in drift.stdout
    assert (governors(vm), vm.sh(OURS).stdout) == ({"schedutil"}, before)

    assert changed(play.ok("apply.yml")) == 1
    assert governors(vm) == {"performance"}
    assert changed(play.ok("apply.yml")) == 0
    vm.reboot()
    settled(vm)
    assert governors(vm) == {"performance"}
    assert vm.run(["systemctl", "--failed", "--no-legend"]).stdout == ""
    assert "as declared" in play.ok("drift.yml")

    play.ok("undo.yml")
    assert (governors(vm), vm.sh(OURS).stdout) == ({"schedutil"}, before)


def test_writes_that_are_refused_or_not_kept_are_failures(vm: Vm, tmp_path: Path) -> None:
    play = Play(vm, tmp_path, {"cpu_governor": {"governor": "performance"}})
    vm.run(["mount", "-o", "remount,ro", "/sys"])
    refused = play("apply.yml")
    assert refused.returncode == 2
    assert "scaling_governor: EROFS" in refused.stdout
    vm.run(["mount", "-o", "remount,rw", "/sys"])
    file = "/sys/devices/system/cpu/cpufreq/policy1/scaling_governor"
    script = f"while :; do echo schedutil > {file}; done"
    vm.run(["systemd-run", "--quiet", "--unit=lab-writer.service", "sh", "-c", script])
    lost = play("apply.yml")
    vm.run(["systemctl", "stop", "lab-writer.service"])
    assert lost.returncode == 2
    assert "scaling_governor: not kept" in lost.stdout
    play.ok("undo.yml")
    assert governors(vm) == {"schedutil"}


def test_an_owner_that_runs_is_named(vm: Vm, tmp_path: Path) -> None:
    vm.write("/etc/systemd/system/mine.service", "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n")
    script = "#!/bin/sh\necho schedutil > /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor\n"
    vm.write("/etc/rc.local", script)
    vm.run(["chmod", "755", "/etc/rc.local"])
    ran = Play(vm, tmp_path, {"cpu_governor": {"governor": "performance"}})("apply.yml")
    assert ran.returncode == 2
    assert "/etc/rc.local:2" in ran.stdout
    assert governors(vm) == {"schedutil"}


@pytest.mark.long
def test_the_boot_line_through_grub_with_a_trial_and_back(vm_grub: Vm, tmp_path: Path) -> None:
    vm = vm_grub
    before = vm.sh(f"{OURS}; cat /boot/grub/grub.cfg").stdout
    wish = {"present": ["lab.word=1"], "try_once": True}
    play = Play(vm, tmp_path, {"kernel_arguments": wish})
    play.variables["hostcheck_expect"]["required"] = []
    assert "needs a reboot for kernel_arguments" in play.ok("apply.yml")
    vm.reboot()
    assert "lab.word=1" in vm.read("/proc/cmdline").split()
    assert "lab.word=1" not in vm.read("/etc/default/grub") + vm.sh("cat /etc/default/grub.d/*.cfg || true").stdout
    play.variables["hostcheck_waivers"] = [
        {"check": "*", "justification": "a test host", "until": "2999-01-01", "boot_id": vm.boot_id()}
    ]
    play.ok("apply.yml")
    vm.reboot()
    assert "lab.word=1" in vm.read("/proc/cmdline").split()
    assert changed(play.ok("apply.yml")) == 0
    normal = vm.sh("grep -c 'lab.word=1' /boot/grub/grub.cfg").stdout
    assert int(normal) >= 2
    play.ok("undo.yml")
    assert vm.sh(f"{OURS}; cat /boot/grub/grub.cfg").stdout == before
    vm.reboot()
    assert "lab.word=1" not in vm.read("/proc/cmdline").split()


@pytest.mark.long
def test_a_trial_boot_that_is_not_confirmed_is_over_with_the_next_boot(vm_grub: Vm, tmp_path: Path) -> None:
    play = Play(vm_grub, tmp_path, {"kernel_arguments": {"present": ["lab.word=2"], "try_once": True}})
    play.ok("apply.yml")
    vm_grub.reboot()
    assert "lab.word=2" in vm_grub.read("/proc/cmdline").split()
    vm_grub.reboot()
    assert "lab.word=2" not in vm_grub.read("/proc/cmdline").split()
    ran = play("apply.yml")
    assert ran.returncode == 2
    assert "did not last" in ran.stdout


@pytest.mark.long
def test_a_card_that_comes_back_stays_on(vm: Vm, tmp_path: Path) -> None:
    play = Play(vm, tmp_path, {"gpu_runtime_pm": {"control": True}})
    play.ok("apply.yml")
    gpu = GPUS[0]
    above = [gpu]
    while above[-1] in PARENT:
        above.append(PARENT[above[-1]])
    for bdf in above:
        vm.write(f"/sys/bus/pci/devices/{bdf}/power/control", "auto")
    device = f"/sys/bus/pci/devices/{gpu}"
    vm.sh(f"echo 1 > {device}/remove; echo 1 > /sys/bus/pci/rescan; udevadm settle")
    unit = f"hostcheck-gpu-pm@{gpu}.service"
    vm.sh(f"for i in $(seq 100); do grep -q on {device}/power/control && break; sleep 0.2; done")
    said = vm.sh(f"systemctl status '{unit}' --no-pager || true").stdout
    assert [vm.sysfs(bdf, "power/control") for bdf in above] == [["on"]] * len(above), said
    play.ok("undo.yml")
    assert "hostcheck" not in vm.sh("ls /etc/udev/rules.d /etc/systemd/system").stdout


@pytest.mark.long
def test_aspm_beside_pcie_aspm_off_is_refused(vm_grub: Vm, tmp_path: Path) -> None:
    vm = vm_grub
    first = Play(vm, tmp_path, {"kernel_arguments": {"present": ["pcie_aspm=off"]}})
    first.ok("apply.yml")
    vm.reboot()
    assert "pcie_aspm=off" in vm.read("/proc/cmdline").split()
    with pytest.raises(LabError, match="Operation not permitted"):
        vm.write("/sys/module/pcie_aspm/parameters/policy", "performance")
    play = Play(vm, tmp_path, {"pcie_aspm": {"policy": "performance"}})
    ran = play("apply.yml")
    assert ran.returncode == 2
    assert "pcie_aspm=off (/etc/default/grub.d/90-hostcheck.cfg:2)" in ran.stdout
    both = Play(
        vm, tmp_path, {"kernel_arguments": {"absent": ["pcie_aspm=off"]}, "pcie_aspm": {"policy": "performance"}}
    )
    both.ok("apply.yml")
    vm.reboot()
    assert vm.read("/sys/module/pcie_aspm/parameters/policy").split()[1] == "[performance]"
    assert "pcie_aspm=off" not in vm.read("/proc/cmdline").split()
    assert "as declared" in both.ok("drift.yml")
    both.ok("undo.yml")
    vm.reboot()
    assert vm.read("/proc/cmdline").split().count("pcie_aspm.policy=performance") == 0
