"""The modules gpu_ready and host_ready, and the role host_agent, by the real ansible-playbook below directories."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.playbooks.test_audit import ROOT, inventory, play
from tests.ready_host import BOOTS, FAULT, FIRST, SECOND, ReadyHost

TOLD = '#!/bin/sh\necho "$1" >> "$HOSTCHECK_ROOT/told"\n'


def test_the_modules_in_a_play(tmp_path: Path) -> None:
    """From the cards to the gate, then a fault, and what is kept of it."""
    host = ReadyHost(tmp_path / "host")
    host.dump(1, "0000:99:00.0", b"of another device")
    host.put("/opt/tell", TOLD, 0o755)
    root = str(host.root)
    hook = {"on_pass": [{"command": ["/opt/tell"]}], "on_fail": [{"command": ["/opt/tell"]}]}
    given = {"state": "present", "passed": True, "boot_id": BOOTS[0], "root": root, **hook}
    say = f"[   50.000000] {FAULT.format(SECOND)}"
    tasks = [
        {"gpu_ready": {"gpus": {"bdfs": [FIRST, SECOND]}, "settle": 0, "root": root}, "register": "cards"},
        {"gpu_ready": {"gpus": {"count": 3}, "timeout": 0, "root": root}, "register": "few", "ignore_errors": True},
        {"host_ready": {"root": root}, "register": "before"},
        {"host_ready": {**given, "log_after": "{{ before.log_end }}"}, "register": "passed"},
        {"ansible.builtin.lineinfile": {"path": f"{root}/log", "line": say}},
        {"host_ready": {"root": root, "log_after": "{{ before.log_end }}"}, "register": "after"},
        {"host_ready": given, "register": "again", "ignore_errors": True},
        {"host_ready": {"state": "evidence", "reason": "a test", "root": root}, "register": "kept"},
        {"ansible.builtin.copy": {"content": "{{ [cards, few, before, passed, after, again, kept] | to_json }}",
                                  "dest": f"{tmp_path}/answers", "mode": "0600"}},
    ]  # fmt: skip
    book = tmp_path / "book.yml"
    book.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    ran = play(tmp_path, "-i", inventory(tmp_path, {"gpu-1": {}}), playbook=str(book))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    cards, few, before, passed, after, again, kept = json.loads((tmp_path / "answers").read_text())
    assert [card["bdf"] for card in cards["cards"]] == [FIRST, SECOND]
    assert few["failed"]
    assert f"cards: 2 of 3 on the bus ({FIRST}, {SECOND})" in few["msg"]
    assert (before["ready"], before["code"], before["boot_id"]) == (False, 1, BOOTS[0])
    assert (passed["ready"], passed["changed"], passed["hooks"][0]["problem"]) == (True, True, "")
    assert after["faults"] == [f"xe.engine_reset of {SECOND} at 50 s: {FAULT.format(SECOND)}"]
    assert after["reason"].startswith("not ready: xe.engine_reset")
    assert not after["changed"]
    assert again["failed"]
    assert again["msg"].startswith("not ready: xe.engine_reset")
    assert not host.mark.exists()
    assert host.path("/told").read_text() == "pass\nfail\n"
    assert set(kept["evidence"]["files"]) >= {"devcd1-0000-99-00.0.coredump"}
    assert host.path(kept["evidence"]["folder"]).is_dir()


def changes(text: str) -> int:
    found = re.search(r"changed=(\d+)", text)
    assert found, text
    return int(found.group(1))


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


def prepared(tmp_path: Path) -> tuple[Path, list[str]]:
    root = tmp_path / "host"
    (root / "usr/local/lib/hostcheck").mkdir(parents=True)
    (root / "usr/local/lib/hostcheck/gpu-pm").write_text("another role's\n")
    return root, ["-i", inventory(tmp_path, {"gpu-1": {"hostcheck_root": str(root)}})]


@pytest.mark.long
def test_the_agent_is_installed_and_undone(tmp_path: Path) -> None:
    root, given = prepared(tmp_path)
    made = play(tmp_path, *given, playbook="agent.yml")
    assert made.returncode == 0, made.stdout + made.stderr
    folder = root / "usr/local/lib/hostcheck"
    assert {path.name for path in folder.iterdir()} == {
        *("gpu-pm", "slurm-hook", "kubernetes-hook"),
        *("hostcheck.pyz", "hostcheck.pyz.sha256", "hostcheck.pyz.version"),
    }
    assert (folder / "hostcheck.pyz").stat().st_mode & 0o777 == 0o755
    units = root / "etc/systemd/system"
    enabled = units / "multi-user.target.wants/hostcheck-ready.path"
    assert enabled.resolve() == units / "hostcheck-ready.path"
    assert (units / "hostcheck-ready.target").read_text() == (
        ROOT / "roles/host_agent/files/hostcheck-ready.target"
    ).read_text()
    gone = play(tmp_path, *given, "--tags", "host_agent", playbook="undo.yml")
    assert gone.returncode == 0, gone.stdout + gone.stderr
    assert files(root) == ["usr/local/lib/hostcheck/gpu-pm"]


@pytest.mark.long
def test_a_check_of_the_agent_changes_nothing_and_a_second_run_neither(tmp_path: Path) -> None:
    root, given = prepared(tmp_path)
    (root / "usr/local/lib/hostcheck/gpu-pm").unlink()
    (root / "usr/local/lib/hostcheck").rmdir()
    checked = play(tmp_path, *given, "--check", playbook="agent.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert files(root) == []
    made = play(tmp_path, *given, playbook="agent.yml")
    assert changes(made.stdout) == changes(checked.stdout) > 0
    assert changes(play(tmp_path, *given, playbook="agent.yml").stdout) == 0
    absent = [*given, "-e", "host_agent_state=absent"]
    checked = play(tmp_path, *absent, "--check", playbook="agent.yml")
    assert files(root) != []
    removed = play(tmp_path, *absent, playbook="agent.yml")
    assert changes(removed.stdout) == changes(checked.stdout) > 0
    assert files(root) == []
    assert not (root / "usr/local/lib/hostcheck").exists()
    assert changes(play(tmp_path, *absent, playbook="agent.yml").stdout) == 0
