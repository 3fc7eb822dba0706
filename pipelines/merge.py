"""Merge: mix a share of the clean weights into the student, the training-free baseline."""

from __future__ import annotations

from pipelines.config.jobs import Kind, MergeJob
from pipelines.runs.stage_runner import Result, Stage, run_stage
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError


def merge(ws: Workspace, job: MergeJob, *, parent: str | None = None, key: str | None = None) -> Result:
    """Merge `weight` of the other checkpoint into the student; return {"checkpoint": id, "weight": ...}."""
    require(job.weight, job.kind, job.origin)
    return run_stage(
        ws, "merge", lambda stage: _work(ws, job, stage), config=job.model_dump(), parent=parent, key=key
    )


def require(weight: float, kind: Kind = "linear", origin: str | None = None) -> None:
    """Refuse invalid settings before anything is recorded."""
    if not 0 <= weight <= 1:
        raise InputError(f"--weight {weight:g} is outside 0 to 1: give the share of the other checkpoint")
    if kind == "residual" and origin is None:
        raise InputError("--method residual adds (with - origin): give --origin, what --with was tuned from")
    if kind != "residual" and origin is not None:
        raise InputError(f"--origin has no effect with --method {kind}: it belongs to residual")


def _work(ws: Workspace, job: MergeJob, stage: Stage) -> Result:
    return {"checkpoint": merged(ws, job, stage), "weight": job.weight}


def merged(ws: Workspace, job: MergeJob, stage: Stage) -> str:
    """Publish the merged checkpoint and return its id; repeating a merge returns the same id."""
    from recovery.models.merging import merge_weights

    student, other = ws.checkpoint(job.student), ws.checkpoint(job.other)
    origin = ws.checkpoint(job.origin).path if job.origin else None
    if ws.config.model.quantize and (student.base or other.base):
        stage.say("  the adapter goes into the stored weights, not into the 4-bit ones it was trained on")
    checkpoint = ws.store.publish(
        lambda target: merge_weights(
            student.path, other.path, target, job.weight, job.kind, origin=origin, on_tensor=stage.step
        ),
        kind="full",
        parent=student.id,
        config={"stage": "merge", **job.model_dump()},
    )
    ws.record(checkpoint, stage.id)
    return checkpoint.id
