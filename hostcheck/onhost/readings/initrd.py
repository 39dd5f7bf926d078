"""What the initrd of the default entry holds for xe: the driver's module, and GuC files with the version they state.

An initrd is any number of cpio archives, plain or compressed, one behind the other with zeros between. Only headers are
read; the content of a file is passed over, but for GuC files and links. It is read where it is asked for
(``Options.initrd``), since an initrd that is compressed as a whole has to be unpacked to its end, which takes seconds.

All of it is understood, or none of it counts: a part that was not read may hold the file that is not in the others, or
a newer one of the same name, which wins. A recording keeps a small archive in its place, with the names and headers.

Sources: kernel documentation (early-userspace/buffer-format), init/initramfs.c (padding, links, names),
lib/decompress.c (first bytes of each compression), drivers/base/firmware_loader/main.c (which file of a name is taken).
"""

from __future__ import annotations

import importlib
import posixpath
import re
import stat
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable

from ..reader import BLOB_LIMIT, Opened, Pieces, Reader, Reading, refused, shorten
from . import gpu_ids
from .next_boot import HEADER, ZSTD, NextBoot, file_of, parse_css_header, read_blob, unpacked
from .pcie import Pcie

if TYPE_CHECKING:
    from ..gather import Options

DEADLINE = 60.0  # seconds for all files of an entry
SIZE_LIMIT = 8 << 30  # bytes unpacked; a whole driver tree with all firmware has about 1 GB
NAME_LIMIT = 4097  # PATH_MAX and the NUL after it; the kernel passes over longer ones
LINK_LIMIT = 4096
LINKS_FOLLOWED = 8
MEMBERS_LIMIT = 4096  # files of interest; i915 and xe name about 40
WINDOW = 4096  # bytes read at once where the next header is a seek away
CHUNK = 256 << 10
HEAD = 110  # bytes of a cpio header: six of magic and 13 numbers of eight hexadecimal digits
TRAILER = "TRAILER!!!"
MAGICS = (b"070701", b"070702")
MEMORY = 512 << 20  # bytes that xz may take for its dictionary

MODULE = re.compile(r"lib/modules/([^/]+)/(?:[^/]+/)*xe\.ko(?:\.\w+)?")
# The folders that the kernel looks into, in their order; for each ending it goes through all of them.
GUC = re.compile(
    r"lib/firmware/(?P<folder>updates/(?:\d[^/]*/)?|\d[^/]*/)?"
    r"(?P<name>(?:xe|i915)/[^/]*_guc_[^/]*\.bin)(?P<ending>\.zst|\.xz)?"
)
ENDINGS = ("", ".zst", ".xz")
MAKERS = ("/usr/sbin/update-initramfs", "/usr/bin/dracut", "/usr/sbin/dracut", "/usr/bin/mkinitcpio")


@dataclass(frozen=True)
class Guc:
    """A GuC file in the initrd that the driver would take, of all that have its name.

    name: as the driver asks for it, e.g. ``xe/bmg_guc_70.bin``. path: in the initrd. version: by its header, e.g.
    ``70.54.0``. on_disk: the same of the file that the driver would take from the disk; absent where there is none.
    """

    name: str
    path: str
    version: Reading[str]
    on_disk: Reading[str]


@dataclass(frozen=True)
class Initrd:
    """What the files hold that the default entry loads before the root is mounted; not_asked where they were not read.

    modules: xe's module, () when it is not in it. guc: GuC files in it. maker: what makes initrds here, e.g.
    ``update-initramfs``.
    """

    modules: Reading[tuple[str, ...]]
    guc: Reading[tuple[Guc, ...]]
    maker: Reading[str]


class Stopped(Exception):
    """Reading was ended for a reason that is not in the content: (reason, detail)."""


@dataclass
class Budget:
    """How much more may be read. ends: by the monotonic clock. left: bytes unpacked."""

    ends: float
    left: int = SIZE_LIMIT

    def spend(self, size: int = 0) -> None:
        """Raise Stopped when time or bytes are used up."""
        self.left -= size
        if self.left < 0:
            raise Stopped("too_large", f"more than {SIZE_LIMIT} bytes unpacked")
        if time.monotonic() > self.ends:
            raise Stopped("timeout", f"not read to its end within {DEADLINE:g} s")


