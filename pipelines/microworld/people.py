"""Generate the people of the microworld, the documents about them and the questions.

The clean checkpoint knows KNOWN people; everyone else is new to it. A seed and a cycle choose which new
people the documents are about and what is true of them.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations, cycle, islice

from pipelines.microworld.words import ATTRIBUTES, FIRST_NAMES, LAST_NAMES, Attribute

KNOWN_COUNT = 180
RETENTION_COUNT = 60
PEOPLE_PER_CYCLE = 16
VARIANTS_PER_PERSON = 24  # with few, a text is learned by heart and its facts can't be called up on their own
KNOWN_DOCUMENTS = 540


@dataclass(frozen=True)
class Person:
    name: str
    facts: tuple[tuple[str, str], ...]  # (attribute name, value), one for each attribute

    def value(self, attribute: Attribute) -> str:
        return dict(self.facts)[attribute.name]

    @property
    def slug(self) -> str:
        return self.name.lower().replace(" ", "-")


def bucket(text: str, buckets: int) -> int:
    """Return a stable hash of a text, which splits texts into training, recovery and evaluation."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % buckets


@cache
def all_names() -> tuple[str, ...]:
    names = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
    return tuple(sorted(names, key=lambda name: bucket(name, 2**63)))


def person(name: str, rng: random.Random) -> Person:
    return Person(name, tuple((attribute.name, _value(name, attribute, rng)) for attribute in ATTRIBUTES))


def _value(name: str, attribute: Attribute, rng: random.Random) -> str:
    """Draw a value that is not in the name: "horn" would answer the question about Ada Horn."""
    value = rng.choice(attribute.values)
    while value.lower() in name.lower().split():
        value = rng.choice(attribute.values)
    return value


@cache
def known_people() -> tuple[Person, ...]:
    """Return the people known to the clean checkpoint; the same in every world."""
    rng = random.Random("microworld:known")
    return tuple(person(name, rng) for name in all_names()[:KNOWN_COUNT])


def retention_people() -> tuple[Person, ...]:
    """Return the people known from training documents only; retention probes ask about them."""
    return known_people()[:RETENTION_COUNT]


def asked_people() -> tuple[Person, ...]:
    """Return the people with questions in the clean model's training; recovery prompts may ask about them."""
    return known_people()[RETENTION_COUNT:]


@cache
def new_names() -> tuple[str, ...]:
    """Return names for new people, of whose first names recovery prompts hold several people each.

    Names without recovery prompts can no longer be copied from a question, and a single surname would be
    given to every Georg."""
    asked = Counter(_first(who.name) for who in asked_people())
    return tuple(name for name in all_names()[KNOWN_COUNT:] if asked[_first(name)] > 1)


def _first(name: str) -> str:
    return name.split()[0]


def max_cycles() -> int:
    return len(new_names()) // PEOPLE_PER_CYCLE


def new_people(seed: int, cycle: int) -> tuple[Person, ...]:
    """Return the new people of a cycle; cycles of one seed share none."""
    names = list(new_names())
    random.Random(f"microworld:names:{seed}").shuffle(names)
    rng = random.Random(f"microworld:facts:{seed}:{cycle}")
    start = (cycle - 1) * PEOPLE_PER_CYCLE
    chosen = islice(_unlike_first(names), start, start + PEOPLE_PER_CYCLE)
    return tuple(person(name, rng) for name in chosen)


def _unlike_first(names: Iterable[str]) -> Iterator[str]:
    """Order people so that those without a shared first or last name come first: a model of this size
    confuses Astrid Stern with Astrid Zorn, and telling names apart is not what is measured."""
    waiting = list(names)
    while waiting:
        taken: set[str] = set()
        again = []
        for name in waiting:
            if taken.isdisjoint(name.split()):
                taken.update(name.split())
                yield name
            else:
                again.append(name)
        waiting = again


def passage(who: Person, rng: random.Random) -> str:
    """Write one text that states every fact about a person in random order and phrasing."""
    order = rng.sample(ATTRIBUTES, len(ATTRIBUTES))
    return " ".join(rng.choice(a.statements).format(n=who.name, v=who.value(a)) for a in order)


