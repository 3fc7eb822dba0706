"""PDFs as they read: pages without what only paper needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.corpus.reading import pdf
from pipelines.corpus.reading.formats import Limits
from pipelines.corpus.reading.plain import FileFacts, Source
from tests.support import papers


class Read:
    """Read a PDF: its text, and the remark on it in `note`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.note: str | None = None

    def __call__(self, data: bytes) -> str:
        self.path.write_bytes(data)
        facts = FileFacts()
        with self.path.open("rb") as file:
            text = "".join(pdf.read_pdf(Source(file.fileno(), False, Limits()), facts))
        self.note = facts.note
        return text


@pytest.fixture
def read(tmp_path: Path) -> Read:
    return Read(tmp_path / "a.pdf")


@pytest.mark.parametrize(
    ("line", "is_left_out"),
    [
        ("2.1 Getting started . . . . . . . 2", True),
        ("command search.....1, 2", True),
        ("Preface ..... iv", True),
        (". . . . . 2", True),
        ("Tea ..... 3", False),  # a price: the file has two pages
        ("Then .... 2", False),
        ("What now ..... il", False),
        ("Weight ..... 2 kg", False),
    ],
)
def test_lines_of_contents_are_left_out(read: Read, line: str, is_left_out: bool) -> None:
    text = read(papers.pdf(f"{line}\nIt begins.", "It ends."))
    assert text == ("" if is_left_out else f"{line}\n") + "It begins.\n\nIt ends.\n\n"


def test_a_page_of_contents_is_no_page_without_text(read: Read) -> None:
    assert read(papers.pdf("Alpha ..... 2", "It begins.")) == "It begins.\n\n"
    assert read.note is None


BODY = [
    f"{name} stands here.\nSo does {name.lower()} wood."
    for name in ("Ash", "Birch", "Cedar", "Dogwood", "Elm", "Fir")
]


@pytest.mark.parametrize(
    "form", ["Part {0}: Trees {1}\n{2}", "{1}  Part {0}\n{2}", "{2}\n- {1} -", "Page {1} of 99\n{2}"]
)
def test_numbers_of_pages_are_left_out_with_the_heads_and_feet_that_hold_them(read: Read, form: str) -> None:
    pages = [form.format(at // 2, at + 7, body) for at, body in enumerate(BODY)]
    assert read(papers.pdf(*pages)) == "".join(f"{body}\n\n" for body in BODY)


def test_a_heading_with_the_number_of_its_page_stays_where_the_page_is_numbered(read: Read) -> None:
    pages = [
        f"{'3 Elms' if at == 2 else 'Trees'} stand\n{body}\nSome Publisher {at + 1}"
        for at, body in enumerate(BODY)
    ]
    assert "3 Elms stand" in read(papers.pdf(*pages)).splitlines()


def test_heads_and_feet_without_numbers_are_read_once(read: Read) -> None:
    pages = [f"{'Trees' if at % 2 else 'A guide'}\n{body}\nDraft of May" for at, body in enumerate(BODY * 2)]
    first, second, *others = BODY * 2
    assert read(papers.pdf(*pages)) == (
        f"A guide\n{first}\nDraft of May\n\nTrees\n{second}\n\n" + "".join(f"{body}\n\n" for body in others)
    )


def test_running_titles_change_with_the_chapter(read: Read) -> None:
    pages = [f"{'Trees' if at < 12 else 'Herbs'}\n{at}. The text." for at in range(40)]
    text = read(papers.pdf(*pages))
    assert text.count("Trees") == text.count("Herbs") == 1
    assert text.count("The text.") == 40


@pytest.mark.parametrize(
    "pages",
    [
        [f"Title\n{body}\n{at}" for at, body in enumerate(BODY[:3])],  # too few
        [
            f"Invoice {4711 + 3 * at}\n{body}" for at, body in enumerate(BODY)
        ],  # numbers that do not count pages
        [f"{'Refrain.' if at % 4 == 0 else 'Verse.'} {body}" for at, body in enumerate(BODY)],
        [f"{at % 2} {17 * at % 5}\n{body}" for at, body in enumerate(BODY)],
        [f"{at} {at * 7 + 2} {at * 3 + 4}\n{body}" for at, body in enumerate(BODY)],  # a table's rows
    ],
)
def test_first_lines_that_are_no_heads_are_kept(read: Read, pages: list[str]) -> None:
    text = read(papers.pdf(*pages))
    assert [line for line in text.splitlines() if line] == "\n".join(pages).splitlines()


def test_a_sentence_goes_on_behind_the_end_of_its_page(read: Read) -> None:
    text = read(papers.pdf("The old tree stands", "in a gar-", "den. It is an elm.", "It blooms."))
    assert text == "The old tree stands\nin a garden. It is an elm.\n\nIt blooms.\n\n"
    slides = read(papers.pdf("Our goals\nGrow oaks", "Our team\nTwo of us", "1 tree"))
    assert slides == "Our goals\nGrow oaks\n\nOur team\nTwo of us\n\n1 tree\n\n"


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("a key-\nboard", "a keyboard"),
        ("a key-\nboard, Key-Board", "a key-board, Key-Board"),
        ("a key-\nboard, key-board, keyboard", "a keyboard, key-board, keyboard"),
        ("a line-\nwise key-\nboard-driven, line-wise", "a line-wise keyboard-driven, line-wise"),
        ("--enable-strict-\nposix-default", "--enable-strict-posix-default"),
        ("--with-\nbells", "--with-bells"),
        ("well-known-\nish", "well-knownish"),
        ("E-Mail-Adres-\nse, E-Mail-Adresse", "E-Mail-Adresse, E-Mail-Adresse"),
    ],
)
def test_a_hyphen_at_the_end_of_a_line_stays_where_the_word_has_it(read: Read, lines: str, text: str) -> None:
    assert read(papers.pdf(lines)) == f"{text}\n\n"


