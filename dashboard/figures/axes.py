"""Draw the scales, stage markers and axes that figures share. Markers differ in shape and colour."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dashboard.markup import Html, join, tag

STAGES = ("clean", "midtrained", "recovered")
KEY = {"viewBox": "0 0 16 16", "width": "16", "height": "16", "aria-hidden": "true"}
Scale = Callable[[float], float]


def linear(low: float, high: float, start: float, end: float) -> Scale:
    """Return a linear map from [low, high] to pixels [start, end]; values outside are clamped."""
    width = (high - low) or 1.0

    def place(value: float) -> float:
        return round(start + min(1.0, max(0.0, (value - low) / width)) * (end - start), 1)

    return place


def mark(stage: str, x: float, y: float, size: float = 5) -> Html:
    """Draw a stage's marker: a circle for clean, a cross for midtrained, a diamond for recovered."""
    if stage == "midtrained":
        return tag("path", d=cross(x, y, size * 0.8), class_=f"c-{stage} stroke", stroke_width=2.4)
    if stage == "recovered":
        return tag("path", d=diamond(x, y, size * 1.15), class_=f"c-{stage} fill")
    return tag("circle", cx=x, cy=y, r=size, class_=f"c-{stage} fill")


def marks(stage: str, points: Sequence[tuple[float, float]], size: float = 3) -> Html:
    """Draw many markers as one SVG path, so the number of elements does not grow with the points."""
    if stage == "clean":
        path = "".join(f"M{x} {y}h0" for x, y in points)
        return tag("path", d=path, class_=f"c-{stage} stroke", stroke_width=2 * size, stroke_linecap="round")
    if stage == "midtrained":
        path = "".join(cross(x, y, size * 0.8) for x, y in points)
        return tag("path", d=path, class_=f"c-{stage} stroke", stroke_width=1.4)
    return tag("path", d="".join(diamond(x, y, size * 1.15) for x, y in points), class_=f"c-{stage} fill")


def cross(x: float, y: float, r: float) -> str:
    """Return the path of a cross, in relative coordinates to keep it short."""
    size = f"{2 * r:.1f}"
    return f"M{x - r:.1f} {y - r:.1f}l{size} {size}m0-{size}l-{size} {size}"


def diamond(x: float, y: float, r: float) -> str:
    size = f"{r:.1f}"
    return f"M{x:.1f} {y - r:.1f}l{size} {size}-{size} {size}-{size}-{size}z"


def line(x1: float, y1: float, x2: float, y2: float, class_: str = "axis", **more: object) -> Html:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_, **more)


def label(x: float, y: float, words: object, anchor: str = "start", class_: str | None = None) -> Html:
    return tag("text", words, x=x, y=y, text_anchor=anchor, class_=class_)


def percent_axes(
    x: Scale | None, y: Scale, box: tuple[float, float, float, float], every: float = 0.25
) -> Html:
    """Draw a percent grid in `box` (left, top, right, bottom); without `x`, only the vertical axis."""
    left, top, right, bottom = box
    ticks = [index * every for index in range(round(1 / every) + 1)]
    drawn = [
        join(line(left, y(t), right, y(t)), label(left - 8, y(t) + 4, f"{100 * t:.0f}", "end")) for t in ticks
    ]
    if x is not None:
        drawn += [
            join(line(x(t), top, x(t), bottom), label(x(t), bottom + 18, f"{100 * t:.0f}", "middle"))
            for t in ticks
        ]
    return join(*drawn)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return positions close to `wanted`, in the same order, at least `gap` apart, between low and high."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    places = [0.0] * len(wanted)
    last = low - gap
    for i in order:
        places[i] = last = max(wanted[i], last + gap)
    edge = high + gap
    for i in reversed(order):
        places[i] = edge = min(places[i], edge - gap)
    return [round(place, 1) for place in places]


def legend(*extra: Html) -> Html:
    """Return the legend of the stage markers."""
    entries = [
        tag("span", tag("svg", mark(stage, 8, 8, 4.5), class_="figure key", **KEY), stage, class_="entry")
        for stage in STAGES
    ]
    return tag("div", *entries, *extra, class_="legend")
