"""Read scores and responses of a cycle's three models side by side, for the heat map and the samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    CTE,
    Connection,
    RowMapping,
    Select,
    Text,
    and_,
    cast,
    func,
    literal,
    or_,
    select,
    union_all,
)
from sqlalchemy.orm import aliased

from db.cycle_names import STAGES
from db.reads.cycle_range import CycleRange, runs_of_cycles
from db.reads.cycles import HEADLINE
from db.reads.earlier_documents import EARLIER
from db.reads.rows import Row, rows_of
from db.schema import Cycle, Item, Score
from db.session import Database

CHUNK = 200  # rows per batch where part of a filter runs in Python
MOST_CHUNKS = 25
ANSWER = ("passed", "response", "detail")  # columns of an item that are read at each stage


def stage_scores(
    database: Database, first: int, last: int | None = None, suite: str | None = None
) -> list[Row]:
    """Return the scores of some cycles, sorted by cycle: rows of `scores` with their cycle and stage.

    If a stage was measured twice, the newest score counts; a suite's headline metric comes first. A model of
    two stages has its scores at both."""
    span = CycleRange(database.project, first, first if last is None else last)
    tree = runs_of_cycles(span)
    parts = [_of_stage(tree, span, stage, suite) for stage in STAGES]
    rows = rows_of(database, union_all(*parts))
    newest: dict[tuple[Any, ...], Row] = {}
    for row in sorted(rows, key=lambda row: row["id"]):
        newest[row["cycle"], row["stage"], row["suite"], row["metric"]] = row
    return sorted(
        newest.values(), key=lambda row: (row["cycle"], row["metric"] != HEADLINE.get(row["suite"]))
    )


def headline_scores(database: Database, number: int, suite: str) -> dict[str, Row]:
    """Return by stage the headline score of a suite that a cycle measured."""
    found: dict[str, Row] = {}
    for row in stage_scores(database, number, suite=suite):
        found.setdefault(row["stage"], row)
    return found


def item_prompts(database: Database, number: int) -> dict[str, list[tuple[str, str]]]:
    """Return, by suite, keys and prompts of the items that a cycle's first headline score is of.

    The suites on earlier cycles' documents are left out."""
    tree = runs_of_cycles(CycleRange(database.project, number, number))
    query = select(Score.suite, Score.metric, Score.id).join(tree, Score.run_id == tree.c.run_id)
    query = query.where(Score.suite.not_like(f"{EARLIER}%"))
    scores: dict[str, int] = {}
    prompts: dict[int, list[tuple[str, str]]] = defaultdict(list)
    with database.read() as connection:
        # Sorted here, as in cycles.py: with ORDER BY id, SQLite would scan all scores in id order.
        for suite, metric, score in sorted(connection.execute(query).all(), key=itemgetter(2)):
            if metric == HEADLINE.get(suite, metric):
                scores.setdefault(suite, score)
        items = select(Item.score_id, Item.key, Item.prompt).where(Item.score_id.in_(list(scores.values())))
        for score, key, prompt in connection.execute(items):
            prompts[score].append((key, prompt))
    return {suite: prompts[score] for suite, score in scores.items()}


def _of_stage(tree: CTE, span: CycleRange, stage: str, suite: str | None) -> Select[Any]:
    """Select the scores of one stage's models, measured in their cycles."""
    query = select(tree.c.cycle, literal(stage).label("stage"), *Score.__table__.c)
    query = query.join(Score, Score.run_id == tree.c.run_id).join(Cycle, Cycle.number == tree.c.cycle)
    query = query.where(span.cycles(), Score.checkpoint_id == getattr(Cycle, f"{stage}_id"))
    return query if suite is None else query.where(Score.suite == suite)


def flip_counts(database: Database, scores: Mapping[str, int]) -> dict[tuple[bool | None, ...], int]:
    """Count the prompts per pattern of passed and failed, in the order of `scores` (stage -> score id)."""
    items, query = _side_by_side(scores)
    passed = [item.passed for item in items.values()]
    query = query.with_only_columns(*passed, func.count()).group_by(*passed).order_by(None)
    with database.read() as connection:
        return {tuple(row[:-1]): row[-1] for row in connection.execute(query)}


