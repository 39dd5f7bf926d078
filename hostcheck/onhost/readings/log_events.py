"""What the lines of a kernel log say about devices, folded per kind and device.

Sources of the forms: kernel drivers/pci/pcie/{aer,dpc,err}.c of 4.17 to 7.x, drivers/firmware/efi/cper.c,
drivers/acpi/apei/bert.c, drivers/gpu/drm/{xe,i915,amd,drm_drv.c}, kernel/watchdog*.c; the words differ by age.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Callable, NamedTuple

from .log_lines import BDF, NO_TIME, Message, is_cut

SAMPLES = 3
SAMPLE_LINES = 24
SAMPLE_LENGTH = 2000  # characters
NEAR_SECONDS = 5.0  # details of an error come at once; a burst on a slow console may take seconds
NEAR_LINES = 400
NOTES = 12  # words kept per detail
CACHE = 20_000  # lines of error reports whose meaning is kept
NOTED = 64
TRACE_SECONDS = 60.0  # a call trace that takes longer is another one


@dataclass(frozen=True)
class Event:
    """Log lines of one kind about one device, folded.

    kind: dotted, e.g. ``aer.corrected``, ``xe.engine_reset``. bdf: with domain, lower case; "" when no device is named.
    severity: what the line itself says, e.g. ``Correctable``; "" when it says none.
    count: how often, as a lower bound; suppressed: further ones that the kernel's rate limit dropped.
    first, last: seconds since boot; -1.0 where the lines carry no time. wall_first, wall_last: the same in UTC, or "".
    samples: at most three whole messages, the first ones. details: what was taken out of the lines.
    previous_boot: a record that the firmware kept from the boot before.
    peak_1s, peak_60s, peak_1h: the most within any such span.
    root_port: the port that reported, "" when none did. recovered: last word: "", "recovered" or "failed".
    order_first, order_last: line numbers, for the order of events whose lines carry no time.
    """

    kind: str
    bdf: str = ""
    severity: str = ""
    count: int = 1
    suppressed: int = 0
    first: float = -1.0
    last: float = -1.0
    wall_first: str = ""
    wall_last: str = ""
    samples: tuple[str, ...] = ()
    details: dict[str, str] = field(default_factory=dict)
    previous_boot: bool = False
    peak_1s: int = 0
    peak_60s: int = 0
    peak_1h: int = 0
    root_port: str = ""
    recovered: str = ""
    order_first: int = 0
    order_last: int = 0


def bdf(text: str) -> str:
    """A PCI address with its domain, as sysfs writes it.

    >>> bdf("00000000:C3:00.0"), bdf("10000:01:00.0")
    ('0000:c3:00.0', '10000:01:00.0')
    """
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest.lower()}"


# -- AER words -----------------------------------------------------------------------------------------

# Short names (kernel 4.18 and newer) by bit; the long names of older kernels are mapped to them.
CORRECTABLE = {
    0: "RxErr",
    6: "BadTLP",
    7: "BadDLLP",
    8: "Rollover",
    12: "Timeout",
    13: "NonFatalErr",
    14: "CorrIntErr",
    15: "HeaderOF",
}
UNCORRECTABLE = {
    0: "Undefined", 4: "DLP", 5: "SDES", 12: "TLP", 13: "FCP", 14: "CmpltTO", 15: "CmpltAbrt", 16: "UnxCmplt",
    17: "RxOF", 18: "MalfTLP", 19: "ECRC", 20: "UnsupReq", 21: "ACSViol", 22: "UncorrIntErr", 23: "BlockedTLP",
    24: "AtomicOpBlocked", 25: "TLPBlockedErr", 26: "PoisonTLPBlocked",
}  # fmt: skip
FATAL_BY_DEFAULT = ("DLP", "SDES", "FCP", "RxOF", "MalfTLP", "UncorrIntErr")  # PCIe base specification, 7.8.4.4
# Correctable errors of the signal, the ones that matter (the others are advisory); not masked by default.
SIGNAL = ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout")
_LONG = {
    "receivererror": "RxErr", "relaynumrollover": "Rollover", "replaynumrollover": "Rollover",
    "replaytimertimeout": "Timeout",
    "advisorynonfatal": "NonFatalErr", "advnonfatalerr": "NonFatalErr", "correctedinternalerror": "CorrIntErr",
    "headerlogoverflow": "HeaderOF", "datalinkprotocol": "DLP", "surprisedownerror": "SDES", "poisonedtlp": "TLP",
    "flowcontrolprotocol": "FCP", "completiontimeout": "CmpltTO", "completerabort": "CmpltAbrt",
    "unexpectedcompletion": "UnxCmplt", "receiveroverflow": "RxOF", "malformedtlp": "MalfTLP",
    "unsupportedrequest": "UnsupReq", "acsviolation": "ACSViol", "uncorrectableinternalerror": "UncorrIntErr",
    "mcblockedtlp": "BlockedTLP", "atomicopegressblocked": "AtomicOpBlocked", "tlpprefixblockederror": "TLPBlockedErr",
}  # fmt: skip
_SHORT = {name.lower(): name for name in (*CORRECTABLE.values(), *UNCORRECTABLE.values())}
KIND_OF = {"corrected": "aer.corrected", "nonfatal": "aer.nonfatal", "fatal": "aer.fatal", "": "aer.unclear"}


def bit_name(text: str) -> str:
    """The short name of a status bit, whatever the kernel's age; a name that is not known stays as it is.

    >>> bit_name("Replay Timer Timeout"), bit_name("RxErr"), bit_name("RELAY_NUM Rollover")
    ('Timeout', 'RxErr', 'Rollover')
    """
    plain = re.sub(r"[\s_-]", "", text).lower()
    return _LONG.get(plain) or _SHORT.get(plain) or text.strip()


def severity_of_bit(name: str) -> str:
    """The severity that a bit's name implies; "" when the name is not known.

    >>> severity_of_bit("RxErr"), severity_of_bit("SDES"), severity_of_bit("CmpltTO")
    ('corrected', 'fatal', 'nonfatal')
    """
    if name in CORRECTABLE.values():
        return "corrected"
    if name in UNCORRECTABLE.values():
        return "fatal" if name in FATAL_BY_DEFAULT else "nonfatal"
    return ""


def severity(text: str) -> str:
    """One of ``corrected``, ``nonfatal``, ``fatal``, or "" when the text is cut off before it can be told.

    >>> severity("C"), severity("Uncorrectable (Non-Fatal)"), severity("Uncorrected (Fatal)"), severity("Uncorrec")
    ('corrected', 'nonfatal', 'fatal', '')
    """
    low = text.lower()
    if low and ("corrected".startswith(low) or "correctable".startswith(low)):
        return "corrected"
    if low.startswith("uncorr"):
        if "non-fatal" in low or "nonfatal" in low:
            return "nonfatal"
        return "fatal" if "(fatal" in low else ""
    if low.startswith("corr"):
        return "corrected"
    return {"fatal": "fatal", "recoverable": "nonfatal", "info": "corrected", "informational": "corrected"}.get(low, "")


def bits_of(status: int, mask: int, names: dict[int, str]) -> list[str]:
    """Names of the status bits that are set and not masked.

    >>> bits_of(0x4000, 0, UNCORRECTABLE)
    ['CmpltTO']
    """
    return [names.get(bit, f"bit {bit}") for bit in range(32) if (status & ~mask) >> bit & 1]


# -- one line ------------------------------------------------------------------------------------------


class Said(NamedTuple):
    """What one message says. kind: of the event, or a step of an error report (``aer:…``, ``hw:…``)."""

    kind: str
    bdf: str
    details: dict[str, str]


# A port's service has a name of its own until 5.0: ``pciehp 0000:02:05.0:pcie24: ``.
_DEVICE = re.compile(rf"(?P<driver>[^\s:]+(?: [^\s:]+)?):? (?P<bdf>{BDF})(?::pcie\d+)?: (?P<rest>.*)", re.S)
_ANNOUNCED = re.compile(
    r"AER: (?P<multiple>Multiple )?(?P<severity>(?:Corr|Uncorr)\w*(?: \((?:Non-)?Fatal\)?)?)(?P<more>.*)", re.S
)
_SOURCE = re.compile(rf"received(?: from|:)?\s*(?:id=(?P<id>[0-9a-fA-F]{{4}})|(?P<bdf>{BDF}))")
_HEADER = re.compile(
    r"PCIe Bus Error: severity=(?P<severity>[^,>]*)(?:, type=(?P<layer>[^,>]*))?"
    r"(?:, (?:id=(?P<id>[0-9a-fA-F]{4}))?\(?(?P<agent>[A-Za-z ]*?) ?(?:ID)?\))?"
)
_STATUS = re.compile(r"device \[([0-9a-f]{4}:[0-9a-f]{4})\] erro")
_STATUS_WORDS = re.compile(r"error status/mask=([0-9a-fA-F]{8})/([0-9a-fA-F]{8})")
_BITS = re.compile(r"\[ ?(\d{1,2})\] +([A-Za-z][A-Za-z_ -]*?) *(?:\(First\))?(?= *\[| *>?$|  )")
_APEI = re.compile(r"aer_status: 0x([0-9a-fA-F]+), aer_mask: 0x([0-9a-fA-F]+)")
_RECOVERY = (
    (re.compile(r"AER: device recovery s"), "recovered"),
    (re.compile(r"AER: device recovery f|AER: can't recover|subordinate device reset failed"), "failed"),
    (re.compile(r"(?:broadcast error_detected|has no AER-aware driver)"), ""),
    (
        re.compile(
            r"AER: .*link has been reset|AER: .*found no error details|AER: +TLP Header|AER: +Error of this Agent"
        ),
        "",
    ),
)
_HARDWARE = re.compile(r"(?:\{(?P<id>\d+)\})?\[Hardware Error\]:(?P<rest>.*)", re.S)
_SUPPRESSED = re.compile(r"\b(?:\w*_)?aer\w*: (\d+) callbacks suppressed", re.I)
# A syslog daemon folds lines that are the same (rsyslog, RepeatedMsgReduction).
_REPEATED = re.compile(r"message repeated (?P<times>\d{1,9}) times: \[ ?(?:\[ *[\d.]+\] )?(?P<text>.*?)\]?$", re.S)

# i915 names the files as well: ``GuC firmware FILE (70.36.0) is recommended, but only FILE (70.20.0) was found``.
_RECOMMENDED = (
    r"GuC firmware(?: \S+)? \((?P<recommended>[\d.]+)\) is recommended,\s+but\s+only\s+(?:[^\s(]\S*\s+)?"
    r"\((?P<found>[\d.]+)\)"
)
_VERSION = r"GuC version:? (?P<version>\d[\d.]*\d),? \(?wanted (?P<wanted>\d[\d.]*\d)"

# Lines that begin with a device: kind, a word in lower case that must be in the line, pattern. The first that matches
# counts. ``xe.`` kinds become ``gpu.`` ones for other drivers.
_RULES: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (kind, word, re.compile(pattern, re.I | re.S))
    for kind, word, pattern in (
        ("gpu.recovered", "recovered", r"device wedged, (?:but )?recovered"),
        ("gpu.recovered", "succeeded", r"ring \S+ reset succeeded|gpu reset(?:\(\d+\))? succeeded"),
        ("gpu.wedge_cut", "wedged", r"device wedged(?:, ?(?:b|bu|but|but r\w{0,7})?)?>$"),
        ("xe.wedged", "wedged", r"declared device \S+ (?:as )?wedged|device wedged\b|declaring it wedged"),
        ("not_supported_by_driver", "graphics device", r"your graphics device (?P<device>[0-9a-f]{4}) is not"),
        ("probe_blocked", "probe blocked", r"probe blocked for device id (?P<device>[0-9a-f]{4})"),
        ("probe_failed", "probe with", r"probe with driver (?P<driver>\S+) failed with error (?P<error>-\d+)"),
        ("probe_failed", "gpu init", r"fatal error during GPU init"),
        (
            "survivability",
            "survivability",
            r"(?:in|enter(?:ed|ing)?|boot|runtime) survivability mode"
            r"|survivability mode(?: is)? (?:enabled|active|entered)",
        ),
        ("guc.recommended", "recommended", _RECOMMENDED),
        ("guc.loaded", "guc firmware", r"GuC firmware(?: from)? (?P<file>\S+?),? version (?P<version>\d+(?:\.\d+)+)"),
        ("guc.version", "wanted", _VERSION),
        (
            "guc.load_failed",
            "failed",
            r"\bload failed: status|GuC (?:load|init\w*) failed|GuC firmware \S+: fetch failed",
        ),
        ("pcode.timeout", "pcode", r"PCODE initialization timed ?out"),
        ("xe.coredump_created", "coredump", r"device coredump (?:file )?has been created"),
        ("xe.coredump_deleted", "coredump", r"device coredump (?:file )?has been deleted"),
        ("xe.cat_error", "cat error", r"engine memory cat error"),
        ("xe.fault_response", "response", r"fault response: unsuccessful|page fault.*response:? -E"),
        ("xe.pm_underflow", "underflow", r"runtime PM usage count underflow"),
        ("xe.kernel_job", "job", r"in no process \[-1\]|kernel-submitted job timed out"),
        ("xe.timedout_job", "job", r"timed ?out job\b"),
        ("xe.job_check", "job", r"check job timeout"),
        ("amdgpu.reset", "ring", r"ring \S+ reset (?:started|failed)"),
        ("amdgpu.reset_failed", "gpu re", r"gpu (?:reset|recovery)\S* (?:end with ret|failed)"),
        ("i915.reset_failed", "reset chip", r"failed to reset chip"),
        (
            "xe.reset_failed",
            "failed",
            r"reset request failed|schedule (?:en|dis)able failed to respond|\breset failed\b|failed to reset GuC\b",
        ),
        ("amdgpu.page_fault", "page fault", r"\bpage fault \(src_id"),
        ("xe.page_fault", "fault", r"faulted address: |faulttype: "),
        ("xe.engine_reset", "engine reset", r"\bengine reset\b"),
        ("i915.hang", "gpu hang", r"GPU HANG\b"),
        ("i915.hang", "heartbeat", r"stopped heartbeat on"),
        ("i915.reset", "reset", r"resetting \w+ (?:for|after)|context reset due to GPU hang"),
        ("xe.gt_reset", "reset", r"trying reset\b|\breset (?:queued|started|done)\b"),
        ("xe.tlb_timeout", "tlb inval", r"tlb invalidation.*(?:time'?d? ?out)"),
        ("xe.no_reply", "no reply", r"guc mmio request \S+ no reply"),
        # The channel to the GuC (xe_guc_ct.c, intel_guc_ct.c; i915-backports#172).
        ("xe.no_reply", "ct", r"\bCT: (?:no response for request|sending action \S+ failed|fence \d+ err)"),
        ("xe.no_reply", "failed", r"\b(?:CT dequeue|GuC recv message|G2H \w+) failed|CT: Failed to handle"),
        ("xe.no_reply", "wake", r"force ?wake.*\b(?:failed to ack|timed out)"),
        # xe_hw_error.c of 6.18; what is not said to be fatal was contained.
        ("xe.hardware_fatal", "hardware error]", r"\[Hardware Error\]: (?!.*non.?fatal).*\bfatal\b"),
        ("xe.hardware_error", "hardware error]", r"\[Hardware Error\]: "),
        ("xe.vm_error", "vm worker", r"VM worker error: "),
        ("xe.open_block", "gt", r"GT\d+: *(?:\n.*)?$"),
        ("amdgpu.soft_recovered", "soft recovered", r"\bring \S+ timeout, but soft recovered"),
        ("amdgpu.ring_timeout", "timeout", r"\bring \S+ timeout"),
        ("amdgpu.reset", "gpu reset", r"gpu reset begin"),
        ("gpu.lost", "bus", r"fallen off the bus|lost from (?:the )?bus"),
        ("gpu.lost", "mmio access", r"device is non-operational; MMIO access returns 0xF{8}"),  # intel_uncore.c of i915
        ("gpu.lost", "graphics version", r"hardware reports unknown graphics version 0\.00"),
        (
            "bar.vram",
            "accessible",
            r"actual physical size (?P<size>0x[0-9a-f]+),.*cpu accessible size (?P<visible>0x[0-9a-f]+)",
        ),
        ("bar.visible", "visible vram", r"visible vram: 0x\S+, (?P<visible>0x[0-9a-f]+)"),
        # i915 tells of the memory in two lines of its own (ipex-llm#12122).
        ("bar.vram", "local memory", r"local memory IO size: (?P<visible>0x[0-9a-f]+)"),
        ("bar.vram", "local memory", r"local memory available: (?P<size>0x[0-9a-f]+)"),
        ("bar.small", "small bar", r"small bar (?:device|detected)"),
        ("bar.small", "reduced bar", r"using a reduced BAR size"),
        ("bar.resize_failed", "resize", r"failed to resize BAR|can't resize \w+ BAR"),
        # drivers/pci/p2pdma.c, calc_map_type_and_dist_warn
        ("p2p.refused", "peer-to-peer", rf"cannot be used for peer-to-peer DMA .*provider \((?P<provider>{BDF})\)"),
        ("bar.resized", "resized to", r"BAR ?2 resized to (?P<size>\d+[MG])"),
        (
            "d3_failed",
            "power state",
            r"unable to change power state from \w+ to D0|refused to change power state|can't change power state from",
        ),
        ("resume_failed", "at resume", r"not ready at resume"),
        ("slot.link_down", "slot(", r"^(?:pciehp: )?slot\([^)]*\): (?:link down(?!/up)|card not present)"),
        ("link.retrain", "retraining", r"retraining non-functional|retraining failed"),
        (
            "link.limited",
            "bandwidth",
            r"(?P<available>[\d.]+ Gb/s) available PCIe bandwidth, limited by (?P<speed>\S+ GT/s)(?: PCIe)? "
            rf"(?P<width>x\d+) link at (?P<at>{BDF})"
            r"(?: \(capable of (?P<capable>[\d.]+ Gb/s) with (?P<capable_link>[^)]*)\))?",
        ),
        (
            "dpc",
            "d",
            r"(?:DPC: containment ev|EDR: (?:EDR )?event received|DPC: (?:ERR_\w+|unmasked uncorrectable error) detect)"
            r"(?:.*?status:? ?(?P<status>0x[0-9a-f]+))?",
        ),
        ("aer.enabled", "aer", r"AER: enabled with IRQ"),
        ("aspm.no_control", "aspm", r"can't disable ASPM"),
        ("gpu.other", "[drm", r"(?:timed out|\bhung\b|device lost)"),
    )
)
GPU_DRIVERS = ("xe", "i915", "amdgpu", "nvidia", "nouveau", "radeon")
_GPU_ONLY = ("xe.", "i915.", "amdgpu.", "gpu.other")
# ``[drm:function [module]] …`` without a device, as older kernels print it; the module, or the function, tells whose.
_DRM = re.compile(r"(?:\[drm\] )?\[drm:(?P<function>\w+)(?: \[(?P<module>\w+)\])?\]")
_PREFIXES = (("xe_", "xe"), ("amdgpu_", "amdgpu"), ("i915_", "i915"), ("intel_", "i915"), ("radeon_", "radeon"))
# What a line of a GPU driver may have been before a pager cut it off: kind, and how the text after its tags begins.
# "" is no fault.
_PHRASES = (
    ("xe.fault_response", "Fault response: Unsuccessful"),
    ("", "Fault response: Successful"),
    ("xe.page_fault", "Faulted Address: "),
    ("xe.engine_reset", "Engine reset: engine_class="),
    ("xe.cat_error", "Engine memory CAT error"),
    ("xe.timedout_job", "Timedout job: seqno="),
    ("xe.kernel_job", "Kernel-submitted job timed out"),
    ("xe.job_check", "Check job timeout: "),
    ("xe.reset_failed", "Schedule enable failed to respond"),
    ("xe.reset_failed", "Schedule disable failed to respond"),
    ("xe.reset_failed", "GuC engine reset request failed"),
    ("xe.reset_failed", "reset failed"),
    ("xe.reset_failed", "Failed to reset GuC"),
    ("xe.gt_reset", "trying reset"),
    ("xe.gt_reset", "reset queued"),
    ("xe.gt_reset", "reset started"),
    ("xe.gt_reset", "reset done"),
    ("xe.vm_error", "VM worker error: "),
    ("xe.tlb_timeout", "TLB invalidation fence timeout"),
    ("xe.no_reply", "GuC mmio request"),
    ("", "GuC firmware"),
    ("xe.pm_underflow", "Runtime PM usage count underflow"),
    ("xe.coredump_created", "Xe device coredump has been created"),
    ("", "Xe device coredump has been deleted"),
    ("xe.coredump_created", "AMDGPU device coredump file has been created"),
    ("xe.wedged", "CRITICAL: Xe has declared device"),
    ("gpu.wedge_cut", "device wedged, "),
    ("guc.load_failed", "load failed: status"),
    ("guc.load_failed", "GuC load failed"),
    ("pcode.timeout", "PCODE initialization timed"),
    ("survivability", "In Survivability Mode"),
    ("d3_failed", "Unable to change power state from D"),
    ("probe_failed", "probe with driver "),
    ("i915.hang", "GPU HANG: ecode"),
    ("i915.hang", "stopped heartbeat on"),
    ("i915.reset", "Resetting chip for"),
    ("amdgpu.reset", "GPU reset begin"),
    ("", "GPU reset succeeded"),
)
_TAGS = re.compile(r"(?:\[drm(?::\w+(?: \[\w+\])?)?\] *|(?:VF|PF): *|\*ERROR\* *|Tile\d+: *|GT\d+: *|amdgpu: *)*")
_TAG_CUT = re.compile(
    r"\[(?:d(?:r(?:m(?::\w*(?: \[?\w*\]?)?)?)?)?)?|\*E?R?R?O?R?\*?|t(?:i(?:l(?:e\d*:?)?)?)?|g(?:t\d*:?)?", re.I
)
_RING_CUT = re.compile(r"ring(?: \S*(?: t?\w*(?:, ?(?:s\w*|b\w*(?: \w*)*)?)?)?)?")
ENOUGH = 8  # characters of a cut line that tell what it was
# Lines that name no device first.
_LOOSE: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (kind, word, re.compile(pattern, re.S))
    for kind, word, pattern in (
        ("probe_failed", "probe of", rf"(?P<driver>\S+): probe of (?P<bdf>{BDF}) failed with error (?P<error>-\d+)"),
        ("lockup.hard", "LOCKUP", r"hard LOCKUP on cpu ?(?P<cpu>\d+)"),
        ("lockup.soft", "lockup", r"soft lockup - CPU#(?P<cpu>\d+) stuck for (?P<seconds>\d+)s"),
        (
            "lockup.rcu",
            "stall",
            r"INFO: (?P<flavor>rcu\w*) (?:self-)?detected (?:expedited )?stalls? on CPU"
            r"(?:s/tasks: \{ ?(?P<cpu>\d+)\b)?",
        ),
        (
            "clocksource.unstable",
            "unstable",
            r"(?:[Mm]arking (?:clocksource )?|Clocksource )'?(?P<clock>[\w-]+)'? (?:as )?unstable\b",
        ),
        (
            "clocksource.stall",
            "readout",
            r"clocksource: Long readout interval, skipping watchdog check: cs_nsec: (?P<ns>\d+)",
        ),
        ("clocksource.retried", "clocksource", r"clocksource: timekeeping watchdog"),
        ("oom.cgroup", "emory", r"emory cgroup out of memory: Kill(?:ed)? process (?P<pid>\d+) \((?P<process>[^)]*)\)"),
        ("oom", "emory", r"Out of memory(?: \(\w+\))?: Kill(?:ed)? process (?P<pid>\d+) \((?P<process>[^)]*)\)"),
        (
            "hung_task",
            "blocked",
            r"INFO: task (?P<process>[^\n]{1,16}?):\d+ (?:<\w+> )?blocked for more than (?P<seconds>\d+) seconds",
        ),
        ("pci.ubsan", "UBSAN", r"UBSAN: [^\n]* in (?:/\S+/)?drivers/pci/(?P<file>\w+\.[ch])"),
        ("reset_reason", "reset reason", r"Previous system reset reason \[(?P<code>0x[0-9a-f]+)\]: (?P<reason>[^\n]*)"),
        (
            "aspm.off_firmware",
            "FADT",
            r"FADT (?:declares the system doesn't support PCIe ASPM|indicates ASPM is unsupported)",
        ),
        ("aspm.forced", "ASPM", r"PCIe ASPM is forcibly enabled"),
        ("aspm.disabled", "ASPM", r"PCIe ASPM is disabled"),
        (
            "osc.refused",
            "_OSC",
            r"(?:(?P<bridges>PNP0A0[38]:\w+): )?_OSC: platform (?:retains control of PCIe features|does not support) "
            r"[(\[](?P<features>[^)\]]*)[)\]]",
        ),
        (
            "osc.refused",
            "_OSC",
            r"(?:(?P<bridges>PNP0A0[38]:\w+): )?_OSC(?: request)? failed|_OSC: not requesting (?:OS )?control",
        ),
        (
            "osc.granted",
            "_OSC",
            r"(?:(?P<bridges>PNP0A0[38]:\w+): )?_OSC: OS now controls [(\[](?P<features>[^)\]]*)[)\]]",
        ),
        (
            "iommu.timeout",
            "IOTLB",
            r"AMD-Vi: .*IOTLB_INV_TIMEOUT device=(?P<bdf>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])",
        ),
        # The same of an Intel IOMMU (drivers/iommu/intel/dmar.c); SID is bus, device and function in one number.
        (
            "iommu.timeout",
            "Invalidation Time-out",
            r"VT-d detected Invalidation Time-out Error: SID (?:0x)?(?P<sid>[0-9a-f]{1,4})\b",
        ),
        ("i915.hang", "GPU HANG", r"\[drm[^\]]*\].*GPU HANG\b"),
        # The driver ends a request that takes longer than 20 s (intel_gt_requests.c).
        ("i915.timedout_job", "Fence exp", rf"Fence expiration time out i915-(?P<bdf>{BDF}):(?P<processes>[^\[\n]+)\["),
        ("guc.version", "wanted", _VERSION),
        # Only xe has these words; a report that retypes them leaves the card out (compute-runtime#948).
        ("xe.fault_response", "response", r"Fault response: Unsuccessful|page fault, response:? -E"),
        ("xe.cat_error", "CAT error", r"Engine memory CAT error"),
        ("xe.timedout_job", "job", r"Timedout job: seqno="),
        ("xe.engine_reset", "Engine reset", r"Engine reset: engine_class="),
        ("guc.recommended", "recommended", _RECOMMENDED),
    )
)
_FRAME = re.compile(r"(?:(?:\? )?([\w.]+)\+0x[0-9a-f]+/0x[0-9a-f]+|Workqueue: \S+ ([\w.]+))(?: \[(\w+)\])?")
_NVRM_BDF = re.compile(rf"PCI:([0-9a-fA-F]{{4,8}}:[0-9a-fA-F]{{2}}:[0-9a-fA-F]{{2}})(\.[0-7])?|({BDF})")
_NOTES = {
    "engines": re.compile(r"(?:engine_class=|\bclass=|EngineClass: ?\d+ )(\w+)|\b(bcs|ccs|rcs|vcs|vecs) page fault"),
    "addresses": re.compile(r"Faulted Address: ?(0x[0-9a-fA-F]+)"),
    "codes": re.compile(r"Unsuccessful (-\w+)|response:? (-E\w+)"),
    "processes": re.compile(r" in (\S+) \[\d+\]"),
}

_FAULT_WORDS = (
    "engine_reset", "gt_reset", "fault_response", "page_fault", "cat_error", "timedout_job", "kernel_job", "job_check",
    "pm_underflow", "soft_recovered", "cut",
    "reset_failed", "vm_error", "tlb_timeout", "no_reply",
    "coredump_created", "wedged", "wedge_cut", "recovered", "other", "hang", "reset",
    "ring_timeout", "xid", "lost", "load_failed", "timeout", "hardware_error", "hardware_fatal",
)  # fmt: skip


def is_fault(kind: str) -> bool:
    """Does this kind say that a GPU, or the driver of one, failed?

    >>> is_fault("xe.engine_reset"), is_fault("guc.loaded"), is_fault("survivability"), is_fault("aer.fatal")
    (True, False, True, False)
    """
    family, _, word = kind.partition(".")
    return kind in ("survivability", "lockup.hard") or (
        family in ("xe", "gpu", "i915", "amdgpu", "nvrm", "guc", "pcode") and word in _FAULT_WORDS
    )


def is_bad(event: Event) -> bool:
    """Does an event speak against a card: a fault, or something of the host in which a GPU driver had a part?

    The signs that the public B70 optimization lab took for one family are here: a card that does not come back from
    its sleep, an invalidation that the IOMMU waited for in vain, a lockup or a blocked task inside the driver.
    """
    if event.kind in ("d3_failed", "lockup.hard", "lockup.soft", "hung_task"):
        return driver_of(event) != "" or (event.kind == "lockup.hard" and event.bdf != "")
    return is_fault(event.kind) or event.kind == "iommu.timeout"


def driver_of(event: Event) -> str:
    """The GPU driver that an event is about, or ""."""
    for word in (event.details.get("driver", ""), event.details.get("frame_driver", "")):
        found = [driver for driver in word.split(", ") if driver in GPU_DRIVERS]
        if found:
            return found[0]
    return _FAMILIES.get(event.kind.partition(".")[0], "")


_FAMILIES = {"xe": "xe", "guc": "xe", "i915": "i915", "amdgpu": "amdgpu", "nvrm": "nvidia"}


def _groups(found: re.Match[str]) -> dict[str, str]:
    return {key: value for key, value in found.groupdict().items() if value}


def classify(text: str) -> Said | None:
    """What a whole message (its continuation lines included) says, or None.

    >>> classify("xe 0000:C3:00.0: [drm] Tile0: GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=24")[:2]
    ('xe.engine_reset', '0000:c3:00.0')
    >>> classify("pcieport 0001:00:00.0: AER: Multiple Corrected error received: id=0100").details["source"]
    '0001:01:00.0'
    """
    hardware = _HARDWARE.match(text)
    if hardware:
        return Said("hw:line", hardware.group("id") or "", {"text": hardware.group("rest")})
    suppressed = _SUPPRESSED.search(text)
    if suppressed:
        return Said("aer:suppressed", "", {"count": suppressed.group(1)})
    if text.startswith("NVRM"):
        return _nvrm(text)
    found = _DEVICE.match(text)
    if found is None:
        return _loose(text)
    device, rest = bdf(found.group("bdf")), found.group("rest")
    driver = found.group("driver").split()[-1]
    said = _aer(device, rest)
    if said is not None:
        if driver in GPU_DRIVERS:
            said.details["gpus"] = device
        return said
    return _by_rule(driver, device, rest) or _cut(driver, device, rest) or _loose(text, device)


def _by_rule(driver: str, device: str, rest: str) -> Said | None:
    """What a driver says of a device (or of none, ""), by the first rule that fits."""
    first = rest.partition("\n")[0]
    found = _rule(driver, first) if first != rest else None
    if found is None or found[0] == "xe.open_block":  # what follows the first line tells more
        found = _rule(driver, rest)
    if found is None:
        return None
    kind, match = found
    kind = f"gpu.{kind[3:]}" if kind.startswith("xe.") and driver != "xe" and driver in GPU_DRIVERS else kind
    details = {"driver": driver, **_groups(match)}
    if "at" in details:
        details["at"] = bdf(details["at"])
    return Said(*_settled(kind, device, details, rest))


def _rule(driver: str, text: str) -> tuple[str, re.Match[str]] | None:
    low = text.lower()
    for kind, word, pattern in _RULES:
        if word not in low or (kind.startswith(_GPU_ONLY) and driver not in GPU_DRIVERS and "[drm" not in low):
            continue
        match = pattern.search(text)
        if match:
            return kind, match
    return None


def _cut(driver: str, device: str, rest: str) -> Said | None:
    """What a line of a GPU driver said before a pager cut it off; ``gpu.cut`` when it may have been a fault.

    >>> _cut("xe", "0000:03:00.0", "[drm] Tile0: GT0: Fault response: Unsuc>").kind
    'xe.fault_response'
    >>> _cut("xe", "0000:03:00.0", "[drm] Xe device coredump has been >").kind
    'gpu.cut'
    >>> _cut("xe", "0000:03:00.0", "[drm] Using GuC firmware from xe/bm>")
    """
    if driver not in GPU_DRIVERS or "\n" in rest.strip() or not is_cut(rest):
        return None
    text = rest.rstrip()[:-1]
    tags = _TAGS.match(text)
    left = (text[tags.end() :] if tags else text).strip().lower()
    kinds = {kind for kind, phrase in _PHRASES if phrase.lower().startswith(left) or left.startswith(phrase.lower())}
    if _RING_CUT.fullmatch(left):
        kinds = {"amdgpu.ring_timeout", "amdgpu.soft_recovered"}
    if not kinds and not _TAG_CUT.fullmatch(left):  # nothing that is known, not even half a tag
        return None
    if kinds == {""}:
        return None
    kind = next(iter(kinds)) if len(kinds) == 1 and len(left) >= ENOUGH else "gpu.cut"
    if kind.startswith("xe.") and driver != "xe":
        kind = f"gpu.{kind[3:]}"
    return Said(kind, device, {"driver": driver, "cut": "yes"})


def _loose(text: str, device: str = "") -> Said | None:
    drm = _DRM.match(text)
    if drm is not None and not device:
        function, driver = drm.group("function"), drm.group("module") or ""
        driver = driver or next((name for prefix, name in _PREFIXES if function.startswith(prefix)), "")
        said = (_by_rule(driver, "", text) or _cut(driver, "", text)) if driver in GPU_DRIVERS else None
        if said is not None:
            return said
    for kind, word, pattern in _LOOSE:
        match = pattern.search(text) if word in text else None
        if match:
            details = _groups(match)
            named = details.pop("bdf", "")
            if "sid" in details:
                sid = int(details.pop("sid"), 16)
                named = f"{sid >> 8:02x}:{sid >> 3 & 31:02x}.{sid & 7}"
            named = f"0000:{named}" if named.count(":") == 1 else named  # the domain is newer than the line
            return Said(kind, bdf(named) if named else device, details)
    return None


def _settled(kind: str, device: str, details: dict[str, str], text: str) -> tuple[str, str, dict[str, str]]:
    """Details taken out of a device's line, and the kind by them."""
    if kind in ("bar.vram", "bar.visible") and int(details.get("visible") or "0", 16) in range(1, (256 << 20) + 1):
        size = int(details.get("size", "0x0"), 16)
        kind = "bar.small" if kind == "bar.visible" or size > 256 << 20 else kind
    for key, pattern in _NOTES.items():
        words = [next(group for group in found.groups() if group) for found in pattern.finditer(text)]
        if words:
            details[key] = ", ".join(dict.fromkeys(words))
    return kind, device, details


