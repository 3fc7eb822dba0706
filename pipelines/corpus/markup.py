"""Take markup off a text, be it Markdown, MyST, reStructuredText, AsciiDoc or Org, as the readers give it.

In doubt a text is kept, as a fact that is not asked is worse than a mark that stays.
"""

from __future__ import annotations

import re
from functools import partial
from html import unescape

LONGEST = 1000  # characters of a sentence that may be code
SLOT = "\ufffc"  # stands where a template puts something in
_INDENTED = r"(?:[ \t]*\n|[ \t]+\S.*(?:\n|\Z))*"
_NO_PROSE_IN = (
    "code|code-block|sourcecode|parsed-literal|doctest|testcode|math|toctree|image|figure|raw|include|literalinclude"
    "|auto\\w+"
)
_LITERAL = "listing|literal|source|synopsis|verse"  # styles of AsciiDoc's paragraphs
# What AsciiDoc's listings and remarks may begin behind, so that a rule begins none
_BLOCK = (
    r"(?:\A|(?<=\n\n)|(?<=\n)(?=[\[+.]))(?:(?:\[[^\n]*\]|\+|\.\S[^\n]*)\n){{0,4}}"
    r"(-{{4,}}|\.{{4,}}|/{{4,}})[ \t]*\n{}\1[ \t]*$"
)
_NO_PROSE = (
    re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1|\Z)", re.M | re.S),
    re.compile(r"^\[[^\]\n]*\]\n(-{4,}|\.{4,})\n(?:.*\n){0,400}?\1$", re.M),  # AsciiDoc's listings
    re.compile(_BLOCK.format(r"(?=[^\n]*\S)(?:.*\n){1,400}?(?<!\n\n)"), re.M),
    re.compile(rf"^\[(?:{_LITERAL})\b[^\]\n]*\]\n(?:.*\S.*(?:\n|\Z))+", re.M),
    re.compile(r"^\.(?=[\w\"`])[^\n]*\n(?=\[|\|===|([-=.*_])\1{3}|```|[a-z]+::|[*.-]+ )", re.M),  # its titles
    re.compile(rf"(?<=[^\s>][ \t])>(?:vim\w*)?[ \t]*\n(?=[ \t]*\n?[ \t]+\S){_INDENTED}"),  # Vim's examples
    re.compile(
        r"^[ \t]*(?:\$\$[^$]{1,4000}\$\$|\\begin\{(\w+\*?)\}[\s\S]{0,4000}?\\end\{\1\})[ \t.,]*$", re.M
    ),
    re.compile(r"^[ \t]*#\+begin_(\w+).*?(?:^[ \t]*#\+end_\1|\Z)", re.M | re.S | re.I),  # Org's blocks
    re.compile(rf"^[ \t]*\.\. (?:{_NO_PROSE_IN})::.*(?:\n|\Z){_INDENTED}", re.M),
    re.compile(rf"(?<=::)[ \t]*\n[ \t]*\n(?=[ \t]+\S){_INDENTED}"),  # reStructuredText's literal blocks
    re.compile(r"^[^|\n]*[^.!?|\s][ \t]*\n(?=([=~^*+-])\1{2,}[ \t]*$)", re.M),  # underlined headings
)
_ORG = re.compile(r"^(?:#\+\w+(?:\[.*\])?:|[ \t]*:PROPERTIES:[ \t]*$|[ \t]*#\+begin_)", re.M | re.I)
# Headings, comments, properties and fixed width of Org, whose marks are those of lists elsewhere
_ORG_NO_PROSE = re.compile(
    r"^(?:\*+[ \t]|[ \t]*(?:#(?:\+\w|[ \t]|$)|:[\w-]+\+?:(?:[ \t]|$)|:(?:[ \t]|$))).*$", re.M
)
_ORG_ITALICS = re.compile(r"(?<![^\s(])/(?=[A-Za-z])([^/]{0,80}[a-z])/(?![^\s.,;:!?)\[])")
_TAGS = re.compile(r"(?<!\S)\*[^\s*|]+\*(?!\S)")  # of Vim's help
_VIM = re.compile(r"^[ \t]*(?:vim:\S*.*ft=help|\*\S+\*\t)", re.M)
_VIM_LINK = re.compile(r"(?<![\w|])\|([^\s|]+)\|(?![\w|])")
_ASCIIDOC = re.compile(
    rf"^(?:={{1,5}}[ \t]+[^\s=]|\[\[[\w.-]+\]\]$|\+$|\[(?:{_LITERAL}|NOTE|TIP)\b.*\]$|[a-z]+::\S*\[.*\]$)",
    re.M,
)
_LISTING = re.compile(_BLOCK.format("(?=[^\n]*\\S)(?:.*\\n){0,400}?"), re.M)
_ATTRIBUTE = re.compile(r"^:!?[\w-]+!?:(?:[ \t].*)?$", re.M)
_ANCHOR = re.compile(r"^\[\[[^\[\]\n]+\]\][ \t]*$|\[\[[\w.:-]+(?:,[^\[\]\n]*)?\]\](?=[\w`])", re.M)
_TERM = re.compile(r"^([^\s|#.].{0,200}[^\s.:])::[ \t]*\n[ \t]*(?=[^\s+\[.*-])", re.M)
_REFERENCES = (  # and what stands for them; an empty text is another document's title
    (re.compile(r"<<[^<>,\n]{1,200},\s*([^<>]{1,400})>>"), r"\1"),
    (
        re.compile(
            r"(?<![\w<])<<(?=[\w#])[\w#./: -]{1,200}>>(?!>)"
            r"|(?<![^\s(])[a-z][a-z-]{2,30}:[^\s\[\]]{1,2000}\[\]"
        ),
        SLOT,
    ),
    (re.compile(r"\[\[[^\[\]]{1,2000}\]\[([^\[\]]{1,400})\]\]"), r"\1"),
    (re.compile(r"\[\[[*#]?(?=[A-Za-z])([^\[\]|]{1,400})\]\]"), r"\1"),
    (re.compile(r"\b(?:link|man)[a-z]*:([\w.-]{1,200})\[(\d\w{0,2})\]"), r"\1(\2)"),
    (
        re.compile(
            r"\b(?:link:|xref:|https?://)[^\s\[\]]{1,2000}\[([^\[\]]{1,400}?)\^?(?:,[a-z]+=[^\[\]]*)?\]"
        ),
        r"\1",
    ),
    (re.compile(r"(?<![\w\\$}])\{[\w-]{2,80}\}[^\s\[\]{}`]{0,2000}\[([^\[\]]{1,400}?)\^?\]"), r"\1"),
    (re.compile(r"\b(?:kbd|btn):\[([^\[\]]{1,80})\]"), r"\1"),
    (
        re.compile(
            r"\b(?:footnote|image|indexterm2?):[\w./{}-]{0,200}\[[^\[\]]{0,2000}\]|\[fn:[\w-]*(?::[^\[\]]*)?\]"
        ),
        "",
    ),
    (re.compile(r"(?<!\w)\[\.[\w.-]{1,80}\](?=[\w`*_#/.+])"), ""),
    (re.compile(r"(?<![`\w])``((?:[^`'\n]|'(?!')){1,200})''"), r'"\1"'),
)
_LITERAL_FOLLOWS = re.compile(r"(?:^|(?<![ \t])[ \t]+)::[ \t]*$|(?<=[^\s:]):(?=:[ \t]*$)", re.M)
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
# A <name> at the beginning of a sentence
_TO_FILL_IN = r"(?!(?:br|dd|div|dt|h\d|hr|li|p|td|th|tr)\b)\w[\w .:|-]*>[^<]*[A-Za-z][^<]*$"
_NO_PROSE_LINE = re.compile(
    rf"""\s*(?:
      \#{{1,6}}\s | ={{1,6}}\s                    # headings
    | :?-{{3,}} | ([=~^*+])\1{{2,}}\s*$           # rules and underlines
    | <(?!<|https?://|[^<>]*>`|{_TO_FILL_IN}) | !\[  # tags, images; no link's target behind a line break
    | :{{3,}} | [!?]{{3}} | \#\+\w | \.\.(?:\s|$) # directives
    | >>>\s | \$\s                            # what is typed into a prompt
    | //(?:\s|$) | \+\s*$ | [a-z][\w-]*::\S*\[[^\[\]\n]*\]\s*$  # AsciiDoc's remarks and block macros
    | (?:File:.*)?(?:Next|Prev\w*|Up):\s.{{1,200}}\b(?:Prev\w*|Up):\s  # Texinfo's way on
    )""",
    re.X,
)
_LINKS = (  # and roles, by their texts
    re.compile(r"(?:\{[\w:.+-]+\}|(?<!\w):[a-zA-Z][\w:.+-]{0,40}:)`[~!]?([^`]+?)(?:\s?<[^`<>]*>)?`"),
    re.compile(r"(?<![`\w])`([^`<]+?)(?:\s?<[^`<>]+>)?`__?(?!\w)"),
    re.compile(r"!?\[([^\[\]]*)\](?:\([^()\s]*(?:\s+\"[^\"]*\")?\)|\[[^\[\]]*\])"),
)
_STYLING = "a|abbr|b|big|cite|code|del|em|i|ins|kbd|mark|q|s|small|span|strong|sub|sup|u|var"
_TAG = re.compile(rf"(?<!`)</?(?:{_STYLING})(?:\s[^<>]*)?>(?!`)", re.I)
# Of Markdown and of Org: =verbatim= and ~code~ stand between spaces or punctuation.
_CODE_SPAN = re.compile(
    r"(?<!`)(`+)(?!`)(.{1,1000}?)(?<!`)\1(?!`)"
    r"|(?<![^\s({\[\"'-])([~=])(?=[^\s=~])([^\n]{1,300}?)(?<=\S)\3(?![^\s.,;:!?)}\]\"'-])"
)
_EMPHASIS = re.compile(r"(?<!\w)(\*{1,3}|_{1,3}|`+)(?=\S)(.{1,1000}?)(?<=\S)\1(?!\w)")
_NESTED = 3  # kinds of emphasis around one another
_SPAN = "\ue000"  # stands for code while emphasis is taken off
_STATEMENT = r"(?:if|for|while|switch|elif|elseif)\s*\(|(?:const|def|func|function|let|static|struct|var)\s"
_CODE = re.compile(
    rf"""
      ^[\w.:>&*\[\]"'$-]+(?:\s[\w*&.-]+)?\s*(?:[-+*/|&%.]?=|:=|<-)\s.*[^.!?:]$   # assignments
    | ^[\w.:>-]+\(.*\)[;:]?$                                                    # calls
    | ^(?=.*(?:\w\(|[={{}}$<>\[\\])).*[;{{}}\\]$              # what ends as code does
    | ^(?=.*[({{\[=])(?:{_STATEMENT}).*[)}}\]:]$
    """,
    re.X,
)


