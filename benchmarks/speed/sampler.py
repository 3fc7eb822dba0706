"""Compare the in-process sampler with transformers' `generate`, and with vLLM if installed."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import VLLM_PYTHON, Machine, Report, Row, alternate, median, run
from benchmarks.speed.work import Work
from pipelines.distillation.prompts import read_prompts
from recovery.models import loading
from recovery.models.chat_model import ChatModel
from recovery.models.loading import ModelSpec
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import SamplingParams

NEW_TOKENS = 96
Writer = Callable[[list[list[int]], int], int]


def fill(report: Report, asked: argparse.Namespace) -> None:
    chat = loading.load(ModelSpec(str(resources.files("pipelines") / "microworld" / "checkpoint")))
    prompts = [chat.prompt_ids(prompt.messages) for prompt in read_prompts("microworld", 0)]
    machine = Machine.measure()
    batches = (16,) if asked.quick else (16, 64, 256)
    report.tables["The machine in this run"] = [machine.row()]
    with vllm_beside(chat) as vllm:
        rows = [compare(chat, vllm, prompts[:batch], machine, 2 if asked.quick else 5) for batch in batches]
    report.tables["Tokens a second"] = rows
    report.notes.append(
        f"The shipped model, temperature 1, nothing truncated, at most {NEW_TOKENS} new tokens, one seed "
        "a turn. Tokens are those up to and with the stop token. The sampler and vLLM also return each "
        "token's exact log-probability, `generate` does not. vLLM is its CPU build in a process of "
        "its own, without compilation. The limit is the matrix products alone, at the speed of a large one."
    )


@contextmanager
def vllm_beside(chat: ChatModel) -> Iterator[Writer | None]:
    """Start vLLM in a process of its environment, because importing it changes numerics; None if missing."""
    if not VLLM_PYTHON.is_file():
        yield None
        return
    with tempfile.TemporaryDirectory() as folder, Listener(f"{folder}/socket") as listener:
        words = ["-m", "benchmarks.speed.sampler", "--child", f"{folder}/socket", str(chat.directory)]
        process = subprocess.Popen([str(VLLM_PYTHON), *words], stdout=sys.stderr)
        try:
            with listener.accept() as connection:

                def write(prompts: list[list[int]], seed: int) -> int:
                    connection.send_bytes(json.dumps([prompts, seed, chat.stop_ids]).encode())
                    return int(json.loads(connection.recv_bytes()))

                yield write
        finally:
            process.kill()


def child(socket: str, directory: str) -> None:
    """Send back the number of tokens that vLLM sampled for each request."""
    from recovery.engines.protocol import EngineSettings
    from recovery.engines.vllm_local import VllmEngine

    vllm = VllmEngine(Path(directory), EngineSettings(cpu_cache_gib=1.0, eager=True), dtype="float32")
    with Client(socket) as connection:
        while True:
            prompts, seed, stop_ids = json.loads(connection.recv_bytes())
            answers = vllm.sample(prompts, SamplingParams(NEW_TOKENS, seed=seed), stop_ids)
            connection.send_bytes(json.dumps(sum(len(answer.tokens) for answer in answers)).encode())


def compare(
    chat: ChatModel, vllm: Writer | None, prompts: list[list[int]], machine: Machine, rounds: int
) -> Row:
    tokens: dict[str, list[int]] = {"recover": [], "generate": []}
    if vllm:
        tokens["vLLM"] = []
    limits: list[float] = []
    work = Work.of(chat.model)
    seeds = iter(range(10_000))

    def ours() -> None:
        written = InProcessSampler(chat).sample(prompts, SamplingParams(NEW_TOKENS, seed=next(seeds)))
        tokens["recover"].append(written.n_tokens)
        answers = [len(answer) for answer in written.responses()]
        limits.append(work.sampling([len(p) for p in prompts], answers) / machine.flops)

    def generate() -> None:
        torch.manual_seed(next(seeds))
        tokens["generate"].append(_generate(chat, prompts))

    def engine_writes() -> None:
        assert vllm
        tokens["vLLM"].append(vllm(prompts, next(seeds)))

    arms = {"recover": ours, "generate": generate} | ({"vLLM": engine_writes} if vllm else {})
    seconds, _ = alternate(arms, rounds)
    speed = {
        name: median([n / s for n, s in zip(tokens[name][1:], seconds[name], strict=True)]) for name in tokens
    }
    share = median(seconds["recover"]) / median(limits[1:])
    return {
        "prompts": len(prompts),
        **speed,
        **{f"times {peer}": speed["recover"] / speed[peer] for peer in speed if peer != "recover"},
        "time by the limit's": share,
    }


@torch.inference_mode()
def _generate(chat: ChatModel, prompts: list[list[int]]) -> int:
    """Return how many tokens `generate` sampled, each answer up to its stop token."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[chat.pad_id] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    model: Any = chat.model
    out = model.generate(
        input_ids=tokens,
        attention_mask=mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=list(chat.stop_ids),
        pad_token_id=chat.pad_id,
    )[:, width:]
    stops = torch.isin(out, torch.tensor(chat.stop_ids))
    ends = torch.where(stops.any(1), stops.int().argmax(1) + 1, out.shape[1])
    return int(ends.sum())


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(*sys.argv[2:])
    run("sampler", "How fast does the in-process sampler write, against `generate` and vLLM?", fill)
