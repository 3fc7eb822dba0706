"""Jobs from settings: recover.yaml, then the files beside the documents, then the options that were typed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from db import queries
from pipelines.choose import CHOICES
from pipelines.config.jobs import (
    CycleJob,
    DistillJob,
    DriftJob,
    EvalJob,
    Kind,
    MergeJob,
    MidtrainJob,
    SweepJob,
)
from pipelines.config.settings import Config, DistillConfig, changed
from pipelines.corpus import documents
from pipelines.distillation import engine_places
from pipelines.distillation.inputs import check_read
from pipelines.distillation.prompts import read_prompts
from pipelines.evaluate import answerable_suites
from pipelines.midtrain import with_augmented
from pipelines.runs.workspace import Workspace, companions
from pipelines.sweep import parse_weights
from pipelines.writing import self_prompts
from recovery.errors import InputError
from recovery.methods.table import with_dials

if TYPE_CHECKING:
    from recovery.storage.checkpoints import Checkpoint

Changes = Mapping[str, Any]  # settings by their key in recover.yaml: {"distill.steps": 20}
BESIDE = {"probes": "eval.probes", "ifeval": "eval.ifeval", "prompts": "distill.prompts"}
OPTIONS_OF_SOME_METHODS = {
    "pairs": "distill.pairs",
    "context": "distill.context",
    "reward": "distill.reward",
    "route": "distill.routes",
}
NONE: Changes = {}


def resolved(ws: Workspace, docs: Path | None, changes: Changes = NONE) -> Config:
    """recover.yaml, overridden by the files beside the documents, and both by `changes`."""
    beside = companions(docs) if docs else {}
    from_files = {BESIDE[name]: path for name, path in beside.items()}
    return changed(ws.config, {**from_files, **changes})


def cycle_job(
    ws: Workspace,
    docs: Path,
    *,
    student: str = "current",
    augment: Path | None = None,
    recover_with: str | None = None,
    changes: Changes = NONE,
) -> CycleJob:
    """A whole cycle, every setting resolved now; what only a later stage needs is checked now as well."""
    if recover_with and "distill.method" in changes:
        raise InputError("--method and --recover-with say the same thing: give one of them")
    chosen_later = recover_with if recover_with in CHOICES else None
    if recover_with and not chosen_later:
        changes = {**changes, "distill.method": recover_with}
    settings = resolved(ws, docs, changes)
    documents.require(docs)
    taught = with_augmented(settings.midtrain, augment)
    settings = settings.model_copy(update={"midtrain": taught})
    _refuse_early(settings.distill, by_method=chosen_later is None)
    chosen = ws.checkpoint(student).id
    return CycleJob(
        docs=str(docs.absolute()),
        student=chosen,
        clean=ws.clean().id,
        settings=settings,
        prompts=_prompts(ws, settings, changes),
        suites=answerable_suites(settings.eval, settings.model.path),
        earlier=_earlier_probes(ws, chosen),
        augment=str(augment.absolute()) if augment else None,
        seed=settings.seed,
        recover_with=chosen_later,
    )


def _refuse_early(settings: DistillConfig, *, by_method: bool) -> None:
    """Refuse now what the distillation would refuse after the midtraining."""
    method = with_dials(settings.method, settings.dials)
    if by_method:
        engine_places.check(settings, method)
    if not settings.prompts.startswith("hub:") and settings.prompts != self_prompts.SELF:
        read_prompts(settings.prompts)


def _prompts(ws: Workspace, settings: Config, changes: Changes) -> str:
    """The source of recovery prompts; of `self` the file, which the clean model writes on first use.

    Say so where prompts.jsonl beside the documents takes the place of recover.yaml's source.
    """
    source, configured = settings.distill.prompts, ws.config.distill.prompts
    if source != configured and "distill.prompts" not in changes:
        ws.progress.say(f"  prompts      {source} beside the documents, not {configured} of recover.yaml")
    return self_prompts.resolved(ws, source, settings.seed)


def _earlier_probes(ws: Workspace, student: str) -> dict[int, str]:
    """The probes of the cycles that the student has been through, by cycle number."""
    past = {row["id"] for row in ws.lineage(student)}
    cycles = [row for row in queries.cycles(ws.tracker.db) if row["checkpoints"]["recovered"] in past]
    jobs = {row["cycle"]: queries.run(ws.tracker.db, row["run"])["config"] for row in cycles}
    probes = {number: job["settings"]["eval"]["probes"] for number, job in jobs.items()}
    return {number: path for number, path in probes.items() if path and Path(path).is_file()}


def midtrain_job(
    ws: Workspace,
    docs: Path,
    student: str = "current",
    *,
    augment: Path | None = None,
    changes: Changes = NONE,
) -> MidtrainJob:
    settings = resolved(ws, docs, changes)
    documents.require(docs)
    chosen = ws.checkpoint(student)
    _require_rank(chosen, changes, "midtrain.lora")
    return MidtrainJob(
        docs=str(docs.absolute()),
        student=chosen.id,
        settings=with_augmented(settings.midtrain, augment),
        evaluation=settings.eval,
        augment=str(augment.absolute()) if augment else None,
        prompts=_prompts(ws, settings, changes) if settings.midtrain.mix.chat else settings.distill.prompts,
        seed=settings.seed,
    )


def _require_rank(student: Checkpoint, changes: Changes, key: str) -> None:
    """Refuse a rank that was typed and is not that of the student's adapter."""
    if key in changes:
        from recovery.models.adapters import require_rank

        lora = changes[key] or {"rank": 0}
        require_rank(student.path, lora["rank"])


