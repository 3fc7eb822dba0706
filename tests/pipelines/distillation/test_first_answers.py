"""The first step of a distillation shows the answers that are being written; the later ones their result."""

from __future__ import annotations

from typing import Any, cast

from pipelines.distill import _first_answers
from pipelines.runs.stage_runner import Stage


class Shown:
    def __init__(self) -> None:
        self.lines: list[tuple[int, int, str]] = []

    def step(self, step: int, steps: int, *, note: str = "", **_: Any) -> None:
        self.lines.append((step, steps, note))


def test_only_the_first_step_shows_its_tokens() -> None:
    stage = Shown()
    show = _first_answers(cast(Stage, stage), steps=9)
    for step, tokens in ((4, 10), (4, 1200), (5, 7), (4, 1300)):
        show(step, tokens)
    assert stage.lines == [
        (3, 9, "10 tokens of answers"),
        (3, 9, "1,200 tokens of answers"),
        (3, 9, "1,300 tokens of answers"),
    ]
