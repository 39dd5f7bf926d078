"""The way back of a trial, armed before its first write: who puts the values back when the trial cannot.

Where systemd runs, a transient timer ``hostcheck-restore-ID.timer`` with a service of the same name: the service is
started at once and watches the trial's process; should it be killed itself, the timer starts it again when the trial's
time is over. Elsewhere the same program runs in a session of its own, which outlives the connection and ansible.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from ..settings.engine import Host
from ..settings.files import Failed, File
from . import restorer

UNIT = "hostcheck-restore-"
PROGRAM = "restore.py"
ARMED_WITHIN_S = 60.0  # the start of a Python on an emulated machine takes seconds
SLACK_S = 60.0


def program() -> str:
    """The text of restorer.py, also from inside the archive that ansible makes."""
    spec = importlib.util.find_spec(restorer.__name__)
    loader: Any = spec.loader if spec is not None else None
    source = loader.get_source(restorer.__name__) if hasattr(loader, "get_source") else None
    if source is None:
        raise FileNotFoundError(f"the text of {restorer.__name__} is not in this package")
    return str(source)


class Deadman:
    """Puts the values found back on every way out; armed means that somebody else will, should this process die.

    folder: of the trial, on the host. steps: see `restorer`. seconds: that the trial may take at most.
    """

    def __init__(self, host: Host, folder: str, steps: Sequence[dict[str, Any]], seconds: float) -> None:
        self.host, self.folder, self.steps, self.seconds = host, folder, list(steps), seconds
        self.root = "" if host.writer.live.is_root else host.writer.root
        self.real = host.writer.real(folder)
        self.unit = ""
        self.armed = False
        self._process: subprocess.Popen[bytes] | None = None

    def arm(self) -> str:
        """Keep the values found and start the watch; return who watches. Raises Failed; nothing may be written then."""
        by_systemd = not self.root and self.host.booted() and os.geteuid() == 0 and self.host.writer.has("systemd-run")
        self.unit = UNIT + self.folder.rpartition("/")[2] if by_systemd else ""
        self.host.writer.put(f"{self.folder}/{PROGRAM}", File(text=program(), mode=0o600))
        restorer.write(
            os.path.join(self.real, restorer.PLAN),
            {
                "schema": restorer.SCHEMA,
                "pid": os.getpid(),
                "start": restorer.started(os.getpid()),
                "boot_id": restorer.boot_id(),
                "until": time.clock_gettime(time.CLOCK_BOOTTIME) + self.seconds + SLACK_S,
                "root": self.root,
                "unit": self.unit,
                "steps": self.steps,
            },
        )
        try:
            said = self._timer() if self.unit else self._detached()
            self._wait()
        except (Failed, OSError) as error:
            self._disarm()
            raise Failed(f"nothing was written, because nobody would put it back: {error}") from error
        self.armed = True
        return said

    def _timer(self) -> str:
        seconds = int(self.seconds + SLACK_S) + 1
        command = (sys.executable, "-I", "-S", os.path.join(self.real, PROGRAM), self.real)
        self.host.writer.run(
            (
                "systemd-run",
                "--quiet",
                f"--unit={self.unit}",
                f"--on-active={seconds}",
                "--timer-property=AccuracySec=1s",
                "--description=Puts back what a hostcheck trial changed",
                *command,
            )
        )
        self.host.writer.run(("systemctl", "start", "--no-block", f"{self.unit}.service"))
        return f"{self.unit}.timer"

    def _detached(self) -> str:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", os.path.join(self.real, PROGRAM), self.real],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        return f"process {self._process.pid}"

    def _wait(self) -> None:
        """Until the watch says that it watches."""
        end = time.monotonic() + ARMED_WITHIN_S
        while not os.path.exists(os.path.join(self.real, restorer.ARMED)):
            if self._process is not None and self._process.poll() is not None:
                raise Failed(f"the watch ended at once with exit status {self._process.returncode}")
            if time.monotonic() > end:
                raise Failed(f"the watch did not start within {ARMED_WITHIN_S:.0f} s")
            time.sleep(0.02)

    def restore(self) -> str:
        """Put the values back and read them; "" when all are back, and the watch is then ended. Never raises."""
        problems = restorer.put_back(self.steps, self.root)
        if problems:
            return "; ".join(problems)  # the watch stays: it tries again when this process ends
        self._disarm()
        return ""

    def _disarm(self) -> None:
        """End the watch. Without its plan it does nothing any more, so a failure here is none of the trial's."""
        self.armed = False
        try:
            os.unlink(os.path.join(self.real, restorer.PLAN))
        except FileNotFoundError:
            pass
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None
        if self.unit:
            self.host.reader.run(("systemctl", "stop", f"{self.unit}.timer", f"{self.unit}.service"))
            self.unit = ""
