"""Verdicts about xpu-smi: never more than a warning, and never a word about a card."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.checks import ALL
from hostcheck.expectations import Expectation
from hostcheck.findings import Finding, Status, run
from hostcheck.onhost.gather import Options, gather
from hostcheck.onhost.recording import RecordedReader
from tests import replay

HOST = "four-card-gen4"
GPUS = tuple(f"0000:{bus}:00.0" for bus in ("23", "27", "43", "47"))
COMMANDS = ("xpu-smi -v", "xpu-smi discovery -j", "xpu-smi discovery")
HELD = {"links": {"/proc/4711/fd/9": "/dev/dri/renderD129"}, "files": {"/proc/4711/comm": "python\n"}}


def said(stdout: str, rc: int = 0, stderr: str = "") -> dict[str, Any]:
    return {"rc": rc, "stdout": stdout, "stderr": stderr}


def version(number: str) -> dict[str, Any]:
    return said(f"CLI:\n    Version: {number}\n\nService:\n    Version: {number}\n    Level Zero Version: 1.28.6\n")


def listing(*bdfs: str, **more: Any) -> dict[str, Any]:
    entries = [{"device_id": at, "device_name": "Arc", "pci_bdf_address": bdf, **more} for at, bdf in enumerate(bdfs)]
    return said(json.dumps({"device_list": entries or None}))


def findings(change: dict[str, Any], host: str = HOST, **options: Any) -> list[Finding]:
    recording = replay.changed(replay.host(host), change)
    return run(ALL, gather(RecordedReader(recording), Options(**options)), Expectation())


def tool(change: dict[str, Any], host: str = HOST, **options: Any) -> Finding:
    (found,) = [one for one in findings(change, host, **options) if one.id == "tool.xpu_smi"]
    return found


def commands(
    discovery: dict[str, Any], text: dict[str, Any] | None = None, number: str = "2.0.0.20250225"
) -> dict[str, Any]:
    given: dict[str, Any] = {
        "xpu-smi -v": version(number),
        "xpu-smi discovery -j": discovery,
        "xpu-smi discovery": text,
    }
    return {"commands": given}


def test_all_seen() -> None:
    found = tool({})
    assert (found.status, found.seen) == (Status.ok, "sees 4 of 4 cards, version 1.3.6.20260105")
    assert str(found.subject) == "xpu-smi"


@pytest.mark.parametrize("number", ["1.0.0.20211217", "1.2.39.20240906", "1.2.42"])
def test_before_1_3_there_is_no_xe(number: str) -> None:
    found = tool(commands(listing(), said("No device discovered\n"), number))
    assert found.status is Status.warn
    assert found.seen.startswith("does not see 4 bound GPUs: version before 1.3 has no xe support")
    assert found.next_step


@pytest.mark.parametrize("number", ["1.3.6.20260105", "2.2.0", "2.10.1"])
def test_later_versions_have_no_such_excuse(number: str) -> None:
    found = tool(commands(listing(*GPUS[:3]), None, number))
    assert (found.status, found.seen) == (Status.warn, "does not see 1 bound GPU: 0000:47:00.0")


def test_cards_of_i915_are_no_matter_of_xe_support() -> None:
    ways = replay.host(HOST)["links"]
    links = {
        ways[f"/sys/bus/pci/devices/{bdf}"].replace("../../../", "/sys/")
        + "/driver": "../../../../bus/pci/drivers/i915"
        for bdf in GPUS
    }
    found = tool({**commands(listing(), None, "1.2.39"), "links": links})
    assert (found.status, found.seen) == (Status.warn, "does not see 4 bound GPUs")


def test_addresses_are_compared_not_texts() -> None:
    forms = ("23:00.0", "00000000:27:00.0", "0000:43:00.0", "0000:47:00.0")
    assert tool(commands(listing(*forms))).status is Status.ok


def test_a_card_that_the_kernel_does_not_have() -> None:
    found = tool(commands(listing(*GPUS, "0000:83:00.0")))
    assert (found.status, found.seen) == (Status.warn, "lists 0000:83:00.0, which the kernel does not have")


@pytest.mark.parametrize("number", ["2.0.1", "2.1.0"])
def test_the_known_regression_is_named(number: str) -> None:
    nameless = listing(*GPUS, device_name="")
    found = tool(commands(nameless, None, number))
    assert found.status is Status.warn
    assert found.seen.endswith(f"known regression of {number}")


@pytest.mark.parametrize(
    ("discovery", "part"),
    [
        (said("Sysman driver initialization failed.\n", 255), "the driver cannot be initialised"),
        (said('{"error": "Fail to initialize", "errno": 39}', 39), "Level Zero cannot initialise"),
        (said("", -11), "crashed: SIGSEGV"),
        (said("Error: XPUM Service Status Error. \n"), "XPUM Service Status Error"),
        (said("", 139), "crashed: SIGSEGV"),
        ({"error": "timeout"}, "does not answer"),
    ],
)
def test_a_failing_tool_is_a_warning(discovery: dict[str, Any], part: str) -> None:
    found = tool(commands(discovery))
    assert found.status is Status.warn
    assert part in found.seen


@pytest.mark.parametrize("discovery", [said(""), said("[1]"), said('{"new": 1}'), said('{"device_list": 3}')])
def test_an_unknown_form_is_unknown_with_its_text(discovery: dict[str, Any]) -> None:
    found = tool(commands(discovery))
    assert found.status is Status.unknown
    assert found.seen.startswith("not_understood")


SURVIVAL = [
    said("Error: ZE_RESULT_ERROR_SURVIVABILITY_MODE_DETECTED\n", -11),
    said("error 0x78000020\n", 1),
    listing(*GPUS, device_state="survivability mode"),
]


@pytest.mark.parametrize("discovery", SURVIVAL)
def test_survivability_against_the_kernel(discovery: dict[str, Any]) -> None:
    found = tool(commands(discovery))
    assert found.status is Status.warn
    assert "reports survivability, kernel disagrees" in found.seen
    assert "flash" not in found.next_step


@pytest.mark.parametrize("discovery", SURVIVAL)
def test_survivability_as_the_kernel_says(discovery: dict[str, Any]) -> None:
    way = replay.host(HOST)["links"][f"/sys/bus/pci/devices/{GPUS[1]}"].replace("../../../", "/sys/")
    change = {**commands(discovery), "files": {f"{way}/survivability_mode": "Boot\n"}}
    found = tool(change, xpu_smi="always")
    assert "reports survivability, as the kernel does" in found.seen


def test_not_installed_is_no_fault() -> None:
    found = tool({"commands": dict.fromkeys(COMMANDS)})
    assert (found.status, found.seen) == (Status.not_applicable, "not installed")


def test_a_tool_whose_library_is_missing_is_installed() -> None:
    text = "xpu-smi: error while loading shared libraries: libze_loader.so.1: cannot open shared object file"
    found = tool({"commands": dict.fromkeys(COMMANDS, said("", 127, text))})
    assert (found.status, "libze_loader.so.1" in found.seen) == (Status.warn, True)


def test_not_wanted_is_no_fault() -> None:
    assert tool({}, xpu_smi="never").status is Status.not_applicable


def test_a_card_in_use_leaves_it_unknown() -> None:
    found = tool(HELD)
    assert found.status is Status.unknown
    assert "0000:47:00.0 is held by 4711 (python)" in found.seen


@pytest.mark.parametrize(
    "log",
    [
        "Tile0: GT0: Fault response: Unsuccessful -ENOENT",
        "Xe device coredump has been created",
        "*ERROR* CRITICAL: Xe has declared device 0000:47:00.0 as wedged.",
        "Tile0: GT0: Timedout job: seqno=5784, guc_id=0, flags=0x73 in no process [-1]",
        "In Survivability Mode",
    ],
)
def test_a_faulted_card_explains_why_it_was_not_run(log: str) -> None:
    found = findings({"log": f"[ 5000.0] xe {GPUS[3]}: [drm] {log}"})
    assert "tool.xpu_smi" not in {one.id for one in found}
    (cause,) = [one for one in found if "tool.xpu_smi" in {item.id for item in one.explains}]
    assert str(cause.subject) == GPUS[3]


@pytest.mark.parametrize("dmesg", [said("", 1, "dmesg: read kernel buffer failed"), {"error": "timeout"}])
def test_a_refused_log_explains_why_it_was_not_run(dmesg: dict[str, Any] | None) -> None:
    found = findings({"commands": {replay.JOURNAL: None, "dmesg": dmesg}})
    (cause,) = [one for one in found if "tool.xpu_smi" in {item.id for item in one.explains}]
    assert cause.id == "log.access"


LATE = said("[ 5000.000000] xe 0000:23:00.0: [drm] Using GuC firmware from xe/bmg_guc_70.bin version 70.58.0\n")


@pytest.mark.parametrize("dmesg", [None, LATE])
def test_a_recorded_answer_counts_though_the_log_is_no_part_of_the_recording(dmesg: dict[str, Any] | None) -> None:
    """A bug report has a listing and what xpu-smi printed (xpumanager#92, #151), seldom a whole log."""
    change = {"commands": {replay.JOURNAL: None, "dmesg": dmesg, **commands(said('{"device_list": null}'))["commands"]}}
    assert "does not see" in tool(change).seen
    held = {"commands": {replay.JOURNAL: None, "dmesg": dmesg, **dict.fromkeys(COMMANDS)}}
    (cause,) = [one for one in findings(held) if "tool.xpu_smi" in {item.id for item in one.explains}]
    assert cause.id == "log.access"  # the recorder had not run it either


def test_a_small_bar_explains_the_missing_card() -> None:
    found = {one.id: one for one in findings({}, "small-bar")}
    assert "tool.xpu_smi" not in found
    assert "tool.xpu_smi" in {one.id for one in found["rebar"].explains}


@pytest.mark.parametrize("host", ["amd-card", "nvidia-host", "arm-one-lane"])
def test_other_vendors(host: str) -> None:
    assert tool({}, host).status is Status.not_applicable


ANSWER = st.builds(
    said,
    st.sampled_from(
        ["", "No device discovered\n", "ZE_RESULT_ERROR_SURVIVABILITY_MODE_DETECTED\n", '{"device_list": null}']
    )
    | st.lists(st.sampled_from(GPUS), max_size=4).map(lambda bdfs: str(listing(*bdfs)["stdout"])),
    st.sampled_from([0, 0, 0, 1, 4, 39, 46, 139, 255, -6, -11]),
)


@given(ANSWER, ANSWER, st.sampled_from(["1.2.39", "1.3.6", "2.0.1", "2.1.0", "3.0"]))
def test_it_never_says_more_than_warn_nor_anything_of_a_card(first: Any, second: Any, number: str) -> None:
    usual = {(one.id, one.subject): one.status for one in BEFORE}
    for one in findings(commands(first, second, number)):
        if one.id == "tool.xpu_smi":
            assert one.status is not Status.fail
        else:
            assert usual[one.id, one.subject] is one.status


BEFORE = findings({})
