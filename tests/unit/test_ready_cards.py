"""Waiting for cards, below a directory where they come late, without a driver, or not at all."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hostcheck.onhost.reader import LiveReader, Reading
from hostcheck.onhost.ready import cards
from hostcheck.onhost.ready.cards import Expected, Waited, expected, look, message, missing, wait
from tests.pci_host import Watching
from tests.ready_host import FIRST, SECOND, ReadyHost

BOTH = Expected((FIRST, SECOND))


def waited(host: ReadyHost, wanted: Expected = BOTH, timeout: float = 0.0, settle: float = 0.0) -> Waited:
    found = wait(host.reader, wanted, timeout, settle, 0.02)
    assert found.value is not None, found
    return found.value


@pytest.fixture
def later() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Runs something a moment later, beside the test."""
    started: list[threading.Thread] = []

    def run(what: Callable[[], None]) -> None:
        thread = threading.Thread(target=lambda: (time.sleep(0.2), what()))
        started.append(thread)
        thread.start()

    yield run
    for thread in started:
        thread.join()


def test_cards_that_are_there_are_not_waited_for(tmp_path: Path) -> None:
    found = waited(ReadyHost(tmp_path))
    assert found.missing == {}
    assert [(card.bdf, card.driver, card.nodes) for card in found.cards] == [
        (FIRST, "xe", ("renderD128",)),
        (SECOND, "xe", ("renderD129",)),
    ]
    assert found.by == "a listing of sysfs every 0.02 s: udev does not run here"


def test_a_late_card_is_waited_for(tmp_path: Path, later: Callable[[Callable[[], None]], None]) -> None:
    host = ReadyHost(tmp_path, (FIRST,))
    later(lambda: host.card(SECOND, node=129))
    found = waited(host, timeout=60, settle=0.1)
    assert found.missing == {}
    assert [card.bdf for card in found.cards] == [FIRST, SECOND]
    assert found.seconds >= 0.1


def test_a_late_driver_and_a_late_node_are_waited_for(
    tmp_path: Path, later: Callable[[Callable[[], None]], None]
) -> None:
    host = ReadyHost(tmp_path, (FIRST,))
    host.card(SECOND, driver="")
    assert waited(host).missing == {SECOND: "on the bus, not bound to a driver (wanted xe or i915)"}
    host.bind(SECOND)
    assert waited(host).missing == {SECOND: "bound to xe, but it has no render node"}
    host.node(SECOND, 129, in_dev=False)
    assert waited(host).missing == {SECOND: "/dev/dri/renderD129 is not there yet"}
    later(lambda: host.put("/dev/dri/renderD129", "") and None)
    assert waited(host, timeout=60).missing == {}


def test_a_missing_card_is_named_with_what_the_kernel_says_of_it(tmp_path: Path) -> None:
    host = ReadyHost(tmp_path, (FIRST,))
    host.card(SECOND, driver="")
    for number in range(9):
        host.say(f"xe {SECOND}: try {number}")
    host.say(f"xe {SECOND}: probe with driver xe failed with error -110")
    host.say("eth0: up")
    found = waited(host, Expected((FIRST, SECOND, "0000:63:00.0")))
    assert set(found.missing) == {SECOND, "0000:63:00.0"}
    assert len(found.log[SECOND]) == 6
    text = message(found)
    assert f"{SECOND}: on the bus, not bound" in text
    assert f"    [   15.000000] xe {SECOND}: probe with driver xe failed with error -110" in text
    assert "0000:63:00.0: not on the bus" in text
    assert "    the kernel log has no line of it on this boot" in text
    assert FIRST not in text
    assert "eth0" not in text


def test_a_refused_log_is_not_a_silent_one(tmp_path: Path) -> None:
    host = ReadyHost(tmp_path, ())
    host.put(
        "/usr/bin/dmesg",
        "#!/bin/sh\necho 'dmesg: read kernel buffer failed: Operation not permitted' >&2\nexit 1\n",
        0o755,
    )
    assert "the kernel log could not be read" in waited(host, Expected((FIRST,))).log[FIRST][0]


def test_counts_and_ids(tmp_path: Path) -> None:
    host = ReadyHost(tmp_path)
    there = look(host.reader).value
    assert there is not None
    assert missing(there, Expected(count=2)) == {}
    assert missing(there, Expected(count=3)) == {"cards": f"2 of 3 on the bus ({FIRST}, {SECOND})"}
    assert missing(there, Expected(ids=("e223",))) == {}
    assert missing(there, Expected(ids=("e20b",), count=1)) == {"id e20b": "no card with this id on the bus"}
    assert missing(there, Expected(count=1, ids=("e20b", "e223"))) == {"id e20b": "no card with this id on the bus"}


def test_without_an_expectation_every_card_on_the_bus_is_waited_for(tmp_path: Path) -> None:
    host = ReadyHost(tmp_path, (FIRST,))
    host.card(SECOND, driver="")
    assert set(waited(host, Expected()).missing) == {SECOND}
    assert waited(host, Expected((FIRST,))).missing == {}
    assert waited(ReadyHost(tmp_path / "none", ()), Expected()).missing == {}


def test_a_card_held_for_a_virtual_machine_is_not_in_use_here(tmp_path: Path) -> None:
    host = ReadyHost(tmp_path, (FIRST,))
    host.card(SECOND, driver="")
    host.bind(SECOND, "vfio-pci")
    assert waited(host, Expected()).missing == {}
    assert waited(host).missing == {SECOND: "not on the bus, or held for a virtual machine"}


