"""Draw shares as a table of coloured cells, each with its number, so that colour is never needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dashboard.markup import Html, tag
from dashboard.number_format import NONE, bounds, percent, share


class Cell(NamedTuple):
    """A score of n items, with a link to the failing samples."""

    value: float | None
    n: int
    link: str | None = None
    words: str = ""  # what the score is of
    title: str = ""  # the whole tooltip, where the score is no count of passes


def heatmap(columns: Sequence[Any], rows: Sequence[tuple[str, Sequence[Any]]], corner: str) -> Html:
    """Return the table; `columns` are headings, `rows` are (name, cells); a cell may be text or Html too."""
    head = tag("tr", tag("th", corner, scope="col"), [tag("th", column, scope="col") for column in columns])
    body = [
        tag("tr", tag("th", _name(name), scope="row"), [_any_cell(name, cell) for cell in cells])
        for name, cells in rows
    ]
    drawn = tag("table", tag("thead", head), tag("tbody", body), class_="heat")
    return tag("div", drawn, class_="scroll", tabindex="0", role="region", aria_label="heat map")


def _name(name: str) -> Html:
    """Format a name that is copied as it is; of group:type the group is in small print, and a line may end
    behind it."""
    group, colon, kind = name.rpartition(":")
    before = [tag("span", group, colon, class_="soft small"), tag("wbr")] if group else None
    return tag("span", before, kind, class_="kind")


def with_interval(score: Mapping[str, Any]) -> str:
    """Return a score in words, with its 95 % interval (value, n, low, high)."""
    words = f"{share(score['value'])} % of {score['n']}"
    known = bounds((score["low"], score["high"]), " to ")
    return f"{words}, 95 % interval {known} %" if known else words


def _any_cell(name: str, cell: Any) -> Html:
    return _cell(name, cell) if isinstance(cell, Cell) else tag("td", cell, class_="beside")


def _cell(name: str, cell: Cell) -> Html:
    if cell.value is None:
        return tag("td", NONE, class_="cell none", title=cell.words or None)
    shown = [tag("span", percent(cell.value, 0)), tag("span", f"n {cell.n}", class_="of")]
    failed = round(cell.n * (1 - cell.value))
    words = cell.title or f"{name}, {cell.words}: {share(cell.value)} % of {cell.n}; {failed} fail"
    inner = tag("a", shown, href=cell.link, title=words) if cell.link else tag("span", shown, title=words)
    return tag("td", inner, class_=f"cell h{max(0, min(9, int(cell.value * 10)))}")


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
