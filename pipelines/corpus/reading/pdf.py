"""Read a PDF's text, page by page, by PDFium, the engine of Chrome."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from pipelines.corpus.reading.formats import Unreadable
from pipelines.corpus.reading.plain import FileFacts, Source

MOST_PAGES = 50_000
# Share of pages without text from which on a remark says so. Where chapters begin on right-hand pages, a book
# leaves about half a page a chapter blank: one in ten would take chapters of five pages.
MANY_WITHOUT_TEXT = 0.1
SPLIT_WORD = re.compile("[\ufffe\x02]\n?")  # PDFium's mark for a hyphen at the end of a line
# Ends a line of contents or of an index: what leads to numbers of pages, and these
LEADERS = re.compile(
    r"(?:[.…·]\s?){5}\s*(?P<pages>\d{1,5}(?:[,–-]\s?\d{1,5})*|(?=\w)x{0,3}(?:i[xv]|v?i{0,3}))$"
)
CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\ufffe\uffff]")


def read_pdf(source: Source, facts: FileFacts) -> Iterator[str]:
    """Yield the text of each page that has any; remark on many that have none, as they may be scans."""
    import pypdfium2 as pdfium

    if b"%PDF-" not in os.pread(source.handle, 1024, 0):
        raise Unreadable("not a PDF by its content")
    try:
        document = pdfium.PdfDocument(b"".join(source.raw()))
    except pdfium.PdfiumError as error:
        locked = "password" in str(error).lower()
        raise Unreadable("locked with a password" if locked else "not a whole PDF") from error
    pages = min(len(document), MOST_PAGES)
    bad = empty = 0
    for number in range(pages):
        try:
            text = _page(document, number)
        except pdfium.PdfiumError:
            bad += 1
            continue
        empty += not text
        if text := _without_contents(text, len(document)):
            yield text + "\n\n"
    if bad + empty == pages:
        raise Unreadable("a PDF without text: scanned pages need text recognition first")
    if bad:
        facts.add_note(f"{bad} of {pages} pages cannot be read")
    if empty >= MANY_WITHOUT_TEXT * pages:
        facts.add_note(f"{empty} of {pages} pages hold no text")


def _page(document: Any, number: int) -> str:
    with closing(document[number]) as page, closing(page.get_textpage()) as text_page:
        text = text_page.get_text_range()
    text = SPLIT_WORD.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return "\n".join(line.rstrip() for line in CONTROL.sub("", text).split("\n")).strip()


def _without_contents(text: str, pages: int) -> str:
    return "\n".join(line for line in text.split("\n") if not _is_of_contents(line, pages)).strip()


def _is_of_contents(line: str, pages: int) -> bool:
    """Return whether leaders end a line with numbers of pages; a price is larger than those of a menu."""
    found = LEADERS.search(line)
    return found is not None and max(map(int, re.findall(r"\d+", found["pages"])), default=0) <= pages
