"""Boot entries as text: GRUB's menu, boot loader specification files, grubby's list, words of a command line.

Pure functions. What an entry is decides whether it gets an argument: only normal entries of this system do. Recovery
and rescue entries, entries of other systems and the toolkit's own ones never.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PREVIOUS = "hostcheck-previous"
ONCE = "hostcheck-once"
# Sorts below every other entry: blscfg and systemd-boot order names so that letters are older than digits, and a
# machine id starts with a digit or a letter from a to f followed by more.
BLS_PREFIX = "a-"
TITLES = {PREVIOUS: "Previous kernel arguments (hostcheck)", ONCE: "Kernel arguments on trial (hostcheck)"}

TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(=[A-Za-z0-9_.,:;/@+%=!*~^|-]*)?")
# Keys that may stand several times, each with its meaning (kernel-parameters); of any other the last value counts, so
# that another value is replaced.
REPEATABLE = frozenset(
    (
        "console",
        "earlycon",
        "earlyprintk",
        "hugepages",
        "hugepagesz",
        "initcall_blacklist",
        "memmap",
        "module_blacklist",
        "modprobe.blacklist",
        "netconsole",
        "nameserver",
        "ip",
        "ifname",
        "rd.lvm.lv",
        "rd.luks.uuid",
        "rd.md.uuid",
        "rd.driver.blacklist",
        "rd.driver.pre",
        "systemd.mask",
        "systemd.wants",
        "systemd.setenv",
        "usbcore.quirks",
        "usb-storage.quirks",
        "acpi_osi",
        "dyndbg",
        "pci",
        "video",
        "crashkernel",
    )
)
RECOVERY_WORDS = frozenset(("single", "recovery", "rescue", "emergency", "systemd.unit=rescue.target", "S", "1"))


@dataclass(frozen=True)
class Entry:
    """One entry of a boot menu.

    args: the words of its command line. kind: normal, recovery, foreign, previous or once.
    text: what it was parsed from. place: its file, or grubby's index.
    """

    id: str
    title: str
    kernel: str
    args: tuple[str, ...]
    kind: str
    text: str = ""
    place: str = ""

    @property
    def line(self) -> str:
        """The command line as one text."""
        return " ".join(self.args)


def words(text: str) -> tuple[str, ...]:
    """The words of a command line; blanks within double quotes do not divide, as in the kernel's own parser.

    >>> words('ro dyndbg="file x.c +p" quiet')
    ('ro', 'dyndbg="file x.c +p"', 'quiet')
    """
    return tuple(re.findall(r'(?:[^\s"]|"[^"]*(?:"|$))+', text))


def key(word: str) -> str:
    """The name of an argument; the kernel takes - and _ for the same.

    >>> key("pcie-aspm=off")
    'pcie_aspm'
    """
    return word.partition("=")[0].replace("-", "_")


def holds(args: Iterable[str], word: str) -> bool:
    """Is this very argument among the words?"""
    name = key(word)
    return any(key(one) == name and one.partition("=")[1:] == word.partition("=")[1:] for one in args)


def merged(args: Sequence[str], add: Sequence[str], remove: Sequence[str]) -> tuple[str, ...]:
    """The words with some removed and those that are missing added at the end, all others kept in their order.

    >>> merged(("ro", "iommu=off", "quiet"), ("iommu=pt",), ("iommu=off",))
    ('ro', 'quiet', 'iommu=pt')
    """
    kept = [one for one in args if not any(holds((one,), gone) for gone in remove)]
    return (*kept, *(one for one in add if not holds(kept, one)))


def replaced(args: Iterable[str], add: Iterable[str]) -> tuple[str, ...]:
    """Words that give another value to a key that is to be added, so that they have to go."""
    wanted = tuple(add)
    names = {key(one) for one in wanted} - {name.replace("-", "_") for name in REPEATABLE}
    return tuple(dict.fromkeys(one for one in args if key(one) in names and not holds(wanted, one)))


def _kind(id: str, title: str, kernel: str, args: Sequence[str]) -> str:
    for own, kind in ((PREVIOUS, "previous"), (ONCE, "once")):
        if id.endswith(own):
            return kind
    name = kernel.rpartition("/")[2].lower()
    if not re.match(r"(vmlinu|bzimage|zimage|image|linux|kernel)", name) or id.startswith("osprober-"):
        return "foreign"
    told = f"{id} {title} {name}".lower()
    if re.search(r"recovery|rescue|failsafe", told) or RECOVERY_WORDS.intersection(args):
        return "recovery"
    return "normal"


def parse_grub(text: str) -> tuple[Entry, ...]:
    """The Linux entries of a generated ``grub.cfg``.

    An entry outside the part of a ``*linux`` script of grub.d is somebody's own (40_custom) or another
    system's (os-prober): foreign. Raises ValueError for an entry whose first line is not understood.
    """
    entries: list[Entry] = []
    section = ""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        begin = re.match(r"### BEGIN \S*/(\S+) ###", line)
        if begin:
            section = begin.group(1)
        elif re.match(r"### END ", line):
            section = ""
        elif re.match(r"\s*menuentry\s", line):
            indent = len(line) - len(line.lstrip())
            end = number + 1
            while end < len(lines) and not (
                lines[end].strip() == "}" and len(lines[end]) - len(lines[end].lstrip()) <= indent
            ):
                end += 1
            stanza = lines[number : end + 1]
            entry = _grub_entry(stanza, section)
            if entry is not None:
                entries.append(entry)
            number = end
        number += 1
    return tuple(entries)


def _grub_entry(stanza: Sequence[str], section: str) -> Entry | None:
    try:
        head = shlex.split(stanza[0].strip().rstrip("{"))
    except ValueError as error:
        raise ValueError(f"menu entry not understood ({error}): {stanza[0]!r:.200}") from error
    if len(head) < 2:
        raise ValueError(f"menu entry without a title: {stanza[0]!r:.200}")
    id = next(
        (
            head[place + 1]
            for place, word in enumerate(head[:-1])
            if word in ("$menuentry_id_option", "${menuentry_id_option}", "--id")
        ),
        head[1],
    )
    for line in stanza[1:]:
        parts = words(line)
        if len(parts) >= 2 and re.fullmatch(r"linux(16|efi)?", parts[0]):
            kind = _kind(id, head[1], parts[1], parts[2:])
            if kind == "normal" and section and not section.endswith("linux"):
                kind = "foreign"
            return Entry(id, head[1], parts[1], parts[2:], kind, "\n".join(stanza) + "\n")
    return None


def parse_bls(text: str, name: str, place: str = "") -> Entry:
    """An entry file of the boot loader specification. name: of the file, its boot counter is not part of the id.

    >>> parse_bls("title Fedora\\nlinux /vmlinuz-6\\noptions root=UUID=1 ro\\n", "ab-6+3-0.conf").args
    ('root=UUID=1', 'ro')

    Raises ValueError for a file that starts no Linux.
    """
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name_and_value = line.strip().split(None, 1)
        if name_and_value and not name_and_value[0].startswith("#"):
            found.setdefault(name_and_value[0], []).append(name_and_value[1] if len(name_and_value) > 1 else "")
    if "linux" not in found:
        raise ValueError(f"{name}: no line linux")
    id = re.sub(r"(\+\d+(-\d+)?)?\.conf$", "", name)
    title, kernel = found.get("title", [id])[0], found["linux"][0]
    args = words(" ".join(found.get("options", [])))
    return Entry(id, title, kernel, args, _kind(id, title, kernel, args), text, place)


def bls_with(text: str, args: Sequence[str]) -> str:
    """The entry file with another command line; every other line stays as it is.

    >>> bls_with("title T\\noptions ro\\nlinux /v\\n", ("ro", "quiet"))
    'title T\\noptions ro quiet\\nlinux /v\\n'
    """
    lines = text.splitlines(keepends=True)
    places = [number for number, line in enumerate(lines) if re.match(r"\s*options(\s|$)", line)]
    separator = re.match(r"\s*options(\s*)", lines[places[0]]).group(1).rstrip("\n") if places else " "  # type: ignore[union-attr]
    written = f"options{separator or ' '}{' '.join(args)}\n"
    if not places:
        return text + ("" if text.endswith("\n") or not text else "\n") + written
    kept = [line for number, line in enumerate(lines) if number not in places[1:]]
    kept[places[0]] = written
    return "".join(kept)


def bls_copy(entry: Entry, own: str, args: Sequence[str]) -> str:
    """The text of an own entry that starts the same kernel with other arguments."""
    lines = [f"title {TITLES[own]}\n", "version 0\n"]
    lines += [
        line + "\n"
        for line in entry.text.splitlines()
        if re.match(r"\s*(linux|initrd|devicetree|architecture|machine-id)\s", line)
    ]
    return "".join(lines) + f"options {' '.join(args)}\n"


def parse_grubby(text: str) -> tuple[Entry, ...]:
    """The entries of ``grubby --info=ALL``. `place` is the index.

    Values are quoted in some versions and not in others; ``args`` without its ``root=`` word, which grubby lists
    apart. Raises ValueError for a block without kernel or args.
    """
    entries = []
    for block in re.split(r"(?m)^(?=index=)", text):
        pairs = re.findall(r"(?m)^(\w+)=(.*)$", block)
        if not any(name == "index" for name, _ in pairs):
            continue
        found: dict[str, str] = {}
        for name, value in pairs:
            value = value.strip()
            found.setdefault(name, value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value)
        if "kernel" not in found or "args" not in found:
            raise ValueError(f"a block without kernel or args: {block!r:.200}")
        args = words(found["args"])
        id = found.get("id") or found.get("title") or found["kernel"]
        kind = _kind(id, found.get("title", ""), found["kernel"], args)
        entries.append(Entry(id, found.get("title", id), found["kernel"], args, kind, block, found["index"]))
    return tuple(entries)


# -- the GRUB drop-in ---------------------------------------------------------------------------------

DROP_IN_HEAD = (
    "# Kernel arguments set by hostcheck. Each line names the role that owns it; playbooks/undo.yml removes it.\n"
)
WITHOUT = """\
hostcheck_without() {
  hostcheck_kept=
  set -f
  for hostcheck_word in $2; do
    [ "$hostcheck_word" = "$1" ] || hostcheck_kept="${hostcheck_kept:+$hostcheck_kept }$hostcheck_word"
  done
  set +f
  printf '%s\\n' "$hostcheck_kept"
}
"""
Claim = tuple[tuple[str, ...], tuple[str, ...]]  # words that a role adds, words that it takes away


def drop_in(claims: dict[str, Claim]) -> str:
    """The text of the drop-in for what each role adds and takes away; "" when no role does.

    >>> print(drop_in({"pcie_aspm": (("pcie_aspm.policy=performance",), ())}).splitlines()[1])
    GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT pcie_aspm.policy=performance"  # pcie_aspm
    """
    lines: list[str] = []
    for owner, (_, remove) in sorted(claims.items()):
        for word in remove:
            for variable in ("GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT"):
                lines.append(f'{variable}="$(hostcheck_without \'{word}\' "${variable}")"  # {owner}\n')
    function = [WITHOUT] if lines else []
    for owner, (add, _) in sorted(claims.items()):
        for word in add:
            lines.append(f'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {word}"  # {owner}\n')
    return "".join([DROP_IN_HEAD, *function, *lines]) if lines else ""


def parse_drop_in(text: str) -> dict[str, Claim]:
    """The reverse of `drop_in`; lines of other forms are not ours and do not count."""
    claims: dict[str, Claim] = {}
    for line in text.splitlines():
        added = re.fullmatch(r'GRUB_CMDLINE_LINUX_DEFAULT="\$GRUB_CMDLINE_LINUX_DEFAULT (\S+)"  # (\w+)', line)
        gone = re.fullmatch(r"GRUB_CMDLINE_LINUX_DEFAULT=\"\$\(hostcheck_without '(\S+)' .*\)\"  # (\w+)", line)
        if added:
            add, remove = claims.get(added.group(2), ((), ()))
            claims[added.group(2)] = ((*add, added.group(1)), remove)
        elif gone:
            add, remove = claims.get(gone.group(2), ((), ()))
            claims[gone.group(2)] = (add, (*remove, gone.group(1)))
    return claims


GRUB_SCRIPT_HEAD = """\
#!/bin/sh
# Boot entries of hostcheck: the arguments from before its first change, and arguments on trial. Never the default.
# Written once by the role kernel_arguments or pcie_aspm; playbooks/undo.yml removes it.
cat <<'HOSTCHECK'
"""


def grub_stanza(entry: Entry, own: str, args: Sequence[str]) -> str:
    """The entry again under an own name and id, with these arguments. Raises ValueError where that is not possible."""
    lines = []
    for number, line in enumerate(entry.text.splitlines()):
        indent = "\t" if number and line.strip() != "}" else ""
        parts = words(line)
        if number == 0:
            lines.append(f"menuentry '{TITLES[own]}' --class gnu-linux --class gnu --class os --id '{own}' {{")
        elif len(parts) >= 2 and re.fullmatch(r"linux(16|efi)?", parts[0]):
            lines.append(f"{indent}{parts[0]}\t{parts[1]} {' '.join(args)}")
        elif "HOSTCHECK" in line:
            raise ValueError(f"cannot repeat the entry {entry.title!r}")
        else:
            lines.append(indent + line.strip())
    return "\n".join(lines) + "\n"


def grub_script(stanzas: Sequence[str]) -> str:
    """The script for grub.d that prints the stanzas."""
    return GRUB_SCRIPT_HEAD + "".join(stanzas) + "HOSTCHECK\n"


def parse_grub_script(text: str) -> dict[str, str]:
    """The stanzas of `grub_script` by their id.

    >>> parse_grub_script(grub_script(["menuentry 'x' --id 'hostcheck-once' {\\n}\\n"]))
    {'hostcheck-once': "menuentry 'x' --id 'hostcheck-once' {\\n}\\n"}
    """
    body = text[len(GRUB_SCRIPT_HEAD) :] if text.startswith(GRUB_SCRIPT_HEAD) else ""
    return {
        match.group(1): match.group(0)
        for match in re.finditer(r"(?ms)^menuentry [^\n]*--id '([\w-]+)' \{\n.*?^\}\n", body)
    }


# -- files that hold one command line -----------------------------------------------------------------


def variable_words(text: str, variable: str) -> tuple[str, ...]:
    """The words of ``VARIABLE="…"``, the last such line of a shell file; () when it is not set there.

    >>> variable_words("A='x y'\\nB=1\\n", "A")
    ('x', 'y')
    """
    found = re.findall(rf"(?m)^{variable}=([\"']?)(.*)\1\s*$", text)
    return words(found[-1][1]) if found else ()


def variable_with(text: str, variable: str, args: Sequence[str]) -> str:
    """The shell file with other words in ``VARIABLE="…"``; the line is added when there is none."""
    lines = text.splitlines(keepends=True)
    places = [number for number, line in enumerate(lines) if re.match(rf"{variable}=", line)]
    written = f'{variable}="{" ".join(args)}"\n'
    if not places:
        return text + ("" if text.endswith("\n") or not text else "\n") + written
    lines[places[-1]] = written
    return "".join(lines)
