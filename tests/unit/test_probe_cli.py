"""hostcheck probe and hostcheck verify."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hostcheck import receipts
from hostcheck.cli import main
from hostcheck.onhost.probe import host, receipt, session
from tests import fake_worker as fake
from tests import replay


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own, a made-up worker that lists the card of 0000:23:00.0, and a short plan."""
    text = fake.source().replace(
        'if op == "start":',
        'if op == "devices":\n        say(reply="devices", devices=[CARD])\n    elif op == "start":',
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "worker_source", lambda: text)
    monkeypatch.setattr(host, "FULL", fake.SMALL)
    monkeypatch.setattr(host, "QUICK", fake.SMALL)


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(replay.lay_out(replay.host("four-card-gen4"), tmp_path / "root"))


def saved(made: dict[str, Any], name: str = "receipt.json") -> str:
    Path(name).write_text(json.dumps(made))
    return name


def test_one_card(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["probe", "--root", root, "--card", "0000:23:00.0", "--seed", "3", "-o", "one.json"]
    assert main([*asked, "--command", *fake.PYTHON]) == 0  # the options of the command are its own
    said = capsys.readouterr()
    assert "0000:23:00.0: launch_us_async 3.10 us, launch_plus_sync_us 26.00 us, ir_rms_norm_m2_us 41.00 us" in said.out
    assert "submission is as fast as on the lab's publishing host" in said.out
    assert said.err.startswith("0000:23:00.0: about ")
    assert "0000:23:00.0: sham: pairs 1 to 8" in said.err
    assert " pair 1 A" not in said.err
    assert Path("one.json").stat().st_mode & 0o777 == 0o600
    assert main(["verify", "one.json"]) == 0
    assert capsys.readouterr().out == "one.json: every figure follows from 16 blocks\n"
    assert main(["probe", "--show", "one.json"]) == 0
    shown = capsys.readouterr().out
    assert "█" in shown
    assert "launch_us_async" in shown


def test_cards_that_torch_does_not_list_are_invalid_and_3(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--root", root, "--ranks", "0", "-o", "all.json", "--command", *fake.PYTHON]) == 3
    said = capsys.readouterr().out
    assert "0000:27:00.0: invalid: card: torch lists 1 devices, and 0000:27:00.0 is none of them" in said
    assert sorted(path.name for path in Path().glob("all-*.json")) == [
        f"all-0000-{bus}-00.0.json" for bus in ("23", "27", "43", "47")
    ]
    assert main(["verify", "all-0000-27-00.0.json"]) == 0
    assert "the measurement is invalid, as it says" in capsys.readouterr().out
    assert main(["probe", "--show", "all-0000-23-00.0.json", "all-0000-27-00.0.json"]) == 3


def test_receipts_go_below_reports(root: str) -> None:
    assert main(["probe", "--root", root, "--card", "0000:23:00.0", "--command", *fake.PYTHON]) == 0
    (path,) = Path("reports/receipts").iterdir()
    assert path.name.startswith("localhost-0000-23-00.0-")


def test_unequal_cards_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    slower = {"LAB": (3100, 26000, 41000), "CARD": {**fake.CARD, "uuid": "868023e2-0000-0000-4300-000000000000"}}
    one = fake.profile()
    text = fake.source(**slower).replace("level * factor()", "level * 1.3")
    other = session.profile(session.Job(**{**vars(fake.job()), "source": text}), lambda: fake.CALM)
    assert main(["probe", "--show", saved(one, "a.json"), saved(other, "b.json")]) == 0
    assert "unequal cards: launch_us" in capsys.readouterr().out
    assert main(["probe", "--show", "a.json", "a.json"]) == 0
    assert "unequal" not in capsys.readouterr().out


def test_a_changed_sample_or_figure_is_1_even_with_a_new_hash(capsys: pytest.CaptureFixture[str]) -> None:
    made = fake.profile()
    assert main(["verify", saved(made)]) == 0
    for change in ("sample", "figure"):
        forged = json.loads(json.dumps(made))
        if change == "sample":
            forged["blocks"][0]["metrics"]["launch_us"]["samples"][0] += 1
        else:
            forged["figures"]["lab"]["launch_us_async"] = 1.0
        forged["sha256"] = receipt.digest(forged)
        assert main(["verify", saved(forged)]) == 1
        out = capsys.readouterr().out
        assert ("sum written" if change == "sample" else "figures.lab.launch_us_async") in out
        assert "sha256" not in out


@pytest.mark.parametrize("text", ["", "{}", "[1]", "NaN", '{"schema": "hostcheck/receipt/1"}', "\x00"])
@pytest.mark.parametrize("verb", [["verify"], ["probe", "--show"]])
def test_what_is_no_receipt_is_2(text: str, verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.json").write_text(text)
    assert main([*verb, "x.json"]) == 2
    assert capsys.readouterr().err.startswith("hostcheck: x.json is no receipt: ")
    Path("x.json").write_bytes(b"\xff\xfe")
    assert main([*verb, "x.json"]) == 2
    assert main([*verb, "none.json"]) == 2


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["verify"], "required"),
        (["probe", "--device", "tpu"], "invalid choice"),
        (["probe", "--timeout", "0", "--command", "true"], "wanted seconds"),
        (["probe", "--ranks", "100", "--command", "true"], "wanted 0 to 64"),
        (["probe", "--root", "/no/such/root", "--command", "true"], "is not a directory"),
        (["probe", "--card", "0000:99:00.0", "--root", "root", "--command", "true"], "no GPU 0000:99:00.0"),
        (["probe", "--draft-tokens", "-1", "--show", "x.json"], "wanted 0 or more"),
    ],
)
def test_wrong_use_is_2(root: str, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert message in capsys.readouterr().err


def test_without_torch_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["probe"]) == 2
    assert "--command" in capsys.readouterr().err


def test_the_receipt_is_readable_by_the_library(root: str) -> None:
    assert main(["probe", "--root", root, "--card", "0000:23:00.0", "-o", "r.json", "--command", *fake.PYTHON]) == 0
    made = receipts.load(Path("r.json"))
    assert made["command"] == [sys.executable, "-S", "-I"]
    assert receipts.verify(made) == []
