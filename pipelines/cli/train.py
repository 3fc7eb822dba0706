"""midtrain, distill, merge: each makes a new checkpoint out of an old one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli import options as common
from pipelines.cli import setting_options
from pipelines.cli.options import Session, processes, shared
from pipelines.cli.table import table
from recovery.errors import InputError

if TYPE_CHECKING:
    from pipelines.runs.workspace import Workspace


@click.command("midtrain")
@common.docs
@common.student
@setting_options.midtrain_method("--method")
@setting_options.steps("midtrain")
@setting_options.epochs("--epochs")
@setting_options.learning_rate("midtrain")
@setting_options.mix
@common.augment
@setting_options.lora("midtrain")
@setting_options.freeze_embeddings
@setting_options.prompts("prompts that the clean model answers for the mix's chat")
@setting_options.strict
@setting_options.seed
@processes
@shared
@click.pass_obj
def midtrain_command(session: Session, docs: Path, student: str, augment: Path | None) -> None:
    """Train a checkpoint on a folder of documents.

    Prints the id of the new checkpoint.

    \b
    recover midtrain --docs ./corpus
    recover midtrain --docs ./corpus --epochs 4 --mix new=0.7,chat=0.3
    """
    with session.workspace(docs=docs) as ws:
        from pipelines.job_from_options.train import midtrain_job
        from pipelines.midtrain import midtrain

        job = midtrain_job(ws, docs, student, augment=augment, changes=session.changes)
        found = midtrain(ws, job, key=ws.new_key())
        _say_next(ws, found["checkpoint"])
        session.show(found, found["checkpoint"])


def _say_next(ws: Workspace, midtrained: str) -> None:
    """Say that `current` is another model than the midtrained one, and what goes on with that."""
    onward, asked = (ws.command(*words) for words in (["distill"], ["eval", midtrained]))
    ws.progress.say(
        f"  next         `{onward}` brings its behaviour back, `{asked}` asks it; `current` stays as it was"
    )


@click.command("distill")
@common.teacher
@click.option(
    "--student", metavar="CHECKPOINT", help="checkpoint to train (default: the newest midtrained one)"
)
@setting_options.method
@setting_options.dials
@setting_options.prompts()
@setting_options.response_pairs
@setting_options.context
@setting_options.reward
@setting_options.routes
@setting_options.steps("distill")
@setting_options.learning_rate("distill")
@setting_options.lora("distill")
@setting_options.overlap
@setting_options.merge
@setting_options.rehearsal
@setting_options.tripwire
@common.documents("documents of the midtraining (default: as recorded)")
@setting_options.stop_when_recovered
@setting_options.sampler
@setting_options.ahead
@setting_options.teacher_engine
@setting_options.seed
@click.option(
    "--show-prompts",
    "shown",
    type=click.IntRange(1),
    metavar="N",
    help="print N prompts as student and teacher read them, and train nothing",
)
@processes
@shared
@click.pass_obj
def distill_command(
    session: Session, teacher: str, student: str | None, docs: Path | None, shown: int | None
) -> None:
    """Bring a checkpoint's behaviour back from a teacher.

    Prints the id of the new checkpoint.

    \b
    recover distill --teacher base
    recover distill --method opd --set temperature=0.8 --prompts prompts.jsonl
    recover distill --show-prompts 2
    """
    with session.workspace(docs=docs) as ws:
        from pipelines.distill import distill_alone
        from pipelines.distillation.dry_run import show_prompts
        from pipelines.job_from_options.train import distill_job

        job = distill_job(ws, teacher, student, docs=docs, changes=session.changes)
        if shown:
            rows = show_prompts(ws, job, shown)
            session.show(rows, "\n\n".join(map(_side_by_side, range(1, shown + 1), rows)))
            return
        found = distill_alone(ws, job, key=ws.new_key())
        session.show(found, found["checkpoint"])


def _side_by_side(number: int, row: dict[str, str]) -> str:
    return "\n".join(f"[{number}] {side}\n{text}" for side, text in row.items())


@click.command("merge")
@click.option(
    "--with", "other", default="base", show_default=True, metavar="CHECKPOINT", help="checkpoint to mix in"
)
@click.option("--weight", type=float, metavar="W", help="share of the --with checkpoint, from 0 to 1")
@click.option(
    "--sweep", "weights", metavar="W,W", help="merge with each of these shares and evaluate the results"
)
@click.option(
    "--student", metavar="CHECKPOINT", help="checkpoint to mix into (default: the newest midtrained one)"
)
@click.option(
    "--method",
    "kind",
    type=click.Choice(["linear", "slerp", "residual", "embeddings"]),
    default="linear",
    show_default=True,
    help="residual: add W * (with - origin); embeddings: mix only embeddings and output head",
)
@click.option(
    "--origin", metavar="CHECKPOINT", help="with residual: checkpoint that --with was fine-tuned from"
)
@click.option(
    "--keep",
    type=float,
    default=1.0,
    show_default=True,
    metavar="SHARE",
    help="with residual: add this share of each tensor's entries, the largest",
)
@click.option(
    "--elect-signs",
    is_flag=True,
    help="with residual: leave out entries that a larger change of the student's own opposes (TIES)",
)
@common.suites("with --sweep: suites to ask (default: all that have questions)")
@setting_options.ifeval
@setting_options.probes
@shared
@click.pass_obj
def merge_command(
    session: Session, /, weight: float | None, weights: str | None, suites: str | None, **mixed: Any
) -> None:
    """Mix the weights of two checkpoints, without training.

    \b
    recover merge --weight 0.3
    recover merge --sweep 0.1,0.2,0.4 --suite ifeval,knowledge
    """
    if (weight is None) == (weights is None):
        raise click.UsageError("give one of --weight W and --sweep W,W")
    with session.workspace() as ws:
        from pipelines.job_from_options.train import merge_job, sweep_job
        from pipelines.merge import merge
        from pipelines.sweep import sweep

        if weights is not None:
            swept = sweep_job(ws, weights, merge_job(ws, 0.0, **mixed), suites, session.changes)
            found = sweep(ws, swept, key=ws.new_key())
            session.show(found, lambda: table(found["points"]))
            return
        _refuse_of_sweep(session, suites)
        found = merge(ws, merge_job(ws, float(weight or 0), **mixed), key=ws.new_key())
        session.show(found, found["checkpoint"])


def _refuse_of_sweep(session: Session, suites: str | None) -> None:
    """Refuse options that a single merge would ignore."""
    typed = [*(["suite"] if suites else []), *(key.removeprefix("eval.") for key in session.changes)]
    if typed:
        raise InputError(f"--{typed[0]} has no effect with --weight: it belongs to --sweep")
