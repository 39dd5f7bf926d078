"""The kernel log: where it comes from, when it is no reading, and every form in which lines are printed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost.readings.kernel_log import (
    DMESG,
    JOURNAL,
    Event,
    Log,
    parse_cpu_list,
    parse_journal,
    parse_text,
    read,
    since,
)
from hostcheck.onhost.readings.log_lines import NO_TIME, Clock, continues, is_cut, parse_iso
from hostcheck.onhost.recording import RecordedReader, empty, seconds

BOOTED = seconds("2026-03-01T00:00:00Z")
NOW = BOOTED + 90_000
RESET = "xe 0000:c3:00.0: [drm] GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=24"
JOURNALCTL, JOURNALCTL_WHOLE = (" ".join(argv) for argv in JOURNAL)


def entry(message: Any, at: float = 5.0, **more: Any) -> str:
    fields = {
        "__REALTIME_TIMESTAMP": str(round((BOOTED + at) * 1e6)),
        "__MONOTONIC_TIMESTAMP": str(round(at * 1e6)),
        "_BOOT_ID": "5b0f8d8e2f6a4c0b9d0e6a1f1c2b3d45",
        "MESSAGE": message,
    }
    return json.dumps({**fields, **more})


def host(**commands: Any) -> RecordedReader:
    recording = empty(NOW)
    recording["files"] = {"/proc/uptime": "90000.00 1.0\n"}
    for name, output in commands.items():
        argv = {"journal": JOURNALCTL, "whole": JOURNALCTL_WHOLE, "dmesg": DMESG[0]}[name]
        recording["commands"][argv] = output
    return RecordedReader(recording)


def said(stdout: str, rc: int = 0, stderr: str = "") -> dict[str, Any]:
    return {"rc": rc, "stdout": stdout, "stderr": stderr}


REFUSED = said("", 1, "dmesg: read kernel buffer failed: Operation not permitted\n")
HINT = said("", 0, "Hint: You are currently not seeing messages from other users and the system.\n")


def only(log: Log) -> Event:
    assert len(log.events) == 1, log.events
    return log.events[0]


# -- access ----------------------------------------------------------------------------------------


def test_the_journal_is_read_first() -> None:
    log = read(host(journal=said(entry(RESET) + "\n"), dmesg=said(f"[    1.000000] {RESET}\n" * 2)))
    assert (log.access.value, log.lines.value) == ("journal", 1)
    assert log.boot_id.value == "5b0f8d8e2f6a4c0b9d0e6a1f1c2b3d45"
    assert log.faulted.value == ("0000:c3:00.0",)
    assert log.events.value is not None
    assert log.events.value[0].wall_first == "2026-03-01T00:00:05Z"


def test_a_journal_recorded_with_all_fields_is_accepted() -> None:
    log = read(host(whole=said(entry(RESET, _TRANSPORT="kernel", SYSLOG_IDENTIFIER="kernel") + "\n")))
    assert log.access.value == "journal"


@pytest.mark.parametrize("journal", [None, said(""), HINT, said("", 1, "No journal files were found.\n")])
def test_dmesg_is_read_where_the_journal_gives_nothing(journal: dict[str, Any] | None) -> None:
    more = {} if journal is None else {"journal": journal}
    log = read(host(dmesg=said(f"[    0.000000] Linux version 7.0\n[    9.000000] {RESET}\n"), **more))
    assert (log.access.value, log.complete.value, log.last.value) == ("dmesg", True, 9.0)


@pytest.mark.parametrize(
    ("commands", "reason"),
    [
        ({"dmesg": REFUSED}, "permission"),
        ({"journal": HINT, "dmesg": REFUSED}, "permission"),
        ({"journal": said(""), "dmesg": said("")}, "not_understood"),
        ({"journal": said("-- No entries --\n")}, "not_understood"),
        ({"dmesg": said("", 1, "dmesg: unknown option\n")}, "exit"),
        ({"journal": {"error": "timeout"}}, "timeout"),
        ({}, "tool_missing"),
    ],
)
def test_no_lines_are_no_reading(commands: dict[str, Any], reason: str) -> None:
    log = read(host(**commands))
    for reading in (log.access, log.first, log.last, log.complete, log.missed, log.lines, log.events, log.faulted):
        assert reading.unread == reason
        assert reading.detail


def test_lines_before_a_failure_are_no_reading_either() -> None:
    assert read(host(dmesg=said(f"[    0.0] {RESET}\n", 1, "dmesg: read failed\n"))).events.unread == "exit"


# -- journal ---------------------------------------------------------------------------------------


def test_a_message_of_bytes_is_text() -> None:
    assert only(parse_journal([entry(list(RESET.encode() + b"\xff"))])).kind == "xe.engine_reset"


def test_a_message_that_is_null_is_skipped() -> None:
    assert parse_journal([entry(None), entry(RESET)]).lines == 2


def test_missed_messages_make_the_log_incomplete() -> None:
    log = parse_journal([entry("Linux version 7.0", 0.5), entry("Missed 17 kernel messages", 3.0)])
    assert (log.missed, log.whole) == (17, True)
    assert read(host(journal=said(entry("Missed 2 kernel messages", 0.1) + "\n"))).complete.value is False


def test_a_cut_entry_counts_as_missed() -> None:
    log = parse_journal([entry("Linux version 7.0", 0.5), entry(RESET)[:-30], entry(RESET, 9.0)])
    assert (log.missed, log.events[0].count) == (1, 1)


def test_a_log_that_begins_late_has_lost_its_beginning() -> None:
    assert read(host(journal=said(entry(RESET, 4000.0) + "\n"))).complete.value is False
    assert read(host(dmesg=said(f"[ 4000.000000] {RESET}\n"))).complete.value is False


def test_a_late_journal_that_has_the_first_message_is_whole() -> None:
    assert parse_journal([entry("Linux version 7.0.0 (gcc)", 45.0)]).whole


def test_a_multi_line_message_stays_one() -> None:
    text = (
        "xe 0000:47:00.0: [drm] Tile0: GT0: \n    ASID: 9\n    Faulted Address: 0x0000aaad55000000\n    EngineClass: 5"
    )
    event = only(parse_journal([entry(text)]))
    assert (event.kind, event.bdf) == ("xe.page_fault", "0000:47:00.0")
    assert event.details["addresses"] == "0x0000aaad55000000"
    assert event.samples == (text,)


# -- forms of text ---------------------------------------------------------------------------------


def clock(at: float) -> str:
    return f"{int(at) // 3600:02d}:{int(at) // 60 % 60:02d}:{int(at) % 60:02d}"


FORMS = {
    "seconds": lambda at: f"[{at:12.6f}] ",
    "caller": lambda at: f"[{at:12.6f}][  T511] ",
    "caller of a cpu": lambda at: f"[{at:12.6f}][   C12] ",
    "level": lambda at: f"<4>[{at:12.6f}] ",
    "facility and level": lambda at: f"kern  :warn  : [{at:12.6f}] ",
    "iso of dmesg": lambda at: (
        f"2026-03-01T{int(at) // 3600:02d}:{int(at) // 60 % 60:02d}:{at % 60:09.6f}+00:00 ".replace(".", ",")
    ),
    "iso of the journal": lambda at: f"2026-03-01T{clock(at)}+0000 some-host kernel: ",
    "syslog": lambda at: f"Mar  1 {clock(at)} some-host kernel: ",
    "syslog with seconds": lambda at: f"Mar  1 00:00:00 some-host kernel: [{at:12.6f}] ",
    "date": lambda at: f"[Sun Mar  1 {clock(at)} 2026] ",
    "monotonic of the journal": lambda at: f"[{at:12.6f}] some-host kernel: ",
    "unix": lambda at: f"{BOOTED + at:.6f} some-host kernel: ",
    # clearlinux/distribution#2907, ublue-os/bazzite#3682: the name of the host was taken out
    "time of day": lambda at: f"{clock(at)} kernel: ",
    "date without a host": lambda at: f"Mar 01 {clock(at)} kernel: ",
    "kernel alone": lambda at: f"kernel: [{at:12.6f}] ",
    # talosctl dmesg (siderolabs/talos), a serial console with its own clock (QubesOS/qubes-issues#7971), grep
    "talos": lambda at: f"10.5.0.2: kern: warning: [2026-03-01T{clock(at)}.5Z]: ",
    "console": lambda at: f"[2026-03-01 {clock(at)}] [{at:12.6f}] ",
    "grep of several files": lambda at: f"var/log/kern.log:17:[{at:12.6f}] ",
}
TIMELESS = {
    "none": "",
    "placeholder": "MON DD hh:mm:ss HOST kernel: ",
    "level only": "<6>",
    "date in another language": "[Ter Mär  1 06:01:41 2026] ",  # lnls-dig/bpm-gw#73
    "kernel alone": "kernel: ",
    "numbers of lines": "1234:",
    "list": "- ",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_time_and_event(form: str) -> None:
    prefix = FORMS[form]
    log = parse_text([prefix(2.0) + "Linux version 7.0", prefix(4100.0) + RESET], NOW, BOOTED)
    event = only(log)
    assert (event.kind, event.bdf) == ("xe.engine_reset", "0000:c3:00.0")
    assert event.first == pytest.approx(4100.0, abs=2.0)  # a date form without its zone counts from the first line
    assert log.last == pytest.approx(4100.0, abs=2.0)


def test_a_time_of_day_that_goes_back_is_of_the_next_day() -> None:
    lines = ["23:59:58 kernel: Linux version 7.0", f"00:00:03 kernel: {RESET}", f"00:00:04 kernel: {RESET}"]
    event = only(parse_text(lines, NOW, BOOTED))
    assert (event.first, event.last, event.count) == (5.0, 6.0, 2)


def test_tags_around_lines_are_no_part_of_them() -> None:
    """T2-Debian-and-Ubuntu-Kernel#53: what a terminal exports."""
    line = f'Sep 07 08:31:30 amiga kernel: <font color="#C01C28"><b>{RESET}</b></font>'
    event = only(parse_text([line], NOW, BOOTED))
    assert event.samples == (RESET,)


