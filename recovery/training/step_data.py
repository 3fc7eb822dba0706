"""A step's data, whatever the method: draw prompts, let someone write, reward it, have the teacher score it.

Everything depends on (seed, step, weights) alone, so that a resumed run meets the same prompts and draws.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from recovery import distributed
from recovery.errors import InputError
from recovery.methods.method import Method
from recovery.objective.objective import NO_SIGNALS
from recovery.objective.token_signals import TokenSignals
from recovery.sampling.prefix_writers import WRITERS, Desk
from recovery.sampling.protocol import SamplingParams
from recovery.sampling.split import SplitSampler
from recovery.seeds import step_seed
from recovery.teachers.contexts import Context, Item, Views, prompt, response
from recovery.teachers.rewards import Reward, group_advantages, score
from recovery.teachers.teachers import SelfTeacher, scored
from recovery.training.alarms import response_metrics
from recovery.training.trainer import Reporting
from recovery.training.updater import Microbatch

if TYPE_CHECKING:
    from recovery.batches.rollouts import Rollouts
    from recovery.batches.teacher_scores import TeacherScores
    from recovery.engines.lookahead import Ahead
    from recovery.models.chat_model import ChatModel
    from recovery.sampling.protocol import Sampler
    from recovery.teachers.teachers import Teacher

READ_STATES = ("data", "mix")  # need pairs
STUDENT_STATES = ("student", "student-kept", "mix", "teacher-mix")  # tokens with odds to compare with
TEACHER_STATES = ("teacher", "student-continued")  # tokens that the teacher had to sample


@dataclass(frozen=True)
class Sizes:
    """How much a step is."""

    prompts_per_step: int
    samples_per_prompt: int = 1  # at least the method's group_size
    max_new_tokens: int = 256
    microbatch_tokens: int = 16384


class Beside(Protocol):
    """Something else to be trained on with each update's answers."""

    def begin(self, step: int) -> None: ...
    def beside(self, answers: Sequence[Microbatch]) -> list[Microbatch]: ...


class Episodes:
    """Batches for the trainer. Row i is prompt i, then come the pairs (what data states are read from).

    A row's weight is that of each of its tokens, in the loss and in the count that divides it.
    """

    def __init__(
        self,
        student: ChatModel,
        sampler: Sampler,
        teacher: Teacher | None,
        method: Method,
        prompts: Sequence[Item],
        sizes: Sizes,
        *,
        pairs: Sequence[Item] = (),
        context: Context | None = None,
        reward: Reward | None = None,
        anchor: Teacher | None = None,
        seed: int = 0,
        weights: Sequence[float] | None = None,
        rehearsal: Beside | None = None,
        on_scored: Callable[[int, list[Microbatch]], None] | None = None,
        ahead: Ahead | None = None,
    ) -> None:
        _check(method, teacher, prompts, pairs, context, reward, anchor)
        self.student, self.teacher, self.anchor = student, teacher, anchor
        self.sampler = SplitSampler.of(sampler, student.pad_id)
        self.method, self.sizes, self.reward, self.seed = method, sizes, reward, seed
        self.rehearsal, self.on_scored = rehearsal, on_scored
        self.ahead, self._started = ahead, {}  # type: ignore[var-annotated]
        self.items = [*prompts, *pairs]
        self.weights = _weights(weights, len(self.items))
        self.prompt_rows, self.pair_rows = range(len(prompts)), range(len(prompts), len(self.items))
        self.views = Views(student, self.items, context)
        self.views.check()
        self.tokens_sampled = self.tokens_scored = 0
        self._last: dict[str, float] = {}
        if isinstance(teacher, SelfTeacher) and teacher.decay is not None:  # only then these are `Stateful`
            self.state_tensors, self.load_state_tensors = teacher.state_tensors, teacher.load_state_tensors

    def updates(self, step: int) -> Iterator[list[Microbatch]]:
        """Every optimizer update that a step's rollouts are used for."""
        rollouts = self.write(self._started.pop(step, None) or self.draw(step))
        if self.ahead and self.ahead.starts(step + 1):
            self._started[step + 1] = self.ahead.start(self.draw(step + 1))
        rollouts = self.earn(rollouts)
        batches = self.score(rollouts)
        if self.on_scored is not None:
            own = distributed.mine(len(batches), self.method.minibatches)
            with distributed.gathered(self.student.model):
                self.on_scored(step, [batches[i] for i in own])
        if self.rehearsal:
            self.rehearsal.begin(step)
        for _ in range(self.method.epochs):
            for answers in minibatches(batches, self.method.minibatches):
                yield answers + (self.rehearsal.beside(answers) if self.rehearsal else [])
        self.follow()

    def draw(self, step: int) -> Desk:
        """The step's prompts, each as often as it is to be answered, and as many pairs."""
        samples = max(self.sizes.samples_per_prompt, self.method.group_size)
        rows = drawn(self.prompt_rows, self.sizes.prompts_per_step, step, f"prompts:{self.seed}")
        data = drawn(self.pair_rows, self.sizes.prompts_per_step * samples, step, f"pairs:{self.seed}")
        seed = step_seed(self.seed, step)
        return Desk(
            self.method,
            step,
            self.student,
            self.sampler,
            self.teacher,
            self.views,
            rows=[row for row in rows for _ in range(samples)],
            data=data,
            params=SamplingParams(self.sizes.max_new_tokens, self.method.temperature, seed),
            dice=random.Random(seed),
            rewards=self.judge,
        )

    def write(self, desk: Desk) -> Rollouts:
        """What the method's states are made of; remembers how the student behaved in it."""
        self._last = {}
        rollouts = WRITERS[self.method.state_kind](desk)
        if isinstance(self.sampler, Reporting):
            self._last |= self.sampler.metrics()
        for heard in desk.heard:
            self._last |= self._behaviour(heard)
            self.tokens_sampled += heard.n_tokens
        if self.method.state_kind in TEACHER_STATES:
            self.tokens_sampled += rollouts.n_tokens
        if self.method.state_kind == "student-kept":
            self._last["kept_share"] = len(rollouts) / len(desk.rows)
        return rollouts

    def judge(self, rollouts: Rollouts) -> Tensor:
        """The reward of each sequence."""
        assert self.reward is not None
        items = [self.items[row] for row in rollouts.index_B.tolist()]
        texts = [self.student.answer(answer) for answer in rollouts.responses()]
        rewards_B = score(self.reward, texts, [{**item.fields, "prompt": prompt(item)} for item in items])
        self._last["reward"] = float(rewards_B.mean())
        return rewards_B

    def earn(self, rollouts: Rollouts) -> Rollouts:
        """What each sequence earned beyond the others at its prompt, where the method asks for it."""
        if self.method.reward_weight == 0:
            return rollouts
        gains_B = group_advantages(self.judge(rollouts), rollouts.index_B, self.method.reward_baseline)
        return replace(rollouts, rewards_B=gains_B)

    def score(self, rollouts: Rollouts) -> list[Microbatch]:
        """Microbatches with all that the objective asks about the tokens of those that are this process's."""
        limit = self.sizes.microbatch_tokens
        parts: list[tuple[Rollouts, TeacherScores | None]] = [(part, None) for part in rollouts.split(limit)]
        if parts and self.teacher is not None and self.method.scores != "none":
            contexts = None
            if self.views.context is not None:
                contexts = [self.views.teacher(row) for row in rollouts.index_B.tolist()]
            updates = self.method.minibatches
            parts = list(scored(self.teacher, rollouts, limit, contexts, updates=updates))
            self.tokens_scored += rollouts.n_tokens
        own = set(distributed.mine(len(parts), self.method.minibatches))
        return [
            Microbatch(part, self._signals(part, scores) if i in own else NO_SIGNALS)
            for i, (part, scores) in enumerate(parts)
        ]

    def follow(self) -> None:
        """A moving-average teacher takes its step."""
        if isinstance(self.teacher, SelfTeacher):
            self.teacher.follow()

    def metrics(self) -> dict[str, float]:
        """How the student behaved in the last step and what it earned: what the alarms listen to."""
        return self._last

    def _signals(self, part: Rollouts, scores: TeacherScores | None) -> TokenSignals:
        """Return what the method needs to know about the tokens of a microbatch."""
        signals: dict[str, Any] = {"scores": scores}
        if self.method.state_kind in STUDENT_STATES:
            signals["behaviour_N"] = part.logprobs_N
        if self.method.importance_clip is not None:
            signals["rows_N"] = part.rows_N
        if self.method.reward_weight > 0 and part.rewards_B is not None:
            signals["advantages_N"] = part.per_token(part.rewards_B)
        if self.weights is not None:
            signals["weights_N"] = part.per_token(self.weights[part.index_B.cpu()])
        if self.anchor is not None:
            signals["anchor"] = self.anchor.score(part)
            self.tokens_scored += part.n_tokens
        return TokenSignals(**signals)

    def _behaviour(self, rollouts: Rollouts) -> dict[str, float]:
        answers = rollouts.responses()
        texts = [self.student.text(answer) for answer in answers]
        return response_metrics(texts, [len(answer) for answer in answers], rollouts.finished_B.tolist())


