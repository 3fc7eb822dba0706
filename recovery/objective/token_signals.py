"""Per-token inputs of an objective: teacher scores, log-probs, advantages, weights; which a method needs."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from recovery.errors import InputError
from recovery.methods.method import Method

if TYPE_CHECKING:
    from recovery.batches.teacher_scores import TeacherScores


@dataclass(frozen=True)
class TokenSignals:
    """Tensors with one entry for each of N tokens; None if the method does not use them."""

    scores: TeacherScores | None = None  # the teacher's
    behaviour_N: Tensor | None = None  # the sampler's log-probabilities; 0 where no sampler wrote the token
    advantages_N: Tensor | None = None  # from rewards
    weights_N: Tensor | None = None  # in the loss and in the count that divides it; 0 masks a token
    anchor: TeacherScores | None = None  # the clean model's, dense, for the anchor term
    budget_N: Tensor | None = None  # the KL budget of this step; None: the method's
    share_N: Tensor | None = None  # the teacher's share in a teacher moved for the whole step
    rows_N: Tensor | None = None  # the sequence of each token; tokens of a sequence are consecutive

    def to(self, device: torch.device | str) -> TokenSignals:
        """Return the same signals on a device."""
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        return TokenSignals(**{k: None if v is None else v.to(device) for k, v in moved.items()})


def take(value: Any, index: Any) -> Any:
    """Index a tensor, or every tensor in a dataclass; return anything else as it is."""
    if isinstance(value, Tensor):
        return value[index.to(value.device) if isinstance(index, Tensor) else index]
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: take(getattr(value, f.name), index) for f in fields(value)})
    return value


NO_SIGNALS = TokenSignals()


def require(method: Method, signals: TokenSignals) -> None:
    """Raise InputError if a signal that the method needs is missing."""
    if not _gives(signals.scores, method.scores):
        raise InputError(
            f"objective: method {method.name!r} needs {method.scores} teacher scores: use a teacher "
            f"that gives them, or set another signal"
        )
    if method.needs_behaviour and signals.behaviour_N is None:
        raise InputError(
            f"objective: method {method.name!r} needs the sampler's log-probabilities (behaviour_N): "
            f"give them, or set epochs=1, minibatches=1 and no ratio or importance clip"
        )
    if method.importance_clip is not None and signals.rows_N is None:
        raise InputError(
            f"objective: method {method.name!r} weighs prefixes: give the sequence of each token (rows_N)"
        )
    if method.kl_budget_of == "step" and signals.share_N is None:
        raise InputError(
            f"objective: method {method.name!r} bounds the KL of a whole step: give the teacher's share "
            f"in it (share_N), or set kl_budget_of=token"
        )
    if method.reward_weight > 0 and signals.advantages_N is None:
        raise InputError(
            f"objective: method {method.name!r} needs a reward: name one (exact, module:function)"
        )
    if method.anchor_beta and not _gives(signals.anchor, "dense"):
        raise InputError(
            f"objective: method {method.name!r} has anchor_beta={method.anchor_beta:g} but no dense anchor "
            f"scores: score the tokens with the clean model, or set anchor_beta=0"
        )


def _gives(scores: TeacherScores | None, kind: str) -> bool:
    """Return whether teacher scores include this kind; dense scores include every kind."""
    if kind == "none":
        return True
    if scores is None:
        return False
    parts = {"dense": None, "topk": scores.ids_NK, "sampled": scores.sampled_logprobs_N}
    return scores.hidden_ND is not None or parts[kind] is not None
