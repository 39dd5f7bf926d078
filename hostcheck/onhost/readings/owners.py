"""Who else sets a setting of the host, and in which line of which file or by which unit.

A setting that a daemon, a boot script or the kernel command line also sets is changed back behind the back of whoever
fixes it (tuned #396 and #670: two such daemons stop each other), so the other owner is named, never fought.

One entry of `SETTINGS` describes a setting; `find` looks for its owners. No command is needed: systemd keeps a link per
active unit in /run/systemd/units, and an enabled unit is a link in a ``.wants`` folder.

Only the value that a line sets is kept, never the line: boot scripts and unit files may hold secrets. `reduced` does
the same to a whole file for recordings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..reader import Reader, Reading

STATES = ("active", "enabled", "inactive", "unknown")
SCRIPT_LIMIT = 256 << 10  # bytes; a longer file is no boot script
FOLLOW_LIMIT = 64  # scripts that units and boot scripts start

UNIT_FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system")
RUNNING_UNITS = "/run/systemd/units"
RUNNING_CGROUPS = ("/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice")
STATIC_WANTS = ("/usr/lib/systemd/system/multi-user.target.wants", "/lib/systemd/system/multi-user.target.wants")
COMMAND_LINE_FILES = (("/etc/default/grub", ""), ("/etc/default/grub.d", r".*\.cfg"), ("/etc/kernel/cmdline", ""))
TUNED_FOLDERS = ("/etc/tuned/profiles", "/etc/tuned", "/usr/lib/tuned/profiles", "/usr/lib/tuned")

# (name, path or folder, pattern of the names in the folder, unit without which it does nothing)
SCRIPTS = (
    ("rc.local", "/etc/rc.local", "", ""),
    ("rc.local", "/etc/rc.d/rc.local", "", ""),
    ("cron", "/etc/crontab", "", ""),
    ("cron", "/etc/cron.d", r"[^.].*", ""),
    ("cron", "/var/spool/cron/crontabs", r"[^.].*", ""),
    ("cron", "/var/spool/cron", r"(?!crontabs$)[^.].*", ""),
    ("sysfsutils", "/etc/sysfs.conf", "", "sysfsutils.service"),
    ("sysfsutils", "/etc/sysfs.d", r".*\.conf", "sysfsutils.service"),
    ("tmpfiles.d", "/etc/tmpfiles.d", r".*\.conf", ""),
    ("tmpfiles.d", "/run/tmpfiles.d", r".*\.conf", ""),
    ("tmpfiles.d", "/usr/local/lib/tmpfiles.d", r".*\.conf", ""),
    ("udev", "/etc/udev/rules.d", r".*\.rules", ""),
    ("udev", "/run/udev/rules.d", r".*\.rules", ""),
    ("udev", "/usr/local/lib/udev/rules.d", r".*\.rules", ""),
)
STARTED = re.compile(r"(?<![\w./=])(/(?:usr/local|opt|etc|root|srv)/[\w./@+-]+)")
STARTS = re.compile(r"^\s*Exec(?:Start|StartPre|StartPost|Reload)\s*=")

# Files whose lines are anybody's: of these a recording keeps what `reduced` leaves.
FREE_FORM = re.compile(
    r"/etc/(?:rc\.local|rc\.d/|crontab|cron\.d/|systemd/system/|udev/rules\.d/|tmpfiles\.d/)|/var/spool/cron/|"
    r"/(?:run|usr/lib|usr/local/lib|lib)/systemd/system/|/(?:usr/local|opt|root|srv)/|/etc/init\.d/"
)


@dataclass(frozen=True)
class Owner:
    """Somebody who sets a setting.

    setting: key of `SETTINGS`. name: e.g. ``TLP``. where: ``file:line``, or the unit when no file says it.
    value: what is set there, ``""`` when that line does not say it.
    state: ``active`` now, ``enabled`` for the next boot, ``inactive``, or ``unknown``.
    """

    setting: str
    name: str
    where: str
    value: str
    state: str

    def __str__(self) -> str:
        return f"{self.name} ({self.where})" if self.where != self.name else self.name


@dataclass(frozen=True)
class Tool:
    """A program with a configuration of its own.

    units: it is at work when one of them is. lines: (path or folder, pattern of names, pattern of a line with one group
    for the value); () when the unit alone says it.
    """

    name: str
    units: tuple[str, ...]
    lines: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class Setting:
    """How the owners of a setting are recognised.

    written: pattern of a line of a script, unit or rule that sets it. words: pattern of its values.
    tuned: pattern of a line of a tuned profile, with one group for the value.
    arguments: kernel arguments that set it. tools: programs that know it.
    """

    written: str
    words: str
    tuned: str
    arguments: tuple[str, ...] = ()
    tools: tuple[Tool, ...] = ()


def _assigned(names: str) -> str:
    """Pattern of a shell-like assignment whose value is the group."""
    return rf"""^\s*(?:export\s+)?(?:{names})\s*=\s*["']?([^"'#]*?)["']?\s*(?:#.*)?$"""


def _tlp(names: str) -> Tool:
    pattern = _assigned(names)
    return Tool(
        "TLP",
        ("tlp.service",),
        (("/etc/tlp.conf", "", pattern), ("/etc/tlp.d", r".*\.conf", pattern), ("/etc/default/tlp", "", pattern)),
    )


def _auto_cpufreq(names: str) -> Tool:
    pattern = _assigned(names)
    return Tool("auto-cpufreq", ("auto-cpufreq.service",), (("/etc/auto-cpufreq.conf", "", pattern),))


SETTINGS: dict[str, Setting] = {
    "cpu_governor": Setting(
        written=r"scaling_governor|energy_performance_preference|\bcpupower\b.*\bfrequency-set\b|\bcpufreq-set\b|"
        r"\bcpufreqctl\b|\bx86_energy_perf_policy\b|\bpowerprofilesctl\s+set\b",
        words="performance|powersave|ondemand|conservative|schedutil|userspace|balance_performance|balance_power|power",
        tuned=r"^\s*(?:governor|energy_performance_preference)\s*=\s*([^#]*?)\s*$",
        arguments=("cpufreq.default_governor", "cpufreq.off", "intel_pstate", "amd_pstate"),
        tools=(
            _tlp("CPU_SCALING_GOVERNOR_ON_AC|CPU_ENERGY_PERF_POLICY_ON_AC"),
            _auto_cpufreq("governor|energy_performance_preference"),
            Tool("power-profiles-daemon", ("power-profiles-daemon.service",)),
            Tool(
                "cpufrequtils",
                ("cpufrequtils.service",),
                (("/etc/default/cpufrequtils", "", _assigned("GOVERNOR")),),
            ),
            Tool(
                "cpupower",
                ("cpupower.service",),
                (
                    ("/etc/default/cpupower", "", _assigned("(?i:governor)|(?i:epp)")),
                    ("/etc/cpupower-service.conf", "", _assigned("(?i:governor)|(?i:epp)")),
                    ("/etc/sysconfig/cpupower", "", r"CPUPOWER_START_OPTS=.*(?:-g|--governor)[ =]*(\w+)"),
                ),
            ),
            Tool("ondemand.service", ("ondemand.service",)),
            Tool("system76-power", ("com.system76.PowerDaemon.service", "system76-power.service")),
            Tool("gamemode", ("gamemoded.service",), (("/etc/gamemode.ini", "", _assigned("desiredgov")),)),
        ),
    ),
    "cpu_boost": Setting(
        written=r"cpufreq/boost\b|policy[\d*]+/boost\b|\bno_turbo\b|\bcpupower\b.*\bset\b.*--turbo-boost",
        words="[01]",
        tuned=r"^\s*(?:boost|no_turbo|/sys/\S*/(?:boost|no_turbo))\s*=\s*([^#]*?)\s*$",
        tools=(_tlp("CPU_BOOST_ON_AC"), _auto_cpufreq("turbo")),
    ),
    "cpu_clock": Setting(
        written=r"scaling_(?:min|max)_freq|\b(?:min|max)_perf_pct\b|\bfrequency-set\b.*(?:-[ud]\b|--(?:max|min))",
        words=r"\d+(?:\.\d+)?[kMG]?(?:Hz)?",
        tuned=r"^\s*(?:(?:min|max)_perf_pct|/sys/\S*scaling_(?:min|max)_freq)\s*=\s*([^#]*?)\s*$",
        arguments=("processor.ignore_ppc",),
        tools=(
            _tlp("CPU_SCALING_(?:MIN|MAX)_FREQ_ON_AC|CPU_(?:MIN|MAX)_PERF_ON_AC"),
            _auto_cpufreq("scaling_(?:min|max)_freq"),
            Tool("thermald", ("thermald.service",)),
        ),
    ),
    "crash_policy": Setting(  # sysctl.d has a reading of its own, sysctls.assignments
        written=r"\bkernel[./](?:hardlockup_)?panic\b",
        words=r"-?\d+",
        tuned=r"^\s*kernel\.(?:hardlockup_)?panic\s*=\s*([^#]*?)\s*$",
    ),
    "memory_fence": Setting(
        written=r"/devices/system/memory/memory\S*/state",
        words=r"offline|online(?:_movable|_kernel)?",
        tuned=r"^\s*/sys/devices/system/memory/memory\S*/state\s*=\s*([^#]*?)\s*$",
    ),
}


# -- parsers -------------------------------------------------------------------------------------------


def is_comment(line: str) -> bool:
    """Does the line say nothing? Comments of shell, systemd and ini files start with ``#`` or ``;``."""
    return line.lstrip()[:1] in ("", "#", ";")


def written_value(line: str, setting: Setting) -> str:
    """Return the value that a line of a script, unit or rule sets, or ``""`` when it does not say.

    >>> written_value("cpupower frequency-set -g performance", SETTINGS["cpu_governor"])
    'performance'
    """
    echoed = re.search(rf"""\b(?:echo|printf)\s+(?:-\w+\s+)*["']?({setting.words})(?![\w./])""", line)
    if echoed:
        return echoed.group(1)
    values: list[str] = re.findall(rf"(?<![\w./{{-])({setting.words})(?![\w./}}])", line)
    return values[-1] if values else ""


def parse_script(text: str, setting: Setting) -> tuple[tuple[int, str], ...]:
    """Return (line number from 1, value) of every line that sets the setting; comments do not count."""
    return tuple(
        (number, written_value(line, setting))
        for number, line in enumerate(text.split("\n"), 1)
        if not is_comment(line) and re.search(setting.written, line)
    )


def parse_configuration(text: str, pattern: str) -> tuple[tuple[int, str], ...]:
    """Return (line number from 1, value) of every line of a configuration that matches and whose value is not empty."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        match = None if is_comment(line) else re.search(pattern, line)
        if match and match.group(1):
            found.append((number, match.group(1)))
    return tuple(found)


def parse_arguments(text: str, names: tuple[str, ...]) -> tuple[tuple[int, str], ...]:
    """Return (line number from 1, argument) of every kernel argument with one of the names.

    >>> parse_arguments('GRUB_CMDLINE_LINUX="quiet intel_pstate=passive"', ("intel_pstate",))
    ((1, 'intel_pstate=passive'),)
    """
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if not is_comment(line):
            for word in re.findall(r"""[^\s"'=]+=[^\s"']*""", re.sub(r"^\s*\w+=(?=[\"'])", "", line)):
                if word.split("=")[0].replace("-", "_") in names:
                    found.append((number, word))
    return tuple(found)


