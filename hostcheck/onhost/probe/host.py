"""Probe a whole host: judge its cards by the facts first, then measure one after the other, each with its own receipt.

Listing the devices opens every card that the command's environment has. So when one of them sleeps, has faulted, is
wedged, has a devcoredump or is in use, no worker starts at all: each card gets an invalid receipt with the reason.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Callable

from ..gather import Facts, Options, gather
from ..reader import Reader
from ..readings.pcie import Gpu
from . import guards, schedule, session
from .schedule import FULL, QUICK
from .session import Job, Limits, Say, WorkerFailed, quiet

ENGINES = ("docker", "podman", "nerdctl")
LISTING_S, RANKS_S, WORK_AFTER_S = 20.0, 25.0, 5.0  # seconds: what a start, an all-reduce and the lab's figures take
LEAST_TIMEOUT, TIMEOUT_FACTOR = 300.0, 4.0
DEVICES = ("auto", "xpu", "cuda", "cpu")
COLLECTIVE_ENV = "/etc/hostcheck/collective.env"  # of the role collective_env


@dataclass(frozen=True)
class Request:
    """What is asked for.

    command: ends where Python's own arguments begin; see `session`. device: auto, xpu, cuda or cpu.
    cards: addresses of the cards whose nodes the command has; (): all of the host. ranks: of the all-reduce; None: one
    for each card when there are two or more; 0: none. pin: keep the worker on one processor near the card. seed: None
    draws one. image: name of the image (for ``exec``: of the container), to record its digest. timeout: seconds for
    everything; None: four times what is expected. excuse: seconds since boot up to which the one known fault of a load
    does not count, see `guards.excused`; -1: every fault counts.
    """

    command: Sequence[str]
    device: str = "auto"
    quick: bool = False
    cards: Sequence[str] = ()
    ranks: int | None = None
    pin: bool = True
    seed: int | None = None
    image: str = ""
    timeout: float | None = None
    excuse: float = -1.0
    metrics: Sequence[str] = ()
    limits: Limits = Limits()
    source: str | None = None

    def __post_init__(self) -> None:
        if not self.command or not all(isinstance(word, str) and word for word in self.command):
            raise ValueError("command is empty: give a Python that has torch, or the way into an image, as a list")
        if self.device not in DEVICES:
            raise ValueError(f"device is {self.device!r}, wanted one of {', '.join(DEVICES)}")
        if self.ranks is not None and self.ranks not in range(65):
            raise ValueError(f"ranks is {self.ranks}, wanted 0 to 64")
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout:g}, wanted seconds")


@dataclass(frozen=True)
class Survey:
    """What the facts say before anything is started.

    gpus: all that listing the devices would open. cards: those to be measured; () means the CPU. sick: address -> why
    it must not be opened. obstacle: why nothing can be measured at all, or "". expected_s, timeout_s: seconds.
    env: what ``/etc/hostcheck/collective.env`` gives the workers.
    """

    facts: Facts
    gpus: tuple[Gpu, ...]
    cards: tuple[Gpu, ...]
    sick: dict[str, str]
    obstacle: str
    ranks: int
    expected_s: float
    timeout_s: float
    env: dict[str, str] = field(default_factory=dict)


class TimeLimit(BaseException):
    """The time for the whole probe is over. No Exception, so that nothing on the way takes it for an error."""


def survey(reader: Reader, request: Request) -> Survey:
    """Judge every card in reach by the facts. Raises ValueError for a card that the host does not have."""
    facts = guards.excused(gather(reader, Options(xpu_smi="never"), guards.BEFORE), request.excuse)
    env = reader.text(COLLECTIVE_ENV).then(parse_env)
    if env.value is None and env.unread != "absent":
        raise ValueError(f"{COLLECTIVE_ENV}: {env.unread}: {env.detail}")
    wanted = tuple(one.lower() for one in request.cards)
    known = [gpu.bdf for gpu in facts.pcie.gpus.value or ()]
    strangers = [one for one in wanted if one not in known]
    if strangers and facts.pcie.gpus.value is not None:
        raise ValueError(f"no GPU {', '.join(strangers)} on this host; there are {', '.join(known) or 'none'}")
    gpus = guards.in_reach(facts, request.device, wanted)
    cards = tuple(gpu for gpu in gpus if guards.is_card(gpu) and request.device != "cpu")
    obstacle = ""
    if request.device != "cpu" and facts.pcie.gpus.value is None:
        obstacle = f"the cards of this host are not known ({facts.pcie.gpus.unread}: {facts.pcie.gpus.detail})"
    elif request.device in ("xpu", "cuda") and not cards:
        obstacle = f"this host has no card for {request.device}"
    ranks = request.ranks if request.ranks is not None else default_ranks(request.command, len(cards))
    one = schedule.expected_seconds(QUICK if request.quick else FULL, looks=0) + WORK_AFTER_S
    expected = (LISTING_S if cards else 0.0) + max(1, len(cards)) * one + (RANKS_S if ranks >= 2 else 0.0)
    timeout = request.timeout if request.timeout is not None else max(LEAST_TIMEOUT, TIMEOUT_FACTOR * expected)
    sick = {gpu.bdf: why for gpu in gpus if (why := guards.problem(facts, gpu, measured=gpu in cards))}
    return Survey(facts, gpus, cards, sick, obstacle, ranks, expected, timeout, env.value or {})


def parse_env(text: str) -> dict[str, str]:
    """Return the variables of an environment file, one ``NAME=value`` a line.

    >>> parse_env("# by hostcheck\\nCCL_KVS_IFACE=eno1\\n")
    {'CCL_KVS_IFACE': 'eno1'}

    Raises ValueError for any other line.
    """
    found = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"expected NAME=value, got {line!r}")
        found[name] = value
    return found


def probe(reader: Reader, request: Request, found: Survey | None = None, say: Say = quiet) -> list[dict[str, Any]]:
    """Measure every card (or the CPU) and return one sealed receipt for each, in the order of their addresses.

    Never raises for what the host or the worker does: what went wrong is in the receipts. Must run in the main thread
    (`session.ended_by_signals`).
    """
    found = found or survey(reader, request)
    run = Probe(reader, request, found, say)
    with session.ended_by_signals(), within(found.timeout_s):
        return run.receipts()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TimeLimit in the main thread after ``seconds``."""

    def over(number: int, frame: object) -> None:
        raise TimeLimit

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


