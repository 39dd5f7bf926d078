"""A driver's users and parameters, memory of an idle card, resets that go on: each from both sides, and unread."""

from __future__ import annotations

from typing import Any

import pytest

from hostcheck.expectations import Refused, expectation
from hostcheck.findings import Finding
from hostcheck.onhost.readings import gpu_state
from tests import replay

HOST, CARD = "two-card-gen5", "0000:03:00.0"
XE = "/sys/module/xe"
BOOK = f"/sys/kernel/debug/dri/{CARD}/vram0_mm"
HELD = {"/proc/77/fd/5": "/dev/dri/renderD129"}
REFUSED: Any = {"error": "EACCES"}


def judged(id: str, change: dict[str, Any], expect: dict[str, Any] | None = None, host: str = HOST) -> list[Finding]:
    return [one for one in replay.report(replay.changed(replay.host(host), change), expect).findings if one.id == id]


def one(id: str, files: dict[str, Any], expect: dict[str, Any] | None = None, **more: Any) -> tuple[str, str]:
    (found,) = judged(id, {"files": files, **more}, expect)
    return found.status.value, found.seen


# -- users --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "status", "seen"),
    [
        ({}, "ok", "no user"),
        ({f"{XE}/refcnt": "76\n"}, "warn", "76 users while nobody holds a card; accounted for: 2 sound functions"),
        ({f"{XE}/refcnt": "2\n"}, "ok", "accounted for: 2 sound functions"),
        ({f"{XE}/refcnt": "3\n"}, "warn", "3 users"),
        ({f"{XE}/refcnt": "3\n", f"{XE}/holders/mei_gsc/": ""}, "ok", "1 modules that build on it"),
        ({f"{XE}/refcnt": "3\n", "/sys/class/graphics/fb0/name": "xedrmfb\n"}, "ok", "1 consoles"),
        ({f"{XE}/refcnt": "3\n", "/sys/class/graphics/fb0/name": "astdrmfb\n"}, "warn", "3 users"),
        ({f"{XE}/refcnt": REFUSED}, "unknown", "permission"),
        ({f"{XE}/refcnt": "-1\n"}, "unknown", "not_understood"),
        ({f"{XE}/refcnt": None}, "not_applicable", "part of the kernel"),
        ({f"{XE}/refcnt": "9\n", "/sys/class/graphics/fb0/name": REFUSED}, "unknown", "permission"),
    ],
)
def test_users_of_the_driver(files: dict[str, Any], status: str, seen: str) -> None:
    found = one("gpu.module_users", files)
    assert found[0] == status
    assert seen in found[1]


def test_users_are_no_finding_while_a_card_is_held() -> None:
    assert one("gpu.module_users", {f"{XE}/refcnt": "9\n"}, links=HELD) == ("ok", "9, cards are held")
    hidden = {f"{XE}/refcnt": "9\n", "/proc/9/fd": REFUSED, "/proc/9/stat": "9 (a) S 1 1 1 0 -1 4194560 1\n"}
    assert one("gpu.module_users", hidden)[0] == "unknown"


def test_hosts_without_such_a_driver() -> None:
    for id in ("gpu.module_users", "gpu.module_parameters"):
        for host in ("nvidia-host", "intel-hybrid"):
            assert [found.status.value for found in judged(id, {}, host=host)] == ["not_applicable"]


# -- parameters ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "wish", "status", "seen"),
    [
        ({}, {}, "ok", "as the driver sets them"),
        ({"probe_display": "N\n"}, {}, "info", "probe_display=N, not the driver's default"),
        ({"probe_display": "N\n"}, {"probe_display": "N"}, "ok", "probe_display=N"),
        ({}, {"probe_display": "N"}, "fail", "probe_display=Y"),
        ({"vram_bar_size": "256\n"}, {"probe_display": "Y"}, "info", "vram_bar_size=256"),
        ({"guc_firmware_path": "(null)\n"}, {}, "ok", "as the driver"),
        ({"guc_firmware_path": "xe/test.bin\n"}, {}, "info", "guc_firmware_path=xe/test.bin"),
        ({"guc_firmware_path": REFUSED}, {"guc_firmware_path": ""}, "unknown", "only root may read"),
        ({"guc_firmware_path": REFUSED}, {}, "ok", "as the driver"),
        ({"max_vfs": "7\n"}, {}, "ok", "as the driver"),
        ({"vram_bar_size": "\x07\n"}, {}, "unknown", "not_understood"),
        ({"": REFUSED}, {}, "unknown", "permission"),
    ],
)
def test_parameters(files: dict[str, Any], wish: dict[str, str], status: str, seen: str) -> None:
    expect = {"module_parameters": {"xe": wish}} if wish else {}
    where = {f"{XE}/parameters/{name}".rstrip("/"): text for name, text in files.items()}
    found = one("gpu.module_parameters", where, expect)
    assert found[0] == status
    assert seen in found[1]


