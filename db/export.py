"""Export a project's rows of any table as CSV, JSON or Parquet in constant memory.

Nested values become separate columns (`cost.seconds`), lists become JSON in one cell. A first pass over the
rows collects column names and types; both passes read the same snapshot of the database.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from db import schema
from db.errors import BadRequest
from db.reads.cycles import whole_cycles
from db.redact import redact
from db.session import Database

FORMATS = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
}
AT_ONCE = 2000  # rows per batch
FEWER_AT_ONCE = {"cycles": 50, "items": 1000, "traces": 100}  # of tables whose rows are large
NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")  # which runs nothing, signed or not
# Start of a cell that a spreadsheet would run: a sign, also full-width, after ignored characters.
FORMULA = re.compile(
    "[\t\r\n]|[\\s\x00-\x20\x7f-\xa0\xad\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]*[=+@|%＝＋＠｜％−－-]"
)

Row = dict[str, Any]
Source = Callable[[], Iterator[Row]]  # can be iterated more than once

ORDERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "checkpoints": (schema.Checkpoint, ("created_at", "id")),
    "runs": (schema.Run, ("ordinal", "id")),
    "scores": (schema.Score, ("id",)),
    "items": (schema.Item, ("score_id", "key")),
    "metrics": (schema.Metric, ("run_id", "name", "step")),
    "traces": (schema.Trace, ("run_id", "step", "place")),
    "verdicts": (schema.Verdict, ("cycle", "axis")),
    "reviews": (schema.Review, ("id",)),
    "documents": (schema.Document, ("run_id", "path")),
    "aliases": (schema.Alias, ("name",)),
    "alias_moves": (schema.AliasMove, ("id",)),
}
TABLES = ("cycles", *ORDERS)


def export(database: Database, table: str, kind: str) -> Generator[bytes]:
    """Yield the project's rows of a table as a file in chunks, secrets redacted; `cycles` are `recover show`
    documents."""
    if table not in TABLES:
        raise BadRequest(f"no table is called {table!r}: choose one of {', '.join(TABLES)}")
    if kind not in FORMATS:
        raise BadRequest(f"no format is called {kind!r}: choose one of {', '.join(FORMATS)}")
    at_once = FEWER_AT_ONCE.get(table, AT_ONCE)
    writers: dict[str, Callable[[Source], Iterator[bytes]]] = {
        "csv": lambda source: as_csv(source, at_once),
        "json": as_json,
        "parquet": lambda source: as_parquet(source, at_once),
    }

    def rows() -> Iterator[Row]:
        if table == "cycles":
            return whole_cycles(connection, database.project, at_once)
        return _rows(connection, _query(table, database.project), at_once)

    with database.read() as connection:
        yield from writers[kind](lambda: map(redact, rows()))


def _query(table: str, project: str) -> sa.Select[Any]:
    """Select a project's rows: its own, those of its runs, and the checkpoints that it made or holds."""
    entity, order = ORDERS[table]
    query = sa.select(entity.__table__).order_by(*(getattr(entity, name) for name in order))
    runs = sa.select(schema.Run.id).where(schema.Run.project == project)
    if table == "items":
        of_score = schema.Score.checkpoint_id, schema.Score.suite
        query = query.add_columns(*of_score).join(schema.Score, schema.Score.id == schema.Item.score_id)
        return query.where(schema.Score.run_id.in_(runs))
    if table == "checkpoints":
        place = schema.CheckpointPlace
        held = sa.select(place.checkpoint_id).where(place.project == project)
        return query.where(schema.Checkpoint.id.in_(held) | schema.Checkpoint.run_id.in_(runs))
    mine = entity.project == project if hasattr(entity, "project") else entity.run_id.in_(runs)
    return query.where(mine)


def _rows(connection: Connection, query: sa.Select[Any], at_once: int) -> Iterator[Row]:
    options = {"yield_per": at_once}  # stream rows from a server too
    for row in connection.execute(query, execution_options=options).mappings():
        yield dict(row)


# Rows -> bytes ----------------------------------------------------------------------------------------------


def as_json(source: Source) -> Iterator[bytes]:
    """Serialize as one JSON array; nested values stay nested."""
    yield b"["
    for number, row in enumerate(source()):
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=str)
        yield f"{',' if number else ''}\n{text}".encode()
    yield b"\n]\n"


def as_csv(source: Source, at_once: int = AT_ONCE) -> Iterator[bytes]:
    """Quote every cell; prefix an apostrophe to text that a spreadsheet would run as a formula."""
    names = list(columns(source()))
    out = io.StringIO()
    if not names:
        return
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow([_cell(name) for name in names])
    for rows in _batches(source(), at_once):
        for row in map(flatten, rows):
            writer.writerow([_cell(row.get(name)) for name in names])
        yield out.getvalue().encode()
        out.seek(0)
        out.truncate()


def as_parquet(source: Source, at_once: int = AT_ONCE) -> Iterator[bytes]:
    """Serialize integer, number and boolean columns as such; any other column is text."""
    import pyarrow
    from pyarrow import parquet

    kinds = {int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    types = columns(source())
    layout = pyarrow.schema([(name, kinds.get(kind, pyarrow.string())) for name, kind in types.items()])
    sink = _Sink()
    with parquet.ParquetWriter(pyarrow.PythonFile(sink, "w"), layout) as writer:
        for rows in _batches(source(), at_once):
            flat = [flatten(row) for row in rows]
            arrays = {
                name: pyarrow.array([_typed(row.get(name), kind) for row in flat], layout.field(name).type)
                for name, kind in types.items()
            }
            writer.write_table(pyarrow.table(arrays, layout))
            yield sink.taken()
    yield sink.taken()


def columns(rows: Iterable[Row]) -> dict[str, type]:
    """Return every column of the flattened rows, in order of appearance, with its common value type."""
    found: dict[str, set[type]] = {}
    for row in rows:
        for name, value in flatten(row).items():
            kinds = found.setdefault(name, set())
            if value is not None:
                kinds.add(type(value))
    return {name: _common(kinds) for name, kinds in found.items()}


def _common(kinds: set[type]) -> type:
    if len(kinds) == 1:
        return kinds.pop()
    return float if kinds == {int, float} else str


def flatten(row: Row, prefix: str = "") -> Row:
    """Flatten nested keys: {"cost": {"seconds": 1}} -> {"cost.seconds": 1}."""
    flat: Row = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _cell(value: Any) -> Any:
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and FORMULA.match(value) and not NUMBER.fullmatch(value):
        return "'" + value
    return value


def _typed(value: Any, kind: type) -> Any:
    if value is None or kind in (int, float, bool):
        return value if kind is not float or value is None else float(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _batches(rows: Iterator[Row], at_once: int) -> Iterator[list[Row]]:
    while batch := list(itertools.islice(rows, at_once)):
        yield batch


class _Sink:
    """A write-only buffer whose content is taken in chunks."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        self._size += len(self._parts[-1])
        return len(self._parts[-1])

    def tell(self) -> int:
        return self._size

    def taken(self) -> bytes:
        parts = self._parts
        self._parts = []
        return b"".join(parts)

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False
