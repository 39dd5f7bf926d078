"""Facts as plain data: the one place where dataclasses become JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from .reader import Reading


def to_plain(value: Any) -> Any:
    """Plain data of a dataclass, a `Reading`, or a container of them.

    >>> to_plain(Reading(("a", 1), "/x"))
    {'value': ['a', 1], 'source': '/x'}
    >>> to_plain(Reading.no("absent", "ENOENT", "/x"))
    {'unread': 'absent', 'detail': 'ENOENT', 'source': '/x'}
    """
    if isinstance(value, Reading):
        if value.unread is not None:
            return {"unread": value.unread, "detail": value.detail, "source": value.source}
        return {"value": to_plain(value.value), "source": value.source}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value
