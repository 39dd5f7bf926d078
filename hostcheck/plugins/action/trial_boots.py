"""Action plugin trial_boots: plans a trial over boots and judges its receipts (manual: library/trial_boots.py)."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # ansible-playbook does not put the project on the path

from hostcheck import boots, receipts
from hostcheck.onhost.probe import schedule
from hostcheck.onhost.probe.host import address
from hostcheck.onhost.recording import utc
from hostcheck.report import store, trial

METRICS = {"pcie_aspm": "gap_sync_3ms_us"}  # what a link that sleeps costs is not seen in a tight loop
ARGUMENTS = {
    "state": {"type": "str", "choices": ["planned", "recorded"], "default": "planned"},
    "setting": {"type": "str", "default": "kernel_arguments"},
    "wanted": {"type": "dict", "default": {}},
    "arms": {"type": "dict", "default": {}},
    "metric": {"type": "str", "default": ""},
    "statistic": {"type": "str", "default": "median"},
    "device": {"type": "str", "choices": ["auto", "xpu", "cuda", "cpu"], "default": "auto"},
    "card": {"type": "str", "default": ""},
    "cards": {"type": "list", "elements": "str", "default": []},
    "per_arm": {"type": "int", "default": 4},
    "evidence": {"type": "list", "elements": "str", "default": []},
    "seed": {"type": "int"},
    "earlier": {"type": "dict", "default": {}},
    "resume": {"type": "bool", "default": True},
    "plan": {"type": "dict", "default": {}},
    "boots": {"type": "list", "elements": "dict", "default": []},
    "by_coin": {"type": "bool", "default": True},
    "restore": {"type": "str", "default": ""},
    "receipts": {"type": "path", "default": "reports/receipts"},
}


def claim_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the claim that the arguments make. Raises Refused."""
    wanted = {key: value for key, value in given["wanted"].items() if key != "try_once"}
    cards, card = given["cards"], given["card"].lower()
    if card and card not in cards:
        raise boots.Refused(f"card is {card}; this host has {', '.join(cards) or 'no card that is measured'}")
    if len(cards) > 1 and not card:
        raise boots.Refused(f"this host has {', '.join(cards)}: name the one that the trial is about with card")
    words = [*wanted.get("present", ()), *(f"without {word}" for word in wanted.get("absent", ()))]
    wish = " ".join(map(str, words)) or ", ".join(f"{key} {value}" for key, value in wanted.items())
    arms = {"A": "as it was", **({"B": wish} if wish else {}), **given["arms"]}
    if set(arms) != {"A", "B"}:
        raise boots.Refused(f"arms is {arms}: say what A and B are")
    return boots.claim_of(
        {
            "setting": given["setting"],
            "wanted": wanted,
            "metric": given["metric"] or METRICS.get(given["setting"], "launch_us"),
            "statistic": given["statistic"],
            "arms": arms,
            "device": given["device"],
            "card": card or (cards[0] if cards else ""),
            "per_arm": given["per_arm"],
            "evidence": given["evidence"],
        }
    )


def stem(host: str, claim: Mapping[str, Any]) -> str:
    """Return how the names of all results for a host and card begin."""
    return f"{store.file_name(host)}-{(claim['card'] or 'cpu').replace(':', '-')}-boots-"


