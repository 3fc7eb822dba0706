"""Pages of a DokuWiki become Markdown."""

from __future__ import annotations

import time

import pytest

from pipelines.corpus.reading.site_markup import cleaned

PAGE = "====== Backup ======\n\n"


@pytest.mark.parametrize(
    ("wiki", "markdown"),
    [
        ("The **old** //server// __runs__ at ''02:30''.", "The **old** *server* __runs__ at `02:30`."),
        (
            "See [[wiki:syntax|the page]], [[http://a.org|it]] and [[it:backup]].",
            "See the page, it and backup.",
        ),
        ("  * One\n  * [[Two]]\n    - Three", "- One\n- Two\n  1. Three"),
        ("==== Part ====\n\n//ab//", "### Part\n\n*ab*"),
        ("<code bash>\nls //a//\n</code>", "```bash\nls //a//\n```\n"),
        ("^ A ^ B ^\n| c | d //e// |\n", "| A | B |\n|---|---|\n| c | d *e* |\n\n"),
        ("^ A ^ B ^\n| c | d |\n| ::: | e |\n", "| A | B |\n|---|---|\n| c | d |\n| c | e |\n\n"),
        ("It is so ((A //note//.)). See http://a.org/b//c.", "It is so (A *note*.). See http://a.org/b//c."),
        ("~~NOTOC~~\n{{tag>a b}}\n{{wiki:a.png?20 |A}}It :!: is.\\\\ So.", "It is.\nSo."),
        ("<note tip>Take ''a''.</note>", "**Tip**\n\nTake `a`."),
        ("Call [[a]] with __init__ of __a b__.", "Call a with __init__ of __a b__."),
        ("%%//a//%% and <nowiki>[[b]]</nowiki> [[c]]", "//a// and [[b]] c"),
    ],
)
def test_a_page_is_written_as_markdown(wiki: str, markdown: str) -> None:
    assert cleaned(PAGE + wiki, "txt") == f"# Backup\n\n{markdown}"


@pytest.mark.parametrize(
    "text",
    [
        "===== Results =====\n\nAll 20 passed in http://a.org//b.\n",
        "Say //so//, ''now'' and [[then]].\n  * One\n",
        "== A == B\n\n[[c]]\n",
        "== A ==\n\n  - __init__ calls f((a+b))\n\n=== B ===\n",
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert cleaned(text, "txt") == text


def test_characters_that_mark_what_is_held_are_no_part_of_a_page() -> None:
    assert cleaned("== A ==\n\n''b'' \ufdd00\ufdd1 \ufdd09\ufdd1 c\n", "txt") == "##### A\n\n`b` 0 9 c\n"


@pytest.mark.parametrize(
    "piece",
    [" ", "//a ", "''a", "((a", "[[a", "{{a", "<code>", "<nowiki>", "%%", "= ", "| ", "__a ", "\n \n"],
)
def test_no_page_takes_long(piece: str) -> None:
    began = time.process_time()
    cleaned(f"{PAGE}[[a]]\n" + piece * (100_000 // len(piece)), "txt")
    assert time.process_time() - began < 5
