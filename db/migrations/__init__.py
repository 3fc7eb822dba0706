"""Migrate the tables: numbered, append-only revisions, run by `upgrade` when a database is opened.

To change the tables: change db/schema.py, add versions/NNNN_what.py with the same change, and set
schema.REVISION to NNNN. A test compares the migrated tables with the schema.
"""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection

from db.errors import TrackerError


def config(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration; the scripts are part of the package, so it needs no file."""
    made = Config(attributes={"connection": connection})
    made.set_main_option("script_location", "db:migrations")
    return made


def upgrade(connection: Connection, where: str) -> None:
    """Run the missing revisions inside the caller's transaction: all or none."""
    try:
        command.upgrade(config(connection), "head")
    except CommandError as error:
        raise TrackerError(
            f"database {where} was written by a newer recover ({error}): upgrade it or give another --home"
        ) from error
