"""Comparison of two checkpoints, suite by suite, on the same items: which claims hold. Pure, no database.

Holm's adjustment over all compared suites decides the words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from evals import statistics
from evals.families import claims
from evals.families.measures import measure_of
from evals.families.table import FAMILIES
from evals.knowledge import BESIDE
from evals.probes import OLD, UPDATES
from evals.scores import Item, bound_in_points, deciding_in_words, prompts_for, prompts_in_words, samples_of
from evals.verdict import axes_for, margins_of

ALPHA = 0.05
SAME = "not distinguishable"
MODES = {  # how a checkpoint is asked, which the answers depend on
    "max_new_tokens": "most new tokens",
    "template_args": "template arguments",  # thinking, and the date
    "temperature": "temperature",
    "stop_loops": "ending loops",
}

Row = dict[str, Any]


def compare(suites: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return one row per suite, and one per kind of a family whose kinds are judged alone.

    `suites` hold suite, metric, pairs (rows of key, prompt, passed_a, passed_b, detail_b, for changed facts
    also answered_a and answered_b, for calibration confidence_a, for a task value_a) and, where they are
    known, the item_set, the modes in which both checkpoints were asked, the notes of both scores, and the
    settings that name the margins of non-inferiority.
    """
    parts = [part for suite in suites for part in _parts(suite)]
    return _adjusted([_row(part, ALPHA / len(parts)) for part in parts])


def in_words(b: str, rows: Sequence[Row]) -> str:
    """Summarise all suites in one sentence."""
    differing = [f"{row['words']} on {name(row)}" for row in rows if row["words"] != SAME]
    if not differing:
        return SAME
    rest = [name(row) for row in rows if row["words"] == SAME]
    return f"{b} is {', '.join(differing)}" + (f"; {SAME} on {', '.join(rest)}" if rest else "")


def name(row: Mapping[str, Any]) -> str:
    """Return a suite's name, with its kind, or with what was measured where that is not its headline."""
    if "kind" in row:
        return f"{row['suite']} ({row['kind']})"
    beside = str(row["metric"]).replace("_", " ")
    return f"{row['suite']} ({beside})" if row["metric"] in BESIDE else str(row["suite"])


def difference_sentence(row: Row) -> str:
    """State the difference of one suite, or the smallest one that would have shown."""
    if row["words"] != SAME:
        return f"b is {row['words']}"
    corrected = " after Holm's correction for all suites" if row["p_value"] <= ALPHA else ""
    prompts, smallest = prompts_in_words(row["n"], row["samples"]), row["detectable"]
    if smallest >= 1:
        return f"{SAME}{corrected}; {prompts} are too few to show any difference"
    shown = f"show differences of {100 * smallest:.1f} points or more with 80 % power"
    return f"{SAME}{corrected}; {prompts} {shown}"


def stale(row: Row) -> str:
    """State the shares of old answers to changed facts."""
    return f"stale        a {row['stale_a']:.3f}, b {row['stale_b']:.3f}: the old answer to a changed fact"


def chosen(
    models: Iterable[str], by_questions: Mapping[str, Collection[str]], rows: Sequence[Row]
) -> list[str]:
    """Return the models, each once, that questions of these rows have chosen among several.

    `by_questions` holds by model the sets of questions that have."""
    asked = {row["item_set"] for row in rows}
    return [model for model in dict.fromkeys(models) if asked.intersection(by_questions.get(model, ()))]


def flattered(name: str) -> str:
    """Say what to think of a checkpoint that a cycle's questions chose among several."""
    return (
        f"{name} was chosen by half of its cycle's questions, which flatter it: its verdict judges by "
        "the other half"
    )


def claim_sentence(row: Row) -> str:
    """State whether b is at most the margin worse than a."""
    result = row["non_inferior"]
    margin = f"{100 * result['margin']:g} points"
    lower = f"one-sided 95 % lower bound {bound_in_points(result['lower_bound'], result['margin'])}"
    if result["outcome"] == claims.NOTHING_TO_LOSE:
        return f"nothing to lose: a passes {100 * row['a_score']:.1f} %, no more than the margin of {margin}"
    if result["outcome"] == "passed":
        return f"b is at most {margin} worse ({lower})"
    if result["outcome"] == "failed":
        upper = f"one-sided 95 % upper bound {bound_in_points(result['upper_bound'], result['margin'])}"
        return f"b is more than {margin} worse ({upper})"
    enough = deciding_in_words({**result, "difference": row["difference"]})
    return f"underpowered, it is not shown whether b is at most {margin} worse: {enough} ({lower})"


