"""Measure the CPU engine: with it, without it, and with torch.compile instead."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path

import torch

from benchmarks.common import SPREAD, Contender, Machine, Ratio, Report, Row, median, run, spread
from pipelines.microworld.shipped_model import shipped_model
from pipelines.prompts.prompt_sources import read_prompts
from recovery.forward.fast_path import fast_path
from recovery.forward.hidden_states import logits_of, predicting_states
from recovery.methods.table import get
from recovery.models import loading
from recovery.models.chat_model import ChatModel
from recovery.models.loading import ModelSpec, compile_layers
from recovery.objective.objective import Objective
from recovery.objective.token_signals import TokenSignals
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import SamplingParams
from recovery.teachers.teachers import score

OFF = {"RECOVER_CPU": "off"}
PROMPTS, NEW_TOKENS, TURNS, ROUNDS = 64, 96, 5, 3
READ_TOKENS = 1024  # tokens per microbatch
WORTH = 1.2  # least speed-up that justifies the engine's code
Task = Callable[[], int]  # returns the number of processed tokens
Speeds = dict[str, list[list[float]]]  # tokens per second of each side, in each round and turn


def fill(report: Report, asked: argparse.Namespace) -> None:
    sizes = [8, 8, 1] if asked.quick else [PROMPTS, NEW_TOKENS, TURNS]
    speeds: dict[str, Speeds] = {}
    names, rounds = list(SIDES), 1 if asked.quick else ROUNDS
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else names[::-1]:
            for task, values in measured(name, sizes).items():
                speeds.setdefault(task, {}).setdefault(name, []).append(values)
    report.tables["The machine in this run"] = [Machine.measure().row()]
    report.tables["Tokens a second"] = [row(task, found) for task, found in speeds.items()]
    for task, found in speeds.items():
        report.target(f"{task}: times without", times(found, "without").median, "at least", WORTH)
    report.notes.append(
        f"The shipped model in fp32, each side in processes of its own. Sampling: {sizes[0]} prompts, at "
        f"most {sizes[1]} new tokens. Scoring: a teacher's log-probs of the answers. Training: forwards and "
        f"backwards through the exact reverse KL, in microbatches of {READ_TOKENS} tokens. torch.compile "
        "compiles the layers for sequences of any length; decoding is not compiled, as its cache grows. "
        f"`times` is the median over the {rounds} rounds, in brackets {SPREAD}."
    )


def row(task: str, found: Speeds) -> Row:
    every = {side: list(chain.from_iterable(rounds)) for side, rounds in found.items()}
    return {
        "task": task,
        **{side: median(values) for side, values in every.items()},
        "middle half": spread(every["engine"]),
        **{f"times {peer}": str(times(found, peer)) for peer in found if peer != "engine"},
    }


def times(found: Speeds, peer: str) -> Ratio:
    """Return how many times as fast as a peer the engine is."""
    engine, other = ([median(values) for values in found[side]] for side in ("engine", peer))
    return Ratio.of(engine, other)


def measured(side: str, sizes: list[int]) -> dict[str, list[float]]:
    """Return tokens per second of each task and round, in a process of this side."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        SIDES[side].apart("cpu", side, file.name, *map(str, sizes))
        return json.load(file)


def child(side: str, path: str, prompts: int, new_tokens: int, turns: int) -> None:
    torch.set_flush_denormal(True)
    spec = ModelSpec(str(shipped_model()))
    student, teacher = loading.load(spec), loading.load(spec)
    assert fast_path().status()[0] == (side == "engine"), fast_path().status()[1]
    if side == COMPILED:
        for chat in (student, teacher):
            compile_layers(chat)
    found = {}
    for name, task in tasks(student, teacher, prompts, new_tokens, side).items():
        task()  # warm up: compile, check and allocate
        found[name] = [timed(task) for _ in range(turns)]
    Path(path).write_text(json.dumps(found), encoding="utf-8")


def timed(task: Task) -> float:
    begun = time.perf_counter()
    tokens = task()
    return tokens / (time.perf_counter() - begun)


def tasks(student: ChatModel, teacher: ChatModel, count: int, new_tokens: int, side: str) -> dict[str, Task]:
    """Return the tasks: sampling, scoring and training on the same answers."""
    prompts = [student.prompt_ids(prompt.messages) for prompt in read_prompts("microworld", 0)][:count]
    params = SamplingParams(new_tokens, seed=1)
    rollouts = InProcessSampler(student).sample(prompts, params)
    objective = Objective(get("opd"), student.stop_ids)
    head = partial(logits_of, student.model)

    def sample() -> int:
        return InProcessSampler(student).sample(prompts, params).n_tokens

    def scoring() -> int:
        score(teacher, rollouts, "sampled", 1, READ_TOKENS)
        return int(rollouts.lengths_B.sum())

    parts = [(part, score(teacher, part, "dense", 1, READ_TOKENS)) for part in rollouts.split(READ_TOKENS)]

    def training() -> int:
        student.model.zero_grad()
        for part, scores in parts:
            loss = objective(
                predicting_states(student.model, part), head, part.tokens_N, TokenSignals(scores)
            )
            loss.value.backward()
        return int(rollouts.lengths_B.sum())

    reading = {"scoring": scoring, "training": training}
    return reading if side == COMPILED else {"sampling": sample, **reading}


COMPILED = "torch.compile"
SIDES = {"engine": Contender(child), "without": Contender(child, OFF), COMPILED: Contender(child, OFF)}


if __name__ == "__main__":
    if "--child" in sys.argv:
        side, path, *sizes = sys.argv[2:]
        child(side, path, *map(int, sizes))
        sys.exit()
    run("cpu", "What is the CPU engine worth, with and without it, beside torch.compile?", fill)
