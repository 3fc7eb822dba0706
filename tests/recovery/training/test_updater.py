"""One update by hand: the clipped gradient, what decays, AdamW's moments, bf16 weights, sums and means."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from recovery.batches.rollouts import Rollouts
from recovery.models.chat_model import ChatModel
from recovery.objective.objective import Loss
from recovery.training.config import TrainConfig
from recovery.training.updater import Microbatch, RunningSums, Updater
from tests.support import tiny

RATE = 0.1
ROW = Microbatch(Rollouts.from_dialogues([([1, 2], [False, True])], pad_id=258))


def updater(chat_model: ChatModel, **settings: Any) -> Updater:
    return Updater(chat_model, TrainConfig(steps=1, learning_rate=RATE, **settings))


def pull(slope: float, tokens: float = 1.0) -> Callable[..., Loss]:
    """A loss with the same slope in every weight."""

    def loss(model: torch.nn.Module, microbatch: Microbatch) -> Loss:
        return Loss(slope * torch.stack([p.float().sum() for p in model.parameters()]).sum(), tokens)

    return loss


def gradients(made: Updater) -> set[float]:
    """The values of all gradients."""
    return {value for weight in made.weights for value in gradient(weight).unique().tolist()}


def gradient(weight: torch.Tensor) -> torch.Tensor:
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize(("limit", "left"), [(1.0, 1.0), (0.25, 0.25), (0.0, math.inf)])
def test_the_gradient_is_no_longer_than_its_limit_and_0_is_none(limit: float, left: float) -> None:
    made = updater(tiny.chat_model(), clip_norm=limit)
    whole = math.sqrt(sum(weight.numel() for weight in made.weights))
    assert made.backward([ROW], pull(1.0)).norm == pytest.approx(whole)
    norm = math.sqrt(sum(float(gradient(weight).square().sum()) for weight in made.weights))
    assert norm == pytest.approx(min(whole, left), rel=1e-4)


def test_matrices_decay_and_norms_do_not() -> None:
    chat_model = tiny.chat_model()
    made = updater(chat_model, weight_decay=0.5)
    before = [p.detach().clone() for p in chat_model.model.parameters()]
    made.backward([ROW], pull(0.0))
    made.update()
    assert {p.ndim for p in before} == {1, 2}
    for now, then in zip(chat_model.model.parameters(), before, strict=True):
        torch.testing.assert_close(now.detach(), then * (1 - RATE * 0.5) if then.ndim == 2 else then)


@pytest.mark.parametrize(("betas", "moved"), [((0.0, 0.0), 0.0), ((0.9, 0.95), -18 / 19)])
def test_the_moments_are_those_of_the_settings(betas: tuple[float, float], moved: float) -> None:
    """Slopes of 1 and then of -1. Without moments the second step undoes the first; with these their mean,
    (0.9 * 0.1 - 0.1) / (1 - 0.9^2) = -1/19, moves the weights back by a nineteenth."""
    chat_model = tiny.chat_model()
    made = updater(chat_model, betas=betas)
    before = [p.detach().clone() for p in chat_model.model.parameters()]
    for slope in (1.0, -1.0):
        made.backward([ROW], pull(slope))
        made.update()
    for now, then in zip(chat_model.model.parameters(), before, strict=True):
        torch.testing.assert_close(now.detach(), then + RATE * moved, atol=1e-5, rtol=0)


def test_a_step_s_rate_replaces_that_of_the_settings() -> None:
    chat_model = tiny.chat_model()
    made = updater(chat_model)
    before = chat_model.model.model.norm.weight.detach().clone()
    made.prepare(0.01, seed=1)
    made.backward([ROW], pull(1.0))
    made.update()
    torch.testing.assert_close(chat_model.model.model.norm.weight.detach(), before - 0.01, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_microbatches_add_up_and_are_divided_once(dtype: torch.dtype) -> None:
    """Slopes of 1 over two microbatches of 4 tokens each: 2 / 8."""
    chat_model = tiny.chat_model()
    chat_model.model.to(dtype)
    made = updater(chat_model, clip_norm=0.0)
    sums = made.backward([ROW, ROW], pull(1.0, tokens=4.0))
    assert gradients(made) == {0.25} and sums.tokens == 8
    assert {weight.dtype for weight in made.weights} == {torch.float32}


def test_gradients_that_an_interrupted_run_left_do_not_count() -> None:
    chat_model = tiny.chat_model()
    for parameter in chat_model.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    made = updater(chat_model, clip_norm=0.0)
    made.backward([ROW], pull(1.0))
    assert gradients(made) == {1.0}


def test_a_restored_state_is_in_the_model_s_bf16_weights_too() -> None:
    """The next step reads the model, and only its update would have written them."""
    trained, fresh = (tiny.chat_model(seed) for seed in (0, 1))
    for chat_model in (trained, fresh):
        chat_model.model.to(torch.bfloat16)
    made = updater(trained)
    made.backward([ROW], pull(1.0))
    made.update()
    updater(fresh).load_state_tensors({name: one.clone() for name, one in made.state_tensors().items()})
    for one, other in zip(fresh.model.parameters(), trained.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_saved_state_has_what_bf16_rounds_away() -> None:
    """One step of 5e-5 from 0.25, below which bf16 has no number before 0.249."""
    chat_model = tiny.chat_model()
    chat_model.model.to(torch.bfloat16)
    for parameter in chat_model.model.parameters():
        torch.nn.init.constant_(parameter, 0.25)
    made = updater(chat_model, weight_decay=0.0)
    made.prepare(5e-5, seed=1)
    made.backward([ROW], pull(1.0))
    made.update()
    saved = {name: one for name, one in made.state_tensors().items() if name.startswith("weights.")}
    assert saved and {one.dtype for one in saved.values()} == {torch.float32}
    for one in saved.values():
        torch.testing.assert_close(one, torch.full_like(one, 0.24995), atol=1e-7, rtol=0)
    assert all((parameter == 0.25).all() for parameter in chat_model.model.parameters())


def loss(value: float, tokens: float, **rest: Any) -> RunningSums:
    return RunningSums.of(Loss(torch.tensor(value), tokens, **rest))


def test_a_metric_is_divided_by_the_tokens_that_report_it() -> None:
    """Losses 6 and 2 over 2 tokens each; beside them rehearsal of 10 tokens, which is a metric of its own."""
    answers = loss(6.0, 2.0, metrics={"entropy": 4.0}, maxima={"gap": 0.5})
    more = loss(2.0, 2.0, metrics={"entropy": 2.0}, maxima={"gap": 0.25})
    rehearsed = loss(30.0, 10.0, metrics={"rehearsal_loss": 30.0}, apart=True)
    first = replace(answers.plus(rehearsed), norm=1.0, updates=1)
    both = first.plus(replace(more, norm=2.0, updates=1))
    assert both.loss == 38.0
    assert both.means() == {
        "loss": 2.0,
        "entropy": 1.5,
        "rehearsal_loss": 3.0,
        "gap": 0.5,
        "grad_norm": 1.5,
        "tokens": 14.0,
    }


@pytest.mark.parametrize(("value", "norm"), [(math.nan, 1.0), (1.0, math.inf), (1.0, math.nan)])
def test_a_loss_or_a_norm_that_is_no_number_is_not_finite(value: float, norm: float) -> None:
    assert not RunningSums(loss=value, norm=norm).finite
    assert RunningSums(loss=1.0, norm=1.0).finite
