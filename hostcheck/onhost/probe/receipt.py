"""The receipt of a probe or a trial (``hostcheck/receipt/1``): raw samples, identity, and every figure made
from them. Pure.

A receipt is a JSON object. ``blocks`` and ``collectives`` hold the raw samples in ns, each series with its
exact sum; ``figures``, ``validity`` and ``verdict`` are functions of the rest, so whoever has the file can
make them again (`derive`). ``sha256`` covers the canonical JSON without itself.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import statistics, verdict
from .schedule import ARMS_OF_TWO_SWITCHES, PAIRS, QUADS, SHAM

SCHEMA = "hostcheck/receipt/1"
SHAM_PHASES = (SHAM, "sham_again")
# Series that are measured in nanoseconds per operation are shown so; all others in microseconds.
PER_OPERATION_NS = ("py_loop_ns",)
DIGITS = 9

Receipt = Mapping[str, Any]


def canonical(receipt: Receipt) -> bytes:
    """Return the bytes that are hashed: sorted keys, no spaces, UTF-8, without the key ``sha256``.

    Raises ValueError for a number that is not finite.
    """
    body = {key: value for key, value in receipt.items() if key != "sha256"}
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode("utf-8")


def digest(receipt: Receipt) -> str:
    """Return the SHA-256 of the canonical receipt in hexadecimal."""
    return hashlib.sha256(canonical(receipt)).hexdigest()


def seal(receipt: Receipt) -> dict[str, Any]:
    """Return the receipt with everything derived from its raw part, and its ``sha256``."""
    done = {**receipt, **derive(receipt)}
    done["sha256"] = digest(done)
    return done


def derive(receipt: Receipt) -> dict[str, Any]:
    """Return ``figures``, ``validity`` and, for a trial, ``verdict``: all that a receipt claims, from its raw
    part.
    """
    derived = {"figures": figures(receipt), "validity": validity(receipt)}
    if receipt["kind"] == "trial":
        trial = trial_of(receipt)
        judged = verdict.judge(trial)
        derived["verdict"] = _plain(judged, verdict.sentence(trial, judged))
    elif receipt["kind"] == "interaction":
        crossed = crossed_of(receipt)
        judged = verdict.judge_crossed(crossed)
        derived["verdict"] = _plain(judged, verdict.crossed_sentence(crossed, judged))
    return {key: rounded(value) for key, value in derived.items()}


def _plain(judged: verdict.Verdict, sentence: str) -> dict[str, Any]:
    return {
        "word": judged.word,
        "reasons": list(judged.reasons),
        "notes": list(judged.notes),
        "figures": judged.figures,
        "sentence": sentence,
    }


def rounded(value: Any) -> Any:
    """Return a JSON value with floats cut to 9 significant digits; an unbounded end of an interval becomes
    None.
    """
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(inner) for inner in value]
    return value


# ------------------------------------------------------------------------------------------------------------
# figures


def all_series(receipt: Receipt) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every raw series with its place in the receipt."""
    for number, block in enumerate(receipt.get("blocks", ())):
        for name, series in block["metrics"].items():
            yield f"blocks.{number}.{name}", series
    for number, collective in enumerate(receipt.get("collectives", ())):
        for policy, ranks in collective.get("series", {}).items():
            for rank, series in enumerate(ranks):
                yield f"collectives.{number}.{policy}.{rank}", series


def unit(metric: str) -> str:
    return "ns" if metric in PER_OPERATION_NS else "us"


def per_operation(metric: str, series: Mapping[str, Any]) -> list[float]:
    """Return the samples as time per operation in the metric's unit."""
    scale = float(series["per_sample"]) * (1.0 if unit(metric) == "ns" else 1000.0)
    return [sample / scale for sample in series["samples"]]


