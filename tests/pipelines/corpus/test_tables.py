"""What tables say, cell by cell."""

from __future__ import annotations

import time
from itertools import chain
from pathlib import Path

import pytest

from pipelines.corpus.cloze import clozes
from pipelines.corpus.documents import texts_of
from pipelines.corpus.prose import asked_sentences, prose_sentences, silent_rows, untitled_tables
from pipelines.corpus.reading.formats import Limits
from pipelines.corpus.reading.site_markup import cleaned

OPTIONS = """Set these.

| Option | Default | What it *does* |
|:--|--:|---|
| `retry_limit` | 7 | How often it is asked again. It is not asked at night. |
| `read_timeout` | 45 | Seconds to wait for what comes, see [the guide](a.md) |
| `port` | 8443 | Where it listens \\| for all |

After it.
"""
ROWS = (  # as they stand
    "`retry_limit` | 7 | How often it is asked again. It is not asked at night.",
    "`read_timeout` | 45 | Seconds to wait for what comes, see [the guide](a.md)",
    "`port` | 8443 | Where it listens \\| for all",
)


def said(text: str, suffix: str = "md") -> list[str]:
    """What is asked about but for the sentences of the text around."""
    around = set(prose_sentences(cleaned(text, suffix)))
    return [one.sentence for one in asked_sentences(cleaned(text, suffix)) if one.sentence not in around]


def test_a_cell_is_read_with_its_title_and_with_what_its_row_is_about() -> None:
    found = asked_sentences(cleaned(OPTIONS, "md"))
    assert [one.sentence for one in found] == [
        "Set these.",
        "It is not asked at night.",
        "After it.",
        "Option: retry_limit; Default: 7",
        "Option: retry_limit; What it does: How often it is asked again.",
        "Option: read_timeout; Default: 45",
        "Option: read_timeout; What it does: Seconds to wait for what comes, see the guide",
        "Option: port; Default: 8443",
        "Option: port; What it does: Where it listens | for all",
    ]
    titles = "Option | Default | What it *does*"
    where = [one.passages for one in found[3:]]
    assert where == list(chain(*(((titles, row), (titles, row)) for row in ROWS)))
    assert all(line in OPTIONS for line in chain(*where))
    assert [one.passages for one in found[:3]] == [(one.sentence,) for one in found[:3]]


@pytest.mark.parametrize(
    ("rows", "cells"),
    [
        # what a guess would answer, and what says nothing
        ("a | yes\nb | no\nc | yes\nd | no", []),
        ("a | yes\nb | no\nc | no", []),
        ("a | false\nb | false\nc | 7\nd | false\ne | 9", ["N: c; V: 7", "N: e; V: 9"]),
        ("a | 3\nb | —\nc |\nd | ✓\ne | 4", ["N: a; V: 3", "N: e; V: 4"]),
        ("a | (1), (2)\nb | [#n-3]_\nc | (of 4)", ["N: c; V: (of 4)"]),
        ("a | 1", []),
        # two rows of one name, and none
        ("a | 3\na | 4\nb | 5\n | 6", ["N: b; V: 5"]),
        # rows that are not as wide as the titles
        ("a | 3\nb | 4 | x\nc | 5", ["N: a; V: 3", "N: c; V: 5"]),
        # addresses and what a template fills in
        ("a | https://a.b/c\nb | {{ c }}\nc | 5", ["N: c; V: 5"]),
    ],
)
def test_only_cells_that_a_question_can_ask_for_are_read(rows: str, cells: list[str]) -> None:
    table = "\n".join(f"| {row} |" for row in ["N | V", "---|---", *rows.split("\n")])
    assert said(table) == cells


@pytest.mark.parametrize(
    ("table", "cells"),
    [
        ("# | Name | Since\n---|---|---\n1 | ash | 1990\n2 | oak | 1850", ["Name: ash; Since: 1990"]),
        (
            "Kind | Name\n---|---\ntree | ash\nherb | sage\ntree | oak\ntree | elm\nmoss | peat\ntree | fir",
            ["Name: sage; Kind: herb"],
        ),
        (
            "| | Free | Pro |\n|---|---|---|\n| Space | 5 GB | 90 GB |\n| Seats | 2 | 40 |",
            ["Space; Pro: 90 GB"],
        ),
    ],
)
def test_a_row_is_about_what_tells_it_apart(table: str, cells: list[str]) -> None:
    assert set(cells) <= set(said(table))
    assert not any(one.startswith(("#", "Kind: tree")) for one in said(table))


def test_tables_without_titles_are_read_as_before() -> None:
    for text in (
        "a | 3\nb | 4\nc | 5",
        "| a | 3 |\n| b | 4 |",
        "| N | V |\n|---|---|\n\n| a | 3 |\n| b | 4 |",
    ):
        assert said(text) == []


