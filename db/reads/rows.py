"""Read rows of a query as plain dicts: all of them, or the only one."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import aliased

from db.errors import NotFound
from db.reads.changes import stalled
from db.schema import Base, Cycle, Run
from db.session import Database

Row = dict[str, Any]


def rows_of(database: Database, query: sa.Executable) -> list[Row]:
    """Return rows as dicts, for a query of columns or of an entity."""
    with database.read() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def runs_of(database: Database, query: sa.Executable) -> list[Row]:
    """Return runs as dicts, each with whether its process is gone."""
    rows = rows_of(database, query)
    for row in rows:
        row["stalled"] = stalled(row["status"], row["heartbeat_at"])
    return rows


def method_of(config: Row | None) -> Any:
    """Return the method that a run's settings name; None where they name none."""
    return ((config or {}).get("settings") or {}).get("method")


def of_cycle() -> sa.ColumnElement[bool]:
    """Return the SQL condition that a cycle began a run, itself or by one of its stages that runs others."""
    stage = aliased(Run)
    above = sa.select(stage.parent_id).where(stage.id == Run.parent_id).scalar_subquery()
    return Cycle.run_id.in_([Run.parent_id, above])


def newest_first(model: type[Base], moment: Any) -> sa.Select[Any]:
    """Select the rows of a table, the newest first."""
    table = model.__table__
    return sa.select(table).order_by(moment.desc(), table.c.id.desc())


def only(rows: list[Row], otherwise: str) -> Row:
    if not rows:
        raise NotFound(otherwise)
    return rows[0]
