"""eval, compare: what a checkpoint can do, and how two differ."""

from __future__ import annotations

from typing import Any

import click

from pipelines.cli.options import Session, shared, table


@click.command("eval")
@click.argument("checkpoint", required=False)
@click.option("--suite", "suites", help="ifeval, knowledge, retention; several with commas (default: all)")
@click.option("--ifeval", help="FILE in IFEval's format (default: recover.yaml)")
@click.option("--probes", help="FILE of knowledge and retention probes")
@click.option("--responses", help="score this FILE of {prompt, response} lines instead of a model")
@shared
@click.pass_obj
def eval_command(session: Session, checkpoint: str | None, suites: str | None, **options: str | None) -> None:
    """Score a checkpoint (default: current), or a file of recorded responses."""
    from pipelines.commands import eval_job
    from pipelines.evaluate import evaluate, score_responses

    if options["responses"]:
        scores = score_responses(options["responses"], options["ifeval"])
        session.show({"scores": scores}, lambda: score_table(scores))
        return
    with session.workspace() as ws:
        job = eval_job(ws, checkpoint, suites, options["ifeval"], options["probes"])
        found = evaluate(ws, job, key=ws.new_key())
        session.show(found, lambda: score_table(found["scores"]))


def score_table(scores: dict[str, Any]) -> str:
    rows = [
        {"suite": name, **row, "low": row["interval"][0], "high": row["interval"][1]}
        for name, row in scores.items()
    ]
    return table(rows, ["suite", "score", "n", "low", "high"])


@click.command("compare")
@click.argument("a")
@click.argument("b")
@click.option("--suite", default="ifeval", show_default=True, help="ifeval, knowledge or retention")
@shared
@click.pass_obj
def compare_command(session: Session, a: str, b: str, suite: str) -> None:
    """Two checkpoints on the same prompts: difference, flips, and whether it can be told."""
    from pipelines.compare import compare, compare_text

    with session.workspace() as ws:
        found = compare(ws, a, b, suite)
        session.show(found, lambda: compare_text(found))
