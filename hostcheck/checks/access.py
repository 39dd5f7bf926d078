"""May anybody but root open a card?"""

from __future__ import annotations

from collections.abc import Iterator

from ..expectations import Expectation
from ..findings import Cause, Finding, Status, check, unknown
from ..onhost.gather import Facts
from ..onhost.readings.pcie import DrmNode
from .gpu import cards, subject
from .presence import not_applicable, not_listed

READ_WRITE = 0o6


def only_root(mode: int, gid: int) -> bool:
    """Is a node open to root alone, by its mode and group?

    >>> only_root(0o660, 992), only_root(0o660, 0), only_root(0o600, 992), only_root(0o666, 0)
    (False, True, True, False)
    """
    by_group = mode >> 3 & READ_WRITE == READ_WRITE and gid != 0
    return not by_group and mode & READ_WRITE != READ_WRITE


@check("gpu.access", title="Not only root may open the render node of a card")
def access(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`gpu.access`

    Why: with a node that root alone may open, a job of anybody else sees no card at all, while everything that runs as
    root is fine. udev gives render nodes to a group of their own, and who runs jobs has to be in it (llm-scaler's
    set-up; arc-host-facts A.1). It may be wanted where all jobs run as root, so it is told, not judged.
    """
    unlisted = not_listed("gpu.access", facts)
    if unlisted is not None:
        yield unlisted
        return
    for gpu in cards(facts) if facts.pcie.gpus.value else ():
        who, source = subject(gpu), gpu.drm.source
        if gpu.drm.value is None and gpu.drm.unread != "absent":
            cause = Cause("gpu.enumeration", who)
            one = unknown("gpu.access", gpu.drm, who)
            yield Finding(one.id, who, one.status, one.seen, source=source, cause=cause)
            continue
        nodes: list[DrmNode] = [node for node in gpu.drm.value or () if node.name.startswith("renderD")]
        if not nodes:
            yield not_applicable("gpu.access", "no render node", source, who)
        for node in nodes:
            mode, gid = node.mode, node.gid
            unread = mode if mode.value is None else gid
            if mode.value is None or gid.value is None:
                if unread.unread == "absent":
                    yield not_applicable("gpu.access", f"the owner of {node.name} was not recorded", source, who)
                else:
                    yield unknown("gpu.access", unread, who)
                continue
            root = only_root(mode.value, gid.value)
            seen = f"{node.name} has mode {mode.value:04o} and group {gid.value}"
            yield Finding(
                "gpu.access",
                who,
                Status.info if root else Status.ok,
                seen=f"{seen}: only root may open it" if root else seen,
                source=mode.source,
                next_step="grep -rn 'renderD' /etc/udev/rules.d /usr/lib/udev/rules.d" if root else "",
            )
