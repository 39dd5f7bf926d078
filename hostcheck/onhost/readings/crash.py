"""What would be left of a crash: a loaded crash kernel, a network console, records that the firmware keeps."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..reader import Reader, Reading
from .storage import read_lines

PSTORE = "/sys/fs/pstore"
ARCHIVE = "/var/lib/systemd/pstore"
BACKEND = "/sys/module/pstore/parameters/backend"
KEXEC = "/sys/kernel/kexec_crash_loaded"
KEXEC_NEW = "/sys/kernel/kexec/crash_loaded"
NETCONSOLE = "/sys/module/netconsole"
TARGETS = "/sys/kernel/config/netconsole"


@dataclass(frozen=True)
class Crash:
    """Capture of crashes.

    pstore_mounted; pstore_backend: e.g. ``efi_pstore``, ``""`` when none is registered. pstore_records: names of what
    the firmware keeps now. pstore_archive: names of what systemd-pstore took from there after earlier boots.
    kdump_loaded: is a crash kernel in memory? crashkernel: word of the command line that reserves memory for it, or "".
    netconsole: targets that are switched on, by name; ``module`` for one given to the module or on the command line.
    """

    pstore_mounted: Reading[bool]
    pstore_backend: Reading[str]
    pstore_records: Reading[tuple[str, ...]]
    pstore_archive: Reading[tuple[str, ...]]
    kdump_loaded: Reading[bool]
    crashkernel: Reading[str]
    netconsole: Reading[tuple[str, ...]]


def parse_switch(text: str) -> bool:
    """Return a 0 or 1. Raises ValueError for anything else."""
    if text.strip() not in ("0", "1"):
        raise ValueError(f"expected 0 or 1, got {text!r}")
    return text.strip() == "1"


def parse_backend(text: str) -> str:
    """Return the backend of pstore; the kernel writes ``(null)`` for none.

    >>> parse_backend("efi_pstore\\n"), parse_backend("(null)\\n")
    ('efi_pstore', '')

    Raises ValueError for anything that is not one word.
    """
    word = text.strip()
    if word in ("(null)", "N"):
        return ""
    if not re.fullmatch(r"[\w-]{1,64}", word):
        raise ValueError(f"expected the name of a backend, got {text!r}")
    return word


def parse_argument(text: str, name: str) -> str:
    """Return the last word of a kernel command line that sets an argument, or ``""``.

    >>> parse_argument("ro crashkernel=512M quiet\\n", "crashkernel")
    'crashkernel=512M'
    """
    return next((word for word in reversed(text.split()) if word.startswith(f"{name}=")), "")


def records(reader: Reader, path: str) -> Reading[tuple[str, ...]]:
    """Names in a folder of records; () where there is no such folder."""
    names = reader.names(path)
    if names.unread == "absent":
        return Reading((), path)
    return names.then(lambda all_of: tuple(name for name in all_of if not name.startswith(".")))


def read_netconsole(reader: Reader, command_line: Reading[str]) -> Reading[tuple[str, ...]]:
    """Targets that are switched on. Of the command line only whether there is one: it holds addresses."""
    if command_line.then(lambda text: parse_argument(text, "netconsole")).value:
        return Reading(("module",), command_line.source)
    loaded = reader.names(NETCONSOLE)
    if loaded.unread == "absent":
        return Reading((), NETCONSOLE)
    targets = reader.names(TARGETS)
    if targets.unread not in (None, "absent"):
        return targets
    found = []
    for name in targets.value or ():
        enabled = reader.line(f"{TARGETS}/{name}/enabled").then(parse_switch)
        if enabled.unread not in (None, "absent"):
            return enabled.then(lambda _: ())
        found += [name] if enabled.value else []
    return loaded.then(lambda _: tuple(found))


def captures(crash: Crash) -> tuple[list[str], list[Reading[object]]]:
    """What is known to keep a crash, for a person, and what could not be read of it.

    A crash kernel counts once it is loaded: memory reserved by ``crashkernel=`` alone keeps nothing. A registered
    pstore that never held a record is no proof either (it "was always empty" on the lab's hosts).
    """
    found = []
    if crash.kdump_loaded.value:
        found.append("a crash kernel is loaded")
    if crash.netconsole.value:
        found.append(f"netconsole sends to {len(crash.netconsole.value)} target(s)")
    kept = (*(crash.pstore_records.value or ()), *(crash.pstore_archive.value or ()))
    if kept:
        found.append(f"pstore has kept {len(kept)} record(s)")
    readings = (crash.kdump_loaded, crash.netconsole, crash.pstore_records, crash.pstore_archive)
    return found, [reading for reading in readings if reading.value is None]  # type: ignore[misc]


def read(reader: Reader) -> Crash:
    command_line = reader.text("/proc/cmdline")
    kexec = reader.line(KEXEC)
    if kexec.unread == "absent":
        kexec = kexec.or_(reader.line(KEXEC_NEW))
    backend = reader.line(BACKEND)
    return Crash(
        pstore_mounted=read_lines(reader).then(
            lambda lines: any(line.kind == "pstore" and line.point == PSTORE for line in lines)
        ),
        pstore_backend=Reading("", BACKEND) if backend.unread == "absent" else backend.then(parse_backend),
        pstore_records=records(reader, PSTORE),
        pstore_archive=records(reader, ARCHIVE),
        # without CONFIG_KEXEC there is no such file, and no crash kernel
        kdump_loaded=Reading(False, KEXEC) if kexec.unread == "absent" else kexec.then(parse_switch),
        crashkernel=command_line.then(lambda text: parse_argument(text, "crashkernel")),
        netconsole=read_netconsole(reader, command_line),
    )
