"""Does every card compute, and do all of them together? No timing: values are checked, under hard limits.

`smoke` adds and sums on one card after the other in one worker: 1024 x 1024 ones and one more are 2097152.0, in 20 s
for each card. `collective` lets one rank on each card add up what all of them give, in 90 s. Single cards that compute
prove nothing about the collective: in the lab four cards passed while 0 of 4 ranks finished (lab-host-facts 3.4). The
limits begin when torch is loaded, because what a container and a cold disk take says nothing about a card.

The kernel log is read before and after. What fails is told once and never tried again here: asking a sick card leaks
one context more each time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable

from ..gather import Facts, Options, gather
from ..reader import Reader
from ..readings import gpu_ids
from ..readings.pcie import Gpu
from . import guards, session
from .host import COLLECTIVE_ENV, Request, Survey, TimeLimit, within
from .session import Say, Worker, WorkerFailed, quiet

SUM = 2097152.0
SMOKE_S, COLLECTIVE_S = 20.0, 90.0
SLICE_S = 0.1  # how long one rank is listened to before the next
PINS = ("FI_TCP_IFACE", "CCL_KVS_IFACE")
OK, NOT_NEEDED = "ok", "not_needed"


@dataclass(frozen=True)
class Outcome:
    """What one card, or the host as a whole, gave.

    subject: a PCI address, ``cpu`` or ``host``. kind: ``ok``, ``not_needed``, a named failure of `session`, or
    ``not_opened`` (the facts speak against it), ``not_tried`` (after another one failed), ``unread`` (what has to be
    known cannot be read), ``faulted`` (the kernel log has new fault lines).
    """

    subject: str
    kind: str
    text: str

    @property
    def good(self) -> bool:
        return self.kind in (OK, NOT_NEEDED)

    def __str__(self) -> str:
        return f"{self.subject}: {self.kind}: {self.text}"


@dataclass(frozen=True)
class Proof:
    """All outcomes of a gate."""

    outcomes: tuple[Outcome, ...]

    @property
    def good(self) -> bool:
        return all(one.good for one in self.outcomes)

    def __str__(self) -> str:
        """What is not good."""
        return "; ".join(str(one) for one in self.outcomes if not one.good)


Gate = Callable[[Request, Survey, Say], "list[Outcome]"]


def smoke(reader: Reader, request: Request, found: Survey, say: Say = quiet) -> Proof:
    """Have every card compute. Never raises for what the host or the worker does. Must run in the main thread."""
    return _prove(reader, request, found, say, _smoke, SMOKE_S * (1 + max(1, len(found.cards))))


def collective(reader: Reader, request: Request, found: Survey, say: Say = quiet) -> Proof:
    """Have all cards add up together; see `smoke`."""
    return _prove(reader, request, found, say, _collective, COLLECTIVE_S)


def obstacles(request: Request, found: Survey) -> list[Outcome]:
    """What stands against opening the cards, by the facts: nothing is started then."""
    if found.obstacle:
        return [Outcome("host", "no_device", found.obstacle)]
    if found.sick:
        return [Outcome(bdf, "not_opened", why) for bdf, why in sorted(found.sick.items())]
    if not found.cards:
        return []
    facts = found.facts
    log, refused = facts.kernel_log.events, facts.holders.refused
    if log.value is None:
        return [Outcome("host", "unread", f"the kernel log ({log.unread}: {log.detail}); run as root (become)")]
    if refused.value != 0 and any(gpu.vendor != gpu_ids.NVIDIA for gpu in found.cards):
        why = f"{refused.value} processes" if refused.value else f"{refused.unread}: {refused.detail}"
        return [Outcome("host", "unread", f"who holds the cards ({why}); run as root (become)")]
    return []


def _prove(reader: Reader, request: Request, found: Survey, say: Say, gate: Gate, limit_s: float) -> Proof:
    outcomes = obstacles(request, found)
    if outcomes:
        return Proof(tuple(outcomes))
    if not found.cards and request.device != "cpu":
        return Proof((Outcome("host", NOT_NEEDED, "there is no card on this host"),))
    most_s = 2 * request.limits.start_s + limit_s + 10 * request.limits.close_s
    try:
        with session.ended_by_signals(), within(most_s):
            outcomes = gate(request, found, say)
    except TimeLimit:
        outcomes = [Outcome("host", "hung", f"no end within {most_s:.0f} s; everything that was started is ended")]
    if not found.cards:
        return Proof(tuple(outcomes))
    after = gather(reader, Options(xpu_smi="never"), guards.AROUND)
    outcomes += since(found.facts, guards.excused(after, request.excuse), found.gpus)
    return Proof(tuple(outcomes))


def since(before: Facts, after: Facts, gpus: Sequence[Gpu]) -> list[Outcome]:
    """What the kernel says of the cards after the work and did not say before."""
    if after.kernel_log.events.value is None:
        log = after.kernel_log.events
        return [Outcome("host", "unread", f"the kernel log after the work ({log.unread}: {log.detail})")]
    old = {guards.fault_line(event) for event in guards.fault_events(before, gpus)}
    now = {gpu.bdf: gpu for gpu in after.pcie.gpus.value or ()}
    found = []
    for gpu in gpus:
        if gpu.bdf not in now:
            found.append(Outcome(gpu.bdf, "device_lost", "is no longer listed on the bus"))
            continue
        lines = [line for event in guards.fault_events(after, [gpu]) if (line := guards.fault_line(event)) not in old]
        why = guards.problem(after, now[gpu.bdf], after=True)
        if lines or why:
            found.append(Outcome(gpu.bdf, "faulted", "; ".join(lines) or why))
    return found


def _limits(request: Request, limit_s: float) -> session.Limits:
    """No time on top of what a request may take; the worker ends itself soon after its time."""
    return replace(request.limits, reply_s=0.0, life_s=2 * request.limits.start_s + limit_s)


def _start(request: Request, found: Survey, limit_s: float) -> Worker:
    limits = _limits(request, limit_s)
    return Worker(request.command, source=request.source, limits=limits, env=found.env).__enter__()


def _smoke(request: Request, found: Survey, say: Say) -> list[Outcome]:
    subjects = [card.bdf for card in found.cards] or ["cpu"]
    outcomes: list[Outcome] = []
    at, worker = "host", None
    try:
        worker = _start(request, found, SMOKE_S * (1 + len(subjects)))
        limits = worker.limits
        say(f"{request.command[0]}: loading torch")
        worker.ask("load", limits.start_s, life_s=limits.life_s)
        rows = worker.ask("devices", SMOKE_S, device=request.device)
        by_address = {session.card_address({"card": row}): row for row in rows["devices"]}
        for at in subjects:
            row = rows["devices"][0] if at == "cpu" else by_address.get(at)
            if row is None:
                listed = ", ".join(str(one) for one in by_address) or "none"
                raise WorkerFailed("unmapped", f"is none of the {rows['device']} devices that torch lists ({listed})")
            outcomes.append(_sum(worker, request.device, at, row))
            if not outcomes[-1].good:
                break
    except WorkerFailed as failure:
        outcomes.append(Outcome(at, failure.kind, failure.text))
    finally:
        if worker is not None:
            worker.close()
            if worker.abandoned:
                outcomes.append(Outcome("host", "hung", worker.abandoned))
    told = {one.subject for one in outcomes}
    bad = next((one.subject for one in outcomes if not one.good), "")
    return outcomes + [
        Outcome(subject, "not_tried", f"{bad} failed before it") for subject in subjects if subject not in told
    ]


def _sum(worker: Worker, device: str, subject: str, row: Mapping[str, Any]) -> Outcome:
    reply = worker.ask("smoke", SMOKE_S, device=device, index=row["index"])
    address = session.card_address(reply["identity"])
    if subject != "cpu" and address != subject:
        return Outcome(subject, "unmapped", f"device {row['index']} is {address} now")
    if reply["sum"] != SUM:
        return Outcome(subject, "wrong_result", f"the sum is {reply['sum']!r}, wanted {SUM}")
    return Outcome(subject, OK, f"sum {SUM} on {reply['identity']['device']}:{row['index']}")


def ranks_of(request: Request, found: Survey) -> int | Outcome:
    """How many ranks are to meet, or why none are."""
    if request.ranks is None and len(found.cards) >= 2 and found.ranks < 2:
        return Outcome(
            "host",
            "config_error",
            "containers of their own meet only with --network host in the command; ranks 0 leaves the collective out",
        )
    if found.ranks >= 2:
        return found.ranks
    why = "ranks is 0 or 1" if request.ranks is not None else f"there is {len(found.cards) or 'no'} card"
    return Outcome("host", NOT_NEEDED, f"{why}, so there is nothing to join")


def _collective(request: Request, found: Survey, say: Say) -> list[Outcome]:
    ranks = ranks_of(request, found)
    if isinstance(ranks, Outcome):
        return [ranks]
    group = _Group(request, found)
    try:
        say(f"{ranks} ranks: loading torch")
        group.start(ranks)
        return group.add_up()
    except WorkerFailed as failure:
        return [Outcome(group.at, failure.kind, failure.text)]
    finally:
        group.close()


class _Group:
    """Ranks that answer together: the first that fails ends it, and is the one that is named."""

    def __init__(self, request: Request, found: Survey) -> None:
        self.request, self.found = request, found
        self.workers: list[Worker] = []
        self.names: list[str] = []
        self.at = "host"
        self.ends = 0.0

    def start(self, ranks: int) -> None:
        for rank in range(ranks):
            self.names.append(f"rank {rank}")
            self.workers.append(_start(self.request, self.found, COLLECTIVE_S))
        self.ends = time.monotonic() + self.request.limits.start_s
        self.all("load", [{"life_s": self.workers[0].limits.life_s}] * ranks)
        self.ends = time.monotonic() + COLLECTIVE_S

    def all(self, op: str, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Ask every rank and wait for all of them, whoever answers first. Raises WorkerFailed."""
        for worker, request in zip(self.workers, requests):
            worker.send(op, **request)
        replies: dict[int, dict[str, Any]] = {}
        while len(replies) < len(self.workers):
            for rank, worker in enumerate(self.workers):
                if rank in replies:
                    continue
                try:
                    reply = worker.poll(op, SLICE_S)
                except WorkerFailed as failure:
                    raise self.named(rank, failure) from failure
                if reply is not None:
                    replies[rank] = reply
            if time.monotonic() > self.ends and len(replies) < len(self.workers):
                late = [rank for rank in range(len(self.workers)) if rank not in replies]
                waiting = ", ".join(self.names[rank] for rank in late)
                done = f"{len(replies)} of {len(self.workers)} ranks answered"
                hung = WorkerFailed("hung", f"{op}: {done} in time, {waiting} did not")
                raise hung if len(late) > 1 else self.named(late[0], hung)
        return [replies[rank] for rank in range(len(self.workers))]

    def named(self, rank: int, failure: WorkerFailed) -> WorkerFailed:
        """The failure of a rank, with its name; what is wrong in the configuration is of the host."""
        if failure.kind != "config_error" and ":" in self.names[rank]:
            self.at = self.names[rank].partition(" on ")[2]
        return WorkerFailed(failure.kind, f"{self.names[rank]}: {failure.text}", failure.stderr)

    def add_up(self) -> list[Outcome]:
        """Start the ranks on their devices, join, add up, and check every value (the worker does)."""
        request, world = self.request, len(self.workers)
        life = self.workers[0].limits.life_s
        started = self.all(
            "start",
            [{"device": request.device, "index": rank, "life_s": life, "collective": True} for rank in range(world)],
        )
        places = [session.card_address(one["identity"]) or str(one["identity"]["device"]) for one in started]
        self.names = [f"rank {rank} on {place}" for rank, place in enumerate(places)]
        self.check_places(places)
        self.check_pins([one["environment"] for one in started])
        left = max(1.0, self.ends - time.monotonic())
        try:
            store = self.workers[0].ask("store", left, host="127.0.0.1", world=world, timeout_s=left)
        except WorkerFailed as failure:
            raise self.named(0, failure) from failure
        meet = {"world": world, "host": "127.0.0.1", "port": store["port"], "timeout_s": left}
        joined = self.all("join", [{"rank": rank, **meet} for rank in range(world)])
        # One element of FP16, as in the lab's preflight.
        asked = {"dtype": "float16", "rows": 1, "hidden": 1, "batches": 1, "per_batch": 1}
        self.all("allreduce", [asked] * world)
        self.all("leave", [{}] * world)
        pins = ", ".join(f"{name}={self.found.env[name]}" for name in PINS if name in self.found.env)
        text = f"{world} ranks, {joined[0]['backend']}, every value {world * (world + 1) / 2:g}"
        return [Outcome("host", OK, f"{text}, {pins or 'no interface pinned'}")]

    def check_places(self, places: Sequence[str]) -> None:
        cards = {card.bdf for card in self.found.cards}
        if not cards:
            return
        strange = [name for name, place in zip(self.names, places) if place not in cards]
        if strange:
            raise WorkerFailed(
                "unmapped", f"{', '.join(strange)}: none of this host's cards ({', '.join(sorted(cards))})"
            )
        if len(set(places)) < len(places):
            raise WorkerFailed("unmapped", f"two ranks on one card ({', '.join(places)})")

    def check_pins(self, environments: Sequence[Mapping[str, str]]) -> None:
        """What the role collective_env wrote has to reach the place where it acts."""
        for name in PINS:
            wanted = self.found.env.get(name)
            has = {one.get(name) for one in environments}
            if wanted is not None and has != {wanted}:
                found = ", ".join(sorted(str(one or "none") for one in has))
                raise WorkerFailed(
                    "config_error",
                    f"the ranks have {name} {found}, {COLLECTIVE_ENV} says {wanted}: "
                    f"add --env-file {COLLECTIVE_ENV} to the command",
                )

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
