"""Does a setting that needs a boot change a host? One receipt for each boot, arms by turns, and what follows from them.

The unit is the boot, not the block: what is measured within one boot cannot say how boots differ. So there is a verdict
only from four boots of each arm (3 against 3 can never be significant, the smallest exact p is 0.10); before that both
ranges are shown as "descriptive only".

The result is a document of its own (``hostcheck/boots/1``). It names the receipts that it rests on with their digests;
all else in it but the claim is a function of them (`derive`), so whoever has the files can make it again (`problems`).
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from . import receipts
from .onhost.probe import receipt as raw
from .onhost.probe import schedule, statistics, verdict
from .onhost.probe.host import address
from .onhost.settings.boot import satisfied
from .onhost.settings.boot_entries import words

SCHEMA = "hostcheck/boots/1"
BY_HAND = "by_hand"
LOOKS = 2
ARMS = ("A", "B")
# State that moves by itself from one moment to the next: it tells no arms apart.
RESTLESS = ("boot_id", "load", "log", "throttle", "unread")
LOADER_WORDS = ("BOOT_IMAGE=", "initrd=")

Receipt = Mapping[str, Any]


class Refused(ValueError):
    """What is asked cannot be done with these boots; the message says what was wanted, what was found and where."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Claim(Strict):
    """What the boots are about, declared before the first of them.

    setting: name of the setting that the toolkit switches, or ``by_hand``. wanted: what arm B wants of it. card: PCI
    address, "" for the CPU. per_arm: boots of each arm at the first look; the second and last look is at twice as many.
    evidence: state that must differ between the arms (`state`); without a name, anything.
    """

    setting: str
    wanted: dict[str, Any] = {}
    metric: str = "launch_us"
    statistic: Literal["median", "p10", "mean", "p99", "min", "max"] = "median"
    arms: dict[Literal["A", "B"], str]
    device: Literal["auto", "xpu", "cuda", "cpu"] = "auto"
    card: str = ""
    per_arm: Annotated[int, Field(ge=1, le=50)] = 4
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.03
    evidence: list[str] = []


class Run(Strict):
    """One run of the playbook that rebooted the host: the coins that ordered its boots."""

    seed: int
    per_arm: Annotated[int, Field(ge=1)]


class Row(Strict):
    """One boot. file: its receipt, seen from the document's folder. figure: in the metric's unit, None without one."""

    arm: Literal["A", "B"]
    file: str
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    run: Annotated[int, Field(ge=0)] | None
    taken_at: str
    boot_id: str
    figure: float | None
    problem: str


class Document(Strict):
    """The whole file. told_by: what tells the arms apart. also: other state that differs between them."""

    schema_name: Annotated[Literal["hostcheck/boots/1"], Field(alias="schema")]
    host: str
    made_at: str
    claim: Claim
    runs: list[Run]
    restore: str
    boots: list[Row]
    told_by: dict[str, dict[Literal["A", "B"], str]]
    also: dict[str, dict[Literal["A", "B"], str]]
    verdict: dict[str, Any]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class Boot:
    """A receipt with the arm of its boot. run: number of the run that ordered it, None for any other."""

    arm: str
    file: str
    receipt: Receipt
    run: int | None = None


# -- from receipts to a result ------------------------------------------------------------------------------------


