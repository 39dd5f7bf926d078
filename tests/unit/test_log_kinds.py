"""Kinds of logs that once lost a fault or blamed the wrong boot: each must be judged by what it still says."""

# ruff: noqa: E501 (kernel lines stand as they are printed)

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.assess import Report
from hostcheck.checks import log as log_checks
from hostcheck.findings import Finding, Status
from hostcheck.onhost.gather import Options, gather
from hostcheck.onhost.readings.kernel_log import Event, parse_journal, parse_text, read
from hostcheck.onhost.readings.log_events import bit_name, classify, driver_of
from hostcheck.onhost.readings.log_lines import NO_TIME, Boots, Tidy
from hostcheck.onhost.recording import RecordedReader, empty, seconds
from tests import replay

BOOTED = seconds("2026-09-20T06:00:00Z")
NOW = BOOTED + 90_000
CARD, OTHER = "0000:64:00.0", "0000:0d:00.0"
BEGIN = "Linux version 7.0.0-27-generic (buildd@x) #27 SMP"
DUMP = f"xe {CARD}: [drm] Xe device coredump has been created"
WEDGED = f"xe {OTHER}: [drm] CRITICAL: Xe has declared device {OTHER} as wedged."


def recording(dmesg: str | None = None, journal: str | None = None, **files: str) -> dict[str, Any]:
    """A host of which only its log was recorded."""
    found = empty(NOW)
    found["files"].update(files)
    for command, text in (("dmesg", dmesg), (replay.JOURNAL, journal)):
        if text is not None:
            found["commands"][command] = {"rc": 0, "stdout": text, "stderr": ""}
    return found


def judged(found: dict[str, Any]) -> dict[tuple[str, str], Finding]:
    return {(one.id, one.subject.name): one for one in replay.report(found).findings}


def of_log(*lines: str) -> dict[tuple[str, str], Finding]:
    """Findings of a host of which nothing but these kernel lines are known, one second apart from 900 s on."""
    text = f"[    0.000000] {BEGIN}\n" + "".join(f"[  {900 + at}.000000] {line}\n" for at, line in enumerate(lines))
    return judged(recording(text))


def report(host: str, *lines: str, start: float = 900.0, **change: Any) -> Report:
    text = "".join(f"[{start + at:.6f}] {line}\n" for at, line in enumerate(lines))
    return replay.report(replay.changed(replay.host(host), {**({"log": text} if text else {}), **change}))


def of_host(host: str, *lines: str, **more: Any) -> dict[tuple[str, str], Finding]:
    return {(one.id, one.subject.name): one for one in report(host, *lines, **more).findings}


def folded(finding: Finding) -> dict[tuple[str, str], Status]:
    return {(one.id, one.subject.name): one.status for one in finding.explains}


def kinds(events: tuple[Event, ...]) -> list[tuple[str, str]]:
    return [(event.kind, event.bdf) for event in events]


# -- several boots in one log ----------------------------------------------------------------------


def entry(message: str, at: float, boot: str = "b" * 32, base: float = BOOTED, **more: Any) -> str:
    fields = {
        "__CURSOR": f"s=1;b={boot};m=1",
        "__REALTIME_TIMESTAMP": str(round((base + at) * 1e6)),
        "__MONOTONIC_TIMESTAMP": str(round(at * 1e6)),
        "_BOOT_ID": boot,
        "MESSAGE": message,
    }
    return json.dumps({**fields, **more})


KERNEL = "[    0.000000] {begin}\n[    0.300000] pci 0000:00:03.1: PME# supported from D0 D3hot D3cold\n[  500.000000] {last}\n"
DATED = (
    "Sep {day} 06:00:00 host kernel: {begin}\n"
    "Sep {day} 06:00:00 host kernel: pci 0000:00:03.1: PME# supported from D0 D3hot D3cold\n"
    "Sep {day} 06:08:20 host kernel: {last}\n"
)
SEVERAL = {
    "the first message": (KERNEL, ""),
    "the first message on arm": (KERNEL.replace("[    0.000000] {begin}", "[    0.000000] Booting Linux on physical CPU 0x0\n[    0.000000] {begin}"), ""),
    "the time alone": (KERNEL.replace("{begin}", "Command line: BOOT_IMAGE=/vmlinuz ro"), ""),
    "dates": (DATED, ""),
    "dates and seconds": (
        "".join(f"Sep {{day}} 06:00:00 host kernel: {line}\n" for line in KERNEL.splitlines()),
        "",
    ),
    "a mark": (DATED.replace("{begin}", "x86/fpu: Supporting XSAVE"), "-- Boot 0123456789abcdef --\n"),
    "an older mark": (DATED.replace("{begin}", "x86/fpu: Supporting XSAVE"), "-- Reboot --\n"),
}  # fmt: skip


@pytest.mark.parametrize("form", SEVERAL)
@pytest.mark.parametrize("filler", [0, 300])
def test_only_the_newest_boot_of_a_text_counts(form: str, filler: int) -> None:
    text, mark = SEVERAL[form]
    middle = "usb 1-1: new device\n" * filler
    lines = (
        mark
        + text.format(day=19, begin=BEGIN, last=WEDGED)
        + middle
        + mark
        + text.format(day=20, begin=BEGIN, last=DUMP)
    )
    found = parse_text(lines.splitlines(), NOW, None)
    assert kinds(found.events) == [("xe.coredump_created", CARD)]
    assert found.events[0].first == pytest.approx(500.0, abs=1.0)
    assert found.lines <= 5