def _nvrm(text: str) -> Said | None:
    """NVIDIA's driver names the card inside the text, sometimes without its function, sometimes not at all."""
    found = _NVRM_BDF.search(text)
    device = ""
    if found:
        device = bdf(found.group(3) or found.group(1) + (found.group(2) or ".0"))
    if "fallen off the bus" in text:
        return Said("nvrm.lost", device, {"driver": "nvidia"})
    xid = re.search(r"Xid \(.*?\): (\d+)(?![\d>])", text)
    if xid:
        return Said(
            "nvrm.lost" if xid.group(1) == "79" else "nvrm.xid", device, {"driver": "nvidia", "xid": xid.group(1)}
        )
    if "RmInitAdapter failed" in text:
        return Said("probe_failed", device, {"driver": "nvidia"})
    if is_cut(text):
        tail = re.search(r"\b(has f[^>]*)>\s*$", text)
        if tail and "has fallen off the bus".startswith(tail.group(1)):
            return Said("nvrm.lost", device, {"driver": "nvidia", "cut": "yes"})
        if re.search(r"Xid(?: \([^)]*(?:\):? ?\d*)?)?>\s*$|GPU [^>]*(?:: ?|has ?)>\s*$", text):
            return Said("gpu.cut", device, {"driver": "nvidia", "cut": "yes"})
    return None


