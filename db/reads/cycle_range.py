"""Select a range of one project's cycles, and all runs that belong to them."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import CTE, ColumnElement, Connection, and_, select

from db.schema import Cycle, Run


class CycleRange(NamedTuple):
    """A range of one project's cycles, both ends included."""

    project: str
    first: int
    last: int

    def holds(self, project: Any, number: Any) -> ColumnElement[bool]:
        """Return the SQL condition that a table's project and number columns lie in the range."""
        return and_(project == self.project, number.between(self.first, self.last))

    def cycles(self) -> ColumnElement[bool]:
        return self.holds(Cycle.project, Cycle.number)


def own_runs(connection: Connection, span: CycleRange) -> set[tuple[int, str]]:
    """Return (cycle, run_id) of everything that ran for the cycles.

    A query that joins scores by their checkpoints is filtered by these: it spares a join of all runs with all
    scores."""
    return {(row.cycle, row.run_id) for row in connection.execute(select(runs_of_cycles(span)))}


def runs_of_cycles(span: CycleRange) -> CTE:
    """Select (cycle, run_id) of each cycle's run and of all its descendants."""
    own = select(Cycle.number.label("cycle"), Cycle.run_id).where(span.cycles())
    tree = own.cte("tree", recursive=True)
    return tree.union_all(select(tree.c.cycle, Run.id).join(tree, Run.parent_id == tree.c.run_id))
