"""Which variables of a service or a process may be read, and how a file is read of which only a part may travel.

Environments, unit files and container configurations hold tokens. Of them nothing but the names below is kept: neither
facts nor a recording ever hold the rest.
"""

from __future__ import annotations

import re
from typing import Callable

from ..reader import FILE_LIMIT, Reader, Reading, as_text

# Variables that decide how a job uses cards and network (arc-host-facts A.1, lab-host-facts 2.6).
ALLOWED = re.compile(
    r"(?:CCL|ONECCL|FI|ZE|ZES|SYCL|UR)_\w+|GLOO_SOCKET_IFNAME|NCCL_SOCKET_IFNAME|"
    r"ONEAPI_DEVICE_SELECTOR|NEOReadDebugKeys|RenderCompressedBuffersEnabled|EnableDeferBacking|"
    r"TP_SOCKET_IFNAME|I_MPI_HYDRA_IFACE|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|OMP_NUM_THREADS"
)
REFUSED = re.compile(r"(?i)token|secret|passw|credential|api_?key|uuid|(?:^|_)key$")

# Variables that name a network interface -> how the name is compared:
# part     any interface with that text in its name (oneCCL, internal_kvs::fill_local_host_ip: strstr)
# exact    that interface (libfabric, Intel MPI)
# each     every name of a list separated by commas (gloo, tensorpipe)
# prefix   an interface that starts so (libfabric's verbs)
# nccl     a list of which one must start so; ``=`` exact, ``^`` excludes
PINS = {
    "CCL_KVS_IFACE": "part",
    "FI_TCP_IFACE": "exact",
    "FI_SOCKETS_IFACE": "exact",
    "FI_UDP_IFACE": "exact",
    "FI_VERBS_IFACE": "prefix",
    "GLOO_SOCKET_IFNAME": "each",
    "TP_SOCKET_IFNAME": "each",
    "NCCL_SOCKET_IFNAME": "nccl",
    "I_MPI_HYDRA_IFACE": "exact",
}


def allowed(name: str) -> bool:
    """May the value of this variable be read?

    >>> allowed("CCL_KVS_IFACE"), allowed("HF_TOKEN"), allowed("CCL_API_KEY")
    (True, False, False)
    """
    return bool(ALLOWED.fullmatch(name)) and not REFUSED.search(name)


def part(
    reader: Reader, path: str, reduce: Callable[[str], str], limit: int = FILE_LIMIT, zeros: bool = False
) -> Reading[str]:
    """What `reduce` leaves of a text file; a recording keeps the same and no more.

    zeros: NUL bytes are part of the text, as in /proc/PID/environ. A ValueError of `reduce` makes it not_understood.
    """
    data = reader.unrecorded.data(path, limit)
    if data.value is None:
        left = data.then(lambda _: "")
    elif zeros:
        left = data.then(lambda found: reduce(found.decode("utf-8", "replace")))
    else:
        left = as_text(data.value, path).then(reduce)
    reader.keep(path, left)
    return left


def parse_environ(text: str) -> dict[str, str]:
    """Return the allowed variables of /proc/PID/environ.

    >>> parse_environ("HF_TOKEN=x\\0CCL_KVS_IFACE=eth1\\0")
    {'CCL_KVS_IFACE': 'eth1'}

    Raises ValueError for text that is no environment.
    """
    found: dict[str, str] = {}
    entries = [entry for entry in text.split("\0") if entry]
    if entries and not any("=" in entry for entry in entries):
        raise ValueError(f"expected NAME=value, got {len(entries)} entries without one")
    for entry in entries:
        name, equals, value = entry.partition("=")
        if equals and allowed(name):
            found.setdefault(name, value)  # getenv takes the first one
    return found


def reduce_environ(text: str) -> str:
    """The allowed variables of /proc/PID/environ, in its own form."""
    return "".join(f"{name}={value}\0" for name, value in parse_environ(text).items())
