"""What the next boot will start: boot entry, initrd, arguments, firmware files; and who may start it by itself.

The menu is read as the boot loader reads it: GRUB's generated ``grub.cfg`` with its environment block, entry files of
the boot loader specification (below GRUB on Fedora and RHEL, else of systemd-boot). What the menu was generated from is
read too, since a change there does nothing before the menu is written anew.

Sources: GRUB manual (default, saved_entry, next_entry, blscfg), boot loader specification, loader.conf(5).
"""

from __future__ import annotations

import fnmatch
import importlib
import lzma
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..reader import BLOB_LIMIT, Reader, Reading, refused, shorten
from ..settings.boot_entries import parse_bls, words

GRUB_FOLDERS = ("/boot/grub", "/boot/grub2")
LOADER_FOLDERS = ("/boot/loader", "/boot/efi/loader", "/efi/loader")
EFI_VARIABLES = "/sys/firmware/efi/efivars"
LOADER_GUID = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
MENU_LIMIT = 16 << 20
GRUB_DEFAULTS = ("/etc/default/grub", "/etc/default/grub.d")
FIRMWARE = ("/lib/firmware/updates/xe", "/lib/firmware/xe")
COMPRESSED = (".zst", ".xz")
HEADER = 128  # bytes of struct uc_css_header (drivers/gpu/drm/xe/xe_uc_fw_abi.h)
ZSTD, XZ = b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0"
STALE = 3600  # seconds; a host that was copied has all of its files from within less
REBOOT_REQUIRED = "/run/reboot-required"
APT_FILES = ("/etc/apt/apt.conf.d", "/etc/apt/apt.conf")
APT_KEYS = ("apt::periodic::unattended-upgrade", "apt::periodic::enable")
APT_REBOOT = ("unattended-upgrade::automatic-reboot", "unattended-upgrade::automatic-reboot-time")
DNF_AUTOMATIC = "/etc/dnf/automatic.conf"
TIMERS = "/etc/systemd/system/timers.target.wants"

# Files of which a recording keeps only the lines that are understood: a menu may hold password hashes, the settings of
# apt a proxy with its password.
FREE_FORM = re.compile(
    r"/boot/grub2?/grub\.cfg$|/etc/default/grub(?:$|\.d/)|/etc/apt/apt\.conf(?:$|\.d/)|/etc/dnf/automatic\.conf$"
)


@dataclass(frozen=True)
class Firmware:
    """A GuC file on disk. version: that of its header, e.g. ``70.54.0``."""

    path: str
    version: Reading[str]


@dataclass(frozen=True)
class NextBoot:
    """The next boot of a host.

    running: words of the running kernel's command line.
    loader: ``grub``, ``grub with entry files`` or ``systemd-boot``; absent where none of their menus is found.
    entry: title of the entry that will start. once: entry that is set for one boot only, ``""`` when none is.
    missing_default: entry that is set and not in the menu, ``""`` when it is there; GRUB then starts the first one.
    kernel: file of that entry, as the menu names it. release: of that kernel, by the name of its file.
    initrd: files that the entry loads. arguments: its words for the kernel.
    missing_files: files of the entry that are not on disk. modules: are the modules of that release on disk?
    kernels: every kernel file that the menu's entries name, recovery entries included.
    pending_arguments: words that the files for the menu's generator hold and the entry lacks.
    guc_files: names of GuC firmware on disk. shadowing: uncompressed ones beside a compressed one: they win.
    guc_versions: the file that the driver would take of each name, the uncompressed one first, with its version.
    stale: files of xe (module, GuC) that came more than an hour after the initrd; absent where times are not known.
    reboot_required: packages that asked for a reboot; ``("",)`` when none is named; () when nobody did.
    unattended: are packages upgraded without a person? automatic_reboot: ``""`` never, else when, e.g. ``02:00``.
    """

    running: Reading[tuple[str, ...]]
    loader: Reading[str]
    entry: Reading[str]
    once: Reading[str]
    missing_default: Reading[str]
    kernel: Reading[str]
    release: Reading[str]
    initrd: Reading[tuple[str, ...]]
    arguments: Reading[tuple[str, ...]]
    missing_files: Reading[tuple[str, ...]]
    modules: Reading[bool]
    kernels: Reading[tuple[str, ...]]
    pending_arguments: Reading[tuple[str, ...]]
    guc_files: Reading[tuple[str, ...]]
    shadowing: Reading[tuple[str, ...]]
    guc_versions: Reading[tuple[Firmware, ...]]
    stale: Reading[tuple[str, ...]]
    reboot_required: Reading[tuple[str, ...]]
    unattended: Reading[bool]
    automatic_reboot: Reading[str]


