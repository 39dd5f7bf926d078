"""Recordings: the raw files and command outputs of one host, as one JSON document (``hostcheck/recording/1``).

A recording replays on any machine: `RecordedReader` gives every reading that the host gave. `Recorder`
makes one by standing around another reader and keeping exactly what was read, no more.

A directory may stand for a host as well (`below`): files and links as they are, commands as executables, and
what a directory cannot hold (refusals, owners, recorded calls, the time) in a file ``.hostcheck.json`` at its
top, which is a recording like any other and wins over the directory.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any, Callable

from .reader import (
    BLOB_LIMIT,
    COMMAND_TIMEOUT,
    FILE_LIMIT,
    LOG_TIMEOUT,
    OUTPUT_LIMIT,
    REASONS,
    SYMLINK_LIMIT,
    Lines,
    LiveReader,
    Opened,
    Output,
    Pieces,
    Reader,
    Reading,
    Stat,
    as_text,
    parse_digest,
    refused,
)

SCHEMA = "hostcheck/recording/1"
SIDECAR = ".hostcheck.json"
PARTS = ("files", "links", "stats", "statvfs", "commands", "calls")
KEYS = ("schema", "taken_at", "origin", "samples", *PARTS)


def utc(seconds: float) -> str:
    """Time as it stands in every file of the toolkit.

    >>> utc(0)
    '1970-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str) -> float:
    """The reverse of `utc`; a fraction and an offset are accepted. Raises ValueError."""
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return moment.replace(tzinfo=moment.tzinfo or timezone.utc).timestamp()


def empty(taken_at: float, origin: str = "recorded") -> dict[str, Any]:
    """A recording that holds nothing yet."""
    parts: dict[str, Any] = {part: {} for part in PARTS}
    return {"schema": SCHEMA, "taken_at": utc(taken_at), "origin": origin, **parts, "samples": []}


def checked(document: Any) -> dict[str, Any]:
    """The document, if it is a recording. Raises ValueError that says what is wrong and where."""
    if not isinstance(document, dict):
        raise ValueError(f"a recording is a JSON object, this is {type(document).__name__}")
    if document.get("schema") != SCHEMA:
        raise ValueError(f"schema is {document.get('schema')!r}, wanted {SCHEMA!r}")
    unknown = sorted(set(document) - set(KEYS))
    if unknown:
        raise ValueError(f"unknown keys {', '.join(unknown)}; known are {', '.join(KEYS)}")
    try:
        seconds(document["taken_at"])
    except (KeyError, ValueError, TypeError, AttributeError):
        raise ValueError(f"taken_at is {document.get('taken_at')!r}, wanted a time such as {utc(0)!r}") from None
    for part in PARTS:
        if not isinstance(document.get(part, {}), dict):
            raise ValueError(f"{part} is not an object")
    for path, content in document.get("files", {}).items():
        known = isinstance(content, str) or (isinstance(content, dict) and set(content) <= {"base64", "error"})
        if not path.startswith("/") or not known:
            raise ValueError(f"files[{path!r}]: wanted an absolute path with a text, base64 or an error")
    for path, target in document.get("links", {}).items():
        if not path.startswith("/") or not isinstance(target, str) or not target:
            raise ValueError(f"links[{path!r}]: wanted an absolute path and a target")
    for argv, output in document.get("commands", {}).items():
        if not isinstance(output, dict) or not set(output) <= {"rc", "stdout", "stderr", "error"}:
            raise ValueError(f"commands[{argv!r}]: wanted rc, stdout and stderr")
    samples = document.get("samples", [])
    if not isinstance(samples, list):
        raise ValueError("samples is not a list")
    for number, sample in enumerate(samples):
        known = isinstance(sample, dict) and set(sample) == {"after_s", "files"} and isinstance(sample["files"], dict)
        if not known or type(sample["after_s"]) not in (int, float) or not 0 < sample["after_s"] < float("inf"):
            raise ValueError(f"samples[{number}]: wanted after_s, seconds after the first read, and files")
        for path, content in sample["files"].items():
            if not path.startswith("/") or not isinstance(content, (str, dict)):
                raise ValueError(f"samples[{number}].files[{path!r}]: wanted an absolute path with a text or an error")
    return document


def load(text: str) -> dict[str, Any]:
    """Parse a recording. Raises ValueError (also for text that is not JSON)."""
    return checked(json.loads(text))


