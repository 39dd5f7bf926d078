"""What a class of hosts should be: the inventory's wishes and waivers, with defaults and their sources.

Every model refuses unknown keys. A default whose source is "own" is this project's choice; a figure of "the lab" is
from the public B70 optimization lab's record and is that lab's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from .onhost.settings.collective_env import WAYS, checked

WAIVERS_SCHEMA = "hostcheck/waivers/1"

BDF_FORM = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
REQUIRED_WITH_GPU = ("log.access", "gpu.enumeration", "gpu.fault", "pcie.link.*")


class Model(BaseModel):
    """Base: unknown keys are refused, values are not changed after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _bdf(text: str) -> str:
    if not BDF_FORM.match(text.lower()):
        raise ValueError(f"{text!r} is not a PCI address with its domain, such as 0000:03:00.0")
    return text.lower()


Bdf = Annotated[str, AfterValidator(_bdf)]


class Link(Model):
    """A link as declared for a slot: `speed` in GT/s, `width` in lanes."""

    speed: float
    width: int


class Gpus(Model):
    """The cards of a host. Nothing is expected unless declared.

    count: number of cards. bdfs: their addresses. ids: their PCI device ids, e.g. ``e223``.
    """

    count: int | None = Field(default=None, ge=0)
    bdfs: tuple[Bdf, ...] = ()
    ids: tuple[str, ...] = ()

    @property
    def expected(self) -> bool:
        """Are there cards that should be there?"""
        return bool(self.count or self.bdfs or self.ids)


def _override(text: str) -> str:
    if not re.fullmatch(r"/lib/firmware/\S+|md5-[0-9a-f]{32}|sha256-[0-9a-f]{64}", text):
        raise ValueError(f"{text!r} is neither a file below /lib/firmware nor a digest such as md5-{'0' * 32}")
    return text


class Guc(Model):
    """GuC firmware. wanted: version every card should run.

    known_bad: (kernel release pattern, GuC version) pairs that faulted here; a match is at most a warning
    (vllm-project/vllm#55425: 7.0.0-29 with 70.58.0 faulted in 4 of 4 arms; not a universal cure, so no default).
    overrides: files that are not those of a package on purpose, by path or by digest (``md5-0123…``;
    ``sha256-0123…`` on hosts of rpm).
    """

    wanted: str | None = None
    known_bad: tuple[tuple[str, str], ...] = ()
    overrides: tuple[Annotated[str, AfterValidator(_override)], ...] = ()


class Aer(Model):
    """Limits on corrected errors. They are rates: a single event is no verdict.

    gpu_fail_per_s: on a path to a GPU, over any 60 s (design, section 7; lab-host-facts 2.1).
    gpu_burst: events within one second on such a path.
    background_per_h: elsewhere (the lab's NVMe background was 0.15 to 5.2 per hour).
    storm_per_s: elsewhere, on root or model storage.
    """

    gpu_fail_per_s: float = 1.0
    gpu_burst: int = 10
    background_per_h: float = 6.0
    storm_per_s: float = 1.0


class Network(Model):
    """Limits on the network. many_interfaces: with so many to choose from oneCCL's own choice is called ambiguous.

    Own figure: a job hung with about 20 (oneCCL#209).
    """

    many_interfaces: int = Field(default=16, gt=1)


class Memory(Model):
    """Limits on memory. Those "before a start" hold where nothing uses the cards.

    available_mib: before a start; None: the gates of the lab (lab-host-facts 4.2), 9,216 MiB on its host with 15 GiB
    and 12,000,000 KiB on that with 128 GB, parted at 64 GiB (own), and never more than 60 % of the memory (own).
    swap: may there be swap before a start? None: not from 64 GiB on (the lab's large host; the small one keeps it).
    pressure: per cent of the time in which nobody could run, full avg10 (lab-host-facts 2.4).
    driver_held: part of the memory that no process owns (own; 4 of 128 GB idle in the lab, 92 GB before it failed).
    offline_blocks: numbers of blocks that something else takes off-line; settings.memory_fence has those of the role.
    """

    available_mib: int | None = Field(default=None, ge=0)
    swap: bool | None = None
    pressure: float = Field(default=10.0, gt=0)
    driver_held: float = Field(default=0.5, gt=0, le=1)
    offline_blocks: tuple[int, ...] = ()


