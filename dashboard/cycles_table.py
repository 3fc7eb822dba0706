"""The table of all cycles: filtered, sorted, in pages, with the cycles picked to be drawn as paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dashboard.address import Address
from dashboard.form_controls import choose, search_field
from dashboard.markup import Html, join, tag
from dashboard.number_format import bound, bounds, count, duration, moment, percent, points, share
from dashboard.page_parts import sortable, table, tokens_of
from dashboard.status_chips import chip
from db.cycle_names import STAGES, short_folder
from db.redact import redact_text
from evals.ifeval import IFEVAL
from evals.probes import KNOWLEDGE, RETENTION
from evals.verdict_sentences import status_in_words

PATH = "/"
LINES = 20  # rows per page
MOST_PICKED = 8

STATUSES = {
    "": "any verdict",
    "accepted": "accepted",
    "rejected": "rejected",
    "running": "running",
    "stalled": "stalled",
    "stopped": "stopped",
    "failed": "failed",
}
REVIEWS = {
    "": "any review",
    "none": "not reviewed",
    "approve": "approved",
    "reject": "rejected",
    "needs-work": "needs work",
}

Row = dict[str, Any]


def section(rows: list[Row], address: Address, recorded: int) -> Html:
    """Show the cycles that match the address, with the controls of the table; so many cycles are recorded."""
    found = _sorted([row for row in rows if _wanted(row, address)], address)
    return tag(
        "section",
        _controls(address, len(found), len(rows), recorded),
        _table(found, picked(address, rows), address),
        _pages(found, address),
        class_="card",
    )


def cycle_link(address: Address, row: Row, word: str = "cycle") -> Html:
    return tag("a", f"{word} {row['cycle']}", href=address.page("/cycle", n=row["cycle"]), class_="strong")


# Filter, sort, pick -----------------------------------------------------------------------------------------


def picked(address: Address, rows: list[Row]) -> list[int]:
    """Return the cycles that were picked to be drawn as paths, of those that exist."""
    there = {str(row["cycle"]) for row in rows}
    asked = {part for part in address.text("pick").split(".") if part in there}
    return sorted(map(int, asked))[:MOST_PICKED]


def _wanted(row: Row, address: Address) -> bool:
    status = address.choice("status", STATUSES, "")
    if status and row["status"] != status:
        return False
    review = address.choice("review", REVIEWS, "")
    decision = (row["review"] or {}).get("decision") or "none"
    if review and decision != review:
        return False
    text = address.text("search").strip().casefold()
    return not text or text in _words(row) or _is_named(row, text)


def _words(row: Row) -> str:
    review = row["review"] or {}
    folder = redact_text(row["docs"] or "")
    parts = [f"cycle {row['cycle']}", row["name"] or "", folder, short_folder(folder)]
    return " ".join([*parts, review.get("reviewer", ""), review.get("note", "")]).casefold()


def _is_named(row: Row, text: str) -> bool:
    """Return whether `text` is a prefix of the run's or a checkpoint's name.

    Names are random digits: matching inside a name, or fewer than four characters, would match by chance."""
    names = [row["run"], *row["checkpoints"].values()]
    return len(text) >= 4 and any(name.startswith(text) for name in names if name)


def _score(row: Row, suite: str, stage: str) -> float | None:
    value: float | None = row["scores"].get(suite, {}).get(stage)
    return value


def delta(row: Row) -> float | None:
    """Return the recovered model's behaviour score minus the clean model's."""
    clean = _score(row, IFEVAL, "clean")
    recovered = _score(row, IFEVAL, "recovered")
    return None if clean is None or recovered is None else recovered - clean


SORTS: dict[str, tuple[str, Callable[[Row], Any]]] = {
    "cycle": ("cycle", lambda row: row["cycle"]),
    "delta": ("Δ behaviour, points", delta),
    "fraction": ("loss recovered", lambda row: row["recovered_fraction"]),
    "knowledge": ("knowledge", lambda row: _score(row, KNOWLEDGE, "recovered")),
    "retention": ("retention", lambda row: _score(row, RETENTION, "recovered")),
    "cost": ("cost", lambda row: row["cost"]["seconds"]),
    "status": ("verdict", lambda row: row["status"]),
    "review": ("review", lambda row: (row["review"] or {}).get("decision")),
}


def _sorted(rows: list[Row], address: Address) -> list[Row]:
    """Sort by the chosen column, rows without a value last."""
    key = SORTS[address.choice("sort", SORTS, "cycle")][1]
    down = address.choice("order", ("up", "down"), "down") == "down"
    with_value = [row for row in rows if key(row) is not None]
    rest = [row for row in rows if key(row) is None]
    return sorted(with_value, key=lambda row: (key(row), row["cycle"]), reverse=down) + rest[::-1]


# The table --------------------------------------------------------------------------------------------------


def _controls(address: Address, found: int, total: int, recorded: int) -> Html:
    counted = f" {found} of {total}" if found < total else f" {total}"
    title = "All cycles" if recorded <= total else f"The newest {total:,} of {recorded:,} cycles:"
    return tag(
        "div",
        tag("h2", title, tag("span", counted, class_="soft")),
        tag(
            "div",
            search_field("folder, name, note"),
            choose("Verdict", "status", STATUSES, address.choice("status", STATUSES, "")),
            choose("Review", "review", REVIEWS, address.choice("review", REVIEWS, "")),
            class_="controls",
        ),
        class_="head",
    )


def _table(found: list[Row], picked: list[int], address: Address) -> Html:
    if not found:
        return tag("p", "No cycle matches. ", tag("a", "Show all", href=address.page(PATH)))
    page = _page(found, address)
    heads = [
        tag("th", "show", scope="col"),
        *[
            sortable(name, words, address, "cycle", numeric=name in NUMERIC)
            for name, (words, _) in SORTS.items()
        ],
    ]
    return table(
        heads,
        [_line(row, picked, address) for row in found[page * LINES : (page + 1) * LINES]],
        class_="cycles",
    )


NUMERIC = ("delta", "fraction", "knowledge", "retention", "cost")


def _line(row: Row, picked: list[int], address: Address) -> list[Any]:
    number = row["cycle"]
    verdict = row["verdict"] or {}
    lowest = verdict.get("behaviour_lower_bound")
    worst = f"at worst {bound(lowest, verdict.get('margin'))}" if lowest is not None else ""
    fraction = row["recovered_fraction"]
    unlost = "no loss shown" if fraction is None and delta(row) is not None else ""
    review = row["review"] or {}
    return [
        _pick(number, picked, address),
        join(
            cycle_link(address, row),
            _below(row["name"]),
            _below(moment(row["started_at"])),
            _documents(row["docs"]),
        ),
        tag("td", points(delta(row)), _below(worst), class_="n"),
        tag("td", percent(fraction, 0), _below(unlost), class_="n"),
        _shift(row, KNOWLEDGE),
        _shift(row, RETENTION),
        tag(
            "td",
            duration(row["cost"]["seconds"]),
            _below(f"{count(tokens_of(row['cost']))} tokens"),
            class_="n",
        ),
        _status(row),
        join(chip(review.get("decision")), _below(review.get("reviewer", ""))),
    ]


def _status(row: Row) -> Html:
    words = status_in_words(row)
    status, _, why = words.partition(": ")
    return join(chip(words, status), tag("div", why, class_="soft small") if why else None)


def _below(words: str | None) -> Html | None:
    """Return the second, smaller line of a cell."""
    return tag("div", words, class_="soft small clip") if words else None


def _documents(folder: str | None) -> Html | None:
    """Return the end of the folder's path below a cycle, with the whole of it for a tooltip."""
    if not folder:
        return None
    path = redact_text(folder)
    return tag("div", short_folder(path), class_="soft small clip", title=path)


