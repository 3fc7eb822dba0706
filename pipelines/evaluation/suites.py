"""The suites of an evaluation: what each one asks, and how it scores a model's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from evals import ifbench, ifeval, jsonl, knowledge, sentences, task_names, tasks
from evals.families import measures
from evals.families import suite as families
from evals.families.table import FAMILIES
from evals.probes import (
    APART,
    KNOWLEDGE,
    MULTIHOP,
    PROBE_SUITES,
    Probe,
    load_probes,
    suite_probes,
    without_superseded,
)
from evals.scores import chat
from pipelines.config.ifeval_file import MICROWORLD, ifeval_path
from pipelines.config.jobs import EvalJob
from pipelines.config.sections.eval import EvalConfig
from pipelines.evaluation.unaskable import first_refusal
from recovery.errors import InputError

if TYPE_CHECKING:
    from evals.scores import Asked, Score
    from pipelines.evaluation.model_answers import ModelAnswers

Scorer = Callable[["ModelAnswers"], "Iterator[Score | families.Unmeasured]"]


@dataclass(frozen=True)
class Suite:
    """A suite with its questions loaded.

    `questions` is all that decides, beside the job's settings, what is asked and how answers are judged; None
    if that is not known, as of lm-eval's tasks."""

    name: str
    questions: Any
    score: Scorer  # the first score is the headline
    prompts: Sequence[Asked] = ()  # all that may be asked, with a limit too; none if that is not known
    independent: int = 0  # questions whose answers do not depend on each other; 0 if that is not known
    answers: int = 0  # written at most; 0 if that is not known
    longest: int = 0  # tokens of one


def suites_of(job: EvalJob) -> list[Suite]:
    """Return the suites of a job: those that it names, and the probes of each earlier cycle.

    Of more earlier cycles than questions about them, the newest are asked about."""
    named = [_suite(job, name) for name in job.suites]
    bound = job.settings.earlier_questions
    earlier = dict(list(_earlier_probes(job).items())[-bound:])
    most = bound // max(1, len(earlier))
    return named + [
        _probes(job.settings, f"{KNOWLEDGE}:{cycle}", ProbeQuestions(probes, most=most))
        for cycle, probes in earlier.items()
    ]


def answerable_suites(settings: EvalConfig, model: str) -> tuple[str, ...]:
    """Return the suites that have questions; the shipped model's vocabulary lacks general ones."""
    found = ["ifeval"] if settings.ifeval else []
    for suite in PROBE_SUITES:
        probes = load_probes(settings.probes, suite) if settings.probes else ()
        own = any(probe.counts for probe in probes)
        if own or (suite == "retention" and model != MICROWORLD):
            found.append(suite)
    return (*found, *settings.behaviours)


def _earlier_probes(job: EvalJob) -> dict[int, list[Probe]]:
    """Return each earlier cycle's probes, without those that a later cycle's changed facts contradict.

    A cycle of which no question is left is left out."""
    files = {cycle: load_probes(path) for cycle, path in job.earlier.items()}
    later = list(load_probes(job.settings.probes)) if job.settings.probes else []
    found = {}
    for cycle in sorted(files, reverse=True):
        asked = [probe for probe in files[cycle] if probe.suite == KNOWLEDGE]
        found[cycle] = without_superseded(asked, later)
        later += files[cycle]
    return {cycle: probes for cycle, probes in sorted(found.items()) if any(one.counts for one in probes)}


def _suite(job: EvalJob, name: str) -> Suite:
    settings = job.settings
    if name == "ifeval":
        return _ifeval(settings)
    if name in FAMILIES:
        return _family(settings, name)
    if name == task_names.IFBENCH:
        return _ifbench(settings)
    if name not in task_names.OURS:
        return _task(settings, name)
    retrieved = _retrieved(job.passages) if job.passages else {}
    asked = ProbeQuestions(suite_probes(settings.probes, name), settings.open_book, retrieved)
    return _probes(settings, name, asked)


def _ifeval(settings: EvalConfig) -> Suite:
    path = ifeval_path(settings)
    rows = ifeval.rows(path)

    def score(answers: ModelAnswers) -> Iterator[Score]:
        found, raw = ifeval.evaluate_fully(answers.chats(settings.max_new_tokens), path, settings.limit)
        answers.keep(raw)
        yield found

    count = _answers(settings, len(rows))
    prompts = [row.get("messages") or chat(row["prompt"]) for row in rows]
    asked, most = _least(settings.limit, len(rows)) or 0, settings.max_new_tokens
    return Suite("ifeval", [rows, sentences.name()], score, prompts, asked, count, most)


def _family(settings: EvalConfig, name: str) -> Suite:
    family = FAMILIES[name]
    questions = families.suite(family, settings.behaviours_items, settings.probes, settings.limit)
    if not questions:
        raise InputError(
            f"suite {name}: the probes have too few questions of one kind to choose answers from"
        )

    def score(answers: ModelAnswers) -> Iterator[Score | families.Unmeasured]:
        if why := first_refusal(answers.chat_model.encoder, [one.messages for one in questions]):
            yield families.Unmeasured(name, why)
        else:
            yield measures.evaluate(family, answers.calls(), questions, settings.max_new_tokens)

    prompts = [question.messages for question in questions]
    independent = len({question.cluster or question.key for question in questions})
    return Suite(name, questions, score, prompts, independent, len(questions), settings.max_new_tokens)


