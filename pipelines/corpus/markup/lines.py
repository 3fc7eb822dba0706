"""Tell a line of prose from a heading or code, and take links, emphasis and tags off it."""

from __future__ import annotations

import re
from html import unescape

from pipelines.corpus.markup.parts import CODE_SPAN, FORMULA, LINK_TEXT, TARGET
from pipelines.corpus.markup.pictures import is_picture, without_pictures
from pipelines.corpus.markup.raised import raised

LONGEST = 1000  # characters of a sentence that may be code
# A <name> at the beginning of a sentence
_TO_FILL_IN = r"(?!(?:br|dd|div|dt|h\d|hr|li|p|td|th|tr)\b)\w[\w .:|-]*>(?=[^<]*[A-Za-z])[^<]*$"
_NO_PROSE_LINE = re.compile(
    rf"""\s*(?:
      \#{{1,6}}\s | ={{1,6}}\s                    # headings
    | :?-{{3,}} | ([=~^*+`"])\1{{2,}}\s*$           # rules and underlines
    | <(?!<|https?://|[^<>]*>`|{_TO_FILL_IN})  # tags; no link's target behind a line break
    | !\[(?!{LINK_TEXT}\]{TARGET})              # pictures that are not closed
    | :{{3,}} | [!?]{{3}} | \#\+\w | \.\.(?:\s|$) # directives
    | >>>\s | \$\s                            # what is typed into a prompt
    | //(?:\s|$) | \+\s*$ | [a-z][\w-]*::\S*\[[^\[\]\n]*\]\s*$  # AsciiDoc's remarks and block macros
    | (?:File:.*)?(?:Next|Prev\w*|Up):\s.{{1,200}}\b(?:Prev\w*|Up):\s  # Texinfo's way on
    )""",
    re.X,
)
# Code is found first where it begins first: `{name}` begins no role, and `[text](url)` is no link.
_ROLE = re.compile(
    rf"{CODE_SPAN}|(?:\{{[\w:.+-]+\}}|(?<!\w):[a-zA-Z][\w:.+-]{{0,40}}:)"
    r"`[~!]?(?P<said>[^`]+?)(?:\s?<[^`<>]*>)?`"
)
_OF_RESTRUCTURED = re.compile(r"(?<![`\w])`(?P<said>[^`<]+?)(?:\s?<[^`<>]+>)?`__?(?!\w)")
_OF_MARKDOWN = re.compile(rf"{CODE_SPAN}|!?\[(?P<said>{LINK_TEXT})\]{TARGET}")
_LINKS = (_ROLE, _OF_RESTRUCTURED, _OF_MARKDOWN, _OF_MARKDOWN)  # a picture may be a link's text
_STYLING = "a|abbr|b|big|cite|code|em|i|ins|kbd|mark|q|small|span|strong|u|var"
_TAG = re.compile(rf"(?<!`)</?(?:{_STYLING})(?:\s[^<>]*)?>(?!`)", re.I)
# Tags that change what is said
_CHANGING_TAG = re.compile(r"(?<!`)</?(?:del|s|strike|sub|sup)(?:\s[^<>]*)?>(?!`)", re.I)
_DELETED = re.compile(
    r"(?<!`)<(del|s|strike)(?:\s[^<>]*)?>(?!`)[^<>]*(?<!`)</\1>"
    r"|(?<![`~])~~(?=[^\s~])[^~\n]{1,1000}(?<=\S)~~(?![`~])",
    re.I,
)
_APART = re.compile(r"(?<!`)<su([pb])(?:\s[^<>]*)?>(?!`)([^<>]*)(?<!`)</su\1>", re.I)
_LINK = r"(?:\[(?:[^\[\]]|\[[^\[\]]*\])*\]\([^()\s]*\)|<a\s[^<>]*>[^<>]*</a>)[\s,]*"
# reStructuredText's and MyST's roles, which an escaped space may set apart: 10\ :sup:`6`
_APART_ROLE = re.compile(r"(?:\\ )?(?:\{(su[bp])\}|(?<!\w):(su[bp])(?:script|erscript)?:)`([^`<>]+)`(?:\\ )?")
_NOTE_MARK = re.compile(rf"(?<!`)<sup(?:\s[^<>]*)?>\s*(?:{_LINK})+</sup>", re.I)
# Of Markdown and of Org: =verbatim= and ~code~ stand between spaces or punctuation.
_CODE_SPAN = re.compile(
    rf"{CODE_SPAN}"
    r"|(?<![^\s({\[\"'-])([~=])(?=[^\s=~])([^\n]{1,300}?)(?<=\S)\3(?![^\s.,;:!?)}\]\"'-])"
    rf"|({FORMULA})"
)
_APART_MARK = re.compile(r"(?<=[^\W_])~([\w+-]{1,6})~(?!~)|(?<=[\w)])\^([\w+-]{1,6})\^")  # H~2~O, 2^10^
_EMPHASIS = re.compile(r"(?<![\w\\])(\*{1,3}|_{1,3}|`+)(?=\S)(.{1,1000}?)(?<=[^\s\\])\1(?!\w)")
# Of words: comparisons have two of them too
_MARKED = re.compile(r"(?<![^\s({\[\"'])==(?=\S)([^=<>()\[\]{}&|\n]{1,300})(?<=\S)==(?![^\s.,;:!?)}\]\"'])")
_BOX = re.compile(r"^\[!\w+\][+-]?\s*")  # a box's kind before its title
_NESTED = 3  # kinds of emphasis around one another
_SPAN = "\ue000"  # stands for code while emphasis is taken off
# A backslash of "the 3\. May" or before a mark of emphasis; elsewhere it may be a pattern's
_ESCAPED = re.compile(r"(?<=\d)\\(?=\.)|\\(?=[*_])")
_STATEMENT = r"(?:if|for|while|switch|elif|elseif)\s*\(|(?:const|def|func|function|let|static|struct|var)\s"
_CODE = re.compile(
    rf"""
      ^[\w.:>&*\[\]"'$-]+(?:\s[\w*&.-]+)?\s*(?:[-+*/|&%.]?=|:=|<-)\s.*[^.!?:]$   # assignments
    | ^[\w.:>-]+\(.*\)[;:]?$                                                    # calls
    | ^(?=.*(?:\w\(|[={{}}$<>\[\\])).*[;{{}}\\]$              # what ends as code does
    | ^(?=.*[({{\[=])(?:{_STATEMENT}).*[)}}\]:]$
    | ^(?:import|export)\s.*[\"'];?$
    """,
    re.X,
)


