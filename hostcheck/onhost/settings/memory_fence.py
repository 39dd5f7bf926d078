"""Blocks of memory that are to be off-line at every boot, for memory known to be bad.

On a lab host five blocks of 2 GiB held the bad cells; with them off-line 45,000 bad words a round became none, and the
next boot brought them back (lab-host-facts 1.3, 2.4). A unit takes them off-line early in each boot, before a job has
pages there that cannot be moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..readings import memory, owners
from .engine import Goal, Host, OwnedFile, Plan, Record, Refused, Setting, Thing, Value, View, keys_of
from .files import File

NAME = "memory_fence"
SCRIPT = "/usr/local/lib/hostcheck/memory-fence"
UNIT = "/etc/systemd/system/hostcheck-memory-fence.service"
UNIT_LINK = "/etc/systemd/system/sysinit.target.wants/hostcheck-memory-fence.service"
RELOAD = ("systemctl", "daemon-reload")
TIMEOUT = 120.0  # seconds a block; the kernel tries to move pinned pages until it is interrupted
UNIT_TEXT = f"""\
[Unit]
Description=Memory blocks that stay off-line (hostcheck, role {NAME})
DefaultDependencies=no
RequiresMountsFor={SCRIPT}
After=local-fs.target
Before=sysinit.target shutdown.target
Conflicts=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutStartSec=300
ExecStart={SCRIPT} @BLOCKS@

[Install]
WantedBy=sysinit.target
"""
SCRIPT_TEXT = f"""\
#!/bin/sh
# Take blocks of memory off-line and read each back. Written by hostcheck, role {NAME}; playbooks/undo.yml removes it.
size=@SIZE@
blocks=${{HOSTCHECK_ROOT:-}}/sys/devices/system/memory
now=$(cat "$blocks/block_size_bytes") || exit 3
if [ "$now" != "$size" ]; then
  echo "a block is 0x$now bytes, was 0x$size when they were numbered: other memory now, nothing done" >&2
  exit 3
fi
status=0
for number in "$@"; do
  case "$number" in
    '' | *[!0-9]*) echo "usage: memory-fence NUMBER..." >&2; exit 2 ;;
  esac
  state=$blocks/memory$number/state
  # a second write to a block that is off-line gives an I/O error
  [ "$(cat "$state")" = offline ] && continue
  why=$(printf 'offline\\n' | dd of="$state" 2>&1 | sed -n '1s/^dd: //p')
  if [ "$(cat "$state")" != offline ]; then
    echo "memory$number stays on-line: ${{why:-the write was not kept}}" >&2
    status=1
  fi
done
exit $status
"""
COST = "cost: {amount} of memory are not used; playbooks/undo.yml puts them back into use"


@dataclass(frozen=True)
class Wanted:
    """blocks: numbers N of /sys/devices/system/memory/memoryN.

    available_mib: what must stay available; None: what a start needs, `memory.enough_kib`.
    """

    blocks: tuple[int, ...] = ()
    available_mib: int | None = None


def parse(data: dict[str, Any]) -> Wanted:
    """What is wanted. Raises Refused.

    >>> parse({"blocks": [54, 53]}).blocks
    (53, 54)
    """
    found = keys_of(data, NAME, {"blocks": (list, tuple), "available_mib": int})
    for number in found.get("blocks", ()):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 32:
            raise Refused(f"{NAME}.blocks: wanted numbers of blocks such as 53, found {number!r:.60}")
    if found.get("available_mib", 0) < 0:
        raise Refused(f"{NAME}.available_mib: wanted MiB, found {found['available_mib']}")
    return Wanted(tuple(sorted(set(found.get("blocks", ())))), found.get("available_mib"))


def path_of(number: int) -> str:
    """The file with the state of a block."""
    return f"{memory.BLOCKS}/memory{number}/state"


@dataclass(frozen=True)
class Block(Value):
    """The state of a block. It is taken off-line by the script, which a signal can interrupt while it waits."""

    kind = "memory_block"
    first_in_undo = True
    goes_on = True  # what can be fenced is fenced

    def write(self, host: Host, value: Any) -> None:
        if value == "offline":
            host.writer.run((SCRIPT, self.key.split("/")[-2][len("memory") :]), TIMEOUT)
        else:
            super().write(host, value)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Thing:
        return cls(plain["key"])


def gib(size: int) -> str:
    """Bytes for a person.

    >>> gib(10 << 30)
    '10.0 GiB'
    """
    return f"{size / (1 << 30):.1f} GiB"


def _online(host: Host, wanted: Wanted) -> list[int]:
    """Those of the wanted blocks that are to be taken off-line. Raises Refused for one that cannot be."""
    listed = host.reader.names(memory.BLOCKS)
    if listed.unread == "absent":
        raise Refused(f"{NAME}: this kernel takes no memory off-line: there is no {memory.BLOCKS}")
    numbers = sorted(int(name[6:]) for name in host.must(listed) if name[:6] == "memory" and name[6:].isdigit())
    wrong, online = [], []
    for number in wanted.blocks:
        folder = f"{memory.BLOCKS}/memory{number}"
        if number not in numbers:
            wrong.append(f"memory{number} is not there (there are {_ranges(numbers)})")
        elif host.must(host.reader.line(f"{folder}/state").then(memory.parse_block_state)) != "offline":
            online.append(number)
            zones = host.reader.line(f"{folder}/valid_zones").value
            if host.reader.line(f"{folder}/removable").value == "0":
                wrong.append(f"memory{number} is not removable, says the kernel ({folder}/removable is 0)")
            elif zones == "none":
                wrong.append(f"memory{number} has a hole or lies in two zones, which cannot be taken off-line")
    if wrong:
        raise Refused(f"{NAME}.blocks: {'; '.join(wrong)}")
    return online


def _ranges(numbers: list[int]) -> str:
    """Numbers for a person.

    >>> _ranges([0, 1, 2, 8])
    '0-2, 8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in runs) or "none"


