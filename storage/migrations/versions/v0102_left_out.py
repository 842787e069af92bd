"""Plans of a part of a profile say what they leave out."""

import sqlalchemy as sa
from alembic import op

revision = "0102"
down_revision = "0101"


def upgrade() -> None:
    """Earlier runs are taken as having left out nothing."""
    op.add_column("plans", sa.Column("left_out", sa.Float(), nullable=False, server_default="0"))
