"""Do the tools see what the kernel sees? They are witnesses: what they say never passes or fails a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..expectations import Expectation
from ..findings import HOST, Cause, Finding, Status, Subject, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.reader import Reading
from ..onhost.readings.pcie import Gpu
from ..onhost.readings.xpu_smi import DRIVERS, INTEL, LIST_JSON, SURVIVABILITY, SmiDevice, numbers
from .gpu import SMALL, cards, subject

TOOL = Subject("tool", "xpu-smi")
XE_SUPPORT = (1, 3)
REGRESSIONS = ((2, 0, 1), (2, 1, 0))  # names and temperatures missing, devices missing: intel/xpumanager#158
DAEMON = re.compile(r"(?i)service status error")
ORDER = (Status.warn, Status.unknown, Status.info)


class Problem(NamedTuple):
    status: Status
    text: str


def plural(count: int, what: str) -> str:
    """A count with its word.

    >>> plural(1, "bound GPU"), plural(2, "bound GPU")
    ('1 bound GPU', '2 bound GPUs')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


def survives(facts: Facts) -> bool | None:
    """Does the kernel say that a card is in survivability mode? None: its word could not be read."""
    says = [gpu.survivability.value for gpu in facts.pcie.gpus.value or () if gpu.vendor == INTEL]
    events = facts.kernel_log.events.value
    if any(says) or any(event.kind == "survivability" and not event.previous_boot for event in events or ()):
        return True
    return False if None not in says or events is not None else None


def unseen(bound: Iterable[Gpu], devices: tuple[SmiDevice, ...]) -> list[Gpu]:
    """Bound cards that xpu-smi does not list."""
    seen = {device.bdf for device in devices}
    return [gpu for gpu in bound if gpu.bdf not in seen]


def blame(version: str, missing: list[Gpu], bound: list[Gpu]) -> str:
    """Why cards are missing from the list, as far as it is known; else which."""
    number = numbers(version)
    if number and number < XE_SUPPORT and any(gpu.driver.value == "xe" for gpu in missing):
        return f"version before 1.3 has no xe support ({version})"
    if number[:3] in REGRESSIONS:
        return f"known regression of {version}"
    return "" if len(missing) == len(bound) else ", ".join(gpu.bdf for gpu in missing)


def compared(facts: Facts, bound: list[Gpu], devices: tuple[SmiDevice, ...], version: str) -> Iterator[Problem]:
    """What a list of devices has wrong, reconciled by address with sysfs."""
    missing = unseen(bound, devices)
    nameless = [device for device in devices if not device.name]
    anonymous = sum(not device.bdf for device in devices)
    if missing:
        why = blame(version, missing, bound) or (anonymous and f"{plural(anonymous, 'device')} without an address")
        yield Problem(Status.warn, f"does not see {plural(len(missing), 'bound GPU')}" + (f": {why}" if why else ""))
    elif nameless:
        known = f": known regression of {version}" if numbers(version)[:3] in REGRESSIONS else ""
        who = ", ".join(device.bdf or f"device {device.number}" for device in nameless)
        yield Problem(Status.warn, f"gives no name for {who}{known}")
    there = {function.bdf for function in facts.pcie.functions.value or ()}
    strange = sorted({device.bdf for device in devices if device.bdf} - there)
    if there and strange:
        yield Problem(Status.warn, f"lists {', '.join(strange)}, which the kernel does not have")
    for device in devices:
        if device.state and device.state.lower() != "normal" and not SURVIVABILITY.search(device.state):
            yield Problem(Status.info, f"says of {device.bdf or device.number}: {device.state}")


def judged(facts: Facts, bound: list[Gpu], version: str) -> Iterator[Problem]:
    """What both answers together have wrong."""
    smi = facts.xpu_smi
    if smi.survivability.value or any(
        SURVIVABILITY.search(device.state) for device in (*(smi.devices.value or ()), *(smi.listed.value or ()))
    ):
        truth = survives(facts)
        if truth is None:
            yield Problem(Status.unknown, "reports survivability, the kernel's own word could not be read")
        elif truth:
            yield Problem(Status.info, "reports survivability, as the kernel does")
        else:
            yield Problem(Status.warn, "reports survivability, kernel disagrees")
    for answer in (smi.devices, smi.listed):
        if answer.value is not None:
            yield from compared(facts, bound, answer.value, version)
        elif answer.unread == "exit":
            yield Problem(Status.warn, answer.detail)
        elif answer.unread == "timeout":
            yield Problem(Status.warn, "does not answer")
        elif answer.unread != "tool_missing":
            yield Problem(Status.unknown, f"{answer.unread}: {answer.detail}")


