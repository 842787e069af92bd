"""Records as columns for statistics, gaps between arrivals as histograms, and the model of a request."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Nothing that is stored changes; runs of before have rows only, which are read instead."""
    op.add_column("records", sa.Column("model", sa.Text(), nullable=True))
    op.create_table(
        "record_chunks",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("run_id", sa.Integer(), sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
    )
    op.create_index("ix_record_chunks_run", "record_chunks", ["run_id"])
    op.create_table(
        "gap_histograms",
        sa.Column("run_id", sa.Integer(), sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("request_class", sa.Text(), primary_key=True),
        sa.Column("block", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
    )
    op.execute("UPDATE schema_info SET version = 2")
