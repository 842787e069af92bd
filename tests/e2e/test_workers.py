"""One schedule on many processes: forked ones, and workers that get everything by message."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from surgeproof.audit_results import AuditCheck
from surgeproof.sandbox.sim_process import SimProcess
from surgeproof.storage.queries import get_run
from surgeproof.storage.store import open_engine
from tests.e2e.test_crash import locusts, started, stored, wait_for
from tests.e2e.test_run import LOCUSTFILE, PATIENCE_S, rows, surgeproof

pytestmark = pytest.mark.slow


def free_port() -> int:
    """Locust's port, of which it also takes the next one."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def plan_equals_records(path: Path) -> bool:
    """Whether each planned request has one record, at the planned time, from the worker whose share it was."""
    plan = planned(path)
    found = rows(path, "SELECT plan_index, intended_at_ns, worker FROM records ORDER BY plan_index")
    workers = len({worker for _, _, worker in found})
    start = found[0][1] - int(plan["intended_ns"][0])
    assert [index for index, _, _ in found] == list(range(len(plan)))
    assert [at - start for _, at, _ in found] == plan["intended_ns"].tolist()
    return [worker for _, _, worker in found] == [index % workers for index in range(len(plan))]


def planned(path: Path) -> Any:
    from surgeproof.loadgen.plan import Plan
    from surgeproof.storage.queries import packed_plan

    packed = packed_plan(open_engine(f"sqlite:///{path}"), 1)
    assert packed is not None
    return Plan.unpack(packed).rows


