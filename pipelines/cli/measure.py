"""eval, compare, flips, drift: what a checkpoint can do, and how two differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from db.cycle_names import UPDATES
from evals.scores import notes_by_suite
from pipelines.cli import options as common
from pipelines.cli import setting_options
from pipelines.cli.options import Session, refuse_beside, shared
from pipelines.cli.table import table
from recovery.errors import InputError


@click.command("eval")
@click.argument("checkpoint", required=False)
@common.suites(
    "ifeval, knowledge, retention, updates, json, tools, refusals, multi-turn, calibration, or any task "
    "of lm-eval such as gsm8k; several with commas (default: all that have questions; with --ifeval, "
    "--further or --probes those of that file, and with --probes the general questions where it asks none "
    "about retention)"
)
@setting_options.ifeval
@setting_options.further
@setting_options.probes
@setting_options.tasks
@setting_options.chat
@setting_options.samples
@setting_options.limit
@setting_options.stop_loops
@click.option(
    "--output", type=common.Place(), metavar="DIR", help="also write lm-eval's own JSON and samples there"
)
@setting_options.answering
@click.option(
    "--responses",
    type=common.Place(),
    metavar="FILE",
    help="score these lines of {prompt, response} instead of a model",
)
@shared
@click.pass_obj
def eval_command(
    session: Session, checkpoint: str | None, suites: str | None, output: Path | None, responses: Path | None
) -> None:
    """Score a checkpoint, or a file of recorded responses.

    CHECKPOINT is `current` by default. The answers and scores are recorded, so that `recover compare` and
    `recover flips` can pair them.

    \b
    recover eval base --suite ifeval,gsm8k
    recover eval --probes probes.jsonl
    recover eval --responses answers.jsonl --ifeval prompts.jsonl
    """
    changes = session.changes
    if responses:
        from pipelines.evaluate import score_responses

        refuse_beside("--responses", lambda name: name not in ("responses", "ifeval"))
        scores = score_responses(responses, changes.get("eval.ifeval"))
        session.show({"scores": scores}, lambda: score_table(scores))
        return
    with session.workspace() as ws:
        from evals.tasks import names as task_names

        # Before anything heavy is imported, or a large checkpoint verified.
        task_names.require_listed(suites, changes.get("eval.tasks") or ws.config.eval.tasks)
        from pipelines.evaluate import evaluate
        from pipelines.job_from_options.measure import eval_job

        job = eval_job(ws, checkpoint, suites, output=output, changes=changes)
        found = evaluate(ws, job, key=ws.new_key())
        session.show(found, lambda: score_table(found["scores"]))


def score_table(scores: dict[str, Any]) -> str:
    rows = [
        {"suite": name, **row, "low": row["interval"][0], "high": row["interval"][1]}
        for name, row in scores.items()
    ]
    stale = ["stale_rate"] if any("stale_rate" in row for row in rows) else []
    shown = table(rows, ["suite", "score", "n", "low", "high", *stale])
    return "\n".join([shown, *(f"note: {said}" for said in notes_by_suite(scores))])


@click.command("compare")
@click.argument("a")
@click.argument("b")
@click.option(
    "--suite",
    metavar="NAME",
    help="compare only this suite (default: all that both were evaluated on, without those on the documents "
    "of earlier cycles, knowledge:N)",
)
@shared
@click.pass_obj
def compare_command(session: Session, a: str, b: str, suite: str | None) -> None:
    """Test the differences between two checkpoints.

    On the prompts that both were evaluated on: difference, interval, flips, significance, and whether B is
    worse than A by no more than the margin.

    \b
    recover compare base current
    """
    with session.workspace() as ws:
        from pipelines.compare import compare, compare_text

        found = compare(ws, a, b, suite)
        session.show(found, lambda: compare_text(found))


@click.command("flips")
@click.argument("references", nargs=-1, metavar="[cycle:N | A B]")
@click.option("--suite", metavar="NAME", help="list only this suite")
@click.option("--gained", is_flag=True, help="list only items that pass now")
@click.option("--lost", is_flag=True, help="list only items that fail now")
@common.count("--limit", 20, "list at most N items")
@shared
@click.pass_obj
def flips_command(
    session: Session, /, references: tuple[str, ...], gained: bool, lost: bool, **options: Any
) -> None:
    """List items that flip between pass and fail.

    Without arguments: counts for all cycles.

    \b
    recover flips cycle:1 --lost
    recover flips base current --suite ifeval
    """
    from pipelines.flips import flips

    direction = _direction(gained, lost)
    if not references:
        if direction:
            raise InputError(f"--{direction} lists items: name cycle:N, or two checkpoints")
        refuse_beside("all cycles, which are only counted", lambda name: name == "limit")
    with session.workspace() as ws:
        found = flips(ws, references, direction=direction, **options)
        session.show(found, lambda: flips_text(found))


def _direction(gained: bool, lost: bool) -> str | None:
    """Return the only direction to list, if there is one."""
    if gained and lost:
        raise InputError("--gained and --lost: give one of them, or neither to list both")
    if gained:
        return "gained"
    return "lost" if lost else None


def flips_text(found: dict[str, Any]) -> str:
    from evals import comparison

    where = ["cycle", "before", "after"] if "a" not in found else []
    changed = any(row["suite"] == UPDATES for row in found["counts"])
    stale = ["stale"] if changed else []
    counts = [row | {"suite": comparison.name(row)} for row in found["counts"]]
    text = table(counts, [*where, "suite", "n", "gained", "lost", *stale])
    shown = [
        row
        | {"suite": comparison.name(row)}
        | {name: _short(row[name]) for name in ("prompt", "response_a", "response_b")}
        for row in found["flips"]
    ]
    if not shown:
        return text
    answered = ["answered_a", "answered_b"] if changed else []
    columns = [*where, "suite", "key", "direction", *answered, "prompt", "response_a", "response_b"]
    return f"{text}\n\n{table(shown, columns)}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 40 else line[:39] + "…"


@click.command("drift")
@click.argument("a")
@click.argument("b")
@setting_options.prompts()
@common.count("--count", 64, "number of prompts", least=2)
@common.count("--max-new-tokens", 96, "longest answer, in tokens")
@setting_options.seed
@shared
@click.pass_obj
def drift_command(session: Session, a: str, b: str, count: int, max_new_tokens: int) -> None:
    """Measure how far checkpoint B has moved from A.

    Both answer the prompts; the divergence of B from A is estimated on A's answers, and on the documents that
    B was last trained on.
    """
    with session.workspace() as ws:
        from pipelines.drift import drift, drift_text
        from pipelines.job_from_options.measure import drift_job

        job = drift_job(ws, a, b, count=count, max_new_tokens=max_new_tokens, changes=session.changes)
        found = drift(ws, job, key=ws.new_key())
        session.show(found, lambda: drift_text(found))
