"""Links: both ends decide, at the slot, by numbers."""

from __future__ import annotations

import base64
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.checks import links
from hostcheck.findings import Finding
from tests.hosts.build_pci import DOWNSTREAM, EXPRESS, ROOT_PORT, UPSTREAM, Function, Link, lspci
from tests.pci_host import (
    LINK_FILES,
    WHOLE,
    amd,
    facts,
    intel,
    judge,
    listed_only,
    not_root,
    nvidia,
    put,
    real,
    recording,
    said,
)

CHECKS = (links.link,)
PORT: dict[str, Any] = {"class_code": "060400", "driver": "pcieport"}
SPEEDS = (2.5, 5.0, 8.0, 16.0, 32.0)
WIDTHS = (1, 2, 4, 8, 16)


def judged(
    made: dict[str, Any], expect: dict[str, Any] | None = None, under_load: bool = False, **log: Any
) -> list[Finding]:
    return judge(CHECKS, facts(made, {"under_load": under_load}, **log), expect)


def verdicts(made: dict[str, Any], **more: Any) -> dict[tuple[str, str], str]:
    """Status of width and speed by subject, asymmetry left out."""
    return {key: value for key, value in said(judged(made, **more)).items() if key[0] != links.UNEQUAL}


def status(made: dict[str, Any], bdf: str, **more: Any) -> tuple[str, str]:
    found = verdicts(made, **more)
    return found[links.WIDTH, bdf], found[links.SPEED, bdf]


def seen(findings: list[Finding], id: str) -> str:
    return next(one.seen for one in findings if one.id == id)


UP = "0000:21:00.0"


def test_full_link_is_ok_and_no_inner_port_is_judged() -> None:
    assert verdicts(recording(intel())) == {(links.WIDTH, UP): "ok", (links.SPEED, UP): "ok"}


@given(
    root=st.tuples(st.sampled_from(SPEEDS), st.sampled_from(WIDTHS)),
    card=st.tuples(st.sampled_from(SPEEDS), st.sampled_from(WIDTHS)),
    now=st.tuples(st.sampled_from(SPEEDS), st.sampled_from(WIDTHS)),
)
def test_an_intel_card_is_judged_by_the_smaller_of_both_capabilities(
    root: tuple[float, int], card: tuple[float, int], now: tuple[float, int]
) -> None:
    best = (min(root[0], card[0]), min(root[1], card[1]))
    now = (min(now[0], best[0]), min(now[1], best[1]))
    made = recording(intel(Link(*root, *now), Link(*card, *now)))
    wanted = tuple("fail" if now[at] < best[at] else "info" if best[at] < card[at] else "ok" for at in (1, 0))
    assert status(made, UP) == wanted


def test_host_limited_links_are_info_although_lspci_says_downgraded() -> None:
    gen3 = intel(Link(8, 16, 8, 16), Link(32, 16, 8, 16))
    assert "(downgraded)" in lspci(gen3)
    assert status(recording(gen3), UP) == ("ok", "info")
    assert seen(judged(recording(gen3)), links.SPEED) == "at the host's maximum (Gen3 x16)"
    split = recording(intel(Link(32, 8, 32, 8), Link(32, 16, 32, 8)))
    assert status(split, UP) == ("info", "ok")
    assert "Gen5 x8 by bifurcation" in seen(judged(split), links.WIDTH)


def test_host_limited_speed_does_not_call_a_lost_width_the_hosts_maximum() -> None:
    findings = judged(recording(intel(Link(8, 16, 8, 4), Link(32, 16, 8, 4))))
    assert seen(findings, links.SPEED) == "at the host's maximum (Gen3)"
    assert seen(findings, links.WIDTH) == "x4"


def test_a_root_port_that_trained_low_fails_although_lspci_writes_no_word() -> None:
    made = recording(intel(Link(16, 16, 2.5, 1), Link(32, 16, 2.5, 1)))
    found = {one.id: one for one in judged(made)}
    width, speed = found[links.WIDTH], found[links.SPEED]
    assert (width.status.value, width.seen, width.wanted) == ("fail", "x1", "x16")
    assert (speed.status.value, speed.wanted) == ("fail", "16 GT/s (Gen4)")
    assert UP in width.next_step


def test_speed_that_the_card_lowered_itself_is_a_warning() -> None:
    made = recording(intel(Link(32, 16, 16, 16), Link(32, 16, 16, 16)))
    put(made, "0000:23:00.0", "auto_link_downgrade_status", "1\n")
    assert status(made, UP) == ("ok", "warn")