@dataclass
class Node:
    """An entry of a menu, or a submenu, which has nodes below it."""

    title: str
    id: str
    kernel: str = ""
    initrd: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    below: list[Node] = field(default_factory=list)
    is_submenu: bool = False


@dataclass(frozen=True)
class Chosen:
    """What a loader will start. missing: the wanted entry that is not there, or ""."""

    loader: str
    node: Node
    once: str
    missing: str
    nodes: tuple[Node, ...]


def parse_running(text: str) -> tuple[str, ...]:
    """Return the words of a command line up to ``--``, after which they belong to init.

    >>> parse_running("BOOT_IMAGE=/vmlinuz-6.1 ro quiet -- splash\\n")
    ('BOOT_IMAGE=/vmlinuz-6.1', 'ro', 'quiet')
    """
    found = words(text)
    return found[: found.index("--")] if "--" in found else found


# -- GRUB -------------------------------------------------------------------------------------------------------------


def parse_environment(text: str) -> dict[str, str]:
    """Return the variables of GRUB's environment block.

    >>> parse_environment("# GRUB Environment Block\\nsaved_entry=1>2\\nnext_entry=\\n######")
    {'saved_entry': '1>2', 'next_entry': ''}

    Raises ValueError for text that is no such block.
    """
    if not text.startswith("# GRUB Environment Block"):
        raise ValueError(f"expected GRUB's environment block, got {shorten(text, 40)!r}")
    return {
        name: value for name, value in re.findall(r"^([A-Za-z_][\w]*)=(.*)$", text, re.MULTILINE) if len(value) < 4096
    }


