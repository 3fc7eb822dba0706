"""Take the sentences of a text out of its markup: tables by their cells, wrapped lines joined again."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import chain, zip_longest
from typing import NamedTuple

from pipelines.corpus.markup import tables
from pipelines.corpus.markup.blocks import without_blocks
from pipelines.corpus.markup.clauses import begins_clause
from pipelines.corpus.markup.lines import is_code, is_prose, plain
from pipelines.corpus.markup.parts import LINK_TEXT, SLOT, TARGET
from pipelines.corpus.markup.pictures import is_picture
from pipelines.corpus.segments import segments
from pipelines.corpus.sentences import SPACED_STOPS, UNSPACED_STOPS, begins_small, is_abbreviated, sentences
from recovery.unspaced_scripts import UNSPACED, between_lines, first_unit

WRAPPED = 60  # columns: a longer line that ends no sentence goes on in the next one
# Columns: and so does one of half a page's width behind which the next one's first word has no room
HALF, WIDTH = 36, 72
ALIKE = 0.9  # of the next line: no shorter is one that is as full, where letters tell nothing
LONGEST_ROW = 160  # characters of a row whose columns are set apart by spaces
LONGEST = 400  # characters of a sentence that is asked about
_LABELLED = re.compile(
    r"(?:[^\W\d_]\S{0,20} ?){1,3}: \S"  # a field of a record
    r"|[^;]{1,400}; [^;:]{1,200}: \S"  # two of them, as a table's row has them: the first may have no name
)
_FIELD = re.compile(r"; [^;:]{1,200}: ")  # begins a further one
_BULLETS = "•‣◦▪●○■□◆◇►▶\uf0b7\uf0a7\uf0d8\uf0fc"  # the last of word processors, in their own fonts
_NUMBERS = r"[一二三四五六七八九十百\d０-９]{1,4}"
_LIST_MARK = re.compile(
    rf"\s*(?:(?:[-*+:.]|\*{{2,5}}|<\d{{1,2}}>|\d{{1,3}}[.)])\s+|[{_BULLETS}]\s*"
    rf"|[(（]{_NUMBERS}[)）](?=[{UNSPACED}])\s*|{_NUMBERS}[、．](?![\d０-９])\s*|[①-⑳]\s*)"
)
_QUOTED = re.compile(r"[ \t]*(?:>(?:[ \t]|$))+|[ \t]*>(?=[^\W\d_]|[*_\[\"'“„«])")
_GAP = re.compile(r"(?<=[^\s.!?:;,])(?:[ ]*\t\s*| {3,})(?=\S)")  # between a table's columns
_ADDRESS = re.compile(r"<?\bhttps?://[^\s>]+>?")
_LINK = re.compile(rf"\[{LINK_TEXT}\]{TARGET}")
_BEHIND = re.compile(r" ?[\w.,;)]")  # a link within a sentence
_OPEN_LINK = re.compile(r"\[[^\[\]]*$")  # goes on in the next line
_BREAK = re.compile(r"(?<=[^\s\\])\\$")  # Markdown's mark for a new line
_COLUMNS = {"F": 2, "W": 2}
_ENDS = re.compile(rf"[:;|：；{SPACED_STOPS}{UNSPACED_STOPS}]\W*$")
_OTHER_STOP = re.compile(r"[!?]\W*$|\.[\"'`”’)\]]+$")  # than a bare full stop: println!, etc.)
_COMMAS = (",", "，", "、", "،")


class Said(NamedTuple):
    """A sentence that is asked about, and where it stands: it alone, or the titles and the row of a table."""

    sentence: str
    passages: tuple[str, ...]


def asked_sentences(text: str) -> list[Said]:
    """Return what of a text is asked about: its sentences, and what its tables say, a sentence a cell."""
    text, cells = tables.taken_out(_without_blocks(text), sentences)
    said = [Said(sentence, (sentence,)) for sentence in _sentences(text)]
    return said + [Said(*cell) for cell in cells if _is_shown(cell.said)]


def silent_rows(text: str) -> int:
    """Return how many rows of tables, or of columns that spaces set apart, nothing is asked about; titles are
    none."""
    text, _ = tables.taken_out(_without_blocks(text), sentences)
    lines = text.splitlines()
    return sum(
        any(map(str.isalnum, line)) and not tables.is_rule(below) and _cells(line) == [""]
        for line, below in zip_longest(lines, lines[1:], fillvalue="")
    )


def untitled_tables(text: str) -> int:
    """Return how many tables have rows that could be asked about, and no titles; code is none."""
    return _untitled_tables(_without_blocks(text)) if _untitled_tables(text) else 0


def _untitled_tables(text: str) -> int:
    count = size = 0
    titled = False
    for line in [*text.split("\n"), ""]:
        is_rule = tables.is_rule(f"|{line}")
        if is_rule or _is_bare_row(line.strip().strip("|")):
            size += 1
            titled = titled or is_rule
        else:
            count += size >= tables.FEWEST_ROWS and not titled
            size, titled = 0, False
    return count


def prose_sentences(text: str) -> list[str]:
    """Return a text's sentences as they read, in order; those that show an address or a template's tag, or no
    letter, are left out."""
    return list(_sentences(_without_blocks(text)))


def _sentences(text: str) -> Iterator[str]:
    said = chain.from_iterable(sentences(plain(line)) for line in _lines(text))
    told = (_first_fields(" ".join(sentence.split())) for sentence in said if SLOT not in sentence)
    return filter(_is_shown, told)


def _is_shown(sentence: str) -> bool:
    shows = SLOT in sentence or _ADDRESS.search(sentence) or is_code(sentence)
    return not shows and any(map(str.isalpha, sentence))


def _first_fields(said: str) -> str:
    """Return a sentence; of a record that is long or shows an address the fields before: they name what it is
    about."""
    if "; " not in said:
        return said
    address = _ADDRESS.search(said)
    most = min(len(said), LONGEST, address.start() if address else LONGEST)
    fields = [field.start() for field in _FIELD.finditer(said, 0, most)] if most < len(said) else []
    return said[: fields[-1]] if len(fields) > 1 else said


def row_beginning(said: str) -> str:
    """Return a table's row up to its second value; nothing of a sentence that is none."""
    second = _FIELD.search(said)
    return said[: second.end()] if second else ""


