"""Sort failed questions into unreachable facts (the model still ranks the answer first) and lost ones.

A model that forgot how to answer may still hold the fact. Each failed question's answer is ranked by
log-probability among the answers to questions of its kind and the old ones of a changed fact, asked in chat
and, where the fact has a cloze probe, as plain text. First in either: unreachable, and a light recovery
brings such answers back. Otherwise it is lost, or was never learned.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from db.reads import queries
from evals.answer_matching import matches
from evals.probes import CLOZE, RETENTION, Probe, suite_probes
from evals.scores import subsample
from pipelines.config.jobs import EvalJob
from pipelines.corpus.segments import space_behind
from pipelines.evaluate import evaluate
from pipelines.job_from_options.inputs import resolved_for, say_about, say_kept, taught_checkpoint
from pipelines.runs.progress import counting
from pipelines.runs.workspace import Workspace
from recovery.counted import counted
from recovery.errors import InputError

if TYPE_CHECKING:
    from pipelines.config.sections.eval import EvalConfig
    from recovery.models.chat_model import ChatModel
    from recovery.storage.checkpoints import Checkpoint
    from recovery.teachers.likelihood import Pair

MOST_CANDIDATES = 32
Questions = Mapping[str, Probe]  # by id


@dataclass(frozen=True)
class FactVerdict:
    probe: Probe
    ranked_first: bool  # its answer, among those of its kind: the fact is unreachable, not lost
    chance: float  # of being first for no reason
    back: bool | None  # answered by the model recovered from this one; None where there is none


def lost(
    ws: Workspace, reference: str, suite: str, changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Sort every failed question of a suite into unreachable and lost."""
    checkpoint = ws.checkpoint(reference)
    taught = taught_checkpoint(ws, checkpoint.id)
    say_about(ws, checkpoint.id, taught)
    settings = resolved_for(ws, taught, changes=changes or {}).eval
    path = settings.probes
    say_kept(ws, path)
    if path is None and suite != RETENTION:  # of which general questions ship
        raise InputError(f"no probes lie beside the documents of {reference}: give --probes FILE")
    probes = suite_probes(path, suite)
    chosen = subsample([probe for probe in probes if probe.counts], settings.limit)
    questions = {probe.id: probe for probe in chosen}
    if not questions:
        raise InputError(f"{path} asks nothing of {suite}: give --suite or --probes")
    passed = _answered(ws, checkpoint.id, suite, settings, questions)
    asked = [probe for probe in chosen if probe.id in passed]
    failed = [probe for probe in asked if not passed[probe.id]]
    recovered = _recovered(ws, checkpoint, suite, questions)
    ranks = _ranks(ws.load(checkpoint), failed, probes, partial(ws.progress.step, "lost"))
    found = [
        FactVerdict(probe, rank == 0, chance, recovered.get(probe.id) if recovered else None)
        for probe, (rank, chance) in zip(failed, ranks, strict=True)
    ]
    return _told(checkpoint.id, suite, asked, found)


def _answered(
    ws: Workspace, checkpoint: str, suite: str, settings: EvalConfig, questions: Questions
) -> dict[str, bool]:
    """Return which questions the checkpoint answers; evaluate it where that is not recorded.

    One answer to each: items of several samples have other keys than their questions.
    """
    found = _recorded(ws, checkpoint, suite, questions)
    if found.keys() >= questions.keys():
        return found
    once = settings.model_copy(update={"samples": 1})
    evaluate(ws, EvalJob(checkpoint=checkpoint, suites=(suite,), settings=once), key=ws.new_key())
    return _recorded(ws, checkpoint, suite, questions)


def _recorded(ws: Workspace, checkpoint: str, suite: str, questions: Questions) -> dict[str, bool]:
    """Return the items of the newest headline score that are these questions, judged by these answers."""
    db = ws.tracker.db
    rows = [row for row in queries.scores(db, checkpoint_id=checkpoint) if row["suite"] == suite]
    newest = next((row for row in rows if row["metric"] == "lenient"), None)
    items = queries.items(db, newest["id"]) if newest else []
    return {row["key"]: bool(row["passed"]) for row in items if _asks(row, questions.get(row["key"]))}


def _asks(item: Mapping[str, Any], probe: Probe | None) -> bool:
    """Return whether a recorded item is a probe's question, and was judged by its answers."""
    if probe is None or item["prompt"] != probe.prompt:
        return False
    judged = item["detail"]
    return (judged.get("answers"), judged.get("was", [])) == (list(probe.answers), list(probe.was))


def _recovered(ws: Workspace, checkpoint: Checkpoint, suite: str, questions: Questions) -> dict[str, bool]:
    """Return the answers of a model distilled from this checkpoint, if one was evaluated."""
    for row in queries.checkpoints(ws.tracker.db, limit=None):
        config = row["config"]
        child = config.get("stage") == "distill" and config.get("student") == checkpoint.id
        if child and (found := _recorded(ws, row["id"], suite, questions)):
            return found
    return {}


