"""What will differ after a reboot, on one screen: kernel, files, arguments, firmware, settings, and who may reboot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.text import Text

from ..checks.next_boot import (
    asked_for,
    change,
    loaded,
    release_running,
    reloads,
    stale,
    starts_xe,
    taken,
)
from ..findings import Status
from ..onhost.gather import Facts
from ..onhost.readings import gpu_ids
from ..onhost.readings.packages import version_of
from .terminal import STYLE, visible

WIDTH = 11  # of the names of the rows
FIRMWARE_PACKAGES = ("linux-firmware", "firmware-intel-graphics", "intel-gpu-firmware", "firmware-misc-nonfree")
SHOWN_ARGUMENTS = 8


@dataclass(frozen=True)
class Row:
    """One line. differs: will it be otherwise after the boot? None: that could not be told."""

    what: str
    text: str
    differs: bool | None = False


def _entry(facts: Facts) -> Iterator[Row]:
    boot = facts.next_boot
    if boot.entry.value is None:
        yield Row("entry", f"not read: {boot.entry.unread}: {boot.entry.detail}", None)
        return
    yield Row("entry", f"{boot.entry.value} ({boot.loader.value}, {boot.entry.source})")
    if boot.once.value:
        yield Row("", f"set for this one boot: {boot.once.value}", True)
    if boot.missing_default.value:
        yield Row("", f"the default {boot.missing_default.value!r} is not in the menu: its first entry starts", True)
    now, then = release_running(facts), boot.release.value
    running = facts.identity.kernel.value or "unread"
    if then is None:
        yield Row("kernel", f"not read: {boot.release.unread}: {boot.release.detail}", None)
    elif not now:
        yield Row("kernel", f"{then}; this boot ({running}) was not started by this menu", None)
    elif now == then:
        yield Row("kernel", f"{then}, as now")
    else:
        yield Row("kernel", f"{now} now, {then} then", True)


def _files(facts: Facts) -> Iterator[Row]:
    boot = facts.next_boot
    if boot.missing_files.value is None:
        if boot.loader.value is not None:
            yield Row("files", f"not read: {boot.missing_files.unread}: {boot.missing_files.detail}", None)
        return
    for path in boot.missing_files.value:
        yield Row("files", f"{path} is not there: the boot will fail", True)
    if not boot.initrd.value:
        yield Row("files", "the entry loads no initrd", None)
    elif not boot.missing_files.value:
        yield Row("files", f"{', '.join(boot.initrd.value)} is there")
    if boot.modules.value is False:
        yield Row("files", f"/lib/modules/{boot.release.value} is not there: no driver will load", True)


def _initrd(facts: Facts) -> Iterator[Row]:
    """What is in the initrd: the driver that it holds takes the firmware from it, not from the disk."""
    modules, running = facts.initrd.modules, loaded(facts)
    if modules.unread == "not_asked":
        return
    within = starts_xe(facts)
    if within is None:
        yield Row("initrd", f"what it holds was not read: {modules.unread}: {modules.detail}", None)
        return
    if not within:
        yield Row("initrd", "holds no xe: driver and firmware are those on disk")
        return
    for one in taken(facts):
        version, disk = one.version, one.on_disk
        if version.value is None:
            yield Row("initrd", f"{one.name} in it was not read: {version.unread}: {version.detail}", None)
            continue
        now = running.get(one.name)
        on_disk = {None: f"; the one on disk was not read: {disk.unread}", version.value: ", as on disk"}.get(
            disk.value, f"; {disk.value} on disk is not taken"
        )
        runs = f"; {now} runs" if now not in (None, version.value) else ""
        is_known = disk.value is not None or disk.unread == "absent"
        text = f"holds xe with {one.name} {version.value}{'; none is on disk' if disk.unread == 'absent' else on_disk}"
        yield Row("initrd", text + runs, True if runs else False if is_known else None)
    names = {one.name for one in taken(facts)}
    for name in sorted(asked_for(facts) - names):
        yield Row("initrd", f"holds xe without {name}: the driver will not find it", True)
    if not names and not asked_for(facts):
        yield Row("initrd", "holds xe without any GuC firmware: the driver will find none", True)


def _arguments(facts: Facts) -> Iterator[Row]:
    found = change(facts)
    if found is None:
        if facts.next_boot.arguments.value is not None:
            yield Row("arguments", " ".join(facts.next_boot.arguments.value), None)
    elif not found.gone and not found.new:
        yield Row("arguments", "the same")
    else:
        rows = [f"- {word}" for word in found.gone] + [f"+ {word}" for word in found.new]
        for number, text in enumerate(rows[:SHOWN_ARGUMENTS]):
            yield Row("" if number else "arguments", text, True)
        if len(rows) > SHOWN_ARGUMENTS:
            yield Row("", f"and {len(rows) - SHOWN_ARGUMENTS} more", True)
    if facts.next_boot.pending_arguments.value:
        words = " ".join(facts.next_boot.pending_arguments.value)
        yield Row(
            "", f"in {facts.next_boot.pending_arguments.source}, not in the menu until update-grub: {words}", None
        )


def _firmware(facts: Facts) -> Iterator[Row]:
    boot = facts.next_boot
    loaded = sorted(
        {
            event.details.get("version", "").rpartition(", ")[2]
            for event in facts.kernel_log.events.value or ()
            if event.kind == "guc.loaded" and not event.previous_boot
        }
        - {""}
    )
    package = version_of(facts.packages, *FIRMWARE_PACKAGES)
    has_card = any(gpu.vendor == gpu_ids.INTEL for gpu in facts.pcie.gpus.value or ())
    if not loaded and not (has_card and boot.guc_files.value):
        return
    parts = [f"GuC {' and '.join(loaded)} is loaded" if loaded else "the log does not say which GuC is loaded"]
    if boot.guc_files.value:
        parts.append(f"on disk {', '.join(path.rpartition('/')[2] for path in boot.guc_files.value)}")
    if package is not None:
        parts.append(f"{package.name} {package.version}{' (held)' if package.held else ''}")
    yield Row("firmware", "; ".join(parts))
    for path in boot.shadowing.value or ():
        yield Row("", f"{path} hides the package's file", None)
    if starts_xe(facts):
        return  # the rows of the initrd tell what is taken
    old = stale(facts)
    for text in reloads(facts):
        yield Row("", f"{text}{', and the initrd is older than the file' if old else ''}", None if old else True)


def _settings(facts: Facts) -> Iterator[Row]:
    """Settings that are live and that nothing sets again, or that something sets otherwise."""
    rows = list(_lost(facts))
    for number, row in enumerate(rows):
        yield Row("" if number else "settings", row.text, row.differs)


def _lost(facts: Facts) -> Iterator[Row]:
    governors = {policy.governor.value for policy in facts.cpufreq.policies.value or ()} - {None}
    for owner in facts.cpufreq.owners.value or ():
        is_own = owner.setting == "cpu_governor" and owner.state in ("active", "enabled")
        if is_own and governors and governors != {owner.value} and owner.value in _offered(facts):
            live = " and ".join(sorted(word for word in governors if word))
            yield Row("", f"governor {live} now, {owner.value} then: {owner}", True)
    policy, arguments = facts.aspm.policy.value, facts.next_boot.arguments.value
    if policy is not None and arguments is not None:
        asked = [word.partition("=")[2] for word in arguments if word.startswith("pcie_aspm.policy=")]
        if asked and asked[-1] != policy:
            yield Row("", f"ASPM policy {policy} now, {asked[-1]} then: boot entry", True)
        elif not asked and policy != "default" and release_running(facts):
            yield Row("", f"ASPM policy {policy} was written at run time; no boot argument sets it again", None)
    for state in facts.gpu_state.gpus.value or ():
        for clock in state.clocks.value or ():
            most, top = clock.maximum.value, clock.highest.value
            if most is not None and top is not None and most < top:
                yield Row("", f"{state.bdf}: the limit of {most} MHz on {clock.domain} is gone", True)
    if facts.cpuidle.deepest.value == "" and facts.cpuidle.states.value:
        yield Row("", "the deepest idle state is off; the kernel switches it on again unless a unit does not", None)


def _offered(facts: Facts) -> set[str]:
    return {word for policy in facts.cpufreq.policies.value or () for word in policy.governors.value or ()}


def _reboots(facts: Facts) -> Iterator[Row]:
    boot = facts.next_boot
    if boot.reboot_required.value:
        by = ", ".join(package for package in boot.reboot_required.value[:6] if package)
        yield Row("asked for", f"a reboot{f', by {by}' if by else ''}")
    when = boot.automatic_reboot.value
    if when:
        yield Row("by itself", f"yes: {when} ({boot.automatic_reboot.source})")
    elif when is not None:
        upgrades = "; packages are upgraded without a person" if boot.unattended.value else ""
        yield Row("by itself", f"no{upgrades}")
    elif boot.automatic_reboot.unread != "absent":
        yield Row("by itself", f"not read: {boot.automatic_reboot.unread}: {boot.automatic_reboot.detail}", None)


def rows(facts: Facts) -> list[Row]:
    """What the next boot will do, row by row."""
    parts = (_entry, _files, _initrd, _arguments, _firmware, _settings, _reboots)
    return [row for part in parts for row in part(facts)]


def code(facts: Facts) -> int:
    """0 nothing will differ, 1 something will, 3 that could not be told."""
    found = rows(facts)
    if any(row.differs for row in found):
        return 1
    return 3 if any(row.differs is None and row.what in ("entry", "kernel", "files", "initrd") for row in found) else 0


def render(facts: Facts, host: str) -> Text:
    """The screen as text with styles; a console that is no terminal prints it plain."""
    found = rows(facts)
    lines = [Text(visible(f"{host}  next boot"), style="bold")]
    for row in found:
        mark = {True: "!", None: "?", False: " "}[row.differs]
        style = {True: STYLE[Status.warn], None: STYLE[Status.unknown], False: ""}[row.differs]
        lines.append(Text(f"{mark} {row.what:<{WIDTH}}{visible(row.text)}", style=style))
    count = sum(1 for row in found if row.differs)
    told = {0: "nothing that was read will differ", 1: f"{count} will differ (!)", 3: "could not be told (?)"}[
        code(facts)
    ]
    lines.append(Text(told, style="dim"))
    return Text("\n").join(lines)
