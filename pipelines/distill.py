"""Distillation: the student samples, the teacher scores the samples, the objective turns scores into a loss.

A distillation is composed from its job (data, models, sampler, batches), then run.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING

from db.reads import queries
from pipelines.config import fitted
from pipelines.config.jobs import DistillJob
from pipelines.config.sections.distill import DistillConfig
from pipelines.distillation import further_steps, inputs, step_in_words
from pipelines.distillation.low_weights import LowWeights
from pipelines.distillation.pool import Chosen, chosen_once, read_without_leaks, require_room, with_room
from pipelines.distillation.starting_model import starting_model
from pipelines.distillation.teachers import Teachers, trains_on_teacher
from pipelines.engines import engine_checks, engine_places
from pipelines.knowledge import guards
from pipelines.machine.fitting import fitted_once
from pipelines.prompts.leaks import AskedPrompts, kept_evaluation_prompts
from pipelines.prompts.lengths import answerable
from pipelines.prompts.prompt_sources import Prompt
from pipelines.runs import training_run
from pipelines.runs.current import current_at_first, make_current
from pipelines.runs.kept_texts import KEPT_TEXTS, kept_before
from pipelines.runs.pinned_inputs import pinned
from pipelines.runs.progress import counting
from pipelines.runs.stage_runner import STATE, Result, Stage, run_job
from pipelines.runs.workspace import Workspace
from recovery.distributed import in_turn
from recovery.errors import InputError
from recovery.methods.choices import FROZEN
from recovery.methods.method import Method

if TYPE_CHECKING:
    from recovery.inspection.token_traces import Tracer
    from recovery.models.chat_model import ChatModel
    from recovery.sampling.protocol import Sampler
    from recovery.storage.checkpoints import Checkpoint
    from recovery.teachers.contexts import Context
    from recovery.teachers.rewards import Reward
    from recovery.teachers.teachers import Teacher
    from recovery.training.step_data import Episodes
    from recovery.training.trainer import StopCheck, TrainReport

ADVANTAGES = ("sampled_reverse_kl", "reward")  # signals of which each token has a weight of its own


def distill(ws: Workspace, job: DistillJob, *, parent: str | None = None, key: str | None = None) -> Result:
    """Distil the student's behaviour back from the teacher; returns {"checkpoint": id, ...}."""
    return run_job(ws, "distill", work, _checked(ws, job, parent, key), parent=parent, key=key)


def distill_alone(ws: Workspace, job: DistillJob, *, key: str) -> Result:
    """Distil outside a cycle; the model becomes `current` without a verdict."""
    return run_job(ws, "distill", _work_alone, _checked(ws, job, None, key), key=key)


def _checked(ws: Workspace, job: DistillJob, parent: str | None, key: str | None) -> DistillJob:
    """Return the job with its inputs pinned; engines are needed until the run is done."""
    # A wrong dial or engine is refused before anything is recorded.
    method = job.settings.resolved_method()
    begun = queries.run_of_key(ws.tracker.db, key, parent=parent) if key else None
    if begun is None or begun["status"] != "done":
        engine_checks.check(job.settings, method, sharded=ws.config.model.shard)
    return pinned(ws, job, texts_kept=kept_before(ws, parent, key, f"{STATE}/{KEPT_TEXTS}"))


def _work_alone(ws: Workspace, job: DistillJob, stage: Stage) -> Result:
    """Point `current` at the model before the run counts as done: a kill in between loses neither."""
    current_at_first(stage)
    found = work(ws, job, stage)
    named = f"`--student {found['checkpoint']}` names this run's model"
    make_current(stage, found["checkpoint"], otherwise=named)
    return found


def work(ws: Workspace, job: DistillJob, stage: Stage) -> Result:
    """Compose the distillation, run it, and publish the student from the first process."""
    job = in_turn(lambda: _fitted(job, stage))
    with engine_places.Engines(ws, stage.directory, together=True) as engines:
        distillation = compose(ws, job, stage, engines)
        report = run(stage, distillation)
    if not stage.first:
        return {}
    if report.stopped:
        stage.say(f"  ended        {report.stopped}")
    config = {"stage": "distill", **job.model_dump()}
    checkpoint = ws.publish(distillation.student, parent=distillation.parent, run_id=stage.id, config=config)
    return {
        "checkpoint": checkpoint.id,
        "method": distillation.method.name,
        "tokens": report.tokens,
        "stopped": report.stopped,
        **distillation.recorded,
    }


