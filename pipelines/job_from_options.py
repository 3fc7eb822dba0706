"""Jobs from settings: recover.yaml, then the files beside the documents, then the options that were typed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from db.reads import queries
from evals.families.table import FAMILIES
from evals.task_names import OURS, require_families
from evals.verdict import EVERY_AXIS
from pipelines.choose import CHOICES
from pipelines.config.jobs import (
    CycleJob,
    DistillJob,
    DriftJob,
    EvalJob,
    LocateJob,
    MergeJob,
    MidtrainJob,
    Mixture,
    PilotJob,
    RetrievalJob,
    SweepJob,
)
from pipelines.config.overrides import changed
from pipelines.config.sections.training import LoraConfig
from pipelines.config.settings import Config
from pipelines.corpus import documents
from pipelines.cycle import distillation
from pipelines.distill import check_inputs
from pipelines.distillation import engine_places
from pipelines.distillation.inputs import check_read
from pipelines.distillation.leaks import ifeval_path
from pipelines.evaluation.suites import answerable_suites
from pipelines.midtrain import with_augmented
from pipelines.runs.recorded import earlier_probes, is_cycle
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
PILOT_SHARE = 0.125  # of the documents
LATEST = 1000  # midtrainings among which the newest that is no pilot's is looked for
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
    suites: str | None = None,
    augment: Path | None = None,
    recover_with: str | None = None,
    changes: Changes = NONE,
) -> CycleJob:
    """Build a cycle with every setting resolved, and check the inputs of all its stages.

    Without suites: all that have questions, behaviour and knowledge being required for acceptance.
    """
    if recover_with and "distill.method" in changes:
        raise InputError("--method and --recover-with say the same thing: give one of them")
    chosen_later = recover_with if recover_with in CHOICES else None
    if recover_with and not chosen_later:
        changes = {**changes, "distill.method": recover_with}
    settings = resolved(ws, docs, changes)
    if not chosen_later:
        with_dials(settings.distill.method, settings.distill.dials)
    documents.require(docs)
    taught = with_augmented(settings.midtrain, augment)
    settings = settings.model_copy(update={"midtrain": taught})
    ifeval_path(settings.eval)
    measured = _judged_suites(settings, suites, typed="eval.behaviours" in changes)
    behaviours = tuple(name for name in measured if name in FAMILIES)
    evaluation = settings.eval.model_copy(update={"behaviours": behaviours})
    settings = settings.model_copy(update={"eval": evaluation})
    job = CycleJob(
        docs=str(docs.absolute()),
        student=ws.checkpoint(student).id,
        clean=ws.clean().id,
        settings=settings,
        prompts=_prompts(ws, settings, changes),
        suites=measured,
        required=_required(measured, named=bool(suites)),
        earlier=earlier_probes(ws.tracker.db, ws.checkpoint(student).id),
        augment=str(augment.absolute()) if augment else None,
        seed=settings.seed,
        recover_with=chosen_later,
    )
    if not chosen_later:
        check_inputs(distillation(job, job.student))
    return job


def _judged_suites(settings: Config, suites: str | None, *, typed: bool) -> tuple[str, ...]:
    """The named suites, with the families that were typed beside them; of none, all that have questions."""
    require_families(settings.eval.behaviours)
    named = _named_suites(suites)
    if not named:
        return answerable_suites(settings.eval, settings.model.path)
    return tuple(dict.fromkeys([*named, *(settings.eval.behaviours if typed else ())]))


def _named_suites(suites: str | None) -> tuple[str, ...]:
    names = tuple(name.strip() for name in suites.split(",")) if suites else ()
    for name in names:
        if name not in OURS:
            raise InputError(f"--suite {name}: a cycle is judged by {', '.join(OURS)}")
    return names


def _required(suites: tuple[str, ...], *, named: bool) -> tuple[str, ...]:
    """Return the axes of named suites; else behaviour, knowledge and the suites' other non-optional axes."""
    if named:
        return tuple(axis.name for axis in EVERY_AXIS if axis.suite in suites)
    always = ("behaviour", "knowledge")
    return tuple(
        axis.name
        for axis in EVERY_AXIS
        if axis.name in always or (axis.suite in suites and not axis.optional)
    )