def test_one_boot_is_not_cut_by_lines_that_only_look_like_a_begin() -> None:
    lines = [
        "[    0.000000] Booting Linux on physical CPU 0x0000000000 [0x413fd0c1]",
        f"[    0.000000] {BEGIN}",
        f"[    9.000000] {WEDGED}",
        "[   10.000000] systemd[1]: note: Linux version is new",
        "[   11.000000] usb 1-1: Product: -- Reboot --",
    ]
    found = parse_text(lines, NOW, BOOTED)
    assert (found.lines, found.whole, kinds(found.events)) == (5, True, [("xe.wedged", OTHER)])


def test_the_boots_that_are_told_apart() -> None:
    boots = Boots()
    lines = [
        "[    0.000000] Linux version 7",
        "[   50.000000] a",
        "[    0.000000] Command line: ro",
        "[    0.000000] b",
    ]
    assert [(new, len(piece)) for new, piece in boots(lines, "\n".join(lines).lower())] == [(True, 2), (True, 2)]
    assert boots(["[   60.000000] c"], "[   60.000000] c") == [(False, ["[   60.000000] c"])]


@pytest.mark.parametrize("filler", [0, 1, 255, 256, 700])
@pytest.mark.parametrize("has_id", [True, False])
def test_only_the_newest_boot_of_a_journal_counts(filler: int, has_id: bool) -> None:
    lines = [entry(BEGIN, 0.0, "a" * 32), entry(WEDGED, 500.0, "a" * 32)]
    lines += [entry(f"usb 1-1: {number}", 501.0, "a" * 32) for number in range(filler)]
    lines += [entry(BEGIN, 0.0), entry(DUMP, 4011.1)]
    if not has_id:
        lines = [
            json.dumps({k: v for k, v in json.loads(line).items() if k not in ("_BOOT_ID", "__CURSOR")})
            for line in lines
        ]
    found = parse_journal(lines)
    assert kinds(found.events) == [("xe.coredump_created", CARD)]
    assert (found.boot_id, found.lines) == ("b" * 32 if has_id else "", 2)


def test_marks_for_waivers_carry_the_boot_that_counts() -> None:
    lines = [entry(BEGIN, 0.0, "a" * 32), entry(WEDGED, 500.0, "a" * 32), entry(BEGIN, 0.0), entry(DUMP, 4011.1)]
    found = gather(RecordedReader(recording(journal="".join(f"{line}\n" for line in lines))), Options())
    (mark,) = log_checks.marks(found, list(log_checks.events(found)))
    assert mark.split(" ")[:3] == ["b" * 32, "xe.coredump_created", CARD]


# -- entries of a journal without times, or not one a line -----------------------------------------

MESSAGES = ((BEGIN, 0.0), ("usb 1-1: new device", 0.3), (DUMP, 4011.1))


def bare(*keys: str) -> list[dict[str, Any]]:
    whole = [json.loads(entry(message, at)) for message, at in MESSAGES]
    return [{key: one[key] for key in keys} for one in whole]


@pytest.mark.parametrize("begin", [0, 1])
def test_entries_with_only_their_wall_time_count_from_the_first(begin: int) -> None:
    lines = [json.dumps(one) for one in bare("MESSAGE", "__REALTIME_TIMESTAMP")[begin:]]
    found = parse_journal(lines)
    assert kinds(found.events) == [("xe.coredump_created", CARD)]
    assert found.events[0].first == pytest.approx(4011.1 - (0.3 if begin else 0.0))
    assert (found.anchored, found.whole) == (not begin, not begin)
    assert parse_journal(lines, BOOTED).events[0].first == pytest.approx(4011.1)


def test_entries_with_only_a_message_keep_their_order() -> None:
    found = parse_journal([json.dumps(one) for one in bare("MESSAGE")])
    assert kinds(found.events) == [("xe.coredump_created", CARD)]
    assert (found.events[0].first, found.first, found.whole) == (NO_TIME, NO_TIME, True)
    late = read(RecordedReader(recording(journal="".join(json.dumps(one) + "\n" for one in bare("MESSAGE")[1:]))))
    assert late.complete.unread == "not_understood"
    assert late.faulted.value == (CARD,)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("as_array", [True, False])
def test_an_array_or_spread_entries_are_read(indent: int | None, as_array: bool) -> None:
    whole = [json.loads(entry(message, at)) for message, at in MESSAGES]
    text = json.dumps(whole, indent=indent) if as_array else "\n".join(json.dumps(one, indent=indent) for one in whole)
    found = parse_journal(text.split("\n"))
    assert (kinds(found.events), found.lines, found.missed) == ([("xe.coredump_created", CARD)], 3, 0)


def test_an_array_that_is_cut_off_has_a_hole() -> None:
    text = json.dumps([json.loads(entry(message, at)) for message, at in (*MESSAGES, (WEDGED, 5000.0))])
    found = parse_journal([text[:-40]])
    assert kinds(found.events) == [("xe.coredump_created", CARD)]
    assert found.missed >= 1


@pytest.mark.parametrize(
    "lines", [["[]"], ['["a"]'], ["{}"], ["{", "}"], ['{"a": 1}'], ["[1, 2"], ["-- No entries --"], [""]]
)
def test_json_that_holds_no_entry_is_no_reading(lines: list[str]) -> None:
    with pytest.raises(ValueError, match="no"):
        parse_journal(lines)


# -- what a terminal, a mail or a chat puts around lines -------------------------------------------

