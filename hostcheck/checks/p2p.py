"""Can cards reach each other's memory without the host, as far as the kernel's rules tell?"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

from ..expectations import Expectation
from ..findings import HOST, Finding, Status, check
from ..onhost.gather import Facts
from ..onhost.reader import Reading
from ..onhost.readings import gpu_ids
from ..onhost.readings.log_events import GPU_DRIVERS, driver_of
from ..onhost.readings.pcie import Gpu
from .gpu import cards, is_virtual

REFUSED = "the kernel refused it: no bridge above both, or ACS redirect, and a host bridge that is not on its list"
REDIRECTS = frozenset(("ReqRedir", "CmpltRedir", "EgressCtrl"))

# Host bridges through which the kernel lets peers talk, besides every AMD processor since Zen (family 17h): the list
# pci_p2pdma_whitelist and cpu_supports_p2pdma of drivers/pci/p2pdma.c (6.x). Newer kernels may know more.
WHITELIST = frozenset(("3c00", "3c01", "2f00", "2f01", "2030", "2031", "2032", "2033", "2020", "09a2"))
SAME_BRIDGE_ONLY = frozenset(("3c00", "3c01", "2f00", "2f01"))
ZEN = re.compile(r"\b(?:EPYC|Ryzen|Threadripper)\b")


class Pair(NamedTuple):
    """What the kernel's rules give for two cards. way: direct, host_bridge, none or unread; why: for a person."""

    one: str
    other: str
    way: str
    why: str
    reading: Reading[tuple[str, ...]] | None = None


def shared(one: Gpu, other: Gpu) -> str:
    """BDF of the lowest bridge above both cards, ``""`` when there is none."""
    above = {hop.bdf for hop in other.path[:-1]}
    return next((hop.bdf for hop in reversed(one.path[:-1]) if hop.bdf in above), "")


def host_bridge(facts: Facts, gpu: Gpu) -> tuple[str, str, str]:
    """(bus, vendor, device) of what the kernel takes for the host bridge of a card: device 00.0 of its root bus."""
    bus = gpu.path[0].bdf.rpartition(":")[0]
    first = next((one for one in facts.pcie.functions.value or () if one.bdf == f"{bus}:00.0"), None)
    if first is not None:
        return bus, first.vendor, first.device
    # Skylake-E has no such device: the root port itself is on the list
    return bus, gpu.path[0].vendor, gpu.path[0].device


def _is_zen(facts: Facts) -> bool:
    """Is the processor an AMD one of the Zen line, which began with these names?"""
    models = facts.lscpu.model_names.value or ()
    return facts.lscpu.vendor.value == "AuthenticAMD" and any(ZEN.search(model) for model in models)


def through_host(facts: Facts, one: Gpu, other: Gpu) -> str:
    """Why peers cannot talk through the host bridge, or "" when the kernel allows it."""
    if _is_zen(facts):
        return ""
    bridges = [host_bridge(facts, gpu) for gpu in (one, other)]
    for _, vendor, device in bridges:
        if vendor != gpu_ids.INTEL or device not in WHITELIST:
            return f"host bridge {vendor}:{device} is not on the kernel's list"
    if bridges[0][0] != bridges[1][0] and any(device in SAME_BRIDGE_ONLY for _, _, device in bridges):
        return "the cards are on two host bridges that do not forward to each other"
    return ""


def pair(facts: Facts, one: Gpu, other: Gpu) -> Pair:
    """What the kernel would find for two cards (calc_map_type_and_dist of drivers/pci/p2pdma.c)."""
    common = shared(one, other)
    names = (one.bdf, other.bdf)
    blocked = []
    if common:
        for gpu in (one, other):
            for hop in gpu.path[[item.bdf for item in gpu.path].index(common) + 1 : -1]:
                if hop.acs.value is None and hop.acs.unread != "absent":
                    return Pair(*names, "unread", "", hop.acs)
                if REDIRECTS.intersection(hop.acs.value or ()):
                    blocked.append(hop.bdf)
        if not blocked:
            return Pair(*names, "direct", f"below {common}")
    redirect = f"ACS redirect at {', '.join(dict.fromkeys(blocked))}" if blocked else "no bridge above both"
    why = through_host(facts, one, other)
    if why:
        return Pair(*names, "none", f"{redirect}, and {why}")
    return Pair(*names, "host_bridge", redirect)


