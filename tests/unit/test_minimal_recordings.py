"""Recordings as a bug report has them: a listing of lspci, a few files of sysfs, a log, and nothing else.

What such a part of a host does not hold is never taken for absent, and never for good; what it holds is judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.assess import Report
from hostcheck.expectations import waivers
from hostcheck.findings import Finding
from hostcheck.onhost.readings import pcie, xpu_smi
from hostcheck.onhost.recording import empty
from tests import replay
from tests.pci_host import WHOLE, intel, put, recording

GEN = {1: "Speed 2.5GT/s", 2: "Speed 5GT/s", 3: "Speed 8GT/s", 4: "Speed 16GT/s", 5: "Speed 32GT/s"}
BOOT = "[    0.000000] Linux version 7.0.0-27-generic (buildd@x) #27 SMP\n"
GUC = "[   19.000000] xe 0000:0a:00.0: [drm] Using GuC firmware from xe/bmg_guc_70.bin version 70.58.0\n"
CARD, UP, ROOT = "0000:0a:00.0", "0000:08:00.0", "0000:00:03.1"
LINK, WIDTH, SPEED = ("pcie.link.width", "pcie.link.speed"), "pcie.link.width", "pcie.link.speed"


def block(
    bdf: str,
    ids: str,
    kind: str,
    can: tuple[int, int],
    now: tuple[int, int],
    buses: tuple[int, int] | None = None,
    title: str = "PCI bridge [0604]",
    driver: str = "pcieport",
    more: str = "",
) -> str:
    """One function as ``lspci -D -nn -vv`` prints it. can, now: generation and lanes; buses: secondary, subordinate."""
    bus = int(bdf.split(":")[-2], 16)
    lines = [f"{bdf} {title}: Vendor Device [{ids}] (rev 01)", "\tControl: I/O+ Mem+ BusMaster+", "\tStatus: Cap+"]
    if buses is not None:
        lines.append(f"\tBus: primary={bus:02x}, secondary={buses[0]:02x}, subordinate={buses[1]:02x}, sec-latency=0")
    lines += [line for line in more.splitlines() if line]
    lines += [
        f"\tCapabilities: [58] Express (v2) {kind}, MSI 00",
        f"\t\tLnkCap:\tPort #0, {GEN[can[0]]}, Width x{can[1]}, ASPM L1, Exit Latency L1 <64us",
        "\t\tLnkCtl:\tASPM Disabled; Disabled- CommClk+",
        f"\t\tLnkSta:\t{GEN[now[0]]}, Width x{now[1]}",
    ]
    lines += [f"\tKernel driver in use: {driver}"] if driver else []
    return "\n".join(lines) + "\n\n"


def root(can: tuple[int, int] = (3, 16), now: tuple[int, int] = (3, 16), last: int = 0x0B) -> str:
    return block(ROOT, "1022:1453", "Root Port (Slot+)", can, now, (8, last))


def upstream(now: tuple[int, int] = (3, 16), ids: str = "8086:e2ff") -> str:
    return block(UP, ids, "Upstream Port", (5, 16), now, (9, 0x0B))


def downstream(ids: str = "8086:e2f0", link: tuple[int, int] = (1, 1)) -> str:
    return block("0000:09:01.0", ids, "Downstream Port", link, link, (0x0A, 0x0A))


def gpu(
    bdf: str = CARD,
    ids: str = "8086:e223",
    can: tuple[int, int] = (1, 1),
    now: tuple[int, int] = (1, 1),
    driver: str = "xe",
    bar: str = "32G",
    more: str = "",
) -> str:
    region = f"\tRegion 2: Memory at 7000000000 (64-bit, prefetchable) [size={bar}]\n" if bar else ""
    title = "VGA compatible controller [0300]"
    return block(bdf, ids, "Endpoint", can, now, None, title, driver, region + more)


def nvidia(bdf: str = "0000:01:00.0", now: tuple[int, int] = (1, 16), can: tuple[int, int] = (4, 16)) -> str:
    return gpu(bdf, "10de:2204", can, now, "nvidia", "")


def radeon(driver: str = "amdgpu") -> str:
    return gpu(CARD, "1002:7550", (5, 16), (5, 16), driver, "16G")


WHOLE_CARD = root() + upstream() + downstream() + gpu()


def part(
    listing: str | None = None, log: str | None = BOOT, files: dict[str, Any] | None = None, **commands: Any
) -> dict[str, Any]:
    """A recording of a part of a host."""
    made = empty(1_700_000_000, "rebuilt: of the test")
    made["files"].update(files or {})
    if listing is not None:
        commands[WHOLE] = listing
    if log is not None:
        commands["dmesg"] = log
    for name, text in commands.items():
        made["commands"][name] = text if isinstance(text, dict) else {"rc": 0, "stdout": text, "stderr": ""}
    return made


def flat(bdf: str, ids: str, kind: str = "0x030000", driver: str = "", **files: str) -> dict[str, Any]:
    """A few files of one function, as somebody pastes them."""
    made = part()
    here = f"/sys/bus/pci/devices/{bdf}"
    vendor, device = ids.split(":")
    for name, text in {"vendor": f"0x{vendor}", "device": f"0x{device}", "class": kind, **files}.items():
        made["files"][f"{here}/{name}"] = f"{text}\n"
    if driver:
        made["links"][f"{here}/driver"] = f"../../../bus/pci/drivers/{driver}"
    return made


def together(*parts: dict[str, Any]) -> dict[str, Any]:
    made = part()
    for one in parts:
        for name in ("files", "links", "commands"):
            made[name].update(one[name])
    return made


def every(findings: Iterable[Finding]) -> Iterable[Finding]:
    for finding in findings:
        yield finding
        yield from every(finding.explains)


class Said:
    """What a report says: status, and words, by check and subject; consequences that were folded included."""

    def __init__(self, made: dict[str, Any], expect: dict[str, Any] | None = None, **more: Any) -> None:
        options = {"under_load": True} if more.pop("under_load", False) else {}
        self.report: Report = replay.report(made, expect, options, **more)
        self.findings = list(every(self.report.findings))

    def of(self, id: str, name: str = "") -> Finding:
        found = [one for one in self.findings if one.id == id and name in ("", one.subject.name)]
        assert len(found) == 1, [
            (one.id, one.subject.name, one.status.value, one.seen) for one in found or self.findings
        ]
        return found[0]

    def status(self, id: str, name: str = "") -> str:
        return self.of(id, name).status.value

    def link(self, name: str) -> tuple[str, str]:
        return self.status(WIDTH, name), self.status(SPEED, name)

    def statuses(self, id: str) -> set[str]:
        return {one.status.value for one in self.findings if one.id == id}

    def bad(self) -> set[tuple[str, str]]:
        return {(one.id, one.subject.name) for one in self.findings if one.status.value in ("warn", "fail")}


# -- a listing beside other files --------------------------------------------------------------------------------------

BESIDE = {
    "policy": {"/sys/module/pcie_aspm/parameters/policy": "[default] performance powersave powersupersave \n"},
    "governor": {"/sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "performance\n"},
    "drivers": {"/sys/bus/pci/drivers/xe/": ""},
    "slots": {"/sys/bus/pci/slots/1/address": "0000:08:00\n"},
}


@pytest.mark.parametrize("beside", sorted(BESIDE))
@pytest.mark.parametrize(("now", "link"), [((3, 16), ("ok", "info")), ((1, 4), ("fail", "fail"))])
def test_a_listing_counts_whatever_else_of_sys_was_recorded(
    beside: str, now: tuple[int, int], link: tuple[str, str]
) -> None:
    said = Said(part(root(now=now) + upstream(now) + downstream() + gpu(), files=BESIDE[beside]))
    assert said.link(UP) == link
    assert said.status("gpu.enumeration", CARD) == "ok"


def test_a_machine_without_a_pci_bus_is_none_without_a_recording_of_it() -> None:
    bare = part(files={"/sys/bus/platform/": "", "/sys/devices/system/cpu/present": "0\n"})
    assert Said(bare).status("gpu.enumeration") == "not_applicable"
    only_cpu = Said(part(files={"/sys/devices/system/cpu/present": "0\n"}))
    assert (only_cpu.status("gpu.enumeration"), only_cpu.report.exit) == ("unknown", 0)


@pytest.mark.parametrize("answer", [{"error": "EACCES"}, {"rc": 1, "stdout": "", "stderr": "denied"}, "no listing\n"])
def test_a_listing_that_is_none_is_unknown(answer: Any) -> None:
    said = Said(part(files=BESIDE["policy"], **{WHOLE: answer}))
    assert {said.status(id, "host") for id in ("gpu.enumeration", WIDTH, "rebar")} == {"unknown"}


def test_a_listing_completes_a_few_files_of_sysfs() -> None:
    inert = {"current_link_speed": "2.5 GT/s PCIe", "current_link_width": "1", "max_link_width": "1"}
    said = Said(together(part(WHOLE_CARD), flat(CARD, "8086:e223", **inert)))
    assert (said.link(UP), said.status("gpu.enumeration", CARD)) == (("ok", "info"), "ok")
    other = Said(together(part(WHOLE_CARD), flat("0000:00:1f.0", "8086:7a04", "0x060100")))
    assert other.link(UP) == ("ok", "info")


# -- device nodes and drivers that were not recorded -------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["xe", "i915"])
def test_device_nodes_that_were_not_recorded_are_no_fault(driver: str) -> None:
    for made in (
        part(root() + upstream() + downstream() + gpu(driver=driver)),
        flat(CARD, "8086:e223", driver=driver),
        part(gpu(driver=driver)),
    ):
        said = Said(made)
        assert said.status("gpu.enumeration", CARD) == "ok"
        assert "not part of this recording" in said.of("gpu.enumeration", CARD).seen


def test_a_node_of_a_device_that_was_not_recorded_leaves_the_others_open() -> None:
    made = flat(CARD, "8086:e223", driver="xe")
    made["files"]["/sys/class/drm/card0/device/vendor"] = "0x8086\n"
    assert Said(made).status("gpu.enumeration", CARD) == "ok"


def test_device_nodes_are_missing_where_their_directory_or_the_cards_was_read() -> None:
    made = flat(CARD, "8086:e223", driver="xe")
    made["files"]["/sys/class/drm/version"] = "drm 1.1.0 20060810\n"
    assert Said(made).status("gpu.enumeration", CARD) == "fail"
    whole = recording(intel())
    for name in ("card1", "renderD128"):
        whole["links"].pop(f"/sys/class/drm/{name}", None)
        whole["files"].pop(f"/sys/class/drm/{name}", None)
    real = next(path for path in whole["files"] if path.endswith("/0000:23:00.0/vendor")).rpartition("/")[0]
    for path in [path for path in (*whole["files"], *whole["links"]) if path.startswith(f"{real}/drm")]:
        whole["files"].pop(path, None)
        whole["links"].pop(path, None)
    whole["files"] = {path: text for path, text in whole["files"].items() if not path.startswith("/sys/class/drm")}
    assert Said(whole).status("gpu.enumeration", "0000:23:00.0") == "fail"


NAMES_ONLY = re.sub(r"\n\t[^\n]*", "", WHOLE_CARD)
LINKS_ONLY = re.sub(r"\n\t(?!\tLnk)[^\n]*", "", WHOLE_CARD)


@pytest.mark.parametrize("listing", [NAMES_ONLY, LINKS_ONLY], ids=["-nn", "grep Lnk"])
def test_a_listing_that_names_no_drivers_claims_none(listing: str) -> None:
    said = Said(part(listing))
    assert said.status("gpu.enumeration", CARD) == "unknown"
    assert not said.bad()
    assert "modprobe" not in "".join(one.next_step for one in said.findings)


@pytest.mark.parametrize(
    "made", [part(NAMES_ONLY, BOOT + GUC), together(flat(CARD, "8086:e223"), part(log=BOOT + GUC))]
)
def test_a_line_of_the_driver_about_the_card_shows_that_it_is_bound(made: dict[str, Any]) -> None:
    said = Said(made)
    assert said.status("gpu.enumeration", CARD) == "ok"
    assert said.report.facts.pcie.gpus.value[0].driver.source == "dmesg"  # type: ignore[index]


FAILED = "[   30.000000] xe 0000:0a:00.0: probe with driver xe failed with error -105\n"
DECLINED = """\
[    9.000000] xe 0000:0a:00.0: Your graphics device 56a1 is not officially supported
               by xe driver in this kernel version. To force Xe probe,
               use xe.force_probe='56a1' and i915.force_probe='!56a1'
