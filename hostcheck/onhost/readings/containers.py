"""What surrounds the processes that hold a card: their container, image, network, variables and memory limits.

A pin is judged where it acts: a look at the host is green while the container has other interfaces. Of a process only
its number, name, cgroup, network and the allowed variables are read, never arguments; of a container's configuration
only what names the image.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Callable

from ..reader import Reader, Reading
from .environment import parse_environ, part, reduce_environ
from .holders import Holders
from .lscpu import cpu_list, parse_cpu_list
from .network import parse_dev

PROC = "/proc"
CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
CGROUP_1 = "/sys/fs/cgroup/memory"
DOCKER = "/var/lib/docker"
DOCKER_DAEMON = "/etc/docker/daemon.json"
PODMAN = "/var/lib/containers/storage"
# Bundles of containers that run, by engine; k3s has a containerd of its own.
TASKS = ("/run/containerd/io.containerd.runtime.v2.task", "/run/k3s/containerd/io.containerd.runtime.v2.task")
CRIO = "/run/containers/storage/overlay-containers"
LIMIT = 8 << 20  # bytes; the list of images of a busy host is some hundred KB
ENVIRON_LIMIT = 1 << 20
STATUS_LIMIT = 64 << 10
UNLIMITED = -1
NO_LIMIT_1 = 1 << 62  # bytes; version 1 writes the largest number of pages for no limit
# What an OCI bundle says of its image (annotations of containerd's CRI, of CRI-O and of nerdctl's labels).
ANNOTATIONS = {
    "name": ("io.kubernetes.cri.container-name", "io.kubernetes.cri-o.KubeName", "nerdctl/name"),
    "image": ("io.kubernetes.cri.image-name", "io.kubernetes.cri-o.ImageName"),
    "image_id": ("io.kubernetes.cri-o.Image",),
    "digest": ("io.kubernetes.cri.image-ref", "io.kubernetes.cri-o.ImageRef"),
}

ID = r"[0-9a-f]{12,64}"
ENGINES = (
    (rf"^docker-({ID})\.scope$", "docker"),
    (rf"^libpod-({ID})(?:\.scope)?$", "podman"),
    (rf"^cri-containerd-({ID})\.scope$", "containerd"),
    (rf"^crio-({ID})(?:\.scope)?$", "cri-o"),
    (rf"^nerdctl-({ID})\.scope$", "containerd"),
    (r"^lxc\.payload\.([\w.-]+)$", "lxc"),
    (r"^machine-([\w.\\-]+)\.scope$", "nspawn"),
)
FOLDERS = (("docker", "docker"), ("libpod_parent", "podman"), ("lxc", "lxc"), ("kubepods", "kubernetes"))


@dataclass(frozen=True)
class Process:
    """One process that holds a card.

    container: its id, ``""`` outside of containers. namespace: of its network, e.g. ``net:[4026531840]``.
    own_network: is that another one than the host's? interfaces: those of its network. variables: the allowed ones.
    processors: those that it may run on.
    """

    pid: int
    comm: str
    container: str
    namespace: Reading[str]
    own_network: Reading[bool]
    interfaces: Reading[tuple[str, ...]]
    variables: Reading[dict[str, str]]
    processors: Reading[tuple[int, ...]] = Reading.no("not_asked", "not read by this version")


@dataclass(frozen=True)
class Container:
    """One container with such a process.

    engine: docker, podman, containerd, cri-o, kubernetes, lxc, nspawn. image: as it was asked for, e.g.
    ``intel/vllm:0.14``. image_id: digest of its configuration. digest: of its manifest, what a registry knows it by.
    """

    id: str
    engine: str
    name: Reading[str]
    image: Reading[str]
    image_id: Reading[str]
    digest: Reading[str]


@dataclass(frozen=True)
class Limits:
    """Memory of a cgroup with such a process, in bytes; -1 is no limit.

    cgroup: its path. container: id, ``""`` where it is none. events: counts of memory.events, by name; of version 1 how
    often the limit was reached (``max``) and ``oom_kill``. Version 1 limits memory and swap together: swap_max is the
    difference, and swap_peak what went beyond the memory's limit, absent where nothing did.
    """

    cgroup: str
    container: str
    memory_max: Reading[int]
    memory_peak: Reading[int]
    swap_max: Reading[int]
    swap_current: Reading[int]
    swap_peak: Reading[int]
    events: Reading[dict[str, int]]


@dataclass(frozen=True)
class Containers:
    """Surroundings of every process of `Holders`."""

    processes: Reading[tuple[Process, ...]]
    containers: Reading[tuple[Container, ...]]
    limits: Reading[tuple[Limits, ...]]


# -- parsers -------------------------------------------------------------------------------------------


def parse_container(cgroup: str) -> tuple[str, str, str]:
    """Return (engine, id, cgroup of the container) by the cgroup of a process; three times "" outside of one.

    >>> parse_container("/system.slice/docker-" + "1f" * 32 + ".scope")[0]
    'docker'
    >>> parse_container("/machine.slice/libpod-" + "ab" * 32 + ".scope/container")[2][-6:]
    '.scope'
    >>> parse_container("/user.slice/user-1000.slice/session-2.scope")
    ('', '', '')
    """
    parts = cgroup.split("/")
    for number, name in enumerate(parts):
        here = "/".join(parts[: number + 1])
        for pattern, engine in ENGINES:
            match = re.match(pattern, name)
            if match:
                return engine, match.group(1), here
        if re.fullmatch(ID, name):
            above = "/".join(parts[:number])
            return next((engine for word, engine in FOLDERS if word in above), "container"), name, here
        if number and parts[number - 1] == "lxc":
            return "lxc", name, here
    return "", "", ""


def parse_namespace(target: str) -> str:
    """Return the name of a network namespace, the target of /proc/PID/ns/net. Raises ValueError for anything else."""
    if not re.fullmatch(r"net:\[\d+\]", target):
        raise ValueError(f"expected net:[number], got {target!r}")
    return target


def parse_processors(text: str) -> tuple[int, ...]:
    """Return the processors that /proc/PID/status allows (man 5 proc). Raises ValueError where it does not say it.

    >>> parse_processors("Name:\\tpython\\nCpus_allowed:\\tff\\nCpus_allowed_list:\\t0-3,8\\n")
    (0, 1, 2, 3, 8)
    """
    found = re.findall(r"^Cpus_allowed_list:\t(.+)$", text, re.MULTILINE)
    if len(found) != 1:
        raise ValueError(f"expected one line Cpus_allowed_list, got {text[:80]!r}")
    return parse_cpu_list(found[0])


def reduce_status(text: str) -> str:
    """The status of a process without all but the processors that it may run on."""
    return f"Cpus_allowed_list:\t{cpu_list(parse_processors(text))}\n"


def parse_limit(text: str) -> int:
    """Return bytes of a memory file of a cgroup; ``max`` is -1.

    >>> parse_limit("max\\n"), parse_limit("12884901888\\n")
    (-1, 12884901888)

    Raises ValueError for anything else.
    """
    word = text.strip()
    if word == "max":
        return UNLIMITED
    if not re.fullmatch(r"[0-9]{1,20}", word):
        raise ValueError(f"expected bytes or max, got {text!r}")
    return int(word)


def parse_events(text: str) -> dict[str, int]:
    """Return the counts of memory.events.

    >>> parse_events("low 0\\nmax 2005\\noom_kill 0\\n")
    {'low': 0, 'max': 2005, 'oom_kill': 0}

    Raises ValueError for a line that is not a name and a number, and where there is none.
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"([a-z_]+) ([0-9]{1,20})", line.strip())
        if not match:
            raise ValueError(f"expected a name and a number, got {line!r}")
        found[match.group(1)] = int(match.group(2))
    if not found:
        raise ValueError("no events")
    return found


