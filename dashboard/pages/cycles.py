"""Show all cycles with their verdicts: did each learn, did it keep its behaviour, may it ship?"""

from __future__ import annotations

from typing import Any

from dashboard import cycles_table
from dashboard.address import PROJECT, Address
from dashboard.cycles_table import cycle_link
from dashboard.figures.markers import stage_legend
from dashboard.figures.plane import MARKS, cycles_plane, is_measured
from dashboard.figures.scores_over_cycles import stages_over_cycles
from dashboard.markup import Html, join, tag
from dashboard.number_format import bound, limit, share
from dashboard.page_context import PageContext
from dashboard.page_parts import empty, failure, with_code
from dashboard.status_chips import chip
from db.cycle_names import STAGES, is_given_up, shown_axes
from db.reads import queries
from evals import looks, verdict_sentences
from evals.ifeval import IFEVAL
from evals.probes import KNOWLEDGE
from evals.verdict import BEHAVIOUR

TITLE = "Cycles"
PATH = cycles_table.PATH
MOST = 2000  # newest cycles read
NEWEST = 5  # cycles with scores drawn as paths by default

WITHOUT_VERDICT = {
    "running": "It is under way; no verdict yet.",
    "stalled": "Nothing has been heard of it for a minute: `COMMAND` goes on with it.",
    "stopped": "It was interrupted before its verdict: `COMMAND` goes on with it.",
    "failed": "It broke off before its verdict: `COMMAND` goes on with it.",
}

Row = dict[str, Any]


def build(context: PageContext, address: Address) -> Html:
    rows = _rows(context)
    if not rows:
        return empty("No cycle yet", context.command("demo"))
    return join(
        _headline(context, address, rows),
        _figures(context, address, rows),
        cycles_table.section(rows, address, len(context.cycle_numbers())),
    )


def _rows(context: PageContext) -> list[Row]:
    """Return the newest cycles, oldest first; the status marks a cycle whose process is gone."""
    rows = context.cached("cycles", lambda: queries.cycles(context.db, limit=MOST))
    running = queries.runs(context.db, kind="cycle", status="running")
    quiet = {run["id"] for run in running if run["stalled"]}
    return [row | {"status": "stalled"} if row["run"] in quiet else row for row in rows]


def _figures(context: PageContext, address: Address, rows: list[Row]) -> Html:
    """Draw the picked cycles, or the newest that have scores, as paths, and the scores of all."""
    measured = [row["cycle"] for row in rows if is_measured(row)]
    shown = cycles_table.picked(address, rows) or measured[-NEWEST:]
    paths = len({*shown} & {*measured})

    def link(number: int) -> str:
        return address.page("/cycle", n=number)

    plane = context.cached(("plane", address.text(PROJECT), *shown), lambda: cycles_plane(rows, shown, link))
    over_time = context.cached("timeline", lambda: stages_over_cycles(rows))
    return tag(
        "div",
        tag(
            "section",
            tag("h2", "Knowledge against behaviour"),
            plane,
            _key(paths, len(measured)),
            class_="card half",
        ),
        tag("section", tag("h2", "Scores by cycle"), over_time, stage_legend(), class_="card half"),
        class_="grid",
    )


def _key(paths: int, measured: int) -> Html:
    """Explain the marks, and of how many of the cycles with scores the paths are drawn."""
    if measured <= paths:
        return stage_legend(*MARKS)
    return stage_legend(*MARKS, f"paths: {paths} of {measured} cycles; pick others in the table")


# The newest cycle in a sentence -----------------------------------------------------------------------------


def _headline(context: PageContext, address: Address, rows: list[Row]) -> Html:
    row = rows[-1]
    return tag(
        "section",
        tag(
            "div",
            tag("h1", cycle_link(address, row, "Cycle"), " ", chip(verdict_sentences.status_in_words(row))),
            tag("p", *outcome(context, row), class_="lead"),
            onward(context, address, row),
        ),
        tag("p", "The model in use (current) is ", _current(context, address, rows), class_="soft"),
        class_="card head",
    )


