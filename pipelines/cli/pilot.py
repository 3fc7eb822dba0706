"""pilot: what rate and length a budget of behaviour allows, before the whole midtraining is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipelines.cli import options as common
from pipelines.cli import setting_options
from pipelines.cli.options import Session, processes, shared
from pipelines.cli.table import table
from recovery.counted import counted
from recovery.errors import GateError

Row = dict[str, Any]
COLUMNS = {"KL": "kl", "learned": "learned", "behaviour lost": "behaviour_lost"}


@click.command("pilot")
@common.docs
@click.option(
    "--budget",
    required=True,
    type=float,
    metavar="POINTS",
    help="points of IFEval that midtraining may cost, before recovery; recovery brings part of it back",
)
@common.student
@click.option(
    "--rates",
    metavar="LOW,HIGH",
    help="two learning rates (default: that of recover.yaml, and a quarter of it)",
)
@click.option(
    "--share",
    type=float,
    default=0.125,
    show_default=True,
    metavar="SHARE",
    help="share of the documents to train on",
)
@setting_options.mix
@setting_options.freeze_embeddings
@setting_options.prompts()
@setting_options.probes
@setting_options.ifeval
@setting_options.ask_anew
@setting_options.strict
@setting_options.seed
@processes
@shared
@click.pass_obj
def pilot_command(session: Session, /, docs: Path, budget: float, **options: Any) -> None:
    """Propose learning rate, length and recovery for a folder.

    Midtrains twice on a share of the documents, and prints what the whole midtraining would teach and cost,
    with 95 % intervals, and the `recover cycle` command for it. `current` stays as it is. Exit code 3:
    nothing can be proposed.

    \b
    recover pilot --docs ./corpus --budget 5
    """
    with session.workspace(docs=docs) as ws:
        from pipelines.job_from_options.pilot import pilot_job
        from pipelines.pilot import pilot

        job = pilot_job(ws, docs, budget, **options, changes=session.changes)
        found = pilot(ws, job, key=ws.new_key())
        session.show(found, lambda: pilot_text(found))
        require_proposal(found)


def require_proposal(found: Row) -> None:
    """Exit with code 3 for a pilot that proposes nothing."""
    if found["proposal"] is None:
        raise GateError(found["words"])


def pilot_text(found: Row) -> str:
    """Format what was measured, what is expected, and the proposed command."""
    measured = [
        {
            "rate": f"{row['rate']:.3g}",
            "passes": row["points"][-1]["passes"],
            "KL": row["kl"],
            "learned": row["learned"],
            "behaviour lost": _interval(row["behaviour_lost"]),
        }
        for row in found["pilots"]
    ]
    lines = [
        table(measured),
        "",
        f"{found['sample']['questions']} {found['sample']['asked']} that the student did not answer; "
        f"{counted(found['sample']['sampled_texts'], 'text')}, {found['sample']['sampled_tokens']:,} of "
        f"{found['sample']['tokens']:,} tokens",
    ]
    if found["law"]:
        lines.append(f"how much IFEval a KL of 1 nat costs: measured on {found['law']['source']}")
    expected = {"as configured": found["planned"], "proposed": found["proposal"]}
    rows = [
        {
            "": name,
            "rate": f"{row['rate']:.3g}",
            "steps": row["steps"],
            **{name: _interval(row[key]) for name, key in COLUMNS.items()},
        }
        for name, row in expected.items()
        if row
    ]
    if rows:
        lines += ["", table(rows)]
    return "\n".join([*lines, "", found["words"], *([found["command"]] if found["command"] else [])])


def _interval(estimate: Row | None) -> str | None:
    if estimate is None:
        return None
    return f"{estimate['value']:.3f} [{estimate['low']:.3f}, {estimate['high']:.3f}]"
