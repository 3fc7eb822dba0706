"""Trainings in several processes for test_parallel.py: `two.py FOLDER CASE:HOW:DIE_AFTER ...` by torchrun."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pipelines.engines.engine_places import in_step
from pipelines.knowledge.forecast import log_probs
from pipelines.prompts.prompt_sources import Prompt
from recovery import distributed
from recovery.batches.rollouts import Rollouts
from recovery.engines.engine_sampler import EngineSampler
from recovery.engines.protocol import EngineSettings
from recovery.engines.vllm_http import ServerEngine
from recovery.forward import varlen
from recovery.inspection.token_traces import Tracer
from recovery.methods import table
from recovery.models.adapters import LoraSpec, add_lora
from recovery.models.chat_model import ChatModel
from recovery.models.saving import save
from recovery.objective.objective import Objective
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import Sampler, SamplingParams
from recovery.teachers.teachers import AdapterOffTeacher, CheckpointTeacher
from recovery.training.config import TrainConfig
from recovery.training.step_data import Episodes, StepConfig, Task
from recovery.training.token_loss import TokenLoss
from recovery.training.trainer import train
from recovery.training.updater import Microbatch
from tests.support import tiny
from tests.support.watched_state import WatchedState

CONFIG = TrainConfig(steps=3, learning_rate=1e-3, weight_decay=0.01, seed=5, save_every=1)
SEEN = ("loss", "grad_norm", "tokens", "entropy")


class Texts:
    """Seven documents a step, one to a microbatch: an odd number for two processes."""

    def updates(self, step: int) -> Iterable[Sequence[Microbatch]]:
        draw = torch.Generator().manual_seed(step)
        lengths = torch.randint(3, 24, (7,), generator=draw).tolist()
        rows = [
            (torch.randint(0, 250, (n,), generator=draw).tolist(), [i > 1 for i in range(n)]) for n in lengths
        ]
        yield [Microbatch(Rollouts.from_dialogues([row], pad_id=258)) for row in rows]


def judged(response: str, fields: Mapping[str, Any]) -> float:
    """Judge otherwise in every process, as a judge that draws its words does."""
    return float(distributed.rank() == 0 and len(response) % 2 == 0)


def case(name: str) -> tuple[ChatModel, Any, Any]:
    kind, _, where = name.partition("-")
    few = where == "few"  # one microbatch for two processes, read by an anchor too
    even = where == "even"  # one microbatch, which two processes divide
    lora = few or where in ("lora", "half")
    odd: dict[str, Any] = (
        {"vocab_size": 261} if where == "whole" else {}
    )  # rows that two processes cannot halve
    student = tiny.chat_model(seed=1, tie_word_embeddings=kind != "texts", **odd)
    if where in ("half", "whole"):
        student.model.to(torch.bfloat16)
    varlen.use_varlen(student.model)  # as of every model that is loaded
    if lora:
        add_lora(student, LoraSpec(rank=4))
    if kind == "texts":
        return student, Texts(), TokenLoss(Objective(table.get("sft")))
    dials = {"minibatches": "2"} if kind == "opd" and not even else {}
    if few:
        dials["anchor_beta"] = "0.1"
    method = table.with_dials(kind, dials)
    teacher = AdapterOffTeacher(student) if lora else CheckpointTeacher(tiny.chat_model())
    items = [Prompt([{"role": "user", "content": f"say {i}"}]) for i in range(9)]
    most = 4096 if few or even else 64
    # With seed 3 a draw of the case "even" lies so near the border of two tokens that rounding decides it.
    seed = 4 if even else 3
    config = StepConfig(prompts_per_step=6, max_new_tokens=8, microbatch_tokens=most, seed=seed)
    episodes = Episodes(
        student,
        from_server(student) if where == "server" else InProcessSampler(student),
        Task(method, items, teacher=teacher, anchor=teacher if few else None, reward=judged),
        config,
        on_scored=Tracer(student, Objective(method), CONFIG.steps, lambda step, traces: None),
    )
    return student, episodes, TokenLoss(Objective(method, student.stop_ids))


def from_server(student: ChatModel) -> Sampler:
    """All processes sample from the one server that the test has started."""
    engine = ServerEngine([os.environ["SERVER_URL"]], EngineSettings(timeout_seconds=120), processes=2)
    return in_step(EngineSampler(engine, student))


class Looks:
    """What a training's checks and traces find, of which only those of the second step measure."""

    def __init__(self, student: ChatModel, batches: Episodes) -> None:
        self.student = student
        self.sampler = batches.sampler
        self.prompts = [student.prompt_ids([{"role": "user", "content": word}]) for word in ("one", "two")]
        self.found: dict[str, Any] = {"whole": []}
        batches.on_scored = self.traced(batches.on_scored)

    def __call__(self, step: int, metrics: Mapping[str, float]) -> str | None:
        self.note_state("check", step)
        if step == 2:
            answers = self.sampler.sample(self.prompts, SamplingParams(8, temperature=0.0))
            self.found["answers"] = answers.responses()
            self.found["log_probs"] = log_probs(self.student, answers).tolist()
        return "seen" if step == 3 else None

    def traced(self, trace: Any) -> Callable[[int, list[Microbatch]], None]:
        def look(step: int, batches: list[Microbatch]) -> None:
            self.note_state("trace", step)
            trace(step, batches)

        return look

    def note_state(self, moment: str, step: int) -> None:
        """Note when no weight is in shards."""
        if not any(hasattr(weight, "to_local") for weight in self.student.model.parameters()):
            self.found["whole"].append((moment, step))


def run(name: str, folder: Path, die_after: int, how: str) -> None:
    """One training; with `die_after`, the first process kills itself once that step's state is saved."""
    student, batches, loss = case(name)
    looks = Looks(student, batches) if how.endswith("looks") else None
    seen: list[dict[str, float]] = []

    def on_metrics(step: int, values: dict[str, float]) -> None:
        assert distributed.rank() == 0, "only the first process reports"
        seen.append({"step": step} | {name: values[name] for name in SEEN})

    def after(step: int) -> None:
        if step == die_after and distributed.rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    train(
        student,
        batches,
        loss,
        replace(CONFIG, shard=how.startswith("shard")),
        state=WatchedState(folder / "state", after),
        on_metrics=on_metrics,
        should_stop=looks,
    )
    if distributed.rank() == 0:
        save(student, folder / "model")
        (folder / "seen.json").write_text(json.dumps(seen), encoding="utf-8")
        (folder / "looks.json").write_text(json.dumps(looks and looks.found), encoding="utf-8")


def main(root: Path, wanted: list[str]) -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    distributed.start()
    for one in wanted:
        name, how, die_after = one.split(":")
        run(name, root / f"{name}-{how}", int(die_after), how)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