PLAIN = [
    f"[    0.000000] {BEGIN}",
    f"[   50.000000] xe {CARD}: [drm] Tile0: GT0: ",
    "    ASID: 9",
    "    Faulted Address: 0x0000aaad55000000",
    "    EngineClass: 3 bcs    EngineInstance: 0",
    f"[ 4011.100000] {DUMP}",
]
AROUND = {
    "colours": lambda line: f"\x1b[32m{line[:15]}\x1b[0m\x1b[33m{line[15:]}\x1b[0m" if line[0] == "[" else f"\x1b[1m{line}\x1b[0m",
    "colours by less": lambda line: f"^[[32m{line[:15]}^[[0m{line[15:]}" if line[0] == "[" else line,
    "colours by rsyslog": lambda line: f"{line}#033[0m",
    "a quote": lambda line: f"> {line}",
    "two quotes": lambda line: f">> {line}",
    "quotes apart": lambda line: f"> > {line}",
    "a code block": lambda line: f"    {line}",
    "a tab": lambda line: f"\t{line}",
    "a quoted block": lambda line: f">     {line}",
}  # fmt: skip


@pytest.mark.parametrize("form", AROUND)
@pytest.mark.parametrize("stamped", [True, False])
def test_what_stands_around_the_lines_loses_nothing(form: str, stamped: bool) -> None:
    lines = PLAIN if stamped else [line[15:] if line[0] == "[" else line for line in PLAIN]
    plain = parse_text(lines, NOW, BOOTED)
    around = [AROUND[form](line) if stamped or "colours" not in form else f"\x1b[33m{line}\x1b[0m" for line in lines]
    found = parse_text(around, NOW, BOOTED)
    assert kinds(plain.events) == [("xe.page_fault", CARD), ("xe.coredump_created", CARD)]
    assert kinds(found.events) == kinds(plain.events)
    assert [event.first for event in found.events] == [event.first for event in plain.events]
    assert found.events[0].details == plain.events[0].details
    assert (found.whole, found.lines) == (True, len(lines))


def test_a_line_that_alone_is_indented_keeps_its_time() -> None:
    found = parse_text([PLAIN[0], f"   {PLAIN[-1]}"], NOW, BOOTED)
    assert (kinds(found.events), found.events[0].first) == ([("xe.coredump_created", CARD)], 4011.1)


@given(st.lists(st.text(alphabet=" \t>[]0.1x\x1b^m;#3", max_size=12), min_size=1, max_size=5))
def test_tidying_keeps_the_number_of_lines_and_is_done_once(lines: list[str]) -> None:
    found = Tidy()(lines)
    assert len(found) == len(lines)
    assert all(new.strip("> \t") in old or "m" in old for old, new in zip(lines, found, strict=True))


# -- text that is no log ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("dmesg: read kernel buffer failed: Operation not permitted\n", "permission"),
        ("dmesg: klogctl: Operation not permitted\n", "permission"),
        ("\n\ndmesg: open /dev/kmsg failed: Permission denied\n", "permission"),
        ("sh: dmesg: command not found\n", "not_understood"),
        ("\n\n", "not_understood"),
        (" \n\t\n", "not_understood"),
    ],
)
def test_what_a_tool_says_instead_of_a_log_is_no_log(text: str, reason: str) -> None:
    found = read(RecordedReader(recording(text)))
    assert (found.access.unread, found.events.unread, found.complete.unread) == (reason, reason, reason)
    change = {"commands": {replay.JOURNAL: None, "dmesg": {"rc": 0, "stdout": text, "stderr": ""}}}
    given = {(one.id, one.status) for one in report("two-card-gen5", **change).findings}
    assert ("log.access", Status.unknown) in given
    assert not {id for id, status in given if status is Status.ok} & {"gpu.fault", "gpu.wedged", "gpu.lost", "fw.guc"}


def test_a_refusal_that_was_printed_as_output_tells_its_words() -> None:
    found = recording("dmesg: read kernel buffer failed: Operation not permitted\n")
    found["commands"]["dmesg"]["rc"] = 1
    access = read(RecordedReader(found)).access
    assert (access.unread, "not permitted" in access.detail) == ("permission", True)


# -- lines that a pager cut off --------------------------------------------------------------------

TAG = "[drm] Tile0: GT0: "
WHOLE = {
    f"{TAG}Fault response: Unsuccessful -ENOENT": "xe.fault_response",
    f"{TAG}Engine reset: engine_class=ccs, logical_mask: 0x1": "xe.engine_reset",
    f"{TAG}Engine memory CAT error [18]: class=bcs": "xe.cat_error",
    f"{TAG}Timedout job: seqno=791, lrc_seqno=791": "xe.timedout_job",
    f"{TAG}Schedule disable failed to respond": "xe.reset_failed",
    f"{TAG}VM worker error: -62": "xe.vm_error",
    f"{TAG}Kernel-submitted job timed out": "xe.kernel_job",
    "[drm] Xe device coredump has been created": "xe.coredump_created",
    "[drm] *ERROR* CRITICAL: Xe has declared device 0000:03:00.0 as wedged.": "xe.wedged",
    "[drm] device wedged, needs recovery": "xe.wedged",
    "[drm] *ERROR* GT0: load failed: status = 0x80007134": "guc.load_failed",
    "In Survivability Mode": "survivability",
    "Unable to change power state from D3cold to D0, device inaccessible": "d3_failed",
    "Runtime PM usage count underflow!": "xe.pm_underflow",
}


@given(st.sampled_from(sorted(WHOLE)), st.data())
def test_a_fault_line_that_is_cut_anywhere_is_never_passed_over(text: str, data: st.DataObject) -> None:
    cut = f"xe 0000:03:00.0: {text[: data.draw(st.integers(0, len(text) - 1))]}>"
    found = parse_text([f"[    0.000000] {BEGIN}", f"[   22.400000] {cut}"], NOW, BOOTED).events
    assert [event.bdf for event in found] == ["0000:03:00.0"], cut
    assert found[0].kind in (WHOLE[text], "gpu.cut", "gpu.wedge_cut")