@dataclass(frozen=True)
class ItemFilter:
    """Which prompts to read; everything empty: all."""

    passed: Mapping[str, bool] = field(default_factory=dict)  # stage -> whether its response passes
    kind: str = ""  # an instruction type, or a kind of probe
    failing: str = ""  # a stage whose response fails that very kind
    search: str = ""  # text in the prompt or a response


def side_by_side(
    database: Database,
    scores: Mapping[str, int],
    only: ItemFilter = ItemFilter(),
    *,
    after: str = "",
    limit: int = 20,
) -> list[Row]:
    """Return {key, prompt, stages: {stage: {passed, response, detail}}} per prompt, by key.

    `scores` maps a stage to a score id; `after` is the last key of the previous page.
    """
    items, query = _side_by_side(scores)
    first = next(iter(items.values()))
    columns = [
        getattr(item, name).label(f"{stage}_{name}") for stage, item in items.items() for name in ANSWER
    ]
    query = _filtered(query, items, only).add_columns(*columns)
    in_python = bool(only.kind and only.failing)
    with database.read() as connection:
        rows = _in_chunks(connection, query, first.key, after, CHUNK if in_python else limit)
        wanted = (
            row for row in rows if not in_python or fails(row[f"{only.failing}_detail"] or {}, only.kind)
        )
        return [
            {
                "key": row["key"],
                "prompt": row["prompt"],
                "stages": {stage: {name: row[f"{stage}_{name}"] for name in ANSWER} for stage in items},
            }
            for row in islice(wanted, limit)
        ]


def _side_by_side(scores: Mapping[str, int]) -> tuple[dict[str, Any], Select[Any]]:
    """Join the items of the first score with those of the other scores by key."""
    items: dict[str, Any] = {stage: aliased(Item) for stage in scores}
    (first, one), *others = items.items()
    query: Select[Any] = select(one.key, one.prompt).where(one.score_id == scores[first])
    for stage, item in others:
        query = query.outerjoin(item, and_(item.score_id == scores[stage], item.key == one.key))
    return items, query.order_by(one.key)


def _filtered(query: Select[Any], items: Mapping[str, Any], only: ItemFilter) -> Select[Any]:
    """Add what the database decides: of a failing response it does not, whether it fails the very kind."""
    for stage, wanted in only.passed.items():
        query = query.where(items[stage].passed == wanted)
    if only.kind:  # in the detail as JSON text, which is the same on every database
        detail = cast(next(iter(items.values())).detail, Text)
        query = query.where(detail.contains(f'"{only.kind}"', autoescape=True))
    if only.failing:
        query = query.where(items[only.failing].passed.is_(False))
    if only.search:
        columns = [column for item in items.values() for column in (item.response, item.prompt)]
        query = query.where(or_(*[column.icontains(only.search, autoescape=True) for column in columns]))
    return query


def _in_chunks(
    connection: Connection, query: Select[Any], key: Any, after: str, size: int
) -> Iterator[RowMapping]:
    """Yield the rows behind the key `after`, of no more than MOST_CHUNKS chunks."""
    for _ in range(MOST_CHUNKS):
        rows = connection.execute(query.where(key > after).limit(size)).mappings().all()
        yield from rows
        if len(rows) < size:
            return
        after = rows[-1]["key"]


def fails(detail: Mapping[str, Any], kind: str) -> bool:
    """Return whether an item fails that instruction type; a probe has one kind and fails as a whole."""
    kinds, strict = detail.get("instructions"), detail.get("strict")
    if not isinstance(kinds, list) or not isinstance(strict, list):
        return True
    return any(name == kind and not ok for name, ok in zip(kinds, strict, strict=False))


def cycle_numbers(database: Database) -> list[int]:
    """Return the numbers of all cycles, oldest first."""
    query = select(Cycle.number).where(Cycle.project == database.project).order_by(Cycle.number)
    with database.read() as connection:
        return list(connection.scalars(query))
