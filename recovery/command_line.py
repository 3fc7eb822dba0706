"""Write the `recover` commands that messages give to go on with."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

DB_VARIABLE = "RECOVER_DB_URL"  # of the environment: the database of every command
Command = Callable[..., str]  # writes a command of these words


def command(home: Path | None, *words: str, database: str | None = None) -> str:
    """Return a command as it is typed; home and database are named unless the command finds them (None)."""
    named = [*(["--home", str(home)] if home else []), *(["--db", database] if database else [])]
    return shlex.join(["recover", *named, *words])


def unnamed(*words: str) -> str:
    """Return a command that finds its home."""
    return command(None, *words)
