"""Find near-duplicates among files: MinHash over word shingles, in one pass.

A file's signature is the smallest hash of its shingles in each of 128 bins; the share of equal bins estimates
how many shingles two files share. Files with an equal band of four bins are compared; short ones, whose bins
say little, by all of their shingles. Everything is arithmetic on the characters, the same on every machine.
Each ideograph is a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

BINS, BAND = 128, 4
BANDS = np.arange(BINS // BAND)
FEWEST = 1024  # files that there is room for at first
SHINGLE = 5  # words
TOGETHER = 2**18  # characters that are hashed at once: few words cost as much as many, more take memory
FEW = 512  # shingles: a file with no more keeps them all
SIMILAR = 0.8
EMPTY = np.uint64(2**64 - 1)
WORD, NEXT = np.uint32(0x9E3779B1), np.uint64(0xC2B2AE3D27D4EB4F)  # odd: they can be inverted
INVERSE = np.uint32(pow(int(WORD), -1, 2**32))
Hashes = NDArray[np.uint64]
Bins = NDArray[np.uint16]


class Signature:
    """The signature of one file, made piece by piece."""

    def __init__(self) -> None:
        self.lowest = np.full(BINS, EMPTY)
        self._waiting: list[str] = []
        self._size = 0
        self.few: Hashes | None = None  # all shingles, if there are no more than FEW
        self._last = np.zeros(0, np.uint64)  # words hashed before: shingles go on over pieces

    def add(self, text: str) -> None:
        """Add a piece, which ends a word."""
        self._waiting.append(text)
        self._size += len(text)
        if self._size >= TOGETHER:
            self._hash()

    def _hash(self) -> None:
        text, self._waiting, self._size = "\n".join(self._waiting), [], 0
        for part in _parts(text):
            self._take(word_hashes(part))

    def _take(self, words: Hashes) -> None:
        if len(words):
            words = np.concatenate([self._last, words])
            hashes = np.sort(runs(words))
            self.few = np.unique(hashes) if not len(self._last) and len(hashes) <= FEW else None
            self._last = words[1 - SHINGLE :]
            edges = np.arange(BINS, dtype=np.uint64) << np.uint64(57)
            at = np.searchsorted(hashes, edges)
            found = np.append(hashes, EMPTY)[at]
            inside = (found >> np.uint64(57)) == np.arange(BINS, dtype=np.uint64)
            self.lowest = np.minimum(self.lowest, np.where(inside, found, EMPTY))

    def bins(self) -> Bins | None:
        """Return the signature, None without words; an empty bin borrows from the next full one."""
        if self._waiting:
            self._hash()
        full = np.flatnonzero(self.lowest != EMPTY)
        if not len(full):
            return None
        following = full[np.searchsorted(full, np.arange(BINS)) % len(full)]
        distance = (following - np.arange(BINS)) % BINS
        borrowed = mixed(self.lowest[following] + distance.astype(np.uint64) * NEXT)
        return (borrowed >> np.uint64(48)).astype(np.uint16)


def _parts(text: str) -> Iterator[str]:
    """Yield a text in parts of TOGETHER characters, which end words where it has spaces."""
    at = 0
    while at < len(text):
        most = at + TOGETHER
        space = max(text.rfind(" ", at, most), text.rfind("\n", at, most))
        end = space + 1 if len(text) > most and space > 0 else most
        yield text[at:end]
        at = end


class SimilarFiles:
    """The files seen so far, in some 600 bytes each and eight more for each shingle of a short one.

    Each band of a signature has a table that maps its hash to the last file with that hash. A file in the
    same place may have another hash, or may have been replaced: files that are alike share many bands, so
    losing some costs nothing, and every candidate's share is computed from the bins.
    """

    def __init__(self) -> None:
        self._first_with: dict[str, int] = {}  # sha256 -> index
        self._paths: list[str] = []
        self._bins = np.zeros((FEWEST, BINS), np.uint16)
        self._few: dict[int, Hashes] = {}  # index -> all shingles, of short files
        self._tables = _tables(FEWEST)

    def add(self, path: str, sha256: str | None, signature: Signature) -> tuple[str, float] | None:
        """Return the earlier file most like this one and their share of shingles, if at least SIMILAR."""
        if sha256 in self._first_with:
            return self._paths[self._first_with[sha256]], 1.0
        bins = signature.bins()
        twin = None if bins is None else self._most_similar(bins, signature.few)
        if twin is None and bins is not None and signature.few is not None:
            self._few[len(self._paths)] = signature.few
        if sha256 or bins is not None:
            self._keep(path, sha256, bins if twin is None else None)
        return twin

    def _most_similar(self, bins: Bins, few: Hashes | None) -> tuple[str, float] | None:
        candidates = np.unique(self._tables[BANDS, self._places(bins[None])[0]])
        candidates = candidates[candidates >= 0]
        if not len(candidates):
            return None
        shares = (self._bins[candidates] == bins).mean(axis=1)
        for place, candidate in enumerate(candidates.tolist()):
            if few is not None and candidate in self._few:
                shares[place] = shared(few, self._few[candidate])
        best = int(np.argmax(shares))  # the earliest of equals
        share = float(shares[best])
        return (self._paths[candidates[best]], share) if share >= SIMILAR else None

    def _keep(self, path: str, sha256: str | None, bins: Bins | None) -> None:
        index = len(self._paths)
        self._paths.append(path)
        if sha256:
            self._first_with[sha256] = index
        if index >= len(self._bins):
            self._grow()
        if bins is not None:
            self._bins[index] = bins
            self._tables[BANDS, self._places(bins[None])[0]] = index

    def _grow(self) -> None:
        """Double the room for files and fill the tables again."""
        count = len(self._bins)
        self._bins = np.concatenate([self._bins, np.zeros_like(self._bins)])
        self._tables = _tables(2 * count)
        for start in range(0, count, FEWEST):
            rows = self._bins[start : min(count, start + FEWEST)]
            self._tables[BANDS, self._places(rows)] = np.arange(start, start + len(rows))[:, None]

    def _places(self, bins_NB: Bins) -> NDArray[np.int64]:
        """Return where each band of some signatures lies in the band's table."""
        hashes = mixed(np.ascontiguousarray(bins_NB).view(np.uint64))  # four bins of 16 bits
        return (hashes % np.uint64(self._tables.shape[1])).astype(np.int64)


