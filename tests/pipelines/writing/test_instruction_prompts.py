"""Generated instruction prompts: all types, answerable, no duplicates, none of the published set."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner
from lm_eval.tasks.ifeval import utils

from evals import harness, ifeval
from evals.families.family import fingerprint
from pipelines.cli.commands import cli
from pipelines.cli.options import Session
from pipelines.prompts.near_copies import published
from pipelines.writing import instruction_prompts, instruction_types
from pipelines.writing.instruction_prompts import InstructionPrompt, generate
from recovery.errors import InputError, RecoverError

SEEDS = (3, 2024)


@cache
def some(seed: int, count: int = 500) -> tuple[InstructionPrompt, ...]:
    return tuple(generate(count, seed))


def checked(prompt: InstructionPrompt) -> tuple[bool, bool]:
    """(strict, loose) of the reference answer, by lm-eval's own functions."""
    row = prompt.row(1)
    asked = utils.InputExample(1, row["instruction_id_list"], row["prompt"], row["kwargs"])
    with harness.quiet():
        strict = utils.test_instruction_following_strict(asked, prompt.answer)
        loose = utils.test_instruction_following_loose(asked, prompt.answer)
    return strict.follow_all_instructions, loose.follow_all_instructions


@pytest.mark.parametrize("seed", SEEDS)
def test_every_type_occurs_about_equally_often_alone_or_combined(seed: int) -> None:
    prompts = some(seed)
    counts = Counter(name for prompt in prompts for name in prompt.instructions)
    assert set(counts) == set(harness.instruction_types()) and len(counts) == 25
    assert min(counts.values()) >= len(prompts) / 25
    sizes = Counter(len(prompt.instructions) for prompt in prompts)
    assert set(sizes) == {1, 2, 3}
    assert sizes[1] > sizes[2] > sizes[3] > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_every_reference_answer_passes_strict_and_loose(seed: int) -> None:
    wrong = [prompt.text for prompt in some(seed) if checked(prompt) != (True, True)]
    assert wrong == []


@pytest.mark.parametrize("seed", SEEDS)
def test_every_argument_is_one_that_its_checker_uses(seed: int) -> None:
    """None is left out, or of a kind in the place of which lm-eval draws another."""
    for prompt in some(seed)[:200]:
        ifeval.try_checkers(prompt.text, list(prompt.instructions), list(prompt.instructions.values()))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 77])
def test_two_thousand_prompts_have_answers_and_no_duplicates(seed: int) -> None:
    prompts = some(seed, 2000)
    assert len({fingerprint(prompt.text) for prompt in prompts}) == 2000
    assert all(checked(prompt) == (True, True) for prompt in prompts)


@pytest.mark.parametrize(
    ("name", "argument"),
    [("startend:end_checker", "end_phrase"), ("detectable_content:postscript", "postscript_marker")],
)
def test_words_to_write_stand_in_quotation_marks(name: str, argument: str) -> None:
    """Behind them the prompt goes on: where they end would not be plain."""
    assert all(f'"{{{argument}}}"' in phrasing for phrasing in instruction_types.texts()["phrasings"][name])
    asked = [prompt for prompt in some(SEEDS[0]) if name in prompt.instructions]
    assert asked and all(f'"{prompt.instructions[name][argument]}"' in prompt.text for prompt in asked)


def test_an_empty_answer_and_an_unrelated_one_mostly_fail() -> None:
    """The instructions ask for something: a plain sentence does not follow them by chance."""
    passed = 0
    for prompt in some(SEEDS[0])[:200]:
        row = prompt.row(1)
        answer = "This is a plain sentence, without much to it."
        passed += all(harness.check(answer, row["prompt"], row["instruction_id_list"], row["kwargs"]))
    assert passed < 40


def test_prompts_differ_from_each_other_and_between_seeds() -> None:
    words = [{fingerprint(prompt.text) for prompt in some(seed)} for seed in SEEDS]
    assert [len(one) for one in words] == [500, 500]
    assert not words[0] & words[1]


def test_the_same_seed_gives_the_same_prompts_and_a_smaller_count_their_beginning() -> None:
    assert generate(40, SEEDS[0]) == list(some(SEEDS[0])[:40])


