"""Draw some of many texts while they are read, each as likely as another, in their order.

Taking every n-th would leave one language of a folder whose files are sorted as a.de.md, a.en.md, a.fr.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from operator import itemgetter
from pathlib import Path
from typing import Generic, TypeVar

from pipelines.corpus.documents import Progress, read_folder, require_any_read
from pipelines.corpus.manifest import FileReport
from pipelines.corpus.reading.formats import Limits
from pipelines.corpus.reading.plain import TextPiece

Kept = TypeVar("Kept")


class Sample(Generic[Kept]):
    """All that is added, or the first of a random order that have at most so many characters.

    The same additions give the same sample. No more than it is held meanwhile; one is kept, however long.
    """

    def __init__(
        self, most: int, characters: Callable[[Kept], int], draws: random.Random | None = None
    ) -> None:
        self.draws = draws or random.Random(0)
        self._most = most
        self._characters_of = characters
        self._kept: list[tuple[float, int, Kept]] = []  # a heap of draws, negated, with numbers
        self._below = 1.0  # draws that are still taken: higher ones were dropped
        self._added = self._characters = 0

    def add(self, one: Kept) -> None:
        self._take(self.draws.random(), one)

    def join(self, other: Sample[Kept]) -> None:
        """Add what another sample has kept, by its draws; none higher than one that it dropped is taken."""
        self._below = min(self._below, other._below)
        for draw, _, one in sorted(other._kept, key=itemgetter(1)):
            self._take(-draw, one)

    def _take(self, draw: float, one: Kept) -> None:
        number = self._added
        self._added += 1
        if draw >= self._below:
            return
        heappush(self._kept, (-draw, number, one))
        self._characters += self._characters_of(one)
        while self._characters > self._most and len(self._kept) > 1:
            highest, _, dropped = heappop(self._kept)
            self._below = -highest
            self._characters -= self._characters_of(dropped)

    def numbered(self) -> dict[int, Kept]:
        """Return what was kept, each by its number among all that were added."""
        return {number: one for _, number, one in sorted(self._kept, key=itemgetter(1))}


class TextSample(Sample[str]):
    """A sample of texts."""

    def __init__(self, most: int, draws: random.Random | None = None) -> None:
        super().__init__(most, len, draws)

    @classmethod
    def of(cls, texts: Iterable[str], most: int) -> TextSample:
        """Return a sample of all these texts."""
        drawn = cls(most)
        for text in texts:
            drawn.add(text)
        return drawn

    def texts(self) -> list[str]:
        """Return the texts that were kept, in their order."""
        return list(self.numbered().values())


def sample_of_folder(
    folder: Path, most: int, limits: Limits | None = None, progress: Progress | None = None
) -> list[str]:
    """Return the texts of a folder, or about `most` characters of them; no more of it is held in memory."""
    whole = TextSample(most)
    of_file = TextSample(most, whole.draws)  # apart until the file is known to be read, and not skipped
    manifest: list[FileReport] = []
    for item in read_folder(folder, limits, progress=progress):
        if isinstance(item, TextPiece):
            of_file.add(item.text)
            continue
        manifest.append(item)
        if item.status == "read":
            whole.join(of_file)
        of_file = TextSample(most, whole.draws)
    require_any_read(folder, manifest)
    return whole.texts()
