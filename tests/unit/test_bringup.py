"""The state of a bring-up, and receipts against the last good ones."""

from __future__ import annotations

import copy
import functools
import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck import bringup, last_good
from hostcheck.bringup import NotYet
from hostcheck.onhost.gather import gather
from hostcheck.onhost.probe import receipt as raw
from hostcheck.onhost.recording import RecordedReader
from hostcheck.report import probe
from tests import fake_worker as fake
from tests import replay

EVERYBODY = ["a", "b", "c", "d"]
BOOT = {"boot_id": "11111111-1111-1111-1111-111111111111"}


def made(folder: Path, host: str, **results: Any) -> None:
    """Make every step before the gate; results: other than passed, None: not made."""
    bringup.note(folder, host, "record", "passed", boot=dict(BOOT))
    for step in bringup.STEPS[1:-1]:
        result = results.get(step, "passed")
        if result is not None:
            bringup.note(folder, host, step, result)


def test_a_batch_begins_when_all_before_it_have_passed(tmp_path: Path) -> None:
    bringup.begin(tmp_path, EVERYBODY, ["a"], "a")
    assert {name: host.result for name, host in load(tmp_path).hosts.items()} == {
        "a": "running",
        **dict.fromkeys("bcd", "waiting"),
    }
    with pytest.raises(NotYet, match=r"b is not begun: a \(running\)"):
        bringup.begin(tmp_path, EVERYBODY, ["b", "c"], "b")
    bringup.end(tmp_path, "a", "passed")
    for name in "bc":
        bringup.begin(tmp_path, EVERYBODY, ["b", "c"], name)
    assert [host.batch for host in load(tmp_path).hosts.values()] == [1, 2, 2, 0]


@pytest.mark.parametrize("word", ["running", "failed", "unreachable", "reboot_required", "waiting"])
def test_whatever_is_no_pass_holds_the_next_batch_back(tmp_path: Path, word: Any) -> None:
    for name in "ab":
        bringup.begin(tmp_path, EVERYBODY, ["a", "b"], name)
    bringup.end(tmp_path, "a", "passed")
    bringup.end(tmp_path, "b", word)
    with pytest.raises(NotYet, match=f"b \\({word}\\)"):
        bringup.begin(tmp_path, EVERYBODY, ["c"], "c")
    assert load(tmp_path).hosts["c"].result == "waiting"


def test_a_host_without_cards_holds_nobody_back(tmp_path: Path) -> None:
    bringup.begin(tmp_path, EVERYBODY, ["a"], "a")
    bringup.end(tmp_path, "a", "nothing_to_do")
    assert bringup.begin(tmp_path, EVERYBODY, ["b"], "b").hosts["b"].result == "running"


def load(folder: Path) -> bringup.Run:
    run = bringup.load(folder)
    assert run is not None
    return run


@given(
    st.permutations(bringup.STEPS[:-1]),
    st.sets(st.sampled_from(bringup.STEPS[:-1])),
    st.sampled_from(["passed", "not_needed", "failed"]),
)
def test_only_a_host_that_made_every_step_may_pass(tmp_path_factory: Any, order: Any, left_out: Any, last: Any) -> None:
    folder = tmp_path_factory.mktemp("run")
    bringup.begin(folder, ["a"], ["a"], "a")
    kept = [step for step in order if step not in left_out]
    for step in kept:
        bringup.note(folder, "a", step, last if step == kept[-1] else "passed", boot=dict(BOOT))
    if not left_out and last != "failed":
        bringup.may_pass(folder, "a")
    else:
        with pytest.raises(NotYet):
            bringup.may_pass(folder, "a")


def test_steps_of_another_boot_do_not_count(tmp_path: Path) -> None:
    bringup.begin(tmp_path, ["a"], ["a"], "a")
    made(tmp_path, "a")
    bringup.may_pass(tmp_path, "a")
    bringup.note(tmp_path, "a", "record", "passed", boot={"boot_id": "22222222-2222-2222-2222-222222222222"})
    with pytest.raises(NotYet, match="made on another boot: unmark, wait"):
        bringup.may_pass(tmp_path, "a")


