"""Compare the readers with libraries on files made elsewhere: fidelity, speed, and what hostile files do.

    python -m benchmarks.speed.reading_fidelity FOLDER [--write-docs]

FOLDER holds anything; these files in it, at any depth, are compared with a reference:

    encodings  NAME.txt beside NAME-utf8.txt (CPython's test/cjkencodings), and the samples of
               charset-normalizer's source package with the encodings that its tests expect
    html       pages that Sphinx made, beside their sources (`html/X.html`, `html/_sources/X.rst.txt`),
               as in the *-doc packages of Debian
    docx, pptx the text nodes of the document's parts (source packages of python-docx, python-pptx, mammoth)
    similar    pages of 200 words and more: pairs with an exact share of shingles of at least 0.8

Recall is the share of the reference's words that are read, precision the share of read words that are in the
reference, both as means over the files. Times are of one run in one process.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import Row
from benchmarks.ledger import markdown, put
from benchmarks.speed.fidelity.duplicates import alike
from benchmarks.speed.fidelity.hostile import hostile
from benchmarks.speed.fidelity.readers import (
    Reader,
    chardet_text,
    docx_text,
    normalizer_text,
    our_text,
    ours_by,
    pptx_text,
    trafilatura_text,
)
from benchmarks.speed.fidelity.references import Reference, encoded, office, pages
from pipelines.corpus.reading.html import read_html
from pipelines.corpus.reading.office import read_docx, read_pptx

PAGE = Path(__file__).parents[2] / "docs" / "documents.md"
WORD = re.compile(r"\w+")


def words(text: str) -> Counter[str]:
    return Counter(word.casefold() for word in WORD.findall(text))


def compare(what: str, reader: str, read: Reader, files: Sequence[Reference]) -> Row:
    """Read each file and compare its words with the reference."""
    recalls = []
    precisions = []
    failed = 0
    begun = time.perf_counter()
    texts = []
    for path, _ in files:
        try:
            texts.append(read(path))
        except Exception:  # noqa: BLE001 - any exception counts as a file that was not read
            texts.append("")
            failed += 1
    seconds = time.perf_counter() - begun
    for (_, reference), text in zip(files, texts, strict=True):
        wanted, given = words(reference), words(text)
        common = (wanted & given).total()
        recalls.append(common / max(1, wanted.total()))
        precisions.append(common / max(1, given.total()))
    count = max(1, len(files))
    return {
        "what": what,
        "reader": reader,
        "files": len(files),
        "not read": failed,
        "recall": sum(recalls) / count,
        "precision": sum(precisions) / count,
        "s": seconds,
    }


def measure(folder: Path) -> list[Row]:
    encoded_files = encoded(folder)
    page_files = pages(folder)
    word_files = office(folder, "docx", r"word/(document\d*|footnotes|endnotes)\.xml")
    slide_files = office(folder, "pptx", r"ppt/(slides/slide|notesSlides/notesSlide)\d+\.xml")
    return [
        compare("encodings", "ours", our_text, encoded_files),
        compare("encodings", "charset-normalizer", normalizer_text, encoded_files),
        compare("encodings", "chardet", chardet_text, encoded_files),
        compare("html", "ours", ours_by(read_html), page_files),
        compare("html", "trafilatura", trafilatura_text, page_files),
        compare("docx", "ours", ours_by(read_docx), word_files),
        compare("docx", "python-docx", docx_text, word_files),
        compare("pptx", "ours", ours_by(read_pptx), slide_files),
        compare("pptx", "python-pptx", pptx_text, slide_files),
        *alike(folder),
    ]


def page(rows: list[Row], attacks: list[Row]) -> str:
    names = ["what", "reader", "files", "not read", "recall", "precision", "s", "KB a file"]
    table = markdown([{name: row.get(name, "") for name in names} for row in rows])
    when = f"One run on {os.cpu_count()} cores that did other things meanwhile."
    return f"{when}\n\n{table}\n\n{markdown(attacks)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Readers and libraries on files made elsewhere.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write-docs", action="store_true", help="put the tables into docs/documents.md")
    options = parser.parse_args()
    found = page(measure(options.folder), hostile())
    print(found)
    sys.stdout.flush()
    if options.write_docs:
        put(PAGE, "fidelity", found)


if __name__ == "__main__":
    main()
