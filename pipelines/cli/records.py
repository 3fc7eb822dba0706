"""ls, show, export, report, query, methods, dashboard: read what is recorded."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from db.cycle_names import other_axes, short_folder
from pipelines.cli import options as common
from pipelines.cli.options import Session, finite, shared, state_words
from pipelines.cli.table import table
from recovery.errors import InputError
from recovery.printable import printable

LISTS = {
    "cycles": [
        "cycle",
        "date",
        "documents",
        "status",
        "review",
        "ifeval",
        "knowledge",
        "retention",
        "loss recovered",
    ],
    "checkpoints": ["id", "aliases", "kind", "parent_id", "run_id", "created_at"],
    "runs": ["id", "kind", "key", "status", "started_at", "ended_at"],
}


@click.command("ls")
@click.argument("what", default="cycles", type=click.Choice(list(LISTS)))
@common.count("--limit", 50, "list only the newest N")
@shared
@click.pass_obj
def ls_command(session: Session, what: str, limit: int) -> None:
    """List cycles, checkpoints or runs, newest last."""
    from db.reads import queries
    from pipelines.runs.recorded import with_its_place

    with session.workspace() as ws:
        rows = getattr(queries, what)(ws.tracker.db, limit=limit)
        if what != "cycles":
            rows = rows[::-1]
        if what == "checkpoints":
            rows = [with_its_place(ws, row) for row in rows]
        session.show(rows, lambda: list_text(what, rows))


def list_text(what: str, rows: list[dict[str, Any]]) -> str:
    """Format rows of a list, a line each."""
    if what == "cycles":
        return cycles_text(rows)
    return table([_with_state(_with_names(row)) for row in rows], LISTS[what])


def _with_names(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"aliases": ", ".join(row["aliases"]) or None} if "aliases" in row else row


def _with_state(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"status": state_words(row)} if "status" in row else row


def cycles_text(rows: list[dict[str, Any]]) -> str:
    """Format cycles, a line each, with the scores of the recovered checkpoint."""
    named = dict.fromkeys(name for row in rows for name in other_axes(row["verdict"]))
    *columns, last = LISTS["cycles"]
    lines = table([_flat(row) for row in rows], [*columns, *named, last])
    note = (
        "scores: of the recovered checkpoint; loss recovered: share of IFEval's loss that came back; "
        "`recover show cycle:N` has the other scores"
    )
    return f"{lines}\n{note}" if rows else lines


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Flatten a cycle: when and on what it began, a column for each recovered score, the newest decision."""
    scores = {name: suite["recovered"] for name, suite in row["scores"].items()}
    review = row["review"] or {}
    return {
        **_with_state(row),
        **scores,
        "date": row["started_at"][:10],
        "documents": short_folder(row["docs"]) if row["docs"] else None,
        "review": review.get("decision"),
        "loss recovered": row["recovered_fraction"],
    }


@click.command("show")
@click.argument("reference", metavar="ID")
@shared
@click.pass_obj
def show_command(session: Session, reference: str) -> None:
    """Show a cycle, a run or a checkpoint.

    ID is cycle:N, a run's id, or a checkpoint: its id (four characters will do), an alias, or cycle:N:STAGE.

    \b
    recover show cycle:1
    recover show current
    """
    from pipelines.cli.cycle_text import cycle_text
    from pipelines.runs.recorded import is_cycle, recorded

    with session.workspace() as ws:
        row = recorded(ws, reference)
        if is_cycle(reference):
            session.show(row, lambda: cycle_text(row, ws.command))
        else:
            session.show(row, lambda: record_text(row))


def record_text(row: dict[str, Any]) -> str:
    """Format a record as YAML, without the fields that are empty."""
    import yaml

    if "path" in row and row["path"] is None:
        row = row | {"path": "not in this home"}
    kept = {
        name: value for name, value in finite(_with_state(row)).items() if value not in (None, {}, [], "")
    }
    text = yaml.safe_dump(json.loads(json.dumps(kept, default=str)), sort_keys=False, allow_unicode=True)
    return text.rstrip("\n")


@click.command("export")
@click.argument("what", default="cycles", metavar="[TABLE]")
@click.option(
    "--format",
    "kind",
    metavar="FORMAT",
    help="csv, json or parquet (default: by the ending of --out; csv where it has none)",
)
@click.option("--out", type=common.Place(), metavar="FILE", help="file to write (default: standard output)")
@shared
@click.pass_obj
def export_command(session: Session, what: str, kind: str | None, out: Path | None) -> None:
    """Export a table of this home as CSV, JSON or Parquet.

    TABLE is cycles (the default), runs, checkpoints, scores, items, metrics, traces, verdicts, reviews,
    documents, aliases or alias_moves.

    \b
    recover export items --out items.parquet
    """
    from db.export import export

    chosen = _format(kind, out, as_json=session.json)
    with session.workspace() as ws:
        pieces = export(ws.tracker.db, what, chosen)
        if out is None:
            for piece in pieces:
                click.echo(printable(piece.decode()) if sys.stdout.isatty() else piece, nl=False)
            return
        write_whole(out, pieces)
        if session.json:
            session.show({"file": str(out)}, str(out))
        else:
            click.echo(out, err=True)