"""
I915 = "[   12.000000] i915 0000:0a:00.0: [drm] GT0: GuC firmware i915/dg2_guc_70.bin version 70.13.1\n"


def test_the_newest_word_of_the_log_decides() -> None:
    assert Said(part(NAMES_ONLY, BOOT + GUC + FAILED)).status("gpu.enumeration", CARD) == "fail"
    again = GUC.replace("19.0", "99.0")
    assert Said(part(NAMES_ONLY, BOOT + FAILED + again)).status("gpu.enumeration", CARD) == "ok"
    assert Said(part(NAMES_ONLY, BOOT + DECLINED)).status("gpu.enumeration", CARD) == "fail"
    assert Said(part(NAMES_ONLY, BOOT + DECLINED + I915)).status("gpu.enumeration", CARD) == "ok"


def test_a_block_of_lspci_without_a_driver_is_unbound() -> None:
    said = Said(part(root() + upstream() + downstream() + gpu(driver="", more="\tKernel modules: xe\n")))
    found = said.of("gpu.enumeration", CARD)
    assert (found.status.value, "unbound" in found.seen, "modprobe" in found.next_step) == ("fail", True, False)
    assert CARD in found.next_step


# -- a driver that is loaded and does not take the card ----------------------------------------------------------------

UNBOUND = gpu("0000:03:00.0", driver="", bar="", more="\tKernel modules: xe\n")
OLD = {"/proc/sys/kernel/osrelease": "6.12.25\n", "/proc/cmdline": "ro xe.force_probe=e223\n"}
MODULES = "drm_buddy 24576 1 xe, Live 0x0000000000000000\nxe 3031040 0 - Live 0x0000000000000000\n"


@pytest.mark.parametrize("told", [{"/proc/modules": MODULES}, {"/sys/bus/pci/drivers/xe/": ""}])
def test_a_kernel_that_is_too_old_is_told_from_the_modules_too(told: dict[str, Any]) -> None:
    found = Said(part(UNBOUND, files={**OLD, **told})).of("gpu.enumeration", "0000:03:00.0")
    assert (found.status.value, "6.12.25 is too old" in found.seen) == ("fail", True)
    assert found.next_step.startswith("install a newer kernel")


@pytest.mark.parametrize("told", [{"error": "EACCES"}, "what is this\n", None], ids=["refused", "garbage", "missing"])
def test_without_the_modules_nobody_is_told_to_load_one(told: Any) -> None:
    files = {**OLD, **({"/proc/modules": told} if told is not None else {})}
    found = Said(part(UNBOUND, files=files)).of("gpu.enumeration", "0000:03:00.0")
    assert (found.status.value, "modprobe" in found.next_step) == ("fail", False)
    assert "was not read" in found.seen


def test_a_module_that_is_not_loaded() -> None:
    found = Said(part(UNBOUND, files={**OLD, "/proc/modules": "nvme 1 0\n"})).of("gpu.enumeration", "0000:03:00.0")
    assert (found.status.value, found.next_step) == ("fail", "modprobe xe")


# -- a listing that begins below the root port -------------------------------------------------------------------------

AMD_PORTS = ("1002:1478", "1002:1479")
CUT = {
    "intel": upstream((5, 4)) + downstream() + gpu(),
    "amd": upstream((5, 4), AMD_PORTS[0]) + downstream(AMD_PORTS[1], (5, 16)) + radeon(),
    "new ids": upstream((5, 4), "8086:abcd") + downstream("8086:abce") + gpu(ids="8086:fffe"),
    "no capability": re.sub(r"\tCapabilities: .*\n", "", upstream((5, 4)) + downstream() + gpu()),
}


@pytest.mark.parametrize("kind", sorted(CUT))
def test_an_inner_link_is_never_judged_for_the_one_at_the_slot(kind: str) -> None:
    said = Said(part(CUT[kind]))
    assert said.status(WIDTH, UP) == "unknown"
    assert "x4 of x16" in said.of(WIDTH, UP).seen
    assert {one.subject.name for one in said.findings if one.id in LINK} == {UP}
    assert not said.bad() & {(WIDTH, UP), (SPEED, UP)}
    assert said.report.exit == 3


@pytest.mark.parametrize("low", [(1, 16), (4, 16)])
def test_a_low_speed_below_an_unseen_port_is_open(low: tuple[int, int]) -> None:
    said = Said(part(upstream(low, AMD_PORTS[0]) + downstream(AMD_PORTS[1], (5, 16)) + radeon()))
    assert said.link(UP) == ("ok", "unknown")
    assert Said(part(upstream(low) + downstream() + gpu())).link(UP) == ("ok", "unknown")


def test_a_full_link_below_an_unseen_port_is_a_full_link() -> None:
    assert Said(part(upstream((5, 16)) + downstream() + gpu())).link(UP) == ("ok", "ok")


def test_the_link_is_down_whatever_is_above() -> None:
    text = (upstream() + downstream() + gpu()).replace(
        "LnkSta:\tSpeed 8GT/s, Width x16", "LnkSta:\tSpeed 2.5GT/s, Width x0"
    )
    assert Said(part(text)).status(WIDTH, UP) == "fail"


def test_a_listing_that_begins_inside_the_card_says_nothing_about_the_slot() -> None:
    for text in (downstream() + gpu(), downstream(AMD_PORTS[1], (5, 16)) + radeon()):
        said = Said(part(text))
        assert {one.status.value for one in said.findings if one.id in LINK} == {"unknown"}, text


def test_the_same_card_with_and_without_its_root_port() -> None:
    rest = upstream((1, 1), AMD_PORTS[0]) + downstream(AMD_PORTS[1], (5, 16)) + radeon()
    assert Said(part(root((2, 1), (1, 1)) + rest)).status(WIDTH, UP) == "info"
    assert Said(part(root((4, 16), (1, 1)) + rest)).status(WIDTH, UP) == "fail"
    assert Said(part(rest)).status(WIDTH, UP) == "unknown"


def test_a_listing_without_the_inner_port_still_shows_the_one_at_the_slot() -> None:
    assert Said(part(root() + upstream() + gpu())).link(UP) == ("ok", "info")
    assert Said(part(root((5, 16), (1, 1)) + upstream((1, 1)) + gpu())).link(UP) == ("fail", "fail")


def test_ports_without_bus_numbers_belong_to_nothing() -> None:
    said = Said(part(re.sub(r"\tBus: .*\n", "", WHOLE_CARD)))
    assert said.link(CARD) == ("unknown", "unknown")
    assert not said.bad()


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=6))
def test_bus_numbers_that_make_no_sense_end(numbers: list[tuple[int, int, int]]) -> None:
    text = "".join(
        block(f"0000:{bus:02x}:{at:02x}.0", "8086:e2ff", "Upstream Port", (5, 16), (5, 16), (second, last))
        for at, (bus, second, last) in enumerate(numbers)
    )
    said = Said(part(text + gpu("0000:01:1f.0")))
    assert not {id for id, _ in said.bad()} & set(LINK)


def test_sysfs_whose_upper_ports_were_not_recorded() -> None:
    here = "/sys/devices/pci0000:00/0000:00:03.1/0000:08:00.0"
    made = part()
    for bdf, folder, ids, kind, now in (
        (UP, here, "8086:e2ff", "0x060400", "4"),
        ("0000:09:01.0", f"{here}/0000:09:01.0", "8086:e2f0", "0x060400", "1"),
        (CARD, f"{here}/0000:09:01.0/{CARD}", "8086:e223", "0x030000", "1"),
    ):
        vendor, device = ids.split(":")
        files = {"vendor": vendor, "device": device, "class": kind, "current_link_width": now}
        made["links"][f"/sys/bus/pci/devices/{bdf}"] = f"../../../{folder[5:]}"
        most = {"max_link_width": "16" if bdf == UP else "1", "max_link_speed": "32.0 GT/s PCIe"}
        for name, text in {**files, **most, "current_link_speed": "32.0 GT/s PCIe"}.items():
            made["files"][f"{folder}/{name}"] = f"{text}\n"
    said = Said(made)
    assert said.link(UP) == ("unknown", "ok")
    assert {one.subject.name for one in said.findings if one.id in LINK} == {UP}


# -- an endpoint alone -------------------------------------------------------------------------------------------------


def test_a_card_without_a_switch_is_judged_by_its_own_end() -> None:
    said = Said(part(nvidia()))
    assert said.link("0000:01:00.0") == ("ok", "unknown")
    assert "idle reading, repeat under load" in said.of(SPEED).seen
    assert Said(part(nvidia()), under_load=True).link("0000:01:00.0") == ("ok", "fail")
    assert Said(part(nvidia(now=(4, 16))), under_load=True).link("0000:01:00.0") == ("ok", "ok")


@pytest.mark.parametrize(
    ("can", "now", "status"),
    [
        ((4, 8), (1, 8), "fail"),
        ((5, 16), (2, 16), "fail"),
        ((4, 16), (3, 16), "unknown"),
        ((5, 16), (3, 16), "unknown"),
    ],
)
def test_under_load_a_speed_that_no_slot_explains_fails(
    can: tuple[int, int], now: tuple[int, int], status: str
) -> None:
    files = {
        "current_link_speed": f"{GEN[now[0]][6:].replace('GT/s', '')} GT/s",
        "max_link_speed": f"{GEN[can[0]][6:].replace('GT/s', '')}.0 GT/s PCIe",
        "current_link_width": str(now[1]),
        "max_link_width": str(can[1]),
    }
    made = flat("0000:01:00.0", "10de:2860", driver="nvidia", **files)
    assert Said(made, under_load=True).link("0000:01:00.0") == ("ok", status)
    assert Said(made).link("0000:01:00.0") == ("ok", "unknown")


def test_one_of_two_endpoints_is_narrow() -> None:
    said = Said(part(nvidia("0000:05:00.0", (1, 4)) + nvidia("0000:0a:00.0", (1, 16))))
    assert (said.status(WIDTH, "0000:05:00.0"), said.status(WIDTH, "0000:0a:00.0")) == ("warn", "ok")
    alone = Said(part(nvidia("0000:05:00.0", (1, 4))))
    assert alone.status(WIDTH, "0000:05:00.0") == "unknown"


@pytest.mark.parametrize("text", [gpu(), gpu(ids="1002:7550", can=(5, 16), now=(5, 16), driver="amdgpu")])
def test_the_endpoint_of_a_card_with_a_switch_says_nothing(text: str) -> None:
    said = Said(part(text))
    assert said.link(CARD) == ("unknown", "unknown")
    assert not said.bad()


# -- who sees errors, and power ----------------------------------------------------------------------------------------

GUEST = {"/proc/cpuinfo": "flags\t\t: fpu lm hypervisor\n"}


def test_a_card_without_ports_is_in_a_virtual_machine_only_where_that_was_read() -> None:
    for text in (gpu(), nvidia("0000:0a:00.0")):
        metal, guest = Said(part(text)), Said(part(text, files=GUEST))
        assert metal.status("aer.visibility", CARD) == "unknown"
        assert not [one for one in metal.findings if "virtual machine" in one.seen]
        assert {metal.status(id, CARD) for id in ("aer.rate", "aer.nonfatal", "aer.fatal")} == {"unknown"}
        assert (guest.status("aer.visibility", CARD), guest.link(CARD)) == ("info", ("not_applicable",) * 2)


AER = """\
\tCapabilities: [100 v2] Advanced Error Reporting
\t\tUESta:\tDLP- SDES- TLP- FCP- CmpltTO- CmpltAbrt- UnxCmplt- RxOF- MalfTLP- ECRC- UnsupReq- ACSViol-
\t\tUEMsk:\tDLP- SDES- TLP- FCP- CmpltTO- CmpltAbrt- UnxCmplt- RxOF- MalfTLP- ECRC- UnsupReq- ACSViol-
\t\tUESvrt:\tDLP+ SDES+ TLP- FCP+ CmpltTO- CmpltAbrt- UnxCmplt- RxOF+ MalfTLP+ ECRC- UnsupReq- ACSViol-
\t\tCESta:\tRxErr- BadTLP- BadDLLP- Rollover- Timeout- AdvNonFatalErr-
\t\tCEMsk:\tRxErr- BadTLP- BadDLLP- Rollover- Timeout- AdvNonFatalErr+
"""


def test_counters_are_missing_only_where_they_could_be() -> None:
    listing = root().replace("\tKernel", AER + "\tKernel") + upstream() + downstream() + gpu()
    assert not Said(part(listing)).bad()
    made = recording(intel())
    put(made, "0000:20:01.1", "aer_dev_correctable", None)
    assert ("aer.visibility", "0000:20:01.1") in Said(made).bad()


def test_power_management_that_was_not_recorded_is_unknown() -> None:
    said = Said(part(WHOLE_CARD))
    assert (said.status("gpu.power_control"), said.status("gpu.runtime_status")) == ("unknown", "unknown")
    made = recording(intel())
    for name in ("control", "runtime_status"):
        put(made, "0000:23:00.0", f"power/{name}", None)
    without = Said(made)  # a kernel without runtime power management
    assert without.status("gpu.power_control") == "not_applicable"
    assert without.statuses("gpu.runtime_status") <= {"not_applicable"}


def test_a_kernel_is_without_aspm_only_where_its_modules_were_recorded() -> None:
    assert Said(part(WHOLE_CARD)).status("aspm.policy") == "unknown"
    assert Said(part(WHOLE_CARD, files={"/sys/module/xe/version": "1\n"})).status("aspm.policy") == "not_applicable"


# -- nothing that was not read is good ---------------------------------------------------------------------------------


def test_survivability_mode_needs_the_directory_or_a_whole_log_about_the_card() -> None:
    assert Said(part(WHOLE_CARD, BOOT + GUC)).status("gpu.state", CARD) == "ok"
    assert Said(part(WHOLE_CARD, BOOT)).status("gpu.state", CARD) == "unknown"
    assert Said(part(WHOLE_CARD, GUC.replace("19.0", "4000.0"))).status("gpu.state", CARD) == "unknown"
    assert Said(part(WHOLE_CARD, None)).status("gpu.state", CARD) == "unknown"
    assert Said(recording(intel())).status("gpu.state", "0000:23:00.0") == "ok"


def test_aspm_is_not_good_where_no_link_at_the_slot_was_read() -> None:
    for text in (
        re.sub(r"\t\tLnkCtl.*\n", "", WHOLE_CARD),
        upstream() + downstream() + gpu(),
        block("0000:00:03.0", "1022:1483", "Root Port", (4, 16), (4, 16), (0x0A, 0x0A)).replace("LnkCtl", "X") + gpu(),
    ):
        assert Said(part(text)).status("aspm.effective", CARD) == "unknown", text
    assert Said(part(WHOLE_CARD)).of("aspm.effective", CARD).seen == "disabled on every hop"


NO_IDS = re.sub(r" \[[0-9a-f]{4}(?::[0-9a-f]{4})?\]", "", WHOLE_CARD)


@pytest.mark.parametrize("text", [NO_IDS, upstream((1, 1), AMD_PORTS[0]), upstream((1, 1))])
def test_a_card_that_may_be_there_is_not_a_host_without_cards(text: str) -> None:
    said = Said(part(text))
    for id in (WIDTH, SPEED, "rebar", "gpu.fault", "gpu.power_control", "aspm.effective"):
        assert said.statuses(id) == {"unknown"}, id
    assert said.statuses("gpu.enumeration") == {"unknown"}


def test_without_ids_only_what_may_be_a_gpu_is_told() -> None:
    said = Said(part(NO_IDS))
    assert [one.subject.name for one in said.findings if one.id == "gpu.enumeration"] == [CARD]


@pytest.mark.parametrize(
    ("head", "driver"),
    [
        ("0000:00:0b.0 Processing accelerators [1200]: Intel Corporation Arrow Lake NPU [8086:ad1d]", "intel_vpu"),
        ("0000:00:0b.0 Processing accelerators [1200]: Intel Corporation Arrow Lake NPU [8086:ad1d]", ""),
        ("0000:6b:00.0 Co-processor [0b40]: Intel Corporation 4xxx Series QAT [8086:4940]", "4xxx"),
        ("0000:19:00.0 Processing accelerators [1200]: Habana Labs Ltd. HL-2000 [1da3:1020]", "habanalabs"),
    ],
)
def test_other_accelerators_are_no_gpus(head: str, driver: str) -> None:
    """unraid_kernel#47: the NPU of a Core Ultra has a class that AMD's Instinct cards have too."""
    other = f"{head} (rev 01)\n\tControl: I/O-\n" + (f"\tKernel driver in use: {driver}\n" if driver else "")
    assert Said(part(other)).statuses("gpu.enumeration") == {"not_applicable"}
    both = Said(part(f"{WHOLE_CARD}{other}", BOOT + GUC))
    assert [one.subject.name for one in both.findings if one.id == "gpu.enumeration"] == [CARD]


