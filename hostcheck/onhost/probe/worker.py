"""The measuring process of the probe: torch and the standard library, one file, any device (xpu, cuda, cpu).

It is never imported by the toolkit. The session sends its text to a Python of the user's image and then talks
JSON lines with it: one request, one reply. Answers go to a duplicate of fd 1, and fd 1 itself points at
stderr, so nothing that a library prints can be taken for an answer. The process ends itself when its stdin
closes and at its own deadline, because killing ``docker exec`` leaves what it started alive.

Rules of the timed code: ``perf_counter_ns``, the operation is a local name in a bare ``for``, outputs exist
before the clock starts, the garbage collector is off, nothing is compiled, the value is checked afterwards.
No real-time priority and no
``/dev/cpu_dma_latency`` handle: they would hide the faults that the probe looks for. Nothing is dropped;
every sample is kept in ns.

Needs torch >= 2.6 (torch.accelerator); 2.8 for xccl, 2.11 for XPU graphs. Older parts are reported as
unavailable with the reason.
"""

from __future__ import annotations

import datetime
import faulthandler
import gc
import importlib
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import queue
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

PROTOCOL = "hostcheck-worker/1"
OLDEST_TORCH = (2, 6)
HIDDEN = 5120
EPSILON = 1e-6
# float32 counts ones exactly up to 2 ** 24; the accumulator is set back before it gets there.
EXACT_ONES = 2**23
FIRST_REQUEST_S = 180.0

# Names only; a variable that is not listed here is never read (some hold secrets).
ENVIRONMENT = (
    "ZE_AFFINITY_MASK",
    "ZE_ENABLE_PCI_ID_DEVICE_ORDER",
    "ZE_FLAT_DEVICE_HIERARCHY",
    "ONEAPI_DEVICE_SELECTOR",
    "SYCL_CACHE_PERSISTENT",
    "SYCL_PI_LEVEL_ZERO_USE_IMMEDIATE_COMMANDLISTS",
    "UR_L0_USE_IMMEDIATE_COMMANDLISTS",
    "UR_L0_V2_FORCE_DISABLE_COPY_OFFLOAD",
    "NEOReadDebugKeys",
    "EnableDeferBacking",
    "EnableDirectSubmission",
    "CCL_ATL_TRANSPORT",
    "CCL_KVS_IFACE",
    "CCL_ALLREDUCE",
    "CCL_SYCL_ALLREDUCE_TMP_BUF",
    "CCL_WORKER_AFFINITY",
    "CCL_ZE_IPC_EXCHANGE",
    "CCL_SEND",
    "CCL_RECV",
    "CCL_TOPO_P2P_ACCESS",
    "CCL_SYCL_ALLREDUCE_SIMPLE_THRESHOLD",
    "CCL_SYCL_ALLGATHERV_SIMPLE_THRESHOLD",
    "CCL_SYCL_REDUCE_SCATTER_SIMPLE_THRESHOLD",
    "FI_PROVIDER",
    "FI_TCP_IFACE",
    "NCCL_SOCKET_IFNAME",
    "NCCL_P2P_DISABLE",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_NVLS_ENABLE",
    "GLOO_SOCKET_IFNAME",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "OMP_NUM_THREADS",
    "KMP_AFFINITY",
    "PYTORCH_ENABLE_XPU_FALLBACK",
    "PYTORCH_DEBUG_XPU_FALLBACK",
    "VLLM_XPU_ENABLE_XPU_GRAPH",
)
COLLECTIVE_PREFIXES = ("CCL_", "FI_", "NCCL_", "GLOO_")

clock = time.perf_counter_ns


class Refused(Exception):
    """The worker cannot do what was asked; ``kind`` is the name of the result that the session gives."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


# ----------------------------------------------------------------------------------------------------------
# talking


class Wire:
    """Requests from stdin, answers on a duplicate of fd 1; ends the process when stdin closes."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._requests: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        # Blocked in read() it holds no interpreter lock and costs the timed code nothing.
        for line in iter(sys.stdin.buffer.readline, b""):
            self._requests.put(line)
        os._exit(0)

    def requests(self) -> Iterator[dict[str, Any]]:
        while True:
            yield json.loads(self._requests.get())

    def answer(self, reply: str, /, **fields: Any) -> None:
        # allow_nan=False: a figure that is not finite is an error here, never a value on the wire.
        self._answers.write(json.dumps({"reply": reply, **fields}, separators=(",", ":"), allow_nan=False) + "\n")
        self._answers.flush()


def live_until(seconds: float) -> None:
    """End this process in ``seconds``, whatever it does: a C thread that needs no interpreter lock, and works
    as PID 1.
    """
    faulthandler.cancel_dump_traceback_later()
    faulthandler.dump_traceback_later(seconds, exit=True)


# -----------------------------------------------------------------------------------------------------------
# devices


def load_torch() -> Any:
    """Import torch and return it; Refused(torch_missing | torch_too_old) with what was found."""
    os.environ.setdefault("ZE_ENABLE_PCI_ID_DEVICE_ORDER", "1")  # index n is then the n-th card by PCI address
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise Refused("torch_missing", f"{error} (Python {platform.python_version()})") from error
    if version_of(torch.__version__) < OLDEST_TORCH:
        raise Refused("torch_too_old", f"torch {torch.__version__}, needs 2.6 or newer")
    return torch


