"""``docs/checks.md`` and ``docs/decisions.md``, made from what checks and symptoms declare of themselves.

``python -m hostcheck.docs`` writes both; ``--check`` only says whether they are up to date (exit 1 when not).
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from . import checks, fleet
from .decisions import SYMPTOMS
from .findings import Declaration

FOLDER = Path(__file__).resolve().parents[1] / "docs"
MADE = "<!-- made by `python -m hostcheck.docs` from what the checks declare; do not edit -->"
WAIVERS = {
    "waiver.expired": "A waiver that has ended excuses nothing and fails until it is removed or renewed.",
    "waiver.unused": "A waiver that matches no finding is a warning: what it excused is gone, or its pattern is wrong.",
}


def anchor(id: str) -> str:
    """The anchor that a heading gets on the usual forges.

    >>> anchor("pcie.link.width")
    'pcielinkwidth'
    """
    return re.sub(r"[^\w-]", "", id.lower())


def why(declaration: Declaration) -> str:
    """The text of a check without the line that holds its ids."""
    doc = inspect.getdoc(declaration.run) or ""
    first, _, rest = doc.partition("\n")
    text = rest if first.startswith("`") else doc
    return text.replace("``", "`").strip()


def index(ids: Sequence[str]) -> list[str]:
    """The ids as a list of links, a line for each family, which is the part before the first point.

    >>> index(["aer.rate", "p2p", "aer.fatal"])
    ['- aer: [fatal](#aerfatal), [rate](#aerrate)', '- [p2p](#p2p)']
    """
    families: dict[str, list[str]] = {}
    for id in sorted(ids):
        family, _, rest = id.partition(".")
        families.setdefault(family if rest else "", []).append(f"[{rest or id}](#{anchor(id)})")
    alone = [f"- {link}" for link in families.pop("", [])]
    return sorted([f"- {family}: {', '.join(links)}" for family, links in families.items()]) + alone


def checks_page() -> str:
    """Every check with what it asks and why."""
    by_id = {id: declaration for declaration in checks.ALL for id in declaration.ids}
    out = [
        "# Checks",
        "",
        MADE,
        "",
        "What every check asks, and why. `hostcheck explain ID` shows the same with what it finds on a host. Statuses:"
        " `ok`, `info` (by design, or limited by the host), `warn`, `fail`, `unknown` (could not be read, with the"
        " reason), `not_applicable` (this host cannot have it).",
        "",
        *index([*by_id, *(one.id for one in fleet.CHECKS), *WAIVERS]),
        "",
    ]
    for id in sorted(by_id):
        declaration = by_id[id]
        out += [f"## {id}", "", f"{declaration.title}.", ""]
        if id == declaration.ids[0]:
            out += [why(declaration), ""]
        else:
            out += [f"Told together with [{declaration.ids[0]}](#{anchor(declaration.ids[0])}), which says why.", ""]
    for one in fleet.CHECKS:
        text = f"Why: {one.why} Hosts with the same processor and the same kinds of cards are compared after a run."
        out += [f"## {one.id}", "", f"{one.title}.", "", text, ""]
    for id, text in WAIVERS.items():
        out += [f"## {id}", "", text, ""]
    return "\n".join(out)


def decisions_page() -> str:
    """The decision table."""
    out = [
        "# From a symptom to the checks that tell",
        "",
        MADE,
        "",
        "After the decision table of the public B70 optimization lab, whose figures these are."
        " `hostcheck explain --symptom TEXT` finds the row and fills it with what the checks say of a host.",
        "",
        "| Symptom | Likely cause | Checks | What to do |",
        "| --- | --- | --- | --- |",
    ]
    for row in SYMPTOMS:
        named = ", ".join(f"[{id}](checks.md#{anchor(id)})" for id in row.checks)
        out.append(f"| {row.seen} | {row.cause} | {named} | {row.then} |")
    return "\n".join(out) + "\n"


PAGES = {"checks.md": checks_page, "decisions.md": decisions_page}


def stale(folder: Path = FOLDER) -> list[str]:
    """Pages that are not what the declarations give."""
    found = []
    for name, page in PAGES.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != page():
            found.append(name)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages, or with ``--check`` say which are stale."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python -m hostcheck.docs [--check]\n")
        return 2
    old = stale()
    if arguments:
        for name in old:
            sys.stderr.write(f"docs/{name} is stale: run python -m hostcheck.docs\n")
        return 1 if old else 0
    FOLDER.mkdir(exist_ok=True)
    for name in old:
        (FOLDER / name).write_text(PAGES[name](), encoding="utf-8")
        sys.stdout.write(f"docs/{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
