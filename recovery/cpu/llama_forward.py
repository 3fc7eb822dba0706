"""Whole sequences through a Llama-like model on a CPU, forwards and backwards, without padding.

transformers gives every sequence a row as long as the longest and passes over memory many times between a
layer's products. Here tokens lie one after the other, and all layers are one call (reader.c). The last one
computes only those tokens whose states somebody wants. A model is read this way only after its own states,
and gradients where there are any, came out the same both ways.

Shapes: B rows, T columns, N tokens that are no padding, D hidden size, W head width.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence, Set
from ctypes import byref, c_long, c_void_p
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recovery.cpu import kernels as native
from recovery.cpu.kernels import PARTS, Shape, addresses_of, call, plain, shape_of, structures
from recovery.cpu.llama_layers import LayerWeights, build_of
from recovery.forward.equality import UNLIKE, near
from recovery.forward.kv_cache import Slots, sees_all
from recovery.forward.packed import Packed, PackedReader, Read

SLOPES = 1e-3  # of the largest gradient: sums of more parts than states are
TINY = 1e-6  # where all numbers are nothing but rounding
KEPT: dict[str, Callable[[Shape], int]] = {  # of each token, by a layer, for its way back: how many numbers
    "x": lambda s: s.hidden,
    "scale": lambda s: 1,
    "qkv": lambda s: (s.queries + 2 * s.keys) * s.width,
    "turned": lambda s: (s.queries + s.keys) * s.width,
    "head_scale": lambda s: s.queries + s.keys,
    "mixed": lambda s: s.queries * s.width,
    "sums": lambda s: s.queries,
    "middle": lambda s: s.hidden,
    "middle_scale": lambda s: 1,
    "gate_up": lambda s: 2 * s.feed,
}
BACK = {name: KEPT[name] for name in ("x", "middle", "gate_up", "mixed", "turned", "qkv")} | {
    "normed": lambda s: s.hidden,
    "gated": lambda s: s.feed,
}  # and gradients along it
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
    drops = model.training and getattr(model.config, "attention_dropout", 0.0)
    kernels = None if drops else native.library()
    if kernels is None:
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


class Reader(PackedReader):
    """`decoder(tokens)[0]` of a model's weights."""

    def __init__(self, model: Any, kernels: Any) -> None:
        body = model.get_decoder()
        self.embed, self.rotary, self.norm = model.get_input_embeddings(), body.rotary_emb, body.norm
        self.kernels, self.layers = kernels, [LayerWeights.of(layer) for layer in body.layers]
        self.shape = shape_of(self.layers)

    def states(self, tokens: Packed, wanted_N: Tensor | None) -> Tensor:
        slopes = torch.is_grad_enabled()
        x_ND, run = self._begin(tokens, wanted_N, KEPT.keys() if slopes else set())
        weights = chain(*(layer.values() for layer in run.weights))
        return self.norm(_Body.apply(run, x_ND, *weights) if slopes else run.forwards(x_ND))

    def slots(self, lengths: Sequence[int]) -> Slots:
        """For sequences of these lengths, which all end in the same slot."""
        slots = Slots(len(self.layers))
        for layer in slots.layers:
            layer.begin(len(lengths), self.shape.keys, max(lengths), self.shape.width, min(lengths))
        return slots

    def remember(self, sequences: Sequence[Sequence[int]], slots: Slots, first: int) -> Tensor:
        """Their keys and values into rows of slots from the first on; the last state of each sequence."""
        tokens = Packed.of(sequences)
        slots_N = tokens.positions_N + slots.get_seq_length() - tokens.lengths[tokens.rows_N]
        x_ND, run = self._begin(tokens, tokens.bounds[1:] - 1, {"turned", "qkv"})
        last_BD = run.forwards(x_ND)
        for kept, layer in zip(run.kept, slots.layers, strict=False):
            self._place(kept["turned"], tokens.rows_N + first, slots_N, layer.keys)
            self._place(kept["qkv"], tokens.rows_N + first, slots_N, layer.values)
        return self.norm(last_BD)

    def _place(self, tokens: Any, rows_N: Tensor, slots_N: Tensor, held: Tensor) -> None:
        """The last heads of each token, which are its keys or its values, to where they are held."""
        heads, width = self.shape.keys, self.shape.width
        first = tokens.shape[1] - heads * width
        own = tokens.data_ptr() + first * tokens.element_size(), tokens.shape[1], len(tokens), heads, width
        call(self.kernels.place, *own, rows_N, slots_N, *held.stride()[:2], held)

    def _begin(self, tokens: Packed, wanted_N: Tensor | None, own: Set[str]) -> tuple[Tensor, _Run]:
        x_ND = self.embed(tokens.tokens_N)
        cos_1NW, sin_1NW = self.rotary(x_ND, tokens.positions_N[None])
        if cos_1NW.shape[-1] != self.shape.width:
            raise RuntimeError("a part of each head is turned, not all of it")
        turns = cos_1NW[0].contiguous(), sin_1NW[0].contiguous()
        return x_ND, _Run(self, tokens.bounds, *turns, wanted_N, own)


