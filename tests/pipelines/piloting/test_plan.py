"""The plan of a pilot: as many documents as give enough questions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pipelines.config.jobs import PilotJob
from pipelines.corpus.token_file import Tokens
from pipelines.knowledge import answer_probability
from pipelines.piloting.plan import _sampled
from recovery.models.chat_model import ChatModel


def test_a_share_that_gives_too_few_questions_is_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens(np.arange(1000, dtype=np.uint32), np.arange(10, 1001, 10, dtype=np.int64))
    question = answer_probability.Question("Where?", "Oslo", in_chat=True)

    def unanswered(*given: Any) -> tuple[str, list[answer_probability.Question]]:
        return "gaps", [question] * (len(given[1]) // 2)  # one of two documents gives one

    monkeypatch.setattr(answer_probability, "unanswered", unanswered)
    monkeypatch.setattr("pipelines.piloting.plan.LEAST_TOKENS", 1)
    settings = SimpleNamespace(eval=SimpleNamespace(probes=None))
    job = SimpleNamespace(share=0.1, settings=settings, docs="docs", seed=0)
    student = SimpleNamespace(text=lambda ids: "a text")
    sampled = _sampled(cast(PilotJob, job), tokens, cast(ChatModel, student))
    assert 380 <= sampled.tokens <= 420 and len(sampled.questions) >= answer_probability.FEWEST
