"""Whoever asked for a load dies, hangs up or moves its files: the load ends, and nothing measured is lost."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.faults.logging_endpoint import LoggingEndpoint
from tests.e2e.faults.test_database import endpoint, started
from tests.e2e.test_crash import locusts, stored, wait_for
from tests.e2e.test_run import LOCUSTFILE, rows, surgeproof

__all__ = ["endpoint"]


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_killed_command_takes_its_load_with_it(endpoint: LoggingEndpoint, tmp_path: Path, processes: str) -> None:
    """Kill -9 of the command alone: a second later nothing more is sent, and `recover` at once is whole."""
    child = started(endpoint, tmp_path, "--processes", processes, seconds=60)
    wait_for(lambda: stored(tmp_path) >= 30)
    child.kill()
    killed_s = time.monotonic()
    result = surgeproof("recover", cwd=tmp_path)
    child.communicate()
    assert "1 runs recovered" in result.stdout, result.stdout + result.stderr
    time.sleep(3)
    assert endpoint.asked_after(killed_s + 1.5) == 0
    assert endpoint.missing(tmp_path / "surgeproof.db") == set()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGTERM, 143)])
def test_a_closed_terminal_ends_the_run_in_order(
    endpoint: LoggingEndpoint, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    child = started(endpoint, tmp_path, seconds=60)
    wait_for(lambda: stored(tmp_path) >= 30)
    child.send_signal(number)
    output = child.communicate(timeout=60)[0]
    ended_s = time.monotonic()
    assert child.returncode == code, output
    assert rows(tmp_path / "surgeproof.db", "SELECT state FROM runs") == [("interrupted",)]
    assert endpoint.missing(tmp_path / "surgeproof.db") == set()
    time.sleep(1)
    assert endpoint.asked_after(ended_s) == 0


def test_a_load_that_still_runs_is_not_recovered_under_it(endpoint: LoggingEndpoint, tmp_path: Path) -> None:
    """A stopped worker cannot end with its parent: its spool stays until it has."""
    child = started(endpoint, tmp_path, seconds=60)
    wait_for(lambda: stored(tmp_path) >= 30)
    (worker,) = locusts(child)
    worker.suspend()
    child.kill()
    child.communicate()
    refused = surgeproof("recover", cwd=tmp_path)
    assert "its load is still running; stop it, then recover" in refused.stdout
    assert "0 runs recovered" in refused.stdout
    assert list((tmp_path / "surgeproof.db.spool").glob("*/worker-000.spool"))
    worker.resume()
    psutil.wait_procs([worker], timeout=10)
    assert "1 runs recovered" in surgeproof("recover", cwd=tmp_path).stdout
    assert endpoint.missing(tmp_path / "surgeproof.db") == set()


def test_a_killed_run_is_found_after_it_was_moved(endpoint: LoggingEndpoint, tmp_path: Path) -> None:
    """Folder and database have other names by the time of `recover`."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    child = started(endpoint, here, seconds=60)
    wait_for(lambda: stored(here) >= 30)
    victims = [child, *locusts(child)]
    for victim in victims:
        victim.kill()
    child.communicate()
    here.rename(there)
    (there / "surgeproof.db").rename(there / "saved.db")
    for suffix in ("-wal", "-shm"):
        if (there / f"surgeproof.db{suffix}").exists():
            (there / f"surgeproof.db{suffix}").rename(there / f"saved.db{suffix}")
    result = surgeproof("recover", "--db", "sqlite:///saved.db", cwd=there)
    assert "1 runs recovered" in result.stdout, result.stdout + result.stderr
    # What a killed worker had not spooled yet is half a second of requests at most.
    assert len(endpoint.missing(there / "saved.db")) <= 20


def test_a_run_whose_spool_is_gone_can_be_ended_and_deleted(endpoint: LoggingEndpoint, tmp_path: Path) -> None:
    child = started(endpoint, tmp_path, seconds=60)
    wait_for(lambda: stored(tmp_path) >= 30)
    victims = [*locusts(child), child]
    for victim in victims:
        victim.kill()
    child.communicate()
    for path in sorted((tmp_path / "surgeproof.db.spool").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    result = surgeproof("recover", cwd=tmp_path)
    assert "its spool folder" in result.stdout
    assert "1 runs recovered" in result.stdout, result.stdout + result.stderr
    assert rows(tmp_path / "surgeproof.db", "SELECT state, verdict FROM runs")[0][0] == "interrupted"
    assert surgeproof("runs", "export", "1", "-o", "run.jsonl", cwd=tmp_path).returncode == 0
    assert surgeproof("runs", "delete", "1", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_bare_locust_stores_before_a_signal_ends_it(
    endpoint: LoggingEndpoint, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    child = bare_locust(endpoint, tmp_path)
    wait_for(lambda: len(endpoint.answered) >= 30)
    child.send_signal(number)
    output = child.communicate(timeout=60)[0]
    assert child.returncode == code, output
    assert rows(tmp_path / "surgeproof.db", "SELECT state FROM runs") == [("interrupted",)]
    assert endpoint.missing(tmp_path / "surgeproof.db") == set()


def test_workers_of_a_killed_bare_locust_end(endpoint: LoggingEndpoint, tmp_path: Path) -> None:
    child = bare_locust(endpoint, tmp_path, "--processes", "2")
    wait_for(lambda: len(endpoint.answered) >= 30)
    child.kill()
    killed_s = time.monotonic()
    child.communicate()
    time.sleep(4)
    assert endpoint.asked_after(killed_s + 2) == 0
    assert "1 runs recovered" in surgeproof("recover", cwd=tmp_path).stdout
    assert endpoint.missing(tmp_path / "surgeproof.db") == set()


def bare_locust(endpoint: LoggingEndpoint, cwd: Path, *more: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "-u", "2", "-r", "2", "-t", "60s",
         "--host", endpoint.base_url, "--input-len", "10", "--output-len", "5", *more],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