def test_a_cut_line_counts_by_what_is_left() -> None:
    found = of_host("two-card-gen5", f"xe 0000:03:00.0: {TAG}Fault response: Unsuc>")
    assert found["gpu.fault", "0000:03:00.0"].status is Status.fail
    assert found["gpu.fault", "0000:e3:00.0"].status is Status.ok
    created = of_host("two-card-gen5", "xe 0000:03:00.0: [drm] Xe device coredump has been cr>")
    assert created["gpu.fault", "0000:03:00.0"].status is Status.fail
    either = of_host("two-card-gen5", "xe 0000:03:00.0: [drm] Xe device coredump has be>")
    assert either["gpu.fault", "0000:03:00.0"].status is Status.unknown
    wedged = of_host("two-card-gen5", "xe 0000:03:00.0: [drm] device wed>")
    assert (wedged["gpu.wedged", "0000:03:00.0"].status, ("gpu.fault", "0000:03:00.0") in wedged) == (
        Status.unknown,
        False,
    )


@pytest.mark.parametrize(
    "line",
    [
        f"xe 0000:03:00.0: {TAG}Using GuC firmware from xe/bm>",
        f"xe 0000:03:00.0: {TAG}ccs1 fu>",
        "xe 0000:03:00.0: [drm] VISIBLE VRAM: 0x000>",
        "nvme 0000:01:00.0: Fault response: Unsuc>",
        "pcieport 0000:00:03.1: AER: enabled with I>",
        "pcieport 0000:00:03.1: PME: Signaling wi>",
        "xe 0000:03:00.0: [drm] bar resized from 256M ->",
    ],
)  # fmt: skip
def test_other_cut_lines_say_nothing(line: str) -> None:
    assert [
        event.kind for event in parse_text([f"[    9.0] {line}"], NOW, BOOTED).events if event.kind != "guc.loaded"
    ] == []


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("NVRM: Xid (PCI:0000:05:00): 79, pid='<unkno>", "nvrm.lost"),
        ("NVRM: GPU 0000:05:00.0: GPU has fal>", "nvrm.lost"),
        ("NVRM: Xid (PCI:0000:05:00): 7>", "gpu.cut"),
        ("NVRM: Xid (PCI:0000:05:00): >", "gpu.cut"),
        ("amdgpu 0000:05:00.0: amdgpu: ring gfx_0.0.0 time>", "gpu.cut"),
        ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 time>", "gpu.cut"),
    ],
)
def test_cut_lines_of_other_drivers(line: str, kind: str) -> None:
    assert [event.kind for event in parse_text([f"[    9.0] {line}"], NOW, BOOTED).events] == [kind]


@pytest.mark.parametrize(
    "line",
    [
        "AER: Multip>",
        "AER: >",
        "AER: Uncor>",
        "AER: Multiple Uncorrectable (>",
        "PCIe Bus Err>",
        "PCIe Bus Error: severity=U>",
    ],
)
def test_a_cut_error_report_leaves_nothing_ok_on_its_link(line: str) -> None:
    found = of_host("nvidia-host", f"pcieport 0000:00:03.1: {line}")
    one = found["aer.nonfatal", "0000:0a:00.0"]
    assert one.status is Status.unknown
    assert (
        folded(one).items()
        >= {("aer.rate", "0000:0a:00.0"): Status.unknown, ("aer.fatal", "0000:0a:00.0"): Status.unknown}.items()
    )
    assert found["aer.rate", "0000:05:00.0"].status is Status.ok


@pytest.mark.parametrize("line", ["AER: C>", "AER: Multiple Co>", "PCIe Bus Error: severity=C>"])
def test_a_cut_report_that_can_only_be_corrected_is_counted(line: str) -> None:
    assert of_host("nvidia-host", f"pcieport 0000:00:03.1: {line}")["aer.rate", "0000:0a:00.0"].status is Status.warn


@pytest.mark.parametrize(
    ("lines", "kind", "bits"),
    [
        (("AER: Multip>", "PCIe Bus Error: sever>", "   [12] Time>"), "aer.corrected", "Timeout"),
        (("AER: Multip>", "   [ 0] RxErr    >"), "aer.corrected", "RxErr"),
        (("AER: Unc>", "PCIe Bus Error: severity=Uncorrectable (Fatal), ty>", "   [ 4] DL>"), "aer.fatal", "DLP"),
        (("AER: U>", "PCIe Bus Error: severity=>", "   [12] T>"), "aer.unclear", ""),
    ],
)
def test_later_lines_of_a_cut_report_tell_its_severity(lines: tuple[str, ...], kind: str, bits: str) -> None:
    text = [f"[   22.40000{at}] pcieport 0000:00:03.1: {line}" for at, line in enumerate(lines)]
    (event,) = parse_text(text, NOW, BOOTED).events
    assert (event.kind, event.count, event.details.get("bits", "")) == (kind, 1, bits)


def test_names_of_bits_stay_whole() -> None:
    assert (bit_name("Time"), bit_name("Timeout")) == ("Time", "Timeout")
    said = classify("pcieport 0000:00:03.1:    [12] Replay Tim>")
    assert said is not None
    assert said.details["bits"] == "Timeout"


# -- faults of the host in which a GPU driver has a part -------------------------------------------

