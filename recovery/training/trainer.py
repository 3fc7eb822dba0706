"""The one training loop, used by midtraining and by every method. It knows no database: it calls back.

    batches -> microbatches -> loss, summed over tokens -> gradient over the global token count -> AdamW

A step's numbers depend on (seed, step, weights) alone, so a run that was killed goes on bitwise (fp32, CPU).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor

from recovery import distributed
from recovery.errors import InputError, NonFiniteLoss
from recovery.models.loading import logits_of, states_at
from recovery.objective.objective import Loss
from recovery.objective.signal_survey import Survey
from recovery.seeds import step_seed
from recovery.training.config import TrainConfig, lr_at
from recovery.training.updater import LossFunction, Microbatch, Sums, Updater, prefixed, unprefixed

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel
    from recovery.storage.training_state import TrainState

log = logging.getLogger(__name__)
ETA_STEPS = 20  # the time left is judged by the last steps


class Batches(Protocol):
    """A step's data: one list of microbatches an optimizer update. It depends on (seed, step, weights) alone.

    With several processes each takes its share of every list; all must see the same lists."""

    def updates(self, step: int) -> Iterable[Sequence[Microbatch]]: ...


@runtime_checkable
class Reporting(Protocol):
    """Batches that know more of the step just trained on: response lengths, rewards, alarms' inputs."""

    def metrics(self) -> dict[str, float]: ...


@runtime_checkable
class Stateful(Protocol):
    """Batches that carry tensors from step to step (a moving-average teacher), saved with the state."""

    def state_tensors(self) -> dict[str, Tensor]: ...
    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class TrainReport:
    """What happened, resumed parts included; `stopped` says why it ended before its last step."""

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
    on_metrics: Callable[[int, dict[str, float]], None] | None = None,
    on_state: Callable[[int], None] | None = None,
    should_stop: Callable[[int, dict[str, float]], str | None] | None = None,
    survey: Survey | None = None,
) -> TrainReport:
    """Train `chat_model` in place, from where `state` left off. Steps count from 1.

    `on_metrics` gets every step's numbers, `on_state` each saved step, `should_stop` may give
    a reason. Of several processes only the first reports and saves; all ask `should_stop` the same.
    """
    updater = Updater(chat_model, config)
    if updater.sharded and isinstance(batches, Stateful):
        raise InputError("training: a teacher that follows the student needs it whole: model.shard: false")
    saver = _Saver(updater, batches, config, state, on_state)
    progress, report = saver.resume(), _tolerant(on_metrics if updater.rank == 0 else None)
    last = progress.steps if progress.stopped else config.steps
    chat_model.model.train()
    for step in range(progress.steps + 1, last + 1):
        begun, rate = time.perf_counter(), lr_at(step, config)
        updater.prepare(rate, step_seed(config.seed, step))
        updates, sums = _Timed(batches.updates(step)), Sums()
        if survey:
            survey.begin(step)

        for microbatches in updates:
            part = updater.accumulate(microbatches, loss_fn)
            part = replace(part, norm=updater.gradient_norm(part.tokens))
            if not part.finite:
                saver.keep(progress, untouched=not sums.updates)
                raise _non_finite(step, part)
            updater.update()
            sums = sums.plus(part)

        progress = progress.plus(sums.tokens, time.perf_counter() - begun)
        metrics = sums.means() | {"lr": rate, "batch_seconds": updates.seconds} | progress.rates(config.steps)
        metrics |= batches.metrics() if isinstance(batches, Reporting) else {}
        metrics |= survey.metrics() if survey else {}
        report(step, metrics)

        with distributed.gathered(chat_model.model):
            reason = distributed.share(should_stop(step, metrics) if should_stop else None)
        progress = replace(progress, stopped=reason)
        if reason or step == config.steps or (config.save_every and step % config.save_every == 0):
            saver.save(progress)
        if reason:
            break
    updater.finish(chat_model)
    return progress.report(progress.stopped)


