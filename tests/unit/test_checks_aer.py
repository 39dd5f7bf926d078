"""PCIe errors: which link, which severity, which rate, and what only looks like one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.checks import aer
from hostcheck.expectations import expectation
from hostcheck.findings import Finding, Status
from hostcheck.onhost.gather import Facts, Options, gather
from hostcheck.onhost.reader import Reading
from hostcheck.onhost.readings.config_space import AerRegisters
from hostcheck.onhost.readings.pcie import Hop
from hostcheck.onhost.recording import RecordedReader
from tests import replay

HOST = "one-card-x399-gen3"
PORT, UPLINK, INNER, CARD = "0000:00:03.1", "0000:08:00.0", "0000:09:01.0", "0000:0a:00.0"
WORDS = {"old": "Corrected error received: {}", "new": "Correctable error message received from {}"}


def findings(
    text: str, host: str = HOST, expect: dict[str, Any] | None = None, **change: Any
) -> dict[tuple[str, str], Finding]:
    recording = replay.changed(replay.host(host), {**({"log": text} if text else {}), **change})
    return {(one.id, one.subject.name): one for one in replay.report(recording, expect).findings}


def said(text: str, host: str = HOST, id: str = "aer.rate", **more: Any) -> dict[str, Status]:
    quiet = (Status.ok, Status.not_applicable)
    return {
        name: one.status
        for (found, name), one in findings(text, host, **more).items()
        if found == id and one.status not in quiet
    }


def storm(source: str, count: int, step: float, port: str = PORT, words: str = "new", bit: str = "[12] Timeout") -> str:
    line = WORDS[words].format(source)
    return "".join(
        f"[ {100 + number * step:.6f}] pcieport {port}: AER: {line}\n"
        f"[ {100 + number * step:.6f}] pcieport {source}:    {bit}\n"
        for number in range(count)
    )


def place(host: str, bdf: str) -> str:
    return replay.host(host)["links"][f"/sys/bus/pci/devices/{bdf}"].replace("../../../", "/sys/")


def counters(name: str, **counts: int) -> str:
    return "".join(f"{key} {value}\n" for key, value in {**counts, f"TOTAL_ERR_{name}": sum(counts.values())}.items())


def test_silent_links_of_cards_are_ok_by_their_uplink() -> None:
    found = findings("")
    for id in ("aer.rate", "aer.nonfatal", "aer.fatal"):
        assert {name: one.status for (key, name), one in found.items() if key == id} == {UPLINK: Status.ok}


# -- rate ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("source", [PORT, UPLINK])
def test_either_end_speaks_of_the_same_link(source: str, words: str) -> None:
    found = findings(storm(source, 1, 1.0, words=words))
    one = found["aer.rate", UPLINK]
    assert (one.status, one.subject.kind) == (Status.warn, "link")
    assert PORT in one.seen
    assert UPLINK in one.seen


@pytest.mark.parametrize(
    ("count", "step", "wanted"),
    [
        (1, 1.0, Status.warn),
        (30, 10.0, Status.warn),
        (9, 0.05, Status.warn),
        (10, 0.05, Status.fail),
        (59, 1.0, Status.warn),
        (60, 0.99, Status.fail),
        (200, 0.0005, Status.fail),
    ],
)
def test_on_the_way_to_a_card_the_rate_decides(count: int, step: float, wanted: Status) -> None:
    assert said(storm(PORT, count, step)) == {UPLINK: wanted}


@pytest.mark.parametrize(
    ("count", "step", "wanted"),
    [(1, 1.0, Status.info), (6, 60.0, Status.info), (7, 60.0, Status.warn), (500, 0.0005, Status.warn)],
)
def test_elsewhere_a_few_per_hour_are_no_warning(count: int, step: float, wanted: Status) -> None:
    assert said(storm("0000:7f:00.0", count, step, port="0000:7e:01.0")) == {"0000:7f:00.0": wanted}


def test_a_storm_on_model_storage_fails() -> None:
    text = storm("0000:7f:00.0", 100, 0.5, port="0000:7e:01.0")
    expect = {"model_storage": ["0000:7f:00.0"]}
    assert said(text, expect=expect) == {"0000:7f:00.0": Status.fail}
    assert said(storm("0000:7f:00.0", 30, 10.0, port="0000:7e:01.0"), expect=expect) == {"0000:7f:00.0": Status.warn}


def test_suppressed_errors_fail_though_few_lines_are_left() -> None:
    line = f"pcieport {PORT}: AER: Correctable error message received from {UPLINK}"
    text = f"[ 100.0] {line}\n[ 100.1] aer_ratelimit: 8156 callbacks suppressed\n[ 100.100003] {line}\n"
    one = findings(text)["aer.rate", UPLINK]
    assert (one.status, "at least 8156 suppressed" in one.seen) == (Status.fail, True)


def test_errors_before_a_loss_fail_and_later_ones_are_its_consequence() -> None:
    error = "pcieport 0000:00:01.1: AER: Correctable error message received from 0000:00:00.0"
    loss = "NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus."
    assert said(f"[ 100.0] {error}\n[ 101.0] {loss}\n", "nvidia-host") == {"0000:05:00.0": Status.fail}
    assert said(f"[ 100.0] {loss}\n[ 101.0] {error}\n", "nvidia-host") == {}


def test_a_real_root_port_at_device_0_is_not_taken_for_an_unknown_sender() -> None:
    text = "[ 24.2] pcieport 0000:00:00.0: AER: Correctable error message received from 0000:01:00.0\n"
    assert said(text, "arm-one-lane") == {"0000:01:00.0": Status.warn}


def test_an_unlearned_sender_is_the_link_below_the_port_that_reports() -> None:
    text = (
        f"[ 24.2] pcieport {PORT}: AER: Correctable error message received from 0000:00:00.0\n"
        "[ 24.3] nvme 0000:01:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)\n"
        "[ 24.4] nvme 0000:01:00.0:    [ 0] RxErr\n"
    )
    assert said(text) == {UPLINK: Status.warn}


def test_other_functions_of_the_card_are_on_its_way() -> None:
    text = (
        "[ 24.2] snd_hda_intel 0000:0a:00.1: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)\n"
    )
    assert said(text) == {"0000:0a:00.1": Status.info}  # this card has no such function
    audio = [bdf for bdf in ("0000:0b:00.0",) if f"/sys/bus/pci/devices/{bdf}" in replay.host(HOST)["links"]]
    assert said(text.replace("0000:0a:00.1", audio[0])) == {audio[0]: Status.warn}


# -- counters --------------------------------------------------------------------------------------


def test_counters_speak_without_a_log_line() -> None:
    files = {f"{place(HOST, UPLINK)}/aer_dev_correctable": counters("COR", BadDLLP=3)}
    one = findings("", files=files)["aer.rate", UPLINK]
    assert (one.status, "3 counted" in one.seen, "BadDLLP" in one.seen) == (Status.warn, True, True)


def test_leftovers_of_enumeration_are_told_not_judged() -> None:
    files = {f"{place(HOST, UPLINK)}/aer_dev_correctable": counters("COR", NonFatalErr=2)}
    assert said("", files=files) == {UPLINK: Status.info}
    files = {f"{place(HOST, UPLINK)}/aer_dev_nonfatal": counters("NONFATAL", UnsupReq=2)}
    assert said("", id="aer.nonfatal", files=files) == {UPLINK: Status.info}


@pytest.mark.parametrize(("name", "id"), [("nonfatal", "aer.nonfatal"), ("fatal", "aer.fatal")])
def test_counted_uncorrected_errors_fail(name: str, id: str) -> None:
    files = {f"{place(HOST, PORT)}/aer_dev_{name}": counters(name.upper(), DLP=1)}
    assert said("", id=id, files=files) == {UPLINK: Status.fail}


def facts(uptime: float, count: int, at: str, host: str = HOST) -> Facts:
    files = {
        f"{place(host, UPLINK)}/aer_dev_correctable": counters("COR", Timeout=count),
        "/proc/uptime": f"{uptime:.2f} 1.00\n",
    }
    return gather(RecordedReader(replay.changed(replay.host(host), {"files": files, "taken_at": at})), Options())


@given(st.integers(0, 1000), st.integers(1, 5000))
def test_two_reads_on_one_boot_give_the_rate(before: int, more: int) -> None:
    """A count since the boot says little after weeks; the difference of two reads says what happens now."""
    month = 30 * 86400.0
    first = facts(month, before, "2026-03-01T00:00:00Z")
    second = facts(month + 1000, before + more, "2026-03-01T00:16:40Z")
    (one,) = [one for one in aer.rate(second, expectation({}), first) if one.subject.name == UPLINK]
    assert one.status is (Status.fail if more >= 1000 else Status.warn)
    other = replace(first, identity=replace(first.identity, boot_id=Reading("another", "/x")))
    (alone,) = [one for one in aer.rate(second, expectation({}), other) if one.subject.name == UPLINK]
    assert alone.status is Status.warn


def test_counters_that_cannot_be_read_are_never_ok() -> None:
    silent = {
        f"{place(HOST, bdf)}/aer_dev_{name}": {"error": "EIO"}
        for bdf in (PORT, UPLINK)
        for name in ("correctable", "nonfatal", "fatal")
    }
    found = findings("", files=silent)
    for id in ("aer.rate", "aer.nonfatal", "aer.fatal"):
        assert found[id, UPLINK].status is Status.unknown


@pytest.mark.parametrize("argument", ["pci=noaer", "pcie_aspm=off", "pcie_ports=compat"])
def test_zero_means_nothing_where_the_kernel_does_not_look(argument: str) -> None:
    found = findings("", files={"/proc/cmdline": f"BOOT_IMAGE=/vmlinuz ro {argument}\n"})
    assert ("aer.rate", UPLINK) not in found
    cause = found["aer.visibility", "host"]
    assert {(one.id, one.status) for one in cause.explains} >= {
        (id, Status.unknown) for id in ("aer.rate", "aer.nonfatal", "aer.fatal")
    }


# -- uncorrected -----------------------------------------------------------------------------------

ELSEWHERE, PORT_ELSEWHERE = "0000:7f:00.0", "0000:7e:01.0"


def uncorrected(word: str, source: str, port: str, bit: str, *after: str) -> str:
    lines = [
        f"pcieport {port}: AER: Uncorrectable ({word}) error message received from {source}",
        f"pcieport {source}: PCIe Bus Error: severity=Uncorrectable ({word}), type=Transaction Layer, (Requester ID)",
        f"pcieport {source}:    [14] {bit}",
        *(f"pcieport {port}: AER: {text}" for text in after),
    ]
    return "".join(f"[ 100.00{at}] {line}\n" for at, line in enumerate(lines))


@pytest.mark.parametrize(
    ("word", "source", "port", "after", "wanted"),
    [
        ("Non-Fatal", UPLINK, PORT, "device recovery successful", Status.fail),
        ("Non-Fatal", ELSEWHERE, PORT_ELSEWHERE, "device recovery successful", Status.warn),
        ("Non-Fatal", ELSEWHERE, PORT_ELSEWHERE, "device recovery failed", Status.fail),
        ("Fatal", ELSEWHERE, PORT_ELSEWHERE, "device recovery successful", Status.fail),
        ("Fatal", UPLINK, PORT, "device recovery failed", Status.fail),
    ],
)
def test_uncorrected_errors(word: str, source: str, port: str, after: str, wanted: Status) -> None:
    id = "aer.fatal" if word == "Fatal" else "aer.nonfatal"
    assert said(uncorrected(word, source, port, "CmpltTO", after), id=id) == {source: wanted}


def test_unsupported_requests_elsewhere_are_told_not_judged() -> None:
    text = uncorrected("Non-Fatal", ELSEWHERE, PORT_ELSEWHERE, "UnsupReq")
    assert said(text, id="aer.nonfatal") == {ELSEWHERE: Status.info}
    assert said(uncorrected("Non-Fatal", UPLINK, PORT, "UnsupReq"), id="aer.nonfatal") == {UPLINK: Status.fail}


@pytest.mark.parametrize("device", [PORT, UPLINK])
def test_a_record_of_the_previous_boot_is_told_of_that_boot(device: str) -> None:
    text = (
        "[ 0.9] BERT: Error records from previous boot:\n[ 0.901] [Hardware Error]: event severity: fatal\n"
        f"[ 0.902] [Hardware Error]:   section_type: PCIe error    port_type: 4, root port    device_id: {device}\n"
        "[ 0.903] [Hardware Error]:   aer_uncor_status: 0x00004000\n"
    )
    one = findings(text)["aer.fatal", UPLINK]
    assert (one.status, "previous boot" in one.seen, "CmpltTO" in one.seen) == (Status.fail, True, True)
    assert "after the boot" not in one.seen


def test_a_severity_that_nothing_tells_is_unknown() -> None:
    text = (
        "[ 9.0] pcieport 0000:03:07.0: PCIe Bus Error: severity=Uncorr>\n"
        "[ 9.1] pcieport 0000:03:07.0:   device [1022:43b4] erro>\n"
    )
    assert said(text, id="aer.nonfatal") == {"0000:03:07.0": Status.unknown}


# -- registers -------------------------------------------------------------------------------------


def with_registers(port: str, **changes: tuple[str, ...]) -> Facts:
    found = gather(RecordedReader(replay.host(HOST)), Options())
    registers = AerRegisters(
        uncorrectable_status=(),
        uncorrectable_mask=("UncorrIntErr",),
        uncorrectable_severity=("DLP", "SDES", "FCP", "RxOF", "MalfTLP"),
        correctable_status=(),
        correctable_mask=("NonFatalErr", "CorrIntErr", "HeaderOF"),
    )

    def set_to(hop: Hop) -> Hop:
        value = replace(registers, **changes) if hop.bdf == port else registers
        return replace(hop, aer_registers=Reading(value, "config"))

    assert found.pcie.gpus.value is not None
    gpus = tuple(replace(gpu, path=tuple(set_to(hop) for hop in gpu.path)) for gpu in found.pcie.gpus.value)
    return replace(found, pcie=replace(found.pcie, gpus=Reading(gpus, "sysfs")))


def test_default_masks_are_not_told() -> None:
    assert list(aer.masked(with_registers(PORT), expectation({}))) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"uncorrectable_mask": ("DLP",)}, "masked: DLP"),
        ({"correctable_mask": ("Timeout", "NonFatalErr")}, "masked: Timeout"),
        ({"uncorrectable_severity": ("SDES", "FCP", "RxOF", "MalfTLP")}, "made non-fatal: DLP"),
    ],
)
def test_a_class_that_is_turned_off_is_told(changes: dict[str, tuple[str, ...]], text: str) -> None:
    (one,) = aer.masked(with_registers(UPLINK, **changes), expectation({}))
    assert (one.status, one.subject.name, text in one.seen) == (Status.info, UPLINK, True)


@pytest.mark.parametrize(
    ("bit", "wanted"), [("DLP", Status.fail), ("MalfTLP", Status.fail), ("UnsupReq", Status.ok), ("SDES", Status.ok)]
)
def test_a_fatal_bit_that_is_still_set_fails(bit: str, wanted: Status) -> None:
    found = aer.fatal(with_registers(UPLINK, uncorrectable_status=(bit,)), expectation({}))
    (one,) = [one for one in found if one.subject.name == UPLINK]
    assert one.status is wanted


# -- which link ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bdf", "link"),
    [
        ("0000:00:01.0", "0000:0a:00.0"),
        ("0000:0a:00.0", "0000:0a:00.0"),
        ("0000:0b:10.0", "0000:10:00.0"),
        ("0000:10:00.0", "0000:10:00.0"),
        ("0000:11:01.0", "0000:12:00.0"),
        ("0000:12:00.0", "0000:12:00.0"),
        ("0000:99:00.0", "0000:99:00.0"),
    ],
)
def test_a_link_is_named_by_its_card_side_port(bdf: str, link: str) -> None:
    here = aer.Map(gather(RecordedReader(replay.host("two-cards-behind-plx")), Options()))
    assert here.link(bdf).bdf == link


def test_a_link_that_two_cards_share_is_on_the_way_to_both() -> None:
    here = aer.Map(gather(RecordedReader(replay.host("two-cards-behind-plx")), Options()))
    assert len(here.link("0000:0a:00.0").gpus) == 2
    assert [gpu.bdf for gpu in here.link("0000:10:00.0").gpus] == ["0000:12:00.0"]
