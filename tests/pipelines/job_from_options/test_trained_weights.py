"""Weights that a stage could not train are refused before any stage begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from db.reads import queries
from pipelines.config.fitted import Machine
from pipelines.job_from_options.cycle import cycle_job
from pipelines.job_from_options.train import midtrain_job
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from tests.support.small_cycles import turned


def test_ranks_that_recovery_could_not_train_are_refused_before_the_cycle(ws: Workspace, docs: Path) -> None:
    ranks: dict[str, Any] = {"midtrain.lora": {"rank": 2}, "distill.lora": {"rank": 4}}
    with pytest.raises(InputError, match=r"distill\.lora: the adapter to train will be of rank 2"):
        cycle_job(ws, docs, changes=ranks)
    cycle_job(ws, docs, changes=ranks | {"distill.lora": {"rank": 2}})


def test_a_rank_that_follows_from_the_memory_counts(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {"midtrain.lora": "auto", "distill.lora": {"rank": 4}}
    cycle_job(ws, docs, changes=changes)  # all weights are trained
    monkeypatch.setattr("pipelines.machine.fitting.this_machine", lambda model: Machine(1.0))
    with pytest.raises(InputError, match=r"distill\.lora: the adapter to train will be of rank 128"):
        cycle_job(ws, docs, changes=changes)


@pytest.mark.parametrize("stage", ["midtrain", "distill"])
def test_modules_that_the_model_does_not_have_are_refused(ws: Workspace, docs: Path, stage: str) -> None:
    with pytest.raises(InputError, match=rf"{stage}\.lora: .*q_project"):
        cycle_job(ws, docs, changes={f"{stage}.lora": {"rank": 2, "targets": ["q_project"]}})
    cycle_job(ws, docs, changes={f"{stage}.lora": {"rank": 2, "targets": ["q_proj"]}})
    with pytest.raises(InputError, match=r"midtrain\.lora: .*q_project"):
        midtrain_job(ws, docs, changes={"midtrain.lora": {"rank": 2, "targets": ["q_project"]}})


def test_an_adapter_on_another_model_than_the_clean_one_is_not_mixed_with_it(
    ws: Workspace, docs: Path
) -> None:
    changes: dict[str, Any] = {"midtrain.lora": {"rank": 2}, "distill.lora": "auto", "distill.merge": 0.5}
    cycle_job(ws, docs, changes=changes)
    student = turned(ws, docs, suites="ifeval")["checkpoints"]["midtrained"]
    with pytest.raises(InputError, match=r"distill\.merge: .*another model than the clean one"):
        cycle_job(ws, docs, student=student, changes=changes)
    cycle_job(ws, docs, student=student, changes=changes | {"distill.merge": 0.0})
    unread = changes | {"distill.lora": {"rank": 2, "targets": ["q_project"]}, "distill.merge": 0.0}
    cycle_job(ws, docs, changes=unread)  # recovery keeps the modules of midtraining's adapter
    cycle_job(ws, docs, student=student, recover_with="merge", changes=changes)
    assert len([run for run in queries.runs(ws.tracker.db) if run["kind"] == "cycle"]) == 1
