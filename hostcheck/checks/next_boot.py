"""What will the next boot start, can it, and may it come by itself?"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from typing import NamedTuple

from ..expectations import Expectation
from ..findings import HOST, Finding, Status, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.readings.next_boot import release_of
from ..onhost.settings.boot_entries import key

SHOW = "hostcheck next-boot"


class Change(NamedTuple):
    """Words of the command line that the next boot will not have, and new ones."""

    gone: tuple[str, ...]
    new: tuple[str, ...]


def boot_image(facts: Facts) -> str:
    """File that the running kernel was started from, as the loader named it; "" when it does not tell."""
    line = " ".join(running(facts))
    match = re.search(r"(?:^|\s)BOOT_IMAGE=(\S+)", line)
    return match.group(1) if match else ""


def running(facts: Facts) -> tuple[str, ...]:
    """Words of the running kernel's command line; () where it was not read."""
    return facts.next_boot.running.value or ()


def release_running(facts: Facts) -> str:
    """Release of the running kernel by the menu's own names, so that it can be compared with an entry.

    "" when this boot was not started by the menu that was found: its file is none of those that the menu names.
    """
    image = boot_image(facts)
    if not image:
        return "" if facts.next_boot.loader.value != "systemd-boot" else facts.identity.kernel.value or ""
    if re.search(r"\d+\.\d+", image):
        return release_of(image)
    names = {kernel.rpartition("/")[2] for kernel in facts.next_boot.kernels.value or ()}
    return facts.identity.kernel.value or "" if image.rpartition("/")[2] in names else ""


def need_start(facts: Facts) -> None:
    """Raise for what would have to be read to tell that the menu did not start this boot."""
    need(facts.next_boot.running)
    if boot_image(facts):
        need(facts.next_boot.kernels)


def change(facts: Facts) -> Change | None:
    """How the command line will differ; None where this boot was not started by the menu, or it was not read."""
    then = facts.next_boot.arguments.value
    if then is None or not release_running(facts):
        return None
    added_by_loader = ("BOOT_IMAGE", "initrd", "vt.handoff")
    own = [word.replace('"', "") for word in running(facts) if key(word) not in added_by_loader]
    new = [word.replace('"', "") for word in then if key(word) not in added_by_loader]
    return Change(tuple(word for word in own if word not in new), tuple(word for word in new if word not in own))


