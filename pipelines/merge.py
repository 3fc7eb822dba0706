"""Merging: the training-free baseline. A share of the clean weights is mixed into the student's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from pipelines.config import Section
from pipelines.stages import Result, Stage, run_stage
from pipelines.workspace import Workspace
from recovery.errors import InputError

if TYPE_CHECKING:
    from recovery.models import ChatModel


class MergeJob(Section):
    """Whose weights to mix, and in which share."""

    student: str
    other: str
    weight: float = Field(allow_inf_nan=True)  # so that merge() can say what is wrong with it


def merge(ws: Workspace, job: MergeJob, *, parent: str | None = None, key: str | None = None) -> Result:
    """(1 - weight) of the student and weight of the other; returns {"checkpoint": id}."""
    if not 0 <= job.weight <= 1:
        raise InputError(f"--weight {job.weight:g} is outside 0 to 1: give the share of the other checkpoint")
    return run_stage(
        ws, "merge", lambda stage: _work(ws, job, stage), config=job.model_dump(), parent=parent, key=key
    )  # fmt: skip


def _work(ws: Workspace, job: MergeJob, stage: Stage) -> Result:
    parent = ws.checkpoint(job.student)
    student, other = ws.load(parent), ws.load(ws.checkpoint(job.other))
    student.model, other.model = _plain(student), _plain(other)
    interpolate(student.model, other.model, job.weight)
    made_by = {"stage": "merge", **job.model_dump()}
    checkpoint = ws.publish(student, parent=parent, run_id=stage.id, config=made_by)
    return {"checkpoint": checkpoint.id, "weight": job.weight}


def _plain(chat_model: ChatModel) -> Any:
    """The model with its adapter, if it has one, added into its weights."""
    model = chat_model.model
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model


def interpolate(model: Any, other: Any, weight: float) -> None:
    """model <- (1 - weight) * model + weight * other, in place, tensor by tensor."""
    import torch

    theirs = dict(other.named_parameters())
    mine = dict(model.named_parameters())
    if mine.keys() != theirs.keys() or any(mine[name].shape != theirs[name].shape for name in mine):
        raise InputError("merge: the models have different tensors: merge checkpoints of one architecture")
    with torch.no_grad():
        for name, parameter in mine.items():
            parameter.lerp_(theirs[name].to(parameter), weight)
