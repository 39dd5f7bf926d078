"""Receipts that came back from a host: checked, and kept as files on the controller."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .. import receipts
from . import probe, store, trial

FOLDER = "reports/receipts"


def save(
    host: str, found: Iterable[Any], folder: str | Path | None
) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """Write receipts to files; return them, their paths, and what does not follow from their samples.

    Raises NotAReceipt, before anything is written, when one of them is none.
    """
    try:
        checked = [receipts.parse(json.dumps(one)) for one in found]
    except TypeError as error:
        raise receipts.NotAReceipt(str(error)) from error
    place = Path(folder or FOLDER)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    files, wrong = [], []
    for one in checked:
        path = place / probe.file_name(host, one)
        store.write(path, json.dumps(one, separators=(",", ":")) + "\n")
        files.append(str(path))
        wrong += [f"{path} does not verify: {problem}" for problem in receipts.verify(one)]
    return checked, files, wrong


def trial_lines(receipt: dict[str, Any]) -> list[str]:
    """What there is to say about one trial, for a terminal of 80 columns."""
    return trial.lines(receipt)


def failures(results: Sequence[dict[str, Any]]) -> list[str]:
    """Reasons for which a trial's task fails: its figures may not be quoted."""
    return [
        f"invalid: {reason}"
        for one in results
        if one["verdict"]["word"] == "invalid"
        for reason in one["verdict"]["reasons"]
    ]
