"""Forgetting by suites: what the new documents say is nothing that could have been forgotten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.config.jobs import DriftJob
from pipelines.drift import drift, drift_text, forgetting
from pipelines.machine.init_home import initialise
from pipelines.runs.workspace import Workspace
from tests.support import tiny
from tests.support.databases import record_score

ITEM = {"key": "p1", "prompt": "?", "response": "!", "passed": True, "detail": {}}
SCORES = {  # of the clean model and of the midtrained one
    "ifeval": (0.8, 0.5),
    "retention": (0.9, 0.8),
    "knowledge": (0.0, 1.0),
    "knowledge:1": (0.2, 0.7),
    "updates": (0.0, 0.9),
}


def test_a_prompt_that_the_model_has_no_room_for_is_left_out(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    asked = [*(f"Say {number}." for number in range(9)), "word " * 200]
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in asked))
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model", max_position_embeddings=128)))
        job = DriftJob(a="base", b="base", prompts=str(prompts), count=10, max_new_tokens=4)
        found = drift(ws, job)
    assert found["prompts"] == 9
    assert found["states"] == found["floor"]  # a model that has not moved is as far as from itself
    assert found["states"]["hidden_centroid"] > 0


@pytest.mark.parametrize(("prompts", "words"), [(1, "1 prompt "), (1000, "1,000 prompts ")])
def test_the_distances_of_both_stand_below_their_headings(prompts: int, words: str) -> None:
    distance = {"hidden_centroid": 12.5}
    states = {"prompts": prompts, "states": distance, "floor": {"hidden_centroid": 0.25}}
    heading, row = drift_text({"a": "one", "b": "other", **states, "kl": {}, "forgetting": {}}).splitlines()[
        3:5
    ]
    assert heading.startswith(f"states on {words}")
    assert heading.index("a to b") + len("a to b") == row.index("12.5000") + len("12.5000")
    assert heading.index("a to itself") < row.index("0.2500") < len(heading)


def forgotten(
    folder: Path, scores: dict[str, tuple[float, float]], changed: tuple[str, ...] = ()
) -> dict[str, dict[str, Any]]:
    """What is said of these scores; the accepted answers of the `changed` suites are others in each."""
    with Workspace.open(folder, create=True) as ws:
        for place, name in enumerate(("clean", "midtrained")):
            ws.tracker.record_checkpoint(name, path=f"/c/{name}", kind="full", sha256=name * 8)
            run = ws.tracker.start_run("eval", key=name).id
            for suite, values in scores.items():
                item = {**ITEM, "detail": {"answers": [name]}} if suite in changed else ITEM
                score = {"suite": suite, "metric": "lenient", "value": values[place], "n": 1, "items": [item]}
                record_score(ws.tracker, run, name, score)
            ws.tracker.finish_run(run)
        return forgetting(ws, "clean", "midtrained")


def test_the_mean_of_forgetting_leaves_out_what_the_documents_say(tmp_path: Path) -> None:
    found = forgotten(tmp_path, SCORES)
    assert set(found) == {*SCORES, "mean"}
    assert found["mean"]["forgetting"] == pytest.approx((0.3 + 0.1) / 2)
    assert found["mean"]["retention_ratio"] == pytest.approx((0.5 / 0.8 + 0.8 / 0.9) / 2)


def test_a_suite_whose_accepted_answers_have_all_changed_says_nothing_of_forgetting(tmp_path: Path) -> None:
    found = forgotten(tmp_path, {"ifeval": (0.8, 0.5), "retention": (0.9, 0.1)}, changed=("retention",))
    assert set(found) == {"ifeval", "mean"}
    assert found["mean"]["forgetting"] == pytest.approx(0.3)


def test_a_task_named_after_knowledge_counts_in_the_mean_of_forgetting(tmp_path: Path) -> None:
    found = forgotten(tmp_path, {"ifeval": (0.8, 0.5), "knowledge_qa": (0.9, 0.8)})
    assert found["mean"]["forgetting"] == pytest.approx((0.3 + 0.1) / 2)
