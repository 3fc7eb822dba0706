"""Take markup off a text, be it Markdown, MyST, MDX, reStructuredText, AsciiDoc or Org.

In doubt a text is kept, as a fact that is not asked is worse than a mark that stays.
"""

from __future__ import annotations

import re

_INDENTED = r"(?:[ \t]*\n|[ \t]+\S.*(?:\n|\Z))*"
_NO_PROSE_IN = "code|code-block|sourcecode|parsed-literal|doctest|testcode|math|toctree|image|figure|raw"
_NO_PROSE = (
    re.compile(r"\A---[ \t]*\n(?:[ \t]*(?:[\w.-]+:.*|- .*|#.*)?\n)+?---[ \t]*\n"),  # front matter
    re.compile(r"<!--(?:(?!<!--).)*?-->", re.S),
    re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1|\Z)", re.M | re.S),
    re.compile(r"^\[[^\]\n]*\]\n(-{4,}|\.{4,})\n.*?^\1$", re.M | re.S),  # AsciiDoc's listings
    re.compile(r"^[ \t]*#\+begin_(\w+).*?(?:^[ \t]*#\+end_\1|\Z)", re.M | re.S | re.I),  # Org's blocks
    re.compile(rf"^[ \t]*\.\. (?:{_NO_PROSE_IN})::.*(?:\n|\Z){_INDENTED}", re.M),
    re.compile(rf"(?<=::)[ \t]*\n[ \t]*\n(?=[ \t]+\S){_INDENTED}"),  # reStructuredText's literal blocks
    re.compile(r"^[^|\n]*[^.!?|\s][ \t]*\n(?=([=~^*+-])\1{2,}[ \t]*$)", re.M),  # underlined headings
)
_DIRECTIVE = re.compile(r"^([ \t]*)\.\. [\w:-]+::[ \t]*", re.M)  # what stands behind and below it is prose
_NO_PROSE_LINE = re.compile(
    r"""\s*(?:
      \#{1,6}\s | ={1,6}\s                    # headings
    | :?-{3,} | ([=~^*+])\1{2,}\s*$           # rules and underlines
    | < | !\[                                 # tags, images
    | :{3,} | [!?]{3} | \#\+\w | \.\.(?:\s|$) # directives
    | \([\w.-]+\)=\s*$                        # MyST's labels
    | (?:import|export)\s.*[;"']$             # MDX
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
    """Leave out blocks that are no prose: code, comments, front matter, underlined headings."""
    for pattern in _NO_PROSE:
        text = pattern.sub("\n", text)
    return _DIRECTIVE.sub(r"\1", text)


def is_prose(line: str) -> bool:
    """Return whether a line is no heading, rule, tag, image, directive or typed command."""
    return not _NO_PROSE_LINE.match(line)


def plain(line: str) -> str:
    """Return what a line says: links and roles by their texts, without emphasis and tags."""
    for pattern in _LINKS:
        line = pattern.sub(r"\1", line)
    return _EMPHASIS.sub(r"\2", _TAG.sub("", line))
