"""Write the responses to one batch of prompts: decode, draw, drop finished rows, until none is left.

Shapes: R rows of the batch, of which B are still being written; T new tokens, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from recovery.errors import RecoverError
from recovery.forward.decoder import Decoder, Responses
from recovery.sampling.budget import Budget, in_batches
from recovery.sampling.draw import draw_tokens
from recovery.sampling.loops import WINDOW, loop_ends
from recovery.sampling.protocol import SamplingParams

LOOK_EVERY = 8  # steps between two looks at which rows have finished, on an accelerator
LOOPS_EVERY = 16  # steps between two looks for loops
REPORT_SECONDS = 0.5  # between two reports of progress
Written = tuple[list[list[int]], list[list[float]]]  # each row's tokens, up to its stop token, and log-probs


def written_in_batches(
    lengths: Sequence[int], budget: Budget, write: Callable[[list[int]], Written]
) -> Written:
    """Write all rows, of so many tokens each, in batches within the budget; return them in their order."""
    responses: list[list[int]] = [[] for _ in lengths]
    logprobs: list[list[float]] = [[] for _ in lengths]

    def run(rows: list[int]) -> None:
        for row, tokens, scores in zip(rows, *write(rows), strict=True):
            responses[row] = tokens
            logprobs[row] = scores

    in_batches(lengths, budget, run)
    return responses, logprobs


class DecodeBatch:
    """One batch on its way from prompts to responses.

    A finished row may stay for some steps, written past its end, as looking for finished rows makes an
    accelerator wait and dropping them moves the cache. Every response is cut at its end at last.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[Sequence[int]],
        numbers_RT: Tensor,
        params: SamplingParams,
        stop_ids: Sequence[int],
        room: Sequence[int],
    ) -> None:
        """Draw with the uniform `numbers_RT`; a row ends at a stop token or where its `room` is full."""
        self.decoder = decoder
        self.prompts = prompts
        self.limit = params.max_new_tokens
        device = decoder.device
        shape = len(prompts), self.limit
        self.responses = Responses(
            tokens_RT=torch.zeros(shape, dtype=torch.long, device=device),
            logprobs_RT=torch.zeros(shape, device=device),
            numbers_RT=numbers_RT.to(device),
            temperature=params.temperature,
            stops=torch.tensor(stop_ids, dtype=torch.long, device=device),
        )
        self.limits_R = torch.tensor(room, device=device)
        self.full_at = {tokens for tokens in room if tokens < self.limit}  # lengths that fill the context
        self.rows_B = torch.arange(len(prompts), device=device)  # those of the R rows in the batch
        self.finished_B = torch.zeros(len(prompts), dtype=torch.bool, device=device)
        self.token_B = torch.empty(0, dtype=torch.long, device=device)  # each row's last
        self.look_every = 1 if device.type == "cpu" else LOOK_EVERY
        self.stop_loops = params.stop_loops
        self.loops_seen = 0  # step of the last look for loops

    def run(self, on_tokens: Callable[[int, int], None] | None = None) -> Written:
        """Write all responses; report `on_tokens(finished rows, tokens so far)` every half second."""
        self._take(self.decoder.prefill(self.prompts), 0)
        step = 1
        reported = time.monotonic()
        while step < self.limit and len(self.rows_B):
            step += self._advance(step)
            if self.stop_loops and step - self.loops_seen >= LOOPS_EVERY:
                self._finish_loops(step)
            if on_tokens and time.monotonic() - reported >= REPORT_SECONDS:
                lengths_R, finished_R = self._lengths(step)
                on_tokens(int(finished_R.sum()), int(lengths_R.sum()))
                reported = time.monotonic()
        if not bool(self.responses.logprobs_RT.isfinite().all()):
            raise RecoverError("sampling: the model's logits are not finite: load an intact checkpoint")
        return self._written()

    def _advance(self, step: int) -> int:
        """Write the next token of every row, or several where the decoder can; return the steps."""
        if not self.decoder.writes_ahead:
            self._take(self.decoder.step(self.token_B), step)
            return 1
        steps = int(self.limits_R[self.rows_B].min()) - step  # until the first row has its limit
        made, self.token_B, self.rows_B = self.decoder.write_ahead(
            self.token_B, self.rows_B, self.responses, step, steps
        )
        self.finished_B = self._at_limit(step + made)
        self._drop_finished()
        return made

    def _take(self, logits_BV: Tensor, step: int) -> None:
        """Draw and record each row's token; now and then drop the rows that have ended."""
        written = self.responses
        numbers_B = written.numbers_RT[self.rows_B, step]
        self.token_B, logprob_B = draw_tokens(logits_BV, numbers_B, written.temperature)
        written.tokens_RT[self.rows_B, step] = self.token_B
        written.logprobs_RT[self.rows_B, step] = logprob_B
        length = step + 1
        at_limit_B = self._at_limit(length)
        self.finished_B |= torch.isin(self.token_B, written.stops) | at_limit_B
        if length in self.full_at and bool(at_limit_B.any()):
            self._drop_finished(at_once=True)  # models may have no position beyond their context
        elif length % self.look_every == 0:
            self._drop_finished()

    def _at_limit(self, length: int) -> Tensor:
        """Return which rows in the batch may have no more than `length` tokens."""
        return self.limits_R[self.rows_B] <= length

    def _finish_loops(self, step: int) -> None:
        """Finish the rows that have become loops since the last look."""
        start = max(0, self.loops_seen - WINDOW)
        recent_BT = self.responses.tokens_RT[self.rows_B, start:step]
        self.finished_B |= loop_ends(recent_BT) <= recent_BT.shape[1]
        self.loops_seen = step
        self._drop_finished()

    def _drop_finished(self, *, at_once: bool = False) -> None:
        """Drop finished rows, once there are enough of them or at once."""
        enough = 1 if at_once else max(1, self.decoder.drop_share * len(self.finished_B))
        if int(self.finished_B.sum()) < enough:
            return
        kept_B = remaining(self.finished_B)
        self.token_B = self.token_B[kept_B]
        self.rows_B = self.rows_B[kept_B]
        self.finished_B = self.finished_B[kept_B]
        if len(kept_B):
            self.decoder.keep(kept_B)

    def _lengths(self, steps: int) -> tuple[Tensor, Tensor]:
        """Return how many of the first `steps` tokens belong to each row, and which rows have finished."""
        is_stop_RT = torch.isin(self.responses.tokens_RT[:, :steps], self.responses.stops)
        stopped_R = is_stop_RT.any(1)
        lengths_R = torch.where(stopped_R, is_stop_RT.int().argmax(1) + 1, steps)
        return torch.minimum(lengths_R, self.limits_R), stopped_R | (self.limits_R <= steps)

    def _written(self) -> Written:
        """Return every response, cut at its end."""
        lengths_R, _ = self._lengths(self.limit)
        if self.stop_loops:
            lengths_R = torch.minimum(lengths_R, loop_ends(self.responses.tokens_RT))
        tokens, logprobs = self.responses.tokens_RT.tolist(), self.responses.logprobs_RT.tolist()
        for row, length in enumerate(lengths_R.tolist()):
            del tokens[row][length:], logprobs[row][length:]
        return tokens, logprobs


def remaining(finished_B: Tensor) -> Tensor:
    """Return the rows to keep: the last of them take the places of finished ones, so that few move."""
    going = (~finished_B).nonzero()[:, 0]
    rows = torch.arange(len(going), device=finished_B.device)
    rows[finished_B[: len(going)]] = going[going >= len(going)]
    return rows
