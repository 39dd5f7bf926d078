"""Take out of a recording what names its owner, the same thing always by the same stand-in.

Replaced: host and user names, serial numbers, UUIDs and machine ids, MAC and IP addresses, proxy settings,
passwords in URLs, values that call themselves a password, token, secret or key, and the arguments of init on the kernel
command line. Kept: PCI addresses, versions, digests, loopback and netmasks, without which a recording would not replay.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from typing import Any, Callable

from .reader import Reader
from .readings import dimms, network, next_boot, owners

REMOVED = "[removed]"
NETS = ("192.0.2", "198.51.100", "203.0.113")  # the networks for documentation, RFC 5737
STAND_INS = tuple(ipaddress.ip_network(text) for text in (*(f"{net}.0/24" for net in NETS), "2001:db8::/32"))
HEX = "0-9A-Fa-f"
UUID = re.compile(rf"(?<![\w-])(?:[{HEX}]{{8}}-(?:[{HEX}]{{4}}-){{3}}[{HEX}]{{12}}|[{HEX}]{{32}})(?![\w-])")
MAC = re.compile(rf"(?<![\w:.-])(?:[{HEX}]{{2}}[:-]){{5,19}}[{HEX}]{{2}}(?![\w:-])")
IPV4 = re.compile(r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)")
IPV6 = re.compile(rf"(?<![\w:.])[{HEX}]{{0,4}}:[{HEX}:]*:[{HEX}:.]*(?![\w:])")
Q = r"(?:\\*[\"'])?"  # a quotation mark, or one inside a string of JSON
SERIAL = re.compile(
    rf"(?i)(\bserial(?:[ _-]?(?:number|no|num))?{Q}\s*[:=]\s*{Q}|\bserial[ _]number\s+)([^\s\"',;|\\]+)"
)
PROXY = re.compile(rf"(?i)(\b(?:https?|ftp|all|no|socks)_?proxy{Q}\s*[:=]\s*{Q})([^\s\"'<>\\]+)")
USERINFO = re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*://)[^\s/@\"']+@")
SECRET = re.compile(
    rf"(?i)([\w.-]*(?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|credential)[\w.-]*{Q}\s*[:=]\s*{Q})"
    r"([^\s\"',;\\]+)"
)
BYTES_MESSAGE = re.compile(r'("MESSAGE"\s*:\s*)\[([\d,\s]*)\]')
INIT_ARGUMENTS = re.compile(r"(\s--)(?:\s.*)?$", re.MULTILINE | re.DOTALL)
INIT_PROGRAM = re.compile(r"(?<!\S)((?:rd)?init=)\S+")
LOGGED_COMMAND_LINE = re.compile(r"(ommand line: [^\n\"]*?\s--)\s[^\n\"]*")
# The kernel prints init's arguments and environment, one a line, in its debug messages (init/main.c).
RUN_INIT = re.compile(r"(\bRun )\S+( as init process)")
INIT_LINES = re.compile(r"(\bwith (?:arguments|environment):)(?:\n\[ *[\d.]+\](?:\[[^\]]*\])? {3,}\S.*)+")
INIT_MESSAGE = re.compile(r'("MESSAGE"\s*:\s*" {4,})(?:--|/|\w+=)[^"]*')
BUILDER = re.compile(r"(Linux version \S+ \()[^\s()@]+@[^\s()]+")
CMDLINES = ("/proc/cmdline", "/proc/1/cmdline")
PARTS = ("files", "links", "stats", "statvfs", "commands", "calls", "samples")
COMMON_NAMES = frozenset({"root", "localhost", "host", "linux", "debian", "ubuntu", "fedora", "user", "admin"})


class Redactor:
    """Replaces private text. hosts, users: the names that are to go.

    >>> redactor = Redactor(hosts=("gpu-7",), users=("ada",))
    >>> redactor.text("gpu-7: /home/ada from 10.1.2.3 and 10.1.2.3, not 0000:03:00.0 or 127.0.0.1")
    'host-1: /home/user-1 from 192.0.2.1 and 192.0.2.1, not 0000:03:00.0 or 127.0.0.1'
    """

    def __init__(self, hosts: tuple[str, ...] = (), users: tuple[str, ...] = ()) -> None:
        self._known: dict[tuple[str, str], int] = {}
        self._names: list[tuple[re.Pattern[str], str]] = []
        for kind, names in (("host", hosts), ("user", users)):
            for number, name in enumerate(sorted(set(names) - COMMON_NAMES, key=lambda one: (-len(one), one)), 1):
                self._names.append((_name_pattern(name), f"{kind}-{number}"))

    def _number(self, kind: str, original: str) -> int:
        key = (kind, original.lower())
        return self._known.setdefault(key, 1 + sum(1 for known, _ in self._known if known == kind))

    def _uuid(self, match: re.Match[str]) -> str:
        plain = match.group().replace("-", "").lower()
        if len(set(plain)) == 1:
            return match.group()  # all zeros and the like name nobody
        digits = f"{0x4000_8000_0000_0000_0000 + self._number('uuid', plain):032x}"
        if "-" not in match.group():
            return digits
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def _mac(self, match: re.Match[str]) -> str:
        text = match.group()
        groups = re.split("[:-]", text)
        if len({group.lower() for group in groups}) == 1:
            return text
        separator = "-" if "-" in text else ":"
        number = self._number("mac", text.replace("-", ":"))
        return separator.join(["02", *["00"] * (len(groups) - 3), f"{number >> 8 & 255:02x}", f"{number & 255:02x}"])

    def _ipv4(self, match: re.Match[str]) -> str:
        try:
            address = ipaddress.IPv4Address(match.group())
        except ValueError:
            return match.group()
        if address.is_loopback or address.is_unspecified or match.group().startswith("255."):
            return match.group()
        number = self._number("ipv4", match.group())
        net = NETS[min(number // 254, 2)]
        return f"{net}.{number % 254 or 254}"

    def _ipv6(self, match: re.Match[str]) -> str:
        try:
            address = ipaddress.IPv6Address(match.group())
        except ValueError:
            return match.group()
        if address.is_loopback or address.is_unspecified:
            return match.group()
        return f"2001:db8::{self._number('ipv6', address.compressed):x}"  # RFC 3849

    def _serial(self, match: re.Match[str]) -> str:
        if match.group(2).lower() in ("unknown", "n/a", "none", "-"):
            return match.group()
        return f"{match.group(1)}SERIAL-{self._number('serial', match.group(2))}"

    def _bytes_message(self, match: re.Match[str]) -> str:
        numbers = [int(number) for number in match.group(2).split(",") if number.strip()]
        if any(number > 255 for number in numbers):
            return match.group()
        text = bytes(numbers).decode("utf-8", "surrogateescape")
        changed = self.text(text).encode("utf-8", "surrogateescape")
        return match.group(1) + "[" + ",".join(str(byte) for byte in changed) + "]"

    def text(self, text: str) -> str:
        """The text with everything private replaced."""
        if '"MESSAGE"' in text:
            text = BYTES_MESSAGE.sub(self._bytes_message, text)
        for pattern, stand_in in self._names:
            text = pattern.sub(stand_in, text)
        for pattern in (LOGGED_COMMAND_LINE, INIT_LINES):
            text = pattern.sub(rf"\1 {REMOVED}", text)
        text = RUN_INIT.sub(rf"\1{REMOVED}\2", INIT_PROGRAM.sub(rf"\1{REMOVED}", text))
        text = BUILDER.sub(r"\1builder@host", INIT_MESSAGE.sub(rf"\1{REMOVED}", text))
        text = PROXY.sub(lambda match: f"{match.group(1)}http://proxy-{self._number('proxy', match.group(2))}", text)
        text = USERINFO.sub(rf"\1{REMOVED}@", text)
        text = SECRET.sub(rf"\1{REMOVED}", text)
        substitutions: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
            (SERIAL, self._serial),
            (UUID, self._uuid),
            (MAC, self._mac),
            (IPV4, self._ipv4),
            (IPV6, self._ipv6),
        )
        for pattern, replacement in substitutions:
            text = pattern.sub(replacement, text)
        return text

    def plain(self, value: Any) -> Any:
        """The same for everything inside plain data, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): item if key == "base64" else self.plain(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.plain(item) for item in value]
        return value

    def recording(self, recording: dict[str, Any]) -> dict[str, Any]:
        """A recording with everything private replaced."""
        files = {path: _prepare(path, content) for path, content in recording.get("files", {}).items()}
        samples = [
            {**sample, "files": {path: _prepare(path, content) for path, content in sample["files"].items()}}
            for sample in recording.get("samples", [])
        ]
        document = {**recording, "files": files, "samples": samples}
        return {key: self.plain(value) if key in (*PARTS, "samples") else value for key, value in document.items()}


