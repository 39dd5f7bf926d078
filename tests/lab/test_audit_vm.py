"""The audit against a real kernel: what was injected is found, nothing else is, and nothing is touched."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hostcheck.cli import main
from tests import replay
from tests.lab.vm.cards import GPUS
from tests.lab.vm.host import LabError, Vm
from tests.lab.vm.image import Image
from tests.playbooks.test_audit import play

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

Said = set[tuple[str, str, str]]
QUIET = ("ok", "not_applicable")
UPLINK, ROOT_PORT, GPU = "0000:21:00.0", "0000:20:01.0", "0000:23:00.0"
OTHER_UPLINK, OTHER_GPU = "0000:83:00.0", "0000:85:00.0"


def audit(vm: Vm, tmp_path: Path, *arguments: str, user: str = "root") -> dict[str, Any]:
    """The report that the playbook writes for the machine."""
    inventory = tmp_path / "inventory.json"
    inventory.write_text(json.dumps(vm.inventory(user=user)))
    played = play(tmp_path, "-i", str(inventory), *arguments)
    path = tmp_path / "reports/latest/hosts/lab.json"
    assert path.exists(), played.stdout + played.stderr
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def said(report: dict[str, Any]) -> Said:
    """Every finding that is neither ok nor not applicable."""
    return {
        (one["id"], one["status"], one["subject"]["name"]) for one in report["findings"] if one["status"] not in QUIET
    }


def finding(report: dict[str, Any], id: str, subject: str) -> dict[str, Any]:
    """The one finding of a check on a subject."""
    (found,) = [one for one in report["findings"] if (one["id"], one["subject"]["name"]) == (id, subject)]
    return dict(found)


@pytest.fixture(scope="module")
def sound(lab_image: Image) -> Iterator[Vm]:
    """A machine that is only looked at, which tests may share."""
    with Vm(lab_image) as machine:
        machine.resume()
        yield machine


@pytest.fixture(scope="module")
def untouched(sound: Vm, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of the machine as it is, for all to compare with."""
    return audit(sound, tmp_path_factory.mktemp("untouched"))


@pytest.fixture(scope="module")
def storm(lab_image: Image) -> Iterator[tuple[Vm, Future[None]]]:
    """A machine on whose uplink 120 packets go bad in a minute, beside other tests, and when that is over."""
    with ThreadPoolExecutor(1) as pool, Vm(lab_image) as machine:
        machine.resume()
        yield machine, pool.submit(machine.inject_aer, UPLINK, "correctable", "BadTLP", count=120, interval=0.5)


@pytest.fixture
def usual(untouched: dict[str, Any]) -> Said:
    return said(untouched)


@pytest.mark.usefixtures("storm")  # it begins here and is judged further below
def test_a_sound_machine_is_quiet(untouched: dict[str, Any]) -> None:
    assert untouched["exit"] == 0, said(untouched)
    assert untouched["counts"]["fail"] == untouched["counts"]["unknown"] == 0, said(untouched)
    assert untouched["counts"]["warn"] <= 5, said(untouched)
    assert {one["subject"]["name"] for one in untouched["findings"] if one["id"] == "gpu.fault"} == set(GPUS)


def test_a_slow_uplink_is_one_fail_on_that_hop(vm: Vm, tmp_path: Path, usual: Said) -> None:
    vm.set_link(UPLINK, speed=2.5, width=8)
    report = audit(vm, tmp_path)
    assert said(report) - usual == {("pcie.link.speed", "fail", UPLINK)}
    assert report["exit"] == 1
    seen = finding(report, "pcie.link.speed", UPLINK)
    assert seen["seen"].startswith("2.5 GT/s")
    assert seen["wanted"].startswith("16 GT/s")


@pytest.mark.long
def test_a_narrow_card_is_one_fail_on_its_uplink(vm: Vm, tmp_path: Path, usual: Said) -> None:
    vm.set_link(OTHER_UPLINK, width=4)
    new = said(audit(vm, tmp_path)) - usual
    assert ("pcie.link.width", "fail", OTHER_UPLINK) in new
    assert {one for one in new if one[1] in ("fail", "unknown")} == {("pcie.link.width", "fail", OTHER_UPLINK)}


@pytest.mark.long
def test_a_narrow_switch_of_the_host_is_found_on_its_own_hop(vm: Vm, tmp_path: Path, usual: Said) -> None:
    vm.set_link("0000:81:00.0", width=1)
    assert said(audit(vm, tmp_path)) - usual == {("pcie.link.width", "fail", "0000:81:00.0")}


