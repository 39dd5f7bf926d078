"""Is every GPU there, bound to a driver that can use it, and is all of its memory in reach?"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from ..expectations import Expectation
from ..findings import HOST, Cause, Finding, Status, Subject, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.readings import gpu_ids
from ..onhost.readings.kernel_log import Event
from ..onhost.readings.pcie import Gpu, last_driver, path_bdfs

SMALL = 256 << 20  # the size of BAR 2 without resizable BAR, on every Intel card
FIRMWARE = "BIOS: enable Above 4G Decoding and Re-Size BAR Support, disable CSM"


def subject(gpu: Gpu) -> Subject:
    return Subject("gpu", gpu.bdf)


def name(gpu: Gpu) -> str:
    return gpu_ids.name_of(gpu.vendor, gpu.device)


def is_virtual(facts: Facts) -> bool:
    """Is this a virtual machine? Xen's first domain sees the real PCI bus, so it is none."""
    word = facts.identity.virtualization.value
    if word is not None:
        return word not in ("none", "xen-dom0")
    return bool(facts.lscpu.hypervisor.value)


def held(gpu: Gpu) -> bool:
    """Is the card held for a virtual machine or a program in user space?"""
    return gpu_ids.holds_for_another(gpu.driver.value or "")


def cards(facts: Facts) -> tuple[Gpu, ...]:
    """The cards of this host: GPUs that are neither part of the processor nor virtual functions nor held for others.

    An unbound card is one of them: it should be in use.
    """
    return tuple(gpu for gpu in need(facts.pcie.gpus) if not (gpu.integrated or gpu.vf or held(gpu)))


def events(facts: Facts, bdf: str, *kinds: str) -> list[Event]:
    """Events of this boot about one device."""
    return [
        event
        for event in facts.kernel_log.events.value or ()
        if event.bdf == bdf and event.kind in kinds and not event.previous_boot
    ]


def logged(facts: Facts) -> dict[str, Event]:
    """Devices that a GPU driver has spoken of on this boot, and its newest event, by address."""
    found: dict[str, Event] = {}
    for event in facts.kernel_log.events.value or ():
        if event.bdf and not event.previous_boot and gpu_ids.speaker(event.kind, event.details):
            known = found.get(event.bdf)
            found[event.bdf] = event if known is None or event.order_last > known.order_last else known
    return found


def unlisted(facts: Facts) -> list[str]:
    """GPUs that the kernel log names and that the readings of PCI do not have."""
    there = {gpu.bdf for gpu in facts.pcie.gpus.value or ()}
    return sorted(bdf for bdf in logged(facts) if bdf not in there)


def gone(facts: Facts, gpu: Gpu) -> Cause | None:
    """The finding that a card left the bus, where it does not answer."""
    return Cause("gpu.lost", subject(gpu)) if gpu.answers.value is False else None


def error_name(number: str) -> str:
    """An errno of the kernel for a person.

    >>> error_name("-105")
    '-105 (ENOBUFS)'
    """
    known = errno.errorcode.get(abs(int(number))) if re.fullmatch(r"-?\d+", number) else None
    return f"{number} ({known})" if known else number


def quoted(word: str) -> bool:
    """Has a force_probe value characters that the driver does not understand, such as the quotes of the kernel's hint?

    Double quotes are removed by the kernel itself (lib/cmdline.c).

    >>> quoted("xe.force_probe='56a1'"), quoted('xe.force_probe="56a1"'), quoted("i915.force_probe=!56a1,4905")
    (True, False, False)
    """
    value = word.replace('"', "").partition("=")[2]
    return not re.fullmatch(r"[0-9a-fA-Fx,!*]*", value)


def unquoted(word: str) -> str:
    head, _, value = word.replace('"', "").partition("=")
    return f"{head}={re.sub(r'[^0-9a-fA-Fx,!*]', '', value)}"


def _kernel(facts: Facts) -> str:
    return f"kernel {facts.identity.kernel.value}" if facts.identity.kernel.value else "this kernel"


