"""Records say which conversation or task they are a part of, and how many items their answer holds."""

import sqlalchemy as sa
from alembic import op

revision = "0104"
down_revision = "0103"


def upgrade() -> None:
    """Earlier records are of requests on their own."""
    for name, kind in (
        ("items", sa.Integer()),
        ("task", sa.BigInteger()),
        ("turn", sa.Integer()),
        ("planned_cached_tokens", sa.BigInteger()),
    ):
        op.add_column("records", sa.Column(name, kind))