def parse_started(text: str) -> tuple[str, ...]:
    """Return the scripts that a boot script or the Exec lines of a unit start, by their absolute paths."""
    lines = [line for line in text.split("\n") if not is_comment(line)]
    if any(line.strip() == "[Service]" for line in lines):
        lines = [line for line in lines if STARTS.match(line)]
    return tuple(dict.fromkeys(path for line in lines for path in STARTED.findall(STARTS.sub("", line))))


def reduced(text: str) -> str:
    """The text with every line blanked that no setting needs, so that line numbers stay.

    >>> reduced("TOKEN=x\\necho 1 > /sys/devices/system/cpu/cpufreq/boost\\n")
    '\\necho 1 > /sys/devices/system/cpu/cpufreq/boost\\n'
    """
    kept = []
    for line in text.split("\n"):
        writes = next((one for one in SETTINGS.values() if not is_comment(line) and re.search(one.written, line)), None)
        started = () if is_comment(line) else STARTED.findall(STARTS.sub("", line))
        if writes is not None or line.strip() == "[Service]":
            kept.append(line)
        elif started:
            kept.append(("ExecStart=" if STARTS.match(line) else "") + " ".join(started))
        else:
            kept.append("")
    return "\n".join(kept)


# -- reading -------------------------------------------------------------------------------------------


