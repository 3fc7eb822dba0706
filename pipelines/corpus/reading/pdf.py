"""Read a PDF's text, page by page, by PDFium, the engine of Chrome."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from pipelines.corpus.reading.formats import Unreadable
from pipelines.corpus.reading.plain import FileFacts, Source

MOST_PAGES = 50_000
# Share of pages without text from which on a remark says so. Where chapters begin on right-hand pages, a book
# leaves about half a page a chapter blank: one in ten would take chapters of five pages.
MANY_WITHOUT_TEXT = 0.1
SPLIT = "\xad\n"  # within a word with a hyphen at the end of a line
SPLIT_WORD = re.compile("[\ufffe\x02]\n?")  # PDFium's mark for it
WORD = re.compile(r"[\w-]+")
SPLIT_PARTS = re.compile(rf"(?<![\w-])([\w-]+){SPLIT}(?=([\w-]*))")
SPLIT_BY_PAGE = re.compile(r"[^\W\d_]-$")
EDGE = 2  # lines at a page's top and at its foot among which heads, feet and numbers are looked for
FEWEST_PAGES, ONE_IN = 4, 3  # on which one recurs: on as many, and on one in three pages
NUMBER = re.compile(r"(?<![\w.,])\d{1,5}(?![\w.,])")
OWN = "\0"  # stands for a page's own number
NUMBERED = re.compile(rf"(?=.*[^\W\d_]|\D*$)(?:[\s|–—-]*{OWN}|.*{OWN}[\s|–—-]*$)")  # and no row of numbers
ENDS = re.compile(r"[.!?:…؟۔।။።。！？．：]\W*$")
CLOSING = 20  # characters behind a sentence's end, at most
# Ends a line of contents or of an index: what leads to numbers of pages, and these
LEADERS = re.compile(
    r"(?:[.…·]\s?){5}\s*(?P<pages>\d{1,5}(?:[,–-]\s?\d{1,5})*|(?=\w)x{0,3}(?:i[xv]|v?i{0,3}))$"
)
CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\ufffe\uffff]")


def read_pdf(source: Source, facts: FileFacts) -> Iterator[str]:
    """Yield the text of each page that has any; remark on many that have none, as they may be scans."""
    document = _document(source)
    count = min(len(document), MOST_PAGES)
    pages = [_page(document, number) for number in range(count)]
    bad, empty = pages.count(None), pages.count([])
    if bad + empty == count:
        raise Unreadable("a PDF without text: scanned pages need text recognition first")
    if count < len(document):
        facts.add_note(f"{len(document) - count} pages behind the first {count:,} are not read")
    if bad:
        facts.add_note(f"{bad} of {count} pages cannot be read")
    if empty >= MANY_WITHOUT_TEXT * count:
        facts.add_note(f"{empty} of {count} pages hold no text")
    texts = _without_heads([lines or [] for lines in pages])
    yield from _mended(list(_joined(texts, len(document))))


def _document(source: Source) -> Any:
    """Open a PDF, and the form that it may be."""
    import pypdfium2 as pdfium

    if b"%PDF-" not in os.pread(source.handle, 1024, 0):
        raise Unreadable("not a PDF by its content")
    try:
        document = pdfium.PdfDocument(b"".join(source.raw()))
        document.init_forms()
    except pdfium.PdfiumError as error:
        locked = "password" in str(error).lower()
        raise Unreadable("locked with a password" if locked else "not a whole PDF") from error
    return document


def _page(document: Any, number: int) -> list[str] | None:
    """Return a page's lines, with what was filled in where the file is a form; None if it can't be read."""
    from pypdfium2 import PdfiumError

    try:
        if document.formenv:
            with closing(document[number]) as page:
                page.flatten()
        with closing(document[number]) as page, closing(page.get_textpage()) as text_page:
            return _lines(text_page.get_text_range())
    except PdfiumError:
        return None


def _lines(text: str) -> list[str]:
    text = CONTROL.sub("", SPLIT_WORD.sub(SPLIT, text.replace("\r\n", "\n").replace("\r", "\n")))
    text = "\n".join(line.rstrip() for line in text.split("\n")).strip()
    return text.split("\n") if text else []


def _without_heads(pages: list[list[str]]) -> Iterator[list[str]]:
    """Yield pages without their numbers, and the heads and feet that hold these; others are read once."""
    offsets = _offsets(pages)
    edges = [
        {place: _masked(lines[place], at, offsets) for place in _edge(lines)}
        for at, lines in enumerate(pages)
    ]
    heads = _recurring(edges)
    for at, (lines, edge) in enumerate(zip(pages, edges, strict=True)):
        recurring = {line for line in edge.values() if line in heads}
        numbered = [line for line in recurring if OWN in line]
        numbered = numbered or sorted(filter(NUMBERED.match, edge.values()), key=len)[:1]
        left_out = {*numbered, *(line for line in recurring if at > heads[line])}
        yield [line for place, line in enumerate(lines) if edge.get(place) not in left_out]


def _edge(lines: list[str]) -> set[int]:
    """Return the places of the first and last lines of a page that say something."""
    places = [place for place, line in enumerate(lines) if line]
    return {*places[:EDGE], *places[-EDGE:]}


def _offsets(pages: list[list[str]]) -> set[int]:
    """Return by how much numbers at the edges differ from the place of their page, where that recurs."""
    counts = Counter(
        offset
        for at, lines in enumerate(pages)
        for offset in {int(n) - at for place in _edge(lines) for n in NUMBER.findall(lines[place])}
    )
    fewest = max(FEWEST_PAGES, len(pages) / ONE_IN)
    return {offset for offset, count in counts.items() if count >= fewest}


def _masked(line: str, at: int, offsets: set[int]) -> str:
    """Return a line with a mark for its page's own number."""
    return NUMBER.sub(lambda number: OWN if int(number[0]) - at in offsets else number[0], line)