def _aer(device: str, rest: str) -> Said | None:
    """A step of an error report by the kernel's own AER code."""
    found = _ANNOUNCED.search(rest)
    if found:
        return _announcement(device, found)
    found = _HEADER.search(rest)
    if found:
        layer, agent = (found.group("layer") or "").strip(), (found.group("agent") or "").strip()
        word = severity(found.group("severity"))
        return Said("aer:header", device, {"severity": word, "layer": layer, "agent": agent})
    found = _STATUS.search(rest)
    if found:
        words = _STATUS_WORDS.search(rest)
        details = {"status": words.group(1), "mask": words.group(2)} if words else {}
        return Said("aer:status", device, {**details, "ids": found.group(1)})
    found = _APEI.search(rest)
    if found:
        return Said("aer:apei", device, {"status": found.group(1), "mask": found.group(2)})
    if rest.lstrip().startswith(("[", "AER:")) or "] " in rest:
        found_bits = _BITS.findall(rest.strip())
        bits = [bit_name(name) for _, name in found_bits]
        if found_bits and is_cut(rest):
            bits[-1] = _whole_bit(*found_bits[-1])
        known = [name for name in bits if severity_of_bit(name) or name.startswith("Unknown")]
        if known and not rest.startswith("[drm"):
            return Said("aer:bits", device, {"bits": ", ".join(known)})
    if "aer_layer=" in rest:
        layer = re.search(r"aer_layer=([^,]*), aer_agent=([^,]*?)(?: ID)?$", rest)
        return Said("aer:status", device, {"layer": layer.group(1), "agent": layer.group(2)} if layer else {})
    for pattern, word in _RECOVERY:
        if pattern.search(rest):
            return Said("aer:recovery", device, {"word": word})
    return _aer_cut(device, rest) if is_cut(rest) else None