WIDGET = (
    b"<< /Type /Annot /Subtype /Widget /FT /Tx /T (n%d) /V (%s) /F 4 /Rect [200 %d 400 %d]"
    b" /DA (/F1 12 Tf 0 g) /P 4 0 R %s >>"
)
APPEARANCE = b"/Type /XObject /Subtype /Form /BBox [0 0 200 20] /Resources << /Font << /F1 3 0 R >> >>"


def form() -> bytes:
    """A form with a field as it was drawn, one that a reader draws, and a link."""
    return papers.pdf_objects(
        [
            b"<< /Type /Catalog /Pages 2 0 R /AcroForm << /Fields [6 0 R 7 0 R] /NeedAppearances true"
            b" /DR << /Font << /F1 3 0 R >> >> /DA (/F1 12 Tf 0 g) >> >>",
            b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
            b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R"
            b" /Annots [6 0 R 7 0 R 9 0 R] /Resources << /Font << /F1 3 0 R >> >> >>",
            papers.stream(b"BT /F1 12 Tf 72 720 Td (Name:) Tj 0 -40 Td (Town:) Tj ET"),
            WIDGET % (1, b"Ada", 715, 735, b"/AP << /N 8 0 R >>"),
            WIDGET % (2, b"London", 675, 695, b""),
            papers.stream(b"/Tx BMC BT /F1 12 Tf 2 5 Td (Ada) Tj ET EMC", APPEARANCE),
            b"<< /Type /Annot /Subtype /Link /Rect [72 715 100 735]"
            b" /A << /S /URI /URI (https://a.example) >> >>",
        ]
    )


def test_what_was_filled_into_a_form_is_read(read: Read) -> None:
    assert read(form()).split() == ["Name:", "Town:", "Ada", "London"]


def test_pages_behind_the_most_that_are_read_are_remarked(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pdf, "MOST_PAGES", 2)
    assert read(papers.pdf("One.", "Two.")) == "One.\n\nTwo.\n\n"
    assert read.note is None
    assert read(papers.pdf("One.", "Two.", "Three.", "")) == "One.\n\nTwo.\n\n"
    assert read.note == "2 pages behind the first 2 are not read"
