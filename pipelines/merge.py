"""Merge: mix a share of the clean weights into the student, the training-free baseline."""

from __future__ import annotations

from pipelines.config.jobs import MergeJob, Mixture
from pipelines.runs.stage_runner import Result, Stage, run_job
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError


def merge(ws: Workspace, job: MergeJob, *, parent: str | None = None, key: str | None = None) -> Result:
    """Merge `weight` of the other checkpoint into the student; return {"checkpoint": id, "weight": ...}."""
    require_share(job.weight)
    check_options(job)
    return run_job(ws, "merge", _work, job, parent=parent, key=key)


def require_share(weight: float) -> None:
    """Refuse a weight that is no share."""
    if not 0 <= weight <= 1:
        raise InputError(f"--weight {weight:g} is outside 0 to 1: give the share of the other checkpoint")


def check_options(job: Mixture) -> None:
    """Refuse options that this kind of merging does not take, and a `keep` that is no share."""
    if not 0 < job.keep <= 1:
        raise InputError(f"--keep {job.keep:g} is no share of the entries: give one above 0, up to 1")
    if job.kind == "residual":
        if job.origin is None:
            raise InputError(
                "--method residual adds (with - origin): give --origin, what --with was tuned from"
            )
        return
    set_here = {"origin": job.origin is not None, "keep": job.keep != 1, "elect-signs": job.elect_signs}
    for option in (name for name, is_set in set_here.items() if is_set):
        raise InputError(f"--{option} has no effect with --method {job.kind}: it belongs to residual")


def require_mergeable(ws: Workspace, job: Mixture) -> None:
    """Refuse checkpoints that cannot be merged, by the headers of their files."""
    from recovery.models.merging import mergeable, token_matrices

    places = [job.student, job.other, *([job.origin] if job.origin else [])]
    paths = [ws.checkpoint(place).path for place in places]
    student, *_ = mergeable(paths, ws.config.model.trust_remote_code)
    if job.kind == "embeddings":
        token_matrices(student)


def _work(ws: Workspace, job: MergeJob, stage: Stage) -> Result:
    return {"checkpoint": merged(ws, job, stage), "weight": job.weight}


def merged(ws: Workspace, job: MergeJob, stage: Stage) -> str:
    """Publish the merged checkpoint and return its id; repeating a merge returns the same id."""
    from recovery.models.merging import merge_weights
    from recovery.models.task_vectors import Residual

    student, other = ws.checkpoint(job.student), ws.checkpoint(job.other)
    residual = None
    if job.origin:
        residual = Residual(ws.checkpoint(job.origin).path, job.keep, job.elect_signs)
    if ws.config.model.quantize and (student.base or other.base):
        stage.say("  the adapter goes into the stored weights, not into the 4-bit ones it was trained on")
    return ws.publish_files(
        lambda target: merge_weights(
            student.path,
            other.path,
            target,
            job.weight,
            job.kind,
            residual=residual,
            on_tensor=stage.step,
            trust_remote_code=ws.config.model.trust_remote_code,
        ),
        parent=student,
        run_id=stage.id,
        config={"stage": "merge", **job.model_dump()},
    ).id
