"""The only place that writes on a host: files atomically, sysfs values plainly, commands with a timeout.

Everything stays below the root that it was given: links are resolved inside it, and a command is an executable
inside it that gets HOSTCHECK_ROOT, just as `LiveReader` does for reading.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import stat as stat_module
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..reader import LiveReader, shorten

LOCK = "/run/hostcheck/lock"
TEMPORARY = ".hostcheck-new"  # a fixed ending: what a killed run left behind is overwritten by the next one
COMMAND_TIMEOUT = 600.0  # seconds; rebuilding an initramfs on a slow disk takes minutes


class Failed(Exception):
    """A change that could not be made or was not kept; its text is for the person who asked for it."""


@dataclass(frozen=True)
class File:
    """A regular file (`text`) or a symbolic link (`link`), with mode and owner. owner: (uid, gid), None: leave it.

    >>> File.plain(File(text="a\\n", mode=0o644, owner=(0, 0)))
    {'text': 'a\\n', 'link': None, 'mode': '0644', 'owner': [0, 0]}
    """

    text: str | None = None
    link: str | None = None
    mode: int = 0o644
    owner: tuple[int, int] | None = None

    def plain(self) -> dict[str, Any]:
        """The file as it stands in a record."""
        return {
            "text": self.text,
            "link": self.link,
            "mode": f"{self.mode:04o}",
            "owner": list(self.owner) if self.owner else None,
        }

    @classmethod
    def of(cls, plain: dict[str, Any]) -> File:
        """The reverse of `plain`."""
        owner = plain["owner"]
        return cls(plain["text"], plain["link"], int(plain["mode"], 8), (owner[0], owner[1]) if owner else None)


def why(error: OSError, path: str) -> Failed:
    """The failure that an OSError stands for, with its name and, where there is one, the usual reason.

    >>> str(why(OSError(errno.EROFS, ""), "/etc/x"))
    '/etc/x: EROFS: Read-only file system: remount it writable, or run on the host instead of in a container'
    """
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    hint = {
        errno.EROFS: ": remount it writable, or run on the host instead of in a container",
        errno.ENOSPC: ": free some space, nothing was half written",
        errno.EACCES: ": run as root (ansible-playbook -b)",
        errno.EPERM: ": the kernel refuses this write, also to root",
        errno.EBUSY: ": the driver refuses it in its present state",
        errno.EINVAL: ": the kernel does not know this value",
    }.get(error.errno or 0, "")
    return Failed(f"{path}: {name}: {os.strerror(error.errno or 0)}{hint}")


class Writer:
    """Writes below one root. Every method raises `Failed` for what the host refuses."""

    def __init__(self, root: str = "/") -> None:
        self.live = LiveReader(root)
        self.root = self.live.root
        self.foreseen: dict[str, Any] = {}

    def _real(self, path: str, follow_last: bool = True) -> str:
        """The path on this machine, every link resolved inside the root."""
        if not self.live.is_root:
            return self.live._host(path, follow_last)
        if follow_last:
            return os.path.realpath(path)
        folder, name = os.path.split(path)
        return os.path.join(os.path.realpath(folder), name)

    def real(self, path: str) -> str:
        """Where a path of the host lies on this machine: for what other processes are told. Raises Failed."""
        try:
            return self._real(path)
        except OSError as error:
            raise why(error, path) from error

    def inside(self, path: str) -> str:
        """The path with its links resolved, as seen below the root. Raises Failed."""
        real = self.real(path)
        return real if self.live.is_root else real[len(self.root) :]

    def may_write(self, path: str) -> bool:
        """May this process write to what is there? A read-only file system says no, also to root."""
        return os.access(self.real(path), os.W_OK)

    # -- files -----------------------------------------------------------------------------------------

    def file(self, path: str) -> File | None:
        """The file or link at a path, not followed; None when there is none.

        In a check what settings before this one would have written stands in `foreseen`, by path.
        """
        if path in self.foreseen:
            plain = self.foreseen[path]
            return File.of(plain) if plain is not None else None
        try:
            real = self._real(path, follow_last=False)
            found = os.lstat(real)
            owner = (found.st_uid, found.st_gid)
            if stat_module.S_ISLNK(found.st_mode):
                return File(link=os.readlink(real), mode=0o777, owner=owner)
            if not stat_module.S_ISREG(found.st_mode):
                raise Failed(f"{path}: is not a regular file, left alone")
            with open(real, encoding="utf-8", newline="") as file:
                return File(text=file.read(), mode=stat_module.S_IMODE(found.st_mode), owner=owner)
        except UnicodeDecodeError as error:
            raise Failed(f"{path}: not UTF-8 at byte {error.start}, left alone") from error
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            return None
        except OSError as error:
            raise why(error, path) from error

    def missing_folders(self, path: str) -> tuple[str, ...]:
        """Folders above a path that do not exist, outermost first."""
        missing: list[str] = []
        folder = os.path.dirname(path)
        while folder not in ("", "/") and not os.path.isdir(self._real(folder)):
            missing.insert(0, folder)
            folder = os.path.dirname(folder)
        return tuple(missing)

    def make_folders(self, path: str, mode: int = 0o755) -> tuple[str, ...]:
        """Make the folders above a path; returns those that were made."""
        made = self.missing_folders(path)
        for folder in made:
            try:
                real = self._real(folder)
                os.mkdir(real)
                os.chmod(real, mode if folder == made[-1] else 0o755)
            except FileExistsError:
                pass
            except OSError as error:
                raise why(error, folder) from error
        return made

    def remove_folder(self, path: str) -> None:
        """Remove a folder if it is there and empty."""
        try:
            os.rmdir(self._real(path))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise why(error, path) from error

    def put(self, path: str, wanted: File) -> None:
        """Make the file at a path be this one: complete in a temporary file beside it, on the disk, then renamed.

        A path that is a link to a file keeps the link: the file behind it is replaced.
        """
        follow = wanted.link is None
        try:
            real = self._real(path, follow_last=follow)
            temporary = os.path.join(os.path.dirname(real), f".{os.path.basename(real)}{TEMPORARY}")
            try:
                os.unlink(temporary)
            except FileNotFoundError:
                pass
            try:
                if wanted.link is not None:
                    os.symlink(wanted.link, temporary)
                else:
                    self._fill(temporary, wanted)
                os.rename(temporary, real)
            except OSError:
                try:
                    os.unlink(temporary)
                except OSError:
                    pass
                raise
            self._sync_folder(os.path.dirname(real))
        except OSError as error:
            raise why(error, path) from error

    def _fill(self, temporary: str, wanted: File) -> None:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            data = (wanted.text or "").encode("utf-8")
            while data:
                data = data[os.write(descriptor, data) :]
            if wanted.owner is not None and os.geteuid() == 0:
                os.fchown(descriptor, *wanted.owner)
            os.fchmod(descriptor, wanted.mode)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _sync_folder(self, real: str) -> None:
        descriptor = os.open(real, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def copy(self, source: str, path: str, limit: int, mode: int = 0o600) -> tuple[int, bool]:
        """Copy the first `limit` bytes of a file of any content: (bytes written, was there more?).

        It is read only, and as large as it turns out to be: files of sysfs do not tell their size. The copy is complete
        in a temporary file before it gets its name.
        """
        try:
            real = self._real(path)
            temporary = os.path.join(os.path.dirname(real), f".{os.path.basename(real)}{TEMPORARY}")
            try:
                os.unlink(temporary)
            except FileNotFoundError:
                pass
            into = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            try:
                size, is_cut = self._pour(self._real(source), into, limit)
                os.fsync(into)
                os.rename(temporary, real)
            except OSError:
                os.unlink(temporary)
                raise
            finally:
                os.close(into)
            self._sync_folder(os.path.dirname(real))
            return size, is_cut
        except OSError as error:
            raise why(error, source) from error

    def _pour(self, real: str, into: int, limit: int) -> tuple[int, bool]:
        out = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            size = 0
            while True:
                piece = os.read(out, 1 << 18)
                room = limit - size
                data = piece[:room]
                while data:
                    written = os.write(into, data)
                    size, data = size + written, data[written:]
                if not piece or len(piece) > room:
                    return size, bool(piece)
        finally:
            os.close(out)

    def there(self, path: str) -> bool:
        """Is there anything at a path?"""
        return os.path.lexists(self._real(path, follow_last=False))

    def size(self, path: str) -> int:
        """Bytes of all files below a folder; 0 when there is none."""
        found = 0
        for folder, _, names in os.walk(self._real(path)):
            for name in names:
                try:
                    found += os.lstat(os.path.join(folder, name)).st_size
                except FileNotFoundError:
                    pass
        return found

    def remove(self, path: str) -> None:
        """Remove a file or link."""
        try:
            os.unlink(self._real(path, follow_last=False))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise why(error, path) from error

    def tidy(self, path: str) -> None:
        """Remove what a killed run may have left beside a file."""
        for follow in (True, False):
            try:
                folder, name = os.path.split(self._real(path, follow))
                os.unlink(os.path.join(folder, f".{name}{TEMPORARY}"))
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError as error:
                raise why(error, path) from error

    # -- sysfs -----------------------------------------------------------------------------------------

    def value(self, path: str, text: str) -> None:
        """Write one value into a file of sysfs: it must be there, and is neither replaced nor made."""
        try:
            descriptor = os.open(self._real(path), os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                written = os.write(descriptor, f"{text}\n".encode())
                if not self.live.is_root:  # below a root it is a plain file, which keeps what was longer
                    os.ftruncate(descriptor, written)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise why(error, path) from error

    # -- commands --------------------------------------------------------------------------------------

    def has(self, program: str) -> bool:
        """Is this program installed on the host?"""
        return self.live._executable(program) is not None

    def program(self, name: str) -> str:
        """Where a program lies on this machine. Raises Failed when it is not installed."""
        found = self.live._executable(name)
        if found is None:
            raise Failed(f"{name} is not installed")
        return found

    def run(self, argv: Sequence[str], timeout: float = COMMAND_TIMEOUT) -> str:
        """Run a command that changes something; its standard output. Any exit status but 0 is a failure."""
        ran = self.live.run(argv, timeout)
        if ran.value is None:
            raise Failed(f"{shlex.join(argv)}: {ran.unread}: {ran.detail}")
        if ran.value.rc != 0:
            said = shorten(ran.value.stderr or ran.value.stdout)
            raise Failed(f"{shlex.join(argv)}: exit {ran.value.rc}: {said}")
        return ran.value.stdout

    # -- one run at a time -----------------------------------------------------------------------------

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock against a second run on this host; its file and folder are gone afterwards."""
        made: list[str] = []
        while True:
            made += [folder for folder in self.make_folders(LOCK) if folder not in made]
            try:
                descriptor = os.open(self._real(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:  # the run that held it removed the folder just now
                continue
            except OSError as error:
                raise why(error, LOCK) from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(descriptor)
                raise Failed(f"{LOCK}: another run is changing this host; wait for it to end") from error
            if self._is_still(descriptor):
                break
            os.close(descriptor)
        try:
            yield
        finally:
            os.unlink(self._real(LOCK))
            os.close(descriptor)
            for folder in sorted({*made, os.path.dirname(LOCK)}, key=len, reverse=True):
                self.remove_folder(folder)

    def _is_still(self, descriptor: int) -> bool:
        """Is the open lock file still the one at its path, not one that its holder removed?"""
        try:
            there = os.stat(self._real(LOCK))
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(descriptor))
