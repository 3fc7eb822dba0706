"""locate, retrieval: which weights forgot, and whether looking it up would have done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from db.cycle_names import AXES, NOT_MEASURED, UPDATES
from pipelines.cli import options as common
from pipelines.cli import setting_options
from pipelines.cli.options import Session, shared
from pipelines.cli.table import table

ALWAYS_SHOWN = [name for name in AXES if name != UPDATES]

Row = dict[str, Any]


@click.command("locate")
@click.argument("checkpoint", metavar="CHECKPOINT|cycle:N")
@common.count("--groups", 4, "number of groups to divide the layers into")
@common.suites("ifeval, and with it knowledge, retention (default: all that have questions)")
@setting_options.ifeval
@setting_options.probes
@setting_options.limit
@setting_options.answering
@setting_options.ask_anew
@shared
@click.pass_obj
def locate_command(session: Session, checkpoint: str, groups: int, suites: str | None) -> None:
    """Find the weights that forgot.

    Puts the clean weights back into a midtrained checkpoint part by part, evaluates each mixture, and names
    the smallest set of parts that is enough. Each mixture is written as a checkpoint of the model's size.

    \b
    recover locate cycle:1
    """
    with session.workspace() as ws:
        from pipelines.job_from_options.measure import locate_job
        from pipelines.locate import locate

        job = locate_job(ws, checkpoint, groups, suites, changes=session.changes)
        found = locate(ws, job, key=ws.new_key())
        session.show(found, lambda: locate_text(found))


def locate_text(found: Row) -> str:
    """Format all that was tried, by each axis that it was judged on, and the conclusion."""
    tried = [*found["parts"], *found["sets"]]
    axes = list(dict.fromkeys([*ALWAYS_SHOWN, *(name for row in tried for name in row["axes"])]))
    said = f"{', '.join(axes)}: points of difference from what sets the standard, with both bounds"
    return f"{table([_mixture(row, axes) for row in tried])}\n{said}\n\n{found['words']}"


def _mixture(row: Row, axes: Sequence[str]) -> Row:
    shown: Row = {"put back": ", ".join(row["parts"]), "moved": row["moved"]}
    shown |= {name: _in_points(row["axes"].get(name)) for name in axes}
    return shown | {"enough": "yes" if row["passed"] else "no"}


def _in_points(axis: Row | None) -> str | None:
    if not axis:
        return None
    if axis["outcome"] == NOT_MEASURED:
        return NOT_MEASURED
    difference, low, high = (100 * axis[name] for name in ("difference", "lower_bound", "upper_bound"))
    return f"{difference:+.1f} [{low:+.1f}, {high:+.1f}]"


@click.command("retrieval")
@click.argument("checkpoint", default="current")
@common.documents("documents to search (default: all that the checkpoint was trained on)")
@common.count("--passages", 3, "passages to put before a question")
@setting_options.probes
@setting_options.limit
@setting_options.answering
@shared
@click.pass_obj
def retrieval_command(session: Session, checkpoint: str, docs: Path | None, passages: int) -> None:
    """Compare training with looking answers up in the documents.

    Asks the trained checkpoint without passages and with those that BM25 finds, and the clean model without
    passages, with those, and with the true one. CHECKPOINT base is the clean model alone, asked about the
    documents of the newest midtraining, or before any about --docs with --probes.
    """
    with session.workspace(docs=docs) as ws:
        from pipelines.job_from_options.measure import retrieval_job
        from pipelines.retrieval import retrieval

        job = retrieval_job(ws, checkpoint, docs, passages, changes=session.changes)
        found = retrieval(ws, job, key=ws.new_key())
        session.show(found, lambda: retrieval_text(found))


def retrieval_text(found: Row) -> str:
    """Format every way to answer, and the conclusion; multihop questions apart."""
    parts = [f"{_ways_text(found, 'questions')}\n{found['words']}"]
    if found.get("multihop"):
        parts.append("Multihop questions, which two documents answer only together:")
        parts.append(_ways_text(found["multihop"], "multihop questions"))
    return "\n\n".join(parts)


def _ways_text(found: Row, questions: str) -> str:
    rows = [
        row | {"low": row["interval"][0], "high": row["interval"][1], "tokens": row["tokens_per_answer"]}
        for row in found["ways"]
    ]
    ways = table(rows, ["way", "score", "low", "high", "n", "tokens"])
    return f"{ways}\n\nthe passages hold the answer to {found['found']:.1%} of the {questions}"
