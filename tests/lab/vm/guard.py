"""Run one program for a test run and end it with that run, however the run ends.

    python guard.py FOLDER PROGRAM [ARGUMENT ...]

Standard input is a pipe whose other end only the test process holds, so its end of file means that
the test process is gone, even by ``kill -9``: the program is killed and FOLDER removed. A byte means
that the program is to be killed and FOLDER is still needed. Should the guard itself be killed, the
kernel kills the program.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1


def die_with_the_guard() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(folder: str, *argv: str) -> int:
    program = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=die_with_the_guard)
    ended = os.pidfd_open(program.pid)
    ready, _, _ = select.select([0, ended], [], [])
    if ended in ready:
        return program.wait()
    folder_needed = os.read(0, 1)
    program.kill()
    program.wait()
    if not folder_needed:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