def claim_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a claim with its defaults. Raises Refused with every mistake."""
    try:
        return Claim.model_validate(given).model_dump()
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'claim'}: {one['msg']}" for one in error.errors())
        raise Refused(told) from error


def state(receipt: Receipt) -> dict[str, str]:
    """Return what a receipt holds of host, card, driver and torch before the measurement, by dotted name, as text."""
    found = {key: str(value) for key, value in _flat(raw.identity(next(iter(receipt["workers"]), {})))}
    found.update((key, str(value)) for key, value in _flat(receipt["before"].get("host") or {}))
    return {key: value for key, value in found.items() if key.partition(".")[0] not in RESTLESS}


def _flat(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{above}{key}.")
        elif inner is not None:
            yield f"{above}{key}", inner


def boot_id(boot: Boot) -> str:
    """Return which boot it was; Refused where the receipt does not say."""
    found = (boot.receipt["before"].get("host") or {}).get("boot_id")
    if not found:
        raise Refused(
            f"{boot.file}: does not say which boot it was (made by an older version, or the boot id was not readable), "
            "so it cannot be counted"
        )
    return str(found)


def figure(receipt: Receipt, metric: str, statistic: str) -> float | None:
    """Return the median over blocks of the block's statistic, in the metric's unit; None where nothing was measured."""
    blocks = [
        statistics.statistic(raw.per_operation(metric, block["metrics"][metric]), statistic)
        for block in receipt["blocks"]
        if block["metrics"].get(metric, {}).get("samples")
    ]
    return statistics.median(blocks) if blocks else None


def ordered(claim: Mapping[str, Any], boots: Sequence[Boot]) -> list[Boot]:
    """Return the boots in order of time, when all of them may be counted. Raises Refused for the first that may not."""
    seen: dict[str, str] = {}
    for boot in boots:
        if boot.receipt["kind"] != "profile":
            raise Refused(f"{boot.file}: is the receipt of a {boot.receipt['kind']}, wanted that of a probe")
        where = address(boot.receipt)
        if where != claim["card"]:
            raise Refused(f"{boot.file}: is about {where or 'the CPU'}, wanted {claim['card'] or 'the CPU'}")
        this = boot_id(boot)
        if this in seen:
            raise Refused(f"{boot.file}: was taken in the same boot as {seen[this]} ({this}); a boot counts once")
        seen[this] = boot.file
        _check_arm(claim, boot)
    return sorted(boots, key=lambda boot: (boot.receipt["taken_at"], boot_id(boot)))


def _check_arm(claim: Mapping[str, Any], boot: Boot) -> None:
    """The command line of a boot must be that of its arm, where the claim says which words make the arms."""
    if claim["setting"] != "kernel_arguments":
        return
    line = (boot.receipt["before"].get("host") or {}).get("command_line")
    if line is None:
        raise Refused(f"{boot.file}: does not say with which command line its boot was started")
    add, gone = claim["wanted"].get("present", []), claim["wanted"].get("absent", [])
    is_b = satisfied(words(line), add, gone)
    if is_b != (boot.arm == "B"):
        wish = " ".join([*add, *(f"(no {word})" for word in gone)])
        raise Refused(
            f"{boot.file}: is no boot of arm {boot.arm}: arm B is {wish}, and its command line is "
            f"{'' if is_b else 'not '}that: {line}"
        )


def told_apart(boots: Sequence[Boot]) -> dict[str, dict[str, str]]:
    """Return all state that differs between the arms: no value of it is seen in both, and every boot has one."""
    by_arm = {arm: [state(boot.receipt) for boot in boots if boot.arm == arm] for arm in ARMS}
    if not by_arm["A"] or not by_arm["B"]:
        return {}
    found: dict[str, dict[str, str]] = {}
    for key in sorted({key for states in by_arm.values() for one in states for key in one}):
        values = {arm: [one.get(key) for one in states] for arm, states in by_arm.items()}
        if key == "command_line":
            texts = _own_words(values)
        elif None in values["A"] + values["B"] or set(values["A"]) & set(values["B"]):
            continue
        else:
            texts = {arm: ", ".join(sorted({str(value) for value in values[arm]})) for arm in ARMS}
        if texts["A"] != texts["B"]:
            found[key] = texts
    return found


def _own_words(values: Mapping[str, Sequence[str | None]]) -> dict[str, str]:
    """Return the words that every boot of an arm was started with, and none of the other."""
    lines = {
        arm: [[w for w in words(line or "") if not w.startswith(LOADER_WORDS)] for line in values[arm]] for arm in ARMS
    }
    return {
        arm: " ".join(
            word
            for word in dict.fromkeys(lines[arm][0])
            if all(word in line for line in lines[arm]) and not any(word in line for line in lines[other])
        )
        for arm, other in (("A", "B"), ("B", "A"))
    }


def derive(claim: Mapping[str, Any], boots: Sequence[Boot], restore: str) -> dict[str, Any]:
    """Return all that follows from the receipts: ``boots``, ``told_by``, ``also`` and ``verdict``.

    Raises Refused for a boot that may not be counted.
    """
    rows, good = [], []
    for boot in ordered(claim, boots):
        problem = _problem(claim, boot.receipt)
        value = None if problem else figure(boot.receipt, claim["metric"], claim["statistic"])
        rows.append(
            {
                "arm": boot.arm,
                "file": boot.file,
                "sha256": boot.receipt["sha256"],
                "run": boot.run,
                "taken_at": boot.receipt["taken_at"],
                "boot_id": boot_id(boot),
                "figure": value,
                "problem": problem,
            }
        )
        if value is not None:
            good.append((boot, value))
    apart = told_apart([boot for boot, _ in good])
    names = claim["evidence"] or (["command_line"] if claim["setting"] != BY_HAND else list(apart))
    judged = judge(claim, good, len(rows), restore)
    plain = {
        "boots": rows,
        "told_by": {name: texts for name, texts in apart.items() if name in names},
        "also": {name: texts for name, texts in apart.items() if name not in names},
        "verdict": {
            "word": judged.word,
            "reasons": list(judged.reasons),
            "notes": [*judged.notes, *_notes(claim, rows)],
            "figures": dict(judged.figures),
            "sentence": sentence(claim, judged),
        },
    }
    return {key: raw.rounded(value) for key, value in plain.items()}


def _problem(claim: Mapping[str, Any], receipt: Receipt) -> str:
    """Return why a receipt gives no figure, "" when it does."""
    reasons = receipt["validity"]["reasons"]
    if reasons:
        return f"invalid: {reasons[0]}"
    asked = {**receipt, "claim": {"device": claim["device"], "metric": claim["metric"]}}
    fell_back = raw.fallbacks(asked)
    if fell_back:
        return fell_back[0]
    if figure(receipt, claim["metric"], claim["statistic"]) is None:
        return f"{claim['metric']} was not measured"
    return ""


def judge(claim: Mapping[str, Any], good: Sequence[tuple[Boot, float]], recorded: int, restore: str) -> verdict.Verdict:
    """Return the verdict over boots, at the first look that decides; `verdict.judge_boots` has the rules of one look.

    good: boots that gave a figure, in order of time. recorded: all boots. A look takes the boots up to the moment when
    both arms had enough of them: their number alone decides when it is, never their figures.
    """
    if len(good) < verdict.ENOUGH_BLOCKS * recorded:
        return verdict.Verdict(verdict.INVALID, (f"{len(good)} of {recorded} boots gave a figure, fewer than 80 %",))
    judged: verdict.Verdict | None = None
    for look in range(1, LOOKS + 1):
        upto = _upto(good, look * claim["per_arm"])
        if upto is None:
            break
        judged = _look(claim, good[:upto], restore)
        judged = replace(judged, figures={**judged.figures, "look": look})
        if judged.word != verdict.INCONCLUSIVE:
            break
    if judged is not None:
        return judged
    found = _look(claim, good, restore)
    if found.word == verdict.INVALID:
        return found
    counts = f"{len(_of(good, 'A'))} and {len(_of(good, 'B'))} boots"
    reason = f"unpaired, descriptive only: {counts}, the first look is at {claim['per_arm']} of each arm"
    return verdict.Verdict(verdict.INCONCLUSIVE, (reason,), found.notes, _ranges(found.figures))


def _look(claim: Mapping[str, Any], seen: Sequence[tuple[Boot, float]], restore: str) -> verdict.Verdict:
    """Return what these boots show."""
    boots = [boot for boot, _ in seen]
    found = verdict.judge_boots(_of(seen, "A"), _of(seen, "B"), _guards(claim, boots, restore), claim["alpha"])
    vacuous = _vacuous(claim, boots)
    if vacuous and found.word != verdict.INVALID:
        return verdict.Verdict(verdict.VACUOUS, tuple(vacuous), found.notes, _ranges(found.figures))
    return found


def _ranges(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Only what describes each arm, nothing that compares them."""
    return {key: value for key, value in figures.items() if key.startswith(("boots_", "a_", "b_"))}