@check("boot.kernel", title="The next boot starts the kernel that runs now, or the declared one")
def kernel(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`boot.kernel`

    Why: unattended upgrades replaced a kernel and removed the one that a record was measured with (lab-host-facts 2.3);
    the next reboot, wanted or not, then starts something that nobody tried. Declared with `boot.kernel` (a pattern of
    releases), only another kernel than that is a warning. A default that is not in the menu lets GRUB start its first
    entry.
    """
    boot = facts.next_boot
    if boot.loader.unread == "absent":
        yield Finding("boot.kernel", HOST, Status.not_applicable, boot.loader.detail, source=boot.loader.source)
        return
    need(boot.loader)
    now, wish = release_running(facts), expectation.boot.kernel
    source = boot.loader.source
    if not now and wish is None:
        need_start(facts)
        image = boot_image(facts)
        started = f"was started from {image}, which is" if image else "was started by something else, which is"
        seen = f"this boot {started} no kernel of the menu in {source}"
        yield Finding("boot.kernel", HOST, Status.not_applicable, seen, source=source)
        return
    then = need(boot.release)
    entry = need(boot.entry)
    notes = []
    if boot.missing_default.value:
        notes.append(f"the default {boot.missing_default.value!r} is not in the menu")
    if boot.once.value:
        notes.append(f"{boot.once.value!r} is set for one boot")
    is_right = fnmatch.fnmatchcase(then, wish) if wish is not None else then == now
    differs = change(facts)
    if differs is not None and (differs.gone or differs.new):
        count = len(differs.gone) + len(differs.new)
        notes.append(f"{count} kernel argument{'s' if count > 1 else ''} will differ ({SHOW})")
    seen = "; ".join((f"{then} ({entry})", *notes))
    if boot.missing_default.value or not is_right:
        yield Finding(
            "boot.kernel",
            HOST,
            Status.warn,
            seen=seen,
            wanted=wish or f"{now}, which runs now",
            source=source,
            next_step=SHOW,
        )
    elif (unread := next((one for one in (boot.missing_default, boot.once) if one.value is None), None)) is not None:
        yield unknown("boot.kernel", unread)
    else:
        yield Finding("boot.kernel", HOST, Status.ok, seen, source=source)


@check("boot.initrd", title="The next boot finds its kernel, its initrd and its modules")
def initrd(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`boot.initrd`

    Why: a kernel package without its initrd leaves a host that does not come back (arc-host-facts A.1: mainline kernel
    packages, update-initramfs -c needed), and a removed package leaves an entry without files. An initrd that is older
    than xe's module or firmware brings the old ones back at every boot, whatever the package says.
    """
    boot = facts.next_boot
    if boot.loader.unread == "absent":
        yield Finding("boot.initrd", HOST, Status.not_applicable, boot.loader.detail, source=boot.loader.source)
        return
    if not release_running(facts) and need(boot.loader):
        need_start(facts)
        seen = "this boot was not started by the menu that was found"
        yield Finding("boot.initrd", HOST, Status.not_applicable, seen, source=boot.loader.source)
        return
    missing = need(boot.missing_files)
    release = boot.release.value or "the next kernel"
    problems = [f"{path} is not there" for path in missing]
    if boot.initrd.value == () and not missing:
        problems.append(f"the entry of {release} loads no initrd")
    if boot.modules.value is False:
        problems.append(f"/lib/modules/{release} is not there")
    step = f"update-initramfs -c -k {release} && update-grub"
    old = boot.stale.value if has_xe(facts) else None
    if old and not problems:
        step = f"update-initramfs -u -k {release}"
    if old:
        problems.append(f"{boot.stale.source} is older than {', '.join(old)}, which it may hold")
    if problems:
        if boot.loader.value != "grub":
            step = f"dracut -f --kver {release}"
        wanted = "kernel, initrd and modules on disk, the initrd the newest"
        yield Finding("boot.initrd", HOST, Status.warn, "; ".join(problems), wanted, boot.missing_files.source, step)
    elif boot.initrd.value is None:
        yield unknown("boot.initrd", boot.initrd)
    elif boot.modules.value is None and boot.modules.unread not in ("absent", "not_understood"):
        yield unknown("boot.initrd", boot.modules)
    else:
        seen = ", ".join((*boot.initrd.value, f"modules of {release}"))
        yield Finding("boot.initrd", HOST, Status.ok, seen, source=boot.missing_files.source)


def has_xe(facts: Facts) -> bool:
    """Has this host a card that xe drives?"""
    return any(gpu.driver.value == "xe" for gpu in facts.pcie.gpus.value or ())


def loaded(facts: Facts) -> dict[str, str]:
    """Name of a GuC file, e.g. ``bmg_guc_70.bin`` -> the version that the driver says it loaded from it."""
    found: dict[str, str] = {}
    for event in facts.kernel_log.events.value or ():
        if event.kind == "guc.loaded" and not event.previous_boot:
            file, version = (event.details.get(key, "").rpartition(", ")[2] for key in ("file", "version"))
            found[file.rpartition("/")[2]] = version
    return found


def reloads(facts: Facts) -> list[str]:
    """GuC files whose version on disk is not the one that runs, for a person."""
    found = []
    running = loaded(facts)
    for one in facts.next_boot.guc_versions.value or ():
        name = one.path.rpartition("/")[2].removesuffix(".zst").removesuffix(".xz")
        if name in running and one.version.value is not None and one.version.value != running[name]:
            found.append(f"{one.path} is {one.version.value}, {running[name]} runs")
    return found


@check("boot.automatic", title="Nothing reboots this host by itself")
def automatic(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`boot.automatic`

    Why: an automatic reboot ends running jobs and starts whatever the upgrades left (lab-host-facts 2.3). Upgrades
    without a person are common and told as such; a reboot by itself is a warning unless `boot.automatic_reboot`
    declares it.
    """
    boot = facts.next_boot
    if boot.unattended.unread == "absent":
        seen = "no settings of apt or dnf-automatic"
        yield Finding("boot.automatic", HOST, Status.not_applicable, seen, source=boot.unattended.source)
        return
    upgrades, when = need(boot.unattended), need(boot.automatic_reboot)
    pending = [package for package in boot.reboot_required.value or () if package]
    by = f" by {', '.join(pending[:4])}" if pending else ""
    wants = f"; a reboot is asked for{by}" if boot.reboot_required.value else ""
    source = boot.automatic_reboot.source
    if when:
        status = Status.info if expectation.boot.automatic_reboot else Status.warn
        seen = f"upgrades and reboots by itself ({when}){wants}"
        step = "" if expectation.boot.automatic_reboot else AUTOMATIC_OFF.get(source.partition(":")[0], AUTOMATIC_APT)
        wanted = "declared" if expectation.boot.automatic_reboot else "no reboot without a person"
        yield Finding("boot.automatic", HOST, status, seen, wanted, source, step)
    else:
        seen = f"{'upgrades without a person, ' if upgrades else ''}no reboot by itself{wants}"
        yield Finding("boot.automatic", HOST, Status.ok, seen, source=source)


AUTOMATIC_APT = "echo 'Unattended-Upgrade::Automatic-Reboot \"false\";' | sudo tee /etc/apt/apt.conf.d/99-no-reboot"
AUTOMATIC_OFF = {"/etc/dnf/automatic.conf": "sudo sed -i 's/^reboot *=.*/reboot = never/' /etc/dnf/automatic.conf"}


@check("boot.firmware", title="No loose firmware file hides the one of the package")
def firmware(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`boot.firmware`

    Why: the kernel tries the plain name before the compressed one, so a ``.bin`` that was copied by hand wins over the
    package's ``.bin.zst`` at the next load, and a wrong one ends the probe with -EINVAL (arc-host-facts A.1). A version
    in a file's own header that is not the one that runs is told: the next load takes it, or the initrd's older copy.
    """
    boot = facts.next_boot
    if boot.shadowing.unread == "absent" or boot.guc_files.value == ():
        seen = "no GuC firmware for xe on disk"
        yield Finding("boot.firmware", HOST, Status.not_applicable, seen, source=boot.shadowing.source)
        return
    hiding = need(boot.shadowing)
    if hiding:
        yield Finding(
            "boot.firmware",
            HOST,
            Status.warn,
            seen=f"{', '.join(hiding)} hides the compressed file of the package",
            wanted="the file of the package",
            source=boot.shadowing.source,
            next_step=f"dpkg -S {hiding[0]}  # if no package owns it: move it away, update-initramfs -u",
        )
    elif told := reloads(facts):
        yield Finding("boot.firmware", HOST, Status.info, "; ".join(told), source=boot.guc_files.source, next_step=SHOW)
    else:
        versions = {one.path: one.version.value for one in boot.guc_versions.value or ()}
        names = {path: path.rpartition("/")[2] for path in need(boot.guc_files)}
        seen = ", ".join(f"{name} {versions.get(path) or ''}".strip() for path, name in names.items())
        yield Finding("boot.firmware", HOST, Status.ok, seen, source=boot.guc_files.source)
