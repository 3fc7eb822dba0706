"""Write the `recover` commands that messages give to go on with."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

DB_VARIABLE = "RECOVER_DB_URL"  # of the environment: the database of every command
Command = Callable[..., str]  # writes a command of these words


def command(home: Path | None, *words: str) -> str:
    """Return a command as it is typed; the home is named unless the command finds it (None)."""
    return shlex.join(["recover", *(["--home", str(home)] if home else []), *words])


def unnamed(*words: str) -> str:
    """Return a command that finds its home."""
    return command(None, *words)
