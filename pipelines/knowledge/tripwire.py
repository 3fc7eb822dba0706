"""Watch during distillation whether the student can still fill cloze gaps in the new documents.

The gaps are cut from the documents, never from the evaluation's probes, and only those are watched that the
student fills better than the teacher. A measurement is one forward pass and uses no random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pipelines.corpus.cloze import Cloze, clozes
from pipelines.knowledge.answer_probability import Report, probabilities

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel
    from recovery.teachers.likelihood import Pair, Scorer

METRIC = "new_cloze_probability"
COUNT, CANDIDATES = 48, 240
FEWEST = 8  # gaps below which the mean says nothing
GAIN = 1.0  # nats by which the student must fill a gap better than the teacher


class Tripwire:
    """A trainer's `should_stop`: reports the answers' mean probability, stops when it fell below a share."""

    def __init__(
        self,
        look: Callable[[], float],
        *,
        every: int,
        share: float | None = None,
        report: Report = lambda step, values: None,
    ) -> None:
        self.look = look
        self.every = every
        self.share = share
        self.report = report
        self.start = look()
        report(0, {METRIC: self.start})

    def __call__(self, step: int, metrics: Mapping[str, float]) -> str | None:
        if step % self.every:
            return None
        now = self.look()
        self.report(step, {METRIC: now})
        if self.share is None or now >= self.share * self.start:
            return None
        return (
            f"new knowledge fell to {now / self.start:.0%} of what it was before "
            f"(answers to gaps in the documents: {now:.2f}, {self.start:.2f} before)"
        )


def new_gaps(
    student: ChatModel, teacher: Scorer, texts: Sequence[str], seed: int
) -> tuple[list[Cloze], Callable[[], float]] | None:
    """Return gaps that the student learned to fill and a function that measures them; None for too few."""
    from recovery.teachers.likelihood import continuation_logprobs, gap_ids, reader

    asked = clozes(texts, limit=CANDIDATES, seed=seed)
    pairs = [gap_ids(student, gap.before, gap.between + gap.answer) for gap in asked]
    after = continuation_logprobs(reader(student), pairs, student.pad_id)
    before = continuation_logprobs(teacher, pairs, student.pad_id)
    new = [i for i, (a, b) in enumerate(zip(after, before, strict=True)) if a - b >= GAIN][:COUNT]
    if len(new) < FEWEST:
        return None
    watched: list[Pair] = [pairs[i] for i in new]

    def look() -> float:
        found = probabilities(student, watched)
        return sum(found) / len(found)

    return [asked[i] for i in new], look