def _fitted(job: DistillJob, stage: Stage) -> DistillJob:
    fit = partial(fitted.fit_distillation, on_teacher=trains_on_teacher(stage.workspace, job))
    settings = fitted_once(stage, job.student, job.settings, fit)
    return job.model_copy(update={"settings": settings})


# Composing ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Distillation:
    """All parts of a distillation, loaded and ready to run."""

    job: DistillJob
    method: Method
    parent: Checkpoint  # of the new checkpoint
    student: ChatModel
    data: inputs.PromptData
    probe: list[Prompt]  # held out, for stopping early
    sampler: Sampler  # of this process alone
    teachers: Teachers
    taught: guards.GuardInputs | None
    episodes: Episodes
    recorded: Result  # about the data, beside the new checkpoint


def compose(ws: Workspace, job: DistillJob, stage: Stage, engines: engine_places.Engines) -> Distillation:
    """Read the data, load student and teachers, drop prompts that the guard refuses, build the batches."""
    from pipelines.distillation import early_stop

    method = _method(job.settings)
    asked = AskedPrompts(in_turn(lambda: kept_evaluation_prompts(job, stage)))
    data = in_turn(lambda: read_without_leaks(job, method, stage, asked))
    data, probe = early_stop.hold_out(job, data, asked, ws.home)
    reward, data = inputs.read_reward(job, method, data)
    context = inputs.read_context(job, method, data.pairs)
    parent, student = starting_model(ws, job, stage)
    teachers = Teachers(ws, job, method, parent, student, engines)
    taught = guards.guard_inputs(ws, job, method, student, teachers, stage)
    samples = engine_checks.student_writes(method)
    place = job.settings.sampler if samples else engine_checks.INPROCESS
    sampler = engines.sampler(place, student, parent, follow=True)
    teachers.start(data.rows)
    length = engine_places.length_of(sampler)

    def choose() -> Chosen:
        fitting = with_room(data, teachers, context, stage, length)
        return guards.guard(job, fitting, taught, stage)

    pool, recorded = chosen_once(stage, data, choose)
    require_room(pool, teachers, context, length)
    return Distillation(
        job=job,
        method=method,
        parent=parent,
        student=student,
        data=pool,
        probe=answerable(probe, student, stage, name="probe", most=length),
        sampler=sampler,
        teachers=teachers,
        taught=taught,
        episodes=_episodes(stage, job, pool, teachers, sampler, reward, context),
        recorded=recorded,
    )


def _episodes(
    stage: Stage,
    job: DistillJob,
    data: inputs.PromptData,
    teachers: Teachers,
    sampler: Sampler,
    reward: Reward | None,
    context: Context | None,
) -> Episodes:
    from pipelines.knowledge.rehearsal import rehearsal
    from recovery.engines.lookahead import Lookahead
    from recovery.training.step_data import Episodes, StepConfig, Task

    settings = job.settings
    method = teachers.method
    student = teachers.student
    sizes = settings.model_dump(include={field.name for field in fields(StepConfig)})
    ahead = None
    if settings.ahead:
        ahead = Lookahead(sampler, settings.most_steps, settings.save_every)  # type: ignore[arg-type]
    episodes = Episodes(
        student,
        engine_places.in_step(sampler),
        Task(
            method,
            data.prompts,
            data.pairs,
            teacher=teachers.teacher(data.rows),
            anchor=teachers.anchor(),
            context=context,
            reward=reward,
            weights=[row.weight for row in data.rows],
        ),
        StepConfig(seed=job.seed, **sizes),
        rehearsal=rehearsal(stage.workspace, job, data.pairs, student, method, stage),
        on_scored=_tracer(stage, student, method, settings.most_steps),
        ahead=ahead,
    )
    episodes.on_tokens = _first_answers(stage, settings.most_steps)
    return episodes


def _first_answers(stage: Stage, steps: int) -> Callable[[int, int], None]:
    """Show the answers of the first step while they are written: the line of a step comes at its end."""
    begun: set[int] = set()

    def show(step: int, tokens: int) -> None:
        begun.add(step)
        if step == min(begun):
            stage.step(step - 1, steps, note=f"{tokens:,} tokens of answers")

    return show


