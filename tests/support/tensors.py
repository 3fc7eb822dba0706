"""Compare tensors by their direction."""

from __future__ import annotations

import torch
from torch import Tensor


def cosine(one: Tensor, other: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0))