def _aer_cut(device: str, rest: str) -> Said | None:
    """A line of an error report that a pager cut off before its first word that counts.

    >>> _aer_cut("0000:00:03.1", "AER: Multip>").kind, _aer_cut("0000:00:03.1", "PCIe Bus Err>").kind
    ('aer:announced', 'aer:header')
    >>> _aer_cut("0000:00:03.1", "AER: enabled wi>")
    """
    text = rest.rstrip()[:-1]
    left = text[4:].lstrip() if text.startswith("AER:") else text
    words = ("Corrected", "Correctable", "Uncorrected", "Uncorrectable", "Multiple Corr", "Multiple Uncorr")
    if text.startswith("AER:") and any(word.startswith(left) for word in words):
        word = "corrected" if left.startswith(("C", "Multiple C")) else ""
        multiple = "yes" if left.startswith("M") else ""
        return Said("aer:announced", device, {"severity": word, "source": "", "multiple": multiple, "cut": "yes"})
    if len(left) > 5 and "PCIe Bus Error: severity=".startswith(left):
        return Said("aer:header", device, {"severity": "", "layer": "", "agent": ""})
    return None


def _whole_bit(number: str, name: str) -> str:
    """The name of a status bit of which a pager left only the beginning; its number is a help.

    >>> _whole_bit("12", "Time"), _whole_bit("12", "T")
    ('Timeout', 'T')
    """
    known = bit_name(name)
    if severity_of_bit(known):
        return known
    plain = re.sub(r"[\s_-]", "", name).lower()
    of_number = {table.get(int(number)) for table in (CORRECTABLE, UNCORRECTABLE)}
    found = {short for short in of_number if short and short.lower().startswith(plain)}
    found |= {short for long, short in _LONG.items() if long.startswith(plain) and short in of_number}
    return found.pop() if len(found) == 1 else known


