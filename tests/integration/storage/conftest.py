"""Each storage test runs twice: on a SQLite file, and on a PostgreSQL server that is started here."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

_DATABASES = count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a fresh server without its database's name; skipped where Debian's package is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    if not found:
        pytest.skip("PostgreSQL is not installed (Debian's package postgresql)")
    programs = found[-1].parent
    # The server refuses to run as root; its own user must reach the folder.
    user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    folder = Path(tempfile.mkdtemp(prefix="surgeproof-pg-"))
    if user:
        shutil.chown(folder, "postgres")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = folder / "data"
    options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder} -c fsync=off"
    try:
        run = {"check": True, "capture_output": True, "cwd": folder, "timeout": 60}
        initdb = [str(programs / "initdb"), "-D", str(data), "-A", "trust", "-U", "postgres", "-N", "-E", "UTF8"]
        subprocess.run([*user, *initdb], **run)
        start = [str(programs / "pg_ctl"), "-D", str(data), "-l", str(folder / "log"), "-w", "-o", options, "start"]
        subprocess.run([*user, *start], **run | {"capture_output": False, "stdout": subprocess.DEVNULL})
        yield f"postgresql://postgres@127.0.0.1:{port}"
    finally:
        subprocess.run([*user, str(programs / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop"], cwd=folder,
                       check=False, capture_output=True)  # fmt: skip
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/t.db"
    server = request.getfixturevalue("postgres")
    name = f"test{os.getpid()}_{next(_DATABASES)}"
    import psycopg

    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    return f"{server}/{name}"
