"""Memory, kernel switches and crash capture: values, and the reason where there is none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost.reader import Reading
from hostcheck.onhost.readings import crash, memory, sysctls
from hostcheck.onhost.recording import RecordedReader, empty
from tests import replay

REFUSED = {"error": "EACCES"}


def recorded(files: dict[str, Any]) -> RecordedReader:
    return RecordedReader({**empty(0), "files": files})


def test_memory_of_the_small_lab_host() -> None:
    found = memory.read(RecordedReader(replay.host("two-card-gen5")))
    assert (found.total.value, found.available.value) == (15_943_924, 14_204_112)
    assert found.driver_held.value == 15_943_924 - 14_204_112 - 310_000
    assert (found.swap_total.value, found.gpu_active.value, found.shared.value) == (37_748_732, 0, 9216)
    assert found.swaps.value == (memory.SwapArea("/swap.img", "file", 37_748_732, 0),)
    assert found.memory_pressure.value == memory.Pressure(0.0, 0.0, 0.0, 0.0)
    assert [(one.name, one.corrected.value, one.uncorrected.value) for one in found.controllers.value or ()] == [
        ("mc0", 0, 0)
    ]
    assert (found.block_bytes.value, found.offline.value) == (2 << 30, ())


def test_blocks_that_are_off_line() -> None:
    files = {f"{memory.BLOCKS}/memory{number}/state": "online\n" for number in range(12)}
    files |= {f"{memory.BLOCKS}/memory{number}/state": "offline\n" for number in (2, 10)}
    files[f"{memory.BLOCKS}/memory3/state"] = "going-offline\n"
    assert memory.read(recorded(files)).offline.value == (2, 10)
    files[f"{memory.BLOCKS}/memory3/state"] = "gone\n"
    assert memory.read(recorded(files)).offline.unread == "not_understood"


def test_more_blocks_than_are_read() -> None:
    files = {f"{memory.BLOCKS}/memory{number}/state": "offline\n" for number in range(memory.BLOCK_LIMIT + 1)}
    assert memory.read(recorded(files)).offline.unread == "too_large"


def test_no_controller_differs_from_a_refusal() -> None:
    assert memory.read(recorded({})).controllers.value == ()
    assert memory.read(recorded({f"{memory.EDAC}/mc": "x", f"{memory.EDAC}/power/": ""})).controllers.value == ()
    assert memory.read(recorded({memory.EDAC: REFUSED})).controllers.unread == "permission"
    (one,) = memory.read(recorded({f"{memory.EDAC}/mc0/ce_count": "many\n"})).controllers.value or ()
    assert (one.corrected.unread, one.uncorrected.unread) == ("not_understood", "absent")


@pytest.mark.parametrize(
    ("content", "reason"),
    [(REFUSED, "permission"), (None, "absent"), ("no numbers\n", "not_understood"), ("\0", "not_text")],
)
def test_meminfo_that_could_not_be_read(content: Any, reason: str) -> None:
    found = memory.read(recorded({} if content is None else {memory.MEMINFO: content}))
    assert {found.total.unread, found.available.unread, found.driver_held.unread} == {reason}


def test_a_field_that_is_missing_costs_itself() -> None:
    found = memory.read(recorded({memory.MEMINFO: "MemTotal: 100 kB\nMemFree: 50 kB\n"}))
    assert (found.total.value, found.available.unread, found.driver_held.unread) == (100, "absent", "absent")
    assert found.driver_held.detail == "no MemAvailable, AnonPages there"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (REFUSED, "permission"),
        (None, "absent"),
        ("some avg10=0.00\n", "not_understood"),
        ({"error": "EOPNOTSUPP"}, "io"),
    ],
)
def test_pressure_that_could_not_be_read(content: Any, reason: str) -> None:
    found = memory.read(recorded({} if content is None else {"/proc/pressure/memory": content}))
    assert found.memory_pressure.unread == reason


@pytest.mark.parametrize("text", ["", "x\n", "Filename Type Size Used Priority\n/a file x 0 -2\n"])
def test_swaps_of_another_form(text: str) -> None:
    assert memory.read(recorded({"/proc/swaps": text})).swaps.unread == "not_understood"


@pytest.mark.parametrize(
    "parse",
    [
        memory.parse_meminfo,
        memory.parse_pressure,
        memory.parse_swaps,
        memory.parse_count,
        memory.parse_block_size,
        memory.parse_block_state,
        sysctls.parse_number,
        crash.parse_switch,
        crash.parse_backend,
        lambda text: crash.parse_argument(text, "crashkernel"),
    ],
)
@given(text=st.text())
def test_random_text_is_a_value_or_a_value_error(parse: Any, text: str) -> None:
    try:
        parse(text)
    except ValueError:
        pass


@given(
    foreign=st.text(alphabet=st.characters(exclude_characters="\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), min_size=1)
)
def test_a_foreign_line_changes_no_other_field(foreign: str) -> None:
    if foreign.startswith("MemTotal"):
        return
    assert memory.parse_meminfo(f"{foreign}\nMemTotal: 5 kB\n{foreign}\n")["MemTotal"] == 5


# -- kernel switches -----------------------------------------------------------------------------------


def test_switches() -> None:
    found = sysctls.read(RecordedReader(replay.host("four-card-gen4")))
    assert (found.kernel__panic.value, found.kernel__hardlockup_panic.value, found.vm__swappiness.value) == (0, 0, 60)
    assert found.kernel__panic.source == "/proc/sys/kernel/panic"


@pytest.mark.parametrize(
    ("content", "reason"),
    [(REFUSED, "permission"), (None, "absent"), ("often\n", "not_understood"), ("", "not_understood")],
)
def test_a_switch_that_could_not_be_read(content: Any, reason: str) -> None:
    files = {} if content is None else {"/proc/sys/kernel/panic": content}
    assert sysctls.read(recorded(files)).kernel__panic.unread == reason


# -- crash capture -------------------------------------------------------------------------------------


def test_capture_of_a_lab_host() -> None:
    found = crash.read(RecordedReader(replay.host("four-card-gen4")))
    assert (found.pstore_mounted.value, found.pstore_backend.value) == (True, "efi_pstore")
    assert (found.pstore_records.value, found.pstore_archive.value) == ((), ())
    assert (found.kdump_loaded.value, found.crashkernel.value, found.netconsole.value) == (False, "", ())


@pytest.mark.parametrize("path", [crash.KEXEC, crash.KEXEC_NEW])
def test_a_loaded_crash_kernel(path: str) -> None:
    found = crash.read(recorded({path: "1\n", "/proc/cmdline": "ro crashkernel=1G crashkernel=512M\n"}))
    assert (found.kdump_loaded.value, found.crashkernel.value) == (True, "crashkernel=512M")


def test_records() -> None:
    files = {f"{crash.PSTORE}/dmesg-efi-1.enc.z": "x", f"{crash.ARCHIVE}/dmesg-efi-0/dmesg.txt": "x"}
    found = crash.read(recorded(files))
    assert found.pstore_records.value == ("dmesg-efi-1.enc.z",)
    assert found.pstore_archive.value == ("dmesg-efi-0",)


def test_network_console() -> None:
    module = {"/sys/module/netconsole/refcnt": "0\n"}
    assert crash.read(recorded({**module, "/proc/cmdline": "ro\n"})).netconsole.value == ()
    target = {
        f"{crash.TARGETS}/a/enabled": "1\n",
        f"{crash.TARGETS}/b/enabled": "0\n",
        f"{crash.TARGETS}/c/dev_name": "x",
    }
    assert crash.read(recorded({**module, **target, "/proc/cmdline": "ro\n"})).netconsole.value == ("a",)
    asked = crash.read(recorded({"/proc/cmdline": "ro netconsole=6665@192.0.2.1/eth0,6666@192.0.2.2/\n"}))
    assert asked.netconsole.value == ("module",)
    assert "192.0.2" not in repr(asked)


def whole(found: crash.Crash) -> dict[str, Reading[Any]]:
    return vars(found)


@pytest.mark.parametrize(
    ("files", "field", "reason"),
    [
        ({crash.PSTORE: REFUSED}, "pstore_records", "permission"),
        ({crash.ARCHIVE: REFUSED}, "pstore_archive", "permission"),
        ({crash.KEXEC: REFUSED}, "kdump_loaded", "permission"),
        ({crash.KEXEC: "yes\n"}, "kdump_loaded", "not_understood"),
        ({crash.BACKEND: REFUSED}, "pstore_backend", "permission"),
        ({crash.BACKEND: "a b\n"}, "pstore_backend", "not_understood"),
        ({}, "crashkernel", "absent"),
        ({}, "pstore_mounted", "absent"),
        ({"/proc/self/mountinfo": "garbage\n"}, "pstore_mounted", "not_understood"),
        ({crash.NETCONSOLE: REFUSED}, "netconsole", "permission"),
        ({"/sys/module/netconsole/refcnt": "", crash.TARGETS: REFUSED}, "netconsole", "permission"),
        ({"/sys/module/netconsole/refcnt": "", f"{crash.TARGETS}/a/enabled": "x"}, "netconsole", "not_understood"),
    ],
)
def test_what_could_not_be_read_says_why(files: dict[str, Any], field: str, reason: str) -> None:
    assert whole(crash.read(recorded(files)))[field].unread == reason
