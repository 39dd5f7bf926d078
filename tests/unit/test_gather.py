"""Gather: a group that raises, hangs, dies or was not asked for costs only itself."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostcheck.assess import facts_from
from hostcheck.onhost import gather as module
from hostcheck.onhost.gather import GROUPS, Facts, Group, Options, closure, gather
from hostcheck.onhost.plain import to_plain
from hostcheck.onhost.reader import LiveReader, Reader, Reading
from hostcheck.onhost.readings.aspm import Aspm
from hostcheck.onhost.readings.holders import Holder
from hostcheck.onhost.recording import RecordedReader, Recorder, empty
from tests import replay


def readings(group: Any) -> list[Reading[Any]]:
    return [getattr(group, field.name) for field in dataclasses.fields(group)]


def with_aspm(monkeypatch: pytest.MonkeyPatch, read: Callable[..., Any], deadline: float = 20.0) -> None:
    monkeypatch.setitem(module.GROUPS, "aspm", Group(read, (), device=True, deadline=deadline))


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return LiveReader(str(tmp_path))


def gather_aspm(reader: Reader, deadline: float = 60.0) -> Aspm:
    return gather(reader, subset=["aspm"], deadline=deadline).aspm


def test_every_field_of_every_group_is_a_reading() -> None:
    facts = gather(RecordedReader(empty(0.0)))
    for name in GROUPS:
        assert all(isinstance(reading, Reading) for reading in readings(getattr(facts, name))), name


def test_a_host_with_nothing_is_unread_everywhere_and_survives_the_way_to_the_controller() -> None:
    facts = gather(RecordedReader(empty(0.0)))
    assert facts_from(to_plain(facts)) == facts
    assert facts.identity.kernel.unread == "absent"


def test_unknown_keys_from_a_host_are_refused() -> None:
    data = to_plain(gather(RecordedReader(empty(0.0))))
    data["aspm"]["surprise"] = 1
    with pytest.raises(ValueError, match=r"aspm\.surprise"):
        facts_from(data)
    with pytest.raises(ValueError, match="facts"):
        facts_from({"schema": "x"})


def test_a_group_that_raises_costs_itself(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Reader) -> Aspm:
        raise KeyError("defect")

    with_aspm(monkeypatch, broken)
    facts = gather(reader)
    assert {reading.unread for reading in readings(facts.aspm)} == {"not_understood"}
    assert "KeyError" in facts.aspm.policy.detail
    assert facts.identity.kernel.unread == "absent"


def test_a_group_that_ignores_every_signal_but_kill_is_ended(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(_: Reader) -> Aspm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
        raise AssertionError

    with_aspm(monkeypatch, hangs, deadline=0.5)
    assert {reading.unread for reading in readings(gather_aspm(reader))} == {"timeout"}


def test_the_command_of_a_group_that_hangs_is_ended_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    tool = tmp_path / "usr/bin/tool"
    tool.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nsleep 600\n")
    tool.chmod(0o755)
    with_aspm(monkeypatch, lambda reader: reader.run(["tool"], timeout=500), deadline=1.0)
    assert gather_aspm(LiveReader(str(tmp_path))).policy.unread == "timeout"
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            break
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def forks(monkeypatch: pytest.MonkeyPatch, device: Any) -> int:
    """How many children the group aspm takes when its spec says so of devices."""
    real, started = os.fork, []
    monkeypatch.setattr(os, "fork", lambda: started.append(1) or real())
    monkeypatch.setitem(module.GROUPS, "aspm", Group(lambda reader, options: policy(), ("options",), device=device))
    gather(LiveReader("/nonexistent"), subset=["aspm"])
    return len(started)


def policy() -> Aspm:
    return Aspm(*(Reading.no("absent") for _ in dataclasses.fields(Aspm)))


def test_a_group_that_has_no_device_to_touch_takes_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    assert forks(monkeypatch, lambda options: options.wake) == 0
    assert forks(monkeypatch, lambda options: not options.wake) == 1
    assert forks(monkeypatch, True) == 1


@pytest.mark.parametrize("name", ["containers", "throttle", "gpu_state", "xpu_smi", "rates"])
def test_groups_that_call_into_cards_take_a_child_where_there_is_one(name: str) -> None:
    touches = GROUPS[name].device
    assert callable(touches)
    for host, there in (("four-card-gen4", True), ("virtual-machine", False)):
        facts = gather(replay_reader(host), Options(sample_seconds=1.0 if there else 0.0))
        given = {need: getattr(facts, need) for need in GROUPS[name].needs}
        if name == "containers":
            held = Reading((Holder(7, "vllm", "/", "renderD128", ""),) if there else (), "/proc/*/fd")
            given = {"holders": dataclasses.replace(facts.holders, render=held)}
        assert touches(**given) == there, (name, host)


def replay_reader(host: str) -> Reader:
    return RecordedReader(replay.host(host))


def test_a_group_whose_child_dies(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(_: Reader) -> Aspm:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    with_aspm(monkeypatch, dies)
    assert {reading.unread for reading in readings(gather_aspm(reader))} == {"io"}


def test_what_a_child_read_is_in_the_recording(tmp_path: Path) -> None:
    (tmp_path / "sys/module/pcie_aspm/parameters").mkdir(parents=True)
    (tmp_path / "sys/module/pcie_aspm/parameters/policy").write_text("[default] performance\n")
    recorder = Recorder(LiveReader(str(tmp_path)))
    monkeypatch = pytest.MonkeyPatch()
    with_aspm(monkeypatch, GROUPS["aspm"].read)
    try:
        gather(recorder, subset=["aspm"])
    finally:
        monkeypatch.undo()
    assert "/sys/module/pcie_aspm/parameters/policy" in recorder.recording(0.0)["files"]


def test_the_deadline_of_the_whole_read_leaves_the_rest_unread(reader: Reader) -> None:
    facts = gather(reader, deadline=0.0)
    assert {reading.unread for name in GROUPS for reading in readings(getattr(facts, name))} == {"timeout"}


def test_subsets_bring_what_they_need_and_nothing_else(reader: Reader) -> None:
    assert closure(["identity"]) == ("identity",)
    assert set(closure(["pcie"])) == {"kernel_log", "pcie"}
    facts = gather(reader, subset=["identity"])
    assert {reading.unread for reading in readings(facts.pcie)} == {"not_asked"}
    with pytest.raises(ValueError, match="no such subset: nothing"):
        closure(["nothing"])


def test_options_are_kept_in_the_facts_and_refused_when_wrong(reader: Reader) -> None:
    assert gather(reader, Options(under_load=True), ["identity"]).options.under_load
    with pytest.raises(ValueError, match="xpu_smi"):
        Options(xpu_smi="sometimes")


def test_needs_name_earlier_groups() -> None:
    names = [field.name for field in dataclasses.fields(Facts)]
    for name, group in GROUPS.items():
        assert all(names.index(need) < names.index(name) for need in group.needs)


def test_importing_gather_is_light() -> None:
    heavy = {"pydantic", "psutil", "pyudev", "rich", "yaml", "torch", "ansible", "asyncio", "http", "urllib.request"}
    code = "import sys, hostcheck.onhost.gather; print('\\n'.join(sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert ran.returncode == 0, ran.stderr
    assert not heavy & set(ran.stdout.split())
