"""What is judged of a model's answers: no thinking; what is recorded: the thinking, the mode and the date."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from evals import knowledge
from evals.knowledge import Probe
from pipelines.config.jobs import EvalJob
from pipelines.config.settings import EvalConfig
from pipelines.evaluate import Answers
from recovery.sampling.protocol import SamplingParams
from tests.support import tiny
from tests.support.chat_families import FAMILIES

THINKS = "<think>\nThe user asks. Oslo? No.\n</think>\n\n"


class Says:
    """A sampler whose answers are given."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.prompts: list[list[int]] = []

    def generate(self, prompts: Sequence[list[int]], params: SamplingParams, **_: Any) -> list[list[int]]:
        self.prompts += prompts
        return [list(text.encode()) for text, _ in zip(self.texts, prompts, strict=True)]


class Listener:
    """A stage that keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)

    def step(self, *_: Any, **__: Any) -> None: ...
    def spend(self, **_: Any) -> None: ...


def answers(*texts: str, chat_model: Any = None, stage: Any = None) -> Answers:
    job = EvalJob(checkpoint="base", suites=("knowledge",), settings=EvalConfig())
    made: Any = Says(*texts)
    return Answers(chat_model or tiny.chat_model(), made, job, stage or Listener(), "knowledge")


def probe(number: int, kind: str = "direct") -> Probe:
    return Probe(str(number), "knowledge", kind, f"Question {number}?", ("Oslo",), str(number), 0)


def test_an_answer_that_stands_only_in_the_thinking_is_not_known() -> None:
    asked = answers(THINKS + "Paris.", THINKS + "Oslo.", "Oslo.")
    score = asked.with_thinking(knowledge.evaluate(asked.greedy(99), [probe(1), probe(2), probe(3)]))
    assert [item.passed for item in score.items] == [False, True, True]
    assert [item.response for item in score.items] == ["Paris.", "Oslo.", "Oslo."]
    assert "No." in score.items[0].detail["thinking"] and "No." in score.items[1].detail["thinking"]
    assert "thinking" not in score.items[2].detail
    assert score.details["mode"]["thinking"] is True


def test_answers_cut_off_inside_their_thinking_are_counted_and_said() -> None:
    stage = Listener()
    asked = answers("<think>Oslo", "Oslo.", stage=stage)
    score = asked.with_thinking(knowledge.evaluate(asked.greedy(9), [probe(1), probe(2)]))
    assert [item.passed for item in score.items] == [False, True]
    assert score.details["mode"]["unfinished_thinking"] == 1
    assert "1 of 2 answers ended inside their thinking" in stage.said[0]


def test_the_mode_of_a_model_that_does_not_think_and_its_date() -> None:
    chat = tiny.chat_model(template_args={"enable_thinking": False, "today": "2026-01-31"})
    asked = answers("Oslo.", chat_model=chat)
    mode = asked.with_thinking(knowledge.evaluate(asked.greedy(9), [probe(1)])).details["mode"]
    assert mode["thinking"] is False and mode["date"] == "2026-01-31"
    assert mode["template_args"]["enable_thinking"] is False


def test_cloze_texts_are_read_from_a_document_s_beginning() -> None:
    family = FAMILIES["gemma-2"]
    asked = answers("Oslo.", chat_model=family.chat_model())
    knowledge.evaluate_cloze(asked.continuation(9), [probe(1, "cloze")])
    sampler: Any = asked.sampler
    assert sampler.prompts == [[*family.ids(("<bos>",)), *b"Question 1?"]]


@pytest.mark.parametrize("asked", ["a", [{"role": "user", "content": "a"}]])
def test_tasks_cut_thinking_from_chats_alone(asked: Any) -> None:
    found = answers(THINKS + "Oslo.").calls().generate([asked], 9, 0.0)
    assert found == [THINKS + "Oslo." if isinstance(asked, str) else "Oslo."]
