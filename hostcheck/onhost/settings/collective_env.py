"""The network interface and further variables of collective communication, in one file for every way to start a job.

The interface is named by what does not change (MAC, address, subnet) and resolved at each run: names drift after a
reboot or a new card (systemd #33347; the lab's preflight failed after such a rename).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Any

from ..readings.network import Interface, meant, read_interfaces
from . import units
from .engine import Goal, Host, OwnedFile, Plan, Record, Refused, Setting, View, keys_of
from .files import File

NAME = "collective_env"
FILE = "/etc/hostcheck/collective.env"
BOTH = ("FI_TCP_IFACE", "CCL_KVS_IFACE")
WAYS = ("name", "mac", "address", "subnet")
RELOAD = ("systemctl", "daemon-reload")
# Names that the kernel or udev gives out itself; a .link file that asks for one of them can collide at boot.
KERNEL_NAMES = re.compile(r"(eth|wlan|wwan|usb|ib|bond|veth|br-|docker|virbr|tun|tap|lo|en|wl|ww|sl)[0-9a-zA-Z_.-]*$")
REBUILDS = (("update-initramfs", "-u"), ("dracut", "-f"))


@dataclass(frozen=True)
class Wanted:
    """way, what: how the interface is named, "" without one. link_name: its name from the next boot on, or ""."""

    way: str = ""
    what: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    units: tuple[str, ...] = ()
    link_name: str = ""


def parse(data: dict[str, Any]) -> Wanted:
    """What is wanted. Raises Refused.

    >>> parse({"interface": {"mac": "52:54:00:00:01:01"}}).way
    'mac'
    """
    found = keys_of(data, NAME, {"interface": (dict, str), "variables": dict, "units": (list, tuple), "link_name": str})
    given = found.get("interface", {})
    given = (
        {"name": given} if isinstance(given, str) else {key: value for key, value in given.items() if value is not None}
    )
    if given and (len(given) != 1 or next(iter(given)) not in WAYS):
        raise Refused(f"{NAME}.interface: wanted exactly one of {', '.join(WAYS)}, found {', '.join(map(str, given))}")
    way, what = next(iter(given.items()), ("", ""))
    what = checked(way, what)
    link_name = found.get("link_name", "")
    if link_name and (KERNEL_NAMES.match(link_name) or not re.fullmatch(r"[a-z][a-z0-9_-]{0,14}", link_name)):
        raise Refused(
            f"{NAME}.link_name: {link_name!r} is in the kernel's own space or no name at all; take one such as fabric0"
        )
    if link_name and way != "mac":
        raise Refused(f"{NAME}.link_name: the interface has to be named by its mac for that, found {way or 'none'}")
    return Wanted(way, what, _variables(found.get("variables", {}), way), _units(found.get("units", ())), link_name)


def checked(way: str, what: Any) -> str:
    """What stands for an interface, in its one form; way: one of `WAYS`, or "". Raises Refused.

    >>> checked("mac", "52-54-00-AA-00-01"), checked("subnet", "10.1.0.7/16")
    ('52:54:00:aa:00:01', '10.1.0.0/16')
    """
    if way and not isinstance(what, str):
        raise Refused(f"{NAME}.interface.{way}: wanted text, found {what!r:.60} (quote it)")
    try:
        if way == "mac":
            if not re.fullmatch(r"([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}", what):
                raise ValueError("no MAC address such as 52:54:00:00:01:01")
            return str(what).lower().replace("-", ":")
        if way == "address":
            return str(ipaddress.ip_address(what))
        if way == "subnet":
            return str(ipaddress.ip_network(what, strict=False))
    except ValueError as error:
        raise Refused(f"{NAME}.interface.{way}: {what!r}: {error}") from error
    if way == "name" and not re.fullmatch(r"[^\s/:=\"'\\$`]{1,15}", what):
        raise Refused(f"{NAME}.interface.name: {what!r} is no interface name")
    return str(what)


def _variables(given: dict[Any, Any], way: str) -> dict[str, str]:
    variables: dict[str, str] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise Refused(f"{NAME}.variables: {name!r} is not the name of a variable")
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise Refused(f"{NAME}.variables.{name}: wanted text or a number, found {value!r:.60} (quote it)")
        # systemd, docker --env-file and shells agree on values of these characters only
        if not re.fullmatch(r"[A-Za-z0-9_.,:;/@%+=~^*\[\]-]*", str(value)):
            raise Refused(
                f"{NAME}.variables.{name}: {value!r:.60} has blanks or quotes, which not every reader takes alike"
            )
        if way and name in BOTH:
            raise Refused(f"{NAME}.variables.{name}: is set from interface; declare one of them")
        variables[name] = str(value)
    return variables


def _units(given: Any) -> tuple[str, ...]:
    units = []
    for unit in given:
        if not isinstance(unit, str) or not re.fullmatch(r"[A-Za-z0-9:_.\\@-]+\.service", unit):
            raise Refused(f"{NAME}.units: {unit!r} is not the name of a service, such as vllm.service")
        units.append(unit)
    return tuple(dict.fromkeys(units))


def resolve(host: Host, wanted: Wanted) -> Interface:
    """The interface that is meant, which exists and has a carrier. Raises Refused with all there are."""
    found = host.must(read_interfaces(host.reader))
    said = meant(found, wanted.way, wanted.what)
    if said.unread is not None:
        host.must(said.unread)
    if said.interface is None:
        raise Refused(f"{NAME}.interface: {said.wrong}; there are: {'; '.join(map(str, found)) or 'none'}")
    return said.interface


def doubts(name: str, others: tuple[str, ...]) -> tuple[str, ...]:
    """Warnings for a name that a search by part of a name confuses with another one.

    >>> doubts("eth1", ("eth1", "eth10"))
    ('eth1: is part of the name eth10, and a search by part of the name can take that one',)
    """
    said = []
    if "lo" in name and name != "lo":
        said.append(f"{name}: has lo in its name, and a search by part of the name can take it for the loopback")
    for other in others:
        if other != name and name in other:
            said.append(f"{name}: is part of the name {other}, and a search by part of the name can take that one")
        elif other not in (name, "lo") and other in name:
            said.append(f"{name}: has the name {other} in it, and a search by part of the name can take that one")
    return tuple(said)


def env(variables: dict[str, str]) -> str:
    """The text of the file: one variable a line, sorted, in the form that systemd and docker both read."""
    head = f"# Written by hostcheck, role {NAME}; for EnvironmentFile= and docker run --env-file.\n"
    return head + "".join(f"{name}={value}\n" for name, value in sorted(variables.items()))


def drop_in(unit: str) -> str:
    """Path of the drop-in of a unit."""
    return f"/etc/systemd/system/{unit}.d/50-hostcheck-collective.conf"


def plan(host: Host, wanted: Wanted, record: Record) -> Plan:
    """The file, a drop-in for each unit, and the .link file."""
    variables = dict(wanted.variables)
    warnings: list[str] = []
    goals: list[Goal] = []
    reboot = False
    if wanted.way:
        one = resolve(host, wanted)
        name = wanted.link_name or one.name
        variables.update(dict.fromkeys(BOTH, name))
        others = tuple(other.name for other in host.must(read_interfaces(host.reader)))
        warnings += doubts(name, others)
        if wanted.link_name:
            path = f"/etc/systemd/network/10-hostcheck-{wanted.link_name}.link"
            text = f"[Match]\nMACAddress={wanted.what}\nType=ether\n\n[Link]\nName={wanted.link_name}\n"
            rebuild = tuple(one for one in REBUILDS if host.writer.has(one[0]))[:1]
            goals.append(Goal(OwnedFile(path, rebuild), File(text).plain()))
            reboot = one.name != wanted.link_name
            if reboot:
                warnings.append(
                    f"{one.name} is called {wanted.link_name} only after a reboot; jobs started before it fail"
                )
    if variables:
        goals.append(Goal(OwnedFile(FILE), File(env(variables)).plain()))
    elif wanted.units:
        raise Refused(f"{NAME}.units: nothing is declared that they could read; declare interface or variables")
    for unit in wanted.units:
        text = f"# Written by hostcheck, role {NAME}.\n[Service]\nEnvironmentFile={FILE}\n"
        goals.append(Goal(OwnedFile(drop_in(unit), (RELOAD,)), File(text).plain()))
        warnings += [] if units.fragment(host, unit) else [f"{unit}: there is no such unit on this host yet"]
    return Plan(tuple(goals), reboot, "", tuple(warnings))


def view(host: Host, wanted: Wanted | None) -> View:
    """What the interface is called now, what the file says, and whether it is up."""
    text = host.reader.text(FILE).value
    persistent = "; ".join(line for line in (text or "").splitlines() if line and not line.startswith("#")) or "nothing"
    if wanted is None or not wanted.way:
        return View(persistent, persistent, "", FILE if text is not None else "")
    one = resolve(host, wanted)
    return View(one.name, persistent, str(one), FILE if text is not None else "")


SETTING = Setting(NAME, parse, plan, view)
