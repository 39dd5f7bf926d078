"""Is ASPM as wanted, could it be set at all, what does the hardware do, and who sees PCIe errors?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..expectations import Expectation
from ..findings import HOST, Cause, Finding, Status, Subject, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.reader import Reading
from ..onhost.readings.aspm import obstacle, refused
from ..onhost.readings.kernel_log import Event
from ..onhost.readings.pcie import Gpu, Hop, path_bdfs
from . import log
from .gpu import cards, is_virtual, subject
from .links import port_is_virtual

APPLY = "ansible-playbook playbooks/apply.yml --tags pcie_aspm"

# Events of a link that stopped working, as opposed to those of a GPU that hung on a link that works.
WORDS = {None: "not read", "disabled": "disabled", "l0s": "L0s", "l1": "L1", "l0s l1": "L0s and L1"}
UNSEEN = "no port above the card was recorded, so whether its errors are seen is not known"
LINK_FAULTS = (
    "aer.fatal",
    "aer.nonfatal",
    "dpc",
    "gpu.lost",
    "nvrm.lost",
    "d3_failed",
    "resume_failed",
    "slot.link_down",
)


def _ends(gpu: Gpu) -> list[tuple[Hop, Hop]]:
    """Every link on the way to a GPU, those inside the card included: (upper, lower)."""
    pairs = zip(gpu.path, gpu.path[1:], strict=False)
    return [(upper, lower) for upper, lower in pairs if upper.role == "root_port" or upper.role.endswith("_downstream")]


def link_state(upper: Hop, lower: Hop) -> str | None:
    """What ASPM does on a link: ``disabled``, ``l0s``, ``l1``, ``l0s l1``, or None where neither end was read.

    A link enters L1 only when both ends have it enabled; where one end could not be read the other one decides.
    Without LnkCtl the files of the lower end (link/l1_aspm …) say what the kernel has set on both.
    """
    ends = [set(hop.aspm.value.split()) - {"disabled"} for hop in (upper, lower) if hop.aspm.value is not None]
    if ends:
        both = ends[0] & ends[-1]
    elif lower.aspm_files.value is not None and "l1_aspm" in lower.aspm_files.value:
        both = {name for name in ("l0s", "l1") if lower.aspm_files.value.get(f"{name}_aspm")}
    else:
        return None
    return " ".join(sorted(both)) or "disabled"


def effective_words(gpu: Gpu) -> str:
    """What LnkCtl enables on the way to a GPU, for a person.

    Links of the same state are put together: ``disabled on every hop``, or ``L1 at 0000:21:00.0; disabled at …``.
    """
    states: dict[str, list[str]] = {}
    for upper, lower in _ends(gpu):
        states.setdefault(WORDS[link_state(upper, lower)], []).append(lower.bdf)
    if len(states) == 1:
        return f"{next(iter(states))} on every hop"
    return "; ".join(f"{state} at {' '.join(bdfs)}" for state, bdfs in states.items())


def substates(gpu: Gpu) -> str:
    """The substates of L1 that both ends of a link to a GPU have enabled, for a person; "" without any."""
    found: dict[str, list[str]] = {}
    for upper, lower in _ends(gpu):
        for name in upper.l1_substates.value or ():
            if name in (lower.l1_substates.value or ()) and link_state(upper, lower) not in (None, "disabled"):
                found.setdefault(name, []).append(lower.bdf)
    return "; ".join(f"{name} at {' '.join(bdfs)}" for name, bdfs in found.items())


def _effective_of_host(facts: Facts) -> str:
    """The effective state of all cards, for a finding about the policy."""
    words = {effective_words(gpu) for gpu in cards(facts) if len(gpu.path) > 1} if facts.pcie.gpus.value else set()
    return f"; effective (LnkCtl): {' / '.join(sorted(words))}" if words else ""


@check("aspm.policy", title="The ASPM policy is the wanted one, and could be set")
def policy(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`aspm.policy`

    Why: with ``pcie_aspm=off`` the file still reads ``[default]`` while writes are refused and the firmware's setting
    stays (kernel docs, kernel-parameters; amd-debug-tools#55), and a firmware that refuses ASPM makes every write fail
    (TLP#211), so the file alone proves nothing and a change that cannot take must not be asked for.
    """
    aspm, wish = facts.aspm, expectation.settings.pcie_aspm.policy
    if aspm.policy.unread == "absent" and aspm.modules.value is None:
        # A part of a host without that directory does not say what the kernel was built with.
        aspm = replace(aspm, policy=Reading.no("not_asked", "not part of this recording", aspm.policy.source))
    why, source = obstacle(aspm, facts.kernel_log.events.value or ())
    wanted = wish or ""
    if aspm.command_line.value == "off":
        yield Finding(
            "aspm.policy",
            HOST,
            Status.info,
            seen=f"not controllable: disabled on the command line{_effective_of_host(facts)}",
            wanted=wanted,
            source=source,
            next_step="remove pcie_aspm=off from the kernel command line (the firmware's ASPM setting stays as it is)",
        )
    elif why:
        seen = f"cannot be set: {why}{_effective_of_host(facts)}"
        yield Finding("aspm.policy", HOST, Status.not_applicable, seen=seen, wanted=wanted, source=source)
    elif aspm.command_line.value == "force":
        yield Finding(
            "aspm.policy",
            HOST,
            Status.warn,
            seen="forced on by pcie_aspm=force, for devices that do not claim to support it",
            wanted="no pcie_aspm=force",
            source=aspm.command_line.source,
            next_step="remove pcie_aspm=force from the kernel command line",
        )
    elif aspm.policy.value is None:
        yield unknown("aspm.policy", aspm.policy)
    elif wish is None or aspm.policy.value == wish:
        yield Finding("aspm.policy", HOST, Status.ok, seen=aspm.policy.value, wanted=wanted, source=aspm.policy.source)
    else:
        yield Finding(
            "aspm.policy",
            HOST,
            Status.fail,
            seen=aspm.policy.value,
            wanted=wanted,
            source=aspm.policy.source,
            next_step=f"{APPLY}  # for the next boot",
        )