def test_other_vendors_lower_the_speed_while_idle() -> None:
    made = recording(nvidia(Link(16, 16, 2.5, 16)))
    assert status(made, "0000:05:00.0") == ("ok", "unknown")
    assert "idle reading, repeat under load" in seen(judged(made), links.SPEED)
    assert status(made, "0000:05:00.0", under_load=True) == ("ok", "fail")


def test_the_endpoint_of_an_amd_card_flatters() -> None:
    made = recording(amd(Link(16, 16, 16, 2), Link(16, 16, 16, 2)))
    assert verdicts(made) == {(links.WIDTH, "0000:2d:00.0"): "fail", (links.SPEED, "0000:2d:00.0"): "ok"}


def test_the_same_text_on_a_one_lane_host_and_on_an_x16_host() -> None:
    up = Link(32, 16, 2.5, 1)
    assert status(recording(amd(up, Link(5, 1, 2.5, 1))), "0000:2d:00.0") == ("info", "unknown")
    assert status(recording(amd(up, Link(16, 16, 2.5, 1))), "0000:2d:00.0") == ("fail", "unknown")


def test_width_of_other_vendors_counts_while_idle() -> None:
    assert status(recording(nvidia(Link(16, 16, 16, 4), Link(16, 16, 16, 4))), "0000:05:00.0") == ("fail", "ok")


def pair(narrow: Link, root: Link, wide: Link | None = None) -> dict[str, Any]:
    best = wide or Link(16, 16, 16, 16)
    return recording([*nvidia(narrow, root), *nvidia(best, bus=0x0A)])


def test_unequal_cards_raise_the_narrower_link() -> None:
    findings = judged(pair(Link(16, 16, 16, 4), Link(16, 4, 16, 4)))
    assert said(findings) == {
        (links.WIDTH, "0000:05:00.0"): "warn",
        (links.SPEED, "0000:05:00.0"): "ok",
        (links.WIDTH, "0000:0a:00.0"): "ok",
        (links.SPEED, "0000:0a:00.0"): "ok",
    }
    narrow = next(one for one in findings if one.status.value == "warn")
    assert [(one.id, one.subject.name) for one in narrow.explains] == [(links.UNEQUAL, "0000:05:00.0")]
    assert (narrow.seen, narrow.wanted) == ("x4, all that this slot gives", "x16, as the other card of the same kind")


def test_a_slower_slot_is_a_warning_too_and_equal_or_different_cards_are_not() -> None:
    slower = pair(Link(16, 16, 8, 16), Link(8, 16, 8, 16))
    assert status(slower, "0000:05:00.0") == ("ok", "warn")
    equal = pair(Link(16, 16, 16, 8), Link(16, 8, 16, 8), Link(16, 16, 16, 8))
    assert status(equal, "0000:05:00.0") == ("info", "ok")
    other = recording(
        [*nvidia(Link(16, 16, 16, 4), Link(16, 4, 16, 4)), *nvidia(Link(16, 16, 16, 16), bus=0x0A, device="2684")]
    )
    assert status(other, "0000:05:00.0") == ("info", "ok")


@pytest.mark.parametrize("named", ["0000:05:00.0", "0000:00:05.0"])
def test_a_declared_slot_is_honoured(named: str) -> None:
    made = pair(Link(16, 16, 16, 4), Link(16, 16, 16, 4))
    assert status(made, "0000:05:00.0") == ("fail", "ok")
    declared = {"slot_link": {named: {"speed": 16.0, "width": 4}}}
    assert status(made, "0000:05:00.0", expect=declared) == ("ok", "ok")
    more = {"slot_link": {named: {"speed": 16.0, "width": 8}}}
    assert status(pair(Link(16, 16, 16, 4), Link(16, 4, 16, 4)), "0000:05:00.0", expect=more) == ("fail", "ok")


