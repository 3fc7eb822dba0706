"""How many times as fast the CPU engine is, by hand."""

from __future__ import annotations

from benchmarks.speed import cpu


def test_speeds_are_divided_round_by_round() -> None:
    """Three, two and two times; the medians of all turns, 30 and 10, would make it three."""
    found = {"engine": [[30.0, 30.0], [12.0, 12.0], [40.0, 40.0]], "without": [[10.0, 10.0], [6.0], [20.0]]}
    made = cpu.row("training", found)
    assert (made["engine"], made["without"]) == (30.0, 10.0)
    assert made["times without"] == "2 (2-3)"
    assert "times torch.compile" not in made
