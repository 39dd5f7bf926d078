"""What xpu-smi sees: a witness beside sysfs and the kernel log, never a judge.

All documented forms are read: JSON of 1.0 to 2.1, the bordered tables of 1.x, the three-column screen of 2.0 and the
borderless list of 2.1, and the ways in which the tool fails, several of them with exit status 0.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..reader import Output, Reader, Reading, shorten
from .holders import Holders
from .kernel_log import KernelLog
from .pcie import ASLEEP, Gpu, Pcie

if TYPE_CHECKING:
    from ..gather import Options

VERSION, LIST_JSON, LIST_TEXT = ("xpu-smi", "-v"), ("xpu-smi", "discovery", "-j"), ("xpu-smi", "discovery")
TIMEOUT = 10.0
INTEL = "8086"
DRIVERS = ("xe", "i915")  # what Level Zero works through: it reaches no card that another driver holds

# Exit codes of 1.x (its exit_code.h); 2.x knows 1, 2 and 255, its main returning -1 when Level Zero does not start.
EXIT_CODES = {
    1: "generic error",
    2: "wrong arguments",
    4: "device not found",
    5: "tile not found",
    18: "not initialised",
    39: "Level Zero cannot initialise",
    42: "diagnostics timed out",
    46: "firmware state unknown",
    50: "firmware management not initialised",
    63: "IOMMU is off",
    255: "the driver cannot be initialised",
}
PLACEHOLDERS = ("", "n/a", "-1", "unknown", "null", "none", "-")
SURVIVABILITY = re.compile(r"(?i)SURVIVABILITY_MODE_DETECTED|\b(?:0x)?78000020\b|survivab")
NOTHING = re.compile(r"(?i)\bno (?:GPU )?devices? (?:discovered|found)\b")
FAILED = re.compile(r"(?im)^\s*error:|service status error|initialization failed|\"errno\"\s*:|ZE_RESULT_ERROR")
SMALL_BAR = re.compile(r"(?i)small bar detected|resizable bar not detected")
ADDRESS = re.compile(r"\b(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])\b", re.IGNORECASE)


@dataclass(frozen=True)
class SmiDevice:
    """One device as xpu-smi lists it; what it does not say, or says by a placeholder, is ``""`` (-1 for `number`).

    number: its own index, which is not the card's number in /dev/dri. state: e.g. ``normal``, only since 2.x.
    """

    number: int = -1
    bdf: str = ""
    name: str = ""
    state: str = ""
    drm: str = ""
    device: str = ""
    function: str = ""


@dataclass(frozen=True)
class XpuSmi:
    """Answers of xpu-smi.

    version, level_zero: e.g. ``2.0.0.20250225`` and ``1.28.6``. devices: of ``discovery -j``; () when it says that
    there are none, which older versions also say when they cannot see the driver. listed: the same of ``discovery``.
    survivability: it speaks of survivability mode, by an error code or as the state of a device.
    small_bars: cards that Level Zero refuses for their small BAR; it says so on the tool's own output.
    """

    version: Reading[str]
    level_zero: Reading[str]
    devices: Reading[tuple[SmiDevice, ...]]
    listed: Reading[tuple[SmiDevice, ...]]
    survivability: Reading[bool]
    small_bars: Reading[tuple[str, ...]] = Reading.no("not_asked", "not read by this version")


# -- parsers ----------------------------------------------------------------------------------------------------------


def parse_address(text: str) -> str:
    """Return a PCI address with its domain, lower case; ``""`` when there is none in the text.

    >>> parse_address("00000000:E3:00.0"), parse_address("03:00.0"), parse_address("N/A")
    ('0000:e3:00.0', '0000:03:00.0', '')
    """
    match = ADDRESS.search(text)
    if not match:
        return ""
    domain, bus, device, function = match.groups()
    return f"{(domain or '0000').lower().lstrip('0').zfill(4)}:{bus.lower()}:{device.lower()}.{function}"


def parse_version(text: str) -> str:
    """Return the version of the tool: that of the service, which the command line's own follows.

    >>> parse_version("CLI:\\n    Version: 1.2.39.20240906\\n    Build ID: 11f3c29a\\n")
    '1.2.39.20240906'

    Raises ValueError when there is none, as with a daemon that is down.
    """
    for line in text.splitlines():
        match = re.match(r"\s*(?:xpu-smi|xpumcli)?\s*version:?\s+v?(\d+(?:\.\d+)+)", line, re.IGNORECASE)
        if match:
            return match.group(1)
    raise ValueError(f"expected a version, got {shorten(text)!r}")


def parse_level_zero(text: str) -> str:
    """Return the version of the Level Zero loader. Raises ValueError when it says none."""
    match = re.search(r"(?im)^\s*Level Zero Version:\s*v?(\d+(?:\.\d+)+)", text)
    if not match:
        raise ValueError(f"expected a Level Zero version, got {shorten(text)!r}")
    return match.group(1)


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers, for comparing.

    >>> numbers("1.2.39.20240906") < (1, 3)
    True
    """
    return tuple(int(part) for part in re.findall(r"\d+", version))


