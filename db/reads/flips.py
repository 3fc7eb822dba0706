"""Read flips: items that one checkpoint passes and another fails, within and across cycles.

Items are paired by key, and only between scores over the same set of prompts (scores.item_set), or, of
earlier cycles' documents, on what both were asked; a question whose accepted answers, instructions,
arguments or target have changed in between is left out. If a checkpoint was scored twice in the project, the
newest score counts; inside a cycle, the newest of that cycle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import aliased

from db.cycle_names import IFEVAL, STAGES
from db.errors import NotFound
from db.reads.cycle_range import CycleRange, runs_of_cycles
from db.reads.earlier_documents import EARLIER
from db.reads.rows import Row, rows_of
from db.schema import Cycle, Item, Run, Score
from db.session import Database

# Stages compared in a cycle: before, after, and how many cycles back the one before is.
TRANSITIONS = (
    ("clean", "midtrained", 0),
    ("midtrained", "recovered", 0),
    ("clean", "recovered", 0),
    ("recovered", "recovered", 1),
)
PREVIOUS = "previous"  # a transition's name for the previous cycle's recovered model
JUDGED_BY = ("answers", "instructions", "target")  # in an item's details: what decides whether it passes
JUDGED_BY_TOO = ("arguments", "judged_by")  # as well; older scores do not name them


@dataclass(frozen=True)
class Transition:
    """The items before and after a transition, joined by key over all cycles asked for."""

    query: sa.Select[Any]
    keys: tuple[Any, ...]  # columns: cycle, suite, metric, names of the stages before and after
    before: Any
    after: Any


# Two checkpoints -------------------------------------------------------------------------------------------


def compared(database: Database, a: str, b: str, *, suite: str | None = None) -> list[Row]:
    """Return one row per suite and metric on which both checkpoints were scored.

    Columns: suite, metric, item_set, score_a, score_b, value_a, value_b, mode_a, mode_b, notes_a, notes_b
    (see `paired_suites`), n, gained (fail -> pass), lost (pass -> fail), stale (of the lost: back to the old
    answer of a changed fact). By suite, headline metric first; values on earlier documents are of the n."""
    one, other = aliased(Item), aliased(Item)
    found = []
    for pair in _paired_scores(database, a, b, suite):
        joined = _join_items(pair["score_a"], pair["score_b"], one, other)
        columns = (sa.func.count().label("n"), *_flips_of(one, other), *_shares_of(pair, one, other))
        with database.read() as connection:
            counted = joined.with_only_columns(*columns).order_by(None)  # PostgreSQL sorts no lone count
            row = connection.execute(counted).mappings().one()
        found.append(pair | dict(row))
    return found


def paired_suites(database: Database, a: str, b: str, *, suite: str | None = None) -> list[Row]:
    """Return what two checkpoints are compared on: a row per suite and metric on which both were scored.

    Columns: suite, metric, item_set, pairs (of items), modes (how each was asked: most new tokens, template
    arguments, temperature ...; None where it was not recorded), settings (of the later one's evaluation),
    notes (what was noted as each was scored, such as prompts that were left out). IFEval first.

    Suites on earlier cycles' documents, of which there may be hundreds, are left out unless one is named or
    there is no other; so is a suite of which every question's accepted answers have changed."""
    scored = _paired_scores(database, a, b, suite)
    own = [row for row in scored if not row["suite"].startswith(EARLIER)]
    suites = [
        {
            "suite": row["suite"],
            "metric": row["metric"],
            "item_set": row["item_set"],
            "modes": (row["mode_a"], row["mode_b"]),
            "settings": _settings_of(database, max(row["score_a"], row["score_b"])),
            "notes": [*(row["notes_a"] or ()), *(row["notes_b"] or ())],
            "pairs": _pairs_of(database, row),
        }
        for row in own or scored
    ]
    found = [suite for suite in suites if suite["pairs"]]
    return sorted(found, key=lambda row: row["suite"] != IFEVAL)


def _settings_of(database: Database, score: int) -> Row:
    """Return the settings with which the evaluation began that recorded a score."""
    query = sa.select(Run.config).join(Score, Score.run_id == Run.id).where(Score.id == score)
    (row,) = rows_of(database, query)
    settings: Row | None = (row["config"] or {}).get("settings")
    return settings or {}


def _pairs_of(database: Database, scored: Row) -> list[Row]:
    one, other = aliased(Item), aliased(Item)
    passed_a, passed_b = one.passed.label("passed_a"), other.passed.label("passed_b")
    columns = (one.key, one.prompt, passed_a, passed_b, *_answered(one, other))
    joined = _join_items(scored["score_a"], scored["score_b"], one, other)
    own = [one.detail[name].as_float().label(f"{name}_a") for name in ("confidence", "value")]
    # Of multiple choice, and of lm-eval's tasks; None elsewhere.
    return rows_of(database, joined.with_only_columns(*columns, *own, other.detail.label("detail_b")))


def compared_scores(database: Database, a: str, b: str, suite: str, metric: str = "") -> tuple[int, int]:
    """Return both checkpoints' newest scores on the same prompts: a suite's headline, or a metric."""
    found = [row for row in _paired_scores(database, a, b, suite) if metric in ("", row["metric"])]
    if not found:
        raise NotFound(
            f"{a} and {b} were never scored on the same {suite} prompts: run `recover eval` on both"
        )
    return found[0]["score_a"], found[0]["score_b"]


def flips_of_scores(
    database: Database,
    score_a: int,
    score_b: int,
    *,
    direction: str | None = None,
    after: str = "",
    limit: int = 100,
) -> list[Row]:
    """Return the prompts that only one of two scores over one set passes, with both responses.

    `direction`: "gained" (only b passes) or "lost" (only a passes); `after` is the last key of the previous
    page."""
    one, other = aliased(Item), aliased(Item)
    columns = [one.key, one.prompt, _direction(other)]
    for name in ("passed", "response", "detail"):
        columns += [getattr(one, name).label(f"{name}_a"), getattr(other, name).label(f"{name}_b")]
    columns += _answered(one, other)
    query = _join_items(score_a, score_b, one, other).with_only_columns(*columns)
    query = query.where(one.passed != other.passed, one.key > after).limit(limit)
    return rows_of(
        database, query if direction is None else query.where(other.passed == (direction == "gained"))
    )


def _paired_scores(database: Database, a: str, b: str, suite: str | None) -> list[Row]:
    """Return both checkpoints' newest scores of the project per suite and metric, headline first: over one
    item set, of earlier cycles' documents over any.

    An evaluation records a suite's headline before its other metrics."""
    one, other = aliased(Score), aliased(Score)
    columns: list[Any] = [one.suite, one.metric, one.item_set]
    for side, score in (("a", one), ("b", other)):
        columns += [score.id.label(f"score_{side}"), score.value.label(f"value_{side}")]
        columns += [score.details[name].label(f"{name}_{side}") for name in ("mode", "notes")]
    query = sa.select(*columns).join(other, _comparable(one, other))
    query = query.where(one.checkpoint_id == a, other.checkpoint_id == b)
    for score in (one, other):
        run = aliased(Run)
        query = query.join(run, sa.and_(run.id == score.run_id, run.project == database.project))
    query = query.order_by(one.suite, other.id.desc(), one.id.desc())
    newest: dict[tuple[str, str], Row] = {}
    first: dict[tuple[str, str], int] = {}  # recorded score of a metric
    for row in rows_of(database, query if suite is None else query.where(one.suite == suite)):
        name = (row["suite"], row["metric"])
        newest.setdefault(name, row)
        first[name] = row["score_b"]  # the rows run from the newest to the first
    return [newest[name] for name in sorted(newest, key=lambda name: (name[0], first[name]))]


def _join_items(score_a: int, score_b: int, one: Any, other: Any) -> sa.Select[Any]:
    joined = sa.select(one.key).join(other, sa.and_(other.score_id == score_b, _same_question(one, other)))
    return joined.where(one.score_id == score_a).order_by(one.key)


# Cycles ----------------------------------------------------------------------------------------------------


def ledger(database: Database, *, cycle: int | None = None, suite: str | None = None) -> list[Row]:
    """Count the flipped items at each transition of every cycle, or of one.

    Columns: cycle, suite, metric, before, after, n, gained, lost, stale (as in `compared`). `before` is
    "previous" for the recovered model of the previous cycle."""
    counts = []
    for one in _transitions(database.project, cycle, suite):
        columns = (*one.keys, sa.func.count().label("n"), *_flips_of(one.before, one.after))
        counts.append(one.query.with_only_columns(*columns).group_by(*one.keys))
    return _in_order(database, counts)


def ledger_items(
    database: Database,
    *,
    cycle: int | None = None,
    suite: str | None = None,
    direction: str | None = None,
    limit: int = 1000,
) -> list[Row]:
    """Return the flipped items: cycle, suite, metric, before, after, key, direction, prompt, responses.

    response_a is the response before the transition, response_b the one after it; answered_a and answered_b
    say which answer they give to a changed fact (new, old, neither; None elsewhere)."""
    found = []
    for one in _transitions(database.project, cycle, suite):
        before, after = one.before, one.after
        columns = (
            *one.keys,
            before.key,
            _direction(after),
            before.prompt,
            before.response.label("response_a"),
            after.response.label("response_b"),
            *_answered(before, after),
        )
        query = one.query.with_only_columns(*columns).where(before.passed != after.passed)
        if direction is not None:
            query = query.where(after.passed == (direction == "gained"))
        found.append(query.order_by(*one.keys[:3], before.key).limit(limit))
    return _in_order(database, found)[:limit]


def _transitions(project: str, cycle: int | None, suite: str | None) -> list[Transition]:
    """Build every transition, of one cycle and one suite where they are given."""
    whole = CycleRange(project, 0, 2**31 - 1)
    newest = _newest_scores(whole if cycle is None else CycleRange(project, max(cycle - 1, 1), cycle))
    return [_transition(newest, stages, cycle, suite) for stages in TRANSITIONS]


def _transition(
    newest: sa.CTE, stages: tuple[str, str, int], cycle: int | None, suite: str | None
) -> Transition:
    """Join the newest scores of two stages that may be compared, then their items."""
    before, after, back = stages
    old, new = newest.alias(), newest.alias()
    old_item, new_item = aliased(Item), aliased(Item)
    query = (
        sa.select(new.c.cycle)
        .select_from(new)
        .join(old, sa.and_(old.c.cycle == new.c.cycle - back, _comparable(old.c, new.c)))
        .join(old_item, old_item.score_id == old.c.score_id)
        .join(new_item, sa.and_(new_item.score_id == new.c.score_id, _same_question(old_item, new_item)))
        .where(old.c.stage == before, new.c.stage == after)
    )
    if suite is not None:
        query = query.where(new.c.suite == suite)
    if cycle is not None:
        query = query.where(new.c.cycle == cycle)
    keys = (
        new.c.cycle,
        new.c.suite,
        new.c.metric,
        sa.literal(PREVIOUS if back else before).label("before"),
        sa.literal(after).label("after"),
    )
    return Transition(query, keys, old_item, new_item)


def _newest_scores(span: CycleRange) -> sa.CTE:
    """Select the newest score of each cycle and stage: cycle, stage, suite, metric, item_set, score_id."""
    tree = runs_of_cycles(span)
    parts = []
    for stage in STAGES:
        checkpoint = getattr(Cycle, f"{stage}_id")
        keys = (tree.c.cycle, sa.literal(stage).label("stage"), Score.suite, Score.metric, Score.item_set)
        query = sa.select(*keys, sa.func.max(Score.id).label("score_id")).select_from(tree)
        query = query.join(Score, Score.run_id == tree.c.run_id).join(Cycle, Cycle.number == tree.c.cycle)
        parts.append(query.where(span.cycles(), Score.checkpoint_id == checkpoint).group_by(*keys))
    return sa.union_all(*parts).cte("newest")


def _in_order(database: Database, queries: list[sa.Select[*tuple[Any, ...]]]) -> list[Row]:
    rows = [row for query in queries for row in rows_of(database, query)]
    return sorted(rows, key=lambda row: (row["cycle"], row["suite"], row["metric"]))


# Small helpers ---------------------------------------------------------------------------------------------


def _comparable(one: Any, other: Any) -> Any:
    """Require one suite and metric, over one item set; of earlier cycles' documents over any two."""
    asked = sa.or_(one.item_set == other.item_set, one.suite.startswith(EARLIER))
    return sa.and_(one.suite == other.suite, one.metric == other.metric, asked)


def _same_question(one: Any, other: Any) -> Any:
    """Require one key and prompt, judged by the same: the accepted answers of a question about documents, an
    IFEval prompt's instructions and arguments, the target of a row of an lm-eval task."""
    named = [(_named(one, name), _named(other, name)) for name in JUDGED_BY]
    later = [(_named(one, name), _named(other, name)) for name in JUDGED_BY_TOO]
    return sa.and_(
        one.key == other.key,
        one.prompt == other.prompt,
        *(before.is_not_distinct_from(after) for before, after in named),
        *(sa.or_(before == after, before.is_(None), after.is_(None)) for before, after in later),
    )


def _sum(condition: Any) -> Any:
    """Count the rows that fulfil a condition; 0 without rows."""
    return sa.func.coalesce(sa.func.sum(sa.case((condition, 1), else_=0)), 0)


def _flips_of(one: Any, other: Any) -> tuple[Any, ...]:
    """Count gained and lost items, and those of the lost that give the old answer now."""
    gained, lost = other.passed & ~one.passed, one.passed & ~other.passed
    stale = lost & (_answer(other) == "old")
    return _sum(gained).label("gained"), _sum(lost).label("lost"), _sum(stale).label("stale")


def _shares_of(scored: Row, *items: Any) -> list[Any]:
    """Select the values of two scores on what both ask, where each may ask other items as well."""
    names = ("value_a", "value_b") if scored["suite"].startswith(EARLIER) else ()
    passed = [sa.cast(sa.case((item.passed, 1), else_=0), sa.Float) for item in items]
    return [sa.func.avg(one).label(name) for name, one in zip(names, passed, strict=False)]


def _answered(one: Any, other: Any) -> list[Any]:
    return [_answer(one).label("answered_a"), _answer(other).label("answered_b")]


def _answer(item: Any) -> Any:
    """Select which answer an item gives to a changed fact; NULL for every other item."""
    return _named(item, "answered")


def _named(item: Any, name: str) -> Any:
    """Select a value of an item's details as text, a list as JSON; NULL where there is none."""
    return item.detail[name].as_string()


def _direction(after: Any) -> Any:
    return sa.case((after.passed, "gained"), else_="lost").label("direction")
