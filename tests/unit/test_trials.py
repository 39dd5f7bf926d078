"""A whole trial on a directory that stands for a host, with a scripted worker and a real way back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostcheck import receipts
from hostcheck.onhost.probe.schedule import PAIRS, QUADS, SHAM
from hostcheck.onhost.settings.engine import Host, Refused
from hostcheck.onhost.settings.files import Failed
from hostcheck.onhost.trials import deadman, journal, restorer
from hostcheck.onhost.trials import run as trials
from hostcheck.onhost.trials.run import Wish
from tests import trial_host
from tests.settings_host import Tree, cpus
from tests.trial_host import GOVERNOR, PERFORMANCE, governed, request, stand_in

ROOT = Path(__file__).parents[2]
KEPT = "/var/lib/hostcheck"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return cpus(Tree(tmp_path / "root"), count=2)


def governors(tree: Tree) -> set[str]:
    return {path.read_text().strip() for path in tree.path(trial_host.POLICIES).glob("policy*/scaling_governor")}


def trial(tree: Tree, command: list[str], *wishes: Wish, **more: Any) -> trials.Outcome:
    host = Host(str(tree.root))
    outcome = trials.run(host, trials.prepare(host, request(command, *(wishes or (PERFORMANCE,)), **more)))
    assert outcome.receipt is not None
    assert receipts.verify(receipts.parse(json.dumps(outcome.receipt))) == []
    return outcome


def verdict(outcome: trials.Outcome) -> tuple[str, list[str]]:
    assert outcome.receipt is not None
    return outcome.receipt["verdict"]["word"], outcome.receipt["verdict"]["reasons"]


def eventually(condition: Callable[[], bool]) -> bool:
    for _ in range(1000):
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_a_governor_that_helps_is_found_and_put_back(tree: Tree) -> None:
    outcome = trial(tree, governed(tree))
    assert verdict(outcome)[0] == "improved"
    assert governors(tree) == {"schedutil"}
    assert outcome.receipt is not None
    assert (outcome.kept, outcome.unrestored, outcome.receipt["restore"]) == (False, [], "")
    phases = [block["phase"] for block in outcome.receipt["blocks"]]
    assert phases == [SHAM] * 16 + [PAIRS] * 16
    for block in outcome.receipt["blocks"]:
        arm = block["arm"] if block["phase"] == PAIRS else "A"
        assert block["readback"] == f"scaling_governor {'performance' if arm == 'B' else 'schedutil'}"
        assert block["evidence"]["clock_khz"] == (3800000.0 if arm == "B" else 2100000.0)
    assert outcome.receipt["claim"]["arms"] == {"A": "scaling_governor schedutil", "B": "scaling_governor performance"}
    assert outcome.receipt["claim"]["evidence"] == ["clock_khz"]


def test_what_was_measured_stays_on_the_host_until_it_is_saved(tree: Tree) -> None:
    before = tree.snapshot()
    outcome = trial(tree, governed(tree))
    folder = tree.path(f"{journal.FOLDER}/{outcome.name}")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    host = Host(str(tree.root))
    assert trials.tidy(host, [], check=True)["trials"] == []
    handed = trials.tidy(host, ["../other"])["trials"]
    assert [one["id"] for one in handed] == [outcome.name]
    assert handed[0]["receipt"] == outcome.receipt  # complete: nobody says that it was interrupted
    assert trials.tidy(host, [outcome.name]) == {"restored": "", "trials": []}
    after = tree.snapshot()
    assert {path for path in set(before) ^ set(after) if path != "/worker.py"} == set()


def test_improved_may_stay_until_the_next_boot(tree: Tree) -> None:
    outcome = trial(tree, governed(tree), keep="improved")
    assert (verdict(outcome)[0], outcome.kept, governors(tree)) == ("improved", True, {"performance"})
    for number in (0, 1):
        tree.put(f"{trial_host.POLICIES}/policy{number}/scaling_governor", "schedutil\n")
    outcome = trial(tree, governed(tree, faster=1.25), keep="improved")
    assert (verdict(outcome)[0], outcome.kept, governors(tree)) == ("regressed", False, {"schedutil"})
    with pytest.raises(ValueError, match="for one toggle"):
        request(["x"], PERFORMANCE, PERFORMANCE, keep="improved")


def test_a_write_that_changes_nothing_is_vacuous(tree: Tree) -> None:
    lies = Wish("command", {"a": ["true"], "b": ["true"], "read": ["echo", "off"]})
    for name in ("true", "echo"):
        tree.program(name, f'#!/bin/sh\nexec /bin/{name} "$@"\n')
    word, reasons = verdict(trial(tree, governed(tree), lies))
    assert word == "vacuous"
    assert "read-back is equal in both arms: echo off off" in reasons


def test_a_governor_that_moves_no_clock_is_vacuous(tree: Tree) -> None:
    word, reasons = verdict(trial(tree, stand_in(tree.path("/worker.py"))))
    assert word == "vacuous"
    assert reasons == ["no evidence that the setting acted: clock_khz does not differ between the arms"]


def test_another_who_writes_it_back_makes_the_trial_invalid(tree: Tree) -> None:
    back = f"open({str(tree.path(GOVERNOR))!r}, 'w').write('schedutil')"
    word, reasons = verdict(trial(tree, governed(tree, extra=back)))
    assert word == "invalid"
    assert reasons[0].startswith("setting changed inside a block: pairs pair 0 arm B: scaling_governor performance ->")


SWITCH = """\
#!/bin/sh
state=$HOSTCHECK_ROOT/state
case "$1" in
  read) cat "$state" ;;
  *) {fault}; echo "$1" > "$state" ;;
