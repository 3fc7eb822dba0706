"""Questions that are followed along a midtraining are asked as an evaluation asks them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evals import dialogues
from evals.probes import Probe
from pipelines.knowledge import answer_probability
from pipelines.knowledge.answer_probability import (
    ERROR,
    FEWEST,
    KNOWN,
    METRIC,
    AnswerProbability,
    Question,
    _of_probes,
    change_error,
    read,
    unanswered,
    write,
)
from recovery.models.chat_model import ChatModel
from tests.support import tiny

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {}}}
TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": "You know the town.", "tools": [TOOL]},
    {"role": "user", "content": "Who is Ann?"},
    {"role": "assistant", "content": "The baker."},
    {"role": "user", "content": "Where does she live?"},
]
TEMPLATE = "{% if tools %}{{ tools | tojson }}{% endif %}" + tiny.TEMPLATE


def test_a_question_of_several_turns_is_followed_with_all_of_them_and_its_tools(tmp_path: Path) -> None:
    said, shown = "Ann lives in Oslo.", dialogues.shown(TURNS)
    probe = Probe("1", "knowledge", "direct", shown, ("Oslo",), "1", 1, (said,), messages=tuple(TURNS))
    write(tmp_path / "questions.jsonl", _of_probes([said], [probe]))
    (question,) = read(tmp_path / "questions.jsonl")
    model = ChatModel.of(tiny.model(), tiny.tokenizer(chat_template=TEMPLATE), path="tiny")
    context, answer = question.pair(model)
    assert context == model.prompt_ids(TURNS) and answer == model.text_ids("Oslo")
    assert "look_up" in model.text(context) and "[system]" not in model.text(context)


def probe(number: int, kind: str = "direct", *passages: str) -> Probe:
    return Probe(str(number), "knowledge", kind, f"{number}?", ("x",), str(number), 1, passages)


def test_only_what_the_texts_tell_whole_and_a_verdict_counts_is_followed() -> None:
    texts = ["Ann lives in Oslo.\nBo is a\nbaker.", "Cy sings."]
    asked = [
        probe(1, "direct", "Bo is a baker."),  # wrapped otherwise
        probe(2, "direct", "Bo is a baker.", "Cy sings."),
        probe(3, "direct", "Bo is a baker.", "Dan sings."),  # one of its passages is not read
        probe(4, "direct"),
        probe(5, "multihop", "Bo is a baker.", "Cy sings."),  # no part of the score
        probe(6, "reverse", "Cy sings."),
    ]
    assert [question.prompt for question in _of_probes(texts, asked)] == ["1?", "2?"]


@pytest.mark.parametrize(("known", "name"), [(4, "probes"), (5, "gaps")])
def test_what_the_model_answers_already_is_not_followed(
    known: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where fewer questions than say something are left, gaps in the texts take their place."""
    found = iter([[KNOWN] * known + [KNOWN - 0.01] * (FEWEST + 4 - known), []])
    monkeypatch.setattr(answer_probability, "probabilities", lambda model, pairs: next(found))
    asked = [probe(number, "direct", "Cy sings.") for number in range(FEWEST + 4)]
    what, questions = unanswered(tiny.chat_model(), ["Cy sings."], asked, seed=0)
    left = [f"{number}?" for number in range(known, FEWEST + 4)] if name == "probes" else []
    assert (what, [question.prompt for question in questions]) == (name, left)


def test_the_change_is_that_since_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.1 and 0.3 at first, 0.2 and 0.6 at the end: changes of 0.1 and 0.3, standard error 0.1."""
    found = iter([[0.1, 0.3], [0.5, 0.5], [0.2, 0.6]])
    monkeypatch.setattr(answer_probability, "probabilities", lambda model, pairs: next(found))
    told: list[tuple[int, dict[str, float]]] = []
    questions = [Question(f"{number}?", "x", True) for number in range(2)]
    follow = AnswerProbability(
        tiny.chat_model(),
        questions,
        every=2,
        steps=3,
        report=lambda step, seen: told.append((step, {**seen})),
    )
    for step in (1, 2, 3):
        follow(step, {})
    assert [step for step, _ in told] == [0, 2, 3]
    assert told[0][1] == {METRIC: pytest.approx(0.2), ERROR: 0.0}
    assert told[2][1] == {METRIC: pytest.approx(0.4), ERROR: pytest.approx(0.1)}


def test_the_error_is_that_of_the_change_and_counts_facts() -> None:
    """Ten questions that each gained a half show no scatter; two gaps of each fact are worth one."""
    before = [0.1 * place for place in range(10)]
    facts = [str(place) for place in range(10)]
    assert change_error(before, [p + 0.5 for p in before], facts) == pytest.approx(0)
    after = [0.3 if place % 3 else 0.0 for place in range(40)]
    alone = change_error([0.0] * 40, after, [str(place) for place in range(40)])
    twice = change_error([0.0] * 80, after * 2, [str(place % 40) for place in range(80)])
    assert twice == pytest.approx(alone, rel=0.03)
