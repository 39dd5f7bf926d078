"""The pages in docs/ are what the checks and symptoms declare."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hostcheck import checks, docs, fleet
from hostcheck.cli import main
from hostcheck.decisions import SYMPTOMS, matching, words
from tests import replay

IDS = {id for declaration in checks.ALL for id in declaration.ids}


def test_the_pages_are_up_to_date() -> None:
    assert docs.stale() == [], "run: python -m hostcheck.docs"


def test_the_trial_that_is_shown_is_one_that_is_kept() -> None:
    root = Path(__file__).parents[2]
    kept = [line.rstrip() for line in (Path(__file__).parent / "receipts/trial-cuda-neighbour.txt").open()]
    page = (root / "docs/trial.md").read_text()
    block = page[page.index("    launch_us (mean") : page.index("\n`o` is a pair")].rstrip().splitlines()
    assert len(block) > 6
    assert [line for line in block if line[4:] not in (*kept, "...")] == []


def test_every_check_has_a_heading_and_says_why() -> None:
    page = docs.checks_page()
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert sorted(headings) == sorted({*IDS, *fleet.TITLES, *docs.WAIVERS})
    for id in headings:
        text = page.split(f"## {id}\n")[1].split("\n## ")[0]
        assert "Why: " in text or "which says why" in text or id in docs.WAIVERS, id


def test_every_check_declares_its_ids_and_why() -> None:
    for declaration in checks.ALL:
        assert declaration.title
        assert "Why: " in (declaration.run.__doc__ or ""), declaration.ids


def test_links_of_the_decision_table_lead_to_a_heading() -> None:
    anchors = {docs.anchor(id) for id in re.findall(r"^## (.+)$", docs.checks_page(), re.MULTILINE)}
    linked = re.findall(r"\(checks\.md#([^)]+)\)", docs.decisions_page())
    assert linked
    assert set(linked) <= anchors
    assert docs.decisions_page().count("\n| ") == len(SYMPTOMS) + 2


def test_stale_pages_are_told_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs, "FOLDER", tmp_path / "docs")
    monkeypatch.setattr(docs.stale, "__defaults__", (tmp_path / "docs",))
    assert docs.main(["--check"]) == 1
    assert "docs/checks.md is stale" in capsys.readouterr().err
    assert docs.main([]) == 0
    assert docs.main(["--check"]) == 0
    (tmp_path / "docs/decisions.md").write_text("old")
    assert docs.stale(tmp_path / "docs") == ["decisions.md"]
    assert docs.main(["--wrong"]) == 2


# -- symptoms -------------------------------------------------------------------------------------------


def test_every_symptom_is_tied_to_checks_that_exist() -> None:
    for row in SYMPTOMS:
        assert row.checks
        assert set(row.checks) <= IDS, row.seen
        assert all((row.seen, row.cause, row.then))
        assert "|" not in row.seen + row.cause + row.then


@pytest.mark.parametrize("row", SYMPTOMS, ids=lambda row: row.checks[0])
def test_a_symptom_is_found_by_its_own_words(row: object) -> None:
    assert matching(row.seen)[0] is row  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("tokens per second are half of the other machine", "cpu.clock"),
        ("allreduce is slow", "pcie.link.asymmetry"),
        ("lspci says 2.5GT/s, x1 downgraded", "pcie.link.speed"),
        ("worker killed by OOM while loading", "mem.available"),
        ("cards vanish after resume from D3cold", "gpu.runtime_status"),
        ("random crashes and bit flips", "mem.ecc"),
        ("bcs page fault in docker", "container.swap"),
        ("NMI watchdog hard lockup", "gpu.fault"),
    ],
)
def test_people_say_it_in_their_own_words(text: str, check: str) -> None:
    assert check in matching(text)[0].checks


def test_nothing_matches_nothing() -> None:
    assert matching("") == []
    assert matching("the of and") == []
    assert words("THE Cards") == {"card"}


def test_explain_fills_the_row_with_the_values_of_this_host(capsys: pytest.CaptureFixture[str]) -> None:
    host = str(replay.HOSTS / "small-bar.json")
    assert main(["explain", "--symptom", "the model does not fit", "--recording", host]) == 0
    out = capsys.readouterr().out
    assert "fail           rebar  0000:1b:00.0  BAR 2 is 256 MiB" in out
    assert "likely: " in out
    assert "then: " in out
    assert main(["explain", "--symptom", "qqq", "--recording", host]) == 1
    assert SYMPTOMS[-1].seen in capsys.readouterr().out
    assert main(["explain", "rebar", "--symptom", "x"]) == 2