def _prompts(ws: Workspace, settings: Config, changes: Changes) -> str:
    """Return the source of recovery prompts; for `self` the file that the clean model writes on first use.

    Say so where prompts.jsonl beside the documents takes the place of recover.yaml's source.
    """
    source = settings.distill.prompts
    configured = ws.config.distill.prompts
    if source != configured and "distill.prompts" not in changes:
        ws.progress.say(f"  prompts      {source} beside the documents, not {configured} of recover.yaml")
    return self_prompts.resolved(
        ws, source, settings.seed, asked=_asked(settings), typed="distill.prompts" in changes
    )


def _asked(settings: Config) -> int:
    """Return how many recovery prompts a run uses at most: in distillation, or for the mix's chat."""
    distill, midtrain = settings.distill, settings.midtrain
    return max(distill.steps * distill.prompts_per_step, midtrain.chat_prompts if midtrain.mix.chat else 0)


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
    _require_rank(chosen, settings.midtrain.lora, typed="midtrain.lora" in changes)
    return MidtrainJob(
        docs=str(docs.absolute()),
        student=chosen.id,
        settings=with_augmented(settings.midtrain, augment),
        evaluation=settings.eval,
        augment=str(augment.absolute()) if augment else None,
        answer_tokens=settings.distill.max_new_tokens,
        prompts=_prompts(ws, settings, changes) if settings.midtrain.mix.chat else settings.distill.prompts,
        seed=settings.seed,
    )


def pilot_job(
    ws: Workspace,
    docs: Path,
    budget: float,
    *,
    student: str = "current",
    rates: str | None = None,
    share: float = PILOT_SHARE,
    changes: Changes = NONE,
) -> PilotJob:
    """Without rates: that of the settings, and a quarter of it."""
    if not 0 < budget <= 100:
        raise InputError(f"--budget {budget:g}: give points of behaviour, above 0 and up to 100")
    if not 0 < share <= 1:
        raise InputError(f"--share {share:g}: give a share of the documents, above 0 and up to 1")
    settings = resolved(ws, docs, changes)
    if settings.midtrain.method != "text":
        raise InputError("a pilot foretells training on text: set midtrain.method to text, or run the cycle")
    documents.require(docs)
    chosen = ws.checkpoint(student)
    rate = settings.midtrain.optimizer.learning_rate
    ifeval_path(settings.eval)
    return PilotJob(
        docs=str(docs.absolute()),
        student=chosen.id,
        student_name=student,
        clean=ws.clean().id,
        settings=settings,
        prompts=_prompts(ws, settings, changes) if settings.midtrain.mix.chat else settings.distill.prompts,
        rates=parse_rates(rates) if rates else (rate / 4, rate),
        share=share,
        budget=budget,
        changes=dict(changes),
        seed=settings.seed,
    )


def parse_rates(text: str) -> tuple[float, float]:
    """Two different learning rates with a comma between, the lower one first in the result."""
    try:
        low, high = sorted(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"--rates {text}: write two learning rates, as in 5e-5,2e-4") from error
    if not 0 < low < high < float("inf"):
        raise InputError(f"--rates {text}: give two different learning rates above 0")
    return low, high


def _require_rank(student: Checkpoint, lora: LoraConfig | str | None, *, typed: bool) -> None:
    """Refuse a rank that was typed and is not that of the student's adapter."""
    if typed and not isinstance(lora, str):
        from recovery.models.adapters import require_rank

        require_rank(student.path, lora.rank if lora else 0)


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
    chosen = checkpoint.id
    settings = resolved(ws, taught_folder(ws, chosen), changes)
    _require_rank(checkpoint, settings.distill.lora, typed="distill.lora" in changes)
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
    names = tuple(name.strip() for name in (suites or "").split(",") if name.strip())
    return EvalJob(
        checkpoint=chosen,
        suites=names or _answerable(settings, changes),
        settings=settings.eval,
        output=str(Path(output).absolute()) if output else None,
        seed=settings.seed,
    )


