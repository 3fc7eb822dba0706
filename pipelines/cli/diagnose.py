"""locate: which weights lost what the clean model could do."""

from __future__ import annotations

from typing import Any

import click

from pipelines.cli import setting_options
from pipelines.cli.options import Session, shared, table

Row = dict[str, Any]


@click.command("locate")
@click.argument("checkpoint", metavar="CHECKPOINT|cycle:N")
@click.option("--groups", default=4, show_default=True, type=click.IntRange(1), help="of layers, so many")
@click.option("--suite", "suites", help="of ifeval, knowledge, retention (default: all with questions)")
@setting_options.ifeval
@setting_options.probes
@setting_options.limit
@setting_options.answering
@shared
@click.pass_obj
def locate_command(session: Session, checkpoint: str, groups: int, suites: str | None) -> None:
    """Find the weights that forgot: put the clean ones back part by part, and score each mixture.

    Of cycle:N its midtrained checkpoint. Each part that moved is put back into a copy (a checkpoint of the
    model's size) and evaluated; the smallest set that is shown to be enough is offered.
    """
    from pipelines.job_from_options import locate_job
    from pipelines.locate import locate

    with session.workspace() as ws:
        job = locate_job(ws, checkpoint, groups, suites, changes=session.changes)
        found = locate(ws, job, key=ws.new_key())
        session.show(found, lambda: locate_text(found))


def locate_text(found: Row) -> str:
    """Format all that was tried, and the conclusion."""
    rows = [_mixture(row) for row in [*found["parts"], *found["sets"]]]
    return f"{table(rows, list(rows[0]))}\n\n{found['words']}"


def _mixture(row: Row) -> Row:
    shown: Row = {"put back": ", ".join(row["parts"]), "moved": row["moved"]}
    for axis in ("behaviour", "knowledge", "retention"):
        bounds = row["axes"].get(axis)
        shown[axis] = (
            f"{bounds['difference']:+.3f} [{bounds['lower_bound']:+.3f}, {bounds['upper_bound']:+.3f}]"
            if bounds
            else None
        )
    return shown | {"enough": "yes" if row["passed"] else "no"}
