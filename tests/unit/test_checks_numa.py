"""Memory nodes: where a card is, and where the processes that hold it may run."""

from __future__ import annotations

from typing import Any

import pytest

from hostcheck.checks import numa
from hostcheck.expectations import expectation
from hostcheck.findings import Finding, run
from hostcheck.onhost.gather import Options, gather
from hostcheck.onhost.readings.containers import parse_processors, reduce_status
from hostcheck.onhost.recording import RecordedReader
from tests.hosts.build_pci import Link
from tests.pci_host import intel, nvidia, put, recording

GPU = "0000:23:00.0"
STATUS = "Name:\tpython\nUid:\t1000\nCpus_allowed:\tf0\nCpus_allowed_list:\t{}\nMems_allowed:\t1\n"
NODES = ("0-3", "4-7")


def host(node: str = "0\n", status: Any = None, nodes: tuple[str, ...] = NODES) -> dict[str, Any]:
    """A host with a card at a node; status: of a process that holds it, None without one."""
    made = recording(intel())
    put(made, GPU, "numa_node", node)
    lines = [f"NUMA node{number} CPU(s):  {cpus}" for number, cpus in enumerate(nodes)]
    text = "\n".join(["Architecture: x86_64", "CPU(s): 8", f"NUMA node(s): {len(nodes)}", *lines])
    made["commands"]["lscpu"] = {"rc": 0, "stdout": f"{text}\n", "stderr": ""}
    made["files"] |= {"/proc/1/comm": "systemd\n", "/proc/1/fd/": "", "/dev/dri/": ""}
    if status is not None:
        made["links"] |= {"/proc/77/fd/9": "/dev/dri/renderD128"}
        made["files"] |= {"/proc/77/comm": "python\n", "/proc/77/status": status, "/dev/dri/renderD128": ""}
    return made


def judge(made: dict[str, Any]) -> Finding:
    facts = gather(RecordedReader(made), Options())
    (found,) = run([numa.numa.declaration], facts, expectation({}))  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("status", [None, STATUS.format("0-7"), STATUS.format("3,6")])
def test_a_card_at_a_node_is_ok_while_its_processes_may_run_there(status: str | None) -> None:
    found = judge(host(status=status))
    assert (found.status.value, found.subject.name, found.seen) == ("ok", GPU, "node 0 (processors 0-3)")


def test_a_process_that_is_pinned_to_another_node_is_told() -> None:
    found = judge(host(status=STATUS.format("4-7")))
    assert (found.status.value, found.subject.name) == ("info", GPU)
    assert found.seen == "it is at node 0 (processors 0-3), and held by python[77] on 4-7 alone"
    assert "--cpunodebind=0" in found.next_step


def test_no_node_is_told_where_there_are_several_and_nothing_where_there_is_one() -> None:
    found = judge(host(node="-1\n"))
    assert (found.status.value, found.subject.name) == ("info", "host")
    assert found.seen == f"the firmware names no node for {GPU}, of 2 nodes"
    assert judge(host(node="-1\n", nodes=("0-7",))).status.value == "not_applicable"


@pytest.mark.parametrize("status", ["garbage\n", {"error": "EACCES"}, STATUS.format("many")])
def test_processors_that_were_not_read_are_unknown(status: Any) -> None:
    assert judge(host(status=status)).status.value == "unknown"


def test_what_else_was_not_read_is_unknown() -> None:
    made = host()
    put(made, GPU, "numa_node", {"error": "EIO"})
    assert judge(made).status.value == "unknown"
    made = host()
    made["commands"]["lscpu"] = {"rc": 1, "stdout": "", "stderr": "refused"}
    assert judge(made).status.value == "unknown"
    assert judge(recording(nvidia(Link(16, 16, 16, 16)))).status.value == "not_applicable"


def test_of_a_process_only_the_processors_are_kept() -> None:
    assert reduce_status(STATUS.format("4-5,7")) == "Cpus_allowed_list:\t4-5,7\n"
    assert parse_processors(reduce_status(STATUS.format("4-5,7"))) == (4, 5, 7)
    with pytest.raises(ValueError, match="Cpus_allowed_list"):
        parse_processors("Name:\tpython\n")
