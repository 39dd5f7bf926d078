"""The real ansible-playbook, on roots laid out from recorded hosts and on this machine."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hostcheck.cli import main
from tests import plays, replay

ROOT = Path(__file__).parents[2]


def play(tmp_path: Path, *arguments: str, playbook: str = "audit.yml") -> subprocess.CompletedProcess[str]:
    return plays.run(tmp_path, [str(plays.TOOLS / "ansible-playbook"), str(ROOT / "playbooks" / playbook), *arguments])


def inventory(tmp_path: Path, hosts: dict[str, dict[str, Any]]) -> str:
    return plays.inventory(tmp_path, {name: {**plays.HERE, **own} for name, own in hosts.items()})


def summary(tmp_path: Path) -> Any:
    return json.loads((tmp_path / "reports/latest/summary.json").read_text())


def hostcheck(*arguments: str, cwd: Path) -> tuple[int, str]:
    """Exit code and standard output of the command line."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.chdir(cwd):
        code = main(arguments)
    return code, out.getvalue()


def tools(report: str) -> str:
    """A report in the same words for a tool that a host lacks and one that a recording of it lacks."""
    return re.sub(r'"(\S+) is not installed"|"(\S+) [^"]*is not in the recording"', r'"no \1\2"', report)


def healthy(tmp_path: Path, name: str = "four-card-gen4") -> Path:
    return replay.lay_out(replay.host(name), tmp_path / f"root-{name}")


def faulty(tmp_path: Path) -> Path:
    """The four-card host with a wedged card."""
    bdf = "0000:47:00.0"
    line = f"[ 4000.000000] xe {bdf}: [drm] *ERROR* CRITICAL: Xe has declared device {bdf} as wedged."
    return replay.lay_out(replay.changed(replay.host("four-card-gen4"), {"log": line}), tmp_path / "root-faulty")


def test_playbook_and_command_line_give_the_same_report_for_every_recorded_host(tmp_path: Path) -> None:
    names = replay.host_names()
    roots = {name: {"hostcheck_root": str(healthy(tmp_path, name))} for name in names}
    played = play(tmp_path, "-i", inventory(tmp_path, roots))
    found = summary(tmp_path)
    assert set(found["hosts"]) == set(names), played.stdout + played.stderr
    for name in names:
        assert found["hosts"][name]["state"] == "judged", found["hosts"][name]
        from_play = (tmp_path / "reports/latest" / found["hosts"][name]["file"]).read_text()
        root, recording = roots[name]["hostcheck_root"], str(replay.HOSTS / f"{name}.json")
        code = found["hosts"][name]["exit"]
        at_root = hostcheck("audit", "--root", root, "--name", name, "--format", "json", cwd=ROOT / "tests")
        assert at_root == (code, from_play)
        replayed = hostcheck("audit", "--recording", recording, "--format", "json", cwd=ROOT / "tests")
        assert (replayed[0], tools(replayed[1])) == (code, tools(from_play))
    code, _ = hostcheck("report", "reports/latest", cwd=tmp_path)
    assert code == found["exit"]


def test_this_machine(tmp_path: Path) -> None:
    played = play(tmp_path)
    found = summary(tmp_path)
    assert found["hosts"]["localhost"]["state"] == "judged", played.stdout + played.stderr
    assert (played.returncode == 2) == (found["exit"] == 1)
    assert "localhost" in played.stdout
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "reports/latest").rglob("*") if path.is_file()}
    assert modes == {0o600}


def test_check_mode_gives_the_same_findings(tmp_path: Path) -> None:
    hosts = inventory(tmp_path, {"one": {"hostcheck_root": str(healthy(tmp_path))}})
    play(tmp_path, "-i", hosts)
    first = json.loads((tmp_path / "reports/latest/hosts/one.json").read_text())
    checked = play(tmp_path, "-i", hosts, "--check", "--diff")
    second = json.loads((tmp_path / "reports/latest/hosts/one.json").read_text())
    assert first["findings"] == second["findings"]
    assert "skipped=0" in checked.stdout


def test_failing_unreachable_and_bad_hosts_beside_a_good_one(tmp_path: Path) -> None:
    hosts = inventory(
        tmp_path,
        {
            "good": {"hostcheck_root": str(healthy(tmp_path))},
            "faulty": {"hostcheck_root": str(faulty(tmp_path))},
            "mistaken": {"hostcheck_root": str(tmp_path), "hostcheck_expect": {"gpu": 4}},
            "nowhere": {"hostcheck_root": str(tmp_path / "none")},
            "gone": {
                "ansible_connection": "ssh",
                "ansible_host": "127.0.0.1",
                "ansible_port": 9,
                "ansible_ssh_common_args": "-o BatchMode=yes -o ConnectTimeout=2",
            },
        },
    )
    played = play(tmp_path, "-i", hosts)
    found = summary(tmp_path)
    states = {name: (entry["state"], entry["exit"]) for name, entry in found["hosts"].items()}
    assert states == {
        "good": ("judged", 0),
        "faulty": ("judged", 1),
        "mistaken": ("failed", 2),
        "nowhere": ("failed", 2),
        "gone": ("unreachable", 3),
    }, played.stdout + played.stderr
    assert found["exit"] == 2
    assert "gpu: unknown key" in found["hosts"]["mistaken"]["message"]
    assert "is not a directory" in found["hosts"]["nowhere"]["message"]
    assert played.returncode in (2, 4, 6)
    assert "5 hosts:" in played.stdout
    limited = play(tmp_path, "-i", hosts, "--limit", "good")
    assert set(summary(tmp_path)["hosts"]) == {"good"}
    assert limited.returncode == 0
    assert summary(tmp_path)["exit"] == 0


