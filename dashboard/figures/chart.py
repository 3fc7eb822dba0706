"""Build line charts: scales, round ticks, the frame, and lines with gaps at missing values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dashboard.markup import Html, join, tag

Point = tuple[float, float | None]

WIDTH, HEIGHT = 960, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 14, 42
DASHES = (
    None,
    "7 4",
    "2 3",
    "10 3 2 3",
    "4 2",
    "1 4",
    "12 4",
    "6 2 2 2",
)  # dash patterns tell lines apart without colour
MARKS = ("circle", "square", "triangle", "diamond", "cross", "plus", "hexagon", "down")


@dataclass(frozen=True)
class Scale:
    """Map numbers to pixels, on a linear or logarithmic axis."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def around(cls, values: Iterable[float], start: float, end: float, *, log: bool = False) -> Scale:
        """Return a scale that covers all values with a small margin; without values, 0 to 1."""
        kept = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
        low, high = min(kept, default=0.1 if log else 0.0), max(kept, default=1.0)
        if log:
            return cls(low / 1.1, high * 1.1 if high > low else low * 10, start, end, True)
        room = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
        return cls(low - room if low != 0 else 0.0, high + room, start, end)

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log10(max(value, 1e-300)), math.log10(low), math.log10(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def holds(self, value: float | None) -> bool:
        return value is not None and math.isfinite(value) and (value > 0 or not self.log)

    def ticks(self, count: int = 5) -> list[float]:
        """Return round tick values within the scale."""
        if self.log:
            found = _decades(self.low, self.high)
            if len(found) >= 2:
                return found
        step = _round_step((self.high - self.low) / max(count, 1))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [place * step for place in range(first, last + 1) if place * step > 0 or not self.log]


def _decades(low: float, high: float) -> list[float]:
    exponents = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    every = max(1, math.ceil(len(exponents) / 7))
    found = [10.0**e for e in exponents][::every]
    if len(found) < 3:
        found = [
            m * 10.0**e
            for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            for m in (1, 2, 5)
            if low <= m * 10.0**e <= high
        ]
    return found


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)


def number(value: float | None) -> str:
    """Format with a few significant digits: 12.3 k, 0.0012, 3e-07."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    for most, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if size >= most:
            return f"{value / (1e3 if unit == ' k' else most):.4g}{unit}"
    if size == 0 or size >= 1e-4:
        return f"{value:.4g}".replace("-", "−")
    return f"{value:.1e}".replace("-", "−")


def duration(seconds: float) -> str:
    """Format seconds for an axis: 90 -> 1.5 min."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def scales(
    xs: Iterable[float],
    ys: Iterable[float],
    *,
    log_x: bool = False,
    log_y: bool = False,
    width: int = WIDTH,
    height: int = HEIGHT,
) -> tuple[Scale, Scale]:
    return (
        Scale.around(xs, LEFT, width - RIGHT, log=log_x),
        Scale.around(ys, height - BOTTOM, TOP, log=log_y),
    )


def frame(
    x: Scale,
    y: Scale,
    x_label: str,
    y_label: str,
    *,
    x_text: Callable[[float], str] = number,
    y_text: Callable[[float], str] = number,
    x_ticks: int = 7,
) -> Html:
    """Draw the grid, the ticks and both axis labels."""
    left, right, bottom, top = x.start, x.end, y.start, y.end
    parts = []
    for value in y.ticks():
        place = round(y(value), 1)
        parts.append(tag("line", x1=left, x2=right, y1=place, y2=place, class_="axis"))
        parts.append(tag("text", y_text(value), x=left - 8, y=place + 4, text_anchor="end"))
    for value in x.ticks(x_ticks):
        place = round(x(value), 1)
        parts.append(tag("line", x1=place, x2=place, y1=bottom, y2=bottom + 4, class_="axis"))
        parts.append(tag("text", x_text(value), x=place, y=bottom + 18, text_anchor="middle"))
    middle = round((top + bottom) / 2, 1)
    parts.append(tag("text", x_label, x=right, y=bottom + 36, text_anchor="end", class_="ink"))
    parts.append(
        tag(
            "text",
            y_label,
            x=14,
            y=middle,
            text_anchor="middle",
            class_="ink",
            transform=f"rotate(-90 14 {middle})",
        )
    )
    return join(*parts)


def svg(*children: object, label: str, width: int = WIDTH, height: int = HEIGHT, class_: str = "") -> Html:
    """Return an SVG element that scales with its container; `label` is its text for screen readers."""
    named = f"figure {'wide ' if width >= WIDTH else ''}{class_}".strip()
    return tag("svg", *children, viewBox=f"0 0 {width} {height}", class_=named, role="img", aria_label=label)


def line(points: Sequence[Point], x: Scale, y: Scale, **attributes: object) -> Html | None:
    """Draw a path through the points, with a gap at each missing value."""
    steps, drawing = [], False
    for place, value in points:
        if not (x.holds(place) and y.holds(value)):
            drawing = False
            continue
        assert value is not None
        steps.append(f"{'L' if drawing else 'M'}{x(place):.1f} {y(value):.1f}")
        drawing = True
    return tag("path", d="".join(steps), fill="none", **attributes) if steps else None


def band(
    rows: Sequence[tuple[float, float | None, float | None]], x: Scale, y: Scale, **attributes: object
) -> Html | None:
    """Fill the area between low and high; a low of zero or less on a log axis is drawn at the bottom."""
    kept = [(p, lo, hi) for p, lo, hi in rows if x.holds(p) and hi is not None and y.holds(hi)]
    if len(kept) < 2:
        return None
    upper = [f"{x(p):.1f} {y(hi):.1f}" for p, _, hi in kept]
    lower = [f"{x(p):.1f} {y(lo if lo is not None and y.holds(lo) else y.low):.1f}" for p, lo, _ in kept]
    lower.reverse()
    return tag("path", d=f"M{'L'.join([*upper, *lower])}Z", **attributes)


def mark(shape: str, x: float, y: float, size: float = 6, **attributes: object) -> Html:
    """Return a marker: shapes distinguish series, not colours alone."""
    if shape == "circle":
        return tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=size * 0.95, **attributes)
    outlines: dict[str, list[tuple[float, float]]] = {
        "square": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
        "triangle": [(0, -1.1), (1, 0.8), (-1, 0.8)],
        "down": [(0, 1.1), (1, -0.8), (-1, -0.8)],
        "diamond": [(0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)],
        "hexagon": [(-1, 0), (-0.5, -0.9), (0.5, -0.9), (1, 0), (0.5, 0.9), (-0.5, 0.9)],
        "plus": [
            (-0.35, -1),
            (0.35, -1),
            (0.35, -0.35),
            (1, -0.35),
            (1, 0.35),
            (0.35, 0.35),
            (0.35, 1),
            (-0.35, 1),
            (-0.35, 0.35),
            (-1, 0.35),
            (-1, -0.35),
            (-0.35, -0.35),
        ],
        "cross": [
            (-1, -0.6),
            (-0.6, -1),
            (0, -0.4),
            (0.6, -1),
            (1, -0.6),
            (0.4, 0),
            (1, 0.6),
            (0.6, 1),
            (0, 0.4),
            (-0.6, 1),
            (-1, 0.6),
            (-0.4, 0),
        ],
    }
    points = " ".join(f"{x + dx * size:.1f},{y + dy * size:.1f}" for dx, dy in outlines[shape])
    return tag("polygon", points=points, **attributes)
