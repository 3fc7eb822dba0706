"""Read a Jupyter notebook: text cells as Markdown, code as fenced blocks, nothing of what code printed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipelines.corpus.as_markdown.parts import fenced
from pipelines.corpus.reading.formats import Unreadable
from pipelines.corpus.reading.plain import FileFacts, Source, characters
from pipelines.corpus.reading.site_markup import cleaned
from recovery import untrusted_json


def read_notebook(source: Source, facts: FileFacts) -> Iterator[str]:
    """Yield the cells as one text, each with an empty line behind it."""
    try:
        notebook = untrusted_json.parse_object("".join(characters(source, facts)))
    except ValueError as error:
        raise Unreadable(f"no notebook: {error}") from error
    cells = _cells(notebook)
    if cells is None:
        raise Unreadable("no notebook: it has no list of cells")
    yield cleaned("".join(_texts(cells, _language(notebook))), "md")


def _texts(cells: list[dict[str, Any]], language: str) -> Iterator[str]:
    for cell in cells:
        said = _source(cell)
        if said.strip():
            yield f"{fenced(said, language) if cell.get('cell_type') == 'code' else said}\n\n"


def _cells(notebook: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the cells; before version 4 they are kept in sheets."""
    sheets = notebook.get("worksheets")
    holders = sheets if isinstance(sheets, list) else [notebook]
    lists = [holder.get("cells") for holder in holders if isinstance(holder, dict)]
    if not any(isinstance(cells, list) for cells in lists):
        return None
    return [cell for cells in lists if isinstance(cells, list) for cell in cells if isinstance(cell, dict)]


def _source(cell: dict[str, Any]) -> str:
    """Return what was typed into a cell: a text, or a list of its lines."""
    typed = cell.get("source", cell.get("input", ""))
    lines = typed if isinstance(typed, list) else [typed]
    return "".join(line for line in lines if isinstance(line, str)).strip("\n")


def _language(notebook: dict[str, Any]) -> str:
    metadata = notebook.get("metadata")
    kernel = metadata.get("kernelspec") if isinstance(metadata, dict) else None
    language = kernel.get("language") if isinstance(kernel, dict) else None
    return language if isinstance(language, str) and language.isalnum() else ""
