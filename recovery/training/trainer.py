"""Run the training loop of midtraining and of every method, reporting through callbacks.

    batches -> microbatches -> loss, summed over tokens -> gradient over the global token count -> AdamW

A step depends only on (seed, step, weights), so a resumed run is bitwise equal to an uninterrupted one (fp32
on a CPU).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from recovery import distributed
from recovery.errors import NonFiniteLoss, OutOfMemory, Unstable
from recovery.forward.eval_mode import set_training
from recovery.forward.hidden_states import is_adapter
from recovery.forward.precision import fp32_on_tensor_cores, matmul_precision
from recovery.memory import ran_out
from recovery.objective.signal_survey import SignalSurvey
from recovery.seeds import step_seed
from recovery.storage.training_state import TrainState
from recovery.training.config import TrainConfig, learning_rate_at
from recovery.training.resumption import Progress, Saver
from recovery.training.token_loss import TokenLoss
from recovery.training.updater import LossFunction, Microbatch, RunningSums, Updater

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel

log = logging.getLogger(__name__)
OnMetrics = Callable[[int, dict[str, float]], None]  # receives a step and its metrics
StopCheck = Callable[[int, dict[str, float]], str | None]  # may return a reason to end early


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


@dataclass(frozen=True)
class TrainReport:
    """Totals of a training run, earlier attempts included; `stopped` is the reason for an early end."""

    steps: int
    tokens: int
    seconds: float
    stopped: str | None = None


def train(
    chat_model: ChatModel,
    batches: Batches,
    loss_fn: LossFunction,
    config: TrainConfig,
    *,
    state: TrainState | None = None,
    on_metrics: OnMetrics | None = None,
    should_stop: StopCheck | None = None,
) -> TrainReport:
    """Train `chat_model` in place, resuming from the saved `state` if there is one. Steps count from 1.

    Training that fails or is interrupted saves the last completed step, unless a later update has changed the
    weights. `on_metrics` receives every step's metrics; `should_stop` may return a reason to end early. A
    training that ended while a step was checked resumes with that step's checks. With several processes,
    `on_metrics` is called on rank 0 only, and rank 0's result of `should_stop` counts. What it reads of a
    sharded model it reads inside `distributed.gathered`.
    """
    with naming_lack_of_memory("before its first step", chat_model.model):
        updater = Updater(chat_model, config)
    saver = Saver(updater, batches, config, state)
    survey = loss_fn.survey if isinstance(loss_fn, TokenLoss) else None
    progress = saver.resume()
    report = _tolerant(on_metrics if updater.rank == 0 else None)
    set_training(chat_model.model, dropout=config.dropout)
    with fp32_on_tensor_cores(chat_model.device), saver.saving_whole_steps():
        if progress.unchecked is not None:
            progress = _checked(saver, progress, should_stop)
        last = progress.steps if progress.stopped else config.steps
        for step in range(progress.steps + 1, last + 1):
            begun = time.perf_counter()
            rate = learning_rate_at(step, config)
            updater.prepare(rate, step_seed(config.seed, step))
            if survey:
                survey.begin(step)

            with naming_lack_of_memory(f"in step {step}", chat_model.model):
                updates = _Timed(batches.updates(step))
                sums = _trained(step, updates, updater, loss_fn, saver)

            progress = progress.plus(sums.tokens, time.perf_counter() - begun)
            metrics = {"lr": rate, "batch_seconds": updates.seconds}
            metrics |= sums.means() | progress.rates(config.steps) | _reported(batches, survey)
            report(step, metrics)

            progress = _checked(saver, replace(progress, unchecked=metrics), should_stop)
            if progress.stopped:
                break
            if config.saves_after(step):
                saver.save(progress)
    updater.finish(chat_model)
    return TrainReport(progress.steps, round(progress.tokens), progress.seconds, progress.stopped)


def _trained(
    step: int,
    updates: Iterable[Sequence[Microbatch]],
    updater: Updater,
    loss_fn: LossFunction,
    saver: Saver,
) -> RunningSums:
    """Make a step's updates and return their sums.

    Nothing of its microbatches outlives this: the next step samples and scores without the states of a
    teacher that they hold.
    """
    sums = RunningSums()
    for microbatches in updates:
        part = updater.backward(microbatches, loss_fn)
        if not part.finite:
            raise _non_finite(step, part, sums.updates)
        saver.leave_whole_step()
        updater.update()
        sums = sums.plus(part)
    return sums


def _checked(saver: Saver, progress: Progress, should_stop: StopCheck | None) -> Progress:
    """Run the stop checks after a completed step, at full fp32 precision like evaluations.

    Rank 0's reason counts; if there is one, save the state.
    """
    saver.reach(progress)
    checked = replace(progress, unchecked=None)
    try:
        with matmul_precision("highest"):
            reason = should_stop(progress.steps, dict(progress.unchecked or {})) if should_stop else None
            checked = replace(checked, stopped=distributed.broadcast(reason))
    except Unstable:  # resuming goes on behind this step, without the alarm
        saver.reach(checked)
        raise
    saver.reach(checked)
    if checked.stopped:
        saver.save(checked)
    return checked


def _reported(batches: Batches, survey: SignalSurvey | None) -> dict[str, float]:
    """Return the last step's metrics of the data and of the token signals."""
    metrics = batches.metrics() if isinstance(batches, ReportsMetrics) else {}
    return {**metrics, **survey.metrics()} if survey else metrics


@contextmanager
def naming_lack_of_memory(where: str, model: Any) -> Iterator[None]:
    """Raise OutOfMemory, which says what to do, where an allocation fails inside the block."""
    try:
        yield
    except RuntimeError as error:
        if not ran_out(error):
            raise
        less = "lower microbatch_tokens, row_tokens or longest_row (where a pass is one row: max_new_tokens)"
        recompute = "set model.gradient_checkpointing: true"
        if is_adapter(model):
            ways = f"{less} or the rank of lora, or {recompute}"
        else:
            ways = f"{less}, {recompute}, or train an adapter"
        raise OutOfMemory(
            f"training: out of memory {where}: {ways}, and begin a new run: `recover resume` keeps its "
            "settings"
        ) from error


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


def _non_finite(step: int, part: RunningSums, made: int) -> NonFiniteLoss:
    """Say which weights remain where an update is refused; `made` others of its step came before it."""
    weights = "the weights are those before it"
    if made:
        weights = (
            f"the weights are those after {made} of its updates, and `recover resume` goes back to the last "
            "saved state"
        )
    return NonFiniteLoss(
        f"step {step}: the loss is {part.loss:g} and its gradient norm {part.norm:g}; {weights}: lower the "
        "learning rate, or look at this step's data"
    )


def _tolerant(on_metrics: OnMetrics | None) -> OnMetrics:
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
