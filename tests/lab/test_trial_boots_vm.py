"""A trial over boots on a machine that really boots: kernel arguments through its own GRUB, a made-up worker in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hostcheck import boots, receipts
from hostcheck.cli import main
from tests import scripted_worker
from tests.lab.test_settings_vm import OURS, play
from tests.lab.vm.host import Vm

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(3000)]

FASTER_WITH_THE_WORD = '    return 0.8 if "lab.word=1" in open("/proc/cmdline").read().split() else 1.0\n'


def test_boots_by_turns_and_back(vm_grub: Vm, tmp_path: Path) -> None:
    vm = vm_grub
    vm.write("/root/worker.py", scripted_worker.text(FASTER_WITH_THE_WORD))
    before = vm.sh(f"{OURS}; cat /boot/grub/grub.cfg").stdout
    first_boot = vm.boot_id()
    variables = {
        "hostcheck_expect": {"settings": {"kernel_arguments": {"present": ["lab.word=1"]}}},
        "latency_probe_command": ["python3", "/root/worker.py"],
        "latency_probe_device": "cpu",
        "latency_probe_quick": True,
        "trial_boots_per_arm": 1,
        "trial_boots_settle_s": 0,
        "trial_boots_seed": 1,
    }
    refused = play(vm, tmp_path, variables, "trial_boots.yml")
    assert refused.returncode == 2
    assert "hostcheck_reboot_ok is not set" in refused.stdout
    assert vm.boot_id() == first_boot

    ran = play(vm, tmp_path, variables, "trial_boots.yml", "-e", "hostcheck_reboot_ok=true", timeout=2400)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1] == "not shown on 1"
    (path,) = (tmp_path / "reports/receipts").glob("gpu-1-cpu-boots-*.json")
    document = boots.load(path)
    assert document["verdict"]["word"] == "inconclusive"
    assert "unpaired, descriptive only" in document["verdict"]["sentence"]
    assert document["told_by"] == {"command_line": {"A": "", "B": "lab.word=1"}}
    assert sorted(row["arm"] for row in document["boots"]) == ["A", "B"]
    assert len({first_boot, vm.boot_id(), *(row["boot_id"] for row in document["boots"])}) >= 3
    figures = {row["arm"]: row["figure"] for row in document["boots"]}
    assert figures["B"] / figures["A"] == pytest.approx(0.8, rel=0.02)
    assert main(["verify", str(path)]) == 0
    for row in document["boots"]:
        receipt = receipts.load(path.parent / row["file"])
        assert receipt["before"]["host"]["boot_id"] == row["boot_id"]
        assert ("lab.word=1" in receipt["before"]["host"]["command_line"].split()) == (row["arm"] == "B")

    assert "lab.word=1" not in vm.read("/proc/cmdline").split()
    assert vm.sh(f"{OURS}; cat /boot/grub/grub.cfg").stdout == before
    assert json.loads(path.read_text())["restore"] == ""
