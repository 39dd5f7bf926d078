"""Packages and Pythons of a host, and a runtime that does not fit its kernel."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.checks import fw_runtime as checks
from hostcheck.expectations import expectation
from hostcheck.findings import Finding, Status, run
from hostcheck.onhost.gather import Options, gather
from hostcheck.onhost.reader import LiveReader
from hostcheck.onhost.readings import packages, pythons
from hostcheck.onhost.recording import RecordedReader, Recorder, empty
from hostcheck.onhost.redact import Redactor
from tests import replay
from tests.hosts import build_boot

DPKG, RPM = shlex.join(packages.DPKG), shlex.join(packages.RPM)
RUNTIME = "libze-intel-gpu1"


def read(commands: dict[str, Any], files: dict[str, Any] | None = None) -> packages.Packages:
    return packages.read(RecordedReader({**empty(0), "commands": commands, "files": files or {}}))


def ran(stdout: str, rc: int = 1, stderr: str = "") -> dict[str, Any]:
    return {"rc": rc, "stdout": stdout, "stderr": stderr}


def line(name: str, version: str, want: str = "install", state: str = "installed") -> str:
    return f"{name}\tv{version}\t{want} ok {state}\n"


def test_the_rebuilt_hosts_answer_the_question_that_is_asked() -> None:
    assert build_boot.DPKG == DPKG


# -- packages ----------------------------------------------------------------------------------------------------------


def test_dpkg_with_held_and_removed_packages() -> None:
    text = (
        line("dpkg", "1.22") + line(RUNTIME, "25.48.1.2", "hold") + line("xpu-smi", "1.2", "deinstall", "config-files")
    )
    found = read({DPKG: ran(text)})
    assert (found.manager.value, found.manager.source) == ("dpkg", "dpkg-query -W")
    assert [(one.name, one.version, one.held) for one in found.installed.value or ()] == [
        ("dpkg", "1.22", False),
        (RUNTIME, "25.48.1.2", True),
    ]


def test_rpm_where_dpkg_knows_nothing() -> None:
    text = "rpm\tv4.19.1-10.el10\nkernel-core\tv6.12.0-55.el10\npackage xpu-smi is not installed\n"
    for commands in ({RPM: ran(text, 3)}, {DPKG: ran("", 1, "no packages found"), RPM: ran(text, 3)}):
        found = read(commands)
        assert found.manager.value == "rpm"
        assert [one.name for one in found.installed.value or ()] == ["kernel-core", "rpm"]


RPM_HOST = {RPM: ran("rpm\tv4.19.1-10.el10\nkernel-core\tv6.12.0-55.el10\nlinux-firmware\tv20250812-14.el10\n", 3)}
PLUGIN = "[main]\nenabled = 1\nlocklist = /etc/dnf/plugins/versionlock.list\n"
LIST = "# Added lock on Mon\nlinux-firmware-0:20250812-14.el10.*\n\nkernel*\n!xpu-smi-0:2.1.0-1.*\n"
TOML = """\
version = "1.0"

[[packages]]
name = "linux-firmware"
comment = "Added by 'versionlock add' command on 2026-01-01"

[[packages.conditions]]
key = "evr"
comparator = "="
value = "20250812-14.fc42"

