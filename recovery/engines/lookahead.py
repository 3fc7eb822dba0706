"""A step ahead: the next answers are written while these are scored and trained on.

They come from the weights of one step before, so each token weighs p(trainer) / p(sampler), within a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from recovery.batches.rollouts import Rollouts
from recovery.methods.method import Method
from recovery.methods.table import with_dials
from recovery.sampling.prefix_writers import Desk
from recovery.sampling.protocol import SamplingParams

IMPORTANCE_CLIP = 2.0  # where the method names no limit


class Starter(Protocol):
    """A sampler that writes elsewhere than in the trainer's model."""

    def start(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Callable[[], Rollouts]: ...


@dataclass(frozen=True)
class Ahead:
    """Whose answers are begun a step early, and for which steps.

    Not for the step after a saved state: who resumes there has nothing begun, and has to meet what a run
    meets that was never cut off.
    """

    sampler: Starter
    steps: int
    save_every: int

    def starts(self, step: int) -> bool:
        """Whether a step's answers are begun during the step before it."""
        saved_before = self.save_every > 0 and (step - 1) % self.save_every == 0
        return 1 < step <= self.steps and not saved_before

    def start(self, desk: Desk) -> Desk:
        """The desk, with its answers on their way from the weights of this moment."""
        prompts = [desk.views.student(row) for row in desk.rows]
        return replace(desk, sampler=_Started(self.sampler.start(prompts, desk.params)))


class _Started:
    """A sampler that has been asked already."""

    def __init__(self, answers: Callable[[], Rollouts]) -> None:
        self.answers = answers

    def sample(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Rollouts:
        return self.answers()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[list[int]]:
        return self.answers().responses()


def corrected(method: Method) -> Method:
    """The method with a limit to what a token weighs, if it has none."""
    clip = IMPORTANCE_CLIP if method.importance_clip is None else method.importance_clip
    return with_dials(method, {"importance_clip": clip})
