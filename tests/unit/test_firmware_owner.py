"""Whose a GuC file is: a package's as it installed it, somebody's over it, nobody's; and what is recorded of it."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from hostcheck.assess import facts_from
from hostcheck.expectations import Refused, expectation
from hostcheck.findings import Finding
from hostcheck.onhost.gather import Facts, gather
from hostcheck.onhost.plain import to_plain
from hostcheck.onhost.reader import LiveReader, Reader
from hostcheck.onhost.readings import firmware_files, packages
from hostcheck.onhost.readings.firmware_files import Owner
from hostcheck.onhost.recording import RecordedReader, Recorder, below, dump, load
from hostcheck.onhost.redact import Redactor
from tests import replay

HOST = "two-card-gen5"
FILE = "/lib/firmware/xe/bmg_guc_70.bin.zst"
LIST = "/var/lib/dpkg/info/linux-firmware.md5sums"
DIVERSIONS = "/var/lib/dpkg/diversions"
OTHER = "md5-00112233445566778899aabbccddeeff"
REFUSED: dict[str, Any] = {"error": "EACCES"}


def facts(change: dict[str, Any] | None = None) -> Facts:
    return gather(RecordedReader(replay.changed(replay.host(HOST), change or {})))


def judged(change: dict[str, Any], expect: dict[str, Any] | None = None) -> Finding:
    report = replay.report(replay.changed(replay.host(HOST), change), expect)
    (found,) = [one for one in report.findings if one.id == "fw.guc_ownership"]
    return found


def owner_of(reader: Reader) -> Owner:
    found = gather(reader, subset=["firmware_files"]).firmware_files.guc
    assert found.value is not None, found
    (one,) = found.value
    return one


def test_a_file_as_its_package_installed_it() -> None:
    found = judged({})
    assert (found.status.value, found.subject.name) == ("ok", FILE)
    assert found.seen == "as linux-firmware installed it"


def tree(root: Path, content: bytes, listed: bytes, path: str = "usr/lib/firmware/xe/bmg_guc_70.bin") -> LiveReader:
    """A host whose /lib is a link, with a GuC file and dpkg's list of it."""
    (root / "usr/lib/firmware/xe").mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    (root / "usr/lib/firmware/xe/bmg_guc_70.bin").write_bytes(content)
    info = root / "var/lib/dpkg/info"
    info.mkdir(parents=True)
    (info / "dpkg.md5sums").write_text(f"{'0' * 32}  usr/bin/dpkg\n")
    lines = [f"{'1' * 32}  usr/share/doc/x", f"{hashlib.md5(listed).hexdigest()}  {path}", f"{'2' * 32}  lib/y"]
    (info / "firmware-intel-graphics.md5sums").write_text("\n".join(lines) + "\n")
    (info / "secret-package.md5sums").write_text("not looked at\n")
    return LiveReader(str(root))


@pytest.mark.parametrize("path", ["usr/lib/firmware/xe/bmg_guc_70.bin", "lib/firmware/xe/bmg_guc_70.bin"])
def test_paths_are_the_same_with_and_without_usr(tmp_path: Path, path: str) -> None:
    one = owner_of(tree(tmp_path, b"guc", b"guc", path))
    assert (one.package, one.installed == one.digest.value) == ("firmware-intel-graphics", True)


def test_a_name_that_is_a_link_is_that_of_the_file_behind_it(tmp_path: Path) -> None:
    recorder = Recorder(tree(tmp_path, b"guc", b"guc"))
    (tmp_path / "usr/lib/firmware/xe/lnl_guc_70.bin").symlink_to("bmg_guc_70.bin")
    found = gather(recorder, subset=["firmware_files"]).firmware_files.guc.value or ()
    assert [(one.path, one.package, one.digest.value == one.installed) for one in found] == [
        ("/lib/firmware/xe/bmg_guc_70.bin", "firmware-intel-graphics", True),
        ("/lib/firmware/xe/lnl_guc_70.bin", "firmware-intel-graphics", True),
    ]
    again = gather(RecordedReader(recorder.recording(0.0)), subset=["firmware_files"])
    assert again.firmware_files.guc.value == found