def test_the_gpu_of_a_processor_works_without_the_guc() -> None:
    own = "0000:00:02.0"
    head = f"{own} VGA compatible controller [0300]: Intel Corporation Device [8086:9a49]\n\tControl: I/O+\n"
    log = f"{BOOT}[    2.2] i915 {own}: [drm] GT0: GuC firmware i915/tgl_guc_70.bin: fetch failed -ENOENT\n"
    listing = f"{head}\tKernel driver in use: i915\n"
    assert Said(part(listing, log)).statuses("gpu.wedged") <= {"ok"}
    gave_up = f"{log}[    2.3] i915 {own}: [drm] *ERROR* GT0: Failed to initialize GPU, declaring it wedged!\n"
    assert Said(part(listing, gave_up)).status("gpu.wedged", own) == "fail"
    assert Said(part(gpu(ids="8086:56a0", driver="i915"), log.replace(own, CARD))).status("gpu.wedged", CARD) == "fail"


# -- a GPU that only the log names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("xe 0000:09:00.0: probe with driver xe failed with error -105", "-105 (ENOBUFS)"),
        ("i915 0001:09:00.0: probe with driver i915 failed with error -5", "-5 (EIO)"),
        ("amdgpu 0000:2f:00.0: probe with driver amdgpu failed with error -22", "-22 (EINVAL)"),
    ],
)
def test_a_probe_that_failed_needs_no_topology(line: str, words: str) -> None:
    said = Said(part(log=f"{BOOT}[    9.000000] {line}\n"))
    found = said.of("gpu.enumeration", line.split()[1][:-1])
    assert (found.status.value, words in found.seen) == ("fail", True)
    assert found.next_step.startswith("boot the previous kernel entry")
    assert said.report.exit == 1


