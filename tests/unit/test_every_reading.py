"""Every group of readings with a file refused, missing, empty, too large or full of garbage, one file at a time.

Nothing raises, nothing is made up, no finding turns good because something was not read, and groups that do not need
the file stay as they are. Files are taken by the shape of their path, so that 64 processors are one kind of file. The
short run takes one mishap for every kind of file of one host, the long one all of them on several hosts.
"""

from __future__ import annotations

import base64
import dataclasses
import random
import re
import shlex
import stat
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from hostcheck.assess import assess
from hostcheck.expectations import Expectation, expectation
from hostcheck.onhost.gather import GROUPS, SCHEMA, Facts, Options, closure, gather
from hostcheck.onhost.reader import Output, Reading, Stat
from hostcheck.onhost.readings.initrd import packed
from hostcheck.onhost.recording import RecordedReader
from tests import replay

from .test_firmware_files import blob, header

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.yml"))
GARBAGE = {"base64": base64.b64encode(random.Random(7).randbytes(200)).decode()}
FILES: dict[str, Any] = {
    "refused": {"error": "EACCES"},
    "absent": None,
    "garbage": GARBAGE,
    "empty": "",
    "huge": "x" * (17 << 20),
}
COMMANDS: dict[str, Any] = {
    "refused": {"rc": 1, "stdout": "", "stderr": "Permission denied"},
    "absent": None,
    "garbage": {"rc": 0, "stdout": "\x00\ufffd~garbage", "stderr": ""},
    "empty": {"rc": 0, "stdout": "", "stderr": ""},
    "huge": {"error": "too_large"},
}
UNREADABLE = ("refused", "garbage", "huge")
BAD = ("warn", "fail", "unknown")

# Readings whose value may change although a file of theirs was not read, with the reason.
OTHER_WITNESS = {
    ("kernel_log", "access"),  # dmesg is asked where the journal does not answer
    ("kernel_log", "first"),
    ("holders", "refused"),  # counts what was refused
    ("network", "interfaces[].carrier"),  # psutil
    ("network", "interfaces[].mac"),
    ("network", "interfaces[].addresses"),
    ("xpu_smi", "survivability"),  # the other form of the answer
}
# Readings that a file gives by being there, or by being anything but all ones.
BY_BEING_THERE = ("aer_capable", "answers")
# Files whose emptiness says something: no word, no setting.
MAY_BE_EMPTY = re.compile(r"/proc/cmdline$|/environ$|/etc/(?:apt/|default/grub|systemd/)|/sys/module/xe/parameters/")

SCOPE = "/system.slice/docker-" + "1f" * 32 + ".scope"
# What no recorded host has: a container that holds a card, counters that old recordings lack.
MORE: dict[str, Any] = {
    "links": {"/proc/4242/fd/7": "/dev/dri/renderD128", "/proc/4242/ns/net": "net:[4026532281]"},
    "files": {
        "/proc/4242/comm": "python\n",
        "/proc/4242/status": "Cpus_allowed_list:\t0-3\n",
        "/proc/4242/cgroup": f"0::{SCOPE}\n",
        "/proc/4242/net/dev": "Inter-|   Receive\n face |bytes\n    lo: 0 0\n  eth0: 1 1\n",
        "/proc/4242/environ": "CCL_KVS_IFACE=eth0\0",
        f"/sys/fs/cgroup{SCOPE}/memory.max": "12884901888\n",
        f"/sys/fs/cgroup{SCOPE}/memory.peak": "12884901888\n",
        f"/sys/fs/cgroup{SCOPE}/memory.swap.max": "0\n",
        f"/sys/fs/cgroup{SCOPE}/memory.swap.current": "0\n",
        f"/sys/fs/cgroup{SCOPE}/memory.swap.peak": "0\n",
        f"/sys/fs/cgroup{SCOPE}/memory.events": "low 0\nmax 0\noom_kill 0\n",
        "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
        "/sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc hpet acpi_pm \n",
        "/proc/vmstat": "nr_free_pages 77\noom_kill 0\n",
        "/etc/systemd/journald.conf": "[Journal]\nSyncIntervalSec=1m\n",
    },
}