class Probe:
    """One probe of a host, or what a trial needs of it: the job, the look around a measurement, the core."""

    def __init__(self, reader: Reader, request: Request, found: Survey, say: Say) -> None:
        self.reader, self.request, self.found, self.say = reader, request, found, say
        seed = request.seed if request.seed is not None else random.SystemRandom().randrange(2**31)
        self.job = Job(
            command=request.command,
            device="cpu" if request.device == "auto" and not found.cards else request.device,
            plan=QUICK if request.quick else FULL,
            seed=seed,
            metrics=request.metrics,
            env=found.env,
            limits=replace(request.limits, life_s=max(request.limits.life_s, found.timeout_s)),
            source=request.source,
        )
        self.done: list[dict[str, Any]] = []

    def receipts(self) -> list[dict[str, Any]]:
        found = self.found
        if found.obstacle:
            return [self.refuse((), found.obstacle)]
        if found.sick:
            listed = "; ".join(f"{bdf} {why}" for bdf, why in sorted(found.sick.items()))
            self.say(f"no worker is started: {listed}")
            if not found.cards:
                return [
                    self.refuse((), f"not started, because torch looks for accelerators first, which opens {listed}")
                ]
            others = f"not opened, because listing the devices opens {listed}"
            return [self.refuse((card,), "" if card.bdf in found.sick else others) for card in found.cards]
        self.job = replace(self.job, container=self.container())
        if len(found.cards) >= 2 and self.request.ranks is None and not found.ranks:
            self.say("all-reduce not covered: containers of their own meet only with --network host in the command")
        try:
            if found.cards:
                self.all_cards()
            else:
                self.measure(replace(self.job, ranks=found.ranks, pin=self.core(None)), ())
        except TimeLimit:
            self.say(f"the limit of {found.timeout_s:.0f} s is over; everything that was started is ended")
            over = f"not measured within the limit of {found.timeout_s:.0f} s"
            have = {address(receipt) for receipt in self.done}
            left = [card for card in found.cards if card.bdf not in have]
            self.done += [self.refuse((card,), over) for card in left]
            if not self.done:
                self.done.append(self.refuse((), over))
        return self.done

    def all_cards(self) -> None:
        cards = {card.bdf: card for card in self.found.cards}
        job = self.job
        self.say(f"listing the devices with {job.command[0]}")
        try:
            rows = session.devices(job)
        except WorkerFailed as failure:
            self.say(str(failure))
            self.done += [
                self.refuse((card,), f"the devices could not be listed: {failure}") for card in cards.values()
            ]
            return
        others = {gpu.bdf for gpu in self.found.gpus} - set(cards)
        by_address = {row["address"]: row for row in rows}
        for row in rows:
            if row["address"] in others:
                self.say(f"device {row['index']} is {row['address']}, no card of its own: not measured")
        seen = [card for bdf, card in cards.items() if bdf in by_address]
        # A device that is none of the cards is measured as what it says it is: the CPU, or else unmapped and invalid.
        strangers = [row for row in rows if row["address"] not in cards and row["address"] not in others]
        ranks = self.ranks(rows, [card.bdf for card in seen])
        for card in seen:
            watched = tuple(self.found.cards) if ranks and card is seen[-1] else (card,)
            self.measure(
                replace(
                    job,
                    index=int(by_address[card.bdf]["index"]),
                    addresses=list(cards),
                    pin=self.core(card),
                    ranks=ranks if card is seen[-1] else 0,
                ),
                watched,
                card.bdf,
            )
        for row in strangers:
            self.measure(replace(job, index=int(row["index"]), addresses=list(cards), pin=self.core(None)), ())
        if any(_is_cpu(receipt) for receipt in self.done):
            self.say(f"torch has no accelerator here, so the CPU was measured and {', '.join(cards)} not")
            return
        self.done += [
            self.refuse((card,), f"torch lists {len(rows)} devices, and {bdf} is none of them")
            for bdf, card in cards.items()
            if bdf not in by_address
        ]

    def ranks(self, rows: Sequence[dict[str, Any]], seen: Sequence[str]) -> int:
        """Rank r works on device r: only when the first devices are cards is there something to time."""
        wanted = self.found.ranks
        if wanted < 2:
            return 0
        first = [row["address"] for row in rows[:wanted]]
        strange = [f"device {number} is {one or 'not mapped'}" for number, one in enumerate(first) if one not in seen]
        if strange or len(first) < wanted:
            why = "; ".join(strange) or f"{len(rows)} devices for {wanted} ranks"
            self.say(f"all-reduce not covered: {why} (ONEAPI_DEVICE_SELECTOR in the command can leave devices out)")
            return 0
        return wanted

    def measure(self, job: Job, watched: tuple[Gpu, ...], where: str = "") -> None:
        prefix = f"{where}: " if where else ""
        started = time.monotonic()
        receipt = session.profile(job, self.around(watched, where), lambda line: self.say(prefix + line))
        self.say(f"{prefix}done in {time.monotonic() - started:.0f} s")
        self.done.append(receipt)

    def around(self, watched: tuple[Gpu, ...], where: str) -> Callable[[], dict[str, Any]]:
        """Return what `session.profile` calls before and after: a fresh look at the host each time."""
        calls: list[bool] = []

        def look() -> dict[str, Any]:
            facts = gather(self.reader, Options(xpu_smi="never"), guards.AROUND)
            now = {gpu.bdf: gpu for gpu in facts.pcie.gpus.value or ()}
            gone = [gpu.bdf for gpu in watched if gpu.bdf not in now]
            gpus = [now[gpu.bdf] for gpu in watched if gpu.bdf in now]
            seen = guards.around(facts, gpus, self.load(), after=bool(calls))
            calls.append(True)
            if gone:
                seen["card"] = "; ".join(filter(None, (seen["card"], f"{', '.join(gone)} is no longer listed")))
            return self.named(seen, where)

        return look

    def refuse(self, gpus: tuple[Gpu, ...], why: str) -> dict[str, Any]:
        """Return the receipt of what was not measured: no worker starts, because ``card`` is not empty."""
        seen = guards.refused(self.found.facts, gpus, self.load(), why)
        self.named(seen, gpus[0].bdf if gpus else "")
        return session.profile(self.job, lambda: seen)

    def named(self, seen: dict[str, Any], where: str) -> dict[str, Any]:
        """Add which card it is, and what this boot was started with."""
        line = self.reader.text("/proc/cmdline").then(guards.command_line)
        if line.value is not None:
            seen["host"]["command_line"] = line.value
        else:
            seen["host"]["unread"]["command_line"] = f"{line.unread}: {line.detail}"
        seen["host"]["card"] = where
        return seen

    def load(self) -> Any:
        return self.reader.line("/proc/loadavg")

    def core(self, card: Gpu | None) -> tuple[int, ...] | None:
        return guards.core_for(self.found.facts, card, os.sched_getaffinity(0)) if self.request.pin else None

    def container(self) -> dict[str, str]:
        """Return the digest of the image that the command runs in, when it was named."""
        argv = inspect_command(self.request.command, self.request.image)
        if not argv:
            return {}
        digest = self.reader.output(argv).then(parse_digest)
        if digest.value is None:
            self.say(f"the digest of {self.request.image} is not known: {digest.detail}")
            return {"image": self.request.image}
        return {"image": self.request.image, "digest": digest.value}


