"""Near-duplicates among files: MinHash over word shingles, one pass, a few comparisons a file.

A file's signature is the smallest hash of its shingles in each of 128 bins; the share of equal bins estimates
how many shingles two files share. Files with an equal band of four bins are compared. Everything is
arithmetic on the characters, the same on every machine. Words need no spaces: an ideograph is a word.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

BINS, BAND = 128, 4
SHINGLE = 5  # words
SEEN = 2**16  # characters that are looked at of a text up to a piece's length: of a longer one, four windows
SIMILAR = 0.8
BUCKET = 4  # files that a band remembers
EMPTY = np.uint64(2**64 - 1)
WORD, NEXT = np.uint32(0x9E3779B1), np.uint64(0xC2B2AE3D27D4EB4F)  # odd: they can be inverted
INVERSE = np.uint32(pow(int(WORD), -1, 2**32))
Hashes = NDArray[np.uint64]


class Signature:
    """Of one file, gathered piece by piece."""

    def __init__(self) -> None:
        self.lowest = np.full(BINS, EMPTY)
        self._waiting: list[str] = []
        self._size = 0

    def add(self, text: str) -> None:
        """Small texts wait for each other: hashing few words costs as much as hashing many."""
        self._waiting.append(text)
        self._size += len(text)
        if self._size >= SEEN:
            self._hash()

    def _hash(self) -> None:
        hashes = np.sort(shingles(_windows("\n".join(self._waiting))))
        self._waiting, self._size = [], 0
        if len(hashes):
            edges = np.arange(BINS, dtype=np.uint64) << np.uint64(57)
            at = np.searchsorted(hashes, edges)
            found = np.append(hashes, EMPTY)[at]
            inside = (found >> np.uint64(57)) == np.arange(BINS, dtype=np.uint64)
            self.lowest = np.minimum(self.lowest, np.where(inside, found, EMPTY))

    def bins(self) -> NDArray[np.uint32] | None:
        """None for a text without a word. An empty bin borrows from the next full one."""
        if self._waiting:
            self._hash()
        full = np.flatnonzero(self.lowest != EMPTY)
        if not len(full):
            return None
        following = full[np.searchsorted(full, np.arange(BINS)) % len(full)]
        distance = (following - np.arange(BINS)) % BINS
        borrowed = mixed(self.lowest[following] + distance.astype(np.uint64) * NEXT)
        return (borrowed >> np.uint64(32)).astype(np.uint32)


class Similar:
    """The files seen so far; asks of each new one whether it was there before."""

    def __init__(self) -> None:
        self._same: dict[str, str] = {}
        self._bands: dict[tuple[int, bytes], list[int]] = {}
        self._files: list[tuple[str, NDArray[np.uint32]]] = []

    def add(self, path: str, sha256: str | None, signature: Signature) -> tuple[str, float] | None:
        """(the earlier file, the share of shingles in common), if there is one like it."""
        if sha256 in self._same:
            return self._same[sha256], 1.0
        if sha256:
            self._same[sha256] = path
        bins = signature.bins()
        if bins is None:
            return None
        bands = [(i, bins[i : i + BAND].tobytes()) for i in range(0, BINS, BAND)]
        known = sorted({index for band in bands for index in self._bands.get(band, ())})
        shares = [(float(np.mean(self._files[index][1] == bins)), -index) for index in known]
        best, index = max(shares, default=(0.0, 0))
        if best >= SIMILAR:
            return self._files[-index][0], best
        self._files.append((path, bins))
        for band in bands:
            bucket = self._bands.setdefault(band, [])
            if len(bucket) < BUCKET:
                bucket.append(len(self._files) - 1)
        return None


def _windows(text: str) -> str:
    """A long text's beginning, end, and two parts in between."""
    if len(text) <= SEEN:
        return text
    width = SEEN // 4
    starts = [round(share * (len(text) - width)) for share in (0, 1 / 3, 2 / 3, 1)]
    return "\n".join(text[start : start + width] for start in starts)


def shingles(text: str) -> Hashes:
    """A hash of every five words in a row; of one that is shorter, of all its words."""
    words = word_hashes(text)
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
    """A polynomial hash of every word, all words at once: prefix sums, shifted back to each word's start.

    Sums of 32 bits are enough for words, and twice as fast as those of 64.
    """
    codes, starts = _letters(text.lower())
    if not len(starts):
        return np.zeros(0, np.uint64)
    powers, inverses = (_powers(int(base), -(-len(codes) // 4096))[: len(codes)] for base in (WORD, INVERSE))
    sums = np.zeros(len(codes) + 1, np.uint32)
    np.cumsum(codes * powers, dtype=np.uint32, out=sums[1:])
    here = sums[starts]
    sizes = np.append(here[1:], sums[-1]) - here
    return mixed((sizes * inverses[starts]).astype(np.uint64))


def _letters(text: str) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """What words are made of, 0 for all between them, and where each word starts."""
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
    """Every bit of a number spread over all of it (splitmix64)."""
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
    """Letters and digits as they are, 0 for the rest."""
    return bytes(code if chr(code).isalnum() else 0 for code in range(128)).ljust(256, b"\0")


@lru_cache(maxsize=1)
def _kinds() -> NDArray[np.uint8]:
    """0: between words, 1: part of one, 2: a word by itself (ideographs, kana, Thai and their like)."""
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
