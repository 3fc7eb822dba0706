"""Show where a checkpoint forgot: what comes back when parts of the clean weights are put back."""

from __future__ import annotations

from typing import Any

from dashboard.address import Address
from dashboard.figures.score_heatmap import Cell, heatmap, scale, with_interval
from dashboard.form_controls import choose
from dashboard.markup import Html, tag
from dashboard.number_format import moment, points
from dashboard.page_context import PageContext
from dashboard.page_parts import absent, empty
from dashboard.status_chips import chip
from db.errors import NotFound
from db.reads import queries
from evals.verdict import EVERY_AXIS

TITLE = "Locate"
PATH = "/locate"
RUNS = 50  # newest searches to choose from
SHOWS = (
    "A search puts the clean weights back into a midtrained model, one part at a time: embeddings, norms, "
    "groups of layers. Here stands how much of the lost behaviour and knowledge each of them returns."
)
NAMES = {axis.suite: axis.name for axis in EVERY_AXIS}

Row = dict[str, Any]


def build(context: PageContext, address: Address) -> Html:
    runs = queries.runs(context.db, kind="locate", status="done", limit=RUNS)
    if not runs:
        example = context.command("locate", "cycle:1")
        return empty("No search for the weights that forgot yet", example, SHOWS)
    wanted = address.text("run")
    if wanted and wanted not in {run["id"] for run in runs}:  # older than those that are listed
        runs += _named(context, wanted)
    names = {run["id"]: f"{run['id']}, {moment(run['started_at'])}" for run in runs}
    chosen = address.choice("run", names, runs[0]["id"])
    result = next(run["result"] for run in runs if run["id"] == chosen)
    controls = tag("div", choose("Search", "run", names, chosen), class_="controls")
    said = (
        "Share of items passed when the clean weights of one part, or of several, are put back into "
        f"{result['checkpoint']}. The tooltip of a cell holds the difference to what sets its standard."
    )
    drawn = tag(
        "section",
        tag("div", tag("h1", "Where it forgot"), controls, class_="head"),
        tag("p", result["words"], class_="lead said"),
        tag("p", said, class_="soft"),
        figure(result),
        scale(),
        class_="card",
    )
    return tag("div", absent(wanted, chosen), drawn, class_="stack")


def _named(context: PageContext, run_id: str) -> list[Row]:
    """Return the search of this name, if the project has finished one."""
    try:
        run = queries.run(context.db, run_id)
    except NotFound:
        return []
    finished = (run["kind"], run["status"], run["project"]) == ("locate", "done", context.db.project)
    return [run] if finished else []


def figure(result: Row) -> Html:
    """Draw one row for each mixture and one column for each axis."""
    mixtures = [*result["parts"], *result["sets"]]
    ends = result.get("ends") or {}
    measured = [row["scores"] for row in mixtures]
    suites = list(dict.fromkeys(suite for row in [*ends.values(), *measured] for suite in row))
    offered = (result["offered"] or {}).get("parts")
    rows = [_end(label, scores, suites) for label, scores in ends.items()]
    rows += [_mixture(row, suites, offered) for row in mixtures]
    return heatmap([*(NAMES.get(suite, suite) for suite in suites), "enough"], rows, "put back")


def _end(label: str, scores: Row, suites: list[str]) -> tuple[str, list[Any]]:
    name = {"clean": "everything (the clean model)", "checkpoint": "nothing"}.get(label, label)
    return name, [*(_cell(name, scores, suite, {}) for suite in suites), ""]


def _mixture(row: Row, suites: list[str], offered: list[str] | None) -> tuple[str, list[Any]]:
    name = ", ".join(row["parts"])
    if not row["scores"]:
        return name, [*(Cell(None, 0, words="these weights did not move") for _ in suites), "did not move"]
    word: Any = "no"
    if row["passed"]:
        word = chip("accepted", "yes, offered" if row["parts"] == offered else "yes")
    return name, [*(_cell(name, row["scores"], suite, row["axes"]) for suite in suites), word]


def _cell(name: str, scores: Row, suite: str, axes: Row) -> Cell:
    found = scores.get(suite) or {}
    if found.get("score") is None:
        return Cell(None, 0, words=f"{name}: not measured")
    low, high = found["interval"]
    measured = {"value": found["score"], "n": found["n"], "low": low, "high": high}
    words = f"{name}, {NAMES.get(suite, suite)}: {with_interval(measured)}"
    axis = axes.get(NAMES.get(suite, suite)) or {}
    if axis.get("difference") is not None:
        words += (
            f"; {points(axis['difference'])} points against {axis['reference']}, "
            f"bounds {points(axis['lower_bound'])} to {points(axis['upper_bound'])}"
        )
    return Cell(found["score"], found["n"], title=words)
