"""What the next boot will start, as GRUB, entry files and systemd-boot say it, and what is said about it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.checks import next_boot as checks
from hostcheck.cli import main
from hostcheck.expectations import expectation
from hostcheck.findings import Finding, Status, run
from hostcheck.onhost.gather import gather
from hostcheck.onhost.reader import Reading
from hostcheck.onhost.readings import next_boot
from hostcheck.onhost.recording import RecordedReader, empty
from hostcheck.onhost.redact import Redactor
from hostcheck.report import next_boot as screen
from tests import replay

HOST = "two-card-gen5"
MENU = "/boot/grub/grub.cfg"
THERE = {"error": "ENODATA"}
GRUB = """\
set default="${saved_entry}"
function load_video {
  insmod all_video
}
menuentry 'First' --id 'first' {
  load_video
  linux /vmlinuz-6.2 ro first
  initrd /initrd-6.2
}
submenu 'More' --id 'more' {
  menuentry "Se>cond" $menuentry_id_option 'second' {
    linux /vmlinuz-6.1 ro $kernelopts $vt_handoff
    initrd /ucode.img /initrd-6.1
  }
  menuentry 'Third' {
    linux /vmlinuz-6.0 ro single
  }
}
menuentry 'Setup' {
  fwsetup
}
"""


def read(files: dict[str, Any], stats: dict[str, Any] | None = None) -> next_boot.NextBoot:
    return next_boot.read(RecordedReader({**empty(0), "files": files, "stats": stats or {}}))


def environment(**values: str) -> dict[str, str]:
    lines = "".join(f"{name}={value}\n" for name, value in values.items())
    return {"/boot/grub/grubenv": f"# GRUB Environment Block\n{lines}####"}


def facts(change: dict[str, Any] | None = None, host: str = HOST) -> Any:
    return gather(RecordedReader(replay.changed(replay.host(host), change or {})))


def judge(
    check: Any, change: dict[str, Any] | None = None, expect: dict[str, Any] | None = None, **more: Any
) -> Finding:
    (found,) = run((check.declaration,), facts(change, **more), expectation(expect or {}))
    return found


# -- GRUB --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("saved", "kernel", "missing"),
    [
        ("0", "/vmlinuz-6.2", ""),
        ("first", "/vmlinuz-6.2", ""),
        ("First", "/vmlinuz-6.2", ""),
        ("1>0", "/vmlinuz-6.1", ""),
        ("1", "/vmlinuz-6.1", ""),
        ("more>second", "/vmlinuz-6.1", ""),
        ("More>Se>>cond", "/vmlinuz-6.1", ""),
        ("1>1", "/vmlinuz-6.0", ""),
        ("1>Third", "/vmlinuz-6.0", ""),
        ("gone", "/vmlinuz-6.2", "gone"),
        ("more>gone", "/vmlinuz-6.2", "more>gone"),
        ("7", "/vmlinuz-6.2", "7"),
        ("", "/vmlinuz-6.2", ""),
    ],
)
def test_the_saved_entry_is_found_as_grub_finds_it(saved: str, kernel: str, missing: str) -> None:
    found = read({MENU: GRUB, **environment(saved_entry=saved)})
    assert (found.loader.value, found.kernel.value, found.missing_default.value) == ("grub", kernel, missing)


def test_an_entry_for_one_boot_wins() -> None:
    found = read({MENU: GRUB, **environment(saved_entry="0", next_entry="more>second", kernelopts="quiet a=b")})
    assert (found.once.value, found.release.value, found.entry.value) == ("more>second", "6.1", "Se>cond")
    assert found.arguments.value == ("ro", "quiet", "a=b")
    assert found.initrd.value == ("/ucode.img", "/initrd-6.1")
    assert found.kernels.value == ("/vmlinuz-6.2", "/vmlinuz-6.1", "/vmlinuz-6.0")


def test_an_entry_that_starts_no_linux() -> None:
    found = read({MENU: GRUB, **environment(saved_entry="2")})
    assert (found.entry.value, found.kernel.unread, found.release.unread) == (
        "Setup",
        "not_understood",
        "not_understood",
    )


@pytest.mark.parametrize("prefix", ["", "/boot", "/boot/efi"])
def test_files_of_the_entry_are_looked_for_where_the_partition_may_be(prefix: str) -> None:
    files = {f"{prefix}/{name}": THERE for name in ("vmlinuz-6.2", "initrd-6.2")}
    found = read({MENU: GRUB, **files, "/lib/modules/6.2/modules.dep": THERE})
    assert (found.missing_files.value, found.modules.value) == ((), True)
    files.pop(f"{prefix}/initrd-6.2")
    found = read({MENU: GRUB, **files, "/lib/modules/6.1/modules.dep": THERE})
    assert (found.missing_files.value, found.modules.value) == (("/initrd-6.2",), False)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({MENU: {"error": "EACCES"}}, "permission"),
        ({MENU: {"error": "EIO"}}, "io"),
        ({MENU: "menuentry 'open {\n"}, "not_understood"),
        ({MENU: "garbage\n"}, "not_understood"),
        ({MENU: GRUB, "/boot/grub/grubenv": {"error": "EACCES"}}, "permission"),
        ({MENU: GRUB, "/boot/grub/grubenv": "garbage"}, "not_understood"),
        ({"/etc/hostname": "x\n"}, "absent"),
    ],
)
def test_a_menu_that_cannot_be_read_claims_nothing(files: dict[str, Any], reason: str) -> None:
    found = read(files)
    for reading in (found.loader, found.entry, found.kernel, found.missing_files, found.arguments, found.kernels):
        assert reading.unread == reason


def test_a_folder_that_refuses_leaves_the_files_unknown() -> None:
    found = read({MENU: GRUB, "/boot/efi": {"error": "EACCES"}})
    assert found.missing_files.unread == "permission"


# -- entry files -------------------------------------------------------------------------------------------------------

ENTRIES = {
    "/boot/loader/entries/abc-6.12.0-55.el10.conf": (
        "title Alma (6.12.0-55)\nlinux /vmlinuz-6.12.0-55.el10\ninitrd /initramfs-6.12.0-55.el10.img $tuned_initrd\n"
        "options root=/dev/x ro $tuned_params\n"
    ),
    "/boot/loader/entries/abc-6.9.0-1.el10.conf": (
        "title Alma (6.9.0-1)\nlinux /vmlinuz-6.9.0-1.el10\ninitrd /initramfs-6.9.0-1.el10.img\n"
        "options root=/dev/x ro\n"
    ),
    "/boot/loader/entries/abc-0-rescue.conf": "title Rescue\nlinux /vmlinuz-0-rescue\noptions ro\n",
}


def test_entry_files_below_grub_are_sorted_by_version() -> None:
    menu = {"/boot/grub2/grub.cfg": 'set default="${saved_entry}"\nblscfg\n'}
    block = {"/boot/grub2/grubenv": environment(saved_entry="1")["/boot/grub/grubenv"]}
    found = read({**menu, **ENTRIES})
    assert (found.loader.value, found.release.value) == ("grub with entry files", "6.12.0-55.el10")
    assert found.arguments.value == ("root=/dev/x", "ro")
    assert read({**menu, **block, **ENTRIES}).release.value == "6.9.0-1.el10"
    named = {"/boot/grub2/grubenv": environment(saved_entry="abc-6.9.0-1.el10")["/boot/grub/grubenv"]}
    assert read({**menu, **named, **ENTRIES}).release.value == "6.9.0-1.el10"


def efi(name: str, text: str) -> dict[str, Any]:
    import base64

    data = bytes(4) + text.encode("utf-16-le") + bytes(2)
    return {f"{next_boot.EFI_VARIABLES}/{name}-{next_boot.LOADER_GUID}": {"base64": base64.b64encode(data).decode()}}


@pytest.mark.parametrize(
    ("conf", "variables", "release", "once", "missing"),
    [
        ("timeout 3\n", {}, "6.12.0-55.el10", "", ""),
        ("default abc-6.9*\n", {}, "6.9.0-1.el10", "", ""),
        ("default abc-6.9.0-1.el10.conf\n", {}, "6.9.0-1.el10", "", ""),
        ("default @saved\n", {}, "6.12.0-55.el10", "", ""),
        ("default gone-*\n", {}, "6.12.0-55.el10", "", "gone-*"),
        ("", efi("LoaderEntryDefault", "abc-6.9.0-1.el10.conf"), "6.9.0-1.el10", "", ""),
        ("", efi("LoaderEntryOneShot", "abc-6.9.0-1.el10.conf"), "6.9.0-1.el10", "abc-6.9.0-1.el10.conf", ""),
    ],
)
def test_systemd_boot(conf: str, variables: dict[str, Any], release: str, once: str, missing: str) -> None:
    found = read({"/boot/loader/loader.conf": conf, **ENTRIES, **variables})
    assert (found.loader.value, found.release.value) == ("systemd-boot", release)
    assert (found.once.value, found.missing_default.value) == (once, missing)
    assert found.pending_arguments.unread == "absent"


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"/boot/loader/loader.conf": {"error": "EACCES"}}, "permission"),
        ({"/boot/loader/loader.conf": "", "/boot/loader/entries": {"error": "EACCES"}}, "permission"),
        ({"/boot/loader/loader.conf": "", "/boot/loader/entries/a.conf": {"error": "EIO"}}, "io"),
        ({"/boot/loader/loader.conf": "timeout 3\n"}, "not_understood"),
        ({"/boot/grub2/grub.cfg": "blscfg\n"}, "not_understood"),
        (
            {"/boot/loader/loader.conf": "", "/boot/loader/entries/w.conf": "title Windows\nefi /w.efi\n"},
            "not_understood",
        ),
    ],
)
def test_entry_files_that_cannot_be_read(files: dict[str, Any], reason: str) -> None:
    assert read(files).entry.unread == reason


# -- what the menu is made from, firmware, upgrades --------------------------------------------------------------------


def test_arguments_that_wait_for_update_grub() -> None:
    menu = {MENU: GRUB.replace("${saved_entry}", "0")}
    defaults = {
        "/etc/default/grub": 'GRUB_CMDLINE_LINUX_DEFAULT="first"\n',
        "/etc/default/grub.d/90-hostcheck.cfg": (
            'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT pcie_aspm.policy=performance"  # pcie_aspm\n'
        ),
    }
    assert read({**menu, **defaults}).pending_arguments.value == ("pcie_aspm.policy=performance",)
    defaults["/etc/default/grub.d/91.cfg"] = 'GRUB_CMDLINE_LINUX="$(hostcheck_without a "$GRUB_CMDLINE_LINUX")"\n'
    assert read({**menu, **defaults}).pending_arguments.unread == "not_understood"
    defaults["/etc/default/grub.d/91.cfg"] = {"error": "EACCES"}  # type: ignore[assignment]
    assert read({**menu, **defaults}).pending_arguments.unread == "permission"
    assert read(menu).pending_arguments.unread == "absent"


def test_a_plain_file_hides_the_compressed_one() -> None:
    folder = "/lib/firmware/xe"
    names = ("bmg_guc_70.bin.zst", "bmg_guc_70.bin", "lnl_guc_70.bin", "bmg_huc.bin")
    found = read({f"{folder}/{name}": THERE for name in names})
    assert found.guc_files.value == tuple(sorted(f"{folder}/{name}" for name in names[:3]))
    assert found.shadowing.value == (f"{folder}/bmg_guc_70.bin",)
    updates = {"/lib/firmware/updates/xe/bmg_guc_70.bin": THERE, f"{folder}/bmg_guc_70.bin.xz": THERE}
    assert read(updates).shadowing.value == ("/lib/firmware/updates/xe/bmg_guc_70.bin",)
    assert read({folder: {"error": "EACCES"}}).shadowing.unread == "permission"
    assert read({}).shadowing.unread == "absent"


def test_a_reboot_that_is_asked_for() -> None:
    flag = {"/run/reboot-required": "***\n"}
    assert read({}).reboot_required.value == ()
    assert read(flag).reboot_required.value == ("",)
    assert read({**flag, "/run/reboot-required.pkgs": "b\na\n; rm -rf\n"}).reboot_required.value == ("a", "b")
    assert read({"/run/reboot-required": {"error": "EACCES"}}).reboot_required.unread == "permission"


APT = "/etc/apt/apt.conf.d"
ON = {f"{APT}/20auto-upgrades": 'APT::Periodic::Unattended-Upgrade "1";\n'}
REBOOTS = 'Unattended-Upgrade::Automatic-Reboot "true";\nUnattended-Upgrade::Automatic-Reboot-Time "02:00";\n'


@pytest.mark.parametrize(
    ("files", "unattended", "reboot"),
    [
        (ON, True, ""),
        ({**ON, f"{APT}/50x": REBOOTS}, True, "02:00"),
        ({**ON, f"{APT}/50x": REBOOTS.split("\n")[0]}, True, "now"),
        ({f"{APT}/50x": REBOOTS}, False, ""),
        ({**ON, f"{APT}/50x": REBOOTS, f"{APT}/60": 'Unattended-Upgrade::Automatic-Reboot "false";'}, True, ""),
        ({**ON, f"{APT}/50x": "// " + REBOOTS.replace("\n", "\n# ")}, True, ""),
        ({**ON, f"{APT}/50x.disabled": REBOOTS}, True, ""),
        ({**ON, f"{APT}/50x": f"/* {REBOOTS} */"}, True, ""),
        ({**ON, f"{APT}/99": 'APT::Periodic::Enable "0";\n', f"{APT}/50x": REBOOTS}, False, ""),
        ({f"{APT}/20auto-upgrades": 'APT { Periodic { Unattended-Upgrade "0"; }; };\n'}, False, ""),
        ({**ON, "/etc/apt/apt.conf": REBOOTS}, True, "02:00"),
    ],
)
def test_upgrades_by_apt(files: dict[str, Any], unattended: bool, reboot: str) -> None:
    found = read(files)
    assert (found.unattended.value, found.automatic_reboot.value) == (unattended, reboot)


@pytest.mark.parametrize(
    ("text", "timer", "unattended", "reboot"),
    [
        ("[commands]\napply_updates = yes\nreboot = when-needed\n", True, True, "when-needed"),
        ("[commands]\napply_updates = yes\nreboot = never\n", True, True, ""),
        ("[commands]\napply_updates = yes\nreboot = when-needed\n", False, False, ""),
        ("[commands]\napply_updates = no\nreboot = when-needed\n", True, False, ""),
    ],
)
def test_upgrades_by_dnf(text: str, timer: bool, unattended: bool, reboot: str) -> None:
    files: dict[str, Any] = {next_boot.DNF_AUTOMATIC: text}
    if timer:
        files[f"{next_boot.TIMERS}/dnf-automatic.timer"] = ""
    found = read(files)
    assert (found.unattended.value, found.automatic_reboot.value) == (unattended, reboot)


def test_upgrades_that_cannot_be_read() -> None:
    assert read({}).unattended.unread == "absent"
    assert read({f"{APT}/20x": {"error": "EACCES"}}).automatic_reboot.unread == "permission"
    assert read({APT: {"error": "EACCES"}}).unattended.unread == "permission"
    assert read({next_boot.DNF_AUTOMATIC: {"error": "EIO"}}).unattended.unread == "io"


# -- any text ----------------------------------------------------------------------------------------------------------

PARSERS = (
    next_boot.parse_environment,
    next_boot.parse_menu,
    next_boot.parse_default,
    next_boot.unquoted,
    next_boot.parse_loader,
    next_boot.parse_apt,
    next_boot.parse_dnf_automatic,
    next_boot.release_of,
    lambda text: next_boot.parse_grub_defaults([text]),
    lambda text: next_boot.parse_efi_text(text.encode()),
)


@pytest.mark.parametrize("parse", PARSERS)
@given(text=st.text(max_size=120))
def test_random_text_is_a_value_or_a_reason(parse: Any, text: str) -> None:
    reading = Reading(text, "x").then(parse)
    assert reading.value is not None or reading.unread == "not_understood"


@given(st.integers(0, len(GRUB)))
def test_a_menu_that_was_cut_off_never_gives_another_kernel(length: int) -> None:
    reading = Reading(GRUB[:length], "x").then(next_boot.parse_menu)
    names = {node.kernel for node in next_boot._flat(reading.value or [])}
    assert all(
        "/vmlinuz-6.2".startswith(name) or "/vmlinuz-6.1".startswith(name) or name == "/vmlinuz-6.0" for name in names
    )


@given(
    st.lists(
        st.sampled_from(["set timeout=5", "# menuentry 'no' {", "if x; then", "fi", "insmod gzio", ""]), max_size=6
    )
)
def test_foreign_lines_change_no_entry(lines: list[str]) -> None:
    before = next_boot.parse_menu(GRUB)
    assert next_boot.parse_menu("\n".join([*lines, GRUB, *lines])) == before


SECRET = "grub.pbkdf2.sha512.10000.PLANTED"


def test_recordings_keep_only_what_is_read() -> None:
    menu = GRUB + f"set superusers='ada'\npassword_pbkdf2 ada {SECRET}\n"
    files = {
        MENU: menu,
        "/etc/default/grub": f'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\nexport PASS={SECRET}\n',
        f"{APT}/01proxy": f'Acquire::http::Proxy "http://ada:{SECRET}@proxy:3128";\n' + REBOOTS,
        **ON,
    }
    document = {**empty(0), "files": files}
    redacted = Redactor().recording(document)
    assert SECRET not in str(redacted)
    assert next_boot.read(RecordedReader(redacted)) == next_boot.read(RecordedReader(document))


@given(st.text(max_size=200))
def test_reducing_any_text(text: str) -> None:
    for path in (MENU, "/etc/default/grub", f"{APT}/x", next_boot.DNF_AUTOMATIC):
        less = next_boot.reduced(path, text)
        assert len(less.splitlines()) == len(text.splitlines()) or "\n" not in less


# -- checks ------------------------------------------------------------------------------------------------------------


def menu_of(kernel: str, more: str = "", host: str = HOST) -> dict[str, Any]:
    """The host's menu with another default kernel, whose files are there."""
    text = replay.host(host)["files"][MENU]
    entry = (
        f"menuentry 'New' --id 'new' {{\n\tlinux\t/vmlinuz-{kernel} "
        f"root=UUID=0a1b2c3d-0000-4000-8000-000000000002 ro{more}\n\tinitrd\t/initrd.img-{kernel}\n}}\n"
    )
    files = {f"/boot/vmlinuz-{kernel}": THERE, f"/boot/initrd.img-{kernel}": THERE}
    files |= {f"/lib/modules/{kernel}/modules.dep": THERE}
    return {MENU: entry + text, **files}