def _ifbench(settings: EvalConfig) -> Suite:
    usable, _ = ifbench.checkable(ifbench.prompts())

    def score(answers: ModelAnswers) -> Iterator[Score]:
        yield ifbench.evaluate(answers.chats(settings.max_new_tokens), settings.limit)

    count = _answers(settings, len(usable))
    prompts = [chat(row["prompt"]) for row in usable]
    questions = [usable, sentences.settle()]
    asked, most = _least(settings.limit, len(usable)) or 0, settings.max_new_tokens
    return Suite(task_names.IFBENCH, questions, score, prompts, asked, count, most)


def _task(settings: EvalConfig, name: str) -> Suite:
    """Return the suite of an lm-eval task, with its data loaded."""
    prepared = tasks.prepare(name, settings.tasks)

    def score(answers: ModelAnswers) -> Iterator[Score]:
        found, raw = tasks.evaluate(
            prepared, answers.calls(), in_chat=settings.tasks_in_chat, limit=settings.limit
        )
        answers.keep(raw)
        yield found

    return Suite(name, None, score)


@dataclass(frozen=True)
class ProbeQuestions:
    """The probes of a suite, and the ways in which they are asked."""

    probes: Sequence[Probe]
    open_book: bool = False
    retrieved: Mapping[str, Sequence[str]] | None = None  # passages by the probe's id
    most: int | None = None  # bounds the questions in chat and the texts to go on with together

    def limits(self, limit: int | None) -> tuple[int | None, int | None]:
        """Return how many are asked in chat, and how many as texts to go on with.

        Of `most`, each way gets half, or what the other leaves; `limit` bounds each by itself."""
        if self.most is None:
            return limit, limit
        counted = sum(probe.counts for probe in self.probes)
        cloze = sum(not probe.in_chat for probe in self.probes)
        in_chat = max(self.most - cloze, ceil(self.most / 2))
        return _least(limit, in_chat), _least(limit, self.most - min(in_chat, counted))

    @property
    def prompts(self) -> Iterator[Asked]:
        """Yield each probe in every way in which it may be asked; of an earlier cycle's what counts alone."""
        retrieved = self.retrieved or {}
        for probe in self.probes:
            if self.most is not None and probe.in_chat and not probe.counts:
                continue
            yield probe.chat if probe.in_chat else probe.prompt
            if self.open_book and probe.in_chat and probe.passages:
                yield knowledge.after_passages(probe.passages, probe)
            if probe.id in retrieved:
                yield knowledge.after_passages(retrieved[probe.id], probe)


def _probes(settings: EvalConfig, name: str, asked: ProbeQuestions) -> Suite:
    probes, suite = asked.probes, name.partition(":")[0]
    if not any(probe.counts for probe in probes):
        fields = "id, suite, kind, prompt, answer"
        raise InputError(f"suite {suite} needs probes: give --probes FILE (lines of {fields})")
    longest = settings.probe_max_new_tokens
    limit, (in_chat, cloze) = settings.limit, asked.limits(settings.limit)
    own = name == suite  # not the probes of an earlier cycle

    def score(answers: ModelAnswers) -> Iterator[Score]:
        yield knowledge.evaluate(answers.chats(longest), probes, suite, in_chat)
        continued = knowledge.evaluate_cloze(answers.continuation(longest), probes, suite, cloze)
        if continued is not None:
            yield continued
        if own:
            yield from knowledge.evaluate_apart(answers.greedy(longest), probes, suite, limit)
        if asked.open_book:
            yield from knowledge.evaluate_open_book(answers.greedy(longest), probes, suite, limit)
        if asked.retrieved:
            yield from knowledge.evaluate_retrieval(answers.greedy(longest), probes, asked.retrieved, suite)

    facts = {(probe.fact, probe.answers) for probe in probes if probe.counts}
    independent = _least(len(facts), in_chat) or 0
    count = _answers_to_probes(settings, asked, apart=own)
    return Suite(name, asked, score, list(asked.prompts), independent, count, longest)


def _answers_to_probes(settings: EvalConfig, asked: ProbeQuestions, *, apart: bool) -> int:
    """Return how many answers are written at most: to each question in chat several, to any other one."""
    probes, retrieved = asked.probes, asked.retrieved or {}
    in_chat, cloze = asked.limits(settings.limit)
    once = [(cloze, [not one.in_chat for one in probes])]
    if apart:
        once += [(settings.limit, [one.kind == kind for one in probes]) for kind in APART]
    if asked.open_book:
        with_passages = [one for one in probes if one.passages]
        once.append((settings.limit, [one.counts for one in with_passages]))
        once.append((settings.limit, [one.kind == MULTIHOP for one in with_passages]))
    once.append((None, [one.id in retrieved for one in probes]))
    sampled = settings.samples * (_least(in_chat, sum(one.counts for one in probes)) or 0)
    return sampled + sum(_least(most, sum(chosen)) or 0 for most, chosen in once)


def _answers(settings: EvalConfig, questions: int) -> int:
    return settings.samples * (_least(settings.limit, questions) or 0)


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _retrieved(path: str) -> dict[str, list[str]]:
    """Return the retrieved passages of each probe, by its id."""
    return {row["id"]: row["passages"] for row in jsonl.read(path, {"id": str, "passages": list})}
