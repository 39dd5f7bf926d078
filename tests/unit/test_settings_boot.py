"""Kernel arguments and the ASPM policy: what every entry has afterwards, and that undo leaves nothing behind."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost.settings import boot_entries
from hostcheck.onhost.settings.boot import loader_of
from hostcheck.onhost.settings.boot_entries import (
    bls_with,
    drop_in,
    holds,
    merged,
    parse_bls,
    parse_drop_in,
    parse_grub,
    parse_grubby,
    variable_with,
    variable_words,
    words,
)
from hostcheck.onhost.settings.engine import Host, Refused
from tests import settings_host
from tests.settings_host import Tree, debian, kernel_install, rhel

FAMILIES = [debian, rhel, kernel_install]
WANTED = {"present": ["iommu=pt", "pci=realloc=on"], "absent": ["quiet"]}
WORD = st.from_regex(r"[a-z][a-z0-9_.]{0,8}(=[a-z0-9,]{1,6})?", fullmatch=True)


def lines(tree: Tree, kind: str = "normal") -> list[tuple[str, ...]]:
    host = Host(str(tree.root))
    return [entry.args for entry in loader_of(host).entries(host) if entry.kind == kind]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_normal_entry_has_the_words_and_undo_leaves_nothing(
    tmp_path: Path, family: Callable[[Path], Tree]
) -> None:
    tree = family(tmp_path / "root")
    before = tree.snapshot()
    others = [lines(tree, "recovery"), lines(tree, "foreign")]
    first = lines(tree)

    check = tree.apply("kernel_arguments", WANTED, check=True)
    assert tree.snapshot() == before
    run = tree.apply("kernel_arguments", WANTED)
    assert not run.failure
    assert (check.diff, check.changed, run.changed, run.reboot_required) == (run.diff, True, True, True)
    for line in lines(tree):
        assert holds(line, "iommu=pt")
        assert holds(line, "pci=realloc=on")
        assert not holds(line, "quiet")
    assert all(not holds(line, "iommu=pt") for line in (*lines(tree, "recovery"), *lines(tree, "foreign")))
    assert [lines(tree, "recovery"), lines(tree, "foreign")] == others
    assert [set(line) >= {"ro", "quiet"} for line in lines(tree, "previous")] == [True]
    assert not tree.apply("kernel_arguments", WANTED).changed

    tree.put("/proc/cmdline", "BOOT_IMAGE=/vmlinuz ro iommu=pt pci=realloc=on\n")
    assert not tree.apply("kernel_arguments", WANTED).reboot_required
    checked = tree.undo("kernel_arguments", check=True)
    gone = tree.undo("kernel_arguments")
    assert (gone.failure, gone.left, checked.diff, gone.reboot_required) == ("", [], gone.diff, True)
    assert lines(tree) == first
    after = tree.snapshot()
    after["/proc/cmdline"] = before["/proc/cmdline"]
    assert after == before
    assert not tree.undo("kernel_arguments").changed


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("first", ["kernel_arguments", "pcie_aspm"])
def test_two_roles_share_the_boot_line_and_undo_takes_only_its_own(
    tmp_path: Path, family: Callable[[Path], Tree], first: str
) -> None:
    tree = family(tmp_path / "root")
    tree.put("/sys/module/pcie_aspm/parameters/policy", "[default] performance powersave powersupersave \n")
    before = tree.snapshot()
    for name, wanted in (("kernel_arguments", {"present": ["iommu=pt"]}), ("pcie_aspm", {"policy": "performance"})):
        result = tree.apply(name, wanted)
        assert (result.failure, result.changed) == ("", True)
    second = "pcie_aspm" if first == "kernel_arguments" else "kernel_arguments"
    kept = "pcie_aspm.policy=performance" if second == "pcie_aspm" else "iommu=pt"
    assert not tree.undo(first).failure
    assert all(holds(line, kept) for line in lines(tree))
    assert len(lines(tree, "previous")) == 1
    assert not tree.undo(second).failure
    assert tree.snapshot() == before


def test_the_drop_in_names_the_owner_of_every_word(tmp_path: Path) -> None:
    tree = debian(tmp_path / "root")
    tree.apply("kernel_arguments", {"present": ["iommu=pt"]})
    tree.put("/sys/module/pcie_aspm/parameters/policy", "[default] performance\n")
    tree.apply("pcie_aspm", {"policy": "performance"})
    text = tree.text("/etc/default/grub.d/90-hostcheck.cfg")
    assert re.search(r"iommu=pt\"  # kernel_arguments$", text, re.M)
    assert re.search(r"pcie_aspm.policy=performance\"  # pcie_aspm$", text, re.M)


@pytest.mark.parametrize("family", FAMILIES)
def test_another_value_of_the_same_name_is_replaced_and_comes_back(tmp_path: Path, family: Callable[..., Tree]) -> None:
    tree = family(tmp_path / "root", "ro iommu=off console=tty0 quiet")
    before = tree.snapshot()
    assert not tree.apply("kernel_arguments", {"present": ["iommu=pt", "console=ttyS1"]}).failure
    for line in lines(tree):
        assert [word for word in line if word.startswith("iommu")] == ["iommu=pt"]
        assert {"console=tty0", "console=ttyS1"} <= set(line)
    assert not tree.undo("kernel_arguments").failure
    assert tree.snapshot() == before


def test_a_word_that_was_there_is_not_taken_by_undo(tmp_path: Path) -> None:
    tree = debian(tmp_path / "root", line="quiet iommu=pt")
    before = tree.snapshot()
    assert not tree.apply("kernel_arguments", {"present": ["iommu=pt"]}).changed
    assert not tree.undo("kernel_arguments").changed
    assert tree.snapshot() == before


@pytest.mark.parametrize("family", FAMILIES)
def test_less_wanted_is_less_set(tmp_path: Path, family: Callable[[Path], Tree]) -> None:
    tree = family(tmp_path / "root")
    tree.apply("kernel_arguments", {"present": ["iommu=pt", "nosmt"]})
    run = tree.apply("kernel_arguments", {"present": ["iommu=pt"]})
    assert not run.failure
    if family is debian:  # elsewhere nobody can tell whose a word is that is not declared any more
        assert all(not holds(line, "nosmt") for line in lines(tree))
    assert all(holds(line, "iommu=pt") for line in lines(tree))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_word_first_added_and_then_unwanted_does_not_come_back_with_undo(
    tmp_path: Path, family: Callable[[Path], Tree]
) -> None:
    tree = family(tmp_path / "root")
    before = tree.snapshot()
    assert not tree.apply("kernel_arguments", {"present": ["nosmt"]}).failure
    assert not tree.apply("kernel_arguments", {"absent": ["nosmt"]}).failure
    assert all(not holds(line, "nosmt") for line in lines(tree))
    assert not tree.apply("kernel_arguments", {"absent": ["nosmt"]}).changed
    assert not tree.undo("kernel_arguments").failure
    assert tree.snapshot() == before


def test_a_new_kernel_keeps_the_words_until_undo(tmp_path: Path) -> None:
    tree = kernel_install(tmp_path / "root")
    tree.apply("kernel_arguments", WANTED)
    assert {"iommu=pt", "ro"} <= set(words(tree.text("/etc/kernel/cmdline")))
    tree.put(
        f"/boot/efi/loader/entries/{settings_host.MACHINE}-6.13.conf",
        f"title Linux 6.13\nlinux /vmlinuz-6.13\noptions root=UUID=11-22 {tree.text('/etc/kernel/cmdline')}",
    )
    assert not tree.apply("kernel_arguments", WANTED).changed
    assert not tree.undo("kernel_arguments").failure
    assert all(not holds(line, "iommu=pt") and holds(line, "quiet") for line in lines(tree))


def test_a_line_edited_since_loses_only_our_words(tmp_path: Path) -> None:
    tree = rhel(tmp_path / "root")
    tree.apply("kernel_arguments", {"present": ["iommu=pt"]})
    path = f"/boot/loader/entries/{settings_host.MACHINE}-{settings_host.KERNELS[0]}.conf"
    tree.put(path, tree.text(path).replace("rhgb", "rhgb nosmt"))
    tree.put("/etc/kernel/cmdline", tree.text("/etc/kernel/cmdline").replace("rhgb", "nosmt"))
    assert not tree.undo("kernel_arguments").failure
    assert words(parse_bls(tree.text(path), "x.conf").line) == words(
        "root=UUID=11-22 ro crashkernel=1G rhgb nosmt quiet"
    )
    assert words(tree.text("/etc/kernel/cmdline")) == words("root=UUID=11-22 ro crashkernel=1G nosmt quiet")


def test_the_drop_in_edited_by_hand_is_left_and_said(tmp_path: Path) -> None:
    tree = debian(tmp_path / "root")
    tree.apply("kernel_arguments", {"present": ["iommu=pt"]})
    path = "/etc/default/grub.d/90-hostcheck.cfg"
    tree.put(path, tree.text(path) + 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT nosmt"\n')
    text = tree.text(path)
    gone = tree.undo("kernel_arguments")
    assert tree.text(path) == text
    assert "changed by hand" in " ".join(gone.left)


def test_a_drop_in_that_overrides_ours_is_a_failure(tmp_path: Path) -> None:
    tree = debian(tmp_path / "root")
    tree.put("/etc/default/grub.d/99-site.cfg", 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n')
    assert "not kept" in tree.apply("kernel_arguments", {"present": ["iommu=pt"]}).failure


def test_a_failed_update_grub_is_tried_again(tmp_path: Path) -> None:
    tree = debian(tmp_path / "root")
    before = tree.snapshot()
    tree.put("/grub-is-broken", "")
    run = tree.apply("kernel_arguments", WANTED)
    assert "cannot find a device" in run.failure
    assert "/etc/default/grub.d/90-hostcheck.cfg" in run.done
    tree.path("/grub-is-broken").unlink()
    again = tree.apply("kernel_arguments", WANTED)
    assert (again.failure, again.changed) == ("", True)
    assert not tree.undo("kernel_arguments").failure
    assert tree.snapshot() == before


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"present": ["a b"]}, "not a kernel argument"),
        ({"present": ['a="x"']}, "not a kernel argument"),
        ({"present": ["a=$(reboot)"]}, "not a kernel argument"),
        ({"present": ["iommu=off"]}, "never does"),
        ({"present": ["pcie_acs_override=downstream"]}, "never does"),
        ({"present": ["pcie_aspm.policy=performance"]}, "role pcie_aspm"),
        ({"present": ["nosmt"], "absent": ["nosmt"]}, "both present and absent"),
        ({"presnt": ["nosmt"]}, "unknown key presnt"),
        ({"present": "nosmt"}, "wanted list"),
    ],
)
def test_mistakes_are_said_before_anything_is_touched(tmp_path: Path, wanted: dict[str, object], said: str) -> None:
    tree = debian(tmp_path / "root")
    before = tree.snapshot()
    with pytest.raises(Refused, match=re.escape(said)):
        tree.apply("kernel_arguments", wanted)
    assert tree.snapshot() == before


def test_an_unknown_loader_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no boot loader understood"):
        Tree(tmp_path / "root").apply("kernel_arguments", WANTED)


# -- one boot on trial --------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trial_is_one_boot_and_becomes_permanent_on_request(tmp_path: Path, family: Callable[[Path], Tree]) -> None:
    tree = family(tmp_path / "root")
    before = tree.snapshot()
    trial = {"present": ["iommu=pt"], "absent": ["quiet"], "try_once": True}
    check = tree.apply("kernel_arguments", trial, check=True)
    assert tree.snapshot() == before
    armed = tree.apply("kernel_arguments", trial)
    assert (armed.failure, armed.trial, armed.reboot_required, armed.diff) == ("", "armed", True, check.diff)
    assert all(not holds(line, "iommu=pt") and holds(line, "quiet") for line in lines(tree))
    assert [(holds(line, "iommu=pt"), holds(line, "quiet")) for line in lines(tree, "once")] == [(True, False)]
    assert "hostcheck-once" in settings_host.one_shot(tree)
    assert not tree.apply("kernel_arguments", trial).changed

    settings_host.take_one_shot(tree, "ro iommu=pt")
    booted = tree.apply("kernel_arguments", trial)
    assert (booted.trial, booted.changed) == ("booted", False)
    made = tree.apply("kernel_arguments", {**trial, "try_once": False})
    assert not made.failure
    assert all(holds(line, "iommu=pt") and not holds(line, "quiet") for line in lines(tree))
    assert lines(tree, "once") == []
    assert not tree.apply("kernel_arguments", trial).changed
    assert not tree.undo("kernel_arguments").failure
    after = tree.snapshot()
    for path in ("/proc/cmdline", "/proc/sys/kernel/random/boot_id"):
        after[path] = before[path]
    assert after == before


def test_a_trial_that_did_not_come_up_is_said_and_never_made_permanent(tmp_path: Path) -> None:
    tree = debian(tmp_path / "root")
    trial = {"present": ["iommu=pt"], "try_once": True}
    tree.apply("kernel_arguments", trial)
    tree.put("/boot/grub/grubenv", "")
    tree.put("/proc/sys/kernel/random/boot_id", "22222222-2222-2222-2222-222222222222\n")
    with pytest.raises(Refused, match="did not last"):
        tree.apply("kernel_arguments", trial)
    assert all(not holds(line, "iommu=pt") for line in lines(tree))


def test_a_loader_that_cannot_clear_its_one_shot_entry_is_named(tmp_path: Path) -> None:
    tree = debian(tmp_path / "root")
    trial = {"present": ["iommu=pt"], "try_once": True}
    tree.apply("kernel_arguments", trial)
    tree.put("/proc/cmdline", "ro quiet iommu=pt\n")
    tree.put("/proc/sys/kernel/random/boot_id", "22222222-2222-2222-2222-222222222222\n")
    with pytest.raises(Refused, match="could not clear"):
        tree.apply("kernel_arguments", trial)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_armed_trial_is_taken_back(tmp_path: Path, family: Callable[[Path], Tree]) -> None:
    tree = family(tmp_path / "root")
    before = tree.snapshot()
    tree.apply("kernel_arguments", {"present": ["iommu=pt"], "try_once": True})
    assert not tree.undo("kernel_arguments").failure
    assert settings_host.one_shot(tree) == ""
    assert tree.snapshot() == before


# -- ASPM ---------------------------------------------------------------------------------------------

POLICY = "/sys/module/pcie_aspm/parameters/policy"


def aspm(tree: Tree, text: str = "[default] performance powersave powersupersave \n") -> Tree:
    tree.put(POLICY, text)
    return tree


def test_aspm_is_set_for_the_next_boot_only(tmp_path: Path) -> None:
    tree = aspm(debian(tmp_path / "root"))
    run = tree.apply("pcie_aspm", {"policy": "performance"})
    assert (run.failure, run.reboot_required) == ("", True)
    assert tree.text(POLICY).startswith("[default]")
    assert "cost:" in "".join(entry["after"] for entry in run.diff)


@pytest.mark.parametrize("place", ["line", "always"])
def test_aspm_is_refused_beside_pcie_aspm_off_and_names_the_place(tmp_path: Path, place: str) -> None:
    tree = aspm(debian(tmp_path / "root", **{place: "quiet pcie_aspm=off"}))
    before = tree.snapshot()
    number = {"line": 2, "always": 3}[place]
    with pytest.raises(Refused, match=rf"pcie_aspm=off \(/etc/default/grub:{number}\)"):
        tree.apply("pcie_aspm", {"policy": "performance"})
    assert tree.snapshot() == before
    assert not tree.apply("kernel_arguments", {"absent": ["pcie_aspm=off"]}).failure
    assert not tree.apply("pcie_aspm", {"policy": "performance"}).failure
    for line in lines(tree):
        assert holds(line, "pcie_aspm.policy=performance")
        assert not holds(line, "pcie_aspm=off")


@pytest.mark.parametrize(
    "said",
    [
        "ACPI FADT declares the system doesn't support PCIe ASPM, so disable it",
        "FADT indicates ASPM is unsupported, using BIOS configuration",
    ],
)
def test_aspm_that_the_firmware_keeps_is_not_changed(tmp_path: Path, said: str) -> None:
    tree = aspm(debian(tmp_path / "root"), "[default] performance powersave \n")
    tree.program("dmesg", f'#!/bin/sh\necho "[    0.000000] Linux version 6.1"\necho "[    0.100000] {said}"\n')
    before = tree.snapshot()
    run = tree.apply("pcie_aspm", {"policy": "performance"})
    assert run.not_applicable.startswith("cannot be controlled: the firmware says in its FADT")
    assert not run.changed
    assert tree.snapshot() == before


def test_aspm_without_support_in_the_kernel_is_not_changed(tmp_path: Path) -> None:
    run = debian(tmp_path / "root").apply("pcie_aspm", {"policy": "performance"})
    assert "CONFIG_PCIEASPM" in run.not_applicable


def test_aspm_lists_what_is_offered(tmp_path: Path) -> None:
    tree = aspm(debian(tmp_path / "root"), "[default] performance powersave \n")
    with pytest.raises(Refused, match="offers default, performance, powersave"):
        tree.apply("pcie_aspm", {"policy": "powersupersave"})


@pytest.mark.parametrize("trouble", ["suspended", "error", "held", "log"])
def test_a_runtime_write_needs_cards_that_are_awake_well_and_unused(tmp_path: Path, trouble: str) -> None:
    tree = aspm(debian(tmp_path / "root"))
    settings_host.card(tree, domain="0001", status=trouble if trouble in ("suspended", "error") else "active")
    if trouble != "log":
        tree.program("dmesg", '#!/bin/sh\necho "[    0.000000] Linux version 6.1"\n')
    if trouble == "held":
        tree.put("/dev/dri/renderD128", "")
        tree.put("/proc/1/comm", "systemd\n")
        tree.path("/proc/1/fd").mkdir()
        tree.put("/proc/4711/comm", "python3\n")
        tree.link("/proc/4711/fd/7", "/dev/dri/renderD128")
    before = tree.snapshot()
    words = {"suspended": "0001:23:00.0 is suspended", "error": "0001:23:00.0 is error", "held": "4711 (python3)"}
    with pytest.raises(Refused, match=re.escape(words.get(trouble, "no fault can be ruled out"))):
        tree.apply("pcie_aspm", {"policy": "performance", "runtime_write": True})
    assert tree.snapshot() == before


# -- parsers ------------------------------------------------------------------------------------------


@given(st.lists(WORD, unique=True), st.lists(WORD, unique=True), st.lists(WORD, unique=True))
def test_merging_keeps_all_other_words_in_their_order(line: list[str], add: list[str], remove: list[str]) -> None:
    add = [one for one in add if one not in remove]
    found = merged(line, add, remove)
    assert set(add) <= set(found)
    assert not set(remove) & set(found)
    kept = [one for one in line if one not in remove]
    assert list(found[: len(kept)]) == kept
    assert merged(found, add, remove) == found


@given(
    st.dictionaries(st.sampled_from(["a", "b"]), st.tuples(st.lists(WORD, unique=True), st.lists(WORD, unique=True)))
)
def test_the_drop_in_reads_back(claims: dict[str, tuple[list[str], list[str]]]) -> None:
    given_claims = {name: (tuple(add), tuple(gone)) for name, (add, gone) in claims.items() if add or gone}
    assert parse_drop_in(drop_in(given_claims)) == given_claims


@given(st.lists(WORD, unique=True), st.lists(WORD, unique=True, max_size=3), st.lists(WORD, unique=True, max_size=3))
def test_a_shell_that_reads_the_drop_in_gets_the_merged_line(
    line: list[str], add: list[str], remove: list[str]
) -> None:
    add = [one for one in add if one not in line]
    text = f'set -e\nGRUB_CMDLINE_LINUX=\nGRUB_CMDLINE_LINUX_DEFAULT="{" ".join(line)}"\n'
    text += drop_in({"x": (tuple(add), tuple(remove))}) + '\necho "$GRUB_CMDLINE_LINUX_DEFAULT"\n'
    said = subprocess.run(["/bin/sh", "-c", text], capture_output=True, text=True, check=True).stdout
    assert words(said) == (*[one for one in line if one not in remove], *add)


@given(st.lists(WORD), st.sampled_from(["options {}\n", "options  {}\nlinux /v\n", "linux /v\n"]))
def test_an_entry_file_changes_only_its_line(args: list[str], form: str) -> None:
    text = "title T\nlinux /vmlinuz\n" + form.format("a b")
    changed = bls_with(text, args)
    assert parse_bls(changed, "x.conf").args == tuple(args)
    assert [one for one in changed.splitlines() if not one.startswith("options")] == [
        one for one in text.splitlines() if not one.startswith("options")
    ]


@given(st.lists(WORD), st.booleans())
def test_a_variable_changes_only_its_line(args: list[str], there: bool) -> None:
    text = "A=1\n" + ('GRUB_CMDLINE_LINUX="x y"\n' if there else "") + "B='2'\n"
    changed = variable_with(text, "GRUB_CMDLINE_LINUX", args)
    assert variable_words(changed, "GRUB_CMDLINE_LINUX") == tuple(args)
    assert [one for one in changed.splitlines() if not one.startswith("GRUB")] == ["A=1", "B='2'"]


@given(st.text(max_size=300))
def test_no_text_makes_a_parser_fall_over(text: str) -> None:
    for parse in (parse_grub, parse_grubby, boot_entries.parse_grub_script, parse_drop_in):
        with contextlib.suppress(ValueError):
            parse(text)


def test_grubby_without_quotes_and_ids_is_understood() -> None:
    text = (
        "boot=/dev/sda\nindex=0\nkernel=/boot/vmlinuz-5\nargs=ro quiet\nroot=/dev/sda1\ntitle=Five\nnon linux entry\n"
    )
    assert [(one.id, one.args, one.kind) for one in parse_grubby(text)] == [("Five", ("ro", "quiet"), "normal")]


def test_entries_of_other_systems_and_of_the_administrator_are_foreign() -> None:
    text = (
        "menuentry 'Ubuntu 24' $menuentry_id_option 'osprober-gnulinux-simple-1' {\n\tlinux /boot/vmlinuz-6 ro\n}\n"
        "menuentry 'Memory test' {\n\tlinux16 /boot/memtest86+x64.bin\n}\n"
        "menuentry 'Firmware' $menuentry_id_option 'uefi-firmware' {\n\tfwsetup\n}\n"
        'menuentry "Here" --id here {\n\tlinuxefi /vmlinuz-6 ro\n}\n'
    )
    assert [(one.id, one.kind) for one in parse_grub(text)] == [
        ("osprober-gnulinux-simple-1", "foreign"),
        ("Memory test", "foreign"),
        ("here", "normal"),
    ]
