"""The manual of every module is true: DOCUMENTATION against argument_spec, EXAMPLES and RETURN parse."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils import basic

LIBRARY = Path(__file__).parents[2] / "library"
MODULES = sorted(LIBRARY.glob("*.py"))


class Caught(Exception):
    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.arguments = arguments


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"library_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def argument_spec(module: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    def caught(self: Any, **arguments: Any) -> None:
        raise Caught(arguments)

    monkeypatch.setattr(basic.AnsibleModule, "__init__", caught)
    with pytest.raises(Caught) as caught_error:
        module.main()
    return caught_error.value.arguments


def spec_of(path: Path, module: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    if hasattr(module, "main"):
        return dict(argument_spec(module, monkeypatch)["argument_spec"])
    plugin = importlib.import_module(f"hostcheck.plugins.action.{path.stem}")  # a stub documents its action plugin
    return dict(plugin.ARGUMENTS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_documentation_matches_argument_spec(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(path)
    documentation = yaml.safe_load(module.DOCUMENTATION)
    spec = spec_of(path, module, monkeypatch)
    assert documentation["module"] == path.stem
    options = documentation["options"]
    assert set(options) == set(spec)
    for name, declared in spec.items():
        told = options[name]
        assert told["description"]
        assert told.get("type", "str") == declared.get("type", "str"), name
        assert told.get("default") == declared.get("default"), name
        assert told.get("required", False) == declared.get("required", False), name
        assert sorted(told.get("choices", [])) == sorted(declared.get("choices", [])), name
        assert told.get("elements") == declared.get("elements"), name
    assert {"check_mode", "diff_mode"} <= set(documentation["attributes"])


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_examples_and_return_values(path: Path) -> None:
    module = load(path)
    for task in yaml.safe_load(module.EXAMPLES):
        assert task["name"]
        assert any(key in {one.stem for one in MODULES} for key in task) or "ansible.builtin.debug" in task
    for key, value in yaml.safe_load(module.RETURN).items():
        assert {"description", "returned", "type"} <= set(value), key


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_modules_are_thin(path: Path) -> None:
    assert path.stat().st_size <= 8 << 10, "more belongs into hostcheck/onhost"
