"""Who uses the cards now: nothing that would stop a running job is ever done."""

from __future__ import annotations

from ..readings import holders as reading
from .engine import Host
from .files import Failed


def holders(host: Host) -> tuple[str, ...]:
    """Processes that have a render or card node open, as ``PID (NAME)``. Raises Failed when that cannot be seen."""
    found = reading.read(host.reader)
    render: tuple[reading.Holder, ...] = host.must(found.render)
    if found.refused.value:
        raise Failed(
            f"open files of {found.refused.value} processes cannot be listed; run as root (ansible-playbook -b)"
        )
    return tuple(dict.fromkeys(f"{one.pid} ({one.comm or '?'})" for one in render))
