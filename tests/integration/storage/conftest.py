"""Each storage test runs twice: on a SQLite file, and on a PostgreSQL server that is started here."""

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.postgres_server import PostgresServer

_DATABASES = count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A fresh server; skipped where Debian's package is not installed."""
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/t.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.create(f"test{os.getpid()}_{next(_DATABASES)}")
