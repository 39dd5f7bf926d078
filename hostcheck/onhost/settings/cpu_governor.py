"""Governor and energy performance preference of every cpufreq policy, now and after every boot.

Where tuned runs, its own profile includes the active one and adds the wanted values; a second owner would be undone
(tuned #396 and #670). Elsewhere a oneshot unit lets systemd-tmpfiles write them. Boost is never touched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..readings import cpufreq, owners
from ..readings.cpufreq import Cpufreq, Policy
from .engine import Goal, Host, OwnedFile, Plan, Record, Refused, Setting, Thing, Value, View, keys_of
from .files import File

NAME = "cpu_governor"
TMPFILES = "/etc/tmpfiles.d/hostcheck-cpu-governor.conf"
UNIT = "/etc/systemd/system/hostcheck-cpu-governor.service"
UNIT_LINK = "/etc/systemd/system/multi-user.target.wants/hostcheck-cpu-governor.service"
RELOAD = ("systemctl", "daemon-reload")
TUNED_UNIT = "tuned.service"
TUNED_PROFILE = "hostcheck"
# With the governor performance these drivers take no other preference (EBUSY; arc-host facts: both vendors).
FIXED_EPP_DRIVERS = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
BY_CHANCE = ("gamemode", "thermald")  # act only while a game or the heat asks for it
UNIT_TEXT = f"""\
[Unit]
Description=CPU frequency settings (hostcheck, role {NAME})
After=systemd-modules-load.service systemd-udev-trigger.service systemd-tmpfiles-setup.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=systemd-tmpfiles --create {TMPFILES}

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class Wanted:
    """governor, epp: words; scaling_min_freq: kHz; None: not wanted. disable_deepest_idle: of every processor."""

    governor: str | None = None
    epp: str | None = None
    scaling_min_freq: int | None = None
    disable_deepest_idle: bool = False


def parse(data: dict[str, Any]) -> Wanted:
    """What is wanted. Raises Refused.

    >>> parse({"governor": "performance"}).governor
    'performance'
    """
    known: dict[str, type | tuple[type, ...]] = {
        "governor": str,
        "epp": (str, int),
        "scaling_min_freq": int,
        "disable_deepest_idle": bool,
    }
    found = keys_of(data, NAME, known)
    epp = str(found["epp"]) if "epp" in found else None
    for key, word in (("governor", found.get("governor")), ("epp", epp)):
        if word is not None and not re.fullmatch(r"[a-z0-9_]+", word):
            raise Refused(f"{NAME}.{key}: {word!r} is not a word such as performance")
    if found.get("scaling_min_freq", 1) <= 0:
        raise Refused(f"{NAME}.scaling_min_freq: wanted kHz, found {found['scaling_min_freq']}")
    return Wanted(found.get("governor"), epp, found.get("scaling_min_freq"), found.get("disable_deepest_idle", False))


# -- tuned --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TunedProfile(Thing):
    """The profile that tuned applies, and whether it was chosen by hand. Value: ``{profile, mode}``."""

    kind = "tuned_profile"
    first_in_undo = True

    def read(self, host: Host) -> Any:
        profile = host.reader.line("/etc/tuned/active_profile")
        mode = host.reader.line("/etc/tuned/profile_mode")
        return {"profile": profile.value or "", "mode": mode.value or "manual"}

    def write(self, host: Host, value: Any) -> None:
        if value["mode"] == "auto":
            host.writer.run(("tuned-adm", "auto_profile"))
        elif value["profile"]:
            host.writer.run(("tuned-adm", "profile", *value["profile"].split()))
        else:
            host.writer.run(("tuned-adm", "off"))

    def same(self, now: Any, wanted: Any) -> bool:
        if wanted["mode"] == "auto" and now["mode"] == "auto":
            return True  # which profile that is, tuned decides
        return bool(now == wanted)

    def text(self, host: Host, value: Any) -> str:
        return f"{value['profile'] or 'none'} ({value['mode']})\n"


def tuned_state(host: Host) -> str:
    """active, enabled, inactive or unknown; inactive where it is not installed."""
    state = owners.Search(host.reader).state((TUNED_UNIT,))
    return "inactive" if state == "unknown" and not host.writer.has("tuned-adm") else state


def tuned_conf(include: str, wanted: Wanted, idle: tuple[str, ...]) -> str:
    """The text of the own profile."""
    lines = ["[main]", "summary=Values of hostcheck, role cpu_governor, over the profile that was active before"]
    lines += [f"include={','.join(include.split())}"] if include else []
    cpu = [f"governor={wanted.governor}"] if wanted.governor else []
    cpu += [f"energy_performance_preference={wanted.epp}"] if wanted.epp else []
    lines += ["", "[cpu]", *cpu] if cpu else []
    sysfs = [f"{cpufreq.FOLDER}/policy*/scaling_min_freq={wanted.scaling_min_freq}"] if wanted.scaling_min_freq else []
    sysfs += [f"{path}=1" for path in idle]
    lines += ["", "[sysfs]", *sysfs] if sysfs else []
    return "\n".join(lines) + "\n"


