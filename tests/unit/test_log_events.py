"""What lines say: PCIe errors in the words of every kernel age, firmware records, and faults of every GPU driver."""

# ruff: noqa: E501 (kernel lines stand as they are printed)

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost.readings.kernel_log import Event, parse_text
from hostcheck.onhost.readings.log_events import bits_of, classify, is_fault, severity_of_bit

PORT, CARD = "0000:00:03.1", "0000:07:00.0"


def events(*lines: str, start: float = 100.0, step: float = 0.001) -> tuple[Event, ...]:
    numbered = [f"[{start + step * number:12.6f}] {line}" for number, line in enumerate(lines)]
    return parse_text(["[    0.000000] Linux version 7.0", *numbered], 1e9, 0.0).events


def only(*lines: str) -> Event:
    found = events(*lines)
    assert len(found) == 1, found
    return found[0]


# -- AER by age ------------------------------------------------------------------------------------

AGES = {
    "up to 4.17": (
        "pcieport {port}: AER: Corrected error received: id={id}",
        "{driver} {device}: PCIe Bus Error: severity=Corrected, type=Data Link Layer, id={id}(Transmitter ID)",
        "{driver} {device}:   device [1022:1453] error status/mask=00001000/00006000",
        "{driver} {device}:    [12] Replay Timer Timeout",
    ),
    "4.18 to 5.3": (
        "pcieport {port}: AER: Corrected error received: {device}",
        "{driver} {device}: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
        "{driver} {device}:   device [1022:1453] error status/mask=00001000/00006000",
        "{driver} {device}:    [12] Timeout               ",
    ),
    "5.4 to 5.10": (
        "pcieport {port}: AER: Corrected error received: {device}",
        "{driver} {device}: AER: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
        "{driver} {device}: AER:   device [1022:1453] error status/mask=00001000/00006000",
        "{driver} {device}: AER:    [12] Timeout               ",
    ),
    "5.11 to 6.7": (
        "pcieport {port}: AER: Multiple Corrected error message received from {device}",
        "{driver} {device}: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
        "{driver} {device}:   device [1022:1453] error status/mask=00001000/00006000",
        "{driver} {device}:    [12] Timeout               (First)",
    ),
    "6.8 to 6.14": (
        "pcieport {port}: AER: Correctable error message received from {device}",
        "{driver} {device}: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)",
        "{driver} {device}:   device [1022:1453] error status/mask=00001000/00006000",
        "{driver} {device}:    [12] Timeout               ",
    ),
}


def device_id(bdf: str) -> str:
    _, bus, rest = bdf.split(":")
    return f"{int(bus, 16) << 8 | int(rest[:2], 16) << 3 | int(rest[3]):04x}"


@given(
    age=st.sampled_from(sorted(AGES)),
    domain=st.sampled_from(["0000", "0001", "10000"]),
    driver=st.sampled_from(["xe", "nvidia", "amdgpu", "ath11k_pci", "vfio-pci"]),
    times=st.integers(1, 5),
    of_port=st.booleans(),
)
def test_corrected_errors_of_every_age(age: str, domain: str, driver: str, times: int, of_port: bool) -> None:
    port, device = f"{domain}:00:03.1", f"{domain}:00:03.1" if of_port else f"{domain}:07:00.0"
    fields = {"port": port, "device": device, "driver": "pcieport" if of_port else driver, "id": device_id(device)}
    event = only(*[line.format(**fields) for line in AGES[age]] * times)
    assert (event.kind, event.bdf, event.count, event.root_port) == ("aer.corrected", device, times, port)
    assert (event.details["bits"], event.details["layers"]) == ("Timeout", "Data Link Layer")
    assert "error status/mask" in event.samples[0]
    assert len(event.samples) == min(times, 3)


@pytest.mark.parametrize("suffix", [" (no details found)", ""])
def test_an_announcement_alone_blames_its_source(suffix: str) -> None:
    line = f"pcieport {PORT}: AER: Correctable error message received from {CARD}{suffix}"
    assert (only(line).bdf, only(line).root_port) == (CARD, PORT)


