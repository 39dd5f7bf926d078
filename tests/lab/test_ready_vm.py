"""Cards that come late, the ready mark under a real systemd, and a coredump that the kernel will drop."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hostcheck import agent
from hostcheck.onhost.readings.kernel_log import JOURNAL
from tests import plays
from tests.lab.vm.cards import GPUS
from tests.lab.vm.host import Vm

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
FOLDER = "/usr/local/lib/hostcheck"
ARCHIVE = f"{FOLDER}/{agent.NAME}"
MARK = "/run/hostcheck/ready.json"
FAULT = "GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=3"
SERVING = """\
[Unit]
Description=A server of the test, as in docs/ready.md

[Service]
ExecStartPre=+{archive} ready
ExecStart=/bin/sleep infinity

[Install]
WantedBy=hostcheck-ready.target
"""
ASK = f"""\
import json, sys
sys.path.insert(0, {ARCHIVE!r})
from hostcheck.onhost.ready.gate import Request, run
from hostcheck.onhost.recording import below
from hostcheck.onhost.settings.files import Writer
print(json.dumps(run(Writer("/"), below("/"), Request(**json.load(sys.stdin)))))
"""


def install(vm: Vm, tmp_path: Path) -> None:
    """What the role host_agent installs, without its many tasks: those are slow on an emulated machine."""
    agent.write(tmp_path)
    vm.run(["mkdir", "-p", FOLDER])
    vm.copy_to(tmp_path / agent.NAME, ARCHIVE)
    vm.run(["chmod", "755", ARCHIVE])
    for name in ("hostcheck-ready.path", "hostcheck-ready.target"):
        vm.copy_to(ROOT / "roles/host_agent/files" / name, f"/etc/systemd/system/{name}")


def ask(vm: Vm, **request: Any) -> dict[str, Any]:
    """What the module host_ready answers on the machine."""
    answer = vm.run(["python3", "-I", "-c", ASK], input=json.dumps(request)).stdout
    return dict(json.loads(answer))


def is_active(vm: Vm, unit: str) -> bool:
    return vm.run(["systemctl", "is-active", "--quiet", unit], check=False).returncode == 0


def ready(vm: Vm) -> tuple[int, str]:
    ran = vm.run([ARCHIVE, "ready"], check=False)
    return ran.returncode, ran.stdout


def test_the_mark_lets_units_start_and_its_loss_stops_none(vm: Vm, tmp_path: Path) -> None:
    install(vm, tmp_path)
    for name in ("first", "second"):
        vm.write(f"/etc/systemd/system/{name}.service", SERVING.format(archive=ARCHIVE))
    vm.sh("systemctl daemon-reload; systemctl enable -q first.service; systemctl start hostcheck-ready.path")
    touched = vm.touched()

    assert vm.run(["systemctl", "start", "second.service"], check=False).returncode != 0
    assert not is_active(vm, "hostcheck-ready.target")

    passed = ask(vm, state="present", passed=True, boot_id=vm.boot_id())
    assert passed["ready"], passed
    vm._wait_until("systemctl is-active --quiet hostcheck-ready.target first.service", 60)
    cursor = json.loads(vm.read(MARK))["log"]["cursor"]
    newer = vm.run([*JOURNAL[0], f"--cursor={cursor}"]).stdout.splitlines()
    assert json.loads(newer[0])["__CURSOR"] == cursor  # else every check would read the whole boot
    assert vm.run(["runuser", "-u", "reader", "--", ARCHIVE, "ready"], check=False).returncode == 3

    vm.kernel_log(GPUS[2], FAULT)
    vm.run(["journalctl", "--sync"])
    assert vm.run(["systemctl", "start", "second.service"], check=False).returncode != 0
    said = vm.run(["journalctl", "-u", "second.service", "-o", "cat", "--no-pager"]).stdout
    assert "not ready: no mark" in said
    assert f"not ready: xe.engine_reset of {GPUS[2]}" in said
    assert is_active(vm, "first.service")
    assert vm.touched() == touched

    dump = vm.coredump(GPUS[1])
    kept = ask(vm, state="evidence", reason="a test")
    assert vm.run(["test", "-e", MARK], check=False).returncode == 1
    assert is_active(vm, "first.service")
    assert is_active(vm, "hostcheck-ready.target")
    assert kept["rung"]["number"] in (2, 3)
    file = f"{kept['evidence']['folder']}/{Path(dump).name}-{GPUS[1].replace(':', '-')}.coredump"
    assert vm.read(file) == vm.read(f"{dump}/data")  # the node is still there
    assert vm.read(file).startswith("**** Xe Device Coredump ****")
    modes = vm.sh(f"stat -c '%U %a' {file} $(dirname {file})").stdout.split("\n")
    assert modes[:2] == ["root 600", "root 700"]


def play(vm: Vm, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    inventory = plays.inventory(tmp_path, vm.inventory("gpu-1")["all"]["hosts"])
    return plays.run(tmp_path, [str(plays.TOOLS / arguments[0]), "-i", inventory, *arguments[1:]], timeout=600)


def module(vm: Vm, tmp_path: Path, name: str, **arguments: Any) -> dict[str, Any]:
    """Answer of a module through ansible, ``failed`` included, which the command line tells by a word before it."""
    ran = play(vm, tmp_path, "ansible", "gpu-1", "-m", name, "-a", json.dumps(arguments))
    word, arrow, text = ran.stdout.partition("=> ")
    assert arrow, ran.stdout + ran.stderr
    return {**json.loads(text), "failed": "FAILED!" in word}


@pytest.mark.long
def test_late_cards_are_waited_for_by_events_and_one_that_does_not_come_is_named(vm: Vm, tmp_path: Path) -> None:
    vm.boot("lab.cards_after=40")
    assert vm.run(["lspci", "-d", "8086:e223"]).stdout == ""
    late = module(vm, tmp_path, "gpu_ready", gpus={"bdfs": list(GPUS), "ids": ["e223"]}, timeout=300, settle=3)
    assert not late["failed"], late
    assert [card["bdf"] for card in late["cards"]] == list(GPUS)
    assert {card["driver"] for card in late["cards"]} == {"xe"}
    assert late["by"].startswith("device events (pyudev)")
    assert late["seconds"] > 3
    vm.suspend(GPUS[0])
    touched = vm.touched()
    vm.sh(f"echo {GPUS[3]} > /sys/bus/pci/drivers/xe/unbind")
    lost = module(vm, tmp_path, "gpu_ready", gpus={"bdfs": [*GPUS, "0000:99:00.0"]}, timeout=4, settle=0)
    assert lost["failed"]
    assert set(lost["missing"]) == {GPUS[3], "0000:99:00.0"}
    assert f"{GPUS[3]}: on the bus, not bound to a driver" in lost["msg"]
    assert any("GuC firmware" in line for line in lost["log"][GPUS[3]])
    assert lost["log"]["0000:99:00.0"] == ["the kernel log has no line of it on this boot"]
    assert vm.sysfs(GPUS[0], "power/runtime_status") == ["suspended"]
    assert vm.touched() == touched


@pytest.mark.long
def test_the_role_installs_and_removes_all_of_it_and_no_mark_outlives_a_boot(vm: Vm, tmp_path: Path) -> None:
    ours = "find /etc/systemd /usr/local -name '*hostcheck*' | sort"
    before = vm.sh(ours).stdout
    playbook = str(ROOT / "playbooks/agent.yml")
    first = play(vm, tmp_path, "ansible-playbook", playbook)
    assert first.returncode == 0, first.stdout + first.stderr
    again = play(vm, tmp_path, "ansible-playbook", playbook)
    assert "changed=0" in again.stdout, again.stdout
    told = vm.run([ARCHIVE, "--version"]).stdout
    assert told.split()[-1] == vm.read(f"{ARCHIVE}.sha256").split()[0]
    assert vm.sh(f"cd {FOLDER}; sha256sum -c {agent.NAME}.sha256; stat -c '%U %a' {agent.NAME}").stdout.endswith(
        "root 755\n"
    )
    passed = module(vm, tmp_path, "host_ready", state="present", passed=True, boot_id=vm.boot_id())
    assert passed["ready"], passed
    vm._wait_until("systemctl is-active --quiet hostcheck-ready.target", 60)
    vm.sh(f"cp {MARK} /root/kept")
    vm.reboot()
    assert ready(vm)[0] == 1
    assert not is_active(vm, "hostcheck-ready.target")
    assert is_active(vm, "hostcheck-ready.path")
    vm.sh(f"mkdir -p /run/hostcheck; cp /root/kept {MARK}")
    assert ready(vm) == (1, "not ready: the mark is of another boot; this one has not passed yet\n")
    gone = play(vm, tmp_path, "ansible-playbook", playbook, "-e", "host_agent_state=absent")
    assert gone.returncode == 0, gone.stdout + gone.stderr
    assert vm.sh(ours).stdout == before
