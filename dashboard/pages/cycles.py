"""Show all cycles with their verdicts: did each learn, did it keep its behaviour, may it ship?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dashboard.desk import Desk
from dashboard.figures.axes import STAGES, legend
from dashboard.figures.plane import plane
from dashboard.figures.timeline import timeline
from dashboard.html import Html, join, tag
from dashboard.query import Query
from dashboard.words import (
    chip,
    count,
    duration,
    empty,
    moment,
    options,
    points,
    share,
    sortable,
    spoken,
    table,
)
from db.reads import queries
from db.reads.cycles import AXES

TITLE = "Cycles"
PATH = "/"
MOST = 2000  # newest cycles read
LINES = 20  # rows per page of the table
NEWEST = 5  # cycles drawn as paths by default
MOST_PICKED = 8

STATUSES = {
    "": "any verdict",
    "accepted": "accepted",
    "rejected": "rejected",
    "running": "running",
    "stalled": "stalled",
    "failed": "failed",
}
REVIEWS = {
    "": "any review",
    "none": "not reviewed",
    "approve": "approved",
    "reject": "rejected",
    "needs-work": "needs work",
}

UNDECIDED = {
    "running": "It is under way; no verdict yet.",
    "stalled": "Nothing has been heard of it for a minute: `recover resume` goes on with it.",
    "failed": "It broke off before its verdict: `recover resume` goes on with it.",
}

Row = dict[str, Any]


def build(desk: Desk, query: Query) -> Html:
    rows = _rows(desk)
    if not rows:
        return empty("No cycle yet", "recover demo")
    picked = _picked(query, rows)
    shown = picked or [row["cycle"] for row in rows[-NEWEST:]]
    found = _sorted([row for row in rows if _wanted(row, query)], query)
    over_time = desk.cached("timeline", lambda: timeline(rows))
    return join(
        _headline(desk, rows),
        tag(
            "div",
            tag(
                "section",
                tag("h2", "Knowledge against manners"),
                desk.cached(("plane", *shown), lambda: plane(rows, shown)),
                _key(rows, shown),
                class_="card half",
            ),
            tag("section", tag("h2", "Cycle after cycle"), over_time, legend(), class_="card half"),
            class_="grid",
        ),
        tag(
            "section",
            _controls(query, len(found), len(rows)),
            _table(found, picked, query),
            _pages(found, query),
            class_="card",
        ),
    )


def _rows(desk: Desk) -> list[Row]:
    """Return all cycles, oldest first; the status marks a cycle whose process is gone."""
    rows = desk.cached("cycles", lambda: queries.cycles(desk.db, limit=MOST))
    running = queries.runs(desk.db, kind="cycle", status="running")
    quiet = {run["id"] for run in running if run["stalled"]}
    return [row | {"status": "stalled"} if row["run"] in quiet else row for row in rows]


# The newest cycle in a sentence -----------------------------------------------------------------------------


def _headline(desk: Desk, rows: list[Row]) -> Html:
    row = rows[-1]
    current = next((alias for alias in queries.aliases(desk.db) if alias["name"] == "current"), None)
    serving = next(
        (
            r["cycle"]
            for r in rows[::-1]
            if current and r["checkpoints"]["recovered"] == current["checkpoint_id"]
        ),
        None,
    )
    now = tag("a", f"cycle {serving}'s model", href=f"/cycle?n={serving}") if serving else "the clean model"
    return tag(
        "section",
        tag(
            "div",
            tag("h1", _link(row, "Cycle"), " ", chip(row["status"])),
            tag("p", *said(row), class_="lead"),
        ),
        tag("p", "current is ", now, class_="soft"),
        class_="card head",
    )


def _link(row: Row, word: str = "cycle") -> Html:
    return tag("a", f"{word} {row['cycle']}", href=f"/cycle?n={row['cycle']}", class_="strong")


def said(row: Row) -> list[Any]:
    """Describe a cycle's outcome in a sentence."""
    verdict, scores = row["verdict"] or {}, row["scores"].get("ifeval", {})
    if not verdict:
        return [spoken(UNDECIDED.get(row["status"], "It has no verdict."))]
    way = " → ".join(share(scores.get(stage)) for stage in STAGES)
    parts = [f"Instruction following {way} %"]
    bound, margin = verdict.get("behaviour_lower_bound"), verdict.get("margin")
    if bound is not None and margin is not None:
        parts.append(f"at worst {points(bound)} points against a margin of −{100 * margin:.0f}")
    known = row["scores"].get("knowledge", {})
    if known.get("recovered") is not None:
        parts.append(f"the new documents {share(known.get('clean'))} → {share(known['recovered'])} %")
    judged = [
        tag("span", axis, " ", chip(verdict[axis]))
        for axis in AXES
        if verdict.get(axis) and (axis != "updates" or verdict[axis] != "not measured")
    ]
    return ["; ".join(parts) + ".", tag("span", judged, class_="judged")]


