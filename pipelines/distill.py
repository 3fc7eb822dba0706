"""Distillation: the student writes, the teacher scores what it wrote, the objective says what to change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pipelines.config.jobs import DistillJob, Kind, MergeJob
from pipelines.config.settings import DistillConfig
from pipelines.distillation import engine_places, inputs
from pipelines.distillation.leaks import drop_leaks, evaluation_prompts
from pipelines.distillation.prompts import Prompt
from pipelines.knowledge import guards
from pipelines.merge import merged
from pipelines.runs import training_run
from pipelines.runs.launch import launched
from pipelines.runs.stage_runner import Result, Stage, run_stage
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from recovery.methods.method import Method
from recovery.methods.table import with_dials

if TYPE_CHECKING:
    from recovery.inspection.token_traces import Tracer
    from recovery.models.chat_model import ChatModel
    from recovery.sampling.protocol import Sampler
    from recovery.storage.checkpoints import Checkpoint
    from recovery.teachers.contexts import Messages


def distill(ws: Workspace, job: DistillJob, *, parent: str | None = None, key: str | None = None) -> Result:
    """Brings the student's behaviour back from the teacher; returns {"checkpoint": id, ...}."""
    # A wrong dial or engine is refused before anything is recorded.
    engine_places.check(job.settings, with_dials(job.settings.method, job.settings.dials))
    return run_stage(
        ws,
        "distill",
        lambda stage: work(ws, job, stage),
        config=job.model_dump(),
        parent=parent,
        key=key,
        seed=job.seed,
        label="distill",
    )


def work(ws: Workspace, job: DistillJob, stage: Stage) -> Result:
    """What the stage does; of several processes all take part, and the first one publishes."""
    _refuse_engines_of_several(job.settings)
    with engine_places.Engines(ws, stage.directory) as started:
        return _work_with(ws, job, stage, started)


def _refuse_engines_of_several(settings: DistillConfig) -> None:
    """Each process would start an engine, and give it weights, of its own."""
    if launched() > 1 and (
        settings.sampler != engine_places.INPROCESS
        or settings.teacher_engine in (engine_places.COLOCATED, engine_places.OWN_SERVER)
    ):
        raise InputError(
            "several processes write in themselves: set sampler: inprocess, and teacher_engine: inprocess or "
            "the URL of a server that runs already"
        )


def _work_with(ws: Workspace, job: DistillJob, stage: Stage, started: engine_places.Engines) -> Result:
    from pipelines.distillation import early_stop
    from pipelines.knowledge import rehearsal as rehearsed
    from recovery.engines.lookahead import Ahead
    from recovery.sampling.split import SplitSampler
    from recovery.training.step_data import Episodes, Sizes

    method, settings = _method(job.settings), job.settings
    asked = evaluation_prompts(job.evaluation, stage)
    data, probe = early_stop.hold_out(job, _without_leaks(job, method, stage, asked), asked)
    reward, data = inputs.read_reward(job, method, data)
    context = inputs.read_context(job, method, data.pairs)
    parent, student = _beginning(ws, job, stage)
    teachers = inputs.Teachers(ws, job, method, parent, student, started)
    known = guards.taught(ws, job, method, student, teachers, stage)
    data, found = guards.guard(job, data, known, stage)
    place = settings.sampler if engine_places.student_writes(method) else engine_places.INPROCESS
    alone = started.sampler(place, student, parent, follow=True)
    sampler = SplitSampler.of(alone, student.pad_id)
    episodes = Episodes(
        student,
        sampler,
        teachers.teacher(data.rows),
        method,
        data.prompts,
        Sizes(**settings.model_dump(include={field.name for field in fields(Sizes)})),
        pairs=data.pairs,
        context=context,
        reward=reward,
        anchor=teachers.anchor(),
        seed=job.seed,
        weights=[row.weight for row in data.rows],
        rehearsal=rehearsed.rehearsal(ws, job, student, method.epochs, stage),
        on_scored=_tracer(stage, student, method, settings.steps),
        ahead=Ahead(alone, settings.steps, settings.save_every) if settings.ahead else None,  # type: ignore[arg-type]
    )
    if settings.preflight and stage.first and (data.prompts or method.teacher != "none"):
        _preflight(stage, student, list(teachers.models.values()), data.prompts or data.pairs, alone)
    stage.say(f"  method       {_in_words(method, job, data)}")
    if settings.ahead:
        stage.say(f"  ahead        answers are one step old: tokens weigh up to {method.importance_clip:g}")
    checks = _checks(ws, job, stage, student, sampler, teachers, probe)
    checks += guards.tripwire(job, known, stage)
    report = training_run.run_training(
        stage,
        student,
        episodes,
        method,
        settings=settings,
        steps=settings.steps,
        seed=job.seed,
        checks=checks,
    )
    if not stage.first:
        return {}
    config = {"stage": "distill", **job.model_dump()}
    checkpoint = ws.publish(student, parent=parent, run_id=stage.id, config=config)
    return {
        "checkpoint": checkpoint.id,
        "method": method.name,
        "tokens": report.tokens,
        "stopped": report.stopped,
        **found,
    }


def _method(settings: DistillConfig) -> Method:
    """The row with its dials; answers of older weights are weighed."""
    method = with_dials(settings.method, settings.dials)
    if not settings.ahead:
        return method
    from recovery.engines.lookahead import corrected

    return corrected(method)


