"""How the previous boot ended, modules and their parameters, and what tainted the kernel."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.checks import last_boot as checks
from hostcheck.checks import taint as taint_check
from hostcheck.expectations import expectation
from hostcheck.findings import Finding, Status, run
from hostcheck.onhost.gather import gather
from hostcheck.onhost.reader import Reading
from hostcheck.onhost.readings import last_boot, modules
from hostcheck.onhost.recording import RecordedReader, seconds
from tests import replay
from tests.hosts.build_boot import MACHINE, SEQUENCE

HOST = "four-card-gen4"
FOLDER = f"{last_boot.JOURNAL}/{MACHINE}"
THERE = {"error": "ENODATA"}
RESET = "[    0.300000] Previous system reset reason [{}]: {}"


def facts(change: dict[str, Any] | None = None, host: str = HOST) -> Any:
    return gather(RecordedReader(replay.changed(replay.host(host), change or {})))


def judge(check: Any, change: dict[str, Any] | None = None, host: str = HOST) -> Finding:
    (found,) = run((check.declaration,), facts(change, host), expectation({}))
    return found


def booted() -> float:
    recording = replay.host(HOST)
    return seconds(recording["taken_at"]) - float(recording["files"]["/proc/uptime"].split()[0])


def disposed(after: float) -> str:
    return f"system@{int((booted() + after) * 1e6):016x}-8f1d2c3b4a596877.journal~"


# -- the previous boot -------------------------------------------------------------------------------------------------


def test_a_host_without_any_sign() -> None:
    found = facts().last_boot
    assert (found.left_open.value, found.pstore.value, found.firmware_records.value) == (False, (), 0)
    assert found.reset_reason.unread == "absent"
    assert judge(checks.last_boot).status is Status.ok


@pytest.mark.parametrize(("after", "is_open"), [(9, True), (-60, True), (599, True), (3600, False), (-90_000, False)])
def test_only_a_journal_put_aside_by_this_boot_counts(after: float, is_open: bool) -> None:
    assert facts({"files": {f"{FOLDER}/{disposed(after)}": THERE}}).last_boot.left_open.value is is_open


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"remove": [last_boot.JOURNAL]}, "absent"),
        ({"files": {last_boot.JOURNAL: {"error": "EACCES"}}}, "permission"),
        ({"files": {FOLDER: {"error": "EACCES"}}}, "permission"),
        ({"remove": [f"{FOLDER}/system@"]}, "absent"),
        ({"remove": [f"{FOLDER}/system.journal"]}, "absent"),
        ({"files": {"/proc/uptime": "long\n"}}, "not_understood"),
    ],
)
def test_a_journal_that_tells_nothing(change: dict[str, Any], reason: str) -> None:
    assert facts(change).last_boot.left_open.unread == reason


@pytest.mark.parametrize("folder", last_boot.PSTORE)
def test_crash_records(folder: str) -> None:
    found = judge(checks.last_boot, {"files": {f"{folder}/dmesg-efi_pstore-1": THERE}})
    assert (found.status, found.seen) == (Status.warn, f"1 crash records in {folder}")
    refused = {"files": {f"{folder}": {"error": "EACCES"}}, "remove": [f"{folder}/"]}
    assert facts(refused).last_boot.pstore.unread == "permission"
    assert judge(checks.last_boot, refused).status is Status.unknown


@pytest.mark.parametrize(
    ("code", "reason", "status"),
    [
        ("0x00800800", "internal CPU shutdown event occurred", Status.warn),
        ("0x08000800", "an uncorrected error caused a data fabric sync flood event", Status.warn),
        ("0x00080800", "system reset pin BP_SYS_RST_L was tripped", Status.info),
        ("0x00200800", "software wrote 0x6 to reset control register 0xCF9", Status.ok),
    ],
)
def test_the_reset_reason(code: str, reason: str, status: Status) -> None:
    change = {"log": RESET.format(code, reason)}
    boot = facts(change).last_boot
    assert (boot.reset_code.value, boot.reset_reason.value) == (code, reason)
    found = judge(checks.last_boot, change)
    assert (found.status, reason in found.seen) == (status, True)


def test_a_refused_log_is_told_at_its_cause() -> None:
    change = {"commands": {replay.JOURNAL: None, "dmesg": None}}
    assert facts(change).last_boot.firmware_records.unread == "tool_missing"
    found = judge(checks.last_boot, change)
    assert (found.status, found.cause is not None) == (Status.unknown, True)


def test_records_of_the_firmware_are_told_where_they_are_judged() -> None:
    log = (
        "[    0.900000] BERT: Error records from previous boot:\n"
        "[    0.900001] [Hardware Error]: event severity: fatal\n"
        "[    0.900002] [Hardware Error]:  Error 0, type: fatal\n"
        "[    0.900003] [Hardware Error]:   section_type: PCIe error\n"
        "[    0.900004] [Hardware Error]:   port_type: 4, root port\n"
        "[    0.900005] [Hardware Error]:   device_id: 0000:20:01.1\n"
        "[    0.900006] [Hardware Error]:   aer_uncor_status: 0x00004000, aer_uncor_mask: 0x00000000\n"
    )
    report = replay.report(replay.changed(replay.host(HOST), {"log": log}))
    (cause,) = [one for one in report.findings if one.id == "aer.fatal" and one.status is Status.fail]
    assert "boot.last" in {one.id for one in cause.explains}


def test_nothing_to_tell_by() -> None:
    assert judge(checks.last_boot, {"remove": [last_boot.JOURNAL]}).status is Status.not_applicable


@given(st.text(max_size=80))
def test_any_name_of_a_journal(name: str) -> None:
    reading = Reading(name, "x").then(last_boot.parse_disposed)
    assert reading.value is not None or reading.unread == "not_understood"


@given(
    st.lists(
        st.sampled_from(["system.journal", "user-1000.journal", "x", f"system@{SEQUENCE}-{1:016x}-{2:016x}.journal"])
    )
)
def test_any_folder_gives_an_answer_or_none(names: list[str]) -> None:
    reading = Reading(tuple(names), "x").then(lambda given: last_boot.was_left_open(given, 1e9))
    assert reading.value is False or reading.unread == "not_understood"


# -- modules and taint -------------------------------------------------------------------------------------------------


def test_parameters_and_users_of_the_driver() -> None:
    (xe,) = facts().modules.drivers.value
    assert (xe.name, xe.refcnt.value) == ("xe", 0)
    assert xe.parameters.value["probe_display"] == "Y"


@pytest.mark.parametrize(("content", "reason"), [({"error": "EIO"}, "io"), ("\x1b[2J\n", "not_understood")])
def test_a_parameter_that_cannot_be_read(content: Any, reason: str) -> None:
    (xe,) = facts({"files": {"/sys/module/xe/parameters/vram_bar_size": content}}).modules.drivers.value
    assert xe.parameters.unread == reason


def test_a_parameter_for_root_alone_is_left_out() -> None:
    (xe,) = facts({"files": {"/sys/module/xe/parameters/vram_bar_size": {"error": "EACCES"}}}).modules.drivers.value
    assert set(xe.parameters.value) == {"probe_display", "wedged_mode"}
    (xe,) = facts({"files": {"/sys/module/xe/refcnt": "-1\n"}}).modules.drivers.value
    assert xe.refcnt.unread == "not_understood"
    assert facts(host="arm-server").modules.drivers.value == ()
    assert facts({"remove": ["/sys/module"]}).modules.drivers.unread == "absent"


@pytest.mark.parametrize(
    ("bits", "status", "words"),
    [
        (0, Status.ok, "not tainted"),
        (512, Status.info, "W kernel warning"),
        (1 << 4, Status.warn, "M machine check"),
        (1 << 5, Status.warn, "B bad page"),
        (1 << 7, Status.warn, "D kernel oops"),
        (1 << 14 | 512, Status.warn, "L soft lockup"),
        (1 << 11, Status.info, "I firmware bug worked around"),
        (1 << 40, Status.info, "bit 40"),
    ],
)
def test_taint_by_its_bits(bits: int, status: Status, words: str) -> None:
    found = judge(taint_check.taint, {"files": {"/proc/sys/kernel/tainted": f"{bits}\n"}})
    assert (found.status, words in found.seen) == (status, True)


def test_modules_that_taint_are_named() -> None:
    files: dict[str, Any] = {
        "/proc/sys/kernel/tainted": "12288\n",
        "/sys/module/zfs/taint": "OE\n",
        "/sys/module/a/taint": "\n",
    }
    assert facts({"files": files}).modules.tainting.value == {"zfs": "OE"}
    assert "set by zfs" in judge(taint_check.taint, {"files": files}).seen
    files["/sys/module/a/taint"] = {"error": "EACCES"}
    assert facts({"files": files}).modules.tainting.unread == "permission"
    assert "modules not read" in judge(taint_check.taint, {"files": files}).seen


@pytest.mark.parametrize("content", [{"error": "EACCES"}, "many\n", None])
def test_a_taint_that_cannot_be_read_is_unknown(content: Any) -> None:
    change = {"files": {"/proc/sys/kernel/tainted": content}}
    assert facts(change).modules.taint_letters.value is None
    assert judge(taint_check.taint, change).status is Status.unknown


@pytest.mark.parametrize("parse", [modules.parse_refcnt, modules.parse_parameter, modules.parse_taint])
@given(text=st.text(max_size=60))
def test_random_text_is_a_value_or_a_reason(parse: Any, text: str) -> None:
    reading = Reading(text, "x").then(parse)
    assert reading.value is not None or reading.unread == "not_understood"
