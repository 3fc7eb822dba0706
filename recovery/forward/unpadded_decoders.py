"""Decode models whose rows must not be padded, or whose cache is of their own kind.

Shapes: B rows being decoded, R rows of a group, T tokens, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recovery.forward.decoder import Decoder
from recovery.forward.isolation import Sharing

# Names of the cache in the families' results and arguments.
CACHES = ("past_key_values", "cache_params", "state")


class OwnCacheDecoder(Decoder):
    """Decodes prompts of one length with the cache that the model itself makes, as `generate` does.

    Such caches can't drop rows: a finished row goes on, unread, until its group ends.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device = model.get_input_embeddings().weight.device
        self.accepts = set(inspect.signature(model.forward).parameters)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        self.rows_B = torch.arange(len(prompts), device=self.device)
        self.tokens_RT = torch.tensor(prompts, device=self.device)
        self.cache: dict[str, Any] = {}
        return self._forward()

    def step(self, token_B: Tensor) -> Tensor:
        token_R = self.tokens_RT[:, -1].clone()
        token_R[self.rows_B] = token_B
        self.tokens_RT = torch.cat([self.tokens_RT, token_R[:, None]], 1)
        return self._forward()

    def keep(self, rows_B: Tensor) -> None:
        self.rows_B = self.rows_B[rows_B]

    def _forward(self) -> Tensor:
        """Return the logits of the last position; families differ in what they take beside the tokens."""
        everywhere_RT = torch.ones_like(self.tokens_RT)
        inputs = self.model.prepare_inputs_for_generation(
            self.tokens_RT,
            attention_mask=everywhere_RT,
            position_ids=everywhere_RT.cumsum(1) - 1,
            next_sequence_length=1 if self.cache else None,
            is_first_iteration=not self.cache,
            use_cache=True,
            **self.cache,
        )
        if "position_ids" not in self.accepts:
            inputs.pop("position_ids", None)
        out = self.model(**inputs)
        self.cache = {name: out[name] for name in CACHES if name in out}
        return out.logits[self.rows_B, -1]


class RereadDecoder(Decoder):
    """Decodes prompts of one length without a cache: reads all that is written, again for every token."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device = model.get_input_embeddings().weight.device

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        self.tokens_BT = torch.tensor(prompts, device=self.device)
        return self._forward()

    def step(self, token_B: Tensor) -> Tensor:
        self.tokens_BT = torch.cat([self.tokens_BT, token_B[:, None]], 1)
        return self._forward()

    def keep(self, rows_B: Tensor) -> None:
        self.tokens_BT = self.tokens_BT[rows_B]

    def _forward(self) -> Tensor:
        logits_BV: Tensor = self.model(self.tokens_BT, use_cache=False).logits[:, -1]
        return logits_BV


@dataclass
class Group:
    """Rows that are decoded together, by their places in the batch."""

    decoder: Decoder
    rows: list[int]


class GroupedDecoder(Decoder):
    """Decodes rows that must not share a pass in groups, each by a decoder of its own.

    A row that grows beyond the boundary is read again, with the frequencies of long sequences.
    """

    def __init__(self, make: Callable[[], Decoder], sharing: Sharing, device: torch.device) -> None:
        self.make = make
        self.sharing = sharing
        self.device = device

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        self.sequences = [list(prompt) for prompt in prompts]
        self.groups: list[Group] = []
        return self._in_order(self._begin(list(range(len(prompts)))))

    def step(self, token_B: Tensor) -> Tensor:
        grown = []
        for row, token in enumerate(token_B.tolist()):
            self.sequences[row].append(token)
            if len(self.sequences[row]) - 1 == self.sharing.boundary:
                grown.append(row)
        if grown:
            self._retain([row for row in range(len(self.sequences)) if row not in grown])
        parts = [(group.rows, group.decoder.step(token_B[group.rows])) for group in self.groups]
        return self._in_order(parts + self._begin(grown))

    def keep(self, rows_B: Tensor) -> None:
        rows = rows_B.tolist()
        self._retain(rows)
        self.sequences = [self.sequences[row] for row in rows]
        places = {row: place for place, row in enumerate(rows)}
        for group in self.groups:
            group.rows = [places[row] for row in group.rows]

    def _begin(self, rows: list[int]) -> list[tuple[list[int], Tensor]]:
        """Read rows in new groups; return the logits that follow each group's."""
        parts = []
        for places in self.sharing.groups(len(self.sequences[row]) for row in rows):
            group = Group(self.make(), [rows[place] for place in places])
            logits_RV = group.decoder.prefill([self.sequences[row] for row in group.rows])
            parts.append((group.rows, logits_RV))
            self.groups.append(group)
        return parts

    def _retain(self, rows: list[int]) -> None:
        """Drop all other rows from the groups, and groups without rows."""
        kept = set(rows)
        for group in self.groups:
            places = [place for place, row in enumerate(group.rows) if row in kept]
            if 0 < len(places) < len(group.rows):
                group.decoder.keep(torch.tensor(places, device=self.device))
            group.rows = [group.rows[place] for place in places]
        self.groups = [group for group in self.groups if group.rows]

    def _in_order(self, parts: list[tuple[list[int], Tensor]]) -> Tensor:
        """Return the logits of all groups in the order of the rows."""
        order_B = torch.tensor([row for rows, _ in parts for row in rows], device=self.device).argsort()
        return torch.cat([logits_BV for _, logits_BV in parts])[order_B]