def test_graphics_of_the_processor_and_virtual_functions_are_no_cards(tmp_path: Path) -> None:
    host = ReadyHost(tmp_path)
    folder = "/sys/devices/pci0000:00/0000:00:02.0"
    for name, text in (("vendor", "0x8086\n"), ("device", "0xa780\n"), ("class", "0x030000\n")):
        host.put(f"{folder}/{name}", text)
    host.link("/sys/bus/pci/devices/0000:00:02.0", "../../../devices/pci0000:00/0000:00:02.0")
    host.link(f"/sys/bus/pci/devices/{SECOND}/physfn", f"../{FIRST}")
    assert [card.bdf for card in waited(host, Expected()).cards] == [FIRST]


def test_a_foreign_driver_is_named(tmp_path: Path) -> None:
    host = ReadyHost(tmp_path, ())
    host.card(FIRST, driver="")
    host.bind(FIRST, "mine")
    assert waited(host, Expected((FIRST,))).missing == {FIRST: "bound to mine, wanted xe or i915"}


def test_udev_must_have_done_its_work_where_it_runs(tmp_path: Path) -> None:
    host = ReadyHost(tmp_path, (FIRST,))
    host.put("/run/udev/control", "")
    assert waited(host, Expected((FIRST,))).missing == {FIRST: "udev has not done its work on renderD128 yet"}
    host.put("/run/udev/data/c226:128", "I:1\n")
    found = waited(host, Expected((FIRST,)))
    assert found.missing == {}
    assert "no events" in found.by
    host.put("/run/udev/queue", "")
    assert set(waited(host, Expected((FIRST,))).missing) == {"udev"}


def test_what_still_changes_is_not_settled(tmp_path: Path) -> None:
    host = ReadyHost(tmp_path, (FIRST,))
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += max(seconds, 1.0)
        if now[0] == 3.0:
            host.card(SECOND, node=129)

    found = wait(host.reader, Expected((FIRST,)), 60, 5, 1.0, lambda: now[0], sleep)
    assert found.value is not None
    assert found.value.missing == {}
    assert found.value.seconds == 8.0  # five seconds of quiet after the change at three


def test_no_card_is_touched(tmp_path: Path) -> None:
    host = ReadyHost(tmp_path)
    watching = Watching(host.reader)
    wait(watching, Expected((FIRST, SECOND, "0000:63:00.0")), 0, 0)
    own = [path for path in watching.read if FIRST in path and not path.endswith(("/vendor", "/device", "/class"))]
    assert own == []
    assert not any(path.endswith("/") and "/dev/dri" in path for path in watching.read)
    assert not any(command.startswith(("lspci", "xpu-smi")) for command in watching.ran)


def test_a_bus_that_cannot_be_listed_is_not_an_empty_one(tmp_path: Path) -> None:
    class Refusing(LiveReader):
        def names(self, path: str) -> Reading[tuple[str, ...]]:
            return Reading.no("permission", "EACCES", path) if path.startswith("/sys/bus/pci") else super().names(path)

    found = wait(Refusing(str(ReadyHost(tmp_path).root)), BOTH, 0, 0)
    assert found.unread == "permission"


class Monitor:
    """Stands in for pyudev's monitor: gives the events that a test has put down, and says what was asked of it."""

    made: list[Monitor] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.filters: list[str] = []
        self.started = False
        self.events: list[Any] = []
        self.waits: list[float] = []
        Monitor.made.append(self)

    @classmethod
    def from_netlink(cls, context: object) -> Monitor:
        return cls()

    def filter_by(self, subsystem: str) -> None:
        self.filters.append(subsystem)

    def start(self) -> None:
        self.started = True

    def poll(self, seconds: float) -> Any:
        self.waits.append(seconds)
        return self.events.pop(0) if self.events else None


def test_events_are_waited_for_where_python_has_pyudev(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyudev", SimpleNamespace(Monitor=Monitor, Context=object))
    watch = LiveReader().watch(cards.SUBSYSTEMS)
    monitor = Monitor.made[-1]
    assert (monitor.filters, monitor.started) == (["pci", "drm"], True)
    monitor.events = ["add", "bind", "change"]
    assert watch.value is not None
    assert watch.value(7.0) == "add"
    assert monitor.events == []  # one look is enough for all that has come
    assert watch.value(7.0) is None


def test_without_pyudev_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyudev", None)
    assert "host_packages" in LiveReader().watch(("pci",)).detail
    assert LiveReader("/tmp").watch(("pci",)).unread == "tool_missing"


def test_events_replace_the_listing(tmp_path: Path) -> None:
    host = ReadyHost(tmp_path, ())
    host.put("/run/udev/control", "")

    class Watched(LiveReader):
        pauses: list[float] = []  # noqa: RUF012

        def watch(self, subsystems: Any) -> Reading[Callable[[float], object]]:
            def pause(seconds: float) -> object:
                self.pauses.append(seconds)
                if len(self.pauses) == 1:
                    host.card(FIRST)
                    host.put("/run/udev/data/c226:128", "I:1\n")
                return "add"

            return Reading(pause, "pyudev.Monitor")

    found = wait(Watched(str(host.root)), Expected((FIRST,)), 60, 0)
    assert found.value is not None
    assert found.value.missing == {}
    assert found.value.by == "device events (pyudev), and a listing every 10 s"
    assert Watched.pauses == [10.0]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"bdf": []}, "unknown key bdf"),
        ({"bdfs": ["23"]}, "PCI address"),
        ({"count": -1}, "number of cards"),
        ({"count": True}, "number of cards"),
        ({"ids": ["8086:e223"]}, "device id"),
    ],
)
def test_bad_input_is_refused(data: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        expected(data)
