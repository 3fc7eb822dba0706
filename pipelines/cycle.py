"""One cycle: teach, see what was learned and forgotten, recover, see what came back, decide."""

from __future__ import annotations

from pathlib import Path

from db import queries
from evals import verdict
from evals.scores import Item
from pipelines import choose as choosing
from pipelines.choose import choose
from pipelines.config.jobs import ChooseJob, CycleJob, DistillJob, EvalJob, MidtrainJob
from pipelines.config.settings import DistillConfig, override, strictly, with_method
from pipelines.corpus import documents
from pipelines.distill import distill
from pipelines.distillation import engine_places
from pipelines.distillation.prompts import read_prompts
from pipelines.evaluate import SUITES, evaluate, recorded_items
from pipelines.midtrain import midtrain, with_augmented, with_mix
from pipelines.runs.stage_runner import Result, Stage, run_stage
from pipelines.runs.workspace import Workspace, companions, placed, prompts_of
from recovery.errors import InputError, RecoverError
from recovery.methods.table import with_dials


def cycle(ws: Workspace, job: CycleJob, *, parent: str | None = None, key: str | None = None) -> Result:
    """Runs a cycle, or goes on with it; returns {"cycle": number, "status": ...}."""
    return run_stage(
        ws,
        "cycle",
        lambda stage: _marked(ws, job, stage),
        config=job.model_dump(),
        parent=parent,
        key=key,
        seed=job.seed,
    )


def _marked(ws: Workspace, job: CycleJob, stage: Stage) -> Result:
    """A cycle that breaks off says so in its row; resumed, it is running again."""
    try:
        return _work(ws, job, stage)
    except RecoverError:
        ws.tracker.record_cycle(stage.id, status="failed")
        raise


def _work(ws: Workspace, job: CycleJob, stage: Stage) -> Result:
    number = ws.tracker.record_cycle(stage.id, clean_id=job.clean)
    stage.say(f"cycle {number}: {job.docs}")
    scores = {"clean": _evaluate(ws, job, stage, "clean", job.clean)}

    midtrained = midtrain(ws, _midtraining(job), parent=stage.id, key="midtrain")["checkpoint"]
    ws.tracker.record_cycle(stage.id, midtrained_id=midtrained)
    scores["midtrained"] = _evaluate(ws, job, stage, "midtrained", midtrained)

    recovered = _recover(ws, job, stage, midtrained, scores)
    ws.tracker.record_cycle(stage.id, recovered_id=recovered)
    scores["recovered"] = _evaluate(ws, job, stage, "recovered", recovered, earlier=job.earlier)

    decision = _decide(ws, job, stage, number, scores)
    if decision["status"] == "accepted":
        ws.tracker.set_alias("current", recovered)
    return decision


def _midtraining(job: CycleJob) -> MidtrainJob:
    return MidtrainJob(
        docs=job.docs,
        student=job.student,
        settings=job.settings.midtrain,
        prompts=job.prompts,
        evaluation=job.settings.eval,
        augment=job.augment,
        seed=job.seed,
    )


def _distillation(job: CycleJob, midtrained: str) -> DistillJob:
    return DistillJob(
        student=midtrained,
        teacher=job.clean,
        prompts=job.prompts,
        settings=job.settings.distill,
        evaluation=job.settings.eval,
        seed=job.seed,
    )


def _recover(
    ws: Workspace, job: CycleJob, stage: Stage, midtrained: str, scores: dict[str, dict[str, int]]
) -> str:
    """By the method that was asked for, or by the cheapest that does the job."""
    if job.recover_with is None:
        return str(distill(ws, _distillation(job, midtrained), parent=stage.id, key="distill")["checkpoint"])
    wanted = ChooseJob(
        how=job.recover_with,
        student=midtrained,
        clean=job.clean,
        prompts=job.prompts,
        settings=job.settings,
        suites=job.suites,
        scores=scores,
        seed=job.seed,
    )
    return str(choose(ws, wanted, parent=stage.id, key="choose")["checkpoint"])


def _evaluate(
    ws: Workspace,
    job: CycleJob,
    stage: Stage,
    label: str,
    checkpoint: str,
    earlier: dict[int, str] | None = None,
) -> dict[str, int]:
    """Asks a checkpoint everything; returns where each suite's score is recorded."""
    settings = job.settings.eval
    if label != "clean":  # the ceiling is what can be read, not what was learned
        settings = settings.model_copy(update={"open_book": False})
    asked = EvalJob(
        checkpoint=checkpoint,
        suites=job.suites,
        settings=settings,
        earlier=earlier or {},
        label=label,
    )
    found: dict[str, int] = evaluate(ws, asked, parent=stage.id, key=f"eval:{label}")["score_ids"]
    return found


