"""Read e-books: the pages of an EPUB in the order of its spine, each as a page of HTML is read.

What leads into the book is left out: covers, contents, lists of pages. What stands beside a page's main text
is not, as of a site's page: in a book it is a heading, a box or a note.
"""

from __future__ import annotations

import posixpath
import re
import zipfile
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from pipelines.corpus.markup.office_files.xml_names import local
from pipelines.corpus.markup.page_blocks import Block, without_menus
from pipelines.corpus.markup.parts import names
from pipelines.corpus.markup.permalinks import kinds
from pipelines.corpus.reading.archive import blocks, collected, opened, parsed
from pipelines.corpus.reading.formats import Unreadable
from pipelines.corpus.reading.html import NAMES, NEVER, ROLES, Page, fed
from pipelines.corpus.reading.plain import FileFacts, Source

CONTAINER, ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
PAGES = names("application/xhtml+xml text/html application/x-dtbook+xml text/x-oeb1-document")
MOST_FALLBACKS = 8  # of a page in a format that is not read
FONTS = names("http://www.idpf.org/2008/embedding http://ns.adobe.com/pdf/enc#RC")
# Parts of a book that lead into it
LEADING = names("cover toc landmarks loi lot page-list index index-group pagebreak")
COVER = re.compile(r"(?:.*[_-])?cover(?:[_-]?page)?(?:[_-]?\d+)?\.x?html?", re.I)
# Of a site's parts, what boxes and chapters of a book are called too
CALLED = names("sidebar menu navigation cookie cookies social share ads")
LONGEST_COVER = 400  # characters
HEADINGS = names("h1 h2 h3 h4 h5 h6")
FEWEST_ENTRIES, LINKED = 3, 0.8  # links of a page that is nothing but contents, and their share of it
OPENING = 10_000  # characters in which a book says its title
NO_TEXT = "an e-book without text: pictures of pages need text recognition first"
UNTITLED = frozenset(("", "unknown", "untitled", "no title"))


def read_epub(source: Source, facts: FileFacts) -> Iterator[str]:
    """Yield the pages in their order, below the title where none of the first says it."""
    with opened(source, "e-book") as archive:
        package = _package(archive)
        _refuse_locked(archive, package)
        yield from _titled(package.title, _Book(archive, package, source, facts).pages())


class _Package:
    """What an e-book consists of, as its package document says; collects that as the parser's target."""

    def __init__(self, place: str) -> None:
        self.folder = posixpath.dirname(place)
        self._items: dict[str, dict[str, str]] = {}
        self.order: list[str] = []
        self._covers: set[str] = set()
        self._title: list[str] = []
        self._in_title = False

    def StartElementHandler(self, name: str, attributes: dict[str, str]) -> None:
        tag = local(name)
        if tag == "item":
            self._items.setdefault(attributes.get("id", ""), attributes)
        elif tag == "itemref":
            self.order.append(attributes.get("idref", ""))
        elif tag == "reference" and attributes.get("type") == "cover":
            self._covers.add(self._place(attributes.get("href", "")))
        elif tag == "title" and not self._title:
            self._in_title = True

    def EndElementHandler(self, name: str) -> None:
        self._in_title = False

    def CharacterDataHandler(self, text: str) -> None:
        if self._in_title:
            self._title.append(text)

    @property
    def title(self) -> str:
        return " ".join("".join(self._title).split())

    def _place(self, address: str) -> str:
        path = unquote(address.partition("#")[0])
        return posixpath.normpath(posixpath.join(self.folder, path)).lstrip("/")

    def pages(self) -> list[str]:
        """Return the names of the pages in their order, each once; the page of contents is none."""
        items = (self._readable(key) for key in dict.fromkeys(self.order))
        read = [item for item in items if item and "nav" not in item.get("properties", "").split()]
        return list(dict.fromkeys(self._place(item.get("href", "")) for item in read))

    def _readable(self, key: str) -> Mapping[str, str] | None:
        """Return an item of the book, or what stands in for it where it is no page."""
        for _ in range(MOST_FALLBACKS):
            item = self._items.get(key)
            if item is None or item.get("media-type", "").lower() in PAGES:
                return item
            key = item.get("fallback", "")
        return None

    def is_cover(self, name: str, text: str) -> bool:
        """Return whether a page is a cover, which says what a title page says again."""
        named = name in self._covers or COVER.fullmatch(posixpath.basename(name))
        return len(text) <= LONGEST_COVER and bool(named)


def _package(archive: zipfile.ZipFile) -> _Package:
    rows = collected(archive, CONTAINER, "rootfile")
    roots = (posixpath.normpath(row.get("full-path", "")) for row in rows)
    place = next((root for root in roots if root in archive.NameToInfo), None)
    if place is None:
        raise Unreadable(f"not an e-book: it holds no {CONTAINER} that names its pages")
    package = _Package(place)
    for _ in parsed(archive, place, package):
        pass
    if not package.pages():
        raise Unreadable(NO_TEXT if package.order else f"not an e-book: {place} in it lists no pages")
    return package


