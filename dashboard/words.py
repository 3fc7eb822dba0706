"""Format numbers, times, verdicts and empty states for display."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.html import Html, join, tag
from dashboard.query import Query
from db.writes.values import seconds_since

NONE = "–"
SIGNS = {
    "accepted": ("✓", "good"),
    "recovered": ("✓", "good"),
    "kept": ("✓", "good"),
    "updated": ("✓", "good"),
    "approve": ("✓", "good"),
    "done": ("✓", "good"),
    "rejected": ("✕", "bad"),
    "not recovered": ("✕", "bad"),
    "lost": ("✕", "bad"),
    "not updated": ("✕", "bad"),
    "reject": ("✕", "bad"),
    "failed": ("✕", "bad"),
    "underpowered": ("?", "unsure"),
    "needs-work": ("↻", "unsure"),
    "stalled": ("!", "unsure"),
    "stopped": ("◼", "unsure"),
    "running": ("▸", "live"),
}
LABELS = {"approve": "approved", "reject": "rejected", "needs-work": "needs work"}


def chip(word: str | None, label: str | None = None) -> Html:
    """Return a status as a word with its sign and colour; an unknown word is neutral."""
    if word is None:
        return tag("span", NONE, class_="none")
    sign, kind = SIGNS.get(word, ("", "plain"))
    shown = label or LABELS.get(word, word)
    return tag("span", tag("span", sign, aria_hidden="true") if sign else None, shown, class_=f"chip {kind}")


def share(value: float | None, digits: int = 1) -> str:
    """Format a share in percent: 0.987 -> 98.7."""
    return NONE if value is None else f"{100 * value:.{digits}f}"


def points(value: float | None) -> str:
    """Format a difference of shares in signed percentage points: -0.012 -> −1.2."""
    return NONE if value is None else f"{100 * value:+.1f}".replace("-", "−")


def count(value: float | None) -> str:
    """Format a count: 53_000 -> 53 k."""
    if value is None:
        return NONE
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"


def duration(seconds: float | None) -> str:
    """Format seconds: 4000 -> 1 h 07 min."""
    if seconds is None:
        return NONE
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def moment(at: str | None) -> str:
    """Format a timestamp: 2026-11-20T08:21:07.123Z -> 2026-11-20 08:21."""
    return NONE if not at else at[:16].replace("T", " ")


def ago(at: str) -> str:
    return f"{duration(max(0.0, seconds_since(at)))} ago"


def spoken(words: str) -> Html:
    """Return a sentence as HTML, with text in `backticks` as code."""
    parts = words.split("`")
    return join(*[tag("code", part) if index % 2 else part for index, part in enumerate(parts)])


def sentence(error: BaseException) -> str:
    said = str(error)
    return f"{said[:1].upper()}{said[1:]}."


def problem(what: str, hint: str = "") -> Html:
    return tag(
        "section",
        tag("h1", spoken(what), class_="said"),
        tag("p", hint) if hint else None,
        class_="card problem",
    )


def empty(what: str, command: str) -> Html:
    """Return an empty state: what is missing, and the command that creates it."""
    return tag(
        "section",
        tag("h1", what),
        tag("p", "Type this in a terminal; this page notices by itself:"),
        tag("pre", tag("code", command)),
        class_="card empty",
    )


def right(*names: str) -> list[Any]:
    """Return right-aligned column headers, for columns of numbers."""
    return [tag("th", name, scope="col", class_="n") for name in names]


def table(headers: list[Any], rows: list[list[Any]], class_: str = "") -> Html:
    """Return a table; cells that are not `<th>` or `<td>` yet are wrapped."""
    head = tag("tr", [_cell("th", cell, scope="col") for cell in headers])
    body = [tag("tr", [_cell("td", cell) for cell in row]) for row in rows]
    drawn = tag("table", tag("thead", head), tag("tbody", body), class_=class_ or None)
    return tag("div", drawn, class_="scroll", tabindex="0", role="region", aria_label="table")


def _cell(name: str, cell: Any, **attributes: str) -> Html:
    there = isinstance(cell, Html) and cell.startswith(("<th", "<td"))
    return cell if there else tag(name, cell, **attributes)


def sortable(name: str, words: str, query: Query, default: str, *, numeric: bool = False) -> Html:
    """Return a header that sorts by its column, or reverses the order if it already does."""
    now, down = query.text("sort", default), query.text("order", "down") == "down"
    link = query.link(sort=name, order="up" if now == name and down else None, page=None)
    arrow = tag("span", " ↓" if down else " ↑", aria_hidden="true") if now == name else None
    order = ("descending" if down else "ascending") if now == name else None
    return tag(
        "th", tag("a", words, arrow, href=link), scope="col", aria_sort=order, class_="n" if numeric else None
    )


def options(name: str, choices: Mapping[str, str], query: Query, reset: str = "page after") -> Html:
    """Return a select whose choice becomes the parameter `name` of the address."""
    now = query.choice(name, choices, next(iter(choices)))
    entries = [tag("option", words, value=value, selected=value == now) for value, words in choices.items()]
    return tag("select", entries, data_param=name, data_reset=reset)
