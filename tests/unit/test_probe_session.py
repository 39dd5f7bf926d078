"""The session against workers that die, hang, print garbage, flood stderr, return NaN or lose the device."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hostcheck import receipts
from hostcheck.onhost.probe import receipt as raw
from hostcheck.onhost.probe import session, worker
from hostcheck.onhost.probe.session import Claim, Toggle, Worker, WorkerFailed
from tests import fake_worker as fake

ROOT = Path(__file__).parents[2]


def test_the_worker_is_read_and_never_imported() -> None:
    code = (
        "import sys; from hostcheck.onhost.probe import session as s; s.worker_source(); "
        "print([m for m in sys.modules if m.endswith('probe.worker') or m == 'torch'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
    assert session.worker_source() == Path(worker.__file__).read_text(encoding="utf-8")
    assert session.METRICS == worker.METRICS
    assert session.PROTOCOL == worker.PROTOCOL


def test_the_worker_is_read_from_an_archive_as_ansible_makes_one(tmp_path: Path) -> None:
    archive = tmp_path / "payload.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in (
            *(ROOT / "hostcheck").glob("__init__.py"),
            *(ROOT / "hostcheck/onhost").glob("__init__.py"),
            *(ROOT / "hostcheck/onhost/probe").glob("*.py"),
        ):
            packed.write(path, path.relative_to(ROOT))
    code = (
        f"import sys; sys.path.insert(0, {str(archive)!r}); from hostcheck.onhost.probe import session as s; "
        "print(len(s.worker_source()))"
    )
    done = subprocess.run([*fake.PYTHON, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert int(done.stdout) == len(session.worker_source())


def gone(pid: int) -> bool:
    """Say whether a process is gone or only waits to be reaped by init, giving it a while."""
    for _ in range(400):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


FAILURES = {
    "died with a status": ("os._exit(7)", "died", "exit status 7"),
    "died with words": ("sys.exit('no level_zero here')", "died", "no level_zero here"),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "died", "SIGKILL"),
    "segfault": ("os.kill(os.getpid(), signal.SIGSEGV)", "died", "SIGSEGV"),
    "hung": ("time.sleep(600)", "hung", "no answer within"),
    "hung and deaf": ("signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)", "hung", "no answer within"),
    "half a line": ("sys.stdout.write('{\"reply\":'); sys.stdout.flush(); time.sleep(600)", "hung", "no answer within"),
    "not JSON": ("print('Segmentation fault', flush=True)", "garbage", "Segmentation fault"),
    "bytes": ("sys.stdout.buffer.write(bytes(range(255)) + b'\\n'); sys.stdout.flush()", "garbage", "not JSON"),
    "a list": ("print([1, 2], flush=True)", "garbage", "not an object"),
    "another reply": ("say(reply='stop')", "garbage", "expected a reply to block"),
    "an endless line": (
        "sys.stdout.write('x' * 300000); sys.stdout.flush(); time.sleep(600)",
        "garbage",
        "a line of more than",
    ),
    "flooded stderr": ("\nwhile True: sys.stderr.write('e' * 1000)", "flooded_stderr", "bytes on stderr"),
    "NaN": ("say(reply='block', metrics={'launch_us': float('nan')})", "nan", "NaN"),
    "infinity": ("say(reply='block', load=float('inf'))", "nan", "Infinity"),
    "device lost": (
        "say(reply='error', kind='device_lost', text='UR_RESULT_ERROR_DEVICE_LOST'); os._exit(0)",
        "device_lost",
        "DEVICE_LOST",
    ),
    "wrong result": (
        "say(reply='error', kind='wrong_result', text='100 adds of one gave 99.0')",
        "wrong_result",
        "99.0",
    ),
}


@pytest.mark.parametrize(("code", "kind", "text"), FAILURES.values(), ids=FAILURES)
def test_every_failure_is_a_named_result_and_ends_the_whole_group(
    code: str, kind: str, text: str, tmp_path: Path
) -> None:
    child = f"p = subprocess.Popen(['sleep', '600']); open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid)); "
    with Worker(fake.PYTHON, source=fake.source("block", 0, child + code), limits=fake.HURRIED) as one:
        assert one._process is not None
        leader = one._process.pid
        with pytest.raises(WorkerFailed) as failed:
            one.ask("block", seconds=0.1)
    assert failed.value.kind == kind
    assert text in failed.value.text + failed.value.stderr
    assert gone(leader)
    assert gone(int((tmp_path / "pid").read_text()))


def test_commands_that_are_no_python() -> None:
    cases: list[tuple[list[str], str, str]] = [
        (["/no/such/python"], "start_failed", "No such file"),
        (["/etc/passwd"], "start_failed", "Permission denied"),
        (["true"], "died", "exit status 0"),
        (["sh", "-c", "echo Error: no such container: vllm >&2; exit 125"], "died", "no such container"),
        (["sh", "-c", "yes hello"], "garbage", "no worker in"),
        (["sh", "-c", "sleep 600"], "hung", "no answer within"),
    ]
    for command, kind, text in cases:
        limits = session.Limits(start_s=0.5 if kind == "hung" else 60.0, reply_s=0.2, close_s=0.2, preamble=5_000)
        with pytest.raises(WorkerFailed) as failed, Worker(command, source="pass", limits=limits):
            pass
        assert (failed.value.kind, text in failed.value.text) == (kind, True), failed.value


def test_what_an_image_prints_first_is_kept_and_skipped() -> None:
    command = [
        "sh",
        "-c",
        'echo ":: initializing oneAPI environment ..."; echo "{not json"; exec "$0" "$@"',
        *fake.PYTHON,
    ]
    with Worker(command, source=fake.source(), limits=fake.PATIENT) as one:
        assert one.ask("inspect")["launches"]["launch_us"]["launches"] == 1
        assert one.preamble.splitlines() == [":: initializing oneAPI environment ...", "{not json"]


def namespaces() -> list[str]:
    """Return a command in namespaces of its own, as in a container: there the worker is PID 1."""
    return ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "chroot", "/"]


def may_unshare() -> bool:
    return subprocess.run([*namespaces(), "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not may_unshare(), reason="unshare and chroot need root here")
@pytest.mark.parametrize("how", ["stdin closes", "deadline"])
def test_as_pid_1_of_a_container_the_worker_still_ends(how: str) -> None:
    """PID 1 ignores signals that it does not handle, and killing the engine's client does not reach it at all."""
    with Worker([*namespaces(), *fake.PYTHON], limits=fake.PATIENT) as one:
        assert one._process is not None
        children = Path(f"/proc/{one._process.pid}/task/{one._process.pid}/children").read_text().split()
        inside = int(children[0])
        if how == "deadline":
            with pytest.raises(WorkerFailed):
                one.ask("start", life_s=0.2, device="cpu")  # torch is missing there: an answer, then nothing
            assert gone(inside)
    assert gone(inside)


