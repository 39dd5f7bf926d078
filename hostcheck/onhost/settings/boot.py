"""The kernel command line of the next boot: which loader a host has, and the things that change its entries.

Three families: GRUB with drop-ins (Debian, Ubuntu), grubby (RHEL, Fedora), and entry files of the boot loader
specification (kernel-install, systemd-boot). Everywhere arguments are merged word by word, and one entry with the
arguments from before the first change stays in the menu without being the default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..recording import utc
from .boot_entries import (
    BLS_PREFIX,
    DROP_IN_HEAD,
    ONCE,
    PREVIOUS,
    TOKEN,
    Claim,
    Entry,
    bls_copy,
    bls_with,
    drop_in,
    grub_script,
    grub_stanza,
    holds,
    key,
    merged,
    parse_bls,
    parse_drop_in,
    parse_grub,
    parse_grub_script,
    parse_grubby,
    replaced,
    variable_with,
    variable_words,
    words,
)
from .engine import Changed, Goal, Host, OwnedFile, Plan, Record, Refused, Thing, load_state
from .files import Failed, File

CMDLINE = "/proc/cmdline"
DROP_IN = "/etc/default/grub.d/90-hostcheck.cfg"
GRUB_SCRIPT = "/etc/grub.d/42_hostcheck"
GRUB_MENU = "/boot/grub/grub.cfg"
GRUB_DEFAULTS = "/etc/default/grub"
KERNEL_CMDLINE = "/etc/kernel/cmdline"
ENTRY_FOLDERS = ("/boot/loader/entries", "/boot/efi/loader/entries", "/efi/loader/entries")
UPDATE_GRUB = ("update-grub",)
ONE_SHOT_VARIABLE = "/sys/firmware/efi/efivars/LoaderEntryOneShot-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
ROLES = ("kernel_arguments", "pcie_aspm")  # the settings that own words of the command line
ENTRIES_HEADER = "boot entries"


def running(host: Host) -> tuple[str, ...]:
    """The words of the running kernel's command line."""
    return words(host.must(host.reader.text(CMDLINE)))


def satisfied(args: Sequence[str], add: Sequence[str], remove: Sequence[str]) -> bool:
    """Does a command line have all of the one and none of the other?"""
    return all(holds(args, one) for one in add) and not any(holds(args, one) for one in remove)


def check_word(word: str, where: str) -> str:
    """A word that may be written into a boot configuration. Raises Refused."""
    if not TOKEN.fullmatch(word):
        raise Refused(f"{where}: {word!r} is not a kernel argument such as name or name=value (no blanks, no quotes)")
    return word


# -- loaders ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loader:
    """How this host starts its kernels. family: grub, grubby or entries. folder: of the entry files, or ""."""

    family: str
    folder: str = ""

    def entries(self, host: Host) -> tuple[Entry, ...]:
        """Every Linux entry of the boot menu. Raises Failed for a menu that is not understood."""
        try:
            if self.family == "entries":
                return entry_files(host, self.folder)
            if self.family == "grub":
                found = parse_grub(host.must(host.reader.text(GRUB_MENU, 64 << 20)))
            else:
                found = parse_grubby(host.must(host.reader.output(("grubby", "--info=ALL"), 60.0)))
            lines = {(entry.id, entry.title): host.foreseen["lines"].get(self.name(entry)) for entry in found}
            return tuple(
                entry if (line := lines[entry.id, entry.title]) is None else replace(entry, args=words(line))
                for entry in found
            )
        except ValueError as error:
            raise Failed(f"boot menu of {self.family}: {error}") from error

    def name(self, entry: Entry) -> str:
        """What an entry is called in values and diffs."""
        return entry.title if self.family == "grub" else entry.id

    def normal(self, host: Host) -> tuple[Entry, ...]:
        """The entries that get arguments. Raises Refused when there is none."""
        found = tuple(entry for entry in self.entries(host) if entry.kind == "normal")
        if not found:
            raise Refused(f"boot menu of {self.family}: no normal Linux entry found, so no argument could be set")
        return found


