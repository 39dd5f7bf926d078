"""The worker really run on this machine's CPU, and its pure parts without torch. No test asserts a time."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hostcheck import receipts
from hostcheck.onhost.probe import session, worker
from hostcheck.onhost.probe.schedule import Plan
from hostcheck.onhost.probe.session import Job, Limits, WorkerFailed
from tests import fake_worker as fake

LIMITS = Limits(start_s=120.0, reply_s=60.0, life_s=300.0)


def torch_python() -> str:
    """Return a Python with torch: HOSTCHECK_TORCH_PYTHON, or this one."""
    return os.environ.get("HOSTCHECK_TORCH_PYTHON") or (sys.executable if importlib.util.find_spec("torch") else "")


needs_torch = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not torch_python(), reason="torch is not installed here and HOSTCHECK_TORCH_PYTHON names no Python that has it"
    ),
]


def torch_marked(function: Any) -> Any:
    """Mark a test that runs the real worker."""
    for mark in needs_torch:
        function = mark(function)
    return function


# ------------------------------------------------------------------------------------------ no torch


def test_only_allow_listed_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setenv("CCL_SECRET", "secret")
    monkeypatch.setenv("CCL_KVS_IFACE", "eno1")
    assert "secret" not in json.dumps(worker.environment())
    assert worker.environment()["CCL_KVS_IFACE"] == "eno1"


@pytest.mark.parametrize(
    ("variable", "value", "absent"),
    [
        ("FI_TCP_IFACE", "eth1", ["eth1"]),
        ("FI_TCP_IFACE", "eno1", []),
        ("FI_TCP_IFACE", "eno", ["eno"]),
        ("CCL_KVS_IFACE", "eno", []),  # part of a name is enough for oneCCL
        ("CCL_KVS_IFACE", "eth", ["eth"]),
        ("GLOO_SOCKET_IFNAME", "lo,eth1", ["eth1"]),
        ("NCCL_SOCKET_IFNAME", "en", []),
        ("NCCL_SOCKET_IFNAME", "=en", ["en"]),
        ("NCCL_SOCKET_IFNAME", "=eno1", []),
        ("NCCL_SOCKET_IFNAME", "^docker", []),
        ("OMP_NUM_THREADS", "eth1", []),
    ],
)
def test_absent_interfaces_by_the_rule_of_each_variable(variable: str, value: str, absent: list[str]) -> None:
    assert worker.absent_interfaces({variable: value}, ["lo", "eno1"]) == absent


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)", "device_lost"),
        ("Native API failed. Native API returns: 20 (UR_RESULT_ERROR_DEVICE_LOST)", "device_lost"),
        ("Native API failed. Native API returns: 20 (something new)", "device_lost"),
        ("level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", "out_of_resources"),
        ("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", "out_of_resources"),
    ],
)
def test_a_lost_device_is_read_from_the_text(text: str, kind: str) -> None:
    with pytest.raises(worker.Refused) as refused:
        worker.raise_if_lost(RuntimeError(text))
    assert refused.value.kind == kind


def test_other_errors_are_no_lost_device() -> None:
    worker.raise_if_lost(RuntimeError("B_scale must be contiguous for fp8 matmul"))
    worker.raise_if_lost(ValueError("Native API returns: 200"))
    accelerator = type("AcceleratorError", (RuntimeError,), {})
    with pytest.raises(worker.Refused):
        worker.raise_if_lost(accelerator("CUDA error: an illegal memory access was encountered"))


def test_versions_of_torch() -> None:
    assert worker.version_of("2.13.0+xpu") == (2, 13)
    assert worker.version_of("2.6.0a0+git1234") == (2, 6)
    assert worker.OLDEST_TORCH == (2, 6)


def test_errors_are_cut_to_one_line() -> None:
    assert worker.short(RuntimeError("first\nsecond")) == "RuntimeError: first"
    assert len(worker.short(RuntimeError("x" * 1000))) == 300


# ------------------------------------------------------------------------------------------ torch, for real


@pytest.fixture(scope="module")
def running() -> Iterator[session.Worker]:
    with session.Worker([torch_python()], limits=LIMITS) as one:
        one.ask("start", 120.0, device="cpu", life_s=300.0, warm_s=0.05)
        yield one


@torch_marked
def test_a_block_on_the_cpu(running: session.Worker) -> None:
    reply = running.ask("block", 1.0, seconds=0.3, warm_s=0.0)
    metrics = reply["metrics"]
    assert {
        "launch_us",
        "launch_drain",
        "launch_sync_us",
        "gap_sync_0.3ms_us",
        "gap_sync_3ms_us",
        "sleep_overshoot_3ms_us",
        "rms_composite8_us",
        "rms_fused_us",
        "cpu_add_us",
        "py_loop_ns",
    } <= set(metrics)
    for name, series in metrics.items():
        assert series["sum"] == sum(series["samples"]), name
        assert series["exercised"]["n"] == len(series["samples"]) * series["per_sample"] > 0
        assert series["exercised"]["how"]
        assert all(isinstance(sample, int) for sample in series["samples"])
    rounds = reply["rounds"]
    assert len(metrics["launch_us"]["samples"]) == rounds  # every round samples it: the whole block is covered
    assert len(metrics["launch_sync_us"]["samples"]) == 5 * rounds
    assert reply["checked"] > 400 * rounds


@torch_marked
def test_devices_are_listed_with_their_addresses() -> None:
    found = session.devices(Job(command=[torch_python()], device="cpu", limits=LIMITS))
    assert [(row["index"], row["address"]) for row in found] == [(0, None)]


@torch_marked
def test_the_metrics_of_a_block_can_be_chosen(running: session.Worker) -> None:
    reply = running.ask("block", 1.0, seconds=0.05, warm_s=0.0, metrics=["launch_us", "no_such_metric"])
    assert set(reply["metrics"]) == {"launch_us", "launch_drain"}


@torch_marked
def test_the_labs_own_figures(running: session.Worker) -> None:
    figures = running.ask("lab", 60.0)["figures"]
    assert list(figures) == ["launch_us_async", "launch_plus_sync_us", "w8a16_m2_qkv_us", "ir_rms_norm_m2_us"]
    assert [figures[key]["n"] for key in figures if key != "w8a16_m2_qkv_us"] == [2000, 500, 500]
    assert figures["w8a16_m2_qkv_us"]["error"]


@torch_marked
def test_what_the_cpu_cannot_do_is_said() -> None:
    with session.Worker([torch_python()], limits=LIMITS) as one:
        reply = one.ask("start", 120.0, device="auto", life_s=300.0, warm_s=0.0)
        if reply["identity"]["device"] == "cpu":
            assert reply["unavailable"] == {
                "graph_us": "no graph capture on cpu",
                "w8a16_us": "no fp8 GEMM is timed on cpu",
            }
        assert reply["threads"] == 1
        launches = one.ask("inspect", 60.0)["launches"]
        assert launches["rms_composite8_us"].get("operators", 8) == 8
        with pytest.raises(WorkerFailed) as failed:
            one.ask("start", 60.0, device="xpu" if reply["identity"]["device"] != "xpu" else "cuda", life_s=300.0)
        assert failed.value.kind == "no_device"


# Runs inside the worker: what the timed code allocates, and which compilers it loads.
ALLOCATIONS = """
def allocations(self, request):
    torch, bench = self.torch, self.bench
    gc.collect(); gc.disable()
    result = {}
    for name, call in (("launch_us", lambda: bench.launch(400)), ("launch_sync_us", bench.launch_sync),
                       ("rms_composite8_us", lambda: bench.composite8(20)), ("cpu_add_us", lambda: bench.cpu_add(400))):
        call()
        with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            call()
        memory = [abs(e.cpu_memory_usage) for e in seen.events() if e.name.startswith("aten::empty")]
        blocks = sys.getallocatedblocks()
        call()
        result[name] = {"bytes": max(memory, default=0), "objects": sys.getallocatedblocks() - blocks}
    gc.enable()
    before = set(sys.modules)
    block(bench, 0.05, 0.0, METRICS, self.gemm_name)
    new = sorted(set(sys.modules) - before)
    compilers = sorted(m for m in sys.modules if m.split(".")[0] in ("triton", "pytorch_triton_xpu"))
    return {"allocations": result, "new_modules": new, "compilers": compilers}