def test_a_recording_replays_the_owner_and_keeps_neither_the_blob_nor_the_rest_of_the_lists(tmp_path: Path) -> None:
    recorder = Recorder(tree(tmp_path, b"changed" * 999, b"guc"))
    before = owner_of(recorder)
    assert before.digest.value == f"md5-{hashlib.md5(b'changed' * 999).hexdigest()}" != before.installed
    recording = Redactor().recording(recorder.recording(0.0))
    text = dump(recording)
    assert "secret-package" not in text
    assert "lib/y" not in text
    assert len(text) < 4000
    assert owner_of(RecordedReader(load(text))) == before


def test_a_recording_that_is_laid_out_gives_the_recorded_digest(tmp_path: Path) -> None:
    replay.lay_out(replay.host(HOST), tmp_path)
    assert owner_of(below(str(tmp_path))) == owner_of(RecordedReader(replay.host(HOST)))


def test_an_older_recording_has_no_digest_and_claims_nothing() -> None:
    found = judged({"calls": {f"md5 {FILE}": None}})
    assert (found.status.value, found.seen) == ("unknown", "not_asked: no digest of it is in the recording")
    assert found.next_step == "dpkg --verify linux-firmware"


@pytest.mark.parametrize(
    ("who", "status", "seen"),
    [
        (":", "info", f"belongs to no package of firmware ({OTHER}); diverted by a person (dpkg-divert)"),
        ("xe-firmware-next", "warn", f"belongs to no package of firmware ({OTHER})"),
        ("linux-firmware", "warn", f"is not what linux-firmware installed ({OTHER})"),
    ],
)
def test_a_name_that_is_diverted(who: str, status: str, seen: str) -> None:
    lines = f"/usr{FILE}\n/usr{FILE}.distrib\n{who}\n/usr/bin/x\n/usr/bin/x.real\ny\n"
    found = judged({"files": {DIVERSIONS: lines}, "calls": {f"md5 {FILE}": OTHER}})
    assert (found.status.value, found.seen) == (status, seen)


@pytest.mark.parametrize("declared", [FILE, OTHER])
def test_a_declared_file(declared: str) -> None:
    changed = {"calls": {f"md5 {FILE}": OTHER}}
    assert judged(changed, {"guc": {"overrides": [declared]}}).status.value == "info"
    assert judged(changed, {"guc": {"overrides": [f"{declared[:-1]}0"]}}).status.value == "warn"


@pytest.mark.parametrize("declared", ["bmg_guc_70.bin", "md5-12", "/etc/passwd", 7])
def test_a_declaration_that_names_nothing_is_refused(declared: Any) -> None:
    with pytest.raises(Refused, match=r"guc\.overrides"):
        expectation({"guc": {"overrides": [declared]}})


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({LIST: REFUSED}, "permission"),
        ({LIST: "garbage\n"}, "not_understood"),
        ({LIST: ""}, "not_understood"),
        ({DIVERSIONS: REFUSED}, "permission"),
        ({DIVERSIONS: "one\ntwo\n"}, "not_understood"),
        ({LIST: None}, "absent"),
        ({"/var/lib/dpkg/info": REFUSED, LIST: None}, "permission"),
        ({FILE: REFUSED}, "permission"),
    ],
)
def test_what_cannot_be_read_is_unknown(files: dict[str, Any], reason: str) -> None:
    found = judged({"files": files})
    assert (found.status.value, found.seen.partition(":")[0]) == ("unknown", reason)


@pytest.mark.parametrize("value", ["md5-12", "garbage", 7, ["x"], {"a": 1}])
def test_a_recorded_digest_that_is_none(value: Any) -> None:
    found = judged({"calls": {f"md5 {FILE}": value}})
    assert (found.status.value, found.seen.partition(":")[0]) == ("unknown", "not_understood")


def test_without_diversions_there_are_none() -> None:
    assert judged({"files": {DIVERSIONS: None}}).status.value == "ok"


def test_a_file_that_no_list_has_belongs_to_nobody() -> None:
    found = judged({"files": {LIST: f"{'1' * 32}  usr/share/doc/x\n"}})
    assert (found.status.value, found.seen.partition(" (")[0]) == ("warn", "belongs to no package of firmware")
    assert found.next_step.startswith(f"dpkg -S {FILE}")