def test_a_source_larger_than_a_pipe_reaches_a_slow_reader() -> None:
    command = ["sh", "-c", 'sleep 0.3; exec "$0" "$@"', *fake.PYTHON]
    with Worker(command, source=fake.source() + "\n#" + "x" * 500_000, limits=fake.PATIENT) as one:
        assert one.ask("lab")["figures"]


def test_stderr_below_the_limit_is_drained() -> None:
    code = "sys.stderr.write('w' * 90_000); sys.stderr.flush()"
    with Worker(fake.PYTHON, source=fake.source("block", 0, code), limits=fake.HURRIED) as one:
        assert one.ask("block", 30.0)["rounds"] == 30
        assert one.stderr_tail() == "w" * 2000


def test_during_is_called_once_while_the_block_runs() -> None:
    calls: list[float] = []
    with Worker(fake.PYTHON, source=fake.source("block", 0, "time.sleep(0.4)"), limits=fake.PATIENT) as one:
        one.ask("block", 0.2, lambda: calls.append(1.0))
        one.ask("lab", 0.2, lambda: calls.append(2.0))
    assert calls == [1.0, 2.0]


STARTED = """
import sys
from hostcheck.onhost.probe import session
{extra}
with session.ended_by_signals(), session.Worker([sys.executable, "-S", "-I"], source=SOURCE) as one:
    print(one._process.pid, flush=True)
    one.ask("block", 600.0)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
@pytest.mark.parametrize("real", [True, False], ids=["real worker", "made-up worker"])
def test_the_worker_ends_when_the_session_does(number: signal.Signals, real: bool) -> None:
    """SIGKILL leaves the session no way to act: the worker sees the end of its stdin (one asleep cannot)."""
    if number == signal.SIGKILL and not real:
        pytest.skip("only the worker itself can notice that")
    source = session.worker_source() if real else fake.source("block", 0, "time.sleep(600)")
    if real:  # wait for requests for ever, as between two blocks of a trial
        source = source.replace(
            "OPERATIONS = (", 'Worker.nap = lambda self, request: time.sleep(600)\nOPERATIONS = ("nap", '
        )
    code = STARTED.format(extra=f"SOURCE = {source!r}").replace('"block"', '"nap"' if real else '"block"')
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    os.kill(parent.pid, number)
    parent.wait()
    parent.stdout.close()
    assert gone(pid)


def test_the_worker_has_its_own_deadline() -> None:
    """It ends by itself, so that killing ``docker exec`` leaves nothing behind for long."""
    with Worker(fake.PYTHON, limits=fake.PATIENT) as one:
        with pytest.raises(WorkerFailed):
            one.ask("start", life_s=0.3, device="cpu")  # torch is missing there: an answer, then nothing
        with pytest.raises(WorkerFailed) as failed:
            one.receive("nothing", 30.0)
    assert failed.value.kind == "died"
    assert "Timeout" in failed.value.stderr


def test_torch_missing_is_named() -> None:
    with pytest.raises(WorkerFailed) as failed, Worker(fake.PYTHON, limits=fake.PATIENT) as one:
        one.ask("start", life_s=60.0, device="cpu")
    assert failed.value.kind == "torch_missing"


def test_torch_too_old_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '2.5.1+cxx11.abi'\n")
    with (
        pytest.raises(WorkerFailed) as failed,
        Worker([sys.executable], limits=fake.PATIENT, env={"PYTHONPATH": str(tmp_path)}) as one,
    ):
        one.ask("start", life_s=60.0, device="cpu")
    assert (failed.value.kind, failed.value.text) == ("torch_too_old", "torch 2.5.1+cxx11.abi, needs 2.6 or newer")


def test_unknown_requests_are_answered() -> None:
    with Worker(fake.PYTHON, limits=fake.PATIENT) as one:
        for op in ("block", "join", "need", "__init__"):
            with pytest.raises(WorkerFailed) as failed:
                one.ask(op, seconds=1)
            assert failed.value.kind == "protocol"


# ---------------------------------------------------------------------------------------------------- receipts made


def test_a_profile_without_a_card() -> None:
    said: list[str] = []
    kept: list[Any] = []
    receipt = session.profile(fake.job(), lambda: fake.CALM, said.append, lambda *one: kept.append(one))
    assert receipt["validity"] == {"valid": True, "reasons": [], "unchecked": []}
    assert receipts.verify(receipts.parse(json.dumps(receipt))) == []
    assert [one for kind, one in kept if kind == "block"] == receipt["blocks"]
    assert [kind for kind, _ in kept if kind != "block"] == ["head", "begun", "worker", "worker"]
    assert len(receipt["blocks"]) == 16
    assert receipt["workers"][0]["address"] == "0000:23:00.0"
    assert said[0].startswith("sham: pairs 1 to 8, about")
    assert receipt["figures"]["lab"]["launch_us_async"] == pytest.approx(3.1)
    assert receipt["figures"]["lab"]["w8a16_m2_qkv_us"] == "err B_scale must be contiguous for fp8 matmul"


@pytest.mark.parametrize(("code", "kind", "text"), FAILURES.values(), ids=FAILURES)
def test_a_failure_in_the_middle_keeps_what_was_measured_and_is_invalid(code: str, kind: str, text: str) -> None:
    receipt = session.profile(fake.job(fake.HURRIED, fail_op="block", fail_after=3, fail_code=code), lambda: fake.CALM)
    assert receipt["failures"][0]["kind"] == kind
    assert not receipt["validity"]["valid"]
    assert len(receipt["blocks"]) == 3
    assert receipts.verify(receipts.parse(json.dumps(receipt))) == []


def test_a_sick_card_is_not_touched() -> None:
    receipt = session.profile(fake.job(), lambda: {**fake.CALM, "card": "0000:23:00.0 is suspended"})
    assert receipt["workers"] == []
    assert receipt["validity"]["reasons"][0] == "card: 0000:23:00.0 is suspended"


def test_an_unmapped_card_is_invalid() -> None:
    job = session.Job(**{**vars(fake.job()), "addresses": ["0000:43:00.0"]})
    receipt = session.profile(job, lambda: fake.CALM)
    assert receipt["failures"][0]["kind"] == "unmapped"
    assert "0000:23:00.0 is none of this host's cards" in receipt["validity"]["reasons"][0]


@pytest.mark.parametrize("uuid", ["868023e2-0000-0000-0002-000000000000", "86:80:23:e2 0000 0000 0002 0000 0000 0000"])
def test_an_integrated_gpu_may_be_index_0(uuid: str) -> None:
    assert session.bdf_of_uuid(uuid) == "0000:00:02.0"
    assert session.unmapped({"device": "xpu", "index": 0, "card": {"uuid": uuid}}, ["0000:23:00.0"])
    assert session.bdf_of_uuid("GPU-5e1f1b4a") is None
    assert session.bdf_of_uuid("0" * 32) is None
    assert "gives no PCI address" in session.unmapped({"device": "xpu", "card": {}}, ["0000:23:00.0"])
    assert session.unmapped({"device": "cpu", "card": {}}, ["0000:23:00.0"]) == ""
    assert session.unmapped({"device": "cuda", "card": {"bdf": "0000:01:00.0"}}, ["0000:01:00.0"]) == ""


class FileToggle(Toggle):
    """Switches how slow the made-up worker is, through a file; reads back what it wrote."""

    toggles = True

    def __init__(self, path: Path, factors: dict[str, float], readable: bool = True) -> None:
        self.path, self.factors, self.readable = path, factors, readable
        self.path.write_text("1.0")
        self.log: list[str] = []

    def set(self, arm: str) -> None:
        self.log.append(arm)
        self.path.write_text(str(self.factors[arm]))

    def read(self) -> str | None:
        return self.path.read_text() if self.readable else None

    def evidence(self) -> dict[str, Any]:
        return {"factor": self.path.read_text()}

    def restore(self) -> str:
        self.log.append("restore")
        self.path.write_text("1.0")
        return ""


CLAIM = Claim(metric="launch_us", arms={"A": "before", "B": "after"}, device="xpu", evidence=("factor",))


def run_trial(
    tmp_path: Path, factors: dict[str, float], job_: dict[str, Any] | None = None, **toggle: Any
) -> tuple[dict[str, Any], FileToggle]:
    switch = FileToggle(tmp_path / "factor", factors, **toggle)
    made = fake.job(FACTOR_FILE=str(tmp_path / "factor"), **(job_ or {}))
    receipt = session.trial(made, CLAIM, switch, lambda: fake.CALM)
    assert receipts.verify(receipts.parse(json.dumps(receipt))) == []
    assert switch.log[-1] == "restore"
    return receipt, switch


def test_a_trial_finds_what_the_toggle_does(tmp_path: Path) -> None:
    receipt, switch = run_trial(tmp_path, {"A": 1.0, "B": 0.8})
    assert receipt["verdict"]["word"] == "improved"
    assert receipt["verdict"]["figures"]["ratio"] == pytest.approx(0.8, rel=0.02)
    assert set(switch.log[:16]) == {"A"}  # the sham pairs write the same value through the same code
    assert set(switch.log[16:-1]) == {"A", "B"}
    assert run_trial(tmp_path, {"A": 0.8, "B": 1.0})[0]["verdict"]["word"] == "regressed"


def test_a_toggle_that_does_nothing_is_vacuous(tmp_path: Path) -> None:
    receipt, _ = run_trial(tmp_path, {"A": 1.0, "B": 1.0})
    assert receipt["verdict"]["word"] == "vacuous"
    assert "read-back is equal in both arms: 1.0" in receipt["verdict"]["reasons"]
    receipt, _ = run_trial(tmp_path, {"A": 1.0, "B": 0.8}, readable=False)
    assert receipt["verdict"]["word"] == "vacuous"
    receipt, _ = run_trial(tmp_path, {"A": 1.0, "B": 0.8}, {"DEVICE": "cpu"})
    assert any("device cpu in place of xpu" in reason for reason in receipt["verdict"]["reasons"])


def test_a_trial_restores_and_keeps_its_receipt_when_the_worker_dies(tmp_path: Path) -> None:
    receipt, _ = run_trial(
        tmp_path, {"A": 1.0, "B": 0.8}, {"fail_op": "block", "fail_after": 21, "fail_code": "os._exit(9)"}
    )
    assert receipt["verdict"]["word"] == "invalid"
    assert len(receipt["blocks"]) == 21


def test_a_trial_restores_when_the_toggle_raises(tmp_path: Path) -> None:
    switch = FileToggle(tmp_path / "factor", {"A": 1.0})  # B is missing: KeyError in the middle of the pairs
    with pytest.raises(KeyError):
        session.trial(fake.job(FACTOR_FILE=str(tmp_path / "factor")), CLAIM, switch, lambda: fake.CALM)
    assert switch.log[-1] == "restore"


def test_two_looks_use_three_workers_one_after_the_other(tmp_path: Path) -> None:
    plan = session.Plan(sham=8, looks=(8, 20), block_s=0.001, settle_s=0.0, warm_s=0.0, workers=2)
    switch = FileToggle(tmp_path / "factor", {"A": 1.0, "B": 0.9})
    noisy = fake.source(FACTOR_FILE=str(tmp_path / "factor"))
    noisy = noisy.replace("lognormvariate(0, 0.01)", "lognormvariate(0, 0.01) * SPEED")
    noisy = noisy.replace("blocks += 1", "blocks += 1; SPEED = coins.lognormvariate(0, 0.11)").replace(
        "coins = ", "SPEED = 1.0; coins = "
    )
    job = session.Job(**{**vars(fake.job()), "source": noisy, "plan": plan})
    receipt = session.trial(job, CLAIM, switch, lambda: fake.CALM)
    assert [block["worker"] for block in receipt["blocks"]] == sorted(block["worker"] for block in receipt["blocks"])
    assert receipts.verify(receipt) == []
    assert receipt["begun"].get("pairs", 0) in (0, 8, 20)
    assert len(receipt["workers"]) in (1, 2, 3)


def test_standalone(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "worker_source", fake.source)
    monkeypatch.setattr(session, "QUICK", fake.SMALL)
    out = tmp_path / "receipt.json"
    assert (
        session.main(["--device", "xpu", "--quick", "--seed", "5", "--command", *fake.PYTHON[:1], "-o", str(out)]) == 0
    )
    receipt = receipts.load(out)
    assert receipts.verify(receipt) == []
    assert receipt["validity"]["unchecked"]  # it knows nothing of the host, and says so
    assert "launch_us_async" in capsys.readouterr().err
    assert session.main(["--device", "xpu", "--quick", "--command", "true", "-o", str(out)]) == 1


def test_what_a_receipt_says_was_read_around_it() -> None:
    lines = ["[1] xe 0000:23:00.0: Engine reset"]
    states = iter([fake.CALM, {**fake.CALM, "log": {"read": True, "fault_lines": lines}, "throttle": {"x": 1}}])
    receipt = session.profile(fake.job(), lambda: next(states))
    assert receipt["validity"]["reasons"] == [f"fault during the measurement: {lines[0]}"]
    assert raw.guards_of(receipt).log_read
