"""What a receipt means for this host: class against the lab's two hosts, graph capture, and where a decode
gap may come from. Pure.

Like is compared with like only: the lab's figures were taken on XPU with its own method (means of 2,000 and
500 calls), so only the figures that the probe takes the same way, on XPU, are put beside them. CPU and CUDA
figures are never compared. Nothing here promises a gain: on the lab's slow host every host setting was
neutral for decode within a few percent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

LAB = "b70-optimization-lab, learn/host-tuning.html (2026-09-03) and its probe data"

# us, torch 2.13.0+xpu, one card, the recipe's image. The slow host was read twice (GuC 70.72.1 and 70.44.1):
# the lower reading.
FAST: Mapping[str, float] = {
    "launch_us_async": 3.131755999675079,
    "launch_plus_sync_us": 25.98040999873774,
    "ir_rms_norm_m2_us": 41.47324999939883,
}
SLOW: Mapping[str, float] = {
    "launch_us_async": 5.15,
    "launch_plus_sync_us": 30.22,
    "ir_rms_norm_m2_us": 132.31,
}
# Where the source sees a slow host: "at or above about 5 us", or the norm several times 41 us (its slow host:
# 132).
SLOW_FROM: Mapping[str, float] = {"launch_us_async": 5.0, "ir_rms_norm_m2_us": 132.0}
# Own choice: two readings of the same host differed by 9 % (launch and sync) and 20 % (launch) in the lab.
FAST_WITHIN = 1.10
# Means in us by the name of the metric; the lab's own methods do not compare with each other.
ALL_REDUCE: Mapping[tuple[str, int, int, int, str, str, str], float] = {
    ("float16", 2, 5120, 2, "xccl", "container", "sync_end"): 13.17,
    ("float16", 32, 5120, 2, "xccl", "container", "sync_end"): 13.53,
    ("float16", 64, 5120, 2, "xccl", "container", "sync_end"): 22.77,
    ("float16", 900, 5120, 2, "xccl", "container", "sync_end"): 228.40,
}
# Own choice, as for a trial's interval.
UNEQUAL_CARDS = 0.05

Class = Literal["fast", "slow", "between", "not_comparable"]


@dataclass(frozen=True)
class Advice:
    """One statement with what it rests on and what to do next; ``estimate`` marks arithmetic that nobody
    measured.
    """

    topic: str
    text: str
    source: str
    next_step: str = ""
    estimate: bool = False


@dataclass(frozen=True)
class DecodeStep:
    """Operations per decoded token; defaults from the lab's shape profile of its FP8 two-card recipe (MTP1,
    graph off).
    """

    launches: int = 3000
    all_reduces: int = 130
    norms: int = 130


def device_of(receipt: Mapping[str, Any]) -> str:
    """Return the device type that was measured: xpu, cuda, cpu, or an empty string when no worker started."""
    return next((str(worker["identity"]["device"]) for worker in receipt["workers"]), "")


def comparable(receipt: Mapping[str, Any]) -> str:
    """Return why the lab's references do not apply, or an empty string when they do."""
    device = device_of(receipt)
    if not receipt["validity"]["valid"]:
        return f"the measurement is invalid: {receipt['validity']['reasons'][0]}"
    if device != "xpu":
        return f"these are {device or 'no'} figures, and the lab's references are XPU figures"
    if receipt["figures"]["device_bound"]:
        return "the launch series is bound by the device, so it does not show the host"
    return ""


def lab_values(receipt: Mapping[str, Any]) -> dict[str, float]:
    """Return the lab-method figures that are numbers, in us. The norm only when it took the same 8 launches
    as the lab's.
    """
    figures, launches = receipt["figures"]["lab"], receipt["figures"]["launches"].get("ir_rms_norm_m2_us", [])
    values = {key: float(figures[key]) for key in FAST if isinstance(figures.get(key), (int, float))}
    if launches not in (["8"], ["None"], []):
        values.pop("ir_rms_norm_m2_us", None)
    return values


