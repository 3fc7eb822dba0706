"""Cells that go on in the rows below, or across columns, make no false pair of a row and a value."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.corpus.as_markdown.heads import titles_of
from pipelines.corpus.as_markdown.spans import MOST_COLUMNS, Spanning
from pipelines.corpus.prose import asked_sentences
from pipelines.corpus.reading.formats import Limits
from pipelines.corpus.reading.html import read_html
from pipelines.corpus.reading.plain import FileFacts, Source
from pipelines.corpus.reading.site_markup import cleaned

TITLE = r"(T\w+(?:, T\w+)*)"  # of a group, of a column
ASKED = re.compile(rf"(?:{TITLE}: )?(\w[\w ]*); {TITLE}: (\w[\w ]*)")


class Box(NamedTuple):
    """A cell, by its first row and column, and how many rows and columns it takes."""

    row: int
    column: int
    down: int
    across: int
    said: str


class Grid(NamedTuple):
    """A table whose first rows are its titles."""

    rows: int
    columns: int
    heads: int
    boxes: list[Box]

    def of_row(self, row: int) -> list[Box]:
        return [box for box in self.boxes if box.row == row]

    def covering(self, row: int, column: int) -> Box:
        return next(
            box
            for box in self.boxes
            if box.row <= row < box.row + box.down and box.column <= column < box.column + box.across
        )

    def title(self, column: int) -> str:
        """What the head says of a column, but for what it says of all."""
        above = (self.covering(head, column) for head in range(self.heads))
        return ", ".join(dict.fromkeys(box.said for box in above if box.across < self.columns))


@st.composite
def grids(draw: st.DrawFn, *, widest: int = 2) -> Grid:
    columns = draw(st.integers(2, 4))
    heads = draw(st.integers(1, 2))
    rows = heads + draw(st.integers(2, 6))
    taken: set[tuple[int, int]] = set()
    boxes: list[Box] = []
    for row, column in ((row, column) for row in range(rows) for column in range(columns)):
        if (row, column) in taken:
            continue
        last = heads if row < heads else rows
        down = min(draw(st.sampled_from([1, 1, 1, 2, 3])), last - row)
        across = 1
        while across < draw(st.sampled_from([1, 1, widest])) and column + across < columns:
            if (row, column + across) in taken:
                break
            across += 1
        name = f"{'T' if row < heads else 'c'}{row}x{column}"
        ends = st.sampled_from(["", "", "", " and all that it says" * 5]) if row >= heads else st.just("")
        boxes.append(Box(row, column, down, across, name + draw(ends)))
        taken |= {(row + y, column + x) for y in range(down) for x in range(across)}
    return Grid(rows, columns, heads, boxes)


def as_wiki(grid: Grid) -> str:
    lines = ["{|"]
    for row in range(grid.rows):
        mark = "!" if row < grid.heads else "|"
        lines.append("|-")
        for box in grid.of_row(row):
            takes = f' rowspan="{box.down}"' * (box.down > 1) + f" colspan={box.across}" * (box.across > 1)
            lines.append(f"{mark}{takes} | {box.said}" if takes else f"{mark} {box.said}")
    return "\n".join([*lines, "|}"])


def as_html(grid: Grid, inside: str, parts: bool) -> str:
    written = ""
    for row in range(grid.rows):
        tag = "th" if row < grid.heads else "td"
        cells = (
            f'<{tag} rowspan={box.down} colspan="{box.across}">{inside}{box.said}</{tag}>'
            if box.down * box.across > 1
            else f"<{tag}>{inside}{box.said}"
            for box in grid.of_row(row)
        )
        part = {0: "<thead>", grid.heads: "</thead><tbody>"}.get(row, "") if parts else ""
        written += f"{part}<tr>{''.join(cells)}</tr>"
    return f"<table>{written}</table>"


def page(body: str) -> str:
    """A page, as it is read."""
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(f"<meta charset=utf-8><body>{body}".encode())
        return "".join(read_html(Source(file.fileno(), False, Limits()), FileFacts()))


def as_asciidoc(grid: Grid) -> str:
    lines = [f'[cols="{grid.columns}*",options="header"]', "|==="]
    for row in range(grid.rows):
        takes = (
            (box, f"{box.across}.{box.down}+" if box.down * box.across > 1 else "")
            for box in grid.of_row(row)
        )
        lines.append(" ".join(f"{span}|{box.said}" for box, span in takes))
    return "\n".join([*lines, "|==="])


def as_grid(grid: Grid) -> str:
    widths = [
        2 + max(len(grid.covering(row, column).said) for row in range(grid.rows))
        for column in range(grid.columns)
    ]
    lines: list[str] = []
    for row in range(grid.rows + 1):
        ruled = [
            row == grid.rows or row == 0 or grid.covering(row, column).row == row
            for column in range(grid.columns)
        ]
        sign = "=" if row == grid.heads else "-"
        line = ""
        for column, (before, is_ruled) in enumerate(pairwise([False, *ruled])):
            line += "+" if before or is_ruled else "|"
            line += (sign if is_ruled else " ") * widths[column]
        lines.append(line + ("+" if ruled[-1] else "|"))
        if row < grid.rows:
            cells = (
                f" {box.said if (box := grid.covering(row, column)).row == row else ''}".ljust(widths[column])
                for column in range(grid.columns)
            )
            lines.append(f"|{'|'.join(cells)}|")
    return "\n".join(lines)


def pairs(text: str) -> Iterator[tuple[str, str, str, str]]:
    """What is asked: the key and its title, the value and its title."""
    for one in asked_sentences(text):
        if len(one.passages) == 2:
            found = ASKED.fullmatch(one.sentence)
            assert found, one
            yield found[2], found[1] or "", found[4], found[3]


def holds(grid: Grid, *, across: bool) -> Callable[[tuple[str, str, str, str]], bool]:
    """Whether a pair is in a row of the table, below these titles."""
    read = {
        (box.said, title, row, column)
        for row in range(grid.heads, grid.rows)
        for column in range(grid.columns)
        if (box := grid.covering(row, column)).across == 1 or across
        for title in ("", grid.title(column))
    }

    def true(pair: tuple[str, str, str, str]) -> bool:
        key, about, value, title = pair
        rows = {row for said, name, row, _ in read if (said, name) == (key, about)}
        return any((said, name) == (value, title) and row in rows for said, name, row, _ in read)

    return true


@given(grids(), st.sampled_from(["", "<p>", "<b>"]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_no_false_pair_comes_of_a_table_with_spans(grid: Grid, inside: str, parts: bool) -> None:
    one_head = grid._replace(heads=1)  # as AsciiDoc has them
    all_begin = all(map(grid.of_row, range(grid.rows)))  # to a wiki a row without cells is none
    for of, read, across in (
        (grid, cleaned(as_wiki(grid), "wiki") if all_begin else "", False),
        (grid, page(as_html(grid, inside, parts)), False),
        (one_head, cleaned(f"= A\n\n{as_asciidoc(grid)}\n", "adoc"), True),
    ):
        false = [pair for pair in pairs(read) if not holds(of, across=across)(pair)]
        assert not false, read


@given(grids(widest=1))
@settings(max_examples=100, deadline=None)
def test_no_false_pair_comes_of_a_grid_of_restructured_text(grid: Grid) -> None:
    read = cleaned(f"Before.\n\n{as_grid(grid)}\n", "rst")
    false = [pair for pair in pairs(read) if not holds(grid, across=False)(pair)]
    assert not false, read
    assert "|---|" in read


LONG = "all of what is said of it " * 4
HTML = f"""<p>Of plants</p><table>
<thead><tr><th>Kind<th>Name<th>Height</thead>
<tr><td rowspan=2><p>tree<td>ash<td>31<tr><td>oak<td>27
<tr><td rowspan=02>{LONG}<td>elm<td rowspan=2>33<tr><td>fir
<tr><td colspan=2>none<td>35
<tr><td>moss<td rowspan=0>peat<td><p>5</p>
<tr><td>fern<td>6</table>"""
WIKI = f"""{{|
|+ style="x" | Of plants
! Kind !! Name !! Height
|-
| rowspan="2" |
tree
| ash || 31
|-
| oak || 27
|-
| rowspan=2 | {LONG} || elm || rowspan='2' | 33
|-
| fir
|-
| colspan="2" | none || 35
|-
| moss || rowspan=0 | peat || 5
|-
| fern || 6
|}}"""
ASCIIDOC = f"""= A

