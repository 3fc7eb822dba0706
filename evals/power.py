"""Say before anything is measured which axes of a verdict have too few questions."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from evals.families.table import FAMILIES
from evals.statistics import WANTED_POWER, chance_to_pass, items_to_pass
from evals.verdict import ALPHA, margins_by_axis


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