def parse_limit_1(text: str) -> int:
    """Return bytes of a memory file of version 1; its largest number is no limit, -1.

    >>> parse_limit_1("9223372036854771712\\n"), parse_limit_1("12884901888\\n")
    (-1, 12884901888)

    Raises ValueError for anything else.
    """
    found = parse_limit(text)
    return UNLIMITED if found >= NO_LIMIT_1 else found


def parse_oom_control(text: str) -> int:
    """Return ``oom_kill`` of memory.oom_control. Raises ValueError where it is missing, as before 4.13.

    >>> parse_oom_control("oom_kill_disable 0\\nunder_oom 0\\noom_kill 2\\n")
    2
    """
    found = re.findall(r"^oom_kill ([0-9]{1,18})$", text, re.MULTILINE)
    if len(found) != 1:
        raise ValueError(f"expected one line oom_kill, got {text!r}")
    return int(found[0])


def parse_swap_stat(text: str) -> int:
    """Return the bytes of ``swap`` of memory.stat. Raises ValueError where it is missing (no swap accounting)."""
    found = re.findall(r"^swap ([0-9]{1,18})$", text, re.MULTILINE)
    if len(found) != 1:
        raise ValueError("no line swap: this kernel does not count it per cgroup")
    return int(found[0])


def parse_bundle(text: str) -> dict[str, str]:
    """Return name, image, image_id and digest of the config.json of an OCI bundle, as far as its annotations tell.

    >>> said = {"io.kubernetes.cri.image-name": "registry/vllm@sha256:" + "ab" * 32}
    >>> parse_bundle(json.dumps({"ociVersion": "1.2.0", "annotations": said}))["digest"][:9]
    'sha256:ab'

    Raises ValueError for anything else.
    """
    data = _json(text)
    annotations = data.get("annotations", {}) if isinstance(data, dict) and "ociVersion" in data else None
    if not isinstance(annotations, dict):
        raise ValueError(f"expected an OCI bundle, got {type(data).__name__}")
    found = {
        field: next((_text(annotations[key]) for key in keys if annotations.get(key)), "")
        for field, keys in ANNOTATIONS.items()
    }
    if not re.fullmatch(r"(?:sha256:)?[0-9a-f]{64}", found["image_id"]):
        found["image_id"] = ""  # some versions put the image there as it was asked for
    for field in ("digest", "image"):  # a reference by digest holds it after the @
        match = re.search(r"(?:^|@)(sha256:[0-9a-f]{64})$", found[field])
        if match:
            return {**found, "digest": match.group(1)}
    return {**found, "digest": ""}


