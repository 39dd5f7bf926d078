"""What all settings share: from a declaration to check, apply, read back, drift and undo.

A setting says what is wanted as `Goal`s, each a `Thing` (a file, a sysfs value, a boot entry …) and the value that
it should have. The engine reads every thing, and what differs is a `Step`: the diff of a check and of a run are the
same steps. Before the first of them is made, the values found are kept in ``/var/lib/hostcheck/SETTING.json``;
afterwards every thing is read back. Undo gives each thing its found value again, unless somebody has changed it since.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..reader import Reader, Reading
from ..recording import below, utc
from .files import Failed, File, Writer

STATE_SCHEMA = "hostcheck/state/1"
STATE_FOLDER = "/var/lib/hostcheck"
VALUES_HEADER = "live values"


class Refused(ValueError):
    """What is wanted cannot be had on this host, or is not understood. Raised before anything is touched."""


class Host:
    """One host, or a directory that is taken for one: its reader and its writer.

    foreseen: in a check, what settings before this one would have changed: ``files`` by path and ``lines``, command
    lines by boot entry. Without it the check of the second role would not say what its run does.
    """

    def __init__(self, root: str = "/", foreseen: dict[str, Any] | None = None) -> None:
        self.reader: Reader = below(root)
        self.writer = Writer(root)
        given = foreseen or {}
        self.foreseen: dict[str, dict[str, Any]] = {key: dict(given.get(key, {})) for key in ("files", "lines")}
        self.writer.foreseen = self.foreseen["files"]

    def must(self, reading: Reading[Any]) -> Any:
        """The value of a reading that a change cannot do without. Raises Failed with the reason."""
        if reading.value is None:
            raise Failed(f"{reading.source}: cannot be read: {reading.unread}: {reading.detail}")
        return reading.value

    def booted(self) -> bool:
        """Does systemd run here? (sd_booted(3); in a container or below a root it does not)"""
        return self.reader.names("/run/systemd/system").value is not None

    def boot_id(self) -> str:
        """Identity of this boot, "" where it cannot be read."""
        return self.reader.line("/proc/sys/kernel/random/boot_id").value or ""


Command = tuple[str, ...]


class Changed(Exception):
    """Undo met a value that is neither the one found nor one that was set: somebody changed it since."""


@dataclass(frozen=True)
class Thing:
    """One thing on a host that has a value. Values are plain data, so that they can stand in a record.

    key: its path or name. finish: commands that make a new value count; each runs once after all writes.
    goes_on: a write of it that is refused does not keep the other things from being written.
    """

    kind: ClassVar[str] = ""
    first_in_undo: ClassVar[bool] = False
    goes_on: ClassVar[bool] = False

    key: str
    finish: tuple[Command, ...] = ()

    def read(self, host: Host) -> Any:
        """The value now; None when there is no such thing."""
        raise NotImplementedError

    def write(self, host: Host, value: Any) -> None:
        """Give it this value. Raises Failed."""
        raise NotImplementedError

    def foresee(self, host: Host, value: Any) -> None:
        """Note in ``host.foreseen`` what writing this value would do to things that several settings share."""

    def same(self, now: Any, wanted: Any) -> bool:
        """Is the value now as good as the wanted one?"""
        return bool(now == wanted)

    def header(self) -> str:
        """What the diff is called in which this thing stands."""
        return self.key

    def text(self, host: Host, value: Any) -> str:
        """The value as it stands in a diff."""
        return "" if value is None else f"{value}\n"

    def back(self, host: Host, found: Any, given: Sequence[Any], now: Any) -> Any:
        """The value that undo should write. Raises Changed when undo must leave it.

        found: the value before the first change. given: values that a run wrote or was about to write.
        """
        if self.same(now, found) or any(self.same(now, one) for one in given):
            return found
        raise Changed(f"{self.key}: changed by hand since it was set, left as it is")

    def plain(self) -> dict[str, Any]:
        """The thing as it stands in a record."""
        return {"kind": self.kind, "key": self.key, "finish": [list(one) for one in self.finish]}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Thing:
        """The reverse of `plain`."""
        return cls(plain["key"], tuple(tuple(one) for one in plain["finish"]))


@dataclass(frozen=True)
class OwnedFile(Thing):
    """A file or link that is wholly ours; its value is that of `File.plain`, None when there is none."""

    kind = "file"

    def read(self, host: Host) -> Any:
        found = host.writer.file(self.key)
        return found.plain() if found is not None else None

    def write(self, host: Host, value: Any) -> None:
        if value is None:
            host.writer.remove(self.key)
            return
        now = host.writer.file(self.key)
        file = File.of(value)
        if file.owner is None and now is not None and now.link is None and file.link is None:
            file = File(file.text, None, now.mode, now.owner)  # a new content keeps mode and owner
        host.writer.put(self.key, file)

    def foresee(self, host: Host, value: Any) -> None:
        host.foreseen["files"][self.key] = value

    def same(self, now: Any, wanted: Any) -> bool:
        if now is None or wanted is None:
            return now is wanted
        if wanted["owner"] is not None and (now["mode"], now["owner"]) != (wanted["mode"], wanted["owner"]):
            return False
        return (now["text"], now["link"]) == (wanted["text"], wanted["link"])

    def text(self, host: Host, value: Any) -> str:
        if value is None:
            return ""
        return value["text"] if value["link"] is None else f"-> {value['link']}\n"

    def back(self, host: Host, found: Any, given: Sequence[Any], now: Any) -> Any:
        contents = [None if one is None else (one["text"], one["link"]) for one in (found, *given)]
        if (None if now is None else (now["text"], now["link"])) in contents:
            return found
        raise Changed(f"{self.key}: changed by hand since it was set, left as it is")


@dataclass(frozen=True)
class Value(Thing):
    """A one-value file of sysfs or of /proc/sys."""

    kind = "value"

    def read(self, host: Host) -> Any:
        found = host.reader.line(self.key)
        if found.unread == "absent":
            return None
        return host.must(found)

    def write(self, host: Host, value: Any) -> None:
        if value is not None:
            host.writer.value(self.key, value)

    def header(self) -> str:
        return VALUES_HEADER

    def text(self, host: Host, value: Any) -> str:
        return f"{self.key} = {value}\n"

    def back(self, host: Host, found: Any, given: Sequence[Any], now: Any) -> Any:
        if now is None:
            raise Changed(f"{self.key}: is not there any more, nothing to put back")
        return super().back(host, found, given, now)


@dataclass(frozen=True)
class Goal:
    """A thing and the value it should have. own: False for what follows from other steps: read back, never written."""

    thing: Thing
    value: Any
    own: bool = True


@dataclass(frozen=True)
class Step:
    """One difference between what is and what is wanted."""

    thing: Thing
    before: Any
    after: Any
    own: bool = True


@dataclass(frozen=True)
class Plan:
    """What a setting wants on one host.

    reboot: whether the wanted value comes into force only with the next boot.
    not_applicable: why this host cannot have it.
    notes: further lines for the diff (costs). trial: state of a one-shot boot, ``armed`` or ``booted``.
    extra: what the record should keep besides things; without it nothing of the kind is kept.
    """

    goals: tuple[Goal, ...] = ()
    reboot: bool = False
    not_applicable: str = ""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    trial: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class View:
    """The three values of a setting, for a person, and who sets it."""

    live: str = ""
    persistent: str = ""
    effective: str = ""
    owner: str = ""


@dataclass(frozen=True)
class Setting:
    """The one declaration from which check, apply, drift and undo come.

    parse: plain data of the inventory -> what is wanted; raises Refused, reads no host.
    plan: (host, wanted, record) -> Plan; raises Refused. view: (host, wanted or None) -> View.
    kinds: the things it uses besides files and values. sweep: further goals of an undo, and what undo must leave alone.
    """

    name: str
    parse: Callable[[dict[str, Any]], Any]
    plan: Callable[[Host, Any, Record], Plan]
    view: Callable[[Host, Any], View]
    kinds: tuple[type[Thing], ...] = ()
    sweep: Callable[[Host, Any, Record], tuple[tuple[Goal, ...], tuple[str, ...], bool]] | None = None
    keep_on_undo: Callable[[Any, Thing, Any], str] | None = None

    def thing(self, plain: dict[str, Any]) -> Thing:
        """The thing that a record names. Raises Failed for a kind that this version does not know."""
        known: tuple[type[Thing], ...] = (OwnedFile, Value, *self.kinds)
        for kind in known:
            if kind.kind == plain["kind"]:
                return kind.of(plain)
        raise Failed(f"{state_path(self.name)}: unknown kind {plain['kind']!r}; written by another version")


def state_path(name: str) -> str:
    """Where the values found before the first change of a setting are kept."""
    return f"{STATE_FOLDER}/{name}.json"


@dataclass
class Item:
    """A thing that was changed: its value before the first change, and the values given to it."""

    thing: Thing
    found: Any
    given: list[Any]


@dataclass
class Record:
    """The values found before the first change of a setting, and what is still to be finished."""

    setting: str
    first: str = ""
    items: list[Item] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    finish: list[Command] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    exists: bool = False

    @classmethod
    def load(cls, host: Host, setting: Setting) -> Record:
        """Read the record of a setting; an empty one when there is none. Raises Failed when it is not understood."""
        plain = load_state(host, setting.name)
        if plain is None:
            return cls(setting.name)
        return cls(
            setting.name,
            plain["first"],
            [Item(setting.thing(item["thing"]), item["found"], item["given"]) for item in plain["items"]],
            plain["folders"],
            [tuple(one) for one in plain["finish"]],
            plain["extra"],
            exists=True,
        )

    def item(self, thing: Thing) -> Item | None:
        """The item of a thing, if it was ever changed."""
        return next(
            (one for one in self.items if (one.thing.kind, one.thing.key) == (thing.kind, thing.key)),
            None,
        )

    def save(self, host: Host) -> None:
        """Write the record, or remove it when nothing is kept in it any more."""
        path = state_path(self.setting)
        if not (self.items or self.finish or self.extra):
            host.writer.remove(path)
            for folder in reversed(self.folders):
                host.writer.remove_folder(folder)
            host.writer.remove_folder(STATE_FOLDER)
            return
        plain = {
            "schema": STATE_SCHEMA,
            "setting": self.setting,
            "first": self.first,
            "items": [{"thing": item.thing.plain(), "found": item.found, "given": item.given} for item in self.items],
            "folders": self.folders,
            "finish": [list(one) for one in self.finish],
            "extra": self.extra,
        }
        host.writer.make_folders(path, mode=0o700)
        host.writer.put(path, File(text=json.dumps(plain, indent=1, sort_keys=True) + "\n", mode=0o600))


def load_state(host: Host, name: str) -> dict[str, Any] | None:
    """The record of a setting as plain data, None when there is none. Raises Failed."""
    path = state_path(name)
    file = host.writer.file(path)
    if file is None:
        return None
    try:
        plain = json.loads(file.text or "")
        if not isinstance(plain, dict) or plain.get("schema") != STATE_SCHEMA or plain.get("setting") != name:
            raise ValueError(f"wanted schema {STATE_SCHEMA} of {name}")
        for key, kind in (("items", list), ("folders", list), ("finish", list), ("extra", dict), ("first", str)):
            if not isinstance(plain.get(key), kind):
                raise ValueError(f"{key} is missing")
    except ValueError as error:
        raise Failed(
            f"{path}: not understood ({error}); it holds the values to go back to, so nothing was touched"
        ) from error
    return plain


@dataclass
class Result:
    """What a run found and did; plain data of it is what the module returns."""

    setting: str
    changed: bool = False
    diff: list[dict[str, str]] = field(default_factory=list)
    live: str = ""
    persistent: str = ""
    effective: str = ""
    owner: str = ""
    not_applicable: str = ""
    reboot_required: bool = False
    trial: str = ""
    done: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    foreseen: dict[str, Any] = field(default_factory=dict)
    failure: str = ""


def keys_of(data: Any, name: str, known: dict[str, type | tuple[type, ...]]) -> dict[str, Any]:
    """The keys of one setting with their types checked; a key whose value is null is taken as not given.

    >>> keys_of({"governor": "performance"}, "cpu_governor", {"governor": str})
    {'governor': 'performance'}

    Raises Refused with every mistake in one text.
    """
    if not isinstance(data, dict):
        raise Refused(f"{name}: wanted a dictionary, found {data!r:.60}")
    wrong = [f"unknown key {key}" for key in data if key not in known]
    for key, value in data.items():
        kinds = known.get(key)
        if kinds is None or value is None:
            continue
        allowed = kinds if isinstance(kinds, tuple) else (kinds,)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            names = " or ".join(kind.__name__ for kind in allowed)
            wrong.append(f"{key}: wanted {names}, found {value!r:.60}")
    if wrong:
        raise Refused(f"{name}: {'; '.join(wrong)}; known keys are {', '.join(sorted(known))}")
    return {key: value for key, value in data.items() if value is not None}


def _steps(host: Host, goals: Iterable[Goal]) -> list[Step]:
    steps = []
    for goal in goals:
        now = goal.thing.read(host)
        if not goal.thing.same(now, goal.value):
            steps.append(Step(goal.thing, now, goal.value, goal.own))
    return steps


def _taken_back(
    host: Host, setting: Setting, items: Iterable[Item], wanted: Any
) -> tuple[list[Step], list[str], list[Item]]:
    """Steps that give things their found value again, what is left alone and why, and the items of those."""
    steps: list[Step] = []
    left: list[str] = []
    kept: list[Item] = []
    for item in sorted(items, key=lambda one: not one.thing.first_in_undo):
        now = item.thing.read(host)
        reason = setting.keep_on_undo(wanted, item.thing, item.found) if setting.keep_on_undo else ""
        try:
            after = item.thing.back(host, item.found, item.given, now)
        except Changed as error:
            left.append(str(error))
            if now is not None:
                kept.append(item)
            continue
        if now == after:
            continue
        if reason:
            left.append(f"{item.thing.key}: {reason}")
            continue
        steps.append(Step(item.thing, now, after))
    return steps, left, kept


def diff_of(host: Host, steps: Sequence[Step], notes: Sequence[str] = ()) -> list[dict[str, str]]:
    """The steps as ansible's diff: one entry per header, in order; notes stand at the end of the last one's after."""
    grouped: dict[str, list[Step]] = {}
    for step in steps:
        grouped.setdefault(step.thing.header(), []).append(step)
    entries = [
        {
            "before_header": header,
            "after_header": header,
            "before": "".join(step.thing.text(host, step.before) for step in group),
            "after": "".join(step.thing.text(host, step.after) for step in group),
        }
        for header, group in grouped.items()
    ]
    if entries and notes:
        entries[-1]["after"] += "".join(f"# {note}\n" for note in notes)
    return entries


def _folders(host: Host, steps: Sequence[Step], setting: Setting) -> list[str]:
    """Folders that the steps will make, and those that another setting made and this one uses as well."""
    others: set[str] = set()
    for name in host.reader.names(STATE_FOLDER).value or ():
        if name.endswith(".json") and name != f"{setting.name}.json":
            state = load_state(host, name[: -len(".json")])
            others.update(state["folders"] if state else ())
    wanted: list[str] = []
    paths = [step.thing.key for step in steps if step.after is not None and step.thing.key.startswith("/")]
    for path in (*paths, state_path(setting.name)):
        parts = path.split("/")[1:-1]
        above = ["/" + "/".join(parts[: number + 1]) for number in range(len(parts))]
        missing = host.writer.missing_folders(path)
        wanted += [folder for folder in above if (folder in missing or folder in others) and folder not in wanted]
    return wanted


def _make(host: Host, steps: Sequence[Step], record: Record, result: Result) -> None:
    """Make the steps, finish them and read every one back. Raises Failed."""
    refused: list[str] = []
    for step in steps:
        if not step.own:
            continue
        if step.after is not None and isinstance(step.thing, OwnedFile):
            host.writer.make_folders(step.thing.key)
        try:
            step.thing.write(host, step.after)
        except Failed as error:
            if not step.thing.goes_on:
                raise
            refused.append(str(error))
            continue
        result.changed = True
        result.done.append(step.thing.key)
    for command in list(record.finish):
        _finish(host, command)
        result.changed = True
    if refused:
        raise Failed("; ".join(refused))
    for step in steps:
        now = step.thing.read(host)
        if not step.thing.same(now, step.after):
            seen = " ".join(step.thing.text(host, now).split()) or "nothing"
            wanted = " ".join(step.thing.text(host, step.after).split()) or "nothing"
            raise Failed(f"{step.thing.key}: not kept: wanted {wanted:.300}, reads back {seen:.300}")


def _finish(host: Host, command: Command) -> None:
    if command[0] in ("systemctl", "udevadm") and not host.booted():
        return  # no manager runs here that could have the old files in its memory
    host.writer.run(command)


def apply(setting: Setting, data: Any, host: Host, check: bool = False) -> Result:
    """Bring a setting to what is wanted; with `check` only say what would be done.

    Raises Refused before anything is touched, or Failed; a failure in the middle is in ``Result.failure`` with
    what was done before it.
    """
    wanted = setting.parse(data)
    result = Result(setting.name)
    with nullcontext() if check else host.writer.lock():
        record = Record.load(host, setting)
        plan = setting.plan(host, wanted, record)
        result.warnings += plan.warnings
        if plan.not_applicable:
            result.not_applicable = plan.not_applicable
            return result
        covered = {(goal.thing.kind, goal.thing.key) for goal in plan.goals}
        dropped = [item for item in record.items if (item.thing.kind, item.thing.key) not in covered]
        back, left, held = _taken_back(host, setting, dropped, wanted)
        result.left += left
        steps = _steps(host, plan.goals) + back
        result.diff = diff_of(host, steps, plan.notes)
        result.reboot_required, result.trial = plan.reboot, plan.trial
        result.changed = bool(steps) or bool(record.finish)
        if not check and result.changed:
            result.changed = False
            record.extra = dict(plan.extra)
            _change(host, setting, record, steps, [item for item in dropped if item not in held], result)
        _look(host, setting, wanted, result)
        if check:
            _foresee(host, steps, result)
    return result


def _change(
    host: Host, setting: Setting, record: Record, steps: Sequence[Step], dropped: Sequence[Item], result: Result
) -> None:
    """Keep what was found, make the steps, and settle the record."""
    record.first = record.first or utc(host.reader.taken_at())
    for step in steps:
        if not step.own:
            continue
        item = record.item(step.thing)
        if item is None:
            record.items.append(Item(step.thing, step.before, [step.after]))
        elif not any(item is one for one in dropped):
            item.given.append(step.after)
            item.thing = step.thing
    record.folders += [folder for folder in _folders(host, steps, setting) if folder not in record.folders]
    commands = [command for step in steps for command in step.thing.finish]
    record.finish += [command for command in dict.fromkeys(commands) if command not in record.finish]
    try:
        record.save(host)
        _make(host, steps, record, result)
    except Failed as error:
        result.failure = str(error)
        return
    record.finish = []
    record.items = [item for item in record.items if not any(item is one for one in dropped)]
    for step in steps:
        item = record.item(step.thing)
        if item is not None:
            item.given = [step.after]
    record.save(host)


def undo(setting: Setting, data: Any, host: Host, check: bool = False) -> Result:
    """Give all that a setting changed the value it had before. A value changed by hand since is left, and said."""
    wanted = setting.parse(data) if data else None
    result = Result(setting.name)
    with nullcontext() if check else host.writer.lock():
        record = Record.load(host, setting)
        if not record.exists:
            if not check:
                host.writer.tidy(state_path(setting.name))
                record.save(host)  # clears what a run left that was killed before its record was there
            _look(host, setting, wanted, result)
            return result
        steps, result.left, kept = _taken_back(host, setting, record.items, wanted)
        if setting.sweep is not None:
            goals, left, result.reboot_required = setting.sweep(host, wanted, record)
            result.left += left
            steps += _steps(host, goals)
        result.diff = diff_of(host, steps)
        result.changed = True
        if not kept and not steps and not record.finish:
            result.diff = []  # only the record itself goes
        elif kept and not steps and not record.finish and len(kept) == len(record.items):
            result.changed = False
        if not check and result.changed:
            result.changed = False
            _go_back(host, record, steps, kept, result)
        _look(host, setting, wanted, result)
        if check:
            _foresee(host, steps, result)
            if not kept:
                result.foreseen["files"][state_path(setting.name)] = None
    return result


def _foresee(host: Host, steps: Sequence[Step], result: Result) -> None:
    for step in steps:
        step.thing.foresee(host, step.after)
    result.foreseen = host.foreseen


def _go_back(host: Host, record: Record, steps: Sequence[Step], kept: list[Item], result: Result) -> None:
    commands = [command for step in steps for command in step.thing.finish]
    record.finish += [command for command in dict.fromkeys(commands) if command not in record.finish]
    try:
        record.save(host)
        _make(host, steps, record, result)
        for path in (*(item.thing.key for item in record.items), state_path(record.setting)):
            if path.startswith("/") and not path.startswith(("/sys/", "/proc/")):
                host.writer.tidy(path)
        record.items, record.finish, record.extra = kept, [], {}
        for folder in sorted(record.folders, key=len, reverse=True):
            host.writer.remove_folder(folder)
        record.save(host)
        result.changed = True
    except Failed as error:
        result.failure = str(error)


def _look(host: Host, setting: Setting, wanted: Any, result: Result) -> None:
    try:
        view = setting.view(host, wanted)
    except (Failed, Refused) as error:
        view = View(effective=f"cannot be read: {error}")
    result.live, result.persistent, result.effective, result.owner = (
        view.live,
        view.persistent,
        view.effective,
        view.owner,
    )
