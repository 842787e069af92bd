"""The schema: new, upgraded with its data, refused when newer."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from surgeproof.errors import StoreError
from surgeproof.storage import migrations, schema, tables
from surgeproof.storage.queries import get_run
from surgeproof.storage.schema import HEAD
from surgeproof.storage.store import Store, open_engine
from surgeproof.stored_runs import PlanFacts
from tests.integration.storage.examples import RUN

NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = {head!r}


def upgrade():
    op.add_column("runs", sa.Column("colour", sa.Text(), nullable=True))
    op.execute({statement!r})
"""


def differences(engine: sa.Engine) -> list[object]:
    """What Alembic would change to make the database like the tables of the code."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with engine.connect() as connection:
        return list(compare_metadata(MigrationContext.configure(connection), tables.metadata))


def next_version(monkeypatch: pytest.MonkeyPatch, folder: Path, statement: str) -> None:
    """Pretend to be the next version, whose one migration ends with a statement."""
    own = Path(migrations.__file__).parent
    (folder / "versions").mkdir(parents=True)
    for path in (own / "env.py", *own.glob("versions/v*.py")):
        (folder / path.relative_to(own)).write_text(path.read_text())
    (folder / "versions" / "v9999_next.py").write_text(NEXT.format(statement=statement, head=HEAD))
    monkeypatch.setattr(schema, "_MIGRATIONS", str(folder))
    monkeypatch.setattr(schema, "HEAD", "9999")


def columns(url: str) -> set[str]:
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool)
    return {column["name"] for column in sa.inspect(engine).get_columns("runs")}


def test_a_new_database_has_the_schema_of_the_code(url: str) -> None:
    engine = open_engine(url)
    assert differences(engine) == []
    with engine.connect() as connection:
        assert connection.execute(sa.select(tables.alembic_version.c.version_num)).scalars().all() == [HEAD]


def test_an_older_database_is_upgraded_and_keeps_its_runs(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = Store(url).create_run(RUN)
    next_version(monkeypatch, tmp_path / "migrations", "UPDATE runs SET colour = 'red'")
    assert get_run(open_engine(url), run_id).uid == RUN.uid
    assert "colour" in columns(url)
    assert get_run(open_engine(url), run_id).uid == RUN.uid


def test_a_database_of_0101_is_upgraded_and_its_plans_leave_out_nothing(url: str) -> None:
    store = Store(url)
    run_id = store.create_run(RUN)
    store.save_plan(run_id, b"packed", PlanFacts("d", 7, 3, 0.5))
    with store.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE plans DROP COLUMN left_out")
        for name in (
            "first_token_not_before_at_ns", "max_gap_least_ns", "send_ns", "items", "task", "turn",
            "planned_cached_tokens",
        ):  # fmt: skip
            connection.exec_driver_sql(f"ALTER TABLE records DROP COLUMN {name}")
        for name in ("run_delay_ns", "throttled_ns", "steal_ns"):
            connection.exec_driver_sql(f"ALTER TABLE health DROP COLUMN {name}")
        connection.execute(sa.update(tables.alembic_version).values(version_num="0101"))
    store.close()
    engine = open_engine(url)
    assert get_run(engine, run_id).plan == PlanFacts("d", 7, 3, 0.0)
    assert differences(engine) == []


def test_a_migration_that_fails_leaves_the_database_as_it_was(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = Store(url).create_run(RUN)
    with monkeypatch.context() as patch:
        next_version(patch, tmp_path / "migrations", "UPDATE no_such_table SET x = 1")
        with pytest.raises(StoreError, match="no_such_table"):
            open_engine(url)
    assert "colour" not in columns(url)
    assert get_run(open_engine(url), run_id).uid == RUN.uid


@pytest.mark.parametrize(
    ("revision", "message"),
    [
        ("9998", "schema 9998, written by a newer Surgeproof"),
        ("0001", "schema 0001, written by a version before 0.1.0"),
    ],
)
def test_a_database_of_another_version_is_refused(url: str, revision: str, message: str) -> None:
    store = Store(url)
    with store.engine.begin() as connection:
        connection.execute(sa.update(tables.alembic_version).values(version_num=revision))
    store.close()
    with pytest.raises(StoreError, match=message):
        open_engine(url)