@pytest.mark.long
def test_inner_ports_say_nothing(vm: Vm, tmp_path: Path, usual: Said) -> None:
    vm.set_link("0000:22:01.0", max_speed=16.0, max_width=16)
    assert said(audit(vm, tmp_path)) - usual == set()


def test_a_hundred_and_twenty_bad_packets_in_a_minute_are_one_finding_naming_both_ends(
    storm: tuple[Vm, Future[None]], tmp_path: Path, usual: Said
) -> None:
    vm, over = storm
    over.result()
    report = audit(vm, tmp_path)
    assert said(report) - usual == {("aer.rate", "fail", UPLINK)}
    seen = finding(report, "aer.rate", UPLINK)["seen"]
    assert UPLINK in seen
    assert ROOT_PORT in seen
    assert "120" in seen


@pytest.mark.long
def test_one_corrected_error_on_the_way_to_a_gpu_is_a_warning(vm: Vm, tmp_path: Path, usual: Said) -> None:
    vm.inject_aer(UPLINK, "correctable", "RxErr")
    assert said(audit(vm, tmp_path)) - usual == {("aer.rate", "warn", UPLINK)}


@pytest.mark.long
def test_a_non_fatal_error_on_the_way_to_a_gpu_fails(vm: Vm, tmp_path: Path, usual: Said) -> None:
    vm.inject_aer(GPU, "nonfatal", "CmpltTO")
    new = said(audit(vm, tmp_path)) - usual
    assert {one[:2] for one in new} <= {("aer.nonfatal", "fail"), ("aer.fatal", "fail")}, new
    assert new


@pytest.mark.long
def test_a_fatal_error_fails_with_the_last_word_of_the_recovery(vm: Vm, tmp_path: Path, usual: Said) -> None:
    vm.inject_aer(UPLINK, "fatal", "MalfTLP")
    report = audit(vm, tmp_path)
    new = said(report) - usual
    assert ("aer.fatal", "fail") in {one[:2] for one in new}, new
    (fatal,) = [one for one in report["findings"] if one["id"] == "aer.fatal" and one["status"] == "fail"]
    assert "recover" in fatal["seen"]


def test_uncorrected_errors_on_two_cards_fail_each_for_its_own(vm: Vm, tmp_path: Path, usual: Said) -> None:
    vm.inject_aer(GPU, "nonfatal", "CmpltTO")
    vm.inject_aer(OTHER_UPLINK, "fatal", "MalfTLP")
    report = audit(vm, tmp_path)
    new = said(report) - usual
    assert {("aer.nonfatal", "fail"), ("aer.fatal", "fail")} <= {one[:2] for one in new}, new
    assert ("aer.nonfatal", "fail", GPU) in new
    (fatal,) = [one for one in report["findings"] if one["id"] == "aer.fatal" and one["status"] == "fail"]
    assert "recover" in fatal["seen"]


def test_aspm_off_on_the_boot_line(vm: Vm, tmp_path: Path, usual: Said) -> None:
    """The policy file still reads [default], a write is refused to root, and AER is blind."""
    vm.boot("pcie_aspm=off")
    assert "[default]" in vm.read("/sys/module/pcie_aspm/parameters/policy")
    with pytest.raises(LabError, match="Operation not permitted"):
        vm.write("/sys/module/pcie_aspm/parameters/policy", "performance")
    report = audit(vm, tmp_path)
    new = {one for one in said(report) - usual if one[0] not in ("aspm.effective", "boot.last")}  # the power was cut
    assert {one[:2] for one in new} == {("aspm.policy", "info"), ("aer.visibility", "warn")}, new
    (blind,) = [one for one in report["findings"] if one["id"] == "aer.visibility"]
    assert {one["id"] for one in blind["explains"]} >= {"aer.rate", "aer.nonfatal", "aer.fatal"}


def test_a_restricted_log_claims_nothing(sound: Vm, tmp_path: Path) -> None:
    report = audit(sound, tmp_path, user="reader")
    assert report["exit"] == 3
    assert finding(report, "log.access", "host")["status"] == "unknown"
    faults = {one["status"] for one in report["findings"] if one["id"] == "gpu.fault"}
    assert "ok" not in faults
    assert report["counts"]["fail"] == 0


@pytest.mark.long
def test_a_core_dump_fails_its_card_only(vm: Vm, tmp_path: Path, usual: Said) -> None:
    dump = vm.coredump(GPU)
    report = audit(vm, tmp_path)
    new = said(report) - usual
    assert {one for one in new if one[1] == "fail"} == {("gpu.fault", "fail", GPU)}, new
    assert vm.run(["test", "-e", f"{dump}/data"], check=False).returncode == 0, "the audit lost the dump"


