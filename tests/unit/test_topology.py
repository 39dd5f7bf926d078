"""The drawing of the way from root port to card."""

from __future__ import annotations

import io

from rich.console import Console

from hostcheck.checks import gpu, links
from hostcheck.findings import Finding, Status, Subject
from hostcheck.report import topology
from tests.hosts.build_pci import Function, Link
from tests.pci_host import amd, facts, intel, judge, nvidia, put, recording

GEN4 = Link(16, 16, 16, 16)


def drawn(functions: list[Function], findings: list[Finding] | None = None) -> list[str]:
    found = facts(recording(functions))
    if findings is None:
        findings = judge((gpu.enumeration, gpu.rebar, links.link), found)
    return [line.text for line in topology.lines(found, findings)]


def test_a_healthy_card_hop_by_hop() -> None:
    assert drawn(intel(GEN4, Link(32, 16, 16, 16)), []) == [
        "0000:20:01.1 root port [1022:1483], up to 16 GT/s x16",
        "`- 0000:21:00.0 card, upstream port [8086:e2ff], 16 GT/s x16 of 32 GT/s x16, crosses the slot",
        "   `- 0000:22:01.0 card, downstream port [8086:e2f0], inner link, always 2.5 GT/s x1, says nothing",
        "      `- 0000:23:00.0 Arc Pro B70 [8086:e223], xe, inner link, always 2.5 GT/s x1, says nothing",
    ]


def test_a_fault_stands_on_the_hop_where_it_is() -> None:
    lines = drawn(intel(GEN4, Link(32, 16, 16, 2), bar=256 << 20))
    marks = {line.strip(" |")[2:]: at for at, line in enumerate(lines) if "!" in line}
    width = next(at for text, at in marks.items() if text.startswith("fail pcie.link.width: x2"))
    bar = next(at for text, at in marks.items() if text.startswith("fail rebar"))
    assert "0000:21:00.0" in lines[width - 1] or "0000:21:00.0" in lines[width - 2]
    assert max(at for at, line in enumerate(lines) if "0000:23:00.0" in line) < bar
    assert min(at for at, line in enumerate(lines) if "0000:22:01.0" in line) > width


def test_inner_links_of_other_vendors_are_not_said_to_be_x1() -> None:
    text = "\n".join(drawn(amd(GEN4, GEN4)))
    assert "inner link, says nothing about the slot" in text
    assert "always" not in text


def test_cards_below_one_port_share_it_and_cards_without_a_switch_cross_at_the_gpu() -> None:
    lines = drawn([*intel(), *intel(bus=0x40, node=2), *nvidia(GEN4)], [])
    assert [line for line in lines if not line.startswith((" ", "`", "|"))] == [
        "0000:00:05.0 root port [1022:1483], up to 16 GT/s x16",
        "0000:20:01.1 root port [1022:1483], up to 32 GT/s x16",
        "0000:40:01.1 root port [1022:1483], up to 32 GT/s x16",
    ]
    assert "`- 0000:05:00.0 NVIDIA GPU [10de:2204], nvidia, 16 GT/s x16, crosses the slot" in lines


def test_counters_and_unread_links_are_shown() -> None:
    made = recording(intel())
    put(made, "0000:21:00.0", "aer_dev_correctable", "RxErr 3\nTOTAL_ERR_COR 3\n")
    assert "AER correctable 3" in [line.text for line in topology.lines(facts(made), [])][1]
    put(made, "0000:23:00.0", "power/runtime_status", "suspended\n")
    assert "link not read: suspended" in [line.text for line in topology.lines(facts(made), [])][1]


def test_a_card_that_is_missing_stands_at_the_end_and_text_of_a_host_is_made_visible() -> None:
    gone = Finding("gpu.enumeration", Subject("gpu", "0000:63:00.0"), Status.fail, seen="not \x1b[2J there")
    last = drawn(intel(), [gone])[-1]
    assert last.startswith("0000:63:00.0  ! fail gpu.enumeration")
    assert "\x1b" not in last
    assert drawn([], []) == ["no GPU on the PCI bus"]


def test_an_unread_bus_says_why() -> None:
    made = recording([])
    made["files"]["/sys/bus/pci/devices"] = {"error": "EACCES"}
    (line,) = topology.lines(facts(made), [])
    assert "permission" in line.text


def test_plain_where_the_output_is_no_terminal() -> None:
    found = facts(recording(intel(uplink=Link(32, 16, 32, 2))))
    text = topology.render(found, judge((links.link,), found))
    out = io.StringIO()
    Console(file=out, width=200).print(text)
    assert "\x1b" not in out.getvalue()
    assert "! fail pcie.link.width: x2 (wanted x16)" in out.getvalue()
    coloured = io.StringIO()
    Console(file=coloured, width=200, force_terminal=True).print(text)
    assert "\x1b" in coloured.getvalue()
