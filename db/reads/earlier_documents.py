"""Read what is still known of earlier cycles' documents, beside what was when those cycles ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

from sqlalchemy import BigInteger, Connection, Row, and_, case, column, func, select, text
from sqlalchemy.orm import aliased

from db.cycle_names import KNOWLEDGE
from db.reads.cycle_range import CycleRange, own_runs
from db.schema import Cycle, Item, Score

EARLIER = f"{KNOWLEDGE}:"  # suite knowledge:K covers the documents of cycle K
PAIRS_AT_ONCE = 5000  # in a query: SQLite reads no statement of a million characters

Measured = dict[str, dict[str, Row[Any]]]  # suite -> checkpoint id -> score row


def earlier_suites(scores: Measured) -> dict[int, str]:
    """Return the suites on earlier cycles' documents, by cycle."""
    suites = [suite for suite in scores if suite.startswith(EARLIER) and suite[len(EARLIER) :].isdecimal()]
    return {int(suite[len(EARLIER) :]): suite for suite in suites}


def when_they_ended(connection: Connection, project: str, scores: Iterable[Measured]) -> dict[int, float]:
    """Return what the model of an earlier cycle answered, when that ended, of the same questions.

    By the id of the later score, which asks only some of the earlier cycle's questions; one that asks others
    as well has none."""
    later: defaultdict[int, list[int]] = defaultdict(list)
    for measured in scores:
        for earlier, suite in earlier_suites(measured).items():
            later[earlier] += [row.id for row in measured[suite].values()]
    own = _learned(connection, project, set(later))
    pairs = ((number, own[earlier]) for earlier in own for number in later[earlier])
    found: dict[int, float] = {}
    while batch := list(islice(pairs, PAIRS_AT_ONCE)):
        found |= _shares_of_same(connection, batch)
    return found


def _shares_of_same(connection: Connection, pairs: Sequence[tuple[int, int]]) -> dict[int, float]:
    """Return the share that passed in a pair's second score of what the first asks, by the first's id.

    A pair has none unless all that the first asks is in both."""
    # Both kinds of databases name the columns of VALUES so.
    rows = text(f"VALUES {', '.join(f'({later}, {own})' for later, own in pairs)}")
    paired = rows.columns(column("column1", BigInteger), column("column2", BigInteger)).cte("paired")
    mine, asked = aliased(Item), aliased(Item)
    same = and_(mine.score_id == paired.c.column2, mine.key == asked.key)
    passed = func.avg(case((mine.passed, 1.0), else_=0.0))
    query = select(asked.score_id, passed, func.count(mine.key), func.count()).select_from(paired)
    query = query.join(asked, asked.score_id == paired.c.column1).outerjoin(mine, same)
    found = connection.execute(query.group_by(asked.score_id))
    return {number: float(share) for number, share, shared, count in found if shared == count}


def _learned(connection: Connection, project: str, asked: set[int]) -> dict[int, int]:
    """Return the id of the recovered model's score on the documents of its cycle, for some cycles."""
    if not asked:
        return {}
    span = CycleRange(project, min(asked), max(asked))
    own = own_runs(connection, span)
    # Select by checkpoint, not by run: a late cycle's run has a score for every earlier cycle.
    found = Score.checkpoint_id == Cycle.recovered_id, Score.suite == KNOWLEDGE
    query = select(Cycle.number, Score.id, Score.run_id, Score.metric).join(Score, and_(*found))
    query = query.where(span.cycles())
    rows = [row for row in connection.execute(query).all() if (row.number, row.run_id) in own]
    rows.sort(key=attrgetter("id"))
    headline: dict[int, str] = {}
    return {row.number: row.id for row in rows if row.metric == headline.setdefault(row.number, row.metric)}