def _beginning(ws: Workspace, job: DistillJob, stage: Stage) -> tuple[Checkpoint, ChatModel]:
    """What is trained, and the checkpoint that it stands on: the student, with a share of the teacher in it.

    A fresh adapter gets the mixture below it as a checkpoint; an adapter on the teacher becomes a weaker one.
    """
    from recovery import distributed
    from recovery.models import merging

    share, settings, parent = job.settings.merge, job.settings, ws.checkpoint(job.student)
    if not share:
        return parent, training_run.student(ws, parent, settings)
    teacher = ws.checkpoint(job.teacher)
    kind: Kind = "linear" if settings.merge_of == "all" else "embeddings"
    which = "weights" if kind == "linear" else kind
    stage.say(f"  merge        begins with {share:.0%} of the teacher's {which} mixed into the student's")
    if settings.lora and not parent.base:
        mixture = MergeJob(student=parent.id, other=teacher.id, weight=share, kind=kind)
        below = ws.checkpoint(distributed.once(lambda: merged(ws, mixture, stage)))
        return below, training_run.student(ws, below, settings)
    student = training_run.student(ws, parent, settings)
    if not parent.base:
        merging.mix_in(student, ws.load(teacher), share, kind)
    elif parent.base == teacher.id:
        merging.weaken(student, 1 - share if kind == "linear" else 1.0)
    else:
        raise InputError("merge: the student is an adapter on another model than the teacher: leave it out")
    return parent, student


def _tracer(stage: Stage, student: ChatModel, method: Method, steps: int) -> Tracer:
    """Keeps a few rollouts of some steps, token by token, for a person to look at."""
    from recovery.inspection.token_traces import Tracer
    from recovery.objective.objective import Objective

    return Tracer(
        student,
        Objective(method),
        steps,
        lambda step, traces: stage.live.traces(step, [trace.row() for trace in traces]),
    )


def _checks(
    ws: Workspace,
    job: DistillJob,
    stage: Stage,
    student: ChatModel,
    sampler: Sampler,
    teachers: inputs.Teachers,
    probe: list[Prompt],
) -> list[training_run.Check]:
    """What may end the training before its last step."""
    if job.settings.stop is None:
        return []
    from pipelines.distillation import early_stop

    clean = teachers.frozen(ws.clean().id, "dense")
    limit = job.settings.max_new_tokens
    return [early_stop.BehaviourBack(job.settings.stop, probe, student, sampler, clean, stage, limit)]


def _without_leaks(job: DistillJob, method: Method, stage: Stage, asked: list[str]) -> inputs.Data:
    """The prompts and pairs that the method needs, without those that the evaluation asks."""
    data = inputs.read_data(job, method, stage.workspace.home)
    kept = {}
    for name, rows in (("prompts", data.prompts), ("pairs", data.pairs)):
        kept[name], leaked = drop_leaks(rows, asked)
        if leaked:
            stage.say(f"  {name:<12} {leaked} of {len(rows):,} are evaluation prompts: left out")
        if rows and not kept[name]:
            raise InputError(f"every one of the {name} is an evaluation prompt: give other --{name}")
    return inputs.Data(**kept)


def _in_words(method: Method, job: DistillJob, data: inputs.Data) -> str:
    who = {"none": "", "base": f" from {job.teacher}"}.get(method.teacher, f" from {method.teacher}")
    seen = "" if method.context == "none" else f" seeing {method.context}"
    counts = {"prompts": len(data.prompts), "pairs": len(data.pairs), "steps": job.settings.steps}
    much = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return f"{method.name}: {method.signal}{who}{seen} on {method.states} states; {much}"


def _preflight(
    stage: Stage, student: ChatModel, teachers: list[ChatModel], prompts: list[Prompt], sampler: Sampler
) -> None:
    """What must be true before a GPU-hour is spent; the first thing that is not stops the stage."""
    from recovery.training import preflight

    for teacher in teachers or [student]:
        checks = preflight.checks(student, teacher, [prompt.messages for prompt in prompts], sampler)
        if not checks[0].ok:  # not a run that goes wrong but a pair that cannot be: bad input
            raise InputError(f"{checks[0].detail}: {checks[0].remedy}")
        preflight.require(checks)
        stage.say(f"  preflight    all {len(checks)} checks passed")


def show_prompts(ws: Workspace, job: DistillJob, count: int) -> list[dict[str, str]]:
    """What student and teacher would read of the first rows, by the chat template; no model is loaded."""
    from recovery.teachers import contexts

    method = with_dials(job.settings.method, job.settings.dials)
    data = inputs.read_data(job, method, ws.home)
    context = inputs.read_context(job, method, data.pairs)
    return contexts.show(data.rows[:count], context, _renderer(ws, job.student))


def _renderer(ws: Workspace, student: str) -> Callable[[Messages], str]:
    """Messages as the very text that a model reads."""
    from transformers import AutoTokenizer

    from recovery.models.chat_encoding import ChatEncoder

    directory, model = ws.checkpoint(student).path, ws.config.model
    tokenizer = AutoTokenizer.from_pretrained(
        directory, local_files_only=True, trust_remote_code=model.trust_remote_code
    )
    encoder = ChatEncoder(tokenizer, model.template_args)
    return lambda messages: str(tokenizer.decode(encoder.prompt_ids(messages)))


def preflight_report(
    ws: Workspace, student: str, teacher: str, prompts: list[Prompt], sampler: str = engine_places.INPROCESS
) -> list[Any]:
    """Every check of a pair and of who writes for the student, for `recover preflight`."""
    from recovery.training import preflight

    checkpoint = ws.checkpoint(student)
    with engine_places.Engines(ws, ws.home / "engines") as started:
        one, other = ws.load(checkpoint), ws.load(ws.checkpoint(teacher))
        writer = started.sampler(sampler, one, checkpoint, follow=False)
        return preflight.checks(one, other, [prompt.messages for prompt in prompts], writer)