def _absolute(text: str) -> str:
    if not text.startswith("/") or "/../" in f"{text}/" or "//" in text:
        raise ValueError(f"{text!r} is not an absolute path")
    return text.rstrip("/") or "/"


class Storage(Model):
    """Storage. root_free_gib: the floor of the lab's gates (lab-host-facts 2.4).

    model_paths: where models are; each has to lie on a mount other than the root. model_free_gib: to be free there.
    """

    root_free_gib: float = Field(default=12.0, ge=0)
    model_paths: tuple[Annotated[str, AfterValidator(_absolute)], ...] = ()
    model_free_gib: float = Field(default=0.0, ge=0)


class GpuLimits(Model):
    """Limits that are set on every card. Nothing is wanted unless declared.

    max_clock, min_clock: MHz of the main clock domain; power_cap: W of the whole card (a B70 takes 160 to 290 W, public
    power study, arc-host-facts A.1). temperature_margin: degrees that a sensor must stay below its own limit (own: 0).
    vram_used_mib: of a card that nobody holds, before a start (the lab's gate, lab-host-facts 4.2).
    """

    max_clock: int | None = Field(default=None, gt=0)
    min_clock: int | None = Field(default=None, gt=0)
    power_cap: float | None = Field(default=None, gt=0)
    temperature_margin: float = Field(default=0.0, ge=0)
    vram_used_mib: int = Field(default=256, ge=0)


class Runtime(Model):
    """weeks_older: how much older than its kernel the compute runtime may be (own: a quarter of a year)."""

    weeks_older: int = Field(default=13, gt=0)


class Boot(Model):
    """The next boot. kernel: pattern of the release that it should start; None: the one that runs.

    automatic_reboot: this host may reboot by itself after upgrades.
    """

    kernel: str | None = None
    automatic_reboot: bool = False


class HostPackages(Model):
    """Wish of the role host_packages. names: as this distribution calls them; None: the role's own list."""

    install: bool = False
    names: tuple[str, ...] | None = None


class CpuGovernor(Model):
    """Wish of the role cpu_governor. None: not wanted, so not judged against. scaling_min_freq: kHz."""

    governor: str | None = None
    epp: Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)] | None = None
    scaling_min_freq: int | None = Field(default=None, gt=0)
    disable_deepest_idle: bool = False


class KernelArguments(Model):
    """Wish of the role kernel_arguments: words on every normal boot entry, and words on none."""

    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    try_once: bool = False


class PcieAspm(Model):
    """Wish of the role pcie_aspm.

    policy: a word of /sys/module/pcie_aspm/parameters/policy.
    effective: what LnkCtl of the GPU paths should say, ``disabled`` or ``l1``; None: not judged.
    runtime_write: write the policy of the running kernel as well; such writes wedged cards (the lab's notes).
    """

    policy: Literal["default", "performance", "powersave", "powersupersave"] | None = None
    effective: Literal["disabled", "l1"] | None = None
    runtime_write: bool = False


class GpuRuntimePm(Model):
    """Wish of the role gpu_runtime_pm. YAML reads a bare ``on`` as true. runtime_auto: this host may say ``auto``."""

    control: (
        Annotated[Literal["on", "auto"], BeforeValidator(lambda value: "on" if value is True else value)] | None
    ) = None
    runtime_auto: bool = False
    cards_expected: bool | None = None

    @model_validator(mode="after")
    def _allowed(self) -> GpuRuntimePm:
        if self.control == "auto" and not self.runtime_auto:
            raise ValueError("control: auto lost cards that could not wake up; allow it with runtime_auto: true")
        return self


