"""Record cycles that were judged by families, and a search for the weights that forgot, for the dashboard."""

from __future__ import annotations

from typing import Any

from db.writes.tracker import Tracker
from tests.support import databases

SCORES = {
    "ifeval": {"clean": 0.98, "midtrained": 0.2, "recovered": 0.95},
    "json": {"clean": 0.91, "midtrained": 0.34, "recovered": 0.9},
    "refusals": {"clean": 0.88, "midtrained": 0.61, "recovered": 0.83},
    "multi-turn": {"clean": 0.77, "midtrained": 0.4, "recovered": 0.76},
    "calibration": {"clean": 0.95, "midtrained": 0.72, "recovered": 0.94},
}


def axis(outcome: str, **more: Any) -> dict[str, Any]:
    numbers = {"difference": -0.01, "lower_bound": -0.03, "upper_bound": 0.02, "margin": 0.05, "n": 500}
    return {
        "outcome": outcome,
        **numbers,
        "gained": 3,
        "lost": 8,
        "families": 5,
        "reference": "clean",
        **more,
    }


def record_families(tracker: Tracker, cycles: int, reason: str) -> None:
    """Record cycles with all families but tools, which was not measured for the reason."""
    for _ in range(cycles):
        number = databases.record_cycle(tracker, SCORES)
        rows = {
            "behaviour": axis("recovered"),
            "json": axis("kept"),
            "refusals": axis("underpowered", kind="harmful", needed_n=900),
            "tools": {"outcome": "not measured", "families": 5, "reason": reason},
        }
        tracker.record_verdicts(number, rows)


def record_search(tracker: Tracker, name: str) -> str:
    """Record a search in which one part of a hostile name is enough; return the run's id."""

    def scores(ifeval: float, json: float) -> dict[str, Any]:
        return {
            suite: {"score": value, "n": 100, "interval": [value - 0.05, min(1.0, value + 0.05)]}
            for suite, value in (("ifeval", ifeval), ("json", json))
        }

    bounds = {"difference": -0.012, "lower_bound": -0.025, "upper_bound": 0.01, "reference": "clean"}
    head = {
        "parts": [name],
        "scores": scores(0.96, 0.9),
        "axes": {"behaviour": bounds, "json": bounds},
        "passed": True,
    }
    norms = {"parts": ["norms"], "scores": scores(0.3, 0.4), "axes": {}, "passed": False}
    still = {"parts": ["embeddings"], "scores": {}, "axes": {}, "passed": False}
    run = tracker.start_run("locate", config={})
    result = {
        "checkpoint": "mid1",
        "clean": "clean0",
        "ends": {"clean": scores(0.98, 0.91), "checkpoint": scores(0.2, 0.34)},
        "parts": [head, norms, still],
        "sets": [{**norms, "parts": [name, "norms"]}],
        "offered": head,
        "words": f"put back {name}: behaviour at most 2.5 points below the clean model",
    }
    tracker.finish_run(run.id, result)
    return run.id
