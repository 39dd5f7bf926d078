"""What the NVMe drive below the root file system says of itself (NVMe base specification, SMART / health log page).

The log is asked for with nvme-cli, by one command for one drive, and only as root: reading it changes nothing on the
drive. Serial numbers are neither asked for nor kept.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..reader import Reader, Reading, shorten

if TYPE_CHECKING:
    from .identity import Identity
    from .storage import Storage

CLASS = "/sys/class/nvme"
TIMEOUT = 8.0  # seconds; a drive that hangs holds whoever asks it
WARNINGS = (  # bits of critical_warning, from the lowest
    "spare capacity below its threshold",
    "temperature beyond a threshold",
    "reliability degraded by errors",
    "read-only",
    "backup of its memory failed",
    "persistent memory read-only",
)


@dataclass(frozen=True)
class Health:
    """Health of a drive. warnings: what it warns of, in words. media_errors: data that could not be recovered.

    log_entries: errors in its log, of commands that it does not know too. unsafe_shutdowns, power_cycles: counts over
    its life. percent_used: of its rated life, beyond 100 too.
    """

    warnings: tuple[str, ...]
    media_errors: int
    log_entries: int
    unsafe_shutdowns: int
    power_cycles: int
    percent_used: int


@dataclass(frozen=True)
class Nvme:
    """The drive below the root file system. name: e.g. ``nvme0``; absent where it is no NVMe drive."""

    name: Reading[str]
    model: Reading[str]
    firmware: Reading[str]
    health: Reading[Health]


def _number(found: dict[str, Any], *names: str) -> int:
    """A count, which newer versions of the tool write as text where it is long. Raises ValueError."""
    value = next((found[name] for name in names if name in found), None)
    value = value.get("value") if isinstance(value, dict) else value
    text = str(value).replace(",", "")
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,39}", text):
        raise ValueError(f"expected a number for {names[0]}, got {shorten(str(value), 40)!r}")
    return int(text)


def parse_health(text: str) -> Health:
    """Return what ``nvme smart-log -o json`` prints, of version 1 or 2 of the tool.

    >>> parse_health('{"critical_warning":5,"media_errors":0,"num_err_log_entries":2,"unsafe_shutdowns":"38",'
    ...              '"power_cycles":76,"percent_used":3}').warnings
    ('spare capacity below its threshold', 'reliability degraded by errors')

    Raises ValueError for text of another form.
    """
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, got {shorten(text, 80)!r}")
    bits = _number(found, "critical_warning")
    told = [word for bit, word in enumerate(WARNINGS) if bits >> bit & 1]
    if bits and not told:
        told = [f"warning {bits:#x}"]
    return Health(
        warnings=tuple(told),
        media_errors=_number(found, "media_errors"),
        log_entries=_number(found, "num_err_log_entries"),
        unsafe_shutdowns=_number(found, "unsafe_shutdowns"),
        power_cycles=_number(found, "power_cycles"),
        percent_used=_number(found, "percent_used", "percentage_used"),
    )


def drive_of(storage: Storage) -> Reading[str]:
    """Name of the controller below the root file system, e.g. ``nvme0``; absent where it lies on another disk."""
    if storage.mounts.value is None:
        return storage.mounts.then(lambda _: "")
    root = next((mount for mount in storage.mounts.value if mount.point == "/"), None)
    disks = root.devices if root is not None else ()
    names = [match.group(1) for disk in disks if (match := re.fullmatch(r"(nvme\d+)n\d+", disk))]
    if not names:
        return Reading.no("absent", "the root file system is on no NVMe drive", storage.mounts.source)
    return Reading(names[0], storage.mounts.source)


def has_drive(storage: Storage, identity: Identity) -> bool:
    """Is there a drive to be asked?"""
    return identity.privileged.value is not False and drive_of(storage).value is not None


def read(reader: Reader, storage: Storage, identity: Identity) -> Nvme:
    name = drive_of(storage)
    if name.value is None:
        return Nvme(name, name, name, name.then(parse_health))
    argv = ("nvme", "smart-log", f"/dev/{name.value}", "-o", "json")
    if identity.privileged.value is False:
        health: Reading[Health] = Reading.no("permission", "a drive is asked as root alone", " ".join(argv))
    else:
        health = reader.output(argv, TIMEOUT).then(parse_health)
    return Nvme(
        name=name,
        model=reader.line(f"{CLASS}/{name.value}/model"),
        firmware=reader.line(f"{CLASS}/{name.value}/firmware_rev"),
        health=health,
    )