@pytest.mark.parametrize("form", TIMELESS)
def test_without_a_time_the_event_stays(form: str) -> None:
    event = only(parse_text([TIMELESS[form] + RESET, TIMELESS[form] + "usb 1-1: new device"], NOW, BOOTED))
    assert (event.kind, event.first, event.count) == ("xe.engine_reset", NO_TIME, 1)


def test_deltas_add_up() -> None:
    lines = ["[Mar 1 01:00] usb 1-1: new device", "[  +0.500000] usb 1-2: new device", f"[  +0.000844] {RESET}"]
    assert only(parse_text(lines, NOW, BOOTED)).first == pytest.approx(3600.500844)


def test_a_log_without_times_is_not_known_to_be_whole() -> None:
    log = read(host(dmesg=said(f"{RESET}\n")))
    assert log.complete.unread == "not_understood"
    assert log.first.unread == "not_understood"
    assert log.events.value


CONTINUED = [
    "    ASID: 9",
    "    Faulted Address: 0x0000aaad55000000",
    "    FaultType: 0, AccessType: 1, FaultLevel: 2",
    "    EngineClass: 3 bcs    EngineInstance: 0",
]


@given(form=st.sampled_from(sorted(FORMS)), repeated=st.booleans(), indent=st.integers(1, 50))
def test_continuation_lines_belong_to_the_line_above(form: str, repeated: bool, indent: int) -> None:
    prefix = FORMS[form](100.0)
    below = [" " * indent + line.strip() for line in CONTINUED]
    lines = [prefix + "xe 10000:47:00.0: [drm] Tile0: GT0: ", *((prefix if repeated else "") + line for line in below)]
    event = only(parse_text([FORMS[form](1.0) + "Linux version 6.17", *lines], NOW, BOOTED))
    assert (event.kind, event.bdf) == ("xe.page_fault", "10000:47:00.0")
    assert (event.details["addresses"], event.details["engines"]) == ("0x0000aaad55000000", "bcs")
    assert "FaultLevel: 2" in event.samples[0]


