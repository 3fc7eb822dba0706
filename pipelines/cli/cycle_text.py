"""Format a cycle for the terminal: its scores, its verdict in words, and what it cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from db.cycle_names import AXES, BROKEN_OFF, STAGES, UPDATES, is_given_up, shown_axes
from evals import learned
from evals.scores import halves_counted, is_likely_lost, notes_by_suite
from pipelines.cli.options import state_words
from pipelines.cli.table import table
from recovery.command_line import Command, unnamed
from recovery.errors import InputError

if TYPE_CHECKING:
    from pipelines.runs.workspace import Workspace

WORK = {"eval": "evaluations", "midtrain": "midtraining", "distill": "distillation"}  # by kind of stage


def cycle_text(row: dict[str, Any], command: Command = unnamed) -> str:
    """Format a cycle: scores at each stage, then the verdict in words and the newest review; `command`
    writes what goes on with it."""
    scores = [
        {"suite": name, **{stage: suite[stage] for stage in STAGES}, "n": suite["n"]}
        for name, suite in row["scores"].items()
    ]
    lines = [f"cycle {row['cycle']}: {state_words(row)}", *resume_lines(row, command)]
    lines.append(table(scores, ["suite", *STAGES, "n"]))
    lines += [f"note       {said}" for said in (*notes_by_suite(row["scores"]), halves_counted(row)) if said]
    verdict = row["verdict"] or {}
    for name in shown_axes(verdict):
        lines.append(axis_line(name, verdict) if name in AXES else other_line(name, verdict["axes"][name]))
    lines += stale_lines(row["scores"].get(UPDATES, {}))
    lines += map(_earlier_line, row.get("knowledge_by_cycle", []))
    return "\n".join([*lines, *_review_lines(row), *cost_lines(row)])


def _review_lines(row: dict[str, Any]) -> list[str]:
    """Return the newest decision about a cycle, which overrides the verdict."""
    review = row.get("review")
    if not review:
        return []
    reviewer, note = (" ".join(review[name].split()) for name in ("reviewer", "note"))
    said = f"review     {review['decision']}, by {reviewer}"
    return [f"{said}: {note}" if note else said]


def _earlier_line(row: dict[str, Any]) -> str:
    """Describe what is known of an earlier cycle's documents, and what was when that cycle ended."""
    known = f"cycle {row['cycle']}'s documents: {row['score']:.3f} (n = {row['n']:,})"
    if row.get("then") is None:
        return known
    return f"{known}; {row['then']:.3f} on the same questions when it ended"


def resume_lines(row: dict[str, Any], command: Command) -> list[str]:
    """Return why a cycle without a verdict broke off, and the command that goes on with it."""
    why = [f"reason     {row['error']}"] if row.get("error") else []
    if broke_off(row):
        return [*why, f"to go on   {command('resume', row['run'])}"]
    return why if is_given_up(row) else []


def broke_off(row: dict[str, Any]) -> bool:
    """Return whether a cycle has no verdict and waits to be resumed."""
    ended = row.get("stalled") or row["status"] in BROKEN_OFF
    return bool(not row["verdict"] and ended and not is_given_up(row))


def recovery_command(ws: Workspace, row: dict[str, Any]) -> str:
    """Return the command that recovers the model of a rejected cycle further, as the cycle itself did."""
    from db.reads import queries
    from pipelines.corpus.reading.tree import companions
    from pipelines.runs.pinned_inputs import folder_here

    job = queries.run(ws.tracker.db, row["run"])["config"]
    asked = job["settings"]["distill"]["prompts"]
    try:
        now = ws.config.distill.model_dump()
    except InputError:  # without settings that can be read the command names all of them
        now = {}
    now["prompts"] = companions(folder_here(ws, Path(job["docs"]))).get("prompts", now.get("prompts"))
    if Path(asked).is_absolute() and not Path(asked).exists():  # as of a home that was moved
        now["prompts"] = asked
    return ws.command(*_longer_recovery(row["cycle"], job, now))