def dump(recording: dict[str, Any]) -> str:
    """The text of a recording: sorted, indented, so that two recordings can be compared line by line."""
    return json.dumps(recording, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def as_content(data: bytes) -> str | dict[str, str]:
    """A file's content as a recording holds it: as text where that is possible.

    >>> as_content(b"1\\n"), as_content(b"\\0")
    ('1\\n', {'base64': 'AA=='})
    """
    found = as_text(data, "")
    return found.value if found.value is not None else {"base64": base64.b64encode(data).decode("ascii")}


def error_reading(name: str, source: str) -> Reading[Any]:
    """The reading that a recorded refusal stands for: an errno name such as EACCES, or a reason."""
    number = getattr(errno, name, None)
    if isinstance(number, int):
        return refused(OSError(number, os.strerror(number)), source)
    reason = name if name in REASONS else "io"
    return Reading(None, source, reason, f"recorded as {name}")


class RecordedReader(Reader):
    """Reads a recording; what is not in it is absent, or is asked of the reader `beneath` it."""

    def __init__(self, recording: dict[str, Any], beneath: Reader | None = None) -> None:
        self.recording = recording
        self.beneath = beneath
        self.live = beneath is not None and beneath.live
        self._files: dict[str, Any] = {}
        self._links: dict[str, str] = dict(recording.get("links", {}))
        self._folders: dict[str, set[str]] = {"/": set()}
        for path, content in recording.get("files", {}).items():
            if path.endswith("/"):
                self._folders.setdefault(path.rstrip("/") or "/", set())
            else:
                self._files[path] = content
            self._imply(path.rstrip("/"))
        for path in self._links:
            self._imply(path)

    def _imply(self, path: str) -> None:
        while path not in ("", "/"):
            parent, _, name = path.rpartition("/")
            parent = parent or "/"
            children = self._folders.setdefault(parent, set())
            if name in children:
                return
            children.add(name)
            path = parent

    def _walk(self, path: str, follow_last: bool = True) -> str:
        """The path with the recorded links resolved. Raises OSError for a loop."""
        todo = [part for part in path.split("/") if part]
        done: list[str] = []
        followed = 0
        while todo:
            part = todo.pop(0)
            if part == "..":
                done = done[:-1]
                continue
            target = self._links.get("/".join(["", *done, part])) if part != "." and (todo or follow_last) else None
            if target is not None:
                followed += 1
                if followed > SYMLINK_LIMIT:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                done = [] if target.startswith("/") else done
                todo = [piece for piece in target.split("/") if piece] + todo
            elif part != ".":
                done.append(part)
        return "/" + "/".join(done)

    def taken_at(self) -> float:
        return seconds(self.recording["taken_at"])

    def data(self, path: str, limit: int = FILE_LIMIT) -> Reading[bytes]:
        try:
            real = self._walk(path)
        except OSError as error:
            return refused(error, path)
        content = self._files.get(real)
        if content is None:
            if self.beneath is not None:
                return self.beneath.data(path, limit)
            number = errno.EISDIR if real in self._folders else errno.ENOENT
            return refused(OSError(number, os.strerror(number)), path)
        if isinstance(content, dict) and "error" in content:
            return error_reading(content["error"], path)
        data = base64.b64decode(content["base64"]) if isinstance(content, dict) else content.encode("utf-8")
        if len(data) > limit:
            return Reading(None, path, "too_large", f"more than {limit} bytes")
        return Reading(data, path)

    def link(self, path: str) -> Reading[str]:
        try:
            real = self._walk(path, follow_last=False)
        except OSError as error:
            return refused(error, path)
        if real in self._links:
            return Reading(self._links[real], path)
        if self.beneath is not None:
            return self.beneath.link(path)
        if real in self._files or real in self._folders:
            return Reading(None, path, "not_understood", "is not a symbolic link")
        return refused(OSError(errno.ENOENT, os.strerror(errno.ENOENT)), path)

    def names(self, path: str) -> Reading[tuple[str, ...]]:
        try:
            real = self._walk(path)
        except OSError as error:
            return refused(error, path)
        content = self._files.get(real)
        if isinstance(content, dict) and "error" in content:
            return error_reading(content["error"], path)
        recorded = self._folders.get(real)
        below = self.beneath.names(path) if self.beneath is not None else None
        if recorded is None:
            if below is not None:
                return below
            number = errno.ENOTDIR if real in self._files else errno.ENOENT
            return refused(OSError(number, os.strerror(number)), path)
        together = set(recorded) | set((below.value or ()) if below is not None else ())
        return Reading(tuple(sorted(together - {SIDECAR} if real == "/" else together)), path)

    def stat(self, path: str) -> Reading[Stat]:
        try:
            real = self._walk(path)
        except OSError as error:
            return refused(error, path)
        found = self.recording.get("stats", {}).get(real)
        if found is not None:
            mode = found["mode"]
            major, minor = found.get("rdev") or (0, 0)
            return Reading(
                Stat(
                    int(mode, 8) if isinstance(mode, str) else mode,
                    found["uid"],
                    found["gid"],
                    (major, minor),
                    found.get("changed", 0),
                ),
                path,
            )
        if self.beneath is not None:
            return self.beneath.stat(path)
        return refused(OSError(errno.ENOENT, os.strerror(errno.ENOENT)), path)

    def space(self, path: str) -> Reading[tuple[int, int]]:
        found = self.recording.get("statvfs", {}).get(path)
        if found is not None:
            return Reading((found["size"], found["free"]), path)
        if self.beneath is not None and "statvfs" not in self.recording:
            return self.beneath.space(path)
        return Reading(None, path, "absent", "not in the recording")

    def resolve(self, path: str) -> Reading[str]:
        try:
            real = self._walk(path)
        except OSError as error:
            return refused(error, path)
        if real in self._files or real in self._folders:
            return Reading(real, path)
        if self.beneath is not None:
            return self.beneath.resolve(path)
        return refused(OSError(errno.ENOENT, os.strerror(errno.ENOENT)), path)

    def run(self, argv: Sequence[str], timeout: float = COMMAND_TIMEOUT, limit: int = OUTPUT_LIMIT) -> Reading[Output]:
        source = shlex.join(argv)
        found = self.recording.get("commands", {}).get(source)
        if found is None:
            if self.beneath is not None:
                return self.beneath.run(argv, timeout, limit)
            return Reading(None, source, "tool_missing", f"{source} is not in the recording")
        if "error" in found:
            return error_reading(found["error"], source)
        if found["rc"] in (126, 127):
            return Reading(None, source, "tool_missing", found.get("stderr", ""))
        return Reading(Output(found["rc"], found.get("stdout", ""), found.get("stderr", "")), source)

    def lines(self, argv: Sequence[str], timeout: float = LOG_TIMEOUT) -> Lines:
        if self.beneath is not None and shlex.join(argv) not in self.recording.get("commands", {}):
            return self.beneath.lines(argv, timeout)
        ran = self.run(argv)
        text = ran.value.stdout if ran.value is not None else ""
        lines = text[:-1].split("\n") if text.endswith("\n") else text.split("\n") if text else []
        return Lines(ran.source, iter(lines), lambda: ran.then(lambda output: Output(output.rc, "", output.stderr)))

    def later(self, seconds: float) -> tuple[float, Reader] | None:
        samples = self.recording.get("samples") or []
        if not samples:
            return self.beneath.later(seconds) if self.beneath is not None else None
        last = max(samples, key=lambda sample: float(sample["after_s"]))
        files = {**self.recording.get("files", {}), **last["files"]}
        return last["after_s"], RecordedReader({**self.recording, "files": files, "samples": []}, self.beneath)

    def has_recorded(self, argv: Sequence[str]) -> bool:
        return shlex.join(argv) in self.recording.get("commands", {})

    def opened(self, path: str) -> Reading[Opened]:
        try:
            is_here = self.beneath is None or self._walk(path) in self._files
        except OSError as error:
            return refused(error, path)
        if self.beneath is not None and not is_here:
            return self.beneath.opened(path)
        return super().opened(path)

    def filtered(
        self, argv: Sequence[str], given: bytes | Opened, at: int = 0, timeout: float = LOG_TIMEOUT
    ) -> Pieces[bytes]:
        if self.beneath is not None:
            return self.beneath.filtered(argv, given, at, timeout)
        return super().filtered(argv, given, at, timeout)

    def call(self, name: str) -> Reading[Any]:
        calls = self.recording.get("calls", {})
        if name in calls:
            return Reading(calls[name], name)
        return Reading(None, name, "tool_missing", "not recorded, and never asked of the machine that audits")

    def digest(self, path: str, kind: str = "md5", limit: int = BLOB_LIMIT) -> Reading[str]:
        try:
            real = self._walk(path)
        except OSError as error:
            return refused(error, path)
        content = self._files.get(real)
        if isinstance(content, dict) and content.get("error", "ENODATA") != "ENODATA":
            return error_reading(content["error"], path)
        found = self.recording.get("calls", {}).get(f"{kind} {real}")
        if found is not None:
            return Reading(found, path).then(parse_digest)
        if self.beneath is not None and content is None:
            return self.beneath.digest(path, kind, limit)
        return Reading(None, path, "not_asked", "no digest of it is in the recording")


def below(root: str) -> Reader:
    """The reader of a root: this machine for ``/``, else a directory with its ``.hostcheck.json`` if it has one.

    Raises ValueError when the directory does not exist or that file is not a recording.
    """
    if not os.path.isdir(root):
        raise ValueError(f"{root} is not a directory")
    live = LiveReader(root)
    if live.is_root:
        return live
    try:
        with open(os.path.join(root, SIDECAR), encoding="utf-8") as file:
            document = file.read()
    except FileNotFoundError:
        return live
    try:
        return RecordedReader(load(document), live)
    except ValueError as error:
        raise ValueError(f"{os.path.join(root, SIDECAR)}: {error}") from error


class Recorder(Reader):
    """Stands around a reader and keeps what was read.

    Contents are kept under their resolved path, and every link on the way, so that the recording is a tree
    that can be laid out in a directory again.
    """

    def __init__(self, inner: Reader) -> None:
        self.inner = inner
        self.live = inner.live
        self.kept: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
        self._listed: dict[str, tuple[str, ...]] = {}
        self._resolved: dict[str, str] = {"": ""}
        self._read: dict[str, bytes] = {}
        self._taken_at = float(int(inner.taken_at()))  # one moment, in whole seconds as in the recording
        self._second: tuple[float, Recorder] | None = None
        self._samples: list[dict[str, Any]] = []

    def later(self, seconds: float) -> tuple[float, Reader] | None:
        second = self.inner.later(seconds)
        if second is None:
            return None
        self._second = (second[0], Recorder(second[1]))
        return self._second

    def samples(self) -> list[dict[str, Any]]:
        """Second reads, as they stand in a recording: files that were read again."""
        if self._second is None:
            return self._samples
        after, again = self._second
        return [*self._samples, {"after_s": round(after, 3), "files": dict(again.kept["files"])}]

    def taken_at(self) -> float:
        return self._taken_at

    def _real(self, path: str, follow_last: bool = True, depth: int = 0) -> str:
        """The resolved path, every link on the way kept."""
        path = path.rstrip("/")
        if follow_last and path in self._resolved:
            return self._resolved[path]
        parent, _, name = path.rpartition("/")
        here = f"{self._real(parent, depth=depth)}/{name}" if parent else f"/{name}"
        target = self.inner.link(here).value if follow_last else None
        if target is None or depth > SYMLINK_LIMIT:
            real = here
        else:
            self.kept["links"][here] = target
            absolute = target if target.startswith("/") else f"{here.rpartition('/')[0]}/{target}"
            real = self._real(os.path.normpath(absolute), depth=depth + 1)
        if follow_last:
            self._resolved[path] = real
        return real

    def _keep_error(self, path: str, reading: Reading[Any]) -> None:
        name = reading.detail.partition(":")[0]
        if reading.unread != "absent":
            self.kept["files"][path] = {"error": name if hasattr(errno, name) else reading.unread}

    def data(self, path: str, limit: int = FILE_LIMIT) -> Reading[bytes]:
        real = self._real(path)
        if real in self._read and len(self._read[real]) <= limit:
            return Reading(self._read[real], path)  # read once: a recording has one value for each file
        reading = self.inner.data(path, limit)
        if reading.value is None:
            self._keep_error(real, reading)
            return reading
        self._read[real] = reading.value
        self.kept["files"][real] = as_content(reading.value)
        return reading

    def digest(self, path: str, kind: str = "md5", limit: int = BLOB_LIMIT) -> Reading[str]:
        real = self._real(path)
        reading = self.inner.digest(path, kind, limit)
        if reading.value is not None:
            self.kept["calls"][f"{kind} {real}"] = reading.value
        return reading

    def link(self, path: str) -> Reading[str]:
        reading = self.inner.link(path)
        if reading.value is not None:
            self.kept["links"][self._real(path, follow_last=False)] = reading.value
        return reading

    def names(self, path: str) -> Reading[tuple[str, ...]]:
        real = self._real(path)
        reading = self.inner.names(path)
        if reading.value is None:
            self._keep_error(real, reading)
        else:
            self._listed[real] = reading.value
        return reading

    def stat(self, path: str) -> Reading[Stat]:
        reading = self.inner.stat(path)
        if reading.value is not None:
            found = reading.value
            self.kept["stats"][self._real(path)] = {
                "mode": f"{found.mode:o}",
                "uid": found.uid,
                "gid": found.gid,
                "rdev": list(found.rdev),
                **({"changed": found.changed} if found.changed else {}),
            }
        return reading

    def space(self, path: str) -> Reading[tuple[int, int]]:
        reading = self.inner.space(path)
        if reading.value is not None:
            self.kept["statvfs"][path] = {"size": reading.value[0], "free": reading.value[1]}
        return reading

    def resolve(self, path: str) -> Reading[str]:
        reading = self.inner.resolve(path)
        if reading.value is not None:
            self._listed.setdefault(self._real(path), ())
        return reading

    def _keep_command(self, source: str, reading: Reading[Output], stdout: str | None = None) -> None:
        if reading.value is not None:
            self.kept["commands"][source] = {
                "rc": reading.value.rc,
                "stdout": reading.value.stdout if stdout is None else stdout,
                "stderr": reading.value.stderr,
            }
        elif reading.unread != "tool_missing":
            self.kept["commands"][source] = {"error": reading.unread}

    def keep_command(self, reading: Reading[Output], reduce: Callable[[str], str]) -> None:
        stdout = reduce(reading.value.stdout) if reading.value is not None else None
        self._keep_command(reading.source, reading, stdout)

    def run(self, argv: Sequence[str], timeout: float = COMMAND_TIMEOUT, limit: int = OUTPUT_LIMIT) -> Reading[Output]:
        reading = self.inner.run(argv, timeout, limit)
        self._keep_command(reading.source, reading)
        return reading

    def lines(self, argv: Sequence[str], timeout: float = LOG_TIMEOUT) -> Lines:
        inner = self.inner.lines(argv, timeout)
        kept: list[str] = []

        def lines() -> Iterator[str]:
            for line in inner:
                kept.append(line)
                yield line

        def end() -> Reading[Output]:
            ended = inner.end
            self._keep_command(inner.source, ended, "".join(f"{line}\n" for line in kept))
            return ended

        return Lines(inner.source, lines(), end)

    def opened(self, path: str) -> Reading[Opened]:
        reading = self.inner.opened(path)
        if reading.value is None:
            self._keep_error(self._real(path), reading)
        return reading

    def filtered(
        self, argv: Sequence[str], given: bytes | Opened, at: int = 0, timeout: float = LOG_TIMEOUT
    ) -> Pieces[bytes]:
        return self.inner.filtered(argv, given, at, timeout)

    @property
    def unrecorded(self) -> Reader:
        return self.inner

    def keep(self, path: str, content: Reading[bytes] | Reading[str]) -> None:
        real, kept = self._real(path), content.value
        if kept is None:
            self._keep_error(real, content)
        else:
            self.kept["files"][real] = kept if isinstance(kept, str) else as_content(kept)

    def call(self, name: str) -> Reading[Any]:
        reading = self.inner.call(name)
        if reading.value is not None:
            self.kept["calls"][name] = reading.value
        return reading

    def take(self) -> Any:
        """What was kept, for a parent process; see `merge`."""
        return self.kept, self._listed, self.samples()

    def merge(self, taken: Any) -> None:
        """Add what a child process kept."""
        kept, listed, self._samples = taken
        for part in PARTS:
            self.kept[part].update(kept[part])
        self._listed.update(listed)

    def recording(self, taken_at: float | None = None) -> dict[str, Any]:
        """The recording of all that was read. Names that were listed but not read keep their place."""
        recording = empty(time.time() if taken_at is None else taken_at)
        for part in PARTS:
            recording[part] = dict(self.kept[part])
        recording["samples"] = self.samples()
        files, links = recording["files"], recording["links"]
        folders = {path.rpartition("/")[0] for path in (*files, *links)}
        for path in tuple(folders):
            while path:
                folders.add(path)
                path = path.rpartition("/")[0]
        for folder, names in self._listed.items():
            for path in (f"{folder}/{name}" for name in names):
                if path in files or path in links or path in folders:
                    continue
                target = self.inner.link(path).value
                if target is not None:
                    links[path] = target
                elif self.inner.names(path).unread not in ("absent", "io"):
                    files[f"{path}/"] = ""  # a directory, also one that refuses to be listed
                else:
                    files[path] = {"error": "ENODATA"}  # there, but nothing asked for its content
            if folder not in folders and not names and folder not in files:
                files[f"{folder}/"] = ""
        return recording
