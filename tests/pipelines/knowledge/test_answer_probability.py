"""Questions that are followed along a midtraining are asked as an evaluation asks them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evals import dialogues
from evals.probes import Probe
from pipelines.knowledge.answer_probability import _of_probes, change_error, read, write
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


def test_the_error_is_that_of_the_change_and_counts_facts() -> None:
    """Ten questions that each gained a half show no scatter; two gaps of each fact are worth one."""
    before = [0.1 * place for place in range(10)]
    facts = [str(place) for place in range(10)]
    assert change_error(before, [p + 0.5 for p in before], facts) == pytest.approx(0)
    after = [0.3 if place % 3 else 0.0 for place in range(40)]
    alone = change_error([0.0] * 40, after, [str(place) for place in range(40)])
    twice = change_error([0.0] * 80, after * 2, [str(place % 40) for place in range(80)])
    assert twice == pytest.approx(alone, rel=0.03)
