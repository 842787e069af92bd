"""The schema of 0.1.0, where migrations start: `storage.schema` creates a new database whole, not by this."""

revision = "0101"
down_revision = None


def upgrade() -> None:
    """Nothing to do: a database at this revision has all tables."""