@pytest.mark.parametrize(
    "line", ["nvme 0000:09:00.0: probe with driver nvme failed with error -12", "usb 1-1: device descriptor read"]
)
def test_other_devices_that_failed_are_no_gpus(line: str) -> None:
    said = Said(part(log=f"{BOOT}[    9.000000] {line}\n"))
    assert (said.statuses("gpu.enumeration"), said.report.exit) == ({"unknown"}, 0)


def test_a_driver_that_declines_needs_no_topology() -> None:
    log = BOOT + DECLINED
    found = Said(part(log=log, files={"/proc/cmdline": "ro xe.force_probe='56a1'\n"})).of("gpu.enumeration", CARD)
    assert (found.status.value, found.next_step) == ("fail", "kernel command line: xe.force_probe=56a1")
    plain = Said(part(log=log)).of("gpu.enumeration", CARD)
    assert "xe.force_probe=56a1" in plain.next_step
    assert "fail" not in Said(part(log=log + I915)).statuses("gpu.enumeration")


@pytest.mark.parametrize(
    ("line", "driver"),
    [
        (f"xe {CARD}: Probe blocked for Device ID e223.", "xe"),  # xe_pci.c
        (f"i915 {CARD}: I915 probe blocked for Device ID 56a0.", "i915"),  # i915_pci.c
    ],
)
def test_a_driver_that_is_kept_away_needs_no_topology(line: str, driver: str) -> None:
    log = f"{BOOT}[   19.100000] {line}\n"
    found = Said(part(log=log, files={"/proc/cmdline": f"ro {driver}.force_probe=!e223\n"})).of("gpu.enumeration", CARD)
    assert (found.status.value, found.next_step) == (
        "fail",
        f"remove {driver}.force_probe=!e223 from the kernel command line",
    )
    other = {"xe": "i915", "i915": "xe"}[driver]
    taken = f"{log}[   19.200000] {other} {CARD}: [drm] GT0: GuC firmware x/y.bin version 70.20.0\n"
    assert "fail" not in Said(part(log=taken)).statuses("gpu.enumeration")


