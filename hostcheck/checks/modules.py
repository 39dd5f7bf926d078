"""Does anything hold a GPU's driver that nobody accounts for, and are its parameters the declared ones?"""

from __future__ import annotations

from collections.abc import Iterator

from ..expectations import Expectation
from ..findings import Finding, Status, Subject, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.readings.modules import Module
from .presence import holding, not_applicable

# What a parameter is when nobody sets it, where another value changes what a card can (drivers/gpu/drm/xe/xe_module.c).
# Log levels and tunables that differ from kernel to kernel are not among them.
DEFAULTS: dict[str, dict[str, str]] = {
    "xe": {
        "probe_display": "Y",
        "vram_bar_size": "0",
        "wedged_mode": "1",
        "force_execlist": "N",
        "guc_firmware_path": "",
        "huc_firmware_path": "",
        "gsc_firmware_path": "",
    },
    "i915": {"enable_hangcheck": "Y", "modeset": "-1"},
}
UNSET = ("", "(null)")


def used(facts: Facts, module: Module) -> bool:
    """Does this driver have a card of this host?"""
    return any(gpu.driver.value == module.name for gpu in facts.pcie.gpus.value or ())


def _modules(facts: Facts) -> list[Module]:
    return [module for module in need(facts.modules.drivers) if used(facts, module)]


@check("gpu.module_users", title="Nothing uses a card's driver when nobody holds a card")
def users(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`gpu.module_users`

    Why: a job that died inside the driver leaves its reference behind, and the driver can then not be loaded anew: the
    lab counted 76 on a host whose cards nobody held, and 0 on a sound one (lab-host-facts 2.3); only a reboot takes
    them back. A console on the card, a sound function and every module that builds on the driver count as one each
    (own).
    """
    need(facts.pcie.gpus)
    found = _modules(facts)
    if not found:
        yield not_applicable("gpu.module_users", "no card of xe or i915", facts.modules.drivers.source)
        return
    held = holding(facts)
    for module in found:
        subject, count = Subject("module", module.name), module.refcnt
        if count.unread == "absent":
            yield not_applicable("gpu.module_users", "the driver is part of the kernel", count.source, subject)
        elif count.value is None:
            yield unknown("gpu.module_users", count, subject)
        elif count.value == 0:
            yield Finding("gpu.module_users", subject, Status.ok, "no user", source=count.source)
        elif held.value is None:
            yield unknown("gpu.module_users", held, subject)
        elif held.value:
            yield Finding("gpu.module_users", subject, Status.ok, f"{count.value}, cards are held", source=count.source)
        else:
            yield _left(facts, module, count.value, subject)


def _left(facts: Facts, module: Module, count: int, subject: Subject) -> Finding:
    """The finding for a driver that has users while nobody holds a card."""
    missing = next((one for one in (module.dependents, module.framebuffers) if one.value is None), None)
    if missing is not None and missing.unread != "absent":
        return unknown("gpu.module_users", missing, subject)
    audio = {one.bdf for one in facts.pcie.functions.value or () if one.class_code.startswith("0403")}
    cards = [gpu for gpu in facts.pcie.gpus.value or () if gpu.driver.value == module.name]
    sounds = sum(len(audio.intersection(gpu.siblings)) for gpu in cards)
    parts = {
        "modules that build on it": len(module.dependents.value or ()),
        "consoles": module.framebuffers.value or 0,
        "sound functions": sounds,
    }
    told = ", ".join(f"{number} {what}" for what, number in parts.items() if number) or "nothing known"
    seen = f"{count} users while nobody holds a card; accounted for: {told}"
    if count <= sum(parts.values()):
        return Finding("gpu.module_users", subject, Status.ok, seen, source=module.refcnt.source)
    step = "systemctl reboot  # what was left behind by a job that died is taken back by nothing else"
    return Finding("gpu.module_users", subject, Status.warn, seen, "0", module.refcnt.source, step)


@check("gpu.module_parameters", title="Parameters of a card's driver are the declared ones")
def parameters(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`gpu.module_parameters`

    Why: a parameter that was set for a test stays in a file of modprobe.d and makes two hosts differ with the same
    kernel and the same cards: firmware from elsewhere, a small BAR, no display. Nothing is wanted unless
    `module_parameters` declares it; what differs from the driver's own default is told.
    """
    need(facts.pcie.gpus)
    wishes = expectation.module_parameters
    wanted_by: dict[str, dict[str, str]] = {name: dict(values) for name, values in wishes.items()}
    found = _modules(facts)
    if not found:
        yield not_applicable("gpu.module_parameters", "no card of xe or i915", facts.modules.drivers.source)
        return
    for module in found:
        yield _compared(module, wanted_by.get(module.name, {}))


def _compared(module: Module, wish: dict[str, str]) -> Finding:
    subject = Subject("module", module.name)
    values = module.parameters
    if values.unread == "absent" and not wish:
        return not_applicable("gpu.module_parameters", "the driver has no parameters", values.source, subject)
    if values.value is None:
        return unknown("gpu.module_parameters", values, subject)
    have = {name: "" if value in UNSET else value for name, value in values.value.items()}
    wrong = [f"{name}={have[name]}" for name, value in sorted(wish.items()) if have.get(name, value) != value]
    hidden = sorted(set(wish) - set(have))
    other = [
        f"{name}={have[name]}"
        for name, default in DEFAULTS[module.name].items()
        if name in have and have[name] != default and name not in wish
    ]
    wanted = " ".join(f"{name}={value}" for name, value in sorted(wish.items()))
    if wrong:
        step = f"echo 'options {module.name} {wanted}' | sudo tee /etc/modprobe.d/{module.name}.conf  # and the initrd"
        return Finding("gpu.module_parameters", subject, Status.fail, " ".join(wrong), wanted, values.source, step)
    if hidden:
        seen = f"{', '.join(hidden)}: not there, or only root may read it"
        return Finding("gpu.module_parameters", subject, Status.unknown, seen, wanted, values.source)
    if other:
        seen = f"{' '.join(other)}, not the driver's default"
        return Finding("gpu.module_parameters", subject, Status.info, seen, wanted, values.source)
    seen = wanted or "as the driver sets them"
    return Finding("gpu.module_parameters", subject, Status.ok, seen, wanted, values.source)
