"""Offer every table as a download: CSV, JSON, Parquet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

from dashboard.address import Address
from dashboard.markup import Html, tag
from dashboard.page_context import PageContext
from dashboard.page_parts import table
from db.export import FORMATS, TABLES, export

TITLE = "Export"
PATH = "/export"
FILE = "/export/file"
AT_ONCE = 2  # downloads: each holds a connection to the database, also while its reader is slow
_free = threading.BoundedSemaphore(AT_ONCE)

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
            "Tables of this project, whatever their size. The same in a terminal: ",
            tag("code", context.command("export", "items", "--out", "items.parquet")),
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
    if not _free.acquire(blocking=False):
        return PlainTextResponse(f"{AT_ONCE} downloads are running: try again when one is done.", 503)
    headers = {"content-disposition": f'attachment; filename="{name}.{kind}"', "cache-control": "no-store"}
    rows = _Download(export(context.db, name, kind))
    return StreamingResponse(rows, media_type=FORMATS[kind], headers=headers)


class _Download:
    """The bytes of an export. It counts among those that run until it is read, given up or broken off."""

    def __init__(self, pieces: Generator[bytes]) -> None:
        self._pieces = pieces
        self._release: Callable[[], None] | None = _free.release

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._pieces)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        release, self._release = self._release, None
        if release:
            try:
                self._pieces.close()
            finally:
                release()

    __del__ = close


ROUTES = {FILE: serve}
