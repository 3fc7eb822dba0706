"""Refuse questions that an earlier cycle asked about other documents.

Beside the next month's folder lies the last month's file until it is written anew. A cycle that is judged
by it is accepted for what an earlier one taught.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from db.reads import queries
from evals.answer_matching import normalise
from evals.probes import KNOWLEDGE, UPDATES, Probe, load_probes
from pipelines.config.jobs import DOCUMENTS_INPUT
from pipelines.config.settings import Config
from pipelines.corpus import documents
from pipelines.job_from_options.document_checks import SMALL
from pipelines.job_from_options.inputs import absolute
from pipelines.runs.kept_probes import INPUT
from pipelines.runs.pinned_inputs import hashes, kept_questions
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError

TAUGHT = (KNOWLEDGE, UPDATES)  # suites of questions about the documents
Pairs = set[tuple[str, str]]  # a question with each of its answers, in normalised words


@dataclass(frozen=True)
class _Earlier:
    cycle: int
    documents: str | None  # their hash
    asked: frozenset[int]  # places of the probes that it asked too


def require_about(ws: Workspace, docs: Path, settings: Config) -> None:
    """Refuse probes that earlier cycles asked about other documents and whose passages do not stand in
    these; only say so of a part of them, and where it cannot be seen: without passages, or in a folder that
    takes long to read."""
    place = settings.eval.probes
    asked = [probe for probe in load_probes(place) if probe.suite in TAUGHT] if place else []
    if not asked:
        return
    cycle, again = _asked_about_others(ws, docs, asked, settings)
    found = _stand_in(docs, again, settings) if again else True
    if found:
        return
    part = f"in {len(again)} of {len(asked)} questions " if len(again) < len(asked) else ""
    same = f"{place} asks {part}what cycle {cycle} asked, about other documents"
    if part or found is None:
        ws.progress.say(f"  probes       {same}: look whether its questions are about these too")
    else:
        raise InputError(
            f"eval.probes: {same}: write this folder's with `recover probes --docs {docs} --out {place}`"
        )


def _asked_about_others(
    ws: Workspace, docs: Path, asked: Sequence[Probe], settings: Config
) -> tuple[int, list[Probe]]:
    """Return the newest finished cycle that asked some of these probes about other documents, and all probes
    that such cycles asked; none that a cycle asked about these."""
    cycles = _that_asked(ws, asked, str(settings.eval.probes))
    if not cycles:
        return 0, []
    folder = hashes({DOCUMENTS_INPUT: absolute(docs)}, settings.midtrain.reading.leave_out)
    here = {n for one in cycles if one.documents == folder.get(DOCUMENTS_INPUT) for n in one.asked}
    others = [one for one in cycles if one.asked - here]
    again = {n for one in others for n in one.asked - here}
    return others[0].cycle if others else 0, [asked[n] for n in sorted(again)]


def _that_asked(ws: Workspace, asked: Sequence[Probe], place: str) -> list[_Earlier]:
    """Return the finished cycles that asked some of the probes of a file, the newest first."""
    runs = queries.runs(ws.tracker.db, kind="cycle", status="done", limit=None)
    inputs = [(run, run["config"].get("inputs", {})) for run in runs]
    wanted = [_pairs(probe) for probe in asked]
    own = hashes({INPUT: place}).get(INPUT)
    every = frozenset(range(len(asked)))
    same = {
        digest: every if digest == own else _repeated(kept_questions(ws, digest), wanted)
        for digest in {read[INPUT] for _, read in inputs if INPUT in read}
    }
    return [
        _Earlier(int(run["result"]["cycle"]), read.get(DOCUMENTS_INPUT), same[read[INPUT]])
        for run, read in inputs
        if INPUT in read and same[read[INPUT]]
    ]


def _repeated(kept: Path, wanted: Sequence[Pairs]) -> frozenset[int]:
    """Return the places of the questions that a file which the home keeps asks with the same answer."""
    try:
        before = load_probes(kept)
    except InputError:  # it is not there any more, or an earlier version read it otherwise
        return frozenset()
    asked = {pair for probe in before if probe.suite in TAUGHT for pair in _pairs(probe)}
    return frozenset(n for n, pairs in enumerate(wanted) if not pairs.isdisjoint(asked))


def _pairs(probe: Probe) -> Pairs:
    question = normalise(probe.prompt)
    return {(question, normalise(answer)) for answer in probe.answers}


def _stand_in(docs: Path, probes: Sequence[Probe], settings: Config) -> bool | None:
    """Return whether a passage of the probes stands in the documents; None if that is not known."""
    if not all(probe.passages for probe in probes):
        return None
    texts = documents.texts_up_to(docs, SMALL, settings.midtrain.reading.limits)
    if texts is None:
        return None
    whole = _words(" ".join(texts))
    return any(_words(passage) in whole for probe in probes for passage in probe.passages)


def _words(text: str) -> str:
    """Return a text's words alone, so that neither line breaks nor markup tell the same text apart."""
    words = re.findall(r"\w+", text.casefold())
    return f" {' '.join(words)} "
