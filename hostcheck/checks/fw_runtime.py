"""Do the compute runtime and the Python packages on this host fit its kernel?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, timedelta

from ..expectations import Expectation
from ..findings import HOST, Finding, Status, check, need
from ..onhost.gather import Facts
from ..onhost.readings import gpu_ids
from ..onhost.readings.packages import Package, version_of
from .gpu import cards

# Packages of the compute runtime, the one that drives Level Zero first; Debian and Ubuntu, then Intel's, then RPM.
RUNTIME = (
    "libze-intel-gpu1",
    "intel-level-zero-gpu",
    "intel-opencl-icd",
    "intel-level-zero",
    "intel-compute-runtime",
    "intel-opencl",
)
# First release of a kernel (kernel.org), as (year, week). A newer one than the last counts as the last: it is at least
# as new as that.
KERNELS = {
    (6, 1): (2022, 49),
    (6, 2): (2023, 7),
    (6, 3): (2023, 16),
    (6, 4): (2023, 25),
    (6, 5): (2023, 34),
    (6, 6): (2023, 43),
    (6, 7): (2024, 1),
    (6, 8): (2024, 10),
    (6, 9): (2024, 19),
    (6, 10): (2024, 28),
    (6, 11): (2024, 37),
    (6, 12): (2024, 46),
    (6, 13): (2025, 3),
    (6, 14): (2025, 13),
    (6, 15): (2025, 21),
    (6, 16): (2025, 30),
    (6, 17): (2025, 39),
    (6, 18): (2025, 48),
    (6, 19): (2026, 6),
    (7, 0): (2026, 15),
}
CURE = "apt-get install --only-upgrade {}  # or from Intel's repository; then reboot"


def kernel_week(release: str) -> date | None:
    """Monday of the week in which the kernel of a release came out; None for one older than the table.

    >>> kernel_week("6.8.0-45-generic")
    datetime.date(2024, 3, 4)
    """
    match = re.match(r"(\d+)\.(\d+)", release)
    if not match:
        return None
    known = [version for version in KERNELS if version <= (int(match.group(1)), int(match.group(2)))]
    return date.fromisocalendar(*KERNELS[max(known)], 1) if known else None


def runtime_week(version: str) -> date | None:
    """Monday of the week that a version of the compute runtime is named after; None for another form.

    >>> runtime_week("25.48.36300.8-0ubuntu1"), runtime_week("1:26.05.37020.3"), runtime_week("1.3.29735.27")
    (datetime.date(2025, 11, 24), datetime.date(2026, 1, 26), None)
    """
    match = re.match(r"(?:\d+:)?([2-9]\d)\.(\d{2})\.\d", version)
    if not match or not 1 <= int(match.group(2)) <= 52:
        return None
    return date.fromisocalendar(2000 + int(match.group(1)), int(match.group(2)), 1)


def short(version: str) -> str:
    """Year and week of a runtime's version.

    >>> short("25.48.36300.8-0ubuntu1")
    '25.48'
    """
    return ".".join(re.findall(r"\d+", version.rpartition(":")[2])[:2])


def _dated(facts: Facts) -> Package | None:
    """The runtime package whose version tells its week, else the first that there is."""
    found = [package for name in RUNTIME if (package := version_of(facts.packages, name)) is not None]
    return next((one for one in found if runtime_week(one.version) is not None), found[0] if found else None)


@check("fw.runtime", title="The compute runtime is not much older than the kernel")
def runtime(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`fw.runtime`

    Why: a minimal program that allocates and writes faulted with runtime 25.48 on kernel 7.0 (compute-runtime#944), and
    kernel 7.1 needed a runtime of its own age (arc-host-facts A.0). Only the packages of this host are seen: a
    container brings its own runtime. The limit is `runtime.weeks_older`, own choice: a quarter.
    """
    packages = facts.packages
    if not any(gpu.vendor == gpu_ids.INTEL and gpu.driver.value in ("xe", "i915") for gpu in cards(facts)):
        yield Finding(
            "fw.runtime", HOST, Status.not_applicable, seen="no Intel card in use", source=packages.installed.source
        )
        return
    if packages.installed.unread == "tool_missing":
        seen = "no package manager that is known"
        yield Finding("fw.runtime", HOST, Status.not_applicable, seen=seen, source=packages.installed.source)
        return
    need(packages.installed)
    package, release, source = _dated(facts), need(facts.identity.kernel), packages.installed.source
    if package is None:
        seen = "no compute runtime is installed as a package; a container brings its own"
        yield Finding("fw.runtime", HOST, Status.not_applicable, seen=seen, source=source)
        return
    made, kernel = runtime_week(package.version), kernel_week(release)
    named = f"{package.name} {package.version}"
    if made is None or kernel is None:
        what = f"the version of {named}" if made is None else f"the age of kernel {release}"
        yield Finding("fw.runtime", HOST, Status.unknown, seen=f"not_understood: {what} tells no date", source=source)
        return
    limit = timedelta(weeks=expectation.runtime.weeks_older)
    held = ", and held back" if package.held else ""
    if made < kernel - limit:
        weeks = (kernel - made).days // 7
        yield Finding(
            "fw.runtime",
            HOST,
            Status.warn,
            seen=f"runtime {short(package.version)} is much older than kernel {release}: {weeks} weeks{held} ({named})",
            wanted=f"at most {expectation.runtime.weeks_older} weeks older",
            source=source,
            next_step=CURE.format(package.name) if packages.manager.value == "dpkg" else f"dnf upgrade {package.name}",
        )
    else:
        yield Finding("fw.runtime", HOST, Status.ok, seen=f"{named}, kernel {release}{held}", source=source)


@check("fw.torch", title="No Python of the host has a retired extension for torch")
def torch(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`fw.torch`

    Why: intel-extension-for-pytorch is retired; it fits torch 2.8 alone and breaks others at import. Read from
    metadata, never imported. Pythons outside the usual places are declared with `pythons`.
    """
    pythons = facts.pythons
    for path in pythons.missing.value or ():
        seen = f"absent: the declared Python {path} has no packages"
        yield Finding("fw.torch", HOST, Status.unknown, seen, source=pythons.missing.source)
    places = need(pythons.places)
    told, retired = [], []
    for place in places:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(place.versions.items()))
        told.append(f"{place.folder}: {versions}")
        if "intel-extension-for-pytorch" in place.versions:
            retired.append(place)
    if retired:
        step = f"{retired[0].folder}: pip uninstall intel-extension-for-pytorch  # torch has its own XPU support"
        seen = f"retired extension: {'; '.join(told)}"
        yield Finding("fw.torch", HOST, Status.info, seen, source=retired[0].folder, next_step=step)
    elif told:
        yield Finding("fw.torch", HOST, Status.ok, "; ".join(told), source=pythons.places.source)
    elif not pythons.missing.value:
        seen = "no torch outside containers"
        yield Finding("fw.torch", HOST, Status.not_applicable, seen, source=pythons.places.source)
