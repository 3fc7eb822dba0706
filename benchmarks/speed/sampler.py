"""Compare the in-process sampler with transformers' `generate`, and with vLLM if installed."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import PLAIN, SPREAD, VLLM_PYTHON, Machine, Ratio, Report, Row, alternate, median, run
from benchmarks.speed import material
from benchmarks.speed.material import Material
from benchmarks.speed.work import Work
from recovery.models.chat_model import ChatModel
from recovery.models.device import Dtype
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import SamplingParams

Answers = list[list[int]]
Writer = Callable[[Answers, SamplingParams], Answers]  # prompts in, answers with their stop tokens out
OURS, GENERATE, VLLM = "recover", "generate", "vLLM"
WARM_UP_TOKENS, ROUNDS, REAL_ROUNDS = 4, 5, 3
VLLM_SAID = " So does vLLM, its CPU build without compilation."  # where it is a peer
GOAL = 2.0  # times the tokens a second of `generate`, on a real model


@dataclass(frozen=True)
class Case:
    """How many prompts are answered at once, and how."""

    prompts: int
    new_tokens: int = 96
    dtype: Dtype = "float32"
    temperature: float = 1.0

    @property
    def title(self) -> str:
        return f"{self.prompts} prompts, {self.dtype}, temperature {self.temperature:g}"


def cases(of: Material, *, quick: bool) -> list[Case]:
    if of.is_shipped:
        return [Case(prompts) for prompts in ((16,) if quick else (16, 64, 256))]
    prompts, new_tokens = (2, 8) if quick else (16, 64)
    dtypes: tuple[Dtype, ...] = ("float32", "bfloat16")
    return [Case(prompts, new_tokens, dtype, warmth) for dtype in dtypes for warmth in (0.0, 1.0)]


def fill(report: Report, asked: argparse.Namespace) -> None:
    with material.checkpoint(asked.model) as directory:
        measure(report, asked, Material(directory))


def measure(report: Report, asked: argparse.Namespace, of: Material) -> None:
    planned = cases(of, quick=asked.quick)
    rounds = asked.rounds or (2 if asked.quick else ROUNDS if of.is_shipped else REAL_ROUNDS)
    machines, rows = [], []
    for dtype in dict.fromkeys(case.dtype for case in planned):
        machine, chat = Machine.measure(getattr(torch, dtype)), of.load(dtype)
        machines.append(machine.row())
        with peers(chat, dtype, vllm=not asked.no_vllm) as writers:
            for case in (case for case in planned if case.dtype == dtype):
                prompts = [chat.prompt_ids(prompt.messages) for prompt in of.prompts(case.prompts)]
                turns = compare({OURS: partial(sampled, chat), **writers}, prompts, case, rounds)
                rows.append(turns.row(case, limit(chat, prompts, turns, machine)))
                if not of.is_shipped:
                    ratio = turns.times(GENERATE).median
                    report.target(f"{case.title}: tokens/s against generate's", ratio, "at least", GOAL)
    report.tables["The machine in this run"] = machines
    report.tables["Tokens a second"] = rows
    report.notes.append(
        f"{of.describe(chat)}, nothing truncated, at most {planned[0].new_tokens} new tokens, one seed a "
        "turn. Tokens are those up to and with the stop token. `generate` is transformers' with its own "
        "settings, in a process of its own. The sampler also returns each token's exact log-probability, "
        f"`generate` does not.{VLLM_SAID if any(VLLM in row for row in rows) else ''} `times` is the "
        f"median over the {rounds} rounds, in brackets {SPREAD}. `same answers`: the share of prompts to "
        "which `generate` gives the same tokens at temperature 0. The limit is the matrix products alone, at "
        "the speed of a large one."
    )


@contextmanager
def peers(chat: ChatModel, dtype: Dtype, *, vllm: bool) -> Iterator[dict[str, Writer]]:
    """Start every peer that is installed, with the same weights."""
    with ExitStack() as stack:
        found = {GENERATE: stack.enter_context(beside(GENERATE, chat, dtype, Path(sys.executable)))}
        if vllm and VLLM_PYTHON.is_file():
            found[VLLM] = stack.enter_context(beside(VLLM, chat, dtype, VLLM_PYTHON))
        yield found


@contextmanager
def beside(name: str, chat: ChatModel, dtype: Dtype, python: Path) -> Iterator[Writer]:
    """Start a peer in a process of its own: importing vLLM changes numerics, and so do our CPU settings."""
    connection, end = Pipe()
    words = [name, str(end.fileno()), str(chat.directory), dtype, json.dumps(chat.stop_ids)]
    command = [str(python), "-m", "benchmarks.speed.sampler", "--child", *words]
    environment = {**os.environ, **PLAIN}
    process = subprocess.Popen(command, stdout=sys.stderr, env=environment, pass_fds=[end.fileno()])
    end.close()  # the child's alone, so that its end is seen here

    def write(prompts: Answers, params: SamplingParams) -> Answers:
        asked = [prompts, params.max_new_tokens, params.temperature, params.seed]
        try:
            connection.send_bytes(json.dumps(asked).encode())
            found: Answers = json.loads(connection.recv_bytes())
        except (EOFError, ConnectionError) as error:
            raise SystemExit(f"{name}: its process has ended: its own error is above") from error
        return found

    try:
        yield write
    finally:
        process.kill()
        process.wait()


def child(name: str, end: str, directory: str, dtype: Dtype, stop_ids: str) -> None:
    """Send back a peer's answers to each request."""
    write = CHILDREN[name](Path(directory), dtype, json.loads(stop_ids))
    with Connection(int(end)) as connection:
        while True:
            prompts, new_tokens, temperature, seed = json.loads(connection.recv_bytes())
            answers = write(prompts, SamplingParams(new_tokens, temperature, seed))
            connection.send_bytes(json.dumps(answers).encode())


