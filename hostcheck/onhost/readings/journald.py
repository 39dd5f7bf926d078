"""Whether the journal is kept on disk, and how long a line may wait until it is there (journald.conf(5))."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..reader import Reader, Reading, shorten
from .environment import part

FOLDERS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")  # in the order of their rank
NAME = "journald.conf"
ON_DISK, IN_MEMORY = "/var/log/journal", "/run/log/journal"
STORAGE = ("auto", "persistent", "volatile", "none")
SYNC = "5min"  # where nothing is set
UNITS = {
    "us": 1e-6, "usec": 1e-6, "ms": 1e-3, "msec": 1e-3, "": 1.0, "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0, "h": 3600.0, "hr": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0, "w": 604800.0, "week": 604800.0, "weeks": 604800.0,
}  # fmt: skip


@dataclass(frozen=True)
class Journald:
    """The journal. on_disk: is it kept there? sync_seconds: how long a line that is no alarm may wait until it is."""

    on_disk: Reading[bool]
    sync_seconds: Reading[float]


def parse_seconds(text: str) -> float:
    """Return the seconds of a time span (systemd.time(7)).

    >>> parse_seconds("5min"), parse_seconds("1h 30s"), parse_seconds("90")
    (300.0, 3630.0, 90.0)

    Raises ValueError for anything else, and for ``infinity``.
    """
    spans = re.findall(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", text[:80])
    rest = re.sub(r"[0-9]+(?:\.[0-9]+)?\s*[a-z]*", "", text)
    if not spans or rest.strip() or any(unit not in UNITS for _, unit in spans):
        raise ValueError(f"expected a time span, got {shorten(text, 40)!r}")
    return sum(float(number) * UNITS[unit] for number, unit in spans)


def parse_settings(text: str) -> dict[str, str]:
    """Return the settings of a journald.conf that count here; of several the last, as journald takes it.

    >>> parse_settings("[Journal]\\n#Storage=auto\\nStorage=volatile\\nSyncIntervalSec=1m\\n")
    {'Storage': 'volatile', 'SyncIntervalSec': '1m'}

    Raises ValueError for text that is no such file.
    """
    lines = [line.strip() for line in text.splitlines()]
    if any(not re.match(r"\[\w+\]|\w+\s*=|[#;]|$", line) for line in lines):
        raise ValueError(f"expected settings of journald, got {shorten(text, 80)!r}")
    return dict(re.findall(r"(?m)^[ \t]*(Storage|SyncIntervalSec)[ \t]*=[ \t]*(.*?)[ \t]*$", text))


def reduce_settings(text: str) -> str:
    """Those settings alone, in the form of the file."""
    return "[Journal]\n" + "".join(f"{name}={value}\n" for name, value in parse_settings(text).items())


def read_settings(reader: Reader) -> Reading[dict[str, str]]:
    """The settings of the first file by its rank, then those of the folders of parts, sorted by name over all."""
    found: dict[str, str] = {}
    paths: dict[str, str] = {}
    source = f"{FOLDERS[0]}/{NAME}"
    for folder in FOLDERS:
        for path in reader.children(f"{folder}/{NAME}.d", r".*\.conf"):
            paths.setdefault(path.rpartition("/")[2], path)
    main: Reading[dict[str, str]] = Reading.no("absent", "", source)
    for folder in FOLDERS:
        if main.unread == "absent":
            main = part(reader, f"{folder}/{NAME}", reduce_settings).then(parse_settings)
    for one in (main, *(part(reader, paths[name], reduce_settings).then(parse_settings) for name in sorted(paths))):
        if one.value is None and one.unread != "absent":
            return one
        source = one.source if one.value else source
        found.update(one.value or {})
    return Reading(found, source)


def read(reader: Reader) -> Journald:
    settings = read_settings(reader)
    storage = settings.then(lambda found: found.get("Storage") or "auto").then(str.lower)
    if storage.value is not None and storage.value not in STORAGE:
        storage = Reading.no("not_understood", f"Storage={shorten(storage.value, 40)}", storage.source)
    on_disk = storage.then(lambda word: word == "persistent")
    if storage.value == "auto":
        folder = reader.names(ON_DISK)
        if folder.unread != "absent":
            on_disk = folder.then(lambda _: True)
        else:
            on_disk = reader.names(IN_MEMORY).then(lambda _: False)  # without either there is no journal
    return Journald(
        on_disk=on_disk,
        sync_seconds=settings.then(lambda found: parse_seconds(found.get("SyncIntervalSec") or SYNC)),
    )
