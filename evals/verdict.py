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

Kept knowledge says nothing of what there was to keep: evals/learned.py compares it with the clean model's.

Each family that is asked for (evals/families) is one more claim, kept or lost against the clean model. They
are many, so their bounds hold for all of them at once: each is judged at alpha divided by their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from evals import learned
from evals.families import claims
from evals.families.table import FAMILIES, MARGIN
from evals.probes import NEW, OLD, UPDATES
from evals.scores import Item, Score, bound_in_points, prompts_for, share
from evals.statistics import (
    WANTED_POWER,
    NonInferiority,
    chance_to_pass,
    items_to_pass,
    non_inferiority,
    superiority,
)
from recovery.errors import InputError

ALPHA = 0.05  # of each claim; families share one
NOT_MEASURED = "not measured"
UNDERPOWERED = "underpowered"
OLD_ANSWERS = "old answers"


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

    def words(self, outcome: str) -> str:
        said = {"passed": self.passed, "failed": self.failed, claims.NOTHING_TO_LOSE: NOT_MEASURED}
        return said.get(outcome, outcome)

    def named_in(self, required: Sequence[str] | None) -> bool:
        """Return whether suites or axes that are required name this axis."""
        return not {self.suite, self.name}.isdisjoint(required or ())


AXES = (
    Axis("behaviour", "ifeval", "clean", 0.03, "recovered", "not recovered"),
    Axis("knowledge", "knowledge", "midtrained", 0.03, "kept", "lost"),
    Axis("retention", "retention", "clean", 0.10, "kept", "lost"),
    Axis(UPDATES, UPDATES, OLD_ANSWERS, -0.70, "updated", "not updated", optional=True),
)
FAMILY_AXES = tuple(Axis(name, name, "clean", MARGIN, "kept", "lost") for name in FAMILIES)
EVERY_AXIS = (*AXES, *FAMILY_AXES)

Stages = Mapping[str, Score | Sequence[Item]]
"""One suite's scores by stage: "clean", "midtrained", "recovered"."""


