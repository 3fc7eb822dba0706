"""Decode a batch by the model's own forward pass, with one KV cache for all rows.

Shapes: B rows being decoded, T tokens, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from recovery.batches.length_groups import length_groups
from recovery.forward.common_beginning import common_beginning
from recovery.forward.decoder import Decoder
from recovery.forward.hidden_states import read_at_once
from recovery.forward.kv_cache import KVCache, attend, padding_mask, sees_all

ATTENTION = "recover_decode"
Prompt = tuple[int, ...]


class ModelDecoder(Decoder):
    """Decodes by the model's own forward pass; all rows write the same slot of the cache."""

    cache_type = KVCache

    def __init__(self, model: Any, pad_id: int, max_new_tokens: int) -> None:
        self.model = model
        self.pad_id = pad_id
        self.max_new_tokens = max_new_tokens
        self.device = model.get_input_embeddings().weight.device
        self.accepts = set(inspect.signature(model.forward).parameters)
        self.in_place = takes_kv_cache(model)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Read each distinct prompt once, beside others of its length, then copy rows for repeated ones."""
        width = max(map(len, prompts))
        starts = [width - len(prompt) for prompt in prompts]
        self.starts_B = torch.tensor(starts, device=self.device)
        distinct = sorted({tuple(prompt) for prompt in prompts}, key=lambda prompt: (len(prompt), prompt))
        logits_BV = self._read_distinct(distinct, width)
        places = {prompt: place for place, prompt in enumerate(distinct)}
        rows_B = torch.tensor([places[tuple(prompt)] for prompt in prompts], device=self.device)
        if torch.equal(rows_B, torch.arange(len(distinct), device=self.device)):
            return logits_BV
        self.cache.reorder_cache(rows_B)
        return logits_BV[rows_B]

    def step(self, token_B: Tensor) -> Tensor:
        filled = self.cache.get_seq_length() + 1
        if isinstance(self.cache, KVCache):
            self.cache.make_room(filled)
            mask = padding_mask(self.starts_B, filled, self.model.dtype)
        else:
            mask = torch.arange(filled, device=self.device) >= self.starts_B[:, None]
        return self._forward(token_B[:, None], (filled - 1 - self.starts_B)[:, None], mask, self.cache)

    def keep(self, rows_B: Tensor) -> None:
        self.cache.reorder_cache(rows_B)
        self.starts_B = self.starts_B[rows_B]

    def _read_distinct(self, prompts: list[Prompt], width: int) -> Tensor:
        """Fill the cache with prompts sorted by length; return the logits that follow each."""
        if not self.in_place:
            self.cache: Cache = DynamicCache(config=self.model.config)
            return self._read(prompts, self.cache)
        beginning = KVCache(len(DynamicCache(config=self.model.config).layers))
        if common := common_beginning(prompts, self.saves_at_least):
            self._read([prompts[0][:common]], beginning)
        rests = [prompt[common:] for prompt in prompts]
        caches, logits = [], []
        for group in length_groups(list(map(len, rests)), read_at_once(self.model)):
            read = rests[group]
            cache = beginning.repeated(len(read), len(read[-1])) if common else beginning.empty()
            logits.append(self._read(read, cache, common))
            caches.append(cache)
        self.cache = self.cache_type.joined(caches, width, width + self.max_new_tokens)
        return torch.cat(logits)

    def _read(self, prompts: list[Prompt], cache: Cache, before: int = 0) -> Tensor:
        """Read left-padded prompts after `before` tokens in the cache; return the logits that follow each.

        A rest is read apart from its beginning: between them lies its padding, and the cache then closes
        that gap.
        """
        width = max(map(len, prompts))
        gaps = [width - len(prompt) for prompt in prompts]
        tokens = [[self.pad_id] * gap + list(prompt) for gap, prompt in zip(gaps, prompts, strict=True)]
        offsets_BT = torch.arange(width, device=self.device) - torch.tensor(gaps, device=self.device)[:, None]
        mask = offsets_BT >= 0 if any(gaps) else None
        if mask is not None:
            mask = torch.cat([mask.new_ones(len(prompts), before), mask], 1)
        positions_BT = before + offsets_BT.clamp(min=0)
        logits_BV = self._forward(torch.tensor(tokens, device=self.device), positions_BT, mask, cache)
        if isinstance(cache, KVCache) and before:
            cache.close_gaps(before, gaps)
        return logits_BV

    def _forward(self, tokens_BT: Tensor, positions_BT: Tensor, mask: Tensor | None, cache: Cache) -> Tensor:
        """Return the logits of the last position."""
        optional = {"position_ids": positions_BT, "logits_to_keep": 1}
        accepted = {name: value for name, value in optional.items() if name in self.accepts}
        out = self.model(tokens_BT, attention_mask=mask, past_key_values=cache, use_cache=True, **accepted)
        return out.logits[:, -1]


def takes_kv_cache(model: Any) -> bool:
    """Return whether every layer attends to the whole past through the mask that it is given.

    Sliding windows, recurrent states, ALiBi and other attention kernels keep transformers' own caches and
    masks.
    """
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    return model.config._attn_implementation == ATTENTION and takes_positions and sees_all(model)


def decode_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention by sdpa, except where each row has one new token."""
    batch, heads, positions, width = query.shape
    if positions > 1 or attention_mask is None or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    grouped = query.reshape(batch, key.shape[1], -1, width)
    out = attend(grouped, key, value, attention_mask, kwargs.get("scaling") or width**-0.5)
    return out.reshape(batch, 1, heads, value.shape[-1]), None


AttentionInterface.register(ATTENTION, decode_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
