"""Memory before a start, limits of containers, crash policy and storage: each limit from both sides, and unread."""

from __future__ import annotations

from typing import Any

import pytest

from hostcheck.expectations import Refused, expectation
from hostcheck.findings import Finding
from hostcheck.onhost.readings.holders import address
from hostcheck.onhost.recording import RecordedReader
from tests import replay

LARGE, SMALL, PLAIN = "four-card-gen4", "two-card-gen5", "intel-hybrid"
ID = "2a" * 32
CGROUP = f"/system.slice/docker-{ID}.scope"
HELD = {"links": {"/proc/77/fd/5": "/dev/dri/renderD129"}}
REFUSED = {"error": "EACCES"}


def held(**files: Any) -> dict[str, Any]:
    """A container that holds a card, with files of its cgroup."""
    here = {f"/sys/fs/cgroup{CGROUP}/{name.replace('__', '.')}": text for name, text in files.items()}
    return {"files": {"/proc/77/comm": "python\n", "/proc/77/cgroup": f"0::{CGROUP}\n", **here}, **HELD}


def judged(id: str, change: dict[str, Any], expect: dict[str, Any] | None = None, host: str = LARGE) -> list[Finding]:
    report = replay.report(replay.changed(replay.host(host), change), expect)
    return [one for one in report.findings if one.id == id]


def status(id: str, change: dict[str, Any], expect: dict[str, Any] | None = None, host: str = LARGE) -> list[str]:
    return [one.status.value for one in judged(id, change, expect, host)]


def meminfo(**kib: int) -> dict[str, Any]:
    fields = {"MemTotal": 131_706_880, "MemAvailable": 120_000_000, "AnonPages": 310_000, "SwapTotal": 0, "SwapFree": 0}
    text = "".join(f"{name}: {number} kB\n" for name, number in {**fields, **kib}.items())
    return {"files": {"/proc/meminfo": text}}


# -- guards ------------------------------------------------------------------------------------------------------------

SLICE = "/sys/fs/cgroup/system.slice"
OOMD, EARLYOOM = f"{SLICE}/systemd-oomd.service/cgroup.procs", f"{SLICE}/earlyoom.service/cgroup.procs"


def guarded(files: dict[str, Any], cgroup: str = CGROUP) -> list[Finding]:
    """What is said of guards while a process of that cgroup holds a card."""
    own = {"/proc/77/comm": "python\n", "/proc/77/cgroup": f"0::{cgroup}\n", f"{SLICE}/cgroup.procs": ""}
    return judged("mem.oom_policy", {"files": {**own, **files}, **HELD})


def test_a_guard_that_runs_beside_jobs_is_told() -> None:
    (found,) = guarded({OOMD: "812\n", EARLYOOM: "900\n"})
    assert (found.status.value, found.next_step) == ("info", "oomctl  # which cgroups it watches")
    assert found.seen == "systemd-oomd and earlyoom may kill what holds a card"
    (found,) = guarded({EARLYOOM: "900\n"}, "/user.slice/user-1000.slice/user@1000.service/app.slice/job.service")
    assert found.seen.endswith("below a user's manager, where it acts by default: python[77]")


def test_a_guard_without_a_process_or_a_holder_is_no_matter() -> None:
    assert [one.status.value for one in guarded({OOMD: ""})] == ["ok"]
    assert [one.status.value for one in guarded({})] == ["ok"]
    assert status("mem.oom_policy", {"files": {f"{SLICE}/cgroup.procs": "", OOMD: "812\n"}}) == ["not_applicable"]
    assert status("mem.oom_policy", held()) == ["not_applicable"]  # no services of systemd were recorded


@pytest.mark.parametrize("path", [f"{SLICE}/cgroup.procs", OOMD])
@pytest.mark.parametrize("content", [REFUSED, "many\n"])
def test_guards_that_were_not_read_are_unknown(path: str, content: Any) -> None:
    assert [one.status.value for one in guarded({path: content})] == ["unknown"]


def test_version_1_has_them_in_another_place() -> None:
    old = "/sys/fs/cgroup/systemd/system.slice"
    change = held()
    change["files"] |= {f"{old}/cgroup.procs": "", f"{old}/earlyoom.service/cgroup.procs": "7\n"}
    assert status("mem.oom_policy", change) == ["info"]