def verdict(
    suites: Mapping[str, Stages],
    margins: Mapping[str, float] | None = None,
    alpha: float = ALPHA,
    unmeasured: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Judge every axis: axis name -> word, and the counts and bounds of each measured axis under `axes`.

    A family is judged if it is among the suites; `unmeasured` says why one of them has no scores. A suite
    without items, as in half of a small evaluation, is not measured.
    """
    suites = {name: stages if any(map(_items, stages.values())) else {} for name, stages in suites.items()}
    margin_of = margins_by_axis(margins)
    words: dict[str, Any] = {}
    axes: dict[str, dict[str, Any]] = {}
    for axis in AXES:
        result = _judge(axis, suites.get(axis.suite, {}), margin_of[axis.name], alpha)
        words[axis.name] = axis.words(result.outcome) if result else NOT_MEASURED
        if result:
            axes[axis.name] = _row(axis, words[axis.name], result) | _vacuous(axis, suites, result)
    if "knowledge" in axes and "clean" in suites["knowledge"]:
        axes["knowledge"]["learned"] = _learned(suites["knowledge"])
    for name, row in _families(suites, margin_of, alpha, unmeasured or {}).items():
        words[name] = row["outcome"]
        axes[name] = row
    lower_bound = axes["behaviour"]["lower_bound"] if "behaviour" in axes else None
    return words | {"behaviour_lower_bound": lower_bound, "margin": margin_of["behaviour"], "axes": axes}


def _families(
    suites: Mapping[str, Stages], margin_of: Mapping[str, float], alpha: float, unmeasured: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Judge the families among the suites, each at alpha divided by their number."""
    asked = [axis for axis in FAMILY_AXES if axis.suite in suites]
    rows = {}
    for axis in asked:
        stages = suites[axis.suite]
        margin = margin_of[axis.name]
        named = {"axis": axis.name, "suite": axis.suite, "reference": axis.reference, "families": len(asked)}
        if {"recovered", axis.reference} <= set(stages):
            both = pairs(_items(stages["recovered"]), _items(stages[axis.reference]), axis.suite)
            row = claims.claim(FAMILIES[axis.name], both, margin, alpha / len(asked))
        else:
            row = {"outcome": NOT_MEASURED, "reason": unmeasured.get(axis.suite, f"no {axis.suite} scores")}
        rows[axis.name] = row | named | {"outcome": axis.words(row["outcome"])}
    return rows


def axes_of(result: Mapping[str, Any]) -> tuple[Axis, ...]:
    """Return the axes of a verdict: the four, and the families that were asked for."""
    return tuple(axis for axis in EVERY_AXIS if axis.name in result)


def margins_by_axis(margins: Mapping[str, float] | None) -> dict[str, float]:
    """Return the margin of every axis; `margins` (axis name -> margin) replaces the defaults."""
    defaults = {axis.name: axis.margin for axis in EVERY_AXIS}
    unknown = sorted(set(margins or {}) - set(defaults))
    if unknown:
        raise InputError(f"margin for {unknown[0]!r}: one of {', '.join(defaults)} is expected")
    return defaults | dict(margins or {})


def required_axes(suites: Sequence[str], *, named: bool) -> tuple[str, ...]:
    """Return the axes that some suites measure; the optional ones only if the suites were named."""
    return tuple(axis.name for axis in EVERY_AXIS if axis.suite in suites and (named or not axis.optional))


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


def power_warning(
    items: Mapping[str, float],
    margins: Mapping[str, float] | None = None,
    families: int | None = None,
    least: float = WANTED_POWER,
    judged: float = 1.0,
    alpha: float = ALPHA,
) -> list[str]:
    """Warn of each axis on which an equal checkpoint would pass with a chance below `least`.

    `items` maps axis names to independent items (prompts, facts), of which one in ten is supposed to flip.
    `families` are judged at once: as many as are among the items, unless more were asked for. Only the
    share `judged` of the items is judged on, at the level `alpha`.
    """
    margin_of = margins_by_axis(margins)
    families = families or len(set(items) & set(FAMILIES))
    lines = []
    for name, count in items.items():
        margin = margin_of[name]
        rates = max(1, len(FAMILIES[name].rates)) if name in FAMILIES else 1  # each on its part of the items
        level = alpha / (families * rates) if name in FAMILIES else alpha
        chance = chance_to_pass(count * judged / rates, margin, level)
        if chance < least:
            enough = ceil(rates * items_to_pass(margin, level) / judged)
            part = f", {judged:.0%} of which are judged," if judged < 1 else ""
            perfect = "lost nothing" if margin > 0 else "gives new answers only"
            lines.append(
                f"{name}: on {count:g} items{part} a checkpoint that {perfect} passes with a chance of "
                f"{chance:.0%} only (margin {100 * margin:g}%); {enough} items give {WANTED_POWER:.0%}"
            )
    return lines


def pairs(after: Sequence[Item], before: Sequence[Item], suite: str = "suite") -> list[tuple[Item, Item]]:
    """Pair the items of two checkpoints by key, in the order of `before`; keys and prompts must agree."""
    by_key = {item.key: item for item in after}
    unpaired = [item.key for item in before if item.key not in by_key]
    if unpaired or len(by_key) != len(before):
        raise InputError(
            f"{suite}: {len(by_key)} items against {len(before)}, {len(unpaired)} without a partner: "
            "evaluate both checkpoints on the same prompts"
        )
    changed = [item.key for item in before if by_key[item.key].prompt != item.prompt]
    if changed:
        raise InputError(
            f"{suite}: item {changed[0]} has another prompt in one evaluation ({len(changed)} in all): "
            "evaluate both checkpoints on the same prompts"
        )
    return [(by_key[item.key], item) for item in before]


def _judge(axis: Axis, stages: Stages, margin: float, alpha: float) -> NonInferiority | None:
    if "recovered" not in stages:
        return None
    if axis.reference == OLD_ANSWERS:
        return _lead(_items(stages["recovered"]), margin, alpha)
    if axis.reference not in stages:
        return None
    before = _items(stages[axis.reference])
    both = pairs(_items(stages["recovered"]), before, axis.suite)
    found = non_inferiority(
        [after.passed for after, _ in both],
        [before.passed for _, before in both],
        margin=margin,
        alpha=alpha,
        clusters=[before.cluster for _, before in both],
    )
    return replace(found, needed_n=prompts_for(found.needed_n, before))


def _vacuous(axis: Axis, suites: Mapping[str, Stages], result: NonInferiority) -> dict[str, Any]:
    """Return the standard's score where it is no more than the margin: then a pass claims nothing."""
    if axis.reference == OLD_ANSWERS:
        return {}
    standard = share([item.passed for item in _items(suites[axis.suite][axis.reference])])
    return {"nothing_to_lose": standard} if standard <= result.margin else {}


def nothing_to_lose(details: Mapping[str, Any]) -> str:
    """Say so of an axis whose standard passes no more than the margin; nothing of any other."""
    if "nothing_to_lose" not in details:
        return ""
    passed = f"{100 * details['nothing_to_lose']:.1f} %"
    return f"{details['reference']} passes {passed}, no more than the margin: nothing to lose"


def _learned(stages: Stages) -> dict[str, Any]:
    return learned.learned(pairs(_items(stages["recovered"]), _items(stages["clean"]), "knowledge"))


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


def _items(stage: Score | Sequence[Item]) -> Sequence[Item]:
    return stage.items if isinstance(stage, Score) else stage


def _row(axis: Axis, words: str, result: NonInferiority) -> dict[str, Any]:
    row = asdict(result) | {"bootstrap": list(result.bootstrap)}
    return row | {"axis": axis.name, "outcome": words, "suite": axis.suite, "reference": axis.reference}


def is_refuted(row: Mapping[str, Any]) -> bool:
    """Return whether a claim was refuted: then its upper bound decides, else the lower one."""
    return bool(row["upper_bound"] < -row["margin"])


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
    return line + (f"; it would take {row['needed_n']} probes" if row["outcome"] == UNDERPOWERED else "")


def _paired_sentence(row: Mapping[str, Any]) -> str:
    of = f" {row['kind']}" if "kind" in row else ""
    test = f", McNemar p = {row['p_mcnemar']:.2g}" if "p_mcnemar" in row else ""
    at_once = f", bounds for {row['families']} families at once" if row.get("families", 1) > 1 else ""
    line = (
        f"{row['axis']}: {row['outcome']} ({100 * row['difference']:+.1f} points against {row['reference']}, "
        f"{deciding_bound(row)}, margin {100 * row['margin']:g}; "
        f"{row['gained']} gained, {row['lost']} lost of {row['n']}{of}{test}{at_once})"
    )
    further = [
        f"it would take {row['needed_n']} prompts" if row["outcome"] == UNDERPOWERED else "",
        nothing_to_lose(row),
        learned.sentence(row["learned"]) if "learned" in row else "",
    ]
    return "; ".join([line, *filter(None, further)])
