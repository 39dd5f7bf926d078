"""A program in place of a Python with torch: it takes the worker's source and answers as it is told to.

For playbooks, which start what ``latency_probe_command`` names. Its cards compute, join and are measured, with made-up
samples; a file of Python runs before it answers an operation, so that a card can be lost in the middle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests import fake_worker as fake

SKIP = "import sys\nsys.stdin.buffer.read(int(sys.stdin.buffer.readline()))\n"

# How a reply to one operation is spoilt, as FAIL_CODE.
LOST = 'say(reply="error", kind="device_lost", text="UR_RESULT_ERROR_DEVICE_LOST"); os._exit(0)'
HUNG = "time.sleep(900)"
DIED = "os._exit(9)"
WRONG = "SUM = 2097151.0"


def row(index: int, bdf: str) -> dict[str, Any]:
    """A device as torch lists it: Level Zero has its address in the UUID (hostcheck.onhost.probe.session)."""
    domain, bus, rest = bdf.split(":")
    return {
        "index": index,
        "name": "Intel(R) Arc(TM) Pro B70 Graphics",
        "uuid": f"868023e2-0000-{domain[2:]}{domain[:2]}-{bus}{rest[:2]}-{rest[-1]:0>2}0000000000",
    }


def text(cards: list[str], device: str = "xpu", **settings: Any) -> str:
    """The worker's text. cards: addresses, in torch's order. settings: see `fake_worker.source`."""
    rows = [row(index, bdf) for index, bdf in enumerate(cards)] or [{"index": 0, "name": "a CPU"}]
    made = fake.source(ROWS=rows, SUM=2097152.0, DEVICE=device, **settings)
    return made.replace('"card": CARD', '"card": ROWS[request["index"]]')


def program(path: Path, cards: list[str], device: str = "xpu", **settings: Any) -> list[str]:
    """Write the program and return the command that starts it."""
    path.write_text(SKIP + text(cards, device, **settings))
    return [*fake.PYTHON, str(path)]