def _of(good: Sequence[tuple[Boot, float]], arm: str) -> list[float]:
    return [value for boot, value in good if boot.arm == arm]


def _upto(good: Sequence[tuple[Boot, float]], wanted: int) -> int | None:
    """Return how many boots there were when both arms had ``wanted`` of them, or None."""
    counts = dict.fromkeys(ARMS, 0)
    for number, (boot, _) in enumerate(good, start=1):
        counts[boot.arm] += 1
        if min(counts.values()) >= wanted:
            return number
    return None


def _guards(claim: Mapping[str, Any], boots: Sequence[Boot], restore: str) -> verdict.Guards:
    """Return what was seen around these boots; what was not seen around one of them was not seen."""
    each = [raw.guards_of(boot.receipt) for boot in boots]

    def all_read(name: str) -> bool:
        return all(getattr(one, name) is not None for one in each)

    return verdict.Guards(
        log_read=all(one.log_read for one in each),
        log_required=any(one.log_required for one in each),
        coredumps_before=() if all_read("coredumps_before") else None,
        coredumps_after=() if all_read("coredumps_after") else None,
        holders=() if all_read("holders") else None,
        throttle_before={} if all_read("throttle_before") else None,
        throttle_after={} if all_read("throttle_after") else None,
        identities=[
            {key: value for key, value in raw.identity(worker).items() if key not in claim["evidence"]}
            for boot in boots
            for worker in boot.receipt["workers"]
        ],
        restore=restore,
    )