def _announcement(device: str, found: re.Match[str]) -> Said:
    more = found.group("more")
    source = _SOURCE.search(more)
    name = ""
    if source and source.group("bdf"):
        name = bdf(source.group("bdf"))
    elif source:
        number = int(source.group("id"), 16)
        name = f"{device.split(':')[0]}:{number >> 8:02x}:{number >> 3 & 31:02x}.{number & 7}"
    return Said(
        "aer:announced",
        device,
        {
            "severity": severity(found.group("severity")),
            "source": name,
            "multiple": "yes" if found.group("multiple") else "",
            "cut": "yes" if is_cut(more) else "",
        },
    )


# -- folding -------------------------------------------------------------------------------------------


class Folded:
    """An event while it grows."""

    def __init__(self, kind: str, bdf: str, previous_boot: bool = False) -> None:
        self.kind, self.bdf, self.previous_boot = kind, bdf, previous_boot
        self.severity = self.root_port = self.recovered = ""
        self.count = self.suppressed = 0
        self.first = self.last = NO_TIME
        self.wall_first: float | None = None
        self.wall_last: float | None = None
        self.samples: list[list[str]] = []
        self.details: dict[str, list[str]] = {}
        self.order_first = self.order_last = -1
        self.peaks = [0, 0, 0]
        self.times: list[float] = []
        self.noted: dict[int, Said] = {}
        self.heads = [0, 0, 0]

    def seen(self, message: Message) -> None:
        """Once more, at the time of this message."""
        self.count += 1
        if len(self.samples) < SAMPLES:
            self.samples.append([message.text[:SAMPLE_LENGTH]])
        self.touch(message)
        if message.seconds != NO_TIME:
            self._peak(message.seconds)

    def touch(self, message: Message) -> None:
        """A line of the same event."""
        if self.order_first < 0:
            self.order_first = message.order
            self.first, self.wall_first = message.seconds, message.wall
        self.order_last = message.order
        if message.seconds != NO_TIME:
            if message.seconds < self.first or self.first == NO_TIME:
                self.first, self.wall_first = message.seconds, message.wall
            if message.seconds >= self.last:
                self.last, self.wall_last = message.seconds, message.wall

    def _peak(self, now: float) -> None:
        times = self.times
        times.append(now)
        for index, span in enumerate((1.0, 60.0, 3600.0)):
            head = self.heads[index]
            while now - times[head] >= span:
                head += 1
            self.heads[index] = head
            within = len(times) - head
            if within > self.peaks[index]:
                self.peaks[index] = within
        if self.heads[2] > 65536:
            gone = self.heads[2]
            del times[:gone]
            self.heads = [head - gone for head in self.heads]

    def line(self, text: str) -> None:
        """One more line of the newest sample."""
        if self.count <= SAMPLES and self.samples and len(self.samples[-1]) < SAMPLE_LINES:
            self.samples[-1].append(text[:SAMPLE_LENGTH])

    def note(self, key: str, value: str) -> None:
        """Keep a word of the lines, each once."""
        if not value:
            return
        words = self.details.setdefault(key, [])
        for word in value.split(", "):
            if word not in words and len(words) < NOTES:
                words.append(word)

    def event(self, wall: WallText) -> Event:
        """The event as it is handed out."""
        return Event(
            kind=self.kind,
            bdf=self.bdf,
            severity=self.severity,
            count=self.count,
            suppressed=self.suppressed,
            first=self.first,
            last=self.last,
            wall_first=wall(self.wall_first, self.first),
            wall_last=wall(self.wall_last, self.last),
            samples=tuple("\n".join(lines) for lines in self.samples),
            details={key: ", ".join(words) for key, words in sorted(self.details.items())},
            previous_boot=self.previous_boot,
            peak_1s=self.peaks[0],
            peak_60s=self.peaks[1],
            peak_1h=self.peaks[2],
            root_port=self.root_port,
            recovered=self.recovered,
            order_first=self.order_first,
            order_last=self.order_last,
        )