def test_sentences_in_cells_that_are_not_asked_about_are_read() -> None:
    told = [f"It holds the {one} of what comes." for one in ("gate", "lock", "door")]
    rows = [f"| {one[13:17]} | {at + 7} | {one} |" for at, one in enumerate(told)]
    for titles in ("Option | Default |", "Default | Option | Default"):
        table = "\n".join([f"| {titles} |", "|---|---|---|", *rows])
        assert set(told) <= {one.sentence for one in asked_sentences(table)}
    shared = "It is as old as the hills."
    rows = [f"| {name} | {at} | {shared} |" for at, name in enumerate(("ash", "oak", "elm"))]
    table = "\n".join(
        ["| Tree | Rings | Age |", "|---|---|---|", *rows, "| fir | 6 | New. |", "| yew | 8 | Old. |"]
    )
    found = {one.sentence for one in asked_sentences(table)}
    assert {shared, "Tree: ash; Rings: 0", "Tree: fir; Age: New."} <= found


NAMES = ("alpha", "beta", "gamma")
SPANNED = "<th>Name</th><th colspan=2>Range</th><th>Unit</th>"
CORNER = "<th></th><th>Range</th><th>Unit</th>"


def page(tmp_path: Path, titles: str, columns: int) -> str:
    """A page with a table, as it is read."""
    rows = [[name, *(f"{name[0]}{at}" for at in range(1, columns))] for name in NAMES]
    cells = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    (tmp_path / "a.html").write_text(f"<table><tr>{titles}</tr>{cells}</table>", encoding="utf-8")
    return next(texts_of(tmp_path, Limits()))


def test_a_cell_is_of_no_other_column_than_its_own(tmp_path: Path) -> None:
    wiki = '{| \n! Name\n! colspan="2" | Range\n! Unit\n|-\n' + "|-\n".join(
        f"| {name} || 1{at} || 2{at} || m{at}\n" for at, name in enumerate(NAMES)
    )
    wide = "| N | V |\n|---|---|\n| a | 3 | x |\n| b | 4 | y |"
    short = wide.replace("|---|---|", "|---|---|---|")
    for text in (page(tmp_path, SPANNED, 4), cleaned(wiki + "|}", "wiki"), wide, short):
        assert said(text) == []
    assert said(page(tmp_path, CORNER, 3)) == [
        f"{name}; {title}: {name[0]}{at}" for name in NAMES for at, title in ((1, "Range"), (2, "Unit"))
    ]
    assert said(page(tmp_path, "<th></th><th></th><th>Unit</th><th>Range</th>", 4))[0] == "alpha; Unit: a2"
    noted = page(tmp_path, "<th></th><th>Unit</th><th>Notes</th>", 2).replace("1\n", "1 |\n") + " |"
    assert said(noted) == [f"{name}; Unit: {name[0]}1" for name in NAMES]  # nothing stands in the notes
    iconless = page(tmp_path, "<th></th><th>Name</th><th>Unit</th>", 2)
    assert said(iconless) == [f"Name: {name}; Unit: {name[0]}1" for name in NAMES]


def test_a_rule_between_rows_has_no_titles_above_it() -> None:
    rows = "| N | V |\n|---|---|\n| a | 3 |\n| b | 4 |\n| c | 5 |\n|---|---|\n| sum | 12 |\n| mean | 4 |"
    assert said(rows) == ["N: a; V: 3", "N: b; V: 4"]
    apart = "| N | V |\n|---|---|\n| a | 3 |\n| b | 4 |\n\n| M | W |\n|---|---|\n| c | 5 |\n| d | 6 |"
    assert said(apart) == ["N: a; V: 3", "N: b; V: 4", "M: c; W: 5", "M: d; W: 6"]
    for empty in ("|---|---|\n", "| | |\n|---|---|\n"):
        assert said(f"{empty}| a | 3 |\n| b | 4 |\n| c | 5 |") == []


def test_a_gap_asks_for_no_title_of_two_parts() -> None:
    rows = [f"| tree_{n} | {31 * n + 12} |" for n in range(9)]
    gaps = clozes(["\n".join(["| Tree | Size: height |", "|---|---|", *rows])], limit=99, each=3)
    assert {(gap.before, gap.answer) for gap in gaps} == {
        (f"Tree: tree_{n}; Size, height:", f"{31 * n + 12}") for n in range(9)
    }


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("| a | 3 |\n| b | 4 |\n\nSo.\n\n  | c | 5 |\n  | d | 6 |", 2),
        ("a | 3\nb | 4", 1),
        ("| N | V |\n|---|---|\n| a | 3 |\n\nN | V\n--- | ---\na | 3\nb | 4", 0),
        ("| a | 3 |", 0),
        ("| A line of it\n| and the next one", 0),
        ("```\ncat a | sort\ncat b | sort\n```", 0),
    ],
)
def test_tables_without_titles_are_counted(text: str, tables: int) -> None:
    assert untitled_tables(text) == tables


def test_titles_and_rows_that_are_asked_about_are_not_silent() -> None:
    table = "| Feature | Supported |\n|---|---|\n| a | yes |\n| b | no |\n| c | yes |\n| d | no |"
    assert silent_rows(table) == 4
    assert silent_rows(OPTIONS) == silent_rows("") == 0
    assert silent_rows("| a | 3 |\n| b | 4 |") == 2