def entry_files(host: Host, folder: str) -> tuple[Entry, ...]:
    """The entries that stand as files in a folder. Raises ValueError."""
    entries = []
    for path in host.reader.children(folder, r".*\.conf"):
        file = host.writer.file(path)
        if file is not None:
            entries.append(parse_bls(file.text or "", path.rpartition("/")[2], path))
    return tuple(entries)


def loader_of(host: Host) -> Loader:
    """The boot loader of a host, judged by its tools and files. Raises Refused for one that is not known."""
    if host.reader.stat("/run/ostree-booted").value is not None:
        raise Refused("an image-based system: set kernel arguments with rpm-ostree kargs; not done by this toolkit")
    folder = next((one for one in ENTRY_FOLDERS if host.reader.children(one, r".*\.conf")), "")
    if host.writer.has("grubby"):
        return Loader("grubby", folder)
    if host.writer.has("update-grub"):
        return Loader("grub")
    if host.writer.has("kernelstub"):
        raise Refused("kernelstub owns the boot entries here: kernelstub -a ARGUMENT; not done by this toolkit")
    if folder:
        return Loader("entries", folder)
    raise Refused(
        "no boot loader understood: found neither grubby, nor update-grub, nor entry files in "
        + ", ".join(ENTRY_FOLDERS)
        + " (a unified kernel image has its arguments built in)"
    )


def where(host: Host, word: str) -> str:
    """The file and line in which an argument is set, or the boot menu as a whole."""
    files = (GRUB_DEFAULTS, *host.reader.children("/etc/default/grub.d", r".*\.cfg"), KERNEL_CMDLINE)
    folders = [path for one in ENTRY_FOLDERS for path in host.reader.children(one, r".*\.conf")]
    for path in (*files, *folders):
        for number, line in enumerate((host.reader.text(path).value or "").splitlines(), 1):
            if not line.lstrip().startswith("#") and any(
                holds((part,), word) for part in words(line.replace('"', " ").replace("'", " "))
            ):
                return f"{path}:{number}"
    return "the boot menu"


# -- things -------------------------------------------------------------------------------------------


def _claims(text: str | None) -> dict[str, Claim]:
    return parse_drop_in(text or "")


@dataclass(frozen=True)
class DropIn(Thing):
    """One role's words in the GRUB drop-in, which several roles share. Value: ``{add, remove, file}`` or None."""

    kind = "grub_drop_in"
    owner: str = ""

    def _value(self, claims: dict[str, Claim], text: str) -> dict[str, Any]:
        add, remove = claims.get(self.owner, ((), ()))
        return {"add": list(add), "remove": list(remove), "file": text}

    def read(self, host: Host) -> Any:
        found = host.writer.file(self.key)
        return None if found is None else self._value(_claims(found.text), found.text or "")

    def wanted(self, host: Host, add: Sequence[str], remove: Sequence[str]) -> dict[str, Any]:
        """The value with these words, other roles' words as they are now."""
        found = host.writer.file(self.key)
        claims = {**_claims(found.text if found else None), self.owner: (tuple(add), tuple(remove))}
        return self._value(claims, drop_in(claims))

    def same(self, now: Any, wanted: Any) -> bool:
        blank: dict[str, Any] = {"add": [], "remove": [], "file": ""}
        now, wanted = now or blank, wanted or blank
        clean = now["file"] == drop_in(_claims(now["file"]))
        return clean and (now["add"], now["remove"]) == (wanted["add"], wanted["remove"])

    def write(self, host: Host, value: Any) -> None:
        value = value or {"add": [], "remove": []}
        text = self.wanted(host, value["add"], value["remove"])["file"]
        if text:
            host.writer.make_folders(self.key)
            found = host.writer.file(self.key)
            host.writer.put(self.key, File(text, None, found.mode, found.owner) if found else File(text))
        else:
            host.writer.remove(self.key)

    def foresee(self, host: Host, value: Any) -> None:
        text = value["file"] if value else ""
        host.foreseen["files"][self.key] = File(text).plain() if text else None

    def text(self, host: Host, value: Any) -> str:
        return "" if value is None else str(value["file"])

    def back(self, host: Host, found: Any, given: Sequence[Any], now: Any) -> Any:
        if now is not None and now["file"] != drop_in(_claims(now["file"])):
            raise Changed(f"{self.key}: changed by hand since it was set, left as it is")
        own = [(one["add"], one["remove"]) if one else ([], []) for one in (found, *given)]
        mine = (now["add"], now["remove"]) if now else ([], [])
        if mine not in own:
            raise Changed(f"{self.key}: the lines of {self.owner} were changed by hand, left as they are")
        back = own[0]
        if mine == back:
            return now
        return self.wanted(host, *back)

    def plain(self) -> dict[str, Any]:
        return {**super().plain(), "owner": self.owner}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Thing:
        return cls(plain["key"], tuple(tuple(one) for one in plain["finish"]), plain["owner"])


