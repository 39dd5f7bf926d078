"""Packages that are held at their version: kernel, firmware, runtime.

Unattended upgrades replaced the kernel of a lab host by a newer one and removed an older one (lab-host-facts 2.3). A
hold is apt's own mark, or a line of dnf's plugin versionlock; holds that were there before are nobody's to take back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..reader import shorten
from .engine import Changed, Goal, Host, Plan, Record, Refused, Setting, Thing, View, keys_of, load_state
from .files import Failed

NAME = "package_pins"
APT, DNF = "apt", "dnf"
HOLD, FREE = "hold", "free"
DNF_LIST = ("dnf", "-q", "-C", "versionlock", "list")  # -C: from the cache, without the network
DNF_TIMEOUT = 60.0  # seconds; dnf is slow to start
COST = "cost: a package that is held gets no fixes, those of security included, until undo.yml --tags package_pins"


@dataclass(frozen=True)
class Wanted:
    """names: packages as this distribution calls them."""

    names: tuple[str, ...] = ()


def parse(data: dict[str, Any]) -> Wanted:
    """What is wanted. Raises Refused.

    >>> parse({"names": ["linux-image-amd64"]}).names
    ('linux-image-amd64',)
    """
    found = keys_of(data, NAME, {"names": (list, tuple)})
    for name in found.get("names", ()):
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9+._-]*", name):
            raise Refused(f"{NAME}.names: {name!r:.60} is not the name of a package (patterns are not taken)")
    return Wanted(tuple(dict.fromkeys(found.get("names", ()))))


# -- managers -----------------------------------------------------------------------------------------


def manager(host: Host) -> str:
    """Which manager holds packages here: ``apt`` or ``dnf``. Raises Refused when there is neither."""
    if host.writer.has("apt-mark") and host.writer.has("dpkg-query"):
        return APT
    if host.writer.has("dnf") and host.writer.has("rpm"):
        return DNF
    raise Refused(f"{NAME}: neither apt-mark with dpkg-query nor dnf with rpm is installed here")


def parse_status(text: str) -> str:
    """Return hold, free, or "" for a package that is not installed, of lines of ``${Status}`` (one per architecture).

    >>> parse_status("hold ok installed\\n"), parse_status("install ok installed\\n"), parse_status("")
    ('hold', 'free', '')
    """
    wants = [words[0] for line in text.splitlines() if len(words := line.split()) == 3 and words[2] == "installed"]
    return "" if not wants else HOLD if all(word == "hold" for word in wants) else FREE


def parse_locks(text: str) -> tuple[str, ...]:
    """Return the names that ``dnf versionlock list`` knows: of dnf 4 (patterns with version) and dnf 5 (paragraphs).

    >>> parse_locks("linux-firmware-0:20250812-14.el9.*\\n"), parse_locks("Package name: linux-firmware\\nevr = 1-1\\n")
    (('linux-firmware',), ('linux-firmware',))
    """
    found = []
    for line in text.splitlines():
        match = re.match(r"Package name:\s*(\S+)", line) or re.match(r"(\S+?)-\d+:[^\s-]+-[^\s-]+$", line)
        if match:
            found.append(match.group(1))
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class Hold(Thing):
    """Whether a package is held, by ``MANAGER NAME``. Value: hold or free; None for one that is not installed."""

    kind = "package_hold"

    def read(self, host: Host) -> Any:
        tool, _, name = self.key.partition(" ")
        if tool == APT:
            ran = host.must(host.reader.run(("dpkg-query", "-W", "-f", "${Status}\\n", name)))
            if ran.rc not in (0, 1):  # 1: no such package; 2: the list itself could not be read (dpkg-query(1))
                raise Failed(f"dpkg-query: exit {ran.rc}: {shorten(ran.stderr)}")
            return parse_status(ran.stdout) or None
        if host.must(host.reader.run(("rpm", "-q", name))).rc != 0:
            return None
        return HOLD if name in parse_locks(host.must(host.reader.output(DNF_LIST, DNF_TIMEOUT))) else FREE

    def write(self, host: Host, value: Any) -> None:
        tool, _, name = self.key.partition(" ")
        if tool == APT:
            host.writer.run(("apt-mark", "hold" if value == HOLD else "unhold", name))
        else:
            host.writer.run(("dnf", "-q", "-C", "versionlock", "add" if value == HOLD else "delete", name))

    def header(self) -> str:
        return "packages held"

    def text(self, host: Host, value: Any) -> str:
        return f"{self.key}: {value}\n" if value is not None else ""

    def back(self, host: Host, found: Any, given: Sequence[Any], now: Any) -> Any:
        if now is None:
            raise Changed(f"{self.key}: is not installed any more, nothing to put back")
        return super().back(host, found, given, now)


# -- the setting --------------------------------------------------------------------------------------


def plan(host: Host, wanted: Wanted, record: Record) -> Plan:
    """A hold for every name, all of which are installed."""
    if not wanted.names:
        return Plan()
    tool = manager(host)
    if tool == DNF:
        listed = host.reader.output(DNF_LIST, DNF_TIMEOUT)
        if listed.unread == "exit":
            raise Refused(
                f"{NAME}: dnf cannot hold packages here ({listed.detail}): install python3-dnf-plugin-versionlock"
            )
    things = [Hold(f"{tool} {name}") for name in wanted.names]
    missing = [name for name, thing in zip(wanted.names, things) if thing.read(host) is None]
    if missing:
        raise Refused(f"{NAME}.names: {', '.join(missing)}: not installed on this host, so nothing can be held")
    return Plan(tuple(Goal(thing, HOLD) for thing in things), notes=(COST,))


def view(host: Host, wanted: Wanted | None) -> View:
    """Which of the wanted are held; who held them: this role's record knows its own."""
    if wanted is None or not wanted.names:
        return View()
    tool = manager(host)
    held = {name: Hold(f"{tool} {name}").read(host) for name in wanted.names}
    said = ", ".join(f"{name} {value or 'not installed'}" for name, value in held.items())
    state = load_state(host, NAME)
    ours = {item["thing"]["key"] for item in state["items"]} if state else set()
    by = {
        "hostcheck" if f"{tool} {name}" in ours else "somebody else (held before this role)"
        for name, value in held.items()
        if value == HOLD
    }
    return View(said, said, said, ", ".join(sorted(by)))


SETTING = Setting(NAME, parse, plan, view, (Hold,))