# -- before a start ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "total", "available", "wanted"),
    [
        (LARGE, 131_706_880, 12_000_000, "ok"),
        (LARGE, 131_706_880, 11_999_999, "warn"),
        (SMALL, 15_943_924, 9_216 << 10, "ok"),
        (SMALL, 15_943_924, (9_216 << 10) - 1, "warn"),
        (SMALL, 8_000_000, 4_800_000, "ok"),  # never more than 60 %
        (SMALL, 8_000_000, 4_799_999, "warn"),
    ],
)
def test_available(host: str, total: int, available: int, wanted: str) -> None:
    assert status("mem.available", meminfo(MemTotal=total, MemAvailable=available), host=host) == [wanted]


def test_available_as_declared() -> None:
    change = meminfo(MemAvailable=20_000_000)
    assert status("mem.available", change, {"memory": {"available_mib": 20_000}}) == ["warn"]
    assert status("mem.available", change, {"memory": {"available_mib": 19_000}}) == ["ok"]


@pytest.mark.parametrize("id", ["mem.available", "mem.swap_total", "mem.psi"])
def test_limits_before_a_start_hold_only_then(id: str) -> None:
    bad = meminfo(MemAvailable=1, SwapTotal=9)
    bad["files"]["/proc/pressure/memory"] = "some avg10=90.00 avg60=9.00 \nfull avg10=80.00 avg60=9.00 \n"
    assert status(id, bad) == ["warn"]
    assert status(id, {**bad, **HELD}) == ["not_applicable"]
    assert status(id, bad, host=PLAIN) == ["not_applicable"]
    assert status(id, bad, {"gpus": {"count": 1}}, PLAIN) == ["warn"]
    refused = {**bad["files"], "/proc/9/fd": REFUSED, "/proc/9/stat": "9 (a) S 1 1 1 0 -1 4194560 1\n"}
    (found,) = judged(id, {"files": refused})
    assert (found.status.value, "may not be listed" in found.seen) == ("unknown", True)


def test_the_display_of_the_board_is_no_job() -> None:
    reader = RecordedReader(replay.host(LARGE))
    others = [node for node in reader.names("/dev/dri").value or () if address(reader, node) == "0000:63:00.0"]
    assert others == ["card0"]
    assert status("mem.available", {"links": {"/proc/77/fd/5": "/dev/dri/card0"}}) == ["ok"]
    assert status("mem.available", {"links": {"/proc/77/fd/5": "/dev/dri/card1"}}) == ["not_applicable"]


@pytest.mark.parametrize(
    ("content", "wanted"),
    [(REFUSED, "unknown"), (None, "unknown"), ("garbage\n", "unknown"), ("MemTotal: 5 kB\n", "unknown")],
)
@pytest.mark.parametrize("id", ["mem.available", "mem.driver_held"])
def test_memory_that_could_not_be_read(id: str, content: Any, wanted: str) -> None:
    change = {"files": {"/proc/meminfo": content}} if content is not None else {"remove": ["/proc/meminfo"]}
    assert status(id, change) == [wanted]


@pytest.mark.parametrize(
    ("host", "total", "swap", "declared", "wanted"),
    [
        (LARGE, 131_706_880, 8_000_000, None, "warn"),
        (LARGE, 131_706_880, 0, None, "ok"),
        (LARGE, 131_706_880, 8_000_000, True, "ok"),
        (SMALL, 15_943_924, 37_000_000, None, "ok"),
        (SMALL, 15_943_924, 37_000_000, False, "warn"),
    ],
)
def test_swap(host: str, total: int, swap: int, declared: bool | None, wanted: str) -> None:
    expect = {} if declared is None else {"memory": {"swap": declared}}
    assert status("mem.swap_total", meminfo(MemTotal=total, SwapTotal=swap), expect, host) == [wanted]


def psi(full: float) -> str:
    return f"some avg10=99.00 avg60=0.00 avg300=0.00 total=0\nfull avg10={full:.2f} avg60=0.00 avg300=0.00 total=0\n"


@pytest.mark.parametrize("what", ["memory", "io"])
@pytest.mark.parametrize(
    ("content", "wanted"),
    [(psi(10.0), ["ok"]), (psi(11.41), ["warn"]), (REFUSED, ["ok", "unknown"]), ("x\n", ["ok", "unknown"])],
)
def test_pressure(what: str, content: Any, wanted: list[str]) -> None:
    assert sorted(status("mem.psi", {"files": {f"/proc/pressure/{what}": content}})) == wanted


