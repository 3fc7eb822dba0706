"""KL budgets of a step: spent as a whole with one share, or changing from step to step."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from recovery import distributed
from recovery.forward.hidden_states import logits_of, predicting_states
from recovery.methods.table import with_dials
from recovery.objective.divergences import exact_forward_kl
from recovery.training import step_budget
from recovery.training.step_data import StepConfig
from recovery.training.updater import Microbatch
from tests.support import tiny
from tests.support.episodes import STEP, episodes
from tests.support.present import present

BUDGET = 0.02


def first(
    step: StepConfig = STEP, number: int = 1, weights: list[float] | None = None, **dials: str
) -> tuple[list[Microbatch], dict[str, float]]:
    """The microbatches of a step's first update, and what the step reports."""
    student = tiny.chat_model()
    made = episodes(with_dials("opd-near", dials), student, step, weights=weights)
    return next(iter(made.updates(number))), made.metrics()


@pytest.mark.parametrize("weights", [None, [1.0, 0.01, 0.3, 0.0, 0.6] * 2])
def test_a_steps_mean_kl_is_its_budget(weights: list[float] | None) -> None:
    """Measured again from whole distributions: q is moved by the step's share at every token of all
    microbatches, which count by their weights."""
    alone = replace(STEP, prompts_per_step=4, microbatch_tokens=1)
    microbatches, told = first(alone, weights=weights, kl_budget=str(BUDGET), kl_budget_of="step")
    student = tiny.chat_model()
    total = tokens = 0.0
    shares = set()
    for batch in microbatches:
        rollouts, scores, share_N = batch.rollouts, batch.signals.scores, batch.signals.share_N
        assert scores is not None and scores.hidden_ND is not None and share_N is not None
        shares |= set(share_N.tolist())
        with torch.no_grad():
            states_ND = predicting_states(student.model, rollouts)
            p = partial(logits_of, student.model)(states_ND).double().log_softmax(-1)
            teacher = scores.head(scores.hidden_ND).double().log_softmax(-1)  # type: ignore[misc]
        moved = (p + (teacher - p) * float(share_N[0])).log_softmax(-1)
        weights_N = torch.ones(rollouts.n_tokens) if weights is None else present(batch.signals.weights_N)
        total += float(exact_forward_kl(p, moved) @ weights_N.double())
        tokens += float(weights_N.sum())
    assert len(microbatches) > 2 and len(shares) == 1 and 0 < shares.pop() < 1
    assert total / tokens == pytest.approx(BUDGET, rel=0.02)
    assert told["kl_budget"] == BUDGET


def test_processes_with_the_same_answers_find_the_share_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums and tokens of all processes count, none of them alone."""

    def share() -> set[float]:
        batches, _ = first(kl_budget=str(BUDGET), kl_budget_of="step")
        return {one for batch in batches for one in present(batch.signals.share_N).tolist()}

    alone = share()
    three = SimpleNamespace(gather=lambda found: [found] * 3, gathered=distributed.gathered)
    monkeypatch.setattr(step_budget, "distributed", three)
    assert sorted(share()) == pytest.approx(sorted(alone)) and 0 < min(alone) < 1


def test_a_wide_budget_leaves_the_teacher_as_it_is() -> None:
    microbatches, _ = first(kl_budget="1e6", kl_budget_of="step")
    assert {share for batch in microbatches for share in present(batch.signals.share_N).tolist()} == {1.0}


def test_a_budget_changes_from_step_to_step() -> None:
    """From 0.4 to 0.1 over three steps: 0.2 at the second."""
    microbatches, told = first(replace(STEP, steps=3), 2, kl_budget="0.4", kl_budget_final="0.1")
    assert told["kl_budget"] == pytest.approx(0.2)
    for batch in microbatches:
        assert batch.signals.budget_N is not None
        assert batch.signals.budget_N.tolist() == pytest.approx([0.2] * batch.rollouts.n_tokens)


def test_a_constant_budget_needs_no_signal() -> None:
    microbatches, told = first()
    assert "kl_budget" not in told
    assert all(batch.signals.budget_N is None and batch.signals.share_N is None for batch in microbatches)