def _ranks(
    chat_model: ChatModel, failed: Sequence[Probe], probes: Sequence[Probe], step: Callable[..., None]
) -> list[tuple[int, float]]:
    """Count, for each failed probe, the candidates likelier than the answer, and the chance of none."""
    from recovery.teachers.likelihood import continuation_logprobs, reader

    clozes = {(probe.fact, probe.answers[0]): probe for probe in probes if probe.kind == CLOZE}
    kinds = _kinds(probes)
    asked = [
        _ways(chat_model, probe, clozes.get((probe.fact, probe.answers[0])), _candidates(probe, kinds))
        for probe in failed
    ]
    pairs = [pair for ways in asked for way in ways for pair in way]
    show = counting(step, "candidates read")
    scores = iter(continuation_logprobs(reader(chat_model), pairs, chat_model.pad_id, show))
    ranks = []
    for ways in asked:
        scored = [list(islice(scores, len(way))) for way in ways]
        best = min(sum(other > answer for other in others) for answer, *others in scored)
        ranks.append((best, 1 - (1 - 1 / len(ways[0])) ** len(ways)))
    return ranks


def _ways(
    chat_model: ChatModel, probe: Probe, cloze: Probe | None, candidates: Sequence[str]
) -> list[list[Pair]]:
    """Return the candidates after the question in chat and, where there is one, after the cloze as text."""
    from recovery.teachers.likelihood import gap_ids

    in_chat = chat_model.answer_pairs(probe.chat, candidates)
    if cloze is None:
        return [in_chat]
    before = cloze.prompt.rstrip()
    space = space_behind(before)
    return [in_chat, [gap_ids(chat_model, before, space + answer) for answer in candidates]]


def _kinds(probes: Sequence[Probe]) -> dict[str, list[str]]:
    """Group answers of one kind: of facts with the same ending (ada/city, bo/city), and of the whole file."""
    ends = Counter(end for _, end in {(probe.fact, _end(probe)) for probe in probes})
    groups: dict[str, dict[str, None]] = defaultdict(dict)
    for probe in probes:
        for name in (_end(probe) if ends[_end(probe)] > 1 else "", ""):
            groups[name][probe.answers[0]] = None
    return {name: list(answers) for name, answers in groups.items()}


def _end(probe: Probe) -> str:
    return probe.fact.rpartition("/")[2] if "/" in probe.fact else ""


def _candidates(probe: Probe, kinds: dict[str, list[str]]) -> list[str]:
    """Return the answer, followed by the old ones of a changed fact and by other answers of its kind."""
    answer = probe.answers[0]
    old = [one for one in dict.fromkeys(probe.was) if not _one_begins_other(one, answer)]
    same = kinds.get(_end(probe)) or kinds[""]
    drawn = random.Random(f"lost:{probe.id}").sample(same, len(same))
    known = (*probe.answers, *probe.was)
    others = (one for one in drawn if not (_one_begins_other(one, answer) or matches(one, known)))
    return [answer, *old, *islice(others, max(0, MOST_CANDIDATES - 1 - len(old)))]


def _one_begins_other(one: str, other: str) -> bool:
    """Return whether a text is the other's beginning, and so the likelier one whatever the model knows."""
    return one.startswith(other) or other.startswith(one)


def _told(
    checkpoint: str, suite: str, asked: Sequence[Probe], found: Sequence[FactVerdict]
) -> dict[str, Any]:
    kinds = dict.fromkeys(probe.kind for probe in asked)
    total = _row("all", asked, found)
    rows = []
    for kind in kinds:
        asked_of_kind = [probe for probe in asked if probe.kind == kind]
        found_of_kind = [verdict for verdict in found if verdict.probe.kind == kind]
        rows.append(_row(kind, asked_of_kind, found_of_kind))
    words = (
        f"{checkpoint} fails {total['failed']} of {counted(total['asked'], f'{suite} question')}: "
        f"{total['unreachable']} unreachable, {total['lost']} lost or never learned "
        f"(first by chance: about {total['by_chance']:.0f})"
    )
    items = [
        {
            "id": verdict.probe.id,
            "prompt": verdict.probe.prompt,
            "unreachable": verdict.ranked_first,
            "back": verdict.back,
        }
        for verdict in found
    ]
    header = {"checkpoint": checkpoint, "suite": suite, "words": words}
    return {**header, **total, "by_kind": rows, "items": items}


def _row(kind: str, asked: Sequence[Probe], found: Sequence[FactVerdict]) -> dict[str, Any]:
    unreachable = sum(v.ranked_first for v in found)
    known = [v for v in found if v.back is not None]
    return {
        "kind": kind,
        "asked": len(asked),
        "failed": len(found),
        "unreachable": unreachable,
        "lost": len(found) - unreachable,
        "by_chance": sum(v.chance for v in found),
        "back": sum(bool(v.back) for v in known) if known else None,
        "back_of_unreachable": sum(bool(v.back) for v in known if v.ranked_first) if known else None,
    }
