"""lscpu: every form that util-linux prints gives the same values; what is cut or foreign gives none."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost.readings import lscpu
from hostcheck.onhost.recording import RecordedReader, empty
from tests import replay

HOSTS = ("intel-hybrid", "epyc-two-socket", "arm-server", "metal-without-cpufreq", "vm-without-cpufreq")

# util-linux 2.38 on a terminal: indented, with headings and short labels
INDENTED = """\
Architecture:             x86_64
  CPU op-mode(s):         32-bit, 64-bit
  Address sizes:          46 bits physical, 48 bits virtual
CPU(s):                   16
  On-line CPU(s) list:    0-15
Vendor ID:                GenuineIntel
  Model name:             Intel(R) Xeon(R) Silver 4110 CPU @ 2.10GHz
    CPU family:           6
    Thread(s) per core:   2
    Core(s) per socket:   8
    Socket(s):            1
    CPU(s) scaling MHz:   120%
    CPU max MHz:          3000.0000
    CPU min MHz:          800.0000
Virtualization features:
  Virtualization:         VT-x
Caches (sum of all):
  L1d:                    256 KiB (8 instances)
  L3:                     11 MiB (1 instance)
NUMA:
  NUMA node(s):           1
  NUMA node0 CPU(s):      0-15
Vulnerabilities:
  Spectre v2:             Mitigation; IBRS
