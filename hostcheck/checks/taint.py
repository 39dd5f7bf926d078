"""Is the kernel clean, and if not: what tainted it?"""

from __future__ import annotations

from collections.abc import Iterator

from ..expectations import Expectation
from ..findings import HOST, Finding, Status, check, need
from ..onhost.gather import Facts
from ..onhost.readings.modules import BY_MODULES, TAINTS

SERIOUS = {4: "machine check", 5: "bad page", 7: "kernel oops", 14: "soft lockup"}  # M, B, D, L


@check("kernel.taint", title="The kernel is not tainted")
def taint(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`kernel.taint`

    Why: bits of this boot that no log may hold any more. Machine check, bad page, oops and soft lockup mean that
    results of this boot are in doubt; a warning alone is common (one dma-buf warning at every boot of the lab's display
    hosts), and modules from outside the tree are a choice (design, section 7; own).
    """
    bits = need(facts.identity.taint)
    source = facts.identity.taint.source
    if not bits:
        yield Finding("kernel.taint", HOST, Status.ok, seen="not tainted", source=source)
        return
    set_bits = [bit for bit in range(bits.bit_length()) if bits >> bit & 1]
    words = [f"{TAINTS[bit][0]} {TAINTS[bit][1]}" if bit in TAINTS else f"bit {bit}" for bit in set_bits]
    seen = f"{bits}: {', '.join(words)}"
    modules = facts.modules.tainting
    if bits & BY_MODULES:
        if modules.value:
            names = sorted(modules.value)
            more = f" and {len(names) - 6} more" if len(names) > 6 else ""
            seen += f"; set by {', '.join(names[:6])}{more}"
        elif modules.value is None:
            seen += f"; modules not read: {modules.unread}"
    serious = [bit for bit in set_bits if bit in SERIOUS]
    yield Finding(
        "kernel.taint",
        HOST,
        Status.warn if serious else Status.info,
        seen=seen,
        wanted="not tainted" if serious else "",
        source=source,
        next_step="journalctl -k -b 0 --no-pager | grep -i -A20 'tainted:'  # then reboot" if serious else "",
    )