@pytest.mark.parametrize("domain", ["0000", "0002", "10000"])
def test_a_sender_that_the_port_did_not_learn_is_not_blamed(domain: str) -> None:
    event = only(
        f"pcieport {domain}:00:03.1: AER: Correctable error message received from {domain}:00:00.0",
        f"nvme {domain}:05:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)",
        f"nvme {domain}:05:00.0:    [ 0] RxErr                  (First)",
    )
    assert (event.bdf, event.count, event.details["devices"]) == (f"{domain}:00:03.1", 1, f"{domain}:05:00.0")


def test_a_root_port_at_device_0_is_a_device() -> None:
    event = only(
        "pcieport 0000:00:00.0: AER: Correctable error message received from 0000:00:00.0",
        "pcieport 0000:00:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)",
        "pcieport 0000:00:00.0:    [ 0] RxErr",
    )
    assert (event.bdf, event.root_port, event.count) == ("0000:00:00.0", "0000:00:00.0", 1)


def test_details_without_an_announcement_count() -> None:
    """``dmesg -l err`` and a rate limit both take the announcement away."""
    event = only(
        f"xe {CARD}: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)",
        f"xe {CARD}:   device [8086:e223] error status/mask=00100000/00000000",
        f"xe {CARD}:    [20] UnsupReq               (First)",
        f"xe {CARD}:   TLP Header: 40000001 0000000f 00000000 00000000",
    )
    assert (event.kind, event.count, event.details["bits"]) == ("aer.nonfatal", 1, "UnsupReq")


@pytest.mark.parametrize(
    ("bit", "kind"),
    [
        ("RxErr", "aer.corrected"),
        ("BadTLP", "aer.corrected"),
        ("SDES", "aer.fatal"),
        ("CmpltTO", "aer.nonfatal"),
        ("MalfTLP", "aer.fatal"),
    ],
)
def test_a_severity_that_is_cut_off_follows_from_the_bit(bit: str, kind: str) -> None:
    event = only(
        "pcieport 0000:03:07.0: PCIe Bus Error: severity=>",
        "pcieport 0000:03:07.0:   device [1022:43b4] erro>",
        f"pcieport 0000:03:07.0:    [ 0] {bit}            >",
    )
    assert (event.kind, event.bdf, event.count) == (kind, "0000:03:07.0", 1)


def test_a_severity_that_nothing_tells_stays_unclear() -> None:
    assert (
        only(
            "pcieport 0000:03:07.0: PCIe Bus Error: severity=Uncorr>",
            "pcieport 0000:03:07.0:   device [1022:43b4] erro>",
        ).kind
        == "aer.unclear"
    )


def test_a_cut_announcement_only_counts() -> None:
    event = only(
        "pcieport 0000:03:07.0:    [ 0] RxErr            >", "pcieport 0000:00:01.3: AER: Multiple Corrected e>"
    )
    assert (event.kind, event.bdf, event.count) == ("aer.corrected", "0000:03:07.0", 2)


@given(st.integers(1, 10**6), st.booleans())
def test_suppressed_errors_belong_to_the_report_after_them(number: int, is_last: bool) -> None:
    line = f"pcieport {PORT}: AER: Correctable error message received from {{}}"
    lines = [line.format("0000:08:00.0"), f"aer_ratelimit: {number} callbacks suppressed", line.format(CARD)]
    found = {event.bdf: event for event in events(*(lines[:2] if is_last else lines))}
    assert found["0000:08:00.0" if is_last else CARD].suppressed == number
    assert sum(event.suppressed for event in found.values()) == number


def test_suppressed_lines_of_others_are_not_errors() -> None:
    assert events("net_ratelimit: 55 callbacks suppressed") == ()


FATAL = (
    f"pcieport {PORT}: AER: Multiple Uncorrected (Fatal) error received: {PORT}",
    f"pcieport {PORT}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
    f"pcieport {PORT}:    [ 5] SDES    [14] CmpltTO (First)",
)


@pytest.mark.parametrize(
    ("words", "recovered"),
    [
        ((f"nvidia {CARD}: AER: can't recover (no error_detected callback)",), "failed"),
        ((f"pcieport {PORT}: AER: Root Port link has been reset (0)",), ""),
        (
            (
                f"pcieport {PORT}: AER: Root Port link has been reset (0)",
                f"pcieport {PORT}: AER: device recovery failed",
            ),
            "failed",
        ),
        (
            (
                f"nvidia {CARD}: AER: can't recover (no error_detected callback)",
                f"pcieport {PORT}: AER: device recovery successful",
            ),
            "recovered",
        ),
        ((f"pcieport {PORT}: AER: subordinate device reset failed",), "failed"),
    ],
)
def test_the_last_word_on_recovery_decides(words: tuple[str, ...], recovered: str) -> None:
    event = only(*FATAL, *words)
    assert (event.kind, event.details["bits"], event.recovered) == ("aer.fatal", "SDES, CmpltTO", recovered)


