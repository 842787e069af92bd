"""Nothing measured is lost: kill -9 of the worker, of the load generator's master and of the command itself."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from surgeproof.sandbox.sim_process import SimProcess
from tests.e2e.test_run import PATIENCE_S, rows, surgeproof


def started(sim: SimProcess, cwd: Path, *more: str, seconds: int = 60) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [
            sys.executable, "-m", "surgeproof", "run", "--base-url", sim.base_url, "--request-rate", "30",
            "--duration", f"{seconds}s", "--output-len", "5", "--input-len", "10", *more,
        ],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError("it never happened")


def stored(cwd: Path) -> int:
    path = cwd / "surgeproof.db"
    if not path.exists() or not rows(path, "SELECT 1 FROM sqlite_master WHERE name = 'records'"):
        return 0
    return int(rows(path, "SELECT count(*) FROM records")[0][0])


def locusts(child: "subprocess.Popen[str]") -> list[psutil.Process]:
    return [p for p in psutil.Process(child.pid).children(recursive=True) if "locust" in " ".join(p.cmdline())]


def test_a_killed_command_is_recovered(sim: SimProcess, tmp_path: Path) -> None:
    """The run stands as running until `recover` stores and judges what its workers had spooled."""
    child = started(sim, tmp_path)
    wait_for(lambda: stored(tmp_path) >= 30)
    victims = locusts(child)
    assert "0 runs recovered" in surgeproof("recover", cwd=tmp_path).stdout
    child.kill()
    for victim in victims:
        victim.kill()
    child.communicate()
    before = stored(tmp_path)
    assert rows(tmp_path / "surgeproof.db", "SELECT state FROM runs") == [("running",)]
    result = surgeproof("recover", cwd=tmp_path)
    assert "1 runs recovered" in result.stdout, result.stdout + result.stderr
    ((state, planned),) = rows(tmp_path / "surgeproof.db", "SELECT state, requests FROM runs JOIN plans ON run_id = id")
    outcomes = dict(rows(tmp_path / "surgeproof.db", "SELECT outcome, count(*) FROM records GROUP BY 1"))
    assert state == "interrupted"
    assert outcomes["ok"] >= before
    assert sum(outcomes.values()) == planned
    assert not (tmp_path / "surgeproof.db.spool").exists()


def test_a_killed_load_generator_ends_the_run_as_broken_with_its_records(sim: SimProcess, tmp_path: Path) -> None:
    child = started(sim, tmp_path)
    wait_for(lambda: stored(tmp_path) >= 30)
    for victim in locusts(child):
        victim.send_signal(signal.SIGKILL)
    output = child.communicate(timeout=PATIENCE_S)[0]
    assert child.returncode == 5, output
    assert "exited with code -9" in output
    ((state, verdict),) = rows(tmp_path / "surgeproof.db", "SELECT state, verdict FROM runs")
    assert (state, verdict) == ("broken", "INVALID")
    assert rows(tmp_path / "surgeproof.db", "SELECT count(*) FROM records WHERE outcome = 'ok'")[0][0] >= 30


@pytest.mark.faults
def test_a_killed_worker_costs_its_share_only(sim: SimProcess, tmp_path: Path) -> None:
    """The other worker goes on, what the dead one had not sent is recorded as such, and the run is INVALID."""
    child = started(sim, tmp_path, "--processes", "2", seconds=15)
    wait_for(lambda: stored(tmp_path) >= 30)
    master = min(locusts(child), key=lambda process: process.create_time())
    workers = master.children()
    os.kill(workers[0].pid, signal.SIGKILL)
    output = child.communicate(timeout=PATIENCE_S)[0]
    assert child.returncode == 5, output
    found = rows(
        tmp_path / "surgeproof.db",
        "SELECT plan_index % 2, outcome, count(*) FROM records GROUP BY 1, 2 ORDER BY 1, 2",
    )
    ((planned,),) = rows(tmp_path / "surgeproof.db", "SELECT requests FROM plans")
    assert sum(count for _, _, count in found) == planned
    shares = {share: {outcome: n for s, outcome, n in found if s == share} for share in (0, 1)}
    lost = [share for share in shares.values() if "not_sent" in share]
    whole = [share for share in shares.values() if "not_sent" not in share]
    assert len(lost) == len(whole) == 1
    assert set(whole[0]) == {"ok"}
    # What was never sent keeps its planned time, on the same axis as what was.
    times = [at for (at,) in rows(tmp_path / "surgeproof.db", "SELECT intended_at_ns FROM records ORDER BY plan_index")]
    assert times == sorted(times)
    reasons = rows(tmp_path / "surgeproof.db", "SELECT DISTINCT error FROM records WHERE outcome = 'not_sent'")
    assert len(reasons) == 1
    assert "stopped answering" in reasons[0][0]


@pytest.mark.slow
def test_a_starved_client_is_invalid_and_never_a_slow_server(sim: SimProcess, tmp_path: Path) -> None:
    """The load generator gets the processor a third of the time: no rule on latencies fails for it.

    It is stopped and let go by signals, so that no scheduler can be kinder than the test means.
    """
    (tmp_path / "slo.yaml").write_text("['ttft p99 < 1ms', 'ttft p50 < 1ms']")
    child = started(sim, tmp_path, "--slo", "slo.yaml", seconds=8)
    wait_for(lambda: stored(tmp_path) >= 10)
    (worker,) = locusts(child)
    while child.poll() is None:
        try:
            worker.suspend()
            time.sleep(0.2)
            worker.resume()
        except psutil.NoSuchProcess:
            break
        time.sleep(0.1)
    output = child.communicate(timeout=PATIENCE_S)[0]
    assert child.returncode == 5, output
    found = dict(rows(tmp_path / "surgeproof.db", "SELECT rule, verdict FROM verdicts"))
    assert found["ttft p50 < 1ms"] == "INVALID"
    # So few requests say nothing of a p99, whatever the client did.
    assert found["ttft p99 < 1ms"] in ("INVALID", "INCONCLUSIVE")
    assert "Client audit:" in output
