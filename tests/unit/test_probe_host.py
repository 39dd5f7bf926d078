"""A whole host probed: cards judged before anything opens them, and devices mapped to cards by address."""

from __future__ import annotations

import io
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hostcheck import receipts
from hostcheck.onhost.gather import gather
from hostcheck.onhost.probe import host
from hostcheck.onhost.probe.host import Request, survey
from hostcheck.onhost.reader import Output, Reading
from hostcheck.onhost.recording import RecordedReader
from hostcheck.report import probe as words
from hostcheck.report.receipt import render
from tests import fake_worker as fake
from tests import replay
from tests.unit.test_probe_guards import DUMPED, HELD, SICK, WAY

CARDS = ("0000:23:00.0", "0000:27:00.0", "0000:43:00.0", "0000:47:00.0")


def row(index: int, bdf: str | None, slower: float = 1.0) -> dict[str, Any]:
    """A device as the worker lists it; ``bdf`` goes into the UUID as Level Zero puts it there."""
    made: dict[str, Any] = {"index": index, "name": f"device {index}", "slower": slower}
    if bdf is not None:
        domain, bus, rest = bdf.split(":")
        number = int(domain, 16)
        made["uuid"] = (
            f"868023e2-0000-{number & 255:02x}{number >> 8:02x}-{bus}{rest[:2]}-0{rest[-1]}00000000000"[:35] + "0"
        )
    return made


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "FULL", fake.SMALL)
    monkeypatch.setattr(host, "QUICK", fake.SMALL)


class Trial:
    """A probe of a recorded host with a made-up worker that lists ``rows``."""

    def __init__(self, tmp_path: Path, rows: list[dict[str, Any]], change: Any = None, name: str = "four-card-gen4"):
        self.started = tmp_path / "started"
        self.reader: Any = RecordedReader(replay.changed(replay.host(name), change or {}))
        self.rows = rows
        self.said: list[str] = []

    def run(self, **request: Any) -> list[dict[str, Any]]:
        settings = request.pop("settings", {})
        text = fake.source(ROWS=self.rows, **settings)
        text = text.replace('"card": CARD', '"card": ROWS[request["index"]]').replace(
            'if op == "start":',
            'if op == "devices":\n        say(reply="devices", device=DEVICE, devices=ROWS)\n    elif op == "start":\n'
            '        SLOWER = ROWS[request["index"]]["slower"]',
        )
        text = text.replace("level * factor()", "level * SLOWER")
        command = ["sh", "-c", f'echo x >> {self.started}; exec "$0" "$@"', *fake.PYTHON]
        asked = Request(**{"command": command, "ranks": 0, "limits": fake.PATIENT, "source": text, **request})
        found = host.probe(self.reader, asked, say=self.said.append)
        for receipt in found:
            assert receipts.verify(receipts.parse(json.dumps(receipt))) == []
        return found

    @property
    def starts(self) -> int:
        return len(self.started.read_text().split()) if self.started.exists() else 0


def reasons(receipt: dict[str, Any]) -> str:
    return "; ".join(receipt["validity"]["reasons"])


def test_every_card_is_measured_by_its_address(tmp_path: Path) -> None:
    trial = Trial(tmp_path, [row(0, CARDS[1]), row(1, CARDS[0]), row(2, CARDS[3]), row(3, CARDS[2])])
    found = trial.run()
    assert [host.address(one) for one in found] == list(CARDS)
    assert [one["workers"][0]["identity"]["index"] for one in found] == [1, 0, 3, 2]
    assert [one["workers"][0]["address"] for one in found] == list(CARDS)
    assert [one["validity"]["valid"] for one in found] == [True] * 4
    assert found[0]["before"]["host"]["cards"][CARDS[0]]["guc"] == "70.54.0"
    assert words.between(found) == []


def test_the_time_is_named_and_the_seed_is_kept(tmp_path: Path) -> None:
    trial = Trial(tmp_path, [row(n, bdf) for n, bdf in enumerate(CARDS)])
    four, one = (survey(trial.reader, Request(["python3"], cards=cards)) for cards in ((), CARDS[:1]))
    assert four.expected_s > 3 * one.expected_s > 0
    assert four.timeout_s > four.expected_s
    assert (four.ranks, one.ranks) == (4, 0)
    assert {receipt["seed"] for receipt in trial.run(seed=77)} == {77}