def test_the_same_kernel_is_ok_and_another_one_a_warning() -> None:
    assert judge(checks.kernel).status is Status.ok
    found = judge(checks.kernel, {"files": menu_of("7.1.0-9-generic")})
    assert (found.status, found.wanted) == (Status.warn, "7.0.0-38-generic, which runs now")


def test_a_declared_kernel_decides() -> None:
    change = {"files": menu_of("7.1.0-9-generic")}
    assert judge(checks.kernel, change, {"boot": {"kernel": "7.1.*"}}).status is Status.ok
    assert judge(checks.kernel, None, {"boot": {"kernel": "7.1.*"}}).status is Status.warn


@pytest.mark.parametrize("cmdline", ["BOOT_IMAGE=/vmlinuz ro pcie_aspm=off\n", "ro quiet\n"])
def test_a_boot_that_the_menu_did_not_start_is_not_compared(cmdline: str) -> None:
    change = {"files": {**menu_of("7.1.0-9-generic"), "/proc/cmdline": cmdline}}
    for check in (checks.kernel, checks.initrd):
        assert judge(check, change).status is Status.not_applicable


def test_a_menu_that_was_refused_is_unknown_and_one_that_is_not_there_does_not_apply() -> None:
    refused: dict[str, Any] = {"files": {MENU: {"error": "EACCES"}}}
    assert judge(checks.kernel, refused).status is Status.unknown
    assert judge(checks.initrd, {"files": {"/boot": {"error": "EACCES"}}}).status is Status.unknown
    assert judge(checks.kernel, {"remove": ["/boot"]}).status is Status.not_applicable


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ("/boot/initrd.img-7.0.0-38-generic", "/initrd.img-7.0.0-38-generic is not there"),
        ("/boot/vmlinuz-7.0.0-38-generic", "/vmlinuz-7.0.0-38-generic is not there"),
        ("/lib/modules/7.0.0-38-generic/modules.dep", "/lib/modules/7.0.0-38-generic is not there"),
    ],
)
def test_files_that_are_missing(gone: str, words: str) -> None:
    found = judge(checks.initrd, {"remove": [gone], "files": {"/lib/modules/6.1/modules.dep": THERE}})
    assert (found.status, words in found.seen) == (Status.warn, True)


