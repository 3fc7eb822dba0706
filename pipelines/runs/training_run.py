"""Run the training loop as a stage: metrics to the tracker, progress to the terminal, state to disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from db.reads import curves
from pipelines.config.sections.distill import DistillConfig
from pipelines.config.settings import TrainingSettings
from pipelines.runs.cost import Flops
from pipelines.runs.stage_runner import Stage
from recovery.methods.method import Method
from recovery.models.adapters import describe_trained
from recovery.objective.objective import Objective
from recovery.objective.signal_survey import SignalSurvey
from recovery.storage.training_state import TrainState
from recovery.training.alarms import WATCHED_METRICS, AlarmWatch
from recovery.training.config import TrainConfig, warmup_within
from recovery.training.token_loss import TokenLoss
from recovery.training.trainer import Batches, StopCheck, TrainReport, train

if TYPE_CHECKING:
    import torch

    from pipelines.runs.workspace import Workspace
    from recovery.models.adapters import LoraSpec
    from recovery.models.chat_model import ChatModel
    from recovery.storage.checkpoints import Checkpoint

SHOWN = ("loss", "reverse_kl", "tokens_per_second")


class LoggedState(TrainState):
    """Store metrics and cost before the state, so that a kill in between repeats some and loses none."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.state)
        self._stage = stage

    def save(self, step: int, tensors: dict[str, torch.Tensor], meta: dict[str, Any]) -> None:
        self._stage.live.flush()
        self._stage.ledger.save(at_once=True)
        super().save(step, tensors, meta)


def student(ws: Workspace, checkpoint: Checkpoint, settings: TrainingSettings, seed: int) -> ChatModel:
    """Load a checkpoint for training, with a fresh adapter if the settings want one and it has none."""
    import torch

    from recovery.models import adapters, loading, quantization
    from recovery.models.adapters import LoraSpec

    if settings.adapter:
        adapters.require_rank(checkpoint.path, settings.adapter.rank)
    recompute = ws.config.model.checkpoints_gradients(torch.cuda.is_available())
    found = ws.load(checkpoint, gradient_checkpointing=recompute)
    if settings.adapter:
        _adapt(ws, found, LoraSpec(**settings.adapter.model_dump(), seed=seed))
    quantization.require_trainable(found)
    if settings.freeze_embeddings:
        loading.freeze_embeddings(found)
    if ws.config.model.compile:
        loading.compile_layers(found)
    return found


def _adapt(ws: Workspace, found: ChatModel, spec: LoraSpec) -> None:
    """Add a fresh adapter, or say which settings the adapter that is there does not take."""
    from recovery.forward.hidden_states import is_adapter
    from recovery.models import adapters

    if not is_adapter(found.model):
        adapters.add_lora(found, spec)
    elif kept := adapters.kept_settings(found.model, spec):
        ws.progress.say(
            f"  lora         the student's adapter keeps its own {', '.join(kept)}: for another, merge it "
            "first (`recover merge --weight 0`)"
        )


@dataclass(frozen=True)
class Training:
    """A model, its batches, and the length of a training."""

    student: ChatModel
    batches: Batches
    method: Method
    settings: TrainingSettings
    steps: int
    seed: int
    checks: Sequence[StopCheck] = ()  # each may give a reason to stop


def run_training(stage: Stage, training: Training) -> TrainReport:
    """Train until the last step, an alarm, or the first of the checks that gives a reason to stop."""
    settings, steps, method = training.settings, training.steps, training.method
    optimizer = settings.optimizer.model_dump()
    # Of the steps that are taken in any case: the further ones of a recovery do not lengthen it.
    optimizer["warmup_steps"] = warmup_within(optimizer["warmup_steps"], settings.steps or steps)
    shard = stage.workspace.config.model.shard
    config = TrainConfig(
        steps=steps,
        seed=training.seed,
        save_every=settings.save_every,
        shard=shard,
        dropout=not method.weighs_by_sampler,
        **optimizer,
    )
    stage.say(f"  trains       {describe_trained(training.student.model)}")
    spending = Spending(stage, training.student, training.batches, settings)

    def on_metrics(step: int, values: dict[str, float]) -> None:
        spending.after(values)
        stage.live.metrics(step, values)
        stage.step(step, steps, eta_seconds=values.get("eta_seconds"), note=_note(values))

    database = stage.workspace.tracker.db
    watch = AlarmWatch(
        method,
        before=lambda step: [
            *curves.metrics_by_step(database, stage.id, WATCHED_METRICS, before=step).values()
        ],
        record=stage.directory / "alarms.json",
    )
    for name in watch.muted:
        stage.say(f"  alarm        {name} stopped an earlier attempt; it is off in this one")
    survey = SignalSurvey()
    return train(
        training.student,
        training.batches,
        TokenLoss(Objective(method, training.student.stop_ids), survey),
        config,
        state=LoggedState(stage),
        on_metrics=on_metrics,
        should_stop=any_of(watch, *training.checks),
    )


class Spending:
    """Record the cost of each step, so that interrupted attempts count too."""

    def __init__(
        self, stage: Stage, chat_model: ChatModel, batches: Batches, settings: TrainingSettings
    ) -> None:
        self.stage = stage
        self.batches = batches
        self.flops = Flops.of(chat_model.model)
        longest = settings.max_new_tokens if isinstance(settings, DistillConfig) else settings.row_tokens
        self.context = longest / 2  # half of the longest: a bound on the mean
        self.seen = dict.fromkeys(("tokens_sampled", "tokens_scored"), 0)

    def after(self, values: dict[str, float]) -> None:
        trained = round(values.get("tokens_per_second", 0.0) * values.get("step_seconds", 0.0))
        counts = {name: int(getattr(self.batches, name, 0)) for name in self.seen}
        new = {name: count - self.seen[name] for name, count in counts.items()}
        self.seen = counts
        flops = self.flops.trained(trained, self.context)
        flops += self.flops.forward(sum(new.values()), self.context)
        self.stage.spend(tokens_trained=trained, flops=flops, **new)


def any_of(*checks: StopCheck) -> StopCheck:
    """Combine checks: all run at every step, and the first reason counts."""

    def ask(step: int, metrics: dict[str, float]) -> str | None:
        reasons = [check(step, metrics) for check in checks]
        return next((reason for reason in reasons if reason), None)

    return ask


def _note(values: dict[str, Any]) -> str:
    return "  ".join(f"{name.replace('_', ' ')} {values[name]:.4g}" for name in SHOWN if name in values)
