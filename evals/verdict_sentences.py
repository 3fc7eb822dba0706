"""Say a verdict in words: one sentence for each axis, and what too few questions of a cycle mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evals import learned, looks
from evals.scores import LIKELY_LOST, bound_in_points, enough_in_words, is_likely_lost
from evals.verdict import (
    NOT_MEASURED,
    OLD_ANSWERS,
    TASK_HAS,
    UNDERPOWERED,
    Axis,
    axes_of,
    blocking,
    is_refuted,
    is_task,
)

TOO_FEW = "too few questions"
HOW = "docs/evaluation.md: when a verdict is underpowered"


def summary(result: Mapping[str, Any]) -> list[str]:
    """Return one sentence per axis."""
    return [_axis_sentence(axis, result) for axis in axes_of(result)]


def short_summary(result: Mapping[str, Any], required: Sequence[str] | None = None) -> list[str]:
    """Return one sentence per axis, without optional axes that are neither measured nor required."""
    return [
        _axis_sentence(axis, result)
        for axis in axes_of(result)
        if axis.name in result["axes"] or not axis.optional or axis.named_in(required)
    ]


def _axis_sentence(axis: Axis, result: Mapping[str, Any]) -> str:
    row = result["axes"].get(axis.name)
    return _sentence(row) if row else f"{axis.name}: {NOT_MEASURED} (no {axis.suite} scores)"


def nothing_to_lose(details: Mapping[str, Any]) -> str:
    """Say that an axis had nothing to lose, as its standard passes no more than the margin; else nothing."""
    if "nothing_to_lose" not in details:
        return ""
    passed = f"{100 * details['nothing_to_lose']:.1f} %"
    return f"{details['reference']} passes {passed}, no more than the margin: nothing to lose"


def deciding_bound(row: Mapping[str, Any]) -> str:
    which = "upper" if is_refuted(row) else "lower"
    return f"{which} bound {bound_in_points(row[which + '_bound'], row['margin'])}"


def _sentence(row: Mapping[str, Any]) -> str:
    if "reason" in row:
        return f"{row['axis']}: {row['outcome']} ({row['reason']})"
    return _lead_sentence(row) if row["reference"] == OLD_ANSWERS else _paired_sentence(row)


def _lead_sentence(row: Mapping[str, Any]) -> str:
    neither = row["n"] - row["gained"] - row["lost"]
    line = (
        f"{row['axis']}: {row['outcome']} ({row['gained']} new, {row['lost']} old, {neither} neither "
        f"of {row['n']}: lead {100 * row['difference']:+.1f} points, {deciding_bound(row)}, "
        f"at least {-100 * row['margin']:+g})"
    )
    return line + (f"; {_needed(row, 'probes')}" if row["outcome"] == UNDERPOWERED else "")


def _needed(row: Mapping[str, Any], what: str) -> str:
    if is_likely_lost(row):
        return LIKELY_LOST
    needed = row["needed_n"]
    said = enough_in_words(None, what) if needed is None else f"it would take {needed} {what}"
    return f"{said} ({TASK_HAS})" if is_task(row["axis"]) else said


def _paired_sentence(row: Mapping[str, Any]) -> str:
    of = f" {row['kind']}" if "kind" in row else ""
    test = f", McNemar p = {row['p_mcnemar']:.2g}" if "p_mcnemar" in row else ""
    at_once = f", bounds for {row['families']} families at once" if row.get("families", 1) > 1 else ""
    line = (
        f"{row['axis']}: {row['outcome']} ({100 * row['difference']:+.1f} points against {row['reference']}, "
        f"{deciding_bound(row)}, margin {100 * row['margin']:g}; "
        f"{row['gained']} gained, {row['lost']} lost of {row['n']}{of}{test}{at_once})"
    )
    beside = [
        looks.in_words(row, row),
        _needed(row, "prompts") if row["outcome"] == UNDERPOWERED else "",
        nothing_to_lose(row),
        learned.sentence(row["learned"]) if "learned" in row else "",
    ]
    return "; ".join([line, *filter(None, beside)])


# A recorded cycle -------------------------------------------------------------------------------------------


def status_in_words(cycle: Mapping[str, Any]) -> str:
    """Return a cycle's status, of a rejected one also that too few questions alone were in the way."""
    return f"{cycle['status']}: {TOO_FEW}" if _too_few(cycle) else str(cycle["status"])


def more_questions(cycle: Mapping[str, Any]) -> str:
    """Say what to ask where too few questions alone were in the way of acceptance, and more would decide.

    New ones are judged by themselves, so that it takes as many as it would have taken in all. Of a task there
    are none."""
    needed = {name: cycle["verdict"]["axes"][name]["needed_n"] for name in _too_few(cycle)}
    if not needed or None in needed.values() or any(map(is_task, needed)):
        return ""
    enough = ", ".join(f"{count:,} on {name}" for name, count in needed.items())
    return f"ask new questions, without training (about {enough}; {HOW})"


def shows_loss_to_clean(cycle: Mapping[str, Any]) -> bool:
    """Return whether a loss to the clean model, shown or likely, was in the way of a rejected cycle: then
    more recovery helps."""
    verdict = cycle["verdict"]
    against_clean = {axis.name for axis in axes_of(verdict) if axis.reference == "clean"}
    return _likely_lost(verdict, against_clean & blocking(verdict, cycle.get("required")).keys())


def _likely_lost(verdict: Mapping[str, Any], names: Iterable[str]) -> bool:
    return any(is_likely_lost(verdict["axes"].get(name, {})) for name in names)


def _too_few(cycle: Mapping[str, Any]) -> list[str]:
    """Return the axes that were in the way of acceptance, if all of them are underpowered and none is
    likely lost."""
    if cycle["status"] != "rejected" or not cycle["verdict"]:
        return []
    words = blocking(cycle["verdict"], cycle.get("required"))
    few = set(words.values()) == {UNDERPOWERED} and not _likely_lost(cycle["verdict"], words)
    return list(words) if few else []
