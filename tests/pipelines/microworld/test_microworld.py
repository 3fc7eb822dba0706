"""The generated world: the same for the same seed, nothing shared that must not be, every answer right."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals import harness
from evals.answer_matching import matches
from evals.probes import APART, load_probes
from pipelines.microworld import build, instructions, people, words, world
from recovery.errors import InputError

LAST = people.max_cycles()
SEEDS = random.Random("any seed").sample(range(2**31), 3)  # results must hold for seeds that nobody tried
seeds = st.integers(0, 2**31)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def written(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def facts_of(persons: tuple[people.Person, ...]) -> dict[str, str]:
    return {f"{who.slug}/{name}": value for who in persons for name, value in who.facts}


Made = tuple[Path, int, int, dict[str, Any]]


@pytest.fixture(scope="module", params=[(SEEDS[0], 1), (SEEDS[1], 4)], ids=str)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A written world with what it was made from."""
    seed, cycle = request.param
    directory = tmp_path_factory.mktemp("world")
    counts = world.write_world(directory, cycle=cycle, seed=seed)
    return directory, seed, cycle, counts


def test_the_same_arguments_write_the_same_files_and_others_do_not(made: Made, tmp_path: Path) -> None:
    directory, seed, cycle, counts = made
    again = world.write_world(tmp_path / "again", cycle=cycle, seed=seed)
    assert written(tmp_path / "again") == written(directory)
    assert {**again, "directory": None} == {**counts, "directory": None}
    assert world.probe_rows(seed + 1, cycle) != world.probe_rows(seed, cycle)
    assert list(world.document_texts(seed, cycle + 1)) != list(world.document_texts(seed, cycle))


def test_counts_decide_a_three_point_margin(made: Made) -> None:
    directory, _, _, counts = made
    evaluation = rows(directory / "ifeval.jsonl")
    assert len(evaluation) == counts["ifeval.jsonl"] >= 700
    assert len({row["prompt"] for row in evaluation}) == len(evaluation)
    assert counts["docs"] == len(list((directory / "docs").iterdir()))
    assert {p.suffix for p in (directory / "docs").iterdir()} == {".md", ".txt"}


@settings(max_examples=15)
@given(seeds, st.integers(1, LAST), st.integers(1, LAST))
def test_people_of_two_cycles_of_a_seed_are_others_and_none_is_known(seed: int, one: int, other: int) -> None:
    first = {who.name for who in people.new_people(seed, one)}
    second = {who.name for who in people.new_people(seed, other)}
    known = {who.name for who in people.known_people()}
    assert len(first) == people.PEOPLE_PER_CYCLE
    assert first == second if one == other else not first & second
    assert not (first | second) & known


@settings(max_examples=25)
@given(seeds, st.integers(1, LAST))
def test_first_names_of_new_people_occur_in_recovery_prompts(seed: int, cycle: int) -> None:
    asked = {who.name.split()[0] for who in people.asked_people()}
    assert {who.name.split()[0] for who in people.new_people(seed, cycle)} <= asked


def test_no_name_runs_out_before_the_last_cycle() -> None:
    assert len(people.new_people(SEEDS[0], LAST)) == people.PEOPLE_PER_CYCLE


def test_known_people_are_the_same_in_every_world_and_split_in_two() -> None:
    retention, asked = set(people.retention_people()), set(people.asked_people())
    assert len(retention) == people.RETENTION_COUNT
    assert not retention & asked
    assert retention | asked == set(people.known_people())
    assert len({who.name for who in people.known_people()}) == people.KNOWN_COUNT


def test_documents_hold_every_fact_of_every_new_person(made: Made) -> None:
    directory, seed, cycle, _ = made
    texts = [path.read_text(encoding="utf-8") for path in sorted((directory / "docs").iterdir())]
    for who in people.new_people(seed, cycle):
        about = [text for text in texts if who.name in text]
        assert len(about) == people.VARIANTS_PER_PERSON
        assert len(set(about)) == len(about)
        for text in about:
            assert all(re.search(rf"\b{who.value(attribute)}\b", text) for attribute in words.ATTRIBUTES)


def test_probes_ask_every_fact_three_ways_and_answer_it(made: Made) -> None:
    directory, seed, cycle, _ = made
    written = load_probes(directory / "probes.jsonl")
    new, old = facts_of(people.new_people(seed, cycle)), facts_of(people.retention_people())
    facts = new | old
    probes = [probe for probe in written if probe.kind not in APART]
    assert all(probe.answers == (facts[probe.fact],) for probe in probes)
    asked = {(probe.suite, probe.kind, probe.fact) for probe in probes}
    assert {fact for suite, _, fact in asked if suite == "knowledge"} == set(new)
    assert {fact for suite, _, fact in asked if suite == "retention"} == set(old)
    assert {kind for suite, kind, _ in asked if suite == "knowledge"} == {"direct", "heldout", "cloze"}
    assert {kind for suite, kind, _ in asked if suite == "retention"} == {"direct", "heldout"}


def test_no_name_gives_an_answer_away() -> None:
    everyone = [who for seed in range(60) for who in people.new_people(seed, 1)] + list(people.known_people())
    assert not any(matches(who.name, (value,)) for who in everyone for _, value in who.facts)


def test_a_heldout_question_is_asked_nowhere_else(made: Made) -> None:
    directory, *_ = made
    heldout = {attribute.heldout_question for attribute in words.ATTRIBUTES}
    assert not heldout & {question for attribute in words.ATTRIBUTES for question in attribute.questions}
    asked = {row["prompt"] for row in rows(directory / "prompts.jsonl")}
    trained = drawn_chats(500)
    held_out = {one.prompt for one in load_probes(directory / "probes.jsonl") if one.kind == "heldout"}
    assert held_out and trained and not held_out & (asked | trained)


