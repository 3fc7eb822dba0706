"""Sample the next step's answers while the current ones are scored and trained on (one-step look-ahead).

These samples are one step off-policy, so they are corrected by truncated importance weights
p(trainer) / p(sampler).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from recovery.batches.rollouts import Rollouts
from recovery.methods.method import Method
from recovery.methods.table import with_dials
from recovery.sampling.prefix_writers import StepInputs
from recovery.sampling.protocol import SamplingParams

IMPORTANCE_CLIP = 2.0  # default for methods without a clip


class BackgroundSampler(Protocol):
    """A sampler that generates in the background, in an engine other than the trainer's model."""

    def start(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Callable[[], Rollouts]: ...


@dataclass(frozen=True)
class Lookahead:
    """Decide which steps are sampled one step early, and start their sampling.

    The step after a saved state is never sampled early: a resumed run has no pending samples there, and must
    equal an uninterrupted run.
    """

    sampler: BackgroundSampler
    steps: int
    save_every: int

    def starts(self, step: int) -> bool:
        """Return whether the sampling of a step starts during the step before it."""
        saved_before = self.save_every > 0 and (step - 1) % self.save_every == 0
        return 1 < step <= self.steps and not saved_before

    def start(self, inputs: StepInputs) -> StepInputs:
        """Start sampling from the current weights; return the inputs with these pending answers."""
        prompts = [inputs.views.student(row) for row in inputs.rows]
        return replace(inputs, sampler=_Started(self.sampler.start(prompts, inputs.params)))


class _Started:
    """A sampler that returns answers whose generation has already started."""

    def __init__(self, answers: Callable[[], Rollouts]) -> None:
        self.answers = answers

    def sample(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Rollouts:
        return self.answers()


def corrected(method: Method) -> Method:
    """Return the method with an importance clip; set the default if it has none."""
    clip = IMPORTANCE_CLIP if method.importance_clip is None else method.importance_clip
    return with_dials(method, {"importance_clip": clip})
