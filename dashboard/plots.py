"""Draw the plane as an image file with Matplotlib (`recover dashboard --picture`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dashboard.figures.axes import spread

STAGES = ("clean", "midtrained", "recovered")
MARKS = {"clean": "o", "midtrained": "X", "recovered": "D"}  # shape as well as colour distinguishes stages
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe-Ito palette
MOST_NAMES = 12
Row = Mapping[str, Any]


def plane(cycles: Sequence[Row], margin: float = 0.03) -> Figure:
    """Draw document knowledge against instruction following: one path per cycle, with 95 % intervals."""
    figure = Figure(figsize=(7.2, 5.2), layout="constrained")
    axes = figure.subplots()
    shown = [row for row in cycles if _points(row)]
    for number, row in enumerate(shown):
        _path(axes, row, COLOURS[number % len(COLOURS)])
    if shown:
        _clean_band(axes, shown[-1], margin)
    _names(axes, shown[-MOST_NAMES:], len(shown))
    axes.set(
        xlim=(-0.02, 1.02),
        ylim=(-0.02, 1.04),
        xlabel="knowledge of the new documents",
        ylabel="instruction following (IFEval, prompt-level strict)",
    )
    axes.grid(alpha=0.25)
    _stage_legend(axes)
    return figure


def _points(row: Row) -> list[tuple[str, float, float]]:
    """Return (stage, knowledge, behaviour) of the stages where both are measured."""
    scores = row.get("scores", {})
    both = scores.get("knowledge", {}), scores.get("ifeval", {})
    values = [(stage, both[0].get(stage), both[1].get(stage)) for stage in STAGES]
    return [(stage, x, y) for stage, x, y in values if x is not None and y is not None]


def _path(axes: Axes, row: Row, colour: str) -> None:
    points = _points(row)
    for (_, x0, y0), (_, x1, y1) in pairwise(points):
        axes.annotate(
            "", (x1, y1), (x0, y0), arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.6, "alpha": 0.8}
        )
    for stage, x, y in points:
        horizontal, vertical = _errors(row, "knowledge", stage, x), _errors(row, "ifeval", stage, y)
        axes.errorbar(
            x, y, xerr=horizontal, yerr=vertical, fmt=MARKS[stage], color=colour, ms=8, capsize=3, lw=1
        )


def _names(axes: Axes, rows: Sequence[Row], shown: int) -> None:
    """List the cycle names at the right, each with a thin line to the end of its path, without overlaps."""
    ends = [_points(row)[-1][1:] for row in rows]
    places = spread([-100 * y for _, y in ends], 5, -100, 0)
    first = shown - len(rows)
    for number, (row, end, place) in enumerate(zip(rows, ends, places, strict=True), first):
        colour = COLOURS[number % len(COLOURS)]
        leader = {"arrowstyle": "-", "color": colour, "lw": 0.6, "alpha": 0.6, "shrinkB": 6}
        axes.annotate(
            f"cycle {row['cycle']}",
            end,
            (1.06, -place / 100),
            color=colour,
            va="center",
            annotation_clip=False,
            arrowprops=leader,
        )


def _errors(row: Row, suite: str, stage: str, value: float) -> list[list[float]] | None:
    interval = (row["scores"][suite].get("intervals") or {}).get(stage)
    if not interval or None in interval:
        return None
    return [[max(0.0, value - interval[0])], [max(0.0, interval[1] - value)]]


def _clean_band(axes: Axes, row: Row, margin: float) -> None:
    """Draw the band where behaviour counts as recovered: from the clean score down by the margin."""
    clean = row["scores"]["ifeval"]["clean"]
    axes.axhline(clean, color="grey", lw=1, ls="--")
    axes.axhspan(clean - margin, clean, color="grey", alpha=0.15)


def _stage_legend(axes: Axes) -> None:
    for stage in STAGES:
        axes.plot([], [], MARKS[stage], color="black", label=stage)
    axes.legend(loc="lower left", frameon=True)
