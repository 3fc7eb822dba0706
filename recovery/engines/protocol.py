"""Sample and score with an engine that holds a copy of the weights, and verify that copy after every sync.

    send the student's weights -> canary: compare log-probs with the trainer's -> sample or score

An engine that dies, hangs or fails its canary is restarted once, synced, and the call retried; after a second
failure the run stops resumably. `vllm_local.py` runs vLLM in this process, `vllm_http.py` uses servers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from recovery.batches.rollouts import Rollouts
from recovery.batches.teacher_scores import TeacherScores
from recovery.errors import EngineLost, InputError, RecoverError
from recovery.models.loading import logits_of
from recovery.sampling.in_process import without_stops
from recovery.sampling.protocol import SamplingParams
from recovery.teachers.teachers import Contexts, evaluating, score

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")
OnProgress = Callable[[int, int], None]

CANARY_PROMPTS, CANARY_TOKENS = 8, 16
CHUNK = 256  # tokens whose full distributions are in memory at once


@dataclass(frozen=True)
class EngineSettings:
    """Settings of an engine. `timeout_seconds` is the longest wait for a heartbeat or a response."""

    timeout_seconds: float = 600.0
    start_seconds: float = 1800.0
    gpu_memory: float = 0.45  # share of the device's memory, weights included; the trainer needs the rest
    cpu_cache_gib: float = 1.0  # KV cache on a CPU
    max_length: int | None = None  # tokens of prompt and answer; default: the model's limit
    eager: bool = False  # no compilation: faster start, slower generation
    exchange: str | None = None  # folder shared by trainer and servers; default: the temporary folder
    tensor_parallel: int = 1  # GPUs that share one copy of the weights
    devices: str | None = None  # CUDA_VISIBLE_DEVICES of a server started by this process
    arguments: Mapping[str, str | int | float] = field(default_factory=dict)  # further vLLM options
    trust_remote_code: bool = False  # run code that comes with the model


class SampledAnswer(NamedTuple):
    """A sampled answer with each token's log-probability under the sampling distribution."""

    tokens: list[int]
    logprobs: list[float]


class TokenScore(NamedTuple):
    """An engine's scores of one token: its log-probability, and the top K entries in descending order."""

    logprob: float
    ids: list[int]
    logprobs: list[float]


class Engine(Protocol):
    """Sample from and score token ids with its copy of the weights. Every failure is an EngineLost."""

    name: str

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        stop_ids: Sequence[int],
        on_progress: OnProgress | None = None,
    ) -> list[SampledAnswer]: ...

    def score(
        self, sequences: Sequence[Sequence[int]], starts: Sequence[int], k: int
    ) -> list[list[TokenScore]]: ...

    def update_weights(self, student: ChatModel) -> None: ...

    def restart(self) -> None: ...

    def close(self) -> None: ...


def with_restart(engine: Engine, call: Callable[[], Answer]) -> Answer:
    """Return the result of `call`; if the engine is lost, restart it and call once more."""
    try:
        return call()
    except EngineLost as error:
        first = error
    log.warning("%s: %s: restarting it and retrying once", engine.name, first)
    try:
        engine.restart()
        return call()
    except EngineLost as second:
        raise RecoverError(
            f"{engine.name}: lost twice ({first}; then {second}): check it, then go on with `recover resume`"
        ) from second


