"""The network interface and further variables of collective communication, in one file for every way to start a job.

The interface is named by what does not change (MAC, address, subnet) and resolved at each run: names drift after a
reboot or a new card (systemd #33347; the lab's preflight failed after such a rename).
"""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass, field
from typing import Any

from ..reader import Reading
from .engine import Goal, Host, OwnedFile, Plan, Record, Refused, Setting, View, keys_of
from .files import File

NAME = "collective_env"
FILE = "/etc/hostcheck/collective.env"
NET = "/sys/class/net"
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


@dataclass(frozen=True)
class Interface:
    """One network interface. addresses: with their prefix length where it is known. virtual: has no device below it."""

    name: str
    mac: str
    carrier: bool
    addresses: tuple[str, ...]
    master: bool
    virtual: bool

    def __str__(self) -> str:
        said = [self.mac or "no MAC", "carrier" if self.carrier else "no carrier", *self.addresses]
        return f"{self.name} ({', '.join(said)})"


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
    what = _checked(way, what)
    link_name = found.get("link_name", "")
    if link_name and (KERNEL_NAMES.match(link_name) or not re.fullmatch(r"[a-z][a-z0-9_-]{0,14}", link_name)):
        raise Refused(
            f"{NAME}.link_name: {link_name!r} is in the kernel's own space or no name at all; take one such as fabric0"
        )
    if link_name and way != "mac":
        raise Refused(f"{NAME}.link_name: the interface has to be named by its mac for that, found {way or 'none'}")
    return Wanted(way, what, _variables(found.get("variables", {}), way), _units(found.get("units", ())), link_name)


def _checked(way: str, what: Any) -> str:
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


def parse_addresses(data: Any) -> dict[str, tuple[str, ...]]:
    """Addresses by interface, of ``psutil.net_if_addrs`` or of the list that ``ip -j address show`` prints.

    >>> parse_addresses([{"ifname": "lo", "addr_info": [{"local": "127.0.0.1", "prefixlen": 8}]}])
    {'lo': ('127.0.0.1',)}

    Raises ValueError for data of another form.
    """
    found: dict[str, tuple[str, ...]] = {}
    try:
        if isinstance(data, dict):
            pairs = [
                (name, [one["address"] if isinstance(one, dict) else one[1] for one in entries])
                for name, entries in data.items()
            ]
        else:
            pairs = [
                (one["ifname"], [info["local"] for info in one.get("addr_info", []) if "local" in info])
                for one in data
                if "ifname" in one
            ]
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"interfaces and addresses expected, got {data!r:.120}") from error
    for name, texts in pairs:
        kept = []
        for text in texts:
            try:
                kept.append(str(ipaddress.ip_address(str(text).partition("%")[0])))
            except ValueError:
                continue  # psutil lists the MAC address among them
        found[name] = tuple(kept)
    return found


def _loads(text: str) -> Any:
    return json.loads(text)


def interfaces(host: Host) -> tuple[tuple[Interface, ...], Reading[dict[str, tuple[str, ...]]]]:
    """Every network interface, and the reading of their addresses."""
    addresses = host.reader.call("psutil.net_if_addrs").then(parse_addresses)
    if addresses.value is None:
        argv = ("ip", "-j", "address", "show")
        addresses = host.reader.output(argv).then(_loads).then(parse_addresses).or_(addresses)
    known = addresses.value or {}
    found = []
    for name in host.must(host.reader.names(NET)):
        path = f"{NET}/{name}"
        if host.reader.names(path).value is None:
            continue  # bonding_masters is a file
        found.append(
            Interface(
                name,
                (host.reader.line(f"{path}/address").value or "").lower(),
                host.reader.line(f"{path}/carrier").value == "1",  # reading it of one that is down gives EINVAL
                known.get(name, ()),
                host.reader.link(f"{path}/master").value is not None,
                host.reader.link(f"{path}/device").value is None and host.reader.names(f"{path}/device").value is None,
            )
        )
    return tuple(found), addresses


