"""Write code as Markdown does, in a fence, and take off it what Org adds to it."""

from __future__ import annotations

import re
from textwrap import dedent

from pipelines.corpus.as_markdown.parts import fenced

_ESCAPED = re.compile(r"([ \t]*,*),(?=\*|#\+)")
_LANGUAGE = re.compile(r"[^\s:`-][^\s`]*")


def listing(lines: list[str], options: str = "") -> list[str]:
    """Return a block of code, its language named where the block's options begin with it."""
    language = _LANGUAGE.match(options)
    code = "\n".join(_ESCAPED.sub(r"\1", line, count=1) for line in lines)
    return fenced(dedent(code), language[0] if language else "").split("\n")