def test_containers_of_their_own_cannot_meet(tmp_path: Path) -> None:
    engine = tmp_path / "docker"
    engine.write_text('#!/bin/sh\nshift 2; exec "$@"\n')
    engine.chmod(0o755)
    trial = Trial(tmp_path, [row(n, bdf) for n, bdf in enumerate(CARDS[:2])])
    found = trial.run(ranks=None, cards=CARDS[:2], command=[str(engine), "run", "vllm:1", *fake.PYTHON])
    assert all(one["validity"]["valid"] for one in found)
    assert [one["collectives"] for one in found] == [[], []]
    assert any(line.startswith("all-reduce not covered: containers of their own") for line in trial.said)


def test_an_integrated_gpu_at_index_0_is_not_taken_for_a_card(tmp_path: Path) -> None:
    igpu = "0000:00:02.0"
    here = "/sys/devices/pci0000:00/0000:00:02.0"
    change = {
        "files": {
            f"{here}/vendor": "0x8086\n",
            f"{here}/device": "0xa780\n",
            f"{here}/class": "0x030000\n",
            f"{here}/power/runtime_status": "suspended\n",
        },
        "links": {
            f"/sys/bus/pci/devices/{igpu}": f"../../..{here[4:]}",
            f"{here}/driver": "../../../bus/pci/drivers/i915",
        },
    }
    trial = Trial(tmp_path, [row(0, igpu), *(row(n, bdf) for n, bdf in enumerate(CARDS, 1))], change)
    found = trial.run(ranks=None)
    assert [host.address(one) for one in found] == list(CARDS)
    assert [one["workers"][0]["identity"]["index"] for one in found] == [1, 2, 3, 4]
    assert all(one["validity"]["valid"] for one in found), [reasons(one) for one in found]
    assert f"device 0 is {igpu}, no card of its own: not measured" in trial.said
    # rank 0 would have worked on it
    assert any(line.startswith(f"all-reduce not covered: device 0 is {igpu}") for line in trial.said)
    assert [one["collectives"] for one in found] == [[]] * 4


@pytest.mark.parametrize(
    ("stranger", "said"),
    [("0000:99:00.0", "0000:99:00.0 is none of this host's cards"), (None, "gives no PCI address")],
)
def test_a_device_that_is_no_known_card_is_invalid(tmp_path: Path, stranger: str | None, said: str) -> None:
    found = Trial(tmp_path, [row(0, stranger), *(row(n, bdf) for n, bdf in enumerate(CARDS[1:], 1))]).run()
    valid = [host.address(one) for one in found if one["validity"]["valid"]]
    assert valid == list(CARDS[1:])
    bad = [one for one in found if not one["validity"]["valid"]]
    assert said in reasons(bad[0])
    assert bad[0]["blocks"] == []
    assert f"torch lists 4 devices, and {CARDS[0]} is none of them" in reasons(bad[1])
    assert bad[1]["workers"] == []


@pytest.mark.parametrize(("change", "said"), SICK.values(), ids=SICK)
@pytest.mark.parametrize("device", ["auto", "xpu"])
def test_no_worker_starts_where_one_card_must_not_be_opened(
    tmp_path: Path, change: dict[str, Any], said: str, device: str
) -> None:
    trial = Trial(tmp_path, [row(n, bdf) for n, bdf in enumerate(CARDS)], change)
    found = trial.run(device=device)
    assert trial.starts == 0
    assert [one["validity"]["valid"] for one in found] == [False] * 4
    assert f"card: {CARDS[2]} {said}" in reasons(found[2])
    assert "not opened, because listing the devices opens" in reasons(found[0])
    assert [line for one in found for line in words.brief(one) if " us" in line.split(": invalid")[0]] == []


