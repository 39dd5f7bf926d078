"""Surroundings of the processes that hold cards: judged from files, and of them nothing else is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost.reader import LiveReader
from hostcheck.onhost.readings import containers, environment, holders
from hostcheck.onhost.recording import RecordedReader, Recorder, dump
from tests import replay

ID = "1f" * 32
CGROUP = f"/system.slice/docker-{ID}.scope"
MEMORY = f"/sys/fs/cgroup{CGROUP}"
IMAGE = "sha256:" + "ab" * 32
DIGEST = "sha256:" + "cd" * 32
SECRET = "hunter2-secret"
DEV = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n    lo:  10 1 10 1\n  eth0: 120 3 50 2\n"
PROCESS: dict[str, Any] = {
    "/proc/77/comm": "python\n",
    "/proc/77/cgroup": f"0::{CGROUP}\n",
    "/proc/77/net/dev": DEV,
    "/proc/77/environ": f"HF_TOKEN={SECRET}\0CCL_KVS_IFACE=eth1\0WORLD_SIZE=2\0PATH=/x\0",
}
LIMITS: dict[str, Any] = {
    f"{MEMORY}/memory.max": "12884901888\n",
    f"{MEMORY}/memory.peak": "12884901888\n",
    f"{MEMORY}/memory.swap.max": "4294967296\n",
    f"{MEMORY}/memory.swap.current": "0\n",
    f"{MEMORY}/memory.swap.peak": "4294967296\n",
    f"{MEMORY}/memory.events": "low 0\nhigh 0\nmax 2005\noom 0\noom_kill 0\noom_group_kill 0\n",
}
CONFIG = {
    "ID": ID,
    "Name": "/vllm",
    "Image": IMAGE,
    "Args": ["--api-key", SECRET],
    "Config": {"Image": "intel/vllm:0.14", "Env": [f"HF_TOKEN={SECRET}"], "Hostname": SECRET},
    "NetworkSettings": {"Networks": {SECRET: {}}},
}
DOCKER: dict[str, Any] = {
    "/etc/docker/daemon.json": json.dumps({"registry-mirrors": [SECRET], "data-root": "/var/lib/docker"}),
    f"/var/lib/docker/containers/{ID}/config.v2.json": json.dumps(CONFIG),
    "/var/lib/docker/image/overlay2/repositories.json": json.dumps(
        {
            "Repositories": {
                "intel/vllm": {"intel/vllm:0.14": IMAGE, f"intel/vllm@{DIGEST}": IMAGE},
                SECRET: {f"{SECRET}:1": "sha256:ee"},
            }
        }
    ),
}
LINKS = {"/proc/77/fd/9": "/dev/dri/renderD129", "/proc/77/ns/net": "net:[4026532281]"}


def reader(files: dict[str, Any], links: dict[str, str] | None = None, host: str = "four-card-gen4") -> RecordedReader:
    return RecordedReader(replay.changed(replay.host(host), {"files": files, "links": {**LINKS, **(links or {})}}))


def read(files: dict[str, Any], links: dict[str, str] | None = None) -> containers.Containers:
    one = reader(files, links)
    return containers.read(one, holders.read(one))


def test_a_container_of_docker() -> None:
    found = read({**PROCESS, **LIMITS, **DOCKER})
    (process,), (container,), (limits,) = (
        found.processes.value or (),
        found.containers.value or (),
        found.limits.value or (),
    )
    assert (process.pid, process.comm, process.container) == (77, "python", ID)
    assert (process.namespace.value, process.own_network.value) == ("net:[4026532281]", True)
    assert process.interfaces.value == ("lo", "eth0")
    assert process.variables.value == {"CCL_KVS_IFACE": "eth1", "WORLD_SIZE": "2"}
    assert (container.engine, container.name.value, container.image.value) == ("docker", "vllm", "intel/vllm:0.14")
    assert (container.image_id.value, container.digest.value) == (IMAGE, DIGEST)
    assert (limits.cgroup, limits.container) == (CGROUP, ID)
    assert (limits.memory_max.value, limits.swap_max.value, limits.swap_peak.value) == (12 << 30, 4 << 30, 4 << 30)
    assert (limits.events.value or {})["max"] == 2005


def test_several_nodes_and_processes_of_one_container() -> None:
    files = {**PROCESS, **{path.replace("77", "78"): text for path, text in PROCESS.items()}, **LIMITS}
    links = {"/proc/77/fd/10": "/dev/dri/renderD130", "/proc/78/fd/3": "/dev/dri/renderD129"}
    found = read(files, links)
    assert [one.pid for one in found.processes.value or ()] == [77, 78]
    assert (len(found.containers.value or ()), len(found.limits.value or ())) == (1, 1)


def test_podman() -> None:
    files = {
        **PROCESS,
        "/proc/77/cgroup": f"0::/machine.slice/libpod-{ID}.scope/container\n",
        f"/sys/fs/cgroup/machine.slice/libpod-{ID}.scope/memory.max": "max\n",
        f"{containers.PODMAN}/overlay-containers/containers.json": json.dumps(
            [{"id": ID, "names": ["serve"], "image": "ab", "metadata": json.dumps({"image-name": "a:1", "x": SECRET})}]
        ),
        f"{containers.PODMAN}/overlay-images/images.json": json.dumps(
            [{"id": "ab", "digest": DIGEST, "names": [SECRET]}]
        ),
    }
    found = read(files)
    (container,), (limits,) = found.containers.value or (), found.limits.value or ()
    assert (container.engine, container.name.value, container.image.value) == ("podman", "serve", "a:1")
    assert container.digest.value == DIGEST
    assert limits.memory_max.value == containers.UNLIMITED
    other = {**files, f"{containers.PODMAN}/overlay-containers/containers.json": "[]"}
    assert [one.image.unread for one in read(other).containers.value or ()] == ["absent"]


def test_a_service_is_no_container() -> None:
    files = {**PROCESS, "/proc/77/cgroup": "0::/system.slice/vllm.service\n"}
    files["/sys/fs/cgroup/system.slice/vllm.service/memory.swap.max"] = "max\n"
    found = read(files, {"/proc/77/ns/net": "net:[4026531840]"})
    (process,) = found.processes.value or ()
    assert (process.container, process.own_network.value, found.containers.value) == ("", False, ())
    assert [one.swap_max.value for one in found.limits.value or ()] == [containers.UNLIMITED]


def test_the_other_root_of_docker() -> None:
    files = {path.replace("/var/lib/docker", "/data/docker"): text for path, text in DOCKER.items()}
    files["/etc/docker/daemon.json"] = '{"data-root": "/data/docker/"}'
    assert [one.digest.value for one in read({**PROCESS, **files}).containers.value or ()] == [DIGEST]


@pytest.mark.parametrize(
    ("cgroup", "engine", "id"),
    [
        (f"/docker/{ID}", "docker", ID),
        (f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope", "containerd", ID),
        (f"/kubepods/burstable/pod11-22/{ID}", "kubernetes", ID),
        (f"/kubepods.slice/crio-{ID}.scope/container", "cri-o", ID),
        (f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope", "podman", ID),
        ("/lxc/gpu-1/system.slice", "lxc", "gpu-1"),
        ("/lxc.payload.gpu-1/init.scope", "lxc", "gpu-1"),
        ("/machine.slice/machine-vllm.scope", "nspawn", "vllm"),
        ("/system.slice/docker.service", "", ""),
        ("/init.scope", "", ""),
        ("", "", ""),
    ],
)
def test_container_by_cgroup(cgroup: str, engine: str, id: str) -> None:
    found = containers.parse_container(cgroup)
    assert found[:2] == (engine, id)
    assert cgroup.startswith(found[2])


REFUSED = {"error": "EACCES"}


@pytest.mark.parametrize(
    ("path", "content", "where", "reason"),
    [
        ("/proc/77/environ", REFUSED, "variables", "permission"),
        ("/proc/77/environ", None, "variables", "absent"),
        ("/proc/77/environ", "setproctitle wrote over it", "variables", "not_understood"),
        ("/proc/77/net/dev", REFUSED, "interfaces", "permission"),
        ("/proc/77/net/dev", None, "interfaces", "absent"),
        ("/proc/77/net/dev", "no table\n", "interfaces", "not_understood"),
        (f"{MEMORY}/memory.swap.max", REFUSED, "swap_max", "permission"),
        (f"{MEMORY}/memory.swap.peak", None, "swap_peak", "absent"),
        (f"{MEMORY}/memory.swap.max", "much\n", "swap_max", "not_understood"),
        (f"{MEMORY}/memory.events", "max many\n", "events", "not_understood"),
        (f"{MEMORY}/memory.events", "", "events", "not_understood"),
        (f"/var/lib/docker/containers/{ID}/config.v2.json", REFUSED, "image", "permission"),
        (f"/var/lib/docker/containers/{ID}/config.v2.json", None, "digest", "absent"),
        (f"/var/lib/docker/containers/{ID}/config.v2.json", "[" * 5000, "name", "not_understood"),
        (f"/var/lib/docker/containers/{ID}/config.v2.json", "[]", "image_id", "not_understood"),
        ("/var/lib/docker/image/overlay2/repositories.json", "{}", "digest", "not_understood"),
        ("/var/lib/docker/image/overlay2/repositories.json", None, "digest", "absent"),
        ("/etc/docker/daemon.json", "{", "image", None),  # then the usual place holds
    ],
)
def test_what_could_not_be_read_says_why(path: str, content: Any, where: str, reason: str | None) -> None:
    files = {**PROCESS, **LIMITS, **DOCKER, path: content}
    found = read({name: text for name, text in files.items() if text is not None})
    groups = (*(found.processes.value or ()), *(found.containers.value or ()), *(found.limits.value or ()))
    assert [getattr(one, where).unread for one in groups if hasattr(one, where)] == [reason]


def test_namespace_that_may_not_be_looked_at() -> None:
    inner = reader(PROCESS)
    del inner._links["/proc/77/ns/net"]
    (process,) = containers.read(inner, holders.read(inner)).processes.value or ()
    assert (process.namespace.unread, process.own_network.unread) == ("absent", "absent")
    garbage = read(PROCESS, {"/proc/77/ns/net": "pid:[1]"}).processes.value or ()
    assert [one.own_network.unread for one in garbage] == ["not_understood"]


def test_a_cgroup_outside_of_what_is_seen() -> None:
    found = read({**PROCESS, "/proc/77/cgroup": f"0::/../docker-{ID}.scope\n"})
    assert {one.swap_max.unread for one in found.limits.value or ()} == {"absent"}


def test_unread_holders_are_not_nobody() -> None:
    one = reader({**PROCESS, "/proc": {"error": "EACCES"}})
    found = containers.read(one, holders.read(one))
    assert {found.processes.unread, found.containers.unread, found.limits.unread} == {"permission"}


def test_a_recording_holds_no_secret_and_replays() -> None:
    recorder = Recorder(reader({**PROCESS, **LIMITS, **DOCKER}))
    found = containers.read(recorder, holders.read(recorder))
    recording = recorder.recording(0.0)
    assert SECRET not in dump(recording)
    assert SECRET not in repr(found)
    again = RecordedReader(recording)
    assert containers.read(again, holders.read(again)) == found


def test_a_recording_of_garbage_replays_as_garbage() -> None:
    recorder = Recorder(reader({**PROCESS, "/proc/77/environ": f"{SECRET} overwritten"}))
    found = containers.read(recorder, holders.read(recorder))
    assert SECRET not in dump(recorder.recording(0.0))
    again = RecordedReader(recorder.recording(0.0))
    assert [one.variables.unread for one in containers.read(again, holders.read(again)).processes.value or ()] == [
        one.variables.unread for one in found.processes.value or ()
    ]


def test_this_process() -> None:
    variables = environment.part(LiveReader(), "/proc/self/environ", environment.reduce_environ, zeros=True).then(
        environment.parse_environ
    )
    assert variables.value is not None
    assert all(environment.allowed(name) for name in variables.value)


def test_a_fifo_in_place_of_an_environment(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "environ")
    found = environment.part(LiveReader(str(tmp_path)), "/environ", environment.reduce_environ)
    assert found.unread == "io"


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(
                ["Config", "Image", "Name", "Repositories", "id", "names", "metadata", "digest", "data-root"]
            ),
            inner,
        )
    ),
)
PARSERS = (
    containers.parse_namespace,
    containers.parse_limit,
    containers.parse_events,
    containers.parse_docker,
    containers.parse_repositories,
    containers.parse_data_root,
    containers.parse_podman,
    containers.parse_podman_images,
    environment.parse_environ,
    containers.reduce_docker,
    containers.reduce_podman,
)


@pytest.mark.parametrize("parse", PARSERS)
@given(text=st.text() | JSON.map(json.dumps))
def test_any_text_is_a_value_or_a_value_error(parse: Any, text: str) -> None:
    try:
        parse(text)
    except ValueError:
        pass


@given(JSON.map(json.dumps))
def test_reduced_configurations_say_the_same(text: str) -> None:
    for parse, reduce in (
        (containers.parse_docker, containers.reduce_docker),
        (containers.parse_podman, containers.reduce_podman),
        (containers.parse_repositories, containers.REDUCE_REPOSITORIES),
        (containers.parse_podman_images, containers.REDUCE_IMAGES),
    ):
        try:
            wanted = parse(text)
        except ValueError:
            continue
        assert parse(reduce(text)) == wanted


# -- cgroup version 1 -----------------------------------------------------------------------------------

OLD = f"/sys/fs/cgroup/memory/docker/{ID}"
NO_LIMIT = "9223372036854771712\n"


def version_1(**files: Any) -> Any:
    given = {
        "limit_in_bytes": "12884901888\n",
        "max_usage_in_bytes": "12884901888\n",
        "memsw.limit_in_bytes": "12884901888\n",
        "memsw.max_usage_in_bytes": "12884901888\n",
        "failcnt": "2005\n",
        "oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        "stat": "cache 5\nswap 0\ntotal_swap 0\n",
        **files,
    }
    recording = replay.changed(
        replay.host("two-card-gen5"),
        {
            "links": LINKS,
            "files": {
                **PROCESS,
                "/proc/77/cgroup": f"9:cpu,cpuacct:/docker/{ID}\n8:memory:/docker/{ID}\n1:name=systemd:/\n0::/\n",
                **{f"{OLD}/memory.{name}": text for name, text in given.items() if text is not None},
            },
        },
    )
    reader = RecordedReader(recording)
    (found,) = containers.read(reader, holders.read(reader)).limits.value or ()
    return found


def test_limits_of_version_1_are_read_where_they_act() -> None:
    found = version_1()
    assert (found.cgroup, found.container) == (f"/docker/{ID}", ID)
    assert (found.memory_max.value, found.memory_peak.value) == (12884901888, 12884901888)
    assert (found.swap_max.value, found.swap_current.value) == (0, 0)
    assert found.swap_peak.unread == "absent"
    assert found.events.value == {"oom_kill": 1, "max": 2005}
    assert found.memory_max.source == f"{OLD}/memory.limit_in_bytes"


@pytest.mark.parametrize(
    ("files", "swap_max", "swap_peak"),
    [
        ({"memsw.limit_in_bytes": "17179869184\n"}, 4 << 30, None),
        ({"memsw.limit_in_bytes": "17179869184\n", "memsw.max_usage_in_bytes": "13958643712\n"}, 4 << 30, 1 << 30),
        ({"memsw.limit_in_bytes": NO_LIMIT}, -1, None),
        ({"limit_in_bytes": NO_LIMIT, "memsw.limit_in_bytes": NO_LIMIT}, -1, None),
        ({"memsw.limit_in_bytes": None, "memsw.max_usage_in_bytes": None}, None, None),
        ({"memsw.limit_in_bytes": {"error": "EACCES"}}, None, None),
        ({"memsw.limit_in_bytes": "much\n"}, None, None),
        ({"limit_in_bytes": {"error": "EACCES"}}, None, None),
    ],
)
def test_swap_of_version_1_is_what_goes_beyond_the_memory(
    files: dict[str, Any], swap_max: int | None, swap_peak: int | None
) -> None:
    found = version_1(**files)
    assert (found.swap_max.value, found.swap_peak.value) == (swap_max, swap_peak)


@pytest.mark.parametrize("content", ["oom_kill_disable 0\nunder_oom 0\n", {"error": "EACCES"}, "\x07", None])
def test_kills_that_version_1_does_not_count_are_unread(content: Any) -> None:
    assert version_1(oom_control=content).events.value is None


# -- bundles --------------------------------------------------------------------------------------------

TASK = "/run/containerd/io.containerd.runtime.v2.task"
NAMED = {
    "io.kubernetes.cri.container-name": "vllm",
    "io.kubernetes.cri.image-name": "registry.example/vllm:1",
    "io.kubernetes.cri.sandbox-name": SECRET,
}


def bundle(annotations: Any) -> str:
    return json.dumps(
        {
            "ociVersion": "1.2.0",
            "annotations": annotations,
            "process": {"args": [SECRET], "env": [f"HF_TOKEN={SECRET}"]},
        }
    )


def image(cgroup: str, files: dict[str, Any]) -> Any:
    return replay.changed(
        replay.host("two-card-gen5"),
        {"links": LINKS, "files": {**PROCESS, "/proc/77/cgroup": f"0::{cgroup}\n", **files}},
    )


def container(cgroup: str, files: dict[str, Any]) -> containers.Container:
    reader = RecordedReader(image(cgroup, files))
    (found,) = containers.read(reader, holders.read(reader)).containers.value or ()
    return found


CRI = f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope"


def test_an_image_of_kubernetes_by_its_bundle() -> None:
    found = container(CRI, {f"{TASK}/k8s.io/{ID}/config.json": bundle(NAMED)})
    assert (found.engine, found.name.value, found.image.value) == ("containerd", "vllm", "registry.example/vllm:1")
    assert found.digest.unread == found.image_id.unread == "absent"
    assert "database" in found.digest.detail
    by_digest = {**NAMED, "io.kubernetes.cri.image-name": f"registry.example/vllm@{DIGEST}"}
    assert container(CRI, {f"{TASK}/k8s.io/{ID}/config.json": bundle(by_digest)}).digest.value == DIGEST


def test_bundles_of_k3s_nerdctl_and_cri_o() -> None:
    k3s = f"/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/{ID}/config.json"
    assert container(f"/kubepods/besteffort/pod1/{ID}", {k3s: bundle(NAMED)}).image.value == "registry.example/vllm:1"
    own = container(
        f"/system.slice/nerdctl-{ID}.scope", {f"{TASK}/default/{ID}/config.json": bundle({"nerdctl/name": "vllm"})}
    )
    assert (own.name.value, own.image.unread) == ("vllm", "absent")
    crio = {
        "io.kubernetes.cri-o.KubeName": "vllm",
        "io.kubernetes.cri-o.ImageName": "registry.example/vllm:1",
        "io.kubernetes.cri-o.Image": "ab" * 32,
        "io.kubernetes.cri-o.ImageRef": f"registry.example/vllm@{DIGEST}",
    }
    path = f"/run/containers/storage/overlay-containers/{ID}/userdata/config.json"
    found = container(f"/kubepods.slice/crio-{ID}.scope", {path: bundle(crio)})
    assert (found.name.value, found.image_id.value, found.digest.value) == ("vllm", "ab" * 32, DIGEST)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "absent"),
        ({f"{TASK}/k8s.io/{ID}/config.json": {"error": "EACCES"}}, "permission"),
        ({TASK: {"error": "EACCES"}}, "permission"),
        ({f"{TASK}/k8s.io/{ID}/config.json": "{}"}, "not_understood"),
        ({f"{TASK}/k8s.io/{ID}/config.json": "[["}, "not_understood"),
        ({f"{TASK}/k8s.io/{ID}/config.json": bundle("x")}, "not_understood"),
        ({f"{TASK}/k8s.io/{ID}/config.json": bundle({})}, "absent"),
    ],
)
def test_an_image_that_is_not_told(files: dict[str, Any], reason: str) -> None:
    found = container(CRI, files)
    assert {found.name.unread, found.image.unread, found.digest.unread} == {reason}


def test_a_recording_keeps_of_a_bundle_only_what_names_the_image() -> None:
    recorder = Recorder(RecordedReader(image(CRI, {f"{TASK}/k8s.io/{ID}/config.json": bundle(NAMED)})))
    before = containers.read(recorder, holders.read(recorder))
    text = dump(recorder.recording(0.0))
    assert SECRET not in text
    again = RecordedReader(json.loads(text))
    assert containers.read(again, holders.read(again)).containers == before.containers