class _Encrypted:
    """Collects what is encrypted in an e-book, fonts aside, as the parser's target."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._methods: list[str] = []

    def StartElementHandler(self, name: str, attributes: dict[str, str]) -> None:
        tag = local(name)
        if tag == "EncryptedData":
            self._methods = []
        elif tag == "EncryptionMethod":
            self._methods.append(attributes.get("Algorithm", ""))
        elif tag == "CipherReference" and FONTS.isdisjoint(self._methods):
            self.names.add(posixpath.normpath(unquote(attributes.get("URI", ""))).lstrip("/"))


def _refuse_locked(archive: zipfile.ZipFile, package: _Package) -> None:
    if ENCRYPTION not in archive.NameToInfo:
        return
    encrypted = _Encrypted()
    for _ in parsed(archive, ENCRYPTION, encrypted):
        pass
    if not encrypted.names.isdisjoint(package.pages()):
        raise Unreadable("locked by copy protection: its pages are encrypted")


class _Part(Source):
    """A part of an archive, read as a file is."""

    def __init__(self, book: Source, archive: zipfile.ZipFile, name: str) -> None:
        super().__init__(book.handle, False, book.limits)
        self.size = archive.getinfo(name).file_size
        self._archive, self._name = archive, name

    def raw(self) -> Iterator[bytes]:
        return blocks(self._archive, self._name)


class _BookPage(Page):
    """A page of a book: all of it is main text, but for what leads into the book."""

    NEVER = NEVER - {"footer"}  # of a chapter, with its notes, or of a quotation, with who said it
    NAMES = NAMES - CALLED
    ROLES = ROLES - {"complementary"}
    IS_XHTML = True

    def __init__(self) -> None:
        super().__init__()
        self._main = 1
        self._headed = self._leads_out = False

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if not LEADING.isdisjoint(kinds(attributes)):
            attributes = {**attributes, "hidden": ""}
        self._headed = self._headed or tag in HEADINGS
        self._leads_out = self._leads_out or (tag == "a" and "://" in (attributes.get("href") or ""))
        super().start(tag, attributes)

    def read(self) -> tuple[str, str]:
        """Return the page's title where no heading says it, and its text; none of a page of contents."""
        title = "" if self._headed else " ".join("".join(self.title).split())
        self.blocks = [] if self._is_contents() else without_menus(self.blocks)
        self.title = []
        return title, self.text() if self.blocks else ""

    def _is_contents(self) -> bool:
        """Return whether the page is links into the book below a heading, and nothing else."""
        entries: list[Block] = self.blocks if self.blocks[:1] and self.blocks[0].links else self.blocks[1:]
        linked = sum(block.links for block in entries)
        whole = sum(len(block.text.removeprefix("- ")) for block in entries)
        several = sum(block.links > 0 for block in entries) >= FEWEST_ENTRIES
        return several and linked >= LINKED * whole and not self._leads_out


class _Book:
    """The pages of an e-book, and what is known of those that were read."""

    def __init__(self, archive: zipfile.ZipFile, package: _Package, source: Source, facts: FileFacts) -> None:
        self._archive, self._package, self._source, self._facts = archive, package, source, facts
        self._titles = {package.title}
        self._read: set[int] = set()  # hashes of texts

    def pages(self) -> Iterator[str]:
        """Yield the text of each page that has any; remark on those that cannot be read."""
        names = self._package.pages()
        bad: list[str] = []
        for name in names:
            try:
                yield from self._page(name)
            except Unreadable as error:
                bad.append(str(error))
        if len(bad) == len(names):
            raise Unreadable(bad[0])
        if not self._read:
            raise Unreadable(NO_TEXT)
        if bad:
            self._facts.add_note(f"{len(bad)} of {len(names)} pages cannot be read")

    def _page(self, name: str) -> Iterator[str]:
        if name not in self._archive.NameToInfo:
            raise Unreadable(f"{name} is missing in it")
        page = _BookPage()
        facts = FileFacts()
        fed(page, _Part(self._source, self._archive, name), facts)
        title, text = page.read()
        if not text or self._package.is_cover(name, text) or hash(text) in self._read:
            return
        self._read.add(hash(text))
        if facts.note and not self._facts.note:
            self._facts.add_note(f"{name}: {facts.note}")
        if self._is_new(title, name, text):
            yield f"{title}\n\n"
        self._titles.add(title)
        yield f"{text}\n\n"

    def _is_new(self, title: str, name: str, text: str) -> bool:
        """Return whether a page's title says something that neither the page nor an earlier one does."""
        named = posixpath.basename(name).startswith(title)
        said = text.startswith(title) or text.partition("\n")[0] in title
        return not (named or said or title in self._titles)


def _titled(title: str, texts: Iterator[str]) -> Iterator[str]:
    """Yield a book's texts, below its title where none of their first lines does."""
    opening: list[str] = []
    for text in texts:
        opening.append(text)
        if sum(map(len, opening)) > OPENING:
            break
    if not _says(title, "".join(opening)[:OPENING]):
        yield f"{title}\n\n"
    yield from opening
    yield from texts


def _says(title: str, text: str) -> bool:
    """Return whether a line of a text is the title, with or without what it has behind a colon."""
    whole, main = _compared(title), _compared(re.split(r"[:;]", title)[0])
    if whole in UNTITLED:
        return True
    lines = (_compared(line) for line in text.split("\n") if len(line) <= len(title) + OPENING // 50)
    return any(line == main or line.startswith(whole) for line in lines)


def _compared(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))