Worker.allocations = allocations
OPERATIONS += ("allocations",)
"""


def extended(code: str) -> str:
    """Return the worker's text with more code before it starts."""
    head, marker, tail = session.worker_source().rpartition('if __name__ == "__main__":')
    return head + code + marker + tail


@torch_marked
def test_the_timed_code_allocates_nothing_and_compiles_nothing() -> None:
    with session.Worker([torch_python()], source=extended(ALLOCATIONS), limits=LIMITS) as one:
        one.ask("start", 120.0, device="cpu", life_s=300.0, warm_s=0.05)
        reply = one.ask("allocations", 120.0)
    for name, seen in reply["allocations"].items():
        # A Python number among the operands of the norm becomes a tensor of 4 bytes inside torch.
        assert seen["bytes"] <= (8 if name == "rms_composite8_us" else 0), name
        assert seen["objects"] <= 4, name  # the result itself
    assert reply["new_modules"] == []
    assert reply["compilers"] == []


BREAKING = {
    "NaN": ("Bench.launch_sync = lambda self: self.x.fill_(float('nan')) and 1", "nan", "NaN"),
    "wrong sum": (
        "Bench.launch_sync = lambda self: int(self.x.add_(1.0) is not None)",
        "wrong_result",
        "adds of one gave",
    ),
    "wrong norm": ("Bench.composite8_once = lambda self: self.normed.fill_(0.25)", "wrong_result", "RMS norm"),
    "device lost": (
        "def lost(self): raise RuntimeError('level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)')\n"
        "Bench.launch_sync = lost",
        "device_lost",
        "UR_RESULT_ERROR_DEVICE_LOST",
    ),
    "another error": (
        "def other(self): raise IndexError('no such thing')\nBench.launch_sync = other",
        "exception",
        "IndexError: no such thing",
    ),
}


