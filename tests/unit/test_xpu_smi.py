"""xpu-smi in all forms it prints, all ways in which it fails, and when it is not started."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost.gather import Options, gather
from hostcheck.onhost.reader import REASONS, Output, Reader, Reading
from hostcheck.onhost.readings import xpu_smi
from hostcheck.onhost.readings.xpu_smi import SmiDevice, complaint, outcome, parse_json, parse_text, parse_version
from hostcheck.onhost.recording import RecordedReader
from tests import replay

GROUPS = ("pcie", "kernel_log", "holders", "xpu_smi")


def facts(change: dict[str, Any] | None = None, host: str = "four-card-gen4", **options: Any) -> Any:
    recording = replay.changed(replay.host(host), change or {})
    return gather(RecordedReader(recording), Options(**options), GROUPS)


def json_list(*entries: dict[str, Any]) -> str:
    return json.dumps({"device_list": list(entries)})


TABLE = """\
+-----------+--------------------------------------------------------------------------------------+
| Device ID | Device Information                                                                   |
+-----------+--------------------------------------------------------------------------------------+
| 0         | Device Name: Intel(R) Data Center GPU Max 1550 with a name that is so long that it   |
|           |   goes on                                                                            |
|           | Vendor Name: Intel(R) Corporation                                                    |
|           | SOC UUID: 00000000-0000-0017-0000-0000e2118086                                       |
|           | PCI BDF Address: 0000:17:00.0                                                        |
|           | DRM Device: /dev/dri/card1                                                           |
|           | Function Type: physical                                                              |
+-----------+--------------------------------------------------------------------------------------+
| 1         | Device Name: Intel(R) Arc(TM) Pro B60 Graphics                                       |
|           | Vendor Name: Intel(R) Corporation                                                    |
|           | PCI BDF Address: 0001:E3:00.0                                                        |
|           |                                                                                      |
|           | PCI Device ID: 0xe211                                                                |
+-----------+--------------------------------------------------------------------------------------+
"""

SCREEN = """\
+----------------------------------------------+----------------------------+------------------------+
|            Intel XPU-SMI v2.1    Driver: 85B7CA089405934276CBAD3    Level Zero: 1.28.6             |
+----------------------------------------------+----------------------------+------------------------+
| GPU  Name                    Persistence-M   | Bus-Id            Disp.A   |   Volatile Uncorr. ECC |
| Fan              Temp  Pwr:Usage/Cap         | Memory-Usage               |   GPU-Util  Compute M. |
+----------------------------------------------+----------------------------+------------------------+
|   0  Intel(R) Arc(TM) Pro B  Off             | 0000:03:00.0      Off      |               Disabled |
|      60 Graphics                             |                            |                        |
| 0%                N/A  41W / 190W            | 32MiB / 10172MiB           |      N/A       Default |
+----------------------------------------------+----------------------------+------------------------+
|   1                          Off             | 00000000:E3:00.0  Off      |               Disabled |
| 61%               N/A  34W / 190W            | 24MiB / 12216MiB           |      N/A       Default |
+----------------------------------------------+----------------------------+------------------------+
"""

BORDERLESS = """
  Device ID     Device Information
  0             Device State: survivability mode
                Recovery Action: something that the tool proposes
  1             Device Name: Intel(R) Arc(TM) Pro B70 Graphics
                Device State: normal
                PCI BDF Address: 0000:e3:00.0
                DRM Device: /dev/dri/card2
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("CLI:\n    Version: 1.0.0.20211217\n    Build ID: f847c0fa\n", "1.0.0.20211217"),
        ("xpu-smiCLI:\n    Version: 1.2.39.20240906\n    Level Zero Version: 1.20.2\n", "1.2.39.20240906"),
        ("CLI:\n  Version: 2.0.0.20250225\n  Build ID: 8389eee7\n\nService:\n  Version: N/A\n", "2.0.0.20250225"),
        ("xpu-smi version v2.1.1\n", "2.1.1"),
    ],
)
def test_version(text: str, wanted: str) -> None:
    assert parse_version(text) == wanted