def distill_job(
    ws: Workspace,
    teacher: str = "base",
    student: str | None = None,
    *,
    docs: Path | None = None,
    changes: Changes = NONE,
) -> DistillJob:
    """Without a student, the newest midtrained checkpoint."""
    checkpoint = ws.checkpoint(student or newest_midtrained(ws))
    _require_rank(checkpoint, changes, "distill.lora")
    chosen = checkpoint.id
    settings = resolved(ws, taught_folder(ws, chosen), changes)
    routes = {name: ws.checkpoint(place).id for name, place in settings.distill.routes.items()}
    distill = settings.distill.model_copy(update={"routes": routes})
    method = with_dials(distill.method, distill.dials)
    engine_places.check(distill, method)
    typed = {option: changes.get(key) for option, key in OPTIONS_OF_SOME_METHODS.items()}
    check_read(method, **typed)
    return DistillJob(
        student=chosen,
        teacher=ws.checkpoint(teacher).id,
        settings=distill,
        prompts=_prompts(ws, settings, changes),
        evaluation=settings.eval,
        docs=placed_docs(docs),
        seed=settings.seed,
    )


def eval_job(
    ws: Workspace,
    checkpoint: str | None = None,
    suites: str | None = None,
    *,
    output: str | None = None,
    changes: Changes = NONE,
) -> EvalJob:
    """Without suites: all for which there are questions."""
    chosen = ws.checkpoint(checkpoint or "current").id
    settings = resolved(ws, taught_folder(ws, chosen), changes)
    names = suites.split(",") if suites else _answerable(settings, changes)
    return EvalJob(
        checkpoint=chosen,
        suites=tuple(name.strip() for name in names),
        settings=settings.eval,
        output=str(Path(output).absolute()) if output else None,
        seed=settings.seed,
    )


def _answerable(settings: Config, changes: Changes) -> list[str]:
    """All suites for which there are questions; only those of --ifeval or --probes where one was given."""
    found = answerable_suites(settings.eval, settings.model.path)
    named = [name for name in ("ifeval", "probes") if f"eval.{name}" in changes]
    return [suite for suite in found if not named or ("ifeval" if suite == "ifeval" else "probes") in named]


def drift_job(
    ws: Workspace, a: str, b: str, *, count: int, max_new_tokens: int, changes: Changes = NONE
) -> DriftJob:
    first, second = ws.checkpoint(a).id, ws.checkpoint(b).id
    settings = resolved(ws, taught_folder(ws, second), changes)
    return DriftJob(
        a=first,
        b=second,
        prompts=_prompts(ws, settings, changes),
        count=count,
        max_new_tokens=max_new_tokens,
        seed=settings.seed,
    )


def merge_job(
    ws: Workspace,
    weight: float,
    other: str = "base",
    student: str | None = None,
    kind: Kind = "linear",
    origin: str | None = None,
) -> MergeJob:
    return MergeJob(
        student=ws.checkpoint(student or newest_midtrained(ws)).id,
        other=ws.checkpoint(other).id,
        weight=weight,
        kind=kind,
        origin=ws.checkpoint(origin).id if origin else None,
    )


def sweep_job(
    ws: Workspace, weights: str, merged: MergeJob, suites: str | None = None, changes: Changes = NONE
) -> SweepJob:
    """The same merge in each of these shares, and how to measure what comes out."""
    measured = eval_job(ws, merged.student, suites, changes=changes)
    return SweepJob(
        student=merged.student,
        other=merged.other,
        weights=parse_weights(weights),
        kind=merged.kind,
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


def taught_folder(ws: Workspace, checkpoint: str) -> Path | None:
    """The folder of documents that a checkpoint was last taught; None for the clean model."""
    runs = ws.midtraining_runs(checkpoint)
    return Path(runs[-1]["config"]["docs"]) if runs else None
