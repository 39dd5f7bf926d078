"""Throttle reasons of GPUs and processors, and whose drivers are left alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost.gather import Options, gather
from hostcheck.onhost.reader import Reading
from hostcheck.onhost.readings.throttle import Throttle, parse_count, parse_flag
from hostcheck.onhost.recording import RecordedReader
from tests import replay

GPU = "0000:43:00.0"
WAY = "/sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:01.0/0000:43:00.0"


def read(change: dict[str, Any] | None = None, host: str = "four-card-gen4", **options: Any) -> Throttle:
    recording = replay.changed(replay.host(host), change or {})
    return gather(RecordedReader(recording), Options(**options), ("throttle",)).throttle


def of(throttle: Throttle, bdf: str = GPU) -> list[Any]:
    return [one for one in throttle.gpus.value or () if one.bdf == bdf]


def test_a_card_that_nothing_holds_down() -> None:
    found = of(read())
    assert [one.domain for one in found] == ["tile0/gt0", "tile0/gt1"]
    assert {one.status.value for one in found} == {0}
    assert {one.reasons.value for one in found} == {()}


def test_reasons_are_named_as_the_driver_names_them() -> None:
    folder = f"{WAY}/tile0/gt0/freq0/throttle"
    change = {"files": {f"{folder}/{name}": "1\n" for name in ("status", "reason_pl1", "reason_thermal")}}
    first, second = of(read(change))
    assert (first.status.value, first.reasons.value) == (1, ("pl1", "thermal"))
    assert (second.status.value, second.reasons.value) == (0, ())


def test_i915_says_it_in_other_files() -> None:
    change: dict[str, Any] = {
        "remove": [f"{WAY}/tile0"],
        "files": {
            f"{WAY}/drm/card1/gt/gt0/throttle_reason_status": "1\n",
            f"{WAY}/drm/card1/gt/gt0/throttle_reason_pl2": "1\n",
            f"{WAY}/drm/card1/gt/gt0/throttle_reason_prochot": "0\n",
        },
        "links": {f"{WAY}/driver": "../../../../../../bus/pci/drivers/i915"},
    }
    (found,) = of(read(change))
    assert (found.domain, found.status.value, found.reasons.value) == ("gt0", 1, ("pl2",))


@pytest.mark.parametrize("content", [{"error": "EIO"}, "maybe\n"])
def test_a_reason_that_cannot_be_read_is_not_left_out(content: Any) -> None:
    found = of(read({"files": {f"{WAY}/tile0/gt0/freq0/throttle/reason_pl1": content}}))[0]
    assert found.reasons.value is None
    assert found.status.value == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"files": {f"{WAY}/power/runtime_status": "suspended\n"}}, "suspended"),
        ({"files": {f"{WAY}/power/runtime_status": {"error": "EIO"}}}, "suspended"),
        ({"files": {f"{WAY}/power/runtime_status": "error\n"}}, "faulted"),
        ({"log": f"[ 900.1] xe {GPU}: [drm] Xe device coredump has been created"}, "faulted"),
        ({"commands": {replay.JOURNAL: None, "dmesg": None}}, "tool_missing"),
    ],
)
def test_the_driver_of_such_a_card_is_left_alone(change: dict[str, Any], reason: str) -> None:
    (found,) = of(read(change))
    assert (found.status.unread, found.reasons.unread) == (reason, reason)


def test_the_other_cards_are_still_read() -> None:
    throttle = read({"files": {f"{WAY}/power/runtime_status": "suspended\n"}})
    assert all(one.status.value == 0 for one in throttle.gpus.value or () if one.bdf != GPU)
    assert of(read({"files": {f"{WAY}/power/runtime_status": "suspended\n"}}, wake=True))[0].status.value == 0


def test_processors_that_count_and_those_that_do_not() -> None:
    change = {"files": {"/sys/devices/system/cpu/cpu3/thermal_throttle/package_throttle_count": "17\n"}}
    throttle = read(change, "two-cards-behind-plx")
    assert (throttle.core.value, throttle.package.value) == (0, 17)
    assert read().core.unread == "absent"


def test_a_count_that_cannot_be_read_is_no_zero() -> None:
    change = {"files": {"/sys/devices/system/cpu/cpu3/thermal_throttle/core_throttle_count": {"error": "EACCES"}}}
    assert read(change, "two-cards-behind-plx").core.unread == "permission"


def test_other_vendors_have_no_such_files() -> None:
    assert read(host="nvidia-host").gpus.value == ()


@given(st.text(max_size=20))
def test_any_text_gives_a_number_or_a_reason(text: str) -> None:
    for parse in (parse_flag, parse_count):
        reading = Reading(text, "x").then(parse)
        assert reading.value is not None or reading.unread == "not_understood"
