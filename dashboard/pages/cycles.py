"""Show all cycles with their verdicts: did each learn, did it keep its behaviour, may it ship?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dashboard.address import PROJECT, Address
from dashboard.figures.markers import STAGES, stage_legend
from dashboard.figures.plane import cycles_plane
from dashboard.figures.scores_over_cycles import stages_over_cycles
from dashboard.form_controls import choose, search_field
from dashboard.markup import Html, join, tag
from dashboard.number_format import count, duration, moment, points, share
from dashboard.page_context import PageContext
from dashboard.page_parts import empty, sortable, table, with_code
from dashboard.status_chips import chip
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


def build(context: PageContext, address: Address) -> Html:
    rows = _rows(context)
    if not rows:
        return empty("No cycle yet", "recover demo")
    picked = _picked(address, rows)
    shown = picked or [row["cycle"] for row in rows[-NEWEST:]]
    found = _sorted([row for row in rows if _wanted(row, address)], address)

    def link(number: int) -> str:
        return address.page("/cycle", n=number)

    over_time = context.cached("timeline", lambda: stages_over_cycles(rows))
    return join(
        _headline(context, address, rows),
        tag(
            "div",
            tag(
                "section",
                tag("h2", "Knowledge against behaviour"),
                context.cached(
                    ("plane", address.text(PROJECT), *shown), lambda: cycles_plane(rows, shown, link)
                ),
                _key(rows, shown),
                class_="card half",
            ),
            tag("section", tag("h2", "Scores by cycle"), over_time, stage_legend(), class_="card half"),
            class_="grid",
        ),
        tag(
            "section",
            _controls(address, len(found), len(rows)),
            _table(found, picked, address),
            _pages(found, address),
            class_="card",
        ),
    )


def _rows(context: PageContext) -> list[Row]:
    """Return all cycles, oldest first; the status marks a cycle whose process is gone."""
    rows = context.cached("cycles", lambda: queries.cycles(context.db, limit=MOST))
    running = queries.runs(context.db, kind="cycle", status="running")
    quiet = {run["id"] for run in running if run["stalled"]}
    return [row | {"status": "stalled"} if row["run"] in quiet else row for row in rows]


# The newest cycle in a sentence -----------------------------------------------------------------------------


def _headline(context: PageContext, address: Address, rows: list[Row]) -> Html:
    row = rows[-1]
    current = next((alias for alias in queries.aliases(context.db) if alias["name"] == "current"), None)
    serving = next(
        (
            r["cycle"]
            for r in rows[::-1]
            if current and r["checkpoints"]["recovered"] == current["checkpoint_id"]
        ),
        None,
    )
    now = (
        tag("a", f"cycle {serving}'s model", href=address.page("/cycle", n=serving))
        if serving
        else "the clean model"
    )
    return tag(
        "section",
        tag(
            "div",
            tag("h1", _link(address, row, "Cycle"), " ", chip(row["status"])),
            tag("p", *said(row), class_="lead"),
        ),
        tag("p", "current is ", now, class_="soft"),
        class_="card head",
    )


def _link(address: Address, row: Row, word: str = "cycle") -> Html:
    return tag("a", f"{word} {row['cycle']}", href=address.page("/cycle", n=row["cycle"]), class_="strong")


def said(row: Row) -> list[Any]:
    """Describe a cycle's outcome in a sentence."""
    verdict = row["verdict"] or {}
    scores = row["scores"].get("ifeval", {})
    if not verdict:
        return [with_code(UNDECIDED.get(row["status"], "It has no verdict."))]
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
        for axis in (*AXES, *(name for name in verdict.get("axes", {}) if name not in AXES))
        if verdict.get(axis) and (axis != "updates" or verdict[axis] != "not measured")
    ]
    return ["; ".join(parts) + ".", tag("span", judged, class_="judged")]


def _key(rows: list[Row], shown: list[int]) -> Html:
    if len(rows) <= len(shown):
        return stage_legend()
    return stage_legend(f"paths: {len(shown)} of {len(rows)} cycles; pick others in the table")


# Filter, sort, pick -----------------------------------------------------------------------------------------


def _picked(address: Address, rows: list[Row]) -> list[int]:
    there = {row["cycle"] for row in rows}
    asked = [
        int(part)
        for part in address.text("pick").split(".")
        if part.isascii() and part.isdigit() and len(part) < 9
    ]
    return sorted({number for number in asked if number in there})[:MOST_PICKED]


def _wanted(row: Row, address: Address) -> bool:
    status, review = address.choice("status", STATUSES, ""), address.choice("review", REVIEWS, "")
    decision = (row["review"] or {}).get("decision") or "none"
    if (status and row["status"] != status) or (review and decision != review):
        return False
    text = address.text("search").strip().casefold()
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
    "delta": ("Δ behaviour", delta),
    "fraction": ("recovered", lambda row: row["recovered_fraction"]),
    "knowledge": ("knowledge", lambda row: _score(row, "knowledge", "recovered")),
    "retention": ("retention", lambda row: _score(row, "retention", "recovered")),
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


def _controls(address: Address, found: int, total: int) -> Html:
    counted = f" {found} of {total}" if found < total else f" {total}"
    return tag(
        "div",
        tag("h2", "All cycles", tag("span", counted, class_="soft")),
        tag(
            "div",
            search_field("number, note, name"),
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
    bound = verdict.get("behaviour_lower_bound")
    worst = f"at worst {points(bound)}" if bound is not None else ""
    fraction = row["recovered_fraction"]
    review = row["review"] or {}
    return [
        _pick(number, picked, address),
        join(_link(address, row), _below(moment(row["started_at"]))),
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


def _pick(number: int, picked: list[int], address: Address) -> Html:
    on = number in picked
    left = [n for n in picked if n != number] if on else [*picked, number]
    link = address.link(pick=".".join(map(str, left)) or None)
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


def _page(found: list[Row], address: Address) -> int:
    return min((address.number("page", 1) or 1) - 1, max(0, (len(found) - 1) // LINES))


def _pages(found: list[Row], address: Address) -> Html:
    page = _page(found, address)
    last = max(0, (len(found) - 1) // LINES)
    picked = address.text("pick").split(".") if address.text("pick") else []
    compare = None
    if len(picked) == 2:
        compare = tag(
            "a",
            "Compare the two",
            href=address.page("/compare", a=f"cycle:{picked[0]}", b=f"cycle:{picked[1]}"),
        )
    if not last:
        return tag("p", compare, class_="pager")
    before = (
        tag("a", "← Newer", href=address.link(page=page or None))
        if page
        else tag("span", "← Newer", class_="soft")
    )
    after = (
        tag("a", "Older →", href=address.link(page=page + 2))
        if page < last
        else tag("span", "Older →", class_="soft")
    )
    return tag("p", before, tag("span", f"page {page + 1} of {last + 1}"), after, compare, class_="pager")
