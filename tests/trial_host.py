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

SMALL = Plan(sham=8, looks=(8,), block_s=0.001, settle_s=0.0, warm_s=0.0, workers=1)


def stand_in(path: Path, slower_by: dict[str, float] | None = None, file: str = "", block_s: float = 0.0) -> list[str]:
    """Write the program; return the command. slower_by: factor by the text of ``file``, which is read in each block.

    block_s: seconds that a block really takes (a trial that is killed should be in the middle of one).
    """
    source = fake.source(DEVICE="cpu", CARD={"index": 0, "name": "made up", "uuid": ""})
    source = source.replace(
        "return float(open(FACTOR_FILE).read()) if FACTOR_FILE else 1.0",
        f"text = open({file!r}).read().strip() if {file!r} else ''\n"
        f"    return {slower_by or {}!r}.get(text, 1.0)",
    )
    source = source.replace("        blocks += 1\n", f"        blocks += 1\n        time.sleep({block_s})\n")
    head = "import sys\nsys.stdin.buffer.read(int(sys.stdin.buffer.readline()))\n"
    path.write_text(head + source)
    return [*fake.PYTHON, str(path)]


def request(command: list[str], *wishes: trials.Wish, plan: Plan = SMALL, **more: Any) -> trials.Request:
    """A request for a trial on the CPU."""
    measure = probing.Request(command=command, device="cpu", pin=False, seed=5, ranks=0, limits=fake.PATIENT)
    return trials.Request(measure, wishes, plan=plan, **more)
