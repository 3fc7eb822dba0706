"""A KV cache whose rows never move: kernels find each by its place, so dropping rows is free."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from recovery.forward.kv_cache import KVCache


class PlacedCache(KVCache):
    """`places_B` holds the place of each row's keys and values; None: row i is at place i."""

    places_B: Tensor | None = None
    dtype = torch.float32

    def places(self, rows: int) -> Tensor:
        """Return where the keys and values of the rows are."""
        return torch.arange(rows) if self.places_B is None else self.places_B

    def keep(self, rows_B: Tensor) -> None:
        """Keep these rows, in this order."""
        self.places_B = rows_B if self.places_B is None else self.places_B[rows_B]

    def reserve(self, lengths: Sequence[int], heads: int, width: int) -> None:
        """Allocate for prompts that all end in the same slot, with zeros before the shorter ones."""
        longest = max(lengths)
        slots = self.allocation(self.allocation(longest))
        for layer in self.layers:
            for name in ("keys", "values"):
                held = torch.empty(len(lengths), heads, slots, width)
                held[:, :, : longest - min(lengths)] = 0
                setattr(layer, name, held)
            layer.length = longest
            layer.is_initialized = True

    def make_room(self, filled: int) -> None:
        """Allocate more slots where `filled` are more than there are; rows then move to the first places."""
        if filled <= self.slots:
            return
        for layer in self.layers:
            keys, values = layer.filled()
            if self.places_B is not None:
                keys, values = keys[self.places_B], values[self.places_B]
            layer.put([(keys, values)], layer.length, self.allocation(filled))
        self.places_B = None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.places_B is not None:
            raise RuntimeError("placed cache: rows are copied before any is dropped")
        super().reorder_cache(beam_idx)

    def addresses(self, filled: int) -> list[tuple[Tensor, Tensor]]:
        """Return each layer's keys and values, checked to have room and to lie in order."""
        for layer in self.layers:
            slots, width = layer.keys.shape[2:]
            strides = layer.keys.stride()
            if filled > slots or strides[2:] != (width, 1) or layer.values.stride() != strides:
                raise RuntimeError("placed cache: no room ahead, or heads that do not lie in order")
        return [(layer.keys, layer.values) for layer in self.layers]