def _tables(files: int) -> NDArray[np.int32]:
    return np.full((len(BANDS), files), -1, np.int32)


def shared(one: Hashes, other: Hashes) -> float:
    """Return the share of two sets of shingles that is in both."""
    both = len(np.intersect1d(one, other, assume_unique=True))
    return both / (len(one) + len(other) - both)


def shingles(text: str) -> Hashes:
    """Hash every five words in a row; of a shorter text, all its words."""
    return runs(word_hashes(text))


def runs(words: Hashes) -> Hashes:
    """Hash every five hashes in a row; of fewer, all."""
    if not len(words):
        return words
    width = min(SHINGLE, len(words))
    count = len(words) - width + 1
    total = words[:count].copy()
    for offset in range(1, width):
        total *= NEXT
        total += words[offset : offset + count]
    return mixed(total)


def word_hashes(text: str) -> Hashes:
    """Hash every word by a polynomial, all at once: prefix sums, shifted back to each word's start.

    Sums of 32 bits are enough for words, and twice as fast as those of 64.
    """
    codes, starts = _letters(text.lower())
    if not len(starts):
        return np.zeros(0, np.uint64)
    blocks = 1 << (len(codes) // 4096).bit_length()  # powers of two, as tables of all sizes are kept
    powers, inverses = (_powers(int(base), blocks)[: len(codes)] for base in (WORD, INVERSE))
    sums = np.zeros(len(codes) + 1, np.uint32)
    np.cumsum(codes * powers, dtype=np.uint32, out=sums[1:])
    here = sums[starts]
    sizes = np.append(here[1:], sums[-1]) - here
    return mixed((sizes * inverses[starts]).astype(np.uint64))


def _letters(text: str) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return the letters of words as codes, 0 for all between them, and where each word starts."""
    if text.isascii():
        codes = np.frombuffer(text.encode().translate(_ascii()), np.uint8)
        inside = codes != 0
        starts = inside.copy()
        starts[1:] &= ~inside[:-1]
        return codes.astype(np.uint32), np.flatnonzero(starts)
    codes = np.frombuffer(text.encode("utf-32-le", "replace"), "<u4")
    kinds = _kinds()[np.minimum(codes, 0x10FFFF)]
    before = np.concatenate([[0], kinds[:-1]])
    starts = (kinds > 0) & ((before == 0) | (kinds == 2) | (before == 2))
    return np.where(kinds > 0, codes, np.uint32(0)), np.flatnonzero(starts)


def mixed(values: Hashes) -> Hashes:
    """Spread every bit of a number over all of it (splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@lru_cache(maxsize=128)
def _powers(base: int, blocks: int) -> NDArray[np.uint32]:
    powers = np.full(4096 * blocks, np.uint32(base))
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint32)


@lru_cache(maxsize=1)
def _ascii() -> bytes:
    """Return a table of letters and digits as they are, 0 for the rest."""
    return bytes(code if chr(code).isalnum() else 0 for code in range(128)).ljust(256, b"\0")


@lru_cache(maxsize=1)
def _kinds() -> NDArray[np.uint8]:
    """Return each character's kind. 0: between words, 1: part of one, 2: a word (ideographs, kana, Thai)."""
    kinds = np.fromiter((chr(code).isalnum() for code in range(0x110000)), np.uint8, 0x110000)
    for first, last in (
        (0x0E00, 0x0FFF),
        (0x1000, 0x109F),
        (0x1780, 0x17FF),
        (0x3040, 0x30FF),
        (0x3400, 0x9FFF),
        (0xF900, 0xFAFF),
        (0x20000, 0x3FFFF),
    ):
        kinds[first : last + 1] = np.where(kinds[first : last + 1] > 0, 2, 0)
    return kinds
