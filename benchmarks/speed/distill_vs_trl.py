"""Compare on-policy distillation with TRL's DistillationTrainer on the same work."""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import (
    OURS,
    PLAIN,
    SPREAD,
    Contender,
    Machine,
    Ratio,
    Report,
    Row,
    alternate,
    installed,
    median,
    run,
    spread,
)
from benchmarks.speed import material
from benchmarks.speed.material import Material, size, token_batches
from benchmarks.speed.work import Work
from evals.dialogues import Messages
from pipelines.distillation.prompts import Prompt
from recovery.batches.rollouts import Rollouts
from recovery.forward.fast_path import fast_path
from recovery.methods.table import get
from recovery.models import loading
from recovery.models.chat_model import ChatModel
from recovery.objective.objective import Objective
from recovery.objective.token_signals import TokenSignals
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import SamplingParams
from recovery.teachers.teachers import CheckpointTeacher
from recovery.training.config import TrainConfig
from recovery.training.step_data import Episodes, StepConfig, Task, drawn
from recovery.training.trainer import TokenLoss, train
from recovery.training.updater import Microbatch

SEED, MICROBATCH = 0, 2048  # the preset's microbatch
RATE, REAL_RATE = 5e-4, 1e-4
NOISE, REAL_NOISE = 0.2, 0.02  # by which a start differs from its teacher, in standard deviations of a matrix
PEER, TUNED = "TRL", f"TRL, {OURS}"
GOAL, REAL_GOAL = 2.5, 1.5  # times the steps a second of TRL
OPD = get("opd")


@dataclass(frozen=True)
class Sizes:
    """How much is sampled and trained."""

    steps: int
    batch: int  # prompts of a step
    new_tokens: int
    held_out: int  # prompts to measure the divergence on
    rate: float = RATE


SHIPPED = Sizes(steps=8, batch=64, new_tokens=96, held_out=128)
WIDE = Sizes(steps=8, batch=64, new_tokens=24, held_out=128)
REAL = Sizes(steps=2, batch=16, new_tokens=64, held_out=16, rate=REAL_RATE)


@dataclass(frozen=True)
class Case:
    """One comparison: student, teacher and prompts."""

    name: str
    start: ChatModel
    teacher: ChatModel
    sizes: Sizes
    dialogues: list[Messages]
    goal: float = GOAL

    @property
    def prompts(self) -> list[Prompt]:
        return [Prompt(messages) for messages in self.dialogues[self.sizes.held_out :]]

    @property
    def held_out(self) -> list[Prompt]:
        return [Prompt(messages) for messages in self.dialogues[: self.sizes.held_out]]

    def save(self, folder: Path) -> None:
        """Save for other processes, so that the start is trained once."""
        for name, model in (("start", self.start), ("teacher", self.teacher)):
            loading.save(model, folder / name)
        rest = {"name": self.name, "sizes": asdict(self.sizes), "dialogues": self.dialogues}
        (folder / "case.json").write_text(json.dumps(rest), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, attention: str) -> Case:
        start, teacher = (Material(folder / name).load(attention=attention) for name in ("start", "teacher"))
        rest = json.loads((folder / "case.json").read_text(encoding="utf-8"))
        return cls(rest["name"], start, teacher, Sizes(**rest["sizes"]), rest["dialogues"])

    def order(self) -> list[int]:
        """Return the prompts of all steps in the order that both sides use."""
        rows, sizes = range(len(self.prompts)), self.sizes
        return [
            row
            for step in range(1, sizes.steps + 1)
            for row in drawn(rows, sizes.batch, step, f"prompts:{SEED}")
        ]


def fill(report: Report, asked: argparse.Namespace) -> None:
    with material.checkpoint(asked.model) as directory:
        measure(report, asked, Material(directory))


def measure(report: Report, asked: argparse.Namespace, of: Material) -> None:
    rounds = asked.rounds or (1 if asked.quick else 3)
    peer = installed("trl")
    sides = list(SIDES) if of.is_shipped else ["recover", PEER]
    made = ((shipped, SHIPPED), (wide, WIDE)) if of.is_shipped else ((real, REAL),)
    cases = [make(of, changed(full, asked)) for make, full in made]
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            race(case, Path(folder), sides if peer else ["recover"], rounds, report)
    kernels = "one after the other by its compiled kernels"
    how = "without padding"
    if of.is_shipped:
        how = kernels if fast_path().status()[0] else "of like length together, as there is no compiler here"
    tuned = f"`{TUNED}` has this project's huge pages, matrix products, norms and rotations. "
    sizes = cases[0].sizes
    longest = " or ".join(str(case.sizes.new_tokens) for case in cases)
    report.notes.append(
        f"TRL {peer}: `trl.DistillationTrainer`, beta 1, no gradient checkpointing, fp32. Same start, "
        f"prompts in the same order, {sizes.batch} a step and update, {sizes.rate:g} constant, AdamW (0.9, "
        f"0.95), clip 1, temperature 1; denormals are flushed for both. Answers have at most "
        f"{longest} tokens. This project reads them {how}, {MICROBATCH:,} tokens at a time; TRL "
        f"pads a step's answers into one batch. {tuned if of.is_shipped else ''}A round is a whole "
        "training in a process of its own; its first step is left out. `times TRL` is the median over the "
        f"{rounds} rounds, in brackets {SPREAD}. `KL after` is the exact reverse KL of the last round's "
        f"student on its own answers to {sizes.held_out} other prompts. The limit is the step's matrix "
        "products at the speed of a large one by the faster library, the median of all rounds: small "
        "products are slower. It counts "
        "every token in every layer and the teacher's head as scoring; this project leaves out what the last "
        "layer makes of tokens that predict nothing, and reads the head in training."
    )


