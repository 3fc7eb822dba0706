"""A teacher's scores of the counted tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class TeacherScores:
    """One of three kinds: dense, sampled, or top-k.

    Dense is the whole distribution, as hidden states and the head that makes logits of them (never N x V
    numbers); sampled is the log-probability of each counted token; top-k is that and the K likeliest entries.
    """

    hidden_ND: Tensor | None = None
    head: Callable[[Tensor], Tensor] | None = None
    sampled_logprobs_N: Tensor | None = None
    ids_NK: Tensor | None = None
    logprobs_NK: Tensor | None = None

    def _map(self, change: Callable[[Tensor], Tensor]) -> TeacherScores:
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        changed: dict[str, Any] = {k: change(v) if isinstance(v, Tensor) else v for k, v in values}
        return TeacherScores(**changed)

    def take(self, index_N: Tensor) -> TeacherScores:
        """Return the scores of these tokens, in this order."""
        return self._map(lambda values: values[index_N.to(values.device)])

    def to(self, device: torch.device | str) -> TeacherScores:
        return self._map(lambda values: values.to(device))
