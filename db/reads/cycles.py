"""Assemble a cycle as one JSON document, in the stable shape that scripts rely on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import add, attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, RowMapping, Select, case, func, select

from db.cycle_names import AXES, BROKEN_OFF, IFEVAL, KNOWLEDGE, NOT_MEASURED, STAGES, UPDATES
from db.errors import NotFound
from db.reads.changes import stalled
from db.reads.checkpoints import decided
from db.reads.cycle_range import CycleRange, runs_of_cycles
from db.reads.earlier_documents import EARLIER, Measured, earlier_suites, when_they_ended
from db.reads.rows import rows_of
from db.schema import Cycle, JSONObject, Review, Run, Score, Verdict
from db.session import Database

HEADLINE = {IFEVAL: "prompt_strict"}  # the metric shown for a suite; default: the first recorded
NO_COST = {"tokens_sampled": 0, "tokens_scored": 0, "tokens_trained": 0, "seconds": 0.0}
RECOVERY = ("distill", "merge")  # kinds of runs that recover behaviour


def cycle(database: Database, number: int, *, earlier: bool = True) -> JSONObject:
    """Return the document that `recover show cycle:N` prints.

    `earlier` adds the scores on earlier cycles' documents: n of them for the n-th cycle."""
    with database.read() as connection:
        found = _read(connection, _of(database.project).where(Cycle.number == number), earlier=earlier)
    if not found:
        raise NotFound(f"cycle {number} is not recorded: `recover ls` lists those that are")
    return found[0]


def cycles(database: Database, *, before: int | None = None, limit: int | None = None) -> list[JSONObject]:
    """Return all cycles, oldest first, or the newest `limit` below number `before` (a page).

    The scores on earlier cycles' documents are left out: the n-th cycle has n of them."""
    newest = _of(database.project).order_by(Cycle.number.desc()).limit(limit)
    if before is not None:
        newest = newest.where(Cycle.number < before)
    with database.read() as connection:
        return _read(connection, newest, earlier=False)


def cycle_models(database: Database, *, before: int) -> list[JSONObject]:
    """Return the status, what decides of it, and the models of the cycles below a number, newest first, and
    nothing measured."""
    columns = Cycle.number, Cycle.status, Cycle.midtrained_id, Cycle.recovered_id
    query = decided(database.project, select(*columns)).where(Cycle.number < before)
    return rows_of(database, query.order_by(Cycle.number.desc()))


def whole_cycles(connection: Connection, project: str, at_once: int) -> Iterator[JSONObject]:
    """Yield all cycles, oldest first, as `cycle` returns them, from one snapshot and so many at a time."""
    wanted = _of(project)
    last = connection.scalar(wanted.with_only_columns(func.max(Cycle.number))) or 0
    for first in range(1, last + 1, at_once):
        batch = wanted.where(Cycle.number.between(first, first + at_once - 1))
        yield from _read(connection, batch, earlier=True)


def _of(project: str) -> Select[Cycle]:
    return select(Cycle).where(Cycle.project == project)


def recovered_fraction(
    clean: float | None, midtrained: float | None, recovered: float | None
) -> float | None:
    """Return the recovered share of lost behaviour: (recovered - midtrained) / (clean - midtrained).

    None where midtraining lost none."""
    return _ratio(recovered, midtrained, clean)


def knowledge_kept(clean: float | None, midtrained: float | None, recovered: float | None) -> float | None:
    """Return the share of learned knowledge that was kept: (recovered - clean) / (midtrained - clean).

    None where midtraining taught none."""
    return _ratio(recovered, clean, midtrained)


def _ratio(value: float | None, zero: float | None, one: float | None) -> float | None:
    """Return the position of `value` between `zero` (0) and `one` (1); None unless `one` is above `zero`."""
    if value is None or zero is None or one is None or one <= zero:
        return None
    return (value - zero) / (one - zero)


def _read(connection: Connection, wanted: Select[Cycle], *, earlier: bool) -> list[JSONObject]:
    rows = sorted(connection.execute(wanted.with_only_columns(*Cycle.__table__.c)).mappings(), key=_number)
    if not rows:
        return []
    span = CycleRange(rows[0]["project"], _number(rows[0]), _number(rows[-1]))
    which = () if earlier else (Score.suite.not_like(f"{EARLIER}%"),)
    scores = _scores(connection, span, *which)
    verdicts = _verdicts(connection, span)
    costs, reviews = _costs(connection, span), _reviews(connection, span)
    then = when_they_ended(connection, span.project, scores.values()) if earlier else None
    states = _states(connection, span)
    return [
        _assemble(row, scores[number], verdicts[number], costs[number], then)
        | {"review": reviews.get(number), **states[number]}
        for row, number in zip(rows, map(_number, rows), strict=True)
    ]