@dataclass(frozen=True)
class OwnEntry(OwnedFile):
    """The entry with the previous arguments. Several roles need it: it goes when the last of them goes, see `sweep`."""

    kind = "own_entry"

    def back(self, host: Host, found: Any, given: Sequence[Any], now: Any) -> Any:
        return now


@dataclass(frozen=True)
class Menu(Thing):
    """The normal entries of a menu that a tool generates. Value: title -> command line. Read back, never written."""

    kind = "menu"
    loader: Loader = field(default_factory=lambda: Loader("grub"))
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()

    def read(self, host: Host) -> Any:
        return {entry.title: entry.line for entry in self.loader.normal(host)}

    def wanted(self, host: Host) -> dict[str, str]:
        """The entries as they will be."""
        return {entry.title: " ".join(merged(entry.args, self.add, self.remove)) for entry in self.loader.normal(host)}

    def foresee(self, host: Host, value: Any) -> None:
        host.foreseen["lines"].update(value)

    def same(self, now: Any, wanted: Any) -> bool:
        return all(satisfied(words(line), self.add, self.remove) for line in now.values())

    def header(self) -> str:
        return ENTRIES_HEADER

    def text(self, host: Host, value: Any) -> str:
        return "".join(f"{title}: {line}\n" for title, line in value.items())


@dataclass(frozen=True)
class GrubbyEntry(Thing):
    """The arguments of one entry that grubby keeps. key: its id."""

    kind = "grubby_entry"

    def _entry(self, host: Host) -> Entry | None:
        return next((one for one in Loader("grubby").entries(host) if one.id == self.key), None)

    def read(self, host: Host) -> Any:
        entry = self._entry(host)
        return None if entry is None else entry.line

    def write(self, host: Host, value: Any) -> None:
        entry = self._entry(host)
        if entry is None or value is None:
            return
        now, then = list(entry.args), list(words(value))
        gone = [one for one in now if one not in then]
        new = [one for one in then if one not in now]
        if [one for one in now if one not in gone] + new != then:  # the order differs as well: write the tail anew
            same = 0
            while same < min(len(now), len(then)) and now[same] == then[same]:
                same += 1
            gone, new = now[same:], then[same:]
            host.writer.run(("grubby", f"--update-kernel={entry.place}", f"--remove-args={' '.join(gone)}"))
            gone = []
        argv = ["grubby", f"--update-kernel={entry.place}"]
        argv += [f"--remove-args={' '.join(gone)}"] if gone else []
        argv += [f"--args={' '.join(new)}"] if new else []
        if len(argv) > 2:
            host.writer.run(argv)

    def foresee(self, host: Host, value: Any) -> None:
        host.foreseen["lines"][self.key] = value

    def same(self, now: Any, wanted: Any) -> bool:
        return now is not None and wanted is not None and sorted(words(now)) == sorted(words(wanted))

    def header(self) -> str:
        return ENTRIES_HEADER

    def text(self, host: Host, value: Any) -> str:
        return "" if value is None else f"{self.key}: {value}\n"

    def back(self, host: Host, found: Any, given: Sequence[Any], now: Any) -> Any:
        return _words_back(self.key, now, found, given)


