"""Add token traces of rollouts."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "traces",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id"), primary_key=True, nullable=False),
        sa.Column("step", sa.BigInteger, primary_key=True, nullable=False),
        sa.Column("place", sa.Integer, primary_key=True, nullable=False),
        sa.Column("prompt", sa.Text, nullable=False),
        sa.Column("estimator", sa.Text, nullable=False),
        sa.Column("mean", sa.Double),
        sa.Column("n", sa.Integer, nullable=False),
        sa.Column("tokens", sa.JSON, nullable=False),
    )