def test_excluded_prompts_never_occur_whatever_their_case_and_spacing() -> None:
    first = generate(30, 5)
    shouted = [prompt.text.upper().replace(" ", "  ") for prompt in first[:20]]
    again = generate(30, 5, exclude=shouted)
    assert not {fingerprint(prompt.text) for prompt in again} & {fingerprint(text) for text in shouted}
    assert again[20:] == first[20:]


def test_the_published_prompts_are_known_by_their_words() -> None:
    one = (
        "I am planning a trip to Japan, and I would like thee to write an itinerary for my journey in a "
        "Shakespearean style. You are not allowed to use any commas in your response."
    )
    assert fingerprint(one) in published()
    assert len(published()) == 541
    everything = {fingerprint(prompt.text) for seed in SEEDS for prompt in some(seed)}
    assert not everything & published()


def test_more_prompts_than_can_differ_are_refused_before_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruction_prompts, "_draw", lambda *_: pytest.fail("drawn"))
    with pytest.raises(InputError, match=r"40,001 prompts: at most 40,000 different ones.*ask for fewer"):
        generate(40_001)
    texts, types = instruction_types.texts(), len(harness.instruction_types())
    phrasings = texts["phrasings"][instruction_types.CONSTRAINED]
    different = len(texts["topics"]) * len(texts["questions"]) * len(phrasings)
    assert instruction_prompts.MOST / types < 0.9 * different  # the last of them is found in a few draws


def test_where_no_new_prompt_is_left_no_other_seed_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruction_prompts, "_draw", lambda *_: None)
    with pytest.raises(RecoverError, match=r"ask for fewer, or --avoid fewer$"):
        generate(1)


def test_incompatible_types_are_never_combined() -> None:
    assert not instruction_types.compatible("change_case:english_capital", "change_case:english_lowercase")
    assert not instruction_types.compatible(instruction_types.BULLETS, instruction_types.TWO)
    assert instruction_types.compatible("punctuation:no_comma", "detectable_format:title")
    for prompt in some(SEEDS[0]):
        names = list(prompt.instructions)
        for place, name in enumerate(names):
            assert all(instruction_types.compatible(name, other) for other in names[place + 1 :])


@pytest.mark.parametrize("seed", SEEDS)
def test_an_answer_with_the_words_as_they_were_asked_for_passes(seed: int) -> None:
    """The checkers ignore case and quotation marks, the prompt does not."""
    end, postscript = instruction_types.END, instruction_types.POSTSCRIPT
    asked = [prompt for prompt in some(seed) if {end, postscript} & set(prompt.instructions)]
    assert len(asked) >= 40
    for prompt in asked:
        if end in prompt.instructions:
            assert prompt.answer.endswith(prompt.instructions[end]["end_phrase"])
        if postscript in prompt.instructions:
            assert f"\n{prompt.instructions[postscript]['postscript_marker']} " in prompt.answer


def test_a_written_file_is_read_as_an_evaluation(tmp_path: Path) -> None:
    avoid, out = tmp_path / "avoid.txt", tmp_path / "ifeval.jsonl"
    excluded = generate(1, 9)[0].text
    avoid.write_text(excluded.replace("\n", " ") + "\n", encoding="utf-8")
    words = ["prompts", "ifeval", "--count", "60", "--seed", "9", "--avoid", str(avoid), "--out", str(out)]
    done = CliRunner().invoke(cli, [*words, "--json"], obj=Session(), catch_exceptions=False)
    assert json.loads(done.stdout) == {"file": str(out), "prompts": 60, "types": 25, "seed": 9}
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert fingerprint(excluded) not in {fingerprint(row["prompt"]) for row in rows}
    assert len({row["key"] for row in rows}) == 60
    answers = {prompt.text: prompt.answer for prompt in [*generate(60, 9), *generate(60, 9, [excluded])]}
    score, _ = ifeval.evaluate(lambda chats: [answers.get(chat[-1]["content"], "no") for chat in chats], out)
    assert (score.n, score.value) == (60, 1.0)
