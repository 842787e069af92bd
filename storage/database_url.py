"""The database's address, without opening it: its default, and the file of a SQLite URL."""

from pathlib import Path

DEFAULT_DATABASE_URL = "sqlite:///surgeproof.db"


def sqlite_path(db_url: str) -> Path | None:
    """The file of a SQLite URL; None for other databases and for memory."""
    scheme, separator, rest = db_url.partition(":///")
    if not separator or scheme.partition("+")[0] != "sqlite":
        return None
    name, _, options = rest.partition("?")
    # A `?` may be a part of the file's name; options are pairs.
    name = name if all("=" in option for option in options.split("&")) else rest
    return Path(name) if name and name != ":memory:" else None