esac
"""


def tool(tree: Tree, fault: str = ":") -> Wish:
    """A tool that switches something, and a fault of it."""
    tree.put("/state", "off\n")
    tree.program("tool", SWITCH.format(fault=fault))
    return Wish("command", {"a": ["tool", "off"], "b": ["tool", "on"], "read": ["tool", "read"], "name": "tool"})


def test_a_pair_of_commands(tree: Tree) -> None:
    wish = tool(tree)
    command = stand_in(tree.path("/worker.py"), str(tree.path("/state")), {"on": 1.3})
    outcome = trial(tree, command, wish)
    assert verdict(outcome)[0] == "regressed"
    assert outcome.receipt is not None
    assert outcome.receipt["claim"]["arms"] == {"A": "tool off", "B": "tool on"}
    assert {block["readback"] for block in outcome.receipt["blocks"]} == {"tool off", "tool on"}
    assert tree.text("/state") == "off\n"


def test_a_command_that_is_refused_in_the_middle_is_invalid_and_put_back(tree: Tree) -> None:
    wish = tool(
        tree,
        '[ "$1" = on ] && [ "$(cat $HOSTCHECK_ROOT/calls | wc -l)" -gt 3 ] && exit 5; '
        '[ "$1" = on ] && echo on >> $HOSTCHECK_ROOT/calls',
    )
    tree.put("/calls", "")
    word, reasons = verdict(trial(tree, stand_in(tree.path("/worker.py")), wish))
    assert word == "invalid"
    assert reasons[0] == "the setting could not be written: arm B: tool on: exit 5: "
    assert tree.text("/state") == "off\n"


def test_a_restore_that_fails_is_invalid_and_said_and_tried_again(tree: Tree) -> None:
    wish = tool(tree, '[ "$1" = restore ] && [ -e $HOSTCHECK_ROOT/broken ] && exit 7')
    wish = Wish("command", {**wish.b, "restore": ["tool", "restore"], "a": ["tool", "other"]})
    tree.put("/state", "restore\n")
    tree.put("/broken", "")
    host = Host(str(tree.root))
    outcome = trial(tree, stand_in(tree.path("/worker.py")), wish)
    word, reasons = verdict(outcome)
    assert word == "invalid"
    assert outcome.unrestored
    assert f"restore failed: {outcome.unrestored[0]}" in reasons
    assert "tool restore: exit 7" in outcome.unrestored[0]
    with pytest.raises(Failed, match="an earlier trial's values are not back"):
        trial(tree, governed(tree))
    assert governors(tree) == {"schedutil"}
    tree.path("/broken").unlink()
    done = trials.tidy(host, [])
    assert done["restored"] == ""
    assert tree.text("/state") == "restore\n"


def test_what_a_command_finds_and_a_gives_may_differ_with_a_restore(tree: Tree) -> None:
    wish = tool(tree)
    tree.put("/state", "third\n")
    outcome = trial(tree, stand_in(tree.path("/worker.py")), Wish("command", {**wish.b, "restore": ["tool", "third"]}))
    assert (outcome.unrestored, tree.text("/state")) == ([], "third\n")
    outcome = trial(tree, stand_in(tree.path("/worker.py")), wish)
    assert verdict(outcome)[0] == "invalid"
    assert outcome.unrestored == [f"{tree.path('/usr/sbin/tool')} off: wanted 'third', reads back 'off'"]


def test_two_toggles(tree: Tree) -> None:
    wish = tool(tree)
    slow = f"text += open({str(tree.path('/state'))!r}).read().strip()"
    command = governed(tree, extra=slow)
    text = tree.path("/worker.py").read_text()
    factors = {"performanceoff": 0.8, "schedutilon": 0.9, "performanceon": 0.8}  # the second adds nothing to the first
    tree.path("/worker.py").write_text(text.replace("{'performance': 0.8}", repr(factors)))
    outcome = trial(tree, command, PERFORMANCE, wish)
    assert outcome.receipt is not None
    assert outcome.receipt["kind"] == "interaction"
    assert verdict(outcome)[0] == "improved"
    effects = outcome.receipt["verdict"]["figures"]["effects"]
    assert {name: one["word"] for name, one in effects.items()} == {
        "A": "improved", "B": "improved", "A+B": "improved", "interaction": "regressed",
    }  # fmt: skip
    assert effects["A+B"]["ratio"] == pytest.approx(0.8, rel=0.02)
    assert effects["interaction"]["ratio"] == pytest.approx(1 / 0.9, rel=0.03)
    blocks = [block for block in outcome.receipt["blocks"] if block["phase"] == QUADS]
    assert len(blocks) == 36
    for block in blocks:
        assert block["evidence"]["A:readback"].endswith("performance" if "A" in block["arm"] else "schedutil")
        assert block["evidence"]["B:readback"] == ("tool on" if "B" in block["arm"] else "tool off")
    assert (governors(tree), tree.text("/state")) == ({"schedutil"}, "off\n")
    changed = json.loads(json.dumps(outcome.receipt))
    changed["verdict"]["figures"]["effects"]["A"]["ratio"] = 0.5
    assert any("effects.A.ratio" in problem for problem in receipts.verify(changed))


def test_a_second_toggle_that_does_nothing_is_vacuous(tree: Tree) -> None:
    dead = tool(tree, "exit 0")
    word, reasons = verdict(trial(tree, governed(tree), PERFORMANCE, dead))
    assert word == "vacuous"
    assert reasons == ["switch B: no evidence that the setting acted: B:readback does not differ between the arms"]


def test_the_same_thing_twice_is_refused(tree: Tree) -> None:
    host = Host(str(tree.root))
    other = Wish("cpu_governor", {"governor": "powersave"})
    for number in (0, 1):
        names = f"{trial_host.POLICIES}/policy{number}/scaling_available_governors"
        tree.put(names, "performance powersave schedutil\n")
    prepared = trials.prepare(host, request(["x"], PERFORMANCE, other))
    assert prepared.refused == ("both toggles write the same thing, so what one does cannot be told from the other",)
    with pytest.raises(Refused):
        trials.run(host, prepared)


def test_in_a_container_it_is_refused(tree: Tree) -> None:
    tree.put("/run/.containerenv", "")
    prepared = trials.prepare(Host(str(tree.root)), request(["x"], PERFORMANCE))
    assert prepared.refused[0].startswith("this is a container (podman): run it on the host")


def test_a_worker_that_is_killed_is_invalid_and_put_back(tree: Tree) -> None:
    word, reasons = verdict(trial(tree, governed(tree, extra="if blocks == 22: os.kill(os.getpid(), 9)")))
    assert word == "invalid"
    assert "worker: died: killed by SIGKILL" in reasons
    assert governors(tree) == {"schedutil"}


def test_a_card_that_must_not_be_opened_is_not_touched(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(str(tree.root))
    prepared = trials.prepare(host, request(governed(tree), PERFORMANCE))
    sick = trials.replace(prepared, found=trials.replace(prepared.found, sick={"0000:23:00.0": "is suspended"}))
    monkeypatch.setattr(deadman.Deadman, "arm", lambda _: pytest.fail("nothing is to be put back"))
    outcome = trials.run(host, sick)
    word, reasons = verdict(outcome)
    assert word == "invalid"
    assert "listing the devices opens 0000:23:00.0 is suspended" in reasons[0]
    assert outcome.receipt is not None
    assert outcome.receipt["workers"] == []


def test_nothing_is_written_where_nobody_could_put_it_back(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadman, "program", lambda: "raise SystemExit(3)")
    wish = tool(tree, "echo $1 >> $HOSTCHECK_ROOT/calls")
    with pytest.raises(Failed, match="nothing was written, because nobody would put it back: the watch ended at once"):
        trial(tree, stand_in(tree.path("/worker.py")), wish)
    assert not tree.path("/calls").exists()


# ------------------------------------------------------------------------------------------ killed, cut off, at once

RUNS = """
import sys
from hostcheck.onhost.settings.engine import Host
from hostcheck.onhost.trials import run as trials
from tests.trial_host import PERFORMANCE, request
host = Host(sys.argv[1])
say = lambda line: print(line, flush=True)
outcome = trials.run(host, trials.prepare(host, request(sys.argv[2:], PERFORMANCE)), say, trials.listening)
say(outcome.receipt["verdict"]["sentence"])
"""


def started(tree: Tree, command: list[str], until: str) -> subprocess.Popen[str]:
    """A trial in a process of its own, and its output read up to a word."""
    running = subprocess.Popen(
        [sys.executable, "-c", RUNS, str(tree.root), *command],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    assert running.stdout is not None
    for line in running.stdout:
        if until in line:
            return running
    raise AssertionError(f"{until!r} never came: exit {running.wait()}")


def collected(tree: Tree) -> dict[str, Any]:
    (one,) = trials.tidy(Host(str(tree.root)), [])["trials"]
    receipt: dict[str, Any] = one["receipt"]
    assert receipts.verify(receipts.parse(json.dumps(receipt))) == []
    return receipt


def in_arm_b(tree: Tree) -> bool:
    return governors(tree) == {"performance"}


def test_kill_9_of_the_trial_puts_the_values_back_at_once(tree: Tree) -> None:
    command = governed(tree, block_s=0.1)
    running = started(tree, command, "pairs pair 3")
    assert eventually(lambda: in_arm_b(tree))
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert eventually(lambda: governors(tree) == {"schedutil"})
    (folder,) = tree.path(journal.FOLDER).iterdir()
    assert eventually(lambda: not (folder / restorer.PLAN).exists())
    assert json.loads((folder / restorer.DONE).read_text())["why"] == "the process of the trial ended"
    receipt = collected(tree)
    assert receipt["verdict"]["word"] == "invalid"
    assert receipt["verdict"]["reasons"][0].startswith(f"interrupted: {journal.KILLED}; values put back at ")
    assert 20 <= len(receipt["blocks"]) < 32
    assert receipt["begun"] == {"sham": 8, "pairs": 8}
    tampered = {**receipt, "interrupted": ""}
    tampered["sha256"] = receipts.raw.digest(tampered)
    assert receipts.verify(tampered)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda one: one.name)
def test_a_signal_ends_the_trial_in_order(tree: Tree, number: signal.Signals) -> None:
    running = started(tree, governed(tree, block_s=0.1), "pairs pair 1")
    os.kill(running.pid, number)
    assert running.stdout is not None
    said = running.stdout.read()
    assert running.wait() == 0
    assert f"launch_us: invalid: interrupted: ended by {number.name}" in said
    assert governors(tree) == {"schedutil"}
    assert collected(tree)["interrupted"] == f"ended by {number.name}"


def test_nobody_who_listens_ends_the_trial(tree: Tree) -> None:
    running = started(tree, governed(tree, block_s=0.1), "sham pair 3")
    assert running.stdout is not None
    running.stdout.close()
    running.wait()
    assert governors(tree) == {"schedutil"}
    (folder,) = tree.path(journal.FOLDER).iterdir()
    assert not (folder / restorer.PLAN).exists()
    receipt = collected(tree)
    assert not receipt["validity"]["valid"]
    assert len(receipt["blocks"]) < 16


def test_two_trials_at_once_are_refused(tree: Tree) -> None:
    running = started(tree, governed(tree, block_s=0.5), "sham pair 1")
    try:
        with pytest.raises(Failed, match="another run is changing this host"):
            trial(tree, ["x"])
        with pytest.raises(Failed, match="another run is changing this host"):
            trials.tidy(Host(str(tree.root)), [])
    finally:
        os.kill(running.pid, signal.SIGTERM)
        running.wait()


def test_the_next_run_takes_over_what_a_killed_one_left(tree: Tree) -> None:
    running = started(tree, governed(tree, block_s=0.1), "sham pair 2")
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    (folder,) = tree.path(journal.FOLDER).iterdir()
    assert eventually(lambda: not (folder / restorer.PLAN).exists())
    with (folder / journal.LINES).open("a") as file:
        file.write('{"kind":"block","rec')  # the host went down in the middle of a line
    outcome = trial(tree, governed(tree))
    assert list(outcome.earlier) == [folder.name]
    assert outcome.earlier[folder.name]["verdict"]["word"] == "invalid"
    assert [one["id"] for one in trials.hand_over(outcome)] == [folder.name, outcome.name]


# ------------------------------------------------------------------------------------------------------ the watch


def watched(tmp_path: Path, **changes: Any) -> Path:
    """A folder with a plan for one file, which is changed."""
    (tmp_path / "value").write_text("changed\n")
    plan = {
        "schema": restorer.SCHEMA,
        "pid": os.getpid(),
        "start": restorer.started(os.getpid()),
        "boot_id": restorer.boot_id(),
        "until": time.clock_gettime(time.CLOCK_BOOTTIME) + 600,
        "root": "",
        "unit": "",
        "steps": [{"path": str(tmp_path / "value"), "value": "found"}],
    }
    restorer.write(str(tmp_path / restorer.PLAN), {**plan, **changes})
    return tmp_path


def run_watch(folder: Path) -> subprocess.Popen[str]:
    (folder / deadman.PROGRAM).write_text(deadman.program())
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(folder / deadman.PROGRAM), str(folder)], stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"until": 0.0}, "the time of the trial is over"),
        ({"start": "1"}, "the process of the trial ended"),  # the number belongs to somebody else by now
        ({"pid": 2**22 + 1}, "the process of the trial ended"),
    ],
)
def test_the_watch_acts_at_once_when_there_is_nothing_to_wait_for(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    folder = watched(tmp_path, **changes)
    assert run_watch(folder).wait() == 0
    assert (folder / "value").read_text() == "found\n"
    done = json.loads((folder / restorer.DONE).read_text())
    assert (done["why"], done["problems"], done["rebooted"]) == (why, [], False)
    assert not (folder / restorer.PLAN).exists()


def test_the_watch_puts_back_when_it_is_told_to_end(tmp_path: Path) -> None:
    folder = watched(tmp_path)
    running = run_watch(folder)
    assert eventually((folder / restorer.ARMED).exists)
    running.terminate()
    assert running.wait() == 0
    assert (folder / "value").read_text() == "found\n"
    assert json.loads((folder / restorer.DONE).read_text())["why"] == "ended by SIGTERM"


def test_the_watch_does_nothing_once_its_plan_is_gone(tmp_path: Path) -> None:
    folder = watched(tmp_path)
    running = run_watch(folder)
    assert eventually((folder / restorer.ARMED).exists)
    (folder / restorer.PLAN).unlink()
    running.terminate()
    assert running.wait() == 0
    assert (folder / "value").read_text() == "changed\n"
    assert not (folder / restorer.DONE).exists()


def test_what_does_not_come_back_is_said_and_kept_for_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = watched(tmp_path, until=0.0, steps=[{"path": "/proc/version", "value": "found"}])
    running = run_watch(folder)
    assert running.stderr is not None
    said = running.stderr.read()
    assert running.wait() == 1
    assert said.startswith("hostcheck: not put back: /proc/version: ")
    assert (folder / restorer.PLAN).exists()


def test_after_a_reboot_there_is_nothing_to_put_back(tmp_path: Path) -> None:
    folder = watched(tmp_path, boot_id="another")
    assert restorer.finish(str(folder), "found by the next run") == []
    done = json.loads((folder / restorer.DONE).read_text())
    assert done["rebooted"]
    assert "does not outlast" in done["why"]
    assert (folder / "value").read_text() == "changed\n"


def test_a_step_that_is_as_it_was_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "policy").write_text("[default] performance\n")
    (tmp_path / "policy").chmod(0o400)
    step = {"path": "/policy", "value": "default"}
    assert restorer.put_back([step], str(tmp_path)) == []
    assert (tmp_path / "policy").read_text() == "[default] performance\n"
