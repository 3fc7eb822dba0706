"""ls, show, export, report, query, methods, dashboard: read what is recorded."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from pipelines.cli.options import Session, finite, shared, table
from recovery.errors import InputError

LISTS = {
    "cycles": ["cycle", "status", "ifeval", "knowledge", "retention", "recovered_fraction"],
    "checkpoints": ["id", "kind", "parent_id", "run_id", "created_at"],
    "runs": ["id", "kind", "key", "status", "started_at", "ended_at"],
}


@click.command("ls")
@click.argument("what", default="cycles", type=click.Choice(list(LISTS)))
@click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(min=1), help="list only the newest N"
)
@shared
@click.pass_obj
def ls_command(session: Session, what: str, limit: int) -> None:
    """List cycles, checkpoints or runs, newest last."""
    from db.reads import queries

    with session.workspace() as ws:
        rows = getattr(queries, what)(ws.tracker.db, limit=limit)
        if what != "cycles":
            rows = rows[::-1]
        shown = [_flat(row) for row in rows] if what == "cycles" else rows
        session.show(rows, lambda: table(shown, LISTS[what]))


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Flatten a cycle: one column for each recovered score."""
    return {**row, **{name: suite["recovered"] for name, suite in row["scores"].items()}}


@click.command("show")
@click.argument("reference", metavar="ID")
@shared
@click.pass_obj
def show_command(session: Session, reference: str) -> None:
    """Show everything about cycle:N, a run or a checkpoint."""
    from pipelines.cli.cycles import cycle_text
    from pipelines.runs.recorded import is_cycle, recorded

    with session.workspace() as ws:
        row = recorded(ws.tracker.db, reference)
        if is_cycle(reference):
            session.show(row, lambda: cycle_text(row))
        else:
            session.show(row, lambda: json.dumps(finite(row), indent=2, ensure_ascii=False, default=str))


@click.command("export")
@click.argument("what", default="cycles", metavar="TABLE")
@click.option("--format", "kind", help="csv, json or parquet (default: by the suffix of --out, else csv)")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="FILE to write (default: standard output)"
)
@shared
@click.pass_obj
def export_command(session: Session, what: str, kind: str | None, out: Path | None) -> None:
    """Export a whole table: cycles, runs, checkpoints, scores, items, metrics, traces, verdicts, reviews,
    documents, aliases or alias_moves."""
    from db.export import FORMATS, export
    from recovery.printable import printable

    ending = out.suffix[1:] if out else ""
    chosen = "json" if session.json else kind or (ending if ending in FORMATS else "csv")
    if chosen == "parquet" and out is None and sys.stdout.isatty():
        raise click.UsageError("parquet is not text: give --out FILE")
    with session.workspace() as ws:
        pieces = export(ws.tracker.db, what, chosen)
        if out is None:
            for piece in pieces:
                click.echo(printable(piece.decode()) if sys.stdout.isatty() else piece, nl=False)
        else:
            write_whole(out, pieces)
            click.echo(out, err=True)


def write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """Replace a file only once the new one is complete."""
    from recovery.storage.atomic_dirs import whole_file

    try:
        with whole_file(path) as file:
            file.writelines(pieces)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}: give another --out") from error


@click.command("report")
@click.argument("reference", metavar="cycle:N")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="FILE to write (default: cycle-N.html)"
)
@shared
@click.pass_obj
def report_command(session: Session, reference: str, out: Path | None) -> None:
    """Write a cycle as one self-contained HTML file without scripts."""
    from dashboard.report import report
    from pipelines.runs.recorded import cycle_number

    number = cycle_number(reference)
    target = out or Path(f"cycle-{number}.html")
    with session.workspace() as ws:
        write_whole(target, [report(ws.tracker.db, number).encode()])
    session.show({"report": str(target)}, str(target))


@click.command("query")
@click.argument("sql")
@shared
@click.pass_obj
def query_command(session: Session, sql: str) -> None:
    """Run a read-only SQL query on the tracker."""
    from db.reads import queries

    with session.workspace() as ws:
        rows = queries.select(ws.tracker.db, sql)
        session.show(rows, lambda: table(rows, list(rows[0]) if rows else []))


@click.command("methods")
@shared
@click.pass_obj
def methods_command(session: Session) -> None:
    """Show the table of post-training methods: each a row of dials."""
    from recovery.methods.table import METHODS

    rows = [method.row() for method in METHODS.values()]
    columns = ["name", "states", "signal", "teacher", "context", "rails", "source"]
    session.show(rows, lambda: table(rows, columns))


@click.command("dashboard")
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on")
@click.option("--port", default=7860, show_default=True, help="port to listen on")
@click.option(
    "--allow-host", "names", multiple=True, help="further host name under which browsers reach this machine"
)
@click.option(
    "--picture", metavar="FILE", help="write the plot of knowledge against behaviour as SVG, and open nothing"
)
@shared
@click.pass_obj
def dashboard_command(
    session: Session, host: str, port: int, names: tuple[str, ...], picture: str | None
) -> None:
    """Open the review dashboard: on this machine only, or on another --host with a login, whose password is
    taken from RECOVER_DASHBOARD_PASSWORD."""
    from dashboard.app import picture_of, serve

    with session.workspace() as ws:
        if picture:
            picture_of(ws.tracker, picture)
            session.show({"picture": picture}, picture)
        else:
            password = os.environ.get("RECOVER_DASHBOARD_PASSWORD")
            serve(ws.tracker, host=host, port=port, names=names, password=password)
