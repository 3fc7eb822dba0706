"""Follow along a midtraining how probable it makes the answers to fixed questions about the documents.

The questions are the probes whose passages are in the documents; of too few, cloze gaps cut from them. Only
those are asked that the student does not answer yet. A measurement is forward passes and draws nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evals import jsonl
from evals.probes import APART, Probe
from evals.scores import Message, chat
from pipelines.corpus.cloze import clozes
from pipelines.corpus.documents import squeezed
from pipelines.corpus.segments import space_behind

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel
    from recovery.teachers.likelihood import Pair

METRIC, ERROR = "answer_probability", "answer_probability_error"
FEWEST = 16  # questions below which the mean says little
CANDIDATES, MOST = 400, 96
FIELDS = {"prompt": str, "answer": str, "in_chat": bool, "between": str, "messages": list, "fact": str}
KNOWN = 0.5  # probability from which on the student knows an answer already

Report = Callable[[int, Mapping[str, float]], None]


@dataclass(frozen=True)
class Question:
    """A question in chat, or a text to go on with, and the answer that belongs behind it."""

    prompt: str
    answer: str
    in_chat: bool
    between: str = " "  # stands between a text to go on with and its answer
    messages: tuple[Message, ...] = ()  # of several turns, with their tools; `prompt` is then their text
    fact: str = ""  # questions about one fact, or gaps of one sentence, share it

    def pair(self, chat_model: ChatModel) -> Pair:
        from recovery.teachers.likelihood import gap_ids, split_ids

        if self.in_chat:
            return split_ids(chat_model, self.messages or chat(self.prompt), self.answer)
        return gap_ids(chat_model, self.prompt, self.between + self.answer)


def unanswered(
    chat_model: ChatModel, texts: Sequence[str], probes: Sequence[Probe], seed: int
) -> tuple[str, list[Question]]:
    """Return what the questions are ("probes" or "gaps") and those that the model does not answer yet."""
    for name, questions in (("probes", _of_probes(texts, probes)), ("gaps", _of_gaps(texts, seed))):
        pairs = [question.pair(chat_model) for question in questions]
        found = probabilities(chat_model, pairs)
        unknown = [question for question, p in zip(questions, found, strict=True) if p < KNOWN][:MOST]
        if len(unknown) >= FEWEST:
            return name, unknown
    return "gaps", unknown


def _of_probes(texts: Sequence[str], probes: Sequence[Probe]) -> list[Question]:
    """Return the probes whose passages stand in the texts, but for kinds apart from the verdict."""
    everything = "\n".join(map(squeezed, texts))
    return [
        Question(
            probe.prompt,
            probe.answers[0],
            probe.in_chat,
            space_behind(probe.prompt),
            probe.messages,
            probe.fact,
        )
        for probe in probes
        if probe.kind not in APART
        and probe.passages
        and all(squeezed(passage) in everything for passage in probe.passages)
    ]


def _of_gaps(texts: Sequence[str], seed: int) -> list[Question]:
    return [
        Question(gap.before, gap.answer, False, gap.between, fact=gap.sentence)
        for gap in clozes(texts, limit=CANDIDATES, seed=seed)
    ]


def probabilities(chat_model: ChatModel, pairs: Sequence[Pair]) -> list[float]:
    """Return the probability of each answer."""
    from recovery.teachers.likelihood import continuation_logprobs, reader

    return [math.exp(p) for p in continuation_logprobs(reader(chat_model), pairs, chat_model.pad_id)]


def write(path: Path, questions: Sequence[Question]) -> None:
    jsonl.write(path, map(asdict, questions))


def read(path: Path) -> list[Question]:
    return [Question(**row | {"messages": tuple(row["messages"])}) for row in jsonl.read(path, FIELDS)]


class AnswerProbability:
    """A trainer's `should_stop` that never stops: it reports the answers' mean probability."""

    def __init__(
        self, student: ChatModel, questions: Sequence[Question], *, every: int, steps: int, report: Report
    ) -> None:
        self.student = student
        self.every = every
        self.steps = steps
        self.report = report
        self.pairs = [question.pair(student) for question in questions]
        self.facts = [question.fact or f"question {place}" for place, question in enumerate(questions)]
        self.before: list[float] = []
        self.measure(0)

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        if step % self.every == 0 or step == self.steps:
            self.measure(step)

    def measure(self, step: int) -> None:
        """Report the mean probability, and the standard error of its change since step 0."""
        found = probabilities(self.student, self.pairs)
        self.before = self.before or found
        error = change_error(self.before, found, self.facts)
        self.report(step, {METRIC: sum(found) / len(found), ERROR: error})


def change_error(before: Sequence[float], after: Sequence[float], facts: Sequence[str]) -> float:
    """Return the standard error of a mean change, paired by question and clustered by fact."""
    from evals.intervals import cautious_effect

    changes = [now - then for now, then in zip(after, before, strict=True)]
    mean = sum(changes) / len(changes)
    variance = sum((change - mean) ** 2 for change in changes) / max(len(changes) - 1, 1)
    return math.sqrt(variance * cautious_effect(changes, facts) / len(changes))
