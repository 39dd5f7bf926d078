"""The only place that touches files, starts commands or calls psutil and pyudev.

Every read gives a `Reading`: a value with its source, or the reason why there is none. Nothing here
raises for what a host may do to us: a missing file, a refusal, a FIFO, an I/O error, a command that
floods its pipe or ignores SIGTERM each become a `Reading` without a value.

Three readers share one interface: `LiveReader` (this machine, or a directory given as its root),
`recording.RecordedReader` (a recording) and `recording.Recorder` (around either, keeps what was read).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import os
import re
import select
import selectors
import shlex
import signal
import stat as stat_module
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")

REASONS = (
    "absent",
    "permission",
    "io",
    "timeout",
    "not_text",
    "too_large",
    "tool_missing",
    "exit",
    "not_understood",
    "suspended",
    "faulted",
    "not_asked",
)

FILE_LIMIT = 4 << 20  # bytes; the largest file read on purpose is a kernel log below a root
BLOB_LIMIT = 8 << 20  # bytes; a file of firmware has some hundred KB
OUTPUT_LIMIT = 64 << 20  # bytes of stdout; a busy journal of one boot is some tens of MB
STDERR_LIMIT = 64 << 10
COMMAND_TIMEOUT = 10.0  # seconds
LOG_TIMEOUT = 60.0
LINE_LIMIT = 1 << 20
SEARCH_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
SYMLINK_LIMIT = 40  # as the kernel's own


@dataclass(frozen=True)
class Reading(Generic[T]):
    """One value taken from a host, or the reason why it could not be taken.

    value: the value; None exactly when `unread` is set.
    source: absolute path, or the command line, that it came from.
    unread: one of `REASONS`, or None when there is a value.
    detail: what was found instead, for a person; "" when there is a value.
    """

    value: T | None = None
    source: str = ""
    unread: str | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        if (self.value is None) == (self.unread is None):
            raise ValueError(f"a reading has a value or a reason, not {self.value!r} and {self.unread!r}")
        if self.unread is not None and self.unread not in REASONS:
            raise ValueError(f"unknown reason {self.unread!r}")

    @classmethod
    def no(cls, reason: str, detail: str = "", source: str = "") -> Reading[T]:
        """A reading without a value. Raises ValueError for a reason that is not in `REASONS`."""
        return cls(None, source, reason, detail)

    def then(self, function: Callable[[T], U]) -> Reading[U]:
        """Apply a parser to the value; its ValueError makes the reading `not_understood`.

        >>> Reading("7\\n", "/x").then(int).value
        7
        >>> Reading("seven", "/x").then(int).unread
        'not_understood'
        """
        if self.unread is not None:
            return Reading(None, self.source, self.unread, self.detail)
        assert self.value is not None
        try:
            return Reading(function(self.value), self.source)
        except ValueError as error:
            return Reading(None, self.source, "not_understood", shorten(str(error)))

    def or_(self, other: Reading[T]) -> Reading[T]:
        """This reading, or `other` when this one has no value and the other has."""
        return other if self.unread is not None and other.unread is None else self


@dataclass(frozen=True)
class Output:
    """What a finished command gave: exit status (negative: ended by that signal) and its texts."""

    rc: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Stat:
    """Owner and mode of a file. mode: type and permission bits; rdev: (major, minor) of a device node.

    changed: seconds since the epoch of the last change of its content or its place, 0 where that is not known. A
    package keeps the time at which a file was made, so the time of its content alone does not tell when it came.
    """

    mode: int
    uid: int
    gid: int
    rdev: tuple[int, int]
    changed: int = field(default=0, compare=False)


def shorten(text: str, limit: int = 200) -> str:
    """One line of at most `limit` characters, for a detail.

    >>> shorten("a\\n b", 10)
    'a b'
    """
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def reason_of(error: OSError) -> str:
    """The reason for an OSError.

    >>> reason_of(PermissionError(errno.EACCES, "no"))
    'permission'
    """
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO):
        return "absent"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "permission"
    return "io"


def refused(error: OSError, source: str) -> Reading[Any]:
    """The reading that stands for an OSError."""
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    return Reading(None, source, reason_of(error), f"{name}: {os.strerror(error.errno or 0)}")


def as_text(data: bytes, source: str) -> Reading[str]:
    """Decode a file. A NUL byte or bytes that are not UTF-8 make it `not_text`."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return Reading(None, source, "not_text", f"not UTF-8 at byte {error.start}")
    return Reading(None, source, "not_text", "has a NUL byte") if "\0" in text else Reading(text, source)