"""

# two kinds of core; the counts stand per cluster and there is no socket
ARM = """\
Architecture:           aarch64
CPU(s):                 8
On-line CPU(s) list:    0-7
Vendor ID:              ARM
Model name:             Cortex-A55
Model:                  0
Thread(s) per core:     1
Core(s) per cluster:    4
Socket(s):              -
Cluster(s):             1
CPU max MHz:            1800.0000
CPU min MHz:            408.0000
Model name:             Cortex-A76
Model:                  0
Thread(s) per core:     1
Core(s) per cluster:    4
Socket(s):              -
Cluster(s):             1
CPU max MHz:            2400.0000
CPU min MHz:            408.0000
Vulnerability Spectre v2: Vulnerable: Unprivileged eBPF enabled
"""


def as_json(text: str, nested: bool = False) -> str:
    """The JSON that goes with a text: flat, or with the indented lines as children."""
    top: list[dict[str, Any]] = []
    open_at = {0: top}
    for line in text.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2 if nested else 0
        label, _, value = line.strip().partition(":")
        entry: dict[str, Any] = {"field": f"{label}:", "data": value.strip() or None}
        open_at[depth].append(entry)
        if nested:
            open_at[depth + 1] = entry.setdefault("children", [])
    return json.dumps({"lscpu": top})


def read(
    text: str = "", document: str = "", files: dict[str, Any] | None = None, rc: int = 0, stderr: str = ""
) -> lscpu.Lscpu:
    commands = {}
    if text:
        commands["lscpu"] = {"rc": rc, "stdout": text, "stderr": stderr}
    if document:
        commands["lscpu -J"] = {"rc": rc, "stdout": document, "stderr": stderr}
    return lscpu.read(RecordedReader({**empty(0), "files": files or {}, "commands": commands}))


def values(found: lscpu.Lscpu) -> dict[str, Any]:
    return {item.name: getattr(found, item.name).value for item in dataclasses.fields(found)}


@pytest.mark.parametrize("name", HOSTS)
def test_text_and_json_of_a_host_say_the_same(name: str) -> None:
    host = replay.host(name)
    by_json = lscpu.read(RecordedReader(host))
    del host["commands"]["lscpu -J"]
    by_text = lscpu.read(RecordedReader(host))
    assert values(by_text) == values(by_json)
    assert by_text.cpus.source == "lscpu"


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("text", [INDENTED, ARM])
def test_nested_and_flat_json_say_the_same_as_the_text(text: str, nested: bool) -> None:
    assert values(read(document=as_json(text, nested))) == values(read(text))


def test_indented_form() -> None:
    found = values(read(INDENTED))
    assert (found["cpus"], found["threads_per_core"], found["cores_per_socket"], found["sockets"]) == (16, 2, 8, 1)
    assert (found["max_mhz"], found["min_mhz"], found["hypervisor"]) == (3000.0, 800.0, "")
    assert found["caches"] == (lscpu.Cache("L1d", 256 << 10, 8), lscpu.Cache("L3", 11 << 20, 1))


def test_arm_with_two_kinds_of_core_and_no_socket() -> None:
    found = read(ARM)
    assert found.model_names.value == ("Cortex-A55", "Cortex-A76")
    assert (found.cores_per_socket.value, found.threads_per_core.value) == (8, 1)
    assert found.sockets.unread == "absent"
    assert (found.min_mhz.value, found.max_mhz.value) == (408.0, 2400.0)
    assert [kind.clusters for kind in found.kinds.value or ()] == [1, 1]
    assert found.numa_nodes.value == ()


def test_counts_above_the_model_make_one_kind() -> None:
    found = lscpu.read(RecordedReader(replay.host("epyc-two-socket")))
    assert [(kind.model, kind.cores, kind.sockets) for kind in found.kinds.value or ()] == [
        ("AMD EPYC 7451 24-Core Processor", 24, 2)
    ]
    assert [node.cpus[0] for node in found.numa_nodes.value or ()] == [0, 6, 12, 18, 24, 30, 36, 42]
    assert (found.numa_nodes.value or ())[0].cpus == (0, 1, 2, 3, 4, 5, 48, 49, 50, 51, 52, 53)
    assert found.caches.value is not None
    assert found.caches.value[0] == lscpu.Cache("L1d", 3 << 19, 0)


def test_a_hybrid_has_its_two_kinds_from_sysfs() -> None:
    found = lscpu.read(RecordedReader(replay.host("intel-hybrid")))
    assert found.performance_cores.value == tuple(range(12))
    assert found.efficiency_cores.value == tuple(range(12, 22))
    assert found.offline.value == ()


@pytest.mark.parametrize("line", ["Off-line CPU(s) list: 3,5-6", "Off-line CPU(s) mask: 0x68"])
def test_processors_off_line(line: str) -> None:
    text = f"CPU(s): 8\nOn-line CPU(s) list: 0-2,4,7\n{line}\nNUMA node(s): 1\n"
    assert read(text).offline.value == (3, 5, 6)


def test_places_for_processors_are_not_processors_off_line() -> None:
    found = lscpu.read(RecordedReader(replay.host("vm-without-cpufreq")))
    assert (found.cpus.value, found.offline.value) == (8, ())


def test_without_lscpu_sysfs_counts() -> None:
    root = lscpu.CPU_FOLDER
    nodes = {"/sys/devices/system/node/node0/cpulist": "0-3\n", "/sys/devices/system/node/node1/cpulist": "\n"}
    found = read(files={f"{root}/present": "0-3\n", f"{root}/online": "0-2\n", **nodes})
    assert (found.cpus.value, found.online.value, found.offline.value) == (4, (0, 1, 2), (3,))
    assert found.numa_nodes.value == (lscpu.NumaNode(0, (0, 1, 2, 3)), lscpu.NumaNode(1, ()))
    assert found.vendor.unread == "tool_missing"


def test_a_failing_lscpu_is_no_answer() -> None:
    found = read(INDENTED, as_json(INDENTED), rc=1, stderr="lscpu: failed to determine number of CPUs")
    assert found.cpus.unread == "exit"
    assert "failed to determine" in found.cpus.detail


def test_a_cut_text_does_not_claim_bare_metal() -> None:
    found = read("Architecture: x86_64\nCPU(s): 8\nModel name: X\n")
    assert (found.cpus.value, found.hypervisor.unread) == (8, "not_understood")


def test_the_first_domain_of_xen_is_the_machine() -> None:
    text = "CPU(s): 8\nHypervisor vendor: Xen\nVirtualization type: none\nNUMA node(s): 1\n"
    assert read(text).hypervisor.value == ""
    assert read(text.replace("none", "para")).hypervisor.value == "Xen"


@given(st.text())
def test_random_text_is_not_understood(text: str) -> None:
    assert "CPU(s):" in text or read(text or " ", text or " ").cpus.unread in ("not_understood", "absent")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda one: st.lists(one) | st.dictionaries(st.sampled_from(["lscpu", "field", "data", "children"]), one),
    )
)
def test_random_json_is_not_understood(value: Any) -> None:
    assert read(document=json.dumps(value)).cpus.unread == "not_understood"


def test_json_that_is_nested_without_end_is_not_understood() -> None:
    assert read(document='{"lscpu":' + "[" * 200_000).cpus.unread == "not_understood"


@pytest.mark.parametrize("name", HOSTS)
@given(data=st.data())
def test_json_that_is_cut_gives_nothing(name: str, data: st.DataObject) -> None:
    document = replay.host(name)["commands"]["lscpu -J"]["stdout"].rstrip()
    cut = document[: data.draw(st.integers(1, len(document) - 1))]
    assert read(document=cut).cpus.unread == "not_understood"


@pytest.mark.parametrize("name", HOSTS)
@given(data=st.data())
def test_a_dropped_line_changes_no_other(name: str, data: st.DataObject) -> None:
    lines = replay.host(name)["commands"]["lscpu"]["stdout"].splitlines(keepends=True)
    gone = data.draw(st.integers(0, len(lines) - 1))
    whole, less = lscpu.parse_text("".join(lines)), [*lines[:gone], *lines[gone + 1 :]]
    if lines[gone].startswith("CPU(s):"):
        with pytest.raises(ValueError, match="no line"):
            lscpu.parse_text("".join(less))
        return
    label = lines[gone].partition(":")[0]
    assert [one for one in lscpu.parse_text("".join(less)) if one[0] != label] == [
        one for one in whole if one[0] != label
    ]


FOREIGN = st.text(max_size=60).filter(
    lambda text: not any(lscpu.LABEL.fullmatch(line.strip().partition(":")[0]) for line in text.splitlines())
)


@pytest.mark.parametrize("name", HOSTS)
@given(foreign=FOREIGN, data=st.data())
def test_foreign_lines_change_nothing(name: str, foreign: str, data: st.DataObject) -> None:
    lines = replay.host(name)["commands"]["lscpu"]["stdout"].splitlines()
    place = data.draw(st.integers(0, len(lines)))
    mixed = "\n".join([*lines[:place], foreign, *lines[place:]]) + "\n"
    assert lscpu.parse_text(mixed) == lscpu.parse_text("\n".join(lines))


@given(st.sets(st.integers(0, 8191)))
def test_lists_of_processors_survive_a_round_trip(cpus: set[int]) -> None:
    assert lscpu.parse_cpu_list(lscpu.cpu_list(tuple(cpus)) + "\n") == tuple(sorted(cpus))


@given(st.sets(st.integers(0, 1023), min_size=1))
def test_masks_of_processors(cpus: set[int]) -> None:
    assert lscpu.parse_cpu_mask(hex(sum(1 << cpu for cpu in cpus))) == tuple(sorted(cpus))


@pytest.mark.parametrize("text", ["1-", "a", "3-1", "0-99999999", "1,,2", "-", "0-4:0", "0x3"])
def test_no_list_of_processors(text: str) -> None:
    with pytest.raises(ValueError, match="expected a list"):
        lscpu.parse_cpu_list(text)


@pytest.mark.parametrize("text", ["", "0x", "xyz", "0x1g"])
def test_no_mask(text: str) -> None:
    with pytest.raises(ValueError, match="expected a mask"):
        lscpu.parse_cpu_mask(text)
