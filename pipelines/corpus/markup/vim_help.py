"""What Vim's help marks: tags, references to them, and examples behind a `>`."""

from __future__ import annotations

import re

from pipelines.corpus.markup.parts import INDENTED

_IS_HELP = re.compile(r"^[ \t]*(?:vim:\S*.*ft=help|\*\S+\*\t)", re.M)
_TAG = re.compile(r"(?<!\S)\*[^\s*|]+\*(?!\S)")
_REFERENCE = re.compile(r"(?<![\w|])\|([^\s|]+)\|(?![\w|])")
EXAMPLE = re.compile(rf"(?<=[^\s>][ \t])>(?:vim\w*)?[ \t]*\n(?=[ \t]*\n?[ \t]+\S){INDENTED}")


def is_help(text: str) -> bool:
    return bool(_IS_HELP.search(text))


def without_marks(text: str) -> str:
    """Leave out tags; a reference becomes what it names."""
    return _REFERENCE.sub(r"\1", _TAG.sub("", text))
