"""The archive for hosts: the same bytes for the same source, and it runs by itself."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hostcheck import __version__, agent
from tests.ready_host import FAULT, FIRST, ReadyHost
from tests.unit.test_shipped_code import old_python


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agent")
    assert agent.main([str(folder)]) == 0
    return folder / agent.NAME


def run(archive: Path, *arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    # A working directory and a path with a package of the same name, which must not be what is imported.
    trap = archive.parent / "trap/hostcheck"
    trap.mkdir(parents=True, exist_ok=True)
    (trap / "__init__.py").write_text("raise SystemExit('the wrong hostcheck')\n")
    return subprocess.run(
        [python, "-I", str(archive), *arguments],
        cwd=trap.parent,
        env={**os.environ, "PYTHONPATH": str(trap.parent)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_same_source_gives_the_same_bytes() -> None:
    files = agent.sources()
    once = agent.pack(files)
    assert agent.pack(dict(reversed(list(files.items())))) == once
    other = {**files, "hostcheck/__init__.py": files["hostcheck/__init__.py"] + b"\n"}
    assert agent.pack(other) != once


def test_time_and_owner_of_the_source_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "hostcheck"
    (folder / "onhost").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "onhost/__init__.py").write_text("")
    monkeypatch.setattr(agent, "__file__", str(folder / "agent.py"))
    first = agent.pack(agent.sources())
    os.utime(folder / "__init__.py", (1, 1))
    (folder / "__init__.py").chmod(0o600)
    assert agent.pack(agent.sources()) == first


def test_it_holds_what_runs_on_hosts_and_no_more(archive: Path) -> None:
    names = set(zipfile.ZipFile(archive).namelist())
    assert {"__main__.py", "hostcheck/__init__.py", "hostcheck/onhost/ready/mark.py"} <= names
    assert all(name.startswith("hostcheck/onhost/") or name.count("/") < 2 for name in names)
    assert names - {name for name in names if name.startswith("hostcheck/onhost/")} == {
        "__main__.py",
        "hostcheck/__init__.py",
    }
    assert archive.read_bytes().startswith(b"#!/usr/bin/python3 -I\n")


def test_version_and_digest_stand_beside_it_and_are_printed(archive: Path) -> None:
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert (archive.parent / f"{agent.NAME}.sha256").read_text() == f"{digest}  {agent.NAME}\n"
    assert (archive.parent / f"{agent.NAME}.version").read_text() == f"{__version__}\n"
    assert run(archive, "--version").stdout == f"hostcheck {__version__}, sha256 {digest}\n"


def test_an_archive_that_was_changed_says_so(archive: Path, tmp_path: Path) -> None:
    other = tmp_path / agent.NAME
    other.write_bytes(archive.read_bytes().replace(b"wrong use", b"wrong_use"))
    (tmp_path / f"{agent.NAME}.sha256").write_text((archive.parent / f"{agent.NAME}.sha256").read_text())
    assert "which is not the digest in" in run(other, "--version").stdout


def test_ready_answers_as_on_the_controller(archive: Path, tmp_path: Path) -> None:
    host = ReadyHost(tmp_path)
    ask = ("ready", "--root", str(tmp_path))
    assert run(archive, *ask).returncode == 1
    host.passes()
    good = run(archive, *ask)
    assert (good.returncode, good.stderr) == (0, "")
    host.say(FAULT.format(FIRST))
    bad = run(archive, *ask)
    assert bad.returncode == 1
    assert bad.stdout.startswith("not ready: xe.engine_reset")
    host.path("/usr/bin/dmesg").unlink()
    assert run(archive, *ask).returncode == 3


def test_wrong_use_is_two(archive: Path, tmp_path: Path) -> None:
    for arguments in (
        (),
        ("none",),
        ("ready", "--wrong"),
        ("ready", "--root", str(tmp_path / "none")),
        ("gather", "x"),
    ):
        ran = run(archive, *arguments)
        assert ran.returncode == 2, arguments
        assert ran.stderr.startswith("hostcheck: ")


def test_facts_and_recordings(archive: Path, tmp_path: Path) -> None:
    ReadyHost(tmp_path)
    facts = run(archive, "gather", "identity", "--root", str(tmp_path))
    assert '"schema": "hostcheck/facts/1"' in facts.stdout
    recording = run(archive, "record", "--root", str(tmp_path))
    assert '"schema": "hostcheck/recording/1"' in recording.stdout


@pytest.mark.skipif(old_python() is None, reason="no Python 3.9 on this machine")
def test_it_runs_on_a_real_python_3_9(archive: Path, tmp_path: Path) -> None:
    ReadyHost(tmp_path).passes()
    ran = run(archive, "ready", "--root", str(tmp_path), python=str(old_python()))
    assert (ran.returncode, ran.stderr) == (0, "")
