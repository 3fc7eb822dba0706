"""Curves: which metrics a run has, their last values, and a series thinned out by the database itself."""

from __future__ import annotations

from typing import Any

from sqlalchemy import CTE, func, select
from sqlalchemy.orm import aliased

from db.schema import Metric
from db.session import Database

Rows = list[dict[str, Any]]


def metric_names(database: Database, run_id: str) -> list[str]:
    """The curves of a run, in order of name."""
    names = _names(run_id)
    with database.read() as connection:
        return list(connection.scalars(select(names.c.name).where(names.c.name.is_not(None))))


def latest_metrics(database: Database, run_id: str) -> Rows:
    """The newest point of each curve of a run: name, step, value, special, at."""
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
    with database.read() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def metric_series(
    database: Database, run_id: str, name: str, *, after: int | None = None, points: int = 1000
) -> Rows:
    """A curve as at most `points` stretches of equal length in steps, with the mean, low and high of each.

    `special` names the worst of its NaN ("nan") and infinities, which the numbers leave out. With `after`,
    only what came after that step: a live page asks for nothing twice.
    """
    here = (
        Metric.run_id == run_id,
        Metric.name == name,
        Metric.step > (-(2**63) if after is None else after),
    )
    with database.read() as connection:
        low = connection.scalar(select(func.min(Metric.step)).where(*here))
        high = connection.scalar(select(func.max(Metric.step)).where(*here))
        if low is None or high is None:
            return []
        width = -(-(high - low + 1) // points)
        stretch = ((Metric.step - low) // width).label("stretch")
        query = (
            select(
                func.min(Metric.step).label("step"),
                func.max(Metric.step).label("last_step"),
                func.avg(Metric.value).label("value"),
                func.min(Metric.value).label("low"),
                func.max(Metric.value).label("high"),
                func.max(Metric.special).label("special"),
                func.max(Metric.at).label("at"),
                func.count().label("n"),
            )
            .where(*here)
            .group_by(stretch)
            .order_by(stretch)
        )
        return [dict(row) for row in connection.execute(query).mappings()]


def _names(run_id: str) -> CTE:
    """Distinct names by leaping from one to the next in the key, not by reading every point."""
    first = select(func.min(Metric.name).label("name")).where(Metric.run_id == run_id)
    names = first.cte("names", recursive=True)
    other = aliased(Metric)
    following = select(func.min(other.name)).where(other.run_id == run_id, other.name > names.c.name)
    return names.union_all(select(following.scalar_subquery()).where(names.c.name.is_not(None)))
