"""A score records how its answers were written, by which a comparison tells that two were not asked alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from db.reads import queries
from pipelines.config.jobs import EvalJob
from pipelines.config.sections.eval import EvalConfig
from pipelines.evaluate import evaluate
from tests.support.small_cycles import lines, make_home


def modes(folder: Path, suite: str, **settings: Any) -> dict[str, tuple[float | None, bool | None]]:
    """Temperature and the end of loops by metric, of an evaluation of the clean model."""
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
        found = {row["metric"]: row["details"]["mode"] for row in queries.scores(ws.tracker.db)}
    return {metric: (mode["temperature"], mode["stop_loops"]) for metric, mode in found.items()}


def test_greedy_answers_are_at_temperature_zero(tmp_path: Path) -> None:
    assert modes(tmp_path, "knowledge", temperature=0.7) == {"lenient": (0.0, False), "cloze": (0.0, False)}


def test_only_sampled_answers_have_the_temperature_that_is_set(tmp_path: Path) -> None:
    found = modes(tmp_path, "knowledge", samples=2, temperature=0.7, stop_loops=True)
    assert found == {"lenient": (0.7, True), "cloze": (0.0, True)}


def test_where_nothing_is_written_neither_is_known(tmp_path: Path) -> None:
    assert modes(tmp_path, "calibration", stop_loops=True) == {"calibration": (None, None)}
