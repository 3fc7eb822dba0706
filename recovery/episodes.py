"""A distillation step's data: prompts are drawn, someone writes, the teacher scores; then it is training data.

Everything depends on (seed, step, weights) alone, so that a resumed run meets the same prompts and draws.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from recovery.alarms import response_metrics
from recovery.dials import Method
from recovery.errors import InputError
from recovery.sampling import SamplingParams
from recovery.teachers import scored
from recovery.trainer import Microbatch, step_seed

if TYPE_CHECKING:
    from recovery.models import ChatModel
    from recovery.rollouts import Rollouts
    from recovery.sampling import Sampler
    from recovery.teachers import Teacher

Messages = list[dict[str, str]]
WORKING_STATES = ("student",)


class Episodes:
    """Batches for the trainer, sampled from the student as it is at each step."""

    def __init__(
        self, student: ChatModel, sampler: Sampler, teacher: Teacher, method: Method, prompts: Sequence[Messages], *,
        prompts_per_step: int, samples_per_prompt: int, max_new_tokens: int, microbatch_tokens: int, seed: int,
    ) -> None:  # fmt: skip
        if method.state_kind not in WORKING_STATES or method.needs_rewards or method.context != "none":
            raise InputError(f"method {method.name!r} is in the table but cannot be run yet: use opd or opd-sampled")
        self.student, self.sampler, self.teacher, self.method, self.seed = student, sampler, teacher, method, seed
        self.prompt_ids = [student.prompt_ids(messages) for messages in prompts]
        self.prompts_per_step = min(prompts_per_step, len(prompts))
        self.samples_per_prompt = max(samples_per_prompt, method.group_size)
        self.max_new_tokens, self.microbatch_tokens = max_new_tokens, microbatch_tokens
        self.tokens_sampled = self.tokens_scored = 0
        self._last: dict[str, float] = {}

    def updates(self, step: int) -> Iterator[list[Microbatch]]:
        """Every optimizer update that a step's rollouts are used for."""
        rollouts = self.write(step)
        self._last = self._behaviour(rollouts)
        parts = scored(self.teacher, rollouts, self.microbatch_tokens)
        self.tokens_sampled += rollouts.n_tokens
        self.tokens_scored += rollouts.n_tokens
        batches = [Microbatch(part, {"scores": scores}) for part, scores in parts]
        for _ in range(self.method.epochs):
            yield from minibatches(batches, self.method.minibatches)

    def write(self, step: int) -> Rollouts:
        """The step's prompts, each answered by the student `samples_per_prompt` times."""
        prompts = [self.prompt_ids[i] for i in self.draw(step) for _ in range(self.samples_per_prompt)]
        params = SamplingParams(self.max_new_tokens, self.method.temperature, step_seed(self.seed, step))
        return self.sampler.sample(prompts, params)

    def draw(self, step: int) -> list[int]:
        """The step's prompts: every prompt once before any comes again, in an order of each epoch's own."""
        total, start = len(self.prompt_ids), (step - 1) * self.prompts_per_step
        orders: dict[int, list[int]] = {}
        drawn = []
        for position in range(start, start + self.prompts_per_step):
            epoch, place = divmod(position, total)
            if epoch not in orders:
                orders[epoch] = random.Random(f"prompts:{self.seed}:{epoch}").sample(range(total), total)
            drawn.append(orders[epoch][place])
        return drawn

    def metrics(self) -> dict[str, float]:
        """How the student behaved in the last step: what the alarms listen to."""
        return self._last

    def _behaviour(self, rollouts: Rollouts) -> dict[str, float]:
        responses = rollouts.responses()
        texts = [self.student.text(response) for response in responses]
        return response_metrics(texts, [len(response) for response in responses], rollouts.finished_B.tolist())


def minibatches(batches: list[Microbatch], count: int) -> Iterator[list[Microbatch]]:
    """The microbatches dealt out to `count` updates; fewer where there are fewer microbatches."""
    for start in range(min(count, len(batches))):
        yield batches[start::count]
