"""A whole trial on a host: look, refuse, arm the way back, measure, restore, and keep the receipt until it is saved."""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Callable

from ..probe import guards, schedule, session, statistics, verdict
from ..probe import host as probing
from ..probe.host import TimeLimit, within
from ..probe.schedule import FULL, QUICK, Plan
from ..probe.session import Claim, Say, WorkerFailed, quiet
from ..readings.gpu_ids import AMD, INTEL, NVIDIA
from ..readings.pcie import Gpu
from ..settings.engine import Host, Refused
from ..settings.files import Failed
from . import catalogue, journal
from .deadman import Deadman
from .switch import NeedsBoot, Scope, Switch, Switches, arms

# What a trial may be judged on; each is in the blocks under this name. Others are the probe's only.
METRICS = (
    "launch_us",
    "launch_sync_us",
    "gap_sync_0.3ms_us",
    "gap_sync_3ms_us",
    "rms_composite8_us",
    "rms_fused_us",
    "graph_eager_us",
    "graph_replay_us",
    "cpu_add_us",
)
FAMILY = {"graph_eager_us": "graph_us", "graph_replay_us": "graph_us"}  # what the worker calls them
ALWAYS = ("launch_us", "launch_sync_us", "cpu_add_us")
DEVICE_OF = {INTEL: "xpu", NVIDIA: "cuda", AMD: "cuda"}
KEEP = ("never", "improved")
TIMEOUT_FACTOR = 3.0


@dataclass(frozen=True)
class Wish:
    """A toggle as it was asked for: ``a`` {} is what is there now."""

    name: str
    b: Mapping[str, Any] = field(default_factory=dict)
    a: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """What is asked for.

    measure: how, as for a probe; its ``ranks`` and ``metrics`` are not used. card: address of the card to be measured;
    "": the first one. metric, statistic: "" for those that the (first) toggle declares. keep: never, or improved: arm B
    then stays in force until the next boot. plan: sizes; None: FULL, or QUICK as ``measure.quick`` says.
    """

    measure: probing.Request
    toggles: tuple[Wish, ...]
    card: str = ""
    metric: str = ""
    statistic: str = ""
    keep: str = "never"
    plan: Plan | None = None

    def __post_init__(self) -> None:
        if len(self.toggles) not in (1, 2):
            raise ValueError(f"{len(self.toggles)} toggles, wanted one, or two to see what they do together")
        if self.metric and self.metric not in METRICS:
            raise ValueError(f"metric is {self.metric!r}, wanted one of {', '.join(METRICS)}")
        if self.statistic and self.statistic not in statistics.STATISTICS:
            raise ValueError(f"statistic is {self.statistic!r}, wanted one of {', '.join(statistics.STATISTICS)}")
        if self.keep not in KEEP:
            raise ValueError(f"keep is {self.keep!r}, wanted never or improved")
        if self.keep == "improved" and len(self.toggles) == 2:
            raise ValueError("keep: improved is for one toggle: of two, nobody said which should stay")


def request_of(given: Mapping[str, Any]) -> Request:
    """The request from the options of the module. Raises ValueError."""
    measure = ("command", "device", "cards", "quick", "pin", "seed", "image", "timeout")
    return Request(
        probing.Request(ranks=0, **{key: given[key] for key in measure}),
        tuple(Wish(one["name"], one["b"], one["a"]) for one in given["toggles"]),
        **{key: given[key] for key in ("card", "metric", "statistic", "keep")},
    )


@dataclass(frozen=True)
class Prepared:
    """What a trial would do, found out without writing anything.

    refused: why it must not run; empty when it may. needs_boot: it could be tried over boots. card: None for the CPU.
    expected_s, longest_s: seconds to the first and to the last planned look.
    """

    request: Request
    found: probing.Survey
    card: Gpu | None
    scope: Scope
    switches: tuple[Switch, ...]
    refused: tuple[str, ...]
    needs_boot: bool
    plan: Plan
    expected_s: float
    longest_s: float
    timeout_s: float

    @property
    def metric(self) -> str:
        """The primary metric, named before the run."""
        return self.request.metric or (self.switches[0].metric if self.switches else "launch_us")

    @property
    def statistic(self) -> str:
        """What a block is summarised by."""
        return self.request.statistic or (self.switches[0].statistic if self.switches else "median")