def resolve(host: Host, wanted: Wanted) -> Interface:
    """The interface that is meant, which exists and has a carrier. Raises Refused with all there are."""
    found, addresses = interfaces(host)
    if wanted.way in ("address", "subnet"):
        host.must(addresses)
    if wanted.way == "name":
        meant = [one for one in found if one.name == wanted.what]
    elif wanted.way == "mac":
        meant = [one for one in found if one.mac == wanted.what and not one.master]
        meant = [one for one in meant if not one.virtual] or meant  # a VLAN or bridge has the MAC of what is below it
    elif wanted.way == "address":
        meant = [one for one in found if wanted.what in one.addresses]
    else:
        net = ipaddress.ip_network(wanted.what)
        meant = [one for one in found if any(ipaddress.ip_address(text) in net for text in one.addresses)]
    listed = "; ".join(str(one) for one in found) or "none"
    if len(meant) != 1:
        many = (
            f"{len(meant)} interfaces have it ({', '.join(one.name for one in meant)})"
            if meant
            else "no interface has it"
        )
        raise Refused(f"{NAME}.interface: {wanted.way} {wanted.what}: {many}; there are: {listed}")
    if meant[0].name == "lo" and wanted.way != "name":
        raise Refused(
            f"{NAME}.interface: {wanted.way} {wanted.what} is the loopback; where that is meant, say name: lo"
        )
    if not meant[0].carrier and meant[0].name != "lo":
        raise Refused(f"{NAME}.interface: {meant[0].name} has no carrier; there are: {listed}")
    return meant[0]


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
        meant = resolve(host, wanted)
        name = wanted.link_name or meant.name
        variables.update(dict.fromkeys(BOTH, name))
        others = tuple(one.name for one in interfaces(host)[0])
        warnings += doubts(name, others)
        if wanted.link_name:
            path = f"/etc/systemd/network/10-hostcheck-{wanted.link_name}.link"
            text = f"[Match]\nMACAddress={wanted.what}\nType=ether\n\n[Link]\nName={wanted.link_name}\n"
            rebuild = tuple(one for one in REBUILDS if host.writer.has(one[0]))[:1]
            goals.append(Goal(OwnedFile(path, rebuild), File(text).plain()))
            reboot = meant.name != wanted.link_name
            if reboot:
                warnings.append(
                    f"{meant.name} is called {wanted.link_name} only after a reboot; jobs started before it fail"
                )
    if variables:
        goals.append(Goal(OwnedFile(FILE), File(env(variables)).plain()))
    elif wanted.units:
        raise Refused(f"{NAME}.units: nothing is declared that they could read; declare interface or variables")
    for unit in wanted.units:
        text = f"# Written by hostcheck, role {NAME}.\n[Service]\nEnvironmentFile={FILE}\n"
        goals.append(Goal(OwnedFile(drop_in(unit), (RELOAD,)), File(text).plain()))
        warnings += [] if _exists(host, unit) else [f"{unit}: there is no such unit on this host yet"]
    return Plan(tuple(goals), reboot, "", tuple(warnings))


def _exists(host: Host, unit: str) -> bool:
    template = re.sub(r"@[^.]*\.", "@.", unit)
    folders = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system")
    return any(
        host.reader.stat(f"{folder}/{name}").value is not None
        for folder in (*folders, "/lib/systemd/system", "/run/systemd/generator")
        for name in {unit, template}
    )


def view(host: Host, wanted: Wanted | None) -> View:
    """What the interface is called now, what the file says, and whether it is up."""
    text = host.reader.text(FILE).value
    persistent = "; ".join(line for line in (text or "").splitlines() if line and not line.startswith("#")) or "nothing"
    if wanted is None or not wanted.way:
        return View(persistent, persistent, "", FILE if text is not None else "")
    meant = resolve(host, wanted)
    return View(meant.name, persistent, str(meant), FILE if text is not None else "")


SETTING = Setting(NAME, parse, plan, view)
