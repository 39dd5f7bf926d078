"""Recorded hosts and changes to them, for tests."""

from __future__ import annotations

import base64
import copy
import json
import re
import shlex
from pathlib import Path
from typing import Any

from hostcheck.assess import Report, assess
from hostcheck.expectations import expectation
from hostcheck.onhost.gather import Options, gather
from hostcheck.onhost.recording import PARTS, SCHEMA, SIDECAR, RecordedReader, load, seconds

HOSTS = Path(__file__).parent / "hosts"
JOURNAL = "journalctl -k -b 0 -o json --all --output-fields=MESSAGE,PRIORITY --no-pager"
STAMP = re.compile(r"^\[ *(\d+\.\d+)\](?:\[ *[TC]\d+\])? ?(.*)$")


def host_names() -> list[str]:
    """Names of all recorded hosts."""
    return sorted(path.stem for path in HOSTS.glob("*.json"))


def host(name: str) -> dict[str, Any]:
    """A fresh copy of a recorded host."""
    return load((HOSTS / f"{name}.json").read_text(encoding="utf-8"))


def changed(recording: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """The recording with a case's change made to it.

    change: parts of a recording that win over it (null removes), ``remove``: path prefixes to take out, ``log``: kernel
    lines to add, in whatever form the host's log has.
    """
    result = copy.deepcopy(recording)
    unknown = set(change) - {*PARTS, "remove", "log", "taken_at", "samples"}
    if unknown:
        raise ValueError(f"unknown keys in change: {sorted(unknown)}")
    for prefix in change.get("remove", ()):
        for part in ("files", "links", "stats"):
            for path in [path for path in result.get(part, {}) if path == prefix or path.startswith(prefix)]:
                del result[part][path]
    for part in PARTS:
        for key, value in (change.get(part) or {}).items():
            if value is None:
                result[part].pop(key, None)
            else:
                result.setdefault(part, {})[key] = value
    if "taken_at" in change:
        result["taken_at"] = change["taken_at"]
    result["samples"] = change.get("samples", result.get("samples", []))
    if change.get("log"):
        add_log(result, change["log"])
    return result


def messages(text: str, after: float) -> list[tuple[float, str]]:
    """Kernel messages of a text: (seconds since boot, message); lines without a stamp belong to the one above.

    Where the first line has no stamp at all, every line is a message of its own, one second apart.
    """
    lines = text.rstrip("\n").split("\n")
    if not STAMP.match(lines[0]):
        return [(after + number, line) for number, line in enumerate(lines, 1)]
    found: list[tuple[float, str]] = []
    for line in lines:
        stamped = STAMP.match(line)
        if stamped:
            found.append((float(stamped.group(1)), stamped.group(2)))
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]}\n{line}")
    return found


def add_log(recording: dict[str, Any], text: str) -> None:
    """Add kernel messages to the journal and the dmesg output that the host has, in order of time."""
    commands = recording["commands"]
    journal = commands.get(JOURNAL)
    if journal is not None:
        entries = [json.loads(line) for line in journal["stdout"].splitlines()]
        base = int(entries[-1]["__REALTIME_TIMESTAMP"]) - int(entries[-1]["__MONOTONIC_TIMESTAMP"])
        last = int(entries[-1]["__MONOTONIC_TIMESTAMP"]) / 1e6
        for when, message in messages(text, last):
            entry = dict(entries[-1])
            entry.update(
                MESSAGE=message,
                PRIORITY="4",
                __MONOTONIC_TIMESTAMP=str(round(when * 1e6)),
                __REALTIME_TIMESTAMP=str(base + round(when * 1e6)),
            )
            entries.append(entry)
        entries.sort(key=lambda entry: int(entry["__MONOTONIC_TIMESTAMP"]))
        journal["stdout"] = "".join(json.dumps(entry) + "\n" for entry in entries)
    dmesg = commands.get("dmesg")
    if dmesg is not None and dmesg["rc"] == 0:
        stamps = [float(found.group(1)) for line in dmesg["stdout"].splitlines() if (found := STAMP.match(line))]
        added = [
            f"[{when:12.6f}] {line}"
            for when, message in messages(text, stamps[-1] if stamps else 0.0)
            for line in message.split("\n")
        ]
        dmesg["stdout"] += "".join(f"{line}\n" for line in added)
    if journal is None and dmesg is None:
        raise ValueError("this host has no kernel log that lines could be added to")


def report(
    recording: dict[str, Any], expect: dict[str, Any] | None = None, options: dict[str, Any] | None = None, **more: Any
) -> Report:
    """Judge a recording."""
    facts = gather(RecordedReader(recording), Options(**(options or {})))
    return assess(facts, expectation(expect or {}), **more)


def now(recording: dict[str, Any]) -> float:
    """Seconds since the epoch at which the host was recorded."""
    return seconds(recording["taken_at"])


def lay_out(recording: dict[str, Any], root: Path) -> Path:
    """Lay a recording out as a directory: files and links as they are, commands as executables.

    What a directory cannot hold (refusals, owners, calls, the time) goes into ``.hostcheck.json``. An argv that was not
    recorded makes the executable exit 127, which is what a missing tool gives.
    """
    side: dict[str, Any] = {
        "schema": SCHEMA,
        "taken_at": recording["taken_at"],
        "origin": recording["origin"],
        "files": {},
    }
    side["samples"] = recording.get("samples", [])
    for part in ("links", "stats", "statvfs", "calls"):  # links: refusals stand at resolved paths
        side[part] = recording.get(part, {})
    for path, content in recording["files"].items():
        target = root / path.lstrip("/")
        if path.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            target.write_text(content, encoding="utf-8", newline="")
        elif "base64" in content:
            target.write_bytes(base64.b64decode(content["base64"]))
        else:
            side["files"][path] = content
    for path, link in recording["links"].items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(link)
    tools: dict[str, list[tuple[list[str], dict[str, Any]]]] = {}
    for command, output in recording["commands"].items():
        if "error" in output:
            side.setdefault("commands", {})[command] = output
            continue
        name, *arguments = shlex.split(command)
        tools.setdefault(name, []).append((arguments, output))
    outputs = root / ".outputs"
    outputs.mkdir()
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    number = 0
    for name, answers in tools.items():
        script = ["#!/bin/sh", 'case "$*" in']
        for arguments, output in answers:
            number += 1
            for stream in ("stdout", "stderr"):
                (outputs / f"{number}.{stream}").write_text(output.get(stream, ""), encoding="utf-8", newline="")
            files = f'"$HOSTCHECK_ROOT/.outputs/{number}.'
            rc = output["rc"]
            end = f"kill -{-rc} $$" if rc < 0 else f"exit {rc}"
            script.append(f'{shlex.quote(" ".join(arguments))}) cat {files}stdout"; cat {files}stderr" >&2; {end};;')
        script += ["*) exit 127;;", "esac"]
        tool = root / "usr/bin" / name
        tool.write_text("\n".join(script) + "\n")
        tool.chmod(0o755)
    (root / SIDECAR).write_text(json.dumps(side), encoding="utf-8")
    return root
