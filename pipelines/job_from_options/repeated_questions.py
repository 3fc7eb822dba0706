"""Refuse questions that an earlier cycle asked about other documents.

Beside the next month's folder lies the last month's file until it is written anew. A cycle that is judged
by it is accepted for what an earlier one taught.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from db.reads import queries
from evals.probes import KNOWLEDGE, UPDATES, Probe, load_probes
from pipelines.config.jobs import DOCUMENTS_INPUT
from pipelines.config.settings import Config
from pipelines.corpus import documents
from pipelines.job_from_options.inputs import SMALL, absolute
from pipelines.runs.kept_probes import INPUT
from pipelines.runs.pinned_inputs import hashes
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError

TAUGHT = (KNOWLEDGE, UPDATES)  # suites of questions about the documents


def require_about(ws: Workspace, docs: Path, settings: Config) -> None:
    """Refuse probes that an earlier cycle asked about other documents and whose passages do not stand in
    these; only say so where it cannot be seen: without passages, or in a folder that takes long to read."""
    place = settings.eval.probes
    asked = [probe for probe in load_probes(place) if probe.suite in TAUGHT] if place else []
    earlier = _cycle_of_others(ws, docs, settings) if asked else None
    if earlier is None:
        return
    found = _stand_in(docs, asked, settings)
    same = f"{place} asks what cycle {earlier} asked, about other documents"
    if found is None:
        ws.progress.say(f"  probes       {same}: look whether its questions are about these too")
    elif not found:
        raise InputError(
            f"eval.probes: {same}: write this folder's with `recover probes --docs {docs} --out {place}`"
        )


def _cycle_of_others(ws: Workspace, docs: Path, settings: Config) -> int | None:
    """Return the newest finished cycle that asked these probes; None if one of them read these documents."""
    digest = hashes({INPUT: str(settings.eval.probes)}).get(INPUT)
    runs = queries.runs(ws.tracker.db, kind="cycle", status="done", limit=None)
    same = [run for run in runs if digest and run["config"].get("inputs", {}).get(INPUT) == digest]
    if not same:
        return None
    folder = hashes({DOCUMENTS_INPUT: absolute(docs)}, settings.midtrain.reading.leave_out)
    if any(run["config"]["inputs"].get(DOCUMENTS_INPUT) == folder.get(DOCUMENTS_INPUT) for run in same):
        return None
    return int(same[0]["result"]["cycle"])


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