def _assemble(
    row: RowMapping,
    scores: Measured,
    verdicts: Sequence[RowMapping],
    cost: Mapping[str, JSONObject],
    then: Mapping[int, float] | None,
) -> JSONObject:
    number = row["number"]
    checkpoints = {stage: row[f"{stage}_id"] for stage in STAGES}
    suites = {
        name: _suite(name, {stage: by_checkpoint.get(one or "") for stage, one in checkpoints.items()})
        for name, by_checkpoint in scores.items()
        if not name.startswith(EARLIER)
    }
    document = {
        "cycle": number,
        "status": row["status"],
        "run": row["run_id"],
        "started_at": row["started_at"],
        "ended_at": row["ended_at"],
        "checkpoints": checkpoints,
        "scores": suites,
        "recovered_fraction": recovered_fraction(*_moved(suites.get(IFEVAL))),
        "knowledge_kept": knowledge_kept(*_moved(suites.get(KNOWLEDGE))),
        "verdict": _verdict(verdicts),
        "recovery_chosen": "choose" in cost,
        **_cost(cost, suites.get(IFEVAL)),
        "summary": row["summary"],
    }
    if number > 1 and then is not None:
        document["knowledge_by_cycle"] = _earlier(scores, checkpoints["recovered"], then)
    return document


def _suite(name: str, rows: Mapping[str, Row[Any] | None]) -> JSONObject:
    """Return one suite at the three stages: values, n, 95 % intervals; None where there is no score yet.

    `notes` are there only where something was noted at a stage, what is the same at several of them once."""
    there = [row for row in rows.values() if row is not None]
    noted = list(dict.fromkeys(note for row in there for note in row.notes or ()))
    return {
        **{stage: row.value if row else None for stage, row in rows.items()},
        "n": there[-1].n if there else 0,
        "intervals": {stage: [row.low, row.high] if row else None for stage, row in rows.items()},
        **({"notes": noted} if noted else {}),
        **(_stale(rows) if name == UPDATES else {}),
    }


def _stale(rows: Mapping[str, Row[Any] | None]) -> JSONObject:
    """Return the stale rate at the three stages with its interval, and the three counts of answers."""
    found = {stage: row.details if row else {} for stage, row in rows.items()}
    wanted = {"stale_rate": "stale_rate", "stale_intervals": "stale_interval", "answered": "answered"}
    return {
        key: {stage: details.get(name) for stage, details in found.items()} for key, name in wanted.items()
    }


def _moved(suite: JSONObject | None) -> tuple[float | None, float | None, float | None]:
    """Return a suite's values if midtraining changed them by more than chance, else None."""
    if suite is None:
        return None, None, None
    clean, midtrained, recovered = (suite[stage] for stage in STAGES)
    if clean is None or midtrained is None:
        return clean, midtrained, recovered
    before, after = suite["intervals"]["clean"], suite["intervals"]["midtrained"]
    by_chance = _holds(before, midtrained) or _holds(after, clean)
    return (None, None, None) if by_chance else (clean, midtrained, recovered)


def _holds(interval: Sequence[float | None], value: float) -> bool:
    """Return whether a value lies in an interval; in none if a bound is unknown."""
    low, high = interval
    return low is not None and high is not None and low <= value <= high


def _verdict(rows: Iterable[RowMapping]) -> JSONObject | None:
    axes = {
        row["axis"]: {name: row[name] for name in row if name not in ("project", "cycle", "axis")}
        for row in rows
    }
    if not axes:
        return None
    behaviour = axes.get("behaviour", {})
    return {
        **{axis: axes[axis]["outcome"] if axis in axes else NOT_MEASURED for axis in (*AXES, *axes)},
        "behaviour_lower_bound": behaviour.get("lower_bound"),
        "margin": behaviour.get("margin"),
        "axes": axes,
    }


def _earlier(scores: Measured, recovered: str | None, before: Mapping[int, float]) -> list[JSONObject]:
    """Return the recovered model's score on each earlier cycle's documents, and that cycle's own."""
    found = []
    for earlier, suite in sorted(earlier_suites(scores).items()):
        row = scores[suite].get(recovered or "")
        if row is not None:
            then = before.get(row.id)
            kept = row.value / then if then and row.value is not None else None
            found.append({"cycle": earlier, "score": row.value, "n": row.n, "then": then, "kept": kept})
    return found


# Rows of a range of cycles ----------------------------------------------------------------------------------