def test_a_failed_recovery_is_not_forgotten_when_a_later_one_succeeds() -> None:
    event = only(
        *FATAL,
        f"pcieport {PORT}: AER: device recovery failed",
        *FATAL,
        f"pcieport {PORT}: AER: device recovery successful",
    )
    assert (event.count, event.recovered, event.details["failed_recovery"]) == (2, "recovered", "yes")


def test_containment_is_an_event_of_the_port() -> None:
    event = only(
        "pcieport 0000:64:01.0: DPC: containment event, status:0x1f01 source:0x0000",
        "pcieport 0000:64:01.0: DPC: unmasked uncorrectable error detected",
    )
    assert (event.kind, event.bdf, event.details["status"]) == ("dpc", "0000:64:01.0", "0x1f01")


# -- rates -----------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 7_200_000), min_size=1, max_size=80))
def test_peaks_are_the_most_within_any_span(milliseconds: list[int]) -> None:
    times = sorted(milliseconds)
    line = f"pcieport {PORT}: AER: Correctable error message received from {PORT}"
    lines = [f"[{time / 1000:12.3f}] {line}" for time in times]
    event = parse_text(["[    0.000000] Linux version 7", *lines], 1e9, 0.0).events[0]
    for span, peak in ((1000, event.peak_1s), (60_000, event.peak_60s), (3_600_000, event.peak_1h)):
        assert peak == max(sum(1 for other in times if time <= other < time + span) for time in times)
    assert (event.count, event.first, event.last) == (len(times), times[0] / 1000, times[-1] / 1000)


# -- firmware --------------------------------------------------------------------------------------


def ghes(number: int, device: str, word: str = "corrected", status: str = "aer_cor_status: 0x00000001") -> list[str]:
    prefix = f"{{{number}}}[Hardware Error]: "
    return [
        prefix + "Hardware error from APEI Generic Hardware Error Source: 514",
        prefix + "It has been corrected by h/w and requires no further action",
        prefix + f"event severity: {word}",
        prefix + f" Error 0, type: {word}",
        prefix + "  section_type: PCIe error",
        prefix + "  port_type: 0, PCIe end point",
        prefix + "  version: 0.2",
        prefix + "  command: 0x0406, status: 0x0010",
        prefix + f"  device_id: {device}",
        prefix + "  slot: 0",
        prefix + "  secondary_bus: 0x00",
        prefix + "  vendor_id: 0x144d, device_id: 0xa80a",
        prefix + "  class_code: 010802",
        prefix + f"  {status}, aer_cor_mask: 0x00000000",
    ]


AFTER = [
    "nvme 0000:01:00.0: aer_status: 0x00000001, aer_mask: 0x00000000",
    "nvme 0000:01:00.0:    [ 0] RxErr                  (First)",
    "nvme 0000:01:00.0: aer_layer=Physical Layer, aer_agent=Receiver ID",
]


@given(st.integers(1, 4), st.booleans())
def test_a_firmware_record_counts_once(times: int, with_lines_after: bool) -> None:
    lines = [
        line
        for number in range(times)
        for line in (*ghes(number + 1, "0000:01:00.0"), *(AFTER if with_lines_after else []))
    ]
    event = only(*lines)
    assert (event.kind, event.bdf, event.count, event.previous_boot) == ("aer.corrected", "0000:01:00.0", times, False)
    assert (event.details["bits"], event.details["by"]) == ("RxErr", "firmware")


def test_the_lines_after_a_record_that_is_lost_still_count() -> None:
    event = only(*AFTER)
    assert (event.kind, event.count, event.details["by"]) == ("aer.corrected", 1, "firmware")
    assert "severity_from" not in event.details


def test_records_that_interleave_stay_apart() -> None:
    one, two = ghes(1, "0000:01:00.0"), ghes(2, "0000:e1:00.0", "fatal", "aer_uncor_status: 0x00004000")
    found = events(*[line for pair in zip(one, two, strict=True) for line in pair])
    assert {(event.bdf, event.kind, event.details["bits"]) for event in found} == {
        ("0000:01:00.0", "aer.corrected", "RxErr"),
        ("0000:e1:00.0", "aer.fatal", "CmpltTO"),
    }


