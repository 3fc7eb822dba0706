"""Stream text in blocks, so that a file of any size needs the memory of a few blocks.

A small file is read at once. A larger one is read twice: once for its hash and its encoding, once for its
text; it is kept in memory in between while that is little.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipelines.corpus.reading import encodings
from pipelines.corpus.reading.formats import MIB, Limits, Unreadable
from pipelines.corpus.reading.site_markup import read_markup

BLOCK = 2**20
AT_ONCE = 4 * MIB  # bytes, unpacked, of a file that is read at once
KEPT = 16 * MIB  # bytes of a file that are kept between the two passes
PIECE = 2**20  # characters: a longer text is given in pieces that end with a paragraph
BOMB_RATIO = 200  # times that gzip may shrink a text; real text hardly reaches 20
BOMB_FROM = 64 * MIB


@dataclass(frozen=True)
class TextPiece:
    """A document's text, or a part of it that goes on in the next piece."""

    text: str
    goes_on: bool = False


@dataclass
class FileFacts:
    """What reading a file tells about it, beside its text."""

    sha256: str | None = None
    encoding: str | None = None
    note: str | None = None
    markup: int = 0  # characters that were left out, as only a site's tools read them

    def add_note(self, note: str) -> None:
        self.note = f"{self.note}; {note}" if self.note else note


class Source:
    """An open file's bytes, unpacked; they can be read several times.

    `context` is what its parser needs to know of other files.
    """

    def __init__(self, handle: int, packed: bool, limits: Limits, context: str = "") -> None:
        self.handle = handle
        self.context = context
        self.packed = packed
        self.limits = limits
        self.size = os.fstat(handle).st_size
        self._kept: list[bytes] | None = None

    def blocks(self) -> Iterator[bytes]:
        """Yield the unpacked bytes."""
        if self._kept is not None:
            yield from self._kept
        elif self.packed:
            yield from self._unpacked()
        else:
            yield from self.raw()

    def raw(self) -> Iterator[bytes]:
        """Yield the bytes as they are on the disk."""
        offset = 0
        while block := os.pread(self.handle, BLOCK, offset):
            offset += len(block)
            yield block

    def sha256(self) -> str:
        """Return the hash of the bytes as they are on the disk."""
        hashed = hashlib.sha256()
        for block in self.raw():
            hashed.update(block)
        return hashed.hexdigest()

    def at_once(self, facts: FileFacts) -> bytes | None:
        """Return all of a small file, hashed and unpacked; None for a larger one, or one hard to unpack."""
        if self.size > AT_ONCE:
            return None
        data = b"".join(self.raw())
        facts.sha256 = hashlib.sha256(data).hexdigest()
        return _unzipped(data) if self.packed else data

    def first_pass(self, facts: FileFacts) -> Iterator[bytes]:
        """Yield the unpacked bytes and hash the file; the hash is complete when all blocks were taken."""
        hashed = hashlib.sha256()
        if self.packed:
            facts.sha256 = self.sha256()
        kept: list[bytes] | None = []
        size = 0
        for block in self.blocks():
            size += len(block)
            if not self.packed:
                hashed.update(block)
            if size > KEPT:
                kept = None
            if kept is not None:
                kept.append(block)
            yield block
        facts.sha256 = facts.sha256 or hashed.hexdigest()
        self._kept = kept

    def _unpacked(self) -> Iterator[bytes]:
        size = 0
        largest = self.limits.largest_text_mib * MIB
        os.lseek(self.handle, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self.handle), "rb") as file, gzip.GzipFile(fileobj=file) as unpacked:
            try:
                while block := unpacked.read(BLOCK):
                    size += len(block)
                    if size > largest:
                        raise Unreadable(f"unpacks to more than {self.limits.largest_text_mib} MiB")
                    if size > BOMB_FROM and size > BOMB_RATIO * self.size:
                        raise Unreadable(f"unpacks to more than {BOMB_RATIO} times its size: a bomb")
                    yield block
            except (OSError, EOFError, zlib.error) as error:
                raise Unreadable(f"not whole gzip: {' '.join(str(error).split())}") from error


def read_text(source: Source, facts: FileFacts, suffix: str) -> Iterator[TextPiece]:
    """Yield a text file as one document, without what only the tools read that its suffix names."""
    text = _Counted(characters(source, facts))
    kept = 0
    for piece in pieces(read_markup(text, suffix)):
        kept += len(piece.text)
        yield piece
    facts.markup = max(0, text.count - kept)


class _Counted:
    """Parts of a text, and how many characters they had."""

    def __init__(self, parts: Iterable[str]) -> None:
        self._parts = parts
        self.count = 0

    def __iter__(self) -> Iterator[str]:
        for part in self._parts:
            self.count += len(part)
            yield part


def characters(source: Source, facts: FileFacts) -> Iterator[str]:
    """Yield the decoded text in blocks; fill in the facts."""
    data = source.at_once(facts)
    text = None if data is None else encodings.plain_utf8(data)
    if text is not None:
        facts.encoding = "utf-8"
        for at in range(0, len(text), BLOCK):
            yield text[at : at + BLOCK]
        return
    facts.sha256 = None
    encoding = encodings.find(source.first_pass(facts))
    facts.encoding = encoding.name
    if encoding.note:
        facts.add_note(encoding.note)
    if facts.sha256 is None:  # the encoding was clear from the beginning: hash the rest
        for _ in source.first_pass(facts):
            pass
    yield from encodings.decoded(source.blocks, encoding)


def _unzipped(data: bytes) -> bytes | None:
    """Return what one whole gzip member holds, if that is little; all else is unpacked in blocks."""
    unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        unpacked = unpacking.decompress(data, AT_ONCE)
    except zlib.error:
        return None
    return unpacked if unpacking.eof and not unpacking.unused_data else None


def pieces(parts: Iterable[str]) -> Iterator[TextPiece]:
    """Join parts of one document, and cut them into pieces of about PIECE characters."""
    held: list[str] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size > PIECE:
            text = "".join(held)
            while len(text) > PIECE:
                cut = _border(text)
                yield TextPiece(text[:cut], goes_on=True)
                text = text[cut:]
            held = [text]
            size = len(text)
    yield TextPiece("".join(held))


def _border(text: str) -> int:
    """Return the last end of a paragraph, else of a line, else of a word, before PIECE characters."""
    for mark in ("\n\n", "\n", " "):
        at = text.rfind(mark, PIECE // 2, PIECE)
        if at >= 0:
            return at + len(mark)
    return PIECE