def host_class(values: Mapping[str, float]) -> Class:
    """Return the class of lab-method figures (us).

    slow: any of `SLOW_FROM` reached. fast: all figures within 10 % of the fast host or below it. between:
    nobody has measured there.

    >>> host_class({"launch_us_async": 3.2, "launch_plus_sync_us": 26.0, "ir_rms_norm_m2_us": 42.0})
    'fast'
    >>> host_class({"launch_us_async": 4.0, "launch_plus_sync_us": 28.0, "ir_rms_norm_m2_us": 80.0})
    'between'
    """
    if not set(FAST) <= set(values) and not any(values.get(k, 0.0) >= limit for k, limit in SLOW_FROM.items()):
        return "not_comparable"
    if any(values.get(key, 0.0) >= limit for key, limit in SLOW_FROM.items()):
        return "slow"
    if all(values[key] <= FAST[key] * FAST_WITHIN for key in FAST):
        return "fast"
    return "between"


def capture_sizes(draft_tokens: int) -> list[int]:
    """Return the batch sizes that a decode step with ``draft_tokens`` draft tokens uses: 1 .. k + 1.

    With only size 1 captured the two-row verification ran eager in the lab and the capture gained nothing
    (28.6 of 51.3 tok/s).

    >>> capture_sizes(1)
    [1, 2]

    Raises ValueError when ``draft_tokens`` is negative.
    """
    if draft_tokens < 0:
        raise ValueError(f"expected draft tokens >= 0, got {draft_tokens}")
    return list(range(1, draft_tokens + 2))


def decode_gap(receipt: Mapping[str, Any], step: DecodeStep | None = None) -> dict[str, float]:
    """Return an estimate in ms per token of what each metric costs more than on the lab's fast host.

    Count times difference. The launches inside the norms are in both parts, so the parts are not to be added.
    """
    step, values = step or DecodeStep(), lab_values(receipt)
    parts = {"launches": (step.launches, "launch_us_async"), "norms": (step.norms, "ir_rms_norm_m2_us")}
    gap = {name: n * (values[key] - FAST[key]) / 1000.0 for name, (n, key) in parts.items() if key in values}
    for mean, reference in all_reduce_pairs(receipt):
        gap["all_reduces"] = step.all_reduces * (mean - reference) / 1000.0
    return gap