@dataclass
class Outcome:
    """What a run gave. receipt: None when it was refused. kept: arm B stays. earlier: receipts of runs that were
    killed, by the name of their folder. unrestored: what did not come back, of any of them.
    """

    name: str = ""
    receipt: dict[str, Any] | None = None
    kept: bool = False
    earlier: dict[str, dict[str, Any]] = field(default_factory=dict)
    unrestored: list[str] = field(default_factory=list)


def prepare(host: Host, request: Request) -> Prepared:
    """Look at the host and at what should be switched. Raises ValueError for a card that the host does not have."""
    found = probing.survey(host.reader, request.measure)
    card = next((one for one in found.cards if request.card in ("", one.bdf)), None)
    if request.card and card is None:
        known = ", ".join(one.bdf for one in found.cards) or "none"
        raise ValueError(f"card {request.card} is not among those to be measured: {known}")
    core = probing.Probe(host.reader, request.measure, found, quiet).core(card)
    scope = Scope(tuple(core or ()), card.bdf if card else "")
    switches, refused, needs_boot = [], [], False
    inside = found.facts.identity.container.value
    if inside not in (None, "none"):
        refused.append(
            f"this is a container ({inside}): run it on the host; the command leads the worker into the image"
        )
    for wish in request.toggles:
        try:
            switches.append(catalogue.switch(host, wish.name, wish.a, wish.b, scope))
        except NeedsBoot as error:
            refused.append(str(error))
            needs_boot = True
        except (Refused, Failed) as error:
            refused.append(str(error))
    if len(switches) == 2 and {one.key for one in switches[0].things} & {one.key for one in switches[1].things}:
        refused.append("both toggles write the same thing, so what one does cannot be told from the other")
    base = request.plan or (QUICK if request.measure.quick else FULL)
    plan = (
        replace(base, settle_s=max([base.settle_s, *(one.settle_s for one in switches)])) if not request.plan else base
    )
    if len(request.toggles) == 2:
        expected = longest = schedule.expected_quad_seconds(plan)
    else:
        expected = schedule.expected_seconds(plan)
        longest = schedule.expected_seconds(plan, looks=len(plan.looks))
    listing = probing.LISTING_S if card else 0.0
    timeout = request.measure.timeout or max(probing.LEAST_TIMEOUT, TIMEOUT_FACTOR * (longest + listing))
    return Prepared(
        request,
        found,
        card,
        scope,
        tuple(switches),
        tuple(refused),
        needs_boot,
        plan,
        expected + listing,
        longest + listing,
        timeout,
    )


def run(host: Host, prepared: Prepared, say: Say = quiet, listening: Callable[[], bool] = lambda: True) -> Outcome:
    """Run a trial. Must be in the main thread. The old values are back on every way out, or said not to be.

    listening: is there still somebody to give the receipt to? Asked at every block; when not, the trial ends.
    Raises Refused when it must not run, and Failed when another run holds the lock or the way back cannot be armed.
    """
    if prepared.refused:
        raise Refused("; ".join(prepared.refused))
    with host.writer.lock():
        outcome = Outcome()
        outcome.earlier, outcome.unrestored = collect(host)
        if outcome.unrestored:
            raise Failed(f"an earlier trial's values are not back: {'; '.join(outcome.unrestored)}")
        book = journal.Journal(host)
        outcome.name = book.folder.rpartition("/")[2]
        try:
            with session.ended_by_signals():
                _Trial(host, prepared, book, say, listening).into(outcome)
        finally:
            book.close()
        return outcome