class Search:
    """One search of a host: what it reads once for all settings, and what it was refused."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.refused: list[str] = []
        self._texts: dict[str, str] = {}
        self._running, self._wanted = self._units()

    def names(self, path: str) -> tuple[str, ...]:
        names = self.reader.names(path)
        if names.unread not in (None, "absent"):
            self.refused.append(path)
        return names.value or ()

    def text(self, path: str) -> str:
        """The text of a file, "" when there is none."""
        if path not in self._texts:
            text = self.reader.text(path, SCRIPT_LIMIT)
            # a masked unit is a link to /dev/null: "is not a regular file" is no refusal
            if text.unread == "permission" or (text.unread == "io" and text.detail.startswith("E")):
                self.refused.append(path)
            self._texts[path] = text.value or ""
        return self._texts[path]

    def paths(self, path: str, pattern: str) -> tuple[str, ...]:
        """The file itself, or those of a folder whose names match."""
        if not pattern:
            return (path,)
        return tuple(f"{path}/{name}" for name in self.names(path) if re.fullmatch(pattern, name))

    def _units(self) -> tuple[frozenset[str] | None, dict[str, str]]:
        """Names of the active units (None: not known), and path of every enabled one."""
        running = self.reader.names(RUNNING_UNITS)
        active: frozenset[str] | None = None
        if running.value is not None:
            active = frozenset(name.partition(":")[2] for name in running.value if name.startswith("invocation:"))
        else:  # systemd before 239
            for folder in RUNNING_CGROUPS:
                names = self.reader.names(folder).value
                if names is not None:
                    active = frozenset(name for name in names if name.endswith(".service")) | (active or frozenset())
        wanted: dict[str, str] = {}
        folders = [
            f"{folder}/{name}"
            for folder in UNIT_FOLDERS
            for name in self.names(folder)
            if name.endswith((".wants", ".requires", ".upholds"))
        ]
        for folder in (*folders, *STATIC_WANTS):
            for name in self.names(folder):
                wanted.setdefault(name, f"{folder}/{name}")
        return active, wanted

    def state(self, units: tuple[str, ...]) -> str:
        """State of a program by its units: the most alive of them."""
        timers = tuple(unit.rpartition(".")[0] + ".timer" for unit in units)
        templates = tuple(re.sub(r"@[^.]+\.", "@.", unit) for unit in units)
        if self._running is not None and any(unit in self._running for unit in units):
            return "active"
        enabled = (*units, *timers)
        if any(unit in self._wanted for unit in enabled) or any(unit in self._wanted for unit in templates):
            return "enabled"
        if any(self.reader.children(f"/etc/rc{level}.d", rf"S\d\d{unit[:-8]}") for unit in units for level in (2, 5)):
            return "enabled"
        return "unknown" if self._running is None else "inactive"

    def script_state(self, name: str, path: str, unit: str) -> str:
        if unit:
            return self.state((unit,))
        if name == "rc.local":
            mode = self.reader.stat(path)
            if mode.value is None:
                return "unknown"
            return "enabled" if mode.value.mode & 0o111 else "inactive"
        return "enabled"

    def scripts(self) -> Iterator[tuple[str, str, str]]:
        """(name, path, state) of every boot script, rule and unit that is not the distribution's own."""
        for name, place, pattern, unit in SCRIPTS:
            for path in self.paths(place, pattern):
                if self.text(path):
                    yield name, path, self.script_state(name, path, unit)
        for folder in UNIT_FOLDERS:
            for entry in self.names(folder):
                if entry.endswith(".service"):
                    yield entry, f"{folder}/{entry}", self.state((entry,))
                elif entry.endswith(".service.d"):
                    for path in self.paths(f"{folder}/{entry}", r".*\.conf"):
                        yield entry[:-2], path, self.state((entry[:-2],))
        for name, path in self._wanted.items():
            if name.endswith(".service"):
                yield name, path, self.state((name,))