SMALL_LINES = (
    "VISIBLE VRAM: 0x0000004000000000, 0x0000000010000000",
    "Small BAR device",
    "VRAM[0, 0]: Actual physical size 0x0000000300000000, usable size exclude stolen 0x00000002fb800000, "
    "CPU accessible size 0x0000000010000000",
    "VRAM[0, 0]: Actual physical size 0x0000000800000000, usable size exclude stolen 0x00000007f9000000, "
    "CPU accessible size 0x0000000200000000",
)


@pytest.mark.parametrize("line", SMALL_LINES)
def test_any_one_line_about_a_small_bar_is_enough(line: str) -> None:
    log = f"{BOOT}[   19.100000] xe 0000:1b:00.0: [drm] {line}\n"
    assert Said(part(log=log)).status("rebar", "0000:1b:00.0") == "fail"
    beside = Said(part(gpu("0000:1b:00.0"), log))
    assert beside.status("rebar", "0000:1b:00.0") == "fail"


@pytest.mark.parametrize(
    "lines",
    [
        (
            "Using a reduced BAR size of 256MiB. Consider enabling 'Resizable BAR' or similar, if available in the "
            "BIOS.",
        ),
        ("Local memory IO size: 0x0000000010000000", "Local memory available: 0x00000003fa000000"),
        ("Failed to resize BAR2 to 16384M (-ENOSPC)",),
    ],
)
def test_i915_has_its_own_words_for_a_small_bar(lines: tuple[str, ...]) -> None:
    """ipex-llm#12122: an A770 whose BAR stayed at 256 MiB."""
    log = BOOT + "".join(f"[   18.1109{at:02}] i915 0000:0d:00.0: [drm] {line}\n" for at, line in enumerate(lines))
    assert Said(part(log=log)).status("rebar", "0000:0d:00.0") == "fail"


