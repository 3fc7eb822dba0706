"""Keep documents as token ids in one memory-mapped file: a corpus of any size fits beside any memory.

pieces of text -> write_tokens -> a directory of ids and ends, whole or absent -> Tokens -> TokenStream
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.corpus.reading.plain import TextPiece
from pipelines.corpus.sentence_splits import SentenceSplits
from recovery.errors import DamagedCheckpoint
from recovery.storage import atomic_dirs

Dialogue = tuple[Sequence[int], Sequence[bool]]  # ids, and which of them are targets
Pass = tuple[NDArray[np.int64], NDArray[np.int64]]  # order of the sequences, and the token where each begins
IDS, ENDS, META = "ids.u32", "ends.i64", "tokens.json"
BLOCK = 2**20  # bytes copied at once


class Pieces(NamedTuple):
    """Where pieces of sequences begin and end in the ids, in their order."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @property
    def total(self) -> int:
        return int((self.ends - self.starts).sum())

    def length(self, number: int) -> int:
        """Return the number of a piece's tokens."""
        return int(self.ends[number] - self.starts[number])

    def only(self, numbers: Collection[int]) -> Pieces:
        """Return the pieces with these numbers."""
        chosen = np.array(sorted(numbers), np.int64)
        return Pieces(self.starts[chosen], self.ends[chosen])

    def stretches(self) -> Iterator[tuple[int, int]]:
        """Yield where pieces that adjoin begin and end together."""
        begins, ends = np.setdiff1d(self.starts, self.ends), np.setdiff1d(self.ends, self.starts)
        return zip(begins.tolist(), ends.tolist(), strict=True)


@dataclass(frozen=True)
class Tokens:
    """Sequences of ids laid end to end; without `targets`, every token is one.

    The `opening` tokens (BOS) are not stored: they go before each sequence, and each piece of one, when read.
    """

    ids: NDArray[np.uint32]
    ends: NDArray[np.int64]  # where each sequence ends in `ids`
    targets: NDArray[np.bool_] | None = None
    opening: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def total(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def part(self, start: int, end: int) -> Dialogue:
        """Return the opening tokens and the ids from `start` to `end`; opening tokens are no targets."""
        targets = [True] * (end - start) if self.targets is None else self.targets[start:end].tolist()
        return [*self.opening, *self.ids[start:end].tolist()], [False] * len(self.opening) + targets

    def cuts(self, longest: int, without: Collection[int] = ()) -> Pieces:
        """Return pieces that, with their opening, have at most `longest` tokens.

        None crosses a sequence's border, and none is of the sequences `without`.
        """
        longest = max(1, longest - len(self.opening))
        begins = np.concatenate([[0], self.ends[:-1]]).astype(np.int64)
        counts = -(-(self.ends - begins) // longest)
        counts[list(without)] = 0
        whole = np.repeat(np.arange(len(self.ends)), counts)
        rank = np.arange(len(whole)) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = begins[whole] + rank * longest
        return Pieces(starts, np.minimum(starts + longest, self.ends[whole]))

    def whole(self, without: Collection[int] = ()) -> Pieces:
        """Return each sequence as one piece, but for those `without`."""
        return self.cuts(self.total + len(self.opening), without)

    def per_group(self, sizes: Sequence[int]) -> list[int]:
        """Return the number of tokens of each group of consecutive sequences, given the groups' sizes."""
        borders = np.concatenate([[0], self.ends])[np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])]
        return np.diff(borders).tolist()

    @classmethod
    def of(cls, dialogues: Iterable[Dialogue], opening: Sequence[int] = ()) -> Tokens:
        """Concatenate sequences in memory; they must not contain the opening tokens."""
        ids, targets, ends = array("I"), bytearray(), array("q")
        for sequence, mask in dialogues:
            ids.extend(sequence)
            targets.extend(mask)
            ends.append(len(ids))
        return cls(
            np.frombuffer(ids, np.uint32),
            np.frombuffer(ends, np.int64),
            np.frombuffer(targets, np.bool_),
            tuple(opening),
        )


