"""Reports: folding and noise in the terminal, files on disk."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from hostcheck.assess import Report, report_from
from hostcheck.findings import HOST, Finding, Status, Subject
from hostcheck.report import store, terminal
from tests import replay


def report(*findings: Finding, host: str = "one", exit: int = 0) -> Report:
    return replace(replay.report(replay.host("four-card-gen4")), host=host, findings=findings, exit=exit)


def shown(given: Report, verbose: int = 0) -> str:
    text = io.StringIO()
    terminal.show(given, terminal.console(text), verbose)
    return text.getvalue()


def gpu(number: int) -> Subject:
    return Subject("gpu", f"0000:{number:02x}:00.0")


def test_subjects_that_say_the_same_share_a_line() -> None:
    out = shown(report(*(Finding("gpu.power", gpu(number), Status.warn, "auto", "on") for number in range(4))))
    assert sum("gpu.power" in line for line in out.splitlines()) == 1
    assert all(str(gpu(number)) in out for number in range(4))
    assert out.count("auto; wanted on") == 1


def test_next_step_stands_below_and_can_be_copied() -> None:
    step = "ansible-playbook playbooks/apply.yml --tags cpu_governor"
    out = shown(report(Finding("cpu.governor", HOST, Status.fail, "powersave", "performance", next_step=step)))
    assert f"-> {step}" in out


def test_unknowns_fold_by_reason() -> None:
    refused = [
        Finding(f"x.{number}", HOST, Status.unknown, "permission: EACCES: Permission denied", source=f"/sys/{number}")
        for number in range(11)
    ]
    out = shown(report(*refused, Finding("y", HOST, Status.unknown, "timeout: took 10 s")))
    assert "11 checks not judged: run as root (x.0, x.1, x.10, x.2 and 7 more)" in out
    assert "1 check not judged: timeout: took 10 s (y)" in out
    assert len(out.splitlines()) <= 6


def test_info_and_ok_are_counts_unless_asked() -> None:
    findings = (
        Finding("a.ok", HOST, Status.ok, "fine"),
        Finding("b.info", HOST, Status.info, "by design"),
        Finding("c.na", HOST, Status.not_applicable, "not here"),
    )
    out = shown(report(*findings))
    assert "1 info, 1 ok, 1 not applicable" in out
    assert "by design" not in out
    assert "by design" in shown(report(*findings), 1)
    assert "fine" in shown(report(*findings), 2)


def test_waived_is_shown_with_its_reason_and_end() -> None:
    waived = {"justification": "slot is being replaced", "until": "2030-01-31T23:59:59Z"}
    out = shown(report(Finding("pcie.link.width", gpu(3), Status.fail, "x8", "x16", waived=waived)))
    assert "waived until 2030-01-31T23:59:59Z: slot is being replaced" in " ".join(out.split())


def test_consequences_are_told_at_their_cause() -> None:
    folded = (Finding("aer.rate", HOST, Status.unknown, "blind"), Finding("aer.fatal", HOST, Status.unknown, "blind"))
    out = shown(report(Finding("aer.visibility", HOST, Status.warn, "pci=noaer", explains=folded)))
    assert "explains 2: aer.fatal unknown, aer.rate unknown" in out
    assert "2 unknown, explained above" in out


def test_text_of_a_host_cannot_draw() -> None:
    out = shown(report(Finding("x", HOST, Status.fail, "[bold]a\x1b[2J\x07b[/bold]\nnext")))
    assert "[bold]a\\x1b[2J\\x07b[/bold] next" in out


def test_console_is_plain_without_a_terminal_and_without_colour_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    given = report(Finding("x", HOST, Status.fail, "bad"))
    coloured = Terminal()
    terminal.show(given, terminal.console(coloured))
    assert "\x1b[" in coloured.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    grey = Terminal()
    terminal.show(given, terminal.console(grey))
    assert "\x1b[31m" not in grey.getvalue()
    assert "\x1b[" not in shown(given)


def test_worst_host_first_and_one_line_for_the_fleet() -> None:
    outcomes = (
        store.Outcome("good", "judged", 0, report=report(host="good")),
        store.Outcome("bad", "judged", 1, report=report(Finding("x", HOST, Status.fail), host="bad", exit=1)),
        store.Outcome("gone", "unreachable", 3, "no route"),
    )
    text = io.StringIO()
    assert terminal.show_run(outcomes, terminal.console(text)) == 1
    out = text.getvalue()
    assert out.index("bad") < out.index("gone") < out.index("good")
    assert "3 hosts: 1 failing, 1 unreachable, 1 without a fail" in out


def test_a_run_on_disk_reads_back(tmp_path: Path) -> None:
    folder = store.new_run(tmp_path / "reports", "20260101T000000Z")
    outcomes = (
        store.Outcome("a/b", "judged", 1, report=report(Finding("x", HOST, Status.fail, "s"), host="a/b", exit=1)),
        store.Outcome("gone", "unreachable", 3, "no route"),
    )
    assert store.save(folder, outcomes) == 1
    code, again = store.load(tmp_path / "reports/latest")
    assert code == 1
    assert {one.host: (one.state, one.exit) for one in again} == {"a/b": ("judged", 1), "gone": ("unreachable", 3)}
    (read,) = [one.report for one in again if one.report]
    assert read.findings == outcomes[0].report.findings  # type: ignore[union-attr]
    assert (folder / "hosts/a%2fb.json").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_latest_is_the_last_and_a_taken_name_gets_a_number(tmp_path: Path) -> None:
    first = store.new_run(tmp_path, "run")
    second = store.new_run(tmp_path, "run")
    assert first.name == "run"
    assert second.name == "run-2"
    store.save(first, ())
    store.save(second, ())
    assert (tmp_path / "latest").resolve() == second


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    store.write(path, "old")
    with pytest.raises(UnicodeEncodeError):
        store.write(path, "new \udcff")
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "other"}', '{"schema": "hostcheck/report/1"}'])
def test_what_is_no_summary_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(ValueError, match=r"summary\.json"):
        store.load(tmp_path)


@pytest.mark.parametrize("name", replay.host_names())
def test_every_report_reads_back_as_it_was(name: str) -> None:
    made = replay.report(replay.host(name), host=name)
    assert report_from(json.loads(made.to_json())).to_json() == made.to_json()


@pytest.mark.parametrize("name", ["four-card-gen4", "two-card-gen5"])
def test_a_healthy_host_is_quiet(name: str) -> None:
    given = replay.report(replay.host(name))
    out = shown(given)
    assert given.exit == 0
    assert given.counts["fail"] == given.counts["unknown"] == 0, out
    assert given.counts["warn"] <= 5, out
    assert len(out.splitlines()) <= 25
    assert "x1 " not in out
    assert "2.5 GT/s" not in out
