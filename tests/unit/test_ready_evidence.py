"""Evidence of a device loss: kept for root alone, within limits, and never at the price of the node."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from hostcheck.onhost.ready import evidence
from hostcheck.onhost.ready.mark import EVIDENCE
from hostcheck.onhost.settings.files import Failed, Writer
from tests.ready_host import BOOTS, FAULT, FIRST, SECOND, ReadyHost

KEPT = f"{EVIDENCE}/{BOOTS[0]}"


@pytest.fixture
def host(tmp_path: Path) -> ReadyHost:
    host = ReadyHost(tmp_path)
    host.passes()
    host.say("eth0: up")
    host.say(FAULT.format(SECOND))
    return host


def keep(host: ReadyHost, **more: Any) -> dict[str, Any]:
    return host.ask("evidence", reason="the all-reduce lost a device", **more)


def test_dump_log_and_readings_are_kept_and_the_mark_is_gone(host: ReadyHost) -> None:
    data = bytes(range(256)) * 4000
    node = host.dump(3, SECOND, data)
    answer = keep(host)
    kept = answer["evidence"]
    assert "msg" not in answer
    assert (kept["folder"], kept["was_ready"], kept["cut"]) == (KEPT, True, {})
    assert not host.mark.exists()
    assert host.path(f"{KEPT}/devcd3-0000-43-00.0.coredump").read_bytes() == data
    assert kept["files"]["devcd3-0000-43-00.0.coredump"] == len(data)
    assert node.read_bytes() == data  # only read
    names = {name.split("-2")[0]: name for name in kept["files"]}
    log = host.path(f"{KEPT}/{names['kernel-log']}").read_text()
    assert log.count(FAULT.format(SECOND)) == 2
    assert log.index("lines of the cards") < log.index(FAULT.format(SECOND)) < log.index("eth0: up")
    facts = json.loads(host.path(f"{KEPT}/{names['readings']}").read_text())
    assert facts["kernel_log"]["faulted"]["value"] == [SECOND]
    told = json.loads(host.path(f"{KEPT}/{names['evidence']}").read_text())
    assert told["schema"] == "hostcheck/evidence/1"
    assert told["reason"] == "the all-reduce lost a device"
    assert answer["rung"]["number"] == 3  # evidence is kept, and the fault is long over


def test_it_is_for_root_alone(host: ReadyHost) -> None:
    host.dump(3, SECOND, b"x")
    old = os.umask(0)
    try:
        keep(host)
    finally:
        os.umask(old)
    for folder in ("/var/lib/hostcheck", EVIDENCE, KEPT):
        assert stat.S_IMODE(host.path(folder).stat().st_mode) == 0o700
    files = list(host.path(KEPT).iterdir())
    assert len(files) == 4
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_a_dump_over_the_limit_keeps_its_beginning_and_says_so(host: ReadyHost) -> None:
    data = os.urandom(100_000)
    host.dump(3, SECOND, data)
    kept = keep(host, dump_limit=70_000)["evidence"]
    name = "devcd3-0000-43-00.0.coredump"
    assert host.path(f"{KEPT}/{name}").read_bytes() == data[:70_000]
    assert kept["cut"] == {name: "only its first 70000 bytes: at most 70000 bytes of a dump are kept"}
    host.dump(4, FIRST, data[:70_000])
    assert "devcd4-0000-23-00.0.coredump" not in keep(host, dump_limit=70_000)["evidence"]["cut"]  # it just fits


def test_all_evidence_together_has_a_limit_and_none_is_deleted(host: ReadyHost) -> None:
    host.dump(1, FIRST, b"a" * 60_000)
    host.dump(2, SECOND, b"b" * 60_000)
    kept = keep(host, total_limit=evidence.SMALL + 100_000)["evidence"]
    assert kept["files"]["devcd1-0000-23-00.0.coredump"] == 60_000
    assert kept["files"]["devcd2-0000-43-00.0.coredump"] == 40_000
    assert "evidence takes at most" in kept["cut"]["devcd2-0000-43-00.0.coredump"]
    host.dump(3, SECOND, b"c")
    later = keep(host, total_limit=evidence.SMALL + 100_000)["evidence"]
    assert later["cut"] == {
        "devcd3-0000-43-00.0.coredump": "not kept: evidence takes at most 8 MiB in all, and none is deleted"
    }
    assert host.path(f"{KEPT}/devcd1-0000-23-00.0.coredump").stat().st_size == 60_000


def test_a_full_budget_keeps_nothing_and_says_of_each_what_is_missing(host: ReadyHost) -> None:
    host.dump(1, FIRST, b"a")
    answer = keep(host, total_limit=0)
    assert answer["evidence"]["files"] == {}
    assert len(answer["evidence"]["cut"]) == 4
    assert not host.mark.exists()


def test_the_disk_is_not_filled(host: ReadyHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.dump(1, FIRST, b"a" * 1000)
    monkeypatch.setattr(evidence, "FREE", 1 << 60)
    assert "stay free on the disk" in keep(host)["evidence"]["cut"]["devcd1-0000-23-00.0.coredump"]


def test_a_dump_is_kept_once(host: ReadyHost) -> None:
    host.dump(1, FIRST, b"first")
    keep(host)
    host.path("/sys/class/devcoredump/devcd1/data").write_bytes(b"other")
    assert "devcd1-0000-23-00.0.coredump" not in keep(host)["evidence"]["files"]
    assert host.path(f"{KEPT}/devcd1-0000-23-00.0.coredump").read_bytes() == b"first"


def test_a_dump_that_expires_meanwhile_is_said(host: ReadyHost) -> None:
    host.dump(1, FIRST, b"x").unlink()
    kept = keep(host)["evidence"]
    assert "ENOENT" in kept["cut"]["devcd1-0000-23-00.0.coredump"]
    assert sorted(name.split("-2")[0] for name in kept["files"]) == ["evidence", "kernel-log", "readings"]
    assert not list(host.path(KEPT).glob(".*"))


def test_a_dump_that_hangs_costs_itself_only(host: ReadyHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.dump(1, FIRST, b"x")
    monkeypatch.setattr(Writer, "copy", lambda *_: os.read(os.pipe()[0], 1))
    with pytest.raises(Failed, match="could not be copied within 0 s"):
        evidence._copied(host.writer, "/sys/class/devcoredump/devcd1/data", "/var/x", 10, 0.2)


def test_a_log_that_is_refused_is_said(host: ReadyHost) -> None:
    host.path("/usr/bin/dmesg").unlink()
    kept = keep(host)["evidence"]
    assert kept["cut"]["kernel log"].startswith("not kept: tool_missing")


def test_a_long_log_is_cut_and_says_so(host: ReadyHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "LOG_LIMIT", 200)
    for number in range(20):
        host.say(f"xe {FIRST}: [drm] line {number}")
    kept = keep(host)["evidence"]
    assert "of 21 lines" in kept["cut"]["kernel log, lines of the cards and of the way to them"]


def test_a_place_that_cannot_be_written_is_a_failure_and_the_mark_is_gone(host: ReadyHost) -> None:
    host.put("/var/lib/hostcheck", "a file")
    answer = keep(host)
    assert str(answer["msg"]).startswith("no evidence was kept: /var/lib/hostcheck")
    assert not host.mark.exists()
