"""A score records how its answers were written, by which a comparison tells that two were not asked alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from db.reads import queries
from pipelines.config.jobs import EvalJob
from pipelines.config.sections.eval import EvalConfig
from pipelines.evaluate import evaluate
from pipelines.evaluation.model_answers import ModelAnswers
from tests.support.small_cycles import lines, make_home


def recorded(folder: Path, suite: str, **settings: Any) -> dict[str, dict[str, Any]]:
    """How the answers were written by metric, of an evaluation of the clean model."""
    rows: list[dict[str, Any]] = [
        {"id": kind, "kind": kind, "prompt": "Where is Ada?", "answer": "Oslo"}
        for kind in ("direct", "cloze")
    ]
    asked = EvalConfig(
        ifeval="none",
        probes=str(lines(folder / "probes.jsonl", rows)),
        probe_max_new_tokens=4,
        limit=16,
        **settings,
    )
    with make_home(folder) as ws:
        evaluate(ws, EvalJob(checkpoint=ws.clean().id, suites=(suite,), settings=asked), key="asked")
        return {row["metric"]: row["details"]["mode"] for row in queries.scores(ws.tracker.db)}


def modes(folder: Path, suite: str, **settings: Any) -> dict[str, tuple[float | None, bool | None]]:
    """Temperature and the end of loops by metric."""
    found = recorded(folder, suite, **settings)
    return {metric: (mode["temperature"], mode["stop_loops"]) for metric, mode in found.items()}


def test_greedy_answers_are_at_temperature_zero(tmp_path: Path) -> None:
    assert modes(tmp_path, "knowledge", temperature=0.7) == {"lenient": (0.0, False), "cloze": (0.0, False)}


def test_only_sampled_answers_have_the_temperature_that_is_set(tmp_path: Path) -> None:
    found = modes(tmp_path, "knowledge", samples=2, temperature=0.7, stop_loops=True)
    assert found == {"lenient": (0.7, True), "cloze": (0.0, True)}


def test_where_nothing_is_written_neither_is_known(tmp_path: Path) -> None:
    assert modes(tmp_path, "calibration", stop_loops=True) == {"calibration": (None, None)}


@pytest.mark.parametrize(("written", "unfinished"), [("<think>Hm.</think>", 0), ("<think>Hm.", 1)])
def test_only_thinking_that_was_not_closed_is_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, unfinished: int
) -> None:
    def think(_: ModelAnswers, prompts: list[list[int]], *__: Any) -> list[list[int]]:
        return [[*written.encode()] for _ in prompts]

    monkeypatch.setattr(ModelAnswers, "_write", think)
    mode = recorded(tmp_path, "knowledge")["lenient"]
    assert (mode["thinking"], mode["unfinished_thinking"]) == (True, unfinished)
