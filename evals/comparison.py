"""Comparison of two checkpoints, suite by suite, on the same items: which claims hold. Pure, no database.

Holm's adjustment over all compared suites decides the words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from evals import statistics
from evals.knowledge import BESIDE, OLD, UPDATES
from evals.scores import cluster
from evals.verdict import AXES

ALPHA = 0.05
SAME = "not distinguishable"

Row = dict[str, Any]


def compare(suites: Sequence[Mapping[str, Any]], margins: Mapping[str, float] | None = None) -> list[Row]:
    """Return one row per suite.

    `suites` hold suite, metric and pairs (rows of key, passed_a, passed_b, detail_b, and for changed facts
    answered_a, answered_b); `margins` maps axis names to the margin of non-inferiority.
    """
    return _adjusted([_row(suite, margins or {}) for suite in suites])


def in_words(b: str, rows: Sequence[Row]) -> str:
    """Summarise all suites in one sentence."""
    differing = [f"{row['words']} on {name(row)}" for row in rows if row["words"] != SAME]
    if not differing:
        return SAME
    rest = [name(row) for row in rows if row["words"] == SAME]
    return f"{b} is {', '.join(differing)}" + (f"; {SAME} on {', '.join(rest)}" if rest else "")


def name(row: Mapping[str, Any]) -> str:
    return f"{row['suite']} ({row['metric']})" if row["metric"] in BESIDE else str(row["suite"])


def said(row: Row) -> str:
    """State the difference of one suite, or the smallest one that would have shown."""
    if row["words"] != SAME:
        return f"b is {row['words']}"
    return f"{SAME}; a true difference below {row['detectable']:.1%} would mostly go unseen here"


def stale(row: Row) -> str:
    """State the shares of old answers to changed facts."""
    return f"stale        a {row['stale_a']:.3f}, b {row['stale_b']:.3f}: the old answer to a changed fact"


def claim(row: Row) -> str:
    """State whether b is at most the margin worse than a."""
    result = row["non_inferior"]
    margin = f"{result['margin']:.0%}"
    lower = f"one-sided 95 % lower bound {result['lower_bound']:+.1%}"
    if result["outcome"] == "passed":
        return f"b is shown to be at most {margin} worse ({lower})"
    if result["outcome"] == "failed":
        return (
            f"b is shown to be more than {margin} worse "
            f"(one-sided 95 % upper bound {result['upper_bound']:+.1%})"
        )
    return f"whether b is at most {margin} worse takes about {result['needed_n']} prompts ({lower})"


def _row(suite: Mapping[str, Any], margins: Mapping[str, float]) -> Row:
    pairs = suite["pairs"]
    before, after = [row["passed_a"] for row in pairs], [row["passed_b"] for row in pairs]
    clusters = [cluster(row["key"], row["detail_b"]) for row in pairs]
    margin = _margin(suite["suite"], margins)
    kept = statistics.non_inferiority(after, before, margin=margin, clusters=clusters)
    numbers = {
        "outcome": kept.outcome,
        "margin": margin,
        "lower_bound": kept.lower_bound,
        "upper_bound": kept.upper_bound,
        "needed_n": kept.needed_n,
    }
    difference = asdict(statistics.compare(after, before, ALPHA, clusters))
    shares = {"a_score": sum(before) / len(pairs), "b_score": sum(after) / len(pairs)}
    return {
        "suite": suite["suite"],
        "metric": suite["metric"],
        **shares,
        **difference,
        "non_inferior": numbers,
        **(_stale_rates(pairs) if suite["suite"] == UPDATES else {}),
    }


def _margin(suite: str, margins: Mapping[str, float]) -> float:
    """Return the margin of the suite's axis; behaviour's where a suite has none, or only a lead."""
    axis = next((axis for axis in AXES if axis.suite == suite and axis.margin > 0), AXES[0])
    return margins.get(axis.name, axis.margin)


def _stale_rates(pairs: Sequence[Mapping[str, Any]]) -> Row:
    """Return the share of old answers to changed facts, of both checkpoints."""
    return {
        f"stale_{side}": sum(row[f"answered_{side}"] == OLD for row in pairs) / len(pairs) for side in "ab"
    }


def _adjusted(rows: list[Row]) -> list[Row]:
    """Add Holm's p-value over all rows; it decides the words."""
    adjusted = statistics.holm([row["p_mcnemar"] for row in rows]).tolist()
    return [
        row | {"p_holm": p, "words": row["words"] if p <= ALPHA else SAME}
        for row, p in zip(rows, adjusted, strict=True)
    ]