DIGESTS = {"md5": 32, "sha256": 64}  # dpkg's and rpm's; digits


def digest_of(data: bytes, kind: str = "md5") -> str:
    """A digest, of a kind of `DIGESTS`. With its name before it, it is not taken for a machine id and redacted.

    >>> digest_of(b"")
    'md5-d41d8cd98f00b204e9800998ecf8427e'
    """
    return f"{kind}-{hashlib.new(kind, data, usedforsecurity=False).hexdigest()}"


def parse_digest(text: object) -> str:
    """Return a digest as `digest_of` writes it. Raises ValueError for anything else."""
    kind, _, digits = text.partition("-") if isinstance(text, str) else ("", "", "")
    if not re.fullmatch(r"[0-9a-f]+", digits, re.ASCII) or DIGESTS.get(kind) != len(digits):
        raise ValueError(f"expected a digest, got {text!r:.80}")
    return f"{kind}-{digits}"


class Pieces(Generic[T]):
    """What a running command prints, as it comes; after the last piece `end` tells how it ended.

    end: the `Output` (its stdout is empty: it was given out), or why there is none.
    """

    def __init__(self, source: str, pieces: Iterator[T], end: Callable[[], Reading[Output]]) -> None:
        self.source = source
        self._pieces = pieces
        self._end = end

    def __iter__(self) -> Iterator[T]:
        return self._pieces

    def stop(self) -> None:
        """End the command: the rest is not wanted."""
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()

    @property
    def end(self) -> Reading[Output]:
        for _ in self._pieces:  # a caller that stopped early still learns how the command ended
            pass
        return self._end()


class Lines(Pieces[str]):
    """Lines of a running command, without their newline."""