@pytest.mark.parametrize(
    "text", ["", "CLI:\n    Version: N/A\n", "Level Zero Version: 1.28.6\n", "Sysman driver failed\n"]
)
def test_no_version_is_not_understood(text: str) -> None:
    assert Reading(text, "x").then(parse_version).unread == "not_understood"


@pytest.mark.parametrize(
    ("entry", "wanted"),
    [
        (
            {"device_id": 0, "device_name": "Max 1100", "device_type": "GPU", "pci_bdf_address": "0000:4d:00.0"},
            SmiDevice(0, "0000:4d:00.0", "Max 1100"),
        ),
        (
            {
                "device_id": "1",
                "pci_bdf_address": "0001:E3:00.0",
                "drm_device": "/dev/dri/card2",
                "pci_device_id": "0xe223",
            },
            SmiDevice(1, "0001:e3:00.0", drm="card2", device="e223"),
        ),
        (
            {"device_id": 2, "device_state": "normal", "device_function_type": "physical", "pcie_generation": "-1"},
            SmiDevice(2, state="normal", function="physical"),
        ),
        ({"device_id": -1, "device_name": "unknown", "pci_bdf_address": "N/A", "drm_device": None}, SmiDevice()),
    ],
    ids=["1.0", "1.3 strings", "2.x state", "placeholders"],
)
def test_json_of_all_ages(entry: dict[str, Any], wanted: SmiDevice) -> None:
    assert parse_json(json_list(entry)) == (wanted,)


@pytest.mark.parametrize(
    "text", ['{"device_list": null}', '{"device_list": []}', '{"device_list": "No device discovered"}']
)
def test_nothing_listed_is_an_answer(text: str) -> None:
    assert parse_json(text) == ()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"error": "Fail to initialize XPUM core", "errno": 39}', "error 39"),
        ("Error: XPUM Service Status Error. \n", "XPUM Service Status Error"),
        ("Sysman driver initialization failed.\n", "failed"),
        ("", "printed nothing"),
        ("[1, 2]", "device"),
        ("[" * 100_000, "JSON"),
        ('{"device_list": 7}', "list of devices"),
        ('{"device_list": [{"device_id"', "JSON"),
        ('{"something": "else"}', "device_list"),
    ],
)
def test_other_json_is_not_understood(text: str, part: str) -> None:
    reading = Reading(text, "x").then(parse_json)
    assert reading.unread == "not_understood"
    assert part in reading.detail


def test_messages_before_the_json_do_not_matter() -> None:
    text = "[2026-08-12 10:00:00.1] [warning] no metric access\n" + json_list({"pci_bdf_address": "0000:03:00.0"})
    assert [device.bdf for device in parse_json(text)] == ["0000:03:00.0"]


def test_bordered_table() -> None:
    first, second = parse_text(TABLE)
    name = "Intel(R) Data Center GPU Max 1550 with a name that is so long that it goes on"
    assert first == SmiDevice(0, "0000:17:00.0", name, drm="card1", function="physical")
    assert second == SmiDevice(1, "0001:e3:00.0", "Intel(R) Arc(TM) Pro B60 Graphics", device="e211")


def test_screen_is_keyed_by_the_address() -> None:
    assert parse_text(SCREEN) == (
        SmiDevice(0, "0000:03:00.0", "Intel(R) Arc(TM) Pro B 60 Graphics"),
        SmiDevice(1, "0000:e3:00.0", ""),
    )


def test_borderless_list() -> None:
    assert parse_text(BORDERLESS) == (
        SmiDevice(0, state="survivability mode"),
        SmiDevice(1, "0000:e3:00.0", "Intel(R) Arc(TM) Pro B70 Graphics", "normal", "card2"),
    )


@pytest.mark.parametrize("text", ["No device discovered\n", "No GPU devices found.\n", "no device found"])
def test_text_without_devices(text: str) -> None:
    assert parse_text(text) == ()


