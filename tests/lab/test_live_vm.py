"""The live tests over ssh, against a machine with a kernel and cards of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.vm.cards import GPUS
from tests.lab.vm.host import Vm

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_live_tests_read_a_real_host_over_ssh(vm: Vm, tmp_path: Path) -> None:
    inventory = vm.inventory("gpu-1")
    inventory["all"]["hosts"]["gpu-1"]["hostcheck_expect"] = {"gpus": {"count": len(GPUS) + 1}}
    (tmp_path / "inventory.json").write_text(json.dumps(inventory))
    environment = {**os.environ, "ANSIBLE_LOCAL_TEMP": str(tmp_path / "ansible")}
    environment.pop("ANSIBLE_CONFIG", None)
    chosen = "test_every_card or test_the_kernel or test_settings or gpu.enumeration or cpu.topology"
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/live", "--hosts=ansible://all"),
            *(f"--ansible-inventory={tmp_path}/inventory.json", "-k", chosen, "-rA"),
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=800,
        stdin=subprocess.DEVNULL,
    )
    ended = {line.split("::")[1].split(" ")[0]: line.split()[0] for line in ran.stdout.splitlines() if "::" in line}
    assert ended, ran.stdout + ran.stderr
    passed = {name for name, end in ended.items() if end == "PASSED"}
    assert {name.partition("[")[0] for name in passed} >= {
        "test_every_card_is_where_it_was_read",
        "test_the_kernel_is_the_one_that_another_tool_reads",
        "test_settings_read_the_same",
    }, ran.stdout
    failed = [name for name, end in ended.items() if end == "FAILED"]
    assert len(failed) == 1, ran.stdout  # the card that the inventory wants and the machine has not
    assert "gpu.enumeration" in failed[0]
    assert f"{len(GPUS)} of {len(GPUS) + 1} cards" in ran.stdout
