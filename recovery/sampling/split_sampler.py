"""Sample in several processes: each samples a part of the prompts, and all get every response."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from recovery.batches.rollouts import Rollouts, joined
from recovery.distributed import broadcast, gather, rank, world
from recovery.launch_env import launched_here
from recovery.sampling.protocol import Sampler, SamplingParams


def in_parts(
    count: int, write: Callable[[slice, SamplingParams], Rollouts], params: SamplingParams, pad_id: int
) -> Rollouts:
    """Write each process's part of `count` answers and gather all; of fewer than processes take rank 0's."""
    if world() == 1:
        return write(slice(count), params)
    params = replace(params, together=launched_here())
    if count < world():
        return broadcast(write(slice(count), params).to("cpu"))
    cuts = [count * part // world() for part in range(world() + 1)]
    first, last = cuts[rank()], cuts[rank() + 1]
    written = write(slice(first, last), replace(params, first=params.first + first)).to("cpu")
    return joined(gather(replace(written, index_B=written.index_B + first)), pad_id)


class SplitSampler:
    """Returns the same responses in every process, as if one process had sampled them."""

    @classmethod
    def of(cls, sampler: Sampler, pad_id: int) -> Sampler:
        """Split the sampler over the processes, unless there is only one or it is split already."""
        return sampler if world() == 1 or isinstance(sampler, cls) else cls(sampler, pad_id)

    def __init__(self, sampler: Sampler, pad_id: int) -> None:
        self.sampler = sampler
        self.pad_id = pad_id

    def sample(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Rollouts:
        """Sample this process's part and gather all parts."""

        def write(part: slice, params: SamplingParams) -> Rollouts:
            return self.sampler.sample(prompts[part], params)

        return in_parts(len(prompts), write, params, self.pad_id)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the sampler that is split, if it has any."""
        return self.sampler.metrics() if hasattr(self.sampler, "metrics") else {}
