"""Runtime power management of every Intel card and of every bridge above it: ``power/control``.

On two of four cards of a lab host a boot unit had written ``on`` before the driver's probe ended, which then allowed
autosuspend: so a udev rule starts a unit at every appearance of a card. The card alone is not enough: its bridges
went to D3cold. ``auto`` is written only where a host allows it (``runtime_auto``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..reader import Reading
from ..readings import gpu_ids, pcie
from ..readings.lspci import Device
from .engine import Goal, Host, OwnedFile, Plan, Record, Refused, Setting, Thing, Value, View, keys_of
from .files import File

NAME = "gpu_runtime_pm"
RULES = "/etc/udev/rules.d/60-hostcheck.rules"
UNIT = "/etc/systemd/system/hostcheck-gpu-pm@.service"
SCRIPT = "/usr/local/lib/hostcheck/gpu-pm"
RELOADS = (("udevadm", "control", "--reload"), ("systemctl", "daemon-reload"))
COST = (
    "cost: a card that may not sleep always draws its idle power (44 to 49 W without ASPM, 4 to 6 W with L1: "
    "a community report)"
)
UNIT_TEXT = f"""\
[Unit]
Description=Power control of GPU %i and the bridges above it (hostcheck, role {NAME})

[Service]
Type=oneshot
ExecStart={SCRIPT} %i
"""
SCRIPT_TEXT = """\
#!/bin/sh
# Give a PCI function and every bridge above it the wanted power/control. Written by hostcheck, role gpu_runtime_pm.
# A function that sleeps is left alone: waking it is not this unit's to decide.
wanted=@CONTROL@
devices=${HOSTCHECK_ROOT:-}/sys/bus/pci/devices
case "$1" in
  '' | *[!0-9a-fA-F:.]*) echo "usage: gpu-pm BDF" >&2; exit 2 ;;
