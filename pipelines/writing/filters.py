"""Filters of written text: supported by its passage, understandable alone, said once, no probe's answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

from evals.knowledge import CLOZE, Probe, matches, normalise
from pipelines.corpus.entities import Entities, words

SAME_WORDS, SAME_ORDER = 0.85, 0.7  # common words, and common pairs of neighbours, of one question said twice
T = TypeVar("T")
OPEN_KINDS = ("direct",)  # their phrasing is no secret: the held-out kinds measure what was not trained on
LONGEST_ANSWER = 200  # characters


def question_flaw(question: str, answer: str, passage: str, about: Entities) -> str | None:
    """Why a question with its answer is not used, or None."""
    if not normalise(question) or not normalise(answer) or len(answer) > LONGEST_ANSWER:
        return "empty or too long"
    if not (matches(passage, [answer]) or _all_words(answer, passage)):
        return "not supported"
    if matches(question, [answer]):
        return "answers itself"
    if about.within(passage) and not about.within(question):
        return "names nothing"
    return None


def text_flaw(text: str, passage: str, kind: str) -> str | None:
    """Why a text is not used, or None: what it names and counts must be in the passage."""
    if not normalise(text) or normalise(text) == normalise(passage):
        return "empty or a copy"
    longest = 3.0 if kind == "paraphrase" else 1.5
    if len(text) > longest * len(passage) or (kind == "paraphrase" and len(text) < 0.3 * len(passage)):
        return "too long or too short"
    said = {word.small for word in words(passage)}
    if any(word.small not in said for word in words(text) if _checkable(text, word.text, word.opens)):
        return "not supported"
    return None


def _checkable(text: str, word: str, opens: bool) -> bool:
    """Numbers, and names that stand where nothing else makes them begin with a capital."""
    return any(map(str.isdigit, word)) or (len(word) > 1 and word[0].isupper() and not opens)


def _all_words(answer: str, passage: str) -> bool:
    said = set(normalise(passage).split())
    return all(word in said for word in normalise(answer).split())


class Leaks:
    """Knows the probes that must stay unseen: those of held-out phrasing, and all of held-out facts."""

    def __init__(self, probes: Iterable[Probe]) -> None:
        probes = list(probes)
        secret = [p for p in probes if p.kind != CLOZE and p.kind not in OPEN_KINDS]
        self.whole = {normalise(p.prompt) for p in secret}
        self.questions = [(set(text.split()), _neighbours(text)) for text in self.whole]
        self.facts = [(p.answers, set(normalise(p.prompt).split())) for p in probes if p.heldout_fact]

    def of(self, question: str, answer: str) -> bool:
        """Whether a question is a held-out one in nearly the same words, or asks for a held-out fact."""
        asked, order = set(normalise(question).split()), _neighbours(normalise(question))
        if any(
            _share(asked, words) >= SAME_WORDS and _share(order, pairs) >= SAME_ORDER
            for words, pairs in self.questions
        ):
            return True
        same = normalise(answer)
        return any(
            any(normalise(a) == same for a in answers) and len(asked & other) >= 2
            for answers, other in self.facts
        )

    def within(self, text: str) -> bool:
        """Whether a text holds a held-out question."""
        said = f" {normalise(text)} "
        return any(f" {question} " in said for question in self.whole)


def _share(one: set[T], other: set[T]) -> float:
    return len(one & other) / max(1, len(one | other))


def _neighbours(text: str) -> set[tuple[str, str]]:
    said = ["", *text.split()]
    return set(pairwise(said))


def pairs(text: str) -> list[tuple[str, str]]:
    """The Q: and A: lines of a writer's answer, whatever numbers or marks stand around them."""
    found, question = [], None
    for line in text.splitlines():
        match = re.match(r"[\s\d.)*#-]*\**(q|question|a|answer)\d*\**\s*[:：]\**\s*(.+)", line, re.IGNORECASE)
        if match is None:
            continue
        if match[1].lower().startswith("q"):
            question = match[2].strip(" *")
        elif question:
            found.append((question, match[2].strip(" *")))
            question = None
    return found


def first_of(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Rows without those that say what an earlier one said."""
    kept: dict[str, dict[str, str]] = {}
    for row in rows:
        kept.setdefault(normalise(row.get("prompt", "") + " " + (row.get("text") or row["response"])), row)
    return list(kept.values())
