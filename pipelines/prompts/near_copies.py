"""Find near copies of IFEval's published prompts, which training sets from the web may hold.

Prompts that are drawn from templates differ by a few words from one another by design: of those, only what
is equal, or contained, gives one away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from evals.families.family import fingerprint

FINGERPRINTS = Path(__file__).parent / "ifeval_fingerprints.txt"
RUN = 8  # words that follow each other


@cache
def published() -> frozenset[str]:
    """Return the fingerprints of the 541 published IFEval prompts."""
    return frozenset(FINGERPRINTS.read_text(encoding="utf-8").split())


def is_published(text: str) -> bool:
    return fingerprint(text) in published()


def runs(words: Sequence[str]) -> Iterator[str]:
    """Yield every eight words that follow each other."""
    return (" ".join(words[start : start + RUN]) for start in range(len(words) - RUN + 1))


class NearCopies:
    """Find texts whose runs of eight words make up more than half of a prompt: the rule by which Tülu 3
    (Lambert et al. 2024) keeps its training sets apart from benchmarks."""

    def __init__(self, prompts: Iterable[Sequence[str]]) -> None:
        self._lengths: list[int] = []
        self._places: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for prompt, words in enumerate(prompts):
            self._lengths.append(len(words))
            for start, run in enumerate(runs(words)):
                self._places[run].append((prompt, start))

    def of(self, found: Iterable[str]) -> bool:
        """Return whether a text with these runs of words is a near copy of a prompt."""
        shared: dict[int, set[int]] = defaultdict(set)
        for run in found:
            for prompt, start in self._places.get(run, ()):
                shared[prompt].update(range(start, start + RUN))
        return any(2 * len(places) > self._lengths[prompt] for prompt, places in shared.items())
