"""What each format gives: its text and no more, whatever its encoding, language and length."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus import documents, text_file
from pipelines.corpus.as_markdown import table_rows
from pipelines.corpus.manifest import FileReport, manifest_rows
from pipelines.corpus.prose import asked_sentences
from pipelines.corpus.reading import plain, tables
from pipelines.corpus.reading.encodings import DENSE, Encoding, decoded, find
from pipelines.corpus.reading.formats import Limits, Unreadable, format_of
from pipelines.corpus.reading.plain import TextPiece, pieces
from pipelines.corpus.reading.similar import SIMILAR, Signature, SimilarFiles, shingles
from recovery.counted import counted
from tests.support import papers

pytestmark = pytest.mark.usefixtures("kept_parsers")
PAGE = """<!DOCTYPE html><html><head><title>Ada Lovelace - Wiki</title><style>p {color: red}</style>
<script>var hidden = "script"</script></head><body>
<header>Site banner</header><nav><a href="/">Home page</a></nav>
<div class="sidebar">Side column</div>
<main><h1>Ada Lovelace</h1>
<p>Ada was born in <b>London</b> on&nbsp;10&#160;December 1815.<sup class="reference">[1]</sup></p>
<ul><li>one</li><li><p>two</p></li></ul>
<table><tr><th>Year</th><th>Work</th></tr><tr><td>1843</td><td>Note G</td></tr></table>
<pre>for x:
    y</pre><p hidden>not shown</p><p style="display: none">nor this</p></main>
<footer>Imprint</footer></body></html>"""
PAGE_TEXT = """Ada Lovelace

Ada was born in London on 10 December 1815.

- one
- two
Year | Work
--- | ---
1843 | Note G

