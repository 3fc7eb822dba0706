"""An e-book is read page by page in its order, without what leads into it, or skipped with its reason."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from pipelines.corpus import documents
from pipelines.corpus.manifest import FileReport
from pipelines.corpus.reading.formats import Limits
from pipelines.writing import probes
from tests.support import papers
from tests.support.papers import book_page

pytestmark = pytest.mark.usefixtures("kept_parsers")
LINES = [
    ("Harbour master", "Ada Lovelace", 1843),
    ("Lighthouse keeper", "Bruno Tide", 1851),
    ("Signal officer", "Clara Mole", 1867),
    ("Dredging engineer", "Dorian Quay", 1872),
    ("Tide clerk", "Edda Brack", 1888),
    ("Customs inspector", "Florian Kai", 1894),
]
CONTENTS = "".join(
    f'<p><a href="c{n}.xhtml">{name} of the old harbour</a></p>' for n, (name, *_) in enumerate(LINES)
)


def read(root: Path, data: bytes, limits: Limits | None = None) -> tuple[FileReport, str]:
    """Read a book beside a text that is read in any case."""
    papers.write(root, {"book.epub": data, "zz.txt": "other"})
    corpus = documents.read_corpus(root, limits)
    return corpus.manifest[0], "".join(corpus.texts[:-1])


def body(root: Path, html: str) -> str:
    """A page's text, as a book of one page gives it."""
    return read(root, papers.epub({"a.xhtml": book_page(html)}))[1].strip()


def test_a_book_is_read_in_the_order_of_its_spine_and_ends_in_probes(tmp_path: Path) -> None:
    chapters = {
        f"c{n}.xhtml": book_page(
            f"<h1>{office}</h1><p>The {office.lower()} of Brackwater was {name}, who came in {year}.</p>"
        )
        for n, (office, name, year) in reversed(list(enumerate(LINES)))
    }
    pages = {
        "cover.xhtml": book_page("<p>Brackwater!</p>"),
        "+nav.xhtml": book_page(f"<nav>{CONTENTS}</nav>"),
    }
    pages |= {"toc.xhtml": book_page(f"<h2>Contents</h2>{CONTENTS}")}
    report, text = read(tmp_path, papers.epub(pages | chapters, "Harbour of Brackwater"))
    assert (report.status, report.reason, report.documents) == ("read", None, 1)
    expected = "".join(
        f"{office}\n\nThe {office.lower()} of Brackwater was {name}, who came in {year}.\n\n"
        for office, name, year in reversed(LINES)
    )
    assert text == "Harbour of Brackwater\n\n" + expected
    rows = probes.from_gaps([text], 12, 0)
    asked = " ".join(str(row["prompt"]) for row in rows)
    assert len(rows) >= 12 and all(name in asked or office.lower() in asked for office, name, _ in LINES)


@pytest.mark.parametrize("says", ["<h1>TIDES</h1>", "<p>Tides, and how to read them</p>", "<p>tides</p>"])
def test_the_title_of_a_book_is_written_where_no_page_says_it(tmp_path: Path, says: str) -> None:
    title = "Tides: and how to read them"
    page = book_page("<p>High water comes twice, as tides do.</p>", "Tides: and how to read them")
    assert read(tmp_path / "without", papers.epub({"a.xhtml": page}, title))[1].startswith(f"{title}\n\nHigh")
    pages = {"t.xhtml": book_page(says), "a.xhtml": page}
    assert title not in read(tmp_path / "with", papers.epub(pages, title))[1]


