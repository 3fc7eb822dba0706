"""Remove the files of checkpoints that nothing needs any more; whatever is recorded about them stays."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from db.cycle_names import STAGES
from db.errors import BadRequest, NotFound
from db.reads import queries
from db.reads.checkpoints import before_current
from pipelines.runs.workspace import Workspace

CYCLES = 2  # newest cycles whose checkpoints are kept: the next one may start or be taught from them

Row = dict[str, Any]


def prune(ws: Workspace, *, cycles: int = CYCLES, remove: bool = False) -> Row:
    """Find the checkpoints that nothing needs, and remove their files where asked to."""
    rows = queries.checkpoints(ws.tracker.db, limit=None)[::-1]  # oldest first
    turned = queries.cycles(ws.tracker.db)
    needed = _needed(ws, rows, turned[max(0, len(turned) - cycles) :])
    names = _names(turned)
    stored = [row for row in rows if row["kind"] != "reference"]
    spare = [
        {
            "id": row["id"],
            "what": names.get(row["id"]) or _made_by(ws, row),
            "bytes": ws.store.size(row["id"]),
        }
        for row in stored
        if row["id"] not in needed
    ]
    for row in spare if remove else ():
        ws.store.remove(row["id"])
        ws.tracker.forget_place(row["id"])
    freed = sum(row["bytes"] for row in spare)
    return {"checkpoints": spare, "bytes": freed, "removed": remove, "kept": len(stored) - len(spare)}


def _needed(ws: Workspace, rows: list[Row], newest: list[Row]) -> set[str]:
    """Return what aliases, newest cycles and stages, routes and unfinished runs name, and the bases of it."""
    named = {row["checkpoint_id"] for row in queries.aliases(ws.tracker.db)}
    named |= _by_hand(ws, rows) | _routes(ws) | _before_current(ws)
    for cycle in newest:
        named.update(cycle["checkpoints"].values())
    unfinished = _unfinished(ws)
    named |= _named_in([[run["config"], run["result"]] for run in unfinished], rows)
    makers = {run["id"] for run in unfinished}
    named.update(row["id"] for row in rows if row["run_id"] in makers)
    bases = {row["base_id"] for row in rows if row["id"] in named}
    return {checkpoint for checkpoint in named | bases if checkpoint}


def _before_current(ws: Workspace) -> set[str | None]:
    """Return the model that `current` moves back to where a review rejects the one in use."""
    db = ws.tracker.db
    current = next((row["checkpoint_id"] for row in queries.aliases(db) if row["name"] == "current"), None)
    with db.read() as connection:
        return {before_current(connection, db.project, current)}


def _by_hand(ws: Workspace, rows: list[Row]) -> set[str]:
    """Return all that the newest result of each kind of stage names, of those that were run by themselves."""
    newest: dict[str, set[str]] = {}
    for run in queries.runs(ws.tracker.db, status="done", limit=None):
        if not run["parent_id"] and not newest.get(run["kind"]):
            newest[run["kind"]] = _named_in(run["result"], rows)
    return set().union(*newest.values())


def _named_in(recorded: Any, rows: list[Row]) -> set[str]:
    """Return the checkpoints whose ids stand anywhere in what is recorded."""
    text = json.dumps(recorded, default=str)
    return {row["id"] for row in rows if row["id"] in text}


def _routes(ws: Workspace) -> set[str]:
    """Return the checkpoints among the teachers that `distill.routes` names."""
    found = set()
    for reference in ws.config.distill.routes.values():
        with suppress(BadRequest, NotFound):  # such as a model's folder
            found.add(queries.resolve(ws.tracker.db, reference))
    return found


def _unfinished(ws: Workspace) -> list[Row]:
    """Return the runs that may be resumed, and all stages below them."""
    db = ws.tracker.db
    found: list[Row] = []
    level = queries.unfinished_runs(db)
    while level:
        found += level
        level = queries.runs(db, parents=[run["id"] for run in level], limit=None)
    return found


def _names(cycles: list[Row]) -> dict[str, str]:
    """Name the checkpoints of cycles as a reader refers to them: cycle:2:midtrained."""
    return {
        row["checkpoints"][stage]: f"cycle:{row['cycle']}:{stage}"
        for row in cycles
        for stage in STAGES
        if row["checkpoints"][stage]
    }


def _made_by(ws: Workspace, row: Row) -> str:
    run = queries.run(ws.tracker.db, row["run_id"])["kind"] if row["run_id"] else "no recorded run"
    return f"made by {run}"
