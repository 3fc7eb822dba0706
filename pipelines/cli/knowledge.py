"""augment, probes, lost: what documents are made into, and what became of it in a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from evals.probes import KNOWLEDGE, PROBE_SUITES
from pipelines.cli import options as common
from pipelines.cli import setting_options
from pipelines.cli.options import Session, refuse_beside, shared
from pipelines.cli.table import table
from pipelines.writing.protocol import is_endpoint

ENDPOINT = "a checkpoint, the URL of an OpenAI-compatible endpoint (key: RECOVER_API_KEY)"
MODEL = click.option("--model", "name", metavar="NAME", help="name of the model at the endpoint")


@click.command("augment")
@common.docs
@click.option("--out", required=True, type=common.Place(), metavar="DIR", help="folder for augmented.jsonl")
@click.option(
    "--kinds",
    default="qa,paraphrase,relations,summary",
    show_default=True,
    metavar="NAMES",
    help="kinds of text to write",
)
@click.option(
    "--writer",
    metavar="base|CHECKPOINT|URL|gaps|template",
    help=f"{ENDPOINT}, gaps (blanked words of the documents), or template (the microworld's patterns) "
    "(default: base)",
)
@MODEL
@common.count("--questions", 8, "most questions per passage")
@click.option(
    "--probes",
    type=common.Place(),
    metavar="FILE",
    help="probes that must not leak into the text (default: the evaluation's)",
)
@common.count("--max-new-tokens", 512, "longest text, in tokens")
@click.option(
    "--temperature",
    default=0.7,
    show_default=True,
    type=common.Number(0),
    metavar="T",
    help="sampling temperature of the writer",
)
@shared
@click.pass_obj
def augment_command(session: Session, /, docs: Path, out: Path, **options: Any) -> None:
    """Rewrite documents as questions, paraphrases and summaries.

    `recover midtrain --augment DIR` then trains on them as well.

    \b
    recover augment --docs ./corpus --out ./augmented
    recover augment --docs ./corpus --out ./augmented --writer http://127.0.0.1:8000/v1 --model NAME
    """
    if options["writer"] in ("gaps", "template"):
        read = ("docs", "out", "writer", "probes")
        refuse_beside(f"--writer {options['writer']}", lambda name: name not in read)
    _refuse_model_of(options["writer"] or "base")
    with session.workspace(docs=docs) as ws:
        from pipelines.writing.commands import AugmentOptions, augment_documents

        found = augment_documents(ws, docs, out, AugmentOptions(**options))
        session.show(found, lambda: _augment_text(found))


def _refuse_model_of(writer: str) -> None:
    """Refuse the name of an endpoint's model where no endpoint writes."""
    if not is_endpoint(writer):
        refuse_beside(f"--writer {writer}", lambda name: name == "name")


def _augment_text(found: dict[str, Any]) -> str:
    lines = [f"{found['path']}: {_kinds(found['by_kind'])}", _refusals_text(found)]
    if found["dropped"]:
        lines.append(f"no longer in it: {_kinds(found['dropped'])} (one command writes all kinds)")
    return "\n".join(lines)


def _kinds(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items()) or "nothing"


def _refusals_text(found: dict[str, Any]) -> str:
    """Return how many written texts were refused for each reason."""
    reasons = ", ".join(f"{count:,} {why}" for why, count in found["refused"].items())
    return f"refused: {reasons or 'nothing'}"


@click.command("probes")
@common.docs
@click.option(
    "--out",
    required=True,
    type=common.Place(dir_okay=False),
    metavar="FILE",
    help="file to write",
)
@click.option(
    "--qa",
    type=common.Place(),
    metavar="FILE",
    help="questions of your own (default: qa.jsonl in or beside the folder)",
)
@click.option(
    "--writer",
    metavar="base|CHECKPOINT|URL|gaps",
    help=f"{ENDPOINT}, or gaps (sentences with a word left out) (default: gaps)",
)
@MODEL
@click.option(
    "--count",
    type=click.IntRange(1),
    metavar="N",
    help="number of questions; where the documents have fewer sentences, up to three gaps of each "
    "(default: as many as a verdict needs, 725 at a margin of 3 points)",
)
@common.count("--max-new-tokens", 128, "longest text of a writer, in tokens: more for one that thinks first")
@click.option("--seed", type=common.SEED, metavar="N", help="draws the facts (default: as in recover.yaml)")
@shared
@click.pass_obj
def probes_command(session: Session, /, docs: Path, out: Path, **options: Any) -> None:
    """Make knowledge probes: questions about the documents.

    From your own questions (--qa), else a writer's (--writer), else from sentences with a gap.

    \b
    recover probes --docs ./corpus --out probes.jsonl
    recover probes --docs ./corpus --out probes.jsonl --qa questions.jsonl
    """
    if options["qa"]:
        refuse_beside("--qa", lambda name: name not in ("docs", "out", "qa"))
    if options["writer"] in (None, "gaps"):
        refuse_beside("--writer gaps", lambda name: name == "max_new_tokens")
    _refuse_model_of(options["writer"] or "gaps")
    with session.workspace(docs=docs) as ws:
        from pipelines.writing.commands import ProbeOptions, make_probes

        found = make_probes(ws, docs, out, ProbeOptions(**options))
        session.show(found, lambda: _probes_text(found))


def _probes_text(found: dict[str, Any]) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in found["by_kind"].items())
    statuses = ", ".join(f"{count} {name}" for name, count in found["facts"].items())
    refused = _refusals_text(found) if found["refused"] else None
    remarks = filter(None, (refused, *(found[key] for key in ("gaps", "power", "tables", "repeated"))))
    return "\n".join([f"{found['path']}: {kinds} ({found['made_from']})", f"facts: {statuses}", *remarks])


@click.command("lost")
@click.argument("checkpoint", default="current")
@click.option(
    "--suite",
    default=KNOWLEDGE,
    show_default=True,
    type=click.Choice(PROBE_SUITES),
    help="suite whose failed questions to sort",
)
@setting_options.probes
@shared
@click.pass_obj
def lost_command(session: Session, checkpoint: str, suite: str) -> None:
    """Sort failed questions into unreachable facts and lost ones.

    A fact is unreachable when the model still ranks its answer first among answers of its kind: a short
    recovery brings most of these back. CHECKPOINT is `current` by default.
    """
    with session.workspace() as ws:
        from pipelines.unreachable_facts import lost

        found = lost(ws, checkpoint, suite, session.changes)
        session.show(found, lambda: _lost_text(found))


def _lost_text(found: dict[str, Any]) -> str:
    columns = ["kind", "asked", "failed", "unreachable", "lost", "back"]
    return f"{found['words']}\n{table(found['by_kind'], columns)}"
