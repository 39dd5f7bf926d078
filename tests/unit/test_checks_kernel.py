"""The kernel that runs against the declared one, and the next boot beside it."""

from __future__ import annotations

from typing import Any

import pytest

from hostcheck.findings import Finding
from tests import replay

HOST = "two-card-gen5"  # runs and would start 7.0.0-38-generic
RELEASE = "/proc/sys/kernel/osrelease"
MENU = "/boot/grub/grub.cfg"


def findings(wanted: str | None, change: dict[str, Any] | None = None) -> dict[str, Finding]:
    expect = {"boot": {"kernel": wanted}} if wanted else {}
    return {one.id: one for one in replay.report(replay.changed(replay.host(HOST), change or {}), expect).findings}


@pytest.mark.parametrize(("wanted", "status"), [(None, "not_applicable"), ("7.0.0-38-generic", "ok"), ("7.0.*", "ok")])
def test_a_kernel_that_is_declared_or_not(wanted: str | None, status: str) -> None:
    assert findings(wanted)["kernel.release"].status.value == status


def test_another_kernel_that_would_start_again_is_told_with_the_next_boot() -> None:
    found = findings("6.17.*")
    assert "kernel.release" not in found
    assert found["boot.kernel"].status.value == "warn"
    assert [one.id for one in found["boot.kernel"].explains] == ["kernel.release"]


@pytest.mark.parametrize("files", [{RELEASE: "7.0.0-31-generic\n"}, {MENU: {"error": "EACCES"}}])
def test_another_kernel_is_told_alone_where_the_next_boot_is_right_or_not_known(files: dict[str, Any]) -> None:
    found = findings("7.0.0-38-*" if RELEASE in files else "6.17.*", {"files": files})["kernel.release"]
    assert found.status.value == "warn"
    assert found.next_step.startswith("hostcheck next-boot")


@pytest.mark.parametrize("content", [None, {"error": "EACCES"}, "two words\n", ""])
def test_a_release_that_is_not_read_is_unknown(content: Any) -> None:
    assert findings("7.*", {"files": {RELEASE: content}})["kernel.release"].status.value == "unknown"
