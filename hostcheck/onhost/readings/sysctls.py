"""Kernel switches that decide what a fault does to the host, and a few that change how it behaves under load."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from ..reader import Reader, Reading

FOLDER = "/proc/sys"
# In the order of their rank: a file hides those of the same name in the folders after it (sysctl.d(5)).
FILES = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d")
LAST_FILE = "/etc/sysctl.conf"  # procps takes it last; systemd takes it where a link in sysctl.d leads to it


@dataclass(frozen=True)
class Sysctls:
    """One field per file below /proc/sys: its name is the path with ``__`` for ``/``; absent where the kernel has none.

    kernel__panic: seconds until the reboot after a panic; 0 waits for ever, a negative number reboots at once.
    kernel__hardlockup_panic, kernel__softlockup_panic, kernel__hung_task_panic, kernel__panic_on_oops: 1 panics.
    kernel__nmi_watchdog: 1 detects hard lockups. kernel__hung_task_timeout_secs: 0 detects no hung tasks.
    kernel__dmesg_restrict: 1 hides the log from users.
    """

    kernel__panic: Reading[int]
    kernel__hardlockup_panic: Reading[int]
    kernel__softlockup_panic: Reading[int]
    kernel__hung_task_panic: Reading[int]
    kernel__hung_task_timeout_secs: Reading[int]
    kernel__panic_on_oops: Reading[int]
    kernel__nmi_watchdog: Reading[int]
    kernel__watchdog_thresh: Reading[int]
    kernel__dmesg_restrict: Reading[int]
    kernel__numa_balancing: Reading[int]
    kernel__sysrq: Reading[int]
    vm__swappiness: Reading[int]
    vm__overcommit_memory: Reading[int]
    vm__panic_on_oom: Reading[int]
    vm__min_free_kbytes: Reading[int]


def parse_number(text: str) -> int:
    """Return a decimal number, which may be negative. Raises ValueError for anything else.

    >>> parse_number("-1\\n")
    -1
    """
    if not re.fullmatch(r"-?[0-9]{1,18}", text.strip()):
        raise ValueError(f"expected a number, got {text!r}")
    return int(text)


@dataclass(frozen=True)
class Assignment:
    """A line of a file that sets a switch at every boot. name: e.g. ``kernel.panic``. where: ``file:line``."""

    name: str
    value: str
    where: str

    @property
    def file(self) -> str:
        """The file without the line."""
        return self.where.rpartition(":")[0]


def parse_assignments(text: str) -> tuple[tuple[int, str, str], ...]:
    """Return (line number from 1, name with dots, value) of every assignment of a file of sysctl.d.

    >>> parse_assignments("# no\\n-kernel/panic = 30\\n")
    ((2, 'kernel.panic', '30'),)
    """
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r"\s*-?\s*([\w./-]+)\s*=\s*(.*?)\s*$", line)
        if match:
            found.append((number, match.group(1).replace("/", "."), match.group(2)))
    return tuple(found)


def assignments(reader: Reader, names: tuple[str, ...]) -> Reading[tuple[Assignment, ...]]:
    """Every line that sets one of the switches at boot, in the order of the files: the last one wins."""
    paths: dict[str, str] = {}
    for folder in FILES:
        listed = reader.names(folder)
        if listed.unread not in (None, "absent"):
            return listed.then(lambda _: ())
        for name in listed.value or ():
            if name.endswith(".conf"):
                paths.setdefault(name, f"{folder}/{name}")
    found: list[Assignment] = []
    seen: set[str] = set()
    for path in (*(paths[name] for name in sorted(paths)), LAST_FILE):
        real = reader.resolve(path).value or path
        text = reader.text(path)
        if real in seen or text.unread == "absent" or (text.unread == "io" and not text.detail.startswith("E")):
            continue  # a link to /dev/null hides a file: "is not a regular file"
        if text.value is None:
            return text.then(lambda _: ())
        seen.add(real)
        found += [
            Assignment(name, value, f"{path}:{line}")
            for line, name, value in parse_assignments(text.value)
            if name in names
        ]
    return Reading(tuple(found), FILES[0])


def path_of(name: str) -> str:
    """The file behind a field.

    >>> path_of("vm__swappiness")
    '/proc/sys/vm/swappiness'
    """
    return f"{FOLDER}/{name.replace('__', '/')}"


def read(reader: Reader) -> Sysctls:
    return Sysctls(
        **{item.name: reader.line(path_of(item.name)).then(parse_number) for item in dataclasses.fields(Sysctls)}
    )
