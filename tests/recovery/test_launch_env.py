"""The variables by which a launcher tells a process its place."""

from __future__ import annotations

import os

import pytest

from recovery import launch_env
from recovery.errors import InputError


def test_blank_variables_count_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in launch_env.PLACES:
        monkeypatch.setenv(name, " ")
    assert (launch_env.launched(), launch_env.machines(), launch_env.launched_here()) == (1, 1, 1)
    assert (launch_env.launch_rank(), launch_env.local_rank()) == (0, 0)
    launch_env.unset_blank()  # accelerate would read a number there
    assert not os.environ.keys() & set(launch_env.PLACES)


def test_a_variable_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(InputError, match="the variable WORLD_SIZE is 'two', not a number: unset it"):
        launch_env.launched()


def test_minus_one_says_that_nothing_was_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "-1")
    assert launch_env.local_rank() == 0