def _decide(
    ws: Workspace, job: CycleJob, stage: Stage, number: int, scores: dict[str, dict[str, int]]
) -> Result:
    """The verdict on every axis; a cycle that passes them all becomes `current`."""
    suites = {
        suite: {label: _deciding(ws, job, ids[suite]) for label, ids in scores.items()}
        for suite in job.suites
    }
    margins = choosing.margins(job.settings.eval)
    found = verdict.verdict(suites, margins)
    ws.tracker.record_verdicts(number, found["axes"])
    for line in verdict.summary(found):
        stage.say(f"  verdict      {line}")
    status = "accepted" if verdict.accepted(found) else "rejected"
    ws.tracker.record_cycle(stage.id, status=status)
    return {"cycle": number, "status": status, "verdict": verdict.summary(found)}


def _deciding(ws: Workspace, job: CycleJob, score_id: int) -> list[Item]:
    """The items that decide: all, or where a method was chosen, those that had no part in choosing it."""
    items = recorded_items(ws, score_id)
    return [item for item in items if job.recover_with is None or not choosing.on_probe(item, job.seed)]


def prepare(
    ws: Workspace,
    docs: Path,
    *,
    student: str = "current",
    method: str | None = None,
    prompts: str | None = None,
    probes: str | None = None,
    ifeval: str | None = None,
    strict: bool = False,
    mix: str | None = None,
    augment: Path | None = None,
    overlap: str | None = None,
    freeze_embeddings: bool | None = None,
    merge: float | None = None,
    rehearsal: float | None = None,
    seed: int | None = None,
    recover_with: str | None = None,
) -> CycleJob:
    """A cycle's job from recover.yaml, the files beside the documents, and what was typed."""
    beside, config = companions(docs), ws.config
    measured = override(
        config.eval,
        {
            "probes": placed(probes or beside.get("probes")),
            "ifeval": placed(ifeval or beside.get("ifeval")),
        },
    )
    if method and recover_with:
        raise InputError("--method and --recover-with say the same thing: give one of them")
    chosen_later = recover_with if recover_with in choosing.CHOICES else None
    named = method or (None if chosen_later else recover_with)
    distilled = override(
        with_method(config.distill, named), {"overlap": overlap, "merge": merge, "rehearsal": rehearsal}
    )
    taught = override(
        strictly(with_augmented(with_mix(config.midtrain, mix), augment), strict),
        {"freeze_embeddings": freeze_embeddings},
    )
    settings = config.model_copy(update={"midtrain": taught, "eval": measured, "distill": distilled})
    asked_of = placed(prompts or beside.get("prompts") or config.distill.prompts)
    chosen = ws.checkpoint(student).id
    _refuse_early(docs, distilled, asked_of, by_method=chosen_later is None)
    return CycleJob(
        docs=str(docs.absolute()),
        student=chosen,
        clean=ws.clean().id,
        settings=settings,
        prompts=prompts_of(ws, prompts, beside, config.distill.prompts),
        suites=SUITES if measured.probes else ("ifeval",),
        earlier=_earlier_probes(ws, chosen),
        augment=str(augment.absolute()) if augment else None,
        seed=config.seed if seed is None else seed,
        recover_with=chosen_later,
    )


def _refuse_early(docs: Path, distilled: DistillConfig, prompts: str, *, by_method: bool) -> None:
    """What only a later stage needs is looked at now: nobody wants to hear of a wrong name after hours."""
    documents.require(docs)
    method = with_dials(distilled.method, distilled.dials)
    if by_method:
        engine_places.check(distilled, method)
    if not prompts.startswith("hub:"):
        read_prompts(prompts)


def _earlier_probes(ws: Workspace, student: str) -> dict[int, str]:
    """The probes of the cycles that the student has been through, by cycle number."""
    past = {row["id"] for row in ws.lineage(student)}
    cycles = [row for row in queries.cycles(ws.tracker.db) if row["checkpoints"]["recovered"] in past]
    jobs = {row["cycle"]: queries.run(ws.tracker.db, row["run"])["config"] for row in cycles}
    probes = {number: job["settings"]["eval"]["probes"] for number, job in jobs.items()}
    return {number: path for number, path in probes.items() if path and Path(path).is_file()}
