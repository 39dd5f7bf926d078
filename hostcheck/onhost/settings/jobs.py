"""Who uses the cards now: nothing that would stop a running job is ever done."""

from __future__ import annotations

from .engine import Host


def holders(host: Host) -> tuple[str, ...]:
    """Processes that have a render or card node open, as ``PID (NAME)``. Raises Failed when that cannot be seen."""
    found = []
    for path in host.reader.children("/proc", r"[0-9]+"):
        names = host.reader.names(f"{path}/fd")
        if names.unread == "absent":
            continue  # ended meanwhile
        for name in host.must(names):
            if (host.reader.link(f"{path}/fd/{name}").value or "").startswith("/dev/dri/"):
                found.append(f"{path.rpartition('/')[2]} ({host.reader.line(f'{path}/comm').value or '?'})")
                break
    return tuple(found)