def test_cards_that_the_command_does_not_have_do_not_count(tmp_path: Path) -> None:
    trial = Trial(tmp_path, [row(0, CARDS[0]), row(1, CARDS[3])], SICK["suspended"][0])
    found = trial.run(cards=[CARDS[0], CARDS[3].upper()])
    assert [(host.address(one), one["validity"]["valid"]) for one in found] == [(CARDS[0], True), (CARDS[3], True)]
    with pytest.raises(ValueError, match=r"no GPU 0000:99:00\.0 on this host; there are 0000:23"):
        survey(trial.reader, Request(["python3"], cards=["0000:99:00.0"]))


def test_on_the_cpu_no_card_is_opened_so_none_stands_against_it(tmp_path: Path) -> None:
    (found,) = Trial(tmp_path, [row(0, None)], SICK["suspended"][0]).run(device="cpu", settings={"DEVICE": "cpu"})
    assert found["validity"]["valid"]
    (found,) = Trial(tmp_path, [row(0, None)], HELD).run(device="cpu", settings={"DEVICE": "cpu"})
    assert found["validity"]["valid"]


def test_without_a_card_auto_is_the_cpu_and_xpu_is_refused(tmp_path: Path) -> None:
    trial = Trial(tmp_path, [row(0, None)], name="virtual-machine")
    (found,) = trial.run(settings={"DEVICE": "cpu"})
    assert found["asked"]["device"] == "cpu"
    assert found["validity"]["valid"]
    assert words.brief(found)[1] == "cpu: CPU figures: they say nothing about an accelerator"
    (found,) = trial.run(device="xpu")
    assert reasons(found).startswith("card: this host has no card for xpu")
    assert trial.starts == 1


def test_cards_that_cannot_be_listed_are_not_no_cards(tmp_path: Path) -> None:
    trial = Trial(
        tmp_path, [row(0, None)], {"remove": ["/sys/bus"], "files": {"/sys/bus/pci/devices": {"error": "EACCES"}}}
    )
    (found,) = trial.run()
    assert "the cards of this host are not known (permission" in reasons(found)
    assert trial.starts == 0


def test_torch_without_an_accelerator_measures_the_cpu_and_says_so(tmp_path: Path) -> None:
    trial = Trial(tmp_path, [row(0, None)])
    (found,) = trial.run(settings={"DEVICE": "cpu"})
    assert words.subject(found) == "cpu"
    assert any("torch has no accelerator here" in line for line in trial.said)


def test_a_listing_that_fails_is_the_reason_for_every_card(tmp_path: Path) -> None:
    trial = Trial(tmp_path, [])
    found = trial.run(settings={"fail_op": "devices", "fail_code": "sys.exit('no level_zero here')"})
    assert trial.starts == 1
    assert [host.address(one) for one in found] == list(CARDS)
    assert all("could not be listed: died: exit status 1: no level_zero here" in reasons(one) for one in found)


def test_a_card_that_fails_while_it_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(tmp_path, [row(n, bdf) for n, bdf in enumerate(CARDS)])
    sick = RecordedReader(replay.changed(replay.host("four-card-gen4"), {**SICK["reset"][0], **DUMPED}))
    looks: list[int] = []

    def look(reader: Any, *rest: Any) -> Any:
        looks.append(1)
        return gather(sick if len(looks) > 6 else reader, *rest)  # after the third card was measured

    monkeypatch.setattr(host, "gather", look)
    found = trial.run()
    assert [one["validity"]["valid"] for one in found] == [True, True, False, True]
    assert "fault during the measurement: xe.engine_reset" in reasons(found[2])
    assert "devcoredump appeared: devcoredump of 0000:43:00.0" in reasons(found[2])
    assert words.brief(found[2])[0].startswith("0000:43:00.0: invalid: ")


def test_a_lost_device_is_invalid(tmp_path: Path) -> None:
    lost = "say(reply='error', kind='device_lost', text='UR_RESULT_ERROR_DEVICE_LOST'); os._exit(0)"
    trial = Trial(tmp_path, [row(n, bdf) for n, bdf in enumerate(CARDS)])
    found = trial.run(cards=CARDS[:1], settings={"fail_op": "block", "fail_after": 3, "fail_code": lost})
    assert "worker: device_lost: UR_RESULT_ERROR_DEVICE_LOST" in reasons(found[0])