class EngineSampler:
    """Sample from the student through an engine.

    With `follow`, sync the weights before every batch, otherwise only once; a canary verifies each sync.
    """

    def __init__(self, engine: Engine, student: ChatModel, *, follow: bool = True) -> None:
        self.engine = engine
        self.student = student
        self.follow = follow
        self.canary: Canary | None = None
        self._stale = True
        self._pending: Future[list[SampledAnswer]] | None = None  # a batch that is sampled in the background
        self._metrics: dict[str, float] = {}

    def sample(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Rollouts:
        """Sample one response per prompt, with log-probabilities under the sampling distribution."""
        return rollouts_of(self.student, prompts, self._sample(prompts, params, None))

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, on_progress: OnProgress | None = None
    ) -> list[list[int]]:
        """Sample one response per prompt; return token ids only, without the stop token."""
        answers = self._sample(prompts, params, on_progress)
        return without_stops([answer.tokens for answer in answers], self.student.stop_ids)

    def start(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Callable[[], Rollouts]:
        """Start `sample` in the background with the current weights; return a function that awaits it.

        If the engine is lost meanwhile, that function samples again, with the weights of that time.
        """
        self.check(prompts)
        self._wait_for_pending()
        with_restart(self.engine, lambda: self.sync(prompts, params.temperature))
        sample = partial(self.engine.sample, prompts, params, self.student.stop_ids)
        self._pending = pending = in_background(sample)
        attempts = iter((pending.result, lambda: self._sync_and_sample(prompts, params, None)))

        def await_rollouts() -> Rollouts:
            answers = with_restart(self.engine, lambda: next(attempts)())
            return rollouts_of(self.student, prompts, answers)

        return await_rollouts

    def close(self) -> None:
        """Close the engine and discard answers that are still being generated."""
        self.engine.close()
        self._wait_for_pending()

    def metrics(self) -> dict[str, float]:
        """Return the duration of the last sync and the canary's gaps after it."""
        return self._metrics

    def sync(self, prompts: Sequence[Sequence[int]], temperature: float) -> None:
        """Send the student's weights to the engine and check them with the canary."""
        started = time.perf_counter()
        self.engine.update_weights(self.student)
        self.verify(prompts, temperature, started)

    def verify(self, prompts: Sequence[Sequence[int]], temperature: float, started: float) -> None:
        """Check with the canary the weights that the engine was sent, in a sync that began at `started`."""
        if self.canary is None:
            self.canary = Canary(list(dict.fromkeys(map(tuple, prompts)))[:CANARY_PROMPTS])
        self._metrics = self.canary.check(self.engine, self.student, temperature)
        self._metrics["sync_seconds"] = time.perf_counter() - started
        self._stale = False

    def _sample(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, on_progress: OnProgress | None
    ) -> list[SampledAnswer]:
        self.check(prompts)
        return with_restart(self.engine, lambda: self._sync_and_sample(prompts, params, on_progress))

    def _sync_and_sample(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, on_progress: OnProgress | None
    ) -> list[SampledAnswer]:
        self._wait_for_pending()
        if self.follow or self._stale:
            self.sync(prompts, params.temperature)
        self._stale = True  # until the call succeeds: a lost engine has lost its weights too
        answers = self.engine.sample(prompts, params, self.student.stop_ids, on_progress)
        self._stale = False
        return answers

    def check(self, prompts: Sequence[Sequence[int]]) -> None:
        """Raise InputError unless there are prompts of at least one token each."""
        if not prompts or not all(prompts):
            raise InputError("sampling: no prompts, or an empty one: give at least one token each")

    def _wait_for_pending(self) -> None:
        """Block until background generation finishes; the engine's weights must not change before."""
        if self._pending is not None:
            wait([self._pending])
            self._stale = self._stale or self._pending.exception() is not None
            self._pending = None


def in_background(work: Callable[[], Answer]) -> Future[Answer]:
    """Run the work in a daemon thread, which does not keep the process from exiting."""
    found: Future[Answer] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised by Future.result
            found.set_exception(error)

    threading.Thread(target=run, daemon=True, name="sampling").start()
    return found


class EngineTeacher:
    """A teacher that an engine runs: scores of the sampled tokens, or also of the top k entries."""

    def __init__(self, engine: Engine, student: ChatModel, kind: str, k: int = 16) -> None:
        if kind not in ("sampled", "topk"):
            raise InputError(
                f"{engine.name}: sends log-probs of tokens, not whole distributions: take a method such as "
                "opd-topk or opd-sampled, or a teacher in this process"
            )
        self.engine = engine
        self.student = student
        self.kind = kind
        self.k = k

    def score(self, rollouts: Rollouts, contexts: Contexts | None = None) -> TeacherScores:
        if contexts is not None:
            rollouts = rollouts.with_prompts(contexts, self.student.pad_id)
        top_k = self.k if self.kind == "topk" else 0
        scores = with_restart(self.engine, lambda: token_scores(self.engine, rollouts, top_k))
        logprobs_N = torch.tensor([token.logprob for token in scores])
        if self.kind == "sampled":
            return TeacherScores(sampled_logprobs_N=logprobs_N)
        return TeacherScores(
            sampled_logprobs_N=logprobs_N,
            ids_NK=torch.tensor([token.ids for token in scores]),
            logprobs_NK=torch.tensor([token.logprobs for token in scores]),
        )

    def sample(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Rollouts:
        """Sample one answer per prompt from the teacher."""
        sample = partial(self.engine.sample, prompts, params, self.student.stop_ids)
        return rollouts_of(self.student, prompts, with_restart(self.engine, sample))


class Canary:
    """Compare the log-probabilities of trainer and engine on a few fixed answers after every sync.

    Agreement within a tolerance shows that the engine holds the trainer's weights. A step may be smaller than
    the tolerance; therefore the engine's log-probs must also change when the trainer's do.
    """

    def __init__(self, prompts: Sequence[Sequence[int]]) -> None:
        self.prompts = [list(prompt) for prompt in prompts]
        self.answers: Rollouts | None = None
        self.before: tuple[Tensor, Tensor] | None = None

    def check(self, engine: Engine, student: ChatModel, temperature: float = 1.0) -> dict[str, float]:
        """Return the gaps between engine and trainer as metrics; raise EngineLost if they are too large."""
        params = SamplingParams(CANARY_TOKENS, temperature)
        answers = engine.sample(self.prompts, params, student.stop_ids)
        rollouts = rollouts_of(student, self.prompts, answers)
        sampled_gap_N = (trainer_logprobs(student, rollouts, temperature) - rollouts.logprobs_N).abs()
        self.answers = rollouts if self.answers is None else self.answers
        scores = token_scores(engine, self.answers, 0)
        engine_N = torch.tensor([token.logprob for token in scores], dtype=torch.float64)
        trainer_N = trainer_logprobs(student, self.answers).double()
        limit = 1e-3 if student.model.dtype == torch.float32 else 0.05  # nats a token
        scored_gap_N = (trainer_N - engine_N).abs()
        gaps = {"scored": float(scored_gap_N.mean()), "sampled": float(sampled_gap_N.mean())}
        for how, gap in gaps.items():
            if not gap < limit:
                raise EngineLost(
                    f"it does not hold the trainer's weights: log-probs of what it {how} differ by "
                    f"{gap:.2g} on average, more than {limit:g}"
                )
        moved = self._moved(trainer_N, engine_N, limit / 1000)
        self.before = trainer_N, engine_N
        largest = max(float(scored_gap_N.max()), float(sampled_gap_N.max()))
        return {"canary_gap": max(gaps.values()), "canary_gap_max": largest, "canary_moved": moved}

    def _moved(self, trainer_N: Tensor, engine_N: Tensor, least: float) -> float:
        """Return the mean change of the trainer's log-probs since the last sync; the engine's must match it.

        The noise level is the gap between the two at the last sync, at least `least`. Beyond that noise, each
        token's log-prob must change as the trainer's does; and if most tokens changed for the trainer, at
        least one must have changed for the engine.
        """
        if self.before is None:
            return 0.0
        trainer_before_N, engine_before_N = self.before
        trainer_change_N = trainer_N - trainer_before_N
        engine_change_N = engine_N - engine_before_N
        moved = float(trainer_change_N.abs().mean())
        apart = float((engine_change_N - trainer_change_N).abs().mean())
        noise = max(least, float((engine_before_N - trainer_before_N).abs().mean()))
        unchanged = not bool(engine_change_N.any()) and float(trainer_change_N.ne(0).double().mean()) > 0.5
        if unchanged or apart > 0.1 * moved + 8 * noise:
            raise EngineLost(
                f"it was not updated: since the last sync the trainer's log-probs moved by {moved:.2g} on "
                f"average, the engine's by {float(engine_change_N.abs().mean()):.2g}, {apart:.2g} apart"
            )
        return moved


def token_scores(engine: Engine, rollouts: Rollouts, k: int) -> list[TokenScore]:
    """Return the engine's scores of the N counted tokens, in order."""
    lengths = rollouts.lengths_B.tolist()
    sequences = [row[:length].tolist() for row, length in zip(rollouts.tokens_BT, lengths, strict=True)]
    masks = [row[:length].tolist() for row, length in zip(rollouts.mask_BT, lengths, strict=True)]
    starts = [mask.index(True) if True in mask else len(mask) for mask in masks]
    rows = engine.score(sequences, starts, k)
    return [
        token
        for row, mask, start in zip(rows, masks, starts, strict=True)
        for token, counts in zip(row, mask[start:], strict=True)
        if counts
    ]


@torch.no_grad()
def trainer_logprobs(student: ChatModel, rollouts: Rollouts, temperature: float = 1.0) -> Tensor:
    """Return the trainer's log-prob of each counted token at the sampling temperature (0 counts as 1)."""
    with evaluating(student.model):
        hidden_ND = score(student, rollouts).hidden_ND
        assert hidden_ND is not None
        columns = []
        pairs = zip(hidden_ND.split(CHUNK), rollouts.tokens_N.to(student.device).split(CHUNK), strict=True)
        for states_ND, tokens_N in pairs:
            logits_NV = logits_of(student.model, states_ND).float() / (temperature or 1.0)
            columns.append(logits_NV.log_softmax(-1).gather(-1, tokens_N[:, None])[:, 0].cpu())
    return torch.cat(columns)


def rollouts_of(
    student: ChatModel, prompts: Sequence[Sequence[int]], answers: Sequence[SampledAnswer]
) -> Rollouts:
    """Return an engine's answers as rollouts."""
    stops = set(student.stop_ids)
    return Rollouts.from_samples(
        prompts,
        [answer.tokens for answer in answers],
        [answer.logprobs for answer in answers],
        [answer.tokens[-1] in stops for answer in answers],
        student.pad_id,
    )
