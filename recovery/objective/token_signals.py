"""Group an objective's per-token inputs: teacher scores, sampler log-probs, advantages, weights."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from recovery.batches.teacher_scores import TeacherScores


@dataclass(frozen=True)
class TokenSignals:
    """Tensors with one entry for each of N tokens; None if the method does not use them."""

    scores: TeacherScores | None = None  # the teacher's
    behaviour_N: Tensor | None = None  # the sampler's log-probabilities; 0 where no sampler wrote the token
    advantages_N: Tensor | None = None  # from rewards
    weights_N: Tensor | None = None  # in the loss and in the count that divides it; 0 masks a token
    anchor: TeacherScores | None = None  # the clean model's, for the anchor term
    budget_N: Tensor | None = None  # the KL budget of this step; None: the method's
    share_N: Tensor | None = None  # the teacher's share in a teacher moved for the whole step
    rows_N: Tensor | None = None  # the sequence of each token; tokens of a sequence are consecutive

    def to(self, device: torch.device | str) -> TokenSignals:
        """Return the same signals on a device."""
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        return TokenSignals(**{k: None if v is None else v.to(device) for k, v in moved.items()})

    def take(self, index: Any) -> TokenSignals:
        """Return the signals of these tokens, in this order."""
        taken: TokenSignals = take(self, index)
        return taken


def take(value: Any, index: Any) -> Any:
    """Index a tensor, or every tensor in a dataclass; return anything else as it is."""
    if isinstance(value, Tensor):
        return value[index.to(value.device) if isinstance(index, Tensor) else index]
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: take(getattr(value, f.name), index) for f in fields(value)})
    return value
