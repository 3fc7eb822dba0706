"""The overlap guard: leave out prompts about new knowledge, which a clean teacher's corrections would erase.

A prompt touches the documents when it mentions one of their entities, or asks about one of their passages in
everyday words: these words then stand for an entity. An entity counts as new where the
student gives the documents' sentences about it a higher likelihood than the teacher does: a prompt about a
thing that both know (a country, last year's product) stays. An entity of which only some facts have changed
counts as new too: most of its sentences are as likely to both, so the few that contradict the teacher decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipelines.corpus.entities import Entities, Term, entities, sample
from pipelines.corpus.sentences import sentences
from pipelines.knowledge.asked_passages import asked
from pipelines.prompts.prompt_sources import Prompt

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel
    from recovery.teachers.likelihood import Scorer

Said = tuple[str, str]  # a sentence up to an entity's name, and what it says of it
Newness = Callable[[list[Said]], list[float]]
"""Returns the student's log-likelihood minus the teacher's, in nats a token, of what is said."""

NEW = 0.5  # nats a token; in eleven midtrained microworlds old things end at 0.3, new ones begin at 0.75
CONTRADICTED = 1.0  # nats a token of one sentence: in a midtrained microworld unchanged facts end at 0.3
CONTRADICTIONS = 1 / 6  # of the sentences, and at least two
WITNESSES = 12  # sentences compared for an entity: of five, most may say what the teacher guesses
SHORTEST, LONGEST = 4, 300  # characters of what is said
EXAMPLES = 5


@dataclass(frozen=True)
class Overlap:
    """The prompts that are kept, and those that mention new entities."""

    kept: list[Prompt]
    dropped: list[tuple[Prompt, list[Term]]]
    entities: int
    known: int = 0  # prompts that touch only what the teacher knows too: kept
    named: int = 0  # entities that prompts touch
    unseen: int = 0  # of these, measured on sentences held out of training

    def weighted(self, prompts: Sequence[Prompt], weight: float) -> list[Prompt]:
        """Return all prompts in their order; those that touch new entities get this weight."""
        touching = {id(prompt) for prompt, _ in self.dropped}
        return [replace(prompt, weight=weight) if id(prompt) in touching else prompt for prompt in prompts]

    def summary(self) -> dict[str, Any]:
        """Return counts and a few examples for the run's result."""
        examples = [
            {"prompt": prompt.text, "touches": [" ".join(term) for term in touched]}
            for prompt, touched in self.dropped[:EXAMPLES]
        ]
        return {
            "prompts": len(self.kept) + len(self.dropped),
            "touch": len(self.dropped) + self.known,
            "touch_new": len(self.dropped),
            "entities": self.entities,
            "examples": examples,
        }


def overlap(
    prompts: Sequence[Prompt],
    texts: Sequence[str],
    newness: Newness | None = None,
    held_out: Mapping[Term, Sequence[str]] | None = None,
) -> Overlap:
    """Split the prompts into those that are kept and those that touch new entities of the documents.

    An entity is compared by sentences held out of training, if there are some about it, else by others.
    """
    found, touched, passages = _touched([prompt.text for prompt in prompts], texts)
    named = set().union(*touched)
    unseen = {term: _said_of(term, said) for term, said in (held_out or {}).items() if term in named}
    if newness is None:
        new = named
    else:
        new = _new(witnesses(named - unseen.keys(), found, texts, passages) | unseen, newness)
    judged = [(prompt, sorted(terms & new)) for prompt, terms in zip(prompts, touched, strict=True)]
    kept = [prompt for prompt, new_terms in judged if not new_terms]
    dropped = [(prompt, new_terms) for prompt, new_terms in judged if new_terms]
    known = sum(bool(terms) and terms.isdisjoint(new) for terms in touched)
    return Overlap(kept, dropped, len(found), known, len(named), len(unseen))


def _touched(
    prompts: Sequence[str], texts: Sequence[str]
) -> tuple[Entities, list[set[Term]], dict[Term, set[str]]]:
    """Return the entities, what each prompt touches, and the passages asked about in everyday words."""
    found = entities(texts, prompts)
    touched = [found.within(prompt) for prompt in prompts]
    passages: dict[Term, set[str]] = {}
    for terms, about in zip(touched, asked(prompts, texts), strict=True):
        if about and not terms:  # a thing that is named decides
            terms.add(about.words)
            passages.setdefault(about.words, set()).add(about.passage)
    return found, touched, passages


def _new(witnesses: dict[Term, list[Said]], newness: Newness) -> set[Term]:
    """Return the entities of which the documents say what the teacher lacks."""
    compared = sorted({one for said in witnesses.values() for one in said})
    gains = dict(zip(compared, newness(compared), strict=True)) if compared else {}
    return {term for term, said in witnesses.items() if teaches([gains[one] for one in said])}


def teaches(gains: Sequence[float]) -> bool:
    """Return whether sentences with these gains are new about an entity, or contradict the teacher."""
    if not gains:
        return False
    contradicted = sum(gain >= CONTRADICTED for gain in gains)
    changed = contradicted >= max(2, CONTRADICTIONS * len(gains))
    return changed or sum(gains) / len(gains) >= NEW


def witnesses(
    named: set[Term], known: Entities, texts: Sequence[str], passages: dict[Term, set[str]]
) -> dict[Term, list[Said]]:
    """Return what passages say that are asked about, and what a few sentences say about each entity."""
    found: dict[Term, list[Said]] = {term: [] for term in named}
    for term in passages.keys() & named:
        found[term] = _said_by(passages[term])[:WITNESSES]
    wanted = Entities({term: known.weights[term] for term in named if term in known.weights})
    for text in sample(texts):
        missing = {term for term in wanted.within(text) if len(found[term]) < WITNESSES}
        if missing:
            for term, said in _first_said(wanted, missing, text):
                found[term].append(said)
    return found


def _said_by(passages: set[str]) -> list[Said]:
    """Return the passages' sentences, each parted after its first word."""
    said = [sentence.partition(" ") for text in sorted(passages) for sentence in sentences(text)]
    return [(first, f" {rest}"[:LONGEST]) for first, _, rest in said if len(rest) >= SHORTEST]


def _first_said(wanted: Entities, missing: set[Term], text: str) -> Iterator[tuple[Term, Said]]:
    """Yield the first sentence of a text that says something of a missing entity, for each."""
    for sentence in sentences(text):
        for term in wanted.within(sentence) & missing:
            if said := said_about(term, sentence):
                missing.discard(term)
                yield term, said


def said_about(term: Term, sentence: str) -> Said | None:
    """Return a sentence, parted behind its first mention of an entity, if it says something there."""
    place = Entities({term: 1.0}).first(sentence)
    if place is None or len(sentence) - place[1] < SHORTEST:
        return None
    return sentence[: place[1]], sentence[place[1] :][:LONGEST]


def _said_of(term: Term, about: Sequence[str]) -> list[Said]:
    return [said for sentence in about if (said := said_about(term, sentence))]


def newness(student: ChatModel, teacher: Scorer) -> Newness:
    """Compare student and teacher on the same tokens."""
    from recovery.teachers.likelihood import continuation_logprobs, gap_ids, reader

    def gains(said: list[Said]) -> list[float]:
        pairs = [gap_ids(student, before, after) for before, after in said]
        after = continuation_logprobs(reader(student), pairs, student.pad_id)
        before = continuation_logprobs(teacher, pairs, student.pad_id)
        lengths = [max(1, len(rest)) for _, rest in pairs]
        return [(new - old) / n for new, old, n in zip(after, before, lengths, strict=True)]

    return gains
