"""Put values back that a trial found: called by the trial itself, and run on its own by whoever watches the trial.

A trial copies this text into its folder (``/var/lib/hostcheck/trials/ID/restore.py``), because ansible's files are gone
once it dies: so nothing but the standard library is imported here. ``restore.json`` beside it holds what to do::

    {"schema": "hostcheck/restore/1", "pid": 4711, "start": "8123456", "boot_id": "…", "until": 1234.5, "root": "",
     "unit": "hostcheck-restore-…", "steps": [{"path": "/sys/…/scaling_governor", "value": "schedutil"},
               {"run": ["tool", "off"], "read": ["tool", "state"], "value": "off", "timeout": 30.0}]}

It is removed once the values were read back, and that is what ends the watch: while it is there, the end of the process
(by pid and start time), the deadline (``until``, seconds of CLOCK_BOOTTIME) or a signal has the values put back.
``restored.json`` then says when, why, and what did not come back.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

SCHEMA = "hostcheck/restore/1"
PLAN, DONE, ARMED = "restore.json", "restored.json", "armed.json"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ATTEMPTS, PAUSE_S = 5, 0.5
NO_PIDFD_S = 0.5  # how often the process is looked at where a descriptor for it is refused (seccomp)


def put_back(steps: list[dict[str, Any]], root: str = "") -> list[str]:
    """Make every step, then read each back; return what is not as it was. What is as it was already is left alone."""
    problems: dict[int, str] = {}
    for number, step in enumerate(steps):
        try:
            if not _is(step, root):
                _make(step, root)
        except (OSError, subprocess.SubprocessError) as error:
            problems[number] = f"{_name(step)}: {_said(error)}"
    for number, step in enumerate(steps):
        try:
            now = read(step, root)
        except (OSError, subprocess.SubprocessError) as error:
            problems.setdefault(number, f"{_name(step)}: cannot be read back: {_said(error)}")
            continue
        if _same(now, step["value"]):
            problems.pop(number, None)
        else:
            problems.setdefault(number, f"{_name(step)}: wanted {step['value']!r}, reads back {now!r}")
    return [problems[number] for number in sorted(problems)]


def read(step: dict[str, Any], root: str = "") -> str:
    """The value of one step now. Raises OSError or SubprocessError."""
    if "path" in step:
        with open(root + step["path"], encoding="utf-8", errors="replace") as file:
            return file.read(65536).strip()
    return _run(step["read"], step["timeout"], root).strip()


def _make(step: dict[str, Any], root: str) -> None:
    if "path" not in step:
        _run(step["run"], step["timeout"], root)
        return
    descriptor = os.open(root + step["path"], os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, (step["value"] + "\n").encode())
    finally:
        os.close(descriptor)


def _is(step: dict[str, Any], root: str) -> bool:
    try:
        return _same(read(step, root), step["value"])
    except (OSError, subprocess.SubprocessError):
        return False


def _same(now: str, wanted: str) -> bool:
    """Is it the value? Some files of sysfs list all words, the one in force in brackets."""
    return now == wanted or f"[{wanted}]" in now.split()


def _run(argv: list[str], timeout: float, root: str) -> str:
    environment = {"LC_ALL": "C", "PATH": PATH, "HOME": "/", "TERM": "dumb"}
    if root:
        environment["HOSTCHECK_ROOT"] = root
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout,
        env=environment,
        cwd="/",
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[:200]
        raise subprocess.SubprocessError(f"exit {done.returncode}: {said}")
    return done.stdout


def _name(step: dict[str, Any]) -> str:
    return str(step["path"]) if "path" in step else " ".join(step["run"])


def _said(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error)


# -- the watch ----------------------------------------------------------------------------------------


def started(pid: int) -> str:
    """When a process started, in clock ticks since the boot; "" when there is none (or it only waits to be reaped)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            words = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] in "ZX" else words[19]


def watch(plan: dict[str, Any]) -> str:
    """Wait until the values have to be put back; return why. SIGTERM, SIGINT and SIGHUP are among the reasons."""
    called: list[int] = []
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)  # a handler alone would not end the wait
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _: called.append(got))
    pid, start, longest = int(plan["pid"]), str(plan["start"]), 3600.0
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    try:
        poll.register(os.pidfd_open(pid), select.POLLIN)
    except OSError:
        longest = NO_PIDFD_S
    while not called:
        if started(pid) != start:
            return "the process of the trial ended"
        left = float(plan["until"]) - time.clock_gettime(time.CLOCK_BOOTTIME)
        if left <= 0:
            return "the time of the trial is over"
        poll.poll(min(left, longest) * 1000.0)
    return f"ended by {signal.Signals(called[0]).name}"


def _load(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            plan = json.load(file)
    except FileNotFoundError:
        return None
    return plan if isinstance(plan, dict) and plan.get("schema") == SCHEMA else None


def write(path: str, value: dict[str, Any]) -> None:
    """Write a JSON file, whole and on the disk, readable by its owner only."""
    temporary = f"{path}.new"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)


def boot_id() -> str:
    """Identity of this boot, "" where it cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def finish(folder: str, why: str) -> list[str]:
    """Put back what the plan of a folder says, note it beside the plan, and remove the plan when all is back.

    A plan of an earlier boot is only noted: what is set at run time is gone with the boot.
    """
    path = os.path.join(folder, PLAN)
    plan = _load(path)
    if plan is None:
        return []
    rebooted = plan["boot_id"] != boot_id()
    problems: list[str] = []
    for attempt in range(0 if rebooted else ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_S)
        problems = put_back(plan["steps"], plan["root"])
        if not problems:
            break
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    why = "the host was rebooted: what is set at run time does not outlast that" if rebooted else why
    write(os.path.join(folder, DONE), {"when": when, "why": why, "rebooted": rebooted, "problems": problems})
    if not problems:
        os.unlink(path)
        if plan["unit"] and not rebooted:
            _stop_timer(f"{plan['unit']}.timer")
    return problems


def _stop_timer(unit: str) -> None:
    """It has nothing to do any more; where it cannot be stopped it finds no plan when it comes."""
    try:
        _run(["systemctl", "--no-block", "stop", unit], 30.0, "")
    except (OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"hostcheck: {unit}: {_said(error)}\n")


def main(folder: str) -> int:
    """Watch the trial of a folder. 0: nothing had to be put back, or all is back; 1: something is not."""
    plan = _load(os.path.join(folder, PLAN))
    if plan is None:
        return 0
    write(os.path.join(folder, ARMED), {"pid": os.getpid(), "start": started(os.getpid())})
    problems = finish(folder, watch(plan))
    for problem in problems:
        sys.stderr.write(f"hostcheck: not put back: {problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