[cols=3]
|===
|Kind |Name |Height

.2+|tree
|ash |31
|oak |27
.2+|{LONG}
|elm .2+|33
|fir
2+|none |35
|moss .2+|peat |5
|fern |6
|==="""
GRID = """+------+------+--------+
| Kind | Name | Height |
+======+======+========+
| tree | ash  | 31     |
|      +------+--------+
|      | oak  | 27     |
+------+------+--------+
| bush | elm  | 33     |
+------+------+        |
| herb | fir  |        |
+------+------+--------+
| moss | peat | 5      |
+------+      +--------+
| fern |      | 6      |
+------+------+--------+"""


@pytest.mark.parametrize(
    ("read", "rows"),
    [
        (
            page(HTML),
            "Of plants\n\nKind | Name | Height\n--- | --- | ---\ntree | ash | 31\ntree | oak | 27\n"
            f"{LONG.strip()} | elm | 33\nfir | 33\nnone | 35\nmoss | peat | 5\nfern | peat | 6",
        ),
        (
            cleaned(WIKI, "wiki"),
            "Of plants\n\n| Kind | Name | Height |\n|---|---|---|\n| tree | ash | 31 |\n| tree | oak | 27 |\n"
            f"| {LONG.strip()} | elm | 33 |\n|  | fir | 33 |\n| none | 35 |\n"
            "| moss | peat | 5 |\n| fern | peat | 6 |",
        ),
        (
            cleaned(ASCIIDOC, "adoc"),
            "# A\n\n| Kind | Name | Height |\n|---|---|---|\n| tree | ash | 31 |\n| tree | oak | 27 |\n"
            f"| {LONG.strip()} | elm | 33 |\n|  | fir | 33 |\n| none |  | 35 |\n"
            "| moss | peat | 5 |\n| fern | peat | 6 |",
        ),
        (
            cleaned(f"Before.\n\n{GRID}\n", "rst"),
            "Before.\n\n\n| Kind | Name | Height |\n|---|---|---|\n| tree | ash | 31 |\n| tree | oak | 27 |\n"
            "| bush | elm | 33 |\n| herb | fir | 33 |\n| moss | peat | 5 |\n| fern | peat | 6 |",
        ),
    ],
    ids=["html", "wiki", "asciidoc", "grid"],
)
def test_a_cell_of_several_rows_is_repeated_in_each(read: str, rows: str) -> None:
    """But for long ones, and in a row with a cell across columns."""
    assert read.strip("\n") == rows
    found = {one.sentence for one in asked_sentences(read)}
    assert {"Kind: moss; Height: 5", "Kind: fern; Height: 6"} <= found
    assert not any("tree" in one for one in found)  # two rows are of that kind


@pytest.mark.parametrize(
    ("text", "suffix", "cells"),
    [
        # keys and values without titles, as of a box beside a page
        ("{|\n! Capital\n| Oslo\n|-\n! People\n| 700\n|-\n! Area\n| 454\n|}", "wiki", set()),
        # titles in the middle begin a table of their own
        (
            "{|\n! A !! B\n|-\n| a || 1\n|-\n| b || 2\n|-\n! C !! D\n|-\n| c || 3\n|-\n| d || 4\n|}",
            "wiki",
            {"A: a; B: 1", "A: b; B: 2", "C: c; D: 3", "C: d; D: 4"},
        ),
        # a title of two rows says nothing of the row that it reaches
        ("{|\n! rowspan=2 | A\n! B\n|-\n| mm\n|-\n| a || 1\n|}", "wiki", {"A: a; B: 1"}),
        # unless that is one of titles too
        (
            "{|\n! rowspan=2 | A\n! B\n|-\n! mm\n|-\n| a || 1\n|-\n| b || 2\n|}",
            "wiki",
            {"A: a; B, mm: 1", "A: b; B, mm: 2"},
        ),
        # tables in one another
        ("{|\n! A !! B\n|-\n| a ||\n{|\n| b || 2\n|-\n| c || 3\n|}\n|-\n| d || 4\n|}", "wiki", set()),
        # another one behind it
        (
            "{|\n! A !! B\n|-\n| a || 1\n|-\n| b || 2\n|}\n{|\n| c || 3\n|}",
            "wiki",
            {"A: a; B: 1", "A: b; B: 2"},
        ),
        # !! sets cells apart in a line of titles alone
        ("{|\n! A !! B\n|-\n| a!!c || 1\n|-\n| b || 2\n|}", "wiki", {"A: a!!c; B: 1", "A: b; B: 2"}),
        (
            "^ A ^ B ^\n| a | 1 |\n| b | 2 |\n^ C ^ D ^\n| c | 3 |\n| d | 4 |",
            "txt",
            {"A: a; B: 1", "A: b; B: 2", "C: c; D: 3", "C: d; D: 4"},
        ),
        ("^ Capital | Oslo |\n^ People | 700 |\n^ Area | 454 |\n", "txt", set()),
        ("^ A ^ B ^\n^ ::: ^ mm ^\n| a | 1 |\n| b | 2 |\n", "txt", {"A: a; B, mm: 1", "A: b; B, mm: 2"}),
        ("| x | y |\n| z | 0 |\n^ ::: ^ B ^\n| a | 1 |\n| b | 2 |\n", "txt", set()),
        # sums among the rows are no titles
        (
            "{|\n! A !! B\n|-\n| a || 1\n|-\n! Sum !! ''4''\n|-\n| b || 2\n|-\n| c || 3\n|-"
            "\n! All || 6 kg\n|}",
            "wiki",
            {"A: a; B: 1", "A: Sum; B: 4", "A: b; B: 2", "A: c; B: 3", "A: All; B: 6 kg"},
        ),
        (
            "^ A ^ B ^\n| a | 1 |\n^ Sum ^ 9,1 % ^\n| b | 2 |\n| c | 3 |",
            "txt",
            {"A: a; B: 1", "A: Sum; B: 9,1 %", "A: b; B: 2", "A: c; B: 3"},
        ),
        # but years and dates are
        (
            "{|\n! A !! 2019\n|-\n| a || 1\n|-\n| b || 2\n|-\n! A !! 2020-01\n|-\n| c || 3\n|-\n| d || 4\n|}",
            "wiki",
            {"A: a; 2019: 1", "A: b; 2019: 2", "A: c; 2020-01: 3", "A: d; 2020-01: 4"},
        ),
        # rows that are all marked have no titles
        (
            "{|\n! A !! B\n|-\n! a !! x\n|-\n! b !! y\n|-\n! c !! z\n|-\n| d || v\n|-\n| e || w\n|}",
            "wiki",
            set(),
        ),
        # lines within cells
        ("^ A ^ B ^\n| a \\\\ b | \\\\c |\n| d | 2\\\\ 3 |", "txt", {r"A: a b; B: \\c", "A: d; B: 2 3"}),
    ],
)
def test_only_titles_name_what_a_cell_says(text: str, suffix: str, cells: set[str]) -> None:
    read = cleaned(f"====== A ======\n\n[[b]]\n\n{text}\n" if suffix == "txt" else text, suffix)
    found = {one.sentence for one in asked_sentences(read) if len(one.passages) == 2}
    assert found == cells


HEAD_HTML = "<tr><th rowspan=2>Name<th colspan=2>Size<th>Price<tr><th>min<th>max<p>all<th>EUR"
ROWS_HTML = "<tr><td>ash<td>3<td>31<td>9<tr><td>oak<td>2<td>27<td>8"
HEAD_WIKI = '! rowspan=2 | Name\n! colspan="2" | Size\n! Price\n|-\n! min !! max all !! EUR'
SIZES = {
    f"Name: {name}; {title}: {said}"
    for name, *cells in (("ash", "3", "31", "9"), ("oak", "2", "27", "8"))
    for title, said in zip(("Size, min", "Size, max all", "Price, EUR"), cells, strict=True)
}
HEAD_GRID = """
+------+------------+-------+
| Name | Size       | Price |
|      +-----+------+-------+
|      | min | max  | EUR   |
|      |     | all  |       |
+======+=====+======+=======+
| ash  | 3   | 31   | 9     |
+------+-----+------+-------+
| oak  | 2   | 27   | 8     |
+------+-----+------+-------+
"""

HEAD_SIMPLE = """
====  ===  ====  =====
Name  Size       Price
----  ---------  -----
      min  max   EUR
           all
