"""Filter written text: supported by its passage, understandable alone, no duplicate, no leaked probe."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from evals.answer_matching import matches, normalise, occurs
from evals.probes import CLOZE, Probe, load_probes
from pipelines.corpus.entities import Entities, words
from pipelines.corpus.segments import compared_words

if TYPE_CHECKING:
    from pipelines.config.sections.eval import EvalConfig

SAME_WORDS, SAME_ORDER = 0.85, 0.7  # shares of common words and word pairs from which questions are the same
SAME_FACT = 0.6  # share of a held-out question's words from which a sentence with its answer tells the fact
T = TypeVar("T")
_LIST_MARKS, _MARKUP = " \t0123456789.)*#-", " \t*"
# Adjacent repetitions match different characters, so that a long line of one character takes linear time.
_LABELLED = re.compile(r"(question|q|answer|a)\d*\**\s*[:：](.*)", re.IGNORECASE)
OPEN_KINDS = ("direct",)  # kinds that may be trained on; the others measure held-out phrasings
LONGEST_ANSWER = 200  # characters


def question_flaw(question: str, answer: str, passage: str, about: Entities) -> str | None:
    """Return why a question with its answer is not usable, or None."""
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
    """Return why a text is not usable, or None: its names and numbers must occur in the passage."""
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
    """Return whether a word is a number, or a capitalised word that does not begin a sentence."""
    return any(map(str.isdigit, word)) or (len(word) > 1 and word[0].isupper() and not opens)


def _all_words(answer: str, passage: str) -> bool:
    said = set(normalise(passage).split())
    return all(word in said for word in normalise(answer).split())


class ProbeLeaks:
    """Detect questions that give away probes: those with held-out phrasings, and all about held-out facts."""

    def __init__(self, probes: Iterable[Probe]) -> None:
        probes = list(probes)
        secret = [p for p in probes if p.kind != CLOZE and p.kind not in OPEN_KINDS]
        self.whole = {text for p in secret if (text := normalise(p.prompt))}
        said = [_words(text) for text in sorted({p.prompt for p in secret})]
        self.questions = [(set(words), _neighbours(words)) for words in said]
        self.facts = [
            ({normalise(answer) for answer in p.answers}, set(_words(p.prompt)))
            for p in probes
            if p.heldout_fact
        ]

    @classmethod
    def of_evaluation(cls, settings: EvalConfig | None) -> ProbeLeaks:
        """Detect what gives away the probes that an evaluation asks."""
        return cls(load_probes(settings.probes) if settings and settings.probes else ())

    def of(self, question: str, answer: str) -> bool:
        """Return whether a question nearly repeats a held-out one, or is about a held-out fact."""
        said = _words(question)
        asked, order = set(said), _neighbours(said)
        if any(
            _share(asked, words) >= SAME_WORDS and _share(order, pairs) >= SAME_ORDER
            for words, pairs in self.questions
        ):
            return True
        return self._tells_a_held_out_fact(asked, answer)

    def _tells_a_held_out_fact(self, asked: set[str], answer: str) -> bool:
        """Return whether a held-out answer is asked for, or told in a sentence about the same."""
        told = asked | set(_words(answer))
        said = normalise(answer)
        for answers, about in self.facts:
            equal = said in answers
            if equal and len(asked & about) >= 2:
                return True
            holds = equal or any(wanted and occurs(wanted, said) for wanted in answers)
            if holds and len(told & about) >= SAME_FACT * len(about):
                return True
        return False

    def within(self, text: str) -> bool:
        """Return whether a text contains a held-out question."""
        said = normalise(text)
        return any(occurs(question, said) for question in self.whole)


def _words(text: str) -> list[str]:
    return compared_words(text, normalise)


def _share(one: set[T], other: set[T]) -> float:
    return len(one & other) / max(1, len(one | other))


def _neighbours(said: Sequence[str]) -> set[tuple[str, str]]:
    return set(pairwise(["", *said]))


def pairs(text: str) -> list[tuple[str, str]]:
    """Return the question and answer of each pair of Q: and A: lines, without list numbers and markup."""
    found = []
    question = None
    for line in text.splitlines():
        match = _LABELLED.match(line.lstrip(_LIST_MARKS))
        if match is None:
            continue
        content = match[2].strip(_MARKUP)
        if match[1].lower().startswith("q"):
            question = content
        elif question and content:
            found.append((question, content))
            question = None
    return found


def first_of(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Drop rows whose content occurred in an earlier row."""
    kept: dict[str, dict[str, str]] = {}
    for row in rows:
        kept.setdefault(normalise(row.get("prompt", "") + " " + (row.get("text") or row["response"])), row)
    return list(kept.values())
