"""What a trial has shown: invalid, vacuous, improved, regressed, no_change or inconclusive. Pure; lower is
better.

The rules are looked at in this order and the first that holds decides:

1. invalid: something happened around the measurement that makes every figure worthless; no figure is
interpreted; 2. vacuous: the toggle or the path under test was not exercised;
3. the A/A gate: a host whose sham pairs differ, or whose noise floor is over 10 %, can show nothing
(inconclusive); 4. improved or regressed: p <= alpha at a planned look, and the median over pairs is beyond
max(floor, 2 %); 5. no_change: the Hodges-Lehmann interval lies inside +-max(floor, 5 %) and that bound is at
most 10 %; 6. inconclusive, with the effect that could have been seen.

All limits are compared as log ratios, so swapping the arms only swaps the words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union

from . import statistics

INVALID, VACUOUS = "invalid", "vacuous"
IMPROVED, REGRESSED, NO_CHANGE, INCONCLUSIVE = "improved", "regressed", "no_change", "inconclusive"

# Tuned by simulation only (design notes of the probe, section 5): false verdicts stay <= 3.2 % in every noise
# model tried.
SHAM_ALPHA = 0.05
SMALLEST_CLAIM = math.log(1.02)
NO_CHANGE_BOUND = math.log(1.05)
NOISIEST = math.log(1.10)
ENOUGH_BLOCKS = 0.8
MOST_SHAM_ROUNDS = 2
# A launch series is bound by the device when the drain after a batch is > 5 synchronises and > 20 % of the
# batch.
DRAIN_SYNCS, DRAIN_SHARE = 5.0, 0.2

Pairs = Sequence[tuple[float, float]]
Scalar = Union[str, int, float, None]


@dataclass(frozen=True)
class Guards:
    """What was seen around the measurement. ``None`` means that it could not be read, which is never good.

    log_read: the kernel log was readable for the whole window. log_required: False only for device cpu (no
    card to fault).
    coredumps_before, coredumps_after: devcoredump nodes. fault_lines_before: fault lines of this boot for the
    probed card;
    fault_lines_new: xe reset, hang, wedged, GuC error or fatal AER lines between start and end.
    card: "" or why it must not be measured (suspended, wedged, unmapped: ...). holders: other processes on
    the card.
    failures: ``"kind: text"`` of workers that died, hung, printed garbage, lost the device ... .
    wrong_results: numeric checks.
    throttle_before, throttle_after: counters by name. alarms: active throttle reasons, temperature and fan
    alarms.
    identities: one mapping per worker start (device, torch, driver, container ...), in order.
    readbacks_moved: settings whose read-back changed inside a block. refused: writes that the host refused.
    restore: "", or why the old value did not come back. interrupted: "", or what ended the run before its end.
    blocks_planned, blocks_done: blocks of all phases that were begun.
    """

    log_read: bool | None = None
    log_required: bool = True
    coredumps_before: Sequence[str] | None = None
    coredumps_after: Sequence[str] | None = None
    fault_lines_before: Sequence[str] = ()
    fault_lines_new: Sequence[str] = ()
    card: str = ""
    holders: Sequence[str] | None = None
    failures: Sequence[str] = ()
    wrong_results: Sequence[str] = ()
    throttle_before: Mapping[str, int] | None = None
    throttle_after: Mapping[str, int] | None = None
    alarms: Sequence[str] = ()
    identities: Sequence[Mapping[str, Scalar]] = ()
    readbacks_moved: Sequence[str] = ()
    refused: Sequence[str] = ()
    restore: str = ""
    interrupted: str = ""
    blocks_planned: int = 0
    blocks_done: int = 0


@dataclass(frozen=True)
class Exercise:
    """Was the thing under test used at all?

    readbacks: values read back by arm, one per block, ``{"A": [...], "B": [...]}``; empty when nothing is
    toggled.
    evidence: values that must differ between the arms because the setting acts, by name, in the same form
    (table 4.5).
    iterations: times that the path under test ran. fell_back: what was measured in place of what the claim is
    about (device cpu, composite instead of fused, eager instead of graph, world size 1, a wrong graph replay
    count).
    drain_ns, batch_ns, sync_ns: medians for the device-bound rule, or None when the metric is no launch
    series.
    """

    readbacks: Mapping[str, Sequence[Scalar]] = field(default_factory=dict)
    evidence: Mapping[str, Mapping[str, Sequence[Scalar]]] = field(default_factory=dict)
    iterations: int = 0
    fell_back: Sequence[str] = ()
    drain_ns: float | None = None
    batch_ns: float | None = None
    sync_ns: float | None = None


@dataclass(frozen=True)
class Trial:
    """All that a verdict is made from.

    metric: the primary metric, named before the run. arms: what A and B are. sham: rounds of A/A pairs of
    block figures;
    pairs: A/B pairs in measured order (A first whatever the order was). sham_p10, pairs_p10: the same blocks
    summarised by their 10th percentile, or empty when the statistic may not be switched (it is not the
    median). planned: A/B pairs planned so far.
    """

    metric: str
    arms: Mapping[str, str]
    sham: Sequence[Pairs]
    pairs: Pairs
    guards: Guards
    exercise: Exercise
    statistic: str = "median"
    sham_p10: Sequence[Pairs] = ()
    pairs_p10: Pairs = ()
    looks: Sequence[int] = (16, 40)
    planned: int = 16
    alpha: float = 0.03


@dataclass(frozen=True)
class Verdict:
    """The word, every reason for it, what else must be said, and the figures it rests on (see
    `figures_of`).
    """

    word: str
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)


def invalid_reasons(guards: Guards) -> list[str]:
    """Return every reason why no figure may be quoted; empty when there is none."""
    reasons: list[str] = []
    if guards.interrupted:
        reasons.append(f"interrupted: {guards.interrupted}")
    if guards.card:
        reasons.append(f"card: {guards.card}")
    reasons += [f"devcoredump present at start: {node}" for node in guards.coredumps_before or ()]
    reasons += [
        f"devcoredump appeared: {node}"
        for node in guards.coredumps_after or ()
        if node not in (guards.coredumps_before or ())
    ]
    reasons += [f"fault on this boot before the start: {line}" for line in guards.fault_lines_before]
    reasons += [f"fault during the measurement: {line}" for line in guards.fault_lines_new]
    reasons += [f"worker: {failure}" for failure in guards.failures]
    reasons += [f"wrong result: {text}" for text in guards.wrong_results]
    before, after = guards.throttle_before or {}, guards.throttle_after or {}
    for name in sorted(set(before) & set(after)):
        if after[name] != before[name]:
            reasons.append(f"throttle counter moved: {name} {before[name]} -> {after[name]}")
    reasons += [f"alarm: {alarm}" for alarm in guards.alarms]
    reasons += [f"other process on the card: {holder}" for holder in guards.holders or ()]
    reasons += identity_changes(guards.identities)
    reasons += [f"setting changed inside a block: {text}" for text in guards.readbacks_moved]
    reasons += [f"the setting could not be written: {text}" for text in guards.refused]
    if guards.restore:
        reasons.append(f"restore failed: {guards.restore}")
    if guards.blocks_done < ENOUGH_BLOCKS * guards.blocks_planned:
        reasons.append(f"{guards.blocks_done} of {guards.blocks_planned} planned blocks measured, fewer than 80 %")
    return reasons


def identity_changes(identities: Sequence[Mapping[str, Scalar]]) -> list[str]:
    """Return what differs between the worker starts (device, torch, driver, container): arms must share all
    of it.
    """
    changes: list[str] = []
    for later in identities[1:]:
        first = identities[0]
        for key in sorted(set(first) | set(later)):
            if first.get(key) != later.get(key):
                text = f"identity changed: {key} {first.get(key)} -> {later.get(key)}"
                if text not in changes:
                    changes.append(text)
    return changes


def unchecked(guards: Guards) -> list[str]:
    """Return the guards that could not be read, each with its name: said in every report."""
    missing: list[str] = []
    if not guards.log_read:
        missing.append("kernel log: not readable, faults not checked")
    if guards.log_required and (guards.coredumps_before is None or guards.coredumps_after is None):
        missing.append("devcoredump nodes: not checked")
    if guards.log_required and guards.holders is None:
        missing.append("other processes on the card: not checked")
    if guards.throttle_before is None or guards.throttle_after is None:
        missing.append("throttle counters: not checked")
    return missing


def vacuous_reasons(exercise: Exercise) -> list[str]:
    """Return every reason why the setting or the path under test was not exercised; empty when it was."""
    reasons: list[str] = []
    if exercise.readbacks:
        for arm in ("A", "B"):
            seen = sorted({str(value) for value in exercise.readbacks.get(arm, ())})
            if not seen or None in exercise.readbacks.get(arm, ()):
                reasons.append(f"arm {arm}: the setting could not be read back")
            elif len(seen) > 1:
                reasons.append(f"arm {arm}: the write did not always take, read back {', '.join(seen)}")
        if set(map(str, exercise.readbacks.get("A", ()))) == set(map(str, exercise.readbacks.get("B", ()))):
            values = sorted(set(map(str, exercise.readbacks.get("A", ()))))
            reasons.append(f"read-back is equal in both arms: {', '.join(values) or 'nothing'}")
    for name, by_arm in sorted(exercise.evidence.items()):
        a, b = by_arm.get("A", ()), by_arm.get("B", ())
        if not a or not b or None in a or None in b:
            reasons.append(f"no evidence that the setting acted: {name} could not be read")
        elif not differs(a, b):
            reasons.append(f"no evidence that the setting acted: {name} does not differ between the arms")
    reasons += fallen_back(exercise)
    if device_bound(exercise.drain_ns, exercise.batch_ns, exercise.sync_ns):
        reasons.append("launch series is bound by the device (drain > 5 synchronises and > 20 % of the batch)")
    if exercise.iterations < 1:
        reasons.append("the path under test ran 0 times")
    return reasons


def fallen_back(exercise: Exercise) -> list[str]:
    """Return what was measured in place of what the claim is about; known before the first A/B pair."""
    return [f"fell back: {text}" for text in exercise.fell_back]


def differs(a: Sequence[Scalar], b: Sequence[Scalar]) -> bool:
    """Say whether evidence differs by arm: text has no value in common, numbers have a signed-rank p <= 0.05
    over pairs.
    """
    if all(isinstance(x, (int, float)) for x in (*a, *b)):
        changes = [float(y) - float(x) for x, y in zip(a, b) if x is not None and y is not None]
        return statistics.signed_rank(changes).p <= 0.05
    return not set(map(str, a)) & set(map(str, b))


def device_bound(drain_ns: float | None, batch_ns: float | None, sync_ns: float | None) -> bool:
    """Say whether the device, not the host, set the pace of a launch series (its figure is then device
    throughput).
    """
    if drain_ns is None or batch_ns is None or sync_ns is None:
        return False
    return drain_ns > DRAIN_SYNCS * sync_ns and drain_ns > DRAIN_SHARE * batch_ns


@dataclass(frozen=True)
class Gate:
    """Outcome of the sham pairs: log ratios of all rounds, p of each round, the statistic chosen, and its
    floor at the first look.
    """

    statistic: str
    ratios: tuple[float, ...]
    p: tuple[float, ...]
    floor: float
    passed: bool
    reason: str = ""


def sham_gate(trial: Trial) -> Gate:
    """Judge the sham pairs. Only they may switch the block statistic to p10: when its floor is less than half
    of the median's.
    """
    chosen, rounds = trial.statistic, [statistics.log_ratios(pairs) for pairs in trial.sham]
    ratios = [d for one in rounds for d in one]
    if not ratios:
        return Gate(chosen, (), (), math.inf, False, "no sham pairs: the noise of this host is not known")
    floor = statistics.noise_floor(ratios, trial.looks[0])
    if chosen == "median" and trial.sham_p10:
        calm = [statistics.log_ratios(pairs) for pairs in trial.sham_p10]
        calm_ratios = [d for one in calm for d in one]
        calm_floor = statistics.noise_floor(calm_ratios, trial.looks[0])
        if calm_floor < floor / 2.0:
            chosen, rounds, ratios, floor = "p10", calm, calm_ratios, calm_floor
    p = tuple(statistics.signed_rank(one).p for one in rounds)
    reason = ""
    if floor > NOISIEST:
        reason = f"host too noisy: floor {percent(floor)} is over 10 %"
    elif len(p) >= MOST_SHAM_ROUNDS and all(value <= SHAM_ALPHA for value in p):
        listed = ", ".join(f"{value:.3f}" for value in p)
        reason = f"host too noisy: sham pairs differ in {len(p)} rounds (p {listed})"
    return Gate(chosen, tuple(ratios), p, floor, not reason, reason)


def sham_again(gate: Gate) -> bool:
    """Say whether the sham round must be repeated: the only one so far differed (p <= 0.05) or was too noisy.

    Both rounds are then judged together. The sham pairs alone decide this, so it cannot favour an arm.
    """
    return len(gate.p) == 1 and (gate.p[0] <= SHAM_ALPHA or gate.floor > NOISIEST)


def look(pairs: Sequence[float], floor: float, alpha: float) -> tuple[str, dict[str, Any]]:
    """Apply rules 4 to 6 to the log ratios of one planned look; return the word and its figures (as log
    ratios).
    """
    test = statistics.signed_rank(pairs)
    interval = statistics.hodges_lehmann(pairs, alpha)
    middle = statistics.median(pairs)
    claim, bound = max(floor, SMALLEST_CLAIM), max(floor, NO_CHANGE_BOUND)
    if test.p <= alpha and abs(middle) > claim:
        word = IMPROVED if middle < 0 else REGRESSED
    elif bound <= NOISIEST and -bound <= interval.low and interval.high <= bound:
        word = NO_CHANGE
    else:
        word = INCONCLUSIVE
    return word, {
        "n": len(pairs),
        "p": test.p,
        "median": middle,
        "low": interval.low,
        "high": interval.high,
        "confidence": interval.confidence,
        "floor": floor,
        "claim": claim,
        "bound": bound,
    }


def judge(trial: Trial) -> Verdict:
    """Return the verdict of a trial, at the first planned look that decides."""
    notes = unchecked(trial.guards)
    invalid = invalid_reasons(trial.guards)
    if invalid:
        return Verdict(INVALID, tuple(invalid), tuple(notes))
    # A trial that the sham pairs ended has no A/B block that could show exercise: then the gate says why.
    vacuous = vacuous_reasons(trial.exercise) if trial.planned else fallen_back(trial.exercise)
    if vacuous:
        return Verdict(VACUOUS, tuple(vacuous), tuple(notes))
    gate = sham_gate(trial)
    figures: dict[str, Any] = {"statistic": gate.statistic, "sham_p": list(gate.p)}
    if gate.ratios:
        figures["floor"] = ratio_change(gate.floor)
    if not gate.passed:
        return Verdict(INCONCLUSIVE, (gate.reason,), tuple(notes), figures)
    if gate.statistic != trial.statistic:
        notes.append(
            "uncontended cost: blocks are summarised by their 10th percentile, "
            "whose floor is less than half of the median's"
        )
    ratios = statistics.log_ratios(trial.pairs_p10 if gate.statistic != trial.statistic else trial.pairs)
    word, number = INCONCLUSIVE, 0
    seen: dict[str, Any] = {}
    for wanted in trial.looks:
        if wanted > max(trial.planned, trial.looks[0]) or len(ratios) < ENOUGH_BLOCKS * wanted:
            break
        number += 1
        word, seen = look(ratios[:wanted], statistics.noise_floor(gate.ratios, wanted), trial.alpha)
        if word != INCONCLUSIVE:
            break
    if not seen:
        return Verdict(
            INCONCLUSIVE,
            (f"{len(ratios)} A/B pairs, {trial.looks[0]} are the first planned look",),
            tuple(notes),
            figures,
        )
    figures.update(figures_of(trial, gate, seen, ratios, number))
    reasons = [_reason(word, seen)]
    if word == INCONCLUSIVE:
        effect = statistics.detectable_effect(gate.ratios, int(seen["n"]), trial.alpha)
        figures["detectable"] = ratio_change(max(effect, seen["claim"]))
        figures["pairs_for_5_percent"] = statistics.pairs_needed(gate.ratios, NO_CHANGE_BOUND, trial.alpha)
        reasons.append(
            f"an effect of {percent(max(effect, seen['claim']))} could have been seen "
            f"with {seen['n']} pairs; "
            f"5 % needs about {figures['pairs_for_5_percent']} (estimates from the sham pairs)"
        )
    elif trial.guards.log_required and not trial.guards.log_read:
        reasons = [
            "the kernel log was not readable: faults cannot be excluded",
            f"without that: {word}, {reasons[0]}",
        ]
        word = INCONCLUSIVE
    if word == NO_CHANGE and seen["p"] <= trial.alpha:
        notes.append(
            f"a shift of {percent(seen['median'])} is statistically visible (p {seen['p']:.2g}) "
            "but under the limit of a claim"
        )
    return Verdict(word, tuple(reasons), tuple(notes), figures)


def next_step(trial: Trial) -> str:
    """Return what a running trial does next: ``sham``, ``sham_again``, ``pairs:N`` (measure up to N in total)
    or ``stop``.

    Fields that are only known at the end (restore, after-values) should hold their good value while the trial
    runs.
    """
    if invalid_reasons(trial.guards):
        return "stop"
    if trial.exercise.fell_back:
        return "stop"
    if not trial.sham:
        return "sham"
    gate = sham_gate(trial)
    if sham_again(gate):
        return "sham_again"
    if not gate.passed:
        return "stop"
    if len(trial.pairs) < ENOUGH_BLOCKS * trial.looks[0] or trial.planned < trial.looks[0]:
        return f"pairs:{trial.looks[0]}"
    if vacuous_reasons(trial.exercise):
        return "stop"
    verdict = judge(_with_log(trial))
    later = [wanted for wanted in trial.looks if wanted > trial.planned]
    return f"pairs:{later[0]}" if verdict.word == INCONCLUSIVE and later else "stop"


def _with_log(trial: Trial) -> Trial:
    """Return the trial as if the log could be read: an unreadable log must not make a trial longer."""
    return replace(trial, guards=replace(trial.guards, log_read=True))


def figures_of(
    trial: Trial, gate: Gate, seen: Mapping[str, Any], ratios: Sequence[float], number: int
) -> dict[str, Any]:
    """Return the figures of a report. Ratios are B/A; ``floor``, ``bound`` are relative changes (0.019 is 1.9
    %).
    """
    return {
        "statistic": gate.statistic,
        "look": number,
        "n": seen["n"],
        "p": seen["p"],
        "ratio": math.exp(seen["median"]),
        "ratio_low": math.exp(seen["low"]),
        "ratio_high": math.exp(seen["high"]),
        "confidence": seen["confidence"],
        "floor": ratio_change(seen["floor"]),
        "bound": ratio_change(seen["bound"]),
        "ratios": [math.exp(d) for d in ratios[: seen["n"]]],
        "one_minus_ratio": 1.0 - math.exp(seen["median"]),
        "inverse_minus_one": math.exp(-seen["median"]) - 1.0,
        "sham_p": list(gate.p),
    }


def _reason(word: str, seen: Mapping[str, Any]) -> str:
    head = f"median over {seen['n']} pairs {percent(seen['median'])}, p {seen['p']:.2g}, floor {percent(seen['floor'])}"
    span = f"{percent(seen['low'])} to {percent(seen['high'])}"
    if word in (IMPROVED, REGRESSED):
        return head
    if word == NO_CHANGE:
        return f"{head}: the interval {span} lies within {percent(seen['bound'])}"
    return f"{head}: the interval {span} decides nothing"


def sentence(trial: Trial, verdict: Verdict) -> str:
    """Return the one sentence of a report; it names numerator and denominator and makes no claim below the
    floor.
    """
    if verdict.word in (INVALID, VACUOUS) or "ratio" not in verdict.figures:
        return f"{trial.metric}: {verdict.word}: {verdict.reasons[0]}"
    f = verdict.figures
    claim = {
        IMPROVED: "improved",
        REGRESSED: "regressed",
        NO_CHANGE: f"no change beyond noise (bound {f['bound']:.1%})",
        INCONCLUSIVE: "inconclusive",
    }[verdict.word]
    span = f"[{f['ratio_low']:.3f}, {f['ratio_high']:.3f}]"
    a, b = trial.arms.get("A", "A"), trial.arms.get("B", "B")
    return (
        f"{trial.metric} ({f['statistic']} of blocks): {claim}; latency of B ({b}) / latency of A ({a}) = "
        f"{f['ratio']:.3f} {span} over {f['n']} pairs, floor {f['floor']:.1%}"
    )


def judge_boots(a: Sequence[float], b: Sequence[float], guards: Guards, alpha: float = 0.03) -> Verdict:
    """Return the verdict for a setting that needs a boot; one figure per boot in each arm, any unit.

    Three boots against three can never be significant (the smallest exact p is 0.10): below four per arm the
    word is inconclusive and the intervals are "descriptive only". With four the smallest p is 0.029.
    """
    notes = unchecked(guards)
    invalid = invalid_reasons(guards)
    if invalid:
        return Verdict(INVALID, tuple(invalid), tuple(notes))
    figures: dict[str, Any] = {"boots_a": len(a), "boots_b": len(b)}
    for name, values in (("a", a), ("b", b)):
        if values:
            figures.update(
                {
                    f"{name}_low": min(values),
                    f"{name}_median": statistics.median(values),
                    f"{name}_high": max(values),
                }
            )
    if len(a) < 4 or len(b) < 4:
        reason = f"unpaired, descriptive only: {len(a)} and {len(b)} boots, a verdict needs four per arm"
        return Verdict(INCONCLUSIVE, (reason,), tuple(notes), figures)
    log_a, log_b = [math.log(x) for x in a], [math.log(x) for x in b]
    p, moved = statistics.rank_sum(log_a, log_b), statistics.shift(log_a, log_b, alpha)
    figures.update(p=p, ratio=math.exp(moved.estimate), ratio_low=math.exp(moved.low), ratio_high=math.exp(moved.high))
    head = f"{len(a)} and {len(b)} boots, shift {percent(moved.estimate)}, p {p:.2g}"
    if p <= alpha and abs(moved.estimate) > SMALLEST_CLAIM:
        word = IMPROVED if moved.estimate < 0 else REGRESSED
    elif moved.low >= -NO_CHANGE_BOUND and moved.high <= NO_CHANGE_BOUND:
        word = NO_CHANGE
    else:
        word = INCONCLUSIVE
    if word != INCONCLUSIVE and guards.log_required and not guards.log_read:
        return Verdict(
            INCONCLUSIVE,
            ("the kernel log was not readable: faults cannot be excluded", head),
            tuple(notes),
            figures,
        )
    return Verdict(word, (head,), tuple(notes), figures)


def interaction(quads: Sequence[Mapping[str, float]], alpha: float = 0.03) -> dict[str, dict[str, float]]:
    """Return the effect of two switches and of their interaction; gains are never added.

    quads: one mapping per random order block with the block figure of ``base``, ``A``, ``B`` and ``A+B``.
    Returns for ``A``, ``B``, ``A+B`` (each against base) and ``interaction`` (ln AB + ln base - ln A - ln B):
    median ``ratio``, its interval, and ``p`` after Holm over the four. Raises ValueError for no quads.
    """
    if not quads:
        raise ValueError("interaction of no blocks")
    logs = [{arm: math.log(quad[arm]) for arm in ("base", "A", "B", "A+B")} for quad in quads]
    series = {arm: [one[arm] - one["base"] for one in logs] for arm in ("A", "B", "A+B")}
    series["interaction"] = [one["A+B"] + one["base"] - one["A"] - one["B"] for one in logs]
    adjusted = statistics.holm([statistics.signed_rank(d).p for d in series.values()])
    result: dict[str, dict[str, float]] = {}
    for (name, d), p in zip(series.items(), adjusted):
        interval = statistics.hodges_lehmann(d, alpha)
        result[name] = {
            "ratio": math.exp(statistics.median(d)),
            "ratio_low": math.exp(interval.low),
            "ratio_high": math.exp(interval.high),
            "p": p,
        }
    return result


@dataclass(frozen=True)
class Crossed:
    """A trial of two switches: everything but the quads as in a trial of one.

    quads: one mapping per random order block with the block figure of each arm, as for `interaction`.
    exercises: of switch A (arm A: those blocks without it, arm B: with it) and of switch B.
    """

    trial: Trial
    quads: Sequence[Mapping[str, float]]
    exercises: Mapping[str, Exercise]


def judge_crossed(crossed: Crossed) -> Verdict:
    """Return the verdict of a trial of two switches: its word is that of both together against neither.

    ``figures.effects`` has each effect with its own word; gains are never added, the interaction says why.
    """
    trial = crossed.trial
    notes = unchecked(trial.guards)
    invalid = invalid_reasons(trial.guards)
    if invalid:
        return Verdict(INVALID, tuple(invalid), tuple(notes))
    gate = sham_gate(trial)
    figures: dict[str, Any] = {"statistic": gate.statistic, "sham_p": list(gate.p)}
    if trial.planned:
        vacuous = [f"switch {name}: {why}" for name, one in crossed.exercises.items() for why in vacuous_reasons(one)]
        if vacuous:
            return Verdict(VACUOUS, tuple(dict.fromkeys(vacuous)), tuple(notes))
    elif fallen_back(trial.exercise):
        return Verdict(VACUOUS, tuple(fallen_back(trial.exercise)), tuple(notes))
    if not gate.passed:
        if gate.ratios:
            figures["floor"] = ratio_change(gate.floor)
        return Verdict(INCONCLUSIVE, (gate.reason,), tuple(notes), figures)
    if not crossed.quads:
        return Verdict(INCONCLUSIVE, ("no quad was measured",), tuple(notes), figures)
    floor = statistics.noise_floor(gate.ratios, len(crossed.quads))
    effects = effects_of(crossed.quads, floor, trial.alpha)
    figures.update(n=len(crossed.quads), floor=ratio_change(floor), effects=effects)
    word = str(effects["A+B"]["word"])
    reasons = [
        f"{name}: {one['word']}, ratio {one['ratio']:.3f} [{one['ratio_low']:.3f}, {one['ratio_high']:.3f}], "
        f"p {one['p']:.2g} (Holm over four)"
        for name, one in effects.items()
    ]
    if word != INCONCLUSIVE and trial.guards.log_required and not trial.guards.log_read:
        return Verdict(
            INCONCLUSIVE,
            ("the kernel log was not readable: faults cannot be excluded", *reasons),
            tuple(notes),
            figures,
        )
    return Verdict(word, tuple(reasons), tuple(notes), figures)


def effects_of(
    quads: Sequence[Mapping[str, float]], floor: float, alpha: float
) -> dict[str, dict[str, Union[float, str]]]:
    """Return `interaction` with the word of each effect, by the rules of `look`.

    floor: of a pair, as a log ratio. The interaction is made from four blocks in place of two, so its own is larger by
    the square root of two.
    """
    result: dict[str, dict[str, Union[float, str]]] = {}
    for name, one in interaction(quads, alpha).items():
        own = floor * math.sqrt(2.0) if name == "interaction" else floor
        claim, bound = max(own, SMALLEST_CLAIM), max(own, NO_CHANGE_BOUND)
        middle, low, high = (math.log(one[key]) if one[key] > 0.0 else -math.inf for key in _INTERVAL)
        if one["p"] <= alpha and abs(middle) > claim:
            word = IMPROVED if middle < 0 else REGRESSED
        elif bound <= NOISIEST and -bound <= low and high <= bound:
            word = NO_CHANGE
        else:
            word = INCONCLUSIVE
        result[name] = {**one, "word": word}
    return result


_INTERVAL = ("ratio", "ratio_low", "ratio_high")


def crossed_sentence(crossed: Crossed, verdict: Verdict) -> str:
    """Return the one sentence of a trial of two switches; each ratio names its numerator and denominator."""
    trial = crossed.trial
    effects = verdict.figures.get("effects")
    if verdict.word in (INVALID, VACUOUS) or not effects:
        return f"{trial.metric}: {verdict.word}: {verdict.reasons[0]}"
    shown = "; ".join(
        f"latency of {name} ({trial.arms[name]}) / base ({trial.arms['base']}) = {effects[name]['ratio']:.3f} "
        f"({effects[name]['word']})"
        for name in ("A", "B", "A+B")
    )
    crossing = effects["interaction"]
    return (
        f"{trial.metric} ({verdict.figures['statistic']} of blocks) over {verdict.figures['n']} quads: {shown}; "
        f"interaction (A+B x base) / (A x B) = {crossing['ratio']:.3f} ({_CROSSING[str(crossing['word'])]}), "
        f"floor {verdict.figures['floor']:.1%}"
    )


_CROSSING = {
    IMPROVED: "together they are faster than each alone lets expect",
    REGRESSED: "together they are slower than each alone lets expect",
    NO_CHANGE: "none beyond noise",
    INCONCLUSIVE: "not decided",
}


def ratio_change(log_ratio: float) -> float:
    """Return a log ratio as a relative change: ``exp(x) - 1``."""
    return math.expm1(log_ratio)


def percent(log_ratio: float) -> str:
    """Return a log ratio as text, ``"+1.9 %"``.

    >>> percent(0.0198)
    '+2.0 %'
    """
    return f"{100.0 * math.expm1(log_ratio):+.1f} %" if math.isfinite(log_ratio) else "unbounded"
