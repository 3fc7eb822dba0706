"""Build a cycle's job from settings and options, and check the inputs of all its stages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from evals.families.table import FAMILIES
from evals.ifeval import IFEVAL
from evals.probes import KNOWLEDGE
from evals.tasks.names import require_families
from evals.verdict import BEHAVIOUR, axes_for, required_axes
from pipelines.choose import CHOICES, TRAINED, candidate_names
from pipelines.config.jobs import CycleJob, DistillJob
from pipelines.config.overrides import changed
from pipelines.config.settings import Config
from pipelines.distillation.input_checks import check_settings, check_without_prompts, checked_inputs
from pipelines.distillation.inputs import PromptData, refuse_ignored, wanted_of_rows
from pipelines.distillation.pool import unasked
from pipelines.engines.engine_places import require_place
from pipelines.evaluate import evaluation_within, further_within
from pipelines.evaluation.question_checks import require_answerable
from pipelines.evaluation.suites import answerable_suites, suites_of
from pipelines.job_from_options.document_checks import (
    require_chat_apart,
    require_questions,
    require_recovery_apart,
)
from pipelines.job_from_options.ifeval_prompts import require_new, with_further, with_ifeval
from pipelines.job_from_options.inputs import (
    NONE,
    Changes,
    absolute,
    guard_typed,
    recovery_prompts,
    refuse_prompts,
    require_chat,
    resolved,
    say_beside,
    training_folder,
    with_augmented,
    with_routes,
)
from pipelines.job_from_options.measure import (
    require_task,
    require_tasks,
    suites_of_verdict,
    with_tasks,
)
from pipelines.job_from_options.repeated_questions import TAUGHT, require_about
from pipelines.job_from_options.teacher_servers import require_teacher_kept
from pipelines.job_from_options.trained_weights import (
    require_both_trainable,
    require_mixtures,
    require_registered,
)
from pipelines.knowledge import passage_teaching
from pipelines.machine.disk_space import STAGES, require_space
from pipelines.machine.held_memory import require_memory
from pipelines.prompts.leaks import asked_prompts
from pipelines.runs.kept_probes import earlier_probes
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from recovery.methods.rules import suggest
from recovery.methods.table import METHODS

if TYPE_CHECKING:
    from recovery.storage.checkpoints import Checkpoint


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
    chosen_later, changes = _recovery(recover_with, changes)
    settings = _with_recovery(ws, resolved(ws, docs, changes), chosen_later, changes)
    chosen = ws.checkpoint(student)
    _require_trainable(ws, chosen, settings, chosen_later)
    unmergeable = _unmergeable(ws, chosen, settings, chosen_later)
    _require_room(ws, chosen, settings, chosen_later, mixing=not unmergeable)
    folder = training_folder(ws, docs, settings)
    settings = _with_files(ws, settings, augment, changes)
    judged = _judged_suites(settings, suites, changes)
    settings = changed(settings, {"eval.behaviours": [name for name in judged if name in FAMILIES]})
    settings = settings.model_copy(update={"eval": with_tasks(settings.eval, judged)})
    require_task(judged, changes, "--task gsm8k=3")
    passage_teaching.check(settings.midtrain, augment)
    if set(TAUGHT) & set(judged):
        require_about(ws, docs, settings)
    job = CycleJob(
        docs=folder,
        student=chosen.id,
        clean=ws.clean().id,
        settings=settings,
        prompts=settings.distill.prompts,
        suites=judged,
        required=_required(settings, judged, named=bool(suites)),
        earlier=earlier_probes(ws, chosen.id),
        augment=absolute(augment) if augment else None,
        seed=settings.seed,
        recover_with=chosen_later,
        unmergeable=unmergeable,
    )
    return _checked(ws, job, docs, changes)


def _recovery(recover_with: str | None, changes: Changes) -> tuple[str | None, Changes]:
    """Return the choice that is left to the cycle, if any, and the changes, with a method that is named."""
    named = recover_with not in (None, *CHOICES)
    if "distill.method" in changes and named:
        raise InputError("--method and --recover-with say the same thing: give one of them")
    if "distill.method" in changes and not _distils(recover_with):
        raise InputError("--method has no effect with --recover-with merge: leave one of them out")
    if named:
        _require_method(str(recover_with))
    return (None, {**changes, "distill.method": recover_with}) if named else (recover_with, changes)


def _require_method(name: str) -> None:
    """Refuse a way of recovery that is neither a choice nor a method."""
    if name not in METHODS:
        near = suggest(name, [*CHOICES, *METHODS])
        known = f"{', '.join(CHOICES)} or a row of `recover methods`"
        raise InputError(f"no method is called {name!r}{near}: --recover-with takes {known}")


def _distils(chosen_later: str | None) -> bool:
    """Return whether a cycle may distil: `auto` does where nothing cheaper passes, `merge` never."""
    return chosen_later != "merge"


def _with_recovery(ws: Workspace, settings: Config, chosen_later: str | None, changes: Changes) -> Config:
    """Return the settings with the routes of recovery; refuse dials and options that its method does not
    read, and engines that are not here."""
    if _distils(chosen_later):
        check_settings(settings.distill, ws.config)
        settings = settings.model_copy(update={"distill": with_routes(ws, settings.distill)})
    elif not settings.midtrain.mix.chat:
        refuse_prompts(changes, "with --recover-with merge and a midtraining without chat")
    if chosen_later is None:  # auto always tries a method with a frozen teacher
        method = settings.distill.resolved_method()
        refuse_ignored(method, overlap=guard_typed(changes))
    require_place("sampler", settings.eval.sampler, ws.config)
    return settings


def _require_trainable(
    ws: Workspace, student: Checkpoint, settings: Config, chosen_later: str | None
) -> None:
    """Refuse a student that cannot be trained, and a server of the teacher that would get other weights."""
    distils = _distils(chosen_later)
    require_registered(ws)
    require_both_trainable(ws, student, settings, distils=distils)
    if distils:
        require_teacher_kept(ws, student, settings, cycle=True)


def _unmergeable(
    ws: Workspace, student: Checkpoint, settings: Config, chosen_later: str | None
) -> str | None:
    """Return why auto leaves out mixtures of weights, if it does; refuse where nothing else is tried."""
    if chosen_later is None:
        return None
    try:
        require_mixtures(ws, student, settings)
    except InputError as error:
        if chosen_later == "merge":
            raise
        return str(error)
    return None


def _require_room(
    ws: Workspace, student: Checkpoint, settings: Config, chosen_later: str | None, *, mixing: bool
) -> None:
    """Refuse stages that the disk or the memory cannot hold; those that a choice can leave out aside."""
    distils = _distils(chosen_later)
    tried = candidate_names(chosen_later, settings.distill.method, mixing=mixing) if chosen_later else []
    trained = [name for name in tried if name in TRAINED]
    require_space(
        ws,
        student,
        settings,
        STAGES if distils else STAGES[:1],
        further=max(0, len(trained) - 1),  # of one, recovery's own is counted
        mixtures=len(tried) - len(trained),
    )
    sure = STAGES[:1] if chosen_later else STAGES  # a choice leaves out what cannot be made
    require_memory(ws, student, settings, sure, ws.clean())


def _with_files(ws: Workspace, settings: Config, augment: Path | None, changes: Changes) -> Config:
    """Return the settings with a share for retold documents, and with the files of all their prompts."""
    midtrain = with_augmented(settings.midtrain, augment, changes)
    settings = settings.model_copy(update={"midtrain": midtrain})
    typed = "eval.further_prompts" in changes
    settings = with_further(ws, with_ifeval(ws, settings, changes), typed=typed)
    require_new(settings.eval, ws.progress.say)
    return settings


def _checked(ws: Workspace, job: CycleJob, docs: Path, changes: Changes) -> CycleJob:
    """Return the job with the prompts that its stages read; refuse what they cannot ask or train on."""
    _require_answerable(ws, job)
    require_questions(ws, docs, job.student, job.settings, job.earlier)
    job = _with_prompts(ws, job, docs, changes)
    say_beside(ws, docs, changes, _asked_or_read(job))
    return job


def _require_answerable(ws: Workspace, job: CycleJob) -> None:
    """Refuse an evaluation that the clean model could not answer."""
    asked = evaluation_within(job, job.clean, "clean", job.settings.eval, job.earlier)
    suites = suites_of(asked)
    if job.two_looks:
        suites += suites_of(further_within(job, job.clean, "clean"))
    require_answerable(ws, ws.clean(), suites, asked.settings.sampler)


def _with_prompts(ws: Workspace, job: CycleJob, docs: Path, changes: Changes) -> CycleJob:
    """Return the job with the prompts that its stages read, written first if the clean model writes them, and
    all inputs of recovery checked."""
    settings = job.settings
    distils = _distils(job.recover_with)
    if job.reads_prompts:
        if distils:
            check_without_prompts(ws, _recovering(job), midtrains=True)
        wanted = wanted_of_rows(settings.distill) if distils else None
        prompts = recovery_prompts(ws, settings, changes, wanted=wanted)
        job = job.model_copy(update={"prompts": prompts})
    else:
        refuse_prompts(changes, "where recovery reads pairs alone and midtraining has no chat")
    data = PromptData([], [])
    if distils:
        data = checked_inputs(ws, _recovering(job), midtrains=True, only_way=job.recover_with != "auto")
    if job.answered_by_clean and not data.prompts:
        data = PromptData(require_chat(ws, job.prompts, settings, job.earlier), data.pairs)
    _require_apart(ws, job, data, docs)
    return job


def _recovering(job: CycleJob) -> DistillJob:
    """Return the distillation of the cycle, of a student that is still to be midtrained."""
    return DistillJob.of(job, job.student, job.settings.distill)


def _require_apart(ws: Workspace, job: CycleJob, data: PromptData, docs: Path) -> None:
    """Refuse prompts that, but for those that the evaluation asks, are all about the documents."""
    data = unasked(data, asked_prompts(job.settings.eval, job.earlier))
    if job.settings.midtrain.mix.chat:
        require_chat_apart(ws, data.prompts, docs, job.student, job.settings)
    elif job.recover_with is None:  # a choice leaves out the ways that cannot be gone
        require_recovery_apart(ws, data, docs, job.student, job.settings)


def _asked_or_read(job: CycleJob) -> dict[str, str | None]:
    """Return the questions and prompts that the cycle uses, by the file beside the documents that they may
    come from."""
    used: dict[str, str | None] = {"ifeval": job.settings.eval.ifeval}
    if KNOWLEDGE in job.required:
        used = {"probes": job.settings.eval.probes, **used}
    return used | ({"prompts": job.prompts} if job.reads_prompts else {})


def _judged_suites(settings: Config, suites: str | None, changes: Changes) -> tuple[str, ...]:
    """Return the named suites, and the families and tasks typed beside them; without names, all that have
    questions."""
    require_families(settings.eval.behaviours)
    require_tasks(settings.eval)
    named = suites_of_verdict(suites, settings.eval)
    if not named:
        return answerable_suites(settings.eval, settings.model.path)
    if IFEVAL not in named:
        raise InputError(
            f"--suite {','.join(named)}: no cycle is accepted without behaviour, which {IFEVAL} measures: "
            f"name it too, as in --suite {','.join((IFEVAL, *named))}"
        )
    families = settings.eval.behaviours if "eval.behaviours" in changes else ()
    return tuple(dict.fromkeys([*named, *families, *changes.get("eval.task_points", ())]))


def _required(settings: Config, suites: tuple[str, ...], *, named: bool) -> tuple[str, ...]:
    """Return the axes of named suites; else behaviour, knowledge and the suites' other non-optional axes."""
    axes = axes_for(settings.eval.margins())
    always = () if named else (BEHAVIOUR, KNOWLEDGE)
    found = {*always, *required_axes(axes, suites, named=named)}
    return tuple(axis.name for axis in axes if axis.name in found)