def _longer_recovery(cycle: int, job: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the words of the command that goes on with a cycle's recovery as its recorded job has begun it;
    `now` are the settings of recovery that the command finds itself: any that it does not find are named.

    Another seed, or the same prompts would come in the same order; and no second mixture of clean weights."""
    began = job["settings"]["distill"]
    words = ["distill", "--student", f"cycle:{cycle}"]
    if job.get("recover_with") != "merge":  # which reads none of these
        for name in ("prompts", "method", "rehearsal"):
            if (given := began.get(name, now.get(name))) != now.get(name):
                words += [f"--{name}", str(given)]
    if now.get("merge") != 0:
        words += ["--merge", "0"]
    return [*words, "--seed", str(job["seed"] + 1)]


def axis_line(name: str, verdict: dict[str, Any]) -> str:
    """Return an axis's word, the bound that it rests on, and how many prompts would decide."""
    from evals import looks
    from evals.verdict_sentences import deciding_bound, nothing_to_lose

    axis = verdict["axes"].get(name, {})
    if axis.get("lower_bound") is None:
        return f"{name:<10} {verdict[name]}"
    margin = 100 * axis["margin"]
    limit = f"margin {margin:g}" if margin > 0 else f"a lead of {-margin:g} is needed"
    bound = f"{deciding_bound(axis)} points, {limit}"
    found = axis["details"].get("learned")
    said = f", {learned.sentence(found)}" if found else ""
    beside = looks.in_words(axis, axis["details"]), nothing_to_lose(axis["details"])
    said += "".join(f", {words}" for words in beside if words)
    return f"{name:<10} {verdict[name]} ({bound}{_needed(verdict[name], axis)}){said}"


def other_line(name: str, axis: dict[str, Any]) -> str:
    """Return the word of a family or a task, and the bound that it rests on, or why it was not measured."""
    from evals.verdict import TASK_HAS, UNDERPOWERED, is_task
    from evals.verdict_sentences import deciding_bound

    details = axis["details"]
    if axis["lower_bound"] is None or "reason" in details:
        return f"{name:<11} {axis['outcome']} ({details.get('reason', 'nothing to compare')})"
    of = f" of {details['kind']} items" if "kind" in details else ""
    bound = f"{deciding_bound(axis)} points{of}, margin {100 * axis['margin']:g}"
    count = details.get("families", 1)
    at_once = f", for {count} families at once" if count > 1 else ""
    few = axis["outcome"] == UNDERPOWERED and is_task(name) and not is_likely_lost(axis)
    only = f"; {TASK_HAS}" if few else ""
    return f"{name:<11} {axis['outcome']} ({bound}{at_once}{_needed(axis['outcome'], axis)}{only})"


def _needed(outcome: str, axis: dict[str, Any]) -> str:
    """Return what would decide an underpowered claim."""
    from evals.scores import deciding_in_words
    from evals.verdict import UNDERPOWERED

    return f", {deciding_in_words(axis)}" if outcome == UNDERPOWERED else ""


def stale_lines(updates: dict[str, Any]) -> list[str]:
    """Format the share of changed facts that are answered as before the change, by stage."""
    rates = {stage: rate for stage, rate in updates.get("stale_rate", {}).items() if rate is not None}
    parts = [f"{stage} {rate:.3f}" for stage, rate in rates.items()]
    return [f"old answers to changed facts: {', '.join(parts)}"] if parts else []


def cost_lines(row: dict[str, Any]) -> list[str]:
    """Format the time of each stage, and what a recovered point has cost."""
    from dashboard.number_format import duration, short_duration

    costs = row.get("cost_by_stage", {})
    parts = [f"{WORK.get(kind, kind)} {duration(cost['seconds'])}" for kind, cost in costs.items()]
    each = row.get("cost_per_recovered_point")
    if each:
        parts.append(
            f"each recovered point {short_duration(each['seconds'])}, {each.get('flops', 0):.2g} FLOPs"
        )
    return [f"cost       {', '.join(parts)}"] if parts else []
