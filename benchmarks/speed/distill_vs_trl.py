"""Compare on-policy distillation with TRL's DistillationTrainer on the same work."""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import (
    OURS,
    PLAIN,
    Contender,
    Machine,
    Report,
    Row,
    alternate,
    installed,
    median,
    run,
    spread,
)
from benchmarks.speed.work import Work
from pipelines.distillation.prompts import Prompt, read_prompts
from pipelines.microworld import people
from recovery.batches.rollouts import Rollouts
from recovery.forward.fast_path import fast_path
from recovery.methods.table import get
from recovery.models import loading
from recovery.models.chat_model import ChatModel
from recovery.models.loading import ModelSpec
from recovery.objective.objective import Objective
from recovery.objective.token_signals import TokenSignals
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import SamplingParams
from recovery.teachers.teachers import CheckpointTeacher
from recovery.training.config import TrainConfig
from recovery.training.step_data import Episodes, StepConfig, Task, drawn
from recovery.training.trainer import TokenLoss, train
from recovery.training.updater import Microbatch

RATE, SEED, HELD_OUT, MICROBATCH = 5e-4, 0, 128, 2048  # the preset's microbatch
SHORT, WIDE = 96, 24  # longest answer in tokens
TUNED = f"TRL, {OURS}"
OPD = get("opd")


