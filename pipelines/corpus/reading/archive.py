"""Read parts of zip archives, XML most of them, as streams that are never held as a tree.

A document type declaration is refused, and with it every entity; so is an archive that unpacks to too much.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from xml.parsers import expat

from pipelines.corpus.markup.office_files.xml_names import local
from pipelines.corpus.reading.formats import MIB, Unreadable
from pipelines.corpus.reading.plain import Source

LARGEST_PART = 512 * MIB  # of XML, unpacked
LARGEST_ARCHIVE = 4096 * MIB
BOMB_RATIO = 200  # XML shrinks 10 to 50 times
BOMB_FROM = 32 * MIB
BLOCK = 2**16


def opened(source: Source, kind: str) -> zipfile.ZipFile:
    """Open the archive; Unreadable if it is none or unpacks to more than a document would."""
    try:
        archive = zipfile.ZipFile(os.fdopen(os.dup(source.handle), "rb"))
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise Unreadable(f"not a whole {kind}: its zip archive is damaged or locked") from error
    total = sum(info.file_size for info in archive.infolist())
    packed = sum(info.compress_size for info in archive.infolist())
    if total > LARGEST_ARCHIVE or (total > BOMB_FROM and total > BOMB_RATIO * max(packed, 1)):
        raise Unreadable(f"a zip bomb: {packed:,} bytes that unpack to {total:,}")
    return archive


def blocks(archive: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    """Yield the bytes of a part, unpacked."""
    info = archive.getinfo(name)
    size = 0
    try:
        with archive.open(info) as part:
            while block := part.read(BLOCK):
                size += len(block)
                if size > LARGEST_PART or (size > BOMB_FROM and size > BOMB_RATIO * info.compress_size):
                    raise Unreadable(f"a zip bomb: {name} unpacks to more than {size // MIB} MiB")
                yield block
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError) as error:
        raise Unreadable(f"{name} in it is damaged or locked") from error


def parsed(archive: zipfile.ZipFile, name: str, handlers: object) -> Iterator[None]:
    """Feed a part to the handlers; yield after each block, so that its text can be taken."""
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = _refuse
    for event in ("StartElementHandler", "EndElementHandler", "CharacterDataHandler"):
        if hasattr(handlers, event):
            setattr(parser, event, getattr(handlers, event))
    try:
        for block in blocks(archive, name):
            parser.Parse(block, False)
            yield
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise Unreadable(f"{name} in it is not XML: {expat.ErrorString(error.code)}") from error
    except (LookupError, ValueError) as error:
        raise Unreadable(f"{name} in it names an encoding that is not known") from error
    yield


def _refuse(*_: object) -> None:
    raise Unreadable("its XML declares a document type, which such files never do")


class _Attributes:
    """Collects the attributes of one kind of element."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.found: list[dict[str, str]] = []

    def StartElementHandler(self, name: str, attributes: dict[str, str]) -> None:
        if local(name) == self.tag:
            self.found.append(
                {local(key): value for key, value in attributes.items()}
                | {key: value for key, value in attributes.items() if " " in key}
            )


def collected(archive: zipfile.ZipFile, name: str, tag: str) -> list[dict[str, str]]:
    """Return the attributes of each element of this name in a part; none where there is no such part."""
    if name not in archive.NameToInfo:
        return []
    collector = _Attributes(tag)
    for _ in parsed(archive, name, collector):
        pass
    return collector.found
