"""Workers without torch: one that answers with made-up samples and fails on request, and the text around
it.
"""

from __future__ import annotations

import sys
from typing import Any

from hostcheck.onhost.probe import session
from hostcheck.onhost.probe.schedule import Plan
from hostcheck.onhost.probe.session import Job, Limits

PYTHON = [sys.executable, "-S", "-I"]  # no site-packages: starts fast and has no torch
PATIENT = Limits(start_s=60.0, reply_s=60.0, close_s=0.5, life_s=120.0)
HURRIED = Limits(start_s=60.0, reply_s=0.3, close_s=0.3, life_s=120.0, line=200_000, stderr=100_000, preamble=5_000)
SMALL = Plan(sham=8, looks=(8,), block_s=0.001, settle_s=0.0, warm_s=0.0, workers=1)

PRELUDE = """
import json, os, random, signal, subprocess, sys, time
def say(**fields):
    sys.stdout.write(json.dumps(fields) + "\\n")
    sys.stdout.flush()
def requests():
    for line in iter(sys.stdin.buffer.readline, b""):
        yield json.loads(line)
say(reply="hello", protocol="hostcheck-worker/1")
"""

# Answers like the real one. SLOWER: factor of the samples in the pairs phase, read from the file that a
# toggle writes.
ANSWERS = """
coins = random.Random(SEED)
def series(name, level, n, per_sample):
    samples = [max(1, round(level * per_sample * coins.lognormvariate(0, 0.01))) for _ in range(n)]
    return {"unit": "ns", "samples": samples, "per_sample": per_sample, "sum": sum(samples),
            "exercised": {"n": n * per_sample, "how": "made up"}}
LEVELS = {"launch_us": (3000, 30, 400), "launch_drain": (8000, 30, 1), "launch_sync_us": (26000, 60, 1),
          "rms_composite8_us": (41000, 30, 20), "cpu_add_us": (1000, 8, 400), "py_loop_ns": (40, 8, 1000)}
def factor():
    return float(open(FACTOR_FILE).read()) if FACTOR_FILE else 1.0
blocks = 0
for request in requests():
    op = request["op"]
    if op == FAIL_OP and blocks >= FAIL_AFTER:
        exec(FAIL_CODE)
    if op == "start":
        say(reply="start", identity={"device": DEVICE, "index": request["index"], "card": CARD,
            "torch": "2.13.0+made-up", "torch_git": "", "runtime": "", "python": "3.11.7", "kernel": "7.0",
            "machine": "x86_64", "container": False, "intel_extension_for_pytorch": None, "vllm": None,
            "vllm_xpu_kernels": None},
            environment={k: os.environ[k] for k in ("FI_TCP_IFACE", "CCL_KVS_IFACE") if k in os.environ},
            unavailable={}, pinned={"asked": None, "affinity": [0], "error": ""}, threads=1,
            sizes={"launches": 400}, import_ns=1000, ready_ns=1000)
    elif op == "block":
        blocks += 1
        made = {name: series(name, level * factor(), n, per) for name, (level, n, per) in LEVELS.items()}
        say(reply="block", metrics=made, rounds=30, begun_ns=blocks, ended_ns=blocks + 1, since_import_ns=1,
            switches={"voluntary": 0, "involuntary": 0}, load=0.0, affinity=[0], checked=12000)
    elif op == "lab":
        say(reply="lab", figures={
            "launch_us_async": {"total_ns": 2000 * LAB[0], "n": 2000, "how": "made up"},
            "launch_plus_sync_us": {"total_ns": 500 * LAB[1], "n": 500, "how": "made up"},
            "w8a16_m2_qkv_us": {"error": "B_scale must be contiguous for fp8 matmul"},
            "ir_rms_norm_m2_us": {"total_ns": 500 * LAB[2], "n": 500, "how": "made up"}})
    elif op == "inspect":
        say(reply="inspect", launches={name: {"launches": n, "how": "made up"} for name, n in
            {"launch_us": 1, "rms_composite8_us": 8, "rms_fused_us": FUSED, "ir_rms_norm_m2_us": 8}.items()})
    elif op == "load":
        say(reply="load", torch="2.13.0+made-up")
    elif op == "devices":
        say(reply="devices", device=DEVICE, devices=ROWS)
    elif op == "smoke":
        say(reply="smoke", identity={"device": DEVICE, "index": request["index"], "card": CARD}, sum=SUM)
    elif op == "store":
        say(reply="store", port=1)
    elif op == "join":
        say(reply="join", rank=request["rank"], world=request["world"], backend="made-up")
    elif op == "allreduce":
        made = {"sync_end": series("", 13000, 4, 10), "sync_each": series("", 40000, 4, 1)}
        say(reply="allreduce", series=made)
    elif op == "leave":
        say(reply="leave")
    elif op == "stop":
        break
"""

CARD = {"index": 0, "name": "Intel(R) Arc(TM) Pro B70 Graphics", "uuid": "868023e2-0000-0000-2300-000000000000"}


def source(fail_op: str = "", fail_after: int = 0, fail_code: str = "", **settings: Any) -> str:
    """Return a worker that answers with made-up samples; ``fail_code`` runs at ``fail_op`` once
    ``fail_after`` blocks are done.

    settings: SEED, DEVICE, CARD, LAB (three ns per call), FUSED (launches of the fused norm), FACTOR_FILE.
    """
    values = {
        "SEED": 1,
        "DEVICE": "xpu",
        "CARD": CARD,
        "LAB": (3100, 26000, 41000),
        "FUSED": 1,
        "FACTOR_FILE": "",
        **settings,
        "FAIL_OP": fail_op,
        "FAIL_AFTER": fail_after,
        "FAIL_CODE": fail_code,
    }
    return PRELUDE + "\n".join(f"{name} = {value!r}" for name, value in values.items()) + ANSWERS


def job(limits: Limits = PATIENT, plan: Plan = SMALL, seed: int = 5, **settings: Any) -> Job:
    """Return a job over the made-up worker."""
    return Job(command=PYTHON, plan=plan, seed=seed, warm_up_s=0.0, limits=limits, source=source(**settings))


CALM = {
    "log": {"read": True, "fault_lines": []},
    "coredumps": [],
    "holders": [],
    "throttle": {},
    "alarms": [],
    "card": "",
    "host": {},
}


def profile(**settings: Any) -> dict[str, Any]:
    """Return the receipt of a made-up profile."""
    return session.profile(job(**settings), lambda: CALM)
