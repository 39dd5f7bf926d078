"""Counters read twice: what grew between both reads, in recordings, on a live host and in the checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hostcheck.findings import Finding
from hostcheck.onhost import reader as reader_module
from hostcheck.onhost.gather import SAMPLE_LIMIT, Options, gather
from hostcheck.onhost.record import record
from hostcheck.onhost.recording import RecordedReader, below, checked
from hostcheck.rates import two_reads
from tests import replay

FOUR = "four-card-gen4"
ROOT_PORT, UPLINK, NVME = "0000:20:01.1", "0000:21:00.0", "0000:01:00.0"


def counters(recording: dict[str, Any], bdf: str, kind: str = "correctable") -> str:
    """The path of the counters of a function."""
    found = [path for path in recording["files"] if path.endswith(f"/{bdf}/aer_dev_{kind}")]
    assert len(found) == 1
    return found[0]


def grown(recording: dict[str, Any], bdf: str, by: int, after: float = 60, kind: str = "correctable") -> dict[str, Any]:
    """A second read in which the first counter of a function has grown, and with it the total."""
    path = counters(recording, bdf, kind)
    lines = [line.split() for line in recording["files"][path].splitlines()]
    text = "".join(
        f"{name} {int(count) + (by if number == 0 or name.startswith('TOTAL_') else 0)}\n"
        for number, (name, count) in enumerate(lines)
    )
    return {"samples": [{"after_s": after, "files": {path: text}}]}


def judged(by: int, after: float = 60, bdf: str = UPLINK, kind: str = "correctable") -> Finding | None:
    recording = replay.host(FOUR)
    report = replay.report(replay.changed(recording, grown(recording, bdf, by, after, kind)))
    id = "aer.rate" if kind == "correctable" else f"aer.{kind}"
    return next((one for one in report.findings if one.id == id and one.subject.name == UPLINK), None)


@pytest.mark.parametrize(
    ("by", "after", "status"),
    [
        (0, 60, "ok"),
        (1, 60, "warn"),
        (59, 60, "warn"),
        (60, 60, "fail"),
        (1, 1, "warn"),
        (6, 60, "warn"),
        (20, 10, "fail"),
    ],
)
def test_the_rate_between_two_reads_decides(by: int, after: float, status: str) -> None:
    found = judged(by, after)
    assert found is not None
    assert found.status.value == status
    assert ("between two reads" in found.seen) == (by > 0)


@pytest.mark.parametrize("kind", ["nonfatal", "fatal"])
def test_an_uncorrected_error_between_two_reads_is_seen(kind: str) -> None:
    found = judged(1, 60, kind=kind)
    assert found is not None
    assert found.status.value == "fail"


def test_an_old_count_that_does_not_grow_is_no_storm() -> None:
    recording = replay.host(FOUR)
    old = grown(recording, UPLINK, 500_000)["samples"][0]["files"]
    once = replay.report(replay.changed(recording, {"files": old}))
    twice = replay.report(replay.changed(recording, {"files": old, "samples": [{"after_s": 60, "files": old}]}))
    status = [
        next(one.status.value for one in report.findings if one.id == "aer.rate" and one.subject.name == UPLINK)
        for report in (once, twice)
    ]
    assert status == ["fail", "warn"]


def test_without_a_second_read_nothing_changes() -> None:
    facts = gather(RecordedReader(replay.host(FOUR)))
    assert facts.rates.seconds.unread == "not_asked"
    assert two_reads(facts, None) == (facts, None)


@pytest.mark.parametrize(
    ("content", "unread"),
    [({"error": "EACCES"}, "permission"), ({"error": "ENOENT"}, "absent"), ("garbage\n", "not_understood")],
)
def test_a_second_read_that_fails_is_unread_and_no_growth(content: Any, unread: str) -> None:
    recording = replay.host(FOUR)
    change = {"samples": [{"after_s": 60, "files": {counters(recording, UPLINK): content}}]}
    facts = gather(RecordedReader(replay.changed(recording, change)))
    assert facts.rates.seconds.value == 60
    assert facts.rates.correctable.unread == unread
    assert facts.rates.fatal.value is not None
    later, first = two_reads(facts, None)
    assert first is facts
    assert later.pcie.gpus == facts.pcie.gpus


def test_the_card_that_sleeps_is_not_read_again() -> None:
    recording = replay.host(FOUR)
    status = [path for path in recording["files"] if path.endswith("23:00.0/power/runtime_status")]
    asleep = replay.changed(recording, {**grown(recording, UPLINK, 9), "files": dict.fromkeys(status, "suspended\n")})
    facts = gather(RecordedReader(asleep))
    own = {hop.bdf for gpu in facts.pcie.gpus.value or () if gpu.bdf == "0000:23:00.0" for hop in gpu.path}
    read = {hop.bdf for gpu in facts.pcie.gpus.value or () for hop in gpu.path if hop.aer.correctable.value is not None}
    assert "0000:23:00.0" in own - read
    assert set(facts.rates.correctable.value or {}) & (own - read) == set()


def test_a_live_host_is_read_twice_and_its_recording_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = replay.host(FOUR)
    root = replay.lay_out(original, tmp_path)
    path = counters(original, UPLINK)
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        if seconds >= 1:
            waited.append(seconds)
            (root / path.lstrip("/")).write_text(grown(original, UPLINK, 90)["samples"][0]["files"][path])

    monkeypatch.setattr(reader_module.time, "sleep", sleep)
    real = reader_module.LiveReader.later

    def later(self: reader_module.LiveReader, seconds: float) -> Any:
        second = real(self, seconds)
        return second and (30.0, second[1])

    monkeypatch.setattr(reader_module.LiveReader, "later", later)
    facts, recording = record(below(str(root)), Options(sample_seconds=30))
    assert facts.rates.seconds.value == 30
    assert (facts.rates.correctable.value or {})[UPLINK]["TOTAL_ERR_COR"] == 90
    assert checked(json.loads(json.dumps(recording)))["samples"][0]["after_s"] == 30
    replayed = gather(RecordedReader(recording), Options(sample_seconds=30))
    assert replayed.rates == facts.rates
    assert replayed.pcie.gpus == facts.pcie.gpus


def test_without_being_asked_a_host_is_read_once(tmp_path: Path) -> None:
    root = replay.lay_out(replay.host(FOUR), tmp_path)
    _, recording = record(below(str(root)))
    assert recording["samples"] == []


@pytest.mark.parametrize("seconds", [-1.0, SAMPLE_LIMIT + 1, float("nan"), float("inf")])
def test_times_that_make_no_sense_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="sample_seconds"):
        Options(sample_seconds=seconds)


@pytest.mark.parametrize(
    "samples",
    [
        {},
        [1],
        [{"after_s": 1}],
        [{"after_s": 0, "files": {}}],
        [{"after_s": True, "files": {}}],
        [{"after_s": "1", "files": {}}],
        [{"after_s": 1, "files": {"relative": "x"}}],
        [{"after_s": 1, "files": {"/x": 1}}],
        [{"after_s": 1, "files": {}, "more": 1}],
    ],
)
def test_a_recording_with_odd_samples_is_refused(samples: Any) -> None:
    with pytest.raises(ValueError, match="samples"):
        checked({**replay.host(FOUR), "samples": samples})


def test_private_text_in_a_second_read_is_replaced_as_well() -> None:
    from hostcheck.onhost.redact import Redactor

    recording = replay.host(FOUR)
    recording["samples"] = [{"after_s": 1.0, "files": {"/x": "on secret-host-name\n"}}]
    clean = Redactor(["secret-host-name"], []).recording(recording)
    assert "secret-host-name" not in json.dumps(clean["samples"])
    assert clean["samples"][0]["after_s"] == 1.0
