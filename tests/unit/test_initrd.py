"""What an initrd holds of xe: archives of every form and compression, broken ones, and what is said about them."""

from __future__ import annotations

import base64
import bz2
import gzip
import json
import lzma
import os
import random
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.assess import assess
from hostcheck.cli import main
from hostcheck.expectations import expectation
from hostcheck.findings import Finding
from hostcheck.onhost.gather import GROUPS, Options, gather
from hostcheck.onhost.reader import LiveReader, Opened, Reader, Reading
from hostcheck.onhost.readings import initrd
from hostcheck.onhost.record import record
from hostcheck.onhost.recording import RecordedReader, Recorder, below, dump, empty, load
from hostcheck.report import next_boot as screen
from tests import replay

from .test_firmware_files import FILE, HAS_ZSTD, KERNEL, blob, header, times

HOST = "two-card-gen5"
RUNS = "70.54.0"  # GuC of that host, by its log
INITRD = f"/boot/initrd.img-{KERNEL}"
XE = f"usr/lib/modules/{KERNEL}/kernel/drivers/gpu/drm/xe/xe.ko.zst"
GUC = "xe/bmg_guc_70.bin"
IN_IT = f"usr/lib/firmware/{GUC}"
FILE_MODE, LINK, FOLDER = stat.S_IFREG | 0o644, stat.S_IFLNK | 0o777, stat.S_IFDIR | 0o755
LZ4 = b"\x02\x21\x4c\x18"  # no Python has it, so a tool is asked


def newc(
    name: str,
    data: bytes = b"",
    mode: int = FILE_MODE,
    inode: int = 0,
    links: int = 1,
    magic: bytes = b"070701",
    **odd: int,
) -> bytes:
    """One file of an archive by the kernel's documentation. odd: fields that are to be wrong."""
    own = name.encode() + b"\0"
    fields = {
        "inode": inode, "mode": mode, "uid": 0, "gid": 0, "links": links, "mtime": 0, "size": len(data), "major": 0,
        "minor": 0, "rmajor": 0, "rminor": 0, "name_size": len(own), "check": 0, **odd,
    }  # fmt: skip
    head = magic + b"".join(b"%08X" % value for value in fields.values()) + own
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)


END = newc("TRAILER!!!")


def image(version: str | None = "70.54.0", *more: bytes, xe: bool = True) -> bytes:
    """An initrd with xe and one GuC file, and noise around them."""
    parts = [
        newc(".", mode=FOLDER),
        newc("usr/lib/modules/x/kernel/fs/nfs.ko", b"n" * 999),
        newc("init", b"#!/bin/sh\n"),
    ]
    if xe:
        parts.append(newc(XE, b"\x7fELF" * 33))
    if version is not None:
        parts.append(newc(IN_IT, header(version) + bytes(5001)))
    return b"".join((*parts, *more, END))


def found(data: bytes, reader: Reader | None = None, path: str = "/boot/i") -> Reading[dict[str, initrd.Member]]:
    reader = reader or RecordedReader({**empty(0), "files": {path: blob(data)}})
    return initrd.read_file(reader, path, initrd.Budget(time.monotonic() + 60))


def versions(data: bytes, reader: Reader | None = None) -> dict[str, Any]:
    """Name -> version, or the reason why there is none."""
    files = found(data, reader)
    assert files.value is not None, files
    read = {name: initrd.followed(files.value, path) for name, path in initrd.taken(files.value).items()}
    return {
        name: one.then(initrd.parse_css_header).value or one.unread or "not_understood" for name, one in read.items()
    }


def tree(root: Path, data: bytes, tool: str = "", script: str = "exec tail -c +5") -> LiveReader:
    """A directory with an initrd, and a tool that takes four bytes off the front unless told otherwise."""
    (root / "boot").mkdir()
    (root / "boot/i").write_bytes(data)
    if tool:
        (root / "usr/bin").mkdir(parents=True)
        (root / "usr/bin" / tool).write_text(f"#!/bin/sh\n{script}\n")
        (root / "usr/bin" / tool).chmod(0o755)
    return LiveReader(str(root))


# -- forms -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pack",
    [
        bytes,
        gzip.compress,
        bz2.compress,
        lzma.compress,
        lambda data: lzma.compress(data, lzma.FORMAT_XZ, lzma.CHECK_CRC32),  # as the kernel wants it
        lambda data: lzma.compress(data, lzma.FORMAT_ALONE),
    ],
    ids=["plain", "gzip", "bzip2", "xz", "xz-crc32", "lzma"],
)
def test_every_compression_of_the_standard_library(pack: Callable[[bytes], bytes]) -> None:
    data = image("70.44.1", newc("lib/firmware/i915/noise.bin", random.Random(3).randbytes(900_000)))
    assert versions(pack(data)) == {GUC: "70.44.1"}
    assert {path for path in found(pack(data)).value or {} if initrd.MODULE.fullmatch(path)} == {XE[4:]}


