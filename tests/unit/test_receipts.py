"""Receipts: form, hash, exact sums, and that nothing in them can be changed unnoticed."""

from __future__ import annotations

import copy
import functools
import gzip
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hostcheck import receipts
from hostcheck.onhost.probe import receipt as raw
from hostcheck.onhost.probe import session
from hostcheck.report import receipt as view
from tests import fake_worker as fake
from tests.unit.test_probe_session import CLAIM, FileToggle

#: Those of a fast processor hold a million samples, and are kept compressed.
KEPT = sorted((Path(__file__).parent / "receipts").glob("*.json*"))


@functools.cache
def made(kind: str) -> str:
    """Return the text of a made-up receipt: a profile with an all-reduce, or a trial."""
    if kind == "profile":
        receipt = fake.profile()
        ranks = [
            {"unit": "ns", "samples": s, "per_sample": 1, "sum": sum(s), "exercised": {"n": 3, "how": "made up"}}
            for s in ([48_000, 50_000, 47_000], [49_000, 46_000, 51_000])
        ]
        receipt["collectives"] = [
            {
                "dtype": "bfloat16",
                "rows": 1,
                "hidden": 5120,
                "ranks": 2,
                "backend": "xccl",
                "environment": "host",
                "variables": "none",
                "environment_variables": {},
                "identities": [],
                "failure": None,
                "series": {"sync_end": ranks, "sync_each": ranks},
            }
        ]
        return json.dumps(raw.seal(receipt))
    with tempfile.TemporaryDirectory() as folder:
        factor = Path(folder) / "factor"
        switch = FileToggle(factor, {"A": 1.0, "B": 0.8})
        return json.dumps(session.trial(fake.job(FACTOR_FILE=str(factor)), CLAIM, switch, lambda: fake.CALM))


def resealed(receipt: dict[str, Any]) -> dict[str, Any]:
    return {**receipt, "sha256": raw.digest(receipt)}


def numbers(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every number in a JSON value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, (*place, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from numbers(inner, (*place, number))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield place


def changed(receipt: dict[str, Any], place: tuple[Any, ...], change: Any) -> dict[str, Any]:
    other = copy.deepcopy(receipt)
    holder: Any = other
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = change(holder[place[-1]])
    return other


@functools.cache
def places(kind: str, parts: tuple[str, ...]) -> list[tuple[Any, ...]]:
    receipt = json.loads(made(kind))
    return [place for part in parts if part in receipt for place in numbers(receipt[part], (part,))]


@pytest.mark.parametrize("kind", ["profile", "trial"])
def test_a_receipt_verifies(kind: str) -> None:
    assert receipts.verify(receipts.parse(made(kind))) == []


@pytest.mark.parametrize("kind", ["profile", "trial"])
@given(data=st.data())
def test_one_changed_sample_is_found_even_when_the_hash_is_made_again(kind: str, data: st.DataObject) -> None:
    samples = [place for place in places(kind, ("blocks", "collectives")) if "samples" in place]
    place = data.draw(st.sampled_from(samples))
    step = data.draw(st.integers(1, 1000))
    other = resealed(changed(json.loads(made(kind)), place, lambda x: x + step))
    assert any("sum written" in problem for problem in receipts.verify(other))


@pytest.mark.parametrize("kind", ["profile", "trial"])
@given(data=st.data())
def test_one_changed_sample_is_found_even_when_its_sum_is_made_again(kind: str, data: st.DataObject) -> None:
    samples = [place for place in places(kind, ("blocks", "collectives")) if "samples" in place]
    place = data.draw(st.sampled_from(samples))
    other = changed(json.loads(made(kind)), place, lambda x: x + 100)
    other = resealed(changed(other, (*place[:-2], "sum"), lambda x: x + 100))
    assert receipts.verify(other) != []


@pytest.mark.parametrize("kind", ["profile", "trial"])
@given(data=st.data())
def test_one_changed_figure_is_found_even_when_the_hash_is_made_again(kind: str, data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(places(kind, ("figures", "verdict", "validity"))))
    factor = data.draw(st.sampled_from([0.5, 0.99, 1.000001, 1.01, 2.0]))
    other = resealed(changed(json.loads(made(kind)), place, lambda x: x * factor if x else 1))
    assert receipts.verify(other) != []


@pytest.mark.parametrize("kind", ["profile", "trial"])
@given(data=st.data())
def test_anything_changed_at_all_breaks_the_hash(kind: str, data: st.DataObject) -> None:
    receipt = json.loads(made(kind))
    place = data.draw(st.sampled_from(places(kind, tuple(receipt))))
    assert any("sha256" in problem for problem in receipts.verify(changed(receipt, place, lambda x: x + 1)))


@given(data=st.data())
def test_counts_that_figures_rest_on_are_found(data: st.DataObject) -> None:
    wanted = ("per_sample", "sum", "n", "total_ns", "pair", "position", "seed")
    found = [place for place in places("profile", ("blocks", "workers", "seed", "begun")) if place[-1] in wanted]
    place = data.draw(st.sampled_from(found))
    try:
        other = resealed(changed(json.loads(made("profile")), place, lambda x: x + 1))
        assert receipts.verify(other) != []
    except receipts.NotAReceipt:
        pass


def test_a_verdict_cannot_be_talked_up() -> None:
    trial = json.loads(made("trial"))
    assert trial["verdict"]["word"] == "improved"
    for change in (
        {"verdict": {**trial["verdict"], "word": "regressed"}},
        {"verdict": {**trial["verdict"], "sentence": "twice as fast"}},
        {"verdict": {**trial["verdict"], "notes": ["and quieter"]}},
        {"verdict": None},
        {"validity": {"valid": True, "reasons": ["none"], "unchecked": []}},
        {"claim": {**trial["claim"], "statistic": "min"}},
        {"claim": {**trial["claim"], "metric": "launch_sync_us"}},
        {"plan": {**trial["plan"], "alpha": 0.5}},
        {"failures": [{"kind": "device_lost", "text": "x", "stderr": "", "worker": 0}]},
        {"after": {**trial["after"], "holders": ["python3[1]"]}},
        {"restore": "read back powersave"},
        {"blocks": trial["blocks"][:-2]},
    ):
        assert receipts.verify(resealed({**trial, **change})) != [], change


def test_the_order_of_the_blocks_is_that_of_the_seed() -> None:
    trial = json.loads(made("trial"))
    for block in trial["blocks"][16:18]:
        block["arm"] = {"A": "B", "B": "A"}[block["arm"]]
    assert any("the seed gives" in problem for problem in receipts.verify(raw.seal(trial)))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda r: {**r, "schema": "hostcheck/receipt/2"}, "schema"),
        (lambda r: {**r, "extra": 1}, "extra"),
        (lambda r: {k: v for k, v in r.items() if k != "seed"}, "seed"),
        (lambda r: {**r, "seed": "5"}, "seed"),
        (lambda r: {**r, "sha256": "short"}, "sha256"),
        (lambda r: [r], "the file"),
    ],
)
def test_what_is_no_receipt_is_refused_with_the_place(change: Any, text: str) -> None:
    with pytest.raises(receipts.NotAReceipt, match=text):
        receipts.parse(json.dumps(change(json.loads(made("profile")))))


