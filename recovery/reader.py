"""Whole sequences through a Llama-like model on a CPU, forwards and backwards, without padding.

transformers gives every sequence a row as long as the longest and passes over memory many times between a
layer's products. Here tokens lie one after the other, the products are PyTorch's, and what lies between two
of them is one pass (native.c). A model is read this way only after its own states, and gradients where there
are any, came out the same both ways.

Shapes: B rows, T columns, N tokens that are no padding, D hidden size, G key heads, W head width.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import accumulate, chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from recovery import native
from recovery.llama import UNLIKE, LayerWeights, build_of, near
from recovery.native import Shape, call, shape_of
from recovery.slots import Slots, sees_all

Read = Callable[[Any, Tensor, Tensor | None, Tensor | None], Tensor]
SLOPES = 1e-3  # of the largest gradient: sums of more parts than states are
TINY = 1e-6  # where all numbers are nothing but rounding
PROVEN: WeakKeyDictionary[Any, dict[bool, bool]] = WeakKeyDictionary()  # with gradients or not: was it right?


def reader_of(model: Any, plain: Read) -> Reader | None:
    """A reader of the weights as they are now; None where the model has to be read as `plain` does.

    A model with an adapter is: PEFT trains it, and off or on it should say what it says in training, to the
    last digit, as two that are the same have no gradient.
    """
    slopes, proven = torch.is_grad_enabled(), PROVEN.get(model, {})
    build = None if proven.get(slopes) is False else build_of(model)
    if build is None or build.adapted or not build.swishes:
        return None
    kernels = native.library()
    if kernels is None or (model.training and getattr(model.config, "attention_dropout", 0.0)):
        return None
    if slopes and getattr(model, "is_gradient_checkpointing", False):
        return None
    try:
        reader = Reader(model, kernels)
        if slopes not in proven:
            PROVEN[model] = proven | {slopes: sees_all(model) and _agrees(model, reader, plain)}
    except UNLIKE:
        PROVEN[model] = proven | {slopes: False}
    return reader if PROVEN[model][slopes] else None


class Reader:
    """`decoder(tokens)[0]` of a model's weights."""

    def __init__(self, model: Any, kernels: Any) -> None:
        body = model.get_decoder()
        self.embed, self.rotary, self.norm = model.get_input_embeddings(), body.rotary_emb, body.norm
        self.kernels, self.layers = kernels, [LayerWeights.of(layer) for layer in body.layers]
        self.shape = shape_of(self.layers)

    def __call__(
        self, tokens_BT: Tensor, attention_BT: Tensor | None = None, positions_BT: Tensor | None = None
    ) -> Tensor:
        """The states (B, T, D), zeros where there is padding."""
        places_N, positions_N, bounds = _packed(tokens_BT, attention_BT, positions_BT)
        x_ND, run = self._begin(tokens_BT.flatten()[places_N], positions_N, bounds)
        for layer in self.layers:
            if torch.is_grad_enabled():
                x_ND = _Layer.apply(run, layer, x_ND, *layer.tensors().values())
            else:
                x_ND, _ = _through(run, layer, x_ND)
        x_ND = self.norm(x_ND)
        if len(x_ND) < tokens_BT.numel():
            x_ND = x_ND.new_zeros(tokens_BT.numel(), x_ND.shape[1]).index_copy(0, places_N, x_ND)
        return x_ND.view(*tokens_BT.shape, x_ND.shape[-1])

    def remember(self, sequences: Sequence[Sequence[int]], slots: Slots, width: int) -> Tensor:
        """Their keys and values into slots of their own, where all end at `width`; the last state of each."""
        bounds = torch.tensor([0, *accumulate(map(len, sequences))])
        rows_N = torch.arange(len(sequences)).repeat_interleave(bounds.diff())
        positions_N = torch.arange(len(rows_N)) - bounds[rows_N]
        places_N = positions_N + width - bounds.diff()[rows_N]
        x_ND, run = self._begin(torch.tensor(list(chain(*sequences))), positions_N, bounds)
        for layer, own in zip(self.layers, slots.layers, strict=True):
            x_ND, kept = _through(run, layer, x_ND)
            keys_NGW = kept.turned.view(len(rows_N), -1, layer.width)[:, layer.queries :]
            values_NGW = kept.qkv.view(len(rows_N), -1, layer.width)[:, layer.queries + layer.keys :]
            own.place(keys_NGW, values_NGW, rows_N, places_N, width)
        return self.norm(x_ND[bounds[1:] - 1])

    def _begin(self, tokens_N: Tensor, positions_N: Tensor, bounds: Tensor) -> tuple[Tensor, _Pass]:
        x_ND = self.embed(tokens_N)
        cos_1NW, sin_1NW = self.rotary(x_ND, positions_N[None])
        if cos_1NW.shape[-1] != self.shape.width:
            raise RuntimeError("a part of each head is turned, not all of it")
        return x_ND, _Pass(self.kernels, self.shape, bounds, cos_1NW[0].contiguous(), sin_1NW[0].contiguous())