@pytest.mark.skipif(shutil.which("zstd") is None, reason="zstd is not installed")
def test_zstd_as_mkinitramfs_packs_it(tmp_path: Path) -> None:
    frame = subprocess.run(["zstd", "-q", "-19", "-c"], input=image("70.44.1"), capture_output=True, check=True).stdout
    early = newc("kernel/x86/microcode/A.bin", b"m" * 300) + END
    (tmp_path / "i").write_bytes(early + bytes(-len(early) % 512) + frame)
    assert versions(b"", _At(LiveReader(), str(tmp_path / "i"))) == {GUC: "70.44.1"}


class _At(LiveReader):
    """This machine, with one file at another place."""

    def __init__(self, _: LiveReader, path: str) -> None:
        super().__init__()
        self._path = path

    def opened(self, path: str) -> Reading[Opened]:
        return super().opened(self._path)


@pytest.mark.skipif(shutil.which("cpio") is None, reason="cpio is not installed")
@pytest.mark.parametrize("form", ["newc", "crc"])
def test_an_archive_of_the_tool_cpio(form: str, tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib/firmware/xe"
    folder.mkdir(parents=True)
    (folder / "bmg_guc_70.54.0.bin").write_bytes(header("70.54.0") + bytes(777))
    os.link(folder / "bmg_guc_70.54.0.bin", folder / "lnl_guc_70.bin")
    (folder / "bmg_guc_70.bin").symlink_to("bmg_guc_70.54.0.bin")
    names = "\n".join(sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")))
    ran = subprocess.run(
        ["cpio", "-o", "-H", form, "--quiet"], input=names.encode(), cwd=tmp_path, capture_output=True, check=True
    )
    assert versions(ran.stdout) == dict.fromkeys((GUC, "xe/bmg_guc_70.54.0.bin", "xe/lnl_guc_70.bin"), "70.54.0")


def test_the_parts_of_an_initrd_follow_one_another_and_the_last_one_wins() -> None:
    early = newc("kernel/x86/microcode/AuthenticAMD.bin", b"m" * 301, magic=b"070702") + END
    parts = [early, bytes(512), gzip.compress(image("70.1.0")), bytes(3), lzma.compress(image("70.2.0", xe=False))]
    data = b"".join(parts)
    assert versions(data) == {GUC: "70.2.0"}
    assert versions(data + bytes(-len(data) % 4) + image("70.3.0", xe=False) + bytes(9000)) == {GUC: "70.3.0"}
    assert versions(gzip.compress(image("70.1.0") + bytes(700) + image("70.4.0"))) == {GUC: "70.4.0"}


@pytest.mark.parametrize("name", [IN_IT, f"lib/firmware/{GUC}", f"./{IN_IT}", f"/usr//lib/./firmware/{GUC}"])
def test_names_of_the_same_file(name: str) -> None:
    assert versions(newc(name, header("70.54.0")) + END) == {GUC: "70.54.0"}


@pytest.mark.parametrize(
    ("paths", "taken"),
    [
        ((f"{GUC}.zst", f"{GUC}.xz", GUC), GUC),
        ((f"{GUC}.zst", f"{GUC}.xz"), f"{GUC}.zst"),
        ((f"updates/{GUC}", GUC), f"updates/{GUC}"),
        ((f"updates/{GUC}.zst", GUC), GUC),
        ((f"updates/{KERNEL}/{GUC}", f"updates/{GUC}", f"{KERNEL}/{GUC}"), f"updates/{KERNEL}/{GUC}"),
        ((f"{KERNEL}/{GUC}", GUC), f"{KERNEL}/{GUC}"),
        (("xe/bmg_huc.bin", "xe/bmg_guc_70.txt", "amdgpu/x_guc_1.bin", f"more/{GUC}"), None),
    ],
)
def test_the_file_that_the_kernel_takes_of_a_name(paths: tuple[str, ...], taken: str | None) -> None:
    for order in (paths, paths[::-1]):
        files = {f"lib/firmware/{path}": initrd.Member() for path in order}
        assert initrd.taken(files) == ({GUC: f"lib/firmware/{taken}"} if taken else {})
    others = {f"lib/firmware/{path}": initrd.Member() for path in ("6.1.0/" + GUC, "updates/6.1.0/" + GUC)}
    assert initrd.taken(others, KERNEL) == {}


@pytest.mark.parametrize(
    ("target", "version"),
    [
        ("bmg_guc_70.54.0.bin", "70.54.0"),
        ("./../xe/bmg_guc_70.54.0.bin", "70.54.0"),
        ("/lib/firmware/xe/bmg_guc_70.54.0.bin", "70.54.0"),
        ("/usr/lib/firmware/xe/bmg_guc_70.54.0.bin", "70.54.0"),
        ("../../../../../../usr/lib/firmware/xe/bmg_guc_70.54.0.bin", "70.54.0"),
        ("gone_guc.bin", "not_understood"),
        ("bmg_guc_70.bin", "not_understood"),
        ("../../..", "not_understood"),
    ],
)
def test_symbolic_links(target: str, version: str) -> None:
    files = newc("lib/firmware/xe/bmg_guc_70.54.0.bin", header("70.54.0") + bytes(10))
    for order in ((newc(IN_IT, target.encode(), LINK), files), (files, newc(IN_IT, target.encode(), LINK))):
        assert versions(b"".join(order) + END)[GUC] == version


def test_a_name_that_goes_up_is_not_understood() -> None:
    for name in ("lib/firmware/xe/../xe/bmg_guc_70.bin", "../x", ".."):
        assert found(newc(name) + END).unread == "not_understood"


@pytest.mark.parametrize("size", [0, 5000])
def test_a_link_whose_target_has_no_sane_length(size: int) -> None:
    assert found(newc(IN_IT, b"t" * size, LINK) + END).unread == "not_understood"


def test_hard_links_have_their_content_with_one_of_the_names() -> None:
    def linked(name: str, data: bytes = b"", inode: int = 7) -> bytes:
        return newc(f"lib/firmware/xe/{name}_guc_70.bin", data, inode=inode, links=2)

    one, two = header("70.1.0") + bytes(3), header("70.2.0")
    same = {"xe/a_guc_70.bin": "70.1.0", "xe/b_guc_70.bin": "70.1.0"}
    assert versions(linked("a") + linked("b", one) + END) == same
    assert versions(linked("a", one) + linked("b") + END) == same
    other = {"xe/a_guc_70.bin": "not_understood", "xe/b_guc_70.bin": "70.1.0"}
    assert versions(linked("a", inode=8) + linked("b", one) + END) == other
    # each archive counts its inodes anew
    assert versions(linked("b", one) + END + linked("a") + END) == other
    assert versions(linked("b", one) + END + linked("a") + linked("b", two) + END) == dict.fromkeys(same, "70.2.0")
    hidden = newc("lib/firmware/blob", one, inode=7, links=2)
    assert versions(hidden + linked("a") + END) == {"xe/a_guc_70.bin": "70.1.0"}


# -- what is broken ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress, bz2.compress])
def test_one_that_is_cut_off_is_not_understood(pack: Callable[[bytes], bytes]) -> None:
    data = pack(image())
    ends = len(data) - (3 if pack is bytes else 0)  # the padding of the last name
    cuts = [*range(min(ends, 700)), *range(ends - 150, ends)]
    assert [cut for cut in cuts if found(data[:cut]).unread != "not_understood"] == []
    assert found(data).unread is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(4096),
        b"garbage" * 99,
        b"070707" + b"0" * 300,
        b"070701" + b" +1234_5" * 13 + b"x\0",
        newc("x", size=0xFFFFFFFF) + END,
        newc("x", name_size=0) + END,
        newc("x", name_size=0xFFFFFFFF) + END,
        newc("x", name_size=1) + END,
        newc("y" * 5000) + END,
        newc(IN_IT, header("70.1.0"), size=0xFFFFFFF0) + END,
        image() + b"behind",
        image() + bytes(8) + b"\x1f\x8b garbage",
        gzip.compress(b"no archive"),
        gzip.compress(image() + b"behind"),
        gzip.compress(b""),
        lzma.compress(image())[:-40] + bytes(40),
    ],
    ids=range(17),
)
def test_anything_else_is_not_understood(data: bytes) -> None:
    reading = found(data)
    assert (reading.value, reading.unread) == (None, "not_understood")
    assert len(reading.detail) <= 200


