"""A directory that stands for a host with cards that come, fault and leave a coredump."""

from __future__ import annotations

import json
from pathlib import Path

from hostcheck.onhost.reader import Reader
from hostcheck.onhost.ready.gate import Request, run
from hostcheck.onhost.recording import below
from hostcheck.onhost.settings.files import Writer

BOOTS = ("11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222")
FIRST, SECOND = "0000:23:00.0", "0000:43:00.0"
FAULT = "xe {}: [drm] GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=3"
DMESG = '#!/bin/sh\ncat "$HOSTCHECK_ROOT/log"\n'
JOURNALCTL = """\
#!/bin/sh
file="$HOSTCHECK_ROOT/journal"
case "$*" in
    *--cursor=*) cursor="${*##*--cursor=}"; grep -q "\\"$cursor\\"" "$file" || { echo "Failed to seek" >&2; exit 1; }
        sed -n "/\\"$cursor\\"/,\\$p" "$file" ;;
    *"-n 1 "*) tail -n 1 "$file" ;;
    *) cat "$file" ;;
esac
"""


class ReadyHost:
    """A host below a directory: by default with two cards that can be used, and a log by dmesg."""

    def __init__(self, root: Path, cards: tuple[str, ...] = (FIRST, SECOND)) -> None:
        self.root = root
        self.seconds = 5.0
        self.put("/sys/bus/pci/devices/.keep", "")
        (root / "sys/bus/pci/devices/.keep").unlink()
        self.boot(BOOTS[0])
        for number, bdf in enumerate(cards):
            self.card(bdf, node=128 + number)

    # what it is made of

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def put(self, path: str, text: str | bytes, mode: int = 0o644) -> Path:
        file = self.path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        file.chmod(mode)
        return file

    def link(self, path: str, target: str) -> None:
        file = self.path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(target)

    def boot(self, boot_id: str, log: bool = True) -> None:
        """Boot anew: another boot id, nothing in /run, an empty log."""
        self.put("/proc/sys/kernel/random/boot_id", f"{boot_id}\n")
        self.put("/proc/uptime", "900.00 100.00\n")
        mark = self.path("/run/hostcheck/ready.json")
        mark.unlink(missing_ok=True)
        if log:
            self.put("/usr/bin/dmesg", DMESG, 0o755)
        self.put("/log", "[    0.000000] Linux version 6.17.0\n")
        self.seconds = 5.0

    def journal(self) -> None:
        """Have a journal too, with the lines so far."""
        self.put("/usr/bin/journalctl", JOURNALCTL, 0o755)
        lines = self.path("/log").read_text().splitlines()
        self.put("/journal", "")
        for line in lines:
            self._enter(float(line[1:13]), line[15:])

    def _enter(self, seconds: float, text: str) -> None:
        file = self.path("/journal")
        count = file.read_text().count("\n")
        entry = {
            "__CURSOR": f"c{count};",
            "__MONOTONIC_TIMESTAMP": str(round(seconds * 1e6)),
            "__REALTIME_TIMESTAMP": str(round((1_700_000_000 + seconds) * 1e6)),
            "MESSAGE": text,
            "PRIORITY": "4",
        }
        with file.open("a") as opened:
            opened.write(json.dumps(entry) + "\n")

    def say(self, text: str) -> None:
        """One more line of the kernel."""
        self.seconds += 1
        with self.path("/log").open("a") as file:
            file.write(f"[{self.seconds:12.6f}] {text}\n")
        if self.path("/journal").exists():
            self._enter(self.seconds, text)

    def card(self, bdf: str, driver: str = "xe", node: int = 128, device: str = "e223") -> None:
        """A card with a port of its own above it, bound and with its node; driver "": neither."""
        bus = bdf.split(":")[1]
        port = f"0000:{bus}:1f.7"
        folder = f"/sys/devices/pci0000:{bus}/{port}/{bdf}"
        for path, one, code in ((f"/sys/devices/pci0000:{bus}/{port}", "e2ff", "060400"), (folder, device, "030000")):
            self.put(f"{path}/vendor", "0x8086\n")
            self.put(f"{path}/device", f"0x{one}\n")
            self.put(f"{path}/class", f"0x{code}\n")
        self.put(f"{folder}/power/runtime_status", "suspended\n")
        self.link(f"/sys/bus/pci/devices/{port}", f"../../../devices/pci0000:{bus}/{port}")
        self.link(f"/sys/bus/pci/devices/{bdf}", f"../../../devices/pci0000:{bus}/{port}/{bdf}")
        if driver:
            self.bind(bdf, driver)
            self.node(bdf, node)

    def bind(self, bdf: str, driver: str = "xe") -> None:
        self.put(f"/sys/bus/pci/drivers/{driver}/bind", "")
        self.link(f"/sys/bus/pci/devices/{bdf}/driver", f"../../../../bus/pci/drivers/{driver}")

    def node(self, bdf: str, node: int, in_dev: bool = True) -> None:
        name = f"renderD{node}"
        self.put(f"/sys/bus/pci/devices/{bdf}/drm/{name}/dev", f"226:{node}\n")
        bus = bdf.split(":")[1]
        self.link(f"/sys/class/drm/{name}", f"../../devices/pci0000:{bus}/0000:{bus}:1f.7/{bdf}/drm/{name}")
        if in_dev:
            self.put(f"/dev/dri/{name}", "")

    def dump(self, number: int, bdf: str, data: bytes) -> Path:
        """A coredump of a card; its data."""
        node = f"/sys/class/devcoredump/devcd{number}"
        self.link(f"{node}/failing_device", f"../../../bus/pci/devices/{bdf}")
        return self.put(f"{node}/data", data, 0o600)

    # what is asked of it

    @property
    def reader(self) -> Reader:
        return below(str(self.root))

    @property
    def writer(self) -> Writer:
        return Writer(str(self.root))

    @property
    def mark(self) -> Path:
        return self.path("/run/hostcheck/ready.json")

    def ask(
        self, state: str, check_mode: bool = False, writer: Writer | None = None, **more: object
    ) -> dict[str, object]:
        """What the module host_ready answers."""
        return run(writer or self.writer, self.reader, Request(state=state, **more), check_mode)  # type: ignore[arg-type]

    def passes(self, boot_id: str = BOOTS[0], **more: object) -> dict[str, object]:
        return self.ask("present", passed=True, boot_id=boot_id, **more)
