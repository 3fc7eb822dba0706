"""Remove the files of checkpoints that nothing needs any more, and give up runs; what is recorded stays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from db.cycle_names import GIVEN_UP, STAGES, is_given_up
from db.errors import BadRequest, NotFound
from db.reads import queries
from db.reads.checkpoints import before_current, current_of
from pipelines.distillation.teachers import before_midtraining
from pipelines.runs.stage_runner import exclusive, worked_on
from pipelines.runs.unfinished import left_states, root_of, states_of, with_stages
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from recovery.storage import atomic_dirs, file_hashes

CYCLES = 2  # newest recovered cycles whose checkpoints are kept: the next may start or be taught from them

Row = dict[str, Any]


def prune(ws: Workspace, *, cycles: int = CYCLES, remove: bool = False, run: str | None = None) -> Row:
    """Find the checkpoints that nothing needs, and states of runs that are done, and remove their files where
    asked to; name unfinished runs and what they hold. With `run`, give up that unfinished run instead: see
    `give_up`."""
    if cycles < 0:
        raise InputError(f"cycles={cycles}: give 0 or more")
    if run is not None:
        return give_up(ws, run, cycles=cycles, remove=remove)
    spare, kept = _spare(ws, cycles)
    states = left_states(ws)
    left = sum(map(file_hashes.bytes_of, states))
    if remove:
        _remove_states(states)
        spare, kept = _remove(ws, spare, kept)
    freed = left + sum(row["bytes"] for row in spare)
    found: Row = {"checkpoints": spare, "bytes": freed, "removed": remove, "kept": kept}
    return found | {"states": left, "unfinished": _holding(ws, cycles)}


def give_up(ws: Workspace, run_id: str, *, cycles: int = CYCLES, remove: bool = False) -> Row:
    """Find the training states of an unfinished run, and those of its checkpoints that nothing else needs;
    where asked to, remove them and mark the run, so that it is never resumed."""
    run = _resumable(ws, run_id)
    own = _own(ws, run)
    its, kept = _of_its_own(ws, own, cycles)
    states = states_of(ws, own)
    held = sum(map(file_hashes.bytes_of, states))
    if remove:
        with exclusive(ws.run_directory(run["id"])):
            _remove_states(states)
            its, kept = _remove(ws, its, kept)
            _mark(ws, own)
    freed = held + sum(row["bytes"] for row in its)
    found: Row = {"checkpoints": its, "bytes": freed, "removed": remove, "kept": kept}
    return found | {"run": run["id"], "states": held}


def _resumable(ws: Workspace, run_id: str) -> Row:
    """Return an unfinished run of this home, by its id or a stage's, that no process works on."""
    run = root_of(ws, run_id, "give it up there")
    if run["status"] == "done":
        raise InputError(f"{run['id']} is done: it holds nothing that waits to be resumed")
    if _is_at_work(ws, run):
        raise InputError(f"{run['id']} is at work, or was a minute ago: end it before you give it up")
    return run


def _own(ws: Workspace, run: Row) -> list[Row]:
    """Return an unfinished run and the stages below it, but not the finished cycles of a demo."""
    stages = with_stages(ws, [run])
    finished = [stage for stage in stages if stage["kind"] == "cycle" and stage["status"] == "done"]
    theirs = {stage["id"] for stage in with_stages(ws, finished)}
    return [stage for stage in stages if stage["id"] not in theirs]


def _of_its_own(ws: Workspace, own: list[Row], cycles: int) -> tuple[list[Row], int]:
    """Return the checkpoints of a run and its stages that nothing else needs, and the number of others."""
    mine = {stage["id"] for stage in own}
    spare, kept = _spare(ws, cycles, given_up=mine)
    its = [row for row in spare if row["run_id"] in mine]
    return its, kept + len(spare) - len(its)


