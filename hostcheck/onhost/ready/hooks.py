"""Commands of the site that are told when a host has passed or failed, such as a scheduler's.

Each is an argument list that gets two more arguments, ``pass`` or ``fail`` and the reason on one line. A hook may only
take back marks of its own; see roles/host_agent/files for those of Slurm and Kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..reader import Reader, shorten

TIMEOUT, LONGEST = 30.0, 300.0  # seconds


@dataclass(frozen=True)
class Hook:
    """One command. timeout: seconds after which it is killed."""

    command: tuple[str, ...]
    timeout: float = TIMEOUT


def parse(data: Iterable[Any], name: str = "hooks") -> tuple[Hook, ...]:
    """Hooks of plain data. Raises ValueError that names the one that is wrong.

    >>> parse([{"command": ["/usr/local/lib/hostcheck/slurm-hook"], "timeout": 5}])
    (Hook(command=('/usr/local/lib/hostcheck/slurm-hook',), timeout=5.0),)
    """
    found = []
    for number, one in enumerate(data, 1):
        where = f"{name}, number {number}"
        if not isinstance(one, dict) or set(one) - {"command", "timeout"}:
            raise ValueError(f"{where}: expected a dictionary of command and timeout, got {shorten(repr(one), 80)}")
        command = one.get("command")
        if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
            raise ValueError(f"{where}: command is a list of words, got {shorten(repr(command), 80)}")
        timeout = one.get("timeout", TIMEOUT)
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout <= LONGEST:
            raise ValueError(f"{where}: timeout is a number of seconds up to {LONGEST:g}, got {timeout!r}")
        found.append(Hook(tuple(command), float(timeout)))
    return tuple(found)


def run(reader: Reader, hooks: Iterable[Hook], state: str, reason: str) -> list[dict[str, Any]]:
    """Run the hooks one after the other, whatever becomes of each: command, and the problem, "" when it went well.

    state: ``pass`` or ``fail``.
    """
    said = "".join(letter if letter.isprintable() else " " for letter in shorten(reason))
    answers = []
    for hook in hooks:
        ran = reader.run((*hook.command, state, said), hook.timeout, 64 << 10)
        if ran.value is None:
            problem = f"{ran.unread}: {ran.detail}"
        elif ran.value.rc != 0:
            problem = shorten(f"exit {ran.value.rc}: {ran.value.stderr or ran.value.stdout}")
        else:
            problem = ""
        answers.append({"command": list(hook.command), "problem": problem})
    return answers
