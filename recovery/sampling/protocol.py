"""What every sampler offers, wherever it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from recovery.batches.rollouts import Rollouts
from recovery.errors import InputError

OnProgress = Callable[[int, int], None]  # (finished responses, all responses)


@dataclass(frozen=True)
class SamplingParams:
    """How to sample. No top-p or top-k: a loss over the whole vocabulary needs samples from all of it."""

    max_new_tokens: int = 256
    temperature: float = 1.0  # 0 takes the most likely token
    seed: int = 0
    first: int = 0  # the place of the first prompt, where these are a part of a longer list
    stop_loops: bool = False  # end a response that only repeats itself: it has no stop token then
    # Called while responses are written with the tokens so far, in this process; samplers may leave it out.
    on_tokens: Callable[[int], None] | None = field(default=None, compare=False, repr=False)
    together: int = field(default=1, compare=False)  # processes that sample on this machine at the same time

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise InputError(f"sampling: max_new_tokens {self.max_new_tokens}: give at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise InputError(
                f"sampling: temperature {self.temperature}: give 0 (greedy) or a positive number"
            )


class Sampler(Protocol):
    def sample(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Rollouts:
        """Return a response to each prompt, with the log-probs of its tokens."""
        ...


class AnsweringSampler(Sampler, Protocol):
    """A sampler that also answers as users read it: for evaluation, and for texts that a model writes."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        on_progress: OnProgress | None = None,
    ) -> list[list[int]]:
        """Return responses without their stop tokens."""
        ...