def fault_of(facts: Facts) -> Cause | None:
    """The finding that keeps xpu-smi from being run: that of the card which faulted, or of the log that was refused."""
    reading = facts.xpu_smi.devices
    if reading.unread != "faulted":
        access = facts.kernel_log.faulted.unread == reading.unread or facts.kernel_log.complete.value is not True
        return Cause("log.access", HOST) if access else None
    card = next((gpu for gpu in facts.pcie.gpus.value or () if reading.detail.startswith(gpu.bdf)), None)
    if card is None:
        return None
    events = facts.kernel_log.events.value or ()
    kinds = {event.kind.partition(".")[2] or event.kind for event in events if event.bdf == card.bdf}
    if card.runtime_status.value == "error" and not kinds:
        return Cause("gpu.runtime_status", subject(card))
    if not card.coredump.value and "recovered" not in kinds:
        for id, word in (("gpu.lost", "lost"), ("gpu.wedged", "wedged"), ("gpu.state", "survivability")):
            if word in kinds:
                return Cause(id, subject(card))
    return Cause("gpu.fault", subject(card))


def small(gpu: Gpu) -> bool:
    bars: Reading[tuple[int, ...]] = gpu.bars
    return bars.value is not None and len(bars.value) > 2 and 0 < bars.value[2] <= SMALL


@check("tool.xpu_smi", title="xpu-smi sees the cards that the kernel drives", subject=TOOL)
def xpu_smi(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """Its list is compared with sysfs by address; a difference is a warning about the tool, not about a card.

    Why: versions before 1.3 have no xe support and answer with a null list and exit status 0
    (intel/xpumanager#92), 2.0.1 and 2.1.0 lose names and devices (#158), 2.0.1 reports survivability mode of
    healthy cards and crashes (#151): acting on it would flash firmware into a sound card.
    """
    smi = facts.xpu_smi
    bound = [gpu for gpu in cards(facts) if gpu.vendor == INTEL and gpu.driver.value in DRIVERS]
    if not bound:
        unread = next((gpu for gpu in cards(facts) if gpu.vendor == INTEL and gpu.driver.value is None), None)
        if unread is not None:
            yield unknown("tool.xpu_smi", unread.driver, TOOL)
            return
        intel = any(gpu.vendor == INTEL for gpu in need(facts.pcie.gpus))
        seen = "no Intel card is bound to a driver" if intel else "no Intel GPU"
        yield Finding("tool.xpu_smi", TOOL, Status.not_applicable, seen=seen, source=facts.pcie.gpus.source)
        return
    if facts.options.xpu_smi == "never":
        yield Finding("tool.xpu_smi", TOOL, Status.not_applicable, seen="was not to be run", source="xpu-smi")
        return
    if smi.devices.source != " ".join(LIST_JSON):  # what kept it from being run is the source then
        seen = f"not run: {smi.devices.detail}"
        source = smi.devices.source
        yield Finding("tool.xpu_smi", TOOL, Status.unknown, seen=seen, source=source, cause=fault_of(facts))
        return
    if "loading shared libraries" in smi.devices.detail:  # the loader of libraries exits with 127, as a shell does
        seen = f"is installed and cannot start: {smi.devices.detail}"
        yield Finding(
            "tool.xpu_smi", TOOL, Status.warn, seen, source=smi.devices.source, next_step="ldd $(which xpu-smi)"
        )
        return
    if smi.devices.unread == smi.listed.unread == "tool_missing":
        yield Finding("tool.xpu_smi", TOOL, Status.not_applicable, seen="not installed", source="xpu-smi")
        return
    version = smi.version.value or ""
    problems = list(dict.fromkeys(judged(facts, bound, version)))
    if not problems:
        seen = f"sees {len(bound)} of {plural(len(bound), 'card')}" + (f", version {version}" if version else "")
        yield Finding("tool.xpu_smi", TOOL, Status.ok, seen=seen, source=smi.devices.source)
        return
    problems.sort(key=lambda problem: ORDER.index(problem.status))
    missing = [
        gpu for answer in (smi.devices.value, smi.listed.value) if answer is not None for gpu in unseen(bound, answer)
    ]
    hidden = [gpu for gpu in missing if small(gpu) or gpu.bdf in (smi.small_bars.value or ())]
    family = (facts.identity.os_id.value or "") in ("debian", "ubuntu")
    step = "apt-get install --only-upgrade xpu-smi" if family else "dnf upgrade xpu-smi"
    if any(DAEMON.search(problem.text) for problem in problems):
        step = "systemctl start xpum"  # the client is sound; its service does not run
    yield Finding(
        "tool.xpu_smi",
        TOOL,
        problems[0].status,
        seen="; ".join(problem.text for problem in problems[:3]),
        wanted=f"all {plural(len(bound), 'bound GPU')}",
        source=smi.devices.source,
        next_step=step if problems[0].status is Status.warn and not hidden else "",
        # Level Zero leaves out a card with a small BAR on purpose (intel/compute-runtime#872)
        cause=Cause("rebar", subject(hidden[0])) if hidden and len(hidden) == len(missing) else None,
    )
