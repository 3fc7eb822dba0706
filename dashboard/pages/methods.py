"""Compare recovery methods: behaviour recovered, knowledge kept, cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard.address import Address
from dashboard.figures import plane
from dashboard.figures.markers import key, legend, series
from dashboard.form_controls import choose
from dashboard.markup import Html, tag
from dashboard.number_format import NONE, bounds, count, duration, percent
from dashboard.page_context import PageContext
from dashboard.page_parts import empty, number_headers, table, tokens_of
from db.reads import overview, queries
from evals.ifeval import IFEVAL
from evals.probes import KNOWLEDGE
from evals.verdict import BEHAVIOUR

TITLE = "Methods"
PATH = "/methods"
EVERY = "every recovery"

SORTS = {
    "newest": "newest first",
    BEHAVIOUR: "behaviour",
    KNOWLEDGE: "knowledge",
    "tokens": "tokens, fewest first",
    "time": "time, shortest first",
}

Row = dict[str, Any]


def build(context: PageContext, address: Address) -> Html:
    every = context.cached("methods", lambda: overview.recoveries(context.db))
    recorded = context.cached("recoveries", lambda: overview.recoveries_recorded(context.db))
    if not every:
        example = context.command("distill", "--teacher", "base", "--method", "opd")
        return empty("No recovery has been run yet", example)
    students = list(dict.fromkeys(str(row["student"]) for row in every))
    most = max(students, key=lambda name: sum(row["student"] == name for row in every))
    chosen = address.choice("student", ["all", *students], most)
    rows = [_labelled(row) for row in every if chosen in ("all", row["student"])]
    methods = sorted({row["method"] for row in rows})
    shown = _sorted(rows, address.choice("sort", SORTS, "newest"))
    return tag(
        "div",
        _plane(context, address, _offered(every, students, recorded), chosen, rows, methods),
        _table(address, shown, methods),
        class_="stack",
    )


def _labelled(row: Row) -> Row:
    whose = f"cycle {row['cycle']}" if row["cycle"] is not None else row["id"]
    return row | {"label": whose}


def _plane(
    context: PageContext,
    address: Address,
    offered: dict[str, str],
    chosen: str,
    rows: Sequence[Row],
    methods: list[str],
) -> Html:
    controls = tag(
        "div",
        choose("Recovered from", "student", offered, chosen),
        choose("Sort by", "sort", SORTS, address.choice("sort", SORTS, "newest")),
        class_="controls",
    )
    words = "" if offered["all"] == EVERY else f"This page has {offered['all']}. "
    words += "Bars are 95 % intervals. " if len(rows) <= plane.MOST_BARS else ""
    return tag(
        "section",
        tag("div", tag("h1", "Methods"), controls, class_="head"),
        plane.methods_plane(rows, methods, _references(context, rows, chosen)),
        _legend(rows, methods),
        tag("p", words + _compared(rows, chosen == "all" and len(offered) > 2), class_="soft small"),
        class_="card",
    )


def _compared(rows: Sequence[Row], from_several: bool) -> str:
    """Return what recoveries have in common, and so whether they can be compared."""
    if from_several:
        return (
            "These recoveries began from different models and may have answered different questions: choose "
            "one to compare like with like."
        )
    if len(rows) < 2:
        return ""
    one_aim = len({row["teacher"] for row in rows}) == 1
    aim = ", to come back to the same model's behaviour," if one_aim else ""
    asked = {frozenset(row["scores"]) for row in rows}  # suites of which each answered the common questions
    answered = "and answered" if len(asked) == 1 and any(asked) else "but not all answered"
    return f"All began from the same model{aim} {answered} the same questions."


def _legend(rows: Sequence[Row], methods: list[str]) -> Html:
    """Return the signs of the methods in the plot, and name those that lack a score for it."""
    drawn = {row["method"] for row in rows if plane.drawn(row)}
    signs = [(series(number), method) for number, method in enumerate(methods) if method in drawn]
    absent = [method for method in methods if method not in drawn]
    words = f"not in the plot, for want of a score on these questions: {', '.join(absent)}"
    return legend(signs, words) if signs and absent else legend(signs)


def _offered(every: Sequence[Row], students: Sequence[str], recorded: int) -> dict[str, str]:
    """Name all recoveries, or the newest where more are recorded, and those of each student."""
    newest = f"the newest {len(every)} of {recorded:,} recoveries"
    named = {name: _begun(name, every) for name in students}
    return {"all": newest if recorded > len(every) else EVERY, **named}


def _begun(student: str, every: Sequence[Row]) -> str:
    rows = [row for row in every if row["student"] == student]
    whose = next((f"cycle {row['cycle']}'s midtrained model" for row in rows if row["cycle"]), student)
    return f"{whose} ({len(rows)})"


def _references(context: PageContext, rows: Sequence[Row], chosen: str) -> dict[str, Row]:
    """Return the student's and the clean model's scores on the questions that its recoveries answered."""
    if chosen == "all":
        return {}
    named = {alias["name"]: str(alias["checkpoint_id"]) for alias in queries.aliases(context.db)}
    clean = named.get("base", "")
    measured = overview.headlines(context.db, [chosen, clean])
    asked = overview.questions_of(rows)
    found = {
        stage: overview.answers_to(asked, measured[name])
        for stage, name in {"clean": clean, _ring(context, chosen): chosen}.items()
    }
    return {stage: row for stage, row in found.items() if row["scores"]}


def _ring(context: PageContext, student: str) -> str:
    """Name the ring of the model that recoveries began from: one recovered longer was recovered before."""

    def midtrained() -> set[str | None]:
        after = max(context.cycle_numbers(), default=0) + 1
        return {row["midtrained_id"] for row in queries.cycle_models(context.db, before=after)}

    return "midtrained" if student in context.cached("midtrained", midtrained) else "its beginning"


def _sorted(rows: Sequence[Row], by: str) -> list[Row]:
    if by in ("tokens", "time"):
        return sorted(rows, key=lambda row: _cost(row, by))
    if by in (BEHAVIOUR, KNOWLEDGE):
        suite = IFEVAL if by == BEHAVIOUR else by
        return sorted(rows, key=lambda row: _best_first(plane.score(row, suite)))
    return list(rows)


def _best_first(score: float | None) -> float:
    return 1.0 if score is None else -score


def _cost(row: Row, what: str) -> float:
    cost = row["cost"] or {}
    if what == "time":
        return float(cost.get("seconds", 0.0))
    return float(tokens_of(cost))


def _table(address: Address, rows: Sequence[Row], methods: list[str]) -> Html:
    dearest = {
        what: max((_cost(row, what) for row in rows), default=0.0) or 1.0 for what in ("tokens", "time")
    }
    scores = number_headers("behaviour", "knowledge", "retention")
    headers = ["method", "recovered", *scores, *number_headers("tokens"), "", *number_headers("time"), ""]
    lines = [_line(address, row, methods, dearest) for row in rows]
    return tag(
        "section",
        tag("h2", "What came back, and what it cost"),
        table(headers, lines),
        tag(
            "p",
            "Below a score stand its 95 % interval and n, the number of items. Tokens are those sampled, "
            "scored by the teacher and trained on. A merge trains nothing.",
            class_="soft small",
        ),
        class_="card",
    )


def _bar(part: float) -> Html:
    """Draw a cost as a fraction of the highest cost."""
    drawn = tag("rect", x=0, y=2, width=f"{max(1.0, 100 * part):.1f}", height=8, rx=2, class_="c-s7 fill")
    return tag("svg", drawn, viewBox="0 0 100 12", class_="figure cost", aria_hidden="true")


def _score(row: Row, suite: str) -> Html:
    """Show a score in percent with its n, or that the model answered only other questions of the suite."""
    found = row["scores"].get(suite)
    if found is None:
        words = "other questions" if suite in row["otherwise"] else ""
        return tag("td", NONE, tag("div", words, class_="soft small"), class_="n")
    n = f"n {found['n']:,}"
    below = ", ".join(filter(None, [bounds((found["low"], found["high"])), n]))
    return tag("td", percent(found["value"]), tag("div", below, class_="soft small"), class_="n")


def _line(address: Address, row: Row, methods: list[str], dearest: dict[str, float]) -> list[Any]:
    scores = [_score(row, suite) for suite in overview.SUITES]
    tokens, seconds = _cost(row, "tokens"), _cost(row, "time")
    where = (
        tag("a", row["label"], href=address.page("/cycle", n=row["cycle"]))
        if row["cycle"] is not None
        else row["label"]
    )
    return [
        tag("span", key(series(methods.index(row["method"]))), f" {row['method']}", class_="nowrap"),
        where,
        *scores,
        tag("td", count(tokens), class_="n"),
        _bar(tokens / dearest["tokens"]),
        tag("td", duration(seconds), class_="n"),
        _bar(seconds / dearest["time"]),
    ]
