"""Are the packages held that are declared to be?"""

from __future__ import annotations

from collections.abc import Iterator

from ..expectations import Expectation
from ..findings import Finding, Status, Subject, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.reader import Reading
from .presence import not_applicable

APPLY = "ansible-playbook playbooks/apply.yml --tags package_pins"


@check("package.pins", title="Packages that are to be held are")
def pins(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`package.pins`

    Why: unattended upgrades replaced a kernel of the lab and removed another (lab-host-facts 2.3), and a comparison of
    two boots then compared two kernels. Only what is declared (`settings.package_pins`) is judged. dnf's locks are no
    part of what rpm tells, so they stay unknown here; playbooks/drift.yml asks dnf.
    """
    packages = facts.packages
    names = expectation.settings.package_pins.names
    if not names:
        yield not_applicable("package.pins", "none is declared", packages.installed.source)
        return
    by_name = {package.name: package for package in need(packages.installed)}
    source = packages.installed.source
    for name in names:
        who, found = Subject("package", name), by_name.get(name)
        if packages.manager.value != "dpkg":
            yield unknown("package.pins", Reading.no("not_asked", "playbooks/drift.yml asks dnf for it", source), who)
        elif found is None:
            yield unknown("package.pins", Reading.no("not_asked", "is none of those that are read", source), who)
        elif found.held:
            yield Finding("package.pins", who, Status.ok, seen=f"{found.version}, held", source=source)
        else:
            yield Finding("package.pins", who, Status.fail, f"{found.version}, not held", "held", source, APPLY)