def _shift(row: Row, suite: str) -> Html:
    """Show a suite's score, with the scores of all stages in their order below."""
    value = _score(row, suite, "recovered")
    way = " → ".join(share(_score(row, suite, stage)) for stage in STAGES)
    below = tag("div", way, class_="soft small") if value is not None else None
    return tag("td", percent(value), below, class_="n", title=_interval(row, suite))


def _interval(row: Row, suite: str) -> str | None:
    """Return the 95 % interval of the recovered model's score, for a tooltip."""
    known = bounds((row["scores"].get(suite, {}).get("intervals") or {}).get("recovered"), " to ")
    return f"95 % interval {known} %" if known else None


def _pick(number: int, picked: list[int], address: Address) -> Html:
    on = number in picked
    if not on and len(picked) == MOST_PICKED:
        return tag("span", "☐", class_="soft", title=f"{MOST_PICKED} at most are drawn as paths")
    left = [n for n in picked if n != number] if on else [*picked, number]
    link = address.link(pick=".".join(map(str, left)) or None)
    words = f"{'Do not show' if on else 'Show'} cycle {number} as a path"
    return tag(
        "a",
        "☑" if on else "☐",
        href=link,
        class_="pick",
        aria_label=words,
    )


def _page(found: list[Row], address: Address) -> int:
    return min((address.number("page", 1) or 1) - 1, max(0, (len(found) - 1) // LINES))


def _pages(found: list[Row], address: Address) -> Html:
    compare = _compare(address)
    page = _page(found, address)
    last = max(0, (len(found) - 1) // LINES)
    if not last:
        return tag("p", compare, class_="pager")
    newer = _turn("← Newer", address.link(page=page) if page else None)
    older = _turn("Older →", address.link(page=page + 2) if page < last else None)
    return tag("p", newer, tag("span", f"page {page + 1} of {last + 1}"), older, compare, class_="pager")


def _turn(words: str, href: str | None) -> Html:
    return tag("a", words, href=href) if href else tag("span", words, class_="soft")


def _compare(address: Address) -> Html | None:
    """Link to the comparison of two picked cycles."""
    picked = address.text("pick").split(".")
    if len(picked) != 2:
        return None
    one, other = (f"cycle:{number}" for number in picked)
    return tag("a", "Compare the two", href=address.page("/compare", a=one, b=other))
