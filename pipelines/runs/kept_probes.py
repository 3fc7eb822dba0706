"""Keep the questions that a cycle asks: the file that held them may hold the next month's by then."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from db.reads import queries
from pipelines.config.jobs import CycleJob
from pipelines.config.overrides import changed
from pipelines.runs.pinned_inputs import changed_since, hashes, kept_questions, require_there
from pipelines.runs.workspace import Workspace
from recovery.storage import atomic_dirs

INPUT = "probes"  # among a job's inputs


def keep(ws: Workspace, job: CycleJob) -> CycleJob:
    """Copy the probes of a cycle, whose inputs are hashed, into the home; return the job that reads the copy.

    Without probes the job stays as it is."""
    if INPUT not in job.inputs or not job.settings.eval.probes:
        return job
    kept = kept_questions(ws, job.inputs[INPUT])
    if not kept.exists():
        require_there(job, [INPUT])
        held = Path(job.settings.eval.probes).read_bytes()
        if hashlib.sha256(held).hexdigest() != job.inputs[INPUT]:
            raise changed_since(INPUT, job.settings.eval.probes)
        kept.parent.mkdir(exist_ok=True)
        with atomic_dirs.whole_file(kept) as file:
            file.write(held)
    return read_as_kept(ws, job)


def read_as_kept(ws: Workspace, job: CycleJob) -> CycleJob:
    """Return the job with the home's copy of its probes, once there is one, in place of the file."""
    kept = kept_questions(ws, job.inputs[INPUT]) if INPUT in job.inputs else None
    if kept is None or not kept.is_file():
        return job
    return job.model_copy(update={"settings": changed(job.settings, {"eval.probes": str(kept)})})


def earlier_probes(ws: Workspace, student: str) -> dict[int, str]:
    """Return the files of questions that the cycles behind a checkpoint asked, by cycle number.

    A cycle whose questions are neither kept nor unchanged where they lay is left out.
    """
    jobs = queries.cycles_behind(ws.tracker.db, student)
    found = {number: _as_asked(ws, job) for number, job in jobs.items()}
    return {number: str(path) for number, path in found.items() if path}


def _as_asked(ws: Workspace, job: dict[str, Any]) -> Path | None:
    named, digest = job["settings"]["eval"]["probes"], job.get("inputs", {}).get(INPUT)
    if not named:
        return None
    if digest and kept_questions(ws, digest).is_file():
        return kept_questions(ws, digest)
    there = hashes({INPUT: named}).get(INPUT)
    return Path(named) if there and digest in (None, there) else None
