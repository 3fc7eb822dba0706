"""Tables of the tracker as plain rows and as CSV."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from db import queries
from db.session import Database

EXPORTS = {
    "checkpoints": "SELECT * FROM checkpoints ORDER BY created_at, id",
    "runs": "SELECT * FROM runs ORDER BY started_at, id",
    "scores": "SELECT * FROM scores ORDER BY id",
    "items": "SELECT s.checkpoint_id, s.suite, i.* FROM items i"
    " JOIN scores s ON s.id = i.score_id ORDER BY s.id, i.key",
}


def rows_of(database: Database, what: str) -> list[dict[str, Any]]:
    return queries.cycles(database) if what == "cycles" else queries.select(database, EXPORTS[what])


def as_csv(rows: list[dict[str, Any]]) -> str:
    """Nested values as JSON; a text that a spreadsheet would run as a formula is quoted."""
    if not rows:
        return ""
    flat = [_flatten(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows([{name: _cell(row.get(name)) for name in names} for row in flat])
    return out.getvalue()


def _flatten(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict) and value:
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _cell(value: Any) -> Any:
    if isinstance(value, (list, dict)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value
