"""Does the kernel run that the inventory declares?"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator

from ..expectations import Expectation
from ..findings import HOST, Cause, Finding, Status, check, need
from ..onhost.gather import Facts
from .presence import not_applicable


@check("kernel.release", title="The kernel that runs is the declared one")
def release(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`kernel.release`

    Why: after unattended upgrades a lab's host came back with another kernel than the one that its records were
    measured with (lab-host-facts 2.3), and a host that was not rebooted still runs the old one. Only a declared release
    (`boot.kernel`, a pattern) is judged; what the next boot starts is `boot.kernel`.
    """
    kernel, wanted = facts.identity.kernel, expectation.boot.kernel
    if wanted is None:
        yield not_applicable("kernel.release", "none is declared (boot.kernel)", kernel.source)
        return
    found = need(kernel)
    if fnmatch.fnmatchcase(found, wanted):
        yield Finding("kernel.release", HOST, Status.ok, found, wanted, kernel.source)
        return
    then = facts.next_boot.release.value
    stays = then is not None and not fnmatch.fnmatchcase(then, wanted)
    yield Finding(
        "kernel.release",
        HOST,
        Status.warn,
        seen=found,
        wanted=wanted,
        source=kernel.source,
        next_step="hostcheck next-boot  # a reboot starts it where this says so",
        cause=Cause("boot.kernel", HOST) if stays else None,
    )
