"""Is a card that computes also the one that shows the screen?"""

from __future__ import annotations

from collections.abc import Iterator

from ..expectations import Expectation
from ..findings import HOST, Finding, Status, check, unknown
from ..onhost.gather import Facts
from ..onhost.readings import gpu_ids
from ..onhost.readings.pcie import Gpu
from .gpu import cards, gone, subject


def _other(facts: Facts, judged: list[Gpu]) -> str:
    """BDF of a function that could show the screen instead: a VGA one that is none of the cards; ``""`` without one."""
    own = {gpu.bdf for gpu in judged}
    return next(
        (
            one.bdf
            for one in facts.pcie.functions.value or ()
            if one.class_code.startswith("0300") and one.bdf not in own
        ),
        "",
    )


@check("gpu.display", title="No card that computes carries the screen or a console")
def display(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`gpu.display`

    Why: a desktop on the first card took 630 MiB of it in the lab and its driver's probe stuck while it set up the
    connectors; a console on a card can also hold up the last words of a panic (lab-host-facts 1.3, 2.3). Sound hosts
    show the screen on the board's own graphics. A host whose only display is the card is made so: told, never more.
    Witnesses: ``boot_vga``, which the firmware chose, and the kernel's framebuffers.
    """
    judged = [gpu for gpu in cards(facts) if gpu.vendor == gpu_ids.INTEL and gpu.driver.value]
    for gpu in judged:
        boot, consoles = gpu.boot_vga, gpu.framebuffers
        parts = ["the firmware's screen"] if boot.value else []
        if consoles.value:
            parts.append(f"the console ({' '.join(consoles.value)})")
        if parts:
            other = _other(facts, judged)
            yield Finding(
                "gpu.display",
                subject(gpu),
                Status.info,
                seen=f"it carries {' and '.join(parts)}"
                + (f", while {other} could" if other else "; the host has no other display"),
                source=boot.source if boot.value else consoles.source,
                next_step=f"BIOS: primary display on {other}, the board's own graphics" if other else "",
            )
        elif (unread := next((one for one in (boot, consoles) if one.value is None), None)) is not None:
            lost = gone(facts, gpu)
            seen = f"{unread.unread}: {unread.detail}"
            yield (
                unknown("gpu.display", unread, subject(gpu))
                if lost is None
                else Finding("gpu.display", subject(gpu), Status.unknown, seen, source=unread.source, cause=lost)
            )
        else:
            yield Finding("gpu.display", subject(gpu), Status.ok, seen="neither screen nor console", source=boot.source)
    if not judged:
        yield Finding(
            "gpu.display", HOST, Status.not_applicable, seen="no Intel card in use", source=facts.pcie.gpus.source
        )
