"""The odd one out among hosts of one class."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from hostcheck import fleet
from hostcheck.diff import TRAITS
from hostcheck.expectations import waivers
from hostcheck.findings import Finding, Status
from hostcheck.onhost.gather import Facts
from hostcheck.report import store, terminal
from tests import replay

FOUR = "four-card-gen4"
KERNEL = "/proc/sys/kernel/osrelease"
POLICY = "/sys/module/pcie_aspm/parameters/policy"


def facts(change: dict[str, Any] | None = None, name: str = FOUR) -> Facts:
    return replay.report(replay.changed(replay.host(name), change or {})).facts


SAME = facts()


def told(hosts: list[tuple[str, Facts]]) -> list[tuple[str, str, str, str]]:
    return [(one.id, one.subject.name, one.status.value, one.seen) for one in fleet.judge(hosts)]


@pytest.mark.parametrize("name", replay.host_names())
def test_equal_hosts_and_a_single_one_say_nothing(name: str) -> None:
    one = facts(name=name)
    assert fleet.judge([("a", one)]) == []
    assert fleet.judge([("a", one), ("b", one), ("c", one)]) == []


def test_the_odd_one_of_three() -> None:
    odd = facts({"files": {KERNEL: "7.0.0-31-generic\n"}})
    found = fleet.judge([("a", SAME), ("b", odd), ("c", SAME)])
    assert [(one.id, one.subject.name, one.status) for one in found] == [("fleet.kernel", "b", Status.warn)]
    assert "7.0.0-31-generic" in found[0].seen
    assert "7.0.0-38-generic, as 2 of 3 hosts" in found[0].wanted
    assert found[0].next_step == "hostcheck diff a b"


def test_two_that_differ_have_no_odd_one() -> None:
    odd = facts({"files": {KERNEL: "7.0.0-31-generic\n"}})
    found = fleet.judge([("a", SAME), ("b", odd)])
    assert [one.subject.name for one in found] == ["a", "b"]
    assert all("one value for the class" in one.wanted for one in found)


@pytest.mark.parametrize(
    ("change", "id", "seen"),
    [
        (
            {"remove": ["/sys/bus/pci/devices/0000:47:00.0", "/sys/devices/pci0000:40/0000:40:03.1"]},
            "fleet.cards",
            "3 x",
        ),
        ({"files": {POLICY: "default [performance] powersave powersupersave\n"}}, "fleet.settings", "performance"),
        ({"files": {"/sys/devices/virtual/dmi/id/bios_version": "2.0b\n"}}, "fleet.bios", "2.0b"),
        ({"files": {"/proc/sys/kernel/osrelease": "7.1.0\n"}}, "fleet.kernel", "7.1.0"),
        (
            {"calls": {"md5 /lib/firmware/xe/bmg_guc_70.bin.zst": "md5-00112233445566778899aabbccddeeff"}},
            "fleet.firmware",
            "md5-001122334455",
        ),
    ],
)
def test_each_kind_is_told_under_its_own_check(change: dict[str, Any], id: str, seen: str) -> None:
    found = fleet.judge([("a", SAME), ("b", facts(change)), ("c", SAME)])
    own = [one for one in found if one.id == id]
    assert own, told([("a", SAME), ("b", facts(change)), ("c", SAME)])
    assert any(seen in one.seen for one in own)
    assert {one.subject.name for one in found} == {"b"}


def test_nothing_is_ever_more_than_a_warning() -> None:
    hosts = [(name, facts(name=name)) for name in replay.host_names()]
    changed = [(f"{name}-2", facts({"files": {KERNEL: "1.0\n"}}, name)) for name in replay.host_names()]
    found = fleet.judge(hosts + changed)
    assert {one.status for one in found} <= {Status.warn, Status.unknown}
    assert {one.id for one in found} <= set(fleet.TITLES)


def test_hosts_of_different_classes_are_not_compared() -> None:
    assert fleet.judge([("a", SAME), ("b", facts(name="two-card-gen5"))]) == []


def test_what_one_host_refuses_is_unknown_and_no_agreement() -> None:
    refused = facts({"files": {POLICY: {"error": "EACCES"}}})
    found = fleet.judge([("a", SAME), ("b", refused), ("c", SAME)])
    assert [(one.id, one.subject.name, one.status) for one in found] == [("fleet.settings", "b", Status.unknown)]
    assert "permission" in found[0].seen


def test_a_host_without_a_class_is_named() -> None:
    blind = facts({"commands": {"lscpu -J": None, "lscpu": None}})
    found = fleet.judge([("a", SAME), ("b", blind), ("c", SAME)])
    assert [(one.subject.name, one.status) for one in found] == [("b", Status.unknown)]
    assert "compared with no host" in found[0].seen


def test_every_trait_belongs_to_a_declared_check() -> None:
    assert {trait.fleet for trait in TRAITS if trait.fleet} == set(fleet.TITLES)


def outcomes(*odd: Facts) -> list[store.Outcome]:
    good = replay.report(replay.host(FOUR), host="a")
    reports = [good, *(replay.report(replay.host(FOUR), host=name) for name in ("b", "c"))]
    changed = replay.changed(replay.host(FOUR), {"files": {KERNEL: "7.0.0-31-generic\n"}})
    reports.append(replay.report(changed, host="odd"))
    return [store.Outcome(report.host, "judged", report.exit, report=report) for report in reports]


def test_a_run_shows_it_and_keeps_it_in_its_summary(tmp_path: Path) -> None:
    folder = store.new_run(tmp_path / "reports", "20260101T000000Z")
    store.save(folder, outcomes())
    kept = json.loads((folder / "summary.json").read_text())["fleet"]
    assert [(one["id"], one["subject"]["name"]) for one in kept["findings"]] == [("fleet.kernel", "odd")]
    assert list(kept["classes"].values()) == [["a", "b", "c", "odd"]]
    assert store.load(folder)[0] == 0
    text = io.StringIO()
    terminal.show_run(outcomes(), terminal.console(text))
    assert "fleet.kernel  odd" in text.getvalue()
    assert "between hosts of one class" in text.getvalue()


def test_many_differences_are_cut_to_a_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [
        Finding("fleet.kernel", outcomes()[0].report.findings[0].subject, Status.warn, seen=f"kernel: {number}")  # type: ignore[union-attr]
        for number in range(30)
    ]
    monkeypatch.setattr(fleet, "judge", lambda hosts: many)
    text = io.StringIO()
    terminal.show_fleet(outcomes(), terminal.console(text))
    assert len(text.getvalue().splitlines()) <= terminal.FLEET_LINES + 2
    assert "22 more differences" in text.getvalue()


LATER, LONG_AGO = "2099-01-01", "2020-01-01"


def run_of(rules: list[dict[str, Any]], only: dict[str, list[dict[str, Any]]] | None = None) -> list[store.Outcome]:
    """Three equal hosts and one with another kernel, each given the waivers (or those of its own) of the inventory."""
    found = []
    for name in ("a", "b", "c", "odd"):
        change = {"files": {KERNEL: "7.0.0-31-generic\n"}} if name == "odd" else {}
        own = [{"justification": "known", "until": LATER, **rule} for rule in [*rules, *(only or {}).get(name, [])]]
        report = replay.report(replay.changed(replay.host(FOUR), change), host=name, waivers=waivers(own))
        found.append(store.Outcome(name, "judged", report.exit, report=report))
    return found


def between(outcomes: list[store.Outcome]) -> list[Finding]:
    return fleet.of_run([one.report for one in outcomes if one.report is not None])


def of_waivers(outcomes: list[store.Outcome]) -> list[tuple[str, str]]:
    """What a run says of waivers: id and status, of its hosts and between them."""
    all_of = [finding for one in outcomes if one.report for finding in one.report.findings]
    return [(one.id, one.status.value) for one in [*all_of, *between(outcomes)] if one.id.startswith("waiver.")]


@pytest.mark.parametrize(
    ("rule", "is_waived"),
    [
        ({"check": "fleet.kernel"}, True),
        ({"check": "fleet.*", "subject": "odd"}, True),
        ({"check": "*"}, True),
        ({"check": "fleet.kernel", "hosts": ["o*"]}, True),
        ({"check": "fleet.kernel", "subject": "a"}, False),
        ({"check": "fleet.kernel", "hosts": ["a"]}, False),
        ({"check": "fleet.bios"}, False),
        ({"check": "fleet.kernel", "until": LONG_AGO}, False),
    ],
)
def test_a_waiver_excuses_a_difference(rule: dict[str, Any], is_waived: bool) -> None:
    (one,) = [finding for finding in between(run_of([rule])) if finding.id == "fleet.kernel"]
    assert (one.subject.name, one.status) == ("odd", Status.warn)
    assert (one.waived == {"justification": "known", "until": "2099-01-01T23:59:59+00:00"}) == is_waived


def test_a_waiver_of_the_fleet_is_told_of_once_for_all_its_hosts() -> None:
    assert of_waivers(run_of([{"check": "fleet.kernel"}])) == []
    assert of_waivers(run_of([{"check": "fleet.bios"}])) == [("waiver.unused", "warn")]
    assert of_waivers(run_of([{"check": "fleet.kernel", "until": LONG_AGO}])) == [("waiver.expired", "fail")]


def test_a_waiver_of_one_host_is_not_one_of_another() -> None:
    rule = {"check": "fleet.kernel", "justification": "known", "until": LATER}
    assert of_waivers(run_of([], {"odd": [rule]})) == []
    found = run_of([], {"a": [rule]})
    assert of_waivers(found) == [("waiver.unused", "warn")]
    assert all(one.waived is None for one in between(found))


def test_a_run_that_compares_nothing_calls_no_waiver_of_the_fleet_unused() -> None:
    outcomes = run_of([{"check": "fleet.kernel"}])
    assert between(outcomes[-1:]) == []
    assert [one.id for one in between(run_of([{"check": "fleet.kernel", "until": LONG_AGO}])[-1:])] == [
        "waiver.expired"
    ]


def test_summary_terminal_and_code_say_the_same_of_waivers(tmp_path: Path) -> None:
    for rule, code in (({"check": "fleet.kernel"}, 0), ({"check": "fleet.kernel", "until": LONG_AGO}, 1)):
        outcomes = run_of([rule])
        folder = store.new_run(tmp_path, "20260101T000000Z")
        assert store.save(folder, outcomes) == code
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["fleet"]["findings"] == [one.to_plain() for one in between(outcomes)]
        loaded_code, loaded = store.load(folder)
        text, again = io.StringIO(), io.StringIO()
        assert terminal.show_run(outcomes, terminal.console(text)) == loaded_code == summary["exit"] == code
        assert terminal.show_run(loaded, terminal.console(again)) == code
        assert text.getvalue() == again.getvalue()
        assert text.getvalue().count("fleet.kernel  odd") == 1
        assert ("waived until 2099-01-01" in text.getvalue()) == (code == 0)
        assert ("waiver.expired  fleet.kernel *" in text.getvalue()) == (code == 1)
