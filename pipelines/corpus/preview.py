"""Preview what training would read from a folder: `recover corpus`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pipelines.config.sections.midtrain import MidtrainConfig
from pipelines.corpus import documents
from pipelines.corpus.manifest import FileReport, skipped_by_reason
from pipelines.corpus.prose import untitled_tables
from pipelines.corpus.reading.formats import Limits
from pipelines.corpus.reading.plain import TextPiece
from recovery.training.config import warmup_within

CHARACTERS_PER_TOKEN = 4  # an estimate, without a tokenizer
SHOWN, SHOWN_LENGTH = 5, 120  # number of documents whose beginning is shown, and its characters
UNTITLED = "holds tables without titles, whose cells are not asked about"
REMARKS = 10  # of files that were read, at most
Encode = Callable[[str], Sequence[int]]


@dataclass
class Preview:
    """A folder's manifest and the beginnings of its first documents."""

    folder: Path
    manifest: list[FileReport] = field(default_factory=list)
    first: list[dict[str, str]] = field(default_factory=list)
    counted: bool = False  # tokens were counted by the tokenizer, not estimated

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
    """Read a folder as midtraining would, and keep only counts and beginnings."""
    made = Preview(folder, counted=encode is not None)
    begun: list[str] = []
    tokens, goes_on, untitled = 0, False, 0
    for item in documents.read_folder(folder, limits, strict=strict, progress=progress):
        if isinstance(item, TextPiece):
            if len(begun) < SHOWN and not goes_on:
                begun.append(item.text[: 4 * SHOWN_LENGTH])
            goes_on = item.goes_on
            untitled += untitled_tables(item.text)
            tokens += len(encode(item.text)) if encode else -(-len(item.text) // CHARACTERS_PER_TOKEN)
            tokens += not item.goes_on  # the end of the document
            continue
        read = item.status == "read"
        made.manifest.append(_counted(item, tokens, untitled) if read else item)
        if read:
            made.first += [{"path": item.path, "text": text} for text in begun[: SHOWN - len(made.first)]]
        begun = []
        tokens, goes_on, untitled = 0, False, 0
    documents.require_any_read(folder, made.manifest)
    return made


def _counted(report: FileReport, tokens: int, untitled: int) -> FileReport:
    """Return the report with its tokens, and with a remark on tables that no gaps will be made of."""
    reasons = [report.reason, UNTITLED if untitled else None]
    return replace(report, tokens=tokens, reason="; ".join(filter(None, reasons)) or None)


def by_kind(made: Preview) -> list[dict[str, Any]]:
    """Return the counts of each kind of file, and their total."""
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
        "markup": report.markup,
    }


def by_folder(made: Preview) -> list[dict[str, Any]]:
    """Return what is read of each folder at the top, the most text first; `.` has the files beside them."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for report in made.manifest:
        if report.status == "read":
            folder, inside, _ = report.path.partition("/")
            found[folder if inside else "."].update(read=1, characters=report.characters)
    rows: list[dict[str, Any]] = [{"folder": folder, **counts} for folder, counts in found.items()]
    return sorted(rows, key=lambda row: (-row["characters"], row["folder"]))


def training(made: Preview, settings: MidtrainConfig) -> dict[str, Any]:
    """Return the steps of a first midtraining and how often it sees a document; all numbers are set."""
    mix = settings.mix.at_first
    share = mix.new * settings.tokens_per_step
    steps = settings.steps or 0
    return {
        "steps": steps,
        "tokens_per_step": settings.tokens_per_step,
        "warmup_steps": warmup_within(settings.optimizer.warmup_steps, steps),
        "row_tokens": settings.row_tokens,
        "microbatch_tokens": settings.microbatch_tokens or None,
        "share_of_new": mix.new,
        "share_of_questions": mix.questions,
        "passes": steps * share / max(1, made.tokens),
    }


def as_json(made: Preview, settings: MidtrainConfig | None) -> dict[str, Any]:
    *kinds, total = by_kind(made)
    return {
        "folder": str(made.folder),
        **{key: value for key, value in total.items() if key != "kind"},
        "tokens_are": "counted" if made.counted else f"estimated at {CHARACTERS_PER_TOKEN} characters each",
        "training": training(made, settings) if settings and settings.method == "text" else None,
        "kinds": kinds,
        "folders": by_folder(made),
        "skipped_files": skipped(made),
        "near_duplicates": twins(made),
        "first": made.first,
        "manifest": [asdict(report) for report in made.manifest],
    }


def skipped(made: Preview) -> list[dict[str, Any]]:
    rows = [report for report in made.manifest if report.status == "skipped"]
    return [{"path": report.path, "reason": report.remark} for report in rows]


def skipped_reasons(made: Preview) -> list[dict[str, Any]]:
    """Return how many files each reason skips, the commonest first, with one of them."""
    groups = skipped_by_reason(made.manifest)
    return [{"files": len(rows), "reason": reason, "such as": rows[0].path} for reason, rows in groups]


def remarks(made: Preview) -> list[dict[str, Any]]:
    """Return how many of the files that were read carry each of the commonest remarks, with one of them."""
    found: dict[str, list[str]] = defaultdict(list)
    for report in made.manifest:
        if report.status == "read" and report.reason:
            found[report.reason].append(report.path)
    commonest = sorted(found.items(), key=lambda group: -len(group[1]))[:REMARKS]
    return [{"files": len(paths), "remark": remark, "such as": paths[0]} for remark, paths in commonest]


def twins(made: Preview) -> list[dict[str, Any]]:
    rows = [report for report in made.manifest if report.near_duplicate_of]
    return [
        {"path": report.path, "like": report.near_duplicate_of, "similarity": report.similarity}
        for report in rows
    ]


def begins(text: str) -> str:
    """Return a document's beginning on one line."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_LENGTH else line[: SHOWN_LENGTH - 1] + "…"
