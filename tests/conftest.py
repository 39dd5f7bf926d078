"""What all tests share: hypothesis profile, ansible's view of the package, and a file system that tests cannot harm."""

from __future__ import annotations

import ctypes
import importlib
import importlib.abc
import importlib.machinery
import os
import signal
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.lab.vm.guard import PR_SET_PDEATHSIG

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    max_examples=50,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", parent=settings.get_profile("ci"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

READ_ONLY = ("/etc", "/boot", "/usr", "/var/lib", "/sys")
MARK = "HOSTCHECK_TESTS_READ_ONLY"

TOGETHER = (
    "tests/lab/",  # one virtual machine is as much as a core can emulate
    "tests/unit/test_readme.py",  # they write to the repository's own reports folder
)


class _SharedCode(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers ``ansible.module_utils.hostcheck`` with the package itself, so that both names are the same objects."""

    prefix = "ansible.module_utils.hostcheck"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == self.prefix or fullname.startswith(self.prefix + "."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return importlib.import_module(spec.name.removeprefix("ansible.module_utils."))

    def exec_module(self, module: ModuleType) -> None:
        """The module is there already."""


sys.meta_path.insert(0, _SharedCode())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give tests that must not run beside each other to one worker.

    Not by ``--dist loadgroup``: pytest-xdist 3.8 writes groups into a field that pytest 9.2 does not have any more, and
    says nothing.
    """
    from xdist.scheduler import LoadScopeScheduling  # only there when there are workers

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((together for together in TOGETHER if nodeid.startswith(together)), nodeid)

    return Scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of several workers one begins with the virtual machine, the other with playbooks: what takes longest comes first.

    One process alone keeps the order of the folders: the machine's image may still be being built.
    """
    order = {"lab": 0, "playbooks": 1, "unit": 2}
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: order.get(item.path.parent.name, len(order)))


def pytest_configure(config: pytest.Config) -> None:
    """As root, start over in a mount namespace in which no test can change this machine."""
    if hasattr(config, "workerinput"):  # a worker ends at once with the run that started it, even if that is killed
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.geteuid() != 0 or os.environ.get(MARK):
        return
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    script = 'for d in $0; do mount --bind "$d" "$d" && mount -o remount,ro,bind "$d" || exit 97; done; exec "$@"'
    paths = " ".join(path for path in READ_ONLY if os.path.isdir(path))
    again = [sys.executable, "-m", "pytest", *config.invocation_params.args]
    os.environ[MARK] = "1"
    sys.stdout.flush()
    os.chdir(config.invocation_params.dir)
    os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, paths, *again])