@given(st.binary(max_size=400), st.integers(0, 300))
def test_random_bytes_are_files_or_a_reason(noise: bytes, at: int) -> None:
    good = image()
    for data in (noise, good[:at] + noise + good[at + len(noise) :], gzip.compress(noise), good + noise):
        reading = found(data)
        assert reading.value is not None or reading.unread in ("not_understood", "tool_missing"), reading


def test_a_blob_that_is_too_large_or_no_firmware_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions(newc(IN_IT, b"garbage" * 99) + END) == {GUC: "not_understood"}
    assert versions(newc(IN_IT) + END) == {GUC: "not_understood"}
    assert versions(newc(f"{IN_IT}.xz", lzma.compress(header("70.3.0"))[:30]) + END) == {GUC: "not_understood"}
    monkeypatch.setattr(initrd, "BLOB_LIMIT", 200)
    more = newc("lib/firmware/xe/lnl_guc_70.bin", header("70.9.0"))
    assert versions(image("70.54.0", more)) == {GUC: "too_large", "xe/lnl_guc_70.bin": "70.9.0"}


def test_limits_on_bytes_files_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    data = gzip.compress(newc("x", bytes(3 << 20)) + END)
    monkeypatch.setattr(initrd, "MEMBERS_LIMIT", 1)
    assert found(image()).unread == "too_large"
    monkeypatch.undo()
    reader = RecordedReader({**empty(0), "files": {"/i": blob(data)}})
    now = time.monotonic()
    assert initrd.read_file(reader, "/i", initrd.Budget(now + 60, left=1 << 20)).unread == "too_large"
    assert initrd.read_file(reader, "/i", initrd.Budget(now - 1)).unread == "timeout"
    assert initrd.read_file(reader, "/i", initrd.Budget(now + 60)).unread is None


