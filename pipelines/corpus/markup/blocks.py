"""Leave out a text's blocks that are no prose: code, mathematics, directives, underlined headings."""

from __future__ import annotations

import re

from pipelines.corpus.markup import asciidoc, fences, org, vim_help
from pipelines.corpus.markup.parts import INDENTED, LEFT_OUT, SLOT

_NO_PROSE_IN = (
    "code|code-block|sourcecode|parsed-literal|doctest|testcode|math|toctree|image|figure|raw|include|literalinclude"
    "|auto\\w+"
)
_BOXES = "admonition|attention|caution|danger|error|hint|important|note|seealso|tip|warning"  # of MyST
_BOX = re.compile(  # how one begins, with its title
    rf"^[ \t]*(?:[-*+][ \t]+)?[`~]{{3,}}[ \t]*\{{(?:{_BOXES})\}}[ \t]*([^\n]*)\n(?:[ \t]*:[\w-]+:.*\n)*", re.M
)
_CLOSING = re.compile(r"^[ \t]*[`~]{3,}[ \t]*\Z", re.M)
_NESTED = 3  # boxes within one another
_NO_PROSE = (
    *asciidoc.NO_PROSE,
    vim_help.EXAMPLE,
    re.compile(
        r"^[ \t]*(?:\$\$[^$]{1,4000}\$\$|\\begin\{(\w+\*?)\}[\s\S]{0,4000}?\\end\{\1\})[ \t.,]*$", re.M
    ),
    org.BLOCK,
    re.compile(rf"^[ \t]*\.\. (?:{_NO_PROSE_IN})::.*(?:\n|\Z){INDENTED}", re.M),
    re.compile(rf"(?<=::)[ \t]*\n[ \t]*\n(?=[ \t]+\S){INDENTED}"),  # reStructuredText's literal blocks
    re.compile(  # underlined headings; three quotation marks or backticks underline no more than they are
        r"^[^|\n]*[^.!?|\s][ \t]*\n(?=(?:([=~^*+-])\1{2,}|([`\"])\2{3,})[ \t]*$)"
        r"|^[^|\n]{0,2}[^.!?|\s][ \t]*\n(?=(?:```|\"{3})[ \t]*(?:\n[ \t]*$|\Z))",
        re.M,
    ),
)
_RST_BOXES = f"{_BOXES}|compound|container|epigraph|glossary|hlist|table|tabs|tab-set"
# Above an empty line, where its :: would open code
_RST_BOX = re.compile(rf"^[ \t]*\.\. (?:{_RST_BOXES})::[ \t]*$(?=\n[ \t]*\n)", re.M)
_LITERAL_FOLLOWS = re.compile(r"(?:^|(?<![ \t])[ \t]+)::[ \t]*$|(?<=[^\s:]):(?=:[ \t]*$)", re.M)
# What stands behind a directive or a footnote's mark is prose.
_DIRECTIVE = re.compile(r"^([ \t]*)\.\. (?:[\w:-]+::[ \t]*|\[[^\]\n]+\][ \t]+)", re.M)
_DEFINED = re.compile(r"^ {0,3}\[([^\[\]^\n]+)\]:[ \t]+(?:<[^>\n]*>|\S+)(?:[ \t]+[\"'(].*)?[ \t]*$", re.M)
_BY_LABEL = re.compile(r"(?<!\])\[([^\[\]^]{1,200})\](?:\[\])?(?![\[(:])")
_FOOTNOTE = re.compile(r"\[\^[^\[\]\s]+\]:?")
_BARE_TABLE = re.compile(
    r"^(?![ \t]*\|)(?=[^\n]*\|)[^\n]*+\n(?=[ \t]*:?-)[ \t:-]*+\|[ \t:|-]*+\n"
    r"(?:[^\n]*\|[^\n]*(?:\n|\Z))*",
    re.M,
)
_TEMPLATE_TARGET = re.compile(  # of a link
    r"(?<=\]\()[^\s(){}]*+(?:\{[{%][^{}\n]*\}\}?[^\s(){}]*+)+(?=(?:[ \t]+\"[^\"\n]*\")?\))"
)
_DEFINITION = re.compile(r"^([^\s:|#].*[^\s.:])\n\n?:[ \t]+(?=\S)", re.M)
_INSIDE = r"(?:(?!{}|\n[ \t]*\n).){{0,2000}}?"  # of a tag: an unclosed one ends with its paragraph
_TEMPLATE_TAG = re.compile(
    "|".join(
        f"{opens}{_INSIDE.format(opens)}{closes}"
        for opens, closes in (("<%", "%>"), (r"\{%", r"%\}"), (r"\{\{", r"\}\}"))
    ),
    re.S,
)


def without_blocks(text: str) -> str:
    """Leave out blocks that are no prose, as code and underlined headings; a table gets its outer bars, a
    definition what it defines."""
    text = _RST_BOX.sub("", fences.without(asciidoc.without_listings(_without_boxes(text))))
    for pattern in _NO_PROSE:
        text = pattern.sub("\n", text)
    text = _of_one_language(text)
    text = _DIRECTIVE.sub(r"\1", _LITERAL_FOLLOWS.sub("", _without_labels(text)))
    text = asciidoc.without_references(_without_templates(text).replace(LEFT_OUT, SLOT))
    text = _BARE_TABLE.sub(lambda table: re.sub("^", "|", table[0].rstrip(), flags=re.M) + "\n", text)
    return _DEFINITION.sub(r"\1: ", text)


def _without_templates(text: str) -> str:
    """Put a mark where a template's tag stands for a word, and as many as it has characters where it stands
    for a link's target, which goes with the link: by its length it is known why a line ends before it."""
    return _TEMPLATE_TAG.sub(SLOT, _TEMPLATE_TARGET.sub(lambda target: SLOT * len(target[0]), text))


def _without_boxes(text: str) -> str:
    """Take the fences off what MyST puts into a box: it is prose."""
    for _ in range(_NESTED):
        if not _BOX.search(text):
            break
        text = fences.replaced(text, _said_in)
    return text


def _said_in(block: str) -> str:
    opening = _BOX.match(block)
    if opening is None:
        return block
    return f"\n{opening[1]}\n\n{_CLOSING.sub('', block[opening.end() :])}\n"


def _of_one_language(text: str) -> str:
    """Leave out what is a mark in Org, in Vim's help or in AsciiDoc, and may be prose elsewhere."""
    if org.is_org(text):
        return org.without_marks(text)
    if vim_help.is_help(text):
        return vim_help.without_marks(text)
    return asciidoc.without_anchors(text)


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
