"""Read metrics: names, latest values, and series downsampled by the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import CTE, JSON, ColumnElement, Connection, Select, func, literal, select
from sqlalchemy.orm import aliased

from db.reads.rows import Row, rows_of
from db.schema import Metric
from db.session import Database

POINT = ("step", "last_step", "value", "low", "high", "special", "at", "n")


def metric_names(database: Database, run_id: str) -> list[str]:
    """Return the names of a run's metrics, sorted."""
    names = _names(run_id)
    with database.read() as connection:
        return list(connection.scalars(select(names.c.name).where(names.c.name.is_not(None))))


def latest_metrics(database: Database, run_id: str) -> list[Row]:
    """Return the newest point of each of a run's metrics: name, step, value, special, at."""
    names = _names(run_id)
    other = aliased(Metric)
    last = (
        select(func.max(other.step))
        .where(other.run_id == run_id, other.name == names.c.name)
        .scalar_subquery()
    )
    query = (
        select(Metric.name, Metric.step, Metric.value, Metric.special, Metric.at)
        .join(names, Metric.name == names.c.name)
        .where(Metric.run_id == run_id, Metric.step == last)
        .order_by(Metric.name)
    )
    return rows_of(database, query)


def last_values(database: Database, run_ids: Sequence[str], name: str) -> dict[str, float | None]:
    """Return the newest value of one metric for each run that has it."""
    steps = (
        select(Metric.run_id, func.max(Metric.step).label("step"))
        .where(Metric.run_id.in_(run_ids), Metric.name == name)
        .group_by(Metric.run_id)
        .subquery()
    )
    newest = (Metric.run_id == steps.c.run_id) & (Metric.step == steps.c.step) & (Metric.name == name)
    with database.read() as connection:
        rows = connection.execute(select(Metric.run_id, Metric.value).join(steps, newest)).all()
    return {row.run_id: row.value for row in rows}


def metric_series(database: Database, run_id: str, name: str, *, points: int = 1000) -> list[Row]:
    """Return a metric in at most `points` stretches of equal length in steps: mean, low and high of each.

    `special` names the worst of a stretch's NaN ("nan") and infinities, which the numbers leave out."""
    here = Metric.run_id == run_id, Metric.name == name
    with database.read() as connection:
        low, high = _range(connection, here)
        if low is None or high is None:
            return []
        query = _stretches(connection, low, high, -(-(high - low + 1) // points), here)
        return [dict(zip(POINT, row, strict=True)) for row in connection.scalars(query) if row[-1]]


def _stretches(
    connection: Connection, low: int, high: int, width: int, here: tuple[ColumnElement[bool], ...]
) -> Select[list[Any]]:
    """Aggregate each stretch by a range scan of the key; GROUP BY would sort all points first."""
    start = _starts(low, high, width)
    array = _array(connection)
    aggregates = (
        func.min(Metric.step),
        func.max(Metric.step),
        func.avg(Metric.value),
        func.min(Metric.value),
        func.max(Metric.value),
        func.max(Metric.special),
        func.max(Metric.at),
        func.count(),
    )
    within = Metric.step.between(start.c.start, start.c.start + width - 1)
    one = select(array(*aggregates, type_=JSON)).where(*here, within).correlate(start).scalar_subquery()
    return select(one).select_from(start).order_by(start.c.start)


def metric_glance(database: Database, run_id: str, name: str, *, points: int = 60) -> list[Row]:
    """Return the first point (step, value) of each stretch of a metric, for a thumbnail.

    The cost does not depend on the number of points; points between are not read."""
    here = Metric.run_id == run_id, Metric.name == name
    with database.read() as connection:
        low, high = _range(connection, here)
        if low is None or high is None:
            return []
        start = _starts(low, high, -(-(high - low + 1) // points))
        point = select(_array(connection)(Metric.step, Metric.value, type_=JSON)).where(*here)
        first = point.where(Metric.step >= start.c.start).order_by(Metric.step).limit(1)
        query = select(first.correlate(start).scalar_subquery()).select_from(start).order_by(start.c.start)
        found = dict(connection.scalars(query).all())
    return [{"step": step, "value": value} for step, value in found.items()]


def _range(connection: Connection, here: tuple[ColumnElement[bool], ...]) -> tuple[int | None, int | None]:
    """Return the lowest and the highest step; each is one look into the key."""
    low = connection.scalar(select(func.min(Metric.step)).where(*here))
    return low, connection.scalar(select(func.max(Metric.step)).where(*here))


def _starts(low: int, high: int, width: int) -> CTE:
    """Return the first step of each stretch."""
    start = select(literal(low).label("start")).cte("stretches", recursive=True)
    return start.union_all(select(start.c.start + width).where(start.c.start + width <= high))


def _array(connection: Connection) -> Any:
    """Pack several columns into one, because a scalar subquery returns one column."""
    return func.json_array if connection.dialect.name == "sqlite" else func.json_build_array


def metrics_by_step(
    database: Database, run_id: str, names: Sequence[str], *, before: int | None = None
) -> dict[int, dict[str, float]]:
    """Return some metrics by step, of all steps or of those below `before`; NaN and infinity are left out."""
    query = select(Metric.step, Metric.name, Metric.value)
    query = query.where(Metric.run_id == run_id, Metric.name.in_(names))
    query = query if before is None else query.where(Metric.step < before)
    found: dict[int, dict[str, float]] = {}
    with database.read() as connection:
        for step, name, value in connection.execute(query):
            if value is not None:
                found.setdefault(step, {})[name] = value
    return {step: found[step] for step in sorted(found)}


def metric_means(
    database: Database, runs: Sequence[str], names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return {run: {name: mean}} of some metrics."""
    here = Metric.run_id.in_(runs), Metric.name.in_(names), Metric.value.is_not(None)
    query = select(Metric.run_id, Metric.name, func.avg(Metric.value)).where(*here)
    found: dict[str, dict[str, float]] = {}
    with database.read() as connection:
        for run, name, mean in connection.execute(query.group_by(Metric.run_id, Metric.name)):
            found.setdefault(run, {})[name] = mean
    return found


def _names(run_id: str) -> CTE:
    """Select distinct names by skipping along the key, without reading every point."""
    first = select(func.min(Metric.name).label("name")).where(Metric.run_id == run_id)
    names = first.cte("names", recursive=True)
    other = aliased(Metric)
    following = select(func.min(other.name)).where(other.run_id == run_id, other.name > names.c.name)
    return names.union_all(select(following.scalar_subquery()).where(names.c.name.is_not(None)))