def token_loss(objective: Callable[..., Loss], survey: Survey | None = None) -> LossFunction:
    """Return the loss function of an objective, which reads the states that predict the counted tokens.

    A microbatch may carry another objective; the survey looks at every microbatch.
    """

    def loss(model: Any, microbatch: Microbatch) -> Loss:
        device = next(model.parameters()).device
        rollouts = microbatch.rollouts.to(device)
        signals = microbatch.signals.to(device)
        states_ND = states_at(model, rollouts.predictors_BT, *rollouts.model_inputs)
        evaluate = microbatch.objective or objective
        result = evaluate(states_ND, partial(logits_of, model), rollouts.tokens_N, signals)
        if survey:
            survey.see(microbatch.rollouts, states_ND, result)
        return result

    return loss


@dataclass(frozen=True)
class _Progress:
    """How far a training is, and how fast it went lately."""

    steps: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    recent: tuple[tuple[float, float], ...] = ()  # (tokens, seconds) of the last steps
    stopped: str | None = None  # why it ended early: a state saved then is not trained on

    def plus(self, tokens: float, seconds: float) -> _Progress:
        recent = (*self.recent, (tokens, seconds))[-ETA_STEPS:]
        return _Progress(self.steps + 1, self.tokens + tokens, self.seconds + seconds, recent)

    def rates(self, steps: int) -> dict[str, float]:
        tokens, seconds = self.recent[-1]
        mean = sum(seconds for _, seconds in self.recent) / len(self.recent)
        eta = mean * (steps - self.steps)
        return {"tokens_per_second": tokens / max(seconds, 1e-9), "step_seconds": seconds, "eta_seconds": eta}

    def report(self, stopped: str | None) -> TrainReport:
        return TrainReport(self.steps, round(self.tokens), self.seconds, stopped)


class _Saver:
    """Reads and writes the state of a training: weights, optimizer, what the batches carry, how far it is."""

    def __init__(
        self,
        updater: Updater,
        batches: Batches,
        config: TrainConfig,
        state: TrainState | None,
        on_state: Callable[[int], None] | None,
    ) -> None:
        self.updater, self.batches, self.state, self.on_state = updater, batches, state, on_state
        settings = {k: v for k, v in asdict(config).items() if k != "shard"}  # how, not what
        self.config = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
        self.saved = 0

    def resume(self) -> _Progress:
        """Put the newest whole state back, if there is one, and say how far it had come."""
        found = self.state.load() if self.state else None
        if found is None:
            return _Progress()
        self.saved, tensors, meta = found
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

    def keep(self, progress: _Progress, *, untouched: bool) -> None:
        """Save the last good step if it still stands: not changed since, nor carried on by the batches."""
        if untouched and progress.steps > self.saved and not isinstance(self.batches, Stateful):
            self.save(progress)


class _Timed:
    """An iterable that knows how long its items took to come: sampling and scoring, not training."""

    def __init__(self, items: Iterable[Sequence[Microbatch]]) -> None:
        self.items, self.seconds = iter(items), 0.0

    def __iter__(self) -> _Timed:
        return self

    def __next__(self) -> Sequence[Microbatch]:
        begun = time.perf_counter()
        try:
            return next(self.items)
        finally:
            self.seconds += time.perf_counter() - begun


def _non_finite(step: int, part: Sums) -> NonFiniteLoss:
    return NonFiniteLoss(
        f"step {step}: the loss is {part.loss:g} and its gradient norm {part.norm:g}; the weights are those "
        "before it: lower the learning rate, or look at this step's data"
    )


def _tolerant(
    on_metrics: Callable[[int, dict[str, float]], None] | None,
) -> Callable[[int, dict[str, float]], None]:
    """Whoever logs must not stop a training: the first error is a warning, and the calls go on."""
    warned = False

    def report(step: int, metrics: dict[str, float]) -> None:
        nonlocal warned
        try:
            if on_metrics:
                on_metrics(step, metrics)
        except Exception as error:  # noqa: BLE001
            if not warned:
                log.warning("step %d: its metrics were not taken (%s: %s)", step, type(error).__name__, error)
            warned = True

    return report