def _refused(facts: Facts, bdf: str, device: str, previous: Facts | None) -> tuple[str, str, str] | None:
    """Why no driver is bound by the driver's own word: what was seen, the next step, the source; None without one.

    device: its id, ``""`` where only the log tells it.
    """
    kernel = _kernel(facts)
    source = facts.kernel_log.events.source or "kernel log"
    if failed := [one for one in events(facts, bdf, "probe_failed") if gpu_ids.speaker(one.kind, one.details)]:
        details = failed[-1].details
        error = details.get("error", "").rpartition(", ")[2]
        before = previous.identity.kernel.value if previous is not None else None
        entry = f" ({before})" if before and before != facts.identity.kernel.value else ""
        seen = f"the probe of {gpu_ids.speaker('', details)} failed"
        return (
            f"{seen}{f' with error {error_name(error)}' if error else ''}",
            f"boot the previous kernel entry{entry}",
            source,
        )
    if blocked := events(facts, bdf, "probe_blocked"):
        driver = gpu_ids.speaker(blocked[-1].kind, blocked[-1].details) or "the driver"
        words = [word for word in facts.pcie.force_probe.value or () if "!" in word]
        return (
            f"force_probe keeps {driver} away{f': {words[0]}' if words else ''}",
            f"remove {words[0] if words else f'{driver}.force_probe=!…'} from the kernel command line",
            source,
        )
    if declined := events(facts, bdf, "not_supported_by_driver"):
        driver = gpu_ids.speaker(declined[-1].kind, declined[-1].details) or "xe"
        device = device or declined[-1].details.get("device", "").rpartition(", ")[2].lower()
        words = _force_probe(facts, device)
        seen = f"the driver declines {device}: not supported by {kernel}"
        if any(quoted(word) for word in words):
            fixed = " ".join(unquoted(word) for word in words)
            return f"{seen}, and force_probe is quoted", f"kernel command line: {fixed}", source
        return (
            seen,
            f"install a newer kernel, or add {driver}.force_probe={device} to the kernel command line",
            source,
        )
    return None


def _force_probe(facts: Facts, device: str) -> list[str]:
    """Words of the kernel command line that set force_probe for a device."""
    return [word for word in facts.pcie.force_probe.value or () if device and device in word.lower()]


def _unbound(facts: Facts, gpu: Gpu, previous: Facts | None) -> tuple[str, str, str]:
    """Why no driver is bound: what was seen, the next step, the source."""
    drivers = gpu_ids.DRIVERS[gpu.vendor]
    kernel = _kernel(facts)
    log = facts.kernel_log
    words = _force_probe(facts, gpu.device)
    if (refused := _refused(facts, gpu.bdf, gpu.device, previous)) is not None:
        return refused
    refusals = [word for word in words if f"!{gpu.device}" in word.lower()]
    known = {one.driver for one in facts.pcie.functions.value or ()}
    known |= {*(facts.pcie.drivers.value or ()), *(facts.pcie.modules.value or ())}
    loaded = [one for one in drivers if one in known]
    told = facts.pcie.drivers if facts.pcie.modules.value is None else facts.pcie.modules
    if refusals and all(any(word.lstrip('"').startswith(one) for word in refusals) for one in loaded or drivers[:1]):
        return (
            f"{' '.join(refusals)} keeps the driver away",
            f"remove {refusals[0]} from the kernel command line",
            "/proc/cmdline",
        )
    if not loaded:
        if told.value is None:
            seen = f"no driver is bound; whether {' or '.join(drivers)} is loaded was not read"
            return seen, f"lspci -nnk -s {gpu.bdf}; lsmod | grep -E '^({'|'.join(drivers)}) '", gpu.driver.source
        return (f"no driver is loaded for it ({' or '.join(drivers)})", f"modprobe {drivers[0]}", told.source)
    if log.events.value is None or log.complete.value is False:
        seen = (
            f"{loaded[0]} is loaded and did not take it; the log does not say why ({log.events.unread or 'incomplete'})"
        )
        return seen, f"journalctl -k -b 0 --no-pager | grep {gpu.bdf}", told.source
    # A registered driver is offered every device whose id it lists, and a probe that fails is logged.
    useless = ", and force_probe cannot help" if words else ""
    seen = f"{loaded[0]} is loaded and does not know {gpu.device}: {kernel} is too old for it{useless}"
    return (
        seen,
        f"install a newer kernel: the {loaded[0]} of {kernel} does not list {gpu.vendor}:{gpu.device}",
        gpu.driver.source,
    )


