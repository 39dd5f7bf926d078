"""Reading and verifying receipts (``hostcheck/receipt/1``).

`verify` trusts nothing that can be computed: it checks the hash, the exact sum of every series, the order of
the blocks against the seed, and makes every figure, the validity and the verdict again from the raw samples.
A file in which one sample or one figure was changed fails even when its hash was computed again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .onhost.probe import receipt as raw
from .onhost.probe import schedule

# Figures carry nine digits; another C library may round the last one of exp() and log() differently.
TOLERANCE = 2e-8


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


class Exercised(Strict):
    """How often the path under test ran, and what one time was."""

    n: Count
    how: str


class Series(Strict):
    """Raw samples in ns, ``per_sample`` operations each, and their exact sum."""

    unit: Literal["ns"]
    samples: list[int]
    per_sample: Annotated[int, Field(ge=1)]
    sum: int
    exercised: Exercised


class Block(Strict):
    """One measured block; ``arm`` and ``position`` say where it stood in its pair."""

    phase: Literal["sham", "sham_again", "pairs", "quads"]
    pair: Count
    position: Literal[0, 1, 2, 3]
    arm: Literal["A", "B", "base", "A+B"]
    worker: Count
    readback: str | int | float | None
    readback_end: str | int | float | None
    evidence: dict[str, str | int | float | None]
    metrics: dict[str, Series]
    rounds: Count
    begun_ns: Count
    ended_ns: Count
    since_import_ns: int
    switches: dict[str, int]
    load: float
    affinity: list[int]
    checked: Count


class Failure(Strict):
    """A named failure of a worker."""

    kind: str
    text: str
    stderr: str
    worker: int = -1


class Collective(Strict):
    """One all-reduce session; ``series`` holds one series per rank for each sync policy."""

    dtype: str
    rows: Count
    hidden: Count
    ranks: Count
    backend: str
    environment: str
    variables: str
    environment_variables: dict[str, str] = {}
    identities: list[dict[str, Any]]
    series: dict[Literal["sync_end", "sync_each"], list[Series]]
    failure: Failure | None


class Start(Strict):
    """One worker process: who it was, what it could not do, and what it measured once."""

    identity: dict[str, Any]
    environment: dict[str, str]
    unavailable: dict[str, str]
    pinned: dict[str, Any]
    threads: Count
    sizes: dict[str, int]
    import_ns: Count
    ready_ns: Count
    address: str | None
    preamble: str
    lab: list[dict[str, dict[str, int | str]]]
    launches: dict[str, dict[str, int | str | None]]


class Plan(Strict):
    sham: Count
    looks: list[Count]
    alpha: Annotated[float, Field(gt=0, lt=1)]
    block_s: Seconds
    settle_s: Seconds
    warm_s: Seconds
    workers: Annotated[int, Field(ge=1)]


class Claim(Strict):
    """What a trial is about, declared before it ran."""

    metric: str
    statistic: Literal["median", "p10", "mean", "p99", "min", "max"]
    arms: dict[Literal["A", "B", "base", "A+B"], str]
    device: Literal["auto", "xpu", "cuda", "cpu"]
    evidence: list[str]
    toggles: bool


class Receipt(Strict):
    """The whole file. ``before`` and ``after`` are what the host said around the measurement."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)

    schema_name: Annotated[Literal["hostcheck/receipt/1"], Field(alias="schema")]
    kind: Literal["profile", "trial", "interaction"]
    taken_at: str
    ended_at: str
    seed: int
    plan: Plan
    command: list[str]
    asked: dict[str, Any]
    begun: dict[Literal["sham", "sham_again", "pairs", "quads"], Count]
    claim: Claim | None = None
    workers: list[Start]
    blocks: list[Block]
    collectives: list[Collective]
    failures: list[Failure]
    restore: str
    interrupted: str = ""
    before: dict[str, Any]
    after: dict[str, Any]
    figures: dict[str, Any]
    validity: dict[str, Any]
    verdict: dict[str, Any] | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class NotAReceipt(ValueError):
    """The text is no receipt; the message says where and why."""