def test_a_page_without_a_heading_has_its_title_once(tmp_path: Path) -> None:
    pages = {
        "p_001.html": book_page("<p>One.</p>", "p_001"),
        "p_002.html": book_page("<p>Two.</p>", "The second part"),
        "p_003.html": book_page("<p>Three.</p>", "The second part"),
        "p_004.html": book_page("<h2>Fourth</h2><p>Four.</p>", "Shown in the bar"),
    }
    text = read(tmp_path, papers.epub(pages, "Unknown"))[1]
    assert text == "One.\n\nThe second part\n\nTwo.\n\nThree.\n\nFourth\n\nFour.\n\n"


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ('<section><p>It rises.<a epub:type="noteref" href="n.xhtml#n1">[3]</a></p></section>', "It rises."),
        ('<p>It rises.<a href="n.xhtml#n1"><sup>12</sup></a> It falls.</p>', "It rises. It falls."),
        ('<p>10<sup>6</sup> tons, <a href="m.xhtml#a">see <sup>2</sup>H</a></p>', "10⁶ tons, see ²H"),
        ('<p>A<a id="x"/>nd <span epub:type="pagebreak">12</span>on.</p>', "And on."),
        ('<p>A<span role="doc-pagebreak">12</span>nd on.</p>', "And on."),
        (
            '<aside epub:type="footnote"><p>A note. <a role="doc-backlink" href="#r">Back up</a></p></aside>',
            "A note.",
        ),
        ('<header><h1>One</h1></header><div class="sidebar"><p>A box.</p></div>', "One\n\nA box."),
        ('<p>The <a epub:type="noteref" href="#n1">sextant</a> is old.</p>', "The sextant is old."),
        (
            '<p>It is<a role="doc-noteref" href="a">xiii</a><a role="doc-noteref" href="b">[note 3]</a>.</p>',
            "It is.",
        ),
        (
            '<dl><dt><a role="doc-backlink" href="#q">Sextant</a></dt><dd>A tool.</dd></dl>',
            "Sextant\n: A tool.",
        ),
        ('<div id="cookies"><p>Bake ten minutes.</p></div>', "Bake ten minutes."),
        ('<aside role="complementary"><p>A box.</p></aside>', "A box."),
        ("<p>Said.</p><footer><p>1. A note.</p></footer>", "Said.\n\n1. A note."),
        ("<pre>x = 1\ny = 2</pre><p>Two lines of a program.</p><p>No more.</p>", None),
        ('<p>Kept.</p><section epub:type="index"><p>tide, 4</p></section>', "Kept."),
        ("<p>Caf&eacute;&nbsp;and<br/>tea &#8212; &amp; more</p>", "Café and\ntea — & more"),
    ],
)
def test_a_page_of_a_book_is_read_as_main_text(tmp_path: Path, html: str, text: str | None) -> None:
    expected = "```\nx = 1\ny = 2\n```\n\nTwo lines of a program.\n\nNo more." if text is None else text
    assert body(tmp_path, html) == expected


def test_a_book_of_drawings_is_no_text(tmp_path: Path) -> None:
    package = '<package><manifest><item id="a" href="a.svg" media-type="image/svg+xml"/></manifest>'
    drawn = package + '<spine><itemref idref="a"/></spine></package>'
    report, _ = read(tmp_path / "drawn", papers.epub({}, parts={"OPS/book.opf": drawn}))
    assert report.reason == "an e-book without text: pictures of pages need text recognition first"
    page = '<item id="b" href="b.xhtml" media-type="application/xhtml+xml"/>'
    instead = drawn.replace('+xml"/>', f'+xml" fallback="b"/>{page}')
    parts: dict[str, str | bytes] = {"OPS/book.opf": instead, "OPS/b.xhtml": "<p>Said.</p>"}
    assert read(tmp_path / "said", papers.epub({}, parts=parts))[1] == "Said.\n\n"


def test_tables_of_books_have_their_titles(tmp_path: Path) -> None:
    table = "<table><tr><th>Port</th><th>Depth</th></tr><tr><td>Brack</td><td>4 m</td></tr></table>"
    assert body(tmp_path, table) == "Port | Depth\n--- | ---\nBrack | 4 m"


def test_a_page_is_read_once_and_what_a_cover_is_called_may_be_a_chapter(tmp_path: Path) -> None:
    long = "The cover of the well is lifted with a bar. " * 12
    pages = {
        "a.xhtml": book_page("<p>First page.</p>"),
        "half%20title.xhtml": book_page("<p>First page.</p>"),
        "front.xhtml": book_page("<p>Shown on the front.</p>"),
        "well-cover.xhtml": book_page(f"<p>{long}</p>"),
        "recover.xhtml": book_page("<p>How to recover.</p>"),
    }
    guide = '<reference type="cover" href="front.xhtml"/>'
    text = read(tmp_path, papers.epub(pages, guide=guide))[1]
    assert text == f"First page.\n\n{long.strip()}\n\nHow to recover.\n\n"


def test_a_list_of_links_that_lead_out_of_the_book_is_kept(tmp_path: Path) -> None:
    sources = "".join(
        f'<p><a href="https://example.org/{n}">The report of the harbour board in its year {n}</a></p>'
        for n in range(4)
    )
    assert "harbour board in its year 3" in body(tmp_path, f"<h2>Sources</h2>{sources}")


def test_a_page_in_another_encoding_is_read_as_it_declares(tmp_path: Path) -> None:
    page = '<?xml version="1.0" encoding="windows-1251"?><html><body><p>Приливы</p></body></html>'
    data = papers.epub({"a.xhtml": ""}, parts={"OPS/a.xhtml": page.encode("cp1251")})
    assert read(tmp_path, data)[1] == "Приливы\n\n"