XE, XE2 = "0000:03:00.0", "0000:e3:00.0"
HUNG = "INFO: task {}:1234 blocked for more than 122 seconds."
SIGNS = {
    "iotlb": f"AMD-Vi: Event logged [IOTLB_INV_TIMEOUT device={XE} address=0x100200]",
    "iotlb without a domain": f"AMD-Vi: Event logged [IOTLB_INV_TIMEOUT device={XE[5:]} address=0x000000010020]",
    "iotlb of intel": "DMAR: VT-d detected Invalidation Time-out Error: SID 300",
    "runtime pm": f"xe {XE}: Runtime PM usage count underflow!",
    "guc": f"xe {XE}: [drm] *ERROR* GT0: Failed to reset GuC (-EPROTO)",
    "guc of a function": f"xe {XE}: [drm] *ERROR* Tile0: GT0: VF: Failed to reset GuC state (-EPROTO)",
    "guc of i915": f"i915 {XE}: [drm] *ERROR* GT0: failed to reset GuC, ret = -71",
}


@pytest.mark.parametrize("sign", SIGNS)
def test_signs_that_a_card_is_gone_fail_on_that_card(sign: str) -> None:
    given = report("two-card-gen5", SIGNS[sign])
    found = {(one.id, one.subject.name): one for one in given.findings}
    assert found["gpu.fault", XE].status is Status.fail
    assert found["gpu.fault", XE2].status is Status.ok
    assert given.facts.kernel_log.faulted.value == (XE,)
    assert given.exit == 1


def test_a_timeout_of_the_iommu_elsewhere_is_no_fault_of_a_card() -> None:
    given = report("two-card-gen5", "AMD-Vi: Event logged [IOTLB_INV_TIMEOUT device=0000:c1:00.0 address=0x1]")
    assert {one.status for one in given.findings if one.id == "gpu.fault"} == {Status.ok}
    assert given.facts.kernel_log.faulted.value == ()


def test_a_timeout_of_the_iommu_for_a_port_of_the_card_is_the_cards() -> None:
    port = "0000:01:00.0"
    assert of_host("two-card-gen5", SIGNS["iotlb"].replace(XE, port))["gpu.fault", XE].status is Status.fail


TRACES = {
    "hard": ("watchdog: CPU21: Watchdog detected hard LOCKUP on cpu 21", "RIP: 0010:memcpy_fromio+0x7d/0xd0", " g2h_read+0x42a/0x4b0 [{}]"),
    "hard by the instruction": ("watchdog: Watchdog detected hard LOCKUP on cpu 3", "RIP: 0010:g2h_read+0x7d/0xd0 [{}]"),
    "soft": ("watchdog: BUG: soft lockup - CPU#9 stuck for 157s! [kworker/9:0:74]", " ? g2h_read+0x42a/0x4b0 [{}]"),
    "task": (HUNG.format("python3"), "      Tainted: G        W", "task:python3  state:D stack:0 pid:1234", " dma_resv_wait+0x1/0x2", " bo_move+0x12/0x20 [{}]"),
    "worker": (HUNG.format("kworker/u64:3"), "      Tainted: G", "Workqueue: events_unbound vm_bind_work [{}]"),
}  # fmt: skip


@pytest.mark.parametrize("trace", TRACES)
def test_a_driver_that_hangs_is_told_of_its_only_card_or_of_the_host(trace: str) -> None:
    wanted = Status.fail if trace in ("task", "worker") else Status.warn
    lines = [line.format("xe") for line in TRACES[trace]]
    one = of_host("one-card-b450-x8", *lines)["gpu.fault", "0000:0c:00.0"]
    assert (one.status, "0000:0c:00.0" in one.next_step) == (wanted, True)
    given = report("two-card-gen5", *lines)
    found = {(one.id, one.subject.name): one for one in given.findings}
    host = found["gpu.fault", "host"]
    assert (host.status, XE in host.seen, XE2 in host.seen) == (wanted, True, True)
    assert folded(host).items() >= {("gpu.fault", XE): Status.unknown, ("gpu.fault", XE2): Status.unknown}.items()
    assert given.exit == (1 if wanted is Status.fail else 3)


@pytest.mark.parametrize("trace", TRACES)
def test_what_hangs_elsewhere_blames_no_card(trace: str) -> None:
    found = of_host("two-card-gen5", *[line.format("ext4") for line in TRACES[trace]])
    assert {one.status for (id, _), one in found.items() if id == "gpu.fault"} == {Status.ok}


def test_a_call_trace_of_another_time_is_not_of_a_task_that_was_blocked() -> None:
    lines = [
        f"[  900.0] {HUNG.format('jbd2/nvme0n1p2-')}",
        "[  900.1]  jbd2_commit+0x1/0x2 [jbd2]",
        "[ 2000.0]  xe_bo_move+0x1/0x2 [xe]",
    ]
    (event,) = parse_text(lines, NOW, BOOTED).events
    assert (event.kind, driver_of(event)) == ("hung_task", "")


def test_an_undefined_shift_where_bars_are_resized_is_told_of_the_host() -> None:
    line = "UBSAN: shift-out-of-bounds in drivers/pci/iov.c:947:24"
    assert of_host("four-card-gen4", line)["gpu.fault", "host"].status is Status.warn
    assert ("gpu.fault", "host") not in of_host("four-card-gen4", line.replace("pci/iov", "net/foo"))
    built_elsewhere = line.replace("drivers/", "/build/linux-7.0.0/drivers/")
    assert of_host("four-card-gen4", built_elsewhere)["gpu.fault", "host"].status is Status.warn


# -- lines that name no card -----------------------------------------------------------------------

