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
import concurrent.futures
import os
import pickle
import re
import sys
import tempfile
import time
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from benchmarks.ledger import markdown, put
from pipelines.corpus.documents import read_folder
from pipelines.corpus.manifest import FileReport
from pipelines.corpus.reading import encodings, pool, similar
from pipelines.corpus.reading.formats import Limits, Unreadable
from pipelines.corpus.reading.html import read_html
from pipelines.corpus.reading.office import read_docx, read_pptx
from pipelines.corpus.reading.plain import FileFacts, Source
from tests.support import papers

PAGE = Path(__file__).parents[2] / "docs" / "documents.md"
Reader = Callable[[Path], str]
Row = dict[str, Any]
WORD = re.compile(r"\w+")


def words(text: str) -> Counter[str]:
    return Counter(word.casefold() for word in WORD.findall(text))


def compare(what: str, reader: str, read: Reader, files: Sequence[tuple[Path, str]]) -> Row:
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


# Encodings -----------------------------------------------------------------------------------------------


def encoded(folder: Path) -> list[tuple[Path, str]]:
    found = []
    for path in sorted(folder.rglob("*-utf8.txt")):
        legacy = path.with_name(path.name.replace("-utf8", ""))
        if legacy.exists():
            found.append((legacy, path.read_text(encoding="utf-8")))
    for test in sorted(folder.rglob("test_full_detection.py")):
        for name, codec in re.findall(r'\("(sample-[\w.-]+)", "(\w+)", "\w+"\)', test.read_text()):
            path = test.parent.parent / "data" / name
            if path.exists():
                found.append((path, path.read_bytes().decode(codec, "replace")))
    return found


def our_text(path: Path) -> str:
    data = path.read_bytes()
    plain = encodings.plain_utf8(data)
    if plain is not None:
        return plain
    return "".join(encodings.decoded(lambda: [data], encodings.find([data])))


def normalizer_text(path: Path) -> str:
    import charset_normalizer

    return str(charset_normalizer.from_bytes(path.read_bytes()).best() or "")


def chardet_text(path: Path) -> str:
    import chardet

    data = path.read_bytes()
    return data.decode(chardet.detect(data)["encoding"] or "utf-8", "replace")


# Pages and Office files ----------------------------------------------------------------------------------


def pages(folder: Path) -> list[tuple[Path, str]]:
    found = []
    for source in sorted(folder.rglob("_sources/**/*.rst.txt")):
        root = next(parent for parent in source.parents if parent.name == "_sources")
        page = root.parent / source.relative_to(root).with_name(
            source.name.removesuffix(".rst.txt") + ".html"
        )
        if page.exists():
            found.append((page, source.read_text(encoding="utf-8")))
    return found


def _ours(read: Callable[[Source, FileFacts], Iterator[str]]) -> Reader:
    def text(path: Path) -> str:
        with path.open("rb") as file:
            return "".join(read(Source(file.fileno(), False, Limits()), FileFacts()))

    return text


def trafilatura_text(path: Path) -> str:
    import trafilatura

    return trafilatura.extract(path.read_bytes(), favor_recall=True) or ""


def office(folder: Path, suffix: str, parts: str) -> list[tuple[Path, str]]:
    """Return Office files with the text nodes of their parts."""
    from lxml import etree

    found = []
    for path in sorted(folder.rglob(f"*.{suffix}")):
        try:
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if re.fullmatch(parts, name)]
                trees = [etree.fromstring(archive.read(name)) for name in names]
        except (zipfile.BadZipFile, etree.XMLSyntaxError):
            continue
        paragraphs = [
            "".join(node.text or "" for node in paragraph.iter("{*}t"))
            for tree in trees
            for paragraph in tree.iter("{*}p")
        ]
        text = "\n".join(paragraphs)
        if text.strip():
            found.append((path, text))
    return found


def docx_text(path: Path) -> str:
    import docx

    document = docx.Document(str(path))
    lines = [paragraph.text for paragraph in document.paragraphs]
    for table in document.tables:
        lines += [" | ".join(cell.text for cell in row.cells) for row in table.rows]
    return "\n".join(lines)


def pptx_text(path: Path) -> str:
    import pptx

    lines = []
    for slide in pptx.Presentation(str(path)).slides:
        for shape in slide.shapes:
            if shape.has_text_frame:
                lines.append(shape.text_frame.text)
            if shape.has_table:
                lines += [" | ".join(cell.text for cell in row.cells) for row in shape.table.rows]
        if slide.has_notes_slide:
            lines.append(slide.notes_slide.notes_text_frame.text)
    return "\n".join(lines)


# Near-duplicates -----------------------------------------------------------------------------------------


def alike(folder: Path, most: int = 400) -> list[Row]:
    """Find pairs of pages by both ways; the reference is the exact share of runs of five words."""
    texts = [_ours(read_html)(page) for page in sorted(folder.rglob("*.html"))[:most] if _is_read(page)]
    texts = [text for text in texts if len(text.split()) >= 200]
    sets = [set(similar.shingles(text).tolist()) for text in texts]
    wanted = set()
    for one, other in combinations(range(len(texts)), 2):
        shared = len(sets[one] & sets[other])
        if shared >= similar.SIMILAR * (len(sets[one]) + len(sets[other]) - shared):
            wanted.add(other)
    return [
        _alike_row(name, find, texts, wanted)
        for name, find in (("ours", _ours_alike), ("datasketch", _sketch))
    ]


