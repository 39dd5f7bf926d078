"""The probe with the real ansible-playbook: on this machine's CPU, and on roots whose cards must not be opened."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hostcheck import receipts
from tests import plays, replay
from tests.unit.test_probe_guards import HELD, SICK
from tests.unit.test_probe_session import may_unshare, namespaces
from tests.unit.test_probe_worker import torch_marked, torch_python

ROOT = Path(__file__).parents[2]
CARDS = ["0000:23:00.0", "0000:27:00.0", "0000:43:00.0", "0000:47:00.0"]


def play(tmp_path: Path, hosts: dict[str, dict[str, Any]], *arguments: str) -> subprocess.CompletedProcess[str]:
    inventory = plays.inventory(tmp_path, {name: {**plays.HERE, **own} for name, own in hosts.items()})
    return plays.run(tmp_path, plays.playbook(inventory, "probe.yml", *arguments))


def marking(tmp_path: Path) -> tuple[Path, list[str]]:
    """A command that leaves a mark when it is started, and the mark."""
    mark = tmp_path / "started"
    return mark, ["sh", "-c", f"touch {mark}; exit 9"]


def rooted(tmp_path: Path, name: str, change: dict[str, Any]) -> str:
    return str(replay.lay_out(replay.changed(replay.host("four-card-gen4"), change), tmp_path / f"root-{name}"))


@torch_marked
def test_this_cpu(tmp_path: Path) -> None:
    """In namespaces of its own where that is allowed, as in a container."""
    inside = namespaces() if may_unshare() else []
    host = {
        "latency_probe_command": [*inside, torch_python()],
        "latency_probe_device": "cpu",
        "latency_probe_quick": True,
        "latency_probe_seed": 7,
        "hostcheck_receipts": str(tmp_path / "receipts"),
    }
    played = play(tmp_path, {"here": host})
    assert played.returncode == 0, played.stdout + played.stderr
    (path,) = (tmp_path / "receipts").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.name.startswith("here-cpu-")
    receipt = receipts.load(path)
    assert receipts.verify(receipt) == []
    assert receipt["seed"] == 7
    assert receipt["workers"][0]["identity"]["device"] == "cpu"
    assert receipt["before"]["host"]["kernel"] == os.uname().release
    said = played.stdout
    assert said.index("here: the CPU; about 42 s with ") < said.index("TASK [latency_probe : Measure]")
    assert "cpu: CPU figures: they say nothing about an accelerator" in said
    assert str(path) in said
    assert '"samples"' not in said  # raw samples are in the file, not on the screen
    assert "changed=0" in said


def test_check_mode_says_what_it_would_run_and_runs_nothing(tmp_path: Path) -> None:
    mark, command = marking(tmp_path)
    host = {"latency_probe_command": command, "hostcheck_root": rooted(tmp_path, "healthy", {})}
    played = play(tmp_path, {"one": host}, "--check", "--diff")
    assert played.returncode == 0, played.stdout + played.stderr
    assert f"one: {', '.join(CARDS)}; about " in played.stdout
    assert "nothing is started in check mode" in played.stdout
    assert not mark.exists()
    assert not (tmp_path / "reports/receipts").exists()


def test_cards_that_must_not_be_opened_give_invalid_receipts_and_no_worker(tmp_path: Path) -> None:
    mark, command = marking(tmp_path)
    changes = {"suspended": SICK["suspended"][0], "faulted": SICK["reset"][0], "held": HELD}
    hosts = {
        name: {"latency_probe_command": command, "hostcheck_root": rooted(tmp_path, name, change)}
        for name, change in changes.items()
    }
    played = play(tmp_path, hosts)
    assert played.returncode == 2
    assert not mark.exists(), played.stdout
    words = {"suspended": "is suspended", "faulted": "faulted on this boot (xe.engine_reset)", "held": "is in use"}
    folder = tmp_path / "reports/receipts"
    for name, said in words.items():
        assert f"card: 0000:43:00.0 {said}" in played.stdout
        found = sorted(folder.glob(f"{name}-0000-*.json"))
        assert [path.name[len(name) + 1 :][:12].replace("-", ":", 2) for path in found] == CARDS
        for path in found:
            receipt = receipts.load(path)
            assert receipts.verify(receipt) == []
            assert (receipt["validity"]["valid"], receipt["workers"], receipt["blocks"]) == (False, [], [])
    assert "PLAY RECAP" in played.stdout
    assert played.stdout.count("failed=1") == 3
    assert " us," not in played.stdout  # no figure to quote


def test_a_worker_that_ends_at_once_is_invalid(tmp_path: Path) -> None:
    mark, command = marking(tmp_path)
    host = {"latency_probe_command": command, "hostcheck_root": rooted(tmp_path, "healthy", {})}
    played = play(tmp_path, {"one": host}, "-e", json.dumps({"latency_probe_cards": CARDS[:1]}))
    assert played.returncode == 2
    assert mark.exists()
    assert "the devices could not be listed: died: exit status 9" in played.stdout
    assert len(list((tmp_path / "reports/receipts").iterdir())) == 1


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "command is empty"),
        (
            {"latency_probe_command": ["true"], "latency_probe_device": "gpu"},
            "value of latency_probe_device must be one of",
        ),
        ({"latency_probe_command": ["true"], "latency_probe_cards": ["0000:99:00.0"]}, "no GPU 0000:99:00.0"),
    ],
)
def test_mistakes_are_said(tmp_path: Path, variables: dict[str, Any], said: str) -> None:
    played = play(tmp_path, {"one": {"hostcheck_root": rooted(tmp_path, "healthy", {}), **variables}})
    assert played.returncode == 2
    assert said in played.stdout
    assert not (tmp_path / "reports/receipts").exists()