# -- by a tool ---------------------------------------------------------------------------------------------------------


def test_a_tool_unpacks_what_this_python_cannot(tmp_path: Path) -> None:
    early = newc("kernel/x86/microcode/A.bin", b"m" * 300) + END
    reader = tree(tmp_path, early + bytes(-len(early) % 512) + LZ4 + image("70.44.1"), "lz4")
    assert versions(b"", reader) == {GUC: "70.44.1"}


@pytest.mark.parametrize(
    ("data", "script", "reason"),
    [
        (image(), None, "tool_missing"),
        (image(), "echo corrupt >&2; exit 3", "exit"),
        (image(), "tail -c +5; exit 1", "exit"),
        (image(), "exit 127", "tool_missing"),
        (image()[:-60], "exec tail -c +5", "not_understood"),
        (image() + b"behind", "exec tail -c +5", "not_understood"),
        (b"garbage", "tail -c +5; exec tail -f /dev/null", "timeout"),
        (b"", "exec cat /dev/zero", "too_large"),
        (b"", "while :; do echo garbage; done", "not_understood"),
    ],
)
def test_a_tool_that_fails(data: bytes, script: str | None, reason: str, tmp_path: Path) -> None:
    reader = tree(tmp_path, LZ4 + data, "lz4" if script is not None else "", script or "")
    budget = initrd.Budget(time.monotonic() + (0.5 if reason == "timeout" else 60), left=4 << 20)
    reading = initrd.read_file(reader, "/boot/i", budget)
    assert (reading.value, reading.unread) == (None, reason), reading
    if reason == "tool_missing" and script is None:
        assert "lz4 is not installed" in reading.detail


def frame(data: bytes, flags: int = 0xA0, more: bytes = b"", block: int = 100_000) -> bytes:
    """A frame of zstd with its content as it is, in blocks (RFC 8878); 0xA0: its length stands in four bytes."""
    blocks = [data[at : at + block] for at in range(0, len(data), block)] or [b""]
    heads = [(len(one) << 3 | (number == len(blocks))).to_bytes(3, "little") for number, one in enumerate(blocks, 1)]
    size = len(data).to_bytes(4, "little") if flags & 0xC0 == 0x80 else b""
    return initrd.ZSTD + bytes([flags]) + more + size + b"".join(a + b for a, b in zip(heads, blocks, strict=True))


@pytest.mark.parametrize(
    ("flags", "more", "rest"),
    [(0xA0, b"", b""), (0xA4, b"", bytes(4)), (0x80, b"\x58", b""), (0xA3, bytes(4), b""), (0x00, b"\x58", b"")],
)
def test_a_frame_of_zstd_tells_its_end(flags: int, more: bytes, rest: bytes) -> None:
    for size in (0, 1, 100_000, 250_000):
        data = bytes(77) + frame(bytes(size), flags, more) + rest
        assert initrd.zstd_end(Opened(data + b"behind" * 9), 77) == len(data)
        for cut in (78, 81, 82, 84, len(data) - 1):
            with pytest.raises(ValueError, match="ends inside"):
                initrd.zstd_end(Opened(data[:cut]), 77)


@pytest.mark.skipif(shutil.which("zstd") is None, reason="zstd is not installed")
@pytest.mark.parametrize("options", [["-1"], ["-19"], ["--no-check"], ["-3", "--long"]])
def test_a_frame_of_the_tool_zstd_tells_its_end(options: list[str]) -> None:
    for data in (random.Random(5).randbytes(300_000), bytes(900_000), b"", b"x" * 200):
        packed = subprocess.run(["zstd", "-q", "-c", *options], input=data, capture_output=True, check=True).stdout
        assert initrd.zstd_end(Opened(bytes(9) + packed + b"behind"), 9) == 9 + len(packed)