def plx(top: Link, card: Link) -> list[Function]:
    found = [
        Function("0000:00:01.0", "8086", "4c01", port_type=ROOT_PORT, link=top, buses=(1, 0x40), **PORT),
        Function("0000:01:00.0", "1000", "c010", port_type=UPSTREAM, parent="0000:00:01.0", link=top,
                 buses=(2, 0x40), **PORT),
    ]  # fmt: skip
    for number, bus in ((8, 0x20), (16, 0x30)):
        down = f"0000:02:{number:02x}.0"
        found.append(
            Function(down, "1000", "c010", port_type=DOWNSTREAM, parent="0000:01:00.0", link=card,
                     buses=(bus + 1, bus + 4), **PORT)
        )  # fmt: skip
        below = intel(card, card, bus=bus, node=bus >> 4)[1:]
        found += [replace(one, parent=down) if one.device == "e2ff" else one for one in below]
    return found


def test_the_uplink_of_a_foreign_switch_is_judged_once() -> None:
    good, slow, narrow = Link(16, 16, 16, 16), Link(16, 16, 2.5, 16), Link(16, 16, 16, 2)
    assert set(verdicts(recording(plx(good, good))).values()) == {"ok"}
    found = verdicts(recording(plx(slow, good)))
    assert {key for key, value in found.items() if value != "ok"} == {(links.SPEED, "0000:01:00.0")}
    found = verdicts(recording(plx(narrow, good)))
    assert {key: value for key, value in found.items() if value != "ok"} == {(links.WIDTH, "0000:01:00.0"): "fail"}
    assert len(found) == 6


def without_link(made: dict[str, Any], *bdfs: str) -> dict[str, Any]:
    made = not_root(made)
    for bdf in bdfs:
        for name in LINK_FILES:
            put(made, bdf, name, None)
    return made


def test_nothing_but_the_endpoint_read_is_no_verdict() -> None:
    made = without_link(recording(intel()), UP, "0000:20:01.1")
    assert status(made, UP) == ("unknown", "unknown")
    text = lspci(intel()[4:5])
    assert verdicts(listed_only([], text)) == {
        (links.WIDTH, "0000:23:00.0"): "unknown",
        (links.SPEED, "0000:23:00.0"): "unknown",
    }


def test_an_unread_port_above_leaves_a_low_link_open_and_a_full_one_not() -> None:
    low = without_link(recording(intel(Link(32, 16, 32, 8), Link(32, 16, 32, 8))), "0000:20:01.1")
    assert status(low, UP) == ("unknown", "ok")
    assert "0000:20:01.1" in seen(judged(low), links.WIDTH)


def test_an_old_lspci_that_does_not_know_gen5_is_no_fault() -> None:
    text = lspci(intel()).replace("Speed 32GT/s", "Speed unknown")
    assert status(listed_only([], text), UP) == ("ok", "unknown")


def test_a_link_that_is_down_fails_once() -> None:
    made = recording(intel(uplink=Link(32, 16, 2.5, 0)))
    findings = judged(made)
    assert (links.WIDTH, UP, "fail") in [(one.id, one.subject.name, one.status.value) for one in findings]
    width = next(one for one in findings if one.id == links.WIDTH)
    assert [one.id for one in width.explains] == [links.SPEED]


def test_after_a_fault_a_low_link_is_no_evidence_about_the_slot() -> None:
    made = recording(intel(Link(16, 16, 2.5, 1), Link(32, 16, 2.5, 1)))
    assert status(made, UP, faulted=("0000:23:00.0",)) == ("unknown", "unknown")
    assert "no evidence about the slot" in seen(judged(made, faulted=("0000:23:00.0",)), links.WIDTH)
    assert status(made, UP, faulted=("0000:63:00.0",)) == ("fail", "fail")
    assert status(recording(intel()), UP, faulted=("0000:23:00.0",)) == ("ok", "ok")


def test_a_sleeping_card_is_not_judged() -> None:
    made = recording(intel(Link(16, 16, 2.5, 1), Link(32, 16, 2.5, 1)))
    put(made, "0000:23:00.0", "power/runtime_status", "suspended\n")
    assert status(made, UP) == ("unknown", "unknown")
    assert "suspended" in seen(judged(made), links.WIDTH)


def test_a_card_whose_own_switch_is_not_in_sight_is_not_judged_by_its_function() -> None:
    root = Function(
        "0000:00:02.0", "1022", "1483", port_type=ROOT_PORT, link=Link(16, 16, 2.5, 1), buses=(1, 1), **PORT
    )
    card = replace(intel()[4], bdf="0000:01:00.0", parent=root.bdf)
    assert verdicts(recording([root, card])) == {
        (links.WIDTH, "0000:01:00.0"): "unknown",
        (links.SPEED, "0000:01:00.0"): "unknown",
    }


