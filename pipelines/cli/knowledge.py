"""augment, probes, lost: what documents are made into, and what became of it in a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipelines.cli import setting_options
from pipelines.cli.options import Session, shared, table

DOCS = click.option("--docs", required=True, type=click.Path(path_type=Path), help="folder of documents")
WRITER = click.option(
    "--writer",
    metavar="base|CHECKPOINT|URL|gaps|template",
    show_default=True,
    help="the writer: a checkpoint, an OpenAI-compatible endpoint (key: RECOVER_API_KEY), gaps in the "
    "documents' sentences, or, for the microworld, its own patterns",
)
MODEL = click.option("--model", "name", help="name of the model at the endpoint")


@click.command("augment")
@DOCS
@click.option("--out", required=True, type=click.Path(path_type=Path), help="folder for augmented.jsonl")
@click.option(
    "--kinds", default="qa,paraphrase,relations,summary", show_default=True, help="kinds of text to write"
)
@WRITER
@MODEL
@click.option(
    "--questions", default=4, show_default=True, type=click.IntRange(1), help="most questions per passage"
)
@click.option("--probes", help="FILE of probes that must not leak (default: beside the documents)")
@click.option(
    "--max-new-tokens", default=512, show_default=True, type=click.IntRange(1), help="longest text, in tokens"
)
@click.option(
    "--temperature",
    default=0.7,
    show_default=True,
    type=click.FloatRange(0),
    help="sampling temperature of the writer",
)
@shared
@click.pass_obj
def augment_command(session: Session, /, docs: Path, out: Path, **options: Any) -> None:
    """Retell documents as questions, paraphrases, relations and summaries, for midtrain --augment."""
    from pipelines.writing.commands import AugmentOptions, augment_documents

    with session.workspace(docs=docs) as ws:
        found = augment_documents(ws, docs, out, AugmentOptions(**options))
        session.show(found, lambda: _kept(found))


def _kept(found: dict[str, Any]) -> str:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in found["by_kind"].items()) or "nothing"
    refused = ", ".join(f"{count:,} {why}" for why, count in found["refused"].items()) or "nothing"
    return f"{found['path']}: {kinds}\nrefused: {refused}"


@click.command("probes")
@DOCS
@click.option("--out", required=True, type=click.Path(path_type=Path), help="FILE to write")
@click.option("--qa", type=click.Path(path_type=Path), help="FILE of your own questions (default: qa.jsonl)")
@WRITER
@MODEL
@click.option(
    "--count", default=100, show_default=True, type=click.IntRange(1), help="number of facts to ask about"
)
@click.option("--seed", default=0, show_default=True, help="draws the facts")
@shared
@click.pass_obj
def probes_command(session: Session, /, docs: Path, out: Path, **options: Any) -> None:
    """Make knowledge probes: your own questions, a writer's, or (without --writer) gaps in sentences."""
    from pipelines.writing.commands import ProbeOptions, make_probes

    with session.workspace(docs=docs) as ws:
        found = make_probes(ws, docs, out, ProbeOptions(**options))
        kinds = ", ".join(f"{count} {kind}" for kind, count in found["by_kind"].items())
        statuses = ", ".join(f"{count} {name}" for name, count in found["by_fact_status"].items())
        session.show(found, f"{found['path']}: {kinds} ({found['made_from']})\nfacts: {statuses}")


@click.command("lost")
@click.argument("checkpoint", default="current")
@click.option("--suite", default="knowledge", show_default=True, help="knowledge, retention or updates")
@setting_options.probes
@shared
@click.pass_obj
def lost_command(session: Session, checkpoint: str, suite: str) -> None:
    """Sort the questions that a checkpoint fails into unreachable facts and lost ones."""
    from pipelines.unreachable_facts import lost

    with session.workspace() as ws:
        found = lost(ws, checkpoint, suite, session.changes)
        session.show(found, lambda: _lost_text(found))


def _lost_text(found: dict[str, Any]) -> str:
    columns = ["kind", "asked", "failed", "unreachable", "eroded", "back"]
    return f"{found['words']}\n{table(found['by_kind'], columns)}"
