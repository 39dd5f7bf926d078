"""The units for hosts without a controller are what systemd takes, and keep what the page says of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "docs/systemd").iterdir())
INSTANCES = ["hostcheck-pull@audit.service", "hostcheck-pull@bringup.service"]
TIMERS = [path.name for path in UNITS if path.suffix == ".timer"]


def verify(folder: Path, change: tuple[str, str] = ("", "")) -> subprocess.CompletedProcess[str]:
    """Have systemd read the units; the program need not be there."""
    for path in UNITS:
        text = path.read_text().replace("/opt/hostcheck/.venv/bin/ansible-pull", "/bin/true")
        (folder / path.name).write_text(text.replace(*change) if change[0] else text)
    argv = ["systemd-analyze", "verify", *(str(folder / name) for name in [*TIMERS, *INSTANCES])]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    sound = verify(tmp_path)
    assert (sound.returncode, sound.stderr) == (0, "")
    assert "OnBotSec" in verify(tmp_path, ("OnBootSec", "OnBotSec")).stderr
    assert verify(tmp_path, ("/bin/true", "bin/true")).returncode != 0


def test_they_delay_at_random_and_never_reboot() -> None:
    assert len(TIMERS) == 2
    for path in UNITS:
        text = path.read_text()
        if path.suffix == ".timer":
            assert "RandomizedDelaySec=" in text
            assert text.split("Unit=")[1].split()[0] in INSTANCES
        else:
            assert "--extra-vars hostcheck_reboot_ok=false" in text
    for instance in INSTANCES:
        assert (ROOT / "playbooks" / f"{instance.partition('@')[2].removesuffix('.service')}.yml").exists()