@pytest.mark.parametrize(
    "change",
    [
        {"remove": ["/proc/pressure/"]},
        {"files": {f"/proc/pressure/{what}": {"error": "EOPNOTSUPP"} for what in ("memory", "io")}},
    ],
)
def test_kernels_without_pressure(change: dict[str, Any]) -> None:
    assert status("mem.psi", change) == ["not_applicable"]


# -- what the host says of its memory ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kib", "wanted"),
    [
        ({"MemAvailable": 66_000_000}, "ok"),
        ({"MemAvailable": 30_000_000}, "warn"),
        ({"MemAvailable": 30_000_000, "Shmem": 60_000_000}, "ok"),
        ({"MemAvailable": 30_000_000, "Hugetlb": 60_000_000}, "ok"),
        ({"MemAvailable": 30_000_000, "AnonPages": 100_000_000}, "ok"),
    ],
)
def test_driver_held(kib: dict[str, int], wanted: str) -> None:
    assert status("mem.driver_held", meminfo(**kib)) == [wanted]
    assert status("mem.driver_held", meminfo(**kib), host=PLAIN) == ["not_applicable"]


def test_what_the_kernel_counts_for_gpus_is_shown() -> None:
    (found,) = judged("mem.driver_held", meminfo(MemAvailable=30_000_000, GPUActive=90_000_000))
    assert "85.8 GiB for GPUs" in found.seen


MC = "/sys/devices/system/edac/mc/mc0"


@pytest.mark.parametrize(
    ("corrected", "uncorrected", "wanted"),
    [
        ("0\n", "0\n", "ok"),
        ("3\n", "0\n", "warn"),
        ("0\n", "1\n", "fail"),
        (REFUSED, "1\n", "fail"),
        (REFUSED, "0\n", "unknown"),
        ("0\n", "x\n", "unknown"),
    ],
)
def test_errors_of_the_memory(corrected: Any, uncorrected: Any, wanted: str) -> None:
    assert status("mem.ecc", {"files": {f"{MC}/ce_count": corrected, f"{MC}/ue_count": uncorrected}}) == [wanted]


def test_silence_is_no_evidence() -> None:
    assert status("mem.ecc", {}) == ["info"]
    assert status("mem.ecc", {}, host="gpu-vm") == ["not_applicable"]
    assert status("mem.ecc", {"files": {"/sys/devices/system/edac/mc": REFUSED}}) == ["unknown"]


def test_blocks() -> None:
    state = "/sys/devices/system/memory/memory2/state"
    off = {"files": {state: "offline\n"}}
    wish = {"memory": {"offline_blocks": [2]}}
    assert status("mem.blocks_offline", {}) == ["ok"]
    assert status("mem.blocks_offline", off) == ["info"]
    assert status("mem.blocks_offline", off, wish) == ["ok"]
    (back,) = judged("mem.blocks_offline", {}, wish)
    assert (back.status.value, "memory2" in back.seen, "memory2" in back.next_step) == ("fail", True, True)
    assert status("mem.blocks_offline", {"files": {state: REFUSED}}) == ["unknown"]
    assert status("mem.blocks_offline", {"remove": ["/sys/devices/system/memory/"]}) == ["not_applicable"]
    assert status("mem.blocks_offline", {"remove": ["/sys/devices/system/memory/"]}, wish) == ["unknown"]


# -- containers ----------------------------------------------------------------------------------------

QUIET = "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n"
LIMITED = {"memory__max": "12884901888\n", "memory__events": QUIET}


@pytest.mark.parametrize(
    ("files", "host", "wanted"),
    [
        ({"memory__swap__max": "0\n", "memory__swap__peak": "0\n"}, SMALL, "ok"),
        ({"memory__swap__max": "0\n"}, SMALL, "ok"),  # kernels before 6.5 keep no peak
        ({"memory__swap__max": "4294967296\n", "memory__swap__peak": "0\n"}, SMALL, "warn"),
        ({"memory__swap__max": "max\n", "memory__swap__peak": "0\n"}, SMALL, "warn"),
        ({"memory__swap__max": "0\n", "memory__swap__peak": "4294967296\n"}, SMALL, "warn"),
        ({"memory__swap__max": "max\n", "memory__swap__peak": "0\n"}, LARGE, "info"),  # the host has none
        ({"memory__swap__max": "max\n", "memory__swap__peak": "4096\n"}, LARGE, "warn"),
        ({}, SMALL, "unknown"),
        ({"memory__swap__max": REFUSED}, SMALL, "unknown"),
        ({"memory__swap__max": "some\n"}, SMALL, "unknown"),
    ],
)
def test_swap_of_a_container(files: dict[str, Any], host: str, wanted: str) -> None:
    (found,) = judged("container.swap", held(**LIMITED, **files), host=host)
    assert (found.status.value, found.subject.name) == (wanted, ID[:12])