```
for x:
    y
```"""
MENU = "".join(f'<li><a href="/{n}">Entry {n}</a></li>' for n in range(8))
LETTER = (
    papers.paragraph("Dear Ada,")
    + "<w:p><w:r><w:t>the </w:t></w:r><w:del><w:r><w:delText>old</w:delText></w:r></w:del>"
    "<w:r><w:t>engine</w:t><w:tab/><w:t>works.</w:t></w:r></w:p>"
    + papers.paragraph("first", "<w:pPr><w:numPr/></w:pPr>")
    + "<w:tbl><w:tr><w:tc>"
    + papers.paragraph("Year")
    + "</w:tc><w:tc>"
    + papers.paragraph("Work")
    + "</w:tc></w:tr></w:tbl>"
)
BULLET = "<w:pPr><w:numPr/></w:pPr>"
CELL = f"<w:tbl><w:tr><w:tc>{papers.paragraph('Fees', BULLET)}</w:tc></w:tr></w:tbl>"
NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": ["# Ada\n", "\n", "She wrote *notes*."]},
        {
            "cell_type": "code",
            "source": "x = 1\nx",
            "outputs": [{"data": {"text/plain": ["what it printed"]}}],
        },
        {"cell_type": "markdown", "source": []},
        "no cell",
    ],
    "metadata": {"kernelspec": {"language": "python"}},
}
MANUAL = r"""
.\" Automatically generated
.de1 Sp
.RS \\$1
..
.ie n \{\
.    ds -- \(*W-
.\}
.el \{\
.TH WRONG 9
.\}
.TH "LS" "1" "May 2026" ""
.SH NAME
ls \- list \fBdirectory\fP contents\" a remark
.SS "Two words"
Shows \(lqall\(rq of
.IR a " folder" .
It isn\(aqt slow.

New \e paragraph.
.TP
.BR \-a ", " \-\-all
do not ignore
names.
.IP \(bu 2
one
.IP "-b" 4
two
.nf
$ ls  -a
.fi
-x
	three
.UR https://a.b
.UE
.TS
l l.
A	first
B	second
.TE
"""
MANUAL_TEXT = """# LS(1)

## NAME

ls - list directory contents

### Two words

Shows “all” of a folder. It isn't slow.

New \\ paragraph.

-a, --all
: do not ignore names.

- one

-b
: two

```
$ ls  -a
```
-x
: three <https://a.b>
A	first
B	second
"""
JSONL = [
    {"text": "one", "id": 7},
    {"title": "Two", "content": "second"},
    "three",
    {"messages": [{"role": "user", "content": "hi"}, {"from": "bot", "value": "ho"}]},
    {"name": "Ada", "born": {"year": 1815, "in": ["London", "England"]}},
]
CALL, PRINTED = "magick in.png out.png", "converted one image"
LISTINGS = "<p>How it is called.</p><pre>{}</pre><p>And what it says.</p><pre>{}</pre>"
FILES: dict[str, bytes | str] = {
    "bare.html": "just words",
    "declared.html": '<meta charset="windows-1251"><p>Москва</p>'.encode("cp1251"),
    "doc.docx": papers.docx(LETTER, footnotes=papers.paragraph("A note.")),
    "layout.html.erb": "<% wrap :it do %><p>Text of <%= name %>\nthem.</p><% end %>",
    "lines.jsonl": "\n".join(map(json.dumps, JSONL)) + '\nnot json\n{"n": null}\n',
    "ls.1": MANUAL,
    "ls.8.gz": gzip.compress(MANUAL.encode()),
    "listings.html": LISTINGS.format(CALL, PRINTED),
    "menu.html": f"<p>Words that are worth it.</p><ul>{MENU}</ul>",
    "notebook.ipynb": json.dumps(NOTEBOOK),
    "older.ipynb": json.dumps({"worksheets": [{"cells": [{"cell_type": "code", "input": ["x = 1"]}]}]}),
    "packed.html.gz": gzip.compress(b"<p>packed page</p>"),
    "packed.txt.gz": gzip.compress("packed wörds".encode()),
    "page.html": PAGE,
    "page.html.md.erb": "# <%= title %>\n\nText.",
    "paper.pdf": papers.pdf("Page one says\nAda.", "Page two."),
    "scan.pdf": papers.pdf(""),
    "slides.pptx": papers.pptx({1: "shown last", 2: "shown first\nsecond line"}, [2, 1], {2: "a note"}),
    "site.html": '---\ntitle: "Tides"\nlayout: page\n---\n<p>High water comes twice a day.</p>',
    "site-titled.html": "---\ntitle: Pumps\n---\n<title>{{ page.title }} - Site</title><p>They run.</p>",
    "site-untitled.html": "---\nlayout: null\n---\n<title>Pump manual</title><p>It runs.</p>",
    "table.csv": 'name;city\nAda;"London; England"\nBob;\n',
    "table.tsv": "name\tcity\nAda\tLondon\n",
    "typed.html": f"<title>Memo</title><pre>{CALL}</pre><hr><pre>{PRINTED}</pre>",
    "windows.txt": "one\r\ntwo\rthree",
}
TEXTS = {
    "bare.html": "just words",
    "declared.html": "Москва",
    "doc.docx": "Dear Ada,\n\nthe engine\tworks.\n\n- first\nYear | Work\n\nA note.\n\n",
    "layout.html.erb": "Text of them.",
    "ls.1": MANUAL_TEXT,
    "ls.8.gz": MANUAL_TEXT,
    "listings.html": "How it is called.\n\n```\n"
    + CALL
    + "\n```\n\nAnd what it says.\n\n```\n"
    + PRINTED
    + "\n```",
    "menu.html": "Words that are worth it.",
    "notebook.ipynb": "# Ada\n\nShe wrote *notes*.\n\n```python\nx = 1\nx\n```\n\n",
    "older.ipynb": "```\nx = 1\n```\n\n",
    "packed.html.gz": "packed page",
    "packed.txt.gz": "packed wörds",
    "page.html": PAGE_TEXT,
    "page.html.md.erb": "# <%= title %>\n\nText.",
    "paper.pdf": "Page one says\nAda.\n\nPage two.\n\n",
    "slides.pptx": "shown first\n\nsecond line\n\na note\n\n\nshown last\n\n\n",
    "site.html": "Tides\n\nHigh water comes twice a day.",
    "site-titled.html": "Pumps\n\nThey run.",
    "site-untitled.html": "Pump manual\n\nIt runs.",
    "table.csv": "name, city\nname: Ada; city: London; England\nname: Bob\n",
    "table.tsv": "name, city\nname: Ada; city: London\n",
    "typed.html": f"Memo\n\n{CALL}\n\n{PRINTED}",
    "windows.txt": "one\ntwo\nthree",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[FileReport, list[str]]]:
    root = papers.write(tmp_path_factory.mktemp("formats"), FILES)
    by_file, texts = {}, []
    for one in documents.read_folder(root):
        if isinstance(one, TextPiece):
            texts.append(one.text)
        else:
            by_file[one.path], texts = (one, texts), []
    return by_file


@pytest.mark.parametrize("name", TEXTS)
def test_a_format_gives_its_text_and_no_more(
    found: dict[str, tuple[FileReport, list[str]]], name: str
) -> None:
    report, texts = found[name]
    assert (report.status, report.reason) == ("read", None)
    assert texts == [TEXTS[name]]
    assert report.characters == len(TEXTS[name])


def test_every_row_has_its_file_s_hash(found: dict[str, tuple[FileReport, list[str]]]) -> None:
    for name, data in FILES.items():
        whole = data.encode() if isinstance(data, str) else data
        assert found[name][0].sha256 == hashlib.sha256(whole).hexdigest()


def test_an_example_of_a_manual_page_ends_where_the_page_says(tmp_path: Path) -> None:
    page = ".TH X 1\n.EX\n```sh\nls\n```\n.EE\nThen this.\n.nf\n.fi\nThe end.\n.nf\n.B make\n.SH SEE\nAll.\n"
    (text,) = documents.read_corpus(papers.write(tmp_path, {"x.1": page})).texts
    assert text.partition("\n\n")[2] == (
        "````\n```sh\nls\n```\n````\nThen this.\n\nThe end.\n\n```\nmake\n```\n\n## SEE\n\nAll.\n"
    )


def test_letters_of_a_manual_page_are_read_by_their_names(tmp_path: Path) -> None:
    page = (
        r".TH X 1"
        "\n"
        r"f\(:ur gro\(sse \(Bq\(:Ubung\(lq, cr\('ee, a\[~n]o, \(vs, \[u0075_0308], \(*b \(+- 1 \(Eu"
        "\n"
    )
    (text,) = documents.read_corpus(papers.write(tmp_path, {"x.1": page})).texts
    assert text.partition("\n\n")[2] == "für große „Übung“, crée, año, š, ü, β ± 1 €\n"


def test_a_line_of_jsonl_is_a_document(found: dict[str, tuple[FileReport, list[str]]]) -> None:
    report, texts = found["lines.jsonl"]
    assert texts == [
        "one",
        "Two\n\nsecond",
        "three",
        "user: hi\n\nbot: ho",
        "name: Ada\nborn.year: 1815\nborn.in: London\nborn.in: England",
    ]
    assert report.documents == 5
    assert report.reason == "1 of 7 lines are no JSON; 1 of 7 lines hold no text"


def test_a_line_of_jsonl_that_is_too_long_is_remarked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(text: str) -> list[str]:
        path = tmp_path / "a.jsonl"
        path.write_text(text, encoding="utf-8")
        facts = plain.FileFacts()
        with path.open("rb") as file:
            source = plain.Source(file.fileno(), False, Limits())
            texts = [piece.text for piece in tables.read_jsonl(source, facts)]
        return [*texts, facts.note or ""]

    monkeypatch.setattr(tables, "LONGEST_LINE", 40)
    long = json.dumps({"text": "long " * 20})
    assert read(f'{long}\n"one"\n') == ["one", "1 of 2 lines are longer than 40 characters"]
    with pytest.raises(Unreadable, match="each of its lines is longer than 40 characters"):
        read(f"{long}\n")


def test_tabs_separate_columns_whose_names_hold_commas(tmp_path: Path) -> None:
    table = "name,first,last\tcity\nAda\tLondon\n"
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.tsv": table}))
    assert corpus.texts == ("name,first,last, city\nname,first,last: Ada; city: London\n",)


def test_a_scanned_pdf_says_so(found: dict[str, tuple[FileReport, list[str]]]) -> None:
    report, _ = found["scan.pdf"]
    assert report.reason == "a PDF without text: scanned pages need text recognition first"


def test_a_pdf_says_how_many_pages_hold_no_text_where_these_are_more_than_blank_ones(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {
        "book.pdf": papers.pdf(*["A page of it."] * 19, ""),
        "contract.pdf": papers.pdf("Cover.", *[""] * 9),
    }
    documents.require(papers.write(tmp_path, files), strict=True)
    corpus = documents.read_corpus(tmp_path)
    assert [row.reason for row in corpus.manifest] == [None, "9 of 10 pages hold no text"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"text": "", "attachments": [{"text": "Deploy failed"}]}, "attachments.text: Deploy failed"),
        ({"title": "VPN", "content": " \n", "body": "Use the client."}, "VPN\n\nUse the client."),
        ({"text": "", "messages": [{"role": "user", "content": "hi"}]}, "user: hi"),
        ({"messages": [{"role": "user", "content": ""}], "turns": ["So?", " "]}, "So?"),
        ({"conversation": [], "summary": "They met."}, "summary: They met."),
    ],
)
def test_a_blank_field_of_a_row_hides_no_other(fields: dict[str, object], text: str) -> None:
    assert tables.row_text(fields) == text


@pytest.mark.parametrize(
    ("name", "format", "packed"),
    [
        ("a.TXT", "text", False),
        ("a.b.md.gz", "text", True),
        ("a.gz", None, False),
        (".txt", "text", False),
        ("a.docx.gz", None, True),
        ("txt", None, False),
        ("a.NDJSON", "jsonl", False),
        ("a.html.md.erb", "text", False),
        ("a.HTML.J2", "html", False),
        ("a.rst.in", "text", False),
        ("a.rst.inc", "text", False),
        ("a.inc", None, False),
        ("a.csv.j2", None, False),
        ("a.erb", None, False),
        ("a.js.erb", None, False),
    ],
)
def test_a_name_says_what_a_file_is(name: str, format: str | None, packed: bool) -> None:
    kind, unpacked = format_of(name)
    assert (kind and kind.name, unpacked) == (format, packed)


SENTENCES = {
    "cp1252": "“Größe” ist für Zürich kein Maß – außer über den Dächern, wo die Höhe zählt.",
    "koi8-r": "Москва является столицей России и крупнейшим по населению городом страны. Он стоит на реке.",
    "cp1251": "Москва является столицей России и крупнейшим по населению городом страны.",
    "shift_jis": "東京は日本の首都であり、世界最大の都市の一つです。人口は約千四百万人です。",
    "euc_kr": "서울은 대한민국의 수도이자 최대 도시이다. 한강을 끼고 있다.",
    "gb18030": "北京是中华人民共和国的首都，也是全国的政治中心和文化中心。",
    "cp1253": "Η Αθήνα είναι η πρωτεύουσα της Ελλάδας και η μεγαλύτερη πόλη της.",
    "utf-16-le": "Zürich\nliegt am See.\n",
    "utf-16-be": "東京は 日本の首都です。\n",
    "utf-32-le": "wide\nwords\n",
    "utf-16": "mit Marke",
    "utf-8-sig": "mit Márke",
    "utf-8": "Zürich 東京 🙂",
}


def test_encodings_are_found_whatever_the_language(tmp_path: Path) -> None:
    root = papers.write(tmp_path, {f"{name}.txt": text.encode(name) for name, text in SENTENCES.items()})
    corpus = documents.read_corpus(root)
    read = {row.path: text for row, text in zip(corpus.manifest, corpus.texts, strict=True)}
    assert read == {f"{name}.txt": text for name, text in SENTENCES.items()}
    for row in corpus.manifest:
        legacy = not row.path.startswith("utf")
        assert (row.reason is not None and row.reason.startswith("not UTF-8: read as")) == legacy


@pytest.mark.parametrize("name", [name for name in SENTENCES if not name.startswith("utf")])
def test_an_encoding_is_found_by_few_words_among_plain_ones(tmp_path: Path, name: str) -> None:
    text = "".join(f"{'plain words here and there ' * 20}{SENTENCES[name]}\n" for _ in range(3))
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.txt": text.encode(name)}))
    assert corpus.texts == (text,)


WITHOUT_SPACES = {  # by encoding: without a space, so that it may be one long word
    "gbk": SENTENCES["gb18030"],
    "big5": "台北是一個大城市，人口有二百多萬，市中心有很多人工作和生活，交通也很方便。",
    "shift_jis": SENTENCES["shift_jis"],
    "euc_kr": SENTENCES["euc_kr"].replace(" ", ""),
    "iso2022_jp": SENTENCES["shift_jis"],
}


@pytest.mark.parametrize("codec", WITHOUT_SPACES)
@pytest.mark.parametrize("between", ["\n", ""])
@pytest.mark.parametrize("start", ["", "x"])  # wherever a sample of it ends, it is within a character in one
def test_a_long_text_in_characters_of_several_bytes_is_read(
    tmp_path: Path, codec: str, between: str, start: str
) -> None:
    text = start + between.join(f"{number}{WITHOUT_SPACES[codec]}" for number in range(200))
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.txt": text.encode(codec)}))
    assert len(text.encode(codec)) > 2 * DENSE
    assert corpus.texts == (text,)


def test_japanese_in_seven_bits_is_found_behind_a_long_text_in_english(tmp_path: Path) -> None:
    text = "Plain words here and there.\n" * 400 + f"{WITHOUT_SPACES['iso2022_jp']}\n"
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.txt": text.encode("iso2022_jp")}))
    assert corpus.texts == (text,)


WITH_SIGNS = {  # by encoding: beside characters that older standards of it lack
    "gb2312": "①姓名、②住址必须填写。面积为８５平方米，是公司的财产。Ⅰ．总则　Ⅱ．考勤",
    "gb18030": "①姓名、②住址必须填写，重量不超过２０㎏。员工的手册由人事部在每年一月发布。",
    "cp932": "①氏名、②住所を記入してください。㈱山田製作所の髙橋部長。重さは２０㎏まで。№５のｶﾅ。",
    "euc_jis_2004": "①氏名、②住所を記入してください。㈱山田製作所の部長です。ｶﾅも読めます。",
    "big5hkscs": "第一章：裏面的零件需要定期更換，恒溫器設定為二十度，化粧品不得放置於機器上。",
}


@pytest.mark.parametrize("codec", WITH_SIGNS)
@pytest.mark.parametrize("times", [1, 200])
def test_chinese_and_japanese_with_signs_of_their_own_are_read(
    tmp_path: Path, codec: str, times: int
) -> None:
    text = "".join(f"{WITH_SIGNS[codec]}{number}\n" for number in range(times))
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.txt": text.encode(codec)}))
    assert corpus.texts == (text,)


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        ("¡Buenos días! ¡Cállate! ¡Ánimo! ¿Cuántas niñas? ¡Buenas! ¡Bésame! ¡Corre!", "cp1252"),
        ("ความรู้เป็นสิ่งสำคัญ คนไทยชอบกินข้าว ทุกคนต้องมีบัตรประชาชน เขาเดินทางไป วันนี้อากาศดี", "cp874"),
        ("㈜한국전자는 서울에 있다. ① 이름, ② 주소를 적는다. 大韓民國의 수도는 서울이다.", "cp949"),
    ],
)
def test_common_characters_by_chance_make_no_text_chinese_or_japanese(
    tmp_path: Path, text: str, codec: str
) -> None:
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.txt": text.encode(codec)}))
    assert corpus.texts == (text,)


LATIN = {  # by page and language
    "cp1252 French": "Le règlement européen, déjà adopté, s'applique à Besançon à partir de lundi.",
    "cp1252 Portuguese": "São Paulo não tem informações sobre a situação econômica; João vai à direção.",
    "cp1252 Spanish": "Señor Núñez vive en España.",
    "cp1252 Swedish": "Göteborg är en stad på västkusten. Många åker båt på sommaren och går över ån.",
    "cp1252 Danish": "København er hovedstaden. Der bor mange på øerne, og Århus ligger på Jyllands østkyst.",
    "cp1252 Italian": "Perché la città è più bella? Il lunedì sarà festa, però martedì no.",
    "cp1252 Finnish": "Hän meni eilen töihin, mutta sää oli huono. Jyväskylässä elää myös ystäviä.",
    "cp1252 Icelandic": "Reykjavík er höfuðborg Íslands. Þar búa margir menn við sjóinn með góðu fólki.",
    "cp1252 name": "Müller",
    "cp1250 Polish": "Łódź jest dużym miastem. Poszedłem kupić świeże bułki, później spotkałem się z nią.",
    "cp1250 Czech": "Příliš žluťoučký kůň úpěl ďábelské ódy. Děti šly včera do školy.",
    "cp1250 Hungarian": "Az őszi időjárás kellemes. Köszönöm szépen, jól vagyok; ő is örül a gyűjteménynek.",
    "cp1250 Romanian": "Bucureşti este capitala României; oraşul are străzi şi oameni care trăiesc în pace.",
    "cp1250 Croatian": "Ljudi često šeću gradom. Žene i djeca čekaju na đačkom igralištu.",
    "iso8859-2 Polish": "Łódź jest dużym miastem. Poszedłem kupić świeże bułki, później spotkałem się z nią.",
    "cp1254 Turkish": "İstanbul çok güzel bir şehirdir; insanlar akşamları Boğaziçi'nde yürüyüş yapıyor.",
    "cp1257 Lithuanian": "Žmonės čia gyvena jau šimtus metų, o kiekvieną dieną ateina daugiau svečių.",
    "cp1257 Latvian": "Rīga ir galvaspilsēta. Cilvēki šeit dzīvo jau gadsimtus, un šodien ir ļoti jauki.",
    "mac-roman German": "Größe ist für Zürich kein Maß, außer über den Dächern, wo die Höhe zählt.",
    "cp850 German": "Größe ist für Zürich kein Maß, außer über den Dächern, wo die Höhe zählt.",
}


@pytest.mark.parametrize("which", LATIN)
@pytest.mark.parametrize("times", [1, 80])
def test_a_language_in_latin_letters_is_read_in_its_page(tmp_path: Path, which: str, times: int) -> None:
    text = f"{LATIN[which]}\n" * times
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.txt": text.encode(which.split()[0])}))
    assert corpus.texts == (text,)


SIGNS = {  # English and others, mostly ASCII: what is not stands alone
    "a line": "© 2024 Acme",
    "a price": "The fee is £20 a month – or £18.",
    "prices": "The Café’s menu costs £4 – £6. “Great” value!",
    "a pause": "Page 3 … the rest",
    "an apostrophe": "Don’t panic.",
    "quotes": "It’s a “test” – really • done.",
    "items": "• First item\n• Second item",
    "trademarks": "Registered® Trademark™ of the company",
    "a range": "Copyright © 2019–2024 Meyer & Söhne.",
    "capitals": "ÉTÉ À PARIS – 20 €",
    "French": "L’été à Paris coûte 30 €. Ça va ?",
}
MEASURES = (
    "Temperature: 20 °C ± 2 °C, ½ cup, 10 µm, 5 m², 3 m³, 2 × 4, § 3 and ®"  # no page of Mac OS has them
)


@pytest.mark.parametrize("text", SIGNS.values(), ids=SIGNS)
@pytest.mark.parametrize("codec", ["cp1252", "mac_roman"])
@pytest.mark.parametrize("times", [1, 200])
def test_signs_among_latin_words_are_read_as_signs(tmp_path: Path, text: str, codec: str, times: int) -> None:
    whole = f"{text}\n" * times
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.txt": whole.encode(codec)}))
    assert corpus.texts == (whole,)


@pytest.mark.parametrize("codec", ["cp1252", "latin-1"])
def test_measures_are_read_as_such_in_windows_pages(tmp_path: Path, codec: str) -> None:
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.txt": MEASURES.encode(codec)}))
    assert corpus.texts == (MEASURES,)


@pytest.mark.parametrize(
    "text",
    [
        "Revenue (£m) and costs in £k, £bn",
        "©Acme Inc., ®Acme",
        "a ¾in pipe of 1½inch, 5µm and 10 µg, µm",
        "»Eins« und «Due», Home » About",
        "¿Que hora es? ¡Vamos!",
        "the limit is ±x of it",
    ],
)
def test_signs_beside_letters_are_read_as_such_in_windows_pages(tmp_path: Path, text: str) -> None:
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.txt": text.encode("cp1252")}))
    assert corpus.texts == (text,)


CENTRAL = (
    "Łukasz mieszka w Łodzi.",
    "Škoda Auto",
    "ŠKODA AUTO",
    "Želim vam lep dan.",
    "Marko Šarić živi u Šibeniku.",
    "Książka",
    "w środę są u nas",
    "Źródło życie",
    "The players are called Łukasz and Żaneta, as one of them said in May.",
    "She drove a Škoda to the station of Žilina, and left it there.",
    "Má chuť a ľad",
)


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        ("データ", "cp932"),
        ("アクセス 5", "cp932"),
        ("Cena: 5 zł – tanio", "cp1250"),
        ("POŁUDNIE, Łódź", "cp1250"),
        ("20 € und Œuvres", "iso8859-15"),
        ("des œuvres", "iso8859-15"),
        *((text, codec) for codec in ("iso8859-2", "cp1250") for text in CENTRAL),
    ],
)
def test_few_letters_of_another_page_are_not_read_as_signs(tmp_path: Path, text: str, codec: str) -> None:
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.txt": text.encode(codec)}))
    assert corpus.texts == (text,)


def test_one_bad_byte_behind_a_long_text_in_utf_8_is_replaced_alone(tmp_path: Path) -> None:
    text = "“Größe” matters. " * 20 + "Plain words. " * 400_000
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.txt": text.encode() + b"An \xe9t"}))
    assert "".join(corpus.texts).startswith(text)
    row = corpus.manifest[0]
    assert (row.encoding, row.reason) == ("utf-8", "1 place replaced where the text is not UTF-8")


@pytest.mark.parametrize("mark", [b"\xff\xfe", b"\xfe\xff"])
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_a_byte_order_mark_inside_a_text_does_not_make_it_utf_16(
    tmp_path: Path, name: str, mark: bytes
) -> None:
    words = b'"plain words here"\n' * 400 + b'"' + mark + b'lo"\n'
    corpus = documents.read_corpus(papers.write(tmp_path, {name: words}))
    assert corpus.manifest[0].status == "read"
    assert "plain words here" in corpus.texts[0]


def read_pages(root: Path, pages: dict[str, bytes]) -> dict[str, tuple[str, str | None]]:
    """Each page's text and remark."""
    corpus = documents.read_corpus(papers.write(root, {f"{name}.html": page for name, page in pages.items()}))
    assert all(row.status == "read" for row in corpus.manifest)
    read = zip(corpus.manifest, corpus.texts, strict=True)
    return {row.path.removesuffix(".html"): (text, row.reason) for row, text in read}


def declaring(charset: str, text: str, codec: str) -> bytes:
    return f'<meta charset="{charset}"><p>{text}</p>'.encode(codec)


def test_a_page_s_declaration_is_understood_as_browsers_do(tmp_path: Path) -> None:
    written = {
        "utf-8 as latin-1": ("iso-8859-1", "Müller", "utf-8"),
        "utf-8 as ascii": ("us-ascii", "Müller", "utf-8"),
        "utf-8 as gb2312": ("gb2312", "东京", "utf-8"),
        "cp1252 as ascii": ("us-ascii", "“Müller”", "cp1252"),
        "gbk": ("gb2312", "朱镕基 100€ 龍", "gb18030"),
        "cp932": ("shift_jis", "①髙島屋", "cp932"),
        "cp949": ("euc-kr", "똠방각하", "cp949"),
        "cp1254": ("iso-8859-9", "“güneş”", "cp1254"),
        "iso-2022-jp": ("iso-2022-jp", "東京", "iso2022_jp"),
        "euc-jp": ("x-euc-jp", "①東京㈱", "euc_jis_2004"),
        "x-sjis": ("X-SJIS", "①東京", "cp932"),
        "big5": ("big5", "裏面的說明", "big5hkscs"),
        "x-gbk": ("x-gbk", "朱镕基", "gb18030"),
        "windows-949": ("windows-949", "똠방각하", "cp949"),
        "logical Hebrew": ("iso-8859-8-i", "התוכנית קוראת", "iso8859_8"),
        "Thai of Windows": ("windows-874", "“กรุงเทพ”", "cp874"),
        "tis-620": ("tis-620", "“กรุงเทพ”", "cp874"),
        "iso-8859-11": ("iso-8859-11", "“กรุงเทพ”", "cp874"),
        "x-cp1251": ("x-cp1251", "Москва", "cp1251"),
        "x-mac-cyrillic": ("x-mac-cyrillic", "Москва", "mac_cyrillic"),
        "no codec of text": ("undefined", "Müller", "utf-8"),
    }
    pages = {name: declaring(*how) for name, how in written.items()}
    assert read_pages(tmp_path, pages) == {name: (text, None) for name, (_, text, _) in written.items()}


def test_characters_that_a_page_s_declared_encoding_lacks_are_counted(tmp_path: Path) -> None:
    page = declaring("gb2312", "东京", "gbk") + b"<p>\xff and \xff</p>"
    text, remark = read_pages(tmp_path, {"a": page})["a"]
    assert text.startswith("东京")
    assert remark == "2 places replaced where the text is not gb18030"


NOTE = '<aside class="starlight-aside"><p>Take care.</p></aside>'
FOOTNOTE = '<aside class="footnote brackets" id="id2" role="doc-footnote"><p>A remark.</p></aside>'


def test_asides_of_the_main_text_are_its_notes_and_others_are_side_columns(tmp_path: Path) -> None:
    columns = '<aside class="td-sidebar">Pages</aside><aside role="complementary">Others</aside>'
    body = f"<aside>Links</aside><main><p>One.</p>{NOTE}{columns}<p>Two.</p>{FOOTNOTE}</main>{NOTE}"
    text, _ = read_pages(tmp_path, {"a": body.encode()})["a"]
    assert text == "One.\n\nTake care.\n\nTwo.\n\nA remark."


def test_tabs_that_are_not_chosen_and_captions_that_only_the_eye_reads_are_text(tmp_path: Path) -> None:
    tabs = '<div role="tabpanel">One.</div><div role="tabpanel" hidden>Two.</div>'
    sphinx = '<div role="tabpanel" hidden="true" class="sphinx-tabs-panel">Three.</div>'
    figure = '<figure><figcaption aria-hidden="true">A chart.</figcaption></figure>'
    body = f'{tabs}{sphinx}{figure}<div hidden>Four.</div><p aria-hidden="true">Five.</p>'
    text, _ = read_pages(tmp_path, {"a": body.encode()})["a"]
    assert text == "One.\n\nTwo.\n\nThree.\n\nA chart."


@pytest.mark.parametrize(
    "code",
    [
        "<pre><span class='linenos'>1</span>import os\n<span class='linenos'>2</span>import sys\n</pre>",
        "<table><tr><td class='linenos'><div><pre><span>1</span>\n<span>2</span></pre></div></td>"
        "<td class='code'><pre>import os\nimport sys</pre></td></tr></table>",
        "<table><tr><td class='gutter gl'><pre class='lineno'>1\n2\n</pre></td>"
        "<td class='code'><pre>import os\nimport sys\n</pre></td></tr></table>",
        "<table class='lntable'><tr><td class='lntd'><pre><code><span class='lnt'>1\n</span>"
        "<span class='lnt'>2\n</span></code></pre></td><td class='lntd'><pre><code>import os\n"
        "import sys</code></pre></td></tr></table>",
    ],
)
def test_code_is_read_without_the_numbers_of_its_lines(tmp_path: Path, code: str) -> None:
    """As Pygments writes them within code and in a column, Rouge and Chroma."""
    text, _ = read_pages(tmp_path, {"a": f"<p>It begins here.</p>{code}<p>It ends here.</p>".encode()})["a"]
    assert text == "It begins here.\n\n```\nimport os\nimport sys\n```\n\nIt ends here."


@pytest.mark.parametrize(
    "ruby",
    [
        "東京<rt>とうきょう</rt>",
        "東京<rp>(</rp><rt>とうきょう</rt><rp>)</rp>",
        "東<rt>とう<rt>きょう</ruby><ruby>京",
        "<rb>東<rb>京<rtc>Tokyo</rtc><rt>とう</rt>",
    ],
)
def test_furigana_are_left_out_of_a_page(tmp_path: Path, ruby: str) -> None:
    pages = {"a": f"<meta charset=utf-8><p><ruby>{ruby}</ruby>は首都です。</p><p>川。</p>".encode()}
    assert read_pages(tmp_path, pages)["a"] == ("東京は首都です。\n\n川。", None)


def test_a_part_whose_heading_is_an_everyday_word_is_no_menu(tmp_path: Path) -> None:
    parts = (
        '<section id="cookies"><h2>Cookies</h2><p>They are kept.</p></section>',
        '<div class="section" id="share"><h2 id="navigation">Ways</h2><p>It is shared.</p></div>',
        '<h2><span class="mw-headline" id="Menu">Dishes</span></h2><dl><dt id="ads">ads()</dt></dl>',
        '<div id="cookies">Do you agree?</div><div class="section footer" id="x">Imprint</div>',
    )
    text, _ = read_pages(tmp_path, {"a": "".join(parts).encode()})["a"]
    assert text == "Cookies\n\nThey are kept.\n\nWays\n\nIt is shared.\n\nDishes\n\nads()"


PERMALINK = '<a class="headerlink" href="#x" title="Link to this heading">¶</a>'
DEFINITION = PERMALINK.replace("heading", "definition").replace("¶", "\uf0c1")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (f"<h1>Ports{PERMALINK}</h1><p>It is 8080.</p>", "Ports\n\nIt is 8080."),
        (
            f'<dl><dt class="sig" id="x"><code>port()</code>{DEFINITION}</dt><dd>It is 8080.</dd></dl>',
            "port()\n: It is 8080.",
        ),
        (f"<table><caption>Ports{PERMALINK}</caption><tr><td>A{PERMALINK}<td>B</table>", "Ports\n\nA | B"),
        ('<h2><a href="#x" class="header-anchor" aria-hidden="false">#</a> Ports</h2>', "Ports"),
        ('<h2>Ports <a href="#x">#</a></h2><p>It<a href="#y"> ¶ </a></p>', "Ports\n\nIt"),
        ('<p>It is so.&#160;<a class="footnote-backref" href="#fnref:1">&#8617;</a></p>', "It is so."),
        (
            '<h2>Ports<a class="hash-link" href="#x" aria-label="Direct link to Ports">\u200b</a></h2>',
            "Ports",
        ),
        (
            '<h2>Ports <a class="header-link" href="#x"><span>Permalink</span> <i class="link"></i></a></h2>',
            "Ports",
        ),
        ('<h2><a class="anchor" href="#x">Ports</a></h2>', "Ports"),
        (
            '<p>A <a href="/permalink">Permalink</a> stays, <a href="/signs">¶</a> too.',
            "A Permalink stays, ¶ too.",
        ),
        ('<p>Read <a href="#s">§</a> 5, <a href="#p">¶ 7</a>, <a href="#h">#</a>.', "Read § 5, ¶ 7, #."),
        (f"<p>{PERMALINK}</p><p>It is 8080.</p>", "It is 8080."),
        (
            '<dl><dt>port()<a href="_modules/a.html"><i class="viewcode-link">[source]</i></a></dt></dl>'
            '<div class="topNav">Tree</div><div class="subNav">Next class</div><p class="legalCopy">(c)</p>',
            "port()",
        ),
    ],
)
def test_links_of_headings_and_definitions_to_themselves_are_left_out(
    tmp_path: Path, body: str, text: str
) -> None:
    page = f"<meta charset='utf-8'><body>{body}".encode()
    assert read_pages(tmp_path, {"a": page})["a"][0] == text


@pytest.mark.parametrize(
    ("body", "text", "said"),
    [
        (
            "<dt>node</dt><dd>a machine that runs the pods of the whole cluster</dd>"
            "<dt>horizontal pod auto scaler</dt><dd>what adds pods</dd><dd>or takes some</dd>",
            "node\n: a machine that runs the pods of the whole cluster\n\n"
            "horizontal pod auto scaler\n: what adds pods\n: or takes some",
            [
                "node: a machine that runs the pods of the whole cluster",
                "horizontal pod auto scaler: what adds pods",
                "or takes some",
            ],
        ),
        ("<dt>a<dt>b<dd><ul><li>c<li>d</ul>", "a\n\nb\n- c\n- d", ["a", "b", "c", "d"]),
        ("<dt>ax</dt><dd></dd><dt>ox</dt><dd><p>c</p></dd>", "ax\n\nox\n: c", ["ax", "ox: c"]),
        ("<dt>ax</dt><dd><dl><dt>ox</dt><dd>c</dd></dl></dd>", "ax\n\nox\n: c", ["ax", "ox: c"]),
        (f"<dt>a</dt><dd><pre>x = 1</pre>{'it ' * 9}", f"a\n\n```\nx = 1\n```\n\n{'it ' * 9}".strip(), None),
    ],
    ids=["terms", "list", "empty", "nested", "code"],
)
def test_a_definition_names_its_term_and_the_next_term_is_apart(
    tmp_path: Path, body: str, text: str, said: list[str] | None
) -> None:
    read = read_pages(tmp_path, {"a": f"<dl>{body}</dl>".encode()})["a"][0]
    assert read == text
    assert said is None or [one.sentence for one in asked_sentences(read)] == said


def row(*cells: str) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


LONG = "<p>A long paragraph of an article.</p>" * 80


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([row("<p>Müller</p>", "<p>Köln</p>"), row("<p>Ada</p>", "Oslo")], "Müller | Köln\nAda | Oslo"),
        ([row("Ada", "<p>Oslo,</p><p>Rome</p>")], "Ada | Oslo, Rome"),
        ([row("<p>Ada</p>", "", "<div>Rome</div>")], "Ada | | Rome"),
        ([row("<p>One.</p><p>Two.</p>")], "One.\n\nTwo."),
        ([row("<p>One.</p><p>Two.</p>", f"<table>{row('a', 'b')}</table>")], "One.\n\nTwo.\n\na | b"),
    ],
    ids=["blocks", "mixed", "empty", "one cell", "nested"],
)
def test_a_row_whose_cells_hold_paragraphs_stays_a_line(tmp_path: Path, rows: list[str], text: str) -> None:
    page = f"<meta charset='utf-8'><table>{''.join(rows)}</table>".encode()
    assert read_pages(tmp_path, {"a": page})["a"][0] == text


def test_a_page_laid_out_as_a_table_keeps_its_paragraphs(tmp_path: Path) -> None:
    page = f"<table>{row('<p>Side.</p>', LONG)}</table>".encode()
    assert read_pages(tmp_path, {"a": page})["a"][0].count("\n\n") == 80


@pytest.mark.parametrize(
    "table",
    [
        "sep=;\nname;city, country\nAda;Oslo\n",
        '"sep=;"\n\nname;city, country\nAda;Oslo\n',
        '\n \nname;"city, country"\nAda;Oslo\n',
        'name;"city, country"\nAda;Oslo\n',
        '"name";"city, country"\n"Ada";"Oslo"\n',
    ],
)
def test_a_table_s_first_row_with_words_names_the_columns(tmp_path: Path, table: str) -> None:
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.csv": table}))
    assert corpus.texts == ("name, city, country\nname: Ada; city, country: Oslo\n",)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ('"Name, Vorname";"Preis, netto";Ort\na;b;c\n', "Name, Vorname: a; Preis, netto: b; Ort: c"),
        ("sep=^\na^b,c,d\n1^2\n", "a: 1; b,c,d: 2"),
        ("sep=\t\na\tb,c,d\n1\t2\n", "a: 1; b,c,d: 2"),
        ('Size 5";Name\n1;2\n', 'Size 5": 1; Name: 2'),
        ("Artikel;Preis, netto\nSchraube;1,50\n", "Artikel: Schraube; Preis, netto: 1,50"),
        ("City, State\tPeople\nOslo\t7\n", "City, State: Oslo; People: 7"),
        ("id,text; notes\n1,hello\n", "id: 1; text; notes: hello"),
        ("name,a|b\nAda,7\n", "name: Ada; a|b: 7"),
        ("Name, City\nAda, Oslo\n", "Name: Ada; City: Oslo"),
    ],
)
def test_a_table_is_split_where_its_columns_end(tmp_path: Path, table: str, text: str) -> None:
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.csv": table}))
    assert corpus.texts[0].splitlines()[1] == text


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("Ada,36,Oslo\nBob,41,Rome\n", "Ada; 36; Oslo\nBob; 41; Rome\n"),
        ("1.5;Oslo\n-2;Rome\n", "1.5; Oslo\n-2; Rome\n"),
    ],
)
def test_a_table_s_first_row_with_numbers_names_no_columns(tmp_path: Path, table: str, text: str) -> None:
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.csv": table}))
    assert corpus.texts == (text,)
    assert corpus.manifest[0].reason == tables.NAMELESS


