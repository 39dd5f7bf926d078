"""What a trial keeps on the host while it runs: one line of JSON for everything it learns, in a folder of its own.

``/var/lib/hostcheck/trials/ID/`` (0700) holds ``receipt.jsonl`` (0600, appended) and the way back (`restorer`). A trial
that ends removes it once its receipt was handed over. One that was killed leaves it, and the next run, or ``state:
collect``, makes a receipt of it that says ``interrupted``.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from typing import Any

from ..probe import receipt as receipts
from ..settings.engine import STATE_FOLDER, Host
from ..settings.files import why
from . import restorer

FOLDER = f"{STATE_FOLDER}/trials"
LINES, SEALED = "receipt.jsonl", "receipt.json"
KILLED = "the process of the trial ended without a word (killed, or the host went down)"


class Journal:
    """The file of one trial. Use `keep` as the session's `Kept`."""

    def __init__(self, host: Host, name: str = "") -> None:
        """Make the folder. Raises Failed where that is refused."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        self.host = host
        self.folder = f"{FOLDER}/{name or f'{stamp}-{os.getpid()}'}"
        host.writer.make_folders(f"{self.folder}/{LINES}", mode=0o700)
        self.real = host.writer.real(self.folder)
        try:
            for folder in (host.writer.real(FOLDER), self.real):
                os.chmod(folder, 0o700)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(os.path.join(self.real, LINES), flags, 0o600)
        except OSError as error:
            raise why(error, self.folder) from error

    def keep(self, kind: str, record: Mapping[str, Any]) -> None:
        """Append one line; it is on the disk when this returns."""
        line = json.dumps({"kind": kind, "record": record}, separators=(",", ":"), allow_nan=False) + "\n"
        data = line.encode()
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)

    def seal(self, receipt: Mapping[str, Any]) -> None:
        """Keep the whole receipt, in case that nobody takes it over."""
        restorer.write(os.path.join(self.real, SEALED), dict(receipt))

    def close(self) -> None:
        os.close(self._file)


def names(host: Host) -> tuple[str, ...]:
    """Names of the trials that left something, oldest first."""
    return tuple(
        path.rpartition("/")[2] for path in host.reader.children(FOLDER) if host.reader.names(path).value is not None
    )


def take(host: Host, name: str) -> tuple[dict[str, Any] | None, list[str]]:
    """Put back what a trial that is over left, and return its receipt (None: it had not begun) and what is not back.

    The caller holds the lock, so that nobody runs a trial now.
    """
    folder = host.writer.real(f"{FOLDER}/{name}")
    problems = restorer.finish(folder, "found by the next run")
    try:
        with open(os.path.join(folder, SEALED), encoding="utf-8") as file:
            return dict(json.load(file)), problems
    except (FileNotFoundError, ValueError):
        pass
    receipt = replay(os.path.join(folder, LINES))
    if receipt is None:
        return None, problems
    return interrupted(receipt, *_ended(folder, problems)), problems


def _ended(folder: str, problems: list[str]) -> tuple[str, str, str]:
    """Why it was interrupted, what did not come back, and when it ended."""
    ended = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(os.stat(os.path.join(folder, LINES)).st_mtime))
    text = KILLED
    try:
        with open(os.path.join(folder, restorer.DONE), encoding="utf-8") as file:
            done = json.load(file)
    except (FileNotFoundError, ValueError):
        return text, "; ".join(problems), ended
    text += f"; {done['why']}" if done["rebooted"] else f"; values put back at {done['when']}: {done['why']}"
    return text, "; ".join(problems or done["problems"]), ended


def remove(host: Host, name: str) -> None:
    """Remove what a trial left; a way back that still has something to do is kept."""
    folder = host.writer.real(f"{FOLDER}/{name}")
    if not os.path.exists(os.path.join(folder, restorer.PLAN)):
        shutil.rmtree(folder, ignore_errors=True)
    for path in (FOLDER, STATE_FOLDER):
        host.writer.remove_folder(path)


def replay(path: str) -> dict[str, Any] | None:
    """The receipt so far from its lines; None without a head. A last line that was cut is left out."""
    receipt: dict[str, Any] | None = None
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.readlines()
    except FileNotFoundError:
        return None
    for line in lines:
        try:
            one = json.loads(line)
        except ValueError:
            break
        kind, record = one["kind"], one["record"]
        if kind == "head":
            receipt = record
        elif receipt is None:
            break
        elif kind == "begun":
            receipt["begun"].update(record)
        elif kind == "worker":
            workers = receipt["workers"]
            if workers and not workers[-1]["launches"] and record["launches"]:
                workers.pop()  # the same start, now complete
            workers.append(record)
        else:
            receipt[{"block": "blocks", "failure": "failures"}[kind]].append(record)
    return receipt


def interrupted(receipt: Mapping[str, Any], text: str, restore: str, ended_at: str) -> dict[str, Any]:
    """Seal a receipt so far: it says what ended it, and that nothing of it may be quoted."""
    return receipts.seal({**receipt, "interrupted": text, "restore": restore, "ended_at": ended_at})