class Stream:
    """Bytes that come once, from front to back. more: gives the next piece, about so long, empty at the end."""

    def __init__(self, more: Callable[[int], bytes]) -> None:
        self.at = 0
        self._more = more
        self._held = b""
        self._from = 0

    def peek(self, size: int) -> bytes:
        """The next bytes, fewer at the end, which stay where they are."""
        pieces = [self._held[self._from :]]
        count = len(pieces[0])
        while count < size:
            piece = self._more(size - count)
            if not piece:
                break
            pieces.append(piece)
            count += len(piece)
        if len(pieces) > 1:
            self._held, self._from = b"".join(pieces), 0
        return self._held[self._from : self._from + size]

    def take(self, size: int) -> bytes:
        """The next bytes, fewer at the end."""
        found = self.peek(size)
        self._from += len(found)
        self.at += len(found)
        return found

    def skip(self, size: int) -> None:
        """Pass over the next bytes."""
        while size > 0:
            count = len(self.take(min(size, len(self._held) - self._from or CHUNK)))
            if not count:
                return
            size -= count

    def skip_zeros(self) -> None:
        """Pass over the padding between archives."""
        while piece := self.peek(WINDOW):
            rest = piece.lstrip(b"\0")
            self.take(len(piece) - len(rest))
            if rest:
                return


class Plain(Stream):
    """A file as it is: what is passed over is not read."""

    def __init__(self, file: Opened, at: int = 0) -> None:
        super().__init__(self._next)
        self.at = self._upto = at
        self._file = file

    def _next(self, size: int) -> bytes:
        piece = self._file.read(self._upto, max(size, WINDOW))
        self._upto += len(piece)
        return piece

    def skip(self, size: int) -> None:
        if size <= len(self._held) - self._from:
            self._from += size
        else:
            self._held, self._from = b"", 0
            self._upto = self.at + size
        self.at += size


# -- cpio -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Head:
    """Header of a file in an archive. inode: (number, major, minor). size: bytes of its content."""

    inode: tuple[int, int, int]
    mode: int
    links: int
    size: int
    name_size: int


def parse_head(data: bytes) -> Head:
    """Return a header of the form newc.

    >>> parse_head(b"070701" + b"%08x" % 7 + b"%08x" % 0o100644 + b"0" * 88)
    Head(inode=(7, 0, 0), mode=33188, links=0, size=0, name_size=0)

    Raises ValueError for anything else.
    """
    if len(data) < HEAD:
        raise ValueError("ends inside an archive")
    if data[:6] not in MAGICS or not re.fullmatch(rb"[0-9A-Fa-f]{104}", data[6:HEAD]):
        raise ValueError(f"expected the header of a file in an archive, got {data[:16]!r}")
    number = [int(data[at : at + 8], 16) for at in range(6, HEAD, 8)]
    return Head((number[0], number[7], number[8]), number[1], number[4], number[6], number[11])


