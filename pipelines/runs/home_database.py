"""Which database is a home's: the file in it, or the one that it was made with, which it notes."""

from __future__ import annotations

import os
from pathlib import Path

from db.errors import BadRequest, Unreachable
from db.session import Database, file_of, hosts_of, name_the_same, without_password
from pipelines.runs.home_project import CHECKPOINTS, DATABASE_NAME, is_its_own, works_in
from recovery.command_line import DB_VARIABLE, command
from recovery.errors import InputError
from recovery.launch_env import machines
from recovery.loopback import is_loopback
from recovery.named_paths import expanded

NOTE = "database.url"  # in a home whose database lies elsewhere


def opened(home: Path, db_url: str | None, *, create: bool, implicit: bool) -> Database:
    """Open the database that is named, else the home's own; say what to do where that is gone."""
    moved = new_place(None if implicit else home)
    if lost := lost_database(home, db_url):
        raise InputError(
            f"{home}: its database {lost} is missing: bring it back, {moved}, or begin anew with another "
            "--home"
        )
    if implicit and db_url is None:
        refuse_elsewhere(home)
    database = db_url or database_of(home)
    if not create and db_url is None and "://" not in database and not Path(database).exists():
        raise uninitialised(home, implicit=implicit)
    _require_server(database)
    try:
        return Database.open(database, create=create)
    except Unreachable as error:
        if db_url is not None:
            raise
        raise Unreachable(f"{error}, or {moved}") from error


def refuse_elsewhere(home: Path) -> None:
    """Refuse a database on another machine for a home that was not named: a password may be sent there."""
    noted = remembered_database(home)
    if noted and (elsewhere := _elsewhere(noted)):
        raise InputError(
            f"{home / NOTE} names a database on {elsewhere[0]}, and this home was not named: check it, then "
            f"give --home {home}"
        )


def to_name(home: Path, db_url: str | None, *, implicit: bool) -> str | None:
    """Return the database that was named where a command does not open it unnamed; None where it does, as
    in a shell whose environment names it."""
    shell = os.environ.get(DB_VARIABLE)
    if db_url is None or db_url == shell:
        return None
    if shell:
        return db_url
    own = database_of(home)
    try:
        found = name_the_same(own, db_url) and not (implicit and _elsewhere(own))
    except BadRequest:  # what the home notes cannot be read
        return db_url
    return None if found else db_url


def typed(home: Path, named: str | None, *words: str, implicit: bool) -> str:
    """Return a command as typed for a home and the database that `to_name` gives, without a password."""
    database = without_password(named) if named else None
    return command(None if implicit else home, *words, database=database)


def _elsewhere(database: str) -> list[str]:
    return [host for host in hosts_of(database) if not is_loopback(host)]


def new_place(home: Path | None) -> str:
    """Return how to note the new place of a home's database; None for a home that a command finds."""
    return f"name its new place with `{command(home, '--db', 'NEW', 'init')}`"


def uninitialised(home: Path, *, implicit: bool) -> InputError:
    if home.is_file():
        return InputError(f"--home {home} is a file: give a folder")
    first = command(None if implicit else home, "init")
    otherwise = ", or give --home" if implicit else ""
    return InputError(f"{home} is not initialised: run `{first}` first{otherwise}")


def _require_server(database: str) -> None:
    """Refuse a file that processes on several machines would open: the locks of SQLite do not hold there."""
    if machines() > 1 and not database.startswith("postgres"):
        raise InputError(
            f"processes on several machines cannot share a SQLite file: set {DB_VARIABLE} to the URL of a "
            "PostgreSQL database, and run `recover init` with it once"
        )


def database_of(home: Path) -> str:
    """Return a home's database: the one it was created with, else a file in it."""
    return remembered_database(home) or str(home / DATABASE_NAME)


def remembered_database(home: Path) -> str | None:
    try:
        return (home / NOTE).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def lost_database(home: Path, db_url: str | None) -> Path | None:
    """Return the file of the database that a home was made with, where that file is gone; None where another
    database is named."""
    noted = remembered_database(home)
    is_new = noted is None and not any((home / CHECKPOINTS).glob("*"))
    if is_new or "://" in (noted or ""):
        return None
    own = file_of(noted or home / DATABASE_NAME)
    named = db_url is None or file_of(db_url) == own
    return own if named and own and not own.exists() else None


def remember(home: Path, db_url: str | None) -> None:
    """Note the database that a new home is made with."""
    if db_url and not remembered_database(home) and not (home / DATABASE_NAME).exists():
        _note(home, db_url)


def replace_note(home: Path, db_url: str, db: Database) -> bool:
    """Note the database that is named in place of the one that is noted; return whether that is another.

    One in which none of the home's runs is recorded is not where its own has moved.
    """
    noted = remembered_database(home)
    if noted is None or name_the_same(noted, db_url) or not works_in(home, db):
        return False
    if is_its_own(home, db):
        (home / NOTE).unlink()
    else:
        _note(home, db_url)
    return True


def require_its_runs(home: Path, db: Database) -> None:
    """Refuse to take a project in another database than the home notes, unless it records the home's runs:
    the home would lose the project that it has in its own."""
    noted = remembered_database(home)
    if noted and not name_the_same(noted, db.address) and not works_in(home, db):
        raise InputError(
            f"{db.where} records none of the runs of {home}, whose database is {without_password(noted)}: "
            "give that one, or bring its records there first; to begin anew, give another --home"
        )


def _note(home: Path, db_url: str) -> None:
    """Note a home's database as it was named, readable by its owner alone, as a URL may hold a password."""
    # A path stays one through a link, as that may point to another disk later.
    place = file_of(db_url) or db_url if "://" in db_url else expanded(db_url).absolute()
    kept = home / NOTE
    # "w": a kill may have left the file empty.
    with open(kept, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as noted:
        noted.write(f"{place}\n")
