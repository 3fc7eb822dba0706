"""What AsciiDoc marks: listings, remarks, titles and attributes, and the macros that refer to something."""

from __future__ import annotations

import re
from functools import partial

from pipelines.corpus.markup.parts import SLOT

_LITERAL = "listing|literal|source|synopsis|verse"  # styles of paragraphs
_IS_ASCIIDOC = re.compile(
    rf"^(?:={{1,5}}[ \t]+[^\s=]|\[\[[\w.-]+\]\]$|\+$|\[(?:{_LITERAL}|NOTE|TIP)\b.*\]$|[a-z]+::\S*\[.*\]$)",
    re.M,
)
# A listing or remark, and what it may begin behind, so that a rule of another language begins none
_BLOCK = (
    r"(?:\A|(?<=\n\n)|(?<=\n)(?=[\[+.]))(?:(?:\[[^\n]*\]|\+|\.\S[^\n]*)\n){{0,4}}"
    r"(-{{4,}}|\.{{4,}}|/{{4,}})[ \t]*\n{}\1[ \t]*$"
)
_LISTING = re.compile(_BLOCK.format("(?=[^\n]*\\S)(?:.*\\n){0,400}?"), re.M)
_ATTRIBUTE = re.compile(r"^:!?[\w-]+!?:(?:[ \t].*)?$", re.M)
_TERM = re.compile(r"^([^\s|#.].{0,200}[^\s.:])::[ \t]*\n[ \t]*(?=[^\s+\[.*-])", re.M)
_ANCHOR = re.compile(r"^\[\[[^\[\]\n]+\]\][ \t]*$|\[\[[\w.:-]+(?:,[^\[\]\n]*)?\]\](?=[\w`])", re.M)
NO_PROSE = (
    re.compile(r"^\[[^\]\n]*\]\n(-{4,}|\.{4,})\n(?:.*\n){0,400}?\1$", re.M),
    re.compile(_BLOCK.format(r"(?=[^\n]*\S)(?:.*\n){1,400}?(?<!\n\n)"), re.M),
    re.compile(rf"^\[(?:{_LITERAL})\b[^\]\n]*\]\n(?:.*\S.*(?:\n|\Z))+", re.M),
    re.compile(r"^\.(?=[\w\"`])[^\n]*\n(?=\[|\|===|([-=.*_])\1{3}|```|[a-z]+::|[*.-]+ )", re.M),  # titles
)
_WORDS = r"\[([^\[\]]{1,400}?)\^?"  # a macro's text, up to what opens a window
_REFERENCES = (  # of AsciiDoc and, in double brackets, of Org and of notes, and what stands for them
    (re.compile(r"<<[^<>,\n]{1,200},\s*([^<>]{1,400})>>"), r"\1"),
    (re.compile(r"(?<![\w<])<<(?=[\w#])[\w#./: -]{1,200}>>(?!>)"), SLOT),  # another text's title
    (re.compile(r"(?<![^\s(])[a-z][a-z-]{2,30}:[^\s\[\]]{1,2000}\[\]"), SLOT),
    (re.compile(r"\[\[[^\[\]]{1,2000}\]\[([^\[\]]{1,400})\]\]"), r"\1"),
    (re.compile(r"(?<!\S)!\[\[[^\[\]\n]{1,400}\]\]"), ""),  # what is shown in place
    (re.compile(r"\[\[[*#]?(?=[^\W\d_])([^\[\]|]{1,400})\]\]"), r"\1"),
    (re.compile(r"(?<![!`\w])\[\[(?=\S)[^\[\]|\n]{1,400}\|(?=[^\s|])([^\[\]|\n]{1,400})\]\]"), r"\1"),
    (re.compile(r"\b(?:link|man)[a-z]*:([\w.-]{1,200})\[(\d\w{0,2})\]"), r"\1(\2)"),
    (re.compile(rf"\b(?:link:|xref:|https?://)[^\s\[\]]{{1,2000}}{_WORDS}(?:,[a-z]+=[^\[\]]*)?\]"), r"\1"),
    (re.compile(rf"(?<![\w\\$}}])\{{[\w-]{{2,80}}\}}[^\s\[\]{{}}`]{{0,2000}}{_WORDS}\]"), r"\1"),
    (re.compile(r"\b(?:kbd|btn):\[([^\[\]]{1,80})\]"), r"\1"),
    (re.compile(r"\b(?:footnote|image|indexterm2?):[\w./{}-]{0,200}\[[^\[\]]{0,2000}\]"), ""),
    (re.compile(r"\[fn:[\w-]*(?::[^\[\]]*)?\]"), ""),
    (re.compile(r"(?<!\w)\[\.[\w.-]{1,80}\](?=[\w`*_#/.+])"), ""),  # roles
    (re.compile(r"(?<![`\w])``((?:[^`'\n]|'(?!')){1,200})''"), r'"\1"'),
)


def without_listings(text: str) -> str:
    """Leave out listings, remarks and attributes of a text in AsciiDoc; join a term with its definition."""
    if _IS_ASCIIDOC.search(text):
        text = _ATTRIBUTE.sub("", _LISTING.sub("\n", text))
    return _TERM.sub(r"\1: ", text)


def without_anchors(text: str) -> str:
    return _ANCHOR.sub("", text)


def without_references(text: str) -> str:
    """Put what a reference says for it, on one line."""
    for pattern, instead in _REFERENCES:
        text = pattern.sub(partial(_on_one_line, instead), text)
    return text


def _on_one_line(instead: str, found: re.Match[str]) -> str:
    return " ".join(found.expand(instead).split())