@given(st.binary(max_size=60))
def test_random_bytes_have_an_end_or_none(data: bytes) -> None:
    reading = Reading(data, "x").then(lambda one: initrd.zstd_end(Opened(one), 0))
    assert reading.detail == "ends inside its compressed part" or 0 < (reading.value or 0) <= len(data)


def test_what_follows_a_frame_of_zstd_is_read_too(tmp_path: Path) -> None:
    one = image("70.1.0")
    zeros = frame(one, block=120_000) + bytes(300)
    # takes the header of the frame and of its one block away, then complains about what follows, as the tool does
    reader = tree(tmp_path, zeros, "zstd", f"tail -c +13 | head -c {len(one)}; echo unsupported >&2; exit 1")
    assert versions(b"", reader) == {GUC: "70.1.0"}
    (tmp_path / "boot/i").write_bytes(zeros + bytes(-len(zeros) % 4) + image("70.2.0", xe=False))
    assert versions(b"", reader) == {GUC: "70.2.0"}
    (tmp_path / "boot/i").write_bytes(zeros + b"behind")
    assert found(b"", reader).unread == "not_understood"
    if not HAS_ZSTD:
        (tmp_path / "boot/i").write_bytes(frame(one, block=120_000))
        assert found(b"", reader).unread == "exit"  # nothing follows that it could complain about


@pytest.mark.skipif(HAS_ZSTD, reason="this Python has zstd")
@pytest.mark.parametrize(
    ("script", "version"),
    [
        ("exec tail -c +5", "70.44.1"),
        ("tail -c +5; exec tail -f /dev/null", "70.44.1"),  # the rest is not waited for
        ("tail -c +5 | head -c 20", "not_understood"),
        ("exit 1", "not_understood"),
        (None, "tool_missing"),
    ],
)
def test_a_blob_that_only_a_tool_unpacks(script: str | None, version: str, tmp_path: Path) -> None:
    packed = b"\x28\xb5\x2f\xfd" + header("70.44.1") + bytes(100_000)
    data = newc(f"{IN_IT}.zst", packed) + END
    reader = tree(tmp_path, data, "zstd" if script else "", script or "")
    recorder = Recorder(reader)
    assert versions(b"", recorder) == {GUC: version}
    assert versions(b"", RecordedReader(load(dump(recorder.recording(0.0))))) == {GUC: version}


# -- the whole reading -------------------------------------------------------------------------------------------------


def changed(data: bytes | Any | None = None, more: dict[str, Any] | None = None, **change: Any) -> dict[str, Any]:
    """The host with an initrd, and the GuC file on disk of the version that runs."""
    content = blob(data) if isinstance(data, bytes) else data
    files = {f"{FILE}.zst": blob(header(RUNS)), **({INITRD: content} if data is not None else {}), **(more or {})}
    return replay.changed(replay.host(HOST), {"files": files, **change})


def read(recording: dict[str, Any], asked: bool = True) -> initrd.Initrd:
    return gather(RecordedReader(recording), Options(initrd=asked), ["initrd"]).initrd


def test_what_the_host_holds_and_has() -> None:
    reading = read(changed(image("70.44.1"), stats={"/usr/bin/dracut": stat_of(0o100755)}))
    assert reading.modules.value == (XE[4:],)
    assert reading.modules.source == INITRD
    (one,) = reading.guc.value or ()
    assert (one.name, one.path, one.version.value, one.on_disk.value) == (GUC, IN_IT[4:], "70.44.1", RUNS)
    assert one.on_disk.source == f"{FILE}.zst"
    assert reading.maker.value == "dracut"
    assert read(changed(image("70.44.1"))).maker.unread == "absent"


def stat_of(mode: int) -> dict[str, Any]:
    return {"mode": f"{mode:o}", "uid": 0, "gid": 0, "rdev": [0, 0]}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"error": "EACCES"}, "permission"),
        ({"error": "EIO"}, "io"),
        ({"error": "ENODATA"}, "io"),
        ("garbage", "not_understood"),
        (LZ4 + image(), "tool_missing"),
        (image()[:-9], "not_understood"),
    ],
)
def test_one_that_cannot_be_read_claims_nothing(content: Any, reason: str) -> None:
    reading = read(changed(content))
    assert (reading.modules.unread, reading.guc.unread) == (reason, reason)


