"""The dials of a post-training method, each documented and validated where it is declared. No torch here.

A `Method` is one setting of them; `recovery/methods.py` is the table of the settings that have names.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, NoReturn

from recovery.errors import InputError

EXACT = ("reverse_kl", "forward_kl", "jsd")
TEACHER_SIGNALS = (*EXACT, "topk_reverse_kl", "sampled_reverse_kl")
LABELS = ("label", "label_dft")
SIGNALS = (*LABELS, *TEACHER_SIGNALS, "reward")
STATES = ("data", "student", "mix", "student-kept", "student-continued", "teacher", "teacher-mix")
TEACHERS = ("none", "base", "self", "self-ema", "routed")
CONTEXTS = ("none", "demonstrations", "rules", "system", "answer", "hints")

_K1 = ("k1 = log p(y) - log q(y) back-propagated has an expected gradient of zero: E[grad log p] = 0, whatever the "
       "teacher says; use signal=sampled_reverse_kl, where k1 is the (detached) advantage")
_K3 = ("k3 back-propagated on the student's own tokens follows the forward KL, not the reverse KL that it estimates "
       "(cosine .86-.98 to the exact gradient); it is kept as a metric: use signal=sampled_reverse_kl or forward_kl")
_BARE_TOPK = ("a top-k reverse KL that is not normalised is lowered by moving mass out of the k entries, and training "
              "collapses; use signal=topk_reverse_kl with tail=bucket (or tail=renormalise)")
_TOPK_ADVANTAGE = ("a top-k KL used as a detached advantage is the same number for every token that could have been "
                   "sampled, so its expected gradient is zero; use signal=topk_reverse_kl, which is differentiated")
_Z_SCORE = ("z-scoring advantages divides the teacher's term by its own size and removes it; use teacher_baseline="
            "closed-form, or reward_baseline=group, which centre without rescaling")

REFUSED = {
    "signal": {"k1": _K1, "k1_loss": _K1, "k3": _K3, "k3_loss": _K3,
               "topk": _BARE_TOPK, "topk_unnormalised": _BARE_TOPK, "topk_reverse_kl_unnormalised": _BARE_TOPK,
               "topk_advantage": _TOPK_ADVANTAGE, "topk_reverse_kl_advantage": _TOPK_ADVANTAGE},
    "tail": {"none": _BARE_TOPK, "off": _BARE_TOPK},
    "teacher_baseline": {"z-score": _Z_SCORE, "group": _Z_SCORE, "group-std": _Z_SCORE},
    "reward_baseline": {"z-score": _Z_SCORE},
}


def _dial(default: Any, doc: str, *, choices: tuple[str, ...] = (), low: float | None = None,
          high: float | None = None, above: float | None = None) -> Any:
    """A field that carries its own documentation and limits (`low` and `high` included, `above` excluded)."""
    limits = {"choices": choices, "low": low, "high": high, "above": above}
    return field(default=default, metadata={"doc": doc, **limits})


@dataclass(frozen=True)
class Method:
    """One row: where states come from, what each token is told, by whom seeing what, behind which rails."""

    name: str
    states: str = field(metadata={"doc": "who writes the tokens: " + ", ".join(STATES) + " (mix:P, teacher-mix:P)"})
    signal: str = field(metadata={"doc": "what each token is told", "choices": SIGNALS})
    teacher: str = _dial("none", "who tells it; base is the checkpoint named by --teacher", choices=TEACHERS)
    context: str = _dial("none", "what the teacher sees and the student does not", choices=CONTEXTS)
    source: str = ""
    summary: str = ""
    beta: float = _dial(0.5, "jsd: the teacher's share of the mixture; 0 is forward_kl, 1 reverse_kl", low=0, high=1)
    lam: float = _dial(1.0, "the teacher's weight; the reward gets the rest", low=0, high=1)
    k: int = _dial(16, "topk: how many of the teacher's entries", low=1)
    tail: str = _dial("bucket", "topk: where the rest of the mass goes", choices=("bucket", "renormalise"))
    temperature: float = _dial(1.0, "of sampling, and of both distributions in the signal", low=0)
    entry_clip: float | None = _dial(None, "most that one vocabulary entry adds to a token's divergence", above=0)
    ratio_clip: float | None = _dial(None, "PPO: p/p_old of a token stays within 1 +- this", above=0, high=1)
    importance_clip: float | None = _dial(None, "tokens weigh p/p_sampler, at most this", low=1)
    anchor_beta: float = _dial(0.0, "weight of the KL from the clean model, on every token", low=0)
    epochs: int = _dial(1, "passes over each batch of states", low=1)
    minibatches: int = _dial(1, "updates a pass", low=1)
    group_size: int = _dial(1, "samples a prompt", low=1)
    reward_baseline: str = _dial("group", "what a reward is compared with",
                                 choices=("group", "leave-one-out", "group-std", "none"))
    teacher_baseline: str = _dial("none", "closed-form adds KL(p||q), the mean of -advantage; needs dense scores",
                                  choices=("none", "closed-form"))
    continuation: int = _dial(16, "tokens the teacher writes from a student's prefix", low=1)
    ema: float = _dial(0.95, "share of a moving-average teacher kept at each step", low=0, high=1)

    def __post_init__(self) -> None:
        for dial in fields(self)[1:]:
            _check_value(self, dial)
        _check_states(self)
        _check_effect(self)
        _check_rules(self)

    @property
    def state_kind(self) -> str:
        """`states` without its share: mix:0.5 -> mix."""
        return self.states.partition(":")[0]

    @property
    def share(self) -> float:
        """mix: the student's share of the sequences; teacher-mix: the teacher's share of each token's odds."""
        return float(self.states.partition(":")[2] or 1.0)

    @property
    def teacher_weight(self) -> float:
        """λ: the teacher's (or the label's) weight in the loss."""
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
        rails = {"per-entry clip": self.entry_clip, "ratio clip": self.ratio_clip,
                 "importance clip": self.importance_clip, "anchor": self.anchor_beta or None}
        return ", ".join(f"{name} {value:g}" for name, value in rails.items() if value is not None) or "none"

    def row(self) -> dict[str, str]:
        """What `recover methods` prints."""
        names = ("name", "states", "signal", "teacher", "context", "rails", "source", "summary")
        return {name: getattr(self, name) for name in names}


