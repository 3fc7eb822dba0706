"""Build the jobs of stages that measure checkpoints: evaluation, drift, locate, retrieval."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from evals.families.table import FAMILIES
from evals.ifeval import FURTHER, IFEVAL
from evals.tasks import names as task_names
from evals.tasks.names import IFBENCH, OURS, listed, require_families
from evals.verdict import BEHAVIOUR, KEYS, axes_for, required_axes
from pipelines.config.jobs import DriftJob, EvalJob, LocateJob, RetrievalJob
from pipelines.config.sections.eval import EvalConfig
from pipelines.config.settings import Config
from pipelines.engines.engine_places import require_place
from pipelines.evaluation.suites import answerable_suites
from pipelines.job_from_options.ifeval_prompts import with_further, with_ifeval
from pipelines.job_from_options.inputs import (
    NONE,
    Changes,
    absolute,
    readable_folder,
    recovery_prompts,
    resolved,
    resolved_for,
    say_about,
    say_ifeval,
    say_kept,
    taught_checkpoint,
    taught_folder,
)
from pipelines.job_from_options.trained_weights import require_sampled
from pipelines.runs.pinned_inputs import folder_here
from pipelines.runs.recorded import is_cycle
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError

OF_TASKS = {"eval.tasks": "--tasks", "eval.tasks_in_chat": "--chat"}
NO_TASKS = (*OURS, FURTHER, IFBENCH)
OF_VERDICT = (BEHAVIOUR, *KEYS, "cycle", "status")  # in its JSON


def eval_job(
    ws: Workspace,
    checkpoint: str | None = None,
    suites: str | None = None,
    *,
    output: Path | None = None,
    changes: Changes = NONE,
    narrow: bool = True,
) -> EvalJob:
    """Build an evaluation; without suites, on all for which there are questions.

    If `narrow`, files of questions among the changes leave only their own suites.
    """
    opened = ws.checkpoint(checkpoint or "current")
    chosen = opened.id
    taught = taught_checkpoint(ws, chosen)
    settings = found = resolved_for(ws, taught, changes=changes)
    require_sampled(ws, opened, settings, [], ["eval"])
    require_place("sampler", settings.eval.sampler, ws.config)
    asked = listed(suites) or _answerable(settings, changes if narrow else NONE)
    require_task(asked, changes)
    if output:
        _require_written(asked)
    if IFEVAL in asked and settings.eval.ifeval:
        settings = with_ifeval(ws, settings, changes)
    if FURTHER in asked:
        settings = with_further(ws, settings, typed=True)
    job = EvalJob(
        checkpoint=chosen,
        suites=asked,
        settings=settings.eval,
        output=_writable_folder(output) if output else None,
        seed=settings.seed,
    )
    say_about(ws, chosen, taught)
    _say_files(ws, found, asked, changes)
    return job


def _say_files(ws: Workspace, settings: Config, asked: Sequence[str], changes: Changes) -> None:
    """Name the files of questions that the documents or their cycle brought along."""
    if IFEVAL in asked:
        say_ifeval(ws, settings, changes)
    if any(suite in OURS and suite != IFEVAL for suite in asked):
        say_kept(ws, settings.eval.probes)


def require_task(suites: Sequence[str], changes: Changes, example: str = "--suite gsm8k") -> None:
    """Refuse options that only tasks of lm-eval read where none is asked."""
    if any(suite not in NO_TASKS for suite in suites):
        return
    for key, option in OF_TASKS.items():
        if changes.get(key):
            raise InputError(f"{option}: no task of lm-eval is asked: name one, as in {example}")


def require_tasks(settings: EvalConfig) -> None:
    """Refuse the first name with a margin that is no task of lm-eval, or a word that a verdict has."""
    for name in settings.task_points:
        if name in (*NO_TASKS, *OF_VERDICT):
            raise InputError(
                f"--task {name}: a verdict has this name for something else: name a task of lm-eval"
            )
    task_names.require(tuple(settings.task_points), settings.tasks)


def with_tasks(settings: EvalConfig, suites: Sequence[str]) -> EvalConfig:
    """Return the settings with the margins of those tasks alone that are among the suites."""
    points = {name: margin for name, margin in settings.task_points.items() if name in suites}
    return settings.model_copy(update={"task_points": points})


def _require_written(suites: Sequence[str]) -> None:
    """Refuse a folder for lm-eval's files where no suite that it runs is asked."""
    if all(suite in (*OURS, IFBENCH) and suite != IFEVAL for suite in suites):
        raise InputError("--output: neither IFEval nor a task of lm-eval is asked: add ifeval to --suite")


