"""Read a file by this project's readers, and by the libraries that they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from pipelines.corpus.reading import encodings
from pipelines.corpus.reading.formats import Limits
from pipelines.corpus.reading.plain import FileFacts, Source

Reader = Callable[[Path], str]


def ours_by(read: Callable[[Source, FileFacts], Iterator[str]]) -> Reader:
    """Return one of this project's readers as a function of a path."""

    def text(path: Path) -> str:
        with path.open("rb") as file:
            return "".join(read(Source(file.fileno(), False, Limits()), FileFacts()))

    return text


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


def trafilatura_text(path: Path) -> str:
    import trafilatura

    return trafilatura.extract(path.read_bytes(), favor_recall=True) or ""


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