def reduce_bundle(text: str) -> str:
    """The config.json of a bundle without environment, arguments, mounts and the rest."""
    parse_bundle(text)
    data = _json(text)
    wanted = {key for keys in ANNOTATIONS.values() for key in keys}
    kept = {key: value for key, value in (data.get("annotations") or {}).items() if key in wanted}
    return json.dumps({"ociVersion": _text(data["ociVersion"]), "annotations": kept})


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def parse_docker(text: str) -> dict[str, str]:
    """Return name, image and image_id of Docker's config.v2.json. Raises ValueError for anything else.

    >>> parse_docker('{"Name": "/vllm", "Image": "sha256:ab", "Config": {"Image": "intel/vllm:1", "Env": ["T=x"]}}')
    {'name': 'vllm', 'image': 'intel/vllm:1', 'image_id': 'sha256:ab'}
    """
    data = _json(text)
    config = data.get("Config") if isinstance(data, dict) else None
    if not isinstance(config, dict):
        raise ValueError(f"expected a container with its Config, got {type(data).__name__}")
    return {
        "name": _text(data.get("Name")).lstrip("/"),
        "image": _text(config.get("Image")),
        "image_id": _text(data.get("Image")),
    }


def reduce_docker(text: str) -> str:
    """Docker's config.v2.json without environment, arguments, addresses and the rest."""
    found = parse_docker(text)
    return json.dumps({"Name": found["name"], "Image": found["image_id"], "Config": {"Image": found["image"]}})


