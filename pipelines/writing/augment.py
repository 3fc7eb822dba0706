"""Augmentation: documents retold as questions with answers, paraphrases, relations and summaries.

Training on raw text alone rarely teaches a model to answer questions; several phrasings of each fact do. A
writer (a checkpoint or an endpoint) gets one request per passage and kind; its texts are cached, filtered and
saved in augmented.jsonl: {"kind", "source", "text"} or {"kind": "qa", "source", "prompt", "response"}.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals import jsonl
from pipelines.config.jobs import AUGMENTED
from pipelines.corpus.entities import Entities, as_written, entities
from pipelines.corpus.general_words import general_words
from pipelines.corpus.passages import Passage, passages
from pipelines.writing.filters import (
    ProbeLeaks,
    first_of,
    judged_pairs,
    question_flaw,
    text_flaw,
    without_opening,
)
from pipelines.writing.protocol import Text, Writer
from pipelines.writing.text_cache import Cache, written
from pipelines.writing.wording import Wording
from recovery import untrusted_json
from recovery.errors import InputError

if TYPE_CHECKING:
    from evals.probes import Probe

WRITTEN = "written.jsonl"
REQUESTS = {
    "qa": "Read the text and write up to {n} questions that it answers, each with its short answer. Name in "
    "each question who or what it is about, so that it can be understood without the text. Write in "
    "the language of the text, but with the labels Q: and A:, two lines for each:\nQ: the question\n"
    "A: the answer\n\nText:\n{passage}",
    "paraphrase": "Rewrite this text in other words and another order, in its own language. Keep every name, "
    "number and fact and add nothing. Write only the new text.\n\nText:\n{passage}",
    "relations": "Explain in a few sentences how these are related, using only what the text says and its "
    "language: {entities}. Write only the explanation.\n\nText:\n{passage}",
    "summary": "Summarise this text in one to three sentences in its own language, naming who or what it is "
    "about. Write only the summary.\n\nText:\n{passage}",
}
KINDS = tuple(REQUESTS)
MOST_RELATED = 6  # entities in one request
Row = dict[str, str]


@dataclass(frozen=True)
class Augmented:
    """The rows that were kept, and how many were refused for each reason."""

    rows: list[Row]
    refused: Counter[str] = field(default_factory=Counter)

    def summary(self) -> dict[str, Any]:
        kinds = Counter(row["kind"] for row in self.rows)
        return {"kept": len(self.rows), "by_kind": dict(kinds), "refused": dict(self.refused)}


def named_kinds(text: str) -> list[str]:
    """Return kinds that are named with commas between; refuse unknown ones."""
    kinds = [kind.strip() for kind in text.split(",") if kind.strip()]
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown or not kinds:
        raise InputError(f"--kinds {','.join(unknown) or 'nothing'}: choose among {', '.join(KINDS)}")
    return kinds


def augment(
    texts: Sequence[str],
    writer: Writer,
    out: Path,
    *,
    kinds: Sequence[str] = KINDS,
    questions: int = 8,
    probes: Sequence[Probe] = (),
    on_progress: Callable[[int, int], None] | None = None,
) -> Augmented:
    """Request what the cache lacks, filter everything, write augmented.jsonl if a text is usable."""
    about = entities(texts)
    read = list(passages(texts))
    asked = [(kind, passage) for passage in read for kind in kinds if _worth(kind, passage, about)]
    requests = [_request(kind, passage, about, questions) for kind, passage in asked]
    answers = written(Cache(out / WRITTEN), writer, requests, on_progress)
    said = zip(asked, answers, strict=True)
    wording = Wording([passage.text for passage in read], general_words(list(texts)))
    return write_rows(filtered(said, about, ProbeLeaks(probes), wording), out)


def write_rows(found: Augmented, out: Path) -> Augmented:
    """Write augmented.jsonl; an earlier one stays where no text is usable."""
    if found.rows:
        jsonl.write(out / AUGMENTED, found.rows)
    return found


def filtered(
    said: Iterable[tuple[tuple[str, Passage], Text]],
    about: Entities,
    leaks: ProbeLeaks,
    wording: Wording,
) -> Augmented:
    """Split written texts into usable rows and refusals."""
    rows = []
    refused = Counter[str]()
    for (kind, passage), answer in said:
        for row, flaw in _judged(kind, passage, answer, about, leaks, wording):
            if flaw is None:
                rows.append({"kind": kind, "source": str(passage.document), **row})
            else:
                refused[flaw] += 1
    kept = first_of(rows)
    refused["said before"] += len(rows) - len(kept)
    return Augmented(kept, +refused)


def _judged(
    kind: str,
    passage: Passage,
    answer: Text,
    about: Entities,
    leaks: ProbeLeaks,
    wording: Wording,
) -> Iterator[tuple[Row, str | None]]:
    if kind != "qa":
        text = without_opening(wording.without_chatter(answer.said, passage.text), passage.text)
        flaw = answer.flaw or text_flaw(text, passage.text, kind, about, wording.general)
        yield {"text": text}, flaw or ("a held-out probe" if leaks.within(text) else None)
        return
    found, flaws = judged_pairs(answer)
    for why in flaws:
        yield {}, why
    for question, reply in found:
        flaw = question_flaw(question, reply, passage.text, about, wording)
        yield (
            {"prompt": question, "response": reply},
            flaw or ("a held-out probe" if leaks.of(question, reply, passage.text) else None),
        )


def _worth(kind: str, passage: Passage, about: Entities) -> bool:
    return kind != "relations" or len(dict(about.mentions(passage.text))) >= 2


def _request(kind: str, passage: Passage, about: Entities, questions: int) -> str:
    listed = "; ".join(_mentioned(passage.text, about)) if kind == "relations" else ""
    return REQUESTS[kind].format(n=questions, entities=listed, passage=passage.text)


def _mentioned(text: str, about: Entities) -> list[str]:
    """Return the entities that weigh most in a text, as it writes them."""
    mentions = dict(about.mentions(text))
    heaviest = sorted(mentions, key=lambda term: (-about.weights[term], term))[:MOST_RELATED]
    return [" ".join(as_written(text, term, mentions[term]).split()) for term in heaviest]


def load(path: Path) -> list[Row]:
    """Read the rows of augmented.jsonl, or of the folder that contains it; refuse one that is incomplete."""
    path = path / AUGMENTED if path.is_dir() else path
    try:
        lines = enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1)
        rows = {number: untrusted_json.parse(line) for number, line in lines if line.strip()}
    except (OSError, ValueError) as error:
        raise InputError(f"--augment {path}: cannot be read: {error}: run `recover augment` first") from error
    if not rows:
        raise InputError(f"--augment {path}: holds no text: run `recover augment` again")
    for number, row in rows.items():
        if not _complete(row):
            raise InputError(
                f"--augment {path}:{number}: a `text`, or a `prompt` and a `response`, is expected: add it"
            )
    return list(rows.values())


def _complete(row: Any) -> bool:
    """Return whether a row is a text, or a question with its answer."""
    if not isinstance(row, dict):
        return False
    parts = [row["text"]] if row.get("text") else [row.get("prompt"), row.get("response")]
    return all(isinstance(part, str) and part.strip() for part in parts)
