"""Databases that are not ours: nothing is created in them, and the sentence says what they are."""

import hashlib
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa

from surgeproof.errors import ConfigError, DatabaseUnusableError
from surgeproof.exit_codes import ExitCode
from surgeproof.storage.queries import list_runs
from surgeproof.storage.store import Store, open_engine


def foreign(path: Path, *statements: str) -> str:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    return f"sqlite:///{path}"


FOREIGN = (
    ("CREATE TABLE notes (text)",),
    (
        "CREATE TABLE alembic_version (version_num)",
        "INSERT INTO alembic_version VALUES ('3f9a1c')",
        "CREATE TABLE a (b)",
    ),
    ("CREATE TABLE alembic_version (version_num)", "INSERT INTO alembic_version VALUES ('0102')"),
)


@pytest.mark.parametrize("statements", FOREIGN)
@pytest.mark.parametrize("create", [False, True])
def test_a_file_of_another_program_is_left_as_it_is(statements: tuple[str, ...], create: bool, tmp_path: Path) -> None:
    url = foreign(tmp_path / "other.db", *statements)
    before = hashlib.sha256((tmp_path / "other.db").read_bytes()).digest()
    with pytest.raises(DatabaseUnusableError, match="another program") as caught:
        open_engine(url, create=create)
    assert caught.value.exit_code == ExitCode.USAGE
    if not create:
        assert hashlib.sha256((tmp_path / "other.db").read_bytes()).digest() == before
        assert [path.name for path in tmp_path.iterdir()] == ["other.db"]
    with sqlite3.connect(tmp_path / "other.db") as connection:
        names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert "runs" not in names


def test_an_empty_database_is_not_filled_by_reading(url: str) -> None:
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect():
        pass
    if url.startswith("sqlite"):
        Path(url.removeprefix("sqlite:///")).touch()
    with pytest.raises(DatabaseUnusableError, match="holds no runs"):
        open_engine(url, create=False)
    assert sa.inspect(engine).get_table_names() == []
    engine.dispose()
    Store(url).close()
    assert list_runs(open_engine(url, create=False)) == []


def test_a_database_of_a_kind_that_is_not_supported_is_told() -> None:
    with pytest.raises(ConfigError, match=r"write sqlite:///FILE or postgresql://HOST/NAME"):
        open_engine("mysql://h/x")