def is_prose(line: str) -> bool:
    """Return whether a line is no heading, rule, tag, picture, directive or typed command."""
    return not _NO_PROSE_LINE.match(line) and not is_picture(line)


def is_code(sentence: str) -> bool:
    """Return whether a sentence is an assignment, a call or another statement."""
    return len(sentence) <= LONGEST and bool(_CODE.search(sentence))


def plain(line: str) -> str:
    """Return what a line says: links and roles by their texts, without emphasis, tags, escapes and
    what was deleted."""
    line = _NOTE_MARK.sub("", without_pictures(_BOX.sub("", line)))
    line = _APART_ROLE.sub(r"<\1\2>\3</\1\2>", line)
    for pattern in _LINKS:
        line = pattern.sub(_text_or_code, line)
    line = _DELETED.sub("", _TAG.sub("", line))
    line = _CHANGING_TAG.sub("", _APART.sub(_set_apart, line))
    line = _APART_MARK.sub(lambda found: raised(found[1] or found[2], lowered=bool(found[1])), line)
    code = [found[2] or found[4] or found[5] for found in _CODE_SPAN.finditer(line)]
    line = _CODE_SPAN.sub(_SPAN, line)
    for _ in range(_NESTED):
        line, changed = _EMPHASIS.subn(r"\2", _MARKED.sub(r"\1", line))
        if not changed:
            break
    spans = iter(code)
    line = re.sub(_SPAN, lambda _: next(spans, ""), _ESCAPED.sub("", line))
    return unescape(line).replace("\xa0", " ")


def _text_or_code(found: re.Match[str]) -> str:
    """Return what a link or role shows, and code as it stands."""
    return found[0] if found["said"] is None else found["said"]


def _set_apart(found: re.Match[str]) -> str:
    return raised(unescape(found[2]), lowered=found[1] in "bB")
