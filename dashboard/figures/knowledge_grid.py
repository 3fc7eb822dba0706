"""Draw the score of each model on each cycle's documents, as a triangle of shaded cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dashboard.figures.axes import svg
from dashboard.markup import Html, join, tag
from dashboard.number_format import percent

SHADES = 8
CELL, GAP, LEFT, TOP = 40, 2, 118, 40
NUMBERS = 26  # most cycles for which cells show their number


def triangle(
    cells: Mapping[tuple[int, int], float | None],
    cycles: Sequence[int],
    chosen: int | None,
    link: Callable[[int], str],
) -> Html:
    """Draw the score of each model (row) on the documents of each cycle (column)."""
    size = CELL if len(cycles) <= NUMBERS else 24
    width = max(LEFT + len(cycles) * size + 10, 900)
    height = TOP + len(cycles) * size + 6
    drawn: list[Html] = [tag("text", "documents of cycle", x=LEFT, y=14, class_="ink")]
    if size < CELL:  # the rows show their number alone
        drawn.append(tag("text", "after cycle", x=LEFT - 8, y=TOP - 8, text_anchor="end", class_="ink"))
    every = max(1, -(-len(cycles) // 30))
    for place, number in enumerate(cycles):
        if place % every == 0:
            drawn.append(
                tag("text", number, x=LEFT + place * size + size / 2, y=TOP - 8, text_anchor="middle")
            )
        row = [
            _cell(cells[number, whose], number, whose, column, size)
            for column, whose in enumerate(cycles[: place + 1])
            if (number, whose) in cells
        ]
        named = tag("a", _label(number, size, chosen), href=link(number))
        drawn.append(tag("g", named, row, transform=f"translate(0 {TOP + place * size})"))
    return svg(
        drawn,
        label="knowledge of each cycle's documents, after each cycle",
        width=width,
        height=height,
        class_="grid-figure",
        grouped=True,
    )


def _label(number: int, size: int, chosen: int | None) -> Html:
    words = f"after cycle {number}" if size == CELL else str(number)
    weight = "strong" if number == chosen else None
    return tag("text", words, x=LEFT - 8, y=size / 2 + 4, text_anchor="end", class_=weight)


def _cell(value: float | None, number: int, whose: int, column: int, size: int) -> Html:
    """Return one cell: column, shade and tooltip, kept short because there are hundreds."""
    x = LEFT + column * size
    side = size - GAP
    said = tag("title", f"cycle {whose}'s documents after cycle {number}: {percent(value)}")
    shade = "k-none" if value is None else f"k{min(SHADES, int(value * (SHADES + 1)))}"
    square = tag("rect", said, x=x, width=side, height=side, class_=shade)
    if size < CELL or value is None:
        return square
    place = {"x": x + side / 2, "y": side / 2 + 4, "text_anchor": "middle", "pointer_events": "none"}
    return join(square, tag("text", f"{100 * value:.0f}", class_=f"on-{shade}", **place))


def scale() -> Html:
    """Return the legend of the shades."""
    steps = [tag("rect", x=n * 22, y=0, width=22, height=12, class_=f"k{n}") for n in range(SHADES + 1)]
    picture = tag(
        "svg", steps, viewBox=f"0 0 {(SHADES + 1) * 22} 12", class_="figure shades", aria_hidden="true"
    )
    return tag("p", "0 % known ", picture, " 100 %", class_="legend")
