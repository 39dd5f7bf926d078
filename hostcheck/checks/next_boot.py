"""What will the next boot start, can it, and may it come by itself?"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..expectations import Expectation
from ..findings import HOST, Finding, Status, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.reader import Reading
from ..onhost.readings.initrd import Guc
from ..onhost.readings.log_events import Event
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


@check(
    "boot.initrd",
    title="The next boot finds its kernel, its initrd and its modules, and in it the GuC of the disk",
)
def initrd(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`boot.initrd`

    Why: a kernel package without its initrd leaves a host that does not come back (arc-host-facts A.1: mainline kernel
    packages, update-initramfs -c needed), and a removed package leaves an entry without files. An initrd that is older
    than xe's module or firmware brings the old ones back at every boot, whatever the package says (lab-host-facts 2.3:
    an update of linux-firmware and the initrd). `hostcheck next-boot`, or an audit with `initrd`, looks into it: where
    it holds xe, the driver is loaded before the root is mounted and takes the GuC file from there, or none.
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
    step = renew(facts, release, anew=bool(problems))
    if old := stale(facts):
        problems.append(f"{boot.stale.source} is older than {', '.join(old)}, which it may hold")
    problems += lacks(facts)
    if problems:
        wanted = "kernel, initrd and modules on disk, and in the initrd what is there"
        yield Finding("boot.initrd", HOST, Status.warn, "; ".join(problems), wanted, boot.missing_files.source, step)
    elif boot.initrd.value is None:
        yield unknown("boot.initrd", boot.initrd)
    elif boot.modules.value is None and boot.modules.unread not in ("absent", "not_understood"):
        yield unknown("boot.initrd", boot.modules)
    elif (unread := not_seen(facts)) is not None:
        yield unknown("boot.initrd", unread, next_step=install(facts, unread))
    else:
        held = "".join(f", {what}" for what in holds(facts))
        seen = ", ".join((*boot.initrd.value, f"modules of {release}"))
        yield Finding("boot.initrd", HOST, Status.ok, seen + held, source=boot.missing_files.source)


def install(facts: Facts, unread: Reading[Any]) -> str:
    """The command that installs the tool that was missing, "" where none was."""
    tool = re.match(r"(\w+) is not installed$", unread.detail)
    if unread.unread != "tool_missing" or not tool:
        return ""
    return f"sudo {'dnf' if facts.packages.manager.value == 'rpm' else 'apt-get'} install {tool.group(1)}"


def renew(facts: Facts, release: str, anew: bool = False) -> str:
    """The command that makes the initrd of a kernel again, by what this host has for it."""
    maker = facts.initrd.maker.value or ("update-initramfs" if facts.next_boot.loader.value == "grub" else "dracut")
    if maker == "dracut":
        return f"sudo dracut -f --kver {release}"
    if maker == "mkinitcpio":
        return "sudo mkinitcpio -P"
    if anew:
        return f"sudo update-initramfs -c -k {release} && sudo update-grub"
    return f"sudo update-initramfs -u -k {release}"


def has_xe(facts: Facts) -> bool:
    """Has this host a card that xe drives?"""
    return any(gpu.driver.value == "xe" for gpu in facts.pcie.gpus.value or ())


def of_xe(facts: Facts, kind: str) -> list[Event]:
    """Log lines of a kind on this boot, those about cards that i915 drives left out."""
    others = {gpu.bdf for gpu in facts.pcie.gpus.value or () if gpu.driver.value == "i915"}
    events = facts.kernel_log.events.value or ()
    return [one for one in events if one.kind == kind and not one.previous_boot and one.bdf not in others]


def loaded(facts: Facts) -> dict[str, str]:
    """Name of a GuC file, e.g. ``xe/bmg_guc_70.bin`` -> the version that the driver says it loaded from it."""
    found: dict[str, str] = {}
    for event in of_xe(facts, "guc.loaded"):
        file, version = (event.details.get(key, "").rpartition(", ")[2] for key in ("file", "version"))
        found[file] = version
    return found


def asked_for(facts: Facts) -> set[str]:
    """Names of the GuC files that cards here took on this boot, or asked for in vain."""
    lines = [sample for event in of_xe(facts, "guc.load_failed") for sample in event.samples]
    in_vain = [name for line in lines for name in re.findall(r"GuC firmware (\S+): fetch failed", line)]
    return {*loaded(facts), *in_vain} - {""}


# -- what the initrd holds --------------------------------------------------------------------------------------------


def starts_xe(facts: Facts) -> bool | None:
    """Does the initrd hold xe for the kernel that it is loaded with? None where it was not read."""
    release = facts.next_boot.release.value
    found = facts.initrd.modules.value
    return None if found is None else any(release is None or f"/modules/{release}/" in path for path in found)


def taken(facts: Facts) -> list[Guc]:
    """GuC files of the initrd that a card here takes, by what the log says of this boot; else all of xe's."""
    if not starts_xe(facts):
        return []
    held, names = facts.initrd.guc.value or (), asked_for(facts)
    return [one for one in held if (one.name in names if names else one.name.startswith("xe/"))]


