"""How long the rows of a distillation may be, for student, engines and memory to hold them with an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.engines.engine_checks import INPROCESS
from pipelines.prompts.lengths import Limit, of_memory, of_pairs, of_reader, of_teacher

if TYPE_CHECKING:
    from pipelines.config.sections.distill import DistillConfig
    from recovery.methods.method import Method
    from recovery.models.chat_encoding import ChatEncoder
    from recovery.teachers.contexts import Context


@dataclass(frozen=True)
class Readers:
    """What reads the rows, and how many tokens of prompt and answer each takes."""

    encoder: ChatEncoder
    student: float
    sampler: float  # the engine that samples; infinity in this process
    teacher: float  # a frozen one, or the anchor; infinity without


def limits_of_prompts(
    settings: DistillConfig, method: Method, context: Context | None, readers: Readers
) -> list[Limit]:
    """Return the limits of a prompt, in the order in which rows are left out by them.

    A context that is too long for the student's own length is only said, as answers may be short; but a
    teacher on an engine, or one that goes on with an answer, refuses one that fills its length, in the middle
    of a training.
    """
    encoder, new_tokens = readers.encoder, settings.max_new_tokens
    limits = [of_reader(encoder, readers.student, context), of_reader(encoder, readers.sampler)]
    if settings.longest_row:  # none in runs that began before there was one
        limits.append(of_memory(encoder, settings.longest_row, new_tokens))
    continued = method.state_kind == "student-continued"
    fills = context is not None and (continued or settings.teacher_engine != INPROCESS)
    if readers.teacher < readers.student or fills:
        reads = min(readers.student, readers.teacher) if continued else readers.teacher
        limits.append(of_teacher(encoder, context, reads, new_tokens))
    return limits


def limit_of_pairs(settings: DistillConfig, readers: Readers) -> Limit:
    """Return what a pair may not exceed, answer included."""
    read = min(readers.student, readers.teacher)
    return of_pairs(readers.encoder, min(read, settings.longest_row or read))
