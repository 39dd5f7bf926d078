"""Every list of settings names the same ones: catalogue, playbooks, roles, expectations; and each its own keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hostcheck.expectations import Settings
from hostcheck.onhost.settings.catalogue import SETTINGS
from hostcheck.onhost.settings.engine import Refused

ROOT = Path(__file__).parents[2]
LISTED: dict[str, Any] = yaml.safe_load((ROOT / "playbooks/vars/settings.yml").read_text())


def test_the_playbooks_list_the_catalogue_in_its_order() -> None:
    assert [name for name in LISTED["may_be_declared"] if name not in LISTED["kept_by_undo"]] == list(SETTINGS)
    assert set(LISTED["may_be_declared"]) == set(Settings.model_fields)


@pytest.mark.parametrize("name", LISTED["may_be_declared"])
def test_role_and_expectation_know_the_keys_of_the_setting(name: str) -> None:
    role = ROOT / "roles" / name
    options = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    documented = set(options[name]["options"])
    model = Settings.model_fields[name].annotation
    assert model is not None
    assert documented == set(model.model_fields)
    assert f"{name}_wanted" in yaml.safe_load((role / "defaults/main.yml").read_text())
    if name in SETTINGS:
        with pytest.raises(Refused) as refused:
            SETTINGS[name].parse({"no such key": 1})
        known = re.search(r"known keys are (.*)$", str(refused.value))
        assert known is not None
        assert set(known[1].split(", ")) <= documented
        assert f"{name}_result" in (role / "tasks/main.yml").read_text()