def test_years_dates_and_names_with_figures_name_columns(tmp_path: Path) -> None:
    table = "City,2019,2020-01,1/22/20,08:30,Q1,1st,95% CI\nOslo,1,2,3,4,5,6,7\n"
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.csv": table}))
    assert corpus.texts[0].splitlines()[1] == (
        "City: Oslo; 2019: 1; 2020-01: 2; 1/22/20: 3; 08:30: 4; Q1: 5; 1st: 6; 95% CI: 7"
    )
    assert corpus.manifest[0].reason is None


@pytest.mark.parametrize(
    "table",
    [
        "Land,0-14,15-64\nNorway,3.2,4.5\n",  # ranges
        ",0,1,2\na,5,7,9\n",  # as pandas names columns
        "sample,400,410,420\nA,0.3,0.2,0.1\n",  # wavelengths
        "name,7\nAda,Oslo\n",  # a number above a word
    ],
)
def test_names_that_are_numbers_name_columns(tmp_path: Path, table: str) -> None:
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.csv": table}))
    names, row = (line.split(",") for line in table.splitlines())
    said = [f"{name}: {cell}" if name else cell for name, cell in zip(names, row, strict=True)]
    assert corpus.texts[0].splitlines()[1] == "; ".join(said)
    assert corpus.manifest[0].reason is None