def test_i915_says_that_all_memory_is_in_reach() -> None:
    """jellyfin#12118: an A380."""
    lines = ("Local memory IO size: 0x000000017c800000", "Local memory available: 0x000000017c800000")
    log = BOOT + "".join(f"[   10.1{at}] i915 0000:28:00.0: [drm] {line}\n" for at, line in enumerate(lines))
    assert "fail" not in Said(part(log=log)).statuses("rebar")


@pytest.mark.parametrize(
    "line",
    [
        "Failed to resize BAR2 to 16384M (-ENOSPC). Consider enabling 'Resizable BAR' support in your BIOS",
        "Can't resize VRAM BAR - platform support is missing. Consider enabling 'Resizable BAR' support in your BIOS",
    ],
)
def test_a_bar_that_could_not_be_resized_is_small_unless_something_says_otherwise(line: str) -> None:
    """siderolabs/pkgs#1688: a B570 behind its own switch."""
    log = f"{BOOT}[   10.097510] xe {CARD}: [drm] {line}\n"
    assert Said(part(log=log)).status("rebar", CARD) == "fail"
    assert Said(part(gpu(), log)).status("rebar", CARD) == "ok"
    whole = f"{log}[   10.1] xe {CARD}: [drm] VISIBLE VRAM: 0x0000004000000000, 0x0000000800000000\n"
    assert "fail" not in Said(part(log=whole)).statuses("rebar")