@dataclass(frozen=True)
class EntryFile(Thing):
    """The command line of one entry file. key: its path."""

    kind = "entry_file"

    def read(self, host: Host) -> Any:
        found = host.writer.file(self.key)
        return None if found is None else parse_bls(found.text or "", self.key.rpartition("/")[2]).line

    def write(self, host: Host, value: Any) -> None:
        found = host.writer.file(self.key)
        if found is not None and value is not None:
            text = bls_with(found.text or "", words(value))
            host.writer.put(self.key, File(text, None, found.mode, found.owner))

    def foresee(self, host: Host, value: Any) -> None:
        found = host.writer.file(self.key)
        if found is not None and value is not None:
            host.foreseen["files"][self.key] = File(bls_with(found.text or "", words(value))).plain()

    def header(self) -> str:
        return ENTRIES_HEADER

    def text(self, host: Host, value: Any) -> str:
        return "" if value is None else f"{self.key}: {value}\n"

    def back(self, host: Host, found: Any, given: Sequence[Any], now: Any) -> Any:
        return _words_back(self.key, now, found, given)


@dataclass(frozen=True)
class WordsFile(OwnedFile):
    """A file of the distribution that holds one command line.

    When it was edited since, undo takes only its own words out.

    variable: the shell variable that holds the words, "" when the file is nothing but the words.
    base: the words without any of ours, where this toolkit made the file; None where it was there before.
    """

    kind = "words_file"
    variable: str = ""
    base: tuple[str, ...] | None = None

    def words(self, value: Any) -> tuple[str, ...]:
        """The command line in a value of this thing."""
        if value is None:
            return ()
        return variable_words(value["text"], self.variable) if self.variable else words(value["text"])

    def with_words(self, value: Any, args: Sequence[str]) -> dict[str, Any]:
        """The value with another command line."""
        if self.variable:
            return {**value, "text": variable_with(value["text"], self.variable, args)}
        return {**(value or File(text="").plain()), "text": " ".join(args) + "\n"}

    def back(self, host: Host, found: Any, given: Sequence[Any], now: Any) -> Any:
        try:
            return super().back(host, found, given, now)
        except Changed:
            first = self.base if found is None else self.words(found)
            if now is None or first is None:
                raise
            taken = _difference(self.words(now), first, self.words(given[-1]))
            if self.base is not None and sorted(taken) == sorted(self.base):
                return None
            return self.with_words(now, taken)

    def plain(self) -> dict[str, Any]:
        return {**super().plain(), "variable": self.variable, "base": self.base}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Thing:
        base = None if plain["base"] is None else tuple(plain["base"])
        return cls(plain["key"], tuple(tuple(one) for one in plain["finish"]), plain["variable"], base)


