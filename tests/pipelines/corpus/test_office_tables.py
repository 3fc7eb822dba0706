"""Tables of Word and PowerPoint are asked about where the file says which row holds the titles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pipelines.corpus.documents import read_corpus
from pipelines.corpus.prose import asked_sentences
from tests.support import papers

pytestmark = pytest.mark.usefixtures("kept_parsers")
HEAD = "<w:trPr><w:tblHeader/></w:trPr>"
NO_HEAD = '<w:trPr><w:tblHeader w:val="0"/></w:trPr>'
WAS_HEAD = f"<w:trPr><w:trPrChange>{HEAD}</w:trPrChange></w:trPr>"
BEFORE = '<w:trPr><w:gridBefore w:val="1"/></w:trPr>'
ACROSS, GOES_ON = '<w:gridSpan w:val="2"/>', "<w:vMerge/>"
BEGINS = '<w:vMerge w:val="restart"/>'
Cells = Sequence[str | tuple[str, str]]  # what each says, behind its properties


def row(*cells: str | tuple[str, str], head: str = "") -> str:
    made = [cell if isinstance(cell, tuple) else ("", cell) for cell in cells]
    inside = (f"<w:tc><w:tcPr>{sets}</w:tcPr>{papers.paragraph(said)}</w:tc>" for sets, said in made)
    return f"<w:tr>{head}{''.join(inside)}</w:tr>"


def table(*rows: str) -> str:
    return f"<w:tbl>{''.join(rows)}</w:tbl>"


TITLES = row("Name", "Port", "Use", head=HEAD)
ROWS = (row("ash", "31", "a|b"), row("oak", "27", ""), row("elm", "35", "web"))
ASH = {"Name: ash; Port: 31", "Name: ash; Use: a|b"}
OTHERS = {"Name: oak; Port: 27", "Name: elm; Port: 35", "Name: elm; Use: web"}


def read(folder: Path, name: str, data: bytes) -> tuple[str, set[str]]:
    """The text of a file, and what its tables are asked about."""
    (text,) = read_corpus(papers.write(folder, {name: data})).texts
    return text, {one.sentence for one in asked_sentences(text) if len(one.passages) == 2}


@pytest.mark.parametrize(
    ("body", "cells"),
    [
        (table(TITLES, *ROWS), ASH | OTHERS),
        (table(row("Name", "Port", "Use"), *ROWS), set()),
        (table(row("Name", "Port", "Use", head=NO_HEAD), *ROWS), set()),
        (table(row("Name", "Port", "Use", head=WAS_HEAD), *ROWS), set()),
        (
            table(row("Name", (ACROSS, "Of it"), head=HEAD), row("", "Port", "Use", head=HEAD), *ROWS),
            {cell.replace("; ", "; Of it, ") for cell in ASH | OTHERS},
        ),
        (
            table(
                row(('<w:gridSpan w:val="3"/>', "Of trees"), head=HEAD),
                row((BEGINS, "Name"), "A", "B", head=HEAD),
                row((GOES_ON, ""), "Port", "Use", head=HEAD),
                *ROWS,
            ),
            {cell.replace("; Port", "; A, Port").replace("; Use", "; B, Use") for cell in ASH | OTHERS},
        ),
        (table(TITLES, row("a", "b", head=HEAD), *ROWS), set()),  # not as wide
        (
            table(TITLES, *ROWS, row("Sum", "93", "2", head=HEAD)),
            ASH | OTHERS | {"Name: Sum; Port: 93", "Name: Sum; Use: 2"},
        ),
        (table(row("Name", (ACROSS, "Port"), "Use", head=HEAD), *ROWS), set()),
        (table(TITLES, row("none", (ACROSS, "5")), *ROWS), ASH | OTHERS),
        (table(TITLES, row("none", "4", (ACROSS, "5")), *ROWS), ASH | OTHERS),
        (table(TITLES, row("1", "2", "3", head=BEFORE), *ROWS), ASH | OTHERS),
        (table(TITLES, row("", "", ""), *ROWS), ASH | OTHERS),
        (table(TITLES, *ROWS) + table(row("yew", "44", "x")), ASH | OTHERS),
        (table(f"<w:tr><w:tc>{table(TITLES, *ROWS)}<w:p/></w:tc></w:tr>", row("c", "d")), set()),
        (
            table(TITLES, *ROWS, row("fir", (BEGINS, "80"), "mail"), row("yew", (GOES_ON, ""), "news")),
            ASH | OTHERS | {"Name: fir; Use: mail", "Name: yew; Use: news"},
        ),
        (
            table(row((BEGINS, "Name"), "Port", head=HEAD), row((GOES_ON, ""), "of it"), row("a", "1")),
            {"Name: a; Port: 1"},
        ),
    ],
)
def test_tables_of_word_are_asked_below_the_row_that_is_marked(
    tmp_path: Path, body: str, cells: set[str]
) -> None:
    text, found = read(tmp_path, "a.docx", papers.docx(papers.paragraph("Ports:") + body))
    assert found == cells
    assert ("---" in text) == bool(cells)


def test_titles_are_marked_as_markdown_does(tmp_path: Path) -> None:
    body = table(row("", "Port", "Use", head=HEAD), row("ash", "31", ""), row("oak", "27", "web"))
    text, found = read(tmp_path, "a.docx", papers.docx(body + papers.paragraph("So | it is.")))
    assert text == "Port | Use\n--- | --- | ---\nash | 31 |\noak | 27 | web\n\nSo | it is.\n\n"
    assert found == {"ash; Port: 31", "oak; Port: 27", "oak; Use: web"}


def drawn(first: str, *rows: str) -> str:
    """A table on a slide, among its paragraphs."""
    return f"Ports</a:t></a:r></a:p><a:tbl><a:tblPr{first}/>{''.join(rows)}</a:tbl><a:p><a:r><a:t>End"


def drawn_row(*cells: str) -> str:
    made = (cell if cell.startswith("<") else f"<a:tc>{cell}" for cell in cells)
    split = (cell.partition(">") for cell in made)
    inside = (
        f"{tag}><a:txBody><a:p><a:r><a:t>{said}</a:t></a:r></a:p></a:txBody></a:tc>" for tag, _, said in split
    )
    return f"<a:tr>{''.join(inside)}</a:tr>"


DRAWN = (drawn_row("ash", "31", "web"), drawn_row("oak", "27", "mail"), drawn_row("elm", "35", "news"))
SPANNED = (
    drawn_row('<a:tc rowSpan="2">fir', "44", "a"),
    drawn_row('<a:tc vMerge="1">', "45", "b"),
    drawn_row("yew", '<a:tc gridSpan="2">46', '<a:tc hMerge="1">'),
)
ASKED = {
    f"Name: {name}; {title}: {said}"
    for name, port, use in (("ash", "31", "web"), ("oak", "27", "mail"), ("elm", "35", "news"))
    for title, said in (("Port", port), ("Use", use))
}


def test_a_first_row_of_one_wide_cell_is_read(tmp_path: Path) -> None:
    wide = drawn_row('<a:tc gridSpan="2">Prices', '<a:tc hMerge="1">')
    slide = drawn("", wide, drawn_row("Tea", "3"))
    text, _ = read(tmp_path, "a.pptx", papers.pptx({1: slide}, [1]))
    assert text.split("\n\n")[1:3] == ["Prices", "Tea | 3"]


@pytest.mark.parametrize(
    ("first", "head", "cells"),
    [
        (' firstRow="1"', ("Name", "Port", "Use"), ASKED),
        ("", ("Name", "Port", "Use"), set()),
        (' firstRow="0"', ("Name", "Port", "Use"), set()),
        (' firstRow="1"', ("Name", '<a:tc gridSpan="2">Port', '<a:tc hMerge="1">'), set()),
    ],
)
def test_tables_of_slides_are_asked_below_a_first_row_that_is_marked(
    tmp_path: Path, first: str, head: Sequence[str], cells: set[str]
) -> None:
    slide = drawn(first, drawn_row(*head), *DRAWN, *SPANNED)
    text, found = read(tmp_path, "a.pptx", papers.pptx({1: slide}, [1]))
    assert found == cells
    assert "fir | 44 | a\nfir | 45 | b\nyew | 46\n" in text


def test_a_title_of_two_rows_of_a_slide_makes_both_rows_of_titles(tmp_path: Path) -> None:
    head = (
        drawn_row('<a:tc rowSpan="2">Name', '<a:tc gridSpan="2">Of it', '<a:tc hMerge="1">'),
        drawn_row('<a:tc vMerge="1">', "Port", "Use"),
    )
    _, found = read(tmp_path, "a.pptx", papers.pptx({1: drawn(' firstRow="1"', *head, *DRAWN)}, [1]))
    assert found == {one.replace("; ", "; Of it, ") for one in ASKED}


def test_rows_that_are_all_marked_stay_rows(tmp_path: Path) -> None:
    text, found = read(tmp_path, "a.docx", papers.docx(table(TITLES, row("ash", "31", "web", head=HEAD))))
    assert text.startswith("Name | Port | Use\nash | 31 | web\n") and not found