@pytest.mark.parametrize("results", [{"smoke": "failed"}, {"probe": None}])
def test_a_failed_or_missing_step_is_named(tmp_path: Path, results: dict[str, Any]) -> None:
    bringup.begin(tmp_path, ["a"], ["a"], "a")
    made(tmp_path, "a", **results)
    with pytest.raises(NotYet, match=next(iter(results))):
        bringup.may_pass(tmp_path, "a")


def test_a_killed_run_says_where_it_was_and_a_closed_one_how_it_ended(tmp_path: Path) -> None:
    for name in "ab":
        bringup.begin(tmp_path, EVERYBODY, ["a", "b"], name)
        bringup.note(tmp_path, name, "record", "passed", boot=dict(BOOT))
    run = load(tmp_path)
    assert (run.ended_at, run.hosts["a"].result, run.hosts["a"].at) == ("", "running", "record")
    run = bringup.close(tmp_path, {"b": "Wait for the cards: timed out"})
    assert run.ended_at
    assert [host.result for host in run.hosts.values()] == ["failed", "unreachable", "waiting", "waiting"]
    assert bringup.lines(run, tmp_path)[:2] == [
        "a  failed after record: ended after record",
        "b  unreachable after record: Wait for the cards: timed out",
    ]


def _many(folder: Path, host: str) -> None:
    for number in range(20):
        bringup.note(folder, host, "wait", "passed", str(number))


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    for name in EVERYBODY:
        bringup.begin(tmp_path, EVERYBODY, EVERYBODY, name)
    processes = [multiprocessing.Process(target=_many, args=(tmp_path, name)) for name in EVERYBODY]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [len(host.steps) for host in load(tmp_path).hosts.values()] == [20] * 4


def test_a_file_that_is_no_state_is_refused_and_named(tmp_path: Path) -> None:
    (tmp_path / bringup.FILE).write_text('{"schema": "hostcheck/bringup/2"}')
    with pytest.raises(ValueError, match=r"state\.json: is no state of a bring-up"):
        bringup.load(tmp_path)


def test_a_boot_is_recorded_with_how_the_one_before_ended() -> None:
    log = "[ 1.0] x86/amd: Previous system reset reason [0x00800800]: internal CPU shutdown event occurred\n"
    groups = ["identity", "kernel_log", "last_boot", "next_boot"]
    facts = gather(RecordedReader(replay.changed(replay.host("four-card-gen4"), {"log": log})), None, groups)
    boot = bringup.boot_record(facts)
    assert (boot["kernel"], boot["guc"]["0000:23:00.0"]) == ("7.0.0-38-generic", "70.54.0")
    assert boot["reset_code"] == "0x00800800"
    assert bringup.ended_how(boot).startswith("the boot before: internal CPU shutdown event occurred")
    json.dumps(boot)
    refused = {"rc": 1, "stdout": "", "stderr": "Operation not permitted"}
    blind = replay.changed(replay.host("four-card-gen4"), {"commands": {replay.JOURNAL: refused, "dmesg": refused}})
    boot = bringup.boot_record(gather(RecordedReader(blind), None, groups))
    assert boot["guc"] == boot["reset_reason"] == "unread: permission"
    assert "proves nothing" in bringup.ended_how(boot)


# ----------------------------------------------------------------------------------------- the last good receipts


@functools.cache
def _text(**settings: Any) -> str:
    return json.dumps(fake.profile(**settings))


def receipt(taken_at: str, card: str = "0000:23:00.0", change: Any = None, **settings: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_text(**settings))
    found["taken_at"] = taken_at
    found["before"]["host"] = {"card": card}
    if change:
        change(found)
    return raw.seal(found)


def kept(folder: Path, host: str, one: dict[str, Any]) -> dict[str, Any]:
    (folder / probe.file_name(host, one)).write_text(json.dumps(one))
    return one


OLD, NEW, NEXT = "2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z", "2026-02-01T00:00:00Z"


def slowed(by: float) -> Any:
    def change(found: dict[str, Any]) -> None:
        for block in found["blocks"]:
            for series in block["metrics"].values():
                series["samples"] = [round(sample * by) for sample in series["samples"]]
                series["sum"] = sum(series["samples"])

    return change


