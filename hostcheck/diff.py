"""Why is host B slower than host A? What differs between two hosts, or two runs of one, most telling first.

The order is that of the decision table of the public B70 optimization lab: a card that faulted explains more than a
link, a link more than a package, and governor, ASPM and IOMMU were neutral there, so they stand last. A difference
is no proof: `note` says what is known of it, and the probe decides.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .assess import SCHEMA as REPORT
from .assess import Report, assess, facts_from, report_from
from .expectations import Expectation
from .findings import Finding, Status
from .onhost.gather import SCHEMA as FACTS
from .onhost.gather import Facts, gather
from .onhost.reader import Reading
from .onhost.readings import gpu_ids
from .onhost.readings.cpufreq import Policy
from .onhost.readings.pcie import Gpu
from .onhost.recording import SCHEMA as RECORDING
from .onhost.recording import RecordedReader, below, checked
from .report import store

Values = dict[str, str]
NONE, ABSENT = "none", "absent"
COUNTED = (Status.fail, Status.warn, Status.unknown)


@dataclass(frozen=True)
class Trait:
    """Something of a host that can be compared.

    read: gives names and values; the name is ``""`` where there is one value. fleet: id of the check that looks for the
    odd one out among hosts of one class, ``""`` for none. weak: the lab found it neutral for decoding. own_names: the
    names of the values say enough without that of the trait. running: it is there only while a process holds a card.
    """

    name: str
    read: Callable[[Facts], Reading[Values]]
    fleet: str = ""
    weak: bool = False
    own_names: bool = False
    running: bool = False

    def called(self, name: str) -> str:
        """What one of its values is called."""
        return name if name and self.own_names else f"{self.name} {name}".strip()


@dataclass(frozen=True)
class Topic:
    """Traits and checks that belong together. note: what is known of such a difference, with its source."""

    name: str
    note: str
    checks: tuple[str, ...]
    traits: tuple[Trait, ...] = ()


@dataclass(frozen=True)
class Difference:
    """One difference. what: a trait or a check with its subject. first, second: what both hosts have.

    status: of the worse finding, None for a trait. unread: one side could not be read, so whether they differ is open.
    """

    topic: str
    what: str
    first: str
    second: str
    status: Status | None = None
    unread: bool = False
    weak: bool = False


# -- what is compared ---------------------------------------------------------------------------------


def counted(words: Iterable[str]) -> str:
    """Words with their number, the most frequent first.

    >>> counted(["x16", "x8", "x16"])
    '2 x x16, 1 x x8'
    """
    found = Counter(words)
    return ", ".join(f"{count} x {word}" for word, count in sorted(found.items(), key=lambda item: (-item[1], item[0])))


def uniform(words: Iterable[str]) -> str:
    """The word that all have; where they differ, the words with their number.

    >>> uniform(["x16", "x16"]), uniform(["x16", "x8", "x16"]), uniform([])
    ('x16', '2 x x16, 1 x x8', 'none')
    """
    found = list(words)
    return found[0] if len(set(found)) == 1 else counted(found) or NONE


def one(reading: Reading[Any]) -> Reading[Values]:
    """A trait with one value."""
    return reading.then(lambda value: {"": str(value)})


def several(readings: dict[str, Reading[Any]]) -> Reading[Values]:
    """A trait of several values; what this host does not have is left out, what was refused makes the whole unread."""
    found: Values = {}
    source = ""
    for name, reading in readings.items():
        if reading.value is not None:
            found[name] = str(reading.value)
            source = source or reading.source
        elif reading.unread != "absent":
            return Reading.no(str(reading.unread), reading.detail, reading.source)
    return Reading(found, source)


def _cards(facts: Facts) -> Reading[tuple[Gpu, ...]]:
    return facts.pcie.gpus.then(
        lambda gpus: tuple(
            gpu for gpu in gpus if not (gpu.integrated or gpu.vf or gpu_ids.holds_for_another(gpu.driver.value or ""))
        )
    )


def _of_cards(
    facts: Facts, of: Callable[[Gpu], Reading[str]], words_of: Callable[[Iterable[str]], str] = uniform
) -> Reading[Values]:
    """One word per card, put together; the first card that could not be read makes the whole unread."""
    found = _cards(facts)
    if found.value is None:
        return found.then(lambda _: {})
    words = []
    for gpu in found.value:
        word = of(gpu)
        if word.value is not None:
            words.append(word.value)
        elif word.unread != "absent":
            return Reading.no(str(word.unread), word.detail, word.source)
    return Reading({"": words_of(words) or NONE}, found.source)


def _link(gpu: Gpu) -> Reading[str]:
    hop = next((hop for hop in gpu.path if hop.crosses_slot), None)
    if hop is None:
        return Reading.no("absent", "no port at the slot is visible")
    if hop.width.value is None:
        return hop.width.then(str)
    lanes = hop.width.value
    return hop.speed.then(lambda speed: f"x{lanes} {speed:g} GT/s")


def links(facts: Facts) -> Reading[Values]:
    """Speed and width at the slot of every card."""
    return _of_cards(facts, _link)


def models(facts: Facts) -> Reading[Values]:
    """Models of the cards, counted."""
    return _of_cards(facts, lambda gpu: Reading(gpu_ids.name_of(gpu.vendor, gpu.device), gpu.driver.source), counted)


def bars(facts: Facts) -> Reading[Values]:
    """Size of BAR 2 of every card."""

    def size(gpu: Gpu) -> Reading[str]:
        return gpu.bars.then(lambda all_bars: f"{(all_bars[2] if len(all_bars) > 2 else 0) >> 20} MiB")

    return _of_cards(facts, size)


def guc(facts: Facts) -> Reading[Values]:
    """Versions of the GuC firmware, as the kernel log names them for each card."""
    cards, events = _cards(facts), facts.kernel_log.events
    if cards.value is None or events.value is None:
        return (cards if cards.value is None else events).then(lambda _: {})
    intel = [gpu.bdf for gpu in cards.value if gpu.vendor == gpu_ids.INTEL and gpu.driver.value in ("xe", "i915")]
    running: dict[str, str] = {}
    for event in events.value:
        if event.kind in ("guc.loaded", "guc.version", "guc.recommended") and not event.previous_boot:
            version = event.details.get("version") or event.details.get("found") or ""
            if version:
                running[event.bdf] = version.rpartition(", ")[2]
    if not intel:
        return Reading({"": NONE}, cards.source)
    if not running:
        return Reading.no("absent", "no line says which GuC was loaded", events.source)
    known = [running[bdf] for bdf in intel if bdf in running] or list(running.values())
    return Reading({"": ", ".join(sorted(set(known)))}, events.source)


def guc_files(facts: Facts) -> Reading[Values]:
    """Digests of the GuC files that the next load takes: blobs of newer releases name no version in their text."""
    cards = _cards(facts)
    if not any(gpu.vendor == gpu_ids.INTEL and gpu.driver.value == "xe" for gpu in cards.value or ()):
        return Reading.no("absent", "no card of xe", cards.source)
    files = facts.firmware_files.guc
    if files.value and all(one.digest.value is None for one in files.value):
        return files.value[0].digest.then(lambda _: {})
    return files.then(
        lambda found: {one.path.rpartition("/")[2]: one.digest.value[:16] for one in found if one.digest.value}
    )


def images(facts: Facts) -> Reading[Values]:
    """Images of the containers that hold a card, by the digest where it is known."""

    def words(found: tuple[Any, ...]) -> Values:
        said = {
            f"{container.image.value or container.name.value or 'unnamed'}"
            f" {(container.digest.value or container.image_id.value or 'digest not read')[:19]}"
            for container in found
        }
        return {"": ", ".join(sorted(said)) or NONE}

    return facts.containers.containers.then(words)


def variables(facts: Facts) -> Reading[Values]:
    """Allowed variables of the processes that hold a card."""

    def words(found: tuple[Any, ...]) -> Values:
        values: dict[str, set[str]] = {}
        for process in found:
            for name, value in (process.variables.value or {}).items():
                if name not in ("RANK", "LOCAL_RANK"):  # differ from process to process by their nature
                    values.setdefault(name, set()).add(value)
        return {name: ", ".join(sorted(said)) for name, said in values.items()}

    return facts.containers.processes.then(words)


def governor(facts: Facts) -> Reading[Values]:
    """Driver, governor and EPP of the processors."""

    def words(policies: tuple[Policy, ...]) -> Values:
        if not policies:
            return {"governor": NONE}
        found: Values = {}
        for name in ("driver", "governor", "epp"):
            said = {getattr(policy, name).value or str(getattr(policy, name).unread) for policy in policies}
            if said != {"absent"}:
                found[{"epp": "EPP", "driver": "cpufreq driver"}.get(name, name)] = ", ".join(sorted(said))
        return found

    return facts.cpufreq.policies.then(words)


def clocks(facts: Facts) -> Reading[Values]:
    """The largest clock that the processors may run at, in MHz."""

    def words(policies: tuple[Policy, ...]) -> Values:
        limits = [policy.max_khz.value for policy in policies if policy.max_khz.value]
        return {"": f"{max(limits) // 1000} MHz"} if limits else {"": NONE}

    return facts.cpufreq.policies.then(words)


def boost(facts: Facts) -> Reading[Values]:
    """Is boost on?"""
    switches = (facts.cpufreq.no_turbo.then(lambda off: not off), facts.cpufreq.boost)
    return several({"": next((one for one in switches if one.unread != "absent"), switches[1])}).then(
        lambda found: {name: "on" if value == "True" else "off" for name, value in found.items()}
    )


def power_control(facts: Facts) -> Reading[Values]:
    """power/control of the cards."""
    return _of_cards(facts, lambda gpu: gpu.power_control)


def l1(facts: Facts) -> Reading[Values]:
    """What LnkCtl enables at the slot of every card."""

    def word(gpu: Gpu) -> Reading[str]:
        hop = next((hop for hop in gpu.path if hop.crosses_slot), None)
        return hop.aspm if hop is not None else Reading.no("absent", "no port at the slot is visible")

    return _of_cards(facts, word)


def gpu_limits(facts: Facts) -> Reading[Values]:
    """Highest clock allowed in each domain, and power cap, of the cards."""

    def words(states: tuple[Any, ...]) -> Values:
        found: dict[str, list[str]] = {}
        for state in states:
            for clock in state.clocks.value or ():
                if clock.maximum.value:
                    found.setdefault(f"clock of {clock.domain}", []).append(f"{clock.maximum.value} MHz")
            for power in state.power.value or ():
                if power.cap.value:
                    name = power.label or power.channel
                    found.setdefault(f"power cap of {name}", []).append(f"{power.cap.value:g} W")
        return {name: uniform(said) for name, said in found.items()}

    return facts.gpu_state.gpus.then(words)


def gpu_throttle(facts: Facts) -> Reading[Values]:
    """What holds clocks of the cards down now."""

    def words(found: tuple[Any, ...]) -> Values:
        said = {reason for one in found if one.status.value for reason in one.reasons.value or ("no reason given",)}
        return {"": ", ".join(sorted(said)) or NONE}

    return facts.throttle.gpus.then(words)


def packages(facts: Facts) -> Reading[Values]:
    """Versions of the installed packages that count; those of a kernel carry it in their name, and it is a trait."""
    return facts.packages.installed.then(
        lambda found: {
            one.name: one.version for one in found if not re.match(r"(linux-(image|modules)|kernel)\b", one.name)
        }
    )


def pythons(facts: Facts) -> Reading[Values]:
    """Versions of torch and its relatives on the host."""

    def words(places: tuple[Any, ...]) -> Values:
        values: dict[str, set[str]] = {}
        for place in places:
            for name, version in place.versions.items():
                values.setdefault(name, set()).add(version)
        return {name: ", ".join(sorted(said)) for name, said in values.items()}

    return facts.pythons.places.then(words)


def parameters(facts: Facts) -> Reading[Values]:
    """Parameters of xe and i915."""

    def words(drivers: tuple[Any, ...]) -> Values:
        return {
            f"{module.name}.{name}": value
            for module in drivers
            for name, value in (module.parameters.value or {}).items()
        }

    return facts.modules.drivers.then(words)


def swap_limits(facts: Facts) -> Reading[Values]:
    """May the containers that hold a card swap?"""

    def words(found: tuple[Any, ...]) -> Values:
        said = {
            "no swap" if limit.swap_max.value == 0 else "swap allowed"
            for limit in found
            if limit.swap_max.value is not None
        }
        return {"": ", ".join(sorted(said)) or NONE}

    return facts.containers.limits.then(words)


def memory(facts: Facts) -> Reading[Values]:
    """Memory and swap of the host, in GiB."""
    kib = facts.memory
    return several({"memory": kib.total, "swap": kib.swap_total}).then(
        lambda found: {name: f"{int(value) / (1 << 20):.0f} GiB" for name, value in found.items()}
    )


def pressure(facts: Facts) -> Reading[Values]:
    """Was anything stalled for memory?"""
    return one(facts.memory.memory_pressure.then(lambda found: "stalls" if found.full_avg60 > 10 else NONE))


def sysctls(facts: Facts) -> Reading[Values]:
    """What the kernel does at a lockup, and how it balances memory."""
    table = facts.sysctls
    return several(
        {
            "kernel.panic": table.kernel__panic,
            "kernel.hardlockup_panic": table.kernel__hardlockup_panic,
            "kernel.numa_balancing": table.kernel__numa_balancing,
            "vm.swappiness": table.vm__swappiness,
        }
    )


def iommu(facts: Facts) -> Reading[Values]:
    """How the IOMMU translates for the cards."""
    return facts.iommu.types.then(lambda types: {"": ", ".join(sorted(set(types.values()))) or NONE})


def interfaces(facts: Facts) -> Reading[Values]:
    """Interfaces that places on the host name for collectives."""

    def words(pins: tuple[Any, ...]) -> Values:
        values: dict[str, set[str]] = {}
        for pin in pins:
            if pin.variable != "BindsTo":
                values.setdefault(pin.variable, set()).add(pin.value)
        return {name: ", ".join(sorted(said)) for name, said in values.items()}

    return facts.network.pins.then(words)


def processors(facts: Facts) -> Reading[Values]:
    """Model and number of the processors."""
    models = facts.lscpu.model_names.then(lambda names: " / ".join(names))
    return several({"processor": models, "processors on-line": facts.lscpu.online.then(len)})


def bios(facts: Facts) -> Reading[Values]:
    """Board and its firmware."""
    identity = facts.identity
    return several({"board": identity.board, "BIOS": identity.bios_version})


def idle(facts: Facts) -> Reading[Values]:
    """The deepest idle state that some processor may use."""
    return facts.cpuidle.states.then(
        lambda states: {"": next((state.name for state in reversed(states) if state.enabled.value), NONE)}
    )


TOPICS: tuple[Topic, ...] = (
    Topic(
        "cards",
        "a card that faulted, sleeps or is gone comes before everything else",
        ("gpu.*", "host.*"),
        (Trait("cards", models, "fleet.cards"),),
    ),
    Topic(
        "links",
        "lab: Gen3 x16 was neutral for decoding and 1.2x slower in a 256 MiB all-reduce",
        ("pcie.*", "aer.*", "rebar"),
        (Trait("link at the slot", links, "fleet.links"), Trait("BAR 2", bars, "fleet.links")),
    ),
    Topic(
        "processor and software",
        "lab: two hosts that passed every check differed by 1.9x in submission; probe both",
        ("cpu.clock", "cpu.topology", "sw.*", "package.*", "packages.*", "container.image*"),
        (
            Trait("processor", processors, own_names=True),
            Trait("highest processor clock", clocks, "fleet.settings"),
            Trait("image", images, "fleet.image", running=True),
            Trait("kernel", lambda facts: one(facts.identity.kernel), "fleet.kernel"),
            Trait("variable", variables, "fleet.settings", running=True),
            Trait("package", packages, "fleet.packages"),
            Trait("Python", pythons, "fleet.packages"),
        ),
    ),
    Topic(
        "firmware and driver",
        "lab: two GuC versions probed the same within 4 %; they are about stability",
        ("fw.*", "tool.*", "module.*", "kernel.*"),
        (
            Trait("GuC", guc, "fleet.firmware"),
            Trait("GuC file", guc_files, "fleet.firmware"),
            Trait("driver parameter", parameters, "fleet.settings"),
        ),
    ),
    Topic(
        "limits of the cards",
        "a clock that is held down is slow whatever else the host does",
        ("throttle*", "power.*", "thermal.*"),
        (Trait("throttled by", gpu_throttle), Trait("limit of a card", gpu_limits, "fleet.settings", own_names=True)),
    ),
    Topic(
        "collectives and network",
        "a pin to an interface that is gone stops the start",
        ("net.*", "p2p*", "collective.*"),
        (Trait("pin", interfaces, "fleet.settings"),),
    ),
    Topic(
        "memory",
        "lab: a container that may swap faulted while loading; decoding was the same",
        ("mem*", "container.*", "storage*", "disk*"),
        (
            Trait("memory of the host", memory, own_names=True),
            Trait("swap of containers", swap_limits, "fleet.settings", running=True),
            Trait("memory pressure", pressure),
        ),
    ),
    Topic(
        "neutral in the lab",
        "lab: governor, ASPM and IOMMU mode changed nothing in decoding",
        ("cpu.*", "aspm.*", "iommu*", "acs*", "crash*", "boot.*", "*"),
        (
            Trait("board and BIOS", bios, "fleet.bios", weak=True, own_names=True),
            Trait("governor", governor, "fleet.settings", weak=True, own_names=True),
            Trait("boost", boost, "fleet.settings", weak=True),
            Trait("power/control", power_control, "fleet.settings", weak=True),
            Trait("ASPM policy", lambda facts: one(facts.aspm.policy), "fleet.settings", weak=True),
            Trait("ASPM at the slot", l1, "fleet.settings", weak=True),
            Trait("IOMMU", iommu, "fleet.settings", weak=True),
            Trait("sysctl", sysctls, "fleet.settings", weak=True, own_names=True),
            Trait("deepest idle state", idle, "fleet.settings", weak=True),
            Trait("system", lambda facts: one(facts.identity.os_name), weak=True),
        ),
    ),
)
TRAITS: tuple[Trait, ...] = tuple(trait for topic in TOPICS for trait in topic.traits)


# -- hosts to compare ----------------------------------------------------------------------------------


def hosts(given: str, expectation: Expectation) -> dict[str, Report]:
    """The hosts that a person means: name -> report.

    given: a recording, facts or a host's report as a file; the folder of a run; a directory taken for a host; or the
    name of a host in the last run. Raises ValueError that says what was wanted and found.
    """
    path = Path(given)
    if path.is_dir():
        if (path / "summary.json").exists():
            _, outcomes = store.load(path)
            return {outcome.host: outcome.report for outcome in outcomes if outcome.report is not None}
        return {path.name: assess(gather(below(given)), expectation, host=path.name)}
    if not path.exists():
        latest = Path(store.FOLDER) / "latest" / "hosts" / f"{store.file_name(given)}.json"
        if "/" in given or not latest.exists():
            raise ValueError(f"{given}: no such file, folder or host of the last run ({store.FOLDER}/latest)")
        path = latest
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{given}: is not JSON: {error}") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema == RECORDING:
        facts = gather(RecordedReader(checked(data)))
    elif schema == FACTS:
        facts = facts_from(data)
    elif schema == REPORT and "findings" in data:
        report = report_from(data)
        return {report.host: report}
    else:
        raise ValueError(f"{given}: wanted a file with schema {RECORDING}, {FACTS} or {REPORT}, found {schema!r}")
    return {path.stem: assess(facts, expectation, host=path.stem)}


# -- comparing ------------------------------------------------------------------------------------------


def topic_of(id: str) -> str:
    """The first topic that a check belongs to.

    >>> topic_of("pcie.link.width"), topic_of("cpu.clock"), topic_of("cpu.governor")
    ('links', 'processor and software', 'neutral in the lab')
    """
    return next(topic.name for topic in TOPICS if any(fnmatch.fnmatchcase(id, pattern) for pattern in topic.checks))


def _is_there(reading: Reading[Values]) -> bool:
    return reading.value is not None or reading.unread == "absent"


def compare_trait(trait: Trait, first: Facts, second: Facts) -> list[tuple[str, str, str, bool]]:
    """(what, first, second, unread) of every value that differs or could be read on one side only."""
    one_side, other_side = trait.read(first), trait.read(second)
    if not (_is_there(one_side) and _is_there(other_side)):
        if _is_there(one_side) == _is_there(other_side):
            return []  # unread on both: nothing to compare, and both audits say so
        words = [
            ", ".join(f"{name} {value}".strip() for name, value in (side.value or {}).items())[:80] or NONE
            if _is_there(side)
            else f"not read: {side.unread}"
            for side in (one_side, other_side)
        ]
        return [(trait.name, words[0], words[1], True)]
    mine, theirs = one_side.value or {}, other_side.value or {}
    return [
        (trait.called(name), mine.get(name, ABSENT), theirs.get(name, ABSENT), False)
        for name in dict.fromkeys((*mine, *theirs))
        if mine.get(name, ABSENT) != theirs.get(name, ABSENT)
    ]


def _told(findings: Sequence[Finding]) -> dict[tuple[str, str], list[Finding]]:
    """Findings that count, by check and status."""
    found: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        if finding.status in COUNTED:
            found.setdefault((finding.id, finding.status.value), []).append(finding)
    return found


def _short(found: list[Finding]) -> str:
    if not found:
        return "-"
    names = [finding.subject.name for finding in found if finding.subject.kind != "host"]
    seen = list(dict.fromkeys(finding.seen for finding in found))
    more = f" and {len(seen) - 1} more" if len(seen) > 1 else ""
    return f"{' '.join(names[:2])}{' …' if len(names) > 2 else ''} {seen[0]}{more}".strip()


def compare(first: Report, second: Report) -> list[Difference]:
    """All differences of two hosts, most telling first.

    Findings are compared by check and by how many subjects have them, not by address: two hosts have their cards in
    different places. Within a topic fails come first, then warnings, then traits, then what could not be judged.
    """
    found: list[Difference] = []
    mine, theirs = _told(first.findings), _told(second.findings)
    for id, status in sorted({*mine, *theirs}):
        here, there = mine.get((id, status), []), theirs.get((id, status), [])
        same = first.host == second.host or first.facts.identity.boot_id.value == second.facts.identity.boot_id.value
        names = [sorted((finding.subject.name if same else "") for finding in side) for side in (here, there)]
        if names[0] == names[1]:
            continue
        what = f"{id} {status}"
        found.append(
            Difference(topic_of(id), what, _short(here), _short(there), Status(status), status == Status.unknown)
        )
    for topic in TOPICS:
        for trait in topic.traits:
            for what, one_value, other, unread in compare_trait(trait, first.facts, second.facts):
                found.append(Difference(topic.name, what, one_value, other, None, unread, trait.weak))
    topics = [topic.name for topic in TOPICS]
    ranks = {Status.fail: 0, Status.warn: 1, None: 2, Status.unknown: 3}
    return sorted(found, key=lambda item: (topics.index(item.topic), ranks[item.status], item.unread))


def code(differences: Sequence[Difference], first: Report, second: Report) -> int:
    """0 no difference, 1 differences, 3 none seen and something could be read on one side only (or on none)."""
    if any(not item.unread for item in differences):
        return 1
    if differences:
        return 3
    both = all(trait.read(report.facts).value is None for report in (first, second) for trait in TRAITS)
    return 3 if both else 0
