"""Writing answers: the in-process sampler against transformers' `generate` on the same prompts."""

from __future__ import annotations

import argparse
from importlib import resources
from typing import Any

import torch

from benchmarks.common import Machine, Report, Row, alternate, median, run
from benchmarks.work import Work
from pipelines.prompts import read_prompts
from recovery import models
from recovery.chat_model import ChatModel
from recovery.models import ModelSpec
from recovery.sampler import SamplingParams
from recovery.sampling import InProcessSampler

NEW_TOKENS = 96


def fill(report: Report, asked: argparse.Namespace) -> None:
    chat = models.load(ModelSpec(str(resources.files("pipelines") / "microworld" / "checkpoint")))
    prompts = [chat.prompt_ids(prompt.messages) for prompt in read_prompts("microworld", 0)]
    machine, batches = Machine.measure(), (16,) if asked.quick else (16, 64, 256)
    report.tables["The machine in this run"] = [machine.row()]
    rows = [compare(chat, prompts[:batch], machine, 2 if asked.quick else 5) for batch in batches]
    report.tables["Tokens a second"] = rows
    report.notes.append(
        f"The shipped model, temperature 1, nothing truncated, at most {NEW_TOKENS} new tokens, one seed "
        "a turn. Tokens are those up to and with the stop token. The sampler also returns each token's "
        "exact log-probability, `generate` does not. The limit is the matrix products alone, at the "
        "speed of a large one."
    )


def compare(chat: ChatModel, prompts: list[list[int]], machine: Machine, rounds: int) -> Row:
    tokens: dict[str, list[int]] = {"recover": [], "generate": []}
    limits: list[float] = []
    work, seeds = Work.of(chat.model), iter(range(10_000))

    def ours() -> None:
        written = InProcessSampler(chat).sample(prompts, SamplingParams(NEW_TOKENS, seed=next(seeds)))
        tokens["recover"].append(written.n_tokens)
        answers = [len(answer) for answer in written.responses()]
        limits.append(work.sampling([len(p) for p in prompts], answers) / machine.flops)

    def generate() -> None:
        torch.manual_seed(next(seeds))
        tokens["generate"].append(_generate(chat, prompts))

    seconds, _ = alternate({"recover": ours, "generate": generate}, rounds)
    speed = {
        name: median([n / s for n, s in zip(tokens[name][1:], seconds[name], strict=True)]) for name in tokens
    }
    share = median(seconds["recover"]) / median(limits[1:])
    return {
        "prompts": len(prompts),
        "recover": speed["recover"],
        "generate": speed["generate"],
        "times": speed["recover"] / speed["generate"],
        "time by the limit's": share,
    }


@torch.inference_mode()
def _generate(chat: ChatModel, prompts: list[list[int]]) -> int:
    """How many tokens `generate` wrote, each answer up to its stop token."""
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
    run("sampler", "How many tokens a second does the in-process sampler write, against `generate`?", fill)