def without_blocks(text: str) -> str:
    """Leave out blocks that are no prose, as code and underlined headings; a table gets its outer bars, a
    definition what it defines."""
    if _ASCIIDOC.search(text):
        text = _ATTRIBUTE.sub("", _LISTING.sub("\n", text))
    text = _TERM.sub(r"\1: ", text)
    for pattern in _NO_PROSE:
        text = pattern.sub("\n", text)
    text = _of_one_language(text)
    text = _DIRECTIVE.sub(r"\1", _LITERAL_FOLLOWS.sub("", _without_labels(text)))
    text = _TEMPLATE_TAG.sub(SLOT, text)
    for pattern, instead in _REFERENCES:
        text = pattern.sub(partial(_on_one_line, instead), text)
    text = _BARE_TABLE.sub(lambda table: re.sub("^", "|", table[0].rstrip(), flags=re.M) + "\n", text)
    return _DEFINITION.sub(r"\1: ", text)


def _on_one_line(instead: str, found: re.Match[str]) -> str:
    return " ".join(found.expand(instead).split())


def _of_one_language(text: str) -> str:
    """Leave out what is markup in Org, in Vim's help or in AsciiDoc, and may be prose elsewhere."""
    if _ORG.search(text):
        return _ORG_ITALICS.sub(r"\1", _ORG_NO_PROSE.sub("", text))
    if _VIM.search(text):
        return _VIM_LINK.sub(r"\1", _TAGS.sub("", text))
    return _ANCHOR.sub("", text)


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


def is_code(sentence: str) -> bool:
    """Return whether a sentence is an assignment, a call or another statement."""
    return len(sentence) <= LONGEST and bool(_CODE.search(sentence))


def plain(line: str) -> str:
    """Return what a line says: links and roles by their texts, without emphasis and tags."""
    for pattern in _LINKS:
        line = pattern.sub(r"\1", line)
    line = _TAG.sub("", line)
    code = [found[2] or found[4] for found in _CODE_SPAN.finditer(line)]
    line = _CODE_SPAN.sub(_SPAN, line)
    for _ in range(_NESTED):
        line, changed = _EMPHASIS.subn(r"\2", line)
        if not changed:
            break
    spans = iter(code)
    line = re.sub(_SPAN, lambda _: next(spans, ""), line)
    return unescape(line).replace("\xa0", " ")
