"""Exponents, indices, marks of notes and deleted text, in every format and in what is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Union

import pytest

from pipelines.corpus.documents import read_corpus
from pipelines.corpus.markup.raised import raised
from pipelines.corpus.prose import prose_sentences
from pipelines.corpus.reading.site_markup import cleaned
from tests.support import papers

pytestmark = pytest.mark.usefixtures("kept_parsers")


@pytest.mark.parametrize(
    ("text", "above", "below"),
    [
        ("6", "⁶", "₆"),
        ("−12", "⁻¹²", "₋₁₂"),
        ("2+", "²⁺", "₂₊"),
        ("1,2", "¹,²", "₁,₂"),
        ("n", "^n", "_n"),
        ("2n", "^2n", "_2n"),
        ("n+1", "^(n+1)", "_(n+1)"),
        ("n − 1", "^(n−1)", "_(n−1)"),
        (" k + 1 - m ", "^(k+1-m) ", "_(k+1-m) "),
        ("3 ", "³ ", "₃ "),
        *((said, said, said) for said in ("st", "e", "max", "[1]", "*", "", " incl. tax ")),
        *((said, said, said) for said in ("well - known", "a - b")),
    ],
)
def test_figures_and_terms_are_set_apart_and_words_are_not(text: str, above: str, below: str) -> None:
    assert (raised(text), raised(text, lowered=True)) == (above, below)


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("Light: 3 × 10<sup>8</sup> m/s, H<sub>2</sub>O.", "Light: 3 × 10⁸ m/s, H₂O."),
        ("The 1<sup>st</sup> of 2<sup><i>n</i></sup>.", "The 1st of 2^n."),
        ("From −(2<sup><i>n</i> − 1</sup>) on.", "From −(2^(n−1)) on."),
        ("It is <del>not</del> so, <s>never</s> at all.", "It is so, at all."),
        (
            'It rains.<sup><a href="#1">1</a></sup> It snows.<sup>[<a href="#2">2</a>]</sup>',
            "It rains. It snows.",
        ),
        ('See <a href="/x">10<sup>6</sup> towns</a>.', "See 10⁶ towns."),
        ("<ul><li>5 m<sup>2</sup></li><li><sup>3</sup>He</li></ul>", "- 5 m²\n- ³He"),
    ],
)
def test_a_page_keeps_its_exponents_and_no_deleted_text(tmp_path: Path, page: str, text: str) -> None:
    papers.write(tmp_path, {"a.html": f"<p>{page}</p>"})
    assert read_corpus(tmp_path).texts == (text,)


def run(text: str, place: str = "baseline", before: str = "") -> str:
    """A run; `before` is what Word noted of its format before a change."""
    return f'<w:r><w:rPr><w:vertAlign w:val="{place}"/>{before}</w:rPr><w:t>{text}</w:t></w:r>'


def test_office_files_keep_their_exponents_and_no_furigana(tmp_path: Path) -> None:
    above, below = "superscript", "subscript"
    parts = [
        run("It has 10"),
        run("-", above),
        run("6", above),
        run(" of H"),
        run("2", below),
        run("O, the 1"),
    ]
    was_above = f'<w:rPrChange><w:rPr><w:vertAlign w:val="{above}"/></w:rPr></w:rPrChange>'
    said = "".join(
        [*parts, run("s", above), run("t", above), run(" of "), run("9", before=was_above), run(".")]
    )
    marked = f'<w:pPr><w:rPr><w:vertAlign w:val="{above}"/></w:rPr></w:pPr><w:r><w:t>5</w:t></w:r>'
    ruby = f"<w:r><w:ruby><w:rt>{run('かんじ')}</w:rt><w:rubyBase>{run('漢字')}</w:rubyBase></w:ruby></w:r>"
    letter = "".join(f"<w:p>{part}</w:p>" for part in (said, marked, ruby + run("を読む。")))
    slide = 'It has 10</a:t></a:r><a:r><a:rPr baseline="30000"/><a:t>6</a:t></a:r><a:r><a:t> of it.'
    papers.write(tmp_path, {"a.docx": papers.docx(letter), "b.pptx": papers.pptx({1: slide}, [1])})
    word, slides = read_corpus(tmp_path).texts
    assert word.split("\n\n") == ["It has 10⁻⁶ of H₂O, the 1st of 9.", "5", "漢字を読む。", ""]
    assert slides.strip() == "It has 10⁶ of it."


Part = Union[str, tuple["Part", ...]]  # noqa: UP007 - of a formula


def formula(*parts: Part) -> str:
    """A formula of Word: texts, and parts as (element and its attributes, its parts...)."""
    return "".join(
        f"<w:r><w:t>{part}</w:t></w:r>"
        if isinstance(part, str)
        else f"<m:{part[0]}>{formula(*part[1:])}</m:{str(part[0]).partition(' ')[0]}>"
        for part in parts
    )


BAR_BEFORE, BAR_BEHIND = ("begChr m:val='|'",), ("endChr m:val='|'",)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([("sSup", ("e", "r"), ("sup", "2")), "h"], "r²h"),
        ([("sSubSup", ("e", "x"), ("sub", "i"), ("sup", "2n"))], "x_i^2n"),
        ([("f", ("num", "1"), ("den", "2"))], "1/2"),
        ([("f", ("num", ("sSup", ("e", "x"), ("sup", "2")), "+1"), ("den", "n"))], "(x²+1)/n"),
        ([("rad", ("deg",), ("e", "2")), ("rad", ("deg", "3"), ("e", "n+1"))], "√(2)³√(n+1)"),
        ([("sSup", ("e", "2"), ("sup", ("f", ("num", "1"), ("den", "n")))), "k"], "2^(1/n)k"),
        (["a", ("d", ("e", "b+c"))], "a(b+c)"),
        ([("sSup", ("e", ("d", ("e", "a+b"))), ("sup", "2"))], "(a+b)²"),
        ([("d", ("dPr", BAR_BEFORE, BAR_BEHIND), ("e", "x")), "+", ("d", ("e", "y"))], "|x|+(y)"),
        ([("d", ("e", "x"), ("e", ("d", ("e", "y"))), ("e", ("rad", ("deg",), ("e", "2"))))], "(x|(y)|√(2))"),
        ([("nary", ("sub", "i=1"), ("sup", "n"), ("e", "i"))], "[…]"),
        ([("d", ("e", ("m", ("mr", ("e", "1"), ("e", "2")))))], "[…]"),
        ([("eqArr", ("e", "x=1"), ("e", "y=2"))], "[…]"),
        (["a=", ("bar", ("e", "x"))], "[…]"),
        ([("limLow", ("e", "lim"), ("lim", "n")), "a"], "[…]"),
        ([("f", ("fPr", ("type m:val='noBar'",)), ("num", "n"), ("den", "k"))], "[…]"),
        ([("sSup", ("e", "x"), ("sup", "2", ("d", ("e", "n+1"))))], "[…]"),
    ],
)
def test_formulas_of_word_keep_their_structure(tmp_path: Path, parts: list[Part], said: str) -> None:
    inside = f'<m:oMath xmlns:m="math">{formula(*parts)}</m:oMath>'
    papers.write(tmp_path, {"a.docx": papers.docx(f"<w:p>{run('Take ')}{inside}{run('.')}</w:p>")})
    assert read_corpus(tmp_path).texts[0].strip() == f"Take {said}."


def test_a_formula_behind_one_that_no_line_shows_is_read(tmp_path: Path) -> None:
    shown, left_out = (
        f'<m:oMath xmlns:m="math">{formula(part)}</m:oMath>' for part in (("d", ("e", "x")), ("m", "1"))
    )
    said = f"<w:p>{run('Take ')}{left_out}{run(' of ')}{shown}{run('.')}</w:p>"
    papers.write(tmp_path, {"a.docx": papers.docx(said)})
    assert read_corpus(tmp_path).texts[0].strip() == "Take […] of (x)."


def test_signs_of_the_font_symbol_are_read_and_pictures_of_others_are_not(tmp_path: Path) -> None:
    signs = [
        f'<w:r><w:sym w:font="Symbol" w:char="{code}"/></w:r>' for code in ("F06D", "00B0", "F0A3", "F0B4")
    ]
    micro, degree, at_most, times = signs
    arrow = '<w:r><w:sym w:font="Wingdings" w:char="F0B0"/></w:r>'
    said = "".join(
        [run("10 "), micro, run("m, 37 "), degree, run("C, p "), at_most, run(" 2 "), times, run("3"), arrow]
    )
    papers.write(tmp_path, {"a.docx": papers.docx(f"<w:p>{said}</w:p>")})
    assert read_corpus(tmp_path).texts[0].strip() == "10 μm, 37 °C, p ≤ 2 ×3"


def test_a_text_box_within_a_paragraph_tears_it_into_no_parts(tmp_path: Path) -> None:
    box = f"<w:r><w:txbxContent>{papers.paragraph('Hot!')}{papers.paragraph('Wet!')}</w:txbxContent></w:r>"
    numbered = "<w:pPr><w:numPr/></w:pPr>"
    said = f"<w:p>{numbered}{run('It is sold')}{box}{run(' in Norway.')}</w:p>{papers.paragraph('So.')}"
    cell = f"<w:tbl><w:tr><w:tc><w:p>{run('Price')}{box}{run('5')}</w:p></w:tc></w:tr></w:tbl>"
    papers.write(tmp_path, {"a.docx": papers.docx(said + cell)})
    assert read_corpus(tmp_path).texts[0].split("\n") == [
        *("Hot!", "", "Wet!", "", "- It is sold in Norway.", "So.", "", "Price Hot! Wet! 5", "", "")
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("It has 10<sup>6</sup> kg of H<sub>2</sub>O, <del>not</del> so.", ["It has 10⁶ kg of H₂O, so."]),
        ("Take 10<sup>&minus;3</sup> of *x*<sup>n</sup>.", ["Take 10⁻³ of x^n."]),
        (
            "It snows.<sup>[1](#n1)</sup> It rains.<sup>[\\[2\\]](#n2),[3](#n3)</sup>",
            ["It snows.", "It rains."],
        ),
        ("It has 10\\ :sup:`6` kg of H\\ :sub:`2`\\ O.", ["It has 10⁶ kg of H₂O."]),
        ("It has 5 m{sup}`2` of it.", ["It has 5 m² of it."]),
        ("It is ~~not~~ so.", ["It is so."]),
        ("Write `<sup>` and `<del>` around it.", ["Write <sup> and <del> around it."]),
        ("Write `~~gone~~` or `~~` and `~~`.", ["Write ~~gone~~ or ~~ and ~~."]),
    ],
)
def test_questions_show_exponents_and_no_deleted_text(text: str, said: list[str]) -> None:
    assert prose_sentences(cleaned(text, "md")) == said


def test_an_exponent_of_asciidoc_is_asked_as_one() -> None:
    assert prose_sentences(cleaned("It has 2^10^ parts.", "adoc")) == ["It has 2¹⁰ parts."]


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        ("<msup><mn>10</mn><mn>6</mn></msup>", "10⁶"),
        ("<mrow>\n<msub>\n<mi>x</mi>\n<mi>i</mi>\n</msub> <mo>=</mo> <mn>2</mn></mrow>", "x_i = 2"),
        ("<msubsup><mi>a</mi><mn>1</mn><mrow><mi>n</mi><mo>+</mo><mn>1</mn></mrow></msubsup>", "a₁^(n+1)"),
        ("<msup><mi>f</mi><mo>′</mo></msup><mo>(</mo><mi>x</mi><mo>)</mo>", "f′(x)"),
        ("<mfrac><mn>1</mn><mrow><mn>2</mn><mi>n</mi></mrow></mfrac>", "1/(2n)"),
        ("<msqrt><msup><mi>x</mi><mn>2</mn></msup><mo>+</mo><mn>1</mn></msqrt>", "√(x²+1)"),
        (
            "<mi>sin</mi><mo>&#x2061;</mo><mi>x</mi><mo>=</mo><mn>2</mn><mo>&#x2062;</mo><mi>k</mi>",
            "sin x=2k",
        ),
        ("<semantics><mi>x</mi><annotation>\\mathbf{x}</annotation></semantics>", "x"),
        ("<munderover><mo>∑</mo><mn>1</mn><mi>n</mi></munderover><mi>k</mi>", "[…]"),
        ("<mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>0</mn></mtd></mtr></mtable>", "[…]"),
        ("<msup><mn>10</mn></msup>", "[…]"),
        ("<mn>2</mn><mfrac><mn>1</mn><mn>2</mn></mfrac><mi>n</mi>", "2 1/2 n"),
        ("<mn>2</mn><mo>&#x2062;</mo><mfrac><mn>1</mn><mn>2</mn></mfrac>", "2 1/2"),
        ("<msup><mrow><mfrac><mn>1</mn><mn>2</mn></mfrac></mrow><mn>3</mn></msup>", "(1/2)³"),
        ("<msup><msup><mn>10</mn><mn>3</mn></msup><mn>2</mn></msup>", "(10³)²"),
        ("<msup><mn>2</mn><msup><mn>10</mn><mn>2</mn></msup></msup>", "2^(10²)"),
        ("<msup><mi>e</mi><mi>x</mi></msup><mi>y</mi>", "e^x y"),
        ("<msup><mi>e</mi><mi>x</mi></msup><mo>=</mo><mfrac><mn>1</mn><mn>2</mn></mfrac>", "e^x=1/2"),
        (
            "<mi>k</mi><mo>mod</mo><mi>n</mi><mo>+</mo><mi>log</mi><mo>(</mo><mi>n</mi><mo>)</mo>",
            "k mod n+log(n)",
        ),
        ("<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup><mi>y</mi>", "x_i²y"),
        ("<mn>4</mn><mspace width='1em'/><mn>5</mn>", "4 5"),
        ("<mphantom><mn>3</mn></mphantom><mn>4</mn>", "4"),
        ("<mfrac linethickness='0pt'><mi>n</mi><mi>k</mi></mfrac>", "[…]"),
        ("<maction><mn>1</mn><mn>2</mn></maction>", "[…]"),
    ],
)
def test_a_formula_of_a_page_is_written_on_its_line(tmp_path: Path, formula: str, text: str) -> None:
    page = f"<p>It is <math>{formula}</math> <math><mi>m</mi></math>, by 10<sup>6</sup>.</p>"
    assert read_corpus(papers.write(tmp_path, {"a.html": page})).texts == (f"It is {text} m, by 10⁶.",)


@pytest.mark.parametrize("prefix", ["m", "mml"])
def test_a_formula_whose_elements_have_a_prefix_is_one(tmp_path: Path, prefix: str) -> None:
    power = "<P:msup><P:mn>10</P:mn><P:mn>6</P:mn></P:msup><P:annotation>x</P:annotation>"
    page = f"<p>It is <P:math>{power}</P:math> tons.</p>".replace("P:", f"{prefix}:")
    assert read_corpus(papers.write(tmp_path, {"a.html": page})).texts == ("It is 10⁶ tons.",)


def test_a_formula_that_mediawiki_hides_behind_its_picture_is_read(tmp_path: Path) -> None:
    power = "<math><msup><mn>10</mn><mn>6</mn></msup></math>"
    hidden = (
        f'<span class="mwe-math-mathml-inline mwe-math-mathml-a11y" style="display: none;">{power}</span>'
    )
    page = f'<p>It is {hidden}<img aria-hidden="true" alt="10^6"> tons.</p>'
    assert read_corpus(papers.write(tmp_path, {"a.html": page})).texts == ("It is 10⁶ tons.",)


def test_a_block_within_a_formula_moves_no_exponent(tmp_path: Path) -> None:
    page = "<p>It is <math><msup><mn>10</mn><mtext><p>block</p></mtext><mn>6</mn></msup></math> tons.</p>"
    (text,) = read_corpus(papers.write(tmp_path, {"a.html": page})).texts
    assert text.split() == ["It", "is", "10", "block", "6", "tons."]
