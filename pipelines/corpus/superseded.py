"""Leave out earlier documents that later ones have replaced: what they say is no longer true.

`superseded.txt` beside a folder of documents names them: on each line a path in an earlier folder, or a
pattern (`ada-*.md`). Midtraining keeps the list with its run; replay, rehearsal, the guard and retrieval read
none of the documents that a later run's list names.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from pipelines.corpus.manifest import FileReport, load_manifest
from pipelines.corpus.reading.superseded_list import SUPERSEDED, listed, patterns
from recovery.storage.atomic_dirs import storage_errors, write_text


def keep(docs: Path, run: Path) -> None:
    """Store the list beside the documents with the run that reads them; nothing where there is none."""
    path = listed(docs)
    if path is not None:
        with storage_errors(run):
            write_text(run / SUPERSEDED, "".join(f"{line}\n" for line in patterns(path)))


def check(docs: Path) -> None:
    """Refuse a list beside the documents that cannot be read."""
    path = listed(docs)
    if path is not None:
        patterns(path)


def left_out(runs: Sequence[Path]) -> list[frozenset[int]]:
    """Return, for each run (oldest first), the numbers of its documents that a later run has superseded.

    A line that stays in the list from run to run goes on to name what it named at first. It names documents
    of the runs since then only where a later run brings another edition, as of a table that returns monthly.
    """
    lists = [patterns(run / SUPERSEDED) for run in runs]
    if not any(lists):
        return [frozenset()] * len(runs)
    manifests = [load_manifest(run) for run in runs]
    listings = _listings(lists)
    return [
        _numbers(manifest, [line for line, listing in listings.items() if listing.acts(line, at, manifests)])
        for at, manifest in enumerate(manifests)
    ]


def unmatched(runs: Sequence[Path]) -> list[str]:
    """Return the lines of the last run's list that name no document of the earlier runs."""
    *earlier, last = runs
    lines = patterns(last / SUPERSEDED)
    manifests = [load_manifest(run) for run in earlier] if lines else []
    return [line for line in lines if not any(_holds(manifest, line) for manifest in manifests)]


class _Listing(NamedTuple):
    """The first and the last run whose lists have a line."""

    first: int
    last: int

    def acts(self, line: str, at: int, manifests: Sequence[Sequence[FileReport]]) -> bool:
        """Return whether the line names documents of the run with the number `at`."""
        later = manifests[at + 1 : self.last + 1]
        return at < self.first or any(_holds(manifest, line) for manifest in later)


def _listings(lists: Sequence[Sequence[str]]) -> dict[str, _Listing]:
    found: dict[str, _Listing] = {}
    for at, lines in enumerate(lists):
        for line in lines:
            found[line] = _Listing(found[line].first if line in found else at, at)
    return found


def _holds(manifest: Sequence[FileReport], line: str) -> bool:
    return any(report.documents and _names(line, report) for report in manifest)


def _names(line: str, report: FileReport) -> bool:
    """Return whether a line is a file's path, which may hold brackets, or a pattern of it."""
    return line == report.path or fnmatchcase(report.path, line)


def _numbers(manifest: Sequence[FileReport], lines: Sequence[str]) -> frozenset[int]:
    """Return the numbers of a run's documents whose files the lines name."""
    numbers: set[int] = set()
    first = 0
    for report in manifest if lines else ():
        if any(_names(line, report) for line in lines):
            numbers.update(range(first, first + report.documents))
        first += report.documents
    return frozenset(numbers)
