"""When further steps end: where the divergence hardly falls, in a resumed run as in an uninterrupted one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.training.plateau import LEAST_FALL, Plateau


def ended(divergences: list[float], least: int, *, from_step: int = 1) -> int | None:
    """The step that a run ends with; steps before `from_step` were an earlier attempt's."""
    metrics = [{"reverse_kl": value, "loss": 9.0} for value in divergences]
    earlier = dict(enumerate(metrics[: from_step - 1], 1))
    check = Plateau(least, before=lambda step: {at: found for at, found in earlier.items() if at < step})
    for step in range(from_step, len(metrics) + 1):
        if check(step, metrics[step - 1]):
            return step
    return None


@pytest.mark.parametrize(
    ("stretches", "step"),
    [
        ([2.0, 2.0, 1.0], 20),  # nothing falls from the first stretch to the second
        ([2.0, 1.0, 0.96], 30),
        ([2.0, 1.0, 0.9, 0.84, 0.84], 50),
        ([2.0, 1.0, 0.8, 0.7, 0.6], None),  # goes on to the last step
        ([2.0, 1.0, 1.2], 30),  # it grows
    ],
)
def test_further_steps_end_where_a_stretch_is_less_than_a_twentieth_below_the_one_before(
    stretches: list[float], step: int | None
) -> None:
    assert ended([value for value in stretches for _ in range(10)], least=20) == step


def test_a_reason_names_both_means() -> None:
    check = Plateau(4, before=lambda _: {})
    said = [check(step, {"reverse_kl": value}) for step, value in enumerate([0.5, 0.3, 0.4, 0.38], 1)]
    assert said[:3] == [None] * 3
    assert said[3] == (
        "after 4 steps the divergence from the teacher hardly falls "
        "(0.4 nats a token in 2 steps, 0.39 in the 2 after)"
    )


@given(
    st.lists(st.floats(0.01, 2.0), min_size=1, max_size=40),
    st.integers(1, 12),
    st.data(),
)
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(
    divergences: list[float], least: int, data: st.DataObject
) -> None:
    whole = ended(divergences, least)
    resumed_at = data.draw(st.integers(1, whole or len(divergences)))
    assert ended(divergences, least, from_step=resumed_at) == whole


@given(st.floats(0.05, 1.0), st.integers(2, 40))
def test_a_steady_fall_goes_on_and_a_steady_level_does_not(fall: float, least: int) -> None:
    stretch = max(1, least // 2)
    level = ended([1.0] * 3 * least, least)
    falling = [math.exp(-fall * step) for step in range(3 * least)]
    assert level == least
    goes_on = math.exp(-fall * stretch) < 1 - LEAST_FALL - 1e-9
    stops = math.exp(-fall * stretch) > 1 - LEAST_FALL + 1e-9
    assert (ended(falling, least) is None) >= goes_on and (ended(falling, least) == least) >= stops


def test_lost_metrics_of_an_earlier_attempt_end_nothing_too_early() -> None:
    check = Plateau(4, before=lambda _: {})  # of four steps none was recorded
    assert check(4, {"reverse_kl": 1.0}) is None


def test_steps_that_trained_on_no_token_are_left_out() -> None:
    """They have a loss of 0, which would look like a student at its teacher."""
    check = Plateau(4, before=lambda _: {})
    steps = [{"loss": 0.0}, {"reverse_kl": 1.0}, {"reverse_kl": 0.6}, {"reverse_kl": 0.6}]
    assert [check(step, metrics) for step, metrics in enumerate(steps, 1)] == [None] * 4
