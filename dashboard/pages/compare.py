"""Compare two checkpoints on the same prompts: statistics, and the prompts that flipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.address import Address
from dashboard.form_controls import choose, text_field
from dashboard.markup import Html, tag
from dashboard.number_format import points, share
from dashboard.page_context import PageContext
from dashboard.page_parts import empty, number_headers, problem, prompts, sentence, table, turns, with_code
from dashboard.status_chips import chip
from db.cycle_names import STAGES
from db.errors import TrackerError
from db.reads import queries
from evals import comparison
from recovery.counted import counted

TITLE = "Compare"
PATH = "/compare"

OFFERED = 30  # newest cycles whose checkpoints are offered, and newest checkpoints
PAGE = 20  # flips per page
DIRECTIONS = {"all": "both ways", "lost": "pass → fail", "gained": "fail → pass"}
WORDS = {"better": "recovered", "worse": "rejected", comparison.SAME: ""}  # verdict with that colour

Row = dict[str, Any]


def build(context: PageContext, address: Address) -> Html:
    cycles = context.cached(("compare", "cycles"), lambda: queries.cycles(context.db, limit=OFFERED))
    if not cycles and not queries.checkpoints(context.db, limit=1):
        return empty("No model has been scored yet", context.command("demo"))
    a = address.text("a", "base")
    b = address.text("b", _newest_recovered(cycles))
    head = tag(
        "section",
        tag("div", tag("h1", "Compare"), class_="head"),
        _choice(context, cycles, a, b),
        tag("p", f"{a} against {b}", class_="soft"),
        class_="card",
    )
    try:
        return tag("div", head, _compared(context, address, a, b), class_="stack")
    except TrackerError as error:
        return tag("div", head, problem(sentence(error)), class_="stack")


def _newest_recovered(cycles: Sequence[Row]) -> str:
    """Return the name of the newest recovered model; the current one if no cycle has come so far."""
    recovered = (row["cycle"] for row in reversed(cycles) if row["checkpoints"].get("recovered"))
    return next((f"cycle:{number}" for number in recovered), "current")


def _choice(context: PageContext, cycles: Sequence[Row], a: str, b: str) -> Html:
    offered = _offered(context, cycles)
    models = [_model(context, offered, name, given) for name, given in (("a", a), ("b", b))]
    return tag("div", models, class_="controls")


def _offered(context: PageContext, cycles: Sequence[Row]) -> dict[str, tuple[str, str]]:
    """Return by id the name of each model to choose from, and what it is."""
    aliases: dict[str, list[str]] = {}
    for alias in queries.aliases(context.db):
        aliases.setdefault(alias["checkpoint_id"], []).append(alias["name"])
    names = {one: "base" for one, known in aliases.items() if "base" in known}
    for row in reversed(cycles):
        for stage in reversed(STAGES):
            if one := row["checkpoints"][stage]:
                names.setdefault(one, f"cycle:{row['cycle']}:{stage}")
    newest = {row["id"]: row["run_id"] for row in queries.checkpoints(context.db, limit=OFFERED)}
    for one in (*aliases, *newest):
        names.setdefault(one, one)
    return {
        one: (name, _described(one, name, newest.get(one), aliases.get(one, ())))
        for one, name in names.items()
    }


def _described(one: str, name: str, run: str | None, aliases: Sequence[str]) -> str:
    """Name a model by its cycle and stage, else by the run that made it, with its aliases and its id."""
    made = name if name != one else f"run {run}" if run else "model"
    return f"{', '.join(dict.fromkeys([made, *aliases]))}: {one}"


def _model(
    context: PageContext, offered: Mapping[str, tuple[str, str]], parameter: str, given: str
) -> list[Html]:
    """Return a list to choose a model from, and a field for one that is not in it."""
    try:
        one = queries.resolve(context.db, given)
    except TrackerError:
        one = given
    chosen, _ = offered.get(one, (given, ""))
    choices = ({} if one in offered else {given: given}) | dict(offered.values())
    return [
        choose(f"Model {parameter}", parameter, choices, chosen),
        text_field("or another", parameter, "name or id"),
    ]


def _compared(context: PageContext, address: Address, a: str, b: str) -> Html:
    first, second = queries.resolve(context.db, a), queries.resolve(context.db, b)
    if first == second:
        return problem("Both are the same model.", "Give two different ones above.")
    rows = context.cached(("compare", first, second), lambda: compared(context, first, second))
    if not rows:
        return problem(
            f"{a} and {b} were never scored on the same prompts.",
            f"Run `{context.command('eval', a)}` and `{context.command('eval', b)}`.",
        )
    return tag(
        "div",
        _warnings(context, {a: first, b: second}, rows),
        _table(rows, a, b),
        _flips(context, address, first, second, rows),
        class_="stack",
    )


def _warnings(context: PageContext, models: Mapping[str, str], rows: Sequence[Row]) -> list[Html]:
    """Say which models (name -> id) questions compared here chose among several."""
    by_questions = context.cached("chosen", lambda: queries.chosen_by_questions(context.db))
    chosen = comparison.chosen(models.values(), by_questions, rows)
    said = [comparison.flattered(name) for name, one in models.items() if one in chosen]
    return [tag("p", with_code(f"{words}."), class_="notice") for words in said]


def compared(context: PageContext, first: str, second: str) -> list[Row]:
    """Return one row per suite, IFEval first, as `recover compare` has them."""
    return comparison.compare(queries.paired_suites(context.db, first, second))


def _table(rows: Sequence[Row], a: str, b: str) -> Html:
    numbers = (
        "a, %",
        "b, %",
        "difference, points",
        "95 % interval",
        "fail → pass",
        "pass → fail",
        "prompts",
        "p",
    )
    headers = ["suite", *number_headers(*numbers), "verdict"]
    lines = [_line(row) for row in rows]
    claims = [
        tag("li", tag("b", comparison.name(row)), f": {'; '.join(comparison.sentences(row))}.")
        for row in rows
    ]
    return tag(
        "section",
        tag("h2", _verdict(comparison.in_words(b, rows), a)),
        table(headers, lines),
        tag("details", tag("summary", "what may be claimed, in words"), tag("ul", claims), class_="adds"),
        tag(
            "p",
            "p is McNemar's exact test (of calibration a permutation test), "
            f"adjusted for {counted(len(rows), 'test')} (Holm); above 0.05 the two are not distinguishable. "
            "Intervals are paired.",
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
        prompts(row["n"], row["samples"]),
        f"{row['p_holm']:.2g}",
    ]
    cells = [tag("td", number, class_="n") for number in numbers]
    return [comparison.name(row), *cells, chip(WORDS.get(row["words"], ""), row["words"])]


def _listed(rows: Sequence[Row]) -> dict[str, tuple[str, str]]:
    """Return the suites and metrics whose flips are listed, by name; the kinds of a family share theirs."""
    listed: dict[str, tuple[str, str]] = {}
    for row in rows:
        found = {"suite": row["suite"], "metric": row["metric"]}
        listed.setdefault(comparison.name(found), (row["suite"], row["metric"]))
    return listed


def _flips(context: PageContext, address: Address, a: str, b: str, rows: Sequence[Row]) -> Html:
    listed = _listed(rows)
    suite = address.choice("suite", listed, next(iter(listed)))
    way = address.choice("flips", DIRECTIONS, "all")
    direction = None if way == "all" else way
    after = address.text("after")
    pair = queries.compared_scores(context.db, a, b, *listed[suite])
    found = queries.flips_of_scores(context.db, *pair, direction=direction, after=after, limit=PAGE + 1)
    controls = tag(
        "div",
        choose("Suite", "suite", {name: name for name in listed}, suite),
        choose("Flips", "flips", DIRECTIONS, way),
        class_="controls",
    )
    last = found[PAGE - 1]["key"] if len(found) > PAGE else None
    return tag(
        "section",
        tag("div", tag("h2", "Prompts that flipped"), controls, class_="head"),
        [_flip(row) for row in found[:PAGE]] or tag("p", "None.", class_="soft"),
        tag("p", turns(address, "after", last), class_="pager"),
        class_="card",
    )


def _flip(row: Row) -> Html:
    said = chip("approve", "fail → pass") if row["passed_b"] else chip("reject", "pass → fail")
    return tag(
        "article",
        tag("p", said, tag("span", f" {row['key']}", class_="soft small")),
        tag("div", row["prompt"], class_="said quiet", dir="auto"),
        tag(
            "div",
            _side("a", row["passed_a"], row["response_a"]),
            _side("b", row["passed_b"], row["response_b"]),
            class_="sides",
        ),
        class_="flip",
    )


def _side(name: str, passed: bool, response: str) -> Html:
    said = tag("div", response, class_="said", dir="auto")
    return tag("div", tag("h3", f"{name}: {'pass' if passed else 'fail'}"), said)
