"""What a sweep of merges refuses before its first evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.reads import queries
from pipelines.config.jobs import SweepJob
from pipelines.job_from_options.train import merge_job, sweep_job
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from tests.support import tiny


@pytest.mark.parametrize(("role", "kind"), [("other", "linear"), ("origin", "residual")])
def test_models_of_other_shapes_are_refused_before_the_student_is_evaluated(
    ws: Workspace, tmp_path: Path, role: str, kind: str
) -> None:
    alike, wide = tiny.save(tmp_path / "alike", seed=1), tiny.save(tmp_path / "wide", intermediate_size=96)

    def sweep(place: Path) -> SweepJob:
        return sweep_job(
            ws, "0.5", merge_job(ws, 0.0, student="base", kind=kind, **{role: str(place)}), "retention"
        )

    assert sweep(alike).weights == (0.5,)
    with pytest.raises(InputError, match="the models have different tensors"):
        sweep(wide)
    assert queries.runs(ws.tracker.db) == []