def changed(sizes: Sizes, asked: argparse.Namespace) -> Sizes:
    """Return the sizes with what the options set; small ones for --quick."""
    if asked.quick:
        sizes = replace(sizes, steps=2, batch=min(4, sizes.batch), held_out=4, new_tokens=8)
    given = {name: getattr(asked, name) for name in ("steps", "batch", "new_tokens")}
    return replace(sizes, **{name: value for name, value in given.items() if value})


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
            "times TRL": str(times(seen, name)) if PEER in seen and name != PEER else "",
            "s a step": seconds[name],
            "middle half": spread(seen[name].seconds),
            "tokens/step": round(seen[name].tokens / len(seen[name].seconds)),
            "KL before": before,
            "KL after": divergence(case, Material(folder / name).load()),
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
    ratio = times(seen, "recover").median if PEER in seen else None
    report.target(f"{case.name}: steps/s against TRL's", ratio, "at least", case.goal)
    against = seconds["recover"] / total
    report.target(f"{case.name}: step time against its arithmetic", against, "at most", 2.0)


def times(seen: dict[str, Seen], side: str) -> Ratio:
    """Return how many times as fast as TRL a side is."""
    return Ratio.of(seen[side].rounds, seen[PEER].rounds)


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
    arm = SIDES[name].work(Case.load(folder, "auto" if name == "recover" else "sdpa"))
    loading.save(arm.run(), folder / name)
    (folder / "seen.json").write_text(json.dumps(asdict(arm.seen)), encoding="utf-8")


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
        from transformers import TrainerCallback
        from trl import DistillationConfig, DistillationTrainer

        case, sizes = self.case, self.case.sizes
        student = case.start
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
                per_device_train_batch_size=sizes.batch,
                gradient_accumulation_steps=1,
                max_steps=sizes.steps,
                learning_rate=sizes.rate,
                lr_scheduler_type="constant",
                adam_beta2=0.95,
                max_grad_norm=1.0,
                weight_decay=0.0,
                beta=1.0,
                temperature=1.0,
                top_k=0,
                max_completion_length=sizes.new_tokens,
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
    PEER: Contender(Trl, PLAIN),
    TUNED: Contender(Trl),
}


def divergence(case: Case, student: ChatModel) -> float:
    """Return exact KL(student || teacher) per token, on the student's answers to held-out prompts."""
    prompts = [student.prompt_ids(prompt.messages) for prompt in case.held_out]
    rollouts = InProcessSampler(student).sample(prompts, SamplingParams(case.sizes.new_tokens, seed=1))
    teacher = CheckpointTeacher(case.teacher)
    loss = TokenLoss(Objective(OPD, student.stop_ids))
    total = tokens = 0.0
    with torch.no_grad():
        for part in rollouts.split(4096):
            found = loss(student.model, Microbatch(part, TokenSignals(teacher.score(part))))
            total, tokens = total + float(found.value), tokens + found.tokens
    return total / tokens


def shipped(of: Material, sizes: Sizes) -> Case:
    """Distill the shipped model from itself after brief training on documents, as the demo does."""
    teacher, start = of.load(), of.load()
    batches = token_batches(of.documents(start), of.midtraining(MICROBATCH), start)
    train(start, batches, TokenLoss(Objective(get("sft"))), TrainConfig(40, 1e-3, warmup_steps=5, seed=SEED))
    return Case(f"Shipped model ({size(start)})", start, teacher, sizes, dialogues(of, sizes))


def wide(of: Material, sizes: Sizes) -> Case:
    """Use a random model of the same shape with a vocabulary of 32,768, which rarely ends an answer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    narrow = of.load()
    config = Qwen3Config(**{**narrow.model.config.to_dict(), "vocab_size": 32768, "initializer_range": 0.1})
    torch.manual_seed(SEED)
    model = Qwen3ForCausalLM(config).eval()
    model.generation_config = narrow.model.generation_config
    teacher = ChatModel.of(model, narrow.tokenizer)
    start = copy.copy(teacher)
    start.model = copy.deepcopy(model)
    disturb(start, NOISE)
    return Case(f"Vocabulary of 32,768 ({size(start)})", start, teacher, sizes, dialogues(of, sizes))


def real(of: Material, sizes: Sizes) -> Case:
    """Distill a model from itself after slight noise on its weights."""
    teacher, start = of.load(), of.load()
    torch.manual_seed(SEED)
    disturb(start, REAL_NOISE)
    return Case(of.describe(start), start, teacher, sizes, dialogues(of, sizes), REAL_GOAL)


def dialogues(of: Material, sizes: Sizes) -> list[Messages]:
    """Return the held-out prompts, then those of the steps."""
    return [prompt.messages for prompt in of.prompts(sizes.held_out + sizes.steps * sizes.batch)]


@torch.no_grad()
def disturb(chat: ChatModel, noise: float) -> None:
    """Add noise to each matrix, in units of its standard deviation."""
    for weight in chat.model.parameters():
        if weight.ndim > 1:
            weight += noise * weight.std() * torch.randn_like(weight)


def options(parser: argparse.ArgumentParser) -> None:
    material.options(parser)
    parser.add_argument("--steps", type=int, help="of a training")
    parser.add_argument("--batch", type=int, help="prompts a step")
    parser.add_argument("--new-tokens", type=int, help="of the longest answer")


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
