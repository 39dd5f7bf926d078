"""The module setting_trial with the real ansible-playbook, which is killed in the middle of a block."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hostcheck import receipts
from hostcheck.onhost.trials import journal, restorer
from tests import plays
from tests.settings_host import Tree, cpus
from tests.trial_host import GOVERNOR, governed

ROOT = Path(__file__).parents[2]
PLAY = [{"hosts": "all", "gather_facts": False, "tasks": [{"name": "Try", "setting_trial": "{{ trial }}"}]}]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return cpus(Tree(tmp_path / "root"), count=2)


def play(tree: Tree, *more: str, **arguments: Any) -> subprocess.Popen[str]:
    folder = tree.root.parent
    (folder / "play.yml").write_text(json.dumps(PLAY))
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory = plays.inventory(folder, {"one": host})
    trial = {
        "device": "cpu",
        "pin": False,
        "quick": True,
        "root": str(tree.root),
        "toggles": [{"name": "cpu_governor", "b": {"governor": "performance"}}],
        **arguments,
    }
    return subprocess.Popen(
        [
            str(plays.TOOLS / "ansible-playbook"),
            "-i",
            inventory,
            "play.yml",
            "-v",
            "-e",
            json.dumps({"trial": trial}),
            *more,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **plays.how(folder),
    )


def ended(running: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = running.communicate(timeout=280)
    return running.returncode, said


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.long
def test_kill_9_of_ansible_in_the_middle_of_a_block(tree: Tree) -> None:
    running = play(tree, command=governed(tree, block_s=0.3))
    kept = tree.path(journal.FOLDER)
    end = time.monotonic() + 200
    while tree.text(GOVERNOR).strip() != "performance":
        assert time.monotonic() < end, ended(running)
        time.sleep(0.05)
    (folder,) = kept.iterdir()
    module = int(json.loads((folder / restorer.PLAN).read_text())["pid"])
    doomed = [parent(module)]  # everything between the module and ansible-playbook, and that
    while doomed[-1] != running.pid:
        doomed.append(parent(doomed[-1]))
    for pid in reversed(doomed):
        os.kill(pid, signal.SIGKILL)
    running.communicate()
    while Path(f"/proc/{module}").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert tree.text(GOVERNOR) == "schedutil\n"
    assert not (folder / restorer.PLAN).exists()

    code, said = ended(play(tree, state="collect"))
    assert code == 0, said
    (path,) = (tree.root.parent / "reports/receipts").iterdir()
    receipt = receipts.load(path)
    assert receipts.verify(receipt) == []
    assert receipt["interrupted"] == "nobody listens any more: the controller or the connection is gone"
    assert receipt["verdict"]["word"] == "invalid"
    assert not kept.exists()


def test_check_mode_says_what_stands_against_it_and_does_not_fail(tree: Tree) -> None:
    before = tree.snapshot()
    code, said = ended(
        play(tree, "--check", toggles=[{"name": "pcie_aspm", "b": {"policy": "performance"}}], command=["true"])
    )
    assert code == 0, said
    assert '"needs_boot": true' in said
    assert "playbooks/trial_boots.yml" in said
    code, said = ended(play(tree, toggles=[{"name": "cpu_governor", "b": {"governor": "turbo"}}], command=["true"]))
    assert code == 2
    assert "'turbo' is not offered" in said
    assert tree.snapshot() == before
