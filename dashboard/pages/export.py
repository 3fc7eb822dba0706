"""Offer every table as a download: CSV, JSON, Parquet."""

from __future__ import annotations

from typing import Any

from dashboard.address import Address
from dashboard.markup import Html, tag
from dashboard.page_context import PageContext
from dashboard.page_parts import table
from db.export import FORMATS, TABLES, export

TITLE = "Export"
PATH = "/export"
FILE = "/export/file"

MEANINGS = {
    "cycles": "a cycle a row: scores, verdict, cost, review",
    "runs": "what was run, with which settings, what it cost",
    "checkpoints": "the models and what each was made from",
    "scores": "a suite of a checkpoint a row, with its interval",
    "items": "every prompt, answer and whether it passed",
    "metrics": "every point of every curve",
    "traces": "rollouts token by token",
    "verdicts": "an axis of a cycle a row, with its numbers",
    "reviews": "who decided what, and why",
    "documents": "the files of each corpus, read or skipped",
    "aliases": "where names such as base and current point",
    "alias_moves": "and where they pointed before",
}


def build(context: PageContext, address: Address) -> Html:
    lines = [[tag("b", name), MEANINGS.get(name, ""), _links(context, address, name)] for name in TABLES]
    return tag(
        "section",
        tag("h1", "Export"),
        tag(
            "p",
            "Whole tables, whatever their size. The same in a terminal: ",
            tag("code", "recover export items --out items.parquet"),
        ),
        table(["table", "what is in it", "download"], lines),
        class_="card",
    )


def _links(context: PageContext, address: Address, name: str) -> list[Html]:
    return [
        tag(
            "a",
            kind,
            download=f"{name}.{kind}",
            class_="download",
            href=address.page(FILE, table=name, format=kind, token=context.token),
        )
        for kind in FORMATS
    ]


def serve(context: PageContext, address: Address) -> Any:
    """Return the file for a download link; refuse a link without this launch's token."""
    from starlette.responses import PlainTextResponse, StreamingResponse

    name, kind = address.text("table"), address.text("format")
    if not context.knows(address.text("token")):
        return PlainTextResponse("This link is of an earlier launch: open the Export page again.", 403)
    if name not in TABLES or kind not in FORMATS:
        return PlainTextResponse("There is no such table or format.", 404)
    headers = {"content-disposition": f'attachment; filename="{name}.{kind}"', "cache-control": "no-store"}
    rows = export(context.db, name, kind)
    return StreamingResponse(rows, media_type=FORMATS[kind], headers=headers)


ROUTES = {FILE: serve}
