"""Judge a claim in one look, or in two: where a suite's own prompts leave it open, further ones are asked.

Of two looks each is at half the error rate, so that a model just worse than the margin passes one of them
with no more than the whole of it (Bonferroni). The second look judges the prompts of both suites together.
As further prompts may be easier to keep than the suite's own, it shows the claim only where the own ones
alone do not speak against it: their difference has to lie within the margin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from evals.scores import Item, pairs, prompts_for
from evals.statistics import NonInferiority, non_inferiority

TWO = 2
Pairs = Sequence[tuple[Item, Item]]  # (after, before)
Stages = Mapping[str, Sequence[Item]]


def parts_of(
    suites: Mapping[str, Stages], names: Sequence[str], reference: str
) -> dict[str, list[tuple[Item, Item]]]:
    """Return the pairs of each suite that both the recovered model and the reference have answered."""
    return {
        name: pairs(suites[name]["recovered"], suites[name][reference], name)
        for name in names
        if {"recovered", reference} <= suites.get(name, {}).keys()
    }


def judged(parts: Mapping[str, Pairs], margin: float, alpha: float) -> NonInferiority:
    """Test non-inferiority on the pairs of all parts together; the first part's are the suite's own."""
    both = [pair for part in parts.values() for pair in part]
    clusters = [(name, before.cluster) for name, part in parts.items() for _, before in part]
    found = non_inferiority(
        [after.passed for after, _ in both],
        [before.passed for _, before in both],
        margin=margin,
        alpha=alpha,
        clusters=clusters,
    )
    own = next(iter(parts.values()))
    if found.outcome == "passed" and len(parts) > 1 and _counts(own)["difference"] < -margin:
        found = replace(found, outcome="underpowered")
    return replace(found, needed_n=prompts_for(found.needed_n, [before for _, before in both]))


def row(parts: Mapping[str, Pairs], looks: int) -> dict[str, Any]:
    """Return which look this is, and the counts of each part, for the record; nothing of a single look."""
    if looks == 1:
        return {}
    counts = {name: _counts(part) for name, part in parts.items()}
    return {"looks": looks, "look": len(parts), "parts": counts if len(parts) > 1 else {}}


def _counts(part: Pairs) -> dict[str, Any]:
    gained = sum(after.passed > before.passed for after, before in part)
    lost = sum(after.passed < before.passed for after, before in part)
    return {"n": len(part), "gained": gained, "lost": lost, "difference": (gained - lost) / len(part)}


def in_words(details: Mapping[str, Any]) -> str:
    """Say at which level a bound of one of two looks holds, and what each part of a second look shows."""
    if "looks" not in details:
        return ""
    level = f"{100 * (1 - details['alpha']):g} %"
    if not details["parts"]:
        return f"first of two looks, at {level}"
    parts = ", ".join(
        f"{100 * part['difference']:+.1f} on {part['n']:,} of {name}"
        for name, part in details["parts"].items()
    )
    return f"second of two looks, at {level}: {parts}"