def _included(text: str) -> str:
    found = re.search(r"(?m)^include=(.*)$", text)
    return " ".join(found.group(1).split(",")) if found else ""


def _tuned_goals(host: Host, wanted: Wanted, idle: tuple[str, ...]) -> list[Goal]:
    profile = TunedProfile("tuned profile")
    now = profile.read(host)
    folder = "/etc/tuned/profiles" if host.reader.names("/etc/tuned/profiles").value is not None else "/etc/tuned"
    path = f"{folder}/{TUNED_PROFILE}/tuned.conf"
    include = now["profile"]
    if include == TUNED_PROFILE:
        own = host.writer.file(path)
        include = _included(own.text or "") if own else ""
    return [
        Goal(OwnedFile(path), File(tuned_conf(include, wanted, idle)).plain()),
        Goal(profile, {"profile": TUNED_PROFILE, "mode": "manual"}),
    ]


# -- without tuned ------------------------------------------------------------------------------------


def tmpfiles_conf(wanted: Wanted, idle: tuple[str, ...]) -> str:
    """The lines for systemd-tmpfiles; it takes them in their order, the governor first (see `FIXED_EPP_DRIVERS`)."""
    values = [("scaling_governor", wanted.governor), ("energy_performance_preference", wanted.epp)]
    values.append(("scaling_min_freq", str(wanted.scaling_min_freq) if wanted.scaling_min_freq else None))
    lines = [f"# Written by hostcheck, role {NAME}; playbooks/undo.yml removes it."]
    lines += [f"w {cpufreq.FOLDER}/policy*/{name} - - - - {value}" for name, value in values if value is not None]
    lines += [f"w {path} - - - - 1" for path in idle]
    return "\n".join(lines) + "\n"


def _boot_goals(wanted: Wanted, idle: tuple[str, ...]) -> list[Goal]:
    return [
        Goal(OwnedFile(TMPFILES), File(tmpfiles_conf(wanted, idle)).plain()),
        Goal(OwnedFile(UNIT, (RELOAD,)), File(UNIT_TEXT).plain()),
        Goal(OwnedFile(UNIT_LINK, (RELOAD,)), File(link=UNIT).plain()),
    ]


# -- what is there ------------------------------------------------------------------------------------


def deepest_idle(host: Host) -> tuple[str, ...]:
    """The ``disable`` file of the deepest idle state of every processor."""
    found = []
    for cpu in host.reader.children("/sys/devices/system/cpu", r"cpu[0-9]+"):
        states = host.reader.children(f"{cpu}/cpuidle", r"state[0-9]+")
        numbers = sorted(int(state.rpartition("/state")[2]) for state in states)
        if len(numbers) > 1:
            found.append(f"{cpu}/cpuidle/state{numbers[-1]}/disable")
    return tuple(sorted(found, key=lambda path: int(re.sub(r"\D", "", path.split("/")[5]))))


def _folded(paths: tuple[str, ...], host: Host) -> tuple[str, ...]:
    """One pattern for all processors where their deepest state has the same number."""
    numbers = {path.split("/")[-2] for path in paths}
    cpus = host.reader.children("/sys/devices/system/cpu", r"cpu[0-9]+")
    if len(numbers) == 1 and len(paths) == len([cpu for cpu in cpus if host.reader.names(f"{cpu}/cpuidle").value]):
        return (f"/sys/devices/system/cpu/cpu*/cpuidle/{numbers.pop()}/disable",)
    return paths


def folder(policy: Policy) -> str:
    if policy.name.startswith("policy"):
        return f"{cpufreq.FOLDER}/{policy.name}"
    return f"/sys/devices/system/cpu/{policy.name}/cpufreq"


def check(wanted: Wanted, policies: tuple[Policy, ...], host: Host) -> None:
    """Raises Refused for what a policy does not offer, before anything is touched."""
    for policy in policies:
        offered = policy.governors.value
        if wanted.governor is not None and offered is not None and wanted.governor not in offered:
            raise Refused(
                f"{NAME}.governor: {wanted.governor!r} is not offered; {policy.name} offers {', '.join(offered)}"
            )
        if wanted.epp is not None:
            _check_epp(wanted, policy)
        if wanted.scaling_min_freq is not None:
            low, high = host.must(policy.hw_min_khz), host.must(policy.hw_max_khz)
            khz = wanted.scaling_min_freq
            if not low <= khz <= high:
                raise Refused(f"{NAME}.scaling_min_freq: {khz} is outside {low} to {high} kHz of {policy.name}")


def _check_epp(wanted: Wanted, policy: Policy) -> None:
    driver = policy.driver.value or "unknown"
    if policy.epp.unread == "absent":
        raise Refused(f"{NAME}.epp: the driver {driver} of {policy.name} has no energy performance preference")
    offered = policy.epps.value
    raw = wanted.epp is not None and wanted.epp.isdigit() and int(wanted.epp) <= 255
    if offered is not None and wanted.epp not in offered and not raw:
        raise Refused(f"{NAME}.epp: {wanted.epp!r} is not offered; {policy.name} offers {', '.join(offered)}")
    governor = wanted.governor or policy.governor.value
    if governor == "performance" and driver in FIXED_EPP_DRIVERS and wanted.epp not in ("performance", "0"):
        raise Refused(
            f"{NAME}.epp: with the governor performance the driver {driver} takes only performance (EBUSY), "
            f"found {wanted.epp!r}"
        )