def test_lines_within_a_cell_or_a_name_are_joined(tmp_path: Path) -> None:
    table = '"Its\nname",note,port\nAda,"Keep it dry.\n\nAnd warm.",7\n'
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.csv": table}))
    assert corpus.texts == ("Its name, note, port\nIts name: Ada; note: Keep it dry. And warm.; port: 7\n",)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (['5\t"Begin of a quote', "6\tx"], ['id: 5; text: "Begin of a quote', "id: 6; text: x"]),
        (['5\t"Begin', "6\tx", '7\tend"'], ['id: 5; text: "Begin', "id: 6; text: x", 'id: 7; text: end"']),
        (['5\t"Begin', '6\t"Begin"'], ['id: 5; text: "Begin', "id: 6; text: Begin"]),
        (['5\t"Two', 'lines of ""one"""', "6\tx"], ['id: 5; text: Two lines of "one"', "id: 6; text: x"]),
        (['5,"Begin of a quote', '6,"x, y"'], ['id: 5; text: "Begin of a quote', "id: 6; text: x, y"]),
    ],
)
def test_a_quotation_that_does_not_end_takes_no_rows_below(
    tmp_path: Path, rows: list[str], said: list[str]
) -> None:
    table = "\n".join(["id\ttext" if "\t" in rows[0] else "id,text", *rows])
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.tsv": table + "\n8"}))
    assert corpus.texts[0].splitlines()[1:] == [*said, "id: 8"]


