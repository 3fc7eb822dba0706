"""Compare two checkpoints on the same prompts: every shared suite, its flips, and what may be claimed."""

from __future__ import annotations

from typing import Any

from db.reads import queries
from evals import comparison
from evals.probes import EARLIER
from evals.scores import asked
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError

Row = dict[str, Any]


def compare(ws: Workspace, a: str, b: str, suite: str | None = None) -> Row:
    """Return b - a for each suite, with intervals, flips, and whether the difference is significant.

    The first suite (IFEval where both have it) is repeated at the top level. Suites and margins are those of
    the dashboard's page Compare: `paired_suites` names both.
    """
    db = ws.tracker.db
    first, second = queries.resolve(db, a), queries.resolve(db, b)
    found = queries.paired_suites(db, first, second, suite=suite)
    if not found:
        raise never_scored((a, first), (b, second), suite)
    rows = comparison.compare(found)
    chosen = comparison.chosen((first, second), queries.chosen_by_questions(db), rows)
    verdict = comparison.in_words(second, rows)
    return {"a": first, "b": second, **rows[0], "suites": rows, "chosen": chosen, "verdict": verdict}


def never_scored(a: tuple[str, str], b: tuple[str, str], suite: str | None) -> InputError:
    """Return the refusal of two checkpoints, each named and with its id, that share no score."""
    on = f"the same {suite} prompts" if suite else "the same prompts"
    both = f"{a[0]} and {b[0]}" + (f" (both are {a[1]})" if a[1] == b[1] else "")
    remedy = "run `recover eval` on both"
    if suite and suite.startswith(EARLIER):
        remedy = "later cycles ask these of their recovered models: name two of those"
    return InputError(f"{both} were never scored on {on}: {remedy}")


def _test(row: Row) -> str:
    return "bootstrap" if row["p_mcnemar"] is None else "McNemar"


def compare_text(found: Row) -> str:
    lines = [f"a  {found['a']}", f"b  {found['b']}"]
    for row in found["suites"]:
        low, high = row["interval"]
        lines += [
            "",
            f"{comparison.name(row)} on the same {asked(row['n'], row['samples'])}: "
            f"a {row['a_score']:.3f}, b {row['b_score']:.3f}",
            f"  difference   {row['difference']:+.3f}  95 % [{low:+.3f}, {high:+.3f}]",
            f"  flips        {row['gained']} fail -> pass, {row['lost']} pass -> fail"
            f"  ({_test(row)} p = {row['p_value']:.3g}, "
            f"Holm over {len(found['suites'])}: {row['p_holm']:.3g})",
            *([f"  {comparison.stale(row)}"] if "stale_a" in row else []),
            *(f"  {sentence}" for sentence in comparison.sentences(row)),
        ]
    lines += [f"\n{comparison.flattered(one)}" for one in found["chosen"]]
    return "\n".join([*lines, "", found["verdict"]])
