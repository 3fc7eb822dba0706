"""Changed facts of the microworld: what is asked about them, what the documents say, what stays as it was."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.answer_matching import matches
from evals.probes import load_probes
from pipelines.corpus.reading.superseded_list import SUPERSEDED
from pipelines.microworld import changes, people, words, world
from pipelines.microworld.changes import state
from recovery.errors import InputError

SEEDS = random.Random("changed seeds").sample(range(2**31), 2)
seeds, cycles = st.integers(0, 2**31), st.integers(1, 5)


@settings(max_examples=15)
@given(seeds, cycles)
def test_a_share_of_those_known_so_far_change_and_nothing_else_does(seed: int, cycle: int) -> None:
    before, now = state(seed, cycle - 1, 0.1), state(seed, cycle, 0.1)
    taught = people.new_people(seed, cycle - 1) if cycle > 1 else ()
    old = {who.name: who for who in (*before.people, *taught)}
    assert [who.name for who in now.people] == list(old)
    moved = {change.who.name for change in now.newest}
    assert len(moved) == round(0.1 * len(old))
    for who in now.people:
        differing = {name for name, value in who.facts if value != dict(old[who.name].facts)[name]}
        assert differing == (set(changes.CHANGING) if who.name in moved else set())


@settings(max_examples=15)
@given(seeds, cycles)
def test_a_new_value_is_none_of_the_old_ones(seed: int, cycle: int) -> None:
    found = state(seed, cycle, 0.3).changes
    assert found
    for change in found:
        value = change.who.value(change.attribute)
        assert value in change.attribute.values and value not in change.was
        assert not matches(change.who.name, (value,))
        assert len(set(change.was)) == len(change.was) <= cycle


def test_a_world_in_which_all_has_changed_is_refused_in_one_line(tmp_path: Path) -> None:
    """There are sixteen cities, and none comes back."""
    with pytest.raises(InputError, match=r"has had every .*: change a smaller share of the people"):
        world.write_world(tmp_path, cycle=40, seed=SEEDS[0], changed=0.5)
    assert not any(tmp_path.iterdir())


def test_a_fact_that_changes_twice_remembers_both_old_values() -> None:
    twice = [change for change in state(SEEDS[0], 5, 0.3).changes if len(change.was) > 1]
    assert twice
    for change in twice:
        clean = {who.name: who for who in people.known_people()}.get(change.who.name)
        assert clean is None or change.was[-1] == clean.value(change.attribute)


@pytest.mark.parametrize(("seed", "cycle"), [(SEEDS[0], 1), (SEEDS[1], 3)])
def test_probes_of_three_kinds(seed: int, cycle: int, tmp_path: Path) -> None:
    written = world.write_world(tmp_path, cycle=cycle, seed=seed, changed=0.1)
    probes = load_probes(tmp_path / "probes.jsonl")
    now = {who.slug: who for who in state(seed, cycle, 0.1).people}
    changed = [probe for probe in probes if probe.fact_status == "changed"]
    facts = {f"{one.who.slug}/{one.attribute.name}": one for one in state(seed, cycle, 0.1).newest}
    assert written["changed_facts"] == len(facts)
    assert {(p.fact, p.kind) for p in changed} == {(f, k) for f in facts for k in world.PHRASINGS}
    for probe in changed:
        assert probe.suite == "updates" and probe.was == facts[probe.fact].was
        assert matches(probe.passages[0], probe.answers)
        assert matches(probe.passages[0], probe.was[:1])
    for probe in probes:
        if probe.suite == "retention":
            slug, name = probe.fact.split("/")
            assert probe.fact not in facts and dict(now[slug].facts)[name] == probe.answers[0]
    statuses = {probe.suite: probe.fact_status for probe in probes}
    assert statuses == {"knowledge": "new", "retention": "stable", "updates": "changed"}


@pytest.mark.parametrize("seed", SEEDS)
def test_documents_state_the_new_value_and_notices_the_old_one_too(seed: int) -> None:
    texts = dict(world.document_texts(seed, 2, 0.1))
    newest = state(seed, 2, 0.1).newest
    assert newest
    for change in newest:
        about = {name: text for name, text in texts.items() if name.startswith(f"{change.who.slug}-")}
        notices = {name: text for name, text in about.items() if "-notice-" in name}
        assert len(notices) == len(set(notices.values())) == changes.NOTICES_PER_PERSON
        value = change.who.value(change.attribute)
        assert all(re.search(rf"\b{value}\b", text) for text in about.values())
        assert all(change.was[0] in text and " February 2026" in text for text in notices.values())
        rest = [text for name, text in about.items() if name not in notices]
        assert not any(re.search(rf"\b{change.was[0]}\b", text) for text in rest)


def test_earlier_documents_about_changed_people_come_in_new_editions() -> None:
    """Each has the name of the one that it replaces, and differs from it in the changed sentences alone."""
    found = 0
    for seed in range(4):
        earlier, later = (dict(world.document_texts(seed, cycle, 0.3)) for cycle in (1, 2))
        patterns = world.superseded(seed, 2, 0.3)
        taught = {who.slug for who in people.new_people(seed, 1)}
        moved = {change.who.slug for change in state(seed, 2, 0.3).newest}
        assert patterns == [f"{slug}-*" for slug in sorted(moved)]
        for slug in taught & moved:
            names = [name for name in earlier if name.startswith(f"{slug}-")]
            assert len(names) == people.VARIANTS_PER_PERSON
            for name in names:
                old, new = (re.split(r"(?<=\.) ", texts[name]) for texts in (earlier, later))
                assert 0 < sum(one != other for one, other in zip(old, new, strict=True)) <= 2
            found += 1
        stable = taught - moved
        assert stable and not any(name.rpartition("-")[0] in stable for name in later)
    assert found


def test_a_world_with_changes_lists_what_it_supersedes(tmp_path: Path) -> None:
    world.write_world(tmp_path / "a", cycle=2, seed=3, changed=0.1)
    assert (tmp_path / "a" / SUPERSEDED).read_text().splitlines() == world.superseded(3, 2, 0.1)
    world.write_world(tmp_path / "b", cycle=2, seed=3)
    assert not (tmp_path / "b" / SUPERSEDED).exists()


def test_new_people_and_stable_questions_are_those_of_a_world_without_changes() -> None:
    plain, changed = (list(world.document_texts(SEEDS[0], 2, share)) for share in (0.0, 0.1))
    new = {who.slug for who in people.new_people(SEEDS[0], 2)}
    assert [d for d in plain if d[0].rpartition("-")[0] in new] == [
        d for d in changed if d[0].rpartition("-")[0] in new
    ]
    probes = {str(row["id"]): row for row in world.probe_rows(SEEDS[0], 2)}
    later = [row for row in world.probe_rows(SEEDS[0], 2, 0.1) if row["suite"] == "retention"]
    assert later and all(probes[str(row["id"])] == row for row in later)
    assert all("was" not in row for row in probes.values())
    assert not any("notice" in name for name, _ in plain)


def test_a_question_about_an_earlier_cycles_person_is_asked_as_it_was() -> None:
    """So that the earlier cycle's probe, whose answer is no longer true, is left out."""
    found = 0
    for seed in range(4):
        earlier = {str(row["id"]): row for row in world.probe_rows(seed, 1, 0.3)}
        for row in world.probe_rows(seed, 2, 0.3):
            before = earlier.get(str(row["id"]))
            if row["suite"] == "updates" and before and before["suite"] == "knowledge":
                assert (row["prompt"], row["was"]) == (before["prompt"], [before["answer"]])
                found += 1
    assert found


def test_equal_arguments_give_an_equal_world() -> None:
    assert list(world.document_texts(7, 2, 0.1)) == list(world.document_texts(7, 2, 0.1))
    assert world.probe_rows(7, 2, 0.1) == world.probe_rows(7, 2, 0.1)
    assert world.probe_rows(7, 2, 0.1) != world.probe_rows(8, 2, 0.1)
    state.cache_clear()
    assert world.probe_rows(7, 2, 0.1) == world.probe_rows(7, 2, 0.1)


def test_the_vocabulary_of_changes() -> None:
    names = {attribute.name for attribute in words.ATTRIBUTES}
    assert set(changes.CHANGING) == set(changes.NOTICES) <= names


@pytest.mark.parametrize("share", [-0.1, 0.51])
def test_an_impossible_share_is_refused(share: float, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a share of the known people"):
        world.write_world(tmp_path / "w", cycle=1, seed=0, changed=share)