[[packages]]
name = "xpu-smi"
[[packages.conditions]]
key = "evr"
comparator = "!="
value = "2.1.0-1"
"""
REFUSED = {"error": "EACCES"}


@pytest.mark.parametrize(
    ("files", "locks", "held"),
    [
        ({"/etc/dnf/dnf.conf": "[main]\n"}, (), []),
        ({packages.DNF4_LOCKS: LIST}, (), []),  # a list without the plugin does nothing
        ({packages.DNF4_PLUGIN: PLUGIN}, (), []),
        ({packages.DNF4_PLUGIN: "[main]\nenabled = 0\n", packages.DNF4_LOCKS: LIST}, (), []),
        (
            {packages.DNF4_PLUGIN: PLUGIN, packages.DNF4_LOCKS: LIST},
            ("linux-firmware", "kernel*"),
            ["kernel-core", "linux-firmware"],
        ),
        (
            {packages.DNF4_PLUGIN: "[main]\nlocklist=/etc/l\n", "/etc/l": "rpm-4.19.1-10.el10.x86_64\n"},
            ("rpm",),
            ["rpm"],
        ),
        ({packages.DNF5_LOCKS: TOML}, ("linux-firmware",), ["linux-firmware"]),
        ({packages.DNF5_LOCKS: 'version = "1.0"\n'}, (), []),
    ],
)
def test_what_dnf_holds_stands_in_files(files: dict[str, Any], locks: tuple[str, ...], held: list[str]) -> None:
    found = read(RPM_HOST, files)
    assert found.locks.value == locks
    assert [one.name for one in found.installed.value or () if one.held] == held


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "absent"),  # zypper and rpm-ostree keep theirs elsewhere
        ({packages.DNF5_LOCKS: REFUSED}, "permission"),
        ({packages.DNF5_LOCKS: "garbage"}, "not_understood"),
        ({packages.DNF5_LOCKS: 'version = "1.0"\n[[packages]]\ncomment = "x"\n'}, "not_understood"),
        ({packages.DNF4_PLUGIN: REFUSED}, "permission"),
        ({packages.DNF4_PLUGIN: "garbage"}, "not_understood"),
        ({packages.DNF4_PLUGIN: PLUGIN, packages.DNF4_LOCKS: REFUSED}, "permission"),
        ({packages.DNF4_PLUGIN: PLUGIN, packages.DNF4_LOCKS: "two words\n"}, "not_understood"),
    ],
)
def test_locks_that_cannot_be_read_hold_nothing_and_free_nothing(files: dict[str, Any], reason: str) -> None:
    found = read(RPM_HOST, files)
    assert found.locks.unread == reason
    assert len(found.installed.value or ()) == 3


def test_a_host_of_dpkg_has_no_locks_of_dnf() -> None:
    assert read({DPKG: ran(line("dpkg", "1.22"))}, {packages.DNF5_LOCKS: TOML}).locks.unread == "absent"


def test_the_list_of_dpkg_where_nothing_can_be_run() -> None:
    text = (
        f"Package: {RUNTIME}\nStatus: hold ok installed\nVersion: 25.48.36300.8-0\nDescription: x\n y\n\n"
        "Package: linux-image-7.0.0-38-generic\nStatus: install ok installed\nVersion: 7.0.0-38.38\n\n"
        "Package: bash\nStatus: install ok installed\nVersion: 5.2\n"
    )
    found = read({}, {packages.STATUS_FILE: text})
    assert [(one.name, one.held) for one in found.installed.value or ()] == [
        (RUNTIME, True),
        ("linux-image-7.0.0-38-generic", False),
    ]


@pytest.mark.parametrize(
    ("commands", "files", "reason"),
    [
        ({}, {}, "tool_missing"),
        ({DPKG: {"error": "timeout"}}, {}, "timeout"),
        ({DPKG: ran("garbage\n")}, {}, "not_understood"),
        ({DPKG: ran(line("dpkg", "1") + "half a line", 2)}, {}, "not_understood"),
        ({RPM: ran("rpm\tv4\ngarbage\n")}, {}, "not_understood"),
        ({}, {packages.STATUS_FILE: {"error": "EACCES"}}, "permission"),
        ({}, {packages.STATUS_FILE: "garbage"}, "not_understood"),
    ],
)
def test_no_list_is_no_empty_list(commands: dict[str, Any], files: dict[str, Any], reason: str) -> None:
    assert read(commands, files).installed.unread == reason


@pytest.mark.parametrize("parse", [packages.parse_dpkg, packages.parse_rpm, packages.parse_status])
@given(text=st.text(max_size=120))
def test_random_text_is_a_value_or_a_value_error(parse: Any, text: str) -> None:
    try:
        found = parse(text)
    except ValueError:
        return
    assert all(one.name and one.version for one in found)


@given(st.integers(0, 60))
def test_a_list_that_was_cut_off_is_not_understood_or_whole_lines(length: int) -> None:
    whole = line("dpkg", "1.22") + line(RUNTIME, "25.48.1.2")
    cut = whole[:length]
    try:
        found = packages.parse_dpkg(cut)
    except ValueError:
        return
    assert {one.version for one in found} <= {"1.22", "25.48.1.2"}


def test_a_version_of_four_numbers_is_no_address() -> None:
    assert Redactor().text(line("xpu-smi", "1.2.3.4")) == line("xpu-smi", "1.2.3.4")


# -- Pythons -----------------------------------------------------------------------------------------------------------

SITE = "/opt/venv/lib/python3.12/site-packages"


def look(names: tuple[str, ...], declared: tuple[str, ...] = (), site: str = SITE) -> pythons.Pythons:
    files = {f"{site}/{name}/METADATA": "Name: x\n" for name in names}
    return pythons.read(RecordedReader({**empty(0), "files": files}), Options(pythons=declared))


def test_versions_by_the_names_of_folders() -> None:
    found = look(
        ("torch-2.9.0+xpu.dist-info", "numpy-2.0.dist-info", "intel_extension_for_pytorch-2.8.10+xpu.dist-info")
    )
    (place,) = found.places.value or ()
    assert place.folder == SITE
    assert place.versions == {"torch": "2.9.0+xpu", "intel-extension-for-pytorch": "2.8.10+xpu"}


@pytest.mark.parametrize("declared", ["/srv/ai/bin/python3", "/srv/ai", "/srv/ai/lib/python3.11/site-packages/"])
def test_a_declared_python(declared: str) -> None:
    site = "/srv/ai/lib/python3.11/site-packages"
    assert look(("torch-2.8.0.dist-info",), (), site).places.value == ()
    found = look(("torch-2.8.0.dist-info",), (declared,), site)
    assert [place.versions for place in found.places.value or ()] == [{"torch": "2.8.0"}]
    assert found.missing.value == ()
    assert look((), ("/srv/none/bin/python",)).missing.value == ("/srv/none/bin/python",)


def test_a_folder_that_refuses_is_not_empty() -> None:
    files = {SITE: {"error": "EACCES"}}
    found = pythons.read(RecordedReader({**empty(0), "files": files}), Options(pythons=(SITE,)))
    assert found.places.unread == "permission"


def test_of_a_folder_only_what_counts_is_recorded(tmp_path: Any) -> None:
    for name in ("torch-2.9.0.dist-info", "private_thing-1.0.dist-info"):
        (tmp_path / SITE.lstrip("/") / name).mkdir(parents=True)
    recorder = Recorder(LiveReader(str(tmp_path)))
    before = pythons.read(recorder, Options())
    recording = recorder.recording(0.0)
    assert "private_thing" not in json.dumps(recording)
    assert pythons.read(RecordedReader(recording), Options(pythons=(SITE,))).places.value == before.places.value


@given(st.text(max_size=60))
def test_any_name_of_a_folder(name: str) -> None:
    package, version = pythons.parse_distribution(name)
    assert bool(package) == bool(version)


# -- check -------------------------------------------------------------------------------------------------------------


def judge(
    text: str | None, expect: dict[str, Any] | None = None, host: str = "four-card-gen4", **files: str
) -> dict[str, Finding]:
    change: dict[str, Any] = {"commands": {} if text is None else {DPKG: ran(text)}, "files": files}
    facts = gather(RecordedReader(replay.changed(replay.host(host), change)))
    declarations = [check.declaration for check in (checks.runtime, checks.torch)]  # type: ignore[attr-defined]
    return {one.id: one for one in run(declarations, facts, expectation(expect or {}))}


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("25.48.36300.8-0ubuntu1", Status.warn),
        ("1:25.48.36300.8", Status.warn),
        ("26.01.1.1", Status.warn),
        ("26.02.1.1", Status.ok),
        ("26.22.38646.4-0", Status.ok),
        ("1.3.29735.27", Status.unknown),
    ],
)
def test_the_age_of_the_runtime_against_kernel_7_0(version: str, status: Status) -> None:
    assert judge(line(RUNTIME, version))["fw.runtime"].status is status


def test_an_older_kernel_is_content_with_it() -> None:
    kernel = {"/proc/sys/kernel/osrelease": "6.12.30-1-amd64\n"}
    assert judge(line(RUNTIME, "25.18.33578.6"), **kernel)["fw.runtime"].status is Status.ok
    assert judge(line(RUNTIME, "24.13.1.1"), **kernel)["fw.runtime"].status is Status.warn
    old = {"/proc/sys/kernel/osrelease": "5.15.0-100\n"}
    assert judge(line(RUNTIME, "24.13.1.1"), **old)["fw.runtime"].status is Status.unknown


def test_the_limit_is_declared_and_another_package_tells_the_date() -> None:
    text = line("intel-level-zero-gpu", "1.3.29735.27") + line("intel-opencl-icd", "25.48.1.1")
    found = judge(text)["fw.runtime"]
    assert (found.status, "25.48" in found.seen) == (Status.warn, True)
    assert judge(text, {"runtime": {"weeks_older": 40}})["fw.runtime"].status is Status.ok


def test_a_held_package_is_told() -> None:
    assert "held back" in judge(line(RUNTIME, "25.48.1.1", "hold"))["fw.runtime"].seen


def test_a_host_without_a_runtime_or_a_card() -> None:
    assert judge(line("dpkg", "1.22"))["fw.runtime"].status is Status.not_applicable
    assert judge(None, host="nvidia-host")["fw.runtime"].status is Status.not_applicable
    assert judge("garbage\n")["fw.runtime"].status is Status.unknown


def test_a_retired_extension_is_told() -> None:
    assert judge(None)["fw.torch"].status is Status.not_applicable
    files = {f"{SITE}/torch-2.9.0+xpu.dist-info/METADATA": "x"}
    assert judge(None, None, "four-card-gen4", **files)["fw.torch"].status is Status.ok
    files[f"{SITE}/intel_extension_for_pytorch-2.8.10+xpu.dist-info/METADATA"] = "x"
    found = judge(None, None, "four-card-gen4", **files)["fw.torch"]
    assert (found.status, "retired" in found.seen) == (Status.info, True)
