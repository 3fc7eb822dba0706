"""Read whole sequences through a Llama-like model on a CPU, forwards and backwards, without padding.

transformers pads every sequence to the longest and passes over memory many times between a layer's products.
Here tokens lie one after the other, and all layers are one call (`reader.c`); the last layer computes only
the tokens whose states are wanted. A model is read this way only after a check of its states, and of its
gradients where there are any.

Shapes: B rows, T columns, N tokens that are not padding, D hidden size, W head width.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence, Set
from ctypes import byref, c_long, c_void_p
from dataclasses import replace
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recovery.cpu.layer_kernels import PARTS, Shape, layer_structures, plain, shape_of, structures
from recovery.cpu.library import call, library
from recovery.cpu.llama_layers import LayerWeights, build_of
from recovery.cpu.placed_cache import PlacedCache
from recovery.cpu.token_kernels import are_ids, fits
from recovery.forward.equality import NOT_APPLICABLE, TRIALS, close, first_tokens
from recovery.forward.kv_cache import sees_all
from recovery.forward.packed import Packed, PackedReader, Read

GRADIENT_TOLERANCE = 1e-3  # of the largest: gradients are longer sums than states
TRIED = 22  # tokens of a check, in two sequences
ROUNDING = 1e-6  # absolute, for gradients that are nothing but rounding
KEPT: dict[str, Callable[[Shape], int]] = {  # numbers a token that each layer keeps for its backward pass
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
}  # numbers a token of the backward pass
# Models, and whether their reader was right: {with gradients or without: right}
CHECKED: WeakKeyDictionary[Any, dict[bool, bool]] = WeakKeyDictionary()


def reader_of(model: Any, read: Read) -> Reader | None:
    """Return a reader of the current weights; None where only `read` gives what the model computes.

    A model with an adapter has none: its states must be the same in training, by PEFT, and without
    gradients, to the last digit, as an optimizer makes whole steps of any difference between two equal
    models.
    """
    gradients = torch.is_grad_enabled()
    checked = CHECKED.get(model, {})
    build = None if checked.get(gradients) is False else build_of(model)
    if build is None or build.adapted or not build.swishes:
        return None
    if model.training and getattr(model.config, "attention_dropout", 0.0):
        return None
    if gradients and getattr(model, "is_gradient_checkpointing", False):
        return None
    kernels = library()
    if kernels is None:
        return None
    try:
        reader = Reader(model, kernels)
        if gradients not in checked:
            right = sees_all(model) and _equals_model(model, reader, read)
            CHECKED[model] = checked | {gradients: right}
    except NOT_APPLICABLE:
        CHECKED[model] = checked | {gradients: False}
    return reader if CHECKED[model][gradients] else None


class Reader(PackedReader):
    """Computes `decoder(tokens)[0]` by the kernels."""

    def __init__(self, model: Any, kernels: Any) -> None:
        body = model.get_decoder()
        self.embed = model.get_input_embeddings()
        self.rotary = body.rotary_emb
        self.norm = body.norm
        self.kernels = kernels
        self.layers = [LayerWeights.of(layer) for layer in body.layers]
        self.shape = shape_of(self.layers)

    def states(self, tokens: Packed, wanted_N: Tensor | None) -> Tensor:
        gradients = torch.is_grad_enabled()
        x_ND, run = self._begin(tokens, wanted_N, KEPT.keys() if gradients else set())
        weights = chain(*(layer.values() for layer in run.weights))
        return self.norm(_Body.apply(run, x_ND, *weights) if gradients else run.forwards(x_ND))

    def cache(self, lengths: Sequence[int], capacity: float) -> PlacedCache:
        """Return an empty cache for prompts of these lengths, which all end in the same slot."""
        cache = PlacedCache(len(self.layers), capacity)
        cache.reserve(lengths, self.shape.keys, self.shape.width)
        return cache

    def fill(
        self, prompts: Sequence[Sequence[int]], cache: PlacedCache, first: int, common: int = 0
    ) -> Tensor:
        """Write the prompts' keys and values into cache rows from `first` on; return their last states.

        The `common` tokens that all of them begin with are read once, as the first sequence of the pass.
        """
        if not common:
            return self._fill(Packed.of(prompts), cache, first)
        tokens = Packed.of([prompts[0][:common], *(prompt[common:] for prompt in prompts)])
        later_N = tokens.positions_N + common * (tokens.rows_N > 0)
        return self._fill(replace(tokens, positions_N=later_N), cache, first, common)

    def _fill(self, tokens: Packed, cache: PlacedCache, first: int, common: int = 0) -> Tensor:
        lengths = tokens.lengths[1:] + common if common else tokens.lengths
        starts = cache.get_seq_length() - lengths
        ends = tokens.bounds[2 if common else 1 :] - 1
        rows_N = (tokens.rows_N - 1 if common else tokens.rows_N)[common:]
        slots_N = tokens.positions_N[common:] + starts[rows_N]
        x_ND, run = self._begin(tokens, ends, {"turned", "qkv"}, common)
        last_BD = run.forwards(x_ND)
        for kept, layer in zip(run.kept, cache.layers, strict=False):
            for computed, held_BGSW in ((kept["turned"], layer.keys), (kept["qkv"], layer.values)):
                assert computed is not None
                self._place(computed[common:], rows_N + first, slots_N, held_BGSW)
                self._repeat(computed[:common], held_BGSW[first : first + len(starts)], starts)
        return self.norm(last_BD)

    def _repeat(self, tokens: Tensor, cache_BGSW: Tensor, starts: Tensor) -> None:
        """Copy the last heads of common tokens into every row, from its start on."""
        heads, width = self.shape.keys, self.shape.width
        if not len(tokens):
            return
        common_GTW = tokens[:, -heads * width :].view(-1, heads, width).transpose(0, 1)
        for start in starts.unique().tolist():
            cache_BGSW[starts == start, :, start : start + len(tokens)] = common_GTW

    def _place(self, tokens: Any, rows_N: Tensor, slots_N: Tensor, cache_BGSW: Tensor) -> None:
        """Copy the last heads of each token, which are its keys or its values, into the cache."""
        heads, width = self.shape.keys, self.shape.width
        rows, cached_heads, slots, cached_width = cache_BGSW.shape
        if (cached_heads, cached_width) != (heads, width) or cache_BGSW.stride()[2:] != (width, 1):
            raise RuntimeError("cpu: a cache that does not fit the layers")
        if not are_ids(rows_N, rows) or not are_ids(slots_N, slots):
            raise RuntimeError("cpu: tokens outside the cache")
        first = tokens.shape[1] - heads * width
        source = tokens.data_ptr() + first * tokens.element_size()
        strides = cache_BGSW.stride()[:2]
        # The kernel takes the strides; `call` would refuse a cache that has room ahead.
        target = cache_BGSW.data_ptr()
        given = tokens.shape[1], len(tokens), heads, width, rows_N, slots_N
        call(self.kernels.place, source, *given, *strides, target)

    def _begin(
        self, tokens: Packed, wanted_N: Tensor | None, kept: Set[str], common: int = 0
    ) -> tuple[Tensor, _Run]:
        x_ND = self.embed(tokens.tokens_N)
        cos_1NW, sin_1NW = self.rotary(x_ND, tokens.positions_N[None])
        if cos_1NW.shape[-1] != self.shape.width:
            raise RuntimeError("cpu: only a part of each head is rotated")
        turns = cos_1NW[0].contiguous(), sin_1NW[0].contiguous()
        return x_ND, _Run(self, tokens.bounds, *turns, wanted_N, kept, common)


class _Reading(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("bounds", "wanted")),
        *((name, c_long) for name in ("sequences", "rows", "wanted_rows", "each", "common")),
        *((name, c_void_p) for name in ("cos", "sin", "scratch")),
    ]


class _Kept(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name in KEPT]


class _Gradients(ctypes.Structure):
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
    """One pass over some sequences, and the memory where its layers keep what comes later."""

    def __init__(
        self,
        reader: Reader,
        bounds: Tensor,
        cos_NW: Tensor,
        sin_NW: Tensor,
        wanted_N: Tensor | None,
        kept: Set[str],
        common: int = 0,
    ) -> None:
        """`kept` names what every layer keeps; the rest of KEPT is memory that all layers share.

        All sequences but the first see its `common` tokens before their own; none has a backward pass then.
        """
        self.kernels = reader.kernels
        self.shape = reader.shape
        self.kept_names = kept
        self.weights = [layer.tensors() for layer in reader.layers]
        laid_out = [{name: plain(weight) for name, weight in layer.items()} for layer in self.weights]
        self.layers = layer_structures(reader.layers, laid_out)
        self.rows = len(cos_NW)
        _check_places(bounds, wanted_N, self.rows)
        self.wanted = self.rows if wanted_N is None else len(wanted_N)
        self.threads = self.kernels.threads()
        if common and (common != int(bounds[1]) or "x" in kept):
            raise RuntimeError("cpu: tokens that are not the first sequence, or a backward pass through them")
        longest = common + max(bounds.diff().tolist(), default=0)
        each = call(self.kernels.scratch_size, byref(self.shape), self.rows, longest)
        scratch = cos_NW.new_empty(self.threads, each)
        self.held = laid_out, bounds, wanted_N, cos_NW, sin_NW, scratch
        at = [None if tensor is None else tensor.data_ptr() for tensor in self.held[1:]]
        self.reading = _Reading(*at[:2], len(bounds) - 1, self.rows, self.wanted, each, common, *at[2:])
        self.kept = [{name: self._allocate(name, self.rows) for name in KEPT}]
        for _ in reader.layers[1:]:
            self.kept.append(self.kept[0] | {name: self._allocate(name, self.rows) for name in kept})
        if wanted_N is not None:
            self.kept.append({name: self._allocate(name, self.wanted) for name in KEPT})
        self.kept_structures = structures(_Kept, self.kept)

    def _allocate(self, name: str, rows: int) -> Tensor | None:
        """Allocate memory; without a backward pass gates stay in the scratch memory of their thread."""
        if name == "gate_up" and name not in self.kept_names:
            return None
        return torch.empty(rows, KEPT[name](self.shape))

    def forwards(self, x_ND: Tensor) -> Tensor:
        """Return the last layer's output for the wanted tokens."""
        first = self.kept[0]["x"]
        assert first is not None
        if not fits(x_ND) or x_ND.shape != first.shape:
            raise RuntimeError("cpu: embeddings that do not fit the layers")
        first.copy_(x_ND)
        in_place = self.wanted == self.rows and "x" not in self.kept_names
        out = first if in_place else self._allocate("x", self.wanted)
        assert out is not None
        call(
            self.kernels.forwards,
            byref(self.shape),
            self.layers,
            self.kept_structures,
            byref(self.reading),
            out,
        )
        return out

    def backwards(self, out: Tensor) -> tuple[Tensor, Iterator[Tensor | None]]:
        """Return the gradients of the embeddings, and of each tensor of each layer."""
        if self.kernels.threads() > self.threads:
            raise RuntimeError("cpu: more threads backwards than forwards")
        shape = self.shape
        fewer = self.wanted < self.rows
        norms = 2 * shape.hidden + (shape.queries + shape.keys) * shape.width
        back: dict[str, Any] = {name: torch.empty(self.rows, size(shape)) for name, size in BACK.items()}
        back["out"] = out.clone(memory_format=torch.contiguous_format)
        back["norms"] = torch.zeros(self.threads, norms)
        if fewer:
            back["some_mixed"] = torch.empty(self.wanted, KEPT["mixed"](shape))
        else:
            back["x"] = back["out"]
        gradients = [{name: _like(part) for name, part in layer.items()} for layer in self.weights]
        given = byref(self.shape), self.layers, self.kept_structures, byref(self.reading)
        call(self.kernels.backwards, *given, structures(_Gradients, gradients), structures(_Back, [back]))
        return back["x"], chain(*(layer.values() for layer in gradients))