AMD = "0000:2f:00.0"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=1, emitted seq=3", Status.fail),
        ("[drm:amdgpu_job_timedout] *ERROR* ring sdma0 timeout, signaled seq=1, emitted seq=3", Status.fail),
        ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, but soft recovered", Status.warn),
        (f"amdgpu {AMD}: amdgpu: ring gfx_0.0.0 timeout, but soft recovered", Status.warn),
        (f"amdgpu {AMD}: [drm] ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3", Status.fail),
    ],
)
def test_a_ring_that_recovered_by_itself_is_a_warning(line: str, wanted: Status) -> None:
    assert of_host("amd-card", line)["gpu.fault", AMD].status is wanted


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        # compute-runtime-style reports of i915: the driver ends what takes longer than 20 s (VulkanMod#63)
        (f"Fence expiration time out i915-{CARD}:python3[2012]:1a2!", Status.fail),
        # i915-backports#172: a Flex 140 whose GuC went silent
        (
            f"i915 {CARD}: [drm] *ERROR* GT0 [GUC COMMUNICATION] CT: No response for request 0x5503 (fence 168)",
            Status.warn,
        ),
        (f"i915 {CARD}: [drm] *ERROR* GT0 [GUC COMMUNICATION] CT: Sending action 0x5503 failed (-ETIME)", Status.warn),
        (f"i915 {CARD}: [drm] tlb invalidation response timed out for seqno 3", Status.warn),
        # drivers/gpu/drm/xe/{xe_guc_ct,xe_force_wake,xe_hw_error}.c
        (f"xe {CARD}: [drm] *ERROR* GT0: CT dequeue failed: -71", Status.warn),
        (f"xe {CARD}: [drm] *ERROR* Tile0: GT1: Forcewake domain 0x1 failed to acknowledge awake request", Status.warn),
        (f"xe {CARD}: [drm] *ERROR* [Hardware Error]: Tile0 reported NONFATAL error 0x20000", Status.warn),
        (
            f"xe {CARD}: [drm] *ERROR* [Hardware Error]: NONFATAL: HEC Uncorrected FW FIPS error reported, bit[2] is set",
            Status.warn,
        ),
        (f"xe {CARD}: [drm] *ERROR* [Hardware Error]: TILE0 reported SGUNIT FATAL error, bit[12] is set", Status.fail),
    ],
)
def test_other_words_of_drivers_for_a_card_that_does_not_answer(line: str, wanted: Status) -> None:
    assert of_log(line)["gpu.fault", CARD].status is wanted


@pytest.mark.parametrize("stamp", ["", "[  100.000000] "])
def test_lines_that_a_syslog_daemon_folded_are_counted(stamp: str) -> None:
    line = f"{stamp}xe {CARD}: [drm] GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=24"
    prefix = "Sep 20 10:00:0{} host kernel: "
    text = "\n".join((f"{prefix.format(1)}{line}", f"{prefix.format(9)}message repeated 14 times: [ {line}]"))
    (event,) = parse_text(text.splitlines(), NOW, BOOTED).events
    assert (event.kind, event.bdf, event.count, event.peak_1s) == ("xe.engine_reset", CARD, 15, event.peak_1s)
    assert event.peak_1s < 10


def test_a_console_that_dropped_messages_has_a_hole() -> None:
    lines = [
        f"[    0.000000] {BEGIN}",
        "[  100.000000] ** 1234 printk messages dropped **",
        "[  101.000000] usb 1-1: x",
    ]
    assert parse_text(lines, NOW, BOOTED).missed == 1234
    overrun = "systemd-journald[412]: /dev/kmsg buffer overrun, some messages lost."
    assert parse_journal([entry(BEGIN, 0.0), entry(overrun, 9.0)]).missed == 1


@pytest.mark.parametrize(
    "words", ["GuC version: 70.44.1 (wanted 70.54.0)", "Retyped by hand: survivability mode is off"]
)
def test_what_follows_a_fault_line_without_a_time_hides_it_not(words: str) -> None:
    """b70_ai_things, bcs wedge: a report puts lines of its own between those of the kernel."""
    said = judged(recording(f"[    0.000000] {BEGIN}\n[   30.000000] {DUMP}\n{words}\n"))
    assert said["gpu.fault", CARD].status is Status.fail


@pytest.mark.parametrize(
    "line",
    [
        # intel_uc_fw.c of i915 names both files; xe_uc_fw.c one
        f"i915 {CARD}: [drm] GT0: GuC firmware i915/dg2_guc_70.bin (70.54.0) is recommended, but only i915/dg2_guc_70.4.1.bin (70.4.1) was found",
        f"xe {CARD}: [drm] GuC firmware (70.54.0) is recommended, but only (70.4.1) was found in xe/bmg_guc_70.bin",
    ],
)
def test_both_drivers_say_that_a_newer_firmware_is_recommended(line: str) -> None:
    found = of_log(line)["fw.guc", CARD]
    assert (found.status, found.seen) == (Status.warn, "70.4.1 found, the driver recommends 70.54.0")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "19:54 bcs page fault, response -EINVAL (ASID, address, FaultType 0, AccessType 0, EngineClass 3 bcs)",
            Status.fail,
        ),
        ("20:15 Engine reset: engine_class=ccs, logical_mask=0x1, guc_id=2, state=0x3", Status.warn),
        ("20:19 Fault response: Unsuccessful -ENOENT; Engine reset: engine_class=bcs, logical_mask=0x1", Status.fail),
        ("Timedout job: seqno=540, lrc_seqno=540, guc_id=2, flags=0x20 in ovms [464054]", Status.fail),
        ("Engine memory CAT error [18]: class=bcs, logical_mask: 0x1, guc_id=6", Status.fail),
    ],
)
def test_retyped_lines_of_xe_count_for_its_only_card_or_the_host(line: str, wanted: Status) -> None:
    """compute-runtime#948, comment of 2026-09-18; openvino model_server#4469."""
    assert judged(recording(f"{line}\n"))["gpu.fault", "host"].status is wanted
    assert of_host("one-card-b450-x8", line)["gpu.fault", "0000:0c:00.0"].status is wanted