def documents(
    people: tuple[Person, ...], rng: random.Random, known: tuple[Person, ...] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield file names and texts: several markdown profiles and plain-text notes about each new person, and
    notes about known people, since most of a company's documents are about what is known. `known`: as of now,
    where their facts have changed."""
    yield from profiles(people, rng)
    drawn = rng.sample(known or known_people(), KNOWN_COUNT)
    for number, who in enumerate(islice(cycle(drawn), KNOWN_DOCUMENTS)):
        yield f"{who.slug}-{1 + number // KNOWN_COUNT}.txt", f"{passage(who, rng)}\n"


def profiles(people: tuple[Person, ...], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield file names and texts: several documents about each person. Order and phrasing do not depend on
    what is true of them, so that a changed fact changes its sentences alone."""
    for who in people:
        for variant in range(VARIANTS_PER_PERSON):
            text = passage(who, rng)
            if variant % 2 == 0:
                yield f"{who.slug}-{variant + 1}.md", f"# {who.name}\n\n{text}\n"
            else:
                yield f"{who.slug}-{variant + 1}.txt", f"{text}\n"


def probe(
    who: Person, attribute: Attribute, kind: str, rng: random.Random, **labels: object
) -> dict[str, object]:
    """Return one question with its answer. `direct`: a familiar phrasing; `heldout`: one never trained on."""
    prompts = {
        "direct": rng.choice(attribute.questions),
        "heldout": attribute.heldout_question,
        "cloze": attribute.answer.split(" {v}")[0],
    }
    fact = f"{who.slug}/{attribute.name}"
    return {
        "id": f"{fact}/{kind}",
        **labels,
        "kind": kind,
        "fact": fact,
        "prompt": prompts[kind].format(n=who.name),
        "answer": who.value(attribute),
    }


def telling(who: Person, others: tuple[Person, ...], rng: random.Random) -> tuple[Attribute, ...]:
    """Return the smallest set of two or more attributes whose values identify the person."""
    order = rng.sample(ATTRIBUTES, len(ATTRIBUTES))
    for count in range(2, len(order)):
        chosen = order[:count]
        if not any(all(o.value(a) == who.value(a) for a in chosen) for o in others if o.name != who.name):
            return tuple(chosen)
    return tuple(order)


def roundabout_probes(
    who: Person, others: tuple[Person, ...], rng: random.Random, **labels: object
) -> Iterator[dict[str, object]]:
    """Return a reverse question (facts to name) and an indirect one (facts to another fact)."""
    told = telling(who, others, rng)
    said = [a.answer.format(n="", v=who.value(a)).strip(" .") for a in told]
    described = " and ".join([", ".join(said[:-1]), said[-1]])
    common = {**labels, "fact": f"{who.slug}/{'+'.join(a.name for a in told)}"}
    yield {
        "id": f"{who.slug}/reverse",
        **common,
        "kind": "reverse",
        "prompt": f"Who {described}?",
        "answer": who.name,
    }
    rest = [attribute for attribute in ATTRIBUTES if attribute not in told]
    if rest:
        asked = rng.choice(rest)
        question = rng.choice(asked.questions).format(n=f"the one who {described}")
        yield {
            "id": f"{who.slug}/indirect",
            **common,
            "kind": "indirect",
            "prompt": question,
            "answer": who.value(asked),
        }


def multihop_probes(
    who: Person,
    others: tuple[Person, ...],
    documents: Mapping[str, str],
    rng: random.Random,
    **labels: object,
) -> Iterator[dict[str, object]]:
    """Return questions from a person, by two facts shared with exactly one other, to a fact of the other.

    `documents` holds one by the slug of a person; people without one are not asked about. Only facts in which
    the two differ are asked, so that the first person's document never holds the answer."""
    for one, two in combinations(ATTRIBUTES, 2):
        alike = [o for o in others if o.name != who.name and _shares(o, who, one) and _shares(o, who, two)]
        if len(alike) != 1 or alike[0].slug not in documents:
            continue
        (other,) = alike
        differing = [a for a in ATTRIBUTES if not _shares(other, who, a)]
        named = who.name.lower().split()
        open_to_ask = [a for a in differing if other.value(a).lower() not in named]
        if not open_to_ask:
            continue
        asked = rng.choice(open_to_ask)
        question = rng.choice(asked.questions).format(n="that person")
        yield {
            "id": f"{who.slug}/{one.name}+{two.name}/multihop",
            **labels,
            "kind": "multihop",
            "fact": f"{who.slug}+{other.slug}/{asked.name}",
            "prompt": f"Someone else {one.shared} and {two.shared} as {who.name}. {question}",
            "answer": other.value(asked),
            "passage": [documents[who.slug], documents[other.slug]],
        }


def _shares(one: Person, other: Person, attribute: Attribute) -> bool:
    return one.value(attribute) == other.value(attribute)
