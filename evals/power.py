"""Say before anything is measured which axes of a verdict have too few questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from evals.exact import WANTED_POWER
from evals.families import calibration_error
from evals.families.measures import CALIBRATION, measure_of
from evals.families.table import FAMILIES
from evals.intervals import FEW_CLUSTERS
from evals.probes import KNOWLEDGE, RETENTION, UPDATES
from evals.statistics import chance_to_pass, items_to_pass, outcome
from evals.verdict import ALPHA, BEHAVIOUR, TASK_HAS, margins_by_axis
from recovery.counted import plural

ROWS_OF_RETENTION = "give more rows of suite retention in the probes file"
WIDER = "set a wider one in recover.yaml"
REMEDIES = {  # by axis: where more questions come from; no task of lm-eval has any
    BEHAVIOUR: "write more prompts (`recover prompts ifeval`) or raise eval.samples",
    KNOWLEDGE: "add documents, or questions of your own in qa.jsonl",
    RETENTION: ROWS_OF_RETENTION,
    UPDATES: "ask about more changed facts, if there are any",
    **dict.fromkeys(FAMILIES, "raise eval.behaviours_items"),
    "refusals": "raise eval.behaviours_items; once all acts are asked, only a wider margin helps",
    "calibration": ROWS_OF_RETENTION,
}


@dataclass(frozen=True)
class PowerWarning:
    """An axis with too few questions, what that means, and what helps."""

    axis: str
    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.axis}: {self.text}"

    def with_remedy(self) -> str:
        return f"{self}: {self.remedy}"


def power_warning(
    items: Mapping[str, float],
    margins: Mapping[str, float] | None = None,
    families: int | None = None,
    least: float = WANTED_POWER,
    judged: float = 1.0,
    alpha: float = ALPHA,
    facts: Mapping[str, float] | None = None,
) -> list[PowerWarning]:
    """Warn of each axis on which an equal checkpoint would pass with a chance below `least`.

    `items` maps axis names to independent items (prompts, facts), of which one in ten is supposed to flip.
    `families` are judged at once: as many as are among the items, unless more were asked for. Only the
    share `judged` of the items is judged on, at the level `alpha`. `facts` maps axes with several items about
    a fact (gaps of a sentence) to their facts: the verdict counts as few as these where the answers about a
    fact flip together, and where hardly any answer flips.
    Of calibration only the number that gives 80 % is known: it is warned of below that, whatever `least` is.
    """
    margin_of = margins_by_axis(margins)
    families = families or len(set(items) & set(FAMILIES))
    part = f", {judged:.0%} of which are judged," if judged < 1 else ""
    found = []
    for name, count in items.items():
        margin = margin_of[name]
        limit = _limit(margin)
        level = alpha / families if name in FAMILIES else alpha
        few = (facts or {}).get(name, 0)
        asked = f"{_asked(count, few)}{part}"
        chance = _low_chance(name, count * judged, margin, level, least)
        if chance:
            perfect = "lost nothing" if margin > 0 else "gives new answers only"
            if margin > 0 and 0 < few < count:
                together = chance_to_pass(few * judged, margin, level)
                chance = f"{together:.0%} to {chance}, by how far answers about a fact change together"
            said = f"with {asked} a model that {perfect} passes in {chance}"
            enough = _enough(name, margin, level, judged)
            remedy = REMEDIES.get(name, TASK_HAS) if enough else WIDER
            then = enough or f"no number of questions gives {WANTED_POWER:.0%} at so small a margin"
            found.append(PowerWarning(name, f"{said} ({limit}); {then}", remedy))
        elif 0 < few < count and _needs_all(few * judged, margin, level):
            said = f"with {asked} one lost answer leaves the claim underpowered"
            remedy = REMEDIES.get(name, TASK_HAS)
            found.append(PowerWarning(name, f"{said} ({limit}); more facts bear it", remedy))
    return found


def _asked(count: float, facts: float) -> str:
    """Return how many questions are asked in words, with their facts where these are fewer."""
    if 0 < facts < count:
        return f"{count:g} questions about {facts:g} {plural(facts, 'fact')}"
    return f"{count:g} independent {plural(count, 'question')}"


def _limit(margin: float) -> str:
    """Return a margin in words; a negative one is a lead that is asked for."""
    points = f"{100 * abs(margin):g} points"
    return f"margin {points}" if margin > 0 else f"a lead of {points} is needed"


def _needs_all(facts: float, margin: float, alpha: float) -> bool:
    """Return whether a single answer lost among so many facts leaves the claim underpowered."""
    return margin > 0 and outcome(0, 1, max(1, int(facts)), margin, alpha) != "passed"


def _low_chance(name: str, count: float, margin: float, alpha: float, least: float) -> str:
    """Say how likely an equal checkpoint passes; nothing where that is likely enough."""
    if _is_calibration(name):
        enough = calibration_error.items_to_pass(margin, alpha)
        return f"fewer than {WANTED_POWER:.0%} of cases" if enough is None or count < enough else ""
    rates = _rates(name)
    chance = chance_to_pass(count / rates, margin, alpha / rates)
    return f"{chance:.0%} of cases only" if chance < least else ""


def _enough(name: str, margin: float, alpha: float, judged: float) -> str:
    """Say how many items an equal checkpoint passes on; nothing where no number of them is enough."""
    rates, calibrated = _rates(name), _is_calibration(name)
    least = (calibration_error.items_to_pass if calibrated else items_to_pass)(margin, alpha / rates)
    if least is None:
        return ""
    count, several = ceil(rates * least / judged), ceil(FEW_CLUSTERS / judged)
    if calibrated:
        return f"about {count} questions give {WANTED_POWER:.0%}"
    wider = f", {several} where several questions ask each" if margin < 0 and count < several else ""
    return f"{count} questions give {WANTED_POWER:.0%}{wider}"


def _is_calibration(name: str) -> bool:
    return name in FAMILIES and measure_of(FAMILIES[name]) is CALIBRATION


def _rates(name: str) -> int:
    """Return how many claims an axis makes, each on its part of the items."""
    return max(1, len(FAMILIES[name].rates)) if name in FAMILIES else 1
