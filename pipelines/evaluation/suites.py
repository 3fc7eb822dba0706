"""The suites of an evaluation: what each one asks, and how it scores a model's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals import ifbench, ifeval, jsonl, knowledge, nltk_sentences
from evals.families import measures
from evals.families import suite as families
from evals.families.table import FAMILIES
from evals.knowledge import Answer, ProbeQuestions
from evals.probes import (
    CLOZE,
    EARLIER,
    KNOWLEDGE,
    PROBE_SUITES,
    RETENTION,
    Probe,
    load_probes,
    suite_probes,
    without_superseded,
)
from evals.scores import chat
from evals.tasks import names as task_names
from evals.tasks import suite as tasks
from evals.verdict import axes_for
from pipelines.config.ifeval_file import MICROWORLD, further_path, ifeval_path
from pipelines.config.jobs import EvalJob
from pipelines.config.sections.eval import EvalConfig
from pipelines.prompts.unaskable import first_refusal
from recovery.errors import InputError

if TYPE_CHECKING:
    from evals.scores import Asked, Score
    from pipelines.evaluation.model_answers import ModelAnswers

Margins = Mapping[str, float]  # by axis
Scorer = Callable[["ModelAnswers"], "Iterator[Score | families.Unmeasured]"]


@dataclass(frozen=True)
class Suite:
    """A suite with its questions loaded.

    `questions` is all that decides, beside the job's settings, what is asked and how answers are judged; None
    if that is not known, as of lm-eval's tasks."""

    name: str
    questions: Any
    score: Scorer  # the first score is the headline
    prompts: Sequence[Asked] = ()  # all that are asked, or more; none if that is not known
    independent: int = 0  # questions whose answers do not depend on each other; 0 if that is not known
    answers: int = 0  # written at most; 0 if that is not known
    longest: int = 0  # tokens of one
    facts: int = 0  # that the questions are about; 0 if that is not known


def suites_of(job: EvalJob) -> list[Suite]:
    """Return the suites of a job: those that it names, and the probes of each earlier cycle.

    Of more earlier cycles than questions about them, the newest are asked about."""
    named = [_suite(job, name) for name in job.suites]
    bound = job.settings.earlier_questions
    earlier = dict(list(_earlier_probes(job).items())[-bound:])
    most = bound // max(1, len(earlier))
    return named + [
        _probes(job.settings, f"{EARLIER}{cycle}", ProbeQuestions(probes, most=most))
        for cycle, probes in earlier.items()
    ]


def answerable_suites(settings: EvalConfig, model: str) -> tuple[str, ...]:
    """Return the suites that have questions; the shipped model's vocabulary lacks general ones."""
    found = [ifeval.IFEVAL] if settings.ifeval else []
    for suite in PROBE_SUITES:
        probes = load_probes(settings.probes, suite) if settings.probes else ()
        own = any(probe.counts for probe in probes)
        if own or (suite == RETENTION and model != MICROWORLD):
            found.append(suite)
    return (*found, *settings.behaviours, *settings.task_points)


def _earlier_probes(job: EvalJob) -> dict[int, list[Probe]]:
    """Return each earlier cycle's probes, without those that a later cycle's changed facts contradict or that
    only superseded documents answer.

    A cycle of which no question is left is left out."""
    files = {cycle: load_probes(path) for cycle, path in job.earlier.items()}
    later = list(load_probes(job.settings.probes)) if job.settings.probes else []
    found = {}
    for cycle in sorted(files, reverse=True):
        outdated = set(job.outdated.get(cycle, ()))
        asked = [probe for probe in files[cycle] if probe.suite == KNOWLEDGE and probe.id not in outdated]
        found[cycle] = without_superseded(asked, later)
        later += files[cycle]
    return {cycle: probes for cycle, probes in sorted(found.items()) if any(one.counts for one in probes)}


def _suite(job: EvalJob, name: str) -> Suite:
    settings = job.settings
    if name == ifeval.IFEVAL:
        return _ifeval(settings, name, ifeval_path(settings))
    if name == ifeval.FURTHER:
        return _ifeval(settings, name, further_path(settings))
    if name in FAMILIES:
        return _family(settings, name)
    if name == task_names.IFBENCH:
        return _ifbench(settings)
    if name not in task_names.OURS:
        return _task(settings, name)
    retrieved = _retrieved(job.passages) if job.passages else {}
    asked = ProbeQuestions(suite_probes(settings.probes, name), settings.open_book, retrieved)
    return _probes(settings, name, asked)


def _ifeval(settings: EvalConfig, name: str, path: Path | None) -> Suite:
    rows = ifeval.rows(path)

    def score(answers: ModelAnswers) -> Iterator[Score]:
        found, raw = ifeval.evaluate(answers.chats(settings.max_new_tokens), path, settings.limit)
        answers.keep(raw)
        yield found

    prompts = [row.get("messages") or chat(row["prompt"]) for row in rows]
    asked, most = _asked(settings, len(rows)), settings.max_new_tokens
    different = min(asked, len({repr(prompt) for prompt in prompts}))
    questions = [rows, nltk_sentences.name()]
    return Suite(name, questions, score, prompts, different, settings.samples * asked, most)


