"""Compare the speed of reading a folder with that of the libraries alone on the same files.

    python -m benchmarks.speed.reading [--files 40] [--rounds 5] [--json] [--write-docs]

Generate files of every format and read them, kind by kind and all together, in four alternating ways:

    bare    the minimum that yields text, sequentially in this process: read and decode, lxml's text of a
            page, menus and all, the text nodes of Office files without paragraphs
    alone   the libraries for this work, nothing else: charset-normalizer where it is not UTF-8, gzip, json
            and csv of the standard library, trafilatura, PDFium, python-docx and python-pptx
    same    the same, with the manifest's sha256 and the search for near-duplicates
    ours    `read_folder` with progress. It also walks without following links, looks for binary data, detects
            tables and lists, and parses complex formats in limited processes

CPU seconds are those of this process and of its children: the fair measure on a busy machine. Wall seconds
are the user's wait; `ours` parses in as many processes as there are cores (at most 4), the others in one.
The libraries come with the extra `bench`: `pip install -e '.[bench]'`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import io
import json
import os
import random
import resource
import statistics
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.ledger import markdown, put
from pipelines.corpus import documents
from pipelines.corpus.reading.plain import TextPiece
from pipelines.corpus.reading.similar import Signature, SimilarFiles
from tests.support import papers

PAGE = Path(__file__).parents[2] / "docs" / "documents.md"

PEERS = ("trafilatura", "docx", "pptx")
WORDS = [a + b + c for a in ("ka", "lo", "mi", "nu") for b in ("ta", "si", "no") for c in ("n", "s", "")]


def prose(rng: random.Random, words: int) -> str:
    """Return paragraphs of random words."""
    text = rng.choices(WORDS, k=words)
    return "\n\n".join(" ".join(text[at : at + 60]) + "." for at in range(0, words, 60))


def make(folder: Path, files: int, seed: int = 0) -> None:
    """Write `files` files of each kind, of typical size."""
    rng = random.Random(seed)
    for n in range(files):
        text = prose(rng, 3000)
        lines = text.split("\n\n")
        tags = "".join(f'<div class="p"><p>{line} <a href="#">link</a></p></div>' for line in lines)
        rows = [{"id": i, "text": line} for i, line in enumerate(lines)]
        papers.write(
            folder,
            {
                f"{n}.txt": text * 10,
                f"{n}-latin.txt": f"Größe über Zürich. {text}".encode("latin-1"),
                f"{n}.md": text,
                f"{n}.md.gz": gzip.compress(text.encode()),
                f"{n}.jsonl": "\n".join(map(json.dumps, rows)),
                f"{n}.csv": "id,text\n" + "".join(f'{row["id"]},"{row["text"]}"\n' for row in rows),
                f"{n}.html": f"<html><head><title>t</title></head><body><main>{tags}</main></body></html>",
                f"{n}.pdf": papers.pdf(*(line.replace(" ", "\n", 12) for line in lines[:25])),
                f"{n}.docx": _docx(lines),
                f"{n}.pptx": _pptx(lines),
            },
        )


def _docx(lines: list[str]) -> bytes:
    import docx

    made = docx.Document()
    out = io.BytesIO()
    for line in lines:
        made.add_paragraph(line)
    made.save(out)
    return out.getvalue()


def _pptx(lines: list[str]) -> bytes:
    import pptx

    made = pptx.Presentation()
    out = io.BytesIO()
    for line in lines[:20]:
        slide = made.slides.add_slide(made.slide_layouts[1])
        slide.shapes.title.text = "Title"
        slide.placeholders[1].text = line
    made.save(out)
    return out.getvalue()


# The libraries alone -----------------------------------------------------------------------------------


def text_alone(path: Path) -> str:
    data = path.read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError:
        import charset_normalizer

        return str(charset_normalizer.from_bytes(data).best())


def gzip_alone(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def jsonl_alone(path: Path) -> str:
    with path.open() as file:
        return "\n".join(json.loads(line)["text"] for line in file)


def csv_alone(path: Path) -> str:
    with path.open(newline="") as file:
        return "\n".join(f"id: {row['id']}; text: {row['text']}" for row in csv.DictReader(file))


def html_bare(path: Path) -> str:
    from lxml import html

    return str(html.fromstring(path.read_bytes()).text_content())


def html_alone(path: Path) -> str:
    import trafilatura

    return trafilatura.extract(path.read_bytes()) or ""


def pdf_alone(path: Path) -> str:
    import pypdfium2 as pdfium

    document = pdfium.PdfDocument(path)
    return "\n\n".join(page.get_textpage().get_text_range() for page in document)


def docx_alone(path: Path) -> str:
    import docx

    return "\n\n".join(paragraph.text for paragraph in docx.Document(str(path)).paragraphs)


def pptx_alone(path: Path) -> str:
    import pptx

    shapes = [shape for slide in pptx.Presentation(str(path)).slides for shape in slide.shapes]
    return "\n\n".join(shape.text_frame.text for shape in shapes if shape.has_text_frame)


def _xml_texts(path: Path, prefix: str) -> str:
    from lxml import etree

    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.startswith(prefix)]
        trees = [etree.fromstring(archive.read(name)) for name in names]
    return "\n".join("".join(tree.itertext()) for tree in trees)


Reader = Callable[[Path], str]
ALONE: dict[str, Reader] = {
    ".txt": text_alone,
    ".md": text_alone,
    ".gz": gzip_alone,
    ".jsonl": jsonl_alone,
    ".csv": csv_alone,
    ".html": html_alone,
    ".pdf": pdf_alone,
    ".docx": docx_alone,
    ".pptx": pptx_alone,
}
BARE = ALONE | {
    ".html": html_bare,
    ".docx": partial(_xml_texts, prefix="word/document.xml"),
    ".pptx": partial(_xml_texts, prefix="ppt/slides/slide"),
}


KINDS = {
    "text": ("txt", "md", "gz"),
    "jsonl": ("jsonl",),
    "csv": ("csv",),
    "html": ("html",),
    "pdf": ("pdf",),
    "docx": ("docx",),
    "pptx": ("pptx",),
}
KINDS["all"] = tuple(suffix for suffixes in KINDS.values() for suffix in suffixes)


def _characters(folder: Path, readers: dict[str, Reader]) -> int:
    return sum(len(readers[path.suffix](path)) for path in sorted(folder.iterdir()))


def same(folder: Path) -> int:
    similar = SimilarFiles()
    characters = 0
    for path in sorted(folder.iterdir()):
        text = ALONE[path.suffix](path)
        signature = Signature()
        signature.add(text)
        similar.add(path.name, hashlib.sha256(path.read_bytes()).hexdigest(), signature)
        characters += len(text)
    return characters


def ours(folder: Path) -> int:
    found = documents.read_folder(folder, progress=lambda files, size: None)
    return sum(len(one.text) for one in found if isinstance(one, TextPiece))


WAYS: dict[str, Callable[[Path], int]] = {
    "bare": partial(_characters, readers=BARE),
    "alone": partial(_characters, readers=ALONE),
    "same": same,
    "ours": ours,
}


def processor_seconds() -> float:
    """Return the CPU time of this process and of its finished children."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def compare(folder: Path, rounds: int) -> dict[str, Any]:
    """Return median seconds, in alternating order, after one discarded round."""
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for turn in range(rounds + 1):
        for name in list(WAYS)[:: 1 if turn % 2 else -1]:
            begun = time.perf_counter()
            used = processor_seconds()
            WAYS[name](folder)
            spent = time.perf_counter() - begun, processor_seconds() - used
            took[name] += [spent] if turn else []
    wall, cpu = (
        {name: statistics.median(one[place] for one in values) for name, values in took.items()}
        for place in (0, 1)
    )
    return {f"{name}, CPU s": seconds for name, seconds in cpu.items()} | {
        "CPU ours / bare": cpu["ours"] / cpu["bare"],
        "CPU ours / alone": cpu["ours"] / cpu["alone"],
        "CPU ours / same": cpu["ours"] / cpu["same"],
        "wall ours / alone": wall["ours"] / wall["alone"],
    }


