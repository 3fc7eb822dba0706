"""Two checkpoints on the same prompts: every suite that both answered, the flips, what may be claimed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from db import queries
from evals import statistics
from evals.scores import cluster
from evals.verdict import AXES
from pipelines.workspace import Workspace
from recovery.errors import InputError

HEADLINE = "ifeval"
ALPHA = 0.05
Row = dict[str, Any]


def compare(ws: Workspace, a: str, b: str, suite: str | None = None) -> Row:
    """The difference b - a, suite by suite, with intervals, flips, and whether the two can be told apart.

    Several suites are several chances to be fooled: the words go by Holm's adjusted p-values. The first suite
    (IFEval where it was asked) stands at the top level as well.
    """
    db = ws.tracker.db
    first, second = queries.resolve(db, a), queries.resolve(db, b)
    found = queries.compared(db, first, second, suite=suite)
    if not found:
        asked = f"the same {suite} prompts" if suite else "the same prompts"
        raise InputError(f"{first} and {second} were never scored on {asked}: run `recover eval` on both")
    found.sort(key=lambda row: row["suite"] != HEADLINE)
    rows = _adjusted([_row(ws, first, second, row) for row in found])
    return {"a": first, "b": second, **rows[0], "suites": rows, "verdict": _in_words(second, rows)}


def _row(ws: Workspace, a: str, b: str, scored: Row) -> Row:
    pairs = queries.pairs(ws.tracker.db, a, b, scored["suite"], metric=scored["metric"])
    before, after = [row["passed_a"] for row in pairs], [row["passed_b"] for row in pairs]
    clusters = [cluster(row["key"], row["detail_b"]) for row in pairs]
    told = asdict(statistics.compare(after, before, ALPHA, clusters))
    shares = {"a_score": sum(before) / len(pairs), "b_score": sum(after) / len(pairs)}
    margin = _margin(ws, scored["suite"])
    kept = statistics.non_inferiority(after, before, margin=margin, clusters=clusters)
    claim = {
        "outcome": kept.outcome,
        "margin": margin,
        "lower_bound": kept.lower_bound,
        "needed_n": kept.needed_n,
    }
    return {"suite": scored["suite"], "metric": scored["metric"], **shares, **told, "non_inferior": claim}


def _margin(ws: Workspace, suite: str) -> float:
    """What still counts as kept: recover.yaml's margins, where there is one."""
    axis = next((axis for axis in AXES if axis.suite == suite), AXES[0])
    try:
        settings = ws.config.eval
    except InputError:  # a home without recover.yaml, such as one made by hand
        return axis.margin
    return settings.retention_margin if axis.name == "retention" else settings.margin


def _adjusted(rows: list[Row]) -> list[Row]:
    """Each with Holm's p-value over all of them, which decides the words."""
    adjusted = statistics.holm([row["p_mcnemar"] for row in rows]).tolist()
    same = "not distinguishable"
    return [
        row | {"p_holm": p, "words": row["words"] if p <= ALPHA else same}
        for row, p in zip(rows, adjusted, strict=True)
    ]


def _in_words(b: str, rows: list[Row]) -> str:
    told = [f"{row['words']} on {_name(row)}" for row in rows if not row["words"].startswith("not")]
    if not told:
        return "not distinguishable"
    rest = [_name(row) for row in rows if row["words"].startswith("not")]
    return f"{b} is {', '.join(told)}" + (f"; not distinguishable on {', '.join(rest)}" if rest else "")


def _name(row: Row) -> str:
    return f"{row['suite']} ({row['metric']})" if row["metric"] == "cloze" else str(row["suite"])


def compare_text(found: Row) -> str:
    lines = [f"a  {found['a']}", f"b  {found['b']}"]
    for row in found["suites"]:
        low, high = row["interval"]
        lines += [
            "",
            f"{_name(row)} on the same {row['n']} prompts: a {row['a_score']:.3f}, b {row['b_score']:.3f}",
            f"  difference   {row['difference']:+.3f}  95 % [{low:+.3f}, {high:+.3f}]",
            f"  flips        {row['gained']} fail -> pass, {row['lost']} pass -> fail"
            f"  (McNemar p = {row['p_mcnemar']:.3g}, Holm over {len(found['suites'])}: {row['p_holm']:.3g})",
            f"  {_said(row)}",
            f"  {_claim(row['non_inferior'])}",
        ]
    return "\n".join([*lines, "", found["verdict"]])


def _said(row: Row) -> str:
    if row["words"] != "not distinguishable":
        return f"b is {row['words']}"
    return f"not distinguishable; a true difference below {row['detectable']:.1%} would mostly go unseen here"


def _claim(claim: Row) -> str:
    margin = f"{claim['margin']:.0%}"
    words = {
        "passed": f"b is shown to be at most {margin} worse",
        "failed": f"that b is at most {margin} worse is not shown",
        "underpowered": f"whether b is at most {margin} worse takes about {claim['needed_n']} prompts",
    }
    return f"{words[claim['outcome']]} (one-sided 95 % lower bound {claim['lower_bound']:+.1%})"