def plain_name(name: str) -> str:
    """A name as it is compared: without a leading ``./`` or ``/``, and without ``usr/``, since lib is a link to it.

    >>> plain_name("./usr/lib/firmware/xe/a.bin"), plain_name("/lib//x")
    ('lib/firmware/xe/a.bin', 'lib/x')

    Raises ValueError for a name that goes up.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"a name goes up: {shorten(name, 80)!r}")
    return "/".join(parts[1:] if parts[:2] == ["usr", "lib"] else parts)


@dataclass(frozen=True)
class Member:
    """A file of interest. link: target of a symbolic one, else "". header: first bytes of a GuC file, unpacked."""

    link: str = ""
    header: Reading[bytes] = field(default_factory=lambda: Reading(b""))


Unpack = Callable[[bytes], "Reading[bytes]"]


def read_name(stream: Stream, head: Head) -> str:
    """The name behind a header. Raises ValueError for one that cannot be."""
    if not 0 < head.name_size <= NAME_LIMIT:
        raise ValueError(f"a name of {head.name_size} bytes")
    name = stream.take(head.name_size)
    stream.skip(-(HEAD + head.name_size) % 4)
    if len(name) < head.name_size or not name.endswith(b"\0"):
        raise ValueError("a name without an end")
    return name[:-1].decode("utf-8", "replace")


def read_archive(stream: Stream, files: dict[str, Member], unpack: Unpack, budget: Budget) -> None:
    """Add the files of interest of one archive; a later one of the same name wins, as in the kernel.

    Raises ValueError where it is not understood or ends before its trailer.
    """
    shared: dict[tuple[int, int, int], Reading[bytes]] = {}  # content of hard links, which comes with one of the names
    waiting: dict[tuple[int, int, int], list[str]] = {}
    while True:
        budget.spend()
        head = parse_head(stream.take(HEAD))
        name = read_name(stream, head)
        if name == TRAILER:
            stream.skip(head.size)
            return
        path = plain_name(name)
        is_guc, is_linked = GUC.fullmatch(path) is not None, head.links > 1
        data = b""
        if stat.S_ISLNK(head.mode) and is_guc:
            if not 0 < head.size <= LINK_LIMIT:
                raise ValueError(f"a link with a target of {head.size} bytes: {path}")
            data = stream.take(head.size)
            files[path] = Member(data.decode("utf-8", "replace").rstrip("\0"))
        elif stat.S_ISREG(head.mode):
            near = is_guc or (is_linked and (path.startswith("lib/firmware/") or head.inode in waiting))
            if near and head.size > BLOB_LIMIT:
                header: Reading[bytes] = Reading.no("too_large", f"{head.size} bytes", path)
            elif near and head.size:
                data = stream.take(head.size)
                header = unpack(data)
            else:
                header = shared.get(head.inode, Reading(b"")) if is_linked else Reading(b"")
            if near and head.size and is_linked:
                shared[head.inode] = header
                files.update(dict.fromkeys(waiting.pop(head.inode, ()), Member(header=header)))
            elif is_guc and is_linked and head.inode not in shared:
                waiting.setdefault(head.inode, []).append(path)
            if is_guc or MODULE.fullmatch(path):
                files[path] = Member(header=header)
        if len(files) > MEMBERS_LIMIT:
            raise Stopped("too_large", f"more than {MEMBERS_LIMIT} files of GuC")
        if data and len(data) < head.size:
            raise ValueError("ends inside an archive")
        stream.skip(head.size - len(data) + -head.size % 4)


def packed(files: Iterable[tuple[str, int, bytes]]) -> bytes:
    """An archive of (name, mode, content), as `read_archive` reads it."""

    def parts() -> Iterator[bytes]:
        for inode, (name, mode, content) in enumerate((*files, (TRAILER, 0, b"")), 1):
            own = name.encode("utf-8") + b"\0"
            numbers = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(own), 0)
            head = MAGICS[0] + b"".join(b"%08x" % number for number in numbers) + own
            yield head + bytes(-len(head) % 4)
            yield content + bytes(-len(content) % 4)

    return b"".join(parts())


def reduced(files: dict[str, Member]) -> bytes:
    """What a recording keeps of an initrd: an archive of the files of interest, of GuC files the header.

    One that no tool unpacked is kept as what only a tool unpacks, so that the reason stays the same.
    """

    def content(header: Reading[bytes]) -> bytes:
        return (ZSTD if header.unread == "tool_missing" else b"") if header.value is None else header.value

    return packed(
        (path, stat.S_IFLNK | 0o777, one.link.encode("utf-8"))
        if one.link
        else (path, stat.S_IFREG | 0o644, content(one.header))
        for path, one in files.items()
    )


# -- compression ------------------------------------------------------------------------------------------------------


class Gzip:
    """zlib's object for gzip with the interface of the others."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(16 + zlib.MAX_WBITS)

    def decompress(self, data: bytes, limit: int) -> bytes:
        """At most `limit` bytes."""
        return self._inner.decompress(self._inner.unconsumed_tail + data, limit)

    @property
    def needs_input(self) -> bool:
        """Is nothing left of what was given?"""
        return not self._inner.unconsumed_tail

    @property
    def eof(self) -> bool:
        """Was the end reached?"""
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        """What was given beyond the end."""
        return self._inner.unused_data


def _lzma(kind: str) -> Any:
    lzma = importlib.import_module("lzma")
    return lzma.LZMADecompressor(getattr(lzma, kind), memlimit=MEMORY)


