"""One more token a row through a Llama-like model on a CPU, in as few operations as that takes.

Where matrices are small, half of a step is what lies around the products: a module call for each, queries'
norms apart from keys', weights read across their order. Here the weights lie as products read them, those of
equal input beside each other; where the machine has a compiler, all layers are one call (native.py). Whether
a model computes this way at all is for the caller to prove: its own logits of a step are there to be compared
with.

Shapes: B rows, D hidden, H query heads, G key heads, W head width, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from recovery import native
from recovery.forward import logits_of
from recovery.fused import rms_norm, rotate
from recovery.llama import UNLIKE, Build, LayerWeights, build_of
from recovery.slots import SlotLayer, Slots, attend

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
        self.model, self.embed, self.norm = model, model.get_input_embeddings(), body.norm
        self.rotary = body.rotary_emb
        weights, kernels = [LayerWeights.of(layer) for layer in body.layers], native.library()
        by_kernel = kernels and build.swishes
        self.layers = native.Layers(kernels, weights) if by_kernel else _Layers(body.layers, weights)

    def logits(self, token_B: Tensor, position_B: Tensor, mask_B11S: Tensor, slots: Slots) -> Tensor:
        """What follows each row's token, which is written into the next slot."""
        x_BD = self.embed(token_B)
        cos_B1W, sin_B1W = self.rotary(x_BD, position_B[:, None])
        x_BD = self.layers(x_BD, cos_B1W, sin_B1W, mask_B11S, slots)
        return logits_of(self.model, self.norm(x_BD))


class _Layers:
    """The layers one after the other, in PyTorch's operations."""

    def __init__(self, layers: Any, weights: list[LayerWeights]) -> None:
        self.layers = [_Layer(own, layer.mlp.act_fn) for own, layer in zip(weights, layers, strict=True)]

    def __call__(
        self, x_BD: Tensor, cos_B1W: Tensor, sin_B1W: Tensor, mask_B11S: Tensor, slots: Slots
    ) -> Tensor:
        for layer, own in zip(self.layers, slots.layers, strict=True):
            x_BD = layer(x_BD, cos_B1W, sin_B1W, mask_B11S, own)
        return x_BD


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
