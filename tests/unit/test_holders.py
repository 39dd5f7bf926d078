"""Who holds a render node, and what is said when that cannot be known."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost.reader import LiveReader, Reading
from hostcheck.onhost.readings import holders
from hostcheck.onhost.readings.holders import Holder, parse_cgroup, parse_kernel_thread, parse_target
from hostcheck.onhost.recording import RecordedReader, Recorder, dump
from tests import replay

SERVER = {
    "links": {
        "/proc/4242/fd/0": "/dev/null",
        "/proc/4242/fd/7": "/dev/dri/renderD131",
        "/proc/4242/fd/8": "/dev/dri/renderD131",
        "/proc/4242/fd/9": "/dev/dri/renderD128 (deleted)",
        "/proc/77/fd/3": "/dev/dri/card1",
        "/proc/78/fd/3": "/dev/dri/by-path",
    },
    "files": {
        "/proc/4242/comm": "VLLM::EngineCor\n",
        "/proc/4242/cgroup": "0::/system.slice/docker-abc.scope\n",
        "/proc/4242/cmdline": "python\0--token=SECRET\0",
        "/proc/77/comm": "Xorg\n",
        "/proc/77/cgroup": "1:name=systemd:/user.slice\n0::/\n",
        "/proc/78/comm": "bash\n",
    },
}


def read(change: dict[str, Any], host: str = "four-card-gen4") -> holders.Holders:
    return holders.read(RecordedReader(replay.changed(replay.host(host), change)))


def test_holders_are_named_with_their_card() -> None:
    found = read(SERVER)
    assert found.render.value == (
        Holder(77, "Xorg", "/", "card1", "0000:43:00.0"),
        Holder(4242, "VLLM::EngineCor", "/system.slice/docker-abc.scope", "renderD128", "0000:43:00.0"),
        Holder(4242, "VLLM::EngineCor", "/system.slice/docker-abc.scope", "renderD131", "0000:27:00.0"),
    )
    assert found.refused.value == 0


def test_arguments_are_never_read() -> None:
    assert "SECRET" not in repr(read(SERVER))


def test_a_host_that_nobody_uses() -> None:
    assert read({}).render.value == ()


@pytest.mark.parametrize("host", ["four-card-gen4", "two-cards-behind-plx", "amd-card", "nvidia-host", "gpu-vm"])
def test_every_node_leads_to_its_card(host: str) -> None:
    recording = replay.host(host)
    reader = RecordedReader(recording)
    for name in reader.names("/dev/dri").value or ():
        if name.startswith("renderD"):
            by_path = {
                os.path.basename(recording["links"][path]): path for path in recording["links"] if "by-path" in path
            }
            assert holders.address(reader, name) == by_path[name].rsplit("/", 1)[1].split("-")[1]


def test_the_address_is_found_without_sysfs() -> None:
    recording = replay.changed(replay.host("four-card-gen4"), {"remove": ["/sys/"]})
    assert holders.address(RecordedReader(recording), "renderD131") == "0000:27:00.0"


def test_refused_processes_are_counted_and_kernel_threads_are_not() -> None:
    user = "12 (a) b) S 1 1 1 0 -1 4194560 1 0 0 0\n"
    thread = "13 (kworker/0:1) I 2 0 0 0 -1 69238880 0 0 0 0\n"
    change = {
        "files": {
            "/proc/12/fd": {"error": "EACCES"},
            "/proc/12/stat": user,
            "/proc/13/fd": {"error": "EACCES"},
            "/proc/13/stat": thread,
            "/proc/14/fd": {"error": "EACCES"},
        }
    }
    assert read(change).refused.value == 2  # of the third one nothing is known


def test_a_process_that_ends_meanwhile_is_none() -> None:
    found = read({"files": {"/proc/15/comm": "gone\n"}})
    assert found.render.value == ()
    assert found.refused.value == 0


def test_hidden_processes_are_not_nobody() -> None:
    found = read({"remove": ["/proc/1/"]})
    assert found.render.unread == "permission"
    assert found.refused.unread == "permission"


def test_without_nodes_nothing_is_listed() -> None:
    found = read({"remove": ["/dev/dri/", "/proc/"]})
    assert found.render.value == ()


def test_this_process_is_found_by_its_file(tmp_path: pathlib.Path) -> None:
    (tmp_path / "dev/dri").mkdir(parents=True)
    for pid, target in (("1", "/dev/null"), ("5", "/dev/dri/renderD128")):
        (tmp_path / "proc" / pid / "fd").mkdir(parents=True)
        (tmp_path / "proc" / pid / "fd" / "3").symlink_to(target)
        (tmp_path / "proc" / pid / "comm").write_text("python\n")
    found = holders.read(LiveReader(str(tmp_path)))
    assert found.render.value == (Holder(5, "python", "", "renderD128", ""),)


def test_a_recording_holds_nothing_else_that_a_process_has_open() -> None:
    private = {"links": {**SERVER["links"], "/proc/77/fd/4": "/home/alice/token.txt", "/proc/80/fd/5": "socket:[99]"}}
    files = {**SERVER["files"], "/proc/81/fd": {"error": "EACCES"}}
    inner = RecordedReader(replay.changed(replay.host("four-card-gen4"), {**private, "files": files}))
    recorder = Recorder(inner)
    found = holders.read(recorder)
    recording = recorder.recording(inner.taken_at())
    assert found.refused.value == 1
    assert len(found.render.value or ()) == 3
    assert "alice" not in dump(recording)
    assert holders.read(RecordedReader(recording)) == found


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0::/init.scope\n", "/init.scope"),
        ("12:devices:/docker/abc\n1:name=systemd:/docker/abc\n0::/system.slice\n", "/system.slice"),
        ("12:devices:/docker/abc\n1:name=systemd:/lxc/x\n", "/lxc/x"),
        ("3:cpu,cpuacct:/a:b\n", "/a:b"),
    ],
)
def test_cgroup(text: str, wanted: str) -> None:
    assert parse_cgroup(text) == wanted


@given(st.text(max_size=80))
def test_any_text_gives_a_value_or_a_reason(text: str) -> None:
    for parse in (parse_cgroup, parse_kernel_thread, parse_target):
        reading: Reading[Any] = Reading(text, "x").then(parse)
        assert reading.value is not None or reading.unread == "not_understood"


@given(st.text(alphabet="ab) (", max_size=15), st.booleans())
def test_kernel_threads_are_told_by_their_flags(comm: str, thread: bool) -> None:
    flags = 0x00208040 if thread else 0x00400100
    assert parse_kernel_thread(f"7 ({comm}) S 1 1 1 0 -1 {flags} 0 0\n") is thread