def test_a_mark_above_more_than_a_row_may_hold_is_a_character_between_tabs() -> None:
    text_lines = ["id\ttext\n", '5\t"Begin\n', *(f"{n}\t{'x' * 99_999}\n" for n in range(50))]
    assert list(table_rows.Rows(iter(text_lines))) == [line.strip().split("\t") for line in text_lines]
    with pytest.raises(csv.Error, match="longer than 4,194,304 characters"):
        list(table_rows.Rows(line.replace("\t", ",") for line in text_lines))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize(
    "cells",
    [
        ("text", "The pump, which is red, runs", "A valve; it | closes"),
        ("Preis", "1,50", "2,75"),
        ("text", "See a, b", "see c, d"),
    ],
)
def test_a_table_of_one_column_is_not_split(tmp_path: Path, name: str, cells: tuple[str, ...]) -> None:
    corpus = documents.read_corpus(papers.write(tmp_path, {name: "\n".join(cells)}))
    names, *said = cells
    assert corpus.texts[0].splitlines() == [names, *(f"{names}: {cell}" for cell in said)]


@pytest.mark.parametrize(
    "above",
    [
        "Report of March,,\n",
        ",,\nReport of March,,\n,,\n",
        "Report of March\n",
        "\nReport of March\n\n",
        '"Report of March"\n',
        "Report, of March\n",
    ],
)
def test_a_title_above_a_table_names_no_column(tmp_path: Path, above: str) -> None:
    table = above + "name,city,port\nAda,Oslo,7\nBob,Rome,8\n"
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.csv": table}))
    rows = "name: Ada; city: Oslo; port: 7\nname: Bob; city: Rome; port: 8\n"
    assert corpus.texts[0].replace(", of", " of") == f"Report of March\n\nname, city, port\n{rows}"


