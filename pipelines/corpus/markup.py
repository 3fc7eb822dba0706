"""Take markup off a text, be it Markdown, MyST, reStructuredText, AsciiDoc or Org, as the readers give it.

In doubt a text is kept, as a fact that is not asked is worse than a mark that stays.
"""

from __future__ import annotations

import re
from html import unescape

SLOT = "\ufffc"  # stands where a template puts something in
_INDENTED = r"(?:[ \t]*\n|[ \t]+\S.*(?:\n|\Z))*"
_NO_PROSE_IN = (
    "code|code-block|sourcecode|parsed-literal|doctest|testcode|math|toctree|image|figure|raw|include|literalinclude"
    "|auto\\w+"
)
_NO_PROSE = (
    re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1|\Z)", re.M | re.S),
    re.compile(r"^\[[^\]\n]*\]\n(-{4,}|\.{4,})\n.*?^\1$", re.M | re.S),  # AsciiDoc's listings
    re.compile(r"^[ \t]*#\+begin_(\w+).*?(?:^[ \t]*#\+end_\1|\Z)", re.M | re.S | re.I),  # Org's blocks
    re.compile(rf"^[ \t]*\.\. (?:{_NO_PROSE_IN})::.*(?:\n|\Z){_INDENTED}", re.M),
    re.compile(rf"(?<=::)[ \t]*\n[ \t]*\n(?=[ \t]+\S){_INDENTED}"),  # reStructuredText's literal blocks
    re.compile(r"^[^|\n]*[^.!?|\s][ \t]*\n(?=([=~^*+-])\1{2,}[ \t]*$)", re.M),  # underlined headings
)
_LITERAL_FOLLOWS = re.compile(r"(?:^|[ \t]+)::[ \t]*$|(?<=[^\s:]):(?=:[ \t]*$)", re.M)
# What stands behind a directive or a footnote's mark is prose.
_DIRECTIVE = re.compile(r"^([ \t]*)\.\. (?:[\w:-]+::[ \t]*|\[[^\]\n]+\][ \t]+)", re.M)
_DEFINED = re.compile(r"^ {0,3}\[([^\[\]^\n]+)\]:[ \t]+(?:<[^>\n]*>|\S+)(?:[ \t]+[\"'(].*)?[ \t]*$", re.M)
_BY_LABEL = re.compile(r"(?<!\])\[([^\[\]^]{1,200})\](?:\[\])?(?![\[(:])")
_FOOTNOTE = re.compile(r"\[\^[^\[\]\s]+\]:?")
_BARE_TABLE = re.compile(
    r"^(?![ \t]*\|)[^\n]*\|[^\n]*\n(?=[ \t]*:?-)[ \t:|-]*\|[ \t:|-]*\n(?:[^\n]*\|[^\n]*(?:\n|\Z))*", re.M
)
_DEFINITION = re.compile(r"^([^\s:|#].*[^\s.:])\n\n?:[ \t]+(?=\S)", re.M)
_TEMPLATE_TAG = re.compile(r"<%(?:(?!<%).)*?%>|\{%(?:(?!\{%).)*?%\}|\{\{(?:(?!\{\{).)*?\}\}", re.S)
_NO_PROSE_LINE = re.compile(
    r"""\s*(?:
      \#{1,6}\s | ={1,6}\s                    # headings
    | :?-{3,} | ([=~^*+])\1{2,}\s*$           # rules and underlines
    | <(?!https?://|[^<>]*>`) | !\[           # tags, images; a link's target behind a line break is neither
    | :{3,} | [!?]{3} | \#\+\w | \.\.(?:\s|$) # directives
    | >>>\s | \$\s                            # what is typed into a prompt
    )""",
    re.X,
)
_LINKS = (  # and roles, by their texts
    re.compile(r"(?:\{[\w:.+-]+\}|(?<!\w):[a-zA-Z][\w:.+-]{0,40}:)`[~!]?([^`]+?)(?:\s?<[^`<>]*>)?`"),
    re.compile(r"(?<![`\w])`([^`<]+?)(?:\s?<[^`<>]+>)?`__?(?!\w)"),
    re.compile(r"\[\[[^\[\]]+\]\[([^\[\]]+)\]\]"),
    re.compile(r"\b(?:link:|xref:|https?://)[^\s\[\]]{1,2000}\[([^\[\]]+)\]"),
    re.compile(r"!?\[([^\[\]]*)\](?:\([^()\s]*(?:\s+\"[^\"]*\")?\)|\[[^\[\]]*\])"),
)
_STYLING = "a|abbr|b|big|cite|code|del|em|i|ins|kbd|mark|q|s|small|span|strong|sub|sup|u|var"
_TAG = re.compile(rf"(?<!`)</?(?:{_STYLING})(?:\s[^<>]*)?>(?!`)", re.I)
_EMPHASIS = re.compile(r"(?<!\w)(\*{1,3}|_{1,3}|`+)(?=\S)(.{1,1000}?)(?<=\S)\1(?!\w)")


def without_blocks(text: str) -> str:
    """Leave out blocks that are no prose, as code and underlined headings; a table gets its outer bars, a
    definition what it defines."""
    for pattern in _NO_PROSE:
        text = pattern.sub("\n", text)
    text = _DIRECTIVE.sub(r"\1", _LITERAL_FOLLOWS.sub("", _without_labels(text)))
    text = _TEMPLATE_TAG.sub(SLOT, text)
    text = _BARE_TABLE.sub(lambda table: re.sub("^", "|", table[0].rstrip(), flags=re.M) + "\n", text)
    return _DEFINITION.sub(r"\1: ", text)


def _without_labels(text: str) -> str:
    """Leave out the targets of links, footnotes' marks, and the brackets around links that have a target."""
    labels = {_label(found[1]) for found in _DEFINED.finditer(text)}
    text = _FOOTNOTE.sub("", text)
    if not labels:
        return text
    without = _DEFINED.sub("", text)
    return _BY_LABEL.sub(lambda link: link[1] if _label(link[1]) in labels else link[0], without)


def _label(text: str) -> str:
    return " ".join(text.split()).casefold()


def is_prose(line: str) -> bool:
    """Return whether a line is no heading, rule, tag, image, directive or typed command."""
    return not _NO_PROSE_LINE.match(line)


def plain(line: str) -> str:
    """Return what a line says: links and roles by their texts, without emphasis and tags."""
    for pattern in _LINKS:
        line = pattern.sub(r"\1", line)
    return unescape(_EMPHASIS.sub(r"\2", _TAG.sub("", line))).replace("\xa0", " ")
