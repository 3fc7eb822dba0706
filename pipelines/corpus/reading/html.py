"""Extract a page's main text: leave out menus, footers, forms and scripts, keep all else.

The page is parsed as a stream of tags and never held as a tree, so nesting of any depth costs nothing. In
doubt a text is kept: a lost fact is worse than an unneeded line.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from html import escape
from itertools import pairwise

from pipelines.corpus.markup.front_matter import front_matter
from pipelines.corpus.markup.mathml import ELEMENTS, Formulas, unprefixed
from pipelines.corpus.markup.page_blocks import Block, fenced_code, without_menus
from pipelines.corpus.markup.page_rows import BETWEEN, Row, Table
from pipelines.corpus.markup.parts import names
from pipelines.corpus.markup.permalinks import permalink_sign
from pipelines.corpus.markup.raised import raised
from pipelines.corpus.reading import encodings
from pipelines.corpus.reading.formats import Unreadable
from pipelines.corpus.reading.plain import FileFacts, Source, characters
from recovery.counted import counted

NEVER = names(
    "script style noscript template nav footer button select textarea iframe object svg canvas audio video "
    "dialog menu datalist del s strike annotation annotation-xml mphantom rt rp rtc"
)
BESIDE_MAIN = names("header aside")  # within the main text they are its title, notes and footnotes
BLOCKS = names(
    "address article aside blockquote body center dd details div dl dt fieldset figcaption figure footer "
    "form h1 h2 h3 h4 h5 h6 header hr html legend li main ol p pre section summary table tbody tfoot thead "
    "tr ul"
)
CELLS = names("tr td th")
PARTS = names("thead tbody tfoot")  # of a table
TIGHT = names("li tr dt dd")  # blocks without an empty line between them
MARKS = {"li": "- ", "dd": ": "}  # before a block's text, as Markdown writes them
UNMARKED = names("dd dl dt li ol pre table ul")  # blocks that no mark of another one stands before
MAIN = names("main article")
APART = names("sub sup")  # from their line
# Other tags only style their text.
SPECIAL = NEVER | BLOCKS | MAIN | APART | ELEMENTS | names("title a br td th pre")
HINTS = names("hidden aria-hidden role style class id")  # attributes that may exclude an element
WHOLE = MAIN | names("html body")  # never excluded by their class
ROLES = names("navigation banner contentinfo complementary search menu menubar toolbar dialog alertdialog")
NAMES = names(
    "nav navbar navigation menu sidebar footer site-header site-footer site-nav breadcrumb breadcrumbs "
    "cookie cookies cookie-banner cookie-consent toc advert advertisement ads share social noprint "
    "topnav subnav bottomnav top-nav sub-nav skip-nav legalcopy legal-copy navpath ttc "
    "viewcode-link viewcode-back linenos lineno lnt "
    "nav-panel mw-jump-link mw-editsection printfooter catlinks navbox pagination pager skip-link"
)
HEADED = names("section h1 h2 h3 h4 h5 h6 span dt")  # their ids are made of what they say
SECTION = re.compile(r"sect(?:ion|\d)")  # a class of blocks with such ids
JOINT = re.compile(r"[^a-z]+")  # between the words of a class's name
LONGEST_MARK = 80  # characters of a mark of a note or of a link to its own place
HEADINGS = names("h1 h2 h3 h4 h5 h6 dt")
BETWEEN_MARKS = re.compile(r"[\s\[\](),;–-]+")
INVISIBLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden")
FORMULA = "mwe-math-mathml-a11y"  # of MediaWiki: hidden, as a picture of it is shown
TEMPLATE_TAG = re.compile(r"<%.*?%>", re.S)
CDATA = re.compile(r"<!\[CDATA\[((?:(?!<!\[CDATA\[).)*?)\]\]>", re.S)  # of XHTML: text; to HTML a comment


def read_html(source: Source, facts: FileFacts) -> Iterator[str]:
    """Yield the main text of a page."""
    page = Page()
    if fed(page, source, facts):
        yield page.text()


def fed(page: Page, source: Source, facts: FileFacts) -> bool:
    """Feed a file to a page; return whether it holds anything."""
    from lxml import etree

    parser = etree.HTMLParser(target=page, huge_tree=True, no_network=True)
    found = False
    for number, text in enumerate(_decoded(source, facts)):
        if number == 0:
            data = front_matter(text)
            page.title += [data.title] if data.title else []
            text = text[data.end :]
        text = TEMPLATE_TAG.sub("", text.replace("\0", ""))
        parser.feed(CDATA.sub(lambda said: escape(said[1]), text) if page.IS_XHTML else text)
        found = found or bool(text.strip())
    if found:
        parser.close()
    return found


def _decoded(source: Source, facts: FileFacts) -> Iterator[str]:
    """Decode by the byte order mark, else as UTF-8 if it is that, else as declared, else as other text."""
    first = next(source.blocks(), b"")[:4096]
    codec = None if encodings.marked(first) else encodings.declared(first)
    if codec is None or _is_utf8(source):
        yield from characters(source, facts)
        return
    facts.encoding = codec
    replaced = 0
    for text in encodings.decoded(source.blocks, encodings.Encoding(codec, "replace")):
        replaced += text.count("\ufffd")
        yield text
    if replaced:
        facts.add_note(f"{counted(replaced, 'place')} replaced where the text is not {codec}")


def _is_utf8(source: Source) -> bool:
    """Return whether all bytes are UTF-8 and some more than ASCII: no other encoding is that by chance."""
    decode = codecs.getincrementaldecoder("utf-8")("strict").decode
    plain = True
    try:
        for block in source.blocks():
            plain = plain and block.isascii()
            decode(block)
        decode(b"", True)
    except UnicodeDecodeError:
        return False
    return not plain


def _is_hidden(tag: str, attributes: dict[str, str]) -> bool:
    """Return whether an element is never shown: a tab is when it is chosen, a caption is to the eye."""
    hidden = "hidden" in attributes or attributes.get("aria-hidden") == "true"
    return hidden and tag != "figcaption" and attributes.get("role") != "tabpanel"


class Page:
    """The parser's target: collects blocks of text.

    It is called for each tag and text, so the most frequent cases come first.
    """

    NEVER, NAMES, ROLES = NEVER, NAMES, ROLES
    IS_XHTML = False

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.title: list[str] = []
        self._open: list[str] = []
        self._tables: list[Table] = []
        self._rows: list[Row] = []
        self._apart: list[tuple[int, bool, int]] = []  # first part, in a link or not, characters of links
        # Of each open link the sign it may show, the number of its first block and part, characters of links
        self._signs: list[tuple[re.Pattern[str] | None, int, int, int, bool]] = []
        self._parts: list[str] = []
        self._formulas = Formulas()
        self._skipped_at = 0  # depth of the excluded element, 0: none
        self._main = self._pre = self._links = self._link_characters = 0
        self._tight = self._in_title = self._has_title = False
        self._written = False  # the current block has text

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        tag = unprefixed(tag) if ":" in tag else tag
        self._open.append(tag)
        if self._skipped_at:
            return
        hinted = not HINTS.isdisjoint(attributes)
        if tag not in SPECIAL and not hinted:
            return
        beside = tag in BESIDE_MAIN and not self._main
        if tag in self.NEVER or beside or (hinted and self._unwanted(tag, attributes)):
            self._skipped_at = len(self._open)
            if tag in CELLS and self._tables:
                self._tables[-1].spans.lose()
            return
        self._begin(tag, attributes)
        if tag == "a":
            self._begin_link(attributes)
        if tag in MAIN or (hinted and attributes.get("role") == "main"):
            self._main += 1

    def _begin(self, tag: str, attributes: dict[str, str]) -> None:
        if tag in BLOCKS:
            self._begin_block(tag)
        elif tag == "title":
            self._in_title, self._has_title = True, bool("".join(self.title).strip())
        elif tag == "br":
            self._parts.append("\n" if self._pre else "\v")
        elif tag in ("td", "th"):
            self._begin_cell(attributes)
        elif tag in APART:
            self._apart.append((len(self._parts), self._links > 0, self._link_characters))
        elif tag in ELEMENTS:
            self._formulas.begin(tag, attributes, len(self._open), len(self._parts))

    def _begin_link(self, attributes: dict[str, str]) -> None:
        sign = permalink_sign(attributes, in_heading=not HEADINGS.isdisjoint(self._open[-4:]))
        place = (len(self.blocks), len(self._parts), self._link_characters, self._written)
        self._signs.append((sign, *place))
        self._links += 1

    def _begin_block(self, tag: str) -> None:
        self._flush(tag)
        self._pre += tag == "pre"
        self._tight = tag in TIGHT or bool(self._parts)  # a bullet is joined with its first paragraph
        if tag in MARKS:
            self._parts.append(MARKS[tag])
            self._written = True
        elif tag == "dt" and self.blocks:
            self.blocks[-1] = self.blocks[-1]._replace(last=True)
        elif tag == "tr":
            if self._rows:
                self._rows[-1].nests = True
            self._rows.append(Row(self._tables[-1] if self._tables else Table(), len(self.blocks)))
        elif tag == "table":
            self._tables.append(Table())
        elif tag in PARTS and self._tables:
            self._tables[-1].begin_part(self.blocks)

    def _begin_cell(self, attributes: dict[str, str]) -> None:
        row = self._rows[-1] if self._rows else Row(Table(), len(self.blocks))
        if self._written:
            self._parts.append(f" {BETWEEN} ")
        elif len(self.blocks) > row.first:
            row.borders.append(len(self.blocks))
        elif row.takes:
            row.left_out += 1
        row.begin_cell(attributes, is_title=self._open[-1] == "th")

    def _unwanted(self, tag: str, attributes: dict[str, str]) -> bool:
        if _is_hidden(tag, attributes):
            return True
        names = (attributes.get("class") or "").lower().split()
        styled = attributes.get("style") if FORMULA not in names else None
        if attributes.get("role") in self.ROLES or INVISIBLE.search(styled or ""):
            return True
        if tag not in HEADED and not any(map(SECTION.fullmatch, names)):
            names += (attributes.get("id") or "").lower().split()
        if tag == "sup" and "reference" in names:
            return True
        if tag == "aside":  # a td-sidebar or book-menu is a side column within the main text too
            names += [word for name in names for word in JOINT.split(name)]
        return tag not in WHOLE and not self.NAMES.isdisjoint(names)

    def end(self, tag: str) -> None:
        tag = unprefixed(tag) if ":" in tag else tag
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
            self._flush(tag)
            self._main -= self._main > 0 and tag in MAIN
            self._pre -= self._pre > 0 and tag == "pre"
            if tag == "tr" and self._rows:
                self._end_row(self._rows.pop())
            elif tag in PARTS and self._tables:
                self._tables[-1].begin_part(self.blocks)
            elif tag == "table" and self._tables:
                self._end_rows(self._tables.pop(), len(self.blocks))
        elif tag == "a":
            self._links -= self._links > 0
            if self._signs:
                self._end_link(*self._signs.pop())
        elif tag in APART and self._apart:
            self._set_apart(tag, *self._apart.pop())
        elif tag in ELEMENTS:
            self._formulas.end(tag, self._parts)
        elif tag == "title":
            self._in_title = False

    def _end_row(self, row: Row) -> None:
        row.join(self.blocks)
        if row.nests and not row.is_line:  # another table is inside, whose rows are none of this one
            self._end_rows(row.table, row.first)
            self._end_rows(row.table, len(self.blocks))

    def _end_rows(self, table: Table, block: int) -> None:
        """End the rows below a table's titles before a block."""
        if table.titles and block:
            self.blocks[block - 1] = self.blocks[block - 1]._replace(last=True)

    def _end_link(
        self, sign: re.Pattern[str] | None, blocks: int, first: int, links: int, written: bool
    ) -> None:
        """Leave out a link to the place where it stands: it shows a sign and says nothing."""
        if sign is None or blocks != len(self.blocks):
            return
        said = "".join(self._parts[first:]).strip()
        if len(said) <= LONGEST_MARK and sign.fullmatch(said):
            del self._parts[first:]
            self._link_characters, self._written = links, written

    def _set_apart(self, tag: str, first: int, in_link: bool, links: int) -> None:
        """Write what is raised or lowered as such; leave out a raised link, which is the mark of a note."""
        said = "".join(self._parts[first:])
        linked = 0 if in_link or len(said) > LONGEST_MARK else self._link_characters - links
        if tag == "sup" and 0 < linked >= len(BETWEEN_MARKS.sub("", said)):
            said, self._link_characters = "", links
        self._parts[first:] = [raised(said, lowered=tag == "sub")] if said else []

    def data(self, text: str) -> None:
        if self._skipped_at:
            return
        if self._in_title:
            self.title += [] if self._has_title else [text]
            return
        self._parts.append(text.replace(BETWEEN, ""))
        self._written = self._written or not text.isspace()
        if self._links:
            self._link_characters += len(text.strip())

    def close(self) -> None:
        self._flush()

    def _flush(self, tag: str = "") -> None:
        if not self._parts:
            return
        text = "".join(self._parts)
        if self._pre:
            text = text.strip("\n")
        elif "\v" in text:
            text = "\n".join(" ".join(line.split()) for line in text.split("\v")).strip()
        else:
            text = " ".join(text.split())
        is_mark = text in ("-", ":")
        if text.strip() and not is_mark:
            self.blocks.append(Block(text, self._link_characters, self._main > 0, self._tight, self._pre > 0))
        if not is_mark or tag in UNMARKED:
            self._parts, self._written = [], False
        self._link_characters = 0

    def text(self) -> str:
        main = [block for block in self.blocks if block.main]
        enough = sum(len(block.text) for block in main) * 4 >= sum(len(block.text) for block in self.blocks)
        kept = fenced_code(main if main and enough else without_menus(self.blocks))
        parts = [kept[0].text] if kept else []
        for before, block in pairwise(kept):
            tight = before.tight and block.tight and not before.last
            parts.append(("\n" if tight else "\n\n") + block.text)
        title = " ".join("".join(self.title).split())
        body = "".join(parts).replace(BETWEEN, "|")
        if not body:
            raise Unreadable("a page without text")
        titled = not title or body.startswith(title) or kept[0].text in title
        return body if titled else f"{title}\n\n{body}"