def _nodes(facts: Facts, gpu: Gpu) -> tuple[Status, str, str]:
    """Status, what was seen and the source of the device nodes of a bound GPU."""
    driver, drm = gpu.driver.value, gpu.drm
    if driver not in ("xe", "i915", "amdgpu"):
        return Status.ok, "", drm.source  # other drivers make no render node by themselves
    if drm.value is None and drm.unread == "absent":
        return Status.ok, f"which is bound; {drm.detail}", gpu.driver.source
    if drm.value is None:
        return Status.unknown, f"device nodes {drm.unread}: {drm.detail}", drm.source
    names = [node.name for node in drm.value]
    if not any(one.startswith("renderD") for one in names):
        return Status.fail, f"no render node ({' '.join(names) or 'none at all'})", drm.source
    every = [node for other in facts.pcie.gpus.value or () for node in other.drm.value or ()]
    missing = [node.name for node in drm.value if node.mode.unread == "absent"]
    if missing and any(node.mode.value is not None for node in every):
        return Status.fail, f"no /dev/dri/{missing[0]}", f"/dev/dri/{missing[0]}"
    return Status.ok, " ".join(names), drm.source


def _state(facts: Facts, gpu: Gpu, previous: Facts | None) -> Finding:
    """Enumeration of one GPU that is on the bus."""
    driver, wanted = gpu.driver, f"bound to {' or '.join(gpu_ids.DRIVERS[gpu.vendor])}"

    def finding(status: Status, seen: str, source: str = "", next_step: str = "") -> Finding:
        return Finding(
            "gpu.enumeration",
            subject(gpu),
            status,
            seen=f"{name(gpu)}: {seen}",
            wanted="" if status is Status.info else wanted,
            source=source or driver.source,
            next_step=next_step,
            cause=gone(facts, gpu),
        )

    if gpu.answers.value is False:
        return finding(Status.fail, "listed, but it does not answer", gpu.answers.source)
    if driver.value is None:
        refused = _refused(facts, gpu.bdf, gpu.device, previous)
        if refused is not None and not last_driver(facts.kernel_log.events.value or (), gpu.bdf):
            return finding(Status.fail, f"on the bus, but unbound: {refused[0]}", refused[2], refused[1])
        return unknown("gpu.enumeration", driver, subject(gpu))
    if gpu.vf:
        return finding(Status.info, "a virtual function, not a card in use here")
    if held(gpu):
        return finding(Status.info, f"held by {driver.value}, not a card in use here")
    if gpu.integrated and not driver.value:
        return finding(Status.info, "part of the processor, no driver bound")
    if not driver.value:
        seen, step, source = _unbound(facts, gpu, previous)
        return finding(Status.fail, f"on the bus, but unbound: {seen}", source, step)
    if driver.value not in gpu_ids.DRIVERS[gpu.vendor]:
        return finding(
            Status.fail, f"bound to {driver.value}", next_step=f"ls -l /sys/bus/pci/devices/{gpu.bdf}/driver"
        )
    if gpu.survivability.value:
        step = "read the kernel log for the reason; the card wants a firmware update by its vendor's tool"
        return finding(Status.fail, "in survivability mode", gpu.survivability.source, step)
    status, seen, source = _nodes(facts, gpu)
    step = f"journalctl -k -b 0 --no-pager | grep {gpu.bdf}" if status is Status.fail else ""
    return finding(status, f"{driver.value}{f', {seen}' if seen else ''}", source, step)


