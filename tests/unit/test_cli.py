"""The command line: exit codes, bad input, formats, and help that teaches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hostcheck import cli
from hostcheck.cli import main
from tests import replay

HEALTHY = str(replay.HOSTS / "four-card-gen4.json")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(tmp_path: Path, name: str, change: dict[str, object]) -> str:
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(replay.changed(replay.host("four-card-gen4"), change)))
    return str(path)


def test_a_healthy_host_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--recording", HEALTHY]) == 0
    assert "four-card-gen4" in capsys.readouterr().out


def test_a_fail_is_1_and_json_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "[ 4000.0] xe 0000:47:00.0: [drm] *ERROR* CRITICAL: Xe has declared device 0000:47:00.0 as wedged."
    path = written(tmp_path, "faulty", {"log": line.replace("4000.0", "4000.000000")})
    assert main(["audit", "--recording", path, "--format", "json", "-o", "out.json"]) == 1
    out = capsys.readouterr().out
    report = json.loads(out)
    assert report["exit"] == 1
    assert report["host"] == "faulty"
    assert Path("out.json").read_text() == out
    assert Path("out.json").stat().st_mode & 0o777 == 0o600
    assert {"id", "subject", "status", "seen", "wanted", "source", "next_step", "explains", "waived"} == set(
        report["findings"][0]
    )


def test_a_required_check_that_is_unknown_is_3(tmp_path: Path) -> None:
    refused = {"rc": 1, "stdout": "", "stderr": "dmesg: read kernel buffer failed: Operation not permitted"}
    change = {"commands": {replay.JOURNAL: {"rc": 1, "stdout": "", "stderr": "no"}, "dmesg": refused}}
    assert main(["audit", "--recording", written(tmp_path, "refused", change)]) == 3


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["audit", "--recording", "none.json"], "none.json"),
        (["audit", "--root", "/no/such/root"], "is not a directory"),
        (["audit", "--recording", HEALTHY, "--root", "/x"], "not allowed with"),
        (["audit", "--expect", "none.yml"], "none.yml"),
        (["audit", "--format", "xml"], "invalid choice"),
        (["audit", "--no-such-option"], "--help"),
        (["report", "none"], "run an audit first"),
        (["explain", "no.such.check"], "there is no check"),
        (["record"], "-o"),
        (["record", "--recording", HEALTHY, "-o", "/no/such/folder/x.json"], "cannot write"),
        (["what"], "invalid choice"),
        ([], "required"),
    ],
)
def test_wrong_use_is_2_with_what_to_do(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.startswith("hostcheck: ")


@pytest.mark.parametrize(
    ("name", "text", "option", "message"),
    [
        ("wish.yml", "gpu: 4\n", "--expect", "gpu: unknown key"),
        ("wish.yml", "a: [", "--expect", "cannot read wish.yml"),
        ("waive.yml", "- {check: gpu.fault, justification: x, until: 2030-01-01}\n", "--waivers", "boot_id"),
        ("waive.yml", "check: x\n", "--waivers", "wanted a list"),
    ],
)
def test_bad_files_are_refused_before_anything_is_read(
    name: str, text: str, option: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("the host was read")

    monkeypatch.setattr(cli, "gather", never)
    Path(name).write_text(text)
    assert main(["audit", option, name]) == 2
    assert message in capsys.readouterr().err


def test_record_and_replay(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "--recording", HEALTHY, "-o", "again.json"]) == 0
    assert "look through it before you send it" in capsys.readouterr().out
    assert Path("again.json").stat().st_mode & 0o777 == 0o600
    assert main(["audit", "--recording", "again.json"]) == 0


def test_explain_tells_why_and_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "cpu.governor", "--recording", HEALTHY]) == 0
    out = capsys.readouterr().out
    assert "cpu.governor" in out
    assert "read from /sys/" in out
    assert main(["explain"]) == 0
    assert "gpu.enumeration" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["", *cli.VERBS])
def test_help_teaches(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([verb, "--help"] if verb else ["--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert ("examples:" in out and "exit codes:" in out) if not verb else verb in out


def test_verbs_that_read_a_host_share_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in set(cli.VERBS) & {"audit", "topology", "explain", "next-boot", "learn", "diff"}:
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        out = capsys.readouterr().out
        assert all(option in out for option in ("--root", "--recording", "--wake", "--xpu-smi", "--under-load")), verb


def test_a_closed_pipe_is_no_traceback() -> None:
    ran = subprocess.run(
        f"{sys.executable} -m hostcheck.cli audit --recording {HEALTHY} --format json | head -1",
        shell=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert "Traceback" not in ran.stderr


def test_plain_without_a_terminal_and_with_no_color(capsys: pytest.CaptureFixture[str]) -> None:
    main(["audit", "--recording", HEALTHY, "-vv"])
    assert "\x1b" not in capsys.readouterr().out


def test_importing_the_command_line_is_light() -> None:
    code = "import sys, hostcheck.cli; print('\\n'.join(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert not {"pydantic", "rich", "yaml", "ansible", "torch"} & set(ran.stdout.split())