def test_without_an_earlier_receipt_there_is_nothing_to_compare_and_it_is_said(tmp_path: Path) -> None:
    found = last_good.compare(tmp_path, "a", [kept(tmp_path, "a", receipt(NEXT))])
    assert found.worse == ()
    assert found.lines[0] == "0000:23:00.0: no good receipt from before to compare with"


@pytest.mark.parametrize(("by", "is_worse"), [(1.0, False), (1.2, False), (0.5, False), (1.4, True), (3.0, True)])
def test_slower_beyond_a_quarter_and_noise_is_worse(tmp_path: Path, by: float, is_worse: bool) -> None:
    kept(tmp_path, "a", receipt(OLD))
    found = last_good.compare(tmp_path, "a", [kept(tmp_path, "a", receipt(NEXT, change=slowed(by)))])
    assert bool(found.worse) == is_worse
    if is_worse:
        assert found.worse[0].startswith("0000:23:00.0: launch_us ")
        assert OLD in found.worse[0]


def test_a_worse_class_is_worse_and_the_fleet_only_says(tmp_path: Path) -> None:
    slow = (5180, 30220, 133850)
    kept(tmp_path, "a", receipt(OLD))
    kept(tmp_path, "b", receipt(OLD))
    kept(tmp_path, "c", receipt(OLD, LAB=slow))
    new = kept(tmp_path, "a", receipt(NEXT, LAB=slow))
    found = last_good.compare(tmp_path, "a", [new], ["a", "b", "c", "d"])
    assert found.worse == (f"0000:23:00.0: class slow, was fast at {OLD}",)
    assert "0000:23:00.0: class slow; other hosts with such cards: 1 fast, 1 slow" in found.lines
    back = last_good.compare(tmp_path, "c", [kept(tmp_path, "c", receipt(NEXT))], ["a", "b", "c"])
    assert back.worse == ()


def test_another_torch_is_not_compared(tmp_path: Path) -> None:
    def change(found: dict[str, Any]) -> None:
        slowed(3.0)(found)
        for worker in found["workers"]:
            worker["identity"]["torch"] = "2.14.0+xpu"

    kept(tmp_path, "a", receipt(OLD))
    found = last_good.compare(tmp_path, "a", [kept(tmp_path, "a", receipt(NEXT, change=change))])
    assert found.worse == ()
    assert found.lines[0].endswith("torch was 2.13.0+made-up and is 2.14.0+xpu")


def test_a_forged_or_invalid_receipt_is_no_good_one(tmp_path: Path) -> None:
    kept(tmp_path, "a", receipt(OLD))
    forged = copy.deepcopy(receipt(NEW, change=slowed(9.0)))
    forged["figures"]["metrics"]["launch_us"]["median"] = 9000.0
    kept(tmp_path, "a", forged)
    kept(tmp_path, "a", receipt("2026-01-01T00:20:00Z", change=lambda one: one["before"].update(card="is suspended")))
    (tmp_path / "a-0000-23-00.0-20260101T003000Z.json").write_text("{")
    found = last_good.last_good(tmp_path, "a", ())
    assert found["0000:23:00.0"]["taken_at"] == OLD


def test_receipts_of_a_host_whose_name_begins_alike_are_not_its_own(tmp_path: Path) -> None:
    kept(tmp_path, "gpu-1", receipt(OLD))
    kept(tmp_path, "gpu", receipt(OLD, card="0000:99:00.0"))
    assert list(last_good.last_good(tmp_path, "gpu", ())) == ["0000:99:00.0"]
    assert list(last_good.last_good(tmp_path, "gpu-1", ())) == ["0000:23:00.0"]


def test_a_card_of_the_last_run_that_is_not_seen_now_is_missed(tmp_path: Path) -> None:
    kept(tmp_path, "a", receipt(OLD))
    kept(tmp_path, "a", receipt(NEW, card="0000:27:00.0"))
    kept(tmp_path, "a", receipt("2025-01-01T00:00:00Z", card="0000:43:00.0"))  # moved to another slot since
    found = last_good.compare(tmp_path, "a", [kept(tmp_path, "a", receipt(NEXT))])
    assert found.worse == (f"0000:27:00.0: measured at {NEW}, not seen now",)
    assert len(last_good.compare(tmp_path, "a", []).worse) == 1  # the newest run is the one of a moment ago
