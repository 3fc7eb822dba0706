"""Multihop questions of the microworld: one answer, two documents, and nothing else of a world changed."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest

from evals import jsonl
from evals.answer_matching import matches
from pipelines.microworld import changes, people, world
from pipelines.microworld.people import Person
from pipelines.microworld.words import ATTRIBUTES

NAMES = tuple(attribute.name for attribute in ATTRIBUTES)
WORLDS = [(7, 1, 0.0), (48613, 3, 0.1), (random.Random("multihop").randrange(2**31), 2, 0.3)]


def person(name: str, *values: str) -> Person:
    """City, job, instrument, food and pet of a person."""
    return Person(name, tuple(zip(NAMES, values, strict=True)))


ADA = person("Ada Horn", "Oslo", "baker", "flute", "soup", "cat")
BO = person("Bo Adler", "Oslo", "baker", "harp", "rice", "dog")  # Ada's city and job
CY = person("Cy Baum", "Rome", "baker", "flute", "fish", "cat")  # Ada's job, instrument and pet
DI = person("Di Crane", "Oslo", "miner", "flute", "corn", "goat")  # Ada's city and instrument: no document
ED = person("Ed Dorn", "Oslo", "pilot", "tuba", "soup", "hen")  # Ada's city and food, as Flo
FLO = person("Flo Eck", "Oslo", "judge", "viola", "soup", "pony")
EVERYONE = (ADA, BO, CY, DI, ED, FLO)
DOCUMENTS = {who.slug: f"{who.name}." for who in (ADA, BO, CY, ED, FLO)}


def asked(everyone: tuple[Person, ...] = EVERYONE, seed: int = 0) -> dict[str, dict[str, Any]]:
    rows = people.multihop_probes(ADA, everyone, DOCUMENTS, random.Random(seed), suite="knowledge")
    return {str(row["id"]).split("/")[1]: row for row in rows}


def test_who_shares_two_facts_alone_is_asked_about() -> None:
    """Ed and Flo share the same two, Di has no document: neither pair is asked."""
    about = {pair: str(row["fact"]).split("/")[0] for pair, row in asked().items()}
    assert about == {
        "city+job": "ada-horn+bo-adler",
        "job+instrument": "ada-horn+cy-baum",
        "job+pet": "ada-horn+cy-baum",
        "instrument+pet": "ada-horn+cy-baum",
    }
    (city_and_job,) = (row for pair, row in asked().items() if pair == "city+job")
    assert city_and_job["prompt"].startswith(
        "Someone else lives in the same city and has the same job as Ada "
    )
    assert city_and_job["passage"] == ["Ada Horn.", "Bo Adler."]


def test_only_what_the_two_do_not_share_is_asked() -> None:
    """Cy has Ada's job, instrument and pet: his city and food are left."""
    drawn = [row for seed in range(20) for pair, row in asked(seed=seed).items() if pair == "job+pet"]
    assert {row["answer"] for row in drawn} == {"Rome", "fish"}
    twin = person("Gil Falk", *(value for _, value in ADA.facts))
    assert asked((ADA, twin)) == {}


def test_a_value_that_stands_in_the_name_is_not_asked() -> None:
    gil = person("Gil Falk", "Oslo", "baker", "horn", "soup", "cat")  # the horn alone differs
    people_of_two = {ADA.slug: "Ada Horn.", gil.slug: "Gil Falk."}
    assert not list(people.multihop_probes(ADA, (gil,), people_of_two, random.Random(0)))


@pytest.mark.parametrize(("seed", "cycle", "changed"), WORLDS)
def test_a_worlds_questions_have_one_answer_that_takes_both_documents(
    seed: int, cycle: int, changed: float
) -> None:
    everyone = (*changes.state(seed, cycle, changed).people, *people.new_people(seed, cycle))
    texts = {text for _, text in world.document_texts(seed, cycle, changed)}
    new = {who.name for who in people.new_people(seed, cycle)}
    rows: list[dict[str, Any]] = world.probe_rows(seed, cycle, changed)
    multihop = [row for row in rows if row["kind"] == "multihop"]
    assert len(multihop) > 30
    for row in multihop:
        anchor, other = row["passage"]
        (named,) = (who for who in everyone if who.name in str(row["prompt"]))
        shared = str(row["id"]).split("/")[1].split("+")
        facts = dict(named.facts)
        fits = [
            who
            for who in everyone
            if who != named and all(dict(who.facts)[name] == facts[name] for name in shared)
        ]
        assert [dict(who.facts)[str(row["fact"]).split("/")[1]] for who in fits] == [row["answer"]]
        assert named.name in new and {anchor, other} <= texts
        assert named.name in anchor and fits[0].name in other
        answer = [str(row["answer"])]
        assert matches(other, answer)
        assert not matches(anchor, answer) and not matches(str(row["prompt"]), answer)


@pytest.mark.parametrize(
    ("arguments", "digests"),
    [
        (WORLDS[0], ["6e50aeb0868da437", "06746004affa54ad", "fe59b8c159e86767", "2a988a02c74c28d2"]),
        (WORLDS[1], ["4cfb973228edb139", "4fbf49485741d601", "88fecd5b89a58d42", "ac27669586b984e2"]),
    ],
)
def test_a_seeds_world_is_the_one_that_published_figures_were_measured_on(
    arguments: tuple[int, int, float], digests: list[str]
) -> None:
    """Multihop questions came later: they are drawn by themselves and stand at the end."""
    seed, cycle, changed = arguments
    rows = world.probe_rows(seed, cycle, changed)
    kinds = [row["kind"] == "multihop" for row in rows]
    assert kinds == sorted(kinds) and any(kinds)
    documents = world.document_texts(seed, cycle, changed)
    parts: list[list[dict[str, object]]] = [
        [{"name": name, "text": text} for name, text in documents],
        [row for row in rows if row["kind"] != "multihop"],
        world.prompt_rows(seed, cycle),
        world.ifeval_rows(seed, cycle),
    ]
    assert [digest(part) for part in parts] == digests


def digest(rows: list[dict[str, object]]) -> str:
    return hashlib.blake2b(jsonl.lines(rows).encode(), digest_size=8).hexdigest()