def parse_repositories(text: str) -> dict[str, str]:
    """Return, by image id, the digest of the manifest, of Docker's repositories.json.

    >>> parse_repositories('{"Repositories": {"a": {"a:1": "sha256:ab", "a@sha256:cd": "sha256:ab"}}}')
    {'sha256:ab': 'sha256:cd'}

    Raises ValueError for anything else.
    """
    data = _json(text)
    repositories = data.get("Repositories") if isinstance(data, dict) else None
    if not isinstance(repositories, dict):
        raise ValueError(f"expected Repositories, got {type(data).__name__}")
    found: dict[str, str] = {}
    for names in repositories.values():
        for name, image in names.items() if isinstance(names, dict) else ():
            if "@" in name and isinstance(image, str):
                found.setdefault(image, name.rpartition("@")[2])
    return found


def parse_data_root(text: str) -> str:
    """Return ``data-root`` of Docker's daemon.json, ``""`` where it is not set. Raises ValueError."""
    data = _json(text)
    if not isinstance(data, dict):
        raise ValueError(f"expected an object, got {type(data).__name__}")
    place = _text(data.get("data-root")) or _text(data.get("graph"))
    return place.rstrip("/") if place.startswith("/") else ""


def parse_podman(text: str) -> dict[str, dict[str, str]]:
    """Return, by container id, name, image and image_id of podman's containers.json.

    >>> parse_podman('[{"id": "ab", "names": ["vllm"], "image": "cd"}]')
    {'ab': {'name': 'vllm', 'image': '', 'image_id': 'cd'}}

    Raises ValueError for anything else.
    """
    data = _json(text)
    if not isinstance(data, list) or not all(isinstance(one, dict) for one in data):
        raise ValueError(f"expected a list of containers, got {type(data).__name__}")
    found: dict[str, dict[str, str]] = {}
    for one in data:
        metadata = _json(_text(one.get("metadata")) or "{}")
        names = one.get("names")
        found[_text(one.get("id"))] = {
            "name": _text(names[0]) if isinstance(names, list) and names else "",
            "image": _text(metadata.get("image-name")) if isinstance(metadata, dict) else "",
            "image_id": _text(one.get("image")),
        }
    return found


def reduce_podman(text: str) -> str:
    """Podman's containers.json without anything that `parse_podman` does not take."""
    return json.dumps(
        [
            {
                "id": id,
                "names": [one["name"]],
                "image": one["image_id"],
                "metadata": json.dumps({"image-name": one["image"]}),
            }
            for id, one in parse_podman(text).items()
        ]
    )


def parse_podman_images(text: str) -> dict[str, str]:
    """Return, by image id, the digest of the manifest, of podman's images.json. Raises ValueError for anything else."""
    data = _json(text)
    if not isinstance(data, list) or not all(isinstance(one, dict) for one in data):
        raise ValueError(f"expected a list of images, got {type(data).__name__}")
    return {_text(one.get("id")): _text(one.get("digest")) for one in data if _text(one.get("digest"))}


def _reduced(parse: Callable[[str], dict[str, str]], build: Callable[[dict[str, str]], Any]) -> Callable[[str], str]:
    return lambda text: json.dumps(build(parse(text)))


REDUCE_REPOSITORIES = _reduced(
    parse_repositories, lambda found: {"Repositories": {"": {f"@{digest}": id for id, digest in found.items()}}}
)
REDUCE_IMAGES = _reduced(
    parse_podman_images, lambda found: [{"id": id, "digest": digest} for id, digest in found.items()]
)


# -- reading -------------------------------------------------------------------------------------------


def known(reading: Reading[dict[str, str]], key: str, what: str) -> Reading[str]:
    """One entry of a reading; absent where it is not there or empty."""
    if reading.value is not None and not reading.value.get(key):
        return Reading.no("absent", f"no {what} there", reading.source)
    return reading.then(lambda found: found[key])


