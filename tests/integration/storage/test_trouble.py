"""What can go wrong with a database: full disk, no right to write, a lock, two writers."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from surgeproof.errors import StoreError
from surgeproof.storage.queries import list_runs, run_columns
from surgeproof.storage.store import Store, open_engine
from tests.integration.storage.examples import RUN, new_run, record


def test_two_runs_write_at_once(url: str) -> None:
    """Neither waits for ever, neither loses a record."""
    Store(url).close()
    failures: list[BaseException] = []

    def write(name: str) -> None:
        try:
            store = Store(url)
            run_id = store.create_run(new_run(uid=name, name=name))
            for start in range(0, 2000, 100):
                store.add_records(run_id, [record(index) for index in range(start, start + 100)])
            store.close()
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=write, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    engine = open_engine(url)
    assert {head.name for head in list_runs(engine)} == {"a", "b"}
    assert [len(run_columns(engine, head.id)) for head in list_runs(engine)] == [2000, 2000]


def test_a_full_disk_is_a_sentence_and_the_file_stays_readable(tmp_path: Path) -> None:
    """The process may write no file beyond 400 kB, as on a disk that is full."""
    program = f"""
import resource, signal
from surgeproof.errors import StoreError
from surgeproof.storage.store import Store
from tests.integration.storage.examples import RUN, new_run, record
store = Store("sqlite:///{tmp_path}/t.db")
run_id = store.create_run(RUN)
store.add_records(run_id, [record(index) for index in range(10)])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
try:
    for start in range(10, 20_000, 500):
        store.add_records(run_id, [record(index) for index in range(start, start + 500)])
except StoreError as exc:
    print(exc)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False
    )
    assert "cannot write database" in result.stdout, result.stderr
    assert any(word in result.stdout for word in ("disk", "full", "I/O")), result.stdout
    columns = run_columns(open_engine(f"sqlite:///{tmp_path}/t.db"), 1)
    assert len(columns) >= 10
    assert len(columns) % 500 == 10


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become a user without rights")
def test_a_read_only_file_is_a_sentence_and_can_be_read(tmp_path: Path) -> None:
    Store(f"sqlite:///{tmp_path}/t.db").create_run(RUN)
    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    for path in (*tmp_path.iterdir(), tmp_path):
        path.chmod(0o555 if path.is_dir() else 0o444)
    program = f"""
import os
from surgeproof.errors import StoreError
from surgeproof.storage.queries import list_runs
from surgeproof.storage.store import Store, open_engine
from tests.integration.storage.examples import RUN, new_run
os.setuid(65534)
try:
    Store("sqlite:///{tmp_path}/t.db").create_run(new_run(uid="b"))
except StoreError as exc:
    print(exc)
"""
    for folder in tmp_path.parents:
        if folder.is_relative_to("/tmp/") and folder != Path("/tmp"):
            folder.chmod(0o755)
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False
    )
    assert "cannot" in result.stdout, result.stdout + result.stderr
    assert "readonly" in result.stdout or "read-only" in result.stdout or "unable to open" in result.stdout


def test_a_locked_file_is_waited_for_and_then_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surgeproof.storage.store.LOCK_TIMEOUT_S", 0.2)
    store = Store(f"sqlite:///{tmp_path}/t.db")
    run_id = store.create_run(RUN)
    other = sqlite3.connect(tmp_path / "t.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="cannot write database .*locked"):
        store.add_records(run_id, [record(0)])
    other.execute("COMMIT")
    other.close()
    store.add_records(run_id, [record(0)])
    assert len(run_columns(store.engine, run_id)) == 1


@pytest.mark.slow
def test_kill_nine_at_any_moment_leaves_whole_batches(tmp_path: Path) -> None:
    """Twelve writers are killed after growing times: every file opens, and holds rows and columns of whole batches."""
    program = """
import sys, itertools
from surgeproof.storage.store import Store
from tests.integration.storage.examples import RUN, new_run, record
store = Store(f"sqlite:///{sys.argv[1]}")
run_id = store.create_run(RUN)
print("go", flush=True)
for start in itertools.count(0, 50):
    store.add_records(run_id, [record(index) for index in range(start, start + 50)])
"""
    for attempt in range(12):
        path = tmp_path / f"{attempt}.db"
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(path)], cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        child.stdout.readline()
        threading.Event().wait(0.01 * attempt)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        engine = open_engine(f"sqlite:///{path}")
        columns = run_columns(engine, 1)
        with engine.connect() as connection:
            rows = connection.exec_driver_sql("SELECT count(*) FROM records").scalar()
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
        assert rows == len(columns)
        assert rows % 50 == 0
        engine.dispose()
