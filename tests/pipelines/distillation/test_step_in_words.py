"""What is said of a distillation's steps: how many answers, how often a row comes up, and small weights."""

from __future__ import annotations

import pytest

from pipelines.config.sections.distill import DistillConfig
from pipelines.config.sections.training import OptimizerConfig
from pipelines.distillation import step_in_words
from pipelines.distillation.inputs import PromptData
from pipelines.distillation.low_weights import LowWeights
from pipelines.prompts.prompt_sources import Prompt
from recovery.methods.table import get

ROW = Prompt([{"role": "user", "content": "Hi"}], {"response": "Hey"})
SETTINGS = DistillConfig(
    prompts="p",
    optimizer=OptimizerConfig(learning_rate=1e-4),
    steps=100,
    prompts_per_step=64,
    samples_per_prompt=2,
    max_new_tokens=256,
)


@pytest.mark.parametrize(
    ("method", "prompts", "pairs", "said"),
    [
        ("opd", 427, 0, "; each prompt comes up about 15 times"),
        ("opd", 5, 0, "; each prompt comes up about 100 times"),
        ("opd", 1600, 0, ""),
        ("sft", 0, 1600, "; each pair comes up about 8 times"),  # 128 of them a step
        ("sft", 0, 100, "; each pair comes up about 100 times"),
        ("sft", 0, 12_800, ""),
        ("sdft", 1600, 5, ""),  # shown to the teacher, not learned
        ("gkd", 427, 1600, "; each prompt comes up about 7 times"),  # 64 of 128 answers are pairs
        ("gkd", 427, 640, "; each prompt comes up about 7 times; each pair comes up about 10 times"),
    ],
)
def test_how_often_a_row_comes_up_is_said_where_that_is_often(
    method: str, prompts: int, pairs: int, said: str
) -> None:
    data = PromptData([ROW] * prompts, [ROW] * pairs)
    assert step_in_words.often(SETTINGS, get(method), data) == said


@pytest.mark.parametrize(
    ("method", "prompts", "pairs", "said"),
    [
        ("opd", 1600, 0, "100 steps of 128 answers of at most 256 tokens, "),
        ("opd", 5, 0, "100 steps of 10 answers of at most 256 tokens, "),
        ("sft", 0, 1600, "100 steps of 128 answers, "),
        ("sft", 0, 100, "100 steps of 100 answers, "),
    ],
)
def test_the_answers_of_a_step_are_counted(method: str, prompts: int, pairs: int, said: str) -> None:
    data = PromptData([ROW] * prompts, [ROW] * pairs)
    assert step_in_words.plan(SETTINGS, get(method), data).startswith(said)


@pytest.mark.parametrize(("ahead", "way"), [(True, "--ahead 0"), (False, "`model.dtype: float32`")])
def test_small_importance_weights_are_said_once(ahead: bool, way: str) -> None:
    said: list[str] = []
    check = LowWeights(said.append, ahead=ahead)
    for step, mean in enumerate((1.0, 0.5, 0.41, 0.2), 1):
        check(step, {"importance_weight": mean})
    check(5, {})
    (line,) = said
    assert "in step 3 the importance weights average 0.41" in line and way in line
