"""Trials over boots: the statistics against scipy, what may be counted, and that nothing can be changed unnoticed."""

from __future__ import annotations

import copy
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from hostcheck import boots, receipts
from hostcheck.boots import Boot
from hostcheck.onhost.probe import host, schedule
from hostcheck.onhost.probe import receipt as raw
from hostcheck.onhost.recording import RecordedReader
from tests import fake_worker as fake
from tests import replay
from tests.unit.test_probe_guards import SICK

VERDICTS = ("improved", "regressed", "no_change")
CARD = "0000:23:00.0"
A_LINE = "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro quiet"
CLAIM = boots.claim_of(
    {
        "setting": "kernel_arguments",
        "wanted": {"present": ["iommu=pt"], "absent": ["splash"]},
        "arms": {"A": "as it was", "B": "iommu=pt"},
        "card": CARD,
    }
)


@functools.cache
def base() -> dict[str, Any]:
    """A made-up profile, cut to its first pair."""
    receipt = fake.profile()
    return {**receipt, "begun": {"sham": 1}, "blocks": receipt["blocks"][:2]}


def boot_receipt(number: int, level: float, host: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A sealed receipt of one boot in which every batch of launches took ``level`` us per add.

    One sample per block is enough: what is tested is what is made of a boot's figure.
    """
    receipt = copy.deepcopy(base())
    for block in receipt["blocks"]:
        samples = [round(level * 1000 * 400)]
        series = {"unit": "ns", "samples": samples, "per_sample": 400, "sum": sum(samples)}
        block["metrics"] = {"launch_us": {**series, "exercised": {"n": 400, "how": "made up"}}}
    receipt["taken_at"] = f"2026-03-{1 + number // 24:02d}T{number % 24:02d}:00:00Z"
    identity = changes.pop("identity", {})
    for worker in receipt["workers"]:
        worker["identity"] = {**worker["identity"], **identity}
    calm = {**fake.CALM, "host": {"card": CARD, "kernel": "7.0", "boot_id": f"boot-{number}", **host}}
    return raw.seal({**receipt, "before": calm, "after": calm, **changes})


def boot(arm: str, number: int, level: float, run: int | None = None, **changes: Any) -> Boot:
    line = A_LINE if arm == "A" else f"{A_LINE} iommu=pt"
    host = {"command_line": line, **changes.pop("host", {})}
    return Boot(arm, f"{arm}{number}.json", boot_receipt(number, level, host, **changes), run)


def by_turns(a: Sequence[float], b: Sequence[float], **changes: Any) -> list[Boot]:
    """Boots of both arms by turns, as long as both last."""
    found = []
    for number in range(max(len(a), len(b))):
        if number < len(a):
            found.append(boot("A", 2 * number, a[number], **changes))
        if number < len(b):
            found.append(boot("B", 2 * number + 1, b[number], **changes))
    return found


def result(found: Sequence[Boot], claim: Mapping[str, Any] = CLAIM, restore: str = "") -> dict[str, Any]:
    return boots.derive(claim, found, restore)


LEVELS = st.lists(st.floats(1.0, 100.0).map(lambda x: round(x, 3)), min_size=4, max_size=4, unique=True)


@given(LEVELS, LEVELS)
def test_p_and_ratio_are_those_of_scipy(a: list[float], b: list[float]) -> None:
    figures = result(by_turns(a, b))["verdict"]["figures"]
    if len({*a, *b}) == 8:  # scipy's exact distribution knows no ties
        assert figures["p"] == pytest.approx(scipy.stats.mannwhitneyu(a, b, method="exact").pvalue, rel=1e-6)
    ranks = scipy.stats.rankdata([*a, *b])
    again = scipy.stats.permutation_test(
        (ranks[:4], ranks[4:]), lambda x, y, axis: x.sum(axis=axis), vectorized=True, n_resamples=math.inf
    )
    assert figures["p"] == pytest.approx(min(1.0, again.pvalue), rel=1e-6)
    middle = sorted(math.log(y / x) for x in a for y in b)
    assert figures["ratio"] == pytest.approx(math.exp((middle[7] + middle[8]) / 2), rel=1e-6)


@given(
    st.lists(st.floats(0.5, 100.0), max_size=9),
    st.lists(st.floats(0.5, 100.0), max_size=3),
    st.integers(1, 6),
    st.booleans(),
)
def test_fewer_than_four_boots_of_an_arm_never_give_a_verdict(
    many: list[float], few: list[float], per_arm: int, swapped: bool
) -> None:
    a, b = (few, many) if swapped else (many, few)
    said = result(by_turns(a, b), {**CLAIM, "per_arm": per_arm})["verdict"]
    assert said["word"] not in VERDICTS
    assert "ratio" not in said["figures"]
    assert "latency of B" not in said["sentence"]


def test_three_against_three_is_descriptive_however_far_apart_they_are() -> None:
    said = result(by_turns([10.0, 11.0, 12.0], [1.0, 1.1, 1.2]))["verdict"]
    assert said["word"] == "inconclusive"
    assert said["sentence"] == (
        "launch_us (median of blocks, one figure per boot): unpaired, descriptive only: "
        "A (as it was) 10 to 12 us in 3 boots; B (iommu=pt) 1 to 1.2 us in 3 boots"
    )


def test_four_against_four() -> None:
    faster = result(by_turns([3.0, 3.1, 3.2, 3.05], [2.4, 2.5, 2.45, 2.3]))
    assert faster["verdict"]["word"] == "improved"
    assert faster["verdict"]["figures"]["p"] == pytest.approx(0.0286, abs=1e-4)
    assert "improved; latency of B (iommu=pt) / latency of A (as it was) = 0.7" in faster["verdict"]["sentence"]
    assert "over 4 and 4 boots, p 0.029" in faster["verdict"]["sentence"]
    slower = result(by_turns([2.4, 2.5, 2.45, 2.3], [3.0, 3.1, 3.2, 3.05]))
    assert slower["verdict"]["word"] == "regressed"
    same = result(by_turns([3.0, 3.01, 3.02, 2.99], [3.0, 3.015, 3.01, 2.98]))
    assert same["verdict"]["word"] == "no_change"
    assert faster["told_by"] == {"command_line": {"A": "", "B": "iommu=pt"}}
    assert faster["also"] == {}


def test_boots_between_two_looks_decide_nothing() -> None:
    """Looking after every boot would find something sooner or later; so there are two looks, named before."""
    mixed_a, mixed_b = [3.0, 3.5, 3.0, 3.5], [3.2, 3.1, 3.6, 3.3]
    first = result(by_turns(mixed_a, mixed_b))["verdict"]
    assert (first["word"], first["figures"]["look"]) == ("inconclusive", 1)
    between = result(by_turns([*mixed_a, 3.6, 3.7, 3.8], [*mixed_b, 2.0, 2.1, 2.2]))["verdict"]
    assert between["figures"] == first["figures"]
    second = result(by_turns([*mixed_a, 3.6, 3.7, 3.8, 3.9], [*mixed_b, 2.0, 2.1, 2.2, 2.3]))["verdict"]
    assert second["figures"]["look"] == 2
    assert second["figures"]["boots_a"] == 8


def test_boots_after_a_verdict_do_not_change_it() -> None:
    four = by_turns([3.0, 3.1, 3.2, 3.05], [2.4, 2.5, 2.45, 2.3])
    later = [boot("A", 50, 1.0), boot("B", 51, 9.0)]
    assert result([*later, *four])["verdict"] == result(four)["verdict"]


def test_more_boots_planned_are_waited_for() -> None:
    said = result(by_turns([3.0, 3.1, 3.2, 3.05], [2.4, 2.5, 2.45, 2.3]), {**CLAIM, "per_arm": 6})["verdict"]
    assert said["word"] == "inconclusive"
    assert said["reasons"] == ["unpaired, descriptive only: 4 and 4 boots, the first look is at 6 of each arm"]


def test_a_receipt_says_which_boot_it_was_and_how_it_was_started_but_no_secret() -> None:
    """Also one of a card that must not be opened: it is made from the host's own files alone."""
    line = "BOOT_IMAGE=/vmlinuz ro iommu=pt rd.password=letmein -- single\n"
    asleep = SICK["suspended"][0]["files"]
    recorded = replay.changed(replay.host("four-card-gen4"), {"files": {**asleep, "/proc/cmdline": line}})
    (receipt, *_) = host.probe(RecordedReader(recorded), host.Request(command=["false"]))
    seen = receipt["before"]["host"]
    assert seen["boot_id"] == "5b0f8d8e-2f6a-4c0b-9d0e-6a1f1c2b3d45"
    assert seen["command_line"] == "BOOT_IMAGE=/vmlinuz ro iommu=pt rd.password=[removed]"
    assert {card["bar2_mib"] for card in seen["cards"].values()} == {32768}
    assert "letmein" not in json.dumps(receipt)


# -- what may be counted --------------------------------------------------------------------------------------------


def test_a_boot_counts_once() -> None:
    twice = [boot("A", 1, 3.0), boot("A", 2, 3.1, host={"boot_id": "boot-1"})]
    with pytest.raises(boots.Refused, match=r"A2\.json: was taken in the same boot as A1\.json"):
        result(twice)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (lambda: Boot("A", "x.json", fake.profile()), "is about 0000:23:00.0, wanted 0000:43:00.0"),
        (lambda: boot("A", 1, 3.0, host={"boot_id": ""}), "does not say which boot it was"),
        (lambda: boot("A", 1, 3.0, host={"command_line": None}), "with which command line"),
        (
            lambda: boot("B", 1, 3.0, host={"command_line": A_LINE}),
            "is no boot of arm B: arm B is iommu=pt (no splash)",
        ),
        (
            lambda: boot("B", 1, 3.0, host={"command_line": f"{A_LINE} iommu=pt splash"}),
            "its command line is not that: BOOT",
        ),
        (lambda: boot("A", 1, 3.0, host={"command_line": f"{A_LINE} iommu=pt"}), "is no boot of arm A"),
        (lambda: Boot("A", "t.json", {**base(), "kind": "trial"}), "is the receipt of a trial"),
    ],
)
def test_what_cannot_be_counted_is_refused(found: Callable[[], Boot], said: str) -> None:
    one = found()
    with pytest.raises(boots.Refused) as refused:
        result([one], {**CLAIM, "card": "0000:43:00.0"} if one.file == "x.json" else CLAIM)
    assert said in str(refused.value)


