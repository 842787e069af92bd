"""The database's address, without opening it: its default, and the file of a SQLite URL."""

from pathlib import Path

DEFAULT_DATABASE_URL = "sqlite:///surgeproof.db"


def sqlite_path(db_url: str) -> Path | None:
    """The file of a SQLite URL; None for other databases and for memory."""
    scheme, separator, rest = db_url.partition(":///")
    if not separator or scheme.partition("+")[0] != "sqlite":
        return None
    return Path(rest) if rest and rest != ":memory:" else None
