"""What the kernel does about a hard lockup, and after a panic: ``kernel.hardlockup_panic`` and ``kernel.panic``.

A card that does not answer stalls a processor for 16 to 72 seconds and lets go. With hardlockup_panic=1, panic=0 and
nothing that keeps a crash the same stall was a freeze without a trace (lab-host-facts 0.7, 2.6). So the two are set as
a pair, and a panic is refused where nothing is proven to keep it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..readings import crash, owners, sysctls
from .engine import Goal, Host, OwnedFile, Plan, Record, Refused, Setting, Value, View, keys_of
from .files import File

NAME = "crash_policy"
FILE = "/etc/sysctl.d/90-hostcheck-crash.conf"
LOCKUP = "kernel.hardlockup_panic"
PANIC = "kernel.panic"
VENDOR_FOLDERS = ("/usr/lib/", "/lib/")  # defaults of the distribution, which a file in /etc may replace
COST = (
    "cost: a stall that would let go after 16 to 72 s (lab-host-facts 0.7) now ends in a panic, and every job with it"
)
WAITS = f"{PANIC} 0: after a panic the host stays down until somebody resets it"


@dataclass(frozen=True)
class Wanted:
    """hardlockup_panic: does a hard lockup panic? panic: seconds until the reboot after a panic, 0: never, -1: at once.

    None: not wanted; both or neither.
    """

    hardlockup_panic: bool | None = None
    panic: int | None = None

    @property
    def values(self) -> dict[str, str]:
        """The wanted values by the name of their switch, in an order that never leaves a panic that waits for ever."""
        if self.hardlockup_panic is None or self.panic is None:
            return {}
        pair = ((PANIC, str(self.panic)), (LOCKUP, str(int(self.hardlockup_panic))))
        return dict(pair if self.hardlockup_panic else reversed(pair))


def parse(data: dict[str, Any]) -> Wanted:
    """What is wanted. Raises Refused.

    >>> parse({"hardlockup_panic": False, "panic": 30}).values
    {'kernel.hardlockup_panic': '0', 'kernel.panic': '30'}
    """
    found = keys_of(data, NAME, {"hardlockup_panic": bool, "panic": int})
    if len(found) == 1:
        missing = "panic" if "panic" not in found else "hardlockup_panic"
        raise Refused(f"{NAME}: {missing} is missing: only the pair says what a lockup does to the host")
    panic = found.get("panic", 0)
    if not -1 <= panic <= 86_400:
        raise Refused(f"{NAME}.panic: wanted seconds until the reboot (0: never, -1: at once), found {panic}")
    return Wanted(found.get("hardlockup_panic"), found.get("panic"))


def _live_path(name: str) -> str:
    return sysctls.path_of(name.replace(".", "__"))


def conf(wanted: Wanted) -> str:
    """The text of the file."""
    lines = "".join(f"{name} = {value}\n" for name, value in wanted.values.items())
    return f"# Written by hostcheck, role {NAME}; playbooks/undo.yml removes it.\n{lines}"


def _assigned(host: Host) -> tuple[sysctls.Assignment, ...]:
    found: tuple[sysctls.Assignment, ...] = host.must(sysctls.assignments(host.reader, (LOCKUP, PANIC)))
    return found


def _rivals(host: Host, wanted: Wanted) -> list[str]:
    """Others that set one of the two to another value; a distribution's default that ours comes after is none."""
    said = []
    for one in _assigned(host):
        default = one.file.startswith(VENDOR_FOLDERS) and one.file.rpartition("/")[2] < FILE.rpartition("/")[2]
        if one.file != FILE and one.value != wanted.values[one.name] and not default:
            said.append(f"{one.where}: {one.name} = {one.value}")
    for owner in owners.find(host.reader, (NAME,))[0].value or ():
        if owner.name != "hostcheck" and owner.state != "inactive":
            said.append(f"{owner}{f': {owner.value}' if owner.value else ''}, {owner.state}")
    return list(dict.fromkeys(said))


def _proven(host: Host) -> None:
    """Raises Refused unless something is known to keep a crash."""
    found = crash.read(host.reader)
    kept, missing = crash.captures(found)
    if kept:
        return
    seen = [
        f"crash kernel not loaded ({found.crashkernel.value or 'no crashkernel= on the command line'})",
        "no netconsole target",
        f"pstore backend {found.pstore_backend.value or 'none'}, which never kept a record",
    ]
    unread = [f"{one.source} unread ({one.unread})" for one in missing]
    raise Refused(
        f"{NAME}.hardlockup_panic: a panic would leave nothing behind: {'; '.join(unread or seen)}. "
        "Load a crash kernel (kdump) or switch a netconsole target on first, or declare hardlockup_panic: false"
    )


def plan(host: Host, wanted: Wanted, record: Record) -> Plan:
    """The file, and both live values."""
    if not wanted.values:
        return Plan()
    if host.reader.line(_live_path(LOCKUP)).unread == "absent":
        return Plan(not_applicable="this kernel has no detector of hard lockups")
    if wanted.hardlockup_panic:
        _proven(host)
    rivals = _rivals(host, wanted)
    if rivals:
        raise Refused(
            f"{NAME}: not set, since somebody else sets another value: {'; '.join(rivals)}. "
            "Take it away there, or declare the value there and not here"
        )
    goals = [Goal(OwnedFile(FILE), File(conf(wanted)).plain())]
    goals += [Goal(Value(_live_path(name)), value) for name, value in wanted.values.items()]
    warnings = []
    if wanted.hardlockup_panic and host.reader.line("/proc/sys/kernel/nmi_watchdog").value == "0":
        warnings.append(f"{NAME}: kernel.nmi_watchdog is 0, so that no hard lockup is detected")
    notes = [COST] if wanted.hardlockup_panic else []
    return Plan(tuple(goals), notes=(*notes, *([WAITS] if wanted.panic == 0 else ())), warnings=tuple(warnings))


def view(host: Host, wanted: Wanted | None) -> View:
    """The live pair, what files set at boot (the last one wins), and what would keep a crash."""
    live = [f"{name}={host.reader.line(_live_path(name)).value or 'unread'}" for name in (LOCKUP, PANIC)]
    assigned = {one.name: one for one in _assigned(host)}
    later = [f"{one.name}={one.value}" for one in assigned.values()]
    kept, missing = crash.captures(crash.read(host.reader))
    effective = ", ".join(kept) or (
        f"{missing[0].source} unread ({missing[0].unread})" if missing else "nothing is known to keep a crash"
    )
    where = ", ".join(dict.fromkeys(one.where for one in assigned.values()))
    return View(", ".join(live), ", ".join(later) or "the kernel's default", effective, where)


SETTING = Setting(NAME, parse, plan, view)