def version_of(text: str) -> tuple[int, int]:
    """Return major and minor: ``"2.13.0+xpu"`` -> (2, 13)."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def device_type(torch: Any, asked: str) -> str:
    """Return xpu, cuda or cpu for ``asked`` (one of them, or auto); Refused(no_device) when it is not
    there.
    """
    if asked == "cpu":
        return "cpu"  # asking an XPU build for its accelerator would open the cards
    # current_accelerator() names the compiled-in accelerator, present or not (2.7 on): ask is_available().
    found = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
    if asked == "auto":
        return str(found)
    if asked != found:
        raise Refused("no_device", f"asked for {asked}, torch {torch.__version__} finds {found}")
    return asked


def device_rows(torch: Any, kind: str) -> list[dict[str, Any]]:
    """Return name, uuid, PCI address and memory of every device of a type, in index order; attributes vary by
    release.
    """
    if kind == "cpu":
        return [{"index": 0, "name": platform.processor() or platform.machine()}]
    module, rows = getattr(torch, kind), []
    for index in range(module.device_count()):
        found = module.get_device_properties(index)
        row: dict[str, Any] = {"index": index}
        for key in (
            "name",
            "uuid",
            "driver_version",
            "version",
            "device_id",
            "total_memory",
            "platform_name",
            "architecture",
            "is_integrated_gpu",
            "gpu_eu_count",
            "max_compute_units",
            "multi_processor_count",
        ):
            value = getattr(found, key, None)
            if value is not None:
                row[key] = value if isinstance(value, (bool, int, float)) else str(value)
        if all(hasattr(found, key) for key in ("pci_domain_id", "pci_bus_id", "pci_device_id")):
            row["bdf"] = f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
        rows.append(row)
    return rows


def installed(name: str) -> str | None:
    """Return the version of an installed package from its metadata, or None; nothing is imported."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def identity(torch: Any, kind: str, index: int) -> dict[str, Any]:
    """Return what must be the same for two measurements to be comparable."""
    rows = device_rows(torch, kind)
    if index >= len(rows):
        raise Refused("no_device", f"device {kind}:{index} asked, {len(rows)} found")
    return {
        "device": kind,
        "index": index,
        "card": rows[index],
        "torch": str(torch.__version__),
        "torch_git": str(torch.version.git_version),
        "runtime": str({"xpu": getattr(torch.version, "xpu", None), "cuda": torch.version.cuda}.get(kind) or ""),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "container": in_container(),
        # Retired upstream (last release 2.8, archived 30 March 2026): reported, never imported.
        "intel_extension_for_pytorch": installed("intel-extension-for-pytorch"),
        "vllm": installed("vllm"),
        "vllm_xpu_kernels": installed("vllm-xpu-kernels"),
    }


def in_container() -> bool:
    """Say whether this process runs inside a docker or podman container."""
    return os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv")


def environment() -> dict[str, str]:
    """Return the allow-listed variables that are set."""
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}


# -------------------------------------------------------------------------------------------------------
# operations


def nothing() -> None:
    """Stand for synchronize on the CPU, where every operation is finished when it returns."""


def rms_native(x: Any, weight: Any) -> Any:
    """RMS norm as vLLM's native IR operation does it when the weight's dtype is not the input's: 8
    operations, allocating.
    """
    wide = x.float()
    scaled = wide * (wide.pow(2).mean(-1, keepdim=True) + EPSILON).rsqrt()
    return (scaled * weight).half()