class Opened:
    """A file that stays open and is read at any place; `close` it, or use it in a ``with``.

    size: bytes. This one stands for content that is in memory already.
    """

    def __init__(self, data: bytes = b"") -> None:
        self.size = len(data)
        self._data = data

    def read(self, at: int, size: int) -> bytes:
        """At most `size` bytes from the place `at`; fewer at the end. Raises OSError."""
        return self._data[at : at + size]

    def close(self) -> None:
        """Nothing more will be read."""

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OpenedFile(Opened):
    """A regular file of this machine. descriptor: becomes this object's own."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    def read(self, at: int, size: int) -> bytes:
        pieces: list[bytes] = []
        while size > 0:
            piece = os.pread(self.descriptor, size, at)
            if not piece:
                break
            pieces.append(piece)
            at, size = at + len(piece), size - len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Reader:
    """What every reader offers. The five `_` methods and `run`, `lines` and `call` are what a kind of reader defines.

    live: reads of this reader may block in the kernel, so groups that touch devices run in a child.
    """

    live = False

    # -- defined by each kind of reader ------------------------------------------------------------

    def taken_at(self) -> float:
        """Seconds since the epoch at which this host is (or was) read."""
        raise NotImplementedError

    def data(self, path: str, limit: int = FILE_LIMIT) -> Reading[bytes]:
        """Content of a regular file."""
        raise NotImplementedError

    def link(self, path: str) -> Reading[str]:
        """Target of a symbolic link, as written in it."""
        raise NotImplementedError

    def names(self, path: str) -> Reading[tuple[str, ...]]:
        """Names in a directory, sorted."""
        raise NotImplementedError

    def stat(self, path: str) -> Reading[Stat]:
        """Owner and mode of a file, links followed."""
        raise NotImplementedError

    def space(self, path: str) -> Reading[tuple[int, int]]:
        """Bytes (in all, free for everybody) of the file system of a path."""
        raise NotImplementedError

    def resolve(self, path: str) -> Reading[str]:
        """The path with every symbolic link resolved, inside the root."""
        raise NotImplementedError

    def run(self, argv: Sequence[str], timeout: float = COMMAND_TIMEOUT, limit: int = OUTPUT_LIMIT) -> Reading[Output]:
        """Run a command with LC_ALL=C and no standard input. Any exit status is a value; see `output`."""
        raise NotImplementedError

    def lines(self, argv: Sequence[str], timeout: float = LOG_TIMEOUT) -> Lines:
        """Run a command and give out its lines as they come."""
        raise NotImplementedError

    def opened(self, path: str) -> Reading[Opened]:
        """A regular file of any size, to be read in parts. A recording keeps none of it but what `keep` is given."""
        return self.data(path, sys.maxsize).then(Opened)

    def filtered(
        self, argv: Sequence[str], given: bytes | Opened, at: int = 0, timeout: float = LOG_TIMEOUT
    ) -> Pieces[bytes]:
        """Run a command on bytes, or on an opened file from the place `at` on; gives what it prints as it comes.

        Only on the machine itself: a recording keeps what became of it (`keep`), not this.
        """
        source = shlex.join(argv)
        no: Reading[Output] = Reading.no("tool_missing", "not run on what was recorded", source)
        return Pieces(source, iter(()), lambda: no)

    @property
    def unrecorded(self) -> Reader:
        """The same host for looking around: what it gives is no part of a recording but by `keep`."""
        return self

    def has_recorded(self, argv: Sequence[str]) -> bool:
        """Is the answer of a command part of a recording, so that nothing is started for it?"""
        return False

    def keep(self, path: str, content: Reading[bytes] | Reading[str]) -> None:
        """What a recording is to hold of a file: so much that it reads the same. Text is redacted, bytes are not."""

    def keep_command(self, reading: Reading[Output], reduce: Callable[[str], str]) -> None:
        """What a recording is to hold of a command that was run `unrecorded`: what `reduce` leaves of its output."""

    def call(self, name: str) -> Reading[Any]:
        """Call a function of psutil or pyudev, e.g. ``psutil.net_if_addrs``, without arguments; gives plain data."""
        raise NotImplementedError

    def watch(self, subsystems: Sequence[str]) -> Reading[Callable[[float], object]]:
        """A function that waits for the next device event of these subsystems, at most so many seconds (pyudev)."""
        return Reading(None, "pyudev.Monitor", "tool_missing", "events of the machine that audits tell nothing here")

    def later(self, seconds: float) -> tuple[float, Reader] | None:
        """A second read of counters: (seconds after the first, its reader); None where there is none.

        A live reader waits so long (0: it does not read twice); a recording has its second read or has none.
        """
        return None

    # -- the same for all --------------------------------------------------------------------------

    def digest(self, path: str, kind: str = "md5", limit: int = BLOB_LIMIT) -> Reading[str]:
        """Digest of a file's content, e.g. ``md5-0123…``; a recording keeps it without the content."""
        return self.data(path, limit).then(lambda data: digest_of(data, kind))

    def text(self, path: str, limit: int = FILE_LIMIT) -> Reading[str]:
        """Content of a text file."""
        data = self.data(path, limit)
        return as_text(data.value, path) if data.value is not None else data.then(str)

    def line(self, path: str) -> Reading[str]:
        """Content of a one-value file such as those of sysfs, without white space at its ends."""
        return self.text(path, 64 << 10).then(str.strip)

    def output(self, argv: Sequence[str], timeout: float = COMMAND_TIMEOUT, limit: int = OUTPUT_LIMIT) -> Reading[str]:
        """Standard output of a command that must exit 0; another status is the reason `exit`."""
        ran = self.run(argv, timeout, limit)
        if ran.value is None:
            return ran.then(lambda output: output.stdout)
        if ran.value.rc != 0:
            return Reading(None, ran.source, "exit", shorten(f"exit {ran.value.rc}: {ran.value.stderr}"))
        return Reading(ran.value.stdout, ran.source)

    def children(self, path: str, pattern: str = "") -> tuple[str, ...]:
        """Paths below a directory whose name matches the regular expression in full; () where it cannot be listed.

        For directories whose absence means that there is nothing, such as ``/sys/class/devcoredump``; ask
        `names` where a refusal has to be told from nothing.
        """
        names = self.names(path).value or ()
        return tuple(f"{path}/{name}" for name in names if not pattern or re.fullmatch(pattern, name))


