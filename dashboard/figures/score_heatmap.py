"""Draw shares as a table of coloured cells, each with its number, so that colour is never needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dashboard.markup import Html, tag
from dashboard.number_format import NONE, share


class Cell(NamedTuple):
    """A share of n items, with a link to the failing samples."""

    value: float | None
    n: int
    link: str | None = None
    words: str = ""


def heatmap(
    columns: Sequence[Any], rows: Sequence[tuple[str, Sequence[Cell]]], corner: str = "instruction type"
) -> Html:
    """Return the table; `columns` are headings (text or Html), `rows` are (name, cells)."""
    head = tag("tr", tag("th", corner, scope="col"), [tag("th", column, scope="col") for column in columns])
    body = [
        tag("tr", tag("th", _name(name), scope="row"), [_cell(name, cell) for cell in cells])
        for name, cells in rows
    ]
    drawn = tag("table", tag("thead", head), tag("tbody", body), class_="heat")
    return tag("div", drawn, class_="scroll", tabindex="0", role="region", aria_label="heat map")


def _name(name: str) -> Html:
    """Format a family:type name, with the family in small print above."""
    family, _, kind = name.rpartition(":")
    above = tag("span", family.replace("_", " "), class_="soft small") if family else None
    return tag("span", above, tag("span", (kind or name).replace("_", " ")), class_="kind")


def _cell(name: str, cell: Cell) -> Html:
    if cell.value is None:
        return tag("td", NONE, class_="cell none")
    shown = [tag("span", share(cell.value, 0)), tag("span", f"of {cell.n}", class_="of")]
    failed = round(cell.n * (1 - cell.value))
    words = f"{name}, {cell.words}: {share(cell.value)} % of {cell.n}; {failed} fail"
    inner = tag("a", shown, href=cell.link, title=words) if cell.link else tag("span", shown, title=words)
    return tag("td", inner, class_=f"cell h{min(9, int(cell.value * 10))}")


def scale() -> Html:
    """Return the legend of the colour scale."""
    steps = [tag("span", class_=f"cell h{step}") for step in range(10)]
    return tag(
        "div",
        tag("span", "0 %"),
        tag("span", steps, class_="steps", aria_hidden="true"),
        tag("span", "100 %"),
        class_="legend",
    )
