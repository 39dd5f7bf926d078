"""Runtime power management of the cards: may they fall asleep, and did one not come back?"""

from __future__ import annotations

from collections.abc import Iterator

from ..expectations import Expectation
from ..findings import HOST, Finding, Status, check, unknown
from ..onhost.gather import Facts
from ..onhost.readings import gpu_ids
from ..onhost.readings.pcie import Gpu
from .gpu import cards, subject

APPLY = "ansible-playbook playbooks/apply.yml --tags gpu_runtime_pm"


def _judged(facts: Facts) -> list[Gpu]:
    return [gpu for gpu in cards(facts) if gpu.vendor == gpu_ids.INTEL and gpu.driver.value]


def _bridges(judged: list[Gpu]) -> str:
    """What stands in power/control of the bridges above the cards, where it is not ``on``; told, not judged."""
    above = {hop.bdf: hop.power_control for gpu in judged for hop in gpu.path[:-1]}
    auto = [bdf for bdf, one in sorted(above.items()) if one.value == "auto"]
    unread = [bdf for bdf, one in sorted(above.items()) if one.value is None and one.unread != "absent"]
    told = f"; auto on the bridges above: {', '.join(auto)}" if auto else ""
    return told + (f"; not read of the bridges above: {', '.join(unread)}" if unread else "")


@check("gpu.power_control", title="Cards are kept awake")
def power_control(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`gpu.power_control`

    Why: with ``auto`` a card suspends about a second after its last use. The lab saw cards that did not come back from
    D3, and two of four cards on ``auto`` although a boot unit had written ``on``: the driver's probe ended after it.
    One finding per host, since one setting is behind it. A card that is unbound has no driver to put it to sleep. The
    bridges above are told and not judged: a bridge does not sleep while a card below it is awake, yet the lab wanted
    the whole way on (lab-host-facts 2.2).
    """
    judged = _judged(facts)
    unread = [gpu for gpu in judged if gpu.power_control.value is None and gpu.power_control.unread != "absent"]
    for gpu in unread:
        yield unknown("gpu.power_control", gpu.power_control, subject(gpu))
    auto = [gpu for gpu in judged if gpu.power_control.value == "auto"]
    on = [gpu for gpu in judged if gpu.power_control.value == "on"]
    if auto:
        asleep = [gpu.bdf for gpu in auto if gpu.runtime_status.value == "suspended"]
        seen = f"auto on {', '.join(gpu.bdf for gpu in auto)}"
        yield Finding(
            "gpu.power_control",
            HOST,
            Status.warn,
            seen=seen + (f"; suspended now: {', '.join(asleep)}" if asleep else "") + _bridges(judged),
            wanted="on",
            source=auto[0].power_control.source,
            next_step=APPLY,
        )
    elif on and not unread:
        seen = "on" + _bridges(judged)
        yield Finding("gpu.power_control", HOST, Status.ok, seen=seen, wanted="on", source=on[0].power_control.source)
    elif any(not gpu.listed for gpu in judged):
        yield unknown("gpu.power_control", next(gpu.power_control for gpu in judged if not gpu.listed))
    elif not unread:
        yield Finding(
            "gpu.power_control", HOST, Status.not_applicable, seen="no Intel card in use", source=facts.pcie.gpus.source
        )


@check("gpu.runtime_status", title="No card failed to change its power state")
def runtime_status(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`gpu.runtime_status`

    Why: ``error`` is the kernel's word for a device that did not suspend or resume; it stays until a reboot. The lab
    saw it after an ASPM policy was written while cards were asleep.
    """
    judged = _judged(facts)
    for gpu in judged:
        status = gpu.runtime_status
        if status.value is None:
            if (
                status.unread != "absent" or not gpu.listed
            ):  # a kernel without runtime power management has no such file
                yield unknown("gpu.runtime_status", status, subject(gpu))
        elif status.value == "error":
            yield Finding(
                "gpu.runtime_status",
                subject(gpu),
                Status.fail,
                seen="error",
                wanted="active",
                source=status.source,
                next_step="stop all GPU work, save the kernel log, reboot",
            )
        else:
            yield Finding("gpu.runtime_status", subject(gpu), Status.ok, seen=status.value, source=status.source)
    if not judged:
        yield Finding(
            "gpu.runtime_status",
            HOST,
            Status.not_applicable,
            seen="no Intel card in use",
            source=facts.pcie.gpus.source,
        )