def _packed(
    tokens_BT: Tensor, attention_BT: Tensor | None, positions_BT: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Where tokens are that are no padding, their positions, and where each sequence of them begins and the
    last ends. With positions, one begins wherever they restart."""
    there_BT = torch.ones_like(tokens_BT, dtype=torch.bool) if attention_BT is None else attention_BT.bool()
    if positions_BT is None:
        positions_BT = there_BT.long().cumsum(-1) - 1
    places_N = there_BT.flatten().nonzero()[:, 0]
    positions_N = positions_BT.expand_as(tokens_BT).flatten()[places_N]
    rows_N = places_N // tokens_BT.shape[1]
    begins_N = positions_N == 0
    begins_N[:1] = True
    begins_N[1:] |= rows_N[1:] != rows_N[:-1]
    begins = begins_N.nonzero()[:, 0]
    return places_N, positions_N, torch.cat([begins, begins.new_tensor([len(places_N)])])


@dataclass(frozen=True)
class _Pass:
    """One reading: what all layers are told, and their steps between products."""

    kernels: Any
    shape: Shape
    bounds: Tensor
    cos_NW: Tensor
    sin_NW: Tensor

    @cached_property
    def address(self) -> Any:
        return ctypes.byref(self.shape)

    @cached_property
    def heads(self) -> int:
        return self.shape.queries + self.shape.keys

    @cached_property
    def scratch(self) -> tuple[Tensor, int]:
        """Where each thread works, and how many numbers that are."""
        lengths = self.bounds.diff()
        each = call(self.kernels.scratch_size, self.address, int(lengths.max()) if len(lengths) else 0)
        return self.partial(each), each

    def partial(self, *size: int) -> Tensor:
        """Zeros that each thread adds to for itself."""
        return self.cos_NW.new_zeros(self.kernels.threads(), *size)

    def norm(self, x_ND: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        y_ND, scale_N = torch.empty_like(x_ND), x_ND.new_empty(len(x_ND))
        call(self.kernels.norms, x_ND, weight, epsilon, *x_ND.shape, y_ND, scale_N)
        return y_ND, scale_N

    def norm_back(
        self, dy_ND: Tensor, x_ND: Tensor, weight: Tensor, scale_N: Tensor, more_ND: Tensor
    ) -> tuple[Tensor, Tensor]:
        dx_ND, d_weight = torch.empty_like(x_ND), self.partial(len(weight))
        call(self.kernels.norms_back, dy_ND, x_ND, weight, scale_N, *x_ND.shape, more_ND, dx_ND, d_weight)
        return dx_ND, d_weight.sum(0)

    def gates(self, gate_up: Tensor) -> Tensor:
        rows, feed = len(gate_up), self.shape.feed
        out = gate_up.new_empty(rows, feed)
        call(self.kernels.gates, gate_up, rows, feed, out)
        return out

    def gates_back(self, gate_up: Tensor, dy: Tensor) -> Tensor:
        d_gate_up = torch.empty_like(gate_up)
        call(self.kernels.gates_back, gate_up, dy, *dy.shape, d_gate_up)
        return d_gate_up

    def turns(self, qkv: Tensor, own: LayerWeights) -> tuple[Tensor, Tensor]:
        rows = len(qkv)
        turned, scale = qkv.new_empty(rows, self.heads * own.width), qkv.new_empty(rows, self.heads)
        call(
            self.kernels.turns, self.address, qkv, own.head_norm, own.head_epsilon, self.cos_NW, self.sin_NW,
            rows, turned, scale,
        )  # fmt: skip
        return turned, scale

    def turns_back(
        self, d_turned: Tensor, qkv: Tensor, head_norm: Tensor | None, scale: Tensor, d_qkv: Tensor
    ) -> Tensor | None:
        """Into the queries' and keys' part of `d_qkv`; the norms' gradient is given back."""
        d_norm = None if head_norm is None else self.partial(*head_norm.shape)
        call(
            self.kernels.turns_back, self.address, d_turned, qkv, head_norm, scale, self.cos_NW, self.sin_NW,
            len(qkv), d_qkv, d_norm,
        )  # fmt: skip
        return None if d_norm is None else d_norm.sum(0)

    def attention(self, turned: Tensor, qkv: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        rows, queries = len(qkv), self.shape.queries
        mixed, sums = qkv.new_empty(rows, queries * self.shape.width), qkv.new_empty(rows, queries)
        given = self.address, self.bounds, len(self.bounds) - 1, turned, qkv, scale
        call(self.kernels.attention, *given, mixed, sums, *self.scratch)
        return mixed, sums

    def attention_back(
        self, turned: Tensor, qkv: Tensor, scale: float, mixed: Tensor, sums: Tensor, d_mixed: Tensor
    ) -> tuple[Tensor, Tensor]:
        d_turned, d_qkv = torch.empty_like(turned), torch.empty_like(qkv)
        given = self.address, self.bounds, len(self.bounds) - 1, turned, qkv, scale, mixed, sums, d_mixed
        call(self.kernels.attention_back, *given, d_turned, d_qkv, *self.scratch)
        return d_turned, d_qkv


@dataclass(frozen=True)
class _Kept:
    """What a layer leaves behind for its way back; keys and values are among it."""

    x: Tensor
    y: Tensor
    scale: Tensor
    qkv: Tensor
    turned: Tensor
    head_scale: Tensor
    mixed: Tensor
    sums: Tensor
    middle: Tensor
    z: Tensor
    middle_scale: Tensor
    gate_up: Tensor
    gated: Tensor
    gate_up_weight: Tensor


def _through(run: _Pass, w: LayerWeights, x: Tensor) -> tuple[Tensor, _Kept]:
    """One layer."""
    gate_up_weight, gate_up_bias = w.gate_up()
    y, scale = run.norm(x, w.before, w.before_epsilon)
    qkv = linear(y, w.qkv, w.qkv_bias)
    turned, head_scale = run.turns(qkv, w)
    mixed, sums = run.attention(turned, qkv, w.scale)
    middle = linear(mixed, w.out, w.out_bias).add_(x)
    z, middle_scale = run.norm(middle, w.between, w.between_epsilon)
    gate_up = linear(z, gate_up_weight, gate_up_bias)
    gated = run.gates(gate_up)
    before = x, y, scale, qkv, turned, head_scale, mixed, sums
    kept = _Kept(*before, middle, z, middle_scale, gate_up, gated, gate_up_weight)
    return linear(gated, w.down, w.down_bias).add_(middle), kept


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: _Pass, own: LayerWeights, x: Tensor, *weights: Tensor | None) -> Tensor:
        x, kept = _through(run, own.with_tensors(weights), x)
        ctx.run, ctx.own = run, own
        ctx.save_for_backward(*vars(kept).values(), *weights)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor) -> tuple[Any, ...]:
        count = len(fields(_Kept))
        k, weights = _Kept(*ctx.saved_tensors[:count]), ctx.saved_tensors[count:]
        run, w, dx = ctx.run, ctx.own.with_tensors(weights), dx.contiguous()
        d = _slopes("down", dx, k.gated, w.down_bias)
        d_gate_up = run.gates_back(k.gate_up, dx @ w.down)
        d |= _halves(_slopes("gate_up", d_gate_up, k.z, w.gate_bias))
        d_z = d_gate_up @ k.gate_up_weight
        d_middle, d["between"] = run.norm_back(d_z, k.middle, w.between, k.middle_scale, dx)
        d |= _slopes("out", d_middle, k.mixed, w.out_bias)
        d_mixed = d_middle @ w.out
        d_turned, d_qkv = run.attention_back(k.turned, k.qkv, w.scale, k.mixed, k.sums, d_mixed)
        d["head_norm"] = run.turns_back(d_turned, k.qkv, w.head_norm, k.head_scale, d_qkv)
        d |= _slopes("qkv", d_qkv, k.y, w.qkv_bias)
        dx, d["before"] = run.norm_back(d_qkv @ w.qkv, k.x, w.before, k.scale, d_middle)
        return None, None, dx, *(d[name] for name in w.tensors())


