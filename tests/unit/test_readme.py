"""The README shows what the commands really print."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```console\n\$ ([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS: dict[str, str] = dict(BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8")))


def normal(text: str) -> str:
    """Times and values of the machine that ran the command replaced; what a live machine's findings are is its own."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME", text)
    text = re.sub(r"reports/\d{8}T\d{6}Z(-\d+)?", "reports/RUN", text)
    return re.sub(r"^localhost  TIME.*?^report:", "localhost  FINDINGS\nreport:", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("command", BLOCKS)
def test_block(command: str) -> None:
    outer = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # of the make that runs the tests
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    environment = {**environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_COLOR": "1"}
    ran = subprocess.run(
        shlex.split(command),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        stdin=subprocess.DEVNULL,
    )
    assert normal(ran.stdout) == normal(BLOCKS[command]), ran.stderr


def test_the_readme_shows_the_main_job() -> None:
    assert "make audit" in BLOCKS
    assert any("--recording" in command for command in BLOCKS)