class CollectiveInterface(Model):
    """A network interface by exactly one of these."""

    name: str | None = None
    mac: str | None = None
    address: str | None = None
    subnet: str | None = None

    @model_validator(mode="after")
    def _one(self) -> CollectiveInterface:
        if sum(value is not None for value in (self.name, self.mac, self.address, self.subnet)) != 1:
            raise ValueError("wanted exactly one of name, mac, address and subnet")
        checked(*self.named)
        return self

    @property
    def named(self) -> tuple[str, str]:
        """How it is named (``name``, ``mac``, ``address`` or ``subnet``), and by what."""
        return next((way, what) for way in WAYS if (what := getattr(self, way)) is not None)


class CollectiveEnv(Model):
    """Wish of the role collective_env. units: services that read the variables. link_name: for the interface."""

    interface: CollectiveInterface | None = None
    variables: dict[str, str | int | float] = Field(default_factory=dict)
    units: tuple[str, ...] = ()
    link_name: str | None = None


class CrashPolicy(Model):
    """Wish of the role crash_policy: does a hard lockup panic, and seconds until the reboot after one (0: never)."""

    hardlockup_panic: bool | None = None
    panic: int | None = Field(default=None, ge=-1, le=86_400)

    @model_validator(mode="after")
    def _pair(self) -> CrashPolicy:
        if (self.hardlockup_panic is None) != (self.panic is None):
            raise ValueError("hardlockup_panic and panic are declared together: only the pair says what happens")
        return self


class MemoryFence(Model):
    """Wish of the role memory_fence: blocks that stay off-line, and MiB that must stay available (None: of a start)."""

    blocks: tuple[Annotated[int, Field(ge=0)], ...] = ()
    available_mib: int | None = Field(default=None, ge=0)


class ContainerMemory(Model):
    """Wish of the role container_memory: MiB of memory by name, no swap beside it. 0 leaves a unit's limit alone."""

    units: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    containers: dict[str, Annotated[int, Field(gt=0)]] = Field(default_factory=dict)


class PackagePins(Model):
    """Wish of the role package_pins: names of packages that are held at their version."""

    names: tuple[str, ...] = ()


class Settings(Model):
    """One wanted value for roles and checks alike, one key per role."""

    host_packages: HostPackages = HostPackages()
    cpu_governor: CpuGovernor = CpuGovernor()
    kernel_arguments: KernelArguments = KernelArguments()
    pcie_aspm: PcieAspm = PcieAspm()
    gpu_runtime_pm: GpuRuntimePm = GpuRuntimePm()
    collective_env: CollectiveEnv = CollectiveEnv()
    crash_policy: CrashPolicy = CrashPolicy()
    memory_fence: MemoryFence = MemoryFence()
    container_memory: ContainerMemory = ContainerMemory()
    package_pins: PackagePins = PackagePins()


class Expectation(Model):
    """What a class of hosts should be; the content of ``hostcheck_expect`` and of an expectation file.

    required: ids (``*`` allowed) that must not be unknown; None: `REQUIRED_WITH_GPU` when a GPU is present or expected.
    module_parameters: by driver, values of its parameters as /sys/module shows them, e.g. ``xe: {probe_display: "N"}``.
    boost_off_reason: why this host runs without boost on purpose; turns `cpu.boost` from `warn` into `info`.
    slot_link: the link that a slot can give, by the BDF of the card's uplink or of the port above it.
    pythons: interpreters or environments of this host whose torch is looked up, besides the usual places.
    """

    schema_: Literal["hostcheck/expectation/1"] = Field(default="hostcheck/expectation/1", alias="schema")
    gpus: Gpus = Gpus()
    guc: Guc = Guc()
    aer: Aer = Aer()
    gpu_limits: GpuLimits = GpuLimits()
    module_parameters: dict[Literal["xe", "i915"], dict[str, str]] = Field(default_factory=dict)
    runtime: Runtime = Runtime()
    boot: Boot = Boot()
    network: Network = Network()
    memory: Memory = Memory()
    storage: Storage = Storage()
    settings: Settings = Settings()
    required: tuple[str, ...] | None = None
    boost_off_reason: str | None = None
    slot_link: dict[Bdf, Link] = Field(default_factory=dict)
    model_storage: tuple[Bdf, ...] = ()
    pythons: tuple[str, ...] = ()

    def required_ids(self, gpu_present: bool) -> tuple[str, ...]:
        """The check ids that must not be unknown on this host."""
        if self.required is not None:
            return self.required
        return REQUIRED_WITH_GPU if gpu_present or self.gpus.expected else ()