def test_the_next_step_for_a_container_of_docker() -> None:
    change = held(**LIMITED, memory__swap__max="max\n")
    change["files"][f"/var/lib/docker/containers/{ID}/config.v2.json"] = '{"Name": "/a b", "Config": {}}'
    (found,) = judged("container.swap", change, host=SMALL)
    assert found.subject.name == "a b"
    assert found.next_step.startswith("docker update --memory 12288m --memory-swap 12288m 'a b'")


@pytest.mark.parametrize(
    ("events", "wanted"),
    [(QUIET, "ok"), (QUIET.replace("oom_kill 0", "oom_kill 2"), "warn"), (REFUSED, "unknown"), ("x\n", "unknown")],
)
def test_kills(events: Any, wanted: str) -> None:
    assert status("container.oom", held(memory__events=events)) == [wanted]


def test_a_service_is_judged_for_kills_only() -> None:
    change = held()
    change["files"]["/proc/77/cgroup"] = "0::/system.slice/vllm.service\n"
    change["files"]["/sys/fs/cgroup/system.slice/vllm.service/memory.events"] = QUIET.replace(
        "oom_kill 0", "oom_kill 1"
    )
    assert status("container.swap", change) == ["not_applicable"]
    assert [(one.status.value, one.subject.name) for one in judged("container.oom", change)] == [
        ("warn", "/system.slice/vllm.service")
    ]


@pytest.mark.parametrize("id", ["container.swap", "container.oom"])
def test_nobody_and_not_known(id: str) -> None:
    assert status(id, {}) == ["not_applicable"]
    hidden = {"/proc/9/fd": REFUSED, "/proc/9/stat": "9 (a) S 1 1 1 0 -1 4194560 1\n"}
    assert status(id, {"files": hidden}) == ["unknown"]


# -- crash ---------------------------------------------------------------------------------------------


def switches(**values: Any) -> dict[str, Any]:
    return {"files": {f"/proc/sys/kernel/{name}": value for name, value in values.items()}}


@pytest.mark.parametrize(
    ("values", "more", "wanted"),
    [
        ({"hardlockup_panic": "1\n"}, {}, "warn"),
        ({"softlockup_panic": "1\n"}, {}, "warn"),
        ({"hung_task_panic": "1\n"}, {}, "warn"),
        ({"hardlockup_panic": "1\n", "panic": "30\n"}, {}, "info"),
        ({"hardlockup_panic": "1\n", "panic": "-1\n"}, {}, "info"),
        ({"hardlockup_panic": "1\n", "nmi_watchdog": "0\n"}, {}, "info"),
        ({"hardlockup_panic": "1\n"}, {"/sys/kernel/kexec_crash_loaded": "1\n"}, "ok"),
        ({"hardlockup_panic": "1\n"}, {"/sys/fs/pstore/dmesg-1": "x"}, "ok"),
        ({"hardlockup_panic": "1\n"}, {"/var/lib/systemd/pstore/1/dmesg.txt": "x"}, "ok"),
        (
            {"hardlockup_panic": "1\n"},
            {"/sys/module/netconsole/x": "", "/sys/kernel/config/netconsole/a/enabled": "1\n"},
            "ok",
        ),
        ({"hardlockup_panic": "1\n"}, {"/sys/kernel/kexec_crash_loaded": REFUSED}, "unknown"),
        ({"hardlockup_panic": "0\n"}, {}, "ok"),
        ({"panic": "30\n"}, {}, "ok"),
        ({"hardlockup_panic": REFUSED}, {}, "unknown"),
        ({"hardlockup_panic": "x\n"}, {}, "unknown"),
        ({"hardlockup_panic": "1\n", "panic": REFUSED}, {}, "unknown"),
    ],
)
def test_the_pair_decides(values: dict[str, Any], more: dict[str, Any], wanted: str) -> None:
    change = switches(**values)
    change["files"] |= more
    assert status("crash.policy", change) == [wanted]


