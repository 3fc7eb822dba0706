"""Create the first tables."""

from functools import partial

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

number = partial(sa.Column, type_=sa.Integer, nullable=False)
big_number = partial(sa.Column, type_=sa.BigInteger)
real = partial(sa.Column, type_=sa.Double)
text = partial(sa.Column, type_=sa.Text, nullable=False)
maybe_text = partial(sa.Column, type_=sa.Text)
json = partial(sa.Column, type_=sa.JSON, nullable=False)


def to(column: str, ondelete: str | None = None) -> sa.ForeignKey:
    return sa.ForeignKey(column, ondelete=ondelete)


def upgrade() -> None:
    runs()
    checkpoints()
    cycles()
    measurements()
    people()


def runs() -> None:
    op.create_table(
        "runs",
        text("id", primary_key=True),
        maybe_text("parent_id", to("runs.id")),
        text("kind"),
        maybe_text("key"),
        text("status"),
        big_number("seed"),
        number("attempts"),
        maybe_text("owner"),
        maybe_text("git_revision"),
        text("started_at"),
        text("heartbeat_at"),
        maybe_text("ended_at"),
        maybe_text("error"),
        json("progress"),
        json("cost"),
        json("result", nullable=True),
        json("config"),
        json("versions"),
    )
    op.create_index("ix_runs_parent_id", "runs", ["parent_id"])
    op.create_index("ix_runs_status", "runs", ["status"])
    op.create_index("runs_newest", "runs", ["started_at", "id"])
    op.create_index("runs_parent_key", "runs", [sa.text("coalesce(parent_id, '')"), "key"], unique=True)
    op.create_table(
        "documents",
        text("run_id", to("runs.id"), primary_key=True),
        text("path", primary_key=True),
        text("status"),
        maybe_text("reason"),
        maybe_text("sha256"),
        maybe_text("encoding"),
        big_number("characters"),
        big_number("tokens"),
    )


def checkpoints() -> None:
    op.create_table(
        "checkpoints",
        text("id", primary_key=True),
        text("path"),
        text("kind"),
        maybe_text("parent_id"),
        maybe_text("base_id"),
        text("sha256"),
        maybe_text("run_id", to("runs.id")),
        text("created_at"),
        json("config"),
    )
    op.create_index("ix_checkpoints_run_id", "checkpoints", ["run_id"])
    op.create_index("checkpoints_newest", "checkpoints", ["created_at", "id"])
    op.create_table(
        "aliases",
        text("name", primary_key=True),
        text("checkpoint_id", to("checkpoints.id")),
        text("moved_at"),
    )
    op.create_table(
        "alias_moves",
        number("id", primary_key=True),
        text("name"),
        text("checkpoint_id", to("checkpoints.id")),
        text("moved_at"),
    )
    op.create_index("ix_alias_moves_name", "alias_moves", ["name"])


def cycles() -> None:
    op.create_table(
        "cycles",
        number("number", primary_key=True, autoincrement=False),
        text("run_id", to("runs.id"), unique=True),
        text("status"),
        maybe_text("clean_id", to("checkpoints.id")),
        maybe_text("midtrained_id", to("checkpoints.id")),
        maybe_text("recovered_id", to("checkpoints.id")),
        text("started_at"),
        maybe_text("ended_at"),
        json("summary"),
    )
    op.create_table(
        "verdicts",
        number("cycle", to("cycles.number"), primary_key=True),
        text("axis", primary_key=True),
        text("outcome"),
        real("difference"),
        real("lower_bound"),
        real("upper_bound"),
        real("margin"),
        number("n", nullable=True),
        number("gained", nullable=True),
        number("lost", nullable=True),
        real("p_value"),
        big_number("needed_n"),
        json("details"),
    )


def measurements() -> None:
    op.create_table(
        "metrics",
        text("run_id", to("runs.id"), primary_key=True),
        text("name", primary_key=True),
        big_number("step", primary_key=True),
        real("value"),
        maybe_text("special"),
        real("at", nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "scores",
        number("id", primary_key=True),
        text("run_id", to("runs.id")),
        maybe_text("checkpoint_id", to("checkpoints.id")),
        text("suite"),
        text("metric"),
        real("value"),
        number("n"),
        real("low"),
        real("high"),
        maybe_text("item_set"),
        text("created_at"),
        json("details"),
    )
    op.create_index(
        "scores_unique",
        "scores",
        ["run_id", sa.text("coalesce(checkpoint_id, '')"), "suite", "metric"],
        unique=True,
    )
    op.create_index("scores_checkpoint", "scores", ["checkpoint_id", "suite"])
    op.create_table(
        "items",
        number("score_id", to("scores.id", ondelete="CASCADE"), primary_key=True),
        text("key", primary_key=True),
        sa.Column("passed", sa.Boolean, nullable=False),
        text("prompt"),
        text("response"),
        json("detail"),
    )


def people() -> None:
    op.create_table(
        "reviews",
        number("id", primary_key=True),
        number("cycle", to("cycles.number")),
        text("decision"),
        text("note"),
        text("reviewer"),
        text("token", unique=True),
        text("at"),
    )
    op.create_index("ix_reviews_cycle", "reviews", ["cycle"])
