"""How much a suite asks: what it says beforehand is what a model is then asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evals.scores import Score
from pipelines.config.jobs import EvalJob
from pipelines.config.sections.eval import EvalConfig
from pipelines.evaluation.suites import Suite, facts_by_axis, independent_by_axis, suites_of
from tests.support.small_cycles import ASKED, lines

KINDS = ("direct", "cloze", "reverse", "reworded", "multihop")


@dataclass
class Counted:
    """A model that says the same to everything, and counts what it was asked."""

    samples: int = 1
    asked: int = 0
    scores: list[Score] = field(default_factory=list)

    def _answer(self, prompts: list[Any]) -> list[str]:
        self.asked += len(prompts)
        return ["Oslo"] * len(prompts)

    def answer(self, suite: Suite) -> None:
        answers = SimpleNamespace(
            chats=lambda _: self._answer if self.samples == 1 else [self._answer] * self.samples,
            greedy=lambda _: self._answer,
            continuation=lambda _: self._answer,
        )
        self.scores += [score for score in suite.score(answers) if isinstance(score, Score)]  # type: ignore[arg-type]


def probes(path: Path, **number: int) -> str:
    """Write so many questions of each kind, each with its passage."""
    rows = [
        {
            "id": f"{kind}{n}",
            "kind": kind,
            "prompt": f"{kind} {n}?",
            "answer": "Oslo",
            "passage": f"{n}: Oslo.",
        }
        for kind in KINDS
        for n in range(number.get(kind, 0))
    ]
    return str(lines(path, rows))


def job(suites: tuple[str, ...] = (), earlier: dict[int, str] | None = None, **settings: Any) -> EvalJob:
    return EvalJob(checkpoint="base", suites=suites, settings=EvalConfig(**settings), earlier=earlier or {})


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("limit", [None, 7])
@pytest.mark.parametrize("open_book", [False, True])
@pytest.mark.parametrize("retrieves", [False, True])
def test_a_suite_of_probes_says_how_many_answers_it_takes(
    tmp_path: Path, samples: int, limit: int | None, open_book: bool, retrieves: bool
) -> None:
    path = probes(tmp_path / "probes.jsonl", direct=10, cloze=9, reverse=5, reworded=8, multihop=3)
    asked = job(("knowledge",), probes=path, samples=samples, limit=limit, open_book=open_book)
    if retrieves:
        found = lines(
            tmp_path / "found.jsonl", [{"id": f"direct{n}", "passages": ["Oslo"]} for n in range(6)]
        )
        asked = asked.model_copy(update={"passages": str(found)})
    (suite,) = suites_of(asked)
    model = Counted(samples)
    model.answer(suite)
    assert suite.answers == model.asked


@pytest.mark.parametrize(
    ("cycles", "number", "each"),
    [
        (2, {"direct": 30}, {"lenient": 10}),
        (2, {"direct": 30, "cloze": 30}, {"lenient": 5, "cloze": 5}),
        (2, {"direct": 30, "cloze": 2}, {"lenient": 8, "cloze": 2}),
        (2, {"direct": 3, "cloze": 30}, {"lenient": 3, "cloze": 7}),
        (2, {"direct": 30, "cloze": 30, "reverse": 30}, {"lenient": 5, "cloze": 5}),
        (20, {"direct": 30, "cloze": 30}, {"lenient": 1}),
        (23, {"direct": 30}, {"lenient": 1}),
    ],
)
def test_earlier_cycles_are_asked_at_most_so_many_questions_in_all_ways_together(
    tmp_path: Path, cycles: int, number: dict[str, int], each: dict[str, int]
) -> None:
    path = probes(tmp_path / "probes.jsonl", **number)
    earlier = dict.fromkeys(range(1, cycles + 1), path)
    suites = suites_of(job(earlier=earlier, earlier_questions=20, samples=1))
    model = Counted()
    for suite in suites:
        model.answer(suite)
    newest = range(max(1, cycles - 19), cycles + 1)
    assert [suite.name for suite in suites] == [f"knowledge:{cycle}" for cycle in newest]
    assert [(score.metric, score.n) for score in model.scores] == [*each.items()] * len(suites)
    assert model.asked == sum(suite.answers for suite in suites) <= 20
    assert {suite.independent for suite in suites} == {each["lenient"]}


def test_sampled_answers_to_earlier_questions_are_counted(tmp_path: Path) -> None:
    path = probes(tmp_path / "probes.jsonl", direct=30, cloze=30)
    (suite,) = suites_of(job(earlier={1: path}, earlier_questions=20, samples=4))
    model = Counted(samples=4)
    model.answer(suite)
    assert model.asked == suite.answers == 4 * 10 + 10


def test_gaps_of_one_sentence_are_several_questions_about_one_fact(tmp_path: Path) -> None:
    """Two sentences, three gaps of each, two phrasings of each gap."""
    rows = [
        {"id": f"q{n}", "prompt": f"{n}?", "answer": f"word{n // 2}", "fact": f"sentence{n // 6}"}
        for n in range(12)
    ]
    asked = suites_of(job(("knowledge",), probes=str(lines(tmp_path / "probes.jsonl", rows))))
    assert (independent_by_axis(asked), facts_by_axis(asked)) == ({"knowledge": 6}, {"knowledge": 2})


@pytest.mark.parametrize(("limit", "asked", "independent"), [(None, 8, 4), (3, 3, 3)])
def test_equal_prompts_are_one_question(
    tmp_path: Path, limit: int | None, asked: int, independent: int
) -> None:
    path = lines(tmp_path / "ifeval.jsonl", [{"prompt": f"Line {n}.", **ASKED} for n in range(4)] * 2)
    (suite,) = suites_of(job(("ifeval",), ifeval=str(path), limit=limit))
    assert (suite.answers, suite.independent) == (asked, independent)


@pytest.mark.parametrize(
    ("name", "independent"),
    [("refusals", lambda keys, acts: len(acts) < len(keys)), ("json", lambda keys, acts: keys == acts)],
)
def test_questions_that_stand_or_fall_together_are_one(
    name: str, independent: Callable[[set[str], set[str]], bool]
) -> None:
    (suite,) = suites_of(job((name,), behaviours_items=200))
    keys = {question.key for question in suite.questions}
    acts = {question.item("", "").cluster for question in suite.questions}
    assert independent(keys, acts)
    assert (suite.independent, suite.answers) == (len(acts), len(keys))
