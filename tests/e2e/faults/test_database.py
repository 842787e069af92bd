"""The database is locked, full, killed or never comes back: no record is lost, and the run says so."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.faults.logging_endpoint import LoggingEndpoint
from tests.e2e.test_crash import stored, wait_for
from tests.e2e.test_run import rows, surgeproof
from tests.postgres_server import PostgresServer


@pytest.fixture
def endpoint() -> Iterator[LoggingEndpoint]:
    with LoggingEndpoint() as one:
        yield one


def started(endpoint: LoggingEndpoint, cwd: Path, *more: str, seconds: int = 8) -> "subprocess.Popen[str]":
    command = [
        sys.executable, "-m", "surgeproof", "run", "--base-url", endpoint.base_url, "--request-rate", "30",
        "--arrivals", "constant", "--duration", f"{seconds}s", "--output-len", "5", "--input-len", "10", *more,
    ]  # fmt: skip
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_lock_that_outlasts_the_run_loses_nothing(endpoint: LoggingEndpoint, tmp_path: Path) -> None:
    """Another program holds the database for 40 s of a run of 8: longer than one try waits."""
    child = started(endpoint, tmp_path)
    wait_for(lambda: stored(tmp_path) >= 30)
    holder = sqlite3.connect(tmp_path / "surgeproof.db")
    holder.execute("BEGIN IMMEDIATE")
    time.sleep(40)
    holder.rollback()
    holder.close()
    output = child.communicate(timeout=120)[0]
    assert child.returncode in (0, 5), output  # a busy machine may void the run, but loses nothing of it
    assert "trying again, what is measured meanwhile is kept in the spools" in output
    assert "the database can be written again" in output
    assert len(endpoint.answered) == 240
    assert endpoint.missing(tmp_path / "surgeproof.db") == set()
    assert not (tmp_path / "surgeproof.db.spool").exists()


def test_a_database_that_never_comes_back_leaves_the_spool_to_recover(
    endpoint: LoggingEndpoint, tmp_path: Path
) -> None:
    """A second signal ends the patience: exit 5 with the folder and the command, which then finds every record."""
    child = started(endpoint, tmp_path, seconds=3)
    wait_for(lambda: stored(tmp_path) >= 1)
    holder = sqlite3.connect(tmp_path / "surgeproof.db")
    holder.execute("BEGIN IMMEDIATE")
    time.sleep(6)
    child.send_signal(signal.SIGTERM)
    output = child.communicate(timeout=120)[0]
    holder.rollback()
    holder.close()
    assert child.returncode == 5, output
    assert "Everything that was measured is kept in" in output
    assert "surgeproof recover --db sqlite:///surgeproof.db" in output
    recovered = surgeproof("recover", cwd=tmp_path)
    assert "1 runs recovered" in recovered.stdout
    assert endpoint.missing(tmp_path / "surgeproof.db") == set()


def test_a_server_that_is_killed_and_comes_back_loses_nothing(endpoint: LoggingEndpoint, tmp_path: Path) -> None:
    server = PostgresServer()
    try:
        url = server.create("faults")
        child = started(endpoint, tmp_path, "--db", url)
        wait_for(lambda: len(endpoint.answered) >= 60)
        server.kill()
        time.sleep(2)
        server.start()
        output = child.communicate(timeout=120)[0]
        assert child.returncode in (0, 5), output  # a busy machine may void the run, but loses nothing of it
        assert "trying again" in output
        import psycopg

        with psycopg.connect(url) as connection:
            kept = connection.execute("SELECT plan_index FROM records WHERE outcome = 'ok'").fetchall()
        assert set(endpoint.answered) <= {index for (index,) in kept}
        assert len(endpoint.answered) == 240
    finally:
        server.remove()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("a file system of its own needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            pass
    return path


def test_a_disk_that_is_full_for_a_while_loses_nothing(endpoint: LoggingEndpoint, small_disk: Path) -> None:
    """Neither spool nor database can grow for three seconds of eight."""
    child = started(endpoint, small_disk)
    wait_for(lambda: stored(small_disk) >= 30)
    filler = fill(small_disk)
    time.sleep(3)
    filler.unlink()
    output = child.communicate(timeout=120)[0]
    assert child.returncode in (0, 5), output  # a busy machine may void the run, but loses nothing of it
    assert endpoint.missing(small_disk / "surgeproof.db") == set()
    assert len(endpoint.answered) == 240


def test_a_reader_of_the_progress_that_leaves_stops_nothing(endpoint: LoggingEndpoint, tmp_path: Path) -> None:
    """`surgeproof run ... 2>&1 | head -1`: the run ends with its own verdict, all stored."""
    (tmp_path / "slo.yaml").write_text("['ttft p50 < 10s']")
    read, write = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-m", "surgeproof", "run", "--base-url", endpoint.base_url, "--request-rate", "30",
         "--duration", "14s", "--output-len", "5", "--input-len", "10", "--slo", "slo.yaml"],
        cwd=tmp_path, stdout=write, stderr=write,
    )  # fmt: skip
    os.close(write)
    os.read(read, 1)
    os.close(read)
    assert child.wait(120) in (0, 4, 5)
    ((state, verdict),) = rows(tmp_path / "surgeproof.db", "SELECT state, verdict FROM runs")
    assert state == "finished"
    assert {"PASS": 0, "INCONCLUSIVE": 4, "INVALID": 5}[verdict] == child.returncode
    assert endpoint.missing(tmp_path / "surgeproof.db") == set()


def test_a_run_of_another_host_is_left_to_it(endpoint: LoggingEndpoint, tmp_path: Path) -> None:
    """A shared server holds a run whose spools are elsewhere: it may be running there."""
    server = PostgresServer()
    try:
        url = server.create("shared")
        child = started(endpoint, tmp_path, "--db", url, seconds=2)
        child.communicate(timeout=60)
        assert child.returncode in (0, 5)
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("UPDATE runs SET state = 'running', environment = replace(environment, %s, 'elsewhere')",
                               (os.uname().nodename,))  # fmt: skip
            result = surgeproof("recover", "--db", url, cwd=tmp_path)
            assert "run 1 ran on elsewhere: recover it there" in result.stdout, result.stdout + result.stderr
            assert surgeproof("runs", "delete", "1", "--db", url, cwd=tmp_path).returncode == 2
            assert connection.execute("SELECT state FROM runs").fetchall() == [("running",)]
    finally:
        server.remove()


def test_a_disk_that_stays_full_voids_the_run(endpoint: LoggingEndpoint, small_disk: Path) -> None:
    """In a closed loop no planned request is missing, and the database is elsewhere: exit 5 all the same."""
    server = PostgresServer()
    try:
        url = server.create("full")
        (small_disk / "slo.yaml").write_text("['ttft p50 < 10s']")
        command = [
            sys.executable, "-m", "surgeproof", "run", "--base-url", endpoint.base_url, "--concurrency", "4",
            "--duration", "8s", "--output-len", "5", "--input-len", "10", "--db", url, "--slo", "slo.yaml",
        ]  # fmt: skip
        child = subprocess.Popen(command, cwd=small_disk, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        wait_for(lambda: len(endpoint.answered) >= 30)
        fill(small_disk)
        output = child.communicate(timeout=120)[0]
        assert child.returncode == 5, output
        assert "records could not be written and are lost" in output
        import psycopg

        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT state, verdict FROM runs").fetchall() == [("broken", "INVALID")]
    finally:
        server.remove()