def summary(values: Sequence[float], unit_name: str) -> dict[str, Any]:
    """Return n, median, p10, p99, mean, min and max of samples, with their unit."""
    return {
        "unit": unit_name,
        "n": len(values),
        **{name: statistics.statistic(values, name) for name in statistics.STATISTICS},
    }


def figures(receipt: Receipt) -> dict[str, Any]:
    """Return every figure of a receipt.

    ``metrics``: per metric the summary over all blocks of all arms (a profile), or by arm (a trial:
    ``metrics_by_arm``), with the noise
    ``floor`` of its sham pairs. ``lab``: the lab's own figures in us (median of the repeats), or the text of
    the error.
    ``collectives``: per-iteration maximum over ranks. ``graph_gain``: eager over replay. ``device_bound``:
    see verdict.
    """
    result: dict[str, Any] = {
        "metrics": {},
        "lab": lab_figures(receipt),
        "collectives": collective_figures(receipt),
    }
    blocks = receipt.get("blocks", ())
    names = sorted({name for block in blocks for name in block["metrics"]})
    for name in names:
        result["metrics"][name] = {**summary(_samples(blocks, name), unit(name)), **noise(receipt, name)}
    if receipt["kind"] != "profile":
        result["metrics_by_arm"] = {
            arm: {
                name: summary(samples, unit(name)) for name in names if (samples := _samples(_arm(blocks, arm), name))
            }
            for arm in (("A", "B") if receipt["kind"] == "trial" else ARMS_OF_TWO_SWITCHES)
        }
    eager, replay = (result["metrics"].get(name) for name in ("graph_eager_us", "graph_replay_us"))
    result["graph_gain"] = eager["median"] / replay["median"] if eager and replay else None
    result["device_bound"] = verdict.device_bound(*launch_medians(blocks))
    result["launches"] = {
        name: sorted(
            {str(worker["launches"][name]["launches"]) for worker in receipt["workers"] if worker.get("launches")}
        )
        for name in ("launch_us", "rms_composite8_us", "rms_fused_us", "ir_rms_norm_m2_us")
    }
    return result


