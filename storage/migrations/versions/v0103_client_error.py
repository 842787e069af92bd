"""Records say how exact their times are, health samples what the host took."""

import sqlalchemy as sa
from alembic import op

revision = "0103"
down_revision = "0102"


def upgrade() -> None:
    """Earlier records have no such figures: their times are taken as exact, and nothing as taken."""
    for name in ("first_token_not_before_at_ns", "max_gap_least_ns", "send_ns"):
        op.add_column("records", sa.Column(name, sa.BigInteger()))
    for name in ("run_delay_ns", "throttled_ns", "steal_ns"):
        op.add_column("health", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
