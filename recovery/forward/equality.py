"""Compare two implementations within a tolerance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

TOLERANCE = 1e-4  # of the largest number, in fp32
TRIALS = 3
# What is raised where a fast path does not fit; NotImplementedError is a RuntimeError.
NOT_APPLICABLE = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def close(found: Tensor, expected: Tensor, share: float = TOLERANCE, rounding: float = 0.0) -> bool:
    """Return whether the largest difference is at most `share` of the largest number, plus `rounding`."""
    return bool((found - expected).abs().max() <= share * expected.abs().max() + rounding)


def first_tokens(model: Any, tokens: int, in_fp32: int = 1) -> range:
    """Return the first token of each trial of so many tokens: one that succeeds is enough.

    The ids mean nothing together, and rounding alone now and then carries such a text away, of a model of 30
    layers: 23 % of its logits were seen in half precision. Where the first ids are control tokens, which
    come last here, even fp32 differs by a ten-thousandth, fifty times as much as with others. What computes
    something else, or mixes sequences, does so with any text.
    """
    embed = model.get_input_embeddings().weight
    trials = min(in_fp32 if embed.dtype == torch.float32 else TRIALS, len(embed) // tokens)
    return range(tokens * (max(trials, 1) - 1), -1, -tokens)


def close_per_token(found_ND: Tensor, expected_ND: Tensor) -> bool:
    """Return whether a whole model's states, or gradients, are equal token by token.

    After 36 layers half precision differs by 5 %; sequences that attend to each other differ by 40 % and
    more.
    """
    share = 1e-3 if expected_ND.dtype == torch.float32 else 0.15
    found_ND, expected_ND = found_ND.detach().float(), expected_ND.detach().float()
    gap_N = (found_ND - expected_ND).norm(dim=-1)
    size_N = expected_ND.norm(dim=-1)
    least = 0.1 * float(size_N.mean())
    return bool((gap_N <= share * size_N.clamp(min=least)).all())