def _slopes(name: str, dy: Tensor, x: Tensor, bias: Tensor | None) -> dict[str, Tensor | None]:
    """The gradients of a linear layer's weight and bias."""
    return {name: dy.t() @ x, f"{name}_bias": None if bias is None else dy.sum(0)}


def _halves(both: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    """Gate and up apart."""
    weight, bias = both["gate_up"], both["gate_up_bias"]
    assert weight is not None
    gate_bias, up_bias = (None, None) if bias is None else bias.chunk(2)
    gate, up = weight.chunk(2)
    return {"gate": gate, "gate_bias": gate_bias, "up": up, "up_bias": up_bias}


def _agrees(model: Any, reader: Reader, plain: Read) -> bool:
    """Whether two short sequences, one of them padded, get the model's own states and gradients."""
    tokens = torch.arange(22).view(2, 11) % min(len(reader.embed.weight), 22)
    there = torch.ones_like(tokens, dtype=torch.bool)
    there[1, 7:] = False
    found, expected = reader(tokens, there)[there], plain(model, tokens, there, None)[there]
    if not near(found, expected, rounding=TINY):
        return False
    weights = [p for p in model.get_decoder().parameters() if p.requires_grad]
    if not torch.is_grad_enabled() or not weights:
        return True
    along = torch.linspace(-1, 1, found.numel()).view_as(found).sin()
    ours, own = (
        torch.autograd.grad((states * along).sum(), weights, materialize_grads=True)
        for states in (found, expected)
    )
    return all(near(one, other, SLOPES, TINY) for one, other in zip(ours, own, strict=True))
