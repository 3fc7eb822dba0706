"""Run the training loop of midtraining and of every method, reporting through callbacks.

    batches -> microbatches -> loss, summed over tokens -> gradient over the global token count -> AdamW

A step depends only on (seed, step, weights), so a resumed run is bitwise equal to an uninterrupted one (fp32
on a CPU).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from recovery import distributed
from recovery.errors import InputError, NonFiniteLoss
from recovery.forward.hidden_states import logits_of, states_at
from recovery.objective.objective import Loss
from recovery.objective.signal_survey import SignalSurvey
from recovery.seeds import step_seed
from recovery.training.config import TrainConfig
from recovery.training.learning_rate import learning_rate_at
from recovery.training.updater import LossFunction, Microbatch, RunningSums, Updater, prefixed, unprefixed

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel
    from recovery.storage.training_state import TrainState

log = logging.getLogger(__name__)
ETA_STEPS = 20  # steps averaged to estimate the remaining time


class Batches(Protocol):
    """The data of a step: one list of microbatches per optimizer update.

    The data depends only on (seed, step, weights). All processes must produce the same lists; each trains on
    its share of every list.
    """

    def updates(self, step: int) -> Iterable[Sequence[Microbatch]]: ...


@runtime_checkable
class ReportsMetrics(Protocol):
    """Batches that report metrics of the last step: response lengths, rewards, inputs of alarms."""

    def metrics(self) -> dict[str, float]: ...


@runtime_checkable
class Stateful(Protocol):
    """Batches that carry tensors from step to step (a moving-average teacher), saved with the state."""

    def state_tensors(self) -> dict[str, Tensor]: ...
    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class TrainReport:
    """Totals of a training run, earlier attempts included; `stopped` is the reason for an early end."""

    steps: int
    tokens: int
    seconds: float
    stopped: str | None = None


def train(  # noqa: PLR0913 - the one loop's parts
    chat_model: ChatModel,
    batches: Batches,
    loss_fn: LossFunction,
    config: TrainConfig,
    *,
    state: TrainState | None = None,
    on_metrics: Callable[[int, dict[str, float]], None] | None = None,
    on_state: Callable[[int], None] | None = None,
    should_stop: Callable[[int, dict[str, float]], str | None] | None = None,
) -> TrainReport:
    """Train `chat_model` in place, resuming from the saved `state` if there is one. Steps count from 1.

    If training fails or is interrupted between two updates, the last whole step is saved.
    `on_metrics` receives every step's metrics, `on_state` the number of each saved step; `should_stop` may
    return a reason to end early. With several processes, `on_metrics` and `on_state` are called on rank 0
    only, and rank 0's result of `should_stop` counts. What it reads of a sharded model it reads inside
    `distributed.gathered`.
    """
    updater = Updater(chat_model, config)
    if updater.sharded and isinstance(batches, Stateful):
        raise InputError(
            "training: a moving-average teacher needs the student unsharded: set model.shard: false"
        )
    saver = _Saver(updater, batches, config, state, on_state)
    survey = loss_fn.survey if isinstance(loss_fn, TokenLoss) else None
    progress = saver.resume()
    report = _tolerant(on_metrics if updater.rank == 0 else None)
    last = progress.steps if progress.stopped else config.steps
    chat_model.model.train()
    with fp32_on_tensor_cores(chat_model.device), saver.keeping_whole_steps():
        for step in range(progress.steps + 1, last + 1):
            begun = time.perf_counter()
            rate = learning_rate_at(step, config)
            updater.prepare(rate, step_seed(config.seed, step))
            if survey:
                survey.begin(step)

            updates = _Timed(batches.updates(step))
            sums = RunningSums()
            for microbatches in updates:
                part = updater.backward(microbatches, loss_fn)
                if not part.finite:
                    raise _non_finite(step, part)
                saver.whole = None
                updater.update()
                sums = sums.plus(part)

            progress = progress.plus(sums.tokens, time.perf_counter() - begun)
            metrics = {"lr": rate, "batch_seconds": updates.seconds}
            metrics |= sums.means() | progress.rates(config.steps) | _reported(batches, survey)
            report(step, metrics)

            reason = distributed.share(should_stop(step, metrics) if should_stop else None)
            progress = replace(progress, stopped=reason)
            saver.whole = progress
            if reason or config.saves_after(step):
                saver.save(progress)
            if reason:
                break
    updater.finish(chat_model)
    return progress.report()


def _reported(batches: Batches, survey: SignalSurvey | None) -> dict[str, float]:
    """Return the last step's metrics of the data and of the token signals."""
    metrics = batches.metrics() if isinstance(batches, ReportsMetrics) else {}
    return {**metrics, **survey.metrics()} if survey else metrics


@contextmanager
def fp32_on_tensor_cores(device: torch.device | str) -> Iterator[None]:
    """Allow TF32 for fp32 matrix products (adapters, fp32 heads) on a GPU inside the block.

    Evaluation must run outside, so that checkpoints are compared at one precision.
    """
    before = torch.get_float32_matmul_precision()
    if torch.device(device).type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class TokenLoss:
    """Compute an objective's loss from the hidden states that predict the counted tokens.

    A microbatch may override the objective. A survey, if given, records the signal of each microbatch.
    """

    def __init__(self, objective: Callable[..., Loss], survey: SignalSurvey | None = None) -> None:
        self.objective = objective
        self.survey = survey

    def __call__(self, model: Any, microbatch: Microbatch) -> Loss:
        device = next(model.parameters()).device
        rollouts = microbatch.rollouts.to(device)
        signals = microbatch.signals.to(device)
        states_ND = states_at(model, rollouts.predictors_BT, *rollouts.model_inputs)
        objective = microbatch.objective or self.objective
        loss = objective(states_ND, partial(logits_of, model), rollouts.tokens_N, signals)
        if self.survey:
            self.survey.see(microbatch.rollouts, states_ND, loss)
        return loss


