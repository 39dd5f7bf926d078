"""Kernel switches that decide what a fault does to the host, and a few that change how it behaves under load."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from ..reader import Reader, Reading

FOLDER = "/proc/sys"


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
