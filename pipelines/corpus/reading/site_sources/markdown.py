"""Read Markdown as its readers see it: no comments, no imports, no tags of elements, components, templates.

An element's text stays, and so does what is code. A tag counts as one where another closes it, or where it
has attributes, so that a `<name>` to fill in stays. A template's tag within a sentence stands for a word: it
stays. The data of a picture that are written into the text go, in code too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from pipelines.corpus.markup import fences
from pipelines.corpus.markup.extensions import without_extensions
from pipelines.corpus.markup.mdx import without_expressions
from pipelines.corpus.markup.parts import names
from pipelines.corpus.reading.site_sources.markdown_parts import Kind, Part, Scanner
from pipelines.corpus.reading.site_sources.markdown_tables import table_at

# A shorter one, as in code, may be what a text is about.
_DATA = re.compile(
    r"data:(?:[\w.+-]{1,100}/[\w.+-]{1,100})?(?:;[\w.=+-]{1,60}){0,4},[\w+/=%.~!*-]{200,}+", re.A
)
_TELLING = 1000  # characters: the beginning of an address of data that tells that it is one
# MDX, which has no indented code
_MODULES = re.compile(r"^import\s([^\n]*)\sfrom\s+(?:\"[^\"\n]+\"|'[^'\n]+');?[ \t]*$", re.M)
_NAME = r"[A-Za-z_$][\w$]*"
_USED = re.compile(rf"[<{{]\s*({_NAME})")
_JSX = re.compile(r"^export\s+(?:const|default|function|let)\s|=\{|\{/\*", re.M)
_BLOCKS = names("""
    address article aside blockquote body br button center dd details div dl dt fieldset figcaption figure
    footer form h1 h2 h3 h4 h5 h6 head header hr html legend li main nav ol p section summary table tbody td
    tfoot th thead tr ul video
""")
# sub, sup, del and s are not among them: without them another number or claim would stand there.
_STYLES = names("""
    a abbr acronym area audio b base big caption cite code col colgroup data em embed font i iframe img input
    ins kbd label link map mark meta noscript object option param picture q samp select small source span
    strong textarea time title track tt u var wbr
""")
_ALWAYS = names("br hr wbr")  # stand alone, with and without attributes
_UNMARKED = names("dd dl dt h1 h2 h3 h4 h5 h6 hr li ol table ul")  # no definition's mark stands before them
_BLOCK_BEGINS = re.compile(r"\s*(?:```|~~~|\$\$|[-*+>|]\s|#{1,6}\s)")


def without_data(parts: Iterable[str]) -> Iterator[str]:
    """Yield a text without the addresses that hold data themselves: data:image/png;base64,..., a picture."""
    held = ""  # an address may begin in it and go on in the next part
    for part in parts:
        text = _DATA.sub(_unless_it_goes_on, held + part)
        yield text[:-_TELLING]
        held = text[-_TELLING:]
    yield _DATA.sub("", held)


def _unless_it_goes_on(address: re.Match[str]) -> str:
    """Return nothing; of an address at the end of what is read, its beginning, so that its rest is known."""
    return address[0][:_TELLING] if address.end() == len(address.string) else ""


def read_markdown(text: str, mdx: bool = False) -> str:
    """Return a text without what only a site's tools read."""
    mdx = mdx or _is_mdx(fences.without(text))
    parts = list(Scanner(text, mdx).parts())
    names = _Names(parts)

    def cell(inside: Sequence[Part]) -> str:
        page = _Page(mdx)
        for part in inside:
            page.add(part, names)
        return page.text()

    page = _Page(mdx)
    at = 0
    while at < len(parts):
        if table := table_at(parts, at, cell):
            lines, at = table
            page.put(lines)
        else:
            page.add(parts[at], names)
            at += 1
    return page.text()


def _is_mdx(text: str) -> bool:
    """Return whether a text that is not named so imports modules, and uses one of them or other JSX."""
    names = {name for line in _MODULES.finditer(text) for name in re.findall(_NAME, line[1])}
    if not names:
        return False
    said = _MODULES.sub("", text)
    return bool(_JSX.search(said)) or any(found[1] in names for found in _USED.finditer(said))


class _Names:
    """The names of tags that are opened, and of those that are closed."""

    def __init__(self, parts: Iterable[Part]) -> None:
        tags = [part for part in parts if part.kind in (Kind.TAG, Kind.COMMAND)]
        self._opened = {(part.kind, part.name) for part in tags if not part.closing}
        self._closed = {(part.kind, part.name) for part in tags if part.closing}

    def pairs(self, part: Part) -> bool:
        """Return whether a tag's counterpart stands in the text too."""
        return (part.kind, part.name) in (self._opened if part.closing else self._closed)

    def is_tag(self, part: Part) -> bool:
        """Return whether a tag is an element's or a component's, and no name to fill in."""
        name = part.name.lower()
        if name in _ALWAYS or self.pairs(part):
            return name in _BLOCKS or name in _STYLES or part.name[:1].isupper() or "-" in name
        return part.sure and (name in _BLOCKS or name in _STYLES or part.name[:1].isupper())