def test_parameters_of_a_driver_that_is_not_known_are_refused() -> None:
    with pytest.raises(Refused, match="module_parameters"):
        expectation({"module_parameters": {"amdgpu": {"x": "1"}}})


# -- memory of an idle card ---------------------------------------------------------------------------


def book(mib: int) -> str:
    return f"  use_type: 1\n  use_tt: 0\n  size: 34225520640\n  usage: {mib << 20}\n"


def vram(files: dict[str, Any], expect: dict[str, Any] | None = None, **more: Any) -> tuple[str, str]:
    found = judged("gpu.vram_used", {"files": files, **more}, expect)
    (own,) = [finding for finding in found if finding.subject.name in (CARD, "host")]
    return own.status.value, own.seen


@pytest.mark.parametrize(
    ("files", "status", "seen"),
    [
        ({}, "ok", "26 MiB in use"),
        ({BOOK: book(255)}, "ok", "255 MiB"),
        ({BOOK: book(256)}, "warn", "256 MiB in use while nobody holds it"),
        ({BOOK: REFUSED}, "unknown", "permission"),
        ({BOOK: "garbage\n"}, "unknown", "not_understood"),
        ({BOOK: f"{book(1)}{book(2)}"}, "unknown", "not_understood"),
        ({BOOK: None}, "not_applicable", "this driver does not tell it"),
        ({"/sys/kernel/debug/dri": REFUSED}, "unknown", "permission"),
        ({BOOK: None, f"/sys/kernel/debug/dri/{CARD}/tile0/vram_mm": book(300)}, "warn", "300 MiB"),
    ],
)
def test_memory_in_use(files: dict[str, Any], status: str, seen: str) -> None:
    found = vram(files)
    assert found[0] == status
    assert seen in found[1]


def test_a_folder_named_by_minor_number_as_older_kernels_have_it() -> None:
    assert vram({BOOK: None, "/sys/kernel/debug/dri/1/vram0_mm": book(999)})[0] == "warn"
    assert vram({BOOK: None, "/sys/kernel/debug/dri/2/vram0_mm": book(999)})[0] == "not_applicable"


def test_memory_is_judged_before_a_start_only_and_as_declared() -> None:
    assert vram({BOOK: book(30_000)}, links=HELD)[0] == "not_applicable"
    assert vram({BOOK: book(999)}, {"gpu_limits": {"vram_used_mib": 1000}})[0] == "ok"


def test_only_that_one_file_of_debugfs_is_opened() -> None:
    source = f"{gpu_state.__file__}"
    with open(source, encoding="utf-8") as file:
        code = file.read()
    assert code.count("{DEBUG}") == 1
    assert "tt_shrink" not in code
    assert "force_reset" not in code


# -- resets that go on --------------------------------------------------------------------------------

RESET = "xe {}: [drm] Tile0: GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=2, state=0x3"


def resets(ago: float, **change: Any) -> tuple[str, str, str]:
    uptime = float(replay.host(HOST)["files"]["/proc/uptime"].split()[0])
    lines = "\n".join(f"[{uptime - ago - number:.6f}] {RESET.format(CARD)}" for number in (2, 1, 0))
    found = judged("gpu.fault", {"log": lines, **change})
    (own,) = [finding for finding in found if finding.subject.name == CARD]
    return own.status.value, own.seen, own.next_step


def test_resets_that_go_on_while_nobody_holds_a_card_are_told() -> None:
    status, seen, step = resets(5.0)
    assert status == "warn"
    assert "up to 3 resets a minute, the last 5 s ago, while nobody holds a card" in seen
    assert "reboot" in step


@pytest.mark.parametrize(("ago", "change"), [(90.0, {}), (5.0, {"links": HELD})])
def test_resets_that_are_over_or_have_a_user_are_only_resets(ago: float, change: dict[str, Any]) -> None:
    status, seen, _ = resets(ago, **change)
    assert (status, "resets a minute" in seen) == ("warn", False)