def collect(host: Host) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Receipts that earlier trials left, by folder, and what of their values is not back. The caller holds the lock."""
    found: dict[str, dict[str, Any]] = {}
    unrestored: list[str] = []
    for name in journal.names(host):
        receipt, problems = journal.take(host, name)
        unrestored += problems
        if receipt is not None:
            found[name] = receipt
        else:
            journal.remove(host, name)
    return found, unrestored


class _Trial:
    def __init__(
        self, host: Host, prepared: Prepared, book: journal.Journal, say: Say, listening: Callable[[], bool]
    ) -> None:
        self.host, self.prepared, self.book, self.say, self.listening = host, prepared, book, say, listening
        request, found = prepared.request, prepared.found
        self.probe = probing.Probe(host.reader, request.measure, found, say)
        steps = [step for one in prepared.switches for step in one.steps]
        self.deadman = Deadman(host, book.folder, steps, prepared.timeout_s)
        self.toggle = Switches(host, prepared.switches, prepared.scope, self.deadman)
        names = dict.fromkeys((FAMILY.get(prepared.metric, prepared.metric), *ALWAYS))
        job = self.probe.job
        self.job = replace(
            job,
            plan=prepared.plan,
            metrics=tuple(names),
            pin=prepared.scope.cpus or None,
            ranks=0,
            limits=replace(job.limits, life_s=max(job.limits.life_s, prepared.timeout_s)),
        )
        self.claim = Claim(
            prepared.metric,
            arms(prepared.switches),
            prepared.statistic,
            _device(request.measure.device, prepared.card),
            self.toggle.names(),
        )
        self.measure = session.trial if len(prepared.switches) == 1 else session.interaction

    def into(self, outcome: Outcome) -> None:
        card, found = self.prepared.card, self.prepared.found
        why = found.obstacle or "; ".join(f"{bdf} {text}" for bdf, text in sorted(found.sick.items()))
        if why:
            outcome.receipt = self.refuse(f"not opened, because listing the devices opens {why}" if found.sick else why)
        else:
            try:
                with within(self.prepared.timeout_s):
                    outcome.receipt = self.measured(card)
            except (SystemExit, KeyboardInterrupt, TimeLimit) as stop:
                self.say("interrupted; the values found are put back")
                outcome.receipt = self.so_far(_words(stop, self.prepared.timeout_s))
        if self.toggle.problem:
            outcome.unrestored.append(self.toggle.problem)
        self.book.seal(outcome.receipt)
        if self.prepared.request.keep == "improved" and outcome.receipt["verdict"]["word"] == verdict.IMPROVED:
            self.stay(outcome)

    def measured(self, card: Gpu | None) -> dict[str, Any]:
        job = replace(self.job, container=self.probe.container())
        if card is not None:
            self.say(f"listing the devices with {job.command[0]}")
            try:
                rows = session.devices(job)
            except WorkerFailed as failure:
                return self.refuse(f"the devices could not be listed: {failure}")
            index = next((int(row["index"]) for row in rows if row["address"] == card.bdf), None)
            if index is None and any(row["address"] for row in rows):
                return self.refuse(f"torch lists {len(rows)} devices, and {card.bdf} is none of them")
            job = replace(job, index=index or 0, addresses=[card.bdf])
        try:
            self.say(f"should this end before its end, {self.deadman.arm()} puts the old values back")
            around = self.probe.around((card,) if card else (), card.bdf if card else "")
            return self.measure(job, self.claim, self.toggle, around, self.say, self.keep)
        finally:
            if self.deadman.armed:  # something failed before the session could restore
                self.toggle.restore()

    def keep(self, kind: str, record: Mapping[str, Any]) -> None:
        self.book.keep(kind, record)
        if not self.listening():
            raise SystemExit("nobody listens any more: the controller or the connection is gone")

    def refuse(self, why: str) -> dict[str, Any]:
        """The receipt of a trial whose card must not be opened: no worker is started and nothing is written."""
        card = self.prepared.card
        seen = guards.refused(self.prepared.found.facts, (card,) if card else (), self.probe.load(), why)
        seen["host"]["card"] = card.bdf if card else ""
        return self.measure(self.job, self.claim, session.Toggle(), lambda: seen)

    def so_far(self, why: str) -> dict[str, Any]:
        """The receipt of what was measured until now; None of it was quoted."""
        receipt = journal.replay(f"{self.book.real}/{journal.LINES}")
        ended = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if receipt is None:
            return {**self.refuse(f"interrupted before the first look at the host: {why}")}
        return journal.interrupted(receipt, why, self.toggle.problem, ended)

    def stay(self, outcome: Outcome) -> None:
        """Leave arm B in force. The way back is over then; the receipt says what A was."""
        try:
            self.toggle.set("B")
            outcome.kept = True
        except session.ToggleFailed as error:
            self.say(f"arm B could not be kept: {error}")
            problems = self.deadman.restore()
            outcome.unrestored += [problems] if problems else []


def _device(asked: str, card: Gpu | None) -> str:
    """The type of device that the claim is about."""
    if asked != "auto":
        return asked
    return DEVICE_OF.get(card.vendor, "auto") if card is not None else "cpu"


def _words(stop: BaseException, limit: float) -> str:
    if isinstance(stop, TimeLimit):
        return f"the limit of {limit:.0f} s is over"
    if isinstance(stop, KeyboardInterrupt):
        return "ended by SIGINT"
    code = stop.code if isinstance(stop, SystemExit) else None
    return f"ended by {signal.Signals(code - 128).name}" if isinstance(code, int) else str(code)


def view(prepared: Prepared) -> dict[str, Any]:
    """What a trial would do, as plain data."""
    sick = "; ".join(f"{bdf} {why}" for bdf, why in sorted(prepared.found.sick.items()))
    plan = {
        "expected_s": prepared.expected_s,
        "longest_s": prepared.longest_s,
        "card": prepared.card.bdf if prepared.card else "",
        "obstacle": prepared.found.obstacle or sick,
        "metric": prepared.metric,
        "statistic": prepared.statistic,
        "pairs": list(prepared.plan.looks),
        "alpha": prepared.plan.alpha,
        "toggles": [
            {
                "name": one.name,
                "a": one.words["A"],
                "b": one.words["B"],
                "things": [thing.key for thing in one.things],
                "evidence": [each.name for each in one.evidence],
            }
            for one in prepared.switches
        ],
    }
    return {"refused": list(prepared.refused), "needs_boot": prepared.needs_boot, "plan": plan, "restored": ""}


def told(outcome: Outcome) -> dict[str, Any]:
    """What a run gave, as plain data without the receipts."""
    assert outcome.receipt is not None
    judged = outcome.receipt["verdict"]
    answer = {
        "word": judged["word"],
        "sentence": judged["sentence"],
        "reasons": judged["reasons"],
        "notes": judged["notes"],
        "kept": outcome.kept,
        "restored": "; ".join(outcome.unrestored),
    }
    effects = judged["figures"].get("effects")
    return {**answer, "effects": effects} if effects else answer


def hand_over(outcome: Outcome) -> list[dict[str, Any]]:
    """All receipts with the names of their folders, this run's last."""
    found = [{"id": name, "receipt": receipt} for name, receipt in outcome.earlier.items()]
    return [*found, {"id": outcome.name, "receipt": outcome.receipt}] if outcome.receipt is not None else found


def tidy(host: Host, saved: Sequence[str], check: bool = False) -> dict[str, Any]:
    """Remove what trials left whose receipts are saved elsewhere, and collect the rest: plain data.

    Names that are no trial's are left alone; check: nothing is touched. Raises Failed while another run holds the lock.
    """
    if check or not journal.names(host):
        return {"restored": "", "trials": []}
    with host.writer.lock():
        for name in journal.names(host):
            if name in saved:
                journal.remove(host, name)
        earlier, unrestored = collect(host)
    return {"restored": "; ".join(unrestored), "trials": hand_over(Outcome(earlier=earlier))}


def listening() -> bool:
    """Does anybody still read what this process prints? No when the other end of the pipe or terminal is gone."""
    poll = select.poll()
    poll.register(1, 0)
    return not poll.poll(0)