def _generate(directory: Path, dtype: Dtype, _: list[int]) -> Writer:
    return partial(generated, Material(directory).load(dtype, attention="sdpa"))


@torch.inference_mode()
def generated(chat: ChatModel, prompts: Answers, params: SamplingParams) -> Answers:
    """Return what transformers' `generate` answers, each up to its stop token."""
    torch.manual_seed(params.seed)
    width = max(map(len, prompts))
    tokens = torch.tensor([[chat.pad_id] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    warmth = {"do_sample": True, "temperature": params.temperature, "top_k": 0, "top_p": 1.0}
    model: Any = chat.model
    out = model.generate(
        input_ids=tokens,
        attention_mask=mask,
        max_new_tokens=params.max_new_tokens,
        eos_token_id=list(chat.stop_ids),
        pad_token_id=chat.pad_id,
        **(warmth if params.temperature else {"do_sample": False}),
    )[:, width:]
    stops = torch.isin(out, torch.tensor(chat.stop_ids))
    ends = torch.where(stops.any(1), stops.int().argmax(1) + 1, out.shape[1])
    return [row[:end] for row, end in zip(out.tolist(), ends.tolist(), strict=True)]


def _vllm(directory: Path, dtype: Dtype, stop_ids: list[int]) -> Writer:
    from recovery.engines.protocol import EngineSettings
    from recovery.engines.vllm_local import VllmEngine

    vllm = VllmEngine(directory, EngineSettings(cpu_cache_gib=1.0, eager=True), dtype=dtype)

    def write(prompts: Answers, params: SamplingParams) -> Answers:
        return [list(answer.tokens) for answer in vllm.sample(prompts, params, stop_ids)]

    return write


CHILDREN: dict[str, Callable[[Path, Dtype, list[int]], Writer]] = {GENERATE: _generate, VLLM: _vllm}


@dataclass(frozen=True)
class Turns:
    """The answers of each side, and the seconds that each turn took."""

    written: dict[str, list[Answers]]
    seconds: dict[str, list[float]]

    @property
    def speeds(self) -> dict[str, list[float]]:
        """Return the tokens a second of each turn."""
        return {
            name: [sum(map(len, answers)) / taken for answers, taken in zip(turns, times, strict=True)]
            for (name, turns), times in zip(self.written.items(), self.seconds.values(), strict=True)
        }

    def times(self, peer: str) -> Ratio:
        return Ratio.of(self.speeds[OURS], self.speeds[peer])

    def same_answers(self, peer: str) -> float:
        """Return the share of prompts that got the same tokens from a peer."""
        pairs = list(zip(self.written[OURS][0], self.written[peer][0], strict=True))
        return sum(mine == theirs for mine, theirs in pairs) / len(pairs)

    def row(self, case: Case, limit: float) -> Row:
        """Return a row of the table; `limit` is the seconds that the matrix products take."""
        same = "" if case.temperature else f"{self.same_answers(GENERATE):.0%}"
        return {
            "prompts": case.prompts,
            "dtype": case.dtype,
            "temperature": case.temperature,
            **{name: median(found) for name, found in self.speeds.items()},
            **{f"times {peer}": str(self.times(peer)) for peer in self.written if peer != OURS},
            "same answers": same,
            "time by the limit's": median(self.seconds[OURS]) / limit,
        }


def compare(writers: dict[str, Writer], prompts: Answers, case: Case, rounds: int) -> Turns:
    written: dict[str, list[Answers]] = {name: [] for name in writers}

    def turn(name: str) -> None:
        params = SamplingParams(case.new_tokens, case.temperature, seed=len(written[name]))
        written[name].append(writers[name](prompts, params))

    for write in writers.values():
        write(prompts, SamplingParams(WARM_UP_TOKENS, case.temperature))
    arms = {name: partial(turn, name) for name in writers}
    seconds, _ = alternate(arms, rounds, warm_up=0, title=case.title)
    return Turns(written, seconds)


def limit(chat: ChatModel, prompts: Answers, turns: Turns, machine: Machine) -> float:
    """Return the seconds that the matrix products of our turns take at the machine's speed."""
    work, lengths = Work.of(chat.model), list(map(len, prompts))
    return (
        median([work.sampling(lengths, list(map(len, one))) for one in turns.written[OURS]]) / machine.flops
    )


def sampled(chat: ChatModel, prompts: Answers, params: SamplingParams) -> Answers:
    return InProcessSampler(chat).sample(prompts, params).responses()


def options(parser: argparse.ArgumentParser) -> None:
    material.options(parser)
    parser.add_argument("--no-vllm", action="store_true", help="do not start vLLM, even if it is installed")


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(*sys.argv[sys.argv.index("--child") + 1 :])  # type: ignore[arg-type]
        sys.exit()
    run("sampler", "How fast does the in-process sampler write, against `generate` and vLLM?", fill, options)