def parse(text: str) -> dict[str, Any]:
    """Return a receipt as the JSON object it is, after checking its form; NotAReceipt otherwise."""

    def refuse(constant: str) -> None:
        raise NotAReceipt(f"{constant} is no figure")

    try:
        value = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise NotAReceipt(f"not JSON: {error}") from error
    try:
        Receipt.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise NotAReceipt(f"{place}: {first['msg']} ({error.error_count()} problems)") from error
    return dict(value)


def load(path: Path) -> dict[str, Any]:
    """Return the receipt in a file; NotAReceipt or OSError."""
    return parse(path.read_text(encoding="utf-8"))


def verify(receipt: Mapping[str, Any]) -> list[str]:
    """Return everything in a receipt that does not follow from its raw samples; empty when all of it does."""
    problems = [*_hash(receipt), *_sums(receipt), *_order(receipt)]
    derived = raw.derive(receipt)
    for key in ("figures", "validity", "verdict"):
        problems += differences(key, receipt.get(key), derived.get(key))
    return problems


def _hash(receipt: Mapping[str, Any]) -> Iterator[str]:
    found = raw.digest(receipt)
    if receipt.get("sha256") != found:
        yield f"sha256: written {receipt.get('sha256')}, recomputed {found}"


def _sums(receipt: Mapping[str, Any]) -> Iterator[str]:
    for place, series in raw.all_series(receipt):
        total, ran = sum(series["samples"]), len(series["samples"]) * series["per_sample"]
        if series["sum"] != total:
            yield f"{place}: sum written {series['sum']}, of the samples {total}"
        if series["exercised"]["n"] != ran:
            yield f"{place}: exercised {series['exercised']['n']} times written, {ran} by the samples"


def _order(receipt: Mapping[str, Any]) -> Iterator[str]:
    """The blocks must stand in the order that the seed gives: it was not chosen afterwards."""
    for phase, pairs in receipt["begun"].items():
        seed, size = receipt["seed"], 2
        wanted: Sequence[Sequence[str]] = schedule.orders(seed, phase, pairs)
        if phase == schedule.QUADS:
            wanted, size = schedule.quads(seed, pairs), 4
        seen = [block for block in receipt["blocks"] if block["phase"] == phase]
        for number, block in enumerate(seen):
            pair, position = divmod(number, size)
            if pair >= pairs or (block["pair"], block["position"]) != (pair, position):
                yield f"{phase}: block {number} is pair {block['pair']} position {block['position']}"
            elif block["arm"] != wanted[pair][position]:
                yield f"{phase} pair {pair}: arm {block['arm']}, the seed gives {wanted[pair]}"


def differences(place: str, written: Any, recomputed: Any) -> list[str]:
    """Return where two JSON values differ; numbers may differ by two units of their ninth digit."""
    if isinstance(written, Mapping) and isinstance(recomputed, Mapping):
        found: list[str] = []
        for key in sorted(set(written) | set(recomputed)):
            if key not in written or key not in recomputed:
                found.append(f"{place}.{key}: {'not written' if key not in written else 'does not follow'}")
            else:
                found += differences(f"{place}.{key}", written[key], recomputed[key])
        return found
    if isinstance(written, list) and isinstance(recomputed, list) and len(written) == len(recomputed):
        return [
            text
            for number, (a, b) in enumerate(zip(written, recomputed, strict=True))
            for text in differences(f"{place}.{number}", a, b)
        ]
    if _is_number(written) and _is_number(recomputed):
        same = math.isclose(written, recomputed, rel_tol=TOLERANCE, abs_tol=0.0)
    else:
        same = type(written) is type(recomputed) and written == recomputed
    return [] if same else [f"{place}: written {written!r}, recomputed {recomputed!r}"]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
