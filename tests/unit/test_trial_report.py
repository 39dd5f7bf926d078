"""How trials look: on 80 columns, plain, with floor and interval on every ruler, and no figure that is not valid."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hostcheck import boots
from hostcheck.onhost.probe import receipt as raw
from hostcheck.onhost.probe import session
from hostcheck.report import receipt as view
from hostcheck.report import trial
from tests import fake_worker as fake
from tests.unit.test_boots import CLAIM, boot, by_turns
from tests.unit.test_receipts import made


def shown(receipt: dict[str, Any], width: int = 80) -> str:
    out = io.StringIO()
    view.render(receipt, Console(file=out, width=width, markup=False, highlight=False, emoji=False, no_color=True))
    return out.getvalue()


def one() -> dict[str, Any]:
    return dict(json.loads(made("trial")))


def crossed() -> dict[str, Any]:
    """A trial of two switches, made from the blocks of a trial of one: each alone helps, both together no more."""
    receipt = one()
    levels = {"base": 10.0, "A": 9.0, "B": 8.0, "A+B": 8.0}
    sham = [block for block in receipt["blocks"] if block["phase"] == "sham"]
    blocks = list(sham)
    for quad in range(8):
        for position, (arm, level) in enumerate(levels.items()):
            ns = round(level * 1000 * 400 * (1 + quad / 1000))
            series = {"unit": "ns", "samples": [ns], "per_sample": 400, "sum": ns}
            metrics = {"launch_us": {**series, "exercised": {"n": 400, "how": "made up"}}}
            evidence = {"A:readback": arm in ("A", "A+B"), "B:readback": arm in ("B", "A+B")}
            words = {name: "on" if on else "off" for name, on in evidence.items()}
            more = {"phase": "quads", "pair": quad, "position": position, "arm": arm, "metrics": metrics}
            blocks.append({**sham[0], **more, "evidence": words})
    claim = {**receipt["claim"], "evidence": ["A:readback", "B:readback"], "toggles": True}
    claim["arms"] = {"base": "as it was", "A": "governor", "B": "swappiness", "A+B": "both"}
    begun = {"sham": receipt["begun"]["sham"], "quads": 8}
    return raw.seal({**receipt, "kind": "interaction", "blocks": blocks, "claim": claim, "begun": begun})


# -- a trial of one switch ----------------------------------------------------------------------------------------


def test_a_trial_fits_80_columns_and_says_it_in_one_sentence() -> None:
    text = shown(one())
    assert max(map(len, text.splitlines())) <= 80
    assert "latency of B (after) / latency of A (before) = 0.8" in " ".join(text.split())
    assert text.index("improved") < text.index("metric ")  # the verdict comes before the figures
    assert "because: median over 8 pairs" in text
    assert "\x1b" not in text


def test_every_pair_has_a_row_with_its_order_and_its_ratio() -> None:
    receipt = one()
    rows = [line.split() for line in shown(receipt).splitlines()]
    start = next(number for number, row in enumerate(rows) if row[:2] == ["pair", "first"])
    firsts = {block["pair"]: block["arm"] for block in reversed(receipt["blocks"]) if block["phase"] == "pairs"}
    for number, ratio in enumerate(receipt["verdict"]["figures"]["ratios"]):
        row = rows[start + 1 + number]
        assert row[:2] == [str(number + 1), firsts[number]]
        assert row[4] == f"{ratio:.3f}"
        assert float(row[3]) / float(row[2]) == pytest.approx(ratio, rel=2e-3)
    assert rows[start + 1 + len(receipt["verdict"]["figures"]["ratios"])][0] == "all"


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_the_table_is_never_wider_than_the_screen(width: int) -> None:
    assert max(map(len, trial.plain(lambda out: trial.verdict(one(), out), width))) <= width


def test_a_verdict_without_figures_shows_none() -> None:
    receipt = session.profile(fake.job(fail_op="block", fail_after=9, fail_code="os._exit(3)"), lambda: fake.CALM)
    broken = raw.seal({**one(), "failures": receipt["failures"]})
    lines = trial.lines(broken)
    assert lines[0] == "0000:23:00.0: A is before, B is after"
    assert lines[1] == "launch_us: invalid: worker: died: exit status 3"
    assert not any("/" in line for line in lines[1:])


def test_text_of_a_host_is_data() -> None:
    receipt = one()
    receipt["claim"] = {**receipt["claim"], "arms": {"A": "[red]x[/red]\x1b[2J", "B": "b\nc"}}
    text = "\n".join(trial.lines(raw.seal(receipt)))
    assert "[red]x[/red]\\x1b[2J" in text
    assert "\x1b" not in text


# -- a trial of two switches --------------------------------------------------------------------------------------


def test_two_switches_show_every_quad_each_effect_and_the_interaction() -> None:
    receipt = crossed()
    text = shown(receipt)
    assert max(map(len, text.splitlines())) <= 80
    rows = [line.split() for line in text.splitlines()]
    quads = [row for row in rows if len(row) == 8 and row[0].isdigit()]
    assert len(quads) == 8
    assert quads[0][5:] == ["0.900", "0.800", "0.800"]
    effects = {row[0]: row[1] for row in rows if row and row[0] in ("A", "B", "A+B", "interaction") and len(row) > 3}
    assert effects == {"A": "0.900", "B": "0.800", "A+B": "0.800", "interaction": "1.111"}


# -- rulers -------------------------------------------------------------------------------------------------------


@given(
    st.floats(0.01, 3.0),
    st.integers(4, 40).map(lambda half: 2 * half + 1),
    st.floats(0.0, 2.0),
    st.none() | st.floats(-5.0, 5.0),
    st.none() | st.tuples(st.none() | st.floats(-5.0, 0.0), st.none() | st.floats(0.0, 5.0)),
)
def test_a_ruler_has_its_width_and_its_marks(
    reach: float, width: int, floor: float, point: float | None, interval: tuple[float | None, float | None] | None
) -> None:
    line = trial.ruler(reach, width, floor, point, interval)
    assert len(line) == width
    assert set(line) <= set(" .|o-[]<>")
    if point is None:
        assert line[width // 2] == "|"
    else:
        assert line.count("o") == 1
        if abs(point) <= reach:
            assert abs(line.index("o") - (point / reach + 1) / 2 * (width - 1)) <= 0.51


@given(st.floats(0.02, 2.0), st.integers(9, 40).map(lambda half: 2 * half + 1))
def test_the_scale_stands_over_the_ruler(reach: float, width: int) -> None:
    line = trial.scale(reach, width)
    assert len(line) == width
    assert line[(width - 1) // 2] == "1"
    assert float(line.split()[0]) == pytest.approx(math.exp(-reach), abs=0.006)


def test_an_interval_without_an_end_is_open() -> None:
    line = trial.ruler(0.2, 21, interval=(None, None), point=0.0)
    assert (line[0], line[-1]) == ("<", ">")


# -- boots --------------------------------------------------------------------------------------------------------


def test_boots_fit_80_columns_and_what_was_left_out_is_named() -> None:
    found = by_turns([3.0, 3.1, 3.2, 3.05, 3.0], [2.4, 2.5, 2.45, 2.3, 2.4])
    bad = {**fake.CALM, "alarms": ["fan"], "host": boot("B", 40, 2.4).receipt["before"]["host"]}
    document = boots.seal("gpu-1", "2026-03-05T00:00:00Z", CLAIM, [], [*found, boot("B", 40, 2.4, before=bad)], "")
    lines = trial.plain(lambda out: trial.boots(document, out))
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert "improved; latency of B (iommu=pt) / latency of A (as it was) =" in " ".join(text.split())
    assert sum(line.rstrip().endswith(("A", "B")) for line in lines if line[:4].strip().isdigit()) == 10
    assert any(line.split()[0] == "11" and line.endswith("left out") for line in lines)
    assert "left out: boot 11 (B): invalid: alarm: fan" in text
    assert "the arms differ in command_line: A without it; B iommu=pt" in text


def test_no_figure_of_an_invalid_result_over_boots_is_shown() -> None:
    document = boots.seal(
        "gpu-1", "2026-03-05T00:00:00Z", CLAIM, [], by_turns([3.0], [2.4]), "the host did not come back"
    )
    text = "\n".join(trial.plain(lambda out: trial.boots(document, out)))
    assert "invalid: restore failed: the host did not come back" in " ".join(text.split())
    assert "2.4" not in text


# -- before and after ---------------------------------------------------------------------------------------------


def test_before_and_after_is_called_descriptive_and_an_invalid_one_gives_no_figure() -> None:
    before, after = fake.profile(), fake.profile(SEED=2)
    lines = trial.before_after(before, after, "cpu")
    assert lines[0].startswith("cpu: launch_us: before ")
    assert "after / before = " in lines[0]
    assert "descriptive only" in lines[-1]
    bad = {**after, "validity": {"valid": False, "reasons": ["alarm: fan"], "unchecked": []}}
    assert trial.before_after(before, bad, "cpu") == ["cpu: after it the measurement is invalid: alarm: fan"]
    empty = {**after, "figures": {**after["figures"], "metrics": {}}}
    assert trial.before_after(before, empty, "cpu") == ["cpu: nothing was measured both before and after it"]


# -- a fleet ------------------------------------------------------------------------------------------------------


def test_the_last_line_of_a_fleet() -> None:
    words = {
        **{f"h{n}": "improved" for n in range(3)},
        **{f"n{n}": "no_change" for n in range(9)},
        "v": "vacuous",
        "i": "inconclusive",
        "bad": "invalid",
    }
    assert trial.tally(words) == "helped on 3, no change on 9, not shown on 2, invalid on 1 (bad)"
    assert trial.tally({}) == "no host was tried"
    rest = {"b": "failed", "a": "failed", "c": "unreachable", "d": "restore failed", "e": "not tried"}
    assert trial.tally(rest) == "failed on 2 (a, b), NOT RESTORED on 1 (d), unreachable 1 (c), not tried 1 (e)"


@given(st.dictionaries(st.text("abc", min_size=1), st.sampled_from(sorted(trial.CALLED))))
def test_every_host_is_counted_once(words: dict[str, str]) -> None:
    line = trial.tally(words)
    counts = [int(word) for word in line.replace(",", " ").split() if word.isdigit()]
    assert sum(counts) == len(words)
