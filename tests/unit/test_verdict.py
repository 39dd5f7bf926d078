"""The verdict rules one by one, in their order, and simulated trials whose truth is known."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost.probe import verdict
from hostcheck.onhost.probe.verdict import Exercise, Guards, Trial
from tests import simulation

CLEAN = simulation.CLEAN
RUN = Exercise(iterations=1)


def pairs(n: int, effect: float, spread: float = 0.01, seed: int = 1) -> list[tuple[float, float]]:
    """Return n pairs around 3 us with B taking ``1 + effect`` of the time."""
    random = np.random.default_rng(seed)
    return [(3.0 * math.exp(a), 3.0 * math.exp(b) * (1 + effect)) for a, b in random.normal(0, spread, (n, 2))]


def trial(effect: float = 0.0, spread: float = 0.01, n: int = 16, **changes: Any) -> Trial:
    given_ = {
        "metric": "launch_us",
        "arms": {"A": "powersave", "B": "performance"},
        "sham": [pairs(12, 0.0, spread, 7)],
        "pairs": pairs(n, effect, spread),
        "guards": CLEAN,
        "exercise": RUN,
        "planned": n,
    }
    return Trial(**{**given_, **changes})


def guards(**changes: Any) -> Guards:
    return dataclasses.replace(CLEAN, **changes)


INVALID = [
    ({"coredumps_before": ["devcd1"]}, "devcoredump present at start: devcd1"),
    ({"coredumps_after": ["devcd1"]}, "devcoredump appeared: devcd1"),
    ({"fault_lines_before": ["xe 0000:23:00.0: wedged"]}, "fault on this boot before the start"),
    ({"fault_lines_new": ["xe 0000:23:00.0: Engine reset"]}, "fault during the measurement"),
    ({"card": "suspended"}, "card: suspended"),
    ({"interrupted": "ended by SIGHUP"}, "interrupted: ended by SIGHUP"),
    ({"refused": ["arm B: /x: EBUSY"]}, "the setting could not be written: arm B: /x: EBUSY"),
    ({"failures": ["device_lost: UR_RESULT_ERROR_DEVICE_LOST"]}, "DEVICE_LOST"),
    ({"failures": ["hung: no answer within 20 s"]}, "hung"),
    ({"wrong_results": ["100 adds of one gave 99.0"]}, "wrong result: 100 adds"),
    ({"throttle_before": {"gt0": 1}, "throttle_after": {"gt0": 3}}, "throttle counter moved: gt0 1 -> 3"),
    ({"alarms": ["thermal"]}, "alarm: thermal"),
    ({"holders": ["python3[812]"]}, "other process on the card: python3[812]"),
    ({"identities": [{"torch": "2.8"}, {"torch": "2.9"}]}, "identity changed: torch 2.8 -> 2.9"),
    ({"readbacks_moved": ["pair 3: a -> b"]}, "changed inside a block"),
    ({"restore": "read back powersave"}, "restore failed: read back powersave"),
    ({"blocks_planned": 56, "blocks_done": 44}, "44 of 56 planned blocks"),
]


@pytest.mark.parametrize(("change", "reason"), INVALID, ids=[next(iter(c)) for c, _ in INVALID])
def test_invalid_comes_first_and_quotes_no_figure(change: dict[str, Any], reason: str) -> None:
    # everything else is wrong as well: the invalid reason is the one that is told
    judged = verdict.judge(trial(-0.3, guards=guards(**change), exercise=Exercise(), sham=[]))
    assert judged.word == "invalid"
    assert any(reason in text for text in judged.reasons)
    assert not judged.figures
    assert "0.7" not in verdict.sentence(trial(-0.3), judged)


def test_every_invalid_reason_is_told() -> None:
    both = guards(alarms=["fan"], holders=["a[1]"], restore="no")
    assert len(verdict.judge(trial(guards=both)).reasons) == 3


def test_a_throttle_counter_that_stands_still_is_fine() -> None:
    judged = verdict.judge(trial(-0.1, guards=guards(throttle_before={"x": 7}, throttle_after={"x": 7, "new": 1})))
    assert judged.word == "improved"


def test_eighty_percent_of_the_blocks_are_enough() -> None:
    assert verdict.invalid_reasons(guards(blocks_planned=56, blocks_done=45)) == []


VACUOUS = [
    ({"readbacks": {"A": ["x"] * 16, "B": ["x"] * 16}}, "equal in both arms: x"),
    ({"readbacks": {"A": ["x"] * 16, "B": [None] * 16}}, "arm B: the setting could not be read back"),
    ({"readbacks": {"A": ["x"] * 15 + ["y"], "B": ["y"] * 16}}, "arm A: the write did not always take"),
    ({"evidence": {"clock_khz": {"A": [], "B": [1]}}}, "clock_khz could not be read"),
    ({"evidence": {"clock_khz": {"A": [1, None], "B": [1, 2]}}}, "clock_khz could not be read"),
    ({"evidence": {"clock_khz": {"A": [3000] * 16, "B": [3000] * 16}}}, "clock_khz does not differ"),
    ({"evidence": {"lnkctl": {"A": ["L1"] * 4, "B": ["L1", "L0", "L0", "L0"]}}}, "lnkctl does not differ"),
    ({"fell_back": ["device cpu in place of xpu"]}, "fell back: device cpu in place of xpu"),
    ({"drain_ns": 900_000.0, "batch_ns": 1_000_000.0, "sync_ns": 26_000.0}, "bound by the device"),
    ({"iterations": 0}, "ran 0 times"),
]


@pytest.mark.parametrize(("change", "reason"), VACUOUS, ids=[text for _, text in VACUOUS])
def test_vacuous_comes_before_any_figure(change: dict[str, Any], reason: str) -> None:
    judged = verdict.judge(trial(-0.3, exercise=dataclasses.replace(RUN, **change), sham=[]))
    assert judged.word == "vacuous"
    assert any(reason in text for text in judged.reasons)
    assert not judged.figures


def test_exercise_that_shows_the_setting_acts() -> None:
    shown = Exercise(
        readbacks={"A": ["powersave"] * 16, "B": ["performance"] * 16},
        iterations=9,
        evidence={
            "clock_khz": {"A": list(range(1400, 1416)), "B": list(range(3100, 3116))},
            "lnkctl": {"A": ["L1"] * 16, "B": ["disabled"] * 16},
        },
        drain_ns=8_700.0,
        batch_ns=1_250_000.0,
        sync_ns=12_000.0,
    )
    assert verdict.vacuous_reasons(shown) == []


def test_no_sham_pairs_no_claim() -> None:
    judged = verdict.judge(trial(-0.3, sham=[]))
    assert (judged.word, "noise of this host is not known" in judged.reasons[0]) == ("inconclusive", True)


def test_a_host_over_ten_percent_of_floor_shows_nothing() -> None:
    judged = verdict.judge(trial(-0.5, sham=[pairs(12, 0.0, 0.5, 3)] * 2))
    assert judged.word == "inconclusive"
    assert "host too noisy: floor" in judged.reasons[0]


def test_a_trial_that_the_sham_pairs_ended_is_not_vacuous() -> None:
    noisy = trial(
        sham=[pairs(12, 0.0, 0.5, 3)] * 2, pairs=(), planned=0, exercise=Exercise(readbacks={"A": [], "B": []})
    )
    judged = verdict.judge(noisy)
    assert (judged.word, "host too noisy" in judged.reasons[0]) == ("inconclusive", True)
    elsewhere = dataclasses.replace(noisy, exercise=Exercise(fell_back=["device cpu in place of xpu"]))
    assert verdict.judge(elsewhere).word == "vacuous"
    assert verdict.next_step(elsewhere) == "stop"


def test_sham_pairs_that_differ_are_repeated_once_and_then_end_it() -> None:
    differing = pairs(12, 0.03, 0.005)
    once = trial(-0.3, sham=[differing], pairs=(), planned=0)
    assert verdict.next_step(once) == "sham_again"
    twice = trial(-0.3, sham=[differing, differing])
    assert verdict.next_step(twice) == "stop"
    assert "sham pairs differ in 2 rounds" in verdict.judge(twice).reasons[0]
    cured = trial(-0.3, sham=[differing, pairs(12, 0.0, 0.005)], pairs=(), planned=0)
    assert verdict.next_step(cured) == "pairs:16"


def test_a_noisy_first_round_is_repeated_once() -> None:
    noisy = [pairs(12, 0.0, 0.5, 3)]
    assert verdict.next_step(trial(sham=noisy, pairs=(), planned=0)) == "sham_again"
    assert verdict.next_step(trial(sham=noisy * 2, pairs=(), planned=0)) == "stop"


@pytest.mark.parametrize(
    ("effect", "word"), [(-0.1, "improved"), (0.1, "regressed"), (0.0, "no_change"), (0.015, "no_change")]
)
def test_clear_cases(effect: float, word: str) -> None:
    judged = verdict.judge(trial(effect))
    assert judged.word == word
    assert judged.figures["ratio"] == pytest.approx(1 + effect, rel=0.01)
    assert judged.figures["n"] == 16


def test_a_visible_shift_under_the_floor_stays_no_change_with_a_note() -> None:
    judged = verdict.judge(trial(0.015, spread=0.003))
    assert judged.word == "no_change"
    assert judged.figures["p"] <= 0.03
    assert any("statistically visible" in note for note in judged.notes)


def test_no_claim_below_two_percent_or_the_floor() -> None:
    assert verdict.judge(trial(-0.019, spread=0.0005)).word == "no_change"
    assert verdict.judge(trial(-0.03, spread=0.0005)).word == "improved"
    wide = trial(-0.03, sham=[pairs(12, 0.0, 0.09, 4)], pairs=pairs(16, -0.03, 0.001))
    assert verdict.judge(wide).word != "improved"


def test_inconclusive_says_what_could_have_been_seen() -> None:
    judged = verdict.judge(trial(-0.04, sham=[pairs(12, 0.0, 0.05, 4)], pairs=pairs(16, -0.04, 0.09)))
    assert judged.word == "inconclusive"
    assert judged.figures["detectable"] > 0.02
    assert judged.figures["pairs_for_5_percent"] >= 6
    assert "could have been seen" in judged.reasons[1]


def test_the_second_look_comes_only_when_the_first_decides_nothing() -> None:
    open_ = trial(-0.04, sham=[pairs(12, 0.0, 0.05, 4)], pairs=pairs(16, -0.04, 0.09))
    assert verdict.next_step(open_) == "pairs:40"
    assert verdict.next_step(trial(-0.2)) == "stop"
    longer = dataclasses.replace(open_, pairs=pairs(40, -0.2, 0.09), planned=40)
    assert verdict.next_step(longer) == "stop"
    assert verdict.judge(longer).figures["look"] in (1, 2)


def test_pairs_after_a_look_that_decided_change_nothing() -> None:
    decided = trial(-0.1)
    more = dataclasses.replace(decided, pairs=[*decided.pairs, *pairs(24, 0.5)], planned=40)
    assert verdict.judge(more) == verdict.judge(decided)


def test_too_few_pairs_for_a_look() -> None:
    judged = verdict.judge(trial(-0.5, n=9))
    assert (judged.word, "first planned look" in judged.reasons[0]) == ("inconclusive", True)


def test_without_the_kernel_log_nothing_is_claimed() -> None:
    for effect in (-0.3, 0.0, 0.3):
        judged = verdict.judge(trial(effect, guards=guards(log_read=False)))
        assert judged.word == "inconclusive"
        assert "kernel log" in judged.reasons[0]
        assert any("not checked" in note for note in judged.notes)
    assert verdict.judge(trial(-0.3, guards=guards(log_read=False, log_required=False))).word == "improved"
    assert verdict.next_step(trial(-0.3, guards=guards(log_read=False))) == "stop"


def test_what_could_not_be_read_is_said() -> None:
    notes = verdict.judge(trial(guards=Guards())).notes
    assert len(notes) == 4
    assert all("not" in note for note in notes)


def test_p10_is_chosen_by_the_sham_pairs_alone() -> None:
    contended = trial(
        -0.05,
        sham=[pairs(12, 0.0, 0.06, 4)],
        pairs=pairs(16, -0.05, 0.2),
        sham_p10=[pairs(12, 0.0, 0.005, 5)],
        pairs_p10=pairs(16, -0.05, 0.005),
    )
    judged = verdict.judge(contended)
    assert (judged.word, judged.figures["statistic"]) == ("improved", "p10")
    assert any("uncontended cost" in note for note in judged.notes)
    similar = dataclasses.replace(contended, sham_p10=[pairs(12, 0.0, 0.05, 5)])
    assert verdict.judge(similar).figures["statistic"] == "median"


def test_the_sentence_names_numerator_and_denominator() -> None:
    judged = verdict.judge(trial(-0.1))
    text = verdict.sentence(trial(-0.1), judged)
    assert "latency of B (performance) / latency of A (powersave) = 0.9" in text
    assert "faster" not in text
    assert judged.figures["one_minus_ratio"] != pytest.approx(judged.figures["inverse_minus_one"], abs=1e-3)


@given(st.integers(0, 10_000), st.sampled_from([-0.3, -0.1, -0.05, -0.02, 0.0]), st.sampled_from([0.005, 0.02, 0.06]))
def test_swapping_the_arms_swaps_the_words(seed: int, effect: float, spread: float) -> None:
    one = trial(sham=[pairs(12, 0.0, spread, seed + 1)], pairs=pairs(16, effect, spread, seed))
    other = dataclasses.replace(one, sham=[[(b, a) for a, b in one.sham[0]]], pairs=[(b, a) for a, b in one.pairs])
    swapped = {"improved": "regressed", "regressed": "improved"}
    word = verdict.judge(one).word
    assert verdict.judge(other).word == swapped.get(word, word)


@given(st.floats(0.001, 1000), st.integers(0, 500))
def test_the_unit_does_not_matter(scale: float, seed: int) -> None:
    one = trial(-0.06, spread=0.03, sham=[pairs(12, 0.0, 0.03, seed)])
    other = dataclasses.replace(
        one,
        sham=[[(a * scale, b * scale) for a, b in one.sham[0]]],
        pairs=[(a * scale, b * scale) for a, b in one.pairs],
    )
    assert verdict.judge(other).word == verdict.judge(one).word


def boots(n: int, level: float, seed: int) -> list[float]:
    return list(level * np.exp(np.random.default_rng(seed).normal(0, 0.01, n)))


def test_boots() -> None:
    assert verdict.judge_boots(boots(4, 3.0, 1), boots(4, 2.4, 2), CLEAN).word == "improved"
    assert verdict.judge_boots(boots(4, 3.0, 1), boots(5, 3.9, 2), CLEAN).word == "regressed"
    three = verdict.judge_boots(boots(3, 3.0, 1), boots(9, 1.0, 2), CLEAN)
    assert three.word == "inconclusive"
    assert "descriptive only" in three.reasons[0]
    assert {"a_low", "a_high", "b_low", "b_high"} <= set(three.figures)
    assert verdict.judge_boots(boots(8, 3.0, 1), boots(8, 3.0, 2), CLEAN).word == "no_change"
    assert verdict.judge_boots(boots(4, 3.0, 1), boots(4, 2.4, 2), guards(alarms=["fan"])).word == "invalid"
    assert verdict.judge_boots(boots(4, 3.0, 1), boots(4, 2.4, 2), guards(log_read=False)).word == "inconclusive"


def test_gains_of_two_switches_are_not_added() -> None:
    random = np.random.default_rng(4)
    quads = [
        {
            arm: level * math.exp(e)
            for (arm, level), e in zip(
                {"base": 10.0, "A": 9.0, "B": 8.0, "A+B": 8.0}.items(), random.normal(0, 0.005, 4), strict=True
            )
        }
        for _ in range(16)
    ]
    found = verdict.interaction(quads)
    assert found["A"]["ratio"] == pytest.approx(0.9, rel=0.01)
    assert found["B"]["ratio"] == pytest.approx(0.8, rel=0.01)
    assert found["A+B"]["ratio"] == pytest.approx(0.8, rel=0.01)  # not 0.72
    assert found["interaction"]["ratio"] == pytest.approx(1 / 0.9, rel=0.01)
    assert all(one["p"] <= 0.03 for one in found.values())
    with pytest.raises(ValueError, match="no blocks"):
        verdict.interaction([])


SWITCHED = Exercise(iterations=9, evidence={"A:readback": {"A": ["off"] * 4, "B": ["on"] * 4}})


def crossed(
    a: float, b: float, both: float, n: int = 16, spread: float = 0.005, exercise: Exercise = SWITCHED, **changes: Any
) -> verdict.Crossed:
    """A trial of two switches whose arms take these times of the base."""
    random = np.random.default_rng(3)
    scatter = random.normal(0, spread, (n, 4))
    levels = {"base": 1.0, "A": a, "B": b, "A+B": both}
    quads = [
        {arm: 3.0 * level * math.exp(x) for (arm, level), x in zip(levels.items(), row, strict=True)} for row in scatter
    ]
    one = trial(spread=spread, arms={arm: f"arm {arm}" for arm in levels}, planned=n, pairs=[], **changes)
    return verdict.Crossed(one, quads, {"A": exercise, "B": SWITCHED})


def words(found: verdict.Verdict) -> dict[str, Any]:
    return {name: one["word"] for name, one in found.figures["effects"].items()}


def test_each_effect_of_two_switches_has_its_own_word_and_gains_are_not_added() -> None:
    found = verdict.judge_crossed(crossed(0.9, 0.8, 0.8))
    assert found.word == verdict.IMPROVED
    assert words(found) == {"A": "improved", "B": "improved", "A+B": "improved", "interaction": "regressed"}
    assert found.figures["effects"]["A+B"]["ratio"] == pytest.approx(0.8, rel=0.01)
    said = verdict.crossed_sentence(crossed(0.9, 0.8, 0.8), found)
    assert "latency of A+B (arm A+B) / base (arm base) = 0.8" in said
    assert "together they are slower than each alone lets expect" in said
    assert words(verdict.judge_crossed(crossed(1.0, 1.2, 1.2))) == {
        "A": "no_change", "B": "regressed", "A+B": "regressed", "interaction": "no_change",
    }  # fmt: skip
    assert set(words(verdict.judge_crossed(crossed(1.0, 1.0, 1.0))).values()) == {"no_change"}
    assert words(verdict.judge_crossed(crossed(0.97, 0.97, 0.94, spread=0.03)))["interaction"] == "inconclusive"


def test_what_makes_a_trial_of_two_switches_worthless() -> None:
    good = (0.9, 0.8, 0.8)
    assert verdict.judge_crossed(crossed(*good, guards=guards(card="is wedged"))).word == verdict.INVALID
    dead = Exercise(iterations=9, evidence={"A:readback": {"A": ["off"], "B": ["off"]}})
    found = verdict.judge_crossed(crossed(*good, exercise=dead))
    assert found.word == verdict.VACUOUS
    assert found.reasons[0].startswith("switch A: no evidence that the setting acted")
    never = verdict.judge_crossed(crossed(*good, exercise=dataclasses.replace(SWITCHED, iterations=0)))
    assert never.reasons == ("switch A: the path under test ran 0 times",)
    noisy = verdict.judge_crossed(crossed(*good, sham=[pairs(12, 0.0, 0.4, 7)]))
    assert (noisy.word, noisy.reasons[0][:14]) == (verdict.INCONCLUSIVE, "host too noisy")
    unread = verdict.judge_crossed(crossed(*good, guards=guards(log_read=False)))
    assert unread.word == verdict.INCONCLUSIVE
    assert unread.reasons[0] == "the kernel log was not readable: faults cannot be excluded"
    assert verdict.judge_crossed(crossed(*good, n=0)).reasons == ("no quad was measured",)
    fell = crossed(*good, n=0)
    fell = dataclasses.replace(fell, trial=dataclasses.replace(fell.trial, exercise=Exercise(fell_back=["device cpu"])))
    assert verdict.judge_crossed(fell).reasons == ("fell back: device cpu",)


@pytest.mark.parametrize("effect", simulation.EFFECTS)
@pytest.mark.parametrize("model", simulation.cells())
def test_simulated_trials(model: str, effect: float) -> None:
    """40 runs a cell; the bench takes 800.

    The bound is what 40 runs of a cell that just meets the reach pass 99.9 % of the time.
    """
    runs = 40
    right = simulation.right(simulation.cell(model, effect, runs), effect)
    p, allowed = simulation.wanted_rate(model, effect), runs
    while allowed > 0 and sum(math.comb(runs, k) * p**k * (1 - p) ** (runs - k) for k in range(allowed)) > 0.001:
        allowed -= 1
    assert right >= allowed
