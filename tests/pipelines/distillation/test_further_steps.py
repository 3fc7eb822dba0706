"""Further steps of a recovery: when they are taken, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dashboard.run_names import alarms
from db.reads import curves, queries
from pipelines.config import settings as config
from pipelines.config.jobs import DistillJob
from pipelines.config.overrides import changed, override
from pipelines.config.sections.distill import DistillConfig
from pipelines.distill import distill
from pipelines.distillation.further_steps import FurtherSteps
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from recovery.training.plateau import Plateau

PRESET = config.parse(config.preset_text("microworld"), "preset")


def recovery(**settings: Any) -> DistillConfig:
    few = {"steps": 2, "prompts_per_step": 2, "max_new_tokens": 4, "preflight": False, "rehearsal": 0.0}
    constant = PRESET.distill.optimizer.model_copy(update={"schedule": "constant"}).model_dump()
    return override(PRESET.distill, few | {"optimizer": constant} | settings)


@pytest.mark.parametrize(("falls", "steps"), [(False, 2), (True, 5)])
def test_a_recovery_goes_on_only_while_the_divergence_falls(
    home: Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    falls: bool,
    steps: int,
) -> None:
    monkeypatch.setattr(Plateau, "falls", lambda *_: falls)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Who is there?"}\n{"prompt": "Who was there?"}\n')
    settings = recovery(more_steps=3)
    job = DistillJob(
        student="base", teacher="base", prompts=str(prompts), settings=settings, evaluation=PRESET.eval
    )
    said: list[str] = []
    monkeypatch.setattr(home.progress, "say", said.append)
    found = distill(home, job)
    (run,) = queries.runs(home.tracker.db, kind="distill")
    assert len(curves.metrics_by_step(home.tracker.db, run["id"], ["loss"])) == steps
    assert bool(found["stopped"]) == (steps == 2)
    assert any("  ended        after 2 steps the divergence" in line for line in said) == (steps == 2)
    assert not alarms(run)  # it ended as it should


def test_only_methods_with_a_teachers_signal_take_further_steps() -> None:
    assert recovery(more_steps=3).most_steps == 5
    assert recovery(more_steps=3, method="opd-sampled").most_steps == 5
    assert recovery(more_steps=3, method="seqkd").most_steps == 2
    assert recovery(more_steps=3, method="rl", reward="exact").most_steps == 2


def test_who_sets_the_steps_gets_as_many() -> None:
    preset = config.parse(config.preset_text("cpu"), "preset")
    assert preset.distill.most_steps > preset.distill.steps
    assert changed(preset, {"distill.steps": 7}).distill.most_steps == 7
    assert override(preset.distill, {"steps": 7}).most_steps == 7
    assert changed(preset, {"distill.steps": 7, "distill.more_steps": 2}).distill.most_steps == 9
    assert changed(preset, {"seed": 1}).distill == preset.distill


def test_further_steps_need_a_rate_that_does_not_end() -> None:
    falling = PRESET.distill.optimizer.model_copy(update={"schedule": "cosine"})
    with pytest.raises(InputError, match="more_steps: the rate of a cosine schedule ends with the last step"):
        recovery(optimizer=falling.model_dump(), more_steps=1)
    assert recovery(optimizer=falling.model_dump()).most_steps == 2
    assert recovery(optimizer=falling.model_dump(), more_steps=1, method="sft").most_steps == 2  # takes none


@pytest.mark.parametrize(("last", "goes_on"), [(0.4, True), (0.49, False)])
def test_a_correction_that_goes_on_when_the_steps_end_is_told(last: float, goes_on: bool) -> None:
    said: list[str] = []
    check = FurtherSteps(Plateau(20, before=lambda _: {}), 20, said.append)
    reasons = [check(step, {"reverse_kl": 0.5 if step <= 10 else last}) for step in range(1, 21)]
    assert not any(reasons)  # it ends with its last step in any case
    assert len(said) == goes_on
    if goes_on:
        assert "still goes on after 20 steps (0.5 nats a token in 10 steps, 0.4 in the 10 after)" in said[0]