def test_years_below_a_title_name_columns(tmp_path: Path) -> None:
    table = "Sales\ncity,2019,2020\nOslo,5,7\n"
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.csv": table}))
    assert corpus.texts == ("Sales\n\ncity, 2019, 2020\ncity: Oslo; 2019: 5; 2020: 7\n",)


def test_names_repeated_between_rows_are_no_row(tmp_path: Path) -> None:
    table = "name,city\nAda,Oslo\nname,city\nBob,Rome\n"
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.csv": table}))
    assert corpus.texts == ("name, city\nname: Ada; city: Oslo\nname: Bob; city: Rome\n",)


def test_a_quotation_behind_a_space_is_a_cell(tmp_path: Path) -> None:
    table = 'name, place\n"Ada", "Oslo, Norway"\n"Bob", "Rome, Italy"\n'
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.csv": table}))
    assert corpus.texts[0].splitlines()[1:] == [
        "name: Ada; place: Oslo, Norway",
        "name: Bob; place: Rome, Italy",
    ]


def test_the_first_row_below_a_long_line_of_names_is_asked_about(tmp_path: Path) -> None:
    columns = range(200)
    table = "\n".join(",".join(f"{of} of column {n}" for n in columns) for of in ("name", "one", "two"))
    (text,) = documents.read_corpus(papers.write(tmp_path, {"a.csv": table})).texts
    said = [one.sentence for one in asked_sentences(text)]
    assert [one.partition(";")[0] for one in said[-2:]] == [
        "name of column 0: one of column 0",
        "name of column 0: two of column 0",
    ]


