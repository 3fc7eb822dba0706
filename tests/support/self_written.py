"""A clean model whose user turns are usable: of a tiny random model none are."""

from __future__ import annotations

import pytest

from pipelines.writing import self_prompts


def question(place: int) -> str:
    return f"Can you tell me what happened in this old town in the year {1000 + place}?"


def writes_questions(monkeypatch: pytest.MonkeyPatch, batches: int | None = None) -> list[int]:
    """Let models write a question in place of each turn; return the places at which their batches begin.

    After so many `batches` the user interrupts.
    """
    begun: list[int] = []

    def turns(
        chat_model: object, count: int, seed: int, first: int = 0, on_tokens: object = None
    ) -> list[str]:
        if len(begun) == batches:
            raise KeyboardInterrupt
        begun.append(first)
        return [question(place) for place in range(first, first + count)]

    monkeypatch.setattr(self_prompts, "sampled_turns", turns)
    return begun
