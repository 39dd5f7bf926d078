"""Real ansible, each run in a folder of its own: its inventory, its reports and its temporary files stay there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TOOLS = Path(sys.executable).parent
HERE = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}


def inventory(folder: Path, hosts: Mapping[str, Mapping[str, Any]]) -> str:
    """Write an inventory, its hosts in the order given; its path."""
    path = folder / "inventory.json"
    path.write_text(json.dumps({"all": {"hosts": hosts}}))
    return str(path)


def how(folder: Path, project: Path = ROOT) -> dict[str, Any]:
    """Keywords for subprocess: the project's configuration, nothing asked of a person, no colour."""
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(project / "ansible.cfg"),
        "ANSIBLE_LOCAL_TEMP": str(folder / "ansible"),
        "ANSIBLE_NOCOLOR": "1",
        "PATH": f"{TOOLS}:{os.environ['PATH']}",
    }
    return {"cwd": folder, "env": environment, "stdin": subprocess.DEVNULL, "text": True}


def playbook(inventory: str, name: str, *arguments: str, project: Path = ROOT) -> list[str]:
    """Words that run a playbook of the project."""
    return [str(TOOLS / "ansible-playbook"), "-i", inventory, str(project / "playbooks" / name), *arguments]


def run(folder: Path, argv: list[str], timeout: float = 280, project: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, timeout=timeout, check=False, **how(folder, project))