@pytest.mark.long
def test_a_wedged_card(vm: Vm, tmp_path: Path, usual: Said) -> None:
    vm.kernel_log(GPU, f"*ERROR* CRITICAL: Xe has declared device {GPU} as wedged.")
    new = said(audit(vm, tmp_path)) - usual
    assert {one for one in new if one[1] == "fail"} == {("gpu.wedged", "fail", GPU)}, new


def test_sleeping_cards_are_left_asleep(vm: Vm, tmp_path: Path) -> None:
    for bdf in GPUS:
        vm.suspend(bdf)
    before = vm.touched()
    report = audit(vm, tmp_path)
    assert [vm.sysfs(bdf, "power/runtime_status") for bdf in GPUS] == [["suspended"]] * len(GPUS)
    assert vm.touched() == before, "the driver was called"
    assert {one["bars"]["unread"] for one in report["facts"]["pcie"]["gpus"]["value"]} == {"suspended"}


@pytest.mark.long
def test_a_small_bar(vm: Vm, tmp_path: Path, usual: Said) -> None:
    vm.set_bar(GPU, 0.25)
    new = said(audit(vm, tmp_path)) - usual
    assert {one for one in new if one[1] == "fail"} == {("rebar", "fail", GPU)}, new


@pytest.mark.long
def test_who_holds_a_card_is_named_and_not_disturbed(vm: Vm, tmp_path: Path) -> None:
    with vm.hold_render_node(GPU) as pid:
        report = audit(vm, tmp_path)
        assert vm.run(["test", "-e", f"/proc/{pid}/fd/3"], check=False).returncode == 0
    holders = report["facts"]["holders"]["render"]["value"]
    assert [(one["pid"], one["bdf"]) for one in holders] == [(pid, GPU)]


def test_the_words_of_a_newer_kernel_give_the_same_findings(vm_second_kernel: Vm, tmp_path: Path) -> None:
    vm_second_kernel.inject_aer(UPLINK, "correctable", "BadTLP")
    vm_second_kernel.inject_aer(OTHER_GPU, "nonfatal", "CmpltTO")
    log = vm_second_kernel.run(["dmesg"]).stdout
    assert "severity=Correctable" in log
    new = {one[:3] for one in said(audit(vm_second_kernel, tmp_path))}
    assert ("aer.rate", "warn", UPLINK) in new
    assert {one[:2] for one in new if one[1] == "fail"} <= {("aer.nonfatal", "fail"), ("aer.fatal", "fail")}, new


def test_playbook_recording_and_command_line_agree(vm: Vm, tmp_path: Path, usual: Said) -> None:
    vm.set_link(UPLINK, speed=2.5)
    vm.inject_aer(OTHER_UPLINK, "correctable", "BadTLP", "Timeout")
    dump = vm.coredump(OTHER_GPU)
    report = audit(vm, tmp_path)
    assert said(report) - usual == {
        ("pcie.link.speed", "fail", UPLINK),
        ("aer.rate", "warn", OTHER_UPLINK),
        ("gpu.fault", "fail", OTHER_GPU),
    }
    assert vm.run(["test", "-e", f"{dump}/data"], check=False).returncode == 0, "the audit lost the dump"
    inventory = str(tmp_path / "inventory.json")
    played = play(tmp_path, "-i", inventory, "-e", f"hostcheck_recordings={tmp_path}/recordings", playbook="record.yml")
    assert played.returncode == 0, played.stdout + played.stderr
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["audit", "--recording", str(tmp_path / "recordings/lab.json"), "--format", "json"])
    replayed = json.loads(out.getvalue())
    assert code == report["exit"] == 1
    assert said(replayed) == said(report)
    here = tmp_path / "root"
    replay.lay_out(json.loads((tmp_path / "recordings/lab.json").read_text()), here)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(["audit", "--root", str(here), "--name", "lab", "--format", "json"])
    assert json.loads(out.getvalue())["findings"] == replayed["findings"]


@pytest.mark.long
def test_the_audit_changes_nothing(vm: Vm, tmp_path: Path) -> None:
    look = "find /etc /var/lib /usr/local /boot -xdev -type f -newer /tmp/mark | grep -v '^/var/lib/systemd' || true"
    vm.sh("touch /tmp/mark")
    audit(vm, tmp_path)
    assert vm.sh(look).stdout == ""
