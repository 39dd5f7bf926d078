"""Cards that compute, alone and together, and what is said of those that do not. No test waits for a real limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hostcheck.onhost.probe import gates
from hostcheck.onhost.probe.gates import Outcome, Proof
from hostcheck.onhost.probe.host import Request, survey
from hostcheck.onhost.reader import Lines
from hostcheck.onhost.recording import RecordedReader
from tests import fake_worker as fake
from tests import proving_worker, replay
from tests.unit.test_probe_guards import DUMPED, HELD, REFUSED, SICK
from tests.unit.test_probe_worker import LIMITS, torch_marked, torch_python

CARDS = ["0000:23:00.0", "0000:27:00.0", "0000:43:00.0", "0000:47:00.0"]
XE = "[ 900.100000] xe 0000:43:00.0: [drm] "
LOAD = f"""{XE}Tile0: GT0: \n    ASID: 9\n    Faulted Address: 0x0000800400208000\n    FaultType: 0
    AccessType: 0\n    FaultLevel: 1\n    EngineClass: 3 bcs\n    EngineInstance: 0
{XE}Tile0: GT0: Fault response: Unsuccessful -EINVAL
{XE}Tile0: GT0: Engine reset: engine_class=bcs, logical_mask: 0x1, guc_id=2, state=0x249
"""


class Trial:
    """A gate on a recorded host, with a worker that answers as it is told."""

    def __init__(self, change: Any = None, host: str = "four-card-gen4") -> None:
        self.reader: Any = RecordedReader(replay.changed(replay.host(host), change or {}))

    def __call__(
        self,
        gate: Callable[..., Proof],
        cards: list[str] | None = None,
        device: str = "auto",
        kind: str = "xpu",
        command: list[str] | None = None,
        ranks: int | None = None,
        excuse: float = -1.0,
        **settings: Any,
    ) -> list[Outcome]:
        request = Request(
            command=command or fake.PYTHON,
            device=device,
            ranks=ranks,
            excuse=excuse,
            limits=fake.PATIENT,
            source=proving_worker.text(CARDS if cards is None else cards, kind, **settings),
        )
        return list(gate(self.reader, request, survey(self.reader, request)).outcomes)


def kinds(outcomes: list[Outcome]) -> dict[str, str]:
    return {one.subject: one.kind for one in outcomes}


def test_every_card_computes() -> None:
    found = Trial()(gates.smoke)
    assert kinds(found) == dict.fromkeys(CARDS, "ok")
    assert found[2].text == "sum 2097152.0 on xpu:2"


def test_devices_are_told_by_their_address_and_not_by_their_index() -> None:
    found = Trial()(gates.smoke, cards=list(reversed(CARDS)))
    assert [one.text[-1] for one in found] == ["3", "2", "1", "0"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (proving_worker.LOST, "device_lost"),
        (proving_worker.DIED, "died"),
        (proving_worker.WRONG, "wrong_result"),
        ('say(reply="smoke", identity={"device": "xpu", "index": 0, "card": ROWS[0]}, sum=float("nan"))', "nan"),
    ],
)
def test_after_the_first_card_that_fails_no_other_is_tried(code: str, kind: str) -> None:
    found = Trial()(gates.smoke, fail_op="smoke", fail_code=f'if request["index"] == 1: {code}')
    assert kinds(found) == dict(zip(CARDS, ["ok", kind, "not_tried", "not_tried"], strict=True))
    assert found[2].text == "0000:27:00.0 failed before it"


def test_a_card_that_does_not_answer_is_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "SMOKE_S", 0.5)
    found = Trial()(gates.smoke, fail_op="smoke", fail_code=proving_worker.HUNG)
    assert kinds(found)[CARDS[0]] == "hung"


def test_a_card_that_torch_does_not_list_is_unmapped() -> None:
    found = Trial()(gates.smoke, cards=CARDS[:3])
    assert kinds(found)[CARDS[3]] == "unmapped"
    assert "none of the xpu devices" in found[3].text


@pytest.mark.parametrize(
    ("change", "subject", "kind", "said"),
    [
        (SICK["suspended"][0], "0000:43:00.0", "not_opened", "is suspended"),
        (SICK["reset"][0], "0000:43:00.0", "not_opened", "faulted on this boot"),
        (DUMPED, "0000:43:00.0", "not_opened", "devcoredump"),
        (HELD, "0000:43:00.0", "not_opened", "in use"),
        ({"commands": {replay.JOURNAL: REFUSED, "dmesg": REFUSED}}, "host", "unread", "run as root"),
    ],
)
def test_nothing_is_started_where_the_facts_speak_against_it(
    change: Any, subject: str, kind: str, said: str, tmp_path: Path
) -> None:
    mark = tmp_path / "started"
    for gate in (gates.smoke, gates.collective):
        found = Trial(change)(gate, command=["sh", "-c", f"touch {mark}"])
        assert kinds(found) == {subject: kind}
        assert said in found[0].text
    assert not mark.exists()


def test_a_host_without_a_card_has_nothing_to_prove_unless_the_cpu_is_asked_for() -> None:
    for gate in (gates.smoke, gates.collective):
        assert kinds(Trial(host="virtual-machine")(gate, cards=[])) == {"host": "not_needed"}
    found = Trial(host="virtual-machine")(gates.smoke, cards=[], device="cpu", kind="cpu")
    assert kinds(found) == {"cpu": "ok"}


def test_one_card_has_nobody_to_join() -> None:
    found = Trial(host="one-card-b450-x8")(gates.collective, cards=["0000:0c:00.0"])
    assert [(one.kind, one.text) for one in found] == [("not_needed", "there is 1 card, so there is nothing to join")]


def test_all_ranks_add_up() -> None:
    (found,) = Trial()(gates.collective)
    assert (found.kind, found.text) == ("ok", "4 ranks, made-up, every value 10, no interface pinned")


@pytest.mark.parametrize("op", ["start", "join", "allreduce"])
def test_the_rank_that_fails_is_named_at_once(op: str) -> None:
    """The others wait for it in vain; the worker tells its rank by the request that only it gets."""
    code = f"""
