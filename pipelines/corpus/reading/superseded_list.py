"""Read the list of earlier documents that a folder of documents supersedes: `superseded.txt` beside it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pipelines.corpus.reading import tree
from recovery.errors import InputError

SUPERSEDED = "superseded.txt"
COMMENT = "#"


def beside(docs: Path) -> Path:
    """Return the place of the list, whether there is one or not."""
    return tree.beside(docs, SUPERSEDED)


def listed(docs: Path) -> Path | None:
    """Return the list beside a folder of documents; None where there is none."""
    path = beside(docs)
    return path if path.is_file() else None


def refuse_among(docs: Path) -> None:
    """Refuse a list at the top of the folder of documents: there it would be a document."""
    inside = docs / SUPERSEDED
    with suppress(OSError):  # a folder that cannot be entered is refused where it is read
        if inside.is_file():
            raise InputError(
                f"{inside}: the list of superseded documents lies among the documents, so it would be "
                f"trained on and not followed: move it beside the folder, to {beside(docs)}"
            )


def patterns(path: Path) -> list[str]:
    """Return the lines of a list, without comments and a leading `./`; none where the file is missing."""
    try:
        text = path.read_text(encoding="utf-8-sig") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: the list of superseded documents cannot be read: {error}") from error
    lines = (line.strip().removeprefix("./") for line in text.splitlines())
    return [line for line in lines if line and not line.startswith(COMMENT)]
