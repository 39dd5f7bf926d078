"""Did a card hang, wedge, leave the bus or start in survivability mode on this boot?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..expectations import Expectation
from ..findings import HOST, Cause, Finding, Status, check, unknown
from ..onhost.gather import Facts
from ..onhost.readings import gpu_ids
from ..onhost.readings.kernel_log import Event
from ..onhost.readings.log_events import GPU_DRIVERS, driver_of, is_bad
from ..onhost.readings.pcie import Gpu, path_bdfs
from . import log
from .gpu import cards, gone, subject, unlisted
from .presence import holding, not_listed

GOES_ON = 60.0  # seconds; younger resets are taken for ones that go on (the lab waits as long for quiet)
REBOOT = "systemctl reboot  # a reset or a rebind does not bring it back"
SHOW = "journalctl -k -b 0 --no-pager | grep {}"

# What follows the dot of a kind -> words for a person. The kinds below leave a context or the card dead
# (compute-runtime#946: "Fault response: Unsuccessful" goes with a dead context; a plain engine reset does not).
SERIOUS = {
    "page_fault": "page fault",
    "fault_response": "page fault not served",
    "cat_error": "memory CAT error",
    "timedout_job": "timed-out job",
    "kernel_job": "timed-out job of the driver itself",
    "reset_failed": "failed reset",
    "vm_error": "VM worker error",
    "coredump_created": "coredump created",
    "hang": "GPU hang",
    "ring_timeout": "ring timeout",
    "pm_underflow": "runtime PM count underflow",
    "hardware_fatal": "fatal hardware error",
}
MILD = {
    "engine_reset": "engine reset",
    "gt_reset": "GT reset",
    "job_check": "job that did not start",
    "reset": "reset",
    "recovered": "recovered through reset",
    "tlb_timeout": "TLB invalidation timed out",
    "no_reply": "GuC did not answer",
    "other": "error",
    "timeout": "PCODE did not answer",
    "load_failed": "GuC did not load",
    "soft_recovered": "ring timeout, soft recovered",
    "hardware_error": "hardware error",
}
# Whole kinds. The public B70 optimization lab took the first two, and a count of runtime PM that underflows, for one
# family with a card that does not come back from its sleep: only a reboot helped.
HOST_SIGNS = {
    "iommu.timeout": (True, "the IOMMU waited in vain for it"),
    "hung_task": (True, "task {process} blocked inside {driver}"),
    "pci.ubsan": (False, "UBSAN in drivers/pci/{file}, where the kernel resizes BARs and resumes functions"),
    "lockup.hard": (False, "hard lockup on CPU {cpu}, which takes its interrupts"),
    "lockup.soft": (False, "soft lockup on CPU {cpu} inside {driver}"),
}
APPLICATION_XIDS = frozenset({"13", "31", "43", "45", "68", "69", "109"})  # NVIDIA, Xid errors: caused by the program
CUT = ("gpu.wedge_cut", "gpu.cut")
WEDGED = ("xe.wedged", "gpu.wedged")
KERNEL_JOB = ("xe.kernel_job", "gpu.kernel_job")
LOST = ("nvrm.lost", "gpu.lost")


def word(kind: str) -> str:
    return kind.partition(".")[2]


def _of_boot(facts: Facts) -> list[Event]:
    return [event for event in log.events(facts) if not event.previous_boot]


def _recovered(found: list[Event]) -> bool:
    """Is "recovered through reset" the last word? (drm_wedged_event; "device wedged" alone says nothing.)"""
    good = [event.order_last for event in found if event.kind == "gpu.recovered"]
    bad = [event.order_last for event in found if event.kind != "gpu.recovered" and is_bad(event)]
    return bool(good) and max(good) > max(bad, default=-1)


def _device(bdf: str) -> str:
    return bdf.rpartition(".")[0]


def lost(facts: Facts) -> dict[str, list[Event]]:
    """Cards that left the bus -> the events that say so, those of their other functions included."""
    found = _of_boot(facts)
    known = {gpu.bdf: gpu for gpu in facts.pcie.gpus.value or ()}
    hops = {hop.bdf: gpu.bdf for gpu in known.values() for hop in gpu.path[1:]}
    gone = {event.bdf: [event] for event in found if event.kind in LOST and event.bdf}
    for event in found:
        if event.kind == "d3_failed" and (event.bdf in known or driver_of(event)):
            gone.setdefault(event.bdf, []).append(event)
        elif event.kind == "d3_failed" and event.bdf in hops:
            gone.setdefault(hops[event.bdf], []).append(event)
        if event.kind == "slot.link_down":
            for gpu in known.values():
                if any(hop.bdf == event.bdf for hop in gpu.path[:-1]):
                    gone.setdefault(gpu.bdf, []).append(event)
    for event in found:
        if event.kind not in ("d3_failed", "resume_failed"):
            continue
        for card, said in gone.items():
            others = known[card].siblings if card in known else ()
            if event.bdf != card and (_device(event.bdf) == _device(card) or event.bdf in others):
                said.append(event)
    return gone


def wedged(facts: Facts) -> dict[str, list[Event]]:
    """Cards that their driver gave up, or that are suspected to be dead -> the events that say so."""
    found: dict[str, list[Event]] = {}
    for event in _of_boot(facts):
        gpu = _gpu(facts, event.bdf)
        if event.kind == "guc.load_failed" and gpu is not None and gpu.integrated:
            continue  # i915 drives older ones without it, and says so where it cannot
        if event.bdf and (event.kind in (*WEDGED, *KERNEL_JOB) or event.kind in ("guc.load_failed", "gpu.wedge_cut")):
            found.setdefault(event.bdf, []).append(event)
    every = _of_boot(facts)
    return {card: said for card, said in found.items() if not _recovered([one for one in every if one.bdf == card])}


def _subjects(facts: Facts, found: list[Event]) -> list[str]:
    """Cards of this host, and every other device for which a GPU driver reports a fault."""
    known = [gpu.bdf for gpu in cards(facts)] if facts.pcie.gpus.value else []
    return sorted({*known, *(event.bdf for event in found if event.bdf)})


def _card(facts: Facts, bdf: str) -> str:
    """The GPU that a device belongs to: itself, one of its functions, or a port of the card; "" when there is none."""
    gpus = facts.pcie.gpus.value or ()
    own = [gpu.bdf for gpu in gpus if bdf == gpu.bdf or bdf in gpu.siblings]
    own = own or [gpu.bdf for gpu in gpus if bdf in path_bdfs(gpu) and bdf != gpu.path[0].bdf]
    if own:
        return own[0]
    return bdf if bdf in log.told_gpus(facts) else ""


def _signs(facts: Facts) -> list[Event]:
    """All that the log has against cards on this boot, apart from what has a check of its own."""
    found = []
    for event in _of_boot(facts):
        if event.kind == "iommu.timeout":
            card = _card(facts, event.bdf) if event.bdf else ""
            if card:
                found.append(replace(event, bdf=card))
        elif event.kind == "probe_failed":
            if _starts_not(facts, event):
                found.append(event)
        elif event.kind == "pci.ubsan":
            if not _no_gpu(facts):
                found.append(event)
        elif is_bad(event) and event.kind not in ("d3_failed", "survivability", *LOST, *WEDGED, *CUT):
            found.append(event)
    return found


def _starts_not(facts: Facts, event: Event) -> bool:
    """Did a driver fail to start a card that it nevertheless holds? One that it does not hold is not enumerated.

    NVIDIA's driver binds a card first and starts it when it is opened ("RmInitAdapter failed").
    """
    gpu = _gpu(facts, event.bdf)
    driver = driver_of(event)
    if gpu is None:  # `gpu.enumeration` tells of it where the bus was read
        return driver in GPU_DRIVERS and not facts.pcie.functions.value
    return driver in GPU_DRIVERS and gpu.driver.value == driver


def cause_of(facts: Facts, gpu: Gpu) -> Cause:
    """The finding that says why nothing that calls into the driver of a card was read."""
    card = subject(gpu)
    if gpu.bdf in lost(facts):
        return Cause("gpu.lost", card)
    if gpu.bdf in wedged(facts):
        return Cause("gpu.wedged", card)
    if gpu.runtime_status.value == "error" and not gpu.coredump.value and not _against(facts, gpu.bdf):
        return Cause("gpu.runtime_status", card)
    return Cause("gpu.fault", card)


def _against(facts: Facts, bdf: str) -> bool:
    """Did the log say anything against this card, or against one of its driver that it does not name?"""
    gpu = _gpu(facts, bdf)
    driver = gpu.driver.value if gpu is not None else None
    return any(
        event.bdf == bdf or (not event.bdf and driver and driver_of(event) == driver)
        for event in (*_signs(facts), *(event for event in _of_boot(facts) if is_bad(event)))
    )


def _gpu(facts: Facts, bdf: str) -> Gpu | None:
    return next((gpu for gpu in facts.pcie.gpus.value or () if gpu.bdf == bdf), None)


def _no_gpu(facts: Facts) -> bool:
    return facts.pcie.gpus.value == ()


@check("gpu.fault", title="No card faulted on this boot")
def fault(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`gpu.fault`

    Why: a coredump file expires within an hour and a card goes on serving after a plain engine reset, so only the
    kernel log tells what happened on this boot (vllm#41663; compute-runtime#944, #946, #948). An engine reset alone is
    a warning; what ends a process context or the card is a failure; where the last word is "recovered through reset", a
    warning. A card without a fault is ok only when the log reaches back to the boot. Resets that go on while nobody
    holds a card are told: such a driver does not come to rest by itself (lab-host-facts 2.3).
    """
    readable = facts.kernel_log.events
    if readable.value is None:
        yield from _unread(facts)
        return
    gone, dead = lost(facts), wedged(facts)
    own = _signs(facts)
    cut = [event for event in _of_boot(facts) if event.kind in CUT]
    nameless = [event for event in own if not event.bdf and (event.kind != "lockup.hard" or driver_of(event))]
    unnamed = {driver_of(event) for event in (*nameless, *_nameless_loss(facts))} - {""}
    gap = log.window_gap(facts)
    subjects = _subjects(facts, [*own, *cut])
    for bdf in sorted({*subjects, *unlisted(facts)}):
        found = [event for event in own if event.bdf == bdf]
        gpu = _gpu(facts, bdf)
        dumped = gpu is not None and gpu.coredump.value is True
        short = [event for event in cut if event.bdf == bdf]
        if found or dumped:
            yield _fault(facts, bdf, found, dumped, bdf in dead, bdf in gone)
        elif bdf in gone or bdf in dead:
            id, said = ("gpu.lost", gone[bdf]) if bdf in gone else ("gpu.wedged", dead[bdf])
            status = Status.unknown if {event.kind for event in said} <= set(CUT) else Status.fail
            seen = "it left the bus" if id == "gpu.lost" else "its driver gave it up"
            seen = "whether its driver gave it up is cut off" if status is Status.unknown else seen
            yield Finding(
                "gpu.fault", log.gpu(bdf), status, seen, source=readable.source, cause=Cause(id, log.gpu(bdf))
            )
        elif short:
            seen = f"a line of its driver is cut off before it tells what happened; {log.span(short)}"
            yield Finding(
                "gpu.fault",
                log.gpu(bdf),
                Status.unknown,
                seen,
                "no fault on this boot",
                readable.source,
                "journalctl -k -b 0 --no-pager  # capture the log without a pager",
            )
        elif gpu is not None and gpu.driver.value in unnamed:
            seen = f"a fault of {gpu.driver.value} names no card, so it may be this one"
            id = "gpu.fault" if any(driver_of(event) == gpu.driver.value for event in nameless) else "gpu.lost"
            yield Finding(
                "gpu.fault", log.gpu(bdf), Status.unknown, seen, source=readable.source, cause=Cause(id, HOST)
            )
        elif gap:
            yield Finding(
                "gpu.fault", log.gpu(bdf), Status.unknown, f"window incomplete: {gap}", source=readable.source
            )
        else:
            yield Finding("gpu.fault", log.gpu(bdf), Status.ok, "no fault line on this boot", source=readable.source)
    cut_off = [event for event in cut if not event.bdf]
    if nameless:
        yield _fault(facts, "", nameless, False, False, False)
    elif cut_off:
        seen = f"a line of {driver_of(cut_off[0])} is cut off before it tells what happened; {log.span(cut_off)}"
        yield Finding("gpu.fault", HOST, Status.unknown, seen, source=readable.source)
    elif not subjects and _no_gpu(facts):
        yield Finding("gpu.fault", HOST, Status.not_applicable, seen="no GPU", source=facts.pcie.gpus.source)
    elif not subjects and facts.pcie.gpus.value is None:
        yield unknown("gpu.fault", facts.pcie.gpus)