def unquoted(text: str) -> list[str]:
    """The words of a line of GRUB's language, quotes removed. Raises ValueError where a quote is left open.

    >>> unquoted("menuentry 'A b' --id \\"x\\" {")
    ['menuentry', 'A b', '--id', 'x', '{']
    """
    found: list[str] = []
    pattern = re.compile(r"""\s*((?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\])+)""")
    at = 0
    text = text.strip()
    while at < len(text):
        match = pattern.match(text, at)
        if not match:
            raise ValueError(f"a quote is left open in {shorten(text, 80)!r}")
        parts = re.findall(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|((?:\\.|[^\s'"\\])+)""", match.group(1))
        found.append("".join(single or re.sub(r"\\(.)", r"\1", double + plain) for single, double, plain in parts))
        at = match.end()
    return found


def parse_menu(text: str) -> list[Node]:
    """Return the entries and submenus of a ``grub.cfg``, in their order, which is how GRUB counts them.

    Raises ValueError for an entry that is not understood.
    """
    top: list[Node] = []
    stack: list[Node | None] = []  # None: a block that is no entry, such as a function
    for line in text.splitlines():
        stripped = line.strip()
        if re.match(r"(?:menuentry|submenu)\s", stripped):
            node = _head(stripped)
            level = next((one.below for one in reversed(stack) if one is not None), top)
            level.append(node)
            if not stripped.endswith("}"):
                stack.append(node)
        elif stripped.endswith("{") and not stripped.startswith("#"):
            stack.append(None)
        elif stripped == "}":
            if stack:
                stack.pop()
        elif stack and stack[-1] is not None:
            _body(stack[-1], stripped)
    return top


def _head(line: str) -> Node:
    found = unquoted(line)
    if len(found) < 2:
        raise ValueError(f"menu entry without a title: {shorten(line, 80)!r}")
    ids = [
        found[at + 1]
        for at, word in enumerate(found[:-1])
        if word in ("$menuentry_id_option", "${menuentry_id_option}", "--id")
    ]
    return Node(found[1], ids[0] if ids else found[1], is_submenu=found[0] == "submenu")


def _body(node: Node, line: str) -> None:
    found = words(line)
    if len(found) < 2:
        return
    if re.fullmatch(r"linux(?:16|efi)?", found[0]):
        node.kernel, node.args = found[1], found[2:]
    elif re.fullmatch(r"initrd(?:16|efi)?", found[0]):
        node.initrd = found[1:]


def parse_default(text: str) -> str:
    """Return what a ``grub.cfg`` sets as its default, e.g. ``0`` or ``${saved_entry}``; ``0`` where it sets nothing.

    >>> parse_default('if x; then\\n  set default="${next_entry}"\\nelse\\n  set default="1>2"\\nfi\\n')
    '1>2'
    """
    found = re.findall(r"^\s*set default=(?:\"([^\"\n]*)\"|'([^'\n]*)'|(\S*))\s*$", text, re.MULTILINE)
    values = ["".join(groups) for groups in found]
    values = [value for value in values if "next_entry" not in value]
    return values[-1] if values else "0"


def pick(nodes: Sequence[Node], wanted: str) -> tuple[Node | None, bool]:
    """The entry that GRUB starts for a default such as ``1>2``, a title or an id; and whether it is in the menu.

    A submenu without a further word starts its first entry. A default that is not there starts the first entry.
    """
    level, found = list(nodes), True
    node: Node | None = None
    for word in re.split(r"(?<!>)>(?!>)", wanted or "0"):
        name = word.replace(">>", ">")
        if name.isdigit():
            node = level[int(name)] if int(name) < len(level) else None
        else:
            node = next((one for one in level if name in (one.id, one.title)), None)
        if node is None:
            found = False
            break
        level = node.below
    if node is None:
        node = nodes[0] if nodes else None
    while node is not None and node.is_submenu:
        node = node.below[0] if node.below else None
    return node, found


def expanded(args: Iterable[str], variables: dict[str, str]) -> tuple[str, ...]:
    """Words of an entry with GRUB's variables put in; a word with one that is not known is left out.

    >>> expanded(("ro", "$kernelopts", "$vt_handoff"), {"kernelopts": "quiet splash"})
    ('ro', 'quiet', 'splash')
    """
    found: list[str] = []
    for arg in args:
        unknown: list[str] = []

        def value(match: re.Match[str], unknown: list[str] = unknown) -> str:
            name = match.group(1) or match.group(2)
            if name not in variables:
                unknown.append(name)
            return variables.get(name, "")

        text = re.sub(r"\$\{(\w+)\}|\$(\w+)", value, arg)
        if not unknown:
            found += words(text)
    return tuple(found)


# -- entry files ------------------------------------------------------------------------------------------------------


def version_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts names with numbers in them by these.

    >>> sorted(("6.9.1", "6.10.0", "6.10.0-rc1"), key=version_key)
    ['6.9.1', '6.10.0-rc1', '6.10.0']
    """
    parts = re.findall(r"\d+|[^\d.]+", text)
    # the end of a name counts more than a further word such as -rc1 and less than a further number
    return (*((2, int(part), "") if part.isdigit() else (0, 0, part) for part in parts), (1, 0, ""))


def entry_node(text: str, name: str) -> Node:
    """An entry file as a node. Raises ValueError for one that starts no Linux."""
    entry = parse_bls(text, name)
    initrd = [found for line in re.findall(r"(?m)^\s*initrd\s+(\S.*)$", text) for found in line.split()]
    return Node(entry.title, entry.id, entry.kernel, tuple(initrd), entry.args)


def parse_loader(text: str) -> str:
    """Return the pattern of the default entry in a ``loader.conf``, ``""`` where it sets none.

    >>> parse_loader("timeout 3\\ndefault arch-*\\n")
    'arch-*'
    """
    found = re.findall(r"(?m)^[ \t]*default[ \t]+(\S+)[ \t]*$", text)
    return found[-1] if found else ""


def parse_efi_text(data: bytes) -> str:
    """Return the text of an EFI variable: four bytes of attributes, then UTF-16. Raises ValueError."""
    if len(data) < 4 or len(data) % 2:
        raise ValueError(f"expected an EFI variable with a text, got {len(data)} bytes")
    return data[4:].decode("utf-16-le").rstrip("\0")


# -- what the menu is made from, and who upgrades ---------------------------------------------------------------------


def parse_grub_defaults(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the words that the generator puts on a normal entry, from its files in their order.

    Only plain assignments are understood, with the variable itself in them. Raises ValueError where another one sets
    the words, such as a command substitution.

    >>> parse_grub_defaults(['GRUB_CMDLINE_LINUX="a"\\n', 'GRUB_CMDLINE_LINUX_DEFAULT="quiet b"',
    ...                      'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT c"  # role'])
    ('a', 'quiet', 'b', 'c')
    """
    values = {"GRUB_CMDLINE_LINUX": "", "GRUB_CMDLINE_LINUX_DEFAULT": ""}
    for text in texts:
        for line in text.splitlines():
            match = re.match(r"\s*(?:export\s+)?(GRUB_CMDLINE_LINUX(?:_DEFAULT)?)(\+?)=(.*)$", line)
            if not match:
                continue
            name, more, rest = match.groups()
            value = re.match(r"""(?:"([^"]*)"|'([^']*)'|([^\s"'#]*))\s*(?:#.*)?$""", rest)
            if not value:
                raise ValueError(f"assignment not understood: {shorten(line, 80)!r}")
            given = "".join(part or "" for part in value.groups())
            if value.group(2) is None:
                given = re.sub(
                    r"\$\{?(GRUB_CMDLINE_LINUX_DEFAULT|GRUB_CMDLINE_LINUX)\}?", lambda one: values[one.group(1)], given
                )
                if "$" in given or "`" in given:
                    raise ValueError(f"assignment not understood: {shorten(line, 80)!r}")
            values[name] = values[name] + given if more else given
    return tuple(dict.fromkeys((*words(values["GRUB_CMDLINE_LINUX"]), *words(values["GRUB_CMDLINE_LINUX_DEFAULT"]))))


def _apt_pieces(text: str) -> Iterable[tuple[int, str]]:
    """(number of the line, piece) of a file of apt's settings, comments left out (apt.conf(5))."""
    text = re.sub(r"/\*.*?\*/", lambda found: "\n" * found.group().count("\n"), text, flags=re.DOTALL)
    for number, line in enumerate(text.splitlines()):
        plain = re.sub(r"""("[^"]*")|(?://|#).*$""", lambda found: found.group(1) or "", line)
        for piece in re.findall(r'"[^"]*"|[{};]|[^\s{};"]+', plain):
            yield number, piece


def parse_apt(text: str) -> dict[str, tuple[str, int]]:
    """Return the settings of apt that decide about upgrades and reboots: key in lower case -> (value, number of line).

    >>> parse_apt('Unattended-Upgrade { Automatic-Reboot "true"; };\\nAPT::Periodic::Unattended-Upgrade "1";\\n')
    {'unattended-upgrade::automatic-reboot': ('true', 0), 'apt::periodic::unattended-upgrade': ('1', 1)}
    """
    found: dict[str, tuple[str, int]] = {}
    scope: list[str] = []
    name = ""
    for number, piece in _apt_pieces(text):
        if piece == "{":
            scope.append(name)
            name = ""
        elif piece == "}":
            scope = scope[:-1]
            name = ""
        elif piece == ";":
            name = ""
        elif name:
            key = "::".join((*(one for one in scope if one), name)).lower()
            if key in (*APT_KEYS, *APT_REBOOT):
                found[key] = (piece.strip('"'), number)
        else:
            name = piece
    return found


def is_on(value: str) -> bool:
    """Is a value of apt's settings true? A period in days is, unless it is 0."""
    return value.strip().lower() not in ("", "0", "false", "no", "off", "without", "disable")


def parse_dnf_automatic(text: str) -> dict[str, str]:
    """Return ``apply_updates`` and ``reboot`` of dnf-automatic's settings, in lower case.

    >>> parse_dnf_automatic("[commands]\\napply_updates = yes\\nreboot = when-needed\\n")
    {'apply_updates': 'yes', 'reboot': 'when-needed'}
    """
    return {name: value.lower() for name, value in re.findall(r"(?m)^\s*(apply_updates|reboot)\s*=\s*(\S+)\s*$", text)}


MENU_LINE = re.compile(r"(?:menuentry|submenu|linux(?:16|efi)?|initrd(?:16|efi)?)\s|set default=|(?:blscfg|\})$")


def _reduced_menu_line(line: str) -> str:
    stripped = line.strip()
    if MENU_LINE.match(stripped):
        return line
    return "function x {" if stripped.endswith("{") and not stripped.startswith("#") else ""


def reduced(path: str, text: str) -> str:
    """A file with only what this module understands, every other line empty, so that line numbers stay."""
    lines = text.splitlines()
    if path.endswith("/grub.cfg"):
        return "".join(f"{_reduced_menu_line(line)}\n" for line in lines)
    if path.startswith("/etc/apt/"):
        found = {number: f'{key} "{value}";' for key, (value, number) in parse_apt(text).items()}
        return "".join(f"{found.get(number, '')}\n" for number in range(len(lines)))
    setting = (
        r"\s*(?:export\s+)?GRUB_CMDLINE_LINUX(?:_DEFAULT)?\+?="
        if "grub" in path
        else r"\s*(?:apply_updates|reboot)\s*="
    )
    return "".join(f"{line if re.match(setting, line) else ''}\n" for line in lines)


# -- readers ----------------------------------------------------------------------------------------------------------


def read_grub(reader: Reader, folder: str, menu: Reading[str]) -> Reading[Chosen]:
    block = reader.text(f"{folder}/grubenv", 64 << 10)
    environment = block.then(parse_environment)
    if environment.value is None and environment.unread != "absent":
        return environment.then(lambda _: _never())
    variables = environment.value or {}
    if menu.value is not None and re.search(r"(?m)^\s*blscfg\s*$", menu.value):
        nodes = read_entries(reader, "/boot/loader/entries")
        loader = "grub with entry files"
    else:
        nodes = menu.then(parse_menu)
        loader = "grub"
    default = menu.then(parse_default)
    if nodes.unread == "absent" and loader != "grub":
        return Reading.no("not_understood", "the menu asks for entry files and there are none", nodes.source)
    if nodes.value is None or default.value is None:
        return nodes.then(lambda _: _never())
    once = variables.get("next_entry", "")
    wanted = once or expanded_name(default.value, variables)
    node, is_there = pick(nodes.value, wanted)
    if node is None:
        return Reading.no("not_understood", "the menu has no entry", menu.source)
    filled = Node(node.title, node.id, node.kernel, node.initrd, expanded(node.args, variables))
    return Reading(Chosen(loader, filled, once, "" if is_there else wanted, tuple(_flat(nodes.value))), menu.source)


def expanded_name(default: str, variables: dict[str, str]) -> str:
    """The default of a menu with GRUB's variables put in; ``0`` for a variable that is not set.

    >>> expanded_name("${saved_entry}", {"saved_entry": "1>2"}), expanded_name("${saved_entry}", {})
    ('1>2', '0')
    """
    return re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda one: variables.get(one.group(1) or one.group(2), ""), default) or "0"


def _never() -> Any:
    raise AssertionError("only called for a reading that has a value")


def _flat(nodes: Iterable[Node]) -> Iterable[Node]:
    for node in nodes:
        yield node
        yield from _flat(node.below)


def read_entries(reader: Reader, folder: str) -> Reading[list[Node]]:
    """Entry files, newest first, as GRUB and systemd-boot sort them."""
    names = reader.names(folder)
    if names.value is None:
        return names.then(lambda _: [])
    found: list[Node] = []
    for name in sorted((one for one in names.value if one.endswith(".conf")), key=version_key, reverse=True):
        node = reader.text(f"{folder}/{name}", 64 << 10).then(lambda text, own=name: entry_node(text, own))  # type: ignore[misc]
        if node.value is not None:
            found.append(node.value)
        elif node.unread not in ("not_understood", "absent"):  # an entry of another system is none of ours
            return node.then(lambda _: [])
    return Reading(found, folder)


def read_systemd_boot(reader: Reader, folder: str, conf: Reading[str]) -> Reading[Chosen]:
    nodes = read_entries(reader, f"{folder}/entries")
    pattern = conf.then(parse_loader)
    if pattern.value is None:
        return pattern.then(lambda _: _never())
    if nodes.unread == "absent":
        return Reading.no("not_understood", "no entry files; unified kernel images are not read", nodes.source)
    if nodes.value is None:
        return nodes.then(lambda _: _never())
    once = _efi(reader, "LoaderEntryOneShot")
    stored = _efi(reader, "LoaderEntryDefault")
    for wanted in (once, stored, pattern.value):
        name = re.sub(r"\.conf$", "", wanted)
        if not name or name.startswith("@"):
            continue
        node = next((one for one in nodes.value if fnmatch.fnmatchcase(one.id, name)), None)
        if node is not None:
            return Reading(Chosen("systemd-boot", node, once, "", tuple(nodes.value)), conf.source)
    if not nodes.value:
        return Reading.no("not_understood", "no entry starts a Linux", f"{folder}/entries")
    missing = once or stored or pattern.value
    is_plain = missing.startswith("@") or not missing
    return Reading(
        Chosen("systemd-boot", nodes.value[0], once, "" if is_plain else missing, tuple(nodes.value)), conf.source
    )


def _efi(reader: Reader, name: str) -> str:
    return reader.data(f"{EFI_VARIABLES}/{name}-{LOADER_GUID}", 64 << 10).then(parse_efi_text).value or ""


def read_chosen(reader: Reader) -> Reading[Chosen]:
    for folder in GRUB_FOLDERS:
        menu = reader.text(f"{folder}/grub.cfg", MENU_LIMIT)
        if menu.unread != "absent":
            return read_grub(reader, folder, menu)
    for folder in LOADER_FOLDERS:
        conf = reader.text(f"{folder}/loader.conf", 64 << 10)
        if conf.unread != "absent":
            return read_systemd_boot(reader, folder, conf)
    return Reading.no("absent", "no menu of GRUB or systemd-boot: this host is started from elsewhere", "/boot")


def release_of(kernel: str) -> str:
    """The release of a kernel by the name of its file. Raises ValueError for a name without one.

    >>> release_of("(hd0,gpt2)/vmlinuz-7.0.0-38-generic"), release_of("/EFI/debian/6.12.1-amd64/linux")
    ('7.0.0-38-generic', '6.12.1-amd64')
    """
    match = re.search(r"(?:^|[/-])(\d+\.\d+[\w.+~-]*?)(?:\.(?:efi|img))?(?:/(?:linux|vmlinuz|kernel))?$", kernel)
    if not match:
        raise ValueError(f"no release in the name {shorten(kernel, 80)!r}")
    return match.group(1)


def file_of(reader: Reader, path: str) -> Reading[bool]:
    """Is a file that a menu names there? The partition that the loader sees may be mounted at one of these places."""
    name = re.sub(r"^\(\$?[\w,]*\)", "", path).replace("\\", "/")
    refused: Reading[tuple[str, ...]] | None = None
    for top in ("", "/boot", "/boot/efi", "/efi"):
        folder, _, last = f"{top}{name}".rpartition("/")
        listed = reader.names(folder or "/")
        if last in (listed.value or ()):
            return Reading(True, f"{top}{name}")
        if listed.unread not in (None, "absent"):
            refused = refused or listed
    return refused.then(lambda _: False) if refused is not None else Reading(False, name)


def read_missing(reader: Reader, node: Node) -> Reading[tuple[str, ...]]:
    missing = []
    for path in (node.kernel, *node.initrd):
        if "$" in path:  # such as $tuned_initrd, which is empty on most hosts
            continue
        there = file_of(reader, path)
        if there.value is None:
            return there.then(lambda _: ())
        if not there.value:
            missing.append(path)
    return Reading(tuple(missing), "/boot")


def read_pending(reader: Reader, chosen: Reading[Chosen]) -> Reading[tuple[str, ...]]:
    """Words that wait for the menu to be generated anew; only a GRUB menu is generated from these files."""
    if chosen.value is None:
        return chosen.then(lambda _: ())
    if chosen.value.loader != "grub":
        return Reading.no("absent", "its menu is not generated", GRUB_DEFAULTS[0])
    main = reader.text(GRUB_DEFAULTS[0], 256 << 10)
    if main.value is None:
        return main.then(lambda _: ())
    parts = [reader.text(path, 256 << 10) for path in reader.children(GRUB_DEFAULTS[1], r".*\.cfg")]
    unread = next((part for part in parts if part.value is None), None)
    if unread is not None:
        return unread.then(lambda _: ())
    try:
        wanted = parse_grub_defaults([main.value, *(part.value or "" for part in parts)])
    except ValueError as error:
        return Reading.no("not_understood", str(error), GRUB_DEFAULTS[0])
    return Reading(tuple(word for word in wanted if word not in chosen.value.node.args), GRUB_DEFAULTS[0])


def read_firmware(reader: Reader) -> tuple[Reading[tuple[str, ...]], Reading[tuple[str, ...]]]:
    """GuC files for xe, and those that hide a compressed one (request_firmware tries the plain name first)."""
    listed = [(folder, reader.names(folder)) for folder in FIRMWARE]
    answered = [names for _, names in listed if names.unread != "absent"]
    refused = next((names for names in answered if names.value is None), None)
    if refused is not None or not answered:
        no = refused if refused is not None else listed[-1][1]
        return no.then(lambda _: ()), no.then(lambda _: ())
    paths = [f"{folder}/{name}" for folder, names in listed for name in names.value or () if "_guc_" in name]
    plain = [path for path in paths if path.endswith(".bin")]
    compressed = {_stem(path) for path in paths if path.endswith(COMPRESSED)}
    hiding = tuple(sorted(path for path in plain if _stem(path) in compressed))
    return Reading(tuple(sorted(paths)), FIRMWARE[-1]), Reading(hiding, FIRMWARE[-1])


def parse_css_header(data: bytes) -> str:
    """Return the version of a GuC blob by its header, as the driver reads it (xe_uc_fw.c, parse_css_header).

    >>> words = [6, 32, 0x10000, 0, 0x8086, 0, 9, 0, 0, 0, 0] + [0] * 5 + [70 << 16 | 54 << 8] + [0] * 15
    >>> parse_css_header(struct.pack("<32I", *words))
    '70.54.0'

    Raises ValueError for anything that is no such header.
    """
    if len(data) < HEADER:
        raise ValueError(f"expected a header of {HEADER} bytes, got {len(data)}")
    found = struct.unpack("<32I", data[:HEADER])
    size, key, modulus, exponent = found[1], *found[7:10]
    if size - key - modulus - exponent != HEADER // 4:
        raise ValueError(f"no header of a firmware: its parts have {size}, {key}, {modulus} and {exponent} words")
    version = found[16]
    return f"{version >> 16 & 0xFF}.{version >> 8 & 0xFF}.{version & 0xFF}"


def unpacked(data: bytes) -> bytes:
    """The first bytes of a blob, plain or compressed. Raises ValueError, LookupError where this Python cannot do it."""
    try:
        if data.startswith(XZ):
            return lzma.LZMADecompressor().decompress(data, HEADER)
        if data.startswith(ZSTD):
            zstd = importlib.import_module("compression.zstd")  # Python 3.14
            return bytes(zstd.ZstdDecompressor().decompress(data, HEADER))
    except ImportError:
        raise LookupError("zstd is understood by Python from 3.14 on") from None
    except Exception as error:  # each module has an error of its own
        raise ValueError(f"cannot be unpacked: {error}") from None
    return data[:HEADER]


def read_blob(reader: Reader, path: str) -> Reading[bytes]:
    """Content of a file of firmware; a recording keeps what `Reader.keep` is given of it."""
    opened = reader.opened(path)
    if opened.value is None:
        return opened.then(lambda _: b"")
    with opened.value as file:
        if file.size <= BLOB_LIMIT:
            try:
                return Reading(file.read(0, file.size), path)
            except OSError as error:
                return refused(error, path)
        large: Reading[bytes] = Reading.no("too_large", f"{file.size} bytes", path)
    reader.keep(path, large)
    return large


def read_version(reader: Reader, path: str) -> Reading[str]:
    """Version of a GuC file; a recording keeps no more of the blob than its header."""
    try:
        header = read_blob(reader, path).then(unpacked)
    except LookupError as error:
        return Reading.no("tool_missing", str(error), path)
    if header.value is not None:
        reader.keep(path, header)
    return header.then(parse_css_header)


def read_versions(reader: Reader, files: Reading[tuple[str, ...]]) -> Reading[tuple[Firmware, ...]]:
    """The file of each name that the driver would take: plain ones of any folder come before compressed ones."""
    taken: dict[str, str] = {}
    for path in sorted(files.value or (), key=lambda one: (one.endswith(COMPRESSED), "/updates/" not in one, one)):
        taken.setdefault(_stem(path), path)
    return files.then(lambda _: tuple(Firmware(path, read_version(reader, path)) for _, path in sorted(taken.items())))


def read_stale(
    reader: Reader, chosen: Chosen, release: str, firmware: Reading[tuple[Firmware, ...]]
) -> Reading[tuple[str, ...]]:
    """Files of xe that the initrd of an entry may hold in an older form."""
    if not chosen.node.initrd:
        return Reading.no("absent", "the entry loads no initrd", "/boot")
    there = file_of(reader, chosen.node.initrd[-1])
    if not there.value:
        return there.then(lambda _: ()) if there.value is None else Reading.no("absent", "no initrd", there.source)
    made = reader.stat(there.source)
    if made.value is None or not made.value.changed:
        return made.then(lambda _: ()) if made.value is None else Reading.no("absent", "no time", there.source)
    folder = f"/lib/modules/{release}/kernel/drivers/gpu/drm/xe"
    paths = [one.path for one in firmware.value or ()] + list(reader.children(folder, r"xe\.ko(\.\w+)?"))
    found = []
    for path in paths:
        came = reader.stat(path)
        if came.value is None:
            return came.then(lambda _: ())
        if came.value.changed > made.value.changed + STALE:
            found.append(path)
    return Reading(tuple(sorted(found)), there.source)


def _stem(path: str) -> str:
    """The name that the driver asks for."""
    return re.sub(r"\.(?:zst|xz)$", "", path.rpartition("/")[2])


def read_reboot_required(reader: Reader) -> Reading[tuple[str, ...]]:
    flag = reader.text(REBOOT_REQUIRED, 64 << 10)
    if flag.unread == "absent":
        return Reading((), REBOOT_REQUIRED)
    if flag.value is None:
        return flag.then(lambda _: ())
    named = reader.text(f"{REBOOT_REQUIRED}.pkgs", 64 << 10).value or ""
    found = tuple(sorted({line.strip() for line in named.splitlines() if re.fullmatch(r"[\w.+-]+", line.strip())}))
    return Reading(found or ("",), REBOOT_REQUIRED)


def read_apt(reader: Reader) -> Reading[dict[str, str]]:
    """Settings of apt about upgrades: the files in their order, the last one wins. Absent without apt."""
    folder = reader.names(APT_FILES[0])
    if folder.value is None:
        return folder.then(lambda _: {})
    found: dict[str, str] = {}
    where = APT_FILES[0]
    # a name with an extension other than .conf is passed over, as apt does it (apt.conf(5))
    names = [name for name in folder.value if re.fullmatch(r"[\w-]+(\.conf)?", name)]
    for path in (*(f"{APT_FILES[0]}/{name}" for name in names), APT_FILES[1]):
        text = reader.text(path, 256 << 10)
        if text.value is None:
            if text.unread == "absent":
                continue
            return text.then(lambda _: {})
        own = parse_apt(text.value)
        if own:
            where = f"{path}:{max(line for _, line in own.values()) + 1}"
        found.update({key: value for key, (value, _) in own.items()})
    return Reading(found, where)


def read_upgrades(reader: Reader) -> tuple[Reading[bool], Reading[str]]:
    """Upgrades without a person, and the reboot after them; of apt, else of dnf-automatic."""
    apt = read_apt(reader)
    if apt.value is not None:
        periodic = apt.value.get(APT_KEYS[0], "0")
        on = is_on(periodic) and is_on(apt.value.get(APT_KEYS[1], "1"))
        reboots = on and is_on(apt.value.get(APT_REBOOT[0], "false"))
        when = apt.value.get(APT_REBOOT[1], "now") if reboots else ""
        return Reading(on, apt.source), Reading(when, apt.source)
    if apt.unread != "absent":
        return apt.then(bool), apt.then(str)
    dnf = reader.text(DNF_AUTOMATIC, 256 << 10).then(parse_dnf_automatic)
    if dnf.value is None:
        return dnf.then(bool), dnf.then(str)
    timer = any(name.startswith("dnf-automatic") for name in reader.names(TIMERS).value or ())
    on = timer and dnf.value.get("apply_updates", "no") in ("yes", "true", "1", "on")
    reboot = dnf.value.get("reboot", "never")
    return Reading(on, dnf.source), Reading(reboot if on and reboot != "never" else "", dnf.source)


def read(reader: Reader) -> NextBoot:
    chosen = read_chosen(reader)
    kernel = chosen.then(lambda one: one.node.kernel)
    if chosen.value is not None and not chosen.value.node.kernel:
        kernel = Reading.no("not_understood", f"{chosen.value.node.title!r} starts no Linux", chosen.source)
    release = kernel.then(release_of)
    modules: Reading[bool] = release.then(lambda _: False)
    if release.value is not None:
        listed = reader.names("/lib/modules")
        modules = listed.then(lambda names: release.value in names)
    guc_files, shadowing = read_firmware(reader)
    guc_versions = read_versions(reader, guc_files)
    stale: Reading[tuple[str, ...]] = release.then(lambda _: ())
    if chosen.value is not None and release.value is not None:
        stale = read_stale(reader, chosen.value, release.value, guc_versions)
    unattended, automatic_reboot = read_upgrades(reader)
    return NextBoot(
        running=reader.text("/proc/cmdline").then(parse_running),
        loader=chosen.then(lambda one: one.loader),
        entry=chosen.then(lambda one: one.node.title),
        once=chosen.then(lambda one: one.once),
        missing_default=chosen.then(lambda one: one.missing),
        kernel=kernel,
        release=release,
        initrd=chosen.then(lambda one: one.node.initrd),
        arguments=chosen.then(lambda one: one.node.args),
        missing_files=read_missing(reader, chosen.value.node)
        if chosen.value is not None
        else chosen.then(lambda _: ()),
        modules=modules,
        kernels=chosen.then(lambda one: tuple(dict.fromkeys(node.kernel for node in one.nodes if node.kernel))),
        pending_arguments=read_pending(reader, chosen),
        guc_files=guc_files,
        shadowing=shadowing,
        guc_versions=guc_versions,
        stale=stale,
        reboot_required=read_reboot_required(reader),
        unattended=unattended,
        automatic_reboot=automatic_reboot,
    )
