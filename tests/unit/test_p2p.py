"""IOMMU groups, and what the kernel's rules give for peers: direct, through the host bridge, or not at all."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.checks import p2p as checks
from hostcheck.expectations import expectation
from hostcheck.findings import Finding, Status, run
from hostcheck.onhost.gather import gather
from hostcheck.onhost.readings import iommu
from hostcheck.onhost.recording import RecordedReader, empty
from tests import replay
from tests.hosts import build_gpu
from tests.hosts.build_pci import config

PLX = "two-cards-behind-plx"
SWITCH = ("0000:0b:00.0", "0000:0b:10.0")
INNER = ("0000:0d:01.0", "0000:11:01.0")
REDIRECT = 0x1D  # SrcValid, ReqRedir, CmpltRedir, UpstreamFwd


def facts(change: dict[str, Any] | None = None, host: str = PLX) -> Any:
    return gather(RecordedReader(replay.changed(replay.host(host), change or {})))


def judge(change: dict[str, Any] | None = None, host: str = PLX) -> Finding:
    return found_in(facts(change, host))


def found_in(facts: Any) -> Finding:
    declaration = checks.p2p.declaration  # type: ignore[attr-defined]
    (found,) = run((declaration,), facts, expectation({}))
    return found


def acs(ports: tuple[str, ...], control: int | None) -> dict[str, Any]:
    """Files with this ACSCtl in the configuration space of ports of the PLX host; None: without the capability."""
    host = build_gpu.two_cards_behind_plx()
    files: dict[str, Any] = {}
    for bdf in ports:
        data = config(replace(host.functions[bdf], acs=None if control is None else (0x5F, control)))
        files[f"{host.path(bdf)}/config"] = {"base64": base64.b64encode(data).decode()}
    return {"files": files}


# -- reading -----------------------------------------------------------------------------------------------------------


def test_groups_and_their_types() -> None:
    found = facts().iommu
    assert found.groups.value is not None
    assert found.groups.value >= 4
    assert found.arguments.value == ("intel_iommu=on",)
    assert found.types.value == {"0000:0e:00.0": "DMA-FQ", "0000:12:00.0": "DMA-FQ"}


def test_an_iommu_that_is_off_has_no_groups() -> None:
    found = facts({"remove": ["/sys/kernel/iommu_groups"]}).iommu
    assert (found.groups.value, found.groups.source) == (0, iommu.GROUPS)
    assert facts({"remove": ["/sys/kernel"]}).iommu.groups.unread == "absent"


@pytest.mark.parametrize(
    ("content", "reason"), [({"error": "EACCES"}, "permission"), ("strange\n", "not_understood"), (None, None)]
)
def test_a_type_that_cannot_be_read(content: Any, reason: str | None) -> None:
    groups = {f"/sys/kernel/iommu_groups/{number}/type": content for number in (10, 11)}
    found = facts({"files": groups}).iommu.types
    assert found.unread == reason
    assert content is not None or found.value == {}


def test_groups_that_may_not_be_listed() -> None:
    assert facts({"files": {iommu.GROUPS: {"error": "EACCES"}}}).iommu.groups.unread == "permission"


@pytest.mark.parametrize("parse", [iommu.parse_type, iommu.parse_group])
@given(text=st.text(max_size=40))
def test_random_text_is_a_value_or_a_value_error(parse: Any, text: str) -> None:
    try:
        assert parse(text)
    except ValueError:
        pass


@given(st.text(max_size=80))
def test_any_command_line(text: str) -> None:
    assert all(word.partition("=")[0].replace("-", "_") in iommu.KEYS for word in iommu.parse_arguments(text))


# -- check (case 56, both states; case 57) -----------------------------------------------------------------------------


def test_below_one_switch_without_redirect_peers_are_direct() -> None:
    found = judge()
    assert (found.status, found.seen) == (
        Status.ok,
        "direct through the switch (below 0000:0a:00.0); IOMMU on (DMA-FQ)",
    )


def test_redirect_and_an_unlisted_host_bridge_end_it() -> None:
    found = judge(acs((*SWITCH, *INNER), REDIRECT))
    assert found.status is Status.info
    assert "unavailable (ACS redirect at 0000:0b:00.0" in found.seen
    assert "host bridge 8086:4c43 is not on the kernel's list" in found.seen


@pytest.mark.parametrize("port", [*SWITCH, *INNER])
def test_one_port_with_redirect_is_enough(port: str) -> None:
    assert f"ACS redirect at {port}," in judge(acs((port,), REDIRECT)).seen


@pytest.mark.parametrize(
    ("control", "status"), [(0x01, Status.ok), (0x04, Status.info), (0x08, Status.info), (0x20, Status.info)]
)
def test_only_bits_that_redirect_count(control: int, status: Status) -> None:
    assert judge(acs(SWITCH, control)).status is status


def test_a_listed_host_bridge_lets_redirected_peers_through() -> None:
    change = acs(SWITCH, REDIRECT)
    change["files"]["/sys/devices/pci0000:00/0000:00:00.0/device"] = "0x09a2\n"
    found = judge(change)
    assert (found.status, found.seen.partition(" (")[0]) == (Status.info, "through the host bridge")


@pytest.mark.parametrize("host", ["four-card-gen4", "two-card-gen5"])
def test_zen_lets_cards_on_root_ports_of_their_own_through(host: str) -> None:
    found = judge(host=host)
    assert found.status is Status.info
    assert found.seen.startswith("through the host bridge (no bridge above both)")


@pytest.mark.parametrize("content", [{"error": "EACCES"}, {"error": "EIO"}])
def test_acs_that_cannot_be_read_is_unknown(content: Any) -> None:
    host = build_gpu.two_cards_behind_plx()
    files = {f"{host.path(bdf)}/config": content for bdf in (*SWITCH, *INNER)}
    found = judge({"files": files, "commands": {"lspci -D -nn -vv": None}})
    assert (found.status, "ACS not read" in found.seen) == (Status.unknown, True)


def test_a_port_without_the_capability_redirects_nothing() -> None:
    assert judge(acs((*SWITCH, *INNER), None)).status is Status.ok


def test_a_guest_has_none_whatever_its_ports_say() -> None:
    found = judge({"files": {"/sys/hypervisor/type": "kvm\n"}})
    assert (found.status, "virtual machine" in found.seen) == (Status.info, True)


def test_one_card_or_none() -> None:
    assert judge(host="gpu-vm").status is Status.not_applicable
    assert judge(host="arm-server").status is Status.not_applicable


LINE = (
    "cannot be used for peer-to-peer DMA as the client and provider ({}) do not share an upstream bridge or whitelisted"
)
LINE += " host bridge"


def test_what_the_kernel_refused_is_not_available_whatever_its_rules_were_taken_for() -> None:
    host = replay.changed(replay.host("four-card-gen4"), {})
    replay.add_log(host, f"[  90.0] xe 0000:23:00.0: {LINE.format('0000:27:00.0')}\n")
    found = found_in(gather(RecordedReader(host)))
    assert found.status is Status.info
    assert "0000:23:00.0, 0000:27:00.0: unavailable (the kernel refused it" in found.seen
    assert "through the host bridge" in found.seen  # the other pairs


def test_a_refusal_is_told_where_nothing_but_the_log_was_kept() -> None:
    """As of a B50 beside a B580, of which only the line was kept."""
    boot = "[    0.000000] Linux version 7.0.0-27-generic (buildd@x) #27 SMP\n"
    text = f"{boot}[   90.0] xe 0000:03:00.0: {LINE.format('0000:07:00.0')}\n"
    host = {**empty(1.78e9), "commands": {"dmesg": {"rc": 0, "stdout": text, "stderr": ""}}}
    found = found_in(gather(RecordedReader(host)))
    assert (found.status, found.seen.partition(" (")[0]) == (Status.info, "unavailable")
    assert "dmesg" in found.source
