"""Trials without torch: a program in place of its Python that answers like the worker, and the text around it.

The module starts ``command -u -c LOADER`` and sends the worker's text; the stand-in reads that and does not run it. How
slow it is depends on a file that a toggle writes, so a trial has a known outcome.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hostcheck.onhost.probe import host as probing
from hostcheck.onhost.probe.schedule import Plan
from hostcheck.onhost.trials import run as trials
from tests import fake_worker as fake
from tests.settings_host import Tree

# The stand-in answers at once, so the evidence is read when it has: a block never takes its four seconds.
SMALL = Plan(sham=8, looks=(8,), block_s=4.0, settle_s=0.0, warm_s=0.0, workers=1)


PERFORMANCE = trials.Wish("cpu_governor", {"governor": "performance"})
POLICIES = "/sys/devices/system/cpu/cpufreq"
GOVERNOR = f"{POLICIES}/policy0/scaling_governor"
CLOCK = {"performance": "3800000", "schedutil": "2100000", "powersave": "800000"}


def stand_in(
    path: Path, file: str = "", factors: dict[str, float] | None = None, block_s: float = 0.0, extra: str = ""
) -> list[str]:
    """Write the program; return the command.

    file: read at every block; factors: how slow the worker is by its text. block_s: seconds that a block really takes
    (a trial that is killed should be in the middle of one). extra: code that runs at every block, with that text in
    ``text``.
    """
    source = fake.source(DEVICE="cpu", CARD={"index": 0, "name": "made up", "uuid": ""})
    source = source.replace(
        "return float(open(FACTOR_FILE).read()) if FACTOR_FILE else 1.0",
        f"return {factors or {}!r}.get(text, 1.0)",
    )
    reads = f"open({file!r}).read().strip()" if file else "''"
    source = source.replace(
        "        blocks += 1\n",
        f"        blocks += 1\n        text = {reads}\n        time.sleep({block_s})\n"
        + "".join(f"        {line}\n" for line in extra.splitlines()),
    )
    head = "import sys\nsys.stdin.buffer.read(int(sys.stdin.buffer.readline()))\n"
    path.write_text(head + source)
    return [*fake.PYTHON, str(path)]


def governed(tree: Tree, faster: float = 0.8, **more: Any) -> list[str]:
    """A stand-in on a host with cpufreq: so much faster under performance, and its clocks follow the governor."""
    follow = (
        f"for one in __import__('glob').glob({str(tree.path(POLICIES))!r} + '/policy*/scaling_cur_freq'):\n"
        f"    open(one, 'w').write({CLOCK!r}[text])"
    )
    extra = more.pop("extra", "")
    return stand_in(
        tree.path("/worker.py"), str(tree.path(GOVERNOR)), {"performance": faster}, extra=f"{follow}\n{extra}", **more
    )


def request(command: list[str], *wishes: trials.Wish, plan: Plan = SMALL, **more: Any) -> trials.Request:
    """A request for a trial on the CPU."""
    measure = probing.Request(command=command, device="cpu", pin=False, seed=5, ranks=0, limits=fake.PATIENT)
    return trials.Request(measure, wishes, plan=plan, **more)
