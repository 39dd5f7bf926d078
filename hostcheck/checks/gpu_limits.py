"""Is a card free to run: clock limits, power cap, temperatures?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..expectations import Expectation
from ..findings import HOST, Cause, Finding, Status, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.reader import Reading
from ..onhost.readings import gpu_ids
from ..onhost.readings.gpu_state import DRIVERS, Clock, GpuState, Power
from ..onhost.readings.kernel_log import is_fault
from ..onhost.readings.pcie import Gpu
from . import log
from .gpu import cards, subject
from .presence import not_before_start

CARD_LABELS = ("card", "")  # of the power channel that limits the whole card


def judged(facts: Facts, id: str) -> Iterator[tuple[Gpu, GpuState] | Finding]:
    """Every card that xe or i915 drives with its state; one finding where there is none."""
    states = {state.bdf: state for state in need(facts.gpu_state.gpus)}
    found = [
        (gpu, states[gpu.bdf])
        for gpu in cards(facts)
        if gpu.vendor == gpu_ids.INTEL and gpu.driver.value in DRIVERS and gpu.bdf in states
    ]
    yield from found
    unread = [gpu for gpu in cards(facts) if gpu.vendor == gpu_ids.INTEL and gpu.driver.value is None]
    yield from (unknown(id, gpu.driver, subject(gpu)) for gpu in unread)
    if not found and not unread:
        yield Finding(id, HOST, Status.not_applicable, seen="no Intel card in use", source=facts.pcie.gpus.source)


def left_alone(facts: Facts, gpu: Gpu, reading: Reading[Any]) -> Cause | None:
    """The finding that says why the driver of a card was not asked; None where something else kept it unread."""
    if reading.unread != "faulted":
        access = facts.kernel_log.faulted
        return log.ACCESS if access.value is None and access.unread == reading.unread else None
    kinds = {
        event.kind
        for event in facts.kernel_log.events.value or ()
        if event.bdf == gpu.bdf and is_fault(event.kind) and not event.previous_boot
    }
    words = {kind.partition(".")[2] or kind for kind in kinds}
    if gpu.runtime_status.value == "error" and not kinds:
        return Cause("gpu.runtime_status", subject(gpu))
    if not gpu.coredump.value and "recovered" not in words:
        for id, word in (("gpu.lost", "lost"), ("gpu.wedged", "wedged"), ("gpu.state", "survivability")):
            if word in words:
                return Cause(id, subject(gpu))
    return Cause("gpu.fault", subject(gpu))


def not_read(facts: Facts, id: str, gpu: Gpu, reading: Reading[Any]) -> Finding:
    """The finding for a card of which something was not read; the reason is told once, at the first of these checks."""
    cause = left_alone(facts, gpu, reading)
    if cause is None and id != "gpu.clock_limit" and reading.unread == "suspended":
        cause = Cause("gpu.clock_limit", subject(gpu))
    return replace(unknown(id, reading, subject(gpu)), cause=cause)


def _domain(clock: Clock) -> str:
    return clock.domain.replace("tile0/", "")


def _limited(clock: Clock, wish: int | None) -> str:
    """What is wrong with the limits of a clock domain, or ""."""
    most, top = clock.maximum.value, clock.highest.value
    if most is None or top is None:
        return ""
    wanted = min(wish, top) if wish is not None else top
    return f"{_domain(clock)} is limited to {most} of {top} MHz" if most < wanted else ""


@check("gpu.clock_limit", title="The clock of every card may reach its maximum, or the declared limit")
def clock_limit(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`gpu.clock_limit`

    Why: a frequency range that was set for a test stays until the next boot and halves a card in silence; set-up
    scripts pin it, e.g. to 2400 MHz (llm-scaler setup_perf.sh). A raised minimum is no fault: newer kernels raise it
    themselves (arc-host-facts A.1). Declared with `gpu_limits.max_clock` and `min_clock` in MHz, for the main clock
    domain.
    """
    wish = expectation.gpu_limits
    for item in judged(facts, "gpu.clock_limit"):
        if isinstance(item, Finding):
            yield item
            continue
        gpu, state = item
        clocks = state.clocks
        if clocks.unread == "absent":
            seen = "the driver gives no clock domain"
            yield Finding("gpu.clock_limit", subject(gpu), Status.not_applicable, seen, source=clocks.source)
            continue
        if clocks.value is None:
            yield not_read(facts, "gpu.clock_limit", gpu, clocks)
            continue
        missing = next(
            (
                reading
                for clock in clocks.value
                for reading in (clock.maximum, clock.highest, clock.minimum)
                if reading.value is None
            ),
            None,
        )
        main = clocks.value[0]
        low = [text for clock in clocks.value if (text := _limited(clock, wish.max_clock if clock is main else None))]
        wanted = f"{wish.max_clock or main.highest.value} MHz"
        status, step = Status.warn, f"echo {main.highest.value} | sudo tee {main.maximum.source}"
        if wish.max_clock is not None and main.maximum.value is not None and main.maximum.value != wish.max_clock:
            low = low or [f"{_domain(main)} may reach {main.maximum.value} MHz"]
            status, step = Status.fail, f"echo {wish.max_clock} | sudo tee {main.maximum.source}"
        elif wish.min_clock is not None and main.minimum.value is not None and main.minimum.value != wish.min_clock:
            low = [*low, f"{_domain(main)} has a minimum of {main.minimum.value} MHz"]
            wanted, status = f"a minimum of {wish.min_clock} MHz", Status.fail
            step = f"echo {wish.min_clock} | sudo tee {main.minimum.source}"
        if low:
            yield Finding("gpu.clock_limit", subject(gpu), status, "; ".join(low), wanted, main.maximum.source, step)
        elif missing is not None:
            yield not_read(facts, "gpu.clock_limit", gpu, missing)
        else:
            seen = ", ".join(
                f"{_domain(clock)} {clock.minimum.value} to {clock.maximum.value} MHz" for clock in clocks.value
            )
            yield Finding("gpu.clock_limit", subject(gpu), Status.ok, seen, source=main.maximum.source)