if op == "start":
    os.environ["MINE"] = str(request["index"])
if os.environ.get("MINE") == "2" and op == {op!r}:
    {proving_worker.LOST}
if op == "allreduce":
    time.sleep(900)
"""
    trial = Trial()
    source = proving_worker.text(CARDS).replace("    if op == FAIL_OP", f"    exec({code!r})\n    if op == FAIL_OP")
    request = Request(command=fake.PYTHON, limits=fake.PATIENT, source=source)
    (found,) = gates.collective(trial.reader, request, survey(trial.reader, request)).outcomes
    assert found.kind == "device_lost"
    assert found.text.startswith("rank 2")
    assert found.subject == ("host" if op == "start" else CARDS[2])


def test_ranks_that_do_not_answer_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "COLLECTIVE_S", 2.0)
    (found,) = Trial()(gates.collective, fail_op="allreduce", fail_code=proving_worker.HUNG)
    assert found.kind == "hung"
    assert "0 of 4 ranks answered in time, rank 0 on 0000:23:00.0, " in found.text


def test_two_ranks_on_one_card_are_no_collective() -> None:
    (found,) = Trial()(gates.collective, cards=[CARDS[0]] * 4)
    assert (found.kind, found.text[:20]) == ("unmapped", "two ranks on one car")


def test_containers_that_cannot_meet_are_a_mistake_and_no_pass() -> None:
    (found,) = Trial()(gates.collective, command=["podman", "run", "-i", "image"])
    assert found.kind == "config_error"
    assert "--network host" in found.text
    (left_out,) = Trial()(gates.collective, command=["podman", "run", "-i", "image"], ranks=0)
    assert left_out.kind == "not_needed"


PINNED = {"files": {"/etc/hostcheck/collective.env": "# by hostcheck\nCCL_KVS_IFACE=eno1\nFI_TCP_IFACE=eno1\n"}}


def test_the_pinned_interface_reaches_every_rank() -> None:
    (found,) = Trial(PINNED)(gates.collective)
    assert (found.kind, found.text) == (
        "ok",
        "4 ranks, made-up, every value 10, FI_TCP_IFACE=eno1, CCL_KVS_IFACE=eno1",
    )


def test_a_pin_that_does_not_reach_into_the_container_is_said() -> None:
    inside = ["env", "-i", *fake.PYTHON]  # variables of the host are not there, as in a container
    (found,) = Trial(PINNED)(gates.collective, command=inside)
    assert found.kind == "config_error"
    assert "FI_TCP_IFACE none, /etc/hostcheck/collective.env says eno1: add --env-file" in found.text


def test_an_interface_that_is_gone_is_a_mistake_of_the_host_and_not_of_a_card() -> None:
    code = 'say(reply="error", kind="config_error", text="interface eno1 absent"); os._exit(0)'
    (found,) = Trial(PINNED)(gates.collective, fail_op="store", fail_code=code)
    assert (found.subject, found.kind, found.text) == (
        "host",
        "config_error",
        "rank 0 on 0000:23:00.0: interface eno1 absent",
    )


class Changing(RecordedReader):
    """A host whose kernel log has more to say the second time."""

    def __init__(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        super().__init__(before)
        self.after, self.asked = RecordedReader(after), 0

    def lines(self, argv: Sequence[str], timeout: float = 60.0) -> Lines:
        self.asked += 1
        return self.after.lines(argv, timeout) if self.asked > 1 else super().lines(argv, timeout)


def test_a_fault_in_the_middle_is_found_though_the_worker_says_ok() -> None:
    trial = Trial()
    trial.reader = Changing(replay.host("four-card-gen4"), replay.changed(replay.host("four-card-gen4"), {"log": LOAD}))
    found = trial(gates.smoke)
    assert [one.kind for one in found] == ["ok"] * 4 + ["faulted"]
    assert found[-1].subject == "0000:43:00.0"
    assert "xe.page_fault" in found[-1].text


@pytest.mark.parametrize(
    ("log", "excuse", "kind"),
    [
        (LOAD, -1.0, "not_opened"),
        (LOAD, 900.0, "not_opened"),  # it came later than what is excused
        (LOAD, 901.0, "ok"),
        (LOAD.replace("800400208000", "aaad55000000"), 901.0, "not_opened"),
        (LOAD.replace("bcs", "ccs"), 901.0, "not_opened"),
        (LOAD + "[ 905.0] xe 0000:47:00.0: [drm] GT0: Engine reset: engine_class=ccs\n", 999.0, "not_opened"),
    ],
)
def test_only_the_known_fault_of_a_load_is_excused_and_only_up_to_its_time(log: str, excuse: float, kind: str) -> None:
    found = Trial({"log": log})(gates.smoke, excuse=excuse)
    assert kinds(found)["0000:43:00.0"] == kind


@torch_marked
def test_a_real_worker_on_this_cpu() -> None:
    reader = RecordedReader(replay.host("virtual-machine"))
    request = Request(command=[torch_python()], device="cpu", ranks=2, limits=LIMITS)
    found = survey(reader, request)
    (smoke,) = gates.smoke(reader, request, found).outcomes
    assert (smoke.subject, smoke.kind, smoke.text) == ("cpu", "ok", "sum 2097152.0 on cpu:0")
    (together,) = gates.collective(reader, request, found).outcomes
    assert (together.kind, together.text) == ("ok", "2 ranks, gloo, every value 3, no interface pinned")
