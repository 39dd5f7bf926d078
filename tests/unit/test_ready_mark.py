"""The ready mark: when it is given, when it holds, and that nothing interrupted leaves one behind."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hostcheck.cli import main as cli
from hostcheck.onhost.reader import LiveReader, Reading
from hostcheck.onhost.ready.mark import MARK, NOT_READY, NOT_TOLD, READY, check, parse
from hostcheck.onhost.settings.files import File, Writer
from tests.pci_host import Watching
from tests.ready_host import BOOTS, FAULT, FIRST, SECOND, ReadyHost

REFUSED = "#!/bin/sh\necho 'dmesg: read kernel buffer failed: Operation not permitted' >&2\nexit 1\n"
BOTH_LOGS = pytest.mark.parametrize("journal", [False, True], ids=["dmesg", "journal"])


@pytest.fixture
def host(tmp_path: Path) -> ReadyHost:
    return ReadyHost(tmp_path)


def said(host: ReadyHost) -> tuple[int, str]:
    verdict = check(host.reader)
    return verdict.code, verdict.reason


def test_a_host_that_passed_is_ready(host: ReadyHost) -> None:
    assert said(host)[0] == NOT_READY
    answer = host.passes(findings={"warn": ["cpu.boost"]}, receipts=["ab" * 32])
    assert (answer["ready"], answer["changed"]) == (True, True)
    assert "msg" not in answer
    assert said(host)[0] == READY
    mark = parse(host.mark.read_text())
    assert (mark.boot_id, mark.findings, mark.receipts) == (BOOTS[0], {"warn": ["cpu.boost"]}, ("ab" * 32,))
    assert mark.cards == {FIRST: "xe", SECOND: "xe"}
    found = host.mark.stat()
    assert stat.S_IMODE(found.st_mode) == 0o644
    assert found.st_uid == os.geteuid()
    assert os.listdir(host.mark.parent) == ["ready.json"]


def test_a_host_that_has_not_passed_gets_no_mark_and_loses_an_older_one(host: ReadyHost) -> None:
    host.passes()
    answer = host.ask("present", passed=False, boot_id=BOOTS[0], reason="two findings fail")
    assert answer["msg"] == "not ready: two findings fail"
    assert not host.mark.exists()


def test_absent_takes_it_away(host: ReadyHost) -> None:
    host.passes()
    assert host.ask("absent", check_mode=True)["changed"] is True
    assert host.mark.exists()
    assert host.ask("absent")["changed"] is True
    assert not host.mark.exists()
    assert host.ask("absent")["changed"] is False


def test_a_mark_of_another_boot_is_never_valid(host: ReadyHost) -> None:
    host.passes()
    text = host.mark.read_text()
    host.boot(BOOTS[1])
    host.put(MARK, text)  # as where /run is kept over a boot
    assert said(host) == (NOT_READY, "not ready: the mark is of another boot; this one has not passed yet")
    answer = host.passes(BOOTS[0])
    assert "it passed on boot 1111" in str(answer["msg"])
    assert not host.mark.exists()


@BOTH_LOGS
def test_a_fault_after_the_mark_ends_it(host: ReadyHost, journal: bool) -> None:
    if journal:
        host.journal()
    host.passes()
    host.say("eth0: up")
    assert said(host)[0] == READY
    host.say(FAULT.format(SECOND))
    code, reason = said(host)
    assert code == NOT_READY
    assert reason == f"not ready: xe.engine_reset of {SECOND} at 7 s: {FAULT.format(SECOND)}"
    assert host.mark.exists()  # a check changes nothing


@BOTH_LOGS
def test_a_fault_before_counts_unless_somebody_looked_at_it(host: ReadyHost, journal: bool) -> None:
    if journal:
        host.journal()
    host.say(FAULT.format(FIRST))
    answer = host.passes()
    assert str(answer["msg"]).startswith(f"not ready: xe.engine_reset of {FIRST}")
    assert "Next, for a person (rung 1): start nothing more here" in str(answer["msg"])
    assert not host.mark.exists()
    looked: Any = host.ask("query")
    assert looked["faults"] == [f"xe.engine_reset of {FIRST} at 6 s: {FAULT.format(FIRST)}"]
    assert looked["log_end"] == 6.0
    assert looked["rung"]["number"] == 1
    assert host.ask("query", log_after=looked["log_end"])["faults"] == []
    assert host.passes(log_after=looked["log_end"])["ready"] is True
    assert said(host)[0] == READY


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("nvme 0000:01:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer", READY),
        ("pcieport 0000:23:1f.7: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer", NOT_READY),
        (
            "[drm:xe_guc_submit [xe]] *ERROR* GT0: Engine reset: engine_class=bcs",
            NOT_READY,
        ),  # names no card, so it may be any
        (f"xe {FIRST}: [drm] Using GuC firmware from xe/bmg_guc_70.bin version 70.65.0", READY),
        (f"pcieport {FIRST[:5]}23:1f.7: PCIe Bus Error: severity=Correctable, type=Physical Layer", READY),
    ],
)
def test_what_counts_against_a_card(host: ReadyHost, line: str, code: int) -> None:
    host.passes()
    host.say(line)
    assert said(host)[0] == code


def test_a_log_that_is_refused_or_lost_cannot_tell(host: ReadyHost) -> None:
    host.passes()
    host.put("/usr/bin/dmesg", REFUSED, 0o755)
    code, reason = said(host)
    assert code == NOT_TOLD
    assert reason.startswith("cannot tell: the kernel log: permission")
    host.put("/usr/bin/dmesg", "#!/bin/sh\nprintf '[  900.000000] usb 1-1: new device\\n'\n", 0o755)
    assert said(host) == (
        NOT_TOLD,
        "cannot tell: the kernel log: absent: the log does not reach back to the mark any more",
    )
    host.path("/usr/bin/dmesg").unlink()
    assert said(host)[0] == NOT_TOLD


def test_a_refused_log_opens_no_gate(host: ReadyHost) -> None:
    host.put("/usr/bin/dmesg", REFUSED, 0o755)
    assert "the kernel log cannot be read" in str(host.passes()["msg"])
    assert not host.mark.exists()
    assert host.ask("query")["log_unread"] != ""


def test_a_log_that_has_lost_its_beginning_opens_no_gate(host: ReadyHost) -> None:
    host.put("/log", f"[  400.000000] {FAULT.format(FIRST)}\n[  500.000000] usb 1-1: new device\n")
    host.seconds = 500.0
    answer: Any = host.passes()
    assert "the log of this boot is not whole: its beginning is lost" in answer["msg"]
    assert answer["log_unread"].startswith("absent")
    assert "not whole" in str(host.passes(log_after=300.0)["msg"])
    assert host.passes(log_after=450.0)["ready"] is True


def test_a_journal_that_was_thrown_away_is_read_as_a_whole(host: ReadyHost) -> None:
    host.journal()
    host.passes()
    lines = host.path("/journal").read_text().splitlines(keepends=True)
    host.put("/journal", "".join(line.replace('"c', '"d') for line in lines))
    assert said(host)[0] == READY  # it reaches back to the boot
    host.say(FAULT.format(FIRST))
    assert said(host)[0] == NOT_READY


def test_an_empty_answer_of_the_journal_proves_nothing(host: ReadyHost) -> None:
    host.journal()
    host.passes()
    host.put("/journal", "")
    host.path("/usr/bin/dmesg").unlink()
    assert said(host)[0] == NOT_TOLD


def test_lost_messages_cannot_tell(host: ReadyHost) -> None:
    host.journal()
    host.passes()
    host.say("Missed 12 kernel messages")
    assert said(host) == (
        NOT_TOLD,
        "cannot tell: the kernel log: io: 12 kernel messages were lost since then",
    )


def test_a_card_that_left_its_driver_and_a_coredump_end_it(host: ReadyHost) -> None:
    host.passes()
    driver = host.path(f"/sys/bus/pci/devices/{SECOND}/driver")
    driver.unlink()
    assert said(host) == (NOT_READY, f"not ready: {SECOND} was bound to xe, now to nothing")
    host.bind(SECOND)
    assert said(host)[0] == READY
    host.dump(1, FIRST, b"x")
    assert said(host) == (NOT_READY, f"not ready: {FIRST} has a device coredump (devcd1)")
    assert "coredump" in str(host.passes()["msg"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": "hostcheck/ready/2"}',
        '{"schema": "hostcheck/ready/1", "boot_id": "x"}',
        '{"schema": "hostcheck/ready/1", "cards": {}, "log": {"seconds": NaN}}',
    ],
)
def test_a_damaged_mark_is_none(host: ReadyHost, text: str) -> None:
    host.put(MARK, text)
    code, reason = said(host)
    assert code == NOT_READY
    assert reason.startswith(f"not ready: {MARK}: ")


def test_a_mark_that_others_may_write_is_none(host: ReadyHost) -> None:
    host.passes()

    class Own(LiveReader):
        """This directory, taken for the machine itself."""

        def _host(self, path: str, follow_last: bool = True) -> str:
            return str(host.root) + self._inside(path, follow_last)

    reader = Own(str(host.root))
    assert check(reader).code == READY
    reader.is_root = True
    host.mark.chmod(0o666)
    assert check(reader).code == NOT_READY
    assert "others may write it" in check(reader).reason


def test_what_cannot_be_read_is_not_told(host: ReadyHost) -> None:
    class Refusing(LiveReader):
        def data(self, path: str, limit: int = 1 << 20) -> Reading[bytes]:
            if path == MARK:
                return Reading.no("permission", "EACCES", path)
            return super().data(path, limit)

    assert check(Refusing(str(host.root))).code == NOT_TOLD


def test_a_check_opens_no_card_and_writes_nothing(host: ReadyHost) -> None:
    host.passes()
    before = sorted(path for path in host.root.rglob("*"))
    watching = Watching(host.reader)
    assert check(watching).code == READY
    own = [path for path in watching.read if FIRST in path and not path.endswith(("/vendor", "/device", "/class"))]
    assert own == []
    assert not any("/dev/dri" in path for path in watching.read)
    assert sorted(path for path in host.root.rglob("*")) == before


def test_the_command_line(host: ReadyHost, capsys: pytest.CaptureFixture[str]) -> None:
    root = ["--root", str(host.root)]
    assert cli(["ready", *root]) == 1
    assert capsys.readouterr().out.count("\n") == 1
    host.passes()
    assert cli(["ready", *root]) == 0
    assert capsys.readouterr().out.startswith("ready: passed at ")
    host.put("/usr/bin/dmesg", REFUSED, 0o755)
    assert cli(["ready", *root]) == 3
    assert cli(["ready", "--root", str(host.root / "none")]) == 2
    assert cli(["ready", "--wrong"]) == 2


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"state": "present", "passed": True}, "boot_id: wanted the boot"),
        ({"state": "present", "passed": True, "boot_id": BOOTS[0], "findings": {"warn": "x"}}, "findings"),
        ({"state": "absent", "on_fail": [{"command": "reboot"}]}, "on_fail, number 1: command is a list"),
        ({"state": "evidence", "dump_limit": -1}, "dump_limit"),
    ],
)
def test_bad_input_is_refused_with_the_mark_untouched(host: ReadyHost, more: dict[str, Any], text: str) -> None:
    host.passes()
    with pytest.raises(ValueError, match=text):
        host.ask(**more)
    assert host.mark.exists()


def test_check_mode_writes_nothing(host: ReadyHost) -> None:
    assert host.ask("present", True, passed=True, boot_id=BOOTS[0])["changed"] is True
    assert not host.mark.exists()
    host.passes()
    host.ask("evidence", True)
    host.ask("present", True, passed=False)
    assert host.mark.exists()
    assert not host.path("/var").exists()


# -- interrupted runs ---------------------------------------------------------------------------------------------


class Killed(BaseException):
    """What SIGKILL looks like from inside: nothing below it is done any more."""


class Mortal(Writer):
    """A writer whose process is killed at its n-th step; within a write there are several."""

    def __init__(self, root: str, lives: int) -> None:
        super().__init__(root)
        self.lives = lives

    def step(self) -> None:
        if self.lives == 0:
            raise Killed
        self.lives -= 1

    def _fill(self, temporary: str, wanted: File) -> None:
        self.step()
        half = File(text=(wanted.text or "")[: len(wanted.text or "") // 2], mode=wanted.mode)
        if self.lives == 0:
            super()._fill(temporary, half)
            raise Killed
        super()._fill(temporary, wanted)
        self.step()

    def _sync_folder(self, real: str) -> None:
        self.step()
        super()._sync_folder(real)

    def remove(self, path: str) -> None:
        self.step()
        super().remove(path)
        self.step()

    def make_folders(self, path: str, mode: int = 0o755) -> tuple[str, ...]:
        self.step()
        return super().make_folders(path, mode)


PASS: dict[str, Any] = {"state": "present", "passed": True}
STEPS: dict[str, Callable[[str], dict[str, Any]]] = {
    "pass": lambda boot: {**PASS, "boot_id": boot},
    "pass of another boot": lambda boot: {**PASS, "boot_id": "33333333-3333-3333-3333-333333333333"},
    "fail": lambda boot: {"state": "present", "passed": False, "boot_id": boot},
    "absent": lambda boot: {"state": "absent"},
    "evidence": lambda boot: {"state": "evidence", "reason": "x"},
}
SEQUENCES = st.lists(
    st.tuples(st.sampled_from([*STEPS, "fault", "reboot"]), st.none() | st.integers(0, 12)), min_size=1, max_size=5
)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(SEQUENCES)
def test_no_interrupted_sequence_leaves_a_mark_on_a_host_that_has_not_passed(
    tmp_path_factory: pytest.TempPathFactory, sequence: list[tuple[str, int | None]]
) -> None:
    host = ReadyHost(tmp_path_factory.mktemp("host"), (FIRST,))
    boot, may_be_ready, is_faulty = BOOTS[0], False, False
    for name, lives in sequence:
        if name == "fault":
            host.say(FAULT.format(FIRST))
            is_faulty, may_be_ready = True, False
        elif name == "reboot":
            boot = BOOTS[1] if boot == BOOTS[0] else BOOTS[0]
            kept = host.mark.read_text() if host.mark.exists() else None
            host.boot(boot)
            if kept is not None and host.mark.parent.exists():
                host.put(MARK, kept)  # the worst case: /run outlives the boot
            is_faulty = may_be_ready = False
            if kept is not None and json.loads(kept)["boot_id"] == boot:
                host.mark.unlink()  # a boot id never comes again; here there are only two
        else:
            writer = Mortal(str(host.root), 10**9 if lives is None else lives)
            wish = STEPS[name](boot)
            passes = name == "pass" and not is_faulty
            may_be_ready = may_be_ready or passes
            try:
                host.ask(writer=writer, **wish)
                may_be_ready = passes
                assert (check(host.reader).code == READY) == passes
            except Killed:
                pass
        code = check(host.reader).code
        assert code in (READY, NOT_READY)
        assert may_be_ready or code == NOT_READY


@pytest.mark.parametrize("lives", range(14))
def test_a_write_that_is_killed_leaves_no_half_mark(host: ReadyHost, lives: int) -> None:
    host.passes()
    try:
        host.ask("present", writer=Mortal(str(host.root), lives), passed=True, boot_id=BOOTS[0])
    except Killed:
        pass
    if host.mark.exists():
        assert parse(host.mark.read_text()).boot_id == BOOTS[0]
    assert host.passes()["ready"] is True
    assert os.listdir(host.mark.parent) == ["ready.json"]


def test_a_line_that_the_journal_took_later_is_not_found_twice(host: ReadyHost) -> None:
    host.journal()
    host.say(FAULT.format(FIRST))
    lines = host.path("/journal").read_text().splitlines(keepends=True)
    own = json.loads(lines[-1])
    own["_SOURCE_MONOTONIC_TIMESTAMP"] = str(int(own["__MONOTONIC_TIMESTAMP"]) - 700)
    everything = "".join([*lines[:-1], json.dumps(own) + "\n"])
    fields = "".join(lines)  # --output-fields leaves the kernel's own time out
    host.put("/journal", everything)
    host.put("/fields", fields)
    which = 'case "$*" in *"-n 1 "*) tail -n 1 "$HOSTCHECK_ROOT/journal" ;; *) cat "$HOSTCHECK_ROOT/fields" ;; esac'
    script = f"#!/bin/sh\n{which}\n"
    host.put("/usr/bin/journalctl", script, 0o755)
    looked: Any = host.ask("query")
    assert len(looked["faults"]) == 1
    assert host.ask("query", log_after=looked["log_end"])["faults"] == []


def test_a_dump_that_was_looked_at_and_kept_does_not_close_the_gate_for_its_hour(host: ReadyHost) -> None:
    host.say(FAULT.format(FIRST))
    host.dump(1, FIRST, b"x")
    looked: Any = host.ask("query")
    assert "coredump (devcd1)" in str(host.passes(log_after=looked["log_end"])["msg"])
    host.ask("evidence", reason="the known fault of a load")
    assert "xe.engine_reset" in str(host.passes()["msg"])  # nobody has looked
    assert host.passes(log_after=looked["log_end"])["ready"] is True
    assert parse(host.mark.read_text()).dumps == ("devcd1",)
    host.dump(2, FIRST, b"y")
    assert said(host) == (NOT_READY, f"not ready: {FIRST} has a device coredump (devcd2)")
