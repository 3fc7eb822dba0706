"""Evaluation: a checkpoint's answers to the suites, scored and recorded item by item."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from db.reads import queries
from evals import ifbench, ifeval, jsonl, knowledge, task_names, tasks
from evals.families import measures
from evals.families import suite as families
from evals.families.table import FAMILIES
from evals.scores import Item, ModelCalls
from pipelines.config import fitted
from pipelines.config.jobs import EvalJob
from pipelines.config.sections.eval import EvalConfig
from pipelines.distillation.engine_places import Engines, check_place
from pipelines.distillation.leaks import HUB_IFEVAL, MICROWORLD, ifeval_path
from pipelines.machine.fitting import fitted_once
from pipelines.runs.cost import Flops
from pipelines.runs.pinned_inputs import pinned
from pipelines.runs.progress import Pace
from pipelines.runs.stage_runner import Result, Stage, run_stage
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError

if TYPE_CHECKING:
    from evals.scores import Asked, Generate, Message, Score
    from recovery.models.chat_model import ChatModel
    from recovery.sampling.protocol import Sampler

SUITES = task_names.OURS


def evaluate(ws: Workspace, job: EvalJob, *, parent: str | None = None, key: str | None = None) -> Result:
    """Score a checkpoint on every suite of the job; return {"checkpoint", "scores": {suite: ...}}."""
    check_place("sampler", job.settings.sampler)
    job = pinned(ws, job)
    return run_stage(
        ws,
        "eval",
        lambda stage: _work(ws, job, stage),
        config=job.model_dump(),
        parent=parent,
        key=key,
    )


def _work(ws: Workspace, job: EvalJob, stage: Stage) -> Result:
    scorers = _scorers(job)  # a missing input ends the stage before a model is loaded
    settings = fitted_once(stage, job.checkpoint, job.settings, fitted.fit_evaluation)
    job = job.model_copy(update={"settings": settings})
    with Engines(ws, stage.directory) as engines:
        return _measure(ws, job, stage, scorers, engines)


def _measure(
    ws: Workspace, job: EvalJob, stage: Stage, scorers: dict[str, Scorer], engines: Engines
) -> Result:
    settings = job.settings
    checkpoint = ws.checkpoint(job.checkpoint)
    chat_model = ws.load(checkpoint)
    sampler = engines.sampler(
        settings.sampler, chat_model, checkpoint, follow=False, batch_size=settings.batch_size
    )
    results: dict[str, Any] = {}
    ids: dict[str, int] = {}
    for suite, scorer in scorers.items():
        answers = ModelAnswers(chat_model, sampler, job, stage, suite)
        for scored in scorer(answers):
            if isinstance(scored, families.Unmeasured):
                stage.say(f"  {job.label:<12} {suite:<12} not measured: {scored.reason}")
                results[suite] = scored.row()
                continue
            score = answers.with_thinking(scored)
            if settings.limit is not None:
                score = replace(score, details={**score.details, "limit": settings.limit})
            if settings.stop_loops:
                score = replace(score, details={**score.details, "stop_loops": True})
            recorded = ws.tracker.record_score(stage.id, job.checkpoint, score.as_dict() | {"suite": suite})
            stage.say(
                f"  {job.label:<12} {suite + _kind(score):<12} {score.value:.3f}  "
                f"[{score.interval[0]:.3f}, {score.interval[1]:.3f}]  n={score.n}{_stale(score)}"
            )
            _collect(results, suite, summary(score))
            ids.setdefault(suite, recorded)
    return {"checkpoint": job.checkpoint, "scores": results, "score_ids": ids}


def _collect(results: dict[str, Any], suite: str, found: dict[str, Any]) -> None:
    """Add a score: a suite's first is its headline, later ones go under `apart`."""
    if suite not in results:
        results[suite] = found
    else:
        results[suite].setdefault("apart", {})[found["metric"]] = found


def _kind(score: Score) -> str:
    return f" {score.metric}" if score.metric in knowledge.BESIDE else ""


def _stale(score: Score) -> str:
    """Return the stale rate of a score on changed facts."""
    rate = score.details.get("stale_rate")
    return "" if rate is None else f"  stale {rate:.3f}"


