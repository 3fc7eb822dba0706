"""Measure whether looking it up would have done: the clean model with retrieved passages, against training.

Ways to answer the home's knowledge probes, each with its score and the tokens that an answer costs:

    clean                  closed book: the floor
    clean + retrieval      with the passages that BM25 finds in the documents
    clean + true passage   with the passages that hold the answer: the ceiling of any retriever
    trained                closed book
    trained + retrieval    both

The claim is one of non-inferiority, paired by question and clustered by fact: that the clean model with
retrieved passages answers at most `eval.margin` less than the trained one from memory. Multihop questions,
which two documents answer only together, are asked in the same ways and compared apart: the verdict is about
the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from db.reads import queries
from evals import jsonl, statistics
from evals.answer_matching import matches
from evals.knowledge import LENIENT, OF_MULTIHOP, OPEN_BOOK, RETRIEVAL
from evals.probes import KNOWLEDGE, MULTIHOP, Probe, load_probes
from evals.scores import Item, enough_in_words, share, subsample
from pipelines.config.jobs import EvalJob, RetrievalJob
from pipelines.config.overrides import override
from pipelines.corpus import documents
from pipelines.corpus.passages import passages
from pipelines.corpus.retriever import Retriever
from pipelines.evaluate import evaluate
from pipelines.evaluation.recorded_scores import recorded_items
from pipelines.knowledge.guards import say_absent
from pipelines.runs.kept_texts import kept_before, learned
from pipelines.runs.pinned_inputs import inherited, pinned
from pipelines.runs.progress import reading_progress
from pipelines.runs.stage_runner import Result, Stage, run_job
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError

WAYS = {LENIENT: "", RETRIEVAL: " + retrieval", OPEN_BOOK: " + true passage"}
RETRIEVED = "retrieved.json"  # in a run's folder: the passages of each question
ALL_TEXTS = 2**63 - 1  # characters: thin nothing out
Row = dict[str, Any]
Measured = Mapping[str, Mapping[str, Row]]  # "clean" or "trained" -> way -> its score with items


def retrieval(ws: Workspace, job: RetrievalJob, *, key: str | None = None) -> Result:
    """Return {"ways": one row each, "found": share of answers retrieved, "comparisons", "verdict",
    "multihop": the first three for multihop questions, None without such, ...}."""
    job = pinned(ws, job, texts_kept=kept_before(ws, None, key, RETRIEVED))
    return run_job(ws, "retrieval", _work, job, key=key)


def _work(ws: Workspace, job: RetrievalJob, stage: Stage) -> Result:
    assert job.settings.probes is not None
    probes = load_probes(job.settings.probes, KNOWLEDGE)
    asked = subsample([probe for probe in probes if probe.counts], job.settings.limit)
    if not asked:
        raise InputError(f"{job.settings.probes}: no questions about knowledge: give others with --probes")
    multihop = subsample([probe for probe in probes if probe.kind == MULTIHOP], job.settings.limit)
    # Once for both models: a resumed run may read the documents within other limits.
    retrieved = stage.once(
        RETRIEVED, lambda: _retrieved(_texts(ws, job, stage), [*asked, *multihop], job.passages)
    )
    file = _written(stage.directory / "passages.jsonl", retrieved)
    scores = {"clean": _scores(ws, job, stage, "clean", job.clean, file)}
    if job.trained:
        scores["trained"] = _scores(ws, job, stage, "trained", job.trained, file)

    def compared(probes: Sequence[Probe], metrics: Mapping[str, str]) -> Row:
        return _compared(_by_way(scores, metrics), job.settings.margin, _found(probes, retrieved))

    result = {
        "clean": job.clean,
        "trained": job.trained,
        "passages": job.passages,
        **compared(asked, {way: way for way in WAYS}),
        "multihop": compared(multihop, OF_MULTIHOP) if multihop else None,
    }
    return result | _verdict(result)


def _texts(ws: Workspace, job: RetrievalJob, stage: Stage) -> Sequence[str]:
    """Return the named documents, or all that the trained checkpoint was taught; say whose were removed."""
    if job.docs:
        reading = ws.config.midtrain.reading
        progress = reading_progress(stage.step, Path(job.docs), reading.leave_out)
        return documents.read_corpus(Path(job.docs), reading.limits, progress=progress).texts
    student = job.trained or job.clean
    found = learned(ws, student, ALL_TEXTS)
    if not found.texts:
        raise InputError(f"no documents of {student} are kept: give them with --docs")
    newest = ws.midtraining_runs(student)[-1]["id"]
    if newest in found.absent:
        raise InputError(f"the documents of {newest}, the newest, were removed: give them with --docs")
    say_absent(found.absent, True, stage, "retrieval")
    return found.texts


def _retrieved(texts: Sequence[str], probes: Sequence[Probe], count: int) -> dict[str, list[str]]:
    """Return the retrieved passages of each probe, by its id."""
    pieces = [passage.text for passage in passages(texts)]
    found = Retriever(pieces).find([probe.prompt for probe in probes], count)
    return {probe.id: some for probe, some in zip(probes, found, strict=True)}


def _found(probes: Sequence[Probe], retrieved: Mapping[str, Sequence[str]]) -> float:
    """Return the share of questions whose answer stands in their retrieved passages."""
    return share([matches("\n\n".join(retrieved[one.id]), one.answers) for one in probes])


def _written(path: Path, retrieved: Mapping[str, Sequence[str]]) -> str:
    rows = ({"id": name, "passages": list(some)} for name, some in retrieved.items())
    jsonl.write(path, rows)
    return str(path.absolute())


# Scores ----------------------------------------------------------------------------------------------------


def _scores(
    ws: Workspace, job: RetrievalJob, stage: Stage, label: str, checkpoint: str, file: str
) -> dict[str, Row]:
    """Score a checkpoint in every way; return score, items and cost by metric."""
    settings = override(job.settings, {"open_book": label == "clean", "samples": 1})
    asked = EvalJob(checkpoint=checkpoint, suites=(KNOWLEDGE,), settings=settings, passages=file, label=label)
    key = f"eval:{label}"
    evaluate(ws, inherited(asked, job), parent=stage.id, key=key)
    run = queries.run_of_key(ws.tracker.db, key, parent=stage.id)
    assert run is not None
    return {
        row["metric"]: row | {"items": recorded_items(ws, row["id"])}
        for row in queries.scores(ws.tracker.db, run_id=run["id"])
    }


def _by_way(scores: Measured, metrics: Mapping[str, str]) -> Measured:
    """Return the scores of some questions by way, where `metrics` names that of each way."""
    return {
        label: {way: rows[metrics[way]] for way in WAYS if metrics[way] in rows}
        for label, rows in scores.items()
    }


def _compared(measured: Measured, margin: float, found: float) -> Row:
    ways = [_way(label, way, row) for label, rows in measured.items() for way, row in rows.items()]
    return {"found": found, "ways": ways, "comparisons": _comparisons(measured, margin)}


def _way(label: str, way: str, row: Row) -> Row:
    details = row["details"]
    return {
        "way": label + WAYS[way],
        "checkpoint": row["checkpoint_id"],
        "metric": row["metric"],
        "score": row["value"],
        "interval": [row["low"], row["high"]],
        "n": row["n"],
        "tokens_per_answer": (details["tokens_read"] + details["tokens_written"]) / row["n"],
    }


def _comparisons(measured: Measured, margin: float) -> dict[str, Row]:
    """Compare what retrieval gives with what training gave, and with both together."""
    if "trained" not in measured:
        return {}
    clean, trained = measured["clean"], measured["trained"]
    return {
        "retrieval_instead": _paired(clean[RETRIEVAL]["items"], trained[LENIENT]["items"], margin),
        "training_beside": _paired(trained[RETRIEVAL]["items"], clean[RETRIEVAL]["items"], margin),
    }


def _paired(after: Sequence[Item], before: Sequence[Item], margin: float) -> Row:
    """Compare the answers to the same questions, whatever stood before them in the prompt."""
    others = {item.key: item for item in after}
    pairs = [(others[item.key], item) for item in before]
    passed = [one.passed for one, _ in pairs], [other.passed for _, other in pairs]
    groups = [item.cluster for _, item in pairs]
    difference = statistics.compare(*passed, clusters=groups)
    kept = statistics.non_inferiority(*passed, margin=margin, clusters=groups)
    return asdict(difference) | {
        "interval": list(difference.interval),
        "outcome": kept.outcome,
        "margin": margin,
        "lower_bound": kept.lower_bound,
        "upper_bound": kept.upper_bound,
        "needed_n": kept.needed_n,
    }


# Verdict ---------------------------------------------------------------------------------------------------

WORDS = {"passed": "retrieval alone", "failed": "training", "underpowered": "undecided"}


def _verdict(result: Result) -> Row:
    """Say whether retrieval alone would have done, with the bound that decides."""
    ways = {row["way"]: row for row in result["ways"]}
    looked_up = ways["clean + retrieval"]
    if "trained" not in ways:
        return {"verdict": "clean alone", "words": _untrained(ways, result["found"])}
    found = result["comparisons"]["retrieval_instead"]
    trained = ways["trained"]
    gained = trained["score"] - ways["clean"]["score"]
    price = looked_up["tokens_per_answer"] / trained["tokens_per_answer"]
    ways_compared = (
        f"the clean model with {result['passages']} retrieved passages answers {looked_up['score']:.1%}, "
        f"the trained one from memory {trained['score']:.1%}; retrieval takes {price:.1f} times the tokens "
        f"an answer"
    )
    if gained <= found["margin"]:
        return {"verdict": "nothing learned", "words": f"{_unlearned(gained, found)}: {ways_compared}"}
    return {
        "verdict": WORDS[found["outcome"]],
        "words": f"{_decided(found)}: {ways_compared}",
    }


def _unlearned(gained: float, found: Row) -> str:
    """Say that training gave nothing that retrieval could take the place of."""
    return (
        f"nothing was learned: from memory the trained model has {100 * gained:+.1f} points "
        f"against the clean one, no more than the margin of {100 * found['margin']:g} points"
    )


def _decided(found: Row) -> str:
    margin = f"{100 * found['margin']:g} points"
    difference, low, high = (
        f"{100 * found[name]:+.1f}" for name in ("difference", "lower_bound", "upper_bound")
    )
    if found["outcome"] == "passed":
        return (
            f"retrieval alone would have done: at most {margin} worse than training (one-sided 95 % lower "
            f"bound {low} points)"
        )
    if found["outcome"] == "failed":
        return (
            f"training was needed: retrieval alone is more than {margin} worse (one-sided 95 % upper bound "
            f"{high} points)"
        )
    return (
        f"undecided: retrieval alone differs by {difference} points, bounds {low} to {high}; "
        f"{enough_in_words(found['needed_n'], 'questions')}"
    )


def _untrained(ways: Mapping[str, Row], found: float) -> str:
    looked_up, closed = ways["clean + retrieval"], ways["clean"]
    low, high = looked_up["interval"]
    return (
        f"the clean model alone answers {looked_up['score']:.1%} [{low:.1%}, {high:.1%}] with retrieval, "
        f"{closed['score']:.1%} without; the passages hold the answer to {found:.1%} of the questions"
    )
