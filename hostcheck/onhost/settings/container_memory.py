"""Memory limits under which a container or unit does not swap: as much memory and swap together as memory.

Copies to a card failed in the lab while the container swapped, whatever vm.swappiness said: its own limit decides. No
swap was a mitigation, uploads in pieces are the cure (lab-host-facts 0.4, 0.10, 1.3). A limit below what the jobs need
kills them, so one below the measured use is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..reader import shorten
from ..readings import containers
from . import units
from .engine import Changed, Goal, Host, OwnedFile, Plan, Record, Refused, Setting, Thing, Value, View, keys_of
from .files import Failed, File

NAME = "container_memory"
CGROUPS = "/sys/fs/cgroup"
RELOAD = ("systemctl", "daemon-reload")
ENGINES = ("docker", "podman")
FORM = "{{.State.Running}} {{.HostConfig.Memory}} {{.HostConfig.MemorySwap}} {{.Id}}"
MIB = 1 << 20
LEAST_MIB = 6  # docker takes no limit below it
SECTIONS = {"service": "Service", "slice": "Slice"}
LIMIT = r"(?m)^[ \t]*(Memory(?:Swap)?Max)[ \t]*=[ \t]*(.*?)[ \t]*$"
COST = "cost: a job that needs more than its limit is killed, where it swapped before"


@dataclass(frozen=True)
class Wanted:
    """units, containers: MiB of memory by name, with no swap beside it. For a unit 0 leaves the memory limit alone."""

    units: dict[str, int] = field(default_factory=dict)
    containers: dict[str, int] = field(default_factory=dict)


def parse(data: dict[str, Any]) -> Wanted:
    """What is wanted. Raises Refused.

    >>> parse({"units": {"vllm.service": 12288}}).units
    {'vllm.service': 12288}
    """
    found = keys_of(data, NAME, {"units": dict, "containers": dict})
    forms = {
        "units": (r"[A-Za-z0-9:_.\\@-]+\.(service|slice)", "a service or slice, such as vllm.service"),
        "containers": (r"[A-Za-z0-9][A-Za-z0-9_.-]*", "a container"),
    }
    for key, (form, what) in forms.items():
        for name, size in found.get(key, {}).items():
            if not isinstance(name, str) or not re.fullmatch(form, name):
                raise Refused(f"{NAME}.{key}: {name!r:.60} is not the name of {what}")
            least = 0 if size == 0 and key == "units" else LEAST_MIB
            if isinstance(size, bool) or not isinstance(size, int) or size < least:
                raise Refused(f"{NAME}.{key}.{name}: wanted MiB, found {size!r:.60}")
    return Wanted(dict(found.get("units", {})), dict(found.get("containers", {})))


# -- what is measured ---------------------------------------------------------------------------------


def _bytes(host: Host, path: str) -> int | None:
    return host.reader.line(path).then(containers.parse_limit).value


def _measured(host: Host, what: str, cgroup: str, mib: int) -> None:
    """Raises Refused where the wanted limit is below what the cgroup uses or has used, pages of files included."""
    used = {name: _bytes(host, f"{cgroup}/memory.{name}") for name in ("peak", "current")}
    most = max((size for size in used.values() if size is not None), default=0)
    if 0 < mib * MIB < most:
        said = " and ".join(f"{size / MIB:,.0f} MiB ({name})" for name, size in used.items() if size is not None)
        raise Refused(
            f"{NAME}: {what}: {mib} MiB is below its measured use of {said} in {cgroup}: the job would be killed. "
            "Declare more, or restart it and measure again (the peak counts from its start)"
        )


def _swapped(host: Host, what: str, cgroup: str) -> list[str]:
    size = _bytes(host, f"{cgroup}/memory.swap.current")
    return [f"{what}: {size / MIB:,.0f} MiB are swapped out now and stay so until it needs them"] if size else []


def _needs_version_2(host: Host) -> None:
    found = host.reader.line(f"{CGROUPS}/cgroup.controllers")
    if found.unread == "absent" or (found.value is not None and "memory" not in found.value.split()):
        raise Refused(
            f"{NAME}: {CGROUPS}/cgroup.controllers has no memory: limits of swap need cgroup version 2 "
            "(systemd.unified_cgroup_hierarchy=1 on the command line)"
        )
    host.must(found)


# -- units --------------------------------------------------------------------------------------------


def drop_in(unit: str) -> str:
    """Path of the drop-in of a unit."""
    return f"/etc/systemd/system/{unit}.d/50-hostcheck-memory.conf"


def drop_in_text(unit: str, mib: int) -> str:
    """Its text."""
    memory = f"MemoryMax={mib}M\n" if mib else ""
    head = f"# Written by hostcheck, role {NAME}; playbooks/undo.yml removes it.\n"
    return f"{head}[{SECTIONS[unit.rpartition('.')[2]]}]\n{memory}MemorySwapMax=0\n"


def _asked(unit: str) -> tuple[str, ...]:
    return ("systemctl", "show", "-p", "ControlGroup", "--value", unit)


def cgroup_of(host: Host, unit: str) -> str:
    """Folder of the cgroup of a unit that runs, "" for one that does not."""
    path = f"/system.slice/{unit}"
    if host.booted():
        path = host.must(host.reader.output(_asked(unit))).strip()
    folder = f"{CGROUPS}{path}"
    return folder if path and host.reader.line(f"{folder}/memory.current").unread != "absent" else ""


def _rivals(host: Host, unit: str, mib: int) -> list[str]:
    """Other drop-ins with another limit. The unit's own file is what a drop-in is there to change."""
    own = {"MemorySwapMax": "0", **({"MemoryMax": f"{mib}M"} if mib else {})}
    return [
        f"{path}: {name}={value}"
        for path in units.drop_ins(host, unit)
        if path != drop_in(unit)
        for name, value in re.findall(LIMIT, host.must(host.reader.text(path)))
        if name in own and value != own[name]
    ]


