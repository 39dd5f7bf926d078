"""The real ansible-playbook learning from laid-out hosts."""

from __future__ import annotations

from pathlib import Path

import yaml

from hostcheck.expectations import expectation
from tests import replay
from tests.playbooks.test_audit import inventory, play


def test_learn_writes_what_the_hosts_share_and_changes_nothing_else(tmp_path: Path) -> None:
    hosts = {}
    for name in ("four-card-gen4", "two-card-gen5"):
        (tmp_path / name).mkdir()
        hosts[name] = {"hostcheck_root": str(replay.lay_out(replay.host(name), tmp_path / name))}
    where = inventory(tmp_path, hosts)
    given = [
        "-i",
        where,
        "-e",
        f"hostcheck_learned={tmp_path}/class.yml",
        "-e",
        f"hostcheck_learn_facts={tmp_path}/facts",
    ]
    checked = play(tmp_path, *given, "--check", playbook="learn.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert not (tmp_path / "class.yml").exists()
    assert "hostcheck_expect" in checked.stdout
    played = play(tmp_path, *given, playbook="learn.yml")
    assert played.returncode == 0, played.stdout + played.stderr
    found = yaml.safe_load((tmp_path / "class.yml").read_text())["hostcheck_expect"]
    assert expectation(found).gpus.ids == ("e223",)
    assert expectation(found).gpus.count is None
    assert (tmp_path / "facts/two-card-gen5.json").stat().st_mode & 0o777 == 0o600