def all_reduce_pairs(receipt: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return ``(mean here, mean in the lab)`` in us of each all-reduce that the lab measured the same way."""
    pairs = []
    for one in receipt["collectives"]:
        for policy in one["series"]:
            key = (
                one["dtype"],
                one["rows"],
                one["hidden"],
                one["ranks"],
                one["backend"],
                one["environment"],
                policy,
            )
            name = (
                f"allreduce_us[{one['dtype']},{one['rows']}x{one['hidden']},ranks={one['ranks']},"
                f"{one['backend']},{one['environment']},env={one['variables']},{policy}]"
            )
            if key in ALL_REDUCE and name in receipt["figures"]["collectives"]:
                pairs.append((float(receipt["figures"]["collectives"][name]["mean"]), ALL_REDUCE[key]))
    return pairs


def advise(receipt: Mapping[str, Any], draft_tokens: int = 1, step: DecodeStep | None = None) -> list[Advice]:
    """Return what to tell the owner of this host, most important first."""
    why = comparable(receipt)
    if why:
        return [Advice("class", f"not compared with the lab: {why}", LAB)]
    values = lab_values(receipt)
    word = host_class(values)
    shown = ", ".join(f"{key} {value:.2f} us" for key, value in values.items())
    return [
        *_class_advice(word, shown),
        *_graph_advice(word, draft_tokens),
        *_gap_advice(receipt, word, step),
    ]


def _class_advice(word: Class, shown: str) -> list[Advice]:
    if word == "not_comparable":
        return [Advice("class", f"the figures do not cover what the lab measured ({shown or 'none'})", LAB)]
    text = {
        "fast": f"submission is as fast as on the lab's publishing host ({shown})",
        "slow": f"submission is as slow as on the lab's replay host ({shown})",
        "between": f"between the lab's two hosts no measurement exists ({shown})",
    }[word]
    step = "measure decode both ways, graph off and graph on" if word == "between" else ""
    return [Advice("class", text, LAB, step)]


def _graph_advice(word: Class, draft_tokens: int) -> list[Advice]:
    sizes = capture_sizes(draft_tokens)
    listed = ",".join(map(str, sizes))
    setting = (
        f"VLLM_XPU_ENABLE_XPU_GRAPH=1 with cudagraph_capture_sizes [{listed}] "
        f"and max_cudagraph_capture_size {sizes[-1]}"
    )
    identity = (
        "Keep it only when the outputs are identical to graph off for your own prompts, alone and at your "
        "concurrency: in the lab they were exact alone and not always at 16 and more requests"
    )
    if word == "slow":
        text = (
            f"try graph capture with every batch size that a decode step uses ({listed} for {draft_tokens} "
            f"draft tokens): with size 1 alone the lab's verification step still ran eager. {identity}"
        )
        return [Advice("graph", text, LAB, setting)]
    if word == "between":
        return [
            Advice(
                "graph",
                f"graph capture may or may not pay here: measure decode both ways. {identity}",
                LAB,
                setting,
            )
        ]
    if word == "fast":
        return [
            Advice(
                "graph",
                "on the lab's fast host graph capture gained nothing (-1.1 %): graph off is fine",
                LAB,
            )
        ]
    return []


def _gap_advice(receipt: Mapping[str, Any], word: Class, step: DecodeStep | None) -> list[Advice]:
    if word not in ("slow", "between"):
        return []
    used = step or DecodeStep()
    gap = sorted(decode_gap(receipt, used).items(), key=lambda item: -item[1])
    if not gap:
        return []
    counts = {"launches": used.launches, "norms": used.norms, "all_reduces": used.all_reduces}
    listed = "; ".join(f"{counts[name]} {name.replace('_', '-')} per token: {ms:+.1f} ms" for name, ms in gap)
    text = (
        f"estimate against the lab's fast host, {listed}. "
        "Launches inside the norms are in both, so the parts do not add"
    )
    missing = "" if "all_reduces" in dict(gap) else "; the all-reduce was not measured the lab's way and is left out"
    return [Advice("decode_gap", text + missing, f"{LAB}; counts from its shape profile", estimate=True)]


def unequal_cards(receipts: Sequence[Mapping[str, Any]], metric: str = "launch_us") -> list[Advice]:
    """Return one statement for each two cards of a host whose figures differ beyond both noise floors and 5
    %.

    Unpaired (one card after the other), so it is a reason to look, not a verdict.
    """
    found = []
    for one, other in combinations(
        [r for r in receipts if r["validity"]["valid"] and metric in r["figures"]["metrics"]], 2
    ):
        a, b = one["figures"]["metrics"][metric], other["figures"]["metrics"][metric]
        ratio = max(a["median"], b["median"]) / min(a["median"], b["median"])
        if ratio - 1.0 > max(a["floor"] or 0.0, b["floor"] or 0.0, UNEQUAL_CARDS):
            names = [str(r["workers"][0].get("address") or r["workers"][0]["identity"]["index"]) for r in (one, other)]
            found.append(
                Advice(
                    "unequal_cards",
                    f"{metric} {a['median']:.2f} {a['unit']} on {names[0]}, {b['median']:.2f} on {names[1]} "
                    f"(slower / faster {ratio:.2f}); unpaired",
                    "this host's receipts",
                    "compare link, NUMA node and IRQ affinity of the two cards",
                )
            )
    return found