def test_lines_of_a_debug_build_that_name_no_card() -> None:
    said = of_log("[drm:pf_queue_work_func [xe]] Fault response: Unsuccessful -22")
    assert said["gpu.fault", "host"].status is Status.fail
    silent = of_log("[drm:wait_for_ct_request_update [i915]] *ERROR* CT: fence 168 err -62")
    assert silent["gpu.fault", "host"].status is Status.warn


def test_a_function_of_a_driver_without_a_card_here_is_told_of_the_host() -> None:
    line = "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=1, emitted seq=3"
    assert of_host("two-card-gen5", line)["gpu.fault", "host"].status is Status.fail
    other = "[drm:xe_guc_exec [xe]] *ERROR* GT0: Timedout job: seqno=1, guc_id=2, flags=0x0 in a [2]"
    assert of_host("two-card-gen5", other)["gpu.fault", "host"].status is Status.fail
    assert of_host("one-card-b450-x8", other)["gpu.fault", "0000:0c:00.0"].status is Status.fail
    assert classify("[drm:drm_atomic_helper [drm_kms_helper]] *ERROR* flip_done timed out") is None


@pytest.mark.parametrize(
    "line",
    ["NVRM: GPU has fallen off the bus.", "NVRM: Xid: 79, GPU has fallen off the bus.", "NVRM: GPU has fallen o>"],
)
def test_a_lost_card_without_a_name_is_told_of_the_host(line: str) -> None:
    given = report("nvidia-host", line)
    found = {(one.id, one.subject.name): one for one in given.findings}
    one = found["gpu.lost", "host"]
    assert (one.status, "0000:05:00.0, 0000:0a:00.0" in one.seen, given.exit) == (Status.fail, True, 1)
    assert folded(one) == {("gpu.fault", "0000:05:00.0"): Status.unknown, ("gpu.fault", "0000:0a:00.0"): Status.unknown}


def test_a_driver_that_cannot_start_a_card_that_it_holds_fails() -> None:
    lines = (
        "NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x22:0x56:762)",
        "NVRM: GPU 0000:0a:00.0: rm_init_adapter failed, device minor number 0",
    )
    given = report("nvidia-host", *lines)
    found = {(one.id, one.subject.name): one for one in given.findings}
    assert (found["gpu.fault", "0000:0a:00.0"].status, found["gpu.fault", "0000:05:00.0"].status) == (
        Status.fail,
        Status.ok,
    )
    assert given.exit == 1


# -- a log alone: which device is a GPU, and what is behind a port ---------------------------------


@pytest.mark.parametrize("driver", ["xe", "i915", "amdgpu", "nvidia"])
def test_the_driver_tells_that_a_device_that_does_not_wake_is_a_gpu(driver: str) -> None:
    found = of_log(f"{driver} 0000:23:00.0: Unable to change power state from D3cold to D0, device inaccessible")
    assert found["gpu.lost", "0000:23:00.0"].status is Status.fail


@pytest.mark.parametrize(
    "line",
    [
        f"i915 {XE}: [drm] *ERROR* Device is non-operational; MMIO access returns 0xFFFFFFFF!",
        "pcieport 0000:00:01.1: pciehp: Slot(1): Link Down",
        "pciehp 0000:00:01.1:pcie004: Slot(1): Link Down",  # until 5.0 (bpm-gw#73)
        "pciehp 0000:00:01.1:pcie004: Slot(1): Link Down event",
    ],
)
def test_other_words_for_a_card_that_left_the_bus(line: str) -> None:
    assert of_host("two-card-gen5", line)["gpu.lost", XE].status is Status.fail


def test_a_link_that_came_back_is_no_lost_card() -> None:
    said = of_host("two-card-gen5", "pcieport 0000:00:01.1: pciehp: Slot(1): Link Down/Up ignored")
    assert ("gpu.lost", XE) not in said


def test_another_device_that_does_not_wake_is_none() -> None:
    found = of_log("nvme 0000:23:00.0: Unable to change power state from D3cold to D0, device inaccessible")
    assert not [id for id, _ in found if id == "gpu.lost"]


def test_a_card_that_does_not_wake_is_left_alone() -> None:
    line = "xe 0000:23:00.0: Unable to change power state from D3cold to D0, device inaccessible"
    assert report("four-card-gen4", line).facts.kernel_log.faulted.value == ("0000:23:00.0",)
    port = "pcieport 0000:21:00.0: Unable to change power state from D3cold to D0, device inaccessible"
    assert of_host("four-card-gen4", port)["gpu.lost", "0000:23:00.0"].status is Status.fail


ERROR = "pcieport 0000:00:03.1: AER: Correctable error message received from 0000:00:00.0"


def test_a_driver_inside_a_report_tells_that_its_link_leads_to_a_gpu() -> None:
    found = of_log(
        ERROR, "nvidia 0000:07:00.0:    [12] Timeout", "NVRM: GPU at PCI:0000:07:00: GPU-b7d5 has fallen off the bus"
    )
    one = found["aer.rate", "0000:00:03.1"]
    assert (one.status, "0000:07:00.0" in one.seen) == (Status.fail, True)
    assert "not a GPU path" not in one.seen
    assert found["gpu.lost", "0000:07:00.0"].status is Status.fail


