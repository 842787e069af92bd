"""Makes a new database's schema, brings an old one up to date, and refuses a newer one."""

import sqlalchemy as sa

from surgeproof.errors import StoreError
from surgeproof.storage import tables

HEAD = "0003"
_FIRST = "0001"


def ensure_schema(engine: sa.Engine) -> None:
    """Leave the database at `HEAD`.

    Raises:
        StoreError: it was written by a newer version.
    """
    with engine.connect() as connection:
        found = _revision(connection)
    if found == HEAD:
        return
    if found is None:
        _create(engine)
    elif found < HEAD:
        _upgrade(engine)
    else:
        name = engine.url.render_as_string(hide_password=True)
        raise StoreError(
            f"database {name} has schema {found}, written by a newer Surgeproof; this one knows {HEAD}: "
            "upgrade Surgeproof, or name another database with --db"
        )


def _revision(connection: sa.Connection) -> str | None:
    """The schema's revision; None for an empty database. The first version kept a number of its own."""
    known = sa.inspect(connection).get_table_names()
    if "alembic_version" in known:
        revision: str | None = connection.execute(sa.select(tables.alembic_version.c.version_num)).scalar()
        if revision is not None:
            return revision
    if "schema_info" in known:
        number = connection.execute(sa.select(tables.schema_info.c.version)).scalar()
        return None if number is None else f"{number:04d}"
    return None


def _create(engine: sa.Engine) -> None:
    """All tables as they are now: Alembic, and its import, are spared."""
    with engine.begin() as connection:
        tables.metadata.create_all(connection)
        if connection.execute(sa.select(tables.alembic_version.c.version_num)).scalar() is None:
            connection.execute(sa.insert(tables.alembic_version).values(version_num=HEAD))
            connection.execute(sa.insert(tables.schema_info).values(version=int(HEAD)))


def _upgrade(engine: sa.Engine) -> None:
    """Run what is missing, all or nothing; another process may have been faster."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "surgeproof.storage:migrations")
    config.set_main_option("path_separator", "os")
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            # Python's driver opens a transaction for changes of rows only, not of tables.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        config.attributes["connection"] = connection
        found = _revision(connection)
        if found == HEAD:
            return
        if "alembic_version" not in sa.inspect(connection).get_table_names():
            command.stamp(config, found or _FIRST)
        command.upgrade(config, "head")
