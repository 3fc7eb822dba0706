"""Read the tracker's rows as plain JSON-able dicts, newest first.

A page starts after the last row of the previous one (`before=`, `after=`), never at an offset, so that the
hundredth page costs as much as the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import sqlalchemy as sa

from db.reads.changes import live_version, structure_version
from db.reads.checkpoints import (
    aliases,
    checkpoint,
    checkpoint_places,
    checkpoints,
    current_checkpoint,
    cycles_behind,
    is_refused,
    project_home,
    projects,
    resolve,
    runs_behind,
    used_cycles_outside,
)
from db.reads.cycles import cycle, cycle_models, cycles
from db.reads.flips import (
    compared,
    compared_scores,
    flips_of_scores,
    ledger,
    ledger_items,
    paired_suites,
)
from db.reads.readonly import select
from db.reads.rows import Row, newest_first, of_cycle, only, rows_of, runs_of
from db.reads.stages import (
    ItemFilter,
    cycle_numbers,
    flip_counts,
    headline_scores,
    item_prompts,
    side_by_side,
    stage_scores,
)
from db.schema import Cycle, Document, Item, Review, Run, Score
from db.session import Database

__all__ = [
    "ItemFilter",
    "aliases",
    "checkpoint",
    "checkpoint_places",
    "checkpoints",
    "chosen_by_questions",
    "compared",
    "compared_scores",
    "current_checkpoint",
    "cycle",
    "cycle_models",
    "cycle_numbers",
    "cycles",
    "cycles_behind",
    "document_totals",
    "documents",
    "flip_counts",
    "flips_of_scores",
    "headline_scores",
    "is_refused",
    "item_prompts",
    "items",
    "ledger",
    "ledger_items",
    "live_version",
    "paired_suites",
    "project_home",
    "projects",
    "resolve",
    "reviews",
    "run",
    "run_ids",
    "runs",
    "runs_behind",
    "scores",
    "scores_under",
    "select",
    "side_by_side",
    "stage_scores",
    "structure_version",
    "unfinished_runs",
    "used_cycles_outside",
]

CONDITIONS = "conditions"  # in the details of a score: hash of all that decides it, beside the checkpoint
RECORDED_IN = "recorded_in"  # in the details of a score that was measured in another run


# Runs ------------------------------------------------------------------------------------------------------


def run(database: Database, run_id: str) -> Row:
    rows = runs_of(database, sa.select(Run).where(Run.id == run_id))
    return only(rows, f"run {run_id} is not recorded: `recover ls runs` lists those that are")


def runs(
    database: Database,
    *,
    kind: str | None = None,
    status: str | None = None,
    parent: str | None = None,
    parents: Sequence[str] | None = None,
    limit: int | None = 50,
) -> list[Row]:
    """Return runs, newest first."""
    query = newest_first(Run, Run.ordinal).where(Run.project == database.project).limit(limit)
    for column, value in ((Run.kind, kind), (Run.status, status), (Run.parent_id, parent)):
        query = query if value is None else query.where(column == value)
    return runs_of(database, query if parents is None else query.where(Run.parent_id.in_(parents)))


def run_ids(database: Database) -> set[str]:
    """Return the ids of all runs of the project."""
    with database.read() as connection:
        return set(connection.scalars(sa.select(Run.id).where(Run.project == database.project)))


def run_of_key(database: Database, key: str, *, parent: str | None = None) -> Row | None:
    """Return the run named `key` under a parent, or at the top."""
    named = Run.project == database.project, Run.parent_id.is_not_distinct_from(parent), Run.key == key
    return next(iter(runs_of(database, sa.select(Run).where(*named))), None)


def chosen_by_questions(database: Database) -> dict[str, set[str]]:
    """Return the checkpoints that a cycle's questions chose among several (`--recover-with`), each with the
    sets of questions (Score.item_set) that it answered as a candidate."""
    made = runs(database, kind="choose", status="done", limit=None)
    chosen = {
        run["id"]: run["result"]["checkpoint"] for run in made if len(run["result"].get("tried") or ()) > 1
    }
    query = sa.select(Run.parent_id, Score.checkpoint_id, Score.item_set).join(Run, Run.id == Score.run_id)
    found: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows_of(database, query.where(Run.parent_id.in_(list(chosen)))):
        if row["checkpoint_id"] == chosen[row["parent_id"]]:
            found[row["checkpoint_id"]].add(row["item_set"])
    return found


def unfinished_runs(database: Database) -> list[Row]:
    """Return the runs that `recover resume` may continue: not done, without a parent, and with a key, which
    a run that was given up has lost; newest first."""
    mine = Run.project == database.project, Run.parent_id.is_(None), Run.status != "done"
    query = newest_first(Run, Run.ordinal).where(*mine, Run.key.is_not(None))
    return runs_of(database, query)


def documents(
    database: Database, run_id: str, *, status: str | None = None, after: str = "", limit: int = 1000
) -> list[Row]:
    """Return a run's corpus manifest by path, optionally of one status; `after` is the last path seen."""
    query = sa.select(Document).where(Document.run_id == run_id, Document.path > after)
    query = query if status is None else query.where(Document.status == status)
    return rows_of(database, query.order_by(Document.path).limit(limit))


