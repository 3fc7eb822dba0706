"""The model that a distillation begins with: the student, with the teacher's share merged in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.config.jobs import DistillJob, Kind, MergeJob
from pipelines.merge import merged
from pipelines.runs import training_run
from pipelines.runs.stage_runner import Stage
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel
    from recovery.storage.checkpoints import Checkpoint


def starting_model(ws: Workspace, job: DistillJob, stage: Stage) -> tuple[Checkpoint, ChatModel]:
    """Return the starting checkpoint and the model to train, after merging in the teacher's share.

    Under a fresh adapter the merged weights become a checkpoint; an adapter on the teacher is scaled down.
    """
    from recovery import distributed
    from recovery.models import merging

    settings = job.settings
    share = settings.merge
    parent = ws.checkpoint(job.student)
    if not share:
        return parent, training_run.student(ws, parent, settings, job.seed)
    teacher = ws.checkpoint(job.teacher)
    kind: Kind = "linear" if settings.merge_of == "all" else "embeddings"
    which = "weights" if kind == "linear" else kind
    stage.say(f"  merge        begins with {share:.0%} of the teacher's {which} mixed into the student's")
    if settings.adapter and not parent.base:
        mixture = MergeJob(student=parent.id, other=teacher.id, weight=share, kind=kind)
        below = ws.checkpoint(distributed.once(lambda: merged(ws, mixture, stage)))
        return below, training_run.student(ws, below, settings, job.seed)
    student = training_run.student(ws, parent, settings, job.seed)
    if not parent.base:
        merging.mix_in(student, ws.load(teacher), share, kind)
    elif parent.base == teacher.id:
        merging.weaken(student, 1 - share if kind == "linear" else 1.0)
    else:
        raise InputError("merge: the student is an adapter on another model than the teacher: leave it out")
    return parent, student