def _leaves_enough(host: Host, wanted: Wanted, online: list[int], size: int) -> None:
    found = memory.read(host.reader)
    total, available = host.must(found.total), host.must(found.available)
    floor = wanted.available_mib << 10 if wanted.available_mib is not None else memory.enough_kib(total)
    left = available - (len(online) * size >> 10)
    if left < floor:
        raise Refused(
            f"{NAME}.blocks: {len(online)} blocks on-line are {gib(len(online) * size)}; of {gib(available << 10)} "
            f"available that leaves {gib(max(0, left) << 10)}, wanted at least {floor >> 10} MiB. "
            f"Stop what uses the memory, or declare a smaller {NAME}.available_mib"
        )


def _rivals(host: Host) -> list[str]:
    return [
        f"{owner}, {owner.state}"
        for owner in owners.find(host.reader, (NAME,))[0].value or ()
        if owner.name != "hostcheck" and owner.state != "inactive"
    ]


def plan(host: Host, wanted: Wanted, record: Record) -> Plan:
    """The script with its unit, and the live state of every block."""
    if not wanted.blocks:
        return Plan()
    online = _online(host, wanted)
    word = host.must(host.reader.line(f"{memory.BLOCKS}/block_size_bytes"))
    size = host.must(host.reader.line(f"{memory.BLOCKS}/block_size_bytes").then(memory.parse_block_size))
    before = record.extra.get("block_size_bytes", word)
    if before != word:
        raise Refused(
            f"{NAME}.blocks: a block is {gib(size)}, was {gib(memory.parse_block_size(before))} when they were fenced: "
            "the numbers mean other memory now. Run undo.yml --tags memory_fence, and find the bad blocks again"
        )
    rivals = _rivals(host)
    if rivals:
        raise Refused(
            f"{NAME}: not set, since somebody else takes blocks off-line: {'; '.join(rivals)}. "
            "Take it away there, or declare the blocks there and not here"
        )
    if online:
        _leaves_enough(host, wanted, online, size)
    unit = UNIT_TEXT.replace("@BLOCKS@", " ".join(map(str, wanted.blocks)))
    goals = [
        Goal(OwnedFile(SCRIPT), File(SCRIPT_TEXT.replace("@SIZE@", word), None, 0o755).plain()),
        Goal(OwnedFile(UNIT, (RELOAD,)), File(unit).plain()),
        Goal(OwnedFile(UNIT_LINK, (RELOAD,)), File(link=UNIT).plain()),
        *(Goal(Block(path_of(number)), "offline") for number in wanted.blocks),
    ]
    notes = (COST.format(amount=gib(len(wanted.blocks) * size)),)
    return Plan(tuple(goals), notes=notes, extra={"block_size_bytes": word})


def view(host: Host, wanted: Wanted | None) -> View:
    """The blocks that are off-line, those of the unit, and what memory is left."""
    found = memory.read(host.reader)
    offline = host.must(found.offline)
    live = f"off-line: {_ranges(list(offline))}"
    text = host.reader.text(UNIT).value or ""
    line = next((line for line in text.splitlines() if line.startswith("ExecStart=")), "")
    enabled = host.reader.link(UNIT_LINK).value is not None
    numbers = [int(word) for word in line.split()[1:]]
    persistent = f"off-line: {_ranges(numbers)} ({UNIT})" if numbers and enabled else "all on-line"
    total = f"{gib(found.total.value << 10)} MemTotal" if found.total.value is not None else "MemTotal unread"
    names = [UNIT] if numbers else []
    return View(live, persistent, total, ", ".join([*names, *_rivals(host)]))


SETTING = Setting(NAME, parse, plan, view, (Block,))