def test_a_file_that_hides_the_one_of_the_package_is_told_with_it() -> None:
    plain = FILE.removesuffix(".zst")
    change = {"files": {plain: {"error": "ENODATA"}}, "calls": {f"md5 {plain}": OTHER}}
    report = replay.report(replay.changed(replay.host(HOST), change))
    (found,) = [one for one in report.findings if one.id == "boot.firmware"]
    assert [(one.id, one.status.value) for one in found.explains] == [("fw.guc_ownership", "warn")]


def test_a_host_without_such_a_card() -> None:
    report = replay.report(replay.host("nvidia-host"))
    assert [one.status.value for one in report.findings if one.id == "fw.guc_ownership"] == ["not_applicable"]


# -- rpm ----------------------------------------------------------------------------------------------

XZ = "/lib/firmware/xe/bmg_guc_70.bin.xz"
SHA, OTHER_SHA = "a1" * 32, "sha256-" + "b2" * 32
LISTED = (
    f"intel-gpu-firmware\t/usr/lib/firmware/i915/adlp_guc_70.bin.xz\t{'c3' * 32}\n"
    "intel-gpu-firmware\t/usr/lib/firmware/xe\t\n"
    f"intel-gpu-firmware\t/usr{XZ}\t{SHA}\n"
    f"intel-gpu-firmware\t/usr/share/licenses/x\t{'d4' * 32}\n"
    "package kernel-firmware is not installed\n"
)


def rpm_host(stdout: str | None = LISTED, digest: str = f"sha256-{SHA}") -> dict[str, Any]:
    """A change that makes the host one of rpm."""
    listed = "rpm\tv4.20.1-1.fc42\nlinux-firmware\tv20250812-1.fc42\n"
    answer = None if stdout is None else {"rc": 4, "stdout": stdout, "stderr": ""}
    return {
        "remove": ["/var/lib/dpkg", FILE],
        "files": {XZ: {"error": "ENODATA"}},
        "calls": {f"sha256 {XZ}": digest},
        "commands": {
            shlex.join(packages.DPKG): None,
            shlex.join(packages.RPM): {"rc": 9, "stdout": listed, "stderr": ""},
            shlex.join(firmware_files.RPM): answer,
        },
    }


def test_a_host_of_rpm() -> None:
    found = judged(rpm_host())
    assert (found.status.value, found.seen) == ("ok", "as intel-gpu-firmware installed it")
    other = judged(rpm_host(digest=OTHER_SHA))
    assert (other.status.value, other.seen) == ("warn", f"is not what intel-gpu-firmware installed ({OTHER_SHA})")
    assert other.next_step.startswith("sudo dnf reinstall intel-gpu-firmware")
    assert judged(rpm_host(digest=OTHER_SHA), {"guc": {"overrides": [OTHER_SHA]}}).status.value == "info"
    nobody = judged(rpm_host(LISTED.replace("bmg_guc", "lnl_guc")))
    assert (nobody.status.value, nobody.next_step.startswith(f"rpm -qf {XZ}")) == ("warn", True)


@pytest.mark.parametrize(
    ("stdout", "reason"),
    [
        (None, "tool_missing"),
        ("", "not_understood"),
        ("package linux-firmware is not installed\n", "not_understood"),
        ("error: cannot open Packages database\n", "not_understood"),
        (f"intel-gpu-firmware\t{XZ}\tnot hexadecimal\n", "not_understood"),
    ],
)
def test_rpm_that_does_not_answer_claims_nothing(stdout: str | None, reason: str) -> None:
    found = judged(rpm_host(stdout))
    assert (found.status.value, found.seen.partition(":")[0]) == ("unknown", reason)


def test_a_recording_of_a_host_of_rpm_keeps_the_lines_of_xe() -> None:
    recorder = Recorder(RecordedReader(replay.changed(replay.host(HOST), rpm_host())))
    before = owner_of(recorder)
    recording = Redactor().recording(recorder.recording(0.0))
    kept = recording["commands"][shlex.join(firmware_files.RPM)]["stdout"]
    assert "/usr/share/licenses/x" not in kept
    assert "kernel-firmware is not installed" in kept
    assert owner_of(RecordedReader(load(dump(recording)))) == before


def test_facts_of_an_older_version_have_no_such_group() -> None:
    data = json.loads(json.dumps(to_plain(facts())))
    del data["firmware_files"]
    found = facts_from(data).firmware_files.guc
    assert (found.unread, found.detail) == ("not_asked", "not read by this version")
