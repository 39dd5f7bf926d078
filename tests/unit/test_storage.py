"""Real mounts: what is one, the disk below it, and what must not be asked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost.reader import Reading
from hostcheck.onhost.readings import storage
from hostcheck.onhost.recording import RecordedReader, Recorder, dump, empty
from tests import replay

ROOT = "27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro\n"
NVME = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme0/nvme0n1"
LINKS = {
    "/sys/class/block/nvme0n1": "../.." + NVME[4:],
    "/sys/class/block/nvme0n1p2": "../.." + NVME[4:] + "/nvme0n1p2",
}
FILES = {f"{NVME}/nvme0n1p2/partition": "2\n", "/sys/fs/ext4/nvme0n1p2/errors_count": "3\n"}


class Asked(RecordedReader):
    """Remembers whose space was asked for."""

    def __init__(self, recording: dict[str, Any]) -> None:
        super().__init__(recording)
        self.asked: list[str] = []

    def space(self, path: str) -> Reading[tuple[int, int]]:
        self.asked.append(path)
        return super().space(path)


def recorded(mounts: Any = ROOT, files: dict[str, Any] | None = None, links: dict[str, str] | None = None) -> Asked:
    recording = {
        **empty(0),
        "files": {**FILES, "/proc/self/mountinfo": mounts, **(files or {})},
        "links": links or LINKS,
    }
    recording["statvfs"] = {path: {"size": 100 << 30, "free": 40 << 30} for path in ("/", "/models", "/srv/a b")}
    return Asked(recording)


def mounts(*arguments: Any) -> tuple[storage.Mount, ...]:
    found = storage.read(recorded(*arguments)).mounts.value
    assert found is not None
    return found


def test_the_root_of_a_lab_host() -> None:
    (root,) = storage.read(RecordedReader(replay.host("four-card-gen4"))).mounts.value or ()
    assert (root.point, root.kind, root.devices, root.controllers) == ("/", "ext4", ("nvme0n1",), ("0000:01:00.0",))
    assert (root.free.value, root.errors.value, root.remote, root.read_only) == (512 << 30, 0, False, False)


def test_a_disk_and_its_errors() -> None:
    (root,) = mounts()
    assert (root.devices, root.controllers, root.errors.value) == (("nvme0n1",), ("0000:01:00.0",), 3)


def test_disks_below_a_device_mapper() -> None:
    text = "27 1 253:0 / / rw - xfs /dev/mapper/vg-root rw\n"
    links = {
        **LINKS,
        "/dev/mapper/vg-root": "../dm-0",
        "/sys/class/block/dm-0": "../../devices/virtual/block/dm-0",
        "/sys/devices/virtual/block/dm-0/slaves/nvme0n1p2": "../../../../.." + NVME[4:] + "/nvme0n1p2",
    }
    (root,) = mounts(text, {}, links)
    assert (root.devices, root.controllers) == (("nvme0n1",), ("0000:01:00.0",))
    assert root.errors.unread == "absent"


def test_device_mappers_that_hang_below_each_other_end() -> None:
    text = "27 1 253:0 / / rw - xfs /dev/dm-0 rw\n"
    links = {f"/sys/class/block/dm-{a}/slaves/dm-{b}": "x" for a, b in ((0, 1), (1, 0))}
    mounts(text, {}, links)


def test_a_disk_with_several_controllers() -> None:
    folder = "/sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1"
    links = {
        "/sys/class/block/nvme0n1p2": f"../..{folder[4:]}/nvme0n1p2",
        "/sys/class/nvme/nvme0": "../../devices/pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme0",
    }
    files = {
        f"{folder}/nvme0n1p2/partition": "2\n",
        "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme0/x": "",
    }
    (root,) = mounts(ROOT, files, links)
    assert (root.devices, root.controllers) == (("nvme0n1",), ("0000:01:00.0",))


def test_a_server_is_never_asked_for_its_space() -> None:
    text = (
        ROOT + "30 27 0:44 / /models rw - nfs4 server:/m rw,addr=192.0.2.7\n31 27 0:45 / /x rw - fuse.sshfs me@h:/ rw\n"
    )
    reader = recorded(text)
    found = {one.point: one for one in storage.read(reader).mounts.value or ()}
    assert reader.asked == ["/"]
    assert (found["/models"].remote, found["/models"].free.unread) == (True, "not_asked")
    assert found["/x"].free.unread == "not_asked"


def test_one_file_system_is_asked_once() -> None:
    reader = recorded(ROOT + "28 27 259:2 /var /srv/x rw - ext4 /dev/nvme0n1p2 rw\n")
    assert len(storage.read(reader).mounts.value or ()) == 2
    assert reader.asked == ["/"]


def test_the_last_mount_on_a_point_is_the_one_in_sight() -> None:
    again = "40 27 259:9 / /models ro - ext4 /dev/sdb1 rw\n"
    found = {one.point: one for one in mounts(ROOT + again.replace("sdb1", "sda1") + again)}
    assert (found["/models"].source, found["/models"].read_only) == ("/dev/sdb1", True)


@pytest.mark.parametrize(
    "line",
    [
        "22 27 0:21 / /proc rw - proc proc rw\n",
        "23 27 7:1 / /snap/core/1 ro - squashfs /dev/loop1 ro\n",
        "24 27 0:30 / /run/user/1000 rw - tmpfs tmpfs rw\n",
        "25 27 0:31 / /var/lib/docker/overlay2/a/merged rw - overlay overlay rw,lowerdir=/x\n",
        "26 27 0:32 / /run/user/1000/doc rw - fuse.portal portal rw\n",
        "26 27 0:33 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    ],
)
def test_what_is_no_storage(line: str) -> None:
    assert [one.point for one in mounts(ROOT + line)] == ["/"]


def test_names_with_blanks() -> None:
    found = mounts(ROOT + "28 27 8:17 / /srv/a\\040b rw - xfs /dev/sdb1 rw\n")
    assert [(one.point, one.free.value) for one in found if one.point != "/"] == [("/srv/a b", 40 << 30)]


@pytest.mark.parametrize(
    ("content", "reason"),
    [({"error": "EACCES"}, "permission"), (None, "absent"), ("x\n", "not_understood"), ("", "not_understood")],
)
def test_mounts_that_could_not_be_read(content: Any, reason: str) -> None:
    reader = recorded(content)
    if content is None:
        reader = Asked({**empty(0), "files": {}})
    assert storage.read(reader).mounts.unread == reason


@pytest.mark.parametrize(
    ("content", "reason"), [({"error": "EACCES"}, "permission"), ("many\n", "not_understood"), ("\0", "not_text")]
)
def test_errors_that_could_not_be_read(content: Any, reason: str) -> None:
    (root,) = mounts(ROOT, {"/sys/fs/ext4/nvme0n1p2/errors_count": content})
    assert root.errors.unread == reason


def test_space_that_could_not_be_read() -> None:
    (one,) = mounts("27 1 8:1 / /else rw - xfs /dev/sda1 rw\n")
    assert (one.size.unread, one.free.unread, one.devices) == ("absent", "absent", ())


def test_of_the_list_of_mounts_only_what_is_real_is_kept() -> None:
    text = (
        ROOT
        + "30 27 0:44 / /m rw - cifs //h/s rw,username=planted,addr=1\n"
        + "31 27 0:9 / /o rw - overlay overlay rw,lowerdir=/planted\n"
    )
    recorder = Recorder(recorded(text))
    found = storage.read(recorder)
    recording = recorder.recording(0.0)
    assert "planted" not in dump(recording)
    assert storage.read(RecordedReader(recording)) == found


FIELD = st.text(st.sampled_from("abc /-\\\n#é\x1c\u2028"), min_size=1, max_size=6)


@given(st.lists(st.tuples(FIELD, FIELD, st.sampled_from(["ext4", "xfs", "nfs4", "pstore"]), st.booleans()), min_size=1))
def test_reduced_mounts_read_the_same(rows: list[tuple[str, str, str, bool]]) -> None:
    text = "".join(
        f"1 0 8:{number} / /{storage._escaped(point)} {'ro' if ro else 'rw'},x shared:1 - "
        f"{kind} /dev/{storage._escaped(source)} rw\n"
        for number, (point, source, kind, ro) in enumerate(rows)
    )
    lines = storage.parse_mounts(text)
    assert [(one.point, one.source) for one in lines] == [
        (f"/{point}", f"/dev/{source}") for point, source, _, _ in rows
    ]
    kept = [one for one in lines if storage.is_real(one) or one.kind == "pstore"]
    assert list(storage.parse_mounts(storage.reduce_mounts(text)))[: len(kept)] == kept


@given(st.text())
def test_random_text_is_a_value_or_a_value_error(text: str) -> None:
    for parse in (storage.parse_mounts, storage.parse_count, storage.reduce_mounts):
        try:
            parse(text)
        except ValueError:
            pass
