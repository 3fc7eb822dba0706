"""Refuse teachers that cannot teach the student, before any model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines.distillation.inputs import before_midtraining, used_routes
from pipelines.engines.engine_checks import INPROCESS
from pipelines.engines.engine_places import require_whole_teacher
from pipelines.prompts.prompt_sources import Prompt
from recovery.errors import InputError
from recovery.methods.choices import FROZEN

if TYPE_CHECKING:
    from pipelines.config.jobs import DistillJob
    from pipelines.runs.workspace import Workspace
    from recovery.methods.method import Method
    from recovery.storage.checkpoints import Checkpoint


def require_teachers(
    ws: Workspace, job: DistillJob, method: Method, rows: Sequence[Prompt], *, midtrains: bool
) -> None:
    """Refuse a frozen teacher of these rows, or an anchor, that is not there, that its engine cannot hold, or
    whose token ids are not the student's.

    With `midtrains`, the job's student is still to be midtrained: it is itself the one before that.
    """
    refs = _scoring(ws, job, method, rows, midtrains=midtrains)
    teachers = [ws.checkpoint(ref) for ref in dict.fromkeys(refs)]
    if job.settings.teacher_engine != INPROCESS:
        for teacher in teachers:
            require_whole_teacher(teacher)
    if method.anchor_beta:
        teachers.append(ws.checkpoint(job.teacher))
    if job.settings.preflight:
        student = ws.checkpoint(job.student)
        for teacher in teachers:
            _require_vocabulary(ws, student, teacher)


def _scoring(
    ws: Workspace, job: DistillJob, method: Method, rows: Sequence[Prompt], *, midtrains: bool
) -> list[str]:
    """Return the checkpoints that score or write for these rows, but for the student itself."""
    if method.teacher == "routed":
        return list(used_routes(job, rows).values())
    if method.teacher == "previous":
        return [job.student if midtrains else before_midtraining(ws, job.student)]
    return [job.teacher] if method.teacher in FROZEN else []


def _require_vocabulary(ws: Workspace, student: Checkpoint, teacher: Checkpoint) -> None:
    """Refuse a teacher of another vocabulary, which the preflight would only find beside loaded models."""
    if (teacher.base or teacher.id) == (student.base or student.id):
        return
    from recovery.training import preflight

    found = preflight.vocabulary(ws.encoder(student), ws.encoder(teacher))
    if not found.ok:
        raise InputError(f"the teacher {teacher.id}: {found.detail}: {found.remedy}")
