"""The data of training steps on the tiny model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from recovery.batches.rollouts import Rollouts
from recovery.methods.method import Method
from recovery.models.chat_model import ChatModel
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import SamplingParams
from recovery.teachers.contexts import Context
from recovery.teachers.teachers import CheckpointTeacher, RoutedTeacher, SelfTeacher, Teaching
from recovery.training.step_data import Episodes, StepConfig, Task
from recovery.training.updater import Microbatch
from tests.support import tiny

STEP = StepConfig(prompts_per_step=2, samples_per_prompt=2, max_new_tokens=8, microbatch_tokens=200)


SECRET = "QXZ"


@dataclass(frozen=True)
class Row:
    messages: list[dict[str, str]]
    fields: dict[str, Any] = field(default_factory=dict)


KNOWN = {"answer": SECRET, "hints": SECRET, "passage": SECRET}


PROMPTS = [
    Row([{"role": "user", "content": text}], KNOWN | {"response": text * 2, "route": route})
    for text, route in (("ab", "x"), ("cde", "y"), ("f", "x"), ("gh", "y"), ("i", "y"))
]


class Listener:
    """A student's sampler that remembers what it was asked."""

    def __init__(self, student: ChatModel) -> None:
        self.sampler = InProcessSampler(student)
        self.asked: list[list[int]] = []

    def sample(self, prompts: list[list[int]], params: SamplingParams) -> Rollouts:
        self.asked += prompts
        return self.sampler.sample(prompts, params)


def coin(response: str, item: Any) -> float:
    """A reward that depends on the answer, and now and then is whole."""
    return float(sum(map(ord, response)) % 2)


def make_teacher(method: Method, student: ChatModel) -> Teaching | None:
    kind = "dense" if method.scores == "none" else method.scores
    if method.teacher in ("self", "self-ema"):
        return SelfTeacher(student, kind, decay=method.ema if method.teacher == "self-ema" else None)
    if method.teacher == "routed":
        teachers = {
            name: CheckpointTeacher(tiny.chat_model(seed), kind) for name, seed in (("x", 5), ("y", 6))
        }
        return RoutedTeacher(teachers, [row.fields["route"] for row in PROMPTS * 2])
    return CheckpointTeacher(tiny.chat_model(seed=7), kind) if method.teacher == "base" else None


PARTS = ("sampler", "rehearsal", "on_scored", "ahead")  # the rest belongs to the task


def episodes(
    method: Method, student: ChatModel, step: StepConfig = STEP, seed: int = 4, **changes: Any
) -> Episodes:
    parts: dict[str, Any] = {
        "sampler": Listener(student),
        "teacher": make_teacher(method, student),
        "prompts": PROMPTS,
        "pairs": PROMPTS,
        "context": Context(method.context, SECRET) if method.context != "none" else None,
        "anchor": CheckpointTeacher(tiny.chat_model(seed=7)) if method.anchor_beta else None,
        "reward": coin,
    } | changes
    task = Task(method, **{name: part for name, part in parts.items() if name not in PARTS})
    rest = {name: part for name, part in parts.items() if name in PARTS}
    return Episodes(student, task=task, config=replace(step, seed=seed), **rest)


def parts(made: Episodes, step: int = 1) -> list[Microbatch]:
    return [part for update in made.updates(step) for part in update]