FOREIGN = [
    "nvme nvme0: 16/0/0 default/read/poll queues",
    "nvme 0000:01:00.0: platform quirk: setting simple suspend",
    "pcieport 0000:40:01.1: AER: Corrected error message received from 0000:41:00.0",
    "usb 1-1: device descriptor read/64, error -71",
    "amdgpu 0000:2f:00.0: [drm] ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3",
    "audit: type=1400 audit(1.1:2): apparmor=STATUS",
]


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(FOREIGN)), max_size=6), st.booleans())
def test_lines_of_others_change_nothing(foreign: list[tuple[int, str]], journal: bool) -> None:
    own = ["xe 0000:47:00.0: [drm] Tile0: GT0: ", *CONTINUED]
    lines: list[str] = []
    for index, line in enumerate(own):
        lines += [f"[   50.00000{index}] {other}" for at, other in foreign if at == index]
        lines.append(f"[   50.00000{index}] {line}")
    if journal:
        log = parse_journal([entry(line.partition("] ")[2], 50.0) for line in lines])
    else:
        log = parse_text(lines, NOW, BOOTED)
    event = next(event for event in log.events if event.bdf == "0000:47:00.0")
    assert (event.kind, event.count) == ("xe.page_fault", 1)
    assert (event.details["addresses"], event.details["engines"]) == ("0x0000aaad55000000", "bcs")
    assert {one.kind for one in log.events if one.bdf != "0000:47:00.0"} <= {"aer.corrected", "amdgpu.ring_timeout"}


