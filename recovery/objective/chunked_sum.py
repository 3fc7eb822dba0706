"""A sum over tokens and its gradient, some tokens at a time: memory is one chunk's, however many there are.

A chunk's gradient is taken as soon as its value is known: nothing is kept for the backward pass, and nothing
is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

Chunk = Callable[[slice, Tensor], Tensor]
"""The value of some rows, a number, from those rows of the states."""


def chunked_sum(chunk: Chunk, states_ND: Tensor, pieces: Iterable[slice]) -> Tensor:
    """The sum of `chunk` over all pieces, differentiable in the states and in every weight that it uses."""
    if not torch.is_grad_enabled():
        return torch.stack([chunk(rows, states_ND[rows]) for rows in pieces]).sum()
    values: list[Tensor] = []
    weights: list[Tensor] | None = None
    slopes: list[Tensor] = []
    slope_ND = torch.zeros_like(states_ND)
    for rows in pieces:
        own_ND = states_ND[rows].detach().requires_grad_()
        value = chunk(rows, own_ND)
        if weights is None:  # the same in all chunks
            weights = [leaf for leaf in _leaves(value) if leaf is not own_ND]
        slope_ND[rows], *found = torch.autograd.grad(value, [own_ND, *weights], materialize_grads=True)
        slopes = [before.add_(more) for before, more in zip(slopes, found, strict=True)] if slopes else found
        values.append(value.detach())
    return _Known.apply(torch.stack(values).sum(), [slope_ND, *slopes], states_ND, *(weights or []))


def _leaves(value: Tensor) -> list[Tensor]:
    """What a value is differentiated by: the ends of its graph."""
    found: dict[int, Tensor] = {}
    nodes, seen = [value.grad_fn], set()
    while nodes:
        node: Any = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found[id(node.variable)] = node.variable
        nodes += [before for before, _ in node.next_functions]
    return list(found.values())


class _Known(torch.autograd.Function):
    """A value whose slopes along the inputs are known."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, slopes: list[Tensor], *inputs: Tensor) -> Tensor:
        ctx.slopes = slopes
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(slope * grads[0] for slope in ctx.slopes)