def rivals(host: Host, wanted: Wanted) -> tuple[str, ...]:
    """Others that set this, now or at the next boot."""
    keys = ("cpu_governor", "cpu_clock") if wanted.scaling_min_freq is not None else ("cpu_governor",)
    found = owners.find(host.reader, keys)[0].value or ()
    return tuple(
        dict.fromkeys(
            f"{one.name} ({one.where}{f': {one.value}' if one.value else ''}, {one.state})"
            for one in found
            if one.name not in ("tuned", "hostcheck", "kernel command line")
            and (one.state == "active" or (one.state != "inactive" and one.name not in BY_CHANCE))
        )
    )


def plan(host: Host, wanted: Wanted, record: Record) -> Plan:
    """Values of every policy, and the file from which the next boot takes them."""
    policies = host.must(cpufreq.read(host.reader).policies)
    if not policies:
        return Plan(not_applicable="no cpufreq driver: a virtual machine, or the firmware keeps the clock to itself")
    check(wanted, policies, host)
    others = rivals(host, wanted)
    if others:
        raise Refused(
            f"{NAME}: not set, since another owner would change it back: {'; '.join(others)}. "
            "Take it out of use there, or declare the value there and not here"
        )
    state = tuned_state(host)
    if state in ("enabled", "unknown"):
        said = "is enabled but does not run" if state == "enabled" else "is installed, and whether it runs is unknown"
        raise Refused(
            f"{NAME}: {TUNED_UNIT} {said}: start it or disable it (systemctl disable --now tuned), then apply again"
        )
    idle: tuple[str, ...] = ()
    if wanted.disable_deepest_idle:
        idle = deepest_idle(host)
        if not idle:
            raise Refused(f"{NAME}.disable_deepest_idle: no processor has two idle states (no cpuidle driver)")
    by_tuned = state == "active"
    later = _folded(idle, host)
    goals = _tuned_goals(host, wanted, later) if by_tuned else _boot_goals(wanted, later)
    names = [("scaling_governor", wanted.governor), ("energy_performance_preference", wanted.epp)]
    names.append(("scaling_min_freq", str(wanted.scaling_min_freq) if wanted.scaling_min_freq else None))
    for name, value in names:
        if value is not None:
            goals += [Goal(Value(f"{folder(one)}/{name}"), value, own=not by_tuned) for one in policies]
    goals += [Goal(Value(path), "1", own=not by_tuned) for path in idle]
    if not (wanted.governor or wanted.epp or wanted.scaling_min_freq or idle):
        goals = []
    notes = ("cost: higher idle power; the lab found the governor neutral for decode (its replay note)",)
    return Plan(tuple(goals), notes=notes if wanted.governor == "performance" else ())


def _words(values: list[str]) -> str:
    return ", ".join(dict.fromkeys(values)) or "nothing"


def _live(found: Cpufreq, wanted: Wanted | None) -> str:
    policies = found.policies.value or ()
    said = _words([one.governor.value or f"unread ({one.governor.unread})" for one in policies])
    if wanted is not None and wanted.epp is not None:
        said += "; EPP " + _words([one.epp.value or f"unread ({one.epp.unread})" for one in policies])
    if wanted is not None and wanted.scaling_min_freq is not None:
        said += "; minimum " + _words([f"{one.min_khz.value} kHz" for one in policies])
    return said


def _persistent(host: Host) -> str:
    """What our own files and tuned give at the next boot, parsed from the disk."""
    text = host.reader.text(TMPFILES).value
    if text is not None and host.reader.link(UNIT_LINK).value is not None:
        values = re.findall(r"(?m)^w \S*/(\w+) - - - - (\S+)$", text)
        return "; ".join(f"{name} {value}" for name, value in dict.fromkeys(values)) + f" ({TMPFILES})"
    profile = host.reader.line("/etc/tuned/active_profile").value
    if profile and tuned_state(host) in ("active", "enabled"):
        return f"tuned profile {profile}"
    return "the driver's default"


def view(host: Host, wanted: Wanted | None) -> View:
    """Values of all policies, what the next boot takes, the clock that the driver reports, and the owners."""
    found = cpufreq.read(host.reader)
    if found.policies.value == ():
        return View("no cpufreq driver")
    named = [str(one) for one in found.owners.value or () if one.setting == "cpu_governor" and one.state != "inactive"]
    clocks = [one.current_khz.value for one in found.policies.value or () if one.current_khz.value is not None]
    effective = f"{min(clocks) // 1000} to {max(clocks) // 1000} MHz at this moment" if clocks else "clock unread"
    return View(_live(found, wanted), _persistent(host), effective, ", ".join(dict.fromkeys(named)))


SETTING = Setting(NAME, parse, plan, view, (TunedProfile,))
