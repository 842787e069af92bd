"""Records say how exact their times are."""

import sqlalchemy as sa
from alembic import op

revision = "0103"
down_revision = "0102"


def upgrade() -> None:
    """Earlier records have no such figures: their times are taken as exact."""
    for name in ("first_token_not_before_at_ns", "max_gap_least_ns", "send_ns"):
        op.add_column("records", sa.Column(name, sa.BigInteger()))