@pytest.mark.parametrize("condensed", [False, True])
def test_a_record_of_the_previous_boot_is_dated_so(condensed: bool) -> None:
    fields = ["section_type: PCIe error", "port_type: 4, root port", "device_id: 0000:e0:03.1"]
    body = (
        [f"[Hardware Error]:   {'    '.join(fields)}"]
        if condensed
        else [f"[Hardware Error]:   {field}" for field in fields]
    )
    event = only(
        "BERT: Error records from previous boot:",
        "[Hardware Error]: event severity: fatal",
        *body,
        "[Hardware Error]:   aer_uncor_status: 0x00004000",
    )
    assert (event.kind, event.bdf, event.previous_boot, event.details["bits"]) == (
        "aer.fatal",
        "0000:e0:03.1",
        True,
        "CmpltTO",
    )


def test_a_memory_record_is_no_pcie_error() -> None:
    assert (
        events("{1}[Hardware Error]: event severity: corrected", "{1}[Hardware Error]:   section_type: memory error")
        == ()
    )


# -- faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (
            "xe 0000:c3:00.0: [drm] Tile0: GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=2, state=0x3",
            "xe.engine_reset",
        ),
        ("xe 0000:c3:00.0: [drm] GT0: Engine reset: engine_class=ccs, logical_mask=0x1, guc_id=24", "xe.engine_reset"),
        (
            "xe 0000:c3:00.0: [drm:guc_exec_queue_timedout_job [xe]] *ERROR* Timedout job: seqno=1, guc_id=2, flags=0x0 in a [2]",
            "xe.timedout_job",
        ),
        (
            "xe 0000:c3:00.0: [drm] Tile0: GT0: Timedout job: seqno=5784, guc_id=0, flags=0x73 in no process [-1]",
            "xe.kernel_job",
        ),
        ("xe 0000:c3:00.0: [drm] Tile0: GT0: Fault response: Unsuccessful -ENOENT", "xe.fault_response"),
        ("xe 0000:c3:00.0: [drm] Tile0: GT0: Engine memory cat error: engine_class=vcs", "xe.cat_error"),
        ("xe 0000:c3:00.0: [drm] Tile0: GT0: Schedule disable failed to respond", "xe.reset_failed"),
        ("xe 0000:c3:00.0: [drm] *ERROR* Tile0: GT0: TLB invalidation fence timeout, seqno=3 recv=2", "xe.tlb_timeout"),
        ("xe 0000:c3:00.0: [drm] *ERROR* GT0: GuC mmio request 0x550: no reply 0x550", "xe.no_reply"),
        ("xe 0000:c3:00.0: [drm] device wedged, needs recovery", "xe.wedged"),
        ("xe 0000:c3:00.0: [drm] device wedged, but recovered through reset", "gpu.recovered"),
        ("xe 0000:c3:00.0: [drm] device wedged, b>", "gpu.wedge_cut"),
        ("xe 0000:c3:00.0: In Survivability Mode", "survivability"),
        ("xe 0000:c3:00.0: [drm] *ERROR* GT0: GuC load failed: status = 0x400000A0", "guc.load_failed"),
        ("xe 0000:c3:00.0: [drm] *ERROR* PCODE initialization timedout after: 3 min", "pcode.timeout"),
        ("xe 0000:c3:00.0: probe with driver xe failed with error -105", "probe_failed"),
        ("xe: probe of 0000:c3:00.0 failed with error -12", "probe_failed"),
        (
            "i915 0000:c3:00.0: Your graphics device 56a1 is not properly supported by i915 in this kernel version.",
            "not_supported_by_driver",
        ),
        ("i915 0000:c3:00.0: [drm] GPU HANG: ecode 12:1:85dffffb, in python [4242]", "i915.hang"),
        ("i915 0000:c3:00.0: [drm] Resetting chip for stopped heartbeat on rcs0", "i915.hang"),
        ("amdgpu 0000:c3:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3", "amdgpu.ring_timeout"),
        ("amdgpu 0000:c3:00.0: amdgpu: GPU reset(2) succeeded!", "gpu.recovered"),
        ("amdgpu 0000:c3:00.0: [drm] AMDGPU device coredump file has been created", "gpu.coredump_created"),
        ("NVRM: Xid (PCI:0000:c3:00): 79, pid='<unknown>', GPU has fallen off the bus.", "nvrm.lost"),
        ("NVRM: Xid (PCI:0000:c3:00.0): 31, pid=77, MMU Fault", "nvrm.xid"),
        ("NVRM: GPU 0000:c3:00.0: GPU has fallen off the bus.", "nvrm.lost"),
        ("xe 0000:c3:00.0: Unable to change power state from D3cold to D0, device inaccessible", "d3_failed"),
        (
            "xe 0000:c3:00.0: [drm] Failed to resize BAR2 to 32768M (-ENOSPC). Consider enabling 'Resizable BAR'",
            "bar.resize_failed",
        ),
        ("xe 0000:c3:00.0: [drm] VISIBLE VRAM: 0x0000004000000000, 0x0000000010000000", "bar.small"),
        (
            "xe 0000:c3:00.0: [drm] VRAM[0, 0]: Actual physical size 0x0000000300000000, usable excluding stolen 0x2, CPU accessible size 0x0000000010000000",
            "bar.small",
        ),
        ("xe 0000:c3:00.0: [drm] Using GuC firmware from xe/bmg_guc_70.bin version 70.54.0", "guc.loaded"),
        (
            "xe 0000:c3:00.0: [drm] GuC firmware (70.54.0) is recommended, but only (70.44.1) was found in xe/bmg_guc_70.bin",
            "guc.recommended",
        ),
    ],
)
def test_kinds(line: str, kind: str) -> None:
    event = only(line)
    assert (event.kind, event.bdf) == (kind, "0000:c3:00.0")