esac
here=$(readlink -f "$devices/$1") || exit 1
status=0
while [ -e "$here/power/control" ] && [ -e "$here/vendor" ]; do
  case "$(cat "$here/power/runtime_status")" in
    suspended | error) echo "$here: asleep or in error, left alone" >&2; status=1 ;;
    *)
      echo "$wanted" > "$here/power/control" || status=1
      [ "$(cat "$here/power/control")" = "$wanted" ] || { echo "$here: not kept" >&2; status=1; }
      ;;
  esac
  here=${here%/*}
done
exit $status
"""


@dataclass(frozen=True)
class Wanted:
    """control: ``on``, ``auto`` or None. cards_expected: it is a mistake when there is no card."""

    control: str | None = None
    runtime_auto: bool = False
    cards_expected: bool = False


def parse(data: dict[str, Any]) -> Wanted:
    """What is wanted. YAML reads a bare ``on`` as true. Raises Refused.

    >>> parse({"control": True}).control
    'on'
    """
    found = keys_of(data, NAME, {"control": (str, bool), "runtime_auto": bool, "cards_expected": bool})
    control = "on" if found.get("control") is True else found.get("control")
    if control not in (None, "on", "auto"):
        raise Refused(f"{NAME}.control: {control!r} is unknown; wanted on or auto")
    if control == "auto" and not found.get("runtime_auto", False):
        raise Refused(
            f"{NAME}.control: auto lost cards that could not wake up; a host that may try it says runtime_auto: true"
        )
    return Wanted(control, found.get("runtime_auto", False), found.get("cards_expected", False))


def _no_listing() -> Reading[dict[str, Device]]:
    return Reading.no("not_asked", "lspci is not asked for a change", "lspci")


def cards(host: Host) -> tuple[list[pcie.Function], dict[str, pcie.Function]]:
    """The Intel cards in use on this host (no graphics of the processor, no virtual function, none given away)."""
    functions: dict[str, pcie.Function] = host.must(pcie.read_functions(host.reader, _no_listing))
    found = []
    for bdf, one in sorted(functions.items()):
        if one.vendor != gpu_ids.INTEL or not gpu_ids.is_gpu(one.vendor, one.class_code):
            continue
        if gpu_ids.holds_for_another(one.driver) or host.reader.link(f"{pcie.DEVICES}/{bdf}/physfn").value is not None:
            continue
        if gpu_ids.product(one.vendor, one.device) is None and not one.parent:
            continue
        found.append(one)
    return found, functions


def rules(ids: tuple[str, ...]) -> str:
    """The udev rule for these device ids: at every appearance of a card and after the driver's probe (bind)."""
    wanted = "|".join(f"0x{one}" for one in ids)
    return (
        f"# Written by hostcheck, role {NAME}; playbooks/undo.yml removes it.\n"
        'ACTION=="add|bind|change", SUBSYSTEM=="pci", ATTR{vendor}=="0x8086", '
        f'ATTR{{device}}=="{wanted}", '
        'TAG+="systemd", ENV{SYSTEMD_WANTS}+="hostcheck-gpu-pm@%k.service"\n'
    )


def plan(host: Host, wanted: Wanted, record: Record) -> Plan:
    """The rule, the unit, and the live value of every card that is awake."""
    if wanted.control is None:
        return Plan()
    found, functions = cards(host)
    if not found and wanted.cards_expected:
        raise Refused(f"{NAME}: no Intel card is seen below {pcie.DEVICES}, but cards are expected on this host")
    ids = tuple(sorted({*gpu_ids.INTEL_CARDS, *(one.device for one in found)}))
    goals = [
        Goal(OwnedFile(SCRIPT), File(SCRIPT_TEXT.replace("@CONTROL@", wanted.control), None, 0o755).plain()),
        Goal(OwnedFile(UNIT, RELOADS), File(UNIT_TEXT).plain()),
        Goal(OwnedFile(RULES, RELOADS), File(rules(ids)).plain()),
    ]
    values: dict[str, None] = {}
    asleep = []
    for card in found:
        status = host.must(host.reader.line(f"{pcie.DEVICES}/{card.bdf}/power/runtime_status"))
        if status != "active":
            asleep.append(f"{card.bdf} is {status}")
            continue
        # The root port first: a bridge must not fall asleep between the write to it and to what is below.
        values.update(
            dict.fromkeys(f"{pcie.DEVICES}/{one.bdf}/power/control" for one in pcie.chain(functions, card.bdf))
        )
    goals += [Goal(Value(path), wanted.control) for path in values]
    warnings = tuple(f"{one}: not touched, set at its next appearance (reboot)" for one in asleep)
    return Plan(tuple(goals), bool(asleep), "", warnings, (COST,) if wanted.control == "on" else ())


def _of(host: Host, name: str) -> str:
    found, functions = cards(host)
    bdfs = dict.fromkeys(one.bdf for card in found for one in pcie.chain(functions, card.bdf))
    values: dict[str, int] = {}
    for bdf in bdfs:
        reading = host.reader.line(f"{pcie.DEVICES}/{bdf}/power/{name}")
        value = reading.value or f"unread ({reading.unread})"
        values[value] = values.get(value, 0) + 1
    return ", ".join(f"{value} ({count})" for value, count in sorted(values.items())) or "no card"


def view(host: Host, wanted: Wanted | None) -> View:
    """power/control of cards and bridges, the rule, and whether they are awake."""
    rule = host.reader.text(RULES).value
    script = host.reader.text(SCRIPT).value or ""
    control = next((line[7:] for line in script.splitlines() if line.startswith("wanted=")), "")
    persistent = f"{control} ({RULES})" if rule is not None and control else "the driver's default"
    return View(_of(host, "control"), persistent, _of(host, "runtime_status"), RULES if rule is not None else "")


def _keep(wanted: Wanted | None, thing: Thing, found: Any) -> str:
    if isinstance(thing, Value) and found == "auto" and not (wanted is not None and wanted.runtime_auto):
        return "stays on until the next boot: auto is written only where a host allows it (runtime_auto: true)"
    return ""


SETTING = Setting(NAME, parse, plan, view, keep_on_undo=_keep)
