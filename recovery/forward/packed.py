"""Pack a batch: its tokens one after the other, without padding.

Shapes: B rows, T columns, N tokens that are not padding, D hidden size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor

Read = Callable[[Any, Tensor, Tensor | None, Tensor | None], Tensor]  # (model, tokens, attention, positions)


@dataclass(frozen=True)
class Packed:
    """Sequences one after the other."""

    tokens_N: Tensor
    positions_N: Tensor
    bounds: Tensor  # first token of each sequence, and the end of the last

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> Packed:
        """Pack whole sequences."""
        bounds = torch.tensor([0, *accumulate(map(len, sequences))], device=device)
        tokens_N = torch.tensor([*chain(*sequences)], device=device)
        starts_N = bounds[:-1].repeat_interleave(bounds.diff())
        return cls(tokens_N, torch.arange(len(tokens_N), device=device) - starts_N, bounds)

    @cached_property
    def lengths(self) -> Tensor:
        return self.bounds.diff()

    @cached_property
    def rows_N(self) -> Tensor:
        """Return the sequence that each token belongs to."""
        return torch.arange(len(self.lengths), device=self.bounds.device).repeat_interleave(self.lengths)

    @cached_property
    def longest(self) -> int:
        """Return the length of the longest sequence; 0 where there is none."""
        return int(self.lengths.max()) if len(self.lengths) else 0


class PackedReader(ABC):
    """Computes hidden states of padded batches by packing them."""

    @abstractmethod
    def states(self, tokens: Packed, wanted_N: Tensor | None) -> Tensor:
        """Return the states (N, D) of all tokens, or of those at the given places."""

    def plain_for(
        self, tokens_BT: Tensor, attention_BT: Tensor | None, positions_BT: Tensor | None
    ) -> Callable[..., Tensor] | None:
        """Return what reads these rows as they are given, where that is better; None to read them packed."""
        return None

    def __call__(
        self, tokens_BT: Tensor, attention_BT: Tensor | None = None, positions_BT: Tensor | None = None
    ) -> Tensor:
        """Return the states (B, T, D), zeros at padding."""
        if plain := self.plain_for(tokens_BT, attention_BT, positions_BT):
            return plain(tokens_BT, attention_BT, positions_BT)
        tokens, places_N = packed(tokens_BT, attention_BT, positions_BT)
        x_ND = self.states(tokens, None)
        if len(x_ND) < tokens_BT.numel():
            x_ND = x_ND.new_zeros(tokens_BT.numel(), x_ND.shape[1]).index_copy(0, places_N, x_ND)
        return x_ND.view(*tokens_BT.shape, x_ND.shape[-1])

    def at(
        self,
        wanted_BT: Tensor,
        tokens_BT: Tensor,
        attention_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
    ) -> Tensor:
        """Return the states (N, D) of the selected tokens, none of them padding."""
        if plain := self.plain_for(tokens_BT, attention_BT, positions_BT):
            return plain(tokens_BT, attention_BT, positions_BT)[wanted_BT]
        tokens, places_N = packed(tokens_BT, attention_BT, positions_BT)
        wanted_N = wanted_BT.flatten()[places_N].nonzero()[:, 0]
        return self.states(tokens, wanted_N if len(wanted_N) < len(places_N) else None)


def packed(
    tokens_BT: Tensor, attention_BT: Tensor | None, positions_BT: Tensor | None
) -> tuple[Packed, Tensor]:
    """Return the tokens that are not padding, and their places; positions begin a sequence at each 0."""
    real_BT = torch.ones_like(tokens_BT, dtype=torch.bool) if attention_BT is None else attention_BT.bool()
    if positions_BT is None:
        positions_BT = real_BT.long().cumsum(-1) - 1
    places_N = real_BT.flatten().nonzero()[:, 0]
    positions_N = positions_BT.expand_as(tokens_BT).flatten()[places_N]
    rows_N = places_N // tokens_BT.shape[1]
    begins_N = positions_N == 0
    begins_N[:1] = True
    begins_N[1:] |= rows_N[1:] != rows_N[:-1]
    begins = begins_N.nonzero()[:, 0]
    bounds = torch.cat([begins, begins.new_tensor([len(places_N)])])
    return Packed(tokens_BT.flatten()[places_N], positions_N, bounds), places_N
