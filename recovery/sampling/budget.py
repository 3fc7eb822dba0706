"""Decide how many prompts are decoded together, from their lengths and the memory that is free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch

from recovery.errors import InputError, OutOfMemory
from recovery.forward.context_length import context_length
from recovery.forward.fast_path import fast_path
from recovery.forward.hidden_states import embedding_weights, unwrap
from recovery.memory import GIB, free_memory, ran_out
from recovery.models.size import decoding_bytes

FREE_SHARE = 0.7  # of the free memory; the rest is for the activations of reading prompts
LOGITS_BYTES = 4 * 4  # a vocabulary entry while a token is drawn: four fp32 copies
WASTE = 2  # at most so many times the cache slots that the shortest row of a batch needs


@dataclass(frozen=True)
class Budget:
    """The bounds on one batch: rows, and the KV cache in tokens and bytes."""

    rows: int
    tokens: float = inf
    bytes: float = inf
    token_bytes: float = 0  # of one token in the cache, and while it is read again
    row_bytes: float = 0  # of a row, beside its tokens

    @classmethod
    def of(cls, models: Sequence[Any], rows: int, *, together: int = 1) -> Budget:
        """Return what the models' device, where all of them decode at once, has room for.

        So many processes sample `together`: each has a GPU, but all share the memory of a CPU.
        """
        weights = [embedding_weights(model)[-1] for model in models]
        device = weights[0].device
        room = FREE_SHARE * free_memory(device) / (together if device.type == "cpu" else 1)
        tokens_bytes, rows_bytes = zip(*map(decoding_bytes, models), strict=True)
        return cls(
            rows=rows,
            bytes=max(room - sum(map(fast_path().decoder_bytes, models)), room / 2),
            token_bytes=sum(tokens_bytes),
            row_bytes=sum(rows_bytes) + sum(LOGITS_BYTES * len(weight) for weight in weights),
        )

    def fits(self, rows: int, tokens: int) -> bool:
        """Return whether so many rows of so many tokens each stay within all bounds."""
        needed = rows * (tokens * self.token_bytes + self.row_bytes)
        return rows <= self.rows and rows * tokens <= self.tokens and needed <= self.bytes

    def batch(self, lengths: Sequence[int]) -> int:
        """Return how many of the rows, longest first, to decode together: at least one.

        A batch ends where the next row would fill less than half of the slots that the longest one needs.
        """
        longest = lengths[0]
        for count, length in enumerate(lengths[1:], 1):
            if longest > WASTE * length or not self.fits(count + 1, longest):
                return count
        return len(lengths)


def in_batches(lengths: Sequence[int], budget: Budget, run: Callable[[list[int]], None]) -> None:
    """Call `run(rows)` for batches of all rows, longest first; where memory runs out, with half the tokens.

    `lengths` are the tokens of each row, those to be written included.
    """
    waiting = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    while waiting:
        rows = waiting[: budget.batch([lengths[row] for row in waiting])]
        longest = lengths[rows[0]]
        if _ran(run, rows):
            waiting = waiting[len(rows) :]
        elif len(rows) > 1:
            budget = replace(budget, tokens=len(rows) * longest // 2)
        else:
            raise OutOfMemory(
                f"sampling: out of memory with a single row of {longest:,} tokens: lower max_new_tokens, "
                "shorten the prompts, or free memory"
            )


def _ran(run: Callable[[list[int]], None], rows: list[int]) -> bool:
    """Return False where memory ran out; by then the batch's tensors are gone."""
    try:
        run(rows)
    except RuntimeError as error:
        if not ran_out(error):
            raise
    else:
        return True
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return False


def check_prompts(
    prompts: Sequence[Sequence[int]], model: Any, new_tokens: int, budget: Budget, first: int = 0
) -> None:
    """Refuse prompts that the model or the memory has no room for, naming the row."""
    vocabulary = len(unwrap(model).get_input_embeddings().weight)
    context = context_length(model.config)
    for row, prompt in enumerate(prompts, first + 1):
        where = f"sampling: prompt {row}"
        if not len(prompt):
            raise InputError(f"{where} is empty: give at least one token")
        for token in (min(prompt), max(prompt)):
            if not 0 <= token < vocabulary:
                raise InputError(f"{where}: token {token} is outside the vocabulary of {vocabulary:,}")
        length = f"{where} has {len(prompt):,} tokens"
        if context is not None and len(prompt) >= context:
            raise InputError(f"{length}, the model reads {context:,}, responses included: shorten it")
        if not budget.fits(1, len(prompt) + new_tokens):
            raise InputError(
                f"{length}: with {new_tokens:,} new ones its KV cache does not fit "
                f"({budget.bytes / GIB:.2g} GiB at most): shorten it, or lower max_new_tokens"
            )


def room_behind(prompts: Sequence[Sequence[int]], model: Any, limit: int) -> list[int]:
    """Return how many tokens a model has positions for behind each prompt, `limit` at most."""
    context = context_length(model.config)
    return [limit if context is None else min(limit, context - len(prompt)) for prompt in prompts]
