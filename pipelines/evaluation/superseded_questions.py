"""Leave out questions about earlier documents that only superseded ones answer: these are read no more.

Such a document has been replaced whole: what its new edition does not repeat may hold no longer. A question
is asked on where a sentence of its passage that names the answer stands in a document that is still read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evals.answer_matching import matches
from evals.probes import KNOWLEDGE, Probe, load_probes
from pipelines.corpus import superseded, text_file
from pipelines.corpus.manifest import load_manifest
from pipelines.corpus.sentences import sentences
from pipelines.runs.kept_texts import KEPT_TEXTS, kept_runs

if TYPE_CHECKING:
    from pipelines.config.jobs import CycleJob
    from pipelines.corpus.reading.plain import TextPiece
    from pipelines.runs.stage_runner import Stage
    from pipelines.runs.workspace import Workspace

FOUND = "superseded_questions.json"  # in a cycle's folder: the ids of questions, by the cycle that asked them
OPENING = 4  # words by which a sentence is looked for

Words = tuple[str, ...]


def left_out(ws: Workspace, job: CycleJob, stage: Stage, student: str) -> CycleJob:
    """Return the cycle that asks about a midtrained student's documents without such questions.

    They are looked up once, and it is said how many there are: a resumed cycle asks what it asked before."""
    if not job.earlier:
        return job

    def look_up() -> dict[int, list[str]]:
        found = outdated(kept_runs(ws, student)[0], job.earlier)
        if found:
            counts = ", ".join(f"{len(ids)} of cycle {cycle}" for cycle, ids in found.items())
            stage.say(f"  superseded   not asked, as only superseded documents answer it: {counts}")
        return found

    found = stage.once(FOUND, look_up)
    return job.model_copy(update={"outdated": {int(cycle): tuple(ids) for cycle, ids in found.items()}})


def outdated(runs: Sequence[Path], earlier: Mapping[int, str]) -> dict[int, list[str]]:
    """Return the ids of the questions of earlier cycles (by their files) that only those documents of some
    midtraining runs (oldest first) answer that a later run superseded."""
    without = superseded.left_out(runs)
    if not any(without):
        return {}
    telling = {
        cycle: {probe.id: _telling(probe) for probe in load_probes(path, KNOWLEDGE)}
        for cycle, path in earlier.items()
    }
    every = set[Words]()
    for of_probe in telling.values():
        for passages in of_probe.values():
            every.update(*passages)
    replaced = _standing_in(every, _texts(runs, map(_others, runs, without)))
    gone = replaced - _standing_in(replaced, _texts(runs, without))
    found = {
        cycle: [name for name, passages in of_probe.items() if any(map(gone.issuperset, passages))]
        for cycle, of_probe in telling.items()
    }
    return {cycle: ids for cycle, ids in found.items() if ids}


def _telling(probe: Probe) -> list[set[Words]]:
    """Return the sentences of each passage of a probe that name its answer; all of them where none does. Of a
    table's titles and row it is the row alone."""
    found = []
    for passage in _without_titles(probe):
        said = [sentence for sentence in sentences(passage) if _words(sentence)]
        naming = [sentence for sentence in said if matches(sentence, probe.answers)]
        found.append(set(map(_words, naming or said)))
    return [passage for passage in found if passage]


def _without_titles(probe: Probe) -> Sequence[str]:
    """Return the passages of a probe; of a table's the row, as its titles may change."""
    passages = probe.passages
    is_table = len(passages) == 2 and all("|" in passage for passage in passages)
    return passages[1:] if is_table else passages


def _others(run: Path, numbers: frozenset[int]) -> frozenset[int]:
    """Return the numbers of a run's other documents."""
    count = sum(report.documents for report in load_manifest(run)) if numbers else 0
    return frozenset(range(count)) - numbers


def _texts(runs: Sequence[Path], without: Iterable[frozenset[int]]) -> Iterator[TextPiece]:
    for run, numbers in zip(runs, without, strict=True):
        yield from text_file.load_pieces(run / KEPT_TEXTS, numbers)


def _standing_in(looked_for: Collection[Words], texts: Iterable[TextPiece]) -> set[Words]:
    """Return the sentences that stand in some texts, whatever the line breaks and the markup."""
    openings: dict[int, dict[Words, list[Words]]] = {}  # by their length
    for sentence in looked_for:
        opening = sentence[:OPENING]
        openings.setdefault(len(opening), {}).setdefault(opening, []).append(sentence)
    longest = max(map(len, looked_for), default=0)
    found: set[Words] = set()
    before: Words = ()  # the end of a piece whose document goes on
    for piece in texts if openings else ():
        words = before + _words(piece.text)
        for length, by_opening in openings.items():
            found.update(_found(words, length, by_opening))
        before = words[-longest:] if piece.goes_on else ()
    return found


def _found(words: Words, length: int, by_opening: Mapping[Words, Sequence[Words]]) -> Iterator[Words]:
    """Yield the sentences that stand among the words of a text, by the length of their openings."""
    for at, opening in enumerate(zip(*(words[first:] for first in range(length)), strict=False)):
        for sentence in by_opening.get(opening, ()):
            if words[at : at + len(sentence)] == sentence:
                yield sentence


def _words(text: str) -> Words:
    return tuple(re.findall(r"\w+", text.casefold()))