def stale(facts: Facts) -> list[str]:
    """Files that came after the initrd and that it may hold in an older form, as far as it was not looked into."""
    old = facts.next_boot.stale.value if has_xe(facts) else None
    within = starts_xe(facts)
    if not old or within is False:
        return []
    is_seen = within is not None and not_seen(facts) is None
    return [path for path in old if not (is_seen and "/firmware/" in path)]


def lacks(facts: Facts) -> list[str]:
    """What is wrong with the GuC files of an initrd that holds xe, for a person."""
    if not starts_xe(facts):
        return []
    held, where, wanted = taken(facts), facts.initrd.guc.source, asked_for(facts)
    there = {one.name for one in held}
    found = [f"{where} holds xe and not {name}, which a card here takes" for name in sorted(wanted - there)]
    if not wanted and not held:
        found.append(f"{where} holds xe and no GuC firmware")
    for one in held:
        version, disk = one.version.value, one.on_disk
        if disk.unread == "absent":
            found.append(f"{where} holds {one.name} {version or 'of a version not read'}, which is not on disk")
        elif version is not None and disk.value is not None and version != disk.value:
            found.append(f"{where} holds {one.name} {version}, {disk.source} is {disk.value}")
    return found


def not_seen(facts: Facts) -> Reading[Any] | None:
    """What of the initrd was asked for and not read, or None."""
    readings: list[Reading[Any]] = [facts.initrd.modules]
    readings += [reading for one in taken(facts) for reading in (one.version, one.on_disk)]
    return next((one for one in readings if one.unread not in (None, "not_asked")), None)


def holds(facts: Facts) -> list[str]:
    """What the initrd holds where nothing is wrong with it; [] where it was not read."""
    within = starts_xe(facts)
    if within is None:
        return []
    files = " and ".join(f"{one.name} {one.version.value}" for one in taken(facts))
    return [f"it holds xe with {files} as on disk"] if within else ["it holds no xe: the files on disk count"]


def reloads(facts: Facts) -> list[str]:
    """GuC files whose version is not the one that runs, where the next load takes them, for a person."""
    running = loaded(facts)
    if starts_xe(facts):
        where = facts.initrd.guc.source
        then = [(one.name, f"{one.name} in {where}", one.version.value) for one in taken(facts)]
    else:
        versions = facts.next_boot.guc_versions.value or ()
        names = [one.path.rpartition("/")[2].removesuffix(".zst").removesuffix(".xz") for one in versions]
        then = [(f"xe/{name}", one.path, one.version.value) for name, one in zip(names, versions, strict=True)]
    return [
        f"{where} is {version}, {running[name]} runs"
        for name, where, version in then
        if version is not None and version != running.get(name, version)
    ]


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
