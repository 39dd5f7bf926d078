"""cpufreq and the owners of its settings: every policy, every place that sets them, and of a line only its value."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost.reader import LiveReader
from hostcheck.onhost.readings import cpufreq, owners
from hostcheck.onhost.recording import RecordedReader, empty
from tests import replay

PARSERS = (
    cpufreq.parse_word,
    cpufreq.parse_words,
    cpufreq.parse_khz,
    cpufreq.parse_count,
    cpufreq.parse_switch,
    cpufreq.parse_affected,
)
POLICY = f"{cpufreq.FOLDER}/policy0"
WANTS = "/etc/systemd/system/multi-user.target.wants"


def recording(files: dict[str, Any], links: dict[str, str] | None = None, **more: Any) -> RecordedReader:
    return RecordedReader({**empty(0), "files": files, "links": links or {}, **more})


def read(files: dict[str, Any], links: dict[str, str] | None = None, **more: Any) -> cpufreq.Cpufreq:
    return cpufreq.read(recording(files, links, **more))


def found(
    files: dict[str, Any], links: dict[str, str] | None = None, setting: str = "cpu_governor", **more: Any
) -> list[tuple[str, str, str, str]]:
    owned, _ = owners.find(recording(files, links, **more), (setting,))
    return [(one.name, one.where, one.value, one.state) for one in owned.value or ()]


def running(*units: str) -> dict[str, str]:
    return {f"/run/systemd/units/invocation:{unit}": "0" * 32 for unit in ("dbus.service", *units)}


# -- policies ------------------------------------------------------------------------------------------


def test_every_policy_of_a_hybrid() -> None:
    host = cpufreq.read(RecordedReader(replay.host("intel-hybrid")))
    assert host.policies.value is not None
    assert [policy.name for policy in host.policies.value] == [f"policy{cpu}" for cpu in range(22)]
    assert [policy.cpus for policy in host.policies.value] == [(cpu,) for cpu in range(22)]
    assert {policy.hw_max_khz.value for policy in host.policies.value} == {4_800_000, 4_500_000, 3_800_000, 2_500_000}
    assert (host.drivers.value, host.intel_pstate.value, host.no_turbo.value) == (("intel_pstate",), "active", False)
    assert host.perf_bias.value == (cpufreq.PerfBias(0, tuple(range(22))),)
    assert (host.core_throttles.value, host.package_throttles.value) == ({}, 0)


def test_a_policy_of_many_processors() -> None:
    files = {f"{POLICY}/affected_cpus": "0 1 2 9\n", f"{POLICY}/scaling_driver": "acpi-cpufreq\n"}
    policies = read({"/sys/devices/system/cpu/cpu0/online": "1\n", **files}).policies.value
    assert policies is not None
    assert policies[0].cpus == (0, 1, 2, 9)
    assert (policies[0].driver.value, policies[0].governor.unread) == ("acpi-cpufreq", "absent")


def test_a_policy_whose_processors_are_off_line_is_none() -> None:
    files = {f"{POLICY}/affected_cpus": "\n", f"{POLICY}/related_cpus": "0\n", f"{POLICY}/scaling_governor": "x\n"}
    assert read(files).policies.value == ()


def test_folders_per_processor_only() -> None:
    files = {f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor": "ondemand\n" for cpu in (0, 2, 10)}
    policies = read(files).policies.value
    assert policies is not None
    assert [(policy.name, policy.cpus) for policy in policies] == [("cpu0", (0,)), ("cpu2", (2,)), ("cpu10", (10,))]
    assert {policy.governor.value for policy in policies} == {"ondemand"}


def test_no_cpufreq_differs_from_not_read() -> None:
    assert read({"/sys/devices/system/cpu/online": "0\n"}).policies.value == ()
    assert read({}).policies.unread == "absent"
    assert read({"/sys/devices/system/cpu/online": "0\n", cpufreq.FOLDER: {"error": "EACCES"}}).policies.unread == (
        "permission"
    )


def test_throttle_counts() -> None:
    root = "/sys/devices/system/cpu"
    files = {f"{root}/cpu{cpu}/thermal_throttle/core_throttle_count": f"{cpu * 7}\n" for cpu in range(3)}
    files[f"{root}/cpu1/thermal_throttle/package_throttle_count"] = "12\n"
    host = read(files)
    assert (host.core_throttles.value, host.package_throttles.value) == ({"1": 7, "2": 14}, 12)
    files[f"{root}/cpu0/thermal_throttle/core_throttle_count"] = "many\n"
    assert read(files).core_throttles.unread == "not_understood"


def test_perf_bias_by_value() -> None:
    files = {f"/sys/devices/system/cpu/cpu{cpu}/power/energy_perf_bias": f"{6 * (cpu % 2)}\n" for cpu in range(4)}
    assert read(files).perf_bias.value == (cpufreq.PerfBias(0, (0, 2)), cpufreq.PerfBias(6, (1, 3)))


@pytest.mark.parametrize("parse", PARSERS)
@given(text=st.text())
def test_random_text_is_a_value_or_a_value_error(parse: Any, text: str) -> None:
    try:
        parse(text)
    except ValueError:
        pass


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (cpufreq.parse_word, "<unknown>\n"),
        (cpufreq.parse_word, "\n"),
        (cpufreq.parse_khz, "<unknown>\n"),
        (cpufreq.parse_khz, "4.8 GHz\n"),
        (cpufreq.parse_khz, "-1\n"),
        (cpufreq.parse_count, "\n"),
        (cpufreq.parse_switch, "2\n"),
        (cpufreq.parse_switch, "\n"),
        (cpufreq.parse_affected, "0 x\n"),
    ],
)
def test_other_text_is_refused(parse: Any, text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse(text)


@given(broken=st.sampled_from(sorted(item.name for item in dataclasses.fields(cpufreq.Policy))), text=st.text())
def test_a_broken_file_costs_only_itself(broken: str, text: str) -> None:
    names = {
        "driver": "scaling_driver",
        "governor": "scaling_governor",
        "current_khz": "scaling_cur_freq",
        "hw_min_khz": "cpuinfo_min_freq",
    }
    good = {"driver": "acpi-cpufreq", "governor": "schedutil", "current_khz": 1_200_000, "hw_min_khz": 800_000}
    files = {f"{POLICY}/{name}": f"{good[field]}\n" for field, name in names.items()}
    if broken in names:
        files[f"{POLICY}/{names[broken]}"] = text
    policies = read(files).policies.value
    assert policies is not None
    for field, value in good.items():
        if field != broken:
            assert getattr(policies[0], field).value == value


# -- owners --------------------------------------------------------------------------------------------

SYSFS = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"


@pytest.mark.parametrize(
    ("files", "links", "wanted"),
    [
        (
            {"/etc/tlp.conf": "#CPU_SCALING_GOVERNOR_ON_AC=powersave\nCPU_SCALING_GOVERNOR_ON_AC=performance\n"},
            running("tlp.service"),
            ("TLP", "/etc/tlp.conf:2", "performance", "active"),
        ),
        (
            {"/etc/tlp.d/10-ac.conf": 'CPU_SCALING_GOVERNOR_ON_AC="schedutil"  # quiet\n'},
            running(),
            ("TLP", "/etc/tlp.d/10-ac.conf:1", "schedutil", "inactive"),
        ),
        (
            {"/etc/default/cpufrequtils": 'GOVERNOR="performance"\n'},
            {**running(), "/etc/rc2.d/S01cpufrequtils": "../init.d/cpufrequtils"},
            ("cpufrequtils", "/etc/default/cpufrequtils:1", "performance", "enabled"),
        ),
        (
            {"/etc/default/cpupower": "# x\ngovernor='performance'\n"},
            {**running(), f"{WANTS}/cpupower.service": "/usr/lib/systemd/system/cpupower.service"},
            ("cpupower", "/etc/default/cpupower:2", "performance", "enabled"),
        ),
        (
            {"/etc/sysconfig/cpupower": 'CPUPOWER_START_OPTS="frequency-set -g performance"\n'},
            running("cpupower.service"),
            ("cpupower", "/etc/sysconfig/cpupower:1", "performance", "active"),
        ),
        (
            {},
            running("power-profiles-daemon.service"),
            ("power-profiles-daemon", "power-profiles-daemon.service", "", "active"),
        ),
        ({}, running("ondemand.service"), ("ondemand.service", "ondemand.service", "", "active")),
        ({}, running("system76-power.service"), ("system76-power", "com.system76.PowerDaemon.service", "", "active")),
        (
            {"/etc/auto-cpufreq.conf": "[charger]\ngovernor = performance\n"},
            running("auto-cpufreq.service"),
            ("auto-cpufreq", "/etc/auto-cpufreq.conf:2", "performance", "active"),
        ),
        (
            {"/etc/gamemode.ini": "[general]\ndesiredgov=performance\n"},
            running(),
            ("gamemode", "/etc/gamemode.ini:2", "performance", "inactive"),
        ),
        (
            {"/etc/cron.d/clock": f"@reboot root echo performance | tee {SYSFS}\n"},
            running(),
            ("cron", "/etc/cron.d/clock:1", "performance", "enabled"),
        ),
        (
            {"/var/spool/cron/crontabs/root": "# m h\n@reboot cpupower -c all frequency-set -g performance\n"},
            running(),
            ("cron", "/var/spool/cron/crontabs/root:2", "performance", "enabled"),
        ),
        (
            {"/etc/tmpfiles.d/clock.conf": f"w {SYSFS} - - - - powersave\n"},
            running(),
            ("tmpfiles.d", "/etc/tmpfiles.d/clock.conf:1", "powersave", "enabled"),
        ),
        (
            {"/etc/udev/rules.d/9.rules": 'SUBSYSTEM=="cpu", ATTR{cpufreq/scaling_governor}="performance"\n'},
            running(),
            ("udev", "/etc/udev/rules.d/9.rules:1", "performance", "enabled"),
        ),
        (
            {"/etc/systemd/system/clock.service": f"[Service]\nExecStart=/bin/sh -c 'echo ondemand > {SYSFS}'\n"},
            running(),
            ("clock.service", "/etc/systemd/system/clock.service:2", "ondemand", "inactive"),
        ),
        (
            # a unit of a vendor, found through the link that enables it
            {"/usr/lib/systemd/system/gpu-perf.service": "[Service]\nExecStart=/usr/bin/cpufreq-set -g performance\n"},
            {**running(), f"{WANTS}/gpu-perf.service": "/usr/lib/systemd/system/gpu-perf.service"},
            ("gpu-perf.service", "/usr/lib/systemd/system/gpu-perf.service:2", "performance", "enabled"),
        ),
        (
            # a script that a unit starts
            {
                "/etc/systemd/system/clock.service": "[Service]\nExecStart=/usr/local/bin/clock.sh --all\n",
                "/usr/local/bin/clock.sh": f"#!/bin/sh\nfor f in {SYSFS}; do echo performance > $f; done\n",
            },
            running("clock.service"),
            ("clock.service", "/usr/local/bin/clock.sh:2", "performance", "active"),
        ),
        (
            {"/etc/systemd/system/clock.service": "[Service]\nExecStart=cpupower frequency-set -g powersave\n"},
            {**running(), "/etc/systemd/system/timers.target.wants/clock.timer": "/etc/systemd/system/clock.timer"},
            ("clock.service", "/etc/systemd/system/clock.service:2", "powersave", "enabled"),
        ),
        (
            {"/etc/tmpfiles.d/hostcheck-cpu_governor.conf": f"w {SYSFS} - - - - performance\n"},
            running(),
            ("hostcheck", "/etc/tmpfiles.d/hostcheck-cpu_governor.conf:1", "performance", "enabled"),
        ),
        (
            {"/proc/cmdline": "ro quiet intel_pstate=passive\n"},
            running(),
            ("kernel command line", "/proc/cmdline:1", "intel_pstate=passive", "active"),
        ),
        (
            {"/etc/default/grub": '# c\nGRUB_CMDLINE_LINUX="cpufreq.default_governor=performance ro"\n'},
            running(),
            ("kernel command line", "/etc/default/grub:2", "cpufreq.default_governor=performance", "enabled"),
        ),
        (
            {
                "/proc/cmdline": "ro amd_pstate=guided\n",
                "/etc/default/grub.d/90-hostcheck.cfg": 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX amd_pstate=guided"\n',
            },
            running(),
            ("hostcheck", "/etc/default/grub.d/90-hostcheck.cfg:1", "amd_pstate=guided", "active"),
        ),
    ],
)
def test_an_owner_is_found(files: dict[str, Any], links: dict[str, str], wanted: tuple[str, ...]) -> None:
    assert found(files, links) == [wanted]


@pytest.mark.parametrize(
    ("files", "links"),
    [
        ({"/etc/tlp.conf": "# CPU_SCALING_GOVERNOR_ON_AC=powersave\n"}, running("tlp.service")),
        ({"/etc/tlp.conf": "CPU_SCALING_GOVERNOR_ON_AC=\n"}, running("tlp.service")),
        ({"/etc/tlp.conf": "CPU_SCALING_GOVERNOR_ON_BAT=powersave\n"}, running("tlp.service")),
        ({"/etc/cron.d/clock": f"#@reboot root echo performance > {SYSFS}\n"}, running()),
        ({"/proc/cmdline": "ro my_intel_pstate=passive i915.modeset=1\n"}, running()),
        ({"/etc/tuned/active_profile": "\n"}, running("tuned.service")),
        ({}, running()),
    ],
)
def test_nobody_is_named_without_evidence(files: dict[str, Any], links: dict[str, str]) -> None:
    assert found(files, links) == []


@pytest.mark.parametrize(("mode", "state"), [("100755", "enabled"), ("100644", "inactive"), (None, "unknown")])
def test_rc_local_counts_when_it_can_be_executed(mode: str | None, state: str) -> None:
    stats = {"/etc/rc.local": {"mode": mode, "uid": 0, "gid": 0}} if mode else {}
    files = {"/etc/rc.local": f"#!/bin/sh\necho performance > {SYSFS}\n"}
    assert found(files, running(), stats=stats) == [("rc.local", "/etc/rc.local:2", "performance", state)]


@pytest.mark.parametrize("folder", owners.TUNED_FOLDERS)
def test_tuned_names_the_line_of_the_profile_that_wins(folder: str) -> None:
    files = {
        "/etc/tuned/active_profile": "latency-performance\n",
        f"{folder}/latency-performance/tuned.conf": "[main]\ninclude=base\n[cpu]\ngovernor=performance\n",
        "/usr/lib/tuned/base/tuned.conf": "[cpu]\ngovernor=powersave\n",
    }
    wanted = ("tuned", f"{folder}/latency-performance/tuned.conf:4", "performance", "active")
    assert found(files, running("tuned.service")) == [wanted]
    files[f"{folder}/latency-performance/tuned.conf"] = "[main]\ninclude=base\n"
    included = ("tuned", "/usr/lib/tuned/base/tuned.conf:2", "powersave", "inactive")
    assert found(files, running()) == [included]


def test_profiles_of_tuned_that_include_each_other_end() -> None:
    files = {
        "/etc/tuned/active_profile": "a\n",
        "/etc/tuned/a/tuned.conf": "[main]\ninclude=b\n",
        "/etc/tuned/b/tuned.conf": "[main]\ninclude=a\n",
    }
    assert found(files, running("tuned.service")) == []


def test_the_profile_of_the_toolkit_is_its_own() -> None:
    files = {
        "/etc/tuned/active_profile": "hostcheck\n",
        "/etc/tuned/hostcheck/tuned.conf": "[cpu]\ngovernor=performance\n",
    }
    wanted = ("hostcheck", "/etc/tuned/hostcheck/tuned.conf:2", "performance", "active")
    assert found(files, running("tuned.service")) == [wanted]


def test_units_before_systemd_239_and_without_systemd() -> None:
    files = {"/etc/tlp.conf": "CPU_SCALING_GOVERNOR_ON_AC=powersave\n"}
    cgroup = {"/sys/fs/cgroup/system.slice/tlp.service/cgroup.procs": "1\n"}
    assert [one[3] for one in found({**files, **cgroup})] == ["active"]
    assert [one[3] for one in found(files)] == ["unknown"]


def test_a_masked_unit_is_no_owner_and_no_refusal(tmp_path: Path) -> None:
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    (units / "ondemand.service").symlink_to("/dev/null")
    owned, unread = owners.find(LiveReader(str(tmp_path)), ("cpu_governor",))
    assert (owned.value, unread.value) == ((), ())


def test_what_could_not_be_read_is_listed() -> None:
    _, unread = owners.find(
        recording({"/var/spool/cron/crontabs": {"error": "EACCES"}, "/etc/tlp.conf": {"error": "EACCES"}}),
        ("cpu_governor",),
    )
    assert unread.value == ("/etc/tlp.conf", "/var/spool/cron/crontabs")


def test_boost_and_clock_have_their_own_owners() -> None:
    files = {
        "/etc/systemd/system/noboost.service": (
            "[Service]\nExecStart=/bin/sh -c 'echo 0 > /sys/devices/system/cpu/cpufreq/boost'\n"
        ),
        "/etc/tlp.conf": "CPU_SCALING_MAX_FREQ_ON_AC=2400000\n",
    }
    links = running("noboost.service", "tlp.service", "thermald.service")
    assert found(files, links, "cpu_boost") == [
        ("noboost.service", "/etc/systemd/system/noboost.service:2", "0", "active")
    ]
    assert found(files, links, "cpu_clock") == [
        ("TLP", "/etc/tlp.conf:1", "2400000", "active"),
        ("thermald", "thermald.service", "", "active"),
    ]
    assert found(files, links, "cpu_governor") == []


SECRET = "hunter2-secret"
FREE = {
    "/etc/rc.local": f"#!/bin/sh\nexport TOKEN={SECRET}\ncurl -u me:{SECRET} x; /opt/set.sh {SECRET}\n",
    "/opt/set.sh": f"PASS={SECRET}\nlogin {SECRET}\necho performance > {SYSFS}\n",
    "/etc/systemd/system/a.service": f"[Service]\nEnvironment=TOKEN={SECRET}\nExecStart=/usr/local/bin/a {SECRET}\n",
    "/usr/local/bin/a": f"# {SECRET}\ncpupower frequency-set -g ondemand\n",
}


def test_of_a_line_only_its_value_is_kept() -> None:
    files = {**FREE, "/etc/cron.d/x": f"@reboot root T={SECRET} sh -c 'echo powersave > {SYSFS}'\n"}
    owned, _ = owners.find(recording(files, running()), tuple(owners.SETTINGS))
    assert {one.value for one in owned.value or ()} == {"performance", "ondemand", "powersave"}
    assert SECRET not in repr(owned)


def test_reduced_files_hold_no_secret_and_give_the_same_owners() -> None:
    assert all(owners.FREE_FORM.match(path) for path in FREE)
    less = {path: owners.reduced(text) for path, text in FREE.items()}
    assert SECRET not in repr(less)
    assert found(less, running()) == found(FREE, running())
    assert len(found(FREE, running())) == 2


@given(st.text())
def test_reducing_keeps_the_number_of_every_line(text: str) -> None:
    less = owners.reduced(text)
    assert less.count("\n") == text.count("\n")
    for setting in owners.SETTINGS.values():
        assert owners.parse_script(less, setting) == owners.parse_script(text, setting)


@given(foreign=st.text(alphabet=st.characters(exclude_characters="\n")), after=st.booleans())
def test_a_foreign_line_moves_the_number_only(foreign: str, after: bool) -> None:
    line = f"echo performance > {SYSFS}"
    text = f"{line}\n{foreign}\n" if after else f"{foreign}\n{line}\n"
    assert (1 if after else 2, "performance") in owners.parse_script(text, owners.SETTINGS["cpu_governor"])


@given(st.text())
def test_random_text_never_raises(text: str) -> None:
    for setting in owners.SETTINGS.values():
        owners.parse_script(text, setting)
        owners.parse_arguments(text, setting.arguments)
        owners.parse_configuration(text, setting.tuned)
    owners.parse_started(text)
