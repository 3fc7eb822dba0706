"""Draw metric curves: a smoothed line, the range of each stretch of steps, and alarm marks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dashboard.figures import axes
from dashboard.figures.axes import Point
from dashboard.figures.markers import Style, legend, marker, series
from dashboard.figures.scales import Scale
from dashboard.markup import Html, join, tag
from dashboard.number_format import alike, time_unit

SMALL = (220, 84)
BROKEN, ALARM = Style("alarm", "cross", None), Style("alarm", "triangle", None)


@dataclass(frozen=True)
class Curve:
    """One run's metric: rows of db.reads.curves.metric_series, with their positions on the x axis."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    places: Sequence[float]
    alarms: Sequence[tuple[float, str]] = ()  # (x position, message)


def smoothed(values: Sequence[float | None], keep: float) -> list[float | None]:
    """Return the bias-corrected exponential moving average; `keep` is the weight of the past."""
    mean, weight = 0.0, 0.0
    found: list[float | None] = []
    for value in values:
        if value is None:
            found.append(None)
            continue
        mean = keep * mean + (1 - keep) * value
        weight = keep * weight + (1 - keep)
        found.append(mean / weight)
    return found


def figure(
    curves: Sequence[Curve],
    metric: str,
    axis: str,
    *,
    keep: float = 0.0,
    log: bool = False,
    width: int = axes.WIDTH,
) -> Html:
    """Draw all curves in one frame; `axis` is steps, tokens or time."""
    places = [place for curve in curves for place in curve.places]
    rows = [row for curve in curves for row in curve.rows]
    ends = [row["low"] for row in rows] + [row["high"] for row in rows]
    x, text = _across(places, axis, width)
    values = [value for value in ends if value is not None]
    y = Scale.around(values, axes.HEIGHT - axes.BOTTOM, axes.TOP, log=log)
    drawn = [_drawn(series(place), curve, x, y, keep) for place, curve in enumerate(curves)]
    words = f"{metric} over {axis} of {', '.join(curve.name for curve in curves)}"
    return axes.svg(axes.frame(x, y, axis, metric, x_text=text), drawn, label=words, width=width)


def _across(places: Sequence[float], axis: str, width: int) -> tuple[Scale, Callable[[float], str]]:
    """Return the axis of steps, tokens or time and the format of its ticks; nothing is between two steps."""
    x = Scale.around(places, axes.LEFT, width - axes.RIGHT)
    if axis == "time":
        size, unit = time_unit(max(places, default=0.0))
        return replace(x, unit=size), lambda seconds: f"{seconds / size:.3g} {unit}"
    words = alike(x.ticks(axes.ACROSS))
    return x, lambda place: words(place) if abs(place - round(place)) < 1e-9 else ""


def _drawn(style: Style, curve: Curve, x: Scale, y: Scale, keep: float) -> list[Html | None]:
    values = [row["value"] for row in curve.rows]
    raw: list[Point] = list(zip(curve.places, values, strict=True))
    soft: list[Point] = list(zip(curve.places, smoothed(values, keep), strict=True))
    lows = [(p, row["low"], row["high"]) for p, row in zip(curve.places, curve.rows, strict=True)]
    several = any(row["n"] > 1 for row in curve.rows)
    faint = {"class_": f"{style.colour} stroke", "stroke_opacity": "0.3"}
    return [
        axes.band(lows, x, y, style) if several else None,
        axes.curve(raw, x, y, style, **faint) if keep else None,
        axes.curve(soft, x, y, style),
        axes.lone(soft, x, y, style),
        *(
            _broken(place, row, x, y)
            for place, row in zip(curve.places, curve.rows, strict=True)
            if row["special"]
        ),
        *(_alarm(place, words, x, y) for place, words in curve.alarms),
    ]


def _broken(place: float, row: Mapping[str, Any], x: Scale, y: Scale) -> Html:
    """Mark a value that was not finite, at the bottom of the chart."""
    words = tag("title", f"{row['special']} near step {row['step']}")
    return tag("g", words, marker(BROKEN, x(place), y.start - 7))


def _alarm(place: float, words: str, x: Scale, y: Scale) -> Html:
    at = x(place)
    return tag(
        "g",
        tag("title", words),
        axes.rule(at, y.start, at, y.end, "alarm stroke", stroke_dasharray="4 3"),
        marker(ALARM, at, y.end + 8, 7),
        axes.label(at - 10, y.end + 12, "alarm", "end", "alarm-text"),
    )


def small(rows: Sequence[Mapping[str, Any]], metric: str) -> Html:
    """Draw one curve as a thumbnail without a frame."""
    width, height = SMALL
    values = [row["value"] for row in rows if row["value"] is not None]
    x = Scale.around([row["step"] for row in rows], 2, width - 2)
    y = Scale.around(values, height - 4, 4)
    points: list[Point] = [(row["step"], row["value"]) for row in rows]
    alone = marker(series(0), width / 2, height / 2, 3)
    line = [axes.curve(points, x, y, series(0)), axes.lone(points, x, y, series(0), 3)]
    drawn = alone if len(values) == 1 else line
    return axes.svg(drawn, label=f"{metric}, small", width=width, height=height)


def curve_legend(curves: Sequence[Curve], links: Sequence[Html]) -> Html:
    """Return each curve's line style and name, with a link that removes the curve."""
    named = zip(curves, links, strict=True)
    entries = [(series(place), join(curve.name, " ", link)) for place, (curve, link) in enumerate(named)]
    return legend(entries, line=True)
