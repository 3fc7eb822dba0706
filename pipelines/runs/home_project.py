"""Which project of a database is a home's: of the homes that share one, each has its own.

A database that lies in a home is that home's alone, wherever the folder is moved.
"""

from __future__ import annotations

import socket
from pathlib import Path

from db.reads import queries
from db.schema import DEFAULT_PROJECT
from db.session import Database
from db.values import storable
from db.writes.tracker import Tracker
from recovery.storage import atomic_dirs

DATABASE_NAME = "recover.db"
PROJECT_NAME = "project"  # the file in a home that names its project, and the place recorded for it
CHECKPOINTS, RUNS = "checkpoints", "runs"  # folders of a home


def project_of(home: Path, db: Database) -> str:
    """Return the project that a home works in."""
    return _noted(home, db) or DEFAULT_PROJECT


def is_anothers(home: Path, db: Database) -> bool:
    """Return whether this home works in `default` for want of a project, and that one is another home's.

    Homes of earlier versions have noted nothing: they are known by their runs. Containers may have the same
    host name and folder, so that the place counts only where there is no run yet.
    """
    if copied_from(home, db):
        return True
    if is_its_own(home, db) or _noted(home, db):
        return False
    if runs := queries.run_ids(db):
        return not _holds_one_of(home, runs)
    recorded = queries.project_home(db, DEFAULT_PROJECT)
    return recorded not in (None, _place(home)) or _lacks_base(home, db)


def copied_from(home: Path, db: Database) -> Path | None:
    """Return the home that this one is a copy of, as long as that works in the same project.

    A home that was moved is no longer where it took its project.
    """
    file = home / PROJECT_NAME
    if _named(home, db) is None:
        return None
    place = _note_of(file)[1]
    there = Path(place.partition(":")[2], PROJECT_NAME)
    try:
        copied = bool(place) and not there.samefile(file) and there.read_bytes() == file.read_bytes()
    except OSError:  # gone, or not to be read
        return None
    return there.parent if copied else None


def settle(home: Path, tracker: Tracker, *, new: bool) -> Tracker:
    """Return the tracker of this home's own project; in a shared database take one, unless that was done."""
    db = tracker.db
    if is_its_own(home, db):
        return tracker
    if new and _lacks_base(home, db):  # the project of another home, or of one that was deleted
        return _take(home, tracker)
    if _noted(home, db):
        return tracker
    recorded = None if is_anothers(home, db) else tracker.record_first_home(_place(home))
    if recorded is None or is_anothers(home, db):  # another home may just have come first
        return _take(home, tracker)
    _note(home, DEFAULT_PROJECT, recorded)
    return tracker


def is_its_own(home: Path, db: Database) -> bool:
    """Return whether a database is the one that lies in a home."""
    return db.path == (home / DATABASE_NAME).resolve()


def _noted(home: Path, db: Database) -> str | None:
    """Return the project that the home's file names, unless the home is a copy."""
    return None if copied_from(home, db) else _named(home, db)


def _named(home: Path, db: Database) -> str | None:
    """Return the project that the home's file names, unless that is one of another database.

    The place is compared as it was recorded, not with where the home is now: homes are moved, and a
    container has another host name each time. Earlier versions wrote no place.
    """
    file = home / PROJECT_NAME
    if is_its_own(home, db) or not file.is_file():
        return None
    name, place = _note_of(file)
    same = queries.project_home(db, name) == place if place else name in queries.projects(db)
    return name if same else None


def _note_of(file: Path) -> tuple[str, str]:
    """Return a project, and the place recorded for it, as a home notes them."""
    name, _, place = file.read_text(encoding="utf-8").removesuffix("\n").partition("\n")
    return name, place


def _take(home: Path, tracker: Tracker) -> Tracker:
    """Make a project for a further home, named after its folder, with its own names and cycle numbers."""
    folder = home.absolute()
    wanted = folder.parent.name if folder.name.startswith(".") else folder.name
    own = tracker.new_project(storable(" ".join(wanted.split())) or "home", _place(home))
    _note(home, own.db.project, _place(home))
    return own


def _note(home: Path, project: str, place: str) -> None:
    with atomic_dirs.storage_errors(home):
        atomic_dirs.write_text(home / PROJECT_NAME, f"{project}\n{place}\n")


def _place(home: Path) -> str:
    return storable(f"{socket.gethostname()}:{home.absolute()}")


def works_in(home: Path, db: Database) -> bool:
    """Return whether a database records one of the home's runs, if it has any."""
    folder = home / RUNS
    has_runs = folder.is_dir() and any(folder.iterdir())
    return not has_runs or _holds_one_of(home, queries.run_ids(db))


def _holds_one_of(home: Path, runs: set[str]) -> bool:
    """Return whether the folder of one of these runs is in the home."""
    folder = home / RUNS
    return folder.is_dir() and any(run.name in runs for run in folder.iterdir())


def _lacks_base(home: Path, db: Database) -> bool:
    """Return whether the project has a clean model that is not in this home."""
    named = {row["name"]: row["checkpoint_id"] for row in queries.aliases(db)}
    return "base" in named and not (home / CHECKPOINTS / named["base"]).is_dir()