def _mark(ws: Workspace, own: list[Row]) -> None:
    """Record that a run and its unfinished stages are given up, the run itself last.

    Stages that had ended keep when they did."""
    for stage in reversed(own):
        if stage["status"] != "done" and not is_given_up(stage):
            why = f"{GIVEN_UP} ({stage['error']})" if stage["error"] else GIVEN_UP
            if stage["parent_id"]:
                ws.tracker.stop_run(stage["id"], why, ended_at=stage["ended_at"])
            else:
                ws.tracker.give_up_run(stage["id"], why)


def _is_at_work(ws: Workspace, run: Row) -> bool:
    """Return whether a process works on a run, here or on another machine, or did a minute ago."""
    return (run["status"] == "running" and not run["stalled"]) or worked_on(ws.run_directory(run["id"]))


def _holding(ws: Workspace, cycles: int) -> list[Row]:
    """Return the unfinished runs that no process works on, with the bytes that giving each up frees, and
    those of the further checkpoints that it needs and only unfinished runs do."""
    makers = {row["run_id"] for row in queries.checkpoints(ws.tracker.db, limit=None)}
    waiting = [run for run in queries.unfinished_runs(ws.tracker.db) if not _is_at_work(ws, run)]
    theirs = {run["id"]: _own(ws, run) for run in waiting}
    kept = _only_theirs(ws, [stage for own in theirs.values() for stage in own], cycles)
    found: list[Row] = []
    for run in waiting:
        own = theirs[run["id"]]
        states, its = _held(ws, own, cycles, makers)
        held = states + sum(row["bytes"] for row in its)
        further = sum(row["bytes"] for row in _needed_by(ws, own, kept) if row not in its)
        if held or further:
            named = {name: run[name] for name in ("status", "started_at")}
            found.append({"run": run["id"], **named, "bytes": held, "further": further})
    return found


def _only_theirs(ws: Workspace, own: list[Row], cycles: int) -> list[Row]:
    """Return the checkpoints that nothing would need if all of these unfinished runs were given up."""
    now = {row["id"] for row in _spare(ws, cycles)[0]}
    then = _spare(ws, cycles, given_up={stage["id"] for stage in own})[0] if own else []
    return [row for row in then if row["id"] not in now]


def _needed_by(ws: Workspace, own: list[Row], kept: list[Row]) -> list[Row]:
    """Return those of some checkpoints that a run or its stages have made, name or are taught by, and the
    bases of these."""
    makers = {stage["id"] for stage in own}
    named = _named_in([[stage["config"], stage["result"]] for stage in own], kept)
    named |= _unnamed_teachers(ws, own) | _mixtures(ws, own)
    needed = [row for row in kept if row["run_id"] in makers or row["id"] in named]
    bases = {row["base_id"] for row in needed}
    return [row for row in kept if row in needed or row["id"] in bases]


def _held(ws: Workspace, own: list[Row], cycles: int, makers: Collection[str]) -> tuple[int, list[Row]]:
    """Return the bytes of the states of a run and its stages, and the checkpoints of theirs that nothing
    else needs."""
    made_any = any(stage["id"] in makers for stage in own)  # else there is nothing to look up
    its = _of_its_own(ws, own, cycles)[0] if made_any else []
    return sum(map(file_hashes.bytes_of, states_of(ws, own))), its


def _spare(ws: Workspace, cycles: int, given_up: Collection[str] = ()) -> tuple[list[Row], int]:
    """Return the checkpoints that nothing needs but the runs to give up, and the number of the others."""
    rows = queries.checkpoints(ws.tracker.db, limit=None)[::-1]  # oldest first
    turned = queries.cycles(ws.tracker.db)
    # Only cycles with a recovered model push out others: one that broke off is kept as long as it may go on.
    recovered = [row for row in turned if row["checkpoints"]["recovered"]]
    going_on = [row for row in recovered if row["run"] not in given_up and not is_given_up(row)]
    needed = _needed(ws, rows, going_on[max(0, len(going_on) - cycles) :], given_up)
    names = _names(turned)
    stored = [row for row in rows if row["kind"] != "reference"]
    spare = [
        {
            "id": row["id"],
            "what": names.get(row["id"]) or _made_by(ws, row),
            "bytes": ws.store.size(row["id"]),
            "run_id": row["run_id"],
            "base_id": row["base_id"],
        }
        for row in stored
        if row["id"] not in needed
    ]
    return spare, len(stored) - len(spare)


