"""Cheapest first, until one does the job: nothing, the clean embeddings, merged weights, self-answered SFT,
distillation.

One half of the evaluation (the probe split) judges the candidates; the first that passes all axes is chosen.
The other half (the confirmation split) had no part in the choice and gives the cycle's verdict.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evals import ifeval, jsonl, verdict
from evals.probes import PROBE_SUITES, suite_probes
from evals.scores import Item, cluster
from pipelines.config.jobs import ChooseJob, DistillJob, EvalJob, MergeJob
from pipelines.config.overrides import override
from pipelines.config.sections.eval import EvalConfig
from pipelines.distill import distill
from pipelines.distillation.leaks import ifeval_path
from pipelines.evaluate import evaluate
from pipelines.evaluation.recorded_scores import recorded_items, require_same_questions
from pipelines.merge import merge
from pipelines.runs.pinned_inputs import inherited, pinned
from pipelines.runs.stage_runner import Result, Stage, run_stage
from pipelines.runs.workspace import Workspace
from recovery.errors import RecoverError

CHOICES = ("auto", "merge")  # beside any row of `recover methods`
WEIGHTS = (0.3, 0.5, 0.7)  # of the clean checkpoint, the least first
EMBEDDINGS = "embeddings"  # and head: the clean model's, all else as it is
SELF_ANSWERED = "seqkd"  # the row whose data are the clean model's own answers

Items = Mapping[str, Mapping[str, Sequence[Item]]]  # suite -> stage -> items


@dataclass(frozen=True)
class Candidate:
    """A candidate and its verdict on the probe split."""

    name: str
    checkpoint: str
    passed: bool
    behaviour: float | None  # difference to the clean model on the probe split
    words: list[str]


def choose(ws: Workspace, job: ChooseJob, *, parent: str | None = None, key: str | None = None) -> Result:
    """Try candidates in order of cost until one passes; return {"checkpoint", "chosen", "tried": [...]}.

    A candidate that cannot be made is left out with its reason ("left_out"); the last one's error is raised.
    """
    job = pinned(ws, job)
    return run_stage(
        ws,
        "choose",
        lambda stage: _work(ws, job, stage),
        config=job.model_dump(),
        parent=parent,
        key=key,
        seed=job.seed,
    )


def _work(ws: Workspace, job: ChooseJob, stage: Stage) -> Result:
    settings = write_probe_split(job.settings.eval, stage.directory, job.seed)
    standards = {
        suite: {
            label: _on_probe(recorded_items(ws, ids[suite]), job.seed)
            for label, ids in job.scores.items()
            if suite in ids
        }
        for suite in job.suites
    }
    _warn_of_small_halves(job, stage, standards)
    tried: list[Candidate] = []
    left_out: dict[str, str] = {}
    names = list(_names(job.how))
    for name in names:
        try:
            checkpoint = _made(ws, job, stage, name)
        except RecoverError as error:
            if name == names[-1]:
                raise
            left_out[name] = str(error)
            stage.say(f"  choose       {name}: left out: {error}")
            continue
        tried.append(_judged(ws, job, stage, name, checkpoint, settings, standards))
        stage.say(
            f"  choose       {name}: {'passes' if tried[-1].passed else 'does not pass'} on the probe split"
        )
        if tried[-1].passed:
            break
    chosen = tried[-1] if tried[-1].passed or job.how == "auto" else max(tried, key=_behaviour)
    result: Result = {"checkpoint": chosen.checkpoint, "chosen": chosen.name}
    result["tried"] = [asdict(one) for one in tried]
    return result | ({"left_out": left_out} if left_out else {})


def _warn_of_small_halves(job: ChooseJob, stage: Stage, standards: Items) -> None:
    """Say before any candidate is made that half of the evaluation may be too small to show anything."""
    halves = {
        axis.name: len({cluster(item.key, item.detail) for item in standards[axis.suite]["clean"]})
        for axis in verdict.EVERY_AXIS
        if standards.get(axis.suite)
    }
    for line in verdict.power_warning(halves, job.settings.eval.margins()):
        stage.say(
            f"  choose       {line}: raise eval.samples or write more prompts (`recover prompts ifeval`)"
        )


def _names(how: str) -> Iterator[str]:
    """Yield the candidates, the cheapest first."""
    if how == "auto":
        yield "none"
        yield EMBEDDINGS
    yield from (f"merge:{weight:g}" for weight in WEIGHTS)
    if how == "auto":
        yield SELF_ANSWERED
        yield "distill"


def _made(ws: Workspace, job: ChooseJob, stage: Stage, name: str) -> str:
    """Train a candidate and return its checkpoint."""
    if name == "none":
        return job.student
    if name == EMBEDDINGS:
        mixed = MergeJob(student=job.student, other=job.clean, weight=1.0, kind="embeddings")
        return str(merge(ws, mixed, parent=stage.id, key=name)["checkpoint"])
    if name.startswith("merge:"):
        mixed = MergeJob(student=job.student, other=job.clean, weight=float(name.split(":")[1]))
        return str(merge(ws, mixed, parent=stage.id, key=name)["checkpoint"])
    settings = job.settings.distill
    if name == SELF_ANSWERED and settings.method != SELF_ANSWERED:
        plain = {"dials": {}, "ahead": 0, "offload_teacher": False}
        settings = override(settings, {"method": SELF_ANSWERED, **plain})
    wanted = DistillJob(
        student=job.student,
        teacher=job.clean,
        prompts=job.prompts,
        settings=settings,
        evaluation=job.settings.eval,
        seed=job.seed,
    )
    return str(distill(ws, inherited(wanted, job), parent=stage.id, key=name)["checkpoint"])


def _judged(
    ws: Workspace,
    job: ChooseJob,
    stage: Stage,
    name: str,
    checkpoint: str,
    settings: EvalConfig,
    standards: Items,
) -> Candidate:
    """Return the verdict on the probe split."""
    asked = EvalJob(checkpoint=checkpoint, suites=job.suites, settings=settings, label=name)
    ids = evaluate(ws, asked, parent=stage.id, key=f"eval:{name}")["score_ids"]
    suites = {
        suite: {**standards[suite], "recovered": _on_probe(recorded_items(ws, ids[suite]), job.seed)}
        if suite in ids
        else {}
        for suite in job.suites
    }
    for suite, stages in suites.items():
        require_same_questions(suite, stages)
    found = verdict.verdict(suites, job.settings.eval.margins())
    behaviour = found["axes"].get("behaviour", {}).get("difference")
    return Candidate(
        name, checkpoint, verdict.accepted(found, job.required), behaviour, verdict.summary(found)
    )


def _behaviour(tried: Candidate) -> float:
    return -1.0 if tried.behaviour is None else tried.behaviour


# The two halves --------------------------------------------------------------------------------------------


def _on_probe(items: Sequence[Item], seed: int) -> list[Item]:
    return [item for item in items if on_probe(item, seed)]


def on_probe(item: Item, seed: int) -> bool:
    """Return whether an item is in the probe split; items of one cluster are always in the same half."""
    return _first_half(cluster(item.key, item.detail), seed)


def _first_half(label: str, seed: int) -> bool:
    return hashlib.sha256(f"{seed}:{label}".encode()).digest()[0] < 128


def write_probe_split(settings: EvalConfig, folder: Path, seed: int) -> EvalConfig:
    """Write the probe split's prompts and probes to files; return the settings that evaluate on them."""
    rows = [row for row in ifeval.rows(ifeval_path(settings)) if _first_half(str(row["key"]), seed)]
    files = {"ifeval": _written(folder / "probe-ifeval.jsonl", rows)}
    everything = [probe for suite in PROBE_SUITES for probe in suite_probes(settings.probes, suite)]
    probes = [probe for probe in everything if _first_half(probe.fact, seed)]
    files["probes"] = _written(folder / "probe-probes.jsonl", [probe.row() for probe in probes])
    found: EvalConfig = override(settings, files)
    return found


def _written(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text(jsonl.lines(rows), encoding="utf-8")
    return str(path.absolute())
