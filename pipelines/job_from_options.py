"""What was typed, turned into a job: aliases resolved, settings from recover.yaml, options on top."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from db import queries
from pipelines.config.jobs import DistillJob, DriftJob, EvalJob, Kind, MergeJob, MidtrainJob, SweepJob
from pipelines.config.settings import (
    EvalConfig,
    LoraConfig,
    StopConfig,
    override,
    parse_pairs,
    strictly,
    with_method,
)
from pipelines.corpus import documents
from pipelines.distill import distill
from pipelines.distillation import engine_places
from pipelines.distillation.inputs import check_read, is_file
from pipelines.evaluate import SUITES
from pipelines.midtrain import with_augmented, with_mix
from pipelines.runs.workspace import Workspace, companions, placed, prompts_of
from pipelines.sweep import parse_weights
from recovery.errors import InputError
from recovery.methods.table import with_dials


def midtrain_job(
    ws: Workspace,
    docs: Path,
    student: str,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    learning_rate: float | None = None,
    mix: str | None = None,
    lora: int | None = None,
    freeze_embeddings: bool | None = None,
    prompts: str | None = None,
    strict: bool = False,
    augment: Path | None = None,
    seed: int | None = None,
) -> MidtrainJob:
    settings = ws.config.midtrain
    documents.require(docs)
    if steps is not None or epochs is not None:
        neither = settings.model_copy(update={"steps": None, "epochs": None})
        settings = override(neither, {"steps": steps, "epochs": epochs})
    settings = with_augmented(with_mix(settings, mix), augment)
    settings = override(settings, {"freeze_embeddings": freeze_embeddings})
    settings = _trained(strictly(settings, strict), learning_rate, lora)
    return MidtrainJob(
        docs=str(docs.absolute()),
        student=ws.checkpoint(student).id,
        settings=settings,
        evaluation=_evaluation(ws, companions(docs), None, None),
        augment=str(augment.absolute()) if augment else None,
        prompts=prompts_of(ws, prompts, companions(docs), ws.config.distill.prompts),
        seed=ws.config.seed if seed is None else seed,
    )


def distill_job(
    ws: Workspace,
    teacher: str,
    student: str | None,
    *,
    method: str | None = None,
    dials: tuple[str, ...] = (),
    prompts: str | None = None,
    pairs: str | None = None,
    context: str | None = None,
    reward: str | None = None,
    routes: tuple[str, ...] = (),
    steps: int | None = None,
    learning_rate: float | None = None,
    lora: int | None = None,
    stop_when_recovered: bool = False,
    overlap: str | None = None,
    tripwire: float | None = None,
    docs: Path | None = None,
    seed: int | None = None,
    sampler: str | None = None,
    teacher_engine: str | None = None,
    merge: float | None = None,
    rehearsal: float | None = None,
    ahead: int | None = None,
) -> DistillJob:
    chosen_method = with_method(ws.config.distill, method, parse_pairs(",".join(dials)))
    by_name = {**ws.config.distill.routes, **parse_pairs(",".join(routes))}
    if context is not None and is_file(context):
        context = str(Path(context).absolute())
    settings = override(
        chosen_method,
        {
            "steps": steps,
            "pairs": placed(pairs),
            "context": context,
            "reward": reward,
            "sampler": sampler,
            "teacher_engine": teacher_engine,
            "ahead": ahead,
            "routes": {name: ws.checkpoint(place).id for name, place in by_name.items()},
            "overlap": overlap,
            "merge": merge,
            "rehearsal": rehearsal,
            "tripwire_share": tripwire,
        },
    )
    if stop_when_recovered and settings.stop is None:
        settings = settings.model_copy(update={"stop": StopConfig()})
    row = with_dials(settings.method, settings.dials)
    engine_places.check(settings, row)
    check_read(row, pairs=pairs, context=context, reward=reward, route=routes)
    settings = _trained(settings, learning_rate, lora)
    chosen = ws.checkpoint(student or newest_midtrained(ws)).id
    beside = docs_companions(ws, chosen)
    return DistillJob(
        student=chosen,
        teacher=ws.checkpoint(teacher).id,
        settings=settings,
        prompts=prompts_of(ws, prompts, beside, settings.prompts),
        evaluation=_evaluation(ws, beside, None, None),
        docs=placed_docs(docs),
        seed=ws.config.seed if seed is None else seed,
    )


def distill_alone(ws: Workspace, job: DistillJob, *, key: str) -> dict[str, Any]:
    """A distillation outside of a cycle: no verdict is waited for, its model becomes `current` at once."""
    found = distill(ws, job, key=key)
    ws.tracker.set_alias("current", found["checkpoint"])
    return found


def eval_job(
    ws: Workspace,
    checkpoint: str | None,
    suites: str | None,
    ifeval: str | None,
    probes: str | None,
    *,
    tasks: str | None = None,
    chat: bool = False,
    samples: int | None = None,
    output: str | None = None,
    sampler: str | None = None,
) -> EvalJob:
    """Without suites: all that can be asked with the files at hand."""
    chosen = ws.checkpoint(checkpoint or "current").id
    settings = override(
        _evaluation(ws, docs_companions(ws, chosen), ifeval, probes),
        {
            "tasks": str(Path(tasks).absolute()) if tasks else None,
            "tasks_in_chat": chat or None,
            "samples": samples,
            "sampler": sampler,
        },
    )
    given = [name for name, value in (("ifeval", ifeval), ("probes", probes)) if value]
    names = suites.split(",") if suites else _askable(settings, given)
    return EvalJob(
        checkpoint=chosen,
        suites=tuple(name.strip() for name in names),
        settings=settings,
        output=str(Path(output).absolute()) if output else None,
        seed=ws.config.seed,
    )


def drift_job(
    ws: Workspace, a: str, b: str, *, prompts: str | None, count: int, max_new_tokens: int, seed: int | None
) -> DriftJob:
    beside = docs_companions(ws, ws.checkpoint(b).id)
    return DriftJob(
        a=ws.checkpoint(a).id,
        b=ws.checkpoint(b).id,
        prompts=prompts_of(ws, prompts, beside, ws.config.distill.prompts),
        count=count,
        max_new_tokens=max_new_tokens,
        seed=ws.config.seed if seed is None else seed,
    )


def _askable(settings: EvalConfig, given: list[str]) -> list[str]:
    """Files named on the command line say what is wanted; else everything that the settings allow."""
    asked = given or [name for name in ("ifeval", "probes") if getattr(settings, name)]
    return [suite for suite in SUITES if ("ifeval" if suite == "ifeval" else "probes") in asked]


def _evaluation(ws: Workspace, beside: dict[str, str], ifeval: str | None, probes: str | None) -> EvalConfig:
    """What was typed, else a file beside the documents that the checkpoint was taught, else recover.yaml."""
    found: EvalConfig = override(
        ws.config.eval,
        {"ifeval": placed(ifeval or beside.get("ifeval")), "probes": placed(probes or beside.get("probes"))},
    )
    return found


def _trained(settings: Any, learning_rate: float | None, lora: int | None) -> Any:
    if learning_rate is not None:
        optimizer = override(settings.optimizer, {"learning_rate": learning_rate})
        settings = settings.model_copy(update={"optimizer": optimizer})
    if lora is not None:
        settings = settings.model_copy(update={"lora": LoraConfig(rank=lora) if lora else None})
    return settings


def merge_job(
    ws: Workspace,
    weight: float,
    other: str,
    student: str | None,
    kind: Kind,
    origin: str | None,
    **sweep: str | None,
) -> MergeJob:
    for name, value in sweep.items():
        if value is not None:
            option = "suite" if name == "suites" else name
            raise InputError(f"--{option} has no effect with --weight: it belongs to --sweep")
    return MergeJob(
        student=ws.checkpoint(student or newest_midtrained(ws)).id,
        other=ws.checkpoint(other).id,
        weight=weight,
        kind=kind,
        origin=ws.checkpoint(origin).id if origin else None,
    )


def sweep_job(
    ws: Workspace,
    weights: str,
    other: str,
    student: str | None,
    kind: Kind,
    origin: str | None,
    **asked: str | None,
) -> SweepJob:
    merged = merge_job(ws, 0.0, other, student, kind, origin)
    measured = eval_job(ws, merged.student, asked["suites"], asked["ifeval"], asked["probes"])
    return SweepJob(
        student=merged.student,
        other=merged.other,
        weights=parse_weights(weights),
        kind=kind,
        origin=merged.origin,
        suites=measured.suites,
        settings=measured.settings,
    )


def placed_docs(docs: Path | None) -> str | None:
    """A folder of documents by its full path, refused here if nothing in it can be read."""
    if docs is None:
        return None
    documents.require(docs)
    return str(docs.absolute())


def newest_midtrained(ws: Workspace) -> str:
    """The checkpoint of the newest midtraining that was finished."""
    for run in queries.runs(ws.tracker.db, kind="midtrain", status="done", limit=1):
        return str(run["result"]["checkpoint"])
    raise InputError("nothing was midtrained yet: run `recover midtrain --docs DIR` first, or give --student")


def docs_companions(ws: Workspace, checkpoint: str) -> dict[str, str]:
    """Files beside the documents that a checkpoint was last taught."""
    runs = ws.midtraining_runs(checkpoint)
    return companions(Path(runs[-1]["config"]["docs"])) if runs else {}