def test_it_is_unread_where_the_entry_its_files_or_the_menu_are_not_there() -> None:
    assert read(changed(None, remove=[INITRD])).guc.unread == "absent"
    menu = replay.host(HOST)["files"]["/boot/grub/grub.cfg"]
    without = "\n".join(line for line in menu.splitlines() if "initrd\t" not in line)
    assert read(changed(image(), {"/boot/grub/grub.cfg": without})).guc.detail == "the entry loads no initrd"
    assert read(changed(image(), {"/boot/grub/grub.cfg": {"error": "EACCES"}})).guc.unread == "permission"
    assert read(changed(image(), {"/boot": {"error": "EACCES"}})).guc.unread == "permission"


def test_one_of_two_files_that_is_not_read_leaves_all_unread() -> None:
    menu = replay.host(HOST)["files"]["/boot/grub/grub.cfg"].replace("initrd\t", "initrd\t/early.img $tuned_initrd ")
    both = read(changed(image(), {"/boot/grub/grub.cfg": menu, "/boot/early.img": blob(newc("x") + END)}))
    assert both.guc.source == f"/boot/early.img, {INITRD}"
    refused = read(changed(image(), {"/boot/grub/grub.cfg": menu, "/boot/early.img": {"error": "EACCES"}}))
    assert (refused.modules.unread, refused.modules.source) == ("permission", "/boot/early.img")


def test_it_is_read_only_where_it_is_asked_for_and_a_card_is_there() -> None:
    assert read(changed(image()), asked=False).guc.unread == "not_asked"
    bound = [path for path in replay.host(HOST)["links"] if path.endswith(("03:00.0/driver", "e3:00.0/driver"))]
    i915 = changed(image(), links=dict.fromkeys(bound, "../../../../../bus/pci/drivers/i915"))
    assert read(i915).guc.unread == "not_asked"
    unbound = changed(image(), links=dict.fromkeys(bound))
    assert read(unbound).guc.value is not None
    for name in ("nvidia-host", "virtual-machine"):
        facts = gather(RecordedReader(replay.host(name)), Options(initrd=True))
        assert facts.initrd.guc.unread == "not_asked"


def test_a_live_read_of_it_has_a_child_of_its_own(tmp_path: Path) -> None:
    touches = GROUPS["initrd"].device
    assert callable(touches)
    asked = [touches(pcie=None, next_boot=None, options=Options(initrd=is_asked)) for is_asked in (True, False)]
    assert asked == [True, False]
    root = below(str(replay.lay_out(changed(LZ4 + image("70.44.1")), tmp_path)))
    tool = tmp_path / "usr/bin/lz4"
    tool.write_text("#!/bin/sh\nexec tail -c +5\n")
    tool.chmod(0o755)
    (one,) = gather(root, Options(initrd=True), ["initrd"]).initrd.guc.value or ()
    assert one.version.value == "70.44.1"


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({f"{FILE}.zst": None}, "absent"),
        ({f"{FILE}.zst": {"error": "EACCES"}}, "permission"),
        ({f"{FILE}.zst": {"error": "ENODATA"}}, "io"),
        ({f"{FILE}.zst": "garbage"}, "not_understood"),
        ({f"{FILE}.xz": blob(lzma.compress(header("70.2.0"))), f"{FILE}.zst": None}, "70.2.0"),
        ({FILE: blob(header("70.1.0"))}, "70.1.0"),
        ({f"/lib/firmware/updates/{GUC}.zst": blob(header("70.3.0"))}, "70.3.0"),
        ({f"/lib/firmware/{KERNEL}/{GUC}.zst": blob(header("70.4.0"))}, "70.4.0"),
        ({f"/lib/firmware/{KERNEL}/{GUC}.xz": blob(header("70.4.0"))}, "running"),
    ],
)
def test_the_file_on_disk_that_the_driver_would_take(files: dict[str, Any], version: str) -> None:
    (one,) = read(changed(image(), files)).guc.value or ()
    expected = RUNS if version == "running" else version
    assert (one.on_disk.value or one.on_disk.unread) == expected


def test_files_of_i915_are_compared_too() -> None:
    more = newc("lib/firmware/i915/dg2_guc_70.bin.xz", lzma.compress(header("70.20.0")))
    files = {"/lib/firmware/i915/dg2_guc_70.bin": blob(header("70.36.0"))}
    held = {one.name: one for one in read(changed(image("70.54.0", more), files)).guc.value or ()}
    assert held["i915/dg2_guc_70.bin"].version.value == "70.20.0"
    assert held["i915/dg2_guc_70.bin"].on_disk.value == "70.36.0"


def test_a_recording_keeps_little_and_replays(tmp_path: Path) -> None:
    data = gzip.compress(image("70.44.1", newc("lib/firmware/xe/lnl_guc_70.bin", b"bmg_guc_70.bin", LINK)))
    root = replay.lay_out(changed(data), tmp_path)
    facts, again = record(below(str(root)), Options(initrd=True))
    assert [one.version.value for one in facts.initrd.guc.value or ()] == ["70.44.1", "70.44.1"]
    assert len(json.dumps(again["files"][INITRD])) < 2500
    assert gather(RecordedReader(load(dump(again))), Options(initrd=True)).initrd == facts.initrd