class Waiver(Model):
    """An exception: it has a reason and an end, is still run, keeps its status and is shown.

    check, subject, hosts: names, ``*`` allowed. until: the last moment at which it holds (a date means its end, UTC).
    boot_id or until_event: on log findings one of them is required, since a newer event is a new fault:
    the boot whose events are excused, or the time of the last event that is excused.
    """

    check: str
    subject: str = "*"
    hosts: tuple[str, ...] = ("*",)
    justification: str = Field(min_length=1)
    until: datetime
    boot_id: str | None = None
    until_event: datetime | None = None

    @model_validator(mode="before")
    @classmethod
    def _whole_day(cls, data: Any) -> Any:
        """A date without a time holds to the end of that day."""
        if isinstance(data, dict):
            until = data.get("until")
            if until is not None and re.fullmatch(r"\d{4}-\d{2}-\d{2}", str(until)):
                data = {**data, "until": f"{until}T23:59:59+00:00"}
        return data

    @model_validator(mode="after")
    def _events(self) -> Waiver:
        log = ("gpu.fault", "gpu.wedged", "gpu.lost", "aer.")
        if self.boot_id is None and self.until_event is None and self.check.startswith(log):
            raise ValueError(f"a waiver of {self.check} needs boot_id or until_event: a newer event is a new fault")
        return self

    def holds(self, now: datetime) -> bool:
        """Has it not ended yet?"""
        until = self.until if self.until.tzinfo else self.until.replace(tzinfo=UTC)
        return now <= until


class Refused(ValueError):
    """Bad input; its text is for the person who wrote it."""


def _messages(error: ValidationError, what: str) -> str:
    lines = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"]) or "the whole"
        found = "" if item["type"] in ("missing", "extra_forbidden") else f" (found {item['input']!r:.60})"
        message = {"extra_forbidden": "unknown key", "missing": "is missing"}.get(item["type"], item["msg"])
        lines.append(f"{what}: {where}: {message}{found}")
    return "\n".join(lines)


def expectation(data: Any, what: str = "hostcheck_expect") -> Expectation:
    """Validate the wishes for a host. Raises Refused with one line per mistake."""
    try:
        return Expectation.model_validate(data if data is not None else {})
    except ValidationError as error:
        raise Refused(_messages(error, what)) from error


def waivers(data: Any, what: str = "hostcheck_waivers") -> tuple[Waiver, ...]:
    """Validate waivers: a list, or a document ``{schema: hostcheck/waivers/1, waivers: [...]}``. Raises Refused."""
    if isinstance(data, dict):
        if data.get("schema") != WAIVERS_SCHEMA or not set(data) <= {"schema", "waivers"}:
            raise Refused(f"{what}: wanted a list, or the keys schema: {WAIVERS_SCHEMA} and waivers")
        data = data.get("waivers")
    if not isinstance(data, Iterable) or isinstance(data, str):
        raise Refused(f"{what}: wanted a list of waivers, found {data!r:.60}")
    try:
        return TypeAdapter(tuple[Waiver, ...]).validate_python(tuple(data))
    except ValidationError as error:
        raise Refused(_messages(error, what)) from error
