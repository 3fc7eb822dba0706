"""Sampling in several processes: each samples its part of the prompts, all get the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from recovery.batches.rollouts import Rollouts, joined
from recovery.distributed import gather, rank, world
from recovery.sampling.protocol import Sampler, SamplingParams


class SplitSampler:
    """Each process writes its part of the answers, and all get the whole, as if one had written it."""

    @classmethod
    def of(cls, sampler: Sampler, pad_id: int) -> Sampler:
        """The sampler itself where there is one process, or where it is split already."""
        return sampler if world() == 1 or isinstance(sampler, cls) else cls(sampler, pad_id)

    def __init__(self, sampler: Sampler, pad_id: int) -> None:
        self.sampler, self.pad_id = sampler, pad_id

    def sample(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Rollouts:
        if len(prompts) < world():
            return self.sampler.sample(prompts, params)
        cuts = [len(prompts) * part // world() for part in range(world() + 1)]
        first, last = cuts[rank()], cuts[rank() + 1]
        own = replace(params, first=params.first + first)
        written = self.sampler.sample(prompts[first:last], own).to("cpu")
        parts = gather(replace(written, index_B=written.index_B + first))
        return joined(parts, self.pad_id)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[list[int]]:
        """Responses only; every process writes all of them."""
        return self.sampler.generate(prompts, params, on_progress)