def test_text_that_is_no_receipt(tmp_path: Path) -> None:
    with pytest.raises(receipts.NotAReceipt, match="not JSON"):
        receipts.parse("hello")
    with pytest.raises(receipts.NotAReceipt, match="NaN is no figure"):
        receipts.parse('{"seed": NaN}')
    (tmp_path / "r.json").write_text(made("profile"))
    assert receipts.load(tmp_path / "r.json")["kind"] == "profile"


def test_canonical_form_is_the_documented_one() -> None:
    assert raw.canonical({"b": "µ", "a": [1, 2.5], "sha256": "x"}) == '{"a":[1,2.5],"b":"µ"}'.encode()
    with pytest.raises(ValueError, match="JSON"):
        raw.canonical({"a": float("nan")})
    receipt = json.loads(made("profile"))
    assert receipts.verify(json.loads(json.dumps(receipt, indent=4, sort_keys=True))) == []


def test_collectives_take_the_slowest_rank_of_each_iteration() -> None:
    figures = json.loads(made("profile"))["figures"]["collectives"]
    name = "allreduce_us[bfloat16,1x5120,ranks=2,xccl,host,env=none,sync_each]"
    assert figures[name]["median"] == 50.0  # of 49, 50, 51
    assert figures[name]["n"] == 3


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_kept_receipts_still_verify(path: Path) -> None:
    data = path.read_bytes()
    receipt = receipts.parse((gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8"))
    assert receipts.verify(receipt) == []
    name = path.name.partition(".")[0]
    assert shown(receipt) == (path.parent / f"{name}.txt").read_text(encoding="utf-8")


def shown(receipt: dict[str, Any]) -> str:
    out = io.StringIO()
    view.render(receipt, Console(file=out, width=110, markup=False, highlight=False, emoji=False, no_color=True))
    return out.getvalue()


def test_show_a_profile() -> None:
    text = shown(json.loads(made("profile")))
    assert "0000:23:00.0" in text
    assert "█" in text
    assert "submission is as fast as on the lab's publishing host" in text
    assert "3.13" in text


def test_show_a_trial() -> None:
    text = shown(json.loads(made("trial")))
    assert "latency of B (after) / latency of A (before) = 0.8" in text
    assert text.count("o") > 8
    assert "|" in text


def test_show_no_figure_of_an_invalid_receipt() -> None:
    receipt = session.profile(fake.job(fail_op="block", fail_after=9, fail_code="os._exit(3)"), lambda: fake.CALM)
    text = shown(receipt)
    assert "invalid: worker: died: exit status 3" in text
    assert "launch_us" not in text


def test_show_escapes_what_a_host_says() -> None:
    card = {"index": 0, "name": "[red]x[/red]\x1b[2J", "uuid": fake.CARD["uuid"]}
    text = shown(fake.profile(CARD=card))
    assert "[red]x[/red]" in text
    assert "\x1b" not in text


def test_show_marks_cpu_figures_and_compares_nothing() -> None:
    text = shown(fake.profile(DEVICE="cpu", CARD={"index": 0, "name": "x86_64"}))
    assert "they say nothing about an accelerator" in text
    assert "lab fast" not in text
    assert "not compared with the lab" in text


@given(st.lists(st.floats(0, 1e9), max_size=300), st.integers(1, 60))
def test_a_histogram_has_its_width(values: list[float], bins: int) -> None:
    assert len(view.histogram(values, bins)) == bins