def _key(rows: list[Row], shown: list[int]) -> Html:
    more = (
        tag("span", f"paths: {len(shown)} of {len(rows)} cycles; pick others in the table")
        if len(rows) > len(shown)
        else None
    )
    return legend(*([more] if more else []))


# Filter, sort, pick -----------------------------------------------------------------------------------------


def _picked(query: Query, rows: list[Row]) -> list[int]:
    there = {row["cycle"] for row in rows}
    asked = [
        int(part)
        for part in query.text("pick").split(".")
        if part.isascii() and part.isdigit() and len(part) < 9
    ]
    return sorted({number for number in asked if number in there})[:MOST_PICKED]


def _wanted(row: Row, query: Query) -> bool:
    status, review = query.choice("status", STATUSES, ""), query.choice("review", REVIEWS, "")
    decision = (row["review"] or {}).get("decision") or "none"
    if (status and row["status"] != status) or (review and decision != review):
        return False
    text = query.text("search").strip().casefold()
    return text in _words(row) or _is_named(row, text)


def _words(row: Row) -> str:
    review = row["review"] or {}
    parts = [f"cycle {row['cycle']}", review.get("reviewer", ""), review.get("note", "")]
    return " ".join(parts).casefold()


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
    clean, recovered = _score(row, "ifeval", "clean"), _score(row, "ifeval", "recovered")
    return None if clean is None or recovered is None else recovered - clean


SORTS: dict[str, tuple[str, Callable[[Row], Any]]] = {
    "cycle": ("cycle", lambda row: row["cycle"]),
    "delta": ("Δ manners", delta),
    "fraction": ("recovered", lambda row: row["recovered_fraction"]),
    "knowledge": ("knowledge", lambda row: _score(row, "knowledge", "recovered")),
    "retention": ("retention", lambda row: _score(row, "retention", "recovered")),
    "cost": ("cost", lambda row: row["cost"]["seconds"]),
    "status": ("verdict", lambda row: row["status"]),
    "review": ("review", lambda row: (row["review"] or {}).get("decision")),
}


def _sorted(rows: list[Row], query: Query) -> list[Row]:
    """Sort by the chosen column, rows without a value last."""
    key = SORTS[query.choice("sort", SORTS, "cycle")][1]
    down = query.choice("order", ("up", "down"), "down") == "down"
    with_value = [row for row in rows if key(row) is not None]
    rest = [row for row in rows if key(row) is None]
    return sorted(with_value, key=lambda row: (key(row), row["cycle"]), reverse=down) + rest[::-1]


# The table --------------------------------------------------------------------------------------------------


def _controls(query: Query, found: int, total: int) -> Html:
    hint = "number, note, name"
    search = tag("input", type="search", data_param="search", data_reset="page", placeholder=hint)
    counted = f" {found} of {total}" if found < total else f" {total}"
    return tag(
        "div",
        tag("h2", "All cycles", tag("span", counted, class_="soft")),
        tag(
            "div",
            tag("label", "Search", search),
            tag("label", "Verdict", options("status", STATUSES, query)),
            tag("label", "Review", options("review", REVIEWS, query)),
            class_="controls",
        ),
        class_="head",
    )


