"""Sample in several training processes from the same servers.

    rank 0 sends the weights and runs the canary -> barrier -> each process samples its rows -> barrier

All processes must call together. If one of them loses its server, rank 0 restarts it and sends the weights
again, and all repeat the call.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from recovery import distributed
from recovery.batches.rollouts import Rollouts
from recovery.engines.canary import rollouts_of
from recovery.engines.engine_sampler import EngineSampler
from recovery.engines.together import on_every_rank, on_rank_0, with_restart_together
from recovery.sampling.protocol import SamplingParams

if TYPE_CHECKING:
    from recovery.engines.protocol import SampledAnswer
    from recovery.engines.vllm_http import ServerEngine
    from recovery.models.chat_model import ChatModel


class SharedSampler:
    """The samplers of several processes on the same servers, kept in step."""

    def __init__(self, alone: EngineSampler, engine: ServerEngine) -> None:
        self.alone = alone
        self.engine = engine
        self.student = alone.student

    def sample(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Rollouts:
        """Sample one response to each of this process's prompts, from the same weights in all processes."""
        self.alone.check(prompts)
        return rollouts_of(self.student, prompts, self._sample(prompts, params))

    def metrics(self) -> dict[str, float]:
        """Return the last sync's duration and the canary's gaps, on rank 0."""
        return self.alone.metrics()

    def _sample(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[SampledAnswer]:
        answers: list[SampledAnswer] = []

        def sample() -> None:
            answers[:] = self.engine.sample(prompts, params, self.student.stop_ids)

        def attempt() -> str | None:
            return self._sync(prompts, params.temperature) or on_every_rank(sample)

        with_restart_together(self.engine, attempt)
        return answers

    def _sync(self, prompts: Sequence[Sequence[int]], temperature: float) -> str | None:
        """Send the weights from rank 0, tell all processes the adapter's new name; return the problem.

        A sharded student is gathered twice: saving it shards its layers again.
        """
        started = time.perf_counter()
        with _whole_weights(self.student):
            problem = on_rank_0(lambda: self.engine.update_weights(self.student))
        self.engine.models = distributed.broadcast(self.engine.models)
        self.engine.lengths = distributed.broadcast(self.engine.lengths)  # rank 0 alone restarts servers
        if problem is not None:
            return problem
        with distributed.gathered(self.student.model):
            return on_rank_0(lambda: self.alone.verify(prompts, temperature, started))


@contextmanager
def _whole_weights(student: ChatModel) -> Iterator[None]:
    """Gather a sharded student's weights on rank 0 inside the block, so that they can be saved."""
    if not distributed.is_sharded(student.model):
        yield
        return
    student.weights = distributed.whole_weights(student.model)
    try:
        yield
    finally:
        student.weights = None
