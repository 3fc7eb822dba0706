"""Style series: each has a colour, a marker and a dash pattern, so that colour alone never decides.

The colours are variables of static/style.css: --clean, --midtrained, --recovered, --s1 to --s8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from dashboard.markup import Html, tag

OUTLINES: dict[str, Sequence[tuple[float, float]]] = {
    "square": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
    "triangle": [(0, -1.1), (1, 0.8), (-1, 0.8)],
    "down": [(0, 1.1), (1, -0.8), (-1, -0.8)],
    "diamond": [(0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)],
    "hexagon": [(-1, 0), (-0.5, -0.9), (0.5, -0.9), (1, 0), (0.5, 0.9), (-0.5, 0.9)],
    "plus": [
        *[(-0.35, -1), (0.35, -1), (0.35, -0.35), (1, -0.35), (1, 0.35), (0.35, 0.35)],
        *[(0.35, 1), (-0.35, 1), (-0.35, 0.35), (-1, 0.35), (-1, -0.35), (-0.35, -0.35)],
    ],
    "cross": [
        *[(-1, -0.6), (-0.6, -1), (0, -0.4), (0.6, -1), (1, -0.6), (0.4, 0)],
        *[(1, 0.6), (0.6, 1), (0, 0.4), (-0.6, 1), (-1, 0.6), (-0.4, 0)],
    ],
}


@dataclass(frozen=True)
class Style:
    """How a series looks."""

    colour: str  # a class of the style sheet
    shape: str
    dash: str | None


STAGE_STYLES = {
    "clean": Style("c-clean", "circle", "6 4"),
    "midtrained": Style("c-midtrained", "cross", "2 3"),
    "recovered": Style("c-recovered", "diamond", None),
}
SERIES = (
    Style("c-s1", "circle", None),
    Style("c-s2", "square", "7 4"),
    Style("c-s3", "triangle", "2 3"),
    Style("c-s4", "diamond", "10 3 2 3"),
    Style("c-s5", "cross", "4 2"),
    Style("c-s6", "plus", "1 4"),
    Style("c-s7", "hexagon", "12 4"),
    Style("c-s8", "down", "6 2 2 2"),
)


def series(number: int) -> Style:
    return SERIES[number % len(SERIES)]


def styled(stages: Mapping[str, str], others: Iterable[str]) -> dict[str, Style]:
    """Return the styles of series by name: of those in `stages` their stage's, of others none of a stage."""
    beside = {name: series(number) for number, name in enumerate(others, len(STAGE_STYLES))}
    return {name: STAGE_STYLES[stage] for name, stage in stages.items()} | beside


def marker(style: Style, x: float, y: float, size: float = 5, **attributes: object) -> Html:
    return markers(style, [(x, y)], size, **attributes)


def markers(
    style: Style, points: Iterable[tuple[float, float]], size: float = 5, **attributes: object
) -> Html:
    """Draw any number of markers as one SVG path."""
    outline = _outline(style.shape, size)
    path = "".join(f"M{x:.1f} {y:.1f}{outline}" for x, y in points)
    return tag("path", d=path, class_=f"{style.colour} fill", **attributes)


@lru_cache
def _outline(shape: str, size: float) -> str:
    """Return a marker's outline as a path relative to its centre."""
    if shape == "circle":
        arc = f"a{size:g} {size:g} 0 1 0"
        return f"m{-size:g} 0{arc} {2 * size:g} 0{arc} {-2 * size:g} 0z"
    corners = [(size * x, size * y) for x, y in OUTLINES[shape]]
    steps = [(x - x0, y - y0) for (x0, y0), (x, y) in pairwise(corners)]
    first = f"m{corners[0][0]:.3g} {corners[0][1]:.3g}"
    return first + "l" + " ".join(f"{x:.3g} {y:.3g}" for x, y in steps) + "z"


def key(style: Style, *, line: bool = False) -> Html:
    """Return a series' sign for a legend or a table cell: its marker, on its line where there is one."""
    drawn = [marker(style, 17 if line else 8, 8, 4.5)]
    if line:
        way = {"x1": 0, "x2": 34, "y1": 8, "y2": 8, "stroke_dasharray": style.dash}
        drawn.insert(0, tag("line", **way, class_=f"{style.colour} stroke thick"))
    box, class_ = ("0 0 34 16", "figure key wide-key") if line else ("0 0 16 16", "figure key")
    return tag("svg", drawn, viewBox=box, class_=class_, aria_hidden="true")


def legend(entries: Iterable[tuple[Style, object]], *more: object, line: bool = False) -> Html:
    """Return a legend of (style, words), and anything else behind it."""
    shown = [tag("span", key(style, line=line), " ", words, class_="entry") for style, words in entries]
    return tag("div", shown, [tag("span", part) for part in more], class_="legend")


def stage_legend(*more: object) -> Html:
    return legend([(style, stage) for stage, style in STAGE_STYLES.items()], *more)
