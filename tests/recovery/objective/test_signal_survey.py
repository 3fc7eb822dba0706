"""Geometry as stored metrics: which steps, what of them, and that looking changes nothing."""

from __future__ import annotations

import pytest
import torch

from recovery.batches.rollouts import Rollouts
from recovery.methods.table import METHODS
from recovery.objective import signal_geometry, signal_survey
from recovery.objective.objective import Loss, Objective
from recovery.objective.signal_survey import SignalSurvey
from recovery.training.config import TrainConfig
from recovery.training.token_loss import TokenLoss
from recovery.training.trainer import train
from tests.support import tiny
from tests.support.episodes import episodes

NAMES = ("density", "bias", "concentration")
WANTED = {f"{kind}_{name}" for kind in ("signal", "gradient") for name in NAMES}
Weights = dict[str, torch.Tensor]


def run(name: str, steps: int, survey: SignalSurvey | None) -> tuple[list[dict[str, float]], Weights]:
    student, seen = tiny.chat_model(seed=1), []
    loss = TokenLoss(Objective(METHODS[name], student.stop_ids), survey)
    config = TrainConfig(steps=steps, learning_rate=1e-3, seed=4)
    made = episodes(METHODS[name], student)
    train(student, made, loss, config, on_metrics=lambda _, m: seen.append(m))
    return seen, {key: p.detach().clone() for key, p in student.model.named_parameters()}


@pytest.mark.parametrize("name", ["opd", "rl", "sft", "opd-sampled"])
def test_some_steps_are_measured_and_training_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal_survey, "EVERY", 3)
    seen, weights = run(name, 4, SignalSurvey())
    plain, expected = run(name, 4, None)
    assert [bool(WANTED & step.keys()) for step in seen] == [True, False, False, True]
    assert seen[0].keys() >= WANTED and not WANTED & plain[0].keys()
    assert all(torch.equal(weights[key], expected[key]) for key in weights)
    for step in (seen[0], seen[3]):
        assert all(-1 - 1e-6 <= step[key] <= 1 + 1e-6 for key in WANTED)


def two_rows() -> Rollouts:
    return Rollouts.from_dialogues([([1, 2, 3], [False, True, True]), ([4, 5, 6], [False, True, True])], 0)


def looked(survey: SignalSurvey, rollouts: Rollouts, signal: list[float], arrows: torch.Tensor) -> None:
    states_ND = torch.zeros_like(arrows, requires_grad=True) * 1.0
    survey.see(rollouts, states_ND, Loss(states_ND.sum(), len(signal), signal_N=torch.tensor(signal)))
    (states_ND * arrows).sum().backward()


def test_by_hand_over_two_microbatches() -> None:
    """Draws are the sequences: means 1, 1, -1 and 0; arrows that all agree have a bias of one."""
    survey = SignalSurvey()
    survey.begin(6)
    arrows = torch.zeros(4, 8)
    arrows[:, 3] = 2.0
    looked(survey, two_rows(), [2.0, 0.0, 1.0, 1.0], arrows)
    looked(survey, two_rows(), [-1.0, -1.0, 5.0, -5.0], arrows)
    found = survey.metrics()
    assert found["signal_density"] == 7 / 8
    assert found["signal_concentration"] == pytest.approx(5 / 16)
    assert found["signal_bias"] == pytest.approx((1.0**2 - 3.0) / (3 * 3.0))
    assert found["gradient_density"] == 1.0
    assert found["gradient_bias"] == pytest.approx(1.0)
    assert found["gradient_concentration"] == pytest.approx(1 / 8)
    assert survey.metrics() == {}


def test_the_same_sequences_again_are_not_more_draws() -> None:
    """A second epoch repeats its microbatches; noise that cancels must not look like agreement."""
    survey, rollouts = SignalSurvey(), two_rows()
    survey.begin(1)
    for _ in range(2):
        looked(survey, rollouts, [1.0, 1.0, -1.0, -1.0], torch.eye(4))
    once = signal_geometry.measure(torch.tensor([1.0, 1.0, -1.0, -1.0]), rollouts.rows_N)
    assert survey.metrics()["signal_bias"] == once.bias == -1.0


def test_steps_that_are_not_looked_at_keep_nothing() -> None:
    survey = SignalSurvey()
    survey.begin(2)
    looked(survey, two_rows(), [1.0] * 4, torch.eye(4))
    assert survey.metrics() == {}


def test_labels_agree_more_than_rewards() -> None:
    """What source 001 draws: supervision has a direction, a group's rewards hardly any."""
    labels, rewards = (run(name, 1, SignalSurvey())[0][0] for name in ("sft", "rl"))
    assert labels["signal_bias"] > rewards["signal_bias"]
