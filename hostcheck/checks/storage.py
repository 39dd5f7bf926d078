"""Is there space, is a model where a disk is really mounted, and has a file system counted errors?"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from ..expectations import Expectation
from ..findings import HOST, Finding, Status, Subject, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.readings.storage import Mount
from .presence import no_card, not_applicable

GIB = 1 << 30
EVIDENCE = ("/var/log/journal", "/var/lib/hostcheck")
# File systems without a journal of their own, or of another system: after a crash they are dirty and stay unmounted.
FOREIGN = re.compile(r"ntfs\S*|fuseblk|exfat|vfat|msdos|hfs\S*")
IN_MEMORY = ("tmpfs", "ramfs", "overlay")


def mount_of(mounts: tuple[Mount, ...], path: str) -> Mount | None:
    """The mount that a path lies on: that with the longest point above it."""
    above = [one for one in mounts if one.point == "/" or path == one.point or path.startswith(f"{one.point}/")]
    return max(above, key=lambda one: len(one.point), default=None)


def _where(mount: Mount) -> str:
    disks = ", ".join(mount.devices) or mount.source
    return f"{mount.kind} on {disks}" + (f" ({', '.join(mount.controllers)})" if mount.controllers else "")


@check("storage.root_free", title="The root file system has space")
def root_free(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`storage.root_free`

    Why: logs, dumps and images go to the root file system; the lab's gates want about 12 GiB and it was once 92 % full
    (lab-host-facts 2.4). A full one also loses the evidence of the next fault.
    """
    without = no_card("storage.root_free", facts, expectation)
    if without is not None:
        yield without
        return
    root = mount_of(need(facts.storage.mounts), "/")
    if root is None:
        yield not_applicable("storage.root_free", "the root file system is on no disk", facts.storage.mounts.source)
        return
    size, free = need(root.size), need(root.free)
    wanted = expectation.storage.root_free_gib
    low = free < wanted * GIB
    yield Finding(
        "storage.root_free",
        HOST,
        Status.warn if low else Status.ok,
        seen=f"{free / GIB:.1f} of {size / GIB:.1f} GiB free, {_where(root)}",
        wanted=f"at least {wanted:g} GiB",
        source=root.free.source,
        next_step="sudo du -xh --max-depth=2 / | sort -h | tail" if low else "",
    )