def _difference(now: Sequence[str], found: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """The words now, without what the change from `found` to `given` brought, and with what it took."""
    added = [one for one in given if one not in found]
    return merged(now, [one for one in found if one not in given], added)


def _words_back(name: str, now: Any, found: Any, given: Sequence[Any]) -> Any:
    if now is None or found is None:
        raise Changed(f"{name}: is not there any more, nothing to put back")
    if now == found or any(sorted(words(now)) == sorted(words(one)) for one in given):
        return found
    back = now
    for one in given:
        back = " ".join(_difference(words(back), words(found), words(one)))
    return back


@dataclass(frozen=True)
class OneShot(Thing):
    """Which entry only the next boot takes. Value: its id or None."""

    kind = "one_shot"
    first_in_undo = True
    family: str = "grub"

    def _tool(self, host: Host, name: str) -> str:
        return next((one for one in (f"grub-{name}", f"grub2-{name}") if host.writer.has(one)), f"grub-{name}")

    def read(self, host: Host) -> Any:
        if self.family == "entries":
            data = host.reader.data(ONE_SHOT_VARIABLE).value
            return (data[4:].decode("utf-16-le", "replace").rstrip("\0") or None) if data else None
        listed = host.must(host.reader.output((self._tool(host, "editenv"), "list"), 60.0))
        found = [line.partition("=")[2] for line in listed.splitlines() if line.startswith("next_entry=")]
        return (found[-1] or None) if found else None

    def write(self, host: Host, value: Any) -> None:
        if self.family == "entries":
            host.writer.run(("bootctl", "set-oneshot", value or ""))
        elif value is None:
            host.writer.run((self._tool(host, "editenv"), "-", "unset", "next_entry"))
        else:
            host.writer.run((self._tool(host, "reboot"), value))

    def header(self) -> str:
        return "entry of the next boot only"

    def back(self, host: Host, found: Any, given: Sequence[Any], now: Any) -> Any:
        return found if now in given else now  # the boot that it was for has taken it

    def plain(self) -> dict[str, Any]:
        return {**super().plain(), "family": self.family}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Thing:
        return cls(plain["key"], tuple(tuple(one) for one in plain["finish"]), plain["family"])


KINDS = (DropIn, OwnEntry, Menu, GrubbyEntry, EntryFile, WordsFile, OneShot)


# -- what a role wants of the command line ------------------------------------------------------------


def others(host: Host, owner: str) -> tuple[str, ...]:
    """Other roles that have words on the command line of this host."""
    return tuple(
        name
        for name in ROLES
        if name != owner
        and any(
            item["thing"]["kind"] in ("grub_drop_in", "grubby_entry", "entry_file", "own_entry")
            for item in (load_state(host, name) or {"items": []})["items"]
        )
    )


def plan(host: Host, owner: str, record: Record, add: Sequence[str], remove: Sequence[str], once: bool = False) -> Plan:
    """What a role wants: words on every normal entry, words on none. Raises Refused.

    once: only the next boot tries them, through an entry of its own; see `Plan.trial`.
    """
    loader = loader_of(host)
    normal = loader.normal(host)
    now = running(host)
    lines = [entry.args for entry in normal]
    gone = tuple(dict.fromkeys((*remove, *(word for line in lines for word in replaced(line, add)))))
    add = tuple(add)
    live = satisfied(now, add, remove)
    permanent = all(satisfied(line, add, gone) for line in lines)
    trial = record.extra.get("trial")
    if once and not permanent:
        return _on_trial(host, owner, loader, normal[0], now, (add, gone), trial)
    state, reboot = ("", not live)
    goals = _family(host, owner, record, loader, normal, add, gone)
    warnings = tuple(
        f"{word} also stands in {where(host, word)}; both are on the command line"
        for word in now
        if any(key(word) == key(one) and not holds((word,), one) for one in add)
        and holds(lines[0], word)
        and not holds(gone, word)
    )
    return Plan(tuple(goals), reboot=reboot, warnings=warnings, trial=state)


def _own_entries(host: Host, loader: Loader, entry: Entry, claim: Claim | None, needed: bool) -> tuple[Goal, ...]:
    """Goals for the entry with the previous arguments and, with `claim`, the one on trial."""
    if loader.family == "grub":
        thing = OwnEntry(GRUB_SCRIPT, (UPDATE_GRUB,))
        found = host.writer.file(GRUB_SCRIPT)
        there = parse_grub_script(found.text or "") if found else {}
        try:
            stanzas = [there.get(PREVIOUS) or grub_stanza(entry, PREVIOUS, entry.args)]
            stanzas += [grub_stanza(entry, ONCE, merged(entry.args, *claim))] if claim is not None else []
        except ValueError as error:
            raise Refused(str(error)) from error
        return (Goal(thing, File(grub_script(stanzas), None, 0o755).plain() if needed else None),)
    if not loader.folder:
        return ()
    files = [one for one in entry_files(host, loader.folder) if one.kind == "normal"]
    like = next((one for one in files if one.id == entry.id or one.kernel == entry.kernel), files[0] if files else None)
    if like is None:
        return ()
    goals = []
    path = f"{loader.folder}/{BLS_PREFIX}{PREVIOUS}.conf"
    kept = host.writer.file(path)
    text = (kept.text or "") if kept else bls_copy(like, PREVIOUS, like.args)
    goals.append(Goal(OwnEntry(path), File(text).plain() if needed else None))
    if claim is not None:
        text = bls_copy(like, ONCE, merged(like.args, *claim))
        goals.append(Goal(OwnedFile(f"{loader.folder}/{BLS_PREFIX}{ONCE}.conf"), File(text).plain()))
    return tuple(goals)


def _family(
    host: Host,
    owner: str,
    record: Record,
    loader: Loader,
    normal: Sequence[Entry],
    add: Sequence[str],
    gone: Sequence[str],
) -> list[Goal]:
    if loader.family == "grub":
        return _grub(host, owner, loader, normal, add, gone)
    goals: list[Goal] = []
    changes = any(not satisfied(entry.args, add, gone) for entry in normal)
    mine = any(item.thing.kind in ("grubby_entry", "entry_file") for item in record.items)
    if changes or mine:
        goals += _own_entries(host, loader, normal[0], None, needed=True)
    for entry in normal:
        thing: Thing = GrubbyEntry(entry.id) if loader.family == "grubby" else EntryFile(entry.place)
        goals.append(Goal(thing, " ".join(merged(entry.args, add, gone))))
    for path, variable in ((KERNEL_CMDLINE, ""), (GRUB_DEFAULTS, "GRUB_CMDLINE_LINUX")):
        file = WordsFile(path, (), variable)
        found = file.read(host)
        if found is None and path == KERNEL_CMDLINE and loader.family == "entries" and (changes or mine):
            # kernel-install(8) takes the running kernel's line for a new kernel when this file is missing
            line = [one for one in running(host) if not one.startswith(("BOOT_IMAGE=", "initrd="))]
            file = WordsFile(path, (), variable, tuple(line))
            goals.append(Goal(file, file.with_words(None, merged(line, add, gone))))
        elif found is not None and not (variable and loader.family == "entries"):
            file = WordsFile(path, (), variable, _base(host, path))
            args = file.words(found)
            value = found if satisfied(args, add, gone) else file.with_words(found, merged(args, add, gone))
            goals.append(Goal(file, {**value, "owner": None}))
    return goals


def _base(host: Host, path: str) -> tuple[str, ...] | None:
    """The words that a file of ours began with, when another role of the toolkit made it."""
    for name in ROLES:
        for item in (load_state(host, name) or {"items": []})["items"]:
            thing = item["thing"]
            if thing["kind"] == WordsFile.kind and thing["key"] == path and thing["base"] is not None:
                return tuple(thing["base"])
    return None


def _grub(
    host: Host, owner: str, loader: Loader, normal: Sequence[Entry], add: Sequence[str], gone: Sequence[str]
) -> list[Goal]:
    thing = DropIn(DROP_IN, (UPDATE_GRUB,), owner)
    now = host.writer.file(DROP_IN)
    if now is not None and not (now.text or "").startswith(DROP_IN_HEAD):
        raise Refused(f"{DROP_IN}: is there and was not written by this toolkit; move it away first")
    claims = _claims(now.text if now else None)
    own_add, own_gone = claims.get(owner, ((), ()))
    for name, (other_add, other_gone) in claims.items():
        clash = [one for one in add if any(key(one) == key(word) for word in other_add) or holds(other_gone, one)]
        if name != owner and clash:
            raise Refused(f"{clash[0]} is set by the role {name} as well ({DROP_IN}); declare it in one of them")
    # A word that every entry has without us is not ours: undo must not take it.
    need_add = [one for one in add if one in own_add or not all(holds(entry.args, one) for entry in normal)]
    # What we added ourselves goes with its line.
    standing = dict.fromkeys(
        word for entry in normal for word in entry.args if holds(gone, word) and not holds(own_add, word)
    )
    keep_gone = [word for word in own_gone if holds(gone, word) or any(key(word) == key(one) for one in need_add)]
    need_gone = list(dict.fromkeys((*keep_gone, *standing)))
    wanted = thing.wanted(host, need_add, need_gone)
    needed = bool(wanted["file"])
    goals: list[Goal] = []
    if needed or host.writer.file(GRUB_SCRIPT) is not None:
        goals += _own_entries(host, loader, normal[0], None, needed=needed)
    goals.append(Goal(thing, wanted))
    dropped_add = [one for one in own_add if one not in need_add]
    menu = Menu(ENTRIES_HEADER, (UPDATE_GRUB,), loader, tuple(add), tuple(dict.fromkeys((*gone, *dropped_add))))
    goals.append(Goal(menu, menu.wanted(host), own=False))
    return goals


def _on_trial(
    host: Host, owner: str, loader: Loader, entry: Entry, now: Sequence[str], claim: Claim, trial: Any
) -> Plan:
    add, gone = claim
    args = merged(entry.args, add, gone)
    if trial is not None and trial["boot_id"] != host.boot_id():
        if not satisfied(now, add, gone):
            raise Refused(
                f"the one-shot boot of {trial['at']} did not last: this boot runs without "
                f"{' '.join(add) or 'the change'}, and nothing was made permanent. Look at the previous boot "
                "(journalctl -k -b -1), then undo, or apply with try_once: false"
            )
        if OneShot("next boot", (), loader.family).read(host) is not None:
            raise Refused(
                "the boot loader could not clear its one-shot entry, so that every boot takes it: "
                "undo, and set try_once: false"
            )
        return Plan(_own_entries(host, loader, entry, claim, needed=True), trial="booted", extra={"trial": trial})
    goals = list(_own_entries(host, loader, entry, claim, needed=True))
    if loader.family != "grub" and len(goals) < 2:
        raise Refused("try_once needs boot entry files, and this host has none; apply with try_once: false")
    if loader.family == "grub":
        menu = OnceMenu("one-shot entry", (UPDATE_GRUB,), loader)
        goals.append(Goal(menu, " ".join(args), own=False))
    name = ONCE if loader.family == "grub" else f"{BLS_PREFIX}{ONCE}"
    name += ".conf" if loader.family == "entries" else ""
    goals.append(Goal(OneShot("next boot", (), loader.family), name))
    return Plan(tuple(goals), reboot=True, trial="armed", extra={"trial": trial or _armed(host, owner)})


def _armed(host: Host, owner: str) -> dict[str, str]:
    return {"boot_id": host.boot_id(), "at": utc(host.reader.taken_at()), "owner": owner}


@dataclass(frozen=True)
class OnceMenu(Thing):
    """The one-shot entry in GRUB's generated menu. Value: its command line. Never written: read back only."""

    kind = "once_menu"
    loader: Loader = field(default_factory=lambda: Loader("grub"))

    def read(self, host: Host) -> Any:
        return next((entry.line for entry in self.loader.entries(host) if entry.kind == "once"), None)


def sweep(owner: str) -> Callable[[Host, Any, Record], tuple[tuple[Goal, ...], tuple[str, ...], bool]]:
    """What undo of a role has to do besides giving things their found values; for `Setting.sweep`."""

    def goals(host: Host, data: Any, record: Record) -> tuple[tuple[Goal, ...], tuple[str, ...], bool]:
        loader = loader_of(host)
        add: set[str] = set()
        back: set[str] = set()
        for item in record.items:
            if isinstance(item.thing, DropIn):
                for one in item.given:
                    add.update(one["add"] if one else ())
                    back.update(one["remove"] if one else ())
            elif isinstance(item.thing, (GrubbyEntry, EntryFile)) and item.found is not None:
                for one in item.given:
                    add.update(word for word in words(one) if word not in words(item.found))
                    back.update(word for word in words(item.found) if word not in words(one))
        now = running(host)
        reboot = any(holds(now, word) for word in add) or any(not holds(now, word) for word in back)
        found: list[Goal] = []
        if not others(host, owner):
            own = [item.thing for item in record.items if isinstance(item.thing, OwnEntry)]
            found += [Goal(thing, None) for thing in own]
            if not own and loader.family == "grub" and host.writer.file(GRUB_SCRIPT) is not None:
                found.append(Goal(OwnEntry(GRUB_SCRIPT, (UPDATE_GRUB,)), None))
            elif not own and loader.folder:
                found.append(Goal(OwnEntry(f"{loader.folder}/{BLS_PREFIX}{PREVIOUS}.conf"), None))
        if loader.family == "grub":
            drops = [item for item in record.items if isinstance(item.thing, DropIn)]
            if drops and (add or back):
                menu = Menu(ENTRIES_HEADER, (UPDATE_GRUB,), loader, tuple(sorted(back)), tuple(sorted(add)))
                found.append(Goal(menu, menu.wanted(host), own=False))
            return tuple(found), (), reboot
        known = {item.thing.key for item in record.items}
        for entry in loader.normal(host):  # a kernel that came after the change took its arguments over
            thing: Thing = GrubbyEntry(entry.id) if loader.family == "grubby" else EntryFile(entry.place)
            if thing.key not in known and any(holds(entry.args, word) for word in add):
                found.append(Goal(thing, " ".join(merged(entry.args, sorted(back), sorted(add)))))
        return tuple(found), (), reboot

    return goals
