"""The verdict of a cycle: paired claims, each against what sets the standard.

| axis | suite | against | claim shown | opposite shown | margin |
|---|---|---|---|---|---|
| behaviour | ifeval | clean | recovered | not recovered | 0.03 |
| knowledge | knowledge | midtrained | kept | lost | 0.03 |
| retention | retention | clean | kept | lost | 0.10 |
| updates | updates | old answers | updated | not updated | -0.70 |

The first three compare the recovered model with a checkpoint. Updates compares, within the recovered model's
responses to changed facts, the new answers with the old ones: a negative margin is a lead that must be shown.
A claim is shown when the one-sided 95 % lower bound lies above minus the margin, its opposite when the upper
bound lies below. Between the two an axis is "underpowered"; without scores it is "not measured". Neither is a
pass, but updates, whose number of items the documents set, only blocks acceptance when refuted or required.
Behaviour may be judged in two looks (evals/looks.py).

Kept knowledge says nothing of what there was to keep: evals/learned.py compares it with the clean model's.

Each family that is asked for (evals/families) is one more claim, kept or lost against the clean model. They
are many, so their bounds hold for all of them at once: each is judged at alpha divided by their number.

So is each task of lm-eval that has a margin, at the whole of alpha: as every claim has to hold, a further one
makes a false acceptance rarer (an intersection-union test).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from evals import learned, looks
from evals.families import claims
from evals.families.table import FAMILIES, MARGIN
from evals.ifeval import FURTHER, IFEVAL
from evals.probes import KNOWLEDGE, NEW, OLD, RETENTION, UPDATES
from evals.scores import Item, Score, pairs, prompts_for, share
from evals.statistics import NonInferiority, superiority
from recovery.errors import InputError

ALPHA = 0.05  # of each claim; families share one
TASK_HAS = "a task has only its own: take a larger one, or a wider margin"
NOT_MEASURED = "not measured"
UNDERPOWERED = "underpowered"
OLD_ANSWERS = "old answers"
BEHAVIOUR = "behaviour"  # the one axis that does not have the name of its suite


@dataclass(frozen=True)
class Axis:
    """One claim: its suite, what it is judged against, its margin, the words of both outcomes."""

    name: str
    suite: str
    reference: str
    margin: float
    passed: str
    failed: str
    optional: bool = False  # whether a cycle may be accepted without this claim being shown
    further: str | None = None  # suite that is asked where this axis's own is underpowered

    def words(self, outcome: str) -> str:
        said = {"passed": self.passed, "failed": self.failed, claims.NOTHING_TO_LOSE: NOT_MEASURED}
        return said.get(outcome, outcome)

    def named_in(self, required: Sequence[str] | None) -> bool:
        """Return whether suites or axes that are required name this axis."""
        return not {self.suite, self.name}.isdisjoint(required or ())


AXES = (
    Axis(BEHAVIOUR, IFEVAL, "clean", 0.03, "recovered", "not recovered", further=FURTHER),
    Axis(KNOWLEDGE, KNOWLEDGE, "midtrained", 0.03, "kept", "lost"),
    Axis(RETENTION, RETENTION, "clean", 0.10, "kept", "lost"),
    Axis(UPDATES, UPDATES, OLD_ANSWERS, -0.70, "updated", "not updated", optional=True),
)
FAMILY_AXES = tuple(Axis(name, name, "clean", MARGIN, "kept", "lost") for name in FAMILIES)
EVERY_AXIS = (*AXES, *FAMILY_AXES)

KEYS = ("behaviour_lower_bound", "margin", "axes")  # of a verdict, beside its axes

Stages = Mapping[str, Score | Sequence[Item]]
"""One suite's scores by stage: "clean", "midtrained", "recovered"."""