====  ===  ====  =====
ash   3    31    9
oak   2    27    8
====  ===  ====  =====
"""


@pytest.mark.parametrize(
    "read",
    [
        page(f"<table><thead>{HEAD_HTML}</thead><tbody>{ROWS_HTML}</table>"),
        page(f"<p>So:</p><table>{HEAD_HTML}{ROWS_HTML}</table>"),
        cleaned(f"{{|\n{HEAD_WIKI}\n|-\n| ash || 3 || 31 || 9\n|-\n| oak || 2 || 27 || 8\n|}}", "wiki"),
        cleaned(
            "====== A ======\n\n[[b]]\n\n^ Name ^ Size ^^ Price ^\n^ ::: ^ min ^ max all ^ EUR ^\n"
            "| ash | 3 | 31 | 9 |\n| oak | 2 | 27 | 8 |\n",
            "txt",
        ),
        cleaned(f"So:\n{HEAD_GRID}\nEnd.", "rst"),
        cleaned(f"So:\n{HEAD_SIMPLE}\nEnd.", "rst"),
        cleaned(
            "= A\n\n[cols=4*]\n|===\n.2+h|Name 2+h|Size h|Price\nh|min h|max all h|EUR\n"
            "|ash |3 |31 |9\n|oak |2 |27 |8\n|===\n",
            "adoc",
        ),
        cleaned(
            "= A\n\n[cols=4*,options=header]\n|===\n.2+|Name 2+|Size |Price\nh|min h|max all h|EUR\n"
            "|ash |3 |31 |9\n|oak |2 |27 |8\n|===\n",
            "adoc",
        ),
    ],
    ids=[
        "html",
        "html without parts",
        "wiki",
        "dokuwiki",
        "grid",
        "simple",
        "asciidoc",
        "asciidoc with a header",
    ],
)
def test_titles_of_groups_stand_before_those_of_their_columns(read: str) -> None:
    assert {one.sentence for one in asked_sentences(read) if len(one.passages) == 2} == SIZES
    assert read.count("Size: min") == 1 and "Size |" not in read


@pytest.mark.parametrize(
    "underline", ["----  --------   -----", "----  ---------", "----  ---  ----------", "-" * 16]
)
def test_an_underline_that_fits_no_columns_leaves_a_simple_table_as_it_stands(underline: str) -> None:
    read = cleaned(HEAD_SIMPLE.replace("----  ---------  -----", underline), "rst")
    assert "|---|" not in read and underline in read and "Price" in read


def test_a_second_row_of_titles_in_doubt_is_not_asked_about_as_a_row() -> None:
    rows = "|ash |9\n|oak |8 |7\n|yew |5 |6\n"  # below Size stands what goes on from the titles
    head = "|Name .3+|Size |Price\nh|min h|EUR\n"
    read = cleaned(f"= A\n\n[cols=3*,options=header]\n|===\n{head}{rows}|===\n", "adoc")
    assert "EUR" in read and not any(len(one.passages) == 2 for one in asked_sentences(read))


def test_many_rows_of_titles_are_none_at_once() -> None:
    begun = time.process_time()
    assert titles_of([[Spanning("a")] * 50] * 200_000) == []
    assert time.process_time() - begun < 1


def test_a_grid_of_more_columns_than_are_followed_stays_as_it_stands() -> None:
    def grid(columns: int) -> str:
        title, row = ("".join(f"|{sign}" for _ in range(columns)) + "|" for sign in "tr")
        border, below = ("+" + f"{sign}+" * columns for sign in "-=")
        return "\n".join(["So:", "", border, title, below, row, border, "", "End."])

    assert "---|" in cleaned(grid(MOST_COLUMNS), "rst")
    assert "---|" not in cleaned(grid(MOST_COLUMNS + 1), "rst")


@pytest.mark.parametrize(
    "head",
    [
        "<tr><th>A<th colspan=2>B<tr><th>a<th>b",  # not as wide
        "<tr><th>A<th colspan=2>B<tr><th>a<th hidden>b<th>c",
        "<tr><th rowspan=3>A<th>B<th>C<tr><th>b<th>c",  # goes on in the rows
        "<tr><th>A<th>B<th>C<tr><th>a<th>b<th>c<tr><th>d<th>e<th>f<tr><th>g<th>h<th>i",  # too many
    ],
)
def test_no_titles_are_joined_in_doubt(head: str) -> None:
    read = page(f"<table>{head}<tr><td>ash<td>3<td>31<tr><td>oak<td>2<td>27</table>")
    assert not [one for one in asked_sentences(read) if len(one.passages) == 2]
    assert "A" in read and "---" not in read


def test_titles_within_a_page_s_table_begin_a_part_and_sums_do_not() -> None:
    rows = "<tr><td>a<td>1<tr><td>b<td>2"
    sums = (
        f"<table><tr><th>A<th>B{rows}<tr><th>Sum<th>3{rows.replace('>a', '>c').replace('>b', '>d')}</table>"
    )
    assert page(sums) == "A | B\n--- | ---\na | 1\nb | 2\nSum | 3\nc | 1\nd | 2"
    parts = f"<table><tr><th>A<th>B{rows}<tr><th>C<th>D{rows}</table>"
    assert page(parts) == "A | B\n--- | ---\na | 1\nb | 2\n\nC | D\n--- | ---\na | 1\nb | 2"


def test_rows_behind_one_with_a_table_in_a_cell_are_asked_about() -> None:
    for nested in ("<table><tr><td>p<td>q<tr><td>r</table>", "of <table><tr><td>p|<td>q<tr><td>r</table>"):
        rows = f"<tr><td>x<td>{nested}<td>5<tr><td>ash<td>31<td>7<tr><td>oak<td>27<td>8"
        read = page(f"<table><tr><th>A<th>B<th>C{rows}</table>")
        found = {one.sentence for one in asked_sentences(read) if len(one.passages) == 2}
        assert found == {"A: ash; B: 31", "A: ash; C: 7", "A: oak; B: 27", "A: oak; C: 8"}
        assert read.splitlines()[2].startswith("x | ") and read.splitlines()[2].endswith("r | 5 |")
    titled = "<table><tr><th>N<th>V<tr><td>a<td>1<tr><td>b<td>2</table>"
    for head in ("<tr><th>A<th>B", "<tr><th rowspan=2>A<th>B<tr><th>of it"):
        read = page(f"<table>{head}<tr><td>x<td>{titled}<tr><td>ash<td>31</table>")
        found = {one.sentence for one in asked_sentences(read) if len(one.passages) == 2}
        assert found == {"N: a; V: 1", "N: b; V: 2"}


TITLES = "<table><tr><th>A<th>B<th>C</tr>"


@pytest.mark.parametrize(
    ("rows", "cells"),
    [
        # a bar in a cell begins none
        ("<tr><td rowspan=2>g<td>a<td>1<tr><td>b<td>x|y<tr><td>h<td>c<td>3", {"A: h; B: c", "A: h; C: 3"}),
        # numbers that are none, or more than there are rows
        (
            "<tr><td rowspan=x>a<td rowspan='-2'>1<td>x<tr><td>b<td>2<td rowspan=99999999999999999999>z"
            "<tr><td>c<td>3",
            {"A: a; B: 1", "A: b; B: 2", "A: c; B: 3"},
        ),
        # hidden rows and cells
        ("<tr><td rowspan=3>g<td>a<td>1<tr hidden><td>b<td>2<tr><td>c<td>3<tr><td>d<td>4", set()),
        (
            "<tr><td rowspan=2>g<td>a<td>1<tr><td hidden>b<td>c<td>3<tr><td>d<td>e<td>4",
            {"A: g; B: a", "A: g; C: 1", "A: d; B: e", "A: d; C: 4"},
        ),
        # a cell that goes on into one across columns
        ("<tr><td>a<td rowspan=3>b<td>1<tr><td colspan=3>c<tr><td>d<td>4<tr><td>e<td>f<td>5", set()),
        # titles that go on, and those of a row
        (
            "<tbody><tr><th rowspan=2>g<th>a<td>1<tr><th>b<th>c<tr><td>d<td>e<td>5",
            {"A: d; B: e", "A: d; C: 5"},
        ),
        # more columns than titles
        ("<tr><td colspan=2>a<td>b<td>1<tr><td>c<td colspan=2>d<td>2", set()),
        ("<tr><td rowspan=3>a<td>b<td>1<tr><td>c<td>d<td colspan=2>2<tr><td>e<td>f<td>3", set()),
        # bars in a cell across columns, and beside an empty one
        (
            "<tr><td colspan=3>a | b | 1<tr><td><p>c | d<td><p>2<td><tr><td>e<td>f<td>3<tr><td>g<td>h<td>4",
            {"A: e; B: f", "A: e; C: 3", "A: g; B: h", "A: g; C: 4"},
        ),
        (
            "<tr><td>a<br>b<td>c<br>d<td>1<tr><td>e<td>f<td>2",
            {"A: a b; B: c d", "A: a b; C: 1", "A: e; B: f", "A: e; C: 2"},
        ),
        # a table in another one
        ("<tr><td>a<td>b<td><table><tr><td>c<td>d<td>1</table><tr><td>e<td>f<td>2", set()),
    ],
    ids=[
        *("bar", "numbers", "hidden row", "hidden cell", "overlap", "titles of rows", "wide", "wide below"),
        *("bars", "lines", "table in a cell"),
    ],
)
def test_no_false_pair_comes_of_a_page_in_doubt(rows: str, cells: set[str]) -> None:
    found = {one.sentence for one in asked_sentences(page(TITLES + rows)) if len(one.passages) == 2}
    assert found == cells


def test_a_bar_in_a_title_begins_no_column() -> None:
    read = page("<table><tr><th>a|b<th>C<tr><td>d<td>e<td>1<tr><td>f<td>g<td>2</table>")
    assert read == "a\\|b | C\n--- | ---\nd | e | 1\nf | g | 2"
    assert not [one for one in asked_sentences(read) if len(one.passages) == 2]


def test_a_table_without_titles_is_none_of_the_one_before() -> None:
    tables = "<table><tr><th>A<th>B<tr><td>a<td>1<tr><td>b<td>2</table><table><tr><td>c<td>3</table>"
    assert page(tables) == "A | B\n--- | ---\na | 1\nb | 2\n\nc | 3"


@pytest.mark.parametrize(
    "row",
    ["<tr>" + "<td rowspan=65534>a" * 90 + "<tr><td>b" * 3000, "<tr><td rowspan=0 colspan=9999>a" * 3000],
)
def test_cells_of_many_rows_take_linear_time(row: str) -> None:
    began = time.process_time()
    read = page(f"<table>{row}</table>")
    assert time.process_time() - began < 5
    assert len(read) < 200 * len(row)
