"""Pack the part of the toolkit that runs on hosts as one archive that their Python runs as it is.

The archive has the same bytes for the same source, whoever packs it: entries are sorted, not compressed (compressors
differ), and carry neither time nor owner. Its sha256 therefore says which source a host runs.
"""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from . import __version__

NAME = "hostcheck.pyz"
# -I: neither the environment nor the working directory of whoever starts it decides what is imported.
INTERPRETER = b"#!/usr/bin/python3 -I\n"
MAIN = """\
import sys

if sys.version_info < (3, 9):
    sys.stderr.write("hostcheck: wants Python 3.9 or newer, this is %d.%d\\n" % sys.version_info[:2])
    sys.exit(3)

from hostcheck import __version__
from hostcheck.onhost.ready.command import main

sys.exit(main(__version__))
"""
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can say


def sources() -> dict[str, bytes]:
    """Name in the archive -> content."""
    here = Path(__file__).parent
    files = [here / "__init__.py", *(here / "onhost").rglob("*.py")]
    found = {str(path.relative_to(here.parent)): path.read_bytes() for path in files}
    return {**found, "__main__.py": MAIN.encode()}


def pack(files: dict[str, bytes]) -> bytes:
    """The archive of these files."""
    data = io.BytesIO()
    data.write(INTERPRETER)
    with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.create_system = 3  # Unix, whatever packs it
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, files[name])
    return data.getvalue()


def write(folder: Path) -> str:
    """Write the archive, its digest (for ``sha256sum -c``) and its version into a folder; the digest."""
    data = pack(sources())
    digest = hashlib.sha256(data).hexdigest()
    (folder / NAME).write_bytes(data)
    (folder / f"{NAME}.sha256").write_text(f"{digest}  {NAME}\n", encoding="utf-8")
    (folder / f"{NAME}.version").write_text(f"{__version__}\n", encoding="utf-8")
    return digest


def main(argv: Sequence[str]) -> int:
    """``python -m hostcheck.agent FOLDER``."""
    if len(argv) != 1 or not Path(argv[0]).is_dir():
        sys.stderr.write("usage: python -m hostcheck.agent FOLDER\n")
        return 2
    sys.stdout.write(f"{write(Path(argv[0]))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
