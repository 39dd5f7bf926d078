"""From a symptom to the checks that tell: the decision table of the public B70 optimization lab, in own words.

Figures are that lab's. A symptom names checks, not cures; `hostcheck explain --symptom TEXT` shows what they say of a
host.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Symptom:
    """One row. seen: what a person notices. cause: the likely one. checks: ids that tell. then: what to do.

    words: further words that a person may use for it.
    """

    seen: str
    cause: str
    checks: tuple[str, ...]
    then: str
    words: str = ""


SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "Decoding one request is 1.5 to 2 times slower than on a host with the same cards, and every check passes",
        "the host submits kernels slowly; governor, ASPM and IOMMU mode were neutral in the lab",
        ("cpu.clock", "cpu.max_clock", "cpu.governor", "gpu.clock_limit", "fw.runtime"),
        "hostcheck probe on both hosts (fast: 3.1 us and 26 us, slow: from 5 us and 30 us); then capture graphs for"
        " every batch size that decoding uses, and compare the outputs again",
        "slow tokens throughput latency launch submission half speed performance",
    ),
    Symptom(
        "Graph capture helps without speculative tokens and not with them",
        "only batch size 1 was captured, and drafting decodes larger batches",
        ("fw.torch", "fw.runtime"),
        "capture every size that occurs (1 and 2 for one drafted token); no setting of the host changes it",
        "mtp draft cudagraph xpugraph eager capture sizes",
    ),
    Symptom(
        "One card alone is fine, two or more together are slow",
        "the collective is slow, or one link is narrower than the others",
        ("pcie.link.asymmetry", "pcie.link.width", "pcie.link.speed", "p2p", "net.iface"),
        "time the collective in the exact shape, type and environment of the job; IOMMU mode and ACS were neutral",
        "all-reduce allreduce tensor parallel tp2 tp4 scaling multi gpu oneccl",
    ),
    Symptom(
        "A start with four cards stops at oneCCL's topology warning while the GuC resets again and again",
        "GuC firmware older than the driver wants, or a driver that is wedged already",
        ("fw.guc", "gpu.fault", "gpu.wedged", "gpu.module_users", "boot.firmware", "fw.guc_ownership"),
        "install the release that the driver names, rebuild the initrd, reboot; never a build posted for tests",
        "hang stall start ccl guc reset engine firmware",
    ),
    Symptom(
        "The host freezes without a word under load, and corrected errors of the root disk climb",
        "the link of the disk has no margin at its speed",
        ("aer.rate", "aer.visibility", "storage.smart", "storage.fs_errors", "log.access"),
        "update firmware of the disk and BIOS; one generation less for that link holds until then",
        "nvme ssd replay rxerr silent hang aer",
    ),
    Symptom(
        "Cards are gone after something wrote to power or ASPM files",
        "the cards do not come back from their sleep state",
        ("gpu.runtime_status", "gpu.lost", "gpu.power_control", "aspm.policy"),
        "reboot; set the policy for the next boot and never while cards sleep",
        "vanish disappear missing d3cold resume suspend",
    ),
    Symptom(
        "The model does not fit, or the cache for keys and values is small",
        "memory of the card is not in reach, or ECC takes its part",
        ("rebar", "gpu.vram_used", "gpu.enumeration", "tool.xpu_smi", "mem.driver_held"),
        "xpu-smi config -d 0 shows current and pending ECC: both have to be off, which takes a reboot",
        "vram out of memory oom kv cache ecc",
    ),
    Symptom(
        "The server is killed while its workers start",
        "the page cache is warm and workers pin memory at the same time",
        ("mem.available", "mem.psi", "mem.swap_total", "mem.oom", "container.oom", "storage.model"),
        "no swap on a large host, drop the page cache before a start, load from a local disk",
        "killed oom pressure loading worker exit 137",
    ),
    Symptom(
        "A card reads 2.5 GT/s x1",
        "the function of the GPU and the ports inside the card always say so",
        ("pcie.link.speed", "pcie.link.width"),
        "nothing; hostcheck topology shows the link that crosses the slot",
        "gen1 lane downgraded lspci endpoint link",
    ),
    Symptom(
        "The host freezes or resets with idle cards, a byte is wrong, or programs crash at the same instruction",
        "bad memory",
        ("mem.ecc", "mem.dimm_mix", "mem.blocks_offline", "boot.last", "kernel.taint", "kernel.lockup"),
        "test nearly all of the memory with the test locked into it; take bad blocks off-line, replace the module",
        "dram corruption reboot random crash bit flip",
    ),
    Symptom(
        "A hard lockup with xe_guc_irq_handler in its trace",
        "one card does not answer, and its interrupt holds a processor",
        ("gpu.fault", "gpu.wedged", "crash.policy"),
        "gpu.fault names the card by its interrupt: try another slot and power cable, then a newer kernel",
        "watchdog nmi irq guc lockup",
    ),
    Symptom(
        "An idle host freezes with a soft lockup in smp_call_function",
        "a processor does not wake from its deepest idle state",
        ("cpu.deep_idle", "kernel.lockup", "boot.last"),
        "disable the deepest idle state on every processor, or set idle current to typical in the BIOS; read it back",
        "cstate c-state c6 sleep soft lockup idle",
    ),
    Symptom(
        "A freeze leaves no trace",
        "the kernel panics at a lockup and stays there, with nothing that could take the message",
        ("crash.policy", "crash.records", "storage.evidence_fs", "boot.last", "log.access"),
        "no panic at lockups, or a proven place for the trace: netconsole, kdump or pstore",
        "panic hang no log dead",
    ),
    Symptom(
        "The log ends minutes before a freeze, and new files are empty",
        "normal: the journal and files are written back minutes later",
        ("storage.evidence_fs", "log.access", "boot.last"),
        "nothing follows from where the log ends; results have to be synced by the program that writes them",
        "journal truncated lost lines missing fsync",
    ),
    Symptom(
        "A copy engine (class=bcs) faults with -EINVAL while weights load in a container",
        "the container swaps, while one upload maps a large part of the host's memory",
        ("container.swap", "gpu.fault", "mem.driver_held"),
        "memory-swap equal to memory for the container, and uploads in pieces of 128 MiB",
        "bcs page fault load weights einval copy engine docker",
    ),
    Symptom(
        "A newer kernel has the same faults",
        "there is no change for this fault in it",
        ("boot.kernel", "package.pins", "fw.guc", "gpu.fault"),
        "choose a kernel by the fix that it contains, and change kernel or firmware, never both at once",
        "upgrade update kernel version",
    ),
)
SMALL = frozenset(
    re.findall(
        r"\w+", "a an and are as at by for from has have in is it its my of on or than that the to under while with"
    )
)


def words(text: str) -> set[str]:
    """Words of a text that can be compared; plurals and endings are cut in the simplest way.

    >>> sorted(words("The cards are freezing"))
    ['card', 'freez']
    """
    found = re.findall(r"[a-z0-9][a-z0-9_.-]*[a-z0-9]|[a-z0-9]", text.lower())
    return {
        re.sub(r"(?<=[a-z]{4})(?:ing|es|ed|er|e|s)$|(?<=[a-z]{3})s$", "", word) for word in found if word not in SMALL
    }


def matching(text: str, most: int = 3) -> Sequence[Symptom]:
    """The symptoms that a person may mean, best first; () when none has a word in common."""
    asked = words(text)
    rated = [
        (2 * len(asked & words(row.seen)) + len(asked & (words(row.words) | words(row.cause))), row) for row in SYMPTOMS
    ]
    best = max(score for score, _ in rated)
    found = [(score, row) for score, row in rated if score and score * 2 > best]
    return [row for _, row in sorted(found, key=lambda item: -item[0])[:most]]
