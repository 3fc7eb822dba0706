"""Leave the place of a home as it was where setting it up fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipelines.runs.home_database import NOTE
from pipelines.runs.home_project import DATABASE_NAME
from pipelines.runs.workspace import PRIVATE

MODELS = "models"  # folder of a home for models that were converted
# SQLite's log is not among them: while there is one, another process has the database open.
FILES = (NOTE, DATABASE_NAME, f"{DATABASE_NAME}-lock")


@contextmanager
def left_as_found(home: Path) -> Iterator[None]:
    """Remove what the block has made of a home where it fails: a new database and empty folders.

    All stays where there was a database before, which others may use, and where more than that is new:
    another process may be setting the home up.
    """
    before = _names(home)
    made = [folder for folder in (home, *home.parents) if not folder.exists()]
    try:
        yield
    except BaseException:
        with suppress(OSError):
            if DATABASE_NAME not in before:
                _remove([home / name for name in _names(home) - before])
            for folder in made:
                folder.rmdir()
        raise


def _names(home: Path) -> set[str]:
    return {path.name for path in home.iterdir()} if home.is_dir() else set()


def _remove(new: list[Path]) -> None:
    if not all(_is_bare(path) for path in new):
        return
    for path in new:
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()


def _is_bare(path: Path) -> bool:
    """Return whether a part of a home holds nothing that was put into it."""
    if path.is_dir():
        return path.name in (*PRIVATE, MODELS) and not any(path.iterdir())
    return path.name in FILES
