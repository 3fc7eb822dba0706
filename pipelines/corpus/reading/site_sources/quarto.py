"""Put […] for values that only a build of Quarto or R Markdown fills in; leave out labels of formulas."""

from __future__ import annotations

import re

from pipelines.corpus.as_markdown.parts import Held, without_marks
from pipelines.corpus.markup import fences
from pipelines.corpus.markup.parts import CODE_SPAN, LEFT_OUT

_CODE = re.compile(CODE_SPAN)
_VALUE = re.compile(r"(?:r|\{(?:r|python|julia|ojs)\})\s+\S")  # the beginning of code that is run
_LABEL = re.compile(r"(?<=\$\$)[ \t]*\{#[^{}\s]{1,200}\}")


def without_values(text: str) -> str:
    """Return a page without values that its text lacks; blocks of code stay as they stand."""
    held = Held()
    text = fences.replaced(without_marks(text), held.hold)
    return held.restored(_LABEL.sub("", _CODE.sub(_unless_built, text)))


def _unless_built(found: re.Match[str]) -> str:
    return LEFT_OUT if len(found["bars"]) == 1 and _VALUE.match(found["code"]) else found[0]
