"""One pass over packed sequences by the kernels of `reader.c`: its memory, forwards and backwards.

Shapes: N tokens that are not padding, D hidden size, W head width.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence, Set
from ctypes import byref, c_long, c_void_p
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recovery.cpu.layer_kernels import PARTS, PRODUCTS, Shape, layer_structures, plain, single, structures
from recovery.cpu.library import call
from recovery.cpu.llama_layers import LayerWeights
from recovery.cpu.token_kernels import are_ids, fits

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
            "rounded_x",
            "rounded_dy",
        )
    ]


@dataclass(frozen=True)
class Stack:
    """A model's layers, and the kernels that read them."""

    kernels: Any
    layers: Sequence[LayerWeights]
    shape: Shape


class ReadingPass:
    """One pass over some sequences, and the memory where its layers keep what comes later."""

    def __init__(
        self,
        stack: Stack,
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
        self.kernels = stack.kernels
        self.shape = stack.shape
        self.kept_names = kept
        self.weights = [layer.tensors() for layer in stack.layers]
        laid_out = [
            {name: _laid_out(name, weight) for name, weight in layer.items()} for layer in self.weights
        ]
        self.layers = layer_structures(stack.layers, laid_out)
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
        for _ in stack.layers[1:]:
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
        if shape.half:
            widest = max(shape.hidden, shape.feed, KEPT["qkv"](shape))
            for name in ("rounded_x", "rounded_dy"):
                back[name] = torch.empty(self.rows + 1, widest, dtype=torch.bfloat16)  # tokens in pairs
        gradients = [{name: _like(name, part) for name, part in layer.items()} for layer in self.weights]
        given = byref(self.shape), self.layers, self.kept_structures, byref(self.reading)
        call(self.kernels.backwards, *given, structures(_Gradients, gradients), structures(_Back, [back]))
        parts = chain(*(layer.values() for layer in self.weights))
        found = chain(*(layer.values() for layer in gradients))
        return back["x"], map(_as, found, parts)


def _check_places(bounds: Tensor, wanted_N: Tensor | None, rows: int) -> None:
    """Refuse bounds that do not cut the tokens into sequences, and wanted tokens that are none of them."""
    ordered = bounds.dtype == torch.long and bounds.device.type == "cpu" and bounds.is_contiguous()
    if not ordered or not len(bounds) or int(bounds[0]) != 0 or int(bounds[-1]) != rows:
        raise RuntimeError("cpu: bounds that do not cut the tokens into sequences")
    if bool((bounds.diff() < 0).any()):
        raise RuntimeError("cpu: bounds that do not cut the tokens into sequences")
    if wanted_N is not None and not (are_ids(wanted_N, rows) and wanted_N.is_contiguous()):
        raise RuntimeError("cpu: wanted tokens outside the batch")


def _laid_out(name: str, weight: Tensor | None) -> Tensor | None:
    """Return a weight as the kernels read it: that of a linear layer as it is, any other in fp32."""
    return plain(weight) if name in PRODUCTS else single(weight)


def _as(gradient: Tensor | None, weight: Tensor | None) -> Tensor | None:
    return None if gradient is None or weight is None else gradient.to(weight.dtype)


def _like(name: str, weight: Tensor | None) -> Tensor | None:
    """Allocate a gradient, of the dtype in which the kernels read its weight."""
    if weight is None:
        return None
    dtype = weight.dtype if name in PRODUCTS else torch.float32
    return torch.empty_like(weight, dtype=dtype, memory_format=torch.contiguous_format)


class PassOverLayers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: ReadingPass, x_ND: Tensor, *weights: Tensor | None) -> Tensor:
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