def test_a_recording_of_what_was_not_read_says_so() -> None:
    for content in ({"error": "EACCES"}, "garbage", LZ4 + image()):
        recorder = Recorder(RecordedReader(changed(content)))
        before = gather(recorder, Options(initrd=True)).initrd
        after = gather(RecordedReader(load(dump(recorder.recording(0.0)))), Options(initrd=True)).initrd
        assert after.guc.unread == before.guc.unread != "not_asked"


@pytest.mark.skipif(os.geteuid() == 0, reason="root is refused nothing")
def test_a_file_that_only_root_may_read(tmp_path: Path) -> None:
    reader = tree(tmp_path, image())
    (tmp_path / "boot/i").chmod(0)
    assert found(b"", reader).unread == "permission"


def test_a_folder_or_a_fifo_in_its_place(tmp_path: Path) -> None:
    reader = tree(tmp_path, b"")
    (tmp_path / "boot/i").unlink()
    os.mkfifo(tmp_path / "boot/i")
    assert found(b"", reader).unread == "io"
    (tmp_path / "boot/i").unlink()
    (tmp_path / "boot/i").mkdir()
    assert found(b"", reader).unread == "io"
    assert found(b"", reader, "/boot/none").unread == "absent"


# -- what is said ------------------------------------------------------------------------------------------------------


def judged(recording: dict[str, Any], id: str = "boot.initrd", asked: bool = True) -> Finding:
    report = replay.report(recording, options={"initrd": asked})
    (one,) = [one for one in report.findings if one.id == id]
    return one


def rows(recording: dict[str, Any]) -> tuple[int, list[str]]:
    facts = gather(RecordedReader(recording), Options(initrd=True))
    return screen.code(facts), [line for line in screen.render(facts, "h").plain.splitlines() if "initrd  " in line]


UPDATE = f"sudo update-initramfs -u -k {KERNEL}"


@pytest.mark.parametrize(
    ("data", "status", "seen", "code", "row"),
    [
        (
            image(),
            "ok",
            f"it holds xe with {GUC} NOW as on disk",
            0,
            f"  initrd     holds xe with {GUC} NOW, as on disk",
        ),
        (image(xe=False), "ok", "it holds no xe", 0, "  initrd     holds no xe: driver and firmware are those on disk"),
        (image(None, xe=False), "ok", "it holds no xe", 0, "  initrd     holds no xe"),
        (image(None), "warn", f"{INITRD} holds xe and not {GUC}", 1, f"! initrd     holds xe without {GUC}"),
        (
            image("70.1.0"),
            "warn",
            f"{INITRD} holds {GUC} 70.1.0, {FILE}.zst is NOW",
            1,
            f"! initrd     holds xe with {GUC} 70.1.0; NOW on disk is not taken; NOW runs",
        ),
        (newc(XE) + newc(IN_IT, b"?") + END, "unknown", "not_understood", 3, f"? initrd     {GUC} in it was not read"),
        ({"error": "EACCES"}, "unknown", "permission", 3, "? initrd     what it holds was not read: permission"),
        (LZ4 + image(), "unknown", "tool_missing", 3, "? initrd     what it holds was not read: tool_missing"),
        ("garbage", "unknown", "not_understood", 3, "? initrd     what it holds was not read: not_understood"),
    ],
)
def test_the_check_and_the_screen(data: Any, status: str, seen: str, code: int, row: str) -> None:
    recording = changed(data)
    one = judged(recording)
    assert one.status.value == status
    assert seen.replace("NOW", RUNS) in one.seen
    assert (one.next_step == UPDATE) == (status == "warn")
    got, lines = rows(recording)
    assert (got, [line.startswith(row.replace("NOW", RUNS)) for line in lines]) == (code, [True]), lines


def test_another_kernels_module_is_none_of_this_boot() -> None:
    data = newc("lib/modules/6.1.0/kernel/drivers/gpu/drm/xe/xe.ko") + END
    assert judged(changed(data)).status.value == "ok"
    dkms = newc(f"lib/modules/{KERNEL}/updates/dkms/xe.ko.xz") + END
    assert judged(changed(dkms)).status.value == "warn"


def test_the_initrd_as_now_and_a_newer_file_on_disk() -> None:
    recording = changed(image(), {f"{FILE}.zst": blob(header("70.99.1"))})
    assert judged(recording).status.value == "warn"
    code, lines = rows(recording)
    assert (code, lines) == (0, [f"  initrd     holds xe with {GUC} {RUNS}; 70.99.1 on disk is not taken"])
    assert judged(recording, "boot.firmware").status.value == "ok"
    assert judged(recording, "boot.firmware", asked=False).status.value == "info"


