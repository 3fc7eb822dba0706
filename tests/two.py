"""Trainings in several processes for test_parallel.py: `two.py FOLDER CASE:HOW:DIE_AFTER ...` by torchrun."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tiny
import torch

from pipelines.prompts import Prompt
from recovery import flat, methods, models, parallel
from recovery.chat_model import ChatModel
from recovery.checkpoints import TrainState
from recovery.episodes import Episodes, Sizes
from recovery.models import LoraSpec, add_lora
from recovery.objective import Objective
from recovery.rollouts import Rollouts
from recovery.sampling import InProcessSampler
from recovery.teachers import AdapterOffTeacher, CheckpointTeacher
from recovery.train_config import TrainConfig
from recovery.trainer import token_loss, train
from recovery.updater import Microbatch

CONFIG = TrainConfig(steps=3, learning_rate=1e-3, weight_decay=0.01, seed=5, save_every=1)
SEEN = ("loss", "grad_norm", "tokens", "entropy")


class Texts:
    """Seven documents a step, one to a microbatch: an odd number for two processes."""

    def updates(self, step: int) -> Iterable[Sequence[Microbatch]]:
        draw = torch.Generator().manual_seed(step)
        lengths = torch.randint(3, 24, (7,), generator=draw).tolist()
        rows = [(torch.randint(0, 250, (n,), generator=draw).tolist(), [i > 1 for i in range(n)])
                for n in lengths]  # fmt: skip
        yield [Microbatch(Rollouts.from_dialogues([row], pad_id=258)) for row in rows]


def read_alone(student: ChatModel, batches: Sequence[Microbatch]) -> None:
    """The first process looks at an answer, the others do not: none may wait for that."""
    if parallel.rank() == 0:
        with torch.no_grad():
            models.hidden_states(student.model, batches[0].rollouts.tokens_BT)


def case(name: str) -> tuple[ChatModel, Any, Any]:
    kind, _, lora = name.partition("-")
    student = tiny.chat_model(seed=1, tie_word_embeddings=kind != "texts")
    flat.use_flat(student.model)  # as of every model that is loaded
    if lora:
        add_lora(student, LoraSpec(rank=4))
    if kind == "texts":
        return student, Texts(), token_loss(Objective(methods.get("sft")))
    method = methods.with_dials("opd", {"minibatches": "2"})
    teacher = AdapterOffTeacher(student) if lora else CheckpointTeacher(tiny.chat_model())
    items = [Prompt([{"role": "user", "content": f"say {i}"}]) for i in range(9)]
    sizes = Sizes(prompts_per_step=6, max_new_tokens=8, microbatch_tokens=64)
    episodes = Episodes(
        student, InProcessSampler(student), teacher, method, items, sizes, seed=3,
        on_scored=lambda step, batches: read_alone(student, batches),
    )  # fmt: skip
    return student, episodes, token_loss(Objective(method, student.stop_ids))


def run(name: str, folder: Path, die_after: int, sharded: bool) -> None:
    """One training; with `die_after`, the first process kills itself once that step's state is saved."""
    student, batches, loss = case(name)
    seen: list[dict[str, float]] = []

    def on_metrics(step: int, values: dict[str, float]) -> None:
        assert parallel.rank() == 0, "only the first process reports"
        seen.append({"step": step} | {name: values[name] for name in SEEN})

    def on_state(step: int) -> None:
        if step == die_after:
            os.kill(os.getpid(), signal.SIGKILL)

    train(
        student, batches, loss, replace(CONFIG, shard=sharded), state=TrainState(folder / "state"),
        on_metrics=on_metrics, on_state=on_state,
    )  # fmt: skip
    if parallel.rank() == 0:
        models.save(student, folder / "model")
        (folder / "seen.json").write_text(json.dumps(seen), encoding="utf-8")


def main(root: Path, wanted: list[str]) -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    parallel.start()
    for one in wanted:
        name, how, die_after = one.split(":")
        run(name, root / f"{name}-{how}", int(die_after), how.startswith("shard"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
