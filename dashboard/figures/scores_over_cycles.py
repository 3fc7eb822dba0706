"""Draw scores over the cycles: a panel per suite with a line per stage, and lines by kind of question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dashboard import number_format
from dashboard.figures import axes
from dashboard.figures.axes import (
    Point,
    band,
    curve,
    frame,
    interval,
    label,
    lone,
    nothing,
    percent_tick,
    scores_and_bounds,
    whole_tick,
)
from dashboard.figures.markers import STAGE_STYLES, Style, legend, marker, markers
from dashboard.figures.scales import Scale
from dashboard.markup import Html, join, tag
from evals.ifeval import IFEVAL
from evals.probes import KNOWLEDGE

Row = Mapping[str, Any]
WIDTH, PANEL, FOOT = 640, 236, 22
FEW = 40  # most cycles drawn with a marker and an interval each
PANELS = ((IFEVAL, "instruction following (IFEval), %"), (KNOWLEDGE, "knowledge of the new documents, %"))


def stages_over_cycles(cycles: Sequence[Row]) -> Html:
    """Draw cycles from left to right, one panel per suite, with the recovered model's interval."""
    if not cycles:
        return nothing("No cycle yet.")
    numbers = [float(row["cycle"]) for row in cycles]
    x = _cycle_axis(numbers, 52.0, WIDTH - 16.0)
    drawn = [_panel(cycles, suite, words, x, index * PANEL) for index, (suite, words) in enumerate(PANELS)]
    height = len(PANELS) * PANEL + FOOT
    foot = label((x.start + x.end) / 2, height - 14, "cycle", "middle", "ink")
    words = f"Scores of cycles {numbers[0]:.0f} to {numbers[-1]:.0f}"
    return axes.svg(drawn, foot, label=words, width=WIDTH, height=height, class_="timeline")


def _cycle_axis(numbers: Sequence[float], start: float, end: float) -> Scale:
    room = max(0.5, 0.02 * (numbers[-1] - numbers[0]))
    return Scale(numbers[0] - room, numbers[-1] + room, start, end)


def _panel(cycles: Sequence[Row], suite: str, words: str, x: Scale, top: float) -> Html:
    every = [one for row in cycles for one in scores_and_bounds(row["scores"].get(suite, {}))]
    y = Scale.from_zero(every, top + PANEL - 42, top + 26)
    scores = [(float(row["cycle"]), row["scores"].get(suite, {})) for row in cycles]
    few = len(cycles) <= FEW
    lines = [
        _line([(number, found.get(stage)) for number, found in scores], style, x, y, marked=few)
        for stage, style in STAGE_STYLES.items()
    ]
    ends = [(number, (found.get("intervals") or {}).get("recovered")) for number, found in scores]
    return join(
        label(x.start, top + 14, words, "start", "ink"),
        frame(x, y, x_text=whole_tick, y_text=percent_tick),
        _intervals(ends, x, y, few=few),
        lines,
    )


def _intervals(ends: Sequence[tuple[float, Any]], x: Scale, y: Scale, *, few: bool) -> Any:
    """Draw the recovered model's interval: bars for few cycles, an area for many."""
    style = STAGE_STYLES["recovered"]
    if few:
        return [interval(both, x(number), y, style, upright=True) for number, both in ends]
    return band([(number, *(both or (None, None))) for number, both in ends], x, y, style)


def _line(points: Sequence[Point], style: Style, x: Scale, y: Scale, *, marked: bool) -> Html:
    dots = [(x(number), y(value)) for number, value in points if value is not None]
    signs = markers(style, dots, 4) if marked and dots else lone(points, x, y, style)
    return join(curve(points, x, y, style), signs)


def lines(named: Mapping[str, Sequence[Point]], styles: Mapping[str, Style]) -> Html:
    """Draw one line per name over the cycles, with its value in a tooltip."""
    numbers = sorted({number for points in named.values() for number, _ in points})
    if not numbers:
        return nothing("No cycle yet.")
    x = _cycle_axis(numbers, axes.LEFT, axes.WIDTH - axes.RIGHT)
    shares = [value for points in named.values() for _, value in points]
    y = Scale.from_zero(shares, 300 - axes.BOTTOM, axes.TOP)
    drawn: list[Any] = [frame(x, y, "cycle", "answered rightly, %", x_text=whole_tick, y_text=percent_tick)]
    for name, points in named.items():
        drawn.append(curve(points, x, y, styles[name]))
        if len(points) <= FEW:
            drawn += [_dot(styles[name], place, value, x, y) for place, value in points]
        else:
            drawn.append(lone(points, x, y, styles[name]))
    return axes.svg(drawn, label=f"knowledge by kind over cycles: {', '.join(named)}", height=300)


def _dot(style: Style, cycle: float, value: float | None, x: Scale, y: Scale) -> Html | None:
    if value is None:
        return None
    words = tag("title", f"cycle {cycle:g}: {number_format.percent(value)}")
    return tag("g", words, marker(style, x(cycle), y(value)))


def lines_legend(styles: Mapping[str, Style]) -> Html:
    return legend([(style, name) for name, style in styles.items()], line=True)
