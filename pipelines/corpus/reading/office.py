"""Read Word and PowerPoint files: XML in a zip archive, parsed as a stream and never held as a tree."""

from __future__ import annotations

import posixpath
import re
import zipfile
from collections.abc import Callable, Iterator

from pipelines.corpus.markup.office_files.office_formulas import OfficeFormula
from pipelines.corpus.markup.office_files.office_rows import OfficeTable
from pipelines.corpus.markup.office_files.symbol_font import symbol
from pipelines.corpus.markup.office_files.xml_names import local, value
from pipelines.corpus.markup.parts import LEFT_OUT, names
from pipelines.corpus.markup.raised import LOWERED, RAISED, joined
from pipelines.corpus.reading.archive import BLOCK, collected, opened, parsed
from pipelines.corpus.reading.formats import Unreadable
from pipelines.corpus.reading.plain import FileFacts, Source

OFFICE = "Office file"
SLIDE = re.compile(r"ppt/slides/slide(\d+)\.xml")


def read_docx(source: Source, facts: FileFacts) -> Iterator[str]:
    """Yield paragraphs, lists, tables and notes; leave out deleted text, comments and page headers."""
    with opened(source, OFFICE) as archive:
        names = archive.NameToInfo
        main = next((name for name in names if re.fullmatch(r"word/document\d*\.xml", name)), None)
        if main is None:
            raise Unreadable("not a Word document: it holds no word/document.xml")
        for name in (main, "word/footnotes.xml", "word/endnotes.xml"):
            if name in names:
                yield from _texts(archive, name)


def read_pptx(source: Source, facts: FileFacts) -> Iterator[str]:
    """Yield slides in their order, each with its notes."""
    with opened(source, OFFICE) as archive:
        slides = _slides(archive)
        if not slides:
            raise Unreadable("not a presentation: it holds no slides")
        noted = any("notesSlides/" in name for name in archive.NameToInfo)
        for slide in slides:
            related = _related(archive, slide).values() if noted else ()
            notes = [part for part in related if "notesSlides/" in part]
            for name in (slide, *notes[:1]):
                if name in archive.NameToInfo:
                    yield from _texts(archive, name)
            yield "\n"


def _texts(archive: zipfile.ZipFile, name: str) -> Iterator[str]:
    writer = _Writer()
    for _ in parsed(archive, name, writer):
        if writer.size > BLOCK:
            yield writer.take()
    yield writer.take()


