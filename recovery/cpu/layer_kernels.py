"""Lay Llama-like layers out for the C kernels, and decode by them.

Kernels trust every address, shape and index: all of them are checked here.

Shapes: B rows, R rows of the whole batch, T new tokens, P positions, D hidden, W head width, V vocabulary;
O outputs of I inputs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recovery.cpu.fused_layers import epsilon, in_fp32
from recovery.cpu.library import call
from recovery.cpu.llama_layers import LayerWeights
from recovery.cpu.placed_cache import PlacedCache
from recovery.cpu.token_kernels import are_ids, fits
from recovery.forward.decoder import Responses

PARTS = (  # of a layer, in the order of LayerWeights and of native.h
    "before",
    "qkv",
    "qkv_bias",
    "head_norm",
    "out",
    "out_bias",
    "between",
    "gate",
    "gate_bias",
    "up",
    "up_bias",
    "down",
    "down_bias",
)
PRODUCTS = ("qkv", "out", "gate", "up", "down")
LONGEST_VECTOR = 16  # floats, on any processor
NUMBERS = ("before_epsilon", "head_epsilon", "between_epsilon", "scale")


class Shape(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_long) for name in ("layers", "hidden", "queries", "keys", "width", "feed", "half")
    ]


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in (*PARTS, "keys", "values")),
        *((name, ctypes.c_long) for name in ("row_stride", "head_stride")),
        *((name, ctypes.c_float) for name in NUMBERS),
    ]


def shape_of(layers: Sequence[LayerWeights], kernels: Any) -> Shape:
    """Return the shape that all layers share; raise where the kernels cannot compute it."""
    first = layers[0]
    heads = first.queries, first.keys, first.width
    half = first.gate.dtype == torch.bfloat16
    shape = Shape(len(layers), len(first.before), *heads, len(first.gate), half)
    if first.keys < 1 or first.queries % first.keys or first.width % 2:
        raise RuntimeError("cpu: heads that cannot be grouped or rotated")
    if half and (shape.hidden % 2 or shape.feed % 2 or not kernels.multiplies_bf16()):
        raise RuntimeError("cpu: bf16 that does not come in pairs, or that the processor does not multiply")
    for layer in layers:
        if (layer.queries, layer.keys, layer.width) != heads:
            raise RuntimeError("cpu: layers with different heads")
        layer.check(shape.hidden, shape.feed, first.gate.dtype)
    return shape


def structures(kind: Any, tensors: Sequence[dict[str, Tensor | None]]) -> Any:
    """Return a C array of structures with the addresses of tensors, which the caller keeps alive."""
    rows = ({name: None if x is None else x.data_ptr() for name, x in row.items()} for row in tensors)
    return (kind * len(tensors))(*(kind(**row) for row in rows))


def layer_structures(layers: Sequence[LayerWeights], laid_out: Sequence[dict[str, Tensor | None]]) -> Any:
    """Return the C array of layers whose tensors a kernel reads."""
    array = structures(_Layer, laid_out)
    for structure, layer in zip(array, layers, strict=True):
        for name in NUMBERS:
            setattr(structure, name, getattr(layer, name))
    return array


def plain(weight: Tensor | None) -> Tensor | None:
    return None if weight is None else weight.detach().contiguous()


def single(weight: Tensor | None) -> Tensor | None:
    """Return a small weight in fp32."""
    return None if weight is None else weight.detach().float().contiguous()


@dataclass(frozen=True)
class Rows:
    """The rows being decoded: last token, first slot, place in the cache, and which of the R rows each is."""

    token_B: Tensor
    start_B: Tensor
    place_B: Tensor
    which_B: Tensor

    def copied(self) -> Rows:
        """Return contiguous copies, which a kernel may change."""
        return Rows(*(part.clone(memory_format=torch.contiguous_format) for part in vars(self).values()))

    def first(self, count: int) -> Rows:
        return Rows(*(part[:count] for part in vars(self).values()))


class Layers:
    """Llama-like layers, the norm behind them and, where there is one, a head, for a token a row."""

    def __init__(self, kernels: Any, layers: Sequence[LayerWeights], norm: Any, head: Tensor | None) -> None:
        self.kernels = kernels
        self.shape = shape_of(layers, kernels)
        self.dtype = layers[0].gate.dtype
        self._check_weights(norm, head)
        self.held = [
            {name: self._panels(x) if name in PRODUCTS else single(x) for name, x in layer.tensors().items()}
            for layer in layers
        ]
        self.layers = layer_structures(layers, self.held)
        self.norm = single(norm.weight)
        self.epsilon = epsilon(norm)
        self.head = self._panels(head)
        self.outputs = self.shape.hidden if head is None else len(head)
        laid_out = [layer[name] for layer in self.held for name in PRODUCTS] + [self.head]
        self.numbers = sum(part.numel() for part in laid_out if part is not None)

    def __call__(
        self, x_BD: Tensor, cos_PW: Tensor, sin_PW: Tensor, starts_B: Tensor, cache: PlacedCache
    ) -> Tensor:
        """Return the head's output, or its input where there is none; overwrites `x_BD`."""
        filled = cache.get_seq_length()
        count = len(x_BD)
        places_B = cache.places(count)
        self._point_at(cache, filled + 1)
        self._check(cos_PW, sin_PW, filled + 1)
        self._check_rows(starts_B, places_B, filled, cache, count)
        if not fits(x_BD) or x_BD.shape[1:] != (self.shape.hidden,):
            raise RuntimeError("cpu: embeddings that do not fit the layers")
        out_BV = x_BD.new_empty(count, self.outputs)
        call(
            self.kernels.decode,
            byref(self.shape),
            self.layers,
            count,
            x_BD,
            cos_PW,
            sin_PW,
            starts_B,
            places_B,
            filled,
            self.norm,
            self.epsilon,
            self.head,
            self.outputs,
            out_BV,
            self._scratch(count, filled + 1),
        )
        cache.fill_to(filled + 1)
        return out_BV

    def write_ahead(  # noqa: PLR0913 - what a kernel reads
        self,
        rows: Rows,
        embeddings_VD: Tensor,
        cos_PW: Tensor,
        sin_PW: Tensor,
        cache: PlacedCache,
        responses: Responses,
        step: int,
        steps: int,
    ) -> tuple[int, int]:
        """Write up to `steps` tokens a row into `responses`; return the steps made and how many rows remain.

        Those come first in `rows`, which are overwritten.
        """
        filled = cache.get_seq_length()
        count = len(rows.token_B)
        self._point_at(cache, filled + steps)
        self._check(cos_PW, sin_PW, filled + steps)
        self._check_rows(rows.start_B, rows.place_B, filled, cache, count)
        self._check_writing(rows, embeddings_VD, responses, step, steps)
        x_BD, logits_BV = torch.empty(count, self.shape.hidden), torch.empty(count, self.outputs)
        drawn_B = torch.empty(count, dtype=torch.float64)
        logprob_B = torch.empty(count)
        temperature = responses.temperature
        left = ctypes.c_long()
        addresses = [part.data_ptr() for part in vars(rows).values()]
        made = call(
            self.kernels.write_ahead,
            byref(self.shape),
            self.layers,
            count,
            (ctypes.c_void_p * len(addresses))(*addresses),
            embeddings_VD,
            cos_PW,
            sin_PW,
            filled,
            self.norm,
            self.epsilon,
            self.head,
            self.outputs,
            responses.numbers_RT if temperature else None,
            1 / (temperature or 1.0),
            responses.stops,
            len(responses.stops),
            step,
            steps,
            responses.tokens_RT.shape[1],
            responses.tokens_RT,
            responses.logprobs_RT,
            x_BD,
            logits_BV,
            drawn_B,
            logprob_B,
            self._scratch(count, filled + steps),
            byref(left),
        )
        cache.fill_to(filled + made)
        return made, left.value

    def _panels(self, weight_OI: Tensor | None) -> Tensor | None:
        """Lay a weight out in panels of outputs, input after input; pad the last with zeros."""
        if weight_OI is None:
            return None
        words_OI = weight_OI.detach().contiguous().view(torch.float32)  # a pair of bf16 is one
        outputs, words = words_OI.shape
        panel = self.kernels.panel_width()
        panels = torch.empty(-(-outputs // panel) * panel, words)
        call(self.kernels.lay_out, words_OI, outputs, words, panels)
        return panels

    def _point_at(self, cache: PlacedCache, filled: int) -> None:
        """Let the layers' structures point at the cache, which must have room for so many slots."""
        heads = self.shape.keys, self.shape.width
        for structure, (keys, values) in zip(self.layers, cache.addresses(filled), strict=True):
            if (
                (keys.shape[1], keys.shape[3]) != heads
                or values.shape != keys.shape
                or not in_fp32(keys, values)
            ):
                raise RuntimeError("cpu: a cache that does not fit the layers")
            structure.keys = keys.data_ptr()
            structure.values = values.data_ptr()
            structure.row_stride, structure.head_stride = keys.stride()[:2]

    def _check_weights(self, norm: Any, head: Tensor | None) -> None:
        hidden = self.shape.hidden
        if norm.weight.dtype != self.dtype or norm.weight.shape != (hidden,):
            raise RuntimeError("cpu: the last norm does not fit the layers")
        if head is not None and (head.dtype != self.dtype or head.shape[1:] != (hidden,)):
            raise RuntimeError("cpu: the head does not fit the layers")

    def _check(self, cos_PW: Tensor, sin_PW: Tensor, positions: int) -> None:
        if not fits(cos_PW, sin_PW) or cos_PW.shape != sin_PW.shape:
            raise RuntimeError("cpu: rotations that do not fit the layers")
        if cos_PW.shape[-1] != self.shape.width or len(cos_PW) < positions:
            raise RuntimeError("cpu: only a part of each head is rotated")

    def _check_rows(
        self, start_B: Tensor, place_B: Tensor, filled: int, cache: PlacedCache, count: int
    ) -> None:
        places = len(cache.layers[0].keys)
        if not count or len(start_B) != count or len(place_B) != count:
            raise RuntimeError("cpu: no rows, or their parts differ in number")
        if not are_ids(start_B, filled + 1) or not are_ids(place_B, places):
            raise RuntimeError("cpu: rows outside the cache")

    def _check_writing(
        self, rows: Rows, embeddings_VD: Tensor, responses: Responses, step: int, steps: int
    ) -> None:
        tokens_RT, logprobs_RT, numbers_RT = responses.tokens_RT, responses.logprobs_RT, responses.numbers_RT
        shape_fits = embeddings_VD.shape[1:] == (self.shape.hidden,) and embeddings_VD.is_contiguous()
        if embeddings_VD.dtype != self.dtype or not shape_fits or embeddings_VD.device.type != "cpu":
            raise RuntimeError("cpu: embeddings that do not fit the layers")
        if self.head is None or len(embeddings_VD) < self.outputs:
            raise RuntimeError("cpu: the head can name tokens that have no embedding")
        if not are_ids(rows.token_B, len(embeddings_VD)) or not are_ids(rows.which_B, len(tokens_RT)):
            raise RuntimeError("cpu: tokens outside the vocabulary, or rows outside the batch")
        if len(rows.token_B) != len(rows.which_B):
            raise RuntimeError("cpu: rows whose parts differ in number")
        if not tokens_RT.shape == logprobs_RT.shape == numbers_RT.shape or tokens_RT.dtype != torch.long:
            raise RuntimeError("cpu: responses whose parts differ in shape")
        if not fits(logprobs_RT) or numbers_RT.dtype != torch.float64 or responses.stops.dtype != torch.long:
            raise RuntimeError("cpu: responses of another dtype")
        if step < 0 or steps < 1 or step + steps > tokens_RT.shape[1]:
            raise RuntimeError("cpu: more steps than responses have room for")

    def _scratch(self, rows: int, filled: int) -> Tensor:
        shape = self.shape
        heads = 2 * (shape.queries + shape.keys) * shape.width
        rounded = max(shape.hidden, shape.queries * shape.width, shape.feed) if shape.half else 0
        scores = self.kernels.threads() * (filled + LONGEST_VECTOR)
        return torch.empty(rows * (shape.hidden + heads + shape.feed + rounded) + scores)
