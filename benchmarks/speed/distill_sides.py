"""Run the work of the distillation benchmark by this project's loop or by TRL's trainer; time its steps."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.common import OURS, PLAIN, Contender, median
from benchmarks.speed.distill_cases import MICROBATCH, SEED, Case
from recovery.batches.rollouts import Rollouts
from recovery.methods.table import get
from recovery.models.chat_model import ChatModel
from recovery.objective.objective import Objective
from recovery.sampling.in_process import InProcessSampler
from recovery.teachers.teachers import CheckpointTeacher
from recovery.training.config import TrainConfig
from recovery.training.step_data import Episodes, StepConfig, Task
from recovery.training.token_loss import TokenLoss
from recovery.training.trainer import train

PEER, TUNED = "TRL", f"TRL, {OURS}"
OPD = get("opd")


@dataclass
class Seen:
    """Measurements of one side's steps, over all rounds."""

    seconds: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)  # steps a second
    tokens: int = 0
    lengths: list[tuple[list[int], list[int]]] = field(default_factory=list)  # lengths of prompts and answers
    parts: dict[str, list[float]] = field(default_factory=dict)

    def add(self, other: Seen) -> None:
        """Add a round."""
        self.seconds += other.seconds
        self.rounds.append(1 / median(other.seconds))
        self.tokens += other.tokens
        self.lengths += other.lengths
        for part, seconds in other.parts.items():
            self.parts.setdefault(part, []).extend(seconds)


class Ours:
    """The training loop of `recover distill`."""

    def __init__(self, case: Case) -> None:
        self.case, self.seen = case, Seen(parts={"sampling": [], "scoring": [], "training": []})

    def run(self) -> ChatModel:
        case, sizes = self.case, self.case.sizes
        student = case.start
        step = StepConfig(sizes.batch, 1, sizes.new_tokens, microbatch_tokens=MICROBATCH, seed=SEED)
        episodes = Episodes(
            student,
            InProcessSampler(student),
            Task(OPD, case.prompts, teacher=CheckpointTeacher(case.teacher)),
            step,
        )
        watch = self._watch(episodes)
        config = TrainConfig(sizes.steps, sizes.rate, schedule="constant", seed=SEED)
        last = [time.perf_counter()]

        def on_metrics(step: int, values: dict[str, float]) -> None:
            now = time.perf_counter()
            if step > 1:
                self.seen.seconds.append(now - last[0])
                self.seen.tokens += round(values["tokens"])
                self.seen.parts["training"].append(values["step_seconds"] - values["batch_seconds"])
                for part, seconds in watch.items():
                    self.seen.parts[part].append(seconds)
            last[0] = now

        train(student, episodes, TokenLoss(Objective(OPD, student.stop_ids)), config, on_metrics=on_metrics)
        return student

    def _watch(self, episodes: Episodes) -> dict[str, float]:
        """Measure the sampling and scoring time of the last step."""
        seen: dict[str, float] = {}

        def timed(name: str, work: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def call(given: Any) -> Any:
                begun = time.perf_counter()
                made = work(given)
                seen[name] = time.perf_counter() - begun
                if isinstance(made, Rollouts):
                    prompts = made.prompt_lengths_B
                    self.seen.lengths.append((prompts.tolist(), (made.lengths_B - prompts).tolist()))
                return made

            return call

        episodes.produce = timed("sampling", episodes.produce)  # type: ignore[method-assign, assignment]
        episodes.score = timed("scoring", episodes.score)  # type: ignore[method-assign, assignment]
        return seen


class Trl:
    """TRL's trainer on the same prompts in the same order."""

    def __init__(self, case: Case) -> None:
        self.case, self.seen = case, Seen()

    def run(self) -> ChatModel:
        from datasets import Dataset
        from trl import DistillationTrainer

        case = self.case
        student = case.start
        rows = [{"prompt": case.prompts[row].messages} for row in case.order()]
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = DistillationTrainer(
                model=student.model,
                teacher_model=case.teacher.model,
                args=self._config(folder),
                train_dataset=Dataset.from_list(rows),
                processing_class=student.tokenizer,
                callbacks=[self._clock()],
            )
            self._count_tokens(trainer)
            trainer.train()
        return student

    def _config(self, folder: str) -> Any:
        """Return TRL's settings for the same work: neither files nor logs."""
        from trl import DistillationConfig

        return DistillationConfig(
            output_dir=folder,
            per_device_train_batch_size=self.case.sizes.batch,
            gradient_accumulation_steps=1,
            max_steps=self.case.sizes.steps,
            learning_rate=self.case.sizes.rate,
            lr_scheduler_type="constant",
            adam_beta2=0.95,
            max_grad_norm=1.0,
            weight_decay=0.0,
            beta=1.0,
            temperature=1.0,
            top_k=0,
            max_completion_length=self.case.sizes.new_tokens,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=not torch.cuda.is_available(),
            shuffle_dataset=False,
            report_to=[],
            save_strategy="no",
            seed=SEED,
            logging_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )

    def _clock(self) -> Any:
        """Return a callback that times every step but the first."""
        from transformers import TrainerCallback

        seconds = self.seen.seconds

        class Clock(TrainerCallback):
            last = 0.0

            def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
                self.last = time.perf_counter()

            def on_step_end(self, args: Any, state: Any, *rest: Any, **kwargs: Any) -> None:
                now = time.perf_counter()
                if state.global_step > 1:
                    seconds.append(now - self.last)
                self.last = now

        return Clock()

    def _count_tokens(self, trainer: Any) -> None:
        """Count the sampled tokens of every step but the first."""
        generate = trainer._generate_and_score_completions

        def counted(inputs: Any) -> Any:
            made = generate(inputs)
            if trainer.state.global_step:
                self.seen.tokens += int(made["completion_mask"].sum())
            return made

        trainer._generate_and_score_completions = counted


SIDES = {
    "recover": Contender(Ours),
    PEER: Contender(Trl, PLAIN),
    TUNED: Contender(Trl),
}
