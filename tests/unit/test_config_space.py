"""Configuration space: registers become values, and broken or refused bytes become reasons."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost.readings import config_space
from tests.hosts.build_pci import (
    AER,
    EXPRESS,
    INTEGRATED,
    L1SS,
    REBAR,
    ROOT_PORT,
    UPSTREAM,
    Bar,
    Function,
    Link,
    config,
)

UPLINK = Function(
    "0000:21:00.0", "8086", "e2ff", "060400", port_type=UPSTREAM, link=Link(32, 16, 8, 4, aspm=3, enabled=2),
    buses=(0x22, 0x24), aer=True, acs=(0x5F, 0x1D),
)  # fmt: skip


def patched(function: Function, offset: int, form: str, *values: int) -> bytes:
    space = bytearray(config(function))
    struct.pack_into("<" + form, space, offset, *values)
    return bytes(space)


def test_link_registers_of_a_port() -> None:
    space = config_space.parse(config(UPLINK))
    assert space.port_type == config_space.UPSTREAM
    assert space.link_cap is not None
    assert space.link_sta is not None
    assert space.link_ctl is not None
    assert (config_space.speed(space.link_cap), config_space.max_width(space.link_cap)) == (32.0, 16)
    assert (config_space.speed(space.link_sta), config_space.width(space.link_sta)) == (8.0, 4)
    assert config_space.aspm(space.link_ctl) == "l1"
    assert space.acs == ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")


@given(
    speed=st.sampled_from([2.5, 5.0, 8.0, 16.0, 32.0]),
    width=st.sampled_from(config_space.WIDTHS),
    now=st.sampled_from([2.5, 5.0, 8.0, 16.0, 32.0]),
    lanes=st.sampled_from((0, *config_space.WIDTHS)),
    enabled=st.integers(0, 3),
    port_type=st.sampled_from([UPSTREAM, ROOT_PORT]),
)
def test_every_link_comes_back(speed: float, width: int, now: float, lanes: int, enabled: int, port_type: int) -> None:
    link = Link(speed, width, now, lanes, aspm=3, enabled=enabled)
    function = Function("0000:01:00.0", "8086", "e2ff", "060400", port_type=port_type, link=link, buses=(2, 3))
    space = config_space.parse(config(function))
    assert space.link_cap is not None
    assert space.link_sta is not None
    assert (config_space.speed(space.link_cap), config_space.width(space.link_cap)) == (speed, width)
    assert (config_space.speed(space.link_sta), config_space.width(space.link_sta)) == (now, lanes)
    assert space.link_ctl is not None
    assert config_space.aspm(space.link_ctl) == ("disabled", "l0s", "l1", "l0s l1")[enabled]


@pytest.mark.parametrize("code", [0, 8, 15])
def test_a_speed_that_the_specification_does_not_have_is_no_value(code: int) -> None:
    with pytest.raises(ValueError, match="speed code"):
        config_space.speed(code)


def test_no_width_is_an_answer_for_the_status_and_none_for_the_capability() -> None:
    assert config_space.width(0x2001) == 0
    with pytest.raises(ValueError, match="width 0"):
        config_space.max_width(0x2001)
    with pytest.raises(ValueError, match="width 3"):
        config_space.width(3 << 4)


def test_aer_bits_have_the_kernels_names() -> None:
    data = patched(UPLINK, AER + 4, "III", 1 << 14 | 1 << 4, 1 << 20, 1 << 18)
    data = data[: AER + 0x10] + struct.pack("<II", 1 << 0 | 1 << 12, 1 << 13) + data[AER + 0x18 :]
    aer = config_space.parse(data).aer
    assert aer is not None
    assert aer.uncorrectable_status == ("DLP", "CmpltTO")
    assert aer.uncorrectable_mask == ("UnsupReq",)
    assert aer.uncorrectable_severity == ("MalfTLP",)
    assert aer.correctable_status == ("RxErr", "Timeout")
    assert aer.correctable_mask == ("NonFatalErr",)


def test_without_aer_there_is_none_and_with_256_bytes_it_is_not_known() -> None:
    plain = Function("0000:01:00.0", "8086", "e2ff", "060400", port_type=UPSTREAM, link=Link(8, 4, 8, 4), buses=(2, 3))
    assert (config_space.parse(config(plain)).aer, config_space.parse(config(plain)).extended) == (None, True)
    short = config_space.parse(config(UPLINK)[:256])
    assert (short.aer, short.extended, short.link_sta is not None) == (None, False, True)


def test_sizes_of_a_resizable_bar() -> None:
    gpu = Function(
        "0000:23:00.0", "8086", "e20b", "030000", port_type=0, link=Link(2.5, 1, 2.5, 1), rebar=True,
        bars=(Bar(2, 0, 16 << 30, "pref64"),),
    )  # fmt: skip
    sizes = config_space.parse(config(gpu)).bar_sizes
    assert sizes == {2: tuple(256 << 20 << step for step in range(7))}
    # two BARs that can be resized, and a size above 128 TiB, which is told in the control register
    two = patched(gpu, REBAR + 4, "IIII", 1 << 4, 0 | 2 << 5, 0, 2 | 1 << 16)
    assert config_space.parse(two).bar_sizes == {0: (1 << 20,), 2: (1 << 48,)}


def test_functions_inside_the_root_complex_have_no_link() -> None:
    graphics = Function("0000:00:02.0", "8086", "a780", "030000", port_type=INTEGRATED)
    space = config_space.parse(config(graphics))
    assert (space.port_type, space.link_cap) == (config_space.INTEGRATED, None)


def test_a_function_of_conventional_pci_has_no_express_capability() -> None:
    space = config_space.parse(config(Function("0000:00:1f.0", "8086", "7a04", "060100")))
    assert (space.port_type, space.link_sta, space.extended) == (None, None, False)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xff" * 4096, "does not answer"),
        (b"\x86\x80" + b"\0" * 12 + b"\x7f" + b"\0" * 241, "header type 7f"),
        (b"", "0 bytes"),
        (config(UPLINK)[:64], "end before"),
        (patched(UPLINK, 0x34, "B", 0x20), "leads to 0x20"),
        (patched(UPLINK, 0x41, "B", 0x40), "leads to 0x40"),
        (patched(UPLINK, 0x100, "I", 0x0B | 1 << 16 | 0x40 << 20), "leads to 0x40"),
    ],
)
def test_what_is_no_configuration_space_says_why(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        config_space.parse(data)


@given(st.integers(0, 4096))
def test_truncated_space_is_a_value_error_or_true(length: int) -> None:
    whole = config_space.parse(config(UPLINK))
    try:
        space = config_space.parse(config(UPLINK)[:length])
    except ValueError:
        return
    assert (space.link_cap, space.link_sta, space.link_ctl) == (whole.link_cap, whole.link_sta, whole.link_ctl)


@given(st.binary(min_size=64, max_size=4096))
def test_random_bytes_raise_nothing_but_value_error(data: bytes) -> None:
    try:
        config_space.parse(data)
    except ValueError:
        pass


def test_a_port_tells_that_its_link_trains_or_is_not_active() -> None:
    port = Function(
        "0000:20:01.1", "1022", "1483", "060400", port_type=ROOT_PORT, link=Link(16, 16, 16, 16), buses=(1, 2)
    )
    assert config_space.parse(config(port)).troubles == ()
    assert config_space.parse(patched(port, EXPRESS + 0x12, "H", 0x1904)).troubles == ("training", "inactive")
    assert config_space.parse(config(UPLINK)).troubles == ()  # an upstream port cannot tell that its link is active


def test_substates_of_l1_are_named_as_enabled() -> None:
    card = replace(UPLINK, l1ss=True)
    assert config_space.parse(config(card)).l1_substates == ()
    assert config_space.parse(patched(card, L1SS + 8, "I", 0x9)).l1_substates == ("PCI-PM_L1.2", "ASPM_L1.1")
    assert config_space.parse(config(card)[:256]).l1_substates is None
    assert config_space.parse(config(UPLINK)).l1_substates is None
