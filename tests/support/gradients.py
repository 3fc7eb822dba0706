"""Compare two ways to read a model: the states of the same tokens, and the gradient of every weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recovery.forward.hidden_states import hidden_states, plain_states


def states_and_gradients(read: Any, model: Any, tokens: Tensor, *given: Any) -> list[Tensor]:
    """What tokens become, and the gradient of every weight for an uneven sum of them."""
    model.zero_grad()
    found, there = read(model, tokens, *given), given[0]
    states = found[torch.ones_like(tokens, dtype=torch.bool) if there is None else there.bool()]
    (states * torch.linspace(-1, 2, states.numel()).view_as(states).sin()).sum().backward()
    return [states.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def agree(mine: Any, own: Any, tokens: Tensor, *given: Any) -> None:
    """`mine` reads tokens as transformers reads them with `own`, a model of the same weights."""
    found = states_and_gradients(hidden_states, mine, tokens, *given)
    expected = states_and_gradients(plain_states, own, tokens, *given)
    assert len(found) == len(expected)
    steepest = max(float(gradient.abs().max()) for gradient in expected[1:])
    for one, other in zip(found, expected, strict=True):
        scale = max(float(other.abs().max()), 1e-2 * steepest)  # one token alone gives keys no gradient
        torch.testing.assert_close(one / scale, other / scale, rtol=1e-3, atol=5e-5)
