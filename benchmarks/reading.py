"""Is reading a folder as fast as the libraries alone on the same files?

    python -m benchmarks.reading [--files 40] [--rounds 5] [--json]

Makes a folder of every format. Then, in turn: the libraries alone, file after file, doing the least that
gives a text (PDFium; python-docx and python-pptx where they are installed, else zipfile and lxml; lxml for
html's bare text; json, csv and gzip of the standard library; charset-normalizer for text that is no UTF-8),
and `read_folder`, which also finds html's main text, walks safely, hashes, looks for near-duplicates and
parses in limited processes. Medians of alternating rounds; below 1 means that we are faster.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import random
import statistics
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import papers

from pipelines import documents
from pipelines.reading.plain import Piece

WORDS = [a + b + c for a in ("ka", "lo", "mi", "nu") for b in ("ta", "si", "no") for c in ("n", "s", "")]
OFFICE = find_spec("docx") is not None and find_spec("pptx") is not None


def prose(rng: random.Random, words: int) -> str:
    """Paragraphs of random words."""
    text = rng.choices(WORDS, k=words)
    return "\n\n".join(" ".join(text[at : at + 60]) + "." for at in range(0, words, 60))


def make(folder: Path, files: int, seed: int = 0) -> None:
    """`files` files of each kind, of the size that such files have."""
    rng = random.Random(seed)
    for n in range(files):
        text = prose(rng, 3000)
        lines = text.split("\n\n")
        tags = "".join(f'<div class="p"><p>{line} <a href="#">link</a></p></div>' for line in lines)
        rows = [{"id": i, "text": line} for i, line in enumerate(lines)]
        papers.write(folder, {
            f"{n}.txt": text * 10, f"{n}-latin.txt": f"Größe über Zürich. {text}".encode("latin-1"),
            f"{n}.md": text, f"{n}.md.gz": gzip.compress(text.encode()),
            f"{n}.jsonl": "\n".join(map(json.dumps, rows)),
            f"{n}.csv": "id,text\n" + "".join(f'{row["id"]},"{row["text"]}"\n' for row in rows),
            f"{n}.html": f"<html><head><title>t</title></head><body><main>{tags}</main></body></html>",
            f"{n}.pdf": papers.pdf(*(line.replace(" ", "\n", 12) for line in lines[:25])),
            f"{n}.docx": _docx(lines) if OFFICE else papers.docx("".join(map(papers.paragraph, lines))),
            f"{n}.pptx": _pptx(lines) if OFFICE else papers.pptx(dict(enumerate(lines)), [0]),
        })  # fmt: skip


def _docx(lines: list[str]) -> bytes:
    import docx

    made, out = docx.Document(), io.BytesIO()
    for line in lines:
        made.add_paragraph(line)
    made.save(out)
    return out.getvalue()


def _pptx(lines: list[str]) -> bytes:
    import pptx

    made, out = pptx.Presentation(), io.BytesIO()
    for line in lines[:20]:
        slide = made.slides.add_slide(made.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = "Title", line
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


def html_alone(path: Path) -> str:
    from lxml import html

    return str(html.fromstring(path.read_bytes()).text_content())


def pdf_alone(path: Path) -> str:
    import pypdfium2 as pdfium

    document = pdfium.PdfDocument(path)
    return "\n\n".join(page.get_textpage().get_text_range() for page in document)


def docx_alone(path: Path) -> str:
    if not OFFICE:
        return _xml_texts(path, "word/document.xml")
    import docx

    return "\n\n".join(paragraph.text for paragraph in docx.Document(str(path)).paragraphs)


def pptx_alone(path: Path) -> str:
    if not OFFICE:
        return _xml_texts(path, "ppt/slides/slide")
    import pptx

    shapes = [shape for slide in pptx.Presentation(str(path)).slides for shape in slide.shapes]
    return "\n\n".join(shape.text_frame.text for shape in shapes if shape.has_text_frame)


def _xml_texts(path: Path, prefix: str) -> str:
    from lxml import etree

    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.startswith(prefix)]
        trees = [etree.fromstring(archive.read(name)) for name in names]
    return "\n".join("".join(tree.itertext()) for tree in trees)


ALONE: dict[str, Callable[[Path], str]] = {
    ".txt": text_alone, ".md": text_alone, ".gz": gzip_alone, ".jsonl": jsonl_alone, ".csv": csv_alone,
    ".html": html_alone, ".pdf": pdf_alone, ".docx": docx_alone, ".pptx": pptx_alone,
}  # fmt: skip


def alone(folder: Path) -> int:
    return sum(len(ALONE[path.suffix](path)) for path in sorted(folder.iterdir()))


def ours(folder: Path) -> int:
    return sum(len(found.text) for found in documents.read_folder(folder) if isinstance(found, Piece))


def compare(files: int, rounds: int) -> dict[str, float]:
    """Seconds of each, alternating, after one round that is not counted."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make(folder, files)
        size = sum(path.stat().st_size for path in folder.iterdir())
        took: dict[str, list[float]] = {"alone": [], "ours": []}
        for turn in range(rounds + 1):
            for name, read in (("alone", alone), ("ours", ours))[:: 1 if turn % 2 else -1]:
                begun = time.perf_counter()
                characters = read(folder)
                took[name] += [time.perf_counter() - begun] if turn else []
                print(f"  round {turn}  {name:<6} {characters:>12,} characters", file=sys.stderr)
    seconds = {name: statistics.median(values) for name, values in took.items()}
    ratio = seconds["ours"] / seconds["alone"]
    return {"files": 10 * files, "megabytes": size / 1e6, **seconds, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description="Reading a folder, against the libraries alone.")
    parser.add_argument("--files", type=int, default=40, help="of each kind")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = compare(options.files, options.rounds)
    peers = "python-docx and python-pptx" if OFFICE else "zipfile and lxml for Office files"
    print(json.dumps(found) if options.json else (
        f"{found['files']:.0f} files, {found['megabytes']:.1f} MB: libraries alone {found['alone']:.2f} s "
        f"({peers}), ours {found['ours']:.2f} s, ratio {found['ratio']:.2f}"
    ))  # fmt: skip


if __name__ == "__main__":
    main()
