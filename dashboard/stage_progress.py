"""Show a cycle's stages: finished ones, the progress of the running one, and how to resume a dead process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.markup import Html, join, tag
from dashboard.number_format import NONE, ago, count, duration
from dashboard.page_parts import number_headers, table, tokens_of
from dashboard.status_chips import chip
from db.cycle_names import BROKEN_OFF, is_given_up
from db.reads import queries
from db.session import Database

Row = Mapping[str, Any]
PLAN = (
    ("eval:clean", "measure the clean model"),
    ("midtrain", "teach the documents"),
    ("eval:midtrained", "measure what was learned and lost"),
    ("distill", "bring behaviour back"),
    ("eval:recovered", "measure what came back"),
)
CHOSEN = {"distill": "choose"}  # what takes a stage's place where the recovery is chosen among candidates


def state(run: Row) -> str:
    return "stalled" if run.get("stalled") else str(run["status"])


def stages(database: Database, cycle: str) -> list[dict[str, Any]]:
    """Return the runs of a cycle's stages; a choice of the recovery stands for the runs below it."""
    return [
        with_those_below(run, queries.runs(database, parent=run["id"], limit=200))
        if run["kind"] == "choose"
        else run
        for run in queries.runs(database, parent=cycle, limit=200)
    ]


def with_those_below(run: Row, below: Sequence[Row]) -> dict[str, Any]:
    """Return a run that only waits for those below it, newest first, with their cost, and the progress and
    settings of the one that runs."""
    costs = [row["cost"] or {} for row in below]
    summed = {name for cost in costs for name in cost if name.startswith(("seconds", "tokens_"))}
    cost = {name: sum(cost.get(name) or 0 for cost in costs) for name in summed}
    running = next((row for row in below if row["status"] == "running"), run)
    now = {name: running.get(name) for name in ("progress", "config")}
    return {**run, "cost": {**(run["cost"] or {}), **cost}, **now}


def stage_list(runs: Sequence[Row]) -> Html:
    """Return the stages in order; `runs` are the cycle's child runs by key."""
    there = {run["key"]: run for run in runs}
    plan = {CHOSEN[key] if CHOSEN.get(key) in there else key: words for key, words in PLAN}
    planned = [(key, words, there.get(key)) for key, words in plan.items()]
    others = [(run["key"] or run["kind"], run["kind"], run) for run in runs[::-1] if run["key"] not in plan]
    rows = [_stage(key, words, run) for key, words, run in [*planned, *others]]
    return table(["stage", "state", *number_headers("took", "tokens")], rows, class_="stages")


def _stage(key: str, words: str, run: Row | None) -> list[Any]:
    name = join(tag("span", words, class_="strong"), tag("div", key, class_="soft small mono"))
    if run is None:
        return [
            name,
            tag("span", "not yet", class_="soft"),
            tag("td", NONE, class_="n"),
            tag("td", NONE, class_="n"),
        ]
    cost = run["cost"] or {}
    attempts = tag("div", f"{run['attempts']} attempts", class_="soft small") if run["attempts"] > 1 else None
    return [
        name,
        join(chip(state(run)), bar(run), attempts),
        tag("td", duration(cost.get("seconds")), class_="n"),
        tag("td", count(tokens_of(cost)) if cost else NONE, class_="n"),
    ]


def bar(run: Row) -> Html | None:
    """Draw the progress and the remaining time of a stage that has not ended."""
    progress = run["progress"] or {}
    step, steps = progress.get("step"), progress.get("steps")
    if run["status"] == "done":
        return None
    error = tag("p", run["error"], class_="said small bad-text") if run["error"] else None
    if not steps:
        return error
    at_most = "at most " if _may_end_before(run, steps) else ""
    eta = progress.get("eta_seconds")
    left = (
        f", {at_most}{duration(eta)} left"
        if eta is not None and run["status"] == "running" and not run.get("stalled")
        else ""
    )
    words = tag("div", f"step {step:,} of {at_most}{steps:,}{left}", class_="small")
    said = tag("div", progress.get("message") or "", class_="said small soft")
    return join(tag("progress", value=step, max=steps, aria_label="progress"), words, said, error)


def _may_end_before(run: Row, steps: int) -> bool:
    """Return whether the last of a run's steps are taken only while they help (distill.more_steps)."""
    settings = (run.get("config") or {}).get("settings") or {}
    return bool(settings.get("more_steps")) and steps > settings["steps"]


def trouble(runs: Sequence[Row], resume: str) -> Html | None:
    """Explain where a cycle has stopped, with the command `resume`; `runs` begin with its own."""
    own, *stages = runs
    if is_given_up(own):
        return tag(
            "div", tag("p", chip(state(own)), " It was given up: nothing resumes it."), class_="trouble"
        )
    ended = [run for run in (*stages, own) if state(run) in ("stalled", *BROKEN_OFF)]
    if not ended:
        return None
    run = ended[0]
    if run.get("stalled"):
        heard = _coarse(run["heartbeat_at"])
        why = f"No sign of life for more than a minute (the last {heard}): its process has ended, or hangs."
    else:
        name = run["kind"] if run is own else run["key"] or run["kind"]  # a cycle's own key is no word
        why = f"{name} {'broke off' if run['status'] == 'failed' else 'was stopped'}."
    goes_on = "To go on where it was cut off, type:"
    return tag(
        "div",
        tag("p", chip(state(run)), " ", why),
        tag("p", goes_on),
        tag("pre", tag("code", resume)),
        class_="trouble",
    )


def _coarse(at: str) -> str:
    """Round to the minute, so that a page need not be redrawn every second."""
    words = ago(at)
    if "h" in words or "d" in words:
        return words
    if " min" in words:
        return words.split(" min")[0] + " min ago"
    return "a minute ago"
