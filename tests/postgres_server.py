"""A PostgreSQL server of Debian's package, started for tests, which can be killed and started again."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest


class PostgresServer:
    """One server with a folder and a port of its own; without the package, tests are skipped."""

    def __init__(self) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
        if not found:
            pytest.skip("PostgreSQL is not installed (Debian's package postgresql)")
        self._programs = found[-1].parent
        # The server refuses to run as root; its own user must reach the folder.
        self._user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        self._folder = Path(tempfile.mkdtemp(prefix="surgeproof-pg-"))
        if self._user:
            shutil.chown(self._folder, "postgres")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._data = self._folder / "data"
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "postgres", "-N", "-E", "UTF8")
        self.start()

    @property
    def url(self) -> str:
        """Without the name of a database."""
        return f"postgresql://postgres@127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; returns when it answers."""
        options = f"-c listen_addresses=127.0.0.1 -c port={self.port} -c unix_socket_directories={self._folder}"
        self._run(
            "pg_ctl",
            "-D",
            str(self._data),
            "-l",
            str(self._folder / "log"),
            "-w",
            "-o",
            f"{options} -c fsync=off",
            "start",
        )

    def kill(self) -> None:
        """Stop it at once, as a crash does."""
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "stop")

    def create(self, name: str) -> str:
        """Make a database and return its URL."""
        import psycopg

        with psycopg.connect(f"{self.url}/postgres", autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return f"{self.url}/{name}"

    def remove(self) -> None:
        """Stop it and remove its folder."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [*self._user, str(self._programs / program), *arguments],
            check=True, cwd=self._folder, timeout=60, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
