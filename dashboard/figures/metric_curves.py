"""Draw metric curves: a smoothed line, the range of each stretch of steps, and alarm marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.figures import chart
from dashboard.figures.chart import DASHES, Point, Scale
from dashboard.markup import Html, tag

SMALL = (220, 84)
COLOURS = 8  # --s1 … --s8


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
        mean, weight = keep * mean + (1 - keep) * value, keep * weight + (1 - keep)
        found.append(mean / weight)
    return found


def figure(
    curves: Sequence[Curve],
    metric: str,
    axis: str,
    *,
    keep: float = 0.0,
    log: bool = False,
    width: int = chart.WIDTH,
) -> Html:
    """Draw all curves in one frame; `axis` is steps, tokens or time."""
    x, y = chart.scales(
        [place for curve in curves for place in curve.places],
        [
            row[end]
            for curve in curves
            for row in curve.rows
            for end in ("low", "high")
            if row[end] is not None
        ],
        log_y=log,
        width=width,
    )
    text = chart.duration if axis == "time" else chart.number
    drawn = [_drawn(number, curve, x, y, keep) for number, curve in enumerate(curves)]
    label = f"{metric} over {axis} of {', '.join(curve.name for curve in curves)}"
    return chart.svg(chart.frame(x, y, axis, metric, x_text=text), drawn, label=label, width=width)


def _drawn(number: int, curve: Curve, x: Scale, y: Scale, keep: float) -> list[Html | None]:
    kind = f"s{number % COLOURS + 1}"
    means = [row["value"] for row in curve.rows]
    lows = [(place, row["low"], row["high"]) for place, row in zip(curve.places, curve.rows, strict=True)]
    raw: list[Point] = list(zip(curve.places, means, strict=True))
    soft: list[Point] = list(zip(curve.places, smoothed(means, keep), strict=True))
    several = any(row["n"] > 1 for row in curve.rows)
    return [
        chart.band(lows, x, y, class_=f"c-{kind} fill", fill_opacity="0.14") if several else None,
        chart.line(raw, x, y, class_=f"c-{kind} stroke", stroke_opacity="0.3") if keep else None,
        chart.line(
            soft, x, y, class_=f"c-{kind} stroke thick", stroke_dasharray=DASHES[number % len(DASHES)]
        ),
        *(
            _broken(place, row, x, y)
            for place, row in zip(curve.places, curve.rows, strict=True)
            if row["special"]
        ),
        *(_alarm(place, said, x, y) for place, said in curve.alarms),
    ]


def _broken(place: float, row: Mapping[str, Any], x: Scale, y: Scale) -> Html:
    """Mark a value that was not finite, at the bottom of the chart."""
    said = f"{row['special']} near step {row['step']}"
    return tag("g", tag("title", said), chart.mark("cross", x(place), y.start - 7, 5, class_="alarm fill"))


def _alarm(place: float, said: str, x: Scale, y: Scale) -> Html:
    at = round(x(place), 1)
    return tag(
        "g",
        tag("title", said),
        tag("line", x1=at, x2=at, y1=y.start, y2=y.end, class_="alarm stroke", stroke_dasharray="4 3"),
        chart.mark("triangle", at, y.end + 8, 7, class_="alarm fill"),
        tag("text", "alarm", x=at - 10, y=y.end + 12, text_anchor="end", class_="alarm-text"),
    )


def small(rows: Sequence[Mapping[str, Any]], metric: str) -> Html:
    """Draw one curve as a thumbnail without a frame."""
    width, height = SMALL
    values = [row["value"] for row in rows if row["value"] is not None]
    x = Scale.around([row["step"] for row in rows], 2, width - 2)
    y = Scale.around(values, height - 4, 4)
    points: list[Point] = [(row["step"], row["value"]) for row in rows]
    if len(values) == 1:
        drawn = chart.mark("circle", width / 2, height / 2, 3, class_="c-s1 fill")
    else:
        drawn = chart.line(points, x, y, class_="c-s1 stroke thick") or tag("g")
    return chart.svg(drawn, label=f"{metric}, small", width=width, height=height)


def legend(curves: Sequence[Curve], links: Sequence[Html]) -> Html:
    """Return each curve's line style and name, with a link that removes the curve."""
    entries = []
    for number, (curve, link) in enumerate(zip(curves, links, strict=True)):
        sample = tag(
            "line",
            x1=0,
            x2=34,
            y1=6,
            y2=6,
            class_=f"c-s{number % COLOURS + 1} stroke thick",
            stroke_dasharray=DASHES[number % len(DASHES)],
        )
        key = tag("svg", sample, viewBox="0 0 34 12", class_="figure sample", aria_hidden="true")
        entries.append(tag("span", key, " ", curve.name, " ", link))
    return tag("p", entries, class_="legend")
