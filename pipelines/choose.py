"""Cheapest first, until one does the job: nothing, the clean embeddings, merged weights, self-answered SFT,
distillation.

Each candidate is asked all that the cycle's models are asked. One half of the questions (the selection half)
judges it; the first that passes all axes is chosen. The other half (the confirmation half) has no part in
the choice and gives the cycle's verdict. From the second cycle on candidates are asked about earlier
documents too: one that is shown to know less of them than the midtrained model, by more than the margin, does
not pass.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil

from evals import power, verdict, verdict_sentences
from evals.families.table import FAMILIES
from evals.probes import EARLIER, KNOWLEDGE
from evals.scores import Item, pairs
from pipelines.config.jobs import ChooseJob, DistillJob, EvalJob, MergeJob
from pipelines.config.overrides import override
from pipelines.config.sections.distill import DistillConfig
from pipelines.distill import distill
from pipelines.engines.engine_checks import INPROCESS
from pipelines.evaluate import evaluate, evaluation_within
from pipelines.evaluation.recorded_scores import Items, beside, items_by_suite, recorded_items
from pipelines.evaluation.suites import facts_by_axis, independent_by_axis, suites_of
from pipelines.merge import merge
from pipelines.runs import launch
from pipelines.runs.pinned_inputs import inherited, pinned
from pipelines.runs.stage_runner import Result, Stage, run_job
from pipelines.runs.workspace import Workspace
from recovery.errors import GateError, InputError, NonFiniteLoss, OutOfMemory, RecoverError, Unstable
from recovery.storage import atomic_dirs
from recovery.training.alarms import WAY_ON

CHOICES = ("auto", "merge")  # beside any row of `recover methods`
WEIGHTS = (0.3, 0.5, 0.7)  # of the clean checkpoint, the least first
NONE = "none"  # the midtrained model as it is
EMBEDDINGS = "embeddings"  # and head: the clean model's, all else as it is
SELF_ANSWERED = "seqkd"  # the row whose data are the clean model's own answers
DISTILLED = "distill"  # by the configured method, where that is another one
TRAINED = (SELF_ANSWERED, DISTILLED)
# Why a candidate is left out. Anything else, such as a full disk, ends the run, which may be resumed.
CANNOT_BE_MADE = (InputError, GateError, NonFiniteLoss, OutOfMemory, Unstable)
LEFT_OUT = "left_out.json"  # in a run's folder: the candidates whose training broke down, and why

HALF = 0.5  # of the questions choose, the others decide; clusters fall into either alike


@dataclass(frozen=True)
class Candidate:
    """A candidate and its verdict on the selection half."""

    name: str
    checkpoint: str
    passed: bool
    behaviour: float | None  # difference to the clean model on the selection half
    words: list[str]
    forgets: bool = False  # whether it knows less of earlier documents than the midtrained model


def choose(ws: Workspace, job: ChooseJob, *, parent: str | None = None, key: str | None = None) -> Result:
    """Try candidates in order of cost until one passes; return {"checkpoint", "chosen", "tried": [...]}.

    A candidate that cannot be made is left out with its reason ("left_out"); the last one's error is raised.
    """
    job = pinned(ws, job)
    return run_job(ws, "choose", _work, job, parent=parent, key=key)


def _work(ws: Workspace, job: ChooseJob, stage: Stage) -> Result:
    asked = items_by_suite(ws, job.scores, job.suites)
    standards = _of_selection(asked, job.seed)
    _warn_of_small_halves(job, stage, standards)
    earlier = _about_earlier(ws, _midtrained_of_earlier(ws, job, stage))
    tried, left_out = _tried(ws, job, stage, standards, earlier)
    last = tried[-1]
    chosen = last if last.passed or job.how == "auto" else max(tried, key=_least_bad)
    result = {"checkpoint": chosen.checkpoint, "chosen": chosen.name, "tried": [asdict(one) for one in tried]}
    return result | ({"left_out": left_out} if left_out else {})


def _tried(
    ws: Workspace, job: ChooseJob, stage: Stage, standards: Items, earlier: Sequence[Item]
) -> tuple[list[Candidate], dict[str, str]]:
    """Return the candidates up to the first that passes, and why others could not be made.

    A training that broke down stays left out when the choice is resumed: it would go on without the alarm.
    """
    tried: list[Candidate] = []
    broken = _broken_down(stage)
    for name, reason in broken.items():
        stage.say(f"  choose       {name}: left out before: {reason}")
    left_out = _unmixed(job) | broken
    names = [name for name in _names(job) if name not in left_out]
    for name in names:
        try:
            checkpoint = _made(ws, job, stage, name)
        except CANNOT_BE_MADE as error:
            if name == names[-1]:
                raise
            left_out[name] = _leave_out(stage, name, error)
            continue
        candidate = _judged(ws, job, stage, name, checkpoint, standards, earlier)
        tried.append(candidate)
        stage.say(f"  choose       {_said(candidate)}")
        if candidate.passed:
            break
    return tried, left_out


def _names(job: ChooseJob) -> list[str]:
    """Return all candidates, the cheapest first."""
    without = [NONE] if job.how == "auto" else []
    return without + candidate_names(job.how, job.settings.distill.method)


def _unmixed(job: ChooseJob) -> dict[str, str]:
    """Return the mixtures that cannot be made, as was found and said before the first stage, and why."""
    if job.unmergeable is None:
        return {}
    return {name: job.unmergeable for name in _names(job) if name not in (NONE, *TRAINED)}


def _broken_down(stage: Stage) -> dict[str, str]:
    """Return the candidates whose training broke down, also in earlier attempts at this choice, and why."""
    kept = stage.directory / LEFT_OUT
    return dict(json.loads(kept.read_text(encoding="utf-8"))) if kept.exists() else {}


def _leave_out(stage: Stage, name: str, error: Exception) -> str:
    """Say why a candidate cannot be made; end the choice where that has ended the other processes."""
    reason = str(error).removesuffix(WAY_ON)
    if isinstance(error, NonFiniteLoss | Unstable) or launch.broken_off():
        broken = {**_broken_down(stage), name: reason}
        atomic_dirs.write_text(stage.directory / LEFT_OUT, json.dumps(broken))
    stage.say(f"  choose       {name}: left out: {reason}")
    if launch.broken_off():
        onward = stage.workspace.command("resume")
        raise RecoverError(
            f"{name}: left out: {reason}; its training has ended the other processes: `{onward}` goes on "
            "with the next candidate"
        ) from error
    return reason


def _warn_of_small_halves(job: ChooseJob, stage: Stage, standards: Items) -> None:
    """Say before any candidate is made that half of the evaluation may be too small to show anything."""
    margins = job.settings.eval.margins()
    axes = verdict.axes_for(margins)
    halves = {
        axis.name: len({item.cluster for item in standards[axis.suite]["clean"]})
        for axis in axes
        if standards.get(axis.suite)
    }
    for name in (name for name, count in halves.items() if not count):
        stage.say(f"  choose       {name}: none of its questions is in the half that chooses")
    asked = tuple(axis.suite for axis in axes if halves.get(axis.name))
    whole = _evaluation(job, job.clean, "clean").model_copy(update={"suites": asked, "earlier": {}})
    suites = suites_of(whole)
    facts = facts_by_axis(suites, margins)
    families = len(set(job.suites) & set(FAMILIES))
    for name, count in independent_by_axis(suites, margins).items():
        for line in power.power_warning({name: count}, margins, families, judged=HALF, facts=facts):
            stage.say(f"  choose       {line.with_remedy()}")


def candidate_names(how: str, method: str, *, mixing: bool = True) -> list[str]:
    """Return the candidates that have to be made, the cheapest first; without `mixing` no mixtures.

    `method` is that of the configured distillation.
    """
    mixtures = [f"merge:{weight:g}" for weight in WEIGHTS]
    if how == "merge":
        return mixtures
    trained = [SELF_ANSWERED] if method == SELF_ANSWERED else [SELF_ANSWERED, DISTILLED]
    return [EMBEDDINGS, *mixtures, *trained] if mixing else trained


def distillation(name: str, settings: DistillConfig) -> DistillConfig | None:
    """Return the settings that a candidate is trained by; None of a mixture of weights."""
    if name not in TRAINED:
        return None
    if name == DISTILLED or settings.method == SELF_ANSWERED:
        return settings
    plain = {"dials": {}, "sampler": INPROCESS, "ahead": 0, "offload_teacher": False}
    return override(settings, {"method": SELF_ANSWERED, **plain})


def _require_own_embeddings(ws: Workspace, job: ChooseJob) -> None:
    """Refuse to put back what the student's adapter has left as it is."""
    from recovery.models.merging import StoredWeights, token_matrices

    student, clean = ws.checkpoint(job.student), ws.checkpoint(job.clean)
    if student.kind == "adapter" and student.base == clean.id:
        changed = StoredWeights(student.path, ws.config.model.trust_remote_code).added
        if not token_matrices(StoredWeights(clean.path)) & set(changed):
            raise InputError("an adapter leaves the embeddings as they are: they are the clean model's")


