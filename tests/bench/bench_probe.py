"""Does the probe measure what it says? Ratios in one run on this machine; exits 1 on a missed one.

    python -m tests.bench.bench_probe [--device cpu|xpu|cuda] [--command PYTHON ...]

1. launch_us within 5 % of the same operation in torch.utils.benchmark's loop: median of 10 interleaved
repeats in one process. 2. From torch's import to the first block under 3 s, with the default warm-up of 2 s.
3. The timed code of launch_us allocates nothing, and a block loads no compiler.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from hostcheck.onhost.probe import session
from tests.unit.test_probe_worker import extended, torch_python

REPEATS = 10
WITHIN = 0.05
FIRST_BLOCK_S = 3.0

CODE = """
def timer(self, request):
    bench, torch = self.bench, self.torch
    import torch.utils.benchmark
    names = {"add": torch.add, "x": bench.x, "y": bench.y}
    t = torch.utils.benchmark.Timer("add(x, y, out=x)", globals=names, num_threads=1)
    gc.disable()
    try:
        measured = [t.timeit(bench.sizes["launches"]).mean for _ in range(int(request["n"]))]
    finally:
        gc.enable()
    bench.reset_count()
    return {"ns": [1e9 * x for x in measured]}

def allocations(self, request):
    torch, bench = self.torch, self.bench
    bench.launch(400)
    stats = getattr(getattr(torch, bench.kind, None), "memory_stats", None) if bench.kind != "cpu" else None
    before = stats()["allocation.all.allocated"] if stats else 0
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        bench.launch(400)
    made = sum(1 for e in seen.events() if e.name.startswith("aten::empty"))
    made += (stats()["allocation.all.allocated"] - before) if stats else 0
    loaded = set(sys.modules)
    block(bench, 0.05, 0.0, METRICS, self.gemm_name)
    new = sorted(set(sys.modules) - loaded)
    compilers = sorted(m for m in sys.modules if m.split(".")[0] == "triton")
    return {"tensors": made, "new": new, "compilers": compilers}

Worker.timer, Worker.allocations = timer, allocations
OPERATIONS += ("timer", "allocations")
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Ratios of the probe; exits 1 on a missed one.")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--command", nargs="+", default=None)
    options = parser.parse_args()
    command = options.command or [torch_python()]
    if not command[0]:
        print("bench_probe: torch is not installed here and HOSTCHECK_TORCH_PYTHON names no Python that has it")
        return 2
    missed = []
    with session.Worker(command, source=extended(CODE)) as worker:
        started = worker.ask("start", 120.0, device=options.device, life_s=600.0)
        first = worker.ask("block", 1.0, seconds=0.3, warm_s=0.05)
        seconds = first["since_import_ns"] / 1e9
        print(f"{started['identity']['device']}, torch {started['identity']['torch']}")
        print(f"import to first block: {seconds:.2f} s, wanted under {FIRST_BLOCK_S:g}")
        if seconds >= FIRST_BLOCK_S:
            missed.append("start")
        ratios = []
        for _ in range(REPEATS):
            block = worker.ask("block", 1.0, seconds=0.7, warm_s=0.05)["metrics"]["launch_us"]  # all metrics
            ours = statistics.median(block["samples"]) / block["per_sample"]
            theirs = statistics.median(worker.ask("timer", 60.0, n=len(block["samples"]))["ns"])
            ratios.append(ours / theirs)
            print(f"launch_us {ours:8.1f} ns   torch.utils.benchmark {theirs:8.1f} ns   ratio {ratios[-1]:.3f}")
        middle = statistics.median(ratios)
        print(f"median ratio {middle:.3f}, wanted within {WITHIN:.0%} of 1")
        if abs(middle - 1) > WITHIN:
            missed.append("launch_us")
        seen = worker.ask("allocations", 60.0)
        print(f"tensors allocated by 400 timed launches: {seen['tensors']}; modules loaded by a block: {seen['new']}")
        if seen["tensors"] or seen["new"] or seen["compilers"]:
            missed.append("allocations")
    for name in missed:
        print(f"missed: {name}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
