"""The next rung after a device loss."""

from __future__ import annotations

from typing import Any

import pytest

from hostcheck.onhost.readings.kernel_log import parse_text
from hostcheck.onhost.readings.log_events import Event
from hostcheck.onhost.ready.ladder import is_load_time_fault, next_rung

CARD, OTHER = "0000:23:00.0", "0000:43:00.0"
RESET = Event("xe.engine_reset", CARD, last=100.0)
LOAD = f"""\
[    0.000000] Linux version 6.17.0
[   66.000000] xe {CARD}: [drm] Tile0: GT0:
	ASID: 1
	Faulted Address: 0x0000800400200000
	FaultType: 0
	AccessType: 0
	FaultLevel: 3
	EngineClass: 3 bcs
	EngineInstance: 8
[   66.000100] xe {CARD}: [drm] Tile0: GT0: Fault response: Unsuccessful -EINVAL
"""


def loaded(text: str = LOAD) -> tuple[Event, ...]:
    return parse_text(text.splitlines(), 0.0, None).events


@pytest.mark.parametrize(
    ("faults", "more", "number", "words"),
    [
        ([RESET], {"evidence": False}, 1, "keep the evidence"),
        ([Event("gpu.lost", CARD)], {"evidence": False}, 1, "keep the evidence"),
        ([RESET], {"uptime": 130.0}, 2, "leave 0000:23:00.0 alone for 60 s"),
        ([RESET], {"uptime": None}, 2, "alone"),
        ([RESET], {"holders": ["4711 (python3)"]}, 3, "4711 (python3)"),
        ([RESET], {}, 3, "one bounded health probe"),
        ([RESET], {"probed": True}, 6, "by your own decision"),
        ([RESET, Event("xe.engine_reset", OTHER, last=100.0)], {"probed": True}, 4, "nobody on any card"),
        ([Event("xe.wedged", CARD, last=100.0)], {}, 6, "reboot the host by your own decision"),
        ([RESET, Event("gpu.lost", CARD, last=100.0)], {"holders": ["1 (x)"]}, 6, "power-cycle"),
        ([Event("xe.engine_reset", last=100.0)], {}, 3, "a card that the log does not name"),
    ],
)
def test_rungs(faults: list[Event], more: dict[str, Any], number: int, words: str) -> None:
    found = next_rung(faults, **{"uptime": 900.0, "evidence": True, **more})
    assert found is not None
    assert found.number == number
    assert words in found.text
    assert "\n" not in found.text


def test_no_rung_without_a_fault() -> None:
    assert next_rung([], 900.0, False) is None


def test_no_rung_advises_what_is_on_the_never_list() -> None:
    for faults in ([RESET], [Event("xe.wedged", CARD)], [Event("gpu.lost", CARD)]):
        for probed in (False, True):
            text = next_rung(faults, 900.0, True, probed=probed).text.split("never:")[0]  # type: ignore[union-attr]
            assert not any(word in text for word in ("unbind", "function-level", "SIGKILL them", "reset the"))


def test_the_fault_of_a_load_is_known_by_kind_engine_and_address() -> None:
    assert is_load_time_fault(loaded())
    found = next_rung(loaded(), 900.0, True)
    assert found is not None
    assert "one more start" in found.text
    assert "one more start" not in next_rung(loaded(), 900.0, True, probed=True).text  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text",
    [
        LOAD.replace("0x0000800400200000", "0x0000800400300000"),
        LOAD.replace("bcs", "ccs"),
        LOAD.replace("-EINVAL", "-ENOENT"),
        LOAD + f"[   70.000000] xe {CARD}: [drm] device wedged, needs recovery\n",
        LOAD + LOAD.split("\n", 1)[1].replace(CARD, OTHER),
        f"[    0.000000] Linux version 6.17.0\n[   66.0] xe {CARD}: [drm] GT0: Engine reset: engine_class=bcs\n",
    ],
    ids=["address", "engine", "answer", "wedged", "two cards", "no address"],
)
def test_anything_else_is_not(text: str) -> None:
    assert loaded(text)
    assert not is_load_time_fault([one for one in loaded(text) if one.kind != "guc.version"])
