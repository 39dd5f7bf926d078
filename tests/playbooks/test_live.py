"""The live tests, run on hosts laid out from recordings; and not run where no host is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests import replay
from tests.playbooks.test_audit import faulty

ROOT = Path(__file__).parents[2]


def live(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ANSIBLE_LOCAL_TEMP": str(tmp_path / "ansible"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("ANSIBLE_CONFIG", None)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--no-header", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        stdin=subprocess.DEVNULL,
    )


def fleet(tmp_path: Path, hosts: dict[str, dict[str, Any]]) -> tuple[str, str]:
    common = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    path = tmp_path / "inventory.yml"
    group = {"hosts": {name: {**common, **own} for name, own in hosts.items()}}
    path.write_text(yaml.safe_dump({"gpu_hosts": group}))
    return "--hosts=ansible://gpu_hosts", f"--ansible-inventory={path}"


def counting(root: Path) -> Path:
    """Let the host count how often it is read."""
    tool = root / "usr/bin/lscpu"
    first, _, rest = tool.read_text().partition("\n")
    tool.write_text(f'{first}\necho read >> "$HOSTCHECK_ROOT/count"\n{rest}')
    return root


def test_good_and_faulty_hosts(tmp_path: Path) -> None:
    good = counting(replay.lay_out(replay.host("four-card-gen4"), tmp_path / "good"))
    bad = faulty(tmp_path)
    wish = {"gpus": {"count": 4}}
    hosts: dict[str, dict[str, Any]] = {
        "good": {"hostcheck_root": str(good), "hostcheck_expect": wish},
        "bad": {"hostcheck_root": str(bad), "hostcheck_expect": wish},
        "mistaken": {"hostcheck_root": str(good), "hostcheck_expect": {"gpu": 4}},
        "nowhere": {"hostcheck_root": str(tmp_path / "none")},
    }
    ran = live(tmp_path, "tests/live", *fleet(tmp_path, hosts), f"--junitxml={tmp_path}/live.xml")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert (good / "count").read_text() == "read\n", "a host is read once, however many tests ask"
    ended: dict[str, dict[str, str]] = {name: {} for name in hosts}
    for case in ElementTree.parse(tmp_path / "live.xml").iter("testcase"):
        name, host, what = re.fullmatch(r"(\w+)\[ansible://(\w+?)(?:-(.+))?\]", case.attrib["name"]).groups()  # type: ignore[union-attr]
        ended[host][what or name] = next((child.tag for child in case if child.tag != "properties"), "passed")
    assert set(ended["good"].values()) == {"passed", "skipped"}
    assert ended["good"]["gpu.fault"] == ended["good"]["test_settings_read_the_same"] == "passed"
    assert ended["good"]["test_every_card_is_where_it_was_read"] == "passed"
    assert [what for what, end in ended["bad"].items() if end == "failure"] == ["gpu.wedged"]
    assert set(ended["mistaken"].values()) == set(ended["nowhere"].values()) == {"error"}
    assert "gpu: unknown key" in ran.stdout
    assert "is not a directory" in ran.stdout


@pytest.mark.parametrize("arguments", [("tests/live",), ("tests/live", "tests/unit/test_docs.py")])
def test_without_hosts_nothing_is_collected(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ran = live(tmp_path, "--collect-only", *arguments)
    assert "test_live" not in ran.stdout
    assert ran.returncode == (5 if len(arguments) == 1 else 0), ran.stdout + ran.stderr


def test_hosts_without_an_inventory_are_told_so(tmp_path: Path) -> None:
    ran = live(tmp_path, "tests/live", "--hosts=local://", "-k", "kernel")
    assert ran.returncode == 1
    assert "--hosts=ansible://GROUP" in ran.stdout
