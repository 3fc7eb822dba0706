"""Read a manual page in man(7) macros as Markdown: headings, options as definitions, examples in fences.

A page in mdoc, or a file that merely has a section's number as its suffix, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from unicodedata import normalize

from pipelines.corpus.as_markdown.parts import fenced
from pipelines.corpus.reading.formats import Unreadable
from pipelines.corpus.reading.plain import FileFacts, Source, characters

_REQUEST = re.compile(r"[.'][ \t]*([A-Za-z]+1?)[ \t]*(.*)")
_COMMENT = re.compile(r"[.'][ \t]*(?:\\\".*)?$")
_TITLE = re.compile(r"\.TH\s")
_MDOC = re.compile(r"\.Dd\s|\.Dt\s")
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|(\S+)')
_ESCAPE = re.compile(
    r"""\\(?:
      ".*$                                            # a comment
    | [fFmMnkgY](?:\[[^\]]*\]|\(..|.) | s[-+]?\d{1,2}  # fonts, colours, registers, sizes
    | [hvwLlDoNbZ]'[^']*'                             # movements and drawings
    | \*(?:\[(?P<long>[^\]]*)\]|\((?P<two>..)|.)      # strings
    | \[(?P<name>[^\]]*)\] | \((?P<glyph>..)          # characters by their names
    | (?P<one>.) | $
    )""",
    re.X,
)
_GLYPHS = {
    "aq": "'", "dq": '"', "lq": "“", "rq": "”", "oq": "‘", "cq": "’", "em": "—", "en": "–", "hy": "-",
    "bu": "•", "co": "©", "rg": "®", "tm": "™", "mi": "-", "mu": "×", "ti": "~", "ha": "^", "rs": "\\",
    "ga": "`", "at": "@", "sh": "#", "Do": "$", "ba": "|", "lB": "[", "rB": "]", "lC": "{", "rC": "}",
    "->": "→", "<-": "←", "<=": "≤", ">=": "≥", "!=": "≠", "de": "°", "pl": "+", "eq": "=", "fm": "'",
    'L"': '"', 'R"': '"', "Tm": "™", "R": "®", "--": "-", "ss": "ß", "AE": "Æ", "ae": "æ", "OE": "Œ",
    "oe": "œ", "/O": "Ø", "/o": "ø", "/L": "Ł", "/l": "ł", ".i": "ı", "-D": "Ð", "Sd": "ð", "TP": "Þ",
    "Tp": "þ", "oA": "Å", "oa": "å", "Bq": "„", "bq": "‚", "Fo": "«", "Fc": "»", "fo": "‹", "fc": "›",
    "r!": "¡", "r?": "¿", "Eu": "€", "eu": "€", "Po": "£", "Ye": "¥", "ct": "¢", "sc": "§", "ps": "¶",
    "+-": "±", "12": "½", "14": "¼", "34": "¾", "mc": "µ", "S1": "¹", "S2": "²", "S3": "³",
}  # fmt: skip
_GREEK = dict(zip("abgdezyhiklmncoprstufxqw", "αβγδεζηθικλμνξοπρστυφχψω", strict=True))  # \(*a
# Of a letter's name: \(:u is ü
_ACCENTS = dict(zip(":'`^~,v", "\u0308\u0301\u0300\u0302\u0303\u0327\u030c", strict=True))
_SINGLE = {"e": "\\", "~": " ", "0": " ", "t": "\t"} | dict.fromkeys("&|^%/,:)c{}", "")
_PARAGRAPH = frozenset(("PP", "P", "LP", "HP", "sp"))
_BULLETS = frozenset("•*-o·+")
_ALTERNATING = frozenset(("BR", "RB", "BI", "IB", "IR", "RI"))


def read_manual(source: Source, facts: FileFacts) -> Iterator[str]:
    """Yield a manual page."""
    text = "".join(characters(source, facts))
    lines = text.replace("\\\n", "").split("\n")
    first = next((line for line in lines if _TITLE.match(line) or _MDOC.match(line)), "")
    if not _begins_as_roff(lines) or not first:
        raise Unreadable("no manual page, though its suffix is a section's number")
    if _MDOC.match(first):
        raise Unreadable("a manual page in mdoc, which is not read")
    page = _Page()
    for line in _shown(iter(lines)):
        page.add(line)
    yield page.text()


def _begins_as_roff(lines: list[str]) -> bool:
    return next((line for line in lines if line.strip()), "").startswith((".", "'"))


def _shown(lines: Iterator[str]) -> Iterator[str]:
    """Yield the lines that a terminal shows: no definitions of macros, of each condition the part for it."""
    chosen = True  # by the last .ie
    in_table = False
    for line in lines:
        request, rest = _request(line)
        in_table = request == "TS" or (in_table and request != "TE")
        if in_table and not request:
            yield ".br"  # a row is a line
        if request in ("de", "de1", "am", "am1"):
            _skip(lines, f".{[*rest.split(), '.', '.'][1]}")
        elif request in ("ig", "TS"):  # TS: a table's layout comes first
            _skip(lines, ".." if request == "ig" else ".")
        elif request not in ("if", "ie", "el"):
            yield line
        else:
            condition, _, then = rest.partition(" ") if request != "el" else ("", "", rest)
            holds = condition == "n" if request != "el" else not chosen
            chosen = holds if request == "ie" else chosen
            yield from _branch(then.strip(), lines, holds)


def _branch(then: str, lines: Iterator[str], holds: bool) -> Iterator[str]:
    """Yield what stands behind a condition, a line or a block in braces, if it holds."""
    block = [then.replace(r"\{", "", 1)]
    depth = then.count(r"\{") - then.count(r"\}")
    while depth > 0 and (line := next(lines, None)) is not None:
        depth += line.count(r"\{") - line.count(r"\}")
        block.append(line.replace(r"\}", "") if depth <= 0 else line)
    if holds:
        yield from _shown(iter([line for line in block if line.strip(" .'\\")]))


def _skip(lines: Iterator[str], end: str) -> None:
    """Leave out lines up to one that ends so."""
    for line in lines:
        if line.rstrip().endswith(end):
            return


def _request(line: str) -> tuple[str, str]:
    found = _REQUEST.match(line)
    return (found[1], found[2]) if found else ("", "")


def _arguments(rest: str) -> list[str]:
    found = _ARGUMENT.finditer(re.sub(r'(?<!\\)\\".*', "", rest))
    return [_said((part[1] or "").replace('""', '"') if part[2] is None else part[2]) for part in found]


def _said(text: str) -> str:
    """Return a text with its escapes as what they show."""
    return _ESCAPE.sub(_escaped, text)


def _escaped(escape: re.Match[str]) -> str:
    if (one := escape["one"]) is not None:
        return _SINGLE.get(one, one)
    name = escape["long"] or escape["two"] or escape["name"] or escape["glyph"] or ""
    if re.fullmatch(r"u[0-9A-F]{4,5}(?:_[0-9A-F]{4,5})*", name):
        return "".join(chr(int(code, 16)) for code in name[1:].split("_"))
    if len(name) == 2 and name not in _GLYPHS and name[1].isalpha():
        accented = normalize("NFC", name[1] + _ACCENTS[name[0]]) if name[0] in _ACCENTS else ""
        return _GREEK.get(name[1], "") if name[0] == "*" else accented
    return _GLYPHS.get(name, "")


@dataclass
class _Page:
    """A manual page that is being read, as lines of Markdown."""

    lines: list[str] = field(default_factory=list)
    open: str = ""  # a line that is being filled
    awaited: str = ""  # what the next line of text is: a heading ("## ") or what a definition defines ("tag")
    example: int | None = None  # where one begins that is being read as it stands

    def text(self) -> str:
        self._close()
        self._end_example()
        return re.sub(r"\n{3,}", "\n\n", "\n".join(self.lines)).strip() + "\n"

    def add(self, line: str) -> None:
        name, rest = _request(line)
        if name:
            self._macro(name, rest)
        elif self.example is not None:
            self.lines.append(_said(line))
        elif not _COMMENT.match(line):
            self._text(_said(line))

    def _text(self, said: str) -> None:
        if said[:1].isspace() or not said:
            self._close()
        if said[:1] == "\t" and self.lines and self.lines[-1]:  # as go-md2man writes definitions
            self.open = ":"
        if not said.strip():
            self.lines.append("")
        elif self.awaited:
            self.lines.append(f"{self.awaited.removesuffix('tag')}{said.strip()}")
            self.open = ":" if self.awaited == "tag" else ""
            self.awaited = ""
        else:
            self.open = f"{self.open} {said.strip()}".lstrip()

    def _close(self) -> None:
        """End the line that is being filled; one of nothing but a definition's mark goes on."""
        if self.open.strip(":"):
            self.lines.append(self.open)
            self.open = ""

    def _macro(self, name: str, rest: str) -> None:
        said = _arguments(rest)
        if name in ("B", "I", "SB", "SM"):
            self._styled(" ".join(said))
        elif name in _ALTERNATING:
            self._styled("".join(said))
        elif name in ("UR", "MT"):
            self._styled(f"<{''.join(said[:1])}>")
        elif name in ("TH", "SH", "SS"):
            self._heading(name, said)
        elif name in ("nf", "fi", "EX", "EE"):
            self._begin_example() if name in ("nf", "EX") else self._end_example()
        elif name in _PARAGRAPH or name in ("TP", "TQ", "IP", "br"):
            self._new_line(name, said)

    def _styled(self, said: str) -> None:
        if self.example is not None:
            self.lines.append(said)
        elif said:
            self._text(said)

    def _heading(self, name: str, said: list[str]) -> None:
        self._end_example()
        self._new_line("PP", [])
        if name == "TH":
            self.lines += [f"# {said[0]}" + (f"({said[1]})" if len(said) > 1 else ""), ""] if said else []
        elif said:
            self.lines += [f"{'##' if name == 'SH' else '###'} {' '.join(said)}", ""]
        else:
            self.awaited = "## " if name == "SH" else "### "

    def _begin_example(self) -> None:
        if self.example is None:
            self._new_line("PP", [])
            self.example = len(self.lines)

    def _end_example(self) -> None:
        if self.example is not None:
            self._new_line("br", [])
            self.lines[self.example :] = [fenced("\n".join(self.lines[self.example :]))]
            self.example = None

    def _new_line(self, name: str, said: list[str]) -> None:
        self._close()
        if name == "br":
            return
        self.open = ""
        self.lines += [] if name == "TQ" else [""]
        if name in ("TP", "TQ"):
            self.awaited = "tag"
        elif name == "IP" and said and said[0]:
            self._mark(said[0])

    def _mark(self, mark: str) -> None:
        """Begin a list's item behind its mark, or a definition."""
        if mark in _BULLETS or re.fullmatch(r"\d+[.)]?", mark):
            self.open = "-" if mark in _BULLETS else mark
        else:
            self.lines.append(mark)
            self.open = ":"
