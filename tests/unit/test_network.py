"""Interfaces and pins: what counts is the last assignment, the place where it acts, and that nothing else is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost.reader import LiveReader
from hostcheck.onhost.readings import environment, network, owners
from hostcheck.onhost.record import record
from hostcheck.onhost.recording import RecordedReader, Recorder, dump, empty
from tests import replay

UNITS = "/etc/systemd/system"
WANTS = f"{UNITS}/multi-user.target.wants"
SECRET = "hunter2-secret"
PARSERS = (network.parse_switch, network.parse_state, network.parse_index, network.parse_routes, network.parse_dev)
LINES = st.sampled_from(
    [
        "[Service]",
        "# FI_TCP_IFACE=eth9",
        "",
        "Environment=",
        "Environment=TOKEN=x CCL_KVS_IFACE=eth1",
        'Environment="FI_TCP_IFACE=eno1" "HF_TOKEN=x"',
        "GLOO_SOCKET_IFNAME='eth0,eth1'",
        "export NCCL_SOCKET_IFNAME=^lo",
        "EnvironmentFile=-/etc/default/vllm",
        'EnvironmentFile="/opt/vllm/env"',
        "ExecStart=/usr/bin/docker run --rm \\",
        "ExecStart=podman run --network host -e CCL_KVS_IFACE=eth3 img",
        "ExecStart=/opt/serve.sh --key x \\",
        "  -e CCL_KVS_IFACE=eth2 \\",
        "  --network=host img",
        "ExecStartPre=/bin/sh -c 'echo performance > /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor'",
        "BindsTo=sys-subsystem-net-devices-enp5s0.device network.target",
        "Network=host",
    ]
)
TEXTS = st.lists(LINES, max_size=12).map("\n".join)


def recorded(files: dict[str, Any], links: dict[str, str] | None = None, **more: Any) -> RecordedReader:
    return RecordedReader({**empty(0), "files": files, "links": links or {}, **more})


def pins(files: dict[str, Any], links: dict[str, str] | None = None) -> list[tuple[str, str, str, str, str]]:
    found = network.read(recorded(files, links)).pins.value or ()
    return [(one.variable, one.value, one.where, one.unit, one.acts) for one in found]


# -- interfaces ----------------------------------------------------------------------------------------


def test_interfaces_of_a_host() -> None:
    host = network.read(RecordedReader(replay.host("four-card-gen4")))
    assert host.interfaces.value is not None
    eno1, lo = host.interfaces.value
    assert (eno1.name, eno1.index, eno1.carrier.value, eno1.virtual, eno1.bdf, eno1.addressed) == (
        "eno1",
        2,
        True,
        False,
        "0000:61:00.0",
        True,
    )
    assert (lo.name, lo.virtual, lo.bdf) == ("lo", True, "")
    assert host.default_route.value == ("eno1",)
    assert (host.pins.value, host.pins_unread.value) == ((), ())


@pytest.mark.parametrize(
    ("files", "carrier", "unread"),
    [
        ({"carrier": "0\n"}, False, None),
        ({"carrier": {"error": "EINVAL"}}, False, None),  # the interface is down
        ({"carrier": {"error": "EACCES"}}, None, "permission"),
        ({"carrier": {"error": "EACCES"}, "operstate": "up\n"}, True, None),
        ({"carrier": "maybe\n"}, None, "not_understood"),
        ({"operstate": "lowerlayerdown\n"}, False, None),
        ({"operstate": "unknown\n"}, None, "absent"),
        ({"mtu": "1500\n"}, None, "absent"),
    ],
)
def test_carrier(files: dict[str, Any], carrier: bool | None, unread: str | None) -> None:
    found = network.read(recorded({f"/sys/class/net/eth1/{name}": text for name, text in files.items()})).interfaces
    assert found.value is not None
    assert (found.value[0].carrier.value, found.value[0].carrier.unread) == (carrier, unread)


def test_what_is_no_interface_is_none() -> None:
    files = {"/sys/class/net/bonding_masters": "bond0\n", "/sys/class/net/bond0/carrier": "1\n"}
    found = network.read(recorded(files)).interfaces.value or ()
    assert [one.name for one in found] == ["bond0"]


def test_refused_missing_and_garbage() -> None:
    assert network.read(recorded({"/sys/class/net": {"error": "EACCES"}})).interfaces.unread == "permission"
    nothing = network.read(recorded({}))
    assert (nothing.interfaces.unread, nothing.default_route.unread) == ("absent", "absent")
    garbage = recorded({"/proc/net/route": "\x00"}, calls={"psutil.net_if_addrs": ["x"]})
    assert network.read(garbage).default_route.unread == "not_text"
    assert network.read(recorded({"/proc/net/route": "no table\n"})).default_route.unread == "not_understood"


def test_without_sysfs_psutil_tells() -> None:
    calls = {
        "psutil.net_if_addrs": {"eth0": [[2, "192.0.2.1", None, None, None]], "lo": []},
        "psutil.net_if_stats": {"eth0": [True, 2, 0, 1500, ""], "lo": {"isup": False}},
    }
    found = network.read(recorded({}, calls=calls)).interfaces.value or ()
    assert [(one.name, one.carrier.value, one.addressed) for one in found] == [
        ("eth0", True, True),
        ("lo", False, False),
    ]
    calls["psutil.net_if_stats"] = {"eth0": []}
    assert network.read(recorded({}, calls=calls)).interfaces.unread == "not_understood"


def test_the_best_default_route_is_first() -> None:
    head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
    rows = (
        ("wlan0", "00000000", "600", "00000000"),
        ("eno1", "00000000", "100", "00000000"),
        ("eno1", "0000A8C0", "0", "00FFFFFF"),
    )
    text = head + "".join(
        f"{name}\t{to}\t0100000A\t0003\t0\t0\t{metric}\t{mask}\t0\t0\t0\n" for name, to, metric, mask in rows
    )
    assert network.parse_routes(text) == ("eno1", "wlan0")


@pytest.mark.parametrize("parse", PARSERS)
@given(text=st.text())
def test_random_text_is_a_value_or_a_value_error(parse: Any, text: str) -> None:
    try:
        parse(text)
    except ValueError:
        pass


@given(
    data=st.recursive(
        st.none() | st.booleans() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_random_data_of_psutil(data: Any) -> None:
    for parse in (network.parse_links, network.parse_up):
        try:
            parse(data)
        except ValueError:
            pass


# -- pins ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (
            {network.COLLECTIVE: "# x\nFI_TCP_IFACE=eth1\n"},
            ("FI_TCP_IFACE", "eth1", f"{network.COLLECTIVE}:2", "", "host"),
        ),
        ({"/etc/environment": 'CCL_KVS_IFACE="eno1"\n'}, ("CCL_KVS_IFACE", "eno1", "/etc/environment:1", "", "host")),
        (
            {"/etc/environment.d/50-ccl.conf": "GLOO_SOCKET_IFNAME=eno1\n"},
            ("GLOO_SOCKET_IFNAME", "eno1", "/etc/environment.d/50-ccl.conf:1", "", "host"),
        ),
        (
            {"/etc/profile.d/ccl.sh": "export CCL_KVS_IFACE='eth1'; umask 22\n"},
            ("CCL_KVS_IFACE", "eth1", "/etc/profile.d/ccl.sh:1", "", "host"),
        ),
        (
            {"/etc/systemd/system.conf": "[Manager]\nDefaultEnvironment=CCL_KVS_IFACE=eth1\n"},
            ("CCL_KVS_IFACE", "eth1", "/etc/systemd/system.conf:2", "", "host"),
        ),
        (
            {f"{UNITS}/vllm.service": '[Service]\nEnvironment="A=1" "CCL_KVS_IFACE=eth1"\n'},
            ("CCL_KVS_IFACE", "eth1", f"{UNITS}/vllm.service:2", "vllm.service", "host"),
        ),
        (
            {"/etc/containers/systemd/vllm.container": "[Container]\nEnvironment=CCL_KVS_IFACE=eth0\n"},
            ("CCL_KVS_IFACE", "eth0", "/etc/containers/systemd/vllm.container:2", "vllm.service", "container"),
        ),
        (
            {"/etc/containers/systemd/v.container": "[Container]\nNetwork=host\nEnvironment=CCL_KVS_IFACE=eth0\n"},
            ("CCL_KVS_IFACE", "eth0", "/etc/containers/systemd/v.container:3", "v.service", "host"),
        ),
        (
            {f"{UNITS}/vllm.service": "[Service]\nExecStart=docker run \\\n # x\n  -e FI_TCP_IFACE=eth0 img\n"},
            ("FI_TCP_IFACE", "eth0", f"{UNITS}/vllm.service:4", "vllm.service", "container"),
        ),
        (
            {f"{UNITS}/vllm.service": "[Service]\nExecStart=docker run -e FI_TCP_IFACE=eth0 \\\n  --net=host img\n"},
            ("FI_TCP_IFACE", "eth0", f"{UNITS}/vllm.service:2", "vllm.service", "host"),
        ),
        (
            {f"{UNITS}/dhcp.service": "[Unit]\nBindsTo=sys-subsystem-net-devices-enp5s0.device\n"},
            ("BindsTo", "enp5s0", f"{UNITS}/dhcp.service:2", "dhcp.service", "host"),
        ),
        (
            {f"{UNITS}/a.service": "[Unit]\nRequires=sys-subsystem-net-devices-br\\x2dlan.device\n"},
            ("BindsTo", "br-lan", f"{UNITS}/a.service:2", "a.service", "host"),
        ),
    ],
)
def test_a_pin_is_found(files: dict[str, Any], wanted: tuple[str, ...]) -> None:
    assert pins(files) == [wanted]


@pytest.mark.parametrize(
    "files",
    [
        {"/etc/environment": "#CCL_KVS_IFACE=eth1\n"},
        {"/etc/environment": "CCL_KVS_IFACE=\n"},
        {"/etc/environment": "MY_CCL_KVS_IFACE=eth1\n"},
        {f"{UNITS}/a.service": "[Service]\nPassEnvironment=CCL_KVS_IFACE\n"},
        {f"{UNITS}/a.service": "[Unit]\nAfter=sys-subsystem-net-devices-enp5s0.device\n"},
        {f"{UNITS}/a.service": "[Service]\nEnvironment=CCL_KVS_IFACE=eth1\nEnvironment=\n"},
    ],
)
def test_no_pin_without_an_assignment(files: dict[str, Any]) -> None:
    assert pins(files) == []


def test_the_last_assignment_of_a_service_wins() -> None:
    files: dict[str, Any] = {
        f"{UNITS}/vllm.service": "[Service]\nEnvironment=CCL_KVS_IFACE=enp5s0\nEnvironmentFile=-/etc/default/vllm\n",
        f"{UNITS}/vllm.service.d/50-net.conf": "[Service]\nEnvironment=CCL_KVS_IFACE=enp7s0 FI_TCP_IFACE=enp7s0\n",
        "/run/systemd/system/vllm.service": "[Service]\nEnvironment=CCL_KVS_IFACE=never\n",
    }
    assert {(one[0], one[1]) for one in pins(files)} == {("CCL_KVS_IFACE", "enp7s0"), ("FI_TCP_IFACE", "enp7s0")}
    files["/etc/default/vllm"] = "CCL_KVS_IFACE=eno1\n"
    assert ("CCL_KVS_IFACE", "eno1", "/etc/default/vllm:1", "vllm.service", "host") in pins(files)
    assert len(pins(files)) == 2


def test_a_unit_of_a_package_that_is_enabled() -> None:
    files = {"/usr/lib/systemd/system/serve.service": "[Service]\nEnvironment=CCL_KVS_IFACE=eth1\n"}
    links = {f"{WANTS}/serve.service": "/usr/lib/systemd/system/serve.service"}
    assert pins(files, links) == [("CCL_KVS_IFACE", "eth1", f"{WANTS}/serve.service:2", "serve.service", "host")]


def test_a_template_gives_its_drop_ins_to_an_instance() -> None:
    files = {f"{UNITS}/serve@.service.d/a.conf": "[Service]\nEnvironment=CCL_KVS_IFACE=eth1\n"}
    files |= {"/usr/lib/systemd/system/serve@.service": "[Service]\n"}
    links = {f"{WANTS}/serve@0.service": "/usr/lib/systemd/system/serve@.service"}
    assert {one[3] for one in pins(files, links)} == {""}  # the same line for template and instance


def test_one_line_that_several_read_is_one_pin() -> None:
    files = {
        network.COLLECTIVE: "CCL_KVS_IFACE=eth1\n",
        f"{UNITS}/a.service": f"[Service]\nEnvironmentFile={network.COLLECTIVE}\n",
    }
    assert pins(files) == [("CCL_KVS_IFACE", "eth1", f"{network.COLLECTIVE}:1", "", "host")]


def test_what_could_not_be_read_is_listed(tmp_path: Path) -> None:
    files = {"/etc/environment": {"error": "EACCES"}, "/etc/profile.d": {"error": "EACCES"}}
    assert network.read(recorded(files)).pins_unread.value == ("/etc/environment", "/etc/profile.d")
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/system/masked.service").symlink_to("/dev/null")
    assert network.read(LiveReader(str(tmp_path))).pins_unread.value == ()


# -- nothing else is kept ------------------------------------------------------------------------------

PRIVATE = {
    "/etc/environment": f"HF_TOKEN={SECRET}\nCCL_KVS_IFACE=eth1\n",
    "/etc/profile.d/x.sh": f"export KEY={SECRET} FI_TCP_IFACE=eth1\n",
    "/etc/default/vllm": f"API_KEY={SECRET}\nGLOO_SOCKET_IFNAME=eth1\n",
    f"{UNITS}/vllm.service": f"[Service]\nEnvironmentFile=/etc/default/vllm\nExecStart=/bin/v {SECRET}\n"
    f"Environment=T={SECRET} CCL_KVS_IFACE=eth2\n",
}


def test_no_secret_is_in_facts_or_recordings() -> None:
    reader = recorded({**PRIVATE, "/proc/sys/kernel/hostname": "h\n"})
    assert SECRET not in repr(network.read(reader))
    recorder = Recorder(reader)
    found = network.read(recorder)
    kept = recorder.recording(0.0)
    del kept["files"][f"{UNITS}/vllm.service"]  # units are reduced with those that others read, by `redact`
    assert SECRET not in dump(kept)
    _, redacted = record(reader)
    assert SECRET not in dump(redacted)
    assert network.read(RecordedReader(redacted)).pins == found.pins
    assert len(found.pins.value or ()) == 4


@given(TEXTS)
def test_a_reduced_text_says_the_same_of_interfaces(text: str) -> None:
    for less in (network.reduced(text), network.beside(owners.reduced(text), text)):
        assert less.count("\n") == text.count("\n")
        assert network.parse_unit(less) == network.parse_unit(text)
        assert network.parse_quadlet(less) == network.parse_quadlet(text)
        assert network.parse_assignments(less) == network.parse_assignments(text)
        assert "TOKEN" not in less
        assert "--key" not in less
    governor = owners.SETTINGS["cpu_governor"]
    both = network.beside(owners.reduced(text), text)
    assert owners.parse_script(both, governor) == owners.parse_script(text, governor)


@given(st.text())
def test_any_text_reduces_to_the_same(text: str) -> None:
    assert network.parse_unit(network.reduced(text)) == network.parse_unit(text)


@given(st.text(alphabet=st.characters(exclude_characters="\n")))
def test_a_foreign_line_moves_the_number_only(foreign: str) -> None:
    found = network.parse_assignments(f"{foreign}\nCCL_KVS_IFACE=eth1\n")
    assert (2, "CCL_KVS_IFACE", "eth1") in found


@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("CCL_ZE_IPC_EXCHANGE", True),
        ("FI_PROVIDER", True),
        ("ZE_AFFINITY_MASK", True),
        ("NEOReadDebugKeys", True),
        ("WORLD_SIZE", True),
        ("HF_TOKEN", False),
        ("PATH", False),
        ("VLLM_API_KEY", False),
        ("CCL_SECRET", False),
        ("FI_PSM2_UUID", False),
        ("XCCL_KVS_IFACE", False),
    ],
)
def test_allowed_variables(name: str, may: bool) -> None:
    assert environment.allowed(name) is may