@dataclass(frozen=True)
class _Progress:
    """Steps, tokens and seconds so far, and the durations of the last steps."""

    steps: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    recent: tuple[tuple[float, float], ...] = ()  # (tokens, seconds) of the last steps
    stopped: str | None = None  # reason for an early end; such a state is not trained further

    def plus(self, tokens: float, seconds: float) -> _Progress:
        recent = (*self.recent, (tokens, seconds))[-ETA_STEPS:]
        return _Progress(self.steps + 1, self.tokens + tokens, self.seconds + seconds, recent)

    def rates(self, steps: int) -> dict[str, float]:
        tokens, seconds = self.recent[-1]
        mean = sum(seconds for _, seconds in self.recent) / len(self.recent)
        eta = mean * (steps - self.steps)
        return {"tokens_per_second": tokens / max(seconds, 1e-9), "step_seconds": seconds, "eta_seconds": eta}

    def report(self) -> TrainReport:
        return TrainReport(self.steps, round(self.tokens), self.seconds, self.stopped)


class _Saver:
    """Load and save a run's training state: weights, optimizer, tensors of the batches, progress."""

    def __init__(
        self,
        updater: Updater,
        batches: Batches,
        config: TrainConfig,
        state: TrainState | None,
        on_state: Callable[[int], None] | None,
    ) -> None:
        self.updater = updater
        self.batches = batches
        self.state = state
        self.on_state = on_state
        # Sharding does not change the result, so a run may resume with another value of `shard`.
        settings = {k: v for k, v in asdict(config).items() if k != "shard"}
        self.config = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
        self.saved = 0
        self.whole: _Progress | None = None  # what the weights stand for; None within a step's updates

    def resume(self) -> _Progress:
        """Restore the newest complete state, if there is one, and return its progress."""
        loaded = self.state.load() if self.state else None
        if loaded is None:
            return _Progress()
        self.saved, tensors, meta = loaded
        for name, value in self.config.items():
            if meta["config"].get(name) != value:
                raise InputError(
                    f"training state: it was written with {name} {meta['config'].get(name)}, not {value}: "
                    "resume with the same settings or start a new run"
                )
        self.updater.load_state_tensors(tensors)
        if isinstance(self.batches, Stateful):
            self.batches.load_state_tensors(unprefixed("batches", tensors))
        return _Progress(self.saved, meta["tokens"], meta["seconds"], stopped=meta.get("stopped"))

    def save(self, progress: _Progress) -> None:
        if self.state and (self.updater.rank == 0 or self.updater.sharded):
            tensors = self.updater.state_tensors()
            if isinstance(self.batches, Stateful):
                tensors |= prefixed("batches", self.batches.state_tensors())
            meta = {
                "config": self.config,
                "tokens": progress.tokens,
                "seconds": progress.seconds,
                "stopped": progress.stopped,
            }
            self.state.save(progress.steps, tensors, meta)
            self.saved = progress.steps
            if self.on_state and self.updater.rank == 0:
                self.on_state(progress.steps)

    @contextmanager
    def keeping_whole_steps(self) -> Iterator[None]:
        """Where the block fails or is interrupted, save the last step if the weights are still its own."""
        try:
            yield
        except BaseException as error:
            if self.whole and self.whole.steps > self.saved and self._resumable_after(error):
                self._try_to_save(self.whole)
            raise

    def _resumable_after(self, error: BaseException) -> bool:
        """Return whether a state that was not planned can be written now and resumed from."""
        together = not self.updater.sharded or isinstance(error, NonFiniteLoss)  # all processes are here
        begun = isinstance(self.batches, Stateful) or getattr(self.batches, "ahead", None) is not None
        return together and not begun

    def _try_to_save(self, progress: _Progress) -> None:
        """Save, or warn: the error that ended the training must be the one that is reported."""
        try:
            self.save(progress)
        except Exception as error:  # noqa: BLE001
            log.warning("step %d was not saved (%s: %s)", progress.steps, type(error).__name__, error)


class _Timed:
    """Measure the time spent producing an iterable's items: sampling and scoring, not training."""

    def __init__(self, items: Iterable[Sequence[Microbatch]]) -> None:
        self.items = iter(items)
        self.seconds = 0.0

    def __iter__(self) -> _Timed:
        return self

    def __next__(self) -> Sequence[Microbatch]:
        begun = time.perf_counter()
        try:
            return next(self.items)
        finally:
            self.seconds += time.perf_counter() - begun


def _non_finite(step: int, part: RunningSums) -> NonFiniteLoss:
    return NonFiniteLoss(
        f"step {step}: the loss is {part.loss:g} and its gradient norm {part.norm:g}; the weights are those "
        "before it: lower the learning rate, or look at this step's data"
    )


def _tolerant(
    on_metrics: Callable[[int, dict[str, float]], None] | None,
) -> Callable[[int, dict[str, float]], None]:
    """Wrap a callback: its first error becomes a warning, since logging must not stop a training run."""
    warned = False

    def report(step: int, metrics: dict[str, float]) -> None:
        nonlocal warned
        try:
            if on_metrics:
                on_metrics(step, metrics)
        except Exception as error:  # noqa: BLE001
            if not warned:
                log.warning(
                    "step %d: its metrics were not reported (%s: %s)", step, type(error).__name__, error
                )
            warned = True

    return report
