"""OpenDocument files are read as Markdown, without what no reader sees, or skipped with their reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus import documents
from pipelines.corpus.manifest import FileReport
from pipelines.corpus.markup.office_files.opendocument_styles import Styles
from pipelines.corpus.prose import asked_sentences
from pipelines.corpus.reading import opendocument
from pipelines.corpus.reading.formats import Limits
from tests.support import papers
from tests.support.papers import odf_table, odf_text

pytestmark = pytest.mark.usefixtures("kept_parsers")


def read(root: Path, data: bytes, suffix: str = "odt") -> tuple[FileReport, str]:
    """Read a file beside a text that is read in any case."""
    papers.write(root, {f"a.{suffix}": data, "zz.txt": "other"})
    corpus = documents.read_corpus(root, Limits(seconds_per_file=20))
    return corpus.manifest[0], "".join(corpus.texts[:-1])


def style(name: str, properties: str, family: str = "text", parent: str = "") -> str:
    inside = f"<style:text-properties {properties}/>"
    named = f'style:name="{name}" style:family="{family}" style:parent-style-name="{parent}"'
    return f"<style:style {named}>{inside}</style:style>"


STYLES = (
    style("T1", 'style:text-position="super 58%"')
    + style("T2", 'style:text-position="-33% 58%"')
    + style("T3", 'style:text-position="0% 100%"')
    + style("T4", 'text:display="none"')
    + style("T1", 'text:display="none"', "paragraph")
)
ITEM = "<text:list-item>{}</text:list-item>"
INNER = f"<text:list>{ITEM.format(odf_text('inner'))}</text:list>"
NOTE = "<text:note><text:note-citation>1</text:note-citation><text:note-body>{}</text:note-body></text:note>"


def frame(inside: str, anchor: str = "paragraph") -> str:
    return f'<draw:frame text:anchor-type="{anchor}">{inside}</draw:frame>'


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('<text:h text:outline-level="2">Two\n  lines</text:h>' + odf_text("One."), "## Two lines\n\nOne."),
        ("<text:h>Top</text:h>", "# Top"),
        (
            odf_text('a <text:s text:c="2"/>b<text:tab/>c<text:line-break/> d <text:a>link</text:a>.'),
            "a   b\tc\nd link.",
        ),
        (
            odf_text(
                '10<text:span text:style-name="T1"><text:span>6</text:span></text:span> of H'
                '<text:span text:style-name="T2">2</text:span>O '
                '<text:span text:style-name="T3">all</text:span>'
                '<text:span text:style-name="T4"> hidden</text:span>'
            ),
            "10⁶ of H₂O all",
        ),
        (
            f"<text:list>{ITEM.format(odf_text('one') + INNER + odf_text('more'))}"
            f"{ITEM.format(odf_text('two'))}</text:list>{odf_text('End.')}",
            "- one\n  - inner\n  more\n- two\n\nEnd.",
        ),
        (f"<text:list>{ITEM.format('<text:h>Part</text:h>')}</text:list>", "# Part"),
        (
            odf_text(f"Said{NOTE.format(odf_text('A note.'))} so.") + odf_text("End."),
            "Said so.\n\nEnd.\n\nA note.",
        ),
        (
            odf_text("Seen " + frame(f"<draw:text-box>{odf_text('Caption')}</draw:text-box>") + "here."),
            "Seen here.\n\nCaption",
        ),
        (odf_text(f"Where {frame('<draw:object/>', 'as-char')} is small."), "Where […] is small."),
        (odf_text(f"It grows.{frame('<draw:object/><svg:title>Chart</svg:title>')}"), "It grows."),
        (odf_text(frame("<draw:object/>", "as-char")) + odf_text("End."), "End."),
        (
            f"<text:tracked-changes>{odf_text('deleted')}</text:tracked-changes>"
            + odf_text("New<office:annotation><text:p>Comment</text:p></office:annotation> text.")
            + f'<text:section text:display="none">{odf_text("secret")}</text:section>'
            + f"<text:table-of-content>{odf_text('1 Top')}</text:table-of-content>"
            + f"<text:section>{odf_text('Kept.')}</text:section>"
            + '<text:p text:style-name="T1">Hidden</text:p>'
            + odf_text(
                "<text:ruby><text:ruby-base>漢</text:ruby-base><text:ruby-text>かん</text:ruby-text></text:ruby>"
            ),
            "New text.\n\nKept.\n\n漢",
        ),
        (odf_table(["In a box."], titles=0), "In a box."),
        (
            odf_table(["a", "b"], ["", "d|e"], titles=0) + odf_text("End."),
            "| a | b |\n|  | d\\|e |\n\nEnd.",
        ),
        (
            odf_table(["Option", "Default"], ["wait", "30 s"]) + odf_table(["x", "y"], titles=0),
            "| Option | Default |\n|---|---|\n| wait | 30 s |\n\n| x | y |",
        ),
    ],
    ids=range(15),
)
def test_a_text_is_read_as_markdown(tmp_path: Path, body: str, text: str) -> None:
    report, found = read(tmp_path, papers.opendocument(body, STYLES))
    assert (report.status, report.reason) == ("read", None)
    assert found.strip() == text


def span(name: str, text: str) -> str:
    return f'<text:span text:style-name="{name}">{text}</text:span>'


def test_a_style_is_as_its_file_and_the_style_that_it_is_made_of_say(tmp_path: Path) -> None:
    named = (
        style("Red", "", parent="Raised")
        + style("Raised", 'style:text-position="super 58%"')
        + '<text:list-style><style:text-properties style:text-position="sub"/></text:list-style>'
        + style("A", "", parent="B")
        + style("B", "", parent="A")
    )
    own = style("T1", "", parent="Red") + style("T2", 'style:text-position="0% 100%"', parent="Raised")
    body = odf_text(f"10{span('Red', '6')} or 10{span('T1', '7')} of {span('T2', '8')} by {span('A', '9')}.")
    assert read(tmp_path, papers.opendocument(body, own, named=named))[1].strip() == "10⁶ or 10⁷ of 8 by 9."


def test_words_around_hidden_text_stay_apart(tmp_path: Path) -> None:
    body = odf_text(f"one{span('T4', 'hidden ')} two {span('T4', 'hidden')} three")
    assert read(tmp_path, papers.opendocument(body, STYLES))[1].strip() == "one two three"


def cell(text: str = "", covered: bool = False, **numbers: int) -> str:
    tag = "table:covered-table-cell" if covered else "table:table-cell"
    given = "".join(f' table:number-{name.replace("_", "-")}="{number}"' for name, number in numbers.items())
    return f"<{tag}{given}>{odf_text(text) if text else ''}</{tag}>"


def rows(titles: str, *others: str) -> str:
    head = f"<table:table-header-rows><table:table-row>{titles}</table:table-row></table:table-header-rows>"
    body = "".join(f"<table:table-row>{row}</table:table-row>" for row in others)
    return f"<table:table>{head}{body}</table:table>"


def test_a_cell_that_goes_on_below_is_repeated_and_one_across_columns_is_not(tmp_path: Path) -> None:
    titles = cell("Port") + cell("Berth") + cell("Depth")
    table = rows(
        titles,
        cell("Brack", rows_spanned=2) + cell("north") + cell("4 m"),
        cell(covered=True) + cell("south") + cell("5 m", columns_repeated=1),
        cell("closed in winter", columns_spanned=2) + cell(covered=True) + cell("6 m"),
        cell("Quay") + cell("7 m", columns_repeated=2),
        cell("x" * 81, rows_spanned=2) + cell("y", rows_spanned=9) + cell("z"),
        cell(covered=True, columns_repeated=2) + cell("w"),
    )
    assert read(tmp_path, papers.opendocument(table))[1].split("\n")[2:8] == [
        "| Brack | north | 4 m |",
        "| Brack | south | 5 m |",
        "| closed in winter | 6 m |",
        "| Quay | 7 m | 7 m |",
        f"| {'x' * 81} | y | z |",
        "|  | y | w |",
    ]


def test_the_paragraphs_of_a_box_stay_apart(tmp_path: Path) -> None:
    box = rows(
        cell("Tides").replace("</table:table-cell>", f"{odf_text('They rise | fall.')}</table:table-cell>")
    )
    assert read(tmp_path, papers.opendocument(box))[1].strip() == "Tides\n\nThey rise | fall."


def test_titles_across_columns_make_no_rule(tmp_path: Path) -> None:
    table = rows(
        cell("Both", columns_spanned=2) + cell(covered=True) + cell("c"), cell("1") + cell("2") + cell("3")
    )
    assert "---" not in read(tmp_path, papers.opendocument(table))[1]


def test_the_titles_of_a_group_stand_before_those_of_its_columns(tmp_path: Path) -> None:
    groups = cell("Name", rows_spanned=2) + cell("Size", columns_spanned=2) + cell(covered=True)
    own = cell(covered=True) + cell("min") + cell("max")
    over = cell("Trees", columns_spanned=3) + cell(covered=True, columns_repeated=2)
    body = [
        cell(name) + cell(low) + cell(high) for name, low, high in (("ash", "3", "31"), ("oak", "2", "27"))
    ]
    between = "</table:table-row><table:table-row>"
    lines = "| Name | Size: min | Size: max |\n|---|---|---|\n| ash | 3 | 31 |\n| oak | 2 | 27 |"
    for head, above in ((groups + between + own, ""), (over + between + groups + between + own, "Trees\n\n")):
        assert read(tmp_path, papers.opendocument(rows(head, *body)))[1].strip() == above + lines


def test_titles_in_doubt_are_rows_as_they_stand(tmp_path: Path) -> None:
    uneven = cell("A", columns_spanned=2) + cell(covered=True) + cell("B")
    between = "</table:table-row><table:table-row>"
    table = rows(uneven + between + cell("c") + cell("d"), cell("1") + cell("2") + cell("3"))
    assert read(tmp_path, papers.opendocument(table))[1].strip() == "| A | B |\n| c | d |\n| 1 | 2 | 3 |"


def test_what_a_table_says_is_asked_about(tmp_path: Path) -> None:
    table = odf_table(["Option", "Default"], ["timeout", "30"], ["retries", "5"], ["workers", "8"])
    _, text = read(tmp_path, papers.opendocument(odf_text("Settings.") + table))
    assert "Option: retries; Default: 5" in [said.sentence for said in asked_sentences(text)]


def test_a_presentation_is_read_slide_by_slide_with_its_notes(tmp_path: Path) -> None:
    box = "<draw:text-box>{}</draw:text-box>"
    slide = (
        f"<draw:page>{frame(box.format(odf_text('Shown')))}<draw:custom-shape>{odf_text('Drawn')}"
        f"</draw:custom-shape><presentation:notes>{frame(box.format(odf_text('Spoken')))}"
        f'<draw:frame presentation:class="page-number">{box.format(odf_text("7"))}</draw:frame>'
        f"</presentation:notes></draw:page><draw:page>{frame(box.format(odf_text('Next')))}</draw:page>"
    )
    data = papers.opendocument(slide, kind="presentation")
    assert read(tmp_path, data, "odp")[1] == "Shown\n\nDrawn\n\nSpoken\n\n\nNext\n\n\n"


LOCKED = '<manifest:manifest xmlns:manifest="m"><manifest:encryption-data/></manifest:manifest>'
EXTERNAL = '<!DOCTYPE x [<!ENTITY x SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"PK\x03\x04 no more of it", "not a whole OpenDocument file: its zip archive is damaged or locked"),
        (papers.archive({"word/document.xml": "<x/>"}), "not an OpenDocument file: it holds no content.xml"),
        (papers.archive({"content.xml": "\x01", "META-INF/manifest.xml": LOCKED}), "locked with a password"),
        (papers.archive({"encrypted-package": "\x01"}), "locked with a password"),
        (
            papers.archive({"content.xml": '<?xml version="1.0" encoding="UT-8"?><a/>'}),
            "content.xml in it names an encoding that is not known",
        ),
        (papers.archive({"content.xml": "<a><b></a>"}), "content.xml in it is not XML: mismatched tag"),
        (papers.archive({"content.xml": f"{EXTERNAL}<a>&x;</a>"}), "its XML declares a document type.*"),
        (papers.opendocument(odf_text("a" * 2**26)), r"a zip bomb: [\d,]+ bytes that unpack to [\d,]+"),
        (papers.opendocument(""), "empty"),
    ],
    ids=range(9),
)
def test_what_is_no_open_document_is_skipped_with_its_reason(
    tmp_path: Path, data: bytes, reason: str
) -> None:
    report, text = read(tmp_path, data)
    assert (report.status, text) == ("skipped", "")
    assert re.fullmatch(reason, report.reason or ""), report.reason


@pytest.mark.parametrize(
    "body",
    [
        odf_text('a<text:s text:c="999999999"/>' * 2000 + "end"),
        rows(cell("a", columns_repeated=999_999_999), cell("b", rows_spanned=999_999_999) * 3000),
        rows(cell(covered=True, columns_repeated=999_999_999), cell("end")) * 50,
        "<text:list><text:list-item>" * 20_000 + odf_text("end") + "</text:list-item></text:list>" * 20_000,
        "<text:p><draw:frame><draw:text-box>" * 9000
        + odf_text("end")
        + "</draw:text-box></draw:frame></text:p>" * 9000,
        "<table:table><table:table-row><table:table-cell>" * 4000
        + odf_text("end")
        + "</table:table-cell></table:table-row></table:table>" * 4000,
        '<text:h text:outline-level="9999999999999999999999">end</text:h>',
    ],
    ids=range(7),
)
def test_numbers_and_depths_that_no_one_types_cost_nothing(tmp_path: Path, body: str) -> None:
    report, text = read(tmp_path, papers.opendocument(body))
    assert report.status == "read" and len(text) < 2**21


TAGS = ("p", "h", "list", "list-item", "list-header", "note", "span", "s")
TABLES = ("table", "table-row", "table-cell", "covered-table-cell", "table-header-rows")


def elements(inside: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    names = st.sampled_from(
        [*(f"text:{tag}" for tag in TAGS), *(f"table:{tag}" for tag in TABLES), "draw:frame"]
    )
    return st.builds(
        lambda name, parts: f"<{name}>{''.join(parts)}</{name}>", names, st.lists(inside, max_size=4)
    )


@given(st.lists(st.recursive(st.sampled_from(["word", "<draw:page/>"]), elements, max_leaves=20), max_size=3))
def test_elements_in_any_order_are_no_slip(parts: list[str]) -> None:
    from xml.parsers import expat

    writer = opendocument._Writer(Styles())
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler = writer.StartElementHandler
    parser.EndElementHandler = writer.EndElementHandler
    parser.CharacterDataHandler = writer.CharacterDataHandler
    parser.Parse(f"<a {papers.OPENDOCUMENT}>{''.join(parts)}</a>", True)
    writer.take()
    assert len(writer._outs) == 1 and not writer._lines and writer._places == [""]