@contextmanager
def crew(sim: SimProcess, tmp_path: Path, *flags: str, workers: int = 2) -> Iterator[list["subprocess.Popen[str]"]]:
    """A master in `tmp_path/master` and workers in folders of their own, as on hosts of their own."""
    (tmp_path / "load.yaml").write_text("load: {request_rate: 40, input_len: 10, output_len: 4, duration_s: 60}\n")
    port = str(free_port())
    locust = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--loglevel", "WARNING"]
    master = [*locust, "--master", "--master-bind-port", port, "--expect-workers", str(workers), "--host", sim.base_url]
    commands = [[*master, "--scenario", str(tmp_path / "load.yaml"), *flags]]
    commands += [[*locust, "--worker", "--master-port", port]] * workers
    children = []
    for number, command in enumerate(commands):
        folder = tmp_path / ("master" if number == 0 else f"worker{number}")
        folder.mkdir()
        children.append(
            subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    try:
        yield children
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.communicate()


def shortened(tmp_path: Path, seconds: int) -> None:
    path = tmp_path / "load.yaml"
    path.write_text(path.read_text().replace("60", str(seconds)))


def test_four_forked_processes_send_the_one_plan(sim: SimProcess, tmp_path: Path) -> None:
    result = surgeproof(
        "run", "--base-url", sim.base_url, "--request-rate", "60", "--duration", "3s", "--input-len", "10",
        "--output-len", "4", "--processes", "4", cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode in (0, 5), result.stdout + result.stderr
    assert plan_equals_records(tmp_path / "surgeproof.db")
    run = get_run(open_engine(f"sqlite:///{tmp_path}/surgeproof.db"), 1)
    assert [facts.worker for facts in run.environment.workers or ()] == [0, 1, 2, 3]
    assert rows(tmp_path / "surgeproof.db", "SELECT DISTINCT outcome FROM records") == [("ok",)]


def test_two_separate_workers_send_the_one_plan_and_ship_their_records(sim: SimProcess, tmp_path: Path) -> None:
    """They know neither the run's folder nor its clock; what they measured is stored by the master."""
    with crew(sim, tmp_path) as (master, *workers):
        shortened(tmp_path, 3)
        output = master.communicate(timeout=PATIENCE_S)[0]
        assert master.returncode in (0, 5), output
        for worker in workers:
            worker.communicate(timeout=PATIENCE_S)
    path = tmp_path / "master" / "surgeproof.db"
    assert plan_equals_records(path)
    assert rows(path, "SELECT DISTINCT outcome FROM records") == [("ok",)]
    workers_seen = get_run(open_engine(f"sqlite:///{path}"), 1).environment.workers
    assert isinstance(workers_seen, tuple)
    assert len(workers_seen) == 2
    # One host has one clock: the exchange must find that it is not ahead of itself.
    assert all(abs(facts.clock_ahead_ns) <= facts.clock_uncertainty_ns + 50_000 for facts in workers_seen)
    assert all(0 < facts.clock_uncertainty_ns < 50_000_000 for facts in workers_seen)
    # What the master has acknowledged is not kept twice.
    assert not list(tmp_path.glob("worker*/**/*.spool"))


@pytest.mark.faults
def test_a_killed_master_loses_nothing_that_was_measured(sim: SimProcess, tmp_path: Path) -> None:
    """Its own spools are recovered where it ran, the workers' last batches from the folders they name."""
    with crew(sim, tmp_path) as (master, *workers):
        database = tmp_path / "master" / "surgeproof.db"
        spooled = wait_for(lambda: list((tmp_path / "master").glob("surgeproof.db.spool/*/worker-*.spool")))
        wait_for(lambda: sum(path.stat().st_size for path in spooled) > 5000)
        master.kill()
        master.communicate()
        time.sleep(1.5)  # the workers measure on
        for worker in workers:
            worker.send_signal(signal.SIGINT)
        said = [worker.communicate(timeout=PATIENCE_S)[0] for worker in workers]
    assert all("surgeproof recover --spool" in text for text in said), said
    result = surgeproof("recover", cwd=tmp_path / "master")
    assert "1 runs recovered" in result.stdout, result.stdout + result.stderr
    held = rows(database, "SELECT count(*) FROM records WHERE outcome = 'ok'")[0][0]
    for number in (1, 2):
        (folder,) = (tmp_path / f"worker{number}").glob("surgeproof.spool/*")
        result = surgeproof("recover", "--spool", str(folder), cwd=tmp_path / "master")
        assert "1 runs recovered" in result.stdout, result.stdout + result.stderr
    # At 40 a second, a second and a half more than the master knew.
    assert rows(database, "SELECT count(*) FROM records WHERE outcome = 'ok'")[0][0] >= held + 30
    assert rows(database, "SELECT count(*) FROM records")[0][0] == len(planned(database))


@pytest.mark.faults
def test_a_hung_worker_costs_its_share_only(sim: SimProcess, tmp_path: Path) -> None:
    child = started(sim, tmp_path, "--processes", "2", "--drain", "2s", seconds=10)
    wait_for(lambda: stored(tmp_path) >= 30)
    master = min(locusts(child), key=lambda process: process.create_time())
    victim = master.children()[0]
    victim.suspend()
    output = child.communicate(timeout=PATIENCE_S)[0]
    assert child.returncode == 5, output
    assert not victim.is_running() or victim.status() == psutil.STATUS_ZOMBIE
    assert "workers_lost" in {check.name for check in audit(tmp_path) if not check.passed}
    ((reason,),) = rows(tmp_path / "surgeproof.db", "SELECT DISTINCT error FROM records WHERE outcome = 'not_sent'")
    assert reason.startswith("worker "), reason
    assert "stopped answering about" in reason
    outcomes = rows(tmp_path / "surgeproof.db", "SELECT plan_index % 2, outcome, count(*) FROM records GROUP BY 1, 2")
    assert {outcome for _, outcome, _ in outcomes} == {"ok", "not_sent"}
    assert sum(count for _, _, count in outcomes) == len(planned(tmp_path / "surgeproof.db"))


def audit(tmp_path: Path) -> tuple[AuditCheck, ...]:
    stored = get_run(open_engine(f"sqlite:///{tmp_path}/surgeproof.db"), 1).audit
    assert stored is not None
    return stored.checks


def test_two_runs_with_processes_do_not_mix(sim: SimProcess, tmp_path: Path) -> None:
    """Each has a master of its own: no worker of one finds the other."""
    children = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        children.append(started(sim, tmp_path / name, "--processes", "2", seconds=4))
    for child in children:
        output = child.communicate(timeout=PATIENCE_S)[0]
        assert child.returncode in (0, 5), output
    for name in ("a", "b"):
        assert plan_equals_records(tmp_path / name / "surgeproof.db")
        assert rows(tmp_path / name / "surgeproof.db", "SELECT DISTINCT outcome FROM records") == [("ok",)]