def _unread(facts: Facts) -> Iterator[Finding]:
    """Without the log only a coredump that still exists says something."""
    reading = facts.kernel_log.events
    if _no_gpu(facts):
        yield Finding("gpu.fault", HOST, Status.not_applicable, seen="no GPU", source=facts.pcie.gpus.source)
        return
    known = cards(facts) if facts.pcie.gpus.value else ()
    for gpu in known:
        if gpu.coredump.value:
            yield _fault(facts, gpu.bdf, [], True, False, False)
        else:
            yield Finding(
                "gpu.fault",
                subject(gpu),
                Status.unknown,
                seen=f"{reading.unread}: {reading.detail}",
                source=reading.source,
                cause=log.ACCESS,
            )
    if not known:
        yield Finding("gpu.fault", HOST, Status.unknown, f"{reading.unread}: {reading.detail}", cause=log.ACCESS)


def _says(found: list[Event]) -> list[str]:
    """Words for what happened, each with what the lines add."""
    words = []
    for event in found:
        name = word(event.kind)
        if event.kind == "nvrm.xid":
            text = f"Xid {event.details.get('xid', '?')}"
        elif event.kind == "probe_failed":
            text = f"{driver_of(event)} could not start it"
        elif event.kind == "lockup.hard" and not event.bdf:
            text = f"hard lockup on CPU {event.details.get('cpu', '?')} inside {driver_of(event)}"
        elif event.kind in HOST_SIGNS:
            known = {key: event.details.get(key, "?") for key in ("process", "cpu", "file")}
            text = HOST_SIGNS[event.kind][1].format(driver=driver_of(event) or "the kernel", **known)
        else:
            text = SERIOUS.get(name) or MILD.get(name) or name.replace("_", " ")
        extra = [event.details.get(key, "") for key in ("engines", "codes")]
        if name == "page_fault" and event.details.get("addresses"):
            extra.append(f"at {event.details['addresses']}")
        told = " ".join(item for item in extra if item)
        words.append(f"{text} ({told})" if told else text)
    return list(dict.fromkeys(words))


