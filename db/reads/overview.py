"""Read across runs and cycles: methods compared with each other, and knowledge cycle by cycle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import aliased

from db.cycle_names import IFEVAL, KNOWLEDGE, RETENTION
from db.reads.cycle_range import CycleRange, own_runs
from db.reads.cycles import HEADLINE, RECOVERY
from db.reads.earlier_documents import EARLIER
from db.reads.rows import Row, method_of, of_cycle, rows_of
from db.schema import Cycle, Run, Score
from db.session import Database

SUITES = (IFEVAL, KNOWLEDGE, RETENTION)
TRAINING = ("midtrain", "distill")
SEARCH = "locate"  # kind of the run above mixtures that are no way to recover
COMPARED = 100  # newest runs that are compared as methods

Questions = tuple[str | None, int]  # what a score was measured on: its item set and how many items
Measured = dict[str, dict[Questions, Row]]  # suite -> questions -> score


def training_runs(database: Database, *, limit: int = 60, run_ids: Sequence[str] | None = None) -> list[Row]:
    """Return runs that have metrics, newest first, or those named.

    Columns: id, kind, key, status, started_at, error, result, method, cycle."""
    columns = (
        Run.id,
        Run.kind,
        Run.key,
        Run.status,
        Run.started_at,
        Run.error,
        Run.result,
        Run.config,
        Cycle.number.label("cycle"),
    )
    query = sa.select(*columns).join(Cycle, of_cycle(), isouter=True)
    here = sa.and_(Run.project == database.project, Run.kind.in_(TRAINING))
    query = query.where(here if run_ids is None else Run.id.in_(run_ids)).limit(limit)
    rows = rows_of(database, query.order_by(Run.ordinal.desc(), Run.id.desc()))
    return [row | {"method": method_of(row.pop("config"))} for row in rows]


def recoveries(database: Database) -> list[Row]:
    """Return the newest finished recovery runs: method, student, teacher, checkpoint, cost, scores.

    Not among them are the mixtures of a search, each of which shows what a part of the weights has lost.
    Scores map a suite to value, low, high and n; recoveries of one student have theirs on the same
    questions, and `otherwise` names the suites where one answered only others."""
    columns = (
        Run.id,
        Run.kind,
        Run.config,
        Run.result,
        Run.cost,
        Run.started_at,
        Cycle.number.label("cycle"),
    )
    query = _finished(database, *columns).join(Cycle, of_cycle(), isouter=True).limit(COMPARED)
    rows = [_recovery(row) for row in rows_of(database, query.order_by(Run.ordinal.desc(), Run.id.desc()))]
    measured = headlines(database, [row["checkpoint"] for row in rows])
    by_student: dict[str | None, list[tuple[str, Measured]]] = defaultdict(list)
    for row in rows:
        by_student[row["student"]].append((row["method"], measured[row["checkpoint"]]))
    asked = {student: common_questions(compared) for student, compared in by_student.items()}
    return [row | answers_to(asked[row["student"]], measured[row["checkpoint"]]) for row in rows]


def recoveries_recorded(database: Database) -> int:
    """Count all the runs of which `recoveries` returns the newest."""
    with database.read() as connection:
        return connection.scalar(_finished(database, sa.func.count())) or 0


def _finished(database: Database, *columns: Any) -> sa.Select[Any]:
    above = aliased(Run)
    query = sa.select(*columns).select_from(Run).join(above, above.id == Run.parent_id, isouter=True)
    query = query.where(Run.project == database.project, Run.kind.in_(RECOVERY), Run.status == "done")
    return query.where(above.kind.is_distinct_from(SEARCH))


def _recovery(row: Row) -> Row:
    config, result = row.pop("config") or {}, row.pop("result") or {}
    if row["kind"] == "merge":
        method = _merge_name(config)
    else:
        method = result.get("method") or method_of(config) or "?"
    teacher = config.get("teacher") or config.get("other")
    named = {"method": method, "student": config.get("student"), "teacher": teacher}
    return row | named | {"checkpoint": result.get("checkpoint") or ""}


def _merge_name(config: Row) -> str:
    """Return a merge's kind and weight, as in `merge 0.5`; a kind other than linear omits a weight of 1."""
    name = "merge" if config.get("kind", "linear") == "linear" else str(config["kind"])
    weight = config.get("weight")
    return name if weight is None or (weight == 1 and name != "merge") else f"{name} {weight:g}"


def headlines(database: Database, checkpoints: Iterable[str]) -> dict[str, Measured]:
    """Return the newest headline score of some checkpoints on each set of questions, in this project."""
    columns = (Score.id, Score.checkpoint_id, Score.suite, Score.metric, Score.value)
    query = sa.select(*columns, Score.low, Score.high, Score.n, Score.item_set)
    query = query.join(Run, Run.id == Score.run_id).where(Run.project == database.project)
    query = query.where(Score.checkpoint_id.in_(set(checkpoints)), Score.suite.in_(SUITES))
    found: dict[str, Measured] = defaultdict(lambda: defaultdict(dict))
    shown: dict[tuple[str, str], str] = {}  # metric
    for row in rows_of(database, query.order_by(Score.id)):
        checkpoint, suite, metric = row["checkpoint_id"], row["suite"], str(row["metric"])
        if metric == shown.setdefault((checkpoint, suite), HEADLINE.get(suite, metric)):
            found[checkpoint][suite][row["item_set"], row["n"]] = row
    return found


