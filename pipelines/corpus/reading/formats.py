"""Which suffix is read as what, and the limits on a file."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True)
class Format:
    """`here` formats are streamed in this process; the others are parsed by a limited one."""

    name: str
    suffixes: tuple[str, ...]
    here: bool
    packable: bool = False  # also read with .gz behind the suffix


FORMATS = (
    Format("text", (".txt", ".text", ".md", ".markdown", ".rst"), here=True, packable=True),
    Format("jsonl", (".jsonl", ".ndjson"), here=True, packable=True),
    Format("csv", (".csv", ".tsv"), here=True, packable=True),
    Format("html", (".html", ".htm", ".xhtml"), here=False, packable=True),
    Format("pdf", (".pdf",), here=False),
    Format("docx", (".docx",), here=False),
    Format("pptx", (".pptx",), here=False),
)
BY_SUFFIX = {suffix: format for format in FORMATS for suffix in format.suffixes}
KINDS = "txt, md, html, pdf, docx, pptx, jsonl or csv"


@dataclass(frozen=True)
class Limits:
    """What one file may cost; beyond it the file is skipped, with the limit as the reason."""

    largest_text_mib: int = 4096  # of text kinds, unpacked: they are streamed
    largest_file_mib: int = 256  # of html, pdf, docx and pptx, on the disk
    seconds_per_file: int = 60  # of processor time for a file that is parsed by a limited process
    memory_mib: int = 1024  # of such a process
    workers: int = 0  # such processes; 0: as many as there are cores, at most 4
    keep_near_duplicates: bool = True  # they are reported all the same


class Unreadable(Exception):
    """A file that is skipped; the message is the reason in its manifest row."""


def format_of(name: str) -> tuple[Format | None, bool]:
    """What a file is by its name, and whether it is packed with gzip."""
    parts = name.lower().rsplit(".", 2)
    packed = len(parts) == 3 and parts[2] == "gz"
    suffix = f".{parts[1]}" if packed else f".{parts[-1]}" if len(parts) > 1 else ""
    found = BY_SUFFIX.get(suffix)
    if packed and found is not None and not found.packable:
        found = None
    return found, packed


def unknown(name: str) -> str:
    """The reason for a file of no kind that is read."""
    stem, dot, suffix = name.rpartition(".")
    packed = suffix.lower() == "gz" and "." in stem
    suffix = f"{stem.rpartition('.')[2]}.{suffix}" if packed else suffix
    return f"kind .{suffix[:40]} is not read" if stem and dot else "kind without suffix is not read"