def is_stand_in(text: str) -> bool:
    """Does a MAC or IP address stand for one that was taken out? (A real one may look the same.)

    >>> [is_stand_in(text) for text in ("02:00:00:00:01:0a", "198.51.100.7", "2001:db8::3", "52:54:00:00:01:0a")]
    [True, True, True, False]
    """
    if re.fullmatch(rf"02(?::00){{3,}}(?::[{HEX}]{{2}}){{2}}", text):
        return True
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return any(address in network for network in STAND_INS)


def _name_pattern(name: str) -> re.Pattern[str]:
    """Where a name stands for itself; a short one must stand alone, as ``vm`` in ``vm.swappiness`` does not."""
    strict = len(name) < 5
    before, after = (r"(?<![\w./=-])", r"(?![\w/=-]|\.\w)") if strict else (r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])")
    if strict:
        # in a home directory and before a colon or a space even a short name is a name
        return re.compile(rf"{before}{re.escape(name)}{after}|(?<=/home/){re.escape(name)}(?![\w-])")
    return re.compile(before + re.escape(name) + after, re.IGNORECASE)


def _prepare(path: str, content: Any) -> Any:
    if path in CMDLINES and isinstance(content, str):
        return INIT_ARGUMENTS.sub(rf"\1 {REMOVED}", content.rstrip("\n")) + "\n"
    if next_boot.FREE_FORM.match(path) and isinstance(content, str):
        return next_boot.reduced(path, content)  # a boot menu may hold password hashes, apt's settings a proxy
    if owners.FREE_FORM.match(path) and isinstance(content, str):
        # scripts and units hold anything; only lines that set something stay, and of others what names an interface
        return network.beside(owners.reduced(content), content)
    if path == dimms.TABLE and isinstance(content, dict) and "base64" in content:
        return {"base64": base64.b64encode(_without_names(base64.b64decode(content["base64"]))).decode("ascii")}
    if path.endswith("/config") and isinstance(content, dict) and "base64" in content:
        return {"base64": base64.b64encode(without_serial(base64.b64decode(content["base64"]))).decode("ascii")}
    return content