def _made(ws: Workspace, job: ChooseJob, stage: Stage, name: str) -> str:
    """Make a candidate and return its checkpoint."""
    if name == NONE:
        return job.student
    settings = distillation(name, job.settings.distill)
    if settings is not None:
        wanted = DistillJob.of(job, job.student, settings)
        return str(distill(ws, inherited(wanted, job), parent=stage.id, key=name)["checkpoint"])
    if name == EMBEDDINGS:
        _require_own_embeddings(ws, job)
        mixed = MergeJob(student=job.student, other=job.clean, weight=1.0, kind="embeddings")
    else:
        mixed = MergeJob(student=job.student, other=job.clean, weight=float(name.split(":")[1]))
    return str(merge(ws, mixed, parent=stage.id, key=name)["checkpoint"])


def _judged(
    ws: Workspace,
    job: ChooseJob,
    stage: Stage,
    name: str,
    checkpoint: str,
    standards: Items,
    earlier: Sequence[Item],
) -> Candidate:
    """Return the verdict on the selection half, and on what was known of earlier documents."""
    ids = _asked(ws, job, stage, name, checkpoint)
    answered = _of_selection(items_by_suite(ws, {"recovered": ids}, job.suites), job.seed)
    found = verdict.verdict(beside(standards, answered), job.settings.eval.margins())
    count_all(found, lambda suite: HALF)
    behaviour = found["axes"].get(verdict.BEHAVIOUR, {}).get("difference")
    passed = verdict.accepted(found, _required(job, standards))
    words = verdict_sentences.summary(found)
    forgets = _forgets(job, earlier, _about_earlier(ws, ids))
    return Candidate(name, checkpoint, passed and not forgets, behaviour, words, forgets)


