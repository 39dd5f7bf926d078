"""Network interfaces, and every place of the host that tells a collective library which one to take.

The names of interfaces change with a new card or after a reset (systemd#33347), so a pin is kept with the place that
sets it. Of those places only the lines with a pin are kept: the rest of an environment or a unit is nobody's business.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..reader import Reader, Reading
from . import owners
from .environment import PINS, part

NET = "/sys/class/net"
COLLECTIVE = "/etc/hostcheck/collective.env"
SEARCHED = "/etc"
LIMIT = 256 << 10  # bytes of one file
FILES_LIMIT = 64  # files that EnvironmentFile= names
UNIT_FOLDERS = owners.UNIT_FOLDERS
QUADLETS = "/etc/containers/systemd"
MANAGER = ("/etc/systemd/system.conf", "/etc/systemd/system.conf.d")
LOGINS = ("/etc/environment", "/etc/environment.d", "/etc/profile.d")
BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

_NAMES = "|".join(PINS)
PIN = re.compile(rf"""(?<![\w-])({_NAMES})=(?:"([^"'\n\\]*)"|'([^"'\n\\]*)'|([^\s"';\\]*))""")
DEVICE = re.compile(r"^\s*(?:Requires|BindsTo|Requisite)\s*=")
DEVICE_UNIT = re.compile(r"sys-subsystem-net-devices-(\S+?)\.device")
ENV_FILE = re.compile(r"""^\s*EnvironmentFile\s*=\s*["']?-?(/[^\s"'%*?\[\\]+)["']?\s*$""")
RESET = re.compile(r"^\s*Environment\s*=\s*$")
EXEC = re.compile(r"^\s*Exec\w+\s*=")
RUNS = re.compile(r"\b(?:docker|podman|nerdctl)\b.*?\b(?:run|create)\b")
HOST_NETWORK = re.compile(r"--net(?:work)?[= ]host\b")
QUADLET_HOST = re.compile(r"^[ \t]*Network[ \t]*=[ \t]*host[ \t]*$", re.MULTILINE)
BINDS = "BindsTo"
IP = ("ip", "-j", "address", "show")
AF_PACKET = 17  # of Linux; psutil lists the MAC address under it
NOT_ASKED: Reading[Any] = Reading.no("not_asked", "this read is of an older version, which did not keep it")


@dataclass(frozen=True)
class Interface:
    """One network interface.

    index: the kernel's number, -1 unknown; libraries that take the first one go by it. carrier: False as well where the
    interface is down. virtual: no device below it. bdf: of that device, ``""`` when there is none on PCI.
    addressed: has it an address? None where addresses could not be read. mac: in lower case, ``""`` where it has none.
    addresses: IPv4 and IPv6, without their prefix length. master: is it a part of a bond, a team or a bridge?
    """

    name: str
    index: int
    carrier: Reading[bool]
    virtual: bool
    bdf: str
    addressed: bool | None
    mac: Reading[str] = NOT_ASKED
    addresses: Reading[tuple[str, ...]] = NOT_ASKED
    master: bool = False

    def __str__(self) -> str:
        carrier = {True: "carrier", False: "no carrier", None: "carrier not read"}[self.carrier.value]
        return f"{self.name} ({', '.join([self.mac.value or 'no MAC', carrier, *(self.addresses.value or ())])})"


@dataclass(frozen=True)
class Meant:
    """The interface that a declaration stands for. wrong: why there is none that could be used, ``""`` when there is.

    unread: what could not be read and would have to be, to tell.
    """

    interface: Interface | None = None
    wrong: str = ""
    unread: Reading[Any] | None = None


@dataclass(frozen=True)
class Pin:
    """A place that names an interface. variable: of `environment.PINS`, or ``BindsTo`` for a unit of systemd.

    where: ``file:line``. unit: the service that it is for, ``""`` for every session. acts: ``host``, or ``container``
    for a container with a network of its own, in which other interfaces exist.
    """

    variable: str
    value: str
    where: str
    unit: str
    acts: str


@dataclass(frozen=True)
class Network:
    """Network of a host.

    interfaces: by name. default_route: interfaces that have one. pins: by place. pins_unread: places that could not be
    read, where a pin may stand.
    """

    interfaces: Reading[tuple[Interface, ...]]
    default_route: Reading[tuple[str, ...]]
    pins: Reading[tuple[Pin, ...]]
    pins_unread: Reading[tuple[str, ...]]


# -- parsers -------------------------------------------------------------------------------------------


def parse_switch(text: str) -> bool:
    """Return a 0 or 1 of sysfs. Raises ValueError for anything else."""
    if text.strip() not in ("0", "1"):
        raise ValueError(f"expected 0 or 1, got {text!r}")
    return text.strip() == "1"


def parse_state(text: str) -> bool:
    """Return whether an operational state (RFC 2863, as sysfs writes it) passes traffic.

    >>> parse_state("up"), parse_state("lowerlayerdown")
    (True, False)

    Raises ValueError for ``unknown`` and anything else.
    """
    word = text.strip()
    if word not in ("up", "down", "lowerlayerdown", "dormant", "notpresent", "testing"):
        raise ValueError(f"the kernel says {word!r}")
    return word == "up"


def parse_index(text: str) -> int:
    """Return the number of an interface. Raises ValueError."""
    if not re.fullmatch(r"[0-9]{1,10}", text.strip()):
        raise ValueError(f"expected a number, got {text!r}")
    return int(text)


def parse_routes(text: str) -> tuple[str, ...]:
    """Return the interfaces with a default route of /proc/net/route, the best one first.

    >>> parse_routes("Iface\\tDestination\\tGateway\\neno1\\t00000000\\t0100000A\\n")
    ('eno1',)

    Raises ValueError where the first line is not the head of that table.
    """
    lines = text.splitlines()
    if not lines or lines[0].split()[:2] != ["Iface", "Destination"]:
        raise ValueError(f"expected the head of a route table, got {text[:80]!r}")
    found = []
    for line in lines[1:]:
        fields = line.split()
        if len(fields) >= 2 and fields[1] == "00000000" and (len(fields) < 8 or fields[7] == "00000000"):
            metric = int(fields[6]) if len(fields) > 6 and fields[6].isdigit() else 0
            found.append((metric, fields[0]))
    return tuple(dict.fromkeys(name for _, name in sorted(found, key=lambda one: one[0])))


def parse_dev(text: str) -> tuple[str, ...]:
    """Return the interfaces of /proc/PID/net/dev, those of the network of that process.

    >>> parse_dev("Inter-|   Receive\\n face |bytes\\n    lo: 0 0\\n  eth1: 12 0\\n")
    ('lo', 'eth1')

    Raises ValueError where it does not have its two lines of head.
    """
    lines = text.splitlines()
    if len(lines) < 2 or not lines[0].startswith("Inter-"):
        raise ValueError(f"expected the head of the table of devices, got {text[:80]!r}")
    names = []
    for line in lines[2:]:
        name, colon, _ = line.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"expected a name and counters, got {line!r}")
        names.append(name.strip())
    return tuple(names)


def first(entry: Any, name: str) -> Any:
    """First field of a named tuple of psutil, which is a list or a dict once it is plain data."""
    if isinstance(entry, dict):
        return entry.get(name)
    return entry[0] if isinstance(entry, list) and entry else None


def parse_up(data: Any) -> dict[str, bool]:
    """Return, by interface, whether psutil.net_if_stats says that it is up.

    >>> parse_up({"lo": [True, 0, 0, 65536, "up,loopback,running"]})
    {'lo': True}

    Raises ValueError for data of another form.
    """
    if not isinstance(data, dict) or not all(isinstance(first(entry, "isup"), bool) for entry in data.values()):
        raise ValueError(f"expected states by interface, got {data!r:.80}")
    return {str(name): bool(first(entry, "isup")) for name, entry in data.items()}


def parse_links(data: Any) -> dict[str, tuple[str, tuple[str, ...]]]:
    """MAC and IP addresses by interface, of ``psutil.net_if_addrs`` or of what ``ip -j address show`` prints.

    >>> parse_links([{"ifname": "lo", "address": "00:00:00:00:00:00", "addr_info": [{"local": "127.0.0.1"}]}])
    {'lo': ('00:00:00:00:00:00', ('127.0.0.1',))}
    >>> parse_links({"eth1": [[10, "fe80::1%eth1"], [17, "52:54:00:00:00:01"]]})
    {'eth1': ('52:54:00:00:00:01', ('fe80::1',))}

    Raises ValueError for data of another form.
    """
    if not isinstance(data, (dict, list)):
        raise ValueError(f"interfaces and addresses expected, got {data!r:.120}")
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    try:
        if isinstance(data, dict):
            for name, entries in data.items():
                both = [(first(one, "family"), one["address"] if isinstance(one, dict) else one[1]) for one in entries]
                macs = [str(text) for family, text in both if family == AF_PACKET]
                found[str(name)] = ((macs or [""])[0].lower(), _addresses(text for _, text in both))
        else:
            for one in data:
                if "ifname" in one:
                    texts = (info["local"] for info in one.get("addr_info", []) if "local" in info)
                    found[str(one["ifname"])] = (str(one.get("address", "")).lower(), _addresses(texts))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"interfaces and addresses expected, got {data!r:.120}") from error
    return found


def _addresses(texts: Iterable[Any]) -> tuple[str, ...]:
    """Those of the texts that are IP addresses."""
    kept = []
    for text in texts:
        try:
            kept.append(str(ipaddress.ip_address(str(text).partition("%")[0])))
        except ValueError:
            continue  # psutil lists the MAC address among them
    return tuple(kept)


def parse_mac(text: str) -> str:
    """Return a hardware address in lower case; ``""`` is that of an interface that has none. Raises ValueError.

    >>> parse_mac("52:54:00:AA:00:01\\n"), parse_mac("\\n")
    ('52:54:00:aa:00:01', '')
    """
    found = text.strip().lower()
    if found and not re.fullmatch(r"[0-9a-f]{2}(?::[0-9a-f]{2})*", found):
        raise ValueError(f"expected a hardware address, got {text!r:.80}")
    return found


def meant(interfaces: Iterable[Interface], way: str, what: str) -> Meant:
    """The interface that is meant by its ``name``, ``mac``, ``address`` or ``subnet``: one, up, and not by chance lo.

    The role and the check both ask here, so that they cannot disagree. what: in the form of `collective_env.checked`.
    """
    all_of = tuple(interfaces)
    unread: Reading[Any] | None = None
    if way == "name":
        found = [one for one in all_of if one.name == what]
    elif way == "mac":
        found = [one for one in all_of if one.mac.value == what and not one.master]
        found = [one for one in found if not one.virtual] or found  # a VLAN or bridge has the MAC of what is below it
        unread = next((one.mac for one in all_of if one.mac.value is None), None)
    else:
        net = ipaddress.ip_network(what)  # an address is a network of one
        found = [one for one in all_of if any(ipaddress.ip_address(text) in net for text in one.addresses.value or ())]
        unread = next((one.addresses for one in all_of if one.addresses.value is None), None)
    if not found and unread is not None:
        return Meant(unread=unread)
    if len(found) != 1:
        many = f"{len(found)} interfaces have it ({', '.join(one.name for one in found)})"
        return Meant(wrong=f"{way} {what}: {many if found else 'no interface has it'}")
    one = found[0]
    if one.name == "lo":
        return Meant(one) if way == "name" else Meant(wrong=f"{way} {what} is the loopback; to mean it, say name: lo")
    if one.carrier.value is None:
        return Meant(unread=one.carrier)
    return Meant(one) if one.carrier.value else Meant(wrong=f"{way} {what}: {one.name} has no carrier")


def pins_of(line: str) -> Iterator[tuple[str, str]]:
    """(variable, value) of every pin that a line sets; an empty value sets none."""
    for match in PIN.finditer(line):
        value = next((group for group in match.groups()[1:] if group), "")
        if value:
            yield match.group(1), value


def parse_assignments(text: str) -> tuple[tuple[int, str, str], ...]:
    """Return (line number from 1, variable, value) of every pin of a file of variables; comments do not count.

    >>> parse_assignments("HF_TOKEN=x\\nexport CCL_KVS_IFACE='eth1'\\n# FI_TCP_IFACE=eth0\\n")
    ((2, 'CCL_KVS_IFACE', 'eth1'),)
    """
    return tuple(
        (number, variable, value)
        for number, line in enumerate(text.split("\n"), 1)
        if not owners.is_comment(line)
        for variable, value in pins_of(line)
    )


def _device_name(escaped: str) -> str:
    """Name of an interface as systemd escapes it in the name of a unit (systemd.unit(5))."""
    return re.sub(r"\\x([0-9a-f]{2})", lambda match: chr(int(match.group(1), 16)), escaped)


def _logical(text: str) -> Iterator[list[tuple[int, str]]]:
    """Lines of a unit that belong together: a backslash at the end continues a line."""
    together: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if owners.is_comment(line) and (line.strip() or not together):
            continue  # a comment between continued lines is skipped, an empty line ends them
        if line.strip():
            together.append((number, line))
        if together and not line.rstrip().endswith("\\"):
            yield together
            together = []
    if together:
        yield together


def parse_unit(text: str) -> tuple[tuple[int, str, str, str], ...]:
    """Return (line number from 1, word, value, acts) of what a unit says about interfaces, in its order.

    word: a variable of `PINS`, ``BindsTo`` for an interface that the unit needs, ``EnvironmentFile`` for a file that it
    reads, or ``reset`` where ``Environment=`` empties the list. acts: ``container`` where a command starts one that has
    a network of its own; those of a quadlet are put right by `parse_quadlet`.

    >>> parse_unit("[Service]\\nEnvironment=A=1 CCL_KVS_IFACE=eth1\\nExecStart=docker run -e FI_TCP_IFACE=eth0 x\\n")
    ((2, 'CCL_KVS_IFACE', 'eth1', 'host'), (3, 'FI_TCP_IFACE', 'eth0', 'container'))
    """
    found: list[tuple[int, str, str, str]] = []
    for together in _logical(text):
        first, joined = together[0][1], " ".join(line.rstrip().rstrip("\\") for _, line in together)
        inside = EXEC.match(first) and RUNS.search(joined) and not HOST_NETWORK.search(joined)
        if RESET.match(joined):
            found.append((together[0][0], "reset", "", "host"))
        for number, line in together:
            if DEVICE.match(first):
                found += [(number, BINDS, _device_name(name), "host") for name in DEVICE_UNIT.findall(line)]
            file = ENV_FILE.match(line)
            if file:
                found.append((number, "EnvironmentFile", file.group(1), "host"))
            found += [(number, variable, value, "container" if inside else "host") for variable, value in pins_of(line)]
    return tuple(found)


def parse_quadlet(text: str) -> tuple[tuple[int, str, str, str], ...]:
    """As `parse_unit`, for a .container file of podman: its variables act inside, unless it has the host's network."""
    inside = not QUADLET_HOST.search(text)
    return tuple(
        (number, word, value, "container" if inside and word in PINS else acts)
        for number, word, value, acts in parse_unit(text)
    )


def reduced(text: str) -> str:
    """The text with everything blanked that the parsers above do not need, so that line numbers stay.

    >>> reduced("TOKEN=x CCL_KVS_IFACE=eth1\\nB=2\\n")
    'CCL_KVS_IFACE="eth1"\\n\\n'
    """
    lines = text.split("\n")
    kept = [""] * len(lines)
    for together in _logical(text):
        first, joined = together[0][1], " ".join(line.rstrip().rstrip("\\") for _, line in together)
        told = ["".join(_told(line, bool(DEVICE.match(first)))) for _, line in together]
        if RESET.match(joined):
            told[0] = "Environment="
        if not any(told):
            continue
        if EXEC.match(first):
            inside = RUNS.search(joined) and not HOST_NETWORK.search(joined)
            told[0] = f"ExecStart={'docker run' if inside else ''} {told[0]}"
        elif DEVICE.match(first):
            told[0] = f"BindsTo={told[0]}"
        for number in range(together[0][0], together[-1][0]):
            kept[number - 1] = "#"  # a comment between continued lines
        for place, (number, _) in enumerate(together):
            kept[number - 1] = told[place] + (" \\" if number != together[-1][0] else "")
    if QUADLET_HOST.search(text):
        number = next(number for number, line in enumerate(lines) if QUADLET_HOST.fullmatch(line))
        kept[number] = "Network=host"
    return "\n".join(kept)


def beside(less: str, text: str) -> str:
    """What others keep of a text, line by line, with what `reduced` keeps of it added.

    >>> beside("\\necho 1 > boost", "FI_TCP_IFACE=lo T=x\\necho 1 > boost")
    'FI_TCP_IFACE="lo"\\necho 1 > boost'
    """
    lines = []
    for theirs, own in zip(less.split("\n"), reduced(text).split("\n")):
        if not theirs or ENV_FILE.match(own) or DEVICE.match(own) or RESET.match(own):
            lines.append(own or theirs)
        else:  # a line that they keep whole has the pins already
            lines.append(theirs if not own or any(pins_of(theirs)) else f"{theirs} {own}")
    return "\n".join(lines)


def _told(line: str, device: bool) -> Iterator[str]:
    file = ENV_FILE.match(line)
    if file:
        yield f"EnvironmentFile={file.group(1)}"
    if device:
        yield " ".join(f"sys-subsystem-net-devices-{name}.device" for name in DEVICE_UNIT.findall(line))
    yield " ".join(f'{variable}="{value}"' for variable, value in pins_of(line))


# -- reading -------------------------------------------------------------------------------------------


class Search:
    """One search for pins: what was refused is kept beside what was found."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.refused: list[str] = []
        self.followed = 0

    def names(self, path: str, pattern: str) -> tuple[str, ...]:
        names = self.reader.names(path)
        if names.unread not in (None, "absent"):
            self.refused.append(path)
        return tuple(name for name in names.value or () if re.fullmatch(pattern, name))

    def text(self, path: str) -> str:
        """What a place says about interfaces, "" when there is nothing."""
        if owners.FREE_FORM.match(path):
            text = self.reader.text(path, LIMIT)  # others read these too; `redact` reduces them
        else:
            text = part(self.reader, path, reduced, LIMIT)
        # a masked unit is a link to /dev/null: "is not a regular file" is no refusal
        unreadable = text.unread in ("permission", "too_large", "not_text")
        if unreadable or (text.unread == "io" and text.detail.startswith("E")):
            self.refused.append(path)
        return text.value or ""

    def folder(self, path: str, pattern: str) -> Iterator[str]:
        return (f"{path}/{name}" for name in self.names(path, pattern))

    def plain(self, path: str, unit: str = "") -> Iterator[Pin]:
        for number, variable, value in parse_assignments(self.text(path)):
            yield Pin(variable, value, f"{path}:{number}", unit, "host")

    def sessions(self) -> Iterator[Pin]:
        """Pins for every session and every service. Of each place the last assignment holds."""
        yield from last(self.plain(COLLECTIVE))
        yield from last(self.plain(LOGINS[0]))
        for place, pattern in ((LOGINS[1], r"[^.].*\.conf"), (LOGINS[2], r"[^.].*\.sh")):
            yield from last(pin for path in self.folder(place, pattern) for pin in self.plain(path))
        files = (MANAGER[0], *self.folder(MANAGER[1], r"[^.].*\.conf"))
        yield from last(pin for path in files for pin in self.plain(path))

    def units(self) -> Iterator[Pin]:
        """Pins of services: the unit, its drop-ins in the order of their names, then the files that they name."""
        places: dict[str, str] = {}
        drop_ins: dict[str, dict[str, str]] = {}
        for folder in UNIT_FOLDERS:
            for name in self.names(folder, r".+\.service(?:\.d)?|.+\.(?:wants|requires)"):
                if name.endswith(".service"):
                    places.setdefault(name, f"{folder}/{name}")
                elif name.endswith(".d"):
                    found = drop_ins.setdefault(name[:-2], {})
                    for path in self.folder(f"{folder}/{name}", r"[^.].*\.conf"):
                        found.setdefault(path.rpartition("/")[2], path)
                else:
                    for path in self.folder(f"{folder}/{name}", r".+\.service"):
                        places.setdefault(path.rpartition("/")[2], path)
        for unit in dict.fromkeys((*places, *drop_ins)):
            base = re.sub(r"@[^.]+\.", "@.", unit)
            more = {**drop_ins.get(base, {}), **drop_ins.get(unit, {})}
            files = (*filter(None, (places.get(unit),)), *(more[name] for name in sorted(more)))
            yield from self.unit(unit, ((path, parse_unit(self.text(path))) for path in files))
        for path in self.folder(QUADLETS, r"[^.].*\.container"):
            unit = path.rpartition("/")[2].replace(".container", ".service")
            yield from self.unit(unit, ((path, parse_quadlet(self.text(path))),))

    def unit(self, unit: str, parts: Iterable[tuple[str, tuple[tuple[int, str, str, str], ...]]]) -> Iterator[Pin]:
        said: list[Pin] = []
        files: list[str] = []
        for path, words in parts:
            for number, word, value, acts in words:
                if word == "reset":
                    said = [pin for pin in said if pin.acts != "host" or pin.variable == BINDS]
                elif word == "EnvironmentFile":
                    files.append(value)
                else:
                    said.append(Pin(word, value, f"{path}:{number}", unit, acts))
        for file in files:
            if self.followed < FILES_LIMIT:
                self.followed += 1
                said += self.plain(file, unit)  # its assignments win over Environment= (systemd.exec(5))
        yield from last(said)


def last(pins: Iterable[Pin]) -> Iterator[Pin]:
    """Of several assignments of a variable in one environment the last one; of needed interfaces all."""
    kept: dict[tuple[str, ...], Pin] = {}
    for pin in pins:
        kept[(pin.variable, pin.acts, pin.value if pin.variable == BINDS else "")] = pin
    yield from kept.values()


def read_pins(reader: Reader) -> tuple[Reading[tuple[Pin, ...]], Reading[tuple[str, ...]]]:
    search = Search(reader)
    found: dict[tuple[str, str, str], Pin] = {}
    for pin in (*search.sessions(), *search.units()):
        key = (pin.variable, pin.value, pin.where)
        found[key] = replace(found[key], unit="") if key in found else pin
    pins = sorted(found.values(), key=lambda pin: (pin.where, pin.variable, pin.value))
    return Reading(tuple(pins), SEARCHED), Reading(tuple(sorted(set(search.refused))), SEARCHED)


def read_carrier(reader: Reader, path: str) -> Reading[bool]:
    carrier = reader.line(f"{path}/carrier")
    if carrier.unread == "io" and carrier.detail.startswith("EINVAL"):
        return Reading(False, carrier.source)  # the kernel's answer for an interface that is down (net-sysfs.c)
    found = carrier.then(parse_switch)
    return found if carrier.unread is None else found.or_(reader.line(f"{path}/operstate").then(parse_state))


def read_links(reader: Reader) -> Reading[dict[str, tuple[str, tuple[str, ...]]]]:
    """MAC and IP addresses by interface, of psutil, else of ``ip``."""
    links = reader.call("psutil.net_if_addrs").then(parse_links)
    return links if links.value is not None else links.or_(reader.output(IP).then(_json).then(parse_links))


def _json(text: str) -> Any:
    return json.loads(text)


def read_interfaces(reader: Reader) -> Reading[tuple[Interface, ...]]:
    links = read_links(reader)
    known = links.value or {}

    def addresses(name: str) -> Reading[tuple[str, ...]]:
        return links.then(lambda _: known[name][1] if name in known else ())

    def addressed(name: str) -> bool | None:
        return bool(known[name][1]) if name in known else None

    listed = reader.names(NET)
    if listed.value is None and known:  # no sysfs, as in some containers
        up = reader.call("psutil.net_if_stats").then(parse_up)
        return up.then(
            lambda states: tuple(
                Interface(
                    name,
                    -1,
                    Reading(states[name], up.source),
                    False,
                    "",
                    addressed(name),
                    links.then(lambda _, own=name: known.get(own, ("",))[0]),  # type: ignore[misc]
                    addresses(name),
                )
                for name in sorted(states)
            )
        )
    found = []
    for name in listed.value or ():
        path = f"{NET}/{name}"
        if reader.link(path).value is None and reader.names(path).value is None:
            continue  # bonding_masters is a file
        virtual = reader.link(f"{path}/device").value is None and reader.names(f"{path}/device").value is None
        place = [] if virtual else BDF.findall((reader.resolve(f"{path}/device").value or "").lower())
        index = reader.line(f"{path}/ifindex").then(parse_index).value
        mac = reader.line(f"{path}/address").then(parse_mac)
        found.append(
            Interface(
                name,
                -1 if index is None else index,
                read_carrier(reader, path),
                virtual,
                place[-1] if place else "",
                addressed(name),
                mac if name not in known or mac.value is not None else Reading(known[name][0], links.source),
                addresses(name),
                reader.link(f"{path}/master").value is not None,
            )
        )
    return listed.then(lambda _: tuple(found))


def read(reader: Reader) -> Network:
    pins, refused = read_pins(reader)
    return Network(
        interfaces=read_interfaces(reader),
        default_route=reader.text("/proc/net/route").then(parse_routes),
        pins=pins,
        pins_unread=refused,
    )
