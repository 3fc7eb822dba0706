"""The dials of a post-training method, each documented and limited where it is declared. No torch here.

A `Method` is one setting of them; `recovery/methods/table.py` is the table of the settings that have names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

from recovery.errors import InputError
from recovery.methods.rules import (
    CONTEXTS,
    EXACT,
    SIGNALS,
    STATES,
    TEACHERS,
    check,
    refuse,
    suggest,
)

REWARD_BASELINES = ("group", "leave-one-out", "group-std", "none")


def _dial(
    default: Any,
    doc: str,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
) -> Any:
    """A field that carries its documentation and its limits (`low` and `high` included, `above` excluded)."""
    limits = {"choices": choices, "low": low, "high": high, "above": above}
    return field(default=default, metadata={"doc": doc, **limits})


@dataclass(frozen=True)
class Method:
    """One row: where states come from, what each token is told, by whom seeing what, behind which rails."""

    name: str
    states: str = field(metadata={"doc": f"who writes: {', '.join(STATES)} (mix:P, teacher-mix:P)"})
    signal: str = field(metadata={"doc": "what each token is told", "choices": SIGNALS})
    teacher: str = _dial("none", "who tells it; base is the checkpoint named by --teacher", choices=TEACHERS)
    context: str = _dial("none", "what the teacher sees and the student does not", choices=CONTEXTS)
    source: str = ""
    summary: str = ""
    beta: float = _dial(0.5, "jsd: the teacher's share; 0 is forward_kl, 1 reverse_kl", low=0, high=1)
    lam: float = _dial(1.0, "the teacher's weight; the reward gets the rest", low=0, high=1)
    k: int = _dial(16, "topk: how many of the teacher's entries", low=1)
    tail: str = _dial("bucket", "topk: where the rest of the mass goes", choices=("bucket", "renormalise"))
    temperature: float = _dial(1.0, "of sampling, and of both distributions in the signal", low=0)
    entry_clip: float | None = _dial(None, "most that one entry adds to a token's divergence", above=0)
    ratio_clip: float | None = _dial(None, "PPO: p/p_old of a token stays within 1 +- this", above=0, high=1)
    importance_clip: float | None = _dial(None, "tokens weigh p/p_sampler, at most this", low=1)
    anchor_beta: float = _dial(0.0, "weight of the KL from the clean model, on every token", low=0)
    epochs: int = _dial(1, "passes over each batch of states", low=1)
    minibatches: int = _dial(1, "updates a pass", low=1)
    group_size: int = _dial(1, "samples a prompt", low=1)
    reward_baseline: str = _dial("group", "what a reward is compared with", choices=REWARD_BASELINES)
    teacher_baseline: str = _dial(
        "none",
        "closed-form adds KL(p||q), the mean of minus the advantage; needs dense scores",
        choices=("none", "closed-form"),
    )
    continuation: int = _dial(16, "tokens the teacher writes from a student's prefix", low=1)
    ema: float = _dial(0.95, "share of a moving-average teacher kept at each step", low=0, high=1)

    def __post_init__(self) -> None:
        check(self)

    @property
    def state_kind(self) -> str:
        """`states` without its share: mix:0.5 -> mix."""
        return self.states.partition(":")[0]

    @property
    def share(self) -> float:
        """mix: the student's share of the sequences; teacher-mix: the teacher's of each token's odds."""
        return float(self.states.partition(":")[2] or 1.0)

    @property
    def teacher_weight(self) -> float:
        """lam: the teacher's (or the label's) weight in the loss."""
        return 0.0 if self.signal == "reward" else self.lam

    @property
    def reward_weight(self) -> float:
        return 1.0 - self.teacher_weight

    @property
    def has_policy_gradient(self) -> bool:
        """Whether some part of the signal is an advantage on sampled tokens."""
        return self.signal == "sampled_reverse_kl" or self.reward_weight > 0

    @property
    def needs_behaviour(self) -> bool:
        """Whether the loss compares with the odds that the sampler gave each token."""
        several = self.epochs * self.minibatches > 1 or self.ratio_clip is not None
        return self.importance_clip is not None or (self.has_policy_gradient and several)

    @property
    def needs_rewards(self) -> bool:
        return self.reward_weight > 0 or self.state_kind == "student-kept"

    @property
    def scores(self) -> str:
        """What the teacher must deliver for each token: none, dense, topk or sampled."""
        if self.signal in EXACT or self.teacher_baseline == "closed-form":
            return "dense"
        return {"topk_reverse_kl": "topk", "sampled_reverse_kl": "sampled"}.get(self.signal, "none")

    @property
    def rails(self) -> str:
        """The safety rails that are on, in words."""
        rails = {
            "per-entry clip": self.entry_clip,
            "ratio clip": self.ratio_clip,
            "importance clip": self.importance_clip,
            "anchor": self.anchor_beta or None,
        }
        return ", ".join(f"{name} {value:g}" for name, value in rails.items() if value is not None) or "none"

    def row(self) -> dict[str, str]:
        """What `recover methods` prints."""
        names = ("name", "states", "signal", "teacher", "context", "rails", "source", "summary")
        return {name: getattr(self, name) for name in names}


def dials() -> dict[str, str]:
    """Every dial that can be set by hand, with its one-line documentation."""
    return {name: dial.metadata["doc"] for name, dial in _by_hand().items()}


def set_dials(method: Method, values: dict[str, Any]) -> Method:
    """The method with dials set by hand; text becomes the dial's type ('none' or 'off' clears a clip)."""
    known = _by_hand()
    for name in values:
        if name not in known:
            raise InputError(f"no dial is called {name!r}{suggest(name, known)}: use {', '.join(known)}")
    return replace(method, **{name: _parse(method, known[name], value) for name, value in values.items()})


def _by_hand() -> dict[str, Field[Any]]:
    return {dial.name: dial for dial in fields(Method) if dial.metadata}


def _parse(method: Method, dial: Field[Any], value: Any) -> Any:
    """Text to the dial's type; anything else passes, for the limits to judge."""
    if not isinstance(value, str) or dial.type == "str":
        return value
    if "None" in str(dial.type) and value.lower() in ("none", "off"):
        return None
    kind: Callable[[str], Any] = int if dial.type == "int" else float
    try:
        return kind(value)
    except ValueError:
        refuse(method, f"{dial.name}={value!r} is not {'a whole number' if kind is int else 'a number'}")