class TokenStream:
    """An endless stream of sequences: each pass in another order, the same for the same seed.

    With `splits`, a sequence may be read in two parts, at another place in each pass.
    """

    def __init__(
        self,
        sequences: Tokens | Sequence[Dialogue],
        longest: int,
        seed: str,
        splits: SentenceSplits | None = None,
    ) -> None:
        self.tokens = sequences if isinstance(sequences, Tokens) else Tokens.of(sequences)
        self.starts, self.ends = self.tokens.cuts(longest)
        self.total = self.tokens.total
        self.seed = seed
        self.splits = splits
        self._passes: dict[int, Pass] = {}

    def between(self, start: int, end: int) -> list[Dialogue]:
        """Return the sequences that begin at the stream's tokens from `start` up to `end`."""
        sequences: list[Dialogue] = []
        for epoch in range(start // self.total, -(-end // self.total)):
            order, begins = self._pass(epoch)
            first, last = np.searchsorted(begins, [start - epoch * self.total, end - epoch * self.total])
            for i in order[first:last].tolist():
                sequences += self._parts(i, epoch)
        return sequences

    def _parts(self, number: int, epoch: int) -> list[Dialogue]:
        """Return a sequence whole, or in the two parts that this pass reads it in."""
        start, end = int(self.starts[number]), int(self.ends[number])
        at = None
        if self.splits is not None:
            rng = random.Random(f"{self.seed}:{epoch}:{number}")
            at = self.splits.at(self.tokens.ids[start:end], rng)
        borders = [start, end] if at is None else [start, start + at, end]
        return [self.tokens.part(*pair) for pair in pairwise(borders)]

    def _pass(self, epoch: int) -> Pass:
        """Return the order of one pass; the two latest are kept, as a step may cross from one to the next."""
        if epoch not in self._passes:
            recent = dict(list(self._passes.items())[-1:])
            self._passes = recent | {epoch: self._permutation(epoch)}
        return self._passes[epoch]

    def _permutation(self, epoch: int) -> Pass:
        count = len(self.starts)
        order = np.array(random.Random(f"{self.seed}:{epoch}").sample(range(count), count), np.int64)
        lengths = (self.ends - self.starts)[order]
        return order, np.cumsum(lengths) - lengths


def write_tokens(
    target: Path,
    pieces: Iterable[TextPiece],
    encode: Callable[[str], Sequence[int]],
    end_id: int,
    key: str,
    progress: Callable[[int], None] | None = None,
) -> Tokens:
    """Encode pieces of text to `target`, or open what was written there under the same key.

    Every document ends with `end_id`; a document's pieces are one sequence. `progress` is called with the
    number of documents done.
    """
    return _written(target, key, lambda directory: _encode(directory, pieces, encode, end_id, progress))


Source = tuple[Path, Pieces]  # written tokens, and the pieces of them that are copied


def join_tokens(target: Path, sources: Sequence[Source], key: str) -> Tokens:
    """Copy pieces one behind the other to `target`, as sequences, or open what is there under this key."""
    return _written(target, key, lambda directory: _join(directory, sources))


def _written(target: Path, key: str, write: Callable[[Path], int]) -> Tokens:
    """Return the tokens at `target`; write them first unless they are there under this key."""
    present = read_tokens(target, key)
    if present is not None:
        return present
    atomic_dirs.remove(target)
    with atomic_dirs.new_directory(target.parent) as directory:
        total = write(directory)
        atomic_dirs.write_sealed(directory / META, {"key": key, "tokens": total})
        atomic_dirs.publish(directory, target)
    written = read_tokens(target, key)
    if written is None:
        raise DamagedCheckpoint(f"{target}: the tokens just written can't be read back: run it again")
    return written


def _join(directory: Path, sources: Sequence[Source]) -> int:
    total = 0
    with (directory / IDS).open("wb") as ids_file, (directory / ENDS).open("wb") as ends_file:
        for source, pieces in sources:
            with (source / IDS).open("rb") as ids:
                for start, end in pieces.stretches():
                    ids.seek(4 * start)
                    _copy(ids, ids_file, 4 * (end - start))
            ends_file.write((total + np.cumsum(pieces.ends - pieces.starts)).astype("<i8").tobytes())
            total += pieces.total
    return total


def _copy(source: BinaryIO, target: BinaryIO, count: int) -> None:
    while count and (block := source.read(min(count, BLOCK))):
        target.write(block)
        count -= len(block)


def _encode(
    directory: Path,
    pieces: Iterable[TextPiece],
    encode: Callable[[str], Sequence[int]],
    end_id: int,
    progress: Callable[[int], None] | None,
) -> int:
    total = documents = 0
    with (directory / IDS).open("wb") as ids_file, (directory / ENDS).open("wb") as ends_file:
        for piece in pieces:
            ids = encode(piece.text)
            ids = ids if piece.goes_on else [*ids, end_id]
            ids_file.write(np.array(ids, "<u4").tobytes())
            total += len(ids)
            if not piece.goes_on:
                ends_file.write(np.array([total], "<i8").tobytes())
                documents += 1
                if progress:
                    progress(documents)
    return total


def read_tokens(target: Path, key: str) -> Tokens | None:
    """Return the tokens written under this key; None where they are missing, of another key, or damaged."""
    try:
        meta: dict[str, Any] = atomic_dirs.read_sealed(target.name, target / META)
    except DamagedCheckpoint:
        return None
    sizes = [(target / name).stat().st_size if (target / name).exists() else 0 for name in (IDS, ENDS)]
    if meta["key"] != key or sizes[0] != 4 * meta["tokens"] or not sizes[0]:
        return None
    ends = np.fromfile(target / ENDS, "<i8")
    return Tokens(np.memmap(target / IDS, "<u4", mode="r"), ends)