def test_a_reboot_by_itself_may_be_declared() -> None:
    change = {"files": {f"{APT}/52reboot": REBOOTS}}
    found = judge(checks.automatic, change)
    assert (found.status, "02:00" in found.seen) == (Status.warn, True)
    assert judge(checks.automatic, change, {"boot": {"automatic_reboot": True}}).status is Status.info
    assert judge(checks.automatic).status is Status.ok
    assert judge(checks.automatic, {"files": {APT: {"error": "EACCES"}}}).status is Status.unknown
    assert judge(checks.automatic, {"remove": ["/etc/apt"]}).status is Status.not_applicable


def test_loose_firmware() -> None:
    assert judge(checks.firmware).status is Status.ok
    assert judge(checks.firmware, {"files": {"/lib/firmware/xe/bmg_guc_70.bin": THERE}}).status is Status.warn
    assert judge(checks.firmware, {"files": {"/lib/firmware/xe": {"error": "EACCES"}}}).status is Status.unknown
    assert judge(checks.firmware, {"remove": ["/lib/firmware"]}).status is Status.not_applicable


# -- the screen --------------------------------------------------------------------------------------------------------


def lines(change: dict[str, Any] | None = None, host: str = HOST) -> tuple[int, str]:
    found = facts(change, host)
    return screen.code(found), screen.render(found, host).plain


