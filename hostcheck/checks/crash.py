"""If the kernel panics, is anything left of it, and does the host come back?"""

from __future__ import annotations

from collections.abc import Iterator

from ..expectations import Expectation
from ..findings import HOST, Finding, Status, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.readings.crash import captures
from .presence import not_applicable

APPLY = "ansible-playbook playbooks/apply.yml --tags crash_policy"
# Each of these turns something that a host may survive into a panic.
SURVIVABLE = ("hardlockup_panic", "softlockup_panic", "hung_task_panic")


@check("crash.policy", title="A stall that the host may survive does not become a freeze without a trace")
def policy(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`crash.policy`

    Why: a card that does not answer stalls a processor for 16 to 72 seconds and lets go. With hardlockup_panic=1 and
    panic=0 the same stall ends in a panic that waits for ever, and without a crash kernel, netconsole or a working
    pstore nothing is left of it (lab-host-facts 0.7, 2.6). Only the pair says it, never one value. A pair that is
    declared (`settings.crash_policy`) and differs fails.
    """
    sysctls = facts.sysctls
    wished = expectation.settings.crash_policy
    pair = (sysctls.kernel__hardlockup_panic, sysctls.kernel__panic)
    if wished.hardlockup_panic is not None and pair[0].unread != "absent":
        now = tuple(need(one) for one in pair)
        wanted = (int(wished.hardlockup_panic), wished.panic)
        if now != wanted:
            yield Finding(
                "crash.policy",
                HOST,
                Status.fail,
                seen=f"hardlockup_panic={now[0]}, panic={now[1]}",
                wanted=f"hardlockup_panic={wanted[0]}, panic={wanted[1]}",
                source=pair[0].source,
                next_step=APPLY,
            )
            return
    switches = {name: getattr(sysctls, f"kernel__{name}") for name in SURVIVABLE}
    on = {name: switch for name, switch in switches.items() if switch.value}
    unread = [switch for switch in switches.values() if switch.value is None and switch.unread != "absent"]
    if all(switch.unread == "absent" for switch in switches.values()):
        yield not_applicable("crash.policy", "this kernel has no such switch", sysctls.kernel__hardlockup_panic.source)
        return
    if not on and unread:
        yield unknown("crash.policy", unread[0])
        return
    if not on:
        yield Finding(
            "crash.policy",
            HOST,
            Status.ok,
            seen="no lockup makes the kernel panic",
            source=next(switch.source for switch in switches.values() if switch.value is not None),
        )
        return
    panic = need(sysctls.kernel__panic)
    kept, missing = captures(facts.crash)
    said = f"{', '.join(f'{name}={switch.value}' for name, switch in on.items())}, panic={panic}"
    source = next(iter(on.values())).source
    blind = set(on) == {"hardlockup_panic"} and sysctls.kernel__nmi_watchdog.value == 0
    if kept:
        yield Finding("crash.policy", HOST, Status.ok, seen=f"{said}; {', '.join(kept)}", source=source)
    elif missing and panic == 0:
        yield unknown("crash.policy", missing[0])
    elif panic == 0 and not blind:
        yield Finding(
            "crash.policy",
            HOST,
            Status.warn,
            seen=f"{said}, and nothing is known to keep a crash",
            wanted="no panic on a stall, or a proven capture",
            source=source,
            next_step=f"sudo sysctl {' '.join(f'kernel.{name}=0' for name in on)}  # and in /etc/sysctl.d",
        )
    else:
        why = "the detector of hard lockups is off" if blind else "a panic reboots and leaves no trace"
        yield Finding("crash.policy", HOST, Status.info, seen=f"{said}: {why}", source=source)


@check("crash.records", title="No record of a crash waits to be looked at")
def records(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`crash.records`

    Why: what the firmware kept of a panic is the only evidence of a freeze, and its store is small: it is to be copied
    before it is overwritten (lab-host-facts 2.7).
    """
    crash = facts.crash
    waiting = need(crash.pstore_records)
    if waiting:
        yield Finding(
            "crash.records",
            HOST,
            Status.info,
            seen=f"{len(waiting)} in the firmware: {', '.join(waiting[:3])}{' …' if len(waiting) > 3 else ''}",
            source=crash.pstore_records.source,
            next_step="sudo cp -a /sys/fs/pstore/. /var/tmp/pstore-$(date +%F)/",
        )
    else:
        backend = crash.pstore_backend.value
        seen = f"none in {backend}" if backend else "none; no firmware store is in use"
        yield Finding("crash.records", HOST, Status.ok, seen=seen, source=crash.pstore_records.source)
