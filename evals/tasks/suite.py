"""Run any lm-eval task as a suite: its documents become items, its first mean of shares the score.

A group (mmlu) is one suite over the documents of all its tasks. Metrics that are shares rather than passes
(truthfulqa_mc2) keep their value in the item's detail; "passed" then means more than half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.intervals import clustered_interval, mean_interval
from evals.scores import Item, ModelCalls, Score, digest
from recovery.errors import InputError

if TYPE_CHECKING:
    from evals.tasks.runner import PreparedTask, TaskRun

_KEPT = 2000  # characters of a prompt that are stored; few-shot examples come before
_ROUNDING = 1e-6
_TRIED = 32  # texts of a document


def prepare(name: str, folder: str | Path | None = None, *, in_chat: bool = False) -> PreparedTask:
    """Load the task and its data, or raise an error that names what is missing."""
    from evals.tasks import runner  # a slow import, deferred until a task is used

    return runner.prepare(name, folder, in_chat=in_chat)


def prompts(prepared: PreparedTask) -> list[str]:
    """Return what a task asks, to be excluded from training."""
    leaves = prepared.loaded["tasks"].values()
    return [text for task in leaves for doc in task.eval_docs for text in _asked_texts(task, doc)]


def _asked_texts(task: Any, doc: Any) -> list[str]:
    """Return a document's question, or the whole texts of which the likeliest is chosen."""
    question = task.doc_to_text(doc)
    if getattr(task, "multiple_input", 0):  # winogrande: the question is the place of the right beginning
        return [f"{beginning} {task.doc_to_target(doc)}" for beginning in task.doc_to_choice(doc)]
    if task.OUTPUT_TYPE == "multiple_choice" and not str(question).strip():  # blimp
        return [str(text) for text in task.doc_to_choice(doc)]
    return [str(question)]


def different(prepared: PreparedTask, limit: int | None = None) -> int:
    """Return how many different questions are asked, where `limit` rows are drawn."""
    loaded = prepared.loaded["tasks"]
    whole = {name: list(range(len(task.eval_docs))) for name, task in loaded.items()}
    drawn = prepared.drawn(limit) or whole
    rows = ((loaded[name], row) for name, chosen in drawn.items() for row in chosen)
    return len({_question(task, task.eval_docs[row]) for task, row in rows})


def settle_metric(prepared: PreparedTask) -> None:
    """Choose the metric before a model is asked, by what known answers get: it has to be the same for every
    model that a claim compares. Refuse a task of which none is a number from 0 to 1."""
    for leaf, task in prepared.loaded["tasks"].items():
        metrics, chosen = prepared.metrics[leaf]
        if graded := _graded_texts(task):
            prepared.metrics[leaf] = [_metric(leaf, metrics, graded)], chosen


def _graded_texts(task: Any) -> list[dict[str, Any]]:
    """Return what the metrics of a task whose answers are written give the texts of its first document, the
    right answer among them.

    Nothing where that cannot be told: a task may want what its own filters make of an answer."""
    if task.OUTPUT_TYPE != "generate_until":
        return []
    with suppress(Exception):
        doc = next(iter(task.eval_docs))
        texts = [text for value in (task.doc_to_target(doc), *doc.values()) for text in _texts(value)]
        return [dict(task.process_results(doc, [text])) for text in texts[:_TRIED]]
    return []


def _texts(value: Any) -> list[str]:
    return [str(one) for one in (value if isinstance(value, list) else [value])]


def evaluate(
    prepared: PreparedTask,
    model: ModelCalls,
    *,
    in_chat: bool = False,
    limit: int | None = None,
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
) -> tuple[Score, dict[str, Any]]:
    """Return the score and lm-eval's results; `keep` gets these first, also where they allow no score."""
    run = prepared.run(model, in_chat=in_chat, limit=limit)
    keep(run.results)
    return score(run), run.results


def score(run: TaskRun) -> Score:
    rows = {task: _rows(task, run) for task in run.samples}
    metrics = {task: _metric(task, run.metrics[task][0], rows[task]) for task in rows}
    items = [
        _item(task, row, metrics[task], _question(run.tasks[task], row["doc"]), many=len(rows) > 1)
        for task in rows
        for row in rows[task]
    ]
    values = [item.detail["value"] for item in items]
    clusters = [item.cluster for item in items]
    binary = set(values) <= {0.0, 1.0}
    return Score(
        suite=run.name,
        metric="/".join(sorted(set(metrics.values()))),
        value=sum(values) / len(values),
        n=len(items),
        interval=clustered_interval(values, clusters) if binary else mean_interval(values),
        items=tuple(items),
        details={"tasks": {task: _numbers(run.results["results"].get(task, {})) for task in run.samples}},
    )