def link_faults(facts: Facts, gpu: Gpu) -> list[Event]:
    """Events about a link on the way to a GPU, on this boot or in the firmware's record of the one before."""
    path = path_bdfs(gpu)
    return [
        event
        for event in facts.kernel_log.events.value or ()
        if event.kind in LINK_FAULTS and (event.bdf in path or event.root_port in path)
    ]


@check("aspm.effective", title="What LnkCtl enables on the way to every card is as wanted")
def effective(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`aspm.effective`

    Why: only LnkCtl of both ends tells what a link does; a policy that was written and read back may have changed
    nothing. L1 on a way to a GPU is normal. It becomes a warning when a link on that way failed: a host that was reset
    by its GPU's completion timeouts had L1 enabled on all of its ports (nixos_config#1820; its fix is not yet proven).
    Substates that are on are told: with ``powersupersave`` or L1.1 on AMD platforms cards were lost until a reboot
    (lab-host-facts 2.2, aspm.l1ss).
    """
    wish = expectation.settings.pcie_aspm.effective
    judged = cards(facts)
    if not judged:
        yield Finding(
            "aspm.effective", HOST, Status.not_applicable, seen="no card in use", source=facts.pcie.gpus.source
        )
    for gpu in judged:
        ends = _ends(gpu)
        states = {lower.bdf: link_state(upper, lower) for upper, lower in ends}
        unread = [lower for _, lower in ends if states[lower.bdf] is None and not lower.inner]
        # The links inside the card alone say nothing about the one at the slot.
        is_hidden = not any(not lower.inner for _, lower in ends) or gpu.path[0].crosses_slot
        source = next((lower.aspm.source for _, lower in ends if lower.aspm.value is not None), facts.pcie.gpus.source)
        deeper = substates(gpu)
        seen = effective_words(gpu) + (f"; substates: {deeper}" if deeper else "")
        if port_is_virtual(facts, gpu):
            seen = "in a virtual machine the real port is not visible"
            yield Finding("aspm.effective", subject(gpu), Status.not_applicable, seen=seen, source=source)
            continue
        if not ends:
            seen = "no port above it is visible"
            yield Finding("aspm.effective", subject(gpu), Status.unknown, seen=seen, source=source)
            continue
        active = [bdf for bdf, state in states.items() if state not in (None, "disabled")]
        l1 = [bdf for bdf, state in states.items() if "l1" in (state or "").split()]
        faults = link_faults(facts, gpu)
        if active and wish == "disabled":
            step = f"{APPLY}  # for the next boot"
            yield Finding("aspm.effective", subject(gpu), Status.fail, seen, "disabled on every hop", source, step)
        elif l1 and faults:
            fault = faults[-1]
            when = " (record of the previous boot)" if fault.previous_boot else ""
            yield Finding(
                "aspm.effective",
                subject(gpu),
                Status.warn,
                seen=f"{seen}, and {fault.kind} at {fault.bdf or fault.root_port}{when} on this path",
                wanted="no L1 on a path with link faults",
                source=source,
                next_step=f"{APPLY}  # with pcie_aspm.policy: performance declared; confirm after 48 h or more",
            )
        elif l1 and facts.kernel_log.events.value is None:
            told = unknown("aspm.effective", facts.kernel_log.events, subject(gpu))
            yield replace(told, seen=f"{seen}; whether a link on this path failed: {told.seen}", cause=log.ACCESS)
        elif unread:
            reading = unread[0].aspm
            yield unknown("aspm.effective", reading, subject(gpu))
        elif is_hidden:
            seen = f"{seen}; the link at the slot was not recorded" if any(states.values()) else "no link was read"
            yield Finding("aspm.effective", subject(gpu), Status.unknown, seen=seen, source=source)
        elif wish == "l1" and not l1:
            step = f"{APPLY}  # for the next boot"
            yield Finding("aspm.effective", subject(gpu), Status.fail, seen, "L1", source, step)
        elif active:
            yield Finding("aspm.effective", subject(gpu), Status.ok if wish else Status.info, seen=seen, source=source)
        else:
            yield Finding("aspm.effective", subject(gpu), Status.ok, seen=seen, wanted=wish or "", source=source)


def is_uncounted(root: Hop) -> bool:
    """Has a root port the AER capability by its registers in sysfs, and yet no counters beside them?

    Registers that lspci printed stand in a recording without sysfs, where counters are not to be expected.
    """
    by_sysfs = root.aer_registers.value is not None and root.aer_registers.source.startswith("/sys/")
    return by_sysfs and root.aer.correctable.unread == "absent"


def aer_blind(facts: Facts) -> dict[str, tuple[Subject, str]]:
    """Ports whose AER the kernel does not see, so that zero counters there mean nothing.

    Key: BDF of a root port, or ``*`` for the whole host. Value: the subject of the `aer.visibility` finding that says
    so (the cause of every AER check that cannot be judged), and the reason.
    """
    aspm = facts.aspm
    if aspm.command_line.value == "off":
        # The kernel then asks the firmware for no control of PCIe at all, AER included.
        return {"*": (HOST, "pcie_aspm=off keeps the kernel from taking AER")}
    if "noaer" in (aspm.pci.value or ()):
        return {"*": (HOST, "pci=noaer switches AER off")}
    if aspm.pcie_ports.value == "compat":
        return {"*": (HOST, "pcie_ports=compat leaves root ports without their services")}
    for event in facts.kernel_log.events.value or ():
        if refused(event, "AER") and not event.previous_boot and aspm.pcie_ports.value != "native":
            return {"*": (HOST, "the firmware keeps AER (_OSC), so errors go to it first")}
    found: dict[str, tuple[Subject, str]] = {}
    for gpu in cards(facts) if facts.pcie.gpus.value else ():
        root = gpu.path[0]
        if len(gpu.path) == 1 and not port_is_virtual(facts, gpu):
            found[root.bdf] = (Subject("port", root.bdf), UNSEEN)
        elif port_is_virtual(facts, gpu):
            found[root.bdf] = (
                Subject("port", root.bdf),
                "in a virtual machine the real port reports to the hypervisor",
            )
        elif root.aer_capable.value is False:
            found[root.bdf] = (Subject("port", root.bdf), "the root port has no AER capability")
        elif is_uncounted(root):
            found[root.bdf] = (Subject("port", root.bdf), "the kernel keeps no AER counters for the root port")
    return found


def _step(reason: str, ports: Subject) -> str:
    """The next step for a reason of `aer_blind`."""
    for word in ("pcie_aspm=off", "pci=noaer", "pcie_ports=compat"):
        if reason.startswith(word):
            return f"remove {word} from the kernel command line"
    if "_OSC" in reason:
        return "BIOS: give PCIe AER to the operating system (native AER, not firmware first)"
    return f"lspci -vv -s {ports.name} | grep -E 'UESta|CESta'" if "capability" in reason else ""


@check("aer.visibility", title="The kernel sees PCIe errors on the way to every card")
def visibility(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`aer.visibility`

    Why: where the firmware keeps AER, or the command line switches it off, the log stays empty and the counters stay
    at zero whatever happens, so no AER check below may be ok. ``pcie_aspm=off`` does that too: the kernel then says
    "not requesting OS control" and takes no AER (seen on Debian's 6.1 and 6.12).
    """
    if not need(facts.pcie.functions):
        yield Finding("aer.visibility", HOST, Status.not_applicable, seen="no PCI", source=facts.pcie.functions.source)
        return
    if is_virtual(facts) and not cards(facts):
        seen = "a virtual machine without a card"
        yield Finding("aer.visibility", HOST, Status.not_applicable, seen=seen, source=facts.pcie.gpus.source)
        return
    blind = aer_blind(facts)
    for _, (port, reason) in sorted(blind.items()):
        yield Finding(
            "aer.visibility",
            port,
            Status.unknown if reason == UNSEEN else Status.info if "hypervisor" in reason else Status.warn,
            seen=reason,
            wanted="AER handled by the kernel",
            source="kernel log" if "_OSC" in reason else "/proc/cmdline" if port == HOST else facts.pcie.gpus.source,
            next_step=_step(reason, port),
        )
    if "*" in blind:
        return
    roots = {gpu.path[0].bdf: gpu.path[0] for gpu in cards(facts)}
    for bdf, root in sorted(roots.items()):
        if bdf not in blind and root.aer_capable.value is None:
            yield unknown("aer.visibility", root.aer_capable, Subject("port", bdf))
    log = facts.kernel_log
    if facts.aspm.command_line.value is None:
        yield unknown("aer.visibility", facts.aspm.command_line)
    elif log.events.value is None:
        yield replace(unknown("aer.visibility", log.events), cause=Cause("log.access", HOST))
    elif log.complete.value is False and not any(event.kind.startswith("osc.") for event in log.events.value):
        seen = "early lines of the kernel log are lost, so whether the firmware keeps AER is not known"
        yield Finding("aer.visibility", HOST, Status.unknown, seen=seen, source=log.events.source)
    elif not blind:
        yield Finding("aer.visibility", HOST, Status.ok, seen="AER is handled by the kernel", source=log.events.source)