def test_localhost_itself_unreadable_is_said_and_not_zero(tmp_path: Path) -> None:
    played = play(tmp_path, "-e", f"hostcheck_root={tmp_path}/none")
    assert played.returncode == 2
    assert summary(tmp_path)["hosts"]["localhost"]["state"] == "failed"
    assert summary(tmp_path)["exit"] == 2


def test_text_from_a_host_is_never_a_template(tmp_path: Path) -> None:
    recording = replay.host("four-card-gen4")
    recording["files"]["/proc/sys/kernel/osrelease"] = "7.0-{{lookup('pipe','touch${IFS}pwned')}}[bold]\x1b[2J\n"
    root = replay.lay_out(recording, tmp_path / "root")
    played = play(tmp_path, "-i", inventory(tmp_path, {"one": {"hostcheck_root": str(root)}}))
    assert not (tmp_path / "pwned").exists()
    assert "{{lookup" in played.stdout
    assert "\x1b[2J" not in played.stdout


def test_fifty_local_hosts(tmp_path: Path) -> None:
    root = str(healthy(tmp_path))
    hosts = inventory(tmp_path, {f"host-{number:02}": {"hostcheck_root": root} for number in range(50)})
    played = play(tmp_path, "-i", hosts, "--forks", "10")
    found = summary(tmp_path)
    assert len(found["hosts"]) == 50, played.stdout[-2000:] + played.stderr
    assert {entry["exit"] for entry in found["hosts"].values()} == {0}
    assert "50 hosts: 50 without a fail" in played.stdout


def test_an_interpreter_without_the_toolkit_is_enough(tmp_path: Path) -> None:
    system = next((path for path in ("/usr/bin/python3",) if Path(path).exists()), None)
    if system is None:
        pytest.skip("no /usr/bin/python3 on this machine")
    hosts = inventory(
        tmp_path, {"one": {"ansible_python_interpreter": system, "hostcheck_root": str(healthy(tmp_path))}}
    )
    played = play(tmp_path, "-i", hosts)
    assert summary(tmp_path)["hosts"]["one"]["state"] == "judged", played.stdout + played.stderr


def test_record_playbook_gives_a_recording_that_replays(tmp_path: Path) -> None:
    hosts = inventory(tmp_path, {"one": {"hostcheck_root": str(healthy(tmp_path))}})
    played = play(tmp_path, "-i", hosts, "-e", f"hostcheck_recordings={tmp_path}/recordings", playbook="record.yml")
    assert played.returncode == 0, played.stdout + played.stderr
    path = tmp_path / "recordings/one.json"
    assert path.stat().st_mode & 0o777 == 0o600
    _, replayed = hostcheck("audit", "--recording", str(path), "--format", "json", cwd=tmp_path)
    recording = str(replay.HOSTS / "four-card-gen4.json")
    _, direct = hostcheck("audit", "--recording", recording, "--format", "json", cwd=tmp_path)
    keys = ("id", "subject", "status")
    told = [[[one[key] for key in keys] for one in json.loads(text)["findings"]] for text in (replayed, direct)]
    assert told[0] == told[1]


def test_a_difference_between_hosts_is_waived_once_for_all(tmp_path: Path) -> None:
    other = replay.changed(
        replay.host("four-card-gen4"), {"files": {"/proc/sys/kernel/osrelease": "7.0.0-31-generic\n"}}
    )
    roots = {"a": healthy(tmp_path), "odd": replay.lay_out(other, tmp_path / "root-odd")}
    rules = [
        {"check": "fleet.kernel", "justification": "a canary", "until": "2099-01-01"},
        {"check": "fleet.bios", "justification": "gone", "until": "2099-01-01"},
    ]
    hosts = {
        name: {"hostcheck_root": str(roots[name[0] if name != "odd" else name]), "hostcheck_waivers": rules}
        for name in ("a", "a2", "odd")
    }
    played = play(tmp_path, "-i", inventory(tmp_path, hosts))
    told = [(one["id"], one["subject"]["name"], bool(one["waived"])) for one in summary(tmp_path)["fleet"]["findings"]]
    assert told == [("fleet.kernel", "odd", True), ("waiver.unused", "fleet.bios *", False)], played.stdout
    assert played.stdout.count("a canary") == played.stdout.count("waiver.unused") == 1
    code, text = hostcheck("report", "reports/latest", cwd=tmp_path)
    assert (code, text.count("a canary"), text.count("waiver.unused")) == (0, 1, 1)