def document_totals(database: Database, run_id: str) -> dict[str, Row]:
    """Return the number of documents and tokens of a run's corpus by status (read, skipped)."""
    tokens = sa.cast(sa.func.sum(Document.tokens), sa.BigInteger)  # PostgreSQL sums BIGINT as NUMERIC
    columns = Document.status, sa.func.count().label("n"), tokens.label("tokens")
    query = sa.select(*columns).where(Document.run_id == run_id).group_by(Document.status)
    return {row["status"]: row for row in rows_of(database, query)}


# Scores and items ------------------------------------------------------------------------------------------


def scores(database: Database, *, run_id: str | None = None, checkpoint_id: str | None = None) -> list[Row]:
    """Return the scores that the project measured, of a run or of a checkpoint, newest first."""
    query = sa.select(Score).join(Run, Run.id == Score.run_id).where(Run.project == database.project)
    query = query.order_by(Score.id.desc())
    for column, value in ((Score.run_id, run_id), (Score.checkpoint_id, checkpoint_id)):
        query = query if value is None else query.where(column == value)
    return rows_of(database, query)


def scores_under(
    database: Database, checkpoint_id: str, suite: str, conditions: str, *, run_id: str, others: bool
) -> list[Row]:
    """Return the scores of a suite that one run measured under some conditions, headline first.

    The run is `run_id`, finished or not, else (with `others`) the newest finished one of the project; `cycle`
    is its number where a cycle began it. Copies of another run's scores do not count."""
    its_own = Score.run_id == run_id
    finished = sa.and_(Run.status == "done", Run.project == database.project)
    query = sa.select(Score.__table__, Cycle.number.label("cycle")).join(Run, Run.id == Score.run_id)
    query = query.join(Cycle, of_cycle(), isouter=True).where(
        Score.checkpoint_id == checkpoint_id,
        Score.suite == suite,
        Score.details[CONDITIONS].as_string() == conditions,
        Score.details[RECORDED_IN].as_string().is_(None),
        sa.or_(its_own, finished) if others else its_own,
    )
    rows = rows_of(database, query.order_by(its_own.desc(), Score.id.desc()))
    return [row for row in reversed(rows) if row["run_id"] == rows[0]["run_id"]]


def items(database: Database, score_id: int) -> list[Row]:
    """Return all of a score's items, by key."""
    return rows_of(database, sa.select(Item).where(Item.score_id == score_id).order_by(Item.key))


# Reviews ---------------------------------------------------------------------------------------------------


def reviews(database: Database, *, cycle: int | None = None) -> list[Row]:
    """Return the reviews of all cycles or of one, newest first."""
    query = sa.select(Review).where(Review.project == database.project).order_by(Review.id.desc())
    return rows_of(database, query if cycle is None else query.where(Review.cycle == cycle))
