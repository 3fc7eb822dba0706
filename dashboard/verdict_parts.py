"""Show a verdict, the same on pages and in reports: its axes, why one claims nothing, what would tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.markup import Html, tag
from dashboard.number_format import NONE, bound, limit, points
from dashboard.page_parts import beside_claim, prompts, samples_of_axis, sentence
from dashboard.status_chips import chip
from db.cycle_names import AXES, STAGES, may_go_on, other_axes
from evals.ifeval import IFEVAL
from evals.probes import UPDATES
from evals.scores import LIKELY_LOST, enough_in_words, is_likely_lost
from evals.verdict import BEHAVIOUR, NOT_MEASURED, TASK_HAS, UNDERPOWERED, is_task

Row = Mapping[str, Any]


def axes_of(cycle: Row) -> dict[str, Row | None]:
    """Return the axes of a cycle's verdict by name, then families and tasks; None for one without a claim.

    Updates are left out unless changed facts were asked about."""
    judged = (cycle["verdict"] or {}).get("axes") or {}
    if not judged:
        return {}
    asked = [name for name in AXES if name != UPDATES or name in judged or name in cycle["scores"]]
    return {name: judged.get(name) for name in (*asked, *judged)}


def tasks_of(cycle: Row) -> list[str]:
    """Return the tasks of lm-eval that a cycle was judged by."""
    return [name for name in other_axes(cycle["verdict"]) if is_task(name)]


def unjudged(cycle: Row, coming: str) -> str:
    """Say why a cycle has no axis: that none could be judged, or what is `coming` where it may go on."""
    if cycle["status"] == "rejected":
        return "No axis could be judged: the half of the questions that decides holds none."
    return coming if may_go_on(cycle) else "There is none."


def named(name: str, axis: Row) -> str:
    """Return an axis's name, with the kind of item that its numbers are of: refusals (harmful)."""
    kind = _details(axis).get("kind")
    return f"{name} ({kind})" if kind else name


def why_unmeasured(name: str, axis: Row | None, cycle: Row) -> str:
    """Say why an axis claims nothing; nothing of one that does."""
    if axis is None:
        return _without_scores(name, cycle)
    reason = _details(axis).get("reason")
    measured = axis.get("difference") is not None and not reason
    return "" if measured else f"{reason or 'There is nothing to compare'}."


def needed(axis: Row) -> str:
    """Say what would decide an underpowered claim: how many prompts, of all kinds together."""
    if axis["outcome"] != UNDERPOWERED:
        return ""
    if is_likely_lost(axis):
        return sentence(LIKELY_LOST)
    only = f" {sentence(TASK_HAS)}" if is_task(_details(axis).get("suite", IFEVAL)) else ""
    if not axis.get("needed_n"):
        return f"{enough_in_words(None).capitalize()}.{only}"
    in_all = " in all" if "kind" in _details(axis) else ""
    return f"It would take {axis['needed_n']:,} prompts{in_all} to tell.{only}"


def remarks(name: str, axis: Row | None, cycle: Row) -> list[Html]:
    """Say why an axis claims nothing, or how many prompts would tell, and what it tells beside its claim."""
    why = why_unmeasured(name, axis, cycle) or (needed(axis) if axis else "")
    said = [tag("p", tag("b", name), f": {why}", class_="small")] if why else []
    return said + (beside_claim(axis) if axis else [])


def both_bounds(axis: Row) -> str:
    """Return the one-sided bounds of an axis in points: −2.9 to +2.0."""
    if axis["lower_bound"] is None:
        return NONE
    return " to ".join(bound(axis[end], axis["margin"]) for end in ("lower_bound", "upper_bound"))


def line(name: str, found: Row | None, samples: Mapping[str, int]) -> list[Any]:
    """Return an axis's cells in the table of a report."""
    if found is None:
        return [name, chip(NOT_MEASURED), *[tag("td", NONE, class_="n")] * 6]
    numbers = [
        points(found["difference"]),
        both_bounds(found),
        limit(found["margin"]),
        found["gained"],
        found["lost"],
        prompts(found["n"], samples_of_axis(name, found, samples)),
    ]
    cells = [tag("td", NONE if n is None else n, class_="n") for n in numbers]
    return [named(name, found), chip(found["outcome"]), *cells]


def _without_scores(name: str, cycle: Row) -> str:
    suite = IFEVAL if name == BEHAVIOUR else name
    scores = cycle["scores"].get(suite)
    if not scores:
        return f"No {suite} question was asked."
    absent = [stage for stage in STAGES if scores.get(stage) is None]
    return f"There is no {suite} score of: {', '.join(absent)}." if absent else "Nothing was compared."


def _details(axis: Row) -> Row:
    details: Row | None = axis.get("details")
    return details or {}
