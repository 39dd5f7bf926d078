"""Faults of cards: the verdict of every kind, and what folds into what."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.findings import Finding, Status
from tests import replay

FOUR = ("0000:23:00.0", "0000:27:00.0", "0000:43:00.0", "0000:47:00.0")
IDS = ("gpu.fault", "gpu.wedged", "gpu.lost", "gpu.state")


def findings(text: str, host: str = "four-card-gen4", **change: Any) -> dict[tuple[str, str], Finding]:
    recording = replay.changed(replay.host(host), {**({"log": text} if text else {}), **change})
    return {(one.id, one.subject.name): one for one in replay.report(recording).findings if one.id in IDS}


def status(text: str, card: str = FOUR[0], host: str = "four-card-gen4") -> dict[str, Status]:
    return {id: one.status for (id, name), one in findings(text, host).items() if name == card}


RESET = "Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=2, state=0x3"
SERIOUS = (
    "Fault response: Unsuccessful -ENOENT",
    "Engine memory CAT error [18]: class=bcs, logical_mask: 0x1, guc_id=6",
    "Timedout job: seqno=791, lrc_seqno=791, guc_id=2, flags=0x20 in python [184372]",
    "Faulted Address: 0x0000aaad55000000",
    "VM worker error: -62",
)


def test_healthy_cards_are_ok_one_by_one() -> None:
    found = findings("")
    assert {key: one.status for key, one in found.items() if key[0] == "gpu.fault"} == {
        ("gpu.fault", card): Status.ok for card in FOUR
    }


@given(st.sampled_from(FOUR), st.sampled_from(["Tile0: GT0: ", "GT0: ", "Tile1: GT2: "]), st.integers(1, 5))
def test_a_reset_alone_is_a_warning_on_that_card_only(card: str, tag: str, times: int) -> None:
    text = "".join(f"[ {5000 + number}.000000] xe {card}: [drm] {tag}{RESET}\n" for number in range(times))
    found = findings(text)
    one = found["gpu.fault", card]
    assert one.status is Status.warn
    assert f"{times} time" in one.seen
    assert "5000.0 s" in one.seen
    assert all(found["gpu.fault", other].status is Status.ok for other in FOUR if other != card)


@pytest.mark.parametrize("line", SERIOUS)
@pytest.mark.parametrize("before", [True, False])
def test_what_ends_a_context_fails_with_or_without_a_reset(line: str, before: bool) -> None:
    lines = [RESET, line] if before else [line]
    text = "".join(f"[ 5000.00000{at}] xe {FOUR[1]}: [drm] Tile0: GT0: {one}\n" for at, one in enumerate(lines))
    assert status(text, FOUR[1])["gpu.fault"] is Status.fail


def test_a_created_coredump_fails_though_it_was_deleted() -> None:
    text = (
        f"[ 5000.0] xe {FOUR[2]}: [drm] Xe device coredump has been created\n"
        f"[ 8600.0] xe {FOUR[2]}: [drm] Xe device coredump has been deleted.\n"
    )
    assert status(text, FOUR[2])["gpu.fault"] is Status.fail


def test_a_coredump_that_exists_fails_without_any_line() -> None:
    target = replay.host("four-card-gen4")["links"]["/sys/bus/pci/devices/0000:43:00.0"].replace("../../../", "/sys/")
    links = {"/sys/class/devcoredump/devcd1/failing_device": target.replace("/sys/", "../../../", 1)}
    found = findings("", links=links)
    one = found["gpu.fault", "0000:43:00.0"]
    assert (one.status, one.next_step.startswith("cp /sys/bus/pci/devices/0000:43:00.0/")) == (Status.fail, True)


@pytest.mark.parametrize("host", ["amd-card", "one-card-b450-x8"])
def test_the_end_of_the_line_tells_wedged_from_recovered(host: str) -> None:
    driver, card = {"amd-card": ("amdgpu", "0000:2f:00.0"), "one-card-b450-x8": ("xe", "0000:0c:00.0")}[host]
    dump = f"[ 90.0] {driver} {card}: [drm] device coredump has been created\n"
    failed = f"{dump}[ 91.0] {driver} {card}: [drm] device wedged, needs recovery\n"
    recovered = f"{dump}[ 91.0] {driver} {card}: [drm] device wedged, but recovered through reset\n"
    cut = f"{dump}[ 91.0] {driver} {card}: [drm] device wedged, b>\n"
    assert status(failed, card, host).get("gpu.wedged") is Status.fail
    assert status(recovered, card, host).get("gpu.wedged") is None
    assert status(recovered, card, host)["gpu.fault"] is Status.warn
    assert status(cut, card, host)["gpu.wedged"] is Status.unknown
    again = f"{recovered}[ 95.0] {driver} {card}: [drm] device wedged, needs recovery\n"
    assert status(again, card, host)["gpu.wedged"] is Status.fail
    later = f"{failed}[ 95.0] {driver} {card}: [drm] device wedged, but recovered through reset\n"
    assert status(later, card, host)["gpu.fault"] is Status.warn


def test_the_faults_of_a_wedged_card_fold_into_it() -> None:
    text = (
        f"[ 80.0] xe {FOUR[0]}: [drm] Tile0: GT0: Schedule enable failed to respond\n"
        f"[ 81.0] xe {FOUR[0]}: [drm] *ERROR* CRITICAL: Xe has declared device {FOUR[0]} as wedged.\n"
        "               IOCTLs and executions are blocked. Only a rebind may clear the failure\n"
    )
    found = findings(text)
    assert ("gpu.fault", FOUR[0]) not in found
    assert "gpu.fault" in {one.id for one in found["gpu.wedged", FOUR[0]].explains}
    assert "reboot" in found["gpu.wedged", FOUR[0]].next_step


@pytest.mark.parametrize(
    "line", ["Timedout job: seqno=5, guc_id=0, flags=0x73 in no process [-1]", "Kernel-submitted job timed out"]
)
def test_a_job_of_the_driver_itself_is_suspected_wedged(line: str) -> None:
    one = findings(f"[ 80.0] xe {FOUR[3]}: [drm] Tile0: GT0: {line}")["gpu.wedged", FOUR[3]]
    assert (one.status, one.seen.startswith("suspected")) == (Status.fail, True)


LOSSES = {
    "xid": "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', GPU has fallen off the bus.",
    "plain": "NVRM: GPU 0000:05:00.0: GPU has fallen off the bus.",
    "sleep": "nvidia 0000:05:00.0: Unable to change power state from D3cold to D0, device inaccessible",
    "link": "pcieport 0000:00:01.1: pciehp: Slot(0): Link Down",
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_lost_card_takes_its_functions_and_later_errors_with_it(loss: str) -> None:
    text = (
        f"[ 900.0] {loss}\n"
        "[ 901.0] nvidia-gpu 0000:05:00.3: Refused to change power state, currently in D3\n"
        "[ 902.0] xhci_hcd 0000:05:00.2: Controller not ready at resume -19\n"
        "[ 2700.0] pcieport 0000:00:01.1: AER: Corrected error received: 0000:00:00.0\n"
    )
    found = findings(text, "nvidia-host")
    one = found["gpu.lost", "0000:05:00.0"]
    assert one.status is Status.fail
    assert [(item.id, item.subject.name) for item in one.explains if item.id != "gpu.fault"] == [
        ("aer.rate", "0000:05:00.0"),
        ("gpu.lost", "0000:05:00.2"),
        ("gpu.lost", "0000:05:00.3"),
    ]
    assert ("gpu.lost", "0000:05:00.3") not in found


def test_a_function_that_does_not_resume_is_no_lost_card() -> None:
    text = "[ 901.0] nvme 0000:01:00.0: Unable to change power state from D3cold to D0, device inaccessible"
    assert not [key for key in findings(text) if key[0] == "gpu.lost"]


@pytest.mark.parametrize(
    ("xid", "wanted"), [("31", Status.warn), ("13", Status.warn), ("48", Status.fail), ("119", Status.fail)]
)
def test_an_xid_of_the_program_is_a_warning(xid: str, wanted: Status) -> None:
    text = f"[ 900.0] NVRM: Xid (PCI:0000:05:00): {xid}, pid=77, name=python"
    assert status(text, "0000:05:00.0", "nvidia-host")["gpu.fault"] is wanted


def test_a_hang_of_an_i915_card_fails() -> None:
    text = "[ 900.0] i915 0000:03:00.0: [drm] GPU HANG: ecode 12:1:85dffffb, in python [4242]"
    assert status(text, "0000:03:00.0", "two-card-gen5")["gpu.fault"] is Status.fail


def test_survivability_by_line_or_by_file() -> None:
    assert status(f"[ 9.0] xe {FOUR[0]}: In Survivability Mode")["gpu.state"] is Status.fail
    place = replay.host("four-card-gen4")["links"][f"/sys/bus/pci/devices/{FOUR[1]}"].replace("../../../", "/sys/")
    found = findings("", files={f"{place}/survivability_mode": "Capability Info: 0x0\n"})
    assert {name: one.status for (id, name), one in found.items() if id == "gpu.state"} == {
        card: Status.fail if card == FOUR[1] else Status.ok for card in FOUR
    }


def test_a_lockup_in_the_interrupts_of_a_card_is_told_of_that_card() -> None:
    place = "/sys/bus/pci/devices/" + FOUR[2]
    target = replay.host("four-card-gen4")["links"][place].replace("../../../", "/sys/")
    text = (
        "[ 900.0] watchdog: CPU21: Watchdog detected hard LOCKUP on cpu 21\n"
        "[ 900.1]  g2h_read+0x42a/0x4b0 [xe]\n"
        "[ 900.2]  xe_guc_irq_handler+0x9e/0xb0 [xe]\n"
    )
    files = {f"{target}/msi_irqs/150": "msix\n", "/proc/irq/150/effective_affinity_list": "21\n"}
    one = findings(text, files=files)["gpu.fault", FOUR[2]]
    assert (one.status, "CPU 21" in one.seen) == (Status.warn, True)


@given(st.lists(st.tuples(st.sampled_from(FOUR), st.sampled_from(SERIOUS)), max_size=4))
def test_a_fault_of_one_card_never_touches_another(faults: list[tuple[str, str]]) -> None:
    text = "".join(f"[ {5000 + at}.0] xe {card}: [drm] GT0: {line}\n" for at, (card, line) in enumerate(faults))
    found = findings(text)
    bad = {card for card, _ in faults}
    for card in FOUR:
        assert found["gpu.fault", card].status is (Status.fail if card in bad else Status.ok)


def test_every_fault_is_marked_for_waivers() -> None:
    one = findings(f"[ 5000.0] xe {FOUR[0]}: [drm] GT0: {RESET}")["gpu.fault", FOUR[0]]
    assert len(one.marks) == 1
    assert " xe.engine_reset 0000:23:00.0 5000.000000 " in one.marks[0]