@check("storage.model", title="Declared model paths lie on a mount of their own, with space")
def model(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`storage.model`

    Why: a disk that is not mounted leaves its folder, and downloads then fill the root file system; the lab's root was
    92 % full because a "mount" was a folder (lab-host-facts 2.4).
    """
    paths = expectation.storage.model_paths
    if not paths:
        yield not_applicable("storage.model", "no model path is declared", facts.storage.mounts.source)
        return
    mounts = need(facts.storage.mounts)
    wanted = expectation.storage.model_free_gib
    for path in paths:
        subject = Subject("path", path)
        mount = mount_of(mounts, path)
        if mount is None or mount.point == "/":
            yield Finding(
                "storage.model",
                subject,
                Status.fail,
                seen="no mount: it is part of the root file system",
                wanted="a mount",
                source=facts.storage.mounts.source,
                next_step=f"findmnt --target {shlex.quote(path)}; sudo mount -a",
            )
            continue
        if not wanted:
            yield Finding("storage.model", subject, Status.ok, seen=_where(mount), source=facts.storage.mounts.source)
        elif mount.free.value is None:
            yield unknown("storage.model", mount.free, subject)
        else:
            low = mount.free.value < wanted * GIB
            yield Finding(
                "storage.model",
                subject,
                Status.warn if low else Status.ok,
                seen=f"{mount.free.value / GIB:.1f} GiB free, {_where(mount)}",
                wanted=f"at least {wanted:g} GiB",
                source=mount.free.source,
                next_step=f"sudo du -xh --max-depth=2 {shlex.quote(mount.point)} | sort -h | tail" if low else "",
            )


@check("storage.fs_errors", title="No file system has counted errors")
def fs_errors(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`storage.fs_errors`

    Why: ext4 keeps the number of errors that it has found since its last check, across boots; a host with bad memory or
    a bad link to its disk shows it there (lab-host-facts 2.4).
    """
    judged = False
    seen: set[str] = set()
    for mount in need(facts.storage.mounts):
        if mount.kind != "ext4" or mount.source in seen:
            continue
        seen.add(mount.source)
        judged = True
        subject = Subject("filesystem", mount.point)
        if mount.errors.value is None:
            yield unknown("storage.fs_errors", mount.errors, subject)
        elif mount.errors.value:
            yield Finding(
                "storage.fs_errors",
                subject,
                Status.warn,
                seen=f"{mount.errors.value} errors since the last check, {_where(mount)}",
                wanted="0",
                source=mount.errors.source,
                next_step=f"sudo tune2fs -l {shlex.quote(mount.source)} | grep -iE 'error|check'",
            )
        else:
            yield Finding("storage.fs_errors", subject, Status.ok, seen="none", source=mount.errors.source)
    if not judged:
        yield not_applicable("storage.fs_errors", "no ext4 here", facts.storage.mounts.source)


@check("storage.smart", title="The drive below the root file system reports no damage")
def smart(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`storage.smart`

    Why: data that a drive could not recover, or a warning of its own, explains crashes that look like those of a card.
    Its count of shutdowns without notice counts freezes: 38 of 76 on a lab's host (lab-host-facts 2.4). Entries of its
    error log are told alone: commands that a drive does not know stand there as well. Asked with nvme-cli, as root.
    """
    without = no_card("storage.smart", facts, expectation)
    if without is not None:
        yield without
        return
    drive = facts.nvme
    if drive.name.unread == "absent":
        yield not_applicable("storage.smart", drive.name.detail, drive.name.source)
        return
    subject = Subject("drive", need(drive.name))
    if drive.health.value is None:
        missing = drive.health.unread == "tool_missing"
        step = "install the package nvme-cli" if missing else f"sudo nvme smart-log /dev/{drive.name.value}"
        yield unknown("storage.smart", drive.health, subject, step)
        return
    found = drive.health.value
    what = " ".join(filter(None, (drive.model.value, drive.firmware.value)))
    bad = [*found.warnings, *([f"{found.media_errors} errors of its media"] if found.media_errors else [])]
    told = [f"{found.log_entries} entries in its error log"] if found.log_entries else []
    seen = [*bad, *told, f"{found.unsafe_shutdowns} of {found.power_cycles} shutdowns without notice"]
    yield Finding(
        "storage.smart",
        subject,
        Status.warn if bad else Status.info if told else Status.ok,
        seen=f"{', '.join(seen)}{f' ({what})' if what else ''}",
        wanted="no warning and no error of its media" if bad else "",
        source=drive.health.source,
        next_step=f"sudo nvme error-log /dev/{drive.name.value}  # save what it holds first" if bad else "",
    )


@check("storage.evidence_fs", title="What tells of a crash is kept on a disk")
def evidence(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`storage.evidence_fs`

    Why: the journal and the evidence of a bring-up are what is left of a freeze. In the lab NTFS volumes came back
    dirty and unmounted (lab-host-facts 2.4), and a journal in memory is gone with the boot. Its last lines are always
    missing: it is written every five minutes where nothing else is set, so a log that ends early is no sign
    (lab-host-facts 1.4, 2.6).
    """
    without = no_card("storage.evidence_fs", facts, expectation)
    if without is not None:
        yield without
        return
    mounts, journald = need(facts.storage.mounts), facts.journald
    on_disk = need(journald.on_disk)
    problems, where = [], []
    for path in EVIDENCE if on_disk else EVIDENCE[1:]:
        mount = mount_of(mounts, path)
        if mount is None or mount.kind in IN_MEMORY:
            where.append(f"{path} is in memory")
        elif mount.read_only or FOREIGN.fullmatch(mount.kind):
            problems.append(f"{path} is on {_where(mount)}{', read-only' if mount.read_only else ''}")
        elif _where(mount) not in where:
            where.append(_where(mount))
    if problems:
        yield Finding(
            "storage.evidence_fs",
            HOST,
            Status.warn,
            seen="; ".join(problems),
            wanted="a file system that survives a crash, such as ext4",
            source=facts.storage.mounts.source,
            next_step=f"findmnt --target {problems[0].split()[0]}",
        )
        return
    if not on_disk or any(text.endswith("in memory") for text in where):
        seen = "the journal is kept in memory and gone with the boot" if not on_disk else "; ".join(where)
        step = "sudo mkdir -p /var/log/journal && sudo systemctl restart systemd-journald" if not on_disk else ""
        yield Finding("storage.evidence_fs", HOST, Status.info, seen, source=journald.on_disk.source, next_step=step)
        return
    sync = journald.sync_seconds.value
    late = f"; lines of the journal are on disk after {sync:g} s at the latest" if sync is not None else ""
    yield Finding("storage.evidence_fs", HOST, Status.ok, "; ".join(where) + late, source=journald.on_disk.source)
