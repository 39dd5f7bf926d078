"""GuC files on disk by their own headers, and an initrd that is older than what it holds."""

from __future__ import annotations

import base64
import importlib.util
import json
import lzma
import struct
from typing import Any

import pytest

from hostcheck.findings import Finding
from hostcheck.onhost.gather import gather
from hostcheck.onhost.readings import next_boot
from hostcheck.onhost.recording import RecordedReader, Recorder, dump
from hostcheck.report import next_boot as screen
from tests import replay

HOST = "two-card-gen5"
FILE = "/lib/firmware/xe/bmg_guc_70.bin"
KERNEL = "7.0.0-38-generic"
INITRD = f"/boot/initrd.img-{KERNEL}"
XE = f"/lib/modules/{KERNEL}/kernel/drivers/gpu/drm/xe/xe.ko.zst"
HAS_ZSTD = importlib.util.find_spec("compression") is not None
REFUSED: Any = {"error": "EACCES"}
# "hello\n" x 40 by the zstd of Debian 12: a frame whose content is no firmware.
ZSTD_FRAME = bytes.fromhex("28b52ffd04586500005068656c6c6f0a01005373bc")


def header(version: str, size: int = 32) -> bytes:
    major, minor, patch = (int(word) for word in version.split("."))
    words = [6, size, 0x10000, 0, 0x8086, 0, 9, 0, 0, 0, 0] + [0] * 5 + [major << 16 | minor << 8 | patch] + [0] * 15
    return struct.pack("<32I", *words)


def blob(data: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(data).decode()}


def running() -> str:
    found = gather(RecordedReader(replay.host(HOST)), subset=["kernel_log"]).kernel_log.events.value or ()
    return next(event.details["version"] for event in found if event.kind == "guc.loaded")


def read(files: dict[str, Any]) -> dict[str, Any]:
    recording = replay.changed(replay.host(HOST), {"files": {f"{FILE}.zst": None, **files}})
    found = next_boot.read(RecordedReader(recording)).guc_versions
    return {one.path: one.version for one in found.value or ()}


def judged(id: str, change: dict[str, Any]) -> Finding:
    report = replay.report(replay.changed(replay.host(HOST), change))
    (found,) = [one for one in report.findings if one.id == id]
    return found


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("bmg_guc_70.bin", header("70.54.0") + bytes(500)),
        ("bmg_guc_70.bin.xz", lzma.compress(header("70.54.0") + bytes(500))),
        ("bmg_guc_70.bin.zst", header("70.54.0")),  # as a recording keeps it
    ],
)
def test_the_version_stands_in_the_header(name: str, data: bytes) -> None:
    (version,) = read({f"/lib/firmware/xe/{name}": blob(data)}).values()
    assert version.value == "70.54.0"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (blob(header("70.54.0")[:100]), "not_understood"),
        (blob(header("70.54.0", size=33)), "not_understood"),
        (blob(lzma.compress(b"short")), "not_understood"),
        (blob(lzma.compress(header("70.54.0"))[:20]), "not_understood"),
        (blob(ZSTD_FRAME), "not_understood" if HAS_ZSTD else "tool_missing"),
        ("", "not_understood"),
        (REFUSED, "permission"),
        ({"error": "ENODATA"}, "io"),
    ],
)
def test_files_that_are_no_firmware_have_no_version(content: Any, reason: str) -> None:
    (version,) = read({FILE: content}).values()
    assert version.unread == reason


@pytest.mark.skipif(not HAS_ZSTD, reason="this Python has no zstd")
def test_a_file_compressed_with_zstd() -> None:
    zstd = importlib.import_module("compression.zstd")
    (version,) = read({f"{FILE}.zst": blob(zstd.compress(header("70.54.0") + bytes(500)))}).values()
    assert version.value == "70.54.0"


def test_the_file_that_the_driver_takes_is_the_plain_one_of_updates() -> None:
    files = {
        FILE: blob(header("70.1.0")),
        f"{FILE}.xz": blob(lzma.compress(header("70.2.0"))),
        "/lib/firmware/updates/xe/bmg_guc_70.bin.xz": blob(lzma.compress(header("70.3.0"))),
    }
    assert [version.value for version in read(files).values()] == ["70.1.0"]
    files["/lib/firmware/updates/xe/bmg_guc_70.bin"] = blob(header("70.4.0"))
    assert [version.value for version in read(files).values()] == ["70.4.0"]
    del files[FILE], files["/lib/firmware/updates/xe/bmg_guc_70.bin"]
    assert [version.value for version in read(files).values()] == ["70.3.0"]


