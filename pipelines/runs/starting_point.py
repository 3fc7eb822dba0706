"""Say which model a cycle starts from: after a rejected cycle it is not that one's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from db.cycle_names import ENDED
from db.reads import queries
from pipelines.config.jobs import CycleJob
from pipelines.runs.current import without
from pipelines.runs.workspace import Workspace

REJECTED = ("reject", "rejected")  # by a review, by the verdict
MODELS = {"recovered_id": "model", "midtrained_id": "midtrained model"}


def starting_point(ws: Workspace, job: CycleJob, number: int) -> str:
    """Name the model that a cycle starts from, accepted cycles that it lacks, and the newest cycle before,
    if that was rejected and is not in it."""
    before = queries.cycle_models(ws.tracker.db, before=number)
    named = "base, the clean model" if job.student == job.clean else _named(ws, job.student, before)
    named += without(ws, job.student, but=number)
    newest = next((row for row in before if row["status"] in ENDED), None)
    if newest is None or newest["decision"] not in REJECTED:
        return named
    rejected = newest["number"]
    if rejected in queries.cycles_behind(ws.tracker.db, job.student):
        return named
    there = (ws.store.root / str(newest["recovered_id"])).is_dir()
    hint = f" (`--student cycle:{rejected}` starts from its model)" if there else ""
    return f"{named}: cycle {rejected} was rejected and is not in it{hint}"


def _named(ws: Workspace, student: str, cycles: Sequence[dict[str, Any]]) -> str:
    """Name a checkpoint by its aliases, else by its id, and by the newest cycle whose model it is."""
    aliases = queries.checkpoint(ws.tracker.db, student)["aliases"]
    made = [
        f"cycle {row['number']}'s {model}"
        for row in cycles
        for column, model in MODELS.items()
        if row[column] == student
    ]
    return ", ".join([*(aliases or [student]), *made[:1]])