def verdict(
    suites: Mapping[str, Stages],
    margins: Mapping[str, float] | None = None,
    alpha: float = ALPHA,
    unmeasured: Mapping[str, str] | None = None,
    two_looks: bool = False,
) -> dict[str, Any]:
    """Judge every axis: axis name -> word, and the counts and bounds of each measured axis under `axes`.

    A family is judged if it is among the suites, and a task if `margins` names it; `unmeasured` says why one
    of them has no scores. A suite without items, as in half of a small evaluation, is not measured. With
    `two_looks`, an axis that has further prompts is judged at half of alpha: on its own suite, or on both if
    the further one was asked.
    """
    asked = {name: _answered(stages) for name, stages in suites.items()}
    table = axes_for(margins)
    _require_asked(table, suites)
    words: dict[str, Any] = {}
    axes: dict[str, dict[str, Any]] = {}
    for axis in table[: len(AXES)]:
        row = _judge(axis, asked, alpha, in_two=two_looks)
        words[axis.name] = row.get("outcome", NOT_MEASURED)
        if row:
            axes[axis.name] = row
    if KNOWLEDGE in axes and "clean" in asked[KNOWLEDGE]:
        both = pairs(asked[KNOWLEDGE]["recovered"], asked[KNOWLEDGE]["clean"], KNOWLEDGE)
        axes[KNOWLEDGE]["learned"] = learned.learned(both)
    for name, row in _others(table[len(AXES) :], asked, alpha, unmeasured or {}).items():
        words[name] = row["outcome"]
        axes[name] = row
    lower_bound = axes[BEHAVIOUR]["lower_bound"] if BEHAVIOUR in axes else None
    return words | {"behaviour_lower_bound": lower_bound, "margin": table[0].margin, "axes": axes}