@torch_marked
@pytest.mark.parametrize(("code", "kind", "text"), BREAKING.values(), ids=BREAKING)
def test_a_wrong_value_is_never_timed(code: str, kind: str, text: str) -> None:
    job = Job(
        command=[torch_python()],
        device="cpu",
        plan=fake.SMALL,
        warm_up_s=0.0,
        limits=LIMITS,
        source=extended(code + "\n"),
    )
    receipt = session.profile(job, lambda: fake.CALM)
    assert receipt["failures"][0]["kind"] == kind
    assert text in receipt["failures"][0]["text"]
    assert not receipt["validity"]["valid"]
    assert receipts.verify(receipt) == []


@torch_marked
def test_a_receipt_from_this_cpu() -> None:
    plan = Plan(sham=6, looks=(6,), block_s=0.05, settle_s=0.0, warm_s=0.0, workers=1)
    cpus = sorted(os.sched_getaffinity(0))[:1]
    receipt = session.profile(
        Job(command=[torch_python()], device="cpu", plan=plan, warm_up_s=0.1, limits=LIMITS, pin=cpus)
    )
    assert receipt["failures"] == []
    assert receipts.verify(receipts.parse(json.dumps(receipt))) == []
    assert {tuple(block["affinity"]) for block in receipt["blocks"]} == {tuple(cpus)}
    assert receipt["figures"]["metrics"]["launch_us"]["floor"] is not None
    assert receipt["workers"][0]["identity"]["torch"]


# ------------------------------------------------------------------------------------------ all-reduce


def reduce_job(ranks: int, **changes: Any) -> Job:
    return Job(**{"command": [torch_python()], "device": "cpu", "ranks": ranks, "limits": LIMITS, **changes})


@torch_marked
@pytest.mark.parametrize(
    ("ranks", "shape"),
    [(2, {"dtype": "bfloat16", "rows": 1, "hidden": 5120}), (3, {"dtype": "float16", "rows": 2, "hidden": 64})],
)
def test_all_reduce_over_gloo(ranks: int, shape: dict[str, Any]) -> None:
    entry = session.all_reduce(reduce_job(ranks, collective=shape), batches=3, per_batch=4)
    assert entry["failure"] is None
    assert entry["backend"] == "gloo"
    for policy, n in (("sync_end", 3), ("sync_each", 12)):
        assert [len(series["samples"]) for series in entry["series"][policy]] == [n] * ranks
        assert all(series["exercised"]["n"] == 12 for series in entry["series"][policy])


@torch_marked
def test_a_missing_interface_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_TCP_IFACE", "eth77")
    entry = session.all_reduce(reduce_job(2), batches=1, per_batch=1)
    assert entry["failure"] is not None
    assert (entry["failure"]["kind"], entry["failure"]["text"]) == ("config_error", "interface eth77 absent")
    assert entry["series"] == {}


@torch_marked
def test_a_wrong_sum_is_no_figure() -> None:
    broken = extended(
        "Collective_measure = Collective.measure\n"
        "def measure(self, bench, *rest):\n    self.rank += 1\n    return Collective_measure(self, bench, *rest)\n"
        "Collective.measure = measure\n"
    )
    entry = session.all_reduce(reduce_job(2, source=broken), batches=1, per_batch=1)
    assert entry["failure"]["kind"] == "wrong_result"
    assert "wanted 3.0" in entry["failure"]["text"]


@torch_marked
def test_a_rank_that_dies_ends_the_others() -> None:
    broken = extended(
        "def measure(self, *rest):\n    if self.rank == 0: os._exit(5)\n    time.sleep(600)\n"
        "Collective.measure = measure\n"
    )
    entry = session.all_reduce(reduce_job(2, source=broken), batches=1, per_batch=1)
    assert (entry["failure"]["kind"], entry["failure"]["text"]) == ("died", "exit status 5")


@torch_marked
def test_standalone_with_ranks(tmp_path: Path) -> None:
    out = tmp_path / "receipt.json"
    command = [
        sys.executable,
        "-m",
        "hostcheck.onhost.probe.session",
        "--device",
        "cpu",
        "--quick",
        "--ranks",
        "2",
        "--seed",
        "3",
        "--block-s",
        "0.02",
        "--command",
        torch_python(),
        "-o",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done.stderr
    receipt = receipts.load(out)
    assert receipts.verify(receipt) == []
    assert any(
        name.startswith("allreduce_us[bfloat16,1x5120,ranks=2,gloo,") for name in receipt["figures"]["collectives"]
    )