@pytest.mark.parametrize(
    "evidence",
    [
        "nvidia 0000:03:00.0: AER: can't recover (no error_detected callback)",
        "nvidia 0000:03:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)",
        "amdgpu 0000:03:00.0: 31.504 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x4 link at 0000:00:03.0",
    ],
)
def test_a_storm_fails_where_the_log_puts_a_gpu_behind_the_port(evidence: str) -> None:
    storm = "".join(
        f"[   50.{number:04d}00] pcieport 0000:00:03.0: AER: Correctable error message received from 0000:00:03.0\n"
        for number in range(0, 400, 5)
    )
    first = f"[    0.000000] {BEGIN}\n[   49.000000] pcieport 0000:00:03.0: AER: Uncorrectable (Non-Fatal) error message received from 0000:00:03.0\n"
    with_gpu = judged(recording(f"{first}[   49.000001] {evidence}\n{storm}"))
    alone = judged(recording(f"[    0.000000] {BEGIN}\n{storm}"))
    assert alone["aer.rate", "0000:00:03.0"].status is Status.warn
    assert "what is behind it was not read" in alone["aer.rate", "0000:00:03.0"].seen
    if "can't recover" in evidence:
        assert "0000:03:00.0" in with_gpu["aer.nonfatal", "0000:00:03.0"].seen
        assert with_gpu["aer.nonfatal", "0000:00:03.0"].status is Status.fail
    else:
        worst = [one for (id, _), one in with_gpu.items() if id == "aer.rate"]
        assert Status.fail in {one.status for one in worst} or "amdgpu" not in evidence


def test_ids_in_a_report_tell_that_its_device_is_a_part_of_a_card() -> None:
    """ellyq/coreboot#4, intel B-series: the card's own port reports, and its ids stand in the line of the status."""
    for ids, wanted in (("8086:e2ff", Status.warn), ("1002:1478", Status.warn), ("144d:a80a", Status.info)):
        said = of_log(
            "pcieport 0000:00:01.0: AER: Correctable error message received from 0000:01:00.0",
            "pcieport 0000:01:00.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Receiver ID)",
            f"pcieport 0000:01:00.0:   device [{ids}] error status/mask=00000040/00002000",
            "pcieport 0000:01:00.0:    [ 6] BadTLP",
        )
        assert said["aer.rate", "0000:01:00.0"].status is wanted


def test_a_port_of_the_topology_without_a_gpu_is_no_gpu_path() -> None:
    one = of_host("nvidia-host", "pcieport 0000:00:01.4: AER: Correctable error message received from 0000:30:00.0")
    (seen,) = [finding.seen for (id, _), finding in one.items() if id == "aer.rate" and finding.status is Status.info]
    assert "not a GPU path" in seen


# -- what is shown ---------------------------------------------------------------------------------


def test_the_unread_state_of_a_card_folds_into_its_cause() -> None:
    wedged = of_host("one-card-b450-x8", "xe 0000:0c:00.0: [drm] device wedged, needs recovery")
    assert ("gpu.state", "0000:0c:00.0") in folded(wedged["gpu.wedged", "0000:0c:00.0"])
    assert ("gpu.state", "0000:0c:00.0") not in wedged
    lost = of_host(
        "one-card-b450-x8", "xe 0000:0c:00.0: Unable to change power state from D3hot to D0, device inaccessible"
    )
    assert ("gpu.state", "0000:0c:00.0") in folded(lost["gpu.lost", "0000:0c:00.0"])
    card = "0000:23:00.0"
    place = replay.host("four-card-gen4")["links"][f"/sys/bus/pci/devices/{card}"].replace("../../../", "/sys/")
    power = of_host("four-card-gen4", files={f"{place}/power/runtime_status": "error\n"})
    (state,) = [one for one in power["gpu.runtime_status", card].explains if one.id == "gpu.state"]
    assert "faulted on this boot" not in state.seen
    assert power["gpu.fault", card].status is Status.ok


def test_a_card_that_is_wedged_or_lost_is_not_said_to_be_without_fault() -> None:
    for line in (
        "xe 0000:0c:00.0: [drm] device wedged, needs recovery",
        "xe 0000:0c:00.0: [drm] *ERROR* Hardware reports unknown graphics version 0.00",
    ):
        assert ("gpu.fault", "0000:0c:00.0") not in of_host("one-card-b450-x8", line)


def test_suppressed_errors_of_no_device_have_a_step_that_can_be_pasted() -> None:
    one = of_host("nvidia-host", "aer_ratelimit: 8156 callbacks suppressed")["aer.rate", "host"]
    assert (one.status, "at least 8156 suppressed" in one.seen, "//" in one.next_step) == (Status.fail, True, False)
    assert "0 times" not in one.seen


DPC = "pcieport 0000:00:03.1: DPC: containment event, status:0x1f05 source:0x0a00"
DETECTED = "pcieport 0000:00:03.1: DPC: ERR_FATAL detected"
EDR = "pcieport 0000:00:03.1: EDR: EDR event received"


@pytest.mark.parametrize(
    ("lines", "count"),
    [
        ((DPC, DETECTED), 1),
        ((DPC, DETECTED.replace("ERR_FATAL", "unmasked uncorrectable error")), 1),
        ((EDR, DPC, DETECTED), 1),
        ((DETECTED,), 1),
        ((DPC, DETECTED, DPC, DETECTED), 2),
        ((DPC, DPC), 2),
        ((DPC, DETECTED, DETECTED.replace("03.1", "01.1")), 2),
    ],
)
def test_one_containment_counts_once(lines: tuple[str, ...], count: int) -> None:
    text = [f"[  900.00000{at}] {line}" for at, line in enumerate(lines)]
    assert sum(event.count for event in parse_text(text, NOW, BOOTED).events) == count


def test_a_contained_port_that_reports_its_error_as_well_counts_once() -> None:
    header = (
        "pcieport 0000:00:03.1: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Receiver ID)"
    )
    one = of_host("nvidia-host", DPC, DETECTED, header, "pcieport 0000:00:03.1:    [18] MalfTLP")[
        "aer.fatal", "0000:0a:00.0"
    ]
    assert "1 time" in one.seen