def _outside(host: Host, unit: str) -> str:
    """The engine whose container a unit starts in a cgroup that is not the unit's, "" for none."""
    path = units.fragment(host, unit)
    text = host.must(host.reader.text(path)) if path else ""
    for line in re.findall(r"(?m)^ExecStart=(.*(?:\\\n.*)*)", text):
        engine = re.search(r"(?:^|[/\s])(docker|podman)\s(?:.*\s)?(?:run|start|compose)\b", line.replace("\\\n", " "))
        if engine and not re.search(r"--cgroups[= ](?:split|disabled)", line):
            return engine.group(1)
    return ""


def _unit_goals(host: Host, unit: str, mib: int, warnings: list[str]) -> list[Goal]:
    rivals = _rivals(host, unit, mib)
    if rivals:
        raise Refused(
            f"{NAME}: {unit}: not set, since another drop-in sets another limit: {'; '.join(rivals)}. "
            "Take it away there, or declare the limit there and not here"
        )
    engine = _outside(host, unit)
    if engine:
        raise Refused(
            f"{NAME}: {unit}: its container is in another cgroup: {units.fragment(host, unit)} starts it by {engine}. "
            f"Give --memory and --memory-swap there, and declare the container under {NAME}.containers"
        )
    # Running units get their new limits after daemon-reload was answered, and before the next question is.
    finish = (RELOAD, _asked(unit))
    goals = [Goal(OwnedFile(drop_in(unit), finish), File(drop_in_text(unit, mib)).plain())]
    cgroup = cgroup_of(host, unit)
    if cgroup:
        _measured(host, unit, cgroup, mib)
        warnings += _swapped(host, unit, cgroup)
        values = {"memory.swap.max": "0", **({"memory.max": str(mib * MIB)} if mib else {})}
        goals += [Goal(Value(f"{cgroup}/{name}"), value, own=False) for name, value in values.items()]
    elif not units.fragment(host, unit):
        warnings.append(f"{unit}: there is no such unit on this host yet")
    else:
        warnings.append(f"{unit}: does not run, so that what it needs was not measured")
    return goals


# -- containers ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Container:
    """A container of docker or podman. memory, swap: bytes as the engine counts them (swap: both together, 0: none)."""

    engine: str
    running: bool
    memory: int
    swap: int
    id: str


def find(host: Host, name: str, engines: Sequence[str] = ENGINES) -> Container | None:
    """The container of this name, None when no engine here has one. Raises Failed for an engine that does not say."""
    for engine in engines:
        if not host.writer.has(engine):
            continue
        ran = host.must(host.reader.run((engine, "container", "inspect", "--format", FORM, name)))
        if ran.rc != 0 and "no such container" in ran.stderr.lower():
            continue
        match = re.fullmatch(r"(true|false) (-?\d{1,18}) (-?\d{1,18}) ([0-9a-f]{12,64})", ran.stdout.strip())
        if ran.rc != 0 or not match:
            said = shorten(ran.stderr or ran.stdout)
            raise Failed(f"{engine} container inspect {name}: exit {ran.rc}, not understood: {said}")
        return Container(engine, match[1] == "true", int(match[2]), int(match[3]), match[4])
    return None


@dataclass(frozen=True)
class Limits(Thing):
    """Limits of a container, by ``ENGINE NAME``. Value: ``{memory, swap}`` in bytes; swap is both together."""

    kind = "container_limits"

    def read(self, host: Host) -> Any:
        engine, _, name = self.key.partition(" ")
        found = find(host, name, (engine,))
        return {"memory": found.memory, "swap": found.swap} if found is not None else None

    def write(self, host: Host, value: Any) -> None:
        engine, _, name = self.key.partition(" ")
        both = str(value["swap"]) if value["swap"] < 0 else f"{value['swap']}b"
        host.writer.run((engine, "update", "--memory", f"{value['memory']}b", "--memory-swap", both, name))

    def text(self, host: Host, value: Any) -> str:
        def said(size: int) -> str:
            return f"{size / MIB:,.0f} MiB" if size > 0 else "no limit"

        return f"memory {said(value['memory'])}, with swap {said(value['swap'])}\n" if value is not None else ""

    def back(self, host: Host, found: Any, given: Sequence[Any], now: Any) -> Any:
        if now is None:
            raise Changed(f"{self.key}: is not there any more, nothing to put back")
        return super().back(host, found, given, now)


