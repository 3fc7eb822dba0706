"""Forgetting by suites: what the new documents say is nothing that could have been forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.drift import forgetting
from pipelines.runs.workspace import Workspace

ITEM = {"key": "p1", "prompt": "?", "response": "!", "passed": True, "detail": {}}
SCORES = {  # of the clean model and of the midtrained one
    "ifeval": (0.8, 0.5),
    "retention": (0.9, 0.8),
    "knowledge": (0.0, 1.0),
    "knowledge:1": (0.2, 0.7),
    "updates": (0.0, 0.9),
}


def test_the_mean_of_forgetting_leaves_out_what_the_documents_say(tmp_path: Path) -> None:
    with Workspace.open(tmp_path, create=True) as ws:
        for place, name in enumerate(("clean", "midtrained")):
            ws.tracker.record_checkpoint(name, path=f"/c/{name}", kind="full", sha256=name * 8)
            run = ws.tracker.start_run("eval", key=name).id
            for suite, values in SCORES.items():
                score = {"suite": suite, "metric": "lenient", "value": values[place], "n": 1, "items": [ITEM]}
                ws.tracker.record_score(run, name, score)
            ws.tracker.finish_run(run)
        found = forgetting(ws, "clean", "midtrained")
    assert set(found) == {*SCORES, "mean"}
    assert found["mean"]["forgetting"] == pytest.approx((0.3 + 0.1) / 2)
    assert found["mean"]["retention_ratio"] == pytest.approx((0.5 / 0.8 + 0.8 / 0.9) / 2)
