"""net.iface: judged where a pin acts, by the rule of its variable, and never good where something was not read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.checks import network
from hostcheck.findings import Finding
from hostcheck.onhost.redact import Redactor
from tests import replay

HOST = "four-card-gen4"
ENV = "/etc/hostcheck/collective.env"
ID = "2a" * 32
NET = "/sys/class/net"


def interface(name: str, carrier: Any = "1\n", index: int = 9) -> dict[str, Any]:
    return {f"{NET}/{name}/carrier": carrier, f"{NET}/{name}/ifindex": f"{index}\n"}


def dev(*names: str) -> str:
    return "Inter-|   Receive\n face |bytes\n" + "".join(f"  {name}: 1 2\n" for name in names)


def process(
    pid: int, names: tuple[str, ...], environ: Any, cgroup: str = f"/system.slice/docker-{ID}.scope"
) -> dict[str, Any]:
    return {
        f"/proc/{pid}/comm": "python\n",
        f"/proc/{pid}/cgroup": f"0::{cgroup}\n",
        f"/proc/{pid}/net/dev": dev(*names),
        f"/proc/{pid}/environ": environ,
    }


def links(pid: int, namespace: str = "net:[4026532999]") -> dict[str, str]:
    return {f"/proc/{pid}/fd/5": "/dev/dri/renderD129", f"/proc/{pid}/ns/net": namespace}


def judged(change: dict[str, Any], expect: dict[str, Any] | None = None, host: str = HOST) -> list[Finding]:
    report = replay.report(replay.changed(replay.host(host), change), expect)
    return [one for one in report.findings if one.id == "net.iface"]


def said(change: dict[str, Any], expect: dict[str, Any] | None = None, host: str = HOST) -> list[tuple[str, str]]:
    return sorted((one.subject.name, one.status.value) for one in judged(change, expect, host))


@pytest.mark.parametrize(
    ("variable", "value", "status"),
    [
        ("CCL_KVS_IFACE", "eno1", "ok"),
        ("CCL_KVS_IFACE", "no", "ok"),  # a part of the name is enough
        ("CCL_KVS_IFACE", "eno2", "fail"),
        ("CCL_KVS_IFACE", "lo", "ok"),
        ("FI_TCP_IFACE", "eno1", "ok"),
        ("FI_TCP_IFACE", "eno", "fail"),
        ("FI_VERBS_IFACE", "eno", "ok"),
        ("GLOO_SOCKET_IFNAME", "eno1,lo", "ok"),
        ("GLOO_SOCKET_IFNAME", "eno1,eth1", "fail"),
        ("NCCL_SOCKET_IFNAME", "eth,eno", "ok"),
        ("NCCL_SOCKET_IFNAME", "=eno", "fail"),
        ("NCCL_SOCKET_IFNAME", "=eno1", "ok"),
        ("NCCL_SOCKET_IFNAME", "^docker", "ok"),
        ("NCCL_SOCKET_IFNAME", "ib", "fail"),
        ("CCL_KVS_IFACE", "${IFACE}", "ok"),
    ],
)
def test_each_variable_by_its_own_rule(variable: str, value: str, status: str) -> None:
    assert (value, status) in said({"files": {ENV: f"{variable}={value}\n"}})


@pytest.mark.parametrize("carrier", ["0\n", {"error": "EINVAL"}])
def test_an_interface_without_carrier(carrier: Any) -> None:
    (found,) = judged({"files": {**interface("eth1", carrier), ENV: "CCL_KVS_IFACE=eth1\n"}})
    assert (found.status.value, "no carrier" in found.seen) == ("fail", True)


def test_a_carrier_that_could_not_be_read() -> None:
    change = {"files": {**interface("eth1", {"error": "EACCES"}), ENV: "CCL_KVS_IFACE=eth1\n"}}
    assert said(change) == [("eth1", "unknown")]


def test_one_finding_for_all_places_that_name_it() -> None:
    files = {
        ENV: "CCL_KVS_IFACE=enp5s0\nFI_TCP_IFACE=enp5s0\n",
        "/etc/systemd/system/a.service": "[Service]\nEnvironment=CCL_KVS_IFACE=enp5s0\n",
    }
    (found,) = judged({"files": files})
    assert found.status.value == "fail"
    assert all(where in found.seen for where in (f"{ENV}:1", f"{ENV}:2", "a.service:2", "eno1"))
    assert "playbooks/apply.yml" in found.next_step


def test_the_next_step_names_the_file_and_an_interface_that_exists() -> None:
    (found,) = judged({"files": {"/etc/environment": "CCL_KVS_IFACE=enp5s0\n"}})
    assert found.next_step == "sudoedit /etc/environment  # CCL_KVS_IFACE=eno1"


def test_a_pin_is_judged_on_a_host_without_gpu_too() -> None:
    assert said({"files": {ENV: "CCL_KVS_IFACE=enp5s0\n"}}, host="intel-hybrid") == [("enp5s0", "fail")]
    assert said({}, host="intel-hybrid") == [("host", "not_applicable")]


def test_a_declared_interface() -> None:
    wish = {"settings": {"collective_env": {"interface": {"name": "fabric0"}}}}
    assert said({}, wish) == [("fabric0", "fail"), ("host", "ok")]
    assert said({"files": interface("fabric0")}, wish) == [("fabric0", "ok"), ("host", "ok")]
    variables = {"settings": {"collective_env": {"variables": {"GLOO_SOCKET_IFNAME": "eth7", "CCL_LOG_LEVEL": "info"}}}}
    assert said({}, variables) == [("eth7", "fail"), ("host", "ok")]


MAC, OTHER = "52:54:00:00:01:01", "52:54:00:00:01:02"


def wish(**interface: str) -> dict[str, Any]:
    return {"settings": {"collective_env": {"interface": interface}}}


def two(env: str = "", **addresses: Any) -> dict[str, Any]:
    """A change that leaves the host eth1 and eth2, with those MACs and addresses (family, text)."""
    files: dict[str, Any] = {f"{NET}/eth{number}/address": f"{mac}\n" for number, mac in ((1, MAC), (2, OTHER))}
    files |= {**interface("eth1"), **interface("eth2")} | ({ENV: env} if env else {})
    known = {"lo": [[2, "127.0.0.1"]], "eth1": [[2, "10.1.0.7"], [17, MAC]], "eth2": [[2, "192.168.3.4"], [17, OTHER]]}
    return {"remove": [f"{NET}/eno1"], "files": files, "calls": {"psutil.net_if_addrs": {**known, **addresses}}}


WAYS = [
    {"name": "eth1"},
    {"mac": MAC},
    {"mac": MAC.upper().replace(":", "-")},
    {"address": "10.1.0.7"},
    {"subnet": "10.1.0.9/16"},
]


@pytest.mark.parametrize("interface", WAYS)
def test_a_declared_interface_is_found_as_the_role_finds_it(interface: dict[str, str]) -> None:
    assert said(two(), wish(**interface)) == [("eth1", "ok"), ("host", "ok")]
    assert said(two("CCL_KVS_IFACE=eth1\nFI_TCP_IFACE=eth1\n"), wish(**interface)) == [("eth1", "ok")]
    # a card more, and the names have moved: the one of the file exists, and is another one
    moved = {OTHER: "eth1", MAC: "eth2"}
    files = {f"{NET}/{name}/address": f"{mac}\n" for mac, name in moved.items()}
    addresses = {"eth1": [[2, "192.168.3.4"]], "eth2": [[2, "10.1.0.7"]]}
    change = two("CCL_KVS_IFACE=eth1\nFI_TCP_IFACE=eth1\n", **addresses)
    change["files"] |= files
    if "name" not in interface:
        assert said(change, wish(**interface)) == [("eth1", "fail"), ("eth2", "ok")]
        (found,) = [one for one in judged(change, wish(**interface)) if one.status.value == "fail"]
        assert "the declared interface is eth2" in found.seen
        assert (found.wanted, found.next_step) == ("eth2, as declared", network.APPLY)


@pytest.mark.parametrize(
    ("interface", "text"),
    [
        ({"mac": "52:54:00:00:09:09"}, "no interface has it"),
        ({"address": "10.9.9.9"}, "no interface has it"),
        ({"subnet": "0.0.0.0/0"}, "3 interfaces have it (eth1, eth2, lo)"),
        ({"address": "127.0.0.1"}, "is the loopback"),
    ],
)
def test_a_declaration_that_stands_for_no_interface(interface: dict[str, str], text: str) -> None:
    (found,) = [one for one in judged(two(), wish(**interface)) if one.subject.name != "host"]
    assert (found.status.value, text in found.seen) == ("fail", True)
    assert "eth1, eth2" in found.seen


def test_a_declared_interface_without_carrier_fails_by_any_name() -> None:
    change = two()
    change["files"] |= interface("eth1", "0\n")
    for way in WAYS:
        (found,) = [one for one in judged(change, wish(**way)) if one.subject.name != "host"]
        assert (found.status.value, "no carrier" in found.seen) == ("fail", True), way
    change["files"] |= interface("eth1", {"error": "EACCES"})
    for way in WAYS:
        (found,) = [one for one in judged(change, wish(**way)) if one.subject.name != "host"]
        assert found.status.value == "unknown", way


def test_a_declaration_that_cannot_be_looked_up_is_unknown() -> None:
    change = two()
    change["calls"] = {"psutil.net_if_addrs": None}
    assert said(change, wish(mac=MAC)) == [("eth1", "ok"), ("host", "ok")]
    assert said(change, wish(subnet="10.1.0.0/16")) == [("10.1.0.0/16", "unknown"), ("host", "ok")]
    listed = [{"ifname": "eth1", "addr_info": [{"local": "10.1.0.7"}]}]
    change["commands"] = {"ip -j address show": {"rc": 0, "stdout": json.dumps(listed), "stderr": ""}}
    assert said(change, wish(subnet="10.1.0.0/16")) == [("eth1", "ok"), ("host", "ok")]
    change["files"][f"{NET}/eth1/address"] = {"error": "EACCES"}
    assert said({**change, "commands": {}}, wish(mac=MAC)) == [(MAC, "unknown"), ("host", "ok")]
    refused = {"files": {NET: {"error": "EACCES"}}, "calls": {"psutil.net_if_addrs": None}}
    for host in (HOST, "intel-hybrid"):
        for way in WAYS:
            assert said(refused, wish(**way), host) == [("host", "unknown")], (host, way)


def test_a_vlan_on_the_declared_card_is_not_the_card() -> None:
    change = two()
    change["files"] |= {**interface("vlan7"), f"{NET}/vlan7/address": f"{MAC}\n"}
    change["links"] = {f"{NET}/eth1/device": "../../../0000:61:00.0"}
    assert said(change, wish(mac=MAC)) == [("eth1", "ok"), ("host", "ok")]


def test_a_declaration_is_not_held_against_a_recording_without_addresses() -> None:
    """What was taken out of a recording cannot match; that is no missing interface."""
    change = two()
    change["files"] |= {f"{NET}/eth{number}/address": f"{mac}\n" for number, mac in ((1, MAC), (2, OTHER))}
    shared = Redactor().recording(replay.changed(replay.host(HOST), change))
    for way in ({"mac": MAC}, {"address": "10.1.0.7"}, {"subnet": "10.1.0.0/16"}):
        report = replay.report(shared, wish(**way))
        (found,) = [one for one in report.findings if one.id == "net.iface" and one.subject.name != "host"]
        assert (found.status.value, "taken out" in found.seen) == ("unknown", True), way


# -- nothing is set ------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [(), ("wlo1",), ("enslo0", "wlo1")])
def test_nothing_that_could_be_taken(names: tuple[str, ...]) -> None:
    files = {path: text for name in names for path, text in interface(name).items()}
    change = {"remove": [f"{NET}/eno1"], "files": files}
    (found,) = judged(change)
    assert (found.status.value, "no usable interface" in found.seen) == ("fail", True)
    assert said({**change, "files": {**files, ENV: "CCL_KVS_IFACE=lo\n"}}) == [("lo", "ok")]
    # another variable does not help oneCCL
    assert ("host", "fail") in said({**change, "files": {**files, ENV: "FI_TCP_IFACE=lo\n"}})


def test_only_loopback_matters_where_there_is_a_gpu() -> None:
    change = {"remove": [f"{NET}/eno1"]}
    assert said(change, host="intel-hybrid") == [("host", "not_applicable")]
    assert said(change, {"gpus": {"count": 1}}, host="intel-hybrid") == [("host", "fail")]


@pytest.mark.parametrize(("count", "status"), [(3, "ok"), (14, "ok"), (15, "warn"), (22, "warn")])
def test_many_interfaces(count: int, status: str) -> None:
    files = {path: text for number in range(count) for path, text in interface(f"veth{number:02x}a").items()}
    assert said({"files": files}) == [("host", status)]
    assert said({"files": {**files, ENV: "CCL_KVS_IFACE=lo\n"}}) == [("lo", "ok")]
    assert said({"files": files}, {"network": {"many_interfaces": 100}}) == [("host", "ok")]


def test_none_with_a_carrier() -> None:
    assert said({"remove": [f"{NET}/eno1"], "files": interface("eth0", "0\n")}) == [("host", "warn")]


def test_nothing_unread_is_good() -> None:
    assert said({"remove": [NET], "calls": {"psutil.net_if_addrs": None}}) == [("host", "unknown")]
    assert said({"files": {"/etc/environment": {"error": "EACCES"}}}) == [("host", "unknown")]
    # a pin that was read is judged all the same
    refused = {"/etc/environment": {"error": "EACCES"}, ENV: "CCL_KVS_IFACE=eno2\n"}
    assert said({"files": refused}) == [("eno2", "fail")]
    no_pci = {"remove": ["/sys/bus/pci"], "commands": {"lspci -D -nn -vv": None}}
    assert said(no_pci) == [("host", "unknown")]


def test_who_holds_the_cards_decides_whose_interfaces_count() -> None:
    """A container that may hold them has interfaces of its own: those of the host are no answer then."""
    stat = "77 (python) S 1 77 77 0 -1 4194304 0 0 0 0\n"
    hidden = {"files": {"/proc/77/fd": {"error": "EACCES"}, "/proc/77/stat": stat}}
    (found,) = judged(hidden)
    assert (found.status.value, found.seen.partition(":")[0]) == ("unknown", "permission")
    hidden["files"][ENV] = "CCL_KVS_IFACE=eno1\n"
    assert said(hidden) == [("eno1", "ok")]
    refused = {"files": {"/proc": {"error": "EACCES"}}}
    assert said(refused) == [("holders of cards", "unknown"), ("host", "unknown")]
    refused["files"][ENV] = "CCL_KVS_IFACE=eno1\n"
    assert said(refused) == [("eno1", "ok"), ("holders of cards", "unknown")]


# -- where it acts -------------------------------------------------------------------------------------


def test_the_host_is_green_and_the_container_is_not() -> None:
    files = {**interface("eth1"), **process(77, ("lo", "eth0"), "CCL_KVS_IFACE=eth1\0FI_TCP_IFACE=eth1\0")}
    found = judged({"files": {**files, ENV: "CCL_KVS_IFACE=eth1\n"}, "links": links(77)})
    assert [(one.subject.name, one.status.value) for one in found] == [(ID[:12], "fail"), ("eth1", "ok")]
    assert found[0].next_step == "start the container with -e CCL_KVS_IFACE=eth0 -e FI_TCP_IFACE=eth0"


@pytest.mark.parametrize(
    ("names", "environ", "status"),
    [
        (("lo", "eth0"), "CCL_KVS_IFACE=eth0\0", "ok"),
        (("lo", "eth0"), "CCL_KVS_IFACE=lo\0", "ok"),
        (("lo", "eth0"), "PATH=/\0", "ok"),
        (("lo",), "PATH=/\0", "fail"),
        (("lo",), "CCL_KVS_IFACE=lo\0", "ok"),
        (("lo", *(f"net{number}" for number in range(20))), "WORLD_SIZE=2\0", "warn"),
        (("lo", "eth0"), {"error": "EACCES"}, "unknown"),
    ],
)
def test_a_container_with_a_network_of_its_own(names: tuple[str, ...], environ: Any, status: str) -> None:
    found = said({"files": process(77, names, environ), "links": links(77)})
    assert status in {one[1] for one in found}
    assert ("fail" in {one[1] for one in found}) == (status == "fail")


def test_a_container_with_the_network_of_the_host() -> None:
    files = process(77, ("lo", "eno1"), "CCL_KVS_IFACE=eth1\0")
    assert said({"files": files, "links": links(77, "net:[4026531840]")}) == [("eth1", "fail")]


def test_two_containers_are_judged_apart() -> None:
    other = "3b" * 32
    files = {
        **process(77, ("lo", "eth0"), "CCL_KVS_IFACE=eth0\0"),
        **process(78, ("lo", "eth0"), "CCL_KVS_IFACE=eth1\0", f"/docker/{other}"),
    }
    both = {**links(77), **links(78, "net:[4026533000]")}
    found = said({"files": files, "links": both})
    assert (ID[:12], "ok") in found
    assert (other[:12], "fail") in found


def test_without_namespaces_the_names_decide() -> None:
    files = process(77, ("lo", "eth0"), "CCL_KVS_IFACE=eth1\0")
    assert (ID[:12], "fail") in said({"files": files, "links": {"/proc/77/fd/5": "/dev/dri/renderD129"}})


def test_a_unit_that_starts_a_container() -> None:
    unit = "[Service]\nExecStart=docker run --rm -e CCL_KVS_IFACE=eth0 img\n"
    files = {"/etc/systemd/system/vllm.service": unit}
    assert said({"files": files}) == [("host", "ok"), ("vllm.service", "info")]
    running = process(77, ("lo", "eth0"), "CCL_KVS_IFACE=eth0\0")
    assert ("vllm.service", "info") not in said({"files": {**files, **running}, "links": links(77)})


NAMES = st.text(st.sampled_from("enolths0123"), min_size=1, max_size=6)


@given(st.sampled_from(sorted(network.PINS)), NAMES, st.lists(NAMES, unique=True, max_size=5))
def test_what_is_taken_is_there_and_an_exact_name_is_taken(variable: str, value: str, names: list[str]) -> None:
    found, missing = network.taken(variable, value, names)
    assert set(found) <= set(names)
    assert bool(found) != bool(missing)
    if value in names:
        assert value in found
