"""Runs that did not come to their end, the stages below them, and the training states that runs hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from db.reads import queries
from pipelines.runs.home_project import RUNS
from pipelines.runs.stage_runner import STATE, worked_on
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError

Row = dict[str, Any]


def root_of(ws: Workspace, run_id: str, there: str) -> Row:
    """Return the run itself, or the demo or cycle that it is a stage of.

    Refuse one of another home, where `there` says what to do.
    """
    run = queries.run(ws.tracker.db, run_id)
    while run["parent_id"]:
        run = queries.run(ws.tracker.db, run["parent_id"])
    if run["project"] != ws.tracker.db.project:
        home = queries.project_home(ws.tracker.db, run["project"]) or "the first home of this database"
        raise InputError(f"{run_id} is a run of project {run['project']!r}, whose home is {home}: {there}")
    return run


def with_stages(ws: Workspace, runs: Sequence[Row]) -> list[Row]:
    """Return some runs and all stages below them, those above first."""
    found: list[Row] = []
    level = list(runs)
    while level:
        found += level
        level = queries.runs(ws.tracker.db, parents=[run["id"] for run in level], limit=None)
    return found


def states_of(ws: Workspace, runs: Iterable[Row]) -> list[Path]:
    """Return the folders of resumable states that some runs hold."""
    folders = (ws.run_directory(run["id"]) / STATE for run in runs)
    return [folder for folder in folders if folder.is_dir()]


def left_states(ws: Workspace) -> list[Path]:
    """Return the folders of states of runs that are done, or below such a one, which nothing resumes.

    A kill between the end of a run and the removal of its states has left them."""
    runs = {run["id"]: run for run in queries.runs(ws.tracker.db, limit=None)}
    folders = sorted((ws.home / RUNS).glob(f"*/{STATE}"))
    return [state for state in folders if _is_over(runs, state.parent.name) and not worked_on(state.parent)]


def _is_over(runs: Mapping[str, Row], name: str) -> bool:
    """Return whether a run is done, or one above it is."""
    run = runs.get(name)
    while run and run["status"] != "done":
        run = runs.get(run["parent_id"])
    return run is not None
