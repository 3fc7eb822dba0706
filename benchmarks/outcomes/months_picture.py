"""Draw what each month's models know and do: a panel a suite, a mark a stage, a dot a seed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from db.cycle_names import STAGES
from evals import intervals
from evals.families.measures import clusters
from evals.probes import KNOWLEDGE
from evals.scores import Item, share

PANELS = {KNOWLEDGE: "the month's documents", "retention": "general questions", "ifeval": "IFEval"}
MARKS = dict(zip(STAGES, (("o", "tab:gray"), ("x", "tab:red"), ("D", "tab:blue")), strict=True))
APART = 0.22  # months between the marks of two stages
BySeed = Mapping[int, list[Item]]
Answers = Mapping[tuple[int, str], Mapping[str, BySeed]]  # month and suite -> stage -> seed


def draw(answers: Answers, path: Path) -> None:
    """Draw the shares of all seeds with 95 % intervals, the seeds as dots, earlier documents as lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.8), layout="constrained")
    for axes, (suite, title) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        months = sorted(month for month, asked in answers if asked == suite)
        for place, stage in enumerate(STAGES):
            for month in months:
                _mark(axes, month + (place - 1) * APART, answers[month, suite][stage], stage)
        if suite == KNOWLEDGE:
            _earlier(axes, answers, months)
        axes.set(title=title, xlabel="month", xticks=months)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.3)
    handles = [figure.axes[0].plot([], [], sign, color=color)[0] for sign, color in MARKS.values()]
    figure.legend(handles, STAGES, loc="outside lower center", ncols=len(STAGES))
    figure.savefig(path, dpi=110)


def _mark(axes: Any, at: float, by_seed: BySeed, stage: str) -> None:
    sign, color = MARKS[stage]
    value, low, high = _scored(by_seed)
    axes.errorbar(at, value, [[value - low], [high - value]], fmt=sign, color=color, capsize=3)
    each = [share([item.passed for item in items]) for items in by_seed.values()]
    axes.plot([at] * len(each), each, ".", color=color, alpha=0.35)


def _earlier(axes: Any, answers: Answers, months: list[int]) -> None:
    """Join what is known of a month's documents when it ends with what is known after later months."""
    recovered = STAGES[-1]
    for first in months:
        later = {month: answers.get((month, f"{KNOWLEDGE}:{first}")) for month in months if month > first}
        known = [answers[first, KNOWLEDGE][recovered]]
        known += [found[recovered] for found in later.values() if found]
        at = [first, *(month for month, found in later.items() if found)]
        places = [month + APART for month in at]
        axes.plot(places, [_scored(one)[0] for one in known], "--", color=MARKS[recovered][1], alpha=0.6)


def _scored(by_seed: BySeed) -> tuple[float, float, float]:
    items = [item for found in by_seed.values() for item in found]
    passed = [item.passed for item in items]
    return share(passed), *intervals.clustered_interval(passed, clusters(items))