@pytest.mark.parametrize("text", ["", "Usage: xpu-smi [Options]\n", "Error: XPUM Service Status Error. \n"])
def test_other_text_is_not_understood(text: str) -> None:
    assert Reading(text, "x").then(parse_text).unread == "not_understood"


NOISE = st.sampled_from(["[warn] slow bus", "INFO: loading", "xe: something", "***", "Error reading fan"])


@given(st.sampled_from([TABLE, SCREEN, BORDERLESS]), st.lists(st.tuples(st.integers(0, 30), NOISE), max_size=6))
def test_foreign_lines_change_nothing(text: str, noise: list[tuple[int, str]]) -> None:
    lines = text.splitlines()
    for at, line in noise:
        lines.insert(min(at, len(lines)), line)
    assert {one.bdf for one in parse_text("\n".join(lines))} == {one.bdf for one in parse_text(text)}


@given(st.text(max_size=400) | st.sampled_from([TABLE, SCREEN, BORDERLESS]).flatmap(
    lambda text: st.integers(0, len(text)).map(lambda at: text[:at])
))  # fmt: skip
def test_any_text_gives_devices_or_a_reason(text: str) -> None:
    for parse in (parse_text, parse_json):
        reading = Reading(text, "x").then(parse)
        assert reading.value is not None or reading.unread == "not_understood"


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["device_list", "error", "errno", "device_id", "pci_bdf_address", "device_state"]), inner
    ),
))  # fmt: skip
def test_any_json_gives_devices_or_a_reason(value: Any) -> None:
    reading = Reading(json.dumps(value), "x").then(parse_json)
    assert reading.value is not None or reading.unread == "not_understood"


@pytest.mark.parametrize(
    ("rc", "part"),
    [
        (255, "exit 255"),
        (39, "Level Zero cannot initialise"),
        (4, "device not found"),
        (46, "firmware state unknown"),
        (1, "generic error"),
        (77, "exit 77"),
        (-11, "SIGSEGV"),
        (139, "SIGSEGV"),
        (134, "SIGABRT"),
        (-9, "SIGKILL"),
    ],
)
def test_every_failure_says_what_it_was(rc: int, part: str) -> None:
    reading = outcome(Output(rc, "Error: what it said\n", ""), "xpu-smi discovery")
    assert reading.unread == "exit"
    assert part in reading.detail
    assert "what it said" in reading.detail


@pytest.mark.parametrize(
    "text",
    [
        "Error: XPUM Service Status Error. \n",
        "Sysman driver initialization failed.\n",
        '{"error": "Fail to initialize XPUM core", "errno": 39}',
        "ZE_RESULT_ERROR_SURVIVABILITY_MODE_DETECTED\n",
    ],
)
def test_exit_0_with_nothing_but_an_error_is_a_failure(text: str) -> None:
    reading = outcome(Output(0, text, ""), "xpu-smi discovery")
    assert reading.unread == "exit"
    assert reading.detail.startswith("exit 0, yet: ")


@pytest.mark.parametrize(
    "text", [TABLE + "Error: no fan\n", '{"device_list": null}', "No device discovered\n", "CLI:\n"]
)
def test_exit_0_with_an_answer_is_none(text: str) -> None:
    assert outcome(Output(0, text, ""), "xpu-smi discovery").value == text


def test_complaint_takes_the_line_that_tells() -> None:
    assert complaint("loading\nZE_RESULT_ERROR_DEVICE_LOST\n") == "ZE_RESULT_ERROR_DEVICE_LOST"
    assert complaint("all is well\n") == ""


def test_a_sound_host_is_asked() -> None:
    smi = facts().xpu_smi
    assert smi.version.value == "1.3.6.20260105"
    assert [device.bdf for device in smi.devices.value] == [f"0000:{bus}:00.0" for bus in ("23", "27", "43", "47")]
    assert smi.listed.value == tuple(replace(one, device="") for one in smi.devices.value)
    assert smi.survivability.value is False