class _Writer:
    """Collects text runs, paragraphs and tables of both formats, whose elements have the same local names."""

    SKIPPED = names(
        "Fallback del moveFrom rPrChange trPrChange tcPrChange fld rt separator continuationSeparator"
    )
    SIGNS = {"br": "\n", "cr": "\n", "noBreakHyphen": "-"}
    PLACES = {"superscript": RAISED, "subscript": LOWERED}
    OF_TABLES = names("tbl tblPr tr tblHeader gridBefore gridAfter tc gridSpan hMerge vMerge")
    IN_FORMULA = {"sup": RAISED, "sub": LOWERED, "deg": RAISED}

    def __init__(self) -> None:
        self.size = 0
        self._done: list[str] = []
        self._line: list[tuple[str, str]] = []  # parts, each behind where it stands
        self._place = ""  # where the open run stands
        self._outer: list[tuple[list[tuple[str, str]], bool]] = []  # lines that text boxes interrupt
        self._formula = OfficeFormula(0)
        self._apart: list[str] = []  # where the open parts of a formula stand
        self._halves: list[int] = []  # where in the line the open halves of fractions begin
        self._skipping = self._cells = self._boxes = 0  # boxes of text within a cell
        self._table = OfficeTable()
        self._cell = ""  # what the newest one says, with its paragraphs
        self._reading = self._listed = self._dropped = False
        self._ends: dict[str, Callable[[], None]] = {
            "p": self._end_paragraph,
            "tc": self._end_cell,
            "tr": self._end_row,
            "tbl": self._end_table,
            "t": self._end_text,
            "txbxContent": self._end_box,
            **dict.fromkeys(self.IN_FORMULA, self._end_apart),
            "deg": self._end_degree,
            "rad": lambda: self._add(")", self._above()),
            "num": self._end_half,
            "den": self._end_half,
        }

    def StartElementHandler(self, name: str, attributes: dict[str, str]) -> None:
        tag = local(name)
        if self._skipping or tag in self.SKIPPED:
            self._skipping += 1
            return
        if tag == "oMath" or self._formula.depth:
            self._begin_in_formula(tag, attributes)
        self._begin(tag, attributes)

    def _begin(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "t":
            self._reading = True
        elif tag == "tab":
            self._add("\t" if self._line else "")
        elif tag in self.SIGNS:
            self._add(self.SIGNS[tag])
        elif tag == "numPr":
            self._listed = True
        elif tag == "framePr":
            self._dropped = value(attributes, "dropCap") in ("drop", "margin")
        elif tag in self.OF_TABLES:
            self._take_table(tag, attributes)
        elif tag in ("r", "rPr", "vertAlign"):
            self._stand(tag, attributes)
        elif tag == "sym":
            self._add(symbol(attributes), self._place)
        elif tag == "txbxContent":
            self._begin_box()

    def _begin_in_formula(self, tag: str, attributes: dict[str, str]) -> None:
        if not self._formula.depth:
            self._formula = OfficeFormula(len(self._line))
        bracket = self._formula.begin(tag, attributes)
        if bracket:
            self._add(bracket, self._above())
            if self._apart:  # what stands above or below a line is one term
                self._formula.is_left_out = True
        if tag in self.IN_FORMULA:
            self._apart.append(self.IN_FORMULA[tag])
        elif tag in ("num", "den"):
            self._add("/" if tag == "den" else "", self._above())
            self._halves.append(len(self._line))

    def _take_table(self, tag: str, attributes: dict[str, str]) -> None:
        self._cells += tag == "tc"
        if tag == "tbl" and not self._cells:
            self._table = OfficeTable()
        self._table.takes(tag, attributes, self._cells)

    def _stand(self, tag: str, attributes: dict[str, str]) -> None:
        """Note where a run's text stands, which Word says of it in a tag and PowerPoint in an attribute."""
        if tag == "vertAlign":
            self._place = self.PLACES.get(value(attributes, "val"), "")
        elif tag == "r":
            self._place = self._above()
        elif share := attributes.get("baseline", "").strip("0%"):
            self._place = LOWERED if share.startswith("-") else RAISED

    def EndElementHandler(self, name: str) -> None:
        if self._skipping:
            self._skipping -= 1
            return
        tag = local(name)
        end = self._ends.get(tag)
        if end:
            end()
        if self._formula.depth:
            self._end_in_formula(tag)

    def CharacterDataHandler(self, text: str) -> None:
        if self._reading and not self._skipping:
            self._add(text, self._place)

    def _end_in_formula(self, tag: str) -> None:
        if bracket := self._formula.end(tag):
            self._add(bracket, self._above())
        if not self._formula.depth and self._formula.is_left_out:
            self._line[self._formula.first :] = [("", LEFT_OUT)]

    def _above(self) -> str:
        """Return where the open part of a formula stands."""
        return self._apart[-1] if self._apart else ""

    def _end_apart(self) -> None:
        if self._apart:
            self._apart.pop()

    def _end_degree(self) -> None:
        self._end_apart()
        self._add("√(", self._above())

    def _end_half(self) -> None:
        """Set the numerator or denominator that ends here in brackets if it is more than one term."""
        begin = self._halves.pop() if self._halves else len(self._line)
        half = "".join(text for _, text in self._line[begin:])
        if not re.fullmatch(r"\w*|\w+[.,]\w+", half):
            self._line.insert(begin, (self._above(), "("))
            self._add(")", self._above())

    def _add(self, text: str, place: str = "") -> None:
        self._line.append((place, text))

    def _ended(self) -> str:
        """Return the line, which ends here."""
        line, self._line = self._line, []
        return joined(line)

    def _begin_box(self) -> None:
        """Write a text box as paragraphs before the one that it stands in, in a cell as part of its line."""
        if self._cells:
            self._boxes += 1
            self._add(" ")
        else:
            self._outer.append((self._line, self._listed))
            self._line, self._listed = [], False

    def _end_box(self) -> None:
        if self._cells:
            self._boxes = max(0, self._boxes - 1)
        elif self._outer:
            self._line, self._listed = self._outer.pop()

    def _end_text(self) -> None:
        self._reading = False

    def _end_paragraph(self) -> None:
        listed, self._listed = self._listed, False
        dropped, self._dropped = self._dropped, False
        if dropped:  # a first letter that is set apart: its word follows in the next paragraph
            return
        if self._cells:
            self._add(" " if self._cells > 1 or self._boxes else "\n\n")
            return
        text = self._ended().strip()
        if text:
            self._write(f"- {text}\n" if listed else f"{text}\n\n")

    def _end_cell(self) -> None:
        self._cells = max(0, self._cells - 1)
        if self._cells:  # a nested table is part of its cell's line
            self._add(" | ")
        else:
            said = self._ended()
            self._cell = said if said.strip() else self._cell  # a hidden one goes on with the one before
            self._table.end_cell(" ".join(said.split()))

    def _end_row(self) -> None:
        if self._cells:
            return
        row = self._table.end_row()
        if row and self._table.is_box:
            row = self._cell.strip().removesuffix("|").rstrip() + "\n\n"
        self._write(row)

    def _end_table(self) -> None:
        if not self._cells:
            self._write(self._table.end())

    def _write(self, text: str) -> None:
        self._done.append(text)
        self.size += len(text)

    def take(self) -> str:
        text = "".join(self._done)
        self._done = []
        self.size = 0
        return text


def _slides(archive: zipfile.ZipFile) -> list[str]:
    """Return slides in the order of the presentation, else by their numbers."""
    numbered = {name: int(found[1]) for name in archive.NameToInfo if (found := SLIDE.fullmatch(name))}
    related = _related(archive, "ppt/presentation.xml")
    ordered = [related[key] for key in _slide_keys(archive) if related.get(key) in numbered]
    rest = sorted(set(numbered) - set(ordered), key=lambda name: numbered[name])
    return [*dict.fromkeys(ordered), *rest]


def _slide_keys(archive: zipfile.ZipFile) -> list[str]:
    """Return the relationship of each slide: `r:id`, not to be confused with the slide's `id`."""
    rows = collected(archive, "ppt/presentation.xml", "sldId")
    return [value for row in rows for key, value in row.items() if key.endswith("relationships id")]


def _related(archive: zipfile.ZipFile, part: str) -> dict[str, str]:
    """Return the parts that a part refers to, by relationship."""
    folder, name = posixpath.split(part)
    rows = collected(archive, f"{folder}/_rels/{name}.rels", "Relationship")
    places = {row.get("Id", ""): row.get("Target", "") for row in rows if row.get("TargetMode") != "External"}
    return {
        key: posixpath.normpath(posixpath.join(folder, target)).lstrip("/") for key, target in places.items()
    }