def test_at_the_time_limit_everything_is_ended_and_what_was_measured_is_kept(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    hang = f"open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    trial = Trial(tmp_path, [row(n, bdf) for n, bdf in enumerate(CARDS)])
    found = trial.run(timeout=15.0, settings={"fail_op": "start", "fail_code": f"if request['index'] == 1: {hang}"})
    assert [one["validity"]["valid"] for one in found] == [True, False, False, False]
    assert "not measured within the limit of 15 s" in reasons(found[1])
    assert not Path(f"/proc/{pid.read_text()}").exists()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_unequal_cards_are_said(tmp_path: Path) -> None:
    trial = Trial(tmp_path, [row(n, bdf, 1.4 if n == 2 else 1.0) for n, bdf in enumerate(CARDS)])
    found = trial.run()
    assert all(one["validity"]["valid"] for one in found)
    said = words.between(found)
    assert len(said) == 3  # it differs from each of the others
    assert all(line.startswith("unequal cards: launch_us") and CARDS[2] in line for line in said)


def test_a_missing_interface_is_a_configuration_error_and_leaves_the_rest_valid(tmp_path: Path) -> None:
    """That the real worker answers so is tested with it."""
    trial = Trial(tmp_path, [row(n, bdf) for n, bdf in enumerate(CARDS)])
    absent = "say(reply='error', kind='config_error', text='interface eth77 absent')"
    found = trial.run(ranks=None, settings={"fail_op": "store", "fail_code": absent})
    assert [one["validity"]["valid"] for one in found] == [True] * 4
    assert [len(one["collectives"]) for one in found] == [0, 0, 0, 1]
    assert f"{CARDS[3]}: all-reduce not covered: CONFIG_ERROR: interface eth77 absent" in words.brief(found[3])
    out = io.StringIO()
    render(found[3], Console(file=out, width=120))
    assert "all-reduce not covered: CONFIG_ERROR: interface eth77 absent" in out.getvalue()
    assert found[3]["figures"]["collectives"] == {}
    # all four cards are watched while all four work
    assert set(found[3]["before"]["host"]["cards"]) == set(CARDS)


class WithEngine(RecordedReader):
    """A host with a container engine."""

    digest = f"sha256:{'ab' * 32}\n"

    def run(self, argv: Any, *rest: Any, **more: Any) -> Any:
        if argv[0] == "podman":
            return Reading(Output(0, self.digest, ""), " ".join(argv))
        return super().run(argv, *rest, **more)


@pytest.mark.parametrize(("text", "digest"), [(f"{'AB' * 32}\n", f"sha256:{'ab' * 32}"), ("Error: no such image", "")])
def test_the_digest_of_the_image_is_part_of_the_identity(tmp_path: Path, text: str, digest: str) -> None:
    trial = Trial(tmp_path, [row(0, CARDS[0])])
    trial.reader = WithEngine(replay.host("four-card-gen4"))
    trial.reader.digest = text
    engine = tmp_path / "podman"
    engine.write_text('#!/bin/sh\nshift 3; exec "$@"\n')
    engine.chmod(0o755)
    command = [str(engine), "run", "-i", "vllm:1", *fake.PYTHON]
    (found,) = trial.run(cards=CARDS[:1], command=command, image="vllm:1")
    assert found["workers"][0]["identity"]["container_digest"] == digest
    assert found["asked"]["container"]["image"] == "vllm:1"
    assert found["collectives"] == []
    if not digest:
        assert any(line.startswith("the digest of vllm:1 is not known: expected a sha256") for line in trial.said)


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ({"command": []}, "command is empty"),
        ({"command": ["python3", ""]}, "command is empty"),
        ({"device": "gpu"}, "wanted one of auto, xpu, cuda, cpu"),
        ({"ranks": -1}, "wanted 0 to 64"),
        ({"timeout": 0.0}, "wanted seconds"),
    ],
)
def test_mistakes_are_said_before_anything_is_read(mistake: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Request(**{"command": ["python3"], **mistake})


def test_the_way_is_the_one_of_the_recorded_host() -> None:
    assert f"{WAY}/vendor" in replay.host("four-card-gen4")["files"]