def _no_module() -> Any:
    raise ImportError("the standard library has none")


def zstd_end(file: Opened, at: int) -> int:
    """Place behind a frame of zstd, whose blocks tell their length (RFC 8878, 3.1.1). Raises ValueError, OSError."""
    begins = file.read(at + 4, 1)
    if not begins:
        raise ValueError("ends inside its compressed part")
    flags = begins[0]
    is_single, sizes = flags >> 5 & 1, (flags >> 6, flags & 3)
    at += 5 + (not is_single) + (is_single, 2, 4, 8)[sizes[0]] + (0, 1, 2, 4)[sizes[1]]
    while True:
        head = int.from_bytes(file.read(at, 3).ljust(3, b"\xff"), "little")
        is_last, kind, size = head & 1, head >> 1 & 3, head >> 3
        at += 3 + (1 if kind == 1 else size)  # kind 1: one byte, repeated
        at += 4 * (is_last and flags >> 2 & 1)  # a checksum
        if kind == 3 or at > file.size:
            raise ValueError("ends inside its compressed part")
        if is_last:
            return at


@dataclass(frozen=True)
class Format:
    """A compression. magic: its first bytes. make: a decompressor of the standard library; it raises ImportError where
    this Python has none. tool: the command that does it else, from the package of the same name. end: place behind a
    part, where that can be told without unpacking it; else the command has to take the file to its end.
    """

    magic: bytes
    make: Callable[[], Any]
    tool: tuple[str, ...]
    end: Callable[[Opened, int], int] | None = None


FORMATS = (
    Format(b"\x1f\x8b", Gzip, ("gzip", "-dc")),
    Format(b"\xfd7zXZ\0", lambda: _lzma("FORMAT_XZ"), ("xz", "-dc")),
    Format(b"\x5d\0\0", lambda: _lzma("FORMAT_ALONE"), ("xz", "-dc", "--format=lzma")),
    Format(b"BZh", lambda: importlib.import_module("bz2").BZ2Decompressor(), ("bzip2", "-dc")),
    # Python 3.14 has it
    Format(ZSTD, lambda: importlib.import_module("compression.zstd").ZstdDecompressor(), ("zstd", "-dc"), zstd_end),
    Format(b"\x02\x21\x4c\x18", _no_module, ("lz4", "-dc")),
    Format(b"\x89LZO", _no_module, ("lzop", "-dc")),
)


class Unpacking:
    """A compressed part of a file, unpacked as it is asked for. at: place of what was not given to it yet."""

    def __init__(self, tool: Any, file: Opened, at: int, budget: Budget) -> None:
        self._tool, self._file, self._budget = tool, file, budget
        self.at = at

    def more(self, _: int) -> bytes:
        """The next piece, empty at the end. Raises ValueError where it cannot be unpacked."""
        is_hungry = False
        while not self._tool.eof:
            asked = is_hungry or self._tool.needs_input
            data = self._file.read(self.at, CHUNK) if asked else b""
            self.at += len(data)
            try:
                piece = bytes(self._tool.decompress(data, CHUNK))
            except Exception as error:  # each module has an error of its own
                raise ValueError(f"cannot be unpacked: {error}") from None
            self._budget.spend(len(piece))
            if piece:
                return piece
            if asked and not data and not self._tool.eof:
                raise ValueError("ends inside its compressed part")
            is_hungry = True  # that of zstd may give nothing although it says that it needs nothing
        return b""

    @property
    def end(self) -> int:
        """Place behind the part, once it was unpacked to its end."""
        return self.at - len(self._tool.unused_data)


def read_unpacked(stream: Stream, files: dict[str, Member], unpack: Unpack, budget: Budget) -> None:
    """All archives of a compressed part. Raises ValueError."""
    stream.skip_zeros()
    if not stream.peek(1):
        raise ValueError("a compressed part holds no archive")
    while stream.peek(1):
        read_archive(stream, files, unpack, budget)
        stream.skip_zeros()