def _current(context: PageContext, address: Address, rows: list[Row]) -> Html | str:
    """Name the newest cycle whose recovered model is `current`, or the model itself."""
    targets = {alias["name"]: alias["checkpoint_id"] for alias in queries.aliases(context.db)}
    current = targets.get("current")
    for row in reversed(rows):
        if current and row["checkpoints"]["recovered"] == current:
            number = row["cycle"]
            return tag("a", f"cycle {number}'s model", href=address.page("/cycle", n=number))
    return "the clean model" if current in (None, targets.get("base")) else tag("code", current)


def _by_stage(suite: Row) -> str:
    """Name each model with its score: clean 10.0, midtrained 35.0, recovered 32.5 %."""
    return ", ".join(f"{stage} {share(suite.get(stage))}" for stage in STAGES) + " %"


def _at_worst(verdict: Row) -> list[str]:
    """Say what recovery lost of behaviour at worst, and whether that counts further prompts too."""
    lowest, margin = verdict.get("behaviour_lower_bound"), verdict.get("margin")
    if lowest is None or margin is None:
        return []
    details = verdict.get("axes", {}).get(BEHAVIOUR, {}).get("details") or {}
    asked = "with further prompts " if details.get("look") == looks.TWO else ""
    return [f"{asked}at worst {bound(lowest, margin)} points, where {limit(margin)} is allowed"]


def outcome(context: PageContext, row: Row) -> list[Any]:
    """Describe a cycle's outcome in a sentence."""
    verdict = row["verdict"] or {}
    scores = row["scores"].get(IFEVAL, {})
    if not verdict and is_given_up(row):
        return ["It was given up before its verdict: nothing resumes it."]
    if not verdict:
        words = WITHOUT_VERDICT.get(row["status"], "It has no verdict.")
        command = context.command("resume", row["run"])
        return [with_code(words.replace("COMMAND", command)), failure(row)]
    followed = f": {_by_stage(scores)}" if scores else " was not measured"
    parts = [f"Instruction following{followed}"]
    parts += _at_worst(verdict)
    known = row["scores"].get(KNOWLEDGE, {})
    if known.get("recovered") is not None:
        parts.append(f"the new documents: {_by_stage(known)}")
    judged = [tag("span", axis, " ", chip(verdict[axis])) for axis in shown_axes(verdict)]
    return [tag("span", judged, class_="judged"), "; ".join(parts) + "."]


def onward(context: PageContext, address: Address, row: Row, form: str | None = None) -> Html | None:
    """Say what a person does next with a cycle that has a verdict and no review; `form` is its address."""
    if not row["verdict"] or row["review"]:
        return None
    number, asked = row["cycle"], row["scores"].get(IFEVAL, {})
    review = tag("a", "review the cycle", href=form or address.page("/cycle", n=number))
    if more := verdict_sentences.more_questions(row):
        return tag("p", f"Next: {more}, then ", review, ".", class_="next")
    longer = _longer(context, row)
    none_lost = row["verdict"].get("axes", {}).get(BEHAVIOUR, {}).get("lost") == 0
    if none_lost or asked.get("clean") is None or asked.get("recovered") is None:
        return tag("p", "Next: ", review, ".", longer, class_="next")
    lost = tag("a", "read the answers that were lost", href=address.page("/samples", n=number, flip="lost"))
    return tag("p", "Next: ", lost, ", then ", review, ".", longer, class_="next")


def _longer(context: PageContext, row: Row) -> Html | None:
    """Name the command that recovers longer, where a loss to the clean model was in the way."""
    if row["status"] != "rejected" or not verdict_sentences.shows_loss_to_clean(row):
        return None
    command = context.command("distill", "--student", f"cycle:{row['cycle']}")
    options = "with the options that the cycle was given and another --seed"
    return with_code(f" `{command}` recovers longer, {options}.")
