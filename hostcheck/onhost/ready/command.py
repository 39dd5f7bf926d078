"""Command line of the agent on a host: ``/usr/local/lib/hostcheck/hostcheck.pyz``, made by ``hostcheck.agent``.

For a unit's ExecStartPre, ExecCondition or a launcher. Exit codes: 0 yes or done; 1 no; 2 wrong use; 3 could not tell.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from ..reader import LiveReader
from ..recording import below
from .mark import WRONG_USE, check

ARCHIVE_LIMIT = 16 << 20  # bytes
DESCRIPTION = "hostcheck on a host: is it ready for a job, and what is its state?"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_USE, f"hostcheck: {message}\n{self.format_usage()}")


def identity(version: str, archive: str) -> str:
    """Version and digest of the archive as it is now, and whether that is what was installed."""
    reader = LiveReader()
    data = reader.data(archive, ARCHIVE_LIMIT)
    if data.value is None:
        return f"hostcheck {version}, sha256 unread: {data.unread}: {data.detail}"
    digest = hashlib.sha256(data.value).hexdigest()
    noted = reader.text(f"{archive}.sha256").value
    if noted is not None and noted.split()[:1] != [digest]:
        return f"hostcheck {version}, sha256 {digest}, which is not the digest in {archive}.sha256"
    return f"hostcheck {version}, sha256 {digest}"


def parser(version: str, archive: str) -> argparse.ArgumentParser:
    """The command line of the agent."""
    top = _Parser(prog=os.path.basename(archive), description=DESCRIPTION)
    top.add_argument("--version", action="store_true", help="version and sha256 of this file")
    verbs = top.add_subparsers(metavar="VERB", dest="verb", parser_class=_Parser)
    for name, text in (
        ("ready", "may a job start here now? 0 yes, 1 no, 3 could not tell; opens no card"),
        ("gather", "print the facts of this host as JSON (subsets as words)"),
        ("record", "print a redacted recording of this host as JSON"),
    ):
        verb = verbs.add_parser(name, help=text, description=text)
        verb.add_argument("--root", metavar="DIR", default="/", help="read this directory instead of /")
        if name == "gather":
            verb.add_argument("subset", nargs="*", help="such as kernel_log pcie; default: all")
    return top


def main(version: str, argv: Sequence[str] | None = None) -> int:
    """Run the agent; the exit code."""
    archive = os.path.abspath(sys.argv[0])
    top = parser(version, archive)
    given = top.parse_args(argv)
    if given.version:
        sys.stdout.write(identity(version, archive) + "\n")
        return 0
    try:
        if given.verb is None:
            top.error("no verb")
        if given.verb == "ready":
            verdict = check(below(given.root))
            sys.stdout.write(f"{verdict.reason}\n")
            return verdict.code
        sys.stdout.write(_document(given) + "\n")
        return 0
    except ValueError as error:
        sys.stderr.write(f"hostcheck: {error}\n")
        return WRONG_USE


def _document(given: argparse.Namespace) -> str:
    from ..gather import gather  # all of the readings: too much for a check before every start
    from ..plain import to_plain
    from ..record import record

    reader = below(given.root)
    if given.verb == "gather":
        return json.dumps(to_plain(gather(reader, None, given.subset)))
    return json.dumps(record(reader)[1])
