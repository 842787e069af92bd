"""The schema: new, brought up to date with data, refused when newer."""

import shutil
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa

from surgeproof.errors import StoreError
from surgeproof.run import judge_stored
from surgeproof.storage import tables
from surgeproof.storage.queries import get_run, run_columns
from surgeproof.storage.schema import HEAD
from surgeproof.storage.store import Store, open_engine
from tests.storage.test_store import RUN, record

FIRST = Path(__file__).with_name("schema_1.sqlite")


def differences(engine: sa.Engine) -> list[object]:
    """What Alembic would change to make the database like the tables of the code."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with engine.connect() as connection:
        return list(compare_metadata(MigrationContext.configure(connection), tables.metadata))


def test_a_new_database_has_the_schema_of_the_code(url: str) -> None:
    engine = open_engine(url)
    assert differences(engine) == []
    with engine.connect() as connection:
        assert connection.execute(sa.select(tables.alembic_version.c.version_num)).scalars().all() == [HEAD]


def test_migrations_from_nothing_lead_to_the_same_schema(url: str) -> None:
    """Every version from the first on, on both kinds of database."""
    from alembic import command
    from alembic.config import Config

    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    config = Config()
    config.set_main_option("script_location", "surgeproof.storage:migrations")
    config.set_main_option("path_separator", "os")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    assert differences(engine) == []
    engine.dispose()
    Store(url).create_run(RUN)


def test_a_file_of_the_first_version_keeps_its_run(tmp_path: Path) -> None:
    """Written by the program of that version: 20 requests, two objectives."""
    path = tmp_path / "old.db"
    shutil.copy(FIRST, path)
    engine = open_engine(f"sqlite:///{path}")
    assert differences(engine) == []
    run = get_run(engine, 1)
    assert (run["state"], run["verdict"], run["metadata"]) == ("finished", "INCONCLUSIVE", {"team": "old"})
    columns = run_columns(engine, 1)
    assert len(columns) == 20
    assert columns.texts("outcome").counts() == {"ok": 20}
    assert (columns.integers("output_tokens") == 4).all()
    assert judge_stored(f"sqlite:///{path}", 1, None).verdict == "INCONCLUSIVE"
    # And it is written to again.
    store = Store(f"sqlite:///{path}")
    run_id = store.create_run(RUN)
    store.add_records(run_id, [record(0)])
    assert run_id == 2


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from alembic.operations import Operations

    path = tmp_path / "old.db"
    shutil.copy(FIRST, path)

    def fail(*_: object, **__: object) -> None:
        raise sa.exc.OperationalError("create_index", {}, Exception("disk full"))

    with monkeypatch.context() as patch:
        patch.setattr(Operations, "create_index", fail)
        with pytest.raises(StoreError, match="disk full"):
            open_engine(f"sqlite:///{path}")
    connection = sqlite3.connect(path)
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert "record_chunks" not in names
    assert connection.execute("SELECT version FROM schema_info").fetchall() == [(1,)]
    connection.close()
    assert get_run(open_engine(f"sqlite:///{path}"), 1)["state"] == "finished"


def test_a_newer_database_is_refused(url: str) -> None:
    store = Store(url)
    with store.engine.begin() as connection:
        connection.execute(sa.update(tables.alembic_version).values(version_num="0999"))
    store.close()
    with pytest.raises(StoreError, match="schema 0999, written by a newer Surgeproof"):
        open_engine(url)


def test_programs_of_the_first_version_see_that_the_file_is_newer(url: str) -> None:
    with open_engine(url).connect() as connection:
        assert connection.execute(sa.select(tables.schema_info.c.version)).scalar() == int(HEAD)
