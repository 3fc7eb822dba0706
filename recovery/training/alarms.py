"""Stop a training run whose metrics show a collapse, within about ten steps.

Alarms are pure functions of the metrics of all steps so far, oldest first. Each requires a lasting *change*,
because a student before recovery looks as bad as a collapsed one. Alarms and remedies depend on the method:
low entropy is the aim of training on documents, but a collapse when the student trains on its samples.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recovery.errors import Unstable
from recovery.methods.choices import EXACT, STUDENT_STATES, TEACHER_SIGNALS
from recovery.methods.method import Method
from recovery.storage.atomic_dirs import write_text

History = Sequence[Mapping[str, float]]

WATCHED_METRICS = (  # metrics that alarms read
    "truncated_share",
    "repeated_share",
    "student_stop_mass",
    "teacher_stop_mass",
    "entropy",
    "reverse_kl",
    "k1_reverse_kl",
)
LAST = 5  # steps averaged for a comparison
STOPPING = 10  # steps averaged to see whether the teacher stops where the student does
TAIL_CHARACTERS = 256
LOOP_RATIO = 0.25  # a tail with a lower compression ratio repeats itself
MIN_CHARACTERS = 80  # shorter tails compress badly whatever their content
WAY_ON = "; `recover resume` goes on without this alarm"  # the end of what an alarm says


@dataclass(frozen=True)
class Alarm:
    name: str
    cause: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name}: {self.cause}; {self.remedy}"


def compressibility(text: str) -> float:
    """Return the compression ratio of the tail: 0.5 to 0.7 for prose, below 0.25 for loops, 1 if short."""
    data = text[-TAIL_CHARACTERS:].encode()
    return min(1.0, len(zlib.compress(data, 9)) / len(data)) if len(text) >= MIN_CHARACTERS else 1.0


def response_metrics(
    texts: Sequence[str], lengths: Sequence[int], finished: Sequence[bool]
) -> dict[str, float]:
    """Return the metrics of one step's responses that alarms read."""
    count = max(1, len(texts))
    return {
        "response_tokens": sum(lengths) / count,
        "truncated_share": sum(not done for done in finished) / count,
        "repeated_share": sum(compressibility(text) < LOOP_RATIO for text in texts) / count,
    }


def length_collapse(history: History, method: Method) -> Alarm | None:
    """Return an alarm if responses ended at first and now reach the length limit.

    A student that approaches its teacher meanwhile learns to write at length again: midtraining on documents
    leaves short answers, and the limit may be short for the teacher too.
    """
    first, last = _first(history, "truncated_share"), _last(history, "truncated_share")
    if first is None or last is None or last < 0.8 or last < first + 0.3:
        return None
    if _has_approached_teacher(history, within=0.75):
        return None
    cause = f"{last:.0%} of the responses run into the length limit, {first:.0%} did at the start"
    return Alarm("length collapse", cause, _remedy("check the stop tokens with `recover preflight`"))


def repetition_collapse(history: History, method: Method) -> Alarm | None:
    """Return an alarm if responses have begun to repeat themselves."""
    first, last = _first(history, "repeated_share"), _last(history, "repeated_share")
    if first is None or last is None or last < 0.3 or last < first + 0.2:
        return None
    cause = f"{last:.0%} of the responses repeat themselves, {first:.0%} did at the start"
    return Alarm("repetition collapse", cause, _remedy(*_rails(method)))


def stop_mismatch(history: History, method: Method) -> Alarm | None:
    """Return an alarm if the teacher almost never stops where the student does, and this persists.

    Skip self-teachers: they have the student's stop tokens, and their context may make them continue.
    """
    if method.teacher.startswith("self"):
        return None
    student = _last(history, "student_stop_mass", STOPPING)
    teacher = _last(history, "teacher_stop_mass", STOPPING)
    if student is None or teacher is None or student < 1e-3 or teacher >= 0.1 * student:
        return None
    cause = f"on the student's tokens the teacher gives stopping {teacher:.1g}, the student {student:.1g}"
    remedy = "give both the same stop tokens and chat template: `recover preflight`"
    return Alarm("stop-token mismatch", cause, remedy)