def virtual(made: dict[str, Any]) -> dict[str, Any]:
    made["files"]["/proc/cpuinfo"] = "flags\t\t: fpu hypervisor\n"
    return made


def test_in_a_virtual_machine_the_real_port_is_not_visible() -> None:
    root = Function(
        "0000:00:02.0", "1b36", "000c", port_type=ROOT_PORT, link=Link(16, 32, 2.5, 1), buses=(1, 1), **PORT
    )
    passed = replace(intel()[4], bdf="0000:01:00.0", parent="0000:00:02.0")
    gpu = (links.WIDTH, "0000:01:00.0")
    assert verdicts(virtual(recording([root, passed])))[gpu] == "not_applicable"
    assert verdicts(recording([root, passed]))[gpu] == "not_applicable"  # the maker of the port tells
    alone = replace(passed, bdf="0000:00:05.0", parent="")
    assert verdicts(virtual(recording([alone])))[links.WIDTH, "0000:00:05.0"] == "not_applicable"
    assert verdicts(recording([alone]))[links.WIDTH, "0000:00:05.0"] == "unknown"
    assert verdicts(virtual(recording(nvidia(Link(16, 16, 2.5, 1)))))[links.WIDTH, "0000:05:00.0"] == "not_applicable"


def test_a_card_whose_own_switch_is_in_sight_is_judged_in_a_virtual_machine_too() -> None:
    made = virtual(recording(intel(Link(16, 16, 2.5, 1), Link(32, 16, 2.5, 1))))
    assert status(made, UP) == ("fail", "fail")


def test_cards_that_are_not_in_use_are_not_judged() -> None:
    made = recording(intel(Link(16, 16, 2.5, 1), driver="vfio-pci"))
    assert set(verdicts(made).values()) == {"not_applicable"}
    vf = recording(intel(Link(16, 16, 2.5, 1)))
    vf["links"][f"{real(vf, '0000:23:00.0')}/physfn"] = "../0000:22:00.0"
    assert set(verdicts(vf).values()) == {"not_applicable"}


def test_an_unread_bus_makes_every_link_check_unknown() -> None:
    made = recording([])
    made["files"]["/sys/bus/pci/devices"] = {"error": "EACCES"}
    assert set(said(judged(made)).values()) == {"unknown"}


@given(st.sampled_from(["0000", "0003", "10000"]), st.booleans())
def test_no_word_about_x1_for_a_healthy_card(domain: str, root: bool) -> None:
    made = recording(intel(domain=domain))
    for one in judged(made if root else not_root(made)):
        assert "x1 " not in f"{one.seen} {one.wanted} ".replace("x16", "")


def with_status(made: dict[str, Any], bdf: str, status: int) -> dict[str, Any]:
    """The same host with another LnkSta of one function."""
    space = bytearray(base64.b64decode(made["files"][f"{real(made, bdf)}/config"]["base64"]))
    struct.pack_into("<H", space, EXPRESS + 0x12, status)
    put(made, bdf, "config", {"base64": base64.b64encode(bytes(space)).decode()})
    return made


@pytest.mark.parametrize(
    ("status_", "words"),
    [(0x2905, "is training (Train+)"), (0x0105, "is not active (DLActive-)"), (0x2105, "")],
)
def test_a_link_that_trains_or_is_not_active_is_a_warning_though_it_is_fast_and_wide(status_: int, words: str) -> None:
    made = with_status(recording(intel()), "0000:20:01.1", status_)
    assert status(made, UP) == ("ok", "warn" if words else "ok")
    assert words in seen(judged(made), links.SPEED)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("Train- SlotClk+ DLActive+", "Train+ SlotClk+ DLActive+", "is training"),
        ("DLActive+", "DLActive-", "not active"),
    ],
)
def test_lspci_tells_of_the_same(before: str, after: str, words: str) -> None:
    functions = intel()
    assert words not in seen(judged(listed_only(functions)), links.SPEED)
    made = listed_only(functions)
    made["commands"][WHOLE]["stdout"] = made["commands"][WHOLE]["stdout"].replace(before, after, 1)
    assert words in seen(judged(made), links.SPEED)


def test_a_link_that_is_low_keeps_its_own_finding() -> None:
    made = with_status(recording(intel(Link(32, 16, 2.5, 16), Link(32, 16, 2.5, 16))), "0000:20:01.1", 0x2901)
    assert status(made, UP) == ("ok", "fail")
