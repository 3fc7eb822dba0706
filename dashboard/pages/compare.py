"""Compare two checkpoints on the same prompts: statistics, and the prompts that flipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard.controls import choose, write
from dashboard.desk import Desk
from dashboard.html import Html, tag
from dashboard.query import Query
from dashboard.words import chip, empty, points, problem, right, sentence, share, table
from db.errors import TrackerError
from db.reads import queries
from evals import comparison

TITLE = "Compare"
PATH = "/compare"

OFFERED = 30  # newest cycles whose checkpoints are suggested
PAGE = 20  # flips per page
FIRST = "ifeval"
DIRECTIONS = {"all": "both ways", "lost": "pass → fail", "gained": "fail → pass"}
WORDS = {"better": "recovered", "worse": "rejected", comparison.SAME: ""}  # verdict with that colour

Row = dict[str, Any]


def build(desk: Desk, query: Query) -> Html:
    cycles = desk.cached(("compare", "cycles"), lambda: queries.cycles(desk.db, limit=OFFERED))
    if not cycles and not queries.checkpoints(desk.db, limit=1):
        return empty("No model has been scored yet", "recover demo")
    a, b = query.text("a", "base"), query.text("b", f"cycle:{cycles[-1]['cycle']}" if cycles else "current")
    head = tag(
        "section",
        tag("div", tag("h1", "Compare"), class_="head"),
        _choice(desk, cycles, a, b),
        tag("p", f"{a} against {b}", class_="soft"),
        class_="card",
    )
    try:
        return tag("div", head, _compared(desk, query, a, b), class_="stack")
    except TrackerError as error:
        return tag("div", head, problem(sentence(error)), class_="stack")


def _choice(desk: Desk, cycles: Sequence[Row], a: str, b: str) -> Html:
    names = [alias["name"] for alias in queries.aliases(desk.db)]
    for row in reversed(cycles):
        names += [f"cycle:{row['cycle']}:{stage}" for stage, name in row["checkpoints"].items() if name]
    return tag(
        "div",
        write("a: a name or an id", "a", a, names),
        write("b: a name or an id", "b", b, names),
        class_="controls",
    )


def _compared(desk: Desk, query: Query, a: str, b: str) -> Html:
    first, second = queries.resolve(desk.db, a), queries.resolve(desk.db, b)
    if first == second:
        return problem("Both are the same model.", "Give two different ones above.")
    rows = desk.cached(("compare", first, second), lambda: compared(desk, first, second))
    if not rows:
        return problem(
            f"{a} and {b} were never scored on the same prompts.",
            f"Run `recover eval {a}` and `recover eval {b}`.",
        )
    suite = query.choice("suite", [row["suite"] for row in rows], rows[0]["suite"])
    return tag("div", _table(rows, a, b), _flips(desk, query, first, second, suite, rows), class_="stack")


def compared(desk: Desk, first: str, second: str) -> list[Row]:
    """Return one row per suite, IFEval first, without the suites on earlier cycles' documents."""
    found = queries.paired_suites(desk.db, first, second, earlier=False)
    found.sort(key=lambda row: row["suite"] != FIRST)
    return comparison.compare(found, margins(desk))


def margins(desk: Desk) -> dict[str, float]:
    """Return the non-inferiority margins of the newest cycle that has a verdict."""
    for row in reversed(queries.cycles(desk.db, limit=5)):
        axes = (row["verdict"] or {}).get("axes") or {}
        if axes:
            return {axis: found["margin"] for axis, found in axes.items() if found["margin"] is not None}
    return {}


def _table(rows: Sequence[Row], a: str, b: str) -> Html:
    numbers = ("a", "b", "difference, points", "95 % interval", "fail → pass", "pass → fail", "prompts", "p")
    headers = ["suite", *right(*numbers), "verdict"]
    lines = [_line(row) for row in rows]
    claims = [
        tag("li", tag("b", comparison.name(row)), f": {comparison.said(row)}; {comparison.claim(row)}.")
        for row in rows
    ]
    return tag(
        "section",
        tag("h2", _verdict(comparison.in_words(b, rows), a)),
        table(headers, lines),
        tag("details", tag("summary", "what may be claimed, in words"), tag("ul", claims), class_="adds"),
        tag(
            "p",
            f"p is McNemar's exact test, adjusted for {len(rows)} suites (Holm); above 0.05 the two are not "
            "distinguishable. Intervals are exact and paired.",
            class_="soft small",
        ),
        class_="card",
    )


def _verdict(words: str, a: str) -> str:
    if words == comparison.SAME:
        return "The two are not distinguishable."
    return f"Compared with {a}: {words}."


def _line(row: Row) -> list[Any]:
    low, high = row["interval"]
    numbers = [
        share(row["a_score"]),
        share(row["b_score"]),
        points(row["difference"]),
        f"{points(low)} to {points(high)}",
        row["gained"],
        row["lost"],
        row["n"],
        f"{row['p_holm']:.2g}",
    ]
    cells = [tag("td", number, class_="n") for number in numbers]
    return [comparison.name(row), *cells, chip(WORDS.get(row["words"], ""), row["words"])]


def _flips(desk: Desk, query: Query, a: str, b: str, suite: str, rows: Sequence[Row]) -> Html:
    way = query.choice("flips", DIRECTIONS, "all")
    direction = None if way == "all" else way
    after = query.text("after")
    found = queries.flips(desk.db, a, b, suite, direction=direction, after=after, limit=PAGE + 1)
    names = list(dict.fromkeys(row["suite"] for row in rows))
    controls = tag(
        "div",
        choose("suite", "suite", [(name, name) for name in names], suite, reset="after"),
        choose("flips", "flips", list(DIRECTIONS.items()), way, reset="after"),
        class_="controls",
    )
    last = found[PAGE - 1]["key"] if len(found) > PAGE else None
    return tag(
        "section",
        tag("div", tag("h2", "Prompts that flipped"), controls, class_="head"),
        [_flip(row) for row in found[:PAGE]] or tag("p", "None.", class_="soft"),
        tag("p", tag("a", "more", href=query.link(after=last))) if last else None,
        class_="card",
    )


def _flip(row: Row) -> Html:
    said = chip("approve", "fail → pass") if row["passed_b"] else chip("reject", "pass → fail")
    return tag(
        "article",
        tag("p", said, tag("span", f" {row['key']}", class_="soft small")),
        tag("div", row["prompt"], class_="said quiet"),
        tag(
            "div",
            _side("a", row["passed_a"], row["response_a"]),
            _side("b", row["passed_b"], row["response_b"]),
            class_="sides",
        ),
        class_="flip",
    )


def _side(name: str, passed: bool, response: str) -> Html:
    return tag(
        "div", tag("h3", f"{name}: {'pass' if passed else 'fail'}"), tag("div", response, class_="said")
    )
