"""Live values and files: governor, power control, collective variables; then what can go wrong in between."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.expectations import expectation
from hostcheck.onhost.settings import collective_env, cpu_governor, files, gpu_runtime_pm
from hostcheck.onhost.settings.catalogue import SETTINGS
from hostcheck.onhost.settings.engine import Host, Refused
from hostcheck.onhost.settings.files import Failed, File, Writer
from tests.settings_host import TUNED_ADM, Tree, card, cpus, debian, nic, running

CPU = "/sys/devices/system/cpu/cpufreq"
PERFORMANCE = {"governor": "performance"}


def governors(tree: Tree) -> set[str]:
    return {path.read_text().strip() for path in tree.path(CPU).glob("policy*/scaling_governor")}


# -- governor -----------------------------------------------------------------------------------------


def test_governor_of_every_policy_now_and_at_boot(tmp_path: Path) -> None:
    tree = cpus(Tree(tmp_path / "root"))
    before = tree.snapshot()
    check = tree.apply("cpu_governor", PERFORMANCE, check=True)
    assert tree.snapshot() == before
    run = tree.apply("cpu_governor", PERFORMANCE)
    assert (run.failure, run.changed, run.diff, run.reboot_required) == ("", True, check.diff, False)
    assert governors(tree) == {"performance"}
    assert "hostcheck" in run.owner
    again = tree.apply("cpu_governor", PERFORMANCE)
    assert (again.changed, again.diff) == (False, [])
    gone = tree.undo("cpu_governor")
    assert (gone.failure, gone.left) == ("", [])
    assert tree.snapshot() == before


def test_the_unit_starts_systemd_tmpfiles_and_that_writes_the_values(tmp_path: Path) -> None:
    tree = cpus(
        Tree(tmp_path / "root"), governors="performance powersave", driver="intel_pstate", epp="balance_performance"
    )
    tree.apply("cpu_governor", {"governor": "powersave", "epp": "power", "disable_deepest_idle": True})
    unit = tree.text(cpu_governor.UNIT)
    assert f"ExecStart=systemd-tmpfiles --create {cpu_governor.TMPFILES}\n" in unit
    assert os.readlink(tree.path(cpu_governor.UNIT_LINK)) == cpu_governor.UNIT
    text = tree.text(cpu_governor.TMPFILES)
    assert text.index("scaling_governor") < text.index("energy_performance_preference")
    assert "cpu*/cpuidle/state2/disable - - - - 1" in text
    for path in tree.path(CPU).glob("policy*"):
        (path / "scaling_governor").write_text("")
        (path / "energy_performance_preference").write_text("")
    below = tmp_path / "below.conf"
    below.write_text(text.replace(" /sys/", f" {tree.root}/sys/"))
    subprocess.run(["systemd-tmpfiles", "--create", str(below)], check=True)
    assert governors(tree) == {"powersave"}
    assert {path.read_text() for path in tree.path(CPU).glob("policy*/energy_performance_preference")} == {"power"}


def test_deepest_idle_states_that_differ_are_named_one_by_one(tmp_path: Path) -> None:
    tree = cpus(Tree(tmp_path / "root"))
    tree.put("/sys/devices/system/cpu/cpu1/cpuidle/state3/disable", "0\n")
    run = tree.apply("cpu_governor", {"disable_deepest_idle": True})
    assert not run.failure
    assert "cpu*/cpuidle" not in tree.text(cpu_governor.TMPFILES)
    assert tree.text("/sys/devices/system/cpu/cpu1/cpuidle/state3/disable") == "1\n"
    assert tree.text("/sys/devices/system/cpu/cpu1/cpuidle/state2/disable") == "0\n"
    assert tree.text("/sys/devices/system/cpu/cpu0/cpuidle/state2/disable") == "1\n"


def test_no_cpufreq_is_not_applicable(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root")
    tree.put("/sys/devices/system/cpu/cpu0/online", "1\n")
    before = tree.snapshot()
    run = tree.apply("cpu_governor", PERFORMANCE)
    assert run.not_applicable.startswith("no cpufreq driver")
    assert not run.changed
    assert tree.snapshot() == before


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"governor": "perfomance"}, "'perfomance' is not offered; policy0 offers performance, powersave"),
        ({"governor": "performance", "epp": "power"}, "takes only performance (EBUSY)"),
        ({"epp": "quick"}, "is not offered; policy0 offers default, performance"),
        ({"scaling_min_freq": 100}, "outside 800000 to 3800000"),
        ({"scaling_min_freq": True}, "wanted int"),
        ({"governer": "performance"}, "unknown key governer"),
        ({"governor": "a; reboot"}, "is not a word"),
    ],
)
def test_a_wrong_wish_lists_what_is_offered(tmp_path: Path, wanted: dict[str, Any], said: str) -> None:
    tree = cpus(
        Tree(tmp_path / "root"),
        governor="powersave",
        governors="performance powersave",
        driver="intel_pstate",
        epp="power",
    )
    before = tree.snapshot()
    with pytest.raises(Refused, match=re.escape(said)):
        tree.apply("cpu_governor", wanted)
    assert tree.snapshot() == before


RIVALS = {
    "power-profiles-daemon": lambda tree: running(tree, "power-profiles-daemon.service"),
    "TLP": lambda tree: (
        running(tree, "tlp.service"),
        tree.put("/etc/tlp.conf", "CPU_SCALING_GOVERNOR_ON_AC=powersave\n"),
    ),
    "auto-cpufreq": lambda tree: running(tree, "auto-cpufreq.service"),
    "cpufrequtils": lambda tree: (
        running(tree),
        tree.put("/etc/default/cpufrequtils", 'GOVERNOR="ondemand"\n'),
        tree.link("/etc/systemd/system/multi-user.target.wants/cpufrequtils.service", "/lib/x"),
    ),
    "cpupower": lambda tree: running(tree, "cpupower.service"),
    "ondemand": lambda tree: running(tree, "ondemand.service"),
    "system76-power": lambda tree: running(tree, "com.system76.PowerDaemon.service"),
    "/etc/rc.local:2": lambda tree: (
        running(tree),
        tree.put(
            "/etc/rc.local",
            "#!/bin/sh\necho powersave > /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor\n",
            0o755,
        ),
    ),
    "/etc/cron.d/gov:1": lambda tree: (
        running(tree),
        tree.put("/etc/cron.d/gov", "@reboot root cpupower frequency-set -g powersave\n"),
    ),
    "/etc/systemd/system/mine.service:2": lambda tree: (
        running(tree),
        tree.put("/etc/systemd/system/mine.service", "[Service]\nExecStart=cpupower frequency-set -g powersave\n"),
        tree.link("/etc/systemd/system/multi-user.target.wants/mine.service", "/etc/systemd/system/mine.service"),
    ),
}


@pytest.mark.parametrize("name", RIVALS)
def test_another_owner_is_named_and_not_fought(tmp_path: Path, name: str) -> None:
    tree = cpus(Tree(tmp_path / "root"))
    RIVALS[name](tree)
    before = tree.snapshot()
    with pytest.raises(Refused, match=re.escape(name)):
        tree.apply("cpu_governor", PERFORMANCE)
    assert tree.snapshot() == before


def tuned(tree: Tree, mode: str = "manual") -> Tree:
    tree.program("tuned-adm", TUNED_ADM)
    tree.put("/etc/tuned/active_profile", "balanced\n")
    tree.put("/etc/tuned/profile_mode", f"{mode}\n")
    return running(tree, "tuned.service")


@pytest.mark.parametrize("mode", ["manual", "auto"])
def test_where_tuned_runs_its_own_profile_includes_the_active_one(tmp_path: Path, mode: str) -> None:
    tree = tuned(cpus(Tree(tmp_path / "root"), governor="powersave", governors="performance powersave"), mode)
    before = tree.snapshot()
    check = tree.apply("cpu_governor", PERFORMANCE, check=True)
    run = tree.apply("cpu_governor", PERFORMANCE)
    assert (run.failure, run.diff) == ("", check.diff)
    assert "include=balanced\n" in tree.text("/etc/tuned/hostcheck/tuned.conf")
    assert tree.text("/etc/tuned/active_profile") == "hostcheck\n"
    assert not tree.path(cpu_governor.UNIT).exists()
    assert not tree.apply("cpu_governor", PERFORMANCE).changed
    assert not tree.undo("cpu_governor").failure
    assert tree.snapshot() == before


def test_tuned_that_is_enabled_and_does_not_run_is_refused(tmp_path: Path) -> None:
    tree = cpus(running(Tree(tmp_path / "root")))
    tree.link("/etc/systemd/system/multi-user.target.wants/tuned.service", "/usr/lib/systemd/system/tuned.service")
    with pytest.raises(Refused, match="enabled but does not run"):
        tree.apply("cpu_governor", PERFORMANCE)


def test_a_profile_that_tuned_does_not_follow_is_a_failure(tmp_path: Path) -> None:
    tree = tuned(cpus(Tree(tmp_path / "root")))
    tree.program("tuned-adm", '#!/bin/sh\nshift\necho "$*" > "$HOSTCHECK_ROOT/etc/tuned/active_profile"\n')
    assert "scaling_governor: not kept" in tree.apply("cpu_governor", PERFORMANCE).failure


# -- power control ------------------------------------------------------------------------------------


def controls(tree: Tree) -> dict[str, str]:
    folder = tree.path("/sys/bus/pci/devices")
    return {path.name: (path / "power/control").read_text().strip() for path in folder.iterdir()}


@pytest.mark.parametrize("domain", ["0000", "0001", "10000"])
def test_every_card_and_every_bridge_above_it_stays_on(tmp_path: Path, domain: str) -> None:
    tree = Tree(tmp_path / "root")
    card(tree, domain)
    before = tree.snapshot()
    check = tree.apply("gpu_runtime_pm", {"control": True}, check=True)
    run = tree.apply("gpu_runtime_pm", {"control": "on"})
    assert (run.failure, run.diff, run.warnings) == ("", check.diff, [])
    assert set(controls(tree).values()) == {"on"}
    assert "hostcheck-gpu-pm@%k.service" in tree.text(gpu_runtime_pm.RULES)
    assert not tree.apply("gpu_runtime_pm", {"control": "on"}).changed
    gone = tree.undo("gpu_runtime_pm")
    assert len(gone.left) == 4
    assert set(controls(tree).values()) == {"on"}, "auto was written to a running host"
    assert {path for path, one in before.items() if tree.snapshot()[path] != one} == {
        path for path in before if path.endswith("/power/control")
    }


def test_a_host_that_allows_auto_gets_it_back(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root")
    card(tree)
    before = tree.snapshot()
    tree.apply("gpu_runtime_pm", {"control": "on", "runtime_auto": True})
    assert not tree.undo("gpu_runtime_pm", {"control": "on", "runtime_auto": True}).left
    assert tree.snapshot() == before


def test_a_sleeping_card_is_not_woken(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root")
    card(tree, bus=0x20)
    asleep = card(tree, bus=0x40, status="suspended")
    run = tree.apply("gpu_runtime_pm", {"control": "on"})
    assert not run.failure
    assert any(asleep in warning and "suspended" in warning for warning in run.warnings)
    assert run.reboot_required
    assert {bdf: value for bdf, value in controls(tree).items() if value == "auto"}.keys() == {
        "0000:40:01.0",
        "0000:41:00.0",
        "0000:42:01.0",
        asleep,
    }


def test_no_card_is_a_mistake_only_where_cards_are_expected(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root")
    tree.path("/sys/bus/pci/devices").mkdir(parents=True)
    with pytest.raises(Refused, match="cards are expected"):
        tree.apply("gpu_runtime_pm", {"control": "on", "cards_expected": True})
    assert not tree.apply("gpu_runtime_pm", {"control": "on"}).failure


def test_auto_needs_the_override() -> None:
    with pytest.raises(Refused, match="runtime_auto"):
        gpu_runtime_pm.parse({"control": "auto"})


@pytest.mark.parametrize("status", ["active", "suspended"])
def test_the_script_walks_from_the_card_to_its_root_port(tmp_path: Path, status: str) -> None:
    tree = Tree(tmp_path / "root")
    gpu = card(tree, status=status)
    tree.put("/gpu-pm", gpu_runtime_pm.SCRIPT_TEXT.replace("@CONTROL@", "on"), 0o755)
    ran = subprocess.run(
        [str(tree.path("/gpu-pm")), gpu],
        env={**os.environ, "HOSTCHECK_ROOT": str(tree.root)},
        capture_output=True,
        text=True,
    )
    found = controls(tree)
    assert ran.returncode == (0 if status == "active" else 1)
    assert found.pop(gpu) == ("on" if status == "active" else "auto")
    assert set(found.values()) == {"on"}


def test_the_script_takes_nothing_but_an_address(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root")
    tree.put("/gpu-pm", gpu_runtime_pm.SCRIPT_TEXT, 0o755)
    for argument in ("", "../../x", "0000:03:00.0; reboot"):
        assert subprocess.run([str(tree.path("/gpu-pm")), argument], capture_output=True).returncode == 2


# -- collective variables -----------------------------------------------------------------------------

MAC, OTHER = "52:54:00:00:01:01", "52:54:00:00:01:02"
ADDRESSES = [
    {"ifname": "lo", "addr_info": [{"local": "127.0.0.1", "prefixlen": 8}]},
    {"ifname": "eth1", "addr_info": [{"local": "10.1.0.7", "prefixlen": 16}]},
    {
        "ifname": "eth2",
        "addr_info": [{"local": "fe80::1%eth2", "prefixlen": 64}, {"local": "192.168.3.4", "prefixlen": 24}],
    },
]


def network(tree: Tree) -> Tree:
    nic(tree, "lo", "00:00:00:00:00:00", device=False)
    nic(tree, "eth1", MAC)
    nic(tree, "eth2", OTHER)
    nic(tree, "usb0", "52:54:00:00:01:03", carrier="0")
    tree.put("/sys/class/net/bonding_masters", "\n")
    tree.program("ip", f"#!/bin/sh\necho '{json.dumps(ADDRESSES)}'\n")
    return tree


@pytest.mark.parametrize(
    ("interface", "name"),
    [
        ({"name": "eth1"}, "eth1"),
        ({"mac": MAC.upper()}, "eth1"),
        ({"address": "192.168.3.4"}, "eth2"),
        ({"subnet": "10.1.0.0/16"}, "eth1"),
        ({"name": "lo"}, "lo"),
    ],
)
def test_the_interface_is_found_and_written(tmp_path: Path, interface: dict[str, str], name: str) -> None:
    tree = network(Tree(tmp_path / "root"))
    before = tree.snapshot()
    wanted = {"interface": interface, "variables": {"CCL_ATL_TRANSPORT": "ofi"}, "units": ["vllm@.service"]}
    check = tree.apply("collective_env", wanted, check=True)
    run = tree.apply("collective_env", wanted)
    assert (run.failure, run.diff) == ("", check.diff)
    lines = [line for line in tree.text(collective_env.FILE).splitlines() if not line.startswith("#")]
    assert lines == ["CCL_ATL_TRANSPORT=ofi", f"CCL_KVS_IFACE={name}", f"FI_TCP_IFACE={name}"]
    assert f"EnvironmentFile={collective_env.FILE}" in tree.text(collective_env.drop_in("vllm@.service"))
    assert not tree.apply("collective_env", wanted).changed
    assert not tree.undo("collective_env").failure
    assert tree.snapshot() == before


def test_a_renamed_interface_is_found_again(tmp_path: Path) -> None:
    tree = network(Tree(tmp_path / "root"))
    wanted = {"interface": {"mac": MAC}}
    tree.apply("collective_env", wanted)
    tree.path("/sys/class/net/eth1").rename(tree.path("/sys/class/net/enp1s0"))
    assert tree.apply("collective_env", wanted, check=True).changed
    tree.apply("collective_env", wanted)
    assert "FI_TCP_IFACE=enp1s0\n" in tree.text(collective_env.FILE)


@pytest.mark.parametrize(
    ("interface", "said"),
    [
        ({"mac": "52:54:00:00:09:09"}, "no interface has it; there are: eth1 (52:54:00:00:01:01"),
        ({"name": "usb0"}, "usb0 has no carrier"),
        ({"address": "127.0.0.1"}, "say name: lo"),
        ({"subnet": "172.16.0.0/12"}, "no interface has it"),
        ({"mac": "nonsense"}, "no MAC address"),
        ({"name": "eth1", "mac": MAC}, "exactly one"),
    ],
)
def test_an_interface_that_cannot_be_used_lists_those_there_are(
    tmp_path: Path, interface: dict[str, str], said: str
) -> None:
    tree = network(Tree(tmp_path / "root"))
    before = tree.snapshot()
    with pytest.raises(Refused, match=re.escape(said)):
        tree.apply("collective_env", {"interface": interface})
    assert tree.snapshot() == before


def test_a_vlan_with_the_same_mac_is_not_the_card(tmp_path: Path) -> None:
    tree = network(Tree(tmp_path / "root"))
    nic(tree, "vlan7", MAC, device=False)
    assert not tree.apply("collective_env", {"interface": {"mac": MAC}}).failure
    assert "FI_TCP_IFACE=eth1\n" in tree.text(collective_env.FILE)


def test_addresses_that_cannot_be_read_are_no_answer(tmp_path: Path) -> None:
    tree = network(Tree(tmp_path / "root"))
    tree.path("/usr/sbin/ip").unlink()
    with pytest.raises(Failed, match="cannot be read"):
        tree.apply("collective_env", {"interface": {"subnet": "10.1.0.0/16"}})


def test_a_link_file_renames_from_the_next_boot_on(tmp_path: Path) -> None:
    tree = network(Tree(tmp_path / "root"))
    before = tree.snapshot()
    run = tree.apply("collective_env", {"interface": {"mac": MAC}, "link_name": "fabric0"})
    assert (run.failure, run.reboot_required) == ("", True)
    assert f"MACAddress={MAC}" in tree.text("/etc/systemd/network/10-hostcheck-fabric0.link")
    assert tree.apply("collective_env", {"interface": {"mac": MAC}}).changed
    assert not tree.path("/etc/systemd/network/10-hostcheck-fabric0.link").exists()
    tree.undo("collective_env")
    assert tree.snapshot() == before


@pytest.mark.parametrize("name", ["eth7", "enp3s0", "wlan0", "lo", "ib0", "Fabric", "a name", "sixteen-letters-x"])
def test_a_link_name_of_the_kernel_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="link_name"):
        collective_env.parse({"interface": {"mac": MAC}, "link_name": name})


@pytest.mark.parametrize("name", ["eth1", "lofabric"])
def test_names_that_can_be_confused_are_warned_of(tmp_path: Path, name: str) -> None:
    tree = network(Tree(tmp_path / "root"))
    nic(tree, name if name != "eth1" else "eth10", "52:54:00:00:01:09")
    warnings = tree.apply("collective_env", {"interface": {"name": name}}, check=True).warnings
    assert any("search by part of the name" in one for one in warnings)


@pytest.mark.parametrize("value", ["a b", "a'b", 'a"b', "$(reboot)", "a\nb", True, None, ["x"]])
def test_a_value_that_not_every_reader_takes_alike_is_refused(value: Any) -> None:
    with pytest.raises(Refused, match="variables"):
        collective_env.parse({"variables": {"X": value}})


# -- one wish for audit and role ----------------------------------------------------------------------

WISHES: dict[str, dict[str, Any]] = {
    "cpu_governor": {
        "governor": "performance",
        "epp": "performance",
        "scaling_min_freq": 1,
        "disable_deepest_idle": True,
    },
    "kernel_arguments": {"present": ["a"], "absent": ["b"], "try_once": True},
    "pcie_aspm": {"policy": "performance", "effective": "l1", "runtime_write": False},
    "gpu_runtime_pm": {"control": True, "runtime_auto": False, "cards_expected": True},
    "collective_env": {
        "interface": {"mac": MAC},
        "variables": {"A": "1"},
        "units": ["a.service"],
        "link_name": "fabric0",
    },
    "crash_policy": {"hardlockup_panic": True, "panic": 30},
    "memory_fence": {"blocks": [5], "available_mib": 4096},
    "container_memory": {"units": {"vllm.service": 0}, "containers": {"worker": 300}},
    "package_pins": {"names": ["linux-firmware"]},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_audit_and_role_read_the_same_keys(name: str) -> None:
    model = expectation({"settings": {name: WISHES[name]}}).settings
    assert set(type(getattr(model, name)).model_fields) == set(WISHES[name])
    SETTINGS[name].parse(WISHES[name])
    with pytest.raises(Refused, match="unknown key surplus"):
        SETTINGS[name].parse({**WISHES[name], "surplus": 1})


# -- what can go wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "name", "on"),
    [
        (errno.EPERM, "EPERM", "scaling_governor"),
        (errno.EBUSY, "EBUSY", "energy_performance_preference"),
        (errno.EINVAL, "EINVAL", "scaling_governor"),
        (errno.EROFS, "EROFS", "scaling_governor"),
    ],
)
def test_a_refused_write_is_a_failure_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, name: str, on: str
) -> None:
    tree = cpus(Tree(tmp_path / "root"), governor="powersave", governors="performance powersave", epp="power")
    before = tree.snapshot()
    write = os.write

    def refuse(descriptor: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(on):
            raise OSError(number, os.strerror(number))
        return write(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "write", refuse)
        run = tree.apply("cpu_governor", {"governor": "performance", "epp": "performance"})
    assert f"{on}: {name}" in run.failure
    assert run.done
    assert not tree.undo("cpu_governor").failure
    assert tree.snapshot() == before


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = network(Tree(tmp_path / "root"))
    tree.apply("collective_env", {"interface": {"name": "eth1"}})
    before = tree.snapshot()

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "write", full)
    run = tree.apply("collective_env", {"interface": {"name": "eth2"}})
    assert "ENOSPC" in run.failure
    assert (run.changed, run.done) == (False, [])
    assert tree.snapshot() == before


def test_a_value_that_is_not_kept_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = cpus(Tree(tmp_path / "root"))
    monkeypatch.setattr(Writer, "value", lambda self, path, text: None)
    run = tree.apply("cpu_governor", PERFORMANCE)
    assert "scaling_governor: not kept: wanted" in run.failure
    assert run.failure.endswith("scaling_governor = schedutil")


class Killed(BaseException):
    """Stands for a kill: nothing of the toolkit may catch it."""


@pytest.mark.parametrize("setting", ["cpu_governor", "kernel_arguments", "collective_env"])
@pytest.mark.parametrize("direction", ["apply", "undo"])
def test_a_run_killed_at_any_point_leaves_old_or_new_and_can_be_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, direction: str
) -> None:
    wanted = {"cpu_governor": PERFORMANCE, "kernel_arguments": {"present": ["iommu=pt"]}}
    wish: dict[str, Any] = wanted.get(setting, {"interface": {"name": "eth1"}, "units": ["a.service"]})
    left = 0
    while True:
        tree = network(cpus(debian(tmp_path / f"root{left}")))
        before = tree.snapshot()
        if direction == "undo":
            tree.apply(setting, wish)
        steps = left
        rename, value, run = os.rename, Writer.value, Writer.run

        def count() -> None:
            nonlocal steps
            steps -= 1
            if steps < 0:
                raise Killed

        def killing(what: Any) -> Any:
            def call(*arguments: Any, **more: Any) -> Any:
                count()
                result = what(*arguments, **more)
                count()
                return result

            return call

        done = False
        with monkeypatch.context() as patch:
            patch.setattr(files.os, "rename", killing(rename))
            patch.setattr(Writer, "value", killing(value))
            patch.setattr(Writer, "run", killing(run))
            patch.setattr(Writer, "remove", killing(Writer.remove))
            try:
                tree.apply(setting, wish) if direction == "apply" else tree.undo(setting)
                done = True
            except Killed:
                pass
        for path in tree.root.rglob("*.cfg"):
            assert path.read_text().endswith(("\n", "}")), f"{path} is half written"
        again = tree.undo(setting)
        assert (again.failure, again.left) == ("", [])
        assert tree.snapshot() == before, f"killed at {left}"
        if done:
            return
        left += 1
        assert left < 200


def test_a_value_changed_by_hand_is_left_and_said(tmp_path: Path) -> None:
    tree = network(cpus(Tree(tmp_path / "root")))
    tree.apply("cpu_governor", PERFORMANCE)
    tree.put(f"{CPU}/policy1/scaling_governor", "ondemand\n")
    tree.put(cpu_governor.TMPFILES, "# mine\n")
    gone = tree.undo("cpu_governor")
    assert not gone.failure
    assert len(gone.left) == 2
    assert all("changed by hand" in one for one in gone.left)
    assert tree.text(f"{CPU}/policy1/scaling_governor") == "ondemand\n"
    assert tree.text(cpu_governor.TMPFILES) == "# mine\n"
    assert tree.text(f"{CPU}/policy0/scaling_governor") == "schedutil\n"
    again = tree.undo("cpu_governor")
    assert (again.changed, len(again.left)) == (False, 2)


def test_an_edit_is_drift_and_the_first_value_is_kept(tmp_path: Path) -> None:
    tree = cpus(Tree(tmp_path / "root"))
    before = tree.snapshot()
    tree.apply("cpu_governor", PERFORMANCE)
    tree.put(f"{CPU}/policy2/scaling_governor", "schedutil\n")
    tree.put(cpu_governor.UNIT, "[Unit]\n")
    assert tree.apply("cpu_governor", PERFORMANCE, check=True).changed
    assert not tree.apply("cpu_governor", PERFORMANCE).failure
    assert governors(tree) == {"performance"}
    tree.undo("cpu_governor")
    assert tree.snapshot() == before


def test_a_file_that_was_there_keeps_mode_and_owner_and_comes_back(tmp_path: Path) -> None:
    tree = network(Tree(tmp_path / "root"))
    tree.put(collective_env.FILE, "FI_TCP_IFACE=eth9\n", 0o640)
    os.chown(tree.path(collective_env.FILE), 1234, 4321)
    before = tree.snapshot()
    tree.apply("collective_env", {"interface": {"name": "eth1"}})
    status = tree.path(collective_env.FILE).stat()
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o640, 1234, 4321)
    tree.undo("collective_env")
    assert tree.snapshot() == before


def test_the_record_is_private_and_written_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = cpus(Tree(tmp_path / "root"))
    record = tree.path("/var/lib/hostcheck/cpu_governor.json")
    seen = []
    value = Writer.value

    def look(self: Writer, path: str, text: str) -> None:
        seen.append(json.loads(record.read_text())["items"])
        value(self, path, text)

    monkeypatch.setattr(Writer, "value", look)
    tree.apply("cpu_governor", PERFORMANCE)
    assert len(seen) == 4
    assert {item["found"] for item in seen[0] if item["thing"]["kind"] == "value"} == {"schedutil"}
    assert record.stat().st_mode & 0o777 == 0o600
    assert json.loads(record.read_text())["schema"] == "hostcheck/state/1"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "hostcheck/state/2"}'])
def test_a_record_that_is_not_understood_stops_everything(tmp_path: Path, text: str) -> None:
    tree = cpus(Tree(tmp_path / "root"))
    tree.put("/var/lib/hostcheck/cpu_governor.json", text)
    before = tree.snapshot()
    for change in (lambda: tree.apply("cpu_governor", PERFORMANCE), lambda: tree.undo("cpu_governor")):
        with pytest.raises(Failed, match="not understood"):
            change()
    assert tree.snapshot() == before


def test_a_second_run_has_to_wait(tmp_path: Path) -> None:
    tree = cpus(Tree(tmp_path / "root"))
    before = tree.snapshot()
    with Writer(str(tree.root)).lock(), pytest.raises(Failed, match="another run"):
        tree.apply("cpu_governor", PERFORMANCE)
    assert tree.snapshot() == before
    assert tree.apply("cpu_governor", PERFORMANCE, check=True).changed


def test_nothing_leaves_the_root(tmp_path: Path) -> None:
    tree = network(Tree(tmp_path / "root"))
    outside = tmp_path / "outside"
    outside.mkdir()
    tree.path(str(outside)).mkdir(parents=True)
    tree.link("/etc/hostcheck", f"../../../../../..{outside}")
    assert not tree.apply("collective_env", {"interface": {"name": "eth1"}}).failure
    assert list(outside.iterdir()) == []
    assert tree.path(f"{outside}/collective.env").exists()


# -- the writer ---------------------------------------------------------------------------------------


@given(
    st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0")), st.sampled_from([0o600, 0o644])
)
def test_a_file_is_what_was_put(tmp_path_factory: pytest.TempPathFactory, text: str, mode: int) -> None:
    root = tmp_path_factory.mktemp("root")
    writer = Writer(str(root))
    writer.put("/a", File(text, None, mode))
    found = writer.file("/a")
    assert found is not None
    assert (found.text, found.mode) == (text, mode)
    assert File.of(found.plain()) == found


def test_a_link_to_a_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    Writer(str(tmp_path)).put("/link", File("new"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name in ("/folder", "/bytes"):
        with pytest.raises(Failed, match="left alone"):
            Writer(str(tmp_path)).file(name)


def test_a_host_without_systemd_reloads_nothing(tmp_path: Path) -> None:
    assert not Host(str(Tree(tmp_path / "root").root)).booted()