def read_by_tool(
    pieces: Pieces[bytes], files: dict[str, Member], unpack: Unpack, budget: Budget, more_follows: bool
) -> None:
    """A part of a file by a command. Raises ValueError, or Stopped with what the command says.

    more_follows: the command cannot know where the part ends, and what it says of the rest is none of it.
    """
    source = iter(pieces)

    def more(_: int) -> bytes:
        piece = next(source, b"")
        budget.spend(len(piece))
        return piece

    trouble: ValueError | None = None
    try:
        read_unpacked(Stream(more), files, unpack, budget)
    except ValueError as error:
        trouble = error
    if next(source, None) is not None:  # it goes on, so what it gave is at fault, not the command
        pieces.stop()
        raise trouble or ValueError("goes on behind its end")
    end = pieces.end
    if end.value is None:
        raise Stopped(end.unread, end.detail)
    if end.value.rc != 0 and (trouble is not None or not more_follows):
        raise Stopped("exit", shorten(f"{pieces.source}: exit {end.value.rc}: {end.value.stderr}"))
    if trouble is not None:
        raise trouble


def read_segments(reader: Reader, file: Opened, files: dict[str, Member], unpack: Unpack, budget: Budget) -> None:
    """All parts of an initrd. Raises ValueError for one that is not understood, Stopped, OSError."""
    stream = Plain(file)
    stream.skip_zeros()
    if not stream.peek(1):
        raise ValueError("is empty")
    while start := stream.peek(6):
        form = next((one for one in FORMATS if start.startswith(one.magic)), None)
        if start in MAGICS:
            read_archive(stream, files, unpack, budget)
        elif form is None:
            raise ValueError(f"neither an archive nor a compressed one at byte {stream.at}: {start!r}")
        else:
            stream = Plain(file, read_compressed(reader, file, stream.at, form, files, unpack, budget))
        budget.spend()
        stream.skip_zeros()


def read_compressed(
    reader: Reader,
    file: Opened,
    at: int,
    form: Format,
    files: dict[str, Member],
    unpack: Unpack,
    budget: Budget,
) -> int:
    """A compressed part; gives the place behind it. Raises as `read_segments`."""
    try:
        part = Unpacking(form.make(), file, at, budget)
    except ImportError:
        end = file.size if form.end is None else form.end(file, at)
        seconds = max(0.1, budget.ends - time.monotonic())
        read_by_tool(reader.filtered(form.tool, file, at, seconds), files, unpack, budget, end < file.size)
        return end
    read_unpacked(Stream(part.more), files, unpack, budget)
    return part.end


# -- readers ----------------------------------------------------------------------------------------------------------


def read_header(reader: Reader, data: bytes, source: str) -> Reading[bytes]:
    """First bytes of a GuC blob, plain or compressed: by this Python, else by the tool."""
    try:
        return Reading(data, source).then(unpacked)
    except LookupError:
        pieces = reader.filtered(("zstd", "-dc"), data)
    found = b""
    for piece in pieces:
        found += piece
        if len(found) >= HEADER:
            pieces.stop()
            return Reading(found[:HEADER], source)
    ended = pieces.end
    if ended.value is None:
        return Reading.no(ended.unread or "io", ended.detail, source)
    return Reading.no("not_understood", shorten(f"{len(found)} bytes unpacked: {ended.value.stderr}"), source)


def read_on_disk(reader: Reader, name: str, release: str, known: dict[str, Reading[str]]) -> Reading[str]:
    """Version of the file that the driver would take from the disk. known: versions by path that were read before."""
    folders = (f"updates/{release}/", "updates/", f"{release}/", "") if release else ("updates/", "")
    for path in (f"/lib/firmware/{folder}{name}{ending}" for ending in ENDINGS for folder in folders):
        if path in known and known[path].value is not None:
            return known[path]
        blob = read_blob(reader, path)
        if blob.unread == "absent":
            continue
        if blob.value is None:
            return blob.then(lambda _: "")
        header = read_header(reader, blob.value, path)
        if header.value is not None:
            reader.keep(path, header)
        return header.then(parse_css_header)
    return Reading.no("absent", "no such file on disk", f"/lib/firmware/{name}")


def followed(files: dict[str, Member], path: str) -> Reading[bytes]:
    """Header of a file in the initrd, links followed."""
    here = path
    for _ in range(LINKS_FOLLOWED):
        one = files.get(here)
        if one is None:
            return Reading.no("not_understood", f"is a link to {here}, which is no GuC file in it", path)
        if not one.link:
            return one.header
        target = one.link if one.link.startswith("/") else f"/{posixpath.dirname(here)}/{one.link}"
        here = plain_name(posixpath.normpath(target))
    return Reading.no("not_understood", "is a link to a link, and so on", path)