def entropy_collapse(history: History, method: Method) -> Alarm | None:
    """Return an alarm if a student trained on its samples loses entropy without approaching its teacher.

    Skip methods whose tokens come from data or from a teacher: there low entropy is the aim.
    """
    if method.state_kind not in STUDENT_STATES:
        return None
    first, last = _first(history, "entropy"), _last(history, "entropy")
    if first is None or last is None or last > 0.1 * first:
        return None
    if _has_approached_teacher(history, within=0.5):
        return None  # the clean teacher has lower entropy than the damaged student: this is recovery
    cause = f"entropy fell from {first:.2g} to {last:.2g} nats a token"
    return Alarm("entropy collapse", cause, _remedy(*_rails(method), "raise prompts_per_step"))


def _has_approached_teacher(history: History, within: float) -> bool:
    """Return whether the reverse KL to the teacher has fallen to this share of what it was at first."""
    first = _first(history, "reverse_kl") or _first(history, "k1_reverse_kl")
    last = _last(history, "reverse_kl") or _last(history, "k1_reverse_kl")
    return first is not None and last is not None and last < within * first


def _rails(method: Method) -> list[str]:
    """Return remedies for safeguards that this method supports and that are off."""
    rails = []
    pulled_to_clean = method.teacher == "base" and method.signal in TEACHER_SIGNALS
    if not method.anchor_beta and not pulled_to_clean:
        rails.append("set an anchor (--set anchor_beta=0.1)")
    if method.signal in EXACT and method.entry_clip is None:
        rails.append("clip each entry (--set entry_clip=0.05)")
    if method.has_policy_gradient and method.ratio_clip is None:
        rails.append("clip the ratio (--set ratio_clip=0.2)")
    return rails


def _remedy(*remedies: str) -> str:
    """Join remedies into a sentence, starting with a lower learning rate."""
    return "start again with " + ", or ".join(["a lower optimizer.learning_rate", *remedies])


ALARMS: tuple[Callable[[History, Method], Alarm | None], ...] = (
    length_collapse,
    repetition_collapse,
    stop_mismatch,
    entropy_collapse,
)


def check(history: History, method: Method, muted: Sequence[str] = ()) -> Alarm | None:
    """Return the first alarm that is raised and not muted."""
    for ring in ALARMS:
        alarm = ring(history, method)
        if alarm is not None and alarm.name not in muted:
            return alarm
    return None


class AlarmWatch:
    """Raise `Unstable` on the first alarm; passed to the trainer as `should_stop`.

    `before(step)` returns the metrics of steps from earlier attempts, so that a resumed run is compared with
    its first steps. A raised alarm is written to `record` and muted in later attempts: resuming overrides
    it, and would otherwise stop at the same step again.
    """

    def __init__(self, method: Method, *, before: Callable[[int], History], record: Path) -> None:
        self.method = method
        self.before = before
        self.record = record
        self.history: list[Mapping[str, float]] | None = None
        self.muted: list[str] = json.loads(record.read_text(encoding="utf-8")) if record.exists() else []

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.history is None:
            self.history = list(self.before(step))
        self.history.append({name: metrics[name] for name in WATCHED_METRICS if name in metrics})
        alarm = check(self.history, self.method, self.muted)
        if alarm is not None:
            write_text(self.record, json.dumps([*self.muted, alarm.name]))
            raise Unstable(f"step {step}: {alarm}{WAY_ON}")


def _last(history: History, name: str, count: int = LAST) -> float | None:
    """Return the mean of the last `count` values, or None while they overlap the first LAST ones."""
    values = [metrics[name] for metrics in history if name in metrics]
    return sum(values[-count:]) / count if len(values) >= LAST + count else None


def _first(history: History, name: str) -> float | None:
    """Return the mean of the metric's first LAST values, or None if there are none."""
    values = [metrics[name] for metrics in history if name in metrics][:LAST]
    return sum(values) / len(values) if values else None