def refused(facts: Facts) -> dict[frozenset[str], str]:
    """Pairs of cards for which the kernel said on this boot that they cannot -> where it said so."""
    log = facts.kernel_log.events
    return {
        frozenset((event.bdf, provider)): log.source
        for event in log.value or ()
        if event.kind == "p2p.refused" and not event.previous_boot and driver_of(event) in GPU_DRIVERS
        for provider in event.details["provider"].lower().split(", ")
    }


WORDS = {
    "direct": "direct through the switch",
    "host_bridge": "through the host bridge",
    "none": "unavailable",
}


def _told(pairs: list[Pair]) -> str:
    """All pairs for a person; those of the same kind and reason together."""
    groups: dict[tuple[str, str], set[str]] = {}
    for one in pairs:
        groups.setdefault((one.way, one.why), set()).update((one.one, one.other))
    parts = []
    for (way, why), names in groups.items():
        who = f"{', '.join(sorted(names))}: " if len(groups) > 1 else ""
        parts.append(f"{who}{WORDS[way]}{f' ({why})' if why else ''}")
    return "; ".join(parts)


@check("p2p", title="Cards can reach each other directly")
def p2p(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`p2p`

    Why: with ACS redirect on a switch's ports traffic between cards goes up to the host bridge, and a bridge that is
    not on the kernel's list ends it; the error then looks like out of memory (compute-runtime#935). In a virtual
    machine the common switch is hidden (llm-scaler#216). ACS and the IOMMU isolate devices: never a fault, never
    changed here. This is the kernel's rule and no proof that a copy is right: only a checked copy shows that
    (compute-runtime#942). Where the kernel itself said that two cards cannot, that counts.
    """
    said = refused(facts)
    if said and not facts.pcie.gpus.value:  # no more than a log was kept
        pairs = [Pair(min(both), max(both), "none", REFUSED) for both in said]
        yield Finding("p2p", HOST, Status.info, seen=_told(pairs), source=next(iter(said.values())))
        return
    judged = [gpu for gpu in cards(facts) if gpu.vendor == gpu_ids.INTEL and gpu.driver.value]
    source = facts.pcie.gpus.source
    if len(judged) < 2:
        seen = "one card" if judged else "no Intel card in use"
        yield Finding("p2p", HOST, Status.not_applicable, seen=seen, source=source)
        return
    if is_virtual(facts):
        yield Finding(
            "p2p",
            HOST,
            Status.info,
            seen="not available in this virtual machine: passthrough hides what is above the cards",
            source=facts.identity.virtualization.source or source,
            next_step="CCL_TOPO_P2P_ACCESS=0  # copies through the host; no fault of a card",
        )
        return
    pairs = [
        Pair(one.bdf, other.bdf, "none", REFUSED)
        if frozenset((one.bdf, other.bdf)) in said
        else pair(facts, one, other)
        for one, other in itertools.combinations(judged, 2)
    ]
    unread = next((one.reading for one in pairs if one.reading is not None), None)
    if unread is not None:
        seen = f"{unread.unread}: ACS not read: {unread.detail}"
        yield Finding("p2p", HOST, Status.unknown, seen=seen, source=unread.source)
        return
    groups = facts.iommu.groups
    iommu = "" if groups.value is None else "; IOMMU on" if groups.value else "; IOMMU off"
    kinds = set((facts.iommu.types.value or {}).values())
    iommu += f" ({', '.join(sorted(kinds))})" if kinds and groups.value else ""
    status = Status.ok if all(one.way == "direct" for one in pairs) else Status.info
    yield Finding("p2p", HOST, status, seen=_told(pairs) + iommu, source=source)
