"""The test host itself: every tool that it gives to tests does what it says, by the word of the kernel inside."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab.vm import accel, cards, host, qemu
from tests.lab.vm.host import Vm
from tests.lab.vm.image import Image
from tests.lab.vm.qemu import LabError

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

UPLINK, GPU = cards.UPLINKS[0], cards.GPUS[0]
PCI = "/sys/bus/pci/devices"


def dmesg(vm: Vm) -> str:
    return vm.run(["dmesg"]).stdout


def test_cards_look_like_cards(vm: Vm) -> None:
    listed = dict(line.split(maxsplit=1) for line in vm.run(["lspci", "-Dn"]).stdout.splitlines())
    wanted = dict.fromkeys(cards.UPLINKS, "0604: 8086:e2ff")
    wanted |= dict.fromkeys(cards.INNER_PORTS, "0604: 8086:e2f0")
    wanted |= dict.fromkeys(cards.GPUS, "0300: 8086:e223")
    assert {bdf: listed[bdf].partition(" (")[0] for bdf in wanted} == wanted
    for bdf, parent in cards.PARENT.items():
        assert vm.run(["readlink", "-f", f"{PCI}/{bdf}"]).stdout.split("/")[-2] == parent
    for gpu, node in zip(cards.GPUS, "0011", strict=True):
        assert vm.sysfs(gpu, "numa_node") == [node]
        assert vm.link(gpu) == (2.5, 1, 2.5, 1)
        assert vm.run(["readlink", f"{PCI}/{gpu}/driver"]).stdout.strip().endswith("/xe")
        first, last, _ = (int(word, 16) for word in vm.sysfs(gpu, "resource")[2].split())
        assert last - first + 1 == cards.VRAM_GIB << 30
    assert len({vm.render_node(gpu) for gpu in cards.GPUS}) == len(cards.GPUS)
    for uplink in cards.UPLINKS:
        assert vm.link(uplink) == vm.link(cards.PARENT[uplink]) == (16.0, 8, 16.0, 8)


@pytest.mark.long
def test_bar_of_a_host_without_resizable_bar(vm: Vm) -> None:
    vm.set_bar(GPU, 0.25)
    lines = vm.run(["lspci", "-vs", GPU]).stdout
    assert "Memory at 380000000000 (64-bit, prefetchable) [size=256M]" in lines


def test_link_is_changed_at_both_ends_for_sysfs_and_lspci(vm: Vm) -> None:
    vm.set_link(UPLINK, speed=2.5)
    assert vm.link(UPLINK) == vm.link(cards.PARENT[UPLINK]) == (2.5, 8, 16.0, 8)
    lines = vm.run(["lspci", "-vv", "-s", UPLINK]).stdout
    assert re.search(r"LnkCap:.* Speed 16GT/s, Width x8", lines)
    assert re.search(r"LnkSta:\s+Speed 2.5GT/s \(downgraded\), Width x8", lines)
    vm.set_link(UPLINK, speed=32.0, width=4, max_speed=32.0, max_width=16)
    assert vm.link(UPLINK) == (32.0, 4, 32.0, 16)
    assert vm.link(cards.INNER_PORTS[0]) == (2.5, 1, 2.5, 1)


def test_aspm_policy_reaches_the_links(vm: Vm) -> None:
    def enabled() -> list[str]:
        return re.findall(r"LnkCtl:\s+ASPM ([^;]*);", vm.run(["lspci", "-vv", "-s", UPLINK]).stdout)

    assert enabled() == ["Disabled"]
    vm.write("/sys/module/pcie_aspm/parameters/policy", "powersave")
    assert enabled() == ["L1 Enabled"]
    vm.write("/sys/module/pcie_aspm/parameters/policy", "performance")
    assert enabled() == ["Disabled"]
    vm.set_link(UPLINK, aspm="L1")
    assert enabled() == ["L1 Enabled"]


def counters(vm: Vm, bdf: str, name: str) -> dict[str, int]:
    lines = vm.read(f"{PCI}/{bdf}/{name}").splitlines()
    return {word: int(number) for word, number in (line.split() for line in lines)}


def test_errors_of_each_severity_are_counted_and_logged(vm: Vm) -> None:
    vm.inject_aer(UPLINK, "correctable", "BadTLP", count=5)
    vm.inject_aer(UPLINK, "correctable", "BadTLP", "Timeout")
    count = counters(vm, UPLINK, "aer_dev_correctable")
    assert (count["BadTLP"], count["Timeout"], count["TOTAL_ERR_COR"]) == (6, 1, 6)
    vm.inject_aer(GPU, "nonfatal", "UnsupReq", header=[0x01000040])
    assert counters(vm, GPU, "aer_dev_nonfatal")["UnsupReq"] == 1
    vm.inject_aer(cards.UPLINKS[1], "fatal", "MalfTLP")
    assert vm.sysfs(cards.ROOT_PORTS[1], "aer_rootport_total_err_fatal") == ["1"]
    log = dmesg(vm)
    assert log.count(f"pcieport {UPLINK}: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID)") == 5
    assert f"AER: Corrected error message received from {UPLINK}" in log
    assert f"xe {GPU}: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer" in log
    assert f"AER: Uncorrected (Fatal) error message received from {cards.UPLINKS[1]}" in log


def test_second_kernel_words_errors_differently(vm_second_kernel: Vm) -> None:
    vm = vm_second_kernel
    assert vm.run(["uname", "-r"]).stdout.strip() == vm.image.release("backports") != vm.image.release("stable")
    assert vm.sysfs(GPU, "device") == ["0xe223"]
    vm.inject_aer(UPLINK, "correctable", "BadTLP")
    vm.inject_aer(GPU, "nonfatal", "UnsupReq")
    log = dmesg(vm)
    assert f"pcieport {UPLINK}: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Receiver ID)" in log
    assert f"AER: Uncorrectable (Non-Fatal) error message received from {GPU}" in log
    assert counters(vm, UPLINK, "aer_dev_correctable")["BadTLP"] == 1


def test_coredump_and_driver_lines(vm: Vm) -> None:
    folder = vm.coredump(GPU)
    assert vm.read(f"{folder}/data").startswith("**** Xe Device Coredump ****\n")
    assert vm.run(["readlink", "-f", f"{folder}/failing_device"]).stdout.strip().endswith(GPU)
    vm.kernel_log(cards.GPUS[1], f"*ERROR* CRITICAL: Xe has declared device {cards.GPUS[1]} as wedged.")
    log = dmesg(vm)
    assert f"xe {GPU}: [drm] Xe device coredump has been created" in log
    assert f"xe {cards.GPUS[1]}: [drm] *ERROR* CRITICAL: Xe has declared device {cards.GPUS[1]} as wedged." in log


def test_suspended_card_sleeps_until_its_config_space_is_read(vm: Vm) -> None:
    vm.suspend(GPU)
    assert vm.sysfs(GPU, "power/runtime_status", "power/control", "power_state") == ["suspended", "auto", "D3cold"]
    assert vm.sysfs(cards.GPUS[1], "power/runtime_status", "power/control") == ["active", "on"]
    active = vm.sysfs(GPU, "power/runtime_active_time")
    assert vm.sysfs(GPU, "vendor", "device") == ["0x8086", "0xe223"]
    assert vm.sysfs(GPU, "power/runtime_active_time") == active
    vm.run(["lspci", "-s", GPU])
    assert vm.sysfs(GPU, "power/runtime_active_time") != active


def test_holder_is_visible_and_the_driver_counts_calls(vm: Vm) -> None:
    before = vm.touched()
    node = vm.render_node(GPU)
    find = f"find /proc/[0-9]*/fd -lname {node} 2>/dev/null | cut -d/ -f3"
    with vm.hold_render_node(GPU) as pid:
        assert vm.sh(find).stdout.split() == [str(pid)]
    assert vm.sh(find).stdout == ""
    vm.sysfs(GPU, "auto_link_downgrade_status")
    assert vm.touched() == before + 2


def test_nics_come_and_go(vm: Vm) -> None:
    name = vm.nic_name("lan1")
    vm.set_carrier("lan1", up=False)
    assert vm.read(f"/sys/class/net/{name}/carrier") == "0\n"
    vm.set_carrier("lan1", up=True)
    assert vm.read(f"/sys/class/net/{name}/carrier") == "1\n"
    vm.rename_nic("lan1", "eth7")
    vm.lose_nic("lan0")
    names = vm.run(["ls", "/sys/class/net"]).stdout.split()
    assert sorted(names) == ["eth7", "lo", "mgmt0"]
    assert vm.add_nic("lan0") in vm.run(["ls", "/sys/class/net"]).stdout.split()


def test_cut_network_and_stop_dead(vm: Vm) -> None:
    vm.run(["true"])
    vm.cut_network()
    with pytest.raises(LabError):
        vm.run(["true"], timeout=3)
    vm.mend_network()
    vm.run(["true"])
    vm.kill()
    with pytest.raises(LabError, match="not running"):
        vm.run(["true"])


def test_files_commands_and_users(vm: Vm, tmp_path: Path) -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "some/file").write_text("text\n")
    vm.copy_to(tmp_path / "some", "/tmp")
    vm.sh("echo more >> /tmp/some/file")
    vm.copy_from("/tmp/some/file", tmp_path / "back")
    assert (tmp_path / "back").read_text() == vm.read("/tmp/some/file") == "text\nmore\n"
    assert vm.run(["printf", "%s|", "a b", "$HOME", "'"]).stdout == "a b|$HOME|'|"
    refused = vm.run(["runuser", "-u", "reader", "dmesg"], check=False)
    assert refused.returncode
    assert "Operation not permitted" in refused.stderr
    with pytest.raises(LabError, match="Invalid argument"):
        vm.write("/sys/module/pcie_aspm/parameters/policy", "fastest")
    assert vm.run(["python3", "-c", "import psutil, pyudev, sys; print(sys.version_info >= (3, 9))"]).stdout == "True\n"
    assert abs(float(vm.run(["date", "+%s"]).stdout) - time.time()) < 60


@pytest.mark.long
def test_power_and_clock_settings_are_there_and_unowned(vm: Vm) -> None:
    policies = vm.sh("cat /sys/devices/system/cpu/cpufreq/policy*/scaling_governor").stdout.split()
    assert policies == ["schedutil", "schedutil"]
    vm.write("/sys/devices/system/cpu/cpufreq/policy1/scaling_governor", "performance")
    assert vm.read("/sys/devices/system/cpu/cpufreq/policy1/scaling_cur_freq") == "3800000\n"
    assert vm.read("/sys/devices/system/cpu/cpufreq/boost") == "1\n"
    for unit in ("tuned", "power-profiles-daemon"):
        assert vm.run(["systemctl", "is-active", unit], check=False).stdout == "inactive\n"
    assert vm.run(["systemctl", "--failed", "--no-legend"]).stdout == ""


@pytest.mark.long
def test_ansible_reaches_it(vm: Vm, tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.json"
    inventory.write_text(json.dumps(vm.inventory("gpu1")))
    ansible = Path(sys.executable).with_name("ansible")
    if not ansible.exists():
        pytest.skip("no ansible beside this Python")
    command = [str(ansible), "-i", str(inventory), "gpu1", "-m", "ansible.builtin.ping"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert '"ping": "pong"' in done.stdout, done.stdout + done.stderr


@pytest.mark.long
def test_boot_line_and_late_cards(vm: Vm) -> None:
    first = vm.boot_id()
    vm.boot("pcie_aspm=off lab.cards_after=15")
    assert vm.boot_id() != first
    assert "pcie_aspm=off" in vm.read("/proc/cmdline").split()
    assert vm.run(["lspci", "-d", "8086:e223"]).stdout == ""
    with pytest.raises(LabError, match="Operation not permitted"):
        vm.write("/sys/module/pcie_aspm/parameters/policy", "performance")
    vm.sh("while [ $(ls /dev/dri/renderD* 2>/dev/null | wc -l) != 4 ]; do sleep 0.2; done", timeout=120)
    # Without ASPM the kernel does not take over error reporting either, and hears of nothing.
    with pytest.raises(LabError, match=re.escape(os.strerror(errno.ENODEV))):
        vm.inject_aer(UPLINK, "correctable", "BadTLP")


@pytest.mark.long
def test_reboot_through_grub_takes_the_written_command_line(vm_grub: Vm) -> None:
    first = vm_grub.boot_id()
    assert "lab.word=1" not in vm_grub.read("/proc/cmdline")
    vm_grub.write("/etc/default/grub.d/99-test.cfg", 'GRUB_CMDLINE_LINUX_DEFAULT="quiet lab.word=1"\n')
    vm_grub.run(["update-grub"], timeout=300)
    vm_grub.reboot()
    assert vm_grub.boot_id() != first
    assert vm_grub.read("/proc/cmdline").split()[-1] == "lab.word=1"
    assert vm_grub.link(UPLINK) == (16.0, 8, 16.0, 8)


RUN = """
import sys, time
from pathlib import Path
from tests.lab.vm.host import Vm
from tests.lab.vm.image import Image
vm = Vm(Image(Path(sys.argv[1])))
vm.resume()
print(vm.folder, flush=True)
time.sleep(600)
"""


def processes(text: str) -> list[int]:
    """Return the processes that have a text in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in path.read_bytes().decode(errors="replace"):
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