def test_nothing_will_differ_on_a_healthy_host() -> None:
    code, text = lines()
    assert (code, "!" in text, "?" in text) == (0, False, False)
    assert "arguments  the same" in text
    assert "GuC 70.54.0 is loaded" in text
    assert len(text.splitlines()) <= 24


def test_kernel_arguments_and_files_that_will_differ() -> None:
    files = menu_of("7.1.0-9-generic", " iommu=pt")
    files["/proc/cmdline"] = replay.host(HOST)["files"]["/proc/cmdline"].strip() + " pcie_aspm=off\n"
    files.pop("/boot/initrd.img-7.1.0-9-generic")
    code, text = lines({"files": files})
    assert code == 1
    assert "7.0.0-38-generic now, 7.1.0-9-generic then" in text
    assert "- pcie_aspm=off" in text
    assert "+ iommu=pt" in text
    assert "/initrd.img-7.1.0-9-generic is not there" in text


def test_settings_that_a_boot_takes_back() -> None:
    way = "/sys/devices/pci0000:00/0000:00:01.1/0000:01:00.0/0000:02:01.0/0000:03:00.0"
    change = {
        "files": {
            "/etc/tlp.conf": "CPU_SCALING_GOVERNOR_ON_AC=powersave\n",
            f"{way}/tile0/gt0/freq0/max_freq": "2400\n",
            "/sys/module/pcie_aspm/parameters/policy": "default [performance] powersave powersupersave \n",
            **{f"/sys/devices/system/cpu/cpu{cpu}/cpuidle/state2/disable": "1\n" for cpu in range(16)},
        },
        "links": {"/run/systemd/units/invocation:tlp.service": "0" * 31 + "1"},
    }
    code, text = lines(change)
    assert code == 1
    assert "governor performance now, powersave then: TLP (/etc/tlp.conf:1)" in text
    assert "0000:03:00.0: the limit of 2400 MHz on tile0/gt0 is gone" in text
    assert "ASPM policy performance was written at run time" in text
    assert "the deepest idle state is off" in text


def test_what_could_not_be_told_is_said() -> None:
    code, text = lines({"files": {MENU: {"error": "EACCES"}}})
    assert (code, "permission" in text) == (3, True)
    code, text = lines({"remove": ["/boot"]})
    assert (code, "started from elsewhere" in text) == (3, True)


def test_text_of_a_host_is_made_visible() -> None:
    text = replay.host(HOST)["files"][MENU].replace("menuentry 'Ubuntu'", "menuentry 'Ub\x1b[2Juntu'")
    assert "\x1b" not in lines({"files": {MENU: text}})[1]


def test_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["next-boot", "--recording", str(replay.HOSTS / f"{HOST}.json")]) == 3  # it does not hold the initrd
    assert capsys.readouterr().out.startswith(f"{HOST} next boot\n")
    assert main(["next-boot", "--recording", "none.json"]) == 2