def test_a_boot_that_is_invalid_is_left_out_and_named_and_a_fifth_of_them_is_too_many() -> None:
    a, b = [3.0, 3.1, 3.2, 3.05, 3.0], [2.4, 2.5, 2.45, 2.3, 2.4]
    bad = {**fake.CALM, "alarms": ["fan"]}
    one = boot("B", 40, 2.4, before={**bad, "host": boot("B", 40, 2.4).receipt["before"]["host"]})
    said = result([*by_turns(a, b), one])["verdict"]
    assert said["word"] == "improved"
    assert said["notes"] == ["left out: boot 11 (B): invalid: alarm: fan"]
    few = result([*by_turns([3.0], [2.4]), one])["verdict"]
    assert (few["word"], few["reasons"]) == ("invalid", ["2 of 3 boots gave a figure, fewer than 80 %"])


def test_the_metric_must_have_been_measured() -> None:
    said = result(by_turns([3.0], [3.0]), {**CLAIM, "metric": "graph_replay_us"})
    assert [row["problem"] for row in said["boots"]] == ["graph_replay_us was not measured"] * 2
    assert said["verdict"]["word"] == "invalid"


def test_an_old_value_that_did_not_come_back_makes_it_invalid() -> None:
    found = by_turns([3.0, 3.1, 3.2, 3.05], [2.4, 2.5, 2.45, 2.3])
    said = result(found, restore="the host did not come back")["verdict"]
    assert (said["word"], said["reasons"]) == ("invalid", ["restore failed: the host did not come back"])


