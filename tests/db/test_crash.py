"""kill -9 and a full disk at any moment: what was acknowledged is there, and nothing is there twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from db.writes.tracker import Tracker
from tests.support import full_disk, tracker_steps
from tests.support.databases import BACKENDS, new_database
from tests.support.lives import KILLED, Lives


def lives_of(folder: Path) -> Lives:
    return Lives(folder / "acknowledged", preload=("tests.support.tracker_steps", "db.migrations"))


def span_of_a_life(backend: str, folder: Path) -> float:
    """Return how long a life takes here to make its tables and to record a few steps.

    The first life is not counted: the process from which the others are forked starts with it.
    """
    for name in ("first", "second"):
        (folder / name).mkdir()
        with new_database(backend, folder / name) as where:
            seconds = lives_of(folder / name).seconds(tracker_steps.work, where, 0, lines=6)
    return seconds


def rounds(lives: Lives, least: int) -> Iterator[int]:
    """Yield what is done before each life; a slow machine takes more of them to get somewhere."""
    for number in range(5 * least):
        done = len(lives.acknowledged())
        if number >= least and done > 4:
            return
        yield done


@pytest.mark.parametrize("backend", BACKENDS)
def test_killed_at_random_moments_nothing_is_lost_or_doubled(backend: str, tmp_path: Path) -> None:
    chance, lives, span = random.Random(7), lives_of(tmp_path), span_of_a_life(backend, tmp_path)
    with new_database(backend, tmp_path) as where:
        for done in rounds(lives, 8):
            after = span * chance.uniform(0.2, 1.2)
            assert lives.killed(tracker_steps.work, where, done, after=after) == KILLED
        steps = lives.acknowledged()
        assert steps == [str(step) for step in range(len(steps))]
        assert len(steps) > 4
        with Tracker(where) as tracker:
            tracker_steps.check(tracker, len(steps))


@pytest.mark.skipif(not full_disk.can_fill(), reason="the disk of one process is filled on Linux only")
def test_a_disk_that_fills_at_any_moment_loses_nothing_and_is_one_line(tmp_path: Path) -> None:
    chance, lives, where = random.Random(7), lives_of(tmp_path), str(tmp_path / "recover.db")
    span = span_of_a_life("sqlite", tmp_path)
    for done in rounds(lives, 5):
        after = span * chance.uniform(0.2, 1.2)
        code, said = lives.on_a_full_disk(tracker_steps.work, where, done, after=after)
        assert code == 1
        assert "free some space and run again" in said.splitlines()[-1]
        if (tmp_path / "recover.db").exists():
            with Tracker(where) as tracker:
                tracker_steps.check(tracker, len(lives.acknowledged()))
    assert len(lives.acknowledged()) > 4