def _named(name: str, path: str) -> str:
    """What the toolkit itself has put there is its own."""
    return "hostcheck" if re.search(r"/(?:\d+-)?hostcheck(?:[-./]|$)", path) else name


def _of_scripts(search: Search, keys: tuple[str, ...]) -> Iterator[Owner]:
    seen: set[str] = set()
    followed = 0
    for name, path, state in search.scripts():
        text = search.text(path)
        # An enabled unit is a link to a file that was perhaps read already.
        real = search.reader.resolve(path).value or path
        if real in seen or not text:
            continue
        seen.add(real)
        places = [(real, text)]
        for script in parse_started(text) if name not in ("udev", "tmpfiles.d", "sysfsutils") else ():
            if script not in seen and followed < FOLLOW_LIMIT:
                followed += 1
                seen.add(script)
                places.append((script, search.text(script)))
        for key in keys:
            for place, content in places:
                for line, value in parse_script(content, SETTINGS[key]):
                    yield Owner(key, _named(name, place), f"{place}:{line}", value, state)


def _of_tools(search: Search, keys: tuple[str, ...]) -> Iterator[Owner]:
    for key in keys:
        for tool in SETTINGS[key].tools:
            state = search.state(tool.units)
            found = [
                Owner(key, tool.name, f"{path}:{line}", value, state)
                for place, pattern, wanted in tool.lines
                for path in search.paths(place, pattern)
                for line, value in parse_configuration(search.text(path), wanted)
            ]
            yield from found
            # Without a line for it a program decides by its own defaults; these two only do what they are told.
            if not found and state in ("active", "enabled") and tool.name not in ("TLP", "gamemode"):
                yield Owner(key, tool.name, tool.units[0], "", state)


