"""Creates a new database's schema, upgrades an older one, and refuses a newer one."""

import re

import sqlalchemy as sa

from surgeproof.errors import DatabaseUnusableError
from surgeproof.redaction import shown_url
from surgeproof.storage import tables

HEAD = "0104"
_FIRST = "0101"
"""Schema of the first release; versions before it used 0001 to 0003 for others."""
_MIGRATIONS = "surgeproof.storage:migrations"


def ensure_schema(engine: sa.Engine, *, create: bool) -> None:
    """Bring the database to `HEAD`.

    Args:
        engine: the database.
        create: make the schema in an empty database; off for commands that only read.

    Raises:
        DatabaseUnusableError: it is empty and must not be changed, is another program's, or was written by a newer
            version or by one before the first release.
    """
    with engine.connect() as connection:
        revision, names = _revision(connection), set(sa.inspect(connection).get_table_names())
    if revision == HEAD:
        return
    is_ours = revision is not None and re.fullmatch(r"\d{4}", revision) and "records" in names
    # In PostgreSQL, programs may share a database; a file belongs to one.
    if not is_ours and (revision is not None or (names and engine.dialect.name == "sqlite")):
        raise DatabaseUnusableError(
            f"database {_shown(engine)} holds the tables of another program ({', '.join(sorted(names)[:5])}): "
            "give another one with --db"
        )
    if revision is None:
        if not create:
            raise DatabaseUnusableError(
                f"database {_shown(engine)} holds no runs: run a load test first, or give another one with --db"
            )
        _create(engine)
    elif revision < _FIRST:
        raise DatabaseUnusableError(
            f"database {_shown(engine)} has schema {revision}, written by a version before 0.1.0: "
            "save its runs with that version (runs export) and load them here (runs import), "
            "or give another database with --db"
        )
    elif revision < HEAD:
        _upgrade(engine)
    else:
        raise DatabaseUnusableError(
            f"database {_shown(engine)} has schema {revision}, written by a newer Surgeproof; this version supports "
            f"{HEAD}: upgrade Surgeproof, or give another database with --db"
        )


def _shown(engine: sa.Engine) -> str:
    return shown_url(engine.url.render_as_string(hide_password=False))


def _revision(connection: sa.Connection) -> str | None:
    """The schema's revision; None for an empty database."""
    if "alembic_version" not in sa.inspect(connection).get_table_names():
        return None
    revision: str | None = connection.execute(sa.select(tables.alembic_version.c.version_num)).scalar()
    return revision


def _create(engine: sa.Engine) -> None:
    """Create all tables as they are now, without Alembic, which is slow to import."""
    with engine.begin() as connection:
        tables.metadata.create_all(connection)
        if _revision(connection) is None:
            connection.execute(sa.insert(tables.alembic_version).values(version_num=HEAD))


def _upgrade(engine: sa.Engine) -> None:
    """Run the missing migrations in one transaction; another process may have been faster."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", _MIGRATIONS)
    config.set_main_option("path_separator", "os")
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            # Python's driver opens a transaction for changes of rows only, not of tables.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        config.attributes["connection"] = connection
        if _revision(connection) != HEAD:
            command.upgrade(config, "head")
