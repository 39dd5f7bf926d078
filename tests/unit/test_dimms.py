"""Modules of memory by the firmware's table: which differ, and that nothing that names one of them travels."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest

from hostcheck.findings import Finding
from hostcheck.onhost.gather import gather
from hostcheck.onhost.plain import to_plain
from hostcheck.onhost.reader import LiveReader
from hostcheck.onhost.readings import dimms
from hostcheck.onhost.readings.dimms import TABLE, Dimm
from hostcheck.onhost.recording import RecordedReader, Recorder, dump, empty, load
from hostcheck.onhost.redact import Redactor
from tests import replay
from tests.hosts.build_memory import MULTI_BIT, NONE, array, equal, module, structure, table

HOST = "four-card-gen4"
FOUR = equal(["A1", "B1", "C1", "D1"], "Micron", "36ASF4G72PZ-3G2R1", 32 << 10)
ODD = module(9, "D2", "Samsung", "M393A4K40DB3-CWE", 32 << 10, "SNODD")


def blob(data: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(data).decode("ascii")}


def judged(content: Any, id: str = "mem.dimm_mix", host: str = HOST) -> Finding:
    report = replay.report(replay.changed(replay.host(host), {"files": {TABLE: content}}))
    (found,) = [one for one in report.findings if one.id == id]
    return found


def test_a_table_is_read() -> None:
    slots = [*FOUR[:1], module(4, "E1", "Undefined", "NO DIMM", 0, ""), module(5, "F1", "X", "Y-8G", 8 << 10, "S")]
    assert dimms.parse_modules(table(slots)) == (
        Dimm("A1", "Micron", "36ASF4G72PZ-3G2R1", 32 << 10),
        Dimm("F1", "X", "Y-8G", 8 << 10),
    )
    assert dimms.parse_correction(table(slots)) == "multi-bit ECC"
    assert dimms.parse_correction(table(slots, NONE)) == "none"


@pytest.mark.parametrize(("size", "mib"), [(b"\x00\x40", 16384), (b"\x00\xa0", 8), (b"\xff\xff", 0)])
def test_sizes_of_older_tables(size: bytes, mib: int) -> None:
    short = structure(17, 1, bytes(8) + size + bytes((9, 0, 1, 0, 0, 0, 0)), ("A1",))  # of 2.1: no part, no size in MiB
    assert dimms.parse_modules(short) == (Dimm("A1", "", "", mib),)


def test_equal_modules_are_ok_and_one_of_another_kind_is_told() -> None:
    found = judged(blob(table(FOUR)))
    assert (found.status.value, found.seen) == ("ok", "4 x Micron 36ASF4G72PZ-3G2R1 32 GiB")
    found = judged(blob(table([*FOUR[:3], ODD])))
    assert found.status.value == "info"
    assert found.seen == "3 x Micron 36ASF4G72PZ-3G2R1 32 GiB and 1 x Samsung M393A4K40DB3-CWE 32 GiB (D2)"
    half = judged(blob(table([FOUR[0], ODD])))
    assert (half.status.value, "(D2)" in half.seen) == ("info", False)


@pytest.mark.parametrize(
    ("content", "status", "seen"),
    [
        (None, "not_applicable", "the firmware gives no table"),
        ({"error": "EACCES"}, "unknown", "permission: EACCES: Permission denied"),
        (blob(b""), "unknown", "not_understood: an empty table"),
        ("text", "unknown", "not_understood: expected a structure"),
        (blob(table(FOUR)[:200]), "unknown", "not_understood: expected a structure"),
        (blob(table([])), "unknown", "not_understood: describes no slot for memory"),
        (blob(table(FOUR[:1])), "not_applicable", "1 module(s)"),
        (blob(table([module(1, "A", "", "", 1024, "")] * 2)), "not_applicable", "the firmware does not name"),
    ],
)
def test_what_is_not_there_is_not_judged(content: Any, status: str, seen: str) -> None:
    found = judged(content)
    assert found.status.value == status
    assert found.seen.startswith(seen)


def test_a_virtual_machine_has_none() -> None:
    assert judged(blob(table([*FOUR, ODD])), host="gpu-vm").status.value == "not_applicable"


def test_the_error_correction_is_told_where_no_controller_reports_errors() -> None:
    assert judged(blob(table(FOUR, NONE)), "mem.ecc").seen.endswith("the firmware says of error correction: none")
    found = judged({"error": "EACCES"}, "mem.ecc")
    assert found.seen == "no memory controller reports errors: silence is no evidence"
    assert found.next_step.startswith("sudo dmidecode -t 16")


def secrets() -> list[str]:
    return ["SNODD", "SN000000", "9876", "SYS-SERIAL"]


def test_neither_facts_nor_a_recording_hold_what_names_a_module_or_the_board(tmp_path: Path) -> None:
    whole = table([*FOUR, ODD])
    (tmp_path / "sys/firmware/dmi/tables").mkdir(parents=True)
    (tmp_path / TABLE.lstrip("/")).write_bytes(whole)
    recorder = Recorder(LiveReader(str(tmp_path)))
    facts = gather(recorder, subset=["dimms"])
    assert len(facts.dimms.modules.value or ()) == 5
    told = json.dumps(to_plain(facts))
    recording = recorder.recording(0.0)
    kept = base64.b64decode(recording["files"][TABLE]["base64"]).decode("latin-1")
    assert "M393A4K40DB3-CWE" in kept
    assert [secret for secret in secrets() if secret in kept or secret in told] == []
    again = gather(RecordedReader(load(dump(Redactor().recording(recording)))), subset=["dimms"])
    assert again.dimms == facts.dimms
    foreign = Redactor().recording({**empty(0.0), "files": {TABLE: blob(whole)}})
    kept = base64.b64decode(foreign["files"][TABLE]["base64"]).decode("latin-1")
    assert [secret for secret in secrets() if secret in kept] == []
    garbage = Redactor().recording({**empty(0.0), "files": {TABLE: blob(b"\x11\x02SN000000")}})
    assert garbage["files"][TABLE] == blob(b"")


def test_blanked_strings_keep_their_length_and_place() -> None:
    whole = table([ODD])
    reduced = dimms.reduced(whole)
    assert dimms.reduced(reduced) == reduced
    assert len(reduced) == len(array(MULTI_BIT, 1)) + len(ODD) + 6
    assert dimms.parse_modules(reduced) == dimms.parse_modules(whole)


def test_garbage_raises_nothing_but_its_own_error() -> None:
    rng = random.Random(5)
    whole = table([*FOUR, ODD])
    for _ in range(300):
        broken = bytearray(whole)
        for _ in range(3):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        for data in (bytes(broken), whole[: rng.randrange(len(whole))]):
            for parse in (dimms.reduced, dimms.parse_modules, dimms.parse_correction):
                try:
                    parse(data)
                except ValueError:
                    continue