def column_titles(said: str) -> list[range]:
    """Return where the titles of a table's row stand, without that of its first value."""
    return [range(*field.span()) for field in _FIELD.finditer(said)]


def is_cell(said: str) -> bool:
    """Return whether a row has two values only: what it is about, and what is said of that."""
    return len(_FIELD.findall(said)) == 1


def _without_blocks(text: str) -> str:
    """Leave out blocks that are no prose, also those within quotations."""
    text = without_blocks(text)
    if ">" not in text:
        return text
    unquoted = _unquoted(text)
    return text if unquoted == text else without_blocks(unquoted)


def _unquoted(text: str) -> str:
    """Take the marks off quotations, each in paragraphs of its own."""
    lines: list[str] = []
    before = None
    for line in text.split("\n"):
        found = _QUOTED.match(line)
        lines += [""] if found and not before else []
        lines.append(line[found.end() :] if found else line)
        before = found
    return "\n".join(lines)


def _cells(line: str) -> list[str]:
    """Return the cells of a table's row that say something, each on its own; nothing of a row in columns that
    spaces set apart; any other line as it is."""
    if not (tables.ROW.match(line) or _is_bare_row(line)):
        return [""] if len(line) <= LONGEST_ROW and len(_GAP.findall(line)) > 1 else [line]
    return ["", *(part for cell in tables.cells(line) if _says_something(cell) for part in (cell, ""))]


def _is_bare_row(line: str) -> bool:
    """Return whether a line is a row as tables of HTML and office files are read, not a pipe in code."""
    return " | " in line and "`" not in line


def _says_something(cell: str) -> bool:
    return sum(any(map(str.isalpha, word)) for _, word in segments(cell)) >= tables.SAYING