def _is_read(page: Path) -> bool:
    try:
        return bool(_ours(read_html)(page))
    except Unreadable:
        return False


def _alike_row(name: str, find: Callable[[list[str]], set[int]], texts: list[str], wanted: set[int]) -> Row:
    begun = time.perf_counter()
    found = find(texts)
    seconds = time.perf_counter() - begun
    tracemalloc.start()
    find(texts)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "what": "similar",
        "reader": name,
        "files": len(texts),
        "recall": len(found & wanted) / max(1, len(wanted)),
        "precision": len(found & wanted) / max(1, len(found)),
        "s": seconds,
        "KB a file": held / 1024 / max(1, len(texts)),
    }


def _ours_alike(texts: list[str]) -> set[int]:
    known = similar.SimilarFiles()
    found = set()
    for number, text in enumerate(texts):
        signature = similar.Signature()
        signature.add(text)
        if known.add(str(number), None, signature):
            found.add(number)
    return found


def _sketch(texts: list[str]) -> set[int]:
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(threshold=similar.SIMILAR, num_perm=128)
    found = set()
    for number, text in enumerate(texts):
        said = text.lower().split()
        sketch = MinHash(num_perm=128)
        sketch.update_batch([" ".join(said[at : at + 5]).encode() for at in range(max(1, len(said) - 4))])
        if index.query(sketch):
            found.add(number)
        index.insert(str(number), sketch)
    return found


# Hostile files -------------------------------------------------------------------------------------------

HOSTILE: dict[str, bytes] = {
    "zip bomb (docx)": papers.zip_bomb(),
    "entity bomb (docx)": papers.entity_bomb(),
    "deep page (html)": b"<div>" * 100_000 + b"inside" + b"</div>" * 100_000,
    "a row of cells without end (html)": b"<table><tr>" + b"<td>cell" * 60_000,
}


def hostile() -> list[Row]:
    """Return the seconds that each hostile file takes, in processes with 1 GiB of memory and 20 s."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for name, data in HOSTILE.items():
            suffix = re.findall(r"\((\w+)\)", name)[0]
            path = Path(place) / f"file.{suffix}"
            path.write_bytes(data)
            ours = {"html": _ours(read_html), "docx": _ours(read_docx)}[suffix]
            theirs = {"html": trafilatura_text, "docx": docx_text}[suffix]
            rows.append(
                {"hostile file": name, "ours": _in_child(ours, path), "library": _in_child(theirs, path)}
            )
    rows.append(
        {"hostile file": "a parser that answers with a pickle", "ours": _our_pickled(), "library": _pickled()}
    )
    return rows


def _in_child(read: Reader, path: Path) -> str:
    """Read in a forked process with limits; return what came of it."""
    import resource

    begun = time.perf_counter()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = 1
        try:
            code = 0 if read(path) else 3
        except (Unreadable, RecursionError):
            code = 2
        except MemoryError:
            code = 4
        except BaseException:  # noqa: BLE001 - a child must not return
            code = 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    outcomes = {0: "read", 2: "refused", 3: "nothing", 4: "out of memory"}
    outcome = outcomes.get(os.waitstatus_to_exitcode(status), "killed by a limit")
    return f"{outcome}, {time.perf_counter() - begun:.1f} s"


class _Runs:
    """A pickle payload with which a compromised parser could attack a pool that unpickles results."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.getpid, ()


def _answer_with_code() -> _Runs:
    return _Runs()


def _pickled() -> str:
    """Make concurrent.futures return a result that runs a function on unpickling."""
    with concurrent.futures.ProcessPoolExecutor(1) as executor:
        answer: object = executor.submit(_answer_with_code).result()
    return "runs its code in the parent" if answer == os.getpid() else "refused"


def _our_pickled() -> str:
    """Make a parsing process of this project's pool return such a pickle."""
    answer = pickle.dumps(_Runs())
    start = pool.START
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "a.html").write_text("<p>page")
        try:
            pool.START = f"import os, sys; os.write(int(sys.argv[1]), {answer!r})"
            (report,) = [one for one in read_folder(Path(place)) if isinstance(one, FileReport)]
        finally:
            pool.START = start
    return "refused" if report.status == "skipped" else "read"


# The table -----------------------------------------------------------------------------------------------


def measure(folder: Path) -> list[Row]:
    encoded_files = encoded(folder)
    page_files = pages(folder)
    word_files = office(folder, "docx", r"word/(document\d*|footnotes|endnotes)\.xml")
    slide_files = office(folder, "pptx", r"ppt/(slides/slide|notesSlides/notesSlide)\d+\.xml")
    return [
        compare("encodings", "ours", our_text, encoded_files),
        compare("encodings", "charset-normalizer", normalizer_text, encoded_files),
        compare("encodings", "chardet", chardet_text, encoded_files),
        compare("html", "ours", _ours(read_html), page_files),
        compare("html", "trafilatura", trafilatura_text, page_files),
        compare("docx", "ours", _ours(read_docx), word_files),
        compare("docx", "python-docx", docx_text, word_files),
        compare("pptx", "ours", _ours(read_pptx), slide_files),
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