class WallText:
    """Wall time of an event in UTC: as the line gave it, or from its seconds and the time of boot."""

    def __init__(self, booted: float | None, text: Callable[[float], str]) -> None:
        self.booted, self.text = booted, text

    def __call__(self, wall: float | None, seconds: float) -> str:
        if wall is None and self.booted is not None and seconds != NO_TIME:
            wall = self.booted + seconds
        return "" if wall is None else self.text(wall)


@dataclass
class Announced:
    """An error that a root port announced and whose details may follow."""

    event: Folded
    port: str
    source: str
    learned: bool
    multiple: bool
    severity: str
    message: Message
    headers: set[str] = field(default_factory=set)


@dataclass
class Block:
    """Details of one error of one device. event: None while its severity is not known."""

    event: Folded | None
    message: Message
    texts: list[str]
    layer: str = ""
    by_firmware: bool = False
    report: Announced | None = None


@dataclass
class Section:
    """One error of a firmware record. previous_boot: kept from the boot before (BERT)."""

    message: Message
    severity: str
    previous_boot: bool
    device: str = ""
    is_pcie: bool = False
    port_type: str = ""
    correctable: tuple[int, int] = (0, 0)
    uncorrectable: tuple[int, int] = (0, 0)
    texts: list[str] = field(default_factory=list)
    last: Message | None = None
    event: Folded | None = None


def near(one: Message, other: Message) -> bool:
    """May two lines belong to the same report?"""
    if abs(one.order - other.order) > NEAR_LINES:
        return False
    return NO_TIME in (one.seconds, other.seconds) or abs(one.seconds - other.seconds) <= NEAR_SECONDS


def _implied(said: Said) -> str:
    """The severity that the bits of a line imply, or ""."""
    words = said.details.get("bits", "").split(", ")
    return next((severity_of_bit(word) for word in words if severity_of_bit(word)), "")