def _writable_folder(path: Path) -> str:
    """Make the folder of lm-eval's files, which lm-eval itself would leave out without a word."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        writable = os.access(path, os.W_OK)
    except OSError as error:
        raise InputError(f"--output {path}: {error.strerror}: give a folder that can be written") from error
    if not writable:
        raise InputError(f"--output {path}: may not be written: give another folder")
    return absolute(path)


def _answerable(settings: Config, changes: Changes) -> tuple[str, ...]:
    """Return the suites of the files given as options; without any, all suites that have questions."""
    require_families(settings.eval.behaviours)
    require_tasks(settings.eval)
    named = {name for name in ("ifeval", "further_prompts", "probes") if f"eval.{name}" in changes}
    if not settings.eval.further_prompts:
        named.discard("further_prompts")
    suites = answerable_suites(settings.eval, settings.model.path)
    return tuple(suite for suite in (*suites, FURTHER) if _file_option(suite) in named) if named else suites


def _file_option(suite: str) -> str:
    """Return the option that names a suite's file; a family and a task have none."""
    if suite in FAMILIES or suite not in NO_TASKS:
        return ""
    return {IFEVAL: "ifeval", FURTHER: "further_prompts"}.get(suite, "probes")


def suites_of_verdict(suites: str | None, settings: EvalConfig) -> tuple[str, ...]:
    """Parse names of suites; refuse one by which no verdict judges."""
    names = listed(suites)
    for name in names:
        if name not in (*OURS, *settings.task_points):
            tasks = f"a task of lm-eval with a margin, as in --task {name}=3"
            raise InputError(f"--suite {name}: a cycle is judged by {', '.join(OURS)}, or by {tasks}")
    return names


def locate_job(
    ws: Workspace, checkpoint: str, groups: int, suites: str | None = None, changes: Changes = NONE
) -> LocateJob:
    """Build a search in a checkpoint, or in a cycle's midtrained one; without suites, on all available."""
    place = f"{checkpoint}:midtrained" if is_cycle(checkpoint) else checkpoint
    measured = eval_job(ws, place, suites, changes=changes, narrow=False)
    judged = suites_of_verdict(",".join(measured.suites), measured.settings)
    settings = with_tasks(measured.settings, judged)
    return LocateJob(
        checkpoint=measured.checkpoint,
        clean=ws.clean().id,
        suites=judged,
        required=required_axes(axes_for(settings.margins()), judged, named=bool(suites)),
        settings=settings,
        groups=groups,
        seed=measured.seed,
    )


def retrieval_job(
    ws: Workspace, checkpoint: str, docs: Path | None, passages: int, changes: Changes = NONE
) -> RetrievalJob:
    """Build a comparison with retrieval, of the clean model alone if the checkpoint is that."""
    opened, clean = ws.checkpoint(checkpoint), ws.clean()
    taught = opened.id if docs else taught_checkpoint(ws, opened.id)
    if taught != opened.id:
        docs = taught_folder(ws, taught)
        say_about(ws, opened.id, taught)
    settings = resolved_for(ws, taught, docs, changes)
    for asked in (clean, opened):
        require_sampled(ws, asked, settings, [], ["eval"])
    require_place("sampler", settings.eval.sampler, ws.config)
    if settings.eval.probes is None:
        raise InputError(
            "no questions lie beside the documents: write some with `recover probes`, or --probes"
        )
    say_kept(ws, settings.eval.probes)
    return RetrievalJob(
        clean=clean.id,
        trained=None if opened.id == clean.id else opened.id,
        settings=settings.eval,
        docs=readable_folder(ws, folder_here(ws, docs), settings) if docs else None,
        passages=passages,
    )


def drift_job(
    ws: Workspace, a: str, b: str, *, count: int, max_new_tokens: int, changes: Changes = NONE
) -> DriftJob:
    """Build a measurement of how far two checkpoints are apart, on the prompts of the second one."""
    first, second = ws.checkpoint(a).id, ws.checkpoint(b).id
    settings = resolved(ws, taught_folder(ws, second), changes)
    return DriftJob(
        a=first,
        b=second,
        prompts=recovery_prompts(ws, settings, changes),
        count=count,
        max_new_tokens=max_new_tokens,
        seed=settings.seed,
    )