def test_another_torch_in_one_boot_makes_it_invalid_and_a_declared_change_does_not() -> None:
    found = by_turns([3.0, 3.1, 3.2, 3.05], [2.4, 2.5, 2.45])
    other = boot("B", 9, 2.4, identity={"torch": "2.14.0"})
    said = result([*found, other])["verdict"]
    assert said["word"] == "invalid"
    assert said["reasons"] == ["identity changed: torch 2.13.0+made-up -> 2.14.0"]
    claim = boots.claim_of(
        {"setting": "by_hand", "arms": {"A": "2.13", "B": "2.14"}, "card": CARD, "evidence": ["torch"]}
    )
    pairs = [
        (boot("A", 2 * n, 3.0 + n / 100), boot("B", 2 * n + 1, 2.4 + n / 100, identity={"torch": "2.14.0"}))
        for n in range(4)
    ]
    moved = result([one for pair in pairs for one in pair], claim)
    assert moved["verdict"]["word"] == "improved"
    assert moved["told_by"] == {"torch": {"A": "2.13.0+made-up", "B": "2.14.0"}}


def test_arms_that_nothing_tells_apart_are_vacuous() -> None:
    levels = ([3.0, 3.1, 3.2, 3.05], [2.4, 2.5, 2.45, 2.3])
    claim = boots.claim_of({"setting": "by_hand", "arms": {"A": "BIOS 1", "B": "BIOS 2"}, "card": CARD})
    same = {"host": {"command_line": A_LINE}}
    said = result(by_turns(*levels, **copy.deepcopy(same)), claim)["verdict"]
    assert said["word"] == "vacuous"
    assert "nothing that was read of the host differs between the arms" in said["sentence"]
    assert "ratio" not in said["figures"]
    named = result(by_turns(*levels), {**claim, "evidence": ["bios"]})["verdict"]
    assert (named["word"], "bios does not differ" in named["sentence"]) == ("vacuous", True)