class Events:
    """Takes messages in the order of the log and folds them."""

    def __init__(self) -> None:
        self._folded: dict[tuple[str, str, bool, str], Folded] = {}
        self._steps: dict[str, Said] = {}
        self._announced: dict[str, Announced] = {}  # by port
        self._by_source: dict[str, Announced] = {}
        self._announced_at = -1  # line of the newest announcement
        self._open: Announced | None = None  # newest whose sender is not known, or which stands for several
        self._blocks: dict[str, Block] = {}
        self._newest_block: Block | None = None
        self._uncorrected: list[Folded] = []
        self._suppressed: tuple[int, Message] | None = None
        self._newest_aer: Folded | None = None
        self._sections: dict[str, Section] = {}
        self._closed: list[Section] = []
        self._fault: tuple[str, Message, Folded | None] | None = None
        self.lockup: tuple[Folded, Message] | None = None
        self._nvidia = ""
        self._nvidia_at: Message | None = None
        self._contained: dict[str, tuple[int, Message]] = {}

    def fold(self, kind: str, device: str, previous_boot: bool = False, extra: str = "") -> Folded:
        """The growing event of this kind and device."""
        key = (kind, device, previous_boot, extra)
        found = self._folded.get(key)
        if found is None:
            found = self._folded[key] = Folded(kind, device, previous_boot)
        return found

    def known(self, text: str) -> Said | None:
        """What a line of an error report says, if the same words were seen before; such lines stand alone."""
        return self._steps.get(text)

    def step(self, said: Said, message: Message) -> None:
        """Take one line of an error report."""
        _STEPS[said.kind](self, said, message)

    def add(self, message: Message) -> None:
        """Take one message."""
        text = message.text
        repeated = _REPEATED.match(text)
        if repeated is not None:
            text = repeated.group("text")
            message = message._replace(text=text)
        said = classify(text)
        if said is None:
            return
        kind = said.kind
        if kind.startswith("aer:"):
            if text.startswith("nvidia "):
                self._nvidia, self._nvidia_at = said.bdf, message  # its driver's own lines may name no card at all
            if len(self._steps) >= CACHE:
                self._steps.clear()
            self._steps[text] = said
            self.step(said, message)
        elif kind == "hw:line":
            self._hardware(said, message)
        elif kind == "xe.open_block":
            self._fault = (said.bdf, message, None)
        elif kind == "dpc":
            self._contain(said, message)
        else:
            event = self._plain(said, message)
            if repeated is not None:  # when each of them came is not told, so they make no burst
                event.count += int(repeated.group("times")) - 1

    def amend(self, text: str, message: Message) -> None:
        """Take a line that only continues an earlier message, from which other lines separate it."""
        if re.match(r"\s*(?:ASID|Faulted Address|FaultType|AccessType|FaultLevel|EngineClass|EngineInstance): ", text):
            if self._fault is None or not near(self._fault[1], message):
                return
            device, header, event = self._fault
            if event is None:
                event = self.fold("xe.page_fault", device)
                event.seen(header)
                self._fault = (device, header, event)
            event.line(text)
            for key, pattern in _NOTES.items():
                for found in pattern.finditer(text):
                    event.note(key, next(group for group in found.groups() if group))
        elif self.lockup is not None:
            event, head = self.lockup
            if message.order - head.order >= NEAR_LINES or message.seconds - head.seconds > TRACE_SECONDS:
                self.lockup = None
                return
            frame = _FRAME.search(text)
            if frame:
                name, module = frame.group(1) or frame.group(2), frame.group(3) or ""
                event.note("frames", name + (f" [{module}]" if module else ""))
                module = module or next((driver for prefix, driver in _PREFIXES if name.startswith(prefix)), "")
                if module in GPU_DRIVERS:
                    event.note("frame_driver", module)

    def _plain(self, said: Said, message: Message) -> Folded:
        kind, device = said.kind, said.bdf
        if said.details.get("driver") == "nvidia":
            if not device and self._nvidia_at is not None and near(self._nvidia_at, message):
                device = self._nvidia
            if device:
                self._nvidia, self._nvidia_at = device, message
        is_trace = kind.startswith("lockup") or kind == "hung_task"
        event = self.fold(
            kind, device, extra=said.details.get("cpu") or said.details.get("process", "") if is_trace else ""
        )
        event.seen(message)
        for key, value in said.details.items():
            event.note(key, value)
        if kind in ("xe.page_fault", "xe.fault_response"):
            self._fault = (device, message, event)
        elif is_trace:
            self.lockup = (event, message)
            self._frames(message)
        return event

    def _contain(self, said: Said, message: Message) -> None:
        """A port that was contained says so in up to three lines: EDR, the event, what was detected."""
        text = message.text
        stage = 0 if "EDR:" in text else 1 if "containment ev" in text else 2
        before = self._contained.get(said.bdf)
        event = self.fold("dpc", said.bdf)
        if before is not None and stage > before[0] and near(before[1], message):
            event.touch(message)
            event.line(text)
        else:
            event.seen(message)
            self._uncorrected.append(event)
        self._contained[said.bdf] = (stage, message)
        for key, value in said.details.items():
            event.note(key, value)

    def _frames(self, message: Message) -> None:
        for line in message.text.split("\n")[1:]:
            self.amend(line, message)

    # -- the kernel's own AER reports --------------------------------------------------------------

    def _announce(self, said: Said, message: Message) -> None:
        port, source, kind = said.bdf, said.details["source"], KIND_OF[said.details["severity"]]
        # A source of 00:00.0 that is not the port itself: the port did not learn the sender (PCIe: requester id 0).
        learned = bool(source) and (source == port or not source.endswith(":00:00.0"))
        blamed = source if learned else port
        newest = self._newest_block
        if (
            said.details["cut"]
            and not source
            and newest is not None
            and newest.event is not None
            and near(newest.message, message)
        ):
            event = newest.event  # cut off by a pager: it can only be counted, with the device seen beside it
        else:
            event = self.fold(kind, blamed)
        if event.recovered == "failed":
            event.note("failed_recovery", "yes")
        event.recovered = ""
        event.seen(message)
        event.root_port = event.root_port or port
        event.severity = event.severity or said.details["severity"]
        if said.details["multiple"]:
            event.note("multiple", "yes")
        if source and not learned:
            event.note("sender", "not learned")
        self._took(event, message)
        if said.details["severity"] != "corrected":
            self._uncorrected.append(event)
        report = Announced(
            event, port, source, learned, bool(said.details["multiple"]), said.details["severity"], message
        )
        self._announced[port] = report
        self._announced_at = message.order
        if learned:
            self._by_source[source] = report
        if not learned or report.multiple:
            self._open = report

    def _took(self, event: Folded, message: Message) -> None:
        """Suppressed errors belong to the report that comes right after the line that counts them (lib/ratelimit.c)."""
        if self._suppressed is not None:
            count, at = self._suppressed
            target = event if near(at, message) else self._newest_aer
            (target or event).suppressed += count
            self._suppressed = None
        self._newest_aer = event

    def _report_of(self, device: str, message: Message) -> Announced | None:
        for report in (self._by_source.get(device), self._announced.get(device)):
            if report is not None and near(report.message, message):
                return report
        report = self._open
        if report is not None and near(report.message, message) and report.port.split(":")[0] == device.split(":")[0]:
            return report
        return None

    def _header(self, said: Said, message: Message) -> None:
        device, word = said.bdf, said.details["severity"]
        report = self._report_of(device, message)
        if report is not None and word and report.severity and report.severity != word:
            report = None
        block = Block(None, message, [message.text], said.details["layer"], report=report)
        if report is not None and word:
            self._clarify(report, word)
        if report is not None and device not in report.headers:
            report.headers.add(device)
            if not report.learned or device == report.source:
                block.event = report.event
                self._detail(block, said, message)
        if block.event is None and word:
            block.event = self._own(KIND_OF[word], device, message, report)
            self._detail(block, said, message, is_first=True)
        self._blocks[device] = self._newest_block = block

    def _clarify(self, report: Announced, word: str) -> None:
        """The severity of an announcement that was cut off is told by a later line of the same report."""
        unclear = report.event
        if report.severity or unclear.kind != "aer.unclear":
            return
        event = self.fold(KIND_OF[word], unclear.bdf)
        event.seen(report.message)
        event.root_port = event.root_port or report.port
        event.severity = event.severity or word
        event.note("severity_from", "bit name")
        unclear.count -= 1
        if unclear.count <= 0:
            self._folded.pop(("aer.unclear", unclear.bdf, False, ""), None)
        if word == "corrected":
            self._uncorrected = [one for one in self._uncorrected if one is not unclear]
        self._newest_aer = event
        report.event, report.severity = event, word

    def _own(self, kind: str, device: str, message: Message, report: Announced | None = None) -> Folded:
        """An error that no root port announced, or a second device of one announcement."""
        event = self.fold(kind, device)
        event.seen(message)
        event.severity = event.severity or next(word for word, name in KIND_OF.items() if name == kind)
        if report is not None:
            event.root_port = event.root_port or report.port
        self._took(event, message)
        if kind != "aer.corrected":
            self._uncorrected.append(event)
        return event

    def _detail(self, block: Block, said: Said, message: Message, is_first: bool = False) -> None:
        event = block.event
        assert event is not None
        event.touch(message)
        if not is_first:
            event.line(message.text)
        if event.noted.get(id(said)) is said:  # the same words were taken out of an earlier line
            return
        if len(event.noted) >= NOTED:
            event.noted.clear()
        event.noted[id(said)] = said
        for key, word in said.details.items():
            if key in ("layer", "agent", "bits", "gpus", "ids"):
                event.note(f"{key}s" if key in ("layer", "agent") else key, word)
        if said.bdf != event.bdf:
            event.note("devices", said.bdf)

    def _lines(self, said: Said, message: Message) -> None:
        """Status and bit lines."""
        device = said.bdf
        block = self._blocks.get(device)
        if block is not None and block.report is not None and block.event is block.report.event:
            implied = "" if block.report.severity else _implied(said)
            if implied:
                self._clarify(block.report, implied)
                block.event = block.report.event
        is_newest = block is not None and block.event is not None and block.message.order > self._announced_at
        if block is not None and is_newest and near(block.message, message):  # the usual line of a storm
            self._detail(block, said, message)
            self._newest_block = block
            return
        report = self._report_of(device, message)
        newer = report is not None and (block is None or report.message.order > block.message.order)
        if block is None or not near(block.message, message) or newer:
            block = self._blocks[device] = Block(None, message, [], report=report)
            if report is not None and _implied(said):
                self._clarify(report, _implied(said))
            if report is not None and (not report.learned or device == report.source):
                block.event = report.event
                report.headers.add(device)
        if block.event is None:
            implied = _implied(said)
            if not implied:
                block.texts.append(message.text)
                self._newest_block = block
                return
            first = block.message._replace(text="\n".join(block.texts)) if block.texts else message
            block.event = self._own(KIND_OF[implied], device, first)
            if block.by_firmware:
                block.event.note("by", "firmware")
            else:
                block.event.note("severity_from", "bit name")
            block.event.note("layers", block.layer)
            self._detail(block, said, message, is_first=not block.texts)
        else:
            self._detail(block, said, message)
        self._newest_block = block

    def _recovery(self, said: Said, message: Message) -> None:
        if not said.details["word"]:
            return
        gpu = said.details.get("gpus", "")
        domain = said.bdf.split(":")[0]
        recent = [event for event in self._uncorrected[-64:] if event.bdf.split(":")[0] == domain]
        exact = [event for event in recent if said.bdf in (event.bdf, event.root_port)]
        if exact or recent:
            event = (exact or recent)[-1]
            event.recovered = said.details["word"]
            event.note("gpus", gpu)
            event.touch(message)
            event.line(message.text)

    def _suppress(self, said: Said, message: Message) -> None:
        if self._suppressed is not None and self._newest_aer is not None:
            self._newest_aer.suppressed += self._suppressed[0]
        self._suppressed = (int(said.details["count"]), message)

    # -- reports that came through the firmware ----------------------------------------------------

    def _hardware(self, said: Said, message: Message) -> None:
        text, number = said.details["text"], said.bdf
        section = self._sections.get(number)
        word = re.search(r"(?:event severity|Error \d+, type): (\w+)", text)
        kind = re.search(r"section_type: ([^:\n]*?)(?=   |$|\n|\s+\w+: )", text)
        fresh = word is not None and "event severity" in text
        if section is None or fresh or not near(section.last or section.message, message):
            self._close(number)
            section = self._sections[number] = Section(message, "", number == "")
            if len(self._sections) > 256:
                self._close(next(iter(self._sections)))
        elif section.is_pcie and section.device and (kind or (word and "type:" in text)):
            before = section.severity
            self._close(number)
            section = self._sections[number] = Section(message, before, number == "")
        section.last = message
        if len(section.texts) < SAMPLE_LINES:
            section.texts.append(message.text)
        if word:
            section.severity = severity(word.group(1)) or section.severity
        if kind:
            section.is_pcie = "PCIe" in kind.group(1)
        port = re.search(r"port_type: \d+, ([\w ]+?)(?=   |$)", text)
        if port:
            section.port_type = port.group(1).strip()
        device = re.search(rf"device_id: ({BDF})", text)
        if device:
            section.device = bdf(device.group(1))
            section.is_pcie = True
        for name in ("cor", "uncor"):
            status = re.search(rf"aer_{name}_status: 0x([0-9a-fA-F]+)", text)
            mask = re.search(rf"aer_{name}_mask: 0x([0-9a-fA-F]+)", text)
            before_pair = section.correctable if name == "cor" else section.uncorrectable
            pair = (
                int(status.group(1), 16) if status else before_pair[0],
                int(mask.group(1), 16) if mask else before_pair[1],
            )
            if name == "cor":
                section.correctable = pair
            else:
                section.uncorrectable = pair

    def _close(self, number: str) -> None:
        section = self._sections.pop(number, None)
        if section is None or not section.is_pcie:
            return
        kind = KIND_OF[section.severity]
        device = (
            "" if section.device.endswith(":00:00.0") and section.port_type not in ("root port",) else section.device
        )
        event = self.fold(kind, device, section.previous_boot)
        event.seen(section.message._replace(text="\n".join(section.texts)))
        event.severity = event.severity or section.severity
        event.note("by", "firmware")
        if section.port_type == "root port":
            event.root_port = event.root_port or device
        names = (
            (CORRECTABLE, *section.correctable)
            if section.severity == "corrected"
            else (UNCORRECTABLE, *section.uncorrectable)
        )
        event.note("bits", ", ".join(bits_of(names[1], names[2], names[0])))
        section.event = event
        if not section.previous_boot:
            self._took(event, section.message)
            if kind != "aer.corrected":
                self._uncorrected.append(event)
        self._closed = [*self._closed[-15:], section]

    def _apei(self, said: Said, message: Message) -> None:
        """``aer_status:`` after a firmware record: the same error once more, so it is not counted again."""
        device = said.bdf
        for number, section in list(self._sections.items()):
            if not section.previous_boot and (section.device == device or section.device.endswith(":00:00.0")):
                if section.device != device:
                    section.device = device
                self._close(number)
        block = Block(None, message, [message.text], by_firmware=True)
        for section in reversed(self._closed):
            if section.device == device and section.event is not None and not section.previous_boot:
                if near(section.last or section.message, message):
                    block.event = section.event
                    self._detail(block, Said("", device, {}), message)
                    self._closed.remove(section)
                break
        self._blocks[device] = self._newest_block = block

    # -- the end -----------------------------------------------------------------------------------

    def finish(self) -> Iterator[Folded]:
        """Every event, in the order of first lines. Nothing may be added afterwards."""
        for number in list(self._sections):
            self._close(number)
        if self._suppressed is not None:
            event = self._newest_aer or self.fold("aer.corrected", "")
            event.suppressed += self._suppressed[0]
            event.touch(self._suppressed[1])
            self._suppressed = None
        for device, block in self._blocks.items():
            if block.event is None and block.texts and self._newest_block is not None:
                event = self.fold("aer.unclear", device)
                event.seen(block.message._replace(text="\n".join(block.texts)))
        self._name_loose()
        yield from sorted(self._folded.values(), key=lambda event: event.order_first)

    def _name_loose(self) -> None:
        """Lines without an address belong to the one card of that driver, when the log knows just one."""
        families = (("xe", ("xe.", "guc.")), ("nvidia", ("nvrm.",)), ("i915", ("i915.",)), ("amdgpu", ("amdgpu.",)))
        for driver, prefixes in families:
            cards = {
                event.bdf for event in self._folded.values() if event.bdf and driver in event.details.get("driver", ())
            }
            if driver == "nvidia" and self._nvidia:
                cards.add(self._nvidia)
            if len(cards) != 1:
                continue
            card = next(iter(cards))
            for event in self._folded.values():
                is_of = driver in event.details.get("driver", ()) or driver in event.details.get("frame_driver", ())
                if not event.bdf and (event.kind.startswith(prefixes) or is_of):
                    event.bdf = card


_STEPS = {
    "aer:announced": Events._announce,
    "aer:header": Events._header,
    "aer:status": Events._lines,
    "aer:bits": Events._lines,
    "aer:apei": Events._apei,
    "aer:recovery": Events._recovery,
    "aer:suppressed": Events._suppress,
}
