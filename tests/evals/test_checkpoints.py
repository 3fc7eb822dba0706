"""What was scored under one checkpoint is never reused for another, whatever they share."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from db.errors import NotFound
from db.reads import queries
from pipelines.config.jobs import EvalJob
from pipelines.config.sections.eval import EvalConfig
from pipelines.evaluate import evaluate
from pipelines.machine.init_home import initialise
from pipelines.runs.workspace import Workspace
from tests.support import tiny


def responses(ws: Workspace, reference: str, probes: Path) -> tuple[str, list[str]]:
    """A checkpoint's id and its recorded answers, asked anew."""
    settings = EvalConfig(probes=str(probes), probe_max_new_tokens=8)
    job = EvalJob(checkpoint=ws.checkpoint(reference).id, suites=("knowledge",), settings=settings)
    found = evaluate(ws, job, key=ws.new_key())
    rows = queries.items(ws.tracker.db, found["score_ids"]["knowledge"])
    return job.checkpoint, [row["response"] for row in rows]


def test_a_score_belongs_to_the_content_of_one_checkpoint(tmp_path: Path) -> None:
    probes = tmp_path / "probes.jsonl"
    rows = [{"id": str(n), "prompt": f"Where is {n}?", "answer": "Oslo"} for n in range(4)]
    probes.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "clean")), preset="microworld")
        place = str(tiny.save(tmp_path / "other", seed=1))
        one, first = responses(ws, "base", probes)
        other, second = responses(ws, place, probes)
        assert one != other and first != second
        # The same directory with other weights is another checkpoint: nothing of the old one is found.
        shutil.rmtree(place)
        tiny.save(place, seed=2)
        third, fresh = responses(ws, place, probes)
        assert third not in (one, other) and fresh not in (first, second)
        assert responses(ws, "base", probes) == (one, first)
        for name in (one, other, third):
            assert {row["checkpoint_id"] for row in queries.scores(ws.tracker.db, checkpoint_id=name)} == {
                name
            }
        with pytest.raises(NotFound):
            queries.compared_scores(ws.tracker.db, one, "never-scored", "knowledge")
