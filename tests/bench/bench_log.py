"""How fast a kernel log is read, in processor time, and in how much memory; exits 1 when a wanted figure is missed.

python -m tests.bench.bench_log [lines]
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from itertools import islice

from hostcheck.onhost.readings.kernel_log import parse_journal, parse_text

WANTED_TEXT, WANTED_JOURNAL = 200_000, 100_000  # lines per second
WANTED_MEMORY = 300 << 20
LINES = 1_000_000

NOISE = (
    "audit: type=1400 audit(1700000000.123:45): apparmor=STATUS operation=profile_load profile=unconfined name=default",
    "usb 3-1: new high-speed USB device number 4 using xhci_hcd",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
    "nvme nvme0: 16/0/0 default/read/poll queues",
    "docker0: port 3(veth12ab) entered forwarding state",
    "systemd-journald[431]: Received client request to flush runtime journal.",
    "mlx5_core 0000:61:00.0: mlx5_pcie_event: PCIe slot advertised sufficient power",
    "snd_hda_intel 0000:c4:00.1: azx_get_response {0}, switching to polling mode",
)
ERROR = (
    "pcieport 0000:00:03.0: AER: Correctable error message received from 0000:00:03.0",
    "pcieport 0000:00:03.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)",
    "pcieport 0000:00:03.0:   device [8086:2f08] error status/mask=00001000/00002000",
    "pcieport 0000:00:03.0:    [12] Timeout",
)


def messages(count: int) -> Iterator[tuple[float, str]]:
    """A storm of corrected errors between other lines, and now and then a fault of a card."""
    for number in range(count):
        seconds = number * 0.0005
        if number % 20 < 4:
            yield seconds, ERROR[number % 20]
        elif number % 5000 == 7:
            yield (
                seconds,
                f"xe 0000:43:00.0: [drm] Tile0: GT0: Timedout job: seqno={number}, guc_id=2 in python [{number}]",
            )
        else:
            yield seconds, f"{NOISE[number % len(NOISE)]} {number}"


def text(count: int) -> Iterator[str]:
    for seconds, message in messages(count):
        yield f"[{seconds:12.6f}] {message}"


def journal(count: int) -> Iterator[str]:
    for number, (seconds, message) in enumerate(messages(count)):
        entry = {
            "__CURSOR": f"s=0f6d1c9be2b54a3f9a8f3d1c5b7e9a01;i={number:x};m=1;t=1;x=1",
            "__REALTIME_TIMESTAMP": str(1_791_104_390_030_000 + round(seconds * 1e6)),
            "__MONOTONIC_TIMESTAMP": str(round(seconds * 1e6)),
            "_BOOT_ID": "5b0f8d8e2f6a4c0b9d0e6a1f1c2b3d45",
            "PRIORITY": "4",
            "MESSAGE": message,
        }
        yield json.dumps(entry, separators=(",", ":"))


def rate(lines: Iterator[str], parse: object) -> float:
    """Lines per second of processor time of the parser alone; what making the lines takes is taken off."""
    kept = 0
    spent = 0.0
    assert callable(parse)

    def counted() -> Iterator[str]:
        nonlocal kept, spent
        while True:
            started = time.process_time()
            some = list(islice(lines, 8192))
            spent += time.process_time() - started
            if not some:
                return
            kept += len(some)
            yield from some

    started = time.process_time()
    log = parse(counted())
    took = time.process_time() - started - spent
    assert log.lines == kept
    assert any(event.kind == "aer.corrected" and event.count == kept // 20 for event in log.events)
    return kept / took


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else LINES
    as_text = rate(text(count), lambda lines: parse_text(lines, 1.0e9, 0.0))
    as_journal = rate(journal(count), parse_journal)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(f"text     {as_text:10,.0f} lines/s, wanted {WANTED_TEXT:,}")
    print(f"journal  {as_journal:10,.0f} lines/s, wanted {WANTED_JOURNAL:,}")
    print(f"memory   {memory / (1 << 20):10,.0f} MiB, wanted under {WANTED_MEMORY >> 20}")
    return 0 if as_text >= WANTED_TEXT and as_journal >= WANTED_JOURNAL and memory < WANTED_MEMORY else 1


if __name__ == "__main__":
    raise SystemExit(main())
