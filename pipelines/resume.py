"""Resume an interrupted run: start its recorded job again under the same key; finished stages are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from db.reads import queries
from pipelines.config.home_settings import refuse_unnamed
from pipelines.config.jobs import (
    CycleJob,
    DemoJob,
    DistillJob,
    DriftJob,
    EvalJob,
    LocateJob,
    MergeJob,
    MidtrainJob,
    PilotJob,
    RetrievalJob,
    SweepJob,
)
from pipelines.config.sections.base import Section
from pipelines.cycle import cycle
from pipelines.demo import demo
from pipelines.distill import distill_alone
from pipelines.drift import drift
from pipelines.evaluate import evaluate
from pipelines.locate import locate
from pipelines.merge import merge
from pipelines.midtrain import midtrain
from pipelines.pilot import pilot
from pipelines.prompts.prompt_sources import HubAway
from pipelines.retrieval import retrieval
from pipelines.runs.stage_runner import recorded_result, worked_on
from pipelines.runs.unfinished import root_of
from pipelines.runs.workspace import Workspace
from pipelines.sweep import sweep
from recovery.errors import InputError

REFUSED = (InputError.__name__, HubAway.__name__)  # with which a run ends that its input stops

# What works again on a run of each kind, from the job that is recorded of it.
AGAIN: dict[str, tuple[type[Section], Callable[..., dict[str, Any]]]] = {
    "demo": (DemoJob, demo),
    "cycle": (CycleJob, cycle),
    "midtrain": (MidtrainJob, midtrain),
    "distill": (DistillJob, distill_alone),
    "merge": (MergeJob, merge),
    "sweep": (SweepJob, sweep),
    "drift": (DriftJob, drift),
    "locate": (LocateJob, locate),
    "retrieval": (RetrievalJob, retrieval),
    "pilot": (PilotJob, pilot),
    "eval": (EvalJob, evaluate),
}


def resume(ws: Workspace, run_id: str | None = None) -> dict[str, Any]:
    """Resume a run (default: the newest unfinished one); return its result."""
    run = root_of(ws, run_id, "resume it there") if run_id else _newest(ws)
    if run["status"] == "done":
        return {"run": run["id"], **recorded_result(ws, run["id"], run["result"])}
    if not run["key"]:
        raise InputError(f"{run['id']} is never resumed ({run['error'] or 'it has no key'}): begin a new run")
    job_of, work = AGAIN[run["kind"]]
    job = job_of(**run["config"])
    if ws.implicit:
        refuse_unnamed(job, f"run {run['id']}", ws.home)
    why = f"{run['status']}: {run['error']}" if run["error"] else run["status"]
    ws.progress.say(f"going on with {run['id']} ({why}), with the settings that it began with")
    return {"run": run["id"], **work(ws, job, key=run["key"])}


def resume_named(ws: Workspace, run: dict[str, Any], option: str, docs: Path) -> dict[str, Any]:
    """Go on with a cycle that was begun under a name, or return its result; say which, and how to begin anew.

    Documents that are gone do not matter: it may have read them, and goes on with what it has kept."""
    began = Path(run["config"]["docs"])
    if began.exists() and not (docs.exists() and docs.samefile(began)):
        raise InputError(
            f"{option}: a cycle of this name has begun with the documents in {began}, not {docs}: give "
            "another --name"
        )
    if run["status"] == "done":
        what = f"cycle {run['result']['cycle']} of {began} is done: nothing is run, and this is what it found"
        ws.progress.say(f"{option}: {what} (another --name begins a new one)")
    else:
        away = ws.command("prune", "--run", run["id"], "--yes")
        anew = f"to begin anew, give another --name, or run `{away}` first"
        ws.progress.say(f"{option}: the cycle of {began} goes on as it began, whatever else is given; {anew}")
    return resume(ws, run["id"])


def _newest(ws: Workspace) -> dict[str, Any]:
    """Return the newest unfinished run; ask where it ended on its input and an earlier one was cut off."""
    unfinished = [run for run in queries.unfinished_runs(ws.tracker.db) if run["kind"] in AGAIN]
    runs = [run for run in unfinished if not worked_on(ws.run_directory(run["id"]))]
    if not runs:
        busy = "; another process works on what is unfinished" if unfinished else ""
        listing = ws.command("ls", "runs")
        raise InputError(f"no run was interrupted{busy}: `{listing}` lists every run")
    newest = runs[0]
    cut_off = next((run for run in runs if not _refused(run)), None)
    if _refused(newest) and cut_off:
        again, onward = (ws.command("resume", run["id"]) for run in (newest, cut_off))
        raise InputError(
            f"the newest unfinished run ended on its input ({newest['error']}): `{again}` tries it again, "
            f"`{onward}` goes on with the one that was cut off before it, and "
            f"`{ws.command('prune', '--run', newest['id'], '--yes')}` gives the newest one up"
        )
    return newest


def _refused(run: dict[str, Any]) -> bool:
    return run["status"] == "failed" and str(run["error"]).startswith(REFUSED)