def test_kernels_without_the_switches() -> None:
    names = ("hardlockup_panic", "softlockup_panic", "hung_task_panic")
    assert status("crash.policy", {"remove": [f"/proc/sys/kernel/{name}" for name in names]}) == ["not_applicable"]
    assert status("crash.policy", {"remove": ["/proc/sys/kernel/hardlockup_panic"]}) == ["ok"]


def test_records() -> None:
    (found,) = judged("crash.records", {"files": {f"/sys/fs/pstore/dmesg-{number}": "x" for number in range(5)}})
    assert (found.status.value, found.seen[:2]) == ("info", "5 ")
    assert status("crash.records", {"files": {"/sys/fs/pstore": REFUSED}, "remove": ["/sys/fs/pstore/"]}) == ["unknown"]


# -- storage -------------------------------------------------------------------------------------------

GIB = 1 << 30
ROOT = "27 1 259:2 / / rw - ext4 /dev/nvme0n1p2 rw\n"


def space(**free: int) -> dict[str, Any]:
    return {
        "statvfs": {
            path.replace("root", "/").replace("models", "/models"): {"size": 900 * GIB, "free": number}
            for path, number in free.items()
        }
    }


def test_space_of_the_root() -> None:
    assert status("storage.root_free", space(root=12 * GIB)) == ["ok"]
    (low,) = judged("storage.root_free", space(root=12 * GIB - 1))
    assert (low.status.value, "0000:01:00.0" in low.seen) == ("warn", True)
    assert status("storage.root_free", space(root=12 * GIB - 1), {"storage": {"root_free_gib": 5}}) == ["ok"]
    assert status("storage.root_free", space(root=1), host=PLAIN) == ["not_applicable"]
    assert status("storage.root_free", {"statvfs": {"/": None}}) == ["unknown"]
    assert status("storage.root_free", {"files": {"/proc/self/mountinfo": REFUSED}}) == ["unknown"]
    disk_less = {"files": {"/proc/self/mountinfo": "22 27 0:21 / /proc rw - proc proc rw\n"}}
    assert status("storage.root_free", disk_less) == ["not_applicable"]


def test_a_model_path() -> None:
    wish = {"storage": {"model_paths": ["/models/qwen/"], "model_free_gib": 100}}
    mounted = {"files": {"/proc/self/mountinfo": ROOT + "30 27 8:1 / /models rw - xfs /dev/sda1 rw\n"}}
    assert status("storage.model", {}) == ["not_applicable"]
    (folder,) = judged("storage.model", {}, wish)
    assert (folder.status.value, folder.subject.name) == ("fail", "/models/qwen")
    assert status("storage.model", {**mounted, **space(models=100 * GIB)}, wish) == ["ok"]
    assert status("storage.model", {**mounted, **space(models=99 * GIB)}, wish) == ["warn"]
    assert status("storage.model", mounted, wish) == ["unknown"]
    assert status("storage.model", mounted, {"storage": {"model_paths": ["/models"]}}) == ["ok"]
    assert status("storage.model", mounted, {"storage": {"model_paths": ["/models2"]}}) == ["fail"]


def test_paths_in_next_steps_are_quoted() -> None:
    (found,) = judged("storage.model", {}, {"storage": {"model_paths": ["/a'; reboot"]}})
    assert "'/a'\"'\"'; reboot'" in found.next_step


@pytest.mark.parametrize(
    ("content", "wanted"), [("0\n", "ok"), ("3\n", "warn"), (REFUSED, "unknown"), ("x\n", "unknown")]
)
def test_errors_of_a_file_system(content: Any, wanted: str) -> None:
    assert status("storage.fs_errors", {"files": {"/sys/fs/ext4/nvme0n1p2/errors_count": content}}) == [wanted]


def test_no_ext4() -> None:
    change = {"files": {"/proc/self/mountinfo": ROOT.replace("ext4", "xfs")}}
    assert status("storage.fs_errors", change) == ["not_applicable"]


@pytest.mark.parametrize(
    "wish",
    [
        {"storage": {"model_paths": ["models"]}},
        {"storage": {"model_paths": ["/a/../b"]}},
        {"storage": {"root_free": 5}},
        {"memory": {"driver_held": 2}},
        {"memory": {"available_mib": -1}},
        {"network": {"many_interfaces": 1}},
        {"network": {"many": 20}},
    ],
)
def test_wishes_that_are_refused(wish: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        expectation(wish)
