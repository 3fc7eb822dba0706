"""Show families of behaviour, and tasks of lm-eval that decide: a heat map over all models, and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dashboard import verdict_parts
from dashboard.address import Address
from dashboard.figures.score_heatmap import Cell, heatmap, scale, with_interval
from dashboard.form_controls import choose_cycle
from dashboard.markup import Html, tag
from dashboard.number_format import NONE, limit, points
from dashboard.page_context import PageContext
from dashboard.page_parts import empty, number_headers, table
from dashboard.status_chips import chip
from db.reads import queries
from evals.families.table import FAMILIES
from evals.ifeval import IFEVAL

TITLE = "Families"
PATH = "/families"
SHOWN = 6  # cycles side by side
SUITES = {IFEVAL: "instructions", **{name: name for name in FAMILIES}}

Row = dict[str, Any]
Column = tuple[int, str]  # cycle and stage
Scores = Mapping[str, Mapping[Column, Row]]  # suite -> column -> score


def build(context: PageContext, address: Address) -> Html:
    numbers = context.cycle_numbers()
    if not numbers:
        return empty("No cycle yet", _asking(context, "json", "refusals"))
    number = address.number("n") or numbers[-1]
    first = max(numbers[0], number - SHOWN + 1)
    cycle = context.judged(number)
    suites = (*SUITES, *verdict_parts.tasks_of(cycle))
    found = context.cached(
        ("families", first, number, suites), lambda: scores(context, first, number, suites)
    )
    head = tag(
        "div",
        tag("h1", f"Families of behaviour up to cycle {number}"),
        tag("div", choose_cycle(numbers, number), class_="controls"),
        class_="head",
    )
    said = tag(
        "p",
        "Each family of behaviour, and each task of lm-eval that this cycle was judged by, in the clean "
        "model, and in the midtrained and recovered one of each cycle, the newest first. A cell opens the "
        "samples that fail it; its tooltip holds the 95 % interval.",
        class_="soft",
    )
    drawn = _figure(address, found, first, number)
    return tag(
        "div",
        tag("section", head, said, drawn, scale(), class_="card"),
        tag("section", tag("h2", f"Verdict of cycle {number}"), verdicts(context, cycle), class_="card"),
        tag("section", tag("h2", "What brings each back"), _recovery(), class_="card"),
        class_="stack",
    )


def _asking(context: PageContext, *families: str) -> str:
    """Return the command of a cycle that asks about some families."""
    return context.command("cycle", "--docs", "DIR", "--behaviours", ",".join(families))


def scores(context: PageContext, first: int, last: int, suites: Sequence[str]) -> Scores:
    """Return each suite's headline score by cycle and stage; suites without any are left out."""
    found: dict[str, dict[Column, Row]] = {}
    for suite in suites:
        for row in queries.stage_scores(context.db, first, last, suite=suite):
            found.setdefault(suite, {}).setdefault((row["cycle"], row["stage"]), row)
    return found


def _figure(address: Address, found: Scores, first: int, last: int) -> Html:
    columns = [(last, "clean")]
    columns += [(n, stage) for n in range(last, first - 1, -1) for stage in ("midtrained", "recovered")]
    there = {column for by_column in found.values() for column in by_column}
    columns = [column for column in columns if column in there]
    heads = [
        "clean" if stage == "clean" else tag("a", f"{stage} {n}", href=address.page("/cycle", n=n))
        for n, stage in columns
    ]
    rows = [
        (_named(suite), [_cell(address, by_column.get(column), column, suite) for column in columns])
        for suite, by_column in found.items()
    ]
    return heatmap(heads, rows, "family")


def _named(suite: str) -> str:
    return SUITES.get(suite, suite)


def _cell(address: Address, row: Row | None, column: Column, suite: str) -> Cell:
    number, stage = column
    if row is None:
        return Cell(None, 0, words=f"{stage} of cycle {number}: not measured")
    words = f"{_named(suite)}, {stage} of cycle {number}: {with_interval(row)}"
    link = address.page("/samples", n=number, suite=suite, failing=stage)
    return Cell(row["value"], row["n"], link, title=words)


def verdicts(context: PageContext, cycle: Row) -> Html:
    """Return the verdict of each family and task that a cycle was asked for."""
    axes = (cycle["verdict"] or {}).get("axes") or {}
    lines = [_line(name, axes[name]) for name in (*FAMILIES, *verdict_parts.tasks_of(cycle)) if name in axes]
    if not lines:
        command = tag("code", _asking(context, *FAMILIES))
        why = "This cycle judged no family" if cycle["verdict"] else "This cycle has no verdict yet"
        return tag("p", f"{why}. To judge some families, name them: ", command, class_="soft")
    headers = ["family", "verdict", *number_headers("difference, points", "bounds", "must exceed"), "claim"]
    note = (
        "A family or a task is kept when the lower of its one-sided bounds exceeds the value beside them. "
        "Bounds hold for all families of the cycle at once (Bonferroni), those of a task for it alone. Of "
        "refusals the less favourable rate is shown."
    )
    return tag("div", table(headers, lines), tag("p", note, class_="soft small"))


def _line(name: str, axis: Row) -> list[Any]:
    details = axis["details"] or {}
    measured = axis["difference"] is not None
    numbers = [
        points(axis["difference"]),
        verdict_parts.both_bounds(axis),
        limit(axis["margin"]) if measured else NONE,
    ]
    claim = FAMILIES[name].claim if name in FAMILIES else "the task's score falls by less than the margin"
    claim = f"not measured: {details['reason']}" if "reason" in details else claim
    cells = [tag("td", number, class_="n") for number in numbers]
    title = verdict_parts.named(name, axis)
    return [title, chip(axis["outcome"]), *cells, tag("td", claim, class_="claim small")]


def _recovery() -> Html:
    """Say per family which recovery prompts it needs, and the command that writes them."""
    rows: list[list[Any]] = [
        [name, family.recovery, tag("code", f"recover prompts {name} --out {name}.jsonl")]
        for name, family in FAMILIES.items()
    ]
    return table(["family", "prompts", "command"], rows)