def _format(kind: str | None, out: Path | None, *, as_json: bool) -> str:
    """Return the format of an export; refuse an ending that names none, and what cannot be printed."""
    from db.export import FORMATS

    ending = out.suffix[1:].lower() if out else ""
    if ending and kind is None and ending not in FORMATS:
        raise InputError(
            f"--out {out}: .{ending} names no format: end it in .csv, .json or .parquet, or give --format"
        )
    chosen = kind or ending or ("json" if as_json else "csv")
    if out is not None:
        return chosen
    if as_json and chosen in FORMATS and chosen != "json":
        raise InputError(
            f"--json prints a JSON document, no {chosen}: leave it or --format out, or give --out"
        )
    if chosen == "parquet" and sys.stdout.isatty():
        raise click.UsageError("parquet is not text: give --out FILE")
    return chosen


def write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """Replace a file only once the new one is complete."""
    from recovery.storage.atomic_dirs import whole_file

    try:
        with whole_file(path) as file:
            file.writelines(pieces)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}: give another --out") from error


@click.command("report")
@common.cycle_number
@click.option("--out", type=common.Place(), metavar="FILE", help="file to write (default: cycle-N.html)")
@shared
@click.pass_obj
def report_command(session: Session, cycle: int, out: Path | None) -> None:
    """Write a cycle as one HTML file without scripts."""
    from dashboard.report import report

    target = out or Path(f"cycle-{cycle}.html")
    with session.workspace() as ws:
        write_whole(target, [report(ws.tracker.db, cycle).encode()])
    session.show({"report": str(target)}, str(target))


@click.command("query")
@click.argument("sql")
@shared
@click.pass_obj
def query_command(session: Session, sql: str) -> None:
    """Run a read-only SQL query on the database.

    The tables are those of `recover export`.

    \b
    recover query "SELECT kind, count(*) FROM runs GROUP BY kind"
    """
    from db.reads import queries
    from db.redact import redact

    with session.workspace() as ws:
        rows = redact(queries.select(ws.tracker.db, sql))
        session.show(rows, lambda: table(rows))


@click.command("methods")
@click.argument("name", required=False)
@shared
@click.pass_obj
def methods_command(session: Session, name: str | None) -> None:
    """List the post-training methods and their dials.

    With NAME that method alone, and what its dials mean. docs/methods.md says which to choose; `recover
    distill --set DIAL=VALUE` changes a dial.

    \b
    recover methods opd
    """
    from recovery.methods.table import METHODS, get

    rows = [method.row() for method in ([get(name)] if name else METHODS.values())]
    session.show(rows, lambda: _method_text(rows[0]) if name else _methods_text(rows))


def _method_text(row: dict[str, Any]) -> str:
    """Format a method: what it does, where it is from, and the dials that it sets."""
    from recovery.methods.method import MAIN, dial_rows, in_words

    values = {name: row[name] for name in MAIN} | row["dials"]
    shown = [
        dial | {"value": in_words(values[dial["dial"]])} for dial in dial_rows() if dial["dial"] in values
    ]
    lines = [f"{row['name']}: {row['summary']}", f"source: {row['source']}"]
    lines += [f"of it {row['name']} {row['keeps']}"] if row["keeps"] else []
    other = "the other dials are at their defaults: `recover methods` lists them"
    return "\n".join([*lines, table(shown, ["dial", "value", "what"]), other])


def _methods_text(rows: list[dict[str, Any]]) -> str:
    """Format the methods, each with the dials that it sets, above the table of all dials."""
    from recovery.methods.method import MAIN, dial_rows, in_words

    shown = []
    for row in rows:
        dials = [f"{name}={in_words(value)}" for name, value in row["dials"].items()]
        shown.append(row | {"dials": " ".join(dials) or "-"})
    return f"{table(shown, ['name', *MAIN, 'dials'])}\n\n{table(dial_rows())}"


@click.command("dashboard")
@common.host
@click.option(
    "--port",
    default=7860,
    show_default=True,
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="port to listen on",
)
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="further host name under which browsers reach this machine; may be repeated",
)
@click.option(
    "--picture",
    type=common.Place(),
    metavar="FILE",
    help="write the plot of knowledge against behaviour as SVG instead",
)
@shared
@click.pass_obj
def dashboard_command(
    session: Session, host: str, port: int, names: tuple[str, ...], picture: Path | None
) -> None:
    """Serve the review dashboard until interrupted.

    Other machines reach it only with --host and a login, whose password is in RECOVER_DASHBOARD_PASSWORD; by
    other names than this machine's own only with --allow-host.
    """
    from dashboard.app import picture_of, serve

    with session.workspace() as ws:
        if picture:
            picture_of(ws.tracker, picture)
            session.show({"picture": str(picture)}, str(picture))
        else:
            password = os.environ.get("RECOVER_DASHBOARD_PASSWORD")
            serve(
                ws.tracker,
                host=host,
                port=port,
                names=names,
                password=password,
                command=ws.command,
                announce=lambda url: session.show({"url": url}, f"dashboard on {url} (Ctrl-C ends it)"),
            )
