"""Compare midtraining on packed rows with the HF Trainer on the same documents."""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import tempfile
import time
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import OURS, PLAIN, Contender, Machine, Report, alternate, median, run
from benchmarks.speed.work import Work
from pipelines.config.sections.midtrain import MidtrainConfig
from pipelines.config.settings import parse, preset_text
from pipelines.corpus.mixed_tokens import MixedTokens
from pipelines.microworld import people
from recovery.methods.table import get
from recovery.models import loading
from recovery.models.chat_model import ChatModel
from recovery.models.loading import ModelSpec
from recovery.objective.objective import Objective
from recovery.training.config import TrainConfig
from recovery.training.trainer import TokenLoss, train

RATE = 5e-4


def fill(report: Report, asked: argparse.Namespace) -> None:
    steps, rounds = (4, 1) if asked.quick else (12, 3)
    machine, speeds = Machine.measure(), {side: [] for side in SIDES}  # type: ignore[var-annotated]
    alternate({side: partial(turn, side, steps, speeds[side]) for side in SIDES}, rounds, warm_up=0)
    chat, documents, settings = work()
    arithmetic = Work.of(chat.model)
    length = round(sum(map(len, documents)) / len(documents))
    limit = machine.flops * length / (arithmetic.forward([length], length) * 3)
    found = {name: median(values) for name, values in speeds.items()}
    report.tables["The machine in this run"] = [machine.row()]
    report.tables["Tokens a second"] = [
        {"": name, "tokens/s": speed, "times HF Trainer": speed / found["HF Trainer"]}
        for name, speed in found.items()
    ] + [{"": "arithmetic limit", "tokens/s": limit, "times HF Trainer": limit / found["HF Trainer"]}]
    report.notes.append(
        f"The shipped model on the microworld's documents of {length} tokens on average, about "
        f"{settings.tokens_per_step:,} tokens a step, fp32, AdamW, clip 1. This project packs documents "
        f"into rows of {settings.row_tokens}, the Trainer pads a batch of them; only documents' own "
        f"tokens count. `HF Trainer, {OURS}` has this project's huge pages, matrix products, norms and "
        "rotations. A round is a training in a process of its own; the median over steps, without its first."
    )


def turn(side: str, steps: int, found: list[float]) -> None:
    """Run one training by one side, in a process with that side's environment."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as seen:
        SIDES[side].apart("midtrain", side, str(steps), seen.name)
        found += json.load(seen)


def child(side: str, steps: int, path: str) -> None:
    torch.set_flush_denormal(True)
    Path(path).write_text(json.dumps(SIDES[side].work(*work(), steps)), encoding="utf-8")


def work() -> tuple[ChatModel, list[list[int]], MidtrainConfig]:
    """Return the model, the tokenized documents, and the demo's settings for them."""
    chat = loading.load(ModelSpec(str(resources.files("pipelines") / "microworld" / "checkpoint")))
    texts = [text for _, text in people.documents(people.new_people(0, 1), random.Random(0))]
    documents = [[*chat.text_ids(text), chat.document_end] for text in texts]
    return chat, documents, parse(preset_text("microworld"), "preset").midtrain


def _student(chat: ChatModel) -> ChatModel:
    made = copy.copy(chat)
    made.model = copy.deepcopy(chat.model)
    return made


def ours(chat: ChatModel, documents: list[list[int]], settings: MidtrainConfig, steps: int) -> list[float]:
    """Return the tokens per second of every step but the first."""
    student = _student(chat)
    found = []
    last = [0.0]
    batches = MixedTokens({"new": [(ids, [True] * len(ids)) for ids in documents]}, settings, chat.pad_id, 0)

    def on_metrics(step: int, values: dict[str, float]) -> None:
        now = time.perf_counter()
        found.append(values["tokens"] / (now - last[0]))
        last[0] = now

    last[0] = time.perf_counter()
    loss = TokenLoss(Objective(get("sft")))
    train(student, batches, loss, TrainConfig(steps, RATE, schedule="constant"), on_metrics=on_metrics)
    return found[1:]


def theirs(chat: ChatModel, documents: list[list[int]], settings: MidtrainConfig, steps: int) -> list[float]:
    from transformers import DataCollatorForSeq2Seq, Trainer, TrainerCallback, TrainingArguments

    mean = sum(map(len, documents)) / len(documents)
    batch = max(1, round(settings.tokens_per_step / mean))
    order = random.Random(0).choices(range(len(documents)), k=batch * steps)
    rows = [
        {"input_ids": documents[i], "labels": documents[i], "attention_mask": [1] * len(documents[i])}
        for i in order
    ]
    found, last = [], [0.0]

    class Clock(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            last[0] = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, *rest: Any, **kwargs: Any) -> None:
            now = time.perf_counter()
            first = (state.global_step - 1) * batch
            found.append(
                sum(len(row["input_ids"]) - 1 for row in rows[first : first + batch]) / (now - last[0])
            )
            last[0] = now

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=batch,
            max_steps=steps,
            learning_rate=RATE,
            bf16=False,
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=False,
            train_sampling_strategy="sequential",
        )
        collator = DataCollatorForSeq2Seq(chat.tokenizer, padding=True)
        Trainer(
            model=_student(chat).model,
            args=arguments,
            train_dataset=rows,
            data_collator=collator,
            callbacks=[Clock()],
        ).train()
    return found[1:]


SIDES = {
    "recover": Contender(ours),
    "HF Trainer": Contender(theirs, PLAIN),
    f"HF Trainer, {OURS}": Contender(theirs),
}


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(sys.argv[2], int(sys.argv[3]), sys.argv[4])
        sys.exit()
    run("midtraining", "How many tokens a second does midtraining read, against the HF Trainer?", fill)
