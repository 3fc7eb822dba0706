"""The KV cache: keys and values of the tokens read so far, with room ahead into which new ones are written.

transformers' own cache copies everything it holds for every new token. All rows write the same slot: a
shorter prompt starts later, behind slots that its mask hides.

Shapes: B rows, H query heads, G key heads, S slots, W head width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

LEAST_ROOM = 16  # slots


class KVCache(Cache):
    """The cache of all layers."""

    layers: list[KVCacheLayer]
    dtype: torch.dtype | None = None  # of what `joined` returns; None: that of its parts

    def __init__(self, layers: int, capacity: float = math.inf) -> None:
        """Never allocate more than `capacity` slots a row."""
        super().__init__(layers=[KVCacheLayer() for _ in range(layers)])
        self.capacity = capacity

    @property
    def slots(self) -> int:
        """Return how many slots are allocated, filled ones included."""
        return self.layers[0].keys.shape[2]

    @classmethod
    def joined(cls, parts: Sequence[KVCache], width: int, capacity: float = math.inf) -> Self:
        """Merge caches of prompts read apart, so that all end in slot `width`; empties the parts."""
        joined = cls(len(parts[0].layers), capacity)
        for layer in joined.layers:
            filled = [part.layers.pop(0).filled() for part in parts]
            layer.put(filled, width, joined.allocation(width), cls.dtype)
        return joined

    def empty(self) -> KVCache:
        """Return an empty cache for as many layers."""
        return KVCache(len(self.layers))

    def repeated(self, rows: int, room: int) -> KVCache:
        """Return a cache whose rows all hold what the first row of this one holds, with room for more."""
        copied = self.empty()
        for copy, layer in zip(copied.layers, self.layers, strict=True):
            keys, values = (held[:1].expand(rows, -1, -1, -1) for held in layer.filled())
            copy.put([(keys, values)], layer.length, layer.length + room)
        return copied

    def close_gaps(self, before: int, gaps: Sequence[int]) -> None:
        """Move each row's first `before` slots, the same in all rows, up to what follows its gap."""
        gaps_B = torch.tensor(gaps)
        for layer in self.layers:
            for held_BGSW in layer.filled():
                beginning_GSW = held_BGSW[0, :, :before].clone()
                for gap in set(gaps) - {0}:
                    held_BGSW[gaps_B == gap, :, gap : gap + before] = beginning_GSW

    def allocation(self, filled: int) -> int:
        """Return how many slots to allocate for so many filled ones: half as many again."""
        return int(max(filled, min(filled + max(LEAST_ROOM, filled // 2), self.capacity)))

    def make_room(self, filled: int) -> None:
        """Allocate more slots where `filled` are more than there are."""
        if filled > self.slots:
            for layer in self.layers:
                layer.put([layer.filled()], layer.length, self.allocation(filled))

    def fill_to(self, filled: int) -> None:
        """Count so many slots as filled: written by a kernel or a recorded step, or to be written again."""
        for layer in self.layers:
            layer.length = filled

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep these rows, in this order; where they only replace dropped rows, nothing else moves."""
        places = torch.arange(len(beam_idx), device=beam_idx.device)
        moved = (beam_idx != places).nonzero()[:, 0]
        fill_in = bool((beam_idx[moved] >= len(beam_idx)).all())
        for layer in self.layers:
            for name in ("keys", "values"):
                slots_BGSW = getattr(layer, name)
                if fill_in:
                    filled = slots_BGSW[:, :, : layer.length]
                    filled[moved] = filled[beam_idx[moved]]
                    kept_BGSW = slots_BGSW[: len(beam_idx)]
                else:
                    kept_BGSW = slots_BGSW[beam_idx]
                setattr(layer, name, kept_BGSW)


class KVCacheLayer(DynamicLayer):
    """The cache of one layer; hands out the slots written so far."""

    length = 0
    is_initialized: bool

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        start = self.length
        self.length = self.length + key_states.shape[2]
        if not self.is_initialized:
            self.keys = key_states
            self.values = value_states
            self.is_initialized = True
        else:
            self.keys[:, :, start : self.length] = key_states
            self.values[:, :, start : self.length] = value_states
        return self.filled()

    def filled(self) -> tuple[Tensor, Tensor]:
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def get_seq_length(self) -> int:
        return self.length

    def put(
        self,
        parts: Sequence[tuple[Tensor, Tensor]],
        width: int,
        slots: int,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Hold the rows of all parts in this many slots, each row ending in slot `width`."""
        keys, values = zip(*parts, strict=True)
        self.keys = _right_aligned(keys, width, slots, dtype)
        self.values = _right_aligned(values, width, slots, dtype)
        self.length = width
        self.is_initialized = True


def sees_all(model: Any) -> bool:
    """Return whether every token attends to all before it in every layer: no windows, recurrence or ALiBi."""
    return attention_span(model) == math.inf


def attention_span(model: Any) -> float:
    """Return how many tokens, itself included, each attends to in every layer; 0 for recurrence and ALiBi."""
    layers = DynamicCache(config=model.config).layers
    kinds = {type(layer) for layer in layers}
    if not kinds <= {DynamicLayer, DynamicSlidingWindowLayer} or getattr(model.config, "alibi", False):
        return 0
    return min((getattr(layer, "sliding_window", math.inf) for layer in layers), default=math.inf)


def padding_mask(starts_B: Tensor, filled: int, dtype: torch.dtype) -> Tensor:
    """Return (B, 1, 1, S): minus infinity before each row's first slot, else 0."""
    hidden_BS = torch.arange(filled, device=starts_B.device) < starts_B[:, None]
    mask = torch.zeros(hidden_BS.shape, dtype=dtype, device=starts_B.device)
    return mask.masked_fill_(hidden_BS, float("-inf"))[:, None, None]


def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Compute attention of one new token a row; queries (B, G, H / G, W), a group's as positions of one head.

    Equals repeating keys and values for every query head, without the copy. On a CPU two matrix products
    are faster than the kernel.
    """
    if q.device.type == "cpu" and mask.dtype == q.dtype:
        scores = torch.matmul(q * scale, keys.transpose(2, 3)).add_(mask)
        return torch.matmul(scores.softmax(-1, dtype=torch.float32).to(values.dtype), values)
    return scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale)


def _right_aligned(
    parts: Sequence[Tensor], width: int, slots: int, dtype: torch.dtype | None = None
) -> Tensor:
    """Return the rows of all parts in one tensor, ending in slot `width`.

    Slots before a row's first hold zeros: a hidden slot is still multiplied by a probability of zero.
    """
    _, heads, _, head_width = parts[0].shape
    sizes = [len(part) for part in parts]
    slots_BGSW = parts[0].new_empty(sum(sizes), heads, slots, head_width, dtype=dtype)
    first = 0
    for part, size in zip(parts, sizes, strict=True):
        target = slots_BGSW[first : first + size]
        before = width - part.shape[2]
        target[:, :, :before] = 0
        target[:, :, before:width] = part
        first += size
    return slots_BGSW