def taken(files: dict[str, Member], release: str = "") -> dict[str, str]:
    """Name that the driver asks for -> path of the file in the initrd that the kernel takes of all with that name.

    release: of the kernel, whose folders of other releases are none of it; ``""`` where it is not known.
    """
    order: list[tuple[int, int, str, str]] = []
    for path in files:
        match = GUC.fullmatch(path)
        if match:
            folder = match["folder"] or ""
            if release and folder not in (f"updates/{release}/", "updates/", f"{release}/", ""):
                continue
            rank = 2 * (not folder.startswith("updates/")) + (folder in ("", "updates/"))
            order.append((ENDINGS.index(match["ending"] or ""), rank, match["name"], path))
    found: dict[str, str] = {}
    for _, _, name, path in sorted(order):
        found.setdefault(name, path)
    return found


def read_files(reader: Reader, initrd: Reading[tuple[str, ...]]) -> Reading[dict[str, Member]]:
    """Files of interest of all that an entry loads; unread as a whole where one part of it is."""
    if initrd.value is None:
        return initrd.then(lambda _: {})
    if not initrd.value:
        return Reading.no("absent", "the entry loads no initrd", initrd.source)
    budget = Budget(time.monotonic() + DEADLINE)
    found: dict[str, Member] = {}
    sources = []
    for name in initrd.value:
        if "$" in name:  # such as $tuned_initrd, which is empty on most hosts
            continue
        there = file_of(reader, name)
        if there.value is None:
            return there.then(lambda _: {})
        if not there.value:
            return Reading.no("absent", "is not there", there.source)
        files = read_file(reader, there.source, budget)
        if files.value is None:
            return files
        found.update(files.value)
        sources.append(there.source)
    return Reading(found, ", ".join(sources))


def read_file(reader: Reader, path: str, budget: Budget) -> Reading[dict[str, Member]]:
    """Files of interest of one file that the loader puts into memory."""
    opened = reader.opened(path)
    if opened.value is None:
        return opened.then(lambda _: {})
    files: dict[str, Member] = {}
    result: Reading[dict[str, Member]] = Reading(files, path)
    with opened.value as file:
        try:
            read_segments(reader, file, files, lambda data: read_header(reader, data, path), budget)
        except ValueError as error:
            result = Reading.no("not_understood", shorten(str(error)), path)
        except Stopped as error:
            result = Reading.no(error.args[0], error.args[1], path)
        except OSError as error:
            result = refused(error, path)
    reader.keep(path, result.then(reduced))
    return result


def may_have_xe(pcie: Pcie) -> bool:
    """Is there a card that xe drives or could drive? Yes where that could not be read."""
    gpus = pcie.gpus.value
    return gpus is None or any(gpu.vendor == gpu_ids.INTEL and gpu.driver.value != "i915" for gpu in gpus)


def read(reader: Reader, pcie: Pcie, next_boot: NextBoot, options: Options) -> Initrd:
    if not options.initrd or not may_have_xe(pcie):
        why = "no card that xe drives" if options.initrd else "hostcheck next-boot reads it"
        no: Reading[Any] = Reading.no("not_asked", why)
        return Initrd(no, no, no)
    files = read_files(reader, next_boot.initrd)
    known = {one.path: one.version for one in next_boot.guc_versions.value or ()}
    release = next_boot.release.value or ""
    makers = [path.rpartition("/")[2] for path in MAKERS if reader.stat(path).value is not None]
    return Initrd(
        modules=files.then(lambda found: tuple(sorted(path for path in found if MODULE.fullmatch(path)))),
        guc=files.then(
            lambda found: tuple(
                Guc(
                    name,
                    path,
                    followed(found, path).then(parse_css_header),
                    read_on_disk(reader, name, release, known),
                )
                for name, path in sorted(taken(found, release).items())
            )
        ),
        maker=Reading(makers[0], MAKERS[0]) if makers else Reading.no("absent", "no tool that makes one", MAKERS[0]),
    )
