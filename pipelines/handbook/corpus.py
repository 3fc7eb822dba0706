"""Write this repository's documentation as a folder of documents, with probes and IFEval prompts beside it.

The pages are those of a checkout; an installed package does not hold them. The questions are written by
hand: every fact is asked in two phrasings that stand in no page, so that only a model that learned the fact
answers. Small models hardly do, so gap questions as for any folder can be the score, with these apart.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals import jsonl
from evals.answer_matching import matches, normalise
from evals.probes import KNOWLEDGE, REWORDED
from pipelines.corpus.documents import read_corpus
from pipelines.corpus.passages import passages as cut
from pipelines.writing import probes as probe_writing
from recovery.errors import InputError

ROOT = Path(__file__).parents[2]
QUESTIONS = Path(__file__).parent / "questions.jsonl"
PAGES = (  # of each cycle
    ("README.md", "docs/usage.md", "docs/documents.md"),
    ("docs/glossary.md", "docs/scaling.md", "docs/evaluation.md"),
    ("SECURITY.md", "docs/engines.md", "docs/knowledge.md", "docs/methods.md"),
)
KINDS = ("direct", "heldout")
PASSAGE = 800  # characters


@dataclass(frozen=True)
class Fact:
    """A fact of a page: its name, the answers that count, and a question in two phrasings."""

    name: str
    page: str
    answers: tuple[str, ...]
    direct: str
    heldout: str

    def probes(self, passages: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield a line of probes.jsonl for each phrasing, with the passage of the page that answers it."""
        answer, *aliases = self.answers
        for kind, prompt in zip(KINDS, (self.direct, self.heldout), strict=True):
            yield {
                "id": f"{self.name}/{kind}",
                "suite": KNOWLEDGE,
                "kind": kind,
                "prompt": prompt,
                "answer": answer,
                "aliases": aliases,
                "fact": self.name,
                "passage": self.passage(passages),
            }

    def passage(self, passages: Sequence[str]) -> str:
        """Return the passage that holds the answer and shares most words with the questions."""
        asked = set(normalise(f"{self.direct} {self.heldout}").split())
        holding = [text for text in passages if matches(text, self.answers)]
        return max(holding, key=lambda text: len(asked & set(normalise(text).split())), default="")


def facts(pages: Sequence[str] | None = None) -> list[Fact]:
    """Return the facts of some pages, or of all."""
    rows = jsonl.read(QUESTIONS, {"fact": str, "page": str, "answer": str, "direct": str, "heldout": str})
    found = [
        Fact(row["fact"], row["page"], (row["answer"], *row["aliases"]), row["direct"], row["heldout"])
        for row in rows
    ]
    return [fact for fact in found if pages is None or fact.page in pages]


def require(pages: Sequence[str]) -> None:
    """Refuse pages that are not there."""
    missing = [page for page in pages if not (ROOT / page).is_file()]
    if missing:
        raise InputError(
            f"{ROOT / missing[0]} is not there: the documents of this demo are the repository's own pages, "
            "which the installed package does not hold: run it from a checkout"
        )


def write(directory: Path, pages: Sequence[str], gaps: int = 0) -> Path:
    """Copy the pages to `directory`/docs and write probes.jsonl beside it; return the folder of documents.

    With `gaps`, so many gaps in the pages are the score, and the questions by hand are reported apart."""
    require(pages)
    docs = directory / "docs"
    docs.mkdir(parents=True)
    for page in pages:
        shutil.copyfile(ROOT / page, docs / page.replace("/", "-"))
    passages = {
        page: [one.text for one in cut([(ROOT / page).read_text("utf-8")], PASSAGE)] for page in pages
    }
    probes = [probe for fact in facts(pages) for probe in fact.probes(passages[fact.page])]
    if gaps:
        probes = [probe | {"kind": REWORDED} for probe in probes]
        probes += probe_writing.from_gaps(read_corpus(docs).texts, gaps, seed=0)
    jsonl.write(directory / "probes.jsonl", probes)
    return docs
