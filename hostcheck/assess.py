"""From the JSON that came back from a host to its report: the one way that the playbook and the command line share."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from . import __version__, checks
from .checks import log
from .checks.gpu import logged
from .checks.presence import NO_LIST
from .expectations import Expectation, Waiver
from .expectations import waivers as waivers_from
from .findings import Finding, Status, Subject, exit_code, run
from .onhost.gather import Facts
from .onhost.plain import to_plain
from .onhost.readings import gpu_ids
from .onhost.recording import seconds, utc
from .waivers import apply_waivers

SCHEMA = "hostcheck/report/1"
FACTS: TypeAdapter[Facts] = TypeAdapter(Facts)


def facts_from(data: Any) -> Facts:
    """Validate facts that came from a host; unknown keys are refused. Raises ValueError that names the place."""
    try:
        return FACTS.validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"facts: {where}: {first['msg']} ({error.error_count()} in all)") from error


@dataclass(frozen=True)
class Report:
    """What one host's audit gave.

    host: its name in the inventory. exit: 0, 1 or 3; see `findings.exit_code`.
    required: check ids that must not be unknown.
    waivers: all that were given for this host; `fleet.of_run` asks them for differences between hosts.
    """

    host: str
    facts: Facts
    findings: tuple[Finding, ...]
    required: tuple[str, ...]
    exit: int
    waivers: tuple[Waiver, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Number of findings per status; every status is there."""
        found = Counter(finding.status.value for finding in self.findings)
        return {status.value: found.get(status.value, 0) for status in Status}

    def to_plain(self) -> dict[str, Any]:
        """The document ``hostcheck/report/1`` of one host."""
        return {
            "schema": SCHEMA,
            "version": __version__,
            "host": self.host,
            "taken_at": self.facts.taken_at,
            "exit": self.exit,
            "counts": self.counts,
            "required": list(self.required),
            "waivers": [waiver.model_dump(mode="json", exclude_none=True) for waiver in self.waivers],
            "findings": [finding.to_plain() for finding in self.findings],
            "facts": to_plain(self.facts),
        }

    def to_json(self) -> str:
        """The same as text, which is the same byte for byte for the same findings."""
        return json.dumps(self.to_plain(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def gpu_present(facts: Facts) -> bool:
    """Is there a GPU, as far as could be read?

    A GPU that only the kernel log names, or of whose card only a port was recorded, is there too. Where the list of
    cards was refused, hung or made no sense there may be one, so that what is required of one is required. Where there
    is no list at all, neither the kernel's nor one of lspci, as in a part of a host, nothing tells of a card.
    """
    if facts.pcie.gpus.unread not in (None, *NO_LIST):
        return True
    ports = any((one.vendor, one.device) in gpu_ids.CARD_PORTS for one in facts.pcie.functions.value or ())
    return bool(facts.pcie.gpus.value or logged(facts)) or (ports and facts.pcie.gpus.value is None)


def bounded(facts: Facts, since: str, previous: Facts | None) -> Facts:
    """The facts without the events of the kernel log that ended before a time; which cards faulted is kept.

    Where the boot's own time was not read, or there is no earlier run to count from, nothing is left out.
    """
    if since == "boot":
        return facts
    if since == "last-run":
        begin = seconds(previous.taken_at) if previous is not None else None
    else:
        try:
            begin = seconds(since)
        except ValueError:
            raise ValueError(f"since is {since!r}, wanted boot, last-run or a UTC time such as {utc(0)}") from None
    uptime = facts.identity.uptime.value
    if begin is None or uptime is None:
        return facts
    return log.bounded(facts, begin - (seconds(facts.taken_at) - uptime))


def assess(
    facts: Facts,
    expectation: Expectation,
    waivers: Sequence[Waiver] = (),
    host: str = "localhost",
    previous: Facts | None = None,
    fail_on: Status = Status.fail,
    since: str = "boot",
) -> Report:
    """Judge one host.

    since: ``boot``, ``last-run`` (the time of `previous`) or a UTC time; older events of the kernel log are left out.
    Raises ValueError for a time that is not understood.
    """
    found = run(checks.ALL, bounded(facts, since, previous), expectation, previous)
    found = apply_waivers(found, waivers, facts, host)
    required = expectation.required_ids(gpu_present(facts))
    return Report(host, facts, tuple(found), required, exit_code(found, required, fail_on), tuple(waivers))


def report_from(data: Any) -> Report:
    """A report read back from its document. Raises ValueError for anything else."""
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or "findings" not in data:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"wanted a host's report with schema {SCHEMA}, found {found!r}")
    try:
        findings = tuple(_finding(item) for item in data["findings"])
        return Report(
            data["host"],
            facts_from(data["facts"]),
            findings,
            tuple(data["required"]),
            data["exit"],
            waivers_from(data.get("waivers", []), "waivers"),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"the report lacks or garbles {error}") from error


def _finding(data: dict[str, Any]) -> Finding:
    rest = {key: value for key, value in data.items() if key not in ("subject", "status", "explains")}
    return Finding(
        **rest,
        subject=Subject(data["subject"]["kind"], data["subject"]["name"]),
        status=Status(data["status"]),
        explains=tuple(_finding(item) for item in data.get("explains", ())),
    )
