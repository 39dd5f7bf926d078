"""Who may open a render node, by its mode and group."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hostcheck.checks import access
from hostcheck.expectations import Expectation
from hostcheck.findings import Finding
from hostcheck.onhost.gather import gather
from hostcheck.onhost.reader import Reading
from hostcheck.onhost.readings.pcie import DrmNode
from hostcheck.onhost.recording import RecordedReader
from tests import replay

HOST, NODE = "one-card-b450-x8", "/dev/dri/renderD128"


def judged(change: dict[str, Any], host: str = HOST) -> list[Finding]:
    report = replay.report(replay.changed(replay.host(host), change))
    return [one for one in report.findings if one.id == "gpu.access"]


def stat(mode: str, gid: int) -> dict[str, Any]:
    return {"stats": {NODE: {"mode": mode, "uid": 0, "gid": gid, "rdev": [226, 128]}}}


@pytest.mark.parametrize(
    ("mode", "gid", "status"),
    [
        ("20660", 992, "ok"),
        ("20666", 0, "ok"),
        ("20660", 0, "info"),
        ("20640", 992, "info"),
        ("20600", 992, "info"),
        ("20644", 992, "info"),
    ],
)
def test_a_node_by_its_mode_and_group(mode: str, gid: int, status: str) -> None:
    (found,) = judged(stat(mode, gid))
    assert (found.subject.name, found.status.value) == ("0000:0c:00.0", status)
    assert found.seen.endswith("only root may open it") == (status == "info")
    assert bool(found.next_step) == (status == "info")


def test_what_was_not_read_is_not_judged() -> None:
    (found,) = judged({"stats": {NODE: None}})
    assert (found.status.value, found.seen) == ("not_applicable", "the owner of renderD128 was not recorded")
    assert judged({}, "arm-server") == []


def of(**more: Any) -> list[Finding]:
    """Findings where a reading of the card is another one."""
    facts = gather(RecordedReader(replay.host(HOST)))
    (gpu,) = facts.pcie.gpus.value or ()
    pcie = dataclasses.replace(facts.pcie, gpus=Reading((dataclasses.replace(gpu, **more),), "/sys"))
    return list(access.access(dataclasses.replace(facts, pcie=pcie), Expectation()))


def test_nodes_that_are_refused_are_unknown() -> None:
    (found,) = of(drm=Reading.no("permission", "EACCES", "/sys/class/drm"))
    assert (found.status.value, found.seen, found.cause and found.cause.id) == (
        "unknown",
        "permission: EACCES",
        "gpu.enumeration",
    )
    refused: Reading[int] = Reading.no("permission", "EACCES", NODE)
    (found,) = of(drm=Reading((DrmNode("renderD128", refused, refused, refused),), "/sys/class/drm"))
    assert found.status.value == "unknown"
    (found,) = of(drm=Reading((), "/sys/class/drm"))
    assert (found.status.value, found.seen) == ("not_applicable", "no render node")
