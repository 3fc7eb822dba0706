"""PDFs as they read: pages without what only paper needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.corpus.reading.formats import Limits
from pipelines.corpus.reading.pdf import read_pdf
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
            text = "".join(read_pdf(Source(file.fileno(), False, Limits()), facts))
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
