"""Write the prefixes on which a step trains: one short function for each kind of `states`.

The rollouts hold the student's prompts, whatever the teacher's were; `index_B` is the row of each sequence.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from recovery.batches.rollouts import Rollouts, joined
from recovery.errors import InputError
from recovery.methods.method import Method
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.mixture import sample_mixture
from recovery.sampling.protocol import Sampler, SamplingParams
from recovery.sampling.split_sampler import SplitSampler, in_parts
from recovery.teachers.teachers import CheckpointTeacher, Teacher, Teaching, taught_places

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel
    from recovery.teachers.contexts import RowEncoder

KEPT_REWARD = 1.0  # the least reward of an answer that is imitated


@dataclass(frozen=True)
class StepInputs:
    """The inputs of one step's prefix writers: rows, models, and random numbers."""

    method: Method
    student: ChatModel
    sampler: Sampler
    teacher: Teaching | None
    views: RowEncoder
    rows: list[int]  # the prompt of each sequence to write: of a mix, by the student
    data: list[int]  # the pairs whose answers may be used instead
    params: SamplingParams
    rng: random.Random
    rewards: Callable[[Rollouts], Tensor]


class StepRollouts(NamedTuple):
    """What a step trains on, and what the student wrote for it or helped to write, if anything."""

    trained: Rollouts
    by_student: Rollouts | None


def data(inputs: StepInputs) -> StepRollouts:
    """Take the answers of the data."""
    made = Rollouts.from_dialogues([inputs.views.dialogue(row) for row in inputs.data], inputs.student.pad_id)
    return StepRollouts(_indexed(made, inputs.data), None)


def student(inputs: StepInputs) -> StepRollouts:
    """Sample the student's answers."""
    written = inputs.sampler.sample([inputs.views.student(row) for row in inputs.rows], inputs.params)
    written = _indexed(written, inputs.rows)
    return StepRollouts(written, written)


def mix(inputs: StepInputs) -> StepRollouts:
    """Sample the student's answers and take those of the data; a step may hold one kind alone."""
    written = student(inputs).trained if inputs.rows else None
    read = data(inputs).trained if inputs.data else None
    parts = [part for part in (written, read) if part is not None]
    return StepRollouts(joined(parts, inputs.student.pad_id), written)


def student_kept(inputs: StepInputs) -> StepRollouts:
    """Keep the student's answers with the full reward; there may be none."""
    written = student(inputs).trained
    kept = (inputs.rewards(written) >= KEPT_REWARD).nonzero()[:, 0]
    return StepRollouts(written.select(kept), written)


def teacher(inputs: StepInputs) -> StepRollouts:
    """Sample the teacher's answers to its prompts, and put them after the student's."""
    prompts = [inputs.views.teacher(row) for row in inputs.rows]
    written = _by_teacher(inputs, lambda one, at: writes(one, _pick(prompts, at), inputs.params))
    asked = [inputs.views.student(row) for row in inputs.rows]
    return StepRollouts(written.with_prompts(asked, inputs.student.pad_id), None)


def student_continued(inputs: StepInputs) -> StepRollouts:
    """Let the teacher continue the student's answers from a random token; only the teacher's tokens count."""
    answered = student(inputs).trained
    starts = [answer[: inputs.rng.randrange(len(answer))] for answer in answered.responses()]
    params = replace(inputs.params, max_new_tokens=inputs.method.continuation, seed=inputs.params.seed ^ 1)
    prompts = [inputs.views.teacher(row) + start for row, start in zip(inputs.rows, starts, strict=True)]
    written = _by_teacher(inputs, lambda one, at: writes(one, _pick(prompts, at), params))
    asked = [inputs.views.student(row) for row in inputs.rows]
    begun = [prompt + start for prompt, start in zip(asked, starts, strict=True)]
    written = written.with_prompts(begun, inputs.student.pad_id)
    written = replace(written, prompt_lengths_B=torch.tensor([len(prompt) for prompt in asked]))
    return StepRollouts(written, answered)


def teacher_mix(inputs: StepInputs) -> StepRollouts:
    """Draw every token from a mixture of both distributions, each after its own prompt."""
    prompts = [inputs.views.student(row) for row in inputs.rows]
    contexts = [inputs.views.teacher(row) for row in inputs.rows]

    def write(one: Teacher, at: list[int]) -> Rollouts:
        mixed = partial(sample_mixture, inputs.student, _local(one), inputs.method.share)
        asked, read = _pick(prompts, at), _pick(contexts, at)
        return in_parts(
            len(at),
            lambda part, params: mixed(asked[part], read[part], params),
            inputs.params,
            inputs.student.pad_id,
        )

    written = _by_teacher(inputs, write)
    return StepRollouts(written, written)


WRITERS: dict[str, Callable[[StepInputs], StepRollouts]] = {
    "data": data,
    "student": student,
    "mix": mix,
    "student-kept": student_kept,
    "student-continued": student_continued,
    "teacher": teacher,
    "teacher-mix": teacher_mix,
}


def _by_teacher(inputs: StepInputs, write: Callable[[Teacher, list[int]], Rollouts]) -> Rollouts:
    """Call `write(teacher, places)` for each teacher; return the rollouts in the rows' order."""
    assert inputs.teacher is not None
    taught = taught_places(inputs.teacher, inputs.rows)
    parts = [write(one, places) for one, places in taught]
    order = torch.tensor([place for _, places in taught for place in places]).argsort()
    return _indexed(joined(parts, inputs.student.pad_id).select(order), inputs.rows)


def writes(one: Teacher, prompts: list[list[int]], params: SamplingParams) -> Rollouts:
    """Sample a teacher's answers, from a model in this process or an engine."""
    if isinstance(one, CheckpointTeacher):
        with one.as_teacher():
            sampler = SplitSampler.of(InProcessSampler(one.chat_model), one.chat_model.pad_id)
            return sampler.sample(prompts, params)
    if not hasattr(one, "sample"):
        raise InputError("states: this teacher only scores: name a teacher that can write, or other states")
    engine: Any = one  # an EngineTeacher
    return SplitSampler.of(engine, engine.student.pad_id).sample(prompts, params)


def _local(one: Teacher) -> CheckpointTeacher:
    if not isinstance(one, CheckpointTeacher):
        raise InputError("states=teacher-mix: both models write each token: name a teacher in this process")
    return one


def _pick(prompts: list[list[int]], places: list[int]) -> list[list[int]]:
    return [prompts[place] for place in places]


def _indexed(rollouts: Rollouts, rows: Sequence[int]) -> Rollouts:
    return replace(rollouts, index_B=torch.tensor(rows))
