"""Show scores by instruction type and checkpoint as a heat map."""

from __future__ import annotations

from typing import Any

from dashboard.address import Address
from dashboard.figures.score_heatmap import Cell, heatmap, scale
from dashboard.form_controls import choose, choose_cycle
from dashboard.markup import Html, tag
from dashboard.page_context import PageContext
from dashboard.page_parts import empty, newest_measured, not_asked
from db.cycle_names import STAGES
from db.reads import queries
from evals.families.table import FAMILIES
from evals.ifeval import FURTHER, IFEVAL
from evals.probes import KNOWLEDGE, RETENTION, UPDATES

TITLE = "Behaviour"
PATH = "/behaviour"
COLUMNS = 10  # cycles shown side by side
SUITES = {
    IFEVAL: "instruction types (IFEval)",
    FURTHER: "instruction types (further prompts)",
    KNOWLEDGE: "knowledge, by kind of question",
    RETENTION: "retention, by kind of question",
    UPDATES: "changed facts, by kind of question",
    **{name: f"{name}, by kind of question" for name in FAMILIES},
}
INSTRUCTIONS = (IFEVAL, FURTHER)  # suites of prompts with instructions
VIEWS = {"stages": "this cycle's three models", "cycles": "recovered models of many cycles"}
ORDERS = {"name": "by name", "worst": "worst first", "change": "largest loss first"}

Types = dict[str, dict[str, Any]]


def build(context: PageContext, address: Address) -> Html:
    numbers = context.cycle_numbers()
    if not numbers:
        return empty("No cycle yet", context.command("demo"))
    suite = address.choice("suite", SUITES, IFEVAL)
    view = address.choice("view", VIEWS, "stages")
    number = address.number("n") or newest_measured(numbers, lambda n: _types(context, n, n, suite))
    first = number if view == "stages" else max(numbers[0], number - COLUMNS + 1)
    scores = _types(context, first, number, suite)
    head = tag(
        "div", tag("h1", f"Behaviour in cycle {number}"), _controls(address, numbers, number), class_="head"
    )
    if not scores:
        note = not_asked(context.judged(number), "score", suite, " It comes with the first measurement.")
        return tag("section", head, note, class_="card")
    if not any(scores.values()):
        why = f"The scores of {suite} are not split by {_detail(suite)[1]}."
        return tag("section", head, tag("p", why), class_="card")
    return tag(
        "section",
        head,
        tag(
            "p",
            f"Share of {_judged(suite)}. A cell of this score's own kinds opens the samples that fail it.",
            class_="soft",
        ),
        _grid(address, scores, suite, None if view == "cycles" else number),
        scale(),
        class_="card",
    )


def _judged(suite: str) -> str:
    return "prompts in which the instruction was followed" if suite in INSTRUCTIONS else "questions passed"


def _detail(suite: str) -> tuple[str, str]:
    """Return the key of a score's details that has the rows, and what a row is."""
    return (
        ("by_instruction", "instruction type") if suite in INSTRUCTIONS else ("by_kind", "kind of question")
    )


def _grid(address: Address, scores: dict[tuple[int, str], Types], suite: str, number: int | None) -> Html:
    """Draw an instruction a row; a column for each stage of a cycle, or for the end of every cycle."""
    if number is None:
        columns = [key for key in scores if key[1] == "recovered"]
        heads: list[Html | str] = [
            tag("a", f"cycle {n}", href=address.page("/cycle", n=n)) for n, _ in columns
        ]
    else:
        columns = [(number, stage) for stage in STAGES]
        heads = list(STAGES)
    names = _ordered(scores, columns, address.choice("order", ORDERS, "name"))
    rows = [(name, [_cell(address, scores, column, name, suite) for column in columns]) for name in names]
    return heatmap(heads, rows, _detail(suite)[1])


def _controls(address: Address, numbers: list[int], number: int) -> Html:
    return tag(
        "div",
        choose_cycle(numbers, number),
        choose("Show", "view", VIEWS, address.choice("view", VIEWS, "stages")),
        choose("Suite", "suite", SUITES, address.choice("suite", SUITES, IFEVAL)),
        choose("Order", "order", ORDERS, address.choice("order", ORDERS, "name")),
        class_="controls",
    )


def _types(context: PageContext, first: int, last: int, suite: str) -> dict[tuple[int, str], Types]:
    """Return {(cycle, stage): {instruction type: {passed, n}}}, marked where they are beside the headline."""

    def merged() -> dict[tuple[int, str], Types]:
        found: dict[tuple[int, str], Types] = {}
        for row in queries.stage_scores(context.db, first, last, suite=suite):
            kinds = (row["details"] or {}).get(_detail(suite)[0]) or {}
            column = row["cycle"], row["stage"]
            if column not in found:  # a suite's headline comes first, and keeps its own
                found[column] = dict(kinds)
            else:
                beside = {kind: {**counted, "beside": True} for kind, counted in kinds.items()}
                found[column] = beside | found[column]
        return found

    return context.cached(("types", first, last, suite), merged)


def _value(types: Types, name: str) -> tuple[float | None, int]:
    row = types.get(name) or {}
    n = int(row.get("n") or 0)
    return (row["passed"] / n if n else None), n


def _cell(
    address: Address, scores: dict[tuple[int, str], Types], column: tuple[int, str], name: str, suite: str
) -> Cell:
    number, stage = column
    types = scores.get(column, {})
    value, n = _value(types, name)
    link = None
    if not types.get(name, {}).get("beside"):  # the samples are the headline's
        link = address.page("/samples", n=number, suite=suite, kind=name, failing=stage)
    return Cell(value, n, link, f"{stage} of cycle {number}")


def _ordered(scores: dict[tuple[int, str], Types], columns: list[tuple[int, str]], order: str) -> list[str]:
    names = sorted({name for column in columns for name in scores.get(column, {})})
    last = scores.get(columns[-1], {}) if columns else {}
    first = scores.get(columns[0], {}) if columns else {}

    def loss(name: str) -> float:
        before, after = _value(first, name)[0], _value(last, name)[0]
        return 2.0 if before is None or after is None else after - before

    if order == "worst":
        return sorted(names, key=lambda name: (_value(last, name)[0] is None, _value(last, name)[0] or 0.0))
    return sorted(names, key=loss) if order == "change" else names
