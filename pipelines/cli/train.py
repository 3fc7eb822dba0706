"""midtrain, distill, merge: each makes a new checkpoint out of an old one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipelines.cli.options import Session, shared


@click.command("midtrain")
@click.option("--docs", required=True, type=click.Path(path_type=Path), help="folder of documents")
@click.option("--student", default="current", show_default=True, help="the model to teach")
@click.option("--steps", type=int, help="default: recover.yaml")
@click.option("--epochs", type=float, help="passes over the documents, instead of steps")
@click.option("--learning-rate", type=float, help="default: recover.yaml")
@click.option("--mix", help="shares of the tokens, as in new=0.6,earlier=0.3,chat=0.1")
@click.option("--lora", type=int, metavar="RANK", help="train an adapter of this rank; 0: all weights")
@click.option("--prompts", help="chat prompts for the chat share")
@click.option("--seed", type=int)
@shared
@click.pass_obj
def midtrain_command(session: Session, docs: Path, student: str, **options: Any) -> None:
    """Teach the student a folder of documents; prints the new checkpoint's id."""
    from pipelines.commands import midtrain_job
    from pipelines.midtrain import midtrain

    with session.workspace() as ws:
        found = midtrain(ws, midtrain_job(ws, docs, student, **options), key=ws.new_key())
        session.show(found, found["checkpoint"])


@click.command("distill")
@click.option("--teacher", default="base", show_default=True, help="the frozen clean checkpoint, or another")
@click.option("--student", help="default: the newest midtrained checkpoint")
@click.option("--method", help="a row of `recover methods` (default: recover.yaml)")
@click.option("--set", "dials", multiple=True, metavar="DIAL=VALUE", help="set a dial of the method by hand")
@click.option("--prompts", help="FILE, hub:NAME:SPLIT:FIELD, or microworld (default: recover.yaml)")
@click.option("--steps", type=int)
@click.option("--learning-rate", type=float)
@click.option("--lora", type=int, metavar="RANK", help="train an adapter of this rank; 0: all weights")
@click.option("--seed", type=int)
@shared
@click.pass_obj
def distill_command(session: Session, teacher: str, student: str | None, **options: Any) -> None:
    """Bring the student's behaviour back from the teacher; prints the new checkpoint's id."""
    from pipelines.commands import distill_job
    from pipelines.distill import distill

    with session.workspace() as ws:
        found = distill(ws, distill_job(ws, teacher, student, **options), key=ws.new_key())
        ws.tracker.set_alias("current", found["checkpoint"])
        session.show(found, found["checkpoint"])


@click.command("merge")
@click.option("--with", "other", default="base", show_default=True, help="the checkpoint to mix in")
@click.option("--weight", required=True, type=float, help="its share, from 0 to 1")
@click.option("--student", help="default: the newest midtrained checkpoint")
@shared
@click.pass_obj
def merge_command(session: Session, other: str, weight: float, student: str | None) -> None:
    """Mix the weights of two checkpoints: the training-free baseline."""
    from pipelines.commands import newest_midtrained
    from pipelines.merge import MergeJob, merge

    with session.workspace() as ws:
        job = MergeJob(
            student=ws.checkpoint(student or newest_midtrained(ws)).id, other=ws.checkpoint(other).id, weight=weight
        )
        found = merge(ws, job, key=ws.new_key())
        session.show(found, found["checkpoint"])
