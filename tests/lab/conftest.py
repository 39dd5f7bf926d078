"""Test hosts with a kernel of their own.

Where the virtual machine cannot run its tests are skipped and say why; with HOSTCHECK_LAB=required
they fail instead, so that a continuous integration run cannot pass without them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.lab.vm import image, qemu
from tests.lab.vm.host import Vm
from tests.lab.vm.image import Image


def _unavailable(reason: str) -> None:
    if os.environ.get("HOSTCHECK_LAB") == "required":
        pytest.fail(f"HOSTCHECK_LAB=required, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def lab_image() -> Image:
    """The image of the test host; waits for a build that is on its way."""
    for command in (qemu.BINARY, "qemu-img", "ssh", "scp"):
        if not shutil.which(command):
            _unavailable(f"{command} is not installed: python -m tests.lab.vm.build names the packages")
    image.wait_for_build()
    found = image.find()
    if not found:
        _unavailable("the image of the test host is not built: make lab-image, as root")
    assert found
    return found


@pytest.fixture
def vm(lab_image: Image) -> Iterator[Vm]:
    """A running test host, as it was when the image was made."""
    with Vm(lab_image) as machine:
        machine.resume()
        yield machine


@pytest.fixture
def vm_grub(lab_image: Image) -> Iterator[Vm]:
    """The same, but it reboots through its own GRUB, so that what a fix writes there takes effect."""
    with Vm(lab_image) as machine:
        machine.resume(reboot_through="grub")
        yield machine


@pytest.fixture
def vm_second_kernel(lab_image: Image) -> Iterator[Vm]:
    """The same machine under the newer kernel, which words some events differently."""
    with Vm(lab_image, "backports") as machine:
        machine.resume()
        yield machine
