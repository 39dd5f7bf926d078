"""Every example in a docstring of the package and of the tests' own helpers gives what it says."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = re.compile(r"(?m)^\s*>>> (?!.*\+SKIP)")
FILES = sorted(
    path
    for folder in ("hostcheck", "tests")
    for path in (ROOT / folder).rglob("*.py")
    if EXAMPLE.search(path.read_text(encoding="utf-8")) and not path.name.startswith("test_")
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_examples_of(path: Path) -> None:
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    ended = doctest.testmod(module)
    assert ended.attempted
    assert ended.failed == 0