def read_container(reader: Reader, engine: str, id: str) -> Container:
    if engine == "docker":
        daemon = part(reader, DOCKER_DAEMON, lambda text: json.dumps({"data-root": parse_data_root(text)}))
        root = daemon.then(parse_data_root).value or DOCKER
        config = part(reader, f"{root}/containers/{id}/config.v2.json", reduce_docker, LIMIT).then(parse_docker)
        stores = reader.children(f"{root}/image")
        listed = [part(reader, f"{store}/repositories.json", REDUCE_REPOSITORIES, LIMIT) for store in stores]
        absent: Reading[str] = Reading.no("absent", "no list of repositories", f"{root}/image")
        digests = next((one for one in listed if one.unread != "absent"), absent).then(parse_repositories)
        image_id = known(config, "image_id", "image id")
    elif engine == "podman":
        all_of = part(reader, f"{PODMAN}/overlay-containers/containers.json", reduce_podman, LIMIT).then(parse_podman)
        if all_of.value is not None and id not in all_of.value:
            config = Reading.no("absent", "another storage, perhaps that of a user, has it", all_of.source)
        else:
            config = all_of.then(lambda found: found[id])
        digests = part(reader, f"{PODMAN}/overlay-images/images.json", REDUCE_IMAGES, LIMIT).then(parse_podman_images)
        image_id = known(config, "image_id", "image id")
    elif engine in ("containerd", "cri-o", "kubernetes", "container"):
        return read_bundle(reader, engine, id)
    else:
        config = Reading.no("absent", f"{engine} keeps the image in no file that can be read", "")
        return Container(id, engine, *(config.then(str) for _ in range(4)))
    digest = known(digests, image_id.value, "digest of this image") if image_id.value else image_id
    return Container(id, engine, known(config, "name", "name"), known(config, "image", "image"), image_id, digest)


def read_bundle(reader: Reader, engine: str, id: str) -> Container:
    """A container of containerd (nerdctl, Kubernetes) or CRI-O, by the bundle that it runs from.

    Only root may read it. Their lists of images are databases, so a digest is known only where the image was asked for
    by it.
    """
    places = [f"{CRIO}/{id}/userdata"]
    refused: Reading[dict[str, str]] | None = None
    for tasks in TASKS:
        spaces = reader.names(tasks)
        if spaces.unread not in (None, "absent"):
            refused = refused or spaces.then(lambda _: {})
        places += [f"{tasks}/{space}/{id}" for space in spaces.value or ()]
    bundle: Reading[dict[str, str]] = Reading.no("absent", f"no bundle of this container of {engine}", CRIO)
    for place in places:
        found = part(reader, f"{place}/config.json", reduce_bundle, LIMIT).then(parse_bundle)
        if found.unread != "absent":
            bundle = found
            break
    else:
        bundle = refused or bundle
    what = {
        "name": "name in its annotations",
        "image": "image in its annotations; it stands in a database that is not read",
        "image_id": "image id in its annotations; it stands in a database that is not read",
        "digest": "digest in its annotations; it stands in a database that is not read",
    }
    return Container(id, engine, *(known(bundle, field, text) for field, text in what.items()))


def read_limits_1(reader: Reader, folder: str, cgroup: str, container: str) -> Limits:
    """Limits of a cgroup of version 1 (kernel docs, cgroup-v1/memory)."""

    def value(name: str) -> Reading[int]:
        return reader.line(f"{folder}/memory.{name}").then(parse_limit_1)

    most, both, peak_both = value("limit_in_bytes"), value("memsw.limit_in_bytes"), value("memsw.max_usage_in_bytes")
    if both.unread == "absent":
        both = peak_both = Reading.no("absent", "swap is not counted per cgroup (swapaccount=0)", both.source)
    swap_max, swap_peak = both, peak_both
    if both.value is not None and most.value is None:
        swap_max = most
    elif both.value is not None and most.value is not None and both.value != UNLIMITED:
        swap_max = Reading(max(0, both.value - max(0, most.value)), both.source)
    if peak_both.value is not None:
        beyond = peak_both.value - most.value if most.value is not None and most.value > 0 else 0
        swap_peak = (
            Reading(beyond, peak_both.source)
            if beyond > 0
            else Reading.no("absent", "version 1 keeps no peak of swap alone", peak_both.source)
        )
    reached = value("failcnt")
    killed = reader.text(f"{folder}/memory.oom_control").then(parse_oom_control)
    events = killed.then(lambda count: {"oom_kill": count})
    if events.value is not None and reached.value is not None:
        events = Reading({**events.value, "max": reached.value}, events.source)
    return Limits(
        cgroup=cgroup,
        container=container,
        memory_max=most,
        memory_peak=value("max_usage_in_bytes"),
        swap_max=swap_max,
        swap_current=reader.text(f"{folder}/memory.stat").then(parse_swap_stat),
        swap_peak=swap_peak,
        events=events,
    )