class Bench:
    """Tensors and operations on one device, made once; each method times one sample and returns nanoseconds.

    sizes: counts per sample, see `SIZES`.
    """

    def __init__(self, torch: Any, kind: str, index: int, sizes: dict[str, int]) -> None:
        self.torch, self.kind, self.sizes = torch, kind, sizes
        self.device = torch.device(kind, index) if kind != "cpu" else torch.device("cpu")
        if kind == "cpu":
            self.sync: Callable[[], None] = nothing
        else:
            getattr(torch, kind).set_device(index)
            self.sync = getattr(torch, kind).synchronize
        ones = {"dtype": torch.float32, "device": self.device}
        self.x, self.y = torch.zeros(1, **ones), torch.ones(1, **ones)
        self.cx, self.cy = torch.zeros(1), torch.ones(1)
        self.counted = 0
        # exact in fp16: rms of 2, 2, 2 ... is 2, the norm is 1 times the weight
        self.rows = torch.full((2, HIDDEN), 2.0, dtype=torch.float16, device=self.device)
        self.weight = torch.full((HIDDEN,), 0.5, dtype=torch.float32, device=self.device)
        self.weight16 = self.weight.half()
        self.wide, self.square = torch.empty((2, HIDDEN), **ones), torch.empty((2, HIDDEN), **ones)
        self.scale = torch.empty((2, 1), **ones)
        self.normed = torch.empty((2, HIDDEN), dtype=torch.float16, device=self.device)
        self.composite8_once()  # the check looks at its result even when no block asks for it
        self.graph: Any = None
        self.gemm: Callable[[], Any] | None = None
        self.unavailable: dict[str, str] = {}

    def launch(self, n: int) -> tuple[int, int]:
        """Submit ``n`` one-element adds; return the time of the submission alone and of the drain after it.

        A few untimed ones go ahead: the batch follows a sleep, and what waking up costs is the business of
        `gap_sync`.
        """
        add, x, y, calls, ahead = self.torch.add, self.x, self.y, repeat(None, n), self.sizes["ahead"]
        for _ in repeat(None, ahead):
            add(x, y, out=x)
        self.sync()
        start = clock()
        for _ in calls:
            add(x, y, out=x)
        submitted = clock()
        self.sync()
        drained = clock()
        self.counted += n + ahead
        return submitted - start, drained - submitted

    def launch_sync(self) -> int:
        """Submit one add and wait for it."""
        add, x, y, sync = self.torch.add, self.x, self.y, self.sync
        start = clock()
        add(x, y, out=x)
        sync()
        done = clock()
        self.counted += 1
        return done - start

    def gap_sync(self, gap_ns: int) -> tuple[int, int]:
        """Sleep, then submit one add and wait; return that time (without the sleep) and how much longer the
        sleep was.
        """
        add, x, y, sync = self.torch.add, self.x, self.y, self.sync
        asleep = clock()
        time.sleep(gap_ns / 1e9)
        start = clock()
        add(x, y, out=x)
        sync()
        done = clock()
        self.counted += 1
        return done - start, start - asleep - gap_ns

    def composite8_once(self) -> None:
        """RMS norm in 8 operations (fp16 in, fp32 weight) into tensors that exist already."""
        torch, wide, square, scale = self.torch, self.wide, self.square, self.scale
        wide.copy_(self.rows)
        torch.pow(wide, 2, out=square)
        torch.mean(square, -1, keepdim=True, out=scale)
        scale.add_(EPSILON)
        torch.rsqrt(scale, out=scale)
        torch.mul(wide, scale, out=square)
        torch.mul(square, self.weight, out=square)
        self.normed.copy_(square)

    def composite8(self, n: int) -> int:
        once, calls = self.composite8_once, repeat(None, n)
        start = clock()
        for _ in calls:
            once()
        submitted = clock()
        self.sync()
        return submitted - start

    def fused(self, n: int) -> int:
        """``F.rms_norm`` with a weight of the input's dtype. It has no ``out=``: its result comes from
        torch's caching allocator.
        """
        norm, rows, weight, calls = (
            self.torch.nn.functional.rms_norm,
            self.rows,
            self.weight16,
            repeat(None, n),
        )
        shape = (HIDDEN,)
        start = clock()
        for _ in calls:
            norm(rows, shape, weight, EPSILON)
        submitted = clock()
        self.sync()
        return submitted - start

    def cpu_add(self, n: int) -> int:
        """The same Python loop as `launch` on CPU tensors: what of it is Python, dispatcher and CPU clock."""
        add, x, y, calls = self.torch.add, self.cx, self.cy, repeat(None, n)
        start = clock()
        for _ in calls:
            add(x, y, out=x)
        return clock() - start

    def py_loop(self, n: int) -> int:
        """A Python loop that calls a function that does nothing."""
        call, calls = nothing, repeat(None, n)
        start = clock()
        for _ in calls:
            call()
        return clock() - start

    def capture(self, n: int) -> None:
        """Record ``n`` adds as one graph; Refused(unavailable) where this torch or device has none."""
        if self.kind == "cpu":
            raise Refused("unavailable", "no graph capture on cpu")
        torch, module = self.torch, getattr(self.torch, self.kind)
        # On other builds the names exist and raise when constructed: hasattr proves nothing.
        maker, context = (
            getattr(module, "XPUGraph" if self.kind == "xpu" else "CUDAGraph", None),
            getattr(module, "graph", None),
        )
        if maker is None or context is None:
            raise Refused("unavailable", f"torch {torch.__version__} has no graph capture for {self.kind}")
        self.gx = torch.zeros(1, dtype=torch.float32, device=self.device)
        try:
            graph = maker()
            side = module.Stream()
            side.wait_stream(module.current_stream())
            with module.stream(side):
                for _ in range(3):
                    torch.add(self.gx, self.y, out=self.gx)
            module.current_stream().wait_stream(side)
            with context(graph):
                for _ in range(n):
                    torch.add(self.gx, self.y, out=self.gx)
            self.gx.zero_()
            graph.replay()
            self.sync()
        except (RuntimeError, NotImplementedError) as error:
            raise_if_lost(error)
            raise Refused("unavailable", short(error)) from error
        if self.gx.item() != float(n):
            raise Refused("unavailable", f"one replay of {n} adds gave {self.gx.item()}")
        self.graph = graph

    def eager(self, n: int) -> int:
        """``n`` adds and one synchronise, eager: what `replay` is compared with."""
        add, x, y, calls = self.torch.add, self.x, self.y, repeat(None, n)
        start = clock()
        for _ in calls:
            add(x, y, out=x)
        self.sync()
        done = clock()
        self.counted += n
        return done - start

    def replay(self) -> int:
        graph, sync = self.graph, self.sync
        start = clock()
        graph.replay()
        sync()
        return clock() - start

    def prepare_gemm(self) -> str:
        """Choose the fp8 GEMM [2,5120] x [5120,7168]; return its metric's name. Refused(unavailable) with the
        text of every refusal.
        """
        torch, columns, refusals = self.torch, 7168, []
        if self.kind == "cpu":
            raise Refused("unavailable", "no fp8 GEMM is timed on cpu")
        try:
            weight = torch.ones((columns, HIDDEN), device=self.device).to(torch.float8_e4m3fn)
            a = torch.ones((2, HIDDEN), dtype=torch.float16, device=self.device)
        except (RuntimeError, AttributeError, TypeError) as error:
            raise_if_lost(error)
            raise Refused("unavailable", short(error)) from error
        try:
            importlib.import_module("vllm_xpu_kernels._xpu_C")
            # [56,40] block scales; the lab passed the transposed view and got "B_scale must be contiguous for
            # fp8 matmul"
            scales = torch.ones((56, 40), dtype=torch.float32, device=self.device).t().contiguous()
            operation = torch.ops._xpu_C.fp8_gemm_w8a16
            self.gemm = lambda: operation(a, weight.t(), scales, None)
            self.check_gemm(columns)
            return "w8a16_us"
        except (ImportError, AttributeError, RuntimeError, TypeError) as error:
            raise_if_lost(error)
            refusals.append(f"w8a16: {short(error)}")
        try:
            one = torch.ones((), dtype=torch.float32, device=self.device)
            a8, scaled = a.to(torch.float8_e4m3fn), torch._scaled_mm
            self.gemm = lambda: scaled(a8, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
            self.check_gemm(columns)
            self.unavailable["w8a16_us"] = refusals[0]
            return "scaled_mm_w8a8_us"
        except (AttributeError, RuntimeError, TypeError) as error:
            raise_if_lost(error)
            refusals.append(f"_scaled_mm: {short(error)}")
        self.gemm = None
        raise Refused("unavailable", "; ".join(refusals))

    def check_gemm(self, columns: int) -> None:
        """Ones times ones: every element is 5120, exact in fp16 and bf16."""
        result = self.gemm() if self.gemm else None
        self.sync()
        if result is None or tuple(result.shape) != (2, columns) or not bool((result.float() == HIDDEN).all()):
            raise RuntimeError("fp8 GEMM of ones did not give 5120 everywhere")

    def gemms(self, n: int) -> int:
        gemm, calls = self.gemm, repeat(None, n)
        assert gemm is not None
        start = clock()
        for _ in calls:
            gemm()
        self.sync()
        return clock() - start

    def reset_count(self) -> None:
        """Set the accumulator of the adds to zero (outside all timed code)."""
        self.x.zero_()
        self.sync()
        self.counted = 0

    def check(self) -> list[str]:
        """Return what is wrong with the results so far; empty when every value is exact. Raises
        Refused(nan).
        """
        seen, wrong = float(self.x.item()), []
        if math.isnan(seen):
            raise Refused("nan", f"{self.counted} adds of one gave NaN")
        if seen != float(self.counted):
            wrong.append(f"{self.counted} adds of one gave {seen}")
        normed = self.normed.float()
        if bool(normed.isnan().any()):
            raise Refused("nan", "the RMS norm of ones gave NaN")
        if bool((normed != 0.5).any()):
            wrong.append(f"RMS norm of a constant gave {float(normed.min())} to {float(normed.max())}, not 0.5")
        return wrong


def short(error: BaseException) -> str:
    """Return the first line of an exception, at most 300 characters, with its type."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def raise_if_lost(error: BaseException) -> None:
    """Raise Refused(device_lost | out_of_resources) when that is what an exception says.

    ``UR_RESULT_ERROR_DEVICE_LOST`` comes as a plain RuntimeError, usually at the next synchronise, and all
    later calls fail too (pytorch 190972, torch-xpu-ops 2757). Older releases say "Native API returns: 20".
    CUDA says "unspecified launch failure" and the like.
    """
    text = str(error)
    if "DEVICE_LOST" in text or "Native API returns: 20 " in text or "Native API returns: -999" in text:
        raise Refused("device_lost", short(error)) from error
    if type(error).__name__ == "AcceleratorError" and "out of memory" not in text:
        raise Refused("device_lost", short(error)) from error
    if "OUT_OF_RESOURCES" in text or "OUT_OF_DEVICE_MEMORY" in text or type(error).__name__ == "OutOfMemoryError":
        raise Refused("out_of_resources", short(error)) from error


# ------------------------------------------------------------------------------------------------------------
# blocks

# Counts per sample, and the gap lengths. A round takes one sample of most series, so every series samples the
# whole block.
SIZES = {
    "launches": 400,
    "ahead": 20,
    "syncs": 5,
    "gaps": 1,
    "norms": 20,
    "cpu_adds": 400,
    "py_loops": 1000,
    "graph": 256,
    "gemms": 10,
    "gap_short_ns": 300_000,
    "gap_long_ns": 3_000_000,
}
METRICS = (
    "launch_us",
    "launch_sync_us",
    "gap_sync_0.3ms_us",
    "gap_sync_3ms_us",
    "rms_composite8_us",
    "rms_fused_us",
    "graph_us",
    "gemm_us",
    "cpu_add_us",
    "py_loop_ns",
)


class Series:
    """Samples of one block by metric, all in ns; ``per_sample`` operations each."""

    def __init__(self) -> None:
        self.samples: dict[str, list[int]] = {}
        self.per_sample: dict[str, int] = {}
        self.how: dict[str, str] = {}

    def add(self, metric: str, nanoseconds: int, per_sample: int, how: str) -> None:
        self.samples.setdefault(metric, []).append(nanoseconds)
        self.per_sample[metric], self.how[metric] = per_sample, how

    def to_json(self) -> dict[str, Any]:
        return {
            name: {
                "unit": "ns",
                "samples": values,
                "per_sample": self.per_sample[name],
                "sum": sum(values),
                "exercised": {"n": len(values) * self.per_sample[name], "how": self.how[name]},
            }
            for name, values in self.samples.items()
        }


def one_round(bench: Bench, series: Series, number: int, wanted: Sequence[str], gemm_name: str) -> None:
    """Take one sample of most metrics and, every fourth round, of the costly ones."""
    sizes = bench.sizes
    if "launch_us" in wanted:
        submit, drain = bench.launch(sizes["launches"])
        series.add("launch_us", submit, sizes["launches"], "add(x, y, out=x) submitted, synchronise outside")
        series.add("launch_drain", drain, 1, "synchronise after a batch of launches")
    if "launch_sync_us" in wanted:
        for _ in range(sizes["syncs"]):
            series.add("launch_sync_us", bench.launch_sync(), 1, "add and synchronise")
    for metric, key in (("gap_sync_0.3ms_us", "gap_short_ns"), ("gap_sync_3ms_us", "gap_long_ns")):
        if metric in wanted:
            for _ in range(sizes["gaps"]):
                waited, overshoot = bench.gap_sync(sizes[key])
                series.add(metric, waited, 1, f"sleep {sizes[key] / 1e6:g} ms (untimed), add and synchronise")
                series.add(
                    metric.replace("gap_sync", "sleep_overshoot"),
                    overshoot,
                    1,
                    "time.sleep, longer than asked",
                )
    if "rms_composite8_us" in wanted:
        series.add(
            "rms_composite8_us",
            bench.composite8(sizes["norms"]),
            sizes["norms"],
            "8 operations, fp16 in, fp32 weight",
        )
    if "rms_fused_us" in wanted:
        series.add(
            "rms_fused_us",
            bench.fused(sizes["norms"]),
            sizes["norms"],
            "F.rms_norm, fp16 weight; launches counted apart",
        )
    if number % 4 == 0:
        if "cpu_add_us" in wanted:
            series.add(
                "cpu_add_us",
                bench.cpu_add(sizes["cpu_adds"]),
                sizes["cpu_adds"],
                "the launch loop on CPU tensors",
            )
        if "py_loop_ns" in wanted:
            series.add(
                "py_loop_ns",
                bench.py_loop(sizes["py_loops"]),
                sizes["py_loops"],
                "calls of a function that does nothing",
            )
        if "graph_us" in wanted and bench.graph is not None:
            how = f"{sizes['graph']} adds and one synchronise"
            series.add("graph_eager_us", bench.eager(sizes["graph"]), 1, f"{how}, eager")
            series.add("graph_replay_us", bench.replay(), 1, f"{how}, one graph replay, value checked")
        if "gemm_us" in wanted and bench.gemm is not None:
            series.add(
                gemm_name,
                bench.gemms(sizes["gemms"]),
                sizes["gemms"],
                "[2,5120] x [5120,7168], synchronise at the end",
            )


def block(bench: Bench, seconds: float, warm_s: float, wanted: Sequence[str], gemm_name: str) -> dict[str, Any]:
    """Measure one block of ``seconds`` after ``warm_s`` of untimed rounds; Refused(wrong_result | nan) when a
    value is wrong.
    """
    rounds_until(bench, warm_s, wanted, gemm_name)
    bench.reset_count()
    if bench.graph is not None:
        bench.gx.zero_()
    gc.collect()
    gc.freeze()
    gc.disable()
    before = resource.getrusage(resource.RUSAGE_SELF)
    begun = clock()
    try:
        series, count = rounds_until(bench, seconds, wanted, gemm_name)
    finally:
        gc.enable()
        gc.unfreeze()
    ended = clock()
    after = resource.getrusage(resource.RUSAGE_SELF)
    wrong = bench.check()
    if bench.graph is not None:
        replays = len(series.samples.get("graph_replay_us", ()))
        if float(bench.gx.item()) != float(replays * bench.sizes["graph"]):
            wrong.append(f"{replays} graph replays of {bench.sizes['graph']} adds gave {float(bench.gx.item())}")
    if wrong:
        raise Refused("wrong_result", "; ".join(wrong))
    return {
        "metrics": series.to_json(),
        "rounds": count,
        "begun_ns": begun,
        "ended_ns": ended,
        "switches": {
            "voluntary": after.ru_nvcsw - before.ru_nvcsw,
            "involuntary": after.ru_nivcsw - before.ru_nivcsw,
        },
        "load": os.getloadavg()[0],
        "affinity": sorted(os.sched_getaffinity(0)),
        "checked": bench.counted,
    }


def rounds_until(bench: Bench, seconds: float, wanted: Sequence[str], gemm_name: str) -> tuple[Series, int]:
    """Run rounds for ``seconds`` (at least one when it is not zero); return their samples and count."""
    series, number = Series(), 0
    end = clock() + int(seconds * 1e9)
    while clock() < end:
        one_round(bench, series, number, wanted, gemm_name)
        number += 1
        if bench.counted > EXACT_ONES:
            wrong = bench.check()
            if wrong:
                raise Refused("wrong_result", "; ".join(wrong))
            bench.reset_count()
    return series, number


def lab(bench: Bench) -> dict[str, Any]:
    """Return the lab's own figures, its way: 100 calls, synchronise, n calls of a lambda, a synchronise
    inside the timed part.

    Its key names, totals in ns. ``ir_rms_norm_m2_us`` there goes through vllm.ir, which takes the native
    8-operation path because the weight is fp32 and the input fp16; the same path is written out here.
    """
    torch, sync = bench.torch, bench.sync
    x, y, rows, weight = bench.x, bench.y, bench.rows, bench.weight

    def timed(call: Callable[[], Any], n: int, each: bool, how: str) -> dict[str, Any]:
        for _ in range(100):
            call()
        sync()
        start = clock()
        for _ in range(n):
            call()
            if each:
                sync()
        sync()
        return {"total_ns": clock() - start, "n": n, "how": how}

    add = "lambda: torch.add(x, y, out=x)"
    result: dict[str, Any] = {
        "launch_us_async": timed(lambda: torch.add(x, y, out=x), 2000, False, f"{add}, one synchronise inside"),
        "launch_plus_sync_us": timed(lambda: torch.add(x, y, out=x), 500, True, f"{add}, synchronise each"),
    }
    gemm = bench.gemm
    if gemm is None or "w8a16_us" in bench.unavailable:
        result["w8a16_m2_qkv_us"] = {"error": bench.unavailable.get("w8a16_us", "unavailable")}
    else:
        result["w8a16_m2_qkv_us"] = timed(gemm, 500, False, "vllm_xpu_kernels fp8_gemm_w8a16, contiguous scales")
    result["ir_rms_norm_m2_us"] = timed(
        lambda: rms_native(rows, weight), 500, False, "native path of vllm.ir, 8 operations"
    )
    bench.reset_count()
    return result


def count_launches(bench: Bench, call: Callable[[], Any]) -> dict[str, Any]:
    """Return how many device kernels one call of ``call`` launches, from the profiler; on the CPU, operators
    that do work.

    ``{"launches": n | None, "how": text}``; None when the profiler cannot tell.
    """
    profiler = bench.torch.profiler
    try:
        activities = [profiler.ProfilerActivity.CPU]
        if bench.kind != "cpu":
            activities.append(getattr(profiler.ProfilerActivity, bench.kind.upper()))
        call()
        bench.sync()
        with profiler.profile(activities=activities) as seen:
            call()
            bench.sync()
        if bench.kind == "cpu":
            tops = [e for e in seen.events() if e.cpu_parent is None and e.name.startswith("aten::")]
            return {
                "launches": None,
                "operators": len(tops),
                "how": "no launches on cpu; top-level operators counted",
            }
        kernels = [
            e
            for e in seen.events()
            if e.device_type.name in ("CUDA", "XPU", "PrivateUse1")
            and not e.name.lower().startswith(("memcpy", "memset", "gpu_", "zecommandlistappendmemory"))
        ]
        if not kernels:
            return {"launches": None, "how": "the profiler saw no device kernel"}
        return {"launches": len(kernels), "how": "device kernels in torch.profiler"}
    except (RuntimeError, AttributeError, ValueError) as error:
        raise_if_lost(error)
        return {"launches": None, "how": f"unknown: {short(error)}"}


def inspect(bench: Bench) -> dict[str, Any]:
    """Return launch counts per call: proves which path the norm figures took."""
    functional = bench.torch.nn.functional
    return {
        "launch_us": count_launches(bench, lambda: bench.torch.add(bench.x, bench.y, out=bench.x)),
        "rms_composite8_us": count_launches(bench, bench.composite8_once),
        "rms_fused_us": count_launches(
            bench, lambda: functional.rms_norm(bench.rows, (HIDDEN,), bench.weight16, EPSILON)
        ),
        "ir_rms_norm_m2_us": count_launches(bench, lambda: rms_native(bench.rows, bench.weight)),
    }


# -------------------------------------------------------------------------------------------------------
# collectives


def interface_names() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def absent_interfaces(variables: dict[str, str], present: Sequence[str]) -> list[str]:
    """Return the named interfaces that do not exist, by each variable's own rule.

    FI_TCP_IFACE and GLOO_SOCKET_IFNAME take names, CCL_KVS_IFACE part of a name, NCCL_SOCKET_IFNAME prefixes
    (``=`` exact, ``^`` excludes).
    """
    absent = []
    for variable, value in variables.items():
        if variable in ("FI_TCP_IFACE", "GLOO_SOCKET_IFNAME"):
            absent += [name for name in value.split(",") if name and name not in present]
        elif variable == "CCL_KVS_IFACE":
            absent += [name for name in value.split(",") if name and not any(name in one for one in present)]
        elif variable == "NCCL_SOCKET_IFNAME" and not value.startswith("^"):
            exact, names = value.startswith("="), value.lstrip("=").split(",")
            absent += [n for n in names if n and not any(one == n if exact else one.startswith(n) for one in present)]
    return absent


class Collective:
    """One rank of an all-reduce session."""

    def __init__(self, torch: Any, kind: str) -> None:
        self.torch, self.kind = torch, kind
        self.store: Any = None
        self.rank, self.world = 0, 1
        self.backend = {"xpu": "xccl", "cuda": "nccl", "cpu": "gloo"}[kind]

    def open_store(self, host: str, world: int, timeout_s: float) -> int:
        """Serve the rendezvous store (rank 0) and return its port: chosen by the kernel, so there is no race
        for it.
        """
        self.check_interfaces()
        distributed = self.torch.distributed
        self.store = distributed.TCPStore(host, 0, world, True, timeout=_delta(timeout_s), wait_for_workers=False)
        return int(self.store.port)

    def check_interfaces(self) -> None:
        absent = absent_interfaces(environment(), interface_names())
        if absent:
            raise Refused("config_error", "; ".join(f"interface {name} absent" for name in absent))

    def join(self, rank: int, world: int, host: str, port: int, timeout_s: float) -> None:
        """Enter the process group; Refused(config_error | unavailable) when this host or torch cannot."""
        self.check_interfaces()
        distributed = self.torch.distributed
        if not distributed.is_available():
            raise Refused("unavailable", f"torch {self.torch.__version__} has no torch.distributed")
        available = getattr(distributed, f"is_{self.backend}_available", lambda: False)()
        if not available:
            raise Refused(
                "unavailable",
                f"torch {self.torch.__version__} has no {self.backend} (xccl is in XPU wheels since 2.8)",
            )
        os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"] = (
            str(rank),
            str(world),
            str(rank),
        )
        if self.store is None:
            self.store = distributed.TCPStore(
                host, port, world, False, timeout=_delta(timeout_s), wait_for_workers=False
            )
        self.rank, self.world = rank, world
        try:
            distributed.init_process_group(
                self.backend, store=self.store, rank=rank, world_size=world, timeout=_delta(timeout_s)
            )
        except (RuntimeError, ValueError) as error:
            raise_if_lost(error)
            if "can't find interface" in str(error) or "No such device" in str(error):
                raise Refused("config_error", short(error)) from error
            raise

    def measure(self, bench: Bench, dtype: str, rows: int, hidden: int, batches: int, per_batch: int) -> dict[str, Any]:
        """Time ``batches`` x ``per_batch`` all-reduces of [rows, hidden] both ways, a barrier only between
        batches.

        Each operation of a batch has its own tensor, filled before the clock starts, so every result is
        checked: with rank + 1 in each element the sum is world (world + 1) / 2, exact in bf16 up to 22 ranks.
        """
        torch, distributed, sync = self.torch, self.torch.distributed, bench.sync
        shape, element = (rows, hidden), getattr(torch, dtype)
        tensors = [torch.empty(shape, dtype=element, device=bench.device) for _ in range(per_batch)]
        wanted = self.world * (self.world + 1) / 2
        each: list[int] = []
        end: list[int] = []

        def fill() -> None:
            for tensor in tensors:
                tensor.fill_(float(self.rank + 1))
            sync()
            distributed.barrier()
            sync()

        def check() -> None:
            for number, tensor in enumerate(tensors):
                if bool((tensor.float() != wanted).any()):
                    low, high = float(tensor.float().min()), float(tensor.float().max())
                    kind = "nan" if math.isnan(low) else "wrong_result"
                    raise Refused(
                        kind, f"all-reduce {number} on rank {self.rank} gave {low} to {high}, wanted {wanted}"
                    )

        for number in range(-2, batches):  # two batches of each kind warm up, and are not kept
            fill()
            gc.disable()
            start = clock()
            for tensor in tensors:
                distributed.all_reduce(tensor)
            sync()
            taken = clock() - start
            gc.enable()
            check()
            fill()
            samples: list[int] = []
            gc.disable()
            for tensor in tensors:
                start = clock()
                distributed.all_reduce(tensor)
                sync()
                samples.append(clock() - start)
            gc.enable()
            check()
            if number >= 0:
                end.append(taken)
                each += samples
        how = f"{self.backend} all_reduce of {dtype} [{rows},{hidden}], every result checked"
        return {
            "sync_end": {
                "unit": "ns",
                "samples": end,
                "per_sample": per_batch,
                "sum": sum(end),
                "exercised": {"n": len(end) * per_batch, "how": f"{how}, one synchronise per batch"},
            },
            "sync_each": {
                "unit": "ns",
                "samples": each,
                "per_sample": 1,
                "sum": sum(each),
                "exercised": {"n": len(each), "how": f"{how}, one synchronise per operation"},
            },
        }


def _delta(seconds: float) -> Any:
    return datetime.timedelta(seconds=seconds)


# ------------------------------------------------------------------------------------------------------- main


class Worker:
    """Answers requests; each method is one ``op`` and returns the fields of its reply."""

    def __init__(self) -> None:
        self.torch: Any = None
        self.bench: Bench | None = None
        self.collective: Collective | None = None
        self.gemm_name = "gemm_us"
        self.loaded_ns = 0

    def devices(self, request: dict[str, Any]) -> dict[str, Any]:
        """Every device of a type, without opening a context on purpose."""
        self.torch = self.torch or load_torch()
        kind = device_type(self.torch, request.get("device", "auto"))
        return {"device": kind, "devices": device_rows(self.torch, kind)}

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Import torch and open nothing, so that what follows can have a limit that is the device's alone."""
        live_until(float(request["life_s"]))
        self.torch = self.torch or load_torch()
        return {"torch": str(self.torch.__version__)}

    def smoke(self, request: dict[str, Any]) -> dict[str, Any]:
        """Add one to 1024 x 1024 ones on one device and sum: 2097152.0, exact in float32 (lab-host-facts 3.4)."""
        self.torch = torch = self.torch or load_torch()
        kind = device_type(torch, request.get("device", "auto"))
        index = 0 if kind == "cpu" else int(request.get("index", 0))
        who = identity(torch, kind, index)
        device = torch.device(kind, index) if kind != "cpu" else torch.device("cpu")
        total = float((torch.ones((1024, 1024), dtype=torch.float32, device=device) + 1).sum().item())
        if not math.isfinite(total):
            raise Refused("nan", f"the sum of 1024 x 1024 twos is {total}")
        return {"identity": who, "sum": total}

    def start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Load torch, take the device, make the tensors, capture the graph, warm up by time."""
        begun = clock()
        live_until(float(request["life_s"]))
        self.torch = self.torch or load_torch()
        self.loaded_ns = clock()
        self.torch.set_num_threads(1)
        kind = device_type(self.torch, request.get("device", "auto"))
        pinned = pin(request.get("pin"))
        index = 0 if kind == "cpu" else int(request.get("index", 0))
        who = identity(self.torch, kind, index)
        self.bench = bench = Bench(self.torch, kind, index, {**SIZES, **request.get("sizes", {})})
        if request.get("collective"):
            self.collective = Collective(self.torch, kind)
        else:
            self.prepare(bench, request)
        ready = clock()
        return {
            "identity": who,
            "environment": environment(),
            "unavailable": bench.unavailable,
            "pinned": pinned,
            "threads": self.torch.get_num_threads(),
            "sizes": bench.sizes,
            "import_ns": self.loaded_ns - begun,
            "ready_ns": ready - self.loaded_ns,
        }

    def prepare(self, bench: Bench, request: dict[str, Any]) -> None:
        for metric, make in (
            ("graph_us", lambda: bench.capture(bench.sizes["graph"])),
            ("w8a16_us", bench.prepare_gemm),
        ):
            if metric.replace("w8a16", "gemm") not in request.get("metrics", METRICS):
                bench.unavailable[metric] = "not asked"
                continue
            try:
                self.gemm_name = make() or self.gemm_name
            except Refused as refusal:
                if refusal.kind != "unavailable":
                    raise
                bench.unavailable[metric] = str(refusal)
        bench.reset_count()
        rounds_until(bench, float(request.get("warm_s", 2.0)), request.get("metrics", METRICS), self.gemm_name)

    def block(self, request: dict[str, Any]) -> dict[str, Any]:
        wanted = [m for m in request.get("metrics", METRICS) if m in METRICS]
        result = block(
            self.need(), float(request["seconds"]), float(request.get("warm_s", 0.05)), wanted, self.gemm_name
        )
        return {**result, "since_import_ns": result["begun_ns"] - self.loaded_ns}

    def lab(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"figures": lab(self.need())}

    def inspect(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"launches": inspect(self.need())}

    def pin(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"pinned": pin(request.get("cpus"))}

    def store(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"port": self.group().open_store(request["host"], int(request["world"]), float(request["timeout_s"]))}

    def join(self, request: dict[str, Any]) -> dict[str, Any]:
        group = self.group()
        group.join(
            int(request["rank"]),
            int(request["world"]),
            request["host"],
            int(request["port"]),
            float(request["timeout_s"]),
        )
        return {"rank": group.rank, "world": group.world, "backend": group.backend}

    def allreduce(self, request: dict[str, Any]) -> dict[str, Any]:
        sizes = [int(request[key]) for key in ("rows", "hidden", "batches", "per_batch")]
        rows, hidden, batches, per_batch = sizes
        return {"series": self.group().measure(self.need(), request["dtype"], rows, hidden, batches, per_batch)}

    def leave(self, request: dict[str, Any]) -> dict[str, Any]:
        self.torch.distributed.destroy_process_group()
        return {}

    def need(self) -> Bench:
        if self.bench is None:
            raise Refused("protocol", "start comes first")
        return self.bench

    def group(self) -> Collective:
        if self.collective is None:
            raise Refused("protocol", "start with collective comes first")
        return self.collective


def pin(cpus: Sequence[int] | None) -> dict[str, Any]:
    """Keep this process on ``cpus`` (None: leave it); return where it runs now and why pinning failed."""
    error = ""
    if cpus:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as refusal:
            error = short(refusal)
    return {
        "asked": list(cpus) if cpus else None,
        "affinity": sorted(os.sched_getaffinity(0)),
        "error": error,
    }


OPERATIONS = (
    "load",
    "devices",
    "smoke",
    "start",
    "block",
    "lab",
    "inspect",
    "pin",
    "store",
    "join",
    "allreduce",
    "leave",
)
# After these the process is of no more use: every later call on the device fails as well.
FATAL = ("device_lost", "out_of_resources")


def main() -> None:
    live_until(FIRST_REQUEST_S)
    wire = Wire()
    worker = Worker()
    wire.answer("hello", protocol=PROTOCOL, pid=os.getpid(), python=platform.python_version())
    for request in wire.requests():
        op = request.get("op")
        if op == "stop":
            wire.answer("stop")
            break
        try:
            if op not in OPERATIONS:
                raise Refused("protocol", f"unknown op {op!r}")
            wire.answer(op, **getattr(worker, op)(request))
        except Refused as refusal:
            wire.answer("error", kind=refusal.kind, text=str(refusal))
            if refusal.kind in FATAL:
                break
        except Exception as error:  # the process must answer whatever torch raises; the kind is read from the text
            try:
                raise_if_lost(error)
                kind, text = "exception", short(error)
            except Refused as refusal:
                kind, text = refusal.kind, str(refusal)
            wire.answer("error", kind=kind, text=text)
            if kind in FATAL:
                break
    # Interpreter shutdown of a device runtime can hang; there is nothing left to save.
    os._exit(0)


if __name__ == "__main__":
    main()
