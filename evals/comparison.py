"""Two checkpoints, suite by suite, on the same items: what may be claimed, in words. Pure; no database.

Several suites are several chances to be fooled: the words go by Holm's adjusted p-values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from evals import statistics
from evals.knowledge import BESIDE
from evals.scores import cluster
from evals.verdict import AXES

ALPHA = 0.05
SAME = "not distinguishable"

Row = dict[str, Any]


def compare(suites: Sequence[Mapping[str, Any]], margins: Mapping[str, float] | None = None) -> list[Row]:
    """A row a suite. `suites` have suite, metric and pairs: rows of key, passed_a, passed_b, detail_b.
    `margins`: axis name -> what still counts as kept."""
    return _adjusted([_row(suite, margins or {}) for suite in suites])


def in_words(b: str, rows: Sequence[Row]) -> str:
    """The verdict in a sentence."""
    told = [f"{row['words']} on {name(row)}" for row in rows if row["words"] != SAME]
    if not told:
        return SAME
    rest = [name(row) for row in rows if row["words"] == SAME]
    return f"{b} is {', '.join(told)}" + (f"; {SAME} on {', '.join(rest)}" if rest else "")


def name(row: Mapping[str, Any]) -> str:
    return f"{row['suite']} ({row['metric']})" if row["metric"] in BESIDE else str(row["suite"])


def said(row: Row) -> str:
    if row["words"] != SAME:
        return f"b is {row['words']}"
    return f"{SAME}; a true difference below {row['detectable']:.1%} would mostly go unseen here"


def claim(row: Row) -> str:
    """What may be said of b being no worse than a by more than the margin."""
    found, margin = row["non_inferior"], f"{row['non_inferior']['margin']:.0%}"
    words = {
        "passed": f"b is shown to be at most {margin} worse",
        "failed": f"that b is at most {margin} worse is not shown",
        "underpowered": f"whether b is at most {margin} worse takes about {found['needed_n']} prompts",
    }
    return f"{words[found['outcome']]} (one-sided 95 % lower bound {found['lower_bound']:+.1%})"


def _row(suite: Mapping[str, Any], margins: Mapping[str, float]) -> Row:
    pairs = suite["pairs"]
    before, after = [row["passed_a"] for row in pairs], [row["passed_b"] for row in pairs]
    clusters = [cluster(row["key"], row["detail_b"]) for row in pairs]
    axis = next((axis for axis in AXES if axis.suite == suite["suite"]), AXES[0])
    margin = margins.get(axis.name, axis.margin)
    kept = statistics.non_inferiority(after, before, margin=margin, clusters=clusters)
    numbers = {
        "outcome": kept.outcome,
        "margin": margin,
        "lower_bound": kept.lower_bound,
        "needed_n": kept.needed_n,
    }
    told = asdict(statistics.compare(after, before, ALPHA, clusters))
    shares = {"a_score": sum(before) / len(pairs), "b_score": sum(after) / len(pairs)}
    return {"suite": suite["suite"], "metric": suite["metric"], **shares, **told, "non_inferior": numbers}


def _adjusted(rows: list[Row]) -> list[Row]:
    """Each with Holm's p-value over all of them, which decides the words."""
    adjusted = statistics.holm([row["p_mcnemar"] for row in rows]).tolist()
    return [
        row | {"p_holm": p, "words": row["words"] if p <= ALPHA else SAME}
        for row, p in zip(rows, adjusted, strict=True)
    ]
