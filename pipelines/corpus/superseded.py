"""Leave out earlier documents that later ones have replaced: what they say is no longer true.

`superseded.txt` beside a folder of documents names them: on each line a path in an earlier folder, or a
pattern (`ada-*.md`). Midtraining keeps the list with its run; replay, rehearsal, the guard and retrieval read
none of the documents that a later run's list names.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from pipelines.corpus.manifest import load_manifest
from pipelines.corpus.reading.superseded_list import SUPERSEDED, listed, patterns
from recovery.storage.atomic_dirs import storage_errors, write_text


def keep(docs: Path, run: Path) -> None:
    """Store the list beside the documents with the run that reads them; nothing where there is none."""
    path = listed(docs)
    if path is not None:
        with storage_errors(run):
            write_text(run / SUPERSEDED, "".join(f"{line}\n" for line in patterns(path)))


def left_out(runs: Sequence[Path]) -> list[frozenset[int]]:
    """Return, for each run (oldest first), the numbers of its documents that a later run has superseded."""
    found: list[frozenset[int]] = []
    later: list[str] = []
    for run in reversed(runs):
        found.append(_named(run, later))
        later += patterns(run / SUPERSEDED)
    return found[::-1]


def _named(run: Path, later: Sequence[str]) -> frozenset[int]:
    """Return the numbers of a run's documents whose files the patterns name."""
    numbers: set[int] = set()
    first = 0
    for report in load_manifest(run) if later else ():
        if any(fnmatchcase(report.path, pattern) for pattern in later):
            numbers.update(range(first, first + report.documents))
        first += report.documents
    return frozenset(numbers)