def dials() -> dict[str, str]:
    """Every dial that can be set by hand, with its one-line documentation."""
    return {dial.name: dial.metadata["doc"] for dial in fields(Method) if dial.metadata}


def set_dials(method: Method, values: dict[str, Any]) -> Method:
    """The method with some dials set by hand; text is parsed to the dial's type ('none' or 'off' clears a clip)."""
    known = {dial.name: dial for dial in fields(Method) if dial.metadata}
    parsed: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise InputError(f"no dial is called {name!r}{suggest(name, known)}: the dials are {', '.join(known)}")
        parsed[name] = _parse(method, known[name], value)
    return replace(method, **parsed)


def suggest(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _parse(method: Method, dial: Field[Any], value: Any) -> Any:
    """Text to the dial's type; anything else passes, for the limits to judge."""
    if not isinstance(value, str) or dial.type == "str":
        return value
    if "None" in dial.type and value.lower() in ("none", "off"):
        return None
    kind: Callable[[str], Any] = int if dial.type == "int" else float
    try:
        return kind(value)
    except ValueError:
        _refuse(method, f"{dial.name}={value!r} is not {'a whole number' if kind is int else 'a number'}")


def _refuse(method: Method, reason: str) -> NoReturn:
    raise InputError(f"method {method.name!r}: {reason}")


def _check_value(method: Method, dial: Field[Any]) -> None:
    """Choices, types and limits of one dial; a known-bad value is answered with why it is bad."""
    value, limits = getattr(method, dial.name), dial.metadata
    if value in REFUSED.get(dial.name, {}):
        _refuse(method, f"{dial.name}={value} is refused: {REFUSED[dial.name][value]}")
    if limits.get("choices") and value not in limits["choices"]:
        hint = suggest(str(value), limits["choices"])
        _refuse(method, f"{dial.name}={value}{hint} is not one of {', '.join(limits['choices'])}")
    if value is None or dial.type == "str":
        return
    if isinstance(value, bool) or not isinstance(value, int if dial.type == "int" else (int, float)):
        _refuse(method, f"{dial.name}={value!r} is not {'a whole number' if dial.type == 'int' else 'a number'}")
    low, high, above = limits["low"], limits["high"], limits["above"]
    inside = (low is None or value >= low) and (high is None or value <= high) and (above is None or value > above)
    if not inside or value in (float("inf"), float("-inf")):
        bounds = [f"at least {low}" if low is not None else f"above {above}", f"at most {high}" if high else ""]
        _refuse(method, f"{dial.name}={value} must be {' and '.join(filter(None, bounds))}")


def _check_states(method: Method) -> None:
    kind, colon, share = method.states.partition(":")
    if kind not in STATES:
        _refuse(method, f"states={method.states}{suggest(kind, STATES)} is not one of {', '.join(STATES)}")
    if (kind in ("mix", "teacher-mix")) != bool(colon):
        _refuse(method, f"states={method.states}: mix and teacher-mix carry a share, as in mix:0.5; the others none")
    try:
        inside = not colon or 0 < float(share) < 1
    except ValueError:
        inside = False
    if not inside:
        _refuse(method, f"states={method.states}: the share must lie between 0 and 1 (the ends are data and student)")


# Dials that only some settings read; elsewhere they must stay at their default, lest they look effective.
_READ_BY: dict[str, tuple[str, Callable[[Method], bool]]] = {
    "beta": ("signal=jsd", lambda m: m.signal == "jsd"),
    "k": ("signal=topk_reverse_kl", lambda m: m.signal == "topk_reverse_kl"),
    "tail": ("signal=topk_reverse_kl", lambda m: m.signal == "topk_reverse_kl"),
    "lam": ("a teacher's signal", lambda m: m.signal in TEACHER_SIGNALS),
    "entry_clip": ("an exact signal (reverse_kl, forward_kl, jsd)", lambda m: m.signal in EXACT),
    "ratio_clip": ("advantages (sampled_reverse_kl, reward, lam < 1)", lambda m: m.has_policy_gradient),
    "importance_clip": ("sampled states", lambda m: m.state_kind in ("student", "student-kept", "mix", "teacher-mix")),
    "reward_baseline": ("a reward (signal=reward or lam < 1)", lambda m: m.reward_weight > 0),
    "teacher_baseline": ("signal=sampled_reverse_kl", lambda m: m.signal == "sampled_reverse_kl"),
    "continuation": ("states=student-continued", lambda m: m.state_kind == "student-continued"),
    "ema": ("teacher=self-ema", lambda m: m.teacher == "self-ema"),
    "context": ("a teacher", lambda m: m.teacher != "none"),
}


def _check_effect(method: Method) -> None:
    for dial in fields(method):
        if dial.name in _READ_BY and dial.default is not MISSING and getattr(method, dial.name) != dial.default:
            reader, reads = _READ_BY[dial.name]
            if not reads(method):
                _refuse(method, f"{dial.name}={getattr(method, dial.name)} has no effect with signal={method.signal}, "
                                f"states={method.states}, teacher={method.teacher}: it belongs to {reader}")


_RULES: tuple[tuple[Callable[[Method], bool], str], ...] = (
    (lambda m: m.signal in TEACHER_SIGNALS and m.teacher == "none",
     "signal={signal} needs a teacher: set teacher to base, self, self-ema or routed"),
    (lambda m: m.state_kind in ("teacher", "teacher-mix", "student-continued") and m.teacher == "none",
     "states={states} are written by a teacher: set teacher to base, self, self-ema or routed"),
    (lambda m: m.teacher in ("self", "self-ema") and m.context == "none" and m.signal in TEACHER_SIGNALS,
     "a model that teaches itself and sees nothing more has nothing to tell (the loss is 0): set context"),
    (lambda m: m.has_policy_gradient and m.state_kind not in ("student", "teacher-mix"),
     ("an advantage is unbiased only on tokens that the student itself sampled, and states={states} holds others': "
      "use states=student, or an exact signal (reverse_kl, forward_kl, jsd)")),
    (lambda m: m.has_policy_gradient and m.state_kind == "teacher-mix" and m.importance_clip is None,
     "tokens that the teacher helped to sample need their importance weight: set importance_clip"),
    (lambda m: m.signal in LABELS and m.state_kind in ("student", "mix", "teacher-mix"),
     ("the student's own tokens as labels have an expected gradient of zero: use states=student-kept (kept where the "
      "reward is 1), or a teacher's signal")),
    (lambda m: m.tail == "renormalise" and m.k < 2,
     "one renormalised entry is always 1, so its KL is 0: set k to at least 2 (16 is usual), or tail=bucket"),
    (lambda m: m.reward_weight > 0 and m.reward_baseline != "none" and m.group_size < 2,
     "a group of one is its own baseline, so every advantage is 0: set group_size to at least 2"),
    (lambda m: m.temperature == 0 and m.signal not in LABELS,
     "temperature=0 has no distribution to learn from: set it above 0"),
    (lambda m: m.temperature != 1 and m.signal in ("topk_reverse_kl", "sampled_reverse_kl"),
     "log-probs of a few tokens cannot be brought to another temperature: leave it at 1, or use an exact signal"),
)


def _check_rules(method: Method) -> None:
    for broken, reason in _RULES:
        if broken(method):
            _refuse(method, reason.format(signal=method.signal, states=method.states))
