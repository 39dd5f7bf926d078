"""What ansible sends to a host must run there: standard library only, Python 3.9, relative imports."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ONHOST = ROOT / "hostcheck/onhost"
SHIPPED = sorted(ONHOST.rglob("*.py"))
LIBRARY = sorted((ROOT / "library").glob("*.py"))
WORKER = ONHOST / "probe/worker.py"  # sent as text to an image's Python, never imported on the host
PREFIX = "ansible.module_utils.hostcheck"


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(level, module) of every import in a file, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((0, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or ""


@pytest.mark.parametrize("path", [*SHIPPED, *LIBRARY], ids=lambda path: str(path.relative_to(ROOT)))
def test_syntax_of_python_3_9(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_onhost_imports_the_standard_library_and_itself_only(path: Path) -> None:
    for level, module in imports(path):
        top = module.split(".")[0]
        if level == 0:
            allowed = top in sys.stdlib_module_names or (path == WORKER and top == "torch")
            assert allowed, f"imports {module}: psutil and pyudev are called through the reader, nothing else is there"
        else:
            depth = len(path.relative_to(ONHOST).parts)
            assert level <= depth, f"imports from above onhost: {'.' * level}{module}"


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: path.name)
def test_modules_reach_onhost_only(path: Path) -> None:
    for level, module in imports(path):
        assert level == 0
        top = module.split(".")[0]
        shared = module.startswith(PREFIX)
        assert top in sys.stdlib_module_names or module == "ansible.module_utils.basic" or shared, module
        if shared:
            assert module.startswith(f"{PREFIX}.onhost."), f"{module} is not shipped code"


def test_every_folder_of_shipped_code_is_a_package() -> None:
    folders = {path.parent for path in SHIPPED} | {ROOT / "hostcheck"}
    assert all((folder / "__init__.py").exists() for folder in folders)


@pytest.mark.parametrize("path", [ROOT / "hostcheck/__init__.py", *sorted(ONHOST.rglob("__init__.py"))])
def test_package_files_hold_a_docstring_and_at_most_the_version(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    rest = [node for node in tree.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    assert ast.get_docstring(tree)
    assert all(isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__" for node in rest)


def test_no_data_files_beside_shipped_code() -> None:
    strange = [path for path in ONHOST.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert not strange, "ansible packs Python files only"


def test_top_level_names_do_not_shadow_ansible() -> None:
    # with module_utils = . everything at the top is searched before ansible's own module_utils
    import ansible.module_utils

    own = {path.stem for path in ROOT.iterdir() if path.is_dir() or path.suffix == ".py"}
    theirs = {name.removesuffix(".py") for name in os.listdir(Path(ansible.module_utils.__file__).parent)}
    assert not (own & theirs) - {"__init__", "__pycache__"}


def old_python() -> str | None:
    """A Python of the oldest series that the host may have, if this machine has one."""
    candidates = [
        *Path.home().glob(".pyenv/versions/3.9.*/bin/python"),
        *Path("/root").glob(".pyenv/versions/3.9.*/bin/python"),
    ]
    return next((str(path) for path in [Path("/usr/bin/python3.9"), *candidates] if path.exists()), None)


@pytest.mark.skipif(old_python() is None, reason="no Python 3.9 on this machine")
def test_gather_runs_on_a_real_python_3_9() -> None:
    code = (
        "import json; from hostcheck.onhost.gather import gather; from hostcheck.onhost.reader import LiveReader;"
        "from hostcheck.onhost.plain import to_plain; print(json.dumps(to_plain(gather(LiveReader())))[:60])"
    )
    ran = subprocess.run([str(old_python()), "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert "hostcheck/facts/1" in ran.stdout