def _table(found: list[Row], picked: list[int], query: Query) -> Html:
    if not found:
        return tag("p", "No cycle matches. ", tag("a", "Show all", href=PATH))
    page = _page(found, query)
    heads = [
        tag("th", "show", scope="col"),
        *[
            sortable(name, words, query, "cycle", numeric=name in NUMERIC)
            for name, (words, _) in SORTS.items()
        ],
    ]
    return table(
        heads,
        [_line(row, picked, query) for row in found[page * LINES : (page + 1) * LINES]],
        class_="cycles",
    )


NUMERIC = ("delta", "fraction", "knowledge", "retention", "cost")


def _line(row: Row, picked: list[int], query: Query) -> list[Any]:
    number, verdict = row["cycle"], row["verdict"] or {}
    bound = verdict.get("behaviour_lower_bound")
    worst = f"at worst {points(bound)}" if bound is not None else ""
    fraction = row["recovered_fraction"]
    review = row["review"] or {}
    return [
        _pick(number, picked, query),
        join(_link(row), _below(moment(row["started_at"]))),
        tag("td", points(delta(row)), _below(worst), class_="n"),
        tag("td", share(fraction, 0) + (" %" if fraction is not None else ""), class_="n"),
        _shift(row, "knowledge"),
        _shift(row, "retention"),
        tag("td", duration(row["cost"]["seconds"]), _below(f"{count(_tokens(row))} tokens"), class_="n"),
        chip(row["status"]),
        join(chip(review.get("decision")), _below(review.get("reviewer", ""))),
    ]


def _below(words: str) -> Html | None:
    """Return the second, smaller line of a cell."""
    return tag("div", words, class_="soft small clip") if words else None


def _tokens(row: Row) -> float:
    return sum(value for name, value in row["cost"].items() if name.startswith("tokens_"))


def _shift(row: Row, suite: str) -> Html:
    """Show a suite's score, with the earlier stages' scores below."""
    value = _score(row, suite, "recovered")
    before = [share(_score(row, suite, stage), 0) for stage in ("clean", "midtrained")]
    return tag("td", share(value), _below(" → ".join([*before, ""]) if value is not None else ""), class_="n")


def _pick(number: int, picked: list[int], query: Query) -> Html:
    on = number in picked
    left = [n for n in picked if n != number] if on else [*picked, number]
    link = query.link(pick=".".join(map(str, left)) or None)
    words = f"{'Do not show' if on else 'Show'} cycle {number} as a path"
    return tag(
        "a",
        "☑" if on else "☐",
        href=link,
        class_="pick",
        role="checkbox",
        aria_checked="true" if on else "false",
        aria_label=words,
    )


def _page(found: list[Row], query: Query) -> int:
    return min((query.number("page", 1) or 1) - 1, max(0, (len(found) - 1) // LINES))


def _pages(found: list[Row], query: Query) -> Html:
    page, last = _page(found, query), max(0, (len(found) - 1) // LINES)
    picked = query.text("pick").split(".") if query.text("pick") else []
    compare = None
    if len(picked) == 2:
        compare = tag(
            "a",
            "Compare the two",
            href=Query().link("/compare", a=f"cycle:{picked[0]}", b=f"cycle:{picked[1]}"),
        )
    if not last:
        return tag("p", compare, class_="pager")
    before = (
        tag("a", "← Newer", href=query.link(page=page or None))
        if page
        else tag("span", "← Newer", class_="soft")
    )
    after = (
        tag("a", "Older →", href=query.link(page=page + 2))
        if page < last
        else tag("span", "Older →", class_="soft")
    )
    return tag("p", before, tag("span", f"page {page + 1} of {last + 1}"), after, compare, class_="pager")
