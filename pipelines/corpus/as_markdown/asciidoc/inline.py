"""Write what AsciiDoc marks within a line as Markdown does: references by their texts, emphasis, code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import unescape

from pipelines.corpus.as_markdown.asciidoc.conditions import Attributes
from pipelines.corpus.as_markdown.asciidoc.lines import ENTRY
from pipelines.corpus.as_markdown.parts import Held, code_in_line
from pipelines.corpus.markup.parts import LEFT_OUT

_ESCAPED = re.compile(
    r"\\(\{(?=[\w-]+\})|(?:https?|ftp|mailto|link|xref|image|kbd|footnote)(?=:)|<<|\(\(|\[\["
    r"|(?<!\w\\)[*_`#](?=[^\s*_`#][^\n*_`#]{0,300}[*_`#])|[~^](?=[^\s~^]{1,100}[~^]))"
)
_TYPED = re.compile(
    r"\+\+\+(.{1,2000}?)\+\+\+|\$\$(.{1,2000}?)\$\$|\bpass:[a-z,]{0,20}\[([^\]]{0,2000})\]", re.S
)
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,1000}>")
_FORMULA = re.compile(r"\b(?:stem|latexmath|asciimath):[a-z,]{0,20}\[((?:[^\]\\]|\\.){1,600})\]")
_IN_QUOTES = (
    (re.compile(r"(?<![`\w])``(?=[^\s`])((?:[^`'\n]|'(?!')|\n(?!\n)){1,400})(?<=\S)''"), r"“\1”"),
    (re.compile(r"\"`(?=\S)([^\"]{1,1000}?)(?<=\S)`\""), r"“\1”"),
    (re.compile(r"'`(?=\S)([^']{1,1000}?)(?<=\S)`'"), r"‘\1’"),
)
_ROLE_OF_CODE = re.compile(r"\[\.[\w.-]{1,80}\](?=`)")
_CODE = re.compile(
    r"(?<!`)``(?=\S)([^`].{0,400}?)(?<=\S)``(?!`)|(?<![\w`])`(?=\S)([^`]{1,1000}?)(?<=\S)`(?![\w`])", re.S
)
_LITERAL = re.compile(r"(?<![\w+`])(\+{1,2})(?=[^\s+])([^\n]{1,300}?)(?<=[^\s+])\1(?![\w+`])")
_TEXT = r"\[((?:[^\[\]\\]|\\.|\[[^\[\]\n]{0,200}\]){0,600})\]"
_PRINTS_NOTHING = re.compile(
    rf"\b(?:(?:image|icon|anchor|audio|video):(?!:)[^\s\[\]]{{1,300}}|indexterm:){_TEXT}"
    r"|\(\(\((?!\()[^()]{1,1000}\)\)\)|\[\[[A-Za-z_:][\w.:-]{0,200}(?:,[^\[\]]{0,400})?\]\]"
)
_INDEXED = re.compile(rf"\(\((?!\()([^()\n]{{1,400}})\)\)(?!\))|\bindexterm2:{_TEXT}")
_FOOTNOTE = re.compile(rf"[ \t]?footnote(ref)?:([\w-]{{0,100}}){_TEXT}")
_KEYS = re.compile(rf"\b(?:kbd|btn):{_TEXT}")
_MENU = re.compile(rf"\bmenu:([^\s\[\]](?:[^\[\]\n]{{0,200}}?[^\s\[\]])?){_TEXT}")
_CROSS = re.compile(r"<<(?=[\w#./{])([^<>,\n]{1,300})(?:,([^<>]{0,1000}))?>>")
_ADDRESSES = ("http", "https", "ftp", "irc", "file")
_MANUALS = ("linkgit", "gitlink", "man", "manpage")
_OTHERS = ("javadoc", "issue", "jira", "commit", "gh", "cve", "jep", "pr", "pull")  # of well-known extensions
_MACRO = re.compile(
    rf"(?<![\w:/])(xref(?=:)|(?:link|mailto|{'|'.join((*_ADDRESSES, *_MANUALS, *_OTHERS))})(?=:[^:]))"
    rf":(?=[^\s\[\]])([^\s\[\]`]{{1,300}}){_TEXT}"
)
# An address that another file sets
_UNKNOWN = re.compile(rf"(?<![\w\\$}}])\{{[\w-]{{2,80}}\}}[^\s\[\]{{}}`]{{0,300}}{_TEXT}")
_ROLE = r"(?:\[[\w.#%,='\" -]{1,200}\])?"
_WRITTEN = {"*": "**", "_": "*", "#": ""}
_SPANS = {  # of a mark: two of it wherever they stand, one around words
    mark: (
        re.compile(rf"{_ROLE}[{mark}]{{2}}(?=\S)([^{mark}]{{1,500}}?)(?<=\S)[{mark}]{{2}}"),
        re.compile(
            rf"(?<![\w;:}}\\&{mark}]){_ROLE}(?<![\w{mark}])[{mark}](?=[^\s{mark}])"
            rf"((?:[^\n]|\n(?!\n)){{0,500}}?(?<=\S))[{mark}](?![\w{mark}])"
        ),
    )
    for mark in _WRITTEN
}
_RAISED = ((re.compile(r"\^(?=\S)([^\s^]{1,200})\^"), "sup"), (re.compile(r"~(?=\S)([^\s~]{1,200})~"), "sub"))
_SIGNS = ((" -- ", " — "), ("(C)", "©"), ("(R)", "®"), ("(TM)", "™"))
_BROKEN = re.compile(r"(?<![ \t])[ \t]+\+[ \t]*$", re.M)
_OPTIONS = re.compile(
    r"(?:\^?\s*,|^)\s*(?:window|role|opts|options|id|title|rel|xrefstyle|subs|format)\s*=.*$|\^\s*$", re.S
)
_WHOLLY_QUOTED = re.compile(r"\"([^\"]*)\"\s*(?:,|$)")
_NUMBER = re.compile(r"\d\w{0,2}$")


class Inline:
    """What a page's lines may refer to, and its footnotes."""

    def __init__(self, attributes: Attributes, titles: Mapping[str, str]) -> None:
        self.attributes = attributes
        self.titles = titles
        self.footnotes: list[str] = []
        self._noted: dict[str, int] = {}  # footnotes by their names
        self._held = Held()

    def written(self, text: str) -> str:
        """Return what a paragraph says, in Markdown."""
        if not any(mark in text for mark in "`*_#^~+{[<:-(&"):
            return text
        noted = len(self.footnotes)
        text = self._marked(_BROKEN.sub("", text))
        self.footnotes[noted:] = [self._held.restored(note) for note in self.footnotes[noted:]]
        text = self._held.restored(text)
        self._held.clear()
        return text

    def _marked(self, text: str) -> str:
        """Return a text in Markdown, with marks for what is written already."""
        if "+++" in text or "$$" in text or "pass:" in text:
            text = _TYPED.sub(self._typed, text)
        text = _FORMULA.sub(lambda found: self._held.hold(f"${found[1].strip()}$"), text)
        text = _ESCAPED.sub(lambda found: self._held.hold(found[1]), text)
        for pattern, marks in _IN_QUOTES:
            text = pattern.sub(marks, text)
        text = _CODE.sub(self._code, _ROLE_OF_CODE.sub("", text))
        text = _LITERAL.sub(lambda found: self._held.hold(found[2]), text) if "+" in text else text
        return _emphasised(self._references(self.attributes.replaced(text)))

    def _typed(self, found: re.Match[str]) -> str:
        """Hold what is printed as it was typed, without tags."""
        return self._held.hold(_TAG.sub("", found[1] or found[2] or found[3] or ""))

    def _code(self, found: re.Match[str]) -> str:
        """Hold code; what it holds in plus signs is as it was typed, other text may refer to something."""
        said = " ".join((found[1] or found[2]).split())
        if len(said) > 2 and said[0] == said[-1] == "+":
            said = said.strip("+")
        else:
            said = self._references(self.attributes.replaced(said))
        return self._held.hold(code_in_line(said))

    def _references(self, text: str) -> str:
        """Put what a reference says for it."""
        if "[" in text or "((" in text:
            text = ENTRY.sub(lambda found: f"[{(found[2] or found[1]).strip()}]", text)
            text = _PRINTS_NOTHING.sub("", text)
            text = _INDEXED.sub(lambda found: found[1] or found[2] or "", text)
            text = _KEYS.sub(lambda found: found[1].strip(), text)
            text = _MENU.sub(_menu, text)
            text = _MACRO.sub(self._macro, text)
            text = _UNKNOWN.sub(lambda found: _shown(found[1]) or found[0], text)
            text = _FOOTNOTE.sub(self._footnote, text)
        return _CROSS.sub(self._cross, text) if "<<" in text else text

    def _macro(self, found: re.Match[str]) -> str:
        """Return what a reference shows: its text, or what is known of its target."""
        name, target, text = found.groups()
        said = _shown(text)
        if name == "xref":
            return said or self._title(target)
        if name in _MANUALS and _NUMBER.match(said):
            return f"{target}({said})"
        return said or (f"{name}:{target}" if name in _ADDRESSES else target)

    def _cross(self, found: re.Match[str]) -> str:
        return " ".join((found[2] or "").split()) or self._title(found[1])

    def _title(self, target: str) -> str:
        """Return the title of a part of this page; that of another one is not known.

        A file may be this one, but then only a name that was given says so."""
        file, mark, name = target.strip().partition("#")
        name = name if mark else file
        title = self.titles.get(name) or (None if file and mark else self.titles.get(f"#{name}"))
        if title is None or not self.attributes.affords(len(title)):
            return LEFT_OUT
        title = _CODE.sub(lambda code: self._held.hold(code[0]), self.attributes.replaced(title))
        return self._held.hold(_emphasised(title))

    def _footnote(self, found: re.Match[str]) -> str:
        """Note what a footnote says, and refer to it; one that has a name may be called again."""
        by_name, name, text = found.groups()
        said = " ".join(text.replace("\\]", "]").split())
        if by_name:
            name, _, said = (part.strip() for part in said.partition(","))
        if said:
            self.footnotes.append(_emphasised(said))
        number = self._noted.setdefault(name, len(self.footnotes)) if name else len(self.footnotes)
        return self._held.hold(f"[^{number}]") if said or name in self._noted else ""


def _emphasised(text: str) -> str:
    """Return a text with its emphasis and signs as Markdown has them."""
    for mark, written in _WRITTEN.items():
        for span in _SPANS[mark] if mark in text else ():
            text = span.sub(rf"{written}\1{written}", text)
    for raised, tag in _RAISED:
        text = raised.sub(rf"<{tag}>\1</{tag}>", text)
    for typed, printed in _SIGNS:
        text = text.replace(typed, printed)
    return unescape(text)


def _menu(found: re.Match[str]) -> str:
    return " > ".join(part.strip() for part in (found[1], *found[2].split(">")) if part.strip())


def _shown(text: str) -> str:
    """Return the text of a reference without its options."""
    text = text.replace("\\]", "]").strip()
    quoted = _WHOLLY_QUOTED.match(text)
    return quoted[1].strip() if quoted else _OPTIONS.sub("", text).strip()