def test_a_bios_that_a_person_changed_is_evidence_and_what_else_changed_is_told() -> None:
    claim = boots.claim_of(
        {"setting": "by_hand", "arms": {"A": "BIOS 1.2", "B": "BIOS 1.3"}, "card": CARD, "evidence": ["bios"]}
    )
    found = []
    for number, level in enumerate([3.0, 2.4, 3.1, 2.5, 3.2, 2.45, 3.05, 2.3]):
        arm = "AB"[number % 2]
        host = {"bios": "1.2" if arm == "A" else "1.3", "governor": "schedutil" if arm == "A" else "performance"}
        found.append(boot(arm, number, level, host={**host, "command_line": A_LINE, "load": str(number)}))
    said = result(found, claim)
    assert said["verdict"]["word"] == "improved"
    assert said["told_by"] == {"bios": {"A": "1.2", "B": "1.3"}}
    assert said["also"] == {"governor": {"A": "schedutil", "B": "performance"}}


def test_words_that_come_and_go_by_themselves_tell_nothing() -> None:
    claim = {**CLAIM, "setting": "pcie_aspm", "wanted": {"policy": "performance"}}
    found = [boot("AB"[n % 2], n, 3.0, host={"command_line": f"{A_LINE} x={n}"}) for n in range(8)]
    said = result(found, claim)["verdict"]
    assert said["word"] == "vacuous"
    assert "command_line does not differ" in said["sentence"]


def test_one_arm_after_the_other_is_said() -> None:
    found = [boot("A", n, 3.0 + n / 100) for n in range(4)] + [boot("B", 10 + n, 2.4 + n / 100) for n in range(4)]
    notes = result(found)["verdict"]["notes"]
    assert any(note.startswith("not by turns") for note in notes)
    assert not any(
        note.startswith("not by turns") for note in result(by_turns([3.0] * 4, [2.0] * 4))["verdict"]["notes"]
    )


