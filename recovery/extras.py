"""Say how a missing package is installed, for errors that name one: into the Python that runs."""

from __future__ import annotations

import shlex
import sys


def pip_install(*arguments: str) -> str:
    """Return the command that installs something where this process would import it from."""
    return shlex.join([sys.executable or "python", "-m", "pip", "install", *arguments])


def to_install(extra: str) -> str:
    """Return where and by which command an extra is installed."""
    return f"in the checkout: {pip_install('--constraint', 'requirements.lock', '--editable', f'.[{extra}]')}"