class _Reading(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("bounds", "wanted")),
        *((name, c_long) for name in ("sequences", "rows", "wanted_rows", "each")),
        *((name, c_void_p) for name in ("cos", "sin", "scratch")),
    ]


class _Kept(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name in KEPT]


class _Slopes(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name in PARTS]


class _Back(ctypes.Structure):
    _fields_ = [
        (name, c_void_p)
        for name in (
            "out",
            "x",
            "middle",
            "normed",
            "gated",
            "gate_up",
            "some_mixed",
            "mixed",
            "turned",
            "qkv",
            "norms",
        )
    ]


class _Run:
    """One reading of some sequences, and where its layers keep what they leave behind."""

    def __init__(
        self,
        reader: Reader,
        bounds: Tensor,
        cos_NW: Tensor,
        sin_NW: Tensor,
        wanted_N: Tensor | None,
        own: Set[str],
    ) -> None:
        """`own`: what every layer keeps for itself, as it is looked at later."""
        self.kernels, self.shape, self.own = reader.kernels, reader.shape, own
        self.weights = [layer.tensors() for layer in reader.layers]
        laid_out = [{name: plain(weight) for name, weight in layer.items()} for layer in self.weights]
        self.layers = addresses_of(reader.layers, laid_out)
        self.rows, longest = len(cos_NW), max(bounds.diff().tolist(), default=0)
        self.wanted = self.rows if wanted_N is None else len(wanted_N)
        each = call(self.kernels.scratch_size, byref(self.shape), self.rows, longest)
        scratch = cos_NW.new_empty(self.kernels.threads(), each)
        self.held = laid_out, bounds, wanted_N, cos_NW, sin_NW, scratch
        at = [None if tensor is None else tensor.data_ptr() for tensor in self.held[1:]]
        self.reading = _Reading(*at[:2], len(bounds) - 1, self.rows, self.wanted, each, *at[2:])
        self.kept = [{name: self._room(name, self.rows) for name in KEPT}]
        for _ in reader.layers[1:]:
            self.kept.append(self.kept[0] | {name: self._room(name, self.rows) for name in own})
        if wanted_N is not None:
            self.kept.append({name: self._room(name, self.wanted) for name in KEPT})
        self.kept_at = structures(_Kept, self.kept)

    def _room(self, name: str, rows: int) -> Tensor | None:
        """Where there is no way back, gates never leave the thread that makes them."""
        if name == "gate_up" and name not in self.own:
            return None
        return torch.empty(rows, KEPT[name](self.shape))

    def forwards(self, x_ND: Tensor) -> Tensor:
        """What the last layer makes of the tokens that are wanted."""
        first = self.kept[0]["x"]
        assert first is not None
        first.copy_(x_ND)
        out = first if self.wanted == self.rows and "x" not in self.own else self._room("x", self.wanted)
        assert out is not None
        call(self.kernels.forwards, byref(self.shape), self.layers, self.kept_at, byref(self.reading), out)
        return out

    def backwards(self, out: Tensor) -> tuple[Tensor, Iterator[Tensor | None]]:
        """Along the embeddings, and along each tensor of each layer."""
        shape, fewer = self.shape, self.wanted < self.rows
        norms = 2 * shape.hidden + (shape.queries + shape.keys) * shape.width
        back: dict[str, Any] = {name: torch.empty(self.rows, size(shape)) for name, size in BACK.items()}
        back["out"] = out.clone(memory_format=torch.contiguous_format)
        back["norms"] = torch.zeros(self.kernels.threads(), norms)
        if fewer:
            back["some_mixed"] = torch.empty(self.wanted, KEPT["mixed"](shape))
        else:
            back["x"] = back["out"]
        slopes = [{name: _like(part) for name, part in layer.items()} for layer in self.weights]
        given = byref(self.shape), self.layers, self.kept_at, byref(self.reading)
        call(self.kernels.backwards, *given, structures(_Slopes, slopes), structures(_Back, [back]))
        return back["x"], chain(*(layer.values() for layer in slopes))


def _like(weight: Tensor | None) -> Tensor | None:
    return None if weight is None else torch.empty_like(weight, memory_format=torch.contiguous_format)


class _Body(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: _Run, x_ND: Tensor, *weights: Tensor | None) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(*weights)
        return run.forwards(x_ND)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx_ND: Tensor) -> tuple[Any, ...]:
        assert ctx.saved_tensors is not None  # or refused: weights that have changed since
        dx_ND, slopes = ctx.run.backwards(dx_ND)
        del ctx.run
        return None, dx_ND, *slopes


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