def _card_power(channels: tuple[Power, ...]) -> Power | None:
    """The channel that limits the whole card, else the first."""
    return next((one for one in channels if one.label in CARD_LABELS), channels[0] if channels else None)


@check("gpu.power_cap", title="The power cap of every card is the declared one")
def power_cap(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`gpu.power_cap`

    Why: a cap is set through a file whose number changes from boot to boot, and is gone after a reboot; a public power
    study of a B70 measured 98.6 % of decode and 83 % of prefill at 210 of 275 W (arc-host-facts A.1), so it explains a
    difference between two hosts. Nothing is wanted unless `gpu_limits.power_cap` declares it, in watts.
    """
    wish = expectation.gpu_limits.power_cap
    for item in judged(facts, "gpu.power_cap"):
        if isinstance(item, Finding):
            yield item
            continue
        gpu, state = item
        channel = _card_power(state.power.value) if state.power.value is not None else None
        if state.power.unread == "absent" or (state.power.value is not None and channel is None):
            seen = "the driver gives no power cap"
            yield Finding("gpu.power_cap", subject(gpu), Status.not_applicable, seen, source=state.power.source)
            continue
        if channel is None:
            yield not_read(facts, "gpu.power_cap", gpu, state.power)
            continue
        if channel.cap.value is None:
            yield not_read(facts, "gpu.power_cap", gpu, channel.cap)
            continue
        cap = channel.cap.value
        seen = f"{cap:g} W" if cap else "no cap"
        if wish is not None and abs(cap - wish) >= 1:
            step = f"echo {int(wish * 1e6)} | sudo tee {channel.cap.source}"
            yield Finding("gpu.power_cap", subject(gpu), Status.fail, seen, f"{wish:g} W", channel.cap.source, step)
        else:
            wanted = f"{wish:g} W" if wish is not None else ""
            yield Finding("gpu.power_cap", subject(gpu), Status.ok, seen, wanted, channel.cap.source)


@check("gpu.temperature", title="No sensor of a card is at its limit")
def temperature(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`gpu.temperature`

    Why: at its limit a card lowers its clock or switches itself off. Only the limits that the driver gives for a sensor
    count (sysfs-driver-intel-xe-hwmon); `gpu_limits.temperature_margin` asks for some degrees below them.
    """
    margin = expectation.gpu_limits.temperature_margin
    for item in judged(facts, "gpu.temperature"):
        if isinstance(item, Finding):
            yield item
            continue
        gpu, state = item
        sensors = state.temperatures
        if sensors.value is None and sensors.unread != "absent":
            yield not_read(facts, "gpu.temperature", gpu, sensors)
            continue
        hot, missing, told = [], None, []
        for sensor in sensors.value or ():
            now, limit = sensor.celsius, sensor.limit
            if limit.unread == "absent":
                continue
            if now.value is None or limit.value is None:
                missing = missing or (now if now.value is None else limit)
                continue
            told.append(f"{sensor.label} {now.value:.0f} of {limit.value:.0f} C")
            if now.value >= limit.value - margin:
                hot.append(told[-1])
        source = sensors.source
        if hot:
            step = "check fans, dust and airflow of the card; stop its work until it is cooler"
            yield Finding("gpu.temperature", subject(gpu), Status.warn, ", ".join(hot), "below the limit", source, step)
        elif missing is not None:
            yield not_read(facts, "gpu.temperature", gpu, missing)
        elif told:
            yield Finding("gpu.temperature", subject(gpu), Status.ok, ", ".join(told), source=source)
        else:
            values = [f"{one.label} {one.celsius.value:.0f} C" for one in sensors.value or () if one.celsius.value]
            seen = " ".join(("the driver gives no limits:", *values)) if values else "the driver gives no temperatures"
            yield Finding("gpu.temperature", subject(gpu), Status.not_applicable, seen, source=source)


@check("gpu.vram_used", title="The memory of a card that nobody holds is free")
def vram_used(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`gpu.vram_used`

    Why: workers that are left over from a crash hold a card's memory and look like a leak or a dead card, and what is
    used with no process behind it is gone until a reboot. The lab starts nothing while a card has 256 MiB in use
    (lab-host-facts 4.2). Only xe's own book in debugfs tells it without opening the card, and to root alone.
    """
    other = not_before_start("gpu.vram_used", facts, expectation)
    if other is not None:
        yield other
        return
    limit = expectation.gpu_limits.vram_used_mib
    for item in judged(facts, "gpu.vram_used"):
        if isinstance(item, Finding):
            yield item
            continue
        gpu, state = item
        used = state.vram_used
        if used.unread == "absent":
            seen = f"this driver does not tell it: {used.detail}"
            yield Finding("gpu.vram_used", subject(gpu), Status.not_applicable, seen, source=used.source)
        elif used.value is None:
            yield not_read(facts, "gpu.vram_used", gpu, used)
        else:
            much = used.value >= limit << 20
            yield Finding(
                "gpu.vram_used",
                subject(gpu),
                Status.warn if much else Status.ok,
                seen=f"{used.value >> 20} MiB in use while nobody holds it",
                wanted=f"less than {limit} MiB before a start",
                source=used.source,
                next_step="ps -eo pid,ppid,stat,etime,comm | grep -E ' [DZ]|python|vllm'  # then reboot"
                if much
                else "",
            )
