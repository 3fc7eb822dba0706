"""Compare two checkpoints on the same prompts: every shared suite, its flips, and what may be claimed."""

from __future__ import annotations

from typing import Any

from db.reads import queries
from evals import comparison
from evals.probes import EARLIER
from evals.scores import prompts_in_words
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
    apart = [] if suite else _asked_apart(ws, (first, second), rows)
    found_on = {"suites": rows, "apart": apart, "chosen": chosen, "verdict": verdict}
    return {"a": first, "b": second, **rows[0], **found_on}


def _asked_apart(ws: Workspace, both: tuple[str, str], rows: list[Row]) -> list[str]:
    """Return the suites that both checkpoints were asked, but otherwise; none on earlier cycles' documents,
    which are compared where they are named."""
    one, other = (_suites_of(ws, checkpoint) for checkpoint in both)
    compared = {row["suite"] for row in rows}
    return sorted(name for name in (one & other) - compared if not name.startswith(EARLIER))


def _suites_of(ws: Workspace, checkpoint: str) -> set[str]:
    """Return the suites of which a checkpoint has scores with items, which alone can be paired."""
    scores = queries.scores(ws.tracker.db, checkpoint_id=checkpoint)
    return {row["suite"] for row in scores if row["item_set"]}


def never_scored(a: tuple[str, str], b: tuple[str, str], suite: str | None) -> InputError:
    """Return the refusal of two checkpoints, each named and with its id, that share no score."""
    on = f"the same {suite} prompts" if suite else "the same prompts"
    both = f"{a[0]} and {b[0]}" + (f" (both are {a[1]})" if a[1] == b[1] else "")
    remedy = "run `recover eval` on both"
    if suite and suite.startswith(EARLIER):
        remedy = "later cycles ask these of their recovered models: name two of those"
    return InputError(f"{both} were never scored on {on}: {remedy}")


def _test(row: Row) -> str:
    return "permutation test" if row["p_mcnemar"] is None else "McNemar"


def compare_text(found: Row) -> str:
    lines = [f"a  {found['a']}", f"b  {found['b']}"]
    for row in found["suites"]:
        low, high = row["interval"]
        lines += [
            "",
            f"{comparison.name(row)} on the same {prompts_in_words(row['n'], row['samples'])}: "
            f"a {row['a_score']:.3f}, b {row['b_score']:.3f}",
            f"  difference   {row['difference']:+.3f}  95 % [{low:+.3f}, {high:+.3f}]",
            f"  flips        {row['gained']} fail -> pass, {row['lost']} pass -> fail"
            f"  ({_test(row)} p = {row['p_value']:.3g}, "
            f"Holm over {len(found['suites'])}: {row['p_holm']:.3g})",
            *([f"  {comparison.stale(row)}"] if "stale_a" in row else []),
            *(f"  {sentence}" for sentence in comparison.sentences(row)),
        ]
    if found["apart"]:
        names = ", ".join(found["apart"])
        lines += [
            "",
            "not compared, as prompts, their number, samples, metrics or accepted answers differ: "
            f"{names}: ask both the same file with the same --limit and --samples",
        ]
    lines += [f"\n{comparison.flattered(one)}" for one in found["chosen"]]
    return "\n".join([*lines, "", found["verdict"]])
