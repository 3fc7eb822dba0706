"""The table of a pilot's forecasts: what came is held against each interval."""

from __future__ import annotations

from typing import Any

from benchmarks.outcomes.pilot import in_words, table


def line(seed: int, came: float) -> dict[str, Any]:
    forecast = {"value": 0.5, "low": 0.4, "high": 0.6, "came": came}
    shared = {"behaviour_lost": forecast, "learned": forecast, "kl": {**forecast, "came": 0.5}}
    return {"seed": seed, "setting": "planned", "rate": 5.5e-4, "steps": 240, **shared}


def test_what_came_is_held_against_the_interval() -> None:
    lines = [line(2, 0.7), line(1, 0.45)]
    first, second = table(lines)
    assert (first["seed"], second["seed"]) == (1, 2)
    assert first["behaviour lost"] == "0.50 [0.40, 0.60]: 0.45" and first["rate"] == "0.00055"
    said = in_words(lines)
    assert "behaviour lost 1 of 2 within the interval" in said and "KL 2 of 2 within the interval" in said
