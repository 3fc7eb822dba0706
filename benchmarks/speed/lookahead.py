"""Measure one-step look-ahead: vLLM's server on one core, the trainer on the other.

Without vLLM, report so and measure nothing.
"""

from __future__ import annotations

import argparse
import copy
import os
import tempfile
from pathlib import Path

import torch

from benchmarks.common import Report, Row, installed, median, run
from pipelines.microworld.shipped_model import shipped_model
from pipelines.prompts.prompt_sources import read_prompts
from recovery.engines.engine_sampler import EngineSampler
from recovery.engines.lookahead import Lookahead, corrected
from recovery.engines.protocol import EngineSettings
from recovery.engines.vllm_http import ServerEngine
from recovery.engines.vllm_server import Server
from recovery.methods.table import METHODS
from recovery.models import loading
from recovery.models.chat_model import ChatModel
from recovery.models.loading import ModelSpec
from recovery.objective.objective import Objective
from recovery.teachers.teachers import CheckpointTeacher
from recovery.training.config import TrainConfig
from recovery.training.step_data import Episodes, StepConfig, Task
from recovery.training.token_loss import TokenLoss
from recovery.training.trainer import train

STEP = StepConfig(prompts_per_step=32, samples_per_prompt=2, max_new_tokens=64, microbatch_tokens=4096)
SETTINGS = EngineSettings(cpu_cache_gib=0.25, eager=True)


def fill(report: Report, asked: argparse.Namespace) -> None:
    if not installed("vllm"):
        report.notes.append("Not measured: vLLM is not installed (`make .venv-vllm/.ready`).")
        return
    directory = shipped_model()
    steps, rounds = (4, 1) if asked.quick else (12, 3)
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        os.sched_setaffinity(0, {1})  # inherited by its child processes
        server = Server(directory, SETTINGS, name="student", log=Path(folder) / "log", dtype="float32")
        server.start()
        os.sched_setaffinity(0, {0})
        torch.set_num_threads(1)
        try:
            for turn in range(rounds):
                for ahead in (False, True) if turn % 2 == 0 else (True, False):
                    found[ahead] += trained(directory, server, steps, ahead)[2:-1]
        finally:
            server.stop()
    report.tables["Seconds a step"] = rows = [row(name, found[ahead]) for ahead, name in NAMES.items()]
    report.notes.append(
        f"The shipped model in fp32; {STEP.prompts_per_step} prompts a step, {STEP.samples_per_prompt} "
        f"answers each of up to {STEP.max_new_tokens} tokens; exact reverse KL; medians over the steps of "
        "alternating trainings but their first two and last. `waiting` is for answers and the teacher's "
        f"scores. A step ahead took {rows[1]['step'] / rows[0]['step']:.2f} of the time."
    )


NAMES = {False: "in turns", True: "a step ahead"}


def row(name: str, steps: list[dict[str, float]]) -> Row:
    columns = {"step": "step_seconds", "waiting": "batch_seconds", "weights to the server": "sync_seconds"}
    return {"": name} | {title: median([step[of] for step in steps]) for title, of in columns.items()}


def trained(directory: Path, server: Server, steps: int, ahead: bool) -> list[dict[str, float]]:
    """Return every step's metrics."""
    student = loading.load(ModelSpec(str(directory)))
    method = corrected(METHODS["opd"])
    sampler = EngineSampler(ServerEngine([server.url], SETTINGS), student)
    seen: list[dict[str, float]] = []
    batches = Episodes(
        student,
        sampler,
        Task(method, read_prompts("microworld", 0), teacher=CheckpointTeacher(_frozen(student))),
        STEP,
        ahead=Lookahead(sampler, steps, 0) if ahead else None,
    )
    loss = TokenLoss(Objective(method, student.stop_ids))
    train(student, batches, loss, TrainConfig(steps, 1e-4), on_metrics=lambda _, found: seen.append(found))
    return seen


def _frozen(student: ChatModel) -> ChatModel:
    made = copy.copy(student)
    made.model = copy.deepcopy(student.model)
    return made


if __name__ == "__main__":
    run("a step ahead", "What does it save to write the next answers while these are trained on?", fill)