@pytest.mark.parametrize(
    "line",
    [
        "xe 0000:c3:00.0: [drm] ccs1 fused off",
        "xe 0000:c3:00.0: [drm] unbounded parent pci bridge, device won't support any PM support.",
        "nvme 0000:01:00.0: reset done",
        "mlx5_core 0000:61:00.0: reset failed, timed out job",
        "xhci_hcd 0000:c4:00.0: xHC error in resume, USBSTS 0x401, Reinit",
        "usb 1-1: reset high-speed USB device number 2",
    ],
)
def test_lines_that_are_no_fault(line: str) -> None:
    assert not any(is_fault(event.kind) for event in events(line))


def test_a_wrapped_recommendation_is_read_whole() -> None:
    text = [
        "[    9.0] xe 0000:27:00.0: [drm] GuC firmware (70.54.0) is recommended,",
        "            but only (70.44.1) was found in xe/bmg_guc_70.bin",
    ]
    event = parse_text(["[    0.0] Linux version 7", *text], 1e9, 0.0).events[0]
    assert (event.details["recommended"], event.details["found"]) == ("70.54.0", "70.44.1")


def test_a_line_without_an_address_is_given_the_one_card_of_its_driver() -> None:
    reset = "xe {}: [drm] GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=2"
    wanted = "GuC version: 70.58.0 (wanted 70.54.0)"
    assert {event.bdf for event in events(reset.format("0000:0b:00.0"), wanted)} == {"0000:0b:00.0"}
    two = events(reset.format("0000:0b:00.0"), reset.format("0000:0c:00.0"), wanted)
    assert next(event.bdf for event in two if event.kind == "guc.version") == ""


def test_a_lost_card_that_is_not_named_is_the_one_whose_link_reported() -> None:
    found = events(f"nvidia {CARD}:    [12] Timeout", "NVRM: GPU has fallen off the bus")
    assert [(event.kind, event.bdf) for event in found] == [("aer.corrected", CARD), ("nvrm.lost", CARD)]


