"""Start the worker in the user's image, talk to it under hard deadlines, and make a receipt of what it
measured.

``command`` is a list that ends where Python's own arguments begin; ``-u -c LOADER`` is added to it::

    ["/opt/venv/bin/python"]
    ["podman", "run", "-i", "--rm", "--entrypoint", "python3", "--device", "/dev/dri", ..., IMAGE]
    ["docker", "run", "-i", "--rm", "--entrypoint", "bash", ..., IMAGE,
     "-c", "source /opt/intel/oneapi/setvars.sh; exec python3 \\"$@\\"", "probe"]
    ["docker", "exec", "-i", CONTAINER, "python3"]

(``python -`` would read stdin to its end, so nothing could follow the source.) The whole process group is
ended on every way out, politely first: stdin is closed, which ends a worker even where the signal reaches
only the client of a container engine.

Every failure is a named result: start_failed, died, hung, garbage, flooded_stderr, nan, device_lost,
out_of_resources, wrong_result, config_error, no_device, torch_missing, torch_too_old, unavailable, exception,
protocol.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import random
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TextIO

from . import receipt as receipts
from . import schedule, verdict
from .schedule import FULL, PAIRS, QUADS, QUICK, SHAM, Plan

if TYPE_CHECKING:
    # Never imported: ansible packs what is imported anywhere in the text, and the source is then read from
    # the package.
    from . import worker as _packed  # noqa: F401

LOADER = (
    "import sys; n = int(sys.stdin.buffer.readline()); "
    "exec(compile(sys.stdin.buffer.read(n), 'hostcheck-worker.py', 'exec'))"
)
PROTOCOL = "hostcheck-worker/1"


@dataclass(frozen=True)
class Limits:
    """Deadlines in seconds and sizes in bytes of one worker.

    start_s: until the first answer and until torch and the device are ready. reply_s: added to the time that
    a request takes by itself.
    close_s: between stdin closed, SIGTERM and SIGKILL. line, stderr: more than this is garbage,
    flooded_stderr.
    preamble: what an image may print before the worker speaks (oneAPI's setvars.sh greets on stdout).
    """

    start_s: float = 120.0
    reply_s: float = 20.0
    close_s: float = 2.0
    life_s: float = 900.0
    line: int = 32 * 2**20
    stderr: int = 2 * 2**20
    preamble: int = 64 * 2**10


class WorkerFailed(Exception):
    """A worker did not give what was asked; ``kind`` names the result, ``stderr`` is the tail of what it
    printed.
    """

    def __init__(self, kind: str, text: str, stderr: str = "") -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text, self.stderr = kind, text, stderr


def worker_source() -> str:
    """Return the text of worker.py, also from inside the archive that ansible makes."""
    name = f"{__package__}.worker"
    spec = importlib.util.find_spec(name)
    source = spec.loader.get_source(name) if spec is not None and hasattr(spec.loader, "get_source") else None  # type: ignore[union-attr]
    if source is None:
        raise FileNotFoundError(f"the text of {name} is not in this package")
    return str(source)


class Worker:
    """One worker process. Use as a context manager: its process group is gone afterwards, whatever happened.

    command: see the module. source: text of the worker (default: this package's). env: added to the inherited
    environment, which does not reach into a container. `ask` raises WorkerFailed with a named kind; after
    that the worker is of no more use.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        source: str | None = None,
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.command, self.limits = list(command), limits or Limits()
        self.source = (source if source is not None else worker_source()).encode()
        self.env = {**os.environ, **(env or {})}
        self.preamble, self.abandoned = "", ""
        self._process: subprocess.Popen[bytes] | None = None
        self._out, self._err, self._err_total, self._to_write = bytearray(), bytearray(), 0, bytearray()

    def __enter__(self) -> Worker:
        try:
            self._process = subprocess.Popen(
                [*self.command, "-u", "-c", LOADER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.env,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise WorkerFailed("start_failed", f"{self.command[0]}: {error.strerror or error}") from error
        try:
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                assert stream is not None
                os.set_blocking(stream.fileno(), False)
            self._to_write += b"%d\n" % len(self.source) + self.source
            hello = self._reply(time.monotonic() + self.limits.start_s, self.limits.start_s, greeting=True)
            if hello.get("protocol") != PROTOCOL:
                raise WorkerFailed("garbage", f"expected {PROTOCOL}, got {json.dumps(hello)[:200]}", self.stderr_tail())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stderr_tail(self) -> str:
        """Return the last 2,000 bytes that the worker printed."""
        return bytes(self._err[-2000:]).decode("utf-8", "replace")

    def ask(
        self, op: str, takes_s: float = 0.0, during: Callable[[], None] | None = None, **fields: Any
    ) -> dict[str, Any]:
        """Send one request and return its reply.

        takes_s: how long it takes by itself; the deadline is that plus ``limits.reply_s``. during: called
        once, about half-way (to read clocks while the block runs). Raises WorkerFailed.
        """
        self.send(op, **fields)
        return self.receive(op, takes_s, during)

    def send(self, op: str, **fields: Any) -> None:
        """Send a request without waiting for its reply (ranks must all be asked before one can answer)."""
        self._to_write += json.dumps({"op": op, **fields}, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        self._flush()

    def receive(self, op: str, takes_s: float = 0.0, during: Callable[[], None] | None = None) -> dict[str, Any]:
        """Wait for the reply to ``op``; see `ask`."""
        now = time.monotonic()
        if during is not None:
            early = self._reply(now + takes_s / 2.0, takes_s, timeout_is_failure=False)
            during()
            if early:
                return self._checked(op, early)
        return self._checked(op, self._reply(now + takes_s + self.limits.reply_s, takes_s + self.limits.reply_s))

    def poll(self, op: str, seconds: float) -> dict[str, Any] | None:
        """Wait at most ``seconds`` for the reply to ``op``; None when there is none yet. Raises WorkerFailed."""
        reply = self._reply(time.monotonic() + seconds, seconds, timeout_is_failure=False)
        return self._checked(op, reply) if reply else None

    def _checked(self, op: str, reply: dict[str, Any]) -> dict[str, Any]:
        if reply.get("reply") == "error":
            raise WorkerFailed(str(reply.get("kind", "exception")), str(reply.get("text", "")), self.stderr_tail())
        if reply.get("reply") != op:
            raise WorkerFailed(
                "garbage", f"expected a reply to {op}, got {json.dumps(reply)[:200]}", self.stderr_tail()
            )
        return reply

    def _reply(
        self, deadline: float, allowed_s: float, greeting: bool = False, timeout_is_failure: bool = True
    ) -> dict[str, Any]:
        while True:
            line = self._line(deadline)
            if line is None:
                if not timeout_is_failure:
                    return {}
                raise WorkerFailed("hung", f"no answer within {allowed_s:.0f} s", self.stderr_tail())
            if greeting and not _is_hello(line):
                self.preamble += line.decode("utf-8", "replace")
                if len(self.preamble) > self.limits.preamble:
                    raise WorkerFailed(
                        "garbage",
                        f"no worker in {len(self.preamble)} bytes: {self.preamble[:200]!r}",
                        self.stderr_tail(),
                    )
                continue
            return self._parsed(line)

    def _parsed(self, line: bytes) -> dict[str, Any]:
        def refuse(constant: str) -> None:
            raise WorkerFailed("nan", f"the worker answered {constant}", self.stderr_tail())

        try:
            value = json.loads(line, parse_constant=refuse)
        except ValueError as error:
            raise WorkerFailed("garbage", f"not JSON ({error}): {line[:200]!r}", self.stderr_tail()) from error
        if not isinstance(value, dict):
            raise WorkerFailed("garbage", f"not an object: {line[:200]!r}", self.stderr_tail())
        return value

    def _line(self, deadline: float) -> bytes | None:
        """Return the next line of stdout, or None at the deadline; WorkerFailed when there will be none."""
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        while True:
            end = self._out.find(b"\n")
            if end >= 0:
                line = bytes(self._out[: end + 1])
                del self._out[: end + 1]
                return line
            if len(self._out) > self.limits.line:
                raise WorkerFailed("garbage", f"a line of more than {self.limits.line} bytes", self.stderr_tail())
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._wait(left)

    def _wait(self, seconds: float) -> None:
        """Move bytes for at most ``seconds``; WorkerFailed(died | flooded_stderr)."""
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not self._process.stderr.closed:
                selector.register(self._process.stderr, selectors.EVENT_READ)
            if self._to_write and self._process.stdin is not None and not self._process.stdin.closed:
                selector.register(self._process.stdin, selectors.EVENT_WRITE)
            # Its end is watched apart from its stdout: a child that it left behind keeps that open.
            ended = _open_pidfd(self._process.pid)
            try:
                if ended is not None:
                    selector.register(ended, selectors.EVENT_READ)
                ready = {key.fileobj for key, _ in selector.select(seconds if ended is not None else 0.2)}
            finally:
                if ended is not None:
                    os.close(ended)
        if self._process.stdin in ready:
            self._flush()
        if self._process.stderr in ready:
            self._read_stderr()
        if self._process.stdout in ready:
            data = os.read(self._process.stdout.fileno(), 1 << 20)
            self._out += data
            if data:
                return  # a last answer counts, even of a process that has ended
        elif self._reaped(0.0) is None:
            return
        self._read_stderr()
        raise WorkerFailed("died", self._how_it_ended(), self.stderr_tail())

    def _read_stderr(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        while not self._process.stderr.closed:
            try:
                data = os.read(self._process.stderr.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self._process.stderr.close()
                return
            self._err_total += len(data)
            self._err = (self._err + data)[-4000:]
            if self._err_total > self.limits.stderr:
                raise WorkerFailed(
                    "flooded_stderr", f"more than {self.limits.stderr} bytes on stderr", self.stderr_tail()
                )

    def _flush(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            while self._to_write:
                del self._to_write[: os.write(self._process.stdin.fileno(), self._to_write)]
        except BlockingIOError:
            return
        except OSError:  # EPIPE: the end of stdout will say how it ended
            self._to_write.clear()

    def _how_it_ended(self) -> str:
        code = self._reaped(self.limits.close_s)
        if code is None:
            return "closed its stdout without an answer"
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        words = (self.preamble + self.stderr_tail()).strip().splitlines()
        return f"exit status {code}" + (f": {words[-1][:200]}" if words else "")

    def _reaped(self, seconds: float) -> int | None:
        """Return the exit status within ``seconds``, or None; the pipes are drained meanwhile so that nothing
        blocks on them.
        """
        assert self._process is not None
        end = time.monotonic() + seconds
        while True:
            # Peek only: while the leader is not reaped its process group id cannot belong to anybody else.
            info = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if info is not None:
                return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
            if time.monotonic() >= end:
                return None
            self._drain()
            time.sleep(0.01)

    def _drain(self) -> None:
        """Empty the pipes of a process that is ending; its last words are kept."""
        assert self._process is not None
        for stream in (self._process.stdout, self._process.stderr):
            if stream is None or stream.closed:
                continue
            try:
                while data := os.read(stream.fileno(), 1 << 16):
                    if stream is self._process.stderr:
                        self._err = (self._err + data)[-4000:]
            except BlockingIOError:
                continue

    def close(self) -> None:
        """End the whole process group: close stdin, SIGTERM, SIGKILL; a process stuck in the kernel is
        abandoned and named.
        """
        process = self._process
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.close()  # a worker ends at once when its stdin does, also in a container
        ended = self._reaped(self.limits.close_s)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if ended is None:
                _kill_group(process.pid, number)
                ended = self._reaped(self.limits.close_s)
        _kill_group(process.pid, signal.SIGKILL)  # what it left behind in its group
        if ended is None:
            self.abandoned = f"process {process.pid} did not end after SIGKILL (stuck in the kernel)"
        else:
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _open_pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable once the process has ended, or None where there is none (seccomp)."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _is_hello(line: bytes) -> bool:
    """Say whether a line is the worker's first one and not something that the image prints."""
    try:
        value = json.loads(line)
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("reply") == "hello"


def _kill_group(leader: int, number: int) -> None:
    """Signal a whole process group; one that is gone already is what was wanted."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that workers are ended and settings restored on the way
    out.
    """

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---------------------------------------------------------------------------------------------------------
# the cards


def bdf_of_uuid(uuid: str) -> str | None:
    """Return the PCI address in the UUID of an Intel GPU, or None when it is no such UUID.

    Level Zero puts vendor, device, revision, domain, bus, device and function in it, in this order. sycl-ls
    and torch print the bytes as they are, xpu-smi prints them backwards (both forms seen for 0000:23:00.0 on
    the lab's host).

    >>> bdf_of_uuid("868023e2-0000-0000-2300-000000000000")
    '0000:23:00.0'
    >>> bdf_of_uuid("00000000-0000-0023-0000-0000e2238086")
    '0000:23:00.0'
    """
    digits = re.sub(r"[^0-9a-f]", "", uuid.lower())
    if len(digits) != 32:
        return None
    raw = bytes.fromhex(digits)
    if raw[:2] != b"\x86\x80":
        raw = raw[::-1]
    if raw[:2] != b"\x86\x80":
        return None
    domain, bus, device, function = raw[6] | raw[7] << 8, raw[8], raw[9], raw[10]
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def card_address(identity: Mapping[str, Any]) -> str | None:
    """Return the PCI address of the device that a worker uses, or None when it does not say."""
    card = identity.get("card", {})
    return str(card["bdf"]) if "bdf" in card else bdf_of_uuid(str(card.get("uuid", "")))


def unmapped(identity: Mapping[str, Any], addresses: Sequence[str] | None) -> str:
    """Return why the device is none of the host's cards (``addresses`` from its facts; None: not compared),
    or an empty string.

    Index 0 may be an integrated GPU; an index is never an address.
    """
    if identity.get("device") == "cpu" or addresses is None:
        return ""
    address = card_address(identity)
    if address is None:
        return f"device {identity.get('device')}:{identity.get('index')} gives no PCI address"
    return "" if address in addresses else f"{address} is none of this host's cards ({', '.join(addresses) or 'none'})"


# -----------------------------------------------------------------------------------------------------------
# measuring


class Toggle:
    """What a trial switches. This one switches nothing: a profile.

    Subclasses write a setting and read it back; every method runs in the session's process. `restore` returns
    "" or why the old value is not back. sham: the arm whose value both blocks of a sham pair have.
    """

    toggles = False
    sham = "A"

    def set(self, arm: str) -> None:
        """Bring the setting to the value of an arm. Raises ToggleFailed when the host refuses it."""

    def read(self) -> Any:
        """Return the value now, as text or number; None when it cannot be read."""
        return None

    def evidence(self) -> dict[str, Any]:
        """Return what must differ between the arms when the setting acts; read half-way through a block."""
        return {}

    def restore(self) -> str:
        return ""


class ToggleFailed(Exception):
    """A setting could not be brought to the value of an arm; the text says why."""


@dataclass(frozen=True)
class Job:
    """What to measure and where.

    command: see the module. device: auto, xpu, cuda or cpu. index: which of them. metrics: which of the
    worker's (empty: all).
    pin: CPUs to keep the worker on. addresses: PCI addresses of the host's cards, for `unmapped`. ranks: of
    the all-reduce session (below 2: none).
    container: image and digest when the caller knows them; part of the identity.
    env: variables for the workers (the interface of collectives); they do not reach into a container.
    """

    command: Sequence[str]
    device: str = "auto"
    index: int = 0
    plan: Plan = FULL
    seed: int = 0
    metrics: Sequence[str] = ()
    pin: Sequence[int] | None = None
    addresses: Sequence[str] | None = None
    warm_up_s: float = 2.0
    ranks: int = 0
    collective: Mapping[str, Any] = field(default_factory=lambda: {"dtype": "bfloat16", "rows": 1, "hidden": 5120})
    container: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    source: str | None = None


@dataclass(frozen=True)
class Claim:
    """What a trial is about, declared before it runs; see `receipt.trial_of`."""

    metric: str
    arms: Mapping[str, str]
    statistic: str = "median"
    device: str = "auto"
    evidence: Sequence[str] = ()


Around = Callable[[], Mapping[str, Any]]
Say = Callable[[str], None]
# Gets everything as soon as it is there, so that a run that is killed leaves what it had: ``head`` (the receipt without
# what follows), ``begun`` {phase: pairs}, ``worker`` (a start; at its end again, complete), ``block``, ``failure``.
Kept = Callable[[str, Mapping[str, Any]], None]


def quiet(_: str) -> None:
    """Say nothing."""


def devices(job: Job) -> list[dict[str, Any]]:
    """Return every device that the worker sees, in index order, each with its ``address`` (None: it does not say).

    Every card is to be probed, one `profile` per index. Raises WorkerFailed.
    """
    with Worker(job.command, source=job.source, limits=job.limits, env=job.env) as worker:
        reply = worker.ask("devices", job.limits.start_s, device=job.device)
    return [{**row, "address": card_address({"card": row})} for row in reply["devices"]]


def keep_nothing(_: str, __: Mapping[str, Any]) -> None:
    """Keep nothing on the way."""


def profile(job: Job, around: Around = dict, say: Say = quiet, kept: Kept = keep_nothing) -> dict[str, Any]:
    """Measure a host as it is: sham pairs, the lab's figures, launch counts, and the all-reduce when
    ``job.ranks`` >= 2.

    around: called before and after, returns what `receipt.guards_of` expects. say: one line of progress.
    kept: see `Kept`. Always returns a sealed receipt; what went wrong is in its ``failures`` and ``validity``.
    """
    return _measure("profile", job, None, Toggle(), around, say, kept)


def trial(
    job: Job,
    claim: Claim,
    toggle: Toggle,
    around: Around = dict,
    say: Say = quiet,
    kept: Kept = keep_nothing,
) -> dict[str, Any]:
    """Find out whether a setting changes this host: sham pairs, then A/B pairs in coin-flip order, until a
    planned look decides.

    The setting is restored on every way out. Returns a sealed receipt with its verdict; see `profile` for the
    other arguments.
    """
    return _measure("trial", job, claim, toggle, around, say, kept)


def interaction(
    job: Job,
    claim: Claim,
    toggle: Toggle,
    around: Around = dict,
    say: Say = quiet,
    kept: Kept = keep_nothing,
) -> dict[str, Any]:
    """Find out what two settings do alone and together: sham pairs without either, then quads of the four arms in
    random order. The toggle and the claim know the arms of `schedule.ARMS_OF_TWO_SWITCHES`; see `trial`.
    """
    return _measure("interaction", job, claim, toggle, around, say, kept)


def _measure(
    kind: str, job: Job, claim: Claim | None, toggle: Toggle, around: Around, say: Say, kept: Kept
) -> dict[str, Any]:
    receipt: dict[str, Any] = {
        "schema": receipts.SCHEMA,
        "kind": kind,
        "taken_at": _now(),
        "seed": job.seed,
        "plan": {**asdict(job.plan), "looks": list(job.plan.looks)},
        "command": list(job.command),
        "asked": {
            "device": job.device,
            "index": job.index,
            "metrics": list(job.metrics),
            "pin": list(job.pin) if job.pin else None,
            "ranks": job.ranks,
            "container": dict(job.container),
        },
        "begun": {},
        "workers": [],
        "blocks": [],
        "collectives": [],
        "failures": [],
        "restore": "",
        "before": dict(around()),
        "after": {},
    }
    if claim:
        receipt["claim"] = {
            **asdict(claim),
            "arms": dict(claim.arms),
            "evidence": list(claim.evidence),
            "toggles": toggle.toggles,
        }
        receipt["interrupted"] = ""
    kept("head", receipt)
    run = _Run(job, toggle, receipt, say, kept)
    try:
        if receipt["before"].get("card"):
            return _sealed(receipt, around)  # a sick or sleeping card is not touched
        run.measure()
    finally:
        try:
            run.close()
        finally:
            if claim:
                receipt["restore"] = toggle.restore()
    if job.ranks >= 2 and not receipt["failures"]:
        say(f"all-reduce over {job.ranks} ranks")
        receipt["collectives"].append(all_reduce(job))
        _note_collective_failure(receipt)
    return _sealed(receipt, around)


def _sealed(receipt: dict[str, Any], around: Around) -> dict[str, Any]:
    receipt["after"], receipt["ended_at"] = dict(around()), _now()
    return receipts.seal(receipt)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class _Run:
    """The loop of a profile or a trial over one receipt that grows."""

    def __init__(
        self,
        job: Job,
        toggle: Toggle,
        receipt: dict[str, Any],
        say: Say,
        kept: Kept,
    ) -> None:
        self.job, self.toggle, self.receipt, self.say, self.kept = job, toggle, receipt, say, kept
        self.worker: Worker | None = None
        self.number = -1

    def measure(self) -> None:
        try:
            if self.receipt["kind"] == "profile":
                self.phase(SHAM, 0, self.job.plan.sham)
            else:
                self.looks()
            self.finish_worker()
        except WorkerFailed as failure:
            self.fail(failure)
        except ToggleFailed as refused:
            self.fail(WorkerFailed("setting", str(refused)))

    def looks(self) -> None:
        """Ask the verdict rules what comes next until they stop."""
        while True:
            step = verdict.next_step(receipts.trial_of({**self.receipt, "after": self.receipt["before"]}))
            if step == "stop":
                return
            if step in (SHAM, "sham_again"):
                self.phase(step, 0, self.job.plan.sham)
            elif self.receipt["kind"] == "interaction":
                self.quads(schedule.quads_planned(self.job.plan))
                return
            else:
                wanted = int(step.partition(":")[2])
                self.phase(PAIRS, self.receipt["begun"].get(PAIRS, 0), wanted)

    def phase(self, phase: str, first: int, last: int) -> None:
        self.begin(phase, last)
        seconds = (last - first) * schedule.pair_seconds(self.job.plan)
        self.say(f"{phase}: pairs {first + 1} to {last}, about {seconds:.0f} s")
        for step in schedule.steps(self.job.plan, self.job.seed, phase, first, last):
            self.block(step)

    def quads(self, number: int) -> None:
        self.begin(QUADS, number)
        seconds = 2 * number * schedule.pair_seconds(self.job.plan)
        self.say(f"{QUADS}: 1 to {number}, about {seconds:.0f} s")
        for step in schedule.quad_steps(self.job.plan, self.job.seed, number):
            self.block(step)

    def begin(self, phase: str, last: int) -> None:
        self.receipt["begun"][phase] = last
        self.kept("begun", {phase: last})

    def block(self, step: schedule.Step) -> None:
        if step.worker != self.number:
            self.finish_worker()
            self.start_worker(step.worker)
        plan, worker = self.job.plan, self.worker
        assert worker is not None
        self.toggle.set(step.arm if step.phase in (PAIRS, QUADS) else self.toggle.sham)
        time.sleep(plan.settle_s)
        readback, seen = self.toggle.read(), {}
        reply = worker.ask(
            "block",
            plan.warm_s + plan.block_s,
            lambda: seen.update(self.toggle.evidence()),
            seconds=plan.block_s,
            warm_s=plan.warm_s,
            metrics=list(self.job.metrics) or list(METRICS),
        )
        block = {
            "phase": step.phase,
            "pair": step.pair,
            "position": step.position,
            "arm": step.arm,
            "worker": step.worker,
            "readback": readback,
            "readback_end": self.toggle.read(),
            "evidence": seen,
            **{key: value for key, value in reply.items() if key != "reply"},
        }
        self.receipt["blocks"].append(block)
        self.kept("block", block)
        self.say(f"{step.phase} pair {step.pair + 1} {step.arm}")

    def start_worker(self, number: int) -> None:
        job = self.job
        self.say(f"worker {number}: starting {job.command[0]}")
        self.number = number
        worker = Worker(job.command, source=job.source, limits=job.limits, env=job.env).__enter__()
        self.worker = worker
        reply = worker.ask(
            "start",
            job.limits.start_s + job.warm_up_s,
            device=job.device,
            index=job.index,
            pin=list(job.pin) if job.pin else None,
            life_s=job.limits.life_s,
            warm_s=job.warm_up_s,
            metrics=list(job.metrics) or list(METRICS),
        )
        record = {key: value for key, value in reply.items() if key != "reply"}
        record["identity"] = {**record["identity"], "container_digest": job.container.get("digest", "")}
        record["address"] = card_address(record["identity"])
        record.update(preamble=worker.preamble[-500:], lab=[], launches={})
        self.receipt["workers"].append(record)
        self.kept("worker", record)
        wrong = unmapped(record["identity"], job.addresses)
        if wrong:
            raise WorkerFailed("unmapped", wrong)

    def finish_worker(self) -> None:
        """Take the lab's figures and the launch counts, then end the worker."""
        if self.worker is None:
            return
        record = self.receipt["workers"][-1]
        for _ in range(LAB_REPEATS):
            record["lab"].append(self.worker.ask("lab", 10.0)["figures"])
        record["launches"] = self.worker.ask("inspect", 30.0)["launches"]
        self.kept("worker", record)
        self.close()

    def fail(self, failure: WorkerFailed) -> None:
        self.receipt["failures"].append(
            {
                "kind": failure.kind,
                "text": failure.text,
                "stderr": failure.stderr[-1000:],
                "worker": self.number,
            }
        )
        self.kept("failure", self.receipt["failures"][-1])
        self.say(f"{failure.kind}: {failure.text}")

    def close(self) -> None:
        if self.worker is not None:
            worker, self.worker = self.worker, None
            worker.close()
            if worker.abandoned:
                self.receipt["failures"].append(
                    {"kind": "hung", "text": worker.abandoned, "stderr": "", "worker": self.number}
                )


# The worker's list; kept here too because worker.py is never imported. A test compares them.
METRICS = (
    "launch_us",
    "launch_sync_us",
    "gap_sync_0.3ms_us",
    "gap_sync_3ms_us",
    "rms_composite8_us",
    "rms_fused_us",
    "graph_us",
    "gemm_us",
    "cpu_add_us",
    "py_loop_ns",
)
LAB_REPEATS = 5


# ----------------------------------------------------------------------------------------------------------
# collectives


def all_reduce(job: Job, batches: int = 20, per_batch: int = 10) -> dict[str, Any]:
    """Time the all-reduce over ``job.ranks`` further workers, rank r on device r; return one entry for
    ``collectives``.

    What fails is in its ``failure``: a named kind and text; a missing interface is config_error, ``interface
    X absent``.
    """
    shape, world, host = dict(job.collective), job.ranks, "127.0.0.1"
    entry: dict[str, Any] = {
        **shape,
        "ranks": world,
        "backend": "",
        "environment": "",
        "variables": "",
        "series": {},
        "failure": None,
        "identities": [],
    }
    workers: list[Worker] = []
    try:
        for _ in range(world):
            workers.append(Worker(job.command, source=job.source, limits=job.limits, env=job.env).__enter__())
        for rank, worker in enumerate(workers):
            worker.send("start", device=job.device, index=rank, life_s=job.limits.life_s, collective=True)
        started = [worker.receive("start", job.limits.start_s) for worker in workers]
        if (
            started[0]["identity"]["device"] != "cpu"
            and len({card_address(one["identity"]) for one in started}) < world
        ):
            raise WorkerFailed("unmapped", "two ranks on one card")
        entry["identities"] = [one["identity"] for one in started]
        entry["environment"] = "container" if started[0]["identity"]["container"] else "host"
        entry["variables"] = variables_name(started[0]["environment"])
        entry["environment_variables"] = started[0]["environment"]
        timeout_s = job.limits.start_s
        port = workers[0].ask("store", 5.0, host=host, world=world, timeout_s=timeout_s)["port"]
        joined = _together(
            workers,
            "join",
            timeout_s,
            [{"rank": r, "world": world, "host": host, "port": port, "timeout_s": timeout_s} for r in range(world)],
        )
        entry["backend"] = joined[0]["backend"]
        asked = {**shape, "batches": batches, "per_batch": per_batch}
        replies = _together(workers, "allreduce", 60.0, [asked] * world)
        for policy in ("sync_end", "sync_each"):
            entry["series"][policy] = [reply["series"][policy] for reply in replies]
        _together(workers, "leave", 10.0, [{}] * world)
    except WorkerFailed as failure:
        entry["series"] = {}
        entry["failure"] = {"kind": failure.kind, "text": failure.text, "stderr": failure.stderr[-1000:]}
    finally:
        for worker in workers:
            worker.close()
    return entry


def _together(
    workers: Sequence[Worker], op: str, seconds: float, requests: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Ask all ranks at once and wait for all; the first that fails ends it (the others then wait for it in
    vain).
    """
    for worker, request in zip(workers, requests):
        worker.send(op, **request)
    return [worker.receive(op, seconds) for worker in workers]


def variables_name(environment: Mapping[str, str]) -> str:
    """Return ``none`` or a short name for the variables that change a collective's path or timing: part of
    the metric's name.
    """
    ours = {
        name: value for name, value in sorted(environment.items()) if name.startswith(("CCL_", "FI_", "NCCL_", "GLOO_"))
    }
    return hashlib.sha256(json.dumps(ours).encode()).hexdigest()[:8] if ours else "none"


def _note_collective_failure(receipt: dict[str, Any]) -> None:
    """A collective that is not covered leaves the rest valid; one that hurt the card or gave a wrong sum does
    not.
    """
    failure = receipt["collectives"][-1]["failure"]
    if failure and failure["kind"] not in ("unavailable", "config_error", "no_device"):
        receipt["failures"].append({**failure, "worker": -1})


# -----------------------------------------------------------------------------------------------------------
# standalone


def main(arguments: Sequence[str] | None = None, out: TextIO | None = None) -> int:
    """Probe one device and write a receipt: ``python -m hostcheck.onhost.probe.session --device cuda --quick
    -o receipt.json``.

    Knows nothing of the host (no kernel log, no throttle counters): the receipt says so. Exit status 0 valid,
    1 invalid.
    """
    parser = argparse.ArgumentParser(
        prog="hostcheck.onhost.probe.session", description="Probe one device and write a receipt."
    )
    parser.add_argument("--device", default="auto", choices=("auto", "xpu", "cuda", "cpu"))
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="8 sham pairs in place of 12")
    parser.add_argument("--block-s", type=float, default=None, help="seconds of each block (0.7)")
    parser.add_argument("--ranks", type=int, default=0, help="also time the all-reduce over this many devices")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--pin", type=int, nargs="*", default=None, help="CPUs to keep the worker on")
    parser.add_argument("--command", nargs="+", default=["python3"], help="ends where Python's own arguments begin")
    parser.add_argument("-o", dest="output", required=True)
    options = parser.parse_args(arguments)
    say = out or sys.stderr
    plan = QUICK if options.quick else FULL
    job = Job(
        command=options.command,
        device=options.device,
        index=options.index,
        plan=plan if options.block_s is None else replace(plan, block_s=options.block_s),
        pin=options.pin,
        seed=options.seed if options.seed is not None else random.SystemRandom().randrange(2**31),
        ranks=options.ranks,
    )
    print(f"about {schedule.expected_seconds(job.plan, looks=0):.0f} s", file=say, flush=True)
    with ended_by_signals():
        receipt = profile(job, say=lambda line: print(line, file=say, flush=True))
    with open(options.output, "w", encoding="utf-8") as file:
        json.dump(receipt, file, separators=(",", ":"))
        file.write("\n")
    for name, value in receipt["figures"]["lab"].items():
        print(f"{name}: {value}", file=say)
    for problem in receipt["validity"]["reasons"]:
        print(f"invalid: {problem}", file=say)
    return 0 if receipt["validity"]["valid"] else 1


if __name__ == "__main__":
    sys.exit(main())
