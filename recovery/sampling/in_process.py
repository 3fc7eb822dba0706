"""Sample from a model in this process.

Faster than `generate`: keys and values are written in place instead of concatenated, grouped queries read
them without copies, one uniform number a token replaces noise over the whole vocabulary, prompts of like
length are read together and repeated ones once, and finished rows leave the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from recovery.batches.rollouts import Rollouts
from recovery.distributed import gathered
from recovery.errors import InputError
from recovery.forward.decoder_choice import decoder_of, decoding
from recovery.sampling.budget import Budget, check_prompts, room_behind
from recovery.sampling.decode_batch import DecodeBatch, Written, written_in_batches
from recovery.sampling.protocol import OnProgress, SamplingParams

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel


MOST_ROWS = 256  # that are decoded at once, where memory allows


class InProcessSampler:
    """Samples from a ChatModel; restores its mode and attention afterwards."""

    def __init__(self, chat_model: ChatModel, batch_size: int = MOST_ROWS) -> None:
        """Decode at most `batch_size` rows at once, fewer where memory is short."""
        self.chat_model = chat_model
        self.batch_size = batch_size
        self.numbers = UniformNumbers()

    def sample(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Rollouts:
        """Return a response to each prompt, with log-probs under the distribution it was drawn from.

        At temperature 0 that distribution is a point; the log-probs are then those of temperature 1.
        """
        responses, logprobs = self._sample(prompts, params, None)
        stops = set(self.chat_model.stop_ids)
        finished = [response[-1] in stops for response in responses]
        return Rollouts.from_samples(prompts, responses, logprobs, finished, self.chat_model.pad_id)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        on_progress: OnProgress | None = None,
    ) -> list[list[int]]:
        """Return responses without their stop token; report finished ones while they are written."""
        responses, _ = self._sample(prompts, params, on_progress)
        return without_stops(responses, self.chat_model.stop_ids)

    def _sample(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, on_progress: OnProgress | None
    ) -> Written:
        if not prompts:
            raise InputError("sampling: no prompts: give at least one")
        chat, limit = self.chat_model, params.max_new_tokens
        numbers_RT = self.numbers.of(len(prompts), params)
        progress = Progress(len(prompts), on_progress, params.on_tokens)

        def write(rows: list[int]) -> Written:
            decoder = decoder_of(model, chat.pad_id, limit)
            chosen = [prompts[row] for row in rows]
            room = room_behind(chosen, model, limit)
            batch = DecodeBatch(decoder, chosen, numbers_RT[rows], params, chat.stop_ids, room)
            written = batch.run(progress.during)
            progress.after(len(rows), sum(map(len, written[0])))
            return written

        with gathered(chat.model), decoding(chat.model) as model:
            budget = Budget.of([model], self.batch_size, together=params.together)
            check_prompts(prompts, model, limit, budget, params.first)
            return written_in_batches([len(prompt) + limit for prompt in prompts], budget, write)


class Progress:
    """Counts the responses and tokens of all batches."""

    def __init__(
        self, total: int, on_progress: OnProgress | None, on_tokens: Callable[[int], None] | None
    ) -> None:
        self.total = total
        self.on_progress = on_progress
        self.on_tokens = on_tokens
        self.done = self.tokens = 0

    def during(self, finished: int, tokens: int) -> None:
        """Report, with what the current batch has so far."""
        if self.on_tokens:
            self.on_tokens(self.tokens + tokens)
        if self.on_progress:
            self.on_progress(self.done + finished, self.total)

    def after(self, rows: int, tokens: int) -> None:
        """Count a whole batch and report."""
        self.done = self.done + rows
        self.tokens = self.tokens + tokens
        self.during(0, 0)


class UniformNumbers:
    """Draws numbers (R, T) in [0, 1): a row's depend on seed and place in the list, not on its batch.

    A part of a list goes on where the one before it ended: numbers drawn from the list's first row for each
    part would cost the square of its length.
    """

    def __init__(self) -> None:
        self.asked: tuple[int, int] | None = None  # seed and length of the rows
        self.drawn = 0  # of these rows
        self.generator = torch.Generator()

    def of(self, prompts: int, params: SamplingParams) -> torch.Tensor:
        """Return the numbers of so many prompts from the place of the first one on."""
        asked = params.seed, params.max_new_tokens
        if asked != self.asked or params.first < self.drawn:
            self.asked, self.drawn = asked, 0
            self.generator.manual_seed(params.seed)
        before = params.first - self.drawn
        shape = before + prompts, params.max_new_tokens
        numbers_RT = torch.rand(shape, dtype=torch.float64, generator=self.generator)
        self.drawn = params.first + prompts
        return numbers_RT[before:]


def without_stops(responses: Sequence[list[int]], stop_ids: Sequence[int]) -> list[list[int]]:
    """Return the responses without their stop tokens."""
    return [response[:-1] if response[-1] in stop_ids else response for response in responses]
