"""The overlap guard: leave out prompts about new knowledge, which a clean teacher's corrections would erase.

A prompt touches the documents when it mentions one of their entities. An entity counts as new where the
student gives the documents' sentences about it a higher likelihood than the teacher does: a prompt about a
thing that both know (a country, last year's product) stays. An entity of which only some facts have changed
counts as new too: most of its sentences are as likely to both, so the few that contradict the teacher decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pipelines.corpus.entities import Entities, Term, entities, sample
from pipelines.corpus.sentences import sentences
from pipelines.distillation.prompts import Prompt

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
    new: dict[Term, float] = field(default_factory=dict)

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


def overlap(prompts: Sequence[Prompt], texts: Sequence[str], newness: Newness | None = None) -> Overlap:
    """Split the prompts into those that are kept and those that touch new entities of the documents."""
    found = entities(texts, [prompt.text for prompt in prompts])
    touched = [found.within(prompt.text) for prompt in prompts]
    named = set().union(*touched)
    new = dict.fromkeys(named, float("inf")) if newness is None else _new(named, found, texts, newness)
    kept = []
    dropped = []
    known = 0
    for prompt, terms in zip(prompts, touched, strict=True):
        new_terms = sorted(terms & new.keys())
        known += bool(terms) and not new_terms
        if new_terms:
            dropped.append((prompt, new_terms))
        else:
            kept.append(prompt)
    return Overlap(kept, dropped, len(found), known, new)


def _new(named: set[Term], found: Entities, texts: Sequence[str], newness: Newness) -> dict[Term, float]:
    """Return the entities of which the documents say what the teacher lacks, with the mean gain."""
    witnesses = _witnesses({term: found.weights[term] for term in named}, texts)
    compared = sorted({one for said in witnesses.values() for one in said})
    gains = dict(zip(compared, newness(compared), strict=True)) if compared else {}
    new = {}
    for term, said in witnesses.items():
        gained = [gains[one] for one in said]
        if _teaches(gained):
            new[term] = sum(gained) / len(gained)
    return new


def _teaches(gains: Sequence[float]) -> bool:
    """Return whether sentences with these gains are new about an entity, or contradict the teacher."""
    if not gains:
        return False
    contradicted = sum(gain >= CONTRADICTED for gain in gains)
    changed = contradicted >= max(2, CONTRADICTIONS * len(gains))
    return changed or sum(gains) / len(gains) >= NEW


def _witnesses(wanted: dict[Term, float], texts: Sequence[str]) -> dict[Term, list[Said]]:
    """Return what a few sentences say about each entity, from as many documents."""
    found: dict[Term, list[Said]] = {term: [] for term in wanted}
    all_wanted = Entities(wanted)
    for text in sample(texts):
        missing = {term for term in all_wanted.within(text) if len(found[term]) < WITNESSES}
        for sentence in sentences(text) if missing else ():
            for term in all_wanted.within(sentence) & missing:
                place = Entities({term: 1.0}).first(sentence)
                if place and len(sentence) - place[1] >= SHORTEST:
                    found[term].append((sentence[: place[1]], sentence[place[1] :][:LONGEST]))
                    missing.discard(term)
    return found


def newness(student: ChatModel, teacher: Scorer) -> Newness:
    """Compare student and teacher on the same tokens."""
    from recovery.teachers.likelihood import continuation_logprobs, reader, split_ids

    def gains(said: list[Said]) -> list[float]:
        pairs = [split_ids(student, before, after) for before, after in said]
        after = continuation_logprobs(reader(student), pairs, student.pad_id)
        before = continuation_logprobs(teacher, pairs, student.pad_id)
        lengths = [max(1, len(rest)) for _, rest in pairs]
        return [(new - old) / n for new, old, n in zip(after, before, lengths, strict=True)]

    return gains