def _others(
    axes: Sequence[Axis], suites: Mapping[str, looks.Stages], alpha: float, unmeasured: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Judge the families and tasks among the suites; each family at alpha divided by their number."""
    families = len(FAMILIES.keys() & suites.keys())
    rows = {}
    for axis in (axis for axis in axes if axis.suite in suites):
        stages, family = suites[axis.suite], FAMILIES.get(axis.name)
        named: dict[str, Any] = {"axis": axis.name, "suite": axis.suite, "reference": axis.reference}
        if family:
            named["families"] = families
        if {"recovered", axis.reference} <= set(stages):
            both = pairs(stages["recovered"], stages[axis.reference], axis.suite)
            row = claims.claim(family, both, axis.margin, alpha / families if family else alpha)
        else:
            row = {"outcome": NOT_MEASURED, "reason": unmeasured.get(axis.suite, f"no {axis.suite} scores")}
        rows[axis.name] = row | named | {"outcome": axis.words(row["outcome"])}
    return rows


def axes_for(margins: Mapping[str, float] | None) -> tuple[Axis, ...]:
    """Return the axes with these margins (by name), else with their defaults.

    A margin of any other name is that of a task of lm-eval, which is an axis by it."""
    others = dict(margins or {})
    known = [replace(axis, margin=others.pop(axis.name, axis.margin)) for axis in EVERY_AXIS]
    return (*known, *(_of_task(name, margin) for name, margin in others.items()))


def _of_task(name: str, margin: float) -> Axis:
    return Axis(name, name, "clean", margin, "kept", "lost")


def is_task(name: str) -> bool:
    """Return whether an axis, or its suite, is a task of lm-eval."""
    return all(name not in (axis.name, axis.suite) for axis in EVERY_AXIS)


def _require_asked(axes: Sequence[Axis], suites: Mapping[str, Stages]) -> None:
    """Refuse a margin whose name is neither an axis nor a task that was asked."""
    tasks = [axis.name for axis in axes[len(EVERY_AXIS) :]]
    unknown = sorted(name for name in tasks if not is_task(name) or name not in suites)
    if unknown:
        known = ", ".join(axis.name for axis in EVERY_AXIS)
        raise InputError(f"margin for {unknown[0]!r}: one of {known}, or a task that is asked, is expected")


def axes_of(result: Mapping[str, Any]) -> tuple[Axis, ...]:
    """Return the axes of a verdict: the four, and the families and tasks that were asked for."""
    rows = result["axes"].items()
    tasks = [_of_task(name, row.get("margin") or 0.0) for name, row in rows if is_task(name)]
    return tuple(axis for axis in (*EVERY_AXIS, *tasks) if axis.name in result)


def margins_of(settings: Mapping[str, Any]) -> dict[str, float]:
    """Return the margins by axis that an evaluation's settings name; a lead is a negative one."""
    named = {
        BEHAVIOUR: "margin",
        KNOWLEDGE: "margin",
        RETENTION: "retention_margin",
        **dict.fromkeys(FAMILIES, "behaviours_margin"),
    }
    found = {axis: settings[name] for axis, name in named.items() if name in settings}
    found |= {UPDATES: -settings["update_lead"]} if "update_lead" in settings else {}
    return found | {task: points / 100 for task, points in settings.get("task_points", {}).items()}


def margins_by_axis(margins: Mapping[str, float] | None) -> dict[str, float]:
    """Return the margin of every axis; `margins` (axis name -> margin) replaces the defaults."""
    return {axis.name: axis.margin for axis in axes_for(margins)}


def required_axes(axes: Sequence[Axis], suites: Sequence[str], *, named: bool) -> tuple[str, ...]:
    """Return those axes that some suites measure; the optional ones only if the suites were named."""
    return tuple(axis.name for axis in axes if axis.suite in suites and (named or not axis.optional))


def accepted(result: Mapping[str, Any], required: Sequence[str] | None = None) -> bool:
    """Return whether every required axis passed. `required` holds suites or axes; default: all non-optional.

    Behaviour is always required. An axis outside `required` must pass where it was measured after all; an
    optional one must not be refuted.
    """
    return not blocking(result, required)


def blocking(result: Mapping[str, Any], required: Sequence[str] | None = None) -> dict[str, str]:
    """Return the axes that stand in the way of acceptance, and their words."""
    words = {axis: result[axis.name] for axis in axes_of(result)}
    return {axis.name: word for axis, word in words.items() if word not in _acceptable(axis, required)}


def _acceptable(axis: Axis, required: Sequence[str] | None) -> tuple[str, ...]:
    """Return the words of an axis that allow acceptance."""
    by_default = required is None and not axis.optional
    if axis is AXES[0] or by_default or axis.named_in(required):
        return (axis.passed,)
    return (axis.passed, NOT_MEASURED, UNDERPOWERED) if axis.optional else (axis.passed, NOT_MEASURED)


def _judge(axis: Axis, suites: Mapping[str, looks.Stages], alpha: float, *, in_two: bool) -> dict[str, Any]:
    """Return an axis's outcome and numbers; nothing where its scores are missing."""
    margin = axis.margin
    if axis.reference == OLD_ANSWERS:
        lead = _lead(suites.get(axis.suite, {}).get("recovered", ()), margin, alpha)
        return _row(axis, lead) if lead else {}
    asked = (axis.suite, axis.further) if in_two and axis.further else (axis.suite,)
    parts = looks.parts_of(suites, asked, axis.reference, margin)
    if axis.suite not in parts:
        return {}
    found = looks.judged(parts, margin, alpha / len(asked))
    standard = share([item.passed for item in suites[axis.suite][axis.reference]])
    vacuous = {"nothing_to_lose": standard} if standard <= margin else {}  # then a pass claims nothing
    return _row(axis, found) | looks.row(parts, len(asked), margin) | vacuous


def _lead(items: Sequence[Item], margin: float, alpha: float) -> NonInferiority | None:
    """Compare new with old answers to changed facts: "passed" means that the new ones lead by -margin."""
    answered = [item.detail["answered"] for item in items]
    if not answered:
        return None
    found = superiority(
        [one == NEW for one in answered],
        [one == OLD for one in answered],
        lead=-margin,
        alpha=alpha,
        clusters=[item.cluster for item in items],
    )
    return replace(found, needed_n=prompts_for(found.needed_n, items))


def _answered(stages: Stages) -> looks.Stages:
    """Return a suite's items by stage; none of a suite that no stage has an item of."""
    items = {name: stage.items if isinstance(stage, Score) else stage for name, stage in stages.items()}
    return items if any(items.values()) else {}


def _row(axis: Axis, result: NonInferiority) -> dict[str, Any]:
    row = asdict(result) | {"outcome": axis.words(result.outcome)}
    return row | {"axis": axis.name, "suite": axis.suite, "reference": axis.reference}


def is_refuted(row: Mapping[str, Any]) -> bool:
    """Return whether a claim was refuted: then its upper bound decides, else the lower one."""
    return bool(row["upper_bound"] < -row["margin"])