def plain(value: Any) -> str:
    """A value of the JSON as text; placeholders become ``""``."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return ""
    text = str(value).strip()
    return "" if text.lower() in PLACEHOLDERS else text


def _index(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else -1


def _id(text: str) -> str:
    match = re.fullmatch(r"(?:0x)?([0-9a-f]{4})", text.strip().lower())
    return match.group(1) if match else ""


def _first(entry: dict[str, Any], *keys: str) -> str:
    return next((plain(entry[key]) for key in keys if plain(entry.get(key))), "")


def _entry(entry: Any) -> SmiDevice:
    if not isinstance(entry, dict):
        raise ValueError(f"expected a device, got {shorten(repr(entry))}")
    return SmiDevice(
        number=_index(_first(entry, "device_id")),
        bdf=parse_address(_first(entry, "pci_bdf_address", "pci_bdf", "bdf_address", "bdf")),
        name=_first(entry, "device_name", "name"),
        state=_first(entry, "device_state"),
        drm=_first(entry, "drm_device").rpartition("/")[2],
        device=_id(_first(entry, "pci_device_id")),
        function=_first(entry, "device_function_type"),
    )


def document(text: str) -> Any:
    """The JSON of an answer, which messages may precede. Raises ValueError."""
    starts = [match.end() - 1 for sign in (r"\{", r"\[") for match in re.finditer(rf"(?m)^\s*{sign}", text)]
    problem = f"expected JSON, got {shorten(text, 120)!r}" if text.strip() else "printed nothing"
    for start in starts[:8]:
        try:
            found, _ = json.JSONDecoder().raw_decode(text[start:])
        except (json.JSONDecodeError, RecursionError) as error:
            problem = f"expected JSON, got {shorten(text, 120)!r}: {shorten(str(error), 60)}"
        else:
            return found
    raise ValueError(complaint(text) or problem)


def parse_json(text: str) -> tuple[SmiDevice, ...]:
    """Return the devices of ``discovery -j``; () when the list is null, empty or a sentence.

    >>> parse_json('{"device_list": null}')
    ()
    >>> parse_json('{"device_list": [{"device_id": "0", "pci_bdf_address": "0000:03:00.0"}]}')[0].bdf
    '0000:03:00.0'

    Raises ValueError for an error object, and for anything else that is no list of devices.
    """
    found = document(text)
    if isinstance(found, list):
        found = {"device_list": found}
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, got {shorten(text)!r}")
    if "device_list" not in found:
        if plain(found.get("error")) or "errno" in found:
            raise ValueError(f"error {plain(found.get('errno')) or '?'}: {plain(found.get('error'))}")
        if "pci_bdf_address" in found:
            return (_entry(found),)  # as for one device
        raise ValueError(f"expected device_list, got {shorten(text)!r}")
    devices = found["device_list"]
    if devices is None or (isinstance(devices, str) and (not devices.strip() or NOTHING.search(devices))):
        return ()
    if not isinstance(devices, list):
        raise ValueError(f"expected a list of devices, got {shorten(repr(devices))}")
    return tuple(_entry(entry) for entry in devices)


FIELDS = {
    "device name": "name",
    "device state": "state",
    "pci bdf address": "bdf",
    "drm device": "drm",
    "pci device id": "device",
    "function type": "function",
}


def _cells(line: str) -> list[str] | None:
    """Cells of a bordered row, their leading blank taken off; None for another line."""
    stripped = line.strip()
    if len(stripped) < 2 or stripped[0] not in "|│" or stripped[-1] not in "|│":
        return None
    return [cell[1:].rstrip() if cell.startswith(" ") else cell.rstrip() for cell in re.split(r"[|│]", stripped[1:-1])]


def _set(device: SmiDevice, text: str) -> SmiDevice:
    key, colon, value = text.partition(":")
    name = FIELDS.get(key.strip().lower())
    value = "" if value.strip().lower() in PLACEHOLDERS else value.strip()
    if not colon or name is None or not value:
        return device
    if name == "bdf":
        return replace(device, bdf=parse_address(value) or device.bdf)
    if name == "drm":
        return replace(device, drm=value.rpartition("/")[2])
    changes: dict[str, Any] = {name: _id(value) if name == "device" else value}
    return replace(device, **changes)


def _continued(device: SmiDevice, last: str, text: str) -> SmiDevice:
    """A wrapped value: an indented row without a colon (1.x) goes on with the row above it."""
    name = FIELDS.get(last.partition(":")[0].strip().lower())
    if name not in ("name", "state") or not text.startswith(" ") or ":" in text or not text.strip():
        return device
    changes: dict[str, Any] = {name: f"{getattr(device, name)} {text.strip()}".strip()}
    return replace(device, **changes)


def _screen_rows(rows: Sequence[list[str]]) -> list[SmiDevice]:
    """Devices of the three-column screen. The address cell is the key: the name beside it wraps or is empty."""
    found: list[SmiDevice] = []
    open_name = False
    for cells in rows:
        bdf = parse_address(cells[1])
        if bdf:
            match = re.match(r"\s*(\d+)\s*(.*?)\s*(?:\b(?:On|Off|N/A)\b)?\s*$", cells[0])
            number, name = (_index(match.group(1)), match.group(2)) if match else (-1, "")
            found.append(SmiDevice(number, bdf, "" if name.lower() in PLACEHOLDERS else name))
            open_name = True
        elif open_name and cells[0].strip() and not cells[1].strip():
            found[-1] = replace(found[-1], name=f"{found[-1].name} {cells[0].strip()}".strip())
        else:
            open_name = False  # fan, power and memory follow, then the table of processes
    return found


def _list_rows(rows: Sequence[tuple[str, str]]) -> list[SmiDevice]:
    """Devices of (first cell, second cell): a number in the first cell begins a device."""
    found: list[SmiDevice] = []
    last = ""
    for first, second in rows:
        if _index(first.strip()) >= 0:
            found.append(SmiDevice(number=_index(first.strip())))
        elif first.strip():
            continue  # the header, or a line of something else
        if found:
            changed = _continued(found[-1], last, second)
            if changed is found[-1]:
                changed = _set(found[-1], second)
                last = second if ":" in second else last
            found[-1] = changed
    return found


def parse_text(text: str) -> tuple[SmiDevice, ...]:
    """Return the devices of ``discovery`` or of the default screen; () when it says that there are none.

    >>> parse_text("| 0         | Device Name: Arc |\\n|           | PCI BDF Address: 0000:03:00.0 |\\n")[0].bdf
    '0000:03:00.0'

    Raises ValueError for anything else, with the line in which the tool says what is wrong where there is one.
    """
    tables: list[list[str]] = []
    borderless: list[tuple[str, str]] = []
    header = False
    for line in text.splitlines():
        cells = _cells(line)
        if cells is not None:
            tables.append(cells)
            continue
        header = header or re.match(r"\s*Device ID\s{2,}Device Information\s*$", line) is not None
        match = re.match(r"\s{0,6}(\d{1,6})\s{2,}(\S.*)$", line) or re.match(r"\s{4}()\s+(\S.*)$", line)
        if header and match:
            borderless.append((match.group(1), match.group(2)))
    found = _list_rows([(cells[0], cells[1]) for cells in tables if len(cells) == 2])
    found += _screen_rows([cells for cells in tables if len(cells) == 3])
    found += _list_rows(borderless)
    if found:
        return tuple(found)
    if NOTHING.search(text):
        return ()
    raise ValueError(complaint(text) or f"expected a table of devices, got {shorten(text)!r}")


def complaint(text: str) -> str:
    """The first line in which the tool says what is wrong, or "".

    >>> complaint("\\nError: XPUM Service Status Error. \\n")
    'Error: XPUM Service Status Error.'
    """
    wrong = re.compile(r"(?i)\berror\b|ZE_RESULT_ERROR|\bfailed\b|\bcannot\b|0x7[08]0[0-9a-f]{5}")
    return next((shorten(line) for line in text.splitlines() if wrong.search(line)), "")


def outcome(output: Output, source: str) -> Reading[str]:
    """The text of an answer, or why it is none: what the exit status means, and what the tool said last.

    A shell reports a signal as 128 + its number, the kernel as its negative number. Exit status 0 with nothing but an
    error is a failure too: so the client answers when its service does not run.
    """
    text = output.stdout or output.stderr
    if output.rc == 0:
        if FAILED.search(text) and not ADDRESS.search(text):
            return Reading(None, source, "exit", f"exit 0, yet: {complaint(text) or shorten(text, 120)}")
        return Reading(text, source)
    number = -output.rc if output.rc < 0 else output.rc - 128
    said = complaint(output.stdout) or complaint(output.stderr) or shorten(output.stdout or output.stderr, 120)
    if 0 < number <= 64 and output.rc not in EXIT_CODES:
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        what = f"crashed: {name}"
    else:
        what = f"exit {output.rc}: {EXIT_CODES[output.rc]}" if output.rc in EXIT_CODES else f"exit {output.rc}"
    return Reading(None, source, "exit", f"{what}; {said}" if said else what)


def parse_small_bars(text: str) -> tuple[str, ...]:
    """Return the cards that Level Zero refuses for a small BAR, in the words of its versions (compute-runtime#872).

    >>> parse_small_bars("WARNING: Small BAR detected for device 0000:1B:00.0\\n")
    ('0000:1b:00.0',)
    """
    lines = (line for line in text.splitlines() if SMALL_BAR.search(line))
    return tuple(dict.fromkeys(address for line in lines if (address := parse_address(line))))


# -- reader -----------------------------------------------------------------------------------------------------------


def held_back(
    gpus: Reading[tuple[Gpu, ...]], kernel_log: KernelLog, holders: Holders, options: Options, part: bool = False
) -> Reading[str] | None:
    """Why xpu-smi is not started, or None.

    part: the host is a recording and its answer is part of it, so that what was not recorded keeps nobody from it.

    It initialises every card that Level Zero can reach: that wakes a sleeping one, calls into a sick one, and
    disturbs work on a busy one (lab-host-facts 2.6). A node card* alone does not make a card busy: seat managers
    keep it open.
    """
    if options.xpu_smi == "never":
        return Reading.no("not_asked", "xpu-smi was not to be run", "xpu-smi")
    if gpus.value is None:
        return gpus.then(lambda _: "")
    ours = [gpu for gpu in gpus.value if gpu.vendor == INTEL and gpu.driver.value in (None, *DRIVERS)]
    if not ours:
        return Reading.no("not_asked", "no Intel GPU is bound to a driver that it can use", "xpu-smi")
    if options.xpu_smi == "always":
        return None
    for gpu in ours:
        status = gpu.runtime_status
        if not options.wake and (status.value in ASLEEP or status.unread not in (None, "absent")):
            return Reading.no("suspended", f"{gpu.bdf} is {status.value or status.unread}", status.source)
    faulted = set(kernel_log.faulted.value or ())
    for gpu in ours:
        if gpu.bdf in faulted or gpu.coredump.value or gpu.runtime_status.value == "error":
            return Reading.no("faulted", f"{gpu.bdf} faulted on this boot", kernel_log.faulted.source)
    if kernel_log.faulted.value is None and not (part and kernel_log.faulted.unread == "tool_missing"):
        detail = f"whether a card faulted on this boot is not known: {kernel_log.faulted.detail}"
        return Reading.no(kernel_log.faulted.unread or "not_asked", detail, kernel_log.faulted.source)
    if kernel_log.complete.value is not True and not part:
        lost = kernel_log.complete.detail or "the kernel log lost its beginning"
        detail = f"whether a card faulted on this boot is not known: {lost}"
        return Reading.no(kernel_log.complete.unread or "not_asked", detail, kernel_log.faulted.source)
    if holders.render.value is None and not (part and holders.render.unread == "absent"):
        return holders.render.then(lambda _: "")
    cards = {gpu.bdf for gpu in ours} | {""}
    for holder in holders.render.value or ():
        if holder.node.startswith("renderD") and holder.bdf in cards:
            busy = f"{holder.bdf or holder.node} is held by {holder.pid} ({holder.comm})"
            return Reading.no("not_asked", busy, holders.render.source)
    if holders.refused.value:
        return Reading.no(
            "permission",
            f"whether a card is in use is not known: {holders.refused.value} processes are of other users",
            holders.refused.source,
        )
    return None


def mentions(ran: Reading[Output]) -> Reading[bool]:
    return ran.then(lambda output: SURVIVABILITY.search(output.stdout + "\n" + output.stderr) is not None)


def small_bars(ran: Reading[Output]) -> Reading[tuple[str, ...]]:
    return ran.then(lambda output: parse_small_bars(output.stdout + "\n" + output.stderr))


def ask(reader: Reader, argv: Sequence[str]) -> tuple[Reading[Output], Reading[str]]:
    ran = reader.run(argv, TIMEOUT)
    if ran.value is None:
        return ran, ran.then(lambda output: output.stdout)
    return ran, outcome(ran.value, ran.source)


def read(reader: Reader, pcie: Pcie, kernel_log: KernelLog, holders: Holders, options: Options) -> XpuSmi:
    part = reader.has_recorded(LIST_JSON) or reader.has_recorded(LIST_TEXT)
    no = held_back(pcie.gpus, kernel_log, holders, options, part)
    if no is not None:
        return XpuSmi(no, no, no.then(lambda _: ()), no.then(lambda _: ()), no.then(bool), no.then(lambda _: ()))
    _, said = ask(reader, VERSION)
    ran, answer = ask(reader, LIST_JSON)
    if "timeout" in (said.unread, answer.unread):  # do not go on asking a card that does not answer
        again: Reading[str] = Reading.no("timeout", "not asked again after it did not end in time", "xpu-smi discovery")
        return XpuSmi(
            said.then(parse_version),
            said.then(parse_level_zero),
            answer.then(parse_json),
            again.then(lambda _: ()),
            mentions(ran),
            small_bars(ran),
        )
    ran_text, answer_text = ask(reader, LIST_TEXT)
    refusals = [small_bars(one) for one in (ran, ran_text)]
    claims = [mentions(one) for one in (ran, ran_text)]
    return XpuSmi(
        version=said.then(parse_version),
        level_zero=said.then(parse_level_zero),
        devices=answer.then(parse_json),
        listed=answer_text.then(parse_text),
        survivability=next((claim for claim in claims if claim.value), claims[0].or_(claims[1])),
        small_bars=next((one for one in refusals if one.value), refusals[0].or_(refusals[1])),
    )
