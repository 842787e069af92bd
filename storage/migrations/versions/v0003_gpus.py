"""Samples of GPUs beside a run, and calibrations of the estimator by GPU and model."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Only new tables."""
    op.create_table(
        "gpu_samples",
        sa.Column("run_id", sa.Integer(), sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("gpu", sa.Text(), primary_key=True),
        sa.Column("at_ns", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("sample", sa.Text(), nullable=False),
    )
    op.create_table(
        "gpu_calibrations",
        sa.Column("gpu", sa.Text(), primary_key=True),
        sa.Column("model", sa.Text(), primary_key=True),
        sa.Column("fit", sa.Text(), nullable=False),
    )
    op.execute("UPDATE schema_info SET version = 3")