def test_recovery_prompts_never_name_a_new_person(made: Made) -> None:
    directory, seed, cycle, _ = made
    prompts = [row["prompt"] for row in rows(directory / "prompts.jsonl")]
    assert len(set(prompts)) == len(prompts)
    names = {who.name for turn in {1, cycle, LAST} for who in people.new_people(seed, turn)}
    names |= {who.name for who in people.retention_people()}
    assert not any(name in prompt for name in names for prompt in prompts)
    questions = [row for row in rows(directory / "prompts.jsonl") if row["kind"] == "question"]
    assert len(questions) == round(world.KNOWN_QUESTION_SHARE * len(prompts))


def test_training_recovery_and_evaluation_never_share_a_prompt(made: Made) -> None:
    directory, *_ = made
    recovery = [row["prompt"] for row in rows(directory / "prompts.jsonl") if row["kind"] == "instruction"]
    evaluation = [row["prompt"] for row in rows(directory / "ifeval.jsonl")]
    assert {world.part_of(prompt) for prompt in recovery} == {"recovery"}
    assert {world.part_of(prompt) for prompt in evaluation} == {"evaluation"}
    trained = drawn_chats(2000)
    assert not trained & {*recovery, *evaluation}


def drawn_chats(count: int) -> set[str]:
    """Prompts that the clean checkpoint is trained on."""
    rng = random.Random(SEEDS[2])
    drawn = (build.draw_text(rng) for _ in range(count))
    return {prompt for prompt, answer in drawn if answer is not None}


def test_the_clean_checkpoint_never_reads_of_new_people_or_is_asked_about_those_set_apart() -> None:
    rng = random.Random(SEEDS[0])
    drawn = [build.draw_text(rng) for _ in range(3000)]
    read = "\n".join(f"{prompt}\n{answer or ''}" for prompt, answer in drawn)
    asked = "\n".join(prompt for prompt, answer in drawn if answer is not None)
    assert not any(who.name in read for seed in SEEDS for who in people.new_people(seed, 1))
    assert not any(who.name in asked for who in people.retention_people())
    assert any(who.name in read for who in people.retention_people())


def test_instruction_types_are_ifevals_own_alone_and_in_pairs(made: Made) -> None:
    directory, *_ = made
    asked = [tuple(row["instruction_id_list"]) for row in rows(directory / "ifeval.jsonl")]
    kinds = {kind for ids in asked for kind in ids}
    assert len(kinds) >= 12
    assert kinds <= set(harness.instruction_types())
    assert {len(ids) for ids in asked} == {1, 2}
    assert {frozenset(i.id for i in pair) for pair in instructions.PAIRS}.isdisjoint(instructions.CLASHES)
    counts = {kind: sum(kind in ids for ids in asked) for kind in kinds}
    assert min(counts.values()) >= 10


@pytest.mark.parametrize("seed", SEEDS)
def test_every_reference_answer_passes_lm_evals_own_checkers(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    tasks = world.distinct_tasks("evaluation", [None] * 250, rng)
    tasks += world.distinct_tasks("training", [None] * 250, rng)
    with (tmp_path / "ifeval.jsonl").open("w", encoding="utf-8") as file:
        for task in tasks:
            row = {"instruction_id_list": task.instruction_ids, "kwargs": task.kwargs}
            file.write(json.dumps({"prompt": task.prompt, **row}) + "\n")
    answers = {task.prompt: task.answer for task in tasks}
    found = harness.run_ifeval(
        lambda chats: [answers[messages[-1]["content"]] for messages in chats], tmp_path / "ifeval.jsonl"
    )
    wrong = [(one.prompt, one.response) for one in found.checked if not all(one.strict)]
    assert not wrong
    assert len(found.checked) == len(tasks)


def test_another_answer_fails_most_checkers(made: Made) -> None:
    """The checks have teeth: a plain text obeys next to nothing."""
    directory, *_ = made
    found = harness.run_ifeval(lambda chats: ["I say, it is nice."] * len(chats), directory / "ifeval.jsonl")
    assert sum(all(one.strict) for one in found.checked) < 0.05 * len(found.checked)


def test_the_written_references_are_the_tasks_own_answers(made: Made) -> None:
    directory, seed, cycle, _ = made
    rng = random.Random(f"microworld:ifeval:{seed}:{cycle}")
    (task,) = world.distinct_tasks("evaluation", [None], rng)
    row = rows(directory / "ifeval.jsonl")[0]
    assert (row["prompt"], row["reference"]) == (task.prompt, task.answer)


@pytest.mark.parametrize("cycle", [0, -1, LAST + 1])
def test_a_cycle_without_names_is_refused(cycle: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"outside 1\.\.{LAST}: "):
        world.write_world(tmp_path / "w", cycle=cycle, seed=0)
    assert not (tmp_path / "w").exists()


def test_a_world_is_not_written_over_another(made: Made) -> None:
    directory, seed, cycle, _ = made
    with pytest.raises(InputError, match="is not empty"):
        world.write_world(directory, cycle=cycle, seed=seed)


def test_questions_of_the_user_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "probes.jsonl").write_text("mine")
    with pytest.raises(InputError, match=r"probes\.jsonl is there already: choose a new directory"):
        world.write_world(tmp_path, cycle=1, seed=0)
    assert {path.name for path in tmp_path.iterdir()} == {"corpus", "probes.jsonl"}
    assert (tmp_path / "probes.jsonl").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Exception, match="cannot write there") as refused:
        world.write_world(tmp_path / "file" / "world", cycle=1, seed=0)
    assert "\n" not in str(refused.value)
