"""Who writes the states: one short function a kind, from a step's desk to rollouts.

Whatever the teacher saw while it wrote, the rollouts hold the prompts that the student sees; `index_B` names
the row that each sequence belongs to.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recovery.batches.rollouts import Rollouts, joined
from recovery.errors import InputError
from recovery.methods.method import Method
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.mixture import MixedSampler
from recovery.sampling.protocol import Sampler, SamplingParams
from recovery.sampling.split import SplitSampler
from recovery.teachers.teachers import CheckpointTeacher, RoutedTeacher, Teacher

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel
    from recovery.teachers.contexts import Views

KEPT_REWARD = 1.0  # what an answer must earn to be imitated


@dataclass(frozen=True)
class Desk:
    """One step's writing: for which rows, by whom, with which dice."""

    method: Method
    step: int
    student: ChatModel
    sampler: Sampler
    teacher: Teacher | None
    views: Views
    rows: list[int]  # the prompt of each sequence to be written
    data: list[int]  # the pairs whose answers may be read instead
    params: SamplingParams
    dice: random.Random
    rewards: Callable[[Rollouts], Tensor]
    heard: list[Rollouts] = field(default_factory=list)  # what the student had a hand in, whole


def data(desk: Desk) -> Rollouts:
    """The data's own answers."""
    made = Rollouts.from_dialogues([desk.views.dialogue(row) for row in desk.data], desk.student.pad_id)
    return _indexed(made, desk.data)


def student(desk: Desk) -> Rollouts:
    """The student's answers."""
    written = desk.sampler.sample([desk.views.student(row) for row in desk.rows], desk.params)
    desk.heard.append(written)
    return _indexed(written, desk.rows)


def mix(desk: Desk) -> Rollouts:
    """A share of the sequences by the student, the rest data; the share holds over the steps together."""
    whole = desk.method.share * len(desk.rows)
    own = int(whole * desk.step) - int(whole * (desk.step - 1))
    others = desk.data[: len(desk.rows) - own]
    parts = [student(replace(desk, rows=desk.rows[:own]))] if own else []
    parts += [data(replace(desk, data=others))] if others else []
    return joined(parts, desk.student.pad_id)


def student_kept(desk: Desk) -> Rollouts:
    """The student's answers that earned the whole reward; maybe none."""
    written = student(desk)
    return written.select((desk.rewards(written) >= KEPT_REWARD).nonzero()[:, 0])


def teacher(desk: Desk) -> Rollouts:
    """The teacher's answers to what it sees, as answers to what the student sees."""
    prompts = [desk.views.teacher(row) for row in desk.rows]
    written = _by_teacher(desk, lambda one, at: writes(one, _pick(prompts, at), desk.params))
    return written.with_prompts([desk.views.student(row) for row in desk.rows], desk.student.pad_id)


def student_continued(desk: Desk) -> Rollouts:
    """The student starts, the teacher goes on from a random token of it; only the teacher's tokens count."""
    starts = [answer[: desk.dice.randrange(len(answer))] for answer in student(desk).responses()]
    params = replace(desk.params, max_new_tokens=desk.method.continuation, seed=desk.params.seed ^ 1)
    prompts = [desk.views.teacher(row) + start for row, start in zip(desk.rows, starts, strict=True)]
    written = _by_teacher(desk, lambda one, at: writes(one, _pick(prompts, at), params))
    own = [desk.views.student(row) for row in desk.rows]
    written = written.with_prompts([a + b for a, b in zip(own, starts, strict=True)], desk.student.pad_id)
    return replace(written, prompt_lengths_B=torch.tensor([len(prompt) for prompt in own]))


def teacher_mix(desk: Desk) -> Rollouts:
    """Every token drawn from a mixture of both distributions, each reading its own prompt."""
    own, theirs = ([view(row) for row in desk.rows] for view in (desk.views.student, desk.views.teacher))

    def write(one: Teacher, at: list[int]) -> Rollouts:
        sampler = MixedSampler(desk.student, _local(one), desk.method.share)
        return sampler.sample(_pick(own, at), _pick(theirs, at), desk.params)

    written = _by_teacher(desk, write)
    desk.heard.append(written)
    return written


WRITERS: dict[str, Callable[[Desk], Rollouts]] = {
    "data": data,
    "student": student,
    "mix": mix,
    "student-kept": student_kept,
    "student-continued": student_continued,
    "teacher": teacher,
    "teacher-mix": teacher_mix,
}


def _by_teacher(desk: Desk, write: Callable[[Teacher, list[int]], Rollouts]) -> Rollouts:
    """What each row's own teacher writes (`write(teacher, places)`), in the rows' order."""
    places: dict[str, list[int]] = {}
    routed = desk.teacher if isinstance(desk.teacher, RoutedTeacher) else None
    for place, row in enumerate(desk.rows):
        places.setdefault(routed.routes[row] if routed else "", []).append(place)
    teachers = routed.teachers if routed else {"": desk.teacher}
    parts = [write(teachers[name], at) for name, at in places.items()]  # type: ignore[arg-type]
    order = torch.tensor([place for at in places.values() for place in at]).argsort()
    return _indexed(joined(parts, desk.student.pad_id).select(order), desk.rows)


def writes(one: Teacher, prompts: list[list[int]], params: SamplingParams) -> Rollouts:
    """A teacher's own answers: by a model in this process, or by whoever can sample."""
    if isinstance(one, CheckpointTeacher):
        with one._as_teacher():
            own = InProcessSampler(one.chat_model)
            return SplitSampler.of(own, one.chat_model.pad_id).sample(prompts, params)
    if not hasattr(one, "sample"):
        raise InputError("states: this teacher only scores: name a teacher that can write, or other states")
    written: Rollouts = one.sample(prompts, params)
    return written


def _local(one: Teacher) -> CheckpointTeacher:
    if not isinstance(one, CheckpointTeacher):
        raise InputError("states=teacher-mix: both models write each token: name a teacher in this process")
    return one


def _pick(prompts: list[list[int]], places: list[int]) -> list[list[int]]:
    return [prompts[place] for place in places]


def _indexed(rollouts: Rollouts, rows: Sequence[int]) -> Rollouts:
    return replace(rollouts, index_B=torch.tensor(rows))