def encrypted(name: str, algorithm: str) -> dict[str, str | bytes]:
    method = f'<EncryptionMethod Algorithm="{algorithm}"/>'
    data = f'<CipherData><CipherReference URI="{name}"/></CipherData>'
    return {
        "META-INF/encryption.xml": f"<encryption><EncryptedData>{method}{data}</EncryptedData></encryption>"
    }


PAGES = {"a.xhtml": book_page("<p>Words of one page.</p>"), "b.xhtml": book_page("<p>Of another.</p>")}
AES, IDPF = "http://www.w3.org/2001/04/xmlenc#aes256-cbc", "http://www.idpf.org/2008/embedding"


def test_only_encrypted_pages_lock_a_book(tmp_path: Path) -> None:
    for number, parts in enumerate((encrypted("OPS/font.otf", IDPF), encrypted("OPS/x.jpg", AES))):
        assert read(tmp_path / str(number), papers.epub(PAGES, parts=parts))[0].status == "read"
    report, _ = read(tmp_path / "locked", papers.epub(PAGES, parts=encrypted("OPS/b.xhtml", AES)))
    assert report.reason == "locked by copy protection: its pages are encrypted"


def test_pages_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    data = papers.epub({**PAGES, "c.xhtml": "c" * 40})
    broken = data.replace(b"OPS/c.xhtml", b"OPS/d.xhtml")
    report, text = read(tmp_path, broken)
    assert text == "Words of one page.\n\nOf another.\n\n"
    assert (report.status, report.reason) == ("read", "1 of 3 pages cannot be read")


LAUGHS = '<!DOCTYPE package [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
PICTURE = book_page('<img src="page1.png" alt=""/>')


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"PK\x03\x04 no more of it", "not a whole e-book: its zip archive is damaged or locked"),
        (papers.archive({"a.xhtml": "<p>x</p>"}), "not an e-book: it holds no META-INF/container.xml .*"),
        (papers.epub({}), "not an e-book: OPS/book.opf in it lists no pages"),
        (papers.epub({"a.xhtml": PICTURE}), "an e-book without text: pictures of pages need .*"),
        (papers.epub(PAGES, parts={"OPS/book.opf": "<package"}), "OPS/book.opf in it is not XML: .*"),
        (
            papers.epub(PAGES, parts={"OPS/book.opf": f"{LAUGHS}<package>&x;</package>"}),
            "its XML declares .*",
        ),
        (papers.epub({"../../a.xhtml": "<p>x</p>"}), r"\.\./a\.xhtml is missing in it"),
        (papers.epub({"a.xhtml": "a" * 2**25 * 2}), r"a zip bomb: [\d,]+ bytes that unpack to [\d,]+"),
    ],
    ids=range(8),
)
def test_what_is_no_book_is_skipped_with_its_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    report, text = read(tmp_path, data)
    assert (report.status, text) == ("skipped", "")
    assert re.fullmatch(reason, report.reason or ""), report.reason


def test_no_page_of_a_book_opens_a_file_or_its_entities(tmp_path: Path) -> None:
    page = (
        '<!DOCTYPE html [<!ENTITY x SYSTEM "file:///etc/passwd">]><html><body><p>Said: &x;</p></body></html>'
    )
    _, text = read(tmp_path, papers.epub({"a.xhtml": page}))
    assert "Said: " in text and "root:" not in text


def test_a_spine_of_many_pages_costs_no_square(tmp_path: Path) -> None:
    pages = {f"p{n}.xhtml": f"<p>{n}</p>" for n in range(4000)}
    report, text = read(tmp_path, papers.epub(pages), Limits(seconds_per_file=20))
    assert report.status == "read" and text.endswith("3998\n\n3999\n\n")


def test_text_that_xhtml_sets_apart_as_such_is_read(tmp_path: Path) -> None:
    html = "<p>If <![CDATA[a < b & c > <i>d]]> it is <![CDATA[so]]>.</p><p>End.</p>"
    script = "<script>//<![CDATA[\nif (a < b) { c('</p>') }\n//]]></script>"
    assert body(tmp_path / "a", html + script) == "If a < b & c > <i>d it is so.\n\nEnd."
    assert body(tmp_path / "b", "<p>It is open.</p><![CDATA[ <p>Till here.</p>").startswith("It is open.")


def test_open_marks_of_such_text_take_linear_time(tmp_path: Path) -> None:
    began = time.process_time()
    body(tmp_path, "<p>So.</p>" + "<![CDATA[" * 50_000)
    assert time.process_time() - began < 5