def _rows(task: str, run: TaskRun) -> list[dict[str, Any]]:
    """Return a task's documents as its first filter left their answers."""
    _, chosen = run.metrics[task]
    rows = run.samples[task]
    filters = {row["filter"] for row in rows}
    return [row for row in rows if row["filter"] == (chosen if chosen in filters else min(filters))]


def _metric(task: str, metrics: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    """Return the first metric that gives each document a number from 0 to 1; refuse a task without one."""
    why = {metric: _refusal(metric, rows) for metric in metrics}
    for metric in metrics:
        if why[metric] is None:
            return metric
    raise InputError(f"{task}: metric {metrics[0]} {why[metrics[0]]}: it cannot be paired")


def _refusal(metric: str, rows: Sequence[dict[str, Any]]) -> str | None:
    """Say why a metric is none of single documents from 0 to 1; None where it is."""
    if not rows or any(metric not in row for row in rows):
        return "is not one of single documents"
    values = [row[metric] for row in rows]
    if not all(isinstance(value, bool | int | float) or hasattr(value, "item") for value in values):
        return "gives no number for a document"
    wrong = [value for value in map(float, values) if not -_ROUNDING <= value <= 1 + _ROUNDING]
    return f"gives {wrong[0]:g} for a document, not 0 to 1" if wrong else None


def _item(task: str, row: dict[str, Any], metric: str, question: str, *, many: bool) -> Item:
    value = min(max(float(row[metric]), 0.0), 1.0)
    prompt = str(row["arguments"][0][0])
    answers = row["filtered_resps"]
    return Item(
        key=f"{task}:{row['doc_id']}" if many else str(row["doc_id"]),
        prompt=prompt if len(prompt) <= _KEPT else f"[{digest(prompt)}] …{prompt[-_KEPT:]}",
        response=_chosen(row, answers),
        passed=value > 0.5,
        detail={
            "value": value,
            "task": task,
            "target": str(row["target"])[:200],
            "judged_by": _judged_by(row),
            "cluster": question,  # rows that repeat a question count once
        },
    )


def _judged_by(row: dict[str, Any]) -> str:
    """Return a hash of what decides whether an answer is right: the whole target, and each text asked for."""
    texts = [part for request in row["arguments"] for part in request if isinstance(part, str)]
    return digest(repr((str(row["target"]), texts)))


def _question(task: Any, doc: Any) -> str:
    """Return a hash of a question with its choices and its right answer, without the examples before it.

    These are drawn anew for each row."""
    choices = task.doc_to_choice(doc) if task.OUTPUT_TYPE == "multiple_choice" else ""
    return digest(repr((str(task.doc_to_target(doc)), task.doc_to_text(doc), choices)))


def _chosen(row: dict[str, Any], answers: Sequence[Any]) -> str:
    """Return the generated text, or the most likely of several continuations.

    Where contexts with one continuation are the choice (winogrande), return the end of the likeliest."""
    if not (answers and isinstance(answers[0], tuple | list) and len(answers[0]) == 2):
        return str(answers[0]) if answers else ""
    asked = [(str(one[0]), str(one[1])) for one in row["arguments"][: len(answers)]]
    # Without a context acc_mutual_info asks each choice once more.
    places = [place for place, (context, _) in enumerate(asked) if context] or range(len(asked))
    contexts, continuations = zip(*(asked[place] for place in places), strict=True)
    context, continuation = asked[max(places, key=lambda place: answers[place][0])]
    if len(set(continuations)) > 1 or len(set(contexts)) == 1:
        return continuation
    return _ending(context, contexts)


def _ending(text: str, all_texts: Sequence[str]) -> str:
    """Return a text from the first word on by which one differs."""
    columns = zip(*(one.split(" ") for one in all_texts), strict=False)
    same = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    words = text.split(" ")
    return " ".join(words[min(same, len(words) - 1) :])[-_KEPT:]


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in row.items() if isinstance(value, int | float)}