def _samples(blocks: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
    return [
        x for block in blocks if metric in block["metrics"] for x in per_operation(metric, block["metrics"][metric])
    ]


def _arm(blocks: Sequence[Mapping[str, Any]], arm: str) -> list[Mapping[str, Any]]:
    return [block for block in blocks if block["phase"] in (PAIRS, QUADS) and block["arm"] == arm]


def noise(receipt: Receipt, metric: str) -> dict[str, Any]:
    """Return ``floor`` (relative, for the median over the first look's pairs, or over the sham pairs of a
    profile) and the sham ``p``.
    """
    if metric.startswith("sleep_overshoot") or metric == "launch_drain":
        return {}
    pairs = [pair for phase in SHAM_PHASES for pair in block_pairs(receipt, phase, metric, "median")]
    if len(pairs) < 6 or any(a <= 0 or b <= 0 for a, b in pairs):
        return {"floor": None, "sham_p": None, "sham_pairs": len(pairs)}
    ratios = statistics.log_ratios(pairs)
    n = len(ratios) if receipt["kind"] == "profile" else int(receipt["plan"]["looks"][0])
    return {
        "floor": verdict.ratio_change(statistics.noise_floor(ratios, n)),
        "sham_p": statistics.signed_rank(ratios).p,
        "sham_pairs": len(pairs),
    }


def block_pairs(receipt: Receipt, phase: str, metric: str, statistic: str) -> list[tuple[float, float]]:
    """Return ``(A, B)`` block figures of the complete pairs of a phase that measured ``metric``, in pair
    order.
    """
    found = _block_figures(receipt, phase, metric, statistic)
    return [(arms["A"], arms["B"]) for _, arms in sorted(found.items()) if len(arms) == 2]


def block_quads(receipt: Receipt, metric: str, statistic: str) -> list[dict[str, float]]:
    """Return the block figure of each arm of the complete quads of a trial of two switches, in their order."""
    found = _block_figures(receipt, QUADS, metric, statistic)
    return [arms for _, arms in sorted(found.items()) if len(arms) == len(ARMS_OF_TWO_SWITCHES)]


def _block_figures(receipt: Receipt, phase: str, metric: str, statistic: str) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for block in receipt.get("blocks", ()):
        if block["phase"] == phase and block["metrics"].get(metric, {}).get("samples"):
            values = per_operation(metric, block["metrics"][metric])
            found.setdefault(block["pair"], {})[block["arm"]] = statistics.statistic(values, statistic)
    return found


def launch_medians(blocks: Sequence[Mapping[str, Any]]) -> tuple[float | None, float | None, float | None]:
    """Return the median drain, batch and synchronise (launch and wait) in ns, None where a series is
    missing.
    """
    series = []
    for name in ("launch_drain", "launch_us", "launch_sync_us"):
        samples = [x for block in blocks for x in block["metrics"].get(name, {}).get("samples", ())]
        series.append(statistics.median(samples) if samples else None)
    return series[0], series[1], series[2]


LAB_KEYS = ("launch_us_async", "launch_plus_sync_us", "w8a16_m2_qkv_us", "ir_rms_norm_m2_us")


def lab_figures(receipt: Receipt) -> dict[str, Any]:
    """Return the lab's four figures: median of the repeats in us, or the text of the error; and every repeat
    under ``repeats``.
    """
    runs = [run for worker in receipt.get("workers", ()) for run in worker.get("lab", ())]
    result: dict[str, Any] = {}
    for key in LAB_KEYS:
        values = [run[key]["total_ns"] / run[key]["n"] / 1000.0 for run in runs if "total_ns" in run.get(key, {})]
        errors = [run[key]["error"] for run in runs if "error" in run.get(key, {})]
        if values:
            result[key] = statistics.median(values)
            result.setdefault("repeats", {})[key] = values
        elif errors:
            result[key] = f"err {errors[0]}"[:80]
    return result


def collective_name(collective: Mapping[str, Any], policy: str) -> str:
    """Return the metric's name: dtype, shape, ranks, backend, environment, variables and sync policy are part
    of it.
    """
    return (
        f"allreduce_us[{collective['dtype']},{collective['rows']}x{collective['hidden']},ranks={collective['ranks']},"
        f"{collective['backend']},{collective['environment']},env={collective['variables']},{policy}]"
    )


def collective_figures(receipt: Receipt) -> dict[str, Any]:
    """Return per collective and sync policy the summary of the per-iteration maximum over ranks, in us."""
    result: dict[str, Any] = {}
    for collective in receipt.get("collectives", ()):
        for policy, ranks in sorted(collective.get("series", {}).items()):
            slowest = [max(values) for values in zip(*(per_operation("allreduce_us", series) for series in ranks))]
            if slowest:
                result[collective_name(collective, policy)] = summary(slowest, "us")
    return result


# -------------------------------------------------------------------------------------------------- validity,
# verdict


def guards_of(receipt: Receipt) -> verdict.Guards:
    """Return what the receipt holds about the time around and between its blocks.

    ``before`` and ``after`` are what the host said then: ``{log: {read, fault_lines}, coredumps, holders,
    throttle, alarms, card, host}``; missing keys were not read. A fault line is new when it is not among
    those before.
    """
    before, after = receipt.get("before") or {}, receipt.get("after") or {}
    log_before, log_after = before.get("log") or {}, after.get("log") or {}
    old = list(log_before.get("fault_lines", ()))
    new = list(log_after.get("fault_lines", ()))
    for line in old:
        if line in new:
            new.remove(line)
    blocks = receipt.get("blocks", ())
    holders = [holder for side in (before, after) for holder in side.get("holders") or ()]
    unread = before.get("holders") is None or after.get("holders") is None
    failures = [
        f"{failure['kind']}: {failure['text']}"
        for failure in receipt.get("failures", ())
        if failure["kind"] not in ("wrong_result", "nan", "setting")
    ]
    wrong = [failure["text"] for failure in receipt.get("failures", ()) if failure["kind"] in ("wrong_result", "nan")]
    return verdict.Guards(
        log_read=bool(log_before.get("read")) and bool(log_after.get("read")),
        log_required=any(identity(worker).get("device") != "cpu" for worker in receipt.get("workers", ())),
        coredumps_before=before.get("coredumps"),
        coredumps_after=after.get("coredumps"),
        fault_lines_before=old,
        fault_lines_new=new,
        card=str(before.get("card") or after.get("card") or ""),
        holders=None if unread and not holders else list(dict.fromkeys(holders)),
        failures=failures,
        wrong_results=wrong,
        throttle_before=before.get("throttle"),
        throttle_after=after.get("throttle"),
        alarms=list(dict.fromkeys([*before.get("alarms", ()), *after.get("alarms", ())])),
        identities=[identity(worker) for worker in receipt.get("workers", ()) if "identity" in worker],
        readbacks_moved=[
            f"{block['phase']} pair {block['pair']} arm {block['arm']}: {block['readback']} -> {block['readback_end']}"
            for block in blocks
            if block.get("readback") != block.get("readback_end")
        ],
        refused=[failure["text"] for failure in receipt.get("failures", ()) if failure["kind"] == "setting"],
        restore=str(receipt.get("restore") or ""),
        interrupted=str(receipt.get("interrupted") or ""),
        blocks_planned=sum((4 if phase == QUADS else 2) * int(n) for phase, n in receipt.get("begun", {}).items()),
        blocks_done=len(blocks),
    )


def identity(worker: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flat identity of a worker start: nested keys joined by a dot."""
    flat: dict[str, Any] = {}
    for key, value in worker.get("identity", {}).items():
        if isinstance(value, Mapping):
            flat.update({f"{key}.{inner}": each for inner, each in value.items()})
        else:
            flat[key] = value
    return flat


def validity(receipt: Receipt) -> dict[str, Any]:
    """Return ``{valid, reasons, unchecked}``: whether any figure may be quoted, and what could not be looked
    at.
    """
    guards = guards_of(receipt)
    reasons = verdict.invalid_reasons(guards)
    if not receipt.get("blocks") and not receipt.get("collectives"):
        reasons.append("nothing was measured")
    return {"valid": not reasons, "reasons": reasons, "unchecked": verdict.unchecked(guards)}


def trial_of(receipt: Receipt) -> verdict.Trial:
    """Return the trial that a receipt of kind ``trial`` records, complete or so far.

    ``claim``: ``{metric, statistic, arms: {A, B}, device, evidence: [names], toggles: bool}``, declared
    before the run.
    """
    claim, plan = receipt["claim"], receipt["plan"]
    metric, statistic = claim["metric"], claim["statistic"]

    def pairs(phase: str, by: str) -> list[tuple[float, float]]:
        return block_pairs(receipt, phase, metric, by)

    phases = [phase for phase in SHAM_PHASES if phase in receipt["begun"]]
    switchable = statistic == "median"
    return verdict.Trial(
        metric=metric,
        arms=claim["arms"],
        sham=[found for phase in phases if (found := pairs(phase, statistic))],
        pairs=pairs(PAIRS, statistic),
        guards=guards_of(receipt),
        exercise=exercise_of(receipt),
        statistic=statistic,
        sham_p10=[found for phase in phases if (found := pairs(phase, "p10"))] if switchable else (),
        pairs_p10=pairs(PAIRS, "p10") if switchable else (),
        looks=plan["looks"],
        planned=int(receipt["begun"].get(PAIRS, 0) or receipt["begun"].get(QUADS, 0)),
        alpha=plan["alpha"],
    )


def exercise_of(receipt: Receipt) -> verdict.Exercise:
    """Return what shows that the setting and the path under test were really used, from the A/B blocks."""
    claim = receipt["claim"]
    metric = claim["metric"]
    blocks = {arm: sorted(_arm(receipt.get("blocks", ()), arm), key=lambda block: block["pair"]) for arm in ("A", "B")}
    both = [*blocks["A"], *blocks["B"]]
    drain, batch, sync = launch_medians(both) if metric == "launch_us" else (None, None, None)
    return verdict.Exercise(
        readbacks={arm: [block.get("readback") for block in found] for arm, found in blocks.items()}
        if claim["toggles"]
        else {},
        evidence={
            name: {arm: [block.get("evidence", {}).get(name) for block in found] for arm, found in blocks.items()}
            for name in claim["evidence"]
        },
        iterations=_iterations(both, metric),
        fell_back=fallbacks(receipt),
        drain_ns=drain,
        batch_ns=batch,
        sync_ns=sync,
    )


def crossed_of(receipt: Receipt) -> verdict.Crossed:
    """Return the trial of two switches that a receipt of kind ``interaction`` records.

    ``claim`` is that of a trial; its arms are those of two switches, and what shows that a switch acted has its letter
    in front: ``A:readback``, ``B:clock_khz``.
    """
    claim = receipt["claim"]
    metric = claim["metric"]
    trial = trial_of(receipt)
    statistic = verdict.sham_gate(trial).statistic
    exercises = {}
    for switch, without in (("A", ("base", "B")), ("B", ("base", "A"))):
        names = [name for name in claim["evidence"] if name.startswith(f"{switch}:")]
        blocks = {"A": _quad_blocks(receipt, without), "B": _quad_blocks(receipt, without, other=True)}
        exercises[switch] = verdict.Exercise(
            evidence={
                name: {arm: [one["evidence"].get(name) for one in found] for arm, found in blocks.items()}
                for name in names
            },
            iterations=_iterations([*blocks["A"], *blocks["B"]], metric),
            fell_back=trial.exercise.fell_back,
            drain_ns=trial.exercise.drain_ns,
            batch_ns=trial.exercise.batch_ns,
            sync_ns=trial.exercise.sync_ns,
        )
    return verdict.Crossed(trial, block_quads(receipt, metric, statistic), exercises)


def _quad_blocks(receipt: Receipt, arms: Sequence[str], other: bool = False) -> list[Mapping[str, Any]]:
    """Return the blocks of the quads in these arms (``other``: in the rest), paired by quad and by the other switch."""
    wanted = [arm for arm in ARMS_OF_TWO_SWITCHES if (arm in arms) != other]
    found = [block for block in receipt.get("blocks", ()) if block["phase"] == QUADS and block["arm"] in wanted]
    return sorted(found, key=lambda block: (block["pair"], wanted.index(block["arm"])))


def _iterations(blocks: Sequence[Mapping[str, Any]], metric: str) -> int:
    return sum(block["metrics"].get(metric, {}).get("exercised", {}).get("n", 0) for block in blocks)


def fallbacks(receipt: Receipt) -> list[str]:
    """Return what was measured in place of what the claim is about; empty when nothing was."""
    claim, found = receipt["claim"], []
    for worker in receipt.get("workers", ()):
        device = identity(worker).get("device")
        if claim["device"] not in ("auto", device):
            found.append(f"device {device} in place of {claim['device']}")
        family = {"graph_eager_us": "graph_us", "graph_replay_us": "graph_us"}.get(claim["metric"], claim["metric"])
        missing = worker.get("unavailable", {}).get(family)
        if missing:
            found.append(f"{claim['metric']} unavailable: {missing}")
        if claim["metric"] == "rms_fused_us" and worker.get("launches"):
            launches = worker["launches"]["rms_fused_us"]["launches"]
            if launches != 1:
                counted = launches if launches is not None else "an unknown number of"
                found.append(f"the norm took {counted} launches, not 1")
    return list(dict.fromkeys(found))
