"""Who the host is: parsers, and what counts as a virtual machine."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost.readings import identity
from hostcheck.onhost.recording import RecordedReader, empty
from tests import replay

PARSERS = (
    identity.parse_word,
    identity.parse_boot_id,
    identity.parse_uptime,
    identity.parse_number,
    identity.parse_os_release,
    identity.parse_dmi,
    identity.parse_cpu_flag,
    identity.parse_architecture,
    identity.parse_effective_uid,
)
BARE = "processor\t: 0\nflags\t\t: fpu vme lm\n"
GUEST = "processor\t: 0\nflags\t\t: fpu vme hypervisor lm\n"


def read(files: dict[str, Any] | None = None, links: dict[str, str] | None = None) -> identity.Identity:
    return identity.read(RecordedReader({**empty(0), "files": files or {}, "links": links or {}}))


def test_a_whole_host_is_read() -> None:
    found = identity.read(RecordedReader(replay.host("intel-hybrid")))
    assert [item.name for item in dataclasses.fields(found) if getattr(found, item.name).value is None] == []
    assert (found.hostname.value, found.architecture.value, found.virtualization.value) == ("hybrid", "x86_64", "none")
    assert (found.os_id.value, found.os_version.value) == ("ubuntu", "26.04")
    assert found.board.value == "Example Systems SFF-1"
    assert found.privileged.value is True


def test_serial_numbers_are_never_read() -> None:
    names = ("product_serial", "board_serial", "product_uuid", "chassis_serial", "chassis_asset_tag")
    found = read({f"{identity.DMI}/{name}": "PLANTED\n" for name in names})
    assert "PLANTED" not in repr(found)


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
        (identity.parse_word, "two words\n"),
        (identity.parse_word, ""),
        (identity.parse_boot_id, "ad1e0d6c-804c-4e85-80a7\n"),
        (identity.parse_uptime, "12\n"),
        (identity.parse_uptime, "12.5\n"),
        (identity.parse_number, "-1\n"),
        (identity.parse_number, "0x200\n"),
        (identity.parse_os_release, "no variables\n"),
        (identity.parse_dmi, "To Be Filled By O.E.M.\n"),
        (identity.parse_dmi, "Default string\n"),
        (identity.parse_dmi, "\n"),
        (identity.parse_cpu_flag, "Features\t: fp asimd\n"),
        (identity.parse_architecture, "model name: x\n"),
        (identity.parse_effective_uid, "Name:\tcat\n"),
    ],
)
def test_other_text_is_refused(parse: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|no variable|firmware says|no line"):
        parse(text)


@given(text=st.text(alphabet=st.characters(exclude_characters="\n\r=", categories=["L", "Nd", "Zs", "P"])))
def test_foreign_lines_in_os_release_change_nothing(text: str) -> None:
    lines = ['ID="debian"', "VERSION_ID='13'", 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"']
    assert identity.parse_os_release("\n".join([lines[0], text, *lines[1:]])) == identity.parse_os_release(
        "\n".join(lines)
    )


def test_dropping_a_variable_of_os_release_loses_only_that_one() -> None:
    found = read({"/etc/os-release": 'ID=debian\nPRETTY_NAME="Debian"\n'})
    assert (found.os_id.value, found.os_name.value, found.os_version.unread) == ("debian", "Debian", "absent")
    assert read({"/usr/lib/os-release": "ID=fedora\n"}).os_id.value == "fedora"


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"/proc/cpuinfo": BARE}, "none"),
        ({"/proc/cpuinfo": GUEST}, "vm"),
        ({"/proc/cpuinfo": GUEST, f"{identity.DMI}/sys_vendor": "QEMU\n"}, "kvm"),
        ({"/proc/cpuinfo": GUEST, f"{identity.DMI}/product_name": "VMware Virtual Platform\n"}, "vmware"),
        # a guest of a hypervisor that shows the board of its host
        ({"/proc/cpuinfo": GUEST, f"{identity.DMI}/sys_vendor": "Supermicro\n"}, "vm"),
        # the processor decides over the board: rented metal
        ({"/proc/cpuinfo": BARE, f"{identity.DMI}/sys_vendor": "Amazon EC2\n"}, "none"),
        # a vendor of both: only its virtual machines are virtual
        (
            {f"{identity.DMI}/sys_vendor": "Microsoft Corporation\n", f"{identity.DMI}/product_name": "Surface Pro\n"},
            "none",
        ),
        (
            {
                f"{identity.DMI}/sys_vendor": "Microsoft Corporation\n",
                f"{identity.DMI}/product_name": "Virtual Machine\n",
            },
            "microsoft",
        ),
        # Arm has no flag: the board decides, then the device tree
        ({"/proc/cpuinfo": "Features\t: fp\n", f"{identity.DMI}/sys_vendor": "QEMU\n"}, "kvm"),
        (
            {f"{identity.DMI}/sys_vendor": "Amazon EC2\n", f"{identity.DMI}/product_name": "c7g.metal\n"},
            "none",
        ),
        ({f"{identity.DMI}/sys_vendor": "Amazon EC2\n", f"{identity.DMI}/product_name": "c7g.large\n"}, "amazon"),
        ({"/proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0\0"}, "none"),
        ({"/proc/device-tree/model": "linux,dummy-virt\0"}, "vm"),
        ({"/proc/device-tree/hypervisor/compatible": "linux,kvm\0"}, "kvm"),
        ({"/proc/cpuinfo": GUEST, "/sys/hypervisor/type": "xen\n"}, "xen"),
        # Xen's first domain has the flag and is the machine itself
        (
            {"/proc/cpuinfo": GUEST, "/sys/hypervisor/type": "xen\n", "/proc/xen/capabilities": "control_d\n"},
            "xen-dom0",
        ),
        ({"/proc/cpuinfo": GUEST, "/proc/xen/capabilities": "\n"}, "vm"),
    ],
)
def test_virtual_or_not(files: dict[str, str], wanted: str) -> None:
    assert read(files).virtualization.value == wanted


def test_without_any_witness_nothing_is_claimed() -> None:
    assert read().virtualization.unread == "absent"
    assert read({"/proc/cpuinfo": {"error": "EACCES"}}).virtualization.unread == "permission"
    assert read({"/proc/cpuinfo": "Features\t: fp\n"}).virtualization.unread == "not_understood"


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"/.dockerenv": "", "/proc/1/cgroup": "0::/\n"}, "docker"),
        ({"/run/.containerenv": 'engine="podman-5.0"\n'}, "podman"),
        ({"/proc/1/cgroup": "0::/init.scope\n"}, "none"),
        ({"/proc/1/cgroup": "12:cpu:/docker/4f3\n"}, "docker"),
        ({"/proc/1/cgroup": "0::/kubepods.slice/pod1\n"}, "kubernetes"),
        ({"/proc/1/cgroup": "1:name=systemd:/lxc/web\n"}, "lxc"),
    ],
)
def test_container(files: dict[str, str], wanted: str) -> None:
    assert read(files).container.value == wanted


@pytest.mark.parametrize(("line", "wanted"), [("0\t0\t0\t0", True), ("1000\t0\t0\t0", True), ("0\t1000\t0\t0", False)])
def test_privileged_is_the_effective_user(line: str, wanted: bool) -> None:
    assert read({"/proc/self/status": f"Name:\tx\nUid:\t{line}\n"}).privileged.value is wanted
    assert read().privileged.unread == "absent"


def test_architecture_of_a_kernel_without_the_file() -> None:
    assert read({"/proc/cpuinfo": BARE}).architecture.value == "x86_64"
    assert read({"/proc/cpuinfo": "CPU architecture: 8\n"}).architecture.value == "aarch64"
    assert read({"/proc/sys/kernel/arch": "riscv64\n", "/proc/cpuinfo": BARE}).architecture.value == "riscv64"
