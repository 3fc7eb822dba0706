"""Sum a function over chunks of tokens, with its gradient, in the memory of one chunk.

Each chunk's gradient is computed right after its value, so no graph outlives its chunk and nothing is
recomputed. Weight gradients are accumulated in fp32 for every dtype: in bf16 a sum over a hundred chunks is
off by two per cent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

AT_ONCE = 2**18  # numbers, which a core's cache holds
Chunk = Callable[[slice, Tensor], Tensor]
"""Map some rows, and the hidden states of these rows, to one number."""


def chunked_sum(chunk: Chunk, states_ND: Tensor, pieces: Iterable[slice]) -> Tensor:
    """Return the sum of `chunk` over all pieces, differentiable in the states and in every weight it uses."""
    if not torch.is_grad_enabled():
        return torch.stack([chunk(rows, states_ND[rows]) for rows in pieces]).sum()
    values: list[Tensor] = []
    weights: list[Tensor] = []
    weight_gradients: list[Tensor] = []
    states_gradient_ND = torch.zeros_like(states_ND)
    for rows in pieces:
        part_ND = states_ND[rows].detach().requires_grad_()
        value = chunk(rows, part_ND)
        if not values:  # every chunk uses the same weights
            weights = [leaf for leaf in _leaves(value) if leaf is not part_ND]
        part_gradient_ND, *gradients = torch.autograd.grad(value, [part_ND, *weights], materialize_grads=True)
        states_gradient_ND[rows] = part_gradient_ND
        _accumulate(weight_gradients, gradients)
        values.append(value.detach())
    total = torch.stack(values).sum()
    return _WithGradients.apply(total, [states_gradient_ND, *weight_gradients], states_ND, *weights)


def _accumulate(totals: list[Tensor], gradients: list[Tensor]) -> None:
    """Add gradients to their totals, in fp32 or wider."""
    if not totals:
        totals += [gradient.to(torch.promote_types(gradient.dtype, torch.float32)) for gradient in gradients]
        return
    for total, gradient in zip(totals, gradients, strict=True):
        add_gradient(total, gradient)


def add_gradient(total: Tensor, gradient: Tensor) -> None:
    """Add a gradient to a total of a wider dtype, of which a CPU would first make a whole copy so wide."""
    whole = total.is_contiguous() and not hasattr(total, "to_local")  # parts of others are copies
    if total.dtype == gradient.dtype or total.device.type != "cpu" or not whole:
        total.add_(gradient)
        return
    for part, added in zip(total.flatten().split(AT_ONCE), gradient.flatten().split(AT_ONCE), strict=True):
        part.add_(added)


def _leaves(value: Tensor) -> list[Tensor]:
    """Return the leaf tensors of a value's graph."""
    leaves: dict[int, Tensor] = {}
    nodes = [value.grad_fn]
    seen = set()
    while nodes:
        node: Any = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves[id(node.variable)] = node.variable
        nodes += [before for before, _ in node.next_functions]
    return list(leaves.values())


class _WithGradients(torch.autograd.Function):
    """A value whose gradients with respect to its inputs are already known."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *inputs: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None  # as large as the head: hand them on, keep none
        if gradients is None:
            raise RuntimeError("chunked_sum: its gradient can be taken once")
        return None, None, *(gradient.mul_(grads[0]) for gradient in gradients)
