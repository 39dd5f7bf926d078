"""The made-up worker as a program of its own: what a playbook may be given in place of a Python with torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests import fake_worker as fake

# The session sends its own worker's text first: its length in one line, then the text. It is read and thrown away.
SWALLOW = """
import sys
sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
"""
CPU = {"DEVICE": "cpu", "CARD": {"index": 0, "name": "x86_64"}}
FACTOR = "def factor():\n    return float(open(FACTOR_FILE).read()) if FACTOR_FILE else 1.0\n"


def command(path: Path, factor: str = "    return 1.0\n", python: str = sys.executable, **settings: Any) -> list[str]:
    """Write a worker to a file and return the command that runs it.

    factor: body of the function that gives the factor of all samples of a block; it may read files and write them.
    settings: as for `fake_worker.source`.
    """
    path.write_text(text(factor, **settings))
    return [python, str(path)]


def text(factor: str = "    return 1.0\n", **settings: Any) -> str:
    """Return the program; it takes the arguments that Python would, and ignores them."""
    source = fake.source(**{**CPU, **settings})
    assert FACTOR in source
    return SWALLOW + source.replace(FACTOR, f"def factor():\n{factor}")