def _cgroup_of_container(host: Host, container: Container) -> str:
    """Folder of its cgroup (the forms of lab-host-facts 5.6, and podman's), "" where it is none of them."""
    names = {
        "docker": (f"system.slice/docker-{container.id}.scope", f"docker/{container.id}"),
        "podman": (f"machine.slice/libpod-{container.id}.scope", f"libpod_parent/libpod-{container.id}"),
    }[container.engine]
    paths = [f"{CGROUPS}/{name}" for name in names]
    return next((path for path in paths if host.reader.line(f"{path}/memory.current").unread != "absent"), "")


def _container_goals(host: Host, name: str, mib: int, warnings: list[str]) -> list[Goal]:
    found = find(host, name)
    if found is None:
        here = [engine for engine in ENGINES if host.writer.has(engine)]
        raise Refused(
            f"{NAME}.containers: {' and '.join(here)} {'have' if len(here) > 1 else 'has'} no container {name}"
            if here
            else f"{NAME}.containers: {name}: neither docker nor podman is installed; "
            "what a unit or a quadlet starts is declared by its service, under units"
        )
    if not found.running:
        raise Refused(
            f"{NAME}.containers: {name} does not run, so that what it needs cannot be measured: start it, "
            "or declare the service of its quadlet under units"
        )
    goals = [Goal(Limits(f"{found.engine} {name}"), {"memory": mib * MIB, "swap": mib * MIB})]
    cgroup = _cgroup_of_container(host, found)
    if not cgroup:
        raise Refused(f"{NAME}.containers: {name}: no cgroup of {found.id[:12]} is found below {CGROUPS}: not measured")
    _measured(host, name, cgroup, mib)
    warnings += _swapped(host, name, cgroup)
    warnings.append(f"{name}: the limit is lost when the container is made anew: give it there as well")
    values = {"memory.max": str(mib * MIB), "memory.swap.max": "0"}
    return goals + [Goal(Value(f"{cgroup}/{file}"), value, own=False) for file, value in values.items()]


# -- the setting --------------------------------------------------------------------------------------


def plan(host: Host, wanted: Wanted, record: Record) -> Plan:
    """A drop-in for each unit, the engine's limits for each container; what the kernel then has is read back."""
    if not (wanted.units or wanted.containers):
        return Plan()
    _needs_version_2(host)
    warnings: list[str] = []
    goals: list[Goal] = []
    for unit, mib in wanted.units.items():
        goals += _unit_goals(host, unit, mib, warnings)
    for name, mib in wanted.containers.items():
        goals += _container_goals(host, name, mib, warnings)
    return Plan(tuple(goals), warnings=tuple(warnings), notes=(COST,))


def _limit(host: Host, cgroup: str) -> str:
    if not cgroup:
        return "does not run"
    said = []
    for name, what in (("memory.max", "memory"), ("memory.swap.max", "swap")):
        size = _bytes(host, f"{cgroup}/{name}")
        said.append(f"{what} {'unread' if size is None else 'no limit' if size < 0 else f'{size / MIB:,.0f} MiB'}")
    return ", ".join(said)


def view(host: Host, wanted: Wanted | None) -> View:
    """What the kernel has, what the files say, and the drop-ins that say it."""
    if wanted is None:
        return View()
    live, later, owners = [], [], []
    for unit in wanted.units:
        live.append(f"{unit}: {_limit(host, cgroup_of(host, unit))}")
        lines = [(path, *one) for path in units.drop_ins(host, unit) for one in _lines(host, path)]
        later.append(f"{unit}: {', '.join(f'{name}={value}' for _, name, value in lines) or 'no drop-in'}")
        owners += [path for path, _, _ in lines]
    for name in wanted.containers:
        found = find(host, name)
        live.append(f"{name}: {_limit(host, _cgroup_of_container(host, found)) if found else 'is not there'}")
        later.append(f"{name}: as it is made anew")
    return View("; ".join(live), "; ".join(later), "; ".join(live), ", ".join(dict.fromkeys(owners)))


def _lines(host: Host, path: str) -> list[tuple[str, str]]:
    return [(name, value) for name, value in re.findall(LIMIT, host.reader.text(path).value or "")]


def _keep(wanted: Wanted | None, thing: Thing, found: Any) -> str:
    if isinstance(thing, Limits) and found is not None and found["memory"] <= 0:
        return "had no limit, and update takes none away: it stays until the container is made anew"
    return ""


SETTING = Setting(NAME, parse, plan, view, (Limits,), keep_on_undo=_keep)
