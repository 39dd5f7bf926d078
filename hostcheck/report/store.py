"""Reports on disk: ``reports/<UTC>/{summary.json,hosts/NAME.json}`` and the link ``reports/latest``.

Reports hold what was read from hosts, so folders and files are the user's own (0700, 0600).
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..assess import SCHEMA, Report, report_from
from ..onhost.recording import utc

PRECEDENCE = (2, 1, 3, 0)
FOLDER = "reports"
run_name: str | None = None
"""Name of the run in progress: set by the callback before ansible forks, so that all workers write into one folder."""


@dataclass(frozen=True)
class Outcome:
    """How one host of a run ended. state: ``judged``, ``failed`` (its task failed) or ``unreachable``.

    exit: the code of this host; a host that could not be asked is 3 (could not tell), bad input is 2.
    """

    host: str
    state: str
    exit: int
    message: str = ""
    report: Report | None = None


def stamp(moment: float | None = None) -> str:
    """Name of a run's folder.

    >>> stamp(0)
    '19700101T000000Z'
    """
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(moment))


def total(exits: Iterable[int]) -> int:
    """The code of a run: the first of 2, 1, 3, 0 that any host has.

    >>> total([0, 3, 1])
    1
    """
    found = set(exits)
    return next((code for code in PRECEDENCE if code in found), 0)


def file_name(host: str) -> str:
    """A host's file name; anything but letters, digits, ``.``, ``_`` and ``-`` is written as its code.

    >>> file_name("gpu/1"), file_name("..")
    ('gpu%2f1', '%2e.')
    """
    safe = re.sub(r"[^\w.-]", lambda match: f"%{ord(match.group()):02x}", host, flags=re.ASCII)
    return f"%2e{safe[1:]}" if safe.startswith(".") else safe


def write(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file so that it is the old one or the new one, never half."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def new_run(base: Path, name: str) -> Path:
    """Make the folder of a run; a name that is taken gets a number behind it."""
    base.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        folder = base / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        (folder / "hosts").mkdir(mode=0o700)
        return folder
    raise FileExistsError(f"{base / name}: a thousand runs in one second")


def run_folder(base: Path) -> Path:
    """The folder of the run in progress, made on first use; one of its own where no run was announced."""
    if run_name is None:
        return new_run(base, stamp())
    folder = base / run_name
    base.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "hosts").mkdir(mode=0o700, exist_ok=True)
    return folder


def save(folder: Path, outcomes: Iterable[Outcome]) -> int:
    """Write all files of a run and point ``latest`` at it. Returns the run's code."""
    from .. import fleet  # it compares reports, so it stands above this module

    judged = sorted(outcomes, key=lambda outcome: outcome.host)
    reports = [outcome.report for outcome in judged if outcome.report is not None]
    between = fleet.of_run(reports)
    for outcome in judged:
        if outcome.report is not None:
            write(folder / "hosts" / f"{file_name(outcome.host)}.json", outcome.report.to_json())
    code = total([*(outcome.exit for outcome in judged), fleet.code(between)])
    summary = {
        "schema": SCHEMA,
        "written_at": utc(time.time()),
        "exit": code,
        "hosts": {
            outcome.host: {
                "state": outcome.state,
                "exit": outcome.exit,
                "message": outcome.message,
                "counts": outcome.report.counts if outcome.report else {},
                "file": f"hosts/{file_name(outcome.host)}.json" if outcome.report else None,
            }
            for outcome in judged
        },
        "fleet": fleet.to_plain(reports, between),
    }
    write(folder / "summary.json", json.dumps(summary, indent=1, sort_keys=True) + "\n")
    link = folder.parent / f".latest.{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    os.replace(link, folder.parent / "latest")
    return code


def load_host(path: Path) -> Report:
    """The report of one host. Raises ValueError that names the file; OSError when it cannot be read."""
    return report_from(_json(path))


def load(folder: Path) -> tuple[int, tuple[Outcome, ...]]:
    """A run from its folder. Raises ValueError that names the file and what is wrong with it."""
    path = folder / "summary.json"
    summary = _json(path)
    if not isinstance(summary, dict) or summary.get("schema") != SCHEMA or not isinstance(summary.get("hosts"), dict):
        raise ValueError(f"{path}: wanted a summary with schema {SCHEMA}")
    outcomes = []
    for host, entry in summary["hosts"].items():
        report = load_host(folder / entry["file"]) if entry.get("file") else None
        outcomes.append(Outcome(host, entry["state"], entry["exit"], entry.get("message", ""), report))
    return int(summary["exit"]), tuple(outcomes)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; run an audit first (make audit)") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: is not JSON: {error}") from error
