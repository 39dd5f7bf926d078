"""Which accelerator the test host gets: KVM only where a boot was seen to be quick under it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.vm import accel, qemu
from tests.lab.vm.image import Image

MACHINE = {"cpu": "Some CPU", "kernel": "6.18", "qemu": "QEMU emulator version 10.0.2"}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is one with a name, whether QEMU is installed or not."""
    monkeypatch.setattr(accel, "here", lambda: dict(MACHINE))


@pytest.mark.parametrize(
    ("refusal", "tcg", "kvm", "name", "why"),
    [
        ("there is no /dev/kvm", None, None, "tcg", "there is no /dev/kvm"),
        ("", 4.0, 0.5, "kvm", "0.5 s under KVM and 4.0 s under TCG"),
        ("", 4.0, 2.0, "kvm", "2.0 s under KVM"),
        ("", 4.0, 2.1, "tcg", "less than 2 times as quick"),
        ("", 4.0, 4.5, "tcg", "4.5 s under KVM and 4.0 s under TCG: less than"),
        ("", 4.0, None, "tcg", "did not end within 5 s or not as it should, and in 4.0 s under TCG"),
        ("", None, None, "tcg", "did not end within 5 s or not as it should"),
        ("", None, 0.5, "tcg", "no figure to compare it with"),
    ],
)
def test_kvm_is_taken_only_where_it_wins_by_far(
    refusal: str, tcg: float | None, kvm: float | None, name: str, why: str
) -> None:
    chosen, said = accel.decide(refusal, tcg, kvm)
    assert chosen == name
    assert why in said


def test_nothing_is_booted_where_kvm_cannot_be_tried() -> None:
    def measure(vmlinux: Path, name: str) -> float:
        raise AssertionError("booted")

    choice = accel.choose(Path("vmlinux"), refusal=lambda: "there is no /dev/kvm", measure=measure)
    assert choice == accel.Choice("tcg", "there is no /dev/kvm", MACHINE, {})


def test_both_are_measured_where_it_can() -> None:
    figures: dict[str, float | None] = {"tcg": 4.0, "kvm": None}
    choice = accel.choose(Path("vmlinux"), refusal=lambda: "", measure=lambda vmlinux, name: figures[name])
    assert (choice.name, choice.seconds) == ("tcg", figures)
    assert "4.0 s under TCG" in str(choice)
    assert "Some CPU" in str(choice)


def test_a_device_that_is_missing_or_does_not_open_is_said(tmp_path: Path) -> None:
    assert accel.refused(tmp_path / "kvm") == f"there is no {tmp_path}/kvm"
    assert accel.refused(tmp_path) == f"{tmp_path} does not open: Is a directory"
    (tmp_path / "kvm").touch()
    assert accel.refused(tmp_path / "kvm") == ""


def test_an_image_is_resumed_under_what_its_states_were_saved_under(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = Image(tmp_path)
    slow = accel.Choice("tcg", "slow", MACHINE, {"tcg": 4.0, "kvm": None})
    image.use(slow)
    assert image.accelerator == slow
    assert image.unusable() == ""
    image.use(replace(slow, measured_on={**MACHINE, "cpu": "Another"}))
    assert image.unusable() == "", "emulation is the same everywhere"

    monkeypatch.setattr(accel, "refused", lambda: "")
    image.use(replace(slow, name="kvm"))
    assert image.unusable() == ""
    monkeypatch.setattr(accel, "refused", lambda: "there is no /dev/kvm")
    assert image.unusable() == "there is no /dev/kvm"
    image.use(replace(slow, name="kvm", measured_on={**MACHINE, "cpu": "Another"}))
    assert "saved under KVM on another machine" in image.unusable()


@pytest.mark.parametrize("name", qemu.ACCELERATORS)
def test_the_machine_is_put_together_for_that_accelerator(name: str, tmp_path: Path) -> None:
    argv = qemu.arguments(tmp_path, tmp_path / "disk", "raw", 1, name)
    assert argv.count("-accel") == 1
    assert argv[argv.index("-accel") + 1] == qemu.ACCELERATORS[name]
