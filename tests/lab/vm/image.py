"""The files of a built image, and where they are kept."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from . import accel, qemu

HERE = Path(__file__).parent

#: Kernels of the image: the one of the release, and a newer one with other words for the same events.
KERNELS = ("stable", "backports")


@dataclass(frozen=True)
class Image:
    """A built image. Nothing in it is written to again."""

    folder: Path

    @property
    def key(self) -> Path:
        """Private key that root and the user ``reader`` of the guest accept."""
        return self.folder / "key"

    def vmlinux(self, kernel: str) -> Path:
        """Uncompressed kernel: QEMU enters it directly, so no decompressor is emulated."""
        return self.folder / f"{kernel}.vmlinux"

    def initrd(self, kernel: str) -> Path:
        return self.folder / f"{kernel}.initrd"

    def disk(self, kernel: str) -> Path:
        """Disk (qcow2) as it was when the state was saved."""
        return self.folder / f"{kernel}.qcow2"

    def state(self, kernel: str) -> Path:
        """State of the booted machine, with the cards laid over and everybody logged out."""
        return self.folder / f"{kernel}.state"

    def release(self, kernel: str) -> str:
        """Kernel release, for example ``6.1.0-57-amd64``."""
        releases: dict[str, str] = json.loads((self.folder / "kernels.json").read_text())
        return releases[kernel]

    @property
    def accelerator(self) -> accel.Choice:
        """What its states were saved under, and so what they are resumed under."""
        return accel.Choice(**json.loads((self.folder / "accelerator.json").read_text()))

    def use(self, choice: accel.Choice) -> None:
        """Keep what its states are going to be saved under."""
        (self.folder / "accelerator.json").write_text(json.dumps(asdict(choice)))

    def unusable(self) -> str:
        """Return why its states cannot be taken up on this machine, or an empty text. Those of TCG can everywhere."""
        choice = self.accelerator
        if choice.name == "tcg":
            return ""
        if choice.measured_on != accel.here():
            return f"its states were saved under KVM on another machine: {choice.measured_on}"
        return accel.refused()


def cache() -> Path:
    """Return the folder of all images."""
    return Path(os.environ.get("HOSTCHECK_LAB_CACHE") or Path.home() / ".cache/hostcheck/lab")


@functools.cache
def digest() -> str:
    """Return a key over everything that an image is made from, except the distribution's packages."""
    key = hashlib.sha256(qemu.version().encode())
    paths = [HERE / f"{name}.py" for name in ("build", "cards", "qemu")]
    for folder in ("guest", "modules"):
        paths += sorted(path for path in (HERE / folder).rglob("*") if path.is_file())
    for path in paths:
        content = path.read_bytes()
        key.update(f"{path.relative_to(HERE)} {path.stat().st_mode & 0o111:o} {len(content)}\n".encode() + content)
    return key.hexdigest()[:16]


def find() -> Image | None:
    """Return the image that belongs to these sources, if it has been built and can run here."""
    image = Image(cache() / digest())
    return image if image.folder.is_dir() and not image.unusable() else None


def wait_for_build() -> None:
    """Return when no build is running; `build.build` holds the lock."""
    try:
        with (cache() / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
    except FileNotFoundError:
        pass
