"""Draw methods on the plane of knowledge against behaviour, and bars for their costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.figures import chart
from dashboard.figures.chart import MARKS, Scale
from dashboard.markup import Html, tag

Row = Mapping[str, Any]
AXES = ("knowledge", "ifeval")
MOST_BARS = 30  # most recoveries drawn with intervals; more would hide each other
PLACES = ("clean", "midtrained")  # the reference models: target and start


def value(row: Row, suite: str) -> float | None:
    found = (row.get("scores") or {}).get(suite)
    return None if found is None else found["value"]


def plane(rows: Sequence[Row], methods: Sequence[str], references: Mapping[str, Row]) -> Html:
    """Draw one sign per recovery; `references` are the scores of the clean and the midtrained model."""
    width, height = 720, 470
    shown = [row for row in rows if value(row, "knowledge") is not None and value(row, "ifeval") is not None]
    every = [*shown, *references.values()]
    x = _axis([value(row, "knowledge") for row in every], chart.LEFT, width - chart.RIGHT)
    y = _axis([value(row, "ifeval") for row in every], height - chart.BOTTOM, chart.TOP)
    drawn: list[Html | None] = [
        chart.frame(
            x,
            y,
            "knowledge of the new documents",
            "instruction following (IFEval)",
            x_text=_percent,
            y_text=_percent,
        )
    ]
    barred = len(shown) <= MOST_BARS
    drawn += [_reference(name, row, x, y) for name, row in references.items()]
    for row in reversed(shown):  # draw the newest last, on top
        drawn.append(_sign(row, methods.index(row["method"]), x, y, barred))
    return chart.svg(
        drawn,
        label="methods: knowledge against instruction following",
        width=width,
        height=height,
        class_="methods",
    )


def _axis(values: Sequence[float | None], start: float, end: float) -> Scale:
    """Return a scale over the part of 0 to 1 that the values need."""
    kept = [number for number in values if number is not None]
    low, high = min(kept, default=0.0), max(kept, default=1.0)
    room = max(0.02, 0.08 * (high - low))
    return Scale(max(-0.02, low - room), min(1.02, high + room), start, end)


def _percent(share: float) -> str:
    return f"{100 * share:.4g}"


def _sign(row: Row, number: int, x: Scale, y: Scale, barred: bool) -> Html:
    left, top = x(value(row, "knowledge") or 0.0), y(value(row, "ifeval") or 0.0)
    said = f"{row['method']}, {row.get('label') or row['checkpoint']}"
    kind = f"c-s{number % 8 + 1}"
    bars = [_bar(row, suite, x, y, left, top, kind) for suite in AXES if barred]
    sign = chart.mark(MARKS[number % len(MARKS)], left, top, 7, class_=f"{kind} fill", stroke="var(--card)")
    return tag("g", tag("title", said), bars, sign)


def _bar(row: Row, suite: str, x: Scale, y: Scale, left: float, top: float, kind: str) -> Html | None:
    found = row["scores"][suite]
    low, high = found.get("low"), found.get("high")
    if low is None or high is None:
        return None
    scale = x if suite == "knowledge" else y
    low, high = scale(max(low, scale.low)), scale(min(high, scale.high))
    ends: dict[str, str] = (
        {"x1": f"{low:.1f}", "x2": f"{high:.1f}", "y1": f"{top:.1f}", "y2": f"{top:.1f}"}
        if suite == "knowledge"
        else {"x1": f"{left:.1f}", "x2": f"{left:.1f}", "y1": f"{low:.1f}", "y2": f"{high:.1f}"}
    )
    return tag("line", **ends, class_=f"{kind} stroke", stroke_opacity="0.35")


def _reference(name: str, row: Row, x: Scale, y: Scale) -> Html | None:
    known, behaved = value(row, "knowledge"), value(row, "ifeval")
    if known is None or behaved is None:
        return None
    left, top = x(known), y(behaved)
    side = "end" if left > (x.start + x.end) / 2 else "start"
    return tag(
        "g",
        tag("circle", cx=f"{left:.1f}", cy=f"{top:.1f}", r=9, class_=f"c-{name} stroke thick"),
        tag(
            "text",
            name,
            x=f"{left + (-14 if side == 'end' else 14):.1f}",
            y=f"{top + 4:.1f}",
            text_anchor=side,
            class_="strong",
        ),
    )


def sample(number: int) -> Html:
    """Return a method's sign for a table cell."""
    sign = chart.mark(MARKS[number % len(MARKS)], 9, 9, 6, class_=f"c-s{number % 8 + 1} fill")
    return tag("svg", sign, viewBox="0 0 18 18", class_="figure sign", aria_hidden="true")


def bar(part: float) -> Html:
    """Draw a cost as a fraction of the highest cost."""
    drawn = tag("rect", x=0, y=2, width=f"{max(1.0, 100 * part):.1f}", height=8, rx=2, class_="c-s7 fill")
    return tag("svg", drawn, viewBox="0 0 100 12", class_="figure cost", aria_hidden="true")