@given(st.integers(0, len(CONTINUED)))
def test_missing_continuations_lose_only_themselves(kept: int) -> None:
    lines = ["[   50.0] xe 0000:47:00.0: [drm] Tile0: GT0: Fault response: Unsuccessful -ENOENT", *CONTINUED[:kept]]
    log = parse_text([*lines, "[   51.0] usb 1-1: new device"], NOW, BOOTED)
    assert [(event.kind, event.count) for event in log.events] == [("xe.fault_response", 1)]


@given(st.lists(st.text(max_size=200), max_size=30))
def test_any_text_is_read_or_refused_with_a_value_error(lines: list[str]) -> None:
    for parse in (lambda: parse_text(lines, NOW, BOOTED), lambda: parse_journal(lines)):
        try:
            log = parse()
        except ValueError:
            continue
        assert log.lines == len(lines)


@given(st.integers(0, 400), st.integers(2, 60))
def test_batches_do_not_part_a_message(before: int, filler: int) -> None:
    """The reader looks at 256 lines at a time; where a message falls must not matter."""
    lines = [f"[    1.{number:06d}] usb 1-1: line {number}" for number in range(before)]
    lines += ["[   50.0] xe 0000:47:00.0: [drm] Tile0: GT0: ", *CONTINUED]
    lines += [f"[   60.{number:06d}] usb 1-1: line {number}" for number in range(filler)]
    event = only(parse_text(lines, NOW, BOOTED))
    assert (event.kind, event.details["engines"]) == ("xe.page_fault", "bcs")


# -- the rest --------------------------------------------------------------------------------------


def test_a_hard_lockup_gets_the_card_whose_interrupts_that_cpu_takes() -> None:
    reader = host(
        dmesg=said(
            "[    0.000000] Linux version 7.0\n"
            "[  900.000000] watchdog: CPU21: Watchdog detected hard LOCKUP on cpu 21\n"
            "[  900.000001] Modules linked in: xe\n"
            "[  900.000002] RIP: 0010:memcpy_fromio+0x7d/0xd0\n"
            "[  900.000003]  g2h_read+0x42a/0x4b0 [xe]\n"
            "[  900.000004]  ? xe_guc_irq_handler+0x9e/0xb0 [xe]\n"
        )
    )
    device = "/sys/bus/pci/devices/0000:43:00.0"
    reader = RecordedReader(
        {
            **reader.recording,
            "files": {
                **reader.recording["files"],
                f"{device}/class": "0x030000\n",
                f"{device}/msi_irqs/142": "msix\n",
                "/proc/irq/142/effective_affinity_list": "20-21\n",
            },
        }
    )
    log = read(reader)
    assert log.events.value is not None
    event = log.events.value[0]
    assert (event.kind, event.bdf) == ("lockup.hard", "0000:43:00.0")
    assert "xe_guc_irq_handler [xe]" in event.details["frames"]
    assert log.faulted.value == ("0000:43:00.0",)


def test_a_lockup_elsewhere_blames_no_card() -> None:
    text = "[    0.0] Linux version 7\n[  9.0] watchdog: BUG: soft lockup - CPU#9 stuck for 157s! [kworker/9:0:74]\n"
    log = read(host(dmesg=said(text)))
    assert log.events.value is not None
    assert (log.events.value[0].kind, log.events.value[0].bdf) == ("lockup.soft", "")
    assert log.faulted.value == ()


def test_since_keeps_what_is_not_older() -> None:
    events = (Event("a", last=5.0), Event("b", last=50.0), Event("c", last=NO_TIME))
    assert [event.kind for event in since(events, 50.0)] == ["b", "c"]


def test_cpu_lists() -> None:
    assert parse_cpu_list("0-1,7\n") == (0, 1, 7)
    with pytest.raises(ValueError, match="invalid literal"):
        parse_cpu_list("none")


def test_words_of_lines() -> None:
    assert is_cut("pcieport 0000:03:07.0: PCIe Bus Error: severity=>")
    assert not is_cut("xe 0000:03:00.0: bar resized 256M ->")
    assert continues("IOCTLs and executions are blocked.")
    assert parse_iso("2026-03-01T00:00:00Z") == (BOOTED, True)
    assert Clock(BOOTED, NOW).split("[  bad] x") == (None, "[  bad] x")


def test_a_journal_entry_that_kept_its_syslog_prefix_is_read() -> None:
    assert only(parse_journal([entry(f"Mar  1 00:00:05 some-host kernel: {RESET}")])).bdf == "0000:c3:00.0"
