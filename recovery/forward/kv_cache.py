"""Keys and values of the tokens read so far, with room ahead: a new token is written into its slot.

transformers' own cache copies all that it holds for every token. All rows write the same slot: a shorter
prompt begins later, behind slots that its mask hides.

Shapes: B rows, H query heads, G key heads, S slots, W head width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer


class Slots(Cache):
    """What every layer remembers."""

    layers: list[SlotLayer]
    places_B: Tensor | None = None  # where each row's keys and values are, for one who looks there

    def __init__(self, layers: int) -> None:
        super().__init__(layers=[SlotLayer() for _ in range(layers)])

    def places(self, rows: int) -> Tensor:
        """Where the keys and values of so many rows are."""
        return torch.arange(rows) if self.places_B is None else self.places_B

    @property
    def room(self) -> int:
        """For how many slots there is room, filled ones too."""
        return self.layers[0].keys.shape[2]

    @classmethod
    def joined(cls, parts: Sequence[Slots], width: int) -> Slots:
        """One cache from several read apart: their prompts end in the same slot."""
        joined = cls(len(parts[0].layers))
        for i, layer in enumerate(joined.layers):
            layer.put([part.layers[i].filled() for part in parts], width)
        return joined

    def make_room(self, seen: int) -> None:
        """Let it hold `seen` slots."""
        if seen > self.room:
            for layer in self.layers:
                held = layer.filled()
                if self.places_B is not None:
                    held = held[0][self.places_B], held[1][self.places_B]
                layer.put([held], layer.length)
            self.places_B = None

    def fill_to(self, seen: int) -> None:
        """From now on `seen` slots are filled."""
        for layer in self.layers:
            layer.length = seen

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """These rows only, in this order; where they only fill the places of rows that go, the rest stays."""
        places = torch.arange(len(beam_idx), device=beam_idx.device)
        moved = (beam_idx != places).nonzero()[:, 0]
        fill_in = bool((beam_idx[moved] >= len(beam_idx)).all())
        for layer in self.layers:
            for name in ("keys", "values"):
                slots_BGSW = getattr(layer, name)
                if fill_in:
                    filled = slots_BGSW[:, :, : layer.length]
                    filled[moved] = filled[beam_idx[moved]]
                setattr(layer, name, slots_BGSW[: len(beam_idx)] if fill_in else slots_BGSW[beam_idx])


class SlotLayer(DynamicLayer):
    """One layer's: the slots written so far are handed out, those ahead are not."""

    length = 0
    is_initialized: bool

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        start, self.length = self.length, self.length + key_states.shape[2]
        if not self.is_initialized:
            self.keys, self.values, self.is_initialized = key_states, value_states, True
        else:
            self.keys[:, :, start : self.length] = key_states
            self.values[:, :, start : self.length] = value_states
        return self.filled()

    def begin(self, rows: int, heads: int, width: int, size: int, shortest: int) -> None:
        """Room for others to fill: rows that end in slot `width`, and more. Zeros in slots of nobody."""
        for name in ("keys", "values"):
            held = torch.empty(rows, heads, width + 2 * _room(width), size)
            held[:, :, : width - shortest] = 0
            setattr(self, name, held)
        self.length, self.is_initialized = width, True

    def in_order(self, seen: int) -> tuple[Tensor, Tensor]:
        """All keys and values, for one who fills slots up to `seen` himself: each head's slots in order."""
        slots, width = self.keys.shape[2:]
        strides = self.keys.stride()
        if seen > slots or strides[2:] != (width, 1) or self.values.stride() != strides:
            raise RuntimeError("slots: no room ahead, or heads that do not lie in order")
        return self.keys, self.values

    def filled(self) -> tuple[Tensor, Tensor]:
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def get_seq_length(self) -> int:
        return self.length

    def put(self, parts: Sequence[tuple[Tensor, Tensor]], width: int) -> None:
        """Hold these rows, each ending in slot `width`."""
        keys, values = zip(*parts, strict=True)
        self.keys, self.values = _with_room(keys, width), _with_room(values, width)
        self.length, self.is_initialized = width, True


def sees_all(model: Any) -> bool:
    """Whether every layer's tokens see all before them: no windows, recurrent states or alibi."""
    return sight(model) == math.inf


def sight(model: Any) -> float:
    """How many tokens, itself among them, each sees in every layer; 0 where it is not by seeing them."""
    layers = DynamicCache(config=model.config).layers
    kinds = {type(layer) for layer in layers}
    if not kinds <= {DynamicLayer, DynamicSlidingWindowLayer} or getattr(model.config, "alibi", False):
        return 0
    return min((getattr(layer, "sliding_window", math.inf) for layer in layers), default=math.inf)


def mask_of(starts_B: Tensor, seen: int, dtype: torch.dtype) -> Tensor:
    """(B, 1, 1, S): minus infinity before each row's first slot."""
    hidden_BS = torch.arange(seen, device=starts_B.device) < starts_B[:, None]
    mask = torch.zeros(hidden_BS.shape, dtype=dtype, device=starts_B.device)
    return mask.masked_fill_(hidden_BS, float("-inf"))[:, None, None]


def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Of one new token a row, queries (B, G, H / G, W): those of a group are so many positions of one head.

    The same numbers as repeating keys and values for every query head, without the copy. On a CPU two matrix
    products beat the kernel.
    """
    if q.device.type == "cpu" and mask.dtype == q.dtype:
        scores = torch.matmul(q * scale, keys.transpose(2, 3)).add_(mask)
        return torch.matmul(scores.softmax(-1, dtype=torch.float32).to(values.dtype), values)
    return scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale)


def _with_room(parts: Sequence[Tensor], width: int) -> Tensor:
    """The rows of all parts and half as many slots again: whenever there is no room left, all is moved.

    Slots before a row's first hold zeros, since a hidden slot still meets a probability of zero.
    """
    _, heads, _, size = parts[0].shape
    slots_BGSW = parts[0].new_empty(sum(map(len, parts)), heads, width + _room(width), size)
    for part, own in zip(parts, slots_BGSW.split([len(part) for part in parts]), strict=True):
        before = width - part.shape[2]
        own[:, :, :before] = 0
        own[:, :, before:width] = part
    return slots_BGSW


def _room(width: int) -> int:
    return max(16, width // 2)