def test_another_version_on_disk_than_the_one_that_runs_is_told() -> None:
    found = judged("boot.firmware", {"files": {f"{FILE}.zst": blob(header("70.99.1"))}})
    assert (found.status.value, found.seen) == ("info", f"{FILE}.zst is 70.99.1, {running()} runs")
    same = judged("boot.firmware", {"files": {f"{FILE}.zst": blob(header(running()))}})
    assert (same.status.value, same.seen) == ("ok", f"bmg_guc_70.bin.zst {running()}")
    unread = judged("boot.firmware", {})
    assert (unread.status.value, unread.seen) == ("ok", "bmg_guc_70.bin.zst")


def test_a_recording_keeps_the_header_alone() -> None:
    data = lzma.compress(header("70.54.0") + bytes(range(256)) * 900)
    inner = RecordedReader(
        replay.changed(replay.host(HOST), {"files": {f"{FILE}.zst": None, f"{FILE}.xz": blob(data)}})
    )
    recorder = Recorder(inner)
    before = next_boot.read(recorder)
    kept = recorder.recording(0.0)["files"][f"{FILE}.xz"]
    assert len(base64.b64decode(kept["base64"])) == 128
    again = RecordedReader(json.loads(dump(recorder.recording(0.0))))
    assert next_boot.read(again).guc_versions == before.guc_versions


# -- the initrd ---------------------------------------------------------------------------------------


def stat(changed: int) -> dict[str, Any]:
    return {"mode": "100644", "uid": 0, "gid": 0, "rdev": [0, 0], "changed": changed}


def times(initrd: int | None, firmware: int, module: int) -> dict[str, Any]:
    stats = {f"{FILE}.zst": stat(firmware), XE: stat(module)}
    if initrd is not None:
        stats[INITRD] = stat(initrd)
    return {"stats": stats, "files": {XE: {"error": "ENODATA"}}}


DAY = 86_400


@pytest.mark.parametrize(
    ("change", "status", "seen"),
    [
        (times(9 * DAY, 8 * DAY, 8 * DAY), "ok", "initrd.img"),
        (times(9 * DAY, 9 * DAY + 3600, 9 * DAY), "ok", "initrd.img"),
        (times(9 * DAY, 9 * DAY + 3601, 9 * DAY), "warn", f"{INITRD} is older than {FILE}.zst, which it may hold"),
        (times(9 * DAY, 9 * DAY, 10 * DAY), "warn", f"older than {XE}"),
        (times(None, 9 * DAY, 10 * DAY), "ok", "initrd.img"),
        (times(0, 9 * DAY, 10 * DAY), "ok", "initrd.img"),
    ],
)
def test_an_initrd_that_is_older_than_what_it_holds(change: dict[str, Any], status: str, seen: str) -> None:
    found = judged("boot.initrd", change)
    assert found.status.value == status
    assert seen in found.seen
    assert ("update-initramfs -u" in found.next_step) == (status == "warn")


def test_a_host_without_xe_needs_no_new_initrd() -> None:
    change = times(9 * DAY, 10 * DAY, 10 * DAY)
    bound = [path for path in replay.host(HOST)["links"] if path.endswith(("03:00.0/driver", "e3:00.0/driver"))]
    change["links"] = dict.fromkeys(bound, "../../../../../bus/pci/drivers/vfio-pci")
    report = replay.report(replay.changed(replay.host(HOST), change))
    assert [one.status.value for one in report.findings if one.id == "boot.initrd"] == ["ok"]


def test_the_screen_of_the_next_boot_tells_both() -> None:
    def rows(change: dict[str, Any]) -> str:
        recording = replay.changed(replay.host(HOST), change)
        return screen.render(gather(RecordedReader(recording)), "host").plain

    newer = {f"{FILE}.zst": blob(header("70.99.1"))}
    assert f"!            {FILE}.zst is 70.99.1, {running()} runs" in rows({"files": newer})
    stale = times(9 * DAY, 10 * DAY, 9 * DAY)
    stale["files"] = {**stale["files"], **newer}
    assert "and the initrd is older than the file" in rows(stale)
