"""Change what is true of people who are known already: in every cycle a share of them move and change jobs.

They are drawn from the people whom the clean checkpoint knows and from those of earlier cycles. Dated notices
say what changed; every other document states what is true now.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from pipelines.microworld import people
from pipelines.microworld.people import Person
from pipelines.microworld.words import ATTRIBUTES, MONTHS, Attribute
from recovery.errors import InputError

CHANGING = ("city", "job")
NOTICES_PER_PERSON = 12
FIRST_YEAR = 2026
NOTICES = {
    "city": (
        "On {d}, {n} moved from {w} to {v}.",
        "As of {d}, {n} no longer lives in {w} but in {v}.",
        "Since {d}, the home of {n} is in {v} and not in {w}.",
    ),
    "job": (
        "On {d}, {n} stopped working as a {w} and became a {v}.",
        "As of {d}, {n} no longer works as a {w} but as a {v}.",
        "Since {d}, the job of {n} is that of a {v} and not of a {w}.",
    ),
}


@dataclass(frozen=True)
class Change:
    """One fact that changed: the person as of now, and every earlier value, the newest first."""

    who: Person
    attribute: Attribute
    was: tuple[str, ...]


@dataclass(frozen=True)
class State:
    """Everyone known before a cycle's new people, as of that cycle, and all changes until then."""

    people: tuple[Person, ...]
    changes: tuple[Change, ...]  # the newest of each fact
    newest: tuple[Change, ...]  # those of this cycle


@cache
def state(seed: int, cycle: int, share: float) -> State:
    """Return the people and the changes as of a cycle; equal arguments give equal states."""
    if not share or cycle < 1:
        earlier = (who for number in range(1, cycle) for who in people.new_people(seed, number))
        return State((*people.known_people(), *earlier), (), ())
    before = state(seed, cycle - 1, share)
    taught = people.new_people(seed, cycle - 1) if cycle > 1 else ()
    pool = (*before.people, *taught)
    rng = random.Random(f"microworld:changes:{seed}:{cycle}")
    chosen = {who.name for who in rng.sample(pool, round(share * len(pool)))}
    past = {(one.who.name, one.attribute.name): one.was for one in before.changes}
    now = tuple(_moved(who, past, rng) if who.name in chosen else who for who in pool)
    newest = tuple(change for who, old in zip(now, pool, strict=True) for change in _between(old, who, past))
    replaced = {(one.who.name, one.attribute.name) for one in newest}
    kept = (one for one in before.changes if (one.who.name, one.attribute.name) not in replaced)
    return State(now, (*kept, *newest), newest)


Past = dict[tuple[str, str], tuple[str, ...]]  # (person, attribute) -> earlier values


def _moved(who: Person, past: Past, rng: random.Random) -> Person:
    """Give a person another city and another job, none that they had before."""
    facts = dict(who.facts)
    for attribute in ATTRIBUTES:
        if attribute.name in CHANGING:
            had = {facts[attribute.name], *past.get((who.name, attribute.name), ())}
            free = [v for v in attribute.values if v not in had and v.lower() not in who.name.lower().split()]
            if not free:
                raise InputError(
                    f"by this cycle {who.name} has had every {attribute.name}: change a smaller share of the "
                    "people, or write an earlier cycle"
                )
            facts[attribute.name] = rng.choice(free)
    return replace(who, facts=tuple(facts.items()))


def _between(old: Person, now: Person, past: Past) -> Iterator[Change]:
    for attribute in ATTRIBUTES:
        value = old.value(attribute)
        if now.value(attribute) != value:
            yield Change(now, attribute, (value, *past.get((now.name, attribute.name), ())))


def notices(changes: tuple[Change, ...], cycle: int, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Return (file name, text) pairs: several dated notices about each person whose facts changed."""
    of_person: dict[Person, list[Change]] = {}
    for change in changes:
        of_person.setdefault(change.who, []).append(change)
    for who, changed in of_person.items():
        for number in range(1, NOTICES_PER_PERSON + 1):
            day = _day(cycle, rng)
            text = " ".join(_said(change, day, rng) for change in rng.sample(changed, len(changed)))
            if number % 2:
                yield f"{who.slug}-notice-{number}.md", f"# Notice of {day}\n\n{text}\n"
            else:
                yield f"{who.slug}-notice-{number}.txt", f"{text}\n"


def _day(cycle: int, rng: random.Random) -> str:
    years, month = divmod(cycle - 1, len(MONTHS))
    return f"{rng.randint(1, 28)} {MONTHS[month]} {FIRST_YEAR + years}"


def _said(change: Change, day: str, rng: random.Random) -> str:
    """State a change with its date, and what is true now in two of the documents' phrasings."""
    name = change.who.name
    value = change.who.value(change.attribute)
    dated = rng.choice(NOTICES[change.attribute.name]).format(d=day, n=name, v=value, w=change.was[0])
    now = [one.format(n=name, v=value) for one in rng.sample(change.attribute.statements, 2)]
    return " ".join([dated, *now])
