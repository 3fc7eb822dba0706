"""Add projects: aliases, cycle numbers and runs belong to one of several homes in a database.

Existing rows join the project "default", and runs are numbered in order of their start. SQLite cannot alter a
primary key, so four small tables are rebuilt.
"""

from functools import partial
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

DEFAULT = sa.text("'default'")
number = partial(sa.Column, type_=sa.Integer, nullable=False)
real = partial(sa.Column, type_=sa.Double)
text = partial(sa.Column, type_=sa.Text, nullable=False)
maybe_text = partial(sa.Column, type_=sa.Text)
json = partial(sa.Column, type_=sa.JSON, nullable=False)
project = partial(text, "project", server_default=DEFAULT)


def upgrade() -> None:
    op.create_table("projects", text("name", primary_key=True), text("home"), text("created_at"))
    op.create_table(
        "checkpoint_places",
        text("checkpoint_id", sa.ForeignKey("checkpoints.id"), primary_key=True),
        text("project", primary_key=True),
        text("path"),
    )
    op.execute("INSERT INTO checkpoint_places SELECT id, 'default', path FROM checkpoints")
    op.add_column("alias_moves", project())
    runs()
    aliases, reviews = taken("aliases"), taken("reviews")
    cycles, verdicts = taken("cycles", "summary"), taken("verdicts", "details")
    for name in ("aliases", "verdicts", "reviews", "cycles"):
        op.drop_table(name)
    for table, rows in ((_aliases(), aliases), (_cycles(), cycles), (_verdicts(), verdicts)):
        op.bulk_insert(table, rows)
    op.bulk_insert(_reviews(), reviews)
    op.create_index("reviews_cycle", "reviews", ["project", "cycle"])
    if op.get_bind().dialect.name == "postgresql" and reviews:
        op.execute("SELECT setval(pg_get_serial_sequence('reviews', 'id'), (SELECT max(id) FROM reviews))")


def taken(name: str, *documents: str) -> list[dict[str, Any]]:
    """Return all rows of a small table; `documents` are its JSON columns."""
    query = sa.text(f"SELECT * FROM {name}").columns(**dict.fromkeys(documents, sa.JSON))
    return [dict(row) for row in op.get_bind().execute(query).mappings()]


def runs() -> None:
    op.add_column("runs", project())
    op.add_column("runs", sa.Column("ordinal", sa.BigInteger, nullable=False, server_default=sa.text("0")))
    op.execute(
        "UPDATE runs SET ordinal = (SELECT started.n FROM "
        "(SELECT id, row_number() OVER (ORDER BY started_at, id) AS n FROM runs) AS started "
        "WHERE started.id = runs.id)"
    )
    op.drop_index("runs_parent_key", "runs")
    parent = sa.text("coalesce(parent_id, '')")
    op.create_index("runs_parent_key", "runs", ["project", parent, "key"], unique=True)
    op.drop_index("runs_newest", "runs")
    op.create_index("runs_newest", "runs", ["project", "ordinal", "id"])


def _aliases() -> sa.Table:
    return op.create_table(
        "aliases",
        project(primary_key=True),
        text("name", primary_key=True),
        text("checkpoint_id", sa.ForeignKey("checkpoints.id")),
        text("moved_at"),
    )


def _cycles() -> sa.Table:
    return op.create_table(
        "cycles",
        project(primary_key=True),
        number("number", primary_key=True, autoincrement=False),
        text("run_id", sa.ForeignKey("runs.id"), unique=True),
        text("status"),
        maybe_text("clean_id", sa.ForeignKey("checkpoints.id")),
        maybe_text("midtrained_id", sa.ForeignKey("checkpoints.id")),
        maybe_text("recovered_id", sa.ForeignKey("checkpoints.id")),
        text("started_at"),
        maybe_text("ended_at"),
        json("summary"),
    )


def _verdicts() -> sa.Table:
    return op.create_table(
        "verdicts",
        project(primary_key=True),
        number("cycle", primary_key=True, autoincrement=False),
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
        sa.Column("needed_n", sa.BigInteger),
        json("details"),
        sa.ForeignKeyConstraint(("project", "cycle"), ("cycles.project", "cycles.number")),
    )


def _reviews() -> sa.Table:
    return op.create_table(
        "reviews",
        number("id", primary_key=True),
        project(),
        number("cycle"),
        text("decision"),
        text("note"),
        text("reviewer"),
        text("token", unique=True),
        text("at"),
        sa.ForeignKeyConstraint(("project", "cycle"), ("cycles.project", "cycles.number")),
    )
