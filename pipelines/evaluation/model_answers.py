"""Ask a checkpoint: the functions that suites call, over a loaded model and its sampler."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evals.scores import Item, ModelCalls
from pipelines.config.jobs import EvalJob
from pipelines.engines.engine_places import length_of
from pipelines.prompts.lengths import model_limit
from pipelines.runs.cost import Flops
from pipelines.runs.progress import Pace
from pipelines.runs.stage_runner import Stage
from recovery.counted import counted
from recovery.models.thinking import closes_thinking

if TYPE_CHECKING:
    from evals.scores import Asked, Generate, Message, Score
    from recovery.models.chat_model import ChatModel
    from recovery.sampling.protocol import AnsweringSampler


@dataclass
class _Made:
    """How the answers of one score were made; without limit and temperature where nothing was written."""

    thinking: dict[str, deque[str]] = field(default_factory=lambda: defaultdict(deque))  # by answer, in order
    thought: bool = False  # whether any answer has thinking
    unfinished: int = 0  # answers that ended inside their thinking
    shortened: int = 0  # prompts that lost their beginning
    tokens_read: int = 0
    tokens_written: int = 0
    limit: int | None = None  # of new tokens
    temperature: float | None = None


class ModelAnswers:
    """A model behind the functions that suites call: chats or texts in, answers out."""

    def __init__(
        self, chat_model: ChatModel, sampler: AnsweringSampler, job: EvalJob, stage: Stage, suite: str
    ) -> None:
        self.chat_model = chat_model
        self.settings = job.settings
        self.stage = stage
        self.suite = suite
        self.job, self.sampler = job, sampler
        self.flops = Flops.of(chat_model.model)
        self.made = _Made()  # for the score that is being measured

    def chats(self, max_new_tokens: int) -> Generate | list[Generate]:
        """Return the function that answers greedily; or several that sample, one an answer."""
        if self.settings.samples == 1:
            return self.greedy(max_new_tokens)
        seeds = range(self.job.seed, self.job.seed + self.settings.samples)
        return [self._chat(max_new_tokens, self.settings.temperature, seed) for seed in seeds]

    def greedy(self, max_new_tokens: int) -> Generate:
        return self._chat(max_new_tokens, 0.0, 0)

    def _chat(self, max_new_tokens: int, temperature: float, seed: int) -> Generate:
        def generate(chats: list[list[Message]]) -> list[str]:
            prompts = [self._prompt(chat) for chat in chats]
            written = self._write(prompts, max_new_tokens, temperature, seed)
            return [self._without_thinking(*both) for both in zip(written, prompts, strict=True)]

        return generate

    def _without_thinking(self, ids: list[int], prompt: list[int]) -> str:
        thinking, answer = self.chat_model.encoder.answer(ids, prompt)
        self.made.thinking[answer].append(thinking)
        self.made.thought |= bool(thinking)
        self.made.unfinished += (
            bool(thinking) and not answer and not closes_thinking(self.chat_model.encoder.text(ids))
        )
        return answer

    def complete(self, score: Score) -> Score:
        """Add to each item the thinking before its answer, and to the score how its answers were made."""
        made, self.made = self.made, _Made()
        if made.unfinished:
            self.stage.say(
                f"  {self.suite:<12} {made.unfinished} of {counted(score.n, 'answer')} ended inside "
                "their thinking and count as empty: raise the limit of new tokens"
            )
        details = {
            **score.details,
            "mode": self._mode(made),
            "tokens_read": made.tokens_read,
            "tokens_written": made.tokens_written,
            **self._cuts(),
            **_notes(score, made.shortened),
        }
        items = tuple(_with_thinking(item, made.thinking) for item in score.items)
        return replace(score, items=items, details=details)

    def _mode(self, made: _Made) -> dict[str, Any]:
        """Return how the answers were asked for and written."""
        encoder = self.chat_model.encoder
        return {
            "thinking": encoder.opens_thinking or made.thought,
            "unfinished_thinking": made.unfinished,
            "date": encoder.date,
            "max_new_tokens": made.limit,
            "template_args": self.chat_model.template_args,
            "temperature": made.temperature,
            "stop_loops": None if made.limit is None else self.settings.stop_loops,
        }

    def _cuts(self) -> dict[str, Any]:
        """Return the settings that ask or write less than a whole suite."""
        cuts = {"limit": self.settings.limit, "stop_loops": self.settings.stop_loops}
        return {name: value for name, value in cuts.items() if value}

    def continuation(self, max_new_tokens: int) -> Callable[[list[str]], list[str]]:
        def generate(texts: list[str]) -> list[str]:
            written = self._write([self.chat_model.document_start(text) for text in texts], max_new_tokens)
            return [self.chat_model.text(ids) for ids in written]

        return generate

    def calls(self) -> ModelCalls:
        """Return the two calls that lm-eval's tasks make: generate, and log-likelihood of a continuation.

        As in lm-eval both cut what is too long for the model on the left."""
        return ModelCalls(partial(self._go_on, shorten=True), self._likelihoods)

    def whole_calls(self) -> ModelCalls:
        """Return the same two calls for questions that make no sense without their beginning."""
        return ModelCalls(self._go_on, self._likelihoods)

    def keep(self, results: dict[str, Any]) -> None:
        """Write lm-eval's results in its own layout, if an output folder is set."""
        if self.job.output:
            from evals.tasks.runner import save

            save(self.job.output, self.job.checkpoint, results)

    def _go_on(
        self, asked: list[Asked], limit: int, temperature: float, *, shorten: bool = False
    ) -> list[str]:
        prompts = [self._prompt(one) for one in asked]
        if shorten:
            prompts = self._shortened(prompts, limit)
        written = self._write(prompts, self._room(prompts, limit), temperature, self.job.seed)
        return [
            self.chat_model.text(ids) if isinstance(one, str) else self._without_thinking(ids, prompt)
            for one, ids, prompt in zip(asked, written, prompts, strict=True)
        ]

    def _shortened(self, prompts: list[list[int]], limit: int) -> list[list[int]]:
        """Cut prompts on the left where they leave no room for the answer, or for one of half the context."""
        reads = model_limit(self.chat_model, length_of(self.sampler))
        most = reads - min(limit, reads / 2)
        self.made.shortened += sum(len(prompt) > most for prompt in prompts)
        return [prompt[-int(most) :] if len(prompt) > most else prompt for prompt in prompts]

    def _room(self, prompts: list[list[int]], limit: int) -> int:
        """Return the longest answer that the model has positions for: memory is set aside for all of it."""
        from recovery.sampling.budget import room_behind

        return max(1, *room_behind(prompts, self.chat_model.model, limit))

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
        stop_loops = self.settings.stop_loops
        params = SamplingParams(max_new_tokens, temperature, seed, stop_loops=stop_loops, on_tokens=pace.see)
        responses = self.sampler.generate(
            prompts,
            params,
            on_progress=lambda done, total: self.stage.step(
                done, total, eta_seconds=pace.eta_seconds(done), note=pace.note(self.suite)
            ),
        )
        read, written = sum(map(len, prompts)), sum(map(len, responses))
        made = self.made
        made.limit = max(max_new_tokens, made.limit or 0)
        made.temperature = max(temperature, made.temperature or 0.0)
        made.tokens_read += read
        made.tokens_written += written
        self.stage.spend(tokens_sampled=written, flops=self.flops.answered(read, written, len(prompts)))
        return responses


def _notes(score: Score, shortened: int) -> dict[str, Any]:
    """Return the score's notes with how many prompts were shortened, where any was."""
    if not shortened:
        return {}
    said = f"{counted(shortened, 'prompt')} cut at the beginning to leave room for the answer, as in lm-eval"
    return {"notes": [*score.details.get("notes", ()), said]}


def _with_thinking(item: Item, thinking: dict[str, deque[str]]) -> Item:
    """Return an item with the thinking before its answer; equal answers have theirs in order."""
    waiting = thinking.get(item.response)
    before = waiting.popleft() if waiting else ""
    return replace(item, detail={**item.detail, "thinking": before}) if before else item