def _named(facts: Facts, bdf: str, previous: Facts | None) -> Finding | None:
    """The finding for a GPU that only the kernel log names, where a driver says that it did not take it."""
    refused = _refused(facts, bdf, "", previous)
    if refused is None or last_driver(facts.kernel_log.events.value or (), bdf):
        return None
    seen, step, source = refused
    return Finding(
        "gpu.enumeration", Subject("gpu", bdf), Status.fail, f"unbound: {seen}", "bound to its driver", source, step
    )


def _loss_logged(facts: Facts, gpu: Gpu) -> bool:
    """Does the kernel log say itself that the card left the bus?"""
    path = path_bdfs(gpu)
    return any(
        (event.kind in ("gpu.lost", "nvrm.lost", "d3_failed") and event.bdf == gpu.bdf)
        or (event.kind == "slot.link_down" and event.bdf in path)
        for event in facts.kernel_log.events.value or ()
        if not event.previous_boot
    )


def _expected(facts: Facts, expectation: Expectation, previous: Facts | None) -> Iterator[Finding]:
    """Cards that should be there and are not."""
    wanted = expectation.gpus
    present = cards(facts)
    held_ones = {gpu.bdf for gpu in facts.pcie.gpus.value or () if held(gpu)}
    source = facts.pcie.gpus.source
    missing = sorted(set(wanted.bdfs) - {gpu.bdf for gpu in present})
    for bdf in missing:
        yield Finding(
            "gpu.enumeration",
            Subject("gpu", bdf),
            Status.fail,
            seen="held for a virtual machine" if bdf in held_ones else "not on the bus",
            wanted="a card in use",
            source=source,
            next_step=f"check power and seating of the card at {bdf}, then cold boot" if bdf not in held_ones else "",
        )
    ids = tuple(one.lower().removeprefix("0x") for one in wanted.ids)
    absent = [one for one in ids if one not in {gpu.device for gpu in present}]
    if absent:
        yield Finding(
            "gpu.enumeration",
            HOST,
            Status.fail,
            seen=f"no card with id {', '.join(absent)}",
            wanted=f"ids {', '.join(ids)}",
            source=source,
            next_step="lspci -D -nn -d ::0300",
        )
    counted = [gpu for gpu in present if not ids or gpu.device in ids]
    if wanted.count is not None and len(counted) + len(missing) < wanted.count and not absent:
        before = {gpu.bdf for gpu in cards(previous)} if previous is not None and previous.pcie.gpus.value else set()
        gone = sorted(before - {gpu.bdf for gpu in present})
        named = f"; gone since the previous read: {', '.join(gone)}" if gone else ""
        there = f" ({', '.join(gpu.bdf for gpu in counted)})" if counted else ""
        yield Finding(
            "gpu.enumeration",
            HOST,
            Status.fail,
            seen=f"{len(counted)} of {wanted.count} cards{there}{named}",
            wanted=f"{wanted.count} cards",
            source=source,
            next_step="check power and seating of the missing card, then cold boot",
        )