def summary(score: Score) -> dict[str, Any]:
    """Return a score without its items."""
    headline = {"score": score.value, "n": score.n, "interval": list(score.interval), "metric": score.metric}
    return headline | dict(score.details)


Scorer = Callable[["ModelAnswers"], "Iterator[Score | families.Unmeasured]"]


def _scorers(job: EvalJob) -> dict[str, Scorer]:
    """Return one scorer for each suite, its questions loaded; its first score is the headline."""
    scorers = {name: _scorer(job, name) for name in job.suites}
    earlier = _earlier_probes(job)
    most = max(1, job.settings.earlier_questions // max(1, len(earlier)))
    return scorers | {
        f"knowledge:{cycle}": _probes(probes, "knowledge", most=most) for cycle, probes in earlier.items()
    }


def _earlier_probes(job: EvalJob) -> dict[int, list[knowledge.Probe]]:
    """Return each earlier cycle's probes, without those that a later cycle's changed facts contradict."""
    files = {cycle: knowledge.load_probes(path) for cycle, path in job.earlier.items()}
    later = list(knowledge.load_probes(job.settings.probes)) if job.settings.probes else []
    found = {}
    for cycle in sorted(files, reverse=True):
        asked = [probe for probe in files[cycle] if probe.suite == knowledge.SUITE]
        found[cycle] = knowledge.without_superseded(asked, later)
        later += files[cycle]
    return dict(sorted(found.items()))


def _scorer(job: EvalJob, suite: str) -> Scorer:
    if suite == "ifeval":
        return _ifeval(job.settings)
    settings = job.settings
    if suite in FAMILIES:
        return _family(settings, suite)
    if suite == task_names.IFBENCH:
        return _ifbench(settings)
    if suite not in SUITES:
        return _task(settings, suite)
    return _probes(knowledge.questions(settings.probes, suite), suite, settings.open_book, job.passages)


def _ifeval(settings: EvalConfig) -> Scorer:
    path = ifeval_path(settings)

    def score(answers: ModelAnswers) -> Iterator[Score]:
        found, raw = ifeval.evaluate_fully(answers.chats(settings.max_new_tokens), path, settings.limit)
        answers.keep(raw)
        yield found

    return score


def _family(settings: EvalConfig, name: str) -> Scorer:
    family = FAMILIES[name]
    questions = families.suite(family, settings.behaviours_items, settings.probes, settings.limit)
    if not questions:
        raise InputError(
            f"suite {name}: the probes have too few questions of one kind to choose answers from"
        )

    def score(answers: ModelAnswers) -> Iterator[Score | families.Unmeasured]:
        why = next(filter(None, (answers.unaskable(question.messages) for question in questions)), "")
        if why:
            yield families.Unmeasured(name, why)
        else:
            yield measures.evaluate(family, answers.calls(), questions, settings.max_new_tokens)

    return score


def _ifbench(settings: EvalConfig) -> Scorer:
    ifbench.require()

    def score(answers: ModelAnswers) -> Iterator[Score]:
        yield ifbench.evaluate(answers.chats(settings.max_new_tokens), settings.limit)

    return score


def _task(settings: EvalConfig, name: str) -> Scorer:
    """Return the scorer of an lm-eval task, with its data loaded."""
    prepared = tasks.prepare(name, settings.tasks)

    def score(answers: ModelAnswers) -> Iterator[Score]:
        found, raw = tasks.evaluate(
            prepared, answers.calls(), in_chat=settings.tasks_in_chat, limit=settings.limit
        )
        answers.keep(raw)
        yield found

    return score


def _probes(
    probes: Sequence[knowledge.Probe],
    suite: str,
    open_book: bool = False,
    passages: str | None = None,
    most: int | None = None,
) -> Scorer:
    """Return the scorer of a suite of probes; `most` bounds its questions, as `eval.limit` does."""
    if not any(probe.counts for probe in probes):
        fields = "id, suite, kind, prompt, answer"
        raise InputError(f"suite {suite} needs probes: give --probes FILE (lines of {fields})")

    def score(answers: ModelAnswers) -> Iterator[Score]:
        limit = answers.settings.probe_max_new_tokens
        asked = _least(answers.settings.limit, most)
        yield knowledge.evaluate(answers.chats(limit), probes, suite, asked)
        cloze = knowledge.evaluate_cloze(answers.continuation(limit), probes, suite, asked)
        if cloze is not None:
            yield cloze
        if answers.suite == suite:  # once: not for the probes of earlier cycles
            yield from knowledge.evaluate_apart(answers.greedy(limit), probes, suite, asked)
        if open_book:
            yield from knowledge.evaluate_open_book(answers.greedy(limit), probes, suite, asked)
        if passages:
            found = _retrieved(passages)
            yield from knowledge.evaluate_retrieval(answers.greedy(limit), probes, found, suite)

    return score


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _retrieved(path: str) -> dict[str, list[str]]:
    """Return the retrieved passages of each probe, by its id."""
    return {row["id"]: row["passages"] for row in jsonl.read(path, {"id": str, "passages": list})}


def answerable_suites(settings: EvalConfig, model: str) -> tuple[str, ...]:
    """Return the suites that have questions; the shipped model's vocabulary lacks general ones."""
    found = ["ifeval"] if settings.ifeval else []
    for suite in knowledge.SUITES:
        probes = knowledge.load_probes(settings.probes, suite) if settings.probes else ()
        own = any(probe.counts for probe in probes)
        if own or (suite == "retention" and model != MICROWORLD):
            found.append(suite)
    return (*found, *settings.behaviours)


def recorded_items(ws: Workspace, score_id: int) -> list[Item]:
    """Return the items of a recorded score."""
    found = queries.items(ws.tracker.db, score_id, limit=2**31)
    return [
        Item(row["key"], row["prompt"], row["response"], bool(row["passed"]), row["detail"]) for row in found
    ]


def require_same_questions(suite: str, stages: Mapping[str, Sequence[Item]]) -> None:
    """Refuse to compare answers to different questions, even under the same keys."""
    if not stages:
        return
    first, *others = stages
    asked = {(item.key, item.prompt) for item in stages[first]}
    for other in others:
        if {(item.key, item.prompt) for item in stages[other]} != asked:
            raise InputError(
                f"{suite}: {first} and {other} answered different questions: begin a new run to evaluate both"
            )


def score_responses(responses: str, ifeval_file: str | None) -> dict[str, Any]:
    """Score recorded answers to IFEval's prompts; no model is loaded."""
    path = Path(ifeval_file) if ifeval_file and ifeval_file != HUB_IFEVAL else None
    return {"ifeval": summary(ifeval.score_responses(responses, path))}


class ModelAnswers:
    """A model behind the functions that suites call: chats or texts in, answers out."""

    def __init__(
        self, chat_model: ChatModel, sampler: Sampler, job: EvalJob, stage: Stage, suite: str
    ) -> None:
        self.chat_model = chat_model
        self.settings = job.settings
        self.stage = stage
        self.suite = suite
        self.job, self.sampler = job, sampler
        self.flops = Flops.of(chat_model.model)
        self.thinking: dict[str, deque[str]] = defaultdict(deque)  # by answer, in the order of the prompts
        self.unfinished = 0  # answers of the current score that ended inside their thinking
        self.tokens_read = self.tokens_written = 0  # of the current score

    def chats(self, max_new_tokens: int) -> Generate | list[Generate]:
        """Greedy answers; or several sampled ones, a function each."""
        if self.settings.samples == 1:
            return self._chat(max_new_tokens, 0.0, 0)
        seeds = range(self.job.seed, self.job.seed + self.settings.samples)
        return [self._chat(max_new_tokens, self.settings.temperature, seed) for seed in seeds]

    def greedy(self, max_new_tokens: int) -> Generate:
        return self._chat(max_new_tokens, 0.0, 0)

    def _chat(self, max_new_tokens: int, temperature: float, seed: int) -> Generate:
        def generate(chats: list[list[Message]]) -> list[str]:
            prompts = [self._prompt(chat) for chat in chats]
            written = self._write(prompts, max_new_tokens, temperature, seed)
            return [self._without_thinking(ids) for ids in written]

        return generate

    def _without_thinking(self, ids: list[int]) -> str:
        thinking, answer = self.chat_model.encoder.answer(ids)
        self.thinking[answer].append(thinking)
        self.unfinished += bool(thinking) and not answer
        return answer

    def with_thinking(self, score: Score) -> Score:
        """Add to each item the thinking before its answer, and to the score how its answers were made."""
        items = tuple(self._item_with_thinking(item) for item in score.items)
        encoder = self.chat_model.encoder
        mode = {
            "thinking": encoder.opens_thinking or any("thinking" in item.detail for item in items),
            "unfinished_thinking": self.unfinished,
            "date": encoder.date,
            "template_args": self.chat_model.template_args,
        }
        if self.unfinished:
            self.stage.say(
                f"  {self.suite:<12} {self.unfinished} of {score.n} answers ended inside their thinking and "
                "count as empty: raise the limit of new tokens"
            )
        cost = {"tokens_read": self.tokens_read, "tokens_written": self.tokens_written}
        self.thinking.clear()
        self.unfinished = self.tokens_read = self.tokens_written = 0
        return replace(score, items=items, details={**score.details, "mode": mode, **cost})

    def _item_with_thinking(self, item: Item) -> Item:
        waiting = self.thinking.get(item.response)
        thinking = waiting.popleft() if waiting else ""
        return replace(item, detail={**item.detail, "thinking": thinking}) if thinking else item

    def continuation(self, max_new_tokens: int) -> Callable[[list[str]], list[str]]:
        def generate(texts: list[str]) -> list[str]:
            written = self._write([self.chat_model.document_start(text) for text in texts], max_new_tokens)
            return [self.chat_model.text(ids) for ids in written]

        return generate

    def calls(self) -> ModelCalls:
        """Return the two calls that lm-eval's tasks make: generate, and log-likelihood of a continuation."""
        return ModelCalls(self._go_on, self._likelihoods)

    def unaskable(self, chat: list[dict[str, Any]]) -> str:
        """Return why the chat template cannot ask this; nothing if it can."""
        plain = [{key: value for key, value in turn.items() if key != "tools"} for turn in chat]
        try:
            asked, without_tools = self.chat_model.prompt_ids(chat), self.chat_model.prompt_ids(plain)
        except InputError as error:
            return str(error)
        return "the chat template takes no tool schemas" if asked == without_tools and chat != plain else ""

    def keep(self, results: dict[str, Any]) -> None:
        """Write lm-eval's results in its own layout, if an output folder is set."""
        if self.job.output:
            from evals.task_runner import save

            save(self.job.output, self.job.checkpoint, results)

    def _go_on(self, asked: list[Asked], limit: int, temperature: float) -> list[str]:
        limit = min(limit, self.settings.max_new_tokens)
        written = self._write([self._prompt(one) for one in asked], limit, temperature, self.job.seed)
        return [
            self.chat_model.text(ids) if isinstance(one, str) else self._without_thinking(ids)
            for one, ids in zip(asked, written, strict=True)
        ]

    def _likelihoods(self, asked: list[tuple[Asked, str]]) -> list[tuple[float, bool]]:
        from recovery.teachers.likelihood import loglikelihoods, split_ids

        pairs = [split_ids(self.chat_model, context, text) for context, text in asked]
        read = sum(len(one) + len(other) for one, other in pairs)
        flops = self.flops.forward(read, read / max(len(pairs), 1) / 2)
        self.stage.spend(tokens_scored=read, flops=flops)
        return loglikelihoods(
            self.chat_model, pairs, on_progress=lambda d, t: self.stage.step(d, t, note=self.suite)
        )

    def _prompt(self, asked: Asked) -> list[int]:
        if isinstance(asked, str):
            return self.chat_model.document_start(asked)
        return self.chat_model.prompt_ids(asked)

    def _write(
        self, prompts: list[list[int]], max_new_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> list[list[int]]:
        from recovery.sampling.protocol import SamplingParams

        pace = Pace(len(prompts), max_new_tokens)
        stop_loops = self.job.settings.stop_loops
        params = SamplingParams(max_new_tokens, temperature, seed, stop_loops=stop_loops, on_tokens=pace.see)
        responses = self.sampler.generate(
            prompts,
            params,
            on_progress=lambda done, total: self.stage.step(
                done, total, eta_seconds=pace.eta_seconds(done), note=pace.note(self.suite)
            ),
        )
        read, written = sum(map(len, prompts)), sum(map(len, responses))
        self.tokens_read += read
        self.tokens_written += written
        flops = self.flops.forward(read + written, (read + written / 2) / len(prompts))
        self.stage.spend(tokens_sampled=written, flops=flops)
        return responses