def _scores(connection: Connection, span: CycleRange, *which: ColumnElement[bool]) -> dict[int, Measured]:
    """Return the headline score per cycle, suite and checkpoint; the newest if measured twice in a cycle."""
    tree = runs_of_cycles(span)
    columns = (Score.checkpoint_id, Score.suite, Score.metric, Score.value, Score.n, Score.low, Score.high)
    details = case((Score.suite == UPDATES, Score.details), else_=None).label("details")
    notes = Score.details["notes"].label("notes")
    query = select(tree.c.cycle, Score.id, *columns, details, notes).join(tree, Score.run_id == tree.c.run_id)
    found: dict[int, Measured] = defaultdict(lambda: defaultdict(dict))
    headline: dict[tuple[int, str], str] = {}
    # Sort here: with ORDER BY id, SQLite would scan all scores in id order.
    for row in sorted(connection.execute(query.where(*which)).all(), key=attrgetter("id")):
        if row.metric == headline.setdefault((row.cycle, row.suite), HEADLINE.get(row.suite, row.metric)):
            found[row.cycle][row.suite][row.checkpoint_id or ""] = row
    return found


def _verdicts(connection: Connection, span: CycleRange) -> defaultdict[int, list[RowMapping]]:
    query = select(Verdict.__table__).where(span.holds(Verdict.project, Verdict.cycle)).order_by(Verdict.axis)
    found: defaultdict[int, list[RowMapping]] = defaultdict(list)
    for row in connection.execute(query).mappings():
        found[row["cycle"]].append(row)
    return found


def _costs(connection: Connection, span: CycleRange) -> defaultdict[int, dict[str, JSONObject]]:
    """Sum costs per cycle and kind of run; a peak (memory) is the maximum over the runs."""
    tree = runs_of_cycles(span)
    query = select(tree.c.cycle, Run.kind, Run.cost).join(tree, Run.id == tree.c.run_id)
    found: defaultdict[int, dict[str, JSONObject]] = defaultdict(dict)
    for number, kind, cost in connection.execute(query).all():
        for name in (kind, "all"):
            total = found[number].setdefault(name, dict(NO_COST))
            _add(total, cost)
    return found


def _add(total: JSONObject, cost: Mapping[str, float]) -> None:
    for name, value in cost.items():
        total[name] = (max if name.startswith("peak_") else add)(total.get(name, 0), value)


def _cost(kinds: Mapping[str, JSONObject], ifeval: JSONObject | None) -> JSONObject:
    """Return the cycle's total cost, by kind of stage, and per recovered point of behaviour."""
    recovery = dict(NO_COST)
    for kind in RECOVERY:
        _add(recovery, kinds.get(kind, {}))
    _, midtrained, recovered = _moved(ifeval)
    gained = 100 * (recovered - midtrained) if recovered is not None and midtrained is not None else 0.0
    wanted = [name for name in recovery if not name.startswith("peak_")]
    each = {name: recovery[name] / gained for name in wanted} if gained > 0 else None
    stages = {kind: cost for kind, cost in kinds.items() if kind != "all" and any(cost.values())}
    whole = kinds.get("all", dict(NO_COST))
    return {"cost": whole, "cost_by_stage": stages, "cost_per_recovered_point": each}


def _reviews(connection: Connection, span: CycleRange) -> dict[int, JSONObject]:
    """Return the latest review per cycle."""
    columns = (Review.cycle, Review.decision, Review.note, Review.reviewer, Review.at)
    query = select(*columns).where(span.holds(Review.project, Review.cycle)).order_by(Review.id)
    return {row["cycle"]: dict(row) for row in connection.execute(query).mappings()}


def _states(connection: Connection, span: CycleRange) -> dict[int, JSONObject]:
    """Return each cycle's folder of documents, why its run broke off, when it was last heard of, whether it
    is running but silent, and the margin of behaviour and the required axes that it began with.

    A cycle recorded as running has the status of a run that broke off: an interruption is recorded there."""
    margin = Run.config["settings", "eval", "margin"].as_float()
    began = Run.config["docs"].as_string(), margin, Run.config["required"]
    query = select(Cycle.number, Cycle.status, Run.status, Run.error, Run.heartbeat_at, *began)
    rows = connection.execute(query.join(Run, Run.id == Cycle.run_id).where(span.cycles())).all()
    return {
        number: {
            "docs": folder,
            "error": error,
            "heartbeat_at": heard,
            "stalled": stalled(of_run, heard),
            "margin": allowed,
            "required": required,
            **({"status": of_run} if status == "running" and of_run in BROKEN_OFF else {}),
        }
        for number, status, of_run, error, heard, folder, allowed, required in rows
    }


def _number(row: RowMapping) -> int:
    return int(row["number"])
