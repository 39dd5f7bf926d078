"""apply, drift and undo with the real ansible-playbook, on directories of three kinds of distribution.

update-grub, grubby and tuned-adm are small programs of `tests.settings_host` here; systemd-boot's files need none.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hostcheck.onhost.settings.catalogue import SETTINGS
from tests import plays
from tests.settings_host import (
    Tree,
    apt,
    card,
    cgroup,
    cpus,
    crash_host,
    debian,
    kernel_install,
    memory_blocks,
    nic,
    rhel,
    unit,
)

ROOT = Path(__file__).parents[2]
MAC = "52:54:00:00:01:01"
WISHES: dict[str, Any] = {
    "cpu_governor": {"governor": "performance"},
    "kernel_arguments": {"present": ["iommu=pt"], "absent": ["quiet"]},
    "pcie_aspm": {"policy": "performance"},
    "gpu_runtime_pm": {"control": True, "runtime_auto": True},
    "collective_env": {"interface": {"mac": MAC}, "variables": {"CCL_ATL_TRANSPORT": "ofi"}, "units": ["vllm.service"]},
}


LIMITS: dict[str, Any] = {
    "crash_policy": {"hardlockup_panic": True, "panic": 30},
    "memory_fence": {"blocks": [5, 6]},
    "container_memory": {"units": {"vllm.service": 300}},
    "package_pins": {"names": ["linux-image-amd64"]},
}


class Play:
    """Playbooks against one root."""

    def __init__(self, tmp_path: Path, tree: Tree, settings: dict[str, Any], **variables: Any) -> None:
        self.tmp_path, self.tree = tmp_path, tree
        own = {"hostcheck_root": str(tree.root), "hostcheck_expect": {"settings": settings}, **variables}
        self.inventory = Path(plays.inventory(tmp_path, {"gpu-1": {**plays.HERE, **own}}))

    def run(self, playbook: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return plays.run(self.tmp_path, plays.playbook(str(self.inventory), playbook, *arguments))


def recap(ran: subprocess.CompletedProcess[str], key: str) -> int:
    line = next(line for line in ran.stdout.splitlines() if line.startswith("gpu-1 ") and "ok=" in line)
    return int(next(word.partition("=")[2] for word in line.split() if word.startswith(f"{key}=")))


def diffs(ran: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in ran.stdout.splitlines() if line[:1] in ("+", "-", "@")]


def dressed(tree: Tree) -> Tree:
    cpus(tree)
    card(tree)
    nic(tree, "lo", "00:00:00:00:00:00", device=False)
    nic(tree, "eth1", MAC)
    tree.put("/sys/module/pcie_aspm/parameters/policy", "[default] performance powersave powersupersave \n")
    tree.program("dmesg", '#!/bin/sh\necho "[    0.000000] Linux version 6.12"\n')
    return tree


@pytest.mark.parametrize(
    "family",
    # The boot lines of the other families are tested in tests/unit/test_settings_boot.py.
    [debian, *(pytest.param(one, marks=pytest.mark.long) for one in (rhel, kernel_install))],
)
def test_check_apply_apply_drift_undo(tmp_path: Path, family: Callable[[Path], Tree]) -> None:
    tree = dressed(family(tmp_path / "root"))
    before = tree.snapshot()
    play = Play(tmp_path, tree, WISHES)

    check = play.run("apply.yml", "--check", "--diff")
    assert check.returncode == 0, check.stdout + check.stderr
    assert tree.snapshot() == before
    if family is debian:
        drift = play.run("drift.yml")
        assert drift.returncode == 2
        assert diffs(drift) == diffs(check)  # what the first of two changes in a shared file, the second takes for done
        assert "differs in cpu_governor, kernel_arguments, pcie_aspm, gpu_runtime_pm, collective_env" in drift.stdout
        assert "gpu-1 cpu_governor: DRIFT; live schedutil; next boot the driver's default" in drift.stdout
        assert tree.snapshot() == before

    run = play.run("apply.yml", "--diff")
    assert run.returncode == 0, run.stdout + run.stderr
    assert recap(check, "changed") == recap(run, "changed") == 5
    assert diffs(check) == diffs(run)
    assert diffs(run)
    assert (
        "gpu-1 needs a reboot for kernel_arguments, pcie_aspm. Not rebooted: hostcheck_reboot_ok is not set."
        in run.stdout
    )

    after = tree.snapshot()
    again = play.run("apply.yml", "--diff")
    assert (again.returncode, recap(again, "changed"), diffs(again)) == (0, 0, [])
    assert tree.snapshot() == after
    if family is debian:
        steady = play.run("drift.yml")
        assert steady.returncode == 0, steady.stdout
        assert "gpu-1 kernel_arguments: reboot due" in steady.stdout
        assert "set by /etc/default/grub.d/90-hostcheck.cfg" in steady.stdout

    undone = play.run("undo.yml", "--check", "--diff")
    assert tree.snapshot() == after
    gone = play.run("undo.yml", "--diff")
    assert gone.returncode == 0, gone.stdout + gone.stderr
    assert diffs(undone) == diffs(gone)
    assert tree.snapshot() == before
    if family is debian:
        assert recap(play.run("undo.yml"), "changed") == 0


def test_crash_memory_limits_and_packages(tmp_path: Path) -> None:
    tree = apt(memory_blocks(crash_host(Tree(tmp_path / "root"))), linux_image_amd64="install")
    unit(tree, "vllm.service")
    cgroup(tree, "vllm.service")
    before = tree.snapshot()
    play = Play(tmp_path, tree, LIMITS)
    expect = yaml.safe_load(play.inventory.read_text())
    expect["all"]["hosts"]["gpu-1"]["hostcheck_expect"]["memory"] = {"available_mib": 10_000}
    play.inventory.write_text(yaml.safe_dump(expect))
    refused = play.run("drift.yml")
    assert refused.returncode == 2
    assert "gpu-1 memory_fence: memory_fence.blocks: 2 blocks on-line are 4.0 GiB" in refused.stdout
    assert "gpu-1 package_pins: DRIFT; live linux-image-amd64 free" in refused.stdout  # what follows is compared too
    assert "differs in crash_policy, memory_fence, container_memory, package_pins" in refused.stdout

    expect["all"]["hosts"]["gpu-1"]["hostcheck_expect"]["memory"] = {"available_mib": 4_000}
    play.inventory.write_text(yaml.safe_dump(expect))
    check = play.run("apply.yml", "--check", "--diff")
    assert tree.snapshot() == before
    run = play.run("apply.yml", "--diff")
    assert run.returncode == 0, run.stdout + run.stderr
    assert recap(check, "changed") == recap(run, "changed") == len(LIMITS)
    assert diffs(check) == diffs(run)
    gone = play.run("undo.yml")
    assert gone.returncode == 0, gone.stdout + gone.stderr
    assert tree.snapshot() == before


def test_nothing_declared_changes_nothing_and_lists_what_may_be(tmp_path: Path) -> None:
    tree = dressed(debian(tmp_path / "root"))
    before = tree.snapshot()
    run = Play(tmp_path, tree, {}).run("apply.yml")
    assert (run.returncode, recap(run, "changed")) == (0, 0), run.stdout
    assert f"host_packages, {', '.join(SETTINGS)}" in run.stdout
    assert tree.snapshot() == before


MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "role": ({"cpu_govenor": {"governor": "performance"}}, {}, "hostcheck_expect.settings has cpu_govenor"),
    "key": ({"cpu_governor": {"governer": "performance"}}, {}, "unknown key governer"),
    "variable": ({}, {"cpu_governor": {"governer": "performance"}}, "governer"),
    "governor": ({"cpu_governor": {"governor": "turbo"}}, {}, "policy0 offers performance, schedutil"),
    "mac": ({"collective_env": {"interface": {"mac": "52:54:00:00:01:99"}}}, {}, f"eth1 ({MAC}"),
}


def test_a_mistake_is_said_before_anything_is_touched(tmp_path: Path) -> None:
    trees = {name: dressed(debian(tmp_path / name)) for name in MISTAKES}
    before = {name: tree.snapshot() for name, tree in trees.items()}
    play = Play(tmp_path, trees["role"], {})
    common = yaml.safe_load(play.inventory.read_text())["all"]["hosts"]["gpu-1"]
    hosts = {
        name: {
            **common,
            "hostcheck_root": str(trees[name].root),
            "hostcheck_expect": {"settings": settings},
            **variables,
        }
        for name, (settings, variables, _) in MISTAKES.items()
    }
    play.inventory.write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    run = play.run("apply.yml")
    assert run.returncode == 2
    fatal = {
        name: "".join(line for line in run.stdout.splitlines() if f"[{name}]: FAILED" in line) for name in MISTAKES
    }
    assert [name for name, (_, _, said) in MISTAKES.items() if said not in fatal[name]] == []
    assert {name: tree.snapshot() for name, tree in trees.items()} == before


def test_a_role_variable_wins_over_the_expectation_and_tags_choose(tmp_path: Path) -> None:
    tree = dressed(debian(tmp_path / "root"))
    play = Play(tmp_path, tree, WISHES, cpu_governor={"governor": "performance", "scaling_min_freq": 900000})
    run = play.run("apply.yml", "--tags", "cpu_governor")
    assert (run.returncode, recap(run, "changed")) == (0, 1), run.stdout
    assert tree.text("/sys/devices/system/cpu/cpufreq/policy3/scaling_min_freq") == "900000\n"
    assert not tree.path("/etc/hostcheck").exists()


def test_tags_can_be_listed_and_skipped_and_limit_undo(tmp_path: Path) -> None:
    tree = dressed(debian(tmp_path / "root"))
    play = Play(tmp_path, tree, {name: WISHES[name] for name in ("cpu_governor", "collective_env")})
    for playbook in ("apply.yml", "undo.yml"):
        listed = play.run(playbook, "--list-tags").stdout
        assert set(WISHES) <= set(re.findall(r"\w+", listed.partition("TASK TAGS")[2])), listed
    assert recap(play.run("apply.yml", "--skip-tags", "cpu_governor"), "changed") == 1
    assert recap(play.run("apply.yml", "--tags", "cpu_governor"), "changed") == 1
    gone = play.run("undo.yml", "--tags", "collective_env")
    assert (gone.returncode, recap(gone, "changed")) == (0, 1), gone.stdout
    assert tree.text("/sys/devices/system/cpu/cpufreq/policy3/scaling_governor") == "performance\n"
    assert not tree.path("/etc/hostcheck").exists()


def test_what_was_changed_by_hand_is_drift_and_is_named_by_undo(tmp_path: Path) -> None:
    tree = dressed(debian(tmp_path / "root"))
    play = Play(tmp_path, tree, {"cpu_governor": {"governor": "performance"}})
    play.run("apply.yml")
    tree.put("/sys/devices/system/cpu/cpufreq/policy1/scaling_governor", "schedutil\n")
    drift = play.run("drift.yml")
    assert drift.returncode == 2
    assert "-/sys/devices/system/cpu/cpufreq/policy1/scaling_governor = schedutil" in diffs(drift)
    tree.put("/sys/devices/system/cpu/cpufreq/policy1/scaling_governor", "ondemand\n")
    gone = play.run("undo.yml")
    assert gone.returncode == 0
    assert "policy1/scaling_governor: changed by hand" in gone.stdout + gone.stderr
    assert tree.text("/sys/devices/system/cpu/cpufreq/policy1/scaling_governor") == "ondemand\n"


def test_cards_that_are_expected_and_missing_are_a_failure(tmp_path: Path) -> None:
    tree = debian(tmp_path / "root")
    tree.path("/sys/bus/pci/devices").mkdir(parents=True)
    play = Play(tmp_path, tree, {"gpu_runtime_pm": {"control": True}})
    expect = yaml.safe_load(play.inventory.read_text())
    expect["all"]["hosts"]["gpu-1"]["hostcheck_expect"]["gpus"] = {"count": 4}
    play.inventory.write_text(yaml.safe_dump(expect))
    for playbook in ("apply.yml", "drift.yml"):
        run = play.run(playbook)
        assert run.returncode == 2
        assert "cards are expected" in run.stdout


def test_a_trial_is_made_permanent_only_when_the_audit_of_its_boot_passes(tmp_path: Path) -> None:
    tree = cpus(debian(tmp_path / "root"), governor="performance")
    play = Play(tmp_path, tree, {"kernel_arguments": {"present": ["iommu=pt"], "try_once": True}})
    armed = play.run("apply.yml")
    assert armed.returncode == 0, armed.stdout
    assert "needs a reboot for kernel_arguments" in armed.stdout
    tree.put("/boot/grub/grubenv", "")
    tree.put("/proc/cmdline", "BOOT_IMAGE=/vmlinuz ro quiet iommu=pt\n")
    tree.put("/proc/sys/kernel/random/boot_id", "22222222-2222-2222-2222-222222222222\n")

    expect = yaml.safe_load(play.inventory.read_text())
    expect["all"]["hosts"]["gpu-1"]["hostcheck_expect"]["gpus"] = {"count": 7}
    play.inventory.write_text(yaml.safe_dump(expect))
    failed = play.run("apply.yml")
    assert failed.returncode == 2, failed.stdout
    assert not tree.path("/etc/default/grub.d/90-hostcheck.cfg").exists()

    expect["all"]["hosts"]["gpu-1"]["hostcheck_expect"]["gpus"] = {}
    expect["all"]["hosts"]["gpu-1"]["hostcheck_waivers"] = [
        {
            "check": "*",
            "subject": "*",
            "justification": "a directory, not a host",
            "until": "2999-01-01",
            "boot_id": "*",
        }
    ]
    play.inventory.write_text(yaml.safe_dump(expect))
    passed = play.run("apply.yml")
    assert passed.returncode == 0, passed.stdout
    assert "iommu=pt" in tree.text("/etc/default/grub.d/90-hostcheck.cfg")
    assert recap(play.run("apply.yml"), "changed") == 0


def test_every_role_is_documented() -> None:
    ran = subprocess.run(
        [
            str(plays.TOOLS / "ansible-doc"),
            "-t",
            "role",
            "-r",
            str(ROOT / "roles"),
            "--json",
            *WISHES,
            *LIMITS,
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        check=True,
    )
    documented = json.loads(ran.stdout)
    for name, wish in {**WISHES, **LIMITS}.items():
        options = documented[name]["entry_points"]["main"]["options"][name]["options"]
        assert set(wish) <= set(options)
