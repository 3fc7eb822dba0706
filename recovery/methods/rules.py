"""Validate the dials of a method and say why a setting is refused. Does not import torch."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import Field, fields
from typing import Any, NoReturn

from recovery.errors import InputError
from recovery.methods.choices import (
    EXACT,
    ITSELF,
    LABELS,
    STATES,
    STUDENT_STATES,
    TEACHER_SIGNALS,
    TEACHER_WRITES,
)
from recovery.methods.dials import Dials

_K1 = (
    "k1 = log p(y) - log q(y) back-propagated has an expected gradient of zero, whatever the teacher says: "
    "E[grad log p] = 0; use signal=sampled_reverse_kl, where it is the detached advantage"
)
_K3 = (
    "k3 back-propagated on the student's own tokens follows the forward KL, not the reverse KL whose value "
    "it estimates; it is kept as a metric: use signal=sampled_reverse_kl, or forward_kl"
)
_BARE_TOPK = (
    "a top-k reverse KL that is not normalised is lowered by moving mass out of the k entries, and training "
    "collapses; use signal=topk_reverse_kl with tail=bucket (or tail=renormalise)"
)
_TOPK_ADVANTAGE = (
    "a top-k KL as a detached advantage is the same for every token that could have been sampled, so its "
    "expected gradient is zero; use signal=topk_reverse_kl, which is differentiated"
)
_Z_SCORE = (
    "z-scoring advantages divides the teacher's term by its own size and so removes it; use "
    "teacher_baseline=closed-form, or reward_baseline=group, which centre without rescaling"
)
REFUSED = {
    "signal": {
        "k1": _K1,
        "k1_loss": _K1,
        "k3": _K3,
        "k3_loss": _K3,
        "topk": _BARE_TOPK,
        "topk_unnormalised": _BARE_TOPK,
        "topk_reverse_kl_unnormalised": _BARE_TOPK,
        "topk_advantage": _TOPK_ADVANTAGE,
        "topk_reverse_kl_advantage": _TOPK_ADVANTAGE,
    },
    "tail": {"none": _BARE_TOPK, "off": _BARE_TOPK},
    "teacher_baseline": {"z-score": _Z_SCORE, "group": _Z_SCORE, "group-std": _Z_SCORE},
    "reward_baseline": {"z-score": _Z_SCORE},
}

Test = Callable[[Dials], bool]

# Dials that only some settings read. Elsewhere they must keep their default, as a change would do nothing.
READ_BY: dict[str, tuple[str, Test]] = {
    "beta": ("signal=jsd", lambda m: m.signal == "jsd"),
    "k": ("signal=topk_reverse_kl", lambda m: m.signal == "topk_reverse_kl"),
    "tail": ("signal=topk_reverse_kl", lambda m: m.signal == "topk_reverse_kl"),
    "lam": ("a teacher's signal", lambda m: m.signal in TEACHER_SIGNALS),
    "temperature": (
        "tokens that are sampled, and to signals other than labels",
        lambda m: m.state_kind != "data" or m.signal not in LABELS,
    ),
    "entry_clip": ("an exact signal (reverse_kl, forward_kl, jsd)", lambda m: m.signal in EXACT),
    "kl_budget": ("an exact signal (reverse_kl, forward_kl, jsd)", lambda m: m.signal in EXACT),
    "kl_budget_of": ("kl_budget", lambda m: m.kl_budget is not None),
    "kl_budget_final": ("kl_budget", lambda m: m.kl_budget is not None),
    "ratio_clip": ("advantages (sampled_reverse_kl, reward, lam < 1)", lambda m: m.has_policy_gradient),
    "importance_clip": ("sampled states", lambda m: m.state_kind in STUDENT_STATES),
    "reward_baseline": ("a reward (signal=reward or lam < 1)", lambda m: m.reward_weight > 0),
    "teacher_baseline": ("signal=sampled_reverse_kl", lambda m: m.signal == "sampled_reverse_kl"),
    "anchor_kl": ("an anchor (anchor_beta above 0)", lambda m: m.anchor_beta > 0),
    "continuation": ("states=student-continued", lambda m: m.state_kind == "student-continued"),
    "ema": ("teacher=self-ema", lambda m: m.teacher == "self-ema"),
    "context": ("a teacher", lambda m: m.teacher != "none"),
}

_ANY_TEACHER = "set teacher to base, previous, self, self-ema or routed"
_RULES: dict[str, Test] = {
    "signal={signal} needs a teacher: " + _ANY_TEACHER: lambda m: (
        m.signal in TEACHER_SIGNALS and m.teacher == "none"
    ),
    "states={states} are written by a teacher: " + _ANY_TEACHER: lambda m: (
        m.state_kind in TEACHER_WRITES and m.teacher == "none"
    ),
    "a model that teaches itself without a context agrees with itself (the loss is 0): "
    "set context": lambda m: m.teacher in ITSELF and m.context == "none" and m.signal in TEACHER_SIGNALS,
    "an advantage is unbiased only on tokens that the student sampled, and states={states} holds "
    "others: use states=student, or an exact signal (reverse_kl, forward_kl, jsd)": lambda m: (
        m.has_policy_gradient and m.state_kind not in ("student", "teacher-mix")
    ),
    "tokens sampled from a mixture with the teacher need importance weights: set importance_clip": lambda m: (
        m.has_policy_gradient and m.state_kind == "teacher-mix" and m.importance_clip is None
    ),
    "the student's samples as labels have an expected gradient of zero: use states=student-kept (those whose "
    "reward is 1), or a teacher's signal": lambda m: (
        m.signal in LABELS and m.state_kind in ("student", "mix", "teacher-mix")
    ),
    "one renormalised entry is always 1, so its KL is 0: set k to 2 or more (16 is usual), "
    "or tail=bucket": lambda m: m.tail == "renormalise" and m.k < 2,
    "a group of one is its own baseline, so every advantage is 0: set group_size to at least 2": lambda m: (
        m.reward_weight > 0 and m.reward_baseline != "none" and m.group_size < 2
    ),
    "temperature=0 has no distribution to learn from: set it above 0": lambda m: (
        m.temperature == 0 and m.signal not in LABELS
    ),
    "importance weights of labels compare the sampler's probabilities with those at temperature 1: "
    "keep 1, or leave out importance_clip": lambda m: (
        m.importance_clip is not None and m.signal in LABELS and m.temperature != 1
    ),
    "log-probs of a few tokens cannot be brought to another temperature: keep 1, or use an "
    "exact signal": lambda m: m.temperature != 1 and m.signal in ("topk_reverse_kl", "sampled_reverse_kl"),
}


def check(method: Dials) -> None:
    """Raise InputError, with the reason in one line, on a setting that is wrong or has no effect."""
    for dial in fields(method):
        if dial.metadata:
            _check_value(method, dial)
    _check_states(method)
    for dial in fields(method):
        if dial.name in READ_BY:
            _check_effect(method, dial)
    for reason, broken in _RULES.items():
        if broken(method):
            refuse(method, reason.format(signal=method.signal, states=method.states))


def refuse(method: Dials, reason: str) -> NoReturn:
    raise InputError(f"method {method.name!r}: {reason}")


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ' (did you mean ...?)' if a known name is spelled alike, else nothing."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def _check_value(method: Dials, dial: Field[Any]) -> None:
    """Check choices, type and limits of one dial; explain values that are known to be bad."""
    name = dial.name
    value = getattr(method, name)
    choices = dial.metadata.get("choices")
    if isinstance(value, str) and value in REFUSED.get(name, {}):
        refuse(method, f"{name}={value} is refused: {REFUSED[name][value]}")
    if choices and value not in choices:
        refuse(method, f"{name}={value}{suggest(str(value), choices)} is not one of {', '.join(choices)}")
    may_be_none = "None" in str(dial.type)
    if dial.type != "str" and not (value is None and may_be_none):
        _check_number(method, dial, value)


def _check_number(method: Dials, dial: Field[Any], value: Any) -> None:
    """Check type and limits; no comparison with a limit holds for NaN."""
    kind, kinds = ("a whole number", int) if dial.type == "int" else ("a number", (int, float))
    if isinstance(value, bool) or not isinstance(value, kinds):
        refuse(method, f"{dial.name}={value!r} is not {kind}")
    low, high, above = (dial.metadata[name] for name in ("low", "high", "above"))
    within = (low is None or value >= low) and (high is None or value <= high)
    if not within or not (above is None or value > above) or abs(value) == float("inf"):
        refuse(method, f"{dial.name}={value} must be {_bounds(low, high, above)}")


def _bounds(low: float | None, high: float | None, above: float | None) -> str:
    least = f"at least {low}" if low is not None else f"above {above}"
    return f"{least} and at most {high}" if high is not None else f"{least} and finite"


def _check_states(method: Dials) -> None:
    if not isinstance(method.states, str):
        refuse(method, f"states={method.states!r} is no text such as student or mix:0.5")
    kind, colon, share = method.states.partition(":")
    if kind not in STATES:
        refuse(method, f"states={method.states}{suggest(kind, STATES)} is not one of {', '.join(STATES)}")
    if (kind in ("mix", "teacher-mix")) != bool(colon):
        refuse(method, f"states={method.states}: mix and teacher-mix carry a share (mix:0.5), others none")
    try:
        inside = not colon or 0 < float(share) < 1
    except ValueError:
        inside = False
    if not inside:
        refuse(method, f"states={method.states}: the share must lie between 0 and 1, both excluded")


def _check_effect(method: Dials, dial: Field[Any]) -> None:
    """Refuse to set a dial that nothing reads under the other dials."""
    value = getattr(method, dial.name)
    reader, reads = READ_BY[dial.name]
    if value != dial.default and not reads(method):
        setting = f"signal={method.signal}, states={method.states}, teacher={method.teacher}"
        refuse(method, f"{dial.name}={value} has no effect with {setting}: it belongs to {reader}")
