"""Where the journal is kept and when it is written, and a file system that does not outlive a crash."""

from __future__ import annotations

from typing import Any

import pytest

from hostcheck.findings import Finding
from hostcheck.onhost.gather import gather
from hostcheck.onhost.readings import journald
from hostcheck.onhost.readings.journald import Journald, parse_seconds
from hostcheck.onhost.recording import RecordedReader, Recorder, empty
from tests import replay

HOST = "two-card-gen5"
CONF = "/etc/systemd/journald.conf"
REFUSED = {"error": "EACCES"}


def read(files: dict[str, Any]) -> Journald:
    return journald.read(RecordedReader({**empty(0.0), "files": files}))


def judged(files: dict[str, Any], remove: tuple[str, ...] = ()) -> Finding:
    report = replay.report(replay.changed(replay.host(HOST), {"files": files, "remove": remove}))
    (found,) = [one for one in report.findings if one.id == "storage.evidence_fs"]
    return found


@pytest.mark.parametrize("text", ["", "soon", "-5", "5 parsecs", "infinity", "1" * 500 + "!", "5m;"])
def test_no_time_span(text: str) -> None:
    with pytest.raises(ValueError, match="time span"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("files", "on_disk", "seconds"),
    [
        ({"/run/log/journal/": ""}, False, 300),
        ({"/var/log/journal/": ""}, True, 300),
        ({CONF: "[Journal]\n#Storage=volatile\n", "/var/log/journal/": ""}, True, 300),
        ({CONF: "[Journal]\nStorage=volatile\n", "/var/log/journal/": ""}, False, 300),
        ({CONF: "[Journal]\nStorage = Persistent\nSyncIntervalSec=30s\n"}, True, 30),
        ({CONF: "[Journal]\nStorage=\nSyncIntervalSec=\n", "/var/log/journal/": ""}, True, 300),
        ({"/usr/lib/systemd/journald.conf": "[Journal]\nStorage=persistent\n"}, True, 300),
        (
            {
                "/usr/lib/systemd/journald.conf": "[Journal]\nStorage=persistent\n",
                CONF: "[Journal]\n",
                "/run/log/journal/": "",
            },
            False,
            300,
        ),
        (
            {
                CONF: "[Journal]\nStorage=none\n",
                f"{CONF}.d/90-disk.conf": "[Journal]\nStorage=persistent\n",
                "/usr/lib/systemd/journald.conf.d/90-disk.conf": "[Journal]\nStorage=volatile\n",
                "/usr/lib/systemd/journald.conf.d/50-vendor.conf": "[Journal]\nStorage=none\nSyncIntervalSec=1min\n",
            },
            True,
            60,
        ),
    ],
)
def test_settings_by_their_rank(files: dict[str, Any], on_disk: bool, seconds: float) -> None:
    found = read(files)
    assert (found.on_disk.value, found.sync_seconds.value) == (on_disk, seconds)


@pytest.mark.parametrize(
    ("files", "on_disk", "sync"),
    [
        ({}, "absent", None),  # no journal at all, or none that was recorded
        ({CONF: REFUSED}, "permission", "permission"),
        ({CONF: "garbage\n"}, "not_understood", "not_understood"),
        ({f"{CONF}.d/x.conf": REFUSED}, "permission", "permission"),
        ({CONF: "[Journal]\nStorage=maybe\n"}, "not_understood", None),
        ({CONF: "[Journal]\nSyncIntervalSec=soon\n", "/var/log/journal/": ""}, None, "not_understood"),
        ({"/var/log/journal": REFUSED}, "permission", None),
    ],
)
def test_what_cannot_be_read(files: dict[str, Any], on_disk: str | None, sync: str | None) -> None:
    found = read(files)
    assert (found.on_disk.unread, found.sync_seconds.unread) == (on_disk, sync)


def test_a_recording_keeps_two_settings() -> None:
    text = "[Journal]\nForwardToSyslog=yes\nStorage=persistent\n"
    recorder = Recorder(RecordedReader({**empty(0.0), "files": {CONF: text}}))
    before = gather(recorder, subset=["journald"]).journald
    recording = recorder.recording(0.0)
    assert recording["files"][CONF] == "[Journal]\nStorage=persistent\n"
    assert journald.read(RecordedReader(recording)) == before


ROOT = "27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"


@pytest.mark.parametrize(
    ("mount", "status", "seen"),
    [
        ("", "ok", "ext4 on nvme0n1"),
        ("28 27 259:3 / /var/log rw - ntfs3 /dev/sda1 rw\n", "warn", "/var/log/journal is on ntfs3 on /dev/sda1"),
        ("28 27 259:3 / /var ro - ext4 /dev/sda1 ro\n", "warn", "/var/log/journal is on ext4 on /dev/sda1, read-only;"),
        ("28 27 0:44 / /var/log rw - tmpfs tmpfs rw\n", "info", "/var/log/journal is in memory"),
        ("28 27 259:3 / /var/lib/hostcheck rw - vfat /dev/sda1 rw\n", "warn", "/var/lib/hostcheck is on vfat"),
        ("28 27 259:3 / /var/logs rw - ntfs3 /dev/sda1 rw\n", "ok", "ext4 on nvme0n1"),
    ],
)
def test_the_file_system_of_evidence(mount: str, status: str, seen: str) -> None:
    found = judged({"/proc/self/mountinfo": ROOT + mount})
    assert (found.status.value, found.seen.startswith(seen)) == (status, True), found.seen


def test_a_journal_in_memory_is_told_and_one_that_cannot_be_read_is_unknown() -> None:
    found = judged({"/run/log/journal/": ""}, remove=("/var/log/journal",))
    assert (found.status.value, found.seen) == ("info", "the journal is kept in memory and gone with the boot")
    assert judged({}, remove=("/var/log/journal",)).status.value == "unknown"
    assert judged({CONF: REFUSED}).status.value == "unknown"
    assert judged({"/proc/self/mountinfo": REFUSED}).status.value == "unknown"
    assert "after 300 s at the latest" in judged({}).seen
