"""Is every GPU there, bound to a driver that can use it, and is all of its memory in reach?"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from ..expectations import Expectation
from ..findings import HOST, Finding, Status, Subject, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.readings import gpu_ids
from ..onhost.readings.kernel_log import Event
from ..onhost.readings.pcie import Gpu

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


def _unbound(facts: Facts, gpu: Gpu, previous: Facts | None) -> tuple[str, str, str]:
    """Why no driver is bound: what was seen, the next step, the source."""
    drivers = gpu_ids.DRIVERS[gpu.vendor]
    kernel = facts.identity.kernel.value or "this kernel"
    log, source = facts.kernel_log, facts.kernel_log.events.source or "kernel log"
    words = [word for word in facts.pcie.force_probe.value or () if gpu.device in word.lower()]
    if failed := events(facts, gpu.bdf, "probe_failed"):
        details = failed[-1].details
        error = details.get("error", "").rpartition(", ")[2]
        before = previous.identity.kernel.value if previous is not None else None
        entry = f" ({before})" if before and before != kernel else ""
        seen = f"the probe of {details.get('driver') or drivers[0]} failed"
        return (
            f"{seen}{f' with error {error_name(error)}' if error else ''}",
            f"boot the previous kernel entry{entry}",
            source,
        )
    if events(facts, gpu.bdf, "not_supported_by_driver"):
        seen = f"the driver declines {gpu.device}: not supported by kernel {kernel}"
        if any(quoted(word) for word in words):
            fixed = " ".join(unquoted(word) for word in words)
            return f"{seen}, and force_probe is quoted", f"kernel command line: {fixed}", source
        return (
            seen,
            f"install a newer kernel, or add {drivers[0]}.force_probe={gpu.device} to the kernel command line",
            source,
        )
    refusals = [word for word in words if f"!{gpu.device}" in word.lower()]
    bound = {one.driver for one in facts.pcie.functions.value or ()}
    loaded = [one for one in drivers if one in (facts.pcie.drivers.value or ()) or one in bound]
    if refusals and all(any(word.lstrip('"').startswith(one) for word in refusals) for one in loaded or drivers[:1]):
        return (
            f"{' '.join(refusals)} keeps the driver away",
            f"remove {refusals[0]} from the kernel command line",
            "/proc/cmdline",
        )
    if not loaded:
        if facts.pcie.drivers.value is None:
            return "no driver is bound", f"modprobe {drivers[0]}", gpu.driver.source
        return (
            f"no driver is loaded for it ({' or '.join(drivers)})",
            f"modprobe {drivers[0]}",
            facts.pcie.drivers.source,
        )
    if log.events.value is None or log.complete.value is False:
        seen = (
            f"{loaded[0]} is loaded and did not take it; the log does not say why ({log.events.unread or 'incomplete'})"
        )
        return seen, f"journalctl -k -b 0 --no-pager | grep {gpu.bdf}", facts.pcie.drivers.source
    # A registered driver is offered every device whose id it lists, and a probe that fails is logged.
    useless = ", and force_probe cannot help" if words else ""
    seen = f"{loaded[0]} is loaded and does not know {gpu.device}: kernel {kernel} is too old for it{useless}"
    return (
        seen,
        f"install a newer kernel: {loaded[0]} of {kernel} does not list {gpu.vendor}:{gpu.device}",
        gpu.driver.source,
    )


def _nodes(facts: Facts, gpu: Gpu) -> tuple[Status, str, str]:
    """Status, what was seen and the source of the device nodes of a bound GPU."""
    driver, drm = gpu.driver.value, gpu.drm
    if driver not in ("xe", "i915", "amdgpu"):
        return Status.ok, "", drm.source  # other drivers make no render node by themselves
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
        )

    if driver.value is None:
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
    trace but its absence. Sysfs decides; xpu-smi is not asked here (xpumanager#92: it saw none of a healthy card).
    """
    for function in need(facts.pcie.functions):
        if not (function.vendor and function.device and function.class_code):
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
    its line about VRAM are three witnesses; any one of them is enough (media-driver#1917).
    """
    judged = [gpu for gpu in cards(facts) if gpu.vendor == gpu_ids.INTEL]
    if not judged:
        yield Finding("rebar", HOST, Status.not_applicable, seen="no Intel card in use", source=facts.pcie.gpus.source)
    for gpu in judged:
        wanted = wanted_bar(facts, gpu)
        small = events(facts, gpu.bdf, "bar.small")
        bar = gpu.bars.value[2] if gpu.bars.value is not None else None
        if small and (bar is None or bar > SMALL):
            visible = _number(small[-1].details.get("visible", ""))
            seen = f"the driver says small BAR{f': {size(visible)} in reach' if visible else ''}"
            bad, source = True, facts.kernel_log.events.source or "kernel log"
        elif bar is None:
            yield unknown("rebar", gpu.bars, subject(gpu))
            continue
        else:
            seen = f"BAR 2 is {size(bar)}" if bar else "BAR 2 has no address"
            bad, source = bar <= SMALL or bar < wanted, gpu.bars.source
        if events(facts, gpu.bdf, "bar.resize_failed") and bad:
            seen += "; the kernel tried to resize it and failed"
        if is_virtual(facts):
            window = f" and a 64-bit window of {size(wanted)} or more" if wanted else ""
            step = f"on the hypervisor: resizable BAR for the card at {gpu.bdf}{window}"
        else:
            step = FIRMWARE
        yield Finding(
            "rebar",
            subject(gpu),
            Status.fail if bad else Status.ok,
            seen=seen,
            wanted=f"{size(wanted)} or more" if wanted else f"more than {size(SMALL)}",
            source=source,
            next_step=step if bad else "",
        )
