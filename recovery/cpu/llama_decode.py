"""Decode Llama-like models on a CPU: all layers, the norm and the head in one call, for one step or several.

transformers spends half of such a step and more around the products, and libraries rearrange the weights for
every product of a few rows. The kernels (`decoder.c`) read them as they are, in fp32 or bf16. A model is
decoded this way only after a check against its own logits.

Shapes: B rows, R rows of the whole batch, P positions, D hidden, W head width, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from recovery.batches.length_groups import length_groups
from recovery.cpu.layer_kernels import Layers, Rows
from recovery.cpu.library import library
from recovery.cpu.llama_forward import reader_of
from recovery.cpu.llama_layers import MEMORY_SHARE, LayerWeights, build_of, computes, is_plain
from recovery.cpu.placed_cache import PlacedCache
from recovery.forward.common_beginning import common_beginning
from recovery.forward.decoder import Responses
from recovery.forward.equality import NOT_APPLICABLE, TRIALS, close, close_per_token, first_tokens
from recovery.forward.hidden_states import READ_TOKENS, logit_transform, logits_of, plain_states
from recovery.forward.model_decoder import ModelDecoder, Prompt, takes_kv_cache
from recovery.memory import main_memory

CHECKED: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()  # models, and whether their decoder was right
# Of `write_ahead`, as Python handles interrupts between calls only: steps, and the numbers that these read
STEPS_A_CALL = 8
NUMBERS_A_CALL = 2**28
CHECK_LENGTHS = (9, 5)  # of the prompts in the check
CHECK_STEPS = 2


def decoder_of(model: Any, pad_id: int, max_new_tokens: int) -> LlamaDecoder | None:
    """Return a decoder of the current weights; None where the model's layers are not Llama's or need more."""
    if CHECKED.get(model) is False or not takes_kv_cache(model):
        return None
    if not decoder_bytes(model):
        return None
    if model not in CHECKED:
        CHECKED[model] = _equals_model(model, pad_id)
    return LlamaDecoder(model, pad_id, max_new_tokens) if CHECKED[model] else None


def decoder_bytes(model: Any) -> float:
    """Return the bytes of the laid-out weights of a model that may have a decoder; 0 for all others."""
    build = build_of(model)
    if build is None or not build.swishes or not computes(library(), model):
        return 0.0
    if build.adapted and model.get_input_embeddings().weight.dtype != torch.float32:
        return 0.0  # adapters are in fp32, and so would be their sums with the weights
    head = _plain_head(model)
    weights = [*model.get_decoder().layers.parameters(), *([] if head is None else [head])]
    laid_out = float(sum(weight.nbytes for weight in weights))
    return laid_out if laid_out <= MEMORY_SHARE * main_memory() else 0.0


class LlamaDecoder(ModelDecoder):
    """Decodes by the kernels; prompts are read by them too, except through adapters."""

    cache_type = PlacedCache
    cache: PlacedCache
    drop_share = 0.0  # dropping rows moves nothing

    def __init__(self, model: Any, pad_id: int, max_new_tokens: int) -> None:
        super().__init__(model, pad_id, max_new_tokens)
        self.embed = model.get_input_embeddings()
        self.rotary = model.get_decoder().rotary_emb
        self.transform = logit_transform(model)
        self.turns: tuple[Tensor, Tensor] | None = None

    @cached_property
    def layers(self) -> Layers:
        """Join the weights: not before the first step, as a batch may end at its first token."""
        body = self.model.get_decoder()
        weights = [LayerWeights.of(layer) for layer in body.layers]
        return Layers(library(), weights, body.norm, _plain_head(self.model))

    def step(self, token_B: Tensor) -> Tensor:
        filled = self.cache.get_seq_length() + 1
        self.cache.make_room(filled)
        x_BD = self.embed(token_B)
        out = self.layers(x_BD.float(), *self._turns(x_BD, filled), self.starts_B, self.cache)
        if self.layers.head is None:
            return logits_of(self.model, out)
        return self.transform(out) if self.transform else out

    def keep(self, rows_B: Tensor) -> None:
        self.cache.keep(rows_B)
        self.starts_B = self.starts_B[rows_B]

    @property
    def writes_ahead(self) -> bool:  # type: ignore[override]
        """Whether the head's output needs nothing more, and every token it may name has an embedding row."""
        if self.layers.head is None or self.transform is not None:
            return False
        if type(self.embed) is not torch.nn.Embedding or self.embed.max_norm is not None:
            return False
        rows, width = self.embed.weight.shape
        return rows >= self.layers.outputs and width == self.layers.shape.hidden

    def write_ahead(
        self, token_B: Tensor, rows_B: Tensor, responses: Responses, step: int, steps: int
    ) -> tuple[int, Tensor, Tensor]:
        filled = self.cache.get_seq_length()
        self.cache.make_room(filled + 1)
        at_once = min(STEPS_A_CALL, max(1, NUMBERS_A_CALL // self.layers.numbers))
        steps = min(steps, self.cache.slots - filled, at_once)
        rows = Rows(token_B, self.starts_B, self.cache.places(len(token_B)), rows_B).copied()
        weight_VD = self.embed.weight.detach()
        turns = self._turns(weight_VD, filled + steps)
        made, left = self.layers.write_ahead(rows, weight_VD, *turns, self.cache, responses, step, steps)
        rows = rows.first(left)
        self.starts_B = rows.start_B
        self.cache.places_B = rows.place_B
        return made, rows.token_B, rows.which_B

    def _read_distinct(self, prompts: list[Prompt], width: int) -> Tensor:
        reader = reader_of(self.model, plain_states)
        if reader is None:
            return super()._read_distinct(prompts, width)
        lengths = list(map(len, prompts))
        common = common_beginning(prompts, self.saves_at_least)
        self.cache = reader.cache(lengths, width + self.max_new_tokens)
        groups = length_groups([length - common for length in lengths], READ_TOKENS["cpu without padding"])
        states = [reader.fill(prompts[group], self.cache, group.start, common) for group in groups]
        return logits_of(self.model, torch.cat(states))

    def _turns(self, x_BD: Tensor, positions: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of at least so many positions; afresh where they depend on how many."""
        varying = _varies_with_length(self.rotary)
        if self.turns is None or len(self.turns[0]) < positions or varying:
            room = 0 if varying else positions // 2 + 16
            positions_P = torch.arange(positions + room, device=x_BD.device)
            cos_1PW, sin_1PW = self.rotary(x_BD[:1].float(), positions_P[None])  # in bf16 it rounds them
            self.turns = cos_1PW[0].contiguous(), sin_1PW[0].contiguous()
        return self.turns


def _varies_with_length(rotary: Any) -> bool:
    kind = str(getattr(rotary, "rope_type", ""))
    return "dynamic" in kind or kind == "longrope"


def _plain_head(model: Any) -> Tensor | None:
    head = model.get_output_embeddings()
    return head.weight if is_plain(head) and head.bias is None else None


def _equals_model(model: Any, pad_id: int) -> bool:
    """Compare the logits of two short prompts and the tokens after them with the model's own.

    Rounding to bf16 would hide a layer that computes something else, so that a copy in fp32 has to pass too.
    """
    if model.get_input_embeddings().weight.dtype != torch.float32:
        try:
            if not _equals_model(copy.deepcopy(model).float(), pad_id):
                return False
        except NOT_APPLICABLE:
            return False
    tokens = 2 * (max(CHECK_LENGTHS) + CHECK_STEPS)
    starts = first_tokens(model, tokens, in_fp32=TRIALS)
    return all(any(_equal_from(model, pad_id, start, tokens, alike) for start in starts) for alike in (0, 4))


def _equal_from(model: Any, pad_id: int, start: int, tokens: int, alike: int) -> bool:
    """Compare two prompts whose first `alike` tokens are the same."""
    embed = model.get_input_embeddings().weight
    equal = close if embed.dtype == torch.float32 else close_per_token
    whole_BT = torch.arange(start, start + tokens).view(2, -1) % len(embed)
    whole_BT[1, :alike] = whole_BT[0, :alike]
    decoder = LlamaDecoder(model, pad_id, CHECK_STEPS)
    decoder.saves_at_least = 1
    prompts: list[Sequence[int]] = [
        row[:length].tolist() for row, length in zip(whole_BT, CHECK_LENGTHS, strict=True)
    ]
    try:
        found = [decoder.prefill(prompts)]
        for step in range(CHECK_STEPS):
            token_B = torch.stack(
                [row[length + step] for row, length in zip(whole_BT, CHECK_LENGTHS, strict=True)]
            )
            found.append(decoder.step(token_B).to(embed.dtype))
        logits_BTV = logits_of(model, plain_states(model, whole_BT))
        ends_BT = torch.tensor(CHECK_LENGTHS)[:, None] - 1 + torch.arange(CHECK_STEPS + 1)
        expected_BTV = logits_BTV[torch.arange(2)[:, None], ends_BT]
        return equal(torch.stack(found, 1), expected_BTV)
    except NOT_APPLICABLE:
        return False