def test_a_file_that_is_gone_from_the_disk() -> None:
    one = judged(changed(image(), {f"{FILE}.zst": None, f"{FILE}.txt": ""}))
    assert (one.status.value, "which is not on disk" in one.seen) == ("warn", True)


def test_the_version_on_disk_that_was_not_read_leaves_it_unknown() -> None:
    recording = changed(image(), {f"{FILE}.zst": {"error": "EACCES"}})
    assert judged(recording).status.value == "unknown"
    assert rows(recording)[0] == 3


def test_a_card_that_asked_for_its_file_in_vain() -> None:
    log = f"[ 5.1] xe 0000:03:00.0: [drm] *ERROR* GT0: GuC firmware {GUC}: fetch failed with error -2\n"
    recording = changed(image(None), log=log)
    journal = recording["commands"][replay.JOURNAL]
    journal["stdout"] = "".join(line for line in journal["stdout"].splitlines(True) if "Using GuC" not in line)
    assert judged(recording).seen.endswith(f"holds xe and not {GUC}, which a card here takes")


def test_without_a_word_in_the_log_any_file_of_xe_counts() -> None:
    quiet = changed(image(None))
    journal = quiet["commands"][replay.JOURNAL]
    journal["stdout"] = "".join(line for line in journal["stdout"].splitlines(True) if "Using GuC" not in line)
    assert judged(quiet).seen.endswith("holds xe and no GuC firmware")
    assert rows(quiet)[1] == ["! initrd     holds xe without any GuC firmware: the driver will find none"]
    held = replay.changed(quiet, {"files": {INITRD: blob(image())}})
    assert judged(held).status.value == "ok"


def test_what_was_seen_counts_more_than_the_age() -> None:
    day = 86_400
    old = times(9 * day, 10 * day, 9 * day)
    change = {"stats": old["stats"], "more": {f"{FILE}.zst": blob(header(RUNS))}}
    assert judged(changed(image(), **change)).status.value == "ok"
    assert judged(changed(image(), **change), asked=False).status.value == "warn"
    assert judged(changed({"error": "EACCES"}, **change)).status.value == "warn"
    module = times(9 * day, 9 * day, 10 * day)
    files = {**module["files"], **change["more"]}
    assert judged(changed(image(), files, stats=module["stats"])).status.value == "warn"
    assert judged(changed(image(xe=False), files, stats=module["stats"])).status.value == "ok"


@pytest.mark.parametrize(
    ("maker", "step"),
    [
        ("/usr/sbin/update-initramfs", UPDATE),
        ("/usr/bin/dracut", f"sudo dracut -f --kver {KERNEL}"),
        ("/usr/bin/mkinitcpio", "sudo mkinitcpio -P"),
    ],
)
def test_the_next_step_is_by_what_the_host_has(maker: str, step: str) -> None:
    assert judged(changed(image(None), stats={maker: stat_of(0o100755)})).next_step == step


def test_a_missing_tool_is_named_with_the_next_step(tmp_path: Path) -> None:
    facts = gather(below(str(replay.lay_out(changed(LZ4 + image()), tmp_path))), Options(initrd=True))
    (one,) = [one for one in assess(facts, expectation({})).findings if one.id == "boot.initrd"]
    assert (one.status.value, one.next_step) == ("unknown", "sudo apt-get install lz4")
    assert judged(changed(LZ4 + image())).next_step == ""  # of a recording that does not say which


def test_the_verbs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "host.json"
    path.write_text(dump(changed(gzip.compress(image()))))
    assert main(["next-boot", "--recording", str(path)]) == 0
    assert f"holds xe with {GUC} {RUNS}, as on disk" in capsys.readouterr().out
    assert main(["record", "--recording", str(path), "-o", str(tmp_path / "again.json")]) == 0
    assert main(["next-boot", "--recording", str(tmp_path / "again.json")]) == 0
    capsys.readouterr()
    for flags, asked in (([], "not_asked"), (["--initrd"], None)):
        main(["audit", "--recording", str(path), "--format", "json", *flags])
        facts = json.loads(capsys.readouterr().out)["facts"]
        assert facts["initrd"]["guc"].get("unread") == asked


def test_base64_is_what_a_recording_holds() -> None:
    recorder = Recorder(RecordedReader(changed(gzip.compress(image("70.44.1")))))
    gather(recorder, Options(initrd=True))
    kept = base64.b64decode(recorder.recording(0.0)["files"][INITRD]["base64"])
    assert kept.startswith(b"070701")
    assert versions(kept) == {GUC: "70.44.1"}