def test_a_card_that_only_a_whole_log_names_has_no_fault() -> None:
    assert Said(part(log=BOOT + GUC)).status("gpu.fault", CARD) == "ok"
    late = GUC.replace("19.0", "900.0").replace("[   9", "[  9")
    assert Said(part(log=late)).status("gpu.fault", CARD) == "unknown"


@pytest.mark.parametrize(("size", "usable"), [("800000000", "7f9000000"), ("300000000", "2fb800000")])
def test_all_memory_in_reach_is_no_small_bar(size: str, usable: str) -> None:
    line = f"VRAM[0, 0]: Actual physical size 0x{size}, usable size exclude stolen 0x{usable}, "
    line += f"CPU accessible size 0x{usable}"
    log = f"{BOOT}[   19.100000] xe {CARD}: [drm] {line}\n"
    assert Said(part(gpu(), log)).status("rebar", CARD) == "ok"
    assert Said(part(log=log)).statuses("rebar") == {"unknown"}


@pytest.mark.parametrize(
    ("region", "status"),
    [
        ("Memory at 7000000000 (64-bit, prefetchable) [size=32G]", "ok"),
        ("Memory at 7000000000 (64-bit, prefetchable) [size=256M]", "fail"),
        ("Memory at 7000000000 (64-bit, prefetchable)", "unknown"),
        ("Memory at <unassigned> (64-bit, prefetchable) [disabled]", "fail"),
        ("Memory at <ignored> (64-bit, prefetchable) [disabled]", "fail"),
        ("", "unknown"),
    ],
)
def test_a_bar_whose_size_was_not_printed_is_unknown(region: str, status: str) -> None:
    other = "\tRegion 0: Memory at 80000000 (64-bit, non-prefetchable) [size=16M]\n"
    text = gpu(bar="", more=other + (f"\tRegion 2: {region}\n" if region else ""))
    assert Said(part(text)).status("rebar", CARD) == status


@pytest.mark.parametrize(("size", "status"), [("256MB", "fail"), ("32GB", "ok")])
def test_the_capability_tells_the_size_of_a_bar_too(size: str, status: str) -> None:
    sizes = f"\t\tBAR 2: current size: {size}, supported: 256MB 512MB 1GB 2GB 4GB 8GB 16GB 32GB\n"
    region = "\tRegion 2: Memory at 7000000000 (64-bit, prefetchable)\n"
    for kind, wanted in (("Physical", status), ("Virtual", "unknown")):  # the other one is of the virtual functions
        text = gpu(bar="", more=f"{region}\tCapabilities: [420 v1] {kind} Resizable BAR\n{sizes}")
        assert Said(part(text)).status("rebar", CARD) == wanted


def test_a_gpu_that_the_log_names_makes_the_checks_required() -> None:
    assert Said(part(log=BOOT + GUC)).report.exit == 3
    assert Said(part(log=BOOT)).report.exit == 0
    assert Said(part(log="[    1.0] nvme 0000:01:00.0: 8/0/0 queues\n")).report.exit == 0


# -- a card that does not answer ---------------------------------------------------------------------------------------

DEAD = {
    "rev ff": gpu().replace("(rev 01)", "(rev ff) (prog-if ff)").split("\n\tCapa")[0]
    + "\n\tKernel driver in use: xe\n",
    "header": gpu(more="\t!!! Unknown header type 7f\n"),
}


@pytest.mark.parametrize("form", sorted(DEAD))
def test_a_card_that_reads_all_ones_is_lost(form: str) -> None:
    made = part(root() + upstream() + downstream() + DEAD[form], BOOT + GUC)
    said = Said(made)
    (found,) = [one for one in said.report.findings if one.id == "gpu.lost"]
    assert (found.status.value, found.subject.name, said.report.exit) == ("fail", CARD, 1)
    assert {"gpu.enumeration", "rebar"} <= {one.id for one in found.explains}
    assert said.status("rebar", CARD) == "unknown"


@pytest.mark.parametrize("form", sorted(DEAD))
@pytest.mark.parametrize(("name", "text"), [("power/runtime_status", "suspended"), ("power_state", "D3cold")])
def test_a_card_in_d3cold_reads_the_same_and_is_not_lost(form: str, name: str, text: str) -> None:
    asleep = flat(CARD, "8086:e223", driver="xe", **{name: text})
    said = Said(together(part(root() + upstream() + downstream() + DEAD[form], BOOT + GUC), asleep))
    assert not said.statuses("gpu.lost")
    (card,) = said.report.facts.pcie.gpus.value or ()
    assert card.answers.unread == "suspended"


