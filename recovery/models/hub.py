"""Find a model's files, local or on the hub, and explain errors in one line. Does not import torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recovery.errors import InputError, RecoverError
from recovery.named_paths import expanded
from recovery.storage.atomic_dirs import disk_full, full_disk
from recovery.storage.weights_hash import ADAPTER_CONFIG, require_regular

WANTED_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.tiktoken", "*.py"]
UNWANTED_FILES = ["consolidated*", "original/*", "onnx/*", "*.gguf"]
OWN_CODE = (
    "it brings its own code: read it, then set trust_remote_code in recover.yaml, or begin with "
    "`recover init --home DIR --trust-remote-code`"
)
UNAUTHORISED = 401
ANSWERS = {  # of the hub, by the class of its client's error
    "GatedRepoError": "this model is gated: accept its licence on its page, then `hf auth login`",
    "RepositoryNotFoundError": "no such model on the hub, nor a directory here: check the name, or "
    "`hf auth login` if it is private or your token has expired",
    "RevisionNotFoundError": "the model has no such revision: give a branch, tag or commit",
    "HFValidationError": "neither a directory nor a hub id (owner/name): check the path",
}


def locate(path: str, revision: str | None = None) -> tuple[Path, str | None]:
    """Return a model's directory, and the pinned commit of a hub model (None for a local one)."""
    if not path:
        raise InputError("no model is named: give a model's directory, a GGUF file or a hub id")
    local = expanded(path)
    if local.is_dir():
        if not _has_config(local):
            raise InputError(f"{path}: no config.json in it: give a model's own directory")
        for file in local.iterdir():
            if any(file.match(pattern) for pattern in WANTED_FILES):
                require_regular(file)
        return local, None
    if local.is_file():
        raise InputError(f"{path}: a file: give a model's directory, a GGUF file or a hub id")
    if names_a_place(path):
        expected = "" if local.is_absolute() else f" (expected at {local.absolute()})"
        kind = "file" if _is_gguf(path) else "model directory"
        remedy = "check the path; of a model that was moved, name the new place as model.path in recover.yaml"
        raise InputError(f"{path}: no such {kind}{expected}: {remedy}")
    return _download(path, revision)


def names_a_place(path: str) -> bool:
    """Return whether a model is named by its place on this machine, not by its hub id (owner/name)."""
    local = expanded(path)
    return local.exists() or path.startswith((".", "/", "~")) or path.count("/") > 1 or _is_gguf(path)


def _is_gguf(path: str) -> bool:
    return path.lower().endswith(".gguf")


def _download(name: str, revision: str | None) -> tuple[Path, str]:
    """Download one commit's files, or take them from the local cache; return directory and commit."""
    import huggingface_hub as hub

    wanted = f"{name} at {revision}" if revision else name
    try:
        place = hub.snapshot_download(
            name, revision=revision, allow_patterns=WANTED_FILES, ignore_patterns=UNWANTED_FILES
        )
    except Exception as error:
        if disk_full(error):
            raise full_disk(wanted) from error
        raise InputError(f"{wanted}: {_refusal(error)}") from error
    if not _has_config(Path(place)):
        raise InputError(
            f"{wanted}: no config.json in this repository: if it has GGUF files, download one "
            f"(`hf download {name} FILE.gguf`) and give that file, or give the original repository"
        )
    return Path(place), Path(place).name


def _has_config(directory: Path) -> bool:
    return any((directory / name).is_file() for name in ("config.json", ADAPTER_CONFIG))


def _refusal(error: Exception) -> str:
    """Say why a model cannot be had, and what to do."""
    if answer := ANSWERS.get(type(error).__name__):
        return answer
    if getattr(getattr(error, "response", None), "status_code", None) == UNAUTHORISED:
        return "the hub refuses your token, which may have expired: `hf auth login` anew, or unset HF_TOKEN"
    if isinstance(error, PermissionError):
        place = error.filename or "the hub's cache"
        return f"{place} may not be read and written: set HF_HOME to a folder of yours, or take it over"
    said = re.sub(r"https?://\S+", "", str(error)).strip() or type(error).__name__
    reason = re.sub(r"^Got: \w+: |\[Errno -?\d+\] ", "", said.splitlines()[0])[:200]
    remedy = "go online once, or give a model's directory"
    return f"no directory here, not in the local cache, and the hub can't be reached: {remedy} ({reason})"


@contextmanager
def explained(path: str, what: str) -> Iterator[None]:
    """Convert a library's error inside the block into a one-line error that names the model."""
    try:
        yield
    except (RecoverError, MemoryError):
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            raise
        if disk_full(error):
            raise full_disk(path) from error
        said = " ".join(re.sub(r"https?://\S+", "", str(error)).split()) or type(error).__name__
        if "trust_remote_code" in said:
            said = OWN_CODE
        raise InputError(f"{path}: this {what} can't be used: {said[:240]}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and warnings inside; restore both afterwards."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