def _method(settings: DistillConfig) -> Method:
    """Return the method with its dials set, and with importance weights if answers are one step old."""
    method = settings.resolved_method()
    if not settings.ahead:
        return method
    from recovery.engines.lookahead import corrected

    return corrected(method)


def _tracer(stage: Stage, student: ChatModel, method: Method, steps: int) -> Tracer:
    """Return a recorder of token traces: a few rollouts of some steps, for the dashboard."""
    from recovery.inspection.token_traces import Tracer
    from recovery.objective.objective import Objective

    return Tracer(
        student,
        Objective(method),
        steps,
        lambda step, traces: stage.live.traces(step, [trace.row() for trace in traces]),
    )


# Running ------------------------------------------------------------------------------------------


def run(stage: Stage, made: Distillation) -> TrainReport:
    """Check the models, then train until the last step or a reason to stop."""
    settings = made.job.settings
    data = made.data
    if settings.preflight and stage.first and (data.prompts or made.method.teacher != "none"):
        _preflight(stage, made)
    stage.say(f"  method       {_in_words(made)}")
    stage.say(f"  plan         {step_in_words.plan(settings, made.method, data)}")
    if settings.ahead:
        along = "" if made.method.signal in ADVANTAGES else ", multiplied along each answer,"
        clip = f"{made.method.importance_clip:g}"
        stage.say(f"  ahead        answers are one step old: importance weights{along} up to {clip}")
    training = training_run.Training(
        made.student,
        made.episodes,
        made.method,
        settings=settings,
        steps=settings.most_steps,
        seed=made.job.seed,
        checks=_checks(stage, made),
    )
    return training_run.run_training(stage, training)


def _preflight(stage: Stage, made: Distillation) -> None:
    """Check student and each loaded teacher before GPU hours are spent; the first failure ends the stage."""
    from recovery.training import preflight

    prompts = [prompt.messages for prompt in made.data.prompts or made.data.pairs]
    for teacher in list(made.teachers.models.values()) or [made.student]:
        shown = counting(stage.step, "tokens to compare, at most")
        checks = preflight.checks(made.student, teacher, prompts, made.sampler, on_tokens=shown)
        if not checks[0].ok:  # two models that can never be a pair: bad input
            raise InputError(f"{checks[0].detail}: {checks[0].remedy}")
        preflight.require(checks)
        stage.say(f"  preflight    all {len(checks)} checks passed")
    place = made.job.settings.teacher_engine
    if place != engine_checks.INPROCESS:
        stage.say(f"  preflight    the teacher on {place} was not checked: only one loaded here is")


def _checks(stage: Stage, made: Distillation) -> list[StopCheck]:
    """Return what looks at the run after each step."""
    watch = guards.tripwire(made.job, made.taught, stage)
    return [
        *_early_stop(stage, made),
        *watch,
        *_low_weights(stage, made),
        *further_steps.checks(stage, made.job.settings),
    ]


def _early_stop(stage: Stage, made: Distillation) -> list[StopCheck]:
    """Return the check that stops training once behaviour is back, if one is configured."""
    settings = made.job.settings
    if settings.stop is None:
        return []
    from pipelines.distillation import early_stop

    sampler = made.episodes.sampler
    limit = settings.max_new_tokens

    def lend() -> AbstractContextManager[Teacher]:
        return made.teachers.in_process.for_one_look(stage.workspace.clean())

    return [early_stop.BehaviourBack(settings.stop, made.probe, made.student, sampler, lend, stage, limit)]


def _low_weights(stage: Stage, made: Distillation) -> list[StopCheck]:
    """Return the check that says where importance weights are small, of a method that multiplies them.

    Those of tokens that a teacher had a part in always are.
    """
    method = made.method
    if method.importance_clip is None or method.signal in ADVANTAGES or method.state_kind == "teacher-mix":
        return []
    return [LowWeights(stage.say, ahead=bool(made.job.settings.ahead))]


def _in_words(made: Distillation) -> str:
    method, data = made.method, made.data
    teacher = made.teachers.place if method.teacher in FROZEN else method.teacher
    source = "" if teacher == "none" else f" from {teacher}"
    seen = inputs.context_in_words(made.episodes.task.context)
    counts = {"prompts": len(data.prompts), "pairs": len(data.pairs)}
    amounts = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    often = step_in_words.often(made.job.settings, method, data)
    return f"{method.name}: {method.signal}{source}{seen} on {method.states} states; {amounts}{often}"
