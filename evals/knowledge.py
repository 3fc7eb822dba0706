"""Score closed-book probes: questions in chat, and cloze texts to continue.

An answer counts when it stands as whole words in the response ("lenient", the score), or is the whole
response ("strict", in the details). Each response to a changed fact gives the new answer, the old one or
neither, and the share of old ones is the stale rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from math import ceil
from typing import Any

from evals.answer_matching import matches
from evals.probes import ANSWERED, APART, CLOZE, MULTIHOP, NEW, OLD, UPDATES, Probe
from evals.scores import Asked, Item, Message, Score, digest, repeated, share, subsample
from recovery.errors import RecoverError

LENIENT = "lenient"  # the headline: asked in chat, closed book
OPEN_BOOK = "open_book"  # with the passages that hold the answer in front
RETRIEVAL = "retrieval"  # with the passages that a retriever found in front
OF_MULTIHOP = {LENIENT: MULTIHOP, OPEN_BOOK: "multihop_open_book", RETRIEVAL: "multihop_retrieval"}
BESIDE = (CLOZE, OPEN_BOOK, RETRIEVAL, *APART, *OF_MULTIHOP.values())  # metrics beside a suite's headline

Answer = Callable[[list[Any]], list[str]]
"""Map chats to answer, or texts to continue, to their answers."""


@dataclass(frozen=True)
class Way:
    """Probes asked by one protocol (chat, cloze, with passages), and the metric of their score."""

    metric: str
    probes: Sequence[Probe]
    passages: Mapping[str, Sequence[str]] | None = None  # put before each question, by the probe's id

    @property
    def prompts(self) -> list[Asked]:
        """Return what the model reads: chats to answer, or texts to continue."""
        if self.metric == CLOZE:
            return [probe.prompt for probe in self.probes]
        if self.passages is None:
            return [probe.chat for probe in self.probes]
        return [after_passages(self.passages[probe.id], probe) for probe in self.probes]


@dataclass(frozen=True)
class ProbeQuestions:
    """The probes of a suite, and the protocols that they are asked by."""

    probes: Sequence[Probe]
    open_book: bool = False
    retrieved: Mapping[str, Sequence[str]] | None = None  # passages by the probe's id
    most: int | None = None  # of an earlier cycle's: bounds the questions in chat and the texts together

    def ways(self, limit: int | None = None) -> list[Way]:
        """Return each protocol that asks some probes, the headline first; `limit` bounds each by itself.

        An earlier cycle's kinds apart are not asked again. Open-book questions are those of the closed book
        that have passages."""
        in_chat, cloze = self._limits(limit)
        ways = [Way(LENIENT, subsample(self._counted, in_chat)), Way(CLOZE, subsample(self._texts, cloze))]
        if self.most is None:
            ways += [Way(kind, subsample(self._of_kind(kind), limit)) for kind in APART]
        if self.open_book:
            asked = [*subsample(self._counted, limit), *subsample(self._of_kind(MULTIHOP), limit)]
            ways += _with_passages(OPEN_BOOK, asked, {one.id: one.passages for one in asked if one.passages})
        ways += _with_passages(RETRIEVAL, self.probes, self.retrieved or {})
        return [way for way in ways if way.probes]

    def _limits(self, limit: int | None) -> tuple[int | None, int | None]:
        """Return how many to ask in chat, and how many as cloze texts.

        Of `most`, each gets half, or what the other leaves."""
        if self.most is None:
            return limit, limit
        in_chat = max(self.most - len(self._texts), ceil(self.most / 2))
        texts = self.most - min(in_chat, len(self._counted))
        return (in_chat, texts) if limit is None else (min(limit, in_chat), min(limit, texts))

    @property
    def _counted(self) -> list[Probe]:
        return [probe for probe in self.probes if probe.counts]

    @property
    def _texts(self) -> list[Probe]:
        return self._of_kind(CLOZE)

    def _of_kind(self, kind: str) -> list[Probe]:
        return [probe for probe in self.probes if probe.kind == kind]


def _with_passages(
    metric: str, probes: Sequence[Probe], passages: Mapping[str, Sequence[str]]
) -> Iterator[Way]:
    """Yield the questions that have passages (by probe id), then the multihop ones, a score of their own."""
    there = [probe for probe in probes if probe.id in passages]
    yield Way(metric, [probe for probe in there if probe.kind != MULTIHOP], passages)
    yield Way(OF_MULTIHOP[metric], [probe for probe in there if probe.kind == MULTIHOP], passages)


def evaluate(way: Way, suite: str, answer: Answer | Sequence[Answer]) -> Score:
    """Ask in one call; the value is the share answered, leniently matched.

    Several functions are so many sampled answers to every probe, which count together.
    """
    asked = way.prompts
    if callable(answer):
        found = score(way.probes, answer(asked), suite, way.metric)
    else:
        several = [replace(probe, id=f"{probe.id}#{i}") for i in range(len(answer)) for probe in way.probes]
        found = score(several, [said for one in answer for said in one(asked)], suite, way.metric)
    if way.passages is not None:
        found = replace(found, items=tuple(map(_naming_what_was_read, found.items, cycle(asked))))
    notes = repeated([repr((probe.fact, probe.chat)) for probe in way.probes], "questions")
    return replace(found, details=found.details | ({"notes": notes} if notes else {}))


def _naming_what_was_read(item: Item, asked: Asked) -> Item:
    """Name the passages before a question: answers after others are not paired with it."""
    return replace(item, detail=item.detail | {"judged_by": digest(repr(asked))})


def after_passages(passages: Sequence[str], probe: Probe) -> list[Message]:
    """Return a probe's chat with passages before the question."""
    *before, last = probe.chat
    text = "\n\n".join([*(passage.strip() for passage in passages), last["content"]])
    return [*before, {**last, "content": text}]


