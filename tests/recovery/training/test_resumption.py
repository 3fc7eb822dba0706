"""The progress of a training by hand: totals, and the rates of its last twenty steps."""

from __future__ import annotations

import pytest

from recovery.training.resumption import Progress


def test_totals_are_of_all_steps_and_the_time_left_is_reckoned_by_the_last_twenty() -> None:
    progress = Progress()
    for second in range(1, 26):
        progress = progress.plus(tokens=10.0, seconds=float(second))
    assert (progress.steps, progress.tokens, progress.seconds) == (25, 250.0, 25 * 26 / 2)
    rates = progress.rates(steps=30)
    assert rates == {
        "tokens_per_second": pytest.approx(10 / 25),
        "step_seconds": 25.0,
        "eta_seconds": 5 * (6 + 25) / 2,  # steps 6 to 25 took 15.5 seconds on average
    }


def test_a_further_step_leaves_a_reason_to_stop_and_open_checks_behind() -> None:
    stopped = Progress(steps=3, stopped="recovered", unchecked={"loss": 1.0})
    further = stopped.plus(1.0, 1.0)
    assert (further.steps, further.stopped, further.unchecked) == (4, None, None)
