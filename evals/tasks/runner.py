"""Run any lm-eval task on a model given as functions: resolve its name, check its data, collect its samples.

Only this file and evals/harness.py import lm_eval. Local data (local_data.py) need no network: a folder may
hold task YAML files with their data files beside them, or NAME.jsonl (NAME.SPLIT.jsonl) with the rows of an
lm-eval task.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lm_eval
import lm_eval.tasks
import numpy as np
from lm_eval.api.metrics import mean
from lm_eval.api.model import LM
from lm_eval.api.task import ConfigurableTask, Task
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks._yaml_loader import load_yaml

from evals import harness, nltk_sentences
from evals.scores import Asked, ModelCalls, subsample
from evals.tasks import local_data
from evals.tasks import names as task_names
from recovery.errors import InputError, first_line

_SEED = 0  # every checkpoint gets the same examples and options
_MAX_NEW_TOKENS = 256  # lm-eval's own, where a task names none
_CUTS = {"top_p", "top_k", "min_p"}  # leave out unlikely tokens where a task samples


@dataclass(frozen=True)
class TaskRun:
    """lm-eval's samples and results per leaf task, and in order the metrics that may score each."""

    name: str
    tasks: Mapping[str, Task]
    samples: dict[str, list[dict[str, Any]]]
    results: dict[str, Any]
    metrics: dict[str, tuple[list[str], str]]  # task -> (metrics, filter)


class PreparedTask:
    """A task or group whose data are loaded; `run` evaluates a model on it."""

    def __init__(self, name: str, tasks: dict[str, Any]) -> None:
        self.name = name
        self.loaded = tasks
        self.metrics = {leaf: _metrics(task) for leaf, task in tasks["tasks"].items()}

    def run(self, model: ModelCalls, *, in_chat: bool = False, limit: int | None = None) -> TaskRun:
        samples = self.drawn(limit)
        loaded = self.loaded["tasks"]
        tasks = {name: task for name, task in loaded.items() if samples is None or name in samples}
        state = random.getstate()
        try:
            found: Any = lm_eval.evaluate(
                _TaskLM(model, in_chat),
                {**self.loaded, "tasks": tasks},
                samples=samples,
                bootstrap_iters=0,
                apply_chat_template=in_chat,
                fewshot_as_multiturn=in_chat,
            )
        finally:
            random.setstate(state)
        metrics = {leaf: self.metrics[leaf] for leaf in tasks}
        return TaskRun(self.name, tasks, found["samples"], found, metrics)

    def drawn(self, limit: int | None) -> dict[str, list[int]] | None:
        """Return the rows to ask of each leaf, `limit` drawn from all leaves together; None for all rows.

        A leaf of which none is drawn is left out: lm-eval takes an empty list for all."""
        rows = [
            (name, row) for name, task in self.loaded["tasks"].items() for row in range(len(task.eval_docs))
        ]
        if limit is None or limit >= len(rows):
            return None
        found: dict[str, list[int]] = defaultdict(list)
        for name, row in sorted(subsample(rows, limit)):
            found[name].append(row)
        return dict(found)


def prepare(name: str, folder: str | Path | None = None, *, in_chat: bool = False) -> PreparedTask:
    """Load a task with its data, or raise an error that names what is missing; nothing is generated."""
    nltk_sentences.settle()  # tasks with IFEval's checkers would download it
    manager = _manager(folder, name)
    if name not in manager.all_tasks:
        raise task_names.unknown(name, manager.all_tasks)
    leaves = _leaves(manager, name)
    for leaf in leaves:  # before lm-eval runs code to load a task that runs some
        settings = manager.task_index[leaf].cfg or {}
        _require_text(
            leaf, settings.get("unsafe_code"), settings.get("doc_to_image") or settings.get("doc_to_audio")
        )
    try:
        with harness.quiet():
            _use_local_data(manager, leaves, folder)
            random.seed(_SEED)
            loaded = dict(manager.load(name))
            for task in loaded["tasks"].values():
                _settle(task)
            docs = {leaf: len(task.eval_docs) for leaf, task in loaded["tasks"].items()}
    except InputError:
        raise
    except Exception as error:  # not cached, offline, gated, a wrong file: each raises another kind
        raise InputError(_missing(manager, name, leaves, error)) from error
    _require_all(name, leaves, loaded["tasks"])
    empty = [leaf for leaf, count in docs.items() if not count]
    if empty or not docs:
        raise InputError(f"{(empty or [name])[0]}: no row to ask: give it data")
    for leaf, task in loaded["tasks"].items():
        _require_usable(leaf, task, in_chat)
        task.set_fewshot_seed(_SEED)
    return PreparedTask(name, loaded)


