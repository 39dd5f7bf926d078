"""Record the test machine anew in the states that tests/hosts keeps: ``python -m tests.lab.record [NAME ...]``.

What the tests say of a recording stands in tests/unit/test_recorded_vm.py.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from hostcheck.onhost.recording import dump, load
from tests.lab.vm import image
from tests.lab.vm.host import Vm
from tests.playbooks.test_audit import play
from tests.replay import HOSTS, JOURNAL

#: Of each entry of the journal, what nobody reads and half of its size is.
BOOKKEEPING = ("__CURSOR", "__SEQNUM", "__SEQNUM_ID", "_BOOT_ID")


def slow_uplink(vm: Vm) -> None:
    vm.set_link("0000:21:00.0", speed=2.5)
    vm.inject_aer("0000:21:00.0", "correctable", "BadTLP", count=3, interval=1)
    vm.inject_aer("0000:21:00.0", "correctable", "BadTLP", "Timeout")


def newer_kernel(vm: Vm) -> None:
    vm.inject_aer("0000:83:00.0", "correctable", "BadTLP", count=2, interval=1)
    vm.inject_aer("0000:23:00.0", "nonfatal", "CmpltTO")


#: Name of a recording -> the kernel that it is made under, and what is done to the machine before.
STATES: dict[str, tuple[str, Callable[[Vm], None]]] = {
    "lab-vm-slow-uplink": ("stable", slow_uplink),
    "lab-vm-newer-kernel": ("backports", newer_kernel),
}


def without_bookkeeping(journal: str) -> str:
    """Return a journal's JSON lines without the fields that are only its own.

    >>> without_bookkeeping('{"__CURSOR": "s=1", "MESSAGE": "one"}\\n')
    '{"MESSAGE":"one"}\\n'
    """
    entries = [json.loads(line) for line in journal.splitlines()]
    kept = ({key: value for key, value in entry.items() if key not in BOOKKEEPING} for entry in entries)
    return "".join(json.dumps(entry, ensure_ascii=False, separators=(",", ":")) + "\n" for entry in kept)


def record(name: str) -> Path:
    """Make a recording by the playbook, private data replaced on the machine, and return where it lies."""
    kernel, do = STATES[name]
    found = image.find()
    if found is None:
        raise SystemExit("the image of the test machine is not built: make lab-image, as root")
    with tempfile.TemporaryDirectory() as folder, Vm(found, kernel) as vm:
        work = Path(folder)
        vm.resume()
        do(vm)
        (work / "inventory.json").write_text(json.dumps(vm.inventory(name)))
        arguments = ("-i", str(work / "inventory.json"), "-e", f"hostcheck_recordings={work}")
        played = play(work, *arguments, playbook="record.yml")
        if played.returncode:
            raise SystemExit(played.stdout + played.stderr)
        recording = load((work / f"{name}.json").read_text(encoding="utf-8"))
    journal = recording["commands"][JOURNAL]
    journal["stdout"] = without_bookkeeping(journal["stdout"])
    path = HOSTS / f"{name}.json"
    path.write_text(dump(recording), encoding="utf-8")
    return path


def main(names: Sequence[str]) -> int:
    for name in names or STATES:
        print(record(name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