def _remove_states(states: list[Path]) -> None:
    for state in states:
        with atomic_dirs.storage_errors(state):
            shutil.rmtree(state)


def _remove(ws: Workspace, spare: list[Row], kept: int) -> tuple[list[Row], int]:
    """Remove the files of checkpoints, but not of those that have got an alias meanwhile, as by an approval;
    return the removed ones, and the number of the others."""
    forget = ws.tracker.forget_place
    gone = [row for row in spare if forget(row["id"], partial(ws.store.remove, row["id"]))]
    return gone, kept + len(spare) - len(gone)


def _needed(ws: Workspace, rows: list[Row], newest: list[Row], given_up: Collection[str]) -> set[str]:
    """Return what aliases, newest cycles and stages, routes and unfinished runs name, and the bases of it."""
    # Before the aliases: a run that ends in between moves `current` while it is still unfinished.
    unfinished = [run for run in _unfinished(ws) if run["id"] not in given_up]
    named = {row["checkpoint_id"] for row in queries.aliases(ws.tracker.db)}
    named |= _by_hand(ws, rows) | _routes(ws) | _before_current(ws)
    for cycle in newest:
        named.update(cycle["checkpoints"].values())
    named |= _named_in([[run["config"], run["result"]] for run in unfinished], rows)
    named |= _unnamed_teachers(ws, unfinished) | _mixtures(ws, unfinished)
    makers = {run["id"] for run in unfinished}
    named.update(row["id"] for row in rows if row["run_id"] in makers)
    bases = {row["base_id"] for row in rows if row["id"] in named}
    return {checkpoint for checkpoint in named | bases if checkpoint}


def _before_current(ws: Workspace) -> set[str | None]:
    """Return the model that `current` moves back to where a review rejects the one in use."""
    db = ws.tracker.db
    with db.read() as connection:
        return {before_current(connection, db.project, current_of(connection, db.project))}


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


def _unnamed_teachers(ws: Workspace, runs: list[Row]) -> set[str]:
    """Return the teachers of distillations with teacher=previous, which their jobs do not name."""
    found = set()
    for run in runs:
        settings = run["config"].get("settings", {})
        if run["kind"] == "distill" and settings.get("dials", {}).get("teacher") == "previous":
            with suppress(InputError):  # never midtrained, so that it cannot be resumed either
                found.add(before_midtraining(ws, run["config"]["student"]))
    return found


def _mixtures(ws: Workspace, runs: list[Row]) -> set[str]:
    """Return the mixtures that distillations with `distill.merge` begin with, which their jobs do not name.

    Equal ones are one checkpoint, which is recorded with the run that made it first."""
    configs = [run["config"] for run in runs if run["kind"] == "distill"]
    shares = [(config.get("student"), config.get("settings", {}).get("merge")) for config in configs]
    begun = {(student, share) for student, share in shares if share}
    rows = queries.checkpoints(ws.tracker.db, limit=None) if begun else []
    made = [(row["id"], row["config"]) for row in rows if row["config"].get("stage") == "merge"]
    return {checkpoint for checkpoint, how in made if (how.get("student"), how.get("weight")) in begun}


def _routes(ws: Workspace) -> set[str]:
    """Return the checkpoints among the teachers that `distill.routes` names."""
    found = set()
    for reference in ws.config.distill.routes.values():
        with suppress(BadRequest, NotFound):  # such as the folder of a model from elsewhere
            found.add(ws.resolve(reference))
    return found


def _unfinished(ws: Workspace) -> list[Row]:
    """Return the runs that may be resumed, and all stages below them."""
    return with_stages(ws, queries.unfinished_runs(ws.tracker.db))


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