def _said(candidate: Candidate) -> str:
    """Say whether a candidate passes, and where it is left out for earlier documents."""
    named = "without recovery" if candidate.name == NONE else candidate.name
    if candidate.forgets:
        return f"{named}: does not pass: it lost more of earlier documents than the margin"
    return f"{named}: {'passes' if candidate.passed else 'does not pass'} on the selection half"


def _midtrained_of_earlier(ws: Workspace, job: ChooseJob, stage: Stage) -> dict[str, int]:
    """Ask the midtrained model about earlier documents, as its own evaluation does not; return the scores."""
    if not job.earlier:
        return {}
    asked = _evaluation(job, job.student, "midtrained").model_copy(update={"suites": ()})
    return dict(evaluate(ws, asked, parent=stage.id, key="earlier")["score_ids"])


def _about_earlier(ws: Workspace, scores: Mapping[str, int]) -> list[Item]:
    """Return the answers about earlier documents, each cycle's under keys of its own."""
    return [
        replace(item, key=f"{suite} {item.key}", detail=item.detail | {"cluster": f"{suite} {item.cluster}"})
        for suite, score in scores.items()
        if suite.startswith(EARLIER)
        for item in recorded_items(ws, score)
    ]


def _forgets(job: ChooseJob, before: Sequence[Item], after: Sequence[Item]) -> bool:
    """Return whether a candidate is shown to know less of earlier documents, by more than knowledge's margin.

    The midtrained model itself has no answers beside those that it is compared by."""
    from evals.statistics import non_inferiority  # SciPy, once something is measured

    if not before or not after:
        return False
    both = pairs(after, before, "earlier documents")
    found = non_inferiority(
        [now.passed for now, _ in both],
        [then.passed for _, then in both],
        job.settings.eval.margins()[KNOWLEDGE],
        clusters=[then.cluster for _, then in both],
    )
    return found.outcome == "failed"


def count_all(found: Result, judged: Callable[[str], float]) -> None:
    """Let a verdict say how many questions it would take in all, where a share of each suite's is judged."""
    for axis in found["axes"].values():
        if axis.get("needed_n"):
            axis["needed_n"] = ceil(axis["needed_n"] / judged(axis["suite"]))


def _asked(ws: Workspace, job: ChooseJob, stage: Stage, name: str, checkpoint: str) -> dict[str, int]:
    """Ask a candidate all that the cycle's models are asked, or take what is recorded; return the scores."""
    if name == NONE:  # the midtrained model, which has been asked
        return dict(job.scores["midtrained"])
    # Not eval:NAME, under which earlier versions recorded answers to other questions than the standards'.
    asked = _evaluation(job, checkpoint, name)
    return dict(evaluate(ws, asked, parent=stage.id, key=f"asked:{name}")["score_ids"])


def _evaluation(job: ChooseJob, checkpoint: str, label: str) -> EvalJob:
    """Return what the cycle's models are asked, and about earlier documents."""
    settings = job.settings.eval.model_copy(update={"open_book": False})
    return evaluation_within(job, checkpoint, label, settings, job.earlier)


def _required(job: ChooseJob, standards: Items) -> tuple[str, ...]:
    """Return the axes without which nothing passes, but those of which the selection half has no question:
    no candidate could pass them."""
    axes = verdict.axes_for(job.settings.eval.margins())
    unasked = [axis for axis in axes if not any(standards.get(axis.suite, {}).values())]
    return tuple(name for name in job.required if not any(axis.named_in([name]) for axis in unasked))


def _least_bad(tried: Candidate) -> tuple[bool, float]:
    """Return a rank among candidates that do not pass: any that forgets nothing, then by behaviour."""
    return not tried.forgets, -1.0 if tried.behaviour is None else tried.behaviour


# The two halves --------------------------------------------------------------------------------------------


def _of_selection(asked: Items, seed: int) -> Items:
    """Return the items that are in the selection half."""
    return {
        suite: {
            stage: [item for item in items if in_selection(item, seed)] for stage, items in stages.items()
        }
        for suite, stages in asked.items()
    }


def in_selection(item: Item, seed: int) -> bool:
    """Return whether an item is in the selection half; items of one cluster are always in the same half."""
    label = f"{seed}:{item.cluster}"
    return hashlib.sha256(label.encode()).digest()[0] < 128