def test_without_the_kernel_log_there_is_no_verdict() -> None:
    blind = {**fake.CALM, "log": {"read": False, "fault_lines": []}}
    found = []
    for one in by_turns([3.0, 3.1, 3.2, 3.05], [2.4, 2.5, 2.45, 2.3]):
        seen = {**blind, "host": one.receipt["before"]["host"]}
        found.append(Boot(one.arm, one.file, raw.seal({**one.receipt, "before": seen, "after": seen})))
    said = result(found)["verdict"]
    assert said["word"] == "inconclusive"
    assert "kernel log was not readable" in said["reasons"][0]


@pytest.mark.parametrize(
    "wrong", [{"per_arm": 0}, {"metric": 3}, {"arms": {"C": "x"}}, {"typo": 1}, {"statistic": "mode"}]
)
def test_a_wrong_claim_is_refused_with_the_place(wrong: dict[str, Any]) -> None:
    with pytest.raises(boots.Refused, match=next(iter(wrong))):
        boots.claim_of({"setting": "by_hand", "arms": {"A": "a", "B": "b"}, **wrong})


# -- the document ---------------------------------------------------------------------------------------------------


def kept(folder: Path, seed: int = 3) -> Path:
    """A document of one run of four boots per arm, and its receipts, in a folder."""
    order = schedule.boots(seed, 4)
    levels = {"A": [3.0, 3.1, 3.2, 3.05], "B": [2.4, 2.5, 2.45, 2.3]}
    found = []
    for number, arm in enumerate(order):
        one = boot(arm, number, levels[arm].pop(), run=0)
        found.append(one)
        (folder / one.file).write_text(json.dumps(one.receipt))
    document = boots.seal("gpu-1", "2026-03-02T00:00:00Z", CLAIM, [{"seed": seed, "per_arm": 4}], found, "")
    path = folder / "boots.json"
    path.write_text(json.dumps(document))
    return path


def resealed(document: Mapping[str, Any]) -> dict[str, Any]:
    return {**document, "sha256": raw.digest(document)}


def test_a_document_verifies_from_its_receipts(tmp_path: Path) -> None:
    path = kept(tmp_path)
    assert boots.problems(path, boots.load(path)) == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("verdict", "word"), "regressed"),
        (("verdict", "sentence"), "twice as fast"),
        (("verdict", "figures", "p"), 0.01),
        (("boots", 0, "arm"), None),
        (("boots", 0, "figure"), 2.0),
        (("boots", 0, "boot_id"), "another"),
        (("claim", "per_arm"), 3),
        (("claim", "wanted"), {"present": ["iommu=on"]}),
        (("claim", "metric"), "launch_sync_us"),
        (("restore",), "no"),
        (("told_by",), {}),
        (("runs", 0, "seed"), 4),
        (("runs",), []),
    ],
)
def test_nothing_can_be_changed_even_when_the_hash_is_made_again(
    tmp_path: Path, place: tuple[Any, ...], value: Any
) -> None:
    path = kept(tmp_path)
    document = json.loads(path.read_text())
    holder: Any = document
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value if value is not None else {"A": "B", "B": "A"}[holder[place[-1]]]
    assert boots.problems(path, resealed(document)) != []


def test_a_receipt_that_was_changed_or_is_gone_is_found(tmp_path: Path) -> None:
    path = kept(tmp_path)
    document = boots.load(path)
    file = tmp_path / document["boots"][2]["file"]
    receipt = json.loads(file.read_text())
    receipt["blocks"][0]["metrics"]["launch_us"]["samples"][0] += 1
    file.write_text(json.dumps(receipt))
    assert any("sum written" in problem for problem in boots.problems(path, document))
    file.write_text(json.dumps(resealed(receipt)))
    assert any("the document names" in problem for problem in boots.problems(path, document))
    file.unlink()
    assert any("No such file" in problem for problem in boots.problems(path, document))


def test_a_file_that_is_neither_is_refused(tmp_path: Path) -> None:
    path = kept(tmp_path)
    document = json.loads(path.read_text())
    for text in ("x", json.dumps({**document, "extra": 1}), json.dumps({**document, "schema": "hostcheck/boots/2"})):
        path.write_text(text)
        with pytest.raises(receipts.NotAReceipt):
            boots.load(path)
