"""Numbers, moments, verdicts and empty states as a person reads them."""

from __future__ import annotations

from typing import Any

from dashboard.html import Html, tag
from db.values import seconds_since

NONE = "–"
SIGNS = {
    "accepted": ("✓", "good"), "recovered": ("✓", "good"), "kept": ("✓", "good"), "approve": ("✓", "good"),
    "done": ("✓", "good"),
    "rejected": ("✕", "bad"), "not recovered": ("✕", "bad"), "lost": ("✕", "bad"), "reject": ("✕", "bad"),
    "failed": ("✕", "bad"),
    "underpowered": ("?", "unsure"), "needs-work": ("↻", "unsure"), "stalled": ("!", "unsure"),
    "stopped": ("◼", "unsure"), "running": ("▸", "live"),
}  # fmt: skip
LABELS = {"approve": "approved", "reject": "rejected", "needs-work": "needs work"}


def chip(word: str | None, label: str | None = None) -> Html:
    """A state as a word with a sign and a colour of its own; unknown ones are plain."""
    if word is None:
        return tag("span", NONE, class_="none")
    sign, kind = SIGNS.get(word, ("", "plain"))
    shown = label or LABELS.get(word, word)
    return tag("span", tag("span", sign, aria_hidden="true") if sign else None, shown, class_=f"chip {kind}")


def share(value: float | None, digits: int = 1) -> str:
    """0.987 -> 98.7"""
    return NONE if value is None else f"{100 * value:.{digits}f}"


def points(value: float | None) -> str:
    """A difference of shares in points, with its sign: -0.012 -> −1.2"""
    return NONE if value is None else f"{100 * value:+.1f}".replace("-", "−")


def count(value: float | None) -> str:
    """53_000 -> 53 k"""
    if value is None:
        return NONE
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"


def duration(seconds: float | None) -> str:
    """4000 -> 1 h 07 min"""
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
    """2026-11-20T08:21:07.123Z -> 2026-11-20 08:21"""
    return NONE if not at else at[:16].replace("T", " ")


def ago(at: str) -> str:
    return f"{duration(max(0.0, seconds_since(at)))} ago"


def sentence(error: BaseException) -> str:
    said = str(error)
    return f"{said[:1].upper()}{said[1:]}."


def problem(what: str, hint: str = "") -> Html:
    return tag("section", tag("h1", what), tag("p", hint) if hint else None, class_="card problem")


def empty(what: str, command: str) -> Html:
    """Nothing to show yet, and what to type to change that."""
    return tag(
        "section",
        tag("h1", what),
        tag("p", "Type this in a terminal; this page notices by itself:"),
        tag("pre", tag("code", command)),
        class_="card empty",
    )


def table(headers: list[Any], rows: list[list[Any]], class_: str = "") -> Html:
    """Headers and rows of cells (text or Html); a cell that is a number is set flush right by its class."""
    head = tag(
        "thead",
        tag(
            "tr",
            [
                h if isinstance(h, Html) and h.startswith("<th") else tag("th", h, scope="col")
                for h in headers
            ],
        ),
    )
    body = tag(
        "tbody",
        [
            tag("tr", [c if isinstance(c, Html) and c.startswith("<td") else tag("td", c) for c in row])
            for row in rows
        ],
    )
    return tag("div", tag("table", head, body, class_=class_ or None), class_="scroll", tabindex="0")