def _recurring(edges: list[dict[int, str]]) -> dict[str, int]:
    """Return lines that recur at the edges, and their first pages: running titles change with the chapter."""
    found = defaultdict(list)
    for at, edge in enumerate(edges):
        for line in set(edge.values()):
            found[line].append(at)
    return {
        line: on[0]
        for line, on in found.items()
        if len(on) >= FEWEST_PAGES and len(on) * ONE_IN >= on[-1] + 1 - on[0]
    }


def _joined(pages: Iterator[list[str]], count: int) -> Iterator[str]:
    """Yield pages: behind one that ends within a sentence a line break, behind others an empty line."""
    text = ""
    for lines in pages:
        page = _without_contents(lines, count)
        if not page:
            continue
        if SPLIT_BY_PAGE.search(text[-2:]) and page[0].islower():
            text = text[:-1] + SPLIT[0]
        if text.endswith(SPLIT[0]):
            text += "\n" + page
            continue
        if text:
            goes_on = page[0].isalpha() and not page[0].isupper() and not ENDS.search(text[-CLOSING:])
            yield text + ("\n" if goes_on else "\n\n")
        text = page
    if text:
        yield text + "\n\n"


def _mended(texts: list[str]) -> Iterator[str]:
    """Yield texts with words that were split at the ends of lines: with a hyphen where the file writes it."""
    parts = {
        (first.casefold(), second.casefold()) for text in texts for first, second in SPLIT_PARTS.findall(text)
    }
    known = {first + second for first, second in parts} | {f"{first}-{second}" for first, second in parts}
    known = known.intersection(word for text in texts for word in WORD.findall(text.casefold()))

    def mended(split: re.Match[str]) -> str:
        first, second = split[1].casefold(), split[2].casefold()
        hyphenated = f"{first}-{second}" in known or split[1].count("-") > 1
        return split[1] + "-" * (hyphenated and first + second not in known)

    for text in texts:
        yield SPLIT_PARTS.sub(mended, text).replace(SPLIT, "")


def _without_contents(lines: list[str], pages: int) -> str:
    return "\n".join(line for line in lines if not _is_of_contents(line, pages)).strip()


def _is_of_contents(line: str, pages: int) -> bool:
    """Return whether leaders end a line with numbers of pages; a price is larger than those of a menu."""
    found = LEADERS.search(line)
    return found is not None and max(map(int, re.findall(r"\d+", found["pages"])), default=0) <= pages
