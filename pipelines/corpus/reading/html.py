"""Extract a page's main text: leave out menus, footers, forms and scripts, keep all else.

The page is parsed as a stream of tags and never held as a tree, so nesting of any depth costs nothing. In
doubt a text is kept: a lost fact is worse than an unneeded line.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from pipelines.corpus.reading import encodings
from pipelines.corpus.reading.formats import Unreadable
from pipelines.corpus.reading.plain import FileFacts, Source, characters


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NEVER = _words(
    "script style noscript template nav footer aside button select textarea iframe object svg canvas "
    "audio video dialog menu datalist"
)
BLOCKS = _words(
    "address article blockquote body center dd details div dl dt fieldset figcaption figure footer form h1 "
    "h2 h3 h4 h5 h6 header hr html legend li main ol p pre section summary table tbody tfoot thead tr ul"
)
TIGHT = _words("li tr dt dd")  # blocks without an empty line between them
MAIN = _words("main article")
SPECIAL = NEVER | BLOCKS | MAIN | _words("title a br td th pre")  # other tags only style their text
HINTS = _words("hidden aria-hidden role style class id")  # attributes that may exclude an element
WHOLE = MAIN | _words("html body")  # never excluded by their class
ROLES = _words("navigation banner contentinfo complementary search menu menubar toolbar dialog alertdialog")
NAMES = _words(
    "nav navbar navigation menu sidebar footer site-header site-footer site-nav breadcrumb breadcrumbs "
    "cookie cookies cookie-banner cookie-consent toc advert advertisement ads share social noprint "
    "mw-jump-link mw-editsection printfooter catlinks navbox pagination pager skip-link"
)
INVISIBLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden")
DECLARED = re.compile(rb"""<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]+)""", re.I)
MENU_RUN, MENU_LINE = 5, 40  # consecutive short lines of links that make a menu


def read_html(source: Source, facts: FileFacts) -> Iterator[str]:
    """Yield the main text of a page."""
    from lxml import etree

    page = _Page()
    parser = etree.HTMLParser(target=page, huge_tree=True, no_network=True)
    fed = False
    for text in _decoded(source, facts):
        parser.feed(text.replace("\0", ""))
        fed = fed or bool(text.strip())
    if fed:
        parser.close()
        yield page.text()


def _decoded(source: Source, facts: FileFacts) -> Iterator[str]:
    """Decode by the byte order mark, else by the declared encoding, else as any other text."""
    first = next(source.blocks(), b"")[:4096]
    declared = DECLARED.search(first)
    if declared and not encodings.marked(first):
        try:
            codec = codecs.lookup(declared[1].decode("ascii")).name
            encoding = encodings.Encoding("cp1252" if codec == "iso8859-1" else codec, "replace")
            "".encode(encoding.codec)
        except LookupError:
            encoding = encodings.Encoding("utf-8")
        if not encoding.codec.startswith("utf"):
            facts.encoding = encoding.codec
            yield from encodings.decoded(source.blocks, encoding)
            return
    yield from characters(source, facts)


class _Block(NamedTuple):
    text: str
    links: int  # characters inside links
    main: bool
    tight: bool


class _Page:
    """The parser's target: collects blocks of text.

    It is called for each tag and text, so the most frequent cases come first.
    """

    def __init__(self) -> None:
        self.blocks: list[_Block] = []
        self.title: list[str] = []
        self._open: list[str] = []
        self._parts: list[str] = []
        self._skipped_at = 0  # depth of the excluded element, 0: none
        self._main = self._pre = self._links = self._link_characters = 0
        self._tight = self._in_title = False
        self._written = False  # the current block has text

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._open.append(tag)
        if self._skipped_at:
            return
        hinted = not HINTS.isdisjoint(attributes)
        if tag not in SPECIAL and not hinted:
            return
        if (
            tag in NEVER
            or (hinted and self._unwanted(tag, attributes))
            or (tag == "header" and not self._main)
        ):
            self._skipped_at = len(self._open)  # a page's header is its banner, an article's its title
            return
        if tag in BLOCKS:
            self._begin(tag)
        elif tag == "a":
            self._links += 1
        elif tag == "title":
            self._in_title = not self.title
        elif tag == "br":
            self._parts.append("\n" if self._pre else "\v")
        elif tag in ("td", "th") and self._written:
            self._parts.append(" | ")
        if tag in MAIN or (hinted and attributes.get("role") == "main"):
            self._main += 1

    def _begin(self, tag: str) -> None:
        self._flush()
        self._pre += tag == "pre"
        self._tight = tag in TIGHT or bool(self._parts)  # a bullet is joined with its first paragraph
        if tag == "li":
            self._parts.append("- ")
            self._written = True

    def _unwanted(self, tag: str, attributes: dict[str, str]) -> bool:
        if "hidden" in attributes or attributes.get("aria-hidden") == "true":
            return True
        if attributes.get("role") in ROLES or INVISIBLE.search(attributes.get("style") or ""):
            return True
        names = f"{attributes.get('class') or ''} {attributes.get('id') or ''}".lower().split()
        if tag == "sup" and "reference" in names:
            return True
        return tag not in WHOLE and not NAMES.isdisjoint(names)

    def end(self, tag: str) -> None:
        while self._open:
            last = self._open.pop()
            if self._skipped_at:
                if len(self._open) < self._skipped_at:
                    self._skipped_at = 0
            elif last in SPECIAL:
                self._close(last)
            if last == tag:
                break

    def _close(self, tag: str) -> None:
        if tag in BLOCKS:
            self._flush()
            self._main -= self._main > 0 and tag in MAIN
            self._pre -= self._pre > 0 and tag == "pre"
        elif tag == "a":
            self._links -= self._links > 0
        elif tag == "title":
            self._in_title = False

    def data(self, text: str) -> None:
        if self._skipped_at:
            return
        if self._in_title:
            self.title.append(text)
            return
        self._parts.append(text)
        self._written = self._written or not text.isspace()
        if self._links:
            self._link_characters += len(text.strip())

    def close(self) -> None:
        self._flush()

    def _flush(self) -> None:
        if not self._parts:
            return
        text = "".join(self._parts)
        if self._pre:
            text = text.strip("\n")
        elif "\v" in text:
            text = "\n".join(" ".join(line.split()) for line in text.split("\v")).strip()
        else:
            text = " ".join(text.split())
        if text != "-":
            if text.strip():
                self.blocks.append(_Block(text, self._link_characters, self._main > 0, self._tight))
            self._parts = []
            self._written = False
        self._link_characters = 0

    def text(self) -> str:
        main = [block for block in self.blocks if block.main]
        enough = sum(len(block.text) for block in main) * 4 >= sum(len(block.text) for block in self.blocks)
        kept = main if main and enough else _without_menus(self.blocks)
        parts = [kept[0].text] if kept else []
        for before, block in pairwise(kept):
            parts.append(("\n" if before.tight and block.tight else "\n\n") + block.text)
        title = " ".join("".join(self.title).split())
        body = "".join(parts)
        if not body:
            raise Unreadable("a page without text")
        titled = not title or body.startswith(title) or kept[0].text in title
        return body if titled else f"{title}\n\n{body}"


def _without_menus(blocks: list[_Block]) -> list[_Block]:
    """Drop runs of short lines that consist of links."""
    kept: list[_Block] = []
    run: list[_Block] = []
    for block in blocks:
        bare = block.text.removeprefix("- ")
        if len(bare) <= MENU_LINE and block.links >= 0.9 * len(bare.replace(" ", "")):
            run.append(block)
            continue
        kept += run if len(run) < MENU_RUN else []
        kept.append(block)
        run = []
    return kept + (run if len(run) < MENU_RUN else [])
