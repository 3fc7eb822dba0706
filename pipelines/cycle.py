"""One cycle: evaluate, midtrain, evaluate, recover, evaluate, and decide on the verdict."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from db.errors import TrackerError
from db.reads import queries
from evals import looks, power, verdict, verdict_sentences
from evals.families.measures import measure_of
from evals.families.table import FAMILIES
from evals.ifeval import FURTHER, IFEVAL
from evals.scores import Item
from evals.verdict import BEHAVIOUR
from pipelines import choose as choosing
from pipelines.choose import choose
from pipelines.config.ifeval_file import further_path
from pipelines.config.jobs import ChooseJob, CycleJob, DistillJob, EvalJob, MidtrainJob
from pipelines.config.sections.distill import DistillConfig
from pipelines.distill import distill
from pipelines.engines.engine_checks import require_engines
from pipelines.evaluate import evaluate, evaluation_within, further_within, recorded_suites
from pipelines.evaluation import superseded_questions
from pipelines.evaluation.question_checks import unaskable_families
from pipelines.evaluation.recorded_scores import Items, items_by_suite, require_same_questions
from pipelines.evaluation.suites import Suite, facts_by_axis, independent_by_axis, suites_of
from pipelines.knowledge.guards import holding_out
from pipelines.machine import cycle_time
from pipelines.midtrain import midtrain
from pipelines.runs import kept_probes
from pipelines.runs.current import current_at_first, make_current
from pipelines.runs.kept_texts import kept_before
from pipelines.runs.pinned_inputs import inherited, pinned
from pipelines.runs.stage_runner import Result, Stage, run_job, worked_on
from pipelines.runs.starting_point import starting_point
from pipelines.runs.workspace import Workspace

MIDTRAIN = "midtrain"  # key of that stage
EVEN = 0.5  # chance of passing below which a cycle warns of too few questions
log = logging.getLogger(__name__)


def cycle(ws: Workspace, job: CycleJob, *, parent: str | None = None, key: str | None = None) -> Result:
    """Run a cycle, or go on with it; returns {"cycle": number, "status": ...}."""
    begun = queries.run_of_key(ws.tracker.db, key, parent=parent) if key else None
    if begun is not None and begun["status"] != "done":
        require_engines(job.settings, ws.config, distils=_still_distils(ws, job, begun["id"]))
    job = kept_probes.read_as_kept(ws, job)
    job = pinned(ws, job, texts_kept=begun is not None and kept_before(ws, begun["id"], MIDTRAIN))
    if job.two_looks:  # a file that is gone is refused before hours of training
        further_path(job.settings.eval)
    return run_job(ws, "cycle", _failure_recorded, job, parent=parent, key=key)


def _still_distils(ws: Workspace, job: CycleJob, run: str) -> bool:
    """Return whether a cycle that has begun may have to distil yet."""
    stage = queries.run_of_key(ws.tracker.db, "choose" if job.recover_with else "distill", parent=run)
    return job.recover_with != "merge" and (stage is None or stage["status"] != "done")


def _failure_recorded(ws: Workspace, job: CycleJob, stage: Stage) -> Result:
    """Record a cycle that fails, for whatever reason, as failed; resuming sets it to running again."""
    try:
        return _work(ws, job, stage)
    except Exception:
        _note_failure(ws, stage)
        raise


def _note_failure(ws: Workspace, stage: Stage) -> None:
    """Record that a cycle has failed; where that cannot be written either, warn: what failed it is raised."""
    try:
        ws.tracker.record_cycle(stage.id, status="failed")
    except TrackerError as error:
        log.warning("the failure of the cycle of run %s could not be recorded: %s", stage.id, error)


def _work(ws: Workspace, job: CycleJob, stage: Stage) -> Result:
    current_at_first(stage)
    number = ws.tracker.record_cycle(stage.id, clean_id=job.clean)
    stage.say(f"cycle {number}: {job.docs}")
    stage.say(f"  starts from  {starting_point(ws, job, number)}")
    job = kept_probes.keep(ws, job)
    _name_unfinished(ws, job, stage)
    for name in _missing_axes(job):
        stage.say(
            f"  verdict      {name} is {verdict.NOT_MEASURED}, so no acceptance: "
            "give --probes FILE (`recover probes` writes one), or --suite ifeval to judge by behaviour alone"
        )
    told = {} if stage.resumed else _say_outlook(ws, job, stage)
    clean = _evaluate(ws, job, stage, "clean", job.clean)
    unmeasured = _unmeasured(job, clean)
    _say_unmeasured({name: why for name, why in unmeasured.items() if name not in told}, stage)
    scores = {"clean": clean["score_ids"]}

    midtrained = midtrain(ws, inherited(midtraining(job), job), parent=stage.id, key=MIDTRAIN)["checkpoint"]
    ws.tracker.record_cycle(stage.id, midtrained_id=midtrained)
    job = superseded_questions.left_out(ws, job, stage, midtrained)
    scores["midtrained"] = _evaluate(ws, job, stage, "midtrained", midtrained)["score_ids"]

    recovered = _recover(ws, job, stage, midtrained, scores)
    ws.tracker.record_cycle(stage.id, recovered_id=recovered)
    ended = _evaluate(ws, job, stage, "recovered", recovered, earlier=job.earlier)
    scores["recovered"] = ended["score_ids"]

    found = _judged(ws, job, scores, unmeasured)
    if _asks_on(job, found):
        stage.say(f"  verdict      {verdict_sentences.summary(found)[0]}: further prompts are asked")
        _ask_further(ws, job, stage, {"clean": job.clean, "recovered": recovered}, scores)
        found = _judged(ws, job, scores, unmeasured)
    decision = _decided(ws, job, stage, number, found)
    if decision["status"] == "accepted":
        approve = ws.command("review", f"cycle:{number}", "--approve")
        otherwise = f"`{approve}` makes this cycle's model current"
        make_current(stage, recovered, otherwise=otherwise, cycle=number)
    return decision


def _name_unfinished(ws: Workspace, job: CycleJob, stage: Stage) -> None:
    """Say that a cycle of the same documents waits to be resumed: the same command again begins a new one."""
    if stage.resumed:
        return
    for run in queries.unfinished_runs(ws.tracker.db):
        same = run["kind"] == "cycle" and run["config"]["docs"] == job.docs and run["id"] != stage.id
        if same and not worked_on(ws.run_directory(run["id"])):
            stage.say(
                "  unfinished   an earlier cycle of these documents was not finished: "
                f"`{ws.command('resume', run['id'])}` goes on with it; this one begins anew"
            )
            return


def _say_outlook(ws: Workspace, job: CycleJob, stage: Stage) -> dict[str, str]:
    """Say what is known before anything is measured: that no mixture is tried, axes with too few questions,
    families that the chat template cannot ask, which are returned, and the time."""
    if job.unmergeable:
        why = job.unmergeable.removeprefix("merge: ")
        stage.say(f"  choose       no mixture with the clean weights is tried: {why}")
    asked = evaluation_within(job, job.clean, "clean", job.settings.eval, job.earlier)
    suites = suites_of(asked)
    further = suites_of(further_within(job, job.clean, "clean")) if job.two_looks else []
    _say_power(job, suites, further, stage)
    unaskable = unaskable_families(ws, ws.clean(), suites)
    _say_unmeasured(unaskable, stage)
    _say_duration(ws, job, asked, suites, further, stage)
    return unaskable


def _say_unmeasured(suites: Mapping[str, str], stage: Stage) -> None:
    """Say which families and tasks cannot be judged, and why."""
    for name, why in suites.items():
        stage.say(
            f"  verdict      {name} is {verdict.NOT_MEASURED}, so no acceptance: {why}; "
            f"leave it out of {'--behaviours' if name in FAMILIES else '--task'} to judge by the others"
        )


def _say_power(job: CycleJob, suites: list[Suite], further: list[Suite], stage: Stage) -> None:
    """Say which axes have too few questions: a cycle that loses nothing would mostly be rejected for it."""
    margins = job.settings.eval.margins()
    counts = independent_by_axis(suites, margins)
    judged = choosing.HALF if job.recover_with else 1.0
    lines = []
    if further:
        own = counts.pop(BEHAVIOUR)
        both = {BEHAVIOUR: own * judged + sum(suite.independent for suite in further)}
        lines += power.power_warning(
            {BEHAVIOUR: own}, margins, least=EVEN, judged=judged, alpha=looks.OWN_ALPHA
        ) or power.power_warning(both, margins, least=EVEN, alpha=verdict.ALPHA / looks.TWO)
    facts = facts_by_axis(suites, margins)
    lines += power.power_warning(counts, margins, least=EVEN, judged=judged, facts=facts)
    for line in lines:
        stage.say(f"  verdict      {line.with_remedy()}")


def _say_duration(
    ws: Workspace, job: CycleJob, asked: EvalJob, suites: list[Suite], further: list[Suite], stage: Stage
) -> None:
    """Say how long a cycle of more than some minutes takes on this machine, and why it has no kernels."""
    recorded = recorded_suites(ws, asked, stage, [*suites, *further])
    found = cycle_time.estimate(ws, job, [*suites, *further], recorded, _trainings(job))
    takes_long = found is not None and found.seconds >= cycle_time.WORTH_SAYING
    if takes_long:
        untimed = ", tasks of lm-eval not counted" if job.settings.eval.task_points else ""
        stage.say(f"  time         {found}{untimed}")
    if why := cycle_time.without_kernels():
        stage.say(f"  kernels      {why}{': it takes longer than that' if takes_long else ''}")


def _trainings(job: CycleJob) -> list[DistillConfig | None]:
    """Return what each way that a choice may try is trained by, None being a mixture; nothing without one."""
    if job.recover_with is None:
        return []
    settings, mixing = job.settings.distill, job.unmergeable is None
    names = choosing.candidate_names(job.recover_with, settings.method, mixing=mixing)
    return [choosing.distillation(name, settings) for name in names]


def midtraining(job: CycleJob) -> MidtrainJob:
    return MidtrainJob(
        docs=job.docs,
        student=job.student,
        settings=holding_out(job.settings.midtrain, _distillations(job)),
        prompts=job.prompts,
        evaluation=job.settings.eval,
        earlier=job.earlier,
        augment=job.augment,
        answer_tokens=job.settings.distill.max_new_tokens,
        seed=job.seed,
    )


def _distillations(job: CycleJob) -> list[DistillConfig]:
    """Return the settings of each distillation that the cycle may recover by."""
    if job.recover_with is None:
        return [job.settings.distill]
    return [settings for settings in _trainings(job) if settings]


def _recover(
    ws: Workspace, job: CycleJob, stage: Stage, midtrained: str, scores: dict[str, dict[str, int]]
) -> str:
    """Recover by the configured method, or by the cheapest that passes; return the checkpoint."""
    if job.recover_with is None:
        by_method = inherited(DistillJob.of(job, midtrained, job.settings.distill), job)
        return str(distill(ws, by_method, parent=stage.id, key="distill")["checkpoint"])
    wanted = ChooseJob(
        how=job.recover_with,
        student=midtrained,
        clean=job.clean,
        prompts=job.prompts,
        settings=job.settings,
        suites=job.suites,
        required=job.required,
        scores=scores,
        earlier=job.earlier,
        outdated=job.outdated,
        unmergeable=job.unmergeable,
        seed=job.seed,
    )
    return str(choose(ws, inherited(wanted, job), parent=stage.id, key="choose")["checkpoint"])


def _evaluate(
    ws: Workspace,
    job: CycleJob,
    stage: Stage,
    label: str,
    checkpoint: str,
    earlier: dict[int, str] | None = None,
) -> Result:
    """Evaluate a checkpoint on every suite, or take what is recorded of it."""
    settings = job.settings.eval
    if label != "clean":  # the open-book ceiling is a property of the clean model
        settings = settings.model_copy(update={"open_book": False})
    asked = evaluation_within(job, checkpoint, label, settings, earlier)
    return evaluate(ws, asked, parent=stage.id, key=f"eval:{label}")


def _asks_on(job: CycleJob, found: Result) -> bool:
    """Return whether only too few prompts stand in the way of acceptance, and further ones may help."""
    blocking = verdict.blocking(found, job.required)
    return blocking == {BEHAVIOUR: verdict.UNDERPOWERED} and looks.may_follow(found["axes"][BEHAVIOUR])


def _ask_further(
    ws: Workspace, job: CycleJob, stage: Stage, models: Mapping[str, str], scores: dict[str, dict[str, int]]
) -> None:
    """Evaluate models on the further prompts; add their scores to those of their stages."""
    for label, checkpoint in models.items():
        asked = further_within(job, checkpoint, label)
        found = evaluate(ws, asked, parent=stage.id, key=f"further:{label}")["score_ids"]
        scores[label] = scores[label] | found


def _unmeasured(job: CycleJob, clean: Result) -> dict[str, str]:
    """Return the families and tasks that cannot be asked of the clean model, or that it could not lose, and
    why."""
    settings = job.settings.eval
    margins = settings.margins()
    found = {}
    for name in (*settings.behaviours, *settings.task_points):
        row = clean["scores"][name]
        family = FAMILIES.get(name)
        if "not_measured" in row:
            found[name] = row["not_measured"]
            continue
        kinds = family.rates if family else ()
        rates = [row["by_kind"][kind]["value"] for kind in kinds if kind in row["by_kind"]]
        least = min(rates, default=row["score"])
        if not measure_of(family).can_be_lost(least, margins[name]):
            found[name] = f"the clean model passes {least:.1%}, no more than the margin"
    return found


def _judged(
    ws: Workspace, job: CycleJob, scores: Mapping[str, Mapping[str, int]], unmeasured: dict[str, str]
) -> Result:
    """Judge every axis; behaviour on further prompts too, if they were asked."""
    asked = items_by_suite(ws, scores, (*job.suites, FURTHER))
    require_same_questions(asked)
    own = {item.prompt for item in asked[IFEVAL].get("clean", ())} if job.two_looks else set()
    judged = {
        suite: {label: _deciding(job, suite, items, own) for label, items in stages.items()}
        for suite, stages in asked.items()
    }
    margins = job.settings.eval.margins()
    found = verdict.verdict(judged, margins, unmeasured=unmeasured, two_looks=job.two_looks)
    looked_twice = found["axes"].get(BEHAVIOUR, {}).get("look") == looks.TWO

    def share(suite: str) -> float:
        names = (IFEVAL, FURTHER) if suite == IFEVAL and looked_twice else (suite,)
        return _recovered(judged, names) / _recovered(asked, names)

    choosing.count_all(found, share)
    return found


def _recovered(items: Items, suites: Sequence[str]) -> int:
    """Return how many answers of the recovered model there are to some suites."""
    return sum(len(items[name]["recovered"]) for name in suites)


def _decided(ws: Workspace, job: CycleJob, stage: Stage, number: int, found: Result) -> Result:
    """Accept the cycle if all measured axes pass and none that is required is missing."""
    ws.tracker.record_verdicts(number, found["axes"])
    for line in verdict_sentences.short_summary(found, job.required):
        stage.say(f"  verdict      {line}")
    status = "accepted" if verdict.accepted(found, job.required) else "rejected"
    ws.tracker.record_cycle(stage.id, status=status)
    return {"cycle": number, "status": status, "verdict": verdict_sentences.summary(found)}


def _missing_axes(job: CycleJob) -> list[str]:
    """Return the axes that acceptance requires and that no suite of the cycle measures."""
    axes = verdict.axes_for(job.settings.eval.margins())
    measured = {axis.name for axis in axes if axis.suite in job.suites}
    return [name for name in job.required if name not in measured]


def _deciding(job: CycleJob, suite: str, items: Sequence[Item], own: Collection[str]) -> list[Item]:
    """Return the items of the verdict: all, or the confirmation half of those that chose the method; of
    further prompts those that are not among IFEval's `own`."""
    if suite == FURTHER:
        return [item for item in items if item.prompt not in own]
    return [item for item in items if job.recover_with is None or not choosing.in_selection(item, job.seed)]