def _check_places(bounds: Tensor, wanted_N: Tensor | None, rows: int) -> None:
    """Refuse bounds that do not cut the tokens into sequences, and wanted tokens that are none of them."""
    ordered = bounds.dtype == torch.long and bounds.device.type == "cpu" and bounds.is_contiguous()
    if not ordered or not len(bounds) or int(bounds[0]) != 0 or int(bounds[-1]) != rows:
        raise RuntimeError("cpu: bounds that do not cut the tokens into sequences")
    if bool((bounds.diff() < 0).any()):
        raise RuntimeError("cpu: bounds that do not cut the tokens into sequences")
    if wanted_N is not None and not (are_ids(wanted_N, rows) and wanted_N.is_contiguous()):
        raise RuntimeError("cpu: wanted tokens outside the batch")


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
        assert ctx.saved_tensors is not None  # autograd raises here if weights have changed since
        dx_ND, gradients = ctx.run.backwards(dx_ND)
        del ctx.run
        return None, dx_ND, *gradients


def _equals_model(model: Any, reader: Reader, read: Read) -> bool:
    """Compare states and gradients of two short sequences, one of them padded, with the model's own."""
    starts = first_tokens(model, TRIED, in_fp32=TRIALS)
    return any(_equal_from(model, reader, read, start) for start in starts)


def _equal_from(model: Any, reader: Reader, read: Read, start: int) -> bool:
    tokens = torch.arange(start, start + TRIED).view(2, -1) % len(reader.embed.weight)
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[1, 7:] = False
    found = reader(tokens, real)[real]
    expected = read(model, tokens, real, None)[real]
    if not close(found, expected, rounding=ROUNDING):
        return False
    weights = [p for p in model.get_decoder().parameters() if p.requires_grad]
    if not torch.is_grad_enabled() or not weights:
        return True
    uneven = torch.linspace(-1, 1, found.numel()).view_as(found).sin()
    mine, its = (
        torch.autograd.grad((states * uneven).sum(), weights, materialize_grads=True)
        for states in (found, expected)
    )
    return all(close(one, other, GRADIENT_TOLERANCE, ROUNDING) for one, other in zip(mine, its, strict=True))