def system() -> dict[str, str]:
    loop = Path("/sys/block").glob("loop*/loop/backing_file")
    return {"mounts": Path("/proc/self/mounts").read_text(), "loop": str(sorted(loop))}


def test_it_runs_under_what_its_state_was_saved_under(vm: Vm) -> None:
    choice = vm.image.accelerator
    assert vm.qmp("query-kvm")["enabled"] == (choice.name == "kvm")
    assert choice.name == "tcg" or not accel.refused()
    assert choice.why


@pytest.mark.long
def test_the_self_test_boots_the_kernel_to_its_end_or_says_that_it_did_not(lab_image: Image, tmp_path: Path) -> None:
    kernel = lab_image.vmlinux("stable")
    choice = accel.choose(kernel)
    assert choice.name in qemu.ACCELERATORS
    assert accel.boot_seconds(kernel, "tcg")
    empty = tmp_path / "vmlinux"
    empty.write_bytes(kernel.read_bytes()[:4096])
    assert accel.boot_seconds(empty, "tcg") is None


@pytest.mark.parametrize("guards", ["alive", "killed too"])
def test_killed_run_leaves_nothing(lab_image: Image, guards: str) -> None:
    before = system()
    run = subprocess.Popen([sys.executable, "-c", RUN, str(lab_image.folder)], stdout=subprocess.PIPE, text=True)
    assert run.stdout
    folder = Path(run.stdout.readline().strip())
    assert folder.name.startswith(qemu.PREFIX)
    assert len(processes(str(folder))) >= 4  # QEMU, the connection, and a guard for each
    run.kill()
    if guards == "killed too":
        for pid in processes("guard.py\0" + str(folder)):
            os.kill(pid, signal.SIGKILL)
    run.wait()
    run.stdout.close()
    deadline = time.monotonic() + 30
    while processes(str(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes(str(folder)) == []
    if guards == "killed too":
        host.sweep()
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not folder.exists()
    assert system() == before
