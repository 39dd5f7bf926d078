"""Gather's own time per subset, against ``sh`` that runs the same commands and one ``cat`` per file.

Both are timed in turn in one run on this machine; the figure is the ratio of the medians. Exits 1 where that of the
whole gather is above LIMIT, where it takes more than WHOLE seconds, or where it runs more than COMMANDS commands. A
subset may be above: the shell parses nothing, lists no directory here, and has no child process that can be killed when
a device hangs.
"""

from __future__ import annotations

import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from hostcheck.onhost.gather import GROUPS, Options, gather
from hostcheck.onhost.reader import LiveReader
from hostcheck.onhost.recording import Recorder

LIMIT = 1.0
WHOLE = 0.5
COMMANDS = 8
ROUNDS = 9
APART = ("xpu_smi",)  # a tool of its own, timed apart


def shell_script(subset: tuple[str, ...]) -> tuple[str, int, int]:
    """The same reads as a shell script, with the number of its files and commands."""
    recorder = Recorder(LiveReader())
    gather(recorder, subset=subset)
    kept = recorder.recording()
    files = [
        path for path, content in kept["files"].items() if not path.endswith("/") and content != {"error": "ENODATA"}
    ]
    commands = list(kept["commands"])
    lines = [f"cat {shlex.quote(path)} >/dev/null 2>&1" for path in files]
    lines += [f"LC_ALL=C {command} >/dev/null 2>&1" for command in commands]
    return "\n".join([*lines, "true"]), len(files), len(commands)


def timed(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def main() -> int:
    """Print the table. Returns 1 on a miss."""
    missed = []
    print(f"{'subset':<12} {'files':>5} {'cmds':>4} {'gather ms':>10} {'sh ms':>9} {'ratio':>6}")
    for name in [*(group for group in GROUPS if group not in APART), "all"]:
        subset = () if name == "all" else (name,)
        script, files, commands = shell_script(subset)
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(timed(lambda chosen=subset: gather(LiveReader(), Options(xpu_smi="never"), chosen)))
            theirs.append(timed(lambda text=script: subprocess.run(["sh", "-c", text], check=True)))
        mine, other = statistics.median(ours), statistics.median(theirs)
        print(f"{name:<12} {files:>5} {commands:>4} {mine * 1e3:>10.1f} {other * 1e3:>9.1f} {mine / other:>6.2f}")
        if name == "all" and mine / other > LIMIT:
            missed.append(f"all: ratio {mine / other:.2f}, wanted at most {LIMIT}")
        if name == "all" and (mine > WHOLE or commands > COMMANDS):
            missed.append(f"all: {mine:.2f} s with {commands} commands, wanted {WHOLE} s and {COMMANDS}")
    for line in missed:
        print(f"MISSED {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