def _without_names(table: bytes) -> bytes:
    """The firmware's table with no more than `dimms` takes from it, nothing where it is none."""
    try:
        return dimms.reduced(table)
    except ValueError:
        return b""


def without_serial(config: bytes) -> bytes:
    """PCI configuration space with its Device Serial Number (extended capability 3) set to zero.

    Layout: PCI Express Base Specification, 7.9.3; the chain of extended capabilities starts at 0x100.
    """
    data = bytearray(config)
    offset, seen = 0x100, set()
    while offset + 12 <= len(data) and offset not in seen and offset:
        seen.add(offset)
        header = int.from_bytes(data[offset : offset + 4], "little")
        if header & 0xFFFF == 3:
            data[offset + 4 : offset + 12] = bytes(8)
        offset = header >> 20 & 0xFFC
    return bytes(data)


def names_of(reader: Reader) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Host names and user names of a host. Read for redaction only: give it the reader below the recorder."""
    hosts: set[str] = set()
    for path in ("/proc/sys/kernel/hostname", "/etc/hostname"):
        name = (reader.line(path).value or "").split("\n")[0]
        if re.fullmatch(r"[\w.-]+", name):
            hosts.update((name, name.split(".")[0]))
            if name.count("."):
                hosts.add(name.split(".", 1)[1])
    for line in (reader.text("/etc/hosts").value or "").splitlines():
        address, *names = line.split("#")[0].split() or [""]
        if address.startswith("127.0.1."):
            hosts.update(name for name in names if re.fullmatch(r"[\w.-]+", name))
    users: set[str] = set()
    for line in (reader.text("/etc/passwd").value or "").splitlines():
        fields = line.split(":")
        if len(fields) == 7 and fields[2].isdigit() and 1000 <= int(fields[2]) < 65534:
            users.add(fields[0])
    users.update(path.rpartition("/")[2] for path in reader.children("/home"))
    return tuple(hosts - {"localhost"}), tuple(users)