def _answerable(settings: Config, changes: Changes) -> tuple[str, ...]:
    """Return the suites of the files given as options; without any, all suites that have questions."""
    require_families(settings.eval.behaviours)
    named = [name for name in ("ifeval", "probes") if f"eval.{name}" in changes]
    suites = answerable_suites(settings.eval, settings.model.path)
    return tuple(suite for suite in suites if not named or _source(suite) in named)


def _source(suite: str) -> str:
    """The option that names a suite's file; a family has none."""
    if suite in FAMILIES:
        return ""
    return "ifeval" if suite == "ifeval" else "probes"


def locate_job(
    ws: Workspace, checkpoint: str, groups: int, suites: str | None = None, changes: Changes = NONE
) -> LocateJob:
    """Of a cycle, its midtrained checkpoint; without suites, the axes of a verdict that have questions."""
    place = f"{checkpoint}:midtrained" if is_cycle(checkpoint) else checkpoint
    measured = eval_job(ws, place, suites, changes=changes)
    return LocateJob(
        checkpoint=measured.checkpoint,
        clean=ws.clean().id,
        suites=_named_suites(",".join(measured.suites)),
        settings=measured.settings,
        groups=groups,
    )


def retrieval_job(
    ws: Workspace, checkpoint: str, docs: Path | None, passages: int, changes: Changes = NONE
) -> RetrievalJob:
    """The clean model itself counts as nothing trained yet."""
    chosen = ws.checkpoint(checkpoint).id
    clean = ws.clean().id
    settings = resolved(ws, docs or taught_folder(ws, chosen), changes).eval
    if settings.probes is None:
        raise InputError(
            "no questions lie beside the documents: write some with `recover probes`, or --probes"
        )
    return RetrievalJob(
        clean=clean,
        trained=None if chosen == clean else chosen,
        settings=settings,
        docs=placed_docs(docs),
        passages=passages,
    )


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
    origin: str | None = None,
    **how: Any,
) -> MergeJob:
    """`how`: the kind of merge, and of a residual which entries are kept."""
    return MergeJob(
        student=ws.checkpoint(student or newest_midtrained(ws)).id,
        other=ws.checkpoint(other).id,
        weight=weight,
        origin=ws.checkpoint(origin).id if origin else None,
        **how,
    )


def sweep_job(
    ws: Workspace, weights: str, merged: MergeJob, suites: str | None = None, changes: Changes = NONE
) -> SweepJob:
    """Build a sweep: one merge in each of several shares, and how to evaluate each."""
    measured = eval_job(ws, merged.student, suites, changes=changes)
    return SweepJob(
        **merged.model_dump(include=set(Mixture.model_fields)),
        weights=parse_weights(weights),
        suites=measured.suites,
        settings=measured.settings,
    )


def placed_docs(docs: Path | None) -> str | None:
    """Return the absolute path of a folder of documents; refuse one without a readable document."""
    if docs is None:
        return None
    documents.require(docs)
    return str(docs.absolute())


def newest_midtrained(ws: Workspace) -> str:
    """Return the checkpoint of the newest finished midtraining, those of pilots aside."""
    for run in queries.runs(ws.tracker.db, kind="midtrain", status="done", limit=LATEST):
        if not str(run["parent_id"]).startswith("pilot-"):
            return str(run["result"]["checkpoint"])
    raise InputError("nothing was midtrained yet: run `recover midtrain --docs DIR` first, or give --student")


def taught_folder(ws: Workspace, checkpoint: str) -> Path | None:
    """Return the folder of documents that a checkpoint was last trained on; None for the clean model."""
    runs = ws.midtraining_runs(checkpoint)
    return Path(runs[-1]["config"]["docs"]) if runs else None
