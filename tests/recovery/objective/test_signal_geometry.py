"""Density, bias and concentration of a token signal, by hand and on signals of known shape."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recovery.objective import signal_geometry as geo


def test_density_counts_the_tokens_that_say_something() -> None:
    assert geo.density(torch.tensor([0.0, 1e-4, -0.5, 2.0])) == 0.5


def test_concentration_by_hand() -> None:
    """200 tokens: the top 1 % are two; they carry 10 of 208, or 20 of 218 with a pivot twin."""
    signal = torch.ones(200)
    assert geo.concentration(signal) == pytest.approx(0.01)
    signal[7], signal[9] = -5.0, 5.0
    assert geo.concentration(signal) == pytest.approx(10 / 208)
    assert geo.concentration(torch.tensor([0.0, 0.0])) == 0.0
    assert geo.concentration(torch.tensor([3.0, 1.0])) == 0.75  # at least one token


def test_a_pivot_token_carries_the_step() -> None:
    signal = torch.full((100,), 0.04)
    signal[50] = math.log(0.6 / 0.01)
    assert geo.concentration(signal) > 0.5


def test_bias_by_hand() -> None:
    assert geo.bias(torch.tensor([[1.0, 0.0], [1.0, 0.0]])) == pytest.approx(1.0)
    assert geo.bias(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])) == pytest.approx(-1.0)
    assert geo.bias(torch.tensor([[1.0, 0.0], [0.0, 1.0]])) == pytest.approx(0.0)
    assert geo.bias(torch.tensor([[3.0, 4.0]])) == 0.0  # one draw tells nothing
    assert geo.bias(torch.zeros(3, 2)) == 0.0


def test_bias_tells_a_direction_from_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(400, 32, generator=generator)
    assert abs(geo.bias(noise)) < 0.01
    direction = torch.randn(32, generator=generator)
    share = float(direction.square().sum() / (direction.square().sum() + 32))
    assert geo.bias(noise + direction) == pytest.approx(share, abs=0.05)


def test_labels_are_biased_and_group_advantages_are_not() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0] * 25)
    group = rewards.view(-1, 4)
    apart = torch.arange(100)
    assert geo.measure(torch.ones(100), apart).bias == pytest.approx(1.0)
    assert geo.measure((group - group.mean(1, keepdim=True)).flatten(), apart).bias < 0.0


def test_tokens_are_averaged_within_a_draw() -> None:
    signal, draw = torch.tensor([1.0, -1.0, 1.0, -1.0]), torch.tensor([4, 4, 9, 9])
    assert geo.measure(signal, draw).bias == 0.0
    assert geo.measure(torch.tensor([1.0, 3.0, 2.0, 2.0]), draw).bias == pytest.approx(1.0)


def test_projection_keeps_lengths_and_angles() -> None:
    generator = torch.Generator().manual_seed(1)
    arrows = torch.randn(50, 300, generator=generator) + 1.0
    projected = geo.project(arrows, 256)
    assert torch.equal(projected, geo.project(arrows, 256))
    assert float((projected.norm(dim=1) / arrows.norm(dim=1)).mean()) == pytest.approx(1.0, abs=0.05)
    assert geo.bias(projected) == pytest.approx(geo.bias(arrows), abs=0.1)


def test_gradients_are_measured_by_length_and_direction() -> None:
    arrows = torch.zeros(100, 3)
    arrows[:, 0] = 1.0
    even = geo.measure_gradients(arrows, torch.arange(100))
    assert (even.density, even.concentration) == pytest.approx((1.0, 0.01))
    assert even.bias == pytest.approx(1.0)
    arrows[5] = torch.tensor([0.0, 100.0, 0.0])
    assert geo.measure_gradients(arrows, torch.arange(100)).concentration == pytest.approx(100 / 199)


@given(st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=1, max_size=300))
def test_shares_are_shares(numbers: list[float]) -> None:
    shape = geo.measure(torch.tensor(numbers, dtype=torch.float64), torch.arange(len(numbers)))
    shares = (shape.density, shape.concentration)
    assert all(0 <= share <= 1 + 1e-9 for share in shares)
    assert -1 - 1e-9 <= shape.bias <= 1 + 1e-9