def _is_serious(event: Event) -> bool:
    if event.kind == "nvrm.xid":
        return not set(event.details.get("xid", "").split(", ")) <= APPLICATION_XIDS
    if event.kind in HOST_SIGNS:
        return HOST_SIGNS[event.kind][0]
    if event.kind == "probe_failed":
        return True
    return word(event.kind) in SERIOUS


def _fault(facts: Facts, bdf: str, found: list[Event], dumped: bool, is_wedged: bool, is_lost: bool) -> Finding:
    serious = dumped or any(_is_serious(event) for event in found)
    if found and _recovered(found):
        serious = False
    words = _says(found)
    if dumped and not any("coredump" in text for text in words):
        words.append("a coredump exists")
    seen = ", ".join(words) + (f"; {log.span(found)}" if found else "")
    card = log.gpu(bdf) if bdf else HOST
    drivers = sorted({driver_of(event) for event in found} - {""})
    if not bdf and drivers:
        seen += f"; no line names the card{_one_of(facts, drivers)}"
    idle = _resets_alone(facts, found)
    if idle:
        seen += f"; {idle}"
    step = SHOW.format(bdf or f"-E '{'|'.join(drivers or ['drm', 'UBSAN'])}'")
    if idle:
        step = REBOOT
    if {"hung_task", "iommu.timeout"} & {event.kind for event in found} or "pm_underflow" in {
        word(event.kind) for event in found
    }:
        step = f"{step}  # save it, then reboot"
    if dumped:
        step = f"cp /sys/bus/pci/devices/{bdf}/devcoredump/data /root/coredump-{bdf}  # never write to it"
    cause = Cause("gpu.lost", card) if is_lost else Cause("gpu.wedged", card) if is_wedged else None
    if cause is None and {event.kind for event in found} == {"probe_failed"}:
        cause = Cause("gpu.enumeration", card)
    return Finding(
        "gpu.fault",
        card,
        Status.fail if serious else Status.warn,
        seen=seen,
        wanted="no fault on this boot",
        source=facts.kernel_log.events.source or "/sys/class/devcoredump",
        next_step=step,
        cause=cause,
        marks=log.marks(facts, found),
    )