# -- the machine itself, or a directory ---------------------------------------------------------------


@dataclass
class _Child:
    """A started command: its pipes, its deadline and how it ended."""

    process: subprocess.Popen[bytes]
    deadline: float
    source: str
    stderr: bytearray = field(default_factory=bytearray)
    failure: tuple[str, str] | None = None
    abandoned: bool = False


def ended(pid: int, seconds: float) -> bool:
    """Wait for the end of a child process, at most so long; it is not reaped, so its number stays its own.

    By pidfd_open(2) (Linux 5.3) this returns in the moment of the end; without it, it is looked at now and then.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):
        return _ended_without_pidfd(pid, seconds)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(max(0.0, seconds) * 1000))
    finally:
        os.close(descriptor)


def _ended_without_pidfd(pid: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    pause = 0.0002
    while True:
        try:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return True
        except ChildProcessError:  # somebody else has reaped it
            return True
        left = until - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(pause * 2, 0.02)


def _kill(child: _Child) -> None:
    """End a command and everything it started; one that is stuck in the kernel is abandoned."""
    try:
        os.killpg(child.process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    if ended(child.process.pid, 2.0):
        child.process.wait()
    else:
        child.abandoned = True


def _chunks(child: _Child) -> Iterator[bytes]:
    """Standard output piece by piece until both pipes end or the deadline is reached."""
    stdout, stderr = child.process.stdout, child.process.stderr
    assert stdout is not None
    assert stderr is not None
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        selector.register(stderr, selectors.EVENT_READ)
        try:
            while selector.get_map():
                left = child.deadline - time.monotonic()
                ready = selector.select(left) if left > 0 else []
                if not ready:
                    child.failure = ("timeout", "did not end in time and was killed")
                    return
                for key, _ in ready:
                    piece = os.read(key.fd, 1 << 18)
                    if not piece:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is stderr:
                        child.stderr += piece[: STDERR_LIMIT - len(child.stderr)]
                    else:
                        yield piece
            if not ended(child.process.pid, child.deadline - time.monotonic()):
                child.failure = ("timeout", "closed its output but did not end in time and was killed")
        finally:
            _kill(child)
            stdout.close()
            stderr.close()


def _ended(child: _Child, stdout: str = "") -> Reading[Output]:
    if child.failure:
        return Reading(None, child.source, child.failure[0], child.failure[1])
    rc = child.process.returncode
    stderr = bytes(child.stderr).decode("utf-8", "replace")
    if rc in (126, 127):
        # POSIX: a wrapper (a shell, env, docker) answers so when it could not find or start the tool itself.
        return Reading(None, child.source, "tool_missing", shorten(stderr) or f"exit {rc}")
    return Reading(Output(rc, stdout, stderr), child.source)


class LiveReader(Reader):
    """This machine, or a directory that is taken for one.

    Below a root nothing of this machine is read: links resolve inside the root, a command is an executable
    inside it (started with HOSTCHECK_ROOT), psutil and pyudev are not called.
    """

    live = True

    def __init__(self, root: str = "/") -> None:
        self.root = os.path.realpath(root)
        self.is_root = self.root == "/"

    def taken_at(self) -> float:
        return time.time()

    def later(self, seconds: float) -> tuple[float, Reader] | None:
        if seconds <= 0:
            return None
        begun = time.monotonic()
        time.sleep(seconds)
        return time.monotonic() - begun, self

    def _host(self, path: str, follow_last: bool = True) -> str:
        """The path on this machine that stands for a path of the host. Raises OSError for a loop of links."""
        if self.is_root:
            return path
        return self.root + self._inside(path, follow_last)

    def _inside(self, path: str, follow_last: bool = True) -> str:
        todo = [part for part in path.split("/") if part]
        done: list[str] = []
        links = 0
        while todo:
            part = todo.pop(0)
            if part == ".":
                continue
            if part == "..":
                done = done[:-1]
                continue
            here = "/".join([self.root, *done, part])
            if (todo or follow_last) and os.path.islink(here):
                links += 1
                if links > SYMLINK_LIMIT:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = os.readlink(here)
                done = [] if target.startswith("/") else done
                todo = [piece for piece in target.split("/") if piece] + todo
                continue
            done.append(part)
        return "/" + "/".join(done)

    def _open(self, path: str) -> int | Reading[Any]:
        """A descriptor of a regular file, or why there is none."""
        try:
            # O_NONBLOCK: opening a FIFO must not wait for somebody to write into it.
            descriptor = os.open(self._host(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            return refused(error, path)
        if stat_module.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        return Reading(None, path, "io", "is not a regular file")

    def data(self, path: str, limit: int = FILE_LIMIT) -> Reading[bytes]:
        descriptor = self._open(path)
        if isinstance(descriptor, Reading):
            return descriptor
        try:
            pieces: list[bytes] = []
            size = 0
            while size <= limit:
                piece = os.read(descriptor, min(1 << 20, limit + 1 - size))
                if not piece:
                    return Reading(b"".join(pieces), path)
                pieces.append(piece)
                size += len(piece)
            return Reading(None, path, "too_large", f"more than {limit} bytes")
        except OSError as error:
            return refused(error, path)
        finally:
            os.close(descriptor)

    def opened(self, path: str) -> Reading[Opened]:
        descriptor = self._open(path)
        return descriptor if isinstance(descriptor, Reading) else Reading(OpenedFile(descriptor), path)

    def link(self, path: str) -> Reading[str]:
        try:
            return Reading(os.readlink(self._host(path, follow_last=False)), path)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return Reading(None, path, "not_understood", "is not a symbolic link")
            return refused(error, path)

    def names(self, path: str) -> Reading[tuple[str, ...]]:
        try:
            return Reading(tuple(sorted(os.listdir(self._host(path)))), path)
        except OSError as error:
            return refused(error, path)

    def stat(self, path: str) -> Reading[Stat]:
        try:
            found = os.stat(self._host(path))
        except OSError as error:
            return refused(error, path)
        return Reading(
            Stat(
                found.st_mode,
                found.st_uid,
                found.st_gid,
                (os.major(found.st_rdev), os.minor(found.st_rdev)),
                int(max(found.st_mtime, found.st_ctime)),
            ),
            path,
        )

    def space(self, path: str) -> Reading[tuple[int, int]]:
        try:
            found = os.statvfs(self._host(path))
        except OSError as error:
            return refused(error, path)
        return Reading((found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize), path)

    def resolve(self, path: str) -> Reading[str]:
        try:
            resolved = os.path.realpath(path, strict=True) if self.is_root else self._inside(path)
            os.lstat(self._host(resolved))
        except OSError as error:
            return refused(error, path)
        return Reading(resolved, path)

    def _executable(self, name: str) -> str | None:
        folders = (name.rpartition("/")[0],) if "/" in name else SEARCH_PATH
        for folder in folders:
            try:
                path = self._host(f"{folder}/{name.rpartition('/')[2]}")
            except OSError:
                continue
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
        return None

    def _start(self, argv: Sequence[str], timeout: float, stdin: int = subprocess.DEVNULL) -> _Child | Reading[Output]:
        source = shlex.join(argv)
        program = self._executable(argv[0])
        if program is None:
            return Reading(None, source, "tool_missing", f"{argv[0]} is not installed")
        environment = {"LC_ALL": "C", "PATH": ":".join(SEARCH_PATH), "HOME": "/", "TERM": "dumb"}
        if not self.is_root:
            environment["HOSTCHECK_ROOT"] = self.root
        try:
            process = subprocess.Popen(
                [program, *argv[1:]],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            return refused(error, source)
        return _Child(process, time.monotonic() + timeout, source)

    def run(self, argv: Sequence[str], timeout: float = COMMAND_TIMEOUT, limit: int = OUTPUT_LIMIT) -> Reading[Output]:
        child = self._start(argv, timeout)
        if isinstance(child, Reading):
            return child
        pieces: list[bytes] = []
        size = 0
        chunks = _chunks(child)
        for piece in chunks:
            size += len(piece)
            if size > limit:
                chunks.close()  # type: ignore[attr-defined]
                return Reading(None, child.source, "too_large", f"printed more than {limit} bytes and was killed")
            pieces.append(piece)
        return _ended(child, b"".join(pieces).decode("utf-8", "replace"))

    def lines(self, argv: Sequence[str], timeout: float = LOG_TIMEOUT) -> Lines:
        source = shlex.join(argv)
        child = self._start(argv, timeout)
        if isinstance(child, Reading):
            ended = child
            return Lines(source, iter(()), lambda: ended)
        running = child

        def lines() -> Iterator[str]:
            rest = b""
            for piece in _chunks(running):
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield line.decode("utf-8", "replace")
                if len(rest) > LINE_LIMIT:
                    running.failure = ("too_large", f"a line of more than {LINE_LIMIT} bytes")
                    return
            if rest:
                yield rest.decode("utf-8", "replace")

        return Lines(source, lines(), lambda: _ended(running))

    def filtered(
        self, argv: Sequence[str], given: bytes | Opened, at: int = 0, timeout: float = LOG_TIMEOUT
    ) -> Pieces[bytes]:
        source = shlex.join(argv)
        child: _Child | Reading[Output]
        try:
            with contextlib.ExitStack() as stack:
                if isinstance(given, OpenedFile):
                    stdin = given.descriptor  # reads by their place (pread) and the command's do not disturb each other
                else:
                    stdin = os.memfd_create("hostcheck")  # no pipe: nothing has to be written while the command prints
                    stack.callback(os.close, stdin)
                    with os.fdopen(os.dup(stdin), "wb") as file:
                        file.write(given if isinstance(given, bytes) else given.read(0, given.size))
                os.lseek(stdin, at, os.SEEK_SET)
                child = self._start(argv, timeout, stdin)
        except AttributeError:  # a Python that was built for an older C library
            child = Reading(None, source, "tool_missing", "this Python cannot hand data to a command (no memfd_create)")
        except OSError as error:
            child = refused(error, source)
        if isinstance(child, Reading):
            ended = child
            return Pieces(source, iter(()), lambda: ended)
        running = child
        return Pieces(source, _chunks(running), lambda: _ended(running))

    def call(self, name: str) -> Reading[Any]:
        if not self.is_root:
            return Reading(None, name, "tool_missing", "not recorded, and never asked of the machine that audits")
        module, _, function = name.partition(".")
        try:
            called = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError):
            return Reading(
                None, name, "tool_missing", f"this Python has no {module}: apply the role host_packages to install it"
            )
        try:
            return Reading(plain(called()), name)
        except OSError as error:
            return refused(error, name)

    def watch(self, subsystems: Sequence[str]) -> Reading[Callable[[float], object]]:
        if not self.is_root:
            return super().watch(subsystems)
        name = "pyudev.Monitor"
        try:
            pyudev = importlib.import_module("pyudev")
            monitor = pyudev.Monitor.from_netlink(pyudev.Context())
            for subsystem in subsystems:
                monitor.filter_by(subsystem)
            monitor.start()
        except ImportError:  # also where libudev is missing
            return Reading(
                None, name, "tool_missing", "this Python has no pyudev: apply the role host_packages to install it"
            )
        except OSError as error:
            return refused(error, name)

        def wait(seconds: float) -> object:
            found = monitor.poll(seconds)
            while found is not None and monitor.poll(0) is not None:  # a boot gives hundreds at once
                pass
            return found

        return Reading(wait, name)


def plain(value: Any) -> Any:
    """Plain data (dict, list, str, int, float, bool, None) of what psutil and pyudev give back.

    >>> plain({"lo": (1, "x")})
    {'lo': [1, 'x']}
    """
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    return str(value)