def sentences(row: Row) -> list[str]:
    """State all that may be said of one suite."""
    settings = [settings_sentence(row)] if row["unlike"] else []
    notes = [f"note: {note}" for note in row["notes"]]
    return [difference_sentence(row), claim_sentence(row), *settings, *notes]


def settings_sentence(row: Row) -> str:
    """State the settings in which the two evaluations differ."""
    ways = [f"{what} {a} for a, {b} for b" for what, (a, b) in row["unlike"].items()]
    return f"not asked alike: {'; '.join(ways)}; evaluate both in the same way"


def _parts(suite: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a suite, or its kinds where each is judged alone: refusals of harmful and of benign requests."""
    family, pairs = FAMILIES.get(suite["suite"]), suite["pairs"]
    apart = claims.judged_apart(family, pairs, lambda row: str(row["detail_b"]["kind"])) if family else {}
    parts: list[Mapping[str, Any]] = [
        {**suite, "kind": kind, "pairs": found, "asked": pairs} for kind, found in apart.items()
    ]
    return parts or [suite]


def _row(suite: Mapping[str, Any], corrected: float) -> Row:
    name, pairs = suite["suite"], suite["pairs"]
    measure = measure_of(FAMILIES.get(name))
    items = [(_after(row), _before(row)) for row in pairs]
    before = [item for _, item in items]
    kept = measure.claim(items, _margin(name, suite.get("settings") or {}), ALPHA)
    claimed = {key: kept[key] for key in ("outcome", "margin", "lower_bound", "upper_bound")}
    needed = claims.of_family(kept["needed_n"], pairs, suite.get("asked", pairs))
    standard = measure.value(before)
    if not measure.can_be_lost(standard, kept["margin"]):
        claimed["outcome"] = claims.NOTHING_TO_LOSE
    return {
        "suite": name,
        "metric": suite["metric"],
        "item_set": suite.get("item_set"),
        **({"kind": suite["kind"]} if "kind" in suite else {}),
        "a_score": standard,
        "b_score": measure.value([after for after, _ in items]),
        **measure.compare(items, ALPHA, corrected),
        "samples": samples_of((row["key"], row["prompt"]) for row in pairs),
        "non_inferior": {**claimed, "needed_n": prompts_for(needed, before)},
        **(_stale_rates(pairs) if name == UPDATES else {}),
        "unlike": _differences(*suite.get("modes", (None, None))),
        "notes": list(dict.fromkeys(suite.get("notes", ()))),
    }


def _differences(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> dict[str, list[Any]]:
    """Return the settings in which two evaluations differ, by their words; none where a mode is unknown."""
    pairs = {what: [(mode or {}).get(name) for mode in (a, b)] for name, what in MODES.items()}
    return {what: pair for what, pair in pairs.items() if None not in pair and pair[0] != pair[1]}


def _after(row: Mapping[str, Any]) -> Item:
    return Item(row["key"], row["prompt"], "", bool(row["passed_b"]), row["detail_b"])


def _before(row: Mapping[str, Any]) -> Item:
    own = {"confidence": row.get("confidence_a"), "value": row.get("value_a", row["passed_a"])}
    detail = {**row["detail_b"], **own}
    return Item(row["key"], row["prompt"], "", bool(row["passed_a"]), detail)


def _margin(suite: str, settings: Mapping[str, Any]) -> float:
    """Return the margin of the suite's axis; behaviour's where a suite has none, or only a lead."""
    axes = axes_for(margins_of(settings))
    return next((axis.margin for axis in axes if axis.suite == suite and axis.margin > 0), axes[0].margin)


def _stale_rates(pairs: Sequence[Mapping[str, Any]]) -> Row:
    """Return the share of old answers to changed facts, of both checkpoints."""
    return {
        f"stale_{side}": sum(row[f"answered_{side}"] == OLD for row in pairs) / len(pairs) for side in "ab"
    }


def _adjusted(rows: list[Row]) -> list[Row]:
    """Add Holm's p-value over all rows; it decides the words."""
    adjusted = statistics.holm([row["p_value"] for row in rows]).tolist()
    return [
        row | {"p_holm": p, "words": row["words"] if p <= ALPHA else SAME}
        for row, p in zip(rows, adjusted, strict=True)
    ]
