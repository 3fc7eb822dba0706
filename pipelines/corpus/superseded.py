"""Leave out earlier documents that later ones have replaced: what they say is no longer true.

`superseded.txt` beside a folder of documents names them: on each line a path in an earlier folder, or a
pattern (`ada-*.md`). Midtraining keeps the list with its run; replay, rehearsal, the guard and retrieval read
none of the documents that a later run's list names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

from pipelines.corpus.manifest import FileReport, load_manifest
from pipelines.corpus.reading.superseded_list import SUPERSEDED, listed, patterns, refuse_among
from pipelines.corpus.reading.tree import shown
from recovery.printable import one_line
from recovery.storage.atomic_dirs import storage_errors, write_text

NAMED, LONGEST_NAMED = 5, 300  # files that are named, and the characters of their names
WILDCARDS = frozenset("*?[")
Line = frozenset[str]  # a line of a list, as manifests may write what it names


def keep(docs: Path, run: Path) -> None:
    """Store the list beside the documents with the run that reads them; nothing where there is none."""
    path = listed(docs)
    if path is not None:
        with storage_errors(run):
            write_text(run / SUPERSEDED, "".join(f"{line}\n" for line in patterns(path)))


def check(docs: Path) -> None:
    """Refuse a list beside the documents that cannot be read, and one among them."""
    refuse_among(docs)
    path = listed(docs)
    if path is not None:
        patterns(path)


def left_out(runs: Sequence[Path]) -> list[frozenset[int]]:
    """Return, for each run (oldest first), the numbers of its documents that a later run has superseded.

    A line that stays in the list from run to run goes on to name what it named at first. Of the runs since
    then it names a file only where a later one brings it again, as a table that returns monthly. A line that
    a run's list lacks begins anew behind it.
    """
    lists = [[_line(written) for written in patterns(run / SUPERSEDED)] for run in runs]
    if not any(lists):
        return [frozenset()] * len(runs)
    manifests = [load_manifest(run) for run in runs]
    brought = [{_path(report) for report in manifest if report.documents} for manifest in manifests]
    paths, wildcards = _by_path(_listings(lists))

    def is_left_out(report: FileReport, at: int) -> bool:
        path = _path(report)
        return any(one.leaves_out(path, at, brought) for one in (*paths.get(path, ()), *wildcards))

    return [
        frozenset(
            number for report, numbers in _numbered(manifest) if is_left_out(report, at) for number in numbers
        )
        for at, manifest in enumerate(manifests)
    ]


def files(runs: Sequence[Path], left_out: Sequence[frozenset[int]]) -> list[str]:
    """Return the paths of the files whose documents are left out of some runs, each once."""
    found: dict[str, None] = {}
    for run, without in zip(runs, left_out, strict=True):
        numbered = list(_numbered(load_manifest(run))) if without else []
        found.update((report.path, None) for report, numbers in numbered if numbers[0] in without)
    return list(found)


def in_words(files: Sequence[str]) -> str:
    """Return the names of the first files as one line, and how many more there are."""
    more = f" and {len(files) - NAMED} more" if len(files) > NAMED else ""
    return one_line(", ".join(files[:NAMED]), LONGEST_NAMED) + more


def unmatched(runs: Sequence[Path]) -> list[str]:
    """Return the lines of the last run's list that name no document of the earlier runs."""
    *earlier, last = runs
    lines = patterns(last / SUPERSEDED)
    manifests = [load_manifest(run) for run in earlier] if lines else []
    paths = {_path(report) for manifest in manifests for report in manifest if report.documents}
    return [line for line in lines if not _names_any(_line(line), paths)]


class _Listing(NamedTuple):
    """A line, and the first and the last of the runs in a row whose lists have it."""

    line: Line
    first: int
    last: int

    def leaves_out(self, path: str, at: int, brought: Sequence[Collection[str]]) -> bool:
        """Return whether the line names a file of the run with the number `at`; `brought` has the paths of
        every run."""
        replaced = at < self.first or any(path in paths for paths in brought[at + 1 : self.last + 1])
        return replaced and _names(self.line, path)


def _listings(lists: Sequence[Sequence[Line]]) -> list[_Listing]:
    last: dict[tuple[Line, int], int] = {}  # by the line and the first run
    begun: dict[Line, int] = {}
    for at, lines in enumerate(lists):
        begun = {line: begun.get(line, at) for line in lines}
        last.update(dict.fromkeys(begun.items(), at))
    return [_Listing(line, first, until) for (line, first), until in last.items()]


def _by_path(listings: Sequence[_Listing]) -> tuple[dict[str, list[_Listing]], list[_Listing]]:
    """Return the lines that name one path, by that path, and those with wildcards.

    Lists may name thousands of paths: to try each of them with each file would take minutes."""
    paths: dict[str, list[_Listing]] = {}
    wildcards = []
    for listing in listings:
        if _has_wildcards(listing.line):
            wildcards.append(listing)
            continue
        for form in listing.line:
            paths.setdefault(form, []).append(listing)
    return paths, wildcards


def _line(written: str) -> Line:
    """Return how manifests may write what a line names: what cannot be printed is escaped there."""
    composed = normalize("NFC", written)
    return frozenset((composed, shown(composed)))


def _path(report: FileReport) -> str:
    """Return a file's path in the form in which it is compared: systems write accents in two ways."""
    return normalize("NFC", report.path)


def _names(line: Line, path: str) -> bool:
    """Return whether a line is a file's path, which may hold brackets, or a pattern of it."""
    return path in line or any(fnmatchcase(path, form) for form in line)


def _names_any(line: Line, paths: set[str]) -> bool:
    found = not line.isdisjoint(paths)
    return found or (_has_wildcards(line) and any(_names(line, path) for path in paths))


def _has_wildcards(line: Line) -> bool:
    return any(not WILDCARDS.isdisjoint(form) for form in line)


def _numbered(manifest: Sequence[FileReport]) -> Iterator[tuple[FileReport, range]]:
    """Yield each file that holds documents, with their numbers in the run."""
    first = 0
    for report in manifest:
        if report.documents:
            yield report, range(first, first + report.documents)
        first += report.documents
