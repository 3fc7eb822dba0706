"""Compare midtraining on packed rows with the HF Trainer on the same sequences."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import OURS, PLAIN, SPREAD, Contender, Machine, Ratio, Report, alternate, median, run
from benchmarks.speed import material
from benchmarks.speed.material import Material, token_batches
from benchmarks.speed.work import Work
from pipelines.config.sections.midtrain import MidtrainConfig
from recovery.methods.table import get
from recovery.models.chat_model import ChatModel
from recovery.models.device import Dtype
from recovery.objective.objective import Objective
from recovery.training.config import TrainConfig
from recovery.training.token_loss import TokenLoss
from recovery.training.trainer import train

BETAS = (0.9, 0.95)
PEER, TUNED = "HF Trainer", f"HF Trainer, {OURS}"
EQUAL = 0.01  # largest difference between two loss curves that follow the same steps in fp32
GOAL = 1.0  # times the tokens a second of the HF Trainer


@dataclass
class Seen:
    """What one training measured: tokens a second of its steps but the first, and each step's loss."""

    speeds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


def fill(report: Report, asked: argparse.Namespace) -> None:
    with material.checkpoint(asked.model) as directory:
        measure(report, asked, Material(directory))


def measure(report: Report, asked: argparse.Namespace, of: Material) -> None:
    steps, tokens = (12, 2048) if of.is_shipped else (4, 1024)
    if asked.quick:
        steps, tokens = 4, 128
    rounds = asked.rounds or (1 if asked.quick else 3)
    sides = list(SIDES) if of.is_shipped else ["recover", PEER]
    dtypes: tuple[Dtype, ...] = ("float32",) if of.is_shipped else ("float32", "bfloat16")
    machines = {dtype: Machine.measure(getattr(torch, dtype)) for dtype in dtypes}
    found: dict[Dtype, dict[str, list[Seen]]] = {dtype: {side: [] for side in sides} for dtype in dtypes}
    turns = {
        f"{side}, {dtype}": partial(turn, side, of, dtype, (steps, tokens), found[dtype][side])
        for dtype in dtypes
        for side in sides
    }
    alternate(turns, rounds, warm_up=0)
    chat, documents, settings = work(of, tokens)
    report.tables["The machine in this run"] = [machine.row() for machine in machines.values()]
    per_token = flops_per_token(chat, documents, settings)
    report.tables["Tokens a second"] = [
        row for dtype in dtypes for row in rows(found[dtype], dtype, machines[dtype].flops / per_token)
    ]
    exact = found["float32"]
    gap = largest_gap(exact["recover"][0].losses, exact[PEER][0].losses)
    report.target("largest difference between the losses of a step in fp32", gap, "at most", EQUAL)
    for dtype, seen in found.items():
        if not of.is_shipped:
            ratio = times(seen, "recover").median
            report.target(f"{dtype}: tokens/s against the {PEER}'s", ratio, "at least", GOAL)
    length = round(sum(map(len, documents)) / len(documents))
    rounded = "fp32" if of.is_shipped else "fp32 or bf16 (the Trainer's `bf16=True`, which rounds otherwise)"
    tuned = f"`{TUNED}` has this project's huge pages, matrix products, norms and rotations. "
    report.notes.append(
        f"{of.describe(chat)} on {len(documents)} documents of {length:,} tokens on average, about "
        f"{settings.tokens_per_step:,} tokens a step, {rounded}, "
        f"{settings.optimizer.learning_rate:g} constant, AdamW {BETAS}, clip 1. Both train on the same "
        f"sequences in every step: this project packs them into rows of {settings.row_tokens}, the Trainer "
        "pads a batch of them; only documents' own tokens count. "
        f"{tuned if of.is_shipped else ''}A round is a training in a process of its own; the median over "
        f"steps, without its first. `times` is the median over the {rounds} rounds, in brackets {SPREAD}."
    )


def rows(found: dict[str, list[Seen]], dtype: Dtype, limit: float) -> list[dict[str, Any]]:
    by_peer = limit / median([speed for seen in found[PEER] for speed in seen.speeds])
    return [
        {
            "": name,
            "dtype": dtype,
            "tokens/s": median([speed for seen in rounds for speed in seen.speeds]),
            f"times {PEER}": "1" if name == PEER else str(times(found, name)),
            "first loss": rounds[0].losses[0],
            "last loss": rounds[0].losses[-1],
        }
        for name, rounds in found.items()
    ] + [{"": "arithmetic limit", "dtype": dtype, "tokens/s": limit, f"times {PEER}": by_peer}]


def times(found: dict[str, list[Seen]], side: str) -> Ratio:
    """Return how many times as fast as the Trainer a side is."""
    speeds = {name: [median(seen.speeds) for seen in found[name]] for name in (side, PEER)}
    return Ratio.of(speeds[side], speeds[PEER])


def largest_gap(ours: list[float], theirs: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(ours, theirs, strict=True))