def _lines(text: str) -> Iterator[str]:
    """Yield lines without list marks, those that were wrapped joined again."""
    open_line = ""
    lines = list(chain.from_iterable(map(_cells, text.splitlines())))
    for line, following, later in zip_longest(lines, lines[1:], lines[2:], fillvalue=""):
        mark = _list_mark(line, open_line)
        starts = bool(mark or _GAP.search(line) or begins_clause(line, open_line))
        shown = not is_prose(line) or is_picture(line[len(mark) :])
        said = "" if shown else _BREAK.sub("", line[len(mark) :].strip())
        if open_line and said and not starts:
            open_line = f"{open_line}{between_lines(open_line, said)}{said}"
        else:
            if open_line:
                yield open_line
            open_line = said
        if not _goes_on(line, following, later):
            yield open_line
            open_line = ""
    if open_line:
        yield open_line


def _list_mark(line: str, open_line: str) -> str:
    """Return the mark before an item of a list; no day of a date within a sentence: am\n3. Mai."""
    found = _LIST_MARK.match(line)
    mark = found[0] if found else ""
    is_day = open_line and mark.strip()[:-1].isdigit() and is_abbreviated(mark.strip(), line[len(mark) :])
    return "" if is_day else mark


def _goes_on(line: str, following: str, later: str) -> bool:
    """Return whether a line was wrapped before the next one, behind which a later one stands."""
    if line.count("`") % 2 or ("](" in following and _OPEN_LINK.search(line)):
        return True  # within code or a link
    if _ENDS.search(line):
        said = line.rstrip().replace("\\.", ".")
        return len(said) >= HALF and _is_within(said, following.strip())
    if _LABELLED.match(following) and (_LABELLED.match(line) or _is_of_names(line, _first_label(following))):
        return False
    line, following = line.expandtabs().rstrip(), following.expandtabs().rstrip()
    columns = _columns(line)
    if columns >= WRAPPED or (line.endswith(_COMMAS) and following):
        return True
    first = following.strip().partition(" ")[0]
    outdented = _indent(following) < _indent(line)  # as the next term behind a definition
    if begins_small(first) and first[-1] not in ":=(" and _says_something(line) and not outdented:
        return True
    room = ALIKE * _columns(following) if _is_caseless(following) and not outdented else WIDTH
    had_no_room = columns >= HALF and columns + _columns(first_unit(first)) > room
    return had_no_room or (not outdented and _is_before_link(line, following.strip(), later.strip()))


def _first_label(row: str) -> str:
    """Return the first name in a table's row, which the line of all columns' names above it holds."""
    return row.partition(": ")[0].rpartition("; ")[2].strip()


def _is_of_names(line: str, label: str) -> bool:
    """Return whether a line is one of columns' names, of which the label is one."""
    return f", {label}, " in f", {line.strip()}, "


def _is_before_link(line: str, following: str, later: str) -> bool:
    """Return whether a line had no room for the link that begins the next one, as links stay whole where
    lines are wrapped: a few words may also stand above a menu, unless a sentence goes on behind the link."""
    link = _LINK.match(following)
    if link is None or _columns(line) + _columns(link[0]) <= WIDTH:
        return False
    behind = following[link.end() :]
    is_sentence = _BEHIND.match(behind) or (not behind and begins_small(later))
    return _says_something(line) or (bool(is_sentence) and any(map(str.isalpha, line)))


def _is_within(said: str, following: str) -> bool:
    """Return whether a line that ends with a stop was wrapped within a sentence."""
    if _OTHER_STOP.search(said) and begins_small(following):
        return True
    return said.endswith(".") and is_abbreviated(said, following)


def _is_caseless(line: str) -> bool:
    """Return whether a line's script has no small letters, which elsewhere show that a sentence goes on."""
    first = next(filter(str.isalpha, line), "")
    return first.lower() == first.upper() != ""


def _columns(line: str) -> int:
    """Return how wide a line is set: Chinese, Japanese and Korean characters take the room of two."""
    if line.isascii():
        return len(line)
    return sum(_COLUMNS.get(unicodedata.east_asian_width(character), 1) for character in line)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
