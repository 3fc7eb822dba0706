"""One more token a row through a Llama-like model on a CPU, in as few operations as that takes.

Where matrices are small, half of a step is what lies around the products: a module call for each, queries'
norms apart from keys', weights read across their order. Here the weights lie as products read them, those of
equal input beside each other; where the machine has a compiler, all of it is one call (native.py). Whether
a model computes this way at all is for the caller to prove: its own logits of a step are there to be compared
with.

Shapes: B rows, P positions, S slots, D hidden, H query heads, G key heads, W head width, F feed-forward
width, V vocabulary.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from recovery.cpu import kernels as native
from recovery.cpu.fused_layers import rms_norm, rotate
from recovery.cpu.llama_layers import MOST_WEIGHTS, Build, LayerWeights, build_of, is_plain
from recovery.forward.equality import UNLIKE
from recovery.forward.hidden_states import logits_of, shaping
from recovery.forward.kv_cache import SlotLayer, Slots, attend, mask_of

PROVEN: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()  # models held against their decoder: was it right?


def decoder_of(model: Any) -> Decoder | None:
    """A decoder of the weights as they are now; None where it would not help or layers are not Llama's."""
    build = None if PROVEN.get(model) is False else build_of(model)
    if build is None:
        return None
    try:
        return Decoder(model, build)
    except UNLIKE:
        return None


class Decoder:
    """A model's weights, laid out for a token a row."""

    def __init__(self, model: Any, build: Build) -> None:
        body = model.get_decoder()
        self.model, self.embed, self.rotary = model, model.get_input_embeddings(), body.rotary_emb
        weights, kernels = [LayerWeights.of(layer) for layer in body.layers], native.library()
        if kernels and build.swishes:
            self.layers: Any = native.Layers(kernels, weights, body.norm, _plain_head(model))
        else:
            self.layers = _Layers(body.layers, weights, body.norm)
        self.shaped, self.turns = shaping(model), list[Tensor]()
        self.writes = self.layers.head is not None and self.shaped is None and self._is_fed_by_rows()

    def logits(self, token_B: Tensor, starts_B: Tensor, slots: Slots) -> Tensor:
        """What follows each row's token, which is written into the next slot; rows begin in `starts_B`."""
        x_BD = self.embed(token_B)
        found = self.layers(x_BD, *self._turns(x_BD, slots.get_seq_length() + 1), starts_B, slots)
        if self.layers.head is None:
            return logits_of(self.model, found)
        return self.shaped(found) if self.shaped else found

    def write_on(
        self, rows: native.Rows, slots: Slots, writing: native.Writing, step: int, steps: int
    ) -> tuple[int, native.Rows]:
        """Up to so many tokens more for each row, without a word in between: steps made, and who goes on."""
        weight = self.embed.weight.detach()
        turns = self._turns(weight, slots.get_seq_length() + steps)
        made, left = self.layers.write_on(rows, weight, *turns, slots, writing, step, steps)
        return made, rows.take(slice(left))

    def _is_fed_by_rows(self) -> bool:
        """Whether a token's embedding is a row of a table that has one for whatever the head may name."""
        if type(self.embed) is not torch.nn.Embedding or self.embed.max_norm is not None:
            return False
        rows, width = self.embed.weight.shape
        return rows >= self.layers.outputs and width == self.layers.shape.hidden

    def _turns(self, x_BD: Tensor, seen: int) -> list[Tensor]:
        """Cosines and sines of at least so many positions; anew each time where they depend on how many."""
        if not self.turns or len(self.turns[0]) < seen or _follows_length(self.rotary):
            room = 0 if _follows_length(self.rotary) else seen // 2 + 16
            positions_P = torch.arange(seen + room, device=x_BD.device)
            self.turns = [part[0].contiguous() for part in self.rotary(x_BD[:1], positions_P[None])]
        return self.turns


def _follows_length(rotary: Any) -> bool:
    kind = str(getattr(rotary, "rope_type", ""))
    return "dynamic" in kind or kind == "longrope"


def _plain_head(model: Any) -> Tensor | None:
    head = model.get_output_embeddings()
    fits = is_plain(head) and head.bias is None and head.weight.numel() <= MOST_WEIGHTS
    return head.weight if fits else None


class _Layers:
    """The layers one after the other, in PyTorch's operations."""

    head = None

    def __init__(self, layers: Any, weights: list[LayerWeights], norm: Any) -> None:
        self.layers = [_Layer(own, layer.mlp.act_fn) for own, layer in zip(weights, layers, strict=True)]
        self.norm = norm

    def __call__(
        self, x_BD: Tensor, cos_PW: Tensor, sin_PW: Tensor, starts_B: Tensor, slots: Slots
    ) -> Tensor:
        seen = slots.get_seq_length() + 1
        positions_B, mask = seen - 1 - starts_B, mask_of(starts_B, seen, x_BD.dtype)
        cos_B1W, sin_B1W = cos_PW[positions_B, None], sin_PW[positions_B, None]
        for layer, own in zip(self.layers, slots.layers, strict=True):
            x_BD = layer(x_BD, cos_B1W, sin_B1W, mask, own)
        return self.norm(x_BD)


class _Layer:
    def __init__(self, weights: LayerWeights, act: Any) -> None:
        self.own, self.act = weights, act
        self.qkv, self.out = _Product(weights.qkv, weights.qkv_bias), _Product(weights.out, weights.out_bias)
        self.down = _Product(weights.down, weights.down_bias)
        self.gate_up = _Product(*weights.gate_up())

    def __call__(self, x_BD: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, slots: SlotLayer) -> Tensor:
        own = self.own
        before_BD = rms_norm(x_BD, own.before, own.before_epsilon)
        x_BD = self.out(self._attend(before_BD, cos, sin, mask, slots)).add_(x_BD)
        gate_BF, up_BF = self.gate_up(rms_norm(x_BD, own.between, own.between_epsilon)).chunk(2, -1)
        return self.down(self.act(gate_BF).mul_(up_BF)).add_(x_BD)

    def _attend(self, x_BD: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, slots: SlotLayer) -> Tensor:
        own, rows = self.own, len(x_BD)
        heads = own.queries + own.keys
        qkv = self.qkv(x_BD).view(rows, -1, own.width)
        qk, v = qkv[:, :heads], qkv[:, heads:, None]
        if own.head_norm is not None:
            qk = rms_norm(qk, own.head_norm, own.head_epsilon)
        qk = rotate(qk, cos, sin)
        keys, values = slots.update(qk[:, own.queries :, None], v)
        q = qk[:, : own.queries].view(rows, own.keys, -1, own.width)
        return attend(q, keys, values, mask, own.scale).view(rows, -1)


class _Product:
    """A linear layer whose weight lies as products read it."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight_t, self.bias = weight.t().contiguous(), bias

    def __call__(self, x: Tensor) -> Tensor:
        y = torch.mm(x, self.weight_t)
        return y if self.bias is None else y.add_(self.bias)
