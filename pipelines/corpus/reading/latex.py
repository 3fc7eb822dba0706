"""Read a LaTeX file, a document or a part that another file takes in; refuse one that prints no words."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pipelines.corpus.as_markdown.latex.document import as_markdown
from pipelines.corpus.as_markdown.latex.macros import Macro
from pipelines.corpus.reading.formats import Unreadable
from pipelines.corpus.reading.plain import FileFacts, Source, characters


def read_latex(source: Source, facts: FileFacts) -> Iterator[str]:
    """Yield a file as Markdown."""
    text = "".join(characters(source, facts))
    others = json.loads(source.context) if source.context else {}
    said = as_markdown(text, {name: Macro(*macro) for name, macro in others.items()})
    if text.strip() and not said.strip():
        raise Unreadable("LaTeX without text of its own: macros, settings, pictures, names of files")
    yield said
