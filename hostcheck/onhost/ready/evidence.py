"""Keep what tells why a device was lost: the coredump before the kernel drops it, the log, and readings.

Kept below ``/var/lib/hostcheck/evidence/BOOT ID``, for root alone, within limits, and never deleted by this toolkit:
what no longer fits is not kept, and said. The coredump's node is only read (a write to it deletes it). The kernel drops
a dump after five minutes (drivers/base/devcoredump.c, DEVCD_TIMEOUT); xe asks for an hour (xe_devcoredump.c).
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from ..gather import Options, gather
from ..plain import to_plain
from ..reader import Reader
from ..recording import utc
from ..settings.files import Failed, File, Writer
from .log import DUMPS, boot_id, dumps, messages, stamped, ways
from .mark import EVIDENCE, remove

SCHEMA = "hostcheck/evidence/1"
DUMP_LIMIT = 64 << 20  # bytes of one dump; those of xe with the memory of a hung job are far larger
TOTAL_LIMIT = 512 << 20  # bytes of all evidence of a host
FREE = 1 << 30  # bytes that stay free on the file system
SMALL = 8 << 20  # bytes of the total that dumps leave for log and readings
LOG_LIMIT = 1 << 20  # bytes of each part of the log
NEWEST = 5000  # lines
COPY_SECONDS = 60.0
SUBSET = ("identity", "kernel_log", "pcie", "holders", "memory", "last_boot")


@dataclass
class Kept:
    """What was kept. files: name -> bytes. cut: name -> what of it, or all of it, was not kept, and why.

    was_ready: was there a ready mark, which is gone now?
    """

    folder: str
    was_ready: bool
    files: dict[str, int] = field(default_factory=dict)
    cut: dict[str, str] = field(default_factory=dict)


def keep(
    writer: Writer, reader: Reader, reason: str, dump_limit: int = DUMP_LIMIT, total_limit: int = TOTAL_LIMIT
) -> Kept:
    """Take the ready mark away, then keep what there is. Raises Failed where nothing can be kept."""
    was_ready = remove(writer)
    booted = boot_id(reader)
    if booted.value is None:
        raise Failed(f"{booted.source}: {booted.unread}: {booted.detail}; the ready mark is gone, nothing was kept")
    kept = Kept(f"{EVIDENCE}/{booted.value}", was_ready)
    for folder in ("/var/lib/hostcheck", EVIDENCE, kept.folder):
        writer.make_folders(f"{folder}/.", mode=0o700)
    stamp = re.sub(r"[-:]|\..*", "", utc(reader.taken_at())).rstrip("Z") + "Z"
    _dumps(writer, reader, kept, dump_limit, total_limit)
    _small(writer, kept, f"kernel-log-{stamp}.txt", _log(reader, kept), total_limit)
    facts = json.dumps(to_plain(gather(reader, Options(), SUBSET)), indent=1, sort_keys=True)
    _small(writer, kept, f"readings-{stamp}.json", facts + "\n", total_limit)
    told = {"schema": SCHEMA, "taken_at": utc(reader.taken_at()), "boot_id": booted.value, "reason": reason}
    _small(writer, kept, f"evidence-{stamp}.json", json.dumps({**told, **asdict(kept)}, indent=1) + "\n", total_limit)
    return kept


def _room(writer: Writer, reader: Reader, total_limit: int) -> tuple[int, str]:
    """Bytes that may still be written for a dump, and what bounds them."""
    of_total = total_limit - SMALL - writer.size(EVIDENCE)
    space = reader.space("/var/lib/hostcheck")
    free = space.value[1] - FREE if space.value is not None else of_total
    if free < of_total:
        return free, f"{FREE >> 20} MiB stay free on the disk"
    return of_total, f"evidence takes at most {total_limit >> 20} MiB in all, and none is deleted"


def _dumps(writer: Writer, reader: Reader, kept: Kept, dump_limit: int, total_limit: int) -> None:
    for node, bdf in (dumps(reader).value or {}).items():
        name = f"{node}-{bdf.replace(':', '-') or 'unknown'}.coredump"
        if writer.there(f"{kept.folder}/{name}"):
            continue  # a dump's number is used once a boot
        room, bound = _room(writer, reader, total_limit)
        limit = min(dump_limit, room)
        bound = bound if room < dump_limit else f"at most {dump_limit} bytes of a dump are kept"
        if limit <= 0:
            kept.cut[name] = f"not kept: {bound}"
            continue
        try:
            size, is_cut = _copied(writer, f"{DUMPS}/{node}/data", f"{kept.folder}/{name}", limit)
        except Failed as error:
            kept.cut[name] = f"not kept: {error}"
            continue
        kept.files[name] = size
        if is_cut:
            kept.cut[name] = f"only its first {size} bytes: {bound}"


def _copied(writer: Writer, source: str, path: str, limit: int, seconds: float = COPY_SECONDS) -> tuple[int, bool]:
    """Copy in a child that is killed, or abandoned in the kernel, at its deadline: the driver writes a dump as it is
    read, and this one's card is sick. Raises Failed.
    """
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer: Any
        try:
            answer = writer.copy(source, path, limit)
        except Failed as error:
            answer = str(error)
        except BaseException as error:
            answer = f"{source}: {type(error).__name__}: {error}"
        try:
            os.write(theirs, json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    ends = time.monotonic() + seconds
    with os.fdopen(ours, "rb", buffering=0) as pipe:
        is_there = bool(select.select([pipe], [], [], seconds)[0])
        data = pipe.read(1 << 16) if is_there else b""
    if not data:
        os.kill(pid, signal.SIGKILL)
    while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < ends + 2.0:
        time.sleep(0.01)
    if not data:
        writer.tidy(path)
        raise Failed(f"{source}: could not be copied within {seconds:.0f} s")
    answer = json.loads(data)
    if isinstance(answer, str):
        raise Failed(answer)
    return int(answer[0]), bool(answer[1])


def _small(writer: Writer, kept: Kept, name: str, text: str, total_limit: int) -> None:
    """Write a text, unless all evidence would then take more than it may."""
    size = len(text.encode("utf-8"))
    if writer.size(EVIDENCE) + size > total_limit:
        kept.cut[name] = f"not kept: evidence takes at most {total_limit >> 20} MiB in all, and none is deleted"
        return
    writer.put(f"{kept.folder}/{name}", File(text=text, mode=0o600, owner=(0, 0)))
    kept.files[name] = size


def _log(reader: Reader, kept: Kept) -> str:
    """The lines that name a card or a bridge above one, from the first on, and the newest of all."""
    names = tuple(sorted(ways(reader).value or ()))
    named = messages(reader, lambda line: "[drm" in line or any(name in line for name in names))
    newest = messages(reader, lambda _: True, NEWEST)
    parts = []
    for title, found in (("lines of the cards and of the way to them", named), ("the newest lines", newest)):
        if found.value is None:
            kept.cut["kernel log"] = f"not kept: {found.unread}: {found.detail}"
            parts.append(f"== {title}: unread: {found.unread}: {found.detail}\n")
            continue
        lines, size = _within(stamped(*one) for one in found.value)
        if len(lines) < len(found.value):
            kept.cut[f"kernel log, {title}"] = f"{len(lines)} of {len(found.value)} lines, {size} bytes"
        parts.append(f"== {title}: {len(lines)} of {len(found.value)}\n" + "".join(f"{line}\n" for line in lines))
    return "".join(parts)


def _within(lines: Iterable[str]) -> tuple[list[str], int]:
    """The first lines that fit into `LOG_LIMIT` bytes, and their size."""
    found: list[str] = []
    size = 0
    for line in lines:
        size += len(line.encode("utf-8", "replace")) + 1
        if size > LOG_LIMIT:
            return found, size - len(line.encode("utf-8", "replace")) - 1
        found.append(line)
    return found, size
