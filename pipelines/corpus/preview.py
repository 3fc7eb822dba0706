"""What training would see of a folder, before anything is trained: `recover corpus`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pipelines.config.settings import MidtrainConfig
from pipelines.corpus import documents
from pipelines.corpus.documents import FileReport
from pipelines.corpus.reading.formats import Limits
from pipelines.corpus.reading.plain import Piece

CHARACTERS_PER_TOKEN = 4  # a guess, where no tokenizer is asked
SHOWN, SHOWN_LENGTH = 5, 120  # documents whose beginning is shown, and how much of it
Encode = Callable[[str], Sequence[int]]


@dataclass
class Preview:
    """A folder's manifest, and how its first documents begin."""

    folder: Path
    manifest: list[FileReport] = field(default_factory=list)
    first: list[dict[str, str]] = field(default_factory=list)
    counted: bool = False  # tokens are the tokenizer's, not a guess

    @property
    def tokens(self) -> int:
        return sum(report.tokens or 0 for report in self.manifest)


def preview(
    folder: Path,
    limits: Limits | None = None,
    *,
    strict: bool = False,
    encode: Encode | None = None,
    progress: documents.Progress | None = None,
) -> Preview:
    """Reads the folder as midtraining would, and keeps nothing but the counts."""
    made = Preview(folder, counted=encode is not None)
    begun: list[str] = []
    tokens = 0
    for found in documents.read_folder(folder, limits, strict=strict, progress=progress):
        if isinstance(found, Piece):
            begun += [found.text[: 4 * SHOWN_LENGTH]] if len(begun) < SHOWN else []
            tokens += len(encode(found.text)) if encode else -(-len(found.text) // CHARACTERS_PER_TOKEN)
            tokens += not found.goes_on
            continue
        read = found.status == "read"
        made.manifest.append(replace(found, tokens=tokens) if read else found)
        if read:
            made.first += [{"path": found.path, "text": text} for text in begun[: SHOWN - len(made.first)]]
        begun, tokens = [], 0
    documents.refuse_nothing(folder, made.manifest)
    return made


def by_kind(made: Preview) -> list[dict[str, Any]]:
    """A row for each kind of file, and one for all."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for report in made.manifest:
        for kind in (report.kind or "other", "total"):
            rows[kind].update(_counts(report))
    total = rows.pop("total")
    return [{"kind": kind, **counts} for kind, counts in [*sorted(rows.items()), ("total", total)]]


def _counts(report: FileReport) -> dict[str, int]:
    read = report.status == "read"
    return {
        "files": 1,
        "read": int(read),
        "skipped": int(not read),
        "documents": report.documents,
        "characters": report.characters,
        "tokens": report.tokens or 0,
    }


def training(made: Preview, settings: MidtrainConfig) -> dict[str, Any]:
    """How many steps, and how often each document is seen in them."""
    share = settings.mix.new * settings.tokens_per_step
    steps = settings.steps or max(1, round((settings.epochs or 0.0) * made.tokens / share))
    return {
        "steps": steps,
        "tokens_per_step": settings.tokens_per_step,
        "share_of_new": settings.mix.new,
        "passes": steps * share / max(1, made.tokens),
    }


def as_json(made: Preview, settings: MidtrainConfig | None) -> dict[str, Any]:
    *kinds, total = by_kind(made)
    return {
        "folder": str(made.folder),
        **{key: value for key, value in total.items() if key != "kind"},
        "tokens_are": "counted" if made.counted else f"estimated at {CHARACTERS_PER_TOKEN} characters each",
        "training": training(made, settings) if settings else None,
        "kinds": kinds,
        "skipped_files": skipped(made),
        "near_duplicates": twins(made),
        "first": made.first,
        "manifest": [asdict(report) for report in made.manifest],
    }


def skipped(made: Preview) -> list[dict[str, Any]]:
    rows = [report for report in made.manifest if report.status == "skipped"]
    return [{"path": report.path, "reason": report.remark} for report in rows]


def twins(made: Preview) -> list[dict[str, Any]]:
    rows = [report for report in made.manifest if report.near_duplicate_of]
    return [
        {"path": report.path, "like": report.near_duplicate_of, "similarity": report.similarity}
        for report in rows
    ]


def begins(text: str) -> str:
    """A document's beginning on one line."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_LENGTH else line[: SHOWN_LENGTH - 1] + "…"