def _family(settings: EvalConfig, name: str) -> Suite:
    family = FAMILIES[name]
    questions = families.suite(family, settings.behaviours_items, settings.probes, settings.limit)
    if not questions:
        raise InputError(
            f"suite {name}: the probes have too few questions of one kind to choose answers from"
        )

    prompts = [question.messages for question in questions]

    def score(answers: ModelAnswers) -> Iterator[Score | families.Unmeasured]:
        if refusal := first_refusal(answers.chat_model.encoder, prompts):
            yield families.Unmeasured(name, refusal.why)
        else:
            yield measures.evaluate(family, answers.whole_calls(), questions, settings.max_new_tokens)

    independent = len({question.cluster or question.key for question in questions})
    return Suite(name, questions, score, prompts, independent, len(questions), settings.max_new_tokens)


def _ifbench(settings: EvalConfig) -> Suite:
    usable, _ = ifbench.checkable(ifbench.prompts())

    def score(answers: ModelAnswers) -> Iterator[Score]:
        yield ifbench.evaluate(answers.chats(settings.max_new_tokens), settings.limit)

    prompts = [chat(row["prompt"]) for row in usable]
    questions = [usable, nltk_sentences.settle()]
    asked, most = _asked(settings, len(usable)), settings.max_new_tokens
    return Suite(task_names.IFBENCH, questions, score, prompts, asked, settings.samples * asked, most)


def _task(settings: EvalConfig, name: str) -> Suite:
    """Return the suite of an lm-eval task, with its data loaded."""
    prepared = tasks.prepare(name, settings.tasks, in_chat=settings.tasks_in_chat)
    if name in settings.task_points:
        tasks.settle_metric(prepared)

    def score(answers: ModelAnswers) -> Iterator[Score]:
        in_chat, limit = settings.tasks_in_chat, settings.limit
        found, _ = tasks.evaluate(prepared, answers.calls(), in_chat=in_chat, limit=limit, keep=answers.keep)
        yield found

    return Suite(name, None, score, independent=tasks.different(prepared, settings.limit))


def _probes(settings: EvalConfig, name: str, asked: ProbeQuestions) -> Suite:
    suite = name.partition(":")[0]
    if not any(probe.counts for probe in asked.probes):
        fields = "id, suite, kind, prompt, answer"
        raise InputError(f"suite {suite} needs probes: give --probes FILE (lines of {fields})")
    longest, ways = settings.probe_max_new_tokens, asked.ways(settings.limit)

    def score(answers: ModelAnswers) -> Iterator[Score]:
        for way in ways:
            yield knowledge.evaluate(way, suite, _writer(answers, way.metric, longest))

    prompts = [prompt for way in ways for prompt in way.prompts]
    independent = {(probe.fact, probe.answers) for probe in ways[0].probes}
    facts = len({fact for fact, _ in independent})
    count = sum(len(way.probes) * _samples(settings, way.metric) for way in ways)
    return Suite(name, asked, score, prompts, len(independent), count, longest, facts)


def _writer(answers: ModelAnswers, metric: str, longest: int) -> Answer | Sequence[Answer]:
    """Return what answers: the headline's questions as often as is set, all others once and greedily."""
    if metric == knowledge.LENIENT:
        return answers.chats(longest)
    return answers.continuation(longest) if metric == CLOZE else answers.greedy(longest)


def _samples(settings: EvalConfig, metric: str) -> int:
    return settings.samples if metric == knowledge.LENIENT else 1


def _asked(settings: EvalConfig, questions: int) -> int:
    return questions if settings.limit is None else min(settings.limit, questions)


def _retrieved(path: str) -> dict[str, list[str]]:
    """Return the retrieved passages of each probe, by its id."""
    return {row["id"]: row["passages"] for row in jsonl.read(path, {"id": str, "passages": list})}


def independent_by_axis(suites: Iterable[Suite], margins: Margins | None = None) -> dict[str, float]:
    """Return how many independent questions each axis of a verdict with these margins has."""
    return {axis: float(suite.independent) for axis, suite in _by_axis(suites, margins)}


def facts_by_axis(suites: Iterable[Suite], margins: Margins | None = None) -> dict[str, float]:
    """Return how many facts the questions of each axis are about; 0 where that is not known."""
    return {axis: float(suite.facts) for axis, suite in _by_axis(suites, margins)}


def _by_axis(suites: Iterable[Suite], margins: Margins | None) -> Iterator[tuple[str, Suite]]:
    axes = {axis.suite: axis.name for axis in axes_for(margins)}
    return ((axes[suite.name], suite) for suite in suites if suite.name in axes)