def _require_text(name: str, runs_code: object, shows: object) -> None:
    """Refuse a task that runs what the model wrote, or that shows more than text."""
    if runs_code:
        raise InputError(f"{name}: runs code that the model wrote, which is not done here: name another task")
    if shows:
        raise InputError(f"{name}: asks about images or sounds; only texts are asked here: name another task")


def _require_usable(name: str, task: Task, in_chat: bool) -> None:
    """Refuse a task whose answers could not be paired, or that cannot be asked here or in chat."""
    _require_text(name, getattr(task, "UNSAFE_CODE", False), getattr(task, "MULTIMODAL", False))
    if task.OUTPUT_TYPE == "loglikelihood_rolling":
        raise InputError(f"{name}: gives the perplexity of texts, not answers: it cannot be paired")
    _metrics(task)
    asked = task.config.generation_kwargs or {}
    if _settings(asked)[2] and (cut := sorted(_CUTS & asked.keys())):
        raise InputError(f"{name}: samples with {cut[0]}, which is not done here: leave it out of the task")
    if in_chat and any(task.doc_to_prefix(doc) for doc in task.eval_docs):
        raise InputError(f"{name}: opens the answer itself, which no chat can do: leave --chat away")


def _manager(folder: str | Path | None, name: str) -> lm_eval.tasks.TaskManager:
    if folder is not None and not Path(folder).is_dir():
        raise InputError(f"--tasks {folder} is not a folder: give one with task YAML or NAME.jsonl files")
    include = str(Path(folder).absolute()) if folder else None
    shipped = Path(lm_eval.tasks.__file__).parent
    near = [include, *(str(found.parent) for found in sorted(shipped.rglob(f"{name}.yaml")))]
    for place in filter(None, near):  # one folder is read in no time, lm-eval's thousands of files in seconds
        own = lm_eval.tasks.TaskManager(include_defaults=False, include_path=place)
        if name in own.all_subtasks:
            return own
    return lm_eval.tasks.TaskManager(include_path=include)


def _leaves(manager: lm_eval.tasks.TaskManager, name: str) -> list[str]:
    """List the leaf tasks under a name from the index, without loading data."""
    if name in manager.all_subtasks:
        return [name]
    entry = manager.task_index[name]
    return sorted(entry.tags) if name in manager.all_tags else _members(manager, entry.cfg or {})


def _members(manager: lm_eval.tasks.TaskManager, group: dict[str, Any]) -> list[str]:
    """List the leaf tasks of a group's settings, those of the groups that are written within it included."""
    found: list[str] = []
    for child in group.get("task") or []:
        inner = child if isinstance(child, str) else child.get("group") or child.get("task")
        if isinstance(inner, str) and inner in manager.task_index:
            found += _leaves(manager, inner)
        elif isinstance(child, dict) and "group" in child:
            found += _members(manager, child)
    return found


def _use_local_data(manager: Any, leaves: Sequence[str], folder: str | Path | None) -> None:
    """Point leaves at local files in the index, so that lm-eval itself applies what their groups set."""
    for leaf in dict.fromkeys(leaves) if folder else ():
        entry = manager.task_index[leaf]
        if override := local_data.override(entry, folder):
            cfg = load_yaml(entry.yaml_path, resolve_func=True)
            manager.task_index[leaf] = replace(entry, yaml_path=None, cfg={**cfg, **override})


def _require_all(name: str, leaves: Sequence[str], loaded: Mapping[str, Any]) -> None:
    """Refuse a group of which lm-eval loads some tasks under one name, so that all but one are lost."""
    if lost := [leaf for leaf in leaves if leaf not in loaded]:
        raise InputError(
            f"{name}: lm-eval loads no {lost[0]}: where a group changes settings of another, name it by "
            "`group:` in its list, and the tasks of a tag one by one"
        )


def _missing(manager: Any, name: str, leaves: Sequence[str], error: Exception) -> str:
    source = (manager.task_index[leaves[0]].cfg or {}).get("dataset_path") if leaves else None
    what = f"its data set {source}" if source else "its data"
    return (
        f"{name}: {what} cannot be loaded ({first_line(error)}): go online once to fetch it, "
        f"or give --tasks DIR with {leaves[0] if leaves else name}.jsonl"
    )


def _settle(task: Task) -> None:
    """Process the rows to ask once, by the same draws for every checkpoint; keep each from its own examples.

    lm-eval processes them whenever it reads them, and some tasks shuffle their options then: those that it
    scores would be others than those that were asked."""
    asked = task.get_config("test_split") or task.get_config("validation_split")
    process = task.get_config("process_docs")
    own = asked is not None and isinstance(task, ConfigurableTask) and _gives_examples(task, asked)
    if asked is not None and process is not None:
        random.seed(_SEED)
        task.dataset[asked] = task.eval_docs
        task.set_config("process_docs", None)
    if own:
        _leave_out_asked(task, process)