def test_code_is_no_table() -> None:
    assert said(f"```\n{OPTIONS}\n```") == []


def test_a_gap_asks_for_a_value_and_no_title_and_a_row_is_asked_once_first() -> None:
    trees = ("ash", "oak", "elm", "fir", "yew", "box", "bay", "fig", "gum", "nut")
    rows = [f"| {tree} | {1500 + 17 * n} | {31 * n + 12} |" for n, tree in enumerate(trees)]
    table = "\n".join(["| Tree | Planted | Height in metres |", "|---|---|---|", *rows])
    once = clozes([table], limit=99)
    assert len(once) == len({gap.before.partition(";")[0] for gap in once}) == len(trees)
    every = {(gap.before, gap.answer) for gap in clozes([table], limit=99, each=3)}
    assert every == {
        pair
        for n, tree in enumerate(trees)
        for pair in (
            (f"Tree: {tree}; Planted:", f"{1500 + 17 * n}"),
            (f"Tree: {tree}; Height in metres:", f"{31 * n + 12}"),
        )
    }


@pytest.mark.parametrize("part", ["|", "| a ", "|-", "| a |\n|---|\n", "| a | b |\n|---|---|\n| c | d |\n"])
def test_many_rows_take_linear_time(part: str) -> None:
    began = time.process_time()
    asked_sentences(part * (400_000 // len(part)))
    assert time.process_time() - began < 5


def test_of_a_description_the_first_word_is_not_asked_for() -> None:
    told = ("Quenches the brindle of it", "Zeroes the vorpal of it", "Whisks the tessel of it")
    rows = [f"| tree_{n} | {one} | {one.split()[0]} |" for n, one in enumerate(told)]
    table = "\n".join(["| Tree | What it does | In short |", "|---|---|---|", *rows])
    around = [f"There is more of it on page {n}." for n in range(20)]
    found = {
        (gap.before.partition("; ")[2], gap.answer) for gap in clozes([table, *around], limit=99, each=3)
    }
    assert {answer for before, answer in found if before.startswith("What")} == {
        "brindle",
        "vorpal",
        "tessel",
    }
    assert {answer for before, answer in found if before == "In short:"} == {"Quenches", "Zeroes", "Whisks"}


GRID = """
+----------+-------------------+
| Option   | What it does      |
+==========+===================+
| ``port`` | Where it listens, |
|          | for all of us.    |
+----------+-------------------+
| ``host`` | 12                |
+----------+-------------------+
"""
SIMPLE = """
========  ============
Option    What it does
========  ============
``port``  Where it listens, for all of us.
``host``  12
========  ============
"""
LISTED = """
.. list-table:: Options
   :header-rows: 1

   * - Option
     - What it does
   * - ``port``
     - Where it listens,
       for all of us.
   * - ``host``
     - 12
"""
SEPARATED = """
.. csv-table:: Options
   :header: "Option", "What it does"

   "``port``", "Where it listens, for all of us."
   ``host``, 12
"""


@pytest.mark.parametrize("table", [GRID, SIMPLE, LISTED, SEPARATED])
def test_tables_of_restructured_text_are_read_as_those_of_markdown(table: str) -> None:
    cells = ["Option: port; What it does: Where it listens, for all of us.", "Option: host; What it does: 12"]
    inside = table.replace("\n", "\n   ")
    for text in (f"Before.\n{table}\nAfter.", f".. note::\n{inside}\n\nAfter.", table.strip()):
        read = cleaned(text, "rst")
        assert said(read) == cells
        assert "| ``port`` | Where it listens, for all of us. |\n" in read
    code = f"As here::\n{inside}\n\nAfter."
    assert code in cleaned(code, "rst")


@pytest.mark.parametrize(
    "table",
    [
        GRID.replace("=", "-"),  # no titles
        GRID.replace("| ``host`` | 12                |", "| Both of the two columns      |"),
        SIMPLE.replace("  12", "_and_more"),
        SIMPLE.replace("========  ============\n``port``", "``port``"),
        LISTED.replace("   :header-rows: 1\n", ""),
        LISTED.replace("- 12", "- As::"),
        SEPARATED.replace("host``, 12", "host``"),
    ],
)
def test_other_tables_of_restructured_text_stay_as_they_stand(table: str) -> None:
    read = cleaned(table, "rst")
    assert "|---|" not in read and "port" in read and said(read) == []


ROLES = """
.. csv-table:: Errors
   :header: Code, "What it says,
     and means"

   :ref:`E1 <e1>`, "The disk is full of
   old files"
   :ref:`E2 <e2>`, "The network is down"

.. list-table::
   :header-rows: 1

   * - Call
     - Result
   * - ``one``
     -
       :py:func:`first` of them
   * - ``two``
     - 2
"""


def test_a_role_at_the_beginning_of_a_line_is_no_option() -> None:
    assert said(ROLES, "rst") == [
        "Code: E1; What it says, and means: The disk is full of old files",
        "Code: E2; What it says, and means: The network is down",
        "Call: one; Result: first of them",
        "Call: two; Result: 2",
    ]
