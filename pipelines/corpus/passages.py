"""Cut documents into passages of a length that a writer reads at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipelines.corpus.sentences import sentences

CHARACTERS = 1500
FEWEST = 20  # characters of a passage


@dataclass(frozen=True)
class Passage:
    document: int
    text: str


def passages(texts: Iterable[str], longest: int = CHARACTERS) -> Iterator[Passage]:
    """Join paragraphs, or the sentences of a long one, into passages; yield equal passages once."""
    seen: set[str] = set()
    for number, text in enumerate(texts):
        for piece in _joined(_small(text, longest), longest):
            same = " ".join(piece.split()).casefold()
            if len(same) >= FEWEST and same not in seen:
                seen.add(same)
                yield Passage(number, piece)


def _small(text: str, longest: int) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text):
        if len(paragraph) <= longest:
            yield paragraph.strip()
            continue
        for sentence in sentences(paragraph):
            yield from (sentence[at : at + longest] for at in range(0, len(sentence), longest))


def _joined(pieces: Iterable[str], longest: int) -> Iterator[str]:
    whole = ""
    for piece in filter(None, pieces):
        if whole and len(whole) + 2 + len(piece) > longest:
            yield whole
            whole = ""
        whole = f"{whole}\n\n{piece}" if whole else piece
    if whole:
        yield whole
