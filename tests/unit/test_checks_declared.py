"""What a role is to set is what the audit judges: fence, limits of containers, held packages."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from hostcheck.expectations import expectation
from hostcheck.findings import Finding, Status
from hostcheck.onhost.readings import packages
from tests import replay

CASES = Path(__file__).parents[1] / "cases"
CONTAINER = "0123456789ab"


def judged(id: str, change: dict[str, Any], settings: dict[str, Any], host: str = "four-card-gen4") -> list[Finding]:
    recording = replay.changed(replay.host(host), change)
    found = replay.report(recording, {"settings": settings}, {}).findings
    return [one for one in found if one.id == id]


@pytest.mark.parametrize(
    ("state", "status", "step"),
    [
        ("online", Status.fail, "ansible-playbook playbooks/apply.yml --tags memory_fence"),
        ("going-offline", Status.fail, "ansible-playbook playbooks/apply.yml --tags memory_fence"),  # still holds pages
        ("offline", Status.ok, ""),
    ],
)
def test_the_fence_of_the_role_is_judged(state: str, status: Status, step: str) -> None:
    change = {"files": {"/sys/devices/system/memory/memory3/state": f"{state}\n"}}
    (found,) = judged("mem.blocks_offline", change, {"memory_fence": {"blocks": [3]}})
    assert (found.status, found.next_step) == (status, step)


@pytest.mark.parametrize(
    ("wish", "limits", "status"),
    [
        ({"containers": {CONTAINER: 12288}}, (12288 << 20, 0), Status.warn),  # as declared, and it did swap before
        ({"containers": {CONTAINER: 8192}}, (12288 << 20, 0), Status.fail),
        ({"containers": {CONTAINER: 12288}}, (12288 << 20, 4 << 30), Status.fail),
        ({"containers": {"other": 12288}}, (12288 << 20, 4 << 30), Status.warn),
    ],
)
def test_declared_limits_of_a_container_are_judged(
    wish: dict[str, Any], limits: tuple[int, int], status: Status
) -> None:
    change = yaml.safe_load((CASES / "container-that-swapped.yml").read_text())["change"]
    for path in change["files"]:
        if path.endswith("/memory.max"):
            change["files"][path] = f"{limits[0]}\n"
        if path.endswith("/memory.swap.max"):
            change["files"][path] = f"{limits[1]}\n"
    (found,) = judged("container.swap", change, {"container_memory": wish}, "two-card-gen5")
    assert found.status == status
    if status is Status.fail:
        assert found.next_step.endswith("--tags container_memory")


def test_a_unit_that_is_declared_is_judged_as_a_container_is() -> None:
    change = {
        "links": {"/proc/4242/fd/7": "/dev/dri/renderD128"},
        "files": {
            "/proc/4242/comm": "python\n",
            "/proc/4242/cgroup": "0::/system.slice/vllm.service\n",
            "/sys/fs/cgroup/system.slice/vllm.service/memory.max": "max\n",
            "/sys/fs/cgroup/system.slice/vllm.service/memory.swap.max": "0\n",
        },
    }
    for mib, status in ((0, Status.ok), (300, Status.fail)):  # it never swapped
        wish = {"container_memory": {"units": {"vllm.service": mib}}}
        (found,) = judged("container.swap", change, wish, "two-card-gen5")
        assert (found.status, str(found.subject)) == (status, "/system.slice/vllm.service")


def test_packages_that_are_to_be_held() -> None:
    host = replay.host("four-card-gen4")
    argv, output = next((argv, output) for argv, output in host["commands"].items() if argv.startswith("dpkg-query"))
    held = output["stdout"].replace("xpu-smi\tv1.3.6-1\tinstall", "xpu-smi\tv1.3.6-1\thold")
    assert held != output["stdout"]
    wish = {"package_pins": {"names": ["xpu-smi", "linux-firmware", "linux-image-generic"]}}
    found = judged("package.pins", {"commands": {argv: {**output, "stdout": held}}}, wish)
    assert {str(one.subject).split()[-1]: one.status for one in found} == {
        "xpu-smi": Status.ok,
        "linux-firmware": Status.fail,
        "linux-image-generic": Status.unknown,
    }
    assert [one.status for one in judged("package.pins", {}, {})] == [Status.not_applicable]


def test_half_a_pair_is_no_expectation() -> None:
    with pytest.raises(ValueError, match="only the pair says what happens"):
        expectation({"settings": {"crash_policy": {"hardlockup_panic": True}}})


def test_what_another_manager_of_packages_holds_is_not_known() -> None:
    """A host of rpm without dnf: its locks were not read, so no package is said to be free."""
    listed = {"rc": 0, "stdout": "rpm\tv4.20.1-1\nkernel-default\tv6.12.0-1\n", "stderr": ""}
    change = {"commands": {shlex.join(packages.DPKG): None, shlex.join(packages.RPM): listed}}
    (found,) = judged("package.pins", change, {"package_pins": {"names": ["kernel-default"]}})
    assert (found.status, "another manager of packages" in found.seen) == (Status.unknown, True)
