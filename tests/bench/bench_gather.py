"""Gather's own time per subset, against ``sh`` that runs the same commands and one ``cat`` per file.

The script does what a dry run saw gather read, each thing once however often gather reads it: a file is one ``cat``, a
listed directory one ``ls``, a link one ``readlink``, a path that is resolved one ``readlink -f``, an owner or the space
of a file system one ``stat``, a command itself. What was looked for and is not there costs the script nothing. A subset
that needs others is timed with them, on both sides.

Both are timed in turn on this machine; the figure is the median of the ratios of the rounds. Where its interval of 95 %
holds LIMIT there are more rounds. Exits 1 where the figure of a subset is above LIMIT, where the whole takes more than
WHOLE seconds, or where it runs more than COMMANDS commands.
"""

from __future__ import annotations

import shlex
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hostcheck.onhost.gather import GROUPS, Options, gather
from hostcheck.onhost.reader import (
    COMMAND_TIMEOUT,
    FILE_LIMIT,
    LOG_TIMEOUT,
    OUTPUT_LIMIT,
    Lines,
    LiveReader,
    Output,
    Reading,
    Stat,
)

LIMIT = 1.0
WHOLE = 0.5
COMMANDS = 8
ROUNDS = 25
MOST_ROUNDS = 200
APART = ("xpu_smi",)  # a tool of its own, timed apart
KINDS = {
    "cat": "cat {}",
    "ls": "ls {}",
    "link": "readlink {}",
    "real": "readlink -f {}",
    "stat": "stat {}",
    "space": "stat -f {}",
    "cmd": "LC_ALL=C {}",
}

T = TypeVar("T")


class Witness(LiveReader):
    """This machine, with a list of what is read and is there."""

    live = False  # all in one process, so that all is seen

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[tuple[str, str], None] = {}

    def _saw(self, kind: str, what: str, reading: Reading[T]) -> Reading[T]:
        if reading.unread not in ("absent", "tool_missing"):
            self.seen[kind, what] = None
        return reading

    def data(self, path: str, limit: int = FILE_LIMIT) -> Reading[bytes]:
        return self._saw("cat", path, super().data(path, limit))

    def names(self, path: str) -> Reading[tuple[str, ...]]:
        return self._saw("ls", path, super().names(path))

    def link(self, path: str) -> Reading[str]:
        return self._saw("link", path, super().link(path))

    def resolve(self, path: str) -> Reading[str]:
        return self._saw("real", path, super().resolve(path))

    def stat(self, path: str) -> Reading[Stat]:
        return self._saw("stat", path, super().stat(path))

    def space(self, path: str) -> Reading[tuple[int, int]]:
        return self._saw("space", path, super().space(path))

    def run(self, argv: Sequence[str], timeout: float = COMMAND_TIMEOUT, limit: int = OUTPUT_LIMIT) -> Reading[Output]:
        return self._saw("cmd", shlex.join(argv), super().run(argv, timeout, limit))

    def lines(self, argv: Sequence[str], timeout: float = LOG_TIMEOUT) -> Lines:
        lines = super().lines(argv, timeout)
        if self._executable(argv[0]) is not None:
            self.seen["cmd", shlex.join(argv)] = None
        return lines

    def script(self) -> str:
        """The same reads as a shell script."""
        lines = [
            KINDS[kind].format(what if kind == "cmd" else shlex.quote(what)) + " >/dev/null 2>&1"
            for kind, what in self.seen
        ]
        return "\n".join([*lines, "true"])


def timed(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Where the median lies with at least 95 %, by the order of the values (binomial, as a normal distribution).

    >>> interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    (2.0, 8.0)
    """
    ordered, many = sorted(ratios), len(ratios)
    low = max(0, int((many - 1.96 * many**0.5) / 2))
    return ordered[low], ordered[many - 1 - low]


def paired(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, float, float, int]:
    """Median seconds of both, the median of their ratios, and the number of rounds; they take turns at going first."""
    ours()  # the first time fills caches
    theirs()
    times: list[tuple[float, float]] = []
    while True:
        for number in range(ROUNDS):
            if number % 2:
                mine = timed(ours)
                times.append((mine, timed(theirs)))
            else:
                other = timed(theirs)
                times.append((timed(ours), other))
        ratios = [mine / other for mine, other in times]
        low, high = interval(ratios)
        if not low <= LIMIT <= high or len(times) >= MOST_ROUNDS:
            mine, other = (statistics.median(each) for each in zip(*times, strict=True))
            return mine, other, statistics.median(ratios), len(times)


def main() -> int:
    """Print the table. Returns 1 on a miss."""
    missed = []
    options = Options(xpu_smi="never")
    kinds = " ".join(f"{kind:>5}" for kind in KINDS)
    print(f"{'subset':<12} {kinds} {'gather ms':>10} {'sh ms':>9} {'ratio':>6} {'rounds':>6}")
    for name in [*(group for group in GROUPS if group not in APART), "all"]:
        subset = () if name == "all" else (name,)
        witness = Witness()
        gather(witness, options, subset)
        script, counts = witness.script(), Counter(kind for kind, _ in witness.seen)
        mine, other, ratio, rounds = paired(
            lambda chosen=subset: gather(LiveReader(), options, chosen),
            lambda text=script: subprocess.run(["sh", "-c", text], check=True),
        )
        numbers = " ".join(f"{counts[kind]:>5}" for kind in KINDS)
        print(f"{name:<12} {numbers} {mine * 1e3:>10.1f} {other * 1e3:>9.1f} {ratio:>6.2f} {rounds:>6}", flush=True)
        if ratio > LIMIT:
            missed.append(f"{name}: ratio {ratio:.2f}, wanted at most {LIMIT}")
        if name == "all" and (mine > WHOLE or counts["cmd"] > COMMANDS):
            missed.append(f"all: {mine:.2f} s with {counts['cmd']} commands, wanted {WHOLE} s and {COMMANDS}")
    for line in missed:
        print(f"MISSED {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