@dataclass(frozen=True)
class Case:
    """One comparison: student, teacher and prompts."""

    name: str
    start: ChatModel
    teacher: ChatModel
    steps: int
    batch: int
    new_tokens: int

    @cached_property
    def prompts(self) -> list[Prompt]:
        return read_prompts("microworld", SEED)[HELD_OUT:]

    @cached_property
    def held_out(self) -> list[Prompt]:
        return read_prompts("microworld", SEED)[:HELD_OUT]

    def save(self, folder: Path) -> None:
        """Save for other processes, so that the start is trained once."""
        for name, model in (("start", self.start), ("teacher", self.teacher)):
            loading.save(model, folder / name)
        sizes = {"name": self.name, "steps": self.steps, "batch": self.batch, "new_tokens": self.new_tokens}
        (folder / "case.json").write_text(json.dumps(sizes), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Case:
        start, teacher = (loading.load(ModelSpec(str(folder / name))) for name in ("start", "teacher"))
        sizes = json.loads((folder / "case.json").read_text(encoding="utf-8"))
        return cls(start=start, teacher=teacher, **sizes)

    def order(self) -> list[int]:
        """Return the prompts of all steps in the order that both sides use."""
        rows = range(len(self.prompts))
        return [
            row
            for step in range(1, self.steps + 1)
            for row in drawn(rows, self.batch, step, f"prompts:{SEED}")
        ]


def fill(report: Report, asked: argparse.Namespace) -> None:
    rounds, steps = (1, 3) if asked.quick else (asked.rounds, asked.steps)
    peer = installed("trl")
    for make in (shipped, wide):
        case = make(steps, asked.batch)
        with tempfile.TemporaryDirectory() as folder:
            race(case, Path(folder), list(SIDES) if peer else ["recover"], rounds, report)
    kernels = "one after the other by its compiled kernels"
    how = kernels if fast_path().status()[0] else "of like length together, as there is no compiler here"
    report.notes.append(
        f"TRL {peer}: `trl.DistillationTrainer`, beta 1, no gradient checkpointing, fp32. Same start, "
        f"prompts in the same order, {asked.batch} a step and update, {RATE:g} constant, AdamW (0.9, "
        f"0.95), clip 1, temperature 1; denormals are flushed for both. This project reads answers {how}, "
        f"{MICROBATCH:,} tokens at a time; TRL pads a step's answers into one batch. "
        f"`{TUNED}` has this project's huge pages, matrix products, norms and rotations. A round is a "
        "whole training in a process of its own; its first step is left out. `KL after` is the exact reverse "
        f"KL of the last round's student on its own answers to {HELD_OUT} other prompts. The limit is the "
        "step's matrix products at the speed of a large one by the faster library, the median of all rounds: "
        "small products are slower. It counts every token in every layer and the teacher's head as scoring; "
        "this project leaves out what the last layer makes of tokens that predict nothing, and reads the "
        "head in training."
    )


@dataclass
class Seen:
    """Measurements of one side's steps, over all rounds."""

    seconds: list[float] = field(default_factory=list)
    tokens: int = 0
    lengths: list[tuple[list[int], list[int]]] = field(default_factory=list)  # lengths of prompts and answers
    parts: dict[str, list[float]] = field(default_factory=dict)

    def add(self, other: Seen) -> None:
        self.seconds += other.seconds
        self.tokens += other.tokens
        self.lengths += other.lengths
        for part, seconds in other.parts.items():
            self.parts.setdefault(part, []).extend(seconds)


def race(case: Case, folder: Path, names: list[str], rounds: int, report: Report) -> None:
    """Report a step's breakdown, steps/s relative to TRL, and step time relative to the machine's limit."""
    case.save(folder)
    seen = {name: Seen() for name in names}
    machines: list[Machine] = []  # measured every round: shared machines vary in speed
    turns: dict[str, Callable[[], None]] = {name: partial(turn, name, folder, seen[name]) for name in names}
    alternate({**turns, "machine": lambda: machines.append(Machine.measure())}, rounds, warm_up=0)
    machine = sorted(machines, key=lambda one: one.flops)[len(machines) // 2]
    ours = seen["recover"]
    before = divergence(case, case.start)
    seconds = {name: median(seen[name].seconds) for name in names}
    limits = {part: flops / machine.flops for part, flops in arithmetic(case, ours).items()}
    total = sum(limits.values())
    rows: list[Row] = [
        {
            "": name,
            "steps/s": 1 / seconds[name],
            "s a step": seconds[name],
            "middle half": spread(seen[name].seconds),
            "tokens/step": round(seen[name].tokens / len(seen[name].seconds)),
            "KL before": before,
            "KL after": divergence(case, loading.load(ModelSpec(str(folder / name)))),
        }
        for name in names
    ]
    parts = {part: median(values) for part, values in ours.parts.items()}
    report.tables[f"{case.name}: the machine meanwhile"] = [machine.row()]
    rows += [
        {"": name, "steps/s": 1 / least, "s a step": least}
        for name, least in (
            ("arithmetic limit", total),
            ("the same by PyTorch's own library", total * machine.flops / machine.plain),
        )
    ]
    report.tables[case.name] = rows
    report.tables[f"{case.name}: where our step goes"] = [
        {"part": part, "s": parts[part], "limit s": limits[part], "times": parts[part] / limits[part]}
        for part in limits
    ]
    ratio = seconds["TRL"] / seconds["recover"] if "TRL" in seconds else None
    report.target(f"{case.name}: steps/s against TRL's", ratio, "at least", 2.5)
    against = seconds["recover"] / total
    report.target(f"{case.name}: step time against its arithmetic", against, "at most", 2.0)


def arithmetic(case: Case, seen: Seen) -> dict[str, float]:
    """Return the FLOPs of a typical step."""
    work = Work.of(case.start.model)
    steps = [work.distillation(prompts, answers) for prompts, answers in seen.lengths]
    return {part: median([step[part] for step in steps]) for part in steps[0]}


def turn(name: str, folder: Path, seen: Seen) -> None:
    """Run one training by one side, in a process with that side's environment."""
    SIDES[name].apart("distill_vs_trl", name, str(folder))
    seen.add(Seen(**json.loads((folder / "seen.json").read_text(encoding="utf-8"))))


def child(name: str, folder: Path) -> None:
    torch.set_flush_denormal(True)
    arm = SIDES[name].work(Case.load(folder))
    loading.save(arm.run(), folder / name)
    (folder / "seen.json").write_text(json.dumps(asdict(arm.seen)), encoding="utf-8")


class Ours:
    """The training loop of `recover distill`."""

    def __init__(self, case: Case) -> None:
        self.case, self.seen = case, Seen(parts={"sampling": [], "scoring": [], "training": []})

    def run(self) -> ChatModel:
        case = self.case
        student = self.case.start
        sizes = StepConfig(case.batch, 1, case.new_tokens, microbatch_tokens=MICROBATCH, seed=SEED)
        episodes = Episodes(
            student,
            InProcessSampler(student),
            Task(OPD, case.prompts, teacher=CheckpointTeacher(case.teacher)),
            sizes,
        )
        watch = self._watch(episodes)
        config = TrainConfig(case.steps, RATE, schedule="constant", seed=SEED)
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
        from transformers import TrainerCallback
        from trl import DistillationConfig, DistillationTrainer

        case = self.case
        student = self.case.start
        arm = self
        last = [0.0]

        class Clock(TrainerCallback):
            def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
                last[0] = time.perf_counter()

            def on_step_end(self, args: Any, state: Any, *rest: Any, **kwargs: Any) -> None:
                now = time.perf_counter()
                if state.global_step > 1:
                    arm.seen.seconds.append(now - last[0])
                last[0] = now

        rows = [{"prompt": case.prompts[row].messages} for row in case.order()]
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = DistillationConfig(
                output_dir=folder,
                per_device_train_batch_size=case.batch,
                gradient_accumulation_steps=1,
                max_steps=case.steps,
                learning_rate=RATE,
                lr_scheduler_type="constant",
                adam_beta2=0.95,
                max_grad_norm=1.0,
                weight_decay=0.0,
                beta=1.0,
                temperature=1.0,
                top_k=0,
                max_completion_length=case.new_tokens,
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
            trainer = DistillationTrainer(
                model=student.model,
                teacher_model=case.teacher.model,
                args=config,
                train_dataset=Dataset.from_list(rows),
                processing_class=student.tokenizer,
                callbacks=[Clock()],
            )
            generate = trainer._generate_and_score_completions

            def counted(inputs: Any) -> Any:
                made = generate(inputs)
                if trainer.state.global_step:
                    arm.seen.tokens += int(made["completion_mask"].sum())
                return made

            trainer._generate_and_score_completions = counted
            trainer.train()
        return student


SIDES = {
    "recover": Contender(Ours),
    "TRL": Contender(Trl, PLAIN),
    TUNED: Contender(Trl),
}


def divergence(case: Case, student: ChatModel) -> float:
    """Return exact KL(student || teacher) per token, on the student's answers to held-out prompts."""
    prompts = [student.prompt_ids(prompt.messages) for prompt in case.held_out]
    rollouts = InProcessSampler(student).sample(prompts, SamplingParams(case.new_tokens, seed=1))
    teacher = CheckpointTeacher(case.teacher)
    loss = TokenLoss(Objective(OPD, student.stop_ids))
    total = tokens = 0.0
    with torch.no_grad():
        for part in rollouts.split(4096):
            found = loss(student.model, Microbatch(part, TokenSignals(teacher.score(part))))
            total, tokens = total + float(found.value), tokens + found.tokens
    return total / tokens


def shipped(steps: int, batch: int) -> Case:
    """Distill the shipped model from itself after brief training on documents, as the demo does."""
    from pipelines.config.sections.midtrain import MidtrainConfig
    from pipelines.config.settings import parse, preset_text
    from pipelines.corpus.mixed_tokens import MixedTokens

    path = str(resources.files("pipelines") / "microworld" / "checkpoint")
    teacher, start = (loading.load(ModelSpec(path)) for _ in range(2))
    settings: MidtrainConfig = parse(preset_text("microworld"), "preset").midtrain
    texts = [text for _, text in people.documents(people.new_people(SEED, 1), random.Random(SEED))]
    documents = [
        ([*start.text_ids(text), start.document_end], [True] * (len(start.text_ids(text)) + 1))
        for text in texts
    ]
    batches = MixedTokens({"new": documents}, settings, start.pad_id, SEED)
    train(start, batches, TokenLoss(Objective(get("sft"))), TrainConfig(40, 1e-3, warmup_steps=5, seed=SEED))
    return Case(f"Shipped model ({_size(start)})", start, teacher, steps, batch, SHORT)


def wide(steps: int, batch: int) -> Case:
    """Use a random model of the same shape with a vocabulary of 32,768, which rarely ends an answer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shipped = loading.load(ModelSpec(str(resources.files("pipelines") / "microworld" / "checkpoint")))
    config = Qwen3Config(**{**shipped.model.config.to_dict(), "vocab_size": 32768, "initializer_range": 0.1})
    torch.manual_seed(SEED)
    model = Qwen3ForCausalLM(config).eval()
    model.generation_config = shipped.model.generation_config
    teacher = ChatModel.of(model, shipped.tokenizer)
    start = copy.copy(teacher)
    start.model = copy.deepcopy(model)
    with torch.no_grad():
        for weight in start.model.parameters():
            weight += 0.2 * weight.std() * torch.randn_like(weight) if weight.ndim > 1 else 0.0
    return Case(f"Vocabulary of 32,768 ({_size(start)})", start, teacher, steps, batch, WIDE)


def _size(chat_model: ChatModel) -> str:
    weights = sum(p.numel() for p in chat_model.model.parameters())
    return f"{weights / 1e6:.1f} M parameters, V {chat_model.model.config.vocab_size:,}"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="trainings of each side")
    parser.add_argument("--steps", type=int, default=8, help="of a training")
    parser.add_argument("--batch", type=int, default=64, help="prompts a step")


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(sys.argv[2], Path(sys.argv[3]))
        sys.exit()
    run(
        "distillation",
        "How many steps a second of on-policy distillation, against TRL's trainer?",
        fill,
        options,
    )
