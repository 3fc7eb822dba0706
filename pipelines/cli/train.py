"""midtrain, distill, merge: each makes a new checkpoint out of an old one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipelines.cli.options import Session, several, shared, table


@click.command("midtrain")
@click.option("--docs", required=True, type=click.Path(path_type=Path), help="folder of documents")
@click.option("--student", default="current", show_default=True, help="the model to teach")
@click.option("--steps", type=int, help="default: recover.yaml")
@click.option("--epochs", type=float, help="passes over the documents, instead of steps")
@click.option("--learning-rate", type=float, help="default: recover.yaml")
@click.option("--mix", help="shares of the tokens, as in new=0.6,earlier=0.3,chat=0.1")
@click.option("--augment", type=click.Path(path_type=Path), help="folder written by `recover augment`")
@click.option("--lora", type=click.IntRange(0), metavar="RANK", help="train an adapter of this rank; 0: none")
@click.option(
    "--freeze-embeddings/--train-embeddings",
    default=None,
    help="whether it leaves the embeddings and the head as they are (default: recover.yaml)",
)
@click.option("--prompts", help="chat prompts for the chat share")
@click.option("--strict", is_flag=True, help="stop at the first file that cannot be read")
@click.option("--seed", type=int, help="default: recover.yaml")
@several
@shared
@click.pass_obj
def midtrain_command(session: Session, docs: Path, student: str, **options: Any) -> None:
    """Teach the student a folder of documents; prints the new checkpoint's id."""
    from pipelines.job_from_options import midtrain_job
    from pipelines.midtrain import midtrain

    with session.workspace() as ws:
        found = midtrain(ws, midtrain_job(ws, docs, student, **options), key=ws.new_key())
        session.show(found, found["checkpoint"])


@click.command("distill")
@click.option("--teacher", default="base", show_default=True, help="the frozen clean checkpoint, or another")
@click.option("--student", help="default: the newest midtrained checkpoint")
@click.option("--method", help="a row of `recover methods` (default: recover.yaml)")
@click.option("--set", "dials", multiple=True, metavar="DIAL=VALUE", help="set a dial of the method by hand")
@click.option(
    "--prompts", help="FILE, hub:NAME:SPLIT:FIELD, self (the clean model writes them), or microworld"
)
@click.option("--pairs", help="likewise, rows with a response: for data states, and to show as examples")
@click.option("--context", metavar="TEXT|FILE", help="what the teacher sees and the student does not")
@click.option("--reward", metavar="NAME", help="exact, ifeval, module:function or FILE.py:function")
@click.option("--route", "routes", multiple=True, metavar="NAME=CHECKPOINT", help="that route's teacher")
@click.option("--steps", type=int, help="default: recover.yaml")
@click.option("--learning-rate", type=float, help="default: recover.yaml")
@click.option("--lora", type=click.IntRange(0), metavar="RANK", help="train an adapter of this rank; 0: none")
@click.option(
    "--overlap", type=click.Choice(["drop", "weight", "keep"]), help="prompts about what was just taught"
)
@click.option("--merge", type=float, metavar="SHARE", help="of the teacher's weights, mixed in at the start")
@click.option("--rehearsal", type=float, metavar="SHARE", help="of the tokens: taught documents read again")
@click.option("--tripwire", type=float, metavar="SHARE", help="stop when less of the new knowledge is left")
@click.option("--docs", type=click.Path(path_type=Path), help="what was taught (default: by midtraining)")
@click.option("--stop-when-recovered", is_flag=True, help="stop once behaviour is back on a probe set")
@click.option("--sampler", metavar="WHERE", help="who writes: inprocess, vllm, server, or servers' URLs")
@click.option(
    "--ahead",
    type=click.IntRange(0, 1),
    metavar="0|1",
    help="1: write the next answers while these are trained on",
)
@click.option("--teacher-engine", metavar="WHERE", help="who scores, likewise (opd-topk, opd-sampled)")
@click.option("--seed", type=int, help="default: recover.yaml")
@click.option("--show-prompts", "shown", type=click.IntRange(1), metavar="N", help="print what both read")
@several
@shared
@click.pass_obj
def distill_command(
    session: Session, teacher: str, student: str | None, shown: int | None, **options: Any
) -> None:
    """Bring the student's behaviour back from the teacher; prints the new checkpoint's id."""
    from pipelines.distill import show_prompts
    from pipelines.job_from_options import distill_alone, distill_job

    with session.workspace() as ws:
        job = distill_job(ws, teacher, student, **options)
        if shown:
            rows = show_prompts(ws, job, shown)
            session.show(rows, "\n\n".join(map(_side_by_side, range(1, shown + 1), rows)))
            return
        found = distill_alone(ws, job, key=ws.new_key())
        session.show(found, found["checkpoint"])


def _side_by_side(number: int, row: dict[str, str]) -> str:
    return "\n".join(f"[{number}] {side}\n{text}" for side, text in row.items())


@click.command("merge")
@click.option("--with", "other", default="base", show_default=True, help="the checkpoint to mix in")
@click.option("--weight", type=float, help="its share, from 0 to 1")
@click.option("--sweep", "weights", metavar="W,W,...", help="merge and measure each of these shares")
@click.option("--student", help="default: the newest midtrained checkpoint")
@click.option(
    "--method",
    "kind",
    type=click.Choice(["linear", "slerp", "residual", "embeddings"]),
    default="linear",
    show_default=True,
    help="residual adds share * (with - origin); embeddings mixes those and the head alone",
)
@click.option("--origin", help="residual: the checkpoint that --with was tuned from")
@click.option("--suite", "suites", help="of the sweep: ifeval, knowledge, retention (default: all)")
@click.option("--ifeval", help="of the sweep: FILE in IFEval's format (default: recover.yaml)")
@click.option("--probes", help="of the sweep: FILE of knowledge and retention probes")
@shared
@click.pass_obj
def merge_command(session: Session, weight: float | None, weights: str | None, **options: Any) -> None:
    """Mix the weights of two checkpoints: the training-free baseline."""
    from pipelines.job_from_options import merge_job, sweep_job
    from pipelines.merge import merge
    from pipelines.sweep import sweep

    if (weight is None) == (weights is None):
        raise click.UsageError("give one of --weight W and --sweep W,W,...")
    with session.workspace() as ws:
        if weight is None:
            found = sweep(ws, sweep_job(ws, str(weights), **options), key=ws.new_key())
            session.show(found, lambda: table(found["points"], list(found["points"][0])))
            return
        found = merge(ws, merge_job(ws, weight, **options), key=ws.new_key())
        session.show(found, found["checkpoint"])