@check("gpu.enumeration", title="Every GPU is on the bus, bound to a driver that can use it, and has its device nodes")
def enumeration(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`gpu.enumeration`

    Why: a loaded module is not a bound device (ZimaOS#491: xe loaded, e223 unknown to that kernel, no /dev/dri), a card
    in lspci is not a card in use (nixpkgs#448998: probe failed with -105), and a card that fell off the bus leaves no
    trace but its absence. Sysfs decides; xpu-smi is not asked here (xpumanager#92: it saw none of a healthy card). What
    a part of a host does not hold is not judged: a card whose driver was not recorded is neither bound nor unbound. A
    card that reads all ones has left the bus although it is still listed (pciutils: "rev ff", header type 7f), unless
    it is in D3cold, which reads the same.
    """
    named = [finding for bdf in unlisted(facts) if (finding := _named(facts, bdf, previous)) is not None]
    yield from named
    told = {finding.subject.name for finding in named}
    for function in need(facts.pcie.functions):
        if gpu_ids.may_be_gpu(function.vendor, function.class_code) and function.bdf not in told:
            yield Finding(
                "gpu.enumeration",
                Subject("gpu", function.bdf),
                Status.unknown,
                seen="its ids could not be read, so it may be a GPU",
                source=f"/sys/bus/pci/devices/{function.bdf}",
            )
    gpus = need(facts.pcie.gpus)
    for gpu in gpus:
        yield _state(facts, gpu, previous)
        if gone(facts, gpu) is not None and not _loss_logged(facts, gpu):
            yield Finding(
                "gpu.lost",
                subject(gpu),
                Status.fail,
                seen=f"{name(gpu)} is listed, but it does not answer: it reads all ones",
                wanted="on the bus",
                source=gpu.answers.source,
                next_step="systemctl reboot  # then check power, riser and slot of this card",
            )
    yield from _expected(facts, expectation, previous)
    if not gpus and not expectation.gpus.expected:
        yield Finding(
            "gpu.enumeration",
            HOST,
            Status.not_applicable,
            seen="no GPU, and none expected",
            source=facts.pcie.gpus.source,
        )


@check("gpu.cmdline", title="force_probe on the kernel command line is written so that the driver understands it")
def cmdline(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`gpu.cmdline`

    Why: the kernel's own hint prints the id in single quotes, but only double quotes are removed from a value, so
    ``xe.force_probe='56a1'`` names no device (raspberry-pi-pcie-devices#510).
    """
    words = need(facts.pcie.force_probe)
    wrong = [word for word in words if quoted(word)]
    source = facts.pcie.force_probe.source
    if wrong:
        yield Finding(
            "gpu.cmdline",
            HOST,
            Status.warn,
            seen=f"{' '.join(wrong)}: the quotes are part of the value",
            wanted=" ".join(unquoted(word) for word in wrong),
            source=source,
            next_step=f"kernel command line: {' '.join(unquoted(word) for word in wrong)}",
        )
    else:
        seen = " ".join(words) or "no force_probe"
        yield Finding("gpu.cmdline", HOST, Status.ok if words else Status.not_applicable, seen=seen, source=source)


def size(number: int) -> str:
    """Bytes for a person.

    >>> size(32 << 30), size(256 << 20)
    ('32 GiB', '256 MiB')
    """
    return f"{number >> 30} GiB" if number >= 1 << 30 else f"{number >> 20} MiB"


def _number(text: str) -> int:
    """The last of the numbers that the details of an event hold; 0 where there is none."""
    found = re.findall(r"0x[0-9a-f]+", text.lower())
    return int(found[-1], 16) if found else 0


def small_by_log(facts: Facts, bdf: str, vram: int) -> tuple[str, int] | None:
    """What the driver says of a BAR that does not reach all memory, and the memory; None where it says no such thing.

    vram: bytes, 0 when not known. A BAR is a power of two, so one that is too small reaches two thirds at most; what
    the driver keeps for itself is far less than a quarter.
    """
    for event in reversed(events(facts, bdf, "bar.small", "bar.vram", "bar.visible")):
        size_, visible = (_number(event.details.get(key, "")) for key in ("size", "visible"))
        memory = size_ or vram
        if event.kind == "bar.small" or (visible and memory and visible < memory * 3 // 4):
            of = f" of {size(memory)}" if memory else ""
            return f"the driver says small BAR{f': {size(visible)}{of} in reach' if visible else ''}", memory
    return None


def unresized(facts: Facts, bdf: str) -> tuple[str, int] | None:
    """That the driver could not resize the BAR, and 0, where no line tells what size it has after that."""
    if events(facts, bdf, "bar.resize_failed") and not events(facts, bdf, "bar.resized", "bar.vram", "bar.visible"):
        return "the driver could not resize the BAR", 0
    return None


def wanted_bar(facts: Facts, gpu: Gpu) -> int:
    """Bytes that BAR 2 should have: VRAM rounded up to a power of two, no more than the card offers; 0 not known."""
    known = gpu_ids.product(gpu.vendor, gpu.device)
    vram = known.vram if known is not None and known.vram is not None else 0
    for event in events(facts, gpu.bdf, "bar.vram", "bar.small"):
        vram = vram or _number(event.details.get("size", ""))
    offered = max(gpu.bar_sizes.value or (0,))
    rounded = 1 << (vram - 1).bit_length() if vram else 0
    return min(rounded, offered) if rounded and offered else rounded or offered


@check("rebar", title="All memory of a card is in reach of the processor (resizable BAR)")
def rebar(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`rebar`

    Why: with a BAR of 256 MiB the compute runtime refuses an xe card, which then vanishes from Level Zero although
    lspci and the driver show it (compute-runtime#872). The size of BAR 2, the driver's line "Small BAR device" and
    its line about VRAM are three witnesses; any one of them is enough (media-driver#1917). Level Zero's own refusal,
    printed by xpu-smi, is one where nothing else was read, and a warning where sysfs disagrees.
    """
    for bdf in unlisted(facts):
        if (said := small_by_log(facts, bdf, 0) or unresized(facts, bdf)) is not None:
            least = 1 << (said[1] - 1).bit_length() if said[1] else 0
            source = facts.kernel_log.events.source or "kernel log"
            step = _bar_step(facts, bdf, least)
            yield Finding("rebar", Subject("gpu", bdf), Status.fail, said[0], _bar_words(least), source, step)
    judged = [gpu for gpu in cards(facts) if gpu.vendor == gpu_ids.INTEL]
    if not judged:
        yield Finding("rebar", HOST, Status.not_applicable, seen="no Intel card in use", source=facts.pcie.gpus.source)
    for gpu in judged:
        wanted = wanted_bar(facts, gpu)
        known = gpu_ids.product(gpu.vendor, gpu.device)
        small = small_by_log(facts, gpu.bdf, known.vram or 0 if known is not None else 0)
        refused = gpu.bdf in (facts.xpu_smi.small_bars.value or ())
        bar = gpu.bars.value[2] if gpu.bars.value is not None else None
        small = small or (unresized(facts, gpu.bdf) if bar is None else None)
        warned = False
        if (cause := gone(facts, gpu)) is not None:
            seen = "the card does not answer; what lspci prints then is the kernel's memory of it"
            yield Finding("rebar", subject(gpu), Status.unknown, seen, source=gpu.answers.source, cause=cause)
            continue
        if small is not None and (bar is None or bar > SMALL):
            seen, bad, source = small[0], True, facts.kernel_log.events.source or "kernel log"
        elif refused and (bar is None or (bar > SMALL and bar >= wanted)):
            seen = "Level Zero says small BAR" + (f", while BAR 2 is {size(bar)}" if bar else "")
            bad, warned, source = True, bar is not None, facts.xpu_smi.small_bars.source
        elif bar is None:
            yield unknown("rebar", gpu.bars, subject(gpu))
            continue
        else:
            seen = f"BAR 2 is {size(bar)}" if bar else "BAR 2 has no address"
            bad, source = bar <= SMALL or bar < wanted, gpu.bars.source
        if events(facts, gpu.bdf, "bar.resize_failed") and bad:
            seen += "; the kernel tried to resize it and failed"
        yield Finding(
            "rebar",
            subject(gpu),
            Status.warn if warned else Status.fail if bad else Status.ok,
            seen=seen,
            wanted=_bar_words(wanted),
            source=source,
            next_step=_bar_step(facts, gpu.bdf, wanted) if bad else "",
        )


def _bar_words(wanted: int) -> str:
    return f"{size(wanted)} or more" if wanted else f"more than {size(SMALL)}"


def _bar_step(facts: Facts, bdf: str, wanted: int) -> str:
    """What to do about a BAR that is too small. wanted: bytes, 0 when not known."""
    if not is_virtual(facts):
        return FIRMWARE
    window = f" and a 64-bit window of {size(wanted)} or more" if wanted else ""
    return f"on the hypervisor: resizable BAR for the card at {bdf}{window}"