def test_registers_of_all_ones_are_a_lost_card_and_the_log_says_so_once() -> None:
    made = recording(intel())
    put(made, "0000:23:00.0", "config", {"base64": "/" * 5461 + "w=="})
    assert Said(made).status("gpu.lost", "0000:23:00.0") == "fail"
    made["commands"]["dmesg"] = {
        "rc": 0,
        "stdout": BOOT + "[  900.000000] xe 0000:23:00.0: [drm] *ERROR* GPU has fallen off the bus\n",
        "stderr": "",
    }
    assert len([one for one in Said(made).findings if one.id == "gpu.lost"]) == 1


@pytest.mark.parametrize("content", [{"error": "EACCES"}, None, {"base64": "AAAA"}])
def test_registers_that_were_not_read_are_no_lost_card(content: Any) -> None:
    made = recording(intel())
    put(made, "0000:23:00.0", "config", content)
    assert not Said(made).statuses("gpu.lost") - {"unknown"}


# -- processor, waivers, xpu-smi ---------------------------------------------------------------------------------------

LSCPU = """\
Architecture: x86_64
CPU(s): 8
On-line CPU(s) list: 0-7
Thread(s) per core: 1
Core(s) per socket: 8
Socket(s): 1
"""
CPU0 = {"/sys/devices/system/cpu/cpu0/topology/core_id": "0\n"}


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (LSCPU + "Virtualization: VT-x\n", "warn"),
        (LSCPU + "Hypervisor vendor: KVM\nVirtualization type: full\n", "not_applicable"),
        (LSCPU.replace("x86_64", "aarch64"), "unknown"),  # its processors do not tell
        (LSCPU.partition("Thread")[0], "unknown"),  # cut off long before
    ],
)
def test_lscpu_alone_tells_a_virtual_machine_from_metal(text: str, status: str) -> None:
    found = Said(part(files=CPU0, lscpu=text)).of("cpu.governor")
    assert found.status.value == status
    assert "install" not in found.next_step


@pytest.mark.parametrize("subject", ["0000:0A:00.0", "0000:0a:00.0", "*:0A:*"])
def test_a_waiver_may_write_an_address_in_either_case(subject: str) -> None:
    made = part(root() + upstream() + downstream() + gpu(bar="256M"))
    rule = {"check": "rebar", "subject": subject, "justification": "known", "until": "2099-01-01"}
    said = Said(made, waivers=waivers([rule]))
    assert said.of("rebar", CARD).waived is not None
    assert "waiver.unused" not in {one.id for one in said.findings}
    other = Said(made, waivers=waivers([{**rule, "subject": "0000:0B:00.0"}]))
    assert other.of("rebar", CARD).waived is None


REFUSALS = ("WARNING: Small BAR detected for device 0000:0C:00.0", "Resizable BAR not detected for device 0000:0c:00.0")
B450 = "one-card-b450-x8"


@pytest.mark.parametrize("words", REFUSALS)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_level_zero_refuses_a_card_for_its_bar(words: str, stream: str) -> None:
    answer = {"rc": 0, "stdout": '{"device_list": null}\n', "stderr": ""}
    answer[stream] = f"{words}\n{answer[stream]}"
    made = replay.changed(replay.host(B450), {"commands": {"xpu-smi discovery -j": answer, "xpu-smi discovery": None}})
    disagreed = Said(made)
    assert disagreed.status("rebar", "0000:0c:00.0") == "warn"  # sysfs has the whole BAR: a tool alone fails nothing
    resource = next(path for path in made["files"] if path.endswith("/0000:0c:00.0/resource"))
    made["files"][resource] = {"error": "EIO"}
    del made["commands"][WHOLE]
    said = Said(made)
    assert said.status("rebar", "0000:0c:00.0") == "fail"
    (rebar,) = [one for one in said.report.findings if one.id == "rebar"]
    assert [one.id for one in rebar.explains] == ["tool.xpu_smi"]


@pytest.mark.parametrize("answer", [{"error": "EACCES"}, {"rc": 139, "stdout": "", "stderr": "\0"}, None])
def test_no_answer_of_xpu_smi_is_no_word_about_a_bar(answer: Any) -> None:
    made = replay.changed(
        replay.host(B450), {"commands": {"xpu-smi discovery -j": answer, "xpu-smi discovery": answer}}
    )
    assert Said(made).status("rebar", "0000:0c:00.0") == "ok"


def test_a_service_that_does_not_run_is_started_and_not_upgraded() -> None:
    down = {"rc": 0, "stdout": "Error: XPUM Service Status Error. \n", "stderr": ""}
    made = replay.changed(replay.host(B450), {"commands": {"xpu-smi discovery -j": down, "xpu-smi discovery": down}})
    found = Said(made).of("tool.xpu_smi")
    assert (found.status.value, found.next_step) == ("warn", "systemctl start xpum")
    null = {"rc": 0, "stdout": '{"device_list": null}\n', "stderr": ""}
    made = replay.changed(replay.host(B450), {"commands": {"xpu-smi discovery -j": null}})
    assert "upgrade" in Said(made).of("tool.xpu_smi").next_step


# -- parsers -----------------------------------------------------------------------------------------------------------


@given(st.text(max_size=80))
def test_parsers_take_any_text(text: str) -> None:
    assert all(
        re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", one) for one in xpu_smi.parse_small_bars(text)
    )
    try:
        assert all(name for name in pcie.parse_modules(text))
    except ValueError:
        pass


@given(st.lists(st.sampled_from(["xe", "i915", "drm_buddy", "nvidia"]), unique=True))
def test_modules_are_named_in_their_order(names: list[str]) -> None:
    assert pcie.parse_modules("".join(f"{name} 4096 0 - Live 0x0\n" for name in names)) == tuple(names)


def test_a_line_that_is_no_module_is_not_understood() -> None:
    with pytest.raises(ValueError, match="expected a module"):
        pcie.parse_modules("xe: loaded\n")
