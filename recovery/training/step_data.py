"""Produce a step's data for any method: draw prompts, sample, reward, and score with the teacher.

All data depends only on (seed, step, weights), so a resumed run has the same prompts and samples.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from recovery import distributed
from recovery.errors import InputError
from recovery.methods.choices import READ_STATES, STUDENT_STATES, TEACHER_STATES
from recovery.methods.method import Method
from recovery.objective.token_signals import NO_SIGNALS, TokenSignals
from recovery.sampling.prefix_writers import WRITERS, StepInputs
from recovery.sampling.protocol import SamplingParams
from recovery.sampling.split_sampler import SplitSampler
from recovery.seeds import step_seed
from recovery.teachers.contexts import Context, PromptRow, RowEncoder, prompt, response
from recovery.teachers.rewards import Reward, group_advantages, rewards_of
from recovery.teachers.teachers import SelfTeacher, gathered_teacher, scored
from recovery.training.alarms import response_metrics
from recovery.training.step_budget import within_budget
from recovery.training.trainer import ReportsMetrics
from recovery.training.updater import Microbatch

if TYPE_CHECKING:
    from recovery.batches.rollouts import Rollouts
    from recovery.batches.teacher_scores import TeacherScores
    from recovery.engines.lookahead import Lookahead
    from recovery.models.chat_model import ChatModel
    from recovery.sampling.protocol import Sampler
    from recovery.teachers.teachers import Teacher, Teaching


@dataclass(frozen=True)
class StepConfig:
    """The size of a step, and the seed of its prompts and samples."""

    prompts_per_step: int
    samples_per_prompt: int = 1  # at least the method's group_size; of pairs too, as many are read
    max_new_tokens: int = 256
    microbatch_tokens: int = 16384
    stop_loops: bool = False
    seed: int = 0
    steps: int = 0  # of the whole run, which a changing KL budget is spread over


@dataclass(frozen=True)
class Task:
    """A method with its data, teachers and reward. Rows are the prompts, followed by the pairs."""

    method: Method
    prompts: Sequence[PromptRow] = ()
    pairs: Sequence[PromptRow] = ()  # rows with a response, read by data states
    teacher: Teaching | None = None
    anchor: Teacher | None = None
    context: Context | None = None
    reward: Reward | None = None
    weights: Sequence[float] | None = None  # per row: weight of its tokens in the loss and the token count

    def __post_init__(self) -> None:
        """Raise InputError if an input that the method needs is missing."""
        method = self.method
        paired = bool(self.pairs) and all(map(response, self.pairs))
        shown = f"{method.context} to show: --context TEXT or FILE"
        for needed, there, what in (
            (method.teacher != "none", self.teacher, "a teacher: name a checkpoint (--teacher)"),
            (method.needs_rewards, self.reward, "a reward: --reward exact, ifeval or module:function"),
            (method.anchor_beta > 0, self.anchor, "an anchor, the clean model: name it (--teacher)"),
            (method.context != "none", self.context, shown),
            (
                method.state_kind in READ_STATES,
                paired,
                "pairs, rows with a prompt and a response: --pairs FILE",
            ),
            (method.state_kind != "data", self.prompts, "prompts: --prompts FILE"),
        ):
            if needed and not there:
                raise InputError(f"method {method.name!r} needs {what}")
        if self.context is not None:
            self.context.check(self.items)

    @property
    def items(self) -> list[PromptRow]:
        """Return all rows: prompts, then pairs."""
        return [*self.prompts, *self.pairs]


class Rehearsal(Protocol):
    """A source of additional microbatches that are trained on in the same updates as the answers."""

    def begin(self, step: int) -> None: ...
    def beside(self, answers: Sequence[Microbatch]) -> list[Microbatch]: ...


class Episodes:
    """The trainer's batches: sample or read sequences, reward them, score them, split into microbatches."""

    def __init__(
        self,
        student: ChatModel,
        sampler: Sampler,
        task: Task,
        config: StepConfig,
        *,
        rehearsal: Rehearsal | None = None,
        on_scored: Callable[[int, list[Microbatch]], None] | None = None,
        ahead: Lookahead | None = None,
    ) -> None:
        self.student = student
        self.task = task
        self.config = config
        self.sampler = SplitSampler.of(sampler, student.pad_id)
        self.method = task.method
        self.teacher = task.teacher
        self.items = task.items
        self.rehearsal = rehearsal
        self.on_scored = on_scored
        self.on_tokens: Callable[[int, int], None] | None = None  # (step, tokens sampled so far)
        self.ahead = ahead
        self.weights = _weights(task.weights, len(self.items))
        self.prompt_rows = range(len(task.prompts))
        self.pair_rows = range(len(task.prompts), len(self.items))
        self.views = RowEncoder(student, self.items, task.context)
        self.views.check()
        self.tokens_sampled = self.tokens_scored = 0
        self._started: dict[int, StepInputs] = {}  # steps whose sampling was started one step early
        self._metrics: dict[str, float] = {}  # of the last step
        teacher = task.teacher
        if isinstance(teacher, SelfTeacher) and teacher.decay is not None:  # only then these are `Stateful`
            self.state_tensors = teacher.state_tensors
            self.load_state_tensors = teacher.load_state_tensors

    def has_begun(self) -> bool:
        """Return whether a step that is not whole has answers which were sampled one step early."""
        return bool(self._started)

    def updates(self, step: int) -> Iterator[list[Microbatch]]:
        """Yield the microbatches of every optimizer update of a step."""
        inputs = self._started.get(step) or self.draw(step)
        rollouts = self.produce(inputs)
        if self.ahead and self.ahead.starts(step + 1):  # an engine samples while this step is trained on
            self._started[step + 1] = self.ahead.start(self.draw(step + 1))
        batches = self.score(self.with_advantages(rollouts))
        batches, metrics = within_budget(self.student, self.method, batches, step, self.config.steps)
        self._metrics |= metrics
        if self.on_scored is not None:
            own = distributed.mine(len(batches), self.method.minibatches)
            self.on_scored(step, [batches[i] for i in own])
        if self.rehearsal:
            self.rehearsal.begin(step)
        for _ in range(self.method.epochs):
            for answers in minibatches(batches, self.method.minibatches):
                yield answers + (self.rehearsal.beside(answers) if self.rehearsal else [])
        if isinstance(self.teacher, SelfTeacher):
            self.teacher.follow()
        self._started.pop(step, None)

    def draw(self, step: int) -> StepInputs:
        """Draw what a step reads: the prompt of each answer, and pairs."""
        prompts, pairs = self._rows(step)
        params = SamplingParams(
            self.config.max_new_tokens,
            self.method.temperature,
            step_seed(self.config.seed, step),
            stop_loops=self.config.stop_loops,
            on_tokens=self.on_tokens and partial(self.on_tokens, step),
        )
        return StepInputs(
            self.method,
            self.student,
            self.sampler,
            self.teacher,
            self.views,
            rows=prompts,
            data=pairs,
            params=params,
            rng=random.Random(params.seed),
            rewards=self.rewards,
        )

    def _rows(self, step: int) -> tuple[list[int], list[int]]:
        """Return a step's prompts, each repeated for its samples, and as many pairs; a mix divides these."""
        size, samples = self.config.prompts_per_step, self.method.samples(self.config.samples_per_prompt)
        asked, read = (f"{kind}:{self.config.seed}" for kind in ("prompts", "pairs"))
        if self.method.state_kind == "mix":
            answers = min(size, len(self.prompt_rows)) * samples
            written, taken = mix_places(self.method.share, answers, step)
            prompts = rows_at(self.prompt_rows, [place // samples for place in written], asked)
            return prompts, rows_at(self.pair_rows, taken, read)
        prompts = step_rows(self.prompt_rows, size, step, asked)
        pairs = step_rows(self.pair_rows, size * samples, step, read)
        return [row for row in prompts for _ in range(samples)], pairs

    def produce(self, inputs: StepInputs) -> Rollouts:
        """Produce the sequences that the method trains on; record metrics of the student's answers."""
        self._metrics = {}
        rollouts, by_student = WRITERS[self.method.state_kind](inputs)
        if isinstance(self.sampler, ReportsMetrics):
            self._metrics |= self.sampler.metrics()
        if by_student is not None:
            self._metrics |= self._behaviour(by_student)
            self.tokens_sampled += by_student.n_tokens
        if self.method.state_kind in TEACHER_STATES:
            self.tokens_sampled += rollouts.n_tokens
        if self.method.state_kind == "student-kept":
            self._metrics["kept_share"] = len(rollouts) / len(inputs.rows)
        return rollouts

    def rewards(self, rollouts: Rollouts) -> Tensor:
        """Return the reward of each sequence, the same in all processes: a judge may answer otherwise."""
        assert self.task.reward is not None
        items = [self.items[row] for row in rollouts.index_B.tolist()]
        texts = self.student.answers(rollouts)
        fields = [{**item.fields, "prompt": prompt(item)} for item in items]
        rewards_B = distributed.once(partial(rewards_of, self.task.reward, texts, fields))
        self._metrics["reward"] = float(rewards_B.mean())
        return rewards_B

    def with_advantages(self, rollouts: Rollouts) -> Rollouts:
        """Add each sequence's advantage over the others of its prompt, if the method uses rewards."""
        if self.method.reward_weight == 0:
            return rollouts
        gains_B = group_advantages(self.rewards(rollouts), rollouts.index_B, self.method.reward_baseline)
        return replace(rollouts, rewards_B=gains_B)

    def score(self, rollouts: Rollouts) -> list[Microbatch]:
        """Return all microbatches; only those that this process trains on have signals."""
        parts = self._scored(rollouts)
        own = set(distributed.mine(len(parts), self.method.minibatches))
        if self.task.anchor is not None:
            self.tokens_scored += rollouts.n_tokens  # by all processes, as the teacher's are counted
        with gathered_teacher(self.task.anchor):
            return [
                Microbatch(part, self._signals(part, scores) if i in own else NO_SIGNALS)
                for i, (part, scores) in enumerate(parts)
            ]

    def _scored(self, rollouts: Rollouts) -> list[tuple[Rollouts, TeacherScores | None]]:
        """Return microbatches, with the teacher's scores where the method reads them."""
        limit, boundary = self._limit(rollouts), distributed.boundary(self.student.model)
        if not len(rollouts) or self.teacher is None or self.method.scores == "none":
            return [(part, None) for part in rollouts.split(limit, boundary)]
        contexts = None
        if self.views.context is not None:
            contexts = [self.views.teacher(row) for row in rollouts.index_B.tolist()]
        parts = scored(
            self.teacher, rollouts, limit, contexts, updates=self.method.minibatches, boundary=boundary
        )
        self.tokens_scored += rollouts.n_tokens
        return parts

    def _limit(self, rollouts: Rollouts) -> int:
        """Return the tokens of a microbatch: less where some of several processes would have none.

        Of a step with several updates they stay as in one process: they decide which update an answer is in.
        """
        most = self.config.microbatch_tokens
        return most if self.method.minibatches > 1 else rollouts.limit_over(distributed.world(), most)

    def metrics(self) -> dict[str, float]:
        """Return metrics of the last step's answers and rewards; alarms read them."""
        return self._metrics

    def _signals(self, part: Rollouts, scores: TeacherScores | None) -> TokenSignals:
        """Return the signals that the method needs for the tokens of a microbatch."""
        signals: dict[str, Any] = {"scores": scores}
        if self.method.state_kind in STUDENT_STATES:
            signals["behaviour_N"] = part.logprobs_N
        if self.method.importance_clip is not None:
            signals["rows_N"] = part.rows_N
        if self.method.reward_weight > 0 and part.rewards_B is not None:
            signals["advantages_N"] = part.per_token(part.rewards_B)
        if self.weights is not None:
            signals["weights_N"] = part.per_token(self.weights[part.index_B.cpu()])
        if self.task.anchor is not None:
            signals["anchor"] = self.task.anchor.score(part)
        return TokenSignals(**signals)

    def _behaviour(self, rollouts: Rollouts) -> dict[str, float]:
        answers = rollouts.responses()
        texts = [self.student.text(answer) for answer in answers]
        return response_metrics(texts, [len(answer) for answer in answers], rollouts.finished_B.tolist())


def _weights(weights: Sequence[float] | None, rows: int) -> Tensor | None:
    """Return the rows' weights, or None if all are 1."""
    if weights is None:
        return None
    if len(weights) != rows or not all(0 <= weight < math.inf for weight in weights):
        raise InputError(f"episodes: {rows} rows need as many weights of 0 or more")
    return None if all(weight == 1.0 for weight in weights) else torch.tensor(weights)


def step_rows(pool: Sequence[int], count: int, step: int, seed: str) -> list[int]:
    """Return a step's rows, as many as there are at most; each epoch visits a new permutation of the pool."""
    count = min(count, len(pool))
    return rows_at(pool, range((step - 1) * count, step * count), seed)


def rows_at(pool: Sequence[int], places: Iterable[int], seed: str) -> list[int]:
    """Return the rows at these places of all that a run draws, one permutation of the pool behind another."""
    orders: dict[int, list[int]] = {}
    rows = []
    for position in places:
        epoch, place = divmod(position, len(pool))
        if epoch not in orders:
            orders[epoch] = random.Random(f"{seed}:{epoch}").sample(range(len(pool)), len(pool))
        rows.append(pool[orders[epoch][place]])
    return rows


def mix_places(share: float, answers: int, step: int) -> tuple[range, range]:
    """Divide the answers of a step of a mix: return the places of what the student writes, and of the pairs.

    Places count from the run's first step, so that each row is used once before any again. The share holds
    over all steps together.
    """
    before, after = (int(share * answers * steps) for steps in (step - 1, step))
    return range(before, after), range((step - 1) * answers - before, step * answers - after)


def minibatches(batches: list[Microbatch], count: int) -> Iterator[list[Microbatch]]:
    """Split the microbatches round-robin into `count` updates, or fewer if there are fewer microbatches."""
    for start in range(min(count, len(batches))):
        yield batches[start::count]