def _vacuous(claim: Mapping[str, Any], boots: Sequence[Boot]) -> list[str]:
    """Return every reason why nothing shows that the arms were different; empty when something does."""
    if {boot.arm for boot in boots} != set(ARMS):
        return []  # there is nothing yet to be told apart
    apart = told_apart(boots)
    names = claim["evidence"] or ([] if claim["setting"] == BY_HAND else ["command_line"])
    reasons = [
        f"no evidence that the setting acted: {name} does not differ between the arms, or was not read in every boot"
        for name in names
        if name not in apart
    ]
    if not names and not apart:
        reasons.append("no evidence of a change: nothing that was read of the host differs between the arms")
    if claim["metric"] == "launch_us":
        for arm in ARMS:
            blocks = [block for boot in boots if boot.arm == arm for block in boot.receipt["blocks"]]
            if verdict.device_bound(*raw.launch_medians(blocks)):
                reasons.append(f"arm {arm}: launch_us is bound by the device (drain > 5 synchronises and > 20 %)")
    return reasons


def _notes(claim: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    notes = [
        f"left out: boot {number} ({row['arm']}): {row['problem']}"
        for number, row in enumerate(rows, 1)
        if row["problem"]
    ]
    arms = [row["arm"] for row in rows if not row["problem"]]
    if len(arms) > 2 and sum(a != b for a, b in itertools.pairwise(arms)) == 1:
        notes.append("not by turns: all boots of one arm came first, and whatever else changed since looks the same")
    return notes


def sentence(claim: Mapping[str, Any], judged: verdict.Verdict) -> str:
    """Return the one sentence of a result; it names numerator and denominator, and compares nothing too early."""
    f, unit = judged.figures, raw.unit(claim["metric"])
    head = f"{claim['metric']} ({claim['statistic']} of blocks, one figure per boot)"
    if judged.word in (verdict.INVALID, verdict.VACUOUS):
        return f"{head}: {judged.word}: {judged.reasons[0]}"
    arms = {arm: claim["arms"].get(arm, arm) for arm in ARMS}
    if "ratio" not in f:
        spans = [
            f"{arm} ({arms[arm]}) {f[f'{low}_low']:.4g} to {f[f'{low}_high']:.4g} {unit} "
            f"in {f[f'boots_{low}']} boot{'' if f[f'boots_{low}'] == 1 else 's'}"
            for arm, low in (("A", "a"), ("B", "b"))
            if f"{low}_low" in f
        ]
        return f"{head}: unpaired, descriptive only: {'; '.join(spans) or 'no boot gave a figure'}"
    word = {
        verdict.IMPROVED: "improved",
        verdict.REGRESSED: "regressed",
        verdict.NO_CHANGE: f"no change beyond {verdict.percent(verdict.NO_CHANGE_BOUND)}",
    }.get(judged.word, judged.word)
    span = f"[{f['ratio_low']:.3f}, {f['ratio_high']:.3f}]"
    return (
        f"{head}: {word}; latency of B ({arms['B']}) / latency of A ({arms['A']}) = {f['ratio']:.3f} {span} "
        f"over {f['boots_b']} and {f['boots_a']} boots, p {f['p']:.2g}"
    )


# -- the document ---------------------------------------------------------------------------------------------------


def seal(
    host: str,
    made_at: str,
    claim: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    boots: Sequence[Boot],
    restore: str,
) -> dict[str, Any]:
    """Return the document over these boots, with its digest. Raises Refused."""
    done: dict[str, Any] = {
        "schema": SCHEMA,
        "host": host,
        "made_at": made_at,
        "claim": dict(claim),
        "runs": [dict(run) for run in runs],
        "restore": restore,
        **derive(claim, boots, restore),
    }
    done["sha256"] = raw.digest(done)
    return done


def is_boots(value: Any) -> bool:
    """Say whether a JSON value calls itself a document of boots."""
    return isinstance(value, Mapping) and value.get("schema") == SCHEMA


def load(path: Path) -> dict[str, Any]:
    """Return the document, or the receipt, in a file; `receipts.NotAReceipt` or OSError."""
    text = path.read_text(encoding="utf-8")
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if not is_boots(value):
        return receipts.parse(text)
    try:
        Document.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise receipts.NotAReceipt(f"{place}: {first['msg']} ({error.error_count()} problems)") from error
    return dict(value)


def parts(path: Path, document: Mapping[str, Any]) -> list[Boot]:
    """Return the boots of a document from the files that it names. Raises Refused for one that is not there."""
    found = []
    for row in document["boots"]:
        file = beside(path.parent, row["file"])
        try:
            receipt = receipts.load(file)
        except (OSError, receipts.NotAReceipt) as error:
            raise Refused(f"{row['file']}: {error}") from error
        if receipt["sha256"] != row["sha256"]:
            raise Refused(
                f"{row['file']}: has the digest {receipt['sha256'][:12]}, the document names {row['sha256'][:12]}"
            )
        found.append(Boot(row["arm"], row["file"], receipt, row["run"]))
    return found


def problems(path: Path, document: Mapping[str, Any]) -> list[str]:
    """Return everything in a document that does not follow from the receipts that it names; empty when all does."""
    found = []
    digest = raw.digest(document)
    if document["sha256"] != digest:
        found.append(f"sha256: written {document['sha256']}, recomputed {digest}")
    try:
        boots = parts(path, document)
        derived = derive(document["claim"], boots, document["restore"])
    except Refused as error:
        return [*found, str(error)]
    for boot in boots:
        found += [f"{boot.file}: {problem}" for problem in receipts.verify(boot.receipt)]
    for key, value in derived.items():
        found += receipts.differences(key, document[key], value)
    return [*found, *_order(document)]


def _order(document: Mapping[str, Any]) -> Iterator[str]:
    """The boots of a run must stand in the order that its seed gives: it was not chosen afterwards."""
    for number, run in enumerate(document["runs"]):
        wanted = schedule.boots(run["seed"], run["per_arm"])
        seen = [row["arm"] for row in document["boots"] if row["run"] == number]
        if seen != wanted[: len(seen)]:
            yield f"run {number}: boots in the order {' '.join(seen)}, the seed gives {' '.join(wanted)}"
    for row in document["boots"]:
        if row["run"] is not None and row["run"] >= len(document["runs"]):
            yield f"{row['file']}: belongs to run {row['run']}, there are {len(document['runs'])}"


def relative(file: Path, folder: Path) -> str:
    """Return how a receipt is named in a document that lies in ``folder``, which need not be there yet."""
    return os.path.relpath(os.path.realpath(file), os.path.realpath(folder))


def beside(folder: Path, name: str) -> Path:
    """Return the file that a document in ``folder`` names; the reverse of `relative`."""
    return Path(os.path.normpath(Path(os.path.realpath(folder)) / name))
