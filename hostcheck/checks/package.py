"""Are the packages held that are declared to be?"""

from __future__ import annotations

from collections.abc import Iterator

from ..expectations import Expectation
from ..findings import Finding, Status, Subject, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.reader import Reading
from ..onhost.readings.packages import is_locked
from .presence import not_applicable

APPLY = "ansible-playbook playbooks/apply.yml --tags package_pins"


@check("package.pins", title="Packages that are to be held are")
def pins(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`package.pins`

    Why: unattended upgrades replaced a kernel of the lab and removed another (lab-host-facts 2.3), and a comparison of
    two boots then compared two kernels. Only what is declared (`settings.package_pins`) is judged: by the marks of
    dpkg, or by the files in which dnf keeps its locks.
    """
    packages = facts.packages
    names = expectation.settings.package_pins.names
    if not names:
        yield not_applicable("package.pins", "none is declared", packages.installed.source)
        return
    by_name = {package.name: package for package in need(packages.installed)}
    source = packages.installed.source
    locks: tuple[str, ...] = ()
    if packages.manager.value != "dpkg":
        locks, source = need(packages.locks), packages.locks.source
    for name in names:
        who, found = Subject("package", name), by_name.get(name)
        version = f"{found.version}, " if found is not None else ""
        if is_locked(name, locks) or (found is not None and found.held):
            yield Finding("package.pins", who, Status.ok, seen=f"{version}held", source=source)
        elif found is None:
            yield unknown("package.pins", Reading.no("not_asked", "is none of those that are read", source), who)
        else:
            yield Finding("package.pins", who, Status.fail, f"{version}not held", "held", source, APPLY)
