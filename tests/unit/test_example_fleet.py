"""The example inventory: it loads, its expectations are valid, and the lab's hosts pass against theirs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hostcheck.expectations import expectation, waivers
from hostcheck.findings import Status
from hostcheck.onhost.readings import gpu_ids
from tests import replay

ROOT = Path(__file__).parents[2]
FLEET = ROOT / "inventory/example-fleet"
CLASSES = {path.stem: path for path in sorted((FLEET / "group_vars").glob("*.yml"))}
EXPECTING = {name: path for name, path in CLASSES.items() if name != "gpu_hosts"}


@pytest.fixture(scope="module")
def loaded() -> dict[str, Any]:
    """What ansible makes of it."""
    ran = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-inventory"), "-i", str(FLEET), "--list"],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = json.loads(ran.stdout)
    assert isinstance(found, dict)
    return found


def test_every_class_is_a_group_with_hosts(loaded: dict[str, Any]) -> None:
    assert set(loaded["gpu_hosts"]["children"]) == set(EXPECTING)
    assert all(loaded[name]["hosts"] for name in EXPECTING)


def test_every_host_gets_a_valid_expectation(loaded: dict[str, Any]) -> None:
    for host, variables in loaded["_meta"]["hostvars"].items():
        assert expectation(variables["hostcheck_expect"], host).gpus.expected
        assert waivers(variables["hostcheck_waivers"], host) == ()
        assert variables["ansible_host"].startswith("192.0.2."), "an address for documentation"


@pytest.mark.parametrize("name", EXPECTING)
def test_ids_are_those_of_known_cards(name: str) -> None:
    found = expectation(yaml.safe_load(EXPECTING[name].read_text())["hostcheck_expect"], name)
    assert all(gpu_ids.product(gpu_ids.INTEL, id) for id in found.gpus.ids)


@pytest.mark.parametrize(("name", "host"), [("lab_two_card", "two-card-gen5"), ("lab_four_card", "four-card-gen4")])
def test_the_lab_hosts_are_what_their_class_says(name: str, host: str) -> None:
    wish = yaml.safe_load(EXPECTING[name].read_text())["hostcheck_expect"]
    report = replay.report(replay.host(host), wish)
    assert report.exit == 0
    assert [one.id for one in report.findings if one.status in (Status.fail, Status.warn, Status.unknown)] == []


def test_the_wrong_class_is_told() -> None:
    wish = yaml.safe_load(EXPECTING["lab_four_card"].read_text())["hostcheck_expect"]
    report = replay.report(replay.host("two-card-gen5"), wish)
    assert any(one.id == "gpu.enumeration" and "2 of 4 cards" in one.seen for one in report.findings)
