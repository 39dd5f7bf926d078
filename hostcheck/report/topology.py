"""The way from every root port to the cards below it, with the link of each hop and the faults where they belong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from ..findings import Finding, Status
from ..onhost.gather import Facts
from ..onhost.readings import gpu_ids
from ..onhost.readings.pcie import Gpu, Hop
from .terminal import STYLE, visible

ROLES = {
    "root_port": "root port",
    "switch_upstream": "switch, upstream port",
    "switch_downstream": "switch, downstream port",
    "bridge": "bridge",
    "card_upstream": "card, upstream port",
    "card_downstream": "card, downstream port",
}
SHOWN = (Status.fail, Status.warn, Status.unknown, Status.info)
COUNTERS = (("correctable", "TOTAL_ERR_COR"), ("nonfatal", "TOTAL_ERR_NONFATAL"), ("fatal", "TOTAL_ERR_FATAL"))


@dataclass
class Node:
    """One hop in the tree, with what hangs below it."""

    hop: Hop
    gpu: Gpu | None = None
    below: dict[str, Node] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    """One line. status: of the finding that it shows, None for a hop."""

    text: str
    status: Status | None = None
    heading: bool = False


def tree(gpus: Iterable[Gpu]) -> dict[str, Node]:
    """Hops of all GPUs as trees, by BDF of their first hop."""
    roots: dict[str, Node] = {}
    for gpu in gpus:
        level = roots
        for hop in gpu.path:
            node = level.setdefault(hop.bdf, Node(hop))
            level = node.below
        node.gpu = gpu
    return roots


def link_words(hop: Hop, family_inert: bool) -> str:
    """The link above a hop, for a person: current and, where it differs, the most that this end can.

    family_inert: the card is of a kind whose inner links always read the same.
    """
    if hop.inner:
        return (
            "inner link, always 2.5 GT/s x1, says nothing"
            if family_inert
            else "inner link, says nothing about the slot"
        )
    if hop.width.value is None and hop.speed.value is None:
        return f"link not read: {hop.width.unread}"
    now = _words(hop.speed.value, hop.width.value)
    most = _words(hop.max_speed.value, hop.max_width.value)
    return now if now == most else f"{now} of {most}"


def _words(speed: float | None, width: int | None) -> str:
    return f"{f'{speed:g} GT/s' if speed is not None else 'speed unknown'} {f'x{width}' if width is not None else 'x?'}"


def _head(node: Node) -> str:
    hop, gpu = node.hop, node.gpu
    known = gpu_ids.product(gpu.vendor, gpu.device) if gpu is not None else None
    if gpu is not None:
        driver = gpu.driver.value if gpu.driver.value is not None else f"driver {gpu.driver.unread}"
        what = f"{gpu_ids.name_of(gpu.vendor, gpu.device)}, {driver or 'no driver'}"
    else:
        what = f"{ROLES.get(hop.role, hop.role)} [{hop.vendor}:{hop.device}]"
    parts = [f"{hop.bdf}  {what}"]
    if hop.role in ("root_port", "switch_downstream"):  # the link of such a port is the one below it
        parts.append(f"up to {_words(hop.max_speed.value, hop.max_width.value)}")
    elif gpu is not None and not gpu.integrated and not any(one.crosses_slot for one in gpu.path):
        parts.append("its port at the slot cannot be seen")
    elif gpu is None or len(gpu.path) > 1:
        own_port = hop.vendor == gpu_ids.INTEL and (hop.vendor, hop.device) in gpu_ids.CARD_PORTS
        parts.append(link_words(hop, own_port or (known is not None and known.family in gpu_ids.INNER_SWITCH)))
    if hop.crosses_slot:
        parts.append(f"crosses the slot{f' {hop.slot.value}' if hop.slot.value else ''}")
    counted = [
        f"{name} {total}" for name, key in COUNTERS if (total := (getattr(hop.aer, name).value or {}).get(key, 0))
    ]
    if counted:
        parts.append(f"AER {', '.join(counted)}")
    return visible(", ".join(parts))


def _mark(finding: Finding) -> str:
    wanted = f" (wanted {finding.wanted})" if finding.wanted and finding.status is not Status.info else ""
    return visible(f"! {finding.status} {finding.id}: {finding.seen}{wanted}{' (waived)' if finding.waived else ''}")


def _walk(nodes: Sequence[Node], marks: dict[str, list[Finding]], indent: str = "", top: bool = True) -> Iterator[Line]:
    for node in nodes:
        last = node is nodes[-1]
        branch = "" if top else "`- " if last else "|- "
        yield Line(f"{indent}{branch}{_head(node)}", heading=top)
        inside = indent if top else f"{indent}{'   ' if last else '|  '}"
        for finding in marks.get(node.hop.bdf, ()):
            yield Line(f"{inside}{'|' if node.below else ' '}    {_mark(finding)}", finding.status)
        yield from _walk(list(node.below.values()), marks, inside, top=False)


def lines(facts: Facts, findings: Sequence[Finding]) -> list[Line]:
    """The topology of a host, line by line.

    A finding about a link, a port or a GPU stands below the hop that it is about: a link below its card-side port.
    What is about a function that is not there, such as a missing card, stands at the end.
    """
    gpus = facts.pcie.gpus
    if gpus.value is None:
        return [Line(visible(f"GPUs not read: {gpus.unread}{f': {gpus.detail}' if gpus.detail else ''}"))]
    marks: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.status in SHOWN and finding.subject.kind in ("link", "port", "gpu"):
            marks.setdefault(finding.subject.name, []).append(finding)
    found = list(_walk(list(tree(gpus.value).values()), marks)) or [Line("no GPU on the PCI bus")]
    shown = {hop.bdf for gpu in gpus.value for hop in gpu.path}
    for name in sorted(set(marks) - shown):
        found += [Line(f"{visible(name)}  {_mark(one)}", one.status) for one in marks[name]]
    return found


def render(facts: Facts, findings: Sequence[Finding]) -> Text:
    """The topology as text with styles; a console that is no terminal prints it plain."""
    styled = []
    for line in lines(facts, findings):
        style = STYLE[line.status] if line.status is not None else "bold" if line.heading else ""
        styled.append(Text(line.text, style=style))
    return Text("\n").join(styled)
