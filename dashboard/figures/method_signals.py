"""Draw density, bias and concentration of each method's token signal, one panel each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.figures import axes
from dashboard.figures.markers import marker, series
from dashboard.figures.scales import Scale
from dashboard.markup import Html, tag

WIDTH, LINE = 320, 26
MEASURES = {
    "signal_density": ("density", "share of tokens that carry a signal at all"),
    "signal_bias": (
        "bias",
        "how far different rollouts pull the same way: 1 all alike, 0 noise that cancels",
    ),
    "signal_concentration": ("concentration", "share of the signal that lies on the top 1 % of tokens"),
}


def method_signals(methods: Mapping[str, Mapping[str, float]]) -> Html:
    """Return a panel per measure, with a line per method."""
    return tag("div", [_panel(methods, metric) for metric in MEASURES], class_="grid")


def _panel(methods: Mapping[str, Mapping[str, float]], metric: str) -> Html:
    title, meaning = MEASURES[metric]
    height = len(methods) * LINE + 34
    x = Scale(-0.02, 1.02, 110, WIDTH - 14)
    drawn: list[Any] = [axes.label(x(tick), height - 6, f"{tick:g}", "middle") for tick in (0, 0.5, 1)]
    for place, (method, values) in enumerate(methods.items()):
        drawn.append(_line(method, values.get(metric), place, x))
    picture = axes.svg(drawn, label=f"{title} by method", width=WIDTH, height=height, class_="signals")
    heading = tag("h3", title), tag("p", meaning, class_="soft small")
    return tag("div", heading, picture, class_="third")


def _line(method: str, value: float | None, place: int, x: Scale) -> Html:
    y = place * LINE + 16
    name = axes.label(102, y + 4, method, "end", "ink")
    line = axes.rule(x.start, y, x.end, y)
    if value is None:
        return tag("g", name, line)
    at = x.clamped(value)
    side, gap = ("end", -12) if value > 0.6 else ("start", 12)
    sign = marker(series(place), at, y, 6), axes.label(at + gap, y + 4, f"{value:.2f}", side, "over")
    return tag("g", name, line, sign)
