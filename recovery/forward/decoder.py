"""What a decoder does: read the prompts of a batch, then one more token a row at each step.

Shapes: B rows being decoded, R rows of the whole batch, T new tokens, V vocabulary.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Responses:
    """What is written for R rows: tokens, their log-probs, and how to draw them."""

    tokens_RT: Tensor
    logprobs_RT: Tensor
    numbers_RT: Tensor  # fp64 in [0, 1): one draw a token
    temperature: float
    stops: Tensor


class Decoder(ABC):
    """Reads a batch of prompts, then appends one token a row at a time; gives the logits of the next."""

    device: torch.device
    drop_share = 0.125  # drop finished rows when they are this share: dropping moves the cache
    saves_at_least: float = math.inf  # tokens that reading what all prompts begin with once has to save
    writes_ahead = False  # whether `write_ahead` takes the place of `step` after the first token

    @abstractmethod
    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Read the prompts; return the logits (B, V) that follow each."""

    @abstractmethod
    def step(self, token_B: Tensor) -> Tensor:
        """Append a token to every row; return the logits (B, V) that follow."""

    @abstractmethod
    def keep(self, rows_B: Tensor) -> None:
        """Keep these rows, in this order."""

    def write_ahead(
        self, token_B: Tensor, rows_B: Tensor, responses: Responses, step: int, steps: int
    ) -> tuple[int, Tensor, Tensor]:
        """Decode and draw up to `steps` tokens a row in one call, dropping each row at its stop token.

        Returns the steps made, and of each remaining row the last token and which of the R rows it is.
        """
        raise NotImplementedError
