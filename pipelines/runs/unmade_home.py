"""Leave the place of a home as it was where setting it up fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from db.errors import TrackerError
from db.reads import queries
from db.schema import DEFAULT_PROJECT
from db.session import Database, file_of
from pipelines.runs.home_database import NOTE
from pipelines.runs.home_project import DATABASE_NAME
from pipelines.runs.workspace import PRIVATE

MODELS = "models"  # folder of a home for models that were converted
# SQLite's log is not among them: while there is one, another process has the database open.
FILES = (NOTE, DATABASE_NAME, f"{DATABASE_NAME}-lock")


@contextmanager
def left_as_found(home: Path, database: str | None = None) -> Iterator[None]:
    """Remove what the block has made of a home where it fails: a new database and empty folders.

    `database` is the one that was named, which may lie elsewhere. All stays where there was a database
    before, which others may use, and where more than that is new: another process may be setting the home up.
    """
    before = _names(home)
    named = _new_file(database)
    places = [home / DATABASE_NAME, *([named] if named else [])]
    made = [folder for place in places for folder in place.parents if not folder.exists()]
    try:
        yield
    except BaseException:
        with suppress(OSError, TrackerError):
            new = [home / name for name in _names(home) - before - _names_of(named, home)]
            if DATABASE_NAME not in before and _remove(new):
                _remove_unused(named)
        _remove_empty(made)
        raise


def _names(home: Path) -> set[str]:
    return {path.name for path in home.iterdir()} if home.is_dir() else set()


def _new_file(database: str | None) -> Path | None:
    """Return the file of a named database, if it is still to be made."""
    file = None
    with suppress(TrackerError):  # opening it says what is wrong
        file = file_of(database) if database else None
    return file if file and not file.exists() else None


def _names_of(file: Path | None, home: Path) -> set[str]:
    """Return the names of a named database and its lock, if they lie in the home itself."""
    return {file.name, f"{file.name}-lock"} if file and file.parent == home.resolve() else set()


def _remove(new: list[Path]) -> bool:
    """Remove the new parts of a home; return whether there was nothing else."""
    if not all(_is_bare(path) for path in new):
        return False
    for path in new:
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    return True


def _is_bare(path: Path) -> bool:
    """Return whether a part of a home holds nothing that was put into it."""
    if path.is_dir():
        return path.name in (*PRIVATE, MODELS) and not any(path.iterdir())
    return path.name in FILES


def _remove_unused(file: Path | None) -> None:
    """Remove a database file that no process has open and no home works in."""
    if file is None or not file.exists() or file.with_name(f"{file.name}-wal").exists():
        return
    with closing(Database.open(file, create=False)) as db:
        used = queries.projects(db) != [DEFAULT_PROJECT] or queries.project_home(db, DEFAULT_PROJECT)
    if not used:
        file.unlink()
        file.with_name(f"{file.name}-lock").unlink(missing_ok=True)


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
