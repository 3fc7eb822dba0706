"""Forecast what midtraining costs in behaviour, from the forward KL to the clean model on the documents.

KL(clean || student) on the new task's inputs predicts forgetting (RL's Razor: R2 0.96 on a toy, 0.71 on a
language model). How much a nat costs differs from model to model, so the slope comes from earlier cycles of
this home. A loss is predicted only where these show that there is one; else the KL alone is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from scipy import special

from db.reads import curves, queries
from evals.ifeval import IFEVAL
from pipelines.distillation.teachers import FrozenTeachers, lent_clean
from recovery.batches.rollouts import Rollouts
from recovery.distributed import gathered
from recovery.forward.eval_mode import evaluating
from recovery.forward.hidden_states import logits_of, predicting_states
from recovery.objective.divergences import exact_forward_kl

if TYPE_CHECKING:
    from db.session import Database
    from pipelines.corpus.token_file import Tokens
    from pipelines.runs.stage_runner import Stage
    from recovery.models.chat_model import ChatModel

METRIC, EXPECTED = "clean_forward_kl", "expected_behaviour_loss"
ROWS, ROW_TOKENS = 8, 64
LATEST = 25  # cycles that the law is fitted to
SPOKEN = 4  # lines of the log in a training
FEWEST_CYCLES = 2  # from which on their slope has an interval
SAME_KL = 0.01  # relative difference of KLs that are one place: they show nothing of a slope
CONFIDENCE = 0.95


@dataclass(frozen=True)
class LossPerKL:
    """Loss of IFEval = slope * KL, through the origin, fitted to (KL, loss) of earlier cycles."""

    points: tuple[tuple[float, float], ...] = ()

    @cached_property
    def slopes(self) -> tuple[float, float, float] | None:
        """The slope and its 95 % interval, by Student's t; None for too few cycles, or all at one KL."""
        distances = [kl for kl, _ in self.points]
        if len(distances) < FEWEST_CYCLES or math.isclose(min(distances), max(distances), rel_tol=SAME_KL):
            return None
        squares = sum(kl * kl for kl in distances)
        slope = sum(kl * loss for kl, loss in self.points) / squares
        freedom = len(self.points) - 1
        variance = sum((loss - slope * kl) ** 2 for kl, loss in self.points) / freedom
        half = float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(variance / squares)
        return slope, slope - half, slope + half

    def expected(self, kl: float) -> tuple[float, float, float] | None:
        """Return the expected loss and its interval; None unless the cycles show that there is a loss."""
        if self.slopes is None or self.slopes[1] <= 0:
            return None
        value, low, high = (min(1.0, slope * kl) for slope in self.slopes)
        return value, low, high

    def words(self, kl: float) -> str:
        count = len(self.points)
        if self.slopes is None:
            return "the more of it, the more is forgotten; how much, a few cycles will tell"
        found = self.expected(kl)
        if found is None:
            return f"{count} earlier cycles do not show how much of IFEval it costs"
        value, low, high = found
        return f"expected loss of IFEval {value:.2f} [{low:.2f}, {high:.2f}], as in {count} earlier cycles"


def learned_law(database: Database) -> LossPerKL:
    """Fit the law to the latest cycles of this home, in a number of queries that does not grow with them.

    Cycles that recovered the same midtrained model in several ways are one point, of the newest of them."""
    lost, models = {}, {}
    for cycle in queries.cycles(database, limit=LATEST):
        ifeval = cycle["scores"].get(IFEVAL, {})
        clean, midtrained = ifeval.get("clean"), ifeval.get("midtrained")
        if clean is not None and midtrained is not None:
            lost[cycle["run"]] = clean - midtrained
            models[cycle["run"]] = cycle["checkpoints"]["midtrained"]
    runs = queries.runs(database, kind="midtrain", parents=list(lost), status="done", limit=2 * LATEST)
    distances = curves.last_values(database, [run["id"] for run in runs], METRIC)
    points = {}
    for run in reversed(runs):
        cycle, kl = run["parent_id"], distances.get(run["id"])
        if kl is not None:
            points[models[cycle]] = (kl, lost[cycle])
    return LossPerKL(tuple(points.values()))


@dataclass
class Forecast:
    """Measure the KL on a few fixed rows every `every` steps; called as `should_stop`, it never stops."""

    student: ChatModel
    rows: Rollouts
    clean_NV: torch.Tensor
    law: LossPerKL
    every: int
    steps: int
    report: Callable[[int, Mapping[str, float]], None]
    say: Callable[[str], None]

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        if step % self.every and step != self.steps:
            return
        kl = float(exact_forward_kl(log_probs(self.student, self.rows), self.clean_NV).mean())
        expected = self.law.expected(kl)
        self.report(step, {METRIC: kl} | ({EXPECTED: expected[0]} if expected else {}))
        spoken = max(self.every, -(-self.steps // SPOKEN // self.every) * self.every)
        if step % spoken == 0 or step == self.steps:
            distance = f"forward KL to the clean model {kl:.3f} nats a token"
            self.say(f"  forecast     step {step}: {distance}; {self.law.words(kl)}")


def fixed_rows(documents: Tokens, pad_id: int) -> Rollouts:
    """Return a few pieces of documents, spread over the corpus."""
    starts, ends = documents.cuts(ROW_TOKENS)
    long_enough = [(int(a), int(b)) for a, b in zip(*_spread(starts, ends), strict=True) if b - a > 1]
    return Rollouts.from_dialogues([documents.part(a, b) for a, b in long_enough], pad_id)


def _spread(starts: Any, ends: Any) -> tuple[Any, Any]:
    step = max(1, len(starts) // ROWS)
    return starts[::step][:ROWS], ends[::step][:ROWS]


@torch.no_grad()
def log_probs(chat_model: ChatModel, rows: Rollouts) -> torch.Tensor:
    """Return the log-probabilities at every token of the rows, (N, V) in float32, on the CPU."""
    rows = rows.to(chat_model.device)
    with gathered(chat_model.model), evaluating(chat_model.model):
        states_ND = predicting_states(chat_model.model, rows)
        return logits_of(chat_model.model, states_ND).log_softmax(-1, dtype=torch.float32).cpu()


def clean_log_probs(frozen: FrozenTeachers, rows: Rollouts) -> torch.Tensor:
    """Return the clean model's."""
    with lent_clean(frozen) as clean:
        return log_probs(clean, rows)


def forecast(
    stage: Stage, frozen: FrozenTeachers, documents: Tokens, *, every: int, steps: int
) -> list[Forecast]:
    """Return the forecast of a midtraining about to begin; none where it is turned off."""
    if not every or documents.total < 2:
        return []
    student = frozen.student
    rows = fixed_rows(documents, student.pad_id)
    law = learned_law(stage.workspace.tracker.db)
    clean_NV = clean_log_probs(frozen, rows)
    return [Forecast(student, rows, clean_NV, law, every, steps, stage.live.metrics, stage.say)]