class _Page:
    """The lines that are left, the last one of which is still open."""

    def __init__(self, mdx: bool) -> None:
        self._mdx = mdx
        self._lines: list[str] = []
        self._open: list[str] = []
        self._says = self._is_row = False  # the open line has words, or a table's bar
        self._alone: list[Part] = []  # those of the open line
        self._touched = self._just_left_out = False  # something was left out of the open line, or at its end
        self._titled = False  # the open line begins with a title, which stands on a line of its own
        self._defines = False  # the next words are what a term means
        self._close_gap = False  # lines were left out behind an empty one: the next one, if empty, goes too
        self._behind_code = False  # the next part of the text is

    def add(self, part: Part, names: _Names) -> None:
        """Take the next part of the text."""
        if part.kind is Kind.TEXT:
            said = without_extensions(part.text, self._behind_code)
            self._say(without_expressions(said) if self._mdx else said)
        elif part.kind is Kind.CODE:
            self._say(part.text)
        elif part.kind is Kind.TAG:
            self._tag(part) if names.is_tag(part) else self._say(part.text)
        elif part.kind is Kind.COMMAND and not part.sure and not names.pairs(part):
            self._value(part)
        else:
            self._leave_out(part.instead)
        self._behind_code = (part.text if part.kind is Kind.CODE else part.instead).endswith("`")

    def put(self, lines: Iterable[str]) -> None:
        """Take the lines of a table, which stand alone."""
        if self._says:
            self._end_line("\n")
        self._open = []
        for line in lines:
            self._lines.append(f"{line}\n")
        self._touched = True

    def text(self) -> str:
        self._end_line("")
        return "".join(self._lines)

    def _say(self, text: str) -> None:
        if self._titled and text.partition("\n")[0].strip():
            self._end_line("\n")
            self._end_line("\n")
            text = text.lstrip(" \t")
        if text.startswith("]") and self._open and self._just_left_out:  # a link's text ended with a picture
            self._open[-1] = self._open[-1].rstrip(" \t")
        first, *others = text.split("\n")
        self._add(first)
        for line in others:
            self._end_line("\n")
            self._add(line)

    def _add(self, text: str) -> None:
        if self._defines and text.strip():
            self._defines = False
            if not (self._says or _BLOCK_BEGINS.match(text)):
                self._open = [": "]
                text = text.lstrip()
        self._open.append(text)
        self._says = self._says or bool(text.strip())
        self._is_row = self._is_row or "|" in text
        self._just_left_out = False

    def _leave_out(self, instead: str = "") -> None:
        self._touched = True
        if instead:
            titled = instead.startswith("**") and not (self._says or self._is_row)
            self._say(instead)
            self._titled = titled
        self._just_left_out = True

    def _value(self, tag: Part) -> None:
        """Keep a tag that stands for a text, unless its line has no other."""
        if tag.instead and not tag.instead.startswith("**"):
            self._leave_out(tag.instead)
        else:
            self._alone.append(tag)
            self._add(tag.text)

    def _tag(self, tag: Part) -> None:
        """Leave out an element's tag; what stands in a block is a line of its own, in a table's row apart."""
        name = tag.name.lower()
        if self._says and name in _BLOCKS:
            self._set_apart(name, tag.closing)
        elif not self._says and not tag.closing:
            self._open = []
        if name in _UNMARKED and not self._is_row:
            self._begin(name if not tag.closing else "")
        self._leave_out(tag.instead or ("" if tag.closing or self._is_row else _mark(name)))

    def _begin(self, name: str) -> None:
        """Begin a term, behind an empty line, or what it means, or another block."""
        self._defines = name == "dd"
        if name == "dt" and not self._says and self._lines and self._lines[-1].strip():
            self._lines.append("\n")

    def _set_apart(self, name: str, closing: bool) -> None:
        if self._is_row or name in ("td", "th"):
            if not closing and not self._open[-1].endswith(" "):
                self._add(" ")
        elif "".join(self._open).strip(" \t>-*"):  # more than marks of a quotation or a list
            self._end_line("\n")

    def _end_line(self, end: str) -> None:
        line = "".join(self._open)
        if self._alone and _unspaced(line) == _unspaced("".join(part.text for part in self._alone)):
            line = "".join(part.instead for part in self._alone)
            self._touched = True
        blank = not line.strip()
        if blank and self._touched:
            self._close_gap = not self._lines or not self._lines[-1].strip()
        elif not (blank and self._close_gap):
            self._lines.append((line.rstrip(" \t") if self._touched else line) + end)
            self._close_gap = False
        self._open, self._alone = [], []
        self._says = self._is_row = self._touched = self._just_left_out = self._titled = False


def _unspaced(text: str) -> str:
    return "".join(text.split())


def _mark(name: str) -> str:
    """Return what Markdown writes before a block's text."""
    if name == "li":
        return "- "
    return "#" * int(name[1]) + " " if name[0] == "h" and name[1:].isdigit() else ""