@pytest.mark.parametrize(
    ("line", "kind", "details"),
    [
        (
            "acpi PNP0A08:00: _OSC: platform does not support [AER LTR]",
            "osc.refused",
            {"features": "AER LTR", "bridges": "PNP0A08:00"},
        ),
        (
            "acpi PNP0A08:01: _OSC: platform retains control of PCIe features (AE_NOT_FOUND)",
            "osc.refused",
            {"features": "AE_NOT_FOUND"},
        ),
        ("acpi PNP0A08:00: _OSC: OS now controls [PCIeHotplug PME AER PCIeCapability LTR]", "osc.granted", {}),
        ("PCIe ASPM is disabled", "aspm.disabled", {}),
        ("ACPI FADT declares the system doesn't support PCIe ASPM, so disable it", "aspm.off_firmware", {}),
        ("FADT indicates ASPM is unsupported, using BIOS configuration", "aspm.off_firmware", {}),
        (
            "clocksource: Long readout interval, skipping watchdog check: cs_nsec: 6035009078 wd_nsec: 6035005845",
            "clocksource.stall",
            {"ns": "6035009078"},
        ),
        (
            "clocksource: timekeeping watchdog on CPU3: Marking clocksource 'tsc' as unstable because the skew is too large:",
            "clocksource.unstable",
            {"clock": "tsc"},
        ),
        (
            "clocksource: timekeeping watchdog on CPU0: wd-tsc-wd read-back delay of 2190us, attempt 4, marking tsc unstable",
            "clocksource.unstable",
            {"clock": "tsc"},
        ),
        ("tsc: Marking TSC unstable due to clocksource watchdog", "clocksource.unstable", {"clock": "TSC"}),
        ("Clocksource tsc unstable (delta = -93845 ns)", "clocksource.unstable", {"clock": "tsc"}),
        (
            "clocksource: timekeeping watchdog on CPU1: hpet retried 2 times before success",
            "clocksource.retried",
            {},
        ),
        ("rcu: INFO: rcu_preempt self-detected stall on CPU", "lockup.rcu", {"flavor": "rcu_preempt"}),
        ("INFO: rcu_sched detected stalls on CPUs/tasks: { 3} (detected by 1)", "lockup.rcu", {"cpu": "3"}),
        ("rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 7-... } 21 jiffies", "lockup.rcu", {}),
        ("Out of memory: Kill process 77 (python3) score 900 or sacrifice child", "oom", {"process": "python3"}),
        ("Memory cgroup out of memory: Killed process 9 (vllm) total-vm:1kB", "oom.cgroup", {"process": "vllm"}),
        ("INFO: task kworker/3:1:77 blocked for more than 122 seconds.", "hung_task", {"seconds": "122"}),
        ("Out of memory: Killed process 4242 (python3) total-vm:1kB", "oom", {"process": "python3"}),
        (
            "x86/amd: Previous system reset reason [0x00800800]: internal CPU shutdown event occurred",
            "reset_reason",
            {"code": "0x00800800"},
        ),
    ],
)
def test_lines_about_the_host(line: str, kind: str, details: dict[str, str]) -> None:
    event = only(line)
    assert event.kind == kind
    assert details.items() <= event.details.items()


def test_the_narrowest_hop_of_a_limited_link_is_kept() -> None:
    line = "pci 0000:23:00.0: 2.000 Gb/s available PCIe bandwidth, limited by 2.5 GT/s PCIe x1 link at 0000:22:01.0 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)"
    assert only(line).details == {
        "at": "0000:22:01.0",
        "available": "2.000 Gb/s",
        "capable": "504.112 Gb/s",
        "capable_link": "32.0 GT/s PCIe x16 link",
        "driver": "pci",
        "speed": "2.5 GT/s",
        "width": "x1",
    }


# -- properties ------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_masked_bits_are_not_told(status: int, mask: int) -> None:
    names = bits_of(status, mask, {})
    assert len(names) == (status & ~mask).bit_count()
    assert bits_of(status, status, {}) == []
    assert severity_of_bit("no such bit") == ""


@given(st.text(max_size=120))
def test_any_text_can_be_classified(text: str) -> None:
    for prefix in ("", "xe 0000:03:00.0: ", "pcieport 0000:00:01.0: AER: ", "NVRM: ", "{1}[Hardware Error]: "):
        said = classify(prefix + text)
        assert said is None or said.kind


@given(st.permutations([0, 1, 2]), st.integers(1, 3))
def test_cards_keep_their_own_events_in_any_order(order: list[int], times: int) -> None:
    blocks = [
        [f"xe 0000:0{card}:00.0: [drm] Tile0: GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id={card}"]
        * times
        for card in (3, 4, 5)
    ]
    found = events(*[line for index in order for line in blocks[index]])
    assert {event.bdf: event.count for event in found} == {f"0000:0{card}:00.0": times for card in (3, 4, 5)}
