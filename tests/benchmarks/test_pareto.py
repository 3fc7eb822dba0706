"""The Pareto benchmark's arithmetic by hand: knowledge lost at a level of behaviour, paired by seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.ledger import markdown
from benchmarks.outcomes import pareto
from recovery.methods.table import with_dials


def line(seed: int, method: str, behaviour: float, recall: float, dial: float = 0.0, steps: int = 0) -> Any:
    named = pareto._name(seed, method, dial, steps, 10)
    return {**named, "behaviour": behaviour, "knowledge": 0.5, "retention": 0.9, "recall": recall}


def world(seed: int, *, near_lost: float) -> list[Any]:
    """Midtraining takes behaviour from 1 to 1/4; opd wins half of it for 0.1, and 3/4 for 0.3."""
    return [
        line(seed, "clean", 1.0, 0.0),
        line(seed, "midtrained", 0.25, 0.9),
        line(seed, "opd", 0.625, 0.8, dial=0.5, steps=5),
        line(seed, "opd", 0.8125, 0.6, dial=1.0, steps=5),
        line(seed, "opd-near", 0.8125, 0.9 - near_lost, dial=0.03, steps=5),
    ]


def test_every_setting_is_a_method_that_exists() -> None:
    assert len({len(arm.values) for arm in pareto.ARMS}) == 1  # neither may choose among more
    for arm in pareto.ARMS:
        for value in arm.values:
            settings, factor = arm.training(value)
            with_dials(settings["method"], settings.get("dials", {}))
            assert factor > 0
    assert pareto.OPD.training(0.5)[1] == 0.5
    assert pareto.NEAR.training(0.03)[0]["dials"] == {"kl_budget": 0.03}


def test_points_are_shares_of_what_midtraining_took() -> None:
    found = {(point.method, point.dial): point for point in pareto.measured(world(1, near_lost=0.05))}
    assert found["opd", 0.5].won == pytest.approx(0.5)
    assert found["opd", 0.5].lost == pytest.approx(0.1)
    assert found["opd-near", 0.03].won == pytest.approx(0.75)
    assert found["opd-near", 0.03].lost == pytest.approx(0.05)


def test_levels_by_hand() -> None:
    lines = world(1, near_lost=0.05) + world(2, near_lost=0.06)
    half, most, all_of_it = pareto.levels(lines)
    assert half["opd"] == pytest.approx(0.1)
    assert half["opd-near"] == pytest.approx(0.055)
    assert half["opd-near loses"] == "not distinguishable"  # -0.045, and two worlds allow 0.064
    assert most["opd"] == pytest.approx(0.3)
    assert most["near - opd"].startswith("-0.245")
    assert most["opd-near loses"] == "less"
    assert all_of_it["seeds"] == 0 and all_of_it["opd-near loses"] == "not measured"
    assert "| 75% or more | 2 |" in markdown([half, most, all_of_it])


def test_one_world_claims_nothing() -> None:
    rows = pareto.levels(world(1, near_lost=0.05))
    assert rows[0]["opd-near loses"] == "not distinguishable"


def test_the_front_and_its_picture(tmp_path: Path) -> None:
    places = [(0.5, 0.1), (0.6, 0.05), (0.75, 0.3), (0.7, 0.4)]
    assert pareto._front(places) == [(0.6, 0.05), (0.75, 0.3)]
    pareto.picture(world(1, near_lost=0.05), tmp_path / "pareto.png")
    assert (tmp_path / "pareto.png").stat().st_size > 1000
