"""trial_boots.yml with the real ansible-playbook: boots that a person makes, on a directory with a boot id."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from hostcheck import boots
from hostcheck.cli import main
from hostcheck.onhost.probe import receipt as raw
from hostcheck.onhost.probe import schedule
from tests import fake_worker as fake
from tests import scripted_worker
from tests.playbooks.test_trial import ROOT, Fleet, last
from tests.settings_host import Tree

WISH = {"settings": {"kernel_arguments": {"present": ["iommu=pt"]}}}
LINE = "BOOT_IMAGE=/vmlinuz ro quiet"
AS_A = ("-e", "trial_boots_arm=A")


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def booted(tree: Tree, number: int, line: str = LINE) -> None:
    """What a boot leaves behind: another boot id, and the command line that it was started with."""
    tree.put("/proc/sys/kernel/random/boot_id", f"{number:08d}-1111-1111-1111-111111111111\n")
    tree.put("/proc/cmdline", f"{line}\n")


def earlier(folder: Path, number: int, arm: str, level: float) -> str:
    """A receipt of an earlier boot."""
    receipt = fake.profile(DEVICE="cpu", CARD={"index": 0, "name": "x86_64"})
    for block in receipt["blocks"]:
        samples = [round(level * 1000 * 400)]
        series = {"unit": "ns", "samples": samples, "per_sample": 400, "sum": sum(samples)}
        block["metrics"] = {"launch_us": {**series, "exercised": {"n": 400, "how": "made up"}}}
    line = LINE if arm == "A" else f"{LINE} iommu=pt"
    host = {"card": "", "boot_id": f"{number:08d}-2222-2222-2222-222222222222", "command_line": line}
    seen = {**fake.CALM, "host": host}
    taken = {"taken_at": f"2026-01-01T{number:02d}:00:00Z", "before": seen, "after": seen}
    path = folder / f"earlier-{number}.json"
    path.write_text(json.dumps(raw.seal({**receipt, **taken})))
    return str(path)


def documents(fleet: Fleet) -> list[dict[str, Any]]:
    return [boots.load(path) for path in fleet.receipts() if "-boots-" in path.name]


def test_check_mode_says_what_would_be_booted_and_what_stands_against_it(fleet: Fleet) -> None:
    tree = fleet.add("one", hostcheck_expect=WISH, trial_boots_per_arm=2, trial_boots_seed=1)
    before = tree.snapshot()
    ran = fleet.play("trial_boots.yml", "--check")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = " ".join(ran.stdout.split())
    assert "A is as it was, B is iommu=pt; boots " in said
    assert ", then A again, about " in said
    assert "0 and 0 boots count already; against it: hostcheck_reboot_ok is not set; the connection is local" in said
    assert last(ran) == "planned on 1"
    refused = fleet.play("trial_boots.yml", "-e", "hostcheck_reboot_ok=true")
    assert refused.returncode == 2
    assert "record your own boots by trial_boots_arm" in refused.stdout
    assert tree.snapshot() == before
    assert fleet.receipts() == []


def test_a_boot_that_a_person_made_is_added_to_earlier_ones(fleet: Fleet) -> None:
    tree = fleet.add("one", hostcheck_expect=WISH)
    files: dict[str, list[str]] = {"A": [], "B": []}
    for number, (arm, level) in enumerate(zip("ABABABB", (3.1, 2.4, 3.2, 2.5, 3.05, 2.45, 2.3), strict=True), start=1):
        files[arm].append(earlier(fleet.tmp_path, number, arm, level))
    booted(tree, 9)
    ran = fleet.play("trial_boots.yml", *AS_A, "-e", json.dumps({"trial_boots_receipts": files}))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 and 4 boots count already" in ran.stdout
    assert last(ran) == "helped on 1"
    (document,) = documents(fleet)
    assert document["verdict"]["figures"]["boots_a"] == 4
    assert document["told_by"] == {"command_line": {"A": "", "B": "iommu=pt"}}
    assert document["boots"][-1]["boot_id"] == "00000009-1111-1111-1111-111111111111"
    (path,) = (path for path in fleet.receipts() if "-boots-" in path.name)
    assert main(["verify", str(path)]) == 0
    assert main(["probe", "--show", str(path)]) == 0


@pytest.mark.long
def test_boots_are_added_from_run_to_run_and_each_counts_once(fleet: Fleet) -> None:
    tree = fleet.add("one", hostcheck_expect=WISH)
    booted(tree, 1)
    first = fleet.play("trial_boots.yml", *AS_A)
    assert first.returncode == 0, first.stdout + first.stderr
    assert last(first) == "not shown on 1"
    assert "unpaired, descriptive only: A (as it was) " in " ".join(first.stdout.split())
    assert " us in 1 boot" in " ".join(first.stdout.split())

    again = fleet.play("trial_boots.yml", *AS_A)
    assert again.returncode == 2
    assert "a boot counts once" in again.stdout

    wrong = fleet.play("trial_boots.yml", "-e", "trial_boots_arm=B")
    assert wrong.returncode == 2

    booted(tree, 2, f"{LINE} iommu=pt")
    second = fleet.play("trial_boots.yml", "-e", "trial_boots_arm=B")
    assert second.returncode == 0, second.stdout + second.stderr
    assert "1 and 0 boots count already, of one-cpu-boots-" in second.stdout
    (document,) = documents(fleet)
    assert [row["arm"] for row in document["boots"]] == ["A", "B"]


def test_mistakes_are_said(fleet: Fleet) -> None:
    fleet.add("one", hostcheck_expect={})
    nothing = fleet.play("trial_boots.yml", "--check")
    assert nothing.returncode == 2
    assert "Nothing to try on one: give trial_boots_wanted" in nothing.stdout
    arms = fleet.play("trial_boots.yml", *AS_A, "-e", "trial_boots_setting=by_hand", "--check")
    assert arms.returncode == 2
    assert "say what A and B are" in arms.stdout


# -- a whole run, with boots that are made up -------------------------------------------------------------------------

# What GRUB does: the one-shot entry if there is one, else the first; the kernel then has that line and a new boot id.
REBOOT = """
import sys, uuid
from pathlib import Path
sys.path.insert(0, {project!r})
from hostcheck.onhost.settings.boot_entries import parse_grub
root = Path({root!r})
entries = parse_grub((root / "boot/grub/grub.cfg").read_text())
once = (root / "boot/grub/grubenv").read_text().strip().removeprefix("next_entry=")
(root / "boot/grub/grubenv").write_text("")
entry = next(one for one in entries if (one.id == once if once else one.kind == "normal"))
(root / "proc/cmdline").write_text(f"BOOT_IMAGE={{entry.kernel}} " + " ".join(entry.args) + "\\n")
(root / "proc/sys/kernel/random/boot_id").write_text(str(uuid.uuid4()) + "\\n")
"""
GRUB_LINE = "BOOT_IMAGE=/boot/vmlinuz-6.12.0-2-amd64 root=UUID=11-22 ro console=ttyS0 quiet"
PARTS = ("ansible.cfg", "hostcheck", "library", "playbooks", "roles")


def with_made_up_boots(fleet: Fleet, tree: Tree) -> Path:
    """A copy of the project whose reboot is the program above, and whose refusal to reboot a directory is taken out."""
    project = fleet.tmp_path / "project"
    project.mkdir()
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, project / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, project / part)
    program = fleet.tmp_path / "reboot.py"
    program.write_text(REBOOT.format(project=str(ROOT), root=str(tree.root)))
    command = f"ansible.builtin.command: {sys.executable} {program}\n"
    changes = {
        r"ansible\.builtin\.reboot:\n +reboot_timeout:.*\n +msg:.*\n": command,
        r"if ansible_connection \| default\('ssh'\) == 'local' else ''": "if false else ''",
        r"if hostcheck_root \| default\('/'\) != '/' else ''": "if false else ''",
    }
    made = 0
    for path in (project / "playbooks/tasks").glob("trial_boots_*.yml"):
        text = path.read_text()
        for pattern, text_in_place in changes.items():
            text, number = re.subn(pattern, lambda _, new=text_in_place: new, text)
            made += number
        path.write_text(text)
    assert made == 4
    return project


def booting(fleet: Fleet, factor: str = "0.8", **variables: Any) -> Tree:
    tree = fleet.add("one", hostcheck_expect=WISH, trial_boots_settle_s=0, hostcheck_reboot_ok=True, **variables)
    line = str(tree.path("/proc/cmdline"))
    body = f"    return {factor} if 'iommu=pt' in open({line!r}).read().split() else 1.0\n"
    fleet.hosts["one"]["latency_probe_command"] = scripted_worker.command(fleet.tmp_path / "boots.py", body)
    tree.put("/proc/cmdline", f"{GRUB_LINE}\n")
    return tree


def unlike(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_whole_run_goes_by_the_coins_and_ends_as_it_began(fleet: Fleet) -> None:
    tree = booting(fleet, trial_boots_per_arm=1, trial_boots_seed=1)
    project = with_made_up_boots(fleet, tree)
    before = tree.snapshot()
    ran = fleet.play("trial_boots.yml", project=project)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert last(ran) == "not shown on 1"
    (document,) = documents(fleet)
    assert [row["arm"] for row in document["boots"]] == schedule.boots(1, 1)
    assert document["told_by"] == {"command_line": {"A": "", "B": "iommu=pt"}}
    figures = {row["arm"]: row["figure"] for row in document["boots"]}
    assert figures["B"] / figures["A"] == pytest.approx(0.8, rel=0.02)
    assert unlike(before, tree.snapshot()) == {"/proc/sys/kernel/random/boot_id"}


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_boot_that_cannot_be_measured_ends_the_run_and_the_old_line_is_back(fleet: Fleet) -> None:
    tree = booting(fleet, factor="os._exit(3)", trial_boots_per_arm=1, trial_boots_seed=1)
    project = with_made_up_boots(fleet, tree)
    before = tree.snapshot()
    ran = fleet.play("trial_boots.yml", project=project)
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert "died: exit status 3" in ran.stdout
    assert last(ran) == "invalid on 1 (one)"
    assert unlike(before, tree.snapshot()) == {"/proc/sys/kernel/random/boot_id"}
    assert documents(fleet)[0]["restore"] == ""
