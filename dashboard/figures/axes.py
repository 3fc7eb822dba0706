"""Draw what figures are made of: the frame with grid and ticks, lines with gaps, bands, interval bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dashboard.figures.markers import Style, markers
from dashboard.figures.scales import Scale
from dashboard.markup import Html, join, tag
from dashboard.number_format import alike, number
from db.cycle_names import STAGES

ACROSS = 7  # ticks of a horizontal axis, about
Point = tuple[float, float | None]

WIDTH, HEIGHT = 960, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 14, 42  # margins around the axes


def svg(
    *children: object,
    label: str,
    width: int = WIDTH,
    height: int = HEIGHT,
    class_: str = "",
    grouped: bool = False,
) -> Html:
    """Return an SVG element that scales with its container; `label` is its text for screen readers.

    They read neither links nor numbers within an image, so a figure that has such is `grouped`.
    """
    role = "group" if grouped else "img"
    named = f"figure {'wide ' if width >= WIDTH else ''}{class_}".strip()
    return tag("svg", *children, viewBox=f"0 0 {width} {height}", class_=named, role=role, aria_label=label)


def nothing(words: str) -> Html:
    """Return what stands in the place of a figure that has nothing to draw."""
    return tag("p", words, class_="soft")


def frame(
    x: Scale,
    y: Scale,
    x_label: str = "",
    y_label: str = "",
    *,
    x_text: Callable[[float], str],
    y_text: Callable[[float], str] | None = None,
    upright: bool = False,
) -> Html:
    """Draw ticks, axis labels and the grid: horizontal lines, with `upright` vertical ones too.

    A place that `x_text` or `y_text` has no words for gets no tick. Without `y_text` numbers are written,
    on a linear axis all in one unit."""
    left = x.start
    right = x.end
    bottom = y.start
    top = y.end
    up = y.ticks()
    y_text = y_text or (number if y.log else alike(up))
    parts: list[Html] = []
    for value in filter(y_text, up):
        parts.append(rule(left, y(value), right, y(value)))
        parts.append(label(left - 8, y(value) + 4, y_text(value), "end"))
    for value in filter(x_text, x.ticks(ACROSS)):
        parts.append(rule(x(value), top if upright else bottom, x(value), bottom + 4))
        parts.append(label(x(value), bottom + 18, x_text(value), "middle"))
    if x_label:
        parts.append(label((left + right) / 2, bottom + 38, x_label, "middle", "ink"))
    if y_label:
        middle = round((top + bottom) / 2, 1)
        turned = f"rotate(-90 10 {middle})"
        parts.append(
            tag("text", y_label, x=10, y=middle, text_anchor="middle", class_="ink", transform=turned)
        )
    return join(parts)


def scores_and_bounds(suite: Mapping[str, Any]) -> list[float | None]:
    """Return a suite's scores by stage and the bounds of their intervals: what its axis must hold."""
    found = [suite.get(stage) for stage in STAGES]
    for bounds in (suite.get("intervals") or {}).values():
        found += bounds or ()
    return found


def percent_tick(share: float) -> str:
    """Format a tick of a percent axis: 0.25 -> 25; what no share can be gets no label."""
    return f"{100 * share:.4g}" if -1e-9 <= share <= 1 + 1e-9 else ""


def whole_tick(value: float) -> str:
    """Format a tick of an axis of counts; a fraction gets no label."""
    return f"{value:.0f}" if abs(value - round(value)) < 1e-9 else ""


def label(x: float, y: float, words: object, anchor: str = "start", class_: str | None = None) -> Html:
    return tag("text", words, x=x, y=y, text_anchor=anchor, class_=class_)


def rule(x1: float, y1: float, x2: float, y2: float, class_: str = "axis", **more: object) -> Html:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_, **more)


def curve(points: Sequence[Point], x: Scale, y: Scale, style: Style, **attributes: object) -> Html | None:
    """Draw a line through the points, with a gap at each missing value."""
    steps = []
    drawing = False
    for place, value in points:
        if value is None or not (x.holds(place) and y.holds(value)):
            drawing = False
            continue
        steps.append(f"{'L' if drawing else 'M'}{x(place)} {y(value)}")
        drawing = True
    if not steps:
        return None
    look = {"class_": f"{style.colour} stroke thick", "stroke_dasharray": style.dash, **attributes}
    return tag("path", d="".join(steps), fill="none", **look)


def lone(points: Sequence[Point], x: Scale, y: Scale, style: Style, size: float = 4) -> Html | None:
    """Mark the points that no line of a curve reaches: before and after them nothing can be drawn."""
    there = [False, *(x.holds(place) and y.holds(value) for place, value in points), False]
    around = zip(there[:-2], there[1:-1], there[2:], strict=True)
    alone = [held and not (before or after) for before, held, after in around]
    found = [(x(p), y(v)) for (p, v), wanted in zip(points, alone, strict=True) if wanted and v is not None]
    return markers(style, found, size) if found else None


def band(
    rows: Sequence[tuple[float, float | None, float | None]], x: Scale, y: Scale, style: Style
) -> Html | None:
    """Fill the area between low and high; a low of zero or less on a log axis is drawn at the bottom."""
    kept = [(p, lo, hi) for p, lo, hi in rows if x.holds(p) and hi is not None and y.holds(hi)]
    if len(kept) < 2:
        return None
    upper = [f"{x(p)} {y(hi)}" for p, _, hi in kept]
    lower = [f"{x(p)} {y(lo if lo is not None and y.holds(lo) else y.low)}" for p, lo, _ in kept]
    path = "L".join([*upper, *reversed(lower)])
    return tag("path", d=f"M{path}Z", class_=f"{style.colour} fill", fill_opacity="0.16")


def interval(
    ends: Sequence[float | None] | None, at: float, scale: Scale, style: Style, *, upright: bool
) -> Html | None:
    """Draw a confidence interval as a bar along its axis; `at` is the pixel on the other axis."""
    low, high = ends or (None, None)
    if low is None or high is None:
        return None
    first, last = scale.clamped(low), scale.clamped(high)
    line = (at, first, at, last) if upright else (first, at, last, at)
    return rule(*line, f"bar {style.colour} stroke")
