"""Crash policy, memory fence, limits of units and held packages on a machine whose kernel, systemd and dpkg answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.lab.test_settings_vm import OURS, Play, changed
from tests.lab.vm.host import Vm

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(900)]

BLOCKS = "/sys/devices/system/memory"
JOB = "/sys/fs/cgroup/system.slice/lab-job.service"
USES_80_MIB = "python3 -c 'import time; kept = bytearray(80 << 20); time.sleep(10000)'"


def values(vm: Vm, *paths: str) -> list[str]:
    return vm.run(["cat", *paths]).stdout.split()


def job(vm: Vm) -> None:
    """Start a service that uses 80 MiB, and wait until it does."""
    vm.write("/etc/systemd/system/lab-job.service", f"[Service]\nExecStart={USES_80_MIB}\n")
    vm.sh("systemctl daemon-reload; systemctl start lab-job.service")
    vm.sh(f"until [ $(cat {JOB}/memory.current) -gt 83886080 ]; do sleep 0.2; done")


def test_limits_pins_and_the_pair(vm: Vm, tmp_path: Path) -> None:
    job(vm)
    vm.run(["apt-mark", "hold", "tuned"])
    pair = values(vm, "/proc/sys/kernel/hardlockup_panic", "/proc/sys/kernel/panic")
    before = vm.sh(f"{OURS}; apt-mark showhold; cat {JOB}/memory.max {JOB}/memory.swap.max").stdout
    wish: dict[str, Any] = {
        "crash_policy": {"hardlockup_panic": False, "panic": 17},
        "container_memory": {"units": {"lab-job.service": 200}},
        "package_pins": {"names": ["tuned", "less"]},
    }
    play = Play(vm, tmp_path, wish)
    assert changed(play.ok("apply.yml")) == 3
    assert values(vm, "/proc/sys/kernel/hardlockup_panic", "/proc/sys/kernel/panic") == ["0", "17"]
    assert values(vm, f"{JOB}/memory.max", f"{JOB}/memory.swap.max") == [str(200 << 20), "0"]
    assert vm.run(["apt-mark", "showhold"]).stdout.split() == ["less", "tuned"]

    vm.write("/proc/sys/kernel/panic", "3\n")
    vm.run(["systemctl", "restart", "systemd-sysctl.service"])  # what a boot does
    assert values(vm, "/proc/sys/kernel/panic") == ["17"]

    play.ok("undo.yml")
    after = vm.sh(f"{OURS}; apt-mark showhold; cat {JOB}/memory.max {JOB}/memory.swap.max").stdout
    assert after == before
    assert values(vm, "/proc/sys/kernel/hardlockup_panic", "/proc/sys/kernel/panic") == pair


def test_a_panic_is_refused_until_something_keeps_it(vm: Vm, tmp_path: Path) -> None:
    play = Play(vm, tmp_path, {"crash_policy": {"hardlockup_panic": True, "panic": 30}})
    refused = play("apply.yml")
    assert refused.returncode == 2
    assert "a panic would leave nothing behind: crash kernel not loaded" in refused.stdout
    assert values(vm, "/proc/sys/kernel/hardlockup_panic") == ["0"]
    target = "/sys/kernel/config/netconsole/lab"
    vm.sh(
        "modprobe netconsole; mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config;"
        f" mkdir {target}; cd {target}; ip -o -4 route get 10.0.2.2 | sed 's/.* dev \\([^ ]*\\).*/\\1/' > dev_name;"
        " echo 10.0.2.15 > local_ip; echo 10.0.2.2 > remote_ip; echo 1 > enabled"
    )
    assert changed(play.ok("apply.yml")) == 1
    assert values(vm, "/proc/sys/kernel/hardlockup_panic", "/proc/sys/kernel/panic") == ["1", "30"]
    play.ok("undo.yml")
    assert values(vm, "/proc/sys/kernel/hardlockup_panic") == ["0"]


def test_a_limit_below_what_a_job_uses_is_refused(vm: Vm, tmp_path: Path) -> None:
    job(vm)
    refused = Play(vm, tmp_path, {"container_memory": {"units": {"lab-job.service": 64}}})("apply.yml")
    assert refused.returncode == 2
    assert "lab-job.service: 64 MiB is below its measured use of" in refused.stdout
    assert values(vm, f"{JOB}/memory.max") == ["max"]
    assert "active" in vm.run(["systemctl", "is-active", "lab-job.service"]).stdout


def total_kib(vm: Vm) -> int:
    found = re.search(r"MemTotal:\s+(\d+)", vm.read("/proc/meminfo"))
    assert found is not None
    return int(found[1])


def test_a_block_goes_off_line_or_the_kernel_says_why_not(vm: Vm, tmp_path: Path) -> None:
    names = vm.sh(f"cd {BLOCKS}; ls -d memory[0-9]*").stdout.split()
    numbers = sorted(int(name[len("memory") :]) for name in names)
    size = int(vm.read(f"{BLOCKS}/block_size_bytes"), 16)
    before = (vm.sh(OURS).stdout, total_kib(vm))
    number = numbers[-1]
    play = Play(vm, tmp_path, {"memory_fence": {"blocks": [number], "available_mib": 64}})
    ran = play("apply.yml")
    (state,) = values(vm, f"{BLOCKS}/memory{number}/state")
    if ran.returncode:
        assert state == "online"
        assert f"memory{number}" in ran.stdout
        assert "stays on-line: " in ran.stdout or "not removable" in ran.stdout or "two zones" in ran.stdout
    else:
        assert state == "offline"
        assert total_kib(vm) == before[1] - (size >> 10)
        assert changed(play.ok("apply.yml")) == 0
        vm.write(f"{BLOCKS}/memory{number}/state", "online")
        vm.run(["systemctl", "start", "hostcheck-memory-fence.service"])  # what a boot does
        assert values(vm, f"{BLOCKS}/memory{number}/state") == ["offline"]
    play.ok("undo.yml")
    assert values(vm, f"{BLOCKS}/memory{number}/state") == ["online"]
    assert (vm.sh(OURS).stdout, total_kib(vm)) == before

    wrong = Play(vm, tmp_path, {"memory_fence": {"blocks": [numbers[-1] + 1000]}})("apply.yml")
    assert wrong.returncode == 2
    assert f"memory{numbers[-1] + 1000} is not there" in wrong.stdout