def test_a_row_that_is_none_is_named_by_its_line_in_the_file(tmp_path: Path) -> None:
    cells = "," * table_rows.MOST_CELLS
    files: dict[str, bytes | str] = {"a.csv": f"\nsep=,\n\na,b\n{cells}\n", "b.txt": "text"}
    corpus = documents.read_corpus(papers.write(tmp_path, files))
    assert str(corpus.manifest[0].reason).startswith("line 5 is no row of a table")


def test_a_first_line_that_is_too_long_is_no_row(tmp_path: Path) -> None:
    root = papers.write(tmp_path, {"a.csv": "word " * (table_rows.LONGEST_ROW // 5 + 1), "b.txt": "text"})
    reason = documents.read_corpus(root).manifest[0].reason
    assert str(reason).startswith("line 1 is no row of a table: longer than")


def test_a_turn_in_parts_is_read() -> None:
    parts = [{"type": "text", "text": "hi there"}, {"type": "image_url", "image_url": {}}, {"text": "Ada"}]
    turns = [{"role": "user", "content": parts}, {"role": "assistant", "content": "ho"}]
    assert tables.row_text({"messages": turns}) == "user: hi there\nAda\n\nassistant: ho"


def test_a_long_text_may_end_with_blank_lines(tmp_path: Path) -> None:
    text = "a" * (plain.PIECE - 3) + "\n" * 4
    files: dict[str, bytes | str] = {"a.txt": text, "b.txt": "\n" * (plain.PIECE + 9), "c.txt": "last"}
    corpus = documents.read_corpus(papers.write(tmp_path, files))
    assert "".join(corpus.texts) == f"{text}last"
    assert [(one.documents, one.reason) for one in corpus.manifest] == [(1, None), (0, "empty"), (1, None)]


@pytest.mark.parametrize("codec", ["utf-16", "utf-32"])
def test_a_codec_that_misses_its_mark_costs_the_file_alone(codec: str) -> None:
    with pytest.raises(Unreadable, match=f"not whole {codec}"):
        list(decoded(lambda: [b"no mark!"], Encoding(codec)))


def test_a_few_broken_bytes_in_utf_8_are_replaced_and_counted(tmp_path: Path) -> None:
    text = ("Größe über alles. " * 20).encode()
    root = papers.write(tmp_path, {"a.txt": text[:100] + b"\xff" + text[100:] + b"\xc3"})
    corpus = documents.read_corpus(root)
    assert corpus.manifest[0].reason == "2 places replaced where the text is not UTF-8"
    assert corpus.texts[0].replace("\ufffd", "") == text.decode()


def test_a_byte_that_is_not_utf_8_may_come_after_the_first_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "BLOCK", 64)
    late = b"plain words\n" * 40 + "Größe über Zürich, sehr schön\n".encode("latin-1") * 3
    corpus = documents.read_corpus(papers.write(tmp_path, {"a.txt": late, "b.txt": b"x" * 100 + b"\0"}))
    assert corpus.texts == (late.decode("latin-1"),)
    assert corpus.manifest[1].reason == "binary data, not text"


@pytest.mark.parametrize("size", [7, 64, 10_000])
@pytest.mark.parametrize(("at", "places"), [(0, 1), (30, 1), (62, 3), (500, 3), (899, 1)])
def test_characters_across_blocks_are_whole_behind_a_broken_byte(size: int, at: int, places: int) -> None:
    """A byte within a character breaks it in two."""
    words = ("насос " * 90).encode()
    text = words[:at] + b"\xff" + words[at:]
    found = find(text[i : i + size] for i in range(0, len(text), size))
    assert found.note == f"{counted(places, 'place')} replaced where the text is not UTF-8"


@given(st.text("ab \n", max_size=300), st.integers(2, 60), st.lists(st.integers(1, 50), max_size=5))
def test_pieces_of_a_text_make_up_the_text(text: str, size: int, cuts: list[int]) -> None:
    parts, rest = [], text
    for cut in cuts:
        parts.append(rest[:cut])
        rest = rest[cut:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain, "PIECE", size)
        found = list(pieces([*parts, rest]))
    assert "".join(piece.text for piece in found) == text
    assert [piece.goes_on for piece in found] == [True] * (len(found) - 1) + [False]
    assert all(len(piece.text) <= size for piece in found)


def test_a_long_text_is_cut_where_a_paragraph_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "PIECE", 40)
    text = "First words of it.\n\nSecond.\nThird.\n\nLast words of the whole text."
    assert [piece.text for piece in pieces([text])] == [text[:36], text[36:]]


@given(st.lists(st.text("ab", max_size=12), max_size=8), st.integers(1, 5))
def test_lines_come_whole_and_long_ones_cut_off(lines: list[str], width: int) -> None:
    text = "\n".join(lines)
    parts = [text[i : i + width] for i in range(0, len(text), width)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "LONGEST_LINE", 8)
        found = list(tables.lines(parts))
    for line, read in zip(lines, found, strict=False):
        assert read == line + "\n" or read == line or (len(line) > 8 and read.startswith(line[:8]))
    assert len(found) == text.count("\n") + (not text.endswith("\n") and bool(text))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    )
)
def test_any_row_of_json_gives_a_text(row: object) -> None:
    assert isinstance(tables.row_text(row), str)


# Near-duplicates -----------------------------------------------------------------------------------------


def signed(*pieces: str) -> Signature:
    signature = Signature()
    for piece in pieces:
        signature.add(piece)
    return signature


def words(seed: int, count: int) -> list[str]:
    return random.Random(seed).choices([f"word{n}" for n in range(2000)], k=count)


@pytest.mark.parametrize("seed", range(4))
def test_a_text_with_a_word_changed_is_a_near_duplicate_and_another_text_is_none(seed: int) -> None:
    text = words(seed, 400)
    changed = [*text[:200], "otherwise", *text[201:]]
    similar = SimilarFiles()
    assert similar.add("a", "1", signed(" ".join(text))) is None
    assert similar.add("b", "2", signed(" ".join(words(seed + 100, 400)))) is None
    twin = similar.add("c", "3", signed("\n".join(changed).upper()))
    assert twin is not None and twin[0] == "a" and twin[1] >= SIMILAR
    assert similar.add("d", "1", signed("")) == ("a", 1.0)


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9])
def test_the_share_is_that_of_the_shingles(kept: float) -> None:
    first, second = words(1, 1000), words(2, 1000)
    mixed = first[: round(1000 * kept)] + second[round(1000 * kept) :]
    one, two = (set(shingles(" ".join(text)).tolist()) for text in (first, mixed))
    bins = [signed(" ".join(text)).bins() for text in (first, mixed)]
    assert bins[0] is not None and bins[1] is not None
    assert float((bins[0] == bins[1]).mean()) == pytest.approx(len(one & two) / len(one | two), abs=0.15)