def _gives_examples(task: ConfigurableTask, asked: str) -> bool:
    """Return whether the examples are drawn from the rows of the split that is asked."""
    config, shots, rows = task.config, task.fewshot_cfg, task.dataset
    usual = config.training_split or config.validation_split or config.test_split
    split = shots.split or (None if shots.samples is not None else usual)
    return split == asked or (
        isinstance(rows, local_data.Splits) and split is not None and rows[split] is rows[asked]
    )


def _leave_out_asked(task: ConfigurableTask, process: Any) -> None:
    """Let lm-eval leave the asked row out of its examples, which it does where their split is test_split."""
    config, shots = task.config, task.fewshot_cfg
    if process is not None and (shots.split is None or shots.process_docs is process):
        task.sampler.replace_df(list(task.eval_docs))  # shuffled another time, a row differs from itself
    if not isinstance(task.dataset, local_data.Splits):
        return
    shots.split = config.test_split
    rows, wanted = len(task.sampler.df), config.num_fewshot or 0
    if 0 < rows <= wanted:
        raise InputError(
            f"{config.task}: {wanted} examples beside the question take more than {rows} rows: add some, or "
            f"{config.task}.train.jsonl with other rows"
        )


def _metrics(task: Task) -> tuple[list[str], str]:
    """Return the metrics that are means over documents, the higher the better, and the first filter."""
    better, joined = task.higher_is_better(), task.aggregation()
    found = [str(metric) for metric in better if better[metric] and joined.get(metric) in (mean, np.mean)]
    if not found:
        raise InputError(
            f"{task.task_name}: none of its metrics ({', '.join(map(str, better))}) is a mean over documents "
            "with higher_is_better: true: it cannot be paired"
        )
    filters = getattr(task, "_filters", None)
    return found, str(filters[0].name) if filters else "none"


class _TaskLM(LM):
    """lm-eval's model interface over plain functions; a chat travels through it as JSON."""

    tokenizer_name = "recover"

    def __init__(self, model: ModelCalls, in_chat: bool) -> None:
        super().__init__()
        self.model = model
        self.in_chat = in_chat

    def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
        if not add_generation_prompt:
            raise InputError("a task that opens the answer itself cannot be asked in chat: leave --chat away")
        return json.dumps(chat_history)

    def _asked(self, context: str) -> Asked:
        return json.loads(context) if self.in_chat and context else context  # empty: a choice by itself

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Send requests of the same settings in one call; answers are cut at the first stop string."""
        groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for place, request in enumerate(requests):
            groups[_settings(request.args[1])].append(place)
        answers = [""] * len(requests)
        for (until, limit, temperature), places in groups.items():
            texts = self.model.generate(
                [self._asked(requests[i].args[0]) for i in places], limit, temperature
            )
            for place, text in zip(places, texts, strict=True):
                answers[place] = _cut(text, until)
        return answers

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        return self.model.loglikelihood([(self._asked(r.args[0]), r.args[1]) for r in requests])

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        return [total for total, _ in self.model.loglikelihood([("", r.args[0]) for r in requests])]


def _settings(kwargs: dict[str, Any]) -> tuple[tuple[str, ...], int, float]:
    """Return (stop strings, longest answer, temperature) of a request."""
    found: dict[str, Any] = dict(normalize_gen_kwargs(kwargs, _MAX_NEW_TOKENS))
    warm = float(found.get("temperature", 1.0)) if found["do_sample"] else 0.0
    return tuple(found["until"]), found["max_gen_toks"], warm


def _cut(text: str, until: Sequence[str]) -> str:
    ends = [place for stop in until if stop and (place := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text


def save(folder: str | Path, model_name: str, results: dict[str, Any]) -> Path:
    """Write lm-eval's own layout: FOLDER/MODEL/results_TIME.json and samples_TASK_TIME.jsonl."""
    from lm_eval.loggers import EvaluationTracker

    tracker = EvaluationTracker(output_path=str(folder))
    tracker.general_config_tracker.log_experiment_args(
        model_source="recover",
        model_args=model_name,
        system_instruction="",
        chat_template="",
        fewshot_as_multiturn=False,
    )
    tracker.general_config_tracker.model_name = model_name
    tracker.general_config_tracker.model_name_sanitized = model_name.replace("/", "__")
    samples = results.get("samples") or {}
    plain = {name: value for name, value in results.items() if name != "samples"}
    tracker.save_results_aggregated(results=plain, samples=samples)
    for task, rows in samples.items():
        tracker.save_results_samples(task_name=task, samples=[dict(row) for row in rows])
    return Path(folder) / model_name.replace("/", "__")
