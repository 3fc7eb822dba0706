"""Compare how new the guard takes an entity to be by sentences trained on, and by sentences held out.

    python -m benchmarks.outcomes.newness HOME 3 --held-out FOLDER

Where a cycle holds no sentences out, the guard has only those that the student was trained on. FOLDER holds
other documents about the same things, which no training has read: what a cycle's midtrained model gains over
the clean one on their sentences is not memorised. Nothing is written.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from benchmarks.ledger import Line, markdown
from benchmarks.outcomes.arguments import whole_docstring
from evals.intervals import wilson_interval
from pipelines.corpus import documents
from pipelines.corpus.entities import Term, entities
from pipelines.corpus.reading.plain import TextPiece
from pipelines.knowledge.overlap import Said, newness, teaches, witnesses
from pipelines.runs import kept_texts
from pipelines.runs.progress import Progress
from pipelines.runs.workspace import Workspace
from recovery.teachers.teachers import CheckpointTeacher

FEWEST = 2  # sentences of each kind about an entity
MOST = 200  # entities compared


@dataclass(frozen=True)
class Gains:
    """What the student gained, in nats a token, on sentences about one entity."""

    trained: list[float]
    held_out: list[float]


def main() -> None:
    parser = whole_docstring(__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("cycle", type=int)
    parser.add_argument("--held-out", type=Path, required=True, metavar="FOLDER")
    chosen = parser.parse_args()
    with Workspace.open(chosen.home, progress=Progress(quiet=True)) as ws:
        found = gains(ws, f"cycle:{chosen.cycle}:midtrained", read(chosen.held_out))
    if not found:
        sys.exit(
            "no name or term is spoken of in two sentences of both: give documents about the same things"
        )
    sys.stdout.write(f"{markdown(table(found))}\n\n{in_words(found)}\n")


def read(folder: Path) -> list[str]:
    return [piece.text for piece in documents.read_folder(folder) if isinstance(piece, TextPiece)]


def gains(ws: Workspace, student: str, held_out: Sequence[str]) -> dict[Term, Gains]:
    """Return the gains on every entity, or on some drawn at random, that both kinds of text speak of."""
    texts = kept_texts.learned(ws, ws.checkpoint(student).id).texts
    known = entities(texts)
    named = set(known.weights)
    seen = witnesses(named, known, texts, {})
    unseen = witnesses(named, known, held_out, {})
    both = sorted(term for term in named if min(len(seen[term]), len(unseen[term])) >= FEWEST)
    drawn = random.Random(0).sample(both, min(MOST, len(both)))
    sentences = sorted({one for term in drawn for one in (*seen[term], *unseen[term])})
    chat_model, clean = ws.load(ws.checkpoint(student)), ws.load(ws.clean())
    judge = newness(chat_model, CheckpointTeacher(clean, "sampled").score)
    gained = dict(zip(sentences, judge(sentences), strict=True))
    return {term: Gains(_of(seen[term], gained), _of(unseen[term], gained)) for term in drawn}


def _of(said: Sequence[Said], gained: Mapping[Said, float]) -> list[float]:
    return [gained[one] for one in said]


def table(found: Mapping[Term, Gains]) -> list[Line]:
    """Return a row for each kind of sentence: the gains, and how many entities they make new."""
    kinds = {
        "trained on": [one.trained for one in found.values()],
        "held out": [one.held_out for one in found.values()],
    }
    return [_row(name, rows) for name, rows in kinds.items()]


def _row(name: str, rows: Sequence[list[float]]) -> Line:
    new = sum(map(teaches, rows))
    low, high = wilson_interval(new, len(rows))
    means = [fmean(row) for row in rows]
    return {
        "sentences": name,
        "entities": len(rows),
        "gain, nats a token": f"{fmean(means):.2f} (median {median(means):.2f})",
        "taken as new": f"{new} ({new / len(rows):.0%} [{low:.0%}, {high:.0%}])",
    }


def in_words(found: Mapping[Term, Gains]) -> str:
    """Describe where the two kinds of sentences disagree."""
    by = {term: (teaches(one.trained), teaches(one.held_out)) for term, one in found.items()}
    only_trained = [" ".join(term) for term, (one, other) in by.items() if one and not other]
    only_held_out = [" ".join(term) for term, (one, other) in by.items() if other and not one]
    return (
        f"New by sentences trained on alone: {len(only_trained)} ({', '.join(only_trained[:8])}); "
        f"by sentences held out alone: {len(only_held_out)} ({', '.join(only_held_out[:8])})."
    )


if __name__ == "__main__":
    main()
