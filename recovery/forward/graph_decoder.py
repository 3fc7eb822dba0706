"""Decode on a GPU by replaying a recorded step.

A step is hundreds of kernels of microseconds each, and Python takes longer to launch them than the GPU to run
them. A CUDA graph launches all at once. What it reads and writes is fixed, so that it serves as long as rows
and slots stay the same: rows are dropped in larger parts, and a tensor names the slot to be written.

Shapes: B rows being decoded, S slots, V vocabulary.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from recovery.forward.equality import NOT_APPLICABLE, close, close_per_token
from recovery.forward.kv_cache import KVCache
from recovery.forward.model_decoder import ModelDecoder, takes_kv_cache
from recovery.memory import ran_out

log = logging.getLogger(__name__)
PLAIN_STEPS = 1  # with the same rows and slots before one is recorded, which takes about as long as three
LEAST_REPLAYS = 8  # for fewer it is not worth while
SLOTS_AT_ONCE = 256
REFUSALS = 3  # after so many a model's steps are not recorded any more
SAME_KERNELS = {2: 0.03, 4: 1e-3}  # share of the largest logit that rounding moves, by bytes of a number
FREE_BYTES = 2**30  # recording can't take what PyTorch keeps for later: with less, that is given back
Step = Callable[[], Tensor]
Record = Callable[[Step], Step]

_proven: WeakSet[Any] = WeakSet()  # models of which a recording gave two steps right
_refused: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # how often that failed


def decoder_of(model: Any, pad_id: int, max_new_tokens: int) -> GraphDecoder | None:
    """Return a decoder of an unwrapped model; None where its steps can't be recorded."""
    device = model.get_input_embeddings().weight.device
    if device.type != "cuda" or not may_record(model) or not takes_kv_cache(model):
        return None
    recorder = recorder_of(device)
    return None if recorder.failed else GraphDecoder(model, pad_id, max_new_tokens, recorder)


def may_record(model: Any) -> bool:
    """Return False where it has failed before, and where FSDP gathers layers on streams of its own."""
    return _refused.get(model, 0) < REFUSALS and not hasattr(model, "_get_fsdp_state")


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
            return self._replayed(self.replay, token_B)
        logits_BV = super().step(token_B)
        self.plain_steps += 1
        is_due = self.plain_steps == PLAIN_STEPS and self.cache.slots - filled > LEAST_REPLAYS
        return self._record(token_B, logits_BV) if is_due and may_record(self.model) else logits_BV

    def keep(self, rows_B: Tensor) -> None:
        super().keep(rows_B)
        self._forget()

    def _read_distinct(self, prompts: list[tuple[int, ...]], width: int) -> Tensor:
        logits_BV = super()._read_distinct(prompts, width)
        self.cache.clear_ahead()
        self._forget()
        return logits_BV

    def _forget(self) -> None:
        self.replay: Step | None = None
        self.plain_steps = 0

    def _record(self, token_B: Tensor, logits_BV: Tensor) -> Tensor:
        """Record the step that was just made, unless other logits come of it; return its logits."""
        self.token_B = token_B.clone()
        filled = self.cache.get_seq_length()
        self.slot = torch.tensor([filled - 1], device=self.device)
        try:
            replay = self.record(self._fixed_step)
            self.cache.fill_to(filled - 1)
            found_BV = self._replayed(replay, token_B)
            if not close_per_token(found_BV, logits_BV) or not self._goes_on(replay, logits_BV.argmax(-1)):
                raise RuntimeError("their logits differ")
        except NOT_APPLICABLE as error:
            self._refuse(error)
            self.cache.fill_to(filled - 1)
            return super().step(token_B)  # writes again what a replay may have written
        self.replay = replay
        return logits_BV

    def _goes_on(self, replay: Step, token_B: Tensor) -> bool:
        """Return whether the next step is right too; asked of a model's first recording.

        What a model takes from Python, such as the cache's length, does not change in a replay. Made by the
        same kernels, the logits then differ by more than rounding.
        """
        if self.model in _proven:
            return True
        filled = self.cache.get_seq_length()
        plain_BV = super().step(token_B)
        self.cache.fill_to(filled)
        replayed_BV = self._replayed(replay, token_B)
        alike = close(
            replayed_BV.float(), self._fixed_step().float(), SAME_KERNELS[replayed_BV.dtype.itemsize]
        )
        self.cache.fill_to(filled)
        if alike and close_per_token(replayed_BV, plain_BV):
            _proven.add(self.model)
        return self.model in _proven

    def _replayed(self, replay: Step, token_B: Tensor) -> Tensor:
        """Write a token of every row to the next slot."""
        self.token_B.copy_(token_B)
        filled = self.cache.get_seq_length()
        self.slot.fill_(filled)
        self.cache.fill_to(filled + 1)
        return replay().clone()

    def _refuse(self, why: Exception) -> None:
        """Note that recording failed; where memory was short, only until rows are dropped or slots added."""
        log.info("%s: steps are not recorded: %s", type(self.model).__name__, why)
        if not ran_out(why):
            _refused[self.model] = _refused.get(self.model, 0) + 1

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


@cache
def recorder_of(device: torch.device) -> GraphRecorder:
    return GraphRecorder(device)


class GraphRecorder:
    """Records steps of any models on a device as CUDA graphs, in the same memory.

    A replay may use it once what the one before returned is no longer needed. One thread may record.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.pool: Any = None  # memory; it lasts while a graph has it
        self.latest: torch.cuda.CUDAGraph | None = None
        self.failed: torch.cuda.CUDAGraph | None = None  # kept, as PyTorch may still refer to it

    def __call__(self, step: Step) -> Step:
        with torch.cuda.device(self.device):
            _require_no_waiting(step)
            if torch.cuda.mem_get_info()[0] < FREE_BYTES:
                torch.cuda.empty_cache()
            graph, out = self._captured(step)

        def replay() -> Tensor:
            with torch.cuda.device(self.device):
                graph.replay()
            return out

        return replay

    def _captured(self, step: Step) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Record a step. `torch.cuda.graph` would wait for the GPU and empty PyTorch's cache each time."""
        if self.failed is not None:
            raise RuntimeError("an earlier recording failed on this device")
        if self.latest is None:
            self.pool = torch.cuda.graph_pool_handle()
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                out = step()
                graph.capture_end()
            except BaseException:
                self._abandon(graph)
                raise
        current.wait_stream(self.stream)
        self.latest = graph
        return graph, out.fill_(math.nan)  # a replay that leaves it so is not taken

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a recording that failed; where CUDA broke it off, tell PyTorch, and record no other."""
        try:
            graph.capture_end()
        except RuntimeError:
            self.failed = graph
            with suppress(RuntimeError):  # has ended, where capture_end came so far
                torch._C._cuda_endAllocateToPool(self.device.index, self.pool)


def _require_no_waiting(step: Step) -> None:
    """Make a step; raise RuntimeError where it, or another thread of this process, waits for the GPU."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode(before)
