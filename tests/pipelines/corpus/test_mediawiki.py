"""Pages of a MediaWiki as Markdown."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pipelines.corpus.documents import read_corpus
from pipelines.corpus.prose import prose_sentences
from pipelines.corpus.reading.site_markup import cleaned


@pytest.mark.parametrize(
    ("wiki", "markdown"),
    [
        ("== Where ==\n===Ada===", "## Where\n### Ada"),
        ("'''Ada''' lives in ''Oslo''; it's hers.", "**Ada** lives in *Oslo*; it's hers."),
        (
            "See [[Oslo]], [[Bergen|the other]] and [https://a.b/c the map].",
            "See Oslo, the other and the map.",
        ),
        ("* one\n** two\n# three\n: four", "- one\n  - two\n1. three\nfour"),
        ("; Oslo : a city", "**Oslo**: a city"),
        ("{{Infobox\n| name = {{lang|no|Oslo}}\n}}\nIt is a city.", "It is a city."),
        ("It has {{formatnum:700000}} people.", "It has {{formatnum:700000}} people."),
        (
            "[[File:Oslo.png|thumb|The [[city]]]]It snows.<ref>A ''book''</ref>\n[[Category:Cities]]",
            "It snows.\n",
        ),
        ("<source lang=\"c\">\n* x = '''y''';\n</source>", "```\n* x = '''y''';\n```"),
        ("[[Datei:Oslo.jpg|mini|Die [[Stadt]]]]Es schneit.\n[[Kategorie:Städte]]", "Es schneit.\n"),
        ("[[Файл:О.png]]Идёт снег.\n[[Категория:Города]]", "Идёт снег.\n"),
        ("[[Tập tin:O.svg|nhỏ]]Có tuyết.\n[[Thể loại:Đô thị]]", "Có tuyết.\n"),
        ("[[Fasciculus:Oslo.webp|thumb|Urbs]]Ningit.", "Ningit."),
        ("See [[:Datei:Oslo.jpg|the picture]] and [[Help:Snow]].", "See the picture and Help:Snow."),
        ("Call <code>''f''</code>: it waits.", "Call `''f''`: it waits."),
        ("It is <nowiki>''x''</nowiki> of [[Oslo]]<nowiki />s.", "It is ''x'' of Oslos."),
        ("Call <code><nowiki>{{a}}</nowiki></code>.", "Call `{{a}}`."),
        ("<source>\na <nowiki>b</nowiki>\n</source>", "```\na <nowiki>b</nowiki>\n```"),
        ("It is so.<!-- not -->__NOTOC__", "It is so."),
        ("#REDIRECT [[Oslo]]", ""),
        (
            '{| class="a"\n! City !! People\n|-\n| style="x" | Oslo || 700000\n|-\n| Bergen\n| 290000\n|}',
            "| City | People |\n|---|---|\n| Oslo | 700000 |\n| Bergen | 290000 |",
        ),
    ],
)
def test_a_page_is_written_as_markdown(wiki: str, markdown: str) -> None:
    assert cleaned(wiki, "mediawiki").strip("\n") == markdown.strip("\n")


def test_pages_of_a_wiki_are_read(tmp_path: Path) -> None:
    for suffix in ("mediawiki", "wiki"):
        (tmp_path / f"page.{suffix}").write_text(f"==Of {suffix}==\n'''Ada''' lives in [[Oslo]].")
    found = [str(text) for text in read_corpus(tmp_path).texts]
    assert [prose_sentences(text) for text in found] == [["Ada lives in Oslo."]] * 2


@pytest.mark.parametrize(
    "piece",
    ["<tt>", "<!--", "<ref>", "{{", "[[File:", "[[a:b.", "[[a|", "'''", "=", "{|\n", "[mailto:", "= \t"],
)
def test_no_page_takes_long(piece: str) -> None:
    begun = time.process_time()
    cleaned(piece * (300_000 // len(piece)), "wiki")
    assert time.process_time() - begun < 5