def read_limits(reader: Reader, cgroup: str, container: str) -> Limits:
    folder = ""
    if cgroup and ".." not in cgroup.split("/"):
        old = f"{CGROUP_1}{cgroup.rstrip('/')}"
        if reader.line(f"{old}/memory.limit_in_bytes").unread != "absent":
            return read_limits_1(reader, old, cgroup, container)
        names = [f"{root}{cgroup.rstrip('/')}" for root in CGROUPS]
        folder = next((name for name in names if reader.line(f"{name}/memory.max").unread != "absent"), names[0])

    def value(name: str) -> Reading[int]:
        if not folder:
            return Reading.no("absent", f"its cgroup {cgroup or 'was not read and'} lies outside of what is seen here")
        return reader.line(f"{folder}/{name}").then(parse_limit)

    return Limits(
        cgroup=cgroup,
        container=container,
        memory_max=value("memory.max"),
        memory_peak=value("memory.peak"),
        swap_max=value("memory.swap.max"),
        swap_current=value("memory.swap.current"),
        swap_peak=value("memory.swap.peak"),
        events=reader.text(f"{folder}/memory.events").then(parse_events)
        if folder
        else value("memory.events").then(lambda _: {}),
    )


def read_process(reader: Reader, pid: int, comm: str, container: str, host: Reading[str]) -> Process:
    folder = f"{PROC}/{pid}"
    namespace = reader.link(f"{folder}/ns/net").then(parse_namespace)
    own = host.then(lambda name: namespace.value != name) if namespace.value is not None else namespace.then(bool)
    return Process(
        pid=pid,
        comm=comm,
        container=container,
        namespace=namespace,
        own_network=own,
        interfaces=reader.text(f"{folder}/net/dev").then(parse_dev),
        variables=part(reader, f"{folder}/environ", reduce_environ, ENVIRON_LIMIT, zeros=True).then(parse_environ),
        processors=part(reader, f"{folder}/status", reduce_status, STATUS_LIMIT).then(parse_processors),
    )


def read(reader: Reader, holders: Holders) -> Containers:
    """Read the surroundings. /proc/PID/environ waits for a process that hangs in the kernel: this is a device group."""
    render = holders.render
    if render.value is None:
        return Containers(render.then(lambda _: ()), render.then(lambda _: ()), render.then(lambda _: ()))
    # the network that `network` describes is that of the reader, which may look from inside of a container itself
    host = reader.link(f"{PROC}/self/ns/net").or_(reader.link(f"{PROC}/1/ns/net")).then(parse_namespace)
    processes: dict[int, Process] = {}
    containers: dict[str, Container] = {}
    limits: dict[str, Limits] = {}
    for holder in render.value:
        if holder.pid in processes:
            continue
        engine, id, cgroup = parse_container(holder.cgroup)
        processes[holder.pid] = read_process(reader, holder.pid, holder.comm, id, host)
        if id and id not in containers:
            containers[id] = read_container(reader, engine, id)
        cgroup = cgroup or holder.cgroup
        if cgroup not in limits:
            limits[cgroup] = read_limits(reader, cgroup, id)
    source = f"{PROC}/*"
    return Containers(
        Reading(tuple(processes.values()), source),
        Reading(tuple(containers.values()), source),
        Reading(tuple(limits.values()), CGROUPS[0]),
    )
