"""Judge a claim in one look, or in two: where a suite's own prompts are underpowered, further ones are asked.

Of two looks each is at half the error rate, so that a model that is worse by the margin passes one of them
with no more than the whole of it (Bonferroni). The second look judges the prompts of both suites together.
Further prompts may be easier to keep than the own ones, and outnumber them: so there is a second look only
where the own ones pass alone at a weaker level (OWN_ALPHA). A model that lost the margin on them, and nothing
on the further ones, passes no more often than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from evals.scores import Item, bound_in_points, pairs, prompts_for, share
from evals.statistics import NonInferiority, non_inferiority

TWO = 2
OWN_ALPHA = 0.2  # of the own prompts alone, before a second look
Pairs = Sequence[tuple[Item, Item]]  # (after, before)
Parts = Mapping[str, Pairs]  # by suite, the own one first
Stages = Mapping[str, Sequence[Item]]


def parts_of(suites: Mapping[str, Stages], names: Sequence[str], reference: str, margin: float) -> Parts:
    """Return the pairs of each suite that judges the claim: recovered model and reference have answered it.

    A further suite does not where the own prompts allow no second look, and where the reference passes no
    more of it than the margin: nothing could be lost there."""
    found: dict[str, Pairs] = {}
    for name in names:
        if not {"recovered", reference} <= suites.get(name, {}).keys():
            continue
        both = pairs(suites[name]["recovered"], suites[name][reference], name)
        if found:
            standard = share([before.passed for _, before in both])
            if standard <= margin or _alone(found, margin).outcome != "passed":
                continue
        found[name] = both
    return found


def judged(parts: Parts, margin: float, alpha: float) -> NonInferiority:
    """Test non-inferiority on the pairs of all parts together."""
    both = [pair for part in parts.values() for pair in part]
    found = non_inferiority(
        [after.passed for after, _ in both],
        [before.passed for _, before in both],
        margin=margin,
        alpha=alpha,
        clusters=[(name, before.cluster) for name, part in parts.items() for _, before in part],
    )
    return replace(found, needed_n=prompts_for(found.needed_n, [before for _, before in both]))


def row(parts: Parts, looks: int, margin: float) -> dict[str, Any]:
    """Return which of two looks this is, how the own prompts stand alone, and the counts of each part."""
    if looks == 1:
        return {}
    counts = {name: _counts(part) for name, part in parts.items()} if len(parts) > 1 else {}
    alone = _alone(parts, margin)
    return {"looks": looks, "look": len(parts), "own_lower_bound": alone.lower_bound, "parts": counts}


def may_follow(axis: Mapping[str, Any]) -> bool:
    """Return whether a second look may decide what was underpowered in the first of two."""
    return axis.get("look") == 1 and axis["own_lower_bound"] > -axis["margin"]


def _alone(parts: Parts, margin: float) -> NonInferiority:
    name, own = next(iter(parts.items()))
    return judged({name: own}, margin, OWN_ALPHA)


def _counts(part: Pairs) -> dict[str, Any]:
    gained = sum(after.passed > before.passed for after, before in part)
    lost = sum(after.passed < before.passed for after, before in part)
    return {"n": len(part), "gained": gained, "lost": lost, "difference": (gained - lost) / len(part)}


def in_words(axis: Mapping[str, Any], details: Mapping[str, Any]) -> str:
    """Say at which level a bound of one of two looks holds, and what each part of a second look shows."""
    if "looks" not in details:
        return ""
    level = f"{100 * (1 - details['alpha']):g} %"
    if details["parts"]:
        parts = ", ".join(
            f"{100 * part['difference']:+.1f} on {part['n']:,} of {name}"
            for name, part in details["parts"].items()
        )
        return f"second of two looks, at {level}: {parts}"
    said = f"first of two looks, at {level}"
    bound, margin = details["own_lower_bound"], axis["margin"]
    if axis["upper_bound"] < -margin or bound > -margin:
        return said
    alone = f"lower bound {bound_in_points(bound, margin)} at {1 - OWN_ALPHA:.0%}"
    return f"{said}: too low for a second one ({alone})"