def _tuned_lines(search: Search, profile: str, pattern: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """(file:line, value) of a profile and of those that it includes, the profile's own first."""
    if depth > 10 or not re.fullmatch(r"[\w.+-]+", profile):
        return
    for folder in TUNED_FOLDERS:
        path = f"{folder}/{profile}/tuned.conf"
        text = search.text(path)
        if text:
            for line, value in parse_configuration(text, pattern):
                yield f"{path}:{line}", value
            for _, included in parse_configuration(text, r"^\s*include\s*=\s*([^#]*?)\s*$"):
                for name in re.split(r"[\s,:;]+", included):
                    yield from _tuned_lines(search, name, pattern, depth + 1)
            return


def _of_tuned(search: Search, keys: tuple[str, ...]) -> Iterator[Owner]:
    profiles = search.text("/etc/tuned/active_profile").split()
    if not profiles:
        return
    state = search.state(("tuned.service",))
    for key in keys:
        # With several profiles the last one wins, and within a profile its own line over an included one.
        lines = next(filter(None, (list(_tuned_lines(search, one, SETTINGS[key].tuned)) for one in profiles[::-1])), [])
        for where, value in lines[:1]:
            yield Owner(key, _named("tuned", where), where, value, state)


def _of_command_line(search: Search, keys: tuple[str, ...]) -> Iterator[Owner]:
    files = [path for place, pattern in COMMAND_LINE_FILES for path in search.paths(place, pattern)]
    for key in keys:
        names = SETTINGS[key].arguments
        kept = {word: f"{path}:{line}" for path in files for line, word in parse_arguments(search.text(path), names)}
        running = [word for _, word in parse_arguments(search.text("/proc/cmdline"), names)]
        for word in running:
            where = kept.pop(word, "/proc/cmdline:1")
            yield Owner(key, _named("kernel command line", where), where, word, "active")
        for word, where in kept.items():
            yield Owner(key, _named("kernel command line", where), where, word, "enabled")


def find(reader: Reader, keys: tuple[str, ...]) -> tuple[Reading[tuple[Owner, ...]], Reading[tuple[str, ...]]]:
    """The owners of settings, and the places that could not be read (an owner may be there).

    keys: of `SETTINGS`. Sorted by setting; the ones at work first.
    """
    search = Search(reader)
    found = {
        owner: None
        for source in (_of_command_line, _of_tuned, _of_tools, _of_scripts)
        for owner in source(search, keys)
    }
    ordered = sorted(found, key=lambda owner: (keys.index(owner.setting), STATES.index(owner.state)))
    return Reading(tuple(ordered), "/etc"), Reading(tuple(sorted(set(search.refused))), "/etc")