def _resets_alone(facts: Facts, found: list[Event]) -> str:
    """What to tell of resets that go on while nobody holds a card, "" when they do not.

    A driver that resets an idle card again and again (the lab counted 360 a minute over three cards) stops only when it
    is loaded anew; a reset that a job left behind is over at once.
    """
    resets = [event for event in found if word(event.kind) in ("engine_reset", "gt_reset", "reset") and event.last >= 0]
    uptime, held = facts.identity.uptime.value, holding(facts).value
    if not resets or uptime is None or held != ():
        return ""
    ago = uptime - max(event.last for event in resets)
    most = max(event.peak_60s for event in resets)
    return (
        f"up to {most} resets a minute, the last {ago:.0f} s ago, while nobody holds a card" if ago <= GOES_ON else ""
    )


def _one_of(facts: Facts, drivers: list[str]) -> str:
    """Which cards a line without an address may mean, for a person."""
    found = [bdf for driver in drivers for bdf in log.of_driver(facts, driver)]
    return f" (one of {', '.join(found)})" if len(found) > 1 else ""


@check("gpu.wedged", title="No card is wedged")
def wedge(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`gpu.wedged`

    Why: a wedged card stays in lspci with its driver bound, so enumeration passes (raspberry-pi-pcie-devices#695). The
    tail of the line decides: "needs recovery" against "but recovered through reset" (cosmic-comp#2684). A timed-out job
    "in no process [-1]" is the driver's own: stopping the program does not help.
    """
    if facts.kernel_log.events.value is None:
        if not _no_gpu(facts):
            reading = facts.kernel_log.events
            seen = f"{reading.unread}: {reading.detail}"
            yield Finding("gpu.wedged", HOST, Status.unknown, seen, source=reading.source, cause=log.ACCESS)
        return
    gone = lost(facts)
    for bdf, found in sorted(wedged(facts).items()):
        kinds = {event.kind for event in found}
        status = Status.fail
        if kinds & set(WEDGED):
            seen = "the driver declared it wedged"
            found = [event for event in found if event.kind in (*WEDGED, "guc.load_failed")]
            if "guc.load_failed" in kinds:
                seen += " after the GuC did not load"
        elif kinds & set(KERNEL_JOB):
            seen = "suspected: a job of the driver itself timed out (in no process)"
        elif "guc.load_failed" in kinds:
            seen = "suspected: the GuC did not load"
        else:
            seen, status = 'a line says "device wedged", but its end, which decides, is cut off', Status.unknown
        failed = [event for event in _of_boot(facts) if event.kind == "probe_failed" and event.bdf == bdf]
        yield Finding(
            "gpu.wedged",
            log.gpu(bdf),
            status,
            seen=f"{seen}; {log.span(found)}",
            wanted="not wedged",
            source=facts.kernel_log.events.source,
            next_step=REBOOT,
            cause=Cause("gpu.lost", log.gpu(bdf))
            if bdf in gone
            else Cause("gpu.enumeration", log.gpu(bdf))
            if failed
            else None,
            marks=log.marks(facts, found),
        )


def _nameless_loss(facts: Facts) -> list[Event]:
    """Lines that say that a card left the bus, and not which."""
    return [event for event in _of_boot(facts) if event.kind in LOST and not event.bdf]


@check("gpu.lost", title="No card left the bus")
def loss(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`gpu.lost`

    Why: one lost card makes all of its functions fail, and errors on its link follow; that is one finding with its
    consequences, not five (nvidia-docker#1553). The order of the lines decides what is cause and what is consequence.
    """
    if facts.kernel_log.events.value is None:
        if not _no_gpu(facts):
            reading = facts.kernel_log.events
            seen = f"{reading.unread}: {reading.detail}"
            yield Finding("gpu.lost", HOST, Status.unknown, seen, source=reading.source, cause=log.ACCESS)
        return
    if nameless := _nameless_loss(facts):
        drivers = sorted({driver_of(event) for event in nameless} - {""})
        yield Finding(
            "gpu.lost",
            HOST,
            Status.fail,
            seen=f"a card fell off the bus, no line names it{_one_of(facts, drivers)}; {log.span(nameless)}",
            wanted="on the bus",
            source=facts.kernel_log.events.source,
            next_step="lspci -D -nn | grep -E 'VGA|3D|Display'  # which one is missing, or shows rev ff? then reboot",
            marks=log.marks(facts, nameless),
        )
    for bdf, found in sorted(lost(facts).items()):
        own = [event for event in found if event.bdf == bdf or event.kind == "slot.link_down"]
        others = sorted({event.bdf for event in found if event not in own})
        kinds = {event.kind for event in own}
        what = "fell off the bus"
        if not kinds & set(LOST):
            what = "its link went down" if "slot.link_down" in kinds else "does not come back from its sleep state"
        with_it = f", with its functions {', '.join(others)}" if others else ""
        yield Finding(
            "gpu.lost",
            log.gpu(bdf),
            Status.fail,
            seen=f"{what}{with_it}; {log.span(own)}",
            wanted="on the bus",
            source=facts.kernel_log.events.source,
            next_step="systemctl reboot  # then check power, riser and slot of this card",
            marks=log.marks(facts, found),
        )
        for other in others:
            said = [event for event in found if event.bdf == other]
            yield Finding(
                "gpu.lost",
                log.gpu(other),
                Status.fail,
                seen=f"function of the lost card; {log.span(said)}",
                source=facts.kernel_log.events.source,
                cause=Cause("gpu.lost", log.gpu(bdf)),
                marks=log.marks(facts, said),
            )


@check("gpu.state", title="No card is in survivability mode")
def state(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`gpu.state`

    Why: xpu-smi has reported survivability mode for a card that was serving (xpumanager#151); the driver's own file
    or its kernel line is the test, and a firmware flash on a false alarm does harm.
    """
    said: dict[str, list[Event]] = {}
    if facts.kernel_log.events.value is not None:
        for event in _of_boot(facts):
            if event.kind == "survivability":
                said.setdefault(event.bdf, []).append(event)
    without = not_listed("gpu.state", facts)
    if without is not None:
        yield without
    for gpu in cards(facts) if facts.pcie.gpus.value else ():
        if gpu.driver.value != "xe" and gpu.bdf not in said:
            if gpu.driver.value is None and gpu.vendor == gpu_ids.INTEL:
                yield replace(unknown("gpu.state", gpu.driver, subject(gpu)), cause=gone(facts, gpu))
            continue
        lines = said.pop(gpu.bdf, [])
        if lines or gpu.survivability.value:
            yield _survivability(facts, gpu.bdf, lines)
        elif gpu.survivability.value is False:
            yield Finding(
                "gpu.state", subject(gpu), Status.ok, "not in survivability mode", source=gpu.survivability.source
            )
        else:
            reading = gpu.survivability
            cause = cause_of(facts, gpu) if reading.unread == "faulted" else None
            seen = f"{reading.unread}: {reading.detail}"
            if cause is not None and cause.id == "gpu.runtime_status":
                seen = "not read: its power state is error, so its driver is left alone"
            yield Finding("gpu.state", subject(gpu), Status.unknown, seen, source=reading.source, cause=cause)
    for bdf, lines in sorted(said.items()):
        yield _survivability(facts, bdf, lines)


def _survivability(facts: Facts, bdf: str, lines: list[Event]) -> Finding:
    seen = "survivability mode" + (f"; {log.span(lines)}" if lines else "")
    return Finding(
        "gpu.state",
        log.gpu(bdf) if bdf else HOST,
        Status.fail,
        seen=seen,
        wanted="normal operation",
        source=facts.kernel_log.events.source or "/sys",
        next_step=f"cat /sys/bus/pci/devices/{bdf or '*'}/survivability_mode  # says which firmware failed",
        marks=log.marks(facts, lines),
    )
