"""Leave the place of a home as it was where setting it up fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from db.errors import TrackerError
from db.reads import queries
from db.schema import DEFAULT_PROJECT
from db.session import Database, file_of
from pipelines.runs.home_database import NOTE
from pipelines.runs.home_project import DATABASE_NAME, PROJECT_NAME
from pipelines.runs.workspace import PRIVATE

MODELS = "models"  # folder of a home for models that were converted
# SQLite's log is not among them: while there is one, another process has the database open.
FILES = (NOTE, PROJECT_NAME, DATABASE_NAME, f"{DATABASE_NAME}-lock")


@contextmanager
def left_as_found(home: Path, db_url: str | None) -> Iterator[None]:
    """Remove what the block has made of a home where it fails: a new database, also one that is named, and
    empty folders.

    All stays where there was a database before, which others may use, and where more than that is new:
    another process may be setting the home up.
    """
    before, named = _names(home), _new_file(db_url)
    made = [folder for folder in (home, *home.parents) if not folder.exists()]
    try:
        yield
    except BaseException:
        with suppress(OSError, TrackerError):
            if named:
                _remove_unused(named)
        with suppress(OSError):
            if DATABASE_NAME not in before:
                _remove([home / name for name in _names(home) - before])
            for folder in made:
                folder.rmdir()
        raise


def _new_file(db_url: str | None) -> Path | None:
    """Return the file of a database that is named and not there yet."""
    file = file_of(db_url) if db_url else None
    return file if file and not file.exists() else None


def _remove_unused(file: Path) -> None:
    """Remove a database that no process has open and in which no home has recorded its clean model."""
    if Path(f"{file}-wal").exists():
        return
    database = Database.open(file, create=False)
    try:
        unused = queries.projects(database) == [DEFAULT_PROJECT] and not queries.aliases(database)
    finally:
        database.close()
    if unused:
        for path in (file, Path(f"{file}-lock")):
            path.unlink(missing_ok=True)


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
