"""The rebuilt GPU hosts agree with themselves, and the two complete ones of the lab keep every check quiet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hostcheck.cli import main
from hostcheck.findings import Status, all_unknown
from hostcheck.onhost.gather import Options, gather
from hostcheck.onhost.readings.pcie import Pcie
from hostcheck.onhost.recording import RecordedReader, dump
from tests import replay
from tests.hosts import build_pci
from tests.hosts.build_gpu import HOSTS, Host

NAMES = [build().name for build in HOSTS]
LAB = ("four-card-gen4", "two-card-gen5")


@pytest.mark.parametrize("build", HOSTS, ids=NAMES)
def test_the_file_is_what_the_builder_makes(build: Callable[[], Host]) -> None:
    host = build()
    path = replay.HOSTS / f"{host.name}.json"
    text = path.read_text(encoding="utf-8")
    assert text == dump(host.finish()), "run python -m tests.hosts.build_gpu"
    assert len(text) <= 400 << 10
    assert host.recording["origin"].startswith("rebuilt: ")


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name: str) -> None:
    reader = RecordedReader(replay.host(name))
    links = [path for path in reader.recording["links"] if not path.startswith("/proc/")]
    assert [path for path in links if reader.resolve(path).value is None] == []


def links(pcie: Pcie) -> dict[str, Any]:
    return {
        hop.bdf: (hop.role, hop.speed.value, hop.max_speed.value, hop.width.value, hop.max_width.value)
        for gpu in pcie.gpus.value or ()
        for hop in gpu.path
        if not hop.inner
    }


def read(name: str, change: dict[str, Any]) -> Pcie:
    return gather(RecordedReader(replay.changed(replay.host(name), change)), Options(), ("pcie",)).pcie


@pytest.mark.parametrize("name", NAMES)
def test_configuration_space_sysfs_and_lspci_agree(name: str) -> None:
    files = replay.host(name)["files"]
    configs = {path: None for path in files if path.endswith("/config")}
    attributes = {path: None for path in files if path.endswith(("_link_speed", "_link_width"))}
    whole = links(read(name, {}))
    assert whole
    assert links(read(name, {"files": attributes})) == whole
    assert links(read(name, {"files": configs})) == whole
    assert links(read(name, {"files": configs | attributes})) == whole


@pytest.mark.parametrize("name", LAB)
def test_no_check_is_unknown_on_the_complete_hosts(name: str) -> None:
    report = replay.report(replay.host(name))
    assert [(one.id, one.seen) for one in all_unknown(report.findings)] == []
    assert {one.status for one in report.findings} <= {Status.ok, Status.info, Status.not_applicable}


@pytest.mark.parametrize("name", LAB)
@pytest.mark.parametrize("verbose", [(), ("-v",)])
def test_the_healthy_hosts_are_quiet(name: str, verbose: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["audit", "--recording", str(replay.HOSTS / f"{name}.json"), *verbose])
    printed = capsys.readouterr().out
    assert code == 0
    assert "x1 " not in printed
    assert "2.5 GT/s" not in printed
    if not verbose:
        assert len(printed.splitlines()) <= 25


def test_configuration_space_is_laid_out_as_the_specification_says() -> None:
    link = build_pci.Link(32, 16, 16, 8, aspm=build_pci.L0S | build_pci.L1, enabled=build_pci.L1, port=3)
    port = build_pci.Function(
        "0000:21:00.0", "8086", "e2ff", "060400", build_pci.UPSTREAM, link=link, buses=(0x22, 0x24), aer=True
    )
    space = build_pci.config(port)
    express = space[0x34:0x35][0]
    while space[express] != 0x10:
        express = space[express + 1]
    capability = int.from_bytes(space[express + 12 : express + 16], "little")
    status = int.from_bytes(space[express + 18 : express + 20], "little")
    assert (capability & 0xF, capability >> 4 & 0x3F, capability >> 10 & 3, capability >> 24) == (5, 16, 3, 3)
    assert (status & 0xF, status >> 4 & 0x3F) == (4, 8)
    assert space[express + 16] & 3 == 2
    assert space[0x19:0x1B] == b"\x22\x24"
    extended, found = 0x100, []
    while extended:
        header = int.from_bytes(space[extended : extended + 4], "little")
        found.append(header & 0xFFFF)
        extended = header >> 20
    assert found == [0x0B, 0x01]
