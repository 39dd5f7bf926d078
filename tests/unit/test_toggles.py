"""What can be switched while a host runs, how it is read back, what shows that it acted, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hostcheck.onhost.probe import session
from hostcheck.onhost.settings.catalogue import SETTINGS
from hostcheck.onhost.settings.engine import Host, Refused
from hostcheck.onhost.trials import catalogue, deadman, restorer, run
from hostcheck.onhost.trials.cpu_governor import CPUS
from hostcheck.onhost.trials.switch import NeedsBoot, Scope, Switch, Switches
from tests import replay
from tests.settings_host import Tree, card, cpus, running
from tests.trial_host import POLICIES

PERFORMANCE = {"governor": "performance"}
ANYWHERE = Scope()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return cpus(Tree(tmp_path / "root"), count=2)


def made(
    tree: Tree, name: str, b: Mapping[str, Any], a: Mapping[str, Any] | None = None, scope: Scope = ANYWHERE
) -> Switch:
    return catalogue.switch(Host(str(tree.root)), name, a or {}, b, scope)


def toggled(tree: Tree, one: Switch, scope: Scope = ANYWHERE) -> Switches:
    host = Host(str(tree.root))
    tree.path("/var/lib/hostcheck/trials/x").mkdir(parents=True, exist_ok=True)
    return Switches(host, [one], scope, deadman.Deadman(host, "/var/lib/hostcheck/trials/x", one.steps, 1.0))


def every(tree: Tree, name: str) -> list[str]:
    return [path.read_text().strip() for path in sorted(tree.path(POLICIES).glob(f"policy*/{name}"))]


def test_every_toggle_is_judged_on_a_metric_that_the_worker_has() -> None:
    assert {run.FAMILY.get(name, name) for name in run.METRICS} < set(session.METRICS)
    assert set(SETTINGS) & set(catalogue.TOGGLES) == {"cpu_governor", "pcie_aspm", "gpu_runtime_pm"}


def test_a_governor_is_written_on_every_policy_and_read_on_every_policy(tree: Tree) -> None:
    tree.put(f"{POLICIES}/policy1/scaling_governor", "ondemand\n")  # found unequal, and comes back so
    one = made(tree, "cpu_governor", PERFORMANCE)
    switches = toggled(tree, one)
    assert switches.read() == "scaling_governor schedutil, ondemand"
    switches.set("B")
    assert every(tree, "scaling_governor") == ["performance", "performance"]
    tree.put(f"{POLICIES}/policy1/scaling_governor", "schedutil\n")
    assert switches.read() == "scaling_governor performance, schedutil"
    switches.set("A")
    assert every(tree, "scaling_governor") == ["schedutil", "ondemand"]
    switches.set("B")
    assert switches.restore() == ""
    assert every(tree, "scaling_governor") == ["schedutil", "ondemand"]
    assert one.metric == "launch_us"


def test_the_clock_is_that_of_the_workers_processors(tree: Tree) -> None:
    tree.put(f"{POLICIES}/policy1/scaling_cur_freq", "3800000\n")
    one = made(tree, "cpu_governor", PERFORMANCE)
    assert toggled(tree, one, Scope((1,))).evidence() == {"clock_khz": 3800000.0}
    assert toggled(tree, one).evidence() == {"clock_khz": 2950000.0}
    tree.put(f"{POLICIES}/policy1/scaling_cur_freq", "<unknown>\n")
    assert toggled(tree, one, Scope((1,))).evidence() == {"clock_khz": None}


def test_what_a_driver_changes_with_the_governor_comes_back_too(tmp_path: Path) -> None:
    tree = cpus(
        Tree(tmp_path / "root"), 2, "powersave", "performance powersave", "intel_pstate", epp="balance_performance"
    )
    tree.put(f"{CPUS}/intel_pstate/no_turbo", "0\n")
    switches = toggled(tree, made(tree, "cpu_governor", PERFORMANCE))
    switches.set("B")
    for number in (0, 1):  # as these drivers do
        tree.put(f"{POLICIES}/policy{number}/energy_performance_preference", "performance\n")
    tree.put(f"{CPUS}/intel_pstate/no_turbo", "1\n")
    switches.set("A")
    assert every(tree, "energy_performance_preference") == ["balance_performance"] * 2
    switches.set("B")
    tree.put(f"{POLICIES}/policy0/energy_performance_preference", "performance\n")
    assert switches.restore() == ""
    assert every(tree, "energy_performance_preference") == ["balance_performance"] * 2
    assert tree.text(f"{CPUS}/intel_pstate/no_turbo") == "0\n"
    one = made(tree, "cpu_governor", {"epp": "performance"})
    assert one.words == {
        "A": "energy_performance_preference balance_performance", "B": "energy_performance_preference performance",
    }  # fmt: skip


def test_idle_states_are_judged_after_a_sleep_and_by_the_time_spent_in_them(tree: Tree) -> None:
    for cpu in (0, 1):
        tree.put(f"{CPUS}/cpu{cpu}/cpuidle/state2/time", "1000\n")
    one = made(tree, "cpu_governor", {"disable_deepest_idle": True})
    assert one.metric == "gap_sync_3ms_us"
    assert [thing.key for thing in one.things] == [f"{CPUS}/cpu{cpu}/cpuidle/state2/disable" for cpu in (0, 1)]
    switches = toggled(tree, one, Scope((1,)))
    switches.set("B")
    assert switches.read() == "state2/disable 1"
    tree.put(f"{CPUS}/cpu0/cpuidle/state2/time", "999000\n")  # not the worker's
    assert switches.evidence() == {"deepest_idle_us_per_s": 0.0}
    tree.put(f"{CPUS}/cpu1/cpuidle/state2/time", "2000\n")
    assert switches.evidence()["deepest_idle_us_per_s"] > 0
    tree.path(f"{CPUS}/cpu1/cpuidle/state2/time").unlink()
    assert switches.evidence() == {"deepest_idle_us_per_s": None}
    assert switches.restore() == ""
    assert tree.text(f"{CPUS}/cpu1/cpuidle/state2/disable") == "0\n"


@pytest.mark.parametrize(
    ("name", "b", "said"),
    [
        ("cpu_governor", {"governor": "turbo"}, "'turbo' is not offered; policy0 offers performance, schedutil"),
        ("cpu_governor", {"governor": "schedutil"}, "both arms have the same values"),
        ("cpu_governor", {}, "both arms have the same values"),
        ("cpu_governor", {"epp": "power"}, "has no energy performance preference"),
        ("cpu_governor", {"governor": "performance", "scaling_min_freq": 900000}, "in one toggle"),
        ("cpu_governor", {"speed": 1}, "unknown key speed"),
        ("governor", {}, "there is no toggle 'governor'; there are command, cpu_governor, gpu_runtime_pm"),
        ("collective_env", {}, "nothing of it can be switched under a worker"),
        ("value", {"path": "/proc/sys/vm/none", "value": 1}, "is not there"),
        ("value", {"path": "/proc/sys/vm/x"}, "b names path and value"),
        ("value", {"path": "/etc/passwd", "value": 1}, "is not below /sys, /proc/sys"),
        ("value", {"path": "/sys/../etc/passwd", "value": 1}, "is not below /sys, /proc/sys"),
        ("value", {"path": "/sys/a", "value": "1\n2"}, "is not one line"),
        ("value", {"path": "/sys/module/pcie_aspm/parameters/policy", "value": "performance"}, "toggle pcie_aspm's"),
        ("value", {"path": f"{POLICIES}/policy0/scaling_governor", "value": "performance"}, "toggle cpu_governor's"),
        ("value", {"path": "/sys/bus/pci/devices/0000:23:00.0/power/control", "value": "on"}, "toggle gpu_runtime_pm"),
        ("value", {"path": "/sys/bus/pci/devices/0000:23:00.0/reset", "value": "1"}, "is never written"),
        ("value", {"path": "/sys/bus/pci/rescan", "value": "1"}, "is never written"),
        ("value", {"path": "/sys/bus/pci/drivers/xe/unbind", "value": "0000:23:00.0"}, "is never written"),
        ("value", {"path": "/sys/class/devcoredump/devcd1/data", "value": "1"}, "is never written"),
        ("value", {"path": "/sys/kernel/debug/dri/0/x", "value": "1"}, "is never written"),
        ("value", {"path": "/sys/power/state", "value": "mem"}, "is never written"),
        ("value", {"path": "/proc/sys/kernel/panic", "value": "1"}, "is never written"),
        ("command", {"a": ["true"]}, "b, read missing"),
        ("command", {"a": ["true"], "b": "true", "read": ["true"]}, "b: wanted list, found 'true'"),
        ("command", {"a": ["true"], "b": [], "read": ["true"]}, "b: wanted a list of words"),
        ("command", {"a": ["true"], "b": ["no-such"], "read": ["true"]}, "is not installed on this host"),
        ("command", {"a": ["true"], "b": ["true"], "read": ["two"]}, "wanted one line, two printed a b"),
        ("command", {"a": ["true"], "b": ["true"], "read": ["false"]}, "false: exit 1"),
        ("command", {"a": ["true"], "b": ["true"], "read": ["two"], "timeout": 0}, "wanted more than 0"),
    ],
)
def test_refusals(tree: Tree, name: str, b: dict[str, Any], said: str) -> None:
    for program, text in (("true", "exit 0"), ("false", "exit 1"), ("two", "echo a; echo b")):
        tree.program(program, f"#!/bin/sh\n{text}\n")
    tree.put("/proc/sys/vm/x", "1\n")
    before = tree.snapshot()
    with pytest.raises(Refused) as refused:
        made(tree, name, b)
    assert said in str(refused.value)
    assert not isinstance(refused.value, NeedsBoot)
    assert tree.snapshot() == before


@pytest.mark.parametrize(
    ("name", "b"),
    [
        ("kernel_arguments", {"present": ["x=1"]}),
        ("pcie_aspm", {"policy": "performance"}),
        ("gpu_runtime_pm", {"control": "on"}),
    ],
)
def test_what_needs_a_boot_or_the_hosts_word_points_to_trials_over_boots(
    tree: Tree, name: str, b: dict[str, Any]
) -> None:
    with pytest.raises(NeedsBoot, match=r"playbooks/trial_boots\.yml"):
        made(tree, name, b)


def test_another_owner_is_named(tree: Tree) -> None:
    tree.put("/etc/rc.local", "#!/bin/sh\necho x > /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor\n", 0o755)
    with pytest.raises(Refused, match=r"another owner could change it back during the trial: .*/etc/rc\.local:2"):
        made(tree, "cpu_governor", PERFORMANCE)
    tree.path("/etc/rc.local").unlink()
    running(tree, "tuned.service")
    with pytest.raises(Refused, match=r"tuned\.service is active\. Stop it for the trial"):
        made(tree, "cpu_governor", PERFORMANCE)


def test_no_cpufreq_no_idle_states(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root")
    tree.put(f"{CPUS}/cpu0/online", "1\n")
    with pytest.raises(Refused, match="no cpufreq driver"):
        made(tree, "cpu_governor", PERFORMANCE)
    with pytest.raises(Refused, match="no cpuidle driver"):
        made(tree, "cpu_governor", {"disable_deepest_idle": True})


def test_who_may_not_write_is_told_before_anything_is_touched(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(Refused, match=r"cannot be written: run as root \(ansible-playbook -b\), on the host"):
        made(tree, "cpu_governor", PERFORMANCE)


def test_a_value_and_one_that_lists_its_words(tree: Tree) -> None:
    tree.put("/proc/sys/vm/swappiness", "60\n")
    switches = toggled(tree, made(tree, "value", {"path": "/proc/sys/vm/swappiness", "value": 10}))
    switches.set("B")
    assert switches.read() == "swappiness 10"
    assert switches.restore() == ""
    assert tree.text("/proc/sys/vm/swappiness") == "60\n"
    huge = "/sys/kernel/mm/transparent_hugepage/enabled"
    tree.put(huge, "always [madvise] never\n")
    one = made(tree, "value", {"path": huge, "value": "always"}, {"value": "never"})
    assert one.words == {"A": "enabled never", "B": "enabled always"}
    assert one.steps == ({"path": huge, "value": "madvise"},)
    assert one.read(Host(str(tree.root))) == "enabled madvise"


def test_a_link_does_not_lead_around_a_refusal(tree: Tree) -> None:
    tree.put("/sys/devices/pci0000:20/0000:20:01.0/reset", "0\n")
    tree.link("/sys/class/thing", "../devices/pci0000:20/0000:20:01.0/reset")
    tree.put("/sys/class/plain", "0\n")
    with pytest.raises(Refused, match="is never written"):
        made(tree, "value", {"path": "/sys/class/thing", "value": "1"})
    assert made(tree, "value", {"path": "/sys/class/plain", "value": "1"}).name == "value"


def test_an_interrupt_that_moves_shows_at_the_same_rate(tree: Tree) -> None:
    tree.put("/proc/irq/45/smp_affinity_list", "0-1\n")
    tree.put("/proc/interrupts", "      CPU0  CPU1\n 45:  100  0  PCI-MSI xe\n145: 7 7 other\n")
    one = made(tree, "value", {"path": "/proc/irq/45/smp_affinity_list", "value": "1"})
    assert one.evidence[0].read(Host(str(tree.root)).reader, Scope()) == 100
    tree.put("/proc/interrupts", "      CPU0  CPU1\n 45:  50  50  PCI-MSI xe\n")
    assert one.evidence[0].read(Host(str(tree.root)).reader, Scope()) == 150
    tree.put("/proc/interrupts", "      CPU0  CPU1\n")
    assert one.evidence[0].read(Host(str(tree.root)).reader, Scope()) is None


def test_power_control_of_one_card_and_its_bridges(tree: Tree) -> None:
    gpu = card(tree, control="on")
    other = card(tree, bus=0x40, control="on")
    allowed = {"control": "auto", "runtime_auto": True}
    tree.put(f"/sys/bus/pci/devices/{gpu}/power/runtime_suspended_time", "5\n")
    one = made(tree, "gpu_runtime_pm", allowed, scope=Scope(card=gpu))
    assert len(one.things) == 4
    assert one.metric == "gap_sync_3ms_us"
    switches = toggled(tree, one, Scope(card=gpu))
    switches.set("B")
    assert switches.read() == "power/control auto"
    tree.put(f"/sys/bus/pci/devices/{gpu}/power/runtime_suspended_time", "9\n")
    assert switches.evidence()["suspended_ms_per_s"] > 0
    assert tree.text(f"/sys/bus/pci/devices/{other}/power/control") == "on\n"
    assert switches.restore() == ""
    assert tree.text(f"/sys/bus/pci/devices/{gpu}/power/control") == "on\n"
    with pytest.raises(Refused, match="there is no card to be measured"):
        made(tree, "gpu_runtime_pm", allowed, scope=Scope())


def test_aspm_is_written_only_while_every_card_is_well(tmp_path: Path) -> None:
    recording = replay.host("four-card-gen4")
    root = replay.lay_out(recording, tmp_path / "root")
    tree = Tree(root)
    wish = {"policy": "performance", "runtime_write": True}
    scope = Scope(card="0000:23:00.0")
    found = tree.text("/sys/module/pcie_aspm/parameters/policy")
    one = made(tree, "pcie_aspm", wish, scope=scope)
    assert one.steps == ({"path": "/sys/module/pcie_aspm/parameters/policy", "value": "default"},)
    states = one.evidence[0].read(Host(str(root)).reader, scope)
    assert isinstance(states, str)
    assert "0000:20:01.1" in states or "disabled" in states or "L1" in states
    assert "[default]" in found
    card_path = tree.path("/sys/bus/pci/devices/0000:43:00.0").resolve()
    (card_path / "power/runtime_status").write_text("suspended\n")
    with pytest.raises(Refused, match=r"0000:43:00\.0 is suspended"):
        made(tree, "pcie_aspm", wish, scope=scope)
    assert restorer.put_back(list(one.steps), str(root)) == []  # as it was: not written
    assert tree.text("/sys/module/pcie_aspm/parameters/policy") == found
