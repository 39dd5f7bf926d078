"""A recording replays: what was read through the recorder reads the same from what it kept."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hostcheck.onhost.gather import gather
from hostcheck.onhost.plain import to_plain
from hostcheck.onhost.reader import LiveReader
from hostcheck.onhost.record import record
from hostcheck.onhost.recording import RecordedReader, Recorder, dump, load
from tests import replay


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "sys/devices/pci0000:00/0000:00:01.0").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "sys/devices/pci0000:00/0000:00:01.0/vendor").write_text("0x8086\n")
    (tmp_path / "sys/devices/pci0000:00/0000:00:01.0/config").write_bytes(bytes(range(256)))
    (tmp_path / "sys/bus/pci/devices/0000:00:01.0").symlink_to("../../../devices/pci0000:00/0000:00:01.0")
    (tmp_path / "sys/empty").mkdir()
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/tool").write_text("#!/bin/sh\nprintf 'a\\nb\\n'; echo no >&2; exit 5\n")
    (tmp_path / "usr/bin/tool").chmod(0o755)
    return tmp_path


def test_round_trip(tree: Path) -> None:
    recorder = Recorder(LiveReader(str(tree)))
    device = "/sys/bus/pci/devices/0000:00:01.0"

    def read(reader: LiveReader | Recorder | RecordedReader) -> list[object]:
        lines = reader.lines(["tool", "-x"])
        return [
            reader.names("/sys/bus/pci/devices"),
            reader.resolve(device),
            reader.line(f"{device}/vendor"),
            reader.data(f"{device}/config"),
            reader.text(f"{device}/none").unread,
            reader.link(device),
            reader.names("/sys/empty"),
            reader.names("/sys/none").unread,
            reader.stat(f"{device}/vendor"),
            list(lines),
            lines.end,
            reader.run(["tool"]),
            reader.run(["none"]).unread,
        ]

    first = read(recorder)
    assert first == read(LiveReader(str(tree)))
    recording = load(dump(recorder.recording(0.0)))
    assert read(RecordedReader(recording)) == first
    assert recording["files"]["/sys/devices/pci0000:00/0000:00:01.0/vendor"] == "0x8086\n"
    assert recording["links"][device] == "../../../devices/pci0000:00/0000:00:01.0"
    assert set(recording["files"]) & {"/sys/empty/"}


def test_names_that_were_listed_but_not_read_keep_their_place(tree: Path) -> None:
    recorder = Recorder(LiveReader(str(tree)))
    recorder.names("/sys/devices/pci0000:00/0000:00:01.0")
    recording = recorder.recording(0.0)
    again = RecordedReader(recording)
    assert again.names("/sys/devices/pci0000:00/0000:00:01.0").value == ("config", "vendor")
    assert again.text("/sys/devices/pci0000:00/0000:00:01.0/vendor").unread == "io"


@pytest.mark.skipif(os.geteuid() == 0, reason="root is refused nothing")
def test_a_refusal_is_kept_as_one(tree: Path) -> None:
    (tree / "sys/devices/pci0000:00/0000:00:01.0/vendor").chmod(0)
    recorder = Recorder(LiveReader(str(tree)))
    assert recorder.text("/sys/bus/pci/devices/0000:00:01.0/vendor").unread == "permission"
    again = RecordedReader(recorder.recording(0.0))
    assert again.text("/sys/bus/pci/devices/0000:00:01.0/vendor").unread == "permission"


def test_this_machine_recorded_and_replayed_gives_the_same_facts() -> None:
    facts, recording = record(LiveReader(), redact=False)
    again = gather(RecordedReader(load(dump(recording))))
    live, replayed = json.loads(json.dumps(to_plain(facts))), json.loads(json.dumps(to_plain(again)))
    assert replayed == live


@pytest.mark.parametrize("name", replay.host_names())
def test_a_recorded_host_recorded_again_gives_the_same_facts(name: str) -> None:
    recording = replay.host(name)
    facts, again = record(RecordedReader(recording), redact=False)
    replayed = gather(RecordedReader(load(dump(again))))
    assert to_plain(replayed) == to_plain(facts)


@pytest.mark.parametrize("name", replay.host_names())
def test_a_redacted_recording_gives_the_same_findings(name: str) -> None:
    recording = replay.host(name)
    _, redacted = record(RecordedReader(recording))
    before = {(one.id, str(one.subject), one.status) for one in replay.report(recording).findings}
    after = {(one.id, str(one.subject), one.status) for one in replay.report(load(dump(redacted))).findings}
    assert after == before


@pytest.mark.parametrize("name", replay.host_names())
def test_recorded_hosts_say_where_they_come_from(name: str) -> None:
    origin = replay.host(name)["origin"]
    assert origin == "recorded" or origin.startswith("rebuilt: ")
