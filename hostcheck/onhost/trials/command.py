"""A pair of commands with a command that reads back: whatever else a host can switch while it runs.

Argument lists, never a shell; each with a timeout. What A gives must be what was found, or ``restore`` says how that
comes back: it is run where the read-back is not the one found.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..reader import shorten
from ..settings.engine import Host, Refused, Thing, keys_of
from ..settings.files import Failed
from .switch import Declaration, Scope, Switch

NAME = "command"
TIMEOUT_S = 30.0
ARMS = {"a": "A", "b": "B"}


@dataclass(frozen=True)
class Pair(Thing):
    """What a pair of commands switches. Its value is what ``read`` prints; an arm's value is the command itself."""

    kind = "command"

    asked: tuple[str, ...] = ()
    timeout: float = field(default=TIMEOUT_S)

    def read(self, host: Host) -> Any:
        return host.writer.run(self.asked, self.timeout).strip()

    def write(self, host: Host, value: Any) -> None:
        host.writer.run(value, self.timeout)


def _argv(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(one, str) and one for one in value):
        raise Refused(f"{NAME}.{name}: wanted a list of words, found {value!r:.80}")
    return tuple(value)


def switch(host: Host, a: Mapping[str, Any], b: Mapping[str, Any], scope: Scope) -> Switch:
    """b: ``{a, b, read, restore, timeout}``; a must be empty. Raises Refused."""
    if a:
        raise Refused(f"{NAME}: both commands are named in b (keys a, b, read), found {dict(a)!r:.80} in a")
    given = keys_of(
        dict(b), NAME, {"a": list, "b": list, "read": list, "restore": list, "timeout": (int, float), "name": str}
    )
    missing = [key for key in ("a", "b", "read") if key not in given]
    if missing:
        raise Refused(f"{NAME}: {', '.join(missing)} missing; wanted a, b and read, each a list of words")
    commands = {arm: _argv(key, given[key]) for key, arm in ARMS.items()}
    asked, restore = _argv("read", given["read"]), _argv("restore", given.get("restore", given["a"]))
    timeout = float(given.get("timeout", TIMEOUT_S))
    if not 0 < timeout <= 600:
        raise Refused(f"{NAME}.timeout: wanted more than 0 and at most 600 seconds, found {timeout:g}")
    try:
        programs = {argv[0]: host.writer.program(argv[0]) for argv in (*commands.values(), asked, restore)}
    except Failed as error:
        raise Refused(f"{NAME}: {error} on this host") from error
    thing = Pair(str(given.get("name") or shlex.join(asked)), (), asked, timeout)
    try:
        found = thing.read(host)
    except Failed as error:
        raise Refused(f"{NAME}.read: {error}") from error
    if not found or "\n" in found:
        raise Refused(f"{NAME}.read: wanted one line, {shlex.join(asked)} printed {shorten(found) or 'nothing'}")
    steps = (
        {
            "run": [programs[restore[0]], *restore[1:]],
            "read": [programs[asked[0]], *asked[1:]],
            "value": found,
            "timeout": timeout,
        },
    )
    return Switch(
        NAME,
        (thing,),
        {arm: (argv,) for arm, argv in commands.items()},
        steps,
        {arm: shorten(shlex.join(argv), 80) for arm, argv in commands.items()},
        metric="launch_us",
    )


TOGGLE = Declaration(NAME, switch)
