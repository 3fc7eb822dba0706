"""Stability alarms: what a training that goes wrong looks like in its own metrics, ten steps later at most.

Pure functions over the metrics of the steps so far (oldest first). Each asks for a *change* that lasts: a
broken student that distillation is about to repair starts out as bad as these, and must be left to get
better.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from recovery.errors import Unstable

History = Sequence[Mapping[str, float]]

HEARD = (  # the metrics that alarms listen to
    "truncated_share",
    "repeated_share",
    "student_stop_mass",
    "teacher_stop_mass",
    "entropy",
    "reverse_kl",
    "k1_reverse_kl",
)
LAST = 5  # steps that must agree
TAIL_CHARACTERS = 256
LOOP_RATIO = 0.25  # a tail that compresses below this share of its bytes goes round in circles
MIN_CHARACTERS = 80  # a shorter tail compresses badly whatever it says


@dataclass(frozen=True)
class Alarm:
    name: str
    cause: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name}: {self.cause}; {self.remedy}"


def compressibility(text: str, tail: int = TAIL_CHARACTERS) -> float:
    """Compressed size over size of the tail: 0.5 to 0.7 for prose, below 0.25 for loops, 1.0 if short."""
    data = text[-tail:].encode()
    return min(1.0, len(zlib.compress(data, 9)) / len(data)) if len(text) >= MIN_CHARACTERS else 1.0


def response_metrics(
    texts: Sequence[str], lengths: Sequence[int], finished: Sequence[bool]
) -> dict[str, float]:
    """What the alarms below need to know of one step's responses."""
    count = max(1, len(texts))
    return {
        "response_tokens": sum(lengths) / count,
        "truncated_share": sum(not done for done in finished) / count,
        "repeated_share": sum(compressibility(text) < LOOP_RATIO for text in texts) / count,
    }


def length_collapse(history: History) -> Alarm | None:
    """Responses used to end and no longer do."""
    first, last = _first(history, "truncated_share"), _last(history, "truncated_share")
    if first is None or last is None or last < 0.8 or last < first + 0.3:
        return None
    cause = f"{last:.0%} of the responses run into the length limit, {first:.0%} did at the start"
    return Alarm(
        "length collapse", cause, "lower the learning rate, or check the stop tokens with `recover preflight`"
    )


def repetition_collapse(history: History) -> Alarm | None:
    """Responses have begun to go round in circles."""
    first, last = _first(history, "repeated_share"), _last(history, "repeated_share")
    if first is None or last is None or last < 0.3 or last < first + 0.2:
        return None
    cause = f"{last:.0%} of the responses repeat themselves, {first:.0%} did at the start"
    return Alarm(
        "repetition collapse", cause, "lower the learning rate, or set an anchor (anchor_beta) or a clip"
    )


def stop_mismatch(history: History, patience: int = 10) -> Alarm | None:
    """The teacher almost never stops where the student does, and training does not change that."""
    student = _last(history, "student_stop_mass", patience)
    teacher = _last(history, "teacher_stop_mass", patience)
    if student is None or teacher is None or student < 1e-3 or teacher >= 0.1 * student:
        return None
    cause = f"on the student's tokens the teacher gives stopping {teacher:.1g}, the student {student:.1g}"
    return Alarm(
        "stop-token mismatch", cause, "give both the same stop tokens and chat template: `recover preflight`"
    )


def entropy_collapse(history: History) -> Alarm | None:
    """The student is nearly certain of everything, and not because it has become like its teacher."""
    first, last = _first(history, "entropy"), _last(history, "entropy")
    if first is None or last is None or last > 0.1 * first:
        return None
    gap_first = _first(history, "reverse_kl") or _first(history, "k1_reverse_kl")
    gap_last = _last(history, "reverse_kl") or _last(history, "k1_reverse_kl")
    if gap_first and gap_last is not None and gap_last < 0.5 * gap_first:
        return None  # a clean teacher is more certain than a broken student: this is recovery
    cause = f"entropy fell from {first:.2g} to {last:.2g} nats a token"
    return Alarm(
        "entropy collapse", cause, "lower the learning rate, set an anchor (anchor_beta), or sample more"
    )


ALARMS: tuple[Callable[[History], Alarm | None], ...] = (
    length_collapse,
    repetition_collapse,
    stop_mismatch,
    entropy_collapse,
)


def check(history: History, *, of_itself: bool = False) -> Alarm | None:
    """The first alarm that goes off.

    A teacher that is the student itself cannot have other stop tokens: what it was shown is why it goes on.
    """
    rings = [ring for ring in ALARMS if not (of_itself and ring is stop_mismatch)]
    return next((alarm for ring in rings if (alarm := ring(history)) is not None), None)


class Watch:
    """Remembers the steps and raises on the first alarm; a trainer's `should_stop`.

    `before(step)` gives the steps that an earlier attempt took: a resumed run is held to what was then.
    """

    def __init__(
        self, *, of_itself: bool = False, before: Callable[[int], History] = lambda step: ()
    ) -> None:
        self.of_itself, self.before = of_itself, before
        self.history: list[Mapping[str, float]] | None = None

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.history is None:
            self.history = list(self.before(step))
        self.history.append({name: metrics[name] for name in HEARD if name in metrics})
        alarm = check(self.history, of_itself=self.of_itself)
        if alarm is not None:
            raise Unstable(f"step {step}: {alarm}")


def _last(history: History, name: str, count: int = LAST) -> float | None:
    """The mean of the last steps, once there are enough that know the metric, after the first ones."""
    values = [metrics[name] for metrics in history if name in metrics]
    return sum(values[-count:]) / count if len(values) >= LAST + count else None


def _first(history: History, name: str) -> float | None:
    values = [metrics[name] for metrics in history if name in metrics][:LAST]
    return sum(values) / len(values) if values else None
