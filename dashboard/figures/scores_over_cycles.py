"""Draw scores over all cycles: a panel per suite, a line per stage, the recovered model's interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.figures.axes import STAGES, Scale, label, line, linear, mark, marks, percent_axes
from dashboard.markup import Html, join, tag

Row = Mapping[str, Any]
WIDTH, PANEL, GAP = 640, 186, 30
LEFT, RIGHT, TOP = 52.0, 624.0, 24.0
FEW = 40  # most cycles drawn with a marker each
PANELS = (("ifeval", "instruction following (IFEval), %"), ("knowledge", "knowledge of the new documents, %"))


def timeline(cycles: Sequence[Row], panels: Sequence[tuple[str, str]] = PANELS) -> Html:
    """Draw cycles from left to right, one panel per suite."""
    if not cycles:
        return tag("p", "No cycle yet.", class_="soft")
    numbers = [row["cycle"] for row in cycles]
    edge = 14 if len(cycles) <= FEW else 2
    x = linear(numbers[0], numbers[-1], LEFT + edge, RIGHT - edge)
    if len(cycles) == 1:
        x = linear(numbers[0] - 1, numbers[0] + 1, LEFT, RIGHT)
    height = len(panels) * (PANEL + GAP) + 30
    drawn = [
        _panel(cycles, suite, words, x, index * (PANEL + GAP)) for index, (suite, words) in enumerate(panels)
    ]
    ticks = [label(x(n), height - 24, str(n), "middle") for n in _ticks(numbers)]
    name = label((LEFT + RIGHT) / 2, height - 4, "cycle", "middle", "ink")
    title = tag("title", f"Scores of cycles {numbers[0]} to {numbers[-1]}")
    return tag(
        "svg",
        title,
        *drawn,
        *ticks,
        name,
        viewBox=f"0 0 {WIDTH} {height}",
        class_="figure timeline",
        role="img",
    )


def _panel(cycles: Sequence[Row], suite: str, words: str, x: Scale, top: float) -> Html:
    box = (LEFT, top + TOP, RIGHT, top + PANEL)
    y = linear(0, 1, box[3], box[1])
    lines = [_stage(cycles, suite, stage, x, y) for stage in STAGES]
    return join(
        label(LEFT, top + 12, words, "start", "ink"),
        percent_axes(None, y, box),
        _band(cycles, suite, x, y),
        *lines,
    )


def _stage(cycles: Sequence[Row], suite: str, stage: str, x: Scale, y: Scale) -> Html:
    found = [(row["cycle"], row["scores"].get(suite, {}).get(stage)) for row in cycles]
    points = [(x(number), y(value)) for number, value in found if value is not None]
    if not points:
        return join()
    path = "M" + "L".join(f"{px} {py}" for px, py in points)
    dash = {"clean": "6 4", "midtrained": "2 3"}.get(stage)
    drawn = tag(
        "path",
        d=path,
        class_=f"c-{stage} stroke",
        stroke_width=1.8,
        stroke_dasharray=dash,
        stroke_linejoin="round",
    )
    if len(points) <= 12:
        return join(drawn, [mark(stage, px, py, 4) for px, py in points])
    return join(drawn, marks(stage, points, 2.6)) if len(points) <= FEW else drawn


def _band(cycles: Sequence[Row], suite: str, x: Scale, y: Scale) -> Html | None:
    """Draw the recovered model's interval: bars for few cycles, an area for many."""
    found = [
        (row["cycle"], (row["scores"].get(suite, {}).get("intervals") or {}).get("recovered"))
        for row in cycles
    ]
    ends = [(x(number), y(both[0]), y(both[1])) for number, both in found if both and None not in both]
    if len(ends) <= FEW:
        return join(*[line(px, low, px, high, "bar c-recovered stroke") for px, low, high in ends])
    there = "L".join(f"{px} {low}" for px, low, _ in ends)
    back = "L".join(f"{px} {high}" for px, _, high in reversed(ends))
    return tag("path", d=f"M{there}L{back}Z", class_="c-recovered fill", fill_opacity=0.18)


def _ticks(numbers: Sequence[int]) -> list[int]:
    """Return at most ten round numbers, and the first cycle when there are few."""
    first, last = numbers[0], numbers[-1]
    for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000):
        ticks = [n for n in range(first, last + 1) if n % step == 0]
        if len(ticks) <= 10:
            return ticks or [first]
    return [first, last]