def sleeping(host: str = "four-card-gen4", bdf: str = "0000:47:00.0") -> dict[str, Any]:
    way = replay.host(host)["links"][f"/sys/bus/pci/devices/{bdf}"].replace("../../../", "/sys/")
    return {"files": {f"{way}/power/runtime_status": "suspended\n"}}


HELD = {
    "links": {"/proc/4711/fd/9": "/dev/dri/renderD129"},
    "files": {"/proc/4711/comm": "python\n", "/proc/4711/cgroup": "0::/user.slice\n"},
}
FAULT = "[ 5000.000000] xe 0000:47:00.0: [drm] Tile0: GT0: Fault response: Unsuccessful -ENOENT"


@pytest.mark.parametrize(
    ("change", "reason", "part"),
    [
        (sleeping(), "suspended", "0000:47:00.0"),
        ({"log": FAULT}, "faulted", "0000:47:00.0"),
        (HELD, "not_asked", "held by 4711 (python)"),
        ({"files": {"/proc/999/fd": {"error": "EACCES"}}}, "permission", "1 processes"),
        (
            {"commands": {replay.JOURNAL: None, "dmesg": {"rc": 1, "stdout": "", "stderr": "not permitted"}}},
            "",
            "not known",
        ),
    ],
    ids=["suspended", "faulted", "held", "holders unknown", "log refused"],
)
def test_it_is_not_started_where_it_could_do_harm(change: dict[str, Any], reason: str, part: str) -> None:
    smi = facts(change).xpu_smi
    for reading in (smi.version, smi.devices, smi.listed, smi.survivability):
        assert reading.unread in ({reason} if reason else set(REASONS))
        assert part in reading.detail


def test_a_seat_manager_with_a_card_node_does_not_hold_a_card() -> None:
    change = {"links": {"/proc/900/fd/9": "/dev/dri/card2"}, "files": {"/proc/900/comm": "systemd-logind\n"}}
    assert facts(change).xpu_smi.devices.value


@pytest.mark.parametrize("change", [sleeping(), {"log": FAULT}, HELD])
def test_always_means_always(change: dict[str, Any]) -> None:
    assert len(facts(change, xpu_smi="always").xpu_smi.devices.value) == 4


def test_wake_allows_a_sleeping_card() -> None:
    assert len(facts(sleeping(), wake=True).xpu_smi.devices.value) == 4


def test_never_means_never() -> None:
    assert facts(xpu_smi="never").xpu_smi.devices.unread == "not_asked"


def test_hosts_of_other_vendors_are_not_asked() -> None:
    assert facts(host="nvidia-host", xpu_smi="always").xpu_smi.devices.unread == "not_asked"


class Counting(RecordedReader):
    """Keeps what was run."""

    def __init__(self, recording: dict[str, Any]) -> None:
        super().__init__(recording)
        self.ran: list[tuple[str, ...]] = []

    def run(self, argv: Any, timeout: float = 10.0, limit: int = 1 << 20) -> Reading[Output]:
        self.ran.append(tuple(argv))
        return super().run(argv, timeout, limit)


def test_a_tool_that_hangs_is_not_asked_again() -> None:
    recording = replay.changed(
        replay.host("two-card-gen5"), {"commands": {"xpu-smi discovery -j": {"error": "timeout"}}}
    )
    reader = Counting(recording)
    smi = gather(reader, subset=GROUPS).xpu_smi
    assert (smi.devices.unread, smi.listed.unread) == ("timeout", "timeout")
    assert xpu_smi.LIST_TEXT not in reader.ran


def test_only_the_three_reading_commands_are_ever_run() -> None:
    reader = Counting(replay.host("two-card-gen5"))
    gather(reader, subset=GROUPS)
    asked = [argv for argv in reader.ran if argv[0] == "xpu-smi"]
    assert asked == [("xpu-smi", "-v"), ("xpu-smi", "discovery", "-j"), ("xpu-smi", "discovery")]
    assert isinstance(reader, Reader)