class Spy(RecordedReader):
    """Reads a recording and keeps what was asked of it: (how, path or command)."""

    def __init__(self, recording: dict[str, Any]) -> None:
        super().__init__(recording)
        self.asked: set[tuple[str, str]] = set()

    def _note(self, how: str, path: str) -> None:
        try:
            self.asked.add((how, self._walk(path)))
        except OSError:
            pass

    def data(self, path: str, limit: int = 4 << 20) -> Reading[bytes]:
        self._note("files", path)
        return super().data(path, limit)

    def names(self, path: str) -> Reading[tuple[str, ...]]:
        self._note("folders", path)
        return super().names(path)

    def stat(self, path: str) -> Reading[Stat]:
        self._note("stats", path)
        return super().stat(path)

    def run(self, argv: Sequence[str], timeout: float = 10.0, limit: int = 64 << 20) -> Reading[Output]:
        self.asked.add(("commands", shlex.join(argv)))
        return super().run(argv, timeout, limit)


def shape(path: str) -> str:
    """A path with its numbers and addresses taken out, so that files of one kind have one name."""
    plain = re.sub(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", "B", path)
    return re.sub(r"(?:B/)+", "B/", re.sub(r"[0-9a-f]{32,}|\d+", "N", plain))


def is_free(path: str) -> bool:
    """May the file hold any bytes? Of an environment that is garbage no variable is ours."""
    return path.endswith("/environ")


def leaves(item: Any, at: str = "") -> Iterator[tuple[str, Reading[Any]]]:
    """Every reading below a group, with the way to it."""
    if isinstance(item, Reading):
        yield at, item
        if item.value is not None:
            yield from leaves(item.value, at)
    elif dataclasses.is_dataclass(item):
        for field in dataclasses.fields(item):
            yield from leaves(getattr(item, field.name), f"{at}.{field.name}" if at else field.name)
    elif isinstance(item, (tuple, list)):
        for number, one in enumerate(item):
            names = [getattr(one, name, None) for name in ("bdf", "name", "id", "pid", "number", "domain", "channel")]
            yield from leaves(one, f"{at}[{next((name for name in names if name not in (None, '')), number)}]")
    elif isinstance(item, dict):
        for name, one in item.items():
            yield from leaves(one, f"{at}[{name}]")


class Case:
    """A host that was read once: its facts, who read what, and what the checks said."""

    def __init__(self, recording: dict[str, Any], expect: Expectation, options: Options) -> None:
        self.recording, self.expect, self.options = recording, expect, options
        self.readers: dict[tuple[str, str], set[str]] = {}
        spy = Spy(recording)
        found: dict[str, Any] = {"options": options}
        for name, spec in GROUPS.items():
            spy.asked = set()
            found[name] = spec.read(spy, **{need: found[need] for need in spec.needs})
            for asked in spy.asked:
                self.readers.setdefault(asked, set()).add(name)
        self.facts = Facts(schema=SCHEMA, taken_at=recording["taken_at"], **found)
        self.before = {name: dict(leaves(getattr(self.facts, name))) for name in GROUPS}
        self.said = self._findings(self.facts)

    def _findings(self, facts: Facts) -> dict[str, set[str]]:
        said: dict[str, set[str]] = {}
        for one in assess(facts, self.expect).findings:
            said.setdefault(one.id, set()).add(one.status.value)
            for item in one.explains:
                said.setdefault(item.id, set()).add(item.status.value)
        return said

    def kinds(self) -> list[tuple[str, str]]:
        """One file, folder and command of every kind that is there and that a group reads."""
        found: dict[tuple[str, str], str] = {}
        for how, path in sorted(self.readers):
            there = {
                "files": path in self.recording["files"],
                "folders": f"{path}/" in self.recording["files"] or self._is_folder(path),
                "commands": path in self.recording["commands"],
            }
            if there.get(how):
                found.setdefault((how, shape(path)), path)
        return [(how, path) for (how, _), path in sorted(found.items())]

    def _is_folder(self, path: str) -> bool:
        return RecordedReader(self.recording).names(path).value is not None

    def changed(self, how: str, path: str, mishap: str) -> dict[str, Any]:
        part = "files" if how == "folders" else how
        content = (COMMANDS if how == "commands" else FILES)[mishap]
        recording = {**self.recording, part: dict(self.recording[part])}
        if content is None:
            recording[part].pop(path, None)
        else:
            recording[part][path] = content
        return recording

    def judge(self, how: str, path: str, mishap: str, whole: bool = False) -> list[str]:
        """What is wrong with what becomes of it, for a person; [] when nothing is."""
        recording = self.changed(how, path, mishap)
        direct = self.readers.get((how, path), set())
        touched = {name for name in GROUPS if direct & set(closure([name]))}
        found: dict[str, Any] = {"options": self.options}
        for name, spec in GROUPS.items():
            if name in touched:
                given = {need: found[need] for need in spec.needs}
                found[name] = spec.read(RecordedReader(recording), **given)
            else:
                found[name] = getattr(self.facts, name)
        facts = Facts(schema=SCHEMA, taken_at=self.recording["taken_at"], **found)
        wrong = []
        for name in sorted(direct):
            wrong += self._made_up(name, facts, how, path, mishap)
        wrong += [
            f"{id} says {', '.join(sorted(now))} where it said {', '.join(sorted(self.said[id]))}"
            for id, now in self._findings(facts).items()
            if mishap in UNREADABLE
            and not (mishap == "garbage" and is_free(path))
            and self.said.get(id, set()) & set(BAD)
            and not now - {"ok", "not_applicable"}
        ]
        if whole:
            everything = gather(RecordedReader(recording), self.options)
            wrong += [f"{name} differs when all is read" for name in GROUPS if getattr(everything, name) != found[name]]
        return [f"{mishap} {path}: {text}" for text in wrong]

    def _made_up(self, name: str, facts: Facts, how: str, path: str, mishap: str) -> Iterator[str]:
        for at, reading in leaves(getattr(facts, name)):
            if reading.value is None or (name, re.sub(r"\[[^]]*\]", "[]", at)) in OTHER_WITNESS:
                continue
            own = how == "files" and reading.source in (path, self._alias(path)) and not at.endswith(BY_BEING_THERE)
            if mishap == "garbage" and is_free(path):
                own = False
            if own and mishap in UNREADABLE:
                yield f"{name}.{at} has the value {reading.value!r:.60}"
            old = self.before[name].get(at)
            is_plain = isinstance(reading.value, (bool, int, float, str))
            if mishap == "absent" or (mishap == "empty" and MAY_BE_EMPTY.search(path)) or not is_plain:
                continue
            if old is None or old.value != reading.value:
                yield f"{name}.{at} is {reading.value!r:.60}, it was {old and old.value!r:.60}"

    @staticmethod
    def _alias(path: str) -> str:
        """The same file by the link that a reading names as its source."""
        found = re.search(r"/([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]/[a-z_]\w*(?:/\w+)*)$", path)
        return f"/sys/bus/pci/devices/{found.group(1)}" if found else path


def pick(path: str, among: Sequence[str]) -> str:
    """Always the same one of several for a path."""
    return among[zlib.crc32(shape(path).encode()) % len(among)]


def with_initrd(recording: dict[str, Any]) -> dict[str, Any]:
    """The host with an initrd that holds xe, and with a GuC file in it and on disk."""
    guc = header("70.54.0")
    for path in [path for path in recording["files"] if path.startswith("/boot/initrd.img-")]:
        module = f"lib/modules/{path.partition('-')[2]}/xe.ko"
        files = ((module, stat.S_IFREG, b""), ("lib/firmware/xe/bmg_guc_70.bin", stat.S_IFREG, guc))
        recording["files"] |= {path: blob(packed(files)), "/lib/firmware/xe/bmg_guc_70.bin.zst": blob(guc)}
    return recording


def of_host(name: str, more: bool = True) -> Case:
    """more: with all that no recorded host has; xpu-smi is not asked then, since a card is held."""
    recording = replay.host(name)
    if more:
        recording = with_initrd(replay.changed(recording, MORE))
    return Case(recording, expectation({}), Options(initrd=more))


def mishaps(how: str) -> tuple[str, ...]:
    return ("refused",) if how == "folders" else tuple(FILES)


def test_one_mishap_for_every_kind_of_file() -> None:
    case, idle = of_host("two-card-gen5"), of_host("two-card-gen5", more=False)
    kinds = case.kinds()
    tool = [kind for kind in idle.kinds() if "xpu_smi" in idle.readers[kind] and kind not in kinds]
    read = {name for kind in kinds for name in case.readers[kind]}
    assert read == set(GROUPS) - {"pythons", "rates", "xpu_smi"}
    assert tool
    wrong = [text for how, path in tool for mishap in mishaps(how) for text in idle.judge(how, path, mishap)]
    for number, (how, path) in enumerate(kinds):
        wrong += case.judge(how, path, pick(path, mishaps(how)), whole=number % 40 == 0)
    assert wrong == []


@pytest.mark.long
@pytest.mark.parametrize("name", ["two-card-gen5", "four-card-gen4", "one-card-b450-x8", "intel-hybrid", "arm-server"])
def test_every_mishap_for_every_kind_of_file(name: str) -> None:
    case = of_host(name)
    wrong = [text for how, path in case.kinds() for mishap in mishaps(how) for text in case.judge(how, path, mishap)]
    assert wrong == []


# Other witnesses of what sysfs and `lscpu -J` say; a case changes one of them, so the others contradict it.
WITNESSES = re.compile(r"/config$|^lspci |^lscpu$|^xpu-smi ")


def bad_files(path: Path) -> tuple[Case, list[tuple[str, str]]]:
    """A case, and what in it makes the checks complain."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    change = document.get("change") or {}
    recording = replay.changed(replay.host(document["host"]), change)
    kinds = {
        (how, shape(name)): name
        for how in ("files", "commands")
        for name, content in (change.get(how) or {}).items()
        if content is not None and not (isinstance(content, dict) and "error" in content)
    }
    for how in ("files", "commands"):
        for name in [name for name in recording[how] if WITNESSES.search(name) and name not in change.get(how, ())]:
            del recording[how][name]
    case = Case(recording, expectation(document.get("expectation") or {}), Options(**(document.get("options") or {})))
    return case, [(how, name) for (how, _), name in sorted(kinds.items())]


ALWAYS = (
    "aspm-off-on-the-command-line",
    "container-that-swapped",
    "corrected-errors-of-the-past",
    "interface-exists-on-the-host-not-in-the-container",
    "interface-named-by-a-unit-is-gone",
    "protocol-errors-behind-a-switch",
)


@pytest.mark.parametrize("stem", [path.stem for path in CASES if zlib.crc32(path.stem.encode()) % 5 == 0])
def test_what_was_bad_is_not_good_when_it_cannot_be_read(stem: str) -> None:
    case, found = bad_files(CASES[0].with_stem(stem))
    wrong = [text for how, name in found[:2] for text in case.judge(how, name, pick(name, UNREADABLE))]
    assert wrong == []


@pytest.mark.parametrize("stem", ALWAYS)
def test_what_was_bad_is_not_good_when_it_is_refused(stem: str) -> None:
    case, found = bad_files(CASES[0].with_stem(stem))
    assert [text for how, name in found for text in case.judge(how, name, "refused")] == []


@pytest.mark.long
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_nothing_that_was_bad_is_good_when_it_cannot_be_read(path: Path) -> None:
    case, found = bad_files(path)
    wrong = [text for how, name in found for mishap in FILES for text in case.judge(how, name, mishap)]
    assert wrong == []