def flops_per_token(chat: ChatModel, documents: list[list[int]], settings: MidtrainConfig) -> float:
    """Return the arithmetic of a training step per token, in sequences of the typical length."""
    longest = settings.row_tokens
    lengths = [len(ids) for ids in documents]
    pieces = [min(n - start, longest) for n in lengths for start in range(0, n, longest)]
    whole = round(median(pieces))
    return 3 * Work.of(chat.model).forward([whole], whole) / whole


def turn(side: str, of: Material, dtype: Dtype, sizes: tuple[int, int], found: list[Seen]) -> None:
    """Run one training by one side, in a process with that side's environment."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as seen:
        SIDES[side].apart("midtrain", side, str(of.directory), dtype, *map(str, sizes), seen.name)
        found.append(Seen(**json.load(seen)))


def child(side: str, directory: str, dtype: str, steps: str, tokens: str, path: str) -> None:
    torch.set_flush_denormal(True)
    of, bf16 = Material(Path(directory)), dtype == "bfloat16"
    if side == "recover":
        seen = ours(*work(of, int(tokens), "bfloat16" if bf16 else "float32"), int(steps))
    else:
        seen = theirs(*work(of, int(tokens), attention="sdpa"), int(steps), bf16)
    Path(path).write_text(json.dumps(asdict(seen)), encoding="utf-8")


def work(
    of: Material, tokens: int, dtype: Dtype = "float32", attention: str = "auto"
) -> tuple[ChatModel, list[list[int]], MidtrainConfig]:
    """Return the model, the tokenized documents, and the settings for them."""
    chat = of.load(dtype, attention)
    return chat, of.documents(chat), of.midtraining(tokens)


def ours(student: ChatModel, documents: list[list[int]], settings: MidtrainConfig, steps: int) -> Seen:
    """Train by the loop of `recover midtrain`."""
    seen = Seen()
    last = [0.0]

    def on_metrics(step: int, values: dict[str, float]) -> None:
        now = time.perf_counter()
        seen.losses.append(values["loss"])
        if step > 1:
            seen.speeds.append(values["tokens"] / (now - last[0]))
        last[0] = now

    batches = token_batches(documents, settings, student)
    config = TrainConfig(steps, settings.optimizer.learning_rate, schedule="constant", betas=BETAS)
    train(student, batches, TokenLoss(Objective(get("sft"))), config, on_metrics=on_metrics)
    return seen


def steps_of(
    chat: ChatModel, documents: list[list[int]], settings: MidtrainConfig, steps: int
) -> list[list[list[int]]]:
    """Return the sequences of each step, as `ours` draws them."""
    batches = token_batches(documents, settings, chat, packs=False)
    return [
        [
            tokens_T[there_T].tolist()
            for microbatches in batches.updates(step)
            for one in microbatches
            for tokens_T, there_T in zip(one.rollouts.tokens_BT, one.rollouts.attention_BT, strict=True)
        ]
        for step in range(1, steps + 1)
    ]


def theirs(
    student: ChatModel, documents: list[list[int]], settings: MidtrainConfig, steps: int, bf16: bool = False
) -> Seen:
    """Train by the HF Trainer; a batch holds a step's sequences."""
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    batches = [
        padded(sequences, student.pad_id) for sequences in steps_of(student, documents, settings, steps)
    ]
    seen, last = Seen(), [0.0]

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, *rest: Any, **kwargs: Any) -> None:
            now = time.perf_counter()
            if state.global_step > 1:
                tokens = int((batches[state.global_step - 1]["labels"] >= 0).sum())
                seen.speeds.append(tokens / (now - last[0]))
            last[0] = now

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if "loss" in logs:
                seen.losses.append(float(logs["loss"]))

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=1,  # a step's sequences are padded to one batch already
            max_steps=steps,
            learning_rate=settings.optimizer.learning_rate,
            adam_beta2=BETAS[1],
            bf16=bf16,
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=False,
            train_sampling_strategy="sequential",
        )
        trainer = Trainer(
            model=student.model,
            args=arguments,
            train_dataset=batches,
            data_collator=lambda items: items[0],
            callbacks=[Clock()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return seen


def padded(sequences: list[list[int]], pad_id: int) -> dict[str, torch.Tensor]:
    """Return one batch; a sequence's first token is predicted from nothing, so that it has no label."""
    width = max(map(len, sequences))
    blanks = [width - len(ids) for ids in sequences]
    pairs = list(zip(sequences, blanks, strict=True))
    return {
        "input_ids": torch.tensor([ids + [pad_id] * blank for ids, blank in pairs]),
        "attention_mask": torch.tensor([[1] * len(ids) + [0] * blank for ids, blank in pairs]),
        "labels": torch.tensor([[-100, *ids[1:]] + [-100] * blank for ids, blank in pairs]),
    }


SIDES = {"recover": Contender(ours), PEER: Contender(theirs, PLAIN), TUNED: Contender(theirs)}


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(*sys.argv[2:])
        sys.exit()
    run(
        "midtraining",
        "How many tokens a second does midtraining read, against the HF Trainer?",
        fill,
        material.options,
    )
