"""Two checkpoints on the same prompts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from db import queries
from evals import statistics
from pipelines.workspace import Workspace
from recovery.errors import InputError


def compare(ws: Workspace, a: str, b: str, suite: str) -> dict[str, Any]:
    """The difference b - a with its interval, the flips, and whether the two can be told apart."""
    db = ws.tracker.db
    first, second = queries.resolve(db, a), queries.resolve(db, b)
    pairs = queries.pairs(db, first, second, suite)
    if not pairs:
        raise InputError(f"{suite} has no items that could be paired: run `recover eval` on {a} and on {b}")
    before = [bool(row["passed_a"]) for row in pairs]
    after = [bool(row["passed_b"]) for row in pairs]
    scores = {"a_score": sum(before) / len(pairs), "b_score": sum(after) / len(pairs)}
    return {"a": first, "b": second, "suite": suite, **scores, **asdict(statistics.compare(after, before))}


def compare_text(found: dict[str, Any]) -> str:
    low, high = found["interval"]
    return "\n".join((
        f"{found['suite']} on the same {found['n']} prompts",
        f"  {found['a']}  {found['a_score']:.3f}",
        f"  {found['b']}  {found['b_score']:.3f}",
        f"difference {found['difference']:+.3f}  95 % [{low:+.3f}, {high:+.3f}]"
        f"  McNemar p = {found['p_mcnemar']:.3g}",
        f"flips      {found['gained']} fail -> pass, {found['lost']} pass -> fail",
        found["words"] if found["words"].startswith("not") else f"{found['b']} is {found['words']}",
    ))