def _weights(weights: Sequence[float] | None, rows: int) -> Tensor | None:
    """None where every row counts alike."""
    if weights is None:
        return None
    if len(weights) != rows or not all(0 <= weight < math.inf for weight in weights):
        raise InputError(f"episodes: {rows} rows need as many weights of 0 or more")
    return None if all(weight == 1.0 for weight in weights) else torch.tensor(weights)


def drawn(pool: Sequence[int], count: int, step: int, seed: str) -> list[int]:
    """A step's rows: every row of the pool once before any comes again, in an order of each epoch's own."""
    total, count = len(pool), min(count, len(pool))
    orders: dict[int, list[int]] = {}
    rows = []
    for position in range((step - 1) * count, step * count):
        epoch, place = divmod(position, total)
        if epoch not in orders:
            orders[epoch] = random.Random(f"{seed}:{epoch}").sample(range(total), total)
        rows.append(pool[orders[epoch][place]])
    return rows


def minibatches(batches: list[Microbatch], count: int) -> Iterator[list[Microbatch]]:
    """The microbatches dealt out to `count` updates; fewer where there are fewer microbatches."""
    for start in range(min(count, len(batches))):
        yield batches[start::count]


def _check(
    method: Method,
    teacher: Teacher | None,
    prompts: Sequence[Item],
    pairs: Sequence[Item],
    context: Context | None,
    reward: Reward | None,
    anchor: Teacher | None,
) -> None:
    """All that the row asks for is there, before any work is done."""
    paired = bool(pairs) and all(map(response, pairs))
    for needed, there, what in (
        (method.teacher != "none", teacher is not None, "a teacher: name a checkpoint (--teacher)"),
        (method.needs_rewards, reward is not None, "a reward: --reward exact, ifeval or module:function"),
        (method.anchor_beta > 0, anchor is not None, "an anchor, the clean model: name it (--teacher)"),
        (method.context != "none", context is not None, f"{method.context} to show: --context TEXT or FILE"),
        (method.state_kind in READ_STATES, paired, "pairs, rows with a prompt and a response: --pairs FILE"),
        (method.state_kind != "data", bool(prompts), "prompts: --prompts FILE"),
    ):
        if needed and not there:
            raise InputError(f"method {method.name!r} needs {what}")
    if context is not None:
        context.check([*prompts, *pairs])