@pytest.mark.parametrize("before", [True, False])
def test_a_book_with_a_further_chapter_is_a_near_duplicate(before: bool) -> None:
    book, chapter = words(3, 60_000), words(4, 4000)
    similar = SimilarFiles()
    assert similar.add("a", None, signed(" ".join(book))) is None
    twin = similar.add("b", None, signed(" ".join([*chapter, *book] if before else [*book, *chapter])))
    assert twin is not None and twin[1] == pytest.approx(60 / 64, abs=0.05)


def test_a_book_has_one_signature_whole_and_in_rows() -> None:
    """As of a text and of a jsonl file."""
    book = words(3, 60_000)
    whole = signed(" ".join(book)).bins()
    rows = signed(*(" ".join(book[at : at + 7]) for at in range(0, len(book), 7))).bins()
    assert whole is not None and rows is not None and (whole == rows).all()


def test_a_book_of_which_some_parts_stand_in_another_is_no_near_duplicate() -> None:
    book, other = (" ".join(words(seed, 25_000)) for seed in (5, 6))
    size, width = 200_000, 2**14
    for part in range(4):
        start = round(part / 3 * (size - width))
        other = other[:start] + book[start : start + width] + other[start + width :]
    similar = SimilarFiles()
    assert similar.add("a", None, signed(book[:size])) is None
    assert similar.add("b", None, signed(other[:size])) is None


@pytest.mark.parametrize("seed", range(3))
def test_short_files_are_near_duplicates_only_by_their_exact_share(seed: int) -> None:
    """Pages of one template: their few bins made many seem more alike than they are."""
    rng, similar, kept = random.Random(seed), SimilarFiles(), dict[str, set[int]]()
    template, twins = [f"common{n}" for n in range(45)], 0
    for number in range(300):
        text = " ".join([*template, *(f"own{rng.randrange(10**6)}" for _ in range(rng.randint(3, 12)))])
        mine = set(shingles(text).tolist())
        twin = similar.add(str(number), None, signed(text))
        if twin is None:
            kept[str(number)] = mine
        else:
            other = kept[twin[0]]
            assert twin[1] == len(mine & other) / len(mine | other) >= SIMILAR
            twins += 1
    assert twins


def test_many_files_cost_little_memory_each_and_all_twins_among_them_are_found() -> None:
    rng, similar, reports = np.random.default_rng(5), SimilarFiles(), []
    texts = [" ".join(map(str, rng.integers(0, 10**6, 40))) for _ in range(3000)]
    signatures = [signed(text) for text in texts]
    for signature in signatures:
        signature.bins()  # hashed before memory is counted
    tracemalloc.start()
    try:
        for n, signature in enumerate(signatures):
            path, sha256 = f"folder/{n}.md", hashlib.sha256(str(n).encode()).hexdigest()
            assert similar.add(path, sha256, signature) is None
            reports.append(
                FileReport(path, "read", None, sha256, "utf-8", 1000 + n, 2000 + n, "text", n, 1, 1)
            )
        assert tracemalloc.get_traced_memory()[0] < 1500 * len(reports)
    finally:
        tracemalloc.stop()
    for n in range(0, 3000, 50):
        twin = similar.add("again", None, signed(texts[n] + " 1"))
        assert twin is not None and twin[0] == f"folder/{n}.md"


def test_languages_without_spaces_have_words_too() -> None:
    text = (
        "東京は日本の首都であり、世界最大の都市の一つです。人口は約千四百万人で、川が流れています。"
        "春には桜が咲き、夏には花火大会が開かれます。古い寺と新しい塔が並び、電車は朝から夜まで走ります。"
    )
    similar = SimilarFiles()
    assert similar.add("a", None, signed(text)) is None
    assert similar.add("b", None, signed(text.replace("首都", "都心"))) is not None
    assert similar.add("c", None, signed(SENTENCES["gb18030"])) is None


def test_a_list_in_a_cell_makes_no_item_of_what_follows_the_table(tmp_path: Path) -> None:
    letter = papers.docx(CELL + papers.paragraph("The fee is 5."))
    assert documents.read_corpus(papers.write(tmp_path, {"a.docx": letter})).texts == (
        "Fees\n\nThe fee is 5.\n\n",
    )


def test_a_box_of_word_keeps_its_paragraphs(tmp_path: Path) -> None:
    """A table of one cell, as around a warning or a command; further rows are lines."""
    lines = papers.paragraph("apt update") + papers.paragraph("apt install foo")
    box = f"<w:tbl><w:tr><w:tc>{lines}</w:tc></w:tr></w:tbl>"
    rows = f"<w:tbl><w:tr><w:tc>{lines}</w:tc></w:tr><w:tr><w:tc>{lines}</w:tc></w:tr></w:tbl>"
    letter = papers.docx(box + papers.paragraph("Done.") + rows + papers.paragraph("So."))
    assert documents.read_corpus(papers.write(tmp_path, {"a.docx": letter})).texts == (
        "apt update\n\napt install foo\n\nDone.\n\n"
        "apt update\n\napt install foo\n\napt update apt install foo\n\nSo.\n\n",
    )


def test_a_first_letter_that_word_sets_apart_stays_with_its_word(tmp_path: Path) -> None:
    apart = '<w:pPr><w:framePr w:dropCap="drop" w:lines="3"/></w:pPr>'
    framed = '<w:pPr><w:framePr w:dropCap="none"/></w:pPr>'
    letter = papers.docx(
        papers.paragraph("T", apart) + papers.paragraph("he firm.") + papers.paragraph("Note", framed)
    )
    assert documents.read_corpus(papers.write(tmp_path, {"a.docx": letter})).texts == (
        "The firm.\n\nNote\n\n",
    )


def test_near_duplicates_are_named_and_may_be_skipped(tmp_path: Path) -> None:
    text = " ".join(words(5, 300))
    other, more = " ".join(words(6, 300)), " ".join(words(7, 30))
    root = papers.write(tmp_path, {"a.md": text, "b.txt": f"{text} {more}", "c.md": other})
    corpus = documents.read_corpus(root)
    assert [row.near_duplicate_of for row in corpus.manifest] == [None, "a.md", None]
    assert str(manifest_rows(corpus.manifest)[1]["reason"]).startswith("near-duplicate of a.md (0.")
    limits = Limits(keep_near_duplicates=False)
    documents.require(root, limits, strict=True)  # they are left out as asked
    fewer = documents.read_corpus(root, limits)
    assert [row.status for row in fewer.manifest] == ["read", "skipped", "read"]
    assert len(fewer.texts) == 2


def test_keeping_drops_what_a_skipped_file_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "PIECE", 16)
    monkeypatch.setattr(plain, "KEPT", 0)
    torn = gzip.compress(b"words and words " * 4000)[:-20]
    files: dict[str, bytes | str] = {"a.txt": "first", "b.txt.gz": torn, "c.txt": "one two three four five"}
    root = papers.write(tmp_path / "docs", files)
    manifest = text_file.keep(root, tmp_path / "run" / "documents.jsonl")
    assert [row.status for row in manifest] == ["read", "skipped", "read"]
    found = list(text_file.load_pieces(tmp_path / "run" / "documents.jsonl"))
    assert found == [TextPiece("first"), TextPiece("one two three ", goes_on=True), TextPiece("four five")]