def measure(files: int, rounds: int, kinds: Iterable[str]) -> list[dict[str, Any]]:
    """Return one row per kind of file."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "all"
        whole.mkdir()
        make(whole, files)
        for kind in kinds:
            folder = Path(place) / f"only-{kind}"
            folder.mkdir()
            chosen = [path for path in whole.iterdir() if path.suffix[1:] in KINDS[kind]]
            for path in chosen:
                os.link(path, folder / path.name)
            size = sum(path.stat().st_size for path in chosen)
            print(f"  {kind}: {len(chosen)} files", file=sys.stderr, flush=True)
            rows.append({"files": kind, "count": len(chosen), "MB": size / 1e6, **compare(folder, rounds)})
    return rows


def page(rows: list[dict[str, Any]], rounds: int) -> str:
    return (
        f"Medians of {rounds} alternating rounds on {os.cpu_count()} cores; below 1, `recover` is faster. "
        "`bare`: the least that gives a text; `alone`: the libraries that do this work (html by trafilatura, "
        "Office files by python-docx and python-pptx); `same`: with sha256 and the search for "
        "near-duplicates, which `recover` does too. CPU seconds are of all processes; wall ratios mean "
        f"little on a machine that does other things meanwhile.\n\n{markdown(rows)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Reading a folder, against the libraries alone.")
    parser.add_argument("--files", type=int, default=40, help="of each kind")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/documents.md")
    options = parser.parse_args()
    if absent := [name for name in PEERS if find_spec(name) is None]:
        raise SystemExit(f"not installed: {', '.join(absent)}; pip install -e '.[bench]'")
    rows = measure(options.files, options.rounds, options.kinds)
    print(json.dumps(rows) if options.json else page(rows, options.rounds))
    if options.write_docs:
        put(PAGE, "reading", page(rows, options.rounds))


if __name__ == "__main__":
    main()
