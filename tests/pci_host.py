"""Small hosts made of PCI functions, and a reader that keeps account of what was touched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from hostcheck.expectations import expectation
from hostcheck.findings import Declaration, Finding, run
from hostcheck.onhost.gather import Facts, Options, gather
from hostcheck.onhost.reader import Lines, Output, Reader, Reading, Stat
from hostcheck.onhost.readings.kernel_log import Event, KernelLog
from hostcheck.onhost.recording import RecordedReader, empty
from tests.hosts.build_pci import DOWNSTREAM, ENDPOINT, LEGACY, ROOT_PORT, UPSTREAM, Bar, Function, Link, lspci, sysfs

GROUPS = ("pcie", "aspm", "identity", "lscpu")
INERT = Link(2.5, 1, 2.5, 1)
BIG, SMALL = 32 << 30, 256 << 20
WHOLE = "lspci -D -nn -vv"


def intel(
    root: Link | None = None,
    uplink: Link | None = None,
    domain: str = "0000",
    bus: int = 0x20,
    device: str = "e223",
    bar: int = BIG,
    driver: str = "xe",
    ports: tuple[str, str] = ("e2ff", "e2f0"),
    node: int = 1,
    **more: Any,
) -> list[Function]:
    """A root port and a Battlemage card below it: upstream port, downstream ports, GPU and audio."""
    below = root or Link(32, 16, 32, 16)
    slot = uplink or Link(32, 16, below.speed, below.width)
    at = [f"{domain}:{bus + number:02x}:00.0" for number in range(5)]
    root_bdf, up, down, gpu, audio = f"{domain}:{bus:02x}:01.1", at[1], at[2].replace("00.0", "01.0"), at[3], at[4]
    side = at[2].replace("00.0", "02.0")
    port: dict[str, Any] = {"class_code": "060400", "driver": "pcieport"}
    return [
        Function(root_bdf, "1022", "1483", port_type=ROOT_PORT, link=below, buses=(bus + 1, bus + 4), aer=True, **port),
        Function(
            up,
            "8086",
            ports[0],
            port_type=UPSTREAM,
            parent=root_bdf,
            link=slot,
            buses=(bus + 2, bus + 4),
            aer=True,
            **port,
        ),
        Function(
            down,
            "8086",
            ports[1],
            port_type=DOWNSTREAM,
            parent=up,
            link=INERT,
            buses=(bus + 3, bus + 3),
            aer=True,
            **port,
        ),
        Function(
            side,
            "8086",
            "e2f1",
            port_type=DOWNSTREAM,
            parent=up,
            link=INERT,
            buses=(bus + 4, bus + 4),
            aer=True,
            **port,
        ),
        Function(
            gpu,
            "8086",
            device,
            "030000",
            port_type=ENDPOINT,
            parent=down,
            subsystem="1849:6025",
            driver=driver,
            link=INERT,
            aer=True,
            rebar=bar >= SMALL,
            bars=(Bar(0, 0x1000000, 16 << 20), Bar(2, 0x4000000000, bar, "pref64")) if bar else (),
            drm=(node, 127 + node) if driver in ("xe", "i915") else None,
            extra={"auto_link_downgrade_capable": "1\n", "auto_link_downgrade_status": "0\n"} if driver == "xe" else {},
            **more,
        ),
        Function(audio, "8086", "e2f7", "040300", port_type=ENDPOINT, parent=side, link=INERT, driver="snd_hda_intel"),
    ]


def nvidia(
    link: Link, root: Link | None = None, bus: int = 0x05, device: str = "2204", root_bdf: str = ""
) -> list[Function]:
    """A root port and a card without a switch of its own."""
    above = root_bdf or f"0000:00:{bus:02x}.0"
    port = root or replace(link, speed=link.speed)
    return [
        Function(
            above,
            "1022",
            "1483",
            "060400",
            port_type=ROOT_PORT,
            link=port,
            buses=(bus, bus),
            aer=True,
            driver="pcieport",
        ),
        Function(
            f"0000:{bus:02x}:00.0",
            "10de",
            device,
            "030000",
            port_type=LEGACY,
            parent=above,
            link=link,
            aer=True,
            driver="nvidia",
        ),
        Function(
            f"0000:{bus:02x}:00.1",
            "10de",
            "1aef",
            "040300",
            port_type=ENDPOINT,
            parent=above,
            link=link,
            driver="snd_hda_intel",
        ),
    ]


def amd(uplink: Link, root: Link, bus: int = 0x2D) -> list[Function]:
    """A root port and a card of AMD, whose inner link flatters: x16 whatever the slot gives."""
    flat = Link(32, 16, 32, 16)
    port: dict[str, Any] = {"class_code": "060400", "driver": "pcieport"}
    top, up, down, gpu = "0000:00:03.1", f"0000:{bus:02x}:00.0", f"0000:{bus + 1:02x}:00.0", f"0000:{bus + 2:02x}:00.0"
    return [
        Function(top, "1022", "1483", port_type=ROOT_PORT, link=root, buses=(bus, bus + 2), aer=True, **port),
        Function(
            up, "1002", "1478", port_type=UPSTREAM, parent=top, link=uplink, buses=(bus + 1, bus + 2), aer=True, **port
        ),
        Function(down, "1002", "1479", port_type=DOWNSTREAM, parent=up, link=flat, buses=(bus + 2, bus + 2), **port),
        Function(
            gpu, "1002", "7550", "030000", port_type=LEGACY, parent=down, link=flat, driver="amdgpu", drm=(1, 128)
        ),
    ]


def recording(functions: Iterable[Function], cmdline: str = "ro quiet", **parts: Any) -> dict[str, Any]:
    """A recording of a bare-metal host with these functions."""
    made = empty(1_700_000_000, "rebuilt: of the test")
    known = {function.bdf: function for function in functions}
    for function in known.values():
        files, links = sysfs(function, known)
        made["files"].update(files)
        made["links"].update(links)
    made["files"]["/proc/cmdline"] = f"{cmdline}\n"
    made["files"]["/sys/bus/platform/"] = ""  # every Linux has this bus
    made["files"]["/proc/cpuinfo"] = "flags\t\t: fpu lm\n"
    made["files"]["/proc/sys/kernel/osrelease"] = "6.17.0-23-generic\n"
    made["files"]["/sys/module/pcie_aspm/parameters/policy"] = "[default] performance powersave powersupersave \n"
    for name, content in parts.items():
        made[name].update(content)
    return made


def real(made: dict[str, Any], bdf: str) -> str:
    """Where the directory of a function really is."""
    return "/sys/" + str(made["links"][f"/sys/bus/pci/devices/{bdf}"]).removeprefix("../../../")


def put(made: dict[str, Any], bdf: str, name: str, content: Any) -> None:
    """Change a file of a function; None takes it away."""
    path = f"{real(made, bdf)}/{name}"
    if content is None:
        made["files"].pop(path, None)
    else:
        made["files"][path] = content


LINK_FILES = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")


def not_root(made: dict[str, Any]) -> dict[str, Any]:
    """The same host read by a user: 64 bytes of configuration space."""
    import base64

    for path, content in made["files"].items():
        if path.endswith("/config"):
            content["base64"] = base64.b64encode(base64.b64decode(content["base64"])[:64]).decode()
    return made


def listed_only(functions: Sequence[Function], text: str | None = None) -> dict[str, Any]:
    """A recording that holds nothing but the text of lspci."""
    made = empty(1_700_000_000, "rebuilt: of the test")
    made["commands"][WHOLE] = {"rc": 0, "stdout": lspci(list(functions)) if text is None else text, "stderr": ""}
    return made


class Watching(Reader):
    """Stands around a reader and keeps every path and command that was asked for."""

    def __init__(self, inner: Reader) -> None:
        self.inner = inner
        self.read: list[str] = []
        self.linked: list[str] = []
        self.ran: list[str] = []

    def taken_at(self) -> float:
        return self.inner.taken_at()

    def data(self, path: str, limit: int = 4 << 20) -> Reading[bytes]:
        self.read.append(path)
        return self.inner.data(path, limit)

    def link(self, path: str) -> Reading[str]:
        self.linked.append(path)
        return self.inner.link(path)

    def names(self, path: str) -> Reading[tuple[str, ...]]:
        self.read.append(f"{path}/")
        return self.inner.names(path)

    def stat(self, path: str) -> Reading[Stat]:
        self.read.append(path)
        return self.inner.stat(path)

    def space(self, path: str) -> Reading[tuple[int, int]]:
        self.read.append(path)
        return self.inner.space(path)

    def resolve(self, path: str) -> Reading[str]:
        self.linked.append(path)
        return self.inner.resolve(path)

    def run(self, argv: Sequence[str], timeout: float = 10.0, limit: int = 64 << 20) -> Reading[Output]:
        self.ran.append(" ".join(argv))
        return self.inner.run(argv, timeout, limit)

    def lines(self, argv: Sequence[str], timeout: float = 60.0) -> Lines:
        self.ran.append(" ".join(argv))
        return self.inner.lines(argv, timeout)

    def call(self, name: str) -> Reading[Any]:
        return self.inner.call(name)

    def of(self, bdf: str) -> Iterator[str]:
        """Names below the directory of a function that were read or followed."""
        for path in (*self.read, *self.linked):
            _, found, tail = path.partition(f"/{bdf}/")
            if found:
                yield tail


def facts(
    made: dict[str, Any], options: dict[str, Any] | None = None, log: KernelLog | None = None, **kernel_log: Any
) -> Facts:
    """Facts of a recording. kernel_log: events, faulted and so on, in place of what its log says."""
    found = gather(RecordedReader(made), Options(**(options or {})), GROUPS)
    values = {"events": (), "faulted": (), "complete": True, **kernel_log}
    readings = {
        name: value if isinstance(value, Reading) else Reading(value, "journalctl") for name, value in values.items()
    }
    return replace(found, kernel_log=replace(found.kernel_log, **readings))


def event(kind: str, bdf: str = "", **more: Any) -> Event:
    return Event(kind=kind, bdf=bdf, **more)


def judge(
    checks: Sequence[Any], found: Facts, expect: dict[str, Any] | None = None, previous: Facts | None = None
) -> list[Finding]:
    """Findings of these checks."""
    declarations: list[Declaration] = [one.declaration for one in checks]
    return run(declarations, found, expectation(expect or {}), previous)


def said(findings: Iterable[Finding], id: str = "") -> dict[tuple[str, str], str]:
    """(id, subject) -> status of findings."""
    return {(one.id, one.subject.name): one.status.value for one in findings if one.id.startswith(id)}
