"""Decode on a GPU by replaying a recorded step.

A step is hundreds of kernels of microseconds each, and Python takes longer to launch them than the GPU to run
them. A CUDA graph launches all at once. What it reads and writes is fixed, so that it serves as long as rows
and slots stay the same: rows are dropped in larger parts, and a tensor names the slot to be written.

Shapes: B rows being decoded, S slots, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from recovery.forward.equality import NOT_APPLICABLE, close_per_token
from recovery.forward.kv_cache import KVCache
from recovery.forward.model_decoder import ModelDecoder, takes_kv_cache

log = logging.getLogger(__name__)
PLAIN_STEPS = 1  # with the same rows and slots before one is recorded, which takes about as long as two
SLOTS_AT_ONCE = 256
Step = Callable[[], Tensor]
Record = Callable[[Step], Step]

_not_recordable: WeakSet[Any] = WeakSet()


def decoder_of(model: Any, pad_id: int, max_new_tokens: int) -> GraphDecoder | None:
    """Return a decoder of an unwrapped model; None where its steps can't be recorded."""
    is_on_gpu = model.get_input_embeddings().weight.device.type == "cuda"
    if not is_on_gpu or model in _not_recordable or not takes_kv_cache(model):
        return None
    return GraphDecoder(model, pad_id, max_new_tokens, GraphRecorder())


class RoomyCache(KVCache):
    """Holds zeros in the slots ahead, as a recorded step reads all of them: hidden ones count zero times."""

    def allocation(self, filled: int) -> int:
        slots = -(-super().allocation(filled) // SLOTS_AT_ONCE) * SLOTS_AT_ONCE
        return int(max(filled, min(slots, self.capacity)))

    def make_room(self, filled: int) -> None:
        before = self.slots
        super().make_room(filled)
        if self.slots > before:
            self.clear_ahead()

    def clear_ahead(self) -> None:
        for layer in self.layers:
            layer.keys[:, :, layer.length :] = 0
            layer.values[:, :, layer.length :] = 0

    def count_step(self) -> None:
        """Count the slot that a recorded step has filled."""
        for layer in self.layers:
            layer.length += 1


class GraphDecoder(ModelDecoder):
    """Decodes by the model's own forward pass, launched from Python for a few steps and then replayed."""

    cache_type = RoomyCache
    cache: RoomyCache
    drop_share = 0.5  # each drop is recorded anew

    def __init__(self, model: Any, pad_id: int, max_new_tokens: int, record: Record) -> None:
        super().__init__(model, pad_id, max_new_tokens)
        self.record = record
        self._forget()

    def step(self, token_B: Tensor) -> Tensor:
        filled = self.cache.get_seq_length() + 1
        if filled > self.cache.slots:
            self.cache.make_room(filled)
            self._forget()
        if self.replay is not None:
            self.token_B.copy_(token_B)
            self.slot.fill_(filled - 1)
            self.cache.count_step()
            return self.replay().clone()
        logits_BV = super().step(token_B)
        self.plain_steps += 1
        if self.plain_steps >= PLAIN_STEPS and self.model not in _not_recordable:
            self._record(token_B, logits_BV)
        return logits_BV

    def keep(self, rows_B: Tensor) -> None:
        super().keep(rows_B)
        self._forget()

    def _read_distinct(self, prompts: list[tuple[int, ...]], width: int) -> Tensor:
        logits_BV = super()._read_distinct(prompts, width)
        self.cache.clear_ahead()
        return logits_BV

    def _forget(self) -> None:
        self.replay: Step | None = None
        self.plain_steps = 0

    def _record(self, token_B: Tensor, logits_BV: Tensor) -> None:
        """Record the step that was just made; go on without where it gives other logits."""
        self.token_B = token_B.clone()
        self.slot = torch.tensor([self.cache.get_seq_length() - 1], device=self.device)
        try:
            replay = self.record(self._fixed_step)
            if not close_per_token(replay(), logits_BV):
                raise RuntimeError("its logits differ")
        except NOT_APPLICABLE as error:
            log.info("%s: steps are not recorded: %s", type(self.model).__name__, error)
            _not_recordable.add(self.model)
        else:
            self.replay = replay

    def _fixed_step(self) -> Tensor:
        """Write `token_B` to `slot`: the same tensors and shapes at every step."""
        slots_S = torch.arange(self.cache.slots, device=self.device)
        hidden_BS = (slots_S < self.starts_B[:, None]) | (slots_S > self.slot)
        mask_BS = torch.zeros(hidden_BS.shape, dtype=self.model.dtype, device=self.device)
        mask = mask_BS.masked_fill_(hidden_BS, float("-inf"))[:, None, None]
        positions_B1 = (self.slot - self.starts_B)[:, None]
        return self._forward(self.token_B[:, None], positions_B1, mask, FixedCache(self.cache, self.slot))


class FixedCache(Cache):
    """The same keys and values, of which all slots are handed out."""

    def __init__(self, cache: KVCache, slot: Tensor) -> None:
        super().__init__(layers=[FixedLayer(layer, slot) for layer in cache.layers])


class FixedLayer(DynamicLayer):
    """Writes one token a row to the slot that a tensor names."""

    def __init__(self, held: Any, slot: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.slot = held.keys, held.values, slot
        self.filled = held.length
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(2, self.slot, key_states)
        self.values.index_copy_(2, self.slot, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.filled - 1


class GraphRecorder:
    """Records steps as CUDA graphs, one after the other in the same memory.

    `torch.cuda.graph` would collect garbage and empty PyTorch's cache before each.
    """

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()
        self.latest: torch.cuda.CUDAGraph | None = None  # keeps the memory until the next is recorded

    def __call__(self, step: Step) -> Step:
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                out = step()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self.stream)
        self.latest = graph

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay
