"""What the module host_ready does: ask for the mark, give it, take it away, keep evidence; hooks come last.

The order is the promise: a mark is taken away before anything else is done for a failure, and given before anybody is
told of a pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..reader import Reader, Reading
from ..readings import holders, identity
from ..readings.kernel_log import Event
from ..settings.files import Failed, Writer
from . import evidence, hooks
from .ladder import is_load_time_fault, next_rung
from .log import line_of, newest
from .mark import EVIDENCE, MARK, READY, NotPassed, boot_faults, check, grant, is_boot_id, remove


@dataclass(frozen=True)
class Request:
    """What is asked for; see the manual of the module (library/host_ready.py)."""

    state: str = "query"
    passed: bool = False
    boot_id: str = ""
    findings: Mapping[str, Any] | None = None
    receipts: Sequence[str] = ()
    log_after: float | None = None
    reason: str = ""
    probed: bool = False
    on_pass: Sequence[Any] = ()
    on_fail: Sequence[Any] = ()
    dump_limit: int = evidence.DUMP_LIMIT
    total_limit: int = evidence.TOTAL_LIMIT


def run(writer: Writer, reader: Reader, request: Request, check_mode: bool = False) -> dict[str, Any]:
    """Do it. The answer has ``msg`` exactly when it failed. Raises ValueError for bad input, with nothing touched."""
    on_pass, on_fail = hooks.parse(request.on_pass, "on_pass"), hooks.parse(request.on_fail, "on_fail")
    if request.state == "present" and request.passed and not is_boot_id(request.boot_id):
        raise ValueError(f"boot_id: wanted the boot on which the host passed, got {request.boot_id!r}")
    if request.dump_limit < 0 or request.total_limit < 0:
        raise ValueError("dump_limit and total_limit are numbers of bytes, not negative")
    answer: dict[str, Any] = {"changed": False, "evidence": {}, "hooks": []}
    told: tuple[hooks.Hook, ...] = ()
    state = "fail"
    if request.state == "present":
        told, state = _present(writer, reader, request, answer, check_mode, on_pass, on_fail)
    elif request.state == "absent":
        answer["changed"] = writer.file(MARK) is not None if check_mode else remove(writer)
        told = on_fail
    elif request.state == "evidence":
        answer["changed"] = True
        if not check_mode:
            _evidence(writer, reader, request, answer)
        told = on_fail
    answer.update(look(reader, request, bool(answer["evidence"])))
    reason = str(answer.get("msg") or request.reason or answer["reason"])
    if not check_mode and told:
        answer["hooks"] = hooks.run(reader, told, state, reason)
        answer["changed"] = True
    wrong = [f"{' '.join(one['command'])}: {one['problem']}" for one in answer["hooks"] if one["problem"]]
    if wrong and state == "pass":
        answer["msg"] = f"the host is marked ready, but a hook failed: {'; '.join(wrong)}"
    if answer.get("msg") and answer["rung"]:
        answer["msg"] += f". Next, for a person (rung {answer['rung']['number']}): {answer['rung']['text']}"
    return answer


def _present(
    writer: Writer,
    reader: Reader,
    request: Request,
    answer: dict[str, Any],
    check_mode: bool,
    on_pass: tuple[hooks.Hook, ...],
    on_fail: tuple[hooks.Hook, ...],
) -> tuple[tuple[hooks.Hook, ...], str]:
    """Give the mark, or take it away; the hooks to run, and for what."""
    answer["changed"] = True
    if check_mode:
        return (), "pass"
    try:
        if not request.passed:
            raise NotPassed(request.reason or "the host has not passed")
        with writer.lock():
            grant(writer, reader, request.boot_id, request.findings or {}, tuple(request.receipts), request.log_after)
        return on_pass, "pass"
    except (NotPassed, Failed) as error:
        remove(writer)
        answer["msg"] = f"not ready: {error}"
        return on_fail, "fail"


def _evidence(writer: Writer, reader: Reader, request: Request, answer: dict[str, Any]) -> None:
    try:
        kept = evidence.keep(writer, reader, request.reason, request.dump_limit, request.total_limit)
        answer["evidence"] = asdict(kept)
    except Failed as error:
        answer["msg"] = f"no evidence was kept: {error}"


def look(reader: Reader, request: Request, has_evidence: bool) -> dict[str, Any]:
    """Is the host ready, what speaks against a card since `Request.log_after`, and what should a person do next?"""
    verdict = check(reader)
    place = newest(reader)
    said: Reading[tuple[Event, ...]] = boot_faults(reader, request.log_after)
    rung = None
    if said.value:
        uptime = reader.text("/proc/uptime").then(identity.parse_uptime).value
        held = [f"{one.pid} ({one.comm or '?'})" for one in holders.read(reader).render.value or ()]
        kept = has_evidence or bool(place.value and reader.names(f"{EVIDENCE}/{place.value.boot_id}").value)
        rung = next_rung(said.value, uptime, kept, list(dict.fromkeys(held)), request.probed)
    return {
        "ready": verdict.code == READY,
        "code": verdict.code,
        "reason": verdict.reason,
        "boot_id": place.value.boot_id if place.value else "",
        "log_end": place.value.seconds if place.value else None,
        "log_unread": f"{said.unread}: {said.detail}" if said.value is None else "",
        "faults": [line_of(one) for one in said.value or ()],
        "load_time_fault": is_load_time_fault(said.value or ()),
        "rung": asdict(rung) if rung else {},
    }
