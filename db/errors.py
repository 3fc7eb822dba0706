"""Define the tracker's errors, as one tree; a message is one line: what, where, what to do.

TrackerError      the database refused the operation          exit code 1
├── Unreachable   the server does not answer, refuses the user or has no such database
├── NotFound      no such run, checkpoint, cycle or alias      exit code 2
└── BadRequest    a value or a query that cannot be accepted   exit code 2
"""

from __future__ import annotations

import re

from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from db.redact import redact_error


class TrackerError(Exception):
    """The database could not be opened, read or written. The message holds no secret."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(redact_error(message))


class Unreachable(TrackerError):
    """A PostgreSQL server does not answer, refuses the user or the password, or has no such database."""


class NotFound(TrackerError):
    """A run, checkpoint, cycle or alias is not recorded."""

    exit_code = 2


class BadRequest(TrackerError):
    """The tracker refused a value or a query; nothing was changed."""

    exit_code = 2


# Prefix of the driver's code (SQLite error name or PostgreSQL SQLSTATE) -> cause and remedy.
MEANINGS: dict[str, tuple[str, str]] = {
    "SQLITE_CONSTRAINT_FOREIGNKEY": ("a row refers to something that is not recorded", "record that first"),
    "SQLITE_CANTOPEN": ("cannot be opened", "check that the folder exists and is writable"),
    "SQLITE_READONLY": ("is not writable", "check the permissions or give another --home"),
    "SQLITE_CORRUPT": ("is damaged", "restore a copy or give another --home"),
    "SQLITE_NOTADB": ("is not a SQLite database", "move the file away or give another --db"),
    "SQLITE_IOERR": ("cannot be read or written (disk full or failing)", "free some space and run again"),
    "SQLITE_FULL": ("has no room left (disk full)", "free some space and run again"),
    "SQLITE_BUSY": ("is locked by another program", "close it and run again"),
    "23503": ("a row refers to something that is not recorded", "record that first"),
    "25006": ("only reading is allowed here", "write through recover's commands"),
    "28": ("refuses this password or user", "check the database URL"),
    "3D": ("does not exist on the server", "create it first (createdb)"),
    "42501": ("refuses this user", "grant CREATE and write rights on the schema"),
    "55P03": ("is locked by another program", "end it or wait, then run again"),
    "53100": ("has no room left (disk full)", "free some space on the server"),
    "57014": ("took too long and was stopped", "ask for less"),
}


# What a server says on refusing a connection -> its SQLSTATE, which the driver does not pass on then.
REFUSALS = {
    re.compile(
        r'FATAL: +(.*authentication failed for user|role ".*" (does not exist|is not permitted to log in)'
        r"|no pg_hba.conf entry|no such user)"
    ): "28000",
    re.compile(r"no password supplied"): "28000",
    re.compile(r'FATAL: +(database ".*" does not exist|no such database)'): "3D000",
}
AWAY = ("08", "57P01", "57P02", "57P03")  # SQLSTATEs: connection lost; the server ends, crashed, or starts


def driver_code(error: BaseException) -> str:
    """Return SQLite's error name or PostgreSQL's SQLSTATE; empty where there is none."""
    cause = getattr(error, "orig", None) or error
    given = getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None)
    return given or next((code for said, code in REFUSALS.items() if said.search(str(cause))), "")


def is_unreachable(error: BaseException) -> bool:
    """Return whether a PostgreSQL server cannot be reached, or is about to end or to start."""
    code = driver_code(error)
    refused = isinstance(error, OperationalError) and "psycopg" in type(error.orig).__module__
    return code.startswith(AWAY) if code else refused  # a refused connection has no SQLSTATE


def explain(error: BaseException, where: str) -> TrackerError:
    """Format an error of the driver, SQLAlchemy or the file system as one line."""
    code = driver_code(error)
    for prefix in sorted(MEANINGS, key=len, reverse=True):
        if code.startswith(prefix):
            what, remedy = MEANINGS[prefix]
            kind = Unreachable if code.startswith(("28", "3D")) else TrackerError
            return kind(f"database {where} {what}: {remedy}")
    if isinstance(error, DBAPIError) and not code and "psycopg" in type(error.orig).__module__:
        return Unreachable(
            f"database {where} cannot be reached ({first_line(error)}): check the URL and the server"
        )
    if isinstance(error, OverflowError) or code == "22003":  # PostgreSQL: out of range
        return BadRequest("a number is larger than any that is recorded: give a smaller one")
    if isinstance(error, OSError):
        return TrackerError(
            f"database {where} cannot be used ({error.strerror}): check its folder or give another --home"
        )
    return TrackerError(f"database {where} failed ({first_line(error)}): check it or give another --home")


def first_line(error: BaseException) -> str:
    """Return the driver's message without SQLAlchemy's echo of the SQL."""
    cause = getattr(error, "orig", None) if isinstance(error, SQLAlchemyError) else error
    lines = str(cause or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
