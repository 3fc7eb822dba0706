"""Build INSERT … ON CONFLICT DO UPDATE, in both dialects."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from db.schema import Base


def upsert(
    session: Session,
    model: type[Base],
    rows: Sequence[Mapping[str, Any]],
    *,
    change: Collection[str] | None = None,
) -> None:
    """Insert rows; on an existing key, update the columns in `change` (default: all others)."""
    if not rows:
        return
    connection = session.connection()
    table = cast(Table, model.__table__)
    keys = table.primary_key.columns.keys()
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table)
    names = [name for name in rows[0] if name not in keys] if change is None else change
    new = {name: statement.excluded[name] for name in names}
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=new), list(rows))