def before(folder: Path, host: str, claim: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the last result for this host with the same claim, or None; what is not understood is passed over."""
    found = []
    for path in sorted(folder.glob(f"{stem(host, claim)}*.json")):
        try:
            document = boots.load(path)
        except (OSError, ValueError):
            continue
        if boots.is_boots(document) and document["claim"] == claim and document["host"] == host:
            found.append((document["made_at"], path.name, document))
    return max(found, key=lambda one: one[:2])[1:] if found else None


def earlier_boots(folder: Path, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the boots that the arguments add, named from the folder of the result. Raises Refused."""
    if set(given) - {"A", "B"}:
        raise boots.Refused(f"earlier has {', '.join(map(str, given))}: wanted A and B, each with a list of receipts")
    for arm, files in sorted(given.items()):
        for file in [files] if isinstance(files, str) else files:
            yield {"arm": arm, "file": boots.relative(Path(file), folder), "run": None}


def read(folder: Path, rows: Sequence[Mapping[str, Any]]) -> list[boots.Boot]:
    """Return boots from their receipts. Raises Refused for one that cannot be read or does not verify."""
    found = []
    for row in rows:
        try:
            receipt = receipts.load(boots.beside(folder, row["file"]))
        except (OSError, receipts.NotAReceipt) as error:
            raise boots.Refused(f"{row['file']} is no receipt: {error}") from error
        problems = receipts.verify(receipt)
        if problems:
            raise boots.Refused(f"{row['file']} does not verify: {problems[0]}")
        found.append(boots.Boot(row["arm"], row["file"], receipt, row["run"]))
    return found


def plan(given: Mapping[str, Any], host: str, folder: Path) -> dict[str, Any]:
    """Return what a run will do: claim, order of its boots, and boots that count already. Raises Refused."""
    claim = claim_of(given)
    rows = list(earlier_boots(folder, given["earlier"]))
    runs: list[dict[str, Any]] = []
    name = f"{stem(host, claim)}{store.stamp()}.json"
    resumed = before(folder, host, claim) if given["resume"] else None
    if resumed:
        name, document = resumed
        known = [{key: row[key] for key in ("arm", "file", "run")} for row in document["boots"]]
        rows = [*known, *(row for row in rows if row not in known)]
        runs = document["runs"]
    counted = boots.ordered(claim, read(folder, rows))
    seed = given["seed"] if given["seed"] is not None else random.SystemRandom().randrange(2**31)
    return {
        "claim": claim,
        "file": name,
        "resumed": bool(resumed),
        "boots": rows,
        "runs": runs,
        "run": {"seed": seed, "per_arm": claim["per_arm"]},
        "order": schedule.boots(seed, claim["per_arm"]),
        "counts": {arm: sum(boot.arm == arm for boot in counted) for arm in boots.ARMS},
    }


def record(given: Mapping[str, Any], host: str, folder: Path) -> dict[str, Any]:
    """Write the result over all boots so far and return what it says. Raises Refused."""
    made = given["plan"]
    runs = [*made["runs"], *([made["run"]] if given["by_coin"] else [])]
    rows = list(made["boots"])
    for one in given["boots"]:
        for file in one["files"]:
            path = Path(file)
            if address(receipts.load(path)) == made["claim"]["card"]:
                run = len(made["runs"]) if given["by_coin"] else None
                rows.append({"arm": one["arm"], "file": boots.relative(path, folder), "run": run})
    document = boots.seal(host, utc(time.time()), made["claim"], runs, read(folder, rows), given["restore"])
    path = folder / made["file"]
    store.write(path, json.dumps(document, separators=(",", ":")) + "\n")
    said = document["verdict"]
    return {
        "file": str(path),
        "word": said["word"],
        "sentence": said["sentence"],
        "reasons": said["reasons"],
        "notes": said["notes"],
        "lines": trial.plain(lambda out: trial.boots(document, out)),
    }


class ActionModule(ActionBase):  # type: ignore[misc]
    """Works on the controller alone: nothing is sent to the host."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Give the plan, or what the boots have shown; fail where they cannot be counted or are invalid."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        host = str((task_vars or {}).get("inventory_hostname", "localhost"))
        try:
            _, given = self.validate_argument_spec(argument_spec=ARGUMENTS)
            folder = Path(given["receipts"])
            if given["state"] == "planned":
                return {**result, "changed": False, **plan(given, host, folder)}
            if not given["plan"]:
                raise boots.Refused("state recorded needs plan: what the task with state planned returned")
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            result.update(changed=False, **record(given, host, folder))
        except (AnsibleError, boots.Refused, receipts.NotAReceipt, OSError) as error:
            raise AnsibleActionFail(f"{host}: {error}") from None
        if result["word"] == "invalid":
            result.update(failed=True, msg=result["sentence"])
        return result