def score(probes: Sequence[Probe], responses: Sequence[str], suite: str, metric: str) -> Score:
    """Match the responses; the interval is clustered by fact: its probes stand or fall together."""
    from evals.intervals import clustered_interval  # SciPy, once something is measured

    if len(responses) != len(probes):
        raise RecoverError(
            f"{suite}: {len(responses)} answers to {len(probes)} probes: each needs exactly one"
        )
    items = tuple(_item(probe, response) for probe, response in zip(probes, responses, strict=True))
    passed = [item.passed for item in items]
    return Score(
        suite=suite,
        metric=metric,
        value=share(passed),
        n=len(items),
        interval=clustered_interval(passed, [probe.fact for probe in probes]),
        items=items,
        details={
            "lenient": share(passed),
            "strict": share([item.detail["strict"] for item in items]),
            "by_kind": _groups(items, "kind"),
            "by_cycle": _groups(items, "cycle"),
            "by_fact_status": _groups(items, "fact_status"),
            **(_stale(items) if suite == UPDATES else {}),
        },
    )


def _stale(items: Sequence[Item]) -> dict[str, Any]:
    """Count the new, old and neither answers; the stale rate has its 95 % interval, clustered by fact."""
    from evals.intervals import clustered_interval

    answered = [item.detail["answered"] for item in items]
    old = [one == OLD for one in answered]
    interval = clustered_interval(old, [item.detail["fact"] for item in items])
    counts = {name: answered.count(name) for name in ANSWERED}
    return {"answered": counts, "stale_rate": share(old), "stale_interval": list(interval)}


def _item(probe: Probe, response: str) -> Item:
    detail = {
        "kind": probe.kind,
        "fact": probe.fact,
        "fact_status": probe.fact_status,
        "cycle": probe.cycle,
        "answers": list(probe.answers),
        "strict": matches(response, probe.answers, strict=True),
    }
    passed = matches(response, probe.answers)
    if probe.was:
        answered = probe.answered(response)
        passed = answered == NEW
        detail |= {"was": list(probe.was), "answered": answered}
    return Item(key=probe.id, prompt=probe.prompt, response=response, passed=passed, detail=detail)


def _groups(items: Sequence[Item], field: str) -> dict[str, dict[str, Any]]:
    """Return {kind, cycle or status: {passed, n, value}}."""
    groups: dict[str, list[bool]] = {}
    for item in items:
        groups.setdefault(str(item.detail[field]), []).append(item.passed)
    return {
        name: {"passed": sum(ok), "n": len(ok), "value": share(ok)} for name, ok in sorted(groups.items())
    }
