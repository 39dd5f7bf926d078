"""Checks of a real inventory: ``pytest tests/live --hosts=ansible://gpu_hosts --ansible-inventory=inventory/my-fleet``.

Every host is read once, by the module that the playbooks use, and judged against its own ``hostcheck_expect``. Nothing
is changed. Without ``--hosts`` nothing here is collected.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hostcheck.assess import Report, assess, facts_from
from hostcheck.expectations import Refused, expectation, waivers

ROOT = Path(__file__).parents[2]
OPTIONS = {"hostcheck_under_load": "under_load", "hostcheck_wake": "wake", "hostcheck_xpu_smi": "xpu_smi"}


def wanted(config: pytest.Config) -> bool:
    """Was an inventory named?"""
    return bool(config.getoption("hosts", None))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if collection_path.name.startswith("test_") and not wanted(config) else None


def pytest_report_header(config: pytest.Config) -> str | None:
    named = any("live" in argument for argument in config.invocation_params.args if isinstance(argument, str))
    return "live: name hosts, such as --hosts=ansible://gpu_hosts" if named and not wanted(config) else None


def pytest_configure(config: pytest.Config) -> None:
    """The commands of ansible and the modules of this repository are found from any folder."""
    if wanted(config):
        os.environ.setdefault("ANSIBLE_CONFIG", str(ROOT / "ansible.cfg"))
        os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"


@dataclass(frozen=True)
class Read:
    """One host, read once. root: what stands for its ``/``. why: why it could not be judged, "" when it was."""

    report: Report | None
    root: str
    why: str = ""


_read: dict[str, Read] = {}


def read(host: Any) -> Read:
    """Read a host by its inventory, and judge it."""
    if not host.backend.HAS_RUN_ANSIBLE:
        return Read(None, "/", "name hosts of an inventory: --hosts=ansible://GROUP")
    variables = host.ansible.get_variables()
    name, root = variables["inventory_hostname"], variables.get("hostcheck_root", "/")
    given = {"root": root, **{key: variables[variable] for variable, key in OPTIONS.items() if variable in variables}}
    arguments = " ".join(f"{key}={shlex.quote(str(value))}" for key, value in given.items())
    try:
        expected = expectation(variables.get("hostcheck_expect") or {}, f"hostcheck_expect of {name}")
        excused = waivers(variables.get("hostcheck_waivers") or [], f"hostcheck_waivers of {name}")
        answer = host.ansible("host_facts", arguments, check=False)
        if "ansible_facts" not in answer:
            return Read(None, root, f"{name}: {answer.get('msg', 'gave no facts')}")
        facts = facts_from(answer["ansible_facts"]["hostcheck"])
    except (Refused, KeyError, ValueError, RuntimeError, AssertionError, host.ansible.AnsibleException) as error:
        return Read(None, root, f"{name}: {' '.join(str(error).split())[:400]}")
    return Read(assess(facts, expected, excused, name), root)


@pytest.fixture
def collected(host: Any) -> Read:
    """What was read from the host, once for all tests. Fails where the host could not be read."""
    id = host.backend.get_pytest_id()
    if id not in _read:
        _read[id] = read(host)
    if _read[id].report is None:
        pytest.fail(_read[id].why, pytrace=False)
    return _read[id]


@pytest.fixture
def report(collected: Read) -> Report:
    """The host's report."""
    assert collected.report is not None
    return collected.report


@pytest.fixture
def file(host: Any, collected: Read) -> Callable[[str], Any]:
    """testinfra's own view of a file of the host."""
    root = collected.root.rstrip("/")
    return lambda path: host.file(f"{root}{path}")
