"""What a receipt means: like is compared with like only, and nothing is promised."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck import advice
from hostcheck.onhost.probe import receipt as raw
from tests import fake_worker as fake


@functools.cache
def _text(**settings: Any) -> str:
    return json.dumps(fake.profile(**settings))


def profile(**settings: Any) -> dict[str, Any]:
    return dict(json.loads(_text(**settings)))


def said(receipt: dict[str, Any], **options: Any) -> dict[str, advice.Advice]:
    return {one.topic: one for one in advice.advise(receipt, **options)}


@pytest.mark.parametrize(
    ("lab", "word"),
    [
        ((3132, 25980, 41473), "fast"),
        ((3300, 27000, 45000), "fast"),
        ((2000, 20000, 30000), "fast"),
        ((5180, 30220, 133850), "slow"),
        ((5000, 26000, 42000), "slow"),  # "at or above about 5 us"
        ((3200, 26000, 132000), "slow"),
        ((4000, 28000, 80000), "between"),
        ((3132, 29000, 41473), "between"),
        ((4990, 30000, 131900), "between"),
    ],
)
def test_class_against_the_labs_two_hosts(lab: tuple[int, int, int], word: str) -> None:
    values = dict(zip(advice.FAST, (x / 1000 for x in lab), strict=True))
    assert advice.host_class(values) == word


@given(st.tuples(*[st.floats(0.1, 1000)] * 3), st.floats(1, 10))
def test_a_slower_host_is_never_in_a_faster_class(lab: tuple[float, float, float], factor: float) -> None:
    rank = {"fast": 0, "between": 1, "slow": 2}
    values = dict(zip(advice.FAST, lab, strict=True))
    slower = {key: value * factor for key, value in values.items()}
    assert rank[advice.host_class(slower)] >= rank[advice.host_class(values)]


def test_a_fast_host_needs_no_graph() -> None:
    found = said(profile(LAB=(3132, 25980, 41473)))
    assert "as fast as on the lab's publishing host" in found["class"].text
    assert "graph off is fine" in found["graph"].text
    assert "decode_gap" not in found


def test_a_slow_host_captures_every_size_and_checks_identity() -> None:
    found = said(profile(LAB=(5180, 30220, 133850)), draft_tokens=3)
    assert "as slow as on the lab's replay host" in found["class"].text
    assert "1,2,3,4 for 3 draft tokens" in found["graph"].text
    assert "identical to graph off" in found["graph"].text
    assert "[1,2,3,4]" in found["graph"].next_step
    assert found["decode_gap"].estimate
    assert "estimate" in found["decode_gap"].text
    assert "do not add" in found["decode_gap"].text


def test_between_no_measurement_exists() -> None:
    found = said(profile(LAB=(4000, 28000, 80000)))
    assert "no measurement exists" in found["class"].text
    assert found["class"].next_step == "measure decode both ways, graph off and graph on"
    assert "identical to graph off" in found["graph"].text


def test_the_gap_names_which_metric_explains_how_much() -> None:
    gap = advice.decode_gap(profile(LAB=(5180, 30220, 133850)))
    assert gap["launches"] == pytest.approx(6.1, abs=0.1)  # 3,000 x 2.05 us
    assert gap["norms"] == pytest.approx(12.0, abs=0.1)  # 130 x 92.4 us
    assert "all_reduces" not in gap
    doubled = advice.decode_gap(profile(LAB=(5180, 30220, 133850)), advice.DecodeStep(launches=6000))
    assert doubled["launches"] == pytest.approx(2 * gap["launches"])


def all_reduce(dtype: str, rows: int, policy: str, **changes: Any) -> dict[str, Any]:
    series = [
        {"unit": "ns", "samples": [50_000] * 3, "per_sample": 1, "sum": 150_000, "exercised": {"n": 3, "how": ""}}
    ] * 2
    return {
        "dtype": dtype,
        "rows": rows,
        "hidden": 5120,
        "ranks": 2,
        "backend": "xccl",
        "environment": "container",
        "variables": "none",
        "environment_variables": {},
        "identities": [],
        "failure": None,
        "series": {policy: series},
        **changes,
    }


@pytest.mark.parametrize(
    ("one", "counts"),
    [
        (all_reduce("float16", 2, "sync_end"), True),
        (all_reduce("bfloat16", 1, "sync_end"), False),  # the lab's 13 us is fp16 with 2 rows: a different thing
        (all_reduce("float16", 2, "sync_each"), False),
        (all_reduce("float16", 2, "sync_end", environment="host"), False),
        (all_reduce("float16", 2, "sync_end", backend="nccl"), False),
        (all_reduce("float16", 2, "sync_end", ranks=4), False),
    ],
)
def test_all_reduces_are_compared_with_their_like_only(one: dict[str, Any], counts: bool) -> None:
    receipt = raw.seal({**profile(LAB=(5180, 30220, 133850)), "collectives": [one]})
    gap = advice.decode_gap(receipt)
    assert ("all_reduces" in gap) == counts
    if counts:
        assert gap["all_reduces"] == pytest.approx(130 * (50 - 13.17) / 1000)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("lab", [(3132, 25980, 41473), (5180, 30220, 133850)])
def test_other_devices_are_never_compared(device: str, lab: tuple[int, int, int]) -> None:
    found = advice.advise(profile(DEVICE=device, LAB=lab))
    assert len(found) == 1
    assert f"these are {device} figures" in found[0].text
    assert not found[0].next_step


def test_an_invalid_receipt_gives_no_advice() -> None:
    receipt = fake.profile(fail_op="block", fail_after=3, fail_code="os._exit(1)")
    found = advice.advise(receipt)
    assert ["invalid" in one.text for one in found] == [True]


def test_a_norm_that_was_not_eight_launches_is_not_compared() -> None:
    receipt = profile(LAB=(3132, 25980, 41473))
    receipt["workers"][0]["launches"]["ir_rms_norm_m2_us"]["launches"] = 1
    receipt = raw.seal(receipt)
    assert "ir_rms_norm_m2_us" not in advice.lab_values(receipt)
    assert "do not cover" in said(receipt)["class"].text


def test_no_text_promises_a_gain() -> None:
    words = ("will be faster", "faster", "speedup", "gain of", "improve")
    for lab in ((3132, 25980, 41473), (5180, 30220, 133850), (4000, 28000, 80000)):
        for one in advice.advise(profile(LAB=lab)):
            assert not any(word in one.text for word in words), one.text
            assert one.source


def test_capture_sizes() -> None:
    assert advice.capture_sizes(0) == [1]
    assert advice.capture_sizes(4) == [1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match="got -1"):
        advice.capture_sizes(-1)


def test_unequal_cards() -> None:
    one = profile()
    other = copy.deepcopy(one)
    for block in other["blocks"]:
        series = block["metrics"]["launch_us"]
        series["samples"] = [2 * x for x in series["samples"]]
        series["sum"] *= 2
    other["workers"][0]["address"] = "0000:43:00.0"
    found = advice.unequal_cards([one, raw.seal(other), one])
    assert len(found) == 2
    assert "0000:23:00.0" in found[0].text
    assert "0000:43:00.0" in found[0].text
    assert "slower / faster 2.00" in found[0].text
    assert advice.unequal_cards([one, one]) == []
    assert advice.unequal_cards([]) == []
