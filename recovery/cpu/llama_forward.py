"""Read whole sequences through a Llama-like model on a CPU, forwards and backwards, without padding.

transformers pads every sequence to the longest and passes over memory many times between a layer's products.
Here tokens lie one after the other, and all layers are one call (`reader.c`); the last layer computes only
the tokens whose states are wanted. A model is read this way only after a check of its states, and of its
gradients where there are any.

Shapes: B rows, T columns, N tokens that are not padding, D hidden size, W head width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from recovery.cpu.layer_kernels import shape_of
from recovery.cpu.library import call, library
from recovery.cpu.llama_layers import MEMORY_SHARE, LayerWeights, build_of, computes
from recovery.cpu.placed_cache import PlacedCache
from recovery.cpu.reading_pass import KEPT, PassOverLayers, ReadingPass, Stack
from recovery.cpu.token_kernels import are_ids
from recovery.forward.equality import NOT_APPLICABLE, TOLERANCE, TRIALS, close, close_per_token, first_tokens
from recovery.forward.kv_cache import sees_all
from recovery.forward.packed import Packed, PackedReader, Read
from recovery.memory import main_memory

GRADIENT_TOLERANCE = 1e-3  # of the largest: gradients are longer sums than states
TRIED = 22  # tokens of a check, in two sequences
HALF_GRADIENT_TOLERANCE = 0.3  # of their length
ROUNDING = 1e-6  # absolute, for gradients that are nothing but rounding
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
    if checked.get(gradients) is False:
        return None
    build = build_of(model)
    if build is None or build.adapted or not build.swishes:
        return None
    if model.training and getattr(model.config, "attention_dropout", 0.0):
        return None
    if gradients and getattr(model, "is_gradient_checkpointing", False):
        return None
    kernels = library()  # compiled for no other model
    if not computes(kernels, model):
        return None
    try:
        reader = Reader(model, kernels)
        if gradients not in checked:
            right = sees_all(model) and _has_room(model) and _equals_model(model, reader, read)
            CHECKED[model] = checked | {gradients: right}
    except NOT_APPLICABLE:
        CHECKED[model] = checked | {gradients: False}
    return reader if CHECKED[model][gradients] else None


def _has_room(model: Any) -> bool:
    """Return whether the memory holds the copy in fp32 that a bf16 model is checked against."""
    if model.get_input_embeddings().weight.dtype == torch.float32:
        return True
    return sum(weight.nbytes for weight in model.parameters()) <= MEMORY_SHARE * main_memory()


class Reader(PackedReader):
    """Computes `decoder(tokens)[0]` by the kernels."""

    def __init__(self, model: Any, kernels: Any) -> None:
        body = model.get_decoder()
        self.embed = model.get_input_embeddings()
        self.rotary = body.rotary_emb
        self.norm = body.norm
        layers = [LayerWeights.of(layer) for layer in body.layers]
        self.shape = shape_of(layers, kernels)
        self.stack = Stack(kernels, layers, self.shape)

    def states(self, tokens: Packed, wanted_N: Tensor | None) -> Tensor:
        gradients = torch.is_grad_enabled()
        x_ND, run = self._begin(tokens, wanted_N, KEPT.keys() if gradients else set())
        weights = chain(*(layer.values() for layer in run.weights))
        return self._normed(PassOverLayers.apply(run, x_ND, *weights) if gradients else run.forwards(x_ND))

    def _normed(self, x_ND: Tensor) -> Tensor:
        """Return what the head reads, in the model's dtype."""
        return self.norm(x_ND).to(self.embed.weight.dtype)

    def cache(self, lengths: Sequence[int], capacity: float) -> PlacedCache:
        """Return an empty cache for prompts of these lengths, which all end in the same slot."""
        cache = PlacedCache(len(self.stack.layers), capacity)
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
        return self._normed(last_BD)

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
        call(self.stack.kernels.place, source, *given, *strides, target)

    def _begin(
        self, tokens: Packed, wanted_N: Tensor | None, kept: Set[str], common: int = 0
    ) -> tuple[Tensor, ReadingPass]:
        x_ND = self.embed(tokens.tokens_N).float()
        cos_1NW, sin_1NW = self.rotary(x_ND, tokens.positions_N[None])
        if cos_1NW.shape[-1] != self.shape.width:
            raise RuntimeError("cpu: only a part of each head is rotated")
        turns = cos_1NW[0].contiguous(), sin_1NW[0].contiguous()
        return x_ND, ReadingPass(self.stack, tokens.bounds, *turns, wanted_N, kept, common)


def _equals_model(model: Any, reader: Reader, read: Read) -> bool:
    """Compare states and gradients of two short sequences, one of them padded, with the model's own.

    Rounding to bf16 would hide a layer that computes something else, so that a copy in fp32 has to be read
    right too, and what it computes is the measure of both.
    """
    exact, readers = model, [(model, reader)]
    if reader.shape.half:
        exact = copy.deepcopy(model).float()
        readers.append((exact, Reader(exact, reader.stack.kernels)))

    def equal_from(start: int) -> bool:
        expected = _tried(exact, lambda tokens, real: read(exact, tokens, real, None), start)
        return all(_equal(_tried(one, its_reader, start), expected) for one, its_reader in readers)

    return any(map(equal_from, first_tokens(exact, TRIED, in_fp32=TRIALS)))


def _tried(model: Any, read: Callable[..., Tensor], start: int) -> list[Tensor]:
    """Return the states of the trial's tokens and, where gradients are computed, those of the weights."""
    tokens = torch.arange(start, start + TRIED).view(2, -1) % len(model.get_input_embeddings().weight)
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[1, 7:] = False
    states = read(tokens, real)[real]
    weights = [p for p in model.get_decoder().parameters() if p.requires_grad]
    if not torch.is_grad_enabled() or not weights:
        return [states]
    uneven = torch.linspace(-1, 1, states.numel()).view_as(states).sin()
    return [states, *torch.autograd.grad((states * uneven).sum(), weights, materialize_grads=True)]


def _equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    """Compare states and gradients; those of bf16 as far as sums of rounded numbers agree."""
    if found[0].dtype == torch.float32:
        shares = [TOLERANCE, *[GRADIENT_TOLERANCE] * len(found[1:])]
        return all(map(partial(close, rounding=ROUNDING), found, expected, shares))
    longest = max((float(gradient.norm()) for gradient in expected[1:]), default=0.0)
    return close_per_token(found[0], expected[0].to(found[0].dtype)) and all(
        (mine.float() - own).norm() <= HALF_GRADIENT_TOLERANCE * max(float(own.norm()), 0.1 * longest)
        for mine, own in zip(found[1:], expected[1:], strict=True)
    )
