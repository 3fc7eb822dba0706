"""Save a training's state and progress, and resume from it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from recovery.errors import InputError, NonFiniteLoss, Unstable
from recovery.storage.training_state import TrainState, Unprefixed, prefixed
from recovery.training.config import TrainConfig
from recovery.training.updater import Updater

log = logging.getLogger(__name__)
ETA_STEPS = 20  # steps averaged to estimate the remaining time
IN_ALL_PROCESSES = (NonFiniteLoss, Unstable)  # errors that every process of a training raises at one step


@runtime_checkable
class Stateful(Protocol):
    """Batches that carry tensors from step to step (a moving-average teacher), saved with the state."""

    def state_tensors(self) -> dict[str, Tensor]: ...
    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None: ...


@runtime_checkable
class BeginsEarly(Protocol):
    """Batches that may already sample the next step.

    Those samples are lost on resume, so no unplanned state is saved.
    """

    def has_begun(self) -> bool: ...


@dataclass(frozen=True)
class Progress:
    """Steps, tokens and seconds so far, and the durations of the last steps."""

    steps: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    recent: tuple[tuple[float, float], ...] = ()  # (tokens, seconds) of the last steps
    stopped: str | None = None  # reason for an early end; such a state is not trained further
    unchecked: Mapping[str, float] | None = None  # the last step's metrics, until its checks are done

    def plus(self, tokens: float, seconds: float) -> Progress:
        recent = (*self.recent, (tokens, seconds))[-ETA_STEPS:]
        return Progress(self.steps + 1, self.tokens + tokens, self.seconds + seconds, recent)

    def rates(self, steps: int) -> dict[str, float]:
        tokens, seconds = self.recent[-1]
        mean = sum(seconds for _, seconds in self.recent) / len(self.recent)
        eta = mean * (steps - self.steps)
        return {"tokens_per_second": tokens / max(seconds, 1e-9), "step_seconds": seconds, "eta_seconds": eta}


class Saver:
    """Load and save a run's training state: weights, optimizer, tensors of the batches, progress."""

    def __init__(
        self,
        updater: Updater,
        batches: object,
        config: TrainConfig,
        state: TrainState | None,
    ) -> None:
        if updater.sharded and isinstance(batches, Stateful):
            raise InputError(
                "training: a moving-average teacher needs the student unsharded: set model.shard: false"
            )
        self.updater = updater
        self.batches = batches
        self.state = state
        # Sharding changes no more than rounding, so a state goes on with or without; the method says whether
        # there is dropout.
        settings = {k: v for k, v in asdict(config).items() if k not in ("shard", "dropout")}
        self.config = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
        self.kept: Progress | None = None  # what the newest state was saved with
        self.whole: Progress | None = None  # the step that the weights are those of; None within one

    def resume(self) -> Progress:
        """Restore the newest complete state, if there is one, and return its progress."""
        loaded = self.state.load() if self.state else None
        if loaded is None:
            return Progress()
        steps, tensors, meta = loaded
        for name, value in self.config.items():
            if meta["config"].get(name) != value:
                raise InputError(
                    f"training state: it was written with {name} {meta['config'].get(name)}, not {value}: "
                    "resume with the same settings or start a new run"
                )
        self.updater.load_state_tensors(tensors)
        if isinstance(self.batches, Stateful):
            self.batches.load_state_tensors(Unprefixed("batches", tensors))
        self.kept = Progress(
            steps,
            meta["tokens"],
            meta["seconds"],
            stopped=meta.get("stopped"),
            unchecked=meta.get("unchecked"),
        )
        return self.kept

    def leave_whole_step(self) -> None:
        """Note that the weights are about to change within a step."""
        self.whole = None

    def reach(self, progress: Progress) -> None:
        """Note that a step is whole: its metrics are reported; its checks are done, or to be done."""
        self.whole = progress

    def save(self, progress: Progress) -> None:
        if self.state and (self.updater.rank == 0 or self.updater.sharded):
            tensors = self.updater.state_tensors()
            if isinstance(self.batches, Stateful):
                tensors |= prefixed("batches", self.batches.state_tensors())
            meta = {
                "config": self.config,
                "tokens": progress.tokens,
                "seconds": progress.seconds,
                "stopped": progress.stopped,
                "unchecked": progress.unchecked and {k: float(v) for k, v in progress.unchecked.items()},
            }
            self.state.save(progress.steps, tensors, meta)
            self.kept = progress

    @contextmanager
    def saving_whole_steps(self) -> Iterator[None]:
        """Save the last step where the block fails or is interrupted, if the weights are still its own."""
        try:
            yield
        except BaseException as error:
            if self.whole and self.whole is not self.kept and self._resumable_after(error):
                self._try_to_save(self.whole)
            raise

    def _resumable_after(self, error: BaseException) -> bool:
        """Return whether a state that was not planned can be written now and resumed from."""
        together = not self.updater.sharded or isinstance(error, IN_ALL_PROCESSES)
        begun = isinstance(self.batches, BeginsEarly) and self.batches.has_begun()
        return together and not begun and not isinstance(self.batches, Stateful)

    def _try_to_save(self, progress: Progress) -> None:
        """Save, or warn: the error that ended the training must be the one that is reported."""
        try:
            self.save(progress)
        except Exception as error:  # noqa: BLE001
            log.warning("step %d was not saved (%s: %s)", progress.steps, type(error).__name__, error)
