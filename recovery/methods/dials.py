"""Dials of a post-training method, each with its documentation and limits. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from recovery.methods.choices import (
    ANCHORS,
    BUDGETS_OF,
    CONTEXTS,
    EXACT,
    REWARD_BASELINES,
    SIGNALS,
    STATES,
    TEACHERS,
)


def _dial(
    default: Any,
    doc: str,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
) -> Any:
    """Return a field with its documentation and limits (`low` and `high` inclusive, `above` exclusive)."""
    limits = {"choices": choices, "low": low, "high": high, "above": above}
    return field(default=default, metadata={"doc": doc, **limits})


@dataclass(frozen=True)
class Dials:
    """States, signal, teacher, the teacher's context, and safety rails, as yet unchecked."""

    name: str
    states: str = field(metadata={"doc": f"source of the tokens: {', '.join(STATES)} (mix:P, teacher-mix:P)"})
    signal: str = field(metadata={"doc": "training signal of a token", "choices": SIGNALS})
    teacher: str = _dial(
        "none",
        "model that gives the signal; base is --teacher's checkpoint, previous the one before midtraining",
        choices=TEACHERS,
    )
    context: str = _dial("none", "what only the teacher sees", choices=CONTEXTS)
    source: str = ""
    summary: str = ""
    keeps: str = ""
    beta: float = _dial(0.5, "jsd: the teacher's share; 0 is forward_kl, 1 is reverse_kl", low=0, high=1)
    lam: float = _dial(1.0, "the teacher's weight; the reward gets the rest", low=0, high=1)
    k: int = _dial(16, "topk: how many of the teacher's entries", low=1)
    tail: str = _dial("bucket", "topk: mass outside the k entries", choices=("bucket", "renormalise"))
    temperature: float = _dial(1.0, "of sampling, and of both distributions in the signal", low=0)
    entry_clip: float | None = _dial(
        None, "limit of one vocabulary entry's part in a token's divergence", above=0
    )
    kl_budget: float | None = _dial(
        None,
        "most KL(teacher||student): a teacher further away is moved towards the student",
        above=0,
    )
    kl_budget_of: str = _dial(
        "token",
        "what kl_budget bounds: the KL of each token, or its mean over a step, with one share for all tokens",
        choices=BUDGETS_OF,
    )
    kl_budget_final: float | None = _dial(
        None, "kl_budget at the last step, reached in equal ratios from step to step", above=0
    )
    ratio_clip: float | None = _dial(None, "PPO: p/p_old of a token stays within 1 +- this", above=0, high=1)
    importance_clip: float | None = _dial(
        None,
        "limit of importance weights p/p_sampler: of the prefix for divergences, else of the token",
        low=1,
    )
    anchor_beta: float = _dial(0.0, "weight of the KL between student and clean model at every token", low=0)
    anchor_kl: str = _dial(
        "reverse", "the anchor's KL: reverse KL(student||clean), forward KL(clean||student)", choices=ANCHORS
    )
    epochs: int = _dial(1, "passes over each step's sequences", low=1)
    minibatches: int = _dial(1, "optimizer updates per pass", low=1)
    group_size: int = _dial(1, "samples per prompt", low=1)
    reward_baseline: str = _dial("group", "what is subtracted from a reward", choices=REWARD_BASELINES)
    teacher_baseline: str = _dial(
        "none",
        "closed-form adds KL(p||q) to the advantage, whose mean is then 0; needs dense scores",
        choices=("none", "closed-form"),
    )
    continuation: int = _dial(16, "tokens that the teacher adds to a student's prefix", low=1)
    ema: float = _dial(0.95, "decay of the moving-average teacher at each step", low=0, high=1)

    @property
    def state_kind(self) -> str:
        """`states` without its share: mix:0.5 -> mix."""
        return self.states.partition(":")[0]

    @property
    def share(self) -> float:
        """mix: share of sequences by the student; teacher-mix: the teacher's share of each distribution."""
        return float(self.states.partition(":")[2] or 1.0)

    @property
    def teacher_weight(self) -> float:
        """Weight of the teacher's (or the label's) part of the loss."""
        return 0.0 if self.signal == "reward" else self.lam

    @property
    def reward_weight(self) -> float:
        return 1.0 - self.teacher_weight

    @property
    def has_policy_gradient(self) -> bool:
        """Whether part of the signal is an advantage of sampled tokens."""
        return self.signal == "sampled_reverse_kl" or self.reward_weight > 0

    @property
    def needs_behaviour(self) -> bool:
        """Whether the loss uses the sampler's log-probabilities."""
        several = self.epochs * self.minibatches > 1 or self.ratio_clip is not None
        return self.importance_clip is not None or (self.has_policy_gradient and several)

    @property
    def weighs_by_sampler(self) -> bool:
        """Whether tokens are weighed by p over the sampler's p."""
        return self.importance_clip is not None or self.has_policy_gradient

    @property
    def needs_rewards(self) -> bool:
        return self.reward_weight > 0 or self.state_kind == "student-kept"

    @property
    def scores(self) -> str:
        """Kind of teacher scores that the loss needs: none, dense, topk or sampled."""
        if self.signal in EXACT or self.teacher_baseline == "closed-form":
            return "dense"
        return {"topk_reverse_kl": "topk", "sampled_reverse_kl": "sampled"}.get(self.signal, "none")

    def budget_at(self, step: int, steps: int) -> float | None:
        """Return the KL budget of a step, counted from 1, of `steps`; further ones keep the last budget."""
        if self.kl_budget is None or self.kl_budget_final is None or steps < 2:
            return self.kl_budget
        passed = (min(step, steps) - 1) / (steps - 1)
        return self.kl_budget * (self.kl_budget_final / self.kl_budget) ** passed

    @property
    def rails(self) -> str:
        """Describe the active safety rails."""
        rails = {
            "KL budget": self.kl_budget,
            "final KL budget": self.kl_budget_final,
            "per-entry clip": self.entry_clip,
            "ratio clip": self.ratio_clip,
            "importance clip": self.importance_clip,
            "anchor": self.anchor_beta or None,
        }
        return ", ".join(f"{name} {value:g}" for name, value in rails.items() if value is not None) or "none"
