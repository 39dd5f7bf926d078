"""Crash policy, memory fence, limits of containers and held packages: set, read back, refused with a reason, undone."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostcheck.onhost.readings import crash, sysctls
from hostcheck.onhost.recording import below
from hostcheck.onhost.settings import container_memory, crash_policy, files, memory_fence, package_pins
from hostcheck.onhost.settings.engine import Refused
from hostcheck.onhost.settings.files import Failed, Writer
from tests.settings_host import Tree, apt, cgroup, container, crash_host, memory_blocks, running, unit

LIVE = "/proc/sys/kernel"
BLOCKS = "/sys/devices/system/memory"
PANIC = {"hardlockup_panic": True, "panic": 30}
FENCE = {"blocks": [5, 6], "available_mib": 4096}
LIMITS = {"units": {"vllm.service": 300}, "containers": {"worker": 300}}
PINS = {"names": ["linux-image-amd64", "xpu-smi"]}


def limited(tree: Tree) -> Tree:
    unit(tree, "vllm.service")
    cgroup(tree, "vllm.service")
    container(tree, "worker")
    return tree


def packaged(tree: Tree) -> Tree:
    return apt(tree, linux_image_amd64="install", xpu_smi="install", tuned="hold")


HOSTS: dict[str, tuple[Callable[[Tree], Tree], dict[str, Any]]] = {
    "crash_policy": (crash_host, PANIC),
    "memory_fence": (memory_blocks, FENCE),
    "container_memory": (limited, LIMITS),
    "package_pins": (packaged, PINS),
}


@pytest.mark.parametrize("name", HOSTS)
def test_check_apply_apply_undo(tmp_path: Path, name: str) -> None:
    dress, wish = HOSTS[name]
    tree = dress(Tree(tmp_path / "root"))
    before = tree.snapshot()
    check = tree.apply(name, wish, check=True)
    assert tree.snapshot() == before
    assert check.changed
    run = tree.apply(name, wish)
    assert (run.failure, run.changed, run.diff, run.reboot_required) == ("", True, check.diff, False)
    assert "# cost: " in run.diff[-1]["after"]
    again = tree.apply(name, wish)
    assert (again.failure, again.changed, again.diff) == ("", False, [])
    taken = tree.undo(name, wish, check=True)
    gone = tree.undo(name, wish)
    assert (gone.failure, gone.left, gone.diff) == ("", [], taken.diff)
    assert tree.snapshot() == before


class Killed(BaseException):
    """Stands for a kill: nothing of the toolkit may catch it."""


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("direction", ["apply", "undo"])
def test_a_run_killed_at_any_point_can_be_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, direction: str
) -> None:
    dress, wish = HOSTS[name]
    for at in range(200):
        tree = dress(Tree(tmp_path / f"root{at}"))
        before = tree.snapshot()
        if direction == "undo":
            tree.apply(name, wish)
        calls = 0

        def killing(what: Any, at: int = at) -> Any:
            def call(*arguments: Any, **more: Any) -> Any:
                nonlocal calls
                for moment in ("before", "after"):
                    calls += 1
                    if calls > at:
                        raise Killed
                    if moment == "before":
                        result = what(*arguments, **more)
                return result

            return call

        done = False
        with monkeypatch.context() as patch:
            patch.setattr(files.os, "rename", killing(os.rename))
            for method in ("value", "run", "remove"):
                patch.setattr(Writer, method, killing(getattr(Writer, method)))
            try:
                tree.apply(name, wish) if direction == "apply" else tree.undo(name)
                done = True
            except Killed:
                pass
        again = tree.undo(name)
        assert (again.failure, again.left) == ("", [])
        assert tree.snapshot() == before, f"killed at {at}"
        if done:
            return
    pytest.fail("never came to its end")


# -- crash policy -------------------------------------------------------------------------------------


def test_the_pair_is_set_now_and_for_the_next_boot(tmp_path: Path) -> None:
    tree = crash_host(Tree(tmp_path / "root"))
    run = tree.apply("crash_policy", PANIC)
    assert (tree.text(f"{LIVE}/hardlockup_panic"), tree.text(f"{LIVE}/panic")) == ("1\n", "30\n")
    assert run.done == [crash_policy.FILE, f"{LIVE}/panic", f"{LIVE}/hardlockup_panic"]  # no panic that waits
    assert run.live == "kernel.hardlockup_panic=1, kernel.panic=30"
    assert run.persistent == "kernel.panic=30, kernel.hardlockup_panic=1"
    assert run.effective == "a crash kernel is loaded"
    assert crash_policy.FILE in run.owner
    off = tree.apply("crash_policy", {"hardlockup_panic": False, "panic": 0})
    assert off.done == [crash_policy.FILE, f"{LIVE}/hardlockup_panic", f"{LIVE}/panic"]
    assert "stays down until somebody resets it" in off.diff[-1]["after"]


def test_a_panic_needs_something_that_keeps_it(tmp_path: Path) -> None:
    tree = crash_host(Tree(tmp_path / "root"), kdump=False)
    tree.put("/proc/cmdline", "ro crashkernel=512M\n")
    tree.put(crash.BACKEND, "efi_pstore\n")
    before = tree.snapshot()
    with pytest.raises(
        Refused, match=r"crash kernel not loaded \(crashkernel=512M\).*efi_pstore, which never kept"
    ) as said:
        tree.apply("crash_policy", PANIC)
    assert "hardlockup_panic: false" in str(said.value)
    assert tree.snapshot() == before
    assert tree.apply("crash_policy", {**PANIC, "hardlockup_panic": False}).failure == ""
    tree.put(f"{crash.ARCHIVE}/dmesg-efi-1", "Panic#1\n")
    assert tree.apply("crash_policy", PANIC).effective == "pstore has kept 1 record(s)"


def test_what_cannot_be_read_is_no_proof(tmp_path: Path) -> None:
    tree = crash_host(Tree(tmp_path / "root"), kdump=False)
    tree.put("/sys/kernel/kexec_crash_loaded", "perhaps\n")
    with pytest.raises(Refused, match=r"kexec_crash_loaded unread \(not_understood\)"):
        tree.apply("crash_policy", PANIC)


@pytest.mark.parametrize(
    ("path", "text", "refused"),
    [
        ("/etc/sysctl.d/60-mine.conf", "# a\nkernel.panic = 5\n", "/etc/sysctl.d/60-mine.conf:2: kernel.panic = 5"),
        ("/etc/sysctl.conf", "kernel/hardlockup_panic=0\n", "/etc/sysctl.conf:1: kernel.hardlockup_panic = 0"),
        ("/usr/lib/sysctl.d/99-vendor.conf", "-kernel.panic = 5\n", "99-vendor.conf:1"),
        ("/usr/lib/sysctl.d/10-vendor.conf", "kernel.panic = 5\n", ""),
        ("/etc/sysctl.d/60-mine.conf", "kernel.panic = 30\nkernel.panic_on_oops = 0\n", ""),
        ("/etc/rc.local", "#!/bin/sh\nsysctl -w kernel.panic=5\n", "/etc/rc.local:2"),
    ],
)
def test_another_owner_of_the_pair_is_named(tmp_path: Path, path: str, text: str, refused: str) -> None:
    tree = running(crash_host(Tree(tmp_path / "root")))
    tree.put(path, text, 0o755)
    if not refused:
        assert tree.apply("crash_policy", PANIC).failure == ""
        return
    with pytest.raises(Refused, match=re.escape(refused)):
        tree.apply("crash_policy", PANIC)
    assert tree.text(f"{LIVE}/panic") == "0\n"


def test_a_file_hides_those_of_its_name_and_the_last_one_wins(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root")
    tree.put("/usr/lib/sysctl.d/20-a.conf", "kernel.panic = 1\n")
    tree.put("/etc/sysctl.d/20-a.conf", "kernel.panic = 2\n")
    tree.put("/etc/sysctl.conf", "kernel.panic = 3\n")
    tree.link("/etc/sysctl.d/99-sysctl.conf", "../sysctl.conf")
    tree.link("/etc/sysctl.d/30-off.conf", "/dev/null")
    found = sysctls.assignments(below(str(tree.root)), ("kernel.panic",)).value
    assert found is not None
    assert [one.where for one in found] == ["/etc/sysctl.d/20-a.conf:1", "/etc/sysctl.d/99-sysctl.conf:1"]


@pytest.mark.parametrize("wish", [{"panic": 30}, {"hardlockup_panic": True}, {**PANIC, "panic": -2}, {**PANIC, "x": 1}])
def test_half_a_pair_is_refused(wish: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="crash_policy"):
        crash_policy.parse(wish)


def test_a_kernel_without_the_detector_has_no_crash_policy(tmp_path: Path) -> None:
    tree = crash_host(Tree(tmp_path / "root"))
    tree.path(f"{LIVE}/hardlockup_panic").unlink()
    assert tree.apply("crash_policy", PANIC).not_applicable == "this kernel has no detector of hard lockups"


# -- memory fence -------------------------------------------------------------------------------------


def test_blocks_go_off_line_now_and_at_every_boot(tmp_path: Path) -> None:
    tree = memory_blocks(Tree(tmp_path / "root"))
    run = tree.apply("memory_fence", FENCE)
    assert not run.failure
    assert (run.live, run.effective) == ("off-line: 5-6", "16.0 GiB MemTotal")
    assert run.persistent == f"off-line: 5-6 ({memory_fence.UNIT})"
    assert "# cost: 4.0 GiB of memory are not used" in run.diff[-1]["after"]
    for number in (5, 6):
        tree.put(f"{BLOCKS}/memory{number}/state", "online\n")  # as a boot does
    line = next(line for line in tree.text(memory_fence.UNIT).splitlines() if line.startswith("ExecStart="))
    script, *numbers = line[len("ExecStart=") :].split()
    subprocess.run([str(tree.path(script)), *numbers], env={**os.environ, "HOSTCHECK_ROOT": str(tree.root)}, check=True)
    assert {tree.text(f"{BLOCKS}/memory{number}/state") for number in (5, 6)} == {"offline\n"}
    fewer = tree.apply("memory_fence", {**FENCE, "blocks": [5]})
    assert not fewer.failure
    assert tree.text(f"{BLOCKS}/memory6/state") == "online\n"


def test_a_block_that_was_off_line_before_stays_so(tmp_path: Path) -> None:
    tree = memory_blocks(Tree(tmp_path / "root"))
    tree.put(f"{BLOCKS}/memory5/state", "offline\n")
    before = tree.snapshot()
    tree.apply("memory_fence", FENCE)
    tree.undo("memory_fence")
    assert tree.snapshot() == before


def test_a_block_that_stays_on_line_is_a_failure_and_the_others_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = memory_blocks(Tree(tmp_path / "root"))
    real = Writer.run

    def run(self: Writer, argv: Any, timeout: float = 1.0) -> str:
        if argv[-1] == "5":
            raise Failed("memory5 stays on-line: Device or resource busy")
        return real(self, argv, timeout)

    monkeypatch.setattr(Writer, "run", run)
    ran = tree.apply("memory_fence", FENCE)
    assert ran.failure == "memory5 stays on-line: Device or resource busy"
    assert tree.text(f"{BLOCKS}/memory6/state") == "offline\n"
    monkeypatch.undo()
    assert tree.apply("memory_fence", FENCE).failure == ""
    assert tree.text(f"{BLOCKS}/memory5/state") == "offline\n"


def script(tree: Tree, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(tree.path(memory_fence.SCRIPT)), *arguments],
        env={**os.environ, "HOSTCHECK_ROOT": str(tree.root), "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_script_says_the_kernels_reason_and_goes_on(tmp_path: Path) -> None:
    tree = memory_blocks(Tree(tmp_path / "root"))
    tree.apply("memory_fence", FENCE)
    tree.put(f"{BLOCKS}/memory6/state", "online\n")
    tree.path(f"{BLOCKS}/memory5/state").unlink()
    tree.link(f"{BLOCKS}/memory5/state", "/proc/version")  # a file that the kernel lets nobody write
    ran = script(tree, "5", "6")
    assert ran.returncode == 1
    assert re.search(r"^memory5 stays on-line: .*(error|Permission denied)", ran.stderr)
    assert tree.text(f"{BLOCKS}/memory6/state") == "offline\n"
    assert script(tree, "6; reboot").returncode == 2


def test_numbers_mean_other_memory_once_blocks_have_another_size(tmp_path: Path) -> None:
    tree = memory_blocks(Tree(tmp_path / "root"))
    tree.apply("memory_fence", FENCE)
    for number in (5, 6):
        tree.put(f"{BLOCKS}/memory{number}/state", "online\n")
    tree.put(f"{BLOCKS}/block_size_bytes", "8000000\n")
    ran = script(tree, "5", "6")
    assert (ran.returncode, "0x8000000 bytes, was 0x80000000" in ran.stderr) == (3, True)
    assert tree.text(f"{BLOCKS}/memory5/state") == "online\n"
    with pytest.raises(Refused, match=r"a block is 0.1 GiB, was 2.0 GiB .* other memory now"):
        tree.apply("memory_fence", FENCE)
    assert not tree.undo("memory_fence").failure


FENCES: dict[str, tuple[dict[str, Any], str]] = {
    "there is none": ({"blocks": [5, 99]}, "memory99 is not there (there are 0-7)"),
    "too much": (
        {"blocks": [3, 4, 5, 6]},
        "4 blocks on-line are 8.0 GiB; of 12.0 GiB available that leaves 4.0 GiB, wanted at least 9216 MiB",
    ),
    "declared floor": ({"blocks": [5], "available_mib": 11000}, "wanted at least 11000 MiB"),
    "not removable": ({"blocks": [1]}, "memory1 is not removable, says the kernel"),
    "two zones": ({"blocks": [0]}, "memory0 has a hole or lies in two zones"),
    "a word": ({"blocks": ["5"]}, "wanted numbers of blocks such as 53"),
}


@pytest.mark.parametrize("why", FENCES)
def test_a_fence_that_does_harm_or_cannot_be_is_refused(tmp_path: Path, why: str) -> None:
    tree = memory_blocks(Tree(tmp_path / "root"))
    tree.put(f"{BLOCKS}/memory1/removable", "0\n")
    tree.put(f"{BLOCKS}/memory0/valid_zones", "none\n")
    before = tree.snapshot()
    wish, said = FENCES[why]
    with pytest.raises(Refused, match=re.escape(said)):
        tree.apply("memory_fence", wish)
    assert tree.snapshot() == before


def test_another_owner_of_the_blocks_is_named(tmp_path: Path) -> None:
    tree = running(memory_blocks(Tree(tmp_path / "root")))
    tree.put("/etc/tmpfiles.d/fence.conf", f"w {BLOCKS}/memory5/state - - - - offline\n")
    with pytest.raises(Refused, match=r"/etc/tmpfiles\.d/fence\.conf:1"):
        tree.apply("memory_fence", FENCE)


def test_a_kernel_that_takes_no_memory_off_line(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="this kernel takes no memory off-line"):
        Tree(tmp_path / "root").apply("memory_fence", FENCE)


# -- memory of containers -----------------------------------------------------------------------------


def test_units_and_containers_may_not_swap(tmp_path: Path) -> None:
    tree = limited(Tree(tmp_path / "root"))
    run = tree.apply("container_memory", LIMITS)
    assert not run.failure
    text = tree.text(container_memory.drop_in("vllm.service"))
    assert text.endswith("[Service]\nMemoryMax=300M\nMemorySwapMax=0\n")
    for name in ("vllm.service", f"docker-{'0123456789abcdef' * 4}.scope"):
        folder = f"/sys/fs/cgroup/system.slice/{name}"
        assert tree.text(f"{folder}/memory.swap.max") == "0\n"
        assert tree.text(f"{folder}/memory.max") == f"{300 << 20}\n"
    assert run.live == "vllm.service: memory 300 MiB, swap 0 MiB; worker: memory 300 MiB, swap 0 MiB"
    assert any("lost when the container is made anew" in one for one in run.warnings)


def test_no_swap_without_a_limit_of_memory(tmp_path: Path) -> None:
    tree = limited(Tree(tmp_path / "root"))
    assert not tree.apply("container_memory", {"units": {"vllm.service": 0}}).failure
    assert "MemoryMax" not in tree.text(container_memory.drop_in("vllm.service"))
    assert tree.text("/sys/fs/cgroup/system.slice/vllm.service/memory.max") == "max\n"


def test_a_limit_that_the_kernel_does_not_have_is_a_failure(tmp_path: Path) -> None:
    tree = limited(Tree(tmp_path / "root"))
    tree.program("systemctl", "#!/bin/sh\n[ $1 = show ] && echo /system.slice/vllm.service\nexit 0\n")
    ran = tree.apply("container_memory", {"units": LIMITS["units"]})
    assert "vllm.service/memory.swap.max: not kept" in ran.failure


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "below the peak of a unit": (
        {"units": {"vllm.service": 150}},
        "150 MiB is below its measured use of 200 MiB (peak) and 100 MiB (current)",
    ),
    "below the peak of a container": ({"containers": {"worker": 199}}, "worker: 199 MiB is below its measured use"),
    "no such container": ({"containers": {"wroker": 300}}, "docker has no container wroker"),
    "not running": ({"containers": {"idle": 300}}, "idle does not run"),
    "another drop-in": ({"units": {"ruled.service": 300}}, "90-mine.conf: MemorySwapMax=4G"),
    "container of a unit": ({"units": {"docked.service": 300}}, "docked.service starts it by docker"),
    "no unit": ({"units": {"vllm": 300}}, "is not the name of a service or slice"),
    "no size": ({"containers": {"worker": 0}}, "wanted MiB, found 0"),
    "a word": ({"units": {"vllm.service": "12G"}}, "wanted MiB, found '12G'"),
}


@pytest.mark.parametrize("why", MISTAKES)
def test_a_limit_that_does_harm_or_nothing_is_refused(tmp_path: Path, why: str) -> None:
    tree = limited(Tree(tmp_path / "root"))
    tree.put("/containers/idle", f"false 0 0 {'ab' * 32}\n")
    unit(tree, "ruled.service")
    tree.put("/etc/systemd/system/ruled.service.d/90-mine.conf", "[Service]\nMemorySwapMax=4G\n")
    unit(tree, "docked.service", "/usr/bin/docker run --rm \\\n  intel/vllm")
    before = tree.snapshot()
    wish, said = MISTAKES[why]
    with pytest.raises(Refused, match=re.escape(said)):
        tree.apply("container_memory", wish)
    assert tree.snapshot() == before


def test_cgroup_version_1_knows_no_limit_of_swap(tmp_path: Path) -> None:
    tree = limited(Tree(tmp_path / "root"))
    tree.path("/sys/fs/cgroup/cgroup.controllers").unlink()
    with pytest.raises(Refused, match="need cgroup version 2"):
        tree.apply("container_memory", LIMITS)


def test_a_tool_that_does_not_answer_is_no_answer(tmp_path: Path) -> None:
    tree = packaged(limited(Tree(tmp_path / "root")))
    tree.program("docker", "#!/bin/sh\necho Cannot connect to the Docker daemon >&2\nexit 1\n")
    tree.program("dpkg-query", "#!/bin/sh\necho parsing error >&2\nexit 2\n")
    with pytest.raises(Failed, match="exit 1, not understood: Cannot connect"):
        tree.apply("container_memory", LIMITS)
    with pytest.raises(Failed, match="dpkg-query: exit 2: parsing error"):
        tree.apply("package_pins", PINS)


def test_no_engine_and_a_unit_that_does_not_run(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root")
    unit(tree, "vllm.service")
    cgroup(tree, "other.service", swapped=3)
    with pytest.raises(Refused, match="neither docker nor podman is installed"):
        tree.apply("container_memory", {"containers": {"worker": 300}})
    run = tree.apply("container_memory", {"units": {"vllm.service": 300, "none.service": 300, "other.service": 300}})
    assert not run.failure
    assert run.warnings == [
        "vllm.service: does not run, so that what it needs was not measured",
        "none.service: there is no such unit on this host yet",
        "other.service: 3 MiB are swapped out now and stay so until it needs them",
    ]


def test_a_container_that_had_no_limit_keeps_the_new_one_and_undo_says_so(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root")
    container(tree, "worker", 0, 0)
    tree.apply("container_memory", {"containers": {"worker": 300}})
    gone = tree.undo("container_memory", {"containers": {"worker": 300}})
    assert gone.failure == ""
    assert gone.left == [
        "docker worker: had no limit, and update takes none away: it stays until the container is made anew"
    ]
    tree.path("/containers/worker").unlink()
    assert tree.undo("container_memory").left == []


# -- packages -----------------------------------------------------------------------------------------


def test_only_holds_of_our_own_are_given_back(tmp_path: Path) -> None:
    tree = packaged(Tree(tmp_path / "root"))
    wish = {"names": [*PINS["names"], "tuned"]}
    run = tree.apply("package_pins", wish)
    assert run.live == "linux-image-amd64 hold, xpu-smi hold, tuned hold"
    assert run.owner == "hostcheck, somebody else (held before this role)"
    tree.undo("package_pins", wish)
    assert [tree.text(f"/var/lib/dpkg/{name}") for name in wish["names"]] == ["install\n", "install\n", "hold\n"]


def test_a_hold_that_was_taken_away_by_hand_is_drift_and_no_business_of_undo(tmp_path: Path) -> None:
    tree = packaged(Tree(tmp_path / "root"))
    tree.apply("package_pins", PINS)
    tree.put("/var/lib/dpkg/xpu-smi", "install\n")
    assert [one["before"] for one in tree.apply("package_pins", PINS, check=True).diff] == ["apt xpu-smi: free\n"]
    assert tree.undo("package_pins").left == []
    assert tree.text("/var/lib/dpkg/linux-image-amd64") == "install\n"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["linux-image-amd64", "intel-opencl-icd"], "intel-opencl-icd: not installed on this host"),
        (["linux-*"], "patterns are not taken"),
        (["--help"], "is not the name of a package"),
    ],
)
def test_a_name_that_is_not_installed_is_refused(tmp_path: Path, names: list[str], said: str) -> None:
    tree = packaged(Tree(tmp_path / "root"))
    before = tree.snapshot()
    with pytest.raises(Refused, match=re.escape(said)):
        tree.apply("package_pins", {"names": names})
    assert tree.snapshot() == before


DNF = """\
#!/bin/sh
file=$HOSTCHECK_ROOT/etc/dnf/plugins/versionlock.list
[ -e "$file" ] || { echo "No such command: versionlock." >&2; exit 1; }
case "$4" in
  list) cat "$file" ;;
  add) echo "$5-0:20250812-14.el9.*" >> "$file" ;;
  delete) grep -v "^$5-0:" "$file" > "$file.new"; cat "$file.new" > "$file"; rm "$file.new" ;;
esac
"""


def test_dnf_locks_versions(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root")
    tree.program("dnf", DNF)
    tree.program("rpm", '#!/bin/sh\n[ "$2" = linux-firmware ] || [ "$2" = kernel-core ]\n')
    wish = {"names": ["linux-firmware", "kernel-core"]}
    with pytest.raises(Refused, match=r"No such command: versionlock.*install python3-dnf-plugin-versionlock"):
        tree.apply("package_pins", wish)
    tree.put("/etc/dnf/plugins/versionlock.list", "kernel-core-0:5.14.0-427.el9.*\n")
    before = tree.snapshot()
    assert not tree.apply("package_pins", wish).failure
    assert package_pins.parse_locks(tree.text("/etc/dnf/plugins/versionlock.list")) == ("kernel-core", "linux-firmware")
    assert not tree.apply("package_pins", wish).changed
    assert not tree.undo("package_pins").failure
    assert tree.snapshot() == before


def test_a_host_without_a_package_manager(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="neither apt-mark"):
        Tree(tmp_path / "root").apply("package_pins", PINS)
