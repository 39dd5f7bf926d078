"""The reader: whatever a host does, each read gives a value or the reason why there is none."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost import reader as module
from hostcheck.onhost.reader import LiveReader, Opened, Reading
from hostcheck.onhost.recording import RecordedReader, Recorder, below, dump, empty, load


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "sys").mkdir()
    (tmp_path / "usr/bin").mkdir(parents=True)
    return tmp_path


def command(root: Path, name: str, script: str) -> None:
    path = root / "usr/bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def alive(pid: int) -> bool:
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_value_carries_its_source(root: Path) -> None:
    (root / "sys/a").write_text("7\n")
    assert LiveReader(str(root)).line("/sys/a") == Reading("7", "/sys/a")


def test_absent_refused_directory_and_binary_are_reasons(root: Path) -> None:
    reader = LiveReader(str(root))
    (root / "sys/bytes").write_bytes(b"\xff\xfe")
    (root / "sys/nul").write_bytes(b"a\0b")
    assert reader.text("/sys/none").unread == "absent"
    assert reader.text("/sys").unread == "io"
    assert reader.text("/sys/bytes").unread == "not_text"
    assert reader.text("/sys/nul").unread == "not_text"
    assert reader.data("/sys/nul").value == b"a\0b"


def test_fifo_does_not_block(root: Path) -> None:
    os.mkfifo(root / "sys/fifo")
    assert LiveReader(str(root)).text("/sys/fifo").unread == "io"


def test_real_io_error_is_a_reason() -> None:
    # reading at offset 0 of another address space fails with EIO in the real kernel
    reading = LiveReader().data("/proc/self/mem", 16)
    assert reading.unread == "io"
    assert reading.detail.startswith("EIO")


def test_too_large(root: Path) -> None:
    (root / "sys/big").write_text("x" * 100)
    assert LiveReader(str(root)).text("/sys/big", limit=99).unread == "too_large"
    assert LiveReader(str(root)).text("/sys/big", limit=100).value == "x" * 100


def test_links_resolve_inside_the_root(root: Path) -> None:
    (root / "etc").mkdir()
    (root / "etc/here").write_text("inside")
    (root / "sys/absolute").symlink_to("/etc/here")
    (root / "sys/climbing").symlink_to("../../../../../../etc/here")
    (root / "sys/loop").symlink_to("loop")
    reader = LiveReader(str(root))
    assert reader.text("/sys/absolute").value == "inside"
    assert reader.text("/sys/climbing").value == "inside"
    assert reader.text("/sys/../../../etc/here").value == "inside"
    assert reader.text("/sys/loop").unread == "io"
    assert reader.resolve("/sys/absolute").value == "/etc/here"
    assert reader.link("/sys/absolute").value == "/etc/here"


def test_below_a_root_no_command_and_no_library_of_this_machine_is_used(root: Path) -> None:
    reader = LiveReader(str(root))
    assert reader.run(["lscpu"]).unread == "tool_missing"
    assert reader.call("psutil.net_if_addrs").unread == "tool_missing"
    command(root, "lscpu", 'echo "root is $HOSTCHECK_ROOT, $LC_ALL, $1"')
    assert reader.output(["lscpu", "-J"]).value == f"root is {root}, C, -J\n"


def test_exit_status_is_a_value_and_output_makes_it_a_reason(root: Path) -> None:
    command(root, "tool", "echo out; echo why >&2; exit 3")
    ran = LiveReader(str(root)).run(["tool"])
    assert ran.value is not None
    assert (ran.value.rc, ran.value.stdout, ran.value.stderr) == (3, "out\n", "why\n")
    output = LiveReader(str(root)).output(["tool"])
    assert output.unread == "exit"
    assert "why" in output.detail


def test_command_ended_by_a_signal(root: Path) -> None:
    command(root, "tool", "kill -SEGV $$")
    ran = LiveReader(str(root)).run(["tool"])
    assert ran.value is not None
    assert ran.value.rc == -signal.SIGSEGV


def test_command_that_ignores_sigterm_is_killed_with_its_children(root: Path, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command(
        root, "tool", f'trap "" TERM; (trap "" TERM; echo $$ > {pids}.child; sleep 600) & echo $$ > {pids}; sleep 600'
    )
    assert LiveReader(str(root)).run(["tool"], timeout=1.0).unread == "timeout"
    pid = int(pids.read_text())
    for _ in range(100):
        if not alive(pid):
            break
        time.sleep(0.05)
    assert not alive(pid)
    listing = [Path(f"/proc/{one}/cmdline") for one in os.listdir("/proc") if one.isdigit()]
    assert not any(str(root) in text for text in map(_cmdline, listing))


def _cmdline(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_the_end_of_a_child_is_seen_and_left_to_be_reaped(monkeypatch: pytest.MonkeyPatch, has_pidfd: bool) -> None:
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    child = subprocess.Popen(["sleep", "600"])
    assert not module.ended(child.pid, 0.05)
    child.kill()
    assert module.ended(child.pid, 60.0)
    assert child.wait() == -signal.SIGKILL
    assert module.ended(child.pid, 0.0)


def test_commands_are_read_and_killed_without_pidfd(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    command(root, "tool", "echo told; exit 3")
    command(root, "stays", "exec >&- 2>&-; sleep 600")
    ran = LiveReader(str(root)).run(["tool"])
    assert ran.value is not None
    assert (ran.value.rc, ran.value.stdout) == (3, "told\n")
    assert LiveReader(str(root)).run(["stays"], timeout=0.3).unread == "timeout"


def test_command_that_closes_its_output_and_stays_is_killed(root: Path) -> None:
    command(root, "tool", "exec >&- 2>&-; sleep 600")
    assert LiveReader(str(root)).run(["tool"], timeout=0.5).unread == "timeout"


def test_flood_is_cut(root: Path) -> None:
    command(root, "tool", "exec yes")
    assert LiveReader(str(root)).run(["tool"], limit=1 << 20).unread == "too_large"
    command(root, "loud", "yes >&2 & sleep 0.2; kill $!; echo done")
    ran = LiveReader(str(root)).run(["loud"])
    assert ran.value is not None
    assert len(ran.value.stderr) <= module.STDERR_LIMIT
    assert ran.value.stdout == "done\n"


def test_tool_that_is_not_found_by_a_wrapper(root: Path) -> None:
    command(root, "tool", "exec /no/such/thing")
    assert LiveReader(str(root)).run(["tool"]).unread == "tool_missing"


def test_lines_come_as_they_are_and_tell_how_it_ended(root: Path) -> None:
    command(root, "tool", "printf 'one\\ntwo\\n\\nlast'; echo why >&2; exit 4")
    lines = LiveReader(str(root)).lines(["tool"])
    assert list(lines) == ["one", "two", "", "last"]
    assert lines.end.value is not None
    assert (lines.end.value.rc, lines.end.value.stderr) == (4, "why\n")


def test_lines_of_a_missing_or_hanging_tool(root: Path) -> None:
    assert LiveReader(str(root)).lines(["none"]).end.unread == "tool_missing"
    command(root, "tool", "echo one; sleep 600")
    lines = LiveReader(str(root)).lines(["tool"], timeout=1.0)
    assert list(lines) == ["one"]
    assert lines.end.unread == "timeout"


def test_end_of_lines_without_reading_them_all(root: Path) -> None:
    command(root, "tool", "seq 100000")
    lines = LiveReader(str(root)).lines(["tool"])
    assert next(iter(lines)) == "1"
    assert lines.end.value is not None


def test_a_file_is_read_in_parts(root: Path) -> None:
    (root / "sys/a").write_bytes(bytes(range(200)))
    reader = LiveReader(str(root))
    for where in (reader, RecordedReader(empty(0), reader), Recorder(reader)):
        opened = where.opened("/sys/a").value
        assert opened is not None
        with opened as file:
            assert (file.size, file.read(7, 3), file.read(198, 9), file.read(900, 1)) == (
                200,
                b"\7\x08\t",
                b"\xc6\xc7",
                b"",
            )
        assert where.opened("/sys").unread == "io"
        assert where.opened("/sys/none").unread == "absent"


@pytest.mark.skipif(os.geteuid() == 0, reason="root is refused nothing")
def test_a_file_that_is_refused_is_not_opened(root: Path) -> None:
    (root / "sys/a").touch(0)
    recorder = Recorder(LiveReader(str(root)))
    assert recorder.opened("/sys/a").unread == "permission"
    assert recorder.recording(0.0)["files"]["/sys/a"] == {"error": "EACCES"}


def test_a_recording_holds_what_is_to_be_kept_of_an_opened_file(root: Path) -> None:
    (root / "sys/large").write_bytes(b"head and the rest")
    (root / "sys/odd").write_bytes(b"?")
    recorder = Recorder(LiveReader(str(root)))
    for path, kept in (("/sys/large", Reading(b"head")), ("/sys/odd", Reading.no("not_understood"))):
        assert recorder.opened(path).value is not None
        recorder.keep(path, kept)
    again = RecordedReader(load(dump(recorder.recording(0.0))))
    opened = again.opened("/sys/large").value
    assert opened is not None
    assert opened.read(0, 99) == b"head"
    assert again.opened("/sys/odd").unread == "not_understood"


def test_a_command_reads_bytes_or_a_file_from_a_place_on(root: Path) -> None:
    command(root, "turn", "tr a-z A-Z; exit 4")
    (root / "sys/a").write_bytes(b"abcdef" * 50_000)
    reader = LiveReader(str(root))
    file = reader.opened("/sys/a").value
    assert file is not None
    with file:
        for given, at, wanted in ((file, 3, b"DEF"), (b"xyz" * 99_999, 0, b"XYZ"), (Opened(b"0xyz"), 1, b"XYZ")):
            pieces = reader.filtered(["turn"], given, at)
            assert b"".join(pieces).startswith(wanted)
            assert pieces.end.value is not None
            assert pieces.end.value.rc == 4
    assert RecordedReader(empty(0)).filtered(["turn"], b"").end.unread == "tool_missing"
    assert reader.filtered(["none"], b"").end.unread == "tool_missing"


def test_a_command_whose_rest_is_not_wanted_is_ended(root: Path) -> None:
    command(root, "endless", f"echo $$ > {root}/pid; exec yes")
    pieces = LiveReader(str(root)).filtered(["endless"], b"", timeout=600)
    assert next(iter(pieces)).startswith(b"y\n")
    pieces.stop()
    assert not alive(int((root / "pid").read_text()))


def test_psutil_is_called_on_this_machine() -> None:
    addresses = LiveReader().call("psutil.net_if_addrs")
    assert "lo" in addresses.value
    assert isinstance(addresses.value["lo"][0], dict)


def test_missing_library_names_the_next_step() -> None:
    reading = LiveReader().call("no_such_library.call")
    assert reading.unread == "tool_missing"
    assert "host_packages" in reading.detail


def test_a_reading_has_a_value_or_a_reason() -> None:
    with pytest.raises(ValueError, match="a value or a reason"):
        Reading(None, "/x")
    with pytest.raises(ValueError, match="unknown reason"):
        Reading.no("lost")


def test_then_turns_only_a_value_error_into_not_understood() -> None:
    assert Reading("x", "/x").then(int).unread == "not_understood"
    with pytest.raises(KeyError):
        Reading("x", "/x").then(lambda text: {}[text])


@given(st.binary(max_size=200))
def test_any_content_reads(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("root")
    (folder / "file").write_bytes(data)
    reader = LiveReader(str(folder))
    assert reader.data("/file").value == data
    text = reader.text("/file")
    assert text.unread == "not_text" or text.value == data.decode()


# -- recordings ---------------------------------------------------------------------------------------


def recorded(**parts: object) -> RecordedReader:
    return RecordedReader({**empty(0.0), **parts})


def test_recorded_refusal_keeps_its_reason() -> None:
    reader = recorded(
        files={"/sys/a": {"error": "EACCES"}, "/sys/b": {"error": "EIO"}, "/sys/dir": {"error": "EACCES"}}
    )
    assert reader.text("/sys/a").unread == "permission"
    assert reader.text("/sys/b").unread == "io"
    assert reader.names("/sys/dir").unread == "permission"
    assert reader.text("/sys/none").unread == "absent"


def test_recorded_directories_are_implied_and_may_be_empty() -> None:
    reader = recorded(files={"/sys/x/y": "1", "/sys/empty/": ""}, links={"/sys/l": "x"})
    assert reader.names("/sys").value == ("empty", "l", "x")
    assert reader.names("/sys/l").value == ("y",)
    assert reader.names("/sys/empty").value == ()
    assert reader.text("/sys/l/y").value == "1"
    assert reader.resolve("/sys/l").value == "/sys/x"
    assert reader.names("/sys/none").unread == "absent"


def test_a_sidecar_wins_over_its_directory(root: Path) -> None:
    (root / "sys/a").write_text("directory")
    (root / "sys/b").write_text("directory")
    side = {**empty(86400.0), "files": {"/sys/a": {"error": "EACCES"}}, "calls": {"psutil.net_if_addrs": {"lo": []}}}
    (root / ".hostcheck.json").write_text(dump(side))
    reader = below(str(root))
    assert reader.text("/sys/a").unread == "permission"
    assert reader.text("/sys/b").value == "directory"
    assert reader.names("/sys").value == ("a", "b")
    assert ".hostcheck.json" not in (reader.names("/").value or ())
    assert reader.call("psutil.net_if_addrs").value == {"lo": []}
    assert reader.taken_at() == 86400.0


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("[]", "JSON object"),
        ('{"schema": "x"}', "schema"),
        ('{"schema": "hostcheck/recording/1"}', "taken_at"),
        ('{"schema": "hostcheck/recording/1", "taken_at": "1970-01-01T00:00:00Z", "more": 1}', "unknown keys more"),
        ('{"schema": "hostcheck/recording/1", "taken_at": "1970-01-01T00:00:00Z", "files": {"a": ""}}', "absolute"),
        ("{", "Expecting"),
    ],
)
def test_what_is_no_recording_is_refused_with_the_place(document: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(document)
