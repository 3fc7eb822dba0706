"""Sample from the student through an engine.

send the student's weights -> canary: compare log-probs with the trainer's -> sample
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING

from recovery.batches.rollouts import Rollouts
from recovery.engines.background import in_background
from recovery.engines.canary import CANARY_PROMPTS, Canary, rollouts_of
from recovery.engines.protocol import OnProgress, SampledAnswer, with_restart
from recovery.errors import InputError
from recovery.sampling.in_process import without_stops

if TYPE_CHECKING:
    from recovery.engines.protocol import Engine
    from recovery.models.chat_model import ChatModel
    from recovery.sampling.protocol import SamplingParams


class EngineSampler:
    """Sample from the student through an engine.

    With `follow`, sync the weights before every batch, otherwise only once; a canary verifies each sync. An
    `external` engine is verified before every batch: others may restart it, or send it other weights.
    """

    def __init__(
        self, engine: Engine, student: ChatModel, *, follow: bool = True, external: bool = False
    ) -> None:
        self.engine = engine
        self.student = student
        self.follow = follow
        self.external = external
        self.canary: Canary | None = None
        self._stale = True
        self._pending: Future[list[SampledAnswer]] | None = None  # a batch that is sampled in the background
        self._metrics: dict[str, float] = {}

    def sample(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Rollouts:
        """Sample one response per prompt, with log-probabilities under the sampling distribution."""
        return rollouts_of(self.student, prompts, self._sample(prompts, params, None))

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, on_progress: OnProgress | None = None
    ) -> list[list[int]]:
        """Sample one response per prompt; return token ids only, without the stop token."""
        answers = self._sample(prompts, params, on_progress)
        return without_stops([answer.tokens for answer in answers], self.student.stop_ids)

    def start(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Callable[[], Rollouts]:
        """Start `sample` in the background with the current weights; return a function that awaits it.

        If the engine is lost meanwhile, that function samples again, with the weights of that time.
        """
        self.check(prompts)
        self._wait_for_pending()
        with_restart(self.engine, lambda: self.sync(prompts, params.temperature))
        sample = partial(self.engine.sample, prompts, params, self.student.stop_ids)
        self._pending = pending = in_background(sample)
        attempts = iter((pending.result, lambda: self._sync_and_sample(prompts, params, None)))

        def await_rollouts() -> Rollouts:
            answers = with_restart(self.engine, lambda: next(attempts)())
            return rollouts_of(self.student, prompts, answers)

        return await_rollouts

    def close(self) -> None:
        """Close the engine and discard answers that are still being generated."""
        self.engine.close()
        self._wait_for_pending()

    def metrics(self) -> dict[str, float]:
        """Return the duration of the last sync and the canary's gaps after it."""
        return self._metrics

    def sync(self, prompts: Sequence[Sequence[int]], temperature: float) -> None:
        """Send the student's weights to the engine and check them with the canary."""
        started = time.perf_counter()
        self.engine.update_weights(self.student)
        self.verify(prompts, temperature, started)

    def verify(self, prompts: Sequence[Sequence[int]], temperature: float, started: float) -> None:
        """Check with the canary the weights that the engine holds, after a sync that began at `started`."""
        if self.canary is None:
            # Short ones: vLLM scores no answer that fills the whole length it reads.
            different = sorted(dict.fromkeys(map(tuple, prompts)), key=len)
            self.canary = Canary(different[:CANARY_PROMPTS])
        self._metrics = self.canary.check(self.engine, self.student, temperature)
        self._metrics["sync_seconds"] = time.perf_counter() - started
        self._stale = False

    def _sample(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, on_progress: OnProgress | None
    ) -> list[SampledAnswer]:
        self.check(prompts)
        return with_restart(self.engine, lambda: self._sync_and_sample(prompts, params, on_progress))

    def _sync_and_sample(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, on_progress: OnProgress | None
    ) -> list[SampledAnswer]:
        self._wait_for_pending()
        if self.follow or self._stale:
            self.sync(prompts, params.temperature)
        elif self.external:
            self._stale = True  # where the canary fails, the call is repeated and sends the weights
            self.verify(prompts, params.temperature, time.perf_counter())
        self._stale = True  # until the call succeeds: a lost engine has lost its weights too
        answers = self.engine.sample(prompts, params, self.student.stop_ids, on_progress)
        self._stale = False
        return answers

    def check(self, prompts: Sequence[Sequence[int]]) -> None:
        """Raise InputError unless there are prompts of at least one token each."""
        if not prompts or not all(prompts):
            raise InputError("sampling: no prompts, or an empty one: give at least one token each")

    def _wait_for_pending(self) -> None:
        """Block until background generation finishes; the engine's weights must not change before."""
        if self._pending is not None:
            wait([self._pending])
            self._stale = self._stale or self._pending.exception() is not None
            self._pending = None