def common_questions(measured: Iterable[tuple[str, Measured]]) -> dict[str, Questions]:
    """Return, per suite, the questions that most methods answered; among equals the most, then the newest.

    Each checkpoint comes with its method's name: many checkpoints of one method have one voice."""
    methods: dict[str, dict[Questions, set[str]]] = defaultdict(lambda: defaultdict(set))
    newest: dict[Questions, int] = {}
    for method, suites in measured:
        for suite, by_asked in suites.items():
            for asked, score in by_asked.items():
                methods[suite][asked].add(method)
                newest[asked] = max(newest.get(asked, 0), score["id"])
    return {
        suite: max(voices, key=lambda asked: (len(voices[asked]), asked[1], newest[asked]))
        for suite, voices in methods.items()
    }


def questions_of(rows: Iterable[Row]) -> dict[str, Questions]:
    """Return, per suite, the questions that some rows of `race` have their scores on."""
    scores = [(suite, score) for row in rows for suite, score in row["scores"].items()]
    return {suite: (score["item_set"], score["n"]) for suite, score in scores}


def answers_to(questions: Mapping[str, Questions], measured: Measured) -> Row:
    """Return a checkpoint's scores on those questions, and the suites where it answered only others."""
    scores = {
        suite: measured[suite][one] for suite, one in questions.items() if one in measured.get(suite, {})
    }
    return {"scores": scores, "otherwise": [suite for suite in measured if suite not in scores]}


def knowledge(database: Database, *, before: int | None = None, limit: int = 40) -> list[Row]:
    """Return the knowledge scores of the newest `limit` cycles below `before`, as each cycle measured them.

    One row per cycle, stage and set of documents (the cycle's, and every earlier cycle's measured
    again): cycle, stage, documents (their cycle), kinds {kind: {value, n}}, value, n."""
    numbers = _numbers(database, before, limit)
    if not numbers:
        return []
    suites = [KNOWLEDGE, *(f"{EARLIER}{number}" for number in numbers)]
    asked = sa.and_(Cycle.project == database.project, Cycle.number.in_(numbers), Score.suite.in_(suites))
    columns = (Score.id, Score.run_id, Score.suite, Score.metric, Score.value, Score.n, Score.low, Score.high)
    query = sa.select(Cycle.number.label("cycle"), *columns, Score.details).select_from(Cycle)
    parts = [
        query.join(Score, Score.checkpoint_id == column)
        .where(asked)
        .add_columns(sa.literal(stage).label("stage"))
        for stage, column in (("midtrained", Cycle.midtrained_id), ("recovered", Cycle.recovered_id))
    ]
    rows = rows_of(database, sa.union_all(*parts).order_by("id"))
    with database.read() as connection:
        own = own_runs(connection, CycleRange(database.project, min(numbers), max(numbers)))
    return _by_documents([row for row in rows if (row["cycle"], row["run_id"]) in own])


def _numbers(database: Database, before: int | None, limit: int) -> list[int]:
    query = (
        sa.select(Cycle.number)
        .where(Cycle.project == database.project)
        .order_by(Cycle.number.desc())
        .limit(limit)
    )
    with database.read() as connection:
        return list(connection.scalars(query if before is None else query.where(Cycle.number < before)))


def _by_documents(scores: Sequence[Row]) -> list[Row]:
    """Merge the scores of one cycle, stage and set of documents; the newest score of a kind counts.

    The metric measured first is the headline; others (cloze, reverse, ...) only add missing kinds."""
    found: dict[tuple[int, str, int], Row] = {}
    metric_of: dict[tuple[int, str, int], dict[str, str]] = defaultdict(dict)  # kind: metric
    for score in scores:
        own = score["suite"] == KNOWLEDGE
        metric = score["metric"]
        whose = score["cycle"] if own else int(score["suite"].removeprefix(EARLIER))
        key = score["cycle"], score["stage"], whose
        row = found.setdefault(
            key, {"cycle": key[0], "stage": key[1], "documents": whose, "kinds": {}, "metric": metric}
        )
        kinds = (score["details"] or {}).get("by_kind") or {}
        row["kinds"] |= {
            kind: value for kind, value in kinds.items() if metric_of[key].setdefault(kind, metric) == metric
        }
        if metric == row["metric"]:
            row |= {name: score[name] for name in ("value", "n", "low", "high")}
    return sorted(found.values(), key=lambda row: (row["cycle"], row["stage"], row["documents"]))
