"""Variables of jobs that hold cards, and tools beside them: each from both sides, and unread."""

from __future__ import annotations

from typing import Any

import pytest

from hostcheck.findings import Finding, all_unknown
from tests import replay

HOST = "two-card-gen5"
REFUSED: Any = {"error": "EACCES"}


def report(environ: Any, comm: str = "python") -> Any:
    files = {"/proc/77/comm": f"{comm}\n", "/proc/77/cgroup": "0::/user.slice\n", "/proc/77/environ": environ}
    change = {"files": files, "links": {"/proc/77/fd/5": "/dev/dri/renderD129"}}
    return replay.report(replay.changed(replay.host(HOST), change))


def one(id: str, environ: Any, comm: str = "python") -> Finding:
    (found,) = [finding for finding in report(environ, comm).findings if finding.id == id]
    return found


@pytest.mark.parametrize(
    ("environ", "status"),
    [
        ("PATH=/x\0", "ok"),
        ("ZE_AFFINITY_MASK=0\0", "ok"),
        ("ONEAPI_DEVICE_SELECTOR=level_zero:1\0", "ok"),
        ("ZE_AFFINITY_MASK=0\0ONEAPI_DEVICE_SELECTOR=\0", "ok"),
        ("ZE_AFFINITY_MASK=0\0ONEAPI_DEVICE_SELECTOR=level_zero:1\0", "warn"),
    ],
)
def test_devices_are_named_in_one_way(environ: str, status: str) -> None:
    found = one("env.selectors", environ)
    assert (found.status.value, found.subject.name) == (status, "python[77]")


@pytest.mark.parametrize(
    ("environ", "status", "seen"),
    [
        ("CCL_ALLREDUCE=topo\0", "ok", "none of these"),
        ("CCL_ALLREDUCE=direct\0", "warn", "CCL_ALLREDUCE=direct"),
        ("CCL_SYCL_ALLREDUCE_SMALL_THRESHOLD=0\0", "warn", "CCL_SYCL_ALLREDUCE_SMALL_THRESHOLD=0"),
        ("CCL_SYCL_ALLREDUCE_SMALL_THRESHOLD=4294967296\0", "ok", "none of these"),
    ],
)
def test_collectives_that_are_known_to_be_bad(environ: str, status: str, seen: str) -> None:
    found = one("env.collective", environ)
    assert found.status.value == status
    assert seen in found.seen


@pytest.mark.parametrize("environ", [REFUSED, None, "garbage"])
def test_variables_that_were_not_read_are_unknown_once(environ: Any) -> None:
    found = one("env.selectors", environ)
    assert found.status.value == "unknown"
    assert [item.id for item in found.explains] == ["env.collective"]


def test_without_a_job_there_is_nothing_to_judge() -> None:
    for id in ("env.selectors", "env.collective"):
        (found,) = [item for item in replay.report(replay.host(HOST)).findings if item.id == id]
        assert found.status.value == "not_applicable"


def test_tools_that_hold_a_card_are_told_and_are_no_jobs() -> None:
    found = report("ZE_AFFINITY_MASK=0\0ONEAPI_DEVICE_SELECTOR=*\0", "xpu-smi").findings
    said = {item.id: item.status.value for item in found}
    assert said["tool.polling"] == "info"
    assert "env.selectors" not in said
    assert one("tool.polling", "PATH=/x\0").status.value == "ok"


def test_holders_that_may_not_be_listed() -> None:
    files = {"/proc/9/fd": REFUSED, "/proc/9/stat": "9 (a) S 1 1 1 0 -1 4194560 1\n"}
    found = replay.report(replay.changed(replay.host(HOST), {"files": files}))
    ids = {item.id for item in all_unknown(found.findings)}
    assert {"env.selectors", "env.collective", "tool.polling"} <= ids
