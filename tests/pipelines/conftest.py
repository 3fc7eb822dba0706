"""Fixtures of tests that run whole cycles; a file that needs another folder has its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines.evaluation import model_answers
from tests.support.small_cycles import make_docs


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return make_docs(tmp_path)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The suites that a model was asked, in order."""
    names: list[str] = []
    write = model_answers.ModelAnswers._write

    def noted(answers: model_answers.ModelAnswers, *args: Any, **kwargs: Any) -> list[list[int]]:
        names.append(answers.suite)
        return write(answers, *args, **kwargs)

    monkeypatch.setattr(model_answers.ModelAnswers, "_write", noted)
    return names
