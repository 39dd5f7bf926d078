"""Do the processes that hold a card run on processors of its memory node?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..expectations import Expectation
from ..findings import HOST, Finding, Status, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.readings import gpu_ids
from ..onhost.readings.lscpu import NumaNode, cpu_list
from ..onhost.readings.pcie import Gpu
from .gpu import cards, subject
from .presence import holding, not_applicable


@check("pcie.numa", title="Processes that hold a card may run at its memory node")
def numa(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`pcie.numa`

    Why: a process that is pinned to another node reaches its card through the link between the processors. On boards
    with one node the kernel says -1 or 0, which means nothing; the effect was not measured by anybody here, so it is
    told and never more (lab-host-facts 2.1). A process that may run everywhere is as it should be.
    """
    judged = [gpu for gpu in cards(facts) if gpu.vendor == gpu_ids.INTEL and gpu.driver.value]
    if not judged:
        yield not_applicable("pcie.numa", "no Intel card in use", facts.pcie.gpus.source)
        return
    listed = facts.lscpu.numa_nodes
    nodes = [node for node in need(listed) if node.cpus]
    if len(nodes) < 2:
        yield not_applicable("pcie.numa", "the processors are one memory node", listed.source)
        return
    unplaced = [gpu.bdf for gpu in judged if gpu.numa_node.value is not None and gpu.numa_node.value < 0]
    if unplaced:
        seen = f"the firmware names no node for {', '.join(unplaced)}, of {len(nodes)} nodes"
        step = "" if facts.lscpu.hypervisor.value else "BIOS: update it, it names the node of every slot (ACPI _PXM)"
        yield Finding("pcie.numa", HOST, Status.info, seen, source=judged[0].numa_node.source, next_step=step)
    for gpu in judged:
        if gpu.numa_node.value is None:
            yield unknown("pcie.numa", gpu.numa_node, subject(gpu))
        elif gpu.bdf not in unplaced:
            yield _placed(facts, gpu, gpu.numa_node.value, nodes)


def _placed(facts: Facts, gpu: Gpu, at: int, nodes: Sequence[NumaNode]) -> Finding:
    """The finding for a card at a known node."""
    near = next((set(node.cpus) for node in nodes if node.node == at), set())
    held = holding(facts)
    if held.value is None:
        return unknown("pcie.numa", held, subject(gpu))
    pids = {one.pid for one in facts.holders.render.value or () if one.bdf == gpu.bdf}
    far = []
    for process in need(facts.containers.processes) if pids else ():
        if process.pid not in pids or process.processors.unread == "absent":  # it ended in the meantime
            continue
        if process.processors.value is None:
            return unknown("pcie.numa", process.processors, subject(gpu))
        if near and not near.intersection(process.processors.value):
            far.append(f"{process.comm or 'a process'}[{process.pid}] on {cpu_list(process.processors.value)}")
    cpus = cpu_list(tuple(near))
    here = f"node {at} (processors {cpus or 'none'})"
    if not far:
        return Finding("pcie.numa", subject(gpu), Status.ok, seen=here, source=gpu.numa_node.source)
    return Finding(
        "pcie.numa",
        subject(gpu),
        Status.info,
        seen=f"it is at {here}, and held by {', '.join(far)} alone",
        source=f"{facts.containers.processes.source}/status",
        next_step=f"start it with numactl --cpunodebind={at}, or the container with --cpuset-cpus={cpus}",
    )