def inspect_command(command: Sequence[str], image: str) -> tuple[str, ...]:
    """Return the command that tells an image's digest, () when there is no image.

    >>> inspect_command(["sudo", "podman", "run", "-i", "vllm:1"], "vllm:1")
    ('podman', 'image', 'inspect', '--format', '{{.Id}}', 'vllm:1')
    >>> inspect_command(["docker", "exec", "-i", "vllm", "python3"], "vllm")
    ('docker', 'inspect', '--format', '{{.Image}}', 'vllm')
    """
    words = [word.rpartition("/")[2] for word in command]
    engine = next((word for word in words[:3] if word in ENGINES), "")
    if not engine or not image:
        return ()
    if "exec" in words[words.index(engine) :][:3]:
        return (engine, "inspect", "--format", "{{.Image}}", image)
    return (engine, "image", "inspect", "--format", "{{.Id}}", image)


def default_ranks(command: Sequence[str], cards: int) -> int:
    """Return one rank for each card where there are two or more and the ranks can meet.

    They meet on 127.0.0.1, which containers of their own share only on the host's network.

    >>> default_ranks(["/opt/venv/bin/python"], 2), default_ranks(["podman", "run", "-i", "vllm:1"], 2)
    (2, 0)
    >>> default_ranks(["docker", "run", "--network=host", "vllm:1"], 2), default_ranks(["docker", "exec", "-i", "v"], 4)
    (2, 4)
    """
    words = [word.rpartition("/")[2] for word in command]
    apart = any(word in ENGINES for word in words[:3]) and "run" in words[:4]
    if apart and not re.search(r"(?:^|\s)--net(?:work)?[= ]host(?:\s|$)", " ".join(command)):
        return 0
    return cards if cards >= 2 else 0


def parse_digest(text: str) -> str:
    """Return the digest that an engine prints (podman leaves the ``sha256:`` out). Raises ValueError."""
    digest = text.strip().rpartition(":")[2].lower()
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise ValueError(f"expected a sha256, got {text!r}")
    return f"sha256:{digest}"


def _is_cpu(receipt: dict[str, Any]) -> bool:
    return any(worker["identity"].get("device") == "cpu" for worker in receipt["workers"])


def address(receipt: Mapping[str, Any]) -> str:
    """Return the card that a receipt is about, "" for the CPU and for a host without one."""
    named = str((receipt["before"].get("host") or {}).get("card") or "")
    return named or next((str(worker["address"]) for worker in receipt["workers"] if worker["address"]), "")
