"""Two hosts compared: what differs, in which order, on one screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hostcheck.assess import Report
from hostcheck.cli import main
from hostcheck.diff import TOPICS, TRAITS, code, compare, hosts
from hostcheck.expectations import Expectation
from hostcheck.onhost.plain import to_plain
from hostcheck.report import store
from hostcheck.report.diff import SCREEN, lines, shares, verdict
from tests import replay

FOUR = "four-card-gen4"
GOVERNOR = "/sys/devices/system/cpu/cpufreq/policy{}/scaling_governor"


def of(name: str, change: dict[str, Any] | None = None, host: str = "") -> Report:
    return replay.report(replay.changed(replay.host(name), change or {}), host=host or name)


def wedged() -> dict[str, Any]:
    bdf = "0000:47:00.0"
    return {"log": f"[ 4000.000000] xe {bdf}: [drm] *ERROR* CRITICAL: Xe has declared device {bdf} as wedged."}


def texts(first: Report, second: Report, verbose: int = 0) -> list[str]:
    return [line.plain for line in lines(first, second, compare(first, second), verbose)]


@pytest.mark.parametrize("name", replay.host_names())
def test_a_host_does_not_differ_from_itself(name: str) -> None:
    report = of(name)
    assert compare(report, report) == []
    assert code([], report, report) == 0


@pytest.mark.parametrize("other", [name for name in replay.host_names() if name != FOUR])
def test_any_two_hosts_fit_on_one_screen_and_differ(other: str) -> None:
    first, second = of(FOUR), of(other)
    shown = texts(first, second)
    assert len(shown) <= SCREEN
    assert code(compare(first, second), first, second) == 1
    assert len(texts(first, second, 1)) >= len(shown)


def test_a_fault_comes_before_a_governor() -> None:
    slow = of(FOUR, {**wedged(), "files": {GOVERNOR.format(0): "schedutil\n"}}, "slow")
    found = compare(of(FOUR), slow)
    whats = [item.what for item in found]
    assert whats[0].startswith("gpu.")
    assert whats.index("governor") > whats.index("gpu.wedged fail")
    assert "first to look at: cards" in verdict(found)


def test_only_what_the_lab_found_neutral_is_said_to_explain_nothing() -> None:
    files = {GOVERNOR.format(number): "performance\n" for number in range(32)}
    found = compare(of(FOUR), of(FOUR, {"files": files}, "other"))
    assert [item.what for item in found] == ["governor"]
    assert all(item.weak for item in found)
    assert "none that explains a slower host" in verdict(found)


def test_a_link_below_its_best_is_seen_with_both_values() -> None:
    path = next(path for path in replay.host(FOUR)["files"] if path.endswith("21:00.0/current_link_width"))
    before, after = of(FOUR), of(FOUR, {"files": {path: "4\n", path.replace("current_link_width", "config"): None}})
    found = [item for item in compare(before, after) if item.topic == "links"]
    assert any("pcie.link.width" in item.what for item in found)
    link = next(item for item in found if item.what == "link at the slot")
    assert (link.first, link.second) == ("x16 16 GT/s", "3 x x16 16 GT/s, 1 x x4 16 GT/s")


def test_what_one_side_refuses_is_open_and_not_equal() -> None:
    refused = {"files": {"/sys/module/pcie_aspm/parameters/policy": {"error": "EACCES"}}}
    first, second = of(FOUR), of(FOUR, refused)
    found = compare(first, second)
    assert found
    assert all(item.unread for item in found)
    assert code(found, first, second) == 3
    assert "could be read on one side only" in verdict(found)


def test_text_of_a_host_is_shown_and_not_obeyed() -> None:
    odd = of(FOUR, {"files": {"/proc/sys/kernel/osrelease": "[bold]\x1b[2J{{x}}\n"}})
    assert any("[bold]\\x1b[2J{{x}}" in line for line in texts(of(FOUR), odd, 1))


def test_every_topic_and_trait_is_reachable() -> None:
    assert len({topic.name for topic in TOPICS}) == len(TOPICS)
    assert len({trait.name for trait in TRAITS}) == len(TRAITS)
    rich = of(FOUR)
    read = [trait.name for trait in TRAITS if trait.read(rich.facts).value]
    assert {"cards", "link at the slot", "GuC", "kernel", "governor", "board and BIOS", "BAR 2"} <= set(read)


@pytest.mark.parametrize(("counts", "room"), [([9, 9, 9], 12), ([1, 1], 20), ([], 5), ([30], 7)])
def test_shares_never_exceed_the_room_nor_starve_a_topic(counts: list[int], room: int) -> None:
    given = shares(counts, room)
    assert sum(given) <= max(room, len(counts))
    assert all(1 <= one <= count for one, count in zip(given, counts, strict=True))


# -- the command line -----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def recording(name: str) -> str:
    return str(replay.HOSTS / f"{name}.json")


def test_files_of_every_kind_name_the_same_host(tmp_path: Path) -> None:
    report = of(FOUR)
    folder = store.new_run(tmp_path / "reports", "20260101T000000Z")
    store.save(folder, [store.Outcome(FOUR, "judged", 0, report=report)])
    (tmp_path / f"{FOUR}.json").write_text(json.dumps(to_plain(report.facts)))
    (tmp_path / "root").mkdir()
    root = replay.lay_out(replay.host(FOUR), tmp_path / "root")
    names = (recording(FOUR), f"{FOUR}.json", str(folder), str(folder / f"hosts/{FOUR}.json"), FOUR, str(root))
    for name in names:
        found = hosts(name, Expectation())
        assert len(found) == 1
        assert compare(report, next(iter(found.values()))) == [], name


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", recording(FOUR), recording(FOUR)]) == 0
    assert "no difference" in capsys.readouterr().out
    assert main(["diff", recording("two-card-gen5"), recording(FOUR)]) == 1
    assert main(["diff", recording("two-card-gen5"), "--recording", recording(FOUR), "--format", "json"]) == 1
    out = capsys.readouterr().out
    found = json.loads(out[out.index("[\n") :])
    assert found[0]["second"]["host"] == FOUR
    assert {item["what"] for item in found[0]["differences"]} >= {"cards", "processor"}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["none", recording(FOUR)], "no such file, folder or host"),
        (["bad.json", recording(FOUR)], "is not JSON"),
        (["list.json", recording(FOUR)], "wanted a file with schema"),
        ([], "required"),
    ],
)
def test_bad_input_is_2(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.json").write_text("{")
    Path("list.json").write_text("[]")
    assert main(["diff", *argv]) == 2
    assert message in capsys.readouterr().err


def test_runs_with_several_hosts_are_compared_host_by_host(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def run(number: int, changed: dict[str, Any]) -> str:
        folder = store.new_run(tmp_path / "reports", f"2026010{number}T000000Z")
        outcomes = [store.Outcome("a", "judged", 0, report=of(FOUR, host="a"))]
        outcomes.append(store.Outcome("b", "judged", 0, report=of(FOUR, changed, "b")))
        store.save(folder, outcomes)
        return str(folder)

    assert main(["diff", run(1, {}), run(2, wedged())]) == 1
    out = capsys.readouterr().out
    assert out.count("no difference") == 1
    assert "gpu.wedged fail" in out
